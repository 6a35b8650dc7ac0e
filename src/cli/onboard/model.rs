//! `bantam onboard`, the model: asks for a host, a key and a model, tests them with one question, and saves them.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Value, json};

use super::super::{doctor, say, table};
use super::Setup;
use crate::config::proxy::host as host_of;
use crate::config::vendors::{Protocol, VENDORS, Vendor};
use crate::config::{self, Config, Env, Loaded, ModelEntry, edit, keys, vendors};
use crate::doctor::Outcome;
use crate::error::{Kind, Result};
use crate::http::authority;
use crate::provider::catalog::{self, Offer};
use crate::provider::ollama;
use crate::secret::Secret;
use crate::text::{nearest, to_single_line};

/// Maximum number of listed models; some gateways have hundreds.
const MOST_SHOWN: usize = 20;

/// Asks until a model answers or the user accepts it anyway, and then saves it. Before that, no file is written.
pub(super) fn choose(setup: &Setup) -> Result<()> {
    let (home, env) = (&setup.app.home, &setup.app.env);
    loop {
        let config = setup.app.loaded()?.config.clone();
        let in_use = config.choose_model(env).ok().flatten();
        let in_use = in_use.map_or(String::new(), |model| model.name);
        let mut host = ask_host(&config, &in_use, setup)?;
        let Some(offers) = host.ask_for_list(setup)? else {
            continue;
        };
        let model = host.ask_model(&offers, &in_use, setup)?;
        if host.prove(&model, setup)? {
            return edit::edit(home, env, &|_| Vec::new(), |file| host.set(&model, file)).map(drop);
        }
    }
}

/// A host of models, as saved in config.json.
#[derive(Clone)]
struct ModelHost {
    /// Prefix of its models' names, before the `/`.
    name: String,
    /// Vendor; `None` is a custom address with OpenAI's API.
    vendor: Option<&'static Vendor>,
    /// Custom address; empty for the vendor's.
    api_base: String,
    /// The key itself, or a reference to it.
    key: Option<Secret>,
}

impl ModelHost {
    fn of_vendor(vendor: &'static Vendor, env: &Env) -> Self {
        let base = vendors::base(vendor, env);
        Self {
            name: vendor.name.to_owned(),
            vendor: Some(vendor),
            // An address from a variable of this shell is saved, because jobs and the bot do not have the variable.
            api_base: if base == vendor.base {
                String::new()
            } else {
                base
            },
            key: None,
        }
    }

    fn is_demo(&self) -> bool {
        self.vendor
            .is_some_and(|vendor| vendor.protocol == Protocol::Demo)
    }

