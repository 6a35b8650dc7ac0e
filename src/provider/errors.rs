//! What a server's refusal means: from status, headers and body to a [`ProviderError`].
//!
//! Hosts disagree about everything but the numbers, so the body is searched in all the shapes it comes in: `error` as
//! text, object or list, `detail`, `message`, JSON inside a text, and pages meant for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::ProviderError;
use crate::http::Head;
use crate::text::one_line;

/// Signs of a conversation that is too long. Most hosts answer 400, some 413, 422 or 500.
const TOO_LONG: [&str; 16] = [
    "context_length_exceeded",
    "context length",
    "context window",
    "exceed context limit",
    "context size",
    "maximum context",
    "prompt is too long",
    "prompt too long",
    "input is too long",
    "too many tokens",
    "max message tokens",
    "request too large",
    "request_too_large",
    "exceed_context_size",
    "n_ctx",
    "reduce the length",
];

/// Signs of an account without means: they come with the status of a rate limit, and do not pass.
const NO_MEANS: [&str; 7] = [
    "insufficient_quota",
    "exceeded your current quota",
    "billing",
    "insufficient balance",
    "insufficient credit",
    "credit balance",
    "payment required",
];

/// The meaning of an answer whose status is not 2xx, or of an error inside one that is.
pub fn classify(status: u16, head: Option<&Head>, body: &[u8], now: SystemTime) -> ProviderError {
    let text = String::from_utf8_lossy(body);
    let told = told(&text);
    let said = told.text.to_lowercase();
    let status = told.status.filter(|_| status < 400).unwrap_or(status);
    let message = match (status, told.text.is_empty()) {
        (200..=299, _) => format!("the server sent an error: {}", one_line(&told.text, 300)),
        (_, true) => format!("the server answered {status}"),
        (_, false) => format!("the server answered {status}: {}", one_line(&told.text, 300)),
    };
    let retry_after = head.and_then(|h| retry_after(h, now)).or_else(|| spoken_wait(&said));
    let is = |signs: &[&str]| signs.iter().any(|sign| said.contains(sign));
    if looks_like_html(&text) {
        let message = format!("the server answered {status} with a web page: is api_base right?");
        return match status {
            401 => ProviderError::Auth(message),
            408 | 425 | 429 | 500.. => ProviderError::Transient { message, retry_after },
            _ => ProviderError::Rejected(message),
        };
    }
    match status {
        401 => ProviderError::Auth(message),
        402 => ProviderError::Quota(message),
        403 if is(&NO_MEANS) => ProviderError::Quota(message),
        403 => ProviderError::Auth(message),
        // Some hosts refuse a key with 400.
        400 if said.contains("credit balance is too low") => ProviderError::Quota(message),
        400 if said.contains("api key not valid") || said.contains("invalid api key") => ProviderError::Auth(message),
        _ if is(&TOO_LONG) && status != 429 => ProviderError::ContextTooLong(message),
        429 if is(&NO_MEANS) => ProviderError::Quota(message),
        429 => ProviderError::RateLimited { message, retry_after },
        408 | 409 | 425 | 500.. | 200..=299 => ProviderError::Transient { message, retry_after },
        _ => ProviderError::Rejected(message),
    }
}

/// What Anthropic calls its errors, with the status that each comes with. In a stream there is no status but this name.
const NAMED: [(&str, u16); 8] = [
    ("invalid_request_error", 400),
    ("authentication_error", 401),
    ("billing_error", 402),
    ("permission_error", 403),
    ("not_found_error", 404),
    ("request_too_large", 413),
    ("rate_limit_error", 429),
    ("overloaded_error", 529),
];

struct Told {
    text: String,
    /// The status that the body itself names.
    status: Option<u16>,
}

/// What the body says, as text.
fn told(text: &str) -> Told {
    let Ok(body) = serde_json::from_str::<Value>(text) else {
        return Told { text: if looks_like_html(text) { String::new() } else { text.trim().to_owned() }, status: None };
    };
    let body = body.get(0).unwrap_or(&body);
    let error = ["error", "detail", "message", "errors"].iter().find_map(|k| body.get(k).filter(|v| !v.is_null()));
    let error = error.unwrap_or(body);
    let error = error.get(0).unwrap_or(error);
    let mut parts: Vec<String> = Vec::new();
    gather(error, &mut parts, 0);
    let code = error.get("code").or_else(|| error.get("status"));
    let status = code.and_then(|c| c.as_u64().or_else(|| c.as_str()?.parse().ok())).and_then(|n| u16::try_from(n).ok());
    let named = error.get("type").and_then(Value::as_str);
    let named = named.and_then(|name| NAMED.iter().find(|(known, _)| *known == name)).map(|(_, status)| *status);
    let status = status.filter(|s| (400..=599).contains(s)).or(named);
    Told { text: parts.join("; "), status }
}

