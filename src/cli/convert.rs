//! Converts the configuration of picoclaw, nanobot or `SmartBot` into our own shape, for `bantam onboard --import`.
//!
//! A table says where they keep what we keep. Models and MCP servers need more than a table. What is still
//! in the file after that is reported. Settings that open this machine to the model are taken over only if the user allows it.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::config::settings::{SETTINGS, same_name};
use crate::config::vendors;

type Change = fn(&Value) -> Value;

/// Their path, our path, and how the value changes. The first that fits wins.
const TABLE: &[(&str, &str, Change)] = &[
    // SmartBot has the agent's settings on top.
    ("workspace", "agents.defaults.workspace", Value::clone),
    ("max_tool_iterations", "agents.defaults.max_tool_iterations", Value::clone),
    ("max_tokens", "agents.defaults.max_tokens", Value::clone),
    ("temperature", "agents.defaults.temperature", Value::clone),
    ("tools.web_search.api_key", "tools.web.search.api_key", Value::clone),
    ("tools.web_search.max_results", "tools.web.search.max_results", Value::clone),
    // nanobot
    ("agents.defaults.context_window_tokens", "agents.defaults.context_window", Value::clone),
    ("channels.telegram.group_policy", "channels.telegram.group_trigger", group_trigger),
    ("tools.exec.enable", "tools.exec.enabled", Value::clone),
    ("tools.restrict_to_workspace", "agents.defaults.restrict_to_workspace", Value::clone),
    ("gateway.heartbeat.enabled", "heartbeat.enabled", Value::clone),
    ("gateway.heartbeat.interval_s", "heartbeat.interval_minutes", minutes),
    // picoclaw
    ("agents.defaults.max_llm_retries", "agents.defaults.max_retries", Value::clone),
    ("agents.defaults.llm_retry_backoff_secs", "agents.defaults.retry_initial_delay", Value::clone),
    ("agents.defaults.summarize_token_percent", "session.compact_at", share),
    ("channels.telegram.allow_from", "channels.telegram.allow_from", ids),
    ("channels.telegram.base_url", "channels.telegram.api_base", Value::clone),
    ("channels.telegram.group_trigger.mention_only", "channels.telegram.group_trigger", group_trigger),
    ("channels.telegram.streaming.enabled", "channels.telegram.streaming", Value::clone),
    ("tools.allow_read_paths", "tools.read_paths", Value::clone),
    ("tools.allow_write_paths", "tools.write_paths", Value::clone),
    ("tools.exec.timeout_seconds", "tools.exec.timeout", Value::clone),
    ("tools.web.fetch_limit_bytes", "tools.web.fetch.max_chars", Value::clone),
    ("heartbeat.interval", "heartbeat.interval_minutes", Value::clone),
    ("gateway.log_level", "log.level", Value::clone),
];

/// What opens this machine to the model.
const ASKED: [&str; 9] = [
    "agents.defaults.restrict_to_workspace",
    "tools.read_paths",
    "tools.write_paths",
    "tools.exec.sandbox",
    "tools.exec.network",
    "tools.exec.pass_env",
    "tools.web.fetch.allow_private",
    "mcpServers.*.read",
    "mcpServers.*.write",
];

pub(super) struct Converted {
    /// In our shape; what has its default is left out.
    pub config: Value,
    /// Their paths that bantam does not know.
    pub unknown: Vec<String>,
    /// Settings that are taken over only if they are allowed, with their values.
    pub refused: Vec<String>,
    /// Settings that make no sense here: the other program's workspace, servers in it, what it has encrypted.
    pub useless: Vec<String>,
}

/// Converts a parsed config.json. No MCP server that refers to `old_home` is taken over, and of what a first conversion has
/// refused, only what is `allowed`.
pub(super) fn convert(theirs: Value, old_home: Option<&Path>, allowed: &[String]) -> Converted {
    let (refused, useless) = (Vec::new(), Vec::new());
    let mut conversion = Conversion { theirs, ours: json!({}), allowed, refused, useless };
    conversion.telegram();
    for (from, to, change) in TABLE {
        conversion.move_value(from, to, *change);
    }
    for setting in SETTINGS.iter().filter(|setting| setting.env_name().is_some()) {
        if !setting.path.starts_with("agents.defaults.model_") {
            conversion.move_value(setting.path, setting.path, Value::clone);
        }
    }
    conversion.servers(old_home);
    conversion.models();
    let mut unknown = Vec::new();
    leftovers(&conversion.theirs, &mut Vec::new(), &mut unknown);
    Converted { config: conversion.ours, unknown, refused: conversion.refused, useless: conversion.useless }
}

