//! The layout of `$BANTAM_HOME`, and the names of sessions and chats.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::error::{Error, Kind, Result};
use crate::text::one_line;

/// `$BANTAM_HOME`.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    root: PathBuf,
}

impl Home {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Adds a hint to an error of the file system.
    pub(crate) fn hinted(&self, e: Error) -> Error {
        if e.hint.is_some() || e.kind != Kind::Failed {
            return e;
        }
        let root = self.root.display();
        e.hint(format!(
            "check that {root} is a directory you can write, or set BANTAM_HOME to another"
        ))
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.root.join("config.json")
    }

    /// Identity, guidelines, skills and prompts; no tool can write them.
    pub(crate) fn agent(&self) -> PathBuf {
        self.root.join("agent")
    }

    /// The default workspace.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.root.join("workspace")
    }

    pub(crate) fn sessions(&self) -> PathBuf {
        self.root.join("sessions")
    }

    pub(crate) fn usage(&self) -> PathBuf {
        self.root.join("usage")
    }

    /// The live file of a session.
    pub(crate) fn session(&self, name: &str) -> PathBuf {
        self.sessions().join(format!("{name}.jsonl"))
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// The token of the HTTP endpoint that the gateway made.
    pub(crate) fn http_token(&self) -> PathBuf {
        self.state().join("http_token")
    }

    /// What the files were that a conversation's tools have changed.
    pub(crate) fn undo(&self, session: &str) -> PathBuf {
        self.state().join("undo").join(session)
    }

    /// The user's notes: `USER.md`, `MEMORY.md` and others. File jobs write them, commands only read.
    pub(crate) fn notes(&self) -> PathBuf {
        self.root.join("memory")
    }

    /// The notes as they were before the first change of a day.
    pub(crate) fn notes_copy(&self) -> PathBuf {
        self.state().join("notes")
    }

    /// What was typed in conversations.
    pub(crate) fn history(&self) -> PathBuf {
        self.state().join("history")
    }

    /// What the tools of an MCP server are.
    pub(crate) fn mcp_tools(&self, server: &str) -> PathBuf {
        self.state().join("mcp").join(format!("{server}.json"))
    }

    /// The home directory of an MCP server's program.
    pub(crate) fn mcp_home(&self, server: &str) -> PathBuf {
        self.state().join("mcp").join(server)
    }

    /// A lock: of a session, which a turn holds, or of something else. The names of sessions have an underscore, so others are
    /// free.
    pub(crate) fn lock(&self, name: &str) -> PathBuf {
        self.state().join("locks").join(format!("{name}.lock"))
    }

    pub(crate) fn cron(&self) -> PathBuf {
        self.root.join("cron")
    }

    pub(crate) fn cron_jobs(&self) -> PathBuf {
        self.cron().join("jobs.json")
    }

    /// What became of the runs of jobs.
    pub(crate) fn cron_history(&self) -> PathBuf {
        self.cron().join("history.jsonl")
    }

    /// Guards the jobs. No session has this name.
    pub(crate) fn cron_lock(&self) -> PathBuf {
        self.lock("cron")
    }
}

/// Leaves room for a segment number and a suffix within the usual 255 bytes of a file name.
const MAX_NAME: usize = 200;

/// Begins the name of a conversation that its user has not named.
pub(crate) const UNNAMED: char = '+';

/// A name for a conversation that its user has not named, `+mz3kq81xz0aa` say: the time in microseconds, which no other of this
/// process has, and two digits of the process.
pub(crate) fn fresh_key(now: SystemTime) -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let micros = u64::try_from(since.as_micros()).unwrap_or_default();
    let later = |last: u64| micros.max(last + 1);
    let last = LAST.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |last| Some(later(last)));
    let mut left = later(last.unwrap_or_default()) * 1_296 + u64::from(std::process::id()) % 1_296;
    let mut digits = Vec::new();
    while left > 0 {
        digits.push(b"0123456789abcdefghijklmnopqrstuvwxyz"[(left % 36) as usize]);
        left /= 36;
    }
    digits.reverse();
    format!("{UNNAMED}{}", String::from_utf8_lossy(&digits))
}

/// A conversation's key as the command line prints and takes it: those of the command line are without `cli_`.
pub(crate) fn shown_key(key: &str) -> &str {
    key.strip_prefix("cli_").unwrap_or(key)
}

