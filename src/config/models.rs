//! Which model answers: from a name, a list and the environment to an address and a key.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

use super::keys::at_hand;
use super::vendors::{self, Protocol, VENDORS, Vendor};
use super::{Config, ModelEntry};
use crate::error::{Error, Result};
use crate::message::Price;
use crate::secret::Secret;
use crate::text::nearest;

/// A model, ready to be asked.
#[derive(Clone)]
pub struct Model {
    /// `vendor/model`, as it is shown.
    pub name: String,
    pub protocol: Protocol,
    /// The model's name as the vendor knows it.
    pub id: String,
    pub base: String,
    /// As they are written, used in turn; [`super::keys::resolve`] tells what one means. Empty: none is needed.
    pub keys: Vec<Secret>,
    /// Where the keys came from: a variable's name, or `config.json`.
    pub key_origin: String,
    pub headers: Vec<(String, Secret)>,
    pub extra_body: Map<String, Value>,
    /// How long the server may be silent.
    pub request_timeout: Duration,
    pub proxy: String,
    /// What it can read at once, in tokens.
    pub context_window: u64,
    pub max_tokens: u64,
    pub temperature: Option<f64>,
    pub price: Price,
}

/// What the configuration says about the model.
pub enum Choice {
    Model(Box<Model>),
    /// It says nothing and there is no key: a local server, or else the demo.
    Nothing,
}

impl Config {
    /// The model that answers, unless a configured one cannot.
    pub fn choose_model(&self, env: &BTreeMap<String, String>) -> Result<Choice> {
        let wanted = self.agents.defaults.model_name.trim();
        if !wanted.is_empty() {
            return Ok(Choice::Model(Box::new(self.named(wanted, env)?)));
        }
        if let Some(entry) = self.model_list.first() {
            return Ok(Choice::Model(Box::new(self.of_entry(entry, &entry.model, env)?)));
        }
        let has_key = |v: &&Vendor| env.get(v.key_env).is_some_and(|key| !key.is_empty());
        // One that has no model for everybody cannot answer just because its key is there.
        if let Some(vendor) = VENDORS.iter().filter(|v| !v.default_model.is_empty()).find(has_key) {
            let name = format!("{}/{}", vendor.name, vendor.default_model);
            return Ok(Choice::Model(Box::new(self.named(&name, env)?)));
        }
        Ok(Choice::Nothing)
    }

    /// The model called `name`: an entry of the list, or `vendor/model`.
    pub fn named(&self, name: &str, env: &BTreeMap<String, String>) -> Result<Model> {
        let by_name = self.model_list.iter().find(|e| e.model_name == name);
        if let Some(entry) = by_name.or_else(|| self.model_list.iter().find(|e| e.model == name)) {
            return self.of_entry(entry, &entry.model, env);
        }
        let vendor = name.split_once('/').map_or(name, |(vendor, _)| vendor);
        // `vendor/*` stands for every model of a vendor.
        let canonical = vendors::canonical(vendor);
        let serves = |e: &&ModelEntry| e.model.strip_suffix("/*").is_some_and(|v| vendors::canonical(v) == canonical);
        if let Some(entry) = self.model_list.iter().find(serves) {
            return self.of_entry(entry, name, env);
        }
        if vendors::find(vendor).is_none() {
            let listed = self.model_list.iter().map(|e| e.model_name.as_str());
            let known = listed.chain(VENDORS.iter().map(|v| v.name));
            let near = nearest(vendor, known).map_or(String::new(), |near| format!("did you mean \"{near}\"? "));
            return Err(Error::config(format!(
                "choosing the model: \"{name}\" is not in model_list and has no known vendor"
            ))
            .hint(format!(
                "{near}use vendor/model with one of: {}; or add it to model_list with an api_base",
                names()
            )));
        }
        let unlisted = ModelEntry { model: name.to_owned(), request_timeout: 90, ..ModelEntry::default() };
        self.of_entry(&unlisted, name, env)
    }

