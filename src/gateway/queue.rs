//! What waits in each conversation. A conversation with a queue has one worker thread, which ends with it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::bus::{Inbound, Kind, Origin};
use crate::cancel::Cancel;

/// How long to wait for the next part of a message.
const NEXT_PART: Duration = Duration::from_secs(1);
/// Messages answered in one turn. After a long absence there may be hundreds, more than a turn can handle.
pub(super) const MAX_MERGED: usize = 16;

/// The queues of all conversations.
#[derive(Default)]
pub(super) struct Queues {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    by_session: HashMap<String, Queue>,
    /// Background tasks that have a thread. They count as activity under the same lock, because a turn starts them and
    /// their reports become messages.
    tasks: usize,
}

impl QueueState {
    fn is_busy(&self) -> bool {
        !self.by_session.is_empty() || self.tasks > 0
    }
}

struct Queue {
    waiting: VecDeque<Inbound>,
    /// Stops the current turn; without one, the next turn before it begins.
    cancel: Cancel,
    is_running: bool,
}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message. Returns true if its conversation needs a worker.
    pub(super) fn push(&self, message: Inbound) -> bool {
        let mut state = self.lock();
        let needs_worker = !state.by_session.contains_key(&message.session);
        let queue = state
            .by_session
            .entry(message.session.clone())
            .or_insert_with(|| Queue {
                waiting: VecDeque::new(),
                cancel: Cancel::new(None),
                is_running: false,
            });
        let mut stop = None;
        if message.kind == Kind::New {
            // It acts at once; what waits is answered in the new conversation.
            queue.waiting.push_front(message);
            stop = queue.is_running.then(|| queue.cancel.clone());
        } else {
            queue.waiting.push_back(message);
        }
        self.changed.notify_all();
        drop(state);
        stop.iter().for_each(Cancel::stop);
        needs_worker
    }

    /// Stops the current turn, or the next one that waits. Returns whether there was one.
    pub(super) fn stop(&self, session: &str) -> bool {
        let mut state = self.lock();
        let Some(queue) = state.by_session.get_mut(session) else {
            return false;
        };
        // Their tasks are stopped.
        queue.waiting.retain(|message| message.kind != Kind::Report);
        let has_turn = queue.is_running
            || queue
                .waiting
                .iter()
                .any(|message| message.kind == Kind::Message);
        let cancel = queue.cancel.clone();
        drop(state);
        if has_turn {
            cancel.stop();
        }
        has_turn
    }

    /// The next message of a conversation, with those that are answered together merged into one. `None` ends the worker.
    pub(super) fn next(&self, session: &str) -> Option<(Inbound, Cancel)> {
        let mut state = self.lock();
        let queue = state.by_session.get_mut(session)?;
        if std::mem::take(&mut queue.is_running) {
            queue.cancel = Cancel::new(None);
        }
        let Some(mut message) = queue.waiting.pop_front() else {
            state.by_session.remove(session);
            self.changed.notify_all();
            return None;
        };
        let cancel = queue.cancel.clone();
        if !matches!(message.kind, Kind::Message | Kind::Report) {
            return Some((message, cancel));
        }
        queue.is_running = true;
        let mut deadline = Instant::now() + NEXT_PART;
        loop {
            let queue = state.by_session.get_mut(session)?;
            while queue
                .waiting
                .front()
                .is_some_and(|more| message.can_merge(more))
            {
                deadline = Instant::now() + NEXT_PART;
                queue
                    .waiting
                    .pop_front()
                    .into_iter()
                    .for_each(|more| message.merge(more));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !message.is_part || !queue.waiting.is_empty() || left.is_zero() {
                return Some((message, cancel));
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Takes the messages that wait behind the running turn and that it can take in, from the first on.
    pub(super) fn take_more(
        &self,
        session: &str,
        origin: &Origin,
        room: usize,
        can_take: &dyn Fn(&Inbound) -> bool,
    ) -> Vec<Inbound> {
        let mut state = self.lock();
        let Some(queue) = state.by_session.get_mut(session) else {
            return Vec::new();
        };
        let mut taken = Vec::new();
        while taken.len() < room {
            let fits = queue
                .waiting
                .front()
                .is_some_and(|next| next.is_plain() && next.origin == *origin && can_take(next));
            if !fits {
                break;
            }
            taken.extend(queue.waiting.pop_front());
        }
        taken
    }

    pub(super) fn task_begins(&self) {
        self.lock().tasks += 1;
    }

    pub(super) fn task_ends(&self) {
        self.lock().tasks -= 1;
        self.changed.notify_all();
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.lock().is_busy()
    }

    /// Waits until no message waits and no turn or background task runs, for this time at most.
    pub(super) fn wait_until_idle(&self, limit: Duration) {
        let is_busy = |state: &mut QueueState| state.is_busy();
        drop(self.changed.wait_timeout_while(self.lock(), limit, is_busy));
    }
}

impl Inbound {
    /// Whether one turn can answer this message and `more`, which came after it.
    fn can_merge(&self, more: &Self) -> bool {
        // The parts of one message stay together.
        let has_room = self.is_part || self.ids.len() + more.ids.len() <= MAX_MERGED;
        self.is_plain() && more.is_plain() && self.origin == more.origin && has_room
    }

    /// Whether it is a message of a user that has crashed nothing.
    fn is_plain(&self) -> bool {
        self.kind == Kind::Message && !self.ids.is_empty() && !self.is_alone
    }

    /// Makes one message of this and `more`, which came after it.
    pub(crate) fn merge(&mut self, more: Self) {
        if !self.text.is_empty() && !more.text.is_empty() {
            self.text.push_str("\n\n");
        }
        self.text.push_str(&more.text);
        self.attachments.extend(more.attachments);
        self.ids.extend(more.ids);
        self.is_part = more.is_part;
    }
}
