//! Lays the layers over each other: defaults, config.json, environment, flags.
//!
//! The table of settings drives it: each setting is looked up in every layer, and what the file has beyond that is unknown.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Env;
use super::locate;
use super::settings::{SECTIONS, SETTINGS, Setting, same_name};
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

/// Every setting has a value; those without an origin have their default.
#[derive(Default)]
pub(super) struct Layers {
    pub values: Value,
    /// By path as the user could write it: `model_list.0.model`.
    pub origins: BTreeMap<String, Origin>,
    /// One sentence for each unknown setting.
    pub warnings: Vec<String>,
}

/// Lays the layers over each other. `file` is the name and the text of config.json.
pub(super) fn load(file: Option<(&str, &str)>, env: &Env, flags: Vec<Override>) -> Result<Layers> {
    let mut sources = Vec::new();
    for section in SECTIONS {
        let name = format!("BANTAM_{}", section.to_ascii_uppercase());
        if let Some(text) = env.get(&name).filter(|text| !text.is_empty()) {
            let text = format!("{{\"{section}\":{text}}}");
            sources.push((section, Source::parse(&name, &text, Origin::Env(name.clone()))?));
        }
    }
    let file = file.map(|(name, text)| Source::parse(name, text, Origin::File)).transpose()?;
    if let Some(file) = &file {
        refuse_foreign(file)?;
    }
    let mut overrides = environment(env)?;
    overrides.extend(flags);

    let mut layers = Layers::default();
    for setting in SETTINGS {
        let segments = setting.segments();
        let section = sources.iter().find(|(section, _)| *section == segments[0]).map(|(_, source)| source);
        let source = section.or(file.as_ref());
        let mut lookup = Lookup {
            setting,
            source,
            overrides: &overrides,
            origins: &mut layers.origins,
            path: Vec::new(),
            written: Vec::new(),
        };
        lookup.fill(source.map(|source| &source.value), &segments, &mut layers.values)?;
    }
    let segments: Vec<_> = SETTINGS.iter().map(Setting::segments).collect();
    let segments: Vec<_> = segments.iter().map(Vec::as_slice).collect();
    for source in sources.iter().map(|(_, source)| source).chain(&file) {
        find_unknown(&source.value, &segments, &mut Vec::new(), &mut |path| {
            layers.warnings.push(format!("{}: unknown setting {}{}", source.name, path.join("."), suggestion(path)));
        });
    }
    Ok(layers)
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
            let near = locate::last_path_before(text, e.line(), e.column());
            let near = if near.is_empty() { near } else { format!(", near \"{near}\"") };
            let what = e.to_string();
            let what = what.split(" at line ").next().unwrap_or_default();
            fail(format!(", line {}, column {}{near}: {what}", e.line(), e.column()))
                .hint("correct that line; JSON wants double quotes, and no comma after the last entry")
        })?;
        if !value.is_object() {
            return Err(fail(" is not a JSON object".to_owned()).hint("it should begin with { and end with }"));
        }
        Ok(Self { name: name.to_owned(), text: text.to_owned(), value, origin })
    }
}

/// One setting on its way through the layers.
struct Lookup<'a> {
    setting: &'a Setting,
    source: Option<&'a Source>,
    overrides: &'a [Override],
    origins: &'a mut BTreeMap<String, Origin>,
    /// How far `fill` has come, by the table's names and by the source's.
    path: Vec<String>,
    written: Vec<String>,
}

impl Lookup<'_> {
    /// Writes to `out` the values at `segments` below `found`: one, or one for each entry of a list or map.
    fn fill(&mut self, found: Option<&Value>, segments: &[&str], out: &mut Value) -> Result<()> {
        // null means: as if it were not there.
        let found = found.filter(|value| !value.is_null());
        let Some((segment, rest)) = segments.split_first() else {
            *out = self.value(found)?;
            return Ok(());
        };
        // The table's name, the source's name, and what the source has there.
        let children: Vec<(String, String, Option<&Value>)> = match (*segment, found) {
            ("[]", Some(value @ Value::Array(_))) | ("*", Some(value @ Value::Object(_))) => {
                members(value).into_iter().map(|(name, value)| (name.clone(), name, Some(value))).collect()
            }
            ("[]" | "*", None) => Vec::new(),
            ("[]", Some(value)) => return Err(self.wrong(value, "a list in brackets")),
            (name, Some(Value::Object(object))) => {
                let member = object.iter().find(|(key, _)| same_name(key, name));
                let written = member.map_or(name, |(key, _)| key);
                vec![(name.to_owned(), written.to_owned(), member.map(|(_, value)| value))]
            }
            (name, None) => vec![(name.to_owned(), name.to_owned(), None)],
            (_, Some(value)) => return Err(self.wrong(value, "an object in braces")),
        };
        if out.is_null() {
            *out = if *segment == "[]" { json!([]) } else { json!({}) };
        }
        for (n, (name, written, value)) in children.into_iter().enumerate() {
            let out = match &mut *out {
                Value::Array(list) => {
                    if list.len() == n {
                        list.push(Value::Null);
                    }
                    &mut list[n]
                }
                object => &mut object[name.as_str()],
            };
            self.path.push(name);
            self.written.push(written);
            self.fill(value, rest, out)?;
            self.path.pop();
            self.written.pop();
        }
        Ok(())
    }

    /// The value that the highest layer gives. `found` is the source's.
    fn value(&mut self, found: Option<&Value>) -> Result<Value> {
        let path = self.path.join(".");
        if let Some((_, value, origin)) = self.overrides.iter().rev().find(|(name, ..)| *name == path) {
            self.origins.insert(path, origin.clone());
            return Ok(value.clone());
        }
        let (Some(value), Some(source)) = (found, self.source) else { return Ok(self.setting.default()) };
        let Some(checked) = self.setting.check(value) else {
            return Err(self.wrong(value, &self.setting.expected()));
        };
        self.origins.insert(path, source.origin.clone());
        Ok(checked)
    }

    fn wrong(&self, value: &Value, expected: &str) -> Error {
        let (name, text) = self.source.map_or(("", ""), |source| (&source.name, &source.text));
        let place = locate::position(text, &self.written)
            .map_or(String::new(), |(line, column)| format!(", line {line}, column {column}"));
        let message = format!("{name}{place}: {} is {}", self.written.join("."), describe(value, self.setting));
        let unquoted = value.as_str().filter(|text| self.setting.check(&self.setting.parse(text)).is_some());
        Error::config(message).hint(match unquoted {
            Some(text) => format!("write {text} without quotes"),
            None => format!("it must be {expected}"),
        })
    }
}

