//! Converts the configuration of picoclaw, nanobot or `SmartBot` into our own shape, for `bantam onboard --import`.
//!
//! A table says where they keep what we keep. Models and MCP servers need more than a table. What is taken over becomes null in
//! their file, so that what is left can be named: what bantam does not know, and what opens this machine to the model.

use std::path::Path;

use serde_json::{Value, json};

use crate::config::settings::{self, Place, SETTINGS, Setting, is_known, same_name};
use crate::config::vendors;

/// Their path, and our path. The first that has a value wins.
const TABLE: &[(&str, &str)] = &[
    // SmartBot has the agent's settings on top.
    ("max_tool_iterations", "agents.defaults.max_tool_iterations"),
    ("max_tokens", "agents.defaults.max_tokens"),
    ("temperature", "agents.defaults.temperature"),
    ("tools.web_search.api_key", "tools.web.search.api_key"),
    (
        "tools.web_search.max_results",
        "tools.web.search.max_results",
    ),
    // nanobot
    (
        "agents.defaults.context_window_tokens",
        "agents.defaults.context_window",
    ),
    ("tools.exec.enable", "tools.exec.enabled"),
    (
        "tools.restrict_to_workspace",
        "agents.defaults.restrict_to_workspace",
    ),
    ("gateway.heartbeat.enabled", "heartbeat.enabled"),
    // picoclaw
    (
        "agents.defaults.max_llm_retries",
        "agents.defaults.max_retries",
    ),
    (
        "agents.defaults.llm_retry_backoff_secs",
        "agents.defaults.retry_initial_delay",
    ),
    ("channels.telegram.base_url", "channels.telegram.api_base"),
    ("channel_list.telegram.enabled", "channels.telegram.enabled"),
    (
        "channel_list.telegram.allow_from",
        "channels.telegram.allow_from",
    ),
    (
        "channel_list.telegram.settings.token",
        "channels.telegram.token",
    ),
    (
        "channel_list.telegram.settings.base_url",
        "channels.telegram.api_base",
    ),
    (
        "channel_list.telegram.settings.proxy",
        "channels.telegram.proxy",
    ),
    ("tools.exec.timeout_seconds", "tools.exec.timeout"),
    ("tools.web.fetch_limit_bytes", "tools.web.fetch.max_chars"),
    ("heartbeat.interval", "heartbeat.interval_minutes"),
    ("gateway.log_level", "log.level"),
    // Of an entry for a model.
    ("custom_headers", "headers"),
    ("extra_headers", "headers"),
    ("base_url", "api_base"),
];

/// What comes over, by the beginnings of paths: settings that can do no harm, or that [`super::consent`] asks for. A list of
/// what stays behind would miss what is added to the settings: `channels.http` opens the machine, `tools.redact` shuts a
/// protection off, `session.keep_days` deletes.
const TAKEN: [&str; 28] = [
    "agents.defaults.context_window",
    "agents.defaults.max_retries",
    "agents.defaults.max_tokens",
    "agents.defaults.max_tool_iterations",
    "agents.defaults.model_fallbacks",
    "agents.defaults.model_name",
    "agents.defaults.retry_initial_delay",
    "agents.defaults.temperature",
    "budget.",
    "channels.telegram.",
    "heartbeat.",
    "log.",
    "mcpServers.*.args",
    "mcpServers.*.command",
    "mcpServers.*.cwd",
    "mcpServers.*.env",
    "mcpServers.*.headers",
    "mcpServers.*.memory_mb",
    "mcpServers.*.network",
    "mcpServers.*.tools",
    "mcpServers.*.url",
    "model_list[].",
    "tools.confirm",
    "tools.exec.enabled",
    "tools.exec.timeout",
    "tools.web.fetch.max_chars",
    "tools.web.fetch.timeout",
    "tools.web.search.",
];

