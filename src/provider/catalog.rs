//! Lists the models of the configured hosts, and picks a host's default model from its list.

use std::time::Duration;

use serde_json::Value;

use super::facts;
use super::host::Host;
use super::{ProviderError, ollama};
use crate::cancel::{Cancel, CancelReason};
use crate::config::keys::ApiKey;
use crate::config::vendors::{self, Protocol, VENDORS, Vendor};
use crate::config::{Config, Env, Model, Parts};
use crate::error::{Error, Kind, Result};
use crate::http::authority;
use crate::message::Price;
use crate::paths::Home;
use crate::redact::Redactor;

/// Time limit for a host to list its models; shorter at a prompt, where a user waits.
const PATIENCE: Duration = Duration::from_secs(20);
const PROMPT_PATIENCE: Duration = Duration::from_secs(5);

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
    /// Whether the host reports that the model cannot chat or is retired.
    pub is_denied: bool,
}

impl Offer {
    /// Whether the model can chat, judging by its name and its host's data.
    pub(crate) fn is_chat(&self) -> bool {
        let id = self.id.to_lowercase();
        !self.is_denied && !NO_CHAT.iter().any(|word| id.contains(word))
    }

    /// Describes the abilities that the host reports.
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

/// Lists the models of a vendor's or an entry's host, with the short time limit for a waiting user.
pub(crate) fn list_host(parts: Parts, name: &str) -> Result<HostOffers> {
    Ok(of_host(
        &any_of(parts.config, name, parts.env)?,
        parts,
        PROMPT_PATIENCE,
    ))
}

/// One host and its models.
pub(crate) struct HostOffers {
    pub host: String,
    pub models: Result<Vec<Offer>>,
}

/// Lists the models of all configured hosts and of all vendors with a key, or only of the `wanted` vendor or entry.
pub(crate) fn list(parts: Parts, wanted: Option<&str>) -> Result<Vec<HostOffers>> {
    let models = match wanted {
        Some(name) => vec![any_of(parts.config, name, parts.env)?],
        None => match configured(parts.config, parts.env) {
            none if none.is_empty() && ollama::is_there(parts.env) => {
                vec![any_of(parts.config, "ollama", parts.env)?]
            }
            models => models,
        },
    };
    if models.is_empty() {
        return Err(Error::config("no model is configured and no key was found")
            .hint("name a vendor, such as `bantam models ollama`"));
    }
    Ok(models
        .iter()
        .map(|model| of_host(model, parts, PATIENCE))
        .collect())
}

/// Names of the models of all hosts, with the short time limit for a waiting user. Failing hosts are skipped.
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

/// Placeholder for any model of a host.
pub(crate) const ANY_MODEL: &str = "-";

/// Returns any model of a vendor or an entry.
fn any_of(config: &Config, name: &str, env: &Env) -> Result<Model> {
    let any = || config.named(&format!("{name}/{ANY_MODEL}"), env);
    config.named(name, env).or_else(|e| any().map_err(|_| e))
}

/// Fills in the host's default model if the user named only a host, and stores its id.
pub(crate) fn with_default(mut model: Model, parts: Parts) -> Result<Model> {
    if !model.id.is_empty() {
        return Ok(model);
    }
    let id = match known_default(&model, parts.home) {
        Some(id) => id,
        None => {
            let host = host(model.clone(), parts);
            let id = find_default(&model, Some(&host), &[])?;
            facts::keep_default(parts.home, &model.base, &id);
            id
        }
    };
    set_id(&mut model, id);
    Ok(model)
}

/// Returns the stored default of a host.
pub(crate) fn known_default(model: &Model, home: &Home) -> Option<String> {
    facts::default_id(home, &model.base)
}

/// Returns a replacement for a default model that its host has retired.
pub(super) fn replaced(host: &Host, home: Option<&Home>) -> Result<Model> {
    let mut model = host.model.clone();
    let id = find_default(&model, Some(host), &[&model.id])?;
    if let Some(home) = home {
        facts::keep_default(home, &model.base, &id);
    }
    let prefix = model.name.strip_suffix(&model.id).unwrap_or_default();
    model.name = prefix.trim_end_matches('/').to_owned();
    set_id(&mut model, id);
    Ok(model)
}

fn set_id(model: &mut Model, id: String) {
    model.name = format!("{}/{id}", model.name);
    model.id = id;
}

/// Finds the default of a host in its list, or among the vendor's preferences.
fn find_default(model: &Model, host: Option<&Host>, retired: &[&String]) -> Result<String> {
    let vendor = model.name.split('/').next().unwrap_or_default();
    let prefer = vendors::find(vendor).map_or(&[][..], |vendor| vendor.prefer);
    let is_retired = |id: &str| retired.iter().any(|retired| *retired == id);
    let (mut offers, why) = match host.map(|host| list_of(host, PATIENCE)) {
        Some(Ok(offers)) => (offers, String::new()),
        // A host that rejects the key will also reject the question.
        Some(Err(e)) if e.kind == Kind::Auth => return Err(e),
        Some(Err(e)) => (Vec::new(), format!(" ({})", e.message)),
        None => (Vec::new(), String::new()),
    };
    offers.retain(|offer| !is_retired(&offer.id));
    let is_exact = |pattern: &&&str| !pattern.contains(['#', '*']) && !is_retired(pattern);
    pick(&offers, prefer)
        .map(|offer| offer.id.clone())
        .or_else(|| Some((*prefer.iter().find(is_exact)?).to_owned()))
        .ok_or_else(|| {
            let what = format!("choosing the model: no default model of {vendor} was found{why}");
            Error::config(what).hint(format!(
                "run `bantam models {vendor}` and choose one: bantam config set agents.defaults.model_name {vendor}/MODEL"
            ))
        })
}

/// Parts of ids of models that cannot chat.
const NO_CHAT: [&str; 14] = [
    "embed",
    "rerank",
    "moderation",
    "guard",
    "tts",
    "speech",
    "audio",
    "realtime",
    "transcri",
    "whisper",
    "asr",
    "image",
    "video",
    "ocr",
];
/// Words of special-purpose models, which rank after the plain models.
const SPECIAL: [&str; 10] = [
    "live", "vision", "search", "research", "codex", "coder", "instruct", "base", "preview", "exp",
];
/// Maximum length of a list that the rule chooses from without a matching preference.
const MAX_UNKNOWN: usize = 20;

/// Picks the default of a list: the best match of the first preference with a match, else the best model of a short list.
pub(crate) fn pick<'a>(offers: &'a [Offer], prefer: &[&str]) -> Option<&'a Offer> {
    let offers: Vec<&Offer> = offers.iter().filter(|offer| offer.is_chat()).collect();
    let best = |offers: Vec<&'a Offer>| {
        // The first model of the list wins a tie.
        let rank = |offer: &&Offer| {
            let parts = IdParts::parse(&offer.id);
            (!parts.is_special, offer.created, parts.version)
        };
        offers.into_iter().rev().max_by_key(rank)
    };
    for pattern in prefer {
        let is_match = |offer: &&Offer| {
            matches(pattern, &offer.id) || matches(pattern, &IdParts::parse(&offer.id).plain)
        };
        let found: Vec<&Offer> = offers.iter().copied().filter(is_match).collect();
        if !found.is_empty() {
            return best(found);
        }
    }
    if offers.len() > MAX_UNKNOWN {
        return None;
    }
    best(offers)
}

