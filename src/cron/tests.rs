//! Due times of jobs, clocks that jump, and runs interrupted at any point.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use super::jobs::Tick;
use super::schedule::Millis;
use super::*;
use crate::bus::{Inbound, Inbox, JobRun, Source, message_id};
use crate::storage::Queue;
use crate::test_dir::TestDir;
use crate::timezone::Zone;

const MINUTE: Millis = 60_000;
const HOUR: Millis = 60 * MINUTE;
const DAY: Millis = 24 * HOUR;

fn job(value: Value) -> Job {
    Job(value)
}

/// A job that runs every day at 8.
fn daily(next: &Value) -> Job {
    job(
        json!({"id": "a", "enabled": true, "schedule": {"kind": "cron", "expr": "0 8 * * *"}, "state": {"nextRunAtMs": next}}),
    )
}

/// Returns whether the job is due at `now`, after a last run at that time.
fn due(job: &Job, now: Millis, last_run: Option<Millis>) -> Due {
    let mut job = job.clone();
    if let Some(at) = last_run {
        job.set_state("lastRunAtMs", at.into());
    }
    job.due(now, HOUR, &Zone::utc()).unwrap()
}

#[test]
fn missed_run_is_made_up_or_recorded() {
    let eight = 100 * DAY + 8 * HOUR;
    let job = daily(&json!(eight));
    assert_eq!(due(&job, eight - 1, None), Due::Later(Some(eight)));
    assert_eq!(due(&job, eight, None), Due::Now);
    assert_eq!(due(&job, eight + HOUR, None), Due::Now);
    assert_eq!(due(&job, eight + HOUR + MINUTE, None), Due::Missed(eight));
    // Days later, but within the grace time of another run.
    assert_eq!(due(&job, eight + 5 * DAY + MINUTE, None), Due::Now);
    assert_eq!(
        due(&job, eight + 5 * DAY - MINUTE, None),
        Due::Missed(eight)
    );
    assert_eq!(job.due(eight + 30_000, 0, &Zone::utc()).unwrap(), Due::Now);
}

#[test]
fn a_clock_that_jumps_runs_a_job_at_most_once() {
    let eight = 100 * DAY + 8 * HOUR;
    // Ran at eight; then the clock was set back by two hours.
    let job = daily(&json!(eight + DAY));
    assert_eq!(
        due(&job, eight - HOUR, Some(eight)),
        Due::Later(Some(eight + DAY))
    );
    assert_eq!(
        due(&job, eight + MINUTE, Some(eight)),
        Due::Later(Some(eight + DAY))
    );
    // The clock was a year ahead, and was corrected.
    let job = daily(&json!(eight + 365 * DAY));
    assert_eq!(
        due(&job, eight - HOUR, Some(eight + 364 * DAY)),
        Due::Later(Some(eight))
    );
    // Another program has run the job without storing its next time.
    assert_eq!(
        due(&daily(&json!(eight)), eight + MINUTE, Some(eight + 5)),
        Due::Later(Some(eight + DAY))
    );
}

#[test]
fn interval_job_is_due_after_clock_rollback() {
    let ran = 100 * DAY;
    for schedule in [
        json!({"kind": "every", "everyMs": 10 * MINUTE}),
        json!({"kind": "cron", "expr": "*/10 * * * *"}),
    ] {
        let next = json!({"nextRunAtMs": ran + 10 * MINUTE});
        let job = job(json!({"id": "a", "schedule": schedule, "createdAtMs": 0, "state": next}));
        // A step of less than a second repeats no run.
        assert_eq!(
            due(&job, ran - 500, Some(ran + 2)),
            Due::Later(Some(ran + 10 * MINUTE))
        );
        // After steps of two hours, a month, or to the beginning, the job runs within one interval, but not immediately.
        for back in [2 * HOUR, 30 * DAY, 100 * DAY] {
            let now = ran + MINUTE - back;
            assert_eq!(
                due(&job, now, Some(ran)),
                Due::Later(Some(ran + 10 * MINUTE - back)),
                "{back}"
            );
        }
    }
}

