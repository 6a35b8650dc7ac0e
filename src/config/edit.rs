//! Changes config.json and keeps every byte that it does not mean to change: layout, order and spelling are the user's.

use std::time::Duration;

use serde_json::{Value, json};

use super::locate::{member, read, value_after};
use super::settings::{Place, is_known};
use super::{Env, Loaded, load_for};
use crate::cancel::Cancel;
use crate::disk::{self, Durability, Lock};
use crate::error::{Context, Error, Result};
use crate::paths::Home;

/// Sets the value at `path`, for example `["mcpServers", "time"]`. What is missing on the way is made.
pub(crate) fn set(home: &Home, env: &Env, path: &[&str], value: &Value) -> Result<Loaded> {
    save(home, env, |text| {
        // What is wrong with the file already is not the fault of this change.
        load_for(home, Some(text), env, Vec::new())?;
        with(text, path, value).ok_or_else(|| {
            Error::config(format!("config.json has no place for {}", path.join(".")))
                .hint("bantam config edit")
        })
    })
}

/// Replaces config.json with what `change` makes of its text, if that is a configuration that can be loaded.
pub(crate) fn save(
    home: &Home,
    env: &Env,
    change: impl FnOnce(&str) -> Result<String>,
) -> Result<Loaded> {
    let lock = Lock::acquire(
        &home.lock("config"),
        Duration::from_secs(5),
        &Cancel::new(None),
    )
    .doing("changing config.json");
    let _lock = lock.map_err(|e| home.hinted(e))?;
    let old = super::read(home)?;
    let new = change(old.as_deref().unwrap_or("{}\n"))?;
    let loaded = load_for(home, Some(&new), env, Vec::new())?;
    if old.as_ref() != Some(&new) {
        // A link to the file stays a link.
        let path = fs_err::canonicalize(home.config()).unwrap_or_else(|_| home.config());
        let written =
            disk::replace(&path, new.as_bytes(), Durability::Now).doing("writing config.json");
        written.map_err(|e| home.hinted(e))?;
    }
    Ok(loaded)
}

/// `text`, which is a JSON object, with `value` at `path`. `None` if a list has no such place.
fn with(text: &str, path: &[&str], value: &Value) -> Option<String> {
    let mut at = value_after(text, text.len() - text.trim_start_matches('\u{feff}').len());
    for (n, name) in path.iter().enumerate() {
        if !text[at..].starts_with(['{', '[']) {
            return replace(text, at, &nested(&path[n..], value)?);
        }
        // Names that the user has chosen are told apart by every letter.
        let is_setting = is_known(&path[..=n], Place::Setting);
        match member(text, at, name, is_setting) {
            Some(found) => at = found,
            None => return insert(text, at, name, &nested(&path[n + 1..], value)?),
        }
    }
    replace(text, at, value)
}

/// `value` in objects by the names of `path`, or in a list for the name `0`. A list has no other entry yet.
fn nested(path: &[&str], value: &Value) -> Option<Value> {
    path.iter().rev().try_fold(value.clone(), |value, name| {
        match (*name, name.parse::<usize>()) {
            ("0", _) => Some(json!([value])),
            (_, Ok(_)) => None,
            (name, _) => Some(json!({name: value})),
        }
    })
}

fn replace(text: &str, at: usize, value: &Value) -> Option<String> {
    let (_, end) = read(text, at)?;
    Some(format!(
        "{}{}{}",
        &text[..at],
        written(value, text.contains('\n').then(|| indent(text, at))),
        &text[end..]
    ))
}

/// Adds a member to the object or list at `at`, laid out like the one before it.
fn insert(text: &str, at: usize, name: &str, value: &Value) -> Option<String> {
    let is_object = text[at..].starts_with('{');
    let (mut count, mut end, mut gap) = (0, at + 1, "");
    let mut next = value_after(text, end);
    while !text[next..].starts_with(['}', ']']) {
        gap = text[end..next].trim_start().trim_start_matches(',');
        gap = if count == 0 { &text[end..next] } else { gap };
        let start = if is_object {
            value_after(text, read(text, next)?.1)
        } else {
            next
        };
        end = read(text, start)?.1;
        next = value_after(text, end);
        count += 1;
    }
    if !is_object && name != count.to_string() {
        return None;
    }
    let key = if is_object {
        format!("{}: ", json!(name))
    } else {
        String::new()
    };
    if count > 0 {
        let entry = written(value, gap.rsplit_once('\n').map(|(_, indent)| indent));
        return Some(format!(
            "{},{gap}{key}{entry}{}",
            &text[..end],
            &text[end..]
        ));
    }
    if !text.trim_end().contains('\n') && next + 1 < text.trim_end().len() {
        return Some(format!(
            "{}{key}{}{}",
            &text[..end],
            written(value, None),
            &text[next..]
        ));
    }
    let outer = indent(text, at);
    let inner = format!("{outer}  ");
    Some(format!(
        "{}\n{inner}{key}{}\n{outer}{}",
        &text[..end],
        written(value, Some(&inner)),
        &text[next..]
    ))
}

