//! Hard cases of the calendar.

use super::*;
use std::collections::BTreeMap;

fn zone(name: &str) -> Zone {
    Zone::named(name, &BTreeMap::new()).unwrap()
}

const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";
const LORD_HOWE: &str = "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0";
/// Clocks set back at one past midnight, into the day before, as in Newfoundland until 2011.
const ST_JOHNS: &str = "NST3:30NDT,M3.2.0/0:01,M11.1.0/0:01";

fn unix(text: &str) -> i64 {
    at(text, 0, &Zone::utc()).unwrap() / 1000
}

/// Returns the next times after `after`, in local time.
fn runs(expr: &str, zone: &Zone, after: &str, count: usize) -> Vec<String> {
    let schedule = Schedule::Cron(Cron::parse(expr).unwrap());
    let mut now = at(after, 0, zone).unwrap();
    let next = |now: &mut Millis| {
        *now = schedule.next(*now, zone)?;
        Some(zone.rfc3339(*now / 1000))
    };
    (0..count).map_while(|_| next(&mut now)).collect()
}

/// Expression, zone, local time, and the next two times.
const CASES: &str = "\
30 2 * * * | BERLIN | 2026-03-28T12:00 | 2026-03-29T03:00:00+02:00 2026-03-30T02:30:00+02:00
0,30 2 * * * | BERLIN | 2026-03-28T12:00 | 2026-03-29T03:00:00+02:00 2026-03-30T02:00:00+02:00
0 2,3 * * * | BERLIN | 2026-03-28T12:00 | 2026-03-29T03:00:00+02:00 2026-03-30T02:00:00+02:00
*/30 2 * * * | BERLIN | 2026-03-28T12:00 | 2026-03-29T03:00:00+02:00 2026-03-30T02:00:00+02:00
30 * * * * | BERLIN | 2026-03-29T01:00 | 2026-03-29T01:30:00+01:00 2026-03-29T03:30:00+02:00
30 2 * * * | BERLIN | 2026-10-24T12:00 | 2026-10-25T02:30:00+02:00 2026-10-26T02:30:00+01:00
30 * * * * | BERLIN | 2026-10-25T02:00 | 2026-10-25T02:30:00+02:00 2026-10-25T02:30:00+01:00
*/30 * * * * | BERLIN | 2026-10-25T02:29 | 2026-10-25T02:30:00+02:00 2026-10-25T02:00:00+01:00
0 3 * * * | BERLIN | 2026-10-25T00:00 | 2026-10-25T03:00:00+01:00 2026-10-26T03:00:00+01:00
15 2 * * * | LORD_HOWE | 2026-10-04T00:00 | 2026-10-04T02:30:00+11:00 2026-10-05T02:15:00+11:00
45 1 * * * | LORD_HOWE | 2026-04-05T00:00 | 2026-04-05T01:45:00+11:00 2026-04-06T01:45:00+10:30
30 23 * * * | ST_JOHNS | 2026-10-31T12:00 | 2026-10-31T23:30:00-02:30 2026-11-01T23:30:00-03:30
0 */1 * * * | ST_JOHNS | 2026-10-31T23:30 | 2026-11-01T00:00:00-02:30 2026-11-01T00:00:00-03:30
0 8 * * * | Pacific/Apia | 2011-12-29T12:00 | 2011-12-31T00:00:00+14:00 2011-12-31T08:00:00+14:00
0 0 * * * | America/Sao_Paulo | 2018-11-03T12:00 | 2018-11-04T01:00:00-02:00 2018-11-05T00:00:00-02:00
0 0 29 2 * | UTC0 | 2096-03-01T00:00 | 2104-02-29T00:00:00+00:00 2108-02-29T00:00:00+00:00
0 0 13 * fri | UTC0 | 2026-11-01T00:00 | 2026-11-06T00:00:00+00:00 2026-11-13T00:00:00+00:00
0 0 */13 * fri | UTC0 | 2026-11-01T00:00 | 2026-11-27T00:00:00+00:00 2027-01-01T00:00:00+00:00
0 0 * * 7 | UTC0 | 2026-11-22T00:00 | 2026-11-29T00:00:00+00:00 2026-12-06T00:00:00+00:00
5/20 22-23 1 jan,JUL * | UTC0 | 2026-11-01T00:00 | 2027-01-01T22:05:00+00:00 2027-01-01T22:25:00+00:00
@weekly | UTC0 | 2026-11-22T00:00 | 2026-11-29T00:00:00+00:00 2026-12-06T00:00:00+00:00
0 0 * * fri-sun | UTC0 | 2026-11-20T00:00 | 2026-11-21T00:00:00+00:00 2026-11-22T00:00:00+00:00
59 23 31 12 * | UTC0 | 2026-12-31T23:59 | 2027-12-31T23:59:00+00:00 2028-12-31T23:59:00+00:00";

