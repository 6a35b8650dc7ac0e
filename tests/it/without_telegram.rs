//! A gateway without Telegram runs heartbeats, and `bantam cron history` shows what they report.

use serde_json::json;

use crate::bot::ends;
use crate::harness::{Home, until};
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
