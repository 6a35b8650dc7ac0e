//! Local time: which offset from UTC holds when, and which instants a time on the wall stands for.
//!
//! The C library is not asked: it keeps its zone in a global, reads the environment when it likes, and the dist build
//! leaves parts of it out. Times are seconds since 1970-01-01 00:00 UTC ("unix"), as the table of a zone has them; the
//! same count read off a wall clock is called "wall" here. Nothing in here asks the clock.

mod civil;
mod rule;
mod tzif;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

pub use civil::Civil;
use rule::Rule;

use crate::error::{Error, Result};

/// A time zone: its changes up to some instant, and the rule by which it goes on.
#[derive(Clone, Debug)]
pub struct Zone {
    name: String,
    /// Seconds east of UTC before the first change.
    first: i32,
    /// From which instant on which offset holds, in order.
    changes: Vec<(i64, i32)>,
    /// What holds after the last change; without it, that one's offset for ever.
    rule: Option<Rule>,
}

/// The instants at which clocks show a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wall {
    /// Never: the clocks leap over it. This is the first instant after the leap.
    Gap(i64),
    Once(i64),
    /// The clocks are set back, and show it a second time.
    Twice(i64, i64),
}

/// Where the C library and Python look for zones.
const PLACES: [&str; 4] = ["/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo"];
/// The largest file of the IANA database has 4 KB.
const MOST_BYTES: usize = 64 << 10;
/// No clock is further from UTC than this, nor changes by more: RFC 8536 asks for less than 26 hours.
const FARTHEST: i32 = 26 * 3600;

impl Zone {
    pub fn utc() -> Self {
        Self { name: "UTC".to_owned(), first: 0, changes: Vec::new(), rule: None }
    }

    /// The zone of this machine: the variable `TZ` (a name, a rule, or the path of a file), else `/etc/localtime`, else
    /// `/etc/TZ`, where small systems keep a rule, else UTC.
    pub fn local(env: &BTreeMap<String, String>) -> Result<Self> {
        if let Some(set) = env.get("TZ") {
            let set = set.strip_prefix(':').unwrap_or(set);
            if set.starts_with('/') {
                return Self::in_file(set, Path::new(set)).unwrap_or_else(|| Err(unknown(set)));
            }
            return if set.is_empty() { Ok(Self::utc()) } else { Self::named(set, env) };
        }
        let path = "/etc/localtime";
        // A link to the zone's file, mostly, which tells its name.
        let link = fs_err::read_link(path).map(|link| link.to_string_lossy().into_owned()).unwrap_or_default();
        let name = link.split_once("zoneinfo/").map_or(path, |(_, name)| name);
        if let Some(zone) = Self::in_file(name, Path::new(path)) {
            return zone;
        }
        match read(Path::new("/etc/TZ")) {
            Some(bytes) => Self::named(String::from_utf8_lossy(&bytes).trim(), env),
            None => Ok(Self::utc()),
        }
    }

    /// The zone of a name from the IANA database (`Europe/Berlin`), or of a rule as POSIX writes it
    /// (`CET-1CEST,M3.5.0,M10.5.0/3`). A name never leads out of the directories of the database; the variable `TZDIR`
    /// names another one.
    pub fn named(name: &str, env: &BTreeMap<String, String>) -> Result<Self> {
        if matches!(name, "UTC" | "GMT" | "Z" | "Etc/UTC") {
            return Ok(Self { name: name.to_owned(), ..Self::utc() });
        }
        let fits =
            |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_+-".contains(&b));
        if name.len() <= 64 && name.split('/').all(fits) {
            let places = env.get("TZDIR").map(String::as_str).into_iter().chain(PLACES);
            for place in places {
                if let Some(zone) = Self::in_file(name, &Path::new(place).join(name)) {
                    return zone;
                }
            }
        }
        let rule = Rule::parse(name).ok_or_else(|| unknown(name))?;
        Ok(Self { name: name.to_owned(), first: 0, changes: Vec::new(), rule: Some(rule) })
    }

    /// The zone in a file, if there is one.
    fn in_file(name: &str, path: &Path) -> Option<Result<Self>> {
        let bytes = read(path)?;
        let broken = || Error::config(format!("the time zone {name}: {} is no zone's file", path.display()));
        Some(tzif::parse(&bytes).map(|zone| Self { name: name.to_owned(), ..zone }).ok_or_else(broken))
    }

    /// `Europe/Berlin`, a rule, or the path of the file it came from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Seconds to add to UTC at this instant.
    pub fn offset_at(&self, unix: i64) -> i32 {
        let passed = self.changes.partition_point(|(at, _)| *at <= unix);
        match &self.rule {
            Some(rule) if passed == self.changes.len() => rule.offset_at(unix),
            _ => passed.checked_sub(1).map_or(self.first, |last| self.changes[last].1),
        }
    }

    /// What clocks and calendars show at this instant.
    pub fn civil(&self, unix: i64) -> Civil {
        Civil::of(unix + i64::from(self.offset_at(unix)))
    }

    /// The next instant from which another offset may hold.
    pub fn change_after(&self, unix: i64) -> Option<i64> {
        let passed = self.changes.partition_point(|(at, _)| *at <= unix);
        let listed = self.changes.get(passed).map(|(at, _)| *at);
        listed.or_else(|| self.rule.as_ref()?.change_after(unix))
    }

