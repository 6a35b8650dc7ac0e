//! Lays the layers over each other: defaults, config.json, environment, flags.
//!
//! The table of settings drives it: each setting is looked up in every layer, and what the file has beyond that is unknown.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::locate;
use super::settings::{SECTIONS, SETTINGS, Setting, same_name};
use super::{Config, Env, Loaded};
use crate::error::{Error, Result};
use crate::text::nearest;

/// Where a value came from, unless it is a default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    File,
    /// The variable's name.
    Env(String),
    /// The flag's name.
    Flag(&'static str),
}

/// A layer above the file: the path, its value, and where it came from.
pub(crate) type Override = (&'static str, Value, Origin);

impl Config {
    /// Lays the layers over each other. `file` is the name and the text of config.json.
    pub(crate) fn load(file: Option<(&str, &str)>, env: &Env, flags: Vec<Override>) -> Result<Loaded> {
        let file = file.map(|(name, text)| Source::parse(name, text, Origin::File)).transpose()?;
        if let Some(file) = &file {
            refuse_foreign(file)?;
        }
        let mut overrides = environment(env)?;
        overrides.extend(flags);
        let sections = sections(env)?;
        let (origins, warnings) = (BTreeMap::new(), Vec::new());
        let mut layers = Layers { sections: &sections, overrides, path: Vec::new(), origins, warnings };
        let segments: Vec<_> = SETTINGS.iter().map(Setting::segments).collect();
        let rows: Vec<Row> = SETTINGS.iter().zip(segments.iter().map(Vec::as_slice)).collect();
        let values = layers.fill(file.as_ref(), file.as_ref().map(|file| &file.value), &rows)?;
        let mut config =
            Self::deserialize(&values).map_err(|e| Error::config(format!("reading the configuration: {e}")))?;
        // A flag wins over a model's own entry, too.
        let is_flag = |path: &str| matches!(layers.origins.get(path), Some(Origin::Flag(_)));
        for entry in &mut config.model_list {
            if is_flag("agents.defaults.max_tokens") {
                entry.max_tokens = 0;
            }
            if is_flag("agents.defaults.temperature") {
                entry.temperature = None;
            }
        }
        Ok(Loaded { config, values, origins: layers.origins, warnings: layers.warnings })
    }
}

/// JSON that values are taken from: config.json, or a variable that holds a section.
struct Source {
    name: String,
    text: String,
    value: Value,
    origin: Origin,
}

impl Source {
    fn parse(name: &str, text: &str, origin: Origin) -> Result<Self> {
        // Some editors write a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let fail = |what: String| Error::config(format!("{name}{what}"));
        if text.trim().is_empty() {
            return Err(fail(" is empty".to_owned()).hint("delete it and run bantam onboard"));
        }
        let value: Value = serde_json::from_str(text).map_err(|e| {
            let near = locate::key_before(text, e.line(), e.column());
            let near = near.map_or(String::new(), |key| format!(", near \"{key}\""));
            let what = e.to_string();
            let what = syntax_error(what.split(" at line ").next().unwrap_or_default());
            fail(format!(", line {}, column {}{near}: {what}", e.line(), e.column()))
                .hint("correct that line; JSON wants double quotes, and no comma after the last entry")
        })?;
        if !value.is_object() {
            return Err(fail(" is not a JSON object".to_owned()).hint("it should begin with { and end with }"));
        }
        Ok(Self { name: name.to_owned(), text: text.to_owned(), value, origin })
    }
}

/// What is wrong with JSON, in plain words.
fn syntax_error(what: &str) -> String {
    match what {
        what if what.starts_with("EOF") => {
            "the file ends too early: a bracket, a brace or a quote is not closed".to_owned()
        }
        "key must be a string" => "a name in double quotes should be here".to_owned(),
        "expected value" => "a value should be here".to_owned(),
        "trailing comma" => "there is a comma after the last entry".to_owned(),
        "trailing characters" => "there is more text after the end".to_owned(),
        what if what.starts_with("control character") => "a text is not closed before the end of its line".to_owned(),
        what => what.replace('`', "\""),
    }
}

/// A setting, and the part of its path that is below the place where the walk is.
type Row<'a> = (&'static Setting, &'a [&'static str]);