struct Conversion<'a> {
    /// What is taken becomes null.
    theirs: Value,
    ours: Value,
    allowed: &'a [String],
    refused: Vec<String>,
    useless: Vec<String>,
}

impl Conversion<'_> {
    /// Whether a setting must not be taken over.
    fn refuses(&mut self, setting: &str, shown: &str, value: &Value) -> bool {
        let is_encrypted = refers(value, &["enc:"]);
        if !is_encrypted && !ASKED.contains(&setting) && !refers(value, &["cmd:", "file:"]) {
            return false;
        }
        let shown = format!("{shown} = {value}");
        if is_encrypted {
            self.useless.push(shown);
        } else if self.allowed.contains(&shown) {
            return false;
        } else {
            self.refused.push(shown);
        }
        true
    }

    fn take(&mut self, path: &str) -> Value {
        find(&mut self.theirs, path).map(Value::take).unwrap_or_default()
    }

    fn move_value(&mut self, from: &str, to: &str, change: Change) {
        let setting = SETTINGS.iter().find(|setting| setting.path == to);
        let (Some(setting), Some(found)) = (setting, find(&mut self.theirs, from)) else { return };
        let Some(value) = setting.check(&change(found)).filter(|_| is_filled(found)) else { return };
        *found = Value::Null;
        if value == setting.default() {
            return;
        }
        if to == "agents.defaults.workspace" {
            self.useless.push(format!("{to} = {value}"));
        } else if !self.refuses(to, to, &value) {
            self.put(to, value);
        }
    }

    /// Sets a value unless there is one.
    fn put(&mut self, path: &str, value: Value) {
        let slot = path.split('.').fold(&mut self.ours, |at, name| &mut at[name]);
        if slot.is_null() {
            *slot = value;
        }
    }

    /// picoclaw 3 has another name for channels, and keeps a channel's own settings one level down.
    fn telegram(&mut self) {
        let channel = self.take("channel_list.telegram");
        if channel.is_object() && self.theirs.get("channels").is_none() {
            self.theirs["channels"]["telegram"] = channel;
        }
        let settings = self.take("channels.telegram.settings");
        let channel = find(&mut self.theirs, "channels.telegram").and_then(Value::as_object_mut);
        if let (Value::Object(settings), Some(channel)) = (settings, channel) {
            channel.extend(settings);
        }
    }

    fn servers(&mut self, old_home: Option<&Path>) {
        let mut picoclaw = self.take("tools.mcp");
        let mut places = vec![self.take("mcpServers"), self.take("tools.mcp_servers")];
        if is_enabled(&mut picoclaw) {
            places.extend(find(&mut picoclaw, "servers").map(Value::take));
        }
        let is_old = |server: &Value| old_home.is_some_and(|dir| server.to_string().contains(&*dir.to_string_lossy()));
        for (name, mut server) in places.into_iter().filter_map(object).flatten() {
            if is_old(&server) {
                self.useless.push(format!("mcpServers.{name} (it uses the old home)"));
            } else if is_enabled(&mut server) {
                let server = self.entry(&mut server, "mcpServers.*.", &format!("mcpServers.{name}"));
                self.ours["mcpServers"][name] = Value::Object(server);
            }
        }
    }

    /// The settings of an entry of a list or a map. `shown` is its path, for messages.
    fn entry(&mut self, theirs: &mut Value, pattern: &str, shown: &str) -> Map<String, Value> {
        let mut ours = json!({});
        for setting in SETTINGS {
            let Some(path) = setting.path.strip_prefix(pattern) else { continue };
            let Some(value) = find(theirs, path).filter(|value| is_filled(value)).map(Value::take) else { continue };
            let Some(value) = setting.check(&value).filter(|value| *value != setting.default()) else { continue };
            if !self.refuses(setting.path, &format!("{shown}.{path}"), &value) {
                *path.split('.').fold(&mut ours, |at, name| &mut at[name]) = value;
            }
        }
        object(ours).unwrap_or_default()
    }

    /// The model list, the providers' keys, and the names of the models that answer.
    fn models(&mut self) {
        let mut list = Vec::new();
        let entries = find(&mut self.theirs, "model_list").and_then(Value::as_array_mut).map(std::mem::take);
        for mut theirs in entries.unwrap_or_default().into_iter().filter_map(|mut e| is_enabled(&mut e).then_some(e)) {
            rename(&mut theirs, "custom_headers", "headers");
            let mut ours = self.entry(&mut theirs, "model_list[].", &format!("model_list.{}", list.len()));
            let provider = find(&mut theirs, "provider").and_then(|name| name.as_str()).filter(|name| !name.is_empty());
            if let (Some(provider), Some(model)) = (provider, ours.get("model").and_then(Value::as_str)) {
                ours.insert("model".to_owned(), with_vendor(&vendors::canonical(provider), model).into());
            }
            list.push(ours);
        }
        let listed: Vec<String> =
            list.iter().flat_map(|e| [e.get("model_name"), e.get("model")]).flatten().filter_map(text).collect();
        let mut providers = Vec::new();
        for (name, mut theirs) in object(self.take("providers")).unwrap_or_default() {
            rename(&mut theirs, "extra_headers", "headers");
            rename(&mut theirs, "base_url", "api_base");
            let mut ours = self.entry(&mut theirs, "model_list[].", &format!("providers.{name}"));
            let vendor = vendors::canonical(&name);
            let needs_key = vendors::find(&vendor).is_some_and(|vendor| !vendor.key_env.is_empty());
            if ours.contains_key("api_key") || (ours.contains_key("api_base") && !needs_key) {
                ours.insert("model".to_owned(), format!("{vendor}/*").into());
                providers.push(vendor);
                list.push(ours);
            }
        }
        if !list.is_empty() {
            self.ours["model_list"] = list.into_iter().map(Value::Object).collect();
        }

        let fixed = [self.take("agents.defaults.provider"), self.take("provider")];
        let fixed = fixed.iter().filter_map(text).find(|name| name != "auto").map(|name| vendors::canonical(&name));
        let name = |name: String| {
            let is_listed = listed.contains(&name);
            if is_listed { name } else { routed(&name, fixed.as_deref(), &providers) }
        };
        let models = ["agents.defaults.model_name", "agents.defaults.model", "model"].map(|path| self.take(path));
        if let Some(model) = models.iter().find_map(text) {
            self.put("agents.defaults.model_name", name(model).into());
        }
        let fallbacks =
            ["model_fallbacks", "fallback_models"].map(|name| self.take(&format!("agents.defaults.{name}")));
        let fallbacks = fallbacks.iter().filter_map(Value::as_array).flatten();
        let fallbacks: Vec<String> = fallbacks.filter_map(text).map(name).collect();
        if !fallbacks.is_empty() {
            self.put("agents.defaults.model_fallbacks", fallbacks.into());
        }
    }
}

