//! Anthropic's Messages API, version 2023-06-01.
//!
//! It differs from the rest of the world in three ways: a message is a list of blocks, tool results are blocks of the user's
//! next message, and the client marks what may be cached. Of the four marks that are allowed, up to three are set: at the end
//! of the stable part of the system prompt, at the end of the conversation so far, which the next request begins with, and
//! before the notes that go with the newest message only.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Request;
use super::dialect::{self, Dialect};
use super::replies::THOUGHTS;
use crate::config::Model;
use crate::message::{Media, MediaKind, Message, Reply, ToolCall, ToolResult, User};

pub(crate) const ANTHROPIC: Dialect = Dialect {
    chat: "/messages",
    url: |model, endpoint| api_url(&model.base, endpoint),
    auth: |key| ("x-api-key", key.to_owned()),
    headers: &[("anthropic-version", "2023-06-01")],
    body,
    translate,
};

/// The smallest budget of tokens that the API accepts.
const LEAST_THINKING: u64 = 1024;

fn body(model: &Model, request: &Request) -> Value {
    let mut body = dialect::body(
        model,
        request,
        |tool, schema| json!({"name": tool.name, "description": tool.description, "input_schema": schema}),
    );
    let (system, messages) = wire(request);
    body["messages"] = messages;
    if system.as_array().is_some_and(|blocks| !blocks.is_empty()) {
        body["system"] = system;
    }
    think(&mut body, model, request);
    if let (true, Some(called)) = (request.tools.is_empty(), called_tools(request.messages)) {
        // The API refuses a conversation with calls unless tools are declared, even where none may be called.
        body["tools"] = called;
        body["tool_choice"] = json!({"type": "none"});
    }
    body
}

/// Asks for thinking before the answer, as much as the entry wants of the reply's tokens. It excludes a temperature, and a
/// turn whose calls were made without it.
fn think(body: &mut Value, model: &Model, request: &Request) {
    let most = model.entry.max_tokens;
    let budget = match model.entry.reasoning_effort.as_str() {
        "" | "none" => return,
        "minimal" | "low" => LEAST_THINKING,
        "medium" => most / 4,
        _ => most / 2,
    };
    let last = request
        .messages
        .iter()
        .rev()
        .find(|message| !matches!(message, Message::ToolResult(_)));
    let is_thoughtless =
        matches!(last, Some(Message::Assistant(reply)) if !reply.extra.contains_key(THOUGHTS));
    if most <= LEAST_THINKING || is_thoughtless {
        return;
    }
    body["thinking"] = json!({"type": "enabled", "budget_tokens": budget.max(LEAST_THINKING)});
    if let Some(fields) = body.as_object_mut() {
        fields.remove("temperature");
    }
}

/// The address of an endpoint for a base with `/v1`, with `/messages`, or with neither.
fn api_url(base: &str, endpoint: &str) -> String {
    let base = base
        .trim()
        .trim_end_matches('/')
        .trim_end_matches("/messages")
        .trim_end_matches("/v1");
    format!("{base}/v1{endpoint}")
}

/// Declarations of all tools that the conversation calls.
fn called_tools(messages: &[Message]) -> Option<Value> {
    let mut tools = BTreeMap::new();
    for message in messages {
        let Message::Assistant(reply) = message else {
            continue;
        };
        for ToolCall { name, .. } in &reply.calls {
            tools.insert(
                name,
                json!({"name": name, "description": "not available now", "input_schema": {"type": "object"}}),
            );
        }
    }
    (!tools.is_empty()).then(|| tools.into_values().collect())
}

/// The system prompt and the conversation: the user first, roles in turn, the results of a step in one message.
fn wire(request: &Request) -> (Value, Value) {
    let mut changing = request.system.changing.to_owned();
    let mut wire: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in request.messages {
        let (role, blocks) = match message {
            Message::System(text) => {
                changing = format!("{changing}\n\n{text}");
                continue;
            }
            Message::User(user) => ("user", wire_user(user)),
            Message::Assistant(reply) => ("assistant", wire_reply(reply)),
            Message::ToolResult(result) => ("user", vec![wire_result(result)]),
        };
        match wire.last_mut() {
            Some((last, have)) if *last == role => have.extend(blocks),
            // The API refuses a message without blocks.
            _ if blocks.is_empty() => {}
            _ => wire.push((role, blocks)),
        }
    }
    if wire.first().is_none_or(|(role, _)| *role != "user") {
        wire.insert(0, ("user", vec![text("(conversation continued)")]));
    }
    if let Some(("user", blocks)) = wire.last_mut() {
        blocks.last_mut().map(mark);
    }
    let [mut stable, changing] = [request.system.stable.trim(), changing.trim()]
        .map(|part| (!part.is_empty()).then(|| text(part)));
    stable.as_mut().map(mark);
    let messages = wire
        .into_iter()
        .map(|(role, content)| json!({"role": role, "content": content}));
    (
        stable.into_iter().chain(changing).collect(),
        messages.collect(),
    )
}

