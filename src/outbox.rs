//! Messages to chats, kept until they are delivered.
//!
//! They are items of the home's [`Queue`], `state/queue.jsonl`, which also has what is not answered yet, and what conversations
//! are told with their next turn. Any process may post; the holder of the sender's lock delivers: the gateway, or another process
//! while none runs. Delivery is at least once: that a message is sent is not synced, so a power cut may repeat what was sent last.
//! Files to send are copies in `state/outbox/`.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::notify;
use crate::paths::{Home, TELEGRAM, session_name, telegram_chat};
use crate::session::{deferred, displaced_by};
use crate::storage::{self, Entry, Lock, NewFile, Queue};
use crate::text::one_line;

/// A message to a chat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Item {
    /// `telegram:CHAT`.
    pub to: String,
    /// Markdown.
    pub text: String,
    /// A file to send along, by its name in `state/outbox/`; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// The name that people see it under.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Rows of buttons below it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buttons: Vec<Vec<Button>>,
    /// The question that it asks; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub question: String,
    /// The sent message in whose place it comes; 0 for none.
    #[serde(skip_serializing_if = "is_none")]
    pub edits: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Button {
    pub text: String,
    /// What its press says to the program, 64 bytes at most.
    pub data: String,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_none(id: &i64) -> bool {
    *id == 0
}

impl Item {
    pub(crate) fn text(to: &str, text: &str) -> Self {
        Self {
            to: to.to_owned(),
            text: text.to_owned(),
            ..Self::default()
        }
    }
}

/// A message that is not delivered yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pending {
    pub id: String,
    pub item: Item,
    /// How many of its pieces are sent.
    pub pieces: usize,
    /// How often it was being sent when the program ended.
    pub starts: u32,
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryState {
    Pending,
    Sent,
    /// It will never be accepted; the reason.
    GivenUp(String),
}

/// What the conversation of a chat is told of a message that comes from elsewhere.
pub(crate) struct Note<'a> {
    /// Says where it comes from.
    pub title: &'a str,
    /// The conversation that sends it. If it is the chat's own, it needs no note.
    pub from: &'a str,
    /// The text, if it is not the message's.
    pub text: &'a str,
}

#[derive(Clone)]
pub(crate) struct Outbox {
    home: Home,
    queue: Arc<Queue>,
}

/// Which items of the queue are messages to chats.
const KIND: &str = "out";
/// The longest reason for giving up, in bytes.
const MAX_REASON: usize = 200;

impl Outbox {
    pub(crate) fn new(home: Home) -> Self {
        let queue = Arc::new(Queue::of_home(&home));
        Self { home, queue }
    }

    /// The queue that holds the messages.
    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.queue
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

    /// Posts a message and returns its id. `answered` are the items of the queue that it ends. On disk when this returns.
    pub(crate) fn post(&self, item: &Item, answered: &[String]) -> Result<String> {
        let id = fresh_id();
        self.add(&id, item, Vec::new(), answered)?;
        Ok(id)
    }

    /// The same; with a note, as [`Outbox::post_and_note`] does.
    pub(crate) fn post_noted(
        &self,
        item: &Item,
        answered: &[String],
        note: Option<&Note>,
    ) -> Result<String> {
        match note {
            Some(note) => self.post_and_note(item, answered, note),
            None => self.post(item, answered),
        }
    }

    /// The same for a message that comes from elsewhere: the conversation of its chat is told, so that a reply there has something
    /// to refer to, and a running gateway, which delivers it.
    pub(crate) fn post_and_note(
        &self,
        item: &Item,
        answered: &[String],
        note: &Note,
    ) -> Result<String> {
        let session = session_name(TELEGRAM, telegram_chat(&item.to)?)?;
        let id = fresh_id();
        let text = if note.text.is_empty() {
            &item.text
        } else {
            note.text
        };
        if session == note.from {
            self.add(&id, item, Vec::new(), answered)?;
        } else {
            let deferred = deferred(&id, &session, note.title, text);
            let ended = [answered, &displaced_by(&deferred, &self.queue)?].concat();
            self.add(&id, item, vec![deferred], &ended)?;
        }
        notify::signal(&self.home);
        Ok(id)
    }

    /// Adds a message to the queue, with others in the same write.
    fn add(&self, id: &str, item: &Item, mut others: Vec<Entry>, ended: &[String]) -> Result<()> {
        telegram_chat(&item.to)?;
        others.push(Entry::new(id, KIND, item));
        let added = self.queue.add_for(&others, ended);
        added.doing("keeping a message to be sent")
    }

    /// Records how many pieces are sent.
    pub(crate) fn progress(&self, id: &str, pieces: usize) -> Result<()> {
        self.queue
            .part(id, u32::try_from(pieces).unwrap_or(u32::MAX))
    }

    /// Records that a message is sent.
    pub(crate) fn done(&self, id: &str) -> Result<()> {
        self.queue.done(&[id.to_owned()])?;
        // What cannot be removed now is removed with the next message.
        drop(self.remove_orphans());
        Ok(())
    }

    /// Records that a message will never be accepted.
    pub(crate) fn give_up(&self, id: &str, why: &str) -> Result<()> {
        self.queue.give_up(id, &one_line(why, MAX_REASON))?;
        drop(self.remove_orphans());
        Ok(())
    }

    /// Replaces the item of a message that goes to another chat.
    pub(crate) fn replace(&self, id: &str, item: &Item) -> Result<()> {
        self.queue.add(&[Entry::new(id, KIND, item)])
    }

    /// The messages to send, the oldest first.
    pub(crate) fn pending(&self) -> Result<Vec<Pending>> {
        let entries = self.queue.entries(KIND).doing("reading the outbox")?;
        let pending = |entry: Entry| Pending {
            item: entry.read(),
            id: entry.id,
            pieces: entry.part as usize,
            starts: entry.starts,
        };
        Ok(entries.into_iter().map(pending).collect())
    }

    /// What became of a message. One that is not remembered counts as sent.
    pub(crate) fn outcome(&self, id: &str) -> Result<DeliveryState> {
        if let Some(why) = self.queue.given_up(id)? {
            return Ok(DeliveryState::GivenUp(why));
        }
        let is_pending = !self.queue.find(&[id.to_owned()])?.is_empty();
        Ok(if is_pending {
            DeliveryState::Pending
        } else {
            DeliveryState::Sent
        })
    }

    /// The lock to hold while delivering: two senders would send messages twice.
    pub(crate) fn sender(&self, wait: Duration, cancel: &Cancel) -> Result<Lock> {
        Lock::acquire(&self.home.lock("sender"), wait, cancel)
    }

    /// Removes the files that no pending message has: of those sent, and of crashes.
    fn remove_orphans(&self) -> Result<()> {
        let entries = match fs_err::read_dir(self.files()) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        let pending = self.pending()?;
        for entry in entries {
            let entry = entry?;
            if pending
                .iter()
                .any(|pending| entry.file_name() == pending.item.file.as_str())
            {
                continue;
            }
            // A file that is locked is being filled, to be posted next.
            if let Ok(_lock) = Lock::acquire(&entry.path(), Duration::ZERO, &Cancel::new(None)) {
                // Its author held the lock until it was posted, which may be just now.
                let is_posted = self
                    .pending()?
                    .iter()
                    .any(|pending| entry.file_name() == pending.item.file.as_str());
                if !is_posted {
                    storage::remove(&entry.path())?;
                }
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

#[cfg(test)]
mod tests;
