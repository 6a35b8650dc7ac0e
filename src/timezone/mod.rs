//! Local time: offsets from UTC, and the instants at which clocks show a time.
//!
//! `tz-rs` parses the zone database's files and the rules of POSIX; this module locates them. The C library is not used,
//! because its zone is global and it reads the environment at unpredictable times. Times are seconds since 1970-01-01 00:00 UTC
//! ("unix"), or such a count read off a wall clock ("wall"). This module never reads the current time.

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

/// Directories in which the C library and Python look for zones.
const DIRECTORIES: [&str; 4] = [
    "/usr/share/zoneinfo",
    "/usr/lib/zoneinfo",
    "/usr/share/lib/zoneinfo",
    "/etc/zoneinfo",
];
/// Maximum size of a zone file, in bytes. The largest file of the IANA database has 4 KB.
const MAX_BYTES: usize = 64 << 10;
/// Maximum distance from UTC, in seconds: RFC 8536 requires less than 26 hours.
const MAX_OFFSET: i32 = 26 * 3600;

impl Zone {
    pub(crate) fn utc() -> Self {
        Self {
            name: "UTC".to_owned(),
            rules: TimeZone::utc(),
        }
    }

    /// Returns the zone of this machine: the variable `TZ` (a name, a rule, or the path of a file), else `/etc/localtime`, else
    /// `/etc/TZ`, which contains a rule on small systems, else UTC.
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
        // Usually a link to the zone's file, whose path contains the name.
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

    /// Returns the zone for a name of the IANA database (`Europe/Berlin`), or for a POSIX rule (`CET-1CEST,M3.5.0,M10.5.0/3`).
    /// A name cannot refer to files outside the directories of the database; the variable `TZDIR` adds a directory.
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

    /// Returns the zone in a file, if the file exists.
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

    /// Returns the name: `Europe/Berlin`, a rule, or the path of a file.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the offset at this instant, in seconds to add to UTC.
    pub(crate) fn offset_at(&self, unix: i64) -> i32 {
        let found = self.rules.find_local_time_type(unix).ok();
        // Without a rule, the last change remains effective.
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

    /// Returns the instant of a clock change between two instants about a day apart.
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

    /// Returns the first instant at which clocks show `wall`; if clocks skip it, the instant of the change.
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

    /// Formats local time for people: `2026-11-22 03:15:00`.
    pub(crate) fn stamp(&self, unix: i64) -> String {
        stamp(unix + i64::from(self.offset_at(unix)))
    }

    /// Formats local time for models: `2026-11-22 03:15:00 +01:00, Sunday, Europe/Berlin`.
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

    /// Formats local time as RFC 3339 with the offset: `2026-11-22T03:15:00+01:00`.
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

/// Parses a file of the database (RFC 8536).
fn parse(bytes: &[u8]) -> Option<TimeZone> {
    if bytes.len() > MAX_BYTES {
        return None;
    }
    let rules = TimeZone::from_tz_data(bytes).ok()?;
    let is_near = rules
        .as_ref()
        .local_time_types()
        .iter()
        .all(|local| local.ut_offset().abs() < MAX_OFFSET);
    is_near.then_some(rules)
}

/// Parses a rule. tz-rs only accepts the times of day that RFC 8536 allows in addition to POSIX (`M3.5.0/-1`) in a file of
/// version 3, so the rule is wrapped in an otherwise empty file.
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
        "use a name such as Europe/Berlin; without the zone database, run `apt install tzdata` (Debian)",
    )
}

/// Returns the contents of a regular file, up to one byte more than the maximum.
fn read(path: &Path) -> Option<Vec<u8>> {
    // Checked first, because opening a named pipe would block.
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
