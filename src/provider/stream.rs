//! Assembles a streamed reply of an OpenAI-compatible host.

use serde_json::Value;

use super::dialect::ReplyStream;
use super::replies::{Draft, REASONING, calls_in, error_in, read_call, text_of};
use crate::message::{Reply, ToolCall};

#[derive(Default)]
pub(super) struct Stream {
    draft: Draft,
    /// For each call, the `index` it was sent under.
    slots: Vec<Option<u64>>,
    thinking: ThinkFilter,
    done: bool,
}

impl ReplyStream for Stream {
    fn event(&mut self, data: &str) -> Result<Option<String>, Value> {
        self.done |= data.trim() == "[DONE]";
        let Ok(chunk) = serde_json::from_str::<Value>(data) else { return Ok(None) };
        if self.done {
            return Ok(None);
        }
        if let Some(error) = error_in(&chunk) {
            return Err(error);
        }
        self.draft.usage(&chunk);
        let mut text = String::new();
        let mut has_content = false;
        for choice in chunk.get("choices").and_then(Value::as_array).into_iter().flatten() {
            self.draft.finish_reason(choice);
            // Some hosts send the last chunk whole, as a message.
            let Some(delta) = choice.get("delta").or_else(|| choice.get("message")) else { continue };
            has_content |= REASONING.iter().chain(&["content", "refusal"]).any(|name| has_text(delta, name));
            text.push_str(&delta.get("content").map(text_of).unwrap_or_default());
            self.draft.common(delta);
            for call in calls_in(delta) {
                has_content = true;
                self.call(call);
            }
        }
        self.draft.text.push_str(&text);
        Ok(has_content.then(|| self.thinking.show(&text)))
    }

    fn is_complete(&self) -> bool {
        self.done || self.draft.finished
    }

    fn finish(self: Box<Self>) -> Reply {
        self.draft.finish()
    }
}

impl Stream {
    /// Takes a piece of a call. It continues an earlier call when it carries the same index and neither a new id nor a new
    /// name: some hosts leave the index out, others send every call under 0.
    fn call(&mut self, piece: &Value) {
        let index = piece.get("index").and_then(Value::as_u64);
        let new = read_call(piece);
        let at = match index {
            Some(_) => self.slots.iter().rposition(|slot| *slot == index),
            // Without an index: the call of that id; without an id, the last call.
            None if new.id.is_empty() => self.slots.len().checked_sub(1),
            None => self.draft.calls.iter().rposition(|c| c.id == new.id),
        };
        if let Some(at) = at.filter(|at| continues(&self.draft.calls[*at], &new)) {
            let call = &mut self.draft.calls[at];
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
            self.draft.calls.push(new);
        }
    }
}

/// Hides `<think>…</think>` at the beginning of a streamed reply.
#[derive(Default)]
struct ThinkFilter {
    held: String,
    past: bool,
}

impl ThinkFilter {
    /// Takes the next text and returns what can be shown now.
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
            let mut thinking = ThinkFilter::default();
            pieces.iter().map(|piece| thinking.show(piece)).collect::<String>()
        };
        assert_eq!(shown(&["<th", "ink>a", "b</thi", "nk>\n\n", "answer", " more"]), "answer more");
        assert_eq!(shown(&["<", "3 you"]), "<3 you");
        assert_eq!(shown(&["hello"]), "hello");
    }
}
