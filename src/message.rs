//! What a conversation is made of, and its form on disk.
//!
//! The shapes follow the OpenAI chat API where it has a word for a thing, so that a session file reads like the request
//! it becomes.

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    System(String),
    User(User),
    Assistant(Reply),
    ToolResult(ToolResult),
}

/// What the id of a message begins with that belongs to no turn: a note of what was sent to the chat.
pub const NOTE: &str = "note:";

/// What the user said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct User {
    pub content: String,
    /// What was attached to it.
    pub images: Vec<Image>,
    /// When it was said, as RFC 3339 in UTC; empty when unknown. It goes with the message to the model, unchanged on
    /// every later turn, so that prompt caches hit.
    pub time: String,
    /// What its channel calls it; empty when it has no name there. Models are not told.
    pub id: String,
    /// What goes below it to the model while it is the newest, and is not stored. It comes last, so that the message
    /// without it is the beginning of the message with it, for prompt caches.
    pub notes: String,
}

/// What the model answered: text, tool calls, or both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    pub text: String,
    /// Thinking that the vendor shows; never the answer.
    pub reasoning: String,
    pub calls: Vec<ToolCall>,
    pub stop: Stop,
    pub usage: Usage,
    /// The answer broke off before its end.
    pub partial: bool,
    /// Vendor fields to echo back on the next request, by name.
    pub extra: Map<String, Value>,
}

/// A tool call. `arguments` are the model's own bytes, parsed only when the call is dispatched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    pub arguments: String,
    /// Vendor fields of the call to echo back (Gemini's thought signature, say).
    pub extra: Map<String, Value>,
}

/// What a tool call came to. There is exactly one for each call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolResult {
    pub call_id: String,
    pub content: String,
    pub is_error: bool,
    pub images: Vec<Image>,
}

/// A picture, as requests and session lines carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The IANA media type, `image/png` say.
    pub mime: String,
    /// The file's bytes in base64 (RFC 4648, section 4, with padding).
    pub base64: String,
}

/// Why the model stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stop {
    /// It was done, or wants its calls run.
    #[default]
    Done,
    /// It ran into the limit on one reply; its calls may be cut short and are not run.
    Length,
    /// A filter or the model refused; its calls are not run.
    Refused,
}

/// Tokens spent, as the provider counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// The part of `prompt_tokens` that came from a cache.
    pub cached_tokens: u64,
}

impl Usage {
    pub fn total(self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }

    pub fn add(&mut self, other: Self) {
        self.prompt_tokens = self.prompt_tokens.saturating_add(other.prompt_tokens);
        self.completion_tokens = self.completion_tokens.saturating_add(other.completion_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
    }

    pub fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total(),
            "cached_tokens": self.cached_tokens,
        })
    }

    /// Reads what [`Usage::to_json`] wrote; what is not there is 0.
    pub fn from_json(v: &Value) -> Self {
        let n = |key: &str| v.get(key).and_then(Value::as_u64).unwrap_or(0);
        Self {
            prompt_tokens: n("prompt_tokens"),
            completion_tokens: n("completion_tokens"),
            cached_tokens: n("cached_tokens"),
        }
    }
}

/// What a model costs, per million tokens, in whatever currency. What is not known is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Price {
    pub input: Option<f64>,
    pub output: Option<f64>,
    /// Of what was read from a cache; unknown, it is the input's.
    pub cached: Option<f64>,
}

impl Price {
    /// What so many tokens cost; `None` when no price is known.
    pub fn of(self, usage: Usage) -> Option<f64> {
        if self == Self::default() {
            return None;
        }
        let Usage { prompt_tokens, completion_tokens, cached_tokens } = usage;
        let input = self.input.unwrap_or(0.0);
        let fresh = prompt_tokens.saturating_sub(cached_tokens);
        // Exact up to 2^53 tokens.
        #[allow(clippy::cast_precision_loss)]
        let paid = |tokens: u64, price: f64| tokens as f64 * price / 1e6;
        let cached = paid(cached_tokens, self.cached.unwrap_or(input));
        Some(rounded(paid(fresh, input) + cached + paid(completion_tokens, self.output.unwrap_or(0.0))))
    }
}

/// A cost without what binary fractions add to it.
pub fn rounded(cost: f64) -> f64 {
    (cost * 1e9).round() / 1e9
}

impl Stop {
    fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Length => "length",
            Self::Refused => "refused",
        }
    }
}

impl ToolCall {
    fn to_json(&self) -> Value {
        let mut call = json!({"id": self.id, "name": self.name, "arguments": self.arguments});
        if !self.extra.is_empty() {
            call["extra"] = Value::Object(self.extra.clone());
        }
        call
    }

    fn from_json(v: &Value) -> Self {
        Self {
            id: string(v, "id"),
            name: string(v, "name"),
            arguments: string(v, "arguments"),
            extra: object(v, "extra"),
        }
    }
}

impl Image {
    fn to_json(&self) -> Value {
        json!({"mime": self.mime, "base64": self.base64})
    }

