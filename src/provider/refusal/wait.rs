//! Parses the delay that a host asks for, from headers and messages.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use regex_lite::Regex;

use crate::json::from_json;
use crate::timezone;

/// Returns the delay that the server asks for. `x-should-retry: false` means never to retry.
pub(super) fn retry_after(headers: &[&(String, String)], now: SystemTime) -> Option<Duration> {
    let header = |wanted: &str| {
        let found = headers.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    };
    if header("x-should-retry") == Some("false") {
        return Some(Duration::MAX);
    }
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    // The server's clock, on which its times are based.
    let now = header("date").and_then(http_date).unwrap_or(now);
    if let Some(ms) = header("retry-after-ms").and_then(number) {
        return seconds(ms / 1000.0);
    }
    if let Some(text) = header("retry-after") {
        let until = |text| http_date(text).map(|at| at.saturating_sub(now));
        if let Some(wait) = number(text).and_then(seconds).or_else(|| until(text)) {
            return Some(wait);
        }
    }
    ["", "-requests", "-tokens"]
        .iter()
        .find_map(|form| reset(header(&format!("x-ratelimit-reset{form}"))?, now))
}

/// Parses the time until a reset: a duration, or a time since 1970 in seconds or milliseconds.
fn reset(text: &str, now: Duration) -> Option<Duration> {
    let Some(n) = number(text) else {
        return length(text);
    };
    let until = |at: Option<Duration>| at.map(|at| at.saturating_sub(now));
    match n {
        n if n > 1e11 => until(seconds(n / 1000.0)),
        n if n > 1e9 => until(seconds(n)),
        n => seconds(n),
    }
}

/// Parses `12` or `12.5` with the JSON parser, because the standard library's parser costs 15 KB more.
fn number(text: &str) -> Option<f64> {
    from_json(text.trim()).ok()
}

/// Returns `None` for negative and huge numbers.
fn seconds(n: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(n).ok()
}

/// Parses durations in the format of OpenAI and Groq: `1m2.5s`, `120ms`, `6s`.
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
    if total.is_empty() {
        None
    } else {
        seconds(total.iter().sum())
    }
}

/// Finds a delay in a lower-case message: "please try again in 12.3s", "please retry in 26s", `"retrydelay": "26s"`.
pub(super) fn spoken_wait(said: &str) -> Option<Duration> {
    const WAIT: &str = r#"(try again in |retry in |retrydelay)["\\: ]*(?<wait>[0-9]([0-9a-z.]*[0-9a-z])?( s(econds?)?\b)?)"#;
    let wait = Regex::new(WAIT).ok()?;
    let wait = wait.captures(said)?["wait"].replace(" seconds", "s");
    length(&wait.replace(" second", "s").replace(' ', ""))
}

/// Seconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7; no API sends the obsolete formats).
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
    fn a_wait_is_understood_in_every_form() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_767);
        let waits = |headers: &[(&str, &str)]| {
            let owned = headers
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
            let owned: Vec<(String, String)> = owned.collect();
            retry_after(&owned.iter().collect::<Vec<_>>(), now).map(|d| d.as_millis())
        };
        let wait = |name: &str, value: &str| waits(&[(name, value)]);
        assert_eq!(wait("retry-after", "2"), Some(2000));
        assert_eq!(wait("retry-after", "0.5"), Some(500));
        assert_eq!(wait("retry-after", "."), None);
        assert_eq!(wait("retry-after", ""), None);
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(wait("retry-after", date), Some(10_000));
        let past = "Sun, 06 Nov 1993 08:49:37 GMT";
        assert_eq!(wait("retry-after", past), Some(0));
        assert_eq!(wait("retry-after", "soon"), None);
        assert_eq!(wait("retry-after", "-3"), None);
        assert_eq!(wait("retry-after-ms", "120"), Some(120));
        assert_eq!(wait("x-ratelimit-reset-tokens", "1m2.5s"), Some(62_500));
        assert_eq!(wait("x-ratelimit-reset", "3"), Some(3000));
        assert_eq!(
            wait("x-ratelimit-reset", "784111770"),
            Some(784_111_770_000)
        );
        let reset = [
            ("date", "Fri, 07 Mar 2025 00:00:00 GMT"),
            ("x-ratelimit-reset", "1741305605000"),
        ];
        assert_eq!(waits(&reset), Some(5000));
        let reset = [
            ("date", "Fri, 07 Mar 2025 00:00:00 GMT"),
            ("x-ratelimit-reset-requests", "1741305607"),
        ];
        assert_eq!(waits(&reset), Some(7000));
        let never = Some(Duration::MAX.as_millis());
        assert_eq!(wait("x-should-retry", "false"), never);
        for (said, ms) in [
            ("please try again in 12.3s.", Some(12_300)),
            ("please retry in 26.4s.", Some(26_400)),
            (r#"{"retrydelay": "26s"}"#, Some(26_000)),
            ("please try again in 20 years", None),
            ("try again in 12 s", Some(12_000)),
        ] {
            assert_eq!(spoken_wait(said).map(|wait| wait.as_millis()), ms, "{said}");
        }
    }
}
