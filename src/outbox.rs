//! Messages to chats, kept until they are delivered.
//!
//! A journal, `state/outbox.jsonl`. Any process may post, under the lock; the holder of the sender's lock delivers: the gateway, or
//! another process while none runs. Its lines are `{"post":ID,"to","text",..}`, which replaces an earlier line about that message;
//! `{"said":ID,"pieces":N}` after each piece of a long message; and at the end `{"over":ID}`, with `"why"` when it was given up.
//! Delivery is at least once: `over` is written when Telegram has answered and is not synced, so a power cut may repeat what was sent
//! last. `{"answered":[..]}` holds what an earlier file knew to be answered. Files to send are copies in `state/outbox/`.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cancel::Cancel;
use crate::disk::{self, Durability, Journal, Line, Lock, NewFile, fields};
use crate::error::{Context, Result};
use crate::paths::{Home, telegram_chat};
use crate::text::one_line;

/// A message to a chat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Item {
    /// `telegram:CHAT`.
    pub to: String,
    /// Markdown.
    pub text: String,
    /// The ids of the incoming messages that it answers.
    pub answers: Vec<String>,
    /// A file to send along, by its name in `state/outbox/`; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// The name that people see it under.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// A message that is not delivered yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Pending {
    #[serde(rename = "post")]
    pub id: String,
    #[serde(flatten)]
    pub item: Item,
    /// How many of its pieces are sent.
    pub pieces: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Pending,
    Sent,
    /// It will never be accepted; the reason.
    GivenUp(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Outbox {
    home: Home,
}

/// How long to wait for the lock, which others hold for one write.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Compacts above this size in bytes. The file is read whole for every message.
const COMPACT_AT: u64 = 32 << 10;
/// Answered messages, and outcomes, to remember when compacting: more than an inbox can have open.
const REMEMBERED: usize = 500;
/// The longest reason for giving up, in bytes.
const MAX_REASON: usize = 200;

impl Outbox {
    pub(crate) fn new(home: Home) -> Self {
        Self { home }
    }

    fn path(&self) -> PathBuf {
        self.home.state().join("outbox.jsonl")
    }

    fn files(&self) -> PathBuf {
        self.home.state().join("outbox")
    }

    /// The path of a file to send, by its name in [`Item::file`].
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.files().join(name)
    }

    /// A new file to fill, keep and then post, and its name. Hold it until it is posted.
    pub(crate) fn new_file(&self) -> Result<(NewFile, String)> {
        let name = fresh_id();
        Ok((NewFile::begin(&self.file(&name))?, name))
    }

    /// Posts a message and returns its id. On disk when this returns.
    pub(crate) fn post(&self, item: &Item) -> Result<String> {
        telegram_chat(&item.to)?;
        let new = Pending {
            id: fresh_id(),
            item: item.clone(),
            ..Pending::default()
        };
        self.append(&json!(new), Durability::Now)
            .doing("keeping a message to be sent")?;
        Ok(new.id)
    }

    /// Records how many pieces are sent.
    pub(crate) fn progress(&self, id: &str, pieces: usize) -> Result<()> {
        self.append(&json!({"said": id, "pieces": pieces}), Durability::Later)
    }

    /// Records that a message is sent.
    pub(crate) fn done(&self, id: &str) -> Result<()> {
        self.append(&json!({"over": id}), Durability::Later)
    }

    /// Records that a message will never be accepted.
    pub(crate) fn give_up(&self, id: &str, why: &str) -> Result<()> {
        self.append(
            &json!({"over": id, "why": one_line(why, MAX_REASON)}),
            Durability::Later,
        )
    }

    /// Redirects the rest of a message to another chat.
    pub(crate) fn redirect(&self, pending: &Pending, to: String) -> Result<()> {
        let item = Item {
            to,
            ..pending.item.clone()
        };
        self.append(
            &json!(Pending {
                item,
                ..pending.clone()
            }),
            Durability::Now,
        )
    }

    /// The messages to send, the oldest first.
    pub(crate) fn pending(&self) -> Result<Vec<Pending>> {
        Ok(self.read()?.pending)
    }

    /// What became of a message. One that is not remembered counts as sent.
    pub(crate) fn outcome(&self, id: &str) -> Result<Outcome> {
        let state = self.read()?;
        if let Some((_, why)) = state.given_up.iter().find(|(given_up, _)| given_up == id) {
            return Ok(Outcome::GivenUp(why.clone()));
        }
        Ok(if state.pending.iter().any(|pending| pending.id == id) {
            Outcome::Pending
        } else {
            Outcome::Sent
        })
    }

    /// The ids of the incoming messages that have an answer here, sent or not.
    pub(crate) fn answered(&self) -> Result<Vec<String>> {
        Ok(self.read()?.answered)
    }

    /// The lock to hold while delivering: two senders would send messages twice.
    pub(crate) fn sender(&self, wait: Duration, cancel: &Cancel) -> Result<Lock> {
        Lock::acquire(&self.home.lock("sender"), wait, cancel)
    }

    fn read(&self) -> Result<OutboxState> {
        let found = disk::read_journal(&self.path()).doing("reading the outbox")?;
        Ok(OutboxState::of(&found.unwrap_or_default().lines))
    }

    fn append(&self, line: &Value, durability: Durability) -> Result<()> {
        let _lock = Lock::acquire(&self.home.lock("outbox"), LOCK_WAIT, &Cancel::new(None))?;
        let path = self.path();
        let opened = Journal::open_or_create(&path)?;
        let mut journal = opened.journal;
        journal.append(&fields(std::slice::from_ref(line)), durability)?;
        if line.get("over").is_none() {
            return Ok(());
        }
        let mut state = OutboxState::of(&opened.lines);
        state.apply(line);
        self.remove_orphans(&state)?;
        let len = fs_err::metadata(&path)?.len();
        if len > COMPACT_AT {
            let kept = state.lines();
            // Twice what stays, so that waiting messages are not rewritten each time.
            if len
                > 2 * kept
                    .iter()
                    .map(|line| line.to_string().len() as u64)
                    .sum::<u64>()
            {
                journal.restart(fields(&kept))?;
            }
        }
        Ok(())
    }

    /// Removes the files that no pending message has: of those sent, and of crashes.
    fn remove_orphans(&self, state: &OutboxState) -> Result<()> {
        let entries = match fs_err::read_dir(self.files()) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if state
                .pending
                .iter()
                .any(|pending| entry.file_name() == pending.item.file.as_str())
            {
                continue;
            }
            // A file that is locked is being filled, to be posted next.
            if let Ok(_lock) = Lock::acquire(&entry.path(), Duration::ZERO, &Cancel::new(None)) {
                disk::remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// An id that no other message in an outbox has.
pub(crate) fn fresh_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    format!(
        "{now:x}-{:x}-{:x}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

/// What the lines of an outbox add up to.
#[derive(Default)]
struct OutboxState {
    /// The oldest first.
    pending: Vec<Pending>,
    answered: Vec<String>,
    /// The ids of messages that were given up, and why.
    given_up: Vec<(String, String)>,
}

impl OutboxState {
    fn of(lines: &[Line]) -> Self {
        let mut state = Self::default();
        for line in lines {
            state.apply(&line.fields);
        }
        state
    }

    fn apply(&mut self, line: &Value) {
        if line.get("post").is_some() {
            let new = Pending::deserialize(line).unwrap_or_default();
            self.answered.extend(new.item.answers.iter().cloned());
            match self.pending.iter_mut().find(|pending| pending.id == new.id) {
                Some(pending) => *pending = new,
                None => self.pending.push(new),
            }
        }
        if let Some(pending) = self
            .pending
            .iter_mut()
            .find(|pending| line["said"] == pending.id)
        {
            pending.pieces = line["pieces"]
                .as_u64()
                .and_then(|count| count.try_into().ok())
                .unwrap_or(0);
        }
        if let Some(id) = line["over"].as_str() {
            self.pending.retain(|pending| pending.id != id);
            self.given_up.extend(
                line["why"]
                    .as_str()
                    .map(|why| (id.to_owned(), why.to_owned())),
            );
        }
        let answered = line["answered"].as_array().into_iter().flatten();
        self.answered
            .extend(answered.filter_map(Value::as_str).map(str::to_owned));
    }

    /// The lines of a compacted journal.
    fn lines(&self) -> Vec<Value> {
        let mut lines = vec![json!({"v": 1})];
        let given_up = &self.given_up[self.given_up.len().saturating_sub(REMEMBERED)..];
        lines.extend(
            given_up
                .iter()
                .map(|(id, why)| json!({"over": id, "why": why})),
        );
        lines.push(
            json!({"answered": self.answered[self.answered.len().saturating_sub(REMEMBERED)..]}),
        );
        lines.extend(self.pending.iter().map(|pending| json!(pending)));
        lines
    }
}

#[cfg(test)]
mod tests;