/// Our configuration, without what has its default, and their paths that are not taken over. No MCP server that refers to
/// `old_home` is.
pub(super) fn convert(mut theirs: Value, old_home: Option<&Path>) -> (Value, Vec<String>) {
    let servers = servers(&mut theirs, old_home);
    let (list, name, fallbacks) = models(&mut theirs);
    let engine = search_engine(&mut theirs);
    let mut ours = section(&mut theirs, "");
    for (name, value) in engine {
        put(&mut ours, &format!("{SEARCH}.{name}"), value);
    }
    for (path, value) in [
        ("mcpServers", servers),
        ("model_list", list),
        ("agents.defaults.model_name", name),
        ("agents.defaults.model_fallbacks", fallbacks),
    ] {
        if is_filled(&value) {
            put(&mut ours, path, value);
        }
    }
    let mut left = other_engines(&mut theirs, &mut ours);
    leftovers(&theirs, &mut Vec::new(), &mut left);
    (ours, left)
}

/// The settings whose paths begin with `pattern`, from the object that holds them.
fn section(theirs: &mut Value, pattern: &str) -> Value {
    let mut ours = json!({});
    for setting in SETTINGS {
        let Some(path) = setting.path.strip_prefix(pattern) else {
            continue;
        };
        let others = TABLE
            .iter()
            .filter(|(_, to)| *to == path)
            .map(|(from, _)| *from);
        if let Some(value) = others
            .chain([path])
            .find_map(|path| take(theirs, path, setting))
        {
            put(&mut ours, path, value);
        }
    }
    ours
}

/// Takes a value that fits the setting, comes over and is not its default.
fn take(theirs: &mut Value, path: &str, setting: &Setting) -> Option<Value> {
    let found = find(theirs, path).filter(|found| is_filled(found))?;
    let value = setting.check(found)?;
    let is_taken = TAKEN.iter().any(|path| setting.path.starts_with(path));
    if value != setting.default() && (!is_taken || refers(&value)) {
        return None;
    }
    *found = Value::Null;
    Some(value).filter(|value| *value != setting.default())
}

fn servers(theirs: &mut Value, old_home: Option<&Path>) -> Value {
    for place in ["tools.mcp_servers", "tools.mcp"] {
        let found = find(theirs, place).filter(|found| is_enabled(found));
        let found = found.and_then(|found| {
            if place == "tools.mcp" {
                found.get_mut("servers")
            } else {
                Some(found)
            }
        });
        if let Some(moved @ Value::Object(_)) = found.map(Value::take) {
            theirs["mcpServers"] = moved;
        }
    }
    let mut ours = json!({});
    let is_old = |server: &Value| {
        old_home.is_some_and(|dir| server.to_string().contains(&*dir.to_string_lossy()))
    };
    for (name, server) in find(theirs, "mcpServers")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flatten()
    {
        if is_enabled(server) && !is_old(server) {
            ours[name] = section(server, "mcpServers.*.");
        }
    }
    ours
}

/// Where our search engine is set.
const SEARCH: &str = "tools.web.search";

/// The settings of the search engine, where each engine has a section of its own: in `tools.web` of a picoclaw, in
/// `tools.web.search.providers` of a nanobot.
fn search_engine(theirs: &mut Value) -> Vec<(&'static str, Value)> {
    if find(theirs, "tools.web.search.api_key").is_some_and(|key| is_filled(key)) {
        return Vec::new();
    }
    let named = find(theirs, "tools.web.search.provider").cloned();
    let mut engines = ["brave", "tavily", "serper", "searxng"];
    engines.sort_by_key(|engine| named.as_ref() != Some(&json!(engine)));
    for engine in engines {
        for place in ["tools.web", "tools.web.search.providers"] {
            let path = format!("{place}.{engine}");
            let Some(section) = find(theirs, &path).filter(|section| is_enabled(section)) else {
                continue;
            };
            let (name, value) = match engine {
                "searxng" => ("base_url", text_in(section, "base_url")),
                _ => ("api_key", key_in(section)),
            };
            let Some(value) = value else { continue };
            let mut ours = vec![("provider", engine.into()), (name, value.into())];
            let count = settings::find(&["tools", "web", "search", "max_results"]);
            ours.extend(
                count
                    .and_then(|count| take(section, "max_results", count))
                    .map(|count| ("max_results", count)),
            );
            *section = Value::Null;
            return ours;
        }
    }
    Vec::new()
}

