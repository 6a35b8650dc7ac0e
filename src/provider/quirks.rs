//! Quirks: changes to a request that a host demands, learned from its own refusals.
//!
//! OpenAI-compatible hosts agree on the path and on little else, and a table of vendors would be wrong by next month. The
//! refusal names what is wrong, so the host is asked once more without it. If that helps, the quirk is remembered. A field
//! at the top of the request that a refusal names needs no row: its quirk is `no FIELD`. The size of a model's window is
//! learned and kept in the same way, as `window TOKENS`.

use regex_lite::{Regex, escape};
use serde_json::{Map, Value};

use super::says;
use crate::message::MediaKind;

/// A quirk's name on disk, what it says of a host in `bantam status`, and the refusals that teach it (see [`says`]). The
/// first row that fits and changes the request counts.
type Row = (&'static str, &'static str, &'static str);

const MAX_COMPLETION_TOKENS: &str = "max_completion_tokens";
const MAX_TOKENS: &str = "max_tokens";
const NO_STREAM: &str = "no stream";
pub(super) const NO_FILES: &str = "no files";
pub(super) const NO_AUDIO: &str = "no audio";
pub(super) const NO_IMAGES: &str = "no images";
pub(super) const NO_TOOLS: &str = "no tools";
pub(super) const NO_REASONING: &str = "no reasoning";
pub(super) const SHORT_IDS: &str = "short ids";
pub(super) const NO_TOOL_CHOICE: &str = "no tool_choice";
pub(super) const NO_EFFORT: &str = "no effort";
pub(super) const ADAPTIVE_THINKING: &str = "adaptive thinking";
pub(super) const EMPTY_REASONING: &str = "empty reasoning";
pub(super) const SIGNATURES: &str = "signatures";
pub(super) const NO_SYSTEM_ROLE: &str = "no system role";
pub(super) const NO_NULL: &str = "no null";

static ROWS: [Row; 15] = [
    (
        MAX_COMPLETION_TOKENS,
        "takes max_completion_tokens in place of max_tokens",
        "max_tokens & max_completion_tokens",
    ),
    (MAX_TOKENS, "takes max_tokens only", "max_completion_tokens"),
    (
        NO_FILES,
        "takes no PDF files",
        "unknown variant `file` | part type: file | 'file' | support & file content | support & file input | support & pdf | \
         support & document | unsupported content[].type | content blocks are expected",
    ),
    (
        NO_AUDIO,
        "takes no recordings",
        "input_audio | audio input | support & audio | unsupported content[].type | content blocks are expected",
    ),
    // What is wrong with one image names its format, size or encoding.
    (
        NO_IMAGES,
        "takes no images",
        "support image input | image input is not | unknown variant & image_url | image_url is only supported | \
         not support images | not support vision | not a multimodal model | content must be a string | \
         content should be a string",
    ),
    (
        NO_EFFORT,
        "takes tools only without reasoning",
        "tools & reasoning_effort & 'none'",
    ),
    (
        NO_TOOLS,
        "takes no tools",
        "not support tools | support tool use | not support function calling | enable-auto-tool-choice",
    ),
    (
        ADAPTIVE_THINKING,
        "decides itself how long to think",
        "thinking & adaptive",
    ),
    (NO_STREAM, "does not stream", "stream & not support"),
    (
        EMPTY_REASONING,
        "wants reasoning_content in every reply",
        "reasoning_content & must be passed | reasoning_content & missing",
    ),
    (
        NO_REASONING,
        "takes no reasoning back",
        "reasoning_content | reasoning_details | 'reasoning' & unsupported | thinking_blocks | extra_content",
    ),
    (
        SHORT_IDS,
        "takes ids of nine letters and digits only",
        "tool call id & length | tool_call & id & maximum length",
    ),
    (
        SIGNATURES,
        "wants a signature with every call",
        "thought_signature",
    ),
    (
        NO_SYSTEM_ROLE,
        "takes no system role",
        "system & role | system message & support | developer instruction",
    ),
    (
        NO_NULL,
        "takes no message without text",
        "content & null | content & nil | content & none | content & string | content & required",
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
fn refused_field<'a>(refusal: &str, sent: &'a Map<String, Value>) -> Option<&'a String> {
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

/// The quirks of a model, as they change a request while it is written.
#[derive(Clone, Copy)]
pub(crate) struct Quirks<'a>(pub &'a [String]);

impl Quirks<'_> {
    pub(super) fn has(self, quirk: &str) -> bool {
        self.0.iter().any(|known| known == quirk)
    }

    /// The name under which a field is sent; `None` if the host refuses it.
    pub(super) fn field(self, name: &str) -> Option<&str> {
        if self.0.is_empty() {
            return Some(name);
        }
        let is_refused = match name {
            "tools" | "tool_choice" if self.has(NO_TOOLS) => true,
            "stream" | "stream_options" if self.has(NO_STREAM) => true,
            _ => self.0.iter().any(|quirk| refused_by(quirk) == Some(name)),
        };
        match name {
            _ if is_refused => None,
            MAX_TOKENS if self.has(MAX_COMPLETION_TOKENS) => Some(MAX_COMPLETION_TOKENS),
            MAX_COMPLETION_TOKENS if self.has(MAX_TOKENS) => Some(MAX_TOKENS),
            _ => Some(name),
        }
    }

    pub(super) fn refuses(self, kind: MediaKind) -> bool {
        self.has(match kind {
            MediaKind::Image => NO_IMAGES,
            MediaKind::Pdf => NO_FILES,
            MediaKind::Audio => NO_AUDIO,
        })
    }
}

/// The field that a quirk without a row of its own leaves out.
fn refused_by(quirk: &str) -> Option<&str> {
    let field = quirk.strip_prefix("no ")?;
    ROWS.iter().all(|row| row.0 != quirk).then_some(field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
