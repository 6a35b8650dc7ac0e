//! Schedules of jobs: a time, an interval, or a cron expression. The code is pure, with the time as an argument.
//!
//! If clocks are set forward, a skipped time counts as the first instant after it. If they are set back, a repeated time counts
//! only the first time. Expressions whose minutes or hours begin with `*` follow elapsed time and ignore both, as in Vixie
//! cron.

use std::time::{SystemTime, UNIX_EPOCH};

use tz::UtcDateTime;

use crate::error::{Error, Result};
use crate::text::counted;
use crate::timezone::{self, Zone};

/// Milliseconds since 1970-01-01 00:00 UTC.
pub(super) type Millis = i64;

/// 2025-01-01, before this program was written; a clock before that is not set. Fixed, so that builds are reproducible.
pub(crate) const EARLIEST: Millis = 1_735_689_600_000;

/// Schedule of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Schedule {
    /// Runs once.
    At(Millis),
    /// Runs whenever a whole number of intervals has passed since `anchor`, so that a restart does not move it.
    Every {
        interval: Millis,
        anchor: Millis,
    },
    Cron(Cron),
}

/// Converts a time; times before 1970 become 1970.
pub(crate) fn millis(time: SystemTime) -> Millis {
    let passed = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis::try_from(passed.as_millis()).unwrap_or(Millis::MAX)
}

impl Schedule {
    /// Whether the schedule follows elapsed time instead of times of day or dates.
    pub(super) fn is_elapsing(&self) -> bool {
        match self {
            Self::At(_) => false,
            Self::Every { .. } => true,
            Self::Cron(cron) => cron.elapsing,
        }
    }

    /// Returns the first time after `after`, if it is within the next nine years. `zone` is the zone of an expression's times
    /// of day.
    pub(super) fn next(&self, after: Millis, zone: &Zone) -> Option<Millis> {
        // Limits invalid times in a file to the calendar's range.
        let after = after.clamp(-FARTHEST, FARTHEST);
        match self {
            Self::At(at) => Some(*at).filter(|at| *at > after),
            Self::Every { interval, anchor } => {
                let interval = (*interval).clamp(1, FARTHEST);
                let anchor = (*anchor).clamp(-FARTHEST, FARTHEST);
                Some(after - (after - anchor).rem_euclid(interval) + interval)
            }
            Self::Cron(cron) => cron
                .next(after.div_euclid(1000), zone)
                .map(|unix| unix * 1000),
        }
    }
}

/// The year 9999.
const FARTHEST: Millis = 253_402_300_799_000;

/// Fields of a cron expression as bit sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cron {
    minutes: u64,
    hours: u64,
    /// Begins at bit 1.
    days: u64,
    /// Begins at bit 1.
    months: u64,
    /// Bit 0 is Sunday.
    weekdays: u64,
    /// The expression restricts both days of the month and weekdays, so either must match; otherwise both must match.
    either_day: bool,
    /// Follows elapsed time.
    elapsing: bool,
    /// The hours begin with `*`, so times that the clocks skip are not made up for.
    any_hour: bool,
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS: &str = "five fields: minute (0-59), hour (0-23), day (1-31), month (1-12), weekday (0-7), such as \"30 7 * * mon-fri\"";
const DAY: i64 = 86_400;
/// Maximum distance between two matching days: eight years, between two February 29ths.
const MOST_DAYS: i64 = 9 * 366;

impl Cron {
    /// Parses an expression: five fields with lists, ranges, steps and names, or a word that begins with `@`.
    pub(super) fn parse(expr: &str) -> Result<Self> {
        let expr = expr.trim();
        let plain = match expr.to_ascii_lowercase().as_str() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            word if word.starts_with('@') => {
                return Err(
                    Error::usage(format!("unknown schedule \"{}\"", shorten(word)))
                        .hint("use @hourly, @daily, @weekly, @monthly or @yearly"),
                );
            }
            _ => expr,
        };
        let fields: Vec<&str> = plain.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            let what = format!(
                "the expression \"{}\" has {}, not 5",
                shorten(expr),
                counted(fields.len(), "field")
            );
            return Err(Error::usage(what).hint(FIELDS));
        };
        let weekdays_set = field("weekday", weekdays, (0, 7), &WEEKDAYS)?;
        Ok(Self {
            minutes: field("minute", minutes, (0, 59), &[])?,
            hours: field("hour", hours, (0, 23), &[])?,
            days: field("day", days, (1, 31), &[])?,
            months: field("month", months, (1, 12), &MONTHS)?,
            // 7 is also Sunday.
            weekdays: (weekdays_set | weekdays_set >> 7) & 0x7f,
            either_day: !days.starts_with('*') && !weekdays.starts_with('*'),
            elapsing: minutes.starts_with('*') || hours.starts_with('*'),
            any_hour: hours.starts_with('*'),
        })
    }

    /// Returns the next match, searching per day and per clock change. Between these, wall time and instants advance together.
    fn next(&self, after: i64, zone: &Zone) -> Option<i64> {
        let end = after + MOST_DAYS * DAY;
        // Clock changes are shorter than two days, so any wall time that is shown again was first shown after this.
        let mut from = after - 2 * DAY;
        // Clocks have shown or skipped every wall time before this one.
        let mut passed = from + i64::from(zone.offset_at(from));
        while from < end {
            let offset = i64::from(zone.offset_at(from));
            let until = zone.change_between(from, from + DAY).unwrap_or(from + DAY);
            let first = from + offset;
            if from > after && !self.any_hour && self.first(passed, first).is_some() {
                return Some(from);
            }
            let repeated = if self.elapsing { first } else { passed };
            let start = first.max(repeated);
            if let Some(wall) = self.first(start.max(after + 1 + offset), until + offset) {
                return Some(wall - offset);
            }
            passed = passed.max(until + offset);
            from = until;
        }
        None
    }

    /// Returns the first matching wall time from `start` on and before `end`.
    fn first(&self, start: i64, end: i64) -> Option<i64> {
        let mut at = start + (-start).rem_euclid(60);
        while at < end {
            let t = timezone::calendar(at);
            let midnight = at - at.rem_euclid(DAY);
            if !has(self.months, t.month()) || !self.fits_day(&t) {
                at = midnight + DAY;
            } else if !has(self.hours, t.hour()) {
                at = midnight + (i64::from(t.hour()) + 1) * 3600;
            } else if !has(self.minutes, t.minute()) {
                at += 60;
            } else {
                return Some(at);
            }
        }
        None
    }

    fn fits_day(&self, t: &UtcDateTime) -> bool {
        let day = has(self.days, t.month_day());
        let weekday = has(self.weekdays, t.week_day());
        (day && weekday) || (self.either_day && (day || weekday))
    }
}