/// Parts of a model's id that the rule for defaults compares.
struct IdParts {
    /// The id without its date and special words.
    plain: String,
    /// Whether the id has a date or a special word.
    is_special: bool,
    /// All numbers except the date.
    version: Vec<u64>,
}

impl IdParts {
    fn parse(id: &str) -> Self {
        let words: Vec<&str> = id.split('-').collect();
        let mut plain = Vec::new();
        let mut at = 0;
        while let Some(word) = words.get(at) {
            let is_number = |at: usize, digits: usize| {
                words.get(at).is_some_and(|word| {
                    word.len() == digits && word.bytes().all(|b| b.is_ascii_digit())
                })
            };
            if is_number(at, 4) && is_number(at + 1, 2) && is_number(at + 2, 2) {
                at += 3;
            } else if is_number(at, 8) || SPECIAL.contains(&word.to_lowercase().as_str()) {
                at += 1;
            } else {
                plain.push(*word);
                at += 1;
            }
        }
        let is_special = plain.len() < words.len();
        let plain = plain.join("-");
        let numbers = plain.split(|c: char| !c.is_ascii_digit());
        let version = numbers.filter_map(|number| number.parse().ok()).collect();
        Self {
            plain,
            is_special,
            version,
        }
    }
}

/// Returns the possible ends of a version number at the start of an id.
fn version_ends(id: &str) -> Vec<usize> {
    let bytes = id.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let (mut ends, mut at) = (Vec::new(), 0);
    loop {
        if is_digit(at) {
            at += 1;
            ends.push(at);
        } else if at > 0 && matches!(bytes.get(at), Some(b'.' | b'-')) && is_digit(at + 1) {
            at += 1;
        } else {
            return ends;
        }
    }
}