/// Walks config.json and the table of settings together.
struct Layers<'a> {
    /// Sections that a variable sets as a whole.
    sections: &'a [(&'static str, Source)],
    /// The highest last.
    overrides: Vec<Override>,
    /// Where the walk is, by the table's names.
    path: Vec<String>,
    origins: BTreeMap<String, Origin>,
    warnings: Vec<String>,
}

impl Layers<'_> {
    /// The value here, of which `rows` are the settings; `found` is what the source has.
    fn fill(&mut self, source: Option<&Source>, found: Option<&Value>, rows: &[Row]) -> Result<Value> {
        // null means: as if it were not there.
        let found = found.filter(|value| !value.is_null());
        let (setting, segments) = rows[0];
        match (segments.first().copied(), found) {
            (None, _) => self.value(source, found, setting),
            (Some("[]"), None) => Ok(json!([])),
            (Some("[]"), Some(Value::Array(items))) => {
                let rows = below(rows, "[]");
                let items = items.iter().enumerate();
                items.map(|(n, item)| self.child(&n.to_string(), source, Some(item), &rows)).collect()
            }
            (Some("[]"), Some(value)) => Err(self.wrong(source, value, setting, "a list in brackets")),
            (Some(_), None) => self.object(source, &Map::new(), rows),
            (Some(_), Some(Value::Object(members))) => self.object(source, members, rows),
            (Some(_), Some(value)) => Err(self.wrong(source, value, setting, "an object in braces")),
        }
    }

    fn object(&mut self, source: Option<&Source>, found: &Map<String, Value>, rows: &[Row]) -> Result<Value> {
        let mut names: Vec<&str> = rows.iter().map(|(_, segments)| segments[0]).collect();
        names.dedup();
        if names == ["*"] {
            names = found.keys().map(String::as_str).collect();
        }
        for key in found.keys().filter(|key| !names.iter().any(|name| same_name(name, key))) {
            let path = |name: &str| [&self.path[..], &[name.to_owned()]].concat().join(".");
            let meant = nearest(key, names.iter().copied()).map(path).or_else(|| elsewhere(key));
            let meant = meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"));
            let file = source.map_or("", |source| &source.name);
            self.warnings.push(format!("{file}: unknown setting {}{meant}", path(key)));
        }
        let mut values = Map::new();
        for name in names {
            let section = self.sections.iter().find(|(section, _)| *section == name && self.path.is_empty());
            let member = found.iter().find(|(key, _)| same_name(name, key)).map(|(_, value)| value);
            let (source, member) = match section {
                Some((_, section)) => (Some(section), section.value.get(name)),
                None => (source, member),
            };
            values.insert(name.to_owned(), self.child(name, source, member, &below(rows, name))?);
        }
        Ok(Value::Object(values))
    }

    fn child(&mut self, name: &str, source: Option<&Source>, found: Option<&Value>, rows: &[Row]) -> Result<Value> {
        self.path.push(name.to_owned());
        let value = self.fill(source, found, rows);
        self.path.pop();
        value
    }

    /// The value that the highest layer gives to a setting.
    fn value(&mut self, source: Option<&Source>, found: Option<&Value>, setting: &Setting) -> Result<Value> {
        let path = self.path.join(".");
        if let Some((_, value, origin)) = self.overrides.iter().rev().find(|(name, ..)| *name == path) {
            self.origins.insert(path, origin.clone());
            return Ok(value.clone());
        }
        let (Some(value), Some(source)) = (found, source) else { return Ok(setting.default()) };
        let Some(checked) = setting.check(value) else {
            return Err(self.wrong(Some(source), value, setting, &setting.expected()));
        };
        self.origins.insert(path, source.origin.clone());
        Ok(checked)
    }

    fn wrong(&self, source: Option<&Source>, value: &Value, setting: &Setting, expected: &str) -> Error {
        let place = source.map_or(String::new(), |Source { name, text, .. }| {
            let at = locate::position(text, &self.path);
            at.map_or(name.clone(), |(line, column)| format!("{name}, line {line}, column {column}"))
        });
        let message = format!("{place}: {} is {}", self.path.join("."), describe(value, setting));
        let unquoted = value.as_str().filter(|text| setting.check(&setting.parse(text)).is_some());
        Error::config(message).hint(match unquoted {
            Some(text) => format!("write {text} without quotes"),
            None => format!("it must be {expected}"),
        })
    }
}

