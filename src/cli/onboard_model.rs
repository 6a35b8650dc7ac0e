//! `bantam onboard`, the model: asks for a vendor, a key and a model, and proves them with one request.

use serde_json::{Value, json};

use super::onboard::{ask_until, offer};
use super::tty::Hidden;
use super::{doctor, table, tell};
use crate::app::Parts;
use crate::config::vendors::{Protocol, VENDORS, Vendor};
use crate::config::{self, Env, keys, vendors};
use crate::doctor::Verdict;
use crate::error::{Kind, Result};
use crate::http::authority;
use crate::paths::Home;
use crate::provider::offers::{self, Offer};
use crate::provider::ollama;
use crate::secret::Secret;
use crate::text::{nearest, one_line};

/// The vendor for an address of the user's own: its protocol is OpenAI's, and no variable holds its key.
const OTHER: &str = "vllm";

/// The most models that are listed: some gateways have hundreds.
const MOST_SHOWN: usize = 40;

/// A configuration with the first vendor whose key is in the environment, else the demo.
pub(super) fn by_key(env: &Env) -> Value {
    match VENDORS
        .iter()
        .find(|v| has_key(v, env) && !v.default_model.is_empty())
    {
        Some(vendor) => configuration(vendor, vendor.default_model, "", Some(&variable(vendor))),
        None => configuration(&VENDORS[VENDORS.len() - 1], "demo", "", None),
    }
}

/// The configuration that the user chooses; `None` if the step is skipped.
pub(super) fn by_asking(home: &Home, env: &Env) -> Result<Option<Value>> {
    loop {
        let Some(chosen) = choose(home, env)? else {
            return Ok(None);
        };
        if is_proven(home, env, &chosen)? {
            return Ok(Some(chosen));
        }
    }
}

