//! Stores records that could not be written to disk. Messages are sent from memory, and recorded when the disk has space.
//!
//! The answered messages remain open until the answer is sent or in the outbox, so a restart may answer them again.

use std::time::Instant;

use super::back_off;
use super::send::MessageSender;
use crate::error::Result;
use crate::log::Level;
use crate::outbox::{Item, Note, Pending, fresh_id};

/// Maximum total size of unsaved texts, in bytes.
const MAX_HELD: usize = 4 << 20;
/// Maximum exponent of the back-off, because the disk may have space at any time.
const MAX_FAILURES: u32 = 3;

/// A record to write.
#[derive(Clone)]
enum Record {
    /// A message to send.
    Message(Pending),
    /// The end of items.
    Done,
}

#[derive(Clone)]
struct Held {
    record: Record,
    /// Ids of the queue's items that it ends.
    ends: Vec<String>,
}

#[derive(Default)]
pub(super) struct HeldRecords {
    all: Vec<Held>,
    /// Number of consecutive failures to write.
    failures: u32,
    /// Time of the next try.
    not_before: Option<Instant>,
}

impl HeldRecords {
    /// Returns the unsaved messages.
    fn messages(&self) -> impl Iterator<Item = &Pending> {
        self.all.iter().filter_map(Held::message)
    }

    fn find(&mut self, id: &str) -> Option<&mut Held> {
        let is_it = |held: &&mut Held| held.message().is_some_and(|message| message.id == id);
        self.all.iter_mut().find(is_it)
    }

    /// Changes an unsaved message. Returns whether the message was found.
    pub(super) fn change(&mut self, id: &str, change: impl FnOnce(&mut Pending)) -> bool {
        match self.find(id).map(|held| &mut held.record) {
            Some(Record::Message(message)) => {
                change(message);
                true
            }
            _ => false,
        }
    }

    /// Ends an unsaved message. Returns whether the message was found.
    pub(super) fn end(&mut self, id: &str) -> bool {
        let Some(held) = self.find(id) else {
            return false;
        };
        held.record = Record::Done;
        self.all.retain(|held| !held.is_empty());
        true
    }

    /// Removes finished messages from `pending`, and appends the unsaved messages.
    pub(super) fn add_to(&self, pending: &mut Vec<Pending>) {
        let is_done = |id: &String| {
            let mut done = self.all.iter().filter(|held| held.message().is_none());
            done.any(|held| held.ends.contains(id))
        };
        pending.retain(|pending| !is_done(&pending.id));
        pending.extend(self.messages().cloned());
    }
}

impl Held {
    fn message(&self) -> Option<&Pending> {
        match &self.record {
            Record::Message(message) => Some(message),
            Record::Done => None,
        }
    }

    /// Whether there is no more to write.
    fn is_empty(&self) -> bool {
        self.message().is_none() && self.ends.is_empty()
    }
}

impl MessageSender {
    /// Posts a message; if the disk fails, stores it in memory without its note. `ends` are the items of the queue that it
    /// answers. Returns whether the message is on disk.
    pub(crate) fn post(&self, item: Item, ends: &[String], note: Option<&Note>) -> bool {
        let posted = self.outbox.post_noted(&item, ends, note);
        let is_kept = self.is_ok("keeping an answer", &posted);
        if !is_kept {
            let message = Pending {
                id: fresh_id(),
                item,
                ..Pending::default()
            };
            self.hold(Record::Message(message), ends);
        }
        self.wake();
        is_kept
    }

    /// Schedules recording the end of an item.
    pub(super) fn holds_end(&self, id: &str) {
        self.hold(Record::Done, &[id.to_owned()]);
    }

    fn hold(&self, record: Record, ends: &[String]) {
        let mut state = self.state();
        let held = &mut state.held;
        let size: usize = held.messages().map(|held| held.item.text.len()).sum();
        if let Record::Message(message) = &record {
            if size + message.item.text.len() > MAX_HELD {
                drop(state);
                let text = "too much is waiting for free disk space: this message will be answered after a restart";
                return (self.log)(Level::Error, text);
            }
        }
        let ends = ends.to_vec();
        held.all.push(Held { record, ends });
        held.not_before
            .get_or_insert_with(|| Instant::now() + back_off(0));
    }

    /// Tries to write the unsaved records if it is time. Returns the time of the next try.
    pub(super) fn record_held(&self) -> Option<Instant> {
        let not_before = self.state().held.not_before?;
        if not_before > Instant::now() {
            return Some(not_before);
        }
        self.record_all_held()
    }

    pub(super) fn record_all_held(&self) -> Option<Instant> {
        // Only this thread removes records, always from the front.
        loop {
            let Some(held) = self.state().held.all.first().cloned() else {
                let mut state = self.state();
                if state.held.all.is_empty() {
                    state.held.not_before = None;
                    state.held.failures = 0;
                    return None;
                }
                continue;
            };
            let recorded = self.record_one(&held);
            let mut state = self.state();
            if recorded.is_err() {
                // The reason was logged when the record was added.
                let not_before = Instant::now() + back_off(state.held.failures);
                state.held.failures = (state.held.failures + 1).min(MAX_FAILURES);
                state.held.not_before = Some(not_before);
                return Some(not_before);
            }
            state.held.all.remove(0);
        }
    }

    fn record_one(&self, held: &Held) -> Result<()> {
        let Record::Message(message) = &held.record else {
            return self.outbox.queue().done(&held.ends);
        };
        let id = self.outbox.post(&message.item, &held.ends)?;
        if message.pieces > 0 {
            // The message is in the outbox; pieces with unrecorded progress may be sent twice.
            self.is_ok("the outbox", &self.outbox.progress(&id, message.pieces));
        }
        Ok(())
    }
}