/// Whether an id matches a vendor's pattern: `#` is digits with `.` or `-` between them, `*` is any text.
fn matches(pattern: &str, id: &str) -> bool {
    let Some(first) = pattern.chars().next() else {
        return id.is_empty();
    };
    let rest = &pattern[first.len_utf8()..];
    match first {
        '*' => id
            .char_indices()
            .map(|(at, _)| at)
            .chain([id.len()])
            .any(|at| matches(rest, &id[at..])),
        '#' => version_ends(id)
            .into_iter()
            .any(|at| matches(rest, &id[at..])),
        first => id.strip_prefix(first).is_some_and(|id| matches(rest, id)),
    }
}

/// Returns one model per address and key.
fn configured(config: &Config, env: &Env) -> Vec<Model> {
    let entries = config
        .model_list
        .iter()
        .map(|entry| entry.model.replace("/*", &format!("/{ANY_MODEL}")));
    let vendors = VENDORS
        .iter()
        .filter(|v| v.set_key(env).is_some() && !v.base.is_empty())
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
    if let Ok(offers) = &mut offers {
        offers.sort_by(|a, b| a.id.cmp(&b.id));
    }
    for offer in offers.iter_mut().flatten() {
        keep(offer, model, parts);
        offer.name = name(&offer.id, model, parts).unwrap_or_default();
    }
    HostOffers {
        host: authority(&model.base).to_owned(),
        models: offers,
    }
}

/// Returns the name that selects a model of this host.
fn name(id: &str, host: &Model, parts: Parts) -> Option<String> {
    let of_vendor = match &*host.id {
        "" => format!("{}/", host.name),
        id => host.name.strip_suffix(id).unwrap_or_default().to_owned(),
    };
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
    if model.protocol == Protocol::Demo {
        return Ok(vec![Offer {
            id: model.id.clone(),
            tools: Some(true),
            images: Some(false),
            ..Offer::default()
        }]);
    }
    list_of(&host(model.clone(), parts), within)
}

/// Returns the host of a model with its first key, for requests other than chat.
pub(crate) fn host(model: Model, parts: Parts) -> Host {
    let redactor = Redactor::new(parts.config.secrets(parts.env));
    let key = model.keys.first();
    let key = key.map(|key| ApiKey::new(key, parts, &redactor));
    Host::new(model, key, parts.env)
}

/// Returns the models of a host, in the host's order.
fn list_of(host: &Host, within: Duration) -> Result<Vec<Offer>> {
    let model = &host.model;
    let cancel = Cancel::new(Some(within));
    let name = model.name.trim_end_matches(ANY_MODEL).trim_end_matches('/');
    let vendor = vendors::find(model.name.split('/').next().unwrap_or_default());
    let path = vendor.map_or("", |vendor: &Vendor| vendor.list);
    let own = || Some(host.get(Some(path), &cancel).ok()?).filter(|own| rows(own).is_some());
    let own = if path.is_empty() { None } else { own() };
    let listed = own.map_or_else(|| host.get(None, &cancel), Ok);
    let listed = listed.map_err(|e| match e {
        ProviderError::Cancelled(CancelReason::Deadline) => {
            let seconds = within.as_secs();
            let what = format!("asking {name}: no list of models within {seconds} s");
            Error::new(Kind::Unavailable, what)
        }
        e => e.into_error(name),
    })?;
    let list = rows(&listed).into_iter().flatten();
    let mut offers: Vec<Offer> = list.filter_map(offer).collect();
    if vendor.is_some_and(|vendor| vendor.name == "ollama") {
        let loaded = host.get(Some("/api/ps"), &cancel).unwrap_or_default();
        for offer in &mut offers {
            offer.window = ollama::loaded_window(&loaded, &offer.id).or(offer.window);
        }
    }
    Ok(offers)
}

/// Returns the models of a list.
fn rows(listed: &Value) -> Option<&Vec<Value>> {
    let lists = [&listed["data"], &listed["models"], listed];
    lists.into_iter().find_map(Value::as_array)
}