/// The entries of a list or an object, by index or name.
fn members(value: &Value) -> Vec<(String, &Value)> {
    match value {
        Value::Array(list) => list.iter().enumerate().map(|(n, value)| (n.to_string(), value)).collect(),
        Value::Object(object) => object.iter().map(|(name, value)| (name.clone(), value)).collect(),
        _ => Vec::new(),
    }
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

/// Calls `report` with the path of each member of `value` that none of the settings has. `settings` holds the segments of
/// those that are at or below `value`.
fn find_unknown(
    value: &Value,
    settings: &[&[&'static str]],
    path: &mut Vec<String>,
    report: &mut dyn FnMut(&[String]),
) {
    if settings.iter().any(|segments| segments.is_empty()) {
        return;
    }
    for (name, value) in members(value) {
        let fits = |segment: &str| matches!(segment, "*" | "[]") || same_name(segment, &name);
        let below: Vec<_> =
            settings.iter().filter(|segments| fits(segments[0])).map(|segments| &segments[1..]).collect();
        path.push(name.clone());
        if below.is_empty() {
            report(path);
        } else {
            find_unknown(value, &below, path, report);
        }
        path.pop();
    }
}

/// The setting that was probably meant: one beside it, else one of this name elsewhere.
fn suggestion(path: &[String]) -> String {
    let Some((name, above)) = path.split_last() else { return String::new() };
    let fits = |segment: &str, name: &String| matches!(segment, "*" | "[]") || same_name(segment, name);
    let siblings = SETTINGS.iter().filter_map(|setting| {
        let segments = setting.segments();
        let is_beside = segments.len() >= path.len() && segments.iter().zip(above).all(|(s, n)| fits(s, n));
        is_beside.then(|| segments[above.len()])
    });
    let near = nearest(name, siblings).map(|sibling| [above, &[sibling.to_owned()]].concat().join("."));
    let last = |setting: &&Setting| setting.path.rsplit('.').next().unwrap_or_default();
    let elsewhere = || {
        let near = nearest(name, SETTINGS.iter().map(|setting| last(&setting)))?;
        SETTINGS.iter().find(|setting| last(setting) == near).map(|setting| setting.path.to_owned())
    };
    near.or_else(elsewhere).map_or(String::new(), |near| format!("; did you mean {near}?"))
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

    fn file(text: &str) -> Result<Layers> {
        load(Some(("config.json", text)), &Env::new(), Vec::new())
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
        let layers = load(Some(("c", text)), &env, vec![flag]).unwrap();
        let defaults = &layers.values["agents"]["defaults"];
        assert_eq!(defaults["max_tokens"], 7);
        assert_eq!(defaults["max_retries"], 1);
        assert_eq!(defaults["timeout"], 600);
        assert_eq!(defaults["model_name"], "fast");
        assert_eq!(layers.values["channels"]["telegram"]["allow_from"], json!(["1", "2"]));
        assert_eq!(layers.values["model_list"].as_array().unwrap().len(), 1);
        assert_eq!(layers.values["model_list"][0]["request_timeout"], 90);
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
            let loaded = super::super::Config::load(Some(("c", "{}")), &env, Vec::new()).unwrap();
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
            "config.json: unknown setting agents.defaults.max_tokns; did you mean agents.defaults.max_tokens?",
            "config.json: unknown setting agents.model_name; did you mean agents.defaults.model_name?",
            "config.json: unknown setting mcpServers.x.comand; did you mean mcpServers.x.command?",
            "config.json: unknown setting model_list.0.modle; did you mean model_list.0.model?",
            "config.json: unknown setting zzzz",
        ];
        assert_eq!(file(text).unwrap().warnings, expected);
    }

    #[test]
    fn errors_say_line_column_setting_and_what_to_write() {
        let error = file("{\n  \"agents\": {\n    \"defaults\": {\"timeout\": 5,,}\n}}").err().unwrap();
        assert!(error.message.contains("line 3, column 31, near \"agents.defaults.timeout\""), "{error}");
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
            let error = load(Some(("/a b/config.json", &text)), &Env::new(), Vec::new()).err().unwrap();
            assert_eq!(error.hint.as_deref(), Some("bantam onboard --import '/a b/config.json'"), "{name}");
        }
    }
}
