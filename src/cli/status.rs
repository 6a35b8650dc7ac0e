//! `bantam status`: what is configured and where each value came from. It only reads files: it fetches no key, asks no
//! server and runs no command.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::args::{Args, Command, Flag};
use super::gateway_status::GatewayStatus;
use super::{local_time, print, zone};
use crate::app;
use crate::app::learned::{self, Row};
use crate::config::settings::{SETTINGS, Setting, Type};
use crate::config::{self, Env, Loaded, Model, Origin, keys};
use crate::error::{Error, Result};
use crate::paths::Home;
use crate::secret::Redactor;
use crate::session::archive;
use crate::text::{one_line, rfc3339};
use crate::zone::Zone;

pub(super) const COMMAND: Command = Command {
    name: "status",
    words: "",
    about: "show what is configured, and where each value came from",
    flags: &[Flag::new(Some('v'), "verbose", "", "also show defaults"), Flag::new(None, "json", "", "one JSON object")],
    run,
};

fn run(given: &Args, env: &Env) -> Result<u8> {
    let home = config::home(env)?;
    let status = Status::of(&home, env, given.has("verbose"));
    if given.has("json") {
        print(&format!("{}\n", status.object()))?;
    } else {
        print(&status.page(&zone(env)))?;
    }
    // An unusable configuration exits as it would for a question.
    status.error.map_or(Ok(0), Err)
}

/// All of it may be shown.
struct Status {
    home: String,
    config: String,
    has_config: bool,
    model: String,
    key: String,
    /// Why no model can be asked.
    trouble: Option<Error>,
    workspace: String,
    sandbox: String,
    sessions: Vec<archive::Summary>,
    gateway: GatewayStatus,
    learned: Vec<Row>,
    learned_path: String,
    /// Path, value (`None`: not to be shown), where it came from.
    values: Vec<(String, Option<Value>, String)>,
    warnings: Vec<String>,
    error: Option<Error>,
}

impl Status {
    fn of(home: &Home, env: &Env, with_defaults: bool) -> Self {
        let mut warnings = Vec::new();
        let sessions = archive::list(home).unwrap_or_else(|e| {
            warnings.push(format!("cannot list the conversations: {e}"));
            Vec::new()
        });
        let mut gateway = GatewayStatus::of(home, env, &sessions);
        warnings.append(&mut gateway.warnings);
        let mut status = Self {
            home: home.root().display().to_string(),
            config: home.config().display().to_string(),
            has_config: home.config().exists(),
            model: String::new(),
            key: String::new(),
            trouble: None,
            workspace: home.workspace().display().to_string(),
            sandbox: String::new(),
            sessions,
            gateway,
            learned: learned::read(home, SystemTime::now()),
            learned_path: learned::path(home).display().to_string(),
            values: Vec::new(),
            warnings,
            error: None,
        };
        match config::read(home).and_then(|file| config::load_for(home, file.as_deref(), env, Vec::new())) {
            Ok(loaded) => status.add(loaded, home, env, with_defaults),
            Err(e) => status.error = Some(e),
        }
        status
    }

