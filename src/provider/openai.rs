//! The OpenAI chat completions API, which most of the world speaks.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::outgoing::{Body as Outline, Extra, Ids, Outgoing, Pieces, raw};
use super::reply::Reading;
use super::shapes::{ECHOED, REASONING_FIELD};
use crate::config::Model;
use crate::config::vendors::Protocol;
use crate::message::{Media, MediaKind, Message, Reply, ToolCall, ToolResult};

/// The endpoint for chats, below a base.
pub(super) const CHAT: &str = "/chat/completions";
/// The version of Azure's API that has this shape.
const AZURE_VERSION: &str = "2024-10-21";

pub(crate) const READING: Reading = Reading {
    text: text_alone,
    translate: |event| event,
};

/// The body of a request.
#[derive(Serialize)]
pub(super) struct Body<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<Vec<Turn<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<Vec<Tool<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<&'static str>,
    #[serde(flatten)]
    extra: Extra<'a>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "type", content = "function", rename_all = "lowercase")]
enum Tool<'a> {
    Function {
        name: &'a str,
        description: &'a str,
        parameters: Cow<'a, RawValue>,
    },
}

impl<'a> Body<'a> {
    pub(super) fn new(out: &Outgoing<'a>) -> Self {
        let effort = out.model.entry.reasoning_effort.as_str();
        let max_tokens = Some(out.max_tokens());
        let is_renamed = out.facts.lacks("max_tokens");
        let streams = out.streams();
        let tools = out.tools();
        let is_withheld = out.request.withheld && !tools.is_empty();
        let tools = tools.into_iter().map(|tool| Tool::Function {
            name: &tool.name,
            description: &tool.description,
            parameters: raw(&tool.schema),
        });
        Self {
            model: Some(&out.model.id),
            max_tokens: max_tokens.filter(|_| !is_renamed),
            max_completion_tokens: max_tokens.filter(|_| is_renamed),
            stream: streams.then_some(true),
            temperature: out.temperature(),
            reasoning_effort: Some(effort).filter(|effort| !effort.is_empty()),
            stream_options: streams.then_some(StreamOptions {
                include_usage: true,
            }),
            messages: Some(turns(out)),
            tools: Some(tools.collect()).filter(|tools: &Vec<Tool>| !tools.is_empty()),
            tool_choice: is_withheld.then_some("none"),
            extra: Extra::new(),
        }
    }
}

impl<'a> Outline<'a> for Body<'a> {
    fn clear(&mut self, field: &str) {
        match field {
            "model" => self.model = None,
            "max_tokens" => self.max_tokens = None,
            "max_completion_tokens" => self.max_completion_tokens = None,
            "stream" => self.stream = None,
            "temperature" => self.temperature = None,
            "reasoning_effort" => self.reasoning_effort = None,
            "stream_options" => self.stream_options = None,
            "messages" => self.messages = None,
            "tools" => self.tools = None,
            "tool_choice" => self.tool_choice = None,
            field => drop(self.extra.remove(field)),
        }
    }

    fn extra(&mut self) -> &mut Extra<'a> {
        &mut self.extra
    }
}

/// The address of an endpoint for a model.
pub(super) fn url(model: &Model, endpoint: &str) -> String {
    match model.protocol {
        Protocol::Azure => azure_url(&model.base, &model.id, endpoint),
        _ => api_url(&model.base, endpoint),
    }
}