/// What was chosen on the terminal.
enum Choice {
    Skip,
    /// Another address.
    Other,
    Vendor(&'static Vendor),
}

fn choose(home: &Home, env: &Env) -> Result<Option<Value>> {
    let (vendor, is_other) = match ask_vendor(env)? {
        Choice::Skip => return Ok(None),
        Choice::Other => (vendors::find(OTHER), true),
        Choice::Vendor(vendor) => (Some(vendor), false),
    };
    let Some(vendor) = vendor else {
        return Ok(None);
    };
    if vendor.protocol == Protocol::Demo {
        return Ok(Some(configuration(vendor, vendor.default_model, "", None)));
    }
    // An address that only a variable of this shell knows is written down, for the jobs and the bot.
    let mut api_base = vendors::base(vendor, env);
    if api_base == vendor.base {
        api_base.clear();
    }
    if is_other || vendor.base.is_empty() {
        api_base = ask_until(
            "Address, for example http://192.168.1.20:8080/v1: ",
            |text| {
                let is_http = text.starts_with("http://") || text.starts_with("https://");
                if is_http {
                    Ok(text.to_owned())
                } else {
                    Err("it must begin with http:// or https://".to_owned())
                }
            },
        )?;
    }
    let mut has_key = is_other || !vendor.key_env.is_empty();
    let (key, offers) = loop {
        let key = if has_key { ask_key(vendor, env)? } else { None };
        let listed = configuration(vendor, offers::ANY_MODEL, &api_base, key.as_ref()).to_string();
        let listed = config::load_for(home, Some(&listed), env, Vec::new())?.config;
        if key
            .as_ref()
            .is_some_and(|key| keys::missing(key, env).is_some())
        {
            break (key, Vec::new());
        }
        match offers::of(
            Parts {
                home,
                config: &listed,
                env,
            },
            vendor.name,
        )
        .and_then(|host| host.models)
        {
            Ok(offers) => break (key, offers),
            Err(e) => {
                tell(&format!("The models could not be listed: {}", e.message));
                // A key may be good for answers and not for the list.
                if e.kind != Kind::Auth || !offer("Type another key? [Y/n] ", true)? {
                    break (key, Vec::new());
                }
                has_key = true;
            }
        }
    };
    let model = ask_model(vendor, &offers)?;
    Ok(Some(configuration(vendor, &model, &api_base, key.as_ref())))
}

/// Asks for a model by its number or its name.
fn ask_model(vendor: &Vendor, offers: &[Offer]) -> Result<String> {
    let shown = offers.len().min(MOST_SHOWN);
    let row = |(n, offer): (usize, &Offer)| [n.to_string(), offer.id.clone(), offer.abilities()];
    if shown > 0 {
        tell(table(&(1..).zip(&offers[..shown]).map(row).collect::<Vec<_>>()).trim_end());
    }
    if offers.len() > shown {
        tell(&format!(
            "and {} more, by their names",
            offers.len() - shown
        ));
    }
    let first = offers
        .iter()
        .find(|offer| offer.tools == Some(true))
        .or(offers.first());
    let default = match vendor.default_model {
        "" => first.map_or("", |offer| &offer.id),
        model => model,
    };
    let enter = if default.is_empty() {
        String::new()
    } else {
        format!(" [{}]", one_line(default, 80))
    };
    let model = ask_until(&format!("Model{enter}: "), |text| {
        match (text, text.parse()) {
            ("", _) if default.is_empty() => {
                Err("type the model's name, as the vendor spells it".to_owned())
            }
            ("", _) => Ok(default.to_owned()),
            (_, Ok(n)) if (1..=shown).contains(&n) => Ok(offers[n - 1].id.clone()),
            _ => Ok(without_vendor(vendor, text).to_owned()),
        }
    })?;
    match offers::meant(offers, &model) {
        Some(meant)
            if offer(
                &format!(
                    "{model} is not offered. Take {}? [Y/n] ",
                    one_line(meant, 80)
                ),
                true,
            )? =>
        {
            Ok(meant.to_owned())
        }
        _ => Ok(model),
    }
}

/// Whether the model has answered, or is taken as it is.
fn is_proven(home: &Home, env: &Env, chosen: &Value) -> Result<bool> {
    let loaded = config::load_for(home, Some(&chosen.to_string()), env, Vec::new())?;
    let model = loaded
        .config
        .choose_model(env)?
        .filter(|model| model.protocol != Protocol::Demo);
    let Some(model) = model else { return Ok(true) };
    let has_key = model
        .keys
        .first()
        .is_none_or(|key| keys::missing(key, env).is_none());
    if !has_key || !offer("Ask it something now, to see that it works? [Y/n] ", true)? {
        return Ok(true);
    }
    let checks = doctor::question(home, loaded.config, env, None);
    for check in &checks {
        tell(check.to_string().trim_end());
    }
    let failed = checks.iter().any(|check| check.verdict == Verdict::Fail);
    Ok(!failed || !offer("Choose again? [Y/n] ", true)?)
}

/// What config.json says. `key` is the key itself, or where it is.
fn configuration(vendor: &Vendor, model: &str, api_base: &str, key: Option<&Secret>) -> Value {
    let name = vendor.name;
    let model = format!("{name}/{model}");
    if vendor.protocol == Protocol::Demo {
        return json!({"agents": {"defaults": {"model_name": model}}});
    }
    let mut entry = json!({"model_name": name, "model": model});
    if !api_base.is_empty() {
        entry["api_base"] = api_base.into();
    }
    if let Some(key) = key {
        entry["api_key"] = key.reveal().into();
    }
    json!({"agents": {"defaults": {"model_name": name}}, "model_list": [entry]})
}

/// The vendor's variable, as an `api_key`.
fn variable(vendor: &Vendor) -> Secret {
    Secret::new(format!("${{{}}}", vendor.key_env))
}

fn has_key(vendor: &Vendor, env: &Env) -> bool {
    !vendor.key_env.is_empty()
        && env
            .get(vendor.key_env)
            .is_some_and(|key| !key.trim().is_empty())
}

/// `openai/gpt-5` typed for OpenAI means `gpt-5`, unless the vendor's own names begin with its name.
fn without_vendor<'a>(vendor: &Vendor, typed: &'a str) -> &'a str {
    let prefix = format!("{}/", vendor.name);
    if vendor.default_model.starts_with(&prefix) {
        typed
    } else {
        typed.strip_prefix(&prefix).unwrap_or(typed)
    }
}