/// A key for any two texts, `CHANNEL_CHAT`: all characters of `chat` but letters, digits, `-`, `_`, `@` and `+` become `%XX`, so
/// that no two chats share one. `channel` stays as it is: let it be letters, digits and `-`.
///
/// ```
/// let key = bantam::session_key("web", "ada@example.com")?;
/// assert_eq!(key, "web_ada@example%2Ecom");
/// # Ok::<(), bantam::Error>(())
/// ```
///
/// # Errors
/// Of the kind [`Kind::Usage`]: `chat` is empty, or the key would be longer than 200 bytes.
pub fn session_name(channel: &str, chat: &str) -> Result<String> {
    let mut name = format!("{channel}_");
    for c in chat.chars() {
        if c.is_alphanumeric() || matches!(c, '-' | '_' | '@' | '+') {
            name.push(c);
        } else {
            name.extend(c.to_string().bytes().map(|b| format!("%{b:02X}")));
        }
    }
    if chat.is_empty() {
        return Err(
            Error::usage("the session key is empty").hint("give it a name: --session notes")
        );
    }
    if name.len() > MAX_NAME {
        return Err(too_long(&name).hint("use a shorter --session key"));
    }
    Ok(name)
}

fn too_long(name: &str) -> Error {
    let bytes = name.len();
    Error::usage(format!(
        "the session key is too long: {bytes} bytes of {MAX_NAME}"
    ))
}

/// Fails for the name of a session that is not one plain file name, or that a segment number would be read from.
pub(crate) fn check_session(name: &str) -> Result<()> {
    let has_meaning = |c: char| matches!(c, '/' | '\\' | '.') || c.is_control();
    if name.len() > MAX_NAME {
        return Err(too_long(name));
    }
    if name.is_empty() || name.contains(has_meaning) {
        let shown = one_line(name, 80);
        return Err(Error::usage(format!("invalid session key \"{shown}\""))
            .hint("leave out /, \\, dots and control characters, or let session_key make a key of a text"));
    }
    Ok(())
}

/// The name of the Telegram channel.
pub(crate) const TELEGRAM: &str = "telegram";

/// The path that the user means: `~/notes` is in their home, as in a shell.
pub(crate) fn of_user(written: &str, env: &BTreeMap<String, String>) -> PathBuf {
    match (written.strip_prefix('~'), env.get("HOME")) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
            PathBuf::from(format!("{home}{rest}"))
        }
        _ => PathBuf::from(written),
    }
}

/// The chat of a destination `telegram:CHAT`: the number of a user or a group, or `GROUP_TOPIC`.
pub(crate) fn telegram_chat(to: &str) -> Result<&str> {
    let is_chat = |chat: &&str| {
        let (number, topic) = chat
            .split_once('_')
            .map_or((*chat, None), |(number, topic)| (number, Some(topic)));
        // One spelling for each chat, so that it has one session and one order: not `+42` or `042`.
        number
            .parse::<i64>()
            .is_ok_and(|n| n != 0 && n.to_string() == number)
            && topic.is_none_or(|topic| {
                topic
                    .parse::<u64>()
                    .is_ok_and(|n| n != 0 && n.to_string() == topic)
            })
    };
    to.strip_prefix(TELEGRAM)
        .and_then(|chat| chat.strip_prefix(':'))
        .filter(is_chat)
        .ok_or_else(|| {
            Error::usage(format!("invalid destination \"{}\"", one_line(to, 40)))
                .hint("write a chat, such as `telegram:123456789`")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_to_deliver_to_is_a_number_of_telegram() {
        for (to, chat) in [
            ("telegram:42", "42"),
            ("telegram:-1001", "-1001"),
            ("telegram:-1001_7", "-1001_7"),
        ] {
            assert_eq!(telegram_chat(to).unwrap(), chat);
        }
        for to in [
            "",
            "42",
            "telegram:",
            "telegram:me",
            "telegram:4 2",
            "telegram:1_x",
            "telegram:1_",
            "pigeon:1",
        ] {
            assert!(telegram_chat(to).is_err(), "{to}");
        }
        for to in [
            "telegram:+42",
            "telegram:042",
            "telegram:-042",
            "telegram:0",
            "telegram:1_+7",
            "telegram:1_07",
        ] {
            assert!(telegram_chat(to).is_err(), "{to}");
        }
    }

    #[test]
    fn a_session_name_is_one_harmless_file_name() {
        let name = |chat| session_name("cli", chat).unwrap();
        assert_eq!(name("default"), "cli_default");
        assert_eq!(name("../x.3"), "cli_%2E%2E%2Fx%2E3");
        assert_eq!(name("日本 1"), "cli_日本%201");
        assert!(session_name("cli", "").is_err());
        assert!(session_name("cli", &"x".repeat(300)).is_err());
    }
}
