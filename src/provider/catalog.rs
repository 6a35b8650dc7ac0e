//! Lists the models of the configured hosts, finds a typed name in these lists, and picks a host's default model.

use std::time::Duration;

use serde_json::Value;

use super::facts;
use super::host::Host;
use super::refusal::transient;
use super::{ProviderError, ollama, says};
use crate::cancel::{Cancel, CancelReason};
use crate::config::keys::ApiKey;
use crate::config::vendors::{self, Protocol, Vendor};
use crate::config::{Loaded, Model, find_bare};
use crate::error::{Error, Result};
use crate::message::Price;
use crate::paths::Home;

/// Time limit for hosts to list their models, in seconds; a user may be waiting.
const PATIENCE: u64 = 10;

/// A model as described by its host.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Offer {
    pub id: String,
    /// Name for choosing the model; empty if it has none.
    pub name: String,
    /// Context window, in tokens.
    pub window: Option<u64>,
    pub tools: Option<bool>,
    pub images: Option<bool>,
    pub price: Option<Price>,
    /// Creation time in seconds since 1970; 0 if the host does not report it.
    pub created: u64,
}

impl Offer {
    /// Whether the model can chat, judging by its name.
    pub(super) fn is_chat(&self) -> bool {
        !says(&self.id.to_lowercase(), NO_CHAT)
    }

    /// Describes the abilities that the host reports.
    pub(crate) fn abilities(&self) -> String {
        let window = self.window.map(|tokens| format!("{tokens} tokens"));
        let mut able: Vec<String> = window.into_iter().collect();
        for (can, what) in [(self.tools, "tools"), (self.images, "images")] {
            if can == Some(true) {
                able.push(what.to_owned());
            }
        }
        able.join(", ")
    }
}

fn patience() -> Cancel {
    Cancel::new(Some(Duration::from_secs(PATIENCE)))
}

/// Returns a model of each host to list: one per configured address and key, else of an Ollama that answers, or one of the
/// `wanted` vendor or entry.
pub(crate) fn hosts(loaded: &Loaded, wanted: Option<&str>) -> Result<Vec<Model>> {
    let Loaded { config, env, .. } = loaded;
    if let Some(name) = wanted {
        return Ok(vec![config.named(name, env)?]);
    }
    let mut hosts: Vec<Model> = Vec::new();
    for model in config.models(env) {
        let is_known = hosts.iter().any(|host| is_same_host(host, &model));
        if !is_known && model.protocol != Protocol::Demo {
            hosts.push(model);
        }
    }
    if hosts.is_empty() && ollama::is_there(env) {
        hosts.push(config.named("ollama", env)?);
    }
    Ok(hosts)
}

fn is_same_host(one: &Model, other: &Model) -> bool {
    one.base == other.base && one.keys.first() == other.keys.first()
}

/// Returns the models of a model's host in the order of their ids, those that cannot chat last. Stores the facts about
/// configured ones.
pub(crate) fn offers(model: &Model, loaded: &Loaded) -> Result<Vec<Offer>> {
    offers_within(model, loaded, &patience())
}

fn offers_within(model: &Model, loaded: &Loaded, cancel: &Cancel) -> Result<Vec<Offer>> {
    if model.protocol == Protocol::Demo {
        return Ok(Vec::new());
    }
    let listed = list_of(&host(model.clone(), loaded), cancel);
    let mut offers = listed.map_err(|e| e.into_error(&model.name))?;
    offers.sort_by_key(|offer| (!offer.is_chat(), offer.id.clone()));
    for known in loaded.config.models(&loaded.env) {
        if known.base == model.base {
            if let Some(offer) = offers.iter().find(|offer| offer.id == known.id) {
                keep_facts(offer, &known, &loaded.home);
            }
        }
    }
    for offer in &mut offers {
        let name = with_id(model, offer.id.clone()).name;
        let found = loaded.config.named(&name, &loaded.env);
        if found.is_ok_and(|found| found.id == offer.id && is_same_host(&found, model)) {
            offer.name = name;
        }
    }
    Ok(offers)
}

/// Names of the models of all hosts. Failing hosts are skipped.
pub(crate) fn names(loaded: &Loaded) -> Vec<String> {
    let cancel = patience();
    let hosts = hosts(loaded, None).unwrap_or_default();
    let lists = hosts
        .iter()
        .map(|model| offers_within(model, loaded, &cancel));
    let names = lists.flatten().flatten().map(|offer| offer.name);
    names.filter(|name| !name.is_empty()).collect()
}

