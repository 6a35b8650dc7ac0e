//! The rule by which a zone goes on for ever, as POSIX writes it in `TZ` and RFC 8536 at the end of a zone's file:
//! `CET-1CEST,M3.5.0,M10.5.0/3`.

use super::civil::{Civil, DAY, days, is_leap, month_days, weekday};

/// One offset all year round, or two with a change to each every year.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Seconds east of UTC.
    standard: i32,
    summer: Option<Summer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Summer {
    offset: i32,
    start: Change,
    end: Change,
}

/// A time of day on a day of every year.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    day: Day,
    /// Seconds after midnight by the clock that is still in force; negative and above a day, too (RFC 8536).
    time: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Day {
    /// `Jn`: 1 to 365, where February 29 has no number.
    Julian(i64),
    /// `n`: 0 to 365.
    Ordinal(i64),
    /// `Mm.w.d`: the weekday `d` (0 is Sunday) of week `w` of a month; week 5 is the last.
    Weekday { month: i64, week: i64, day: i64 },
}

/// What holds for a zone with a summer time and no dates for it: those of the United States.
const USUAL: &str = ",M3.2.0,M11.1.0";

impl Rule {
    pub fn parse(text: &str) -> Option<Self> {
        let mut left = Left(text.as_bytes());
        left.name()?;
        let standard = -left.time(24)?;
        if left.0.is_empty() {
            return Some(Self { standard, summer: None });
        }
        left.name()?;
        let offset = if matches!(left.0.first(), None | Some(b',')) { standard + 3600 } else { -left.time(24)? };
        if left.0.is_empty() {
            left = Left(USUAL.as_bytes());
        }
        let (start, end) = (left.change()?, left.change()?);
        left.0.is_empty().then_some(Self { standard, summer: Some(Summer { offset, start, end }) })
    }

    pub fn offset_at(&self, unix: i64) -> i32 {
        let changes = self.changes(unix);
        changes.iter().rev().find(|(at, _)| *at <= unix).map_or(self.standard, |(_, offset)| *offset)
    }

    /// The next instant with a change.
    pub fn change_after(&self, unix: i64) -> Option<i64> {
        self.changes(unix).iter().map(|(at, _)| *at).find(|at| *at > unix)
    }

    /// The changes of the year and of those beside it, in order. A summer that starts when the one before it ends goes on.
    fn changes(&self, unix: i64) -> Vec<(i64, i32)> {
        let Some(summer) = &self.summer else { return Vec::new() };
        let year = Civil::of(unix).year;
        let mut changes: Vec<(i64, i32)> = Vec::with_capacity(6);
        for year in year - 1..=year + 1 {
            let end = (summer.end.in_year(year) - i64::from(summer.offset), self.standard);
            let start = (summer.start.in_year(year) - i64::from(self.standard), summer.offset);
            // Six are sorted by inserting them. A start comes after an end at the same instant, and so wins.
            let before = changes.partition_point(|(at, _)| *at < end.0);
            changes.insert(before, end);
            let before = changes.partition_point(|(at, _)| *at <= start.0);
            changes.insert(before, start);
        }
        changes
    }
}

impl Change {
    /// Seconds since 1970-01-01 00:00 by the wall.
    fn in_year(self, year: i64) -> i64 {
        let day = match self.day {
            Day::Julian(n) => days(year, 1, n) + i64::from(is_leap(year) && n >= 60),
            Day::Ordinal(n) => days(year, 1, 1) + n,
            Day::Weekday { month, week, day } => {
                let first = days(year, month, 1);
                let of_month = (day - weekday(first)).rem_euclid(7) + 7 * (week - 1);
                first + if of_month < month_days(year, month) { of_month } else { of_month - 7 }
            }
        };
        day * DAY + i64::from(self.time)
    }
}

/// What of the text has not been read yet.
struct Left<'a>(&'a [u8]);

