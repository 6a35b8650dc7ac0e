//! Incoming messages, kept from before Telegram forgets them until they are answered.
//!
//! A journal for each bot, `state/telegram-BOT.jsonl`. Its lines are `{"in":UPDATE,"chat",..}`, a message as it is now, which
//! replaces an earlier line about it; `{"closed":[UPDATE..]}` once messages are answered; `{"stranger":USER}` for an unknown
//! user; and `{"seen":[UPDATE..]}` for the ids of closed messages.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::update::IncomingMessage;
use crate::disk::{self, Durability, Journal, fields};
use crate::error::{Context, Result};

/// Compacts above this size in bytes.
const COMPACT_AT: u64 = 1 << 20;
/// Update ids to remember at least, for deduplication.
const MAX_SEEN: usize = 4000;
/// Unknown users to remember and tell of. Further ones are ignored: anybody can make accounts and write from them.
const MAX_UNKNOWN_USERS: usize = 200;

/// A message that is not answered yet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OpenMessage {
    #[serde(rename = "in")]
    pub update: u64,
    #[serde(flatten)]
    pub message: IncomingMessage,
    /// The updates that its last turn answered together; empty before the first turn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub group: Vec<u64>,
    #[serde(rename = "running")]
    is_running: bool,
    /// Crashes while its turn was the only one running.
    pub crashes: u32,
}

pub(crate) struct Inbox {
    path: PathBuf,
    /// `None` before the first message, and after a failed write: that handle is not trusted again.
    journal: Option<Journal>,
    open: Vec<OpenMessage>,
    /// In order of arrival: Telegram may restart its ids anywhere.
    seen: Vec<u64>,
    /// Who wrote and is not in `allow_from`.
    unknown_users: Vec<i64>,
}

impl Inbox {
    /// Opens the inbox of the bot `bot` in `state`, and returns a sentence for each damage. No other process may have it open.
    pub(crate) fn open(state: &Path, bot: i64) -> Result<(Self, Vec<String>)> {
        let path = state.join(format!("telegram-{bot}.jsonl"));
        let opened = Journal::open(&path).doing("opening the inbox")?;
        let mut inbox = Self::empty(path);
        let Some(opened) = opened else {
            return Ok((inbox, Vec::new()));
        };
        for line in &opened.lines {
            inbox.apply(&line.fields);
        }
        inbox.journal = Some(opened.journal);
        Ok((inbox, opened.damage))
    }

    fn empty(path: PathBuf) -> Self {
        Self {
            path,
            journal: None,
            open: Vec::new(),
            seen: Vec::new(),
            unknown_users: Vec::new(),
        }
    }

    /// The open messages, the oldest first.
    pub(crate) fn all(&self) -> Vec<OpenMessage> {
        self.open.clone()
    }

    /// Those of these messages that are open.
    pub(crate) fn find(&self, ids: &[String]) -> impl Iterator<Item = &OpenMessage> {
        numbers(ids)
            .into_iter()
            .filter_map(|update| self.open.iter().find(|open| open.update == update))
    }

    pub(crate) fn texts(&self, ids: &[String]) -> String {
        let texts = self
            .find(ids)
            .map(|open| open.message.text.as_str())
            .filter(|text| !text.is_empty());
        texts.collect::<Vec<_>>().join("\n\n")
    }

    pub(crate) fn has_seen(&self, update: u64) -> bool {
        self.seen.contains(&update)
    }

    /// Records unknown users while there is room, and returns those that are new.
    pub(crate) fn keep_unknown_users(&mut self, mut users: Vec<i64>) -> Result<Vec<i64>> {
        users.retain(|user| !self.unknown_users.contains(user));
        users.truncate(MAX_UNKNOWN_USERS.saturating_sub(self.unknown_users.len()));
        let lines: Vec<Value> = users.iter().map(|user| json!({"stranger": user})).collect();
        self.append(&lines, Durability::Later)?;
        Ok(users)
    }

    /// Records the messages of a poll. An edit replaces the text of its message until the first turn of that begins. On disk
    /// when this returns.
    pub(crate) fn keep(&mut self, messages: &[(u64, IncomingMessage)]) -> Result<()> {
        let mut changed: Vec<OpenMessage> = Vec::new();
        for (update, message) in messages {
            if !message.is_edit {
                let (update, message) = (*update, message.clone());
                changed.push(OpenMessage {
                    update,
                    message,
                    ..OpenMessage::default()
                });
                continue;
            }
            let is_same = |open: &&OpenMessage| {
                open.message.id == message.id && open.message.chat == message.chat
            };
            let open = self
                .open
                .iter()
                .chain(&changed)
                .find(is_same)
                .filter(|open| open.group.is_empty());
            if let Some(mut open) = open.cloned() {
                open.message.text.clone_from(&message.text);
                changed.push(open);
            }
        }
        self.append_open(&changed, Durability::Now)
    }

