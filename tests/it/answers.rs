//! One question, one answer: questions that are stopped, fail or are refused, and the model's view of them.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bot::dies;
use crate::harness::{Home, Running, has_all, merged};
use crate::model::{Model, Reply, Request};
use crate::stored::journal;

/// Returns the roles and texts of the conversation, without the system prompt and the times.
fn talk(request: &Request) -> Vec<(String, String)> {
    let text = |content: &Value| match content {
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect::<Vec<_>>()
            .join("|"),
        other => other.as_str().unwrap_or_default().to_owned(),
    };
    let said = |message: &&Value| {
        (
            message["role"].as_str().unwrap().to_owned(),
            text(&message["content"]),
        )
    };
    let untimed = |(role, text): (String, String)| {
        let text = if text.starts_with('[') && role == "user" {
            text.split_once("]\n")
                .map_or(text.clone(), |(_, text)| text.to_owned())
        } else {
            text
        };
        (role, text)
    };
    request
        .messages()
        .iter()
        .map(said)
        .filter(|(role, _)| role != "system")
        .map(untimed)
        .collect()
}

#[track_caller]
fn is_said(request: &Request, expected: &[(&str, &str)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(role, text)| ((*role).to_owned(), (*text).to_owned()))
        .collect();
    assert_eq!(talk(request), expected);
}

/// Returns a home that asks its model only once.
fn hasty(model: &Model) -> Home {
    Home::asking(
        model,
        &json!({ "agents": { "defaults": { "max_retries": 0 } } }),
    )
}

fn asks<'h>(home: &'h Home, model: &Model, text: &str) -> Running<'h> {
    let running = home.bantam().args(["agent", "-m", text]).spawn();
    model.wait_for_requests(1);
    running
}

#[test]
fn a_stopped_question_is_followed_by_a_line_that_says_so() {
    let model = Model::scripted([
        Reply::text("Too late.").held(),
        Reply::text("Ha."),
        Reply::text("Ha ha."),
    ]);
    let home = hasty(&model);
    let running = asks(&home, &model, "Delete all files");
    running.signal(Signal::INT);
    running.finish().exits(130);
    home.agent(["-m", "tell me a joke"]).answers("Ha.\n");
    let said = [
        ("user", "Delete all files"),
        ("assistant", "[stopped by the user before an answer]"),
        ("user", "tell me a joke"),
    ];
    is_said(&model.request(1), &said);
    home.agent(["-m", "another"]).answers("Ha ha.\n");
    is_said(
        &model.request(2),
        &[&said[..], &[("assistant", "Ha."), ("user", "another")]].concat(),
    );
}

#[test]
fn timed_out_question_is_noted_in_history() {
    let model = Model::scripted([
        Reply::text("Too late.").held(),
        Reply::text("Too late.").held(),
        Reply::text("Yes."),
    ]);
    let home = hasty(&model);
    home.agent(["--timeout", "4", "-m", "one"]).exits(6);
    let running = home.bantam().args(["agent", "-m", "two"]).spawn();
    model.wait_for_requests(2);
    dies(running);
    home.agent(["-m", "three"]).exits(0);
    is_said(
        &model.request(2),
        &[
            ("user", "one"),
            ("assistant", "[failed before an answer]"),
            ("user", "two"),
            ("assistant", "[interrupted before an answer]"),
            ("user", "three"),
        ],
    );
}

#[test]
fn refused_message_is_stored_but_not_sent() {
    for status in [400, 422] {
        let model = Model::scripted([
            Reply::text("Hello."),
            Reply::error(status, "violates the content policy"),
            Reply::text("Here."),
        ]);
        let home = hasty(&model);
        home.agent(["-m", "hi"]).exits(0);
        let run = home.agent(["-m", "bad words"]);
        run.fails(1).says("left out of the conversation");
        home.agent(["-m", "still there?"]).answers("Here.\n");
        is_said(
            &model.request(2),
            &[
                ("user", "hi"),
                ("assistant", "Hello."),
                ("user", "still there?"),
            ],
        );
        has_all(&home.read("sessions/cli_default.jsonl"), ["bad words"]);
    }
}

/// Returns a model whose host refuses requests with this text from request `from` on.
fn filtering(bad: &'static str, from: usize, first: fn() -> Reply) -> Model {
    Model::answering(move |request, n| {
        if n >= from && request.body.to_string().contains(bad) {
            return Reply::error(400, "violates the content policy");
        }
        if n == 0 {
            first()
        } else {
            Reply::text("Here.")
        }
    })
}

