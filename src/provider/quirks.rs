//! Quirks: changes to a request that a host demands, learned from its own refusals.
//!
//! OpenAI-compatible hosts agree on the path and on little else, and a table of vendors would be wrong by next month. The
//! refusal names the field, so the host is asked once more without it, and the quirk is remembered: in memory, and by
//! [`Save`] for longer.

use serde_json::{Map, Value};

/// One change to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quirk {
    /// `max_tokens` is called `max_completion_tokens` (OpenAI's o-series and gpt-5).
    MaxCompletionTokens,
    /// The opposite: `max_completion_tokens` is unknown.
    MaxTokens,
    /// Only the default temperature is accepted.
    NoTemperature,
    /// `stream_options` is unknown; streams then carry no usage.
    NoStreamOptions,
    NoStream,
    /// Assistant messages may not carry reasoning.
    NoReasoning,
    /// Assistant messages must carry reasoning, even when there is none.
    EmptyReasoning,
    NoImages,
    NoTools,
}

/// Each quirk: its name on disk and in `bantam status`, and the groups of texts (in lower case) of which all stand in a
/// refusal that teaches it. The first row that fits counts.
const QUIRKS: [(Quirk, &str, &[&[&str]]); 9] = [
    (Quirk::MaxCompletionTokens, "max_completion_tokens", &[&["max_tokens", "max_completion_tokens"]]),
    (Quirk::MaxTokens, "max_tokens", &[&["max_completion_tokens"]]),
    (Quirk::NoTemperature, "no temperature", &[&["temperature"]]),
    (Quirk::NoStreamOptions, "no stream_options", &[&["stream_options"]]),
    (
        Quirk::NoImages,
        "no images",
        // What is wrong with one image names its format, size or encoding.
        &[
            &["support image input"],
            &["image input is not"],
            &["unknown variant", "image_url"],
            &["image_url is only supported"],
            &["not support images"],
            &["not support vision"],
            &["not a multimodal model"],
        ],
    ),
    (
        Quirk::NoTools,
        "no tools",
        &[
            &["not support tools"],
            &["support tool use"],
            &["not support function calling"],
            &["enable-auto-tool-choice"],
        ],
    ),
    (Quirk::NoStream, "no stream", &[&["stream", "not support"]]),
    (Quirk::EmptyReasoning, "empty reasoning", &[&["reasoning_content", "must be passed"]]),
    (Quirk::NoReasoning, "no reasoning", &[&["reasoning_content"]]),
];

/// Quirks of which learning one unlearns the other.
const OPPOSITES: [(Quirk, Quirk); 2] =
    [(Quirk::MaxCompletionTokens, Quirk::MaxTokens), (Quirk::NoReasoning, Quirk::EmptyReasoning)];

impl Quirk {
    pub(crate) fn name(self) -> &'static str {
        QUIRKS.iter().find(|(quirk, ..)| *quirk == self).map_or("", |(_, name, _)| name)
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        QUIRKS.iter().find(|(_, known, _)| *known == name).map(|(quirk, ..)| *quirk)
    }

    fn is_opposite(self, other: Self) -> bool {
        OPPOSITES.contains(&(self, other)) || OPPOSITES.contains(&(other, self))
    }
}

/// Receives all quirks of a host whenever it learns another.
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

    /// Learns from a refusal; true if it teaches a new quirk that is not among those `tried` for this request.
    pub(super) fn learn(&mut self, refusal: &str, tried: &mut Vec<Quirk>) -> bool {
        let Some(quirk) = taught(refusal).filter(|quirk| !self.known.contains(quirk) && !tried.contains(quirk)) else {
            return false;
        };
        tried.push(quirk);
        self.known.retain(|known| !known.is_opposite(quirk));
        self.known.push(quirk);
        self.save();
        true
    }

    pub(super) fn knows(&self, quirk: Quirk) -> bool {
        self.known.contains(&quirk)
    }

    /// Forgets a quirk to test it again; true if it was known. [`Learned::save`] makes it last.
    pub(super) fn forget(&mut self, quirk: Quirk) -> bool {
        let before = self.known.len();
        self.known.retain(|known| *known != quirk);
        self.known.len() < before
    }

    pub(super) fn save(&self) {
        if let Some(save) = &self.save {
            save(&self.known);
        }
    }

    /// Changes a request so that the host accepts it.
    pub(super) fn apply(&self, body: &mut Value) {
        let Value::Object(fields) = body else { return };
        self.known.iter().for_each(|quirk| apply(*quirk, fields));
    }
}

fn taught(refusal: &str) -> Option<Quirk> {
    let refusal = refusal.to_lowercase();
    let fits = |texts: &&[&str]| texts.iter().all(|text| refusal.contains(text));
    QUIRKS.iter().find(|(_, _, groups)| groups.iter().any(fits)).map(|(quirk, ..)| *quirk)
}

