//! Chooses the model: resolves a name, the model list and the environment to an address and a key.

use std::borrow::Cow;

use super::check::check_headers;
use super::keys;
use super::proxy::host;
use super::vendors::{self, Protocol, VENDORS, Vendor};
use super::{Config, Env, ModelEntry};
use crate::error::{Error, Kind, Result};
use crate::secret::Secret;
use crate::ssrf;
use crate::text::{nearest, not_found_near};

/// A model that is ready for requests.
#[derive(Clone)]
pub(crate) struct Model {
    /// `vendor/model`, for people; only the vendor if the id is empty.
    pub name: String,
    pub protocol: Protocol,
    /// The model's name at the vendor. If empty, the user named no model, and `provider::catalog` finds the host's default.
    pub id: String,
    /// Whether the user named no model, so that another one may replace it.
    pub is_default: bool,
    pub base: String,
    /// Keys as written (see [`super::keys::resolve`]), used in turn. Empty if the host needs no key.
    pub keys: Vec<Secret>,
    /// Entry in the list, with `max_tokens` and `temperature` filled in.
    pub entry: ModelEntry,
}

impl ModelEntry {
    /// Returns the vendor at the start of a model's name. If the entry has its own address, `Qwen/` is the model's maker.
    pub(crate) fn vendor_of(&self, model: &str) -> Option<&'static Vendor> {
        let prefix = model.split('/').next().unwrap_or_default();
        let is_maker = !self.api_base.trim().is_empty() && prefix.contains(char::is_uppercase);
        if is_maker {
            None
        } else {
            vendors::find(prefix)
        }
    }

    /// Returns the entry's settings for the host, without the settings of its model.
    fn host(&self) -> Self {
        let Self {
            api_base,
            api_key,
            api_keys,
            headers,
            request_timeout,
            proxy,
            ..
        } = self.clone();
        Self {
            api_base,
            api_key,
            api_keys,
            headers,
            request_timeout,
            proxy,
            ..Self::default()
        }
    }
}

/// Common variables for keys of search engines.
const SEARCH_VARIABLES: [&str; 3] = ["TAVILY_API_KEY", "BRAVE_API_KEY", "SERPER_API_KEY"];

fn fail(what: impl std::fmt::Display) -> Error {
    Error::config(format!("choosing the model: {what}"))
}

/// Changes the kind of an error about a name in a configuration.
pub(crate) fn in_config(e: Error) -> Error {
    Error {
        kind: Kind::Config,
        ..e
    }
}

impl Config {
    /// Chooses the configured model, or else the model of the first vendor whose key is set. `None` leaves a local server or
    /// the demo.
    pub(crate) fn choose_model(&self, env: &Env) -> Result<Option<Model>> {
        let wanted = self.agents.defaults.model_name.trim();
        if !wanted.is_empty() {
            return self.named(wanted, env).map(Some).map_err(in_config);
        }
        if let Some(entry) = self.model_list.first() {
            return self.resolve(entry, &entry.model, env).map(Some);
        }
        let has_key = |v: &&Vendor| v.set_key(env).is_some() && !v.prefer.is_empty();
        let vendor = VENDORS.iter().find(has_key);
        vendor
            .map(|vendor| self.named(vendor.name, env))
            .transpose()
    }

    /// Returns the model called `name`: an entry of the list, or `vendor/model`.
    pub(crate) fn named(&self, name: &str, env: &Env) -> Result<Model> {
        let (entry, model) = self.entry(name)?;
        self.resolve(&entry, &model, env)
    }

