//! Waiting for a conversation that somebody else has locked.

use std::time::{Duration, Instant};

use super::{LOCK_WAIT, QUIET_WAIT, busy};
use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::test_speed::paced;

/// Poll interval while a conversation is locked.
const PAUSE: Duration = Duration::from_millis(10);

/// Locks a conversation as [`Store::load`](super::Store::load) must: calls `lock` until it returns one,
/// `waiting` after a second, and gives up after 30 seconds or when `cancel` says so.
///
/// `lock` returns `None` while somebody else holds the conversation, and what it returns frees the conversation when it is
/// dropped.
pub(super) fn lock_when_free<L>(
    name: &str,
    cancel: &Cancel,
    waiting: &dyn Fn(),
    mut lock: impl FnMut() -> Result<Option<L>>,
) -> Result<L> {
    let started = Instant::now();
    let mut is_told = false;
    loop {
        if let Some(lock) = lock()? {
            return Ok(lock);
        }
        let waited = started.elapsed();
        if waited >= paced(LOCK_WAIT) {
            let why = format!("still busy after {} s", waited.as_secs());
            return Err(busy(name, Error::new(Kind::Busy, why)));
        }
        if waited >= QUIET_WAIT && !is_told {
            waiting();
            is_told = true;
        }
        if cancel.sleep(PAUSE).is_err() {
            return Err(Error::new(
                Kind::Interrupted,
                "stopped while waiting for another run",
            ));
        }
    }
}
