//! Room for turns: their number and the memory of their bodies are limited, and what does not fit waits.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::response::Refusal;
use crate::cancel::Cancel;
use crate::sync;

/// Maximum number of concurrent turns; further turns wait.
const MAX_TURNS: usize = 8;
/// Maximum time that a turn waits before the client is asked to retry.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Maximum total size of the running turns' bodies, in bytes. A turn needs about seven times the size of its body, which fits a
/// board with 256 MB.
const MAX_BODIES: usize = 16 << 20;
/// Maximum memory of the values in these bodies, in bytes, beside their text. One body with ten thousand messages fits.
const MAX_VALUES: usize = 64 << 20;
/// Time limit for running turns when the program ends.
const GRACE: Duration = Duration::from_millis(1500);
/// Time limit for stopped turns to send a response.
const LAST_WORDS: Duration = Duration::from_millis(1400);

#[derive(Default)]
pub(super) struct Room {
    running: Mutex<Vec<RunningTurn>>,
    freed: Condvar,
}

/// A running turn, or a turn whose body is being read.
struct RunningTurn {
    cancel: Cancel,
    /// Size of its body, in bytes.
    body: usize,
    /// Memory of its values, in bytes.
    values: usize,
}

/// Permission to run a turn.
pub(super) struct Permit<'a> {
    room: &'a Room,
    pub(super) cancel: Cancel,
}

impl Room {
    /// Waits for a permit to run a turn, with room for a body of this size.
    pub(super) fn permit(&self, body: usize) -> Result<Permit<'_>, Refusal> {
        let cancel = Cancel::new(None);
        let mut running = self.wait_for(|running| {
            let bodies: usize = running.iter().map(|turn| turn.body).sum();
            running.len() < MAX_TURNS && bodies + body <= MAX_BODIES
        })?;
        running.push(RunningTurn {
            cancel: cancel.clone(),
            body,
            values: 0,
        });
        Ok(Permit { room: self, cancel })
    }

    fn wait_for(
        &self,
        has_room: impl Fn(&[RunningTurn]) -> bool,
    ) -> Result<MutexGuard<'_, Vec<RunningTurn>>, Refusal> {
        let until = Instant::now() + MAX_WAIT;
        let mut running = sync::lock(&self.running);
        while !has_room(&running) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = "too many turns are running: try again later";
                return Err(Refusal::new(429, why).code("queue_full").retry_after(5));
            }
            running = sync::wait(&self.freed, running, left);
        }
        Ok(running)
    }

    /// Gives the running turns [`GRACE`] to end, and stops the others so that their clients get a 503.
    pub(super) fn close(&self) {
        self.wait_until_idle(GRACE);
        for turn in sync::lock(&self.running).iter() {
            turn.cancel.stop();
        }
        self.wait_until_idle(LAST_WORDS);
    }

    fn wait_until_idle(&self, limit: Duration) {
        let running = sync::lock(&self.running);
        let is_busy = |running: &mut Vec<RunningTurn>| !running.is_empty();
        drop(self.freed.wait_timeout_while(running, limit, is_busy));
    }
}

impl Permit<'_> {
    /// Waits for room for the values of the body, which take `values` bytes.
    pub(super) fn take_values(&self, values: usize) -> Result<(), Refusal> {
        if values > MAX_VALUES {
            return Err(Refusal::new(413, "the body has too many values"));
        }
        let mut running = self.room.wait_for(|running| {
            let taken: usize = running.iter().map(|turn| turn.values).sum();
            taken + values <= MAX_VALUES
        })?;
        let mut turns = running.iter_mut();
        if let Some(own) = turns.find(|turn| turn.cancel.is_same_turn(&self.cancel)) {
            own.values = values;
        }
        Ok(())
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut running = sync::lock(&self.room.running);
        running.retain(|turn| !turn.cancel.is_same_turn(&self.cancel));
        self.room.freed.notify_all();
    }
}
