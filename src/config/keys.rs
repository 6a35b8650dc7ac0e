//! Where a key really is: written out, in a variable, in a file, or what a command prints.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::thread::Builder;
use std::time::{Duration, Instant};

use super::Env;
use crate::child;
use crate::error::{Context, Error, Result};
use crate::secret::{Redactor, Secret};

/// How long a command may take to print a key.
const COMMAND_TIME: Duration = Duration::from_secs(10);
/// No key is longer.
const LONGEST: u64 = 64 << 10;

/// A key that is looked up when it is first needed: until then no file is opened and no command run.
pub struct Key {
    written: Secret,
    env: Arc<Env>,
    config: PathBuf,
    /// Learns what the key is, so that it is struck wherever it turns up.
    redactor: Redactor,
    found: OnceLock<Secret>,
}

impl Key {
    /// See [`resolve`].
    pub fn new(written: Secret, env: Arc<Env>, config: PathBuf, redactor: Redactor) -> Self {
        Self { written, env, config, redactor, found: OnceLock::new() }
    }

    /// The key. One that is not to be had is looked for again the next time.
    pub fn get(&self) -> Result<&Secret> {
        if let Some(key) = self.found.get() {
            return Ok(key);
        }
        let key = resolve(&self.written, &self.env, &self.config)?;
        self.redactor.learn(key.clone());
        Ok(self.found.get_or_init(|| key))
    }
}

/// The key that `written` in config.json means: `"${VAR}"`, `"file:PATH"`, `"cmd:COMMAND"`, or the key itself.
///
/// `config` is the file it stands in: a command is not run when others could have written it there.
pub fn resolve(written: &Secret, env: &Env, config: &Path) -> Result<Secret> {
    let text = written.reveal().trim();
    let key = if let Some(name) = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) {
        let value = env.get(name).filter(|v| !v.trim().is_empty());
        value.cloned().ok_or_else(|| {
            Error::config(format!("reading a key: the variable {name} is not set")).hint(format!("export {name}=..."))
        })?
    } else if let Some(path) = text.strip_prefix("file:") {
        from_file(path.trim(), env, config)?
    } else if let Some(command) = text.strip_prefix("cmd:") {
        from_command(command, env, config)?
    } else if text.starts_with("enc://") {
        return Err(Error::config("reading a key: it is encrypted by another program")
            .hint("write the key itself into config.json, or \"${VARIABLE}\""));
    } else {
        text.to_owned()
    };
    match key.trim() {
        "" => Err(Error::config("reading a key: it is empty").hint("check what config.json names there")),
        // It could not be sent, and the error then would not say why.
        key if !key.bytes().all(|b| b.is_ascii_graphic()) => {
            Err(Error::config("reading a key: there is space or a strange character in it")
                .hint("check what config.json names there: it should hold the key and nothing else"))
        }
        key => Ok(Secret::new(key)),
    }
}

/// What a written key means, as far as that is known without opening or running anything.
pub fn at_hand(written: &Secret, env: &Env) -> Option<Secret> {
    let text = written.reveal().trim();
    let key = match text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) {
        Some(name) => env.get(name)?.trim(),
        None if text.starts_with("file:") || text.starts_with("cmd:") => return None,
        None => text,
    };
    (!key.is_empty()).then(|| Secret::new(key))
}

/// Where [`resolve`] would look, for people.
pub fn source(written: &Secret) -> String {
    let text = written.reveal().trim();
    if let Some(name) = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) {
        format!("the variable {name}")
    } else if let Some(path) = text.strip_prefix("file:") {
        format!("the file {}", path.trim())
    } else if is_command(written) {
        "a command".to_owned()
    } else {
        "written out".to_owned()
    }
}

/// The variable that the key is to come from, where it is not set.
pub fn missing<'a>(written: &'a Secret, env: &Env) -> Option<&'a str> {
    let name = written.reveal().trim().strip_prefix("${")?.strip_suffix('}')?;
    env.get(name).is_none_or(|value| value.trim().is_empty()).then_some(name)
}

/// Whether [`resolve`] would run a program.
pub fn is_command(written: &Secret) -> bool {
    written.reveal().trim().starts_with("cmd:")
}

/// A relative path is looked for where systemd puts credentials, else beside config.json.
fn from_file(path: &str, env: &Env, config: &Path) -> Result<String> {
    let path = path.strip_prefix("//").unwrap_or(path);
    let path = match (path.strip_prefix("~/"), env.get("HOME"), env.get("CREDENTIALS_DIRECTORY")) {
        (Some(rest), Some(home), _) => Path::new(home).join(rest),
        (None, _, Some(dir)) if !path.starts_with('/') => Path::new(dir).join(path),
        _ => config.parent().map_or_else(|| PathBuf::from(path), |dir| dir.join(path)),
    };
    let mut key = String::new();
    let read = fs_err::File::open(path).and_then(|file| file.take(LONGEST).read_to_string(&mut key));
    read.map_err(|e| Error::config(format!("reading a key: {e}")).hint("check \"file:...\" in config.json"))?;
    Ok(key)
}

