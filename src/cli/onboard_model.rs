//! `bantam onboard`, the model: asks for a vendor, a key and a model, and proves them with one request.

use std::net::IpAddr;
use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::onboard::{ask_until, input_is_over, offer};
use super::term::tty::Hidden;
use super::{doctor, load, print, table, tell};
use crate::app::Parts;
use crate::config::proxy::host;
use crate::config::vendors::{Protocol, VENDORS, Vendor};
use crate::config::{self, Config, Env, ModelEntry, edit, keys, vendors};
use crate::doctor::Outcome;
use crate::error::{Kind, Result};
use crate::http::authority;
use crate::paths::Home;
use crate::provider::catalog::{self, Offer};
use crate::provider::ollama;
use crate::secret::Secret;
use crate::text::{nearest, one_line};

/// Stands for an address of the user's own: its protocol is OpenAI's, and no variable holds its key.
const OTHER: &str = "vllm";

/// The most models that are listed: some gateways have hundreds.
const MOST_SHOWN: usize = 40;

/// A configuration with the first vendor whose key is in the environment, else the demo.
pub(super) fn by_key(env: &Env) -> Value {
    match VENDORS
        .iter()
        .find(|v| has_key(v, env) && !v.prefer.is_empty())
    {
        Some(vendor) => {
            let key = Some(variable(vendor, env));
            Host {
                key,
                ..Host::of(vendor)
            }
            .configuration("")
        }
        None => Host::of(&VENDORS[VENDORS.len() - 1]).configuration("demo"),
    }
}

/// The configuration that the user chooses; `None` if the step is skipped.
pub(super) fn by_asking(home: &Home, env: &Env) -> Result<Option<Value>> {
    let config = load(env)?.1.config;
    let mut known = known_hosts(&config);
    let in_use = config.choose_model(env).ok().flatten();
    let mut in_use = in_use.map_or(String::new(), |model| model.name);
    loop {
        let Some((mut host, model)) = choose(&known, &in_use, home, env)? else {
            return Ok(None);
        };
        if let Some(chosen) = prove(&mut host, &model, home, env)? {
            return Ok(Some(chosen));
        }
        // What was typed is offered again.
        known.retain(|other| other.name() != host.name());
        in_use = format!("{}/{}", host.name(), catalog::ANY_MODEL);
        known.extend(Some(host).filter(Host::has_settings));
    }
}

/// The hosts of a configuration, each once.
fn known_hosts(config: &Config) -> Vec<Host> {
    let of_entry = |entry: &ModelEntry| {
        let vendor = entry.vendor_of(&entry.model);
        let name = match entry.model.strip_suffix("/*") {
            Some(name) => name,
            None => &entry.model_name,
        };
        let keys = std::iter::once(&entry.api_key).chain(&entry.api_keys);
        let host = Host {
            name: vendor.is_none().then(|| name.to_owned()),
            api_base: entry.api_base.clone(),
            key: keys.into_iter().find(|key| !key.is_empty()).cloned(),
            ..Host::of(vendor.or_else(|| vendors::find(OTHER))?)
        };
        (host.has_settings() && !host.name().is_empty()).then_some(host)
    };
    let mut known: Vec<Host> = Vec::new();
    for host in config.model_list.iter().filter_map(of_entry) {
        if known.iter().all(|other| other.name() != host.name()) {
            known.push(host);
        }
    }
    known
}

/// The configuration, once the model has answered or is taken as it is. A key that is refused is asked for again; `None` to
/// choose anew.
fn prove(host: &mut Host, model: &str, home: &Home, env: &Env) -> Result<Option<Value>> {
    let mut chosen = host.configuration(model);
    if host.vendor.protocol == Protocol::Demo
        || is_missing(host.key.as_ref(), env)
        || !offer("Send it a test question now?", true)?
    {
        return Ok(Some(chosen));
    }
    loop {
        let loaded = config::load_for(home, Some(&chosen.to_string()), env, Vec::new())?;
        let Some(failure) = failure(home, &loaded.config, env) else {
            return Ok(Some(chosen));
        };
        if failure == Kind::Auth && offer(host.question(), true)? {
            host.key = ask_key(host.vendor, None, env)?;
            chosen = host.configuration(model);
            if is_missing(host.key.as_ref(), env) {
                return Ok(Some(chosen));
            }
        } else {
            let again = offer("Choose again?", true)?;
            return Ok((!again).then_some(chosen));
        }
    }
}

