//! The configuration: finds the home, reads config.json, and turns it into typed settings.

mod check;
pub(crate) use check::listen_address;
pub(crate) mod edit;
pub(crate) mod keys;
mod load;
mod models;
pub(crate) mod path;
pub(crate) mod proxy;
mod settings;
#[cfg(test)]
mod tests;
pub(crate) mod vendors;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use load::{Loaded, Origin, Override};
pub(crate) use models::{Model, check_base, find_bare};
pub(crate) use settings::{
    Config, DailyBudget, Exec, GroupTrigger, McpServer, ModelEntry, Telegram,
};

use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::redact::{REMOVED, is_secret_name};
use crate::secret::Secret;

impl McpServer {
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled && !self.disabled
    }

    /// Returns the possible secrets in its headers, environment, address and arguments. Paths are excluded.
    fn secrets(&self, env: &Env) -> Vec<Secret> {
        let hidden = self.secrets_of_url().chain(self.secrets_of_args());
        let written = self.headers.values().chain(self.env.values()).cloned();
        let values = written
            .chain(hidden.map(Secret::new))
            .filter_map(|value| keys::expand(&value, env).ok());
        let values = values.filter(|value| !value.starts_with('/'));
        // The key of a header follows a word: `Bearer KEY`.
        values
            .flat_map(|value| {
                value
                    .split(' ')
                    .map(Secret::new)
                    .chain([Secret::new(&*value)])
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Returns the password before the host, and query values with secret names.
    fn secrets_of_url(&self) -> impl Iterator<Item = &str> {
        let (address, query) = self.url.split_once('?').unwrap_or((&self.url, ""));
        let (_, rest) = address.split_once("://").unwrap_or_default();
        let authority = rest.split('/').next().unwrap_or_default();
        let user = authority.rsplit_once('@').map(|(user, _)| user);
        let password = user.and_then(|user| user.split(':').next_back());
        let parts = query.split(['&', '#']);
        let named = parts.filter_map(|part| part.split_once('='));
        let secrets = named.filter(|(name, _)| is_secret_name(name));
        password.into_iter().chain(secrets.map(|(_, value)| value))
    }

    /// Returns its command line for people, without the values of `--api-key`, `--token=` and similar flags, however short.
    pub(crate) fn shown_command(&self) -> String {
        let mut shown = self.command.clone();
        let mut is_secret = false;
        for word in &self.args {
            let is_flag = word.starts_with('-');
            let named = if is_flag { word.split_once('=') } else { None };
            shown.push(' ');
            match named {
                Some((name, _)) if is_secret_name(name) => {
                    shown.push_str(&format!("{name}={REMOVED}"));
                }
                _ if is_secret => shown.push_str(REMOVED),
                _ => shown.push_str(word),
            }
            is_secret = is_flag && named.is_none() && is_secret_name(word);
        }
        shown
    }

    /// Returns the values of `--api-key`, `--token=` and similar flags.
    fn secrets_of_args(&self) -> impl Iterator<Item = &str> {
        let following = self.args.iter().skip(1).map(String::as_str).chain([""]);
        let pairs = self.args.iter().map(String::as_str).zip(following);
        let flags = pairs.filter(|(flag, _)| flag.starts_with('-'));
        let named = flags.map(|(flag, next)| flag.split_once('=').unwrap_or((flag, next)));
        named
            .filter(|(name, _)| is_secret_name(name))
            .map(|(_, value)| value)
    }
}

/// Parses the id in an entry of `allow_from`. nanobot writes `ID|name`, where the name may change owners.
pub(crate) fn user_id(written: &str) -> Option<i64> {
    written.split('|').next()?.trim().parse().ok()
}

impl Telegram {
    /// Returns the ids in `allow_from`, the owner first.
    pub(crate) fn ids(&self) -> Vec<i64> {
        self.allow_from
            .iter()
            .filter_map(|written| user_id(written))
            .collect()
    }
}

/// Name of settings that a program gives without a file.
pub(crate) const IN_CODE: &str = "the settings";

/// Loads the settings of a home. `file` is the text of its config.json.
pub(crate) fn load_for(
    home: &Home,
    file: Option<&str>,
    env: &Arc<Env>,
    flags: Vec<Override>,
) -> Result<Loaded> {
    let name = home.config().display().to_string();
    Loaded::read(home, env, file.map(|text| (name.as_str(), text)), flags)
}

/// The environment, read once. Variables that are not Unicode are left out.
pub(crate) type Env = BTreeMap<String, String>;

pub(crate) fn environment() -> Env {
    std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .collect()
}

/// Returns the home: `BANTAM_HOME`, or else systemd's state directory, or else `~/.bantam`.
pub(crate) fn home(env: &Env) -> Result<Home> {
    let set = |name: &str| env.get(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let root = set("BANTAM_HOME")
        // systemd joins several directories with colons; the first is bantam's.
        .or_else(|| {
            set("STATE_DIRECTORY")
                .and_then(|d| d.to_string_lossy().split(':').next().map(PathBuf::from))
        })
        .or_else(|| set("HOME").map(|home| home.join(".bantam")))
        .ok_or_else(|| {
            Error::config("cannot find bantam's home: neither BANTAM_HOME nor HOME is set")
                .hint("set BANTAM_HOME to the directory that should hold its files")
        })?;
    let root = std::path::absolute(root).doing("finding bantam's home")?;
    if std::fs::metadata(&root).is_ok_and(|meta| !meta.is_dir()) {
        return Err(Error::config(format!(
            "bantam's home {} is not a directory",
            root.display()
        ))
        .hint("set BANTAM_HOME to a directory that you can write"));
    }
    Ok(Home::new(root))
}

/// Maximum size of config.json, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// Returns the text of config.json, or `None` if it is missing.
pub(crate) fn read(home: &Home) -> Result<Option<String>> {
    let path = home.config();
    match read_json(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(
            Error::config(format!("cannot read {}: {}", path.display(), reason(&e)))
                .hint("make it a readable JSON file, or set BANTAM_HOME to another directory"),
        ),
        Ok(text) => Ok(Some(text)),
    }
}

/// Returns the text of a regular file, limited to [`MAX_SIZE`].
pub(crate) fn read_json(path: &Path) -> std::io::Result<String> {
    let refuse = |what: String| Err(std::io::Error::new(ErrorKind::InvalidData, what));
    // Checked before opening, because opening a pipe blocks.
    let meta = std::fs::metadata(path)?;
    if !meta.is_file() {
        return refuse("it is not a file".to_owned());
    }
    if meta.len() > MAX_SIZE {
        return refuse(format!("it is larger than {} KiB", MAX_SIZE >> 10));
    }
    String::from_utf8(std::fs::read(path)?).or_else(|e| {
        let line = e.as_bytes()[..e.utf8_error().valid_up_to()]
            .iter()
            .filter(|b| **b == b'\n')
            .count()
            + 1;
        refuse(format!("line {line} is not UTF-8"))
    })
}

/// Returns the message of an error, without the error number.
fn reason(e: &std::io::Error) -> String {
    if e.raw_os_error().is_some() {
        e.kind().to_string()
    } else {
        e.to_string()
    }
}
