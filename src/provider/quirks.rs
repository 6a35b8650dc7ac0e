//! Quirks: changes to a request that a host demands, learned from its own refusals.
//!
//! OpenAI-compatible hosts agree on the path and on little else, and a table of vendors would be wrong by next month. The
//! refusal names what is wrong, so the host is asked once more without it. If that helps, the quirk is remembered. A field
//! at the top of the request that a refusal names needs no row: its quirk is `no FIELD`. The size of a model's window is
//! learned and kept in the same way, as `window TOKENS`.

use regex_lite::{Regex, escape};
use serde_json::{Map, Value, json};

use super::says;

type Body = Map<String, Value>;

/// A quirk's name on disk, what it says of a host in `bantam status`, the refusals that teach it (see [`says`]), and what
/// it changes in a request. The first row that fits and changes the request counts.
type Row = (&'static str, &'static str, &'static str, fn(&mut Body));

pub(super) const NO_FILES: &str = "no files";
pub(super) const NO_AUDIO: &str = "no audio";
pub(super) const NO_IMAGES: &str = "no images";
pub(super) const NO_TOOLS: &str = "no tools";
pub(super) const NO_REASONING: &str = "no reasoning";
pub(super) const SHORT_IDS: &str = "short ids";

/// The change is made in the conversation, before it becomes a request: see `Host::adapted`.
const IN_CONVERSATION: fn(&mut Body) = |_| ();

static ROWS: [Row; 15] = [
    (
        "max_completion_tokens",
        "takes max_completion_tokens in place of max_tokens",
        "max_tokens & max_completion_tokens",
        |body| rename(body, "max_tokens", "max_completion_tokens"),
    ),
    (
        "max_tokens",
        "takes max_tokens only",
        "max_completion_tokens",
        |body| {
            rename(body, "max_completion_tokens", "max_tokens");
        },
    ),
    (
        NO_FILES,
        "takes no PDF files",
        "unknown variant `file` | part type: file | 'file' | support & file content | support & file input | support & pdf | \
         support & document | unsupported content[].type | content blocks are expected",
        IN_CONVERSATION,
    ),
    (
        NO_AUDIO,
        "takes no recordings",
        "input_audio | audio input | support & audio | unsupported content[].type | content blocks are expected",
        IN_CONVERSATION,
    ),
    // What is wrong with one image names its format, size or encoding.
    (
        NO_IMAGES,
        "takes no images",
        "support image input | image input is not | unknown variant & image_url | image_url is only supported | \
         not support images | not support vision | not a multimodal model | content must be a string | \
         content should be a string",
        IN_CONVERSATION,
    ),
    (
        "no effort",
        "takes tools only without reasoning",
        "tools & reasoning_effort & 'none'",
        |body| {
            drop(body.insert("reasoning_effort".to_owned(), "none".into()));
        },
    ),
    (
        NO_TOOLS,
        "takes no tools",
        "not support tools | support tool use | not support function calling | enable-auto-tool-choice",
        |body| body.retain(|name, _| name != "tools" && name != "tool_choice"),
    ),
    (
        "adaptive thinking",
        "decides itself how long to think",
        "thinking & adaptive",
        adapt_thinking,
    ),
    (
        "no stream",
        "does not stream",
        "stream & not support",
        |body| {
            body.retain(|name, _| name != "stream" && name != "stream_options");
        },
    ),
    (
        "empty reasoning",
        "wants reasoning_content in every reply",
        "reasoning_content & must be passed | reasoning_content & missing",
        |body| fill(body, "reasoning_content"),
    ),
    (
        NO_REASONING,
        "takes no reasoning back",
        "reasoning_content | reasoning_details | 'reasoning' & unsupported | thinking_blocks | extra_content",
        IN_CONVERSATION,
    ),
    (
        SHORT_IDS,
        "takes ids of nine letters and digits only",
        "tool call id & length | tool_call & id & maximum length",
        IN_CONVERSATION,
    ),
    (
        "signatures",
        "wants a signature with every call",
        "thought_signature",
        sign_calls,
    ),
    (
        "no system role",
        "takes no system role",
        "system & role | system message & support | developer instruction",
        join_system,
    ),
    (
        "no null",
        "takes no message without text",
        "content & null | content & nil | content & none | content & string | content & required",
        |body| fill(body, "content"),
    ),
];

/// The rows that count before a field that is refused by its name.
const BEFORE_FIELDS: usize = 8;

/// Fields that no host can do without, or that have rows of their own.
const NEEDED: [&str; 7] = [
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "stream",
    "tools",
    "system",
];
/// Fields that a host may refuse for their value: a refusal need only name them.
const TUNING: [&str; 3] = ["temperature", "top_p", "reasoning_effort"];
/// What a refusal of a field says.
const REFUSING: &str = "extra inputs | extra_forbidden | unknown | unrecognized | unrecognised | unsupported | not support | \
                        not permitted | not allowed | unexpected | additional propert | invalid parameter";

/// Quirks that no host has both of: learning one unlearns the other.
const OPPOSITES: [[&str; 2]; 2] = [
    ["max_completion_tokens", "max_tokens"],
    [NO_REASONING, "empty reasoning"],
];

const WINDOW: &str = "window ";

pub(crate) fn window(tokens: u64) -> String {
    format!("{WINDOW}{tokens}")
}

/// The tokens of a [`window`].
pub(super) fn tokens(quirk: &str) -> Option<u64> {
    quirk.strip_prefix(WINDOW)?.parse().ok()
}

/// What it says of a host: "takes no images".
pub(super) fn words(quirk: &str) -> String {
    let row = ROWS
        .iter()
        .find(|row| row.0 == quirk)
        .map(|row| row.1.to_owned());
    let window = || tokens(quirk).map(|tokens| format!("reads {tokens} tokens at once"));
    row.or_else(window)
        .unwrap_or_else(|| format!("takes {quirk}"))
}

/// Whether a host that has one has not the other.
pub(super) fn excludes(one: &str, other: &str) -> bool {
    one == other
        || tokens(one).and(tokens(other)).is_some()
        || OPPOSITES
            .iter()
            .any(|pair| pair.contains(&one) && pair.contains(&other))
}

/// The quirks that a refusal of `sent` may teach, the likeliest first.
pub(super) fn taught(refusal: &str, sent: &Value) -> Vec<String> {
    let refusal = refusal.to_lowercase();
    let (first, last) = ROWS.split_at(BEFORE_FIELDS);
    let fitting = |rows: &'static [Row]| {
        rows.iter()
            .filter(|row| says(&refusal, row.2))
            .map(|row| row.0.to_owned())
    };
    let field = sent
        .as_object()
        .and_then(|sent| refused_field(&refusal, sent))
        .map(|field| format!("no {field}"));
    fitting(first).chain(field).chain(fitting(last)).collect()
}

