//! The OpenAI chat completions API, as spoken by most of the world.

use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use serde_json::{Map, Value, json};

use super::errors::{classify, looks_like_html};
use super::quirks::{self, Quirk};
use super::replies;
use super::stream::{Chunk, Stream};
use super::{Provider, ProviderError, Request};
use crate::config::Model;
use crate::http::{Client, Exchange, Fault, Head, Outgoing, Part, Settings};
use crate::message::{Image, Message, Reply, ToolCall};
use crate::secret::Secret;
use crate::sse;
use crate::text::one_line;

/// A model behind an OpenAI-compatible address.
pub struct OpenAi {
    model: Model,
    client: Client,
    url: String,
    /// What the host was found to refuse.
    quirks: Mutex<Vec<Quirk>>,
}

/// The most of an error's body that is read.
const MOST_ERROR: usize = 256 << 10;

impl OpenAi {
    #[must_use]
    pub fn new(model: Model, ca_file: Option<std::path::PathBuf>) -> Self {
        let client = Client::new(Settings { proxy: model.proxy.clone(), ca_file });
        let url = completions_url(&model.base);
        Self { model, client, url, quirks: Mutex::default() }
    }

    fn body(&self, request: &Request) -> Value {
        let mut body = json!({
            "model": self.model.id,
            "messages": wire_messages(request.system, request.messages),
            "max_tokens": self.model.max_tokens,
        });
        if let Some(temperature) = self.model.temperature {
            body["temperature"] = temperature.into();
        }
        // An empty list is refused by some: it is left out.
        if !request.tools.is_empty() {
            let tools = request.tools.iter().map(|t| {
                let function = json!({"name": t.name, "description": t.description, "parameters": t.schema});
                json!({"type": "function", "function": function})
            });
            body["tools"] = tools.collect();
        }
        if request.stream {
            body["stream"] = true.into();
            body["stream_options"] = json!({"include_usage": true});
        }
        for (name, value) in &self.model.extra_body {
            body[name] = value.clone();
        }
        body
    }

    fn ask(&self, request: &Request, known: &[Quirk], on_delta: &mut dyn FnMut(&str)) -> Result<Reply, ProviderError> {
        let mut body = self.body(request);
        quirks::apply(known, &mut body);
        let json = Some(body.to_string().into_bytes());
        let outgoing = Outgoing { url: self.url.clone(), headers: self.headers(request.stream), json };
        let exchange = self.client.send(outgoing, request.cancel).map_err(|e| ProviderError::Rejected(e.message))?;
        let silence = self.model.request_timeout;
        let mut answer = Answer { host: host(&self.url), exchange, silence, last_content: Instant::now() };
        let head = answer.head()?;
        if !(200..300).contains(&head.status) {
            let body = answer.rest(MOST_ERROR);
            return Err(classify(head.status, Some(&head), &body, SystemTime::now()));
        }
        // A server that cannot stream answers whole, whatever was asked for.
        let streams = head.header("content-type").is_some_and(|t| t.contains("event-stream"));
        if streams { answer.stream(on_delta) } else { answer.whole(&head, on_delta) }
    }

    fn headers(&self, stream: bool) -> Vec<(String, Secret)> {
        let accept = if stream { "text/event-stream" } else { "application/json" };
        let mut headers = vec![("accept".to_owned(), Secret::new(accept))];
        if let Some(key) = self.model.keys.first() {
            headers.push(("authorization".to_owned(), Secret::new(format!("Bearer {}", key.reveal()))));
        }
        headers.extend(self.model.headers.iter().cloned());
        headers
    }
}

impl Provider for OpenAi {
    fn model(&self) -> &str {
        &self.model.name
    }

