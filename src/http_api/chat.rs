//! Server side of OpenAI's chat completions: parses requests, and builds responses.
//!
//! Formats follow the API reference, "Create chat completion", of 2026. Fields that bantam does not support are ignored, as
//! hosts do.

use std::time::UNIX_EPOCH;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::response::Refusal;
use crate::bus::{Event, Response, TurnStop};
use crate::json::{count_values, from_json};
use crate::message::{Media, Message, Reply, ToolCall, ToolResult, User};
use crate::text::{fenced, foreign_name};

/// Model name that selects the configuration of `config.json`.
pub(super) const MODEL: &str = "bantam";

/// Kind of the parts of a stream.
const CHUNK: &str = "chat.completion.chunk";

/// A parsed request.
#[derive(Default)]
pub(crate) struct ChatRequest {
    /// A name of `model_list`, or `VENDOR/MODEL`; `None` for the configured model.
    pub(crate) model: Option<String>,
    /// The client's history of the conversation. Ignored if there is a `session`.
    pub(crate) history: Vec<Message>,
    /// The message to answer; `None` if the history ends with results of the client's tools.
    pub(crate) user: Option<User>,
    /// Key of a stored conversation; `None` if the conversation is not stored.
    pub(crate) session: Option<String>,
    /// Tools that the client runs.
    pub(crate) tools: Vec<ClientTool>,
    /// Whether the model must call one of them.
    pub(crate) must_call: bool,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) temperature: Option<f64>,
    /// Texts at which the answer ends, if any.
    pub(crate) stop: Option<Vec<String>>,
    /// Value in the format of OpenAI's API.
    pub(crate) response_format: Option<Value>,
    /// Options of a stream; `None` for a whole answer.
    pub(super) stream: Option<WantedStream>,
}

/// A tool that the client runs.
pub(crate) struct ClientTool {
    pub(crate) name: String,
    pub(crate) description: String,
    /// JSON Schema of the arguments, as JSON text.
    pub(crate) schema: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WantedStream {
    pub(super) include_usage: bool,
    /// Whether to send tool activity and thoughts as `reasoning_content`.
    pub(super) include_progress: bool,
}

/// Returns the memory that the values of a body take, in bytes, beside their text.
pub(super) fn memory_of_values(body: &[u8]) -> usize {
    const VALUE: usize = 500;
    const OBJECT: usize = 2000;
    let (values, objects) = count_values(body);
    values * VALUE + objects * OBJECT
}

impl ChatRequest {
    /// Parses the body of a request; `session` is its `X-Session`.
    pub(super) fn parse(body: &[u8], session: Option<&str>) -> Result<Self, Refusal> {
        let mut fields: Value =
            from_json(body).map_err(|e| Refusal::new(400, format!("the body is not JSON: {e}")))?;
        let Some(object) = fields.as_object_mut() else {
            return Err(Refusal::new(400, "the body is not a JSON object"));
        };
        // A null counts as an absent field.
        object.retain(|_, value| !value.is_null());
        if fields.get("n").is_some_and(|choices| *choices != 1) {
            return Err(Refusal::of_param("n", "bantam returns one choice"));
        }
        let temperature: Option<f64> = field(&fields, "temperature", "a number")?;
        if temperature.is_some_and(|t| !(0.0..=2.0).contains(&t)) {
            return Err(Refusal::of_param("temperature", "must be from 0 to 2"));
        }
        let model: String = field(&fields, "model", "a text")?;
        let list: Vec<Value> = field(&fields, "messages", "a list")?;
        let (history, user) = question(messages(&list)?)?;
        let is_empty = |user: &User| user.content.trim().is_empty() && user.media.is_empty();
        if user.as_ref().is_some_and(is_empty) {
            let last = format!("messages[{}].content", list.len() - 1);
            return Err(Refusal::of_param(last, "the question is empty"));
        }
        let tools = tools(&field::<Vec<Value>>(&fields, "tools", "a list")?)?;
        let session = session.filter(|key| !key.is_empty());
        if session.is_some() && (user.is_none() || !tools.is_empty()) {
            let why = "tools of the client need the whole conversation: leave out X-Session";
            return Err(Refusal::of_param("tools", why));
        }
        let mut stop: Vec<String> = match fields.get("stop") {
            Some(Value::String(text)) => vec![text.clone()],
            _ => field(&fields, "stop", "a string or an array of strings")?,
        };
        stop.retain(|text| !text.is_empty());
        let options = field(&fields, "stream_options", "an object of true and false")?;
        let limit = |name| field::<Option<i64>>(&fields, name, "a whole number");
        let max_tokens = limit("max_completion_tokens")?.or(limit("max_tokens")?);
        let mut request = Self {
            model: Some(model).filter(|model| model != MODEL && !model.is_empty()),
            history,
            user,
            session: session.map(str::to_owned),
            tools,
            // Zero and negative numbers are no limit.
            max_tokens: max_tokens
                .and_then(|n| u64::try_from(n).ok())
                .filter(|n| *n > 0),
            temperature,
            stop: Some(stop).filter(|stop| !stop.is_empty()),
            response_format: fields.get("response_format").cloned(),
            stream: field::<bool>(&fields, "stream", "true or false")?.then_some(options),
            ..Self::default()
        };
        request.choose_tools(&fields["tool_choice"])?;
        Ok(request)
    }