    fn from_json(v: &Value) -> Self {
        Self { mime: string(v, "mime"), base64: string(v, "base64") }
    }
}

impl Message {
    /// A user's message without a time.
    pub fn user(content: impl Into<String>) -> Self {
        Self::User(User { content: content.into(), ..User::default() })
    }

    /// The fields of the message as they stand in a session line; what is empty is left out.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut line = Map::new();
        let mut put = |key: &str, value: Value| {
            line.insert(key.to_owned(), value);
        };
        match self {
            Self::System(content) => {
                put("role", "system".into());
                put("content", content.as_str().into());
            }
            Self::User(user) => {
                put("role", "user".into());
                put("content", user.content.as_str().into());
                if !user.id.is_empty() {
                    put("id", user.id.as_str().into());
                }
                if !user.images.is_empty() {
                    put("images", user.images.iter().map(Image::to_json).collect());
                }
            }
            Self::Assistant(reply) => {
                put("role", "assistant".into());
                put("content", reply.text.as_str().into());
                if !reply.reasoning.is_empty() {
                    put("reasoning", reply.reasoning.as_str().into());
                }
                if !reply.calls.is_empty() {
                    put("tool_calls", reply.calls.iter().map(ToolCall::to_json).collect());
                }
                if reply.stop != Stop::Done {
                    put("stop", reply.stop.name().into());
                }
                if reply.usage != Usage::default() {
                    put("usage", reply.usage.to_json());
                }
                if reply.partial {
                    put("partial", true.into());
                }
                if !reply.extra.is_empty() {
                    put("extra", Value::Object(reply.extra.clone()));
                }
            }
            Self::ToolResult(result) => {
                put("role", "tool".into());
                put("tool_call_id", result.call_id.as_str().into());
                put("content", result.content.as_str().into());
                if result.is_error {
                    put("is_error", true.into());
                }
                if !result.images.is_empty() {
                    put("images", result.images.iter().map(Image::to_json).collect());
                }
            }
        }
        line
    }

    /// Reads what [`Message::to_json`] wrote. `None` for a line that is not a message.
    pub fn from_json(line: &Value) -> Option<Self> {
        let content = string(line, "content");
        Some(match line.get("role")?.as_str()? {
            "system" => Self::System(content),
            "user" => Self::User(User {
                content,
                images: images(line),
                time: string(line, "time"),
                id: string(line, "id"),
                ..User::default()
            }),
            "assistant" => Self::Assistant(Reply {
                text: content,
                reasoning: string(line, "reasoning"),
                calls: line
                    .get("tool_calls")
                    .and_then(Value::as_array)
                    .map(|calls| calls.iter().map(ToolCall::from_json).collect())
                    .unwrap_or_default(),
                stop: match line.get("stop").and_then(Value::as_str) {
                    Some("length") => Stop::Length,
                    Some("refused") => Stop::Refused,
                    _ => Stop::Done,
                },
                usage: line.get("usage").map(Usage::from_json).unwrap_or_default(),
                partial: line.get("partial").and_then(Value::as_bool).unwrap_or(false),
                extra: object(line, "extra"),
            }),
            "tool" => Self::ToolResult(ToolResult {
                call_id: string(line, "tool_call_id"),
                content,
                is_error: line.get("is_error").and_then(Value::as_bool).unwrap_or(false),
                images: images(line),
            }),
            _ => return None,
        })
    }
}

fn string(v: &Value, key: &str) -> String {
    v.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn images(v: &Value) -> Vec<Image> {
    v.get("images").and_then(Value::as_array).into_iter().flatten().map(Image::from_json).collect()
}

fn object(v: &Value, key: &str) -> Map<String, Value> {
    v.get(key).and_then(Value::as_object).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_cost_what_their_price_says() {
        let usage = Usage { prompt_tokens: 1_000_000, completion_tokens: 100_000, cached_tokens: 400_000 };
        let price = |input, output, cached| Price { input, output, cached }.of(usage);
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
            extra: json!({"thought_signature": "xyz"}).as_object().cloned().unwrap(),
        };
        for message in [
            Message::System("be brief".into()),
            Message::user("שלום 👋"),
            Message::User(User {
                content: "what is this?".into(),
                images: vec![Image { mime: "image/gif".into(), base64: "R0lGODlh".into() }],
                ..User::default()
            }),
            Message::Assistant(Reply {
                text: "hm".into(),
                reasoning: "because".into(),
                calls: vec![call],
                stop: Stop::Length,
                usage: Usage { prompt_tokens: 3, completion_tokens: 4, cached_tokens: 1 },
                partial: true,
                extra: json!({"reasoning_details": [1]}).as_object().cloned().unwrap(),
            }),
            Message::ToolResult(ToolResult {
                call_id: "c1".into(),
                content: "no".into(),
                is_error: true,
                images: vec![Image { mime: "image/png".into(), base64: "iVBORw==".into() }],
            }),
        ] {
            let line = Value::Object(message.to_json());
            assert_eq!(Message::from_json(&line), Some(message));
        }
    }
}