#[test]
fn a_history_that_the_host_refuses_is_left_out() {
    let reads = || Reply::call("read_file", &json!({ "path": "bad.txt" }));
    let says = || Reply::text("My nasty words.");
    // The words of an answer, and of a tool.
    for (from, first) in [(1, says as fn() -> Reply), (2, reads)] {
        let model = filtering("nasty words", from, first);
        let home = hasty(&model);
        home.write("workspace/bad.txt", "nasty words");
        home.agent(["-m", "hi"]).exits(0);
        home.agent(["-m", "one"]).exits(1).says("left out");
        let run = home.agent(["-v", "-m", "two"]);
        run.answers("Here.\n").says("asking again without");
        home.agent(["-m", "three"]).answers("Here.\n");
        home.session("cli_default").has_one_result_per_call();
    }
}

#[test]
fn what_a_tool_brought_is_left_out_when_the_host_refuses_it() {
    let reads = || Reply::call("read_file", &json!({ "path": "bad.txt" }));
    let model = filtering("nasty words", 1, reads);
    let home = hasty(&model);
    home.write("workspace/bad.txt", "nasty words");
    home.agent(["-m", "hi"]).answers("Here.\n");
    home.agent(["-m", "and now?"]).answers("Here.\n");
    home.session("cli_default").has_one_result_per_call();
}

#[test]
fn the_reason_of_an_empty_answer_is_named_after_another_try() {
    let ended = |reason: &str| {
        let choice = json!({ "message": { "content": null }, "finish_reason": reason });
        Reply::json(200, &json!({ "choices": [choice] }))
    };
    let blocked = json!({ "choices": [], "promptFeedback": { "blockReason": "SPII" } });
    for (reply, named, offers_tools_again) in [
        (ended("OTHER"), "OTHER", Some(false)),
        (ended("LANGUAGE"), "LANGUAGE", Some(false)),
        (Reply::json(200, &blocked), "SPII", None),
        (
            ended("function_call_filter: MALFORMED_FUNCTION_CALL"),
            "",
            Some(true),
        ),
        (ended("network_error"), "", Some(true)),
        (ended("unknown"), "", Some(false)),
        (ended("null"), "", Some(false)),
    ] {
        let model = Model::answering(move |_, n| match n {
            1 if named.is_empty() => Reply::text("Again."),
            _ => reply.clone(),
        });
        let hasty = json!({ "agents": { "defaults": { "retry_initial_delay": 0.01 } } });
        let run = Home::asking(&model, &hasty).agent(["-m", "hi"]);
        if named.is_empty() {
            run.answers("Again.\n");
        } else {
            run.fails(1).says(named);
        }
        let again = (model.asked() == 2).then(|| !model.request(1).tools().is_empty());
        assert_eq!(again, offers_tools_again, "{named}");
    }
}

#[test]
fn cut_answer_is_reported() {
    let cut = |message: Value| {
        let body = json!({ "choices": [{ "message": message, "finish_reason": "length" }] });
        Reply::json(200, &body)
    };
    let model = Model::scripted([
        cut(json!({ "content": "Half an ans" })),
        cut(json!({ "content": "", "reasoning_content": "hm" })),
    ]);
    let home = hasty(&model);
    home.agent(["-m", "one"])
        .answers("Half an ans\n")
        .says("cut at max_tokens (8192)");
    home.agent(["-m", "two"])
        .fails_with_a_hint()
        .says("used all 8192 tokens to think")
        .says("--max-tokens");
    assert_eq!(model.requests().len(), 2, "it is not asked again");
}

#[test]
fn a_message_stays_when_the_model_is_not_there() {
    let model = Model::scripted([Reply::error(404, "no such model"), Reply::text("Here.")]);
    let home = hasty(&model);
    home.agent(["-m", "one"]).exits(3).does_not_say("left out");
    home.agent(["-m", "two"]).exits(0);
    assert_eq!(talk(&model.request(1)).len(), 3);
}

/// The smallest image.
const PICTURE: &[u8] =
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89";

fn has_picture(request: &Request) -> bool {
    request.body.to_string().contains("data:image/png")
}

#[test]
fn a_refused_picture_that_a_tool_brought_becomes_a_line() {
    let model = Model::answering(|request, _| match request.texts("tool").len() {
        _ if has_picture(request) => Reply::error(400, "could not process the picture: bad data"),
        0 => Reply::call("read_file", &json!({ "path": "broken.png" })),
        _ => Reply::text("It is broken."),
    });
    let home = hasty(&model);
    home.write("workspace/broken.png", PICTURE);
    home.agent(["-v", "-m", "look"])
        .answers("It is broken.\n")
        .says("picture");
    let asked = model.requests().len();
    assert_eq!(asked, 3, "asked once more without it");
    has_all(&model.request(2).last("tool"), ["refused"]);
    home.agent(["-m", "and now?"]).exits(0);
    assert_eq!(model.requests().len(), 4, "and never again with it");
}