    fn add(&mut self, loaded: Loaded, home: &Home, env: &Env, with_defaults: bool) {
        let config = &loaded.config;
        match config.choose_model(env) {
            Ok(Some(model)) => {
                self.key = key_source(&model, env);
                self.model = model.name;
            }
            Ok(None) if self.has_config => {
                let e = Error::config("no model is configured and no key was found");
                self.trouble = Some(e.hint("export OPENROUTER_API_KEY=... (or another vendor's)"));
            }
            Ok(None) => {
                "an Ollama on this machine if one answers, else the built-in demo".clone_into(&mut self.model);
                "none is set; for a real model: bantam onboard".clone_into(&mut self.key);
            }
            Err(e) => self.trouble = Some(e),
        }
        match app::workspace(home, config, env) {
            Ok(path) => self.workspace = path.display().to_string(),
            Err(e) => self.warnings.push(e.message),
        }
        let redactor = Redactor::new(config.secrets(env));
        let mut add = |path: &str, setting: Option<&Setting>, origin: String| {
            let value = path.split('.').try_fold(&loaded.values, |at, name| match at {
                Value::Array(items) => items.get(name.parse::<usize>().ok()?),
                at => at.get(name),
            });
            let value = viewable(setting, value.unwrap_or(&Value::Null)).map(|value| match value {
                Value::String(text) => redactor.redact(text).into(),
                value => value,
            });
            self.values.push((path.to_owned(), value, origin));
        };
        for (path, origin) in &loaded.origins {
            let origin = match origin {
                Origin::File => "config.json".to_owned(),
                Origin::Env(name) => format!("the variable {name}"),
                Origin::Flag(name) => (*name).to_owned(),
            };
            add(path, setting_at(path), origin);
        }
        for setting in SETTINGS.iter().filter(|setting| with_defaults && setting.env_name().is_some()) {
            if !loaded.origins.contains_key(setting.path) {
                add(setting.path, Some(setting), "default".to_owned());
            }
        }
        let allowed = config.channels.telegram.ids();
        self.gateway.strangers.retain(|user| !allowed.contains(user));
        loaded.values["tools"]["exec"]["sandbox"].as_str().unwrap_or_default().clone_into(&mut self.sandbox);
        self.warnings.extend(loaded.warnings);
    }

    fn page(&self, zone: &Zone) -> String {
        let mut page = format!("bantam {}\n", env!("CARGO_PKG_VERSION"));
        let mut line = |name: &str, text: &str| page.push_str(&format!("{name:<10} {}\n", one_line(text, 500)));
        line("home", &self.home);
        let absent = if self.has_config { "" } else { " (missing; bantam onboard writes one)" };
        line("config", &format!("{}{absent}", self.config));
        if let Some(e) = &self.trouble {
            line("model", &format!("none: {e}"));
            line("", e.hint.as_deref().unwrap_or_default());
        } else if self.error.is_none() {
            line("model", &self.model);
            line("key", &self.key);
        }
        line("workspace", &self.workspace);
        if !self.sandbox.is_empty() {
            line("jail", &format!("{} (bantam doctor tests it)", self.sandbox));
        }
        line(
            "sessions",
            &match self.sessions.first() {
                None => "none".to_owned(),
                Some(newest) => {
                    let last = local_time(&newest.last, zone);
                    format!("{}, the newest is {} ({last})", self.sessions.len(), newest.key)
                }
            },
        );
        for (name, text) in self.gateway.lines(zone) {
            line(name, &text);
        }
        for (n, row) in self.learned.iter().enumerate() {
            let name = if n == 0 { "learned" } else { "" };
            line(name, &format!("{} at {}: {} (since {})", row.model, row.host, row.quirk.name(), day(row.at)));
        }
        if !self.learned.is_empty() {
            line("", &format!("(what hosts refused before; delete {} to try again)", self.learned_path));
        }
        if !self.values.is_empty() {
            page.push('\n');
        }
        for (path, value, origin) in &self.values {
            let value = value.as_ref().map_or_else(|| HIDDEN.to_owned(), Value::to_string);
            page.push_str(&one_line(&format!("{path} = {value} ({origin})"), 300));
            page.push('\n');
        }
        if !self.warnings.is_empty() {
            page.push('\n');
        }
        for warning in &self.warnings {
            page.push_str(&format!("warning: {}\n", one_line(warning, 500)));
        }
        page
    }

    fn object(&self) -> Value {
        let error = |e: &Error| json!({"kind": e.kind.name(), "message": e.message, "hint": e.hint});
        let model = Some(&self.model).filter(|model| !model.is_empty());
        json!({
            "ok": self.error.is_none(),
            "version": env!("CARGO_PKG_VERSION"),
            "home": self.home,
            "config": {"path": self.config, "exists": self.has_config},
            "model": model,
            "key": model.map(|_| &self.key),
            "trouble": self.trouble.as_ref().map(error),
            "workspace": self.workspace,
            "sandbox": Some(&self.sandbox).filter(|word| !word.is_empty()),
            "sessions": {
                "count": self.sessions.len(),
                "newest": self.sessions.first().map(|s| json!({"key": s.key, "last": s.last})),
            },
            "gateway": self.gateway.object(),
            "learned": self.learned.iter()
                .map(|row| {
                    json!({"host": row.host, "model": row.model, "quirk": row.quirk.name(), "since": day(row.at)})
                })
                .collect::<Value>(),
            "values": self.values.iter()
                .map(|(path, value, origin)| {
                    let value = value.clone().unwrap_or_else(|| HIDDEN.into());
                    json!({"path": path, "value": value, "from": origin})
                })
                .collect::<Value>(),
            "warnings": self.warnings,
            "error": self.error.as_ref().map(error),
        })
    }
}

