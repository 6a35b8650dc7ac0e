//! Builds a reply from a protocol's events: texts, thoughts, deltas of calls, details and counts. Decides which text may be
//! shown: never thoughts before the answer, or potential calls.

use serde_json::{Map, Value, json};

use super::refusal::rejected;
use super::text_calls::{self, Found};
use super::thoughts::{self, Opening};
use super::values::{amount, picture_in, string, text_of, update_usage};
use super::{ProviderError, Sink, ToolOffer, says};
use crate::bus::Event;
use crate::json::{join_halves, parse_json, parse_mending, refuse_more_values};
use crate::message::{Reply, Stop, ToolCall};

/// Field of [`Reply::extra`] with the original name of the reasoning field.
pub(super) const REASONING_FIELD: &str = "reasoning_field";
/// Thoughts of Anthropic's models, some of them signed.
pub(super) const THOUGHTS: &str = "thinking_blocks";
/// Thoughts of the Responses API, encrypted.
pub(super) const THOUGHT_ITEMS: &str = "reasoning_items";
/// Fields of a reply that are returned to the vendor unchanged.
pub(super) const ECHOED: [&str; 2] = ["reasoning_details", THOUGHTS];
/// Fields of a detail that arrive in pieces; other fields are set once.
const JOINED: [&str; 4] = ["text", "summary", "data", "thinking"];

/// Reason for a reply that could not be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    Provider(ProviderError),
    /// Body of an error in place of a reply.
    Refusal(String),
}

impl ReadError {
    /// Wraps an error object from a response with a successful status.
    pub(super) fn refusal(error: &Value) -> Self {
        Self::Refusal(json!({ "error": error }).to_string())
    }
}

impl From<ProviderError> for ReadError {
    fn from(error: ProviderError) -> Self {
        Self::Provider(error)
    }
}

/// Maximum number of values in an event. Each may take a hundred times its size.
const MAX_VALUES: usize = 500_000;

/// Reads an event of a stream, or a whole body.
pub(crate) type Read = fn(&str, &mut ReplyBuilder) -> Result<(), ReadError>;

/// Words in the reasons of hosts that end a reply because of its content.
const REFUSALS: &str = include_str!("wordings/refusals.txt");

/// Words in the reasons of a reply that is complete.
const ENDS: &str = "stop | end | eos | tool | function | complete | done | finish | pause";

/// Classifies a host's finish reason. Vendors have about thirty, in any case; what matters is whether calls may run.
fn stop_of(reason: &str) -> Stop {
    let reason: String = reason.chars().filter(char::is_ascii_alphanumeric).collect();
    let reason = reason.to_ascii_lowercase();
    if says(&reason, REFUSALS) {
        Stop::Refused
    } else if says(&reason, "context | modellength") {
        Stop::Window
    } else if says(&reason, "length | maxtokens | maxoutputtokens | tokenlimit") {
        Stop::Length
    } else {
        Stop::Done
    }
}

/// U+FFFD in place of half a UTF-16 pair.
const HALF: char = '\u{fffd}';

/// Finds the characters whose UTF-16 pairs a host split over two events.
#[derive(Default)]
struct Halves {
    /// Last half of the previous events, if the first of a pair.
    first: Option<u32>,
    /// Character of which this event has the second half.
    joined: Option<char>,
}

impl Halves {
    /// Starts an event with these halves.
    fn next_event(&mut self, halves: &[u32]) {
        let pair = self.first.zip(halves.first().copied());
        self.joined = pair.and_then(|(high, low)| join_halves(high, low));
        self.first = halves.last().copied().or(self.first);
    }

    /// Appends a piece of a text; halves at the seam become their character.
    fn append(&self, text: &mut String, piece: &str) {
        match (self.joined, piece.strip_prefix(HALF)) {
            (Some(joined), Some(rest)) if text.ends_with(HALF) => {
                text.pop();
                text.push(joined);
                text.push_str(rest);
            }
            _ => text.push_str(piece),
        }
    }
}

/// An incomplete reply.
pub(crate) struct ReplyBuilder<'a> {
    /// Tools that calls in the text may name.
    offers: &'a [ToolOffer],
    /// Receives what becomes visible.
    sink: &'a dyn Sink,
    reply: Reply,
    refusal: String,
    halves: Halves,
    /// The `index` of each call, as sent by the host.
    slots: Vec<Option<u64>>,
    /// Number of bytes of the text that were shown, or are never shown; `None` while the text may start with thoughts.
    shown: Option<usize>,
    /// Number of bytes of the thoughts that were shown.
    shown_thoughts: usize,
    /// Whether the text can no longer turn out to be calls.
    past_calls: bool,
    has_news: bool,
    /// Part of the reply's text was shown.
    pub(super) has_shown: bool,
    pub(super) stage: Stage,
}

