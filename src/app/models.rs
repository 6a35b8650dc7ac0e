//! Builds the model chain: the configured model and its fallbacks, else an Ollama on this machine, else the demo.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use super::learned::{self, Row};
use super::{Parts, ollama};
use crate::config::keys::ApiKey;
use crate::config::vendors::{self, Protocol};
use crate::config::{Env, Model, proxy};
use crate::error::{Error, Result};
use crate::http::Settings;
use crate::provider::Provider;
use crate::provider::anthropic::ANTHROPIC;
use crate::provider::chain::ModelChain;
use crate::provider::demo::Demo;
use crate::provider::host::Host;
use crate::provider::openai::{AZURE, OPENAI};
use crate::secret::Redactor;

/// The models, the first choice first, and the window of that one in tokens: 0 for the demo, which has none. `notices` gets
/// what the user should know about the choice.
pub(crate) fn chain(parts: &Parts, redactor: &Redactor, notices: &mut Vec<String>) -> Result<(ModelChain, u64)> {
    let mut chain = ModelChain::default();
    let Some(first) = first(parts, notices)? else {
        chain.push(vec![Box::new(Demo)]);
        return Ok((chain, 0));
    };
    let window = window(&first, parts.config.agents.defaults.context_window, notices);
    let mut models = vec![first];
    for name in &parts.config.agents.defaults.model_fallbacks {
        match parts.config.named(name, parts.env) {
            // One that is there already would fail in the same way.
            Ok(model) if models.iter().any(|m| m.name == model.name && m.base == model.base) => {}
            Ok(model) => models.push(model),
            Err(e) => notices.push(format!("model_fallbacks: {} is left out: {e}", crate::text::one_line(name, 80))),
        }
    }
    let env = Arc::new(parts.env.clone());
    let rows = learned::read(parts.home, SystemTime::now());
    for model in &models {
        chain.push(providers(model, parts, &env, redactor, &rows));
    }
    Ok((chain, window))
}

/// The configured model, else one on this machine. `None` is the demo.
fn first(parts: &Parts, notices: &mut Vec<String>) -> Result<Option<Model>> {
    match parts.config.choose_model(parts.env)? {
        Some(model) => return Ok(Some(model)),
        None if parts.configured => {
            return Err(Error::config("choosing the model: no model is configured and no key was found").hint(
                "export OPENROUTER_API_KEY=... (or another vendor's), or set agents.defaults.model_name in config.json",
            ));
        }
        None => {}
    }
    if let Some(id) = vendors::find("ollama").and_then(|vendor| ollama::pick_model(vendor.base)) {
        notices.push(format!("no key is set: asking {id} of the Ollama on this machine"));
        return parts.config.named(&format!("ollama/{id}"), parts.env).map(Some);
    }
    notices.push(
        "no key is set, so the built-in demo answers; for a real model: bantam onboard, or export OPENROUTER_API_KEY=...".to_owned(),
    );
    Ok(None)
}

/// What a model reads at once. Ollama often reads less than its models could, so it is asked, unless the entry says.
fn window(model: &Model, default: u64, notices: &mut Vec<String>) -> u64 {
    match model.entry.context_window {
        _ if model.protocol == Protocol::Demo => 0,
        0 if model.name.starts_with("ollama/") => match ollama::window(&model.base, &model.id) {
            Some(window) if window < default => {
                notices.push(format!(
                    "{} reads {window} tokens at once: for more, start Ollama with OLLAMA_CONTEXT_LENGTH=32768; \
                     set its context_window if this is wrong",
                    model.name
                ));
                window
            }
            _ => default,
        },
        0 => default,
        window => window,
    }
}

/// A model, once for each of its keys.
fn providers(
    model: &Model,
    parts: &Parts,
    env: &Arc<Env>,
    redactor: &Redactor,
    rows: &[Row],
) -> Vec<Box<dyn Provider>> {
    let ca_file = parts.env.get("SSL_CERT_FILE").filter(|f| !f.is_empty()).map(PathBuf::from);
    let proxy =
        if model.entry.proxy.is_empty() { proxy::proxy(&model.base, parts.env) } else { model.entry.proxy.clone() };
    let settings = Settings { proxy, ca_file, guard: None };
    let provider = |key: Option<ApiKey>| -> Box<dyn Provider> {
        let dialect = match model.protocol {
            Protocol::OpenAi => &OPENAI,
            Protocol::Azure => &AZURE,
            Protocol::Anthropic => &ANTHROPIC,
            Protocol::Demo => return Box::new(Demo),
        };
        let learned = learned::of(model, rows, parts.home);
        Box::new(Host::new(dialect, model.clone(), key, settings.clone(), learned))
    };
    let key = |written| ApiKey::new(written, env.clone(), parts.home.config(), redactor.clone());
    if model.keys.is_empty() {
        return vec![provider(None)];
    }
    model.keys.iter().cloned().map(|written| provider(Some(key(written)))).collect()
}
