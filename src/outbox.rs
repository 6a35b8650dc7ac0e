//! Messages to chats, stored until they are delivered: one piece of the oldest message of each chat in turn, so that no chat
//! delays the others.
//!
//! They are items of the home's [`Queue`], `state/queue.jsonl`, which also contains unanswered messages and notes for the next
//! turn of conversations. Any process may post; the process with the sender's lock delivers: the gateway, or another process if
//! no gateway is running. Delivery is at least once: sent messages are recorded without a sync, so the last messages may be
//! sent again after a power cut. Files to send are copies in `state/outbox/`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use crate::bus::Inbox;
use crate::error::{Context, Error, Result};
use crate::notify;
use crate::paths::{Home, fresh_key, session_name};
use crate::session::{deferred, displaced_by};
use crate::storage::queue::{CALM, MAX_STARTS};
use crate::storage::{self, Durability, Entry, Lock, NewFile};
use crate::sync;
use crate::text::to_single_line;

/// Kind of the queue's items that are messages to chats.
const KIND: &str = "out";
/// Maximum length of the reason for giving up, in bytes.
const MAX_REASON: usize = 200;

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
    /// Id of the sent message that it replaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edits: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Button {
    pub text: String,
    /// Data of the button, up to 64 bytes.
    pub data: String,
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
    /// Inbox of the same queue.
    pub(crate) inbox: Inbox,
    /// Time of the start of this process, or somewhat later.
    begun: Instant,
    /// Deliveries of this process, and a signal for every change.
    deliveries: Arc<(Mutex<Deliveries>, Condvar)>,
}

/// State of the deliveries of this process.
#[derive(Default)]
struct Deliveries {
    is_stopped: bool,
    /// Messages that were tried, by id. This process survived them, so they are not the cause of its crashes.
    tried: BTreeMap<String, Tries>,
    /// Destination of the last piece.
    last: String,
}

/// Tries of a message.
#[derive(Default)]
struct Tries {
    /// Number of sent pieces, also if the disk is full.
    pieces: usize,
    failures: u32,
    /// Time of the next try; `None` during a try.
    due: Option<Instant>,
}

impl Outbox {
    pub(crate) fn new(home: Home) -> Self {
        Self {
            inbox: Inbox::new(&home),
            home,
            begun: Instant::now(),
            deliveries: Arc::default(),
        }
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
        let to = item.to.split_once(':');
        let Some((channel, chat)) = to.filter(|to| !to.0.is_empty() && !to.1.is_empty()) else {
            return Err(Error::usage(format!("invalid destination {:?}", item.to)));
        };
        let (id, session) = (fresh_key(SystemTime::now()), session_name(channel, chat)?);
        let (mut entries, mut ended) = (Vec::new(), ends.to_vec());
        if let Some(note) = note.filter(|note| note.from != session) {
            let text = Some(note.text).filter(|text| !text.is_empty());
            let deferred = deferred(&id, &session, note.title, text.unwrap_or(&item.text));
            ended.extend(displaced_by(&deferred, &self.inbox.queue)?);
            entries.push(deferred);
        }
        entries.push(Entry::new(&id, KIND, item));
        let added = self.inbox.queue.add(&entries, &ended);
        added.doing("keeping a message to be sent")?;
        if note.is_some() {
            notify::signal(&self.home);
        }
        self.wake();
        Ok(id)
    }

