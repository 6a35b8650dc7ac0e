//! Parses the front matter of a SKILL.md, in a common subset of YAML.
//!
//! Maps and lists by indentation, lists and maps in brackets (JSON, or words separated by commas), quoted and plain strings,
//! strings of several lines (`|`, `>`, or only indented, which become one line), comments. Scalars are strings. Anchors, tags
//! and other features are read as text, so every input is accepted.

use serde_json::{Deserializer, Map, Value};

use crate::error::{Error, Result};
use crate::json::parse_json;

/// Maximum nesting depth of maps.
const MAX_DEPTH: usize = 8;

/// Returns the fields of the front matter, and the text after it (all text without front matter).
///
/// # Errors
/// Returns an error if the front matter has no end.
pub(super) fn split(text: &str) -> Result<(Map<String, Value>, &str)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let is_fence = |line: &str| line.trim_end() == "---";
    let mut at = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if number == 0 && !is_fence(line) {
            return Ok((Map::new(), text));
        }
        at += line.len();
        if number > 0 && is_fence(line) {
            let inner = &text[..at - line.len()];
            let lines: Vec<&str> = inner.lines().skip(1).collect();
            return Ok((map(&lines, MAX_DEPTH), &text[at..]));
        }
    }
    if text.is_empty() {
        return Ok((Map::new(), text));
    }
    let what = "the front matter of SKILL.md has no end: a line of --- is missing";
    Err(Error::failed(what))
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// Returns how many lines belong to the key above them: lines indented deeper than `own`, and blank ones. List items may have
/// the indentation of their key.
fn block_len(lines: &[&str], own: usize) -> usize {
    let is_item = |line: &str| indent(line) == own && line.trim_start().starts_with("- ");
    let belongs = |line: &&&str| line.trim().is_empty() || indent(line) > own || is_item(line);
    lines.iter().take_while(belongs).count()
}

fn map(lines: &[&str], depth: usize) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        at += 1;
        let trimmed = line.trim();
        let Some((key, rest)) = trimmed.split_once(':') else {
            continue;
        };
        if trimmed.starts_with('#') || !(rest.is_empty() || rest.starts_with(' ')) {
            continue;
        }
        let below = &lines[at..at + block_len(&lines[at..], indent(line))];
        at += below.len();
        let key = quoted(key.trim()).unwrap_or_else(|| key.trim().to_owned());
        fields.insert(key, value(rest.trim(), below, depth));
    }
    fields
}

/// Parses a value that starts on the line of its key and continues on the next lines.
fn value(inline: &str, below: &[&str], depth: usize) -> Value {
    let lines = || {
        below
            .iter()
            .map(|line| line.trim())
            .filter(|line| !line.is_empty())
    };
    let joined = || lines().fold(inline.to_owned(), |text, line| text + " " + line);
    match inline.chars().next() {
        Some('|' | '>') if inline.len() <= 3 => lines().collect::<Vec<_>>().join(" ").into(),
        Some('[' | '{') => in_brackets(&joined()),
        Some(c) if c != '#' => scalar(&joined()),
        _ if depth == 0 => Value::Null,
        _ => match lines().next() {
            None => Value::Null,
            Some(first) if first.starts_with(['[', '{']) => in_brackets(joined().trim_start()),
            Some(first) if first.starts_with("- ") => lines()
                .filter_map(|line| line.strip_prefix("- "))
                .map(scalar)
                .collect(),
            Some(_) => Value::Object(map(below, depth - 1)),
        },
    }
}

/// Parses a list or a map in brackets.
fn in_brackets(text: &str) -> Value {
    parse_json(text)
        .or_else(|_| parse_json(without_last_commas(text)))
        .unwrap_or_else(|_| unquoted_list(text))
}

