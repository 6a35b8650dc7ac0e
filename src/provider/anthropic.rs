//! Anthropic's Messages API, version 2023-06-01.
//!
//! Differences from other APIs: a message is a list of blocks, tool results are blocks of the user's next message, and the
//! client sets cache breakpoints. Of the four that the API allows, up to three are set: after the stable part of the system
//! prompt, after the conversation so far, which is a prefix of the next request, and before the notes of the newest message.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};

use super::ToolOffer;
use super::body::{BodyWriter, Draft, labelled};
use super::host::HostApi;
use super::reply::{ReadError, ReplyBuilder, Stage, THOUGHTS};
use super::values::{count, list, read_call, string};
use crate::json::parse_json;
use crate::message::{Media, MediaKind, Message, Reply, ToolResult, User};

pub(super) const API: HostApi = HostApi {
    chat: "/messages",
    has_audio: false,
    write,
    read,
};
/// Version of the API, as a header.
pub(super) const VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");

/// Minimum token budget for thinking that the API accepts.
const LEAST_THINKING: u64 = 1024;

/// Format of a declared tool.
const TOOL: [&str; 3] = ["{", "input_schema", "}"];
/// Declared if no tool is offered: the API rejects a conversation with calls unless a tool is declared, even if calls are
/// forbidden.
static STAND_IN: ToolOffer = ToolOffer {
    name: Cow::Borrowed("none"),
    description: Cow::Borrowed("not available now"),
    schema: Cow::Borrowed(r#"{"type":"object"}"#),
};

#[derive(Serialize)]
struct Turn {
    role: &'static str,
    content: Vec<Value>,
}

/// Writes the body of a request.
fn write<'a>(draft: &Draft<'a>) -> BodyWriter<'a> {
    let (system, messages) = conversation(draft);
    let mut body = draft.begin_body();
    body.field("model", &draft.model.id);
    body.field("max_tokens", draft.max_tokens());
    body.optional_field("stream", draft.streams().then_some(true));
    body.field("messages", messages);
    if !system.is_empty() {
        body.field("system", system);
    }
    match thinking_budget(draft) {
        // Newer models have an effort in place of a budget.
        Some(_) if draft.adds("adaptive") => {
            body.field("thinking", json!({"type": "adaptive"}));
            body.field("output_config", json!({"effort": effort(draft)}));
        }
        Some(budget) => {
            let thinking = json!({"type": "enabled", "budget_tokens": budget});
            body.field("thinking", thinking);
        }
        // The API rejects a temperature together with thinking.
        None => body.optional_field("temperature", draft.temperature()),
    }
    let mut tools = draft.tools();
    let is_withheld = draft.request.withheld || tools.is_empty();
    let has_calls =
        |message: &Message| matches!(message, Message::Assistant(reply) if !reply.calls.is_empty());
    if tools.is_empty() && draft.request.messages.iter().any(has_calls) {
        tools.push(&STAND_IN);
    }
    if !tools.is_empty() {
        body.declare(&tools, TOOL);
        if is_withheld {
            body.field("tool_choice", json!({"type": "none"}));
        } else if draft.request.sampling.must_call {
            body.field("tool_choice", json!({"type": "any"}));
        }
    }
    body.optional_field("stop_sequences", draft.request.sampling.stop.as_ref());
    body.finish()
}

fn effort(draft: &Draft) -> &'static str {
    match draft.effort() {
        Some("minimal" | "low") => "low",
        Some("medium") => "medium",
        _ => "high",
    }
}

/// Returns the thinking budget of the entry's effort, in tokens; `None` if the last reply has no thoughts to send back.
fn thinking_budget(draft: &Draft) -> Option<u64> {
    let most = draft.max_tokens();
    let budget = match draft.effort()? {
        "none" => return None,
        "minimal" | "low" => LEAST_THINKING,
        "medium" => most / 4,
        _ => most / 2,
    };
    let mut before = draft.request.messages.iter().rev();
    let last = before.find(|message| !matches!(message, Message::ToolResult(_)));
    let is_thoughtless = matches!(last, Some(Message::Assistant(reply))
        if draft.echo(reply, THOUGHTS).is_none());
    (most > LEAST_THINKING && !is_thoughtless).then_some(budget.max(LEAST_THINKING))
}

/// Returns a block of text. Replaces empty text, which the API rejects.
fn text(text: &str) -> Value {
    let text = if text.trim().is_empty() {
        "(empty)"
    } else {
        text
    };
    json!({"type": "text", "text": text})
}

/// Returns the blocks of the system prompt and the conversation: user first, alternating roles, all results of a step in one
/// message.
fn conversation(draft: &Draft) -> (Vec<Value>, Vec<Turn>) {
    let system = draft.request.system;
    let mut changing = system.changing.to_owned();
    let mut turns: Vec<Turn> = Vec::new();
    for message in draft.request.messages {
        let (role, content) = match message {
            Message::System(text) => {
                changing = format!("{changing}\n\n{text}");
                continue;
            }
            Message::User(user) => ("user", blocks_of_user(user, draft)),
            Message::Assistant(reply) => ("assistant", blocks_of_reply(reply, draft)),
            Message::ToolResult(result) => ("user", vec![tool_result(result, draft)]),
        };
        match turns.last_mut() {
            Some(last) if last.role == role => last.content.extend(content),
            // The API rejects a message without blocks.
            _ if content.is_empty() => {}
            _ => turns.push(Turn { role, content }),
        }
    }
    if turns.first().is_none_or(|turn| turn.role != "user") {
        let (role, content) = ("user", vec![text("(conversation continued)")]);
        turns.insert(0, Turn { role, content });
    }
    if let Some(turn) = turns.last_mut().filter(|turn| turn.role == "user") {
        mark_last(&mut turn.content, draft);
    }
    let mut blocks = Vec::new();
    if !system.stable.trim().is_empty() {
        blocks.push(text(system.stable.trim()));
        mark_last(&mut blocks, draft);
    }
    if !changing.trim().is_empty() {
        blocks.push(text(changing.trim()));
    }
    (blocks, turns)
}

