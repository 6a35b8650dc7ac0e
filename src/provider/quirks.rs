//! Quirks: changes to a request that a host demands, learned from its own refusals.
//!
//! OpenAI-compatible hosts agree on the path and on little else, and a table of vendors would be wrong by next month. The
//! refusal names what is wrong, so the host is asked once more without it. If that helps, the quirk is remembered: in memory,
//! and by [`Save`] for longer. The size of a model's window is learned and kept in the same way.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value, json};

use super::replies::{ECHOED, REASONING};

/// One change to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Quirk {
    /// `max_tokens` is called `max_completion_tokens` (OpenAI's o-series and gpt-5).
    MaxCompletionTokens,
    /// The opposite: `max_completion_tokens` is unknown.
    MaxTokens,
    NoStream,
    /// Assistant messages may not carry reasoning or other vendors' fields.
    NoReasoning,
    /// Assistant messages must carry reasoning, even when there is none.
    EmptyReasoning,
    NoImages,
    NoFiles,
    NoAudio,
    NoTools,
    /// The system prompt is a part of the user's first message.
    NoSystem,
    /// Every message has a text, if an empty one.
    NoNull,
    /// Ids of calls are nine letters and digits (Mistral), and no others are as short.
    ShortIds,
    /// Calls need a signature, which those of another model lack (Gemini).
    Signatures,
    /// Tools can be used only without reasoning, which must be said.
    NoEffort,
    /// Thinking has an effort and no budget (Anthropic's newer models).
    AdaptiveThinking,
    /// This field at the top of the request is unknown, or its value is refused.
    Without(String),
    /// The model reads so many tokens at once. Changes no request.
    Window(u64),
}

