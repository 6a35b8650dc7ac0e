//! What the configured hosts offer: their models, and what they tell about each. Learns the windows of the configured ones.

use std::time::Duration;

use serde_json::Value;

use super::connect::connect;
use super::learned::Learned;
use super::{ProviderError, ollama};
use crate::cancel::{Cancel, CancelReason};
use crate::config::vendors::{Protocol, VENDORS};
use crate::config::{Config, Env, Model, Parts};
use crate::error::{Error, Kind, Result};
use crate::http::authority;
use crate::redact::Redactor;
use crate::text::nearest;

/// How long a host may take to list its models; less where a user waits at a prompt.
const PATIENCE: Duration = Duration::from_secs(20);
const PROMPT_PATIENCE: Duration = Duration::from_secs(5);

/// A model as its host describes it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Offer {
    pub id: String,
    /// By which it can be chosen; empty if there is none.
    pub name: String,
    /// In tokens.
    pub window: Option<u64>,
    pub tools: Option<bool>,
    pub images: Option<bool>,
}

impl Offer {
    /// What it can do, as far as its host tells.
    pub(crate) fn abilities(&self) -> String {
        let able = [(self.tools, "tools"), (self.images, "images")];
        let able = able
            .into_iter()
            .filter(|(can, _)| *can == Some(true))
            .map(|(_, what)| what.to_owned());
        self.window
            .map(|tokens| format!("{tokens} tokens"))
            .into_iter()
            .chain(able)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// The models of the host of a vendor or an entry, for somebody who waits.
pub(crate) fn of(parts: Parts, name: &str) -> Result<HostOffers> {
    Ok(of_host(
        &any_of(parts.config, name, parts.env)?,
        parts,
        PROMPT_PATIENCE,
    ))
}

/// The offered model that an id may be a misspelling of, unless that is offered itself.
pub(crate) fn meant<'a>(offers: &'a [Offer], id: &str) -> Option<&'a str> {
    let ids = offers.iter().map(|offer| offer.id.as_str());
    nearest(id, ids.clone()).filter(|_| !ids.clone().any(|offered| offered == id))
}

/// One host and its models.
pub(crate) struct HostOffers {
    pub host: String,
    pub models: Result<Vec<Offer>>,
}

/// Asks the hosts of all configured models and of all vendors with a key, or only that of a vendor or an entry.
pub(crate) fn list(parts: Parts, wanted: Option<&str>) -> Result<Vec<HostOffers>> {
    let models = match wanted {
        Some(name) => vec![any_of(parts.config, name, parts.env)?],
        None => configured(parts.config, parts.env),
    };
    if models.is_empty() {
        return Err(
            Error::config("no model is configured and no key was found").hint(
                "name a vendor, for example bantam models ollama; or export OPENROUTER_API_KEY=...",
            ),
        );
    }
    Ok(models
        .iter()
        .map(|model| of_host(model, parts, PATIENCE))
        .collect())
}

/// The names of the models that all hosts offer, for somebody who waits. A host that does not answer has none.
pub(crate) fn names(parts: Parts) -> Vec<String> {
    let hosts = configured(parts.config, parts.env)
        .into_iter()
        .map(|model| of_host(&model, parts, PROMPT_PATIENCE));
    let offers = hosts.flat_map(|host| host.models.unwrap_or_default());
    offers
        .map(|offer| offer.name)
        .filter(|name| !name.is_empty())
        .collect()
}

/// Stands for any model of a host.
pub(crate) const ANY_MODEL: &str = "-";

/// A model of a vendor or an entry; which one does not matter.
fn any_of(config: &Config, name: &str, env: &Env) -> Result<Model> {
    let any = || config.named(&format!("{name}/{ANY_MODEL}"), env);
    config.named(name, env).or_else(|e| any().map_err(|_| e))
}

