//! Finds errors that no further setting can fix. Incomplete settings, such as a model without its key, are accepted, because a
//! configuration grows a setting at a time.

use std::net::SocketAddr;

use serde::Deserialize;
use serde_json::{Value, json};

use super::models::{check_base, in_config, is_address};
use super::path::{get, join, list_values, shape, walk};
use super::{Config, keys, shown, user_id};
use crate::error::{Context, Error, Result};
use crate::paths::telegram_chat;

/// A value that cannot be used.
pub(super) struct BadValue {
    /// Path of the setting.
    pub path: String,
    /// Error, to follow the path.
    pub what: String,
    pub hint: String,
}

/// Error of a word that is not one of the known.
const INVALID: &str = "has an invalid value";

/// Minimum values of settings.
pub(super) const LEAST: [(&str, f64); 16] = [
    ("agents.defaults.temperature", 0.0),
    ("agents.defaults.max_tokens", 1.0),
    ("agents.defaults.context_window", 1024.0),
    ("agents.defaults.max_tool_iterations", 1.0),
    ("agents.defaults.max_calls", 1.0),
    ("agents.defaults.timeout", 1.0),
    ("agents.defaults.retry_initial_delay", 0.0),
    ("tools.exec.timeout", 1.0),
    ("tools.web.search.max_results", 1.0),
    ("tools.web.fetch.max_chars", 1.0),
    ("tools.web.fetch.timeout", 1.0),
    ("session.compact_at", 0.1),
    ("session.ttl_hours", 0.0),
    ("heartbeat.interval_minutes", 1.0),
    ("gateway.workers", 1.0),
    ("budget.daily_cost", 0.0),
];

/// Values of settings, and of an entry in `model_list`. An empty one stands for the default.
const WORDS: [(&str, &[&str]); 3] = [
    ("tools.web.search.provider", &ENGINES),
    ("api", &["", "responses"]),
    ("reasoning_effort", &EFFORTS),
];
const ENGINES: [&str; 6] = ["auto", "brave", "tavily", "serper", "searxng", "duckduckgo"];
const EFFORTS: [&str; 7] = ["", "none", "minimal", "low", "medium", "high", "xhigh"];

/// Returns the first value that is out of range or unknown.
pub(super) fn out_of_range(json: &Value) -> Option<BadValue> {
    let entries = json["model_list"].as_array().into_iter().flatten();
    let entries = entries.enumerate().map(|(n, entry)| (Some(n), entry));
    for (n, section) in std::iter::once((None, json)).chain(entries) {
        let find = |path: &str| path.split('.').try_fold(section, |at, name| at.get(name));
        let bad = |path: &str, what: &str, hint: String| {
            let start = n.map_or(String::new(), |n| format!("model_list[{n}]."));
            let (path, what) = (start + path, what.to_owned());
            Some(BadValue { path, what, hint })
        };
        for (path, least) in LEAST {
            let (most, words) = match path {
                "session.compact_at" => (1.0, "to 1"),
                _ => (f64::MAX, "or more"),
            };
            let value = find(path).and_then(Value::as_f64);
            if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
                return bad(path, &format!("is {value}"), format!("use {least} {words}"));
            }
        }
        for (path, known) in WORDS {
            let word = find(path).and_then(Value::as_str);
            if word.is_some_and(|word| !known.contains(&word)) {
                let known = known.iter().filter(|word| !word.is_empty());
                let known: Vec<String> = known.map(|word| format!("`{word}`")).collect();
                return bad(path, INVALID, format!("use one of {}", known.join(", ")));
            }
        }
    }
    None
}

/// Returns the path of a list in place of a section, whose values serde would take in order. `at` is where `value` stands.
pub(super) fn list_for_section(value: &Value, at: &[&str]) -> Option<Vec<String>> {
    let below = |(name, value): (&String, _)| list_for_section(value, &[at, &[name]].concat());
    let items = match value {
        Value::Array(items) => items,
        value => return value.as_object()?.iter().find_map(below),
    };
    let path: Vec<String> = at.iter().map(|name| (*name).to_owned()).collect();
    let takes = |value| refused(&path, value).is_none();
    if takes(json!({})) && !takes(json!("")) {
        return Some(path);
    }
    let mut items = items.iter().enumerate();
    items.find_map(|(n, item)| below((&n.to_string(), item)))
}

/// Returns the error of a configuration with this value alone.
fn refused(path: &[String], value: Value) -> Option<serde_json::Error> {
    let below = |value, name: &String| match name.parse::<usize>() {
        Ok(_) => json!([value]),
        Err(_) => json!({ name: value }),
    };
    let alone = path.iter().rev().fold(value, below);
    Config::deserialize(&alone).err()
}

/// Returns the first value of the wrong type. The value itself is left out, because it may be a misplaced key.
pub(super) fn wrong_type(json: &Value) -> Option<BadValue> {
    let is_wrong = |path: &Vec<String>| {
        let value = get(json, path);
        value.is_some_and(|value| refused(path, value.clone()).is_some())
    };
    let mut leaves = list_values(json).into_iter();
    let path = list_for_section(json, &[]).or_else(|| leaves.find(is_wrong))?;
    // A setting of words names them all if it gets another one.
    let words = refused(&path, json!("?")).map_or(String::new(), |e| e.to_string());
    let (mut what, shape) = ("has the wrong type", shape());
    let wanted = match (walk(&shape, &path).1, words.split_once(", expected ")) {
        (_, Some((why, words))) if why.starts_with("unknown variant") => {
            what = INVALID;
            words
        }
        (Value::String(_), _) => "a string in double quotes",
        (Value::Bool(_), _) => "true or false, without quotes",
        (Value::Number(number), _) if number.is_u64() => "an integer, 0 or more, without quotes",
        (Value::Number(_), _) => "a number, without quotes",
        (Value::Array(items), _) if items.is_empty() => "a list in brackets: [\"a\", \"b\"]",
        (Value::Array(_), _) => "a list of objects: [{\"model\": \"openai/gpt-5-mini\"}]",
        (Value::Object(_), _) => "an object in braces",
        (Value::Null, _) if refused(&path, json!(1.5)).is_none() => "a number, without quotes",
        (Value::Null, _) => "true or false, without quotes",
    };
    let (path, what, hint) = (join(&path), what.to_owned(), format!("use {wanted}"));
    Some(BadValue { path, what, hint })
}

