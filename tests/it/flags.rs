//! Flags of `bantam agent` that decide about requests: a dry run, a choice of tools, a budget.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{CANARY, Home, merged, walk};
use crate::model::{Model, Reply};

/// An obvious fake of a known format, which is not configured in bantam.
const OTHER_KEY: &str = "sk-proj-0123456789fakefakefakefake";

#[test]
fn a_dry_run_prints_the_request_and_sends_and_stores_nothing() {
    let model = Model::scripted([Reply::text("Hello.")]);
    let home = Home::with(&model.config());
    home.agent(["-m", "first"]).exits(0);
    let before = home.files();
    let run = home.agent(["--dry-run", "-m", "second"]);
    run.exits(0).is_quiet();
    assert!(
        run.stdout.contains("\n  \"messages\": ["),
        "it is for people: {}",
        run.stdout
    );
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
fn dry_run_output_equals_the_request() {
    let model = Model::scripted([Reply::text("Hello.")]);
    let extra = json!({ "model_list": [ { "extra_body": { "user": OTHER_KEY, "seed": 7 } } ] });
    let home = Home::with(&merged(model.config(), &extra));
    // Otherwise the first turn would create it, with files that are read into the prompt.
    home.dir("workspace");
    let run = home.agent(["--dry-run", "--no-stream", "-m", "hi"]);
    let mut shown: Value = serde_json::from_str(&run.exits(0).stdout).unwrap();
    home.agent(["--no-stream", "-m", "hi"]).exits(0);
    let mut sent = model.request(0).body;
    assert_ne!(
        shown["user"], sent["user"],
        "a key is redacted wherever it stands"
    );
    // The time differs, and the key is hidden.
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
    home.agent(["--tools", "read_file, list_dir", "-m", "hi"])
        .exits(0);
    home.agent(["--no-tools", "-m", "hi"]).exits(0);
    let offered = model.request(0);
    assert!(
        offered.tools().contains(&"read_file") && !offered.tools().contains(&"exec"),
        "{:?}",
        offered.tools()
    );
    assert_eq!(model.request(1).body.get("tools"), None);
    home.agent(["--tools", "raed_file", "-m", "hi"])
        .exits(2)
        .fails_with_a_hint()
        .says("read_file");
    home.agent(["--tools", ",", "-m", "hi"])
        .exits(2)
        .fails_with_a_hint();
    home.agent(["--tools", "exec", "--no-tools", "-m", "hi"])
        .exits(2)
        .fails_with_a_hint();
}

#[test]
fn turn_over_budget_exits_6() {
    let model =
        Model::scripted([Reply::call("list_dir", &json!({ "path": "." })).counted(5000, 10)]);
    let home = Home::with(&model.config());
    home.agent(["--budget-tokens", "5010", "-m", "look"])
        .exits(6)
        .fails_with_a_hint()
        .says("--budget-tokens");
    home.agent(["--budget-tokens", "none", "-m", "look"])
        .exits(2)
        .fails_with_a_hint();
}

#[test]
fn a_reply_may_be_as_long_as_the_flag_says() {
    let model = Model::scripted([Reply::text("Short.")]);
    let home = Home::with(&merged(
        model.config(),
        &json!({ "agents": { "defaults": { "max_tokens": 5000 } } }),
    ));
    home.agent(["--max-tokens", "33", "-m", "hi"]).exits(0);
    assert_eq!(model.request(0).body["max_tokens"], 33);
    home.agent(["--max-tokens", "0", "-m", "hi"])
        .exits(2)
        .fails_with_a_hint()
        .says("--max-tokens");
}

#[test]
fn the_agent_works_in_the_directory_that_the_flag_names() {
    let calls = || {
        let write = Reply::call(
            "write_file",
            &json!({ "path": "new.txt", "content": "there" }),
        );
        [
            write,
            Reply::call("exec", &json!({ "command": "cat old.txt new.txt" })),
            Reply::text("Done."),
        ]
    };
    let model = Model::scripted(calls().into_iter().chain(calls()));
    let home = Home::with(&model.config());
    let elsewhere = home.path("").parent().unwrap().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("old.txt"), "was ").unwrap();
    home.agent(["--workspace", elsewhere.to_str().unwrap(), "-m", "go"])
        .exits(0)
        .prints("Done.\n");
    assert_eq!(
        fs::read_to_string(elsewhere.join("new.txt")).unwrap(),
        "there"
    );
    assert!(
        model.request(2).last("tool").contains("was there"),
        "{}",
        model.request(2).last("tool")
    );
    assert!(
        !home.path("workspace").exists(),
        "the other one is not needed"
    );

    // Relative to the working directory.
    fs::remove_file(elsewhere.join("new.txt")).unwrap();
    home.bantam()
        .args(["agent", "--workspace", "../elsewhere", "-m", "go"])
        .run()
        .exits(0);
    assert!(elsewhere.join("new.txt").exists());
    // The agent's own files cannot be a workspace.
    let own = home.path("sessions");
    home.agent(["--workspace", own.to_str().unwrap(), "-m", "go"])
        .exits(3)
        .fails_with_a_hint();
}

