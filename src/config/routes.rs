//! Which vendor serves a model, for programs that keep keys apart from models.
//!
//! picoclaw 0, nanobot and `SmartBot` have `providers`, each with a key, and a bare model name. Each of them finds the
//! provider in its own way; the order here is what they have in common.

use serde_json::{Map, Value, json};

use super::foreign::{filled, find, take};
use super::vendors;

/// What models are called that only one vendor makes: a name that begins so is theirs.
const MAKERS: [(&str, &str); 15] = [
    ("claude", "anthropic"),
    ("gpt", "openai"),
    ("o1", "openai"),
    ("o3", "openai"),
    ("o4", "openai"),
    ("deepseek", "deepseek"),
    ("glm", "zhipu"),
    ("kimi", "moonshot"),
    ("moonshot", "moonshot"),
    ("qwen", "qwen"),
    ("gemini", "gemini"),
    ("grok", "xai"),
    ("mistral", "mistral"),
    ("codestral", "mistral"),
    ("magistral", "mistral"),
];

/// The way from a bare name to a vendor.
pub struct Routes {
    /// Entries for the model list, one for each provider for which something is set.
    pub entries: Vec<Entry>,
    /// Vendors with a key of their own.
    keyed: Vec<String>,
    /// Vendors with an address and no key.
    open: Vec<String>,
    /// The provider that the file names for everything.
    fixed: Option<String>,
    /// Names that need no way: they are in the model list.
    listed: Vec<String>,
}

/// A provider as an entry of the model list.
pub struct Entry {
    /// What the file calls the provider.
    pub name: String,
    pub value: Value,
    /// For each field of `value`, the provider's.
    pub fields: Vec<(&'static str, String)>,
}

impl Routes {
    pub fn new(providers: Value, fixed: Option<&Value>, listed: Vec<String>) -> Self {
        let fixed = fixed.and_then(Value::as_str).filter(|name| !matches!(*name, "" | "auto")).map(vendors::canonical);
        let mut routes = Self { entries: Vec::new(), keyed: Vec::new(), open: Vec::new(), fixed, listed };
        let Value::Object(providers) = providers else { return routes };
        for (name, mut provider) in providers {
            let vendor = vendors::canonical(&name);
            let Some((value, fields)) = entry(&vendor, &mut provider) else { continue };
            let has_key = value.get("api_key").or_else(|| value.get("api_keys")).is_some();
            let needs_none = vendors::find(&vendor).is_none_or(|v| v.key_env.is_empty());
            if has_key {
                routes.keyed.push(vendor);
            } else if needs_none && value.get("api_base").is_some() {
                routes.open.push(vendor);
            }
            routes.entries.push(Entry { name, value, fields });
        }
        // A gateway serves every model, so it is asked first for one that nobody else claims.
        let (mut keyed, others): (Vec<_>, Vec<_>) = routes.keyed.into_iter().partition(|vendor| vendor == "openrouter");
        keyed.extend(others);
        routes.keyed = keyed;
        routes
    }

    /// The name by which [`super::Config::named`] finds the model.
    pub fn name(&self, model: Value) -> Value {
        match model.as_str() {
            Some(name) => self.way(name.trim()).into(),
            None => model,
        }
    }

