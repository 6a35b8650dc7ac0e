//! Queries an Ollama server about its models: support for tools, and context windows.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::catalog::Offer;
use crate::cancel::Cancel;
use crate::config::{Env, vendors};
use crate::http::{Body, Client, Outgoing, Settings, left};
use crate::json::parse_json;

/// Time limit of a request. Ollama may read the data from disk; without a server, the connection fails immediately.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum size of an answer, in bytes.
const MAX_ANSWER: usize = 8 << 20;

/// Ollama's default context window, in tokens. It truncates longer requests silently.
const DEFAULT_WINDOW: u64 = 4096;

/// Address of an Ollama server that is not configured.
pub(crate) fn usual_base(env: &Env) -> String {
    vendors::find("ollama")
        .map(|vendor| vendors::base(vendor, env))
        .unwrap_or_default()
}

/// Whether an Ollama server answers at the usual address.
pub(crate) fn is_there(env: &Env) -> bool {
    ask(&usual_base(env), "version", None).is_some()
}

/// Returns the first model that can use tools, else the first model.
pub(crate) fn pick_model(env: &Env) -> Option<String> {
    let base = &usual_base(env);
    let tags = ask(base, "tags", None)?;
    let names: Vec<&str> = tags["models"]
        .as_array()?
        .iter()
        .filter_map(|model| model["name"].as_str())
        .collect();
    let has_tools =
        |name: &&&str| show(base, name).is_some_and(|shown| can(&shown, "tools") == Some(true));
    names
        .iter()
        .find(has_tools)
        .or(names.first())
        .map(|name| (*name).to_owned())
}

/// Describes a model. The window is the loaded model's, else the model's `num_ctx` parameter, else the default.
pub(super) fn offer(base: &str, model: &str) -> Option<Offer> {
    let loaded = ask(base, "ps", None).unwrap_or_default();
    // A name without a tag means `:latest`.
    let plain = |name: &str| name.trim_end_matches(":latest").to_owned();
    let is_it = |entry: &&Value| {
        entry["name"]
            .as_str()
            .is_some_and(|name| plain(name) == plain(model))
    };
    let loaded = loaded["models"]
        .as_array()
        .and_then(|models| models.iter().find(is_it)?["context_length"].as_u64());
    let shown = show(base, model)?;
    let parameters = shown["parameters"].as_str().unwrap_or_default();
    let num_ctx = || {
        parameters
            .lines()
            .find_map(|line| line.trim().strip_prefix("num_ctx")?.trim().parse().ok())
    };
    let window = loaded.or_else(num_ctx).or(Some(DEFAULT_WINDOW));
    Some(Offer {
        id: model.to_owned(),
        window,
        tools: can(&shown, "tools"),
        images: can(&shown, "vision"),
        ..Offer::default()
    })
}

fn show(base: &str, model: &str) -> Option<Value> {
    ask(base, "show", Some(&json!({"model": model})))
}

/// Whether a model has a capability; `None` if the server does not report capabilities.
fn can(shown: &Value, what: &str) -> Option<bool> {
    shown["capabilities"]
        .as_array()
        .map(|all| all.iter().any(|name| name == what))
}

/// Calls Ollama's native API, next to the OpenAI-compatible API at `base`.
fn ask(base: &str, path: &str, body: Option<&Value>) -> Option<Value> {
    let url = format!(
        "{}/api/{path}",
        base.trim_end_matches('/').trim_end_matches("/v1")
    );
    let request = Outgoing {
        url,
        headers: Vec::new(),
        body: body.map(Body::json),
    };
    let mut exchange = Client::new(Settings::default())
        .send(request, &Cancel::new(None))
        .ok()?;
    let until = Instant::now() + TIMEOUT;
    let head = exchange.head(left(until)).ok()?;
    let body = exchange.whole_body(MAX_ANSWER, until).ok()?;
    if head.status == 200 {
        parse_json(&body).ok()
    } else {
        None
    }
}
