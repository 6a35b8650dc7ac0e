//! Builds a reply, streamed or whole, from events in whatever shape they come.

use std::borrow::Cow;

use serde_json::Value;

use super::shapes::{
    ECHOED, REASONING, REASONING_FIELD, THINK, calls_in, count_usage, error_in, join_thoughts,
    read_call, refusal_in, split_thinking, stop_of, string, text_of,
};
use super::text_calls::{self, Found};
use super::{ProviderError, ToolOffer};
use crate::json::{parse_json, refuse_more_values, replace_lone_surrogates};
use crate::message::{Reply, Stop, ToolCall};
use crate::text::halves;

/// The most values of an event: in memory one may take a hundred times its bytes.
const MAX_VALUES: usize = 500_000;

/// How a protocol's replies are read.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    /// The text in an event of a stream that carries text and nothing else, as nearly all do. `None` for any other.
    pub text: for<'a> fn(&'a str) -> Option<Cow<'a, str>>,
    /// An event of a stream, or a whole body, into the words of the OpenAI API.
    pub translate: fn(Value) -> Value,
}

/// What to show of a piece of a reply that carries content.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Shown {
    pub text: String,
    pub thought: String,
}

/// How far a reply has come.
#[derive(Clone, Copy, PartialEq)]
enum Progress {
    Begun,
    /// The host has given a reason to finish.
    Finished,
    /// The stream has ended.
    Ended,
}

/// A reply in the making.
pub(crate) struct ReplyBuilder<'a> {
    reading: Reading,
    /// The tools that calls in the text may name.
    offers: &'a [ToolOffer],
    reply: Reply,
    refusal: String,
    /// For each call, the `index` it was sent under.
    slots: Vec<Option<u64>>,
    /// Bytes of the text that were shown, or are never shown.
    shown: usize,
    /// The reply is past the thinking that can begin its text.
    past_thinking: bool,
    /// The text can no longer turn out to be calls.
    past_calls: bool,
    /// Halves of UTF-16 pairs have come; in the texts they stand as [`halves::Half`] until their other halves arrive.
    has_halves: bool,
    /// Events that are not JSON.
    unreadable: u32,
    /// Why an event was not read that is far larger than any that a host sends.
    too_large: Option<String>,
    progress: Progress,
}

impl<'a> ReplyBuilder<'a> {
    pub(crate) fn new(reading: Reading, offers: &'a [ToolOffer]) -> Self {
        Self {
            reading,
            offers,
            reply: Reply::default(),
            refusal: String::new(),
            slots: Vec::new(),
            shown: 0,
            past_thinking: false,
            past_calls: offers.is_empty(),
            has_halves: false,
            unreadable: 0,
            too_large: None,
            progress: Progress::Begun,
        }
    }

    /// Takes the data of one event of a stream, or a whole body. `None` is only a sign of life; `Err` holds the error object
    /// in place of a reply.
    pub(crate) fn event(&mut self, data: &str) -> Result<Option<Shown>, Value> {
        if let Some(text) = (self.reading.text)(data).filter(|_| !self.has_ended()) {
            self.reply.text.push_str(&text);
            return Ok((!text.is_empty()).then(|| Shown {
                text: self.newly_visible(),
                thought: String::new(),
            }));
        }
        match self.parse(data) {
            Some(event) => self.value(&event),
            None => Ok(None),
        }
    }

    /// An event as JSON, within bounds.
    fn read(&mut self, data: &str) -> Option<Value> {
        if let Err(e) = refuse_more_values(data.as_bytes(), MAX_VALUES) {
            self.too_large = Some(e.to_string());
            return None;
        }
        serde_json::from_str(data).ok().or_else(|| {
            let marked = halves::marked(data.as_bytes())?;
            let value = serde_json::from_slice(&marked).ok()?;
            self.has_halves = true;
            Some(value)
        })
    }

