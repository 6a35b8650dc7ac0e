//! The model that is built in: a few verbs, the real loop, the real tools.

use std::net::TcpStream;

use serde_json::json;

use crate::harness::Home;
use crate::model::{Model, Reply};

/// The port of an Ollama that nobody moved.
const OLLAMA: u16 = 11434;

/// What `bantam agent -m "list files"` does on a machine where nobody has set anything up. One test, because there is
/// one such port.
#[test]
fn without_a_configuration_the_machines_own_ollama_answers_or_else_the_demo_model() {
    let taken = TcpStream::connect(("localhost", OLLAMA)).is_ok();
    assert!(!taken, "something, perhaps Ollama, listens on port {OLLAMA}; this test needs a machine without it");
    let home = Home::empty();
    home.write("workspace/shopping.txt", "oat milk\n");
    let run = home.agent(["-m", "list files"]);
    run.exits(0).says("demo").says("_API_KEY");
    assert!(run.stdout.contains("shopping.txt"), "{}", run.stdout);
    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user", "assistant", "tool", "assistant"]);
    session.has_one_result_per_call();
    home.agent(["-q", "-m", "list files"]).exits(0).is_quiet();
    assert!(home.agent(["--json", "-q", "-m", "list files"]).json()["model"].as_str().unwrap().contains("demo"));

    let tags = json!({ "models": [ { "name": "llama3:8b" }, { "name": "other" } ] });
    let ollama = Model::at(OLLAMA, [Reply::json(200, &tags), Reply::text("I live here.")]);
    let home = Home::empty();
    home.agent(["-m", "who are you?"]).exits(0).prints("I live here.\n").says("llama3:8b");
    assert_eq!(ollama.request(1).body["model"], "llama3:8b");
}

#[test]
fn the_demo_model_drives_the_real_loop() {
    let home = Home::empty();
    home.write("workspace/shopping.txt", "oat milk\n");
    let run = home.agent(["--model", "demo/demo", "-m", "list files"]);
    run.exits(0);
    assert!(run.stdout.contains("shopping.txt"), "{}", run.stdout);
    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user", "assistant", "tool", "assistant"]);
    session.has_one_result_per_call();
}

#[test]
fn a_home_that_does_not_exist_is_made_with_a_workspace_from_the_template() {
    let home = Home::empty();
    home.agent(["--model", "demo/demo", "-m", "list files"]).exits(0);
    assert!(home.path("workspace").is_dir());
    assert!(!home.path("config.json").exists(), "bantam agent writes no configuration");
}

#[test]
fn the_demo_model_reads_writes_and_runs() {
    let home = Home::with(&json!({ "tools": { "exec": { "sandbox": "off" } } }));
    home.write("workspace/shopping.txt", "oat milk\n");
    let run = home.agent(["--model", "demo/demo", "-m", "read shopping.txt"]);
    run.exits(0);
    assert!(run.stdout.contains("oat milk"), "{}", run.stdout);
    let run = home.agent(["--model", "demo/demo", "-m", "write rye bread to notes/more.txt"]);
    run.exits(0);
    assert_eq!(std::fs::read_to_string(home.path("workspace/notes/more.txt")).unwrap(), "rye bread\n");
    let run = home.agent(["--model", "demo/demo", "-m", "run echo $((40 + 2))"]);
    run.exits(0);
    assert!(run.stdout.contains("42"), "{}", run.stdout);
}

#[test]
fn the_demo_model_says_how_to_set_a_key_when_it_does_not_understand() {
    let home = Home::empty();
    let run = home.agent(["--model", "demo/demo", "-m", "Why is the sky blue?"]);
    run.exits(0);
    assert!(run.stdout.contains("API_KEY"), "{}", run.stdout);
}

#[test]
fn the_demo_model_is_configured_like_any_other() {
    let home = Home::with(&json!({ "agents": { "defaults": { "model_name": "demo/demo" } } }));
    home.agent(["-m", "list files"]).exits(0);
}
