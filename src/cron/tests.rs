//! Due times of jobs, clocks that jump, and runs that a crash may add twice.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::schedule::Millis;
use super::*;
use crate::bus::JobRun;
use crate::error::Error;
use crate::test_dir::TestDir;
use crate::timezone::Zone;

const MINUTE: Millis = 60_000;
const HOUR: Millis = 60 * MINUTE;
const DAY: Millis = 24 * HOUR;
/// 2027-01-15 08:00 UTC.
const START: Millis = 1_800_000_000_000;
const EIGHT: Millis = 100 * DAY + 8 * HOUR;

/// A job with this schedule, which runs next and ran last at these times.
fn job(schedule: &Value, next: Option<Millis>, last: Option<Millis>) -> Job {
    let state = json!({ "nextRunAtMs": next, "lastRunAtMs": last });
    Job(json!({ "id": "a", "schedule": schedule, "createdAtMs": 0, "state": state }))
}

#[test]
fn a_job_is_due_once_whatever_its_clock_does() {
    let daily = json!({ "kind": "cron", "expr": "0 8 * * *" });
    let often = json!({ "kind": "cron", "expr": "*/10 * * * *" });
    let every = json!({ "kind": "every", "everyMs": 10 * MINUTE });
    let once = json!({ "kind": "at", "atMs": EIGHT });
    let (at, day1, day5) = (Some(EIGHT), EIGHT + DAY, EIGHT + 5 * DAY);
    let next = EIGHT + 10 * MINUTE;
    let (hours, days) = (2 * HOUR, 30 * DAY);
    let (year, year_less) = (EIGHT + 365 * DAY, EIGHT + 364 * DAY);
    let cases = [
        // At its time, later within the grace of an hour, and after it.
        (&daily, at, None, EIGHT - 1, at),
        (&daily, at, None, EIGHT + HOUR, at),
        (&daily, at, None, EIGHT + 2 * HOUR, at),
        // Days later, but within the grace of another run.
        (&daily, at, None, day5 + MINUTE, Some(day5)),
        (&daily, at, None, day5 - MINUTE, at),
        // The clock was set back by an hour, and shows the time again.
        (&daily, Some(day1), at, EIGHT - HOUR, Some(day1)),
        (&daily, Some(day1), at, EIGHT + MINUTE, Some(day1)),
        // The clock was a year ahead.
        (&daily, Some(year), Some(year_less), EIGHT - HOUR, at),
        // Another program has run the job without storing its next time.
        (&daily, at, Some(EIGHT + 5), EIGHT + MINUTE, Some(day1)),
        // A step of half a second repeats no interval; after a longer one, intervals follow the new time.
        (&every, Some(next), Some(EIGHT + 2), EIGHT - 500, Some(next)),
        (&often, Some(next), Some(EIGHT + 2), EIGHT - 500, Some(next)),
        (
            &every,
            Some(next),
            at,
            EIGHT + MINUTE - hours,
            Some(next - hours),
        ),
        (
            &often,
            Some(next),
            at,
            EIGHT + MINUTE - days,
            Some(next - days),
        ),
        // A single time.
        (&once, None, None, EIGHT - 1, at),
        (&once, None, Some(EIGHT - 5), EIGHT + HOUR, at),
        (&once, None, None, EIGHT + DAY, at),
        (&once, None, at, EIGHT + 1, None),
    ];
    for (schedule, next, last, now, expected) in cases {
        let job = job(schedule, next, last);
        let due = job.due(now, HOUR, &Zone::utc()).unwrap();
        assert_eq!(due, expected, "{schedule} at {now} after {last:?}");
    }
}

/// The jobs of a private home.
struct Scratch {
    /// Holds the directory.
    _dir: TestDir,
    jobs: Jobs,
    /// Ids of the added runs, each once, as in an inbox.
    added: RefCell<Vec<String>>,
}

impl Scratch {
    fn new() -> Self {
        let dir = TestDir::new();
        let env = BTreeMap::from([("TZ".to_owned(), "UTC0".to_owned())]);
        Self {
            jobs: Jobs::new(dir.home(), &env),
            added: RefCell::default(),
            _dir: dir,
        }
    }

    fn add(&self, when: When, tz: &str, now: Millis) -> Result<String, Error> {
        let new = NewJob {
            message: "look".to_owned(),
            tz: tz.to_owned(),
            when,
            ..NewJob::default()
        };
        self.jobs.add(&new, now).map(|job| job.id().to_owned())
    }

    /// Returns the number of runs that a gateway adds at `now`. If it `crashes`, the file does not change.
    fn tick(&self, now: Millis, crashes: bool) -> usize {
        let before = self.added.borrow().len();
        let start = |due: &DueRun| {
            let (id, mut added) = (due.id(), self.added.borrow_mut());
            if !added.contains(&id) {
                added.push(id);
            }
            if crashes {
                return Err(Error::failed("crash"));
            }
            Ok(())
        };
        self.jobs.tick(now, HOUR, &start).unwrap();
        self.added.borrow().len() - before
    }
}

#[test]
fn a_due_run_is_added_once_over_crashes_and_missed_times() {
    let scratch = Scratch::new();
    scratch.add(When::Every(600), "", START).unwrap();
    let first = START + 10 * MINUTE;
    assert_eq!(scratch.tick(first - 1, false), 0);
    assert_eq!(scratch.tick(first, true), 1);
    for later in [0, 1, MINUTE] {
        assert_eq!(scratch.tick(first + later, false), 0, "{later}");
    }
    // Many missed times cause one run. A clock that was set back a little repeats none; after a longer step, intervals go on.
    assert_eq!(scratch.tick(first + 55 * MINUTE, false), 1);
    assert_eq!(scratch.tick(first + 51 * MINUTE, false), 0);
    assert_eq!(scratch.tick(first + 60 * MINUTE, false), 1);
    assert_eq!(scratch.tick(first + 15 * MINUTE, false), 0);
    assert_eq!(scratch.tick(first + 20 * MINUTE, false), 1);
}

#[test]
fn single_job_is_removed_on_success_only() {
    let scratch = Scratch::new();
    let end = |status| {
        let job = scratch.add(When::At("+5m".into()), "", START).unwrap();
        let at = START + 6 * MINUTE;
        let run = JobRun {
            job,
            at,
            ..JobRun::default()
        };
        scratch.jobs.finish(&run, status, "so").unwrap();
        scratch.jobs.list().unwrap()
    };
    for status in [RunStatus::Ok, RunStatus::Quiet] {
        assert_eq!(end(status).len(), 0);
    }
    let left = end(RunStatus::Error);
    assert!(!left[0].is_enabled() && left[0].fields()["state"]["lastError"] == "so");
    assert_eq!(scratch.tick(START + 7 * MINUTE, false), 0);
}

#[test]
fn a_new_job_needs_a_clock_that_is_set() {
    let scratch = Scratch::new();
    for when in ["+20m", "2030-01-01T08:00"] {
        let add = |now| scratch.add(When::At(when.into()), "", now);
        let error = add(5 * MINUTE).unwrap_err();
        assert!(error.message.contains("the clock is not set"), "{error}");
        add(START).unwrap();
    }
}