/// The address of an endpoint for a base with `/chat/completions`, with a version, or with neither.
fn api_url(base: &str, endpoint: &str) -> String {
    let base = base.trim().trim_end_matches('/').trim_end_matches(CHAT);
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
        .trim_end_matches(CHAT)
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
#[derive(Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
enum Turn<'a> {
    System {
        content: String,
    },
    User {
        content: Content<'a>,
    },
    Assistant(Said<'a>),
    Tool {
        tool_call_id: Cow<'a, str>,
        content: Pieces<'a>,
    },
}

/// The content of a user's message: not every host reads parts, so text alone is sent as a plain string.
#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(Pieces<'a>),
    Parts(Vec<Part<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    Text { text: Pieces<'a> },
    ImageUrl { image_url: Url<'a> },
    // The API refuses a file without a name.
    File { file: File<'a> },
    InputAudio { input_audio: Audio<'a> },
}

#[derive(Serialize)]
struct Url<'a> {
    url: Pieces<'a>,
}

#[derive(Serialize)]
struct File<'a> {
    filename: &'static str,
    file_data: Pieces<'a>,
}

#[derive(Serialize)]
struct Audio<'a> {
    data: &'a str,
    format: &'a str,
}

/// A reply.
#[derive(Serialize)]
struct Said<'a> {
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    #[serde(flatten)]
    echoed: Extra<'a>,
}

#[derive(Serialize)]
struct Call<'a> {
    id: Cow<'a, str>,
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function<'a>,
    #[serde(flatten)]
    extra: Extra<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thought_signature: Option<&'a Value>,
}

/// The conversation as the API wants it: one system message first, never two user messages in a row, each call followed by
/// its result. Results are text; the images of a step follow all its results, as a user message.
fn turns<'a>(out: &Outgoing<'a>) -> Vec<Turn<'a>> {
    let ids = out.ids();
    let mut system = out.request.system.text();
    let (mut turns, mut images) = (Vec::new(), Vec::new());
    for message in out.request.messages {
        if !matches!(message, Message::ToolResult(_)) {
            show(&mut turns, &mut images);
        }
        match message {
            Message::System(text) => system = format!("{system}\n\n{text}"),
            Message::User(user) => {
                let mut text = out.user_text(user);
                if !user.notes.is_empty() {
                    text.push("\n\n");
                    text.push(user.notes.as_str());
                }
                say(&mut turns, [Part::Text { text }]);
                say(&mut turns, out.taken(&user.media).map(media));
            }
            // Hosts refuse a reply that says nothing.
            Message::Assistant(reply) if reply.text.is_empty() && reply.calls.is_empty() => {}
            Message::Assistant(reply) => turns.push(Turn::Assistant(said(reply, out, &ids))),
            Message::ToolResult(result) => {
                turns.push(tool_result(result, out, &ids));
                images.extend(out.taken(&result.images).map(media));
            }
        }
    }
    show(&mut turns, &mut images);
    let system = system.trim();
    if system.is_empty() {
        return turns;
    }
    let content = system.to_owned();
    if !out.facts.lacks("system_role") {
        turns.insert(0, Turn::System { content });
        return turns;
    }
    if !matches!(turns.first(), Some(Turn::User { .. })) {
        let content = Content::Parts(Vec::new());
        turns.insert(0, Turn::User { content });
    }
    if let Some(Turn::User { content: said }) = turns.first_mut() {
        said.add(
            Part::Text {
                text: content.into(),
            },
            true,
        );
    }
    turns
}

impl<'a> Content<'a> {
    /// Adds a part at the end, or at the beginning. Texts are joined while there is nothing else.
    fn add(&mut self, part: Part<'a>, is_first: bool) {
        match (&mut *self, part) {
            (Self::Text(text), Part::Text { text: mut new }) => {
                let old = std::mem::take(text);
                let (mut first, second) = if is_first {
                    (new, old)
                } else {
                    (old, std::mem::take(&mut new))
                };
                if !second.is_empty() {
                    first.push("\n\n");
                }
                first.append(second);
                *text = first;
            }
            (Self::Text(text), part) => {
                let text = std::mem::take(text);
                *self = Self::Parts(vec![Part::Text { text }, part]);
            }
            (Self::Parts(parts), part) if is_first => parts.insert(0, part),
            (Self::Parts(parts), part) => parts.push(part),
        }
    }
}

/// Adds parts to the user message at the end, or to a new one.
fn say<'a>(turns: &mut Vec<Turn<'a>>, parts: impl IntoIterator<Item = Part<'a>>) {
    for part in parts {
        match (turns.last_mut(), part) {
            (Some(Turn::User { content }), part) => content.add(part, false),
            (_, Part::Text { text }) => turns.push(Turn::User {
                content: Content::Text(text),
            }),
            (_, part) => turns.push(Turn::User {
                content: Content::Parts(vec![part]),
            }),
        }
    }
}

