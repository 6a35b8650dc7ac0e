//! Locks mutexes and waits on them, whether or not a holder has panicked.
//!
//! A panic ends the binary. In a program that embeds bantam, a panic of the program's own provider or tool must not make every
//! later turn fail, and what these mutexes protect is changed in one step, so it is whole after a panic.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Locks a mutex.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Releases the mutex of `guard` until `changed` is notified, or for up to `most`.
pub(crate) fn wait<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    most: Duration,
) -> MutexGuard<'a, T> {
    let waited = changed.wait_timeout(guard, most);
    waited.unwrap_or_else(PoisonError::into_inner).0
}

/// Releases the mutex of `guard` until `changed` is notified and `condition` is false.
pub(crate) fn wait_while<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    condition: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    let waited = changed.wait_while(guard, condition);
    waited.unwrap_or_else(PoisonError::into_inner)
}

/// Returns the value of a mutex that no other thread has any more.
pub(crate) fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}
