//! A counting semaphore.

use std::sync::{Condvar, Mutex};

use crate::sync;

pub(super) struct Semaphore {
    limit: usize,
    in_use: Mutex<usize>,
    released: Condvar,
}

/// Released when dropped.
pub(super) struct Permit<'a>(&'a Semaphore);

impl Semaphore {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            in_use: Mutex::default(),
            released: Condvar::new(),
        }
    }

    pub(super) fn in_use(&self) -> usize {
        *sync::lock(&self.in_use)
    }

    pub(super) fn acquire(&self) -> Permit<'_> {
        let in_use = sync::lock(&self.in_use);
        let is_full = |in_use: &mut usize| *in_use >= self.limit;
        *sync::wait_while(&self.released, in_use, is_full) += 1;
        Permit(self)
    }
}

impl Semaphore {
    /// Runs slow work without the caller's permit, and acquires the permit again before returning.
    pub(super) fn without<T>(&self, work: impl FnOnce() -> T) -> T {
        self.release();
        let done = work();
        std::mem::forget(self.acquire());
        done
    }

    fn release(&self) {
        *sync::lock(&self.in_use) -= 1;
        self.released.notify_one();
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}
