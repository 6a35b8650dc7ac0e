//! The parts of a conversation, and their form on disk.
//!
//! The fields of a session line follow the OpenAI chat API, so that a session file reads like the request it becomes.

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
    /// Instructions within a conversation.
    System(String),
    /// What the user said.
    User(User),
    /// What the model said.
    Assistant(Reply),
    /// The result of a tool call.
    ToolResult(ToolResult),
}

/// What the user said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct User {
    /// The text.
    pub content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    /// Images, PDF files and recordings.
    pub media: Vec<Media>,
    /// When the user said it, as RFC 3339 in UTC; empty if unknown. The store writes it as the time of the line.
    #[serde(skip_serializing)]
    pub time: String,
    /// The same time as local clocks showed it, with weekday, offset and zone; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub local_time: String,
    /// The channel's ids of the message, several if it joins several; the model does not see them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// How it came.
    #[serde(skip_serializing_if = "is_default")]
    pub kind: UserKind,
    /// The title that lists show for a conversation that begins with this message; empty: the text. The model does not see it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// Text that goes below the message while it is the newest. Not stored; it comes last, so that the message without it is
    /// a prefix, for prompt caches.
    #[serde(skip)]
    pub notes: String,
}

impl User {
    /// The time that the model sees: unchanged on every later turn, so that prompt caches hit.
    pub(crate) fn shown_time(&self) -> &str {
        if self.local_time.is_empty() {
            &self.time
        } else {
            &self.local_time
        }
    }
}

/// How a message of the user came into its conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UserKind {
    /// A turn begins with it.
    #[default]
    Question,
    /// A turn that was running took it in.
    Steering,
    /// It tells what was sent to the chat from elsewhere, and belongs to no turn.
    Note,
}

/// What the model answered: text, tool calls, or both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reply {
    #[serde(rename = "content")]
    /// The answer; if there are calls, what the model said about them.
    pub text: String,
    /// Thinking that the vendor shows; never the answer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    #[serde(rename = "tool_calls", skip_serializing_if = "Vec::is_empty")]
    /// The tools that the model wants to be run.
    pub calls: Vec<ToolCall>,
    #[serde(skip_serializing_if = "is_default")]
    /// Why the reply ended.
    pub stop: Stop,
    #[serde(skip_serializing_if = "is_default")]
    /// What the host counted; all 0 if it counts nothing.
    pub usage: Usage,
    /// The reply broke off before its end.
    #[serde(skip_serializing_if = "is_default")]
    pub partial: bool,
    /// Vendor fields to echo back on the next request, by name.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
    /// The requests that its message had caused when it came, if it has calls: a turn that goes on after the program's end counts
    /// on from there.
    #[serde(skip_serializing_if = "is_default")]
    pub calls_used: u32,
    /// Why the host refused the reply, in the host's words; empty if it did not, or if `text` is the model's own refusal. Not
    /// stored.
    #[serde(skip)]
    pub refused: String,
    /// What the host says that the reply cost, in dollars. Not stored.
    #[serde(skip)]
    pub cost: Option<f64>,
    /// The longest reply that was asked for, in tokens; 0: unknown. Not stored.
    #[serde(skip)]
    pub limit: u64,
}

impl Reply {
    /// Whether the limit cut the reply off before its answer began.
    pub(crate) fn used_all_to_think(&self) -> bool {
        self.stop == Stop::Length && !has_text(&self.text) && !self.reasoning.is_empty()
    }
}

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolCall {
    /// Unique in its conversation.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The model's own text, which should be a JSON object; parsed only when the call is run.
    pub arguments: String,
    /// Vendor fields of the call to echo back (Gemini's thought signature, say).
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

impl ToolCall {
    /// Whether the arguments are an object, as they should be.
    pub(crate) fn is_object(&self) -> bool {
        self.arguments.trim_start().starts_with('{')
            && serde_json::from_str::<IgnoredAny>(&self.arguments).is_ok()
    }

    /// The arguments as a request carries them. Some hosts refuse a whole conversation if arguments are not an object, even
    /// when the model wrote them, or if they contain half of a UTF-16 pair.
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
    /// The id of its call.
    pub call_id: String,
    /// What the model reads.
    pub content: String,
    #[serde(skip_serializing_if = "is_default")]
    /// The call failed, or did not run.
    pub is_error: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    /// Images that the model sees with it.
    pub images: Vec<Media>,
}

/// Why the model stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stop {
    /// It finished, or wants its calls run.
    #[default]
    Done,
    /// It reached the limit on one reply; its calls may be cut short and are not run.
    Length,
    /// A filter or the model refused; its calls are not run.
    Refused,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TurnStop {
    /// The model answered.
    Done,
    /// The reply reached its token limit and is cut.
    Length,
    /// Steps or time ran out.
    Limit,
    /// It was stopped.
    Cancelled,
    #[default]
    /// Something else went wrong.
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

    /// The word for it in `--json` and in the lines of a conversation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Length => "length",
            Self::Limit => "limit",
            Self::Cancelled => "cancelled",
            Self::Error => "error",
        }
    }

    /// The one with this name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stop| stop.name() == name)
    }
}

