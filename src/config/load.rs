//! Overrides config.json with variables and flags, and reads the result into the settings.

use std::sync::Arc;

use serde_json::{Value, json};

use super::path::{self, correct_names, parse_at, shape, suggest};
use super::{Config, Env, check};
use crate::error::{Error, Result};
use crate::json::{explain as explain_json, parse_json};
use crate::paths::Home;
use crate::redact::Redactor;
use crate::text::{nearest, to_single_line};

/// Source of a value that is not from config.json.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Variable(String),
    Flag(&'static str),
}

/// A value that overrides the file.
#[derive(Clone)]
pub(crate) struct Override {
    pub path: Vec<String>,
    pub value: Value,
    pub origin: Origin,
}

impl Override {
    pub(crate) fn flag(flag: &'static str, path: &str, value: impl Into<Value>) -> Self {
        Self {
            path: path::split(path),
            value: value.into(),
            origin: Origin::Flag(flag),
        }
    }

    pub(crate) fn name(&self) -> &str {
        match &self.origin {
            Origin::Variable(name) => name,
            Origin::Flag(name) => name,
        }
    }
}

/// A home with its environment and its valid settings, from which agents, bots and requests are made.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub home: Home,
    pub env: Arc<Env>,
    pub config: Arc<Config>,
    /// One sentence for each unknown name or variable.
    pub warnings: Vec<String>,
    /// Overrides in ascending precedence.
    pub overrides: Vec<Override>,
    /// config.json, with the names of settings spelled as in [`Config`].
    pub file: Value,
}

impl Loaded {
    /// Merges the layers. `file` is the name and the text of config.json. Errors have the kind Config, or Usage for a flag's
    /// value.
    pub(crate) fn read(
        home: &Home,
        env: &Arc<Env>,
        file: Option<(&str, &str)>,
        flags: Vec<Override>,
    ) -> Result<Self> {
        let (name, mut value) = match file {
            Some((name, text)) => (name, parse(name, text)?),
            None => ("config.json", json!({})),
        };
        let (mut overrides, mut warnings) = variables(env);
        overrides.extend(flags);
        let layers = Layers {
            name,
            overrides: &overrides,
        };
        let (mut config, has_unknown) = layers.read(&value)?;
        if has_unknown {
            warnings.extend(layers.correct(&mut value));
            config = layers.read(&value)?.0;
        }
        config.has_file = file.is_some();
        // A flag also overrides a model's own entry.
        let is_flag = |path: &str| {
            overrides
                .iter()
                .any(|set| matches!(set.origin, Origin::Flag(_)) && set.path.join(".") == path)
        };
        if is_flag("agents.defaults.max_tokens") {
            config
                .model_list
                .iter_mut()
                .for_each(|entry| entry.max_tokens = 0);
        }
        if is_flag("agents.defaults.temperature") {
            config
                .model_list
                .iter_mut()
                .for_each(|entry| entry.temperature = None);
        }
        Ok(Self {
            home: home.clone(),
            env: env.clone(),
            config: Arc::new(config),
            warnings,
            overrides,
            file: value,
        })
    }

    /// Returns this home and environment with other settings.
    pub(crate) fn with(&self, config: Config) -> Self {
        Self {
            config: Arc::new(config),
            ..self.clone()
        }
    }

    /// Returns a redactor that knows the keys of the settings.
    pub(crate) fn redactor(&self) -> Redactor {
        Redactor::new(self.config.secrets(&self.env))
    }

    /// Returns the override that decides about a path.
    pub(crate) fn override_of(&self, path: &[String]) -> Option<&Override> {
        find_override(&self.overrides, path)
    }
}

fn find_override<'a>(overrides: &'a [Override], path: &[String]) -> Option<&'a Override> {
    overrides
        .iter()
        .rev()
        .find(|set| path.starts_with(&set.path))
}

#[cfg(test)]
impl Config {
    pub(crate) fn load(
        file: Option<(&str, &str)>,
        env: &Env,
        flags: Vec<Override>,
    ) -> Result<Loaded> {
        let home = Home::new(std::env::temp_dir());
        Loaded::read(&home, &Arc::new(env.clone()), file, flags)
    }
}

/// The overrides of a file, and the file's name for errors.
struct Layers<'a> {
    name: &'a str,
    overrides: &'a [Override],
}

