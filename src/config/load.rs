//! Lays the layers over each other: defaults, config.json, environment, flags.
//!
//! The table of settings drives it: what a layer has is looked up in the table, and what is not there is unknown.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::locate;
use super::settings::{self, Place, SECTIONS, SETTINGS, Setting, same_name};
use super::{Config, Env, Loaded};
use crate::error::{Error, Result};
use crate::text::parse_json;

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
    pub(crate) fn load(
        file: Option<(&str, &str)>,
        env: &Env,
        flags: Vec<Override>,
    ) -> Result<Loaded> {
        let sections = sections(env)?;
        let mut layers = Layers {
            values: json!({}),
            origins: BTreeMap::new(),
            warnings: Vec::new(),
        };
        layers.add_defaults(&[]);
        if let Some((name, text)) = file {
            let mut file = Source::parse(name, text, Origin::File)?;
            refuse_foreign(&file)?;
            for (section, _) in &sections {
                file.value
                    .as_object_mut()
                    .into_iter()
                    .for_each(|members| members.retain(|name, _| !same_name(name, section)));
            }
            layers.add(&file, &file.value, &mut Vec::new())?;
        }
        for (_, source) in &sections {
            layers.add(source, &source.value, &mut Vec::new())?;
        }
        for (path, value, origin) in environment(env)?.into_iter().chain(flags) {
            layers.set(path.split('.'), value, origin);
        }
        let Layers {
            values,
            origins,
            warnings,
        } = layers;
        let mut config = Self::deserialize(&values)
            .map_err(|e| Error::config(format!("reading the configuration: {e}")))?;
        config.has_file = file.is_some();
        // A flag wins over a model's own entry, too.
        let is_flag = |path: &str| matches!(origins.get(path), Some(Origin::Flag(_)));
        for entry in &mut config.model_list {
            if is_flag("agents.defaults.max_tokens") {
                entry.max_tokens = 0;
            }
            if is_flag("agents.defaults.temperature") {
                entry.temperature = None;
            }
        }
        Ok(Loaded {
            config,
            values,
            origins,
            warnings,
        })
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
        let value: Value = parse_json(text).map_err(|e| {
            let near = locate::key_before(text, e.line(), e.column());
            let near = near.map_or(String::new(), |key| format!(", near \"{key}\""));
            let what = e.to_string();
            let what = syntax_error(what.split(" at line ").next().unwrap_or_default());
            fail(format!(
                ", line {}, column {}{near}: {what}",
                e.line(),
                e.column()
            ))
            .hint("correct that line; JSON wants double quotes, and no comma after the last entry")
        })?;
        if !value.is_object() {
            return Err(fail(" is not a JSON object".to_owned())
                .hint("it should begin with { and end with }"));
        }
        Ok(Self {
            name: name.to_owned(),
            text: text.to_owned(),
            value,
            origin,
        })
    }

    fn wrong(&self, value: &Value, setting: &Setting, path: &[&str]) -> Error {
        let unquoted = value
            .as_str()
            .filter(|text| setting.check(&setting.parse(text)).is_some());
        self.error(path, &describe(value, setting.is_secret()))
            .hint(match unquoted {
                Some(text) => format!("write {text} without quotes"),
                None => format!("it must be {}", setting.expected()),
            })
    }

    fn error(&self, path: &[&str], value: &str) -> Error {
        let place = locate::position(&self.text, path).map_or(String::new(), |(line, column)| {
            format!(", line {line}, column {column}")
        });
        Error::config(format!(
            "{}{place}: {} is {value}",
            self.name,
            path.join(".")
        ))
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
        what if what.starts_with("control character") => {
            "a text is not closed before the end of its line".to_owned()
        }
        what => what.replace('`', "\""),
    }
}

/// What the layers say so far.
struct Layers {
    values: Value,
    origins: BTreeMap<String, Origin>,
    warnings: Vec<String>,
}

