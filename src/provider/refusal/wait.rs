//! Parses the delay that a host asks for, from headers and messages.

use std::ops::Range;
use std::time::Duration;

use regex_lite::Regex;

use crate::http::Head;
use crate::json::from_json;
use crate::timezone::parse_time;

/// Headers with a delay in a format such as `1m2.5s` and `120ms` of OpenAI and Groq.
const RESETS: [&str; 2] = ["x-ratelimit-reset-requests", "x-ratelimit-reset-tokens"];

/// Returns the delay that the server asks for. `x-should-retry: false` means never to retry.
pub(super) fn retry_after(head: &Head) -> Option<Duration> {
    if head.header("x-should-retry") == Some("false") {
        return Some(Duration::MAX);
    }
    let ms = head.header("retry-after-ms");
    let ms = ms.and_then(|ms| length(&format!("{ms}ms")));
    let reset = || RESETS.iter().find_map(|name| length(head.header(name)?));
    ms.or_else(|| demanded(head)).or_else(reset)
}

/// Returns the delay in `retry-after`: a number, or the time until a date by the server's clock, which need not be this
/// machine's. One below zero still demands a delay.
fn demanded(head: &Head) -> Option<Duration> {
    let asked = head.header("retry-after")?;
    let until = || {
        let date = parse_date(asked)?;
        let now = head.header("date").and_then(parse_date);
        let seconds = date.saturating_sub(now.unwrap_or(date));
        Some(Duration::from_secs(seconds.try_into().unwrap_or(0)))
    };
    let below_zero = || length(asked.strip_prefix('-')?).and(Some(Duration::ZERO));
    length(asked).or_else(until).or_else(below_zero)
}

const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";

/// Parses a date such as `Wed, 21 Oct 2015 07:28:00 GMT` (RFC 9110, section 5.6.7) to seconds since 1970.
fn parse_date(text: &str) -> Option<i64> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [_, day, month, year, time, "GMT"] = words[..] else {
        return None;
    };
    let month = MONTHS.find(month)? / 3 + 1;
    parse_time(&format!("{year}-{month:02}-{day} {time}")).map(|(seconds, _)| seconds)
}

/// Numbers that are times since 1970, in seconds or milliseconds, and no delays.
const TIMES: Range<f64> = 1e9..1e13;

/// Parses a duration; a number without a unit is in seconds, and one beyond all measure is none.
fn length(text: &str) -> Option<Duration> {
    let whole = Regex::new(r"^(([0-9.]+)h)?(([0-9.]+)m)?(([0-9.]+)(s|$))?(([0-9.]+)ms)?$")
        .ok()?
        .captures(text.trim())?;
    let mut total = None;
    for (group, scale) in [(2, 3600.0), (4, 60.0), (6, 1.0), (9, 0.001)] {
        if let Some(part) = whole.get(group) {
            // The standard library's parser costs 15 KB more than the JSON parser.
            let number: f64 = from_json(part.as_str()).ok()?;
            total = Some(total.unwrap_or(0.0) + number * scale);
        }
    }
    let total = total.filter(|total| !TIMES.contains(total))?;
    Duration::try_from_secs_f64(total).ok()
}

/// Finds a delay in a lower-case message: "please try again in 12.3s", "please retry in 26 seconds", `"retrydelay": "26s"`.
pub(super) fn spoken_wait(said: &str) -> Option<Duration> {
    const WAIT: &str = r#"(try again in |retry in |retrydelay)["\\: ]*(?<wait>([0-9.]*[0-9] ?(h|ms|m|s))+)(econds?)?\b"#;
    let wait = Regex::new(WAIT).ok()?;
    length(&wait.captures(said)?["wait"].replace(' ', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_understood_in_every_form() {
        for (name, value, ms) in [
            ("retry-after", "2", Some(2000)),
            ("retry-after", "0.5", Some(500)),
            ("retry-after", "1e400", None),
            ("retry-after", "", None),
            ("retry-after", "-1e400", None),
            ("retry-after", "soon", None),
            ("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT", Some(0)),
            ("retry-after", "-3", Some(0)),
            ("retry-after-ms", "120", Some(120)),
            ("x-ratelimit-reset-tokens", "1m2.5s", Some(62_500)),
            ("x-ratelimit-reset-requests", "120ms", Some(120)),
            ("x-ratelimit-reset-requests", "1741305607", None),
            ("x-ratelimit-reset-requests", "1741305607000", None),
            ("retry-after", "999999", Some(999_999_000)),
            ("x-should-retry", "false", Some(Duration::MAX.as_millis())),
        ] {
            let head = Head {
                status: 429,
                headers: vec![(name.to_owned(), value.to_owned())],
            };
            let wait = retry_after(&head).map(|wait| wait.as_millis());
            assert_eq!(wait, ms, "{name} {value}");
        }
        for (until, ms) in [
            ("Wed, 21 Oct 2015 07:28:00 GMT", Some(2000)),
            ("Thu, 22 Oct 2015 07:27:58 GMT", Some(86_400_000)),
            ("Wed, 21 Oct 2015 07:27:00 GMT", Some(0)),
            ("Wed, 21 Okt 2015 07:28:00 GMT", Some(120)),
            ("-1", Some(0)),
        ] {
            let date = "Wed, 21 Oct 2015 07:27:58 GMT".to_owned();
            let head = Head {
                status: 503,
                headers: vec![
                    ("date".to_owned(), date),
                    ("x-ratelimit-reset-tokens".to_owned(), "120ms".to_owned()),
                    ("retry-after".to_owned(), until.to_owned()),
                ],
            };
            let wait = retry_after(&head).map(|wait| wait.as_millis());
            assert_eq!(wait, ms, "{until}");
        }
        for (said, ms) in [
            ("please try again in 12.3s.", Some(12_300)),
            ("please retry in 26.4s.", Some(26_400)),
            (r#"{"retrydelay": "26s"}"#, Some(26_000)),
            ("please try again in 20 years", None),
            ("try again in 12 seconds", Some(12_000)),
        ] {
            assert_eq!(spoken_wait(said).map(|wait| wait.as_millis()), ms, "{said}");
        }
    }
}
