//! How the gateway ends: on a signal, or to start over with a changed configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;

use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::{child, sys};

/// How long turns may go on. The next start resumes those that are still under way.
const GRACE: Duration = Duration::from_secs(3);

pub(super) struct Shutdown {
    /// Ends polling.
    pub cancel: Cancel,
    signalled: AtomicBool,
    restart: AtomicBool,
}

impl Shutdown {
    /// Shuts down when SIGINT, SIGTERM or SIGHUP arrives. Call it before starting any other thread.
    pub(super) fn on_signal() -> Result<Arc<Self>> {
        sys::block_signals(sys::ENDING);
        let flag = AtomicBool::default;
        let cancel = Cancel::new(None);
        let shutdown = Arc::new(Self { cancel, signalled: flag(), restart: flag() });
        let own = shutdown.clone();
        let wait = move || {
            sys::wait_for_signal(sys::ENDING);
            own.signalled.store(true, Ordering::SeqCst);
            own.stop();
        };
        Builder::new().spawn(wait).doing("starting a thread")?;
        Ok(shutdown)
    }

    pub(super) fn is_signalled(&self) -> bool {
        self.signalled.load(Ordering::SeqCst)
    }

    /// Announces a restart. False if the program is ending or restarting already.
    pub(super) fn plan_restart(&self) -> bool {
        self.cancel.why().is_none() && !self.restart.swap(true, Ordering::SeqCst)
    }

    /// Stops polling, and ends the process after [`GRACE`] if the main thread has not done so.
    pub(super) fn stop(&self) {
        self.cancel.stop();
        std::thread::sleep(GRACE);
        std::process::exit(i32::from(self.finish().is_err()));
    }

    /// Restarts the program if that is planned and no signal has arrived; returns otherwise.
    pub(super) fn finish(&self) -> Result<()> {
        if self.restart.load(Ordering::SeqCst) && !self.is_signalled() {
            return Err(child::reexec(&["gateway"])).doing("restarting");
        }
        Ok(())
    }
}
