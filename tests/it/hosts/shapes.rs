//! Whole replies and tool calls, in all observed formats.

use serde_json::{Value, json};

use super::{case, delta, done, end, stream, think, whole};
use crate::model::Reply;

#[test]
fn half_an_answer_that_is_filtered_is_shown_with_the_reason() {
    let filtered = include_str!("../../corpus/hosts/content-filter.json");
    let filtered: Value = serde_json::from_str(filtered).unwrap();
    let host = [Reply::json(200, &filtered)];
    let seen = case(10, "half an answer, filtered", host)
        .args(&["--json"])
        .exits(1)
        .run();
    let object = seen.run.json();
    assert_eq!(object["output"], "Half a ");
    let message = object["error"]["message"].as_str().unwrap();
    assert!(message.contains("content_filter: violence"), "{message}");
}

#[test]
fn thoughts_without_an_answer_are_asked_about_again() {
    let host = [whole(&json!({ "content": "<think>hm" })), done()];
    let seen = case(12, "thoughts and no answer", host)
        .answers("Done.")
        .run();
    assert_eq!(seen.requests[1].body["tool_choice"], "none");
}

#[test]
fn calls_written_as_text_are_held_back() {
    let form = include_str!("../../corpus/calls/fenced.txt");
    let pieces = form.chars().map(|c| delta(&json!({ "content": c })));
    let pieces = pieces.chain([end("stop")]);
    let seen = case(13, "a call as text, in pieces", [stream(pieces), done()])
        .args(&["--events"])
        .run();
    assert_eq!(seen.calls()[0].1, "read_file");
    let shown = seen.run.stdout.matches("\"delta\"").count();
    assert_eq!(shown, 1, "nothing of the call: {}", seen.run.stdout);
    let example = format!("Write it like this:\n{form}");
    let host = [whole(&json!({ "content": example }))];
    case(13, "a call in words", host)
        .answers(example.trim_end())
        .run();
}

#[test]
fn signature_goes_back_with_its_call() {
    let mut signed = think("a");
    signed["extra_content"] = json!({ "google": { "thought_signature": "signed" } });
    let calls = whole(&json!({ "tool_calls": [signed, think("b")] }));
    let seen = case(23, "a signed call beside an unsigned one", [calls, done()])
        .answers("Done.")
        .run();
    let calls = &seen.requests[1].messages()[2]["tool_calls"];
    assert_eq!(
        calls[0]["extra_content"]["google"]["thought_signature"],
        "signed"
    );
    assert!(calls[1].get("extra_content").is_none(), "{calls}");
    let mut signed = think("a");
    signed["function"]["thought_signature"] = "signed".into();
    let calls = whole(&json!({ "tool_calls": [signed, think("b")] }));
    let seen = case(23, "a signature within the function", [calls, done()])
        .answers("Done.")
        .run();
    let calls = &seen.requests[1].messages()[2]["tool_calls"];
    assert_eq!(calls[0]["function"]["thought_signature"], "signed");
    assert!(calls[1]["function"].get("thought_signature").is_none());
}
