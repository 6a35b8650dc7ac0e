//! Anthropic's Messages API, version 2023-06-01.
//!
//! It differs from the rest of the world in three ways: a message is a list of blocks, tool results are blocks of the user's
//! next message, and the client marks what may be cached. Of the four marks that are allowed, up to three are set: at the end
//! of the stable part of the system prompt, at the end of the conversation so far, which the next request begins with, and
//! before the notes that go with the newest message only.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::dialect::{Dialect, Fields, Outgoing, Reading};
use super::json::Json;
use super::quirks::ADAPTIVE_THINKING;
use super::shapes::THOUGHTS;
use crate::message::{Media, MediaKind, Message, Reply, ToolCall, ToolResult, User};

pub(crate) const ANTHROPIC: Dialect = Dialect {
    chat: "/messages",
    url: |model, endpoint| api_url(&model.base, endpoint),
    auth: |key| ("x-api-key", key.to_owned()),
    headers: &[("anthropic-version", "2023-06-01")],
    write,
    reading: READING,
};

const READING: Reading = Reading {
    text: text_alone,
    translate,
};

/// The smallest budget of tokens that the API accepts.
const LEAST_THINKING: u64 = 1024;

fn write(out: &Outgoing, fields: &mut Fields) {
    out.write_common(fields);
    let conversation = Conversation::of(out);
    if let Some(json) = fields.begin("messages") {
        json.list(|json| {
            for (role, blocks) in &conversation.messages {
                json.object(|json| {
                    json.field("role").text(role);
                    write_blocks(blocks, out, json.field("content"));
                });
            }
        });
    }
    if !conversation.system.is_empty() {
        if let Some(json) = fields.begin("system") {
            write_blocks(&conversation.system, out, json);
        }
    }
    let thinks = write_thinking(out, fields);
    if let Some(temperature) = out.temperature().filter(|_| !thinks) {
        if let Some(json) = fields.begin("temperature") {
            json.value(&temperature.into());
        }
    }
    write_tools(out, fields);
}

