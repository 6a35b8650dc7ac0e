//! Turns a host's refusal (status, headers and body) into a [`ProviderError`].
//!
//! Hosts agree on little but the status, so the body is searched in every shape it comes in: `error` as text, object or
//! list, `detail`, `message`, JSON inside a text, and web pages.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use regex_lite::Regex;
use serde_json::Value;

use super::{ProviderError, says};
use crate::http::Head;
use crate::text::{from_json, one_line, parse_json};
use crate::timezone;

type ErrorKind = fn(String) -> ProviderError;

/// Texts that say more than the status (see [`says`]): with which status they count, and what they mean.
const MARKERS: [(&[u16], ErrorKind, &str); 6] = [
    (
        &[403, 429],
        ProviderError::Quota,
        "insufficient_quota | exceeded_current_quota | billing_not_active | billing_hard_limit | insufficient balance | \
         insufficient credit | credit balance | payment required",
    ),
    (&[403], ProviderError::Quota, "billing"),
    (&[400], ProviderError::Quota, "credit balance is too low"),
    (
        &[400],
        ProviderError::Auth,
        "api key not valid | invalid api key",
    ),
    (
        &[200, 400, 404, 413, 422, 500, 502, 503],
        ProviderError::ContextTooLong,
        "context_length_exceeded | context length | context window | exceed context limit | context size | maximum context | \
         prompt is too long | prompt too long | input is too long | too many tokens | max message tokens | \
         request too large | request_too_large | exceed_context_size | n_ctx | reduce the length",
    ),
    (
        &[400, 404, 422],
        ProviderError::NotFound,
        "model_not_found | not a valid model | invalid model name | model & not exist | \
         model & not found | unknown model",
    ),
];

/// Anthropic's names of errors and the status of each. An error inside a stream has only the name.
const STATUS_OF_TYPE: [(&str, u16); 8] = [
    ("invalid_request_error", 400),
    ("authentication_error", 401),
    ("billing_error", 402),
    ("permission_error", 403),
    ("not_found_error", 404),
    ("request_too_large", 413),
    ("rate_limit_error", 429),
    ("overloaded_error", 529),
];

/// Classifies a response whose status is not 2xx, or an error inside one that is.
pub(super) fn classify(
    status: u16,
    head: Option<&Head>,
    body: &[u8],
    now: SystemTime,
) -> ProviderError {
    let text = String::from_utf8_lossy(body);
    let is_html = looks_like_html(&text);
    let mut details = Details::default();
    match parse_json(text.as_bytes()) {
        Ok(body) => details.collect(&body),
        Err(_) if is_html => {}
        Err(_) => details.texts.push(text.trim().to_owned()),
    }
    let status = details.status.filter(|_| status < 400).unwrap_or(status);
    let said = details.texts.join("; ");
    let message = match status {
        _ if is_html => format!("the server answered {status} with a web page: is api_base right?"),
        200..=299 => format!("the server sent an error: {}", one_line(&said, 300)),
        _ if said.is_empty() => format!("the server answered {status}"),
        _ => format!("the server answered {status}: {}", one_line(&said, 300)),
    };
    let said = said.to_lowercase();
    let spoken_wait = spoken_wait(&text.to_lowercase());
    // Rate limits speak of quotas, too. An empty account tells nobody to come back in a minute.
    let is_rate_limit = status == 429 && spoken_wait.is_some();
    let marker = MARKERS
        .iter()
        .find(|(with, _, texts)| with.contains(&status) && says(&said, texts));
    if let Some((_, error, _)) = marker.filter(|_| !is_rate_limit) {
        return error(message);
    }
    let retry_after = head.and_then(|h| retry_after(h, now)).or(spoken_wait);
    let should_retry = head.and_then(|head| head.header("x-should-retry")) == Some("true");
    match status {
        // A page is not the API's own refusal.
        429 if !is_html => ProviderError::RateLimited {
            message,
            retry_after,
        },
        _ if should_retry => ProviderError::Transient {
            message,
            retry_after,
        },
        401 => ProviderError::Auth(message),
        402 => ProviderError::Quota(message),
        403 if !is_html => ProviderError::Auth(message),
        404 if !is_html => ProviderError::NotFound(message),
        200..=299 if is_html => ProviderError::Rejected(message),
        408 | 409 | 425 | 429 | 500.. | 200..=299 => ProviderError::Transient {
            message,
            retry_after,
        },
        400 | 413 | 422 if !is_html => ProviderError::BadRequest(message),
        _ => ProviderError::Rejected(message),
    }
}