    fn preferences(&self) -> &'static [&'static str] {
        self.vendor.map_or(&[], |vendor| vendor.prefer)
    }

    /// Selects one of its models in the JSON of a config.json. The entry works for all models of the host.
    fn set(&self, model: &str, file: &mut Value) -> Result<()> {
        let name = match model {
            // The vendor's default is found at the first request.
            "" => self.name.clone(),
            model => format!("{}/{model}", self.name),
        };
        let path = ["agents", "defaults", "model_name"];
        edit::set_in(file, &path, name.as_str().into())?;
        if self.is_demo() {
            return Ok(());
        }
        if !file["model_list"].is_array() {
            file["model_list"] = json!([]);
        }
        let Some(list) = file["model_list"].as_array_mut() else {
            return Ok(());
        };
        let whole = format!("{}/*", self.name);
        let serves_it = |entry: &Value| entry["model"] == whole || entry["model"] == name;
        if !list.iter().any(serves_it) {
            list.push(json!({"model": whole}));
        }
        for entry in list.iter_mut().filter(|entry| serves_it(entry)) {
            if !self.api_base.is_empty() {
                entry["api_base"] = self.api_base.as_str().into();
            }
            let key: Option<Value> = self.key.as_ref().map(|key| key.reveal().into());
            let has_it = |key: &Value| {
                let keys = entry["api_keys"].as_array();
                keys.is_some_and(|keys| keys.contains(key))
            };
            if let Some(key) = key.filter(|key| !has_it(key)) {
                entry["api_key"] = key;
            }
        }
        Ok(())
    }

    /// Returns the configuration with one of its models.
    fn configuration(&self, model: &str, setup: &Setup) -> Result<Loaded> {
        let (home, env) = (&setup.app.home, &setup.app.env);
        let mut file = setup.app.loaded()?.file.clone();
        if !file.is_object() {
            file = json!({});
        }
        self.set(model, &mut file)?;
        config::load_for(home, Some(&file.to_string()), env, Vec::new())
    }

    /// Whether its key is in an unset variable.
    fn lacks_key(&self, env: &Env) -> bool {
        let key = self.key.as_ref();
        key.is_some_and(|key| keys::missing(key, env).is_some())
    }

    /// Asks for its key and its list of models, which is empty if the host has none. `None` to choose another host.
    fn ask_for_list(&mut self, setup: &Setup) -> Result<Option<Vec<Offer>>> {
        let env = &setup.app.env;
        if self.is_demo() {
            return Ok(Some(Vec::new()));
        }
        let needs_none = self.vendor.is_some_and(|vendor| vendor.keys.is_empty());
        if !needs_none || self.key.is_some() {
            self.ask_key(setup)?;
        }
        while !self.lacks_key(env) {
            let loaded = &self.configuration("", setup)?;
            let any = loaded.config.named(&self.name, env)?;
            let e = match catalog::offers(&any, loaded) {
                Ok(mut offers) => {
                    if self.name == "ollama" {
                        ollama::find_tools(&catalog::host(any, loaded), &mut offers);
                    }
                    return Ok(Some(offers));
                }
                Err(e) => e,
            };
            say(&format!("The models could not be listed: {}", e.message));
            match e.kind {
                Kind::Auth if self.ask_key(setup)? => {}
                Kind::Unavailable if !setup.agrees("Keep this host?", false)? => return Ok(None),
                // Some keys work for answers but not for the list.
                _ => break,
            }
        }
        Ok(Some(Vec::new()))
    }

    /// Asks for the key; false if it is unchanged.
    fn ask_key(&mut self, setup: &Setup) -> Result<bool> {
        let set = self
            .vendor
            .and_then(|vendor| vendor.set_key(&setup.app.env));
        let usual = self.vendor.map_or("", Vendor::key_env);
        let variable = set.unwrap_or(usual);
        let enter = match variable {
            _ if self.key.is_some() => "Enter: keep the current one".to_owned(),
            "" => "Enter: no key".to_owned(),
            name if set.is_some() => format!("Enter: leave it in {name}"),
            name => format!("Enter: set {name} later"),
        };
        let typed = setup.ask_secret(&format!("Key, not shown ({enter}): "), |text| {
            // A command that prints the key may contain spaces.
            let is_command = text.starts_with("cmd:");
            if !is_command && text.contains(|c: char| c.is_whitespace() || c.is_control()) {
                Err("a key cannot contain spaces".to_owned())
            } else {
                Ok(text.to_owned())
            }
        })?;
        let key = match typed.as_str() {
            "" if self.key.is_some() || variable.is_empty() => return Ok(false),
            "" => Secret::new(format!("${{{variable}}}")),
            typed => Secret::new(typed),
        };
        let is_new = self.key.as_ref() != Some(&key);
        self.key = Some(key);
        Ok(is_new)
    }

    /// Asks for a model by number or name; empty means the vendor's default. Enter selects the model `in_use`, if this host has
    /// it.
    fn ask_model(&self, offers: &[Offer], in_use: &str, setup: &Setup) -> Result<String> {
        if self.is_demo() {
            return Ok("demo".to_owned());
        }
        let shown = &offers[..offers.len().min(MOST_SHOWN)];
        let row =
            |(n, offer): (usize, &Offer)| [n.to_string(), offer.id.clone(), offer.abilities()];
        if !shown.is_empty() {
            let rows: Vec<_> = (1..).zip(shown).map(row).collect();
            say(table(&[], &rows).trim_end());
        }
        if offers.len() > shown.len() {
            let more = offers.len() - shown.len();
            say(&format!("and {more} more: type the name"));
        }
        let default = self.find_default(offers, in_use);
        let has_default = !default.is_empty() || !self.preferences().is_empty();
        let enter = match default {
            "" if has_default => " [the vendor's default]".to_owned(),
            "" => String::new(),
            default => format!(" [{}]", to_single_line(default, 80)),
        };
        loop {
            let model = setup.ask_until(&format!("Model{enter}: "), |text| {
                match (text, text.parse::<usize>()) {
                    ("", _) if !has_default => {
                        Err("type the model's name, as its host spells it".to_owned())
                    }
                    ("", _) => Ok(default.to_owned()),
                    (_, Ok(n)) if (1..=shown.len()).contains(&n) => Ok(shown[n - 1].id.clone()),
                    _ => Ok(self.without_its_name(text).to_owned()),
                }
            })?;
            let is_listed = offers.iter().any(|offer| offer.id == model);
            if model.is_empty()
                || offers.is_empty()
                || is_listed
                || self.keeps(&model, offers, setup)?
            {
                return Ok(model);
            }
        }
    }

    fn find_default<'a>(&self, offers: &'a [Offer], in_use: &'a str) -> &'a str {
        let is_offered = |id: &str| offers.is_empty() || offers.iter().any(|offer| offer.id == id);
        if let Some((name, id)) = in_use.split_once('/') {
            if name == self.name && is_offered(id) {
                return id;
            }
        }
        let best = catalog::pick(offers, self.preferences());
        best.or(offers.first()).map_or("", |offer| &offer.id)
    }

    /// Asks whether to use a model that is not listed.
    fn keeps(&self, model: &str, offers: &[Offer], setup: &Setup) -> Result<bool> {
        let names = || offers.iter().map(|offer| offer.id.as_str());
        let near = nearest(model, names()).or_else(|| names().find(|id| id.contains(model)));
        let near = near.map_or(String::new(), |near| format!(" (did you mean {near}?)"));
        let model = to_single_line(model, 80);
        setup.agrees(
            &format!("{} does not list {model}{near}. Keep it?", self.name),
            false,
        )
    }

    /// Converts `openai/gpt-5`, typed for OpenAI, to `gpt-5`, unless the vendor's own names begin with its name.
    fn without_its_name<'a>(&self, typed: &'a str) -> &'a str {
        let prefix = format!("{}/", self.name);
        let is_part = self.preferences().iter().any(|id| id.starts_with(&prefix));
        match typed.strip_prefix(&prefix) {
            Some(rest) if !is_part => rest,
            _ => typed,
        }
    }

    /// Asks the model a question, and asks the user for another key if it is refused. False to choose again.
    fn prove(&mut self, model: &str, setup: &Setup) -> Result<bool> {
        let env = &setup.app.env;
        if self.is_demo() || self.lacks_key(env) {
            return Ok(true);
        }
        say("Asking it a question ...");
        loop {
            let loaded = self.configuration(model, setup)?;
            let checks = doctor::question(&loaded, None);
            // The fixes are not shown, because the user is asked next how to continue.
            for check in &checks {
                say(&check.line());
            }
            let failed = checks.iter().find(|check| check.outcome == Outcome::Fail);
            match failed.map(|check| check.cause) {
                None => return Ok(true),
                Some(Some(Kind::Auth)) if self.ask_key(setup)? => {}
                Some(_) => return setup.agrees("Keep these settings?", false),
            }
            if self.lacks_key(env) {
                return Ok(true);
            }
        }
    }
}

