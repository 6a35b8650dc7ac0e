//! Reads replies of OpenAI-compatible hosts, in all the shapes they come in.
//!
//! Reads untyped JSON leniently: hosts send content as text or as parts, arguments as text or as objects, numbers as text,
//! and leave out what they please.

use serde_json::{Map, Value};

use crate::message::{Reply, Stop, ToolCall, Usage};

/// The fields of reasoning; the first that has text counts.
pub(super) const REASONING: [&str; 2] = ["reasoning_content", "reasoning"];

/// Fields of an assistant message that go back to the vendor unchanged.
pub(super) const ECHOED: [&str; 2] = ["reasoning_details", "thinking_blocks"];

/// Reads a whole response body; `Err` holds the error object in its place.
pub(super) fn read(body: &Value) -> Result<Reply, Value> {
    // Some gateways wrap the answer: {"success":true,"data":{...}}.
    let body = body.get("data").filter(|d| d.get("choices").is_some()).unwrap_or(body);
    if let Some(error) = error_in(body) {
        return Err(error);
    }
    let mut draft = Draft::default();
    let choices = body.get("choices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if choices.is_empty() {
        let text = body.get("output_text").or_else(|| body.get("content")).map(text_of).unwrap_or_default();
        if text.is_empty() {
            return Err(Value::String("the answer has no choices".to_owned()));
        }
        draft.text = text;
    }
    // Claude behind a gateway: text in the first choice, calls in the second.
    for choice in choices {
        draft.finish_reason(choice);
        let Some(message) = choice.get("message") else { continue };
        draft.text.push_str(&message.get("content").map(text_of).unwrap_or_default());
        draft.common(message);
        draft.calls.extend(calls_in(message).map(read_call));
    }
    draft.usage(body);
    Ok(draft.finish())
}

/// The calls of a message or a delta; `function_call` is the legacy form.
pub(super) fn calls_in(message: &Value) -> impl Iterator<Item = &Value> {
    let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    calls.chain(message.get("function_call").filter(|call| call.is_object()))
}

/// The error that a body holds in place of a reply.
pub(super) fn error_in(body: &Value) -> Option<Value> {
    if let Some(error) = body.get("error").filter(|e| !e.is_null()) {
        return Some(error.clone());
    }
    let choice = body.get("choices")?.get(0)?;
    if choice.get("finish_reason")?.as_str()? == "error" {
        return Some(choice.get("error").cloned().unwrap_or_else(|| "the model failed".into()));
    }
    None
}

/// A reply in the making, whole or streamed.
#[derive(Default)]
pub(super) struct Draft {
    pub text: String,
    reasoning: String,
    reasoning_field: Option<&'static str>,
    refusal: String,
    pub calls: Vec<ToolCall>,
    stop: Stop,
    /// The host has given a reason to finish.
    pub finished: bool,
    usage: Usage,
    extra: Map<String, Value>,
}

impl Draft {
    /// Reads what a message and a delta have in common: reasoning, refusal, vendor fields.
    pub(super) fn common(&mut self, message: &Value) {
        for name in REASONING {
            let text = message.get(name).map(text_of).unwrap_or_default();
            // Some hosts send the same thought in both fields.
            if !text.is_empty() && self.reasoning_field.is_none_or(|field| field == name) {
                self.reasoning_field = Some(name);
                self.reasoning.push_str(&text);
            }
        }
        if let Some(parts) = message.get("content").and_then(Value::as_array) {
            for thought in parts.iter().filter_map(|p| p.get("thinking")) {
                self.reasoning.push_str(&text_of(thought));
            }
        }
        if let Some(refusal) = message.get("refusal").and_then(Value::as_str) {
            self.refusal.push_str(refusal);
        }
        for name in ECHOED {
            match (message.get(name), self.extra.get_mut(name)) {
                (Some(Value::Array(more)), Some(Value::Array(have))) => have.extend(more.iter().cloned()),
                (Some(value), None) if !value.is_null() => {
                    self.extra.insert(name.to_owned(), value.clone());
                }
                _ => {}
            }
        }
    }