/// What an error body says.
#[derive(Default)]
struct Details {
    /// Messages first, then types and codes.
    texts: Vec<String>,
    /// The status that the body itself names.
    status: Option<u16>,
}

impl Details {
    fn collect(&mut self, value: &Value) {
        match value {
            Value::String(text) => match parse_json(text) {
                // OpenRouter puts the host's own answer into `metadata.raw`.
                Ok(inner @ Value::Object(_)) => self.collect(&inner),
                _ if text.trim().is_empty() || self.texts.contains(text) => {}
                _ => self.texts.push(text.trim().to_owned()),
            },
            Value::Array(items) => items.iter().take(1).for_each(|item| self.collect(item)),
            Value::Object(fields) => {
                let mut inner = ["error", "detail", "errors"]
                    .iter()
                    .filter_map(|name| fields.get(*name));
                if let Some(inner) = inner.find(|inner| !inner.is_null()) {
                    return self.collect(inner);
                }
                self.status = self.status.or_else(|| status_in(value));
                for name in ["message", "msg", "type", "code", "param", "metadata", "raw"] {
                    fields
                        .get(name)
                        .into_iter()
                        .for_each(|field| self.collect(field));
                }
                // FastAPI's place of a fault, and llama.cpp's window.
                let place = fields
                    .get("loc")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten();
                let place: Vec<String> = place
                    .map(|part| part.to_string().replace('"', ""))
                    .collect();
                let window = fields.get("n_ctx").map(|window| format!("n_ctx {window}"));
                self.texts.extend(
                    Some(place.join("."))
                        .filter(|place| !place.is_empty())
                        .into_iter()
                        .chain(window),
                );
                if self.texts.is_empty() && self.status.is_none() {
                    self.texts.push(value.to_string());
                }
            }
            _ => {}
        }
    }
}

/// The status that an error object names by number or by type.
fn status_in(error: &Value) -> Option<u16> {
    let number = |name| {
        error
            .get(name)
            .and_then(|n: &Value| n.as_u64().or_else(|| n.as_str()?.parse().ok()))
    };
    let status = number("code")
        .or_else(|| number("status"))
        .and_then(|n| u16::try_from(n).ok());
    let kind = error.get("type").and_then(Value::as_str);
    let of_type = STATUS_OF_TYPE
        .iter()
        .find(|(name, _)| Some(*name) == kind)
        .map(|(_, status)| *status);
    status
        .filter(|status| (400..=599).contains(status))
        .or(of_type)
}

/// The window in tokens that a refusal of a long request names.
pub(super) fn window_in(refusal: &str) -> Option<u64> {
    const BEFORE: &str = "maximum context length (is|of) |context length is only |context window (is|of) |context size \\(|\
                          tokens allowed \\(|max message tokens: |n_ctx | > ";
    let window = Regex::new(&format!("({BEFORE})(?<window>[0-9,_]+)")).ok()?;
    let window = window.captures(&refusal.to_lowercase())?["window"].replace([',', '_'], "");
    window
        .parse()
        .ok()
        .filter(|window| (1024..100_000_000).contains(window))
}

pub(super) fn looks_like_html(text: &str) -> bool {
    let start = text
        .trim_start()
        .get(..15)
        .unwrap_or(text.trim_start())
        .to_ascii_lowercase();
    start.starts_with("<!doctype html") || start.starts_with("<html") || start.starts_with("<head")
}

