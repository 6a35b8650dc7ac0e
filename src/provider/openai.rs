//! The OpenAI chat completions API, which most hosts support.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::body::{BodyWriter, Draft, Extra, LongText, Step, data_url, file_name};
use super::host::HostApi;
use super::refusal::{REPLY_AFTER, RESULTS};
use super::reply::{ECHOED, REASONING_FIELD, ReadError, ReplyBuilder};
use super::says;
use super::values::{SIGNATURE, SIGNED, count, list, read_call, string, text_of};
use crate::message::{Media, MediaKind, Reply, ToolCall, ToolResult};
use crate::text::fenced;

pub(super) const API: HostApi = HostApi {
    chat: "/chat/completions",
    has_audio: true,
    write,
    read,
};

/// Format of a declared tool.
const TOOL: [&str; 3] = [r#"{"type":"function","function":{"#, "parameters", "}}"];

/// Writes the body of a request.
fn write<'a>(draft: &Draft<'a>) -> BodyWriter<'a> {
    let mut body = draft.begin_body();
    body.field("model", &draft.model.id);
    body.field("max_tokens", draft.max_tokens());
    if draft.streams() {
        body.field("stream", true);
        body.field("stream_options", json!({"include_usage": true}));
    }
    body.optional_field("temperature", draft.temperature());
    body.optional_field("stop", draft.request.sampling.stop.as_ref());
    body.optional_field("reasoning_effort", draft.effort());
    body.field("messages", turns(draft));
    body.tools(draft, TOOL);
    body.finish()
}

/// A message in the API's format.
#[derive(Default, Serialize)]
struct Turn<'a> {
    role: &'static str,
    content: Option<Content<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
    #[serde(flatten)]
    extra: Extra<'a>,
}

/// Content of a message. Some hosts do not support parts, so a lone text is sent as a plain string.
#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(LongText<'a>),
    Parts(Vec<Value>),
}

/// Returns the conversation in the API's format: one leading system message, no consecutive user messages, each call followed
/// by its result.
fn turns<'a>(draft: &Draft<'a>) -> Vec<Turn<'a>> {
    let mut turns = Vec::new();
    if let Some(system) = draft.whole_system() {
        let role = if draft.sends("system_role") {
            "system"
        } else {
            "user"
        };
        turns.push(turn(role, plain(system)));
    }
    for step in draft.steps() {
        match step {
            Step::User(text, media) => {
                if turns.last().is_some_and(|turn| turn.role == "tool") && draft.adds(REPLY_AFTER) {
                    turns.push(turn("assistant", plain("[continuing]")));
                }
                say(&mut turns, &text, media);
            }
            // Hosts reject an empty reply.
            Step::Reply(reply) if reply.text.is_empty() && reply.calls.is_empty() => {}
            Step::Reply(reply) => turns.push(said(reply, draft)),
            Step::Result(result) => add_result(&mut turns, result, draft),
        }
    }
    turns
}

fn turn<'a>(role: &'static str, content: Content<'a>) -> Turn<'a> {
    Turn {
        role,
        content: Some(content),
        ..Turn::default()
    }
}

fn plain<'a>(text: impl Into<Cow<'a, str>>) -> Content<'a> {
    Content::Text(LongText(text.into()))
}

fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

impl Content<'_> {
    /// Adds a text, which is joined with the one before until a file follows.
    fn add_text(&mut self, new: &str) {
        match self {
            Self::Text(LongText(text)) if text.is_empty() => *text = new.to_owned().into(),
            Self::Text(_) if new.is_empty() => {}
            Self::Text(LongText(text)) => text.to_mut().push_str(&format!("\n\n{new}")),
            Self::Parts(parts) => parts.push(text_part(new)),
        }
    }

    fn add_file(&mut self, file: &Media) {
        if let Some(label) = file.label() {
            self.add_text(&label);
        }
        if let Self::Text(LongText(text)) = self {
            *self = Self::Parts(vec![text_part(text)]);
        }
        if let Self::Parts(parts) = self {
            parts.push(media_part(file));
        }
    }
}

