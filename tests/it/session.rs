//! Conversations on disk: when lines are written, how the next turn reads them, and the effects of damage.

use std::fs;

use serde_json::json;

use crate::harness::{Home, has_all, has_none};
use crate::model::{Model, Reply};
use crate::stored::{Session, assert_single_result_per_call, sealed};

#[test]
fn a_conversation_goes_on_where_it_was() {
    let model = Model::scripted([Reply::text("Hello Ada."), Reply::text("Ada.")]);
    let home = Home::with(&model.config());
    home.agent(["-m", "My name is Ada."]).exits(0);
    home.agent(["-m", "What is my name?"]).answers("Ada.\n");

    let request = model.request(1);
    let user = request.texts("user");
    has_all(&user[0], ["My name is Ada."]);
    has_all(&user[1], ["What is my name?"]);
    assert_eq!(request.texts("assistant"), ["Hello Ada."]);
    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user", "assistant", "user", "assistant"]);
    assert_eq!(session.turns(), ["done", "done"]);
}

#[test]
fn invalid_conversation_name_is_wrong_usage() {
    let (_model, home) = Home::of(Model::never_asked());
    home.agent(["-s", "", "-m", "hi"]).fails(2).prints("");
    home.agent(["-s", &"x".repeat(300), "-m", "hi"])
        .fails(2)
        .prints("");
}

#[test]
fn no_session_remembers_nothing() {
    let (model, home) = Home::of(Model::scripted([Reply::text("One."), Reply::text("Two.")]));
    home.agent(["--no-session", "-m", "first"])
        .answers("One.\n");
    home.agent(["--no-session", "-m", "second"])
        .answers("Two.\n");
    assert!(model.request(1).texts("assistant").is_empty());
    let kept = home
        .files()
        .into_iter()
        .filter(|file| file.starts_with("sessions/"));
    assert_eq!(kept.count(), 0);
}

#[test]
fn session_lines_are_synced_before_requests() {
    let (model, home) = Home::of(Model::scripted([
        Reply::call("list_dir", &json!({ "path": "." })).held(),
        Reply::text("Nothing here.").held(),
    ]));
    let running = home.bantam().args(["agent", "-m", "look around"]).spawn();

    model.wait_for_requests(1);
    assert_eq!(home.session("cli_default").roles(), ["user"]);
    model.release();

    model.wait_for_requests(2);
    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user", "assistant", "tool"]);
    assert!(session.turns().is_empty());
    model.release();

    running.finish().answers("Nothing here.\n");
}

/// Returns a home whose last turn ended within a line, as after a power cut.
fn torn(model: &Model, tail: &str) -> Home {
    let home = Home::with(&model.config());
    home.agent(["-m", "first"]).exits(0);
    let path = home.path("sessions/cli_default.jsonl");
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend_from_slice(tail.as_bytes());
    fs::write(&path, bytes).unwrap();
    home
}

#[test]
fn a_torn_line_is_mended_away() {
    let tail = "{\"crc\":\"00000000\",\"seq\":4,\"role\":\"user\",\"content\":\"torn of";
    let model = Model::scripted([Reply::text("One."), Reply::text("Two.")]);
    let home = torn(&model, tail);
    home.agent(["-m", "second"]).answers("Two.\n");
    assert_eq!(
        home.session("cli_default").roles(),
        ["user", "assistant", "user", "assistant"]
    );
    has_none(&model.request(1).texts("user").join("\n"), ["torn of"]);
}

