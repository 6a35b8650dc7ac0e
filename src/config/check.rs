//! Finds errors that no further setting can fix. Incomplete settings, such as a model without its key, are accepted, because a
//! configuration grows a setting at a time.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::models::{check_base, in_config};
use super::{Config, ModelEntry, keys, user_id};
use crate::error::{Context, Error, Kind, Result};
use crate::paths::telegram_chat;
use crate::secret::Secret;
use crate::text::to_single_line;

/// A value that cannot be used.
pub(super) struct BadValue {
    /// Path of the setting.
    pub path: String,
    /// Error, to follow the path.
    pub what: String,
    pub hint: String,
}

impl BadValue {
    pub(super) fn new(path: &str, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            what: what.into(),
            hint: hint.into(),
        }
    }

    /// Creates the error for a word that is not one of the `known`.
    pub(super) fn unknown(path: &str, known: &[&str]) -> Self {
        let hint = format!("use one of: {}", known.join(", "));
        Self::new(path, "has an invalid value", hint)
    }
}

/// Returns the first value that is out of range or unknown.
pub(super) fn out_of_range(config: &Config) -> Option<BadValue> {
    too_small(config).or_else(|| unknown_name(config))
}

#[allow(clippy::cast_precision_loss)]
fn too_small(config: &Config) -> Option<BadValue> {
    let (defaults, tools) = (&config.agents.defaults, &config.tools);
    let (search, fetch) = (&tools.web.search, &tools.web.fetch);
    let steps = defaults.max_tool_iterations;
    let minutes = config.heartbeat.interval_minutes;
    let temperature = defaults.temperature.unwrap_or_default();
    let least = [
        (
            "agents.defaults.max_tokens",
            defaults.max_tokens as f64,
            1.0,
        ),
        (
            "agents.defaults.context_window",
            defaults.context_window as f64,
            1024.0,
        ),
        ("agents.defaults.max_tool_iterations", steps.into(), 1.0),
        ("agents.defaults.max_calls", defaults.max_calls.into(), 1.0),
        ("agents.defaults.timeout", defaults.timeout as f64, 1.0),
        (
            "agents.defaults.retry_initial_delay",
            defaults.retry_initial_delay,
            0.0,
        ),
        ("agents.defaults.temperature", temperature, 0.0),
        ("tools.mcp_kb", tools.mcp_kb as f64, 1.0),
        ("tools.exec.timeout", tools.exec.timeout as f64, 1.0),
        (
            "tools.web.search.max_results",
            search.max_results as f64,
            1.0,
        ),
        ("tools.web.fetch.max_chars", fetch.max_chars as f64, 1.0),
        ("tools.web.fetch.timeout", fetch.timeout as f64, 1.0),
        ("session.compact_at", config.session.compact_at, 0.1),
        ("session.ttl_hours", config.session.ttl_hours, 0.0),
        ("heartbeat.interval_minutes", minutes as f64, 1.0),
        ("gateway.workers", config.gateway.workers as f64, 1.0),
        ("budget.daily_cost", config.budget.daily_cost, 0.0),
    ];
    if let Some((path, value, least)) = least.iter().find(|(_, value, least)| value < least) {
        let hint = format!("use {least} or more");
        return Some(BadValue::new(path, format!("is {value}"), hint));
    }
    if config.session.compact_at > 1.0 {
        let hint = "use a share of the model's window from 0.1 to 1, such as 0.8";
        return Some(BadValue::new("session.compact_at", "is above 1", hint));
    }
    let numbers = |entry: &ModelEntry| {
        let price = entry.price;
        [entry.temperature, price.input, price.output, price.cached]
    };
    let has_negative = |entry| {
        numbers(entry)
            .into_iter()
            .flatten()
            .any(|number| number < 0.0)
    };
    let n = config.model_list.iter().position(has_negative)?;
    let path = format!("model_list[{n}]");
    Some(BadValue::new(
        &path,
        "has a negative number",
        "use 0 or more",
    ))
}

fn unknown_name(config: &Config) -> Option<BadValue> {
    if !ENGINES.contains(&config.tools.web.search.provider.as_str()) {
        return Some(BadValue::unknown("tools.web.search.provider", &ENGINES));
    }
    config.model_list.iter().enumerate().find_map(|(n, entry)| {
        let named: [(&str, &String, &[&str]); 2] = [
            ("reasoning_effort", &entry.reasoning_effort, &EFFORTS),
            ("api", &entry.api, &["responses"]),
        ];
        let is_unknown = |(_, name, known): &(&str, &String, &[&str])| {
            !name.is_empty() && !known.contains(&name.as_str())
        };
        let (field, _, known) = named.into_iter().find(is_unknown)?;
        Some(BadValue::unknown(
            &format!("model_list[{n}].{field}"),
            known,
        ))
    })
}