/// Adds a text and files to the last message if it is the user's, else to a new one.
fn say(turns: &mut Vec<Turn>, text: &str, media: Vec<&Media>) {
    let is_users = turns.last().is_some_and(|turn| turn.role == "user");
    let last = if is_users { turns.pop() } else { None };
    let mut content = last.and_then(|turn| turn.content).unwrap_or(plain(""));
    content.add_text(text);
    for file in media {
        content.add_file(file);
    }
    turns.push(turn("user", content));
}

fn add_result<'a>(turns: &mut Vec<Turn<'a>>, result: &'a ToolResult, draft: &Draft<'a>) {
    let mut content = Cow::Borrowed(result.content.as_str());
    content += Cow::Owned(draft.replacements(&result.images));
    if !draft.sends(RESULTS) {
        return say(turns, &format!("[result]\n{}", fenced(&content)), vec![]);
    }
    if content.is_empty() {
        // Some hosts reject an empty result.
        content = "(empty)".into();
    }
    turns.push(Turn {
        tool_call_id: Some(draft.id(&result.call_id)),
        ..turn("tool", plain(content))
    });
}

fn media_part(media: &Media) -> Value {
    let url = || data_url(media);
    match (media.kind(), media.audio_format()) {
        (MediaKind::Image, _) => json!({"type": "image_url", "image_url": {"url": url()}}),
        (MediaKind::Pdf, _) => {
            json!({"type": "file", "file": {"filename": file_name(media), "file_data": url()}})
        }
        (MediaKind::Audio, Some(format)) => {
            let audio = json!({"data": media.base64, "format": format});
            json!({"type": "input_audio", "input_audio": audio})
        }
        (MediaKind::Audio, None) => {
            text_part(&media.replacement("left out: this API supports only WAV and MP3"))
        }
    }
}

fn said<'a>(reply: &'a Reply, draft: &Draft<'a>) -> Turn<'a> {
    let mut text = Cow::Borrowed(reply.text.as_str());
    let mut calls = Vec::new();
    for (n, call) in reply.calls.iter().enumerate() {
        if draft.sends(RESULTS) {
            calls.push(call_of(call, n == 0, reply, draft));
        } else {
            text += Cow::Owned(format!("\n[calls {} {}]", call.name, call.object()));
        }
    }
    let details = ECHOED.map(|name| Some((name, Cow::Borrowed(draft.echo(reply, name)?))));
    let mut extra: Extra = details.into_iter().flatten().collect();
    // DeepSeek and Kimi require the reasoning of turns with tool calls, under the original field name.
    if !reply.calls.is_empty() {
        let field = draft.echo(reply, REASONING_FIELD).and_then(Value::as_str);
        extra.extend(field.map(|field| (field, Cow::Owned(reply.reasoning.as_str().into()))));
    }
    if !extra.contains_key("reasoning_content") && draft.adds("reasoning") {
        extra.insert("reasoning_content", Cow::Owned("".into()));
    }
    let is_null = text.is_empty() && draft.sends("null");
    Turn {
        role: "assistant",
        content: (!is_null).then(|| plain(text)),
        tool_calls: calls,
        extra,
        ..Turn::default()
    }
}

fn call_of(call: &ToolCall, is_first: bool, reply: &Reply, draft: &Draft) -> Value {
    let function = json!({"name": call.name, "arguments": call.object()});
    let mut sent = json!({"id": draft.id(&call.id), "type": "function", "function": function});
    for (name, value) in &call.extra {
        match name.as_str() {
            SIGNED if draft.echoes(reply) => sent[SIGNED] = value.clone(),
            SIGNATURE if draft.echoes(reply) => sent["function"][SIGNATURE] = value.clone(),
            _ => {}
        }
    }
    let is_signed = !sent[SIGNED].is_null() || !sent["function"][SIGNATURE].is_null();
    // Marks a call as another model's. Only the first call of a reply is signed.
    if is_first && !is_signed && draft.adds("signatures") {
        sent[SIGNED] = json!({"google": {"thought_signature": "skip_thought_signature_validator"}});
    }
    sent
}