impl Layers {
    /// The defaults of an entry of a list or a map, or outside of them.
    fn add_defaults(&mut self, names: &[&str]) {
        for setting in settings::below(names) {
            let path: Vec<&str> = settings::named(setting, names).collect();
            let (default, end) = match path.iter().position(|name| matches!(*name, "]" | "*")) {
                Some(at) if path[at] == "]" => (json!([]), at),
                Some(at) => (json!({}), at),
                None => (setting.default(), path.len()),
            };
            let slot = slot(&mut self.values, path.into_iter().take(end));
            if slot.is_null() {
                *slot = default;
            }
        }
    }

    fn set<'a>(
        &mut self,
        path: impl Iterator<Item = &'a str> + Clone,
        value: Value,
        origin: Origin,
    ) {
        self.origins
            .insert(path.clone().collect::<Vec<_>>().join("."), origin);
        *slot(&mut self.values, path) = value;
    }

    /// Adds `value`, which stands at `path` in the source.
    fn add(&mut self, source: &Source, value: &Value, path: &mut Vec<String>) -> Result<()> {
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        if !names.is_empty() && !settings::is_known(&names, Place::Anywhere) {
            let meant = settings::meant(&names)
                .map_or(String::new(), |meant| format!("; did you mean {meant}?"));
            self.warnings.push(format!(
                "{}: unknown setting {}{meant}",
                source.name,
                names.join(".")
            ));
            return Ok(());
        }
        if !settings::is_known(&names, Place::Setting) {
            self.add_defaults(&names);
        }
        let setting = settings::find(&names);
        let is_list = setting.is_none() && settings::is_list(&names);
        match (setting, value) {
            // As if it were not there.
            (_, Value::Null) => Ok(()),
            (Some(setting), value) => {
                let Some(checked) = setting.check(value) else {
                    return Err(source.wrong(value, setting, &names));
                };
                self.set(
                    settings::named(setting, &names),
                    checked,
                    source.origin.clone(),
                );
                Ok(())
            }
            (None, Value::Array(items)) if is_list => {
                (0..).zip(items).try_for_each(|(n, item): (usize, _)| {
                    self.add_below(source, &n.to_string(), item, path)
                })
            }
            (None, Value::Object(members)) if !is_list => members
                .iter()
                .try_for_each(|(name, value)| self.add_below(source, name, value, path)),
            (None, value) => {
                let expected = if is_list {
                    "a list in brackets"
                } else {
                    "an object in braces"
                };
                Err(source
                    .error(&names, &describe(value, false))
                    .hint(format!("it must be {expected}")))
            }
        }
    }

    fn add_below(
        &mut self,
        source: &Source,
        name: &str,
        value: &Value,
        path: &mut Vec<String>,
    ) -> Result<()> {
        path.push(name.to_owned());
        let added = self.add(source, value, path);
        path.pop();
        added
    }
}

/// The place of a value. What is missing on the way is made.
fn slot<'a, 'b>(values: &'a mut Value, path: impl Iterator<Item = &'b str>) -> &'a mut Value {
    path.fold(values, |at, name| match at {
        Value::Array(items) => {
            let n = name.parse().unwrap_or(0);
            items.resize(items.len().max(n + 1), Value::Null);
            &mut items[n]
        }
        at => &mut at[name],
    })
}

/// A value for an error message. A long text may be a key in the wrong place, and a list or an object may hold one.
fn describe(value: &Value, is_secret: bool) -> String {
    match value {
        Value::String(text) if text.len() < 12 && !is_secret => format!("\"{text}\" (a string)"),
        Value::Bool(_) | Value::Number(_) if !is_secret => value.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Number(_) => "a number".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::Bool(_) | Value::Null => value.to_string(),
    }
}

/// What only the configurations of picoclaw, nanobot and `SmartBot` have.
const FOREIGN: [&str; 6] = [
    "providers",
    "channel_list",
    "model",
    "gateway_host",
    "gateway.host",
    "gateway.port",
];

/// Other programs' files are converted once, by `onboard --import`.
fn refuse_foreign(file: &Source) -> Result<()> {
    let has = |path: &&&str| {
        settings::value_at(&file.value, &path.split('.').collect::<Vec<_>>()).is_some()
    };
    let Some(path) = FOREIGN.iter().find(has) else {
        return Ok(());
    };
    let name = &file.name;
    Err(Error::config(format!(
        "{name} is the configuration of another program: it has \"{path}\""
    ))
    .hint(format!(
        "bantam onboard --import {}",
        shell_words::quote(name)
    )))
}

