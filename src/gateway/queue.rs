//! Queues of messages by conversation. A conversation with a queue has one worker thread, which ends with the queue.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::agent::Budget;
use crate::bus::{Command, Inbound, Source};
use crate::cancel::Cancel;
use crate::sync;
use crate::test_speed::paced;

/// Maximum wait for the next part of a message, because Telegram sends the parts of an album one by one.
const NEXT_PART: Duration = Duration::from_secs(1);
/// Maximum wait for a related message: a forwarded message arrives right after or before its comment.
const NEXT_MESSAGE: Duration = Duration::from_millis(400);
/// Maximum total wait for related messages.
const WHOLE_MESSAGE: Duration = Duration::from_secs(3);
/// Maximum number of messages per turn. After a long absence hundreds may wait, too many for one turn.
pub(super) const MAX_JOINED: usize = 16;

/// Input of one turn.
pub(super) struct Work {
    /// Never empty. If there are several, all are plain messages of one chat.
    pub messages: Vec<Inbound>,
    /// Stops the turn.
    pub cancel: Cancel,
    /// Budget, if part of the work has been paid from it.
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
    /// Number of background tasks, turns of HTTP clients and other work without a queue. They share the lock, because turns
    /// start tasks, whose reports become messages.
    others: usize,
}

impl QueueState {
    fn is_busy(&self) -> bool {
        !self.by_session.is_empty() || self.others > 0
    }
}

struct Queue {
    waiting: VecDeque<Inbound>,
    /// Stops the current turn, or the next turn before it starts.
    cancel: Cancel,
    is_running: bool,
}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        sync::lock(&self.state)
    }

    /// Queues a message. Returns whether its conversation needs a worker.
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
            // `/new` takes effect immediately; waiting messages are answered in the new conversation.
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

    /// Stops the current turn, or the next waiting one. Returns whether there was one.
    pub(super) fn stop(&self, session: &str) -> bool {
        let mut state = self.lock();
        let Some(queue) = state.by_session.get_mut(session) else {
            return false;
        };
        // The tasks of these reports are stopped.
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

    /// Returns the next work of a conversation: a started message, a command, a run of a job or a report alone, or all waiting
    /// plain messages of a chat. `None` ends the worker.
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
            state = sync::wait(&self.changed, state, left);
        }
    }

    /// Takes up to `most` of the first waiting messages that can join the running turn.
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

    /// Removes messages that a turn has answered along with its own.
    pub(super) fn forget(&self, session: &str, ids: &[String]) {
        if let Some(queue) = self.lock().by_session.get_mut(session) {
            queue.waiting.retain(|message| !ids.contains(&message.id));
        }
    }

    pub(super) fn begin_other(&self) {
        self.lock().others += 1;
    }

    pub(super) fn end_other(&self) {
        self.lock().others -= 1;
        self.changed.notify_all();
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.lock().is_busy()
    }

    /// Waits up to `limit` until everything is finished.
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

    /// Time to wait for related messages.
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

    /// Whether one turn can answer `next` together with these messages.
    fn can_join(&self, next: &Inbound) -> bool {
        let last = self.messages.last();
        // All parts of one message are answered together.
        let has_room = last.is_some_and(more_follows) || self.messages.len() < MAX_JOINED;
        let first = self.first();
        first.is_plain() && next.is_plain() && first.origin == next.origin && has_room
    }
}

/// Whether more parts of a message follow.
fn more_follows(message: &Inbound) -> bool {
    matches!(
        message.source,
        Source::Telegram {
            more_follows: true,
            ..
        }
    )
}

/// Whether a message's turn can receive a later message. Messages with files and parts of albums need a separate turn.
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
