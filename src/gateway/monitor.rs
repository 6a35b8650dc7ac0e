//! Monitors the running gateway: ends it on a signal, restarts it when config.json has changed, and updates the status file
//! after each poll.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, Builder};
use std::time::{Duration, SystemTime};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

use super::Dispatcher;
use super::status::StatusFile;
use crate::cancel::Cancel;
use crate::error::{Context, Error, Result};
use crate::log::{Level, Log};
use crate::paths::Home;
use crate::sync;
use crate::sys;
use crate::telegram::{PollEvent, Watch};
use crate::text::to_single_line;

/// Time limit for running turns when the program ends. The next start resumes the unfinished ones.
const GRACE: Duration = Duration::from_secs(3);
/// Maximum time that a restart waits for turns and background tasks. Messages are answered meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval of checks without a poller.
const PAUSE: Duration = Duration::from_secs(50);

/// Manner of the gateway's end: on a signal, or by a restart with a changed configuration.
pub(crate) struct Shutdown {
    /// Stops polling.
    pub cancel: Cancel,
    signalled: AtomicBool,
    /// Reports a signal. Called before the shutdown starts, because the process may end soon afterwards.
    report: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    restart: AtomicBool,
    /// Valid text of config.json for the restarted program, in case the file is invalid by then.
    proven: Mutex<String>,
}

impl Shutdown {
    /// Shuts down on SIGINT, SIGTERM or SIGHUP. Must be called before any other thread starts.
    pub(crate) fn on_signal() -> Result<Arc<Self>> {
        sys::block_signals(sys::ENDING);
        let shutdown = Arc::new(Self {
            cancel: Cancel::new(None),
            signalled: AtomicBool::default(),
            report: Mutex::default(),
            restart: AtomicBool::default(),
            proven: Mutex::default(),
        });
        let own = shutdown.clone();
        let wait = move || {
            // The signal remains pending: if it arrives while the program is being replaced, it ends the next one.
            if sys::wait_until_pending(sys::ENDING).is_err() {
                sys::wait_for_signal(sys::ENDING);
            }
            own.signalled.store(true, Ordering::SeqCst);
            own.report_signal();
            own.stop();
        };
        Builder::new().spawn(wait).doing("starting a thread")?;
        Ok(shutdown)
    }

    /// Calls `report` when a signal arrives, or immediately if one has arrived.
    fn set_signal_report(&self, report: impl FnOnce() + Send + 'static) {
        *sync::lock(&self.report) = Some(Box::new(report));
        if self.signalled.load(Ordering::SeqCst) {
            self.report_signal();
        }
    }

    fn report_signal(&self) {
        let mut report = sync::lock(&self.report);
        if let Some(report) = report.take() {
            report();
        }
    }

    /// Stops polling, and ends the process after [`GRACE`] if the main thread has not done so.
    fn stop(&self) {
        self.cancel.stop();
        thread::sleep(GRACE);
        std::process::exit(i32::from(self.finish().is_err()));
    }

    /// Restarts the program if a restart is planned and no signal has arrived; otherwise returns.
    pub(crate) fn finish(&self) -> Result<()> {
        if self.restart.load(Ordering::SeqCst) && !self.signalled.load(Ordering::SeqCst) {
            let proven = sync::lock(&self.proven);
            return Err(sys::reexec(&[c"bantam", c"gateway"], &proven)).doing("restarting");
        }
        Ok(())
    }
}

/// Identifies a version of config.json.
pub(crate) type Stamp = Option<(SystemTime, u64)>;