/// The API refuses an empty text.
fn text(text: &str) -> Value {
    json!({"type": "text", "text": if text.trim().is_empty() { "(empty)" } else { text }})
}

/// Allows caching up to and including this block.
fn mark(block: &mut Value) {
    block["cache_control"] = json!({"type": "ephemeral"});
}

fn wire_user(user: &User) -> Vec<Value> {
    let mut blocks: Vec<Value> = std::iter::once(text(&user.dated()))
        .chain(user.media.iter().map(wire_media))
        .collect();
    if !user.notes.is_empty() {
        // The next turn's request is the same up to here, and lacks the notes.
        blocks.last_mut().map(mark);
        blocks.push(text(&user.notes));
    }
    blocks
}

fn wire_reply(reply: &Reply) -> Vec<Value> {
    let mut blocks: Vec<Value> = Vec::new();
    // Thinking alone is not a message.
    if reply.text.trim().is_empty() && reply.calls.is_empty() {
        return blocks;
    }
    if !reply.partial {
        blocks.extend(
            reply
                .extra
                .get(THOUGHTS)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .cloned(),
        );
    }
    if !reply.text.trim().is_empty() {
        // The API refuses white space at the end of a reply.
        blocks.push(text(reply.text.trim_end()));
    }
    for call in &reply.calls {
        let input = call.object().unwrap_or_else(|| json!({}));
        blocks.push(
            json!({"type": "tool_use", "id": wire_id(&call.id), "name": call.name, "input": input}),
        );
    }
    blocks
}

fn wire_result(result: &ToolResult) -> Value {
    let mut content = vec![text(&result.content)];
    content.extend(result.images.iter().map(wire_media));
    let mut block =
        json!({"type": "tool_result", "tool_use_id": wire_id(&result.call_id), "content": content});
    if result.is_error {
        block["is_error"] = true.into();
    }
    block
}

fn wire_media(media: &Media) -> Value {
    let kind = match media.kind() {
        MediaKind::Image => "image",
        MediaKind::Pdf => "document",
        MediaKind::Audio => return text(&media.replacement("left out: this API takes no audio")),
    };
    json!({"type": kind, "source": {"type": "base64", "media_type": media.mime, "data": media.base64}})
}

/// The API accepts only letters, digits, `_` and `-` in an id; those of other hosts may hold more.
fn wire_id(id: &str) -> String {
    id.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_")
}

/// An event, or a whole body, in the words of the OpenAI API.
fn translate(event: Value) -> Value {
    let of_block = |block| json!({"choices": [{"delta": delta(block, &event["index"])}]});
    match event["type"].as_str().unwrap_or_default() {
        "message_start" => json!({"usage": event["message"]["usage"]}),
        "content_block_start" => of_block(&event["content_block"]),
        "content_block_delta" => of_block(&event["delta"]),
        "message_delta" => {
            json!({"choices": [{"finish_reason": event["delta"]["stop_reason"]}], "usage": event["usage"]})
        }
        "message_stop" => "[DONE]".into(),
        _ => match event["content"].as_array() {
            Some(blocks) => {
                let messages = blocks
                    .iter()
                    .map(|block| json!({"message": delta(block, &Value::Null)}));
                let end = json!({"finish_reason": event["stop_reason"]});
                json!({"choices": messages.chain([end]).collect::<Value>(), "usage": event["usage"]})
            }
            // An error, `ping`, `content_block_stop`, and future events.
            None => event,
        },
    }
}