/// Returns the whole name of a model that a user has typed. Asks the hosts for their models if the settings do not have it.
///
/// # Errors
/// Returns an error of the kind `Usage` if there is no such model.
pub(crate) fn whole_name(loaded: &Loaded, typed: &str) -> Result<String> {
    if let Ok(name) = loaded.config.whole_name(typed) {
        return Ok(name.to_owned());
    }
    let listed = names(loaded);
    let listed = listed.iter().map(String::as_str);
    let known: Vec<&str> = loaded.config.names().into_iter().chain(listed).collect();
    find_bare(typed.trim(), &known).map(str::to_owned)
}

/// Returns the host of a model with its first key, for requests other than chat.
pub(crate) fn host(model: Model, loaded: &Loaded) -> Host {
    let redactor = loaded.redactor();
    let key = model.keys.first();
    let key = key.map(|key| ApiKey::new(key, loaded, &redactor));
    Host::new(model, key, &loaded.env)
}

/// Fills in the stored default of a host if the user named no model. Without one, the first request finds it.
pub(crate) fn with_known_default(model: Model, home: &Home) -> Model {
    if !model.id.is_empty() {
        return model;
    }
    match facts::default_id(home, &model.base) {
        Some(id) => with_id(&model, id),
        None => model,
    }
}

fn with_id(model: &Model, id: String) -> Model {
    let provider = model.name.strip_suffix(&*model.id).unwrap_or(&model.name);
    Model {
        name: format!("{}/{id}", provider.trim_end_matches('/')),
        id,
        ..model.clone()
    }
}

fn vendor_of(model: &Model) -> Option<&'static Vendor> {
    vendors::find(model.name.split('/').next().unwrap_or_default())
}

/// Finds the default of a model's host in its list, except for a `retired` model.
pub(super) fn find_default(
    host: &Host,
    retired: &str,
    cancel: &Cancel,
) -> Result<Model, ProviderError> {
    let provider = host.model.name.split('/').next().unwrap_or_default();
    let prefer = vendor_of(&host.model).map_or(&[][..], |vendor| vendor.prefer);
    let cancel = cancel.with_timeout(Duration::from_secs(PATIENCE));
    let (mut offers, why) = match list_of(host, &cancel) {
        Ok(offers) => (offers, String::new()),
        Err(ProviderError::NotFound(why)) => (Vec::new(), format!(" ({why})")),
        Err(e) => return Err(e),
    };
    offers.retain(|offer| offer.id != retired);
    // A server of the user's own may have none of the vendor's models.
    let is_own = !host.model.entry.api_base.is_empty();
    let others = || if is_own { pick(&offers, &[]) } else { None };
    match pick(&offers, prefer).or_else(others) {
        Some(offer) => Ok(with_id(&host.model, offer.id.clone())),
        None => Err(ProviderError::NotSent(
            Error::config(format!("no default model of {provider} was found{why}")).hint(format!(
                "run `bantam models {provider}` and choose one: `bantam config set agents.defaults.model_name {provider}/MODEL`"
            )),
        )),
    }
}

/// Parts of ids of models that cannot chat.
const NO_CHAT: &str = include_str!("wordings/no_chat.txt");

/// Picks the default of a list: the newest model of the first preferred family that the list has, or without preferences the
/// first model that can use tools, else the first.
pub(crate) fn pick<'a>(offers: &'a [Offer], prefer: &[&str]) -> Option<&'a Offer> {
    let chats = || offers.iter().filter(|offer| offer.is_chat());
    if prefer.is_empty() {
        let mut able = chats().filter(|offer| offer.tools == Some(true));
        return able.next().or_else(|| chats().next());
    }
    prefer.iter().find_map(|preferred| {
        let family = family(preferred);
        let of_family = chats().filter(|offer| self::family(&offer.id) == family);
        // The first model of the list wins a tie.
        of_family.rev().max_by_key(|offer| {
            let (version, is_dated) = version(&offer.id);
            (!is_dated, offer.created, version)
        })
    })
}

