//! `bantam status`: what is configured and where each value came from. It only reads files: it fetches no key, asks no
//! server and runs no command.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use super::args::{Args, Command};
use super::{error_json, gateway_status, json_line, local_time, print, report, zone};
use crate::app;
use crate::config::settings::{self, SETTINGS, Setting, Type};
use crate::config::{self, Env, Loaded, Model, Origin, keys};
use crate::error::{Error, Result};
use crate::paths::Home;
use crate::provider::learned;
use crate::secret::{Redactor, Secret};
use crate::session::archive;
use crate::text::{one_line, rfc3339};
use crate::zone::Zone;

pub(super) const COMMAND: Command =
    Command::new("status", "", run, "show what is configured, and where each value came from")
        .with_flags(&[("-v, --verbose", "also show defaults"), ("--json", "one JSON object")]);

fn run(given: &Args, env: &Env) -> Result<u8> {
    let home = config::home(env)?;
    let loaded = config::read(&home).and_then(|file| config::load_for(&home, file.as_deref(), env, Vec::new()));
    let status = object(&home, env, &loaded, given.has("verbose"));
    print(&if given.has("json") { json_line(&status) } else { page(&status, &home, &zone(env)) })?;
    // An unusable configuration exits as it would for a question.
    Ok(loaded.err().map_or(0, |e| report(&e)))
}

/// What `--json` prints: no secrets, times as RFC 3339, and null for what is not known.
fn object(home: &Home, env: &Env, loaded: &Result<Loaded>, with_defaults: bool) -> Value {
    let mut warnings = Vec::new();
    let sessions = archive::list(home).unwrap_or_else(|e| {
        warnings.push(format!("cannot list the conversations: {e}"));
        Vec::new()
    });
    let allowed = loaded.as_ref().map_or(Vec::new(), |loaded| loaded.config.channels.telegram.ids());
    let learned = learned::read(home);
    let learned = learned.iter().map(|row| {
        // A day is enough, in UTC.
        let since = rfc3339(UNIX_EPOCH + Duration::from_secs(row.at))[..10].to_owned();
        json!({"host": row.host, "model": row.model, "quirk": row.quirk, "says": row.words(), "since": since})
    });
    let mut object = json!({
        "ok": loaded.is_ok(),
        "version": env!("CARGO_PKG_VERSION"),
        "home": home.root().display().to_string(),
        "config": {"path": home.config().display().to_string(), "exists": home.config().exists()},
        "model": null,
        "key": null,
        "trouble": null,
        "workspace": home.workspace().display().to_string(),
        "sandbox": null,
        "sessions": {
            "count": sessions.len(),
            "newest": sessions.first().map(|s| json!({"key": s.key, "last": s.last})),
        },
        "gateway": gateway_status::object(home, env, &sessions, &allowed, &mut warnings),
        "learned": learned.collect::<Value>(),
        "values": [],
        "error": loaded.as_ref().err().map(error_json),
    });
    if let Ok(loaded) = loaded {
        match chosen_model(loaded, env, home.config().exists()) {
            Ok((model, key)) => (object["model"], object["key"]) = (model.into(), key.into()),
            Err(e) => object["trouble"] = error_json(&e),
        }
        match app::workspace(home, &loaded.config, env) {
            Ok(path) => object["workspace"] = path.display().to_string().into(),
            Err(e) => warnings.push(e.message),
        }
        object["sandbox"] = loaded.values["tools"]["exec"]["sandbox"].clone();
        object["values"] = values(loaded, env, with_defaults).into();
        warnings.extend_from_slice(&loaded.warnings);
    }
    object["warnings"] = warnings.into();
    object
}

/// The model that answers, and where its key comes from.
fn chosen_model(loaded: &Loaded, env: &Env, has_config: bool) -> Result<(String, String)> {
    match loaded.config.choose_model(env)? {
        Some(model) => Ok((model.name.clone(), key_source(&model, env))),
        None if has_config => Err(Error::config("no model is configured and no key was found")
            .hint("export OPENROUTER_API_KEY=... (or another vendor's)")),
        None => Ok((
            "an Ollama on this machine if one answers, else the built-in demo".to_owned(),
            "none is set; for a real model: bantam onboard".to_owned(),
        )),
    }
}

