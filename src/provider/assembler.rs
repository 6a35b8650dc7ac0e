//! Assembles a reply, streamed or whole, in whatever shape it comes.

use serde_json::Value;

use super::replies::{
    ECHOED, REASONING, REASONING_FIELD, THINK, calls_in, count_usage, error_in, join_thoughts,
    read_call, split_thinking, stop_of, string, take_written_calls, text_of,
};
use crate::message::{Reply, Stop, ToolCall};
use crate::text::parse_json;

/// What to show of a piece of a reply that carries content.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Shown {
    pub text: String,
    pub thought: String,
}

/// A reply in the making.
pub(crate) struct Assembler {
    /// Into the words of the OpenAI API.
    translate: fn(Value) -> Value,
    reply: Reply,
    refusal: String,
    /// For each call, the `index` it was sent under.
    slots: Vec<Option<u64>>,
    /// The reply is past the thinking that can begin its text.
    past_thinking: bool,
    /// The host has given a reason to finish.
    finished: bool,
    /// The stream has ended.
    done: bool,
}

impl Assembler {
    pub(crate) fn new(translate: fn(Value) -> Value) -> Self {
        let (reply, refusal, slots) = (Reply::default(), String::new(), Vec::new());
        Self {
            translate,
            reply,
            refusal,
            slots,
            past_thinking: false,
            finished: false,
            done: false,
        }
    }

    /// Takes the data of one event of a stream, or a whole body. `None` is only a sign of life; `Err` holds the error object
    /// in place of a reply.
    pub(crate) fn event(&mut self, data: &str) -> Result<Option<Shown>, Value> {
        const END: &str = "[DONE]";
        self.done |= data.trim() == END;
        let Ok(event) = parse_json(data) else {
            return Ok(None);
        };
        let event = (self.translate)(event);
        self.done |= event == END;
        if self.done {
            return Ok(None);
        }
        // Some gateways wrap a whole answer: {"success":true,"data":{...}}.
        let event = event
            .get("data")
            .filter(|data| data.get("choices").is_some())
            .unwrap_or(&event);
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
                self.finished = true;
                self.reply.stop = Some(stop_of(reason))
                    .filter(|stop| *stop != Stop::Done)
                    .unwrap_or(self.reply.stop);
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
        let thought = self.reply.reasoning[thoughts..].to_owned();
        Ok(has_content.then(|| Shown {
            text: self.shown(text),
            thought,
        }))
    }

    /// Whether the host has said that the reply is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.done || self.finished
    }

    /// Whether thoughts have come apart from the text.
    pub(super) fn has_thoughts(&self) -> bool {
        !self.reply.reasoning.is_empty()
    }

    pub(crate) fn finish(self) -> Reply {
        let mut reply = self.reply;
        let (text, thoughts) = split_thinking(&reply.text);
        if reply.reasoning.is_empty() {
            reply.reasoning = thoughts.to_owned();
        }
        reply.text = text.to_owned();
        if reply.calls.is_empty() {
            take_written_calls(&mut reply.text, &mut reply.calls);
        }
        for marker in ["<eom>", "<|eom|>", "<|im_end|>", "<|eot_id|>"] {
            if let Some(cut) = reply.text.trim_end().strip_suffix(marker) {
                reply.text = cut.to_owned();
            }
        }
        if reply.text.trim().is_empty() && !self.refusal.is_empty() {
            reply.text = self.refusal;
            reply.stop = Stop::Refused;
        }
        // They would poison the conversation.
        reply.calls.retain(|call| !call.name.trim().is_empty());
        join_thoughts(&mut reply.extra);
        reply
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

    /// What to show after `new`, the end of the text so far: nothing of `<think>…</think>` at the beginning.
    fn shown(&mut self, new: String) -> String {
        if self.past_thinking {
            return new;
        }
        let may_begin = THINK.starts_with(self.reply.text.trim_start());
        let text = if may_begin {
            ""
        } else {
            split_thinking(&self.reply.text).0
        };
        self.past_thinking = !text.is_empty();
        text.to_owned()
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

    fn assembler() -> Assembler {
        Assembler::new(|event| event)
    }

    fn delta(delta: &Value) -> Value {
        json!({"choices": [{"delta": delta}]})
    }

    #[test]
    fn text_is_put_together_and_shown_as_it_comes() {
        let mut stream = assembler();
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
        let reply = stream.finish();
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
        let mut stream = assembler();
        stream.event(&call("f", "{\"x\":1}")).unwrap();
        stream.event(&call("g", "{}")).unwrap();
        let calls: Vec<String> = stream
            .finish()
            .calls
            .into_iter()
            .map(|call| call.name + &call.arguments)
            .collect();
        assert_eq!(calls, ["f{\"x\":1}", "g{}"]);
    }

    #[test]
    fn thoughts_at_the_beginning_are_not_shown_and_a_lone_bracket_is() {
        let shown = |pieces: &[&str]| {
            let mut stream = assembler();
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