    /// The instants at which clocks show `wall`.
    pub fn instants(&self, wall: i64) -> Wall {
        let (mut from, last) = (wall - i64::from(FARTHEST), wall + i64::from(FARTHEST));
        let mut found: Option<i64> = None;
        let mut gap = None;
        loop {
            let offset = i64::from(self.offset_at(from));
            let until = self.change_after(from).filter(|until| *until <= last);
            let unix = wall - offset;
            if unix >= from && until.is_none_or(|until| unix < until) {
                match found {
                    None => found = Some(unix),
                    Some(first) => return Wall::Twice(first, unix),
                }
            }
            let Some(until) = until else { break };
            if wall >= until + offset && wall < until + i64::from(self.offset_at(until)) {
                gap = Some(until);
            }
            from = until;
        }
        // One of the two is there: the periods follow each other without a hole, and so do their walls but for the gaps.
        found.map_or_else(|| Wall::Gap(gap.unwrap_or(wall)), Wall::Once)
    }

    /// For people: `2026-11-22 03:15:00`, as clocks show it.
    pub fn stamp(&self, unix: i64) -> String {
        let t = self.civil(unix);
        format!("{:04}-{:02}-{:02} {:02}:{:02}:{:02}", t.year, t.month, t.day, t.hour, t.minute, t.second)
    }

    /// RFC 3339 with the offset: `2026-11-22T03:15:00+01:00`.
    pub fn rfc3339(&self, unix: i64) -> String {
        let minutes = self.offset_at(unix) / 60;
        let sign = if minutes < 0 { '-' } else { '+' };
        let minutes = minutes.abs();
        format!("{}{sign}{:02}:{:02}", self.stamp(unix).replacen(' ', "T", 1), minutes / 60, minutes % 60)
    }
}

fn unknown(name: &str) -> Error {
    let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    Error::config(format!("there is no time zone \"{name}\" on this machine")).hint(
        "a name such as Europe/Berlin needs the zone database (Debian: apt install tzdata); \
         a rule such as CET-1CEST,M3.5.0,M10.5.0/3 does not",
    )
}

/// The content of a file, if it is one and not too large.
fn read(path: &Path) -> Option<Vec<u8>> {
    // Asked first: to open a pipe is to wait for whoever writes to it.
    if !fs_err::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    fs_err::File::open(path).ok()?.take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn rule(text: &str) -> Zone {
        Zone::local(&env(&[("TZ", text), ("TZDIR", "/nowhere")])).unwrap()
    }

    fn wall(text: &str) -> i64 {
        Civil::parse(text).unwrap().0.seconds()
    }

    #[test]
    fn a_rule_needs_no_database() {
        let zone = rule("CET-1CEST,M3.5.0,M10.5.0/3");
        assert_eq!(zone.rfc3339(wall("2026-01-01T00:00")), "2026-01-01T01:00:00+01:00");
        assert_eq!(zone.rfc3339(wall("2026-03-29T01:00")), "2026-03-29T03:00:00+02:00");
        assert_eq!(zone.rfc3339(wall("2026-03-29T01:00") - 1), "2026-03-29T01:59:59+01:00");
        assert_eq!(rule("<-0330>3:30").rfc3339(0), "1969-12-31T20:30:00-03:30");
        assert_eq!(rule("").rfc3339(0), "1970-01-01T00:00:00+00:00");
        assert_eq!(rule("UTC").name(), "UTC");
    }

    #[test]
    fn a_time_on_the_wall_is_there_once_twice_or_never() {
        let zone = rule("CET-1CEST,M3.5.0,M10.5.0/3");
        let leap = wall("2026-03-29T01:00");
        assert_eq!(zone.instants(wall("2026-03-29T01:59:59")), Wall::Once(leap - 1));
        assert_eq!(zone.instants(wall("2026-03-29T02:00")), Wall::Gap(leap));
        assert_eq!(zone.instants(wall("2026-03-29T02:59:59")), Wall::Gap(leap));
        assert_eq!(zone.instants(wall("2026-03-29T03:00")), Wall::Once(leap));
        let back = wall("2026-10-25T01:00");
        assert_eq!(zone.instants(wall("2026-10-25T02:00")), Wall::Twice(back - 3600, back));
        assert_eq!(zone.instants(wall("2026-10-25T02:59:59")), Wall::Twice(back - 1, back + 3599));
        assert_eq!(zone.instants(wall("2026-10-25T03:00")), Wall::Once(back + 3600));
    }

    /// RFC 8536, section 3.3.1, gives this for a summer that never ends.
    #[test]
    fn a_summer_of_a_whole_year_has_no_changes_that_show() {
        let zone = rule("XXX3EDT4,0/0,J365/23");
        for day in 0..800 {
            let unix = wall("2026-01-01T00:00") + day * 43_200 + 3 * 3600;
            assert_eq!(zone.offset_at(unix), -4 * 3600, "{}", zone.rfc3339(unix));
            assert_eq!(zone.instants(unix - 4 * 3600), Wall::Once(unix));
        }
    }

    #[test]
    fn what_is_no_zone_is_named() {
        let names =
            ["Europe/Nowhere", "../../etc/passwd", "..", "/", "Europe/", "Summer", "CET-1CEST,M13.1.0,M3.1.0", "x\n"];
        for name in names {
            let error = Zone::named(name, &env(&[])).unwrap_err();
            assert_eq!(error.kind, Kind::Config);
            assert!(error.message.contains(name.trim()) && error.hint.is_some(), "{error}");
        }
        for path in ["/etc/passwd", "/dev/zero", "/etc", "/not/there"] {
            // The variable may name any file; a job's zone may not.
            assert!(Zone::local(&env(&[("TZ", path)])).is_err());
            assert!(Zone::named(path, &env(&[])).unwrap_err().message.starts_with("there is no time zone"));
        }
    }
}
