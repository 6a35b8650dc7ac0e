//! What an API must define to be spoken by a [`Host`](super::host::Host): how requests look and how replies are read.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::json::Json;
use super::quirks::{NO_REASONING, Quirks, SHORT_IDS};
use super::{Request, ToolOffer};
use crate::config::Model;
use crate::message::{Media, Reply};

pub(crate) struct Dialect {
    /// The endpoint for chats.
    pub chat: &'static str,
    /// The address of an endpoint.
    pub url: fn(&Model, &str) -> String,
    /// The header that carries a key.
    pub auth: fn(&str) -> (&'static str, String),
    /// Further headers.
    pub headers: &'static [(&'static str, &'static str)],
    /// Writes the fields of a request.
    pub write: fn(&Outgoing, &mut Fields),
    pub reading: Reading,
}

/// How replies are read.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    /// The text in an event of a stream that carries text and nothing else, as nearly all do. `None` for any other.
    pub text: for<'a> fn(&'a str) -> Option<Cow<'a, str>>,
    /// An event of a stream, or a whole body, into the words of the OpenAI API.
    pub translate: fn(Value) -> Value,
}

/// A request as it is written for one model.
pub(crate) struct Outgoing<'a> {
    pub model: &'a Model,
    pub request: &'a Request<'a>,
    pub quirks: Quirks<'a>,
}

impl<'a> Outgoing<'a> {
    /// The body: the fields of the dialect, and the entry's `extra_body`, which wins.
    pub(super) fn body(&self, dialect: &Dialect) -> String {
        let own = &self.request.sampling.extra_body;
        let of_model = &self.model.entry.extra_body;
        let extra = of_model.iter().filter(|(name, _)| !own.contains_key(*name));
        let extra = extra.chain(own);
        let taken = extra
            .clone()
            .filter_map(|(name, _)| self.quirks.field(name));
        let mut fields = Fields {
            quirks: self.quirks,
            taken: taken.map(str::to_owned).collect(),
            forced: Vec::new(),
            json: Json::default(),
        };
        fields.json.raw("{");
        (dialect.write)(self, &mut fields);
        for (name, value) in extra {
            let name = self.quirks.field(name);
            if let Some(name) = name.filter(|name| !fields.forced.contains(name)) {
                fields.json.field(name).value(value);
            }
        }
        fields.json.into_text() + "}"
    }

    /// The longest reply, in tokens.
    pub(super) fn max_tokens(&self) -> u64 {
        let wanted = self.request.sampling.max_tokens;
        wanted.unwrap_or(self.model.entry.max_tokens)
    }

    pub(super) fn temperature(&self) -> Option<f64> {
        let wanted = self.request.sampling.temperature;
        wanted.or(self.model.entry.temperature)
    }

    /// Writes the fields that all dialects share.
    pub(super) fn write_common(&self, fields: &mut Fields) {
        if let Some(json) = fields.begin("model") {
            json.text(&self.model.id);
        }
        if let Some(json) = fields.begin("max_tokens") {
            json.raw(&self.max_tokens().to_string());
        }
        if self.request.stream {
            if let Some(json) = fields.begin("stream") {
                json.raw("true");
            }
        }
    }

    /// The tools to declare. Where the host does not take `tool_choice`, withheld ones are left out: some hosts refuse an
    /// empty list, too.
    pub(super) fn tools(&self) -> Option<&'a [ToolOffer]> {
        let request = self.request;
        let is_hidden = request.withheld && self.quirks.field("tool_choice").is_none();
        (!request.tools.is_empty() && !is_hidden).then_some(request.tools)
    }

    /// Whether the vendor fields of a reply go back to this model.
    pub(super) fn echoes(&self, reply: &Reply) -> bool {
        !self.quirks.has(NO_REASONING)
            && reply.extra.get(BY).is_none_or(|by| *by == *self.model.name)
    }

    /// An id as the host accepts it.
    pub(super) fn id<'b>(&self, id: &'b str) -> Cow<'b, str> {
        if self.quirks.has(SHORT_IDS) {
            shorten(id)
        } else {
            id.into()
        }
    }

    /// The text that stands in for a medium that the host was found to refuse.
    pub(super) fn replacement(&self, media: &Media) -> Option<String> {
        self.quirks
            .refuses(media.kind())
            .then(|| media.replacement("left out: this model does not take it"))
    }

    /// The texts that stand in for refused media, each on a line below the message.
    pub(super) fn replacements(&self, media: &[Media]) -> String {
        let lines = media.iter().filter_map(|media| self.replacement(media));
        lines.fold(String::new(), |text, line| text + "\n" + &line)
    }

    /// The media that are sent.
    pub(super) fn taken<'b>(&self, media: &'b [Media]) -> impl Iterator<Item = &'b Media> {
        let quirks = self.quirks;
        media
            .iter()
            .filter(move |media| !quirks.refuses(media.kind()))
    }
}

/// The fields of a body, as far as the host takes them.
pub(crate) struct Fields<'a> {
    quirks: Quirks<'a>,
    /// Those that `extra_body` sets.
    taken: Vec<String>,
    /// Those that win over `extra_body`, because the host demands them so.
    forced: Vec<&'static str>,
    json: Json,
}

impl Fields<'_> {
    /// Begins a field, unless it is set elsewhere or the host refuses it.
    pub(super) fn begin(&mut self, name: &'static str) -> Option<&mut Json> {
        let name = self.quirks.field(name)?;
        if self.taken.iter().any(|taken| taken == name) {
            return None;
        }
        Some(self.json.field(name))
    }

    /// Begins a field that the host demands.
    pub(super) fn force(&mut self, name: &'static str) -> &mut Json {
        self.forced.push(name);
        self.json.field(name)
    }
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

/// Nine letters and digits for an id, the same for the same id, so that calls and results still belong together.
fn shorten(id: &str) -> Cow<'_, str> {
    const DIGITS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    if id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return id.into();
    }
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    let hash = hasher.finish();
    let digit =
        |n| char::from(DIGITS[usize::try_from(hash / 62_u64.pow(n) % 62).unwrap_or_default()]);
    (0..9).map(digit).collect::<String>().into()
}