/// How long the server asks to wait: `retry-after-ms`, `retry-after` in seconds or as an HTTP date, `x-ratelimit-reset-*`
/// as a length of time. `x-should-retry: false` means for ever.
fn retry_after(head: &Head, now: SystemTime) -> Option<Duration> {
    if head.header("x-should-retry") == Some("false") {
        return Some(Duration::MAX);
    }
    if let Some(ms) = head.header("retry-after-ms").and_then(number) {
        return seconds(ms / 1000.0);
    }
    if let Some(text) = head.header("retry-after") {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let until = |text| http_date(text).map(|at| at.saturating_sub(since));
        if let Some(wait) = number(text).and_then(seconds).or_else(|| until(text)) {
            return Some(wait);
        }
    }
    ["x-ratelimit-reset-requests", "x-ratelimit-reset-tokens"]
        .iter()
        .find_map(|name| length(head.header(name)?))
}

/// `12` or `12.5`, read by the JSON parser: the standard library's costs 15 KB more.
fn number(text: &str) -> Option<f64> {
    from_json(text.trim()).ok()
}

/// `None` for negative and absurd numbers.
fn seconds(n: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(n).ok()
}

/// `1m2.5s`, `120ms`, `6s`: as OpenAI and Groq write it.
fn length(text: &str) -> Option<Duration> {
    let whole = Regex::new(r"^(([0-9.]+)h)?(([0-9.]+)m)?(([0-9.]+)s)?(([0-9.]+)ms)?$")
        .ok()?
        .captures(text.trim())?;
    let parts = [(2, 3600.0), (4, 60.0), (6, 1.0), (8, 0.001)];
    let part = |(group, scale)| {
        whole
            .get(group)
            .map(|text| number(text.as_str()).map(|n| n * scale))
    };
    let total = parts
        .into_iter()
        .filter_map(part)
        .collect::<Option<Vec<f64>>>()?;
    seconds(total.iter().sum()).filter(|_| !total.is_empty())
}