    /// `model` by the settings of `entry`.
    fn of_entry(&self, entry: &ModelEntry, model: &str, env: &BTreeMap<String, String>) -> Result<Model> {
        let (vendor_name, id) = model.split_once('/').unwrap_or((model, ""));
        let vendor = vendors::find(vendor_name);
        let custom = !entry.api_base.is_empty();
        let (vendor_name, id) = match (vendor, id) {
            // Not a vendor's name: with an address of its own, all of it is the model's name, unless the entry is for
            // whatever comes after it.
            (None, _) if custom && !entry.model.ends_with("/*") => ("custom", model),
            (Some(v), "" | "*") => (v.name, v.default_model),
            (None, "*") => (vendor_name, ""),
            (Some(v), id) => (v.name, id),
            (None, id) => (vendor_name, id),
        };
        let Some((base, protocol, key_env)) =
            vendor.map(|v| (v.base, v.protocol, v.key_env)).or_else(|| custom.then_some(("", Protocol::OpenAi, "")))
        else {
            return Err(Error::config(format!(
                "choosing the model: \"{model}\" names no known vendor and has no api_base"
            ))
            .hint(format!("vendors are: {}", names())));
        };
        if id.is_empty() {
            return Err(Error::config(format!("choosing the model: \"{model}\" names no model"))
                .hint(format!("write {vendor_name}/ and the model's name")));
        }
        if base.is_empty() && !custom && protocol != Protocol::Demo {
            return Err(Error::config(format!("choosing the model: \"{model}\" has no address"))
                .hint(format!("{vendor_name} needs an \"api_base\" in config.json's model_list")));
        }
        let name = if vendor.is_none() { id.to_owned() } else { format!("{vendor_name}/{id}") };
        let (keys, key_origin) = keys(entry, key_env, env);
        if keys.is_empty() && !key_env.is_empty() && !custom {
            return Err(Error::config(format!("choosing the model: there is no key for {name}"))
                .hint(format!("export {key_env}=..., or set \"api_key\" in config.json's model_list")));
        }
        let defaults = &self.agents.defaults;
        Ok(Model {
            name,
            protocol,
            id: id.to_owned(),
            base: if custom { entry.api_base.clone() } else { base.to_owned() },
            keys,
            key_origin,
            headers: entry.headers.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
            extra_body: entry.extra_body.clone(),
            request_timeout: Duration::from_secs(entry.request_timeout),
            proxy: entry.proxy.clone(),
            context_window: if entry.context_window > 0 { entry.context_window } else { defaults.context_window },
            max_tokens: if entry.max_tokens > 0 { entry.max_tokens } else { defaults.max_tokens },
            temperature: entry.temperature.or(defaults.temperature),
            price: entry.price,
        })
    }

    /// Every configured secret that is known without asking a file or a command, for the redactor.
    pub fn secrets(&self, env: &BTreeMap<String, String>) -> Vec<Secret> {
        let listed = self.model_list.iter().flat_map(|entry| {
            entry.api_keys.iter().chain(std::iter::once(&entry.api_key)).chain(entry.headers.values()).cloned()
        });
        let vendors = VENDORS.iter().filter_map(|v| env.get(v.key_env)).map(|key| Secret::new(key.trim()));
        let other = [self.channels.telegram.token.clone(), self.tools.web.search.api_key.clone()];
        listed.chain(vendors).chain(other).filter_map(|written| at_hand(&written, env)).collect()
    }
}

/// The keys of an entry, each once, and where they came from.
fn keys(entry: &ModelEntry, key_env: &str, env: &BTreeMap<String, String>) -> (Vec<Secret>, String) {
    let mut listed: Vec<Secret> = Vec::new();
    for key in std::iter::once(&entry.api_key).chain(&entry.api_keys) {
        if !key.is_empty() && !listed.contains(key) {
            listed.push(key.clone());
        }
    }
    if !listed.is_empty() {
        return (listed, "config.json".to_owned());
    }
    match env.get(key_env).map(|key| key.trim()).filter(|key| !key.is_empty()) {
        Some(key) => (vec![Secret::new(key)], key_env.to_owned()),
        None => (Vec::new(), String::new()),
    }
}

