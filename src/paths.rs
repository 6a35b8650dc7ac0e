//! Where things are below `$BANTAM_HOME`.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::text::one_line;

/// The directory that holds everything bantam keeps.
#[derive(Clone, Debug)]
pub struct Home {
    root: PathBuf,
}

impl Home {
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn config(&self) -> PathBuf {
        self.root.join("config.json")
    }

    /// What bantam obeys; no tool can write it.
    pub fn agent(&self) -> PathBuf {
        self.root.join("agent")
    }

    /// Where the agent works, unless the configuration names another place.
    pub fn workspace(&self) -> PathBuf {
        self.root.join("workspace")
    }

    pub fn sessions(&self) -> PathBuf {
        self.root.join("sessions")
    }

    /// What was spent, a file a month.
    pub fn usage(&self) -> PathBuf {
        self.root.join("usage")
    }

    /// The live file of the conversation `name`.
    pub fn session(&self, name: &str) -> PathBuf {
        self.sessions().join(format!("{name}.jsonl"))
    }

    /// What is still to be noted in the conversation `name`.
    pub fn session_notes(&self, name: &str) -> PathBuf {
        self.sessions().join(format!("{name}.jsonl.notes"))
    }

    /// What bantam keeps for itself between runs.
    pub fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// The lock that a turn of the conversation `name` holds.
    pub fn session_lock(&self, name: &str) -> PathBuf {
        self.state().join("locks").join(format!("{name}.lock"))
    }

    /// The scheduled jobs.
    pub fn cron_jobs(&self) -> PathBuf {
        self.root.join("cron").join("jobs.json")
    }

    /// What became of them.
    pub fn cron_runs(&self) -> PathBuf {
        self.root.join("cron").join("runs.jsonl")
    }

    /// The lock for both. No conversation has a name like this.
    pub fn cron_lock(&self) -> PathBuf {
        self.session_lock("cron")
    }

    /// The lock that a run of a job holds, by the name of the job's conversation.
    pub fn run_lock(&self, name: &str) -> PathBuf {
        self.session_lock(&format!("{name}.run"))
    }
}

/// The longest file name that still leaves room for a segment number and a suffix below the usual 255 bytes.
const LONGEST_NAME: usize = 200;

/// The name of a conversation on disk: `CHANNEL_CHAT`. Whatever could mean something in a path, and the dot that
/// separates a segment's number, is written as `%XX`.
pub fn session_name(channel: &str, chat: &str) -> Result<String> {
    let mut name = format!("{channel}_");
    for c in chat.chars() {
        if c.is_alphanumeric() || matches!(c, '-' | '_' | '@' | '+') {
            name.push(c);
        } else {
            let mut bytes = [0; 4];
            for b in c.encode_utf8(&mut bytes).bytes() {
                name.push_str(&format!("%{b:02X}"));
            }
        }
    }
    if chat.is_empty() {
        return Err(Error::usage("the session key is empty").hint("give it a name: --session notes"));
    }
    if name.len() > LONGEST_NAME {
        return Err(Error::usage(format!("the session key is too long: {} bytes of {LONGEST_NAME}", name.len()))
            .hint("use a shorter --session key"));
    }
    Ok(name)
}

/// The name of the channel that has chats to deliver to.
pub const TELEGRAM: &str = "telegram";

/// The chat of a place to deliver to, as people write it: `telegram:CHAT`, where CHAT is the number of a user or a group,
/// with the number of a topic behind it where a group has such: `CHAT_TOPIC`. Each number as it is printed.
pub fn telegram_chat(to: &str) -> Result<&str> {
    let is_chat = |chat: &&str| {
        let (number, topic) = chat.split_once('_').map_or((*chat, None), |(number, topic)| (number, Some(topic)));
        // A chat has one name, so that it has one conversation and one order: neither `+42` nor `042` is another for 42.
        number.parse::<i64>().is_ok_and(|n| n != 0 && n.to_string() == number)
            && topic.is_none_or(|topic| topic.parse::<u64>().is_ok_and(|n| n != 0 && n.to_string() == topic))
    };
    to.strip_prefix(TELEGRAM).and_then(|chat| chat.strip_prefix(':')).filter(is_chat).ok_or_else(|| {
        Error::usage(format!("\"{}\" is no place to deliver to", one_line(to, 40)))
            .hint("telegram:CHAT, with the number of a user or a group")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_to_deliver_to_is_a_number_of_telegram() {
        for (to, chat) in [("telegram:42", "42"), ("telegram:-1001", "-1001"), ("telegram:-1001_7", "-1001_7")] {
            assert_eq!(telegram_chat(to).unwrap(), chat);
        }
        for to in ["", "42", "telegram:", "telegram:me", "telegram:4 2", "telegram:1_x", "telegram:1_", "pigeon:1"] {
            assert!(telegram_chat(to).is_err(), "{to}");
        }
        for to in ["telegram:+42", "telegram:042", "telegram:-042", "telegram:0", "telegram:1_+7", "telegram:1_07"] {
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
