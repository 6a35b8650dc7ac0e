//! Locks of conversations, and waiting for a locked one.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::{Guard, LOCK_WAIT, QUIET_WAIT};
use crate::cancel::{Cancel, CancelReason};
use crate::error::{Error, Kind, Result};
use crate::paths::shown_key;
use crate::sync;
use crate::test_speed::paced;

/// Limits of the pauses between two attempts to lock a conversation.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Conversations that are locked within the process: the address of a store, and the key.
static LOCKED: Mutex<BTreeSet<(usize, String)>> = Mutex::new(BTreeSet::new());

struct Held((usize, String));

impl Drop for Held {
    fn drop(&mut self) {
        sync::lock(&LOCKED).remove(&self.0);
    }
}

/// Locks a conversation of the store at this address, or returns `None` if it is already locked.
pub(super) fn lock_in_process(store: usize, key: &str) -> Option<Guard> {
    let place = (store, key.to_owned());
    let is_free = sync::lock(&LOCKED).insert(place.clone());
    is_free.then(|| Box::new(Held(place)) as Guard)
}

/// Locks a conversation under the rules of [`OpenSession::open`](super::OpenSession::open). Calls `lock` until it returns a
/// lock, calls `waiting` after a second, and gives up after 30 seconds or when `cancel` is stopped or times out.
///
/// `lock` returns `None` while the conversation is locked; dropping the returned lock unlocks it.
pub(super) fn lock_when_free<L>(
    name: &str,
    cancel: &Cancel,
    waiting: &dyn Fn(),
    mut lock: impl FnMut() -> Result<Option<L>>,
) -> Result<L> {
    let started = Instant::now();
    let (mut pause, mut is_told) = (FIRST_PAUSE, false);
    loop {
        if let Some(lock) = lock()? {
            return Ok(lock);
        }
        let waited = started.elapsed();
        if waited >= paced(LOCK_WAIT) {
            let (name, waited) = (shown_key(name), waited.as_secs());
            let why = format!("waiting for the conversation {name}: still busy after {waited} s");
            return Err(Error::new(Kind::Busy, why).hint(
                "wait for the other run that is using it, or use --session with another key",
            ));
        }
        if waited >= QUIET_WAIT && !is_told {
            waiting();
            is_told = true;
        }
        let kind = match cancel.sleep(pause) {
            Ok(()) => {
                pause = (pause * 2).min(LONGEST_PAUSE);
                continue;
            }
            Err(CancelReason::Stopped) => Kind::Interrupted,
            Err(CancelReason::Deadline) => Kind::Limit,
        };
        return Err(Error::new(kind, "stopped while waiting for another run"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_wait_ends_on_stop_or_deadline() {
        let _held = lock_in_process(0, "s").unwrap();
        let wait = |cancel: &Cancel| {
            let waited = lock_when_free("s", cancel, &|| (), || Ok(lock_in_process(0, "s")));
            waited.err().unwrap().kind
        };
        let deadline = Cancel::new(Some(Duration::from_millis(20)));
        assert_eq!(wait(&deadline), Kind::Limit);
        let stopped = Cancel::new(None);
        stopped.stop();
        assert_eq!(wait(&stopped), Kind::Interrupted);
    }
}