/// A quirk, its name on disk, what it says of a host in `bantam status`, and the groups of texts (in lower case) of which all
/// stand in a refusal that teaches it. The first row that fits and changes the request counts.
type Row = (Quirk, &'static str, &'static str, &'static [&'static [&'static str]]);

static ROWS: [Row; 15] = [
    (
        Quirk::MaxCompletionTokens,
        "max_completion_tokens",
        "takes max_completion_tokens in place of max_tokens",
        &[&["max_tokens", "max_completion_tokens"]],
    ),
    (Quirk::MaxTokens, "max_tokens", "takes max_tokens only", &[&["max_completion_tokens"]]),
    (
        Quirk::NoFiles,
        "no files",
        "takes no PDF files",
        &[
            &["unknown variant `file`"],
            &["part type: file"],
            &["'file'"],
            &["support", "file content"],
            &["support", "file input"],
            &["support", "pdf"],
            &["support", "document"],
            &["unsupported content[].type"],
            &["content blocks are expected"],
        ],
    ),
    (
        Quirk::NoAudio,
        "no audio",
        "takes no recordings",
        &[
            &["input_audio"],
            &["audio input"],
            &["support", "audio"],
            &["unsupported content[].type"],
            &["content blocks are expected"],
        ],
    ),
    (
        Quirk::NoImages,
        "no images",
        "takes no images",
        // What is wrong with one image names its format, size or encoding.
        &[
            &["support image input"],
            &["image input is not"],
            &["unknown variant", "image_url"],
            &["image_url is only supported"],
            &["not support images"],
            &["not support vision"],
            &["not a multimodal model"],
            &["content must be a string"],
            &["content should be a string"],
        ],
    ),
    (Quirk::NoEffort, "no effort", "takes tools only without reasoning", &[&["tools", "reasoning_effort", "'none'"]]),
    (
        Quirk::NoTools,
        "no tools",
        "takes no tools",
        &[
            &["not support tools"],
            &["support tool use"],
            &["not support function calling"],
            &["enable-auto-tool-choice"],
        ],
    ),
    (Quirk::AdaptiveThinking, "adaptive thinking", "decides itself how long to think", &[&["thinking", "adaptive"]]),
    (Quirk::NoStream, "no stream", "does not stream", &[&["stream", "not support"]]),
    (
        Quirk::EmptyReasoning,
        "empty reasoning",
        "wants reasoning_content in every reply",
        &[&["reasoning_content", "must be passed"], &["reasoning_content", "missing"]],
    ),
    (
        Quirk::NoReasoning,
        "no reasoning",
        "takes no reasoning back",
        &[
            &["reasoning_content"],
            &["reasoning_details"],
            &["'reasoning'", "unsupported"],
            &["thinking_blocks"],
            &["extra_content"],
        ],
    ),
    (
        Quirk::ShortIds,
        "short ids",
        "takes ids of nine letters and digits only",
        &[&["tool call id", "length"], &["tool_call", "id", "maximum length"]],
    ),
    (Quirk::Signatures, "signatures", "wants a signature with every call", &[&["thought_signature"]]),
    (
        Quirk::NoSystem,
        "no system role",
        "takes no system role",
        &[&["system", "role"], &["system message", "support"], &["developer instruction"]],
    ),
    (
        Quirk::NoNull,
        "no null",
        "takes no message without text",
        &[
            &["content", "null"],
            &["content", "nil"],
            &["content", "none"],
            &["content", "string"],
            &["content", "required"],
        ],
    ),
];

/// The rows that count before a field that is refused by its name.
const BEFORE_FIELDS: usize = 8;

/// Fields that no host can do without, or that have rows of their own.
const NEEDED: [&str; 7] = ["model", "messages", "max_tokens", "max_completion_tokens", "stream", "tools", "system"];
/// Fields that a host may refuse for their value: a refusal need only name them.
const TUNING: [&str; 3] = ["temperature", "top_p", "reasoning_effort"];
/// Words for a field that is refused, in lower case.
const REFUSING: [&str; 12] = [
    "extra inputs",
    "extra_forbidden",
    "unknown",
    "unrecognized",
    "unrecognised",
    "unsupported",
    "not support",
    "not permitted",
    "not allowed",
    "unexpected",
    "additional propert",
    "invalid parameter",
];

/// Quirks of which learning one unlearns the other.
const OPPOSITES: [(Quirk, Quirk); 2] =
    [(Quirk::MaxCompletionTokens, Quirk::MaxTokens), (Quirk::NoReasoning, Quirk::EmptyReasoning)];

impl Quirk {
    pub(crate) fn name(&self) -> Cow<'static, str> {
        match self {
            Self::Without(field) => format!("no {field}").into(),
            Self::Window(tokens) => format!("window {tokens}").into(),
            known => ROWS.iter().find(|row| row.0 == *known).map_or("", |row| row.1).into(),
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        let known = ROWS.iter().find(|row| row.1 == name).map(|row| row.0.clone());
        let window = || name.strip_prefix("window ")?.parse().ok().map(Self::Window);
        known.or_else(window).or_else(|| name.strip_prefix("no ").map(|field| Self::Without(field.to_owned())))
    }

    /// What it says of a host: "takes no images".
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Without(field) => format!("takes no {field}"),
            Self::Window(tokens) => format!("reads {tokens} tokens at once"),
            known => ROWS.iter().find(|row| row.0 == *known).map_or("", |row| row.2).to_owned(),
        }
    }

    /// Whether a host cannot have both.
    fn excludes(&self, other: &Self) -> bool {
        let is_pair = |(a, b): &(Self, Self)| (a, b) == (self, other) || (b, a) == (self, other);
        OPPOSITES.iter().any(is_pair) || matches!((self, other), (Self::Window(_), Self::Window(_)))
    }
}

/// Receives all quirks of a host whenever they change.
pub(crate) type Save = Box<dyn Fn(&[Quirk]) + Send + Sync>;

/// The quirks of one host for one model.
#[derive(Default)]
pub(crate) struct Learned {
    known: Vec<Quirk>,
    save: Option<Save>,
}

impl Learned {
    pub(crate) fn new(known: Vec<Quirk>, save: Save) -> Self {
        Self { known, save: Some(save) }
    }

    /// Learns from the refusal of `sent`; true if it teaches a quirk that is not among those `tried` for this request.
    /// [`Learned::save`] makes it last.
    pub(super) fn learn(&mut self, refusal: &str, sent: &Value, tried: &mut Vec<Quirk>) -> bool {
        let Some(quirk) = taught(refusal, sent).filter(|quirk| !tried.contains(quirk)) else { return false };
        tried.push(quirk.clone());
        self.add(quirk);
        true
    }

    pub(crate) fn add(&mut self, quirk: Quirk) {
        self.known.retain(|known| *known != quirk && !known.excludes(&quirk));
        self.known.push(quirk);
    }

    pub(crate) fn known(&self) -> &[Quirk] {
        &self.known
    }

