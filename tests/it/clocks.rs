//! Scheduled jobs in a gateway: interrupted and waiting runs, and jobs changed by others meanwhile.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bot::{config, start};
use crate::botapi::BotApi;
use crate::cron::statuses;
use crate::harness::{Home, merged, until};
use crate::model::{Model, Reply};
use crate::stored::journal;

/// The allowed user.
const OWNER: i64 = 42;

#[test]
fn job_interrupted_beyond_grace_is_reported_once() {
    let model = Model::answering(|request, _| {
        let reply = Reply::text("Hello.");
        if request.last("user").contains("water them") {
            reply.held()
        } else {
            reply
        }
    });
    let api = BotApi::start();
    api.chat(OWNER);
    let no_grace = json!({ "cron": { "grace_minutes": 0 } });
    let home = Home::with(&merged(config(&model, &api), &no_grace));
    let add = [
        "cron",
        "add",
        "-n",
        "plants",
        "-m",
        "water them",
        "--at",
        "+1s",
        "--to",
        "telegram:42",
    ];
    home.bantam().args(add).run().exits(0);
    let gateway = start(&home);
    model.wait_for_requests(1);
    gateway.signal(Signal::KILL);
    drop(gateway.finish());
    assert_eq!(statuses(&home), ["running"]);
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
    assert!(
        list.exits(0).stdout.contains("interrupted"),
        "{}",
        list.stdout
    );
}

#[test]
fn queued_job_runs_after_restart() {
    let model = Model::answering(|request, n| {
        let reply = Reply::text("Done.");
        if n == 0 && request.last("user").contains("long") {
            reply.held()
        } else {
            reply
        }
    });
    let api = BotApi::start();
    let home = Home::with(&merged(
        config(&model, &api),
        &json!({ "gateway": { "workers": 1 } }),
    ));
    let gateway = start(&home);
    api.text(OWNER, "long");
    model.wait_for_holds(1);
    let add = [
        "cron",
        "add",
        "-n",
        "plants",
        "-m",
        "water them",
        "--at",
        "+1s",
        "--to",
        "telegram:43",
    ];
    home.bantam().args(add).run().exits(0);
    api.chat(43);
    until("the job is due", || statuses(&home) == ["running"]);
    gateway.signal(Signal::TERM);
    gateway.finish().exits(0);
    let gateway = start(&home);
    assert_eq!(api.wait_for_texts(43, 1), ["Done."]);
    gateway.signal(Signal::TERM);
    gateway.finish().exits(0);
    assert_eq!(statuses(&home), ["ok"]);
}

#[test]
fn a_job_whose_answer_was_kept_is_not_run_again() {
    let (model, api) = (
        Model::answering(|_, _| Reply::text("Hello.")),
        BotApi::start(),
    );
    api.chat(OWNER);
    let home = Home::with(&config(&model, &api));
    home.bantam()
        .args([
            "cron",
            "add",
            "-m",
            "look",
            "-e",
            "86400",
            "--to",
            "telegram:42",
        ])
        .run()
        .exits(0);
    // The program died after storing the answer, before it recorded the end of the run.
    let mut stored: Value =
        serde_json::from_str(&fs::read_to_string(home.path("cron/jobs.json")).unwrap()).unwrap();
    let id = stored["jobs"][0]["id"].as_str().unwrap().to_owned();
    let at = stored["jobs"][0]["createdAtMs"].clone();
    let state = json!({ "lastRunAtMs": at, "lastStatus": "running" });
    stored["jobs"][0]["state"] = merged(stored["jobs"][0]["state"].clone(), &state);
    home.write("cron/jobs.json", stored.to_string());
    let item = json!({ "to": "telegram:42", "text": "All is well." });
    let lines = [
        json!({ "v": 1 }),
        json!({ "add": "1-1-1", "kind": "out", "item": item, "done": [format!("cron:{id}:{at}")] }),
    ];
    home.write("state/queue.jsonl", journal(lines));
    let gateway = start(&home);
    api.wait_for_texts(OWNER, 1);
    until("the run is over", || statuses(&home).is_empty());
    api.text(OWNER, "hello");
    assert_eq!(api.wait_for_texts(OWNER, 2), ["All is well.", "Hello."]);
    gateway.signal(Signal::TERM);
    gateway.finish().exits(0);
    let list = home.bantam().args(["cron", "list"]).run();
    assert!(list.exits(0).stdout.contains("quiet"), "{}", list.stdout);
    assert_eq!(model.requests().len(), 1);
}

#[test]
fn gateway_after_kill_sees_new_jobs() {
    let (model, api) = (
        Model::answering(|_, _| Reply::text("Looked.")),
        BotApi::start(),
    );
    api.chat(OWNER);
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    gateway.wait_for_stderr("serving as");
    gateway.signal(Signal::KILL);
    drop(gateway.finish());
    assert!(
        home.path("state/notify").exists(),
        "a killed gateway leaves its socket"
    );
    let gateway = start(&home);
    gateway.wait_for_stderr("serving as");
    // By itself, it checks once an hour.
    home.bantam()
        .args([
            "cron",
            "add",
            "-m",
            "look",
            "--at",
            "+1s",
            "--to",
            "telegram:42",
        ])
        .run()
        .exits(0);
    assert_eq!(api.wait_for_texts(OWNER, 1), ["Looked."]);
    gateway.signal(Signal::TERM);
    let run = gateway.finish();
    run.exits(0);
    assert!(!run.stderr.contains("an hour late"), "{}", run.stderr);
    assert!(!home.path("state/notify").exists());
}
