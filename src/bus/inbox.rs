//! Unanswered messages of a home.
//!
//! They are items of the home's [`Queue`], keyed by the channel and its message id. A message remains in the queue until an
//! answer ends it, in this process or a later one. Its id is remembered for a while after that.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use super::{Inbound, Source};
use crate::cancel::{Cancel, Hook};
use crate::error::{Context, Error, Kind, Result};
use crate::paths::fresh_key;
use crate::storage::{Entry, Queue};
use crate::sync;

/// Kind of the queue items that are unanswered messages.
const KIND: &str = "message";

/// Receives the messages of a channel. Clones share it. Dropping the last one ends the stream of messages.
#[derive(Clone)]
pub struct Inbox(Arc<Shared>);

struct Shared {
    store: MessageStore,
    /// Sender to the dispatcher; `None` once the inbox is closed.
    arrivals: Mutex<Option<Sender<Inbound>>>,
}

impl Shared {
    fn arrivals(&self) -> MutexGuard<'_, Option<Sender<Inbound>>> {
        sync::lock(&self.arrivals)
    }
}

impl Inbox {
    /// Creates an inbox and the dispatcher's receiver of its messages.
    pub(crate) fn new(store: MessageStore) -> (Self, Receiver<Inbound>) {
        let (sender, received) = channel();
        let arrivals = Mutex::new(Some(sender));
        (Self(Arc::new(Shared { store, arrivals })), received)
    }

    /// Adds a message to be answered, after a crash by the next program. It is on disk when this returns. Returns false if a
    /// message with this id was added before; the new one is then dropped.
    ///
    /// # Errors
    /// Returns an error of the kind [`crate::error::Kind::Interrupted`] if serving has been stopped, or another if the disk or
    /// the queue is full. The message is then not added.
    pub fn add(&self, mut message: Inbound) -> Result<bool> {
        if message.id.is_empty() {
            message.id = fresh_key(SystemTime::now());
        }
        message.id = message_id(&message.origin.channel, &message.id);
        // Locked during the write, so that a message added before the end of serving is dispatched.
        let arrivals = self.0.arrivals();
        let is_new = !self.0.store.is_known(&message.id)?;
        if is_new {
            self.push(arrivals.as_ref(), vec![message])?;
        }
        Ok(is_new)
    }

    /// Adds new messages, which have whole ids ([`message_id`]), in one write.
    pub(crate) fn add_all(&self, messages: Vec<Inbound>) -> Result<()> {
        self.push(self.0.arrivals().as_ref(), messages)
    }

    fn push(&self, arrivals: Option<&Sender<Inbound>>, messages: Vec<Inbound>) -> Result<()> {
        let Some(arrivals) = arrivals else {
            return Err(Error::new(Kind::Interrupted, "serving has been stopped"));
        };
        self.0.store.keep(&messages)?;
        for message in messages {
            // If the dispatcher has ended, the next program answers the message.
            drop(arrivals.send(message));
        }
        Ok(())
    }

    /// Replaces the text of a message in a Telegram chat, unless a turn of it has begun. On disk when this returns.
    pub(crate) fn edit(&self, edited: &Inbound) -> Result<()> {
        let Source::Telegram {
            message: number, ..
        } = edited.source
        else {
            return Ok(());
        };
        for mut message in self.0.store.all()? {
            let is_same =
                matches!(message.source, Source::Telegram { message, .. } if message == number);
            if is_same && message.origin == edited.origin && !message.has_begun {
                message.text.clone_from(&edited.text);
                self.0.store.keep(&[message])?;
            }
        }
        Ok(())
    }

    pub(crate) fn store(&self) -> &MessageStore {
        &self.0.store
    }

    /// Closes the inbox when `cancel` is stopped. Dropping the hook prevents that.
    pub(crate) fn close_on(&self, cancel: &Cancel) -> Hook {
        // A strong reference would make the dispatcher wait for messages forever.
        let shared = Arc::downgrade(&self.0);
        cancel.on_stop(move || {
            if let Some(shared) = shared.upgrade() {
                shared.arrivals().take();
            }
        })
    }
}

/// Makes an id that is unique among all channels.
pub(crate) fn message_id(channel: &str, id: &str) -> String {
    format!("{channel}:{id}")
}

/// Unanswered messages on disk, and how often a turn of each began. Clones share them.
#[derive(Clone)]
pub(crate) struct MessageStore(Arc<Queue>);

impl MessageStore {
    pub(crate) fn new(queue: Arc<Queue>) -> Self {
        Self(queue)
    }

    /// Returns all messages, the oldest first.
    pub(crate) fn all(&self) -> Result<Vec<Inbound>> {
        let entries = self.0.entries(KIND)?;
        Ok(entries.into_iter().map(read).collect())
    }

    /// Returns the unanswered messages among `ids`, in that order.
    pub(crate) fn find(&self, ids: &[String]) -> Result<Vec<Inbound>> {
        let mut found: Vec<Inbound> = self.0.find(ids)?.into_iter().map(read).collect();
        found.sort_by_key(|message| ids.iter().position(|id| *id == message.id));
        Ok(found)
    }

