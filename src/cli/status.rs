//! `bantam status`: what is set up and where each value came from. It reads files and starts nothing: no key is fetched,
//! no server is asked, no command is run.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::args::{Args, Command, Flag};
use super::gateway_status::GatewayStatus;
use super::{local_time, print, zone};
use crate::app;
use crate::app::learned::{self, Row};
use crate::config::table::{KEYS, Kind};
use crate::config::{self, Choice, Config, Env, Loaded, Origin, keys};
use crate::error::{Error, Result};
use crate::paths::Home;
use crate::secret::Redactor;
use crate::session::archive;
use crate::text::{one_line, rfc3339};
use crate::zone::Zone;

pub const COMMAND: Command = Command {
    name: "status",
    words: "",
    about: "what is set up, and where each value came from",
    flags: &[
        Flag::new(Some('v'), "verbose", "", "values that are as they are by default, too"),
        Flag::new(None, "json", "", "one JSON object"),
    ],
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
    // What is broken is told on the page, and ends it as it would end a question.
    status.error.map_or(Ok(0), Err)
}

/// What there is to tell. Everything in it may be shown.
struct Status {
    home: String,
    config: String,
    has_config: bool,
    model: String,
    key: String,
    /// What stands in the way of a question, and the line that mends it.
    trouble: Option<Error>,
    workspace: String,
    sandbox: String,
    sessions: Vec<archive::Summary>,
    gateway: GatewayStatus,
    learned: Vec<Row>,
    learned_path: String,
    /// Path, value (nothing where it may not be shown), where it came from.
    values: Vec<(String, Option<Value>, String)>,
    warnings: Vec<String>,
    error: Option<Error>,
}