/// What was chosen on the terminal.
enum Choice {
    Skip,
    /// Another address.
    Other,
    Vendor(&'static Vendor),
    Known(Host),
}

/// Where a model is, as config.json will say it.
#[derive(Clone)]
struct Host {
    vendor: &'static Vendor,
    /// What the user calls an address of their own.
    name: Option<String>,
    /// Empty: the vendor's.
    api_base: String,
    /// The key itself, or where it is.
    key: Option<Secret>,
}

impl Host {
    fn of(vendor: &'static Vendor) -> Self {
        Self {
            vendor,
            name: None,
            api_base: String::new(),
            key: None,
        }
    }

    /// Whether more is known of it than the vendor's name.
    fn has_settings(&self) -> bool {
        !self.api_base.is_empty() || self.key.is_some()
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.vendor.name)
    }

    /// What to ask when it has refused its key.
    fn question(&self) -> &'static str {
        match self.key {
            None => "Type a key?",
            Some(_) => "Type another key?",
        }
    }

    /// What config.json says. An entry for an address of the user's own serves every model there.
    fn configuration(&self, model: &str) -> Value {
        let name = self.name();
        // Without a model, the entry serves every model of the vendor, and the vendor's default answers.
        let (model, is_whole) = match model {
            "" => (format!("{name}/*"), true),
            model => (format!("{name}/{model}"), self.name.is_some()),
        };
        if self.vendor.protocol == Protocol::Demo {
            return json!({"agents": {"defaults": {"model_name": model}}});
        }
        let (mut entry, chosen) = match is_whole {
            true if model.ends_with("/*") => (json!({"model": model}), name),
            true => (json!({"model": format!("{name}/*")}), model.as_str()),
            false => (json!({"model_name": name, "model": model}), name),
        };
        if !self.api_base.is_empty() {
            entry["api_base"] = self.api_base.as_str().into();
        }
        if let Some(key) = &self.key {
            entry["api_key"] = key.reveal().into();
        }
        json!({"agents": {"defaults": {"model_name": chosen}}, "model_list": [entry]})
    }

    /// The models that it offers.
    fn offers(&self, home: &Home, env: &Env) -> Result<Vec<Offer>> {
        let listed = self.configuration(catalog::ANY_MODEL).to_string();
        let config = &config::load_for(home, Some(&listed), env, Vec::new())?.config;
        let name = format!("{}/{}", self.name(), catalog::ANY_MODEL);
        catalog::of(Parts { home, config, env }, &name)?.models
    }
}

/// A host and one of its models. `in_use` is the model that answers now.
fn choose(known: &[Host], in_use: &str, home: &Home, env: &Env) -> Result<Option<(Host, String)>> {
    let mut host = match ask_vendor(known, in_use, env)? {
        Choice::Skip => return Ok(None),
        Choice::Vendor(vendor) if vendor.protocol == Protocol::Demo => {
            return Ok(Some((Host::of(vendor), "demo".to_owned())));
        }
        Choice::Vendor(vendor) if vendor.base.is_empty() => Host {
            api_base: ask_until(ADDRESS, address)?,
            ..Host::of(vendor)
        },
        // An address that only a variable of this shell knows is written down, for the jobs and the bot.
        Choice::Vendor(vendor) => Host {
            api_base: Some(vendors::base(vendor, env))
                .filter(|base| base != vendor.base)
                .unwrap_or_default(),
            ..Host::of(vendor)
        },
        Choice::Known(host) if host.name.is_none() => host,
        Choice::Known(host) => Host {
            api_base: ask_address(&host.api_base, home, env)?,
            ..host
        },
        Choice::Other => {
            let api_base = ask_address("", home, env)?;
            let address = api_base.trim_end_matches('/');
            let is_it = |host: &&Host| host.api_base.trim_end_matches('/') == address;
            match known.iter().find(is_it) {
                Some(host) => host.clone(),
                None => Host {
                    name: Some(ask_name(&api_base, env)?),
                    api_base,
                    ..Host::of(vendors::find(OTHER).unwrap_or(&VENDORS[0]))
                },
            }
        }
    };
    let vendor = host.vendor;
    let mut has_key = host.name.is_some() || host.key.is_some() || !vendor.keys.is_empty();
    let mut kept = host.key.take();
    let mut offers = loop {
        host.key = if has_key {
            ask_key(vendor, kept.take().as_ref(), env)?
        } else {
            None
        };
        if is_missing(host.key.as_ref(), env) {
            break Vec::new();
        }
        match host.offers(home, env) {
            Ok(offers) => break offers,
            Err(e) => {
                tell(&format!("The models could not be listed: {}", e.message));
                // A key may be good for answers and not for the list.
                if e.kind != Kind::Auth || !offer(host.question(), true)? {
                    break Vec::new();
                }
                has_key = true;
            }
        }
    };
    // An embedding model that was pulled first would be offered first.
    offers.sort_by_key(|offer| !offer.is_chat());
    let model = ask_model(&host, &offers, in_use)?;
    Ok(Some((host, model)))
}

