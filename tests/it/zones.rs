//! Local time against an implementation that we did not write: Python's `zoneinfo`, on the same database.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use bantam::zone::{Wall, Zone};
use serde_json::Value;

/// For each zone, from 1990 to 2100: the offset at the start, each change with the offset that holds from then on, and
/// around each change what walls show, every ten minutes (and a day around it where clocks leap over a day).
const PYTHON: &str = r"
import json, sys
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

def offset(zone, unix):
    return int(datetime.fromtimestamp(unix, zone).utcoffset().total_seconds())

def instants(zone, wall):
    naive = datetime(1970, 1, 1) + timedelta(seconds=wall)
    found = set()
    for fold in (0, 1):
        aware = naive.replace(tzinfo=zone, fold=fold)
        back = aware.astimezone(timezone.utc).astimezone(zone)
        if back.replace(tzinfo=None) == naive:
            found.add(int(aware.timestamp()))
    return sorted(found)

start, end = 631152000, 4133980800
for name in sys.argv[1:]:
    zone = ZoneInfo(name)
    changes, walls = [], []
    at, step = start, 86400
    while at < end:
        if offset(zone, at) != offset(zone, at + step):
            low, high = at, at + step
            while high - low > 1:
                middle = (low + high) // 2
                if offset(zone, middle) == offset(zone, low):
                    low = middle
                else:
                    high = middle
            before, after = offset(zone, low), offset(zone, high)
            changes.append([high, after])
            reach = abs(after - before) + 3600
            for wall in range(high + min(before, after) - reach, high + max(before, after) + reach, 600):
                walls.append([wall, instants(zone, wall)])
        at += step
    print(json.dumps([name, offset(zone, start), changes, walls]))
";

const ZONES: [&str; 14] = [
    "Europe/Berlin",
    "Europe/Dublin", // standard time is the summer's
    "America/New_York",
    "America/St_Johns",
    "America/Sao_Paulo", // gave summer time up
    "America/Santiago",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Asia/Shanghai",
    "Australia/Lord_Howe", // half an hour
    "Africa/Casablanca",   // stops for Ramadan, by the table to 2087
    "Pacific/Apia",        // has no 2011-12-30
    "Antarctica/Troll",    // two hours
    "America/Nuuk",        // changes on a Saturday evening
];

fn named(name: &str) -> Zone {
    Zone::named(name, &BTreeMap::new()).unwrap()
}

/// Every change between the first instant of 1990 and the last of 2100, as Python finds them.
fn changes(zone: &Zone) -> Vec<(i64, i64)> {
    let mut found = Vec::new();
    let mut at = 631_152_000;
    while at < 4_133_980_800 {
        if zone.offset_at(at) != zone.offset_at(at + 86_400) {
            let (mut low, mut high) = (at, at + 86_400);
            while high - low > 1 {
                let middle = (low + high) / 2;
                if zone.offset_at(middle) == zone.offset_at(low) { low = middle } else { high = middle }
            }
            found.push((high, i64::from(zone.offset_at(high))));
        }
        at += 86_400;
    }
    found
}

#[test]
fn offsets_and_walls_are_those_of_another_implementation() {
    let out = Command::new("python3").arg("-c").arg(PYTHON).args(ZONES).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut compared = 0;
    for line in String::from_utf8(out.stdout).unwrap().lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let name = row[0].as_str().unwrap();
        let zone = named(name);
        assert_eq!(i64::from(zone.offset_at(631_152_000)), row[1].as_i64().unwrap(), "{name}");
        let numbers = |list: &Value| list.as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect::<Vec<_>>();
        let theirs: Vec<(i64, i64)> =
            row[2].as_array().unwrap().iter().map(numbers).map(|change| (change[0], change[1])).collect();
        assert_eq!(changes(&zone), theirs, "{name}");
        for pair in row[3].as_array().unwrap() {
            let (wall, theirs) = (pair[0].as_i64().unwrap(), numbers(&pair[1]));
            let ours = match zone.instants(wall) {
                Wall::Gap(after) => {
                    // By the clock of before, the wall would be reached after the leap; by the one of after, before it.
                    let [before, then] = [after - 1, after].map(|unix| wall - i64::from(zone.offset_at(unix)));
                    assert!(then < after && after <= before, "{name} {wall}");
                    vec![]
                }
                Wall::Once(unix) => vec![unix],
                Wall::Twice(first, second) => vec![first, second],
            };
            assert_eq!(ours, theirs, "{name} {wall}");
            compared += 1;
        }
    }
    assert!(compared > 10_000, "{compared}");
}

/// What the database says up to 2037 in tables, a rule says as well.
#[test]
fn rules_agree_with_tables() {
    let places = [
        ("Europe/Berlin", "CET-1CEST,M3.5.0,M10.5.0/3", 1997),
        ("America/New_York", "EST5EDT", 2007),
        ("Australia/Lord_Howe", "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0", 2009),
        ("America/Nuuk", "<-02>2<-01>,M3.5.0/-1,M10.5.0/0", 2024),
    ];
    for (name, rule, since) in places {
        let start = (since - 1970) * 31_556_952;
        let [table, rule] = [name, rule].map(|name| changes(&named(name)));
        let of_rule: Vec<_> = rule.into_iter().filter(|(at, _)| *at > start).collect();
        let of_table: Vec<_> = table.into_iter().filter(|(at, _)| *at > start).collect();
        assert!(of_rule.len() > 100);
        assert_eq!(of_rule, of_table, "{name}");
    }
}

#[test]
fn every_zone_of_the_database_can_be_read() {
    let list = fs::read_to_string("/usr/share/zoneinfo/tzdata.zi").unwrap();
    let mut read = 0;
    for line in list.lines() {
        let mut words = line.split(' ');
        let name = match words.next() {
            Some("Z") => words.next(),
            Some("L") => words.nth(1),
            _ => continue,
        };
        let name = name.unwrap();
        assert!(named(name).offset_at(1_795_301_075).abs() <= 14 * 3600, "{name}");
        read += 1;
    }
    assert!(read > 400, "{read}");
}
