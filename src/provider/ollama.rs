//! Queries an Ollama server about its models: support for tools, and context windows.

use std::time::Duration;

use serde_json::{Value, json};

use super::catalog::{self, Offer};
use super::host::Host;
use crate::cancel::Cancel;
use crate::config::{Config, Env};
use crate::http::Body;

/// Time limit of all requests of one question. Ollama may read the data from disk; without a server, the connection fails
/// immediately.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Ollama's default context window, in tokens. It truncates longer requests silently.
const DEFAULT_WINDOW: u64 = 4096;

fn patience() -> Cancel {
    Cancel::new(Some(TIMEOUT))
}

/// Returns the server that is not configured; `None` if its address is invalid.
fn usual_host(env: &Env) -> Option<Host> {
    let model = Config::default().named("ollama", env).ok()?;
    Some(Host::new(model, None, env))
}

/// Whether an Ollama server answers at the usual address.
pub(crate) fn is_there(env: &Env) -> bool {
    let host = usual_host(env);
    host.is_some_and(|host| host.fetch("/api/version", None, &patience()).is_ok())
}

/// Returns the first model that can use tools, else the first model.
pub(crate) fn pick_model(env: &Env) -> Option<String> {
    let host = usual_host(env)?;
    let tags = host.fetch("/api/tags", None, &patience()).ok()?;
    let models = tags["models"].as_array()?;
    let mut offers: Vec<Offer> = models.iter().filter_map(catalog::offer).collect();
    find_tools(&host, &mut offers);
    Some(catalog::pick(&offers, &[])?.id.clone())
}

/// Asks about models whose abilities are not listed, until one can use tools or the time is over.
pub(crate) fn find_tools(host: &Host, offers: &mut [Offer]) {
    let cancel = patience();
    for offer in offers.iter_mut().filter(|offer| offer.is_chat()) {
        if offer.tools.is_none() {
            let Some(shown) = show(host, &offer.id, &cancel) else {
                return;
            };
            let can =
                |what: &str| Some(shown["capabilities"].as_array()?.iter().any(|c| c == what));
            (offer.tools, offer.images) = (can("tools"), can("vision"));
        }
        if offer.tools == Some(true) {
            return;
        }
    }
}

/// Returns the context window of a host's model: the loaded model's, else its `num_ctx` parameter, else the default.
pub(super) fn window(host: &Host) -> Option<u64> {
    let (model, cancel) = (&host.model.id, patience());
    let loaded = host.fetch("/api/ps", None, &cancel).unwrap_or_default();
    if let Some(window) = loaded_window(&loaded, model) {
        return Some(window);
    }
    let shown = show(host, model, &cancel)?;
    let mut parameters = shown["parameters"].as_str().unwrap_or_default().lines();
    let num_ctx =
        parameters.find_map(|line| line.trim().strip_prefix("num_ctx")?.trim().parse().ok());
    num_ctx.or(Some(DEFAULT_WINDOW))
}

/// Returns the context window of a model in a list of loaded models. A name without a tag means `:latest`.
fn loaded_window(loaded: &Value, model: &str) -> Option<u64> {
    let plain = |name: &str| name.trim_end_matches(":latest").to_owned();
    let is_it = |row: &&Value| row["name"].as_str().map(plain) == Some(plain(model));
    let row = loaded["models"].as_array()?.iter().find(is_it)?;
    row["context_length"].as_u64()
}

fn show(host: &Host, model: &str, cancel: &Cancel) -> Option<Value> {
    let body = Body::json(&json!({"model": model}));
    host.fetch("/api/show", Some(body), cancel).ok()
}