    fn chat(&self, request: &Request, on_delta: &mut dyn FnMut(&str)) -> Result<Reply, ProviderError> {
        loop {
            let known = self.quirks.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match self.ask(request, &known, on_delta) {
                Err(ProviderError::Rejected(refusal)) => match quirks::learn(&refusal, &known) {
                    // Each is learned once, so this ends.
                    Some(quirk) => self.quirks.lock().unwrap_or_else(PoisonError::into_inner).push(quirk),
                    None => return Err(ProviderError::Rejected(refusal)),
                },
                result => return result,
            }
        }
    }
}

/// An answer under way. `silence` is the time it may go without content, not without bytes: a stream of pings is silent.
struct Answer<'a> {
    host: &'a str,
    exchange: Exchange,
    silence: std::time::Duration,
    last_content: Instant,
}

impl Answer<'_> {
    fn next(&mut self) -> Result<Part, ProviderError> {
        let left = self.silence.saturating_sub(self.last_content.elapsed());
        let silent = || transient(format!("{}: no answer for {} s", self.host, self.silence.as_secs()));
        if left.is_zero() {
            return Err(silent());
        }
        self.exchange.next(left).map_err(|fault| match fault {
            Fault::Silent => silent(),
            Fault::Broken(m) | Fault::Unreachable(m) => transient(format!("{}: {m}", self.host)),
            Fault::Cancelled(why) => ProviderError::Cancelled(why),
        })
    }

    fn head(&mut self) -> Result<Head, ProviderError> {
        match self.next()? {
            Part::Head(head) => Ok(head),
            Part::Body(_) | Part::End => Err(transient("the answer has no beginning".to_owned())),
        }
    }

    /// What is left of the body, up to `most` bytes. A fault ends it: half an error message is better than none.
    fn rest(&mut self, most: usize) -> Vec<u8> {
        let mut body = Vec::new();
        while let Ok(Part::Body(piece)) = self.next() {
            body.extend_from_slice(&piece);
            if body.len() > most {
                break;
            }
        }
        body
    }

    fn whole(&mut self, head: &Head, on_delta: &mut dyn FnMut(&str)) -> Result<Reply, ProviderError> {
        let mut body = Vec::new();
        loop {
            match self.next()? {
                Part::Body(piece) => {
                    // White space is what servers send to keep a connection alive while the model thinks.
                    if piece.iter().any(|b| !b.is_ascii_whitespace()) {
                        self.last_content = Instant::now();
                    }
                    body.extend_from_slice(&piece);
                }
                Part::Head(_) => {}
                Part::End => break,
            }
        }
        let text = String::from_utf8_lossy(&body);
        if looks_like_html(&text) {
            return Err(classify(head.status, Some(head), &body, SystemTime::now()));
        }
        if text.trim_start().starts_with("data:") {
            // A stream under the wrong content type.
            let mut reader = StreamReader::default();
            reader.push(&body, &mut |_| ())?;
            let reply = reader.finish()?;
            on_delta(&reply.text);
            return Ok(reply);
        }
        let value: Value = serde_json::from_str(&text)
            .map_err(|e| transient(format!("the answer is not JSON ({e}): {}", one_line(&text, 100))))?;
        let reply = replies::read(&value).map_err(|error| refused(head, &error))?;
        if !reply.text.is_empty() {
            on_delta(&reply.text);
        }
        Ok(reply)
    }

    fn stream(&mut self, on_delta: &mut dyn FnMut(&str)) -> Result<Reply, ProviderError> {
        let mut reader = StreamReader::default();
        loop {
            match self.next() {
                Ok(Part::Body(piece)) => {
                    if reader.push(&piece, on_delta)? {
                        self.last_content = Instant::now();
                    }
                }
                Ok(Part::Head(_)) => {}
                Ok(Part::End) => return reader.finish(),
                // Once the model has said that it is done, how the connection ends is of no interest.
                Err(ProviderError::Transient { .. }) if reader.stream.is_complete() => return reader.finish(),
                Err(e) => return Err(e),
            }
        }
    }
}

/// From bytes to a reply.
#[derive(Default)]
struct StreamReader {
    decoder: sse::Decoder,
    stream: Stream,
    thinking: Thinking,
}