/// Asks for a host.
fn ask_host(config: &Config, in_use: &str, setup: &Setup) -> Result<ModelHost> {
    let configured = configured_hosts(config, &setup.app.env);
    let hosts = offered_hosts(&configured, &setup.app.env);
    say("Which provider?");
    let rows: Vec<_> = (1..)
        .zip(&hosts)
        .map(|(n, (host, note)): (usize, _)| [format!("{n:>4}"), host.name.clone(), note.clone()])
        .collect();
    say(table(&[], &rows).trim_end());
    let used = in_use.split('/').next().unwrap_or_default();
    let is_used = |(host, _): &(ModelHost, String)| host.name == used;
    let default = hosts.iter().position(is_used).unwrap_or(0);
    let question = format!(
        "Number, name, or an address such as http://192.168.1.20:8080/v1 [{}, {}]: ",
        default + 1,
        hosts[default].0.name
    );
    let names: Vec<&str> = hosts.iter().map(|(host, _)| host.name.as_str()).collect();
    let mut host = setup.ask_until(&question, |text| {
        match chosen_host(text, default, &names).and_then(|place| hosts.get(place)) {
            Some((host, _)) => Ok(host.clone()),
            None if text.contains(['.', ':', '/']) => {
                let api_base = read_address(text)?;
                Ok(host_at(&api_base, &configured, config))
            }
            None => Err(match nearest(text, names.iter().copied()) {
                Some(near) => format!(
                    "no provider named \"{}\": did you mean {near}?",
                    to_single_line(text, 40)
                ),
                None => format!(
                    "type 1 to {}, a name from the list, or an address",
                    names.len()
                ),
            }),
        }
    })?;
    let has_no_base = |vendor: &Vendor| vendor.base.is_empty() && vendor.protocol != Protocol::Demo;
    if host.api_base.is_empty() && host.vendor.is_some_and(has_no_base) {
        let question = format!("The address of your {}: ", host.name);
        host.api_base = setup.ask_until(&question, read_address)?;
    }
    Ok(host)
}

