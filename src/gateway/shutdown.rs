//! The end of the gateway's process: on a signal, or by a restart with a changed configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder};
use std::time::{Duration, SystemTime};

use crate::app::status::StatusFile;
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::paths::Home;
use crate::sys;

/// Time limit for running turns when the program ends. The next start resumes the unfinished ones.
const GRACE: Duration = Duration::from_secs(3);

pub(super) struct Shutdown {
    /// Stops polling.
    pub cancel: Cancel,
    pub status: StatusFile,
    restarts: AtomicBool,
}

impl Shutdown {
    /// Shuts down on SIGINT, SIGTERM or SIGHUP. Must be called before any other thread starts.
    pub(super) fn on_signal(home: &Home) -> Result<Arc<Self>> {
        sys::block_signals(sys::ENDING);
        let shutdown = Arc::new(Self {
            cancel: Cancel::new(None),
            status: StatusFile::of_process(home),
            restarts: AtomicBool::default(),
        });
        let own = shutdown.clone();
        let wait = move || {
            // The signal remains pending: if it arrives while the program is being replaced, it ends the next one.
            if sys::wait_until_pending(sys::ENDING).is_err() {
                sys::wait_for_signal(sys::ENDING);
            }
            own.restarts.store(false, Ordering::SeqCst);
            own.stop();
        };
        Builder::new().spawn(wait).doing("starting a thread")?;
        Ok(shutdown)
    }

    /// Stops polling, and restarts the program.
    pub(super) fn restart(&self) {
        self.restarts.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Stops polling, and ends the process after [`GRACE`] if the main thread has not done so.
    fn stop(&self) {
        self.cancel.stop();
        thread::sleep(GRACE);
        std::process::exit(i32::from(self.finish().is_err()));
    }

    /// Restarts the program if a restart is planned. Otherwise records the end, and returns.
    pub(super) fn finish(&self) -> Result<()> {
        if self.restarts.load(Ordering::SeqCst) {
            return Err(sys::reexec(&[c"bantam", c"gateway"])).doing("restarting");
        }
        // An error would make a supervisor start the gateway again.
        drop(self.status.end(SystemTime::now()));
        Ok(())
    }
}