/// `vendor/model` for a bare model name: the fixed provider, else the one that the name begins with, else the maker of the
/// model, else a gateway for all models.
fn routed(name: &str, fixed: Option<&str>, providers: &[String]) -> String {
    let is_provider = |vendor: &str| providers.iter().any(|provider| provider == vendor);
    let prefix = name.split_once('/').map(|(prefix, _)| vendors::canonical(prefix));
    let maker = vendors::by_model(name.rsplit('/').next().unwrap_or(name)).map(|vendor| vendor.name);
    if let Some(vendor) = fixed {
        return with_vendor(vendor, name);
    }
    if let Some(vendor) = prefix.as_deref().filter(|vendor| is_provider(vendor)) {
        return with_vendor(vendor, name);
    }
    if let Some(vendor) = maker.filter(|vendor| is_provider(vendor)) {
        return format!("{vendor}/{}", name.rsplit('/').next().unwrap_or(name));
    }
    let gateway = if is_provider("openrouter") { Some("openrouter") } else { providers.first().map(String::as_str) };
    match gateway {
        Some(vendor) => format!("{vendor}/{name}"),
        None if prefix.is_some() => name.to_owned(),
        None => maker.map_or(name.to_owned(), |vendor| format!("{vendor}/{name}")),
    }
}

/// The model with the vendor in front, once.
fn with_vendor(vendor: &str, model: &str) -> String {
    match model.split_once('/') {
        Some((prefix, rest)) if vendors::canonical(prefix) == vendor => format!("{vendor}/{rest}"),
        _ => format!("{vendor}/{model}"),
    }
}

/// The value at a path, in any spelling.
fn find<'a>(tree: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(tree, |at, name| {
        at.as_object_mut()?.iter_mut().find(|(key, _)| same_name(key, name)).map(|(_, value)| value)
    })
}