/// `2026-11-21`, in UTC.
fn day(time: SystemTime) -> String {
    rfc3339(time).split('T').next().unwrap_or_default().to_owned()
}

fn key_source(model: &Model, env: &Env) -> String {
    match model.keys.first() {
        None => "none is needed".to_owned(),
        Some(_) if model.key_origin != "config.json" => format!("the variable {}", model.key_origin),
        Some(key) => match keys::missing(key, env) {
            Some(name) => format!("the variable {name}, which is not set: export {name}=..."),
            None => keys::source(key),
        },
    }
}

/// The setting that a path like `model_list.0.model` belongs to.
fn setting_at(path: &str) -> Option<&'static Setting> {
    let names: Vec<&str> = path.split('.').collect();
    SETTINGS.iter().find(|setting| {
        let segments = setting.segments();
        segments.len() == names.len()
            && segments.iter().zip(&names).all(|(segment, name)| matches!(*segment, "*" | "[]") || segment == name)
    })
}

/// Stands for a value that must not be shown.
const HIDDEN: &str = "(set)";

/// A value for people; `None` if it could hold a secret.
fn viewable(setting: Option<&Setting>, value: &Value) -> Option<Value> {
    let is_empty = matches!(value, Value::Null) || [json!(""), json!([]), json!({})].contains(value);
    // An address may contain a password or a token, and so may a server's arguments.
    let is_server = setting.is_some_and(|setting| setting.path.starts_with("mcpServers."));
    let may_be_secret = match setting.map(|setting| setting.kind) {
        Some(Type::Bool(_) | Type::Whole(..) | Type::Number(..) | Type::Optional | Type::OneOf(..)) => false,
        Some(Type::Texts) => is_server,
        Some(Type::Text) => value
            .as_str()
            .is_some_and(|text| text.contains('@') || text.contains("://") && (is_server || text.contains(['?', '#']))),
        Some(Type::Secret | Type::Secrets | Type::Map | Type::Any) | None => true,
    };
    (is_empty || !may_be_secret).then(|| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_hold_a_secret_is_only_said_to_be_there() {
        let told = |path: &str, value: Value| viewable(setting_at(path), &value);
        for (path, value) in [
            ("agents.defaults.timeout", json!(60)),
            ("model_list.0.model", json!("openai/x")),
            ("model_list.0.api_base", json!("http://h/v1")),
            ("model_list.0.api_key", json!("")),
        ] {
            assert_eq!(told(path, value.clone()), Some(value), "{path}");
        }
        for (path, value) in [
            ("model_list.0.api_key", json!("hush")),
            ("model_list.0.api_keys", json!(["hush"])),
            ("model_list.0.headers", json!({"x": "hush"})),
            ("model_list.0.extra_body", json!({"x": "hush"})),
            ("model_list.0.api_base", json!("http://me:hush@h/v1")),
            ("model_list.0.proxy", json!("socks5://me:hush@h:1")),
            ("model_list", json!([{"api_key": "hush"}])),
            ("channels.telegram.token", json!("hush")),
            ("model_list.0.proxy", json!("me:hush@h:1")),
            ("mcpServers.x.url", json!("https://h/hush")),
            ("mcpServers.x.args", json!(["--token=hush"])),
            ("mcpServers.x.env", json!({"x": "hush"})),
            ("some.thing.else", json!("hush")),
        ] {
            assert_eq!(told(path, value), None, "{path}");
        }
    }
}
