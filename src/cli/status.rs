//! `bantam status`: shows the configuration and the source of each value. It only reads files, without fetching keys,
//! connecting to servers or running commands.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use super::args::{Args, Command};
use super::ui::Ui;
use super::{
    error_json, gateway_status, hanging_indent, local_time, print, print_json, report, zone,
};
use crate::app::bot::is_enabled;
use crate::app::{self, App};
use crate::config::{Env, Loaded, Model, Origin, keys, path};
use crate::error::Result;
use crate::paths::{Home, shown_key};
use crate::provider::catalog;
use crate::provider::facts;
use crate::redact::Redactor;
use crate::secret::Secret;
use crate::session::archive;
use crate::text::{counted, rfc3339, to_single_line};
use crate::timezone::Zone;

pub(super) const COMMAND: Command = Command::row(
    "status",
    "",
    run,
    "show the model, the key, conversations, the gateway and jobs",
)
.with_flags(&[
    (
        "-v, --verbose",
        "also show every setting, and where its value came from",
    ),
    ("--json", "one JSON object"),
]);

/// Contents of the status.
pub(super) struct Status<'a> {
    pub home: &'a Home,
    pub env: &'a Arc<Env>,
    pub zone: Zone,
    /// Object of `--json`: no secrets, times as RFC 3339, and null for unknown values.
    pub object: Value,
    /// Names and texts of lines for people. A line without a name continues the previous one.
    pub lines: Vec<(&'static str, String)>,
    pub warnings: Vec<String>,
}

fn run(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let (home, env, loaded) = (&app.home, &app.env, app.loaded());
    let (root, file, has_file) = (home.root().display(), home.config(), home.config().exists());
    let object = json!({
        "ok": loaded.is_ok(),
        "version": env!("CARGO_PKG_VERSION"),
        "home": root.to_string(),
        "config": {"path": file.display().to_string(), "exists": has_file},
        "model": null,
        "key": null,
        "trouble": null,
        "workspace": home.workspace().display().to_string(),
        "sandbox": null,
        "values": [],
        "error": loaded.as_ref().err().map(error_json),
    });
    let absent = if has_file {
        ""
    } else {
        " (missing; bantam onboard writes one)"
    };
    let lines = vec![
        ("home", root.to_string()),
        ("config", format!("{}{absent}", file.display())),
    ];
    let mut status = Status {
        home,
        env,
        zone: zone(env),
        object,
        lines,
        warnings: Vec::new(),
    };
    if let Ok(loaded) = &loaded {
        status.configuration(loaded);
    }
    let sessions = status.or_warn(archive::list(home));
    status.sessions(&sessions);
    let allowed = loaded
        .as_ref()
        .map_or(Vec::new(), |loaded| loaded.config.channels.telegram.ids());
    gateway_status::add(&mut status, &sessions, &allowed);
    status.learned();
    if let Ok(loaded) = &loaded {
        status.object["values"] = values(loaded, given.has("verbose")).into();
        status.warnings.extend(loaded.warnings.clone());
    }
    status.object["warnings"] = status.warnings.as_slice().into();
    if given.has("json") {
        print_json(&status.object)?;
    } else {
        print(&status.page(given.has("verbose")))?;
    }
    // An invalid configuration has the exit code that a question would have.
    Ok(loaded.err().map_or(0, |e| report(&e)))
}