fn write_tools(out: &Outgoing, fields: &mut Fields) {
    let tools = out.tools();
    let called = match tools {
        Some(_) => BTreeSet::new(),
        None => called_tools(out.request.messages),
    };
    if tools.is_none() && called.is_empty() {
        return;
    }
    if let Some(json) = fields.begin("tools") {
        json.list(|json| {
            for tool in tools.unwrap_or_default() {
                json.object(|json| {
                    json.field("name").text(&tool.name);
                    json.field("description").text(&tool.description);
                    json.field("input_schema").raw(&tool.schema);
                });
            }
            for name in &called {
                json.object(|json| {
                    json.field("name").text(name);
                    json.field("description").text("not available now");
                    json.field("input_schema").raw(r#"{"type":"object"}"#);
                });
            }
        });
    }
    if out.request.withheld || tools.is_none() {
        if let Some(json) = fields.begin("tool_choice") {
            json.raw(r#"{"type":"none"}"#);
        }
    }
}

/// Asks for thinking before the answer, as much as the entry wants of the reply's tokens. It excludes a temperature, and a
/// turn whose calls were made without it. Returns whether it asks.
fn write_thinking(out: &Outgoing, fields: &mut Fields) -> bool {
    let entry = &out.model.entry;
    let wanted = entry.extra_body.get("thinking");
    let wanted = wanted.and_then(|thinking| thinking["budget_tokens"].as_u64());
    let budget = thinking_budget(out);
    if !out.quirks.has(ADAPTIVE_THINKING) {
        if let Some(budget) = budget {
            if let Some(json) = fields.begin("thinking") {
                json.object(|json| {
                    json.field("type").text("enabled");
                    json.field("budget_tokens").raw(&budget.to_string());
                });
            }
        }
        return budget.is_some();
    }
    // Newer models have an effort in place of a budget.
    if let Some(budget) = wanted.or(budget) {
        let effort = match budget {
            _ if budget >= out.max_tokens() / 2 => "high",
            0..=LEAST_THINKING => "low",
            _ => "medium",
        };
        fields.force("thinking").raw(r#"{"type":"adaptive"}"#);
        fields
            .force("output_config")
            .object(|json| json.field("effort").text(effort));
    }
    budget.is_some()
}

fn thinking_budget(out: &Outgoing) -> Option<u64> {
    let most = out.max_tokens();
    let budget = match out.model.entry.reasoning_effort.as_str() {
        "" | "none" => return None,
        "minimal" | "low" => LEAST_THINKING,
        "medium" => most / 4,
        _ => most / 2,
    };
    let mut before = out.request.messages.iter().rev();
    let last = before.find(|message| !matches!(message, Message::ToolResult(_)));
    let is_thoughtless = matches!(last, Some(Message::Assistant(reply))
        if !out.echoes(reply) || !reply.extra.contains_key(THOUGHTS));
    (most > LEAST_THINKING && !is_thoughtless).then_some(budget.max(LEAST_THINKING))
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

/// The tools that the conversation calls. The API refuses a conversation with calls unless tools are declared, even where
/// none may be called.
fn called_tools(messages: &[Message]) -> BTreeSet<&str> {
    let replies = messages.iter().filter_map(|message| match message {
        Message::Assistant(reply) => Some(&reply.calls),
        _ => None,
    });
    replies.flatten().map(|call| call.name.as_str()).collect()
}

/// A block of a message.
struct Block<'a> {
    what: What<'a>,
    /// Allows caching up to and including this block.
    is_marked: bool,
}

enum What<'a> {
    /// One text, in pieces.
    Text(Vec<Cow<'a, str>>),
    Media(&'a Media),
    Thought(&'a Value),
    Call(&'a ToolCall),
    Result(&'a ToolResult),
}

impl<'a> From<What<'a>> for Block<'a> {
    fn from(what: What<'a>) -> Self {
        Self {
            what,
            is_marked: false,
        }
    }
}

fn text<'a>(text: impl Into<Cow<'a, str>>) -> Block<'a> {
    What::Text(vec![text.into()]).into()
}

/// The system prompt and the conversation: the user first, roles in turn, the results of a step in one message.
struct Conversation<'a> {
    system: Vec<Block<'a>>,
    messages: Vec<(&'static str, Vec<Block<'a>>)>,
}

impl<'a> Conversation<'a> {
    fn of(out: &Outgoing<'a>) -> Self {
        let system = out.request.system;
        let mut changing = Cow::Borrowed(system.changing);
        let mut messages: Vec<(&str, Vec<Block>)> = Vec::new();
        for message in out.request.messages {
            let (role, blocks) = match message {
                Message::System(text) => {
                    changing = format!("{changing}\n\n{text}").into();
                    continue;
                }
                Message::User(user) => ("user", blocks_of_user(user, out)),
                Message::Assistant(reply) => ("assistant", blocks_of_reply(reply, out)),
                Message::ToolResult(result) => ("user", vec![What::Result(result).into()]),
            };
            match messages.last_mut() {
                Some((last, have)) if *last == role => have.extend(blocks),
                // The API refuses a message without blocks.
                _ if blocks.is_empty() => {}
                _ => messages.push((role, blocks)),
            }
        }
        if messages.first().is_none_or(|(role, _)| *role != "user") {
            messages.insert(0, ("user", vec![text("(conversation continued)")]));
        }
        if let Some(("user", blocks)) = messages.last_mut() {
            mark_last(blocks);
        }
        let mut blocks = Vec::new();
        if !system.stable.trim().is_empty() {
            blocks.push(text(system.stable.trim()));
            mark_last(&mut blocks);
        }
        if !changing.trim().is_empty() {
            blocks.push(text(changing.trim().to_owned()));
        }
        Self {
            system: blocks,
            messages,
        }
    }
}

fn mark_last(blocks: &mut [Block]) {
    if let Some(last) = blocks.last_mut() {
        last.is_marked = true;
    }
}

fn blocks_of_user<'a>(user: &'a User, out: &Outgoing) -> Vec<Block<'a>> {
    let mut pieces: Vec<Cow<str>> = Vec::new();
    let time = user.shown_time();
    if !time.is_empty() {
        pieces.extend(["[".into(), time.into(), "]\n".into()]);
    }
    pieces.push(user.content.as_str().into());
    pieces.push(out.replacements(&user.media).into());
    let mut blocks: Vec<Block> = vec![What::Text(pieces).into()];
    blocks.extend(
        out.taken(&user.media)
            .map(|media| What::Media(media).into()),
    );
    if !user.notes.is_empty() {
        // The next turn's request is the same up to here, and lacks the notes.
        mark_last(&mut blocks);
        blocks.push(text(&user.notes));
    }
    blocks
}

fn blocks_of_reply<'a>(reply: &'a Reply, out: &Outgoing) -> Vec<Block<'a>> {
    let mut blocks: Vec<Block> = Vec::new();
    // Thinking alone is not a message.
    if reply.text.trim().is_empty() && reply.calls.is_empty() {
        return blocks;
    }
    if !reply.partial && out.echoes(reply) {
        let thoughts = reply.extra.get(THOUGHTS).and_then(Value::as_array);
        let thoughts = thoughts.into_iter().flatten();
        blocks.extend(thoughts.map(|thought| What::Thought(thought).into()));
    }
    if !reply.text.trim().is_empty() {
        // The API refuses white space at the end of a reply.
        blocks.push(text(reply.text.trim_end()));
    }
    blocks.extend(reply.calls.iter().map(|call| What::Call(call).into()));
    blocks
}

fn write_blocks(blocks: &[Block], out: &Outgoing, json: &mut Json) {
    json.list(|json| blocks.iter().for_each(|block| block.write(out, json)));
}

