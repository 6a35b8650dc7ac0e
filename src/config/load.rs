//! Lays the layers over each other: defaults, config.json, environment, flags.
//!
//! Each layer is JSON text that is read straight into the settings. What a layer says in detail is worked out by [`Report`],
//! for those who show it, and for the error when a layer cannot be read.

use std::sync::Arc;

use serde_json::{Value, json};

use super::read::read;
use super::report::{self, Report};
use super::settings::SETTINGS;
use super::{Config, Env};
use crate::error::{Error, Result};

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

/// What [`Config::load`] found.
pub(crate) struct Loaded {
    pub config: Arc<Config>,
    /// There are names that are no settings.
    pub has_unknown: bool,
    layers: Vec<Layer>,
}

/// JSON text with settings.
pub(super) struct Layer {
    pub name: String,
    pub text: String,
    pub origin: Origin,
    /// The section that it sets as a whole.
    pub section: Option<&'static str>,
}

/// What one variable sets as a whole, in JSON: what is inside has no variable of its own.
pub(crate) const SECTIONS: [&str; 2] = ["model_list", "mcpServers"];

impl Config {
    /// Lays the layers over each other. `file` is the name and the text of config.json.
    pub(crate) fn load(
        file: Option<(&str, &str)>,
        env: &Env,
        flags: Vec<Override>,
    ) -> Result<Loaded> {
        let is_flag = |path: &str| flags.iter().any(|(flag, ..)| *flag == path);
        let ignores = [
            is_flag("agents.defaults.max_tokens"),
            is_flag("agents.defaults.temperature"),
        ];
        let mut layers = Vec::new();
        layers.extend(file.map(|(name, text)| Layer::file(name, text)));
        layers.extend(environment(env)?);
        layers.extend(flags.into_iter().map(Layer::of_override));
        let mut config = Self {
            has_file: file.is_some(),
            ..Self::default()
        };
        let mut has_unknown = false;
        for layer in &layers {
            match layer.section {
                Some("model_list") => config.model_list.clear(),
                Some(_) => config.mcp_servers.clear(),
                None => {}
            }
            let named = config.agents.defaults.model_name.clone();
            has_unknown |= layer.read_into(&mut config)?;
            if named != config.agents.defaults.model_name {
                config.replaced_model = named;
            }
        }
        // A flag wins over a model's own entry, too.
        for entry in &mut config.model_list {
            if ignores[0] {
                entry.max_tokens = 0;
            }
            if ignores[1] {
                entry.temperature = None;
            }
        }
        Ok(Loaded {
            config: Arc::new(config),
            has_unknown,
            layers,
        })
    }
}

impl Loaded {
    /// One sentence for each unknown setting.
    pub(crate) fn warnings(&self) -> Vec<String> {
        if self.has_unknown {
            self.report().warnings
        } else {
            Vec::new()
        }
    }

    /// What each layer says.
    pub(crate) fn report(&self) -> Report {
        // What could not be read is an error of `load`.
        Report::of(&self.layers).unwrap_or_default()
    }
}

impl Layer {
    fn file(name: &str, text: &str) -> Self {
        // Some editors write a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self {
            name: name.to_owned(),
            text: text.to_owned(),
            origin: Origin::File,
            section: None,
        }
    }

    fn of_override((path, value, origin): Override) -> Self {
        let name = match &origin {
            Origin::File => "config.json",
            Origin::Env(name) => name,
            Origin::Flag(name) => name,
        };
        let nested = path
            .rsplit('.')
            .fold(value, |value, name| json!({name: value}));
        Self {
            name: name.to_owned(),
            text: nested.to_string(),
            origin,
            section: None,
        }
    }

    /// Returns whether it has unknown names.
    fn read_into(&self, config: &mut Config) -> Result<bool> {
        let is_object = self.text.trim_start().starts_with('{');
        let read = read(&self.text, config);
        match read {
            Ok(false) if is_object => Ok(false),
            Ok(true) if is_object => report::refuse_foreign(self, &self.parse()?).map(|()| true),
            read => {
                let found = Report::of(std::slice::from_ref(self)).err();
                Err(found.unwrap_or_else(|| {
                    let why = read.err().map_or(String::new(), |e| e.to_string());
                    Error::config(format!("cannot read {}: {why}", self.name))
                }))
            }
        }
    }
}

