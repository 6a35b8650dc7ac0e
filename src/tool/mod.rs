//! Tools: a [`Function`] with a name, a description and a schema, or a type of your own that implements [`Tool`]. A call gets
//! arguments that fit the schema, and its [`CallContext`]; [`crate::agent::Agent::call`] tests it. The tools of `bantam` are in
//! [`crate::tools`].

// The registry finds the tool of a call and checks its arguments (`registry`, `names`, `schema`); the call shows itself and runs
// (`call`); long results come in pages (`pages`). The built-in tools share a `Workshop`. Every other file is a family of tools.

mod call;
mod change;
pub(crate) mod client;
pub(crate) mod cron;
pub(crate) mod exec;
pub(crate) mod files;
mod function;
pub(crate) mod mcp;
pub(crate) mod meaning;
pub(crate) mod memory;
pub(crate) mod message;
pub(crate) mod names;
pub(crate) mod pages;
mod registry;
mod repair;
pub(crate) mod schema;
pub(crate) mod skill;
pub(crate) mod subagent;
pub(crate) mod think;
pub(crate) mod web;
mod workshop;

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
use crate::text::{clip, one_line};
use crate::usage::Budget;
pub(crate) use call::{Audience, Call, was_not_run};
pub use function::Function;
use pages::Pages;
pub use registry::Registry;
pub(crate) use workshop::Workshop;

/// What a tool may do to the world. It decides whether the user is asked ([`crate::agent::Builder::confirm`]), and which calls run
/// at once and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Risk {
    /// Reads only, and only other calls change what it reads. Calls run in parallel; the same call is not run again while
    /// nothing was changed, because the model has its result.
    Safe,
    /// Changes files or sends something, or has another result each time: a clock, the state of a job. Calls run one after the
    /// other; the same one runs at most three times until something new was done.
    Writes,
    /// Runs programs.
    Runs,
}

impl Risk {
    /// `safe`, `writes` or `runs`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Writes => "writes",
            Self::Runs => "runs",
        }
    }
}

/// Who made a tool, which decides how its calls are checked and whether they need approval.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
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
    /// Whether the owner checks arguments that the schema does not name, and patterns.
    pub(crate) fn checks_arguments(self) -> bool {
        matches!(self, Self::Server | Self::Client)
    }
}

/// The file at the path that a call would write.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub enum Replaced {
    /// There is none.
    Absent,
    /// Its content.
    Content(Vec<u8>),
    /// Why it cannot be shown.
    Unseen(String),
}

/// Describes a tool to the model and to people.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// As providers accept it: letters, digits, `_` and `-`, at most 64.
    pub name: Cow<'static, str>,
    /// The first sentence is also shown alone.
    pub description: Cow<'static, str>,
    /// JSON Schema of the arguments, an object, as JSON. Requests carry it as strict hosts take it: what is of the wrong kind
    /// is left out, and an empty `properties` or `items` is added where one is missing.
    ///
    /// Calls are checked against `type`, `properties`, `required`, `additionalProperties`, `items`, `enum`, `minimum`, `maximum`,
    /// `pattern`, `minLength`, `maxLength`, `minItems` and `maxItems`. The tool checks what other keywords say, and a pattern
    /// that is broken or looks around. Obvious mistakes are corrected: `"12"` becomes 12 for an integer, `"true"`
    /// true, one value a list of it, `"X"` the choice `"x"`; `null` is left out. An argument that the schema does not name is
    /// refused, but for a comment such as `reason`, and nothing is run.
    pub schema: Cow<'static, str>,
    /// What its calls may do to the world.
    pub risk: Risk,
    /// Where the tool comes from, for people: the name of your program, for example. bantam's own tools have `built in`, and MCP
    /// tools the name of their server.
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

    /// The first sentence of the description.
    pub(crate) fn purpose(&self) -> &str {
        let first = self
            .description
            .split_once(". ")
            .map_or(&*self.description, |(first, _)| first);
        clip(first.trim_end_matches('.'), 200)
    }
}

