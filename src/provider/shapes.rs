//! Reads replies of OpenAI-compatible hosts, in all the shapes they come in.
//!
//! Reads untyped JSON leniently: hosts send content as text or as parts, arguments as text or as objects, numbers as text,
//! and leave out what they please.

use serde_json::{Map, Value};

use crate::message::{Stop, ToolCall, Usage};

/// Begins thoughts before an answer.
pub(super) const THINK: &str = "<think>";

/// The fields of reasoning; the first that has text counts.
pub(super) const REASONING: [&str; 2] = ["reasoning_content", "reasoning"];

/// The name in [`Reply::extra`] of the field that held the reasoning.
pub(super) const REASONING_FIELD: &str = "reasoning_field";

/// Thoughts of Anthropic's models, some of them signed.
pub(super) const THOUGHTS: &str = "thinking_blocks";

/// Fields of an assistant message that go back to the vendor unchanged.
pub(super) const ECHOED: [&str; 2] = ["reasoning_details", THOUGHTS];

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
    let error = || {
        choice
            .get("error")
            .cloned()
            .unwrap_or_else(|| "the model failed".into())
    };
    (choice["finish_reason"] == "error").then(error)
}

pub(super) fn string(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

/// A count, written as a number of either kind or as text. Negative counts become 0.
fn count(v: &Value) -> Option<u64> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // casts to int saturate
    v.as_u64()
        .or_else(|| v.as_f64().map(|f| f.max(0.0) as u64))
        .or_else(|| v.as_str()?.trim().parse().ok())
}

/// Takes over what a host counts, by any of its names; what it leaves out stays.
pub(super) fn count_usage(usage: &mut Usage, told: &Value) {
    let n = |name: &str| told.pointer(&format!("/{name}")).and_then(count);
    let prompt = n("prompt_tokens").or_else(|| {
        // Anthropic's leave out what was read from the cache or written to it; ours counts all.
        let apart = ["cache_read_input_tokens", "cache_creation_input_tokens"]
            .into_iter()
            .filter_map(n);
        Some(apart.fold(n("input_tokens")?, u64::saturating_add))
    });
    let names = [
        "prompt_tokens_details/cached_tokens",
        "cached_tokens",
        "prompt_cache_hit_tokens",
        "cache_read_input_tokens",
    ];
    let cached = names.into_iter().find_map(n);
    *usage = Usage {
        prompt_tokens: prompt.unwrap_or(usage.prompt_tokens),
        completion_tokens: n("completion_tokens")
            .or(n("output_tokens"))
            .unwrap_or(usage.completion_tokens),
        cached_tokens: cached.unwrap_or(usage.cached_tokens),
    };
}

/// Vendors have some twenty reasons; it matters only whether calls may run.
pub(super) fn stop_of(reason: &str) -> Stop {
    match reason {
        "length" | "max_tokens" | "model_context_window_exceeded" => Stop::Length,
        "content_filter" | "refusal" | "sensitive" => Stop::Refused,
        _ => Stop::Done,
    }
}

/// Why a host refused a reply, in its own words as far as it gives any.
pub(super) fn refusal_in(reason: &str, choice: &Value) -> String {
    let explanation = choice["stop_details"]["explanation"].as_str();
    if let Some(explanation) = explanation.filter(|text| !text.trim().is_empty()) {
        return format!("{reason}: {explanation}");
    }
    let results = choice["content_filter_results"].as_object();
    let categories = results.into_iter().flatten();
    let filtered: Vec<&str> = categories
        .filter(|(_, result)| result["filtered"] == true)
        .map(|(category, _)| category.as_str())
        .collect();
    if filtered.is_empty() {
        return reason.to_owned();
    }
    format!("{reason}: {}", filtered.join(", "))
}

/// A text, or parts: `[{"type":"text","text":"..."}]`.
pub(super) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .map(|p| p.get("text").unwrap_or(p))
            .map(text_of)
            .collect(),
        _ => String::new(),
    }
}

/// Reads a call. Its name and arguments stand in `function` or at the top; some hosts say `parameters`.
pub(super) fn read_call(call: &Value) -> ToolCall {
    let function = call
        .get("function")
        .filter(|f| f.is_object())
        .unwrap_or(call);
    let arguments = [
        &function["arguments"],
        &function["parameters"],
        &call["arguments"],
    ];
    let mut extra = Map::new();
    for (from, name) in [
        (call, "extra_content"),
        (function, "thought_signature"),
        (call, "thought_signature"),
    ] {
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

/// Joins signed thoughts that came in pieces. A vendor refuses those without a signature.
pub(super) fn join_thoughts(extra: &mut Map<String, Value>) {
    let Some(Value::Array(pieces)) = extra.remove(THOUGHTS) else {
        return;
    };
    let mut blocks: Vec<Value> = Vec::new();
    for piece in pieces {
        match blocks
            .last_mut()
            .filter(|last| last["type"] == "thinking" && string(last, "signature").is_empty())
        {
            Some(last) if piece["type"] == "thinking" => {
                for name in ["thinking", "signature"] {
                    last[name] = (string(last, name) + &string(&piece, name)).into();
                }
            }
            _ => blocks.push(piece),
        }
    }
    blocks.retain(|block| block["type"] != "thinking" || !string(block, "signature").is_empty());
    if !blocks.is_empty() {
        extra.insert(THOUGHTS.to_owned(), blocks.into());
    }
}

/// Splits `<think>…</think>` from the answer. An unclosed tag runs to the end; a lone closing tag ends thinking that began
/// the text, because some servers cut the opening tag off.
pub(super) fn split_thinking(text: &str) -> (&str, &str) {
    const CLOSE: &str = "</think>";
    if let Some(rest) = text.trim_start().strip_prefix(THINK) {
        let (thoughts, answer) = rest.split_once(CLOSE).unwrap_or((rest, ""));
        return (answer.trim_start(), thoughts.trim());
    }
    match text.split_once(CLOSE) {
        Some((thoughts, answer)) if !thoughts.contains(THINK) && !thoughts.contains("```") => {
            (answer.trim_start(), thoughts.trim())
        }
        _ => (text, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Reply;
    use crate::provider::openai::READING;
    use crate::provider::reply::ReplyBuilder;
    use serde_json::json;

    /// Reads a whole body.
    fn read(body: &Value) -> Option<Reply> {
        let mut stream = ReplyBuilder::new(READING, &[]);
        let content = stream.event(&body.to_string()).ok()?;
        (content.is_some() || stream.is_complete()).then(|| stream.finish().unwrap().0)
    }

    fn message(message: &Value) -> Reply {
        read(&json!({"choices": [{"message": message, "finish_reason": "stop"}]})).unwrap()
    }

    #[test]
    fn signed_thoughts_that_come_in_pieces_are_joined() {
        let thought = |thinking: &str, signature: &str| json!({"type": "thinking", "thinking": thinking, "signature": signature});
        let hidden = json!({"type": "redacted_thinking", "data": "d"});
        let pieces = [
            thought("a", ""),
            thought("b", "s"),
            hidden.clone(),
            thought("unsigned", ""),
        ];
        let reply = message(&json!({"content": "x", "thinking_blocks": pieces}));
        assert_eq!(
            reply.extra["thinking_blocks"],
            json!([thought("ab", "s"), hidden])
        );
    }

    #[test]
    fn a_tag_in_the_middle_is_text() {
        assert_eq!(
            message(&json!({"content": "write <tool_call> like this"})).calls,
            []
        );
        assert_eq!(message(&json!({"content": "a<|eom|>"})).text, "a");
    }
}
