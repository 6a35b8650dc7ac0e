//! Queries an Ollama server about its models: support for tools, and context windows.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::catalog::{self, Offer};
use crate::cancel::Cancel;
use crate::config::{Env, vendors};
use crate::http::{Body, Client, Outgoing, Settings, left};
use crate::json::parse_json;

/// Time limit of all requests of one question. Ollama may read the data from disk; without a server, the connection fails
/// immediately.
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
    Api::new(&usual_base(env)).ask("version", None).is_some()
}

/// Returns the first model that can use tools, else the first model.
pub(crate) fn pick_model(env: &Env) -> Option<String> {
    let base = &usual_base(env);
    let tags = Api::new(base).ask("tags", None)?;
    let models = tags["models"].as_array()?;
    let mut offers: Vec<Offer> = models.iter().filter_map(catalog::offer).collect();
    find_tools(base, &mut offers);
    let with_tools = offers.iter().find(|offer| offer.tools == Some(true));
    Some(with_tools.or(offers.first())?.id.clone())
}

/// Asks about models whose abilities are not listed, until one can use tools or the time is over.
pub(crate) fn find_tools(base: &str, offers: &mut [Offer]) {
    let api = Api::new(base);
    for offer in offers.iter_mut().filter(|offer| offer.is_chat()) {
        if offer.tools.is_none() {
            let Some(shown) = api.show(&offer.id) else {
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

/// Returns the context window of a model: the loaded model's, else the model's `num_ctx` parameter, else the default.
pub(super) fn window(base: &str, model: &str) -> Option<u64> {
    let api = Api::new(base);
    let loaded = api.ask("ps", None).unwrap_or_default();
    if let Some(window) = loaded_window(&loaded, model) {
        return Some(window);
    }
    let shown = api.show(model)?;
    let mut parameters = shown["parameters"].as_str().unwrap_or_default().lines();
    let num_ctx =
        parameters.find_map(|line| line.trim().strip_prefix("num_ctx")?.trim().parse().ok());
    num_ctx.or(Some(DEFAULT_WINDOW))
}

/// Returns the context window of a model in a list of loaded models. A name without a tag means `:latest`.
pub(super) fn loaded_window(loaded: &Value, model: &str) -> Option<u64> {
    let plain = |name: &str| name.trim_end_matches(":latest").to_owned();
    let is_it = |row: &&Value| row["name"].as_str().map(plain) == Some(plain(model));
    let row = loaded["models"].as_array()?.iter().find(is_it)?;
    row["context_length"].as_u64()
}

/// Ollama's native API, next to the OpenAI-compatible API.
struct Api {
    root: String,
    until: Instant,
}

impl Api {
    fn new(base: &str) -> Self {
        let root = base.trim_end_matches('/').trim_end_matches("/v1");
        Self {
            root: root.to_owned(),
            until: Instant::now() + TIMEOUT,
        }
    }

    fn show(&self, model: &str) -> Option<Value> {
        self.ask("show", Some(&json!({"model": model})))
    }

    fn ask(&self, path: &str, body: Option<&Value>) -> Option<Value> {
        let request = Outgoing {
            url: format!("{}/api/{path}", self.root),
            headers: Vec::new(),
            body: body.map(Body::json),
        };
        let cancel = Cancel::new(Some(left(self.until)));
        let mut exchange = Client::new(Settings::default())
            .send(request, &cancel)
            .ok()?;
        let head = exchange.head(left(self.until)).ok()?;
        let body = exchange.whole_body(MAX_ANSWER, self.until).ok()?;
        if head.status == 200 {
            parse_json(&body).ok()
        } else {
            None
        }
    }
}
