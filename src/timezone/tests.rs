//! Rules, files, and local time, compared with an independent implementation: `zdump`, with the same database.

use std::process::Command;

use super::*;
use crate::error::Kind;

fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn ruled(text: &str) -> Zone {
    Zone::local(&env(&[("TZ", text), ("TZDIR", "/nowhere")])).unwrap()
}

fn wall(text: &str) -> i64 {
    parse_time(text).unwrap().0
}

#[test]
fn a_rule_needs_no_database() {
    let zone = ruled("CET-1CEST,M3.5.0,M10.5.0/3");
    assert_eq!(
        zone.rfc3339(wall("2026-01-01T00:00")),
        "2026-01-01T01:00:00+01:00"
    );
    assert_eq!(
        zone.rfc3339(wall("2026-03-29T01:00")),
        "2026-03-29T03:00:00+02:00"
    );
    assert_eq!(
        zone.rfc3339(wall("2026-03-29T01:00") - 1),
        "2026-03-29T01:59:59+01:00"
    );
    assert_eq!(ruled("<-0330>3:30").rfc3339(0), "1969-12-31T20:30:00-03:30");
    assert_eq!(ruled("").rfc3339(0), "1970-01-01T00:00:00+00:00");
    assert_eq!(ruled("UTC").name(), "UTC");
}

#[test]
fn invalid_time_zone_error_names_it() {
    let names = [
        "Europe/Nowhere",
        "../../etc/passwd",
        "..",
        "/",
        "Europe/",
        "Summer",
        "CET-1CEST,M13.1.0,M3.1.0",
        "x\n",
        "EST25",
        "EST5:60",
        "EST5EDT,M3.2.0",
        "EST5EDT,M3.2.0,M11.1.0,",
        "EST99999999999999999999",
        "ESTé5",
    ];
    for name in names {
        let error = Zone::named(name, &env(&[("TZDIR", "/nowhere")])).unwrap_err();
        assert_eq!(error.kind, Kind::Config);
        assert!(
            error.message.contains(name.trim()) && error.hint.is_some(),
            "{error}"
        );
    }
    for path in ["/etc/passwd", "/dev/zero", "/etc", "/not/there"] {
        // The variable may refer to any file; a job's zone may not.
        assert!(Zone::local(&env(&[("TZ", path)])).is_err());
        assert!(
            Zone::named(path, &env(&[]))
                .unwrap_err()
                .message
                .starts_with("no time zone named")
        );
    }
}

#[test]
fn the_calendar_is_the_gregorian_one() {
    assert_eq!(wall("2000-02-29T12:34:56"), 951_827_696);
    assert_eq!(wall("1969-12-31T23:59:59"), -1);
    assert_eq!(
        (stamp(951_827_696), calendar(951_827_696).week_day()),
        ("2000-02-29 12:34:56".to_owned(), 2)
    );
    assert_eq!(calendar(wall("2026-11-22T00:00")).week_day(), 0);
    assert_eq!(calendar(i64::MAX).year(), 1970);
}

#[test]
fn only_rfc_3339_times_are_parsed() {
    let offset = |text| parse_time(text).unwrap().1;
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
        assert_eq!(parse_time(bad), None, "{bad}");
    }
}

/// Builds a table with times of `width` bytes: type 0 is UTC-1, type 1 UTC+2 from 1000 s on.
fn table(width: usize, version: u8) -> Vec<u8> {
    let mut bytes = [&b"TZif"[..], &[version], &[0; 15]].concat();
    for count in [0_u32, 0, 0, 1, 2, 4] {
        bytes.extend(count.to_be_bytes());
    }
    bytes.extend(&1000_i64.to_be_bytes()[8 - width..]);
    bytes.push(1);
    for offset in [-3600_i32, 7200] {
        bytes.extend(offset.to_be_bytes());
        bytes.extend([0, 0]);
    }
    bytes.extend(b"abc\0");
    bytes
}

fn file(footer: &str) -> Vec<u8> {
    [
        table(4, b'2'),
        table(8, b'2'),
        format!("\n{footer}\n").into_bytes(),
    ]
    .concat()
}

fn zone(rules: TimeZone) -> Zone {
    Zone {
        name: String::new(),
        rules,
    }
}

#[test]
fn a_file_without_a_rule_stays_at_its_last_offset() {
    for bytes in [table(4, 0), file(""), file("abc-2")] {
        let zone = zone(parse(&bytes).unwrap());
        let offsets = [i64::MIN, 999, 1000, 1 << 33].map(|unix| zone.offset_at(unix));
        assert_eq!(offsets, [-3600, -3600, 7200, 7200]);
    }
}

