//! What is sent next: one piece of the oldest message of each chat in turn, so that no chat delays the others.

use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::{KIND, Outbox, Pending, Tried};
use crate::error::Result;
use crate::storage::Entry;
use crate::storage::queue::{CALM, MAX_STARTS};
use crate::sync;
use crate::text::to_single_line;
use crate::tries::back_off;

/// Pause of a chat after its first failure, and at most; shorter in tests, which retry often.
const FIRST_PAUSE: Duration = if cfg!(test) {
    Duration::from_millis(5)
} else {
    Duration::from_secs(1)
};
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Maximum length of the reason for giving up, in bytes.
const MAX_REASON: usize = 200;

enum Next {
    Send(Pending),
    /// Nothing is due for this time, unless the outbox changes.
    Wait(Duration),
}

/// What a process sends, and what it knows of earlier tries.
pub(super) struct Deliveries {
    created: Instant,
    /// Counts changes: a message may have been posted, or can be sent now.
    changes: u64,
    is_stopped: bool,
    /// Messages that are being sent, by destination.
    sending: BTreeMap<String, Sending>,
    /// Tried messages, with the number of their sent pieces. A message that this process survived once is not the cause of its
    /// crashes.
    tried: BTreeMap<String, usize>,
    pauses: BTreeMap<String, Pause>,
    /// Destination of the last piece.
    last: String,
}

struct Sending {
    id: String,
    is_file: bool,
    /// Whether its start is counted until it ends.
    is_counted: bool,
}

/// Pause of a destination after failures.
struct Pause {
    until: Instant,
    failures: u32,
}

impl Deliveries {
    pub(super) fn new() -> Self {
        Self {
            created: Instant::now(),
            changes: 0,
            is_stopped: false,
            sending: BTreeMap::new(),
            tried: BTreeMap::new(),
            pauses: BTreeMap::new(),
            last: String::new(),
        }
    }

    /// Chooses among the oldest messages of all chats the next one that is due, in turn, or returns the time until then.
    /// Sends one file at a time, because an upload takes minutes.
    fn choose(&self, oldest: BTreeMap<String, Pending>, now: Instant) -> Next {
        let has_upload = self.sending.values().any(|sending| sending.is_file);
        let (mut wait, mut first) = (Duration::MAX, None);
        for (to, mut pending) in oldest {
            let is_file = !pending.item.file.is_empty();
            if self.is_stopped || self.sending.contains_key(&to) || is_file && has_upload {
                continue;
            }
            let pause = self.pauses.get(&to);
            pending.failures = pause.map_or(0, |pause| pause.failures);
            if let Some(pieces) = self.tried.get(&pending.id) {
                pending.starts = 0;
                pending.pieces = pending.pieces.max(*pieces);
            }
            let mut due = pause.map_or(now, |pause| pause.until);
            if pending.starts + 1 == MAX_STARTS {
                due = due.max(self.created + CALM);
            }
            if due > now {
                wait = wait.min(due - now);
            } else if to > self.last {
                return Next::Send(pending);
            } else {
                first.get_or_insert(pending);
            }
        }
        first.map_or(Next::Wait(wait), Next::Send)
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
                let to = pending.item.to.clone();
                oldest.entry(to).or_insert(pending);
            }
        }
        let pending = match deliveries.choose(oldest, Instant::now()) {
            Next::Send(pending) => pending,
            Next::Wait(time) => {
                let is_same = |deliveries: &mut Deliveries| deliveries.changes == seen;
                let changed = &self.deliveries.1;
                drop(changed.wait_timeout_while(deliveries, time.min(most), is_same));
                return Ok(None);
            }
        };
        let (id, to) = (&pending.id, &pending.item.to);
        let known = deliveries.tried.insert(id.clone(), pending.pieces);
        let sending = Sending {
            id: id.clone(),
            is_file: !pending.item.file.is_empty(),
            is_counted: known.is_none()
                && pending.starts < MAX_STARTS
                && self.queue.start_later(std::slice::from_ref(id)).is_ok(),
        };
        deliveries.sending.insert(to.clone(), sending);
        deliveries.last.clone_from(to);
        Ok(Some(pending))
    }

    /// Records the result of a try. After an error the message is still being sent.
    pub(crate) fn tried(&self, Pending { id, item, .. }: &Pending, result: &Tried) -> Result<()> {
        let ids = [id.clone()];
        match result {
            Tried::Sent => self.queue.done(&ids)?,
            Tried::Refused(why) => self.queue.give_up(id, &to_single_line(why, MAX_REASON))?,
            Tried::Replaced(item) => self.queue.add(&[Entry::new(id, KIND, item)])?,
            // This process knows the number also without the disk.
            Tried::Pieces(n) => drop(self.queue.part(id, u32::try_from(*n).unwrap_or(u32::MAX))),
            Tried::PutOff(_) => {}
        }
        let mut deliveries = self.deliveries();
        let pause = deliveries.pauses.remove(&item.to);
        match result {
            Tried::Sent | Tried::Refused(_) => drop(deliveries.tried.remove(id)),
            Tried::Replaced(_) => {}
            Tried::Pieces(n) => drop(deliveries.tried.insert(id.clone(), *n)),
            Tried::PutOff(demanded) => {
                let mut failures = pause.map_or(0, |pause| pause.failures);
                let own = back_off(failures, FIRST_PAUSE, MAX_PAUSE);
                // A demand is not a failure.
                failures += u32::from(demanded.is_none());
                let until = Instant::now() + demanded.unwrap_or(own);
                let pause = Pause { until, failures };
                deliveries.pauses.insert(item.to.clone(), pause);
            }
        }
        let sending = deliveries.sending.remove(&item.to);
        if sending.is_some_and(|sending| sending.is_counted) && deliveries.tried.contains_key(id) {
            drop(self.queue.halt(&ids));
        }
        deliveries.changes += 1;
        self.deliveries.1.notify_all();
        drop(deliveries);
        if matches!(result, Tried::Sent | Tried::Refused(_)) {
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
        deliveries.changes += 1;
        self.deliveries.1.notify_all();
        for sending in deliveries.sending.values_mut() {
            if std::mem::take(&mut sending.is_counted) {
                self.queue.halt(std::slice::from_ref(&sending.id))?;
            }
        }
        Ok(())
    }

    /// Waits until nothing is being sent, and up to `grace` for a file, whose upload may take an hour.
    pub(crate) fn wait(&self, grace: Duration) {
        let (_, changed) = &*self.deliveries;
        let is_sending =
            |deliveries: &mut Deliveries| deliveries.sending.values().any(|now| !now.is_file);
        let deliveries = sync::wait_while(changed, self.deliveries(), is_sending);
        let is_busy = |deliveries: &mut Deliveries| !deliveries.sending.is_empty();
        drop(changed.wait_timeout_while(deliveries, grace, is_busy));
    }
}
