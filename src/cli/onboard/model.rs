//! `bantam onboard`, the model: asks for a provider, a key and a model, tests them with one question, and saves them.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::super::terminal;
use super::super::ui::Echo;
use super::super::ui::Ui;
use super::super::{doctor, say, table};
use crate::app::App;
use crate::app::facts::Facts;
use crate::config::vendors::{self, Protocol, VENDORS, Vendor};
use crate::config::{self, Config, Env, Loaded, edit, keys};
use crate::doctor::Outcome;
use crate::error::{Kind, Result};
use crate::provider::catalog::{self, Offer};
use crate::provider::ollama;
use crate::secret::Secret;
use crate::text::{nearest, to_single_line};

/// Maximum number of listed models; some gateways have hundreds.
const MAX_SHOWN: usize = 20;
/// Columns of a provider's number and name.
const CELL: usize = 18;

/// Asks until a model answers or the user accepts it anyway, and then saves it. Before that, no file is written.
pub(super) fn choose(facts: &Facts, ui: &Ui) -> Result<()> {
    let (home, env) = (&facts.app.home, &facts.app.env);
    let in_use = facts.model.as_ref().ok().and_then(Option::as_ref);
    let in_use = in_use.map_or("", |model| model.name.as_str());
    loop {
        let mut provider = ask_provider(facts.app, in_use, ui)?;
        let offers = provider.ask_key_and_list(ui)?;
        let model = provider.ask_model(&offers, in_use, ui)?;
        if provider.test_model(&model, ui)? {
            let set = |file: &mut Value| provider.set(&model, file);
            return edit::edit(home, env, &|_| Vec::new(), set).map(drop);
        }
    }
}

/// A provider with the answers about it.
struct ProviderChoice<'a> {
    app: &'a App,
    /// Prefix of its models' names, before the `/`.
    name: String,
    /// `None` is a server with OpenAI's API.
    vendor: Option<&'static Vendor>,
    /// Custom address; empty for the vendor's, and for the address in config.json.
    api_base: String,
    /// The typed key, or a reference to it.
    key: Option<Secret>,
}

impl<'a> ProviderChoice<'a> {
    fn new(app: &'a App, name: &str, api_base: &str) -> Self {
        Self {
            app,
            name: name.to_owned(),
            vendor: vendors::find(name),
            api_base: api_base.to_owned(),
            key: None,
        }
    }

    /// Selects one of its models in the JSON of a config.json. The entry works for all models of the provider.
    fn set(&self, model: &str, file: &mut Value) -> Result<()> {
        let name = match model {
            // The vendor's default is found at the first request.
            "" => self.name.clone(),
            model => format!("{}/{model}", self.name),
        };
        let path = ["agents", "defaults", "model_name"];
        config::path::set(file, &path, name.as_str().into())?;
        if self.api_base.is_empty() && self.key.is_none() {
            return Ok(());
        }
        let list = file["model_list"].as_array();
        let mut list = list.cloned().unwrap_or_default();
        let prefix = format!("{}/", self.name);
        let place = |fits: &dyn Fn(&str) -> bool| {
            let model = |entry: &Value| entry["model"].as_str().is_some_and(fits);
            list.iter().position(model)
        };
        // The first entry of a provider decides for its other models.
        let place =
            place(&|model| model == name).or_else(|| place(&|model| model.starts_with(&prefix)));
        let place = place.unwrap_or(list.len());
        if place == list.len() {
            list.push(json!({"model": format!("{prefix}*")}));
        }
        if !self.api_base.is_empty() {
            list[place]["api_base"] = self.api_base.as_str().into();
        }
        if let Some(key) = &self.key {
            list[place]["api_key"] = key.reveal().into();
        }
        file["model_list"] = list.into();
        Ok(())
    }

    /// Returns the configuration with one of its models.
    fn configuration(&self, model: &str) -> Result<Loaded> {
        let mut file = self.app.loaded()?.file.clone();
        self.set(model, &mut file)?;
        let (home, env) = (&self.app.home, &self.app.env);
        config::load_for(home, Some(&file.to_string()), env, Vec::new())
    }

    /// Asks for its key, and returns its list of models, which is empty if it has none.
    fn ask_key_and_list(&mut self, ui: &Ui) -> Result<Vec<Offer>> {
        if self.vendor.is_none_or(|vendor| !vendor.keys.is_empty()) {
            self.ask_key(ui)?;
        }
        loop {
            let loaded = self.configuration("")?;
            // The key may be set later.
            let Ok(any) = loaded.config.named(&self.name, &loaded.env) else {
                return Ok(Vec::new());
            };
            match catalog::offers(&any, &loaded) {
                Ok(mut offers) => {
                    if self.name == "ollama" {
                        ollama::find_tools(&catalog::host(any, &loaded), &mut offers);
                    }
                    return Ok(offers);
                }
                Err(e) => {
                    say(&format!("The models could not be listed: {}", e.message));
                    if e.kind != Kind::Auth || !self.ask_key(ui)? {
                        // Some keys work for answers but not for the list.
                        return Ok(Vec::new());
                    }
                }
            }
        }
    }

