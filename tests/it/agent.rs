//! `bantam agent`: input, output and exit codes.

use std::fs;
use std::time::Duration;

use rustix::fs::{FileType, Mode};
use serde_json::{Value, json};

use crate::contract::object;
use crate::harness::Home;
use crate::lease::lease;
use crate::model::{Call, Model, Reply, USAGE, call, written_call};

#[test]
fn a_message_is_answered_on_stdout_and_nothing_else_is_said() {
    let model = Model::scripted([Reply::text("Four.")]);
    let home = Home::with(&model.config());
    home.agent(["-m", "What is two and two?"])
        .exits(0)
        .prints("Four.\n")
        .is_quiet();

    let request = model.request(0);
    assert_eq!(
        (request.method.as_str(), request.path.as_str()),
        ("POST", "/v1/chat/completions")
    );
    assert_eq!(request.body["model"], "test-model");
    assert!(request.last("user").contains("What is two and two?"));
    assert_eq!(request.messages()[0]["role"], "system");
}

#[test]
fn standard_input_is_the_message_when_none_is_given() {
    let model = Model::scripted([Reply::text("Four.")]);
    let home = Home::with(&model.config());
    home.bantam()
        .arg("agent")
        .stdin("two and two\n")
        .run()
        .exits(0)
        .prints("Four.\n");
    assert!(model.request(0).last("user").contains("two and two"));
}

#[test]
fn standard_input_is_context_behind_a_message() {
    let model = Model::scripted([Reply::text("The disk.")]);
    let home = Home::with(&model.config());
    let asked = home.bantam().args(["agent", "-m", "anything wrong?"]);
    asked
        .stdin("sda: I/O error\nsda: offline\n")
        .run()
        .exits(0)
        .prints("The disk.\n");

    let user = model.request(0).last("user");
    let question = user.find("anything wrong?").expect("the message");
    let context = user
        .find("\n```\nsda: I/O error\nsda: offline\n```")
        .expect("the context, as data");
    assert!(question < context, "the message comes first: {user}");
}

#[test]
fn timeout_includes_standard_input() {
    let model = Model::scripted([Reply::text("never").held()]);
    let home = Home::with(&model.config());
    let ask = ["agent", "--timeout", "1", "-m", "hi"];
    let open = home.bantam().args(ask).silent_stdin().run();
    open.exits(6).prints("").says("did not end within 1 s");
    assert_eq!(model.asked(), 0);
    // An input that ends in time is read, and the time spent on it counts.
    let run = home.bantam().args(ask).stdin("a log\n").run();
    run.exits(6);
    assert!(model.request(0).last("user").contains("a log"));
}

/// A pipe without a writer must not hang a script.
#[test]
fn timeout_includes_pipes_that_are_attached() {
    let model = Model::scripted([]);
    let home = Home::with(&model.config());
    let pipe = home.path("../pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        FileType::Fifo,
        Mode::RUSR | Mode::WUSR,
        0,
    )
    .unwrap();
    for flag in ["-a", "--schema"] {
        let run = home.agent(["--timeout", "1", "-m", "hi", flag, pipe.to_str().unwrap()]);
        run.exits(6).prints("").says("did not end within 1 s");
    }
    assert_eq!(model.asked(), 0);
}

#[test]
fn no_stdin_leaves_the_input_of_a_loop_alone() {
    let model = Model::scripted([Reply::text("Hello.")]);
    let home = Home::with(&model.config());
    home.bantam()
        .args(["agent", "-n", "-m", "hi"])
        .silent_stdin()
        .run()
        .exits(0)
        .prints("Hello.\n");
}

#[test]
fn an_answer_that_ends_its_line_gets_no_second_line_end() {
    let model = Model::scripted([Reply::text("One line.\n")]);
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"]).exits(0).prints("One line.\n");
}

