//! Models: [`OpenAi`] and [`Anthropic`] by their APIs, the [`demo`], a [`Chain`] of several, and the trait [`Provider`] for your own.

// A request goes down this way: `chain` chooses a model and a key, `host` asks one of them, and its protocol (`openai`,
// `anthropic`) makes the body of what is `outgoing`. The response comes back up: `response` reads bytes, `reply` builds a reply
// from what the protocol reads of its events (`lenient`, `thoughts`, `text_calls`). A `refusal` asks for changes, which `host_facts` remembers.

pub(crate) mod anthropic;
pub(crate) mod catalog;
pub(crate) mod chain;
mod code;
pub(crate) mod demo;
pub(crate) mod endpoint;
pub(crate) mod host;
pub(crate) mod host_facts;
mod lenient;
pub(crate) mod ollama;
pub(crate) mod openai;
mod outgoing;
mod refusal;
pub(crate) mod reply;
mod response;
#[cfg(test)]
mod tests;
mod text_calls;
mod thoughts;
mod waits;

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::cancel::{Cancel, CancelReason};
use crate::error::{Error, Kind};
use crate::message::{Message, Price, Reply};
pub use chain::{Chain, Retry};
pub use code::{Anthropic, OpenAi, Options};
pub(crate) use refusal::rejected;

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
    /// Gets what the user should know about the request: what was left out of it, or which model took its place.
    pub on_notice: &'a dyn Fn(&str),
    /// About how many tokens the request has, without the reply; 0: unknown.
    pub input_tokens: u64,
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
    /// The host refuses the key, or wants one.
    AuthFailed {
        /// What the host said.
        message: String,
        /// The request had no key.
        no_key: bool,
    },
    /// The account has no credit left; a retry does not help.
    Quota(String),
    /// There is no such model at the host, or no API at this address.
    NotFound(String),
    /// The host will never accept this request, whatever the user says.
    Rejected {
        /// What the host said.
        message: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// The host will never accept the user's message, its text or its images.
    MessageRefused(String),
    /// Too many requests; `retry_after` if the host says when to come back.
    RateLimited {
        /// What the host said.
        message: String,
        /// How long the host asks to wait.
        retry_after: Option<Duration>,
    },
    /// A temporary failure: no connection, silence, a reply that broke off, a server error.
    Transient {
        /// What went wrong.
        message: String,
        /// How long the host asks to wait.
        retry_after: Option<Duration>,
    },
    /// A server on this machine or a private network is still loading its model.
    Loading(String),
    /// The request is longer than the model can read.
    TooLong {
        /// What the host said.
        message: String,
        /// What the model can read, in tokens, if the host says.
        limit: Option<u64>,
    },
    /// No request was made: the key, the proxy or the certificates cannot be used.
    NotSent(Error),
    /// The turn was stopped, or its time ran out.
    Cancelled(CancelReason),
}

/// Whether a text in lower case says one of these: `a & b | c` is `a` and `b`, or `c`.
fn says(text: &str, any: &str) -> bool {
    any.split(" | ")
        .any(|all| all.split(" & ").all(|part| text.contains(part)))
}

impl ProviderError {
    /// The error for the user.
    pub(crate) fn into_error(self, model: &str) -> Error {
        let (kind, hint) = match &self {
            Self::NotSent(e) => return e.clone().doing(format!("asking {model}")),
            Self::Cancelled(CancelReason::Stopped) => {
                return Error::new(Kind::Interrupted, "stopped by the user");
            }
            Self::Cancelled(CancelReason::Deadline) => {
                return Error::new(Kind::Limit, "the turn timed out")
                    .hint("raise `agents.defaults.timeout`, or --timeout of this question");
            }
            Self::AuthFailed { no_key: true, .. } => (
                Kind::Auth,
                "the host wants a key, and none is set: run `bantam onboard`, or set \"api_key\" in its entry of model_list",
            ),
            Self::AuthFailed { .. } => (
                Kind::Auth,
                "check the key: `bantam status` shows where it comes from, and `bantam onboard` sets another",
            ),
            Self::RateLimited { .. } => (
                Kind::Unavailable,
                "try again later, or use another model (--model, /model)",
            ),
            Self::Quota(_) => (
                Kind::Auth,
                "add credit to the account, or use another model (--model, /model)",
            ),
            Self::TooLong { .. } => (Kind::Failed, "start a new conversation (--new, /new)"),
            Self::Loading(_) | Self::Transient { .. } => (
                Kind::Unavailable,
                "check the network, HTTPS_PROXY and the model's api_base, or try again later",
            ),
            Self::NotFound(_) => (
                Kind::Config,
                "check the model's name and its api_base; `bantam models` lists what the hosts offer",
            ),
            Self::Rejected { hint, .. } => (Kind::Failed, *hint),
            Self::MessageRefused(_) => (
                Kind::Failed,
                "rephrase it, or use another model (--model, /model)",
            ),
        };
        Error::new(kind, self.text())
            .doing(format!("asking {model}"))
            .hint(hint)
    }

    /// Whether a retry may help.
    fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::RateLimited { .. } | Self::Transient { .. } | Self::Loading(_)
        )
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
            Self::AuthFailed { message: m, .. }
            | Self::Quota(m)
            | Self::TooLong { message: m, .. }
            | Self::Rejected { message: m, .. }
            | Self::NotFound(m)
            | Self::MessageRefused(m)
            | Self::Loading(m)
            | Self::RateLimited { message: m, .. }
            | Self::Transient { message: m, .. } => m,
            Self::NotSent(e) => &e.message,
            Self::Cancelled(_) => "stopped",
        }
    }
}