    /// Asks for the key; false if it is unchanged.
    fn ask_key(&mut self, ui: &Ui) -> Result<bool> {
        let loaded = self.configuration("")?;
        let model = loaded.config.named(&self.name, &loaded.env).ok();
        let current = model.as_ref().and_then(|model| model.keys.first());
        let enter = match (current, self.vendor.map_or("", Vendor::key_env)) {
            (Some(_), _) if self.key.is_some() => "keep the typed one".to_owned(),
            (Some(key), _) => format!("keep the key from {}", keys::source(key)),
            (None, "") => "no key".to_owned(),
            (None, variable) => format!("set {variable} later"),
        };
        let question = format!("Key, not shown (Enter: {enter}): ");
        let typed = ui.ask_until(&question, Echo::Hidden, |text| {
            // A command that prints the key may contain spaces.
            let is_command = text.starts_with("cmd:");
            if !is_command && text.contains(|c: char| c.is_whitespace() || c.is_control()) {
                return Err("a key cannot contain spaces".to_owned());
            }
            Ok(text.to_owned())
        })?;
        let is_new = !typed.is_empty() && current.is_none_or(|key| key.reveal() != typed);
        if is_new {
            self.key = Some(Secret::new(typed));
        }
        Ok(is_new)
    }

    /// Asks for a model by number or name; empty means the vendor's default. Enter selects the model `in_use`, if this provider
    /// has it.
    fn ask_model(&self, offers: &[Offer], in_use: &str, ui: &Ui) -> Result<String> {
        let shown = &offers[..offers.len().min(MAX_SHOWN)];
        let row =
            |(n, offer): (usize, &Offer)| [n.to_string(), offer.id.clone(), offer.abilities()];
        let rows: Vec<_> = (1..).zip(shown).map(row).collect();
        if !rows.is_empty() {
            say(table(&[], &rows).trim_end());
        }
        if offers.len() > shown.len() {
            let more = offers.len() - shown.len();
            say(&format!("and {more} more: type the name"));
        }
        let prefix = format!("{}/", self.name);
        let is_offered = |id: &str| offers.is_empty() || offers.iter().any(|offer| offer.id == id);
        let preferred = self.vendor.map_or(&[][..], |vendor| vendor.prefer);
        let in_use = in_use.strip_prefix(&prefix);
        let best = || catalog::pick(offers, preferred).map(|offer| offer.id.as_str());
        let default = in_use.filter(|id| is_offered(id)).or_else(best);
        let question = match default {
            Some(default) => format!("Model [{}]: ", to_single_line(default, 80)),
            None if preferred.is_empty() => "Model: ".to_owned(),
            None => "Model [the provider's default]: ".to_owned(),
        };
        ui.ask_until(&question, Echo::Shown, |text| match text.parse::<usize>() {
            _ if text.is_empty() && default.is_none() && preferred.is_empty() => {
                Err("type the model's name, as its provider spells it".to_owned())
            }
            _ if text.is_empty() => Ok(default.unwrap_or_default().to_owned()),
            Ok(n) if (1..=shown.len()).contains(&n) => Ok(shown[n - 1].id.clone()),
            _ if offers.iter().any(|offer| offer.id == text) => Ok(text.to_owned()),
            _ => Ok(text.strip_prefix(&prefix).unwrap_or(text).to_owned()),
        })
    }

    /// Asks the model a question, and asks the user for another key if it is refused. False to choose again.
    fn test_model(&mut self, model: &str, ui: &Ui) -> Result<bool> {
        loop {
            let loaded = self.configuration(model)?;
            // The key may be set later.
            if loaded.config.choose_model(&loaded.env).is_err() {
                return Ok(true);
            }
            say("Asking it a question ...");
            let check = doctor::question(&loaded);
            // The fix is not shown, because the user is asked next how to continue.
            say(&check.line());
            if check.outcome != Outcome::Fail {
                return Ok(true);
            }
            if check.cause != Some(Kind::Auth) || !self.ask_key(ui)? {
                return ui.agrees("Keep these settings?", false);
            }
        }
    }
}

