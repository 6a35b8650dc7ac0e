//! Tools: each is a [`Function`] with a name, a description and a schema. A call gets arguments that fit the schema, and its
//! [`CallContext`]; [`crate::agent::Agent::call`] tests it. The tools of `bantam` are in [`crate::tools`].

// The registry finds the tool of a call and checks its arguments (`registry`, `names`, `fit`, `schema`). The call formats
// itself and runs (`call`). Long results are cut (`limit`). Each other file is a family
// of tools.

mod call;
mod change;
pub(crate) mod client;
pub(crate) mod cron;
pub(crate) mod exec;
pub(crate) mod files;
mod fit;
mod function;
mod limit;
pub(crate) mod mcp;
pub(crate) mod meaning;
pub(crate) mod memory;
pub(crate) mod message;
pub(crate) mod names;
mod registry;
mod repair;
pub(crate) mod schema;
pub(crate) mod skill;
pub(crate) mod subagent;
pub(crate) mod think;
pub(crate) mod web;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::bus::{Event, Origin};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::message::Media;
use crate::session::Values;
use crate::text::clip;
use crate::usage::Budget;
pub use call::PendingCall;
pub(crate) use call::{Call, without_keys};
pub(crate) use change::Change;
pub use function::Function;
pub use registry::Registry;

/// Possible effects of a tool. They decide whether the user is asked ([`crate::agent::Builder::confirm`]), and which calls run
/// in parallel or may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Risk {
    /// Only reads. Calls run in parallel. A repeated call runs only after another call has changed something, because the model
    /// already has its result, unless the tool says that its results vary ([`Function::varying`]).
    Safe,
    /// Changes files or sends something. Calls run one after the other, and an identical call up to three times until something
    /// new was done.
    Writes,
    /// Runs programs. An identical call may be made up to ten times until something new was done.
    Runs,
}

impl Risk {
    /// Returns `safe`, `writes` or `runs`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Writes => "writes",
            Self::Runs => "runs",
        }
    }
}

/// Owner of a tool, which decides how its calls are checked and whether they need approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// bantam itself.
    BuiltIn,
    /// The program that embeds bantam.
    Program,
    /// An MCP server.
    Server,
    /// A client of the HTTP endpoint, which also runs the tool.
    Client,
}

impl Owner {
    /// Whether the owner checks patterns and undeclared arguments.
    fn checks_arguments(self) -> bool {
        matches!(self, Self::Server | Self::Client)
    }
}

/// Describes a tool to the model and to people.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// Name that providers accept: letters, digits, `_` and `-`, up to 64 characters.
    pub name: Cow<'static, str>,
    /// Description, whose first sentence is also shown alone.
    pub description: Cow<'static, str>,
    /// JSON Schema of the arguments, which must be an object. Requests carry it in a form that strict hosts accept: values of
    /// the wrong kind are left out, and missing `properties` or `items` are added empty.
    ///
    /// Calls are checked against it, except for conditions (`if`), `contains`, `patternProperties` and other keywords that
    /// `bantam --schema` refuses, and patterns that are invalid or look around, which the tool must check. Obvious mistakes
    /// are corrected: `"12"` becomes 12 for an integer, `"true"` true, one value a list of it, `"X"` the choice `"x"`; `null`
    /// is left out. Undeclared arguments are refused before the tool runs, except for comments such as `reason`.
    pub schema: Cow<'static, str>,
    /// Possible effects of its calls.
    pub risk: Risk,
    /// Origin of the tool, for people, such as the name of your program. It is `built in` for bantam's tools, and the name of
    /// the server for MCP tools.
    pub source: Cow<'static, str>,
}

impl ToolSpec {
    pub(crate) const fn built_in(
        name: &'static str,
        risk: Risk,
        description: &'static str,
        schema: &'static str,
    ) -> Self {
        Self {
            name: Cow::Borrowed(name),
            description: Cow::Borrowed(description),
            schema: Cow::Borrowed(schema),
            risk,
            source: Cow::Borrowed("built in"),
        }
    }

    /// Returns the first sentence of the description.
    pub(crate) fn purpose(&self) -> &str {
        let first = self
            .description
            .split_once(". ")
            .map_or(&*self.description, |(first, _)| first);
        clip(first.trim_end_matches('.'), 200)
    }
}

/// Result of a tool for the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolOutput {
    /// Text of the result.
    pub text: String,
    /// Whether the action failed although the call ran, such as a command with a nonzero exit code.
    pub failed: bool,
    /// Images that go with the text.
    pub images: Vec<Media>,
}

impl ToolOutput {
    /// Returns a successful result.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..Self::default()
        }
    }
}

impl<T: Into<String>> From<T> for ToolOutput {
    fn from(text: T) -> Self {
        Self::text(text)
    }
}

/// Channel of subagents.
pub(crate) const SUBAGENT: &str = "subagent";

/// Turn that a call belongs to.
pub struct CallContext<'a> {
    /// Channel and chat of the conversation.
    pub origin: &'a Origin,
    /// Metadata that the embedding program attached to the turn.
    pub metadata: &'a BTreeMap<String, String>,
    /// Reports when the turn is stopped or out of time.
    pub cancel: &'a Cancel,
    /// Named values of the conversation.
    pub values: &'a Values,
    /// Text that the user wrote in the conversation; secrets in it are shown in results.
    pub(crate) said: &'a str,
    /// Budget for a tool's own model requests, and the versions of files before the turn.
    pub(crate) budget: &'a Budget,
    /// Shows an event to the user.
    pub events: &'a (dyn Fn(Event) + Sync),
    /// Runs a subagent and waits for it, so that tools need no access to the agent. Errors are worded for the model.
    pub run_task: &'a (dyn Fn(&Task) -> Result<ToolOutput> + Sync),
    /// Starts a subagent in the background; its result arrives as a message.
    pub start_task: &'a (dyn Fn(Task) -> Result<()> + Sync),
    /// Maximum size of a result, in bytes, for the model's context window.
    pub(crate) room: usize,
    /// Whether the user is asked before calls of the tool, or has allowed them as it was described.
    pub(crate) is_confirmed: bool,
    /// Set by a call that is answered elsewhere. The turn then ends after the calls of this reply.
    pub(crate) is_handed_over: &'a AtomicBool,
}

/// Task of a subagent.
pub struct Task {
    /// Name shown with its tool calls and its report.
    pub label: String,
    /// Full instructions of the subagent.
    pub text: String,
}

/// Tools unavailable to subagents, which answer only their caller and cannot start others.
pub(crate) const NOT_FOR_SUBAGENTS: [&str; 3] = ["subagent", "message", "cron"];

/// Channel of scheduled jobs.
pub(crate) const JOB: &str = "cron";

/// Tools that only pass text on. In other tools' arguments, a redaction mark would replace the secret in files and forms.
const PASSES_WORDS_ON: [&str; 3] = ["message", "subagent", "cron"];

/// Returns a string argument; `""` if it is absent.
fn text<'a>(args: &'a Value, name: &str) -> &'a str {
    args.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Converts the arguments to a tool's type.
fn arguments<T: DeserializeOwned>(args: &Value) -> Result<T> {
    T::deserialize(args).map_err(|e| Error::failed(format!("invalid arguments: {e}")))
}

/// Formats an argument for people.
fn plain(value: &Value) -> String {
    let text = value.as_str().map(str::to_owned);
    text.unwrap_or_else(|| value.to_string())
}
