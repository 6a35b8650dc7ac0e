//! Anthropic's Messages API, version 2023-06-01.
//!
//! It differs from the rest of the world in three ways: a message is a list of blocks, tool results are blocks of the user's
//! next message, and the client marks what may be cached. Of the four marks that are allowed, up to three are set: at the end
//! of the stable part of the system prompt, at the end of the conversation so far, which the next request begins with, and
//! before the notes that go with the newest message only.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::Request;
use super::dialect::{self, Dialect, ReplyReader};
use super::replies::{count, string, tidy_calls};
use crate::config::Model;
use crate::message::{Media, MediaKind, Message, Reply, Stop, ToolCall, ToolResult, Usage, User};

pub(crate) const ANTHROPIC: Dialect = Dialect {
    url: |model| messages_url(&model.base),
    auth: |key| ("x-api-key", key.to_owned()),
    headers: &[("anthropic-version", "2023-06-01")],
    body,
    reply: || Box::<Blocks>::default(),
};

/// The smallest budget of tokens that the API accepts.
const LEAST_THINKING: u64 = 1024;

/// The name in [`Reply::extra`] of signed thinking blocks, which must come back unchanged.
const THINKING: &str = "anthropic_thinking";

/// The field of a call's arguments while they arrive.
const ARGUMENTS: &str = "partial_json";

fn body(model: &Model, request: &Request) -> Value {
    let mut body = dialect::body(
        model,
        request,
        |tool, schema| json!({"name": tool.name, "description": tool.description, "input_schema": schema}),
    );
    let (system, messages) = wire(request, &|reply| dialect::is_by(reply, model));
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
    let last = request.messages.iter().rev().find(|message| !matches!(message, Message::ToolResult(_)));
    let is_thoughtless = matches!(last, Some(Message::Assistant(reply)) if !reply.extra.contains_key(THINKING));
    if most <= LEAST_THINKING || is_thoughtless {
        return;
    }
    body["thinking"] = json!({"type": "enabled", "budget_tokens": budget.max(LEAST_THINKING)});
    if let Some(fields) = body.as_object_mut() {
        fields.remove("temperature");
    }
}

/// The address of the API for a base with `/v1`, with `/messages`, or with neither.
fn messages_url(base: &str) -> String {
    let base = base.trim().trim_end_matches('/');
    let base = base.trim_end_matches("/messages").trim_end_matches("/v1");
    format!("{base}/v1/messages")
}

/// Declarations of all tools that the conversation calls.
fn called_tools(messages: &[Message]) -> Option<Value> {
    let replies = messages.iter().filter_map(|message| match message {
        Message::Assistant(reply) => Some(&reply.calls),
        _ => None,
    });
    let mut names = BTreeSet::new();
    names.extend(replies.flatten().map(|call| call.name.as_str()));
    let tool = |name| json!({"name": name, "description": "not available now", "input_schema": {"type": "object"}});
    (!names.is_empty()).then(|| names.into_iter().map(tool).collect())
}