/// Progress of a reply: the host has sent a finish reason, and ended the stream.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Stage {
    Begun,
    Finished,
    Ended,
}

impl<'a> ReplyBuilder<'a> {
    pub(crate) fn new(offers: &'a [ToolOffer], sink: &'a dyn Sink) -> Self {
        Self {
            offers,
            sink,
            reply: Reply::default(),
            refusal: String::new(),
            halves: Halves::default(),
            slots: Vec::new(),
            shown: None,
            shown_thoughts: 0,
            past_calls: offers.is_empty(),
            has_news: false,
            has_shown: false,
            stage: Stage::Begun,
        }
    }

    /// Starts to read an event or a whole body; one that is no JSON object is `null`. Its values are counted first, because
    /// each takes far more memory than its bytes.
    pub(super) fn parse(&mut self, event: &str) -> Result<Value, ReadError> {
        refuse_more_values(event.as_bytes(), MAX_VALUES)
            .map_err(|e| rejected(format!("the answer is larger than any that is read: {e}")))?;
        let Ok((value @ Value::Object(_), halves)) = parse_mending(event.as_bytes()) else {
            let text = "a part of the answer was no JSON object, and is lost";
            self.sink.event(Event::Trace(text.to_owned()));
            return Ok(Value::Null);
        };
        self.halves.next_event(&halves);
        match &value["error"] {
            // Some servers send an error as such, with the type of the event or in `object`.
            Value::Null if is_error(&value) => Err(ReadError::refusal(&value)),
            Value::Null => Ok(value),
            error => Err(ReadError::refusal(error)),
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        self.halves.append(&mut self.reply.text, text);
        self.has_news |= !text.is_empty();
    }

    /// Adds the text of an event that has nothing else.
    pub(super) fn piece_of_text(&mut self, text: &str) {
        self.halves.next_event(&[]);
        self.text(text);
    }

    /// Adds a content: a text, or parts, some of which are thoughts or pictures.
    pub(super) fn content(&mut self, content: &Value) {
        match content {
            Value::String(text) => self.text(text),
            Value::Array(parts) => parts.iter().for_each(|part| self.content(part)),
            Value::Object(_) => {
                self.thought("", &text_of(&content["thinking"]));
                self.picture(content);
                self.content(&content["text"]);
            }
            _ => {}
        }
    }

    /// Adds the picture of a part, once.
    pub(super) fn picture(&mut self, part: &Value) {
        match picture_in(part) {
            None => {}
            Some(Ok(image)) if self.reply.images.contains(&image) => {}
            Some(Ok(image)) => {
                self.reply.images.push(image);
                self.has_news = true;
            }
            Some(Err(text)) => self.text(&format!("\n{text}\n")),
        }
    }

    /// Adds a thought from this field. Some hosts send each thought in two fields, and some require its original field name
    /// back.
    pub(super) fn thought(&mut self, field: &str, text: &str) {
        if text.is_empty() {
            return;
        }
        let first = self.reply.extra.entry(REASONING_FIELD);
        if field.is_empty() || *first.or_insert_with(|| field.into()) == field {
            self.halves.append(&mut self.reply.reasoning, text);
            self.has_news = true;
        }
    }

    pub(super) fn refusal(&mut self, text: &str) {
        self.refusal.push_str(text);
        self.has_news |= !text.is_empty();
    }

    pub(super) fn usage(&mut self, counts: &Value) {
        update_usage(&mut self.reply.usage, counts);
        self.reply.cost = amount(&counts["cost"]).or(self.reply.cost);
    }

    /// Records the host's finish reason, and its explanation if it gives one.
    pub(super) fn stop(&mut self, reason: &str, why: &str) {
        if reason.is_empty() {
            return;
        }
        self.stage = Stage::Finished;
        match stop_of(reason) {
            Stop::Done if says(&reason.to_lowercase(), ENDS) => {}
            // Explains an empty reply.
            Stop::Done => reason.clone_into(&mut self.reply.refused),
            Stop::Refused => {
                self.reply.stop = Stop::Refused;
                let separator = if why.is_empty() { "" } else { ": " };
                self.reply.refused = format!("{reason}{separator}{why}");
            }
            cut => self.reply.stop = cut,
        }
    }

    /// Whether nothing has arrived but thoughts.
    pub(super) fn is_empty(&self) -> bool {
        let reply = &self.reply;
        let is_silent = reply.text.is_empty() && self.refusal.is_empty();
        is_silent && reply.calls.is_empty() && reply.images.is_empty()
    }

    /// Whether content has arrived since the last call.
    pub(super) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Adds the list in a vendor's field. Its entries may arrive in pieces with equal type and index.
    pub(super) fn detail(&mut self, name: &str, value: Value) {
        let Value::Array(pieces) = value else {
            return;
        };
        self.has_news = true;
        let have = self.reply.extra.entry(name).or_insert_with(|| json!([]));
        if let Value::Array(have) = have {
            for piece in pieces {
                join(have, piece);
            }
        }
    }

    /// Adds a call with this index, in place of an earlier version with its id.
    pub(super) fn replace_call(&mut self, index: Option<u64>, call: ToolCall) {
        match self.reply.calls.iter().position(|c| c.id == call.id) {
            Some(at) => self.reply.calls[at] = call,
            None => {
                self.slots.push(index);
                self.reply.calls.push(call);
            }
        }
        self.has_news = true;
    }

    /// Adds a delta of a call. It continues an earlier call if it has the same index and neither a new id nor a new name,
    /// because some hosts omit the index and others send every call with index 0. A delta without a name starts no call.
    pub(super) fn call(&mut self, index: Option<u64>, new: ToolCall) {
        self.has_news = true;
        let at = match index {
            Some(_) => self.slots.iter().rposition(|slot| *slot == index),
            // Without an index, a delta belongs to the call with its id; without an id, to the last call.
            None if new.id.is_empty() => self.slots.len().checked_sub(1),
            None => self.reply.calls.iter().rposition(|c| c.id == new.id),
        };
        match at.filter(|at| continues(&self.reply.calls[*at], &new)) {
            Some(at) => {
                let call = &mut self.reply.calls[at];
                if call.id.is_empty() {
                    call.id = new.id;
                }
                // The name arrives whole, repeated or in pieces.
                if new.name.starts_with(&call.name) {
                    call.name = new.name;
                } else {
                    call.name.push_str(&new.name);
                }
                self.halves.append(&mut call.arguments, &new.arguments);
                call.extra.extend(new.extra);
            }
            None if new.name.is_empty() && new.id.is_empty() => {}
            None => {
                self.slots.push(index);
                self.reply.calls.push(new);
            }
        }
    }

    /// Shows the text and the thoughts that have become visible.
    pub(crate) fn show(&mut self) {
        let thoughts = &self.reply.reasoning[..];
        // The other half of a character may follow.
        let thoughts = thoughts.strip_suffix(HALF).unwrap_or(thoughts);
        let thought = thoughts[self.shown_thoughts..].to_owned();
        self.shown_thoughts = thoughts.len();
        let text = self.take_visible_text();
        self.show_parts(thought, text);
    }

    fn show_parts(&mut self, thought: String, text: String) {
        if !thought.is_empty() {
            self.sink.event(Event::Thought(thought));
        }
        if !text.is_empty() {
            self.has_shown = true;
            self.sink.event(Event::Delta(text));
        }
    }

    fn take_visible_text(&mut self) -> String {
        let text = &self.reply.text;
        let text = text.strip_suffix(HALF).unwrap_or(text);
        let start = self.shown.or_else(|| match thoughts::opening(text) {
            Opening::Undecided => None,
            Opening::Thoughts { end, .. } => end.filter(|end| *end < text.len()),
            Opening::Answer => Some(0),
        });
        let Some(start) = start else {
            return String::new();
        };
        self.shown = Some(start);
        let new = &text[start..];
        self.past_calls = self.past_calls || !text_calls::may_begin(new);
        if !self.past_calls {
            return String::new();
        }
        self.shown = Some(text.len());
        new.to_owned()
    }

    /// Returns the reply, and shows its parts that were not shown yet.
    pub(crate) fn finish(&mut self) -> Result<Reply, ProviderError> {
        if self.reply.stop != Stop::Refused && !self.is_empty() {
            self.reply.refused.clear();
        }
        let mut reply = std::mem::take(&mut self.reply);
        let (start, inner) = thoughts::split(&reply.text);
        if reply.reasoning.is_empty() {
            reply.reasoning = inner.to_owned();
        }
        reply.text.drain(..start);
        let mut shown = self.shown.unwrap_or_default().saturating_sub(start);
        if reply.calls.is_empty() {
            let is_cut = reply.stop.is_cut();
            let cut = is_cut.then(|| text_calls::cut_call(&reply.text, self.offers));
            match (text_calls::read(&reply.text, self.offers), cut.flatten()) {
                (Found::Calls(calls), _) => (reply.calls, reply.text) = (calls, String::new()),
                (_, Some(call)) => (reply.calls, reply.text) = (vec![call], String::new()),
                (Found::Text, _) => {}
                (Found::Unparsed, _) => return Err(unparsed(reply.stop)),
            }
            let is_lost = reply.text.trim().is_empty() && reply.calls.is_empty();
            if is_lost && text_calls::ends_thoughts(&reply.reasoning) {
                return Err(unparsed(reply.stop));
            }
        }
        if reply.text.trim().is_empty() && !self.refusal.is_empty() {
            reply.text = std::mem::take(&mut self.refusal);
            reply.stop = Stop::Refused;
            reply.refused.clear();
            shown = 0;
        }
        for call in &mut reply.calls {
            call.name = text_calls::plain_name(&call.name).to_owned();
        }
        // Hosts would reject every further request of the conversation.
        reply.calls.retain(|call| !call.name.is_empty());
        finish_thoughts(&mut reply.extra);
        let mut text = reply.text.get(shown..).unwrap_or_default();
        if text.trim().is_empty() {
            text = "";
        }
        let thought = reply.reasoning.get(self.shown_thoughts..);
        self.show_parts(thought.unwrap_or_default().to_owned(), text.to_owned());
        Ok(reply)
    }
}

/// Reads a sample that its host refused because of its calls: as calls in the text, or as an answer in prose. `None` if it is
/// a broken call.
pub(super) fn read_sample(sample: &str, offers: &[ToolOffer]) -> Option<Reply> {
    let mut reply = ReplyBuilder::new(offers, &|_| ());
    // The host says that it is a call, so one after words is not a quotation.
    reply.text(text_calls::from_tag(sample));
    let reply = reply.finish().ok()?;
    let is_prose = !reply.text.trim().is_empty() && !text_calls::may_begin(&reply.text);
    (is_prose || !reply.calls.is_empty()).then_some(reply)
}

/// Returns the error for a call in a notation that the server should have parsed.
fn unparsed(stop: Stop) -> ProviderError {
    let (message, hint) = if stop.is_cut() {
        (
            "the model's tool call was cut off, because its reply reached the limit",
            "raise `agents.defaults.max_tokens`, or ask for less at once",
        )
    } else {
        (
            "the server did not parse the model's tool call",
            "start it with its tool parser (llama.cpp: `--jinja`, vLLM: `--enable-auto-tool-choice`), or use another model",
        )
    };
    ProviderError::Rejected {
        message: message.to_owned(),
        hint,
    }
}

/// Whether an event, or an answer, is an error as such.
fn is_error(value: &Value) -> bool {
    let is_named = value["type"] == "error" || value["object"] == "error";
    let is_failed = is_named || value["code"].as_u64() >= Some(400);
    is_failed && value["message"].is_string() && value["choices"].is_null()
}

/// Appends a piece to the entry with the same type and index, or adds an entry.
fn join(have: &mut Vec<Value>, piece: Value) {
    let index = piece.get("index").filter(|index| !index.is_null());
    let kind = piece.get("type").filter(|kind| !kind.is_null());
    let is_it = |entry: &&mut Value| {
        let is_kind = kind.is_none_or(|kind| entry.get("type") == Some(kind));
        match index {
            Some(index) => is_kind && entry.get("index") == Some(index),
            // Thoughts without an index form one entry, which ends with a signature.
            None => is_kind && piece.get("thinking").is_some() && !has_text(entry, "signature"),
        }
    };
    let last = match index {
        Some(_) => have.iter_mut().rev().find(|entry| is_it(entry)),
        None => have.last_mut().filter(is_it),
    };
    let (Some(Value::Object(entry)), Value::Object(fields)) = (last, &piece) else {
        have.push(piece);
        return;
    };
    for (name, value) in fields {
        let is_joined = JOINED.contains(&name.as_str());
        match (entry.get_mut(name), value) {
            (Some(Value::String(have)), Value::String(more)) if is_joined || have.is_empty() => {
                have.push_str(more);
            }
            (Some(have), value) if have.is_null() => *have = value.clone(),
            (None, value) => drop(entry.insert(name.clone(), value.clone())),
            _ => {}
        }
    }
}

fn has_text(value: &Value, name: &str) -> bool {
    !string(&value[name]).is_empty()
}

/// Removes thoughts without a signature, which the vendor rejects.
fn finish_thoughts(extra: &mut Map<String, Value>) {
    let Some(Value::Array(blocks)) = extra.get_mut(THOUGHTS) else {
        return;
    };
    blocks.retain(|block| block["type"] != "thinking" || has_text(block, "signature"));
    for block in blocks.iter_mut().filter_map(Value::as_object_mut) {
        block.remove("index");
    }
    if blocks.is_empty() {
        extra.remove(THOUGHTS);
    }
}

/// Whether a delta can belong to a call. Another id, or a name after complete arguments, starts the next call.
fn continues(call: &ToolCall, piece: &ToolCall) -> bool {
    if piece.name.is_empty() {
        return true;
    }
    if !piece.id.is_empty() && !call.id.is_empty() && piece.id != call.id {
        return false;
    }
    let complete = || parse_json(&call.arguments).is_ok_and(|v| v.is_object());
    call.arguments.is_empty() || piece.id == call.id && !piece.id.is_empty() || !complete()
}

#[cfg(test)]
mod tests;