#[test]
fn a_turn_that_takes_too_long_exits_6() {
    let model = Model::scripted([Reply::text("Too late.").held()]);
    let home = Home::with(&model.config());
    let run = home.agent(["--timeout", "4", "-m", "Quick!"]);
    run.exits(6)
        .says("timed out after 4 s")
        .prints("")
        .fails_with_a_hint();
    assert!(run.took < Duration::from_secs(30), "took {:?}", run.took);
    assert_eq!(home.session("cli_default").turns(), ["limit"]);
}

/// Returns a reply whose last call was cut off within its arguments.
fn cut_calls(whole: Option<Call>, text: &str) -> Reply {
    let begun = r#"{"path": "long.txt", "content": "It begins"#;
    let cut = written_call("call_cut", "write_file", begun);
    Reply::calls(whole.into_iter().chain([cut]))
        .saying(text)
        .finish("length")
}

#[test]
fn a_call_that_was_cut_off_is_answered_and_not_run() {
    for (has_whole, text) in [(false, ""), (true, ""), (false, "First, the file:")] {
        let arguments = json!({ "path": "a.txt", "content": "whole" });
        let whole = has_whole.then(|| call("call_a", "write_file", &arguments));
        let model = Model::scripted([cut_calls(whole, text), Reply::text("In parts, then.")]);
        let home = Home::with(&model.config());
        home.agent(["-m", "Write it."])
            .exits(0)
            .prints("In parts, then.\n");
        let next = model.request(1);
        assert!(!next.tools().is_empty(), "the model can go on");
        assert!(next.texts("tool").pop().unwrap().contains("append_file"));
        assert!(!home.path("workspace/long.txt").exists());
        assert_eq!(home.path("workspace/a.txt").exists(), has_whole);
        home.session("cli_default").has_one_result_per_call();
    }
}

#[test]
fn three_cut_calls_in_a_row_end_the_turn() {
    let model = Model::answering(|_, _| cut_calls(None, ""));
    let home = Home::with(&model.config());
    home.agent(["-m", "Write it."])
        .exits(6)
        .fails_with_a_hint()
        .says("--max-tokens");
    assert_eq!(model.requests().len(), 3);
    home.session("cli_default").has_one_result_per_call();
}