/// One model for each address and key.
fn configured(config: &Config, env: &Env) -> Vec<Model> {
    let entries = config
        .model_list
        .iter()
        .map(|entry| entry.model.replace("/*", &format!("/{ANY_MODEL}")));
    let has_key = |name: &str| env.get(name).is_some_and(|key| !key.trim().is_empty());
    let vendors = VENDORS
        .iter()
        .filter(|v| has_key(v.key_env) && !v.base.is_empty())
        .map(|v| format!("{}/{ANY_MODEL}", v.name));
    let mut models: Vec<Model> = Vec::new();
    for model in entries
        .chain(vendors)
        .filter_map(|name| config.named(&name, env).ok())
    {
        let is_known = models
            .iter()
            .any(|m| m.base == model.base && m.keys.first() == model.keys.first());
        if !is_known && model.protocol != Protocol::Demo {
            models.push(model);
        }
    }
    models
}

fn of_host(model: &Model, parts: Parts, within: Duration) -> HostOffers {
    let mut offers = ask(model, parts, within);
    for offer in offers.iter_mut().flatten() {
        keep(offer, model, parts);
        offer.name = name(&offer.id, model, parts).unwrap_or_default();
    }
    HostOffers {
        host: authority(&model.base).to_owned(),
        models: offers,
    }
}

/// The name that leads to a model of this host.
fn name(id: &str, host: &Model, parts: Parts) -> Option<String> {
    let of_vendor = host.name.strip_suffix(&host.id).unwrap_or_default();
    let entries = parts.config.model_list.iter();
    let of_entries = entries
        .filter(|entry| !entry.model_name.is_empty())
        .map(|entry| format!("{}/{id}", entry.model_name));
    let mut names = std::iter::once(format!("{of_vendor}{id}")).chain(of_entries);
    names.find(|name| {
        let found = parts.config.named(name, parts.env);
        found.is_ok_and(|found| {
            found.id == id && found.base == host.base && found.keys.first() == host.keys.first()
        })
    })
}

fn ask(model: &Model, parts: Parts, within: Duration) -> Result<Vec<Offer>> {
    let redactor = Redactor::new(parts.config.secrets(parts.env));
    let Some(host) = connect(model, model.keys.first(), parts, &redactor) else {
        return Ok(vec![Offer {
            id: model.id.clone(),
            tools: Some(true),
            images: Some(false),
            ..Offer::default()
        }]);
    };
    let cancel = Cancel::new(Some(within));
    let name = model.name.trim_end_matches(ANY_MODEL).trim_end_matches('/');
    let get = |path: Option<&str>| {
        host.get(path, &cancel).map_err(|e| match e {
            ProviderError::Cancelled(CancelReason::Deadline) => {
                let seconds = within.as_secs();
                Error::new(
                    Kind::Unavailable,
                    format!("asking {name}: no list of models within {seconds} s"),
                )
            }
            e => e.into_error(name),
        })
    };
    let is_lm_studio = model.name.starts_with("lmstudio/");
    let listed = get(is_lm_studio.then_some("/api/v0/models"))?;
    let list = [&listed["data"], &listed["models"], &listed]
        .into_iter()
        .find_map(Value::as_array);
    let mut offers: Vec<Offer> = list.into_iter().flatten().filter_map(offer).collect();
    if model.name.starts_with("ollama/") {
        for offer in &mut offers {
            *offer = ollama::offer(&model.base, &offer.id).unwrap_or_else(|| std::mem::take(offer));
        }
    } else if crate::ssrf::is_private(&crate::config::proxy::host(&model.base))
        && offers.iter().all(|o| o.window.is_none())
    {
        // llama.cpp's server has one model.
        let window = get(Some("/props"))
            .ok()
            .and_then(|props| props["default_generation_settings"]["n_ctx"].as_u64());
        for offer in &mut offers {
            offer.window = window;
        }
    }
    offers.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(offers)
}