/// Asks for a provider.
fn ask_provider<'a>(app: &'a App, in_use: &str, ui: &Ui) -> Result<ProviderChoice<'a>> {
    let (config, env) = (&app.loaded()?.config, &app.env);
    let provider = |name: &str, address: &str| ProviderChoice::new(app, name, address);
    let names = listed_providers(config, in_use, env);
    say(
        "Which provider? Type a number, a name, or an address such as http://192.168.1.20:8080/v1.",
    );
    let cell = |(n, name): (usize, &&str)| format!("{:<CELL$}", format!("{n:>2} {name}"));
    let cells: Vec<_> = (1..).zip(&names).map(cell).collect();
    for line in cells.chunks((terminal::size().0 / CELL).max(1)) {
        say(line.concat().trim_end());
    }
    let question = format!("Provider [{}]: ", names[0]);
    let mut provider = ui.ask_until(&question, Echo::Shown, |text| {
        let name = vendors::find(text).map_or(text, |vendor| vendor.name);
        match text.parse::<usize>() {
            _ if text.is_empty() => Ok(provider(names[0], "")),
            Ok(n) if (1..=names.len()).contains(&n) => Ok(provider(names[n - 1], "")),
            Ok(_) => Err(format!("type 1 to {}, a name, or an address", names.len())),
            _ if names.contains(&name) => Ok(provider(name, "")),
            _ if text.contains(['.', ':', '/']) => {
                let address = read_address(text)?;
                Ok(provider(&free_name(&address, config, env), &address))
            }
            _ => {
                let near = nearest(text, names.iter().copied());
                let near = near.map_or(String::new(), |near| format!(": did you mean {near}?"));
                Err(format!(
                    "no provider named \"{}\"{near}",
                    to_single_line(text, 40)
                ))
            }
        }
    })?;
    let Some(vendor) = provider.vendor else {
        return Ok(provider);
    };
    let known = config.named(vendor.name, env);
    let base = vendors::base(vendor, env);
    let is_in_file = known.is_ok_and(|known| known.base != base);
    if base.is_empty() && !is_in_file {
        let question = format!("The address of your {}: ", provider.name);
        provider.api_base = ui.ask_until(&question, Echo::Shown, read_address)?;
    } else if base != vendor.base && !is_in_file {
        // An address from a variable of this shell is saved, because jobs and the bot do not have the variable.
        provider.api_base = base;
    }
    Ok(provider)
}

/// Returns the names of the providers: the one in use first, then those whose key is set, or else an Ollama that answers.
fn listed_providers<'a>(config: &Config, in_use: &'a str, env: &Env) -> Vec<&'a str> {
    let used = in_use.split('/').next().unwrap_or_default();
    let has_ollama = used.is_empty() && ollama::is_there(env);
    let is_ready =
        |vendor: &Vendor| vendor.set_key(env).is_some() || has_ollama && vendor.name == "ollama";
    let is_real = |vendor: &&Vendor| vendor.protocol != Protocol::Demo;
    let real = VENDORS.iter().filter(is_real);
    let mut names: Vec<&str> = real.map(|vendor| vendor.name).collect();
    names.sort_by_key(|name| !vendors::find(name).is_some_and(is_ready));
    if !used.is_empty() && config.named(used, env).is_ok() {
        names.retain(|name| *name != used);
        names.insert(0, used);
    }
    names
}

/// Returns the name of the server at a typed address: the one in config.json, or the first free name.
fn free_name(address: &str, config: &Config, env: &Env) -> String {
    let names = (2..).map(|n| format!("server-{n}"));
    let mut names = std::iter::once("server".to_owned()).chain(names);
    let is_free = |name: &String| {
        let known = config.named(name, env);
        known.map_or(true, |known| known.base.trim_end_matches('/') == address)
    };
    names.find(is_free).unwrap_or_default()
}

/// Reads an address, and adds a scheme, with encryption unless the machine is nearby.
fn read_address(text: &str) -> Result<String, String> {
    let host = text.split(['/', ':']).next().unwrap_or_default();
    let is_near = !host.contains('.')
        || host.parse::<Ipv4Addr>().is_ok()
        || host.ends_with(".local")
        || text.starts_with('[');
    let address = match text {
        _ if text.contains("://") => text.to_owned(),
        _ if is_near => format!("http://{text}"),
        _ => format!("https://{text}"),
    };
    match config::check_base("the address", &address) {
        Ok(()) if !text.is_empty() => Ok(address.trim_end_matches('/').to_owned()),
        Ok(()) => Err("write http://HOST:PORT/v1".to_owned()),
        Err(e) => Err(format!("{}: {}", e.message, e.hint.unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_gets_a_scheme() {
        for (typed, base) in [
            ("gpu-box:8080/v1", "http://gpu-box:8080/v1"),
            ("192.168.1.20:8080", "http://192.168.1.20:8080"),
            ("https://api.example.com/v1", "https://api.example.com/v1"),
            ("example.com/v1/", "https://example.com/v1"),
        ] {
            assert_eq!(read_address(typed).unwrap(), base);
        }
        assert!(read_address("http://").is_err());
    }
}
