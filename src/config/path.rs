//! Paths of settings, such as `model_list[0].api_key` or `model_list.0.api_key`, and the values at them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Config;
use crate::error::{Error, Result};
use crate::json::parse_json;
use crate::text::{nearest, not_found, not_found_near};

/// Returns the default configuration as JSON, which shows every path and the type of each setting, with an entry in each list
/// and map. `*` is the placeholder for custom names, null for any JSON.
pub(crate) fn shape() -> Value {
    let any = json!({"*": ""});
    let entries = json!({
        "model_list": [{"headers": any, "extra_body": any}],
        "mcpServers": {"*": {"env": any, "headers": any}},
    });
    let config = Config::deserialize(&entries).unwrap_or_default();
    let mut shape = serde_json::to_value(config).unwrap_or_default();
    shape["model_list"][0]["extra_body"]["*"] = Value::Null;
    shape
}

/// Entry of the lists that are empty in the shape.
static TEXT: Value = Value::String(String::new());

/// Returns the part of the shape under a name, with the correct spelling of the name.
fn step<'b, 'a: 'b>(shape: &'a Value, name: &'b str) -> Option<(&'b str, &'a Value)> {
    match shape {
        Value::Array(items) => {
            name.parse::<usize>().ok()?;
            Some((name, items.first().unwrap_or(&TEXT)))
        }
        Value::Object(members) => match members.get("*") {
            Some(entry) => (!name.is_empty()).then_some((name, entry)),
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
    let folded = |name: &str| name.replace('_', "").to_ascii_lowercase();
    folded(a) == folded(b)
}

/// Follows the names as far as they are known. Returns them with the correct spelling, and the part of the shape there.
pub(super) fn walk<'a>(shape: &'a Value, names: &[String]) -> (Vec<String>, &'a Value) {
    let (mut known, mut at) = (Vec::new(), shape);
    for name in names {
        let Some((name, next)) = step(at, name) else {
            break;
        };
        known.push(name.to_owned());
        at = next;
    }
    (known, at)
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
        let (before, after) = match name.parse::<usize>() {
            Ok(_) => ("[", "]"),
            Err(_) if joined.is_empty() => ("", ""),
            Err(_) => (".", ""),
        };
        joined = joined + before + name + after;
    }
    joined
}

/// Resolves a path to a setting, a section or an entry, with the correct spelling. An unknown path is an error of the kind
/// Usage.
pub(crate) fn resolve(path: &str) -> Result<Vec<String>> {
    let (shape, names) = (shape(), split(path));
    let (known, _) = walk(&shape, &names);
    if known.len() == names.len() {
        return Ok(known);
    }
    let (near, list) = (suggest(&shape, &names), "bantam help settings");
    Err(not_found_near("setting", path, near.as_deref(), list))
}

/// Names of settings in other programs. A setting with the same last name, in the section of the unknown one, is preferred.
const ALIASES: &str = include_str!("aliases.txt");

/// Returns the probable correction of an unknown path: the setting's name here for that of another program, or else the nearest
/// name in the same section, or else in any.
pub(crate) fn suggest(shape: &Value, names: &[String]) -> Option<String> {
    let (mut known, section) = walk(shape, names);
    let unknown = names.get(known.len())?;
    if section.is_array() {
        // The name is one of an entry, or stands in the place of a number.
        let rest = &names[known.len() + 1..];
        known.push("0".to_owned());
        known.push(unknown.clone());
        let (mut path, _) = walk(shape, &known);
        path.extend_from_slice(rest);
        let known = || Some(join(&walk(shape, &path).0));
        return suggest(shape, &path).or_else(known);
    }
    let mut aliases = ALIASES.lines().filter_map(|row| row.split_once(' '));
    let alias = aliases.find(|(name, _)| is_same_name(name, unknown));
    let alias = alias.map(|(_, path)| path);
    let siblings = section.as_object().into_iter().flat_map(Map::keys);
    let mut siblings = siblings.map(String::as_str);
    let sibling = match alias {
        Some(alias) => siblings.find(|sibling| *sibling == alias),
        None => nearest(unknown, siblings),
    };
    if let Some(sibling) = sibling {
        known.push(sibling.to_owned());
        return Some(join(&known));
    }
    if let Some(path) = alias {
        return Some(path.to_owned());
    }
    let paths = list_settings(shape);
    let lasts = paths.iter().filter_map(|path| path.last());
    let near = nearest(names.last()?, lasts.map(String::as_str))?;
    let is_near = |path: &&Vec<String>| path.last().is_some_and(|last| last == near);
    paths.iter().find(is_near).map(|path| join(path))
}

/// Returns the paths of all settings of a shape outside lists and maps, and of the lists and maps themselves.
pub(crate) fn list_settings(shape: &Value) -> Vec<Vec<String>> {
    list_leaves(shape, &|value| value.is_array() || value.get("*").is_some())
}

/// Returns the paths of the values that are neither objects with members nor lists of objects.
pub(crate) fn list_values(value: &Value) -> Vec<Vec<String>> {
    list_leaves(value, &|value| {
        let items = value.as_array();
        items.is_some_and(|items| !items.iter().any(Value::is_object))
    })
}

/// Returns the paths of the values that have no members or are leaves by `is_leaf`.
fn list_leaves(value: &Value, is_leaf: &dyn Fn(&Value) -> bool) -> Vec<Vec<String>> {
    let members: Vec<(String, &Value)> = match value {
        value if is_leaf(value) => return vec![Vec::new()],
        Value::Object(members) if !members.is_empty() => {
            members.iter().map(|(name, v)| (name.clone(), v)).collect()
        }
        Value::Array(items) => (0..).map(|n: usize| n.to_string()).zip(items).collect(),
        _ => return vec![Vec::new()],
    };
    let mut found = Vec::new();
    for (name, value) in members {
        for path in list_leaves(value, is_leaf) {
            found.push([vec![name.clone()], path].concat());
        }
    }
    found
}