fn names() -> String {
    VENDORS.iter().map(|v| v.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::load(Some(("c", text)), &BTreeMap::new(), Vec::new()).unwrap().config
    }

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn chosen(config: &Config, env: &BTreeMap<String, String>) -> Model {
        match config.choose_model(env).unwrap() {
            Choice::Model(model) => *model,
            Choice::Nothing => panic!("no model was chosen"),
        }
    }

    #[test]
    fn the_first_vendor_with_a_key_answers_when_nothing_is_said() {
        let keys = env(&[("GROQ_API_KEY", "g"), ("DEEPSEEK_API_KEY", "d")]);
        let model = chosen(&config("{}"), &keys);
        assert_eq!((model.name.as_str(), model.key_origin.as_str()), ("deepseek/deepseek-chat", "DEEPSEEK_API_KEY"));
        assert!(matches!(config("{}").choose_model(&env(&[])).unwrap(), Choice::Nothing));
    }

    #[test]
    fn only_the_first_slash_of_a_name_counts() {
        let keys = env(&[("OPENROUTER_API_KEY", "k")]);
        let model = config("{}").named("openrouter/meta/llama:free", &keys).unwrap();
        assert_eq!((model.id.as_str(), model.base.as_str()), ("meta/llama:free", "https://openrouter.ai/api/v1"));
    }

    #[test]
    fn an_entry_of_the_list_is_found_by_either_name_and_an_unknown_vendor_needs_an_address() {
        let list =
            r#"{"model_list":[{"model_name":"mine","model":"acme/x/y","api_base":"http://h/v1","api_key":"k"}]}"#;
        let model = config(list).named("mine", &env(&[])).unwrap();
        assert_eq!((model.id.as_str(), model.base.as_str()), ("acme/x/y", "http://h/v1"));
        let error = config("{}").named("opnai/gpt", &env(&[])).err().unwrap();
        assert!(error.hint.unwrap().contains("did you mean \"openai\"?"));
    }

    #[test]
    fn a_missing_key_names_the_variable_and_a_server_of_ones_own_needs_none() {
        let error = config("{}").named("openai/gpt", &env(&[])).err().unwrap();
        assert!(error.hint.unwrap().contains("export OPENAI_API_KEY="));
        let own = config(r#"{"model_list":[{"model":"openai/x","api_base":"http://localhost:1/v1"}]}"#);
        assert!(chosen(&own, &env(&[])).keys.is_empty());
    }

    #[test]
    fn an_entry_with_a_star_serves_every_model_of_its_vendor() {
        let list = r#"{"model_list":[{"model":"glm/*","api_key":"k"},{"model":"acme/*","api_base":"http://h"}]}"#;
        let named = |name: &str| {
            let model = config(list).named(name, &env(&[])).unwrap();
            (model.name, model.id, model.base, model.keys.len())
        };
        let zhipu = "https://open.bigmodel.cn/api/paas/v4";
        assert_eq!(named("zhipu/x/y"), ("zhipu/x/y".into(), "x/y".into(), zhipu.into(), 1));
        assert_eq!(named("glm").1, "glm-4.6");
        assert_eq!(named("acme/x/y"), ("x/y".into(), "x/y".into(), "http://h".into(), 0));
        let error = config(list).named("acme", &env(&[])).err().unwrap();
        assert!(error.message.contains("names no model"), "{error}");
    }

    #[test]
    fn keys_are_used_in_turn_each_once_and_a_variable_only_without_them() {
        let list = r#"{"model_list":[{"model":"openai/x","api_key":"a","api_keys":["a","b",""]}]}"#;
        let model = chosen(&config(list), &env(&[("OPENAI_API_KEY", "v")]));
        assert_eq!(model.keys.iter().map(Secret::reveal).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn azure_needs_an_address_and_never_answers_by_itself() {
        let keys = env(&[("AZURE_OPENAI_API_KEY", "k")]);
        assert!(matches!(config("{}").choose_model(&keys).unwrap(), Choice::Nothing));
        let error = config("{}").named("azure/gpt", &keys).err().unwrap();
        assert!(error.hint.unwrap().contains("api_base"));
    }
}