#[test]
fn hard_cases() {
    for case in CASES.lines() {
        let parts: Vec<&str> = case.split(" | ").collect();
        let [expr, name, after, expected] = parts[..] else {
            panic!("{case}");
        };
        let zone = zone(match name {
            "BERLIN" => BERLIN,
            "LORD_HOWE" => LORD_HOWE,
            "ST_JOHNS" => ST_JOHNS,
            name => name,
        });
        assert_eq!(runs(expr, &zone, after, 2).join(" "), expected, "{case}");
    }
    assert!(runs("30 2 31 2 *", &Zone::utc(), "2026-01-01T00:00", 1).is_empty());
    assert!(runs("0 0 30 2 *", &zone(BERLIN), "2026-01-01T00:00", 1).is_empty());
}

#[test]
fn invalid_cron_expression_error_names_the_field() {
    for (expr, says) in [
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("0 0 7 * * mon", "6 fields"),
        ("60 * * * *", "minute \"60\" is not valid (0-59)"),
        ("* 24 * * *", "hour \"24\" is not valid"),
        ("* * 0 * *", "day \"0\" is not valid (1-31)"),
        ("* * * 13 *", "month \"13\" "),
        ("* * * * 8", "weekday \"8\" "),
        ("*/0 * * * *", "\"*/0\" is not valid"),
        ("5-1 * * * *", "\"5-1\" is not valid"),
        ("1,,2 * * * *", "minute \"\" is not valid"),
        ("+5 * * * *", "\"+5\" is not valid"),
        ("* * * mon *", "\"mon\" is not valid"),
        ("* * L * *", "\"L\" is not valid"),
        ("* * ? * *", "\"?\" is not valid"),
        ("**/2 * * * *", "\"**\" is not valid"),
        ("*/999 * * * *", "\"*/999\" is not valid"),
        ("@reboot", "unknown schedule \"@reboot\""),
        ("@sometimes", "\"@sometimes\""),
    ] {
        let error = Cron::parse(expr).unwrap_err();
        assert!(
            error.message.contains(says) && error.hint.is_some(),
            "{expr}: {error}"
        );
    }
}

#[test]
fn an_interval_stays_where_it_was_anchored() {
    let every = Schedule::Every {
        interval: 1000,
        anchor: 300,
    };
    let next = |after| every.next(after, &Zone::utc()).unwrap();
    assert_eq!(
        [0, 299, 300, 1299, 1300].map(next),
        [300, 300, 1300, 1300, 2300]
    );
    assert_eq!(next(-1), 300);
    let broken = Schedule::Every {
        interval: -5,
        anchor: i64::MIN,
    };
    assert!(broken.next(i64::MAX, &Zone::utc()).is_some());
    assert_eq!(Schedule::At(5).next(4, &Zone::utc()), Some(5));
    assert_eq!(Schedule::At(5).next(5, &Zone::utc()), None);
}

#[test]
fn a_single_time_is_read_in_four_ways() {
    let berlin = zone(BERLIN);
    let read = |text| at(text, EARLIEST, &berlin).unwrap();
    assert_eq!(
        read("2026-11-22T12:00:00Z"),
        unix("2026-11-22T12:00:00Z") * 1000
    );
    assert_eq!(
        read("2026-11-22 12:00"),
        unix("2026-11-22T11:00:00Z") * 1000
    );
    assert_eq!(
        read("2026-03-29T02:30"),
        unix("2026-03-29T01:00:00Z") * 1000
    );
    assert_eq!(
        read("2026-10-25T02:30"),
        unix("2026-10-25T00:30:00Z") * 1000
    );
    assert_eq!(read("+20m"), EARLIEST + 1_200_000);
    let noon = unix("2026-11-22T11:00:00Z") * 1000;
    assert_eq!(
        at("18:00", noon, &berlin).unwrap(),
        unix("2026-11-22T17:00:00Z") * 1000
    );
    assert_eq!(
        at("7:30", noon, &berlin).unwrap(),
        unix("2026-11-23T06:30:00Z") * 1000
    );
    assert_eq!(read("+1d2h3m4s"), EARLIEST + 93_784_000);
    for bad in [
        "",
        "+",
        "+m",
        "+5",
        "+5x",
        "+-5m",
        "+0m",
        "tomorrow",
        "25:00",
        "+9223372036854775807d",
        "+99999999d",
        "+5é",
    ] {
        assert!(at(bad, EARLIEST, &berlin).is_err(), "{bad}");
    }
}
