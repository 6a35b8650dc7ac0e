//! Laying the layers over each other: defaults, file, environment, flags.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::foreign::{self, Foreign, Places};
use super::locate;
use super::shapes;
use super::table::{self, KEYS, Key, Kind, WHOLE, alike};
use crate::error::{Error, Result};
use crate::text::{nearest, one_line};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    File,
    /// The variable's name.
    Env(String),
    /// The flag's name.
    Flag(&'static str),
}

/// The finished tree: every path of the table has a value.
pub struct Tree {
    pub value: Value,
    /// By path as the user could write it; what is missing is [`Origin::Default`].
    pub origins: BTreeMap<String, Origin>,
    /// One sentence for each key that means nothing here.
    pub warnings: Vec<String>,
    /// Keys that mean something to the program the file was written for, and nothing here.
    pub passed_over: Vec<String>,
}

impl Tree {
    fn new() -> Self {
        let value = Value::Object(Map::new());
        Self { value, origins: BTreeMap::new(), warnings: Vec::new(), passed_over: Vec::new() }
    }
}

/// A layer above the file: the path, its value, and where it came from.
pub type Override = (&'static str, Value, Origin);

/// Lays the layers over each other. `file` is the text of config.json, with its name for messages.
pub fn load(file: Option<(&str, &str)>, env: &BTreeMap<String, String>, flags: Vec<Override>) -> Result<Tree> {
    let mut tree = Tree::new();
    if let Some((name, text)) = file {
        read_file(&mut tree, name, text)?;
    }
    for (path, value, origin) in environment(env)?.into_iter().chain(flags) {
        put(&mut tree.value, path, value);
        tree.origins.insert(path.to_owned(), origin);
    }
    for key in KEYS {
        let default = serde_json::from_str(key.default).unwrap_or_default();
        lay_default(&mut tree.value, &key.path.split('.').collect::<Vec<_>>(), &default);
    }
    Ok(tree)
}

fn read_file(tree: &mut Tree, name: &str, text: &str) -> Result<()> {
    // A byte order mark is what some editors leave; JSON itself has none.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(e) => {
            let near = locate::last_path_before(text, e.line(), e.column());
            let near = if near.is_empty() { String::new() } else { format!(", near \"{near}\"") };
            let what = e.to_string();
            let what = what.split(" at line ").next().unwrap_or_default();
            let place = format!("{name}, line {}, column {}{near}", e.line(), e.column());
            return Err(Error::config(format!("reading the configuration: {place}: {what}"))
                .hint("mend that line; JSON wants double quotes, and no comma after the last entry"));
        }
    };
    let Value::Object(object) = value else {
        return Err(Error::config(format!("reading the configuration: {name} is not a JSON object"))
            .hint("it should begin with { and end with }"));
    };
    let version = object.get("version").and_then(Value::as_u64).filter(|version| *version > foreign::VERSION);
    if let Some(version) = version {
        tree.warnings.push(format!(
            "{name}: its version is {version}, and this bantam knows {}: what it does not know is left out",
            foreign::VERSION
        ));
    }
    let (object, places) = Foreign::read(object).finish();
    let mut reading = Reading { name, text, tree, places, newer: version.is_some() };
    let mut out = Map::new();
    reading.object(object, &mut Vec::new(), "", &mut out)?;
    tree.value = Value::Object(out);
    Ok(())
}

/// The walk over the file's own tree: names become the table's, values are checked.
struct Reading<'a> {
    name: &'a str,
    text: &'a str,
    tree: &'a mut Tree,
    /// Where in the file things stand that were moved.
    places: Places,
    /// The file says that it was written by a newer version.
    newer: bool,
}