/// The first key of a section, if it is written there.
fn key_in(section: &mut Value) -> Option<String> {
    let many = find(section, "api_keys").and_then(|keys| keys.as_array().cloned());
    let one = find(section, "api_key").cloned();
    let mut keys = many.into_iter().flatten().chain(one);
    let key = keys.find(|key| is_filled(key) && !refers(key))?;
    key.as_str().map(|key| key.trim().to_owned())
}

fn text_in(section: &mut Value, name: &str) -> Option<String> {
    let text = find(section, name).filter(|text| is_filled(text))?;
    text.as_str().map(|text| text.trim().to_owned())
}

/// The paths of search engines that are not asked here, with their keys: no other engine may get the key of one that is unknown,
/// and nobody should look for the key of one that is switched off.
fn other_engines(theirs: &mut Value, ours: &mut Value) -> Vec<String> {
    let mut left = Vec::new();
    let is_unknown = find(theirs, "tools.web.search.provider").is_some_and(|name| is_filled(name));
    let search = find(ours, SEARCH).and_then(Value::as_object_mut);
    if let Some(search) = search.filter(|_| is_unknown) {
        let taken = ["api_key", "base_url"].into_iter();
        let taken = taken.filter(|name| search.remove(*name).is_some());
        left.extend(taken.map(|name| format!("{SEARCH}.{name}")));
    }
    let web = find(theirs, "tools.web").and_then(Value::as_object_mut);
    for (name, section) in web.into_iter().flatten() {
        if section.is_object() && !is_enabled(section) && key_in(section).is_some() {
            left.push(format!("tools.web.{name}"));
        }
    }
    left
}

/// The model list with the providers' keys, and the names of the models that answer.
fn models(theirs: &mut Value) -> (Value, Value, Value) {
    let (mut list, mut listed, mut providers) = (Vec::new(), Vec::new(), Vec::new());
    let entries = find(theirs, "model_list").and_then(Value::as_array_mut);
    for entry in entries
        .into_iter()
        .flatten()
        .filter(|entry| is_enabled(entry))
    {
        let mut ours = section(entry, "model_list[].");
        if let (Some(provider), Some(model)) =
            (take_text(entry, "provider"), ours["model"].as_str())
        {
            ours["model"] = with_vendor(&vendors::canonical(&provider), model).into();
        }
        listed.extend(
            [&ours["model_name"], &ours["model"]]
                .into_iter()
                .filter_map(Value::as_str)
                .map(str::to_owned),
        );
        list.push(ours);
    }
    for (name, entry) in find(theirs, "providers")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flatten()
    {
        let vendor = vendors::canonical(name);
        let needs_key = vendors::find(&vendor).is_some_and(|vendor| !vendor.key_env.is_empty());
        let mut ours = section(entry, "model_list[].");
        if ours.get("api_key").is_some() || (ours.get("api_base").is_some() && !needs_key) {
            ours["model"] = format!("{vendor}/*").into();
            list.push(ours);
            providers.push(vendor);
        }
    }
    let fixed = ["agents.defaults.provider", "provider"]
        .iter()
        .find_map(|path| take_text(theirs, path));
    let fixed = fixed
        .filter(|name| name != "auto")
        .map(|name| vendors::canonical(&name));
    let name = |name: String| {
        if listed.contains(&name) {
            name
        } else {
            routed(&name, fixed.as_deref(), &providers)
        }
    };
    let models = [
        "agents.defaults.model_name",
        "agents.defaults.model",
        "model",
    ];
    let model = models
        .iter()
        .find_map(|path| take_text(theirs, path))
        .map(name);
    let fallbacks = [
        "agents.defaults.model_fallbacks",
        "agents.defaults.fallback_models",
    ];
    let fallbacks = fallbacks
        .iter()
        .filter_map(|path| find(theirs, path).map(Value::take));
    let fallbacks: Vec<Value> = fallbacks
        .filter_map(|list| list.as_array().cloned())
        .flatten()
        .collect();
    let fallbacks = fallbacks
        .iter()
        .filter_map(Value::as_str)
        .map(|model| name(model.to_owned()));
    (list.into(), model.into(), fallbacks.collect())
}