    /// Reads an event; `None` if it is not JSON, and at the end.
    fn parse(&mut self, data: &str) -> Option<Value> {
        const END: &str = "[DONE]";
        if data.trim() == END {
            self.progress = Progress::Ended;
        }
        if self.has_ended() || data.trim().is_empty() {
            return None;
        }
        let parsed = self.read(data);
        self.unreadable += u32::from(parsed.is_none());
        let event = (self.reading.translate)(parsed?);
        if event == END {
            self.progress = Progress::Ended;
            return None;
        }
        Some(event)
    }

    fn has_ended(&self) -> bool {
        self.progress == Progress::Ended
    }

    fn value(&mut self, event: &Value) -> Result<Option<Shown>, Value> {
        // Some gateways wrap a whole answer: {"success":true,"data":{...}}.
        let event = event
            .get("data")
            .filter(|data| data.get("choices").is_some())
            .unwrap_or(event);
        if let Some(error) = error_in(event) {
            return Err(error);
        }
        // Usage stands at the top or, in Moonshot's streams, in the choice.
        for usage in [&event["choices"][0]["usage"], &event["usage"]] {
            count_usage(&mut self.reply.usage, usage);
        }
        let choices = event["choices"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let (mut text, thoughts) = (String::new(), self.reply.reasoning.len());
        if choices.is_empty() {
            text = text_of(event.get("output_text").unwrap_or(&event["content"]));
        }
        let mut has_content = !text.is_empty();
        // Claude behind a gateway: text in the first choice, calls in the second.
        for choice in choices {
            if let Some(reason) = choice["finish_reason"]
                .as_str()
                .filter(|reason| !reason.is_empty())
            {
                self.finish_reason(reason, choice);
            }
            let Some(delta) = choice.get("delta").or_else(|| choice.get("message")) else {
                continue;
            };
            let content = text_of(&delta["content"]);
            has_content |= self.beside_text(delta) || !content.is_empty();
            text.push_str(&content);
            for call in calls_in(delta) {
                has_content = true;
                self.call(call, choice.get("message").is_some());
            }
        }
        self.reply.text.push_str(&text);
        let thought = self.mended(&self.reply.reasoning[thoughts..]);
        Ok(has_content.then(|| Shown {
            text: self.newly_visible(),
            thought,
        }))
    }

    fn finish_reason(&mut self, reason: &str, choice: &Value) {
        self.progress = Progress::Finished;
        match stop_of(reason) {
            Stop::Done => {}
            Stop::Refused => {
                self.reply.stop = Stop::Refused;
                self.reply.refused = refusal_in(reason, choice);
            }
            Stop::Length => self.reply.stop = Stop::Length,
        }
    }

    /// Whether the host has said that the reply is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.progress != Progress::Begun
    }

    /// Whether thoughts have come apart from the text.
    pub(super) fn has_thoughts(&self) -> bool {
        !self.reply.reasoning.is_empty()
    }

    /// Why an event was too large to be read.
    pub(super) fn too_large(&self) -> Option<&str> {
        self.too_large.as_deref()
    }

    /// How many events were not JSON.
    pub(super) fn unreadable(&self) -> u32 {
        self.unreadable
    }

    /// The reply, and the end of its text that was not shown yet.
    pub(crate) fn finish(mut self) -> Result<(Reply, String), ProviderError> {
        if self.has_halves {
            self.mend_all();
        }
        let mut reply = self.reply;
        let left = reply.text.len() - self.shown.min(reply.text.len());
        let (text, thoughts) = split_thinking(&reply.text);
        if reply.reasoning.is_empty() {
            reply.reasoning = thoughts.to_owned();
        }
        let mut unshown = text[text.len() - left.min(text.len())..].to_owned();
        reply.text = text.to_owned();
        if reply.calls.is_empty() {
            match text_calls::read(&reply.text, self.offers) {
                Found::Text => {}
                Found::Calls(calls) => {
                    (reply.calls, reply.text) = (calls, String::new());
                    unshown.clear();
                }
                Found::Unparsed => {
                    return Err(ProviderError::Rejected {
                        message: "the server did not parse the model's tool call".to_owned(),
                        hint: "start it with its tool parser, or use another model (--model, /model)",
                    });
                }
            }
        }
        let end = text_calls::without_end(&reply.text).len();
        reply.text.truncate(end);
        if reply.text.trim().is_empty() && !self.refusal.is_empty() {
            unshown.clone_from(&self.refusal);
            reply.text = self.refusal;
            reply.stop = Stop::Refused;
            reply.refused.clear();
        }
        // They would poison the conversation.
        reply.calls.retain(|call| !call.name.trim().is_empty());
        for call in &mut reply.calls {
            if let Some(mended) = replace_lone_surrogates(call.arguments.as_bytes()) {
                call.arguments = String::from_utf8_lossy(&mended).into_owned();
            }
        }
        join_thoughts(&mut reply.extra);
        if unshown.trim().is_empty() {
            unshown.clear();
        }
        Ok((reply, unshown))
    }