/// The settings below a member.
fn below<'a>(rows: &[Row<'a>], name: &str) -> Vec<Row<'a>> {
    let rows = rows.iter().filter(|(_, segments)| segments[0] == name || segments[0] == "*");
    rows.map(|(setting, segments)| (*setting, &segments[1..])).collect()
}

/// The setting of about this name in another place.
fn elsewhere(name: &str) -> Option<String> {
    let last = |setting: &'static Setting| setting.path.rsplit('.').next().unwrap_or_default();
    let near = nearest(name, SETTINGS.iter().map(last))?;
    SETTINGS.iter().find(|setting| last(setting) == near).map(|setting| setting.path.to_owned())
}

/// A value for an error message. A long text may be a key in the wrong place, and a list or an object may hold one.
fn describe(value: &Value, setting: &Setting) -> String {
    match value {
        Value::String(text) if text.len() < 12 && !setting.is_secret() => format!("\"{text}\" (a string)"),
        Value::Bool(_) | Value::Number(_) if !setting.is_secret() => value.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Number(_) => "a number".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::Bool(_) | Value::Null => value.to_string(),
    }
}

/// What only the configurations of picoclaw, nanobot and `SmartBot` have.
const FOREIGN: [&str; 6] = ["providers", "channel_list", "model", "gateway_host", "gateway.host", "gateway.port"];

/// Other programs' files are converted once, by `onboard --import`.
fn refuse_foreign(file: &Source) -> Result<()> {
    let has = |path: &&&str| {
        path.split('.').try_fold(&file.value, |at, name| {
            at.as_object()?.iter().find(|(key, _)| same_name(key, name)).map(|(_, value)| value)
        })
    };
    let Some(path) = FOREIGN.iter().find(|path| has(path).is_some()) else { return Ok(()) };
    let name = &file.name;
    Err(Error::config(format!("{name} is the configuration of another program: it has \"{path}\""))
        .hint(format!("bantam onboard --import {}", shell_words::quote(name))))
}

/// The sections that a variable sets.
fn sections(env: &Env) -> Result<Vec<(&'static str, Source)>> {
    let mut sections = Vec::new();
    for section in SECTIONS {
        let name = format!("BANTAM_{}", section.to_ascii_uppercase());
        if let Some(text) = env.get(&name).filter(|text| !text.is_empty()) {
            let text = format!("{{\"{section}\":{text}}}");
            sections.push((section, Source::parse(&name, &text, Origin::Env(name.clone()))?));
        }
    }
    Ok(sections)
}

