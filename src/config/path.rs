//! Paths of settings, such as `model_list[0].api_key` or `model_list.0.api_key`, and the values at them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::settings::{Config, McpServer, ModelEntry};
use crate::error::Result;
use crate::json::parse_json;
use crate::secret::Secret;
use crate::text::{nearest, not_found_near};

/// Returns the default configuration as JSON with an entry in each list and map, which shows every path and the type of each
/// setting. `*` is the placeholder for custom names, null for any JSON.
pub(crate) fn shape() -> Value {
    let any = || BTreeMap::from([("*".to_owned(), Secret::default())]);
    let entry = ModelEntry {
        headers: any(),
        extra_body: Map::from_iter([("*".to_owned(), Value::Null)]),
        ..ModelEntry::default()
    };
    let server = McpServer {
        env: any(),
        headers: any(),
        ..McpServer::default()
    };
    let config = Config {
        model_list: vec![entry],
        mcp_servers: BTreeMap::from([("*".to_owned(), server)]),
        ..Config::default()
    };
    let mut shape = serde_json::to_value(config).unwrap_or_default();
    shape["model_list"][0]["extra_body"]["*"] = Value::Null;
    shape
}

/// Returns the part of the shape under a name, with the correct spelling of the name.
fn step<'a>(shape: &'a Value, name: &'a str) -> Option<(&'a str, &'a Value)> {
    match shape {
        Value::Array(items) => {
            name.parse::<usize>().ok()?;
            Some((name, items.first().unwrap_or(&Value::Null)))
        }
        Value::Object(members) => match members.get("*") {
            Some(_) if name.is_empty() => None,
            Some(entry) => Some((name, entry)),
            None => members
                .iter()
                .find(|(known, _)| is_same_name(known, name))
                .map(|(known, value)| (known.as_str(), value)),
        },
        Value::Null => Some((name, shape)),
        _ => None,
    }
}

/// Whether two names differ only in spelling, such as `allowFrom`, `allow_from` and `ALLOW_FROM`.
pub(super) fn is_same_name(a: &str, b: &str) -> bool {
    fn folded(name: &str) -> impl Iterator<Item = u8> {
        name.bytes()
            .filter(|b| *b != b'_')
            .map(|b| b.to_ascii_lowercase())
    }
    folded(a).eq(folded(b))
}

/// Splits a path into its names, with their spelling.
pub(crate) fn split(path: &str) -> Vec<String> {
    path.split(['.', '['])
        .map(|name| name.strip_suffix(']').unwrap_or(name).to_owned())
        .collect()
}

/// Formats a path for people.
pub(crate) fn join(path: &[impl AsRef<str>]) -> String {
    let mut joined = String::new();
    for name in path.iter().map(AsRef::as_ref) {
        if name.parse::<usize>().is_ok() {
            joined.push_str(&format!("[{name}]"));
            continue;
        }
        if !joined.is_empty() {
            joined.push('.');
        }
        joined.push_str(name);
    }
    joined
}

/// Resolves a path to a setting, a section or an entry, with the correct spelling. An unknown path is an error of the kind
/// Usage.
pub(crate) fn resolve(path: &str) -> Result<Vec<String>> {
    let (shape, names) = (shape(), split(path));
    let mut at = &shape;
    let mut resolved = Vec::new();
    for name in &names {
        let Some((name, next)) = step(at, name) else {
            let near = suggest(&shape, &names);
            let list = "bantam help settings";
            return Err(not_found_near("setting", path, near.as_deref(), list));
        };
        resolved.push(name.to_owned());
        at = next;
    }
    Ok(resolved)
}

/// Names of settings in other programs.
const ALIASES: [(&str, &str); 9] = [
    ("cmd", "command"),
    ("model", "agents.defaults.model_name"),
    ("provider", "agents.defaults.model_name"),
    ("max_iterations", "agents.defaults.max_tool_iterations"),
    ("fallbacks", "agents.defaults.model_fallbacks"),
    ("mcp.servers", "mcpServers"),
    ("allowed_users", "channels.telegram.allow_from"),
    ("api_key", "model_list[0].api_key"),
    ("token", "channels.telegram.token"),
];