/// Adds the images of a step's results.
fn show<'a>(turns: &mut Vec<Turn<'a>>, images: &mut Vec<Part<'a>>) {
    if !images.is_empty() {
        let text = "[images from the tools]".into();
        say(turns, [Part::Text { text }]);
        say(turns, images.drain(..));
    }
}

fn tool_result<'a>(result: &'a ToolResult, out: &Outgoing<'a>, ids: &Ids<'a>) -> Turn<'a> {
    let mut content = Pieces::from(result.content.as_str());
    content.push(out.replacements(&result.images));
    if content.is_empty() {
        // Some hosts refuse an empty result.
        content.push("(empty)");
    }
    Turn::Tool {
        tool_call_id: ids.get(&result.call_id),
        content,
    }
}

fn media(media: &Media) -> Part<'_> {
    let url = || {
        let mut url = Pieces::from("data:");
        url.push(media.mime.as_str());
        url.push(";base64,");
        url.push(media.base64.as_str());
        url
    };
    match (media.kind(), media.audio_format()) {
        (MediaKind::Image, _) => Part::ImageUrl {
            image_url: Url { url: url() },
        },
        (MediaKind::Pdf, _) => Part::File {
            file: File {
                filename: "attached.pdf",
                file_data: url(),
            },
        },
        (MediaKind::Audio, Some(format)) => Part::InputAudio {
            input_audio: Audio {
                data: &media.base64,
                format,
            },
        },
        (MediaKind::Audio, None) => Part::Text {
            text: media
                .replacement("left out: this API takes WAV and MP3")
                .into(),
        },
    }
}

fn said<'a>(reply: &'a Reply, out: &Outgoing<'a>, ids: &Ids<'a>) -> Said<'a> {
    let echoes = out.echoes(reply);
    let calls = reply.calls.iter().enumerate();
    let calls = calls.map(|(n, call)| call_of(call, n == 0, echoes, out, ids));
    // DeepSeek and Kimi demand the reasoning of tool turns, under the name they gave it.
    let field = reply.extra.get(REASONING_FIELD).and_then(Value::as_str);
    let field = field.filter(|_| echoes && !reply.calls.is_empty() && !reply.reasoning.is_empty());
    let thoughts = |name: &str| Some(reply.reasoning.as_str()).filter(|_| field == Some(name));
    let demanded = Some("").filter(|_| out.facts.demands("reasoning"));
    let echoed = ECHOED.into_iter().filter(|_| echoes);
    let echoed = echoed.filter_map(|name| Some((name, Cow::Borrowed(reply.extra.get(name)?))));
    Said {
        content: Some(reply.text.as_str())
            .filter(|text| !text.is_empty() || out.facts.lacks("null")),
        tool_calls: calls.collect(),
        reasoning_content: thoughts("reasoning_content").or(demanded),
        reasoning: thoughts("reasoning"),
        echoed: echoed.collect(),
    }
}

fn call_of<'a>(
    call: &'a ToolCall,
    is_first: bool,
    echoes: bool,
    out: &Outgoing<'a>,
    ids: &Ids<'a>,
) -> Call<'a> {
    const SIGNATURE: &str = "thought_signature";
    let echoed = call.extra.iter().filter(|_| echoes);
    let mut extra: Extra = echoed
        .filter(|(name, _)| *name != SIGNATURE)
        .map(|(name, value)| (name.as_str(), Cow::Borrowed(value)))
        .collect();
    // Marks a call as another model's. Of several in one reply, only the first is signed.
    if is_first && out.facts.demands("signatures") && !extra.contains_key("extra_content") {
        let mark = json!({"google": {"thought_signature": "skip_thought_signature_validator"}});
        extra.insert("extra_content", Cow::Owned(mark));
    }
    Call {
        id: ids.get(&call.id),
        kind: "function",
        function: Function {
            name: &call.name,
            arguments: call.object(),
            thought_signature: call.extra.get(SIGNATURE).filter(|_| echoes),
        },
        extra,
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
    use crate::message::User;
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
}