const ADDRESS: &str = "Address, for example http://192.168.1.20:8080/v1: ";

fn address(text: &str) -> Result<String, String> {
    let text = &with_scheme(text);
    config::check_base("the address", text).map_err(|e| match e.hint {
        Some(hint) => format!("{}: {hint}", e.message),
        None => e.message,
    })?;
    if text.is_empty() {
        return Err("write http://HOST:PORT/v1".to_owned());
    }
    Ok(text.to_owned())
}

/// The address with a scheme: without encryption only to a machine nearby.
fn with_scheme(text: &str) -> String {
    if text.is_empty() || text.contains("://") {
        return text.to_owned();
    }
    let host = text.split(['/', ':']).next().unwrap_or_default();
    let is_near = !host.contains('.')
        || host.parse::<Ipv4Addr>().is_ok()
        || host.ends_with(".local")
        || text.starts_with('[');
    let scheme = if is_near { "http" } else { "https" };
    format!("{scheme}://{text}")
}

/// Asks for an address until it can be reached, or is to be taken as it is. Enter keeps the one that is `known`, if any.
fn ask_address(known: &str, home: &Home, env: &Env) -> Result<String> {
    let mut question = match known {
        "" => ADDRESS.to_owned(),
        known => format!("Address [{}]: ", shown(known)),
    };
    let mut tried = known.to_owned();
    loop {
        let typed = ask_until(&question, |text| match text {
            "" if !tried.is_empty() => Ok(tried.clone()),
            text => address(text),
        })?;
        if typed == tried {
            return Ok(typed);
        }
        let host = Host {
            name: Some("address".to_owned()),
            api_base: typed.clone(),
            ..Host::of(&VENDORS[0])
        };
        match host.offers(home, env) {
            // A certificate that is not trusted, too; but a server without a list has answered.
            Err(e)
                if e.kind == Kind::Unavailable
                    || e.kind == Kind::Config && !e.message.contains("the server answered") =>
            {
                tell(&e.message.replace("address: ", ""));
                question = "Another address, or Enter to use this one anyway: ".to_owned();
                tried = typed;
            }
            // Whatever else it says, somebody is there.
            _ => return Ok(typed),
        }
    }
}

/// An address without the secrets that it may have.
fn shown(base: &str) -> String {
    if base.contains(['@', '?']) {
        authority(base).to_owned()
    } else {
        one_line(base, 200)
    }
}

/// Asks what an address of the user's own is called; the first part of its host's name is offered.
fn ask_name(api_base: &str, env: &Env) -> Result<String> {
    let config = load(env)?.1.config;
    let is_taken = |name: &str| {
        let prefix = format!("{name}/");
        let has = |entry: &ModelEntry| entry.model_name == name || entry.model.starts_with(&prefix);
        vendors::find(name).is_some() || config.model_list.iter().any(has)
    };
    let host = host(api_base);
    let first = match host.split('.').find(|part| !matches!(*part, "api" | "www")) {
        _ if host.parse::<IpAddr>().is_ok() => "server",
        Some("localhost") | None => "local",
        Some(first) => first,
    };
    let mut default = first.to_ascii_lowercase();
    for n in 2.. {
        if !is_taken(&default) {
            break;
        }
        default = format!("{first}-{n}");
    }
    ask_until(&format!("A name for it [{default}]: "), |text| {
        let name = if text.is_empty() { &default } else { text };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !name.chars().all(is_plain) {
            Err("use only letters, digits, -, _ and .".to_owned())
        } else if is_taken(name) {
            Err(format!("{name} is taken: choose another name"))
        } else {
            Ok(name.to_owned())
        }
    })
}