/// Returns the probable correction of an unknown path, from the same section or else from any.
pub(crate) fn suggest(shape: &Value, names: &[String]) -> Option<String> {
    let alias = ALIASES
        .iter()
        .find(|(name, _)| names.join(".").ends_with(name))
        .map(|(_, path)| *path);
    let mut section = shape;
    for (n, name) in names.iter().enumerate() {
        if let Some((_, next)) = step(section, name) {
            section = next;
            continue;
        }
        let siblings = section.as_object().into_iter().flat_map(Map::keys);
        let mut siblings = siblings.map(String::as_str);
        let near = match siblings.clone().find(|sibling| alias == Some(sibling)) {
            Some(sibling) => Some(sibling),
            None => nearest(name, &mut siblings),
        };
        if let Some(near) = near {
            return Some(join(&[&names[..n], &[near.to_owned()]].concat()));
        }
        break;
    }
    if let Some(path) = alias {
        return Some(path.to_owned());
    }
    let mut paths = Vec::new();
    list_settings(shape, &mut Vec::new(), &mut paths);
    let last = |path: &'_ Vec<String>| path.last().cloned().unwrap_or_default();
    let lasts: Vec<String> = paths.iter().map(last).collect();
    let near = nearest(names.last()?, lasts.iter().map(String::as_str))?;
    let found = paths.iter().find(|path| last(path) == near)?;
    Some(join(found))
}

/// Returns the paths of all settings outside lists and maps, and of the lists and maps themselves.
pub(crate) fn all_settings() -> Vec<Vec<String>> {
    let mut found = Vec::new();
    list_settings(&shape(), &mut Vec::new(), &mut found);
    found
}

/// Collects the paths of [`all_settings`].
fn list_settings(shape: &Value, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    match shape {
        Value::Object(members) if !members.contains_key("*") => {
            for (name, value) in members {
                path.push(name.clone());
                list_settings(value, path, found);
                path.pop();
            }
        }
        _ => found.push(path.clone()),
    }
}

/// Returns the variables of the settings: `BANTAM_` and the path in capitals. Settings inside lists and maps have no variables.
pub(super) fn variables(shape: &Value) -> BTreeMap<String, Vec<String>> {
    let mut paths = Vec::new();
    list_settings(shape, &mut Vec::new(), &mut paths);
    let name = |path: &Vec<String>| format!("BANTAM_{}", path.join("_").to_ascii_uppercase());
    paths.into_iter().map(|path| (name(&path), path)).collect()
}

/// Parses text as the value at a path of the settings. Strings need no quotes, and a list may be written with commas.
pub(crate) fn parse_at(shape: &Value, path: &[String], text: &str) -> Value {
    let setting = path
        .iter()
        .try_fold(shape, |at, name| step(at, name).map(|(_, next)| next));
    let is_json = text.trim_start().starts_with(['[', '{', '"']);
    match setting {
        Some(Value::String(_)) => text.into(),
        Some(Value::Array(entries)) if entries.is_empty() && !is_json => text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .collect(),
        _ => parse_json(text).unwrap_or_else(|_| text.into()),
    }
}

/// Returns the value at a path, whose names are spelled as in `value`.
pub(crate) fn get<'a>(value: &'a Value, path: &[impl AsRef<str>]) -> Option<&'a Value> {
    path.iter().try_fold(value, |at, name| match at {
        Value::Array(items) => items.get(name.as_ref().parse::<usize>().ok()?),
        at => at.get(name.as_ref()),
    })
}

/// Sets the value at a path, and creates missing sections. `None` if a list has no such index.
pub(crate) fn set(value: &mut Value, path: &[impl AsRef<str>], new: Value) -> Option<()> {
    let shape = shape();
    let (mut at, mut section) = (value, Some(&shape));
    for name in path.iter().map(AsRef::as_ref) {
        let is_list = matches!(section, Some(Value::Array(_)));
        if !at.is_array() && !at.is_object() {
            *at = if is_list { json!([]) } else { json!({}) };
        }
        section = section
            .and_then(|section| step(section, name))
            .map(|(_, next)| next);
        at = match at {
            Value::Array(items) => {
                let n = name.parse::<usize>().ok().filter(|n| *n <= items.len())?;
                if n == items.len() {
                    items.push(Value::Null);
                }
                &mut items[n]
            }
            Value::Object(members) => members.entry(name).or_insert(Value::Null),
            _ => return None,
        };
    }
    *at = new;
    Some(())
}

/// Removes the value at a path, and objects that become empty. `None` if the value is missing.
pub(crate) fn remove(value: &mut Value, path: &[impl AsRef<str>]) -> Option<()> {
    let (name, rest) = path.split_first()?;
    let name = name.as_ref();
    if !rest.is_empty() {
        let member = match &mut *value {
            Value::Array(items) => items.get_mut(name.parse::<usize>().ok()?)?,
            value => value.get_mut(name)?,
        };
        remove(member, rest)?;
        if member.as_object().is_none_or(|left| !left.is_empty()) {
            return Some(());
        }
    }
    match value {
        Value::Array(items) => {
            let n = name.parse::<usize>().ok().filter(|n| *n < items.len())?;
            items.remove(n);
        }
        Value::Object(members) => drop(members.remove(name)?),
        _ => return None,
    }
    Some(())
}

