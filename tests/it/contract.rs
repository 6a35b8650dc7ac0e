//! Interface for scripts: every exit code of the table in docs/scripting.md, and the format of `--json`.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Home, Run, merged};
use crate::model::{Model, Reply};

/// Each kind of failure, and its exit code.
const KINDS: [(&str, i32); 8] = [
    ("failed", 1),
    ("usage", 2),
    ("config", 3),
    ("auth", 4),
    ("unavailable", 5),
    ("limit", 6),
    ("busy", 7),
    ("interrupted", 130),
];

/// Returns the object of a run with `--json`, after checking its keys.
#[track_caller]
pub fn object(run: &Run) -> Value {
    let object = run.json();
    let keys = |value: &Value| -> BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    let named = |names: &str| -> BTreeSet<String> { names.split(' ').map(str::to_owned).collect() };
    let all = "ok output session model stop steps tool_calls usage cost ms error";
    assert_eq!(keys(&object), named(all), "{object}");
    let usage = "prompt_tokens completion_tokens total_tokens cached_tokens";
    assert_eq!(keys(&object["usage"]), named(usage), "{object}");
    assert!(
        usage
            .split(' ')
            .all(|count| object["usage"][count].is_u64()),
        "{object}"
    );
    for call in object["tool_calls"].as_array().unwrap() {
        assert_eq!(keys(call), named("name ok ms"), "{object}");
    }
    assert!(
        object["output"].is_string() && object["steps"].is_u64() && object["ms"].is_u64(),
        "{object}"
    );
    assert!(
        ["session", "model"]
            .iter()
            .all(|key| object[key].is_string() || object[key].is_null()),
        "{object}"
    );
    assert!(
        object["cost"].is_null() || object["cost"].is_f64(),
        "{object}"
    );
    let stops = ["done", "length", "limit", "cancelled", "error"];
    assert!(stops.iter().any(|stop| object["stop"] == *stop), "{object}");

    assert_eq!(object["ok"], run.code == Some(0), "{object}");
    assert_eq!(object["ok"] == true, object["error"].is_null(), "{object}");
    if let Some(error) = object["error"].as_object() {
        assert_eq!(
            keys(&object["error"]),
            named("kind message hint"),
            "{object}"
        );
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{object}"
        );
        assert!(
            error["hint"].is_null() || error["hint"].as_str().is_some_and(|text| !text.is_empty()),
            "{object}"
        );
        let code = KINDS
            .iter()
            .find(|(kind, _)| error["kind"] == *kind)
            .map(|(_, code)| *code);
        assert_eq!(run.code, code, "{object}");
        run.says(&format!(
            "bantam: error: {}",
            error["message"].as_str().unwrap()
        ));
    }
    object
}

/// Returns the exit codes of the table in docs/scripting.md.
fn promised() -> BTreeSet<i32> {
    let page =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/scripting.md")).unwrap();
    let (_, table) = page
        .split_once("| exit code | meaning |\n|---|---|\n")
        .expect("a table of exit codes");
    let rows = table.lines().map_while(|line| line.strip_prefix("| "));
    rows.map(|row| row.split(' ').next().unwrap().parse().unwrap())
        .collect()
}

/// Returns runs with each kind of end, with `--json` and a question.
fn runs() -> Vec<Run> {
    let asked = |replies: Vec<Reply>, args: &[&str]| {
        let model = Model::scripted(replies);
        let once = json!({ "agents": { "defaults": { "max_retries": 0 } } });
        let home = Home::with(&merged(model.config(), &once));
        home.bantam()
            .args(["agent", "--json", "-n"])
            .args(args)
            .run()
    };
    let hi = ["-m", "hi"];
    let mut runs = vec![
        asked(vec![Reply::text("Hello.")], &hi),
        asked(
            vec![
                Reply::call("list_dir", &json!({ "path": "." })),
                Reply::text("Hello."),
            ],
            &hi,
        ),
        asked(vec![Reply::text("Hel").finish("length")], &hi),
        asked(vec![Reply::error(400, "no such parameter")], &hi),
        asked(vec![], &[]),
        asked(vec![], &["--max-steps", "many", "-m", "hi"]),
        asked(vec![], &["--model", "nobody", "-m", "hi"]),
        asked(vec![], &["--model", "groq/x", "-m", "hi"]),
        asked(vec![Reply::error(401, "no such key")], &hi),
        asked(vec![Reply::error(503, "overloaded")], &hi),
        asked(
            vec![
                Reply::call("list_dir", &json!({ "path": "." })),
                Reply::text("So far."),
            ],
            &["--max-steps", "2", "-m", "hi"],
        ),
    ];

    let (model, home) = Home::of(Model::scripted([Reply::text("Too late.").held()]));
    let running = home.bantam().args(["agent", "--json", "-m", "hi"]).spawn();
    model.wait_for_requests(1);
    running.signal(Signal::INT);
    runs.push(running.finish());

    let (_model, home) = Home::of(Model::never_asked());
    let _held = home.hold_session("cli_default");
    let run = home
        .bantam()
        .env("BANTAM_TEST_SPEED", "20")
        .args(["agent", "--json", "-m", "hi"])
        .run();
    assert!(run.took.as_millis() >= 1450, "gave up after {:?}", run.took);
    runs.push(run);
    runs
}

#[test]
fn json_shape_is_equal_for_exit_codes() {
    let runs = runs();
    let reached: BTreeSet<i32> = runs.iter().filter_map(|run| run.code).collect();
    assert_eq!(reached, promised());
    let objects: Vec<Value> = runs.iter().map(object).collect();
    let kinds: BTreeSet<&str> = objects
        .iter()
        .filter_map(|object| object["error"]["kind"].as_str())
        .collect();
    assert_eq!(kinds, KINDS.iter().map(|(kind, _)| *kind).collect());
    for run in runs.iter().filter(|run| run.code != Some(0)) {
        run.says("bantam: error: ");
    }
}
