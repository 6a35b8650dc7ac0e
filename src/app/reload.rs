//! Notices a changed config.json and restarts the gateway with it.

use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, SystemTime};

use super::gateway::Startup;
use super::shutdown::Shutdown;
use crate::config::Env;
use crate::gateway::Dispatcher;
use crate::log::{Level, Log};
use crate::paths::Home;

/// How long a restart waits for turns and background tasks to end. Messages are answered meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);
/// A file that changes within this time is still being written.
const SETTLED: Duration = Duration::from_millis(200);

/// What tells one version of the file from another.
type Stamp = Option<(SystemTime, u64)>;

pub(super) struct Reload {
    pub home: Home,
    pub env: Env,
    /// Of the version in use.
    pub seen: Stamp,
    pub dispatcher: Arc<Dispatcher>,
    pub shutdown: Arc<Shutdown>,
    pub log: Log,
}

pub(super) fn stamp(home: &Home) -> Stamp {
    let meta = fs_err::metadata(home.config()).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

impl Reload {
    /// Restarts the gateway if the file has changed to one that a gateway can start with.
    pub(super) fn check(&mut self) {
        if !self.has_changed() {
            return;
        }
        if let Err(e) = Startup::load(&self.home, &self.env) {
            let text = format!("config.json has changed but cannot be used, so the old one stays: {}", e.message);
            return self.log.write(Level::Error, &text);
        }
        let (dispatcher, shutdown, log) = (self.dispatcher.clone(), self.shutdown.clone(), self.log);
        let restart = move || {
            if shutdown.plan_restart() {
                log.write(Level::Info, "config.json has changed: restarting");
                dispatcher.wait_until_idle(PATIENCE);
                shutdown.stop();
            }
        };
        if let Err(e) = Builder::new().spawn(restart) {
            log.write(Level::Error, &format!("starting a thread: {e}"));
            // The next check tries again.
            self.seen = None;
        }
    }

    fn has_changed(&mut self) -> bool {
        let now = stamp(&self.home);
        if now == self.seen {
            return false;
        }
        std::thread::sleep(SETTLED);
        if stamp(&self.home) != now {
            // The next check sees the whole file.
            return false;
        }
        self.seen = now;
        true
    }
}