    /// Goes back to what was known before a request that was refused all the same.
    pub(super) fn restore(&mut self, known: Vec<Quirk>) {
        self.known = known;
    }

    pub(super) fn knows(&self, quirk: &Quirk) -> bool {
        self.known.contains(quirk)
    }

    /// Forgets a quirk to test it again; true if it was known. [`Learned::save`] makes it last.
    pub(super) fn forget(&mut self, quirk: &Quirk) -> bool {
        let before = self.known.len();
        self.known.retain(|known| known != quirk);
        self.known.len() < before
    }

    pub(crate) fn save(&self) {
        if let Some(save) = &self.save {
            save(&self.known);
        }
    }

    /// Changes a request so that the host accepts it.
    pub(super) fn apply(&self, body: &mut Value) {
        let Value::Object(fields) = body else { return };
        self.known.iter().for_each(|quirk| apply(quirk, fields));
    }
}

/// The quirk that a refusal of `sent` teaches.
fn taught(refusal: &str, sent: &Value) -> Option<Quirk> {
    let (refusal, sent) = (refusal.to_lowercase(), sent.as_object()?);
    let fits = |texts: &&[&str]| texts.iter().all(|text| refusal.contains(text));
    let (first, last) = ROWS.split_at(BEFORE_FIELDS);
    let fitting = |rows: &'static [Row]| rows.iter().filter(|row| row.3.iter().any(fits)).map(|row| row.0.clone());
    let field = refused_field(&refusal, sent).map(Quirk::Without);
    let changes = |quirk: &Quirk| {
        let mut changed = sent.clone();
        apply(quirk, &mut changed);
        changed != *sent
    };
    fitting(first).chain(field).chain(fitting(last)).find(changes)
}

/// The field at the top of `sent` that a refusal names, the first of several.
fn refused_field(refusal: &str, sent: &Map<String, Value>) -> Option<String> {
    let is_refusing = REFUSING.iter().any(|text| refusal.contains(text));
    let names = sent.keys().filter(|name| !NEEDED.contains(&name.as_str()));
    let names = names.filter(|name| is_refusing || TUNING.contains(&name.as_str()));
    let place = |name: &&String| position_of_word(refusal, &name.to_lowercase());
    names.filter(|name| place(name).is_some()).min_by_key(place).cloned()
}

/// Where `word` stands in `text`, and not as a part of another word.
fn position_of_word(text: &str, word: &str) -> Option<usize> {
    let is_part = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let whole = |(at, _): &(usize, &str)| {
        let bytes = text.as_bytes();
        !is_part(at.checked_sub(1).and_then(|before| bytes.get(before))) && !is_part(bytes.get(at + word.len()))
    };
    text.match_indices(word).find(whole).map(|(at, _)| at)
}

fn apply(quirk: &Quirk, fields: &mut Map<String, Value>) {
    match quirk {
        Quirk::MaxCompletionTokens => rename(fields, "max_tokens", "max_completion_tokens"),
        Quirk::MaxTokens => rename(fields, "max_completion_tokens", "max_tokens"),
        Quirk::Without(field) => drop(fields.remove(field)),
        Quirk::NoStream => fields.retain(|name, _| name != "stream" && name != "stream_options"),
        Quirk::NoTools => fields.retain(|name, _| name != "tools" && name != "tool_choice"),
        Quirk::NoEffort => drop(fields.insert("reasoning_effort".to_owned(), "none".into())),
        Quirk::NoSystem => join_system(fields),
        Quirk::AdaptiveThinking => adapt_thinking(fields),
        Quirk::Window(_) => {}
        of_messages => messages(fields).for_each(|message| apply_to_message(of_messages, message)),
    }
}

/// Replaces parts of these types; `Host::body` knows better texts for those of a conversation.
fn leave_out(message: &mut Map<String, Value>, types: &[&str]) {
    let parts = message.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten();
    for part in parts.filter(|part| part["type"].as_str().is_some_and(|kind| types.contains(&kind))) {
        *part = json!({"type": "text", "text": "[a file, left out: this model does not take it]"});
    }
}

