//! Messages to chats, stored until they are delivered; [`deliveries`] chooses the next one to send.
//!
//! They are items of the home's [`Queue`], `state/queue.jsonl`, which also contains unanswered messages and notes for the next
//! turn of conversations. Any process may post; the process with the sender's lock delivers: the gateway, or another process if
//! no gateway is running. Delivery is at least once: sent messages are recorded without a sync, so the last messages may be
//! sent again after a power cut. Files to send are copies in `state/outbox/`.

mod deliveries;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::bus::Inbox;
use crate::error::{Context, Error, Result};
use crate::notify;
use crate::paths::{Home, fresh_key, session_name};
use crate::session::{deferred, displaced_by};
use crate::storage::{self, Entry, Lock, NewFile, Queue};
use deliveries::Deliveries;

/// A message to a chat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Item {
    /// `CHANNEL:CHAT`.
    pub to: String,
    /// Markdown.
    pub text: String,
    /// Name of a file in `state/outbox/` to send along; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// Display name of the file.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Rows of buttons after the text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buttons: Vec<Vec<Button>>,
    /// Id of the question in the message; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub question: String,
    /// Id of the sent message that it replaces; 0 for none.
    #[serde(skip_serializing_if = "is_none")]
    pub edits: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Button {
    pub text: String,
    /// Data of the button, up to 64 bytes.
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

    /// Returns the channel and the chat that it goes to.
    pub(crate) fn destination(&self) -> Result<(&str, &str)> {
        let parts = self.to.split_once(':');
        parts
            .filter(|(channel, chat)| !channel.is_empty() && !chat.is_empty())
            .ok_or_else(|| Error::usage(format!("invalid destination {:?}", self.to)))
    }
}

/// A message that is not delivered yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pending {
    pub id: String,
    pub item: Item,
    /// Number of sent pieces.
    pub pieces: usize,
    /// Number of times that an earlier process ended while sending it.
    pub starts: u32,
    /// Number of consecutive failures.
    pub failures: u32,
}

/// Result of a try to send a message.
pub(crate) enum Tried {
    /// This number of its pieces is sent; more are left.
    Pieces(usize),
    Sent,
    /// It is rejected permanently, for this reason.
    Refused(String),
    /// It goes to another chat, or in another form.
    Replaced(Item),
    /// It is tried again after this time, as one that failed so many times in a row.
    PutOff {
        time: Duration,
        failures: u32,
    },
}

/// A note for the chat's conversation about a message from elsewhere.
pub(crate) struct Note<'a> {
    /// Title with the source of the message.
    pub title: &'a str,
    /// Conversation of the sender. The chat's own conversation needs no note.
    pub from: &'a str,
    /// Text, if it differs from the message.
    pub text: &'a str,
}

#[derive(Clone)]
pub(crate) struct Outbox {
    pub(crate) home: Home,
    queue: Arc<Queue>,
    inbox: Inbox,
    /// What this process sends, and a signal for every change.
    deliveries: Arc<(Mutex<Deliveries>, Condvar)>,
}

/// Kind of the queue's items that are messages to chats.
const KIND: &str = "out";

impl Outbox {
    pub(crate) fn new(home: Home) -> Self {
        let queue = Arc::new(Queue::of_home(&home));
        let inbox = Inbox::new(queue.clone());
        Self {
            home,
            queue,
            inbox,
            deliveries: Arc::default(),
        }
    }

    /// Queue with the messages.
    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Inbox of the same queue.
    pub(crate) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    fn files(&self) -> PathBuf {
        self.home.state().join("outbox")
    }

    /// Returns the path of a file to send, by its name in [`Item::file`].
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.files().join(name)
    }

    /// Creates a file to fill, keep and then post, and returns it with its name. It must not be dropped before it is posted.
    pub(crate) fn new_file(&self) -> Result<(NewFile, String)> {
        let name = fresh_key(SystemTime::now());
        Ok((NewFile::begin(&self.file(&name))?, name))
    }

    /// Posts a message and returns its id. `ends` are the items of the queue that it ends. Writes to disk before returning.
    ///
    /// With a note, the conversation of its chat is told, so that a reply there has context, and a running gateway delivers it.
    pub(crate) fn post(&self, item: &Item, ends: &[String], note: Option<&Note>) -> Result<String> {
        let (channel, chat) = item.destination()?;
        let (id, session) = (fresh_key(SystemTime::now()), session_name(channel, chat)?);
        let (mut entries, mut ended) = (Vec::new(), ends.to_vec());
        if let Some(note) = note.filter(|note| note.from != session) {
            let text = Some(note.text).filter(|text| !text.is_empty());
            let deferred = deferred(&id, &session, note.title, text.unwrap_or(&item.text));
            ended.extend(displaced_by(&deferred, &self.queue)?);
            entries.push(deferred);
        }
        entries.push(Entry::new(&id, KIND, item));
        let added = self.queue.add_for(&entries, &ended);
        added.doing("keeping a message to be sent")?;
        if note.is_some() {
            notify::signal(&self.home);
        }
        self.wake();
        Ok(id)
    }

    /// Returns the messages to send, oldest first.
    pub(crate) fn pending(&self) -> Result<Vec<Pending>> {
        let entries = self.queue.entries(KIND).doing("reading the outbox")?;
        let pending = |entry: Entry| Pending {
            item: entry.read(),
            id: entry.id,
            pieces: entry.part as usize,
            starts: entry.starts,
            failures: 0,
        };
        Ok(entries.into_iter().map(pending).collect())
    }

    /// Acquires the lock for delivering, which prevents a second sender from sending messages twice.
    pub(crate) fn sender(&self, wait: Duration) -> Result<Lock> {
        Lock::acquire(&self.home.lock("sender"), wait)
    }

    /// Removes files without a pending message, after sending or after a crash.
    fn remove_orphans(&self) -> Result<()> {
        let entries = match fs_err::read_dir(self.files()) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
            // The author of a file holds its lock until it is posted.
            if let Ok(_lock) = Lock::acquire(&path, Duration::ZERO) {
                let pending = self.pending()?;
                if pending.iter().all(|pending| name != *pending.item.file) {
                    storage::remove(&path)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