/// The system prompt and the conversation: the user first, roles in turn, the results of a step in one message.
fn wire(request: &Request, is_own: &dyn Fn(&Reply) -> bool) -> (Value, Value) {
    let mut changing = request.system.changing.to_owned();
    let mut wire: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in request.messages {
        let (role, blocks) = match message {
            Message::System(text) => {
                changing.push_str("\n\n");
                changing.push_str(text);
                continue;
            }
            Message::User(user) => ("user", wire_user(user)),
            Message::Assistant(reply) => ("assistant", wire_reply(reply, is_own(reply))),
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
    let mut system: Vec<Value> = Vec::new();
    if !request.system.stable.trim().is_empty() {
        system.push(text(request.system.stable.trim()));
        system.last_mut().map(mark);
    }
    if !changing.trim().is_empty() {
        system.push(text(changing.trim()));
    }
    let messages = wire.into_iter().map(|(role, content)| json!({"role": role, "content": content}));
    (Value::Array(system), messages.collect())
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
    let said = match user.shown_time() {
        "" => text(&user.content),
        time => text(&format!("[{time}]\n{}", user.content)),
    };
    let mut blocks: Vec<Value> = std::iter::once(said).chain(user.media.iter().map(wire_media)).collect();
    if !user.notes.is_empty() {
        // The next turn's request is the same up to here, and lacks the notes.
        blocks.last_mut().map(mark);
        blocks.push(text(&user.notes));
    }
    blocks
}

fn wire_reply(reply: &Reply, is_own: bool) -> Vec<Value> {
    let mut blocks: Vec<Value> = Vec::new();
    if is_own && !reply.partial {
        blocks.extend(reply.extra.get(THINKING).and_then(Value::as_array).into_iter().flatten().cloned());
    }
    if !reply.text.trim().is_empty() {
        // The API refuses white space at the end of a reply.
        blocks.push(text(reply.text.trim_end()));
    }
    for call in &reply.calls {
        let input = serde_json::from_str(&call.arguments).ok().filter(Value::is_object).unwrap_or_else(|| json!({}));
        blocks.push(json!({"type": "tool_use", "id": wire_id(&call.id), "name": call.name, "input": input}));
    }
    // Thinking alone is not a message.
    if reply.text.trim().is_empty() && reply.calls.is_empty() { Vec::new() } else { blocks }
}

fn wire_result(result: &ToolResult) -> Value {
    let mut content = vec![text(&result.content)];
    content.extend(result.images.iter().map(wire_media));
    let mut block = json!({"type": "tool_result", "tool_use_id": wire_id(&result.call_id), "content": content});
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

/// A reply in the making.
#[derive(Default)]
struct Blocks {
    by_index: BTreeMap<u64, Value>,
    thoughts: String,
    usage: Usage,
    stop: Option<Stop>,
    done: bool,
}

impl ReplyReader for Blocks {
    fn event(&mut self, data: &str) -> Result<Option<String>, Value> {
        let Ok(event) = serde_json::from_str::<Value>(data) else { return Ok(None) };
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            return Err(error.clone());
        }
        if let Some(content) = event["content"].as_array() {
            // A whole body.
            self.by_index.extend((0..).zip(content.iter().cloned()));
            self.usage(&event["usage"]);
            self.stop_reason(&event);
            return Ok(Some(String::new()));
        }
        let last = || self.by_index.keys().next_back().copied().unwrap_or_default();
        let index = event.get("index").and_then(Value::as_u64).unwrap_or_else(last);
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => self.usage(&event["message"]["usage"]),
            "content_block_start" => {
                let block = event["content_block"].clone();
                let shown = if block["type"] == "text" { string(&block, "text") } else { String::new() };
                self.by_index.insert(index, block);
                return Ok(Some(shown));
            }
            "content_block_delta" => return Ok(Some(self.delta(index, &event["delta"]))),
            "message_delta" => {
                self.usage(&event["usage"]);
                self.stop_reason(&event["delta"]);
            }
            "message_stop" => self.done = true,
            // `ping`, `content_block_stop`, and future events.
            _ => {}
        }
        Ok(None)
    }

    fn thoughts(&self) -> &str {
        &self.thoughts
    }

    fn is_complete(&self) -> bool {
        self.done || self.stop.is_some()
    }

    fn finish(self: Box<Self>) -> Reply {
        let mut reply = Reply { stop: self.stop.unwrap_or_default(), usage: self.usage, ..Reply::default() };
        let mut thoughts = Vec::new();
        for block in self.by_index.into_values() {
            match block["type"].as_str().unwrap_or_default() {
                "text" => reply.text.push_str(&string(&block, "text")),
                "thinking" => {
                    reply.reasoning.push_str(&string(&block, "thinking"));
                    // The API refuses it without its signature.
                    if !string(&block, "signature").is_empty() {
                        thoughts.push(block);
                    }
                }
                "redacted_thinking" => thoughts.push(block),
                "tool_use" => {
                    // The arguments of a streamed call arrive as pieces of JSON text.
                    let arguments = match string(&block, ARGUMENTS) {
                        text if text.is_empty() && !block["input"].is_null() => block["input"].to_string(),
                        text => text,
                    };
                    let (id, name) = (string(&block, "id"), string(&block, "name"));
                    reply.calls.push(ToolCall { id, name, arguments, extra: Map::new() });
                }
                _ => {}
            }
        }
        tidy_calls(&mut reply.calls);
        if !thoughts.is_empty() {
            reply.extra.insert(THINKING.to_owned(), thoughts.into());
        }
        reply
    }
}

impl Blocks {
    /// Takes a piece of a block and returns the text to show.
    fn delta(&mut self, index: u64, delta: &Value) -> String {
        let (piece, kind) = match delta["type"].as_str().unwrap_or_default() {
            "text_delta" => ("text", "text"),
            "thinking_delta" => ("thinking", "thinking"),
            "signature_delta" => ("signature", "thinking"),
            "input_json_delta" => (ARGUMENTS, "tool_use"),
            _ => return String::new(),
        };
        // Some servers leave out `content_block_start`.
        let block = self.by_index.entry(index).or_insert_with(|| json!({"type": kind}));
        let text = string(delta, piece);
        if piece == "thinking" {
            self.thoughts.push_str(&text);
        }
        block[piece] = (string(block, piece) + &text).into();
        if piece == "text" { text } else { String::new() }
    }

    /// `input_tokens` leaves out tokens read from the cache or written to it; ours counts all.
    fn usage(&mut self, usage: &Value) {
        let n = |name: &str| usage.get(name).and_then(count);
        if let Some(input) = n("input_tokens") {
            let cached = n("cache_read_input_tokens").unwrap_or(0);
            let written = n("cache_creation_input_tokens").unwrap_or(0);
            self.usage.prompt_tokens = input.saturating_add(cached).saturating_add(written);
            self.usage.cached_tokens = cached;
        }
        self.usage.completion_tokens = n("output_tokens").unwrap_or(self.usage.completion_tokens);
    }

    fn stop_reason(&mut self, message: &Value) {
        self.stop = match message["stop_reason"].as_str() {
            None => self.stop,
            Some("max_tokens" | "model_context_window_exceeded") => Some(Stop::Length),
            Some("refusal") => Some(Stop::Refused),
            Some(_) => Some(Stop::Done),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancel::Cancel;
    use crate::provider::{System, ToolOffer};

    fn sent(system: System, messages: &[Message]) -> (Value, Value) {
        let cancel = Cancel::new(None);
        wire(&Request { system, messages, tools: &[], stream: false, on_thought: &|_| (), cancel: &cancel }, &|_| true)
    }

    fn call(id: &str, arguments: &str) -> ToolCall {
        ToolCall { id: id.into(), name: "f".into(), arguments: arguments.into(), ..ToolCall::default() }
    }

    fn image() -> Media {
        Media { mime: "image/png".into(), base64: "AA==".into(), ..Media::default() }
    }

    fn result(id: &str, content: &str) -> Message {
        Message::ToolResult(ToolResult { call_id: id.into(), content: content.into(), ..ToolResult::default() })
    }

    #[test]
    fn an_address_is_completed_once() {
        for base in ["https://h", "https://h/", "https://h/v1", "https://h/v1/messages"] {
            assert_eq!(messages_url(base), "https://h/v1/messages");
        }
        assert_eq!(messages_url("https://h/anthropic"), "https://h/anthropic/v1/messages");
    }

    #[test]
    fn the_system_prompt_is_cached_up_to_its_mark_and_the_conversation_up_to_its_end() {
        let (system, messages) = sent(System { stable: "same", changing: "\n\nnew" }, &[Message::user("hi")]);
        let cached = json!({"type": "ephemeral"});
        assert_eq!(
            system,
            json!([{"type": "text", "text": "same", "cache_control": cached}, {"type": "text", "text": "new"}])
        );
        assert_eq!(
            messages,
            json!([{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": cached}]}])
        );
        assert_eq!(sent(System::default(), &[]).0, json!([]));
    }

    #[test]
    fn roles_take_turns_and_the_results_of_a_step_are_one_message() {
        let messages = [
            Message::Assistant(Reply { text: "cut off\n".into(), partial: true, ..Reply::default() }),
            Message::user("one"),
            Message::User(User { media: vec![image()], ..User::default() }),
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
        let roles: Vec<&str> = wire.as_array().unwrap().iter().filter_map(|m| m["role"].as_str()).collect();
        assert_eq!(roles, ["user", "assistant", "user", "assistant", "user"]);
        assert_eq!(wire[1]["content"], json!([{"type": "text", "text": "cut off"}]));
        assert_eq!(wire[2]["content"][1]["text"], "(empty)");
        let source = json!({"type": "base64", "media_type": "image/png", "data": "AA=="});
        assert_eq!(wire[2]["content"][2], json!({"type": "image", "source": source}));
        let calls = json!([
            {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "b_1", "name": "f", "input": {}},
        ]);
        assert_eq!(wire[3]["content"], calls);
        let last = &wire[4]["content"];
        assert_eq!((&last[0]["type"], &last[0]["tool_use_id"]), (&json!("tool_result"), &json!("a")));
        assert_eq!((&last[1]["tool_use_id"], &last[1]["is_error"]), (&json!("b_1"), &json!(true)));
        assert_eq!(last[1]["content"][1]["source"], source);
        assert_eq!((&last[2]["text"], &last[3]["text"]), (&json!("two"), &json!("three")));
        assert_eq!(wire.to_string().matches("cache_control").count(), 1);
    }

    #[test]
    fn a_conversation_with_calls_is_never_sent_without_tools() {
        let model = crate::config::Config::load(
            Some(("c", r#"{"model_list":[{"model":"claude/x","api_key":"k"}]}"#)),
            &BTreeMap::new(),
            Vec::new(),
        );
        let model = model.unwrap().config.choose_model(&BTreeMap::new()).unwrap().unwrap();
        let cancel = Cancel::new(None);
        let messages = [
            Message::user("hi"),
            Message::Assistant(Reply { calls: vec![call("a", "{}")], ..Reply::default() }),
            result("a", "x"),
        ];
        let body = |messages: &[Message], tools: &[ToolOffer]| {
            let request = Request {
                system: System::default(),
                messages,
                tools,
                stream: false,
                on_thought: &|_| (),
                cancel: &cancel,
            };
            super::body(&model, &request)
        };
        let without = body(&messages, &[]);
        assert_eq!((&without["tools"][0]["name"], &without["tool_choice"]["type"]), (&json!("f"), &json!("none")));
        let plain = body(&messages[..1], &[]);
        assert!(
            plain.get("tools").is_none() && plain.get("system").is_none() && plain.get("stream").is_none(),
            "{plain}"
        );
        let offer = ToolOffer { name: "g".into(), description: "d".into(), schema: r#"{"type":"object"}"#.into() };
        let offered = body(&messages, &[offer]);
        assert_eq!(offered["tools"], json!([{"name": "g", "description": "d", "input_schema": {"type": "object"}}]));
        assert!(offered.get("tool_choice").is_none());
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
        let mut blocks = Box::<Blocks>::default();
        blocks.event(&body.to_string()).unwrap();
        let reply = blocks.finish();
        assert_eq!((reply.text.as_str(), reply.reasoning.as_str(), reply.stop), ("a", "hm!", Stop::Done));
        assert_eq!(reply.calls[0].arguments, "{\"x\":1}");
        assert_eq!(reply.usage, Usage { prompt_tokens: 7, completion_tokens: 3, cached_tokens: 2 });
        let back = wire_reply(&reply, true);
        assert_eq!(back[..2], [body["content"][0].clone(), body["content"][2].clone()]);
        assert_eq!(back.len(), 4);
        assert_eq!(wire_reply(&Reply { text: String::new(), calls: Vec::new(), ..reply }, true), Vec::<Value>::new());
    }

    #[test]
    fn a_stream_is_put_together_block_by_block() {
        let mut blocks = Box::<Blocks>::default();
        let mut shown = String::new();
        let mut feed = |events: &[Value]| {
            events
                .iter()
                .map(|event| match blocks.event(&event.to_string()) {
                    Ok(Some(text)) => {
                        shown.push_str(&text);
                        'c'
                    }
                    Ok(None) => '.',
                    Err(_) => 'e',
                })
                .collect::<String>()
        };
        let start =
            |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
        let delta = |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
        let meant = feed(&[
            json!({"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}}),
            json!({"type": "ping"}),
            start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
            delta(0, json!({"type": "thinking_delta", "thinking": "hm"})),
            delta(0, json!({"type": "signature_delta", "signature": "s"})),
            start(1, json!({"type": "text", "text": ""})),
            delta(1, json!({"type": "text_delta", "text": "He"})),
            delta(1, json!({"type": "text_delta", "text": "llo"})),
            json!({"type": "content_block_stop", "index": 1}),
            start(2, json!({"type": "tool_use", "id": "t", "name": "f", "input": {}})),
            delta(2, json!({"type": "input_json_delta", "partial_json": "{\"x\""})),
            delta(2, json!({"type": "input_json_delta", "partial_json": ":1}"})),
            start(3, json!({"type": "tool_use", "id": "u", "name": "g", "input": {}})),
            json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 9}}),
            json!({"type": "message_stop"}),
        ]);
        assert_eq!(meant, "..cccccc.cccc..");
        assert_eq!(shown, "Hello");
        assert!(blocks.is_complete());
        let reply = blocks.finish();
        assert_eq!((reply.text.as_str(), reply.reasoning.as_str(), reply.stop), ("Hello", "hm", Stop::Length));
        let calls: Vec<(&str, &str)> = reply.calls.iter().map(|c| (c.name.as_str(), c.arguments.as_str())).collect();
        assert_eq!(calls, [("f", "{\"x\":1}"), ("g", "{}")]);
        assert_eq!(reply.usage, Usage { prompt_tokens: 5, completion_tokens: 9, cached_tokens: 0 });
        assert_eq!(reply.extra[THINKING][0]["signature"], "s");
    }
}
