//! Scheduled jobs in a gateway over months: clocks that are set and jump, and runs that are cut short.

use std::collections::BTreeMap;
use std::fs;

use bantam::cron::{Author, Draft, Jobs, OneShots, Status, Trigger, When};
use rustix::process::Signal;
use serde_json::json;

use crate::botapi::BotApi;
use crate::gateway::{config, start};
use crate::harness::{Home, merged, until};
use crate::model::{Model, Reply};

/// The one who may.
const OWNER: i64 = 42;

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// 2027-01-15 08:00 UTC.
const START: i64 = 1_800_000_000_000;

pub fn jobs(home: &Home) -> Jobs {
    let env = BTreeMap::from([("TZ".to_owned(), "UTC0".to_owned())]);
    Jobs::new(bantam::paths::Home::new(home.path("")), &env)
}

/// Adds a job at [`START`], which runs then.
fn added(jobs: &Jobs, when: When) -> String {
    let draft = Draft { message: "look".into(), when: Some(when), ..Draft::default() };
    jobs.add(&draft, Author::User, START).unwrap().id().to_owned()
}

/// Runs what is due at `now`, as the gateway does, and tells which jobs it were.
fn runs(jobs: &Jobs, now: i64) -> Vec<String> {
    let due = jobs.look(now, HOUR, OneShots::Run).unwrap().due;
    for id in &due {
        let claim = jobs.claim(id, Trigger::Due(HOUR), now).unwrap().expect("it is due");
        jobs.finish(claim, &Ok(()), now + 5).unwrap();
    }
    due
}

#[test]
fn while_the_clock_has_not_been_set_jobs_for_a_single_time_wait() {
    let home = Home::empty();
    let jobs = jobs(&home);
    let (single, every) = (added(&jobs, When::At("+5m".into())), added(&jobs, When::Every(60)));
    let now = START + 6 * MINUTE;
    let looked = jobs.look(now, HOUR, OneShots::Wait).unwrap();
    assert_eq!(looked.due, [every.as_str()]);
    // It is not taken for missed either, whatever time the clock shows.
    let looked = jobs.look(now + 300 * DAY, HOUR, OneShots::Wait).unwrap();
    assert!(looked.missed.iter().all(|(job, _)| job.id() == every));
    assert!(jobs.look(now, HOUR, OneShots::Run).unwrap().due.contains(&single));
}

#[test]
fn a_jump_forwards_runs_each_job_at_most_once() {
    let home = Home::empty();
    let jobs = jobs(&home);
    let every = added(&jobs, When::Every(60));
    let daily = added(&jobs, When::Cron("0 9 * * *".into()));
    let stars = added(&jobs, When::Cron("*/5 * * * *".into()));
    // The board starts in 1970, and what runs there runs by that.
    let mut now = 5 * MINUTE;
    assert!(runs(&jobs, now).is_empty());
    now += 5 * MINUTE;
    assert_eq!(runs(&jobs, now), [every.as_str(), &stars]);
    // Then the clock is set.
    now = START + 65 * MINUTE;
    assert_eq!(runs(&jobs, now), [every.as_str(), &daily, &stars]);
    assert!(runs(&jobs, now + 10).is_empty());
    // And again, by days.
    now += 3 * DAY + 1;
    assert_eq!(runs(&jobs, now), [every.as_str(), &daily, &stars]);
    assert!(runs(&jobs, now + 10).is_empty());
}

#[test]
fn a_jump_backwards_repeats_nothing_and_nothing_sleeps_until_the_old_time() {
    let home = Home::empty();
    let jobs = jobs(&home);
    let every = added(&jobs, When::Every(600));
    let daily = added(&jobs, When::Cron("0 9 * * *".into()));
    let now = START + HOUR;
    assert_eq!(runs(&jobs, now), [every.as_str(), &daily]);
    // By two hours: the interval goes on at once, and nine o'clock has been served.
    let mut ran = 0;
    for minute in 0..120 {
        let due = runs(&jobs, now + (minute - 119) * MINUTE);
        assert!(!due.contains(&daily), "{minute}");
        ran += due.len();
    }
    assert!((11..=12).contains(&ran), "{ran} runs in two hours");
    assert_eq!(runs(&jobs, now + DAY), [every.as_str(), &daily]);
    // By a month: nothing waits for it to pass again.
    let then = now - 30 * DAY;
    assert!(runs(&jobs, then + 1).is_empty());
    assert_eq!(runs(&jobs, then + 10 * MINUTE), [every]);
    assert_eq!(jobs.look(then + 11 * MINUTE, HOUR, OneShots::Run).unwrap().next, Some(then + 20 * MINUTE));
}