/// The sections that a variable sets.
fn sections(env: &Env) -> Result<Vec<(&'static str, Source)>> {
    let mut sections = Vec::new();
    for section in SECTIONS {
        let name = format!("BANTAM_{}", section.to_ascii_uppercase());
        if let Some(text) = env.get(&name).filter(|text| !text.is_empty()) {
            let text = format!("{{\"{section}\":{text}}}");
            sections.push((
                section,
                Source::parse(&name, &text, Origin::Env(name.clone()))?,
            ));
        }
    }
    Ok(sections)
}

/// The variables that name a setting, those with precedence last.
fn environment(env: &Env) -> Result<Vec<Override>> {
    let mut found = Vec::new();
    if let Some(token) = env
        .get("TELEGRAM_BOT_TOKEN")
        .filter(|token| !token.is_empty())
    {
        let name = "TELEGRAM_BOT_TOKEN".to_owned();
        found.push((
            "channels.telegram.token",
            token.as_str().into(),
            Origin::Env(name),
        ));
    }
    for (name, text) in env
        .iter()
        .filter(|(name, text)| name.starts_with("BANTAM_") && !text.is_empty())
    {
        let named = |setting: &&Setting| setting.env_name().as_ref() == Some(name);
        let Some(setting) = SETTINGS.iter().find(named) else {
            continue;
        };
        let value = setting.parse(text);
        let checked = setting.check(&value).ok_or_else(|| {
            Error::config(format!(
                "{name} is {}",
                describe(&value, setting.is_secret())
            ))
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
            (
                "BANTAM_AGENTS_DEFAULTS_MAX_TOKENS".to_owned(),
                "7".to_owned(),
            ),
            (
                "BANTAM_CHANNELS_TELEGRAM_ALLOW_FROM".to_owned(),
                "1, 2".to_owned(),
            ),
            (
                "BANTAM_MODEL_LIST".to_owned(),
                r#"[{"model":"openai/x"}]"#.to_owned(),
            ),
        ]);
        let text = r#"{"agents":{"defaults":{"max_tokens":5,"max_retries":1}},"session":null,"model_list":[{},{}]}"#;
        let flag = (
            "agents.defaults.model_name",
            json!("fast"),
            Origin::Flag("--model"),
        );
        let layers = Config::load(Some(("c", text)), &env, vec![flag]).unwrap();
        let defaults = &layers.values["agents"]["defaults"];
        assert_eq!(defaults["max_tokens"], 7);
        assert_eq!(defaults["max_retries"], 1);
        assert_eq!(defaults["timeout"], 600);
        assert_eq!(defaults["model_name"], "fast");
        assert_eq!(
            layers.values["channels"]["telegram"]["allow_from"],
            json!(["1", "2"])
        );
        assert_eq!(layers.values["model_list"].as_array().unwrap().len(), 1);
        assert_eq!(layers.values["model_list"][0]["request_timeout"], 0);
        assert_eq!(layers.values["session"]["compact_at"], 0.8);
        for (path, origin) in [
            (
                "agents.defaults.max_tokens",
                Some(Origin::Env("BANTAM_AGENTS_DEFAULTS_MAX_TOKENS".into())),
            ),
            ("agents.defaults.max_retries", Some(Origin::File)),
            ("agents.defaults.model_name", Some(Origin::Flag("--model"))),
            ("agents.defaults.timeout", None),
            (
                "model_list.0.model",
                Some(Origin::Env("BANTAM_MODEL_LIST".into())),
            ),
        ] {
            assert_eq!(layers.origins.get(path), origin.as_ref(), "{path}");
        }
    }

    #[test]
    fn every_setting_has_a_variable_that_works() {
        for setting in SETTINGS {
            let Some(name) = setting.env_name() else {
                assert!(
                    SECTIONS.contains(&setting.segments().next().unwrap()),
                    "no variable can set {}",
                    setting.path
                );
                continue;
            };
            let (text, value) = match setting.kind {
                Type::Text | Type::Secret => ("x y".to_owned(), json!("x y")),
                Type::Bool(default) => ((!default).to_string(), json!(!default)),
                Type::Whole(least, _) => ((least + 7).to_string(), json!(least + 7)),
                Type::Number(..) | Type::Optional => ("2.5".to_owned(), json!(2.5)),
                Type::OneOf(_, words) => (
                    words[words.len() - 1].to_owned(),
                    json!(words[words.len() - 1]),
                ),
                Type::Texts | Type::Secrets => ("a, b".to_owned(), json!(["a", "b"])),
                Type::Map | Type::Any => (r#"{"a":"b"}"#.to_owned(), json!({"a": "b"})),
            };
            let env = Env::from([(name.clone(), text)]);
            let loaded = Config::load(Some(("c", "{}")), &env, Vec::new()).unwrap();
            let found = setting
                .path
                .split('.')
                .fold(&loaded.values, |at, name| &at[name]);
            assert_eq!(*found, value, "{name}");
            assert_eq!(loaded.origins.get(setting.path), Some(&Origin::Env(name)));
        }
    }

    #[test]
    fn both_spellings_are_read_and_ids_may_be_numbers() {
        let layers = file(
            r#"{"channels":{"telegram":{"allowFrom":[12,"34"]}},"modelList":[{"apiKey":"k"}]}"#,
        )
        .unwrap();
        assert_eq!(
            layers.values["channels"]["telegram"]["allow_from"],
            json!(["12", "34"])
        );
        assert_eq!(layers.values["model_list"][0]["api_key"], "k");
        assert_eq!(
            layers.origins.get("model_list.0.api_key"),
            Some(&Origin::File)
        );
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
        let error = file("{\n  \"agents\": {\n    \"defaults\": {\"timeout\": 5,,}\n}}")
            .err()
            .unwrap();
        assert!(
            error
                .message
                .contains("line 3, column 31, near \"timeout\""),
            "{error}"
        );
        let cases = [
            ("  ", "config.json is empty", "run bantam onboard"),
            (
                r#"{"tools":{"exec":{"sandbox":"on"}}}"#,
                "line 1, column 29",
                "one of: auto, require, off",
            ),
            (
                r#"{"agents":{"defaults":{"timeout":"5"}}}"#,
                "agents.defaults.timeout is \"5\" (a string)",
                "write 5 with",
            ),
            (
                r#"{"agents":{"defaults":{"timeout":0}}}"#,
                "agents.defaults.timeout is 0",
                "at least 1",
            ),
            (
                r#"{"agents":[]}"#,
                "agents is a list",
                "an object in braces",
            ),
            (
                r#"{"model_list":{}}"#,
                "model_list is an object",
                "a list in brackets",
            ),
            (
                r#"{"model_list":[3]}"#,
                "model_list.0 is 3",
                "an object in braces",
            ),
        ];
        for (text, message, hint) in cases {
            let error = file(text).err().unwrap();
            assert!(error.message.contains(message), "{}", error.message);
            assert!(
                error.hint.clone().unwrap().contains(hint),
                "{:?}",
                error.hint
            );
        }
        for text in [
            r#"{"model_list":[{"api_key":["sk-hush"]}]}"#,
            r#"{"agents":{"defaults":{"max_tokens":"sk-hush-hush"}}}"#,
        ] {
            assert!(
                !file(text).err().unwrap().message.contains("sk-hush"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_configuration_of_another_program_is_recognised() {
        for name in ["picoclaw-v0", "picoclaw-v3", "nanobot", "smartbot"] {
            let path = format!(
                "{}/tests/it/configs/{name}.json",
                env!("CARGO_MANIFEST_DIR")
            );
            let text = std::fs::read_to_string(path).unwrap();
            let error = Config::load(Some(("/a b/config.json", &text)), &Env::new(), Vec::new())
                .err()
                .unwrap();
            assert_eq!(
                error.hint.as_deref(),
                Some("bantam onboard --import '/a b/config.json'"),
                "{name}"
            );
        }
    }
}
