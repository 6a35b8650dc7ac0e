//! Calls in the text of an answer, as small local models write them when their server does not parse them.
//!
//! A text is read as calls only if it consists of calls in a few common formats and each names an offered tool, because an
//! answer may be about calls. Any other mark of a call is an error, because it is unreadable for people.

use serde_json::Value;

use super::values::read_call;
use super::{ToolOffer, says};
use crate::json::{parse_json, refuse_more_values};
use crate::message::ToolCall;

const TOOL_CALL: &str = "<tool_call>";
const FUNCTION: &str = "<function=";
const FENCE: &str = "```";
/// Language tags of code blocks with JSON.
const FENCED: [&str; 2] = ["", "json"];
/// First fields of an object that is a call.
const FIELDS: &str =
    "name | arguments | parameters | function | type | id | tool_name | tool_calls";
/// Prefixes that models add to the name of a tool.
const NAMESPACES: [&str; 2] = ["default_api.", "functions."];
/// Starts of calls that the server should have parsed. One that is not listed here is text.
const MARKS: [&str; 29] = [
    TOOL_CALL,
    FUNCTION,
    "```tool_",
    "<tool_code>",
    "<tools>",
    "<tool_calls>",
    "<function_call>",
    "<function_calls>",
    "<longcat_tool_call>",
    "<seed:tool_call>",
    "[TOOL_REQUEST]",
    "<invoke",
    "<minimax:tool_call>",
    "[TOOL_CALLS]",
    "functools[",
    "<|python_tag|>",
    "<|tool",
    "<|channel|>",
    "<|start|>",
    "<｜tool",
    "<｜DSML",
    "assistant<|channel|>",
    "<start_function_call>",
    "<|python_start|>",
    "<toolcall>",
    "<TOOLCALL>",
    "<|action_start|>",
    "✿FUNCTION✿",
    "to=functions.",
];
/// Notations of calls that stand in no prose, of GLM, Qwen, Claude, Phi, Mistral, Kimi, DeepSeek and gpt-oss.
const NOTATIONS: [&str; 11] = [
    "<arg_key>",
    "<parameter=",
    "<invoke name=",
    "functools[{",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<|tool",
    "<|call",
    "<|channel|>",
    "<｜tool",
    " to=functions.",
];
/// Maximum number of values in calls.
const MAX_VALUES: usize = 100_000;

/// Classification of a text.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    Text,
    Calls(Vec<ToolCall>),
    /// A call in a format that the server should have parsed.
    Unparsed,
}

/// Classifies the text of an answer to a request with these tools.
pub(super) fn read(text: &str, offers: &[ToolOffer]) -> Found {
    let text = text.trim();
    if offers.is_empty() || refuse_more_values(text.as_bytes(), MAX_VALUES).is_err() {
        return Found::Text;
    }
    match offered_calls(text, offers) {
        Some(calls) => Found::Calls(calls),
        None if opens_call(text) || has_notation(text) => Found::Unparsed,
        None => Found::Text,
    }
}

/// Returns the part of a text that begins with a tag of a call, or the whole text without one.
pub(super) fn from_tag(text: &str) -> &str {
    let places = [TOOL_CALL, FUNCTION].map(|tag| text.find(tag));
    &text[places.into_iter().flatten().min().unwrap_or(0)..]
}

/// Returns the call in a text that was cut off within it; `None` if the tool is unclear.
pub(super) fn cut_call(text: &str, offers: &[ToolOffer]) -> Option<ToolCall> {
    let named = offers.iter().filter(|offer| text.contains(&*offer.name));
    let called = named.min_by_key(|offer| text.find(&*offer.name))?;
    opens_call(text.trim_start()).then(|| ToolCall {
        name: called.name.to_string(),
        arguments: text.to_owned(),
        ..ToolCall::default()
    })
}

/// Whether a text with this start may turn out to be calls, or starts with a mark of a call.
pub(super) fn may_begin(text: &str) -> bool {
    let text = text.trim_start();
    if may_begin_json(text) || opens_call(text) || MARKS.iter().any(|mark| mark.starts_with(text)) {
        return true;
    }
    let Some(fenced) = text.strip_prefix(FENCE) else {
        return FENCE.starts_with(text);
    };
    match fenced.split_once('\n') {
        Some((language, inner)) => FENCED.contains(&language.trim()) && may_begin_json(inner),
        None => FENCED
            .iter()
            .any(|language| language.starts_with(fenced.trim())),
    }
}