impl Layers<'_> {
    /// Reads the file's value with its overrides. Returns whether it has unknown names.
    fn read(&self, file: &Value) -> Result<(Config, bool)> {
        let mut merged = None;
        for set in self.overrides {
            let merged = merged.get_or_insert_with(|| file.clone());
            path::set(merged, &set.path, set.value.clone());
        }
        let json = merged.as_ref().unwrap_or(file);
        let (config, has_unknown) = deserialize(json).map_err(|e| {
            let path = find_refused(json, &|json| json).unwrap_or_default();
            self.wrong(&path, "cannot be read", &expected(&e.to_string()))
        })?;
        if let Some(bad) = check::out_of_range(&config) {
            return Err(self.wrong(&path::split(&bad.path), &bad.what, &bad.hint));
        }
        Ok((config, has_unknown))
    }

    /// Creates the error for the value at a path. The value is not named, because it may be a misplaced key.
    fn wrong(&self, path: &[String], what: &str, hint: &str) -> Error {
        let set = find_override(self.overrides, path);
        let message = match set {
            Some(set) => format!("{} {what}", set.name()),
            None => format!("{}: {} {what}", self.name, path::join(path)),
        };
        let error = match set.map(|set| &set.origin) {
            Some(Origin::Flag(_)) => Error::usage(message),
            _ => Error::config(message),
        };
        error.hint(hint)
    }

    /// Corrects the spelling of names. Returns a warning for each unknown name.
    fn correct(&self, file: &mut Value) -> Vec<String> {
        let (shape, mut unknown) = (shape(), Vec::new());
        correct_names(&shape, file, &mut Vec::new(), &mut unknown);
        let warn = |path: &Vec<String>| {
            let near = suggest(&shape, path)
                .map_or(String::new(), |near| format!("; did you mean {near}?"));
            format!("{}: unknown setting {}{near}", self.name, path::join(path))
        };
        unknown.iter().map(warn).collect()
    }
}

/// Returns the overrides of variables, in ascending precedence, and a warning for each misspelt variable.
fn variables(env: &Env) -> (Vec<Override>, Vec<String>) {
    let (mut found, mut warnings) = (Vec::new(), Vec::new());
    let mut add = |name: &str, path: Vec<String>, value: Value| {
        found.push(Override {
            path,
            value,
            origin: Origin::Variable(name.to_owned()),
        });
    };
    let is_set = |(_, text): &(&String, &String)| !text.is_empty();
    if let Some((name, token)) = env.get_key_value("TELEGRAM_BOT_TOKEN").filter(is_set) {
        let path = path::split("channels.telegram.token");
        add(name, path, token.as_str().into());
    }
    let ours = env
        .range("BANTAM_".to_owned()..)
        .take_while(|(name, _)| name.starts_with("BANTAM_"))
        .filter(is_set)
        .filter(|(name, _)| name.as_str() != "BANTAM_HOME");
    let mut known = None;
    for (name, text) in ours {
        let (shape, known) = known.get_or_insert_with(|| {
            let shape = shape();
            let names = path::variables(&shape);
            (shape, names)
        });
        if let Some(path) = known.get(&name.to_ascii_uppercase()) {
            add(name, path.clone(), parse_at(shape, path, text));
        } else if let Some(near) = nearest(name, known.keys().map(String::as_str)) {
            let name = to_single_line(name, 80);
            warnings.push(format!(
                "the variable {name} sets nothing; did you mean {near}?"
            ));
        }
    }
    (found, warnings)
}

/// Parses the text of a file, which must be an object.
pub(super) fn parse(name: &str, text: &str) -> Result<Value> {
    // Some editors write a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(
            Error::config(format!("{name} is empty")).hint("delete it and run `bantam onboard`")
        );
    }
    match parse_json(text) {
        Ok(value) if value.is_object() => Ok(value),
        Ok(_) => Err(Error::config(format!("{name} is not a JSON object"))
            .hint("begin it with { and end it with }")),
        Err(e) => Err(Error::config(format!("{name}, {}", explain_json(&e))).hint(
            "correct that line; JSON wants double quotes, and no comma after the last entry",
        )),
    }
}