/// `vendor/model` for a model's name: the fixed provider, else the one that the name begins with, else the maker of the model,
/// else a gateway for all models.
fn routed(name: &str, fixed: Option<&str>, providers: &[String]) -> String {
    let prefix = name
        .split_once('/')
        .map(|(prefix, _)| vendors::canonical(prefix));
    let maker = vendors::by_model(name.rsplit('/').next().unwrap_or(name))
        .map(|vendor| vendor.name.to_owned());
    let is_provider = |vendor: &String| providers.contains(vendor);
    let gateway = ["openrouter".to_owned()]
        .into_iter()
        .find(is_provider)
        .or_else(|| providers.first().cloned());
    let known = [
        prefix.clone().filter(is_provider),
        maker.clone().filter(is_provider),
        gateway,
    ];
    let vendor = fixed
        .map(str::to_owned)
        .or_else(|| known.into_iter().flatten().next());
    match vendor.or_else(|| maker.filter(|_| prefix.is_none())) {
        Some(vendor) => with_vendor(&vendor, name),
        None => name.to_owned(),
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
        at.as_object_mut()?
            .iter_mut()
            .find(|(key, _)| same_name(key, name))
            .map(|(_, value)| value)
    })
}

fn put(tree: &mut Value, path: &str, value: Value) {
    *path.split('.').fold(tree, |at, name| &mut at[name]) = value;
}

fn take_text(tree: &mut Value, path: &str) -> Option<String> {
    let found = find(tree, path).filter(|found| is_filled(found) && found.is_string())?;
    found.take().as_str().map(|text| text.trim().to_owned())
}

fn is_enabled(entry: &Value) -> bool {
    entry.is_object() && entry["enabled"] != json!(false) && entry["disabled"] != json!(true)
}

