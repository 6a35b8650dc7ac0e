//! Local time: which offset from UTC holds when, and at which instant clocks show a time.
//!
//! `tz-rs` reads the zone database's files and the rules of POSIX; where to look for them is decided here. The C library is
//! not asked: it keeps its zone in a global and reads the environment when it likes. Times are seconds since 1970-01-01
//! 00:00 UTC ("unix"); the same count read off a wall clock is called "wall". Nothing in here asks the clock.

mod civil;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

pub(crate) use civil::{calendar, parse_time, stamp};
use tz::TimeZone;

use crate::error::{Error, Result};

/// A time zone.
#[derive(Clone, Debug)]
pub(crate) struct Zone {
    name: String,
    rules: TimeZone,
}

/// Where the C library and Python look for zones.
const DIRECTORIES: [&str; 4] = [
    "/usr/share/zoneinfo",
    "/usr/lib/zoneinfo",
    "/usr/share/lib/zoneinfo",
    "/etc/zoneinfo",
];
/// The largest file of the IANA database has 4 KB.
const MAX_BYTES: usize = 64 << 10;
/// No clock is further from UTC than this: RFC 8536 asks for less than 26 hours.
const MAX_OFFSET: i32 = 26 * 3600;

impl Zone {
    pub(crate) fn utc() -> Self {
        Self {
            name: "UTC".to_owned(),
            rules: TimeZone::utc(),
        }
    }

    /// The zone of this machine: the variable `TZ` (a name, a rule, or the path of a file), else `/etc/localtime`, else
    /// `/etc/TZ`, where small systems keep a rule, else UTC.
    pub(crate) fn local(env: &BTreeMap<String, String>) -> Result<Self> {
        if let Some(set) = env.get("TZ") {
            let set = set.strip_prefix(':').unwrap_or(set);
            if set.starts_with('/') {
                return Self::in_file(set, Path::new(set)).unwrap_or_else(|| Err(unknown(set)));
            }
            return if set.is_empty() {
                Ok(Self::utc())
            } else {
                Self::named(set, env)
            };
        }
        let path = "/etc/localtime";
        // A link to the zone's file, mostly, which tells its name.
        let link = fs_err::read_link(path)
            .map(|link| link.to_string_lossy().into_owned())
            .unwrap_or_default();
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
    pub(crate) fn named(name: &str, env: &BTreeMap<String, String>) -> Result<Self> {
        let zone = |rules| Self {
            name: name.to_owned(),
            rules,
        };
        if matches!(name, "UTC" | "GMT" | "Z" | "Etc/UTC") {
            return Ok(zone(TimeZone::utc()));
        }
        let fits = |part: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"_+-".contains(&b))
        };
        if name.len() <= 64 && name.split('/').all(fits) {
            for directory in env
                .get("TZDIR")
                .map(String::as_str)
                .into_iter()
                .chain(DIRECTORIES)
            {
                if let Some(zone) = Self::in_file(name, &Path::new(directory).join(name)) {
                    return zone;
                }
            }
        }
        rule(name).map(zone).ok_or_else(|| unknown(name))
    }

    /// The zone in a file, if there is one.
    fn in_file(name: &str, path: &Path) -> Option<Result<Self>> {
        let bytes = read(path)?;
        let broken = || {
            Error::config(format!(
                "the time zone {name}: {} is not a time zone file",
                path.display()
            ))
        };
        Some(
            parse(&bytes)
                .map(|rules| Self {
                    name: name.to_owned(),
                    rules,
                })
                .ok_or_else(broken),
        )
    }

    /// `Europe/Berlin`, a rule, or the path of the file it came from.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Seconds to add to UTC at this instant.
    pub(crate) fn offset_at(&self, unix: i64) -> i32 {
        let found = self.rules.find_local_time_type(unix).ok();
        // Without a rule, the last change holds for ever.
        let last = || {
            let rules = self.rules.as_ref();
            let index = rules
                .transitions()
                .last()
                .map_or(0, tz::timezone::Transition::local_time_type_index);
            rules.local_time_types().get(index)
        };
        found.or_else(last).map_or(0, tz::LocalTimeType::ut_offset)
    }

    /// When clocks change between two instants, a day or so apart.
    pub(crate) fn change_between(&self, from: i64, until: i64) -> Option<i64> {
        let offset = self.offset_at(from);
        let (mut same, mut changed) = (from, until);
        if self.offset_at(until) == offset {
            return None;
        }
        while changed - same > 1 {
            let middle = same + (changed - same) / 2;
            if self.offset_at(middle) == offset {
                same = middle;
            } else {
                changed = middle;
            }
        }
        Some(changed)
    }

    /// The first instant at which clocks show `wall`; where they skip it, the instant of that change.
    pub(crate) fn first_instant(&self, wall: i64) -> i64 {
        let (before, after) = (wall - i64::from(MAX_OFFSET), wall + i64::from(MAX_OFFSET));
        let shown = [before, after].map(|near| wall - i64::from(self.offset_at(near)));
        let shown = shown
            .into_iter()
            .filter(|unix| unix + i64::from(self.offset_at(*unix)) == wall)
            .min();
        shown
            .or_else(|| self.change_between(before, after))
            .unwrap_or(wall)
    }

    /// For people: `2026-11-22 03:15:00`, as clocks show it.
    pub(crate) fn stamp(&self, unix: i64) -> String {
        stamp(unix + i64::from(self.offset_at(unix)))
    }

    /// For models: `2026-11-22 03:15:00 +01:00, Sunday, Europe/Berlin`.
    pub(crate) fn clock(&self, unix: i64) -> String {
        const WEEKDAYS: [&str; 7] = [
            "Sunday",
            "Monday",
            "Tuesday",
            "Wednesday",
            "Thursday",
            "Friday",
            "Saturday",
        ];
        let (time, weekday) = (
            self.rfc3339(unix),
            calendar(unix + i64::from(self.offset_at(unix))).week_day(),
        );
        let (stamp, offset) = time.split_at("2026-11-22T03:15:00".len());
        format!(
            "{} {offset}, {}, {}",
            stamp.replacen('T', " ", 1),
            WEEKDAYS[usize::from(weekday)],
            self.name
        )
    }

    /// RFC 3339 with the offset: `2026-11-22T03:15:00+01:00`.
    pub(crate) fn rfc3339(&self, unix: i64) -> String {
        let minutes = self.offset_at(unix) / 60;
        let sign = if minutes < 0 { '-' } else { '+' };
        let minutes = minutes.abs();
        format!(
            "{}{sign}{:02}:{:02}",
            self.stamp(unix).replacen(' ', "T", 1),
            minutes / 60,
            minutes % 60
        )
    }
}