/// A block or a piece of one as a message or a piece of it.
fn delta(block: &Value, index: &Value) -> Value {
    match block["type"].as_str().unwrap_or_default() {
        "text" | "text_delta" => json!({"content": block["text"]}),
        "thinking" | "thinking_delta" | "signature_delta" => {
            let (thinking, signature) = (&block["thinking"], &block["signature"]);
            let thought = json!({"type": "thinking", "thinking": thinking, "signature": signature});
            json!({"reasoning_content": thinking, THOUGHTS: [thought]})
        }
        "redacted_thinking" => json!({THOUGHTS: [block]}),
        "tool_use" | "input_json_delta" => {
            // The arguments of a streamed call arrive as pieces of JSON text.
            let whole = block["input"]
                .as_object()
                .filter(|input| !input.is_empty())
                .map(|_| &block["input"]);
            let arguments = whole.unwrap_or(&block["partial_json"]);
            json!({"tool_calls": [{"index": index, "id": block["id"], "name": block["name"], "arguments": arguments}]})
        }
        _ => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancel::Cancel;
    use crate::message::{Stop, Usage};
    use crate::provider::System;
    use crate::provider::assembler::Assembler;

    fn sent(system: System, messages: &[Message]) -> (Value, Value) {
        let cancel = Cancel::new(None);
        wire(&Request {
            system,
            messages,
            tools: &[],
            stream: false,
            on_thought: &|_| (),
            cancel: &cancel,
        })
    }

    fn call(id: &str, arguments: &str) -> ToolCall {
        ToolCall {
            id: id.into(),
            name: "f".into(),
            arguments: arguments.into(),
            ..ToolCall::default()
        }
    }

    fn image() -> Media {
        Media {
            mime: "image/png".into(),
            base64: "AA==".into(),
            ..Media::default()
        }
    }

    fn result(id: &str, content: &str) -> Message {
        Message::ToolResult(ToolResult {
            call_id: id.into(),
            content: content.into(),
            ..ToolResult::default()
        })
    }

    #[test]
    fn an_address_is_completed_once() {
        for base in [
            "https://h",
            "https://h/",
            "https://h/v1",
            "https://h/v1/messages",
        ] {
            assert_eq!(api_url(base, "/messages"), "https://h/v1/messages");
        }
        assert_eq!(
            api_url("https://h/anthropic", "/messages"),
            "https://h/anthropic/v1/messages"
        );
    }

    #[test]
    fn roles_take_turns_and_the_results_of_a_step_are_one_message() {
        let messages = [
            Message::Assistant(Reply {
                text: "cut off\n".into(),
                partial: true,
                ..Reply::default()
            }),
            Message::user("one"),
            Message::User(User {
                media: vec![image()],
                ..User::default()
            }),
            Message::Assistant(Reply {
                text: " ".into(),
                calls: vec![call("a", "{\"x\":1}"), call("b:1", "{oops")],
                ..Reply::default()
            }),
            result("a", ""),
            Message::ToolResult(ToolResult {
                call_id: "b:1".into(),
                content: "no".into(),
                is_error: true,
                images: vec![image()],
            }),
            Message::user("two"),
            Message::Assistant(Reply::default()),
            Message::System("late".into()),
            Message::user("three"),
        ];
        let (system, wire) = sent(System::default(), &messages);
        assert_eq!(system[0]["text"], "late");
        let roles: Vec<&str> = wire
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|m| m["role"].as_str())
            .collect();
        assert_eq!(roles, ["user", "assistant", "user", "assistant", "user"]);
        assert_eq!(
            wire[1]["content"],
            json!([{"type": "text", "text": "cut off"}])
        );
        assert_eq!(wire[2]["content"][1]["text"], "(empty)");
        let source = json!({"type": "base64", "media_type": "image/png", "data": "AA=="});
        assert_eq!(
            wire[2]["content"][2],
            json!({"type": "image", "source": source})
        );
        let calls = json!([
            {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "b_1", "name": "f", "input": {}},
        ]);
        assert_eq!(wire[3]["content"], calls);
        let last = &wire[4]["content"];
        assert_eq!(
            (&last[0]["type"], &last[0]["tool_use_id"]),
            (&json!("tool_result"), &json!("a"))
        );
        assert_eq!(
            (&last[1]["tool_use_id"], &last[1]["is_error"]),
            (&json!("b_1"), &json!(true))
        );
        assert_eq!(last[1]["content"][1]["source"], source);
        assert_eq!(
            (&last[2]["text"], &last[3]["text"]),
            (&json!("two"), &json!("three"))
        );
        assert_eq!(wire.to_string().matches("cache_control").count(), 1);
    }

    #[test]
    fn thoughts_go_back_as_they_came_and_unsigned_ones_do_not() {
        let body = json!({"content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "thinking", "thinking": "!"},
            {"type": "redacted_thinking", "data": "d"},
            {"type": "text", "text": "a"},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}},
        ], "stop_reason": "tool_use", "usage": {"input_tokens": 1, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 4, "output_tokens": 3}});
        let mut assembler = Assembler::new(translate);
        assembler.event(&body.to_string()).unwrap();
        let reply = assembler.finish();
        assert_eq!(
            (reply.text.as_str(), reply.reasoning.as_str(), reply.stop),
            ("a", "hm!", Stop::Done)
        );
        assert_eq!(reply.calls[0].arguments, "{\"x\":1}");
        assert_eq!(
            reply.usage,
            Usage {
                prompt_tokens: 7,
                completion_tokens: 3,
                cached_tokens: 2
            }
        );
        let back = wire_reply(&reply);
        assert_eq!(
            back[..2],
            [body["content"][0].clone(), body["content"][2].clone()]
        );
        assert_eq!(back.len(), 4);
        assert_eq!(
            wire_reply(&Reply {
                text: String::new(),
                calls: Vec::new(),
                ..reply
            }),
            Vec::<Value>::new()
        );
    }
}
