//! `.security.yml`, where a picoclaw keeps its keys: beside its config.json, and in the same shape.
//!
//! Read are the forms that it writes: maps and lists by indentation, and texts of one line.

use std::collections::BTreeMap;
use std::iter::Peekable;

use serde_json::{Map, Value, json};

use crate::text::parse_json;

pub(super) const NAME: &str = ".security.yml";

/// Puts the keys where the settings have their place for them.
pub(super) fn merge(theirs: &mut Value, text: &str) {
    let mut lines = text.lines().filter_map(|line| {
        let rest = line.trim_start();
        let is_empty = rest.is_empty() || rest.starts_with('#') || rest == "---";
        (!is_empty).then_some((line.len() - rest.len(), rest.trim_end()))
    });
    let lines: &mut dyn Iterator<Item = (usize, &str)> = &mut lines;
    let mut keys = block(&mut lines.peekable(), 0);
    // Of models with one name the first is NAME:0, the next NAME:1.
    let mut seen = BTreeMap::new();
    let entries = theirs.get_mut("model_list").and_then(Value::as_array_mut);
    for entry in entries.into_iter().flatten() {
        let name = entry["model_name"].as_str().unwrap_or_default().to_owned();
        let n: &mut usize = seen.entry(name.clone()).or_default();
        let models = &keys["model_list"];
        let found = models.get(format!("{name}:{n}")).or(models.get(&name));
        *n += 1;
        overlay(entry, found.cloned().unwrap_or_default());
    }
    let mut take = |name: &str| keys.get_mut(name).map(Value::take).unwrap_or_default();
    for name in ["channels", "channel_list"] {
        overlay(theirs, json!({ name: take(name) }));
    }
    overlay(theirs, json!({"tools": {"web": take("web")}}));
}

/// Sets what `keys` has. Neither an object nor a single value takes the place of the other.
fn overlay(onto: &mut Value, keys: Value) {
    match (onto, keys) {
        (_, Value::Null) => {}
        (Value::Object(onto), Value::Object(keys)) => {
            for (name, key) in keys {
                overlay(onto.entry(name).or_insert(Value::Null), key);
            }
        }
        (onto, keys) if onto.is_null() || !(onto.is_object() || keys.is_object()) => *onto = keys,
        _ => {}
    }
}

type Lines<'a, 'b> = Peekable<&'b mut dyn Iterator<Item = (usize, &'a str)>>;

/// The list or the map whose lines have this indent, with what is below them.
fn block(lines: &mut Lines, indent: usize) -> Value {
    let is_item = |line: &str| line.starts_with('-');
    let is_list = lines.peek().is_some_and(|(_, line)| is_item(line));
    let (mut map, mut list) = (Map::new(), Vec::new());
    while let Some((at, line)) =
        lines.next_if(|(at, line)| *at > indent || *at == indent && is_item(line) == is_list)
    {
        if at > indent {
            // Not a form that it writes.
        } else if is_list {
            list.push(scalar(&line[1..]));
        } else if let Some(name) = line.strip_suffix(':') {
            let below = lines.peek().map(|(at, line)| (*at, is_item(line)));
            let below = below.filter(|(at, is_item)| *at > indent || *at == indent && *is_item);
            let value = below.map_or(Value::Null, |(at, _)| block(lines, at));
            map.insert(text(name), value);
        } else if let Some((name, value)) = line.split_once(": ") {
            map.insert(text(name), scalar(value));
        }
    }
    if is_list { list.into() } else { map.into() }
}

/// A text with or without quotes. What is empty is null.
fn scalar(written: &str) -> Value {
    match text(written) {
        text if matches!(&*text, "" | "{}" | "[]" | "null" | "~") => Value::Null,
        text => text.into(),
    }
}

fn text(written: &str) -> String {
    let written = written.trim();
    // A comment may follow.
    let quoted = |quote| {
        let end = written.rfind(quote).filter(|end| *end > 0)?;
        written.starts_with(quote).then(|| &written[..=end])
    };
    if let Some(quoted) = quoted('"') {
        let read = parse_json(quoted).ok();
        return read
            .and_then(|text| text.as_str().map(str::to_owned))
            .unwrap_or_default();
    }
    if let Some(quoted) = quoted('\'') {
        return quoted[1..quoted.len() - 1].replace("''", "'");
    }
    let plain = written.split(" #").next().unwrap_or_default();
    plain.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_where_the_settings_have_their_place() {
        let mut theirs = json!({
            "model_list": [
                {"model_name": "gpt", "api_key": "ref:model_list.gpt.api_key"},
                {"model_name": "gpt"},
                {"model_name": "glm"},
                {"model_name": "none"},
            ],
            "channel_list": {"telegram": {"enabled": true, "settings": {"proxy": ""}}},
            "tools": {"web": {"brave": {"enabled": true, "max_results": 4}}},
        });
        let text = "\
# Keys
model_list:
  gpt:0:
    api_keys:
      - sk-one # the first
      - \"sk-\\u0074wo\"
  gpt:1:
    api_keys:
    - 'sk-''three'
  \"glm\":
    api_keys:
      - sk-four
channels: {}
channel_list:
  telegram:
    settings:
      token: 123456:fake
web:
  brave:
    api_keys:
      - BSA-fake
skills: {}
";
        merge(&mut theirs, text);
        let want = json!({
            "model_list": [
                {"model_name": "gpt", "api_key": "ref:model_list.gpt.api_key", "api_keys": ["sk-one", "sk-two"]},
                {"model_name": "gpt", "api_keys": ["sk-'three"]},
                {"model_name": "glm", "api_keys": ["sk-four"]},
                {"model_name": "none"},
            ],
            "channels": null,
            "channel_list": {"telegram": {"enabled": true, "settings": {"proxy": "", "token": "123456:fake"}}},
            "tools": {"web": {"brave": {"enabled": true, "max_results": 4, "api_keys": ["BSA-fake"]}}},
        });
        assert_eq!(theirs, want);
    }

    #[test]
    fn what_is_no_such_file_changes_nothing_that_is_there() {
        for text in [
            "",
            "- a\n- b",
            "web",
            "  web:\n- x\n: y\n\"\n'",
            "web: on",
            "\u{0}: -\n -\n-",
        ] {
            let mut theirs =
                json!({"tools": {"web": {"brave": {"enabled": true}}}, "model_list": [1]});
            merge(&mut theirs, text);
            assert_eq!(theirs["tools"]["web"]["brave"]["enabled"], true, "{text}");
            merge(&mut json!([]), text);
        }
    }
}