impl Status {
    fn of(home: &Home, env: &Env, all: bool) -> Self {
        let path = home.config().display().to_string();
        let mut warnings = Vec::new();
        let sessions = archive::list(home).unwrap_or_else(|e| {
            warnings.push(format!("the conversations cannot be listed: {e}"));
            Vec::new()
        });
        let mut gateway = GatewayStatus::of(home, env, &sessions);
        warnings.append(&mut gateway.warnings);
        let mut status = Self {
            home: home.root().display().to_string(),
            config: path.clone(),
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
        let loaded = config::read(home)
            .and_then(|file| Config::load(file.as_deref().map(|text| (path.as_str(), text)), env, Vec::new()));
        match loaded {
            Ok(loaded) => status.add(loaded, home, env, all),
            Err(e) => status.error = Some(e),
        }
        status
    }

    fn add(&mut self, loaded: Loaded, home: &Home, env: &Env, all: bool) {
        let config = &loaded.config;
        match config.choose_model(env) {
            Ok(Choice::Model(model)) => {
                self.model.clone_from(&model.name);
                self.key = match model.keys.first() {
                    None => "none is needed".to_owned(),
                    Some(_) if model.key_origin != "config.json" => format!("from the variable {}", model.key_origin),
                    Some(key) if keys::is_command(key) => "config.json: a command prints it".to_owned(),
                    Some(key) => {
                        let missing = keys::missing(key, env).map(|name| format!("; it is not set: export {name}=..."));
                        format!("config.json: {}{}", keys::source(key), missing.unwrap_or_default())
                    }
                };
            }
            Ok(Choice::Nothing) if self.has_config => {
                let e = Error::config("no model is configured and no key was found");
                self.trouble = Some(e.hint("export OPENROUTER_API_KEY=... (or another vendor's)"));
            }
            Ok(Choice::Nothing) => {
                self.model = "an Ollama on this machine if one answers, else the built-in demo".to_owned();
                self.key = "none is set; for a real model: bantam onboard".to_owned();
            }
            Err(e) => self.trouble = Some(e),
        }
        match app::workspace(home, config, env) {
            Ok(path) => self.workspace = path.display().to_string(),
            Err(e) => self.warnings.push(e.message),
        }
        let redactor = Redactor::new(config.secrets(env));
        let mut add = |path: &str, origin: &Origin, kind: Kind| {
            let value = path.split('.').try_fold(&loaded.values, |at, name| match at {
                Value::Array(items) => items.get(name.parse::<usize>().ok()?),
                at => at.get(name),
            });
            let value = viewable(path, kind, value.unwrap_or(&Value::Null)).map(|value| match value {
                Value::String(text) => redactor.redact(text).into(),
                value => value,
            });
            self.values.push((path.to_owned(), value, described(origin)));
        };
        for (path, origin) in loaded.origins.iter().filter(|(_, origin)| **origin != Origin::Default) {
            add(path, origin, kind_of(path));
        }
        for key in KEYS.iter().filter(|key| all && !key.path.contains(['[', '*'])) {
            if loaded.origins.get(key.path).is_none_or(|origin| *origin == Origin::Default) {
                add(key.path, &Origin::Default, key.kind);
            }
        }
        let allowed = &config.channels.telegram.allow_from;
        let may = |user: &i64| allowed.iter().any(|id| id.split('|').next() == Some(user.to_string().as_str()));
        self.gateway.strangers.retain(|user| !may(user));
        self.sandbox = loaded.values["tools"]["exec"]["sandbox"].as_str().unwrap_or_default().to_owned();
        self.warnings.extend(loaded.warnings);
    }

    fn page(&self, zone: &Zone) -> String {
        let mut page = format!("bantam {}\n", env!("CARGO_PKG_VERSION"));
        let mut line = |name: &str, text: &str| page.push_str(&format!("{name:<10} {}\n", one_line(text, 500)));
        line("home", &self.home);
        let absent = if self.has_config { "" } else { " (not there; bantam onboard writes one)" };
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
            line("jail", &format!("{} (bantam doctor tries what holds here)", self.sandbox));
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
            line("", &format!("(what hosts refused before; remove {} to try it again)", self.learned_path));
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
        let told = |e: &Error| json!({"kind": e.kind.name(), "message": e.message, "hint": e.hint});
        let model = Some(&self.model).filter(|model| !model.is_empty());
        json!({
            "ok": self.error.is_none(),
            "version": env!("CARGO_PKG_VERSION"),
            "home": self.home,
            "config": {"path": self.config, "exists": self.has_config},
            "model": model,
            "key": model.map(|_| &self.key),
            "trouble": self.trouble.as_ref().map(told),
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
            "error": self.error.as_ref().map(told),
        })
    }
}

/// `2026-11-21`, in UTC.
fn day(time: SystemTime) -> String {
    rfc3339(time).split('T').next().unwrap_or_default().to_owned()
}

fn described(origin: &Origin) -> String {
    match origin {
        Origin::Default => "default".to_owned(),
        Origin::File => "config.json".to_owned(),
        Origin::Env(name) => format!("the variable {name}"),
        Origin::Flag(name) => (*name).to_owned(),
    }
}

/// The kind of a path as a user writes it. What is not in the table is shown as little as a secret.
fn kind_of(path: &str) -> Kind {
    let parts: Vec<&str> = path.split('.').collect();
    let fits = |pattern: &str| {
        // `model_list[].model` is three parts of a path, as `model_list.0.model` has.
        let pattern = pattern.replace("[]", ".*");
        let pattern: Vec<&str> = pattern.split('.').collect();
        pattern.len() == parts.len() && pattern.iter().zip(&parts).all(|(name, part)| *name == "*" || name == part)
    };
    KEYS.iter().find(|key| fits(key.path)).map_or(Kind::Secret, |key| key.kind)
}

/// What stands for a value that may not be shown.
const HIDDEN: &str = "(set)";

/// A value for people; nothing for one that is there and could hold a secret.
fn viewable(path: &str, kind: Kind, value: &Value) -> Option<Value> {
    let empty = match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    // An address may have a password or a token in it, and so may a server's arguments.
    let server = path.starts_with("mcpServers.");
    let guarded = match kind {
        Kind::Secret | Kind::Secrets | Kind::Map | Kind::Any => true,
        Kind::Texts => server,
        Kind::Text => value
            .as_str()
            .is_some_and(|text| text.contains('@') || text.contains("://") && (server || text.contains(['?', '#']))),
        Kind::Bool | Kind::Whole(_) | Kind::Number(_) | Kind::Maybe(_) | Kind::Choice(_) => false,
    };
    (!guarded || empty).then(|| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_hold_a_secret_is_only_said_to_be_there() {
        let told = |path: &str, value: Value| viewable(path, kind_of(path), &value);
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