/// Strips a tool's name of a namespace, a number or a special token that the model added.
pub(super) fn plain_name(name: &str) -> &str {
    let name = name.split("<|").next().unwrap_or_default().trim();
    let mut plain = NAMESPACES
        .iter()
        .filter_map(|space| name.strip_prefix(space));
    let name = plain.next().unwrap_or(name);
    match name.rsplit_once(':') {
        Some((name, n)) if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => name,
    }
}

/// Whether thoughts end with a call, as they do if the server takes everything for thoughts.
pub(super) fn ends_thoughts(thoughts: &str) -> bool {
    let inner = thoughts.trim_end().strip_suffix('>');
    let tag = inner.and_then(|inner| inner.rsplit_once('<'));
    tag.is_some_and(|(_, tag)| says(tag, "tool | call | function | invoke"))
}

/// Returns the calls of a text that consists of calls only.
fn offered_calls(text: &str, offers: &[ToolOffer]) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        rest = group(rest, &mut calls)?.trim();
    }
    for call in &mut calls {
        let name = plain_name(&call.name);
        let offered = offers.iter().find(|offer| offer.name == name)?;
        call.name = offered.name.to_string();
    }
    (!calls.is_empty()).then_some(calls)
}

/// Whether a text starts with a mark of a call.
fn opens_call(text: &str) -> bool {
    MARKS.iter().any(|mark| text.starts_with(mark))
}

/// Whether a text has a notation of a call outside code.
fn has_notation(text: &str) -> bool {
    // Every second piece is in a code block or a code span.
    let prose = text.split(FENCE).step_by(2);
    let mut prose = prose.flat_map(|prose| prose.split('`').step_by(2));
    prose.any(|prose| NOTATIONS.iter().any(|notation| prose.contains(notation)))
}

/// Whether a text may start with a call as JSON.
fn may_begin_json(text: &str) -> bool {
    let text = text.trim_start();
    let text = text.strip_prefix('[').unwrap_or(text).trim_start();
    let Some(object) = text.strip_prefix('{') else {
        return text.is_empty();
    };
    let Some(field) = object.trim_start().strip_prefix('"') else {
        return object.trim().is_empty();
    };
    match field.split_once('"') {
        Some((field, _)) => FIELDS.split(" | ").any(|known| known == field),
        None => FIELDS.split(" | ").any(|known| known.starts_with(field)),
    }
}

/// Reads the leading calls, and returns the text after them.
fn group<'a>(text: &'a str, calls: &mut Vec<ToolCall>) -> Option<&'a str> {
    if let Some(text) = text.strip_prefix(TOOL_CALL) {
        let (inner, rest) = until(text, "</tool_call>");
        let call = read_call(&parse_json(inner.trim()).ok()?);
        calls.push(call);
        return Some(rest);
    }
    if let Some(text) = text.strip_prefix(FUNCTION) {
        // Groq's Llama forgets the bracket after the name, or writes another.
        let (name, text) = text.split_at(text.find(['>', '(', '{'])?);
        let (inner, rest) = until(text, "</function>");
        let inner = inner.trim_matches(|c: char| "()>".contains(c) || c.is_whitespace());
        calls.push(ToolCall {
            name: name.trim().to_owned(),
            arguments: parse_json(inner).ok()?.to_string(),
            ..ToolCall::default()
        });
        return Some(rest);
    }
    if let Some(text) = text.strip_prefix(FENCE) {
        let (inner, rest) = until(text, FENCE);
        let (_, inner) = inner.split_once('\n')?;
        let mut inner = inner.trim();
        while !inner.is_empty() {
            inner = json(inner, calls)?.trim();
        }
        return Some(rest);
    }
    json(text, calls)
}

/// Splits a text at a mark; a missing mark counts as the end.
fn until<'a>(text: &'a str, mark: &str) -> (&'a str, &'a str) {
    text.split_once(mark).unwrap_or((text, ""))
}