    /// Returns the entry for a name and the model to request there, or an error for an unknown name.
    pub(super) fn entry<'a>(
        &'a self,
        name: &'a str,
    ) -> Result<(Cow<'a, ModelEntry>, Cow<'a, str>)> {
        self.find_entry(name).ok_or_else(|| self.unknown(name))
    }

    fn find_entry<'a>(&'a self, name: &'a str) -> Option<(Cow<'a, ModelEntry>, Cow<'a, str>)> {
        let find =
            |fits: &dyn Fn(&ModelEntry) -> bool| self.model_list.iter().find(|entry| fits(entry));
        if let Some(entry) = find(&|e| e.model_name == name).or_else(|| find(&|e| e.model == name))
        {
            return Some((Cow::Borrowed(entry), entry.model.as_str().into()));
        }
        let vendor = name.split_once('/').map_or(name, |(vendor, _)| vendor);
        // `vendor/*` matches every model of a vendor.
        let canonical = vendors::canonical(vendor);
        if let Some(entry) = find(&|e| {
            e.model
                .strip_suffix("/*")
                .is_some_and(|v| vendors::canonical(v) == canonical)
        }) {
            return Some((Cow::Borrowed(entry), name.into()));
        }
        // If an entry points at the user's own gateway, requests to this vendor must go there.
        let of_vendor = |e: &ModelEntry| {
            let prefix = e.model.split('/').next().unwrap_or_default();
            let is_maker = vendors::find(prefix).is_some() && e.vendor_of(&e.model).is_none();
            !is_maker && vendors::canonical(prefix) == canonical
        };
        match find(&of_vendor) {
            Some(entry) => Some((Cow::Owned(entry.host()), name.into())),
            None if vendors::find(vendor).is_some() => {
                Some((Cow::Owned(ModelEntry::default()), name.into()))
            }
            None => self.beside_entry(name),
        }
    }

    /// Resolves `NAME/MODEL` to another model at the host of the entry NAME.
    fn beside_entry<'a>(&'a self, name: &'a str) -> Option<(Cow<'a, ModelEntry>, Cow<'a, str>)> {
        let named = |entry: &'a ModelEntry| {
            let rest = name.strip_prefix(&entry.model_name)?.strip_prefix('/')?;
            (!entry.model_name.is_empty()).then_some((entry, rest))
        };
        let (entry, id) = self.model_list.iter().find_map(named)?;
        let vendor = entry.model.split('/').next().unwrap_or_default();
        let model = match vendors::find(vendor) {
            Some(vendor) => format!("{}/{id}", vendor.name).into(),
            None => id.into(),
        };
        Some((Cow::Owned(entry.host()), model))
    }

    /// Returns the other models of the list with the name of this one, which share its load.
    pub(crate) fn same_name(&self, model: &Model, env: &Env) -> Vec<Model> {
        let name = &model.entry.model_name;
        let named = self
            .model_list
            .iter()
            .filter(|entry| !name.is_empty() && entry.model_name == *name)
            .skip(1);
        named
            .filter_map(|entry| self.resolve(entry, &entry.model, env).ok())
            .collect()
    }

    /// Returns the first error of the chosen model and of the list that further settings can mend.
    pub(crate) fn incomplete(&self, env: &Env) -> Option<Error> {
        let resolved = |entry: &ModelEntry| self.resolve(entry, &entry.model, env).err();
        let chosen = self.choose_model(env).err();
        chosen.or_else(|| self.model_list.iter().find_map(resolved))
    }

    /// Returns the names of the models in the list.
    pub(crate) fn model_names(&self) -> Vec<String> {
        let name = |entry: &ModelEntry| {
            if entry.model_name.is_empty() {
                &entry.model
            } else {
                &entry.model_name
            }
            .clone()
        };
        self.model_list.iter().map(name).collect()
    }

    /// Returns the names of single models, without `vendor/*`.
    pub(crate) fn whole_names(&self) -> Vec<String> {
        let mut names = self.model_names();
        names.retain(|name| !name.ends_with("/*"));
        names
    }

    /// Creates the error for an unknown model.
    fn unknown(&self, name: &str) -> Error {
        let names = self.whole_names();
        let known = || names.iter().map(String::as_str);
        let near = match name.split_once('/') {
            // Ollama separates tags by a colon.
            None if name.contains(':') => Some(format!("ollama/{name}")),
            None => known()
                .find(|known| known.starts_with(name))
                .or_else(|| nearest(name, known()))
                .map(str::to_owned),
            Some((vendor, id)) => nearest(vendor, VENDORS.iter().map(|vendor| vendor.name))
                .map(|vendor| format!("{vendor}/{id}")),
        };
        let error = not_found_near("model", name, near.as_deref(), "bantam models");
        if near.is_none() && names.is_empty() {
            return error.hint("write vendor/model, such as `openai/gpt-5-mini`");
        }
        error
    }

    /// Combines `model` with the settings of `entry`.
    fn resolve(&self, entry: &ModelEntry, model: &str, env: &Env) -> Result<Model> {
        let own_base = entry.api_base.trim();
        let (prefix, rest) = model.split_once('/').unwrap_or((model, ""));
        let vendor = entry.vendor_of(model);
        let is_whole = entry.model.ends_with("/*");
        let protocol = vendor.map_or(Protocol::OpenAi, |v| v.protocol);
        let vendor_name = vendor.map_or(prefix, |v| v.name);
        let id = match vendor {
            Some(vendor) if vendor.protocol == Protocol::Demo && matches!(rest, "" | "*") => "demo",
            Some(_) => rest.trim_end_matches('*'),
            // At a custom address, an unknown prefix is part of the model's name, except for entries of a whole vendor.
            None if !own_base.is_empty() && !is_whole => model,
            None => rest.trim_end_matches('*'),
        };
        if vendor.is_none() && own_base.is_empty() {
            return Err(fail(format!(
                "\"{model}\" needs a provider (openai/{}) or an api_base",
                model.rsplit('/').next().unwrap_or_default()
            ))
            .hint(format!(
                "use one of these providers: {}",
                VENDORS
                    .iter()
                    .map(|v| v.name)
                    .collect::<Vec<_>>()
                    .join(", ")
            )));
        }
        let (from, base) = match vendor {
            Some(vendor) if own_base.is_empty() => ("OLLAMA_HOST", vendors::base(vendor, env)),
            _ => ("api_base", own_base.to_owned()),
        };
        check_base(from, &base)?;
        check_headers("model_list[].headers", &entry.headers)?;
        if base.is_empty() && protocol != Protocol::Demo {
            return Err(fail(format!("\"{model}\" has no address")).hint(format!(
                "{vendor_name} needs an \"api_base\" in config.json's model_list"
            )));
        }
        let name = match id {
            "" => vendor_name.to_owned(),
            id if vendor.is_none() && !is_whole => id.to_owned(),
            id => format!("{vendor_name}/{id}"),
        };
        let keys = keys(entry, vendor.and_then(|v| v.set_key(env)));
        let key_env = vendor.map_or("", Vendor::key_env);
        if keys.is_empty() && !key_env.is_empty() && own_base.is_empty() {
            return Err(fail(format!("no key for {name}")).hint(format!(
                "export {key_env}=..., or set \"api_key\" in config.json's model_list"
            )));
        }
        let defaults = &self.agents.defaults;
        let mut entry = entry.clone();
        if entry.max_tokens == 0 {
            entry.max_tokens = defaults.max_tokens;
        }
        entry.temperature = entry.temperature.or(defaults.temperature);
        Ok(Model {
            name,
            protocol,
            id: id.to_owned(),
            is_default: id.is_empty(),
            base,
            keys,
            entry,
        })
    }

    /// Returns every configured secret that needs no file and no command, for the redactor.
    pub(crate) fn secrets(&self, env: &Env) -> Vec<Secret> {
        let listed = self.model_list.iter().flat_map(|entry| {
            entry
                .api_keys
                .iter()
                .chain(std::iter::once(&entry.api_key))
                .chain(entry.headers.values())
                .cloned()
        });
        let vendors = VENDORS
            .iter()
            .flat_map(|v| v.keys.iter().copied())
            .chain(SEARCH_VARIABLES)
            .filter_map(|name| env.get(name))
            .map(|key| Secret::new(key.trim()));
        let other = [
            self.channels.telegram.token.clone(),
            self.channels.http.token.clone(),
            self.tools.web.search.api_key.clone(),
        ];
        let known = listed
            .chain(vendors)
            .chain(other)
            .filter_map(|written| keys::known(&written, env));
        known
            .chain(
                self.mcp_servers
                    .values()
                    .flat_map(|server| server.secrets(env)),
            )
            .collect()
    }
}

