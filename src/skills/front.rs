//! The front matter of a SKILL.md: as much of YAML as people write there.
//!
//! Maps and lists by indentation, one-line lists and maps in brackets (JSON, or words with commas between), quoted and
//! plain texts, texts of several lines (`|`, `>`, or just indented), comments. Anchors, tags and the rest of the language
//! are taken as text: nothing in it can fail.

use serde_json::{Map, Value};

/// How deep maps may be within each other.
const DEEPEST: usize = 8;

/// The fields of the front matter, and the text below it. Without one, all is text.
pub fn split(text: &str) -> (Map<String, Value>, &str) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let is_mark = |line: &str| line.trim_end() == "---";
    let mut at = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if number == 0 && !is_mark(line) {
            return (Map::new(), text);
        }
        at += line.len();
        if number > 0 && is_mark(line) {
            let inner = &text[..at - line.len()];
            let lines: Vec<&str> = inner.lines().skip(1).collect();
            return (map(&lines, DEEPEST), &text[at..]);
        }
    }
    (Map::new(), text)
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

fn is_blank(line: &str) -> bool {
    line.trim().is_empty()
}

/// How many of the lines belong to what stands above them: those that are indented more than `own`, and blank ones
/// between. A list may stand as far left as its key.
fn belonging(lines: &[&str], own: usize) -> usize {
    let is_item = |line: &str| indent(line) == own && line.trim_start().starts_with("- ");
    let belongs = |line: &&&str| is_blank(line) || indent(line) > own || is_item(line);
    lines.iter().take_while(belongs).count()
}

fn map(lines: &[&str], deeper: usize) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        at += 1;
        let trimmed = line.trim();
        let Some((key, rest)) = trimmed.split_once(':') else { continue };
        if trimmed.starts_with('#') || !(rest.is_empty() || rest.starts_with(' ')) {
            continue;
        }
        let below = &lines[at..at + belonging(&lines[at..], indent(line))];
        at += below.len();
        let key = unquoted(key.trim()).to_owned();
        fields.insert(key, value(rest.trim(), below, deeper));
    }
    fields
}

/// The value that begins beside its key and goes on in the lines below.
fn value(beside: &str, below: &[&str], deeper: usize) -> Value {
    let content = || below.iter().filter(|line| !is_blank(line));
    match beside.chars().next() {
        Some('|' | '>') if beside.len() <= 3 => {
            let least = content().map(|line| indent(line)).min().unwrap_or_default();
            let lines = below.iter().map(|line| line.get(least..).unwrap_or_default());
            let join = if beside.starts_with('|') { "\n" } else { " " };
            lines.collect::<Vec<_>>().join(join).trim_end().to_owned().into()
        }
        Some('[' | '{') => {
            let whole = below.iter().fold(beside.to_owned(), |whole, line| whole + " " + line.trim());
            serde_json::from_str(&whole).unwrap_or_else(|_| flow(&whole))
        }
        Some(c) if c != '#' => {
            // A plain text goes on in the indented lines below.
            let plain = content().fold(beside.to_owned(), |whole, line| whole + " " + line.trim());
            scalar(&plain)
        }
        _ if deeper == 0 => Value::Null,
        _ => match content().next() {
            None => Value::Null,
            Some(first) if first.trim_start().starts_with("- ") => {
                content().filter_map(|line| Some(scalar(line.trim_start().strip_prefix("- ")?))).collect()
            }
            Some(_) => Value::Object(map(below, deeper - 1)),
        },
    }
}

/// A list in brackets whose words need no quotes. A map of that kind is left as text.
fn flow(whole: &str) -> Value {
    let Some(inner) = whole.strip_prefix('[').and_then(|rest| rest.rsplit_once(']')) else { return scalar(whole) };
    inner.0.split(',').map(str::trim).filter(|word| !word.is_empty()).map(scalar).collect()
}

fn scalar(text: &str) -> Value {
    let text = text.trim();
    let plain = unquoted(text);
    if plain.len() < text.len() {
        return plain.replace("\\\"", "\"").replace("''", "'").into();
    }
    match text.split(" #").next().unwrap_or_default().trim_end() {
        "true" => true.into(),
        "false" => false.into(),
        "null" | "~" => Value::Null,
        text => text.into(),
    }
}

fn unquoted(text: &str) -> &str {
    let between = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    between('"').or_else(|| between('\'')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_people_write_is_read() {
        let (fields, body) = split(
            "---\nname: gh-issues\ndescription: >-\n  Lists issues,\n  and more: a lot.\nalways: true # a note\n\
             # a comment\nlicense: \"MIT: really\"\nempty:\nlist:\n- one\n- 'two'\ntags: [a, \"b\", c d]\n\
             metadata: {\"nanobot\": {\"requires\": {\"bins\": [\"gh\"]}}}\nnested:\n  deep:\n    er: yes\n  list:\n    - x\n\
             text: |\n  first\n    second\n\nlong: goes on\n  here\n---\n# Title\nurl: http://x\n",
        );
        assert_eq!(
            Value::Object(fields),
            json!({
                "name": "gh-issues", "description": "Lists issues, and more: a lot.", "always": true,
                "license": "MIT: really", "empty": null, "list": ["one", "two"], "tags": ["a", "b", "c d"],
                "metadata": {"nanobot": {"requires": {"bins": ["gh"]}}},
                "nested": {"deep": {"er": "yes"}, "list": ["x"]}, "text": "first\n  second", "long": "goes on here",
            })
        );
        assert_eq!(body, "# Title\nurl: http://x\n");
    }

    #[test]
    fn without_front_matter_all_is_text() {
        for text in ["", "# Title\n---\n", "---\nname: x\n(no end)", "text"] {
            assert_eq!(split(text), (Map::new(), text), "{text:?}");
        }
        assert_eq!(split("\u{feff}---\r\nname: x\r\n---\r\nbody").0["name"], "x");
    }

    #[test]
    fn nothing_makes_it_fail() {
        let deep: Vec<String> = (0..200).map(|n| format!("{}k:", " ".repeat(n))).collect();
        let deep = deep.join("\n");
        for inner in ["a: [", "a: {x", "- : -", ":", "a: |", "é: >\n é\n  x", "a: \"", "\t\tb: 1", &deep] {
            let text = format!("---\n{inner}\n---\nbody");
            assert_eq!(split(&text).1, "body", "{inner:?}");
        }
    }
}
