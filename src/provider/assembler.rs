//! Assembles a reply of an OpenAI-compatible host, streamed or whole.

use serde_json::Value;

use super::dialect::ReplyReader;
use super::replies::{
    ECHOED, REASONING, REASONING_FIELD, calls_in, count, error_in, read_call, split_thinking, string,
    take_written_calls, text_of, tidy_calls,
};
use crate::message::{Reply, Stop, ToolCall, Usage};

#[derive(Default)]
pub(super) struct Stream {
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

impl ReplyReader for Stream {
    fn event(&mut self, data: &str) -> Result<Option<String>, Value> {
        self.done |= data.trim() == "[DONE]";
        let Ok(event) = serde_json::from_str::<Value>(data) else { return Ok(None) };
        if self.done {
            return Ok(None);
        }
        // Some gateways wrap a whole answer: {"success":true,"data":{...}}.
        let event = event.get("data").filter(|data| data.get("choices").is_some()).unwrap_or(&event);
        if let Some(error) = error_in(event) {
            return Err(error);
        }
        self.usage(event);
        let choices = event["choices"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut text = String::new();
        if choices.is_empty() {
            text = text_of(event.get("output_text").unwrap_or(&event["content"]));
        }
        let mut has_content = !text.is_empty();
        // Claude behind a gateway: text in the first choice, calls in the second.
        for choice in choices {
            self.finish_reason(choice);
            let Some(delta) = choice.get("delta").or_else(|| choice.get("message")) else { continue };
            let content = text_of(&delta["content"]);
            has_content |= self.common(delta) || !content.is_empty();
            text.push_str(&content);
            for call in calls_in(delta) {
                has_content = true;
                self.call(call, choice.get("message").is_some());
            }
        }
        self.reply.text.push_str(&text);
        Ok(has_content.then(|| self.shown(&text)))
    }

    fn thoughts(&self) -> &str {
        &self.reply.reasoning
    }

    fn is_complete(&self) -> bool {
        self.done || self.finished
    }

    fn finish(self: Box<Self>) -> Reply {
        let mut reply = self.reply;
        let (text, thoughts) = split_thinking(&reply.text);
        reply.text = text;
        if reply.reasoning.is_empty() {
            reply.reasoning = thoughts;
        }
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
        tidy_calls(&mut reply.calls);
        reply
    }
}

impl Stream {
    /// Reads what a message and a delta have in common: reasoning, refusal, vendor fields. True if there was any of it.
    fn common(&mut self, message: &Value) -> bool {
        let Reply { reasoning, extra, .. } = &mut self.reply;
        let length = reasoning.len() + self.refusal.len();
        for name in REASONING {
            let text = text_of(&message[name]);
            // Some hosts send the same thought in both fields, and some want it back under the name they used.
            if !text.is_empty() && *extra.entry(REASONING_FIELD).or_insert_with(|| name.into()) == name {
                reasoning.push_str(&text);
            }
        }
        for part in message["content"].as_array().into_iter().flatten() {
            reasoning.push_str(&text_of(&part["thinking"]));
        }
        self.refusal.push_str(&string(message, "refusal"));
        for name in ECHOED {
            match (message.get(name), extra.get_mut(name)) {
                (Some(Value::Array(more)), Some(Value::Array(have))) => have.extend(more.iter().cloned()),
                (Some(value), None) if !value.is_null() => {
                    extra.insert(name.to_owned(), value.clone());
                }
                _ => {}
            }
        }
        reasoning.len() + self.refusal.len() > length
    }

    /// Vendors have some twenty reasons; it matters only whether calls may run.
    fn finish_reason(&mut self, choice: &Value) {
        let Some(reason) = choice["finish_reason"].as_str().filter(|reason| !reason.is_empty()) else {
            return;
        };
        self.finished = true;
        self.reply.stop = match reason {
            "length" | "max_tokens" | "model_context_window_exceeded" => Stop::Length,
            "content_filter" | "refusal" | "sensitive" => Stop::Refused,
            _ => self.reply.stop,
        };
    }