/// Neither empty nor what an example file has in a key's place.
fn is_filled(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => {
            !text.trim().is_empty() && !text.starts_with("YOUR_") && !text.ends_with("xxx")
        }
        Value::Array(items) => items.iter().any(is_filled),
        Value::Object(object) => !object.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

/// Whether a key refers to something else: a command, a file, what the other program encrypted.
fn refers(value: &Value) -> bool {
    let mut keys = value
        .as_array()
        .map_or(std::slice::from_ref(value), Vec::as_slice)
        .iter()
        .filter_map(Value::as_str);
    keys.any(|key| {
        ["cmd:", "file:", "enc:", "ref:"]
            .iter()
            .any(|scheme| key.trim().starts_with(scheme))
    })
}

/// Adds the paths of all that is set and not taken, as deep as our own settings go.
fn leftovers(value: &Value, path: &mut Vec<String>, found: &mut Vec<String>) {
    let names: Vec<&str> = path.iter().map(String::as_str).collect();
    let is_theirs =
        |names: &[&str]| matches!(names[0], "providers" | "channel_list") && names.len() < 3;
    let is_ours = names.is_empty() || is_known(&names, Place::Anywhere);
    let members: Vec<(String, &Value)> = match value {
        Value::Object(members) if is_ours || is_theirs(&names) => members
            .iter()
            .map(|(name, value)| (name.clone(), value))
            .collect(),
        Value::Array(items) if is_ours && items.iter().any(Value::is_object) => {
            (0..).map(|n: usize| n.to_string()).zip(items).collect()
        }
        value => {
            let is_set = if is_ours {
                is_filled(value)
            } else {
                is_on(value)
            };
            if is_set && !matches!(names.last(), Some(&("enabled" | "type"))) {
                found.push(path.join("."));
            }
            return;
        }
    };
    for (name, value) in members
        .into_iter()
        .filter(|(_, value)| !value.is_object() || is_enabled(value))
    {
        path.push(name);
        leftovers(value, path, found);
        path.pop();
    }
}

/// Whether a section of theirs, or a value in it, does something.
fn is_on(value: &Value) -> bool {
    let is_name = |name: &str| !matches!(name, "enabled" | "type");
    match value {
        Value::Object(members) => {
            is_enabled(value)
                && members
                    .iter()
                    .any(|(name, value)| is_name(name) && is_on(value))
        }
        Value::Array(items) => items.iter().any(is_on),
        value => is_filled(value) && *value != json!(false) && *value != json!(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Env};

    fn converted(text: &str) -> (Value, Vec<String>) {
        convert(serde_json::from_str(text).unwrap(), Some(Path::new("/old")))
    }

    #[test]
    fn what_is_converted_is_ours_without_a_warning() {
        for text in [
            include_str!("../../tests/it/configs/picoclaw-v0.json"),
            include_str!("../../tests/it/configs/picoclaw-v3.json"),
            include_str!("../../tests/it/configs/nanobot.json"),
            include_str!("../../tests/it/configs/smartbot.json"),
        ] {
            let config = converted(text).0.to_string();
            let loaded = Config::load(Some(("c", &config)), &Env::new(), Vec::new()).unwrap();
            assert!(loaded.warnings().is_empty(), "{:?}", loaded.warnings());
            assert_eq!(loaded.config.agents.defaults.max_tool_iterations, 3);
        }
    }

    #[test]
    fn what_opens_the_machine_or_shuts_a_protection_off_stays_behind() {
        let config = json!({
            "agents": {"defaults": {"model_name": "openai/gpt-5", "max_calls": 1000, "restrict_to_workspace": false}},
            "channels": {"http": {"enabled": true, "listen": "0.0.0.0:8080", "token": "theirs", "allow_origin": ["*"]}},
            "tools": {"redact": "off", "mcp_kb": 1000, "exec": {"memory_mb": 1, "sandbox": "off"}},
            "session": {"keep_days": 1},
            "gateway": {"workers": 64},
        });
        let (config, left) = converted(&config.to_string());
        assert_eq!(
            config,
            json!({"agents": {"defaults": {"model_name": "openai/gpt-5"}}})
        );
        for path in [
            "agents.defaults.max_calls",
            "channels.http",
            "tools.redact",
            "session",
            "gateway",
        ] {
            assert!(
                left.iter().any(|left| left.starts_with(path)),
                "{path}: {left:?}"
            );
        }
        for path in TAKEN {
            let is_known = |setting: &Setting| setting.path.starts_with(path);
            assert!(SETTINGS.iter().any(is_known), "{path}");
        }
    }

    #[test]
    fn everything_of_a_picoclaw_3_finds_its_place() {
        let (config, left) = converted(include_str!("../../tests/it/configs/picoclaw-v3.json"));
        let want = json!({
            "agents": {"defaults": {
                "model_name": "glm", "max_tokens": 32768, "temperature": 0.7, "max_tool_iterations": 3,
                "max_retries": 1, "retry_initial_delay": 0,
            }},
            "model_list": [{
                "model_name": "glm", "model": "zhipu/glm-4.7", "api_keys": ["zhipu-fake-picoclaw-3"],
                "api_base": "MODEL_BASE", "extra_body": {"do_sample": true}, "headers": {"X-Team": "home"},
            }],
            "channels": {"telegram": {"token": "123456:fake", "allow_from": ["123456789"]}},
            "tools": {"web": {
                "fetch": {"max_chars": 65536},
                "search": {"provider": "brave", "api_key": "brave-fake-key-0000", "max_results": 4},
            }},
            "mcpServers": {"files": {"command": "/usr/bin/files-mcp", "args": ["--ro"]}},
            "heartbeat": {"enabled": true},
            "log": {"level": "warn"},
        });
        assert_eq!(config, want);
        for path in [
            "agents.defaults.workspace",
            "agents.defaults.summarize_token_percent",
            "agents.list",
            "gateway.host",
            "tools.allow_read_paths",
            "tools.cron",
            "tools.exec.allow_remote",
            "model_list.1.thinking_level",
        ] {
            assert!(left.iter().any(|left| left == path), "{path}: {left:?}");
        }
        let gone = ["hooks", "mqtt", "mcp", "model_list.0", "custom_headers"];
        assert!(
            !left
                .iter()
                .any(|path| gone.iter().any(|gone| path.contains(gone))),
            "{left:?}"
        );
    }

    #[test]
    fn what_opens_the_machine_is_left_to_the_user() {
        let text = r#"{"agents":{"defaults":{"model":"gpt-5","restrict_to_workspace":false}},
            "tools":{"exec":{"sandbox":"off","network":"full"}},
            "providers":{"openai":{"api_key":"cmd:/bin/key"},"groq":{"apiKey":"enc://x"}},
            "model_list":[{"model":"a/b","api_base":"http://h","api_keys":["k","file://key"]}],
            "mcpServers":{"old":{"command":"/old/bin/mcp"},"new":{"command":"/bin/mcp","write":["/srv"]}}}"#;
        let (config, left) = converted(text);
        let want = json!({
            "agents": {"defaults": {"model_name": "openai/gpt-5"}},
            "model_list": [{"model": "a/b", "api_base": "http://h"}],
            "mcpServers": {"new": {"command": "/bin/mcp"}},
        });
        assert_eq!(config, want);
        let mut want = [
            "agents.defaults.restrict_to_workspace",
            "mcpServers.new.write",
            "mcpServers.old.command",
            "model_list.0.api_keys",
            "providers.groq.apiKey",
            "providers.openai.api_key",
            "tools.exec.network",
            "tools.exec.sandbox",
        ];
        want.sort_unstable();
        assert_eq!(left, want);
    }

    #[test]
    fn the_search_engine_comes_along_with_its_key_and_no_other() {
        for (web, search, left) in [
            (
                json!({"brave": {"enabled": false, "api_key": "BSA-fake"},
                    "tavily": {"enabled": true, "api_keys": [""], "api_key": "tvly-fake", "max_results": 7}}),
                json!({"provider": "tavily", "api_key": "tvly-fake", "max_results": 7}),
                vec!["tools.web.brave"],
            ),
            (
                json!({"searxng": {"enabled": true, "base_url": "http://10.0.0.2:8888"}, "duckduckgo": {"enabled": true}}),
                json!({"provider": "searxng", "base_url": "http://10.0.0.2:8888"}),
                vec![],
            ),
            (
                json!({"search": {"provider": "tavily",
                    "providers": {"brave": {"apiKey": "BSA-fake"}, "tavily": {"apiKey": "tvly-fake"}}}}),
                json!({"provider": "tavily", "api_key": "tvly-fake"}),
                vec!["tools.web.search.providers"],
            ),
            (
                json!({"search": {"provider": "brave", "apiKey": "BSA-fake", "maxResults": 3}}),
                json!({"provider": "brave", "api_key": "BSA-fake", "max_results": 3}),
                vec![],
            ),
            (
                json!({"search": {"provider": "jina", "apiKey": "jina-fake", "maxResults": 3}}),
                json!({"max_results": 3}),
                vec!["tools.web.search.api_key", "tools.web.search.provider"],
            ),
            (
                json!({"perplexity": {"enabled": true, "api_key": "pplx-fake"}}),
                Value::Null,
                vec!["tools.web.perplexity"],
            ),
        ] {
            let (config, found) = converted(&json!({"tools": {"web": web}}).to_string());
            assert_eq!(config["tools"]["web"]["search"], search, "{web}");
            assert_eq!(found, left, "{web}");
        }
    }

    #[test]
    fn fallbacks_and_a_channel_come_along() {
        let text = r#"{"channel_list":{"telegram":{"enabled":true,"settings":{"token":"t"}}},
            "agents":{"defaults":{"provider":"auto","model":"claude-x","fallbackModels":["gpt-5","glm/x"]}}}"#;
        let want = json!({
            "agents": {"defaults": {"model_name": "anthropic/claude-x", "model_fallbacks": ["openai/gpt-5", "glm/x"]}},
            "channels": {"telegram": {"token": "t", "enabled": true}},
        });
        assert_eq!(converted(text).0, want);
    }

    #[test]
    fn a_model_finds_the_provider_that_serves_it() {
        let both = ["zhipu", "openrouter"];
        for (providers, fixed, model, want) in [
            (&both[..], Some("zhipu"), "glm-4.7", "zhipu/glm-4.7"),
            (
                &both,
                Some("openrouter"),
                "anthropic/claude-x",
                "openrouter/anthropic/claude-x",
            ),
            (&both, None, "glm/glm-4.7", "zhipu/glm-4.7"),
            (&both, None, "glm-4.7", "zhipu/glm-4.7"),
            (
                &both,
                None,
                "anthropic/claude-x",
                "openrouter/anthropic/claude-x",
            ),
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