    /// Returns the wanted messages to send, oldest first.
    pub(crate) fn pending(
        &self,
        is_wanted: &mut dyn FnMut(&Entry) -> bool,
    ) -> Result<Vec<Pending>> {
        let entries = self.inbox.queue.select(KIND, is_wanted);
        let pending = |entry: Entry| Pending {
            item: entry.read(),
            id: entry.id,
            pieces: entry.part,
            starts: entry.starts,
            failures: 0,
        };
        let entries = entries.doing("reading the outbox")?.into_iter();
        Ok(entries.map(pending).collect())
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
                let mut has_it = |entry: &Entry| entry.item["file"] == *name.to_string_lossy();
                if self.pending(&mut has_it)?.is_empty() {
                    storage::remove(&path)?;
                }
            }
        }
        Ok(())
    }

    fn deliveries(&self) -> MutexGuard<'_, Deliveries> {
        sync::lock(&self.deliveries.0)
    }

    /// Returns the next message to send to a chat of a channel, or nothing if none is due within the time that `most` gives, if
    /// any, or the outbox changes. Its chat waits until [`Outbox::tried`]. The first try of each process counts as a start until
    /// its end.
    ///
    /// A change that `most` does not see yet ends the wait, if [`Outbox::wake`] follows it.
    pub(crate) fn next(
        &self,
        channel: &str,
        most: impl Fn() -> Option<Duration>,
    ) -> Result<Option<Pending>> {
        let mut deliveries = self.deliveries();
        if deliveries.is_stopped {
            return Ok(None);
        }
        let (now, mut wait) = (Instant::now(), most().unwrap_or_default());
        let mut chats = BTreeMap::new();
        let oldest = self.pending(&mut |entry| {
            let to = entry.item["to"].as_str().unwrap_or_default();
            let at = chats.len();
            let is_own = to.split(':').next() == Some(channel) && !chats.contains_key(to);
            is_own && chats.insert(to.to_owned(), at).is_none()
        })?;
        // The chats after the last one come first.
        let (before, after): (Vec<_>, Vec<_>) = chats
            .into_iter()
            .partition(|(to, _)| *to <= deliveries.last);
        for (_, at) in after.into_iter().chain(before) {
            let mut pending = oldest[at].clone();
            let is_suspect = pending.starts + 1 == MAX_STARTS;
            let calm = if is_suspect { CALM } else { Duration::ZERO };
            let mut due = Some(self.begun + calm);
            let known = deliveries.tried.get(&pending.id);
            if let Some(tries) = known {
                due = tries.due;
                pending.starts = 0;
                pending.failures = tries.failures;
                pending.pieces = pending.pieces.max(tries.pieces);
            }
            // A chat waits for the end of its try.
            let Some(due) = due else { continue };
            if due > now {
                wait = wait.min(due - now);
                continue;
            }
            if known.is_none() && pending.starts < MAX_STARTS {
                let ids = [pending.id.clone()];
                drop(self.inbox.queue.start(&ids, Durability::Later));
            }
            let tries = Tries::default();
            deliveries.tried.insert(pending.id.clone(), tries);
            deliveries.last.clone_from(&pending.item.to);
            return Ok(Some(pending));
        }
        drop(sync::wait(&self.deliveries.1, deliveries, wait));
        Ok(None)
    }

    /// Records the result of a try. After an error the message is still being sent.
    pub(crate) fn tried(&self, pending: &Pending, result: &Tried) -> Result<()> {
        let (queue, id, ids) = (&self.inbox.queue, &pending.id, [pending.id.clone()]);
        let mut tries = Tries {
            pieces: pending.pieces,
            failures: 0,
            due: Some(Instant::now()),
        };
        match result {
            Tried::Sent => queue.done(&ids)?,
            Tried::Refused(why) => queue.give_up(id, &to_single_line(why, MAX_REASON))?,
            Tried::Replaced(item) => queue.add(&[Entry::new(id, KIND, item)], &[])?,
            Tried::Pieces(n) => {
                drop(queue.part(id, *n));
                tries.pieces = *n;
            }
            Tried::PutOff { time, failures } => {
                tries.due = Some(Instant::now() + *time);
                tries.failures = *failures;
            }
        }
        let ends = matches!(result, Tried::Sent | Tried::Refused(_));
        let mut deliveries = self.deliveries();
        if ends {
            deliveries.tried.remove(id);
        } else {
            deliveries.tried.insert(id.clone(), tries);
        }
        drop(deliveries);
        drop(queue.halt(&ids));
        self.wake();
        if ends {
            // A failed removal is repeated with the next message.
            drop(self.remove_orphans());
        }
        Ok(())
    }

    /// Wakes the sender to look for new messages.
    pub(crate) fn wake(&self) {
        // Locked, so that no sender misses it between its look and its wait.
        let _deliveries = self.deliveries();
        self.deliveries.1.notify_all();
    }

    /// Sends nothing more from this process. A planned stop does not count as a crash of the items that are being sent.
    pub(crate) fn stop(&self) -> Result<()> {
        self.deliveries().is_stopped = true;
        self.wake();
        self.inbox.halt()
    }

    /// Waits up to `most` until nothing is being sent. The upload of a file may take an hour.
    pub(crate) fn wait(&self, most: Duration) {
        let is_busy = |of: &mut Deliveries| of.tried.values().any(|of| of.due.is_none());
        let changed = &self.deliveries.1;
        drop(changed.wait_timeout_while(self.deliveries(), most, is_busy));
    }
}

#[cfg(test)]
mod tests;