/// Whether the key is in a variable that is not set.
fn is_missing(key: Option<&Secret>, env: &Env) -> bool {
    key.is_some_and(|key| keys::missing(key, env).is_some())
}

/// Asks for another key of the model that answers now, proves it and writes it.
pub(super) fn change_key(home: &Home, env: &Env) -> Result<()> {
    let loaded = load(env)?.1;
    let model = loaded.config.choose_model(env)?;
    let Some(model) = model.filter(|model| model.protocol != Protocol::Demo) else {
        tell("The demo needs no key: choose a model first.");
        return Ok(());
    };
    let is_it = |entry: &ModelEntry| {
        (&entry.model, &entry.model_name) == (&model.entry.model, &model.entry.model_name)
    };
    let Some(place) = loaded.config.model_list.iter().position(is_it) else {
        tell(&format!(
            "{} is not in model_list; its key is in a variable. bantam onboard model saves both.",
            model.name
        ));
        return Ok(());
    };
    let vendor = vendors::find(model.name.split('/').next().unwrap_or_default());
    let vendor = vendor.or_else(|| vendors::find(OTHER));
    let Some(vendor) = vendor else { return Ok(()) };
    loop {
        let key = ask_key(vendor, None, env)?.unwrap_or_default();
        let mut config = Config::clone(&loaded.config);
        config.model_list[place].api_key = key.clone();
        if !is_missing(Some(&key), env) && failure(home, &config, env).is_some() {
            if offer("Type another key?", true)? {
                continue;
            }
            return Ok(());
        }
        let path = ["model_list", &place.to_string(), "api_key"];
        edit::set(home, env, &path, &key.reveal().into())?;
        return print("set      the key\n");
    }
}

/// Asks for a model by its number or its name. Enter means the one `in_use`, if it is one of this host.
fn ask_model(host: &Host, offers: &[Offer], in_use: &str) -> Result<String> {
    let vendor = host.vendor;
    let shown = offers.len().min(MOST_SHOWN);
    let row = |(n, offer): (usize, &Offer)| [n.to_string(), offer.id.clone(), offer.abilities()];
    if shown > 0 {
        tell(
            table(
                &[],
                &(1..).zip(&offers[..shown]).map(row).collect::<Vec<_>>(),
            )
            .trim_end(),
        );
    }
    if offers.len() > shown {
        tell(&format!("and {} more: type the name", offers.len() - shown));
    }
    let able = || offers.iter().find(|offer| offer.tools == Some(true));
    let first = match vendor.prefer {
        [] => able(),
        prefer => catalog::pick(offers, prefer).or_else(able),
    };
    let first = first.or(offers.first());
    let is_offered = |id: &str| offers.is_empty() || offers.iter().any(|offer| offer.id == id);
    let in_use = in_use
        .split_once('/')
        .filter(|(name, id)| *name == host.name() && is_offered(id) && *id != catalog::ANY_MODEL);
    let default = match in_use {
        Some((_, model)) => model,
        None => first.map_or("", |offer| &offer.id),
    };
    // The vendor's default is found when it is first asked.
    let has_default = default.is_empty() && !vendor.prefer.is_empty();
    let enter = match default {
        "" if has_default => " [the vendor's default]".to_owned(),
        "" => String::new(),
        default => format!(" [{}]", one_line(default, 80)),
    };
    let read = |text: &str, enter: &str| match (text, text.parse()) {
        ("", _) if enter.is_empty() && !has_default => {
            Err("type the model's name, as the vendor spells it".to_owned())
        }
        ("", _) => Ok(enter.to_owned()),
        (_, Ok(n)) if (1..=shown).contains(&n) => Ok(offers[n - 1].id.clone()),
        _ => Ok(without_vendor(host.name(), vendor, text).to_owned()),
    };
    let mut model = ask_until(&format!("Model{enter}: "), |text| read(text, default))?;
    loop {
        if model.is_empty() || is_offered(&model) || input_is_over() {
            return Ok(model);
        }
        let named = one_line(&model, 80);
        let question = format!(
            "{} does not list {named} [keep, or another name]: ",
            host.name()
        );
        let typed = ask_until(&question, |text| read(text, ""))?;
        if typed == "keep" {
            return Ok(model);
        }
        model = typed;
    }
}

