//! Streams, in all observed formats.

use serde_json::json;

use super::{case, delta, done, end, stream};
use crate::harness::Home;
use crate::model::{Model, Reply};

fn text(text: &str) -> String {
    delta(&json!({ "content": text }))
}

fn piece(index: Option<u64>, id: &str, name: &str, arguments: &str) -> String {
    let mut call = json!({ "function": { "arguments": arguments } });
    for (field, value) in [("index", json!(index)), ("id", json!(id))] {
        if !value.is_null() && value != "" {
            call[field] = value;
        }
    }
    if !name.is_empty() {
        call["function"]["name"] = name.into();
    }
    delta(&json!({ "tool_calls": [call] }))
}

#[test]
fn events_are_written_in_many_ways() {
    let dialect = [
        "\u{feff}: OPENROUTER PROCESSING\r\n\r\n",
        "event: message\r\nid: 7\r\ndata:{\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\r\n\r\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"Grü\"}}]}\r\n\r\nda",
        "ta: {\"choices\":\r\ndata: [{\"delta\":{\"content\":\"ße.\"}}],\"usage\":null}\r\n\r\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        "data: [DONE]\n\ndata: {\"choices\":[{\"delta\":{\"content\":\" More.\"}}]}",
    ];
    case(
        26,
        "comments, names, CRLF, data without a space or over lines, JSON after the end",
        [Reply::events(dialect)],
    )
    .answers("Grüße.")
    .run();
    let endless = [
        text("Enough."),
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}".to_owned(),
    ];
    case(
        26,
        "no [DONE], and no blank line at the end",
        [stream(endless)],
    )
    .answers("Enough.")
    .run();
    let lines = [text("Line "), text("by line."), end("stop")].concat();
    let unmarked = lines.replace("data: [DONE]", "").replace("data: ", "");
    for lines in [lines.replace("\n\n", "\n"), unmarked.replace("\n\n", "\n")] {
        let seen = case(26, "events without blank lines", [Reply::events([&*lines])])
            .answers("Line by line.")
            .run();
        assert_eq!(seen.requests.len(), 1);
        case(26, "the same, of another type", [Reply::html(200, &lines)])
            .answers("Line by line.")
            .run();
    }
    for odd in [
        json!({ "content": [{ "type": "text", "text": "In parts." }] }),
        json!({ "content": "In parts." }),
    ] {
        let null = "data: {\"choices\":[{\"index\":0,\"delta\":null}]}\n\n".to_owned();
        let alive = "data: {\"choices\":[]}\n\n".to_owned();
        let events = [
            delta(&json!({ "role": "assistant" })),
            null,
            alive,
            delta(&odd),
            end("stop"),
        ];
        case(
            32,
            "a null delta, a role alone, a chunk without choices, content in parts",
            [stream(events)],
        )
        .answers("In parts.")
        .run();
    }
}

#[test]
fn usage_comes_last_or_in_a_choice() {
    let usage = json!({ "prompt_tokens": 5, "completion_tokens": 2 });
    let last = format!("data: {}\n\n", json!({ "choices": [], "usage": usage }));
    let inside = format!(
        "data: {}\n\n",
        json!({ "choices": [ { "delta": {}, "finish_reason": "stop", "usage": usage } ] })
    );
    for events in [
        vec![
            text("Hi."),
            end("stop").replace("data: [DONE]\n\n", ""),
            last,
        ],
        vec![text("Hi."), inside],
    ] {
        let seen = case(
            29,
            "usage in a last chunk, or in a choice",
            [stream(events)],
        )
        .args(&["--json"])
        .run();
        assert_eq!(seen.run.json()["usage"]["total_tokens"], 7);
    }
}