/// Parses a model of a host's list; field names differ between hosts.
pub(super) fn offer(value: &Value) -> Option<Offer> {
    const WINDOWS: [&str; 6] = [
        "loaded_context_length",
        "context_length",
        "context_window",
        "max_context_length",
        "max_model_len",
        "max_input_tokens",
    ];
    let id = ["id", "name", "model"]
        .iter()
        .find_map(|name| value[*name].as_str())?;
    let top = &value["top_provider"]["context_length"];
    let windows = WINDOWS.into_iter().map(|name| &value[name]);
    let mut windows = std::iter::once(top)
        .chain(windows)
        .filter_map(Value::as_u64);
    let has = |list: &Value, word: &str| Some(list.as_array()?.iter().any(|known| known == word));
    let able = &value["capabilities"];
    let tools = has(&value["supported_parameters"], "tools")
        .or_else(|| has(able, "tools"))
        .or_else(|| able["function_calling"].as_bool());
    let images = has(&value["architecture"]["input_modalities"], "image")
        .or_else(|| has(able, "vision"))
        .or_else(|| able["vision"].as_bool());
    Some(Offer {
        name: String::new(),
        id: id.trim_start_matches("models/").to_owned(),
        window: windows.find(|window| *window > 0),
        tools,
        images,
        price: price(value),
        created: value["created"].as_u64().unwrap_or_default(),
        is_denied: tools == Some(false) || is_denied(value),
    })
}

/// Reads the price per token in a list.
fn price(value: &Value) -> Option<Price> {
    let number = |name: &str| {
        let value = &value["pricing"][name];
        let number = value.as_f64().or_else(|| value.as_str()?.parse().ok())?;
        Some(number * 1e6).filter(|price| *price >= 0.0)
    };
    Some(Price {
        input: Some(number("prompt")?),
        output: Some(number("completion")?),
        cached: number("input_cache_read"),
    })
}

/// Whether the host's data reports that the model cannot chat or is retired.
fn is_denied(value: &Value) -> bool {
    const CHAT_TYPES: [&str; 6] = ["model", "chat", "llm", "vlm", "language", "text"];
    let kind = value["type"].as_str();
    let output = value["architecture"]["output_modalities"].as_array();
    kind.is_some_and(|kind| !CHAT_TYPES.contains(&kind))
        || output.is_some_and(|output| output.iter().all(|kind| kind != "text"))
        || value["capabilities"]["completion_chat"] == false
        || value["active"] == false
}

/// Stores the window and the price of a configured model.
fn keep(offer: &Offer, host: &Model, parts: Parts) {
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
        keep_facts(offer, &model, parts.home);
    }
}

fn keep_facts(offer: &Offer, model: &Model, home: &Home) {
    if offer.window.is_some() || offer.price.is_some() {
        facts::keep(home, model, |facts| {
            facts.window = offer.window.or(facts.window);
            facts.price = offer.price.or(facts.price);
        });
    }
}

/// Asks the user's own server for its context window, unless it is known, because Ollama truncates longer requests silently.
/// Returns a warning for the user if the window is small.
pub(crate) fn learn_window(parts: Parts, model: &Model) -> Option<String> {
    let vendor = vendors::find(model.name.split('/').next().unwrap_or_default())?;
    if !vendor.is_local || model.entry.context_window > 0 {
        return None;
    }
    let model = &with_default(model.clone(), parts).ok()?;
    let is_ollama = vendor.name == "ollama";
    let is_asked = if is_ollama {
        facts::load_facts(parts.home, model).window.is_some()
    } else {
        facts::is_known(parts.home, model)
    };
    if is_asked {
        return None;
    }
    let window = if is_ollama {
        Some(ollama::window(&model.base, &model.id)?)
    } else {
        let offers = ask(model, parts, PROMPT_PATIENCE).unwrap_or_default();
        let offer = offers.into_iter().find(|offer| offer.id == model.id);
        offer.and_then(|offer| offer.window)
    };
    facts::keep(parts.home, model, |facts| {
        facts.window = window.or(facts.window);
    });
    let window = window?;
    let is_small = window < parts.config.agents.defaults.context_window;
    (is_ollama && is_small).then(|| {
        format!(
            "Ollama gives {} a context of {window} tokens; for more, start it with OLLAMA_CONTEXT_LENGTH=32768; \
             if this is wrong, set context_window",
            model.id
        )
    })
}

#[cfg(test)]
mod tests;
