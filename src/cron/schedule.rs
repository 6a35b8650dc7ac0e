//! When a job runs: at a time, at intervals, or by a cron expression. Pure: the time is an argument.
//!
//! Where clocks are set forward, a time that they skip counts as the first instant after it. Where they are set back, a time
//! that they show twice counts the first time only. Expressions whose minutes or hours begin with `*` go by elapsed time and
//! run through both, as in Vixie cron.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::zone::{Civil, Zone};

/// Milliseconds since 1970-01-01 00:00 UTC.
pub type Millis = i64;

/// When a job runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Once.
    At(Millis),
    /// Whenever a whole number of intervals has passed since `anchor`, so that a restart does not move it.
    Every {
        interval: Millis,
        anchor: Millis,
    },
    Cron(Cron),
}

/// A time as schedules count it. One before 1970 is 1970.
pub fn millis(time: SystemTime) -> Millis {
    Millis::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(Millis::MAX)
}

impl Schedule {
    /// It goes by what elapses, and not by a time of day or a date.
    pub fn is_elapsing(&self) -> bool {
        match self {
            Self::At(_) => false,
            Self::Every { .. } => true,
            Self::Cron(cron) => cron.elapsing,
        }
    }

    /// The first time after `after`, if there is one within the next nine years. `zone` is what an expression's times of
    /// day are meant in.
    pub fn next(&self, after: Millis, zone: &Zone) -> Option<Millis> {
        // Within the calendar's range, whatever a file says.
        let after = after.clamp(-FARTHEST, FARTHEST);
        match self {
            Self::At(at) => Some(*at).filter(|at| *at > after),
            Self::Every { interval, anchor } => {
                let interval = (*interval).clamp(1, FARTHEST);
                let anchor = (*anchor).clamp(-FARTHEST, FARTHEST);
                Some(after - (after - anchor).rem_euclid(interval) + interval)
            }
            Self::Cron(cron) => cron.next(after.div_euclid(1000), zone).map(|unix| unix * 1000),
        }
    }
}

/// The year 9999.
const FARTHEST: Millis = 253_402_300_799_000;

/// The five fields of an expression, each a set of bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    minutes: u64,
    hours: u64,
    /// From bit 1.
    days: u64,
    /// From bit 1.
    months: u64,
    /// 0 is Sunday.
    weekdays: u64,
    /// The days of the month and those of the week both say something: either will do. Else both have to fit.
    either_day: bool,
    /// It goes by what elapses.
    elapsing: bool,
    /// The hours begin with `*`: what the clocks leap over is not made up for.
    any_hour: bool,
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS: &str =
    "five fields: minute (0-59), hour (0-23), day (1-31), month (1-12), weekday (0-7), such as \"30 7 * * mon-fri\"";
const DAY: i64 = 86_400;
/// February 29 is at most eight years from the next.
const MOST_DAYS: i64 = 9 * 366;