/// Returns the flags of `bantam help agent`: each long name with its short one.
fn flags() -> BTreeMap<String, Option<String>> {
    let run = Home::empty().bantam().args(["help", "agent"]).run();
    let lines = run
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("  "));
    let flags = lines.filter_map(|line| {
        let (short, rest) = line.trim_start().split_once("--")?;
        Some((
            format!("--{}", rest.split(' ').next()?),
            short.strip_suffix(", ").map(str::to_owned),
        ))
    });
    flags.collect()
}

#[test]
fn every_flag_is_given_in_some_test() {
    let flags = flags();
    assert!(flags.len() > 20, "{flags:?}");
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let sources = walk(&dir)
        .into_iter()
        .filter(|path| path.extension().is_some_and(|kind| kind == "rs"));
    let tests: String = sources
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    // As a separate argument, instead of a part of the message.
    let given = |name: &String| {
        tests.contains(&format!("\"{name}\", ")) || tests.contains(&format!("\"{name}\"]"))
    };
    let missing: Vec<_> = flags
        .iter()
        .filter(|(long, short)| !given(long) && !short.as_ref().is_some_and(given))
        .collect();
    assert!(missing.is_empty(), "no test gives {missing:?}");
}

#[test]
fn question_flags_set_instructions_and_temperature() {
    let model = Model::scripted([Reply::text("Arr.")]);
    let home = Home::with(&merged(
        model.config(),
        &json!({ "model_list": [ { "temperature": 1.0 } ] }),
    ));
    home.agent([
        "--system",
        "Speak like a pirate.",
        "--temperature",
        "0.5",
        "-m",
        "hi",
    ])
    .exits(0);
    let asked = model.request(0);
    assert!(
        asked.last("system").contains("Speak like a pirate."),
        "{}",
        asked.last("system")
    );
    assert_eq!(
        asked.body["temperature"], 0.5,
        "the flag wins over the model's entry"
    );
    home.agent(["--temperature", "hot", "-m", "hi"])
        .exits(2)
        .prints("")
        .fails_with_a_hint();
}

#[test]
fn the_newest_conversation_goes_on() {
    let model = Model::scripted([Reply::text("One."), Reply::text("Two.")]);
    let home = Home::with(&model.config());
    home.agent(["-c", "-m", "more"])
        .exits(2)
        .prints("")
        .says("no conversation to continue");
    home.agent(["-s", "garden", "-m", "first"]).exits(0);
    home.agent(["-c", "-m", "more"]).exits(0).prints("Two.\n");
    assert_eq!(home.session("cli_garden").texts("user").len(), 2);
    home.agent(["-c", "-s", "x", "-m", "more"])
        .exits(2)
        .says("--continue and --session cannot be used together");
}
