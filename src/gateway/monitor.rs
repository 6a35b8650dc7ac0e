//! Monitors the running gateway: ends it on a signal, restarts it when config.json has changed, and updates the status file
//! after each poll. A change by a command is noticed at once, and one by hand at the next poll, or when updates arrive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, Builder};
use std::time::{Duration, SystemTime};

use crate::app::status;
use crate::bus::Inbox;
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::log::{Level, Log};
use crate::paths::Home;
use crate::sync;
use crate::sys;
use crate::telegram::PollEvent;
use crate::test_speed::paced;
use crate::text::to_single_line;

/// Time limit for running turns when the program ends. The next start resumes the unfinished ones.
const GRACE: Duration = Duration::from_secs(3);
/// Interval of checks without a poller.
const PAUSE: Duration = Duration::from_secs(50);

/// Manner of the gateway's end: on a signal, or by a restart with a changed configuration.
pub(crate) struct Shutdown {
    /// Stops polling.
    pub cancel: Cancel,
    home: Home,
    signalled: AtomicBool,
    restart: AtomicBool,
}

impl Shutdown {
    /// Shuts down on SIGINT, SIGTERM or SIGHUP. Must be called before any other thread starts.
    pub(crate) fn on_signal(home: &Home) -> Result<Arc<Self>> {
        sys::block_signals(sys::ENDING);
        let shutdown = Arc::new(Self {
            cancel: Cancel::new(None),
            home: home.clone(),
            signalled: AtomicBool::default(),
            restart: AtomicBool::default(),
        });
        let own = shutdown.clone();
        let wait = move || {
            // The signal remains pending: if it arrives while the program is being replaced, it ends the next one.
            if sys::wait_until_pending(sys::ENDING).is_err() {
                sys::wait_for_signal(sys::ENDING);
            }
            own.signalled.store(true, Ordering::SeqCst);
            own.stop();
        };
        Builder::new().spawn(wait).doing("starting a thread")?;
        Ok(shutdown)
    }

    /// Stops polling, and ends the process after [`GRACE`] if the main thread has not done so.
    fn stop(&self) {
        self.cancel.stop();
        thread::sleep(GRACE);
        std::process::exit(i32::from(self.finish().is_err()));
    }

    /// Restarts the program if a restart is planned and no signal has arrived. Otherwise records the end, and returns.
    pub(crate) fn finish(&self) -> Result<()> {
        if self.restart.load(Ordering::SeqCst) && !self.signalled.load(Ordering::SeqCst) {
            return Err(sys::reexec(&[c"bantam", c"gateway"])).doing("restarting");
        }
        // An error would make a supervisor start the gateway again.
        drop(status::end(&self.home, SystemTime::now()));
        Ok(())
    }
}

/// Identifies a version of config.json.
pub(crate) type ConfigStamp = Option<(SystemTime, u64)>;

pub(crate) fn stamp(home: &Home) -> ConfigStamp {
    let meta = fs_err::metadata(home.config()).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

pub(crate) struct Monitor {
    pub home: Home,
    /// Checks that a gateway can start with the current config.json. Asks Telegram, so it may take long.
    pub prove: Box<dyn Fn() -> Result<()> + Send + Sync>,
    /// Version of config.json in use. Locked during a check, so that a second one waits for the result; a signal never does.
    pub seen: Mutex<ConfigStamp>,
    pub inbox: Inbox,
    pub shutdown: Arc<Shutdown>,
    pub wake: Arc<dyn Fn() + Send + Sync>,
    pub log: Log,
    /// Logs an error, and notifies the bot's owner.
    pub report: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Monitor {
    /// Handles an event of the poller. Returns whether the program restarts now, and leaves new updates to the restarted one.
    pub(crate) fn handle(self: &Arc<Self>, event: PollEvent) -> bool {
        let now = SystemTime::now();
        match event {
            PollEvent::Serving(name) => self.record(status::serves_as(&self.home, name)),
            PollEvent::Polled => self.record(status::polls(&self.home, None, now)),
            PollEvent::Failing(why) => {
                let why = to_single_line(why, 300);
                self.record(status::polls(&self.home, Some(&why), now));
            }
            PollEvent::Arrived | PollEvent::Waiting => {}
        }
        if event != PollEvent::Arrived {
            (self.wake)();
        }
        self.check_config();
        self.shutdown.restart.load(Ordering::SeqCst) && self.inbox.is_idle()
    }

    /// Restarts the gateway if config.json has changed.
    fn check_config(self: &Arc<Self>) {
        let mut seen = sync::lock(&self.seen);
        let stamp = stamp(&self.home);
        if stamp != *seen {
            *seen = stamp;
            // If a thread could not start, the next check tries again.
            if let Err(e) = self.restart() {
                self.log.write(Level::Error, &e.message);
                *seen = None;
            }
        }
    }

    /// Restarts the gateway if it can start with the new configuration.
    fn restart(self: &Arc<Self>) -> Result<()> {
        let (proven, shutdown) = ((self.prove)(), &self.shutdown);
        if shutdown.cancel.reason().is_some() {
            return Ok(());
        }
        let is_planned = shutdown.restart.swap(proven.is_ok(), Ordering::SeqCst);
        if let Err(e) = proven {
            let why = e.message;
            (self.report)(&format!(
                "config.json is invalid; keeping the previous settings: {why}"
            ));
            return Ok(());
        }
        if is_planned {
            return Ok(());
        }
        let own = self.clone();
        let restart = move || {
            own.log
                .write(Level::Info, "config.json has changed: restarting");
            let is_planned = || own.shutdown.restart.load(Ordering::SeqCst);
            while is_planned() {
                own.inbox.wait_until_idle();
                // The turns may have taken long, and the file may have been changed again.
                own.check_config();
                // A turn may have begun during the check.
                if is_planned() && own.inbox.is_idle() {
                    own.shutdown.stop();
                }
            }
        };
        let started = Builder::new().spawn(restart);
        if started.is_err() {
            shutdown.restart.store(false, Ordering::SeqCst);
        }
        started.map(drop).doing("starting a thread")
    }

    /// Logs an error of a change of the status file.
    pub(crate) fn record(&self, written: Result<()>) {
        if let Err(e) = written {
            let text = format!("writing the status file: {e}");
            self.log.write(Level::Error, &text);
        }
    }
}

/// Calls back at intervals, in place of a poller.
pub(crate) fn tick(monitor: Arc<Monitor>, cancel: Cancel) -> Result<()> {
    let work = move || {
        while cancel.sleep(paced(PAUSE)).is_ok() {
            monitor.handle(PollEvent::Waiting);
        }
    };
    Builder::new()
        .spawn(work)
        .map(drop)
        .doing("starting a thread")
}