/// Lists first the vendors whose key is set, else an Ollama that answers.
fn ask_vendor(env: &Env) -> Result<Choice> {
    let has_ollama = !VENDORS.iter().any(|v| has_key(v, env)) && ollama::is_there(env);
    let is_ollama = |vendor: &Vendor| has_ollama && vendor.name == "ollama";
    let (mut list, others): (Vec<&Vendor>, Vec<_>) = VENDORS
        .iter()
        .partition(|v| has_key(v, env) || is_ollama(v));
    list.extend(others);
    tell("Which provider?");
    for (n, vendor) in (1..).zip(&list) {
        let note = match vendor {
            v if has_key(v, env) => format!("{} is set", v.key_env),
            v if is_ollama(v) => format!("answers at {}", authority(&vendors::base(v, env))),
            v if v.protocol == Protocol::Demo => "built in; not a language model".to_owned(),
            v if v.key_env.is_empty() => format!("no key needed; {}", vendors::base(v, env)),
            v => format!("needs a key ({})", v.key_env),
        };
        tell(&format!("  {n:>2}  {:<11} {note}", vendor.name));
    }
    let other = list.len() + 1;
    tell(&format!(
        "  {other:>2}  {:<11} another address that speaks the OpenAI API",
        "other"
    ));
    ask_until(
        &format!("Number or name, or skip [1, {}]: ", list[0].name),
        |text| {
            let text = if text.is_empty() { "1" } else { text };
            match text.parse::<usize>() {
                _ if text == "skip" => return Ok(Choice::Skip),
                _ if text == "other" => return Ok(Choice::Other),
                Ok(n) if n == other => return Ok(Choice::Other),
                Ok(n) if (1..other).contains(&n) => return Ok(Choice::Vendor(list[n - 1])),
                _ => {}
            }
            vendors::find(text).map(Choice::Vendor).ok_or_else(|| {
                let hint = match nearest(text, VENDORS.iter().map(|v| v.name)) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("type 1 to {other}, or a name from the list"),
                };
                format!("unknown provider \"{}\": {hint}", one_line(text, 40))
            })
        },
    )
}

fn ask_key(vendor: &Vendor, env: &Env) -> Result<Option<Secret>> {
    let name = vendor.key_env;
    let enter = match name {
        "" => "Enter: it needs none".to_owned(),
        name if has_key(vendor, env) => format!("Enter: leave it in {name}"),
        name => format!("Enter: set {name} later"),
    };
    let _hidden = Hidden::begin(env)?;
    ask_until(&format!("Key, not shown ({enter}): "), |text| {
        // A command that prints the key may have spaces.
        if text.is_empty() {
            Ok((!name.is_empty()).then(|| variable(vendor)))
        } else if !text.starts_with("cmd:")
            && text.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            Err("a key has no spaces in it".to_owned())
        } else {
            Ok(Some(Secret::new(text)))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn what_is_written_is_what_was_chosen_and_no_more() {
        let openai = vendors::find("openai").unwrap();
        let expected = json!({
            "agents": {"defaults": {"model_name": "openai"}},
            "model_list": [{"model_name": "openai", "model": "openai/m", "api_key": "${OPENAI_API_KEY}"}],
        });
        assert_eq!(
            configuration(openai, "m", "", Some(&variable(openai))),
            expected
        );
        assert_eq!(
            by_key(&Env::new()),
            json!({"agents": {"defaults": {"model_name": "demo/demo"}}})
        );
    }

    #[test]
    fn every_vendor_makes_a_configuration_that_is_read_without_a_word() {
        for vendor in VENDORS {
            let api_base = if vendor.base.is_empty() {
                "http://h/v1"
            } else {
                ""
            };
            let text = configuration(vendor, "m", api_base, Some(&Secret::new("k"))).to_string();
            let loaded = Config::load(Some(("c", &text)), &Env::new(), Vec::new()).unwrap();
            assert!(loaded.warnings().is_empty(), "{:?}", loaded.warnings());
            let Ok(Some(model)) = loaded.config.choose_model(&Env::new()) else {
                panic!("{text}")
            };
            assert_eq!(model.name, format!("{}/m", vendor.name));
        }
    }

    #[test]
    fn a_vendors_name_before_the_models_is_taken_off_where_it_is_not_a_part_of_it() {
        let name = |vendor, typed| without_vendor(vendors::find(vendor).unwrap(), typed).to_owned();
        assert_eq!(name("openai", "openai/gpt-5"), "gpt-5");
        assert_eq!(name("openrouter", "openrouter/auto"), "openrouter/auto");
        assert_eq!(name("groq", "openai/gpt-oss-20b"), "openai/gpt-oss-20b");
    }
}