/// Asks the configured model, and tells what came of it. Returns what made it fail.
fn failure(home: &Home, config: &Config, env: &Env) -> Option<Kind> {
    let mut checks = doctor::question(home, config, env, None);
    for check in &mut checks {
        if check.cause == Some(Kind::Auth) {
            // They lead here, where another key is asked for next.
            check.fixes.clear();
        }
        tell(check.to_string().trim_end());
    }
    let failed = checks.iter().find(|check| check.outcome == Outcome::Fail);
    failed.map(|check| check.cause.unwrap_or(Kind::Failed))
}

/// The vendor's variable, as an `api_key`.
fn variable(vendor: &Vendor, env: &Env) -> Secret {
    let name = vendor.set_key(env).unwrap_or(vendor.key_env());
    Secret::new(format!("${{{name}}}"))
}

fn has_key(vendor: &Vendor, env: &Env) -> bool {
    vendor.set_key(env).is_some()
}

/// `openai/gpt-5` typed for OpenAI means `gpt-5`, unless the vendor's own names begin with its name.
fn without_vendor<'a>(name: &str, vendor: &Vendor, typed: &'a str) -> &'a str {
    let prefix = format!("{name}/");
    if vendor.prefer.iter().any(|id| id.starts_with(&prefix)) {
        typed
    } else {
        typed.strip_prefix(&prefix).unwrap_or(typed)
    }
}

/// Lists first the `known` hosts, then the vendors whose key is set, else an Ollama that answers. Enter means the host of the
/// model in use.
fn ask_vendor(known: &[Host], in_use: &str, env: &Env) -> Result<Choice> {
    let has_ollama = !VENDORS.iter().any(|v| has_key(v, env)) && ollama::is_there(env);
    let is_ollama = |vendor: &Vendor| has_ollama && vendor.name == "ollama";
    let (mut list, others): (Vec<&Vendor>, Vec<_>) = VENDORS
        .iter()
        .filter(|vendor| known.iter().all(|host| host.name() != vendor.name))
        .partition(|v| has_key(v, env) || is_ollama(v));
    list.extend(others);
    tell("Which provider?");
    for (n, host) in (1..).zip(known) {
        let place = match &*host.api_base {
            "" => vendors::base(host.vendor, env),
            own => shown(own),
        };
        tell(&format!(
            "  {n:>2}  {:<11} configured: {place}",
            host.name()
        ));
    }
    for (n, vendor) in (known.len() + 1..).zip(&list) {
        let note = match vendor {
            v if has_key(v, env) => format!("{} is set", v.set_key(env).unwrap_or_default()),
            v if is_ollama(v) => format!("answers at {}", authority(&vendors::base(v, env))),
            v if v.protocol == Protocol::Demo => "built in; not a language model".to_owned(),
            v if v.keys.is_empty() => format!("no key needed; {}", vendors::base(v, env)),
            v => format!("needs a key ({})", v.key_env()),
        };
        tell(&format!("  {n:>2}  {:<11} {note}", vendor.name));
    }
    let other = known.len() + list.len() + 1;
    tell(&format!(
        "  {other:>2}  {:<11} another address that speaks the OpenAI API",
        "other"
    ));
    let names: Vec<&str> = known
        .iter()
        .map(Host::name)
        .chain(list.iter().map(|vendor| vendor.name))
        .collect();
    let used = in_use.split('/').next().unwrap_or_default();
    let default = names.iter().position(|name| *name == used).unwrap_or(0);
    ask_until(
        &format!(
            "Number or name, or skip [{}, {}]: ",
            default + 1,
            names[default]
        ),
        |text| {
            let place = match text.parse::<usize>() {
                _ if text == "skip" => return Ok(Choice::Skip),
                _ if text == "other" => return Ok(Choice::Other),
                _ if text.is_empty() => Some(default),
                Ok(n) if n == other => return Ok(Choice::Other),
                Ok(n) => n.checked_sub(1),
                Err(_) => {
                    let name = vendors::find(text).map_or(text, |vendor| vendor.name);
                    names.iter().position(|listed| *listed == name)
                }
            };
            match place.filter(|place| *place < names.len()) {
                Some(place) if place < known.len() => Ok(Choice::Known(known[place].clone())),
                Some(place) => Ok(Choice::Vendor(list[place - known.len()])),
                None => {
                    let hint = match nearest(text, names.iter().copied()) {
                        Some(near) => format!("did you mean {near}?"),
                        None => format!("type 1 to {other}, or a name from the list"),
                    };
                    Err(format!(
                        "unknown provider \"{}\": {hint}",
                        one_line(text, 40)
                    ))
                }
            }
        },
    )
}