/// Returns the words of a model's id without its maker and numbers: `gpt-mini` of `openai/gpt-5.1-mini`.
fn family(id: &str) -> String {
    let id = id.rsplit('/').next().unwrap_or_default();
    let words = id.split('-');
    let words = words.map(|word| word.replace(|c: char| !c.is_alphabetic(), ""));
    let words: Vec<String> = words.filter(|word| !word.is_empty()).collect();
    words.join("-")
}

/// Returns the numbers of an id up to a date, and whether it has a date.
fn version(id: &str) -> (Vec<u64>, bool) {
    let numbers = id.split(|c: char| !c.is_ascii_digit());
    let numbers: Vec<u64> = numbers.filter_map(|number| number.parse().ok()).collect();
    let version = numbers.split(|number| *number > 1000).next();
    let version = version.unwrap_or_default().to_vec();
    let is_dated = version.len() < numbers.len();
    (version, is_dated)
}

/// Returns the models of a host, in the host's order.
fn list_of(host: &Host, cancel: &Cancel) -> Result<Vec<Offer>, ProviderError> {
    let listed = host.fetch("/models", None, cancel).map_err(|e| match e {
        // The turn's own deadline is noticed by the chain.
        ProviderError::Cancelled(CancelReason::Deadline) => {
            transient(format!("no list of models within {PATIENCE} s"), None)
        }
        e => e,
    })?;
    let lists = [&listed["data"], &listed["models"], &listed];
    let list = lists.into_iter().find_map(Value::as_array);
    Ok(list.into_iter().flatten().filter_map(offer).collect())
}

/// Names of the context window in lists.
const WINDOWS: &str = "context_length context_window max_model_len max_input_tokens";

/// Parses a model of a host's list; field names differ between hosts.
pub(super) fn offer(value: &Value) -> Option<Offer> {
    let mut ids = ["id", "name", "model"].iter();
    let id = ids.find_map(|name| value[*name].as_str())?;
    let mut windows = WINDOWS.split(' ').filter_map(|name| value[name].as_u64());
    let has = |list: &Value, word: &str| Some(list.as_array()?.iter().any(|known| known == word));
    let able = &value["capabilities"];
    let images = has(&value["architecture"]["input_modalities"], "image");
    Some(Offer {
        name: String::new(),
        id: id.trim_start_matches("models/").to_owned(),
        window: windows.find(|window| *window > 0),
        tools: has(&value["supported_parameters"], "tools").or_else(|| has(able, "tools")),
        images: images.or_else(|| has(able, "vision")),
        price: price(value),
        created: value["created"].as_u64().unwrap_or_default(),
    })
}

/// Reads the price per token in a list.
fn price(value: &Value) -> Option<Price> {
    let number = |name: &str| {
        let number = value["pricing"][name].as_str()?.parse::<f64>().ok()? * 1e6;
        (number >= 0.0).then_some(number)
    };
    Some(Price {
        input: Some(number("prompt")?),
        output: Some(number("completion")?),
        cached: number("input_cache_read"),
    })
}

fn keep_facts(offer: &Offer, model: &Model, home: &Home) {
    if offer.window.is_some() || offer.price.is_some() {
        facts::keep(home, model, |facts| {
            facts.window = offer.window.or(facts.window);
            facts.price = offer.price.or(facts.price);
        });
    }
}

/// Asks the user's Ollama for a model's context window, unless it is known, because Ollama truncates longer requests silently.
/// Returns a warning for the user if the window is small.
pub(crate) fn learn_window(loaded: &Loaded, model: &Model) -> Option<String> {
    let is_ollama = vendor_of(model)?.name == "ollama";
    if !is_ollama || model.entry.context_window > 0 {
        return None;
    }
    let model = &with_known_default(model.clone(), &loaded.home);
    let known = facts::among(&facts::rows(&loaded.home), model).window;
    if model.id.is_empty() || known.is_some() {
        return None;
    }
    let window = ollama::window(&host(model.clone(), loaded))?;
    facts::keep(&loaded.home, model, |facts| facts.window = Some(window));
    let is_small = window < loaded.config.agents.defaults.context_window;
    is_small.then(|| {
        format!(
            "Ollama gives {} a context of {window} tokens; for more, start it with OLLAMA_CONTEXT_LENGTH=32768; \
             if this is wrong, set context_window",
            model.id
        )
    })
}

#[cfg(test)]
mod tests;