fn has(set: u64, bit: u8) -> bool {
    set >> bit & 1 == 1
}

fn shorten(text: &str) -> String {
    crate::text::to_single_line(text, 40)
}

/// Parses one field: a list of `*`, `n`, `n-m`, each with an optional `/step`. Names are numbered from `low` on.
fn field(name: &str, text: &str, (low, high): (u8, u8), names: &[&str]) -> Result<u64> {
    let wrong = |part: &str| {
        Error::usage(format!(
            "{name} \"{}\" is not valid ({low}-{high})",
            shorten(part)
        ))
        .hint(FIELDS)
    };
    let number = |word: &str| -> Result<u8> {
        let read = if word.bytes().all(|b| b.is_ascii_digit()) {
            word.parse().ok()
        } else {
            let mut names = names.iter().zip(low..);
            let named = names.find(|(name, _)| name.eq_ignore_ascii_case(word));
            named.map(|(_, n)| n)
        };
        read.filter(|n| (low..=high).contains(n))
            .ok_or_else(|| wrong(word))
    };
    let mut set = 0;
    for part in text.split(',') {
        let (range, step) = part
            .split_once('/')
            .map_or((part, None), |(range, step)| (range, Some(step)));
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (low, high),
            Some((first, last)) => {
                let first = number(first)?;
                match number(last)? {
                    // "fri-sun" ends with Sunday as day 7.
                    0 if high == 7 && first > 0 => (first, 7),
                    last => (first, last),
                }
            }
            None if step.is_some() => (number(range)?, high),
            None => (number(range)?, number(range)?),
        };
        let step = step
            .map_or(Some(1), |step| step.parse::<u8>().ok())
            .filter(|step| *step > 0);
        let (Some(step), true) = (step, first <= last) else {
            return Err(wrong(part));
        };
        for n in (first..=last).step_by(step.into()) {
            set |= 1 << n;
        }
    }
    Ok(set)
}

/// Parses a single time: RFC 3339, local time in `zone` (`2026-03-29T02:30`), the next occurrence of a time of day (`18:00`),
/// or a time from now (`+20m`, `+1h30m`; s, m, h, d).
pub(super) fn at(text: &str, now: Millis, zone: &Zone) -> Result<Millis> {
    let text = text.trim();
    let read = match text.strip_prefix('+') {
        Some(span) => span_millis(span).and_then(|span| now.checked_add(span)),
        None => timezone::parse_time(text)
            .map(|(wall, offset)| {
                1000 * offset.map_or_else(
                    || zone.first_instant(wall),
                    |offset| wall - i64::from(offset),
                )
            })
            .or_else(|| next_time_of_day(text, now, zone)),
    };
    read.filter(|at| (0..FARTHEST).contains(at)).ok_or_else(|| {
        Error::usage(format!("cannot read \"{}\" as a time", shorten(text))).hint(
            "write 18:00, 2026-03-29T18:00, the same with +02:00, or +20m, +2h or +1d from now",
        )
    })
}

/// Returns when clocks in `zone` next show a time such as `18:00`.
fn next_time_of_day(text: &str, now: Millis, zone: &Zone) -> Option<Millis> {
    let today = zone.stamp(now / 1000);
    let (wall, _) = timezone::parse_time(&format!("{}T{text:0>5}", today.get(..10)?))?;
    let times = [wall, wall + DAY].map(|wall| 1000 * zone.first_instant(wall));
    times.into_iter().find(|at| *at > now)
}

/// Parses an interval to seconds: `300`, `5m` or `1h30m`.
pub(crate) fn interval(text: &str) -> Result<u64> {
    let seconds = text
        .parse()
        .ok()
        .or_else(|| u64::try_from(span_millis(text)? / 1000).ok());
    seconds.filter(|seconds| *seconds > 0).ok_or_else(|| {
        Error::usage(format!("cannot read \"{}\" as an interval", shorten(text)))
            .hint("write -e 300 (seconds), -e 5m or -e 1h30m")
    })
}

/// Parses `1h30m` to milliseconds.
fn span_millis(text: &str) -> Option<Millis> {
    let mut total: i64 = 0;
    let mut left = text;
    while !left.is_empty() {
        let digits = left.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = left.split_at(digits);
        let unit = match rest.chars().next()? {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => DAY,
            _ => return None,
        };
        total = total.checked_add(number.parse::<i64>().ok()?.checked_mul(unit * 1000)?)?;
        left = &rest[1..];
    }
    (total > 0).then_some(total)
}

#[cfg(test)]
mod tests;