pub(crate) fn stamp(home: &Home) -> Stamp {
    let meta = fs_err::metadata(home.config()).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

pub(crate) struct Monitor {
    pub home: Home,
    /// Checks that a gateway can start with the current config.json, and returns its text.
    pub prove: Box<dyn Fn() -> Result<String> + Send>,
    /// Version of config.json in use.
    pub seen: Stamp,
    pub dispatcher: Arc<Dispatcher>,
    pub shutdown: Arc<Shutdown>,
    pub wake: Arc<dyn Fn() + Send + Sync>,
    pub status: StatusFile,
    pub log: Log,
    /// Logs an error, and notifies the bot's owner.
    pub report: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Returns the report on an invalid config.json.
pub(crate) fn rejected(e: &Error) -> String {
    format!(
        "config.json has changed, but cannot be used; the previous settings stay in force: {}",
        e.message
    )
}

impl Monitor {
    /// Records that the gateway runs, and its end after a signal. Returns the callback for the poller.
    pub(crate) fn start(self) -> Watch {
        let (shutdown, home) = (self.shutdown.clone(), self.home.clone());
        self.logged(self.status.write());
        let monitor = Arc::new(Mutex::new(self));
        let ending = monitor.clone();
        shutdown.set_signal_report(move || {
            let mut monitor = sync::lock(&ending);
            let written = monitor.status.ends(SystemTime::now());
            monitor.logged(written);
        });
        let checking = monitor.clone();
        let check = move || {
            sync::lock(&checking).check_config();
        };
        on_change(&home, check);
        Box::new(move |event| {
            let mut monitor = sync::lock(&monitor);
            monitor.handle(event)
        })
    }

    /// Handles an event of the poller. Returns whether the program restarts now, and leaves new updates to the restarted one.
    fn handle(&mut self, event: PollEvent) -> bool {
        let now = SystemTime::now();
        let written = match event {
            PollEvent::Serving(name) => self.status.serves_as(name),
            PollEvent::Polled => self.status.polls(None, now),
            PollEvent::Failing(why) => self.status.polls(Some(&to_single_line(why, 300)), now),
            PollEvent::Arrived | PollEvent::Waiting => Ok(()),
        };
        self.logged(written);
        if event != PollEvent::Arrived {
            (self.wake)();
        }
        self.check_config();
        self.shutdown.restart.load(Ordering::SeqCst) && self.dispatcher.is_idle()
    }

    /// Restarts the gateway if config.json has changed.
    fn check_config(&mut self) {
        let stamp = stamp(&self.home);
        if stamp != self.seen {
            self.seen = stamp;
            self.restart();
        }
    }

    /// Restarts the gateway if it can start with the new configuration.
    fn restart(&mut self) {
        let proven = match (self.prove)() {
            Ok(proven) => proven,
            Err(e) => return (self.report)(&rejected(&e)),
        };
        *sync::lock(&self.shutdown.proven) = proven;
        let (dispatcher, shutdown, log) =
            (self.dispatcher.clone(), self.shutdown.clone(), self.log);
        if shutdown.cancel.reason().is_some() || shutdown.restart.swap(true, Ordering::SeqCst) {
            return;
        }
        let restart = move || {
            log.write(Level::Info, "config.json has changed: restarting");
            dispatcher.wait_until_idle(PATIENCE);
            shutdown.stop();
        };
        if let Err(e) = Builder::new().spawn(restart) {
            self.log
                .write(Level::Error, &format!("starting a thread: {e}"));
            // The next check tries again.
            self.shutdown.restart.store(false, Ordering::SeqCst);
            self.seen = None;
        }
    }

    fn logged(&self, written: Result<()>) {
        if let Err(e) = written {
            self.log
                .write(Level::Error, &format!("writing the status file: {e}"));
        }
    }
}

/// Calls back when config.json is written or replaced, on a sleeping thread. If inotify is not available, the next poll detects
/// the change.
fn on_change(home: &Home, check: impl Fn() + Send + 'static) {
    let watch = || -> rustix::io::Result<OwnedFd> {
        let fd = inotify::init(CreateFlags::CLOEXEC)?;
        let flags = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        inotify::add_watch(&fd, home.root(), flags)?;
        Ok(fd)
    };
    let Ok(fd) = watch() else { return };
    let wait = move || {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(&fd, &mut buffer);
        loop {
            match events.next() {
                Ok(event) if event.file_name() == Some(c"config.json") => check(),
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    };
    drop(Builder::new().spawn(wait));
}

/// Calls back at intervals, in place of a poller.
pub(crate) fn tick(watch: Watch, cancel: Cancel) -> Result<()> {
    let work = move || {
        while cancel.sleep(PAUSE).is_ok() {
            watch(PollEvent::Waiting);
        }
    };
    Builder::new()
        .spawn(work)
        .map(drop)
        .doing("starting a thread")
}