/// Returns the place of the host that an answer chooses by number or name.
fn chosen_host(text: &str, default: usize, names: &[&str]) -> Option<usize> {
    if text.is_empty() {
        return Some(default);
    }
    if let Ok(number) = text.parse::<usize>() {
        return number.checked_sub(1);
    }
    let name = vendors::find(text).map_or(text, |vendor| vendor.name);
    names.iter().position(|known| *known == name)
}

/// Returns the hosts to choose from, each with a note: configured hosts, then vendors whose key is set or a running Ollama, then
/// the other vendors.
fn offered_hosts(configured: &[ModelHost], env: &Env) -> Vec<(ModelHost, String)> {
    let has_key = |vendor: &Vendor| vendor.set_key(env).is_some();
    let has_ollama = !VENDORS.iter().any(has_key) && ollama::is_there(env);
    let is_ready = |vendor: &Vendor| has_key(vendor) || has_ollama && vendor.name == "ollama";
    let is_new = |vendor: &&Vendor| configured.iter().all(|host| host.name != vendor.name);
    let (ready, others): (Vec<&Vendor>, Vec<_>) = VENDORS
        .iter()
        .filter(is_new)
        .partition(|vendor| is_ready(vendor));
    let noted = |vendor: &&'static Vendor| {
        let note = match vendor.set_key(env) {
            Some(variable) => format!("{variable} is set"),
            None if vendor.protocol == Protocol::Demo => {
                "built in; not a language model".to_owned()
            }
            None if !vendor.keys.is_empty() => format!("needs a key ({})", vendor.key_env()),
            None if is_ready(vendor) => {
                format!("answers at {}", authority(&vendors::base(vendor, env)))
            }
            None => format!("no key needed; {}", vendors::base(vendor, env)),
        };
        (ModelHost::of_vendor(vendor, env), note)
    };
    let mut hosts = Vec::new();
    for host in configured {
        let note = format!("configured: {}", shown_base(host, env));
        hosts.push((host.clone(), note));
    }
    hosts.extend(ready.iter().chain(&others).map(noted));
    hosts
}

/// Returns the distinct hosts with an address or a key in config.json.
fn configured_hosts(config: &Config, env: &Env) -> Vec<ModelHost> {
    let host_of_entry = |entry: &ModelEntry| {
        let vendor = entry.vendor_of(&entry.model);
        let own_name = entry.model.strip_suffix("/*").unwrap_or(&entry.model_name);
        let mut keys = std::iter::once(&entry.api_key).chain(&entry.api_keys);
        let host = ModelHost {
            api_base: entry.api_base.clone(),
            key: keys.find(|key| !key.is_empty()).cloned(),
            ..match vendor {
                Some(vendor) => ModelHost::of_vendor(vendor, env),
                None => ModelHost {
                    name: own_name.to_owned(),
                    vendor: None,
                    api_base: String::new(),
                    key: None,
                },
            }
        };
        let is_known = !host.api_base.is_empty() || host.key.is_some();
        (is_known && !host.name.is_empty()).then_some(host)
    };
    let mut hosts: Vec<ModelHost> = Vec::new();
    for host in config.model_list.iter().filter_map(host_of_entry) {
        if hosts.iter().all(|other| other.name != host.name) {
            hosts.push(host);
        }
    }
    hosts
}

