//! Writes requests of the OpenAI chat completions API, which most of the world speaks.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::dialect::{Dialect, Fields, Outgoing, Reading};
use super::json::Json;
use super::quirks::{EMPTY_REASONING, NO_EFFORT, NO_NULL, NO_SYSTEM_ROLE, SIGNATURES};
use super::shapes::{ECHOED, REASONING_FIELD};
use crate::config::Model;
use crate::config::vendors::Protocol;
use crate::message::{Media, MediaKind, Message, Reply, ToolCall, ToolResult, User};

pub(crate) const OPENAI: Dialect = Dialect {
    chat: COMPLETIONS,
    url,
    auth: |key| ("authorization", format!("Bearer {key}")),
    headers: &[],
    write,
    reading: READING,
};

pub(super) const READING: Reading = Reading {
    text: text_alone,
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

fn write(out: &Outgoing, fields: &mut Fields) {
    let (entry, request) = (&out.model.entry, out.request);
    out.write_common(fields);
    if let Some(temperature) = out.temperature() {
        if let Some(json) = fields.begin("temperature") {
            json.value(&temperature.into());
        }
    }
    if out.quirks.has(NO_EFFORT) {
        fields.force("reasoning_effort").text("none");
    } else if !entry.reasoning_effort.is_empty() {
        if let Some(json) = fields.begin("reasoning_effort") {
            json.text(&entry.reasoning_effort);
        }
    }
    if request.stream {
        if let Some(json) = fields.begin("stream_options") {
            json.raw(r#"{"include_usage":true}"#);
        }
    }
    if let Some(json) = fields.begin("messages") {
        let messages = turns(out);
        json.list(|json| {
            for message in &messages {
                message.write(out, json);
            }
        });
    }
    let Some(tools) = out.tools() else { return };
    if let Some(json) = fields.begin("tools") {
        json.list(|json| {
            for tool in tools {
                json.object(|json| {
                    json.field("type").text("function");
                    json.field("function").object(|json| {
                        json.field("name").text(&tool.name);
                        json.field("description").text(&tool.description);
                        json.field("parameters").raw(&tool.schema);
                    });
                });
            }
        });
    }
    if request.withheld {
        if let Some(json) = fields.begin("tool_choice") {
            json.text("none");
        }
    }
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

/// A message as the API wants it.
enum Turn<'a> {
    System(String),
    User(Vec<Part<'a>>),
    Reply(&'a Reply),
    Result(&'a ToolResult),
}

/// A part of a user's message.
enum Part<'a> {
    Text(Cow<'a, str>),
    User(&'a User),
    Media(&'a Media),
}

/// The conversation as the API wants it: one system message first, never two user messages in a row, each call followed by
/// its result. Results are text; the images of a step follow all its results, as a user message.
fn turns<'a>(out: &Outgoing<'a>) -> Vec<Turn<'a>> {
    let mut system = out.request.system.text();
    let (mut turns, mut images) = (Vec::new(), Vec::new());
    for message in out.request.messages {
        if !matches!(message, Message::ToolResult(_)) {
            show(&mut turns, &mut images);
        }
        match message {
            Message::System(text) => system = format!("{system}\n\n{text}"),
            Message::User(user) => {
                say(&mut turns, [Part::User(user)]);
                say(&mut turns, out.taken(&user.media).map(Part::Media));
            }
            // Hosts refuse a reply that says nothing.
            Message::Assistant(reply) if reply.text.is_empty() && reply.calls.is_empty() => {}
            Message::Assistant(reply) => turns.push(Turn::Reply(reply)),
            Message::ToolResult(result) => {
                turns.push(Turn::Result(result));
                images.extend(out.taken(&result.images).map(Part::Media));
            }
        }
    }
    show(&mut turns, &mut images);
    let system = system.trim();
    if system.is_empty() {
        return turns;
    }
    if !out.quirks.has(NO_SYSTEM_ROLE) {
        turns.insert(0, Turn::System(system.to_owned()));
        return turns;
    }
    let system = Part::Text(system.to_owned().into());
    match turns.first_mut() {
        Some(Turn::User(parts)) => parts.insert(0, system),
        _ => turns.insert(0, Turn::User(vec![system])),
    }
    turns
}

/// Adds parts to the user message at the end, or to a new one.
fn say<'a>(turns: &mut Vec<Turn<'a>>, parts: impl IntoIterator<Item = Part<'a>>) {
    match turns.last_mut() {
        Some(Turn::User(said)) => said.extend(parts),
        _ => turns.push(Turn::User(parts.into_iter().collect())),
    }
}

/// Adds the images of a step's results.
fn show<'a>(turns: &mut Vec<Turn<'a>>, images: &mut Vec<Part<'a>>) {
    if !images.is_empty() {
        say(turns, [Part::Text("[images from the tools]".into())]);
        say(turns, images.drain(..));
    }
}

impl Turn<'_> {
    fn write(&self, out: &Outgoing, json: &mut Json) {
        json.object(|json| match self {
            Turn::System(text) => {
                json.field("role").text("system");
                json.field("content").text(text);
            }
            Turn::User(parts) => {
                json.field("role").text("user");
                write_parts(parts, out, json.field("content"));
            }
            Turn::Reply(reply) => write_reply(reply, out, json),
            Turn::Result(result) => {
                json.field("role").text("tool");
                json.field("tool_call_id").text(&out.id(&result.call_id));
                // Some hosts refuse an empty result.
                let content = match result.content.as_str() {
                    "" => "(empty)",
                    content => content,
                };
                let replacements = out.replacements(&result.images);
                json.field("content").pieces([content, &replacements]);
            }
        });
    }
}

/// Text alone is sent as a plain string: not every host reads parts.
fn write_parts(parts: &[Part], out: &Outgoing, json: &mut Json) {
    let texts: Option<Vec<Vec<Cow<str>>>> = parts.iter().map(|part| part.text(out)).collect();
    if let Some(texts) = texts {
        let pieces = texts.iter().enumerate().flat_map(|(n, text)| {
            let between = if n == 0 { "" } else { "\n\n" };
            std::iter::once(between).chain(text.iter().map(|piece| &**piece))
        });
        json.pieces(pieces);
        return;
    }
    json.list(|json| {
        for part in parts {
            json.object(|json| match (part, part.text(out)) {
                (_, Some(text)) => {
                    json.field("type").text("text");
                    let pieces = text.iter().map(|piece| &**piece);
                    json.field("text").pieces(pieces);
                }
                (Part::Media(media), None) => write_media(media, json),
                _ => {}
            });
        }
    });
}

impl<'a> Part<'a> {
    /// The pieces of its text; `None` for media.
    fn text(&'a self, out: &Outgoing) -> Option<Vec<Cow<'a, str>>> {
        match self {
            Part::Text(text) => Some(vec![Cow::Borrowed(text)]),
            Part::User(user) => {
                let mut pieces = Vec::new();
                let time = user.shown_time();
                if !time.is_empty() {
                    pieces.extend(["[".into(), time.into(), "]\n".into()]);
                }
                pieces.push(user.content.as_str().into());
                pieces.push(out.replacements(&user.media).into());
                if !user.notes.is_empty() {
                    pieces.extend(["\n\n".into(), user.notes.as_str().into()]);
                }
                Some(pieces)
            }
            Part::Media(media) => {
                let is_left_out =
                    media.kind() == MediaKind::Audio && media.audio_format().is_none();
                is_left_out.then(|| {
                    vec![
                        media
                            .replacement("left out: this API takes WAV and MP3")
                            .into(),
                    ]
                })
            }
        }
    }
}

fn write_media(media: &Media, json: &mut Json) {
    let url = ["data:", &media.mime, ";base64,", &media.base64];
    match media.kind() {
        MediaKind::Image => {
            json.field("type").text("image_url");
            json.field("image_url")
                .object(|json| json.field("url").pieces(url));
        }
        MediaKind::Pdf => {
            json.field("type").text("file");
            json.field("file").object(|json| {
                // The API refuses a file without a name.
                json.field("filename").text("attached.pdf");
                json.field("file_data").pieces(url);
            });
        }
        MediaKind::Audio => {
            json.field("type").text("input_audio");
            json.field("input_audio").object(|json| {
                json.field("data").text(&media.base64);
                json.field("format")
                    .text(media.audio_format().unwrap_or_default());
            });
        }
    }
}

fn write_reply(reply: &Reply, out: &Outgoing, json: &mut Json) {
    json.field("role").text("assistant");
    if reply.text.is_empty() && !out.quirks.has(NO_NULL) {
        json.field("content").raw("null");
    } else {
        json.field("content").text(&reply.text);
    }
    let echoes = out.echoes(reply);
    if !reply.calls.is_empty() {
        json.field("tool_calls").list(|json| {
            for (n, call) in reply.calls.iter().enumerate() {
                json.object(|json| write_call(call, n == 0, echoes, out, json));
            }
        });
    }
    // DeepSeek and Kimi demand the reasoning of tool turns, under the name they gave it.
    let field = reply.extra.get(REASONING_FIELD).and_then(Value::as_str);
    let field = field.filter(|_| echoes && !reply.calls.is_empty() && !reply.reasoning.is_empty());
    if let Some(field) = field {
        json.field(field).text(&reply.reasoning);
    }
    if out.quirks.has(EMPTY_REASONING) && field != Some("reasoning_content") {
        json.field("reasoning_content").text("");
    }
    for name in ECHOED {
        if let Some(value) = reply.extra.get(name).filter(|_| echoes) {
            json.field(name).value(value);
        }
    }
}

fn write_call(call: &ToolCall, is_first: bool, echoes: bool, out: &Outgoing, json: &mut Json) {
    const SIGNATURE: &str = "thought_signature";
    json.field("id").text(&out.id(&call.id));
    json.field("type").text("function");
    let extra = |name: &str| call.extra.get(name).filter(|_| echoes);
    json.field("function").object(|json| {
        json.field("name").text(&call.name);
        json.field("arguments").text(&call.object());
        if let Some(value) = extra(SIGNATURE) {
            json.field(SIGNATURE).value(value);
        }
    });
    // Marks a call as another model's. Of several in one reply, only the first is signed.
    let is_unsigned = extra("extra_content").is_none();
    if is_first && is_unsigned && out.quirks.has(SIGNATURES) {
        json.field("extra_content")
            .raw(r#"{"google":{"thought_signature":"skip_thought_signature_validator"}}"#);
    }
    for (name, value) in call
        .extra
        .iter()
        .filter(|(name, _)| echoes && *name != SIGNATURE)
    {
        json.field(name).value(value);
    }
}

/// The text of an event that holds a piece of text and nothing else that counts.
fn text_alone(event: &str) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(borrow)]
        choices: [Choice<'a>; 1],
        error: Option<IgnoredAny>,
        usage: Option<IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct Choice<'a> {
        #[serde(borrow)]
        delta: Delta<'a>,
        finish_reason: Option<IgnoredAny>,
        usage: Option<IgnoredAny>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Delta<'a> {
        #[serde(borrow)]
        content: Cow<'a, str>,
        #[serde(rename = "role")]
        _role: Option<IgnoredAny>,
    }
    let event: Event = serde_json::from_str(event).ok()?;
    let [choice] = event.choices;
    let is_more = event.error.is_some()
        || event.usage.is_some()
        || choice.finish_reason.is_some()
        || choice.usage.is_some();
    (!is_more).then_some(choice.delta.content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::tests::wire;
    use serde_json::json;

    fn wire_messages(system: &str, messages: &[Message]) -> Value {
        wire(&OPENAI, system, messages)["messages"].take()
    }

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
}