    /// Usage stands at the top or, in Moonshot's streams, in the choice.
    fn usage(&mut self, body: &Value) {
        let Some(usage) = [&body["usage"], &body["choices"][0]["usage"]].into_iter().find(|usage| usage.is_object())
        else {
            return;
        };
        let first = |counts: &[&Value]| counts.iter().find_map(|n| count(n)).unwrap_or_default();
        self.reply.usage = Usage {
            prompt_tokens: first(&[&usage["prompt_tokens"], &usage["input_tokens"]]),
            completion_tokens: first(&[&usage["completion_tokens"], &usage["output_tokens"]]),
            cached_tokens: first(&[
                &usage["prompt_tokens_details"]["cached_tokens"],
                &usage["cached_tokens"],
                &usage["prompt_cache_hit_tokens"],
            ]),
        };
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
    fn shown(&mut self, new: &str) -> String {
        const OPEN: &str = "<think>";
        if self.past_thinking {
            return new.to_owned();
        }
        let start = self.reply.text.trim_start();
        let text = match start.strip_prefix(OPEN) {
            Some(rest) => rest.split_once("</think>").map_or("", |(_, answer)| answer.trim_start()),
            None if OPEN.starts_with(start) => "",
            None => &self.reply.text,
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
    let complete = || serde_json::from_str::<Value>(&call.arguments).is_ok_and(|v| v.is_object());
    piece.name.is_empty() || call.arguments.is_empty() || piece.id == call.id && !piece.id.is_empty() || !complete()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn feed(chunks: &[Value]) -> Box<Stream> {
        let mut stream = Box::<Stream>::default();
        for chunk in chunks {
            stream.event(&chunk.to_string()).unwrap();
        }
        stream
    }

    fn delta(delta: &Value) -> Value {
        json!({"choices": [{"delta": delta}]})
    }

    fn piece(index: Option<u64>, id: &str, name: &str, arguments: &str) -> Value {
        let mut call = json!({"function": {"arguments": arguments}});
        if let Some(index) = index {
            call["index"] = index.into();
        }
        if !id.is_empty() {
            call["id"] = id.into();
        }
        if !name.is_empty() {
            call["function"]["name"] = name.into();
        }
        delta(&json!({"tool_calls": [call]}))
    }

    fn calls(chunks: &[Value]) -> Vec<(String, String, String)> {
        feed(chunks).finish().calls.into_iter().map(|c| (c.id, c.name, c.arguments)).collect()
    }

    fn call(id: &str, name: &str, arguments: &str) -> (String, String, String) {
        (id.into(), name.into(), arguments.into())
    }

    #[test]
    fn text_is_put_together_and_shown_as_it_comes() {
        let mut stream = Box::<Stream>::default();
        assert_eq!(stream.event(&delta(&json!({"role": "assistant"})).to_string()), Ok(None));
        assert_eq!(stream.event(&delta(&json!({"content": "he"})).to_string()), Ok(Some("he".into())));
        assert_eq!(stream.event(&delta(&json!({"content": [{"text": "y"}]})).to_string()), Ok(Some("y".into())));
        assert_eq!(stream.event(&delta(&json!({"reasoning": "hm"})).to_string()), Ok(Some(String::new())));
        assert_eq!(stream.event(r#"{"choices":[{"delta":null}]}"#), Ok(None));
        assert!(!stream.is_complete());
        stream.event(r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#).unwrap();
        assert!(stream.is_complete());
        stream.event(r#"{"choices":[],"usage":{"prompt_tokens":3}}"#).unwrap();
        stream.event("[DONE]").unwrap();
        assert_eq!(stream.event(&delta(&json!({"content": "late"})).to_string()), Ok(None));
        let reply = stream.finish();
        assert_eq!((reply.text.as_str(), reply.reasoning.as_str(), reply.usage.prompt_tokens), ("hey", "hm", 3));
    }

    #[test]
    fn an_error_in_the_stream_is_an_error() {
        let mut stream = Box::<Stream>::default();
        assert_eq!(stream.event(r#"{"error":{"message":"x"}}"#), Err(json!({"message": "x"})));
    }

    #[test]
    fn parallel_calls_stay_apart_whatever_the_server_numbers() {
        let whole = [call("a", "f", "{\"x\":1}"), call("b", "g", "{}")];
        // By index, interleaved; with a gap; all under 0; without any; whole calls in one chunk each.
        let a = |index| piece(index, "a", "f", "{\"x\":1}");
        let b = |index| piece(index, "b", "g", "{}");
        let interleaved = [
            piece(Some(0), "a", "f", ""),
            piece(Some(1), "b", "g", ""),
            piece(Some(0), "", "", "{\"x\""),
            piece(Some(1), "", "", "{}"),
            piece(Some(0), "", "", ":1}"),
        ];
        assert_eq!(calls(&interleaved), whole);
        assert_eq!(calls(&[a(Some(1)), b(Some(4))]), whole);
        assert_eq!(calls(&[a(Some(0)), b(Some(0))]), whole);
        assert_eq!(calls(&[a(None), b(None)]), whole);
        // Neither index nor id: a complete call ends where the next name begins.
        assert_eq!(
            calls(&[piece(None, "", "f", "{\"x\":1}"), piece(None, "", "g", "{}")]),
            [call("", "f", "{\"x\":1}"), call("", "g", "{}")]
        );
    }

    #[test]
    fn names_come_whole_repeated_or_in_pieces() {
        let want = [call("a", "list_dir", "{}")];
        assert_eq!(calls(&[piece(Some(0), "a", "list_dir", ""), piece(Some(0), "a", "list_dir", "{}")]), want);
        assert_eq!(
            calls(&[piece(Some(0), "a", "list", ""), piece(Some(0), "", "_dir", ""), piece(Some(0), "", "", "{}")]),
            want
        );
    }

    #[test]
    fn thoughts_at_the_beginning_are_not_shown_and_a_lone_bracket_is() {
        let shown = |pieces: &[&str]| {
            let mut stream = Box::<Stream>::default();
            let event = |text: &&str| stream.event(&delta(&json!({"content": text})).to_string()).unwrap().unwrap();
            pieces.iter().map(event).collect::<String>()
        };
        assert_eq!(shown(&["<th", "ink>a", "b</thi", "nk>\n\n", "answer", " more"]), "answer more");
        assert_eq!(shown(&["<", "3 you"]), "<3 you");
        assert_eq!(shown(&["hello"]), "hello");
    }
}