fn apply(quirk: Quirk, fields: &mut Map<String, Value>) {
    match quirk {
        Quirk::MaxCompletionTokens => rename(fields, "max_tokens", "max_completion_tokens"),
        Quirk::MaxTokens => rename(fields, "max_completion_tokens", "max_tokens"),
        Quirk::NoTemperature => fields.retain(|name, _| name != "temperature"),
        Quirk::NoStreamOptions => fields.retain(|name, _| name != "stream_options"),
        Quirk::NoStream => fields.retain(|name, _| name != "stream" && name != "stream_options"),
        Quirk::NoImages => {
            for message in messages(fields) {
                // One text: a host that accepts no images may accept no parts either.
                if let Some(Value::Array(parts)) = message.get("content") {
                    message["content"] = joined_text(parts).into();
                }
            }
        }
        Quirk::NoTools => fields.retain(|name, _| name != "tools" && name != "tool_choice"),
        Quirk::NoReasoning => {
            for message in messages(fields) {
                message.retain(|name, _| name != "reasoning_content" && name != "reasoning");
            }
        }
        Quirk::EmptyReasoning => {
            for message in messages(fields).filter(|m| m.get("role").is_some_and(|role| role == "assistant")) {
                message.entry("reasoning_content").or_insert_with(|| "".into());
            }
        }
    }
}

/// Stands in for an image.
const IMAGE_LEFT_OUT: &str = "[an image, left out: this model reads only text]";

/// The parts of a message as one text.
pub(super) fn joined_text(parts: &[Value]) -> String {
    let texts = parts.iter().map(|part| part["text"].as_str().unwrap_or(IMAGE_LEFT_OUT));
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
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_refusal_teaches_what_to_change_and_the_same_one_only_once() {
        let cases = [
            ("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", Quirk::MaxCompletionTokens),
            ("unknown field max_completion_tokens", Quirk::MaxTokens),
            ("Unsupported value: 'temperature' does not support 0.2", Quirk::NoTemperature),
            ("Extra inputs are not permitted: stream_options", Quirk::NoStreamOptions),
            ("The reasoning_content in the thinking mode must be passed back", Quirk::EmptyReasoning),
            ("reasoning_content is not allowed here", Quirk::NoReasoning),
            ("No endpoints found that support image input", Quirk::NoImages),
            ("messages[3]: unknown variant `image_url`, expected `text`", Quirk::NoImages),
            ("This model does not support images", Quirk::NoImages),
            ("Image input is not enabled for this model", Quirk::NoImages),
            ("qwen3-8b is not a multimodal model", Quirk::NoImages),
            ("Invalid content type. image_url is only supported by certain models.", Quirk::NoImages),
            ("registry.ollama.ai/library/gemma2:2b does not support tools", Quirk::NoTools),
        ];
        for (refusal, quirk) in cases {
            let (mut learned, mut tried) = (Learned::default(), Vec::new());
            assert!(learned.learn(refusal, &mut tried), "{refusal}");
            assert_eq!(learned.known, [quirk], "{refusal}");
            assert!(!learned.learn(refusal, &mut Vec::new()) && !Learned::default().learn(refusal, &mut tried));
        }
        assert!(!Learned::default().learn("model not found", &mut Vec::new()));
    }

    #[test]
    fn what_was_learned_last_is_kept_and_its_opposite_is_not() {
        let kept = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let save = kept.clone();
        let before = vec![Quirk::NoTemperature, Quirk::MaxTokens];
        let mut learned = Learned::new(before, Box::new(move |all| *save.lock().unwrap() = all.to_vec()));
        assert!(learned.learn("not max_tokens but max_completion_tokens", &mut Vec::new()));
        assert_eq!(*kept.lock().unwrap(), [Quirk::NoTemperature, Quirk::MaxCompletionTokens]);
        assert_eq!(learned.known, *kept.lock().unwrap());
    }

    #[test]
    fn every_quirk_has_a_name_of_its_own() {
        for (quirk, name, _) in QUIRKS {
            assert_eq!((Quirk::named(name), quirk.name()), (Some(quirk), name));
        }
        assert_eq!(Quirk::named("no such thing"), None);
    }

    #[test]
    fn what_was_learned_changes_the_request() {
        let changed = |quirk| {
            let mut body = json!({
                "max_tokens": 5, "temperature": 1, "stream": true, "stream_options": {},
                "messages": [
                    {"role": "assistant", "reasoning_content": "r"},
                    {"role": "assistant"},
                    {"role": "user", "content": [
                        {"type": "text", "text": "look"},
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}},
                    ]},
                ],
            });
            apply(quirk, body.as_object_mut().unwrap());
            body
        };
        assert_eq!(changed(Quirk::MaxCompletionTokens)["max_completion_tokens"], 5);
        assert_eq!(changed(Quirk::NoTemperature).get("temperature"), None);
        assert_eq!(changed(Quirk::NoStreamOptions).get("stream_options"), None);
        assert_eq!(changed(Quirk::NoStream).get("stream"), None);
        assert_eq!(changed(Quirk::NoImages)["messages"][2]["content"], format!("look\n\n{IMAGE_LEFT_OUT}"));
        assert_eq!(changed(Quirk::NoReasoning)["messages"][0].get("reasoning_content"), None);
        assert_eq!(changed(Quirk::EmptyReasoning)["messages"][1]["reasoning_content"], "");
        assert_eq!(changed(Quirk::EmptyReasoning)["messages"][0]["reasoning_content"], "r");
    }
}