    fn way(&self, name: &str) -> String {
        let is_vendor = self.entries.is_empty() && vendors::find(name).is_some();
        if name.is_empty() || is_vendor || self.listed.iter().any(|listed| listed == name) {
            return name.to_owned();
        }
        let (prefix, rest) = match name.split_once('/') {
            Some((prefix, rest)) => (vendors::canonical(prefix), rest),
            None => (String::new(), name),
        };
        if let Some(vendor) = &self.fixed {
            return if *vendor == prefix { format!("{vendor}/{rest}") } else { format!("{vendor}/{name}") };
        }
        let usable = |vendor: &String| self.keyed.contains(vendor) || self.open.contains(vendor);
        if usable(&prefix) {
            return format!("{prefix}/{rest}");
        }
        let lower = rest.to_ascii_lowercase();
        let maker = MAKERS.iter().find(|(word, _)| lower.starts_with(word)).map(|(_, vendor)| (*vendor).to_owned());
        match maker.as_ref().filter(|vendor| usable(vendor)).or(self.keyed.first()).or(self.open.first()) {
            // A vendor's own model goes by its own name, a gateway wants the whole of it.
            Some(vendor) if maker.as_ref() == Some(vendor) => format!("{vendor}/{rest}"),
            Some(vendor) => format!("{vendor}/{name}"),
            None if prefix.is_empty() => maker.map_or(name.to_owned(), |vendor| format!("{vendor}/{name}")),
            None => format!("{prefix}/{rest}"),
        }
    }
}

/// The entry of the list that serves every model of a provider, and where its fields come from. `None` when nothing is
/// set for it.
fn entry(vendor: &str, provider: &mut Value) -> Option<(Value, Vec<(&'static str, String)>)> {
    let (mut entry, mut fields) = (Map::new(), Vec::new());
    for (theirs, ours) in [
        ("api_key", "api_key"),
        ("api_keys", "api_keys"),
        ("api_base", "api_base"),
        ("base_url", "api_base"),
        ("proxy", "proxy"),
        ("extra_headers", "headers"),
        ("extra_body", "extra_body"),
        ("request_timeout", "request_timeout"),
    ] {
        let found = take(provider, theirs).filter(|(_, value)| filled(value) && value.as_u64() != Some(0));
        if let Some((mut written, value)) = found {
            entry.insert(ours.to_owned(), value);
            fields.extend(written.pop().map(|written| (ours, written)));
        }
    }
    if entry.is_empty() {
        return None;
    }
    entry.insert("model".to_owned(), json!(format!("{vendor}/*")));
    Some((Value::Object(entry), fields))
}

/// An entry of picoclaw's model list: the provider stands in front of the model, and 0 means nothing in particular.
pub fn tidy(entry: &mut Value) {
    if let Some((_, Value::String(provider))) = take(entry, "provider").filter(|(_, provider)| filled(provider)) {
        if let Some(Value::String(model)) = find(entry, "model") {
            let provider = vendors::canonical(&provider);
            let prefix = model.split_once('/').map(|(prefix, _)| vendors::canonical(prefix));
            if prefix.as_ref() != Some(&provider) {
                *model = format!("{provider}/{model}");
            }
        }
    }
    for name in ["request_timeout", "max_tokens", "context_window"] {
        if let Some(value) = find(entry, name).filter(|value| value.as_u64() == Some(0)) {
            *value = Value::Null;
        }
    }
    if let Some((_, headers)) = take(entry, "custom_headers") {
        if let (Value::Object(fields), true) = (entry, headers.is_object()) {
            fields.entry("headers").or_insert(headers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_finds_the_vendor_whose_key_is_there() {
        let routes =
            |providers: Value, fixed: Option<&str>| Routes::new(providers, fixed.map(Value::from).as_ref(), Vec::new());
        let key = json!({"api_key": "k"});
        let both = json!({"openrouter": key, "zhipu": key, "groq": {"api_key": ""}});
        for (providers, fixed, model, way) in [
            // The provider that the file names, whatever the model is called.
            (both.clone(), Some("zhipu"), "glm-4.7", "zhipu/glm-4.7"),
            (both.clone(), Some("openrouter"), "anthropic/claude-x", "openrouter/anthropic/claude-x"),
            (json!({"vllm": {"api_base": "http://h"}}), Some("vllm"), "meta/llama", "vllm/meta/llama"),
            // The prefix, when it has a key; else who makes it; else the gateway.
            (both.clone(), None, "glm/glm-4.7", "zhipu/glm-4.7"),
            (both.clone(), None, "glm-4.7", "zhipu/glm-4.7"),
            (both.clone(), None, "anthropic/claude-x", "openrouter/anthropic/claude-x"),
            (both.clone(), None, "groq/llama", "openrouter/groq/llama"),
            // Somebody else's key serves as well as none.
            (json!({"siliconflow": {"api_key": "k", "api_base": "http://h"}}), None, "a/b", "siliconflow/a/b"),
            (json!({"custom": {"api_base": "http://h"}}), None, "a/b", "custom/a/b"),
            (json!({"openai": {"api_key": "sk-xxx"}}), None, "claude/claude-x", "anthropic/claude-x"),
            (json!({}), None, "claude-x", "anthropic/claude-x"),
            (json!({}), None, "strange", "strange"),
        ] {
            assert_eq!(routes(providers, fixed).name(model.into()), way, "{model}");
        }
        let listed = Routes::new(Value::Null, None, vec!["gpt4".to_owned()]);
        assert_eq!(listed.name("gpt4".into()), "gpt4");
        assert_eq!(listed.name("x/y".into()), "x/y");
    }
}