/// "Please try again in 12.3s", "Please retry in 26s", `"retryDelay": "26s"`; in lower case.
fn spoken_wait(said: &str) -> Option<Duration> {
    let wait =
        Regex::new(r#"(try again in |retry in |retrydelay)["\\: ]*(?<wait>[0-9a-z.]*[0-9a-z])"#)
            .ok()?;
    length(&wait.captures(said)?["wait"])
}

/// Seconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7; no API sends the obsolete forms).
fn http_date(text: &str) -> Option<Duration> {
    let [_, day, month, year, clock, "GMT"] = text.split(' ').collect::<Vec<_>>()[..] else {
        return None;
    };
    let months = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let month = months.iter().position(|name| *name == month)? + 1;
    let (seconds, _) = timezone::parse_time(&format!("{year}-{month:02}-{day}T{clock}Z"))?;
    u64::try_from(seconds).ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hosts_answer_is_sorted_by_what_to_do_about_it() {
        let long = "ContextTooLong";
        for (status, body, kind) in [
            (
                400,
                r#"[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key."}}]"#,
                "Auth",
            ),
            (
                429,
                r#"{"error":{"type":"insufficient_quota","message":"slow: please retry in 2s"}}"#,
                "RateLimited",
            ),
            (
                429,
                r#"{"error":{"type":"exceeded_current_quota_error","message":"account suspended"}}"#,
                "Quota",
            ),
            (
                403,
                r#"{"error":{"message":"Enable billing for this project"}}"#,
                "Quota",
            ),
            (
                400,
                r#"{"error":{"type":"invalid_request_error","message":"Your credit balance is too low"}}"#,
                "Quota",
            ),
            (
                400,
                r#"{"error":{"type":"exceed_context_size_error","message":"x"}}"#,
                long,
            ),
            (
                400,
                r#"{"error":{"metadata":{"raw":"{\"error\":{\"message\":\"maximum context length\"}}"}}}"#,
                long,
            ),
            (
                400,
                r#"{"error":{"message":"input length and `max_tokens` exceed context limit: 1 + 2 > 2"}}"#,
                long,
            ),
            (
                413,
                r#"{"error":{"type":"request_too_large","message":"x"}}"#,
                long,
            ),
            (400, "<!DOCTYPE html><h1>nginx", "Rejected"),
            (502, "<html>Bad gateway", "Transient"),
            (
                200,
                r#"{"error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                "Transient",
            ),
            (
                200,
                r#"{"error":{"type":"rate_limit_error","message":"slow"}}"#,
                "RateLimited",
            ),
            (
                200,
                r#"{"error":{"type":"authentication_error","message":"invalid x-api-key"}}"#,
                "Auth",
            ),
        ] {
            let error = format!("{:?}", classify(status, None, body.as_bytes(), UNIX_EPOCH));
            assert!(error.starts_with(kind), "{status} {body}: {error}");
        }
    }

    #[test]
    fn a_wait_is_understood_in_every_form() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_767);
        let wait = |name: &str, value: &str| {
            let head = Head {
                status: 429,
                headers: vec![(name.to_owned(), value.to_owned())],
            };
            retry_after(&head, now).map(|d| d.as_millis())
        };
        assert_eq!(wait("retry-after", "2"), Some(2000));
        assert_eq!(wait("retry-after", "0.5"), Some(500));
        assert_eq!(wait("retry-after", "."), None);
        assert_eq!(wait("retry-after", ""), None);
        assert_eq!(
            wait("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"),
            Some(10_000)
        );
        assert_eq!(
            wait("retry-after", "Sun, 06 Nov 1993 08:49:37 GMT"),
            Some(0)
        );
        assert_eq!(wait("retry-after", "soon"), None);
        assert_eq!(wait("retry-after", "-3"), None);
        assert_eq!(wait("retry-after-ms", "120"), Some(120));
        assert_eq!(wait("x-ratelimit-reset-tokens", "1m2.5s"), Some(62_500));
        assert_eq!(
            wait("x-should-retry", "false"),
            Some(Duration::MAX.as_millis())
        );
        assert_eq!(
            spoken_wait("please try again in 12.3s."),
            Some(Duration::from_millis(12_300))
        );
        assert_eq!(
            spoken_wait("please retry in 26.4s."),
            Some(Duration::from_millis(26_400))
        );
        assert_eq!(
            spoken_wait(r#"{"retrydelay": "26s"}"#),
            Some(Duration::from_secs(26))
        );
        assert_eq!(spoken_wait("please try again in 20 years"), None);
    }

    #[test]
    fn a_refusal_for_length_tells_the_window() {
        for (refusal, window) in [
            (
                "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001",
                Some(8192),
            ),
            (
                "prompt is too long: 210000 tokens > 200000 maximum",
                Some(200_000),
            ),
            (
                "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
                Some(200_000),
            ),
            (
                "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
                Some(4096),
            ),
            (
                "the request exceeds the context; exceed_context_size_error; n_ctx 2048",
                Some(2048),
            ),
            (
                "The input token count (1,100,000) exceeds the maximum number of tokens allowed (1,048,576).",
                Some(1_048_576),
            ),
            ("maximum context length is 7 tokens", None),
            ("prompt is too long", None),
        ] {
            assert_eq!(window_in(refusal), window, "{refusal}");
        }
    }

    #[test]
    fn the_reason_is_in_the_message_and_a_page_is_not() {
        let message = |body: &str| match classify(400, None, body.as_bytes(), UNIX_EPOCH) {
            ProviderError::Rejected(m) | ProviderError::BadRequest(m) => m,
            e => panic!("{e:?}"),
        };
        assert_eq!(
            message(r#"{"error":{"message":"bad\nthing"}}"#),
            "the server answered 400: bad thing"
        );
        assert_eq!(
            message(r#"{"message":"plain"}"#),
            "the server answered 400: plain"
        );
        assert!(message("<html><body>lots").contains("api_base"));
        let loc = r#"{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}"#;
        assert!(
            message(loc).contains("body.stream_options"),
            "{}",
            message(loc)
        );
    }
}