impl Status<'_> {
    pub(super) fn or_warn<T: Default>(&mut self, result: Result<T>) -> T {
        result.unwrap_or_else(|e| {
            self.warnings.push(e.message);
            T::default()
        })
    }

    pub(super) fn time(&self, stored: &str) -> String {
        local_time(stored, &self.zone)
    }

    fn configuration(&mut self, loaded: &Loaded) {
        match chosen_model(loaded) {
            Ok((model, key)) => {
                (self.object["model"], self.object["key"]) =
                    (model.as_str().into(), key.as_str().into());
                self.lines.extend([("model", model), ("key", key)]);
            }
            Err(e) => {
                self.object["trouble"] = error_json(&e);
                self.lines.extend([
                    ("model", format!("none: {}", e.message)),
                    ("", e.hint.unwrap_or_default()),
                ]);
            }
        }
        let workspace = self.or_warn(app::workspace(loaded)).display().to_string();
        self.object["workspace"] = workspace.as_str().into();
        let mode = json!(loaded.config.tools.exec.sandbox);
        let sandbox = format!(
            "{} (bantam doctor tests it)",
            mode.as_str().unwrap_or_default()
        );
        self.object["sandbox"] = mode;
        self.lines
            .extend([("workspace", workspace), ("sandbox", sandbox)]);
        self.lines.push(("telegram", telegram(loaded)));
        let http = &loaded.config.channels.http;
        let address = &http.listen;
        self.object["http"] = json!({"enabled": http.enabled, "listen": address});
        if http.enabled {
            let mut text = format!("http://{address}/v1 while the gateway runs");
            if http.token.is_empty() {
                let path = self.home.http_token();
                text += &format!("; its token is in {}", path.display());
            }
            self.lines.push(("http", text));
        }
    }

    fn sessions(&mut self, sessions: &[archive::SessionInfo]) {
        let newest = sessions
            .first()
            .map(|newest| json!({"key": shown_key(&newest.key), "last": newest.last}));
        self.object["sessions"] = json!({"count": sessions.len(), "newest": newest});
        let text = sessions.first().map_or("none".to_owned(), |newest| {
            format!(
                "{}, the newest is {} ({})",
                sessions.len(),
                to_single_line(&shown_key(&newest.key), 80),
                local_time(&newest.last, &self.zone)
            )
        });
        self.lines.push(("sessions", text));
    }

    fn learned(&mut self) {
        let mut learned = Vec::new();
        for row in facts::rows(self.home) {
            // The date in UTC is precise enough.
            let since = rfc3339(UNIX_EPOCH + Duration::from_secs(row.facts.at))[..10].to_owned();
            let (model, host, says) = (&row.model, &row.host, row.facts.words());
            for says in &says {
                let name = if learned.is_empty() { "learned" } else { "" };
                let line = format!("{model} at {host}: {says} (since {since})");
                self.lines.push((name, line));
                learned.push(json!({"host": host, "model": model, "says": says, "since": since}));
            }
        }
        if !learned.is_empty() {
            let path = facts::path(self.home);
            let text = format!(
                "(learned from the hosts' own answers; delete {} to learn it again)",
                path.display()
            );
            self.lines.push(("", text));
        }
        self.object["learned"] = learned.into();
    }

    fn page(&self, with_values: bool) -> String {
        let mut page = format!("bantam {}\n", env!("CARGO_PKG_VERSION"));
        for (name, text) in &self.lines {
            page.push_str(&hanging_indent(
                &format!("{name:<10} {}", to_single_line(text, 500)),
                11,
            ));
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let rows = if with_values {
            self.object["values"].as_array()
        } else {
            None
        };
        let values = rows.into_iter().flatten().map(|row| {
            let value = match &row["value"] {
                Value::String(hidden) if hidden.starts_with('(') => hidden.clone(),
                value => value.to_string(),
            };
            to_single_line(
                &format!("{} = {value} ({})", text(&row["path"]), text(&row["from"])),
                300,
            )
        });
        let warnings = self
            .warnings
            .iter()
            .map(|warning| format!("warning: {}", to_single_line(warning, 500)));
        for block in [values.collect::<Vec<_>>(), warnings.collect()]
            .iter()
            .filter(|block| !block.is_empty())
        {
            page.push('\n');
            page.extend(block.iter().map(|line| hanging_indent(line, 2)));
        }
        page
    }
}