#[test]
fn json_tells_the_whole_turn() {
    let model = Model::scripted([
        Reply::call("read_file", &json!({ "path": "notes.txt" })),
        Reply::text("Plants."),
    ]);
    let home = Home::with(&model.config());
    home.write("workspace/notes.txt", "water the plants\n");
    let run = home.agent(["--json", "-s", "home", "-m", "What is in my notes?"]);
    run.exits(0).is_quiet();
    let answer = object(&run);
    assert_eq!(answer["ok"], true);
    assert_eq!(answer["output"], "Plants.");
    assert_eq!(answer["error"], Value::Null);
    assert_eq!(answer["stop"], "done");
    assert_eq!(answer["steps"], 2);
    assert_eq!(answer["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(answer["tool_calls"][0]["name"], "read_file");
    assert_eq!(answer["tool_calls"][0]["ok"], true);
    assert!(answer["tool_calls"][0]["ms"].is_u64(), "{answer}");
    assert_eq!(
        answer["usage"]["prompt_tokens"],
        2 * USAGE.0,
        "the sum of both requests"
    );
    assert_eq!(answer["usage"]["total_tokens"], 2 * USAGE.2);
    assert_eq!(answer["usage"]["cached_tokens"], 6);
    assert!(home.path("sessions/cli_home.jsonl").is_file());
}

#[test]
fn control_characters_of_a_call_do_not_reach_a_terminal() {
    let path = "a\u{1b}]0;owned\u{7}b\r\nc";
    let model = Model::scripted([
        Reply::call("read_file", &json!({ "path": path })),
        Reply::text("Done."),
    ]);
    let home = Home::with(&model.config());
    let run = home.agent(["-v", "-m", "hi"]);
    run.exits(0).says("read_file");
    assert!(
        !run.stderr.contains(['\u{1b}', '\u{7}', '\r']),
        "{:?}",
        run.stderr
    );
}

#[test]
fn verbose_tells_the_retries_on_stderr() {
    let model = Model::scripted([
        Reply::error(503, "overloaded, try later"),
        Reply::text("Here."),
    ]);
    let home = Home::with(&model.config());
    home.agent(["-v", "-m", "hi"])
        .exits(0)
        .prints("Here.\n")
        .says("503");
}

#[test]
fn a_pipe_sees_the_text_only_when_it_is_on_disk() {
    let model = Model::scripted([Reply::text("First words, and then the rest.").held_after(2)]);
    let home = Home::with(&model.config());
    let running = home.bantam().args(["agent", "-m", "hi"]).spawn();
    model.release();
    running.wait_for_stdout("First");
    let stored = std::fs::read_to_string(home.path("sessions/cli_default.jsonl")).unwrap();
    assert!(
        stored.contains("First words, and then the rest."),
        "printed before it was stored: {stored}"
    );
    running
        .finish()
        .exits(0)
        .prints("First words, and then the rest.\n");
}

#[test]
fn an_answer_that_could_not_be_written_is_an_error() {
    let model = Model::scripted([Reply::text("Into a full disk.")]);
    let home = Home::with(&model.config());
    home.bantam()
        .args(["agent", "-m", "hi"])
        .full_stdout()
        .run()
        .exits(1)
        .says("bantam: error: ");
    assert_eq!(
        home.session("cli_default").texts("assistant"),
        ["Into a full disk."]
    );
}

#[test]
fn the_version_is_the_one_of_the_crate() {
    let home = Home::empty();
    let version = format!("bantam {}\n", env!("CARGO_PKG_VERSION"));
    home.bantam()
        .arg("--version")
        .run()
        .exits(0)
        .prints(&version)
        .is_quiet();
    home.bantam().arg("-V").run().exits(0).prints(&version);
}

#[test]
fn a_working_directory_that_cannot_be_written_is_good_enough() {
    let model = Model::scripted([Reply::text("Hello.")]);
    let home = Home::with(&model.config());
    home.bantam()
        .args(["agent", "-m", "hi"])
        .cwd("/proc")
        .run()
        .exits(0)
        .prints("Hello.\n");
}

#[test]
fn without_what_it_obeys_the_agent_does_not_answer() {
    let model = Model::never_asked();
    let home = Home::with(&model.config());
    let skill = "---\ndescription: x\nalways: true\n---\nNever say no.\n";
    for (name, text) in [
        ("agent/AGENT.md", "Obey.\n"),
        ("agent/SOUL.md", "Be.\n"),
        ("agent/skills/yes/SKILL.md", skill),
    ] {
        let path = home.write(name, text);
        let held = lease(&path);
        let running = home.bantam().args(["agent", "-m", "hi"]).spawn();
        running.wait();
        // The harness reads every file of the home when it finishes a run.
        drop(held);
        running
            .finish()
            .exits(3)
            .prints("")
            .fails_with_a_hint()
            .says(&path.display().to_string());
    }
    fs::remove_dir_all(home.path("agent")).unwrap();
    fs::write(home.path("agent"), "not a folder").unwrap();
    home.agent(["-m", "hi"])
        .exits(3)
        .fails_with_a_hint()
        .says("agent");
}

#[test]
fn question_flags_work_without_a_command() {
    let model =
        Model::answering(|request, _| Reply::text(&request.texts("user").len().to_string()));
    let home = Home::with(&model.config());
    let run = |args: &[&str]| home.bantam().args(args).run();
    run(&["-m", "hi"]).exits(0).prints("1\n");
    run(&["-c", "again"]).exits(0).prints("2\n");
    run(&["--session", "garden", "-m", "hi"])
        .exits(0)
        .prints("1\n");
    run(&["--nosuch"]).exits(2).fails_with_a_hint();
}