#[test]
fn a_job_that_was_cut_short_is_told_once() {
    let model = Model::answering(|request, _| {
        let reply = Reply::text("Hello.");
        if request.last("user").contains("water them") { reply.held() } else { reply }
    });
    let api = BotApi::start();
    api.chat(OWNER);
    let home = Home::with(&config(&model, &api));
    let add = ["cron", "add", "-n", "plants", "-m", "water them", "--at", "+1s", "--to", "telegram:42"];
    home.bantam().args(add).run().exits(0);
    let gateway = start(&home);
    model.wait_for_requests(1);
    gateway.signal(Signal::KILL);
    drop(gateway.finish());
    // Whoever looks first records it; the word is the gateway's all the same.
    assert_eq!(jobs(&home).history(START).unwrap().last().unwrap().status, Status::Unknown);
    for n in 1..=2 {
        let gateway = start(&home);
        api.wait_for_texts(OWNER, n);
        api.text(OWNER, "hello");
        api.wait_for_texts(OWNER, n + 1);
        gateway.signal(Signal::TERM);
        gateway.finish().exits(0);
    }
    let told = "The job “plants” was interrupted when the program ended; what it did is unknown.";
    assert_eq!(api.texts(OWNER), [told, "Hello.", "Hello."]);
    let list = home.bantam().args(["cron", "list"]).run();
    assert!(list.exits(0).stdout.contains("unknown"), "{}", list.stdout);
}

#[test]
fn a_job_that_waits_for_room_when_the_program_ends_is_run_by_the_next_one() {
    let model = Model::answering(|request, n| {
        let reply = Reply::text("Done.");
        if n == 0 && request.last("user").contains("long") { reply.held() } else { reply }
    });
    let api = BotApi::start();
    let home = Home::with(&merged(config(&model, &api), &json!({ "gateway": { "workers": 1 } })));
    let gateway = start(&home);
    api.text(OWNER, "long");
    model.wait_for_holds(1);
    let add = ["cron", "add", "-n", "plants", "-m", "water them", "--at", "+1s", "--to", "telegram:43"];
    home.bantam().args(add).run().exits(0);
    api.chat(43);
    until("the run is claimed", || {
        fs::read_to_string(home.path("cron/runs.jsonl")).unwrap_or_default().contains("running")
    });
    gateway.signal(Signal::TERM);
    gateway.finish().exits(0);
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    assert_eq!(jobs(&home).history(now).unwrap(), [], "it has not begun");
    let gateway = start(&home);
    assert_eq!(api.wait_for_texts(43, 1), ["Done."]);
    gateway.signal(Signal::TERM);
    gateway.finish().exits(0);
    let history = jobs(&home).history(now).unwrap();
    assert_eq!(history.iter().map(|run| run.status).collect::<Vec<_>>(), [Status::Ok]);
}

#[test]
fn a_job_whose_answer_was_kept_was_not_interrupted() {
    let (model, api) = (Model::answering(|_, _| Reply::text("Hello.")), BotApi::start());
    api.chat(OWNER);
    let home = Home::with(&config(&model, &api));
    let jobs = jobs(&home);
    let draft =
        Draft { to: "telegram:42".into(), message: "look".into(), when: Some(When::Every(86_400)), ..Draft::default() };
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let id = jobs.add(&draft, Author::User, now).unwrap().id().to_owned();
    // The program died after this, and before it could say that the run was over.
    let claim = jobs.claim(&id, Trigger::Asked, now).unwrap().unwrap();
    let item = bantam::outbox::Item {
        to: "telegram:42".into(),
        text: "All is well.".into(),
        answers: vec![format!("cron:{id}:{}", claim.at())],
        ..bantam::outbox::Item::default()
    };
    bantam::outbox::Outbox::new(bantam::paths::Home::new(home.path(""))).post(&item).unwrap();
    drop(claim);
    let gateway = start(&home);
    api.wait_for_texts(OWNER, 1);
    until("the record is mended", || jobs.history(now).unwrap().iter().any(|run| run.status == Status::Ok));
    api.text(OWNER, "hello");
    assert_eq!(api.wait_for_texts(OWNER, 2), ["All is well.", "Hello."]);
    gateway.signal(Signal::TERM);
    gateway.finish().exits(0);
    let list = home.bantam().args(["cron", "list"]).run();
    assert!(!list.exits(0).stdout.contains("unknown"), "{}", list.stdout);
}

#[test]
fn a_gateway_hears_of_a_new_job_after_one_that_was_killed_too() {
    let (model, api) = (Model::answering(|_, _| Reply::text("Looked.")), BotApi::start());
    api.chat(OWNER);
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    gateway.wait_for_stderr("serving as");
    gateway.signal(Signal::KILL);
    drop(gateway.finish());
    assert!(home.path("state/bell").exists(), "nobody has taken it down");
    let gateway = start(&home);
    gateway.wait_for_stderr("serving as");
    // By itself it looks once an hour.
    home.bantam().args(["cron", "add", "-m", "look", "--at", "+1s", "--to", "telegram:42"]).run().exits(0);
    assert_eq!(api.wait_for_texts(OWNER, 1), ["Looked."]);
    gateway.signal(Signal::TERM);
    let run = gateway.finish();
    run.exits(0);
    assert!(!run.stderr.contains("within the hour"), "{}", run.stderr);
    assert!(!home.path("state/bell").exists());
}