    /// Joins the halves of pairs in all texts, and replaces those without another half.
    fn mend_all(&mut self) {
        // What was shown ends before a half that still waits, so its length in the mended text can be told.
        self.shown = self.mended(&self.reply.text[..self.shown]).len();
        let Reply {
            text,
            reasoning,
            calls,
            extra,
            ..
        } = &mut self.reply;
        for text in [text, reasoning, &mut self.refusal] {
            *text = halves::joined(text);
        }
        for call in calls {
            call.arguments = halves::joined(&call.arguments);
        }
        for value in extra.values_mut() {
            mend_value(value);
        }
    }

    fn mended(&self, text: &str) -> String {
        if self.has_halves {
            halves::joined(text)
        } else {
            text.to_owned()
        }
    }

    /// Reads reasoning, a refusal and vendor fields. True if there was any of it.
    fn beside_text(&mut self, message: &Value) -> bool {
        let Reply {
            reasoning, extra, ..
        } = &mut self.reply;
        let length = reasoning.len() + self.refusal.len();
        let mut is_echoed = false;
        for name in REASONING {
            let text = text_of(&message[name]);
            // Some hosts send the same thought in both fields, and some want it back under the name they used.
            if !text.is_empty()
                && *extra.entry(REASONING_FIELD).or_insert_with(|| name.into()) == name
            {
                reasoning.push_str(&text);
            }
        }
        for part in message["content"].as_array().into_iter().flatten() {
            reasoning.push_str(&text_of(&part["thinking"]));
        }
        self.refusal.push_str(&string(message, "refusal"));
        for name in ECHOED {
            let Some(value) = message.get(name).filter(|value| !value.is_null()) else {
                continue;
            };
            is_echoed = true;
            match (value, extra.get_mut(name)) {
                (Value::Array(more), Some(Value::Array(have))) => have.extend(more.iter().cloned()),
                (value, None) => drop(extra.insert(name.to_owned(), value.clone())),
                _ => {}
            }
        }
        is_echoed || reasoning.len() + self.refusal.len() > length
    }

    /// Takes a piece of a call. It continues an earlier call when it carries the same index and neither a new id nor a new
    /// name: some hosts leave the index out, others send every call under 0. A whole call continues none.
    fn call(&mut self, piece: &Value, is_whole: bool) {
        let index = piece.get("index").and_then(Value::as_u64);
        let new = read_call(piece);
        let at = match index {
            _ if is_whole => None,
            Some(_) => self.slots.iter().rposition(|slot| *slot == index),
            // Without an index: the call of that id; without an id, the last call.
            None if new.id.is_empty() => self.slots.len().checked_sub(1),
            None => self.reply.calls.iter().rposition(|c| c.id == new.id),
        };
        if let Some(at) = at.filter(|at| continues(&self.reply.calls[*at], &new)) {
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
            call.arguments.push_str(&new.arguments);
            call.extra.extend(new.extra);
        } else {
            self.slots.push(index);
            self.reply.calls.push(new);
        }
    }

