//! What the gateway does after each poll: updates the status file, tells the service manager that it lives, and checks the
//! clock and config.json.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, SystemTime};

use super::reload::Reload;
use crate::cancel::{Cancel, Hook};
use crate::config::Env;
use crate::error::{Context, Result};
use crate::gateway::status::Status;
use crate::gateway::systemd::ServiceManager;
use crate::log::{Level, Log};
use crate::paths::Home;
use crate::telegram::{PollEvent, Watch};
use crate::text::one_line;

/// The longest time between two checks without a poller.
const MAX_PAUSE: Duration = Duration::from_secs(50);

struct Monitor {
    reload: Reload,
    /// Wakes the clock, which may have been set, and delivers what waits in the outbox.
    wake: Box<dyn Fn() + Send>,
    manager: ServiceManager,
    status: Status,
    log: Log,
}

/// Reports that the gateway is ready and returns the callback for the poller. The hook reports its end after a signal.
pub(super) fn start(home: &Home, env: &Env, reload: Reload, wake: Box<dyn Fn() + Send>, log: Log) -> (Watch, Hook) {
    let (manager, shutdown) = (ServiceManager::new(env), reload.shutdown.clone());
    let status = Status::new(home, SystemTime::now());
    log_failure(log, status.write());
    manager.notify("READY=1");
    let within = manager.interval;
    let monitor = Arc::new(Mutex::new(Monitor { reload, wake, manager, status, log }));
    let ending = monitor.clone();
    let at_end = shutdown.cancel.clone().on_stop(move || {
        if shutdown.is_signalled() {
            let mut monitor = ending.lock().unwrap_or_else(PoisonError::into_inner);
            monitor.manager.notify("STOPPING=1");
            log_failure(log, monitor.status.ends(SystemTime::now()));
        }
    });
    let tell = move |event: PollEvent| monitor.lock().unwrap_or_else(PoisonError::into_inner).handle(event);
    (Watch { tell: Box::new(tell), within }, at_end)
}

/// Calls back at intervals, in place of a poller.
pub(super) fn tick(watch: Watch, cancel: Cancel) -> Result<()> {
    let pause = watch.within.min(MAX_PAUSE);
    let work = move || {
        while cancel.sleep(pause).is_ok() {
            (watch.tell)(PollEvent::Waiting);
        }
    };
    Builder::new().spawn(work).map(drop).doing("starting a thread")
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
        (self.wake)();
        self.reload.check();
    }
}

fn log_failure(log: Log, written: Result<()>) {
    if let Err(e) = written {
        log.write(Level::Error, &format!("writing the status file: {e}"));
    }
}