/// Reads what hosts tell of a model: each has its own names.
fn offer(value: &Value) -> Option<Offer> {
    let id = ["id", "name", "model"]
        .iter()
        .find_map(|name| value[*name].as_str())?;
    let windows = [
        &value["loaded_context_length"],
        &value["top_provider"]["context_length"],
        &value["context_length"],
        &value["context_window"],
        &value["max_context_length"],
        &value["max_model_len"],
        &value["max_input_tokens"],
    ];
    let has = |list: &Value, words: &[&str]| {
        list.as_array().map(|all| {
            all.iter()
                .any(|word| words.iter().any(|known| word == known))
        })
    };
    let able = &value["capabilities"];
    let tools = has(&value["supported_parameters"], &["tools"])
        .or_else(|| has(able, &["tools", "tool_use"]))
        .or_else(|| able["function_calling"].as_bool());
    let images = has(&value["architecture"]["input_modalities"], &["image"])
        .or_else(|| able["vision"].as_bool())
        .or_else(|| {
            value["type"]
                .as_str()
                .map(|kind| kind == "vlm")
                .filter(|_| value["max_context_length"].is_u64())
        });
    let window = windows
        .into_iter()
        .find_map(Value::as_u64)
        .filter(|window| *window > 0);
    Some(Offer {
        name: String::new(),
        id: id.trim_start_matches("models/").to_owned(),
        window,
        tools,
        images,
    })
}

/// Stores the window of a model that is configured.
fn keep(offer: &Offer, host: &Model, parts: Parts) {
    let Some(window) = offer.window else { return };
    let entries = parts
        .config
        .model_list
        .iter()
        .map(|entry| entry.model.clone());
    let chosen = parts.config.choose_model(parts.env).ok().flatten();
    let models = entries
        .filter_map(|name| parts.config.named(&name, parts.env).ok())
        .chain(chosen);
    for model in models.filter(|model| model.base == host.base && model.id == offer.id) {
        Learned::of(&model, parts.home).keep_window(window);
    }
}

/// Asks an Ollama, once in a while, how much its model reads at once: it cuts longer requests without a word. Returns what
/// the user should know.
pub(crate) fn learn_window(parts: Parts, model: &Model) -> Option<String> {
    if !model.name.starts_with("ollama/") || model.entry.context_window > 0 {
        return None;
    }
    let mut learned = Learned::of(model, parts.home);
    if learned.window().is_some() {
        return None;
    }
    let window = ollama::offer(&model.base, &model.id)?.window?;
    learned.keep_window(window);
    (window < parts.config.agents.defaults.context_window).then(|| {
        format!(
            "Ollama gives {} a context of {window} tokens; for more, start it with OLLAMA_CONTEXT_LENGTH=32768; \
             if this is wrong, set context_window",
            model.id
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_model_is_described_in_every_hosts_own_words() {
        for (told, window, tools, images) in [
            (json!({"id": "m"}), None, None, None),
            (
                json!({
                    "id": "m", "context_length": 200_000, "top_provider": {"context_length": 131_072},
                    "supported_parameters": ["tools", "top_p"], "architecture": {"input_modalities": ["text", "image"]},
                }),
                Some(131_072),
                Some(true),
                Some(true),
            ),
            (
                json!({"id": "m", "max_model_len": 8192}),
                Some(8192),
                None,
                None,
            ),
            (
                json!({"id": "m", "context_window": 8192}),
                Some(8192),
                None,
                None,
            ),
            (
                json!({"id": "m", "max_context_length": 32_768, "capabilities": {"function_calling": true, "vision": false}}),
                Some(32_768),
                Some(true),
                Some(false),
            ),
            (
                json!({
                    "id": "m", "type": "vlm", "max_context_length": 32_768, "loaded_context_length": 4096,
                    "capabilities": ["tool_use"],
                }),
                Some(4096),
                Some(true),
                Some(true),
            ),
            (
                json!({"name": "models/m", "max_input_tokens": 5000}),
                Some(5000),
                None,
                None,
            ),
        ] {
            assert_eq!(
                offer(&told),
                Some(Offer {
                    name: String::new(),
                    id: "m".to_owned(),
                    window,
                    tools,
                    images
                }),
                "{told}"
            );
        }
        assert_eq!(offer(&json!({"object": "model"})), None);
    }
}