    /// Vendors have some twenty reasons; it matters only whether calls may run.
    pub(super) fn finish_reason(&mut self, choice: &Value) {
        let Some(reason) = choice.get("finish_reason").and_then(Value::as_str).filter(|r| !r.is_empty()) else {
            return;
        };
        self.finished = true;
        self.stop = match reason {
            "length" | "max_tokens" | "model_context_window_exceeded" => Stop::Length,
            "content_filter" | "refusal" | "sensitive" => Stop::Refused,
            _ => self.stop,
        };
    }

    /// Usage stands at the top or, in Moonshot's streams, in the choice.
    pub(super) fn usage(&mut self, body: &Value) {
        let usage = body.get("usage").filter(|u| u.is_object());
        let Some(usage) = usage.or_else(|| body.get("choices")?.get(0)?.get("usage").filter(|u| u.is_object())) else {
            return;
        };
        let n = |name: &str| usage.get(name).and_then(count);
        self.usage = Usage {
            prompt_tokens: n("prompt_tokens").or_else(|| n("input_tokens")).unwrap_or(0),
            completion_tokens: n("completion_tokens").or_else(|| n("output_tokens")).unwrap_or(0),
            cached_tokens: usage
                .get("prompt_tokens_details")
                .and_then(|d| d.get("cached_tokens"))
                .and_then(count)
                .or_else(|| n("cached_tokens"))
                .or_else(|| n("prompt_cache_hit_tokens"))
                .unwrap_or(0),
        };
    }

    pub(super) fn finish(mut self) -> Reply {
        let (text, thoughts) = split_thinking(&self.text);
        self.text = text;
        if self.reasoning.is_empty() {
            self.reasoning = thoughts;
        }
        if self.calls.is_empty() {
            take_written_calls(&mut self.text, &mut self.calls);
        }
        for marker in ["<eom>", "<|eom|>", "<|im_end|>", "<|eot_id|>"] {
            if let Some(cut) = self.text.trim_end().strip_suffix(marker) {
                self.text = cut.to_owned();
            }
        }
        if self.text.trim().is_empty() && !self.refusal.is_empty() {
            self.text = std::mem::take(&mut self.refusal);
            self.stop = Stop::Refused;
        }
        if let Some(field) = self.reasoning_field {
            // Some vendors want the reasoning back under the name they used.
            self.extra.insert("reasoning_field".to_owned(), field.into());
        }
        Reply {
            text: self.text,
            reasoning: self.reasoning,
            calls: tidy_calls(self.calls),
            stop: self.stop,
            usage: self.usage,
            partial: false,
            extra: self.extra,
        }
    }
}

pub(super) fn string(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A count, written as a number of either kind or as text. Negative counts become 0.
pub(super) fn count(v: &Value) -> Option<u64> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // casts to int saturate
    v.as_u64().or_else(|| v.as_f64().map(|f| f.max(0.0) as u64)).or_else(|| v.as_str()?.trim().parse().ok())
}

/// A text, or parts: `[{"type":"text","text":"..."}]`.
pub(super) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(|p| p.get("text").unwrap_or(p)).map(text_of).collect(),
        _ => String::new(),
    }
}

/// Reads a call. Its name and arguments stand in `function` or at the top; some hosts say `parameters`.
pub(super) fn read_call(call: &Value) -> ToolCall {
    let function = call.get("function").filter(|f| f.is_object()).unwrap_or(call);
    let arguments = function.get("arguments").or_else(|| function.get("parameters")).or_else(|| call.get("arguments"));
    let mut extra = Map::new();
    for (from, name) in [(call, "extra_content"), (function, "thought_signature"), (call, "thought_signature")] {
        if let Some(value) = from.get(name).filter(|v| !v.is_null()) {
            extra.insert(name.to_owned(), value.clone());
        }
    }
    ToolCall {
        id: string(call, "id"),
        name: string(function, "name"),
        arguments: match arguments {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        },
        extra,
    }
}

