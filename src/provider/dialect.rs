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
    pub body: fn(&Model, &Request) -> Value,
    pub reply: fn() -> Box<dyn ReplyReader>,
}

/// A reply in the making.
pub(crate) trait ReplyReader {
    /// Takes the data of one event of a stream, or a whole body. Returns the text to show when it carries content, `None`
    /// when it is only a sign of life; `Err` holds the error object in its place.
    fn event(&mut self, data: &str) -> Result<Option<String>, Value>;

    /// The thoughts so far.
    fn thoughts(&self) -> &str;

    /// Whether the host has said that the reply is complete.
    fn is_complete(&self) -> bool;

    fn finish(self: Box<Self>) -> Reply;
}

/// The name in [`Reply::extra`] of the model that a reply with vendor fields is by.
const BY: &str = "by";

/// Remembers which model a reply is by, if it has anything that only that model understands.
pub(super) fn sign(reply: &mut Reply, model: &str) {
    let has_fields = !reply.extra.is_empty() || reply.calls.iter().any(|call| !call.extra.is_empty());
    if has_fields {
        reply.extra.insert(BY.to_owned(), model.into());
    }
}

/// Whether the vendor fields of a reply are for this model.
pub(super) fn is_by(reply: &Reply, model: &Model) -> bool {
    reply.extra.get(BY).is_none_or(|by| *by == *model.name)
}

/// A body with the fields that all dialects share; `tool` formats one tool from its offer and its schema.
pub(super) fn body(model: &Model, request: &Request, tool: fn(&ToolOffer, Value) -> Value) -> Value {
    let mut body = json!({"model": model.id, "max_tokens": model.entry.max_tokens});
    if let Some(temperature) = model.entry.temperature {
        body["temperature"] = temperature.into();
    }
    if request.stream {
        body["stream"] = true.into();
    }
    // Some hosts refuse an empty list.
    if !request.tools.is_empty() {
        let tools = request.tools.iter();
        body["tools"] =
            tools.map(|offer| tool(offer, serde_json::from_str(&offer.schema).unwrap_or_default())).collect();
    }
    body
}
