//! The gateway over months: clocks that are set, jobs and turns that are cut short, what `bantam status` tells of it, and the
//! service that keeps it running.

use std::collections::BTreeMap;

use bantam::cron::{Author, Draft, Jobs, Singles, Status, Trigger, When};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::botapi::{BotApi, TOKEN};
use crate::harness::{Home, Running, merged};
use crate::model::{Model, Reply};

/// The one who may.
const OWNER: i64 = 42;

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// 2027-01-15 08:00 UTC.
const START: i64 = 1_800_000_000_000;

fn config(model: &Model, api: &BotApi) -> Value {
    let bot = json!({ "enabled": true, "token": TOKEN, "allow_from": [OWNER, 43], "api_base": api.base() });
    merged(model.config(), &json!({ "channels": { "telegram": bot }, "tools": { "exec": { "sandbox": "off" } } }))
}

fn start(home: &Home) -> Running<'_> {
    home.bantam().arg("gateway").spawn()
}

fn jobs(home: &Home) -> Jobs {
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
    let due = jobs.look(now, HOUR, Singles::Run).unwrap().due;
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
    let looked = jobs.look(now, HOUR, Singles::Wait).unwrap();
    assert_eq!(looked.due, [every.as_str()]);
    // It is not taken for missed either, whatever time the clock shows.
    let looked = jobs.look(now + 300 * DAY, HOUR, Singles::Wait).unwrap();
    assert!(looked.missed.iter().all(|(job, _)| job.id() == every));
    assert!(jobs.look(now, HOUR, Singles::Run).unwrap().due.contains(&single));
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
    assert_eq!(jobs.look(then + 11 * MINUTE, HOUR, Singles::Run).unwrap().next, Some(then + 20 * MINUTE));
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
