//! A gateway without Telegram runs heartbeats, and `bantam cron history` shows what they report.

use serde_json::{Value, json};

use crate::bot::ends;
use crate::harness::{Home, merged, until};
use crate::model::{Model, Reply};

#[test]
fn heartbeats_run_without_telegram_and_the_history_shows_what_they_report() {
    let model = Model::answering(|_, _| Reply::text("The plants are dry."));
    let beat = json!({ "heartbeat": { "enabled": true, "interval_minutes": 1 }, "cron": { "enabled": false } });
    let home = Home::asking(&model, &beat);
    home.write("agent/HEARTBEAT.md", "- water the plants");
    let gateway = home
        .bantam()
        .env("BANTAM_TEST_SPEED", "20")
        .arg("gateway")
        .spawn();
    let reported = || {
        home.run(["cron", "history", "heartbeat"])
            .stdout
            .contains("The plants are dry.")
    };
    until("there is a heartbeat", reported);
    ends(gateway);
    assert!(model.request(0).last("user").contains("water the plants"));
}

/// Checking a changed configuration may run the command of a key, which may wait for its user.
fn a_job_does_not_wait_for_a_check(model: &Model, home: &Home) {
    let gateway = home
        .bantam()
        .env("BANTAM_TEST_SPEED", "20")
        .arg("gateway")
        .spawn();
    until("it runs", || home.path("state/notify").exists());
    let (begun, checked) = (home.path("begun"), home.path("checked"));
    let (start, end) = (begun.display(), checked.display());
    let token =
        format!("cmd:/bin/sh -c 'echo >{start}; sleep 8; echo >{end}; echo 0123456789abcdef'");
    let http = json!({ "enabled": true, "listen": "127.0.0.1:0", "token": token });
    let config: Value = serde_json::from_str(&home.read("config.json")).unwrap();
    let changed = merged(config, &json!({ "channels": { "http": http } }));
    home.config(&changed.to_string());
    until("the command runs", || begun.exists());
    home.run(["cron", "add", "--at", "+1s", "What time is it?"])
        .exits(0);
    until("the job runs", || !model.requests().is_empty());
    assert!(!checked.exists(), "the job has waited");
    gateway.wait_for_stderr("listening at");
    ends(gateway);
}

#[test]
fn a_job_does_not_wait_for_the_check_of_a_changed_configuration() {
    let (model, home) = Home::of(Model::answering(|_, _| Reply::text("It is late.")));
    a_job_does_not_wait_for_a_check(&model, &home);
}

#[test]
fn a_job_beside_a_bot_does_not_wait_for_the_check_of_a_changed_configuration() {
    let model = Model::answering(|_, _| Reply::text("It is late."));
    let (_api, home) = crate::bot::home(&model);
    a_job_does_not_wait_for_a_check(&model, &home);
}

#[test]
fn a_gateway_with_nothing_to_do_says_so() {
    let model = Model::never_asked();
    let home = Home::asking(&model, &json!({ "cron": { "enabled": false } }));
    home.run(["gateway"]).fails(3).says("nothing to do");
    // An enabled bot needs its token.
    let bot = json!({ "channels": { "telegram": { "enabled": true } } });
    let home = Home::asking(&model, &bot);
    home.run(["gateway"]).fails(3).says("token");
}
