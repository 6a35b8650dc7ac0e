//! What one model is sent for a request, and the writer of its JSON body, which all protocols share.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::facts::{self, HostFacts};
use super::host::HostApi;
use super::refusal::{RESPONSES, STALE_REASONING};
use super::{Request, ToolOffer, anthropic, openai, responses};
use crate::config::Model;
use crate::config::vendors::Protocol;
use crate::json::write_text;
use crate::message::{Media, MediaKind, Message, Reply, ToolResult, User};

/// Minimum length of a requested reply, in tokens.
const MIN_REPLY: u64 = 256;
/// Default maximum length of a reply, in tokens; limited to a quarter of the window.
pub(super) const DEFAULT_REPLY: u64 = 8192;

/// Names of the field with the maximum length of the reply.
const LENGTHS: [&str; 3] = ["max_tokens", "max_completion_tokens", "max_output_tokens"];

/// Field of [`Reply::extra`] that names the model of a stored reply.
const BY: &str = "by";

/// A request as one model gets it, by the known facts about the model.
pub(crate) struct Draft<'a> {
    pub model: &'a Model,
    pub request: &'a Request<'a>,
    pub facts: &'a HostFacts,
    /// Whether another model has made calls in the conversation.
    has_foreign_calls: bool,
    /// Parts that a change of the facts omits, or adds: each with whether it was written.
    pub parts: RefCell<BTreeSet<(&'static str, bool)>>,
}

/// Fields of a vendor, by name.
pub(super) type Extra<'a> = BTreeMap<&'a str, Cow<'a, Value>>;

/// Writes the body of a request, field by field. It omits the fields that the host refuses, and lets the user's `extra_body`
/// override fields.
pub(super) struct BodyWriter<'a> {
    facts: &'a HostFacts,
    overrides: BTreeMap<&'a str, &'a Value>,
    /// The JSON text.
    pub text: Vec<u8>,
    /// Names of the fields in the text.
    pub names: Vec<String>,
}

impl<'a> BodyWriter<'a> {
    /// Writes a field, under the name that the host takes.
    pub(super) fn field(&mut self, name: &str, value: impl Serialize) {
        match self.facts.field(name) {
            Some(name) if !self.overrides.contains_key(name) => self.write(name, &value),
            _ => {}
        }
    }

    /// Writes a field that has a value.
    pub(super) fn optional_field(&mut self, name: &str, value: Option<impl Serialize>) {
        if let Some(value) = value {
            self.field(name, value);
        }
    }

    /// Writes tools in a protocol's format: the start of each, the name of its schema, and its end. A schema is JSON already.
    pub(super) fn declare(&mut self, tools: &[&ToolOffer], [start, schema, end]: [&str; 3]) {
        let declared = tools.iter().map(|tool| {
            let [name, description] = [&tool.name, &tool.description].map(|text| json!(text));
            let parameters = &tool.schema;
            format!(
                r#"{start}"name":{name},"description":{description},"{schema}":{parameters}{end}"#
            )
        });
        if !self.overrides.contains_key("tools") {
            let declared: Vec<String> = declared.collect();
            self.begin_field("tools");
            self.text
                .extend(format!("[{}]", declared.join(",")).bytes());
        }
    }

    /// Writes the tools, and the rules for their calls, as OpenAI's APIs do. Some hosts reject an empty list.
    pub(super) fn tools(&mut self, draft: &Draft<'a>, format: [&str; 3]) {
        let tools = draft.tools();
        if tools.is_empty() {
            return;
        }
        self.declare(&tools, format);
        if draft.request.withheld {
            self.field("tool_choice", "none");
        } else if draft.request.sampling.must_call {
            self.field("tool_choice", "required");
        }
    }

    fn write(&mut self, name: &str, value: &impl Serialize) {
        self.begin_field(name);
        serde_json::to_writer(&mut self.text, value).ok();
    }

    fn begin_field(&mut self, name: &str) {
        self.text
            .push(if self.names.is_empty() { b'{' } else { b',' });
        // Writing to memory does not fail, and neither do the types of a body.
        serde_json::to_writer(&mut self.text, name).ok();
        self.text.push(b':');
        self.names.push(name.to_owned());
    }

    pub(super) fn finish(mut self) -> Self {
        for (name, value) in std::mem::take(&mut self.overrides) {
            self.write(name, value);
        }
        self.text.push(b'}');
        self
    }
}

