//! What of a configuration can never work, whatever is added to it. What is only incomplete, such as a model without its key, is
//! no problem here: a configuration grows a setting at a time.

use super::models::check_base;
use super::{Config, keys, user_id};
use crate::error::{Context, Error, Kind, Result};
use crate::paths::telegram_chat;
use crate::text::one_line;

impl Config {
    /// Each with what to write instead.
    pub(super) fn problems(&self) -> Vec<Error> {
        let mut problems = Vec::new();
        let mut check = |result: Result<()>| problems.extend(result.err());
        for entry in &self.model_list {
            check(check_base("api_base", entry.api_base.trim()));
            check(check_proxy("model_list[].proxy", &entry.proxy));
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
                check(self.entry(name.trim()).map(drop));
            }
        }
        let share = self.session.compact_at;
        if share > 1.0 {
            let e = format!("session.compact_at is {share}, more than the whole window");
            check(Err(
                Error::config(e).hint("write a share of it, for example 0.8")
            ));
        }
        let telegram = &self.channels.telegram;
        check(keys::check_written(&telegram.token));
        check(check_proxy("channels.telegram.proxy", &telegram.proxy));
        for (setting, address) in [
            ("channels.telegram.api_base", &telegram.api_base),
            ("tools.web.search.base_url", &self.tools.web.search.base_url),
        ] {
            check(check_scheme(setting, address));
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
    // The address may hold a password.
    Err(
        Error::config(format!("{setting} must begin with http:// or https://"))
            .hint("write it as http://HOST:PORT"),
    )
}

/// The address may hold a password, so it is not repeated.
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

fn check_user(written: &str) -> Result<()> {
    if user_id(written).is_some() {
        return Ok(());
    }
    let written = one_line(written, 40);
    Err(Error::config(format!(
        "channels.telegram.allow_from: \"{written}\" is not a numeric id"
    ))
    .hint(
        "the bot tells its owner the id of each stranger who writes to it; bantam status shows the latest",
    ))
}