/// The field at the top of `sent` that a refusal names, the first of several.
fn refused_field<'a>(refusal: &str, sent: &'a Body) -> Option<&'a String> {
    let is_refusing = says(refusal, REFUSING);
    let names = sent.keys().filter(|name| !NEEDED.contains(&name.as_str()));
    let names = names.filter(|name| is_refusing || TUNING.contains(&name.as_str()));
    let place = |name: &String| {
        let word = Regex::new(&format!(r"\b{}\b", escape(&name.to_lowercase()))).ok()?;
        word.find(refusal).map(|found| found.start())
    };
    names
        .filter_map(|name| Some((place(name)?, name)))
        .min()
        .map(|(_, name)| name)
}

/// Changes a request so that a host with this quirk accepts it.
pub(super) fn apply(quirk: &str, body: &mut Value) {
    let Value::Object(body) = body else { return };
    match ROWS.iter().find(|row| row.0 == quirk) {
        Some(row) => row.3(body),
        None => drop(
            quirk
                .strip_prefix("no ")
                .and_then(|field| body.remove(field)),
        ),
    }
}

fn rename(body: &mut Body, from: &str, to: &str) {
    if let Some(value) = body.remove(from) {
        body.insert(to.to_owned(), value);
    }
}

fn replies(body: &mut Body) -> impl Iterator<Item = &mut Value> {
    let messages = body
        .get_mut("messages")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten();
    messages.filter(|message| message["role"] == "assistant")
}