#[test]
fn malformed_session_line_is_reported_and_kept() {
    let model = Model::answering(|request, _| {
        let is_first = request.last("user").contains("first");
        Reply::text(if is_first { "One." } else { "Two." })
    });
    let home = Home::with(&model.config());
    home.agent(["-m", "first question"]).exits(0);
    let path = home.path("sessions/cli_default.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let damaged = text.replacen("first question", "forged question", 1);
    assert_ne!(text, damaged);
    fs::write(&path, &damaged).unwrap();

    home.agent(["-v", "-m", "second question"])
        .answers("Two.\n")
        .says("cli_default");
    let asked = model.request(1).texts("user").join("\n");
    assert!(
        !asked.contains("forged question"),
        "a line with a wrong checksum was believed: {asked}"
    );
    let kept = home.path("sessions/cli_default.1.jsonl");
    let kept = fs::read_to_string(kept).unwrap();
    assert_eq!(kept, damaged, "damage is kept as it is");
    // It is reported once, unless there is more damage. Each line retains its number.
    home.agent(["-m", "third question"]).exits(0).is_quiet();
    let now = fs::read_to_string(&path).unwrap();
    let more = now.replacen("second question", "forged question", 1);
    fs::write(&path, &more).unwrap();
    home.agent(["-m", "fourth question"])
        .exits(0)
        .says("sessions/cli_default.2.jsonl");
    home.agent(["-m", "fifth question"]).exits(0).is_quiet();
    let shown = home
        .bantam()
        .args(["sessions", "show", "default", "--json", "--after", "0"]);
    let lines = shown.run().exits(0).json_lines();
    let numbers: Vec<u64> = lines
        .iter()
        .map(|line| line["seq"].as_u64().unwrap())
        .collect();
    let mut once = numbers.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(numbers, once, "{lines:?}");
}

#[test]
fn a_session_of_a_newer_bantam_is_refused() {
    let (_model, home) = Home::of(Model::scripted([Reply::text("Hello.")]));
    let line = sealed(
        "\"seq\":0,\"v\":2,\"session\":\"cli_default\",\"created\":\"2026-01-01T00:00:00Z\"}",
    );
    let path = home.write("sessions/cli_default.jsonl", &line);
    home.agent(["-m", "hi"])
        .exits(3)
        .prints("")
        .says("bantam sessions reset default");
    assert_eq!(fs::read_to_string(path).unwrap(), line, "and not touched");
    home.run(["sessions", "reset", "cli_default"]).exits(0);
    let kept = home.path("sessions/cli_default.1.jsonl");
    assert_eq!(fs::read_to_string(kept).unwrap(), line);
    home.agent(["-m", "hi"]).answers("Hello.\n");
}

#[test]
fn unanswered_call_gets_result_on_load() {
    let (model, home) = Home::of(Model::scripted([Reply::text("I do not know.")]));
    let time = "\"time\":\"2026-01-01T00:00:00Z\"";
    let lines = [
        "\"seq\":0,\"v\":1,\"session\":\"cli_default\",\"created\":\"2026-01-01T00:00:00Z\"}"
            .to_owned(),
        format!("\"seq\":1,{time},\"role\":\"user\",\"content\":\"list\"}}"),
        format!(
            "\"seq\":2,{time},\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[\
             {{\"id\":\"call_a\",\"name\":\"list_dir\",\"arguments\":\"{{}}\"}},\
             {{\"id\":\"call_b\",\"name\":\"list_dir\",\"arguments\":\"{{}}\"}}]}}"
        ),
        format!(
            "\"seq\":3,{time},\"role\":\"tool\",\"tool_call_id\":\"call_a\",\"content\":\"notes.txt\"}}"
        ),
    ];
    let text: String = lines.iter().map(|line| sealed(line)).collect();
    Session::parse(text.as_bytes()); // or the test itself is wrong
    home.write("sessions/cli_default.jsonl", text);

    home.agent(["-m", "and what happened?"])
        .answers("I do not know.\n");
    let request = model.request(0);
    assert_single_result_per_call(&request.messages());
    let results = request.texts("tool");
    assert!(results[0].contains("notes.txt"), "{results:?}");
    has_all(&results[1], ["interrupted, outcome unknown"]);
    home.session("cli_default").has_one_result_per_call();
}

#[test]
fn a_busy_session_is_waited_for() {
    for is_terminal in [false, true] {
        let (model, home) = Home::of(Model::scripted([Reply::text("My turn.")]));
        let held = home.hold_session("cli_default");
        let mut question = home.bantam().args(["agent", "-m", "hi"]);
        if is_terminal {
            question = question.silent_stdin().on_a_terminal().env("TERM", "xterm");
        }
        let mut running = question.spawn();
        let said = "bantam: this conversation is in use by another bantam process; waiting";
        if is_terminal {
            running.wait_for_next_stdout(said);
        } else {
            running.wait_for_stderr(&format!("{said}\n"));
        }
        assert!(
            model.requests().is_empty(),
            "asked before it had the session"
        );
        drop(held);
        let run = running.finish();
        run.exits(0);
        assert!(
            run.stdout.ends_with(if is_terminal {
                "My turn.\r\n"
            } else {
                "My turn.\n"
            }),
            "{}",
            run.stdout
        );
    }
}

#[test]
fn two_turns_at_once_in_one_session_follow_each_other() {
    let model = Model::answering(|request, _| {
        let question = request.last("user");
        Reply::text(if question.contains("left") {
            "answer to left"
        } else {
            "answer to right"
        })
    });
    let home = Home::with(&model.config());
    let ask = |side| home.bantam().args(["agent", "-m", side]).spawn();
    let (left, right) = (ask("left"), ask("right"));
    left.finish().answers("answer to left\n");
    right.finish().answers("answer to right\n");
    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user", "assistant", "user", "assistant"]);
    for pair in session.history().chunks(2) {
        let side = if pair[0]["content"].as_str().unwrap().contains("left") {
            "left"
        } else {
            "right"
        };
        assert_eq!(
            pair[1]["content"],
            format!("answer to {side}"),
            "turns are not mixed"
        );
    }
}

#[test]
fn unwritable_home_fails_before_sending() {
    let (_model, home) = Home::of(Model::never_asked());
    home.write("sessions", "a file where the folder should be");
    let run = home.agent(["-m", "hi"]);
    assert!(
        run.code.is_some_and(|code| code != 0),
        "exit {:?}",
        run.code
    );
    run.prints("").says("bantam: error: ").says("sessions");
}

#[test]
fn damaged_home_file_is_reported_in_brief() {
    let (_model, home) = Home::of(Model::answering(|_, _| Reply::text("Hello.")));
    home.agent(["-m", "first"]).exits(0).is_quiet();
    let path = home.path("sessions/cli_default.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replacen("\"role\":\"user\"", "\"role\":\"uzer\"", 1),
    )
    .unwrap();
    let run = home.agent(["-m", "second"]);
    run.answers("Hello.\n").says("cli_default.jsonl:2: ");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);

    home.dir("memory/USER.md");
    let run = home.agent(["-s", "other", "-m", "third"]);
    run.answers("Hello.\n").says("USER.md");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    home.agent(["-s", "other", "-q", "-m", "fourth"])
        .answers("Hello.\n")
        .is_quiet();
}