/// Returns a host's address without possible secrets.
fn shown_base(host: &ModelHost, env: &Env) -> String {
    match (host.api_base.as_str(), host.vendor) {
        ("", Some(vendor)) => vendors::base(vendor, env),
        (base, _) if base.contains(['@', '?']) => authority(base).to_owned(),
        (base, _) => to_single_line(base, 200),
    }
}

/// Returns the host at a typed address: a configured one, or a new one named after its machine.
fn host_at(api_base: &str, configured: &[ModelHost], config: &Config) -> ModelHost {
    let address = api_base.trim_end_matches('/');
    let is_it = |host: &&ModelHost| host.api_base.trim_end_matches('/') == address;
    if let Some(host) = configured.iter().find(is_it) {
        return host.clone();
    }
    let machine = host_of(api_base);
    let mut parts = machine.split('.');
    let first = match parts.find(|part| !matches!(*part, "api" | "www")) {
        _ if machine.parse::<IpAddr>().is_ok() => "server",
        Some("localhost") | None => "local",
        Some(first) => first,
    };
    let is_taken = |name: &str| {
        let prefix = format!("{name}/");
        let has = |entry: &ModelEntry| entry.model_name == name || entry.model.starts_with(&prefix);
        vendors::find(name).is_some() || config.model_list.iter().any(has)
    };
    let first = first.to_ascii_lowercase();
    let mut name = first.clone();
    for n in 2.. {
        if !is_taken(&name) {
            break;
        }
        name = format!("{first}-{n}");
    }
    ModelHost {
        name,
        vendor: None,
        api_base: api_base.to_owned(),
        key: None,
    }
}

fn read_address(text: &str) -> Result<String, String> {
    let address = with_scheme(text);
    match config::check_base("the address", &address) {
        Ok(()) if !address.is_empty() => Ok(address),
        Ok(()) => Err("write http://HOST:PORT/v1".to_owned()),
        Err(e) => Err(match e.hint {
            Some(hint) => format!("{}: {hint}", e.message),
            None => e.message,
        }),
    }
}

/// Adds a scheme to an address, with encryption unless the machine is nearby.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn host(vendor: &str) -> ModelHost {
        ModelHost::of_vendor(vendors::find(vendor).unwrap(), &Env::new())
    }

    fn saved(host: &ModelHost, model: &str, mut file: Value) -> Value {
        host.set(model, &mut file).unwrap();
        file
    }

    #[test]
    fn every_vendor_makes_a_configuration_that_is_read_without_a_word() {
        let is_real = |vendor: &&Vendor| vendor.protocol != Protocol::Demo;
        for vendor in VENDORS.iter().filter(is_real) {
            let host = ModelHost {
                api_base: if vendor.base.is_empty() {
                    "http://h/v1"
                } else {
                    ""
                }
                .to_owned(),
                key: Some(Secret::new("k")),
                ..host(vendor.name)
            };
            let text = saved(&host, "m", json!({})).to_string();
            let loaded = Config::load(Some(("c", &text)), &Env::new(), Vec::new()).unwrap();
            assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
            let model = loaded.config.choose_model(&Env::new()).unwrap().unwrap();
            assert_eq!(model.name, format!("{}/m", vendor.name));
        }
    }

    #[test]
    fn address_of_ones_own_is_named_after_its_machine() {
        let config = Config::default();
        for (typed, base, name) in [
            ("gpu-box:8080/v1", "http://gpu-box:8080/v1", "gpu-box"),
            ("192.168.1.20:8080", "http://192.168.1.20:8080", "server"),
            (
                "https://api.example.com/v1",
                "https://api.example.com/v1",
                "example",
            ),
            ("example.com/v1", "https://example.com/v1", "example"),
            (
                "http://openai.local/v1",
                "http://openai.local/v1",
                "openai-2",
            ),
        ] {
            let address = read_address(typed).unwrap();
            let host = host_at(&address, &[], &config);
            assert_eq!((address.as_str(), host.name.as_str()), (base, name));
            let text = saved(&host, "Qwen/Qwen3-8B", json!({})).to_string();
            let loaded = Config::load(Some(("c", &text)), &Env::new(), Vec::new()).unwrap();
            let model = loaded.config.choose_model(&Env::new()).unwrap().unwrap();
            assert_eq!((model.id.as_str(), model.base), ("Qwen/Qwen3-8B", address));
        }
        assert!(read_address("http://").is_err());
    }
}