impl Reading<'_> {
    /// `pattern` is the table's path so far (`model_list[]`), `written` the file's (`modelList`, `0`).
    fn object(
        &mut self,
        object: Map<String, Value>,
        written: &mut Vec<String>,
        pattern: &str,
        out: &mut Map<String, Value>,
    ) -> Result<()> {
        for (name, value) in object {
            written.push(name.clone());
            let free = format!("{pattern}.*");
            let (next, canonical) = if below(&free).next().is_some() {
                (free, name)
            } else if let Some(canonical) = child(pattern, &name) {
                (if pattern.is_empty() { canonical.clone() } else { format!("{pattern}.{canonical}") }, canonical)
            } else {
                self.unknown(written, pattern, &name);
                written.pop();
                continue;
            };
            let value = self.value(value, written, &next)?;
            out.insert(canonical, value);
            written.pop();
        }
        Ok(())
    }

    fn value(&mut self, value: Value, written: &mut Vec<String>, pattern: &str) -> Result<Value> {
        if let Some(key) = KEYS.iter().find(|k| k.path == pattern) {
            let value = check(key, &value).map_err(|want| self.wrong(written, &value, &want))?;
            self.tree.origins.insert(pattern_to_path(pattern, written), Origin::File);
            return Ok(value);
        }
        let list = format!("{pattern}[]");
        match value {
            Value::Array(items) if below(&list).next().is_some() => {
                let mut out = Vec::new();
                for (at, item) in items.into_iter().enumerate() {
                    written.push(at.to_string());
                    let Value::Object(object) = item else {
                        return Err(self.wrong(written, &item, "an object in braces"));
                    };
                    let mut entry = Map::new();
                    self.object(object, written, &list, &mut entry)?;
                    out.push(Value::Object(entry));
                    written.pop();
                }
                Ok(Value::Array(out))
            }
            Value::Object(object) if below(&list).next().is_none() => {
                let mut out = Map::new();
                self.object(object, written, pattern, &mut out)?;
                Ok(Value::Object(out))
            }
            // null means: as if it were not there.
            Value::Null => Ok(Value::Null),
            value => {
                let want = if below(&list).next().is_some() { "a list in brackets" } else { "an object in braces" };
                Err(self.wrong(written, &value, want))
            }
        }
    }

    /// `path` is the one in the tree; told is the one in the file.
    fn wrong(&self, path: &[String], value: &Value, want: &str) -> Error {
        let written = self.places.written(path);
        let place = locate::position(self.text, &written)
            .map_or(String::new(), |(line, column)| format!(", line {line}, column {column}"));
        let shown = shown(value, &[path, &written].concat());
        let newer = if self.newer { "; the file is for a newer bantam: update this one" } else { "" };
        Error::config(format!("reading the configuration: {}{place}: \"{}\" is {shown}", self.name, written.join(".")))
            .hint(format!("it should be {want}{newer}"))
    }

    fn unknown(&mut self, path: &[String], pattern: &str, name: &str) {
        let written = self.places.written(path).join(".");
        if shapes::is_known(path) {
            self.tree.passed_over.push(written);
            return;
        }
        let siblings: Vec<&str> = children(pattern).collect();
        let anywhere = || KEYS.iter().filter_map(|k| k.path.rsplit('.').next());
        let near = nearest(name, siblings).or_else(|| nearest(name, anywhere()));
        let near = near.map_or(String::new(), |near| format!("; did you mean \"{near}\"?"));
        self.tree.warnings.push(format!("{}: \"{written}\" means nothing here{near}", self.name));
    }
}

/// A value for an error message. One that stands where a secret could is not shown.
fn shown(value: &Value, written: &[String]) -> String {
    let secret = ["key", "token", "secret", "header", "env", "proxy"];
    if written.iter().any(|name| secret.iter().any(|word| name.to_lowercase().contains(word))) {
        return "of the wrong kind".to_owned();
    }
    one_line(&value.to_string(), 60)
}

/// `model_list[].model` and `["modelList", "0", "model"]` become `model_list.0.model`.
fn pattern_to_path(pattern: &str, written: &[String]) -> String {
    let mut written = written.iter();
    let mut out: Vec<String> = Vec::new();
    for part in pattern.split('.') {
        let name = written.next().map_or("", String::as_str);
        if part == "*" {
            out.push(name.to_owned());
        } else if let Some(list) = part.strip_suffix("[]") {
            out.push(list.to_owned());
            out.extend(written.next().cloned());
        } else {
            out.push(part.to_owned());
        }
    }
    out.join(".")
}