/// A message in the order of OpenAI's APIs.
pub(super) enum Step<'a> {
    User(String, Vec<&'a Media>),
    Reply(&'a Reply),
    Result(&'a ToolResult),
}

impl<'a> Draft<'a> {
    pub(super) fn new(model: &'a Model, request: &'a Request<'a>, facts: &'a HostFacts) -> Self {
        let is_foreign = |message: &Message| match message {
            Message::Assistant(reply) => !reply.calls.is_empty() && !is_by(model, reply),
            _ => false,
        };
        Self {
            model,
            request,
            facts,
            has_foreign_calls: request.messages.iter().any(is_foreign),
            parts: RefCell::default(),
        }
    }

    /// Notes that a part is written or missing, so that a refusal knows which change makes a difference.
    fn note(&self, part: &'static str, is_written: bool) -> bool {
        self.parts.borrow_mut().insert((part, is_written));
        is_written
    }

    /// Whether to write a part that the host may refuse.
    pub(super) fn sends(&self, part: &'static str) -> bool {
        !self.facts.lacks(part) && self.note(part, true)
    }

    /// Whether to write a part that the host may demand.
    pub(super) fn adds(&self, part: &'static str) -> bool {
        self.note(part, self.facts.demands(part))
    }

    /// Returns the conversation without its system messages. Results are text there, so the images of a step follow all its
    /// results, as a user's message.
    pub(super) fn steps(&self) -> Vec<Step<'a>> {
        let (mut steps, mut images) = (Vec::new(), Vec::new());
        for message in self.request.messages {
            if !matches!(message, Message::ToolResult(_)) {
                push_images(&mut steps, &mut images);
            }
            match message {
                Message::System(_) => {}
                Message::User(user) => {
                    let media = self.taken(&user.media).collect();
                    steps.push(Step::User(self.whole_user_text(user), media));
                }
                Message::Assistant(reply) => steps.push(Step::Reply(reply)),
                Message::ToolResult(result) => {
                    images.extend(self.taken(&result.images));
                    steps.push(Step::Result(result));
                }
            }
        }
        push_images(&mut steps, &mut images);
        steps
    }

    /// Returns the fields that the user adds or overrides.
    fn own_fields(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let own = &self.request.sampling.extra_body;
        let extra = self.model.entry.extra_body.iter().chain(own);
        extra.filter_map(|(name, value)| Some((self.facts.field(name)?, value)))
    }

    pub(super) fn begin_body(&self) -> BodyWriter<'a> {
        BodyWriter {
            facts: self.facts,
            overrides: self.own_fields().collect(),
            text: Vec::new(),
            names: Vec::new(),
        }
    }

    /// Returns the maximum length of the reply in tokens: the user's own field, or else the setting, limited by the host and the
    /// window.
    pub(super) fn max_tokens(&self) -> u64 {
        let lengths = self.own_fields().filter(|(name, _)| LENGTHS.contains(name));
        if let Some(own) = lengths.last().and_then(|(_, length)| length.as_u64()) {
            return own;
        }
        let sampling = self.request.sampling.max_tokens;
        let wanted = sampling.unwrap_or(self.model.entry.max_tokens);
        let limit = self.facts.max_tokens.filter(|limit| *limit >= MIN_REPLY);
        let limit = limit.unwrap_or(u64::MAX);
        let Some(window) = self.window() else {
            return wanted.min(limit);
        };
        let left = window.saturating_sub(self.request.input_tokens);
        let share = match sampling {
            None if wanted == DEFAULT_REPLY => window / 4,
            _ => u64::MAX,
        };
        wanted.min(limit).min(share).min(left.max(MIN_REPLY))
    }

    /// Returns the known context window for the request and the reply together.
    fn window(&self) -> Option<u64> {
        let configured = Some(self.model.entry.context_window).filter(|window| *window > 0);
        let known = self.facts.window.into_iter().chain(configured);
        known.min()
    }

    pub(super) fn temperature(&self) -> Option<f64> {
        let wanted = self.request.sampling.temperature;
        wanted.or(self.model.entry.temperature)
    }

    /// Returns the entry's thinking effort.
    pub(super) fn effort(&self) -> Option<&'a str> {
        let effort = self.model.entry.reasoning_effort.as_str();
        Some(effort).filter(|effort| !effort.is_empty())
    }

    pub(super) fn streams(&self) -> bool {
        self.request.stream && !self.facts.lacks("stream")
    }

    /// Returns the tools to declare. If the host does not support `tool_choice`, withheld tools are omitted.
    pub(super) fn tools(&self) -> Vec<&'a ToolOffer> {
        let request = self.request;
        if request.withheld && self.facts.field("tool_choice").is_none() {
            return Vec::new();
        }
        self.facts.tools(request.tools)
    }

    /// Whether a reply's vendor fields are sent back to this model.
    pub(super) fn echoes(&self, reply: &Reply) -> bool {
        let is_own = is_by(self.model, reply) && !reply.partial;
        is_own && self.sends("reasoning") && self.sends(STALE_REASONING)
    }

    /// Returns a vendor's field of a reply, if it is sent back to this model.
    pub(super) fn echo<'b>(&self, reply: &'b Reply, field: &str) -> Option<&'b Value> {
        let value = reply.extra.get(field)?;
        self.echoes(reply).then_some(value)
    }

    /// Returns the API for chats that the model's entry sets or its host demands.
    pub(super) fn api(&self) -> HostApi {
        let model = self.model;
        match model.protocol {
            Protocol::Anthropic => anthropic::API,
            Protocol::OpenAi if model.entry.api == RESPONSES || self.adds(RESPONSES) => {
                responses::API
            }
            _ => openai::API,
        }
    }

    /// Whether to write media of this kind, and not text in their place.
    pub(super) fn takes(&self, kind: MediaKind) -> bool {
        let is_known = kind != MediaKind::Audio || self.api().has_audio;
        is_known && self.sends(facts::part_of(kind))
    }

    /// Returns the media that the host accepts.
    pub(super) fn taken(&self, media: &'a [Media]) -> impl Iterator<Item = &'a Media> {
        media.iter().filter(|media| self.takes(media.kind()))
    }

    /// Returns placeholders for the media that the host rejects, each on a line after the message.
    pub(super) fn replacements(&self, media: &[Media]) -> String {
        let refused = media.iter().filter(|media| !self.takes(media.kind()));
        let lines = refused.map(|media| media.replacement("left out: not supported by this model"));
        lines.fold(String::new(), |text, line| text + "\n" + &line)
    }

    /// Returns the system prompt, with the system messages of the conversation.
    pub(super) fn whole_system(&self) -> Option<String> {
        let mut system = self.request.system.text();
        for message in self.request.messages {
            if let Message::System(text) = message {
                system = format!("{system}\n\n{text}");
            }
        }
        Some(system.trim().to_owned()).filter(|system| !system.is_empty())
    }

    /// Returns the text of a user's message, without its notes.
    pub(super) fn user_text(&self, user: &User) -> String {
        let time = user.shown_time();
        // A long conversation has hundreds of them.
        let mut text = String::with_capacity(time.len() + "[]\n".len() + user.content.len());
        if !time.is_empty() {
            text.extend(["[", time, "]\n"]);
        }
        text.push_str(&user.content);
        text + &self.replacements(&user.media)
    }

    /// Returns the text of a user's message, with its notes.
    fn whole_user_text(&self, user: &User) -> String {
        let mut text = self.user_text(user);
        if !user.notes.is_empty() {
            text.push_str("\n\n");
            text.push_str(&user.notes);
        }
        text
    }

    /// Returns the id to send for a call: unchanged to the model that created it, shortened once another model has made calls.
    /// A client does not say which model has made those in its history; Anthropic refuses other characters.
    pub(super) fn id<'b>(&self, id: &'b str) -> Cow<'b, str> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let is_refused = self.model.protocol == Protocol::Anthropic && !id.chars().all(is_plain);
        if self.has_foreign_calls || is_refused {
            shorten(id)
        } else {
            id.into()
        }
    }
}

