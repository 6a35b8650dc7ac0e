//! The Gregorian calendar: from a count of seconds to year, month, day and time of day, and back.

/// A date and a time of day, without a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
    pub year: i64,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    pub hour: u8,
    pub minute: u8,
    pub second: u8,
}

/// Seconds of a day.
pub const DAY: i64 = 86_400;

impl Civil {
    /// What a calendar and a clock show after `seconds` since 1970-01-01 00:00 by themselves.
    pub fn of(seconds: i64) -> Self {
        let (year, month, day) = date(seconds.div_euclid(DAY));
        let second = seconds.rem_euclid(DAY);
        Self {
            year,
            month: small(month),
            day: small(day),
            hour: small(second / 3600),
            minute: small(second / 60 % 60),
            second: small(second % 60),
        }
    }

    /// The way back from [`Civil::of`].
    pub fn seconds(&self) -> i64 {
        let second = i64::from(self.hour) * 3600 + i64::from(self.minute) * 60 + i64::from(self.second);
        days(self.year, self.month.into(), self.day.into()) * DAY + second
    }

    /// 0 is Sunday.
    pub fn weekday(&self) -> u8 {
        small(weekday(days(self.year, self.month.into(), self.day.into())))
    }

    /// Reads a date and a time (`2026-03-29T02:30`, also with seconds, their fraction, and a space for the T) and what
    /// RFC 3339 puts after it: `Z` or an offset, as seconds east of UTC. A leap second counts as the one before.
    pub fn parse(text: &str) -> Option<(Self, Option<i32>)> {
        let bytes = text.as_bytes();
        let number = |at: usize, digits: usize| -> Option<i64> {
            let digits = bytes.get(at..at + digits)?;
            digits.iter().try_fold(0, |n, b| b.is_ascii_digit().then(|| n * 10 + i64::from(b - b'0')))
        };
        let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
        let (hour, minute) = (number(11, 2)?, number(14, 2)?);
        let marks = [(4, "-"), (7, "-"), (10, "Tt "), (13, ":")];
        if !marks.iter().all(|(at, mark)| mark.as_bytes().contains(&bytes[*at])) {
            return None;
        }
        let mut at = 16;
        let mut second = 0;
        if bytes.get(at) == Some(&b':') {
            second = number(at + 1, 2)?;
            at += 3;
            if bytes.get(at) == Some(&b'.') {
                let digits = bytes[at + 1..].iter().take_while(|b| b.is_ascii_digit()).count();
                at += 1 + (digits > 0).then_some(digits)?;
            }
        }
        let offset = match &bytes[at..] {
            [] => None,
            [b'Z' | b'z'] => Some(0),
            [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
                let (hours, minutes) = (number(at + 1, 2)?, number(at + 4, 2)?);
                let east = i32::try_from(hours * 3600 + minutes * 60).ok().filter(|_| hours < 24 && minutes < 60)?;
                Some(if *sign == b'-' { -east } else { east })
            }
            _ => return None,
        };
        if !(1..=12).contains(&month) || !(1..=month_days(year, month)).contains(&day) {
            return None;
        }
        if hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let (month, day, hour, minute, second) =
            (small(month), small(day), small(hour), small(minute), small(second.min(59)));
        Some((Self { year, month, day, hour, minute, second }, offset))
    }
}

/// For numbers that are known to be below 256.
fn small(n: i64) -> u8 {
    u8::try_from(n).unwrap_or(u8::MAX)
}

/// Year, month and day from days since 1970-01-01, after Howard Hinnant's "chrono-compatible low-level date
/// algorithms": years are counted from March, so that a leap day comes last.
fn date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Days since 1970-01-01, by the same source.
pub fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * from_march + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// 0 is Sunday; 1970-01-01 was a Thursday.
pub fn weekday(days: i64) -> i64 {
    (days + 4).rem_euclid(7)
}

pub fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

pub fn month_days(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calendar_runs_both_ways() {
        let mut expected = (1899, 12, 31);
        for day in days(1900, 1, 1)..days(2101, 1, 1) {
            let (year, month, last) = expected;
            expected = match (month, last) {
                (12, 31) => (year + 1, 1, 1),
                _ if last == month_days(year, month) => (year, month + 1, 1),
                _ => (year, month, last + 1),
            };
            assert_eq!(date(day), expected);
            assert_eq!(days(expected.0, expected.1, expected.2), day);
        }
        assert_eq!(Civil::of(951_827_696), Civil::parse("2000-02-29T12:34:56").unwrap().0);
        assert_eq!(Civil::of(-1), Civil::parse("1969-12-31T23:59:59").unwrap().0);
        assert_eq!(Civil::of(-1).seconds(), -1);
        assert_eq!(Civil::parse("2026-11-22T00:00").unwrap().0.weekday(), 0);
    }

    #[test]
    fn times_are_read_as_rfc_3339_writes_them_and_no_other_way() {
        let offset = |text| Civil::parse(text).unwrap().1;
        assert_eq!(offset("2026-11-21T22:44:35.120Z"), Some(0));
        assert_eq!(offset("2026-11-21t22:44:60z"), Some(0));
        assert_eq!(offset("2026-11-21 22:44+05:30"), Some(19_800));
        assert_eq!(offset("2026-11-21T22:44:35-03:00"), Some(-10_800));
        assert_eq!(offset("2026-11-21T22:44"), None);
        for bad in [
            "",
            "2026",
            "2026-11-21",
            "2026-11-21T22",
            "2026-02-29T00:00",
            "2026-00-01T00:00",
            "2026-13-01T00:00",
            "2026-11-31T00:00",
            "2026-11-21T24:00",
            "2026-11-21T22:60",
            "2026-11-21T22:44:61",
            "2026-11-21T22:44:35.",
            "2026-11-21T22:44:3",
            "2026-11-21T22:44X",
            "2026-11-21T22:44+5:30",
            "2026-11-21T22:44+05:60",
            "+026-11-21T22:44",
            "2026-11-21T22:44 ",
            "2026/11/21T22:44",
            "2026-11-21Tää:44",
            "２026-11-21T22:44",
        ] {
            assert_eq!(Civil::parse(bad), None, "{bad}");
        }
    }
}
