//! Putting a streamed answer together.

use serde_json::Value;

use super::host::{Assembly, Chunk};
use super::replies::{self, Draft, error_in, read_call, text_of};
use crate::message::{Reply, ToolCall};

/// A streamed answer in the making.
#[derive(Default)]
pub struct Stream {
    draft: Draft,
    /// For each call, the `index` it was sent under.
    slots: Vec<Option<u64>>,
    thinking: Thinking,
    done: bool,
}

impl Assembly for Stream {
    fn event(&mut self, data: &str) -> Chunk {
        if self.done {
            return Chunk::Nothing;
        }
        if data.trim() == "[DONE]" {
            self.done = true;
            return Chunk::Nothing;
        }
        let Ok(chunk) = serde_json::from_str::<Value>(data) else { return Chunk::Nothing };
        if let Some(error) = error_in(&chunk) {
            return Chunk::Error(error);
        }
        self.draft.usage(&chunk);
        let mut text = String::new();
        let mut any = false;
        for choice in chunk.get("choices").and_then(Value::as_array).into_iter().flatten() {
            self.draft.finish_reason(choice);
            // Some servers send the last chunk whole, as a message.
            let Some(delta) = choice.get("delta").or_else(|| choice.get("message")).filter(|d| d.is_object()) else {
                continue;
            };
            let piece = delta.get("content").map(text_of).unwrap_or_default();
            any |=
                !piece.is_empty() || ["reasoning_content", "reasoning", "refusal"].iter().any(|n| has_text(delta, n));
            text.push_str(&piece);
            self.draft.common(delta);
            for call in delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
                any = true;
                self.call(call);
            }
            if let Some(call) = delta.get("function_call").filter(|c| c.is_object()) {
                any = true;
                self.call(call);
            }
        }
        self.draft.text.push_str(&text);
        if any { Chunk::Content(self.thinking.show(&text)) } else { Chunk::Nothing }
    }

    fn is_complete(&self) -> bool {
        self.done || self.draft.finished
    }

    fn finish(self: Box<Self>) -> Reply {
        self.draft.finish()
    }

    fn whole(&self, body: &Value) -> Result<Reply, Value> {
        replies::read(body)
    }
}

impl Stream {
    /// A piece of a call. It continues an earlier one when it carries the same index and neither a new id nor a new
    /// name: some servers leave the index out, others send every call under 0.
    fn call(&mut self, piece: &Value) {
        let index = piece.get("index").and_then(Value::as_u64);
        let new = read_call(piece);
        let at = match index {
            Some(_) => self.slots.iter().rposition(|slot| *slot == index),
            // Without an index: the call of that id, or with no id the last one.
            None if new.id.is_empty() => self.slots.len().checked_sub(1),
            None => self.draft.calls.iter().rposition(|c| c.id == new.id),
        };
        if let Some(at) = at.filter(|at| continues(&self.draft.calls[*at], &new)) {
            let call = &mut self.draft.calls[at];
            if call.id.is_empty() {
                call.id = new.id;
            }
            // The name comes whole, repeated or in pieces.
            if call.name.is_empty() || new.name.starts_with(&call.name) {
                if !new.name.is_empty() {
                    call.name = new.name;
                }
            } else if !new.name.is_empty() {
                call.name.push_str(&new.name);
            }
            call.arguments.push_str(&new.arguments);
            call.extra.extend(new.extra);
        } else {
            self.slots.push(index);
            self.draft.calls.push(new);
        }
    }
}

/// Keeps inline `<think>…</think>` at the beginning of a streamed answer from being shown.
#[derive(Default)]
struct Thinking {
    held: String,
    past: bool,
}

impl Thinking {
    /// What of the text so far can be shown now.
    fn show(&mut self, text: &str) -> String {
        const OPEN: &str = "<think>";
        const CLOSE: &str = "</think>";
        if self.past {
            return text.to_owned();
        }
        self.held.push_str(text);
        let start = self.held.trim_start();
        if start.len() < OPEN.len() && OPEN.starts_with(start) {
            return String::new();
        }
        if start.starts_with(OPEN) {
            let answer = start.split_once(CLOSE).map_or("", |(_, answer)| answer.trim_start());
            self.past = !answer.is_empty();
            return answer.to_owned();
        }
        self.past = true;
        std::mem::take(&mut self.held)
    }
}

fn has_text(delta: &Value, name: &str) -> bool {
    delta.get(name).is_some_and(|v| !text_of(v).is_empty())
}

/// Whether a piece can belong to a call. A different id, or a name after arguments that are complete, begins another.
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
            stream.event(&chunk.to_string());
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
        assert_eq!(stream.event(&delta(&json!({"role": "assistant"})).to_string()), Chunk::Nothing);
        assert_eq!(stream.event(&delta(&json!({"content": "he"})).to_string()), Chunk::Content("he".into()));
        assert_eq!(stream.event(&delta(&json!({"content": [{"text": "y"}]})).to_string()), Chunk::Content("y".into()));
        assert_eq!(stream.event(&delta(&json!({"reasoning": "hm"})).to_string()), Chunk::Content(String::new()));
        assert_eq!(stream.event(r#"{"choices":[{"delta":null}]}"#), Chunk::Nothing);
        assert!(!stream.is_complete());
        stream.event(r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#);
        assert!(stream.is_complete());
        stream.event(r#"{"choices":[],"usage":{"prompt_tokens":3}}"#);
        stream.event("[DONE]");
        assert_eq!(stream.event(&delta(&json!({"content": "late"})).to_string()), Chunk::Nothing);
        let reply = stream.finish();
        assert_eq!((reply.text.as_str(), reply.reasoning.as_str(), reply.usage.prompt_tokens), ("hey", "hm", 3));
    }

    #[test]
    fn an_error_in_the_stream_is_an_error() {
        let mut stream = Box::<Stream>::default();
        assert_eq!(stream.event(r#"{"error":{"message":"x"}}"#), Chunk::Error(json!({"message": "x"})));
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
            [call("call_1", "f", "{\"x\":1}"), call("call_2", "g", "{}")]
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
            let mut thinking = Thinking::default();
            pieces.iter().map(|piece| thinking.show(piece)).collect::<String>()
        };
        assert_eq!(shown(&["<th", "ink>a", "b</thi", "nk>\n\n", "answer", " more"]), "answer more");
        assert_eq!(shown(&["<", "3 you"]), "<3 you");
        assert_eq!(shown(&["hello"]), "hello");
    }
}