/// Drops calls without a name, and the decorations of names (`functions.exec`) that models learned elsewhere.
pub(super) fn tidy_calls(mut calls: Vec<ToolCall>) -> Vec<ToolCall> {
    for call in &mut calls {
        let name = call.name.trim();
        let prefixes = ["default_api:", "default_api.", "functions.", "functions:"];
        call.name = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name).to_owned();
        if matches!(call.arguments.trim(), "" | "null" | "\"\"") {
            call.arguments = "{}".to_owned();
        }
    }
    calls.retain(|call| !call.name.is_empty());
    calls
}

/// Splits `<think>…</think>` from the answer. An unclosed tag runs to the end; a lone closing tag ends thinking that began
/// the text, because some servers cut the opening tag off.
fn split_thinking(text: &str) -> (String, String) {
    let start = text.trim_start();
    if let Some(rest) = start.strip_prefix("<think>") {
        return match rest.split_once("</think>") {
            Some((thoughts, answer)) => (answer.trim_start().to_owned(), thoughts.trim().to_owned()),
            None => (String::new(), rest.trim().to_owned()),
        };
    }
    match text.split_once("</think>") {
        Some((thoughts, answer)) if !thoughts.contains("<think>") && !thoughts.contains("```") => {
            (answer.trim_start().to_owned(), thoughts.trim().to_owned())
        }
        _ => (text.to_owned(), String::new()),
    }
}