/// Reads the settings. Returns whether the value has unknown names.
fn deserialize(json: &Value) -> serde_json::Result<(Config, bool)> {
    let mut has_unknown = false;
    let config = serde_ignored::deserialize(json, |_| has_unknown = true)?;
    Ok((config, has_unknown))
}

/// Returns the path of the innermost value that fails even alone, if any. `embed` makes settings that have only this value. A
/// library that tracks the path while it reads would add 41 KB to the binary.
fn find_refused(value: &Value, embed: &dyn Fn(Value) -> Value) -> Option<Vec<String>> {
    deserialize(&embed(value.clone())).err()?;
    let below = |name: String, path: Option<Vec<String>>| {
        let mut path = path?;
        path.insert(0, name);
        Some(path)
    };
    let inner = match value {
        Value::Object(_) if deserialize(&embed(json!({}))).is_err() => None,
        Value::Array(_) if deserialize(&embed(json!([]))).is_err() => None,
        Value::Object(map) => map.iter().find_map(|(name, value)| {
            let path = find_refused(value, &|value| embed(json!({name: value})));
            below(name.clone(), path)
        }),
        Value::Array(list) => list.iter().enumerate().find_map(|(n, value)| {
            let path = find_refused(value, &|value| embed(json!([value])));
            below(n.to_string(), path)
        }),
        _ => None,
    };
    Some(inner.unwrap_or_default())
}