/// The table's paths that lie below `pattern`, without it.
fn below(pattern: &str) -> impl Iterator<Item = &'static str> {
    let prefix = if pattern.is_empty() { String::new() } else { format!("{pattern}.") };
    KEYS.iter().filter_map(move |k| k.path.strip_prefix(prefix.as_str()))
}

/// The names directly below `pattern`.
fn children(pattern: &str) -> impl Iterator<Item = &'static str> {
    below(pattern).filter_map(|rest| rest.split(['.', '[']).next())
}

fn child(pattern: &str, name: &str) -> Option<String> {
    children(pattern).find(|c| alike(c, name)).map(str::to_owned)
}

/// The value in the table's form, or what it should have been.
pub fn check(key: &Key, value: &Value) -> Result<Value, String> {
    let default = || serde_json::from_str(key.default).unwrap_or_default();
    let text = |v: &Value| match v {
        Value::String(s) => Some(Value::String(s.clone())),
        Value::Number(n) => Some(Value::String(n.to_string())),
        _ => None,
    };
    match (key.kind, value) {
        (_, Value::Null) => Ok(default()),
        (Kind::Text | Kind::Secret, Value::String(_))
        | (Kind::Bool, Value::Bool(_))
        | (Kind::Any, Value::Object(_)) => Ok(value.clone()),
        (Kind::Text | Kind::Secret, _) => Err("text in quotes".into()),
        (Kind::Bool, _) => Err("true or false".into()),
        (Kind::Any, _) => Err("an object in braces".into()),
        (Kind::Whole(least), value) => match value.as_u64() {
            Some(n) if n >= least => Ok(value.clone()),
            _ => Err(format!("a whole number of at least {least}")),
        },
        (Kind::Number(least) | Kind::Maybe(least), value) => match value.as_f64() {
            Some(n) if n >= least && n.is_finite() => Ok(value.clone()),
            _ => Err(format!("a number of at least {least}")),
        },
        (Kind::Choice(words), value) => match value.as_str() {
            Some(word) if words.contains(&word) => Ok(value.clone()),
            _ => Err(format!("one of: {}", words.join(", "))),
        },
        (Kind::Texts | Kind::Secrets, Value::Array(items)) => {
            let items: Option<Vec<Value>> = items.iter().map(text).collect();
            items.map(Value::Array).ok_or_else(|| "a list of texts: [\"a\", \"b\"]".into())
        }
        (Kind::Texts | Kind::Secrets, value) => {
            text(value).map(|v| Value::Array(vec![v])).ok_or_else(|| "a list of texts: [\"a\", \"b\"]".into())
        }
        (Kind::Map, Value::Object(map)) if map.values().all(Value::is_string) => Ok(value.clone()),
        (Kind::Map, _) => Err("names and texts: {\"a\": \"b\"}".into()),
    }
}

/// The variables that name a path.
fn environment(env: &BTreeMap<String, String>) -> Result<Vec<Override>> {
    let mut found = Vec::new();
    let named = env.iter().filter(|(name, text)| name.starts_with("BANTAM_") && !text.is_empty());
    let named: Vec<_> = named.collect();
    for key in KEYS {
        let Some((name, text)) = named.iter().find(|(name, _)| table::is_env_name(name, key.path)) else { continue };
        let value = check(key, &parse(key.kind, text)).map_err(|want| {
            let is = if matches!(key.kind, Kind::Secret | Kind::Secrets) { "of the wrong kind" } else { text };
            Error::config(format!("reading the environment: {name} is {is}")).hint(format!("it should be {want}"))
        })?;
        found.push((key.path, value, Origin::Env((*name).clone())));
    }
    if let Some(token) = env.get("TELEGRAM_BOT_TOKEN").filter(|t| !t.is_empty()) {
        let path = "channels.telegram.token";
        if !found.iter().any(|(p, ..)| *p == path) {
            found.push((path, token.as_str().into(), Origin::Env("TELEGRAM_BOT_TOKEN".into())));
        }
    }
    for path in WHOLE {
        let name = format!("BANTAM_{}", path.to_ascii_uppercase());
        let Some(text) = env.get(&name).filter(|t| !t.is_empty()) else { continue };
        let mut tree = Tree::new();
        read_file(&mut tree, &name, &format!("{{\"{path}\":{text}}}"))?;
        found.push((path, tree.value[path].take(), Origin::Env(name)));
    }
    Ok(found)
}