/// The variables that name a setting, those with precedence last.
fn environment(env: &Env) -> Result<Vec<Override>> {
    let mut found = Vec::new();
    if let Some(token) = env.get("TELEGRAM_BOT_TOKEN").filter(|token| !token.is_empty()) {
        let name = "TELEGRAM_BOT_TOKEN".to_owned();
        found.push(("channels.telegram.token", token.as_str().into(), Origin::Env(name)));
    }
    for (name, text) in env.iter().filter(|(name, text)| name.starts_with("BANTAM_") && !text.is_empty()) {
        let named = |setting: &&Setting| setting.env_name().as_ref() == Some(name);
        let Some(setting) = SETTINGS.iter().find(named) else { continue };
        let value = setting.parse(text);
        let checked = setting.check(&value).ok_or_else(|| {
            Error::config(format!("{name} is {}", describe(&value, setting)))
                .hint(format!("it must be {}", setting.expected()))
        })?;
        found.push((setting.path, checked, Origin::Env(name.clone())));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::settings::Type;
    use super::*;

    fn file(text: &str) -> Result<Loaded> {
        Config::load(Some(("config.json", text)), &Env::new(), Vec::new())
    }

    #[test]
    fn later_layers_win_and_origins_say_who() {
        let env = Env::from([
            ("BANTAM_AGENTS_DEFAULTS_MAX_TOKENS".to_owned(), "7".to_owned()),
            ("BANTAM_CHANNELS_TELEGRAM_ALLOW_FROM".to_owned(), "1, 2".to_owned()),
            ("BANTAM_MODEL_LIST".to_owned(), r#"[{"model":"openai/x"}]"#.to_owned()),
        ]);
        let text = r#"{"agents":{"defaults":{"max_tokens":5,"max_retries":1}},"session":null,"model_list":[{},{}]}"#;
        let flag = ("agents.defaults.model_name", json!("fast"), Origin::Flag("--model"));
        let layers = Config::load(Some(("c", text)), &env, vec![flag]).unwrap();
        let defaults = &layers.values["agents"]["defaults"];
        assert_eq!(defaults["max_tokens"], 7);
        assert_eq!(defaults["max_retries"], 1);
        assert_eq!(defaults["timeout"], 600);
        assert_eq!(defaults["model_name"], "fast");
        assert_eq!(layers.values["channels"]["telegram"]["allow_from"], json!(["1", "2"]));
        assert_eq!(layers.values["model_list"].as_array().unwrap().len(), 1);
        assert_eq!(layers.values["model_list"][0]["request_timeout"], 0);
        assert_eq!(layers.values["session"]["compact_at"], 0.8);
        for (path, origin) in [
            ("agents.defaults.max_tokens", Some(Origin::Env("BANTAM_AGENTS_DEFAULTS_MAX_TOKENS".into()))),
            ("agents.defaults.max_retries", Some(Origin::File)),
            ("agents.defaults.model_name", Some(Origin::Flag("--model"))),
            ("agents.defaults.timeout", None),
            ("model_list.0.model", Some(Origin::Env("BANTAM_MODEL_LIST".into()))),
        ] {
            assert_eq!(layers.origins.get(path), origin.as_ref(), "{path}");
        }
    }

    #[test]
    fn every_setting_has_a_variable_that_works() {
        for setting in SETTINGS {
            let Some(name) = setting.env_name() else {
                assert!(SECTIONS.contains(&setting.segments()[0]), "no variable can set {}", setting.path);
                continue;
            };
            let (text, value) = match setting.kind {
                Type::Text | Type::Secret => ("x y".to_owned(), json!("x y")),
                Type::Bool(default) => ((!default).to_string(), json!(!default)),
                Type::Whole(least, _) => ((least + 7).to_string(), json!(least + 7)),
                Type::Number(..) | Type::Optional => ("2.5".to_owned(), json!(2.5)),
                Type::OneOf(_, words) => (words[words.len() - 1].to_owned(), json!(words[words.len() - 1])),
                Type::Texts | Type::Secrets => ("a, b".to_owned(), json!(["a", "b"])),
                Type::Map | Type::Any => (r#"{"a":"b"}"#.to_owned(), json!({"a": "b"})),
            };
            let env = Env::from([(name.clone(), text)]);
            let loaded = Config::load(Some(("c", "{}")), &env, Vec::new()).unwrap();
            let found = setting.path.split('.').fold(&loaded.values, |at, name| &at[name]);
            assert_eq!(*found, value, "{name}");
            assert_eq!(loaded.origins.get(setting.path), Some(&Origin::Env(name)));
        }
    }

    #[test]
    fn both_spellings_are_read_and_ids_may_be_numbers() {
        let layers = file(r#"{"channels":{"telegram":{"allowFrom":[12,"34"]}},"modelList":[{"apiKey":"k"}]}"#).unwrap();
        assert_eq!(layers.values["channels"]["telegram"]["allow_from"], json!(["12", "34"]));
        assert_eq!(layers.values["model_list"][0]["api_key"], "k");
        assert_eq!(layers.origins.get("model_list.0.api_key"), Some(&Origin::File));
        assert!(layers.warnings.is_empty(), "{:?}", layers.warnings);
    }

    #[test]
    fn unknown_settings_are_named_with_the_nearest_and_are_not_fatal() {
        let text = r#"{"agents":{"defaults":{"max_tokns":1},"model_name":"x"},"zzzz":{"a":1},
            "mcpServers":{"x":{"comand":"y","env":{"A":"b"}}},"model_list":[{"modle":"x","extra_body":{"a":{"b":1}}}]}"#;
        let expected = [
            "config.json: unknown setting zzzz",
            "config.json: unknown setting agents.model_name; did you mean agents.defaults.model_name?",
            "config.json: unknown setting agents.defaults.max_tokns; did you mean agents.defaults.max_tokens?",
            "config.json: unknown setting model_list.0.modle; did you mean model_list.0.model?",
            "config.json: unknown setting mcpServers.x.comand; did you mean mcpServers.x.command?",
        ];
        assert_eq!(file(text).unwrap().warnings, expected);
    }

    #[test]
    fn errors_say_line_column_setting_and_what_to_write() {
        let error = file("{\n  \"agents\": {\n    \"defaults\": {\"timeout\": 5,,}\n}}").err().unwrap();
        assert!(error.message.contains("line 3, column 31, near \"timeout\""), "{error}");
        let cases = [
            ("  ", "config.json is empty", "run bantam onboard"),
            (r#"{"tools":{"exec":{"sandbox":"on"}}}"#, "line 1, column 29", "one of: auto, require, off"),
            (
                r#"{"agents":{"defaults":{"timeout":"5"}}}"#,
                "agents.defaults.timeout is \"5\" (a string)",
                "write 5 with",
            ),
            (r#"{"agents":{"defaults":{"timeout":0}}}"#, "agents.defaults.timeout is 0", "at least 1"),
            (r#"{"agents":[]}"#, "agents is a list", "an object in braces"),
            (r#"{"model_list":{}}"#, "model_list is an object", "a list in brackets"),
            (r#"{"model_list":[3]}"#, "model_list.0 is 3", "an object in braces"),
        ];
        for (text, message, hint) in cases {
            let error = file(text).err().unwrap();
            assert!(error.message.contains(message), "{}", error.message);
            assert!(error.hint.clone().unwrap().contains(hint), "{:?}", error.hint);
        }
        for text in
            [r#"{"model_list":[{"api_key":["sk-hush"]}]}"#, r#"{"agents":{"defaults":{"max_tokens":"sk-hush-hush"}}}"#]
        {
            assert!(!file(text).err().unwrap().message.contains("sk-hush"), "{text}");
        }
    }

    #[test]
    fn the_configuration_of_another_program_is_recognised() {
        for name in ["picoclaw-v0", "picoclaw-v3", "nanobot", "smartbot"] {
            let path = format!("{}/tests/it/configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            let error = Config::load(Some(("/a b/config.json", &text)), &Env::new(), Vec::new()).err().unwrap();
            assert_eq!(error.hint.as_deref(), Some("bantam onboard --import '/a b/config.json'"), "{name}");
        }
    }
}