fn rename(entry: &mut Value, from: &str, to: &str) {
    let value = find(entry, from).map(Value::take).filter(is_filled);
    if let (Some(value), Some(entry)) = (value, entry.as_object_mut()) {
        entry.insert(to.to_owned(), value);
    }
}

fn object(value: Value) -> Option<Map<String, Value>> {
    if let Value::Object(object) = value { Some(object) } else { None }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
}

fn is_enabled(entry: &mut Value) -> bool {
    let says =
        |entry: &mut Value, name: &str, value: bool| find(entry, name).is_some_and(|found| *found == json!(value));
    entry.is_object() && !says(entry, "enabled", false) && !says(entry, "disabled", true)
}

/// Neither empty nor what an example file has in a key's place.
fn is_filled(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.trim().is_empty() && !text.starts_with("YOUR_") && !text.ends_with("xxx"),
        Value::Array(items) => items.iter().any(is_filled),
        Value::Object(object) => !object.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

/// Whether a key refers to something else: a command, a file, what the other program encrypted.
fn refers(value: &Value, schemes: &[&str]) -> bool {
    let keys = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let mut keys = keys.iter().filter_map(Value::as_str);
    keys.any(|key| schemes.iter().any(|scheme| key.trim().starts_with(scheme)))
}

fn minutes(seconds: &Value) -> Value {
    seconds.as_u64().map_or(Value::Null, |seconds| json!(seconds.div_ceil(60)))
}

fn share(percent: &Value) -> Value {
    percent.as_f64().map_or(Value::Null, |percent| json!(percent / 100.0))
}

/// nanobot's `open`, or picoclaw's `mention_only`.
fn group_trigger(value: &Value) -> Value {
    if *value == json!("open") || *value == json!(false) { "all".into() } else { "mention".into() }
}

/// nanobot takes `ID|name`; a name may change hands, an id may not.
fn ids(value: &Value) -> Value {
    let id = |item: &Value| item.as_str().map_or(item.clone(), |text| text.split('|').next().into());
    value.as_array().map_or_else(|| value.clone(), |items| items.iter().map(id).collect())
}

/// Adds the paths of all that is set and not taken, as deep as our own settings go.
fn leftovers(value: &Value, path: &mut Vec<String>, found: &mut Vec<String>) {
    let mut copy = value.clone();
    if !is_filled(value)
        || *value == json!(false)
        || *value == json!(0)
        || (value.is_object() && !is_enabled(&mut copy))
    {
        return;
    }
    let is_section = SETTINGS.iter().any(|setting| {
        let segments = setting.segments();
        segments.len() > path.len() && segments.iter().zip(path.iter()).all(|(segment, name)| same_name(segment, name))
    });
    match value {
        Value::Object(object) if is_section => {
            for (name, value) in object {
                path.push(name.clone());
                leftovers(value, path, found);
                path.pop();
            }
        }
        _ => found.push(path.join(".")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Env};

    fn converted(text: &str) -> Converted {
        convert(serde_json::from_str(text).unwrap(), Some(Path::new("/old")), &[])
    }

    #[test]
    fn what_is_converted_is_ours_without_a_warning() {
        for text in [
            include_str!("../../tests/it/configs/picoclaw-v0.json"),
            include_str!("../../tests/it/configs/picoclaw-v3.json"),
            include_str!("../../tests/it/configs/nanobot.json"),
            include_str!("../../tests/it/configs/smartbot.json"),
        ] {
            let config = converted(text).config.to_string();
            let loaded = Config::load(Some(("c", &config)), &Env::new(), Vec::new()).unwrap();
            assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
            assert_eq!(loaded.config.agents.defaults.max_tool_iterations, 3);
        }
    }

    #[test]
    fn everything_of_a_picoclaw_3_finds_its_place() {
        let Converted { config, unknown, refused, useless } =
            converted(include_str!("../../tests/it/configs/picoclaw-v3.json"));
        let want = json!({
            "agents": {"defaults": {
                "model_name": "glm", "max_tokens": 32768, "temperature": 0.7, "max_tool_iterations": 3,
                "max_retries": 1, "retry_initial_delay": 0,
            }},
            "model_list": [{
                "model_name": "glm", "model": "zhipu/glm-4.7", "api_keys": ["zhipu-fake-picoclaw-3"],
                "api_base": "MODEL_BASE", "extra_body": {"do_sample": true}, "headers": {"X-Team": "home"},
            }],
            "session": {"compact_at": 0.75},
            "channels": {"telegram": {"token": "123456:fake", "allow_from": ["123456789"]}},
            "tools": {"web": {
                "fetch": {"max_chars": 65536},
            }},
            "mcpServers": {"files": {"command": "/usr/bin/files-mcp", "args": ["--ro"]}},
            "heartbeat": {"enabled": true},
            "log": {"level": "warn"},
        });
        assert_eq!(config, want);
        assert_eq!(refused, ["tools.read_paths = [\"^/usr/share/\"]"]);
        assert_eq!(useless, ["agents.defaults.workspace = \"~/.picoclaw/workspace\""]);
        for path in ["agents.list", "gateway.host", "tools.cron", "tools.exec.allow_remote", "tools.web.brave"] {
            assert!(unknown.iter().any(|unknown| unknown == path), "{path}: {unknown:?}");
        }
        assert!(!unknown.iter().any(|path| path.contains("hooks") || path.contains("mqtt")), "{unknown:?}");
    }

    #[test]
    fn what_opens_the_machine_is_taken_only_if_allowed() {
        let text = r#"{"agents":{"defaults":{"model":"gpt-5","restrict_to_workspace":false}},
            "tools":{"exec":{"sandbox":"off","network":"full"}},
            "providers":{"openai":{"api_key":"cmd:/bin/key"},"groq":{"apiKey":"enc://x"}},
            "model_list":[{"model":"a/b","api_base":"http://h","api_keys":["k","file://key"]}],
            "mcpServers":{"old":{"command":"/old/bin/mcp"},"new":{"command":"/bin/mcp","write":["/srv"]}}}"#;
        let Converted { config, refused, useless, .. } = converted(text);
        let want = json!({
            "agents": {"defaults": {"model_name": "openai/gpt-5"}},
            "model_list": [{"model": "a/b", "api_base": "http://h"}],
            "mcpServers": {"new": {"command": "/bin/mcp"}},
        });
        assert_eq!(config, want);
        let want = [
            "agents.defaults.restrict_to_workspace = false",
            "tools.exec.network = \"full\"",
            "tools.exec.sandbox = \"off\"",
            "mcpServers.new.write = [\"/srv\"]",
            "model_list.0.api_keys = [\"k\",\"file://key\"]",
            "providers.openai.api_key = \"cmd:/bin/key\"",
        ];
        assert_eq!(refused, want);
        assert_eq!(useless, ["mcpServers.old (it uses the old home)", "providers.groq.api_key = \"enc://x\""]);
        let allowed = convert(serde_json::from_str(text).unwrap(), Some(Path::new("/old")), &refused);
        assert_eq!(allowed.config["tools"]["exec"], json!({"network": "full", "sandbox": "off"}));
        assert_eq!(allowed.config["model_list"][1]["api_key"], "cmd:/bin/key");
        assert!(allowed.refused.is_empty());
    }

    #[test]
    fn fallbacks_and_a_channel_come_along() {
        let text = r#"{"channel_list":{"telegram":{"enabled":true,"settings":{"token":"t"}}},
            "agents":{"defaults":{"provider":"auto","model":"claude-x","fallbackModels":["gpt-5","glm/x"]}}}"#;
        let want = json!({
            "agents": {"defaults": {"model_name": "anthropic/claude-x", "model_fallbacks": ["openai/gpt-5", "glm/x"]}},
            "channels": {"telegram": {"token": "t", "enabled": true}},
        });
        assert_eq!(converted(text).config, want);
    }

    #[test]
    fn a_model_finds_the_provider_that_serves_it() {
        let both = ["zhipu", "openrouter"];
        for (providers, fixed, model, want) in [
            (&both[..], Some("zhipu"), "glm-4.7", "zhipu/glm-4.7"),
            (&both, Some("openrouter"), "anthropic/claude-x", "openrouter/anthropic/claude-x"),
            (&both, None, "glm/glm-4.7", "zhipu/glm-4.7"),
            (&both, None, "glm-4.7", "zhipu/glm-4.7"),
            (&both, None, "anthropic/claude-x", "openrouter/anthropic/claude-x"),
            (&["siliconflow"], None, "a/b", "siliconflow/a/b"),
            (&[], None, "claude/claude-x", "claude/claude-x"),
            (&[], None, "claude-x", "anthropic/claude-x"),
            (&[], None, "strange", "strange"),
        ] {
            let providers: Vec<String> = providers.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(routed(model, fixed, &providers), want, "{model}");
        }
    }
}
