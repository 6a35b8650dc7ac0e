//! Models: [`OpenAi`] and [`Anthropic`] by their APIs, the [`demo`], a [`Chain`] of several, and the trait [`Provider`] for your own.

// A request goes down this way: `chain` chooses a model and a key, `host` sends to one of them, and its `dialect` (`openai`,
// `anthropic`) writes the `json`. The response comes back up: `response` reads bytes, `reply` builds a reply from its events,
// `shapes` knows the forms of their fields.

pub(crate) mod anthropic;
pub(crate) mod chain;
mod code;
pub(crate) mod connect;
pub mod demo;
mod dialect;
pub(crate) mod endpoint;
mod errors;
pub(crate) mod host;
mod json;
pub(crate) mod learned;
pub(crate) mod offers;
pub(crate) mod ollama;
pub(crate) mod openai;
mod quirks;
pub(crate) mod reply;
mod response;
mod shapes;
#[cfg(test)]
mod tests;
mod text_calls;

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::cancel::{Cancel, CancelReason};
use crate::error::{Error, Kind};
use crate::message::{Message, Price, Reply};
pub use chain::{Chain, Retry};
pub use code::{Anthropic, OpenAi, Options};

/// A tool as the model sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolOffer {
    /// The name of the tool.
    pub name: Cow<'static, str>,
    /// What it does, for the model.
    pub description: Cow<'static, str>,
    /// JSON Schema of the arguments, as JSON text, which requests carry as it is.
    pub schema: Cow<'static, str>,
}

/// The system prompt: `stable` stays the same from turn to turn, so that hosts can cache it; `changing` follows it.
#[derive(Clone, Copy, Debug, Default)]
pub struct System<'a> {
    /// The part that is the same from turn to turn.
    pub stable: &'a str,
    /// The part that differs.
    pub changing: &'a str,
}

impl<'a> System<'a> {
    /// Splits `text` at byte `mark`.
    pub(crate) fn marked(text: &'a str, mark: usize) -> Self {
        let (stable, changing) = text.split_at_checked(mark).unwrap_or((text, ""));
        Self { stable, changing }
    }

    /// All of it.
    pub fn text(&self) -> String {
        [self.stable, self.changing].concat()
    }
}

/// Overrides the model's own settings for one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// Randomness of the answer; 0 is the least.
    pub temperature: Option<f64>,
    /// The longest reply, in tokens.
    pub max_tokens: Option<u64>,
    /// Further fields of the request's body; they override all others.
    pub extra_body: Map<String, Value>,
}

/// One request to a model.
pub struct Request<'a> {
    /// The instructions.
    pub system: System<'a>,
    /// The conversation, oldest first.
    pub messages: &'a [Message],
    /// Empty: the model must answer in text.
    pub tools: &'a [ToolOffer],
    /// The tools are declared, so that the request begins like those before it, but the model must answer in text.
    pub withheld: bool,
    /// Whether to ask for the reply piece by piece.
    pub stream: bool,
    /// Overrides for this request.
    pub sampling: &'a Sampling,
    /// Gets the model's thoughts as they arrive.
    pub on_thought: &'a dyn Fn(&str),
    /// Gets details that `-v` shows.
    pub on_trace: &'a dyn Fn(&str),
    /// Stops the request; blocking providers check it while they wait.
    pub cancel: &'a Cancel,
}

/// A model that answers requests.
pub trait Provider: Send + Sync {
    /// `vendor/model`, as users see it.
    fn model(&self) -> &str;

    /// The price, as far as it is known.
    fn price(&self) -> Price {
        Price::default()
    }

    /// What must not appear in tool results, errors or logs: the key, if there is one.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// Asks once. Calls `on_delta` with the reply's text as it arrives; together the pieces are the reply's text.
    ///
    /// # Errors
    /// See [`ProviderError`]. Text that arrived before a fault has gone to `on_delta`.
    fn chat(
        &self,
        request: &Request,
        on_delta: &mut dyn FnMut(&str),
    ) -> Result<Reply, ProviderError>;

    /// What a reply was made without because the model does not support it, as a sentence for the user.
    fn left_out(&self, _request: &Request) -> Option<String> {
        None
    }

    /// The body that [`Provider::chat`] would send, without keys.
    fn preview(&self, request: &Request) -> Value {
        let messages = request
            .messages
            .iter()
            .map(|message| Value::Object(message.to_json()));
        let tools = request.tools.iter().map(|tool| &*tool.name);
        json!({
            "model": self.model(),
            "system": request.system.text(),
            "messages": messages.collect::<Value>(),
            "tools": tools.collect::<Value>(),
        })
    }
}