/// What the variables set, those with precedence last. Of all settings only those whose variables are there are looked at.
fn environment(env: &Env) -> Result<Vec<Layer>> {
    let mut layers = Vec::new();
    let is_set = |(_, text): &(&String, &String)| !text.is_empty();
    let ours = env
        .range("BANTAM_".to_owned()..)
        .take_while(|(name, _)| name.starts_with("BANTAM_"))
        .filter(is_set);
    let token = env.get_key_value("TELEGRAM_BOT_TOKEN").filter(is_set);
    if let Some((name, token)) = token {
        layers.push(Layer::of_override((
            "channels.telegram.token",
            token.as_str().into(),
            Origin::Env(name.clone()),
        )));
    }
    for (name, text) in ours {
        let origin = Origin::Env(name.clone());
        let is_section = |section: &&&str| name["BANTAM_".len()..].eq_ignore_ascii_case(section);
        if let Some(section) = SECTIONS.iter().find(is_section) {
            layers.push(Layer {
                name: name.clone(),
                text: format!("{{\"{section}\":{text}}}"),
                origin,
                section: Some(section),
            });
            continue;
        }
        let Some(setting) = SETTINGS.iter().find(|setting| setting.is_variable(name)) else {
            continue;
        };
        let value = setting.parse(text);
        if setting.check(&value).is_none() {
            let value = report::describe(&value, setting.is_secret());
            return Err(Error::config(format!("{name} is {value}"))
                .hint(format!("it must be {}", setting.expected())));
        }
        layers.push(Layer::of_override((setting.path, value, origin)));
    }
    Ok(layers)
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
        let config = &layers.config;
        let defaults = &config.agents.defaults;
        assert_eq!(defaults.max_tokens, 7);
        assert_eq!(defaults.max_retries, 1);
        assert_eq!(defaults.timeout, 600);
        assert_eq!(defaults.model_name, "fast");
        assert_eq!(config.channels.telegram.allow_from, ["1", "2"]);
        assert_eq!(config.model_list.len(), 1);
        assert_eq!(config.model_list[0].model, "openai/x");
        assert_eq!(config.model_list[0].request_timeout, 0);
        assert_eq!(config.session.compact_at.to_string(), "0.8");
        let report = layers.report();
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
            let found = report.values.get(path).map(|(_, origin)| origin);
            assert_eq!(found, origin.as_ref(), "{path}");
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
                Type::Text | Type::TextOr(_) | Type::Secret => ("x y".to_owned(), json!("x y")),
                Type::Bool(default) => ((!default).to_string(), json!(!default)),
                Type::Switch => ("true".to_owned(), json!(true)),
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
            let report = loaded.report();
            let found = report.values.get(setting.path);
            assert_eq!(found, Some(&(value, Origin::Env(name))), "{}", setting.path);
        }
    }

    #[test]
    fn every_default_of_the_table_is_that_of_its_field() {
        // A file with every setting at its default reads as an empty one; a wrong kind or range would be refused.
        let mut tree = json!({});
        for setting in SETTINGS {
            let mut at = &mut tree;
            for name in setting.segments() {
                at = match name {
                    "]" => {
                        if at.is_null() {
                            *at = json!([{}]);
                        }
                        &mut at[0]
                    }
                    name => &mut at[name],
                };
            }
            *at = setting.default();
        }
        let loaded = file(&tree.to_string()).unwrap();
        assert!(!loaded.has_unknown);
        assert!(loaded.config.mcp_servers["*"].network);
        assert_eq!(
            loaded.config.tools.exec.sandbox,
            crate::child::Sandbox::Auto
        );
        assert_eq!(
            loaded.config.tools.exec.network,
            crate::child::Network::None
        );
        assert_eq!(
            loaded.config.model_list[0].price,
            crate::message::Price::default()
        );
    }

    #[test]
    fn both_spellings_are_read_and_ids_may_be_numbers() {
        let layers = file(
            r#"{"channels":{"telegram":{"allowFrom":[12,"34"]}},"modelList":[{"apiKey":"k"}]}"#,
        )
        .unwrap();
        let config = &layers.config;
        assert_eq!(config.channels.telegram.allow_from, ["12", "34"]);
        assert_eq!(config.model_list[0].api_key.reveal(), "k");
        let key = &layers.report().values["model_list.0.api_key"];
        assert_eq!(*key, (json!("k"), Origin::File));
        assert!(!layers.has_unknown);
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
        assert_eq!(file(text).unwrap().warnings(), expected);
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
        for text in [
            r#"{"agents": {"defaults": {"model": "x"}}, "providers": {"groq": {"apiKey": "gsk-fake"}}}"#,
            r#"{"version": 3, "model_list": [], "channelList": {"telegram": {"enabled": true}}}"#,
            r#"{"gateway_host": "127.0.0.1", "model": "deepseek-chat"}"#,
        ] {
            let error = file(text).err().unwrap();
            assert_eq!(error.kind, crate::error::Kind::Config, "{text}");
            assert!(error.message.contains("another program"), "{text}");
            assert!(error.hint.unwrap().contains("help coming-from"), "{text}");
        }
    }
}
