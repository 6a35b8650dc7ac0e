//! Chooses the model: resolves a name, the model list and the environment to an address and a key.

use std::collections::BTreeSet;

use super::keys;
use super::proxy::host;
use super::vendors::{self, Protocol, VENDORS, Vendor};
use super::{Config, Env, ModelEntry, shown};
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
    /// Whether the start of a model's name is its maker, as in `Qwen/Qwen3-8B` at an own address, and no provider.
    fn is_maker(&self, prefix: &str) -> bool {
        !self.api_base.trim().is_empty() && prefix.contains(char::is_uppercase)
    }

    /// Returns the vendor at the start of a model's name.
    pub(crate) fn vendor_of(&self, model: &str) -> Option<&'static Vendor> {
        let prefix = model.split('/').next().unwrap_or_default();
        let known = (!self.is_maker(prefix)).then(|| vendors::find(prefix));
        known.flatten()
    }

    /// Returns the written keys, empty ones included.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Secret> {
        std::iter::once(&self.api_key).chain(&self.api_keys)
    }

    /// Whether the entry is for every model of its provider.
    fn is_whole(&self) -> bool {
        self.model.ends_with("/*")
    }

    fn is_of(&self, provider: &str) -> bool {
        let prefix = self.model.split('/').next().unwrap_or_default();
        (self.is_whole() || !self.is_maker(prefix)) && vendors::canonical(prefix) == provider
    }

    /// Returns the entry's settings for the host, without the settings of its model.
    fn host(&self) -> Self {
        let entry = self.clone();
        Self {
            api_base: entry.api_base,
            api_key: entry.api_key,
            api_keys: entry.api_keys,
            headers: entry.headers,
            request_timeout: entry.request_timeout,
            proxy: entry.proxy,
            ..Self::default()
        }
    }
}

/// Common variables for keys of search engines.
const SEARCH_VARIABLES: [&str; 3] = ["TAVILY_API_KEY", "BRAVE_API_KEY", "SERPER_API_KEY"];

/// Changes the kind of an error about a name in a configuration.
pub(super) fn in_config(mut e: Error) -> Error {
    e.kind = Kind::Config;
    e
}

fn without_provider(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, model)| model)
}

/// Returns the name that is `typed` after its provider, if only one is.
///
/// # Errors
/// Returns an error with the nearest names. Kind `Usage`; callers that read the name from a file change it.
pub(crate) fn find_bare<'a>(typed: &str, known: &[&'a str]) -> Result<&'a str> {
    let is_same = |name: &str| name.contains('/') && without_provider(name) == typed;
    let mut found = known.iter().filter(|name| is_same(name));
    match found.next() {
        Some(first) if found.all(|other| other == first) => Ok(first),
        _ => Err(unknown(typed, known)),
    }
}

/// Creates the error for a name, with one that has the same model, that is similar, or that has a similar provider.
fn unknown(typed: &str, known: &[&str]) -> Error {
    // The default model is a known name, also if nothing answers to it.
    let others = || known.iter().filter(|name| **name != typed);
    let find = |fits: &dyn Fn(&str) -> bool| others().find(|name| fits(name));
    let same = find(&|name| without_provider(name) == typed);
    let known_near =
        same.or_else(|| find(&|name| nearest(typed, [name, without_provider(name)]).is_some()));
    let provider = typed.split('/').next().unwrap_or_default();
    let vendor = || nearest(provider, VENDORS.iter().map(|vendor| vendor.name));
    let other = || vendor().map(|vendor| shown(&typed.replacen(provider, vendor, 1)));
    let near = known_near.map(|name| shown(name)).or_else(other);
    let error = not_found_near("model", &shown(typed), near.as_deref(), "bantam models");
    if near.is_none() && known.is_empty() {
        return error.hint("use provider/model, such as `openai/gpt-5-mini`");
    }
    error
}