impl Left<'_> {
    fn skip(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[byte])?;
        Some(())
    }

    /// Letters, or anything in angle brackets. Nothing here shows it.
    fn name(&mut self) -> Option<()> {
        let quoted = self.skip(b'<').is_some();
        let fits = |b: &&u8| b.is_ascii_alphabetic() || quoted && (b.is_ascii_digit() || matches!(b, b'+' | b'-'));
        let length = self.0.iter().take_while(fits).count();
        self.0 = &self.0[length..];
        if length < 3 {
            return None;
        }
        if quoted { self.skip(b'>') } else { Some(()) }
    }

    fn number(&mut self, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
        let length = self.0.iter().take_while(|b| b.is_ascii_digit()).count();
        let (digits, rest) = self.0.split_at_checked(length).filter(|_| (1..=3).contains(&length))?;
        self.0 = rest;
        let n = digits.iter().fold(0, |n, b| n * 10 + i64::from(b - b'0'));
        range.contains(&n).then_some(n)
    }

    /// `[+-]hh[:mm[:ss]]` in seconds.
    fn time(&mut self, hours: i64) -> Option<i32> {
        let negative = self.skip(b'-').is_some();
        if !negative {
            self.skip(b'+');
        }
        let mut seconds = self.number(0..=hours)? * 3600;
        for unit in [60, 1] {
            if self.skip(b':').is_none() {
                break;
            }
            seconds += self.number(0..=59)? * unit;
        }
        i32::try_from(if negative { -seconds } else { seconds }).ok()
    }

    /// `,date[/time]`
    fn change(&mut self) -> Option<Change> {
        self.skip(b',')?;
        let day = if self.skip(b'J').is_some() {
            Day::Julian(self.number(1..=365)?)
        } else if self.skip(b'M').is_some() {
            let month = self.number(1..=12)?;
            self.skip(b'.')?;
            let week = self.number(1..=5)?;
            self.skip(b'.')?;
            Day::Weekday { month, week, day: self.number(0..=6)? }
        } else {
            Day::Ordinal(self.number(0..=365)?)
        };
        let time = if self.skip(b'/').is_some() { self.time(167)? } else { 2 * 3600 };
        Some(Change { day, time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_rule_is_none() {
        for good in
            ["UTC0", "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0", "EST5EDT", "EST5EDT4,J60/-1,365/167:59:59", "CET-1"]
        {
            assert!(Rule::parse(good).is_some(), "{good}");
        }
        for bad in [
            "",
            "UTC",
            "U0",
            "<UTC0",
            "EST5EDT,",
            "EST5EDT,M3.2.0",
            "EST5EDT,M0.2.0,M11.1.0",
            "EST5EDT,M3.6.0,M11.1.0",
            "EST5EDT,M3.2.7,M11.1.0",
            "EST5EDT,J0,J5",
            "EST5EDT,1,366",
            "EST25",
            "EST5:60",
            "EST5EDT,1/168,2",
            "EST5EDT,M3.2.0,M11.1.0,",
            "EST5EDT,M3.2.0,M11.1.0 ",
            "EST99999999999999999999",
            "ESTé5",
        ] {
            assert_eq!(Rule::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn days_are_counted_in_each_of_the_three_ways() {
        let day = |text: &str, year| {
            let at = Left(text.as_bytes()).change().unwrap().in_year(year);
            let Civil { month, day, hour, .. } = Civil::of(at);
            (month, day, hour)
        };
        assert_eq!(day(",J59", 2024), (2, 28, 2));
        assert_eq!(day(",J60", 2024), (3, 1, 2));
        assert_eq!(day(",J60", 2025), (3, 1, 2));
        assert_eq!(day(",59", 2024), (2, 29, 2));
        assert_eq!(day(",59/0", 2025), (3, 1, 0));
        assert_eq!(day(",M10.5.0/-1", 2026), (10, 24, 23));
        assert_eq!(day(",M2.5.0", 2026), (2, 22, 2));
        assert_eq!(day(",M2.5.4", 2024), (2, 29, 2));
        assert_eq!(day(",M11.1.0/26", 2026), (11, 2, 2));
    }
}