#[test]
fn pictures_older_than_the_last_two_turns_become_a_line_each() {
    let model = Model::scripted(["One.", "Two.", "Three.", "Four."].map(Reply::text));
    let home = hasty(&model);
    let picture = home.write("seen.png", PICTURE);
    home.agent(["-a", picture.to_str().unwrap(), "-m", "what is it?"])
        .exits(0);
    for text in ["and now?", "still?", "anything else?"] {
        home.agent(["-m", text]).exits(0);
    }
    assert!(
        (0..3).all(|n| has_picture(&model.request(n))),
        "two turns and the one under way"
    );
    assert!(!has_picture(&model.request(3)));
    has_all(&talk(&model.request(3))[0].1, ["[an image seen.png, "]);
}

#[test]
fn a_message_has_the_local_time_with_weekday_offset_and_zone() {
    let model = Model::scripted([Reply::text("One."), Reply::text("Two.")]);
    let home = hasty(&model);
    home.bantam()
        .env("TZ", "Asia/Kolkata")
        .args(["agent", "-m", "when?"])
        .run()
        .exits(0);
    let first = model.request(0).last("user");
    let time = first
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]\n"))
        .map(|(time, _)| time.to_owned())
        .unwrap();
    has_all(&time, [" +05:30, "]);
    assert!(time.ends_with("day, Asia/Kolkata"), "{time}");
    assert_eq!(
        time.as_bytes()[..19]
            .iter()
            .filter(|b| b.is_ascii_digit())
            .count(),
        14,
        "{time}"
    );
    // The conversation is unchanged, wherever the user goes.
    home.bantam()
        .env("TZ", "UTC")
        .args(["agent", "-m", "and now?"])
        .run()
        .exits(0);
    assert_eq!(model.request(1).texts("user")[0], first);
    has_all(&model.request(1).last("user"), [" +00:00, "]);
}

/// Returns a home with two models, and a conversation that uses the second.
fn with_a_chosen_model(model: &Model) -> Home {
    let entry = |name: &str| json!({ "model_name": name, "model": format!("openai/{name}"), "api_base": model.base(), "api_key": "sk-fake-for-tests" });
    let config = merged(model.config(), &json!({ "model_list": null }));
    let home = Home::with(&merged(
        config,
        &json!({ "model_list": [entry("test"), entry("second")] }),
    ));
    let lines = [
        json!({ "v": 1, "session": "cli_default" }),
        json!({ "state": { "model": "second" } }),
    ];
    home.write("sessions/cli_default.jsonl", journal(lines));
    home
}

#[test]
fn the_environment_decides_over_the_model_of_a_conversation() {
    let model = Model::scripted([Reply::text("One."), Reply::text("Two.")]);
    let home = with_a_chosen_model(&model);
    home.agent(["-m", "hi"]).exits(0);
    assert_eq!(model.request(0).body["model"], "second");
    home.bantam()
        .env("BANTAM_AGENTS_DEFAULTS_MODEL_NAME", "test")
        .args(["agent", "-m", "hi"])
        .run()
        .exits(0);
    assert_eq!(model.request(1).body["model"], "test");
}

#[test]
fn a_conversation_that_starts_over_has_the_configured_model() {
    let model = Model::scripted([
        Reply::text("One."),
        Reply::text("Two."),
        Reply::text("Three."),
    ]);
    let home = with_a_chosen_model(&model);
    home.run(["sessions", "reset", "default"]).exits(0);
    home.agent(["-m", "hi"]).exits(0);
    assert_eq!(model.request(0).body["model"], "test");
    let asked = home
        .bantam()
        .arg("agent")
        .silent_stdin()
        .on_a_clever_terminal(80);
    let mut talk = asked.spawn();
    talk.wait_for_stdout("> ");
    talk.types_until("/model second\n", "the model is now openai/second");
    talk.types_until("hi\n", "Two.");
    talk.types_until("/new\n", "started a new conversation");
    talk.types_until("hi\n", "Three.");
    talk.types("/quit\n");
    talk.finish().exits(0);
    assert_eq!(
        [1, 2].map(|n| model.request(n).body["model"].clone()),
        ["second", "test"]
    );
}

#[test]
fn unreadable_agent_file_fails_the_turn() {
    for name in ["IDENTITY.md", "AGENT.md", "AGENTS.md", "SOUL.md"] {
        let model = Model::never_asked();
        let home = hasty(&model);
        home.dir(format!("agent/{name}"));
        home.agent(["-m", "hi"])
            .fails(3)
            .says(&format!("agent/{name}"));
    }
}
