//! Calls that a model has written into its text, as small local models do when their server does not parse them.
//!
//! A text is read as calls only if all of it is calls in one of the common forms, and each names a tool that is offered: an
//! answer may well be about calls.

use serde_json::{Map, Value};

use super::ToolOffer;
use super::shapes::read_call;
use crate::message::ToolCall;
use crate::text::parse_json;

const TOOL_CALL: &str = "<tool_call>";
const FUNCTION: &str = "<function=";
const MISTRAL: &str = "[TOOL_CALLS]";
const LLAMA: &str = "<|python_tag|>";
const FENCE: &str = "```";
/// `DeepSeek`'s marks are written with a full-width bar and a low block.
const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const CALLS_END: &str = "<｜tool▁calls▁end｜>";

/// Marks with which a text of calls begins, apart from JSON and fences.
const MARKS: [&str; 6] = [TOOL_CALL, FUNCTION, MISTRAL, LLAMA, CALLS_BEGIN, CALL_BEGIN];
/// What models write at the end of a text, where their server leaves it.
pub(super) const ENDS: [&str; 6] = [
    "<eom>",
    "<|eom|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<｜end▁of▁sentence｜>",
];
/// The first fields of an object that is a call.
const FIELDS: [&str; 8] = [
    "name",
    "arguments",
    "parameters",
    "function",
    "type",
    "id",
    "tool_name",
    "tool_calls",
];
/// The words after a fence that may hold calls.
const LANGUAGES: [&str; 6] = ["", "json", "tool_code", "tool_call", "tool_calls", "python"];

/// What models write before the name of a tool.
const NAMESPACES: [&str; 3] = ["default_api.", "functions.", "tools."];

/// The calls that a text consists of; `None` if it is anything else.
pub(super) fn read(text: &str, offers: &[ToolOffer]) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = without_ends(text);
    if offers.is_empty() || !may_begin(rest) {
        return None;
    }
    while !rest.is_empty() {
        rest = without_ends(group(rest, &mut calls)?);
    }
    for call in &mut calls {
        let name = call.name.trim();
        let name = NAMESPACES
            .iter()
            .find_map(|space| name.strip_prefix(space))
            .unwrap_or(name);
        let offered = offers.iter().find(|offer| offer.name == name)?;
        call.name = offered.name.to_string();
    }
    (!calls.is_empty()).then_some(calls)
}

/// Whether a text that begins like this may yet turn out to be calls.
pub(super) fn may_begin(text: &str) -> bool {
    let text = text.trim_start();
    if MARKS.iter().any(|mark| is_prefix(text, mark)) {
        return true;
    }
    let Some(fenced) = text.strip_prefix(FENCE) else {
        return FENCE.starts_with(text) || may_begin_json(text);
    };
    let Some((language, inner)) = fenced.split_once('\n') else {
        return LANGUAGES
            .iter()
            .any(|language| language.starts_with(fenced.trim()));
    };
    match language.trim() {
        "tool_code" => true,
        "python" => may_begin_python(inner),
        language => LANGUAGES.contains(&language) && may_begin_json(inner),
    }
}

/// Whether one begins with the other.
fn is_prefix(one: &str, other: &str) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

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
        Some((field, _)) => FIELDS.contains(&field),
        None => FIELDS.iter().any(|known| known.starts_with(field)),
    }
}

/// In a block of Python, only calls of the tools' own module.
fn may_begin_python(text: &str) -> bool {
    let text = text.trim_start();
    is_prefix(text, "print(default_api.") || is_prefix(text, "default_api.")
}

fn without_ends(text: &str) -> &str {
    let mut text = text.trim();
    while let Some(cut) = ENDS.iter().find_map(|end| text.strip_suffix(end)) {
        text = cut.trim_end();
    }
    text
}

