//! Models: [`OpenAi`] and [`Anthropic`], the [`demo`], a [`Chain`] of models, and the trait [`Provider`] for custom models.

// What is sent: `chain` chooses a model and a key, `host` sends the request, and its protocol (`openai`, `anthropic`,
// `responses`) writes the `body`. What comes back: `response` reads bytes, and `reply` builds a reply from the protocol's events
// (`values`, `thoughts`, `text_calls`). Why again: a `refusal` asks for a change of the request, and `facts` stores the changes.

pub(crate) mod anthropic;
mod body;
pub(crate) mod catalog;
pub(crate) mod chain;
pub(crate) mod demo;
pub(crate) mod endpoint;
pub(crate) mod facts;
pub(crate) mod host;
pub(crate) mod ollama;
pub(crate) mod openai;
mod options;
mod refusal;
pub(crate) mod reply;
mod response;
pub(crate) mod responses;
mod text_calls;
mod thoughts;
mod values;

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::bus::Event;
use crate::cancel::{Cancel, CancelReason};
use crate::error::{Error, Kind};
use crate::message::{Message, Price, Reply};
pub use chain::{Chain, Retry};
pub use host::Host;
pub use options::{Anthropic, OpenAi, Options};
pub(crate) use refusal::rejected;

/// A tool as offered to the model.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolOffer {
    /// Name of the tool.
    pub name: Cow<'static, str>,
    /// Description for the model.
    pub description: Cow<'static, str>,
    /// JSON Schema of the arguments, as JSON text, which requests include unchanged.
    pub schema: Cow<'static, str>,
}

/// The system prompt. `stable` is identical in every turn, so that hosts can cache it; `changing` follows it.
#[derive(Clone, Copy, Debug, Default)]
pub struct System<'a> {
    /// The part that is identical in every turn.
    pub stable: &'a str,
    /// The part that differs between turns.
    pub changing: &'a str,
}

impl<'a> System<'a> {
    /// Splits `text` at byte `mark`.
    pub(crate) fn marked(text: &'a str, mark: usize) -> Self {
        let (stable, changing) = text.split_at_checked(mark).unwrap_or((text, ""));
        Self { stable, changing }
    }

    /// Returns the whole prompt.
    pub fn text(&self) -> String {
        [self.stable, self.changing].concat()
    }
}

/// Overrides of the model's settings for one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// Randomness of the answer; 0 is the minimum.
    pub temperature: Option<f64>,
    /// Maximum length of the reply, in tokens.
    pub max_tokens: Option<u64>,
    /// Texts at which the reply ends, if any.
    pub stop: Option<Vec<String>>,
    /// Whether the model must call a tool.
    pub must_call: bool,
    /// Additional fields of the request's body; they override all others.
    pub extra_body: Map<String, Value>,
}

/// One request to a model.
pub struct Request<'a> {
    /// Instructions for the model.
    pub system: System<'a>,
    /// The conversation, oldest first.
    pub messages: &'a [Message],
    /// Tools on offer; if empty, the model must answer in text.
    pub tools: &'a [ToolOffer],
    /// The tools are declared, so that the request starts like the previous ones, but the model must answer in text.
    pub withheld: bool,
    /// Whether to stream the reply.
    pub stream: bool,
    /// Overrides for this request.
    pub sampling: &'a Sampling,
    /// Estimated size of the request in tokens, without the reply; 0 is unknown.
    pub input_tokens: u64,
    /// Stops the request; blocking providers check it while they wait.
    pub cancel: &'a Cancel,
}

/// Receives the events of a request. Any closure is one.
pub trait Sink {
    /// Shows an event.
    fn event(&self, event: Event);
}

impl<F: Fn(Event)> Sink for F {
    fn event(&self, event: Event) {
        self(event);
    }
}

/// A model that answers requests.
pub trait Provider: Send + Sync {
    /// Name for users, as `vendor/model`.
    fn model(&self) -> &str;

    /// Known price, with `None` for unknown parts.
    fn price(&self) -> Price {
        Price::default()
    }