impl Config {
    /// Returns the configured model, or else the model of the first vendor whose key is set. `None` leaves a local server or
    /// the demo, which need no configuration.
    pub(crate) fn choose_model(&self, env: &Env) -> Result<Option<Model>> {
        let has_key = |v: &&Vendor| v.set_key(env).is_some() && !v.prefer.is_empty();
        let wanted = self.agents.defaults.model_name.trim();
        if !wanted.is_empty() {
            let model = self.named(wanted, env);
            let explain = |e: Error| in_config(e).doing("agents.defaults.model_name");
            model.map(Some).map_err(explain)
        } else if let Some(entry) = self.model_list.first() {
            self.resolve(entry.clone(), &entry.model, env).map(Some)
        } else if let Some(vendor) = VENDORS.iter().find(has_key) {
            self.named(vendor.name, env).map(Some)
        } else if self.has_file {
            let error = Error::config("no model is configured, and no API key was found");
            Err(error.hint(
                "run `bantam onboard`, or export OPENROUTER_API_KEY=... (or another provider's)",
            ))
        } else {
            Ok(None)
        }
    }

    /// Returns the model of a name. This is the only choice of a model by its name, and asks no host.
    ///
    /// # Errors
    /// Returns an error of the kind `Usage` for an unknown name, and of the kind `Config` for a model that cannot be used.
    pub(crate) fn named(&self, name: &str, env: &Env) -> Result<Model> {
        let name = self.whole_name(name)?;
        let (entry, model) = self.entry(name).ok_or_else(|| unknown(name, &[]))?;
        self.resolve(entry, &model, env)
    }

    /// Returns the whole name of a model that is typed whole, or without its provider if the settings name one such model.
    pub(crate) fn whole_name<'a>(&'a self, typed: &'a str) -> Result<&'a str> {
        let name = typed.trim();
        if self.entry(name).is_some() {
            return Ok(name);
        }
        let models = self.model_list.iter().map(|entry| entry.model.as_str());
        let known: Vec<&str> = self.names().into_iter().chain(models).collect();
        find_bare(name, &known)
    }

    /// Returns the entry for a whole name, and the model to request there.
    fn entry(&self, name: &str) -> Option<(ModelEntry, String)> {
        let mut listed = self.model_list.iter();
        let find = |fits: &dyn Fn(&&ModelEntry) -> bool| listed.clone().find(fits).cloned();
        let of_list = find(&|e| e.model_name == name).or_else(|| find(&|e| e.model == name));
        if let Some(entry) = of_list {
            let model = entry.model.clone();
            return Some((entry, model));
        }
        let provider = vendors::canonical(name.split('/').next().unwrap_or_default());
        let whole = find(&|e| e.is_whole() && e.is_of(&provider));
        // If an entry leads to the user's own gateway, all requests to its provider do.
        let host = || listed.find(|e| e.is_of(&provider)).map(ModelEntry::host);
        let known = || vendors::find(&provider).map(|_| ModelEntry::default());
        let entry = whole.or_else(host).or_else(known)?;
        Some((entry, name.to_owned()))
    }

    /// Returns the other models of the list with the name of this one, which share its load.
    pub(crate) fn same_name(&self, model: &Model, env: &Env) -> Vec<Model> {
        let name = &model.entry.model_name;
        let is_same = |entry: &&ModelEntry| !name.is_empty() && entry.model_name == *name;
        let others = self.model_list.iter().filter(is_same).skip(1);
        let others = others.map(|entry| self.resolve(entry.clone(), &entry.model, env));
        others.flatten().collect()
    }

    /// Returns a model of each entry that can be used, and of each vendor whose key is set.
    pub(crate) fn models(&self, env: &Env) -> Vec<Model> {
        let entries = self.model_list.iter();
        let listed = entries.map(|entry| self.resolve(entry.clone(), &entry.model, env));
        let has_key = |v: &&Vendor| v.set_key(env).is_some() && !v.base.is_empty();
        let vendors = VENDORS.iter().filter(has_key);
        let vendors = vendors.map(|vendor| self.named(vendor.name, env));
        let chosen = self.choose_model(env).transpose();
        listed.chain(vendors).chain(chosen).flatten().collect()
    }

    /// Returns the first error of the chosen model and of the list that further settings can mend.
    pub(crate) fn incomplete(&self, env: &Env) -> Option<Error> {
        let error = |entry: &ModelEntry| self.resolve(entry.clone(), &entry.model, env).err();
        let chosen = self.choose_model(env).err();
        chosen.or_else(|| self.model_list.iter().find_map(error))
    }

