//! Waits until channels have shown their last events, and collects their errors.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::cancel::Cancel;
use crate::error::{Context, Error, Result};

/// Time limit for showing the last events.
const LAST_SHOWN: Duration = Duration::from_secs(30);

/// Forwards errors of a channel, and stops serving.
pub(super) fn watch(end: Receiver<Error>, failures: Sender<Error>, cancel: Cancel) -> Result<()> {
    let watching = move || {
        for failure in end {
            // The receiver is dropped when serving has ended.
            failures.send(failure).ok();
            cancel.stop();
        }
    };
    let thread = Builder::new().name("channel".to_owned());
    thread.spawn(watching).doing("starting a thread")?;
    Ok(())
}

/// Waits until all channels have shown their events, and returns the first error.
pub(super) fn wait(failed: &Receiver<Error>) -> Result<()> {
    let until = Instant::now() + LAST_SHOWN;
    let mut first = Ok(());
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match failed.recv_timeout(left) {
            Ok(e) => first = first.and(Err(e)),
            Err(RecvTimeoutError::Disconnected) => return first,
            Err(RecvTimeoutError::Timeout) => {
                let e = format!(
                    "a channel did not show its last events within {} seconds",
                    LAST_SHOWN.as_secs()
                );
                return first.and(Err(Error::failed(e)));
            }
        }
    }
}