/// Whether a reply is by a model.
fn is_by(model: &Model, reply: &Reply) -> bool {
    reply.extra.get(BY).is_none_or(|by| *by == *model.name)
}

fn push_images<'a>(steps: &mut Vec<Step<'a>>, images: &mut Vec<&'a Media>) {
    if !images.is_empty() {
        let text = "[images from the tools]".to_owned();
        steps.push(Step::User(text, std::mem::take(images)));
    }
}

/// Stores the model of a reply, if only that model understands a part of the reply.
pub(super) fn sign(reply: &mut Reply, model: &str) {
    if !reply.extra.is_empty() || !reply.calls.is_empty() {
        reply.extra.insert(BY.to_owned(), model.into());
    }
}

/// Shortens an id to nine letters and digits, which every host accepts. Deterministic, so that calls and results still match.
fn shorten(id: &str) -> Cow<'_, str> {
    if id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return id.into();
    }
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    format!("{:016x}", hasher.finish()).split_off(7).into()
}

/// Text of a message, which may be long and is written faster than by serde.
pub(super) struct LongText<'a>(pub Cow<'a, str>);

impl Serialize for LongText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write_text(std::iter::once(&*self.0)).serialize(serializer)
    }
}

/// Returns the line that names a file, followed by the file.
pub(super) fn labelled(media: &Media, text: fn(&str) -> Value, file: Value) -> Vec<Value> {
    let label = media.label().map(|label| text(&label));
    label.into_iter().chain([file]).collect()
}

/// Returns a file as a `data:` URL.
pub(super) fn data_url(media: &Media) -> String {
    format!("data:{};base64,{}", media.mime, media.base64)
}

/// Returns the name of a file, which OpenAI's APIs require.
pub(super) fn file_name(media: &Media) -> &str {
    if media.name.is_empty() {
        "attached.pdf"
    } else {
        &media.name
    }
}
