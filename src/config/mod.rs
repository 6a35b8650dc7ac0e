//! The configuration: finds the home, reads config.json, and turns it into the values that the program uses.

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
pub(crate) use models::{Model, check_base, in_config};
pub(crate) use settings::{
    Config, DailyBudget, Exec, GroupTrigger, McpServer, ModelEntry, Telegram,
};

use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::redact::{REMOVED, is_secret_name};
use crate::secret::Secret;

impl McpServer {
    /// Whether its tools are offered.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled && !self.disabled
    }

    /// What its headers, its environment, its address and its arguments may hold of secrets. A path is none.
    fn secrets(&self, env: &Env) -> Vec<Secret> {
        let hidden = self.secrets_of_url().chain(self.secrets_of_args());
        let written = self.headers.values().chain(self.env.values()).cloned();
        let values = written
            .chain(hidden.map(Secret::new))
            .filter_map(|value| keys::expand(&value, env).ok());
        let values = values.filter(|value| !value.starts_with('/'));
        // The key of a header stands behind a word: `Bearer KEY`.
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

    /// The password before the host, and the parts of the query whose names say so.
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

    /// How it is started, for people: without the words behind `--api-key`, `--token=` and the like, however short.
    pub(crate) fn shown_command(&self) -> String {
        let mut shown = self.command.clone();
        let mut is_secret = false;
        for word in &self.args {
            let named = word.split_once('=').filter(|_| word.starts_with('-'));
            shown.push(' ');
            match named {
                Some((name, _)) if is_secret_name(name) => {
                    shown.push_str(&format!("{name}={REMOVED}"));
                }
                _ if is_secret => shown.push_str(REMOVED),
                _ => shown.push_str(word),
            }
            is_secret = word.starts_with('-') && named.is_none() && is_secret_name(word);
        }
        shown
    }

    /// The words behind `--api-key`, `--token=` and the like.
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

/// The id that an entry of `allow_from` stands for. nanobot writes `ID|name`, and a name may change workers.
pub(crate) fn user_id(written: &str) -> Option<i64> {
    written.split('|').next()?.trim().parse().ok()
}

impl Telegram {
    /// The ids in `allow_from`, the owner first.
    pub(crate) fn ids(&self) -> Vec<i64> {
        self.allow_from
            .iter()
            .filter_map(|written| user_id(written))
            .collect()
    }
}

/// A home with its settings and the environment: what an agent, a bot and requests are made from.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub home: &'a Home,
    pub config: &'a Arc<Config>,
    pub env: &'a Env,
}

/// The name of settings that stand in no file, but in a program.
pub(crate) const IN_CODE: &str = "the settings";

/// The settings of a home: `file` is the text of its config.json.
pub(crate) fn load_for(
    home: &Home,
    file: Option<&str>,
    env: &Env,
    flags: Vec<Override>,
) -> Result<Loaded> {
    let name = home.config().display().to_string();
    Config::load(file.map(|text| (name.as_str(), text)), env, flags)
}

/// The environment, read once. A variable that is not Unicode cannot be a setting.
pub(crate) type Env = BTreeMap<String, String>;

pub(crate) fn environment() -> Env {
    std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .collect()
}

/// Where everything is kept: `BANTAM_HOME`, else systemd's state directory, else `~/.bantam`.
pub(crate) fn home(env: &Env) -> Result<Home> {
    let set = |name: &str| env.get(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let root = set("BANTAM_HOME")
        // systemd joins several directories with colons; ours is the first.
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

/// The largest config.json, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// The text of config.json, `None` when there is none.
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

/// The text of a regular file of reasonable size.
pub(crate) fn read_json(path: &Path) -> std::io::Result<String> {
    let refuse = |what: String| Err(std::io::Error::new(ErrorKind::InvalidData, what));
    // Checked before opening, which blocks on a pipe.
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

/// An error without the system's number for it.
fn reason(e: &std::io::Error) -> String {
    if e.raw_os_error().is_some() {
        e.kind().to_string()
    } else {
        e.to_string()
    }
}