/// The settings that have a value: path, value, and where it comes from.
fn values(loaded: &Loaded, env: &Env, with_defaults: bool) -> Vec<Value> {
    let redactor = Redactor::new(loaded.config.secrets(env));
    let shown = |path: &str, setting: Option<&Setting>, origin: String| {
        let value = path.split('.').try_fold(&loaded.values, |at, name| match at {
            Value::Array(items) => items.get(name.parse::<usize>().ok()?),
            at => at.get(name),
        });
        let value = value.unwrap_or(&Value::Null);
        let value = match viewable(setting, value) {
            Some(Value::String(text)) => redactor.redact(text).into(),
            Some(value) => value,
            None => match keys::missing(&Secret::new(value.as_str().unwrap_or_default()), env) {
                Some(variable) => format!("({variable} is not set)").into(),
                None => "(set)".into(),
            },
        };
        json!({"path": path, "value": value, "from": origin})
    };
    let set = loaded.origins.iter().map(|(path, origin)| {
        let origin = match origin {
            Origin::File => "config.json".to_owned(),
            Origin::Env(name) => format!("the variable {name}"),
            Origin::Flag(name) => (*name).to_owned(),
        };
        shown(path, setting_at(path), origin)
    });
    let defaults = SETTINGS
        .iter()
        .filter(|setting| with_defaults && setting.env_name().is_some() && !loaded.origins.contains_key(setting.path));
    set.chain(defaults.map(|setting| shown(setting.path, Some(setting), "default".to_owned()))).collect()
}

/// The same for people.
fn page(status: &Value, home: &Home, zone: &Zone) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = |name: &str| status[name].as_array().cloned().unwrap_or_default();
    let mut lines = vec![("home", text(&status["home"]))];
    let absent = if status["config"]["exists"] == true { "" } else { " (missing; bantam onboard writes one)" };
    lines.push(("config", format!("{}{absent}", text(&status["config"]["path"]))));
    if status["trouble"].is_object() {
        lines.push(("model", format!("none: {}", text(&status["trouble"]["message"]))));
        lines.push(("", text(&status["trouble"]["hint"])));
    } else if status["model"].is_string() {
        lines.push(("model", text(&status["model"])));
        lines.push(("key", text(&status["key"])));
    }
    lines.push(("workspace", text(&status["workspace"])));
    if status["sandbox"].is_string() {
        lines.push(("jail", format!("{} (bantam doctor tests it)", text(&status["sandbox"]))));
    }
    let sessions = match &status["sessions"] {
        sessions if sessions["newest"].is_null() => "none".to_owned(),
        sessions => {
            let (key, last) = (text(&sessions["newest"]["key"]), text(&sessions["newest"]["last"]));
            format!("{}, the newest is {key} ({})", sessions["count"], local_time(&last, zone))
        }
    };
    lines.push(("sessions", sessions));
    lines.extend(gateway_status::lines(&status["gateway"], zone));
    for (n, row) in rows("learned").iter().enumerate() {
        let [model, host, says, since] = ["model", "host", "says", "since"].map(|name| text(&row[name]));
        let name = if n == 0 { "learned" } else { "" };
        lines.push((name, format!("{model} at {host}: {says} (since {since})")));
    }
    if status["learned"] != json!([]) {
        let path = learned::path(home);
        lines.push(("", format!("(learned from the hosts' own answers; delete {} to learn it again)", path.display())));
    }
    let mut page = format!("bantam {}\n", text(&status["version"]));
    for (name, text) in &lines {
        page.push_str(&format!("{name:<10} {}\n", one_line(text, 500)));
    }
    let values = rows("values").into_iter().map(|row| {
        let value = match &row["value"] {
            Value::String(hidden) if hidden.starts_with('(') => hidden.clone(),
            value => value.to_string(),
        };
        one_line(&format!("{} = {value} ({})", text(&row["path"]), text(&row["from"])), 300)
    });
    let warnings = rows("warnings").into_iter().map(|warning| format!("warning: {}", one_line(&text(&warning), 500)));
    for block in [values.collect::<Vec<_>>(), warnings.collect()].iter().filter(|block| !block.is_empty()) {
        page.push_str(&format!("\n{}\n", block.join("\n")));
    }
    page
}

fn key_source(model: &Model, env: &Env) -> String {
    match model.keys.first() {
        None => "none is needed".to_owned(),
        Some(key) => match keys::missing(key, env) {
            Some(name) => format!("the variable {name}, which is not set: export {name}=..."),
            None => keys::source(key),
        },
    }
}

/// The setting that a path like `model_list.0.model` belongs to.
fn setting_at(path: &str) -> Option<&'static Setting> {
    settings::find(&path.split('.').collect::<Vec<_>>())
}

/// A value for people; `None` if it could hold a secret.
pub(super) fn viewable(setting: Option<&Setting>, value: &Value) -> Option<Value> {
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