/// An event of a stream with a piece of text and nothing else to read. Most events are such, and most of the time of reading a
/// [`Value`] is spent on its maps.
#[derive(Deserialize)]
struct TextEvent<'a> {
    #[serde(borrow)]
    choices: [TextChoice<'a>; 1],
    #[serde(default, rename = "usage")]
    _usage: (),
    #[serde(default, rename = "error")]
    _error: (),
}

#[derive(Deserialize)]
struct TextChoice<'a> {
    #[serde(borrow)]
    delta: TextDelta<'a>,
    #[serde(default, rename = "finish_reason")]
    _finish_reason: (),
    #[serde(default, rename = "usage")]
    _usage: (),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextDelta<'a> {
    #[serde(borrow)]
    content: Cow<'a, str>,
    #[serde(default, rename = "role")]
    _role: IgnoredAny,
}

/// Words in the reasons of hosts that end a reply because something failed. Another sample may be good.
const FAILURES: &str = "error | malformed | unexpected_tool_call | insufficient_system | abort";

/// Reads an event of a stream, or a whole body.
pub(crate) fn read(event: &str, into: &mut ReplyBuilder) -> Result<(), ReadError> {
    if let Ok(event) = serde_json::from_str::<TextEvent>(event) {
        let [choice] = event.choices;
        into.piece_of_text(&choice.delta.content);
        return Ok(());
    }
    let event = into.parse(event)?;
    // Some gateways wrap a whole answer: `{"success":true,"data":{...}}`.
    let wrapped = Some(&event["data"]).filter(|data| data["choices"].is_array());
    let event = wrapped.unwrap_or(&event);
    let choices = list(&event["choices"]);
    if let Some(choice) = choices.first() {
        let reason = string(&choice["finish_reason"]);
        if reason != "stop" && says(&reason.to_lowercase(), FAILURES) {
            let error = Some(&choice["error"]).filter(|error| !error.is_null());
            let unknown = format!("the model failed: {reason}").into();
            return Err(ReadError::refusal(error.unwrap_or(&unknown)));
        }
        // Moonshot's streams report the usage here.
        into.usage(&choice["usage"]);
    }
    into.usage(&event["usage"]);
    if choices.is_empty() {
        into.stop(string(&event["promptFeedback"]["blockReason"]), "");
        into.content(&event["output_text"]);
        into.content(&event["content"]);
    }
    // Gateways to Claude may send the text in the first choice and the calls in the second.
    for choice in choices {
        into.stop(string(&choice["finish_reason"]), &refusal_in(choice));
        let delta = &choice["delta"];
        let message = if delta.is_object() {
            delta
        } else {
            &choice["message"]
        };
        read_message(message, into);
        // The legacy format of a call is the last field.
        let legacy = Some(&message["function_call"]).filter(|call| call.is_object());
        let calls = list(&message["tool_calls"]).iter().chain(legacy);
        for (n, call) in calls.enumerate() {
            // Each call of a whole message is a new one.
            let whole = (!delta.is_object()).then_some(n as u64);
            into.call(whole.or_else(|| count(&call["index"])), read_call(call));
        }
    }
    Ok(())
}

/// Reads a message, or a delta of one, except its calls.
fn read_message(message: &Value, into: &mut ReplyBuilder) {
    for field in ["reasoning_content", "reasoning"] {
        into.thought(field, &text_of(&message[field]));
    }
    into.content(&message["content"]);
    let images = list(&message["images"]).iter();
    images.for_each(|image| into.picture(image));
    into.refusal(string(&message["refusal"]));
    for name in ECHOED {
        into.detail(name, message[name].clone());
    }
}

/// Returns the host's reason for refusing a reply; empty if it gives no reason.
fn refusal_in(choice: &Value) -> String {
    let explanation = string(&choice["stop_details"]["explanation"]);
    if !explanation.trim().is_empty() {
        return explanation.to_owned();
    }
    let results = choice["content_filter_results"].as_object();
    let results = results.into_iter().flatten();
    let filtered = results.filter(|(_, result)| result["filtered"] == true);
    let categories: Vec<&str> = filtered.map(|(category, _)| category.as_str()).collect();
    categories.join(", ")
}
