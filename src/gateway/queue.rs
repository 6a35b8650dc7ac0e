//! What waits in each conversation. A conversation with a queue has one worker thread, which ends with it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::agent::Budget;
use crate::bus::{Command, Inbound, Source};
use crate::cancel::Cancel;
use crate::test_speed::paced;

/// How long to wait for the next part of a message: Telegram sends the parts of an album one by one.
const NEXT_PART: Duration = Duration::from_secs(1);
/// How long to wait for what its user sends with a message: a forwarded one comes right after or before its comment.
const NEXT_MESSAGE: Duration = Duration::from_millis(400);
/// The longest wait for what belongs to a message.
const WHOLE_MESSAGE: Duration = Duration::from_secs(3);
/// Messages answered in one turn. After a long absence there may be hundreds, more than a turn can handle.
pub(super) const MAX_JOINED: usize = 16;

/// What one turn answers.
pub(super) struct Work {
    /// At least one. Of several, all are plain messages of one chat.
    pub messages: Vec<Inbound>,
    /// Stops its turn.
    pub cancel: Cancel,
    /// What has paid for something of it already.
    pub budget: Option<Arc<Budget>>,
}

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
        if message.command == Some(Command::New) {
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
        queue
            .waiting
            .retain(|message| !matches!(message.source, Source::Task));
        let has_turn = queue.is_running
            || queue
                .waiting
                .iter()
                .any(|message| message.command.is_none());
        let cancel = queue.cancel.clone();
        drop(state);
        if has_turn {
            cancel.stop();
        }
        has_turn
    }

    /// What a worker of a conversation does next: a message that has begun, a command, a run of a job or a report alone, else the
    /// plain messages of a chat that wait together. `None` ends the worker.
    pub(super) fn take(&self, session: &str) -> Option<Work> {
        let mut state = self.lock();
        let queue = state.by_session.get_mut(session)?;
        if std::mem::take(&mut queue.is_running) {
            queue.cancel = Cancel::new(None);
        }
        let Some(first) = queue.waiting.pop_front() else {
            state.by_session.remove(session);
            self.changed.notify_all();
            return None;
        };
        queue.is_running = first.command.is_none();
        let mut work = Work {
            messages: vec![first],
            cancel: queue.cancel.clone(),
            budget: None,
        };
        let last = Instant::now() + WHOLE_MESSAGE;
        let mut until = Instant::now() + work.patience();
        loop {
            let queue = state.by_session.get_mut(session)?;
            while queue
                .waiting
                .front()
                .is_some_and(|next| work.can_join(next))
            {
                work.messages.extend(queue.waiting.pop_front());
                until = Instant::now() + work.patience();
            }
            let left = until.min(last).saturating_duration_since(Instant::now());
            if !queue.waiting.is_empty() || left.is_zero() {
                return Some(work);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes the messages that wait behind the running turn and that it can take in, from the first on, `most` of them.
    pub(super) fn take_more(&self, begun: &Inbound, most: usize) -> Vec<Inbound> {
        let mut state = self.lock();
        let Some(queue) = state.by_session.get_mut(&begun.session) else {
            return Vec::new();
        };
        let mut taken = Vec::new();
        while taken.len() < most
            && queue
                .waiting
                .front()
                .is_some_and(|next| steers(next, begun))
        {
            taken.extend(queue.waiting.pop_front());
        }
        taken
    }

    /// Forgets messages that a turn has answered with its own.
    pub(super) fn forget(&self, session: &str, ids: &[String]) {
        if let Some(queue) = self.lock().by_session.get_mut(session) {
            queue.waiting.retain(|message| !ids.contains(&message.id));
        }
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

impl Work {
    pub(super) fn first(&self) -> &Inbound {
        &self.messages[0]
    }

    pub(super) fn ids(&self) -> Vec<String> {
        let ids = self.messages.iter().map(|message| message.id.clone());
        ids.collect()
    }

    /// How long more may belong to these.
    fn patience(&self) -> Duration {
        match self.messages.last() {
            Some(last) if !last.is_plain() => Duration::ZERO,
            Some(last) if more_follows(last) => NEXT_PART,
            Some(Inbound {
                source: Source::Telegram { .. },
                ..
            }) => paced(NEXT_MESSAGE),
            _ => Duration::ZERO,
        }
    }

    /// Whether one turn can answer `next` with these.
    fn can_join(&self, next: &Inbound) -> bool {
        let last = self.messages.last();
        // The parts of one message stay together.
        let has_room = last.is_some_and(more_follows) || self.messages.len() < MAX_JOINED;
        let first = self.first();
        first.is_plain() && next.is_plain() && first.origin == next.origin && has_room
    }
}

/// Whether a message is a part of one that goes on.
fn more_follows(message: &Inbound) -> bool {
    matches!(
        message.source,
        Source::Telegram {
            more_follows: true,
            ..
        }
    )
}

/// Whether the turn of a message can take in one that came later. Files are fetched for a turn of their own, and the parts of an
/// album come together.
fn steers(next: &Inbound, begun: &Inbound) -> bool {
    let user = |message: &Inbound| match message.source {
        Source::Telegram { user, .. } => Some(user),
        _ => None,
    };
    next.is_plain()
        && next.origin == begun.origin
        && user(next).is_some()
        && user(next) == user(begun)
        && next.files().is_empty()
        && !more_follows(next)
}
