//! The layout of `$BANTAM_HOME`, and the names of sessions and chats.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::error::{Error, Kind, Result};
use crate::text::to_single_line;

/// Path of `$BANTAM_HOME`.
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

    /// Adds a hint to a file system error.
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

    /// Identity, guidelines, skills and prompts, read-only for tools.
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

    pub(crate) fn session(&self, name: &str) -> PathBuf {
        self.sessions().join(format!("{name}.jsonl"))
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// HTTP token created by the gateway.
    pub(crate) fn http_token(&self) -> PathBuf {
        self.state().join("http_token")
    }

    /// Earlier versions of the files that a conversation's tools have changed.
    pub(crate) fn undo(&self, session: &str) -> PathBuf {
        self.state().join("undo").join(session)
    }

    /// The user's notes: `USER.md`, `MEMORY.md` and others. File jobs can write them, commands can only read them.
    pub(crate) fn notes(&self) -> PathBuf {
        self.root.join("memory")
    }

    /// Copies of the notes from before the first change of a day.
    pub(crate) fn notes_copy(&self) -> PathBuf {
        self.state().join("notes")
    }

    /// Key of the command line's conversation that was used last.
    pub(crate) fn newest(&self) -> PathBuf {
        self.state().join("newest")
    }

    /// Lines typed in conversations.
    pub(crate) fn history(&self) -> PathBuf {
        self.state().join("history")
    }

    /// Cached tool list of an MCP server.
    pub(crate) fn mcp_tools(&self, server: &str) -> PathBuf {
        self.state().join("mcp").join(format!("{server}.json"))
    }

    /// Home directory of an MCP server's program.
    pub(crate) fn mcp_home(&self, server: &str) -> PathBuf {
        self.state().join("mcp").join(server)
    }

    /// Lock file of a session, which its turn owns, or of something else. Session names have an underscore, so names without
    /// one are free.
    pub(crate) fn lock(&self, name: &str) -> PathBuf {
        self.state().join("locks").join(format!("{name}.lock"))
    }

    pub(crate) fn cron(&self) -> PathBuf {
        self.root.join("cron")
    }

    pub(crate) fn cron_jobs(&self) -> PathBuf {
        self.cron().join("jobs.json")
    }

    /// Results of job runs.
    pub(crate) fn cron_history(&self) -> PathBuf {
        self.cron().join("history.jsonl")
    }
}

/// Maximum length of a session name, in bytes. File names have up to 255; the rest is for a segment number and a suffix.
const MAX_NAME: usize = 200;

/// First character of an unnamed conversation's name.
pub(crate) const UNNAMED: char = '+';

/// Creates a name for an unnamed conversation, such as `+mz3kq81xz0aa`: the time in microseconds, unique within this process,
/// and two digits from the process id.
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

/// Channel of the command line.
pub(crate) const CLI: &str = "cli";

/// Returns the name of a conversation, as the command line prints and takes it. For the command line's own conversations this
/// is the inverse of [`session_name`]; names of others begin with their channel.
pub(crate) fn shown_key(key: &str) -> String {
    let escaped = key.strip_prefix("cli_").unwrap_or(key);
    let name = percent_encoding::percent_decode_str(escaped);
    name.decode_utf8_lossy().into_owned()
}

/// Makes a key, `CHANNEL_CHAT`, from any two texts. All characters of `chat` other than letters, digits, `-`, `_`, `@` and `+`
/// become `%XX`, so that different chats have different keys. `channel` is copied unchanged and should be letters, digits and
/// `-`.
///
/// ```
/// let key = bantam::session_key("web", "ada@example.com")?;
/// assert_eq!(key, "web_ada@example%2Ecom");
/// # Ok::<(), bantam::Error>(())
/// ```
///
/// # Errors
/// Returns an error of the kind [`Kind::Usage`] if `chat` is empty, or the key would be longer than 200 bytes.
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

/// Returns an error if a session name is not one plain file name, or contains a dot, which would be read as a segment number.
pub(crate) fn check_session(name: &str) -> Result<()> {
    let has_meaning = |c: char| matches!(c, '/' | '\\' | '.') || c.is_control();
    if name.len() > MAX_NAME {
        return Err(too_long(name));
    }
    if name.is_empty() || name.contains(has_meaning) {
        let shown = to_single_line(name, 80);
        return Err(Error::usage(format!("invalid session key \"{shown}\""))
            .hint("leave out /, \\, dots and control characters, or let session_key make a key of a text"));
    }
    Ok(())
}

pub(crate) const TELEGRAM: &str = "telegram";

/// Expands `~` at the start of a path to the user's `home`, as a shell does.
pub(crate) fn of_user(written: &str, home: Option<&String>) -> PathBuf {
    match (written.strip_prefix('~'), home) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
            PathBuf::from(format!("{home}{rest}"))
        }
        _ => PathBuf::from(written),
    }
}

/// Returns the chat of a destination `telegram:CHAT`: the number of a user or a group, or `GROUP_TOPIC`.
pub(crate) fn telegram_chat(to: &str) -> Result<&str> {
    // Rejects other spellings, such as `+42` and `042`, so that each chat has one session and one order.
    let is_id = |id: &str| {
        let number = id.parse::<i64>();
        number.is_ok_and(|n| n != 0 && n.to_string() == id)
    };
    let is_chat = |chat: &&str| {
        let (number, topic) = chat
            .split_once('_')
            .map_or((*chat, None), |(number, topic)| (number, Some(topic)));
        is_id(number) && topic.is_none_or(|topic| is_id(topic) && !topic.starts_with('-'))
    };
    to.strip_prefix(TELEGRAM)
        .and_then(|chat| chat.strip_prefix(':'))
        .filter(is_chat)
        .ok_or_else(|| {
            Error::usage(format!(
                "invalid destination \"{}\"",
                to_single_line(to, 40)
            ))
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
        let places =
            "telegram:+42 telegram:042 telegram:-042 telegram:0 telegram:1_+7 telegram:1_07";
        for to in places.split_whitespace() {
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
