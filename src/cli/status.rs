//! `bantam status`: shows the facts about a home, as a page or as JSON.

use std::fmt::Display;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use super::args::Args;
use super::ui::Ui;
use super::{error_json, hanging_indent, local_time, print, print_json, report, zone};
use crate::app::facts::Facts;
use crate::app::{self, App};
use crate::config::{self, Loaded};
use crate::error::Result;
use crate::paths::shown_key;
use crate::provider::facts;
use crate::text::{counted, rfc3339, to_single_line};
use crate::timezone::Zone;

pub(super) fn run(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let facts = Facts::find(app);
    if given.has("json") {
        print_json(&object(&facts))?;
    } else {
        print(&page(&facts))?;
    }
    // An invalid configuration has the exit code that a question would have.
    Ok(facts.loaded.err().map_or(0, |e| report(&e)))
}

/// Returns the object of `--json`: no secrets, times as RFC 3339, and null for unknown values.
fn object(facts: &Facts) -> Value {
    let model = facts.model_name().ok();
    let newest = facts.sessions.first();
    json!({
        "ok": facts.loaded.is_ok(),
        "version": env!("CARGO_PKG_VERSION"),
        "home": facts.app.home.root().display().to_string(),
        "key": model.is_some().then(|| facts.key()),
        "model": model,
        "error": facts.model.as_ref().err().map(error_json),
        "sessions": {
            "count": facts.sessions.len(),
            "newest": newest.map(|newest| json!({"key": shown_key(&newest.key), "last": newest.last})),
        },
        "gateway": facts.gateway,
        "learned": learned(facts),
        "warnings": facts.warnings,
    })
}

/// Returns a row for each detected feature of a host.
fn learned(facts: &Facts) -> Vec<Value> {
    let mut rows = Vec::new();
    for row in &facts.learned {
        // The date in UTC is precise enough.
        let since = rfc3339(UNIX_EPOCH + Duration::from_secs(row.at))[..10].to_owned();
        let row_of = |says: String| json!({"host": row.host, "model": row.model, "says": says, "since": since});
        rows.extend(row.words().into_iter().map(row_of));
    }
    rows
}

/// Lines for people.
#[derive(Default)]
struct StatusPage(String);

impl StatusPage {
    /// Adds a line, which continues the previous one if it has no name.
    fn add(&mut self, name: &str, text: impl Display) {
        let text = to_single_line(&text.to_string(), 500);
        self.0 += &hanging_indent(&format!("{name:<10} {text}"), 11);
    }
}

fn page(facts: &Facts) -> String {
    let home = &facts.app.home;
    let zone = zone(&facts.app.env);
    let mut page = StatusPage(format!("bantam {}\n", env!("CARGO_PKG_VERSION")));
    page.add("home", home.root().display());
    let absent = match facts.app.text() {
        Ok(None) => " (missing; bantam onboard writes one)",
        _ => "",
    };
    page.add("config", format!("{}{absent}", home.config().display()));
    if let Ok(loaded) = facts.loaded {
        add_settings(&mut page, facts, loaded);
    }
    let sessions = facts.sessions.first().map(|newest| {
        let key = to_single_line(&shown_key(&newest.key), 80);
        let last = local_time(&newest.last, &zone);
        format!("{}, the newest is {key} ({last})", facts.sessions.len())
    });
    page.add("sessions", sessions.unwrap_or("none".to_owned()));
    add_gateway(&mut page, &facts.gateway, &zone);
    for row in &learned(facts) {
        let [model, host, says, since] =
            ["model", "host", "says", "since"].map(|name| row[name].as_str().unwrap_or_default());
        let line = format!("{model} at {host}: {says} (since {since})");
        page.add("learned", line);
    }
    if !facts.learned.is_empty() {
        let path = facts::path(home).display().to_string();
        page.add("", format!("delete {path} to detect again"));
    }
    for warning in &facts.warnings {
        page.add("warning", warning);
    }
    page.0
}

fn add_settings(page: &mut StatusPage, facts: &Facts, loaded: &Loaded) {
    match facts.model_name() {
        Ok(model) => {
            page.add("model", model);
            page.add("key", facts.key());
        }
        Err(e) => {
            page.add("model", format!("none: {}", e.message));
            page.add("", e.hint.unwrap_or_default());
        }
    }
    if let Ok(workspace) = app::workspace(loaded) {
        page.add("workspace", workspace.display());
    }
    let sandbox = json!(loaded.config.tools.exec.sandbox);
    let sandbox = sandbox.as_str().unwrap_or_default();
    page.add("sandbox", format!("{sandbox} (bantam doctor tests it)"));
    let bot = match facts.bot_users() {
        None if loaded.config.channels.telegram.token.is_empty() => {
            "no bot (bantam onboard)".to_owned()
        }
        None => "disabled (channels.telegram.enabled)".to_owned(),
        Some(0) => "no allowed users yet (channels.telegram.allow_from is empty)".to_owned(),
        Some(users) => format!(
            "{} may write while the gateway runs",
            counted(users, "user")
        ),
    };
    page.add("telegram", bot);
    let http = &loaded.config.channels.http;
    if http.enabled {
        let listen = config::shown(&http.listen);
        let mut text = format!("http://{listen}/v1 while the gateway runs");
        if http.token.is_empty() {
            let path = facts.app.home.http_token();
            text += &format!("; its token is in {}", path.display());
        }
        page.add("http", text);
    }
}

fn add_gateway(page: &mut StatusPage, gateway: &Value, zone: &Zone) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let time = |value: &Value| local_time(&text(value), zone);
    let (started, ended) = (time(&gateway["started"]), time(&gateway["ended"]));
    let bot = match text(&gateway["bot"]) {
        name if name.is_empty() => name,
        name => format!(", as {name}"),
    };
    let is_running = gateway["running"] == true;
    let state = match is_running {
        true if started.is_empty() => "running".to_owned(),
        true => format!("running since {started}{bot} (process {})", gateway["pid"]),
        false if started.is_empty() => "not running; bantam gateway starts it".to_owned(),
        false if ended.is_empty() => format!("not running; it crashed (started {started})"),
        false => format!("not running; it ended at {ended}"),
    };
    page.add("gateway", state);
    let polling = &gateway["polling"];
    if is_running && polling["ok"] == false {
        let (since, why) = (time(&polling["since"]), text(&polling["why"]));
        page.add("", format!("polling has failed since {since}: {why}"));
    }
    let waiting = &gateway["waiting"];
    if *waiting != 0 {
        page.add("", format!("messages waiting for an answer: {waiting}"));
    }
    let undelivered = &gateway["undelivered"];
    let count = &undelivered["count"];
    if *count != 0 {
        let oldest = time(&undelivered["oldest"]);
        let line = format!("answers not delivered yet: {count}, the oldest from {oldest}");
        page.add("", line);
    }
    if let Some(jobs @ [next, ..]) = gateway["jobs"].as_array().map(Vec::as_slice) {
        let (count, name, at) = (jobs.len(), text(&next["name"]), time(&next["next"]));
        let line = format!("{count} enabled, the next is {name} at {at}");
        page.add("jobs", line);
    }
}
