//! Restarts the gateway when config.json has changed. Checking the new one may ask a model's host or run the command of a key, so
//! it takes a thread of its own, which the clock wakes. The poller checks it before new updates are recorded. A further change
//! while the restart waits for a turn is checked when that turn has ended.

use std::sync::mpsc::Receiver;
use std::time::SystemTime;

use super::start::{Gateway, GatewaySetup};
use crate::log::Level;
use crate::paths::Home;
use crate::sync;

/// Identifies a version of config.json.
pub(super) type ConfigStamp = Option<(SystemTime, u64)>;

pub(super) fn stamp(home: &Home) -> ConfigStamp {
    let meta = fs_err::metadata(home.config()).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

/// What is known of config.json.
pub(super) struct ConfigCheck {
    /// Version that was checked last.
    pub seen: ConfigStamp,
    /// Whether the gateway can start with it, and restarts once no turn is running.
    pub restarts: bool,
}

impl Gateway {
    /// Checks config.json at each wake-up, and restarts the gateway when no turn is running, unless it becomes invalid.
    pub(super) fn watch_config(&self, woken: &Receiver<()>) {
        while woken.recv().is_ok() {
            while self.check_config() {
                self.dispatcher.inbox.wait_until_idle();
                // The turns may have taken long, so the file may have changed again. A turn may have begun during the check.
                if self.check_config() && self.dispatcher.inbox.is_idle() {
                    self.shutdown.restart();
                }
            }
        }
    }

    /// Checks config.json if it has changed, or waits for the check of another thread. Returns whether the gateway restarts once
    /// no turn is running.
    pub(super) fn check_config(&self) -> bool {
        let mut config = sync::lock(&self.config);
        let cancel = &self.shutdown.cancel;
        let stamp = stamp(&self.setup.app.home);
        if stamp == config.seen {
            return config.restarts && cancel.reason().is_none();
        }
        config.seen = stamp;
        let proven = GatewaySetup::check(&self.setup.app);
        if cancel.reason().is_some() {
            return false;
        }
        config.restarts = proven.is_ok();
        match proven {
            Ok(setup) => {
                let text = "config.json has changed: restarting";
                self.log.write(Level::Info, text);
                // The restarted program logs them.
                let known = &self.setup.notices;
                let new = setup.notices.iter().filter(|new| !known.contains(new));
                new.for_each(|notice| self.tell(notice));
            }
            Err(e) => {
                let kept = "config.json is invalid; keeping the previous settings";
                self.report(&format!("{kept}: {}", e.message));
            }
        }
        config.restarts
    }
}