impl Block<'_> {
    fn write(&self, out: &Outgoing, json: &mut Json) {
        if let What::Thought(thought) = self.what {
            json.value(thought);
            return;
        }
        json.object(|json| {
            match &self.what {
                What::Text(pieces) => write_text(pieces, json),
                What::Media(media) => write_media(media, json),
                What::Thought(_) => {}
                What::Call(call) => {
                    json.field("type").text("tool_use");
                    json.field("id").text(&wire_id(&out.id(&call.id)));
                    json.field("name").text(&call.name);
                    json.field("input").raw(&call.object());
                }
                What::Result(result) => write_result(result, out, json),
            }
            if self.is_marked {
                json.field("cache_control").raw(r#"{"type":"ephemeral"}"#);
            }
        });
    }
}

/// The API refuses an empty text.
fn write_text(pieces: &[Cow<str>], json: &mut Json) {
    json.field("type").text("text");
    if pieces.iter().all(|piece| piece.trim().is_empty()) {
        json.field("text").text("(empty)");
    } else {
        json.field("text")
            .pieces(pieces.iter().map(|piece| &**piece));
    }
}

fn write_result(result: &ToolResult, out: &Outgoing, json: &mut Json) {
    json.field("type").text("tool_result");
    json.field("tool_use_id")
        .text(&wire_id(&out.id(&result.call_id)));
    json.field("content").list(|json| {
        let replacements = out.replacements(&result.images);
        json.object(|json| write_text(&[(&result.content).into(), replacements.into()], json));
        for image in out.taken(&result.images) {
            json.object(|json| write_media(image, json));
        }
    });
    if result.is_error {
        json.field("is_error").raw("true");
    }
}

fn write_media(media: &Media, json: &mut Json) {
    let kind = match media.kind() {
        MediaKind::Image => "image",
        MediaKind::Pdf => "document",
        MediaKind::Audio => {
            let text = media.replacement("left out: this API takes no audio");
            return write_text(&[text.into()], json);
        }
    };
    json.field("type").text(kind);
    json.field("source").object(|json| {
        json.field("type").text("base64");
        json.field("media_type").text(&media.mime);
        json.field("data").text(&media.base64);
    });
}

/// The API accepts only letters, digits, `_` and `-` in an id; those of other hosts may hold more.
fn wire_id(id: &str) -> String {
    id.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_")
}

/// The text of an event that holds a piece of text and nothing else.
fn text_alone(event: &str) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
        #[serde(borrow)]
        delta: Delta<'a>,
    }
    #[derive(Deserialize)]
    struct Delta<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
        #[serde(borrow)]
        text: Cow<'a, str>,
    }
    let Event { kind, delta } = serde_json::from_str(event).ok()?;
    (kind == "content_block_delta" && delta.kind == "text_delta").then_some(delta.text)
}

/// An event, or a whole body, in the words of the OpenAI API.
fn translate(event: Value) -> Value {
    let of_block = |block| json!({"choices": [{"delta": delta(block, &event["index"])}]});
    match event["type"].as_str().unwrap_or_default() {
        "message_start" => json!({"usage": event["message"]["usage"]}),
        "content_block_start" => of_block(&event["content_block"]),
        "content_block_delta" => of_block(&event["delta"]),
        "message_delta" => {
            let delta = &event["delta"];
            let end = json!({"finish_reason": delta["stop_reason"], "stop_details": delta["stop_details"]});
            json!({"choices": [end], "usage": event["usage"]})
        }
        "message_stop" => "[DONE]".into(),
        _ => match event["content"].as_array() {
            Some(blocks) => {
                let messages = blocks
                    .iter()
                    .map(|block| json!({"message": delta(block, &Value::Null)}));
                let end = json!({"finish_reason": event["stop_reason"], "stop_details": event["stop_details"]});
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
    use crate::message::{Stop, Usage};
    use crate::provider::reply::ReplyBuilder;
    use crate::provider::tests::wire;

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
        let sent = wire(&ANTHROPIC, "", &messages);
        let (system, wire) = (&sent["system"], &sent["messages"]);
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
        let mut builder = ReplyBuilder::new(READING, &[]);
        builder.event(&body.to_string()).unwrap();
        let reply = builder.finish().unwrap().0;
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
        let back = |reply: &Reply| {
            let messages = [Message::user("q"), Message::Assistant(reply.clone())];
            wire(&ANTHROPIC, "", &messages)["messages"].take()
        };
        let blocks = &back(&reply)[1]["content"];
        assert_eq!(
            (&blocks[0], &blocks[1]),
            (&body["content"][0], &body["content"][2])
        );
        assert_eq!(blocks.as_array().unwrap().len(), 4);
        let silent = Reply {
            text: String::new(),
            calls: Vec::new(),
            ..reply
        };
        assert_eq!(back(&silent).as_array().unwrap().len(), 1);
    }
}
