//! Understands a refusal of a host: the error for the user, and the one change of the request that it asks for.
//!
//! Hosts agree only on the status, so the body is parsed in all known formats, and matched by its words.

mod changes;
mod details;
mod limits;
mod wait;

use std::collections::BTreeSet;
use std::time::Duration;

use limits::MIN_WINDOW;
use regex_lite::Regex;
use wait::{retry_after, spoken_wait};

use super::{ProviderError, says};
use crate::config::proxy::redact_url;
use crate::http::Head;
use crate::json::parse_json;
use crate::text::to_single_line;

/// An error response, or an error inside a successful response.
#[derive(Debug, Default)]
pub(super) struct HostRefusal {
    pub status: u16,
    /// Status in the body.
    stated_status: Option<u16>,
    /// Error texts: messages first, then types and codes.
    pub texts: Vec<String>,
    /// Field or location that the host reports as wrong.
    pub param: String,
    /// What the model wrote, if the host refuses its calls.
    pub sample: String,
    /// Whether the body is a web page, or the response is a redirect.
    pub is_page: bool,
    pub retry_after: Option<Duration>,
    /// Whether the response has `x-should-retry: true`.
    pub should_retry: bool,
}

/// A rejected request, as far as the error may refer to it.
#[derive(Default)]
pub(super) struct Sent {
    /// Names of the top-level fields of the body.
    pub fields: Vec<String>,
    /// Parts of the body, and parts that it lacks.
    pub parts: BTreeSet<(&'static str, bool)>,
    /// Names of the tools, in their order.
    pub tools: Vec<String>,
    pub max_tokens: u64,
    /// Number of messages.
    pub messages: usize,
    pub has_key: bool,
}

impl Sent {
    /// Whether a request with this change would differ.
    fn differs_by(&self, change: &Change) -> bool {
        match change {
            Change::Without(part) => {
                self.fields.contains(part) || self.parts.contains(&(part.as_str(), true))
            }
            Change::With(part) => self.parts.contains(&(part.as_str(), false)),
            _ => true,
        }
    }
}

/// A change of the request that a refusal asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    /// Omit a field or a part.
    Without(String),
    /// Add a part.
    With(String),
    /// Limit the reply.
    MaxTokens(u64),
    /// Limit this reply to the credit that is left.
    Credit(u64),
    /// Limit the whole request and its reply, and this reply to the room that the host says is left.
    Window(u64, Option<u64>),
    /// Offer only the first tools.
    MaxTools(usize),
    /// Do not offer this tool.
    WithoutTool(String),
}

impl Change {
    /// Returns the part that applies to further requests.
    pub(super) fn lasting(&self) -> Option<Self> {
        match self {
            Self::Credit(_) => None,
            Self::Without(part) if part == STALE_REASONING => None,
            Self::Window(limit, _) => Some(Self::Window(*limit, None)),
            _ => Some(self.clone()),
        }
    }
}

/// Omits the thoughts from one request; never stored.
pub(super) const STALE_REASONING: &str = "stale reasoning";

/// A reply between results and a message, as a part that the host may demand.
pub(super) const REPLY_AFTER: &str = "a reply after results";

/// Calls and their results, as a part that the host may not take.
pub(super) const RESULTS: &str = "results of tools";

/// The Responses API, as a part that a host demands and as a value of an entry's `api`.
pub(super) const RESPONSES: &str = "responses";

/// A sample of the model that the host itself calls bad, such as Groq's. Another sample may be good.
const BAD_SAMPLE: &str = include_str!("wordings/bad_sample.txt");
const INVALID_KEY: &str = include_str!("wordings/invalid_key.txt");
const NO_CREDIT: &str = include_str!("wordings/no_credit.txt");
const NO_MODEL: &str = include_str!("wordings/no_model.txt");
/// What a host forbids other than by the key: a text, a place, a model.
const FLAGGED: &str = include_str!("wordings/flagged.txt");
const ELSEWHERE: &str = include_str!("wordings/elsewhere.txt");
const NO_ACCESS: &str = include_str!("wordings/no_access.txt");
const BARRED: &str = include_str!("wordings/barred.txt");
const FORBIDDEN: [&str; 4] = [FLAGGED, ELSEWHERE, NO_ACCESS, BARRED];
/// What a server says that cannot load its model.
const NO_MEMORY: &str = include_str!("wordings/no_memory.txt");
/// Words of a host, or of a model's template, that does not take the order of the messages.
const ORDER: &str = include_str!("wordings/order.txt");

