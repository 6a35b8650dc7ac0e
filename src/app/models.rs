//! Builds the model chain: the configured model and its fallbacks, else an Ollama that answers, else the demo, which does not
//! answer in the name of another program.

use crate::config::vendors::Protocol;
use crate::config::{Model, Parts};
use crate::error::{Error, Result};
use crate::http::authority;
use crate::provider::catalog::{learn_window, with_default};
use crate::provider::chain::Chain;
use crate::provider::demo::Demo;
use crate::provider::host::Host;
use crate::provider::host_facts::{self, Row};
use crate::provider::ollama;
use crate::redact::Redactor;

/// The models, the first choice first, and the window of that one in tokens: 0 for the demo, which has none. `notices` gets
/// what the user should know about the choice.
pub(crate) fn chain(
    parts: Parts,
    no_demo: bool,
    redactor: &Redactor,
    notices: &mut Vec<String>,
) -> Result<(Chain, u64)> {
    let Some(first) = first(parts, notices)? else {
        if no_demo {
            return Err(no_model());
        }
        return Ok((Chain::default().then(Demo), 0));
    };
    let rows = host_facts::rows(parts.home);
    let window = window(&first, &rows, parts);
    let mut models = vec![first];
    for model in parts.config.same_name(&models[0], parts.env) {
        models.push(with_default(model, parts)?);
    }
    let alike = models.len();
    for name in &parts.config.agents.defaults.model_fallbacks {
        let model = parts.config.named(name, parts.env);
        match model.and_then(|model| with_default(model, parts)) {
            // One that is there already would fail in the same way.
            Ok(model)
                if models
                    .iter()
                    .any(|m| m.name == model.name && m.base == model.base) => {}
            Ok(model) => models.push(model),
            Err(e) => notices.push(format!(
                "model_fallbacks: {} is left out: {e}",
                crate::text::one_line(name, 80)
            )),
        }
    }
    let add = |chain, model| with_model(chain, model, &rows, parts, redactor);
    let chain = models.iter().fold(Chain::default(), add);
    Ok((chain.sharing_load(alike), window))
}

/// The configured model, else one on this machine. `None` is the demo.
fn first(parts: Parts, notices: &mut Vec<String>) -> Result<Option<Model>> {
    match parts.config.choose_model(parts.env)? {
        Some(model) => return with_default(model, parts).map(Some),
        None if parts.config.has_file => return Err(no_model()),
        None => {}
    }
    if let Some(id) = ollama::pick_model(parts.env) {
        let model = parts.config.named(&format!("ollama/{id}"), parts.env)?;
        notices.push(format!(
            "no key is set: asking {id} of Ollama at {}",
            authority(&model.base)
        ));
        notices.extend(learn_window(parts, &model));
        return Ok(Some(model));
    }
    notices.push(
        "no key is set, so the built-in demo answers; for a real model: bantam onboard, or export OPENROUTER_API_KEY=...".to_owned(),
    );
    Ok(None)
}

fn no_model() -> Error {
    Error::config("choosing the model: no model is configured and no key was found")
        .hint("run `bantam onboard`, or export OPENROUTER_API_KEY=... (or another vendor's)")
}

/// What a model reads at once: as its entry says, else as its host did, up to the default. A larger window must be asked
/// for: each request with a full one costs what it holds.
fn window(model: &Model, rows: &[Row], parts: Parts) -> u64 {
    let default = parts.config.agents.defaults.context_window;
    match model.entry.context_window {
        _ if model.protocol == Protocol::Demo => 0,
        0 => host_facts::among(rows, model)
            .window
            .map_or(default, |window| window.min(default)),
        window => window,
    }
}

/// The chain with a model behind the others, with each of its keys.
fn with_model(
    chain: Chain,
    model: &Model,
    rows: &[Row],
    parts: Parts,
    redactor: &Redactor,
) -> Chain {
    let facts = host_facts::among(rows, model);
    let host = |key| Host::configured(model, key, facts.clone(), parts, redactor);
    if model.protocol == Protocol::Demo {
        chain.then(Demo)
    } else if model.keys.is_empty() {
        chain.then_keys(host(None))
    } else {
        chain.then_keys(model.keys.iter().filter_map(|key| host(Some(key))))
    }
}