/// Says what a refused value should be. The value itself is left out, because it may be a misplaced key.
fn expected(error: &str) -> String {
    let Some((_, expected)) = error.rsplit_once("expected ") else {
        return error.to_owned();
    };
    let expected = match expected {
        "u32" | "u64" | "usize" | "i64" => "an integer of 0 or more, without quotes",
        "f64" => "a number, without quotes",
        "a boolean" => "true or false, without quotes",
        "a string" => "a text in double quotes",
        "a sequence" => "a list in brackets: [\"a\", \"b\"]",
        words => words,
    };
    format!("write {expected}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn file(text: &str) -> Result<Loaded> {
        Config::load(Some(("config.json", text)), &Env::new(), Vec::new())
    }

    #[test]
    fn later_layers_win() {
        let env = Env::from(
            [
                ("BANTAM_AGENTS_DEFAULTS_MAX_TOKENS", "7"),
                ("BANTAM_CHANNELS_TELEGRAM_ALLOW_FROM", "1, 2"),
                (
                    "BANTAM_MODEL_LIST",
                    r#"[{"model":"openai/x","max_tokens":9}]"#,
                ),
            ]
            .map(|(name, text)| (name.to_owned(), text.to_owned())),
        );
        let text =
            r#"{"agents":{"defaults":{"max_tokens":5,"max_retries":1}},"model_list":[{},{}]}"#;
        let flags = vec![
            Override::flag("--model", "agents.defaults.model_name", "openai/fast"),
            Override::flag("--max-tokens", "agents.defaults.max_tokens", 8),
        ];
        let loaded = Config::load(Some(("c", text)), &env, flags).unwrap();
        let config = &loaded.config;
        let defaults = &config.agents.defaults;
        assert_eq!((defaults.max_tokens, defaults.max_retries), (8, 1));
        assert_eq!(
            (defaults.timeout, defaults.model_name.as_str()),
            (600, "openai/fast")
        );
        assert_eq!(config.channels.telegram.allow_from, ["1", "2"]);
        assert_eq!(config.model_list.len(), 1);
        assert_eq!(config.model_list[0].max_tokens, 0, "the flag wins");
        assert_eq!(config.session.keep_days, 30);
        let origin = |path: &str| loaded.override_of(&path::split(path)).map(Override::name);
        assert_eq!(origin("agents.defaults.max_tokens"), Some("--max-tokens"));
        assert_eq!(origin("model_list[0].model"), Some("BANTAM_MODEL_LIST"));
        assert_eq!(origin("agents.defaults.max_retries"), None);
        assert_eq!(loaded.file["agents"]["defaults"]["max_tokens"], 5);
    }

    #[test]
    fn both_spellings_are_read_and_ids_may_be_numbers() {
        let text =
            r#"{"channels":{"telegram":{"allowFrom":[12,"34"]}},"modelList":[{"apiKey":"k"}]}"#;
        let loaded = file(text).unwrap();
        assert_eq!(loaded.config.channels.telegram.allow_from, ["12", "34"]);
        assert_eq!(loaded.config.model_list[0].api_key.reveal(), "k");
        assert_eq!(loaded.file["model_list"][0]["api_key"], "k");
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    }

    #[test]
    fn unknown_settings_are_named_with_the_nearest() {
        let text = r#"{"agents":{"defaults":{"max_tokns":1},"model_name":"x"},"zzzz":{"a":1},
            "mcpServers":{"x":{"comand":"y","env":{"A":"b"}}},"model_list":[{"modle":"x","extra_body":{"a":{"b":1}}}]}"#;
        let expected = [
            "config.json: unknown setting agents.defaults.max_tokns; did you mean agents.defaults.max_tokens?",
            "config.json: unknown setting agents.model_name; did you mean agents.defaults.model_name?",
            "config.json: unknown setting mcpServers.x.comand; did you mean mcpServers.x.command?",
            "config.json: unknown setting model_list[0].modle; did you mean model_list[0].model?",
            "config.json: unknown setting zzzz",
        ];
        assert_eq!(file(text).unwrap().warnings, expected);
    }

    #[test]
    fn a_wrong_value_is_named_by_its_path_and_never_shown() {
        for (text, message, hint) in [
            (
                "{\n  \"a\": {\"b\": 5,,}}",
                "line 2, column 16",
                "correct that line",
            ),
            ("  ", "is empty", "onboard"),
            ("[]", "not a JSON object", "begin it"),
            (
                r#"{"tools":{"exec":{"sandbox":"hush"}}}"#,
                "tools.exec.sandbox",
                "`require`",
            ),
            (r#"{"tools":{"redact":"hush"}}"#, "tools.redact", "secrets"),
            (r#"{"log":{"level":"hush"}}"#, "log.level", "debug"),
            (
                r#"{"agents":{"defaults":{"timeout":"hush"}}}"#,
                "agents.defaults.timeout cannot be read",
                "integer",
            ),
            (
                r#"{"agents":{"defaults":{"timeout":0}}}"#,
                "agents.defaults.timeout is 0",
                "at least 1",
            ),
            (
                r#"{"agents":{"defaults":{"timeout":-1}}}"#,
                "agents.defaults.timeout cannot be read",
                "0 or more",
            ),
            (
                r#"{"agents":{"defaults":{"temperature":-0.5}}}"#,
                "agents.defaults.temperature",
                "at least 0",
            ),
            (r#"{"agents":[]}"#, "agents cannot be read", "an object"),
            (
                r#"{"model_list":{}}"#,
                "model_list cannot be read",
                "a list",
            ),
            (
                r#"{"model_list":[3]}"#,
                "model_list[0] cannot be read",
                "an object",
            ),
            (
                r#"{"model_list":[{"api_key":["hush"]}]}"#,
                "model_list[0].api_key cannot be read",
                "a text",
            ),
            (
                r#"{"model_list":[{"reasoning_effort":"hush"}]}"#,
                "reasoning_effort",
                "minimal",
            ),
            (
                r#"{"tools":{"web":{"search":{"provider":"hush"}}}}"#,
                "tools.web.search.provider",
                "brave",
            ),
            (
                r#"{"session":{"compact_at":7}}"#,
                "session.compact_at",
                "0.1 to 1",
            ),
        ] {
            let error = file(text)
                .err()
                .unwrap_or_else(|| panic!("{text} is taken"));
            assert_eq!(error.kind, Kind::Config, "{text}");
            assert!(error.message.contains(message), "{text}: {}", error.message);
            assert!(!error.message.contains("hush"), "{}", error.message);
            let shown = error.hint.unwrap();
            assert!(
                shown.contains(hint) && !shown.contains("hush"),
                "{text}: {shown}"
            );
        }
    }

    #[test]
    fn misspelled_variable_is_reported() {
        let variable = |name: &str| {
            let env = Env::from([(name.to_owned(), "5".to_owned())]);
            Config::load(None, &env, Vec::new()).unwrap().warnings
        };
        let told = variable("BANTAM_AGENTS_DEFAULTS_TIMOUT");
        assert!(
            told[0].ends_with("did you mean BANTAM_AGENTS_DEFAULTS_TIMEOUT?"),
            "{told:?}"
        );
        assert_eq!(variable("BANTAM_OF_ANOTHER_PROGRAM"), [""; 0]);
    }
}