/// The spaces before the line that `at` is on.
fn indent(text: &str, at: usize) -> &str {
    let line = &text[text[..at].rfind('\n').map_or(0, |n| n + 1)..];
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

/// The value as text: objects over several lines where there is an indent, everything else on one.
fn written(value: &Value, indent: Option<&str>) -> String {
    let is_long = value.is_object()
        || value
            .as_array()
            .is_some_and(|items| items.iter().any(Value::is_object));
    match indent {
        Some(indent) if is_long && *value != json!({}) => {
            format!("{value:#}").replace('\n', &format!("\n{indent}"))
        }
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_value_changes() {
        let text = "{ \"agents\" : {\n\t\"defaults\": { \"timeout\":5 ,\"maxTokens\": 7}},\r\n  \"x\": [1,\n2] }";
        for (path, value, from, to) in [
            (
                &["agents", "defaults", "timeout"][..],
                json!(60),
                "\"timeout\":5 ,",
                "\"timeout\":60 ,",
            ),
            (
                &["agents", "defaults", "max_tokens"],
                json!(8),
                "\"maxTokens\": 7",
                "\"maxTokens\": 8",
            ),
            (
                &["agents", "defaults", "temperature"],
                json!(0.5),
                ": 7}",
                ": 7,\"temperature\": 0.5}",
            ),
            (
                &["log"],
                json!({"json": true}),
                "\n2] }",
                "\n2],\r\n  \"log\": {\n    \"json\": true\n  } }",
            ),
            (
                &["log", "json"],
                json!(true),
                "\n2] }",
                "\n2],\r\n  \"log\": {\n    \"json\": true\n  } }",
            ),
        ] {
            assert_eq!(
                with(text, path, &value).unwrap(),
                text.replace(from, to),
                "{path:?}"
            );
        }
    }

    #[test]
    fn lists_grow_by_one() {
        let text = "{\n  \"model_list\": [\n    {\"model\": \"a/b\"}\n  ]\n}\n";
        let grown = with(text, &["model_list", "1", "model"], &json!("c/d")).unwrap();
        assert_eq!(
            grown,
            text.replace("\"}\n", "\"},\n    {\n      \"model\": \"c/d\"\n    }\n")
        );
        for text in [text, "{}"] {
            assert_eq!(
                with(text, &["model_list", "2", "model"], &json!("c/d")),
                None
            );
        }
    }

    #[test]
    fn what_is_empty_gets_lines_of_its_own() {
        let made = "{\n  \"model_list\": [\n    {\n      \"model\": \"a/b\"\n    }\n  ]\n}\n";
        assert_eq!(
            with("{}\n", &["model_list", "0", "model"], &json!("a/b")).unwrap(),
            made
        );
        assert_eq!(
            with("\u{feff}{\"a\":{}}", &["a", "b"], &json!(1)).unwrap(),
            "\u{feff}{\"a\":{\"b\": 1}}"
        );
        assert_eq!(
            with("{\"log\":null}", &["log", "json"], &json!(true)).unwrap(),
            "{\"log\":{\"json\":true}}"
        );
    }

    #[test]
    fn names_of_the_user_are_told_apart_by_every_letter() {
        let text = r#"{"mcpServers":{"my_server":{"url":"http://a"}}}"#;
        let changed = with(
            text,
            &["mcp_servers", "myServer", "url"],
            &json!("http://b"),
        )
        .unwrap();
        assert_eq!(
            changed,
            r#"{"mcpServers":{"my_server":{"url":"http://a"},"myServer": {"url":"http://b"}}}"#
        );
    }
}