/// Reads `{"name":..,"arguments":{..}}`, or a list of such objects.
fn json<'a>(text: &'a str, calls: &mut Vec<ToolCall>) -> Option<&'a str> {
    let (value, rest) = value(text)?;
    let list = match value {
        Value::Array(list) => list,
        Value::Object(mut fields) => match fields.remove("tool_calls") {
            Some(Value::Array(list)) => list,
            _ => vec![Value::Object(fields)],
        },
        _ => return None,
    };
    for item in list {
        let function = item.get("function").filter(|function| function.is_object());
        let function = function.unwrap_or(&item);
        let has = |name: &str| function.get(name).is_some();
        // The user may have asked for the definition of a tool.
        let is_definition = has("description") || function["parameters"]["properties"].is_object();
        let has_arguments = has("arguments") || has("parameters");
        let call = read_call(&item);
        if is_definition || !has_arguments || !call.is_object() {
            return None;
        }
        calls.push(call);
    }
    Some(rest)
}

/// Reads a leading JSON value, and returns it with the text after it.
fn value(text: &str) -> Option<(Value, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    let end = values.byte_offset();
    Some((value, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers() -> Vec<ToolOffer> {
        let offer = |name: &'static str| ToolOffer {
            name: name.into(),
            description: "".into(),
            schema: "{}".into(),
        };
        vec![offer("read_file"), offer("list_dir")]
    }

    /// Names and arguments of the calls; `None` for text.
    fn calls(text: &str) -> Option<String> {
        match read(text, &offers()) {
            Found::Text => None,
            Found::Unparsed => Some("unparsed".to_owned()),
            Found::Calls(calls) => {
                let word = |call: &ToolCall| format!("{}{}", call.name, call.arguments);
                let words: Vec<String> = calls.iter().map(word).collect();
                Some(words.join(" "))
            }
        }
    }

    /// Formats that models write; one per file of the corpus.
    const FORMS: [&str; 6] = [
        include_str!("../../tests/corpus/calls/tool-call.txt"),
        include_str!("../../tests/corpus/calls/fenced.txt"),
        include_str!("../../tests/corpus/calls/bare.txt"),
        include_str!("../../tests/corpus/calls/array.txt"),
        include_str!("../../tests/corpus/calls/function.txt"),
        include_str!("../../tests/corpus/calls/parameters.txt"),
    ];

    /// Returns the texts of a file, one a line as JSON.
    fn texts(lines: &str) -> impl Iterator<Item = String> {
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
    }

    #[test]
    fn every_form_is_read_and_held_back() {
        for form in FORMS {
            let expected = r#"read_file{"path":"a.txt"}"#;
            assert_eq!(calls(form).as_deref(), Some(expected), "{form}");
            for (end, _) in form.char_indices() {
                assert!(may_begin(&form[..end]), "{:?}", &form[..end]);
            }
        }
    }

    #[test]
    fn unparsed_call_is_found_and_held_back() {
        for text in texts(include_str!("../../tests/corpus/wire/unparsed.jsonl")) {
            assert_eq!(calls(&text).as_deref(), Some("unparsed"), "{text}");
            for (end, _) in text.char_indices() {
                let begin = &text[..end];
                let is_prose = text.starts_with("I look") || text.contains("<|channel|>");
                assert!(is_prose || may_begin(begin), "{begin:?}");
            }
        }
    }

    #[test]
    fn call_at_the_end_of_thoughts_is_found() {
        for text in texts(include_str!(
            "../../tests/corpus/wire/thoughts-with-calls.jsonl"
        )) {
            assert!(ends_thoughts(&text), "{text}");
        }
        assert!(!ends_thoughts("I look at </b>"));
    }

    #[test]
    fn anything_else_stays_text() {
        for form in FORMS {
            let text = format!("I read it.\n{form}");
            assert_eq!(calls(&text), None, "{text}");
            assert_eq!(read(form, &[]), Found::Text);
        }
        for text in texts(include_str!("../../tests/corpus/wire/prose.jsonl")) {
            assert_eq!(calls(&text), None, "{text}");
        }
    }

    #[test]
    fn function_of_groq_is_read() {
        for text in [
            r#"<function=list_dir>{"depth":2}</function>"#,
            r#"<function=list_dir{"depth":2}</function>"#,
            r#"<function=list_dir({"depth":2})</function>"#,
            r#"<function=list_dir>{"depth":2}"#,
        ] {
            assert_eq!(
                calls(text).as_deref(),
                Some(r#"list_dir{"depth":2}"#),
                "{text}"
            );
        }
    }
}