fn apply_to_message(quirk: &Quirk, message: &mut Map<String, Value>) {
    let is_reply = message.get("role").is_some_and(|role| role == "assistant");
    match quirk {
        Quirk::NoImages => message.get_mut("content").into_iter().for_each(leave_images_out),
        Quirk::NoFiles => leave_out(message, &["file", "document"]),
        Quirk::NoAudio => leave_out(message, &["input_audio"]),
        Quirk::NoReasoning => {
            message.retain(|name, _| !REASONING.contains(&name.as_str()) && !ECHOED.contains(&name.as_str()));
            for call in calls(message).filter_map(Value::as_object_mut) {
                call.remove("extra_content");
            }
        }
        Quirk::EmptyReasoning if is_reply => drop(message.entry("reasoning_content").or_insert_with(|| "".into())),
        Quirk::NoNull => {
            if let Some(content) = message.get_mut("content").filter(|content| content.is_null()) {
                *content = "".into();
            }
        }
        Quirk::ShortIds => {
            let ids = message.get_mut("tool_call_id").into_iter();
            ids.for_each(|id| *id = short_id(id));
            calls(message).for_each(|call| call["id"] = short_id(&call["id"]));
        }
        Quirk::Signatures => {
            // Of several calls in one reply, only the first is signed.
            if let Some(call) = calls(message).next().filter(|call| call.get("extra_content").is_none()) {
                call["extra_content"] = json!({"google": {"thought_signature": "skip_thought_signature_validator"}});
            }
        }
        _ => {}
    }
}

fn calls(message: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten()
}

/// The same short id for the same id, so that calls and results still belong together.
pub(super) fn short_id(id: &Value) -> Value {
    const DIGITS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let id = id.as_str().unwrap_or_default();
    if id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return id.into();
    }
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    let mut rest = hasher.finish();
    let mut digit = || {
        let digit = DIGITS[usize::try_from(rest % 62).unwrap_or_default()];
        rest /= 62;
        char::from(digit)
    };
    (0..9).map(|_| digit()).collect::<String>().into()
}

/// Puts the system prompt before the user's first words.
fn join_system(fields: &mut Map<String, Value>) {
    let Some(messages) = fields.get_mut("messages").and_then(Value::as_array_mut) else { return };
    if messages.first().is_none_or(|first| first["role"] != "system") {
        return;
    }
    let system = messages.remove(0)["content"].take();
    match messages.first_mut().filter(|first| first["role"] == "user").map(|first| &mut first["content"]) {
        Some(Value::Array(parts)) => parts.insert(0, json!({"type": "text", "text": system})),
        Some(Value::String(text)) => *text = format!("{}\n\n{text}", system.as_str().unwrap_or_default()),
        _ => messages.insert(0, json!({"role": "user", "content": system})),
    }
}

fn adapt_thinking(fields: &mut Map<String, Value>) {
    let Some(budget) = fields.get("thinking").and_then(|thinking| thinking["budget_tokens"].as_u64()) else { return };
    let most = fields.get("max_tokens").and_then(Value::as_u64).unwrap_or_default();
    let effort = if budget >= most / 2 {
        "high"
    } else if budget > 1024 {
        "medium"
    } else {
        "low"
    };
    fields.insert("thinking".to_owned(), json!({"type": "adaptive"}));
    fields.insert("output_config".to_owned(), json!({"effort": effort}));
}

/// Stands in for an image.
const IMAGE_LEFT_OUT: &str = "[an image, left out: this model reads only text]";

/// Replaces the images in a message's content, and in the results in it.
fn leave_images_out(content: &mut Value) {
    let Value::Array(parts) = content else { return };
    for part in parts.iter_mut() {
        match part["type"].as_str() {
            Some("image_url" | "image") => *part = json!({"type": "text", "text": IMAGE_LEFT_OUT}),
            _ => part.get_mut("content").into_iter().for_each(leave_images_out),
        }
    }
    // One text: a host that accepts no images may accept no parts either.
    if parts.iter().all(|part| part["type"] == "text") {
        *content = joined_text(parts).into();
    }
}

/// The texts of a message's parts as one.
pub(super) fn joined_text(parts: &[Value]) -> String {
    let texts = parts.iter().filter_map(|part| part["text"].as_str());
    texts.collect::<Vec<_>>().join("\n\n")
}

fn rename(fields: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = fields.remove(from) {
        fields.insert(to.to_owned(), value);
    }
}

fn messages(fields: &mut Map<String, Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    let messages = fields.get_mut("messages").and_then(Value::as_array_mut);
    messages.into_iter().flatten().filter_map(Value::as_object_mut)
}

#[cfg(test)]
mod tests;
