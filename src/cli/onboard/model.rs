//! `bantam onboard`, the model: asks for a provider, a key and a model, tests them with one question, and saves them.

use serde_json::{Value, json};

use super::super::ui::Echo;
use super::super::ui::Ui;
use super::super::{doctor, say, table};
use crate::app::App;
use crate::config::vendors::{self, Protocol, VENDORS, Vendor};
use crate::config::{self, Config, Env, Loaded, ModelEntry, edit, keys};
use crate::doctor::Outcome;
use crate::error::{Kind, Result};
use crate::provider::catalog::{self, Offer};
use crate::provider::ollama;
use crate::secret::Secret;
use crate::text::{nearest, to_single_line};

/// Maximum number of listed models; some gateways have hundreds.
const MAX_SHOWN: usize = 20;
/// Name of a provider that is given by its address, and the start of further ones' names.
const SERVER: &str = "server";

/// Asks until a model answers or the user accepts it anyway, and then saves it. Before that, no file is written.
pub(super) fn choose(app: &App, ui: &Ui) -> Result<()> {
    loop {
        let mut provider = ask_provider(app, ui)?;
        let Some(offers) = provider.ask_key_and_list(ui)? else {
            continue;
        };
        let model = provider.ask_model(&offers, ui)?;
        if provider.test_model(&model, ui)? {
            let set = |file: &mut Value| provider.set(&model, file);
            return edit::edit(&app.home, &app.env, &|_| Vec::new(), set).map(drop);
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

impl ProviderChoice<'_> {
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
        let mut list = file["model_list"].as_array().cloned().unwrap_or_default();
        let prefix = format!("{}/", self.name);
        // The first entry of a provider decides for its other models.
        let is_own = |entry: &Value| {
            let model = entry["model"].as_str();
            model.is_some_and(|model| model.starts_with(&prefix))
        };
        let place = list.iter().position(is_own).unwrap_or(list.len());
        if place == list.len() {
            list.push(Value::Null);
        }
        let base = list[place]["api_base"].as_str().unwrap_or_default();
        let is_same = self.api_base.is_empty() || base.trim_end_matches('/') == self.api_base;
        // The key of one address is not for another.
        if list[place].is_null() || !is_same {
            list[place] = json!({"model": format!("{prefix}*")});
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

    /// Asks for its key, and returns its list of models, which is empty if it has none. `None` to choose again.
    fn ask_key_and_list(&mut self, ui: &Ui) -> Result<Option<Vec<Offer>>> {
        if self.vendor.is_none_or(|vendor| !vendor.keys.is_empty()) {
            self.ask_key(ui)?;
        }
        loop {
            let loaded = self.configuration("")?;
            // The key may be set later.
            let Ok(any) = loaded.config.named(&self.name, &loaded.env) else {
                return Ok(Some(Vec::new()));
            };
            match catalog::offers(&any, &loaded) {
                Ok(mut offers) => {
                    if self.name == "ollama" {
                        ollama::find_tools(&catalog::host(any, &loaded), &mut offers);
                    }
                    return Ok(Some(offers));
                }
                Err(e) => {
                    say(&format!("The models could not be listed: {}", e.message));
                    if e.kind == Kind::Unavailable && !self.api_base.is_empty() {
                        return Ok(ui.agrees("Use this address anyway?", false)?.then(Vec::new));
                    }
                    if e.kind != Kind::Auth || !self.ask_key(ui)? {
                        // Some keys work for answers but not for the list.
                        return Ok(Some(Vec::new()));
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
            if !text.starts_with("cmd:") && text.contains(char::is_whitespace) {
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

    /// Asks for a model by number or name; empty means the vendor's default.
    fn ask_model(&self, offers: &[Offer], ui: &Ui) -> Result<String> {
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
        let preferred = self.vendor.map_or(&[][..], |vendor| vendor.prefer);
        let best = catalog::pick(offers, preferred).map(|offer| offer.id.as_str());
        let default = best.or((!preferred.is_empty()).then_some(""));
        let question = match default {
            None => "Model: ".to_owned(),
            Some("") => "Model [the provider's default]: ".to_owned(),
            Some(id) => format!("Model [{}]: ", to_single_line(id, 80)),
        };
        ui.ask_until(&question, Echo::Shown, |text| {
            let number = text.parse::<usize>().ok();
            let chosen = number.and_then(|number| shown.get(number.wrapping_sub(1)));
            match (default, chosen) {
                (None, _) if text.is_empty() => {
                    Err("type the model's name, as its provider spells it".to_owned())
                }
                (Some(default), _) if text.is_empty() => Ok(default.to_owned()),
                (_, Some(offer)) => Ok(offer.id.clone()),
                _ if number.is_some() && !shown.is_empty() => {
                    Err(format!("type a number up to {}, or a name", shown.len()))
                }
                _ => Ok(text.to_owned()),
            }
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
                check.fix_line().iter().for_each(|line| say(line));
                return Ok(true);
            }
            if check.cause != Some(Kind::Auth) || !self.ask_key(ui)? {
                return ui.agrees("Save these settings anyway?", false);
            }
        }
    }
}

/// Asks for a provider.
fn ask_provider<'a>(app: &'a App, ui: &Ui) -> Result<ProviderChoice<'a>> {
    let (config, env) = (&app.loaded()?.config, &app.env);
    let names = providers(env);
    say(&format!("Providers: {}.", names.join(", ")));
    say("Type a name, or an address such as http://192.168.1.20:8080/v1.");
    let question = format!("Provider [{}]: ", names[0]);
    let (name, mut api_base) = ui.ask_until(&question, Echo::Shown, |text| {
        let typed = if text.is_empty() { names[0] } else { text };
        if let Some(vendor) = vendors::find(typed) {
            // An address from a variable of this shell is stored, because jobs and the bot do not have the variable.
            let base = vendors::base(vendor, env);
            let own = Some(base).filter(|base| base != vendor.base);
            return Ok((vendor.name.to_owned(), own.unwrap_or_default()));
        }
        if text.contains("://") {
            let address = read_address(text)?;
            return Ok((server_name(&address, config), address));
        }
        let near = nearest(text, names.iter().copied());
        let near = near.map_or(
            "write http://HOST:PORT/v1 for a server".to_owned(),
            |near| format!("did you mean {near}?"),
        );
        let shown = to_single_line(text, 40);
        Err(format!("no provider named \"{shown}\": {near}"))
    })?;
    let vendor = vendors::find(&name);
    let has_address = vendor.is_none_or(|vendor| !vendor.base.is_empty());
    if !has_address && api_base.is_empty() && config.named(&name, env).is_err() {
        let question = format!("The address of your {name}: ");
        api_base = ui.ask_until(&question, Echo::Shown, read_address)?;
    }
    Ok(ProviderChoice {
        app,
        name,
        vendor,
        api_base,
        key: None,
    })
}

/// Returns the name of the server at an address: `server`, or with a number if another one has that name.
fn server_name(address: &str, config: &Config) -> String {
    let more = (2..).map(|n| format!("{SERVER}{n}"));
    let mut names = [SERVER.to_owned()].into_iter().chain(more);
    let is_free = |name: &String| {
        let prefix = format!("{name}/");
        let is_other = |entry: &ModelEntry| {
            entry.model.starts_with(&prefix) && entry.api_base.trim_end_matches('/') != address
        };
        !config.model_list.iter().any(is_other)
    };
    names.find(is_free).unwrap_or_default()
}

/// Returns the names of the providers: first those whose key is set, and an Ollama that answers.
fn providers(env: &Env) -> Vec<&'static str> {
    let is_ready = |vendor: &&Vendor| {
        vendor.set_key(env).is_some() || vendor.name == "ollama" && ollama::is_there(env)
    };
    let real = VENDORS.iter().filter(|v| v.protocol != Protocol::Demo);
    let (ready, others): (Vec<&Vendor>, Vec<&Vendor>) = real.partition(is_ready);
    let all = ready.into_iter().chain(others);
    all.map(|vendor| vendor.name).collect()
}

/// Checks a typed address.
fn read_address(text: &str) -> Result<String, String> {
    match config::check_base("the address", text) {
        Ok(()) if !text.is_empty() => Ok(text.trim_end_matches('/').to_owned()),
        Ok(()) => Err("write http://HOST:PORT/v1".to_owned()),
        Err(e) => Err(format!("{}: {}", e.message, e.hint.unwrap_or_default())),
    }
}