/// A variable's text as the JSON it means: a list may be given with commas.
fn parse(kind: Kind, text: &str) -> Value {
    match kind {
        Kind::Text | Kind::Secret | Kind::Choice(_) => text.into(),
        Kind::Texts | Kind::Secrets if !text.trim_start().starts_with('[') => {
            text.split(',').map(str::trim).filter(|t| !t.is_empty()).collect()
        }
        _ => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
    }
}

fn put(tree: &mut Value, path: &str, value: Value) {
    let mut at = tree;
    for name in path.split('.') {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[name];
    }
    *at = value;
}

/// Fills in a default wherever its path applies and nothing stands: once, or in each entry of a list or map.
fn lay_default(at: &mut Value, path: &[&str], default: &Value) {
    let Some((name, rest)) = path.split_first() else {
        if at.is_null() {
            *at = default.clone();
        }
        return;
    };
    if at.is_null() {
        *at = Value::Object(Map::new());
    }
    let Value::Object(object) = at else { return };
    if *name == "*" {
        for entry in object.values_mut() {
            lay_default(entry, rest, default);
        }
    } else if let Some(list) = name.strip_suffix("[]") {
        let list = object.entry(list).or_insert_with(|| Value::Array(Vec::new()));
        if list.is_null() {
            *list = Value::Array(Vec::new());
        }
        for entry in list.as_array_mut().into_iter().flatten() {
            lay_default(entry, rest, default);
        }
    } else {
        lay_default(object.entry(*name).or_insert(Value::Null), rest, default);
    }
}