/// Returns the variables of the settings: `BANTAM_` and the path in capitals. Settings inside lists and maps have no variables.
pub(super) fn variables(shape: &Value) -> BTreeMap<String, Vec<String>> {
    let name = |path: &Vec<String>| format!("BANTAM_{}", path.join("_").to_ascii_uppercase());
    let paths = list_settings(shape).into_iter();
    paths.map(|path| (name(&path), path)).collect()
}

/// Parses text as the value at a path of the settings. Strings need no quotes, and a list may be written with commas.
pub(crate) fn parse_at(shape: &Value, path: &[String], text: &str) -> Value {
    let is_json = text.trim_start().starts_with(['[', '{', '"']);
    let items = text.split(',').map(str::trim).filter(|s| !s.is_empty());
    match walk(shape, path).1 {
        Value::String(_) => text.into(),
        Value::Array(entries) if entries.is_empty() && !is_json => items.collect(),
        _ => parse_json(text).unwrap_or_else(|_| text.into()),
    }
}

/// Formats a path for `serde_json`.
fn pointer(path: &[impl AsRef<str>]) -> String {
    let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
    let names = path.iter().map(|name| escaped(name.as_ref()));
    names.fold(String::new(), |joined, name| joined + "/" + &name)
}

/// Returns the value at a path, whose names are spelled as in `value`.
pub(crate) fn get<'a>(value: &'a Value, path: &[impl AsRef<str>]) -> Option<&'a Value> {
    value.pointer(&pointer(path))
}

/// Sets the value at a path, and creates missing sections.
///
/// # Errors
/// Returns an error if a list has no such index.
pub(crate) fn set(value: &mut Value, path: &[impl AsRef<str>], new: Value) -> Result<()> {
    let mut at = value;
    for name in path.iter().map(AsRef::as_ref) {
        let index = name.parse::<usize>();
        if !at.is_array() && !at.is_object() {
            *at = if index.is_ok() { json!([]) } else { json!({}) };
        }
        let Value::Array(items) = at else {
            at = &mut at[name];
            continue;
        };
        let (index, next) = (index.unwrap_or(usize::MAX), items.len());
        if index == next {
            items.push(Value::Null);
        }
        at = items.get_mut(index).ok_or_else(|| {
            let what = format!("config.json has no place for {}", join(path));
            Error::usage(what).hint(format!("write {next} as its number to add an entry"))
        })?;
    }
    *at = new;
    Ok(())
}

/// Removes the value at a path.
///
/// # Errors
/// Returns an error if the value is missing.
pub(crate) fn remove(value: &mut Value, path: &[impl AsRef<str>]) -> Result<()> {
    let missing = || not_found("entry", &join(path), [], "bantam config get");
    let (last, above) = path.split_last().ok_or_else(missing)?;
    let last = last.as_ref();
    let removed = match value.pointer_mut(&pointer(above)) {
        Some(Value::Object(members)) => members.remove(last),
        Some(Value::Array(items)) => {
            let index = last.parse().ok().filter(|n| *n < items.len());
            index.map(|n| items.remove(n))
        }
        _ => None,
    };
    removed.map(drop).ok_or_else(missing)
}

/// Corrects the spelling of the names in `value`. Adds the paths of unknown names to `unknown`. `path` is where the value stands.
///
/// # Errors
/// Returns the path of a name in two spellings.
pub(super) fn correct(
    shape: &Value,
    value: &mut Value,
    path: &mut Vec<String>,
    unknown: &mut Vec<Vec<String>>,
) -> Result<(), Vec<String>> {
    match value {
        Value::Object(members) => {
            for (name, mut value) in std::mem::take(members) {
                let known = step(shape, &name);
                path.push(known.map_or(&*name, |(known, _)| known).to_owned());
                match known {
                    Some((_, shape)) => correct(shape, &mut value, path, unknown)?,
                    None => unknown.push(path.clone()),
                }
                let name = path.last().cloned().unwrap_or_default();
                if members.insert(name, value).is_some() {
                    return Err(path.clone());
                }
                path.pop();
            }
        }
        Value::Array(items) => {
            for (n, item) in items.iter_mut().enumerate() {
                path.push(n.to_string());
                if let Some((_, shape)) = step(shape, "0") {
                    correct(shape, item, path, unknown)?;
                }
                path.pop();
            }
        }
        _ => {}
    }
    Ok(())
}

/// Turns numbers into texts where the shape has a text, such as ids of users.
pub(super) fn read_numbers(shape: &Value, value: &mut Value) {
    let part = |name: &str| step(shape, name).map_or(shape, |(_, shape)| shape);
    match value {
        Value::Number(number) if shape.is_string() => *value = number.to_string().into(),
        Value::Object(members) => members
            .iter_mut()
            .for_each(|(name, value)| read_numbers(part(name), value)),
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| read_numbers(part("0"), item)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(mut file: Value, path: &str, value: Value) -> Option<Value> {
        set(&mut file, &split(path), value).ok().map(|()| file)
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
            ("model_list.apiKey", "model_list[0].api_key"),
            ("model_list.x.model", "model_list[0].model"),
            ("model_list.first.modle", "model_list[0].model"),
            ("model_list.first", "model_list[0]"),
            ("tools.read_paths.x", "tools.read_paths[0]"),
        ] {
            let error = resolve(path).unwrap_err();
            let hint = error.hint.unwrap();
            assert!(hint.contains(&format!("`{near}`")), "{path}: {hint}");
        }
    }
}
