//! What an API must define to be spoken by a [`Host`](super::host::Host): how requests look and how replies are read.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Value, json};

use super::{Request, ToolOffer};
use crate::config::Model;
use crate::message::Reply;
use crate::text::parse_json;

pub(crate) struct Dialect {
    /// The endpoint for chats.
    pub chat: &'static str,
    /// The address of an endpoint.
    pub url: fn(&Model, &str) -> String,
    /// The header that carries a key.
    pub auth: fn(&str) -> (&'static str, String),
    /// Further headers.
    pub headers: &'static [(&'static str, &'static str)],
    pub body: fn(&Model, &Request) -> Value,
    /// An event of a stream, or a whole body, into the words of the OpenAI API.
    pub translate: fn(Value) -> Value,
}

/// The name in [`Reply::extra`] of the model that a reply with vendor fields is by.
const BY: &str = "by";

/// Remembers which model a reply is by, if it has anything that only that model understands.
pub(super) fn sign(reply: &mut Reply, model: &str) {
    let has_fields =
        !reply.extra.is_empty() || reply.calls.iter().any(|call| !call.extra.is_empty());
    if has_fields {
        reply.extra.insert(BY.to_owned(), model.into());
    }
}

/// Whether the vendor fields of a reply are for this model.
pub(super) fn is_by(reply: &Reply, model: &str) -> bool {
    reply.extra.get(BY).is_none_or(|by| by == model)
}

/// Makes nine letters and digits of an id, the same for the same id, so that calls and results still belong together.
pub(super) fn shorten(id: &mut String) {
    const DIGITS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    if id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return;
    }
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    let hash = hasher.finish();
    let digit =
        |n| char::from(DIGITS[usize::try_from(hash / 62_u64.pow(n) % 62).unwrap_or_default()]);
    *id = (0..9).map(digit).collect();
}

/// A body with the fields that all dialects share; `tool` formats one tool from its offer and its schema.
pub(super) fn body(
    model: &Model,
    request: &Request,
    tool: fn(&ToolOffer, Value) -> Value,
) -> Value {
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
        body["tools"] = tools
            .map(|offer| {
                tool(
                    offer,
                    parse_json(offer.schema.as_bytes()).unwrap_or_default(),
                )
            })
            .collect();
    }
    body
}