/// Returns the model that answers, and the source of its key.
pub(super) fn chosen_model(loaded: &Loaded) -> Result<(String, String)> {
    match loaded.config.choose_model(&loaded.env)? {
        Some(model) => {
            let key = key_source(&model, &loaded.env);
            let name = catalog::with_known_default(model, &loaded.home).name;
            Ok((name, key))
        }
        None => Ok((
            "Ollama if it answers, else the built-in demo".to_owned(),
            "none is set; for a real model: bantam onboard".to_owned(),
        )),
    }
}

/// Removes possible secrets from the strings of a value.
pub(super) fn redacted(redactor: &Redactor, value: &Value) -> Value {
    match value {
        Value::String(text) => redactor.redact(text.clone()).into(),
        Value::Array(items) => items.iter().map(|item| redacted(redactor, item)).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| (name.clone(), redacted(redactor, value)))
            .collect(),
        value => value.clone(),
    }
}

/// A setting with its value, for people.
pub(super) struct SetValue {
    pub path: String,
    pub value: Value,
    /// Source of the value: file, variable or flag.
    pub from: String,
}

/// Returns the configured settings, without secrets.
pub(super) fn set_values(loaded: &Loaded) -> Vec<SetValue> {
    let mut paths = Vec::new();
    path::list_values(&loaded.file, &mut Vec::new(), &mut paths);
    for set in &loaded.overrides {
        paths.retain(|path| !path.starts_with(&set.path));
        paths.push(set.path.clone());
    }
    listed(loaded, &paths)
}

/// Returns the values at these paths; unknown settings are left out.
fn listed(loaded: &Loaded, paths: &[Vec<String>]) -> Vec<SetValue> {
    let redactor = loaded.redactor();
    let config = serde_json::to_value(&*loaded.config).unwrap_or_default();
    let value_at = |path: &Vec<String>| {
        let (value, written) = (path::get(&config, path)?, path::get(&loaded.file, path));
        let written = Secret::new(written.and_then(Value::as_str).unwrap_or_default());
        let value = match (value.as_str(), keys::missing(&written, &loaded.env)) {
            (Some("(set)"), Some(variable)) => format!("({variable} is not set)").into(),
            _ => redacted(&redactor, value),
        };
        let set = loaded.override_of(path);
        let from = match set.map(|set| &set.origin) {
            Some(Origin::Variable(name)) => format!("the variable {name}"),
            Some(Origin::Flag(name)) => (*name).to_owned(),
            None if path::get(&loaded.file, path).is_some() => "config.json".to_owned(),
            None => "default".to_owned(),
        };
        let path = path::join(path);
        Some(SetValue { path, value, from })
    };
    paths.iter().filter_map(value_at).collect()
}

/// Returns the configured settings, and all others if `with_defaults`.
fn values(loaded: &Loaded, with_defaults: bool) -> Vec<Value> {
    let mut rows = set_values(loaded);
    if with_defaults {
        let is_set = |path: &Vec<String>| rows.iter().any(|set| set.path == path::join(path));
        let mut paths = path::all_settings();
        paths.retain(|path| !is_set(path));
        rows.extend(listed(loaded, &paths));
    }
    rows.into_iter()
        .map(|set| json!({"path": set.path, "value": set.value, "from": set.from}))
        .collect()
}

fn key_source(model: &Model, env: &Env) -> String {
    match model.keys.first() {
        None => "not needed".to_owned(),
        Some(key) => match keys::missing(key, env) {
            Some(name) => format!("the variable {name}, which is not set: export {name}=..."),
            None => keys::source(key),
        },
    }
}

/// Describes the bot and its users.
fn telegram(loaded: &Loaded) -> String {
    let settings = &loaded.config.channels.telegram;
    if settings.token.is_empty() {
        return "no bot (bantam onboard)".to_owned();
    }
    if !is_enabled(loaded) {
        return "disabled (channels.telegram.enabled)".to_owned();
    }
    match settings.ids().len() {
        0 => "nobody may write yet (channels.telegram.allow_from)".to_owned(),
        users => format!(
            "{} may write while the gateway runs",
            counted(users, "user")
        ),
    }
}