/// Values of `tools.web.search.provider`.
const ENGINES: [&str; 6] = ["auto", "brave", "tavily", "serper", "searxng", "duckduckgo"];

/// Values of `model_list[].reasoning_effort`, besides the empty one.
const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];

impl Config {
    /// Returns all errors, each with a hint what to write instead.
    pub(super) fn problems(&self) -> Vec<Error> {
        let mut problems = Vec::new();
        let mut check = |result: Result<()>| problems.extend(result.err());
        for entry in &self.model_list {
            check(check_base("api_base", entry.api_base.trim()));
            check(check_proxy("model_list[].proxy", &entry.proxy));
            check(check_headers("model_list[].headers", &entry.headers));
            for key in std::iter::once(&entry.api_key).chain(&entry.api_keys) {
                check(keys::check_written(key));
            }
        }
        let defaults = &self.agents.defaults;
        let chosen = [
            &defaults.model_name,
            &self.tools.transcribe.model,
            &self.memory.embedding_model,
        ];
        for name in chosen.into_iter().chain(&defaults.model_fallbacks) {
            if !name.trim().is_empty() {
                check(self.whole_name(name).map(drop).map_err(in_config));
            }
        }
        let telegram = &self.channels.telegram;
        check(keys::check_written(&telegram.token));
        check(check_proxy("channels.telegram.proxy", &telegram.proxy));
        check(listen_address(&self.channels.http.listen).map(drop));
        for (setting, address) in [
            ("channels.telegram.api_base", &telegram.api_base),
            ("tools.web.search.base_url", &self.tools.web.search.base_url),
        ] {
            check(check_scheme(setting, address));
        }
        for server in self.mcp_servers.values() {
            check(check_headers("mcpServers.*.headers", &server.headers));
        }
        for written in &telegram.allow_from {
            check(check_user(written));
        }
        if !self.heartbeat.to.is_empty() {
            let chat = telegram_chat(&self.heartbeat.to).map(drop);
            let kind = Kind::Config;
            check(chat.map_err(|e| Error { kind, ..e }).doing("heartbeat.to"));
        }
        problems
    }
}

fn check_scheme(setting: &str, address: &str) -> Result<()> {
    if address.is_empty() || address.starts_with("http://") || address.starts_with("https://") {
        return Ok(());
    }
    // The address may contain a password.
    Err(
        Error::config(format!("{setting} must begin with http:// or https://"))
            .hint("write it as http://HOST:PORT"),
    )
}

/// Returns an error for headers that are invalid in HTTP. A value may be a secret, so it is not repeated.
pub(super) fn check_headers(setting: &str, headers: &BTreeMap<String, Secret>) -> Result<()> {
    let is_name = |name: &str| {
        let is_token_char = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        !name.is_empty() && name.bytes().all(is_token_char)
    };
    for (name, value) in headers {
        let shown = to_single_line(name, 60);
        if !is_name(name) {
            let what = format!("{setting}: \"{shown}\" is no name of a header");
            return Err(Error::config(what).hint("write letters, digits and dashes"));
        }
        if value.reveal().chars().any(char::is_control) {
            let what = format!("{setting}: the value of {shown} has a line end");
            return Err(Error::config(what).hint("write it on one line"));
        }
    }
    Ok(())
}

/// The address may contain a password, so it is not repeated.
fn check_proxy(setting: &str, address: &str) -> Result<()> {
    const SCHEMES: [&str; 4] = ["http", "https", "socks5", "socks5h"];
    let scheme = address
        .split_once("://")
        .map_or("http", |(scheme, _)| scheme);
    if SCHEMES.contains(&scheme) {
        return Ok(());
    }
    let what = format!("{setting} must begin with http://, https://, socks5:// or socks5h://");
    Err(Error::config(what).hint("write it as http://HOST:PORT or socks5h://HOST:PORT"))
}

/// Parses the address of `channels.http.listen`, such as `127.0.0.1:7475`.
///
/// # Errors
/// Returns an error of the kind `Config` if this is no address with a port.
pub(crate) fn listen_address(written: &str) -> Result<SocketAddr> {
    let address = written.replace("localhost:", "127.0.0.1:").parse();
    address.map_err(|_| {
        let written = to_single_line(written, 40);
        Error::config(format!(
            "channels.http.listen: \"{written}\" is not ADDRESS:PORT"
        ))
        .hint("for example 127.0.0.1:7475")
    })
}

fn check_user(written: &str) -> Result<()> {
    if user_id(written).is_some() {
        return Ok(());
    }
    let written = to_single_line(written, 40);
    Err(Error::config(format!(
        "channels.telegram.allow_from: \"{written}\" is not a numeric id"
    ))
    .hint("write the id that `bantam status` shows for a stranger"))
}