    /// Whether a message waits or was answered, as far as ids are remembered.
    pub(crate) fn is_known(&self, id: &str) -> Result<bool> {
        Ok(self.0.is_done(id)? || self.is_open(id)?)
    }

    /// Whether a message is unanswered.
    pub(crate) fn is_open(&self, id: &str) -> Result<bool> {
        Ok(!self.0.find(&[id.to_owned()])?.is_empty())
    }

    /// Adds messages, or replaces messages with the same ids. On disk when this returns. Only the next program dispatches them.
    pub(crate) fn keep(&self, messages: &[Inbound]) -> Result<()> {
        let entry = |message: &Inbound| Entry::new(&message.id, KIND, message);
        let entries: Vec<Entry> = messages.iter().map(entry).collect();
        self.0.add(&entries).doing("keeping a message")
    }

    /// Counts a start of a turn of these messages. On disk when this returns.
    pub(crate) fn start(&self, ids: &[String]) -> Result<()> {
        self.0.start(ids).doing("recording that a turn begins")
    }

    /// Undoes the last start; the turn ended in good order, and continues later.
    pub(crate) fn release(&self, ids: &[String]) -> Result<()> {
        self.0.halt(ids).doing("recording that a turn was put off")
    }

    /// Remembers ids of updates that were handled without a message.
    pub(crate) fn remember(&self, ids: &[String]) -> Result<()> {
        self.0.done(ids).doing("recording what was received")
    }

    /// Ends messages, which are answered or need no answer.
    pub(crate) fn finish(&self, ids: &[String]) -> Result<()> {
        let open = self.0.find(ids)?.into_iter().map(|entry| entry.id);
        let open: Vec<String> = open.collect();
        self.0
            .done(&open)
            .doing("recording that a message was answered")
    }
}

fn read(entry: Entry) -> Inbound {
    let message: Inbound = entry.read();
    Inbound {
        id: entry.id,
        starts: entry.starts,
        has_begun: entry.begun,
        ..message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::Origin;
    use crate::test_dir::TestDir;

    /// Opens the inbox as the next program would.
    fn inbox_in(dir: &TestDir) -> (Inbox, Receiver<Inbound>) {
        Inbox::new(MessageStore::new(Arc::new(Queue::of_home(&dir.home()))))
    }

    fn written(id: &str, number: i64, text: &str) -> Inbound {
        let origin = Origin {
            channel: "telegram".to_owned(),
            chat: "1".to_owned(),
        };
        Inbound {
            id: id.to_owned(),
            source: Source::Telegram {
                bot: 7,
                user: 42,
                message: number,
                files: Vec::new(),
                more_follows: false,
            },
            ..Inbound::message(origin, "telegram_1".to_owned(), text.to_owned())
        }
    }

    #[test]
    fn inbox_message_survives_crash_until_done() {
        let dir = TestDir::new();
        let (inbox, arrivals) = inbox_in(&dir);
        assert!(inbox.add(written("7:10", 5, "hello")).unwrap());
        assert!(inbox.add(written("7:11", 6, "you")).unwrap());
        assert!(!inbox.add(written("7:11", 6, "again")).unwrap());
        inbox.store().start(&["telegram:7:10".to_owned()]).unwrap();
        inbox.edit(&written("7:12", 5, "late")).unwrap();
        inbox.edit(&written("7:13", 6, "there")).unwrap();
        let ids: Vec<String> = arrivals.try_iter().map(|message| message.id).collect();
        assert_eq!(ids, ["telegram:7:10", "telegram:7:11"]);
        let (inbox, _arrivals) = inbox_in(&dir);
        let all = inbox.store().all().unwrap();
        let found: Vec<_> = all.iter().map(|m| (m.text.as_str(), m.starts)).collect();
        assert_eq!(found, [("hello", 1), ("there", 0)]);
        inbox.store().finish(&ids).unwrap();
        let (inbox, _arrivals) = inbox_in(&dir);
        assert!(inbox.store().all().unwrap().is_empty());
        assert!(inbox.store().is_known("telegram:7:11").unwrap());
    }

    #[test]
    fn message_after_shutdown_is_refused() {
        let dir = TestDir::new();
        let (inbox, arrivals) = inbox_in(&dir);
        let cancel = Cancel::new(None);
        let _hook = inbox.close_on(&cancel);
        cancel.stop();
        let refused = inbox.add(written("1", 1, "late")).unwrap_err();
        assert_eq!(refused.kind, Kind::Interrupted);
        assert!(arrivals.recv().is_err());
    }

    #[test]
    fn a_message_without_an_id_gets_one() {
        let dir = TestDir::new();
        let (inbox, arrivals) = inbox_in(&dir);
        assert!(inbox.add(written("", 1, "a")).unwrap() && inbox.add(written("", 1, "a")).unwrap());
        assert_ne!(arrivals.recv().unwrap().id, arrivals.recv().unwrap().id);
    }
}