/// Why there is no reply. The texts are for a person and hold no key.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ProviderError {
    /// The host refuses the key.
    Auth(String),
    /// Too many requests; `retry_after` if the host says when to come back.
    RateLimited {
        /// What the host said.
        message: String,
        /// How long the host asks to wait.
        retry_after: Option<Duration>,
    },
    /// The account has no credit left; a retry does not help.
    Quota(String),
    /// The request is longer than the model can read.
    ContextTooLong(String),
    /// A temporary failure: no connection, silence, a reply that broke off, a server error.
    Transient {
        /// What went wrong.
        message: String,
        /// How long the host asks to wait.
        retry_after: Option<Duration>,
    },
    /// The host will never accept this request.
    Rejected(String),
    /// There is no such model at the host, or no API at this address.
    NotFound(String),
    /// The host will never accept what the request says, its text or its images (400, 413 or 422).
    BadRequest(String),
    /// No request was made: the key, the proxy or the certificates cannot be used.
    Unasked(Error),
    /// The turn was stopped, or its time ran out.
    Cancelled(CancelReason),
}

/// The end of a refusal by a host that was sent no key.
const NO_KEY: &str = " (no key was sent)";

/// Whether a text in lower case says one of these: `a & b | c` is `a` and `b`, or `c`.
fn says(text: &str, any: &str) -> bool {
    any.split(" | ")
        .any(|all| all.split(" & ").all(|part| text.contains(part)))
}

/// Hints by what a message [`says`]; the first row that fits counts. The first ones are about the way to the host, the others
/// about what it was asked.
const HINTS: [(&str, &str); 8] = [
    ("api_base", "correct api_base in config.json"),
    (
        "certificate",
        "if this is the wrong host, correct api_base in config.json",
    ),
    (
        "larger than",
        "ask for less, or use another model (--model, /model)",
    ),
    (
        "no answer for",
        "raise request_timeout for slow models, or try again later",
    ),
    ("proxy", "check HTTPS_PROXY, or the model's proxy setting"),
    (
        "did not parse",
        "start the model's server with its tool parser, or use another model (--model, /model)",
    ),
    (
        "tool & support",
        "use --no-tools, or another model (--model, /model)",
    ),
    (
        "model",
        "check the model's name and its entry in model_list; `bantam models` lists what the hosts offer",
    ),
];

const OF_THE_WAY: usize = 5;

impl ProviderError {
    /// The error for the user.
    pub(crate) fn into_error(self, model: &str) -> Error {
        let said = match &self {
            // The host's name stands before what went wrong.
            Self::Transient { message, .. } => message.split_once(": ").map_or("", |(_, why)| why),
            _ => self.text(),
        };
        let said = said.to_lowercase();
        let by_text = |hints: &[(&str, &'static str)], otherwise| {
            let fits = hints.iter().find(|(words, _)| says(&said, words));
            fits.map_or(otherwise, |(_, hint)| *hint)
        };
        let (kind, hint) = match &self {
            Self::Unasked(e) => return e.clone().doing(format!("asking {model}")),
            Self::Cancelled(CancelReason::Stopped) => {
                return Error::new(Kind::Interrupted, "stopped by the user");
            }
            Self::Cancelled(CancelReason::Deadline) => {
                return Error::new(Kind::Limit, "the turn timed out")
                    .hint("allow more time with --timeout");
            }
            Self::Auth(said) if said.ends_with(NO_KEY) => (
                Kind::Auth,
                "the host wants a key, and none is set: choose key in `bantam onboard`, or set \"api_key\" in its entry of model_list",
            ),
            Self::Auth(_) => (
                Kind::Auth,
                "check the key: `bantam status` shows where it comes from, and `bantam onboard model` sets another",
            ),
            Self::RateLimited { .. } => (
                Kind::Unavailable,
                "try again later, or use another model (--model, /model)",
            ),
            Self::Quota(_) => (
                Kind::Auth,
                "add credit to the account, or use another model (--model, /model)",
            ),
            Self::ContextTooLong(_) => (Kind::Failed, "start a new conversation (--new, /new)"),
            Self::Transient { message, .. } => {
                let otherwise = if message.contains("the server answered") {
                    "the host has a problem: try again later, or use another model (--model, /model)"
                } else {
                    "check the network and the model's api_base, or try again later"
                };
                (Kind::Unavailable, by_text(&HINTS[..OF_THE_WAY], otherwise))
            }
            Self::NotFound(_) => (
                Kind::Config,
                by_text(
                    &HINTS,
                    "correct api_base, or the model's name, in config.json",
                ),
            ),
            Self::Rejected(_) | Self::BadRequest(_) => (
                Kind::Failed,
                by_text(
                    &HINTS,
                    "`bantam sessions reset KEY` starts the conversation over",
                ),
            ),
        };
        Error::new(kind, self.text())
            .doing(format!("asking {model}"))
            .hint(hint)
    }

    /// Whether a retry may help.
    fn may_pass(&self) -> bool {
        matches!(self, Self::RateLimited { .. } | Self::Transient { .. })
    }

    /// How long the host asks to wait.
    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Transient { retry_after, .. } => {
                *retry_after
            }
            _ => None,
        }
    }

    /// What went wrong, without a hint.
    pub fn text(&self) -> &str {
        match self {
            Self::Auth(m)
            | Self::Quota(m)
            | Self::ContextTooLong(m)
            | Self::Rejected(m)
            | Self::NotFound(m)
            | Self::BadRequest(m)
            | Self::RateLimited { message: m, .. }
            | Self::Transient { message: m, .. } => m,
            Self::Unasked(e) => &e.message,
            Self::Cancelled(_) => "stopped",
        }
    }
}