/// Removes commas after last members, which YAML allows and JSON does not; also such a comma in a text.
fn without_last_commas(text: &str) -> String {
    let mut pieces = text.split(',');
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        if !piece.trim_start().starts_with([']', '}']) {
            out.push(',');
        }
        out.push_str(piece);
    }
    out
}

/// Parses a list in brackets whose words have no quotes. Unquoted maps are read as text.
fn unquoted_list(text: &str) -> Value {
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let Some(inner) = inner else {
        return scalar(text);
    };
    let words = inner.split(',').filter(|word| !word.trim().is_empty());
    words.map(scalar).collect()
}

/// Returns a string without its quotes or the comment after it.
fn scalar(text: &str) -> Value {
    let text = text.trim();
    if let Some(quoted) = quoted(text) {
        return quoted.into();
    }
    text.split(" #")
        .next()
        .unwrap_or_default()
        .trim_end()
        .into()
}

/// Returns the text in quotes, before the end or a comment. Double quotes have JSON escapes; in single ones, a quote is doubled.
fn quoted(text: &str) -> Option<String> {
    let (inner, rest) = if text.starts_with('"') {
        let mut values = Deserializer::from_str(text).into_iter::<String>();
        let inner = values.next()?.ok()?;
        (inner, text[values.byte_offset()..].to_owned())
    } else {
        let text = text.strip_prefix('\'')?.replace("''", "\0");
        let (inner, rest) = text.split_once('\'')?;
        (inner.replace('\0', "'"), rest.to_owned())
    };
    let rest = rest.trim_start();
    (rest.is_empty() || rest.starts_with('#')).then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn common_front_matter_is_parsed() {
        let (fields, body) = split(
            "---\nname: gh-issues\ndescription: >-\n  Lists issues,\n  and more: a lot.\nalways: true # a note\n\
             # a comment\nlicense: \"MIT: really\"\nempty:\nlist:\n- one\n- 'two'\ntags: [a, \"b\", c d]\n\
             metadata: {\"nanobot\": {\"requires\": {\"bins\": [\"gh\"]}}}\nnested:\n  deep:\n    er: yes\n  list:\n    - x\n\
             below:\n  {\n    \"a\": [\"x\", \"y\",\n    ],\n  }\ntext: |\n  first\n    second\n\nlong: goes on\n  here\n---\n# Title\nurl: http://x\n",
        )
        .unwrap();
        assert_eq!(
            Value::Object(fields),
            json!({
                "name": "gh-issues", "description": "Lists issues, and more: a lot.", "always": "true",
                "license": "MIT: really", "empty": null, "list": ["one", "two"], "tags": ["a", "b", "c d"],
                "metadata": {"nanobot": {"requires": {"bins": ["gh"]}}},
                "nested": {"deep": {"er": "yes"}, "list": ["x"]}, "below": {"a": ["x", "y"]}, "text": "first second", "long": "goes on here",
            })
        );
        assert_eq!(body, "# Title\nurl: http://x\n");
    }

    #[test]
    fn without_front_matter_all_is_text() {
        for text in ["", "# Title\n---\n", "text"] {
            assert_eq!(split(text).unwrap(), (Map::new(), text), "{text:?}");
        }
        assert!(split("---\nname: x\n(no end)").is_err());
        let bom = "\u{feff}---\r\nname: x\r\n---\r\nbody";
        assert_eq!(split(bom).unwrap().0["name"], "x");
    }

    #[test]
    fn malformed_front_matter_still_yields_the_body() {
        let deep: Vec<String> = (0..200).map(|n| format!("{}k:", " ".repeat(n))).collect();
        let deep = deep.join("\n");
        for inner in [
            "a: [",
            "a: {x",
            "- : -",
            ":",
            "a: |",
            "é: >\n é\n  x",
            "a: \"",
            "\t\tb: 1",
            &deep,
        ] {
            let text = format!("---\n{inner}\n---\nbody");
            assert_eq!(split(&text).unwrap().1, "body", "{inner:?}");
        }
    }
}