    /// Applies `tool_choice`. Named tools are the only ones left; a single one must be called, several as their mode says.
    fn choose_tools(&mut self, choice: &Value) -> Result<(), Refusal> {
        let allowed = choice.get("allowed_tools").unwrap_or(choice);
        let mode = choice.as_str().or(allowed["mode"].as_str());
        let listed = allowed["tools"].as_array();
        let listed = listed.map_or(std::slice::from_ref(choice), Vec::as_slice);
        let is_named = |tool: &ClientTool| {
            let is_it = |one: &Value| one.get("function").unwrap_or(one)["name"] == *tool.name;
            listed.iter().any(is_it)
        };
        self.must_call = mode == Some("required") || mode.is_none() && choice.is_object();
        self.tools
            .retain(|tool| mode != Some("none") && (!choice.is_object() || is_named(tool)));
        let is_left = choice.is_null() || choice == "auto" || choice == "none";
        if is_left || (self.must_call || mode == Some("auto")) && !self.tools.is_empty() {
            return Ok(());
        }
        let why = "must be auto, none, required or one of the functions";
        Err(Refusal::of_param("tool_choice", why))
    }
}

/// Returns a field of a body, or the default if it is missing.
fn field<T: DeserializeOwned + Default>(
    fields: &Value,
    name: &str,
    kind: &str,
) -> Result<T, Refusal> {
    let Some(value) = fields.get(name) else {
        return Ok(T::default());
    };
    T::deserialize(value).map_err(|_| Refusal::of_param(name, &format!("must be {kind}")))
}

/// Splits a conversation into its history and the message to answer; `None` if the list ends with results of the client's
/// tools. A final system message counts as the question, because some clients send no other; after an answer, the model
/// continues.
fn question(mut messages: Vec<Message>) -> Result<(Vec<Message>, Option<User>), Refusal> {
    let said = |content: String| User {
        content,
        ..User::default()
    };
    let user = match messages.pop() {
        Some(Message::User(user)) => Some(user),
        Some(Message::System(text)) => Some(said(text)),
        Some(other) => {
            let is_reply = matches!(other, Message::Assistant(_));
            messages.push(other);
            is_reply.then(|| said("Continue.".to_owned()))
        }
        None => return Err(Refusal::of_param("messages", "there is no message")),
    };
    Ok((messages, user))
}

/// Parses the conversation. Consecutive user messages are merged.
fn messages(list: &[Value]) -> Result<Vec<Message>, Refusal> {
    let mut messages = Vec::new();
    for (i, value) in list.iter().enumerate() {
        let message = message(value, &format!("messages[{i}]"))?;
        match (messages.last_mut(), message) {
            (Some(Message::User(before)), Message::User(next)) => {
                // Copying both would take minutes for many messages.
                before.content.push_str("\n\n");
                before.content.push_str(&next.content);
                before.media.extend(next.media);
            }
            (_, message) => messages.push(message),
        }
    }
    Ok(messages)
}

fn message(value: &Value, place: &str) -> Result<Message, Refusal> {
    let content = || content(&value["content"], &format!("{place}.content"));
    match value["role"].as_str() {
        Some("user") => {
            let (content, media) = content()?;
            Ok(Message::User(User {
                content,
                media,
                ..User::default()
            }))
        }
        Some("system" | "developer") => Ok(Message::System(content()?.0)),
        Some("assistant") => {
            let calls = value["tool_calls"].as_array();
            let calls = calls.into_iter().flatten().map(|call| ToolCall {
                id: text(&call["id"]),
                name: text(&call["function"]["name"]),
                arguments: text(&call["function"]["arguments"]),
                ..ToolCall::default()
            });
            Ok(Message::Assistant(Reply {
                text: content()?.0,
                calls: calls.collect(),
                ..Reply::default()
            }))
        }
        Some("tool") => Ok(Message::ToolResult(ToolResult {
            call_id: text(&value["tool_call_id"]),
            content: content()?.0,
            ..ToolResult::default()
        })),
        _ => {
            let why = "must be system, developer, user, assistant or tool";
            Err(Refusal::of_param(format!("{place}.role"), why))
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns the text and the files of a message's content.
fn content(value: &Value, place: &str) -> Result<(String, Vec<Media>), Refusal> {
    let why = "must be a string or a list of parts";
    let parts = match value {
        Value::Null => return Ok(Default::default()),
        Value::String(text) => return Ok((text.clone(), Vec::new())),
        Value::Array(parts) => parts,
        _ => {
            return Err(Refusal::of_param(place, why));
        }
    };
    let (mut texts, mut media) = (Vec::new(), Vec::new());
    for (i, part) in parts.iter().enumerate() {
        let refuse = |why| Err(Refusal::of_param(format!("{place}[{i}]"), why));
        let file = &part["file"];
        let data = match part["type"].as_str() {
            Some("text") => {
                texts.push(text(&part["text"]));
                continue;
            }
            Some("image_url") => part["image_url"]["url"].as_str(),
            Some("input_audio") => part["input_audio"]["data"].as_str(),
            Some("file") => file["file_data"].as_str(),
            _ => return refuse("bantam takes text, image_url, input_audio and file"),
        };
        let Some(bytes) = decode(data.unwrap_or_default()) else {
            return refuse("bantam fetches no file: send it in base64, or as a data: URL of that");
        };
        let name = file["filename"].as_str().unwrap_or_default();
        // A file that is not an image, a PDF or a recording may be a text.
        match (Media::detect(&bytes), String::from_utf8(bytes)) {
            (Some(known), _) => media.push(known.named(name)),
            (None, Ok(words)) => {
                let name = foreign_name(name, 60);
                texts.push(format!("[file: {name}]\n{}", fenced(&words)));
            }
            _ => return refuse("neither an image, a PDF, audio nor text"),
        }
    }
    Ok((texts.join("\n\n"), media))
}

/// Decodes base64, also as a data URL (RFC 2397). Other URLs are not fetched, because the client would control the address.
fn decode(data: &str) -> Option<Vec<u8>> {
    let data = match data.strip_prefix("data:") {
        Some(url) => url.split_once(";base64,")?.1,
        None => data,
    };
    let bytes = STANDARD.decode(data.trim()).ok()?;
    (!bytes.is_empty()).then_some(bytes)
}

/// Returns the tools that the client runs.
fn tools(list: &[Value]) -> Result<Vec<ClientTool>, Refusal> {
    let tool = |(i, tool): (usize, &Value)| {
        let function = &tool["function"];
        let name = text(&function["name"]);
        let refuse = |why| Err(Refusal::of_param(format!("tools[{i}]"), why));
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_word) {
            return refuse("a function's name is 1 to 64 letters, digits, _ and -");
        }
        let schema = match &function["parameters"] {
            Value::Null => json!({"type": "object", "properties": {}}).to_string(),
            schema @ Value::Object(_) => schema.to_string(),
            _ => return refuse("a function's parameters are a JSON object"),
        };
        Ok(ClientTool {
            name,
            description: text(&function["description"]),
            schema,
        })
    };
    list.iter().enumerate().map(tool).collect()
}

/// Common fields of all parts of a response.
pub(super) struct Completion {
    id: String,
    /// Creation time, in seconds since 1970.
    created: u64,
    /// Requested model.
    model: String,
}

impl Completion {
    /// Returns the fields of an answer by this model.
    pub(super) fn new(model: Option<&str>) -> Self {
        let now = UNIX_EPOCH.elapsed().unwrap_or_default();
        Self {
            id: format!("chatcmpl-{:x}", now.as_nanos()),
            created: now.as_secs(),
            model: model.unwrap_or(MODEL).to_owned(),
        }
    }

    /// Builds the whole response.
    pub(super) fn whole(&self, response: &Response, calls: &[ToolCall]) -> Value {
        let mut message = json!({"role": "assistant", "content": response.output});
        if !calls.is_empty() {
            message["tool_calls"] = calls.iter().map(call).collect();
            if response.output.is_empty() {
                message["content"] = Value::Null;
            }
        }
        let reason = finish_reason(response, calls);
        let choice =
            json!({"index": 0, "message": message, "logprobs": null, "finish_reason": reason});
        let mut whole = self.part("chat.completion", &json!([choice]));
        whole["usage"] = usage(response);
        whole
    }

    /// Builds a chunk of a stream; `delta` is the API's field.
    pub(super) fn chunk(&self, delta: &Value) -> Value {
        let choices = json!([{"index": 0, "delta": delta, "finish_reason": null}]);
        self.part(CHUNK, &choices)
    }

    /// Builds the chunks after the text: one per call of the client's tools, because clients only read the first call of a chunk,
    /// and ignore calls next to a `finish_reason`; then the reason for the end; then the usage, for clients that request it.
    pub(super) fn last_chunks(&self, response: &Response, calls: &[ToolCall]) -> Vec<Value> {
        let chunk = |(i, one): (usize, &ToolCall)| {
            let mut one = call(one);
            one["index"] = i.into();
            self.chunk(&json!({"tool_calls": [one]}))
        };
        let mut chunks: Vec<Value> = calls.iter().enumerate().map(chunk).collect();
        let reason = finish_reason(response, calls);
        let choices = json!([{"index": 0, "delta": {}, "finish_reason": reason}]);
        chunks.push(self.part(CHUNK, &choices));
        let mut last = self.part(CHUNK, &json!([]));
        last["usage"] = usage(response);
        chunks.push(last);
        chunks
    }

    fn part(&self, object: &str, choices: &Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}

/// Returns the text that an event adds to a stream, with its field in a delta.
pub(super) fn delta(event: Event, with_progress: bool) -> Option<(&'static str, String)> {
    match event {
        Event::Delta(text) => Some(("content", text)),
        // Sets the text that came with tool calls apart.
        Event::Progress(text) if !text.trim().is_empty() => Some(("content", "\n\n".to_owned())),
        Event::Thought(text) if with_progress => Some(("reasoning_content", text)),
        Event::ToolStarted { summary } if with_progress => {
            Some(("reasoning_content", summary + "\n"))
        }
        _ => None,
    }
}

fn call(call: &ToolCall) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments});
    json!({"id": call.id, "type": "function", "function": function})
}

fn finish_reason(response: &Response, calls: &[ToolCall]) -> &'static str {
    match response.stop {
        _ if !calls.is_empty() => "tool_calls",
        TurnStop::Length | TurnStop::Limit => "length",
        TurnStop::Done | TurnStop::Cancelled | TurnStop::Error => "stop",
    }
}