/// What a tool returns to the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolOutput {
    /// What the model reads.
    pub text: String,
    /// The call ran, but what it did failed: a command's exit code, for example.
    pub failed: bool,
    /// Images that the model sees with it.
    pub images: Vec<Media>,
}

impl ToolOutput {
    /// A success.
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

/// The channel of subagents.
pub(crate) const SUBAGENT: &str = "subagent";

/// The turn that a call belongs to.
pub struct CallContext<'a> {
    /// The channel and the chat of the conversation.
    pub origin: &'a Origin,
    /// What the embedding program attached to the turn.
    pub metadata: &'a BTreeMap<String, String>,
    /// Tells when the turn is stopped or out of time.
    pub cancel: &'a Cancel,
    /// The named values of the conversation.
    pub values: &'a Values,
    /// What the user wrote in the conversation: secrets in it are shown in results.
    pub(crate) said: &'a str,
    /// Pays for requests that a tool makes to models, and has the versions of files before the turn.
    pub(crate) budget: &'a Budget,
    /// The long results of this turn.
    pub(crate) pages: &'a Pages,
    /// Shows something to the user.
    pub events: &'a (dyn Fn(Event) + Sync),
    /// Runs a subagent and waits for it: how a tool reaches the agent without depending on it. Errors are worded for the model.
    pub run_task: &'a (dyn Fn(&Task) -> Result<ToolOutput> + Sync),
    /// The same in the background: the result arrives as a message.
    pub start_task: &'a (dyn Fn(Task) -> Result<()> + Sync),
    /// Set by a call that somebody else answers: the turn ends when the calls of this reply have run.
    pub(crate) is_handed_over: &'a AtomicBool,
}

/// The task of a subagent.
pub struct Task {
    /// Its name where its tool calls and its report are shown.
    pub label: String,
    /// Everything that the subagent is told.
    pub text: String,
}

/// Tools that subagents do not have: each answers to its caller alone and starts no others.
pub(crate) const NOT_FOR_SUBAGENTS: [&str; 3] = ["subagent", "message", "cron"];

/// The channel of scheduled jobs.
pub(crate) const JOB: &str = "cron";

/// Tools that pass words on. What others write ends in files and forms, where a struck secret must not stand for itself.
const PASSES_WORDS_ON: [&str; 3] = ["message", "subagent", "cron"];

/// Something that the model can call. It keeps no state between turns: the turn is an argument.
pub trait Tool: Send + Sync {
    /// Describes the tool to the model and to people.
    fn spec(&self) -> &ToolSpec;

    /// The risk of a call with these arguments: that of the tool, or less.
    fn risk(&self, _args: &Value) -> Risk {
        self.spec().risk
    }

    /// Whether such a call may run in parallel with others for which this holds. Default: if it is safe.
    fn is_parallel(&self, args: &Value) -> bool {
        self.risk(args) == Risk::Safe
    }

    /// Who made the tool.
    #[doc(hidden)]
    fn owner(&self) -> Owner {
        Owner::Program
    }

    /// One line for a person: what this call is about to do. `args` contains no secrets. Default: the arguments as JSON.
    fn summary(&self, args: &Value) -> String {
        one_line(&args.to_string(), 80)
    }

    /// The file that a call of a built-in tool would replace, for a person who is asked about the call.
    #[doc(hidden)]
    fn replaces(&self, _args: &Value, _cancel: &Cancel) -> Option<Replaced> {
        None
    }

    /// Runs a call whose arguments match the schema.
    ///
    /// # Errors
    /// Worded for the model: what went wrong and, where it helps, what to do instead.
    fn call(&self, args: &Value, turn: &CallContext) -> Result<ToolOutput>;
}

/// A string argument; `""` where it is absent.
fn text<'a>(args: &'a Value, name: &str) -> &'a str {
    args.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The arguments as a type of the tool's.
fn arguments<T: DeserializeOwned>(args: &Value) -> Result<T> {
    T::deserialize(args).map_err(|e| Error::failed(format!("invalid arguments: {e}")))
}