/// Reads what comes first, and returns what follows it.
fn group<'a>(text: &'a str, calls: &mut Vec<ToolCall>) -> Option<&'a str> {
    if let Some(text) = text.strip_prefix(TOOL_CALL) {
        let (inner, rest) = until(text, "</tool_call>");
        let inner = inner.trim();
        if inner.starts_with(FUNCTION) {
            let after = function(inner, calls)?;
            return after.trim().is_empty().then_some(rest);
        }
        calls.push(read_call(&parse_json(inner).ok().filter(Value::is_object)?));
        return Some(rest);
    }
    if text.starts_with(FUNCTION) {
        return function(text, calls);
    }
    if let Some(text) = text.strip_prefix(MISTRAL) {
        return mistral(text.trim_start(), calls);
    }
    if let Some(text) = text.strip_prefix(LLAMA) {
        return json(text, calls);
    }
    if let Some(text) = text.strip_prefix(CALLS_BEGIN) {
        return Some(text.trim_start());
    }
    if let Some(text) = text.strip_prefix(CALLS_END) {
        return Some(text);
    }
    if let Some(text) = text.strip_prefix(CALL_BEGIN) {
        let (inner, rest) = until(text, CALL_END);
        calls.push(deepseek(inner)?);
        return Some(rest);
    }
    if let Some(text) = text.strip_prefix(FENCE) {
        let (inner, rest) = until(text, FENCE);
        let (language, inner) = inner.split_once('\n')?;
        if let "tool_code" | "python" = language.trim() {
            python(inner.trim(), calls)?;
            return Some(rest);
        }
        let mut inner = inner.trim();
        while !inner.is_empty() {
            inner = json(inner, calls)?.trim();
        }
        return Some(rest);
    }
    json(text.strip_prefix(';').unwrap_or(text), calls)
}

/// The text before a mark and after it; a mark that is missing stands at the end.
fn until<'a>(text: &'a str, mark: &str) -> (&'a str, &'a str) {
    text.split_once(mark).unwrap_or((text, ""))
}

/// `{"name":..,"arguments":{..}}`, or a list of such.
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
        let has_arguments = ["arguments", "parameters"]
            .iter()
            .any(|name| function.get(name).is_some());
        // The description of a tool, which somebody has asked for.
        let is_definition = function.get("description").is_some()
            || function
                .get("parameters")
                .is_some_and(|parameters| parameters["properties"].is_object());
        if is_definition {
            return None;
        }
        let call = read_call(&item);
        if !has_arguments || !call.is_object() {
            return None;
        }
        calls.push(call);
    }
    Some(rest)
}

/// The JSON value at the beginning of a text, and what follows it.
fn value(text: &str) -> Option<(Value, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    let end = values.byte_offset();
    Some((value, &text[end..]))
}

fn call(name: &str, arguments: &Value) -> ToolCall {
    ToolCall {
        name: name.trim().to_owned(),
        arguments: arguments.to_string(),
        ..ToolCall::default()
    }
}

/// `<function=NAME>{..}</function>` of Llama, `<function=NAME><parameter=P>..</parameter></function>` of Qwen3-Coder.
fn function<'a>(text: &'a str, calls: &mut Vec<ToolCall>) -> Option<&'a str> {
    let (name, text) = text.strip_prefix(FUNCTION)?.split_once('>')?;
    let (inner, rest) = until(text, "</function>");
    let mut inner = inner.trim();
    if inner.starts_with('{') {
        calls.push(call(name, &parse_json(inner).ok()?));
        return Some(rest);
    }
    let mut arguments = Map::new();
    while !inner.is_empty() {
        let (parameter, text) = inner.strip_prefix("<parameter=")?.split_once('>')?;
        let (value, after) = until(text, "</parameter>");
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.insert(parameter.trim().to_owned(), value.into());
        inner = after.trim();
    }
    calls.push(call(name, &Value::Object(arguments)));
    Some(rest)
}

/// `[TOOL_CALLS] [{..}]`, and `[TOOL_CALLS]NAME[ARGS]{..}` of newer models.
fn mistral<'a>(text: &'a str, calls: &mut Vec<ToolCall>) -> Option<&'a str> {
    if text.starts_with(['[', '{']) {
        return json(text, calls);
    }
    let (name, arguments) = text.split_at(text.find('{')?);
    let name = name.split('[').next()?;
    let (arguments, rest) = value(arguments)?;
    calls.push(call(name, &arguments));
    Some(rest)
}

/// `function｜NAME` and a fence, or `NAME｜{..}`, with the separator for the bar.
fn deepseek(text: &str) -> Option<ToolCall> {
    let (first, second) = text.split_once(SEPARATOR)?;
    if second.trim_start().starts_with('{') {
        return Some(call(first, &parse_json(second.trim()).ok()?));
    }
    let (name, fenced) = second.split_once('\n')?;
    let json = fenced.trim().trim_start_matches(FENCE);
    let json = json.trim_start_matches("json").trim_end_matches(FENCE);
    Some(call(name, &parse_json(json.trim()).ok()?))
}