/// Allows caching up to and including the last block.
fn mark_last(blocks: &mut [Value], draft: &Draft) {
    if let (Some(last), true) = (blocks.last_mut(), draft.sends("cache_control")) {
        last["cache_control"] = json!({"type": "ephemeral"});
    }
}

fn blocks_of_user(user: &User, draft: &Draft) -> Vec<Value> {
    let mut blocks = vec![text(&draft.user_text(user))];
    let media = draft.taken(&user.media);
    blocks.extend(media.flat_map(|media| labelled(media, text, media_block(media))));
    if !user.notes.is_empty() {
        // The next turn's request is identical up to here, but lacks the notes.
        mark_last(&mut blocks, draft);
        blocks.push(text(&user.notes));
    }
    blocks
}

fn blocks_of_reply(reply: &Reply, draft: &Draft) -> Vec<Value> {
    // The API rejects a message that only has thoughts.
    if reply.text.trim().is_empty() && reply.calls.is_empty() {
        return Vec::new();
    }
    let thoughts = draft.echo(reply, THOUGHTS).and_then(Value::as_array);
    let mut blocks = thoughts.cloned().unwrap_or_default();
    if !reply.text.trim().is_empty() {
        // The API rejects white space at the end of a reply.
        blocks.push(text(reply.text.trim_end()));
    }
    blocks.extend(reply.calls.iter().map(|call| {
        let (id, name) = (draft.id(&call.id), &call.name);
        let input = parse_json(&*call.object()).unwrap_or_else(|_| json!({}));
        json!({"type": "tool_use", "id": id, "name": name, "input": input})
    }));
    blocks
}

fn tool_result(result: &ToolResult, draft: &Draft) -> Value {
    let words = result.content.clone() + &draft.replacements(&result.images);
    let mut content = vec![text(&words)];
    let images = draft.taken(&result.images);
    content.extend(images.flat_map(|image| labelled(image, text, media_block(image))));
    let id = draft.id(&result.call_id);
    let mut block = json!({"type": "tool_result", "tool_use_id": id, "content": content});
    if result.is_error {
        block["is_error"] = true.into();
    }
    block
}

fn media_block(media: &Media) -> Value {
    let source = json!({"type": "base64", "media_type": media.mime, "data": media.base64});
    match media.kind() {
        MediaKind::Image => json!({"type": "image", "source": source}),
        _ if media.name.is_empty() => json!({"type": "document", "source": source}),
        _ => json!({"type": "document", "source": source, "title": media.name}),
    }
}

/// Reads an event of a stream, or a whole body.
pub(crate) fn read(event: &str, into: &mut ReplyBuilder) -> Result<(), ReadError> {
    let event = into.parse(event)?;
    into.usage(&event["message"]["usage"]);
    into.usage(&event["usage"]);
    let index = count(&event["index"]);
    for piece in [&event["content_block"], &event["delta"]] {
        read_stop(piece, into);
        read_block(piece, index, into);
    }
    for block in list(&event["content"]) {
        read_block(block, None, into);
    }
    read_stop(&event, into);
    if event["type"] == "message_stop" {
        into.stage = Stage::Ended;
    }
    Ok(())
}

fn read_stop(piece: &Value, into: &mut ReplyBuilder) {
    let explanation = string(&piece["stop_details"]["explanation"]);
    into.stop(string(&piece["stop_reason"]), explanation);
}

/// Reads a block of a whole body, or a delta of the block with this index.
fn read_block(block: &Value, index: Option<u64>, into: &mut ReplyBuilder) {
    match string(&block["type"]) {
        "text" | "text_delta" => into.content(&block["text"]),
        "thinking" | "thinking_delta" | "signature_delta" => {
            let thinking = string(&block["thinking"]);
            into.thought("reasoning_content", thinking);
            let signature = string(&block["signature"]);
            let thought = json!({"type": "thinking", "thinking": thinking, "signature": signature, "index": index});
            into.detail(THOUGHTS, json!([thought]));
        }
        "redacted_thinking" => {
            let block = json!({"type": "redacted_thinking", "data": block["data"]});
            into.detail(THOUGHTS, json!([block]));
        }
        "tool_use" | "input_json_delta" => {
            // The arguments of a streamed call arrive as fragments of JSON text.
            let input = Some(&block["input"]).filter(|input| **input != json!({}));
            let input = input.filter(|input| input.is_object());
            let arguments = input.unwrap_or(&block["partial_json"]);
            let call = json!({"id": block["id"], "name": block["name"], "arguments": arguments});
            into.call(index, read_call(&call));
        }
        _ => {}
    }
}
