//! Stops a turn: a flag with a deadline, and hooks that wake blocked threads.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::error::{Error, Kind};
use crate::sync;

/// Reason to end a turn; see [`Cancel::reason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelReason {
    /// The turn was stopped.
    Stopped,
    /// The turn timed out.
    Deadline,
}

/// Stop flag and deadline of one turn, for all its threads. Clones belong to the same turn.
#[derive(Clone, Default)]
pub struct Cancel {
    shared: Arc<Shared>,
    deadline: Option<Instant>,
    /// Time from setting the deadline until the deadline.
    timeout: Option<Duration>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stopped: bool,
    /// Start of the current pause, and how many pauses overlap.
    paused: Option<(Instant, usize)>,
    paused_before: Duration,
    next: u64,
    hooks: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
}

impl Cancel {
    /// Creates a flag. After `timeout`, [`Cancel::reason`] returns [`CancelReason::Deadline`], but blocked threads are not
    /// woken, so limit every wait by [`Cancel::remaining`].
    pub fn new(timeout: Option<Duration>) -> Self {
        Self {
            shared: Arc::default(),
            deadline: timeout.and_then(|t| Instant::now().checked_add(t)),
            timeout,
        }
    }

    /// Returns the same flag with an earlier deadline.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        let own = Instant::now().checked_add(timeout);
        Self {
            shared: self.shared.clone(),
            deadline: [self.deadline, own].into_iter().flatten().min(),
            timeout: [self.timeout, Some(timeout)].into_iter().flatten().min(),
        }
    }

    /// Returns the cancel of a part of the turn, which is stopped alone or, until the hook is dropped, with the turn.
    pub(crate) fn follower(&self) -> (Self, Hook) {
        let follower = Self {
            shared: Arc::default(),
            ..self.clone()
        };
        follower.lock().paused_before = self.lock().paused_before;
        let stopped = follower.clone();
        (follower, self.on_stop(move || stopped.stop()))
    }

    pub(crate) fn is_same_turn(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Stops the turn and wakes its threads. Later waits return immediately.
    pub fn stop(&self) {
        let hooks = {
            let mut state = self.lock();
            state.stopped = true;
            std::mem::take(&mut state.hooks)
        };
        self.shared.changed.notify_all();
        for hook in hooks.into_values() {
            hook();
        }
    }

    /// Pauses all deadlines of the turn until the guard is dropped, for waits that depend on a person.
    pub(crate) fn pause(&self) -> Pause {
        let mut state = self.lock();
        let (since, pauses) = state.paused.unwrap_or((Instant::now(), 0));
        state.paused = Some((since, pauses + 1));
        drop(state);
        Pause(self.shared.clone())
    }

    /// Returns why the turn must end, or `None` if it may continue.
    pub fn reason(&self) -> Option<CancelReason> {
        let state = self.lock();
        if state.stopped {
            return Some(CancelReason::Stopped);
        }
        let deadline = self.deadline?;
        (state.left(deadline).is_zero()).then_some(CancelReason::Deadline)
    }

    /// Returns the error of a turn that reached its deadline.
    pub(crate) fn timed_out(&self) -> Error {
        let seconds = self.timeout.unwrap_or_default().as_secs();
        Error::new(Kind::Limit, format!("the turn timed out after {seconds} s"))
            .hint("raise `agents.defaults.timeout`, or --timeout of this question")
    }

    /// Returns the time until the deadline, up to `cap`.
    pub fn remaining(&self, cap: Duration) -> Duration {
        self.deadline
            .map_or(cap, |deadline| self.lock().left(deadline).min(cap))
    }

    /// Sleeps for `time`, or until the turn must end.
    pub fn sleep(&self, time: Duration) -> Result<(), CancelReason> {
        let (started, time) = (Instant::now(), self.remaining(time));
        let mut state = self.lock();
        while !state.stopped {
            let left = time.saturating_sub(started.elapsed());
            if left.is_zero() {
                break;
            }
            state = sync::wait(&self.shared.changed, state, left);
        }
        drop(state);
        self.reason().map_or(Ok(()), Err)
    }

    /// Runs `hook` when the turn is stopped, or immediately if it already is. Dropping the guard removes the hook.
    pub fn on_stop(&self, hook: impl FnOnce() + Send + 'static) -> Hook {
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        if state.stopped {
            drop(state);
            hook();
        } else {
            state.hooks.insert(id, Box::new(hook));
        }
        Hook {
            shared: self.shared.clone(),
            id,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.shared.state)
    }
}

impl State {
    /// Returns the time until a deadline, without pauses.
    fn left(&self, deadline: Instant) -> Duration {
        let now = self.paused.map_or_else(Instant::now, |(since, _)| since);
        (deadline + self.paused_before).saturating_duration_since(now)
    }
}

/// Guard of a pause; see [`Cancel::pause`].
pub(crate) struct Pause(Arc<Shared>);

impl Drop for Pause {
    fn drop(&mut self) {
        let mut state = sync::lock(&self.0.state);
        match state.paused {
            Some((since, 1)) => {
                state.paused_before += since.elapsed();
                state.paused = None;
            }
            Some((since, pauses)) => state.paused = Some((since, pauses - 1)),
            None => {}
        }
    }
}

/// Guard of a hook, which is removed when this is dropped; see [`Cancel::on_stop`].
pub struct Hook {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Hook {
    fn drop(&mut self) {
        sync::lock(&self.shared.state).hooks.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_wakes_a_sleeper_and_runs_each_hook_once() {
        let cancel = Cancel::new(None);
        let (tx, rx) = std::sync::mpsc::channel();
        let sender = tx.clone();
        let _kept = cancel.on_stop(move || sender.send("kept").unwrap());
        drop(cancel.on_stop(move || tx.send("dropped").unwrap()));
        let sleeper = {
            let cancel = cancel.clone();
            std::thread::spawn(move || cancel.sleep(Duration::from_secs(60)))
        };
        cancel.stop();
        cancel.stop();
        assert_eq!(sleeper.join().unwrap(), Err(CancelReason::Stopped));
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), ["kept"]);
    }

    #[test]
    fn a_deadline_waits_while_a_person_is_asked() {
        let turn = Cancel::new(None);
        let call = turn.with_timeout(Duration::from_millis(300));
        let one = turn.pause();
        let other = call.pause();
        std::thread::sleep(Duration::from_millis(400));
        drop(one);
        assert_eq!(call.reason(), None, "one more is asked");
        drop(other);
        assert_eq!(call.reason(), None);
        let left = call.remaining(Duration::from_secs(9));
        assert!(left <= Duration::from_millis(300), "{left:?}");
        assert_eq!(
            call.sleep(Duration::from_secs(60)),
            Err(CancelReason::Deadline)
        );
    }

    #[test]
    fn a_passed_deadline_is_a_reason_and_leaves_no_time() {
        let cancel = Cancel::new(Some(Duration::ZERO));
        assert_eq!(cancel.reason(), Some(CancelReason::Deadline));
        assert_eq!(cancel.remaining(Duration::from_secs(9)), Duration::ZERO);
        assert_eq!(
            cancel.sleep(Duration::from_secs(60)),
            Err(CancelReason::Deadline)
        );
    }
}