/// Takes calls out of the text: `<tool_call>{"name":…,"arguments":…}</tool_call>`, as small local models write them when the
/// server does not parse them.
fn take_written_calls(text: &mut String, calls: &mut Vec<ToolCall>) {
    const OPEN: &str = "<tool_call>";
    const CLOSE: &str = "</tool_call>";
    if !text.trim_start().starts_with(OPEN) && !text.contains(&format!("\n{OPEN}")) {
        return;
    }
    let mut rest = text.as_str();
    let mut kept = String::new();
    while let Some((before, after)) = rest.split_once(OPEN) {
        let (inner, after) = after.split_once(CLOSE).unwrap_or((after, ""));
        let Ok(call) = serde_json::from_str::<Value>(inner.trim()) else { return };
        calls.push(read_call(&call));
        kept.push_str(before);
        rest = after;
    }
    kept.push_str(rest);
    *text = kept.trim().to_owned();
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message(message: &Value) -> Reply {
        read(&json!({"choices": [{"message": message, "finish_reason": "stop"}]})).unwrap()
    }

    #[test]
    fn content_comes_in_many_shapes() {
        let parts = json!([{"type": "thinking", "thinking": [{"text": "hm"}]}, {"type": "text", "text": "b"}]);
        for (content, text, reasoning) in [
            (json!({"content": "a"}), "a", ""),
            (json!({"content": null}), "", ""),
            (json!({}), "", ""),
            (json!({"content": parts}), "b", "hm"),
            (json!({"content": null, "refusal": "no"}), "no", ""),
            (json!({"content": "a", "reasoning": "x", "reasoning_content": "x"}), "a", "x"),
            (json!({"content": "<think>x</think>\n\na"}), "a", "x"),
            (json!({"content": "x</think>a"}), "a", "x"),
            (json!({"content": "<think>never closed"}), "", "never closed"),
            (json!({"content": "a<|eom|>"}), "a", ""),
        ] {
            let reply = message(&content);
            assert_eq!((reply.text.as_str(), reply.reasoning.as_str()), (text, reasoning), "{content}");
        }
    }

    #[test]
    fn bodies_without_an_answer_are_errors_and_wrapped_ones_are_not() {
        assert!(read(&json!({"choices": []})).is_err());
        assert!(read(&json!({"choices": null})).is_err());
        assert!(read(&json!({})).is_err());
        assert!(read(&json!({"error": {"message": "x"}})).is_err());
        assert!(read(&json!({"choices": [{"finish_reason": "error", "error": {"code": 429}}]})).is_err());
        assert_eq!(
            read(&json!({"success": true, "data": {"choices": [{"message": {"content": "a"}}]}})).unwrap().text,
            "a"
        );
        assert_eq!(read(&json!({"output_text": "a"})).unwrap().text, "a");
    }

    #[test]
    fn calls_come_in_many_shapes_and_leave_in_one() {
        for (call, name, arguments) in [
            (json!({"id": "x", "function": {"name": "exec", "arguments": "{\"a\":1}"}}), "exec", "{\"a\":1}"),
            (json!({"id": "x", "function": {"name": "exec", "arguments": {"a": 1}}}), "exec", "{\"a\":1}"),
            (json!({"id": "x", "function": {"name": "exec", "parameters": {"a": 1}}}), "exec", "{\"a\":1}"),
            (json!({"id": "x", "name": "exec", "arguments": "{}"}), "exec", "{}"),
            (json!({"function": {"name": "default_api:exec", "arguments": null}}), "exec", "{}"),
            (json!({"function": {"name": "functions.exec", "arguments": "  "}}), "exec", "{}"),
        ] {
            let reply = message(&json!({"content": null, "tool_calls": [call]}));
            assert_eq!((reply.calls[0].name.as_str(), reply.calls[0].arguments.as_str()), (name, arguments), "{call}");
        }
        assert!(message(&json!({"tool_calls": [{"id": "x", "function": {"name": null}}]})).calls.is_empty());
    }

    #[test]
    fn calls_in_another_choice_or_written_as_text_are_found() {
        let call = json!({"id": "x", "function": {"name": "exec", "arguments": "{}"}});
        let reply =
            read(&json!({"choices": [{"message": {"content": "a"}}, {"message": {"tool_calls": [call]}}]})).unwrap();
        assert_eq!((reply.text.as_str(), reply.calls.len()), ("a", 1));
        let reply =
            message(&json!({"content": "ok\n<tool_call>\n{\"name\": \"exec\", \"arguments\": {}}\n</tool_call>"}));
        assert_eq!((reply.text.as_str(), reply.calls[0].name.as_str()), ("ok", "exec"));
        let reply = message(&json!({"content": "write <tool_call> like this"}));
        assert!(reply.calls.is_empty());
    }

    #[test]
    fn reasons_to_stop_decide_whether_calls_may_run() {
        for (reason, stop) in [
            ("stop", Stop::Done),
            ("tool_calls", Stop::Done),
            ("weird", Stop::Done),
            ("length", Stop::Length),
            ("content_filter", Stop::Refused),
        ] {
            let body = json!({"choices": [{"message": {"content": "a"}, "finish_reason": reason}]});
            assert_eq!(read(&body).unwrap().stop, stop, "{reason}");
        }
    }

    #[test]
    fn usage_is_counted_in_every_dialect() {
        let usage =
            |usage: Value| read(&json!({"choices": [{"message": {"content": "a"}}], "usage": usage})).unwrap().usage;
        let want = Usage { prompt_tokens: 5, completion_tokens: 2, cached_tokens: 3 };
        let openai = json!({"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}});
        assert_eq!(usage(openai), want);
        assert_eq!(usage(json!({"prompt_tokens": 5.0, "completion_tokens": "2", "prompt_cache_hit_tokens": 3})), want);
        assert_eq!(usage(Value::Null), Usage::default());
        assert_eq!(usage(json!({"prompt_tokens": -1})), Usage::default());
    }

    #[test]
    fn vendor_fields_come_along() {
        let signed =
            json!({"id": "x", "extra_content": {"google": {"thought_signature": "s"}}, "function": {"name": "exec"}});
        let reply =
            message(&json!({"tool_calls": [signed], "reasoning_details": [{"a": 1}], "reasoning_content": "r"}));
        assert_eq!(reply.calls[0].extra["extra_content"]["google"]["thought_signature"], "s");
        assert_eq!(reply.extra["reasoning_details"][0]["a"], 1);
        assert_eq!(reply.extra["reasoning_field"], "reasoning_content");
    }
}