/// Tokens, as the provider counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens that the model read.
    pub prompt_tokens: u64,
    /// Tokens that the model wrote.
    pub completion_tokens: u64,
    /// The part of `prompt_tokens` that came from a cache.
    pub cached_tokens: u64,
}

impl Usage {
    /// Both together.
    pub fn total(self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }

    /// Adds the tokens of another reply.
    pub fn add(&mut self, other: Self) {
        self.prompt_tokens = self.prompt_tokens.saturating_add(other.prompt_tokens);
        self.completion_tokens = self
            .completion_tokens
            .saturating_add(other.completion_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
    }

    /// The fields and their `total_tokens`.
    pub fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total(),
            "cached_tokens": self.cached_tokens,
        })
    }

    /// Reads what [`Usage::to_json`] writes; missing fields are 0.
    pub fn from_json(value: &Value) -> Self {
        Self::deserialize(value).unwrap_or_default()
    }
}

/// A model's price per million tokens, in any currency; `None` where it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Price {
    /// For tokens that the model reads.
    pub input: Option<f64>,
    /// For tokens that the model writes.
    pub output: Option<f64>,
    /// For tokens read from a cache; `None`: the same as for input.
    pub cached: Option<f64>,
}

impl Price {
    /// The cost of these tokens; `None` if no price is known.
    pub fn of(self, usage: Usage) -> Option<f64> {
        if self == Self::default() {
            return None;
        }
        let Usage {
            prompt_tokens,
            completion_tokens,
            cached_tokens,
        } = usage;
        let input = self.input.unwrap_or(0.0);
        let fresh = prompt_tokens.saturating_sub(cached_tokens);
        // Exact up to 2^53 tokens.
        #[allow(clippy::cast_precision_loss)]
        let paid = |tokens: u64, price: f64| tokens as f64 * price / 1e6;
        let cached = paid(cached_tokens, self.cached.unwrap_or(input));
        Some(rounded(
            paid(fresh, input) + cached + paid(completion_tokens, self.output.unwrap_or(0.0)),
        ))
    }
}

/// Adds a cost, where it is known, to a sum.
pub(crate) fn add_cost(sum: &mut Option<f64>, cost: Option<f64>) {
    *sum = cost.map(|cost| rounded(sum.unwrap_or(0.0) + cost)).or(*sum);
}

/// A cost without the digits that binary fractions add.
pub(crate) fn rounded(cost: f64) -> f64 {
    (cost * 1e9).round() / 1e9
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Message {
    /// A user's message without a time.
    pub fn user(content: impl Into<String>) -> Self {
        Self::User(User {
            content: content.into(),
            ..User::default()
        })
    }

    /// Whether it is a note of what was sent to the chat, which belongs to no turn.
    pub(crate) fn is_note(&self) -> bool {
        matches!(self, Self::User(user) if user.kind == UserKind::Note)
    }

    /// Whether a turn begins with it.
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

    /// Replaces media by text, and returns how many.
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

    /// The fields of the message in a session line, without empty ones.
    pub fn to_json(&self) -> Map<String, Value> {
        let (role, fields) = match self {
            Self::System(content) => ("system", Ok(json!({"content": content}))),
            Self::User(user) => ("user", serde_json::to_value(user)),
            Self::Assistant(reply) => ("assistant", serde_json::to_value(reply)),
            Self::ToolResult(result) => ("tool", serde_json::to_value(result)),
        };
        // Strings, numbers and maps with string keys always convert.
        let mut line = match fields {
            Ok(Value::Object(line)) => line,
            _ => Map::new(),
        };
        line.insert("role".to_owned(), role.into());
        line
    }

    /// Reads what [`Message::to_json`] writes; `None` if the line is not a message.
    pub fn from_json(line: &Value) -> Option<Self> {
        Self::from_line(line.clone())
    }

    /// The same without a copy of the texts.
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
