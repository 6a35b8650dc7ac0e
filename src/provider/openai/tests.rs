//! Conversations in the API's format.

use super::*;
use crate::message::{Message, User};
use crate::provider::tests::wire;

fn wire_messages(system: &str, messages: &[Message]) -> Value {
    wire(Protocol::OpenAi, system, messages)["messages"].take()
}

#[test]
fn a_deployment_has_its_name_in_the_address() {
    let version = "?api-version=2024-10-21";
    for (base, url) in [
        (
            "https://r.openai.azure.com",
            format!("https://r.openai.azure.com/openai/deployments/d/chat/completions{version}"),
        ),
        (
            "https://h/openai/",
            format!("https://h/openai/deployments/d/chat/completions{version}"),
        ),
        (
            "https://h/openai/deployments/x",
            format!("https://h/openai/deployments/x/chat/completions{version}"),
        ),
        (
            "https://h?api-version=1",
            "https://h/openai/deployments/d/chat/completions?api-version=1".to_owned(),
        ),
        (
            "https://h/openai/v1/",
            "https://h/openai/v1/chat/completions".to_owned(),
        ),
    ] {
        assert_eq!(azure_url(base, "d", CHAT), url);
    }
}

#[test]
fn a_conversation_is_sent_in_the_order_that_every_server_takes() {
    let call = |id: &str, arguments: &str| ToolCall {
        id: id.into(),
        name: "f".into(),
        arguments: arguments.into(),
        ..ToolCall::default()
    };
    let messages = [
        Message::user("one"),
        Message::User(User {
            content: "two".into(),
            time: "T".into(),
            ..User::default()
        }),
        Message::Assistant(Reply {
            calls: vec![
                call("a", r#"{"x":1}"#),
                call("b", "{oops"),
                call("c", r#"{"x":"\ud83e"}"#),
            ],
            ..Reply::default()
        }),
        Message::ToolResult(ToolResult {
            call_id: "a".into(),
            ..ToolResult::default()
        }),
        Message::ToolResult(ToolResult {
            call_id: "b".into(),
            content: "bad".into(),
            is_error: true,
            images: Vec::new(),
        }),
        Message::Assistant(Reply {
            reasoning: "only thoughts".into(),
            ..Reply::default()
        }),
        Message::System("late".into()),
    ];
    let wire = wire_messages("first", &messages);
    assert_eq!(
        wire[0],
        json!({"role": "system", "content": "first\n\nlate"})
    );
    assert_eq!(
        wire[1],
        json!({"role": "user", "content": "one\n\n[T]\ntwo"})
    );
    assert_eq!(wire[2]["content"], Value::Null);
    assert_eq!(
        wire[2]["tool_calls"][0]["function"]["arguments"],
        "{\"x\":1}"
    );
    assert_eq!(wire[2]["tool_calls"][1]["function"]["arguments"], "{}");
    assert_eq!(
        wire[2]["tool_calls"][2]["function"]["arguments"],
        "{\"x\":\"\u{fffd}\"}"
    );
    assert_eq!(
        wire[3],
        json!({"role": "tool", "tool_call_id": "a", "content": "(empty)"})
    );
    assert_eq!(wire[4]["content"], "bad");
    assert_eq!(wire.as_array().unwrap().len(), 5);
}

#[test]
fn images_follow_all_the_results_of_their_step() {
    type Row = (&'static str, Vec<Message>, Vec<&'static str>, Option<Value>);
    let image = |base64: &str| Media {
        mime: "image/png".into(),
        base64: base64.into(),
        ..Media::default()
    };
    let result = |id: &str, images| {
        Message::ToolResult(ToolResult {
            call_id: id.into(),
            content: id.into(),
            is_error: false,
            images,
        })
    };
    let call = |id: &str| ToolCall {
        id: id.into(),
        name: "f".into(),
        ..ToolCall::default()
    };
    let step = |ids: &[&str]| {
        Message::Assistant(Reply {
            calls: ids.iter().map(|id| call(id)).collect(),
            ..Reply::default()
        })
    };
    let url = |base64: &str| json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{base64}")}});
    let shown = json!({"type": "text", "text": "[images from the tools]"});
    let rows: [Row; 4] = [
        (
            "no image",
            vec![step(&["a"]), result("a", vec![])],
            vec!["assistant", "tool"],
            None,
        ),
        (
            "in the first of two results",
            vec![
                step(&["a", "b"]),
                result("a", vec![image("QQ==")]),
                result("b", vec![]),
            ],
            vec!["assistant", "tool", "tool", "user"],
            Some(json!([shown, url("QQ==")])),
        ),
        (
            "in both, and the step is followed by an answer",
            vec![
                step(&["a", "b"]),
                result("a", vec![image("QQ==")]),
                result("b", vec![image("Qg=="), image("Qw==")]),
                Message::Assistant(Reply {
                    text: "seen".into(),
                    ..Reply::default()
                }),
            ],
            vec!["assistant", "tool", "tool", "user", "assistant"],
            Some(json!([shown, url("QQ=="), url("Qg=="), url("Qw==")])),
        ),
        (
            "before the user's next words",
            vec![
                step(&["a"]),
                result("a", vec![image("QQ==")]),
                Message::user("and now?"),
                Message::user("well?"),
            ],
            vec!["assistant", "tool", "user"],
            Some(json!([
                shown,
                url("QQ=="),
                {"type": "text", "text": "and now?"},
                {"type": "text", "text": "well?"},
            ])),
        ),
    ];
    for (case, messages, roles, content) in rows {
        let wire = wire_messages("", &messages);
        let wire = wire.as_array().unwrap();
        assert_eq!(
            wire.iter()
                .map(|m| m["role"].as_str().unwrap())
                .collect::<Vec<_>>(),
            roles,
            "{case}"
        );
        for message in wire.iter().filter(|m| m["role"] == "tool") {
            assert!(message["content"].is_string(), "{case}: {message}");
        }
        let last = wire
            .iter()
            .rfind(|m| m["role"] == "user")
            .map(|m| m["content"].clone());
        assert_eq!(last, content, "{case}");
    }
}

#[test]
fn vendor_fields_go_back_where_they_came_from() {
    let extra = |v: Value| v.as_object().cloned().unwrap();
    let reply = Reply {
        reasoning: "hm".into(),
        calls: vec![ToolCall {
            id: "a".into(),
            name: "f".into(),
            arguments: "{}".into(),
            extra: extra(json!({"extra_content": {"google": 1}, "thought_signature": "s"})),
        }],
        extra: extra(json!({"reasoning_field": "reasoning_content", "reasoning_details": [1]})),
        ..Reply::default()
    };
    let wire = wire_messages("", &[Message::Assistant(reply)]);
    let wire = &wire[0];
    assert_eq!(wire["reasoning_content"], "hm");
    assert_eq!(wire["reasoning_details"], json!([1]));
    assert!(wire.get("reasoning_field").is_none());
    assert_eq!(wire["tool_calls"][0]["extra_content"]["google"], 1);
    assert_eq!(wire["tool_calls"][0]["function"]["thought_signature"], "s");
}
