//! Resolves API keys from plain text, a variable, a file, or the output of a command.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread::Builder;
use std::time::Duration;

use rustix::process::geteuid;

use super::{Env, Loaded};
use crate::access::Resolved;
use crate::child;
use crate::error::{Context, Error, Result};
use crate::paths::of_user;
use crate::redact::Redactor;
use crate::secret::Secret;

/// Maximum time of a command that prints a key.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a key, in bytes.
const MAX_LENGTH: u64 = 64 << 10;

/// A key that is resolved at its first use; before that, no file is opened and no command run.
pub(crate) struct ApiKey {
    written: Secret,
    env: Arc<Env>,
    config: PathBuf,
    redactor: Redactor,
    resolved: OnceLock<Secret>,
}

impl ApiKey {
    /// Creates a key to be resolved by [`resolve`]. A resolved key is also given to the redactor.
    pub(crate) fn new(written: &Secret, loaded: &Loaded, redactor: &Redactor) -> Self {
        Self {
            written: written.clone(),
            env: loaded.env.clone(),
            config: loaded.home.config(),
            redactor: redactor.clone(),
            resolved: OnceLock::new(),
        }
    }

    /// Creates a key from its plain text.
    ///
    /// # Errors
    /// Returns an error if a request cannot carry the key.
    pub(crate) fn from_text(key: &str) -> Result<Self> {
        let key = Secret::new(check(key.trim(), "the API key")?);
        Ok(Self {
            written: key.clone(),
            env: Arc::default(),
            config: PathBuf::new(),
            redactor: Redactor::default(),
            resolved: OnceLock::from(key),
        })
    }

    /// Returns the key, if it was resolved.
    pub(crate) fn known(&self) -> Option<&Secret> {
        self.resolved.get()
    }

    /// Returns the key. After a failure the next call tries again.
    pub(crate) fn get(&self) -> Result<&Secret> {
        if let Some(key) = self.resolved.get() {
            return Ok(key);
        }
        let key = resolve(&self.written, &self.env, &self.config)?;
        self.redactor.learn(key.clone());
        Ok(self.resolved.get_or_init(|| key))
    }
}

/// Splits an `api_key` of config.json: `${NAME}`, `file:PATH`, `cmd:COMMAND`, or the key itself.
fn parse(written: &Secret) -> (&'static str, &str) {
    let text = written.reveal().trim();
    let forms = [("${", "}"), ("file:", ""), ("cmd:", "")];
    let form = forms
        .iter()
        .find_map(|(start, end)| Some((*start, text.strip_prefix(start)?.strip_suffix(end)?)));
    form.unwrap_or(("", text))
}

fn unset(name: &str) -> Error {
    let hint = format!("export {name}=..., or run `bantam onboard`");
    Error::config(format!("{name} is not set")).hint(hint)
}

/// Returns the trimmed value of a variable, unless it is empty.
pub(super) fn variable<'a>(name: &str, env: &'a Env) -> Option<&'a str> {
    env.get(name)
        .map(|value| value.trim())
        .filter(|value| !value.is_empty())
}

/// Returns the key that `written` refers to. `config` is the file that contains it.
pub(crate) fn resolve(written: &Secret, env: &Env, config: &Path) -> Result<Secret> {
    let key = match parse(written) {
        ("${", name) => variable(name, env).ok_or_else(|| unset(name))?.to_owned(),
        ("file:", path) => read_file(path.trim(), env, config)?,
        ("cmd:", command) => run_command(command, env, config)?,
        (_, key) => key.to_owned(),
    };
    check(key.trim(), &format!("the key from {}", source(written))).map(Secret::new)
}

/// Returns an error if a request cannot carry the key.
fn check<'a>(key: &'a str, place: &str) -> Result<&'a str> {
    let what = match key {
        "" => "is empty",
        key if key.starts_with('$') => "looks like a variable; write \"${NAME}\"",
        key if key.bytes().all(|b| b.is_ascii_graphic()) => return Ok(key),
        _ => "has a space or a control character",
    };
    Err(Error::config(format!("{place} {what}")).hint("set it to the key alone"))
}

