//! Parts of a conversation, and their format on disk.
//!
//! The fields of a session line follow the OpenAI chat API, so that a session file resembles its requests.

pub(crate) mod kind;
mod media;

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::json::replace_lone_surrogates;
use crate::text::has_text;

pub use media::Media;
pub(crate) use media::{
    MAX_FILE, MAX_IMAGE, MAX_IMAGES, MAX_MEDIA, MediaKind, image_type, is_shown, media_type,
};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Instructions in a conversation.
    System(String),
    /// A message of the user.
    User(User),
    /// A reply of the model.
    Assistant(Reply),
    /// The result of a tool call.
    ToolResult(ToolResult),
}

/// A message of the user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct User {
    /// Text of the message.
    pub content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    /// Images, PDF files and recordings.
    pub media: Vec<Media>,
    /// Time of the message, as RFC 3339 in UTC; empty if unknown. Stored as the time of the line.
    #[serde(skip_serializing)]
    pub time: String,
    /// Local time of the message with weekday, offset and zone; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub local_time: String,
    /// The channel's ids of the message, several if messages were joined; hidden from the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// Role of the message in its conversation.
    #[serde(skip_serializing_if = "is_default")]
    pub kind: UserKind,
    /// Title in lists of a conversation that starts with this message; empty for the text. Hidden from the model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// Text after the message while it is the newest. Not stored. It comes last, so that the message without it is a prefix,
    /// for prompt caches.
    #[serde(skip)]
    pub notes: String,
}

impl User {
    /// Returns the time for the model, which is identical in every later turn, so that prompt caches hit.
    pub(crate) fn shown_time(&self) -> &str {
        let local = Some(&self.local_time).filter(|time| !time.is_empty());
        local.unwrap_or(&self.time)
    }
}

/// Role of a user's message in its conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UserKind {
    /// Starts a turn.
    #[default]
    Question,
    /// Received by a running turn.
    Steering,
    /// A note about a message that was sent to the chat from elsewhere. It belongs to no turn.
    Note,
}

/// The model's reply: text, tool calls, or both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reply {
    #[serde(rename = "content")]
    /// The answer; if there are calls, the text that comes with them.
    pub text: String,
    /// Thinking that the vendor reveals; not part of the answer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// Tool calls to run. If the reply was cut, the last one may be incomplete.
    #[serde(rename = "tool_calls", skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ToolCall>,
    /// Pictures that the model made. They are not sent back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Media>,
    #[serde(skip_serializing_if = "is_default")]
    /// Reason for the end of the reply.
    pub stop: Stop,
    #[serde(skip_serializing_if = "is_default")]
    /// Token counts of the host; all 0 if the host does not count.
    pub usage: Usage,
    /// Whether the reply was interrupted.
    #[serde(skip_serializing_if = "is_default")]
    pub partial: bool,
    /// Vendor fields to send back in the next request, by name.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
    /// For a reply with calls, the number of requests for its message so far. A resumed turn continues the count from there.
    #[serde(skip_serializing_if = "is_default")]
    pub calls_used: u32,
    /// The host's reason for refusing the reply; empty if it did not refuse, or if `text` is the model's own refusal. Not
    /// stored.
    #[serde(skip)]
    pub refused: String,
    /// Cost of the reply in dollars, as reported by the host. Not stored.
    #[serde(skip)]
    pub cost: Option<f64>,
    /// Maximum length of the requested reply, in tokens; 0 if unknown. Not stored.
    #[serde(skip)]
    pub limit: u64,
}

impl Reply {
    /// Whether the limit ended the reply before its answer started.
    pub(crate) fn used_all_to_think(&self) -> bool {
        self.stop.is_cut() && !has_text(&self.text) && !self.reasoning.is_empty()
    }
}

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolCall {
    /// Id that is unique in its conversation.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// The model's text, which should be a JSON object; only parsed when the call runs.
    pub arguments: String,
    /// Vendor fields of the call to send back, such as Gemini's thought signature.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

impl ToolCall {
    /// Whether the arguments are a JSON object.
    pub(crate) fn is_object(&self) -> bool {
        self.arguments.trim_start().starts_with('{')
            && serde_json::from_str::<IgnoredAny>(&self.arguments).is_ok()
    }

    /// Returns the arguments for a request. Some hosts reject a whole conversation if arguments are not an object, even if the
    /// model wrote them, or if they contain an unpaired UTF-16 surrogate.
    pub(crate) fn object(&self) -> Cow<'_, str> {
        if !self.is_object() {
            return Cow::Borrowed("{}");
        }
        match replace_lone_surrogates(self.arguments.as_bytes()) {
            Some(mended) => Cow::Owned(String::from_utf8_lossy(&mended).into_owned()),
            None => Cow::Borrowed(&self.arguments),
        }
    }
}