/// Checks the address in the setting or variable `from`.
pub(crate) fn check_base(from: &str, base: &str) -> Result<()> {
    match base.split_once("://") {
        _ if base.is_empty() => Ok(()),
        Some(("http", rest)) if is_address(rest) && !ssrf::is_private(&host(base)) => Err(fail(
            format!(
                "{from} is http:// to a public host: others could read the key and the conversation"
            ),
        )
        .hint("write https://; or reach it by a private address, through a VPN or an ssh tunnel")),
        Some(("http" | "https", rest)) if is_address(rest) => Ok(()),
        // The address may contain a password, so it is not repeated.
        Some(("http" | "https", _)) => {
            Err(fail(format!("{from} is not a valid address")).hint("write http://HOST:PORT/v1"))
        }
        Some(_) => Err(fail(format!("{from} must begin with http:// or https://"))
            .hint("correct it in config.json's model_list")),
        None if base.contains('@') => {
            Err(fail(format!("{from} has no scheme"))
                .hint("put http:// or https:// in front of it"))
        }
        None => {
            Err(fail(format!("{from} \"{base}\" has no scheme"))
                .hint(format!("write http://{base}")))
        }
    }
}

/// Whether the rest of a URL after the scheme begins with a host and an optional port.
fn is_address(rest: &str) -> bool {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let place = authority.rsplit('@').next().unwrap_or_default();
    let (host, port) = place
        .rsplit_once(':')
        .filter(|(_, port)| !port.ends_with(']'))
        .unwrap_or((place, "80"));
    !host.is_empty() && port.parse::<u16>().is_ok() && rest.bytes().all(|b| b.is_ascii_graphic())
}