impl HostRefusal {
    pub(super) fn read(status: u16, head: Option<&Head>, body: &str) -> Self {
        let is_html = looks_like_html(body);
        let is_redirect = (300..400).contains(&status);
        let header = |name| head.and_then(|head| head.header(name));
        let spoken = || spoken_wait(&body.to_lowercase());
        let mut refusal = Self {
            status,
            is_page: is_html || is_redirect,
            retry_after: head.and_then(retry_after).or_else(spoken),
            should_retry: header("x-should-retry") == Some("true"),
            ..Self::default()
        };
        if let (true, Some(address)) = (is_redirect, header("location")) {
            let address = redact_url(address);
            refusal.texts.push(format!("redirected to {address}"));
        }
        match parse_json(body) {
            Ok(body) => refusal.collect(&body),
            Err(_) if is_html => {}
            Err(_) => refusal.texts.push(body.trim().to_owned()),
        }
        refusal.texts.retain(|text| !text.is_empty());
        if status < 400 {
            refusal.status = refusal.stated_status.unwrap_or(status);
        }
        refusal
    }

    /// Returns all texts in lower case, joined.
    fn said(&self) -> String {
        limits::without_separators(&self.texts.join("; ").to_lowercase())
    }

    /// Returns the message for the user.
    fn message(&self) -> String {
        let (status, said) = (self.status, to_single_line(&self.texts.join("; "), 300));
        match status {
            300..400 => format!("the server answered {status}, a redirect: {said}"),
            413 if self.is_page => "the server answered 413: the request is too large".to_owned(),
            _ if self.is_page => {
                format!("the server answered {status} with a web page: is api_base right?")
            }
            200..300 => format!("the server sent an error: {said}"),
            _ if said.is_empty() => format!("the server answered {status}"),
            _ => format!("the server answered {status}: {said}"),
        }
    }

    /// Whether the error refers to a message of the conversation.
    fn names_message(&self) -> bool {
        is_match(
            r"\bmessages?[\[.]\d",
            &format!("{} {}", self.param, self.said()),
        )
    }
}

fn is_match(pattern: &str, text: &str) -> bool {
    Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(text))
}

/// Returns the error, and the first change by which the request would differ. The first matching rule determines the error.
pub(super) fn classify(refusal: &HostRefusal, sent: &Sent) -> (ProviderError, Option<Change>) {
    let (status, said, message) = (refusal.status, refusal.said(), refusal.message());
    if let Some(refused) = account_error(refusal, &said, sent) {
        return refused;
    }
    let is_bad_sample = !refusal.sample.is_empty() || says(&said, BAD_SAMPLE);
    if (refusal.should_retry || is_bad_sample) && status != 429 {
        // Tools that are omitted cannot be called.
        let is_forbidden = said.contains("choice is none");
        let change = is_forbidden.then(|| Change::Without("tool_choice".to_owned()));
        return (transient(message, refusal.retry_after), change);
    }
    if matches!(status, 400 | 500..) && says(&said, NO_MEMORY) {
        let hint = "use a smaller model, or a smaller context window, or free memory on the server";
        return (ProviderError::Rejected { message, hint }, None);
    }
    let can_adapt = !refusal.is_page && !matches!(status, 408 | 409 | 425 | 429);
    let asked = |changes: fn(&HostRefusal, &str, &Sent) -> Vec<Change>| {
        let mut changes = changes(refusal, &said, sent).into_iter();
        changes.find(|change| can_adapt && sent.differs_by(change))
    };
    if let Some(change) = asked(changes::of_value) {
        return (rejected(message), Some(change));
    }
    if let Some(limit) = limits::of_request(refusal, &said, sent) {
        let window = limit.filter(|limit| status != 429 && *limit >= MIN_WINDOW);
        let error = ProviderError::TooLong { message, limit };
        return (
            error,
            window.map(|limit| Change::Window(limit, limits::room_within(limit, &said))),
        );
    }
    let change = asked(changes::of_part);
    let error = other_error(refusal, &said, change.is_none());
    let is_open = matches!(error, ProviderError::Rejected { .. }) && change.is_none();
    let is_refused = is_open && !refusal.is_page && matches!(status, 400 | 413 | 422);
    if is_refused && is_of_message(refusal, &said, sent) {
        return (ProviderError::MessageRefused(message), None);
    }
    (error, change)
}