impl Cron {
    /// Reads an expression: five fields with lists, ranges, steps and names, or one of the words that begin with `@`.
    pub fn parse(expr: &str) -> Result<Self> {
        let expr = expr.trim();
        let plain = match expr.to_ascii_lowercase().as_str() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            "@reboot" => {
                return Err(Error::usage("@reboot is not a time: jobs run by the clock alone")
                    .hint("start bantam agent from a system service or the system's own crontab for that"));
            }
            word if word.starts_with('@') => {
                return Err(Error::usage(format!("unknown schedule \"{}\"", shown(word)))
                    .hint("@hourly, @daily, @weekly, @monthly or @yearly"));
            }
            _ => expr,
        };
        let fields: Vec<&str> = plain.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            let what = format!("the expression \"{}\" has {} fields", shown(expr), fields.len());
            return Err(Error::usage(what).hint(FIELDS));
        };
        let weekdays_set = field("weekday", weekdays, (0, 7), &WEEKDAYS)?;
        Ok(Self {
            minutes: field("minute", minutes, (0, 59), &[])?,
            hours: field("hour", hours, (0, 23), &[])?,
            days: field("day", days, (1, 31), &[])?,
            months: field("month", months, (1, 12), &MONTHS)?,
            // 7 is Sunday, too.
            weekdays: (weekdays_set | weekdays_set >> 7) & 0x7f,
            either_day: !days.starts_with('*') && !weekdays.starts_with('*'),
            elapsing: minutes.starts_with('*') || hours.starts_with('*'),
            any_hour: hours.starts_with('*'),
        })
    }

    /// Goes from day to day, and to each change of the clocks: between them, walls and instants run side by side.
    fn next(&self, after: i64, zone: &Zone) -> Option<i64> {
        let end = after + MOST_DAYS * DAY;
        // No change is of two days, so whatever the clocks show a second time now, they have shown since then.
        let mut from = after - 2 * DAY;
        // Every wall before this one has been shown, or leapt over.
        let mut passed = from + i64::from(zone.offset_at(from));
        while from < end {
            let offset = i64::from(zone.offset_at(from));
            let until = zone.change_between(from, from + DAY).unwrap_or(from + DAY);
            let first = from + offset;
            if from > after && !self.any_hour && self.first(passed, first).is_some() {
                return Some(from);
            }
            let start = if self.elapsing { first } else { first.max(passed) };
            if let Some(wall) = self.first(start.max(after + 1 + offset), until + offset) {
                return Some(wall - offset);
            }
            passed = passed.max(until + offset);
            from = until;
        }
        None
    }

    /// The first wall that fits, from `start` on and before `end`.
    fn first(&self, start: i64, end: i64) -> Option<i64> {
        let mut at = start + (-start).rem_euclid(60);
        while at < end {
            let t = Civil::of(at);
            let midnight = at - at.rem_euclid(DAY);
            if !has(self.months, t.month) || !self.fits_day(&t) {
                at = midnight + DAY;
            } else if !has(self.hours, t.hour) {
                at = midnight + (i64::from(t.hour) + 1) * 3600;
            } else if !has(self.minutes, t.minute) {
                at += 60;
            } else {
                return Some(at);
            }
        }
        None
    }

    fn fits_day(&self, t: &Civil) -> bool {
        let (day, weekday) = (has(self.days, t.day), has(self.weekdays, t.weekday));
        if self.either_day { day || weekday } else { day && weekday }
    }
}

fn has(set: u64, bit: u8) -> bool {
    set >> bit & 1 == 1
}

fn shown(text: &str) -> String {
    crate::text::one_line(text, 40)
}

/// One field: a list of `*`, `n`, `n-m`, each with `/step` or without. Names stand for numbers from `low` on.
fn field(name: &str, text: &str, (low, high): (u8, u8), names: &[&str]) -> Result<u64> {
    let wrong = |part: &str| {
        let is_number = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let what = if is_number {
            format!("{name} {} is out of range", shown(part))
        } else {
            format!("{name} \"{}\" is not valid", shown(part))
        };
        Error::usage(format!("{what} ({low}-{high})")).hint(FIELDS)
    };
    let number = |word: &str| -> Result<u8> {
        let name = names.iter().zip(low..).find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, n)| n);
        let digits = word.bytes().all(|b| b.is_ascii_digit());
        let read = name.or_else(|| word.parse().ok().filter(|_| digits));
        read.filter(|n| (low..=high).contains(n)).ok_or_else(|| wrong(word))
    };
    let mut set = 0;
    for part in text.split(',') {
        let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (low, high),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                // "fri-sun": Sunday ends the week as well.
                (first, if last == 0 && high == 7 && first > 0 { 7 } else { last })
            }
            None => (number(range)?, if step.is_some() { high } else { number(range)? }),
        };
        let step = step.map_or(Some(1), |step| step.parse::<u8>().ok()).filter(|step| *step > 0);
        let (Some(step), true) = (step, first <= last) else { return Err(wrong(part)) };
        for n in (first..=last).step_by(step.into()) {
            set |= 1 << n;
        }
    }
    Ok(set)
}

/// Reads a single time: RFC 3339, a time of day and a date as clocks show it in `zone` (`2026-03-29T02:30`), or a time
/// from now (`+20m`, `+1h30m`; s, m, h, d).
pub fn at(text: &str, now: Millis, zone: &Zone) -> Result<Millis> {
    let text = text.trim();
    let read = match text.strip_prefix('+') {
        Some(span) => span_millis(span).and_then(|span| now.checked_add(span)),
        None => Civil::parse(text).map(|(wall, offset)| {
            1000 * offset.map_or_else(|| zone.first_instant(wall), |offset| wall - i64::from(offset))
        }),
    };
    read.filter(|at| (0..FARTHEST).contains(at)).ok_or_else(|| {
        Error::usage(format!("cannot read \"{}\" as a time", shown(text)))
            .hint("for example 2026-03-29T18:00, 2026-03-29T18:00:00+02:00, or from now +20m, +2h, +1d")
    })
}