    /// The text that may be shown now and was not before: nothing of `<think>…</think>` at the beginning, nothing that may
    /// turn out to be a call, and no half of a pair at the end.
    fn newly_visible(&mut self) -> String {
        let text = &self.reply.text;
        if !self.past_thinking {
            if THINK.starts_with(text.trim_start()) {
                return String::new();
            }
            let answer = split_thinking(text).0;
            if answer.is_empty() {
                return String::new();
            }
            self.past_thinking = true;
            self.shown = text.len() - answer.len();
        }
        let new = &text[self.shown..];
        self.past_calls = self.past_calls || !text_calls::may_begin(new);
        let end = text.len()
            - if self.has_halves {
                halves::waiting(new)
            } else {
                0
            };
        if !self.past_calls || end <= self.shown {
            return String::new();
        }
        let new = self.mended(&text[self.shown..end]);
        self.shown = end;
        new
    }
}

fn mend_value(value: &mut Value) {
    match value {
        Value::String(text) => *text = halves::joined(text),
        Value::Array(list) => list.iter_mut().for_each(mend_value),
        Value::Object(fields) => fields.values_mut().for_each(mend_value),
        _ => {}
    }
}

/// Whether a piece can belong to a call. Another id, or a name after complete arguments, begins the next call.
fn continues(call: &ToolCall, piece: &ToolCall) -> bool {
    if !piece.id.is_empty() && !call.id.is_empty() && piece.id != call.id {
        return false;
    }
    let complete = || parse_json(&call.arguments).is_ok_and(|v| v.is_object());
    piece.name.is_empty()
        || call.arguments.is_empty()
        || piece.id == call.id && !piece.id.is_empty()
        || !complete()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn builder() -> ReplyBuilder<'static> {
        ReplyBuilder::new(crate::provider::openai::READING, &[])
    }

    fn delta(delta: &Value) -> Value {
        json!({"choices": [{"delta": delta}]})
    }

    #[test]
    fn text_is_put_together_and_shown_as_it_comes() {
        let mut stream = builder();
        let mut event = |delta_: Value| stream.event(&delta(&delta_).to_string()).unwrap();
        let shown = |text: &str, thought: &str| {
            Some(Shown {
                text: text.into(),
                thought: thought.into(),
            })
        };
        assert_eq!(event(json!({"role": "assistant"})), None);
        assert_eq!(event(json!({"content": "he"})), shown("he", ""));
        assert_eq!(event(json!({"content": [{"text": "y"}]})), shown("y", ""));
        assert_eq!(event(json!({"reasoning": "hm"})), shown("", "hm"));
        assert_eq!(stream.event(r#"{"choices":[{"delta":null}]}"#), Ok(None));
        assert!(!stream.is_complete());
        stream
            .event(r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#)
            .unwrap();
        assert!(stream.is_complete());
        stream.event("[DONE]").unwrap();
        assert_eq!(
            stream.event(&delta(&json!({"content": "late"})).to_string()),
            Ok(None)
        );
        let reply = stream.finish().unwrap().0;
        assert_eq!(
            (reply.text.as_str(), reply.reasoning.as_str()),
            ("hey", "hm")
        );
    }

    #[test]
    fn a_complete_call_ends_where_the_next_name_begins() {
        let call = |name: &str, arguments: &str| {
            delta(&json!({"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}))
                .to_string()
        };
        let mut stream = builder();
        stream.event(&call("f", "{\"x\":1}")).unwrap();
        stream.event(&call("g", "{}")).unwrap();
        let calls: Vec<String> = stream
            .finish()
            .unwrap()
            .0
            .calls
            .into_iter()
            .map(|call| call.name + &call.arguments)
            .collect();
        assert_eq!(calls, ["f{\"x\":1}", "g{}"]);
    }

    #[test]
    fn thoughts_at_the_beginning_are_not_shown_and_a_lone_bracket_is() {
        let shown = |pieces: &[&str]| {
            let mut stream = builder();
            let event = |text: &&str| {
                stream
                    .event(&delta(&json!({"content": text})).to_string())
                    .unwrap()
                    .unwrap()
                    .text
            };
            pieces.iter().map(event).collect::<String>()
        };
        assert_eq!(
            shown(&["<th", "ink>a", "b</thi", "nk>\n\n", "answer", " more"]),
            "answer more"
        );
        assert_eq!(shown(&["<", "3 you"]), "<3 you");
        assert_eq!(shown(&["hello"]), "hello");
    }
}
