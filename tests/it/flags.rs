//! Flags of `bantam agent` that decide what is sent: a dry run, a choice of tools, a budget.

use serde_json::{Value, json};

use crate::harness::{CANARY, Home, merged};
use crate::model::{Model, Reply, USAGE};

/// An obvious fake of a well-known shape, which nobody told bantam about.
const OTHER_KEY: &str = "sk-proj-0123456789fakefakefakefake";

#[test]
fn a_dry_run_prints_the_request_and_sends_and_stores_nothing() {
    let model = Model::scripted([Reply::text("Hello.")]);
    let home = Home::with(&model.config());
    home.agent(["-m", "first"]).exits(0);
    let before = home.files();
    let run = home.agent(["--dry-run", "-m", "second"]);
    run.exits(0).is_quiet();
    assert!(run.stdout.contains("\n  \"messages\": ["), "it is for people: {}", run.stdout);
    let body: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(body["model"], "test-model");
    assert_eq!(body["messages"].as_array().unwrap().len(), 4, "{body}");
    assert!(!body["tools"].as_array().unwrap().is_empty(), "{body}");
    assert!(!run.stdout.contains(CANARY));
    assert_eq!(home.files(), before);
    assert_eq!(model.requests().len(), 1);
    let session = home.session("cli_default");
    assert_eq!(session.texts("user").len(), 1);
}

#[test]
fn a_dry_run_in_a_home_that_does_not_exist_does_not_make_it() {
    let home = Home::empty();
    let run = home.agent(["--dry-run", "--model", "demo/demo", "--no-session", "-m", "list files"]);
    run.exits(0);
    let body: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(body["model"], "demo/demo");
    assert!(!home.path("").exists(), "{:?}", home.files());
}

#[test]
fn what_a_dry_run_shows_is_what_is_sent() {
    let model = Model::scripted([Reply::text("Hello.")]);
    let extra = json!({ "model_list": [ { "extra_body": { "user": OTHER_KEY, "seed": 7 } } ] });
    let home = Home::with(&merged(model.config(), &extra));
    // Else the first turn would make it, with what is read into the prompt.
    home.dir("workspace");
    let run = home.agent(["--dry-run", "--no-stream", "-m", "hi"]);
    let mut shown: Value = serde_json::from_str(&run.exits(0).stdout).unwrap();
    home.agent(["--no-stream", "-m", "hi"]).exits(0);
    let mut sent = model.request(0).body;
    assert_ne!(shown["user"], sent["user"], "a key is struck wherever it stands");
    // The clock went on, and the key is not shown.
    for body in [&mut shown, &mut sent] {
        body["user"] = Value::Null;
        let content = &mut body["messages"][1]["content"];
        *content = content.as_str().unwrap().split_once('\n').unwrap().1.into();
    }
    assert_eq!(shown, sent);
}
#[test]
fn only_the_tools_that_were_chosen_are_offered() {
    let model = Model::scripted([Reply::text("One."), Reply::text("None.")]);
    let home = Home::with(&model.config());
    home.agent(["--tools", "read_file, list_dir", "-m", "hi"]).exits(0);
    home.agent(["--no-tools", "-m", "hi"]).exits(0);
    let offered = model.request(0);
    assert!(offered.tools().contains(&"read_file") && !offered.tools().contains(&"exec"), "{:?}", offered.tools());
    assert_eq!(model.request(1).body.get("tools"), None);
    home.agent(["--tools", "raed_file", "-m", "hi"]).exits(2).fails_with_a_hint().says("read_file");
    home.agent(["--tools", ",", "-m", "hi"]).exits(2).fails_with_a_hint();
    home.agent(["--tools", "exec", "--no-tools", "-m", "hi"]).exits(2).fails_with_a_hint();
}

#[test]
fn a_turn_that_has_spent_its_budget_asks_no_more_and_exits_6() {
    let model = Model::scripted([Reply::call("list_dir", &json!({ "path": "." }))]);
    let home = Home::with(&model.config());
    let budget = USAGE.2.to_string();
    home.agent(["--budget-tokens", &budget, "-m", "look"]).exits(6).fails_with_a_hint().says("--budget-tokens");
    home.agent(["--budget-tokens", "none", "-m", "look"]).exits(2).fails_with_a_hint();
}