/// Returns an error for a plain-text key that can never be used.
pub(super) fn check_written(written: &Secret, setting: &str) -> Result<()> {
    match parse(written) {
        ("", key) if !key.is_empty() => check(key, setting).map(drop),
        _ => Ok(()),
    }
}

/// Returns the key if it needs no file and no command.
pub(crate) fn known(written: &Secret, env: &Env) -> Option<Secret> {
    let key = match parse(written) {
        ("", key) => key,
        ("${", name) => variable(name, env)?,
        _ => return None,
    };
    (!key.is_empty()).then(|| Secret::new(key))
}

/// Replaces `${NAME}` anywhere in a text by the variable of that name, and `${NAME:-TEXT}` by the text if the variable is unset
/// or empty.
pub(crate) fn expand(written: &Secret, env: &Env) -> Result<String> {
    let mut parts = written.reveal().split("${");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let Some((name, after)) = part.split_once('}') else {
            text = text + "${" + part;
            continue;
        };
        let parts = name.split_once(":-");
        let (name, default) = parts.map_or((name, None), |(name, text)| (name, Some(text)));
        let set = env.get(name).map(String::as_str);
        let set = set.filter(|value| default.is_none() || !value.is_empty());
        let value = set.or(default).ok_or_else(|| unset(name))?;
        text = text + value + after;
    }
    Ok(text)
}

/// Describes for people where [`resolve`] finds the key.
pub(crate) fn source(written: &Secret) -> String {
    match parse(written) {
        ("${", name) => format!("the variable {name}"),
        ("file:", path) => format!("the file {path}"),
        ("cmd:", _) => "a command in config.json".to_owned(),
        _ => "config.json (plain text)".to_owned(),
    }
}

/// Returns the unset variable that the key should come from.
pub(crate) fn missing<'a>(written: &'a Secret, env: &Env) -> Option<&'a str> {
    let (form, name) = parse(written);
    (form == "${" && variable(name, env).is_none()).then_some(name)
}

/// Whether [`resolve`] would run a program.
pub(crate) fn is_command(written: &Secret) -> bool {
    parse(written).0 == "cmd:"
}

/// Reads a key from a file. A relative path is relative to systemd's credentials directory, or else to config.json's directory.
fn read_file(path: &str, env: &Env, config: &Path) -> Result<String> {
    let path = of_user(path, env.get("HOME"));
    let beside = || config.with_file_name("");
    let dir = env.get("CREDENTIALS_DIRECTORY");
    let path = dir.map_or_else(beside, PathBuf::from).join(path);
    let mut key = String::new();
    let file = fs_err::File::open(path);
    let read = file.and_then(|file| file.take(MAX_LENGTH).read_to_string(&mut key));
    let read = read.map(|_| key).doing("reading a key");
    read.map_err(|e| Error::config(e.message).hint("check \"file:...\" in config.json"))
}

/// Returns a component of the path (the file, the directories above it or a link to it) that a user other than the caller and
/// root owns or can write, and why. That user could make bantam run any program.
fn changeable(file: &Path) -> Result<Option<(PathBuf, String)>> {
    let found = Resolved::follow(&std::path::absolute(file)?);
    let files = found.links.iter().chain([&found.real]);
    for place in files.flat_map(|entry| entry.ancestors()) {
        let meta = fs_err::symlink_metadata(place)?;
        // In a sticky directory users may only change their own files; a link has no mode.
        let is_shared = meta.is_symlink() || meta.is_dir() && meta.mode() & 0o1000 != 0;
        let who = if ![0, geteuid().as_raw()].contains(&meta.uid()) {
            format!("user {} owns", meta.uid())
        } else if meta.mode() & 0o022 != 0 && !is_shared {
            "others can write".to_owned()
        } else {
            continue;
        };
        return Ok(Some((place.to_owned(), who)));
    }
    Ok(None)
}

