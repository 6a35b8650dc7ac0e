//! What a host refuses, learned from its own words: a field that it does not know, or knows by another name.
//!
//! Hosts that call themselves OpenAI-compatible agree on the path and on little else. A table of vendors would be wrong
//! by next month; the host's refusal names the field. It is asked once more without it, and that is remembered: by the
//! host as long as it is there, and by whoever made it for longer ([`Learned`]).

use serde_json::Value;

/// One thing that can be done about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quirk {
    /// The limit on a reply is called `max_completion_tokens` (OpenAI's o-series and gpt-5).
    MaxCompletionTokens,
    /// It is called `max_tokens` after all.
    MaxTokens,
    /// Only the default temperature is taken.
    NoTemperature,
    /// `stream_options` is not known; usage is not told then.
    NoStreamOptions,
    /// It cannot stream.
    NoStream,
    /// The thoughts of earlier turns are not taken back.
    NoReasoning,
    /// They must come back, also where there were none.
    EmptyReasoning,
    /// Images are not taken.
    NoImages,
}

/// Each by the name that it has on disk and in `bantam status`.
const NAMES: [(Quirk, &str); 8] = [
    (Quirk::MaxCompletionTokens, "max_completion_tokens"),
    (Quirk::MaxTokens, "max_tokens"),
    (Quirk::NoTemperature, "no temperature"),
    (Quirk::NoStreamOptions, "no stream_options"),
    (Quirk::NoStream, "no stream"),
    (Quirk::NoReasoning, "no reasoning"),
    (Quirk::EmptyReasoning, "empty reasoning"),
    (Quirk::NoImages, "no images"),
];

impl Quirk {
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(quirk, _)| *quirk == self).map_or("", |(_, name)| name)
    }

    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, known)| *known == name).map(|(quirk, _)| *quirk)
    }

    /// What cannot be true beside it: the host has changed its mind.
    fn opposite(self) -> Option<Self> {
        match self {
            Self::MaxCompletionTokens => Some(Self::MaxTokens),
            Self::MaxTokens => Some(Self::MaxCompletionTokens),
            Self::NoReasoning => Some(Self::EmptyReasoning),
            Self::EmptyReasoning => Some(Self::NoReasoning),
            _ => None,
        }
    }
}

/// Is given all that a host was found to refuse, whenever that is more than before.
pub type Keep = Box<dyn Fn(&[Quirk]) + Send + Sync>;

/// What one host was found to refuse for one model.
#[derive(Default)]
pub struct Learned {
    known: Vec<Quirk>,
    keep: Option<Keep>,
}

impl Learned {
    /// Begins with what was learned before; `keep` is told of more.
    pub fn before(known: Vec<Quirk>, keep: Keep) -> Self {
        Self { known, keep: Some(keep) }
    }

    pub fn known(&self) -> &[Quirk] {
        &self.known
    }

    pub fn add(&mut self, quirk: Quirk) {
        self.known.retain(|known| Some(*known) != quirk.opposite());
        self.known.push(quirk);
        if let Some(keep) = &self.keep {
            keep(&self.known);
        }
    }
}

/// For each quirk: words that all stand in the refusal, in lower case.
const SIGNS: [(Quirk, &[&str]); 11] = [
    (Quirk::MaxCompletionTokens, &["max_tokens", "max_completion_tokens"]),
    (Quirk::MaxTokens, &["max_completion_tokens"]),
    (Quirk::NoTemperature, &["temperature"]),
    (Quirk::NoStreamOptions, &["stream_options"]),
    (Quirk::NoImages, &["image input"]),
    (Quirk::NoImages, &["image_url"]),
    (Quirk::NoImages, &["image", "not support"]),
    (Quirk::NoImages, &["not a multimodal model"]),
    (Quirk::NoStream, &["stream", "not support"]),
    (Quirk::EmptyReasoning, &["reasoning_content", "must be passed"]),
    (Quirk::NoReasoning, &["reasoning_content"]),
];

/// What stands where an image stood.
const IMAGE_LEFT_OUT: &str = "[an image, left out: this model takes text only]";

/// What a refusal teaches that is not known yet.
pub fn learn(refusal: &str, known: &[Quirk]) -> Option<Quirk> {
    let said = refusal.to_lowercase();
    let fits = |signs: &[&str]| signs.iter().all(|sign| said.contains(sign));
    let found = SIGNS.iter().find(|(_, signs)| fits(signs))?.0;
    (!known.contains(&found)).then_some(found)
}

/// Changes a request so that the host takes it.
pub fn apply(known: &[Quirk], body: &mut Value) {
    let Value::Object(fields) = body else { return };
    for quirk in known {
        match quirk {
            Quirk::MaxCompletionTokens => {
                if let Some(n) = fields.remove("max_tokens") {
                    fields.insert("max_completion_tokens".to_owned(), n);
                }
            }
            Quirk::MaxTokens => {
                if let Some(n) = fields.remove("max_completion_tokens") {
                    fields.insert("max_tokens".to_owned(), n);
                }
            }
            Quirk::NoTemperature => {
                fields.remove("temperature");
            }
            Quirk::NoStreamOptions => {
                fields.remove("stream_options");
            }
            Quirk::NoStream => {
                fields.remove("stream");
                fields.remove("stream_options");
            }
            Quirk::NoImages => {
                let messages = fields.get_mut("messages").and_then(Value::as_array_mut);
                for content in messages.into_iter().flatten().filter_map(|m| m.get_mut("content")) {
                    if let Value::Array(parts) = content {
                        // As one text: who takes no images may take no parts either.
                        let texts = parts.iter().map(|part| part["text"].as_str().unwrap_or(IMAGE_LEFT_OUT));
                        *content = texts.collect::<Vec<_>>().join("\n\n").into();
                    }
                }
            }
            Quirk::NoReasoning | Quirk::EmptyReasoning => {
                let messages = fields.get_mut("messages").and_then(Value::as_array_mut);
                for message in messages.into_iter().flatten().filter(|m| m["role"] == "assistant") {
                    let Value::Object(message) = message else { continue };
                    if *quirk == Quirk::NoReasoning {
                        message.remove("reasoning_content");
                        message.remove("reasoning");
                    } else if !message.contains_key("reasoning_content") {
                        message.insert("reasoning_content".to_owned(), "".into());
                    }
                }
            }
        }
    }
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
        ];
        for (refusal, quirk) in cases {
            assert_eq!(learn(refusal, &[]), Some(quirk), "{refusal}");
            assert_eq!(learn(refusal, &[quirk]), None, "{refusal}");
        }
        assert_eq!(learn("model not found", &[]), None);
    }

    #[test]
    fn what_was_learned_last_is_kept_and_its_opposite_is_not() {
        let kept = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let keep = kept.clone();
        let before = vec![Quirk::NoTemperature, Quirk::MaxTokens];
        let mut learned = Learned::before(before, Box::new(move |all| *keep.lock().unwrap() = all.to_vec()));
        learned.add(Quirk::MaxCompletionTokens);
        assert_eq!(*kept.lock().unwrap(), [Quirk::NoTemperature, Quirk::MaxCompletionTokens]);
        assert_eq!(learned.known(), *kept.lock().unwrap());
    }

    #[test]
    fn every_quirk_has_a_name_of_its_own() {
        for (quirk, name) in NAMES {
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
            apply(&[quirk], &mut body);
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