/// The table's key at a path without lists and maps.
pub fn key_at(path: &str) -> Option<&'static Key> {
    table::KEYS.iter().find(|k| k.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn file(text: &str) -> Result<Tree> {
        load(Some(("config.json", text)), &BTreeMap::new(), Vec::new())
    }

    #[test]
    fn later_layers_win_and_origins_say_who() {
        let env = BTreeMap::from([
            ("BANTAM_AGENTS_DEFAULTS_MAX_TOKENS".to_owned(), "7".to_owned()),
            ("BANTAM_CHANNELS_TELEGRAM_ALLOW_FROM".to_owned(), "1, 2".to_owned()),
            ("BANTAM_MODEL_LIST".to_owned(), r#"[{"model":"openai/x"}]"#.to_owned()),
        ]);
        let text = r#"{"agents":{"defaults":{"max_tokens":5,"max_retries":1}},"session":null}"#;
        let flag = ("agents.defaults.model_name", json!("fast"), Origin::Flag("--model"));
        let tree = load(Some(("c", text)), &env, vec![flag]).unwrap();
        let defaults = &tree.value["agents"]["defaults"];
        assert_eq!(defaults["max_tokens"], 7);
        assert_eq!(defaults["max_retries"], 1);
        assert_eq!(defaults["timeout"], 600);
        assert_eq!(defaults["model_name"], "fast");
        assert_eq!(tree.value["channels"]["telegram"]["allow_from"], json!(["1", "2"]));
        assert_eq!(tree.value["model_list"][0]["request_timeout"], 90);
        assert_eq!(tree.value["session"]["compact_at"], 0.8);
        let origin = |path: &str| tree.origins.get(path).cloned().unwrap_or(Origin::Default);
        assert_eq!(origin("agents.defaults.max_tokens"), Origin::Env("BANTAM_AGENTS_DEFAULTS_MAX_TOKENS".into()));
        assert_eq!(origin("agents.defaults.max_retries"), Origin::File);
        assert_eq!(origin("agents.defaults.model_name"), Origin::Flag("--model"));
        assert_eq!(origin("agents.defaults.timeout"), Origin::Default);
    }

    #[test]
    fn every_path_has_a_variable_that_works() {
        for key in KEYS {
            let Some(name) = table::env_name(key.path) else {
                let whole = |list: &&&str| key.path.starts_with(**list);
                assert!(WHOLE.iter().any(|list| whole(&list)), "{} can be set by no variable", key.path);
                continue;
            };
            let (text, value) = match key.kind {
                Kind::Text | Kind::Secret => ("x y".to_owned(), json!("x y")),
                Kind::Bool => {
                    let other = key.default != "true";
                    (other.to_string(), json!(other))
                }
                Kind::Whole(least) => ((least + 7).to_string(), json!(least + 7)),
                Kind::Number(_) | Kind::Maybe(_) => ("2.5".to_owned(), json!(2.5)),
                Kind::Choice(words) => {
                    let word = words[words.len() - 1];
                    (word.to_owned(), json!(word))
                }
                Kind::Texts | Kind::Secrets => ("a, b".to_owned(), json!(["a", "b"])),
                Kind::Map | Kind::Any => (r#"{"a":"b"}"#.to_owned(), json!({"a": "b"})),
            };
            let env = BTreeMap::from([(name.clone(), text)]);
            let tree = load(Some(("c", "{}")), &env, Vec::new()).unwrap();
            let found = key.path.split('.').fold(&tree.value, |at, part| &at[part]);
            assert_eq!(*found, value, "{name}");
            assert_eq!(tree.origins.get(key.path), Some(&Origin::Env(name)));
            assert!(super::super::Config::load(None, &env, Vec::new()).is_ok());
        }
    }

    #[test]
    fn both_spellings_are_read_and_ids_may_be_numbers() {
        let tree = file(r#"{"channels":{"telegram":{"allowFrom":[12,"34"]}},"modelList":[{"apiKey":"k"}]}"#).unwrap();
        assert_eq!(tree.value["channels"]["telegram"]["allow_from"], json!(["12", "34"]));
        assert_eq!(tree.value["model_list"][0]["api_key"], "k");
        assert_eq!(tree.origins.get("model_list.0.api_key"), Some(&Origin::File));
        assert!(tree.warnings.is_empty(), "{:?}", tree.warnings);
    }

    #[test]
    fn unknown_keys_are_named_with_the_nearest_and_are_not_fatal() {
        let tree = file(r#"{"agents":{"defaults":{"max_tokns":1}},"zzzz":{"a":1},"mcpServers":{"x":{"comand":"y"}}}"#)
            .unwrap();
        assert_eq!(
            tree.warnings,
            [
                "config.json: \"agents.defaults.max_tokns\" means nothing here; did you mean \"max_tokens\"?",
                "config.json: \"mcpServers.x.comand\" means nothing here; did you mean \"command\"?",
                "config.json: \"zzzz\" means nothing here",
            ]
        );
    }

    #[test]
    fn errors_say_line_column_key_and_what_would_be_right() {
        let error = file("{\n  \"agents\": {\n    \"defaults\": {\"timeout\": 5,,}\n}}").err().unwrap();
        assert!(error.message.contains("line 3, column 31, near \"agents.defaults.timeout\""), "{error}");
        let cases = [
            (r#"{"tools":{"exec":{"sandbox":"on"}}}"#, "line 1, column 29", "one of: auto, require, off"),
            (r#"{"agents":{"defaults":{"timeout":"5"}}}"#, "\"agents.defaults.timeout\" is \"5\"", "at least 1"),
            (r#"{"agents":[]}"#, "\"agents\" is []", "an object in braces"),
            (r#"{"model_list":{}}"#, "\"model_list\" is {}", "a list in brackets"),
            (r#"{"model_list":[3]}"#, "\"model_list.0\" is 3", "an object in braces"),
        ];
        for (text, message, hint) in cases {
            let error = file(text).err().unwrap();
            assert!(error.message.contains(message), "{}", error.message);
            assert!(error.hint.clone().unwrap().contains(hint), "{:?}", error.hint);
        }
    }

    #[test]
    fn a_secret_of_the_wrong_kind_is_not_shown() {
        let error = file(r#"{"model_list":[{"api_key":["sk-hush"]}]}"#).err().unwrap();
        assert!(!error.message.contains("sk-hush"), "{}", error.message);
    }
}
