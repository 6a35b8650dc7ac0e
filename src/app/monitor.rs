//! What the gateway does after each poll: updates the status file, tells the service manager that it lives, and checks the
//! clock and config.json.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Instant, SystemTime};

use super::reload::Reload;
use super::shutdown::Shutdown;
use crate::cancel::Hook;
use crate::config::Env;
use crate::cron::schedule;
use crate::error::Result;
use crate::gateway::Dispatcher;
use crate::gateway::clock::StepDetector;
use crate::gateway::status::Status;
use crate::gateway::systemd::ServiceManager;
use crate::log::{Level, Log};
use crate::paths::Home;
use crate::telegram::{PollEvent, Watch};
use crate::text::one_line;

struct Monitor {
    reload: Reload,
    dispatcher: Weak<Dispatcher>,
    shutdown: Arc<Shutdown>,
    clock: StepDetector,
    /// Wakes the clock thread.
    change: SyncSender<()>,
    manager: ServiceManager,
    status: Arc<Status>,
    log: Log,
}

/// Reports that the gateway is ready and returns the callback for the poller. The hook reports its end after a signal.
pub(super) fn start(
    home: &Home,
    env: &Env,
    reload: Reload,
    dispatcher: &Arc<Dispatcher>,
    shutdown: &Arc<Shutdown>,
    change: SyncSender<()>,
    log: Log,
) -> (Watch, Hook) {
    let manager = ServiceManager::new(env);
    let status = Arc::new(Status::new(home, SystemTime::now()));
    log_failure(log, status.write());
    let at_end = {
        let (ending, status, manager) = (shutdown.clone(), status.clone(), manager.clone());
        shutdown.cancel.on_stop(move || {
            if ending.is_signalled() {
                manager.notify("STOPPING=1");
                log_failure(log, status.ends(SystemTime::now()));
            }
        })
    };
    manager.notify("READY=1");
    let within = manager.interval;
    let monitor = Mutex::new(Monitor {
        reload,
        dispatcher: Arc::downgrade(dispatcher),
        shutdown: shutdown.clone(),
        clock: StepDetector::new(schedule::millis(SystemTime::now()), Instant::now()),
        change,
        manager,
        status,
        log,
    });
    let tell = move |event: PollEvent| monitor.lock().unwrap_or_else(PoisonError::into_inner).handle(event);
    (Watch { tell: Box::new(tell), within }, at_end)
}

impl Monitor {
    fn handle(&mut self, event: PollEvent) {
        let now = SystemTime::now();
        let written = match event {
            PollEvent::Serving(name) => {
                self.manager.notify(&format!("STATUS=serving as @{}", one_line(name, 80)));
                self.status.serves_as(name)
            }
            PollEvent::Polled => self.status.polls(None, now),
            PollEvent::Failing(why) => self.status.polls(Some(&one_line(why, 300)), now),
            PollEvent::Waiting => Ok(()),
        };
        log_failure(self.log, written);
        self.manager.notify("WATCHDOG=1");
        if self.clock.was_set(schedule::millis(now), Instant::now()) {
            // A full channel holds a wake-up already.
            let _full = self.change.try_send(());
        }
        self.reload.check(&self.dispatcher, &self.shutdown, self.log);
    }
}

fn log_failure(log: Log, written: Result<()>) {
    if let Err(e) = written {
        log.write(Level::Error, &format!("writing the status file: {e}"));
    }
}
