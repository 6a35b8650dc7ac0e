//! The seam between the agent and a model, and the kinds of failure.

mod answer;
pub(crate) mod anthropic;
pub mod chain;
pub mod demo;
mod dialect;
mod errors;
pub(crate) mod host;
pub(crate) mod openai;
mod quirks;
mod replies;
mod stream;

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Value, json};

pub(crate) use quirks::{Learned, Quirk};

use crate::cancel::{Cancel, Why};
use crate::error::{Error, Kind};
use crate::message::{Message, Price, Reply};

/// A tool as the model sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolOffer {
    pub name: Cow<'static, str>,
    pub description: Cow<'static, str>,
    /// JSON Schema of its arguments, as JSON.
    pub schema: Cow<'static, str>,
}

/// The system prompt. What comes first stays the same from turn to turn, and hosts that cache what they have read are
/// told where it ends; what a turn may have changed comes after it.
#[derive(Clone, Copy, Debug, Default)]
pub struct System<'a> {
    pub stable: &'a str,
    pub changing: &'a str,
}

impl<'a> System<'a> {
    /// A text that is stable up to the byte `mark`.
    pub fn marked(text: &'a str, mark: usize) -> Self {
        let (stable, changing) = text.split_at_checked(mark).unwrap_or((text, ""));
        Self { stable, changing }
    }

    /// All of it.
    pub fn text(&self) -> String {
        [self.stable, self.changing].concat()
    }
}

/// What is asked.
pub struct Request<'a> {
    pub system: System<'a>,
    pub messages: &'a [Message],
    /// Empty: the model must answer in text.
    pub tools: &'a [ToolOffer],
    pub stream: bool,
    pub cancel: &'a Cancel,
}

/// Something that answers.
pub trait Provider: Send + Sync {
    /// `vendor/model`, as it is shown.
    fn model(&self) -> &str;

    /// What it costs, as far as that is known.
    fn price(&self) -> Price {
        Price::default()
    }

    /// Asks once. `on_delta` gets the answer's text as it arrives; together the pieces are the reply's text.
    ///
    /// # Errors
    /// See [`ProviderError`]. Text that arrived before a fault has been given to `on_delta`.
    fn chat(&self, request: &Request, on_delta: &mut dyn FnMut(&str)) -> Result<Reply, ProviderError>;

    /// The body that [`Provider::chat`] would send. There is no key in it: keys travel in headers.
    fn preview(&self, request: &Request) -> Value {
        let messages = request.messages.iter().map(|message| Value::Object(message.to_json()));
        let tools = request.tools.iter().map(|tool| &*tool.name);
        json!({
            "model": self.model(),
            "system": request.system.text(),
            "messages": messages.collect::<Value>(),
            "tools": tools.collect::<Value>(),
        })
    }
}

/// Why there is no answer. The texts are for a person and hold no key.
#[derive(Clone, Debug, PartialEq)]
pub enum ProviderError {
    /// The key was refused.
    Auth(String),
    /// Too many requests; ask again after this long, if it said.
    RateLimited {
        message: String,
        retry_after: Option<Duration>,
    },
    /// The account's means are used up: asking again does not help.
    Quota(String),
    /// The conversation is longer than the model can read.
    ContextTooLong(String),
    /// A fault that may pass: no connection, silence, a cut answer, a server's error.
    Transient {
        message: String,
        retry_after: Option<Duration>,
    },
    /// It will never accept this request.
    Rejected(String),
    /// It was not asked at all: its key, its proxy or its certificates are not to be had.
    Unasked(Error),
    Cancelled(Why),
}

impl ProviderError {
    /// What the user is told.
    pub fn into_error(self, model: &str) -> Error {
        let doing = format!("asking {model}");
        match self {
            Self::Auth(m) => Error::new(Kind::Auth, m)
                .doing(doing)
                .hint("check the key: `bantam doctor --provider` tells where it comes from"),
            Self::RateLimited { message, retry_after } => {
                let wait = retry_after.map_or(String::new(), |t| format!(" in {} s", t.as_secs().max(1)));
                Error::new(Kind::Unavailable, message)
                    .doing(doing)
                    .hint(format!("try again later{wait}, or use another --model"))
            }
            Self::Quota(m) => {
                Error::new(Kind::Unavailable, m).doing(doing).hint("add credit to the account, or use another --model")
            }
            Self::ContextTooLong(m) => Error::failed(m).doing(doing).hint("start a new conversation with --new"),
            Self::Transient { message, .. } => Error::new(Kind::Unavailable, message)
                .doing(doing)
                .hint("check the network and the model's api_base, or try again later"),
            Self::Rejected(m) => {
                Error::failed(m).doing(doing).hint("check the model's name and its entry in model_list")
            }
            Self::Unasked(e) => e.doing(doing),
            Self::Cancelled(Why::Stopped) => Error::new(Kind::Interrupted, "stopped by the user"),
            Self::Cancelled(Why::Deadline) => {
                Error::new(Kind::Limit, "the turn's time was up").hint("give it more with --timeout")
            }
        }
    }

    /// Whether asking again may help.
    fn passes(&self) -> bool {
        matches!(self, Self::RateLimited { .. } | Self::Transient { .. })
    }

    /// How long the server asks to be left alone first.
    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Transient { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// What went wrong, without what to do about it.
    pub fn text(&self) -> &str {
        match self {
            Self::Auth(m)
            | Self::Quota(m)
            | Self::ContextTooLong(m)
            | Self::Rejected(m)
            | Self::RateLimited { message: m, .. }
            | Self::Transient { message: m, .. } => m,
            Self::Unasked(e) => &e.message,
            Self::Cancelled(_) => "stopped",
        }
    }
}