    /// Records that a turn for these messages begins.
    pub(crate) fn start(&mut self, ids: &[String]) -> Result<()> {
        let group = numbers(ids);
        let started = self.find(ids).cloned().map(|open| OpenMessage {
            group: group.clone(),
            is_running: true,
            ..open
        });
        self.append_open(&started.collect::<Vec<_>>(), Durability::Later)
    }

    /// Records that the running turns were cut short, by a crash or a shutdown. A crash counts against a turn only if no other
    /// was running.
    pub(crate) fn interrupt(&mut self, is_crash: bool) -> Result<()> {
        let running: Vec<&OpenMessage> = self.open.iter().filter(|open| open.is_running).collect();
        let is_alone = running.iter().all(|open| open.group == running[0].group);
        let crashes = u32::from(is_crash && is_alone);
        let ended = running.iter().map(|&open| OpenMessage {
            is_running: false,
            crashes: open.crashes + crashes,
            ..open.clone()
        });
        self.append_open(&ended.collect::<Vec<_>>(), Durability::Later)
    }

    /// Records that these messages are answered.
    pub(crate) fn close(&mut self, ids: &[String]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        self.append(&[json!({"closed": numbers(ids)})], Durability::Later)
    }

    fn append_open(&mut self, changed: &[OpenMessage], durability: Durability) -> Result<()> {
        let lines: Vec<Value> = changed.iter().map(|open| json!(open)).collect();
        self.append(&lines, durability)
    }

    fn append(&mut self, lines: &[Value], durability: Durability) -> Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut journal = match self.journal.take() {
            Some(journal) => journal,
            None => Journal::open_or_create(&self.path)?.journal,
        };
        journal.append(&fields(lines), durability)?;
        self.journal = Some(journal);
        for line in lines {
            self.apply(line);
        }
        self.compact()
    }

    fn apply(&mut self, line: &Value) {
        let list = |key: &str| {
            line[key]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_u64)
                .collect::<Vec<_>>()
        };
        if line.get("in").is_some() {
            let new = OpenMessage::deserialize(line).unwrap_or_default();
            match self.open.iter_mut().find(|open| open.update == new.update) {
                Some(open) => *open = new,
                None => {
                    self.seen.push(new.update);
                    self.open.push(new);
                }
            }
        }
        self.unknown_users.extend(line["stranger"].as_i64());
        self.seen.extend(list("seen"));
        let closed = list("closed");
        self.open.retain(|open| !closed.contains(&open.update));
    }

    fn compact(&mut self) -> Result<()> {
        // Twice what stays, so that messages that stay open for long are not rewritten each time.
        let open: usize = self.open.iter().map(|open| open.message.text.len()).sum();
        let Some(journal) = &mut self.journal else {
            return Ok(());
        };
        if fs_err::metadata(&self.path)?.len() <= COMPACT_AT.max(2 * open as u64) {
            return Ok(());
        }
        self.seen.drain(..self.seen.len().saturating_sub(MAX_SEEN));
        let mut lines = vec![json!({"v": 1}), json!({"seen": self.seen})];
        lines.extend(
            self.unknown_users
                .iter()
                .map(|user| json!({"stranger": user})),
        );
        lines.extend(self.open.iter().map(|open| json!(open)));
        journal.restart(fields(&lines))
    }
}

#[derive(Debug, Default)]
pub(crate) struct InboxStatus {
    /// How many messages are open.
    pub waiting: usize,
    /// Users who wrote and are not in `allow_from`.
    pub unknown_users: Vec<i64>,
}

/// Reads the inboxes of all bots in `state` and changes nothing.
pub(crate) fn status(state: &Path) -> Result<InboxStatus> {
    let mut status = InboxStatus::default();
    for entry in fs_err::read_dir(state).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let bot = name
            .strip_prefix("telegram-")
            .and_then(|rest| rest.strip_suffix(".jsonl"));
        // Not a copy that compaction made.
        if bot.is_none_or(|bot| bot.parse::<i64>().is_err()) {
            continue;
        }
        let mut inbox = Inbox::empty(entry.path());
        for line in disk::read_journal(&inbox.path)
            .doing("reading the inbox")?
            .unwrap_or_default()
            .lines
        {
            inbox.apply(&line.fields);
        }
        status.waiting += inbox.open.len();
        status.unknown_users.extend(inbox.unknown_users);
    }
    Ok(status)
}

/// The id of a message on the bus.
pub(crate) fn id(update: u64) -> String {
    format!("{}:{update}", super::CHANNEL)
}

fn numbers(ids: &[String]) -> Vec<u64> {
    ids.iter()
        .filter_map(|id| id.rsplit(':').next()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests;