#[test]
fn broken_stream_is_retried_if_unseen() {
    let broken = || stream([text("Once upon")]);
    let seen = case(
        27,
        "the end of the connection without an end of the reply",
        [broken(), done()],
    )
    .answers("Done.")
    .run();
    assert_eq!(seen.requests.len(), 2);
    let seen = case(
        27,
        "the same, twice, and then never again",
        [broken(), broken(), broken()],
    )
    .fails(5, "broke off")
    .run();
    let session = seen.home.session("cli_default");
    let last = *session.history().last().unwrap();
    assert_eq!(
        (&last["content"], &last["partial"]),
        (&json!("Once upon"), &json!(true)),
        "only the last of them"
    );
    // On a terminal, it was displayed.
    let model = Model::scripted([broken()]);
    let home = Home::with(&model.config());
    let run = home
        .bantam()
        .args(["agent", "-m", "hi"])
        .on_a_clever_terminal(80)
        .run();
    assert!(
        run.code == Some(5) && run.stdout.contains("Once upon"),
        "{:?}: {}",
        run.code,
        run.stdout
    );
    // Readers of the events have also seen it.
    let model = Model::scripted([broken()]);
    Home::with(&model.config())
        .agent(["--events", "-m", "hi"])
        .exits(5);
    let error =
        "data: {\"error\":{\"code\":502,\"message\":\"upstream fell over\"}}\n\ndata: [DONE]\n\n"
            .to_owned();
    let seen = case(
        28,
        "an error in mid stream",
        [stream([text("Once upon"), error.clone()])],
    )
    .once()
    .fails(5, "upstream fell over")
    .run();
    assert_eq!(
        seen.home.session("cli_default").history().last().unwrap()["partial"],
        true
    );
    case(
        28,
        "the same, tried again",
        [stream([text("Once upon"), error]), done()],
    )
    .answers("Done.")
    .run();
}

#[test]
fn calls_are_put_together_whatever_the_host_numbers() {
    let a = |index| piece(index, "a", "think", "{\"thought\":\"1\"}");
    let b = |index| piece(index, "b", "think", "{\"thought\":\"2\"}");
    let interleaved = vec![
        piece(Some(0), "a", "think", ""),
        piece(Some(1), "b", "think", ""),
        piece(Some(0), "", "", "{\"thought\""),
        piece(Some(1), "", "", "{\"thought\":\"2\"}"),
        piece(Some(0), "", "", ":\"1\"}"),
    ];
    for calls in [
        interleaved,
        vec![a(Some(0)), b(Some(2))],
        vec![a(Some(1)), b(Some(2))],
        vec![a(Some(0)), b(Some(0))],
        vec![a(None), b(None)],
    ] {
        let events = calls.into_iter().chain([end("tool_calls")]);
        let seen = case(
            30,
            "indices with gaps, from 1, all 0, or none",
            [stream(events), done()],
        )
        .answers("Done.")
        .run();
        let calls = seen.calls();
        let arguments: Vec<&str> = calls.iter().map(|call| call.2.as_str()).collect();
        assert_eq!(arguments, ["{\"thought\":\"1\"}", "{\"thought\":\"2\"}"]);
    }
    for names in [["thi", "nk"], ["think", "think"], ["think", ""]] {
        let events = [
            piece(Some(0), "a", names[0], ""),
            piece(Some(0), "", names[1], "{\"thought\":"),
            piece(Some(0), "", "", "\"x\"}"),
            end("stop"),
        ];
        let seen = case(
            31,
            "a name in pieces, or repeated",
            [stream(events), done()],
        )
        .answers("Done.")
        .run();
        assert_eq!(
            seen.calls(),
            [(
                "a".to_owned(),
                "think".to_owned(),
                "{\"thought\":\"x\"}".to_owned()
            )]
        );
    }
}

#[test]
fn a_slow_stream_may_take_longer_than_the_limit_on_silence() {
    let base = super::server(|stream| {
        use std::io::Write;
        super::answering(
            &stream,
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n",
        );
        let mut stream = stream;
        for n in 0..5 {
            // The host is slow; this is not a wait for an event.
            std::thread::sleep(std::time::Duration::from_millis(600));
            stream.write_all(text(&format!("{n}")).as_bytes()).ok();
        }
        stream.write_all(end("stop").as_bytes()).ok();
    });
    let (_, run) = super::asked_at(
        &format!("http://{base}/v1"),
        &json!({ "model_list": [ { "request_timeout": 2 } ] }),
    );
    run.exits(0).prints("01234\n");
}

#[test]
fn a_learned_field_is_told_by_status() {
    let refusal = json!({ "detail": [ { "type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted" } ] });
    let model = Model::scripted([Reply::json(422, &refusal), done()]);
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"]).exits(0);
    let second = &model.requests()[1];
    assert!(second.body.get("stream_options").is_none() && second.is_streamed());
    let run = home.bantam().arg("status").run();
    assert!(
        run.stdout
            .contains(": does not support stream_options (since 20"),
        "{}",
        run.stdout
    );
}