fn from_command(command: &str, env: &Env, config: &Path) -> Result<String> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |what: String| Error::config(format!("reading a key from a command: {what}"));
    let mode = fs_err::metadata(config).map_or(0, |meta| meta.permissions().mode());
    if mode & 0o022 != 0 {
        let path = config.display();
        return Err(failed(format!("{path} can be written by others, so its command is not run"))
            .hint(format!("chmod go-w {path}")));
    }
    let words =
        shell_words::split(command).map_err(|e| failed(e.to_string()).hint("mend the quotes of \"cmd:...\""))?;
    let program = words.first().filter(|program| program.starts_with('/')).ok_or_else(|| {
        failed("its program must be an absolute path".to_owned()).hint("write \"cmd:/usr/bin/pass show key\", say")
    })?;
    let mut child = child::command(Path::new(program))
        .args(&words[1..])
        .envs(env)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| failed(format!("{program}: {e}")).hint("check \"cmd:...\" in config.json"))?;
    let until = Instant::now() + COMMAND_TIME;
    let output = child.stdout.take();
    // Read on a thread, so that a command that waits for ever does not take the program with it.
    let (tx, rx) = std::sync::mpsc::channel();
    let reading = move || {
        let mut key = String::new();
        let read = output.map(|output| output.take(LONGEST).read_to_string(&mut key));
        drop(tx.send(read.map(|read| read.map(|_| key))));
    };
    let reader = Builder::new().spawn(reading);
    let read = rx.recv_timeout(until.saturating_duration_since(Instant::now()));
    let Ok(Some(Ok(key))) = read else {
        child.kill().and_then(|()| child.wait()).doing("ending the command")?;
        reader.doing("starting a thread")?;
        return Err(failed(format!("{program} gave nothing in {} s", COMMAND_TIME.as_secs())).hint("run it by hand"));
    };
    let status = child.wait().doing("waiting for the command")?;
    if !status.success() {
        return Err(failed(format!("{program}: {status}")).hint("run it by hand"));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_leads_to_the_key() {
        let dir = std::env::temp_dir().join(format!("bantam-keys-{}", std::process::id()));
        fs_err::create_dir_all(&dir).unwrap();
        fs_err::write(dir.join("key"), "from-file\n").unwrap();
        fs_err::write(dir.join("two"), "one\ntwo\n").unwrap();
        let config = dir.join("config.json");
        fs_err::write(&config, "{}").unwrap();
        let env = Env::from([
            ("VAR".to_owned(), "from-var".to_owned()),
            ("CREDENTIALS_DIRECTORY".to_owned(), dir.display().to_string()),
        ]);
        let key = |written: &str| resolve(&Secret::new(written), &env, &config).map(|s| s.reveal().to_owned());
        assert_eq!(key("plain").unwrap(), "plain");
        assert_eq!(key("${VAR}").unwrap(), "from-var");
        assert_eq!(key("file:key").unwrap(), "from-file");
        assert_eq!(key(&format!("file:{}", dir.join("key").display())).unwrap(), "from-file");
        assert_eq!(key(&format!("file://{}", dir.join("key").display())).unwrap(), "from-file");
        assert_eq!(resolve(&Secret::new("file:key"), &Env::new(), &config).unwrap().reveal(), "from-file");
        assert_eq!(key("cmd:/bin/echo 'from-cmd'").unwrap(), "from-cmd");
        for (written, says) in [
            ("${NONE}", "NONE is not set"),
            ("file:none", "none"),
            ("file:two", "space"),
            ("schl\u{fc}ssel", "strange"),
            ("enc://abc", "encrypted"),
            ("cmd:echo x", "absolute"),
            ("cmd:/bin/false", "exit status: 1"),
            ("cmd:/bin/true", "empty"),
            ("cmd:'", "quote"),
        ] {
            let error = key(written).unwrap_err();
            assert!(error.message.contains(says) && error.hint.is_some(), "{error}");
        }
        let mut mode = fs_err::metadata(&config).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o666);
        fs_err::set_permissions(&config, mode).unwrap();
        assert!(key("cmd:/bin/echo x").unwrap_err().message.contains("written by others"));
        fs_err::remove_dir_all(dir).unwrap();
    }
}