impl StreamReader {
    /// Whether the bytes carried content.
    fn push(&mut self, bytes: &[u8], on_delta: &mut dyn FnMut(&str)) -> Result<bool, ProviderError> {
        let (mut any, mut failed) = (false, None);
        let (stream, thinking) = (&mut self.stream, &mut self.thinking);
        let result = self.decoder.push(bytes, &mut |data| match stream.chunk(data) {
            Chunk::Content(text) => {
                any = true;
                thinking.show(&text, on_delta);
            }
            Chunk::Nothing => {}
            Chunk::Error(error) => failed = failed.take().or(Some(error)),
        });
        if let Some(error) = failed {
            return Err(refused_in_stream(&error));
        }
        result.map_err(|sse::TooLong| transient("the server sent an endless event".to_owned()))?;
        Ok(any)
    }

    fn finish(mut self) -> Result<Reply, ProviderError> {
        let stream = &mut self.stream;
        let mut failed = None;
        self.decoder.finish(&mut |data| {
            if let Chunk::Error(error) = stream.chunk(data) {
                failed = Some(error);
            }
        });
        match failed {
            Some(error) => Err(refused_in_stream(&error)),
            // The end of the connection is not the end of the answer.
            None if !self.stream.is_complete() => Err(transient("the answer broke off".to_owned())),
            None => Ok(self.stream.finish()),
        }
    }
}

/// Keeps inline `<think>…</think>` at the beginning of a streamed answer from being shown.
#[derive(Default)]
struct Thinking {
    held: String,
    past: bool,
}

impl Thinking {
    fn show(&mut self, text: &str, on_delta: &mut dyn FnMut(&str)) {
        const OPEN: &str = "<think>";
        const CLOSE: &str = "</think>";
        if self.past {
            if !text.is_empty() {
                on_delta(text);
            }
            return;
        }
        self.held.push_str(text);
        let start = self.held.trim_start();
        if start.len() < OPEN.len() && OPEN.starts_with(start) {
            return;
        }
        if start.starts_with(OPEN) {
            if let Some((_, answer)) = start.split_once(CLOSE) {
                let answer = answer.trim_start();
                if !answer.is_empty() {
                    on_delta(answer);
                    self.past = true;
                }
            }
            return;
        }
        self.past = true;
        on_delta(&std::mem::take(&mut self.held));
    }
}

fn transient(message: String) -> ProviderError {
    ProviderError::Transient { message, retry_after: None }
}

fn refused(head: &Head, error: &Value) -> ProviderError {
    classify(head.status, Some(head), json!({ "error": error }).to_string().as_bytes(), SystemTime::now())
}

fn refused_in_stream(error: &Value) -> ProviderError {
    classify(200, None, json!({ "error": error }).to_string().as_bytes(), SystemTime::now())
}

/// The address of the API, whatever part of it was given: with `/chat/completions`, with a version, or with neither.
fn completions_url(base: &str) -> String {
    let base = base.trim().trim_end_matches('/');
    if base.ends_with("/chat/completions") {
        return base.to_owned();
    }
    let path = base.split_once("://").map_or(base, |(_, rest)| rest).split_once('/').map_or("", |(_, path)| path);
    if path.is_empty() { format!("{base}/v1/chat/completions") } else { format!("{base}/chat/completions") }
}

/// The host and port of an address, without a user and password that may stand before it.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    authority.rsplit('@').next().unwrap_or_default()
}

