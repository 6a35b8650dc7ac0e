//! What an Ollama says of its models: which can use tools, and how much they read at once.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cancel::Cancel;
use crate::http::{Body, Client, Outgoing, Settings};
use crate::text::parse_json;

/// It has these answers ready.
const TIMEOUT: Duration = Duration::from_millis(500);

/// In tokens: what it reads at once unless told otherwise. It cuts the rest off without a word.
const DEFAULT_WINDOW: u64 = 4096;

/// The first model that can use tools, else the first.
pub(super) fn pick_model(base: &str) -> Option<String> {
    let tags = ask(base, "tags", None)?;
    let names: Vec<&str> = tags["models"].as_array()?.iter().filter_map(|model| model["name"].as_str()).collect();
    let has_tools = |name: &&&str| capabilities(base, name).is_some_and(|all| all.iter().any(|can| can == "tools"));
    names.iter().find(has_tools).or(names.first()).map(|name| (*name).to_owned())
}

/// What a model can do: `tools`, `vision`.
pub(super) fn capabilities(base: &str, model: &str) -> Option<Vec<String>> {
    let shown = ask(base, "show", Some(&json!({"model": model})))?;
    Some(shown["capabilities"].as_array()?.iter().filter_map(|can| can.as_str().map(str::to_owned)).collect())
}

/// How many tokens a model reads at once: as it is loaded, else by its own parameters. `None` without an answer.
pub(super) fn window(base: &str, model: &str) -> Option<u64> {
    let loaded = ask(base, "ps", None).unwrap_or_default();
    let is_it = |entry: &&Value| entry["name"].as_str().is_some_and(|name| name.trim_end_matches(":latest") == model);
    let loaded = loaded["models"].as_array().and_then(|models| models.iter().find(is_it)?["context_length"].as_u64());
    if loaded.is_some() {
        return loaded;
    }
    let shown = ask(base, "show", Some(&json!({"model": model})))?;
    let parameters = shown["parameters"].as_str().unwrap_or_default();
    let num_ctx = parameters.lines().find_map(|line| line.trim().strip_prefix("num_ctx")?.trim().parse().ok());
    Some(num_ctx.unwrap_or(DEFAULT_WINDOW))
}

/// Calls Ollama's own API, which stands beside the OpenAI-compatible one at `base`.
fn ask(base: &str, path: &str, body: Option<&Value>) -> Option<Value> {
    let url = format!("{}/api/{path}", base.trim_end_matches('/').trim_end_matches("/v1"));
    let request = Outgoing { url, headers: Vec::new(), body: body.map(Body::json) };
    let mut exchange = Client::new(Settings::default()).send(request, &Cancel::new(Some(TIMEOUT))).ok()?;
    if exchange.head(TIMEOUT).ok()?.status != 200 {
        return None;
    }
    let mut body = Vec::new();
    while let Some(piece) = exchange.body(TIMEOUT).ok()? {
        body.extend_from_slice(&piece);
    }
    parse_json(&body).ok()
}