/// Returns the distinct keys of an entry, or else the vendor's variable if it is set.
fn keys(entry: &ModelEntry, variable: Option<&str>) -> Vec<Secret> {
    let mut keys: Vec<Secret> = Vec::new();
    for key in std::iter::once(&entry.api_key).chain(&entry.api_keys) {
        if !key.is_empty() && !keys.contains(key) {
            keys.push(key.clone());
        }
    }
    if keys.is_empty() {
        keys.extend(variable.map(|variable| Secret::new(format!("${{{variable}}}"))));
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn config(text: &str) -> Arc<Config> {
        Config::load(Some(("c", text)), &Env::new(), Vec::new())
            .unwrap()
            .config
    }

    fn env(pairs: &[(&str, &str)]) -> Env {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    fn chosen(config: &Config, env: &Env) -> Model {
        config.choose_model(env).unwrap().unwrap()
    }

    #[test]
    fn the_first_vendor_with_a_key_answers_when_nothing_is_said() {
        let keys = env(&[("GROQ_API_KEY", "g"), ("DEEPSEEK_API_KEY", "d")]);
        let model = chosen(&config("{}"), &keys);
        assert_eq!(
            (model.name.as_str(), model.keys[0].reveal()),
            ("deepseek", "${DEEPSEEK_API_KEY}")
        );
        assert!(model.is_default && model.id.is_empty());
        let google = chosen(&config("{}"), &env(&[("GOOGLE_API_KEY", "k")]));
        assert_eq!(google.keys[0].reveal(), "${GOOGLE_API_KEY}");
        assert!(config("{}").choose_model(&env(&[])).unwrap().is_none());
    }

    #[test]
    fn only_the_first_slash_of_a_name_counts() {
        let keys = env(&[("OPENROUTER_API_KEY", "k")]);
        let model = config("{}")
            .named("openrouter/meta/llama:free", &keys)
            .unwrap();
        assert_eq!(
            (model.id.as_str(), model.base.as_str()),
            ("meta/llama:free", "https://openrouter.ai/api/v1")
        );
    }

    #[test]
    fn entry_is_found_by_either_name() {
        let list = r#"{"model_list":[{"model_name":"mine","model":"acme/x/y","api_base":"http://h/v1","api_key":"k"}]}"#;
        let model = config(list).named("mine", &env(&[])).unwrap();
        assert_eq!(
            (model.id.as_str(), model.base.as_str()),
            ("acme/x/y", "http://h/v1")
        );
        // A maker with the name of a vendor.
        let list = r#"{"model_list":[{"model_name":"mine","model":"Qwen/Qwen3-8B","api_base":"http://h/v1"}]}"#;
        assert_eq!(
            config(list).named("mine", &env(&[])).unwrap().id,
            "Qwen/Qwen3-8B"
        );
        let of_vendor = config(list).named("qwen/qwen-plus", &env(&[("DASHSCOPE_API_KEY", "k")]));
        assert!(of_vendor.unwrap().base.contains("dashscope"));
        let error = config("{}").named("opnai/gpt", &env(&[])).err().unwrap();
        assert_eq!(error.hint.unwrap(), "did you mean `openai/gpt`?");
    }

    #[test]
    fn an_address_needs_a_scheme() {
        let error = |base: &str| {
            let list = format!(r#"{{"model_list":[{{"model":"openai/x","api_base":"{base}"}}]}}"#);
            config(&list).choose_model(&env(&[])).err().unwrap()
        };
        assert_eq!(
            error("127.0.0.1:80/v1").hint.unwrap(),
            "write http://127.0.0.1:80/v1"
        );
        assert!(
            error("ftp://h")
                .message
                .contains("must begin with http:// or https://")
        );
        assert!(!error("me:hush@h").message.contains("hush"));
        assert!(
            error("http://models.example.com/v1")
                .message
                .contains("public host")
        );
        assert!(error("http://1.1.1.1/v1").message.contains("public host"));
        for base in [
            "http://10.0.0.7:8080/v1",
            "http://nas/v1",
            "http://pi.local/v1",
            "https://models.example.com/v1",
        ] {
            assert!(check_base("api_base", base).is_ok(), "{base}");
        }
        for base in [
            "http://exa mple/v1",
            "http://:80/v1",
            "http://127.0.0.1:99999/v1",
            "http://h:x",
            "https:///v1",
        ] {
            assert!(
                error(base).message.contains("not a valid address"),
                "{base}"
            );
        }
        assert!(
            ["http://[::1]:8080/v1", "https://me:hush@h", "http://h/a:b"]
                .iter()
                .all(|base| check_base("api_base", base).is_ok())
        );
    }

    #[test]
    fn missing_key_error_names_the_variable() {
        let error = config("{}").named("openai/gpt", &env(&[])).err().unwrap();
        assert!(error.hint.unwrap().contains("export OPENAI_API_KEY="));
        let own =
            config(r#"{"model_list":[{"model":"openai/x","api_base":"http://localhost:1/v1"}]}"#);
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
        assert_eq!(
            named("zhipu/x/y"),
            ("zhipu/x/y".into(), "x/y".into(), zhipu.into(), 1)
        );
        assert_eq!(
            (named("glm").0, named("glm").1),
            ("zhipu".into(), String::new())
        );
        assert_eq!(
            named("acme/x/y"),
            ("acme/x/y".into(), "x/y".into(), "http://h".into(), 0)
        );
        let acme = config(list).named("acme", &env(&[])).unwrap();
        assert!(acme.is_default && acme.name == "acme");
    }

    #[test]
    fn unlisted_model_uses_its_vendors_first_address() {
        let list = r#"{"model_list":[
            {"model":"openai/x","api_base":"http://gateway","api_key":"k","context_window":9},
            {"model":"acme/y","api_base":"http://h"}]}"#;
        let model = config(list)
            .named("openai/z", &env(&[("OPENAI_API_KEY", "v")]))
            .unwrap();
        assert_eq!(
            (
                model.id.as_str(),
                model.base.as_str(),
                model.keys[0].reveal()
            ),
            ("z", "http://gateway", "k")
        );
        assert_eq!(model.entry.context_window, 0);
        let model = config(list).named("acme/z", &env(&[])).unwrap();
        assert_eq!(
            (model.id.as_str(), model.base.as_str()),
            ("acme/z", "http://h")
        );
    }

    #[test]
    fn configured_keys_rotate_before_the_variable() {
        let list = r#"{"model_list":[{"model":"openai/x","api_key":"a","api_keys":["a","b",""]}]}"#;
        let model = chosen(&config(list), &env(&[("OPENAI_API_KEY", "v")]));
        assert_eq!(
            model.keys.iter().map(Secret::reveal).collect::<Vec<_>>(),
            ["a", "b"]
        );
    }

    #[test]
    fn azure_needs_an_address_and_never_answers_by_itself() {
        let keys = env(&[("AZURE_OPENAI_API_KEY", "k")]);
        assert!(config("{}").choose_model(&keys).unwrap().is_none());
        let error = config("{}").named("azure/gpt", &keys).err().unwrap();
        assert!(error.hint.unwrap().contains("api_base"));
    }
}