/// The conversation as the API wants it: one system message first, no two of a user's messages in a row, each call
/// followed by its result. A result is text; the images of a step follow all its results, as the user's.
fn wire_messages(system: &str, messages: &[Message]) -> Value {
    let mut system = system.to_owned();
    let mut wire: Vec<Value> = Vec::new();
    let mut messages = messages.iter().peekable();
    let mut images = Vec::new();
    while let Some(message) = messages.next() {
        match message {
            Message::System(text) => {
                system.push_str("\n\n");
                system.push_str(text);
            }
            Message::User(user) => {
                let content = if user.time.is_empty() {
                    user.content.clone()
                } else {
                    format!("[{}]\n{}", user.time, user.content)
                };
                match wire.last_mut() {
                    Some(last) if last["role"] == "user" => join(&mut last["content"], &content),
                    _ => wire.push(json!({"role": "user", "content": content})),
                }
            }
            Message::Assistant(reply) => wire.extend(wire_reply(reply)),
            Message::ToolResult(result) => {
                // An empty result is refused by some.
                let content = if result.content.is_empty() { "(empty)" } else { result.content.as_str() };
                wire.push(json!({"role": "tool", "tool_call_id": result.call_id, "content": content}));
                images.extend(result.images.iter().map(wire_image));
                if !images.is_empty() && !matches!(messages.peek(), Some(Message::ToolResult(_))) {
                    let mut parts = vec![json!({"type": "text", "text": "[what the tools have shown]"})];
                    parts.append(&mut images);
                    wire.push(json!({"role": "user", "content": parts}));
                }
            }
        }
    }
    if !system.trim().is_empty() {
        wire.insert(0, json!({"role": "system", "content": system.trim()}));
    }
    Value::Array(wire)
}

/// Adds text to the content of a message, which is text or a list of parts.
fn join(content: &mut Value, text: &str) {
    match content {
        Value::Array(parts) => parts.push(json!({"type": "text", "text": text})),
        content => *content = format!("{}\n\n{text}", content.as_str().unwrap_or_default()).into(),
    }
}

fn wire_image(image: &Image) -> Value {
    json!({"type": "image_url", "image_url": {"url": format!("data:{};base64,{}", image.mime, image.base64)}})
}

/// `None` for a reply that says nothing: it would be refused.
fn wire_reply(reply: &Reply) -> Option<Value> {
    if reply.text.is_empty() && reply.calls.is_empty() {
        return None;
    }
    let mut wire = Map::new();
    wire.insert("role".into(), "assistant".into());
    let content = if reply.text.is_empty() { Value::Null } else { reply.text.as_str().into() };
    wire.insert("content".into(), content);
    if !reply.calls.is_empty() {
        wire.insert("tool_calls".into(), reply.calls.iter().map(wire_call).collect());
        // DeepSeek and Kimi want the thoughts of tool turns back, under the name they gave them.
        if let (Some(field), false) =
            (reply.extra.get("reasoning_field").and_then(Value::as_str), reply.reasoning.is_empty())
        {
            wire.insert(field.to_owned(), reply.reasoning.as_str().into());
        }
    }
    for name in replies::ECHOED {
        if let Some(value) = reply.extra.get(name) {
            wire.insert(name.to_owned(), value.clone());
        }
    }
    Some(Value::Object(wire))
}

