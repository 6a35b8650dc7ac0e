//! What is sent next: one piece of the oldest message of each chat in turn, so that no chat delays the others.

use std::collections::BTreeMap;
use std::mem::take;
use std::slice::from_ref;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::{KIND, Outbox, Pending, Tried};
use crate::error::Result;
use crate::storage::Entry;
use crate::storage::queue::{CALM, MAX_STARTS};
use crate::sync;
use crate::text::to_single_line;

/// Maximum length of the reason for giving up, in bytes.
const MAX_REASON: usize = 200;

/// What a process sends, and what it knows of earlier tries.
#[derive(Default)]
pub(super) struct Deliveries {
    /// Time of the first look at the outbox.
    begun: Option<Instant>,
    /// Whether a message may have been posted, or can be sent now.
    changes: u64,
    is_stopped: bool,
    /// Tried messages by id.
    tried: BTreeMap<String, TriedMessage>,
    /// Destination of the last piece.
    last: String,
}

/// A message that was tried. A message that this process survived once is not the cause of its crashes.
#[derive(Default)]
struct TriedMessage {
    is_sending: bool,
    /// Whether its start is counted until it ends.
    is_counted: bool,
    /// Number of sent pieces, also if the disk is full.
    pieces: usize,
    failures: u32,
    not_before: Option<Instant>,
}

impl Deliveries {
    /// Returns the next of the chats' oldest messages that is due, in turn, and the time until another one is.
    fn choose(
        &self,
        oldest: impl IntoIterator<Item = Pending>,
        now: Instant,
    ) -> (Option<Pending>, Duration) {
        let (mut chosen, mut wait) = (None::<Pending>, Duration::MAX);
        for mut pending in oldest {
            if self.is_stopped {
                continue;
            }
            let mut due = now;
            if let Some(known) = self.tried.get(&pending.id) {
                if known.is_sending {
                    continue;
                }
                due = known.not_before.unwrap_or(now);
                pending.starts = 0;
                pending.failures = known.failures;
                pending.pieces = pending.pieces.max(known.pieces);
            }
            if pending.starts + 1 == MAX_STARTS {
                due = due.max(self.begun.unwrap_or(now) + CALM);
            }
            let is_behind =
                |first: &Pending| first.item.to <= self.last && pending.item.to > self.last;
            if due > now {
                wait = wait.min(due - now);
            } else if chosen.as_ref().is_none_or(is_behind) {
                chosen = Some(pending);
            }
        }
        (chosen, wait)
    }
}

impl Outbox {
    fn deliveries(&self) -> MutexGuard<'_, Deliveries> {
        sync::lock(&self.deliveries.0)
    }

    /// Returns the next message to send to a chat of a channel, or nothing if none is due within `most` or the outbox changes.
    /// Its chat waits until [`Outbox::tried`]. The first try of each process counts as a start until its end.
    pub(crate) fn next(&self, channel: &str, most: Duration) -> Result<Option<Pending>> {
        let mut deliveries = self.deliveries();
        let seen = deliveries.changes;
        let mut oldest = BTreeMap::new();
        for pending in self.pending()? {
            if pending.item.destination().is_ok_and(|to| to.0 == channel) {
                oldest.entry(pending.item.to.clone()).or_insert(pending);
            }
        }
        let now = Instant::now();
        deliveries.begun.get_or_insert(now);
        let (chosen, wait) = deliveries.choose(oldest.into_values(), now);
        let Some(pending) = chosen else {
            let is_same = |of: &mut Deliveries| of.changes == seen && !of.is_stopped;
            let changed = &self.deliveries.1;
            drop(changed.wait_timeout_while(deliveries, wait.min(most), is_same));
            return Ok(None);
        };
        deliveries.last.clone_from(&pending.item.to);
        let is_first = !deliveries.tried.contains_key(&pending.id);
        let delivery = deliveries.tried.entry(pending.id.clone()).or_default();
        delivery.is_sending = true;
        if is_first && pending.starts < MAX_STARTS {
            delivery.is_counted = self.queue.start_later(from_ref(&pending.id)).is_ok();
        }
        Ok(Some(pending))
    }

    /// Records the result of a try. After an error the message is still being sent.
    pub(crate) fn tried(&self, id: &str, result: &Tried) -> Result<()> {
        let ids = [id.to_owned()];
        match result {
            Tried::Sent => self.queue.done(&ids)?,
            Tried::Refused(why) => self.queue.give_up(id, &to_single_line(why, MAX_REASON))?,
            Tried::Replaced(item) => self.queue.add(&[Entry::new(id, KIND, item)])?,
            Tried::Pieces(n) => drop(self.queue.part(id, u32::try_from(*n).unwrap_or(u32::MAX))),
            Tried::PutOff { .. } => {}
        }
        let mut deliveries = self.deliveries();
        let delivery = deliveries.tried.remove(id).unwrap_or_default();
        let ends = matches!(result, Tried::Sent | Tried::Refused(_));
        if !ends {
            if delivery.is_counted {
                drop(self.queue.halt(&ids));
            }
            let (pieces, time, failures) = match result {
                Tried::Pieces(n) => (*n, Duration::ZERO, 0),
                Tried::PutOff { time, failures } => (delivery.pieces, *time, *failures),
                _ => (delivery.pieces, Duration::ZERO, 0),
            };
            let known = TriedMessage {
                pieces,
                failures,
                not_before: Some(Instant::now() + time),
                ..TriedMessage::default()
            };
            deliveries.tried.insert(id.to_owned(), known);
        }
        drop(deliveries);
        self.wake();
        if ends {
            // A failed removal is repeated with the next message.
            drop(self.remove_orphans());
        }
        Ok(())
    }

    /// Wakes the sender to look for new messages.
    pub(crate) fn wake(&self) {
        self.deliveries().changes += 1;
        self.deliveries.1.notify_all();
    }

    /// Sends nothing more from this process. A planned stop is no crash of what is being sent.
    pub(crate) fn stop(&self) -> Result<()> {
        let mut deliveries = self.deliveries();
        deliveries.is_stopped = true;
        for (id, delivery) in &mut deliveries.tried {
            if take(&mut delivery.is_counted) {
                self.queue.halt(from_ref(id))?;
            }
        }
        drop(deliveries);
        self.wake();
        Ok(())
    }

    /// Waits up to `most` until nothing is being sent. The upload of a file may take an hour.
    pub(crate) fn wait(&self, most: Duration) {
        let is_busy = |of: &mut Deliveries| of.tried.values().any(|of| of.is_sending);
        let changed = &self.deliveries.1;
        drop(changed.wait_timeout_while(self.deliveries(), most, is_busy));
    }
}