    /// Secrets to remove from tool results, errors and logs, such as the key.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// Asks once. `sink` gets the reply's text as it arrives, in pieces that add up to it ([`Event::Delta`]), thoughts, details,
    /// and warnings, such as files left out of the request.
    ///
    /// # Errors
    /// See [`ProviderError`]. Text that arrived before the error was passed to `sink`.
    fn chat(&self, request: &Request, sink: &dyn Sink) -> Result<Reply, ProviderError>;

    /// Returns the body that [`Provider::chat`] would send, without keys.
    fn preview(&self, request: &Request) -> Value {
        let messages = request.messages.iter().map(Message::to_json);
        let tools = request.tools.iter().map(|tool| &*tool.name);
        json!({
            "model": self.model(),
            "system": request.system.text(),
            "messages": messages.collect::<Value>(),
            "tools": tools.collect::<Value>(),
        })
    }
}

/// Reason for a failed request. The messages are for people and contain no key.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ProviderError {
    /// The host rejects the key, or requires one.
    AuthFailed {
        /// The host's message.
        message: String,
        /// The request had no key.
        no_key: bool,
    },
    /// The account has no credit left; a retry does not help.
    Quota(String),
    /// The host does not have this model, or the address has no API.
    NotFound(String),
    /// The host rejects this request regardless of the user's message.
    Rejected {
        /// The host's message.
        message: String,
        /// Advice for the user.
        hint: &'static str,
    },
    /// The host rejects the text or the images of the user's message.
    MessageRefused(String),
    /// Too many requests; `retry_after` is the host's requested delay.
    RateLimited {
        /// The host's message.
        message: String,
        /// The host's requested delay.
        retry_after: Option<Duration>,
    },
    /// A temporary failure: no connection, silence, an interrupted reply or a server error.
    Transient {
        /// Description of the failure.
        message: String,
        /// The host's requested delay.
        retry_after: Option<Duration>,
    },
    /// The request exceeds the model's context window.
    TooLong {
        /// The host's message.
        message: String,
        /// The model's context window in tokens, if the host reports it.
        limit: Option<u64>,
    },
    /// No request was made, because the key, the proxy or the certificates are unusable.
    NotSent(Error),
    /// The turn was stopped, or its time ran out.
    Cancelled(CancelReason),
}

/// Whether a lower-case text matches a pattern: `a & b | c` requires `a` and `b`, or `c`. A pattern of many alternatives is a file
/// in `wordings`, one a line.
fn says(text: &str, any: &str) -> bool {
    let mut alternatives = any.lines().flat_map(|line| line.split(" | "));
    alternatives.any(|all| all.split(" & ").all(|part| text.contains(part)))
}

impl ProviderError {
    /// Converts this error to the user's error message.
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
                "the provider requires a key, and none is set: run `bantam onboard`, or set \"api_key\" in its entry of model_list",
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
            Self::Transient { .. } => (
                Kind::Unavailable,
                "try again later; check the network, HTTPS_PROXY and the model's api_base, or raise its request_timeout if it is slow",
            ),
            Self::NotFound(_) => (
                Kind::Config,
                "check the model's name and its api_base; `bantam models` lists available models",
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
        matches!(self, Self::RateLimited { .. } | Self::Transient { .. })
    }

    /// Returns the host's requested delay before a retry.
    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Transient { retry_after, .. } => {
                *retry_after
            }
            _ => None,
        }
    }

    /// Returns the description of the failure, without a hint.
    pub fn text(&self) -> &str {
        match self {
            Self::AuthFailed { message: m, .. }
            | Self::Quota(m)
            | Self::TooLong { message: m, .. }
            | Self::Rejected { message: m, .. }
            | Self::NotFound(m)
            | Self::MessageRefused(m)
            | Self::RateLimited { message: m, .. }
            | Self::Transient { message: m, .. } => m,
            Self::NotSent(e) => &e.message,
            Self::Cancelled(_) => "stopped",
        }
    }
}