fn wire_call(call: &ToolCall) -> Value {
    // The model may have sent what is not JSON; sent back as it is, some servers refuse the whole conversation.
    let valid = serde_json::from_str::<Value>(&call.arguments).is_ok_and(|v| v.is_object());
    let arguments = if valid { call.arguments.as_str() } else { "{}" };
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
    use crate::message::{ToolResult, User};

    #[test]
    fn an_address_is_completed_once() {
        for (base, url) in [
            ("http://h:1", "http://h:1/v1/chat/completions"),
            ("http://h:1/v1/", "http://h:1/v1/chat/completions"),
            ("http://h/api/paas/v4", "http://h/api/paas/v4/chat/completions"),
            ("http://h/x/chat/completions", "http://h/x/chat/completions"),
        ] {
            assert_eq!(completions_url(base), url);
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
            Message::User(User { content: "two".into(), time: "T".into() }),
            Message::Assistant(Reply { calls: vec![call("a", "{\"x\":1}"), call("b", "{oops")], ..Reply::default() }),
            Message::ToolResult(ToolResult { call_id: "a".into(), ..ToolResult::default() }),
            Message::ToolResult(ToolResult {
                call_id: "b".into(),
                content: "bad".into(),
                is_error: true,
                images: Vec::new(),
            }),
            Message::Assistant(Reply { reasoning: "only thoughts".into(), ..Reply::default() }),
            Message::System("late".into()),
        ];
        let wire = wire_messages("first", &messages);
        assert_eq!(wire[0], json!({"role": "system", "content": "first\n\nlate"}));
        assert_eq!(wire[1], json!({"role": "user", "content": "one\n\n[T]\ntwo"}));
        assert_eq!(wire[2]["content"], Value::Null);
        assert_eq!(wire[2]["tool_calls"][0]["function"]["arguments"], "{\"x\":1}");
        assert_eq!(wire[2]["tool_calls"][1]["function"]["arguments"], "{}");
        assert_eq!(wire[3], json!({"role": "tool", "tool_call_id": "a", "content": "(empty)"}));
        assert_eq!(wire[4]["content"], "bad");
        assert_eq!(wire.as_array().unwrap().len(), 5);
    }

    #[test]
    fn images_follow_all_the_results_of_their_step() {
        type Row = (&'static str, Vec<Message>, Vec<&'static str>, Option<Value>);
        let image = |base64: &str| Image { mime: "image/png".into(), base64: base64.into() };
        let result = |id: &str, images| {
            Message::ToolResult(ToolResult { call_id: id.into(), content: id.into(), is_error: false, images })
        };
        let call = |id: &str| ToolCall { id: id.into(), name: "f".into(), ..ToolCall::default() };
        let step = |ids: &[&str]| {
            Message::Assistant(Reply { calls: ids.iter().map(|id| call(id)).collect(), ..Reply::default() })
        };
        let url = |base64: &str| json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{base64}")}});
        let shown = json!({"type": "text", "text": "[what the tools have shown]"});
        let rows: [Row; 4] = [
            ("no image", vec![step(&["a"]), result("a", vec![])], vec!["assistant", "tool"], None),
            (
                "in the first of two results",
                vec![step(&["a", "b"]), result("a", vec![image("QQ==")]), result("b", vec![])],
                vec!["assistant", "tool", "tool", "user"],
                Some(json!([shown, url("QQ==")])),
            ),
            (
                "in both, and the step is followed by an answer",
                vec![
                    step(&["a", "b"]),
                    result("a", vec![image("QQ==")]),
                    result("b", vec![image("Qg=="), image("Qw==")]),
                    Message::Assistant(Reply { text: "seen".into(), ..Reply::default() }),
                ],
                vec!["assistant", "tool", "tool", "user", "assistant"],
                Some(json!([shown, url("QQ=="), url("Qg=="), url("Qw==")])),
            ),
            (
                "before the user's next words",
                vec![step(&["a"]), result("a", vec![image("QQ==")]), Message::user("and now?"), Message::user("well?")],
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
            assert_eq!(wire.iter().map(|m| m["role"].as_str().unwrap()).collect::<Vec<_>>(), roles, "{case}");
            for message in wire.iter().filter(|m| m["role"] == "tool") {
                assert!(message["content"].is_string(), "{case}: {message}");
            }
            let last = wire.iter().rfind(|m| m["role"] == "user").map(|m| m["content"].clone());
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

    #[test]
    fn thoughts_at_the_beginning_are_not_shown_and_a_lone_bracket_is() {
        let shown = |pieces: &[&str]| {
            let (mut thinking, mut out) = (Thinking::default(), String::new());
            for piece in pieces {
                thinking.show(piece, &mut |text| out.push_str(text));
            }
            out
        };
        assert_eq!(shown(&["<th", "ink>a", "b</thi", "nk>\n\n", "answer", " more"]), "answer more");
        assert_eq!(shown(&["<", "3 you"]), "<3 you");
        assert_eq!(shown(&["hello"]), "hello");
    }
}