/// The result of a tool call; each call has exactly one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolResult {
    #[serde(rename = "tool_call_id")]
    /// Id of its call.
    pub call_id: String,
    /// Text for the model.
    pub content: String,
    #[serde(skip_serializing_if = "is_default")]
    /// Whether the call failed, or did not run.
    pub is_error: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    /// Images for the model.
    pub images: Vec<Media>,
}

/// Reason for the end of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stop {
    /// The model finished, or requests calls.
    #[default]
    Done,
    /// The reply reached its token limit; its last call may be incomplete.
    Length,
    /// The reply filled the model's context window; its last call may be incomplete.
    Window,
    /// A filter or the model refused; calls are not run.
    Refused,
}

impl Stop {
    /// Whether the reply ended before the model was done.
    pub(crate) fn is_cut(self) -> bool {
        matches!(self, Self::Length | Self::Window)
    }
}

/// Reason for the end of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TurnStop {
    /// The model answered.
    Done,
    /// The reply reached its token limit and is truncated.
    Length,
    /// The turn reached its limit of steps or time.
    Limit,
    /// The turn was stopped.
    Cancelled,
    #[default]
    /// Any other error.
    Error,
}

impl TurnStop {
    const ALL: [Self; 5] = [
        Self::Done,
        Self::Length,
        Self::Limit,
        Self::Cancelled,
        Self::Error,
    ];

    /// Name in `--json` and in the lines of a conversation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Length => "length",
            Self::Limit => "limit",
            Self::Cancelled => "cancelled",
            Self::Error => "error",
        }
    }

    /// Returns the variant with this name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stop| stop.name() == name)
    }
}

/// Token counts of the provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Number of tokens that the model read.
    pub prompt_tokens: u64,
    /// Number of tokens that the model wrote.
    pub completion_tokens: u64,
    /// Part of `prompt_tokens` that came from a cache.
    pub cached_tokens: u64,
}

impl Usage {
    /// Returns the sum of read and written tokens.
    pub fn total(self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }

    /// Adds the tokens of another reply.
    pub fn add(&mut self, other: Self) {
        let sum = u64::saturating_add;
        self.prompt_tokens = sum(self.prompt_tokens, other.prompt_tokens);
        self.completion_tokens = sum(self.completion_tokens, other.completion_tokens);
        self.cached_tokens = sum(self.cached_tokens, other.cached_tokens);
    }

    /// Returns the fields and their sum as `total_tokens`.
    pub fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total(),
            "cached_tokens": self.cached_tokens,
        })
    }

    /// Parses the output of [`Usage::to_json`]; missing fields are 0.
    pub fn from_json(value: &Value) -> Self {
        Self::deserialize(value).unwrap_or_default()
    }
}

/// A model's price per million tokens, in any currency; `None` is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Price of tokens that the model reads.
    pub input: Option<f64>,
    /// Price of tokens that the model writes.
    pub output: Option<f64>,
    /// Price of tokens read from a cache; `None` is the input price.
    pub cached: Option<f64>,
}

impl Price {
    /// Returns the cost of these tokens; `None` if all prices are unknown.
    pub fn of(self, usage: Usage) -> Option<f64> {
        if self == Self::default() {
            return None;
        }
        let input = self.input.unwrap_or(0.0);
        let fresh = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        // Exact up to 2^53 tokens.
        #[allow(clippy::cast_precision_loss)]
        let paid = |tokens: u64, price: f64| tokens as f64 * price / 1e6;
        let cached = paid(usage.cached_tokens, self.cached.unwrap_or(input));
        let written = paid(usage.completion_tokens, self.output.unwrap_or(0.0));
        Some(rounded(paid(fresh, input) + cached + written))
    }
}

/// Adds a known cost to a sum.
pub(crate) fn add_cost(sum: &mut Option<f64>, cost: Option<f64>) {
    *sum = cost.map(|cost| rounded(sum.unwrap_or(0.0) + cost)).or(*sum);
}

