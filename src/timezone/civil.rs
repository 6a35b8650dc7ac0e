//! Dates and times of day without a zone, and their RFC 3339 format.

use tz::UtcDateTime;

/// Returns the date and time `seconds` after 1970-01-01 00:00; 1970 if they are out of range.
pub(crate) fn calendar(seconds: i64) -> UtcDateTime {
    UtcDateTime::from_timespec(seconds, 0).unwrap_or_else(|_| calendar(0))
}

/// Formats the time `seconds` after 1970-01-01 00:00 as `2026-11-22 03:15:00`.
pub(crate) fn stamp(seconds: i64) -> String {
    let t = calendar(seconds);
    let date = format!("{:04}-{:02}-{:02}", t.year(), t.month(), t.month_day());
    format!("{date} {:02}:{:02}:{:02}", t.hour(), t.minute(), t.second())
}

/// Parses a date and a time (`2026-03-29T02:30`, optionally with seconds, their fraction, and a space for the T) to seconds
/// since 1970-01-01 00:00, and an RFC 3339 offset (`Z` or `+02:00`) to seconds east of UTC.
pub(crate) fn parse_time(text: &str) -> Option<(i64, Option<i32>)> {
    let bytes = text.as_bytes();
    let number = |at: usize, digits: usize| -> Option<i32> {
        let digits = bytes.get(at..at + digits)?;
        digits.iter().try_fold(0, |n, b| {
            b.is_ascii_digit().then(|| n * 10 + i32::from(b - b'0'))
        })
    };
    let two = |at: usize| number(at, 2).and_then(|n| u8::try_from(n).ok());
    let (year, month, day, hour, minute) = (number(0, 4)?, two(5)?, two(8)?, two(11)?, two(14)?);
    let marks = [(4, "-"), (7, "-"), (10, "Tt "), (13, ":")];
    if !marks
        .iter()
        .all(|(at, mark)| mark.as_bytes().contains(&bytes[*at]))
    {
        return None;
    }
    let mut at = 16;
    let mut second = 0;
    if bytes.get(at) == Some(&b':') {
        second = two(at + 1)?;
        at += 3;
        if bytes.get(at) == Some(&b'.') {
            let digits = bytes[at + 1..]
                .iter()
                .take_while(|b| b.is_ascii_digit())
                .count();
            at += 1 + (digits > 0).then_some(digits)?;
        }
    }
    let offset = match &bytes[at..] {
        [] => None,
        [b'Z' | b'z'] => Some(0),
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let (hours, minutes) = (number(at + 1, 2)?, number(at + 4, 2)?);
            if hours >= 24 || minutes >= 60 {
                return None;
            }
            let east = hours * 3600 + minutes * 60;
            Some(if *sign == b'-' { -east } else { east })
        }
        _ => return None,
    };
    let unix = UtcDateTime::new(year, month, day, hour, minute, second, 0)
        .ok()?
        .unix_time();
    Some((unix, offset))
}