#[test]
fn a_single_time_is_served_once() {
    let at = |last: Value| {
        job(
            json!({"id": "a", "schedule": {"kind": "at", "atMs": DAY}, "state": {"lastRunAtMs": last}}),
        )
    };
    assert_eq!(due(&at(json!(null)), DAY - 1, None), Due::Later(Some(DAY)));
    assert_eq!(due(&at(json!(null)), DAY, None), Due::Now);
    assert_eq!(due(&at(json!(DAY - 5)), DAY + HOUR, None), Due::Now);
    assert_eq!(
        due(&at(json!(null)), DAY + HOUR + 1, None),
        Due::Missed(DAY)
    );
    assert_eq!(due(&at(json!(null)), DAY + 1, Some(DAY)), Due::Later(None));
    assert_eq!(due(&at(json!(DAY)), DAY + 1, None), Due::Later(None));
}

fn last_error(job: &Job) -> &str {
    job.fields()["state"]["lastError"]
        .as_str()
        .unwrap_or_default()
}

/// The jobs of a private home.
struct Scratch {
    dir: TestDir,
    jobs: Jobs,
}

impl Scratch {
    fn new() -> Self {
        let dir = TestDir::new();
        let env = BTreeMap::from([("TZ".to_owned(), "UTC0".to_owned())]);
        Self {
            jobs: Jobs::new(dir.home(), &env),
            dir,
        }
    }

    /// Adds a job at [`START`].
    fn add(&self, when: When) -> String {
        let [name, tz, to, session] = [(); 4].map(|()| String::new());
        let new = NewJob {
            name,
            message: "look".into(),
            when,
            tz,
            to,
            session,
            model: String::new(),
            check: None,
        };
        self.jobs.add(&new, START).unwrap().id().to_owned()
    }

    fn tick(&self, now: Millis) -> Tick {
        self.jobs.tick(now, HOUR, &BTreeSet::new()).unwrap()
    }

    /// Returns the unanswered messages like another program.
    fn messages(&self) -> Inbox {
        Inbox::new(Arc::new(Queue::of_home(&self.dir.home())))
    }

    /// Adds the message of a run, and returns its id.
    fn add_message(&self, due: &DueRun) -> String {
        let id = message_id(CHANNEL, &due.name());
        let message = Inbound {
            id: id.clone(),
            source: Source::Job(run_of(due)),
            ..Inbound::default()
        };
        self.messages().keep(&[message]).unwrap();
        id
    }

    /// Runs due jobs at `now` like the gateway, and returns the ids.
    fn run_due(&self, now: Millis) -> Vec<String> {
        let ended = |due: &DueRun| {
            let end = RunEnd::Answered(String::new());
            self.jobs.finish(&run_of(due), &end).unwrap();
            due.job.id().to_owned()
        };
        self.tick(now).started.iter().map(ended).collect()
    }

    fn statuses(&self) -> Vec<RunStatus> {
        self.jobs
            .history()
            .unwrap()
            .iter()
            .map(|run| run.status)
            .collect()
    }

    fn stored(&self) -> Vec<u8> {
        fs_err::read(self.dir.home().cron_jobs()).unwrap()
    }

    fn new_file(&self) -> PathBuf {
        self.dir.home().cron_jobs().with_extension("json.new")
    }
}

fn run_of(due: &DueRun) -> JobRun {
    JobRun {
        job: due.job.id().to_owned(),
        at: due.at,
        ..JobRun::default()
    }
}

/// 2027-01-15 08:00 UTC.
const START: Millis = 1_800_000_000_000;

