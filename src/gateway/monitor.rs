//! Monitors the running gateway: ends it on a signal, restarts it when config.json has changed, and updates the status file
//! after each poll. A change by a command is noticed at once, and one by hand at the next poll, or when updates arrive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::thread::{self, Builder};
use std::time::{Duration, SystemTime};

use super::Dispatcher;
use super::start::GatewaySetup;
use crate::app::status;
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::log::{Level, Log, log_error};
use crate::notify;
use crate::paths::Home;
use crate::sync;
use crate::sys;
use crate::telegram::PollEvent;
use crate::text::to_single_line;

/// Time limit for running turns when the program ends. The next start resumes the unfinished ones.
const GRACE: Duration = Duration::from_secs(3);

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

/// A running gateway. Its threads share it.
pub(super) struct Gateway {
    pub setup: GatewaySetup,
    pub dispatcher: Arc<Dispatcher>,
    pub shutdown: Arc<Shutdown>,
    pub log: Log,
    /// Version of config.json in use. Locked during a check, so that a second one waits for the result; a signal never does.
    pub seen: Mutex<ConfigStamp>,
    /// Wakes the clock.
    pub clock: SyncSender<()>,
}

impl Gateway {
    /// Sends a warning to the chat of the bot's owner, if there is one.
    pub(super) fn tell(&self, text: &str) {
        let chats = self.dispatcher.bot.as_ref();
        if let Some((chats, owner)) = chats.and_then(|chats| Some((chats, chats.sender.owner?))) {
            chats.post(&owner.to_string(), &format!("⚠️ {text}"));
        }
    }

    /// Logs an error, and notifies the owner.
    pub(super) fn report(&self, text: &str) {
        self.log.write(Level::Error, text);
        self.tell(text);
    }

    /// Handles an event of the poller. Returns whether the program restarts now, and leaves new updates to the restarted one.
    pub(super) fn handle(self: &Arc<Self>, event: PollEvent) -> bool {
        let (home, now) = (&self.setup.app.home, SystemTime::now());
        let recorded = match event {
            PollEvent::Serving(name) => status::serves_as(home, name),
            PollEvent::Polled => status::polls(home, None, now),
            PollEvent::Failing(why) => status::polls(home, Some(&to_single_line(why, 300)), now),
            PollEvent::Arrived | PollEvent::Signalled => Ok(()),
        };
        self.logged(recorded.doing("writing the status file"));
        if event != PollEvent::Arrived {
            // Jobs or the clock may have changed, or messages been posted. A full channel already contains a wake-up.
            let _full = self.clock.try_send(());
            self.dispatcher.outbox.wake();
        }
        self.check_config();
        self.shutdown.restart.load(Ordering::SeqCst) && self.dispatcher.inbox.is_idle()
    }

    /// Restarts the gateway if config.json has changed, and it can start with the new one.
    pub(super) fn check_config(self: &Arc<Self>) {
        let mut seen = sync::lock(&self.seen);
        let stamp = stamp(&self.setup.app.home);
        if stamp == *seen {
            return;
        }
        *seen = stamp;
        // May ask a model's host, or run the command of a key, so it may take long.
        let proven = GatewaySetup::check(self.setup.app.reread());
        let Shutdown {
            cancel, restart, ..
        } = &*self.shutdown;
        if cancel.reason().is_some() {
            return;
        }
        let is_planned = restart.swap(proven.is_ok(), Ordering::SeqCst);
        let notices = match proven {
            Ok(setup) => setup.notices,
            Err(e) => {
                let kept = "config.json is invalid; keeping the previous settings";
                return self.report(&format!("{kept}: {}", e.message));
            }
        };
        // The restarted program logs them.
        let known = &self.setup.notices;
        let new = notices.iter().filter(|notice| !known.contains(notice));
        new.for_each(|notice| self.tell(notice));
        if !is_planned {
            let own = self.clone();
            let started = Builder::new().spawn(move || own.restart_when_idle());
            if self.logged(started.doing("starting a thread")).is_none() {
                // The next check tries again.
                restart.store(false, Ordering::SeqCst);
                *seen = None;
            }
        }
    }

    /// Restarts the gateway when no turn is running, unless config.json becomes invalid.
    fn restart_when_idle(self: &Arc<Self>) {
        let text = "config.json has changed: restarting";
        self.log.write(Level::Info, text);
        let is_planned = || self.shutdown.restart.load(Ordering::SeqCst);
        while is_planned() {
            self.dispatcher.inbox.wait_until_idle();
            // The turns may have taken long, and the file may have been changed again.
            self.check_config();
            // A turn may have begun during the check.
            if is_planned() && self.dispatcher.inbox.is_idle() {
                self.shutdown.stop();
            }
        }
    }

    /// Logs an error.
    pub(super) fn logged<T>(&self, result: Result<T>) -> Option<T> {
        log_error(&self.dispatcher.log, result)
    }

    /// Forwards signals of other programs of this home: a new job, a message to send, or a changed setting.
    pub(super) fn listen(self: Arc<Self>) {
        let listener = match notify::bind(&self.setup.app.home) {
            Ok(listener) => listener,
            Err(e) => {
                let text = format!(
                    "other programs cannot wake the gateway, so new jobs may start up to an hour late, and their messages and \
                     changed settings wait for the next poll: {e}"
                );
                return self.log.write(Level::Warn, &text);
            }
        };
        drop(Builder::new().spawn(move || {
            while listener.wait().is_ok() {
                self.handle(PollEvent::Signalled);
            }
        }));
    }
}