/// Detects a rejected key or a lack of credit. The remaining credit limits the reply.
fn account_error(
    refusal: &HostRefusal,
    said: &str,
    sent: &Sent,
) -> Option<(ProviderError, Option<Change>)> {
    let (status, message) = (refusal.status, refusal.message());
    let is_rate_limit = status == 429 && refusal.retry_after.is_some();
    let has_no_credit = match status {
        402 => true,
        400 => says(said, NO_CREDIT),
        403 => says(said, NO_CREDIT) || said.contains("billing"),
        429 => says(said, NO_CREDIT) && !is_rate_limit,
        _ => false,
    };
    if has_no_credit {
        let covered = limits::number_after("afford", said);
        let covered = covered.filter(|covered| *covered < sent.max_tokens);
        return Some((ProviderError::Quota(message), covered.map(Change::Credit)));
    }
    let is_of_key = match status {
        401 => true,
        400 | 403 if says(said, INVALID_KEY) => true,
        403 => !refusal.is_page && !FORBIDDEN.iter().any(|words| says(said, words)),
        _ => false,
    };
    let no_key = !sent.has_key;
    is_of_key.then_some((ProviderError::AuthFailed { message, no_key }, None))
}

/// Classifies errors that concern neither the account nor the conversation.
fn other_error(refusal: &HostRefusal, said: &str, is_plain: bool) -> ProviderError {
    let (status, message, retry_after) = (refusal.status, refusal.message(), refusal.retry_after);
    let is_no_model = matches!(status, 200 | 400 | 410 | 422) && says(said, NO_MODEL);
    match status {
        404 if !refusal.is_page => ProviderError::NotFound(message),
        403 | 451 if says(said, FLAGGED) => ProviderError::MessageRefused(message),
        400 | 403 | 451 if says(said, ELSEWHERE) => rejected(message),
        403 if says(said, NO_ACCESS) => ProviderError::NotFound(message),
        _ if is_no_model && is_plain => ProviderError::NotFound(message),
        429 if !refusal.is_page => ProviderError::RateLimited {
            message,
            retry_after,
        },
        200..300 if refusal.is_page => rejected(message),
        500.. if says(said, ORDER) => rejected(message),
        400 if has_no_words(said) => {
            let hint = "check its api_base in config.json, which may need https://";
            ProviderError::Rejected { message, hint }
        }
        408 | 409 | 425 | 429 | 500.. | 200..300 => transient(message, retry_after),
        _ => rejected(message),
    }
}

pub(super) fn transient(message: impl Into<String>, wait: Option<Duration>) -> ProviderError {
    ProviderError::Transient {
        message: message.into(),
        retry_after: wait,
    }
}

pub(crate) fn rejected(message: impl Into<String>) -> ProviderError {
    ProviderError::Rejected {
        message: message.into(),
        hint: "use another model (--model, /model), or check its entry in config.json",
    }
}

/// Whether a refusal says nothing of the request, as that of a port for TLS.
fn has_no_words(said: &str) -> bool {
    !said.contains(char::is_alphabetic) || said.contains("to an https server")
}

/// Whether a refusal is about the conversation: it refers to a message, or to no field of the request.
fn is_of_message(refusal: &HostRefusal, said: &str, sent: &Sent) -> bool {
    if has_no_words(said) || says(said, ORDER) || says(said, ELSEWHERE) {
        return false;
    }
    // A filter may name any parameter, such as Azure's `prompt`.
    if refusal.names_message() || says(said, FLAGGED) {
        return true;
    }
    let is_named = |field: &&String| {
        let is_word = field.contains('_') || says(field, "tools | stream | temperature");
        is_word && changes::place_of(field, said).is_some()
    };
    refusal.param.is_empty() && !sent.fields.iter().any(|field| is_named(&field))
}

pub(super) fn looks_like_html(text: &str) -> bool {
    let start: String = text.trim_start().chars().take(15).collect();
    let start = start.to_ascii_lowercase();
    start.starts_with("<!doctype html") || start.starts_with("<html") || start.starts_with("<head")
}

#[cfg(test)]
mod tests;