/// Collects the texts that say something: messages first, then types and codes. OpenRouter puts the host's own answer
/// as JSON text into `metadata.raw`.
fn gather(error: &Value, parts: &mut Vec<String>, depth: usize) {
    if let Value::String(text) = error {
        match serde_json::from_str::<Value>(text) {
            Ok(inner @ Value::Object(_)) if depth < 3 => gather(inner.get("error").unwrap_or(&inner), parts, depth + 1),
            _ => parts.push(text.trim().to_owned()),
        }
        return;
    }
    for name in ["message", "msg", "type", "code", "param"] {
        if let Some(text @ Value::String(s)) = error.get(name) {
            if !s.is_empty() && depth < 3 && !parts.contains(s) {
                gather(text, parts, depth + 1);
            }
        }
    }
    if let Some(raw) = error.get("metadata").and_then(|m| m.get("raw")) {
        if depth < 3 {
            gather(raw, parts, depth + 1);
        }
    }
    if parts.is_empty() && depth == 0 {
        parts.push(error.to_string());
    }
}

pub fn looks_like_html(text: &str) -> bool {
    let start = text.trim_start().get(..15).unwrap_or(text.trim_start()).to_ascii_lowercase();
    start.starts_with("<!doctype html") || start.starts_with("<html") || start.starts_with("<head")
}

/// How long the server asks to be left alone: `retry-after-ms`, `retry-after` in seconds or as an HTTP date,
/// `x-ratelimit-reset-*` as a length of time. `x-should-retry: false` asks for ever.
fn retry_after(head: &Head, now: SystemTime) -> Option<Duration> {
    if head.header("x-should-retry") == Some("false") {
        return Some(Duration::MAX);
    }
    if let Some(ms) = head.header("retry-after-ms").and_then(number) {
        return seconds(ms / 1000.0);
    }
    if let Some(text) = head.header("retry-after") {
        if let Some(n) = number(text) {
            return seconds(n);
        }
        if let Some(at) = http_date(text) {
            let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
            return Some(at.saturating_sub(since));
        }
    }
    ["x-ratelimit-reset-requests", "x-ratelimit-reset-tokens"].iter().find_map(|name| length(head.header(name)?))
}

/// `12` or `12.5`. The standard library's reader is exact to the last bit and costs 15 KB for that.
#[allow(clippy::cast_precision_loss)] // nobody waits for 2^53 seconds
fn number(text: &str) -> Option<f64> {
    let (whole, part) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let digits: u64 = format!("{whole}{part}").parse().ok()?;
    Some(part.bytes().fold(digits as f64, |n, _| n / 10.0))
}

/// A negative or absurd number asks for nothing that can be kept to.
fn seconds(n: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(n).ok()
}

/// `1m2.5s`, `120ms`, `6s`: as OpenAI and Groq write it.
fn length(text: &str) -> Option<Duration> {
    let mut total = 0.0;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let n = number(&rest[..digits])?;
        let unit = &rest[digits..];
        let (scale, len) = if unit.starts_with("ms") {
            (0.001, 2)
        } else {
            match unit.as_bytes().first()? {
                b's' => (1.0, 1),
                b'm' => (60.0, 1),
                b'h' => (3600.0, 1),
                _ => return None,
            }
        };
        total += n * scale;
        rest = &unit[len..];
    }
    seconds(total)
}

/// "Please try again in 12.3s", in lower case.
fn spoken_wait(said: &str) -> Option<Duration> {
    let (_, rest) = said.split_once("try again in ")?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(rest.len());
    length(rest[..end].trim_end_matches('.'))
}

/// Seconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7; the two obsolete forms are not sent
/// by anybody who writes a model API).
fn http_date(text: &str) -> Option<Duration> {
    let mut parts = text.split_once(", ")?.1.split(' ');
    let day: i64 = parts.next()?.parse().ok()?;
    let month = parts.next()?;
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = i64::try_from(months.iter().position(|m| *m == month)?).ok()? + 1;
    let year: i64 = parts.next()?.parse().ok()?;
    let mut clock = parts.next()?.split(':').map(|n| n.parse::<i64>().ok());
    let (h, m, s) = (clock.next()??, clock.next()??, clock.next()??);
    // Days since 1970 by counting years from March, so that a leap day comes last.
    let y = if month > 2 { year } else { year - 1 };
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let days = y.div_euclid(400) * 146_097 + y.rem_euclid(400) * 365 + y.rem_euclid(400) / 4 - y.rem_euclid(400) / 100
        + day_of_year
        - 719_468;
    u64::try_from(days * 86_400 + h * 3600 + m * 60 + s).ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(status: u16, body: &str) -> &'static str {
        match classify(status, None, body.as_bytes(), UNIX_EPOCH) {
            ProviderError::Auth(_) => "auth",
            ProviderError::RateLimited { .. } => "rate",
            ProviderError::Quota(_) => "quota",
            ProviderError::ContextTooLong(_) => "long",
            ProviderError::Transient { .. } => "transient",
            ProviderError::Rejected(_) => "rejected",
            ProviderError::Unasked(_) | ProviderError::Cancelled(_) => "not asked",
        }
    }

    #[test]
    fn what_hosts_answer_is_sorted_by_what_to_do_about_it() {
        let cases = [
            (401, r#"{"error":{"message":"Incorrect API key provided"}}"#, "auth"),
            (403, r#"{"error":"forbidden"}"#, "auth"),
            (400, r#"[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key."}}]"#, "auth"),
            (402, "", "quota"),
            (429, r#"{"error":{"code":"insufficient_quota","message":"You exceeded your current quota"}}"#, "quota"),
            (429, r#"{"error":{"message":"Rate limit reached"}}"#, "rate"),
            (400, r#"{"error":{"message":"too big","code":"context_length_exceeded"}}"#, "long"),
            (400, r#"{"error":{"type":"exceed_context_size_error","message":"x"}}"#, "long"),
            (413, "request too large", "long"),
            (500, r#"{"error":{"message":"prompt is too long: 9 > 8"}}"#, "long"),
            (
                400,
                r#"{"error":{"message":"x","metadata":{"raw":"{\"error\":{\"message\":\"maximum context length\"}}"}}}"#,
                "long",
            ),
            (401, r#"{"error":{"message":"invalid token"}}"#, "auth"),
            (404, r#"{"error":{"message":"model not found"}}"#, "rejected"),
            (422, r#"{"detail":[{"msg":"field required"}]}"#, "rejected"),
            (400, "<!DOCTYPE html><h1>nginx", "rejected"),
            (502, "<html>Bad gateway", "transient"),
            (500, "", "transient"),
            (529, r#"{"type":"overloaded_error"}"#, "transient"),
            (408, "", "transient"),
            (200, r#"{"error":{"code":429,"message":"slow down"}}"#, "rate"),
            (200, r#"{"error":{"message":"upstream died"}}"#, "transient"),
            (200, r#"{"error":{"code":401,"message":"no"}}"#, "auth"),
            (200, r#"{"error":{"type":"overloaded_error","message":"Overloaded"}}"#, "transient"),
            (200, r#"{"error":{"type":"rate_limit_error","message":"slow"}}"#, "rate"),
            (200, r#"{"error":{"type":"authentication_error","message":"invalid x-api-key"}}"#, "auth"),
            (529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, "transient"),
            (401, r#"{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}"#, "auth"),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 2 > 1"}}"#,
                "long",
            ),
            (400, r#"{"error":{"message":"input length and `max_tokens` exceed context limit: 1 + 2 > 2"}}"#, "long"),
            (400, r#"{"error":{"type":"invalid_request_error","message":"Your credit balance is too low"}}"#, "quota"),
            (413, r#"{"error":{"type":"request_too_large","message":"x"}}"#, "long"),
        ];
        for (status, body, want) in cases {
            assert_eq!(kind(status, body), want, "{status} {body}");
        }
    }

    #[test]
    fn a_wait_is_understood_in_every_form() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_767);
        let wait = |name: &str, value: &str| {
            let head = Head { status: 429, headers: vec![(name.to_owned(), value.to_owned())] };
            retry_after(&head, now).map(|d| d.as_millis())
        };
        assert_eq!(wait("retry-after", "2"), Some(2000));
        assert_eq!(wait("retry-after", "0.5"), Some(500));
        assert_eq!(wait("retry-after", "02.125"), Some(2125));
        assert_eq!(wait("retry-after", "2."), Some(2000));
        assert_eq!(wait("retry-after", "."), None);
        assert_eq!(wait("retry-after", ""), None);
        assert_eq!(wait("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"), Some(10_000));
        assert_eq!(wait("retry-after", "Sun, 06 Nov 1993 08:49:37 GMT"), Some(0));
        assert_eq!(wait("retry-after", "soon"), None);
        assert_eq!(wait("retry-after", "-3"), None);
        assert_eq!(wait("retry-after-ms", "120"), Some(120));
        assert_eq!(wait("x-ratelimit-reset-tokens", "1m2.5s"), Some(62_500));
        assert_eq!(wait("x-should-retry", "false"), Some(Duration::MAX.as_millis()));
        assert_eq!(spoken_wait("please try again in 12.3s."), Some(Duration::from_millis(12_300)));
        assert_eq!(spoken_wait("please try again in 20 years"), None);
    }

    #[test]
    fn the_reason_is_in_the_message_and_a_page_is_not() {
        let message = |body: &str| match classify(400, None, body.as_bytes(), UNIX_EPOCH) {
            ProviderError::Rejected(m) => m,
            e => panic!("{e:?}"),
        };
        assert_eq!(message(r#"{"error":{"message":"bad\nthing"}}"#), "the server answered 400: bad thing");
        assert_eq!(message(r#"{"message":"plain"}"#), "the server answered 400: plain");
        assert!(message("<html><body>lots").contains("api_base"));
    }
}