fn usage(response: &Response) -> Value {
    let usage = response.usage;
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total(),
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<ChatRequest, Refusal> {
        ChatRequest::parse(body.to_string().as_bytes(), None)
    }

    fn param(body: &Value) -> String {
        let refusal = read(body).err().unwrap();
        assert_eq!(refusal.status, 400);
        refusal.param.unwrap_or_default()
    }

    #[test]
    fn files_come_as_data_urls_alone() {
        let png = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ";
        let parts = json!([
            {"type": "image_url", "image_url": {"url": png}},
            {"type": "file", "file": {"filename": "a]\n[.txt", "file_data": "data:text/plain;base64,aGk="}},
        ]);
        let ask = |parts: Value| read(&json!({"messages": [{"role": "user", "content": parts}]}));
        let user = ask(parts).unwrap().user.unwrap();
        assert_eq!(user.media[0].mime, "image/png");
        assert!(user.content.contains("[file: a) (.txt]") && user.content.contains("hi"));
        for bad in [
            json!([{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}]),
            json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,!"}}]),
            json!([{"type": "image_url", "image_url": "data:image/png;base64,/w=="}]),
            json!([{"type": "video"}]),
        ] {
            assert!(
                param(&json!({"messages": [{"role": "user", "content": bad}]}))
                    .starts_with("messages[0].content[0]")
            );
        }
    }

    #[test]
    fn invalid_chat_request_error_names_its_field() {
        let user = json!([{"role": "user", "content": "hi"}]);
        assert_eq!(param(&json!({"messages": []})), "messages");
        assert_eq!(
            param(&json!({"messages": [{"role": "robot"}]})),
            "messages[0].role"
        );
        assert_eq!(
            param(&json!({"messages": user, "temperature": -1})),
            "temperature"
        );
        assert_eq!(param(&json!({"messages": user, "n": 2})), "n");
        for empty in [
            json!(""),
            json!(" \n"),
            json!(null),
            json!([{"type": "text", "text": " "}]),
        ] {
            let messages = json!([{"role": "user", "content": empty}]);
            assert_eq!(param(&json!({"messages": messages})), "messages[0].content");
        }
        assert_eq!(param(&json!([])), "");
        assert_eq!(ChatRequest::parse(b"{", None).err().unwrap().status, 400);
        for (name, wrong) in [
            ("model", json!(5)),
            ("stream", json!("yes")),
            ("stream_options", json!({"include_usage": 1})),
            ("max_tokens", json!("many")),
            ("max_tokens", json!(1.5)),
            ("temperature", json!("warm")),
            ("tools", json!({})),
        ] {
            let mut body = json!({"messages": user});
            body[name] = wrong;
            assert_eq!(param(&body), name, "{body}");
        }
    }

    #[test]
    fn client_request_variants_are_read() {
        let asked = |body: &Value| {
            let ask = read(body).map_err(|refusal| refusal.why).unwrap();
            let user = ask.user.map(|user| user.content);
            (user, ask.history.len(), ask.max_tokens, ask.session)
        };
        let (user, system) = (
            json!({"role": "user", "content": "hi"}),
            json!({"role": "system", "content": "Greet."}),
        );
        let reply = json!({"role": "assistant", "content": "Hel"});
        let hi = Some("hi".to_owned());
        let table = [
            (json!({"messages": [user]}), (hi.clone(), 0, None, None)),
            // The field `user` does not select a stored conversation.
            (
                json!({"messages": [user], "user": "me@example.org"}),
                (hi.clone(), 0, None, None),
            ),
            (
                json!({"messages": [user], "max_tokens": -1}),
                (hi.clone(), 0, None, None),
            ),
            (
                json!({"messages": [user], "max_tokens": 5, "max_completion_tokens": 7}),
                (hi, 0, Some(7), None),
            ),
            (
                json!({"messages": [system]}),
                (Some("Greet.".to_owned()), 0, None, None),
            ),
            (
                json!({"messages": [user, system]}),
                (Some("Greet.".to_owned()), 1, None, None),
            ),
            (
                json!({"messages": [user, reply]}),
                (Some("Continue.".to_owned()), 2, None, None),
            ),
        ];
        for (body, expected) in table {
            assert_eq!(asked(&body), expected, "{body}");
        }
        let stored = ChatRequest::parse(
            json!({"messages": [user]}).to_string().as_bytes(),
            Some("kitchen"),
        );
        assert_eq!(stored.ok().unwrap().session.as_deref(), Some("kitchen"));
    }
}
