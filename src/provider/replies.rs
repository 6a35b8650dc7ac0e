//! Reads replies of OpenAI-compatible hosts, in all the shapes they come in.
//!
//! Reads untyped JSON leniently: hosts send content as text or as parts, arguments as text or as objects, numbers as text,
//! and leave out what they please.

use serde_json::{Map, Value};

use crate::message::ToolCall;

/// The fields of reasoning; the first that has text counts.
pub(super) const REASONING: [&str; 2] = ["reasoning_content", "reasoning"];

/// The name in [`Reply::extra`] of the field that held the reasoning.
pub(super) const REASONING_FIELD: &str = "reasoning_field";

/// Fields of an assistant message that go back to the vendor unchanged.
pub(super) const ECHOED: [&str; 2] = ["reasoning_details", "thinking_blocks"];

/// The calls of a message or a delta; `function_call` is the legacy form.
pub(super) fn calls_in(message: &Value) -> impl Iterator<Item = &Value> {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    calls.chain(message.get("function_call").filter(|call| call.is_object()))
}

/// The error that a body holds in place of a reply.
pub(super) fn error_in(body: &Value) -> Option<Value> {
    if !body["error"].is_null() {
        return Some(body["error"].clone());
    }
    let choice = &body["choices"][0];
    let error = || choice.get("error").cloned().unwrap_or_else(|| "the model failed".into());
    (choice["finish_reason"] == "error").then(error)
}

pub(super) fn string(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
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
    let arguments = [&function["arguments"], &function["parameters"], &call["arguments"]];
    let mut extra = Map::new();
    for (from, name) in [(call, "extra_content"), (function, "thought_signature"), (call, "thought_signature")] {
        if let Some(value) = from.get(name).filter(|v| !v.is_null()) {
            extra.insert(name.to_owned(), value.clone());
        }
    }
    ToolCall {
        id: string(call, "id"),
        name: string(function, "name"),
        arguments: match arguments.into_iter().find(|arguments| !arguments.is_null()) {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        },
        extra,
    }
}

/// Drops calls without a name.
pub(super) fn tidy_calls(calls: &mut Vec<ToolCall>) {
    for call in calls.iter_mut() {
        if matches!(call.arguments.trim(), "" | "null" | "\"\"") {
            call.arguments = "{}".to_owned();
        }
    }
    calls.retain(|call| !call.name.trim().is_empty());
}

/// Splits `<think>…</think>` from the answer. An unclosed tag runs to the end; a lone closing tag ends thinking that began
/// the text, because some servers cut the opening tag off.
pub(super) fn split_thinking(text: &str) -> (String, String) {
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
pub(super) fn take_written_calls(text: &mut String, calls: &mut Vec<ToolCall>) {
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
    use crate::message::{Reply, Stop, Usage};
    use crate::provider::dialect::ReplyReader;
    use crate::provider::stream::Stream;
    use serde_json::json;

    /// Reads a whole body.
    fn read(body: &Value) -> Option<Reply> {
        let mut stream = Box::<Stream>::default();
        let content = stream.event(&body.to_string()).ok()?;
        (content.is_some() || stream.is_complete()).then(|| stream.finish())
    }

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
        assert!(read(&json!({"choices": []})).is_none());
        assert!(read(&json!({"choices": null})).is_none());
        assert!(read(&json!({})).is_none());
        assert!(read(&json!({"error": {"message": "x"}})).is_none());
        assert!(read(&json!({"choices": [{"finish_reason": "error", "error": {"code": 429}}]})).is_none());
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
            (json!({"function": {"name": "exec", "arguments": null}}), "exec", "{}"),
            (json!({"function": {"name": "exec", "arguments": "  "}}), "exec", "{}"),
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