/// Rounds off the digits that binary fractions add to a cost.
pub(crate) fn rounded(cost: f64) -> f64 {
    (cost * 1e9).round() / 1e9
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Message {
    /// Creates a user's message without a time.
    pub fn user(content: impl Into<String>) -> Self {
        Self::User(User {
            content: content.into(),
            ..User::default()
        })
    }

    /// Whether this is a note about a message to the chat, which belongs to no turn.
    pub(crate) fn is_note(&self) -> bool {
        matches!(self, Self::User(user) if user.kind == UserKind::Note)
    }

    /// Whether this message starts a turn.
    pub(crate) fn is_question(&self) -> bool {
        matches!(self, Self::User(user) if user.kind == UserKind::Question)
    }

    pub(crate) fn media(&self) -> &[Media] {
        match self {
            Self::User(user) => &user.media,
            Self::ToolResult(result) => &result.images,
            Self::System(_) | Self::Assistant(_) => &[],
        }
    }

    /// Replaces media by text, and returns the number of replacements.
    pub(crate) fn replace_media(&mut self, which: impl Fn(&Media) -> bool, why: &str) -> usize {
        let (content, media) = match self {
            Self::User(user) => (&mut user.content, &mut user.media),
            Self::ToolResult(result) => (&mut result.content, &mut result.images),
            Self::System(_) | Self::Assistant(_) => return 0,
        };
        let before = media.len();
        media.retain(|media| {
            let stays = !which(media);
            if !stays {
                content.push_str(&format!("\n{}", media.replacement(why)));
            }
            stays
        });
        before - media.len()
    }

    /// Returns the non-empty fields of the message for a session line.
    pub fn to_json(&self) -> Map<String, Value> {
        let (role, fields) = match self {
            Self::System(content) => ("system", Ok(json!({"content": content}))),
            Self::User(user) => ("user", serde_json::to_value(user)),
            Self::Assistant(reply) => ("assistant", serde_json::to_value(reply)),
            Self::ToolResult(result) => ("tool", serde_json::to_value(result)),
        };
        // Strings, numbers and maps with string keys always convert.
        let Ok(Value::Object(mut line)) = fields else {
            return Map::new();
        };
        line.insert("role".to_owned(), role.into());
        line
    }

    /// Parses the output of [`Message::to_json`]; `None` if the line is not a message.
    pub fn from_json(line: &Value) -> Option<Self> {
        Self::from_line(line.clone())
    }

    /// Parses a line without copying its texts.
    pub(crate) fn from_line(mut line: Value) -> Option<Self> {
        match line.get("role")?.as_str()? {
            "system" => match line.get_mut("content")?.take() {
                Value::String(text) => Some(Self::System(text)),
                _ => None,
            },
            "user" => User::deserialize(line).ok().map(Self::User),
            "assistant" => Reply::deserialize(line).ok().map(Self::Assistant),
            "tool" => ToolResult::deserialize(line).ok().map(Self::ToolResult),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_cost_what_their_price_says() {
        let usage = Usage {
            prompt_tokens: 1_000_000,
            completion_tokens: 100_000,
            cached_tokens: 400_000,
        };
        let price = |input, output, cached| {
            Price {
                input,
                output,
                cached,
            }
            .of(usage)
        };
        assert_eq!(price(Some(0.25), Some(2.0), Some(0.025)), Some(0.36));
        assert_eq!(price(Some(0.25), Some(2.0), None), Some(0.45));
        assert_eq!(price(None, Some(2.0), None), Some(0.2));
        assert_eq!(price(Some(0.0), None, None), Some(0.0));
        assert_eq!(price(None, None, None), None);
    }

    #[test]
    fn every_kind_of_message_survives_a_trip_through_its_line() {
        let call = ToolCall {
            id: "c1".into(),
            name: "exec".into(),
            arguments: "{\"command\":\"日本\"}".into(),
            extra: json!({"thought_signature": "xyz"})
                .as_object()
                .cloned()
                .unwrap(),
        };
        for message in [
            Message::System("be brief".into()),
            Message::user("שלום 👋"),
            Message::User(User {
                content: "what is this?".into(),
                media: vec![Media {
                    mime: "image/gif".into(),
                    base64: "R0lGODlh".into(),
                    text: "x".into(),
                    ..Media::default()
                }],
                ..User::default()
            }),
            Message::Assistant(Reply {
                text: "hm".into(),
                reasoning: "because".into(),
                calls: vec![call],
                stop: Stop::Length,
                usage: Usage {
                    prompt_tokens: 3,
                    completion_tokens: 4,
                    cached_tokens: 1,
                },
                partial: true,
                extra: json!({"reasoning_details": [1]})
                    .as_object()
                    .cloned()
                    .unwrap(),
                ..Reply::default()
            }),
            Message::ToolResult(ToolResult {
                call_id: "c1".into(),
                content: "no".into(),
                is_error: true,
                images: vec![Media {
                    mime: "image/png".into(),
                    base64: "iVBORw==".into(),
                    ..Media::default()
                }],
            }),
        ] {
            let line = Value::Object(message.to_json());
            assert_eq!(Message::from_json(&line), Some(message));
        }
    }
}