/// Gives this field of replies a text, if an empty one.
fn fill(body: &mut Body, field: &str) {
    replies(body)
        .filter(|reply| reply[field].is_null())
        .for_each(|reply| reply[field] = "".into());
}

/// Marks calls as another model's. Of several in one reply, only the first is signed.
fn sign_calls(body: &mut Body) {
    let first = replies(body).filter_map(|reply| reply.get_mut("tool_calls")?.get_mut(0));
    for call in first.filter(|call| call["extra_content"].is_null()) {
        call["extra_content"] =
            json!({"google": {"thought_signature": "skip_thought_signature_validator"}});
    }
}

/// Puts the system prompt before the user's first words.
fn join_system(body: &mut Body) {
    let Some(messages) = body.get_mut("messages").and_then(Value::as_array_mut) else {
        return;
    };
    if messages
        .first()
        .is_none_or(|first| first["role"] != "system")
    {
        return;
    }
    let system = messages.remove(0)["content"].take();
    match messages
        .first_mut()
        .filter(|first| first["role"] == "user")
        .map(|first| &mut first["content"])
    {
        Some(Value::Array(parts)) => parts.insert(0, json!({"type": "text", "text": system})),
        Some(Value::String(text)) => {
            *text = format!("{}\n\n{text}", system.as_str().unwrap_or_default());
        }
        _ => messages.insert(0, json!({"role": "user", "content": system})),
    }
}

/// Thinking has an effort in place of a budget (Anthropic's newer models).
fn adapt_thinking(body: &mut Body) {
    let Some(budget) = body
        .get("thinking")
        .and_then(|thinking| thinking["budget_tokens"].as_u64())
    else {
        return;
    };
    let most = body
        .get("max_tokens")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    let effort = match budget {
        _ if budget >= most / 2 => "high",
        0..=1024 => "low",
        _ => "medium",
    };
    body.insert("thinking".to_owned(), json!({"type": "adaptive"}));
    body.insert("output_config".to_owned(), json!({"effort": effort}));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first quirk that a refusal may teach.
    fn first(refusal: &str) -> Option<String> {
        let sent = json!({
            "model": "m", "max_tokens": 4096, "temperature": 1, "stream": true, "stream_options": {},
            "prompt_cache_key": "k", "tools": [{}], "messages": [],
        });
        taught(refusal, &sent).into_iter().next()
    }

    #[test]
    fn a_refusal_leads_to_its_quirk_in_any_wording() {
        for (refusal, quirk) in [
            (
                "Extra inputs are not permitted; extra_forbidden; body.prompt_cache_key",
                "no prompt_cache_key",
            ),
            (
                "Unknown name \"stream_options\": Cannot find field.",
                "no stream_options",
            ),
            (
                "invalid temperature: only 1 is allowed for this model",
                "no temperature",
            ),
            ("This model does not support images", NO_IMAGES),
            ("Image input is not enabled for this model", NO_IMAGES),
            ("qwen3-8b is not a multimodal model", NO_IMAGES),
            (
                "Invalid content type. image_url is only supported by certain models.",
                NO_IMAGES,
            ),
            (
                "'messages.2' : property 'reasoning_details' is unsupported",
                NO_REASONING,
            ),
            (
                "messages[0].role does not support 'system' with this model",
                "no system role",
            ),
        ] {
            assert_eq!(first(refusal).as_deref(), Some(quirk), "{refusal}");
        }
        for refusal in [
            "model not found",
            "unknown model m",
            "the stream_options of life",
            "messages: not allowed",
            "",
        ] {
            assert_eq!(first(refusal), None, "{refusal}");
        }
    }

    #[test]
    fn every_quirk_has_words() {
        assert_eq!(words(NO_IMAGES), "takes no images");
        assert_eq!(words(&window(8192)), "reads 8192 tokens at once");
        assert_eq!(words("no top_k"), "takes no top_k");
        assert!(
            excludes("max_tokens", "max_completion_tokens")
                && excludes("window 1024", "window 2048")
        );
        assert!(!excludes("no stream", "no tools"));
    }
}
