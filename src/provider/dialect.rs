//! What an API must define to be spoken by a [`Host`](super::host::Host): how requests look and how replies are read.

use serde_json::{Value, json};

use super::{Request, ToolOffer};
use crate::config::Model;
use crate::message::Reply;

pub(crate) struct Dialect {
    pub url: fn(&Model) -> String,
    /// The header that carries a key.
    pub auth: fn(&str) -> (&'static str, String),
    /// Further headers.
    pub headers: &'static [(&'static str, &'static str)],
    pub body: fn(&Model, &Request) -> Body,
    /// Reads a reply that arrives whole; `Err` holds the error object in its place.
    pub reply: fn(&Value) -> Result<Reply, Value>,
    /// Begins a reply that arrives as a stream.
    pub stream: fn() -> Box<dyn ReplyStream>,
}

/// A streamed reply in the making.
pub(crate) trait ReplyStream {
    /// Takes the data of one event. Returns the text to show when the event carries content, `None` when it is only a sign
    /// of life; `Err` holds the error object that ends the stream.
    fn event(&mut self, data: &str) -> Result<Option<String>, Value>;

    /// Whether the host has said that the reply is complete.
    fn is_complete(&self) -> bool;

    fn finish(self: Box<Self>) -> Reply;
}

/// The body of a request.
pub(crate) struct Body {
    pub fields: Value,
    /// The list of tools as JSON text, empty for none: schemas are text already and are not parsed just to be written.
    pub tools: String,
}

impl Body {
    /// A body with the fields that all dialects share.
    pub(super) fn new(model: &Model, request: &Request) -> Self {
        let mut fields = json!({"model": model.id, "max_tokens": model.max_tokens});
        if let Some(temperature) = model.temperature {
            fields["temperature"] = temperature.into();
        }
        if request.stream {
            fields["stream"] = true.into();
        }
        Self { fields, tools: String::new() }
    }

    /// Adds `tools`; `tool` formats one from its name, description and schema, which are JSON. Adds no empty list: some
    /// hosts refuse it.
    pub(super) fn offer(&mut self, tools: &[ToolOffer], tool: fn(&str, &str, &str) -> String) {
        let text = |text: &str| Value::from(text).to_string();
        let tools: Vec<String> = tools.iter().map(|t| tool(&text(&t.name), &text(&t.description), &t.schema)).collect();
        if !tools.is_empty() {
            self.tools = format!("[{}]", tools.join(","));
        }
    }

    pub(super) fn json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec(&self.fields).unwrap_or_default();
        // The user's own `extra_body` wins.
        if !self.tools.is_empty() && self.fields.get("tools").is_none() {
            json.pop();
            json.extend_from_slice(format!(",\"tools\":{}}}", self.tools).as_bytes());
        }
        json
    }
}