/// `NAME(KEY=VALUE, ..)`, a call a line, perhaps in `print(..)`, as Gemini and Gemma write it.
fn python(text: &str, calls: &mut Vec<ToolCall>) -> Option<()> {
    let mut python = Python { rest: text };
    while !python.rest.trim_start().is_empty() {
        let is_printed = python.takes("print(");
        calls.push(python.call()?);
        if is_printed && !python.takes(")") {
            return None;
        }
        python.takes(";");
    }
    Some(())
}

/// The literals of Python.
struct Python<'a> {
    rest: &'a str,
}

impl Python<'_> {
    fn takes(&mut self, what: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(what);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn name(&mut self) -> Option<String> {
        let text = self.rest.trim_start();
        let is_part = |c: char| c.is_alphanumeric() || "_.-".contains(c);
        let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then(|| name.to_owned())
    }

    fn call(&mut self) -> Option<ToolCall> {
        let name = self.name()?;
        if !self.takes("(") {
            return None;
        }
        let mut arguments = Map::new();
        while !self.takes(")") {
            let key = self.name()?;
            if !self.takes("=") {
                return None;
            }
            let value = self.literal(0)?;
            arguments.insert(key, value);
            self.takes(",");
        }
        Some(call(&name, &Value::Object(arguments)))
    }

    fn literal(&mut self, depth: u32) -> Option<Value> {
        const DEEPEST: u32 = 20;
        if depth > DEEPEST {
            return None;
        }
        for (word, value) in [
            ("True", Value::Bool(true)),
            ("False", Value::Bool(false)),
            ("None", Value::Null),
        ] {
            if self.takes(word) {
                return Some(value);
            }
        }
        if self.takes("[") {
            let mut list = Vec::new();
            while !self.takes("]") {
                list.push(self.literal(depth + 1)?);
                self.takes(",");
            }
            return Some(Value::Array(list));
        }
        if self.takes("{") {
            let mut fields = Map::new();
            while !self.takes("}") {
                let key = self.string()?;
                if !self.takes(":") {
                    return None;
                }
                fields.insert(key, self.literal(depth + 1)?);
                self.takes(",");
            }
            return Some(Value::Object(fields));
        }
        if self.rest.trim_start().starts_with(['"', '\'']) {
            return self.string().map(Value::String);
        }
        let text = self.rest.trim_start();
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"+-._".contains(c))?;
        let (number, rest) = text.split_at(end);
        self.rest = rest;
        parse_json(number).ok().filter(Value::is_number)
    }

    fn string(&mut self) -> Option<String> {
        let quote = ["\"\"\"", "'''", "\"", "'"]
            .into_iter()
            .find(|quote| self.takes(quote))?;
        let mut string = String::new();
        loop {
            if let Some(rest) = self.rest.strip_prefix(quote) {
                self.rest = rest;
                return Some(string);
            }
            let mut chars = self.rest.chars();
            match chars.next()? {
                '\\' => match chars.next()? {
                    'n' => string.push('\n'),
                    't' => string.push('\t'),
                    'r' => string.push('\r'),
                    '\n' => {}
                    c @ ('\\' | '"' | '\'') => string.push(c),
                    other => string.extend(['\\', other]),
                },
                c => string.push(c),
            }
            self.rest = chars.as_str();
        }
    }
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

    /// The names and arguments of the calls.
    fn calls(text: &str) -> Option<String> {
        let calls = read(text, &offers())?;
        let words: Vec<String> = calls
            .iter()
            .map(|call| format!("{}{}", call.name, call.arguments))
            .collect();
        Some(words.join(" "))
    }

    /// The forms that models write; every file of the corpus is one of them.
    const FORMS: [&str; 14] = [
        include_str!("../../tests/corpus/calls/tool-call.txt"),
        include_str!("../../tests/corpus/calls/fenced.txt"),
        include_str!("../../tests/corpus/calls/bare.txt"),
        include_str!("../../tests/corpus/calls/array.txt"),
        include_str!("../../tests/corpus/calls/function.txt"),
        include_str!("../../tests/corpus/calls/qwen-coder.txt"),
        include_str!("../../tests/corpus/calls/mistral.txt"),
        include_str!("../../tests/corpus/calls/mistral-args.txt"),
        include_str!("../../tests/corpus/calls/llama.txt"),
        include_str!("../../tests/corpus/calls/deepseek-r1.txt"),
        include_str!("../../tests/corpus/calls/deepseek-v3.txt"),
        include_str!("../../tests/corpus/calls/tool-code.txt"),
        include_str!("../../tests/corpus/calls/tool-code-print.txt"),
        include_str!("../../tests/corpus/calls/parameters.txt"),
    ];

    #[test]
    fn a_description_of_a_tool_is_no_call_of_it() {
        for text in [
            r#"{"name":"read_file","description":"Reads a file.","parameters":{"path":"a.txt"}}"#,
            r#"{"name":"read_file","parameters":{"type":"object","properties":{"path":{}}}}"#,
            r#"{"type":"function","function":{"name":"read_file","description":"Reads.","parameters":{}}}"#,
        ] {
            assert_eq!(calls(text), None, "{text}");
        }
    }

    #[test]
    fn a_namespace_of_tools_is_known_and_another_programs_name_is_not() {
        let call = |name: &str| format!(r#"{{"name":"{name}","arguments":{{}}}}"#);
        for name in [
            "functions.list_dir",
            "default_api.list_dir",
            "tools.list_dir",
        ] {
            assert_eq!(calls(&call(name)).as_deref(), Some("list_dir{}"), "{name}");
        }
        for name in ["fs.list_dir", "my.tools.list_dir", "list_dir.functions"] {
            assert_eq!(calls(&call(name)), None, "{name}");
        }
    }

    #[test]
    fn every_form_is_understood_and_held_back_from_its_first_byte() {
        for form in FORMS {
            let expected = r#"read_file{"path":"a.txt"}"#;
            assert_eq!(calls(form).as_deref(), Some(expected), "{form}");
            for (end, _) in form.char_indices() {
                assert!(may_begin(&form[..end]), "{:?}", &form[..end]);
            }
        }
    }

    #[test]
    fn anything_else_stays_text() {
        for form in FORMS {
            for text in [
                format!("I read it.\n{form}"),
                format!("{}\nThat is how.", form.trim_end()),
                form.replace("read_file", "remove_all"),
            ] {
                assert_eq!(calls(&text), None, "{text}");
            }
            assert!(read(form, &[]).is_none());
        }
        for text in [
            "",
            "hello",
            "{\"name\":\"read_file\"}",
            "{\"name\":\"read_file\",\"arguments\":\"no\"}",
            "{\"path\":\"a.txt\"}",
            "[]",
            "[1,2]",
            "```\nls\n```",
            "```json\n{\"a\":1}\n```",
            "```python\nprint(1)\n```",
            "<tool_call>",
            "<function=read_file>",
            "[TOOL_CALLS]",
            "[TOOL_CALLS]read_file",
            "<|python_tag|>read_file",
            "<｜tool▁calls▁begin｜>",
            "```tool_code\nread_file('a.txt')\n```",
        ] {
            let expected = (text == "<function=read_file>").then_some("read_file{}");
            assert_eq!(calls(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_a_call_is_not_held_back() {
        for text in [
            "H",
            "{\"result\"",
            "{\"names\"",
            "[1",
            "[link](x)",
            "```rust\n",
            "```json\n{\"x",
            "<b>",
            "``x",
        ] {
            assert!(!may_begin(text), "{text}");
        }
    }

    #[test]
    fn several_calls_and_every_literal_are_read() {
        let two = r#"read_file{"path":"a.txt"} list_dir{"depth":2}"#;
        for text in [
            r#"[{"name":"read_file","arguments":{"path":"a.txt"}},{"name":"list_dir","parameters":{"depth":2}}]"#,
            "<tool_call>{\"name\":\"read_file\",\"arguments\":{\"path\":\"a.txt\"}}</tool_call>\n<tool_call>{\"name\":\"list_dir\",\"arguments\":{\"depth\":2}}</tool_call>",
            r#"<|python_tag|>{"name":"read_file","parameters":{"path":"a.txt"}}; {"name":"list_dir","parameters":{"depth":2}}<|eom_id|>"#,
            "```tool_code\nread_file(path='a.txt')\nprint(default_api.list_dir(depth=2))\n```",
        ] {
            assert_eq!(calls(text).as_deref(), Some(two), "{text}");
        }
        let literals = "```tool_code\nread_file(a=[1, -2.5, 'x\\'y\\n'], b={\"k\": None}, c=True, d=\"\"\"q\"r\"\"\")\n```";
        assert_eq!(
            calls(literals).as_deref(),
            Some(r#"read_file{"a":[1,-2.5,"x'y\n"],"b":{"k":null},"c":true,"d":"q\"r"}"#)
        );
    }
}