/// Reads a file of the database (RFC 8536).
fn parse(bytes: &[u8]) -> Option<TimeZone> {
    let rules = TimeZone::from_tz_data(bytes)
        .ok()
        .filter(|_| bytes.len() <= MAX_BYTES)?;
    let is_near = rules
        .as_ref()
        .local_time_types()
        .iter()
        .all(|local| local.ut_offset().abs() < MAX_OFFSET);
    is_near.then_some(rules)
}

/// Reads a rule. tz-rs takes the times of day that RFC 8536 allows beyond POSIX (`M3.5.0/-1`) only from a file of version 3,
/// so this wraps the rule in one that holds nothing else.
fn rule(text: &str) -> Option<TimeZone> {
    let text = Some(text).filter(|text| text.is_ascii() && !text.contains('\n'))?;
    let counts = [0, 0, 0, 0, 1, 4_u32].map(u32::to_be_bytes).concat();
    let table = [&b"TZif3"[..], &[0; 15], &counts, &[0; 6], b"UTC\0"].concat();
    parse(&[&table[..], &table, b"\n", text.as_bytes(), b"\n"].concat())
        .filter(|rules| rules.as_ref().extra_rule().is_some())
}

fn unknown(name: &str) -> Error {
    let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    Error::config(format!("no time zone named \"{name}\" on this machine")).hint(
        "a name such as Europe/Berlin needs the zone database (Debian: apt install tzdata); \
         a rule such as CET-1CEST,M3.5.0,M10.5.0/3 does not",
    )
}

/// The content of a file, if it is one and not too large.
fn read(path: &Path) -> Option<Vec<u8>> {
    // Checked first: opening a named pipe would block.
    let metadata = fs_err::metadata(path).ok()?;
    if !metadata.is_file() {
        return None;
    }
    let mut bytes = Vec::with_capacity(MAX_BYTES.min(usize::try_from(metadata.len()).ok()?) + 1);
    fs_err::File::open(path)
        .ok()?
        .take(MAX_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests;