    /// Returns the names of the single models in the settings.
    pub(crate) fn names<'a>(&'a self) -> Vec<&'a str> {
        let name = |entry: &'a ModelEntry| match entry.model_name.as_str() {
            "" => entry.model.as_str(),
            name => name,
        };
        let defaults = &self.agents.defaults;
        let mut names: Vec<&str> = self.model_list.iter().map(name).collect();
        let used = std::iter::once(&defaults.model_name).chain(&defaults.model_fallbacks);
        let used = used.map(|name| name.trim());
        names.extend(used.filter(|name| name.contains('/')));
        let mut known = BTreeSet::new();
        names.retain(|name| !name.is_empty() && !name.ends_with("/*") && known.insert(*name));
        names
    }

    /// Combines `model` with the settings of `entry`.
    fn resolve(&self, mut entry: ModelEntry, model: &str, env: &Env) -> Result<Model> {
        let own_base = entry.api_base.trim();
        let (prefix, rest) = model.split_once('/').unwrap_or((model, ""));
        let vendor = entry.vendor_of(model);
        let protocol = vendor.map_or(Protocol::OpenAi, |v| v.protocol);
        let provider = vendor.map_or(prefix, |v| v.name);
        // At an own address, an unknown prefix is part of the model's name, except for entries of a whole provider.
        let is_bare = vendor.is_none() && !own_base.is_empty() && !entry.is_whole();
        let id = match protocol {
            Protocol::Demo => "demo",
            _ if is_bare => model,
            _ => rest.trim_end_matches('*'),
        };
        let name = match id {
            "" => provider.to_owned(),
            id if is_bare => id.to_owned(),
            id => format!("{provider}/{id}"),
        };
        let (from, base) = match vendor {
            Some(vendor) if own_base.is_empty() => ("OLLAMA_HOST", vendors::base(vendor, env)),
            _ => ("api_base", own_base.to_owned()),
        };
        check_base(from, &base)?;
        if base.is_empty() && protocol != Protocol::Demo {
            let model = shown(model);
            let provider = format!("a provider (openai/{model}) or ");
            let provider = if model.contains('/') { "" } else { &provider };
            let error = Error::config(format!("\"{model}\" needs {provider}an api_base"));
            return Err(error.hint("set its \"model\" or \"api_base\" in config.json's model_list"));
        }
        let keys = keys(&entry, vendor.and_then(|v| v.set_key(env)));
        let key_env = vendor.map_or("", Vendor::key_env);
        if keys.is_empty() && !key_env.is_empty() && own_base.is_empty() {
            let error = Error::config(format!("no API key for {}", shown(&name)));
            return Err(error.hint(format!("export {key_env}=..., or run `bantam onboard`")));
        }
        let defaults = &self.agents.defaults;
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
        let entries = self.model_list.iter();
        let listed = entries.flat_map(|entry| entry.keys().chain(entry.headers.values()));
        let (telegram, http) = (&self.channels.telegram, &self.channels.http);
        let search = &self.tools.web.search;
        let other = [&telegram.token, &http.token, &search.api_key];
        let written = listed.chain(other);
        let known = written.filter_map(|written| keys::known(written, env));
        let variables = VENDORS.iter().flat_map(|vendor| vendor.keys);
        let variables = variables.chain(&SEARCH_VARIABLES);
        let variables = variables.filter_map(|name| env.get(*name));
        let servers = self.mcp_servers.values();
        known
            .chain(variables.map(|key| Secret::new(key.trim())))
            .chain(servers.flat_map(|server| server.secrets(env)))
            .collect()
    }
}

/// Checks the address in the setting or variable `from`. It may contain a password, so it is repeated only without one.
pub(crate) fn check_base(from: &str, base: &str) -> Result<()> {
    const FORM: &str = "write http://HOST:PORT/v1";
    let error = |what: &str, hint: &str| Err(Error::config(format!("{from} {what}")).hint(hint));
    match base.split_once("://") {
        _ if base.is_empty() => Ok(()),
        Some(("http" | "https", rest)) if !is_address(rest) => {
            error("is not a valid address", FORM)
        }
        Some(("http", _)) if !ssrf::is_private(&host(base)) => error(
            "is http:// to a public host: others could read the key and the conversation",
            "write https://; or reach it by a private address, through a VPN or an ssh tunnel",
        ),
        Some(("http" | "https", _)) => Ok(()),
        Some(_) => error("must begin with http:// or https://", FORM),
        None if base.contains('@') => error("has no scheme", "put https:// in front of it"),
        None => error("has no scheme", &format!("write http://{base}")),
    }
}