/// Asks for a key, unless the one that is known is kept.
fn ask_key(vendor: &Vendor, known: Option<&Secret>, env: &Env) -> Result<Option<Secret>> {
    let name = vendor.set_key(env).unwrap_or(vendor.key_env());
    let enter = match name {
        _ if known.is_some() => "Enter: keep the current one".to_owned(),
        "" => "Enter: no key".to_owned(),
        name if has_key(vendor, env) => format!("Enter: leave it in {name}"),
        name => format!("Enter: set {name} later"),
    };
    let _hidden = Hidden::begin()?;
    ask_until(&format!("Key, not shown ({enter}): "), |text| {
        // A command that prints the key may have spaces.
        if text.is_empty() && known.is_some() {
            Ok(known.cloned())
        } else if text.is_empty() {
            Ok((!name.is_empty()).then(|| variable(vendor, env)))
        } else if !text.starts_with("cmd:")
            && text.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            Err("a key cannot contain spaces".to_owned())
        } else {
            Ok(Some(Secret::new(text)))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_was_chosen_and_no_more() {
        let openai = vendors::find("openai").unwrap();
        let expected = json!({
            "agents": {"defaults": {"model_name": "openai"}},
            "model_list": [{"model_name": "openai", "model": "openai/m", "api_key": "${OPENAI_API_KEY}"}],
        });
        let key = Some(variable(openai, &Env::new()));
        assert_eq!(
            Host {
                key,
                ..Host::of(openai)
            }
            .configuration("m"),
            expected
        );
        assert_eq!(
            by_key(&Env::new()),
            json!({"agents": {"defaults": {"model_name": "demo/demo"}}})
        );
    }

    #[test]
    fn an_address_of_ones_own_has_the_name_that_it_was_given() {
        let host = Host {
            name: Some("gpu-box".to_owned()),
            api_base: "http://gpu-box:8080/v1".to_owned(),
            ..Host::of(vendors::find(OTHER).unwrap())
        };
        let text = host.configuration("Qwen/Qwen3-8B").to_string();
        let loaded = Config::load(Some(("c", &text)), &Env::new(), Vec::new()).unwrap();
        let model = loaded.config.choose_model(&Env::new()).unwrap().unwrap();
        assert_eq!(model.name, "gpu-box/Qwen/Qwen3-8B");
        assert_eq!(model.id, "Qwen/Qwen3-8B");
        let other = loaded.config.named("gpu-box/other", &Env::new()).unwrap();
        assert_eq!((other.id.as_str(), other.base), ("other", host.api_base));
    }

    #[test]
    fn every_vendor_makes_a_configuration_that_is_read_without_a_word() {
        for vendor in VENDORS {
            let api_base = if vendor.base.is_empty() {
                "http://h/v1"
            } else {
                ""
            };
            let host = Host {
                api_base: api_base.to_owned(),
                key: Some(Secret::new("k")),
                ..Host::of(vendor)
            };
            let text = host.configuration("m").to_string();
            let loaded = Config::load(Some(("c", &text)), &Env::new(), Vec::new()).unwrap();
            assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
            let Ok(Some(model)) = loaded.config.choose_model(&Env::new()) else {
                panic!("{text}")
            };
            assert_eq!(model.name, format!("{}/m", vendor.name));
        }
    }

    #[test]
    fn a_vendors_name_before_the_models_is_taken_off_where_it_is_not_a_part_of_it() {
        let name = |vendor, typed| {
            let vendor = vendors::find(vendor).unwrap();
            without_vendor(vendor.name, vendor, typed).to_owned()
        };
        assert_eq!(name("openai", "openai/gpt-5"), "gpt-5");
        assert_eq!(name("openrouter", "openrouter/auto"), "openrouter/auto");
        assert_eq!(name("groq", "openai/gpt-oss-20b"), "openai/gpt-oss-20b");
    }
}
