//! Writes requests of the OpenAI chat completions API, which most of the world speaks.

use serde_json::{Value, json};

use super::Request;
use super::dialect::{self, Dialect};
use super::replies::{ECHOED, REASONING_FIELD};
use crate::config::Model;
use crate::config::vendors::Protocol;
use crate::message::{Media, MediaKind, Message, Reply, ToolCall, User};

pub(crate) const OPENAI: Dialect = Dialect {
    chat: COMPLETIONS,
    url,
    auth: |key| ("authorization", format!("Bearer {key}")),
    headers: &[],
    body,
    translate: |event| event,
};

pub(crate) const AZURE: Dialect = Dialect {
    auth: |key| ("api-key", key.to_owned()),
    ..OPENAI
};

/// Where chats are completed, below a base.
const COMPLETIONS: &str = "/chat/completions";
/// The version of Azure's API that has this shape.
const AZURE_VERSION: &str = "2024-10-21";

fn body(model: &Model, request: &Request) -> Value {
    let mut body = dialect::body(model, request, |tool, schema| {
        let function =
            json!({"name": tool.name, "description": tool.description, "parameters": schema});
        json!({"type": "function", "function": function})
    });
    body["messages"] = wire_messages(&request.system.text(), request.messages);
    if !model.entry.reasoning_effort.is_empty() {
        body["reasoning_effort"] = model.entry.reasoning_effort.as_str().into();
    }
    if request.stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

/// The address of an endpoint for a model.
fn url(model: &Model, endpoint: &str) -> String {
    match model.protocol {
        Protocol::Azure => azure_url(&model.base, &model.id, endpoint),
        _ => api_url(&model.base, endpoint),
    }
}

/// The address of an endpoint for a base with `/chat/completions`, with a version, or with neither.
fn api_url(base: &str, endpoint: &str) -> String {
    let base = base
        .trim()
        .trim_end_matches('/')
        .trim_end_matches(COMPLETIONS);
    let path = base
        .split_once("://")
        .map_or(base, |(_, rest)| rest)
        .split_once('/')
        .map_or("", |(_, path)| path);
    if path.is_empty() {
        format!("{base}/v1{endpoint}")
    } else {
        format!("{base}{endpoint}")
    }
}

/// The address of an Azure deployment. The base may be the resource's, a deployment's, or that of the newer API, which has
/// the model's name in the body; a query in it (`?api-version=...`) stays.
fn azure_url(base: &str, deployment: &str, endpoint: &str) -> String {
    let (base, query) = base.trim().split_once('?').unwrap_or((base.trim(), ""));
    let base = base
        .trim_end_matches('/')
        .trim_end_matches(COMPLETIONS)
        .trim_end_matches("/openai");
    let is_whole = base.ends_with("/v1") || base.contains("/deployments/");
    let path = if is_whole {
        String::new()
    } else {
        format!("/openai/deployments/{deployment}")
    };
    let query = match query {
        "" if base.ends_with("/v1") => String::new(),
        "" => format!("?api-version={AZURE_VERSION}"),
        query => format!("?{query}"),
    };
    format!("{base}{path}{endpoint}{query}")
}

/// The conversation as the API wants it: one system message first, never two user messages in a row, each call followed by
/// its result. Results are text; the images of a step follow all its results, as a user message.
fn wire_messages(system: &str, messages: &[Message]) -> Value {
    let mut system = system.to_owned();
    let (mut wire, mut images) = (Vec::new(), Vec::new());
    for message in messages {
        if !matches!(message, Message::ToolResult(_)) {
            show(&mut wire, &mut images);
        }
        match message {
            Message::System(text) => system = format!("{system}\n\n{text}"),
            Message::User(user) => say(&mut wire, wire_user(user)),
            Message::Assistant(reply) => wire.extend(wire_reply(reply)),
            Message::ToolResult(result) => {
                // Some hosts refuse an empty result.
                let content = if result.content.is_empty() {
                    "(empty)"
                } else {
                    result.content.as_str()
                };
                wire.push(
                    json!({"role": "tool", "tool_call_id": result.call_id, "content": content}),
                );
                images.extend(result.images.iter().map(wire_media));
            }
        }
    }
    show(&mut wire, &mut images);
    for message in &mut wire {
        // Text is sent as a plain string: not every host reads parts.
        let parts = message["content"].as_array().into_iter().flatten();
        let texts: Option<Vec<&str>> = parts.map(|part| part["text"].as_str()).collect();
        if let Some(texts) = texts.filter(|texts| !texts.is_empty()) {
            message["content"] = texts.join("\n\n").into();
        }
    }
    if !system.trim().is_empty() {
        wire.insert(0, json!({"role": "system", "content": system.trim()}));
    }
    Value::Array(wire)
}

/// Adds parts to the user message at the end, or to a new one.
fn say(wire: &mut Vec<Value>, parts: Vec<Value>) {
    match wire
        .last_mut()
        .filter(|last| last["role"] == "user")
        .and_then(|last| last["content"].as_array_mut())
    {
        Some(content) => content.extend(parts),
        None => wire.push(json!({"role": "user", "content": parts})),
    }
}

/// Adds the images of a step's results.
fn show(wire: &mut Vec<Value>, images: &mut Vec<Value>) {
    if !images.is_empty() {
        images.insert(0, text("[images from the tools]"));
        say(wire, std::mem::take(images));
    }
}

fn wire_user(user: &User) -> Vec<Value> {
    let notes = if user.notes.is_empty() {
        String::new()
    } else {
        format!("\n\n{}", user.notes)
    };
    let said = text(&format!("{}{notes}", user.dated()));
    std::iter::once(said)
        .chain(user.media.iter().map(wire_media))
        .collect()
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn wire_media(media: &Media) -> Value {
    let url = || format!("data:{};base64,{}", media.mime, media.base64);
    match (media.kind(), media.audio_format()) {
        (MediaKind::Image, _) => json!({"type": "image_url", "image_url": {"url": url()}}),
        // The API refuses a file without a name.
        (MediaKind::Pdf, _) => {
            json!({"type": "file", "file": {"filename": "attached.pdf", "file_data": url()}})
        }
        (MediaKind::Audio, Some(format)) => {
            json!({"type": "input_audio", "input_audio": {"data": media.base64, "format": format}})
        }
        (MediaKind::Audio, None) => {
            text(&media.replacement("left out: this API takes WAV and MP3"))
        }
    }
}

/// `None` for a reply that says nothing: hosts refuse it.
fn wire_reply(reply: &Reply) -> Option<Value> {
    if reply.text.is_empty() && reply.calls.is_empty() {
        return None;
    }
    let content = if reply.text.is_empty() {
        Value::Null
    } else {
        reply.text.as_str().into()
    };
    let mut wire = json!({"role": "assistant", "content": content});
    if !reply.calls.is_empty() {
        wire["tool_calls"] = reply.calls.iter().map(wire_call).collect();
        // DeepSeek and Kimi demand the reasoning of tool turns, under the name they gave it.
        let field = reply.extra.get(REASONING_FIELD).and_then(Value::as_str);
        if let Some(field) = field.filter(|_| !reply.reasoning.is_empty()) {
            wire[field] = reply.reasoning.as_str().into();
        }
    }
    for name in ECHOED {
        if let Some(value) = reply.extra.get(name) {
            wire[name] = value.clone();
        }
    }
    Some(wire)
}

fn wire_call(call: &ToolCall) -> Value {
    // Some hosts refuse a whole conversation for arguments that are not JSON, even the model's own.
    let arguments = call.object().map_or("{}", |_| call.arguments.as_str());
    let mut wire = json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}});
    for (name, value) in &call.extra {
        match name.as_str() {
            "thought_signature" => wire["function"][name] = value.clone(),
            _ => wire[name] = value.clone(),
        }
    }
    wire
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::ToolResult;

    #[test]
    fn a_deployment_has_its_name_in_the_address() {
        let version = "?api-version=2024-10-21";
        for (base, url) in [
            (
                "https://r.openai.azure.com",
                format!(
                    "https://r.openai.azure.com/openai/deployments/d/chat/completions{version}"
                ),
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
            assert_eq!(azure_url(base, "d", COMPLETIONS), url);
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
                calls: vec![call("a", "{\"x\":1}"), call("b", "{oops")],
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
        let wire = wire_reply(&reply).unwrap();
        assert_eq!(wire["reasoning_content"], "hm");
        assert_eq!(wire["reasoning_details"], json!([1]));
        assert!(wire.get("reasoning_field").is_none());
        assert_eq!(wire["tool_calls"][0]["extra_content"]["google"], 1);
        assert_eq!(wire["tool_calls"][0]["function"]["thought_signature"], "s");
    }
}