/// Whether the rest of a URL after the scheme begins with a host and an optional port.
pub(super) fn is_address(rest: &str) -> bool {
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
    for key in entry.keys() {
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
        let azure = env(&[("AZURE_OPENAI_API_KEY", "k")]);
        for keys in [env(&[]), azure] {
            let error = config("{}").choose_model(&keys).err().unwrap();
            assert!(error.message.contains("no model is configured"), "{error}");
            assert!(Config::default().choose_model(&keys).unwrap().is_none());
        }
    }

    /// Entries of each kind: `mine` with a maker's name, a provider's model with a name, an unknown provider's model, the whole
    /// of two providers.
    const LIST: &str = r#"{"agents":{"defaults":{"model_name":"box/qwen3-30b","model_fallbacks":["groq/llama"]}},"model_list":[
        {"model_name":"mine","model":"Qwen/Qwen3-8B","api_base":"http://mine"},
        {"model_name":"fast","model":"openai/gpt-5-mini","api_base":"http://gateway","api_key":"k","context_window":9},
        {"model":"acme/x/y","api_base":"http://acme"},
        {"model":"box/*","api_base":"http://box"},
        {"model":"glm/*","api_key":"k"}]}"#;

    #[test]
    fn a_name_is_an_entrys_or_a_providers_or_a_bare_one_that_one_has() {
        let keys = env(&[
            ("DASHSCOPE_API_KEY", "k"),
            ("OPENROUTER_API_KEY", "k"),
            ("GROQ_API_KEY", "k"),
        ]);
        let zhipu = "https://open.bigmodel.cn/api/paas/v4";
        for (typed, name, id, base) in [
            // An entry's own name, or its model.
            ("mine", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "http://mine"),
            ("fast", "openai/gpt-5-mini", "gpt-5-mini", "http://gateway"),
            ("acme/x/y", "acme/x/y", "acme/x/y", "http://acme"),
            // A provider's model, at the address of its first entry.
            ("box/a/b", "box/a/b", "a/b", "http://box"),
            ("acme/z", "acme/z", "acme/z", "http://acme"),
            ("openai/z", "openai/z", "z", "http://gateway"),
            ("zhipu/x/y", "zhipu/x/y", "x/y", zhipu),
            (
                "openrouter/meta/llama:free",
                "openrouter/meta/llama:free",
                "meta/llama:free",
                "https://openrouter.ai/api/v1",
            ),
            (
                "qwen/plus",
                "qwen/plus",
                "plus",
                "https://dashscope.aliyuncs.com/compatible-mode/v1",
            ),
            // A provider, which has a default.
            ("glm", "zhipu", "", zhipu),
            ("box/*", "box", "", "http://box"),
            // A bare name that one model of the settings has.
            (" qwen3-30b ", "box/qwen3-30b", "qwen3-30b", "http://box"),
            (
                "gpt-5-mini",
                "openai/gpt-5-mini",
                "gpt-5-mini",
                "http://gateway",
            ),
            ("Qwen3-8B", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "http://mine"),
            (
                "llama",
                "groq/llama",
                "llama",
                "https://api.groq.com/openai/v1",
            ),
        ] {
            let model = config(LIST).named(typed, &keys).unwrap();
            let found = (&*model.name, &*model.id, &*model.base);
            assert_eq!(found, (name, id, base), "{typed}");
            assert_eq!(model.is_default, id.is_empty(), "{typed}");
        }
        // The settings of a model are for no other model of its provider.
        assert_eq!(
            config(LIST)
                .named("openai/z", &keys)
                .unwrap()
                .entry
                .context_window,
            0
        );
        let names = ["mine", "fast", "acme/x/y", "box/qwen3-30b", "groq/llama"];
        assert_eq!(config(LIST).names(), names);
    }

    #[test]
    fn an_address_needs_a_scheme() {
        let bases = "http://10.0.0.7:8080/v1 http://nas/v1 http://pi.local/v1 http://h/a:b \
            http://[::1]:8080/v1 https://models.example.com/v1 https://me:hush@h";
        for base in bases.split_whitespace() {
            assert!(check_base("api_base", base).is_ok(), "{base}");
        }
        for base in ["me:hush@h", "http://h:x", "https:///v1"] {
            let error = check_base("api_base", base).unwrap_err();
            assert!(!error.message.contains("hush"), "{error}");
        }
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
}