/// Corrects the names of members of `value`, and collects the paths of unknown ones.
pub(super) fn correct_names(
    shape: &Value,
    value: &mut Value,
    path: &mut Vec<String>,
    unknown: &mut Vec<Vec<String>>,
) {
    match value {
        Value::Object(members) => {
            for (name, mut value) in std::mem::take(members) {
                let known = step(shape, &name);
                let name = known.map_or(name.as_str(), |(known, _)| known).to_owned();
                path.push(name.clone());
                match known {
                    Some((_, shape)) => correct_names(shape, &mut value, path, unknown),
                    None => unknown.push(path.clone()),
                }
                path.pop();
                members.insert(name, value);
            }
        }
        Value::Array(items) => {
            for (n, item) in items.iter_mut().enumerate() {
                path.push(n.to_string());
                if let Some((_, shape)) = step(shape, &n.to_string()) {
                    correct_names(shape, item, path, unknown);
                }
                path.pop();
            }
        }
        _ => {}
    }
}

/// Collects the paths of the values that are neither objects nor lists of objects.
pub(crate) fn list_values(value: &Value, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let mut add = |name: &str, value: &Value| {
        path.push(name.to_owned());
        list_values(value, path, found);
        path.pop();
    };
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| add(name, value)),
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for (n, item) in items.iter().enumerate() {
                add(&n.to_string(), item);
            }
        }
        _ => found.push(path.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(mut file: Value, path: &str, value: Value) -> Option<Value> {
        set(&mut file, &split(path), value).map(|()| file)
    }

    #[test]
    fn lists_grow_by_one_and_null_becomes_a_section() {
        let file = json!({"model_list": [{"model": "a/b"}]});
        let grown = json!({"model_list": [{"model": "a/b"}, {"model": "c/d"}]});
        assert_eq!(
            with(file.clone(), "model_list[1].model", json!("c/d")),
            Some(grown)
        );
        assert_eq!(with(file, "model_list[2].model", json!("c/d")), None);
        let made = json!({"model_list": [{"model": "a/b"}]});
        assert_eq!(
            with(json!({}), "model_list[0].model", json!("a/b")),
            Some(made)
        );
        let log = json!({"log": {"json": true}});
        assert_eq!(
            with(json!({"log": null}), "log.json", json!(true)),
            Some(log)
        );
    }

    #[test]
    fn removed_key_takes_its_empty_parents_along() {
        let mut file = json!({"session": {"keep_days": 3}, "tools": {"redact": "off", "mcp_kb": 1}, "empty": {}});
        assert_eq!(remove(&mut file, &split("session.keep_days")), Some(()));
        assert_eq!(remove(&mut file, &split("tools.redact")), Some(()));
        assert_eq!(remove(&mut file, &split("tools.redact")), None);
        assert_eq!(file.to_string(), r#"{"empty":{},"tools":{"mcp_kb":1}}"#);
    }

    #[test]
    fn paths_are_spelled_as_the_settings_are() {
        for (path, canonical) in [
            ("modelList[0].apiKey", "model_list[0].api_key"),
            (
                "mcp_servers.myServer.ENV.My_Key",
                "mcpServers.myServer.env.My_Key",
            ),
            (
                "channels.telegram.allowFrom.0",
                "channels.telegram.allow_from[0]",
            ),
            (
                "model_list.0.extra_body.topK",
                "model_list[0].extra_body.topK",
            ),
        ] {
            assert_eq!(join(&resolve(path).unwrap()), canonical);
        }
        for (path, near) in [
            ("agents.defaults.timeot", "agents.defaults.timeout"),
            ("timeout", "agents.defaults.timeout"),
            ("model", "agents.defaults.model_name"),
            ("agents.defaults.model", "agents.defaults.model_name"),
            ("chanels.telegram", "channels"),
            ("mcpServers.x.comand", "mcpServers.x.command"),
            ("mcpServers.x.cmd", "mcpServers.x.command"),
        ] {
            let error = resolve(path).unwrap_err();
            let hint = error.hint.unwrap();
            assert!(hint.contains(&format!("`{near}`")), "{path}: {hint}");
        }
    }
}
