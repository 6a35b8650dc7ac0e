//! Notices a changed config.json and restarts the gateway with it.

use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant, SystemTime};

use super::gateway::Startup;
use super::shutdown::Shutdown;
use crate::config::Env;
use crate::gateway::Dispatcher;
use crate::log::{Level, Log};
use crate::paths::Home;

/// How long a restart waits for turns and background tasks to end. Messages are answered meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);
/// The poll interval while waiting for that.
const IDLE_CHECK: Duration = Duration::from_millis(100);
/// A file that changes within this time is still being written.
const SETTLED: Duration = Duration::from_millis(200);

pub(super) struct Reload {
    home: Home,
    env: Env,
    seen: Option<(SystemTime, u64)>,
}

impl Reload {
    /// Create it before reading the file, so that no change goes unnoticed.
    pub(super) fn new(home: &Home, env: &Env) -> Self {
        Self { home: home.clone(), env: env.clone(), seen: stamp(home) }
    }

    /// Restarts the gateway if the file has changed to one that a gateway can start with.
    pub(super) fn check(&mut self, dispatcher: &Weak<Dispatcher>, shutdown: &Arc<Shutdown>, log: Log) {
        if shutdown.is_restart_planned() || !self.has_changed() {
            return;
        }
        if let Err(e) = Startup::load(&self.home, &self.env) {
            let text = format!("config.json has changed but cannot be used, so the old one stays: {}", e.message);
            return log.write(Level::Error, &text);
        }
        if shutdown.plan_restart() {
            log.write(Level::Info, "config.json has changed: restarting");
            let (dispatcher, shutdown) = (dispatcher.clone(), shutdown.clone());
            let restart = move || {
                let deadline = Instant::now() + PATIENCE;
                let is_busy = || dispatcher.upgrade().is_some_and(|dispatcher| !dispatcher.is_idle());
                while is_busy() && Instant::now() < deadline {
                    if shutdown.cancel.sleep(IDLE_CHECK).is_err() {
                        return;
                    }
                }
                shutdown.stop();
            };
            if let Err(e) = Builder::new().spawn(restart) {
                log.write(Level::Error, &format!("starting a thread: {e}"));
            }
        }
    }

    fn has_changed(&mut self) -> bool {
        let now = stamp(&self.home);
        if now == self.seen {
            return false;
        }
        std::thread::sleep(SETTLED);
        if stamp(&self.home) != now {
            // The next poll sees the whole file.
            return false;
        }
        self.seen = now;
        true
    }
}

fn stamp(home: &Home) -> Option<(SystemTime, u64)> {
    let meta = fs_err::metadata(home.config()).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}
