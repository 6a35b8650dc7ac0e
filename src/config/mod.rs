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

pub(crate) use load::{Loaded, Override};
pub(crate) use models::{Model, check_base, find_bare};
pub(crate) use settings::{
    Config, DailyBudget, Exec, GroupTrigger, McpServer, ModelEntry, Telegram,
};

use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::redact::{REMOVED, Redactor, is_secret_name};
use crate::secret::Secret;

impl McpServer {
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled && !self.disabled
    }

    /// Returns the possible secrets in its headers, environment, address and arguments. Paths are excluded.
    fn secrets(&self, env: &Env) -> Vec<Secret> {
        let args = self.args_and_secrets().map(|(_, secret)| secret);
        // A variable in an argument is a secret if its name is one's.
        let words = self.args.iter().flat_map(|word| word.split("${").skip(1));
        let names = words.filter_map(|word| word.split(['}', ':']).next());
        let variables = names.filter(|name| is_secret_name(name));
        let variables = variables.filter_map(|name| env.get(name).map(String::as_str));
        let hidden = self.secrets_of_url().chain(args).chain(variables);
        let hidden = hidden.map(Secret::new);
        let written = self.headers.values().chain(self.env.values()).cloned();
        let values = written.chain(hidden);
        let values = values.filter_map(|value| keys::expand(&value, env).ok());
        let values = values.filter(|value| !value.starts_with('/'));
        // The key of a header follows a word: `Bearer KEY`.
        let with_words = |value: String| {
            let words = value.split(' ').map(Secret::new);
            words.chain([Secret::new(&*value)]).collect::<Vec<_>>()
        };
        values.flat_map(with_words).collect()
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

    /// Returns each argument in two parts, of which the second is the value of `--api-key`, `--token=` and similar flags.
    fn args_and_secrets(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut is_value = false;
        self.args.iter().map(move |word| {
            let flag = Some(word.as_str()).filter(|word| word.starts_with('-'));
            let flag = flag.unwrap_or_default();
            let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
            let is_secret = is_secret_name(name);
            let at = match value {
                "" if is_value => 0,
                "" => word.len(),
                _ if is_secret => name.len() + 1,
                _ => word.len(),
            };
            is_value = is_secret && value.is_empty();
            word.split_at(at)
        })
    }

    /// Returns its command line for people, without secrets.
    pub(crate) fn shown_command(&self) -> String {
        let mut shown = self.command.clone();
        for (word, secret) in self.args_and_secrets() {
            let secret = if secret.is_empty() { "" } else { REMOVED };
            shown.push_str(&format!(" {word}{secret}"));
        }
        shown
    }
}

/// Parses the id in an entry of `allow_from`. nanobot writes `ID|name`, where the name may change owners.
pub(crate) fn user_id(written: &str) -> Option<i64> {
    written.split('|').next()?.trim().parse().ok()
}

impl Telegram {
    /// Returns the ids in `allow_from`, the owner first.
    pub(crate) fn ids(&self) -> Vec<i64> {
        let written = self.allow_from.iter();
        written.filter_map(|written| user_id(written)).collect()
    }
}

/// Returns a written name or value for an error, as one line. A key in the wrong place is removed before the line is cut.
pub(crate) fn shown(written: &str) -> String {
    Redactor::default().foreign(written, 80)
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
        .or_else(|| set("STATE_DIRECTORY"))
        .or_else(|| set("HOME").map(|home| home.join(".bantam")))
        .ok_or_else(|| {
            Error::config("cannot find bantam's home: neither BANTAM_HOME nor HOME is set")
                .hint("set BANTAM_HOME to the directory that should hold its files")
        })?;
    let root = std::path::absolute(root).doing("finding bantam's home")?;
    if std::fs::metadata(&root).is_ok_and(|meta| !meta.is_dir()) {
        let what = format!("bantam's home {} is not a directory", root.display());
        return Err(Error::config(what).hint("set BANTAM_HOME to a directory that you can write"));
    }
    Ok(Home::new(root))
}

/// Maximum size of config.json, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// Returns the text of config.json, or `None` if it is missing.
pub(crate) fn read(home: &Home) -> Result<Option<String>> {
    let path = home.config();
    match read_json(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound && path.is_symlink() => {
            let what = format!("{} is a link to a missing file", path.display());
            Err(Error::config(what).hint("create that file, or remove the link"))
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => {
            let what = format!("cannot read {}: {}", path.display(), Error::from(e));
            Err(Error::config(what)
                .hint("make it a JSON file that you own; `bantam doctor` tells how"))
        }
        Ok(text) => Ok(Some(text)),
    }
}

/// Returns the text of a regular file, limited to [`MAX_SIZE`].
pub(crate) fn read_json(path: &Path) -> std::io::Result<String> {
    let refuse = |what: &str| Err(std::io::Error::new(ErrorKind::InvalidData, what));
    // Checked before opening, because opening a pipe blocks.
    let meta = std::fs::metadata(path)?;
    if !meta.is_file() {
        return refuse("not a file");
    }
    if meta.len() > MAX_SIZE {
        return refuse("larger than 1 MB");
    }
    String::from_utf8(std::fs::read(path)?).or_else(|_| refuse("not UTF-8"))
}
