//! Changes config.json, and keeps every byte that a change does not mean.

use std::time::Duration;

use serde::de::IgnoredAny;
use serde_json::Value;

use super::locate::{member, read, value_after};
use super::{Env, load_for};
use crate::cancel::Cancel;
use crate::disk::{self, Durability, Lock};
use crate::error::{Context, Error, Result};
use crate::paths::Home;

/// How long to wait for another change.
const PATIENCE: Duration = Duration::from_secs(5);

/// Replaces config.json by what `change` makes of it, unless the result cannot be loaded.
pub(crate) fn update(home: &Home, env: &Env, change: impl FnOnce(&str) -> Result<String>) -> Result<()> {
    let _lock =
        Lock::acquire(&home.session_lock("config"), PATIENCE, &Cancel::new(None)).doing("changing config.json")?;
    let Some(text) = super::read(home)? else {
        return Err(Error::config("there is no config.json").hint("bantam onboard"));
    };
    load_for(home, Some(&text), env, Vec::new())?;
    let changed = change(&text)?;
    load_for(home, Some(&changed), env, Vec::new())?;
    // A link stays a link.
    let path = fs_err::canonicalize(home.config())?;
    disk::replace(&path, changed.as_bytes(), Durability::Now).doing("changing config.json")
}

/// Valid JSON with `value` at `path`: in place of the value there, or as a new last member, laid out like its neighbours.
pub(crate) fn set(text: &str, path: &[&str], value: &Value) -> Result<String> {
    let start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let mut at = value_after(text, start);
    for (depth, name) in path.iter().enumerate() {
        match member(text, at, name) {
            Some(found) => at = found,
            None => {
                let below = path[depth + 1..].iter().rev();
                let value = below.fold(value.clone(), |value, name| {
                    Value::Object([((*name).to_owned(), value)].into_iter().collect())
                });
                return insert(text, at, name, &value).ok_or_else(|| not_an_object(&path[..depth]));
            }
        }
    }
    let end = read::<IgnoredAny>(text, at).map(|(_, end)| end).ok_or_else(|| not_an_object(path))?;
    let line = &text[text[..at].rfind('\n').map_or(0, |n| n + 1)..at];
    let indent = &line[..line.len() - line.trim_start().len()];
    Ok(format!("{}{}{}", &text[..at], laid_out(value, text.contains('\n').then_some(indent)), &text[end..]))
}

fn not_an_object(path: &[&str]) -> Error {
    Error::config(format!("config.json: {} is not an object", path.join(".")))
}

/// Adds a member to the object at `at`; `None` if there is none.
fn insert(text: &str, at: usize, name: &str, value: &Value) -> Option<String> {
    if !text[at..].starts_with('{') {
        return None;
    }
    let first = at + 1 + text[at + 1..].len() - text[at + 1..].trim_start().len();
    let name = Value::from(name);
    let end = if text[first..].starts_with('}') { None } else { Some(last_end(text, first)?) };
    // White space before each member, the last of which is its indentation.
    let before = match end {
        Some(_) => text[at + 1..first].to_owned(),
        None if text.contains('\n') => {
            let line = &text[text[..at].rfind('\n').map_or(0, |n| n + 1)..at];
            format!("\n{}  ", &line[..line.len() - line.trim_start().len()])
        }
        None => String::new(),
    };
    let indent = before.rsplit_once('\n').map(|(_, indent)| indent);
    let entry = format!("{before}{name}:{}{}", if indent.is_some() { " " } else { "" }, laid_out(value, indent));
    Some(match (end, indent) {
        (Some(end), _) => format!("{},{entry}{}", &text[..end], &text[end..]),
        (None, Some(indent)) => format!("{}{entry}\n{}{}", &text[..=at], indent.strip_suffix("  ")?, &text[first..]),
        (None, None) => format!("{}{entry}{}", &text[..=at], &text[first..]),
    })
}

/// The end of the last member of an object whose first key is at `at`.
fn last_end(text: &str, mut at: usize) -> Option<usize> {
    loop {
        let value = value_after(text, read::<IgnoredAny>(text, at)?.1);
        let end = read::<IgnoredAny>(text, value)?.1;
        at = value_after(text, end);
        if text[at..].starts_with('}') {
            return Some(end);
        }
    }
}

/// On one line without an indentation.
fn laid_out(value: &Value, indent: Option<&str>) -> String {
    match indent {
        Some(indent) => format!("{value:#}").replace('\n', &format!("\n{indent}")),
        None => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_other_bytes_stay() {
        for (text, path, value, expected) in [
            ("{}", &["a"][..], json!(1), "{\"a\":1}"),
            ("{\"a\":1}", &["b", "c"], json!("x"), "{\"a\":1,\"b\":{\"c\":\"x\"}}"),
            ("{\n}\n", &["a"], json!({"b": 1}), "{\n  \"a\": {\n    \"b\": 1\n  }\n}\n"),
            ("\u{feff}{\n\t\"a\" : 1.0\n}", &["b"], json!(2), "\u{feff}{\n\t\"a\" : 1.0,\n\t\"b\": 2\n}"),
            (
                "{\"A\": {\"x\": [1, {}]}, \"b\": 2}",
                &["a", "y"],
                json!(3),
                "{\"A\": {\"x\": [1, {}],\"y\":3}, \"b\": 2}",
            ),
            ("{\"a\": {  \"x\": 1e3 } }", &["a", "x"], json!([1]), "{\"a\": {  \"x\": [1] } }"),
            (
                "{\n  \"mcpServers\": {\n    \"one\": { \"url\": \"u\" }\n  }\n}",
                &["mcpServers", "two"],
                json!({"command": "c"}),
                "{\n  \"mcpServers\": {\n    \"one\": { \"url\": \"u\" },\n    \"two\": {\n      \"command\": \"c\"\n    }\n  }\n}",
            ),
        ] {
            let changed = set(text, path, &value).unwrap();
            assert_eq!(changed, expected);
            let parsed: Value = serde_json::from_str(changed.trim_start_matches('\u{feff}')).unwrap();
            assert!(parsed.is_object());
        }
        assert!(set("{\"a\": 1}", &["a", "b"], &json!(1)).is_err());
    }
}