impl Config {
    /// Returns all errors, each with a hint what to write instead.
    pub(super) fn problems(&self) -> Vec<Error> {
        let (telegram, search) = (&self.channels.telegram, &self.tools.web.search);
        let mut checks = vec![
            keys::check_written(&telegram.token, "channels.telegram.token"),
            check_proxy("channels.telegram.proxy", &telegram.proxy),
            listen_address(&self.channels.http.listen).map(drop),
            check_origin(&self.channels.http.allow_origin),
            check_base("channels.telegram.api_base", &telegram.api_base),
            check_base("tools.web.search.base_url", &search.base_url),
        ];
        for (n, entry) in self.model_list.iter().enumerate() {
            let at = |field: &str| format!("model_list[{n}].{field}");
            checks.push(check_base("api_base", entry.api_base.trim()));
            checks.push(check_proxy(&at("proxy"), &entry.proxy));
            for key in entry.keys() {
                checks.push(keys::check_written(key, &at("api_key")));
            }
        }
        for (name, server) in &self.mcp_servers {
            let is_url = server.url.contains("${") || after_http(&server.url).is_some();
            let is_valid = server.url.is_empty() || is_url && server.command.is_empty();
            let what = format!("mcpServers.{} has an invalid url", shown(name));
            let hint = "write https://HOST/mcp, and no command beside it";
            checks.push(require(is_valid, &what, hint));
        }
        let defaults = &self.agents.defaults;
        let (other, memory) = (&self.tools.transcribe.model, &self.memory.embedding_model);
        let chosen = [
            ("agents.defaults.model_name", &defaults.model_name),
            ("tools.transcribe.model", other),
            ("memory.embedding_model", memory),
        ];
        let fallbacks = defaults.model_fallbacks.iter();
        let fallbacks = fallbacks.map(|name| ("agents.defaults.model_fallbacks", name));
        let names = chosen.into_iter().chain(fallbacks);
        for (setting, name) in names.filter(|(_, name)| !name.trim().is_empty()) {
            let found = self.whole_name(name).map(drop);
            checks.push(found.map_err(in_config).doing(setting));
        }
        checks.extend(telegram.allow_from.iter().map(|id| check_user(id)));
        if !self.heartbeat.to.is_empty() {
            let chat = telegram_chat(&self.heartbeat.to).map(drop);
            checks.push(chat.map_err(in_config).doing("heartbeat.to"));
        }
        checks.into_iter().filter_map(Result::err).collect()
    }
}

fn require(is_valid: bool, what: &str, hint: &str) -> Result<()> {
    let error = || Error::config(what).hint(hint);
    is_valid.then_some(()).ok_or_else(error)
}

/// The address may contain a password, so it is not repeated. A word alone is rather a mistake than a host.
fn check_proxy(setting: &str, address: &str) -> Result<()> {
    let (scheme, rest) = address.split_once("://").unwrap_or(("http", address));
    let is_known = ["http", "https", "socks5", "socks5h"].contains(&scheme);
    let is_proxy = is_known && is_address(rest) && address.contains(':');
    let what = format!("{setting} is not the address of a proxy");
    let hint = "write it as http://HOST:PORT or socks5h://HOST:PORT";
    require(address.is_empty() || is_proxy, &what, hint)
}

/// Checks the origin of web pages, which has no path.
fn check_origin(written: &str) -> Result<()> {
    let rest = after_http(written.trim_end_matches('/'));
    let is_origin = rest.is_some_and(|rest| !rest.contains(['/', '*']));
    let what = "channels.http.allow_origin is not the origin of web pages";
    let hint = "write it as https://HOST or http://HOST:PORT";
    require(written.is_empty() || is_origin, what, hint)
}

/// Returns the rest of an HTTP address that begins with a host.
fn after_http(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("http://").or(url.strip_prefix("https://"));
    rest.filter(|rest| is_address(rest))
}

/// Parses the address of `channels.http.listen`, such as `127.0.0.1:7475`.
///
/// # Errors
/// Returns an error of the kind `Config` if this is no address with a port.
pub(crate) fn listen_address(written: &str) -> Result<SocketAddr> {
    let address = written.replace("localhost:", "127.0.0.1:").parse();
    address.map_err(|_| {
        let written = shown(written);
        let what = format!("channels.http.listen: \"{written}\" is not ADDRESS:PORT");
        Error::config(what).hint("use ADDRESS:PORT, such as 127.0.0.1:7475")
    })
}

fn check_user(written: &str) -> Result<()> {
    let id = shown(written);
    let what = format!("channels.telegram.allow_from: \"{id}\" is not a numeric id");
    let hint = "`bantam onboard` finds yours; press Let in for others";
    require(user_id(written).is_some(), &what, hint)
}
