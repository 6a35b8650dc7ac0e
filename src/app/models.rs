//! Builds model chains: the configured model and its fallbacks, or else a running Ollama, or else the demo, which is disabled
//! for embedding programs.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use super::{App, MODEL_NAME};
use crate::agent::{Models, TurnModels};
use crate::config::keys::ApiKey;
use crate::config::path::split;
use crate::config::vendors::Protocol;
use crate::config::{self, Loaded, Model};
use crate::error::Result;
use crate::http::authority;
use crate::provider::catalog::{self, learn_window, with_known_default};
use crate::provider::demo::Demo;
use crate::provider::facts::{self, HostFacts};
use crate::provider::host::Host;
use crate::provider::{Chain, ollama};
use crate::redact::Redactor;
use crate::secret::Secret;
use crate::sync;
use crate::text::to_single_line;

impl App {
    /// Returns the models with the one of this whole name first. Warnings are returned only by the first call for a name.
    pub(super) fn model(&self, name: &str) -> Result<TurnModels> {
        let mut warnings = Vec::new();
        if let Some(chain) = self.chains().get(name).cloned() {
            return Ok(TurnModels { chain, warnings });
        }
        // Without the lock, because this may ask Ollama.
        let (loaded, redactor) = (self.loaded()?, self.redactor()?);
        let chain = chain(loaded, name, redactor, &mut warnings)?;
        if loaded.config.budget.daily_cost > 0.0 {
            let unpriced =
                |name| format!("budget.daily_cost does not count {name}: no price is known for it");
            warnings.extend(chain.unpriced().map(unpriced));
        }
        let chain = Arc::new(chain.known_to(redactor));
        self.chains().insert(name.to_owned(), chain.clone());
        Ok(TurnModels { chain, warnings })
    }

    /// Whether a flag or the environment sets the model of every conversation.
    pub(crate) fn is_model_fixed(&self) -> bool {
        let loaded = self.loaded();
        loaded.is_ok_and(|loaded| loaded.override_of(&split(MODEL_NAME)).is_some())
    }

    fn chains(&self) -> MutexGuard<'_, HashMap<String, Arc<Chain>>> {
        sync::lock(&self.chains)
    }
}

impl Models for App {
    fn choose(&self, wanted: &str, chosen: Option<&str>) -> Result<TurnModels> {
        let chosen = match chosen {
            Some(chosen) if wanted.is_empty() && !self.is_model_fixed() => chosen,
            _ if wanted.is_empty() => return self.model(""),
            _ if self.chains().contains_key(wanted) => return self.model(wanted),
            _ => {
                let name = catalog::whole_name(self.loaded()?, wanted)?;
                let models = self.model(&name)?;
                // The lists of the hosts are not asked again for this name.
                self.chains()
                    .insert(wanted.to_owned(), models.chain.clone());
                return Ok(models);
            }
        };
        self.model(chosen).or_else(|e| {
            let mut models = self.model("")?;
            models.warnings.push(format!(
                "cannot use {}, the model of this conversation: {}",
                to_single_line(chosen, 80),
                e.message
            ));
            Ok(models)
        })
    }
}

/// Returns the models in order of preference, first the one of this whole name, or else the configured one. The first has a
/// context window, unless it is the demo. Adds notices about the choice to `notices`.
pub(crate) fn chain(
    loaded: &Loaded,
    name: &str,
    redactor: &Redactor,
    notices: &mut Vec<String>,
) -> Result<Chain> {
    let first = match name {
        "" => first(loaded, notices)?,
        name => loaded.config.named(name, &loaded.env)?,
    };
    let known = |model| with_known_default(model, &loaded.home);
    let first = known(first);
    let rows = facts::rows(&loaded.home);
    let window = window(&first, &rows, loaded);
    let mut models = vec![first];
    let others = loaded.config.same_name(&models[0], &loaded.env);
    models.extend(others.into_iter().map(known));
    let is_same = |one: &Model, other: &Model| one.name == other.name && one.base == other.base;
    for name in &loaded.config.agents.defaults.model_fallbacks {
        let model = loaded.config.named(name, &loaded.env);
        match model.map(known) {
            // A repeated model would fail in the same way.
            Ok(model) if models.iter().any(|known| is_same(known, &model)) => {}
            Ok(model) => models.push(model),
            Err(e) => notices.push(format!(
                "model_fallbacks: {} is left out: {e}",
                config::shown(name)
            )),
        }
    }
    let add = |chain, model| with_model(chain, model, &rows, loaded, redactor);
    let chain = models.iter().fold(Chain::default(), add);
    Ok(chain.with_window(window))
}

/// Returns the configured model, or else one of a local Ollama, or else the demo.
fn first(loaded: &Loaded, notices: &mut Vec<String>) -> Result<Model> {
    if let Some(model) = loaded.config.choose_model(&loaded.env)? {
        return Ok(model);
    }
    let Some(id) = ollama::pick_model(&loaded.env) else {
        notices.push(
            "no API key found; using the built-in demo. To use a real model, run `bantam onboard` or set OPENROUTER_API_KEY".to_owned(),
        );
        return loaded.config.named("demo/demo", &loaded.env);
    };
    let model = loaded.config.named(&format!("ollama/{id}"), &loaded.env)?;
    let host = authority(&model.base);
    notices.push(format!("no API key found; using {id} of Ollama at {host}"));
    notices.extend(learn_window(loaded, &model));
    Ok(model)
}

/// Returns the context window: from the entry, or else the host's, up to the default. Larger windows must be configured,
/// because each request with a full window is expensive.
fn window(model: &Model, rows: &[HostFacts], loaded: &Loaded) -> u64 {
    let default = loaded.config.agents.defaults.context_window;
    match model.entry.context_window {
        _ if model.protocol == Protocol::Demo => 0,
        0 => facts::among(rows, model)
            .window
            .unwrap_or(default)
            .min(default),
        window => window,
    }
}

/// Appends a model to the chain, once for each of its keys.
fn with_model(
    chain: Chain,
    model: &Model,
    rows: &[HostFacts],
    loaded: &Loaded,
    redactor: &Redactor,
) -> Chain {
    if model.protocol == Protocol::Demo {
        return chain.then(Demo);
    }
    let facts = facts::among(rows, model);
    let host = |key: Option<&Secret>| {
        let key = key.map(|key| ApiKey::new(key, loaded, redactor));
        Host::new(model.clone(), key, &loaded.env).in_home(&loaded.home, facts.clone())
    };
    if model.keys.is_empty() {
        chain.then(host(None))
    } else {
        chain.then_keys(model.keys.iter().map(|key| host(Some(key))))
    }
}
