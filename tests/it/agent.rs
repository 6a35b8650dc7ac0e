//! `bantam agent`: input, output and exit codes.

use serde_json::json;

use crate::harness::Home;
use crate::model::{Call, Model, Reply, call, written_call};

#[test]
fn a_message_is_answered_on_stdout_and_nothing_else_is_said() {
    let (model, home) = Home::of(Model::scripted([Reply::text("Four.")]));
    home.agent(["-m", "What is two and two?"])
        .answers("Four.\n")
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
fn standard_input_is_context_behind_a_message() {
    let (model, home) = Home::of(Model::scripted([Reply::text("The disk.")]));
    let asked = home.bantam().args(["agent", "-m", "anything wrong?"]);
    asked
        .stdin("sda: I/O error\nsda: offline\n")
        .run()
        .answers("The disk.\n");

    let user = model.request(0).last("user");
    let question = user.find("anything wrong?").expect("the message");
    let context = user
        .find("\n```\nsda: I/O error\nsda: offline\n```")
        .expect("the context, as data");
    assert!(question < context, "the message comes first: {user}");
}

#[test]
fn timeout_includes_standard_input() {
    let (model, home) = Home::of(Model::scripted([Reply::text("never").held()]));
    let ask = ["agent", "--timeout", "1", "-m", "hi"];
    let open = home.bantam().args(ask).silent_stdin().run();
    open.exits(6).prints("").says("standard input did not end");
    assert_eq!(model.asked(), 0);
    // An input that ends in time is read, and the time spent on it counts.
    let run = home.bantam().args(ask).stdin("a log\n").run();
    run.exits(6);
    assert!(model.request(0).last("user").contains("a log"));
}

#[test]
fn no_stdin_leaves_the_input_of_a_loop_alone() {
    let (_model, home) = Home::of(Model::scripted([Reply::text("Hello.")]));
    home.bantam()
        .args(["agent", "-n", "-m", "hi"])
        .silent_stdin()
        .run()
        .answers("Hello.\n");
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
        home.agent(["-m", "Write it."]).answers("In parts, then.\n");
        let next = model.request(1);
        assert!(!next.tools().is_empty(), "the model can go on");
        assert!(next.texts("tool").pop().unwrap().contains("append_file"));
        assert!(!home.path("workspace/long.txt").exists());
        assert_eq!(home.path("workspace/a.txt").exists(), has_whole);
        home.session("cli_default").has_one_result_per_call();
    }
}

#[test]
fn a_call_that_is_cut_off_in_the_text_is_answered_and_not_run() {
    for text in [
        r#"<tool_call>{"name": "write_file", "arguments": {"path": "a.txt", "content": "It"#,
        r#"<function=write_file>{"path": "a.txt", "content": "It"#,
        r#"[TOOL_CALLS]write_file[ARGS]{"path": "a.txt"#,
    ] {
        let cut = Reply::text(text).finish("length");
        let (model, home) = Home::of(Model::scripted([cut, Reply::text("In parts, then.")]));
        home.agent(["-m", "Write it."]).answers("In parts, then.\n");
        let next = model.request(1);
        assert!(!next.tools().is_empty(), "the model can go on");
        assert!(next.texts("tool").pop().unwrap().contains("append_file"));
        assert!(!home.path("workspace/a.txt").exists());
    }
}

#[test]
fn a_call_that_is_cut_off_within_its_name_is_no_fault_of_the_server() {
    let cut = Reply::text(r#"<tool_call>{"name": "write_f"#).finish("length");
    let (_model, home) = Home::of(Model::answering(move |_, _| cut.clone()));
    home.agent(["-m", "Write it."]).fails(1).says("cut off");
}

#[test]
fn three_cut_calls_in_a_row_end_the_turn() {
    let (model, home) = Home::of(Model::answering(|_, _| cut_calls(None, "")));
    home.agent(["-m", "Write it."])
        .fails(6)
        .says("--max-tokens");
    assert_eq!(model.requests().len(), 3);
    home.session("cli_default").has_one_result_per_call();
}

#[test]
fn a_pipe_sees_the_text_only_when_it_is_on_disk() {
    let (model, home) = Home::of(Model::scripted([Reply::text(
        "First words, and then the rest.",
    )
    .held_after(2)]));
    let running = home.bantam().args(["agent", "-m", "hi"]).spawn();
    model.release();
    running.wait_for_stdout("First");
    let stored = home.read("sessions/cli_default.jsonl");
    assert!(
        stored.contains("First words, and then the rest."),
        "printed before it was stored: {stored}"
    );
    running
        .finish()
        .answers("First words, and then the rest.\n");
}

#[test]
fn an_answer_that_could_not_be_written_is_an_error() {
    let (_model, home) = Home::of(Model::scripted([Reply::text("Into a full disk.")]));
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
fn a_working_directory_that_cannot_be_written_is_good_enough() {
    let (_model, home) = Home::of(Model::scripted([Reply::text("Hello.")]));
    home.bantam()
        .args(["agent", "-m", "hi"])
        .cwd("/proc")
        .run()
        .answers("Hello.\n");
}

#[test]
fn question_flags_work_without_a_command() {
    let model =
        Model::answering(|request, _| Reply::text(&request.texts("user").len().to_string()));
    let home = Home::with(&model.config());
    let run = |args: &[&str]| home.run(args);
    run(&["-m", "hi"]).answers("1\n");
    run(&["-c", "again"]).answers("2\n");
    run(&["--session", "garden", "-m", "hi"]).answers("1\n");
    run(&["--nosuch"]).fails(2);
}
