//! Replies in pieces and in unusual formats.

use serde_json::json;

use super::*;
use crate::provider::openai::read;

fn delta(delta: &Value) -> String {
    json!({"choices": [{"delta": delta}]}).to_string()
}

/// Returns the reply in these deltas, and the shown text.
fn streamed(deltas: &[Value]) -> (Reply, String) {
    let mut builder = ReplyBuilder::new(&[]);
    let mut shown = String::new();
    for event in deltas {
        read(&delta(event), &mut builder).unwrap();
        shown.push_str(&builder.take_visible().text);
    }
    let (reply, left) = builder.finish().unwrap();
    (reply, shown + &left.text)
}

#[test]
fn text_is_put_together_and_shown_as_it_comes() {
    let mut builder = ReplyBuilder::new(&[]);
    let mut event = |value: Value| {
        let progress = read(&delta(&value), &mut builder).unwrap();
        let Visible { text, thought } = builder.take_visible();
        (progress, text, thought)
    };
    let content =
        |text: &str, thought: &str| (Progress::Content, text.to_owned(), thought.to_owned());
    let alive = (Progress::Alive, String::new(), String::new());
    assert_eq!(event(json!({"role": "assistant"})), alive);
    assert_eq!(event(json!({"content": "he"})), content("he", ""));
    assert_eq!(event(json!({"content": [{"text": "y"}]})), content("y", ""));
    assert_eq!(event(json!({"reasoning": "hm"})), content("", "hm"));
    assert_eq!(event(Value::Null), alive);
    assert_eq!(
        event(json!({"content": 5, "tool_calls": "x", "refusal": {}})),
        alive
    );
    assert!(!builder.is_complete());
    read(
        r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
        &mut builder,
    )
    .unwrap();
    assert!(builder.is_complete());
    let reply = builder.finish().unwrap().0;
    assert_eq!(
        (reply.text.as_str(), reply.reasoning.as_str()),
        ("hey", "hm")
    );
}

#[test]
fn complete_call_ends_where_the_next_name_begins() {
    let call = |name: &str, arguments: &str| json!({"tool_calls": [{"function": {"name": name, "arguments": arguments}}]});
    let (reply, _) = streamed(&[call("f", "{\"x\":1}"), call("g", "{}")]);
    let calls: Vec<String> = reply
        .calls
        .into_iter()
        .map(|call| call.name + &call.arguments)
        .collect();
    assert_eq!(calls, ["f{\"x\":1}", "g{}"]);
}

#[test]
fn names_lose_what_is_no_part_of_them() {
    for name in [
        "functions.f",
        "f<|channel|>commentary",
        "functions.f:0",
        " f ",
    ] {
        let (reply, _) =
            streamed(&[json!({"tool_calls": [{"id": "a", "function": {"name": name}}]})]);
        assert_eq!(reply.calls[0].name, "f", "{name}");
    }
    let nameless = json!({"tool_calls": [{"function": {"arguments": "{}"}}]});
    assert_eq!(streamed(&[nameless]).0.calls, []);
}

#[test]
fn thoughts_and_end_tokens_are_not_shown() {
    let text = |pieces: &[&str]| {
        let pieces: Vec<Value> = pieces
            .iter()
            .map(|piece| json!({"content": piece}))
            .collect();
        streamed(&pieces).1
    };
    assert_eq!(
        text(&["<th", "ink>a", "b</thi", "nk>\n\n", "answer", " more"]),
        "answer more"
    );
    assert_eq!(text(&["[THI", "NK]a[/THI", "NK]", "answer"]), "answer");
    assert_eq!(text(&["<", "3 you"]), "<3 you");
    assert_eq!(text(&["hello"]), "hello");
    assert_eq!(text(&["hello", "<|im", "_end|>"]), "hello");
    assert_eq!(text(&["a <", " b"]), "a < b");
    assert_eq!(text(&["a <|", "b"]), "a <|b");
}

#[test]
fn details_of_one_index_are_joined() {
    let details = |piece: Value| json!({"reasoning_details": [piece]});
    let (reply, _) = streamed(&[
        details(json!({"type": "reasoning.text", "text": "Let", "index": 0})),
        details(json!({"text": " me read it.", "index": 0})),
        details(json!({"type": "reasoning.text", "signature": "S", "index": 0, "text": null})),
        details(json!({"type": "reasoning.encrypted", "data": "d", "index": 1})),
    ]);
    let joined = json!([
        {"type": "reasoning.text", "text": "Let me read it.", "index": 0, "signature": "S"},
        {"type": "reasoning.encrypted", "data": "d", "index": 1},
    ]);
    assert_eq!(reply.extra["reasoning_details"], joined);
}

#[test]
fn signed_thoughts_that_come_in_pieces_are_joined() {
    let thought = |thinking: &str, signature: &str| json!({"type": "thinking", "thinking": thinking, "signature": signature});
    let hidden = json!({"type": "redacted_thinking", "data": "d"});
    let blocks = [
        thought("a", ""),
        thought("b", "s"),
        hidden.clone(),
        thought("unsigned", ""),
    ];
    let (reply, _) = streamed(&[json!({"content": "x", "thinking_blocks": blocks})]);
    assert_eq!(
        reply.extra["thinking_blocks"],
        json!([thought("ab", "s"), hidden])
    );
}

#[test]
fn half_of_a_pair_is_replaced() {
    let mut builder = ReplyBuilder::new(&[]);
    let event = r#"{"choices":[{"delta":{"content":"half \ud83d of one"}}]}"#;
    read(event, &mut builder).unwrap();
    assert_eq!(builder.take_visible().text, "half \u{fffd} of one");
    assert_eq!(read("no", &mut builder), Err(EventError::NotJson));
}