fn run_command(command: &str, env: &Env, config: &Path) -> Result<String> {
    const HINT: &str = "correct \"cmd:...\" in config.json, such as \"cmd:/usr/bin/pass show key\"";
    let fail = |what: String, hint: &str| {
        Err(Error::config(format!("reading a key from a command: {what}")).hint(hint))
    };
    if let Some((place, who)) = changeable(config)? {
        let place = place.display();
        let hint = format!(
            "only you or root should own {place} and be able to write it: chown, or chmod go-w {place}"
        );
        return fail(format!("{who} {place}, so its command was not run"), &hint);
    }
    let words = shell_words::split(command).unwrap_or_default();
    let Some(program) = words.first().filter(|program| program.starts_with('/')) else {
        return fail("its program must be an absolute path".to_owned(), HINT);
    };
    let mut child = child::command(Path::new(program));
    let child = child.args(&words[1..]).envs(env).stdout(Stdio::piped());
    let mut child = match child.spawn() {
        Ok(child) => child,
        Err(e) => return fail(format!("cannot start {program}: {}", Error::from(e)), HINT),
    };
    // Read on a thread, because the command may never end.
    let (send, receive) = mpsc::channel();
    let stdout = child.stdout.take();
    let reader = move || {
        let mut key = String::new();
        let read = stdout.map(|stdout| stdout.take(MAX_LENGTH).read_to_string(&mut key));
        drop(send.send(read.map(|read| read.map(|_| key))));
    };
    Builder::new().spawn(reader).doing("starting a thread")?;
    let Ok(Some(Ok(key))) = receive.recv_timeout(COMMAND_TIMEOUT) else {
        let killed = child.kill().and_then(|()| child.wait());
        killed.doing("ending the command")?;
        let seconds = COMMAND_TIMEOUT.as_secs();
        let what = format!("{program} printed no key within {seconds} s");
        return fail(what, "run it by hand");
    };
    let status = child.wait().doing("waiting for the command")?;
    if !status.success() {
        return fail(format!("{program}: {status}"), "run it by hand");
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    #[test]
    fn each_form_leads_to_the_key() {
        let dir = TestDir::new();
        fs_err::write(dir.join("key"), "from-file\n").unwrap();
        fs_err::write(dir.join("two"), "one\ntwo\n").unwrap();
        let config = dir.join("config.json");
        fs_err::write(&config, "{}").unwrap();
        let env = Env::from([
            ("VAR".to_owned(), "from-var".to_owned()),
            (
                "CREDENTIALS_DIRECTORY".to_owned(),
                dir.display().to_string(),
            ),
        ]);
        let key = |written: &str| {
            resolve(&Secret::new(written), &env, &config).map(|s| s.reveal().to_owned())
        };
        assert_eq!(key("plain").unwrap(), "plain");
        assert_eq!(key("${VAR}").unwrap(), "from-var");
        assert_eq!(key("file:key").unwrap(), "from-file");
        assert_eq!(
            key(&format!("file:{}", dir.join("key").display())).unwrap(),
            "from-file"
        );
        assert_eq!(
            resolve(&Secret::new("file:key"), &Env::new(), &config)
                .unwrap()
                .reveal(),
            "from-file"
        );
        assert_eq!(key("cmd:/bin/echo 'from-cmd'").unwrap(), "from-cmd");
        for (written, says) in [
            ("${NONE}", "NONE is not set"),
            ("file:none", "none"),
            ("file:two", "a space"),
            ("schl\u{fc}ssel", "control character"),
            ("cmd:echo x", "absolute"),
            ("cmd:/bin/false", "exit status: 1"),
            ("cmd:/bin/true", "empty"),
            ("cmd:'", "absolute"),
        ] {
            let error = key(written).unwrap_err();
            assert!(
                error.message.contains(says) && error.hint.is_some(),
                "{error}"
            );
        }
    }
}