#[test]
fn no_damage_does_more_than_make_a_file_unreadable() {
    let whole = file("abc-2");
    let harmless = |bytes: &[u8]| {
        let Some(zone) = parse(bytes).map(zone) else {
            return false;
        };
        for unix in [i64::MIN, 0, 1000, 1_700_000_000, i64::MAX] {
            assert!(zone.offset_at(unix).abs() < MAX_OFFSET);
        }
        let unix = zone.first_instant(1_700_000_000);
        assert_eq!(unix + i64::from(zone.offset_at(unix)), 1_700_000_000);
        true
    };
    for length in 0..whole.len() {
        harmless(&whole[..length]);
    }
    let mut readable = 0;
    for at in 0..whole.len() {
        for bits in [0x01, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= bits;
            readable += usize::from(harmless(&bytes));
        }
    }
    assert!(readable > 0);
    assert!(!harmless(&vec![0; MAX_BYTES + 1]));
    assert!(!harmless(&[&b"TZif2"[..], &[0xff; 200]].concat()));
}

const ZONES: [&str; 14] = [
    "Europe/Berlin",
    "Europe/Dublin", // summer is standard time
    "America/New_York",
    "America/St_Johns",
    "America/Sao_Paulo", // abolished summer time
    "America/Santiago",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Asia/Shanghai",
    "Australia/Lord_Howe", // half an hour
    "Africa/Casablanca",   // suspends summer time for Ramadan, in the table to 2087
    "Pacific/Apia",        // skipped 2011-12-30
    "Antarctica/Troll",    // two hours
    "America/Nuuk",        // changes on a Saturday evening
];

fn named(name: &str) -> Zone {
    Zone::named(name, &BTreeMap::new()).unwrap()
}

/// Returns every change from the start of 1990 to the end of 2100.
fn changes(zone: &Zone) -> Vec<(i64, i64)> {
    let days = (631_152_000..4_133_980_800).step_by(86_400);
    let changed = days.filter_map(|day| zone.change_between(day, day + 86_400));
    changed
        .map(|at| (at, i64::from(zone.offset_at(at))))
        .collect()
}

/// A clock change in the output of `zdump`.
struct Change {
    /// First instant of the new offset.
    at: i64,
    before: i64,
    after: i64,
}

impl Change {
    /// Parses the two lines of a change: the last instant before it, and the first one after it.
    fn read(lines: &[&str]) -> Self {
        let offset = |line: &str| -> i64 {
            let (_, offset) = line.split_once("gmtoff=").unwrap();
            offset.parse().unwrap()
        };
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        let [month, day, time, year] = [words[2], words[3], words[4], words[5]];
        let month = "JanFebMarAprMayJunJulAugSepOctNovDec".find(month).unwrap() / 3 + 1;
        Self {
            at: wall(&format!("{year}-{month:02}-{day:0>2}T{time}")),
            before: offset(lines[0]),
            after: offset(lines[1]),
        }
    }

    /// Returns the first instant at which clocks show this time.
    fn first_instant(&self, wall: i64) -> Option<i64> {
        let before = Some(wall - self.before).filter(|at| *at < self.at);
        before.or(Some(wall - self.after).filter(|at| *at >= self.at))
    }
}

/// Returns the changes of a zone from 1990 to 2100.
fn zdumped(name: &str) -> Vec<Change> {
    let out = Command::new("zdump")
        .args(["-v", "-c", "1990,2101", name])
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("gmtoff="))
        .collect();
    let changes = lines.chunks(2).map(Change::read);
    changes
        .filter(|change| change.before != change.after)
        .collect()
}

#[test]
fn offsets_and_walls_are_those_of_another_implementation() {
    let mut compared = 0;
    for name in ZONES {
        let zone = named(name);
        let theirs = zdumped(name);
        let pairs: Vec<(i64, i64)> = theirs
            .iter()
            .map(|change| (change.at, change.after))
            .collect();
        assert_eq!(changes(&zone), pairs, "{name}");
        for change in theirs {
            // Every ten minutes around the change, or a day around it if clocks skip a day.
            let reach = (change.after - change.before).abs() + 3600;
            let [low, high] = [
                change.before.min(change.after),
                change.before.max(change.after),
            ];
            for wall in (change.at + low - reach..change.at + high + reach).step_by(600) {
                let ours = zone.first_instant(wall);
                if let Some(first) = change.first_instant(wall) {
                    assert_eq!(ours, first, "{name} {wall}");
                } else {
                    // With the offset before the change, the time would be after the change; with the offset after it, before.
                    let [before, then] =
                        [ours - 1, ours].map(|unix| wall - i64::from(zone.offset_at(unix)));
                    assert!(then < ours && ours <= before, "{name} {wall}");
                }
                compared += 1;
            }
        }
    }
    assert!(compared > 10_000, "{compared}");
}

#[test]
fn every_zone_of_the_database_can_be_read() {
    let list = fs_err::read_to_string("/usr/share/zoneinfo/tzdata.zi").unwrap();
    let mut read = 0;
    for line in list.lines() {
        let mut words = line.split(' ');
        let name = match words.next() {
            Some("Z") => words.next(),
            Some("L") => words.nth(1),
            _ => continue,
        };
        let name = name.unwrap();
        assert!(
            named(name).offset_at(1_795_301_075).abs() <= 14 * 3600,
            "{name}"
        );
        read += 1;
    }
    assert!(read > 400, "{read}");
}