/// `1h30m` in milliseconds.
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
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn zone(name: &str) -> Zone {
        Zone::named(name, &BTreeMap::new()).unwrap()
    }

    const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";
    const LORD_HOWE: &str = "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0";
    /// Set back at one past midnight, into the day before, as Newfoundland did until 2011.
    const ST_JOHNS: &str = "NST3:30NDT,M3.2.0/0:01,M11.1.0/0:01";

    fn unix(text: &str) -> i64 {
        at(text, 0, &Zone::utc()).unwrap() / 1000
    }

    /// The next times after `after`, as clocks show them.
    fn runs(expr: &str, zone: &Zone, after: &str, count: usize) -> Vec<String> {
        let schedule = Schedule::Cron(Cron::parse(expr).unwrap());
        let mut now = at(after, 0, zone).unwrap();
        let next = |now: &mut Millis| {
            *now = schedule.next(*now, zone)?;
            Some(zone.rfc3339(*now / 1000))
        };
        (0..count).map_while(|_| next(&mut now)).collect()
    }

    #[test]
    fn hard_cases() {
        for (expr, zone_name, after, expected) in [
            ("30 2 * * *", BERLIN, "2026-03-28T12:00", "2026-03-29T03:00:00+02:00 2026-03-30T02:30:00+02:00"),
            ("0,30 2 * * *", BERLIN, "2026-03-28T12:00", "2026-03-29T03:00:00+02:00 2026-03-30T02:00:00+02:00"),
            ("0 2,3 * * *", BERLIN, "2026-03-28T12:00", "2026-03-29T03:00:00+02:00 2026-03-30T02:00:00+02:00"),
            ("*/30 2 * * *", BERLIN, "2026-03-28T12:00", "2026-03-29T03:00:00+02:00 2026-03-30T02:00:00+02:00"),
            ("30 * * * *", BERLIN, "2026-03-29T01:00", "2026-03-29T01:30:00+01:00 2026-03-29T03:30:00+02:00"),
            ("30 2 * * *", BERLIN, "2026-10-24T12:00", "2026-10-25T02:30:00+02:00 2026-10-26T02:30:00+01:00"),
            ("30 * * * *", BERLIN, "2026-10-25T02:00", "2026-10-25T02:30:00+02:00 2026-10-25T02:30:00+01:00"),
            ("*/30 * * * *", BERLIN, "2026-10-25T02:29", "2026-10-25T02:30:00+02:00 2026-10-25T02:00:00+01:00"),
            ("0 3 * * *", BERLIN, "2026-10-25T00:00", "2026-10-25T03:00:00+01:00 2026-10-26T03:00:00+01:00"),
            ("15 2 * * *", LORD_HOWE, "2026-10-04T00:00", "2026-10-04T02:30:00+11:00 2026-10-05T02:15:00+11:00"),
            ("45 1 * * *", LORD_HOWE, "2026-04-05T00:00", "2026-04-05T01:45:00+11:00 2026-04-06T01:45:00+10:30"),
            ("30 23 * * *", ST_JOHNS, "2026-10-31T12:00", "2026-10-31T23:30:00-02:30 2026-11-01T23:30:00-03:30"),
            ("0 */1 * * *", ST_JOHNS, "2026-10-31T23:30", "2026-11-01T00:00:00-02:30 2026-11-01T00:00:00-03:30"),
            ("0 8 * * *", "Pacific/Apia", "2011-12-29T12:00", "2011-12-31T00:00:00+14:00 2011-12-31T08:00:00+14:00"),
            (
                "0 0 * * *",
                "America/Sao_Paulo",
                "2018-11-03T12:00",
                "2018-11-04T01:00:00-02:00 2018-11-05T00:00:00-02:00",
            ),
            ("0 0 29 2 *", "UTC0", "2096-03-01T00:00", "2104-02-29T00:00:00+00:00 2108-02-29T00:00:00+00:00"),
            ("0 0 13 * fri", "UTC0", "2026-11-01T00:00", "2026-11-06T00:00:00+00:00 2026-11-13T00:00:00+00:00"),
            ("0 0 */13 * fri", "UTC0", "2026-11-01T00:00", "2026-11-27T00:00:00+00:00 2027-01-01T00:00:00+00:00"),
            ("0 0 * * 7", "UTC0", "2026-11-22T00:00", "2026-11-29T00:00:00+00:00 2026-12-06T00:00:00+00:00"),
            (
                "5/20 22-23 1 jan,JUL *",
                "UTC0",
                "2026-11-01T00:00",
                "2027-01-01T22:05:00+00:00 2027-01-01T22:25:00+00:00",
            ),
            ("@weekly", "UTC0", "2026-11-22T00:00", "2026-11-29T00:00:00+00:00 2026-12-06T00:00:00+00:00"),
            ("0 0 * * fri-sun", "UTC0", "2026-11-20T00:00", "2026-11-21T00:00:00+00:00 2026-11-22T00:00:00+00:00"),
            ("59 23 31 12 *", "UTC0", "2026-12-31T23:59", "2027-12-31T23:59:00+00:00 2028-12-31T23:59:00+00:00"),
        ] {
            assert_eq!(runs(expr, &zone(zone_name), after, 2).join(" "), expected, "{expr} {zone_name}");
        }
        assert!(runs("30 2 31 2 *", &Zone::utc(), "2026-01-01T00:00", 1).is_empty());
        assert!(runs("0 0 30 2 *", &zone(BERLIN), "2026-01-01T00:00", 1).is_empty());
    }

    #[test]
    fn what_is_no_expression_is_named() {
        for (expr, says) in [
            ("", "0 fields"),
            ("* * * *", "4 fields"),
            ("0 0 7 * * mon", "6 fields"),
            ("60 * * * *", "minute 60 is out of range (0-59)"),
            ("* 24 * * *", "hour 24 is out of range"),
            ("* * 0 * *", "day 0 is out of range (1-31)"),
            ("* * * 13 *", "month 13 "),
            ("* * * * 8", "weekday 8 "),
            ("*/0 * * * *", "\"*/0\" is not valid"),
            ("5-1 * * * *", "\"5-1\" is not valid"),
            ("1,,2 * * * *", "minute \"\" is not valid"),
            ("+5 * * * *", "\"+5\" is not valid"),
            ("* * * mon *", "\"mon\" is not valid"),
            ("* * L * *", "\"L\" is not valid"),
            ("* * ? * *", "\"?\" is not valid"),
            ("**/2 * * * *", "\"**\" is not valid"),
            ("*/999 * * * *", "\"*/999\" is not valid"),
            ("@reboot", "@reboot is not a time"),
            ("@sometimes", "\"@sometimes\""),
        ] {
            let error = Cron::parse(expr).unwrap_err();
            assert!(error.message.contains(says) && error.hint.is_some(), "{expr}: {error}");
        }
    }

    #[test]
    fn an_interval_stays_where_it_was_anchored() {
        let every = Schedule::Every { interval: 1000, anchor: 300 };
        let next = |after| every.next(after, &Zone::utc()).unwrap();
        assert_eq!([0, 299, 300, 1299, 1300].map(next), [300, 300, 1300, 1300, 2300]);
        assert_eq!(next(-1), 300);
        let broken = Schedule::Every { interval: -5, anchor: i64::MIN };
        assert!(broken.next(i64::MAX, &Zone::utc()).is_some());
        assert_eq!(Schedule::At(5).next(4, &Zone::utc()), Some(5));
        assert_eq!(Schedule::At(5).next(5, &Zone::utc()), None);
    }

    #[test]
    fn a_single_time_is_read_in_three_ways() {
        let berlin = zone(BERLIN);
        let read = |text| at(text, 1_000_000, &berlin).unwrap();
        assert_eq!(read("2026-11-22T12:00:00Z"), unix("2026-11-22T12:00:00Z") * 1000);
        assert_eq!(read("2026-11-22 12:00"), unix("2026-11-22T11:00:00Z") * 1000);
        assert_eq!(read("2026-03-29T02:30"), unix("2026-03-29T01:00:00Z") * 1000);
        assert_eq!(read("2026-10-25T02:30"), unix("2026-10-25T00:30:00Z") * 1000);
        assert_eq!(read("+20m"), 2_200_000);
        assert_eq!(read("+1d2h3m4s"), 1_000_000 + 93_784_000);
        for bad in [
            "",
            "+",
            "+m",
            "+5",
            "+5x",
            "+-5m",
            "+0m",
            "tomorrow",
            "12:00",
            "+9223372036854775807d",
            "+99999999d",
            "+5é",
        ] {
            assert!(at(bad, 0, &berlin).is_err(), "{bad}");
        }
    }

    /// A second implementation, as simple as can be: every minute is looked at, in order.
    mod walk {
        use super::*;

        /// Which minutes, hours, days, months and weekdays fit.
        struct Slow {
            fields: [[bool; 60]; 5],
            stars: [bool; 5],
        }

        impl Slow {
            /// Only digits, `*`, lists, ranges and steps.
            fn new(expr: &str) -> Self {
                let mut slow = Self { fields: [[false; 60]; 5], stars: [false; 5] };
                let bounds = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
                for (at, (field, (low, high))) in expr.split(' ').zip(bounds).enumerate() {
                    slow.stars[at] = field.starts_with('*');
                    for part in field.split(',') {
                        let mut halves = part.split('/');
                        let range = halves.next().unwrap();
                        let step: usize = halves.next().map_or(1, |n| n.parse().unwrap());
                        let ends: Vec<usize> = range.split('-').filter_map(|n| n.parse().ok()).collect();
                        let (first, last) = if range == "*" { (low, high) } else { (ends[0], ends[ends.len() - 1]) };
                        for n in first..=last {
                            slow.fields[at][n] |= (n - first) % step == 0;
                        }
                    }
                }
                slow
            }

            fn fits(&self, t: &Civil) -> bool {
                let has = |field: usize, n: u8| self.fields[field][usize::from(n)];
                if !has(0, t.minute) || !has(1, t.hour) || !has(3, t.month) {
                    return false;
                }
                let (day, weekday) = (has(2, t.day), has(4, t.weekday));
                if self.stars[2] || self.stars[4] { day && weekday } else { day || weekday }
            }
        }

        #[test]
        fn every_run_of_two_years_is_found_by_walking_through_them_minute_by_minute() {
            let expressions = [
                "30 2 * * *",
                "*/7 * * * *",
                "0 */3 * * *",
                "15,45 0-2 * * *",
                "*/20 2 * * *",
                "1 0 1 * *",
                "59 23 * * 6",
                "0 12 1-7 * 1",
                "10 1 */9 3-11/2 *",
                "0 0 29 2 *",
                "5 23 * 10,11 0",
                "30 1-3 * 3,4 *",
            ];
            for name in [BERLIN, "America/New_York", LORD_HOWE, ST_JOHNS, "Africa/Casablanca"] {
                let zone = zone(name);
                let (start, end) = (unix("2027-06-01T00:00Z"), unix("2029-06-01T00:00Z"));
                let slow = expressions.map(Slow::new);
                let mut expected = vec![Vec::new(); expressions.len()];
                let wall = |unix: i64| unix + i64::from(zone.offset_at(unix));
                let mut shown = wall(start);
                let mut offset = 0;
                for unix in (start + 60..end).step_by(60) {
                    // No zone of these changes within a quarter of an hour but on its first or second minute.
                    if unix % 900 <= 60 {
                        offset = i64::from(zone.offset_at(unix));
                    }
                    let wall = unix + offset;
                    let t = Civil::of(wall);
                    for (slow, found) in slow.iter().zip(&mut expected) {
                        let elapsing = slow.stars[0] || slow.stars[1];
                        let leapt = |wall: i64| !slow.stars[1] && slow.fits(&Civil::of(wall));
                        let again = wall <= shown && !elapsing;
                        if slow.fits(&t) && !again || (shown + 60..wall).step_by(60).any(leapt) {
                            found.push(unix);
                        }
                    }
                    shown = shown.max(wall);
                }
                for (expr, expected) in expressions.iter().zip(expected) {
                    let cron = Cron::parse(expr).unwrap();
                    let mut found = Vec::new();
                    let mut at = start;
                    while let Some(next) = cron.next(at, &zone).filter(|next| *next < end) {
                        found.push(next);
                        at = next;
                    }
                    assert!(!found.is_empty(), "{name} {expr}");
                    let differs = found.iter().zip(&expected).find(|(a, b)| a != b);
                    let differs = differs.map(|(a, b)| (zone.rfc3339(*a), zone.rfc3339(*b)));
                    assert_eq!((differs, found.len()), (None, expected.len()), "{name} {expr}");
                }
            }
        }
    }
}