#[test]
fn a_due_run_begins_once_whatever_the_crash() {
    let scratch = Scratch::new();
    let id = scratch.add(When::Every(600));
    let first = START + 10 * MINUTE;
    let before = scratch.stored();
    assert_eq!(scratch.tick(first - 1).next, Some(first));
    assert_eq!(scratch.stored(), before, "looking writes nothing");

    // A crash before the run is stored has no effect.
    fs_err::write(scratch.new_file(), "{ half").unwrap();
    let tick = scratch.tick(first);
    assert_eq!(
        (tick.started.len(), tick.next),
        (1, Some(first + 10 * MINUTE))
    );
    assert!(!scratch.new_file().exists());
    assert_eq!(scratch.statuses(), [RunStatus::Running]);
    // A crash before its message is in the inbox starts the run again, unless its check is running.
    let [started] = &tick.started[..] else {
        panic!("one run is due")
    };
    let again = scratch.tick(first + 1).started;
    assert_eq!((again.len(), again[0].at), (1, started.at));
    let checking = BTreeSet::from([started.name()]);
    let checked = scratch.jobs.tick(first + 1, HOUR, &checking).unwrap();
    assert!(checked.started.is_empty());
    // The job is due again while its run waits.
    let message = scratch.add_message(started);
    let busy = scratch.tick(first + 11 * MINUTE);
    assert_eq!(
        (busy.started.len(), busy.next),
        (0, Some(first + 12 * MINUTE))
    );
    // The run was answered without a record.
    scratch.messages().finish(&[message]).unwrap();
    assert_eq!(scratch.jobs.list().unwrap()[0].last_status(), "quiet");
    let tick = scratch.tick(first + 2);
    assert_eq!(
        (tick.started.len(), tick.next),
        (0, Some(first + 10 * MINUTE))
    );
    assert_eq!(scratch.statuses(), []);

    // Many missed times cause one run. A clock set back repeats none.
    let later = first + 55 * MINUTE;
    assert_eq!(scratch.run_due(later), [id.as_str()]);
    for back in [0, 4 * MINUTE] {
        assert!(scratch.run_due(later + 6 - back).is_empty(), "{back}");
    }
    assert_eq!(scratch.run_due(first + 60 * MINUTE), [id]);
}

#[test]
fn single_job_is_removed_on_success_only() {
    let scratch = Scratch::new();
    let [good, bad] = [(); 2].map(|()| scratch.add(When::At("+5m".into())));
    let now = START + 6 * MINUTE;
    let started = scratch.tick(now).started;
    assert_eq!(
        started.iter().map(|run| run.job.id()).collect::<Vec<_>>(),
        [&good, &bad]
    );
    for (run, outcome) in started
        .iter()
        .zip([RunEnd::Quiet, RunEnd::Failed("no answer".to_owned())])
    {
        scratch.jobs.finish(&run_of(run), &outcome).unwrap();
    }
    let list = scratch.jobs.list().unwrap();
    assert_eq!(list.len(), 1);
    assert_eq!(
        (list[0].id(), list[0].is_enabled(), last_error(&list[0])),
        (bad.as_str(), false, "no answer")
    );
    let tick = scratch.tick(now + 1);
    assert_eq!(
        (tick.started.len(), tick.missed.len(), tick.next),
        (0, 0, None)
    );
}

#[test]
fn a_new_job_needs_a_clock_that_is_set() {
    let scratch = Scratch::new();
    let add = |when: &str, now: Millis| {
        let [name, tz, to, session] = [(); 4].map(|()| String::new());
        let when = When::At(when.into());
        scratch
            .jobs
            .add(
                &NewJob {
                    name,
                    message: "look".into(),
                    when,
                    tz,
                    to,
                    session,
                    model: String::new(),
                    check: None,
                },
                now,
            )
            .map(drop)
    };
    for when in ["+20m", "2030-01-01T08:00"] {
        let error = add(when, 5 * MINUTE).unwrap_err();
        assert!(error.message.contains("the clock is not set"), "{error}");
        add(when, START).unwrap();
    }
}

/// Runs due jobs every five minutes for three days in Berlin, and returns the number of runs.
fn runs_in_berlin(expr: &str, from: &str) -> usize {
    let scratch = Scratch::new();
    let [name, to, session] = [(); 3].map(|()| String::new());
    let (when, tz) = (When::Cron(expr.into()), "Europe/Berlin".to_owned());
    let start = 1000 * crate::timezone::parse_time(from).unwrap().0;
    scratch
        .jobs
        .add(
            &NewJob {
                name,
                message: "look".into(),
                when,
                tz,
                to,
                session,
                model: String::new(),
                check: None,
            },
            start,
        )
        .unwrap();
    (start..=start + 3 * DAY)
        .step_by(300_000)
        .map(|now| scratch.run_due(now).len())
        .sum()
}

#[test]
fn daylight_saving_change_keeps_the_run_count() {
    for night in ["2026-03-28T11:00:00Z", "2026-10-24T10:00:00Z"] {
        assert_eq!(runs_in_berlin("30 2 * * *", night), 3, "{night}");
        assert_eq!(runs_in_berlin("0 * * * *", night), 72, "{night}");
    }
}
