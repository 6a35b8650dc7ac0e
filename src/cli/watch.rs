//! What goes on beside the polling of the gateway, each time that gives a sign: the service manager is told that it lives,
//! the status file how it is, and the clock and `config.json` are looked at.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant, SystemTime};

use super::crew::AgentPool;
use super::deliver;
use super::gateway::bot_of;
use crate::cancel::{Cancel, Hook};
use crate::config::{self, Env};
use crate::cron::schedule;
use crate::error::Result;
use crate::gateway::clock::StepDetector;
use crate::gateway::status::Status;
use crate::log::{Level, Log};
use crate::paths::Home;
use crate::telegram::{PollEvent, Watch};
use crate::text::one_line;
use crate::{app, child};

/// How the program is to end.
#[derive(Default)]
pub struct End {
    /// A signal came.
    pub told: AtomicBool,
    /// The configuration has changed: it begins anew.
    pub anew: AtomicBool,
    /// Nothing is under way any more.
    pub over: AtomicBool,
}

impl End {
    /// Ends the polling, and after a little while the program, by `leave`, unless everything is over by then: what is under
    /// way is on disk, and is taken up at the next start.
    pub fn begin(&self, cancel: &Cancel, leave: impl FnOnce()) {
        cancel.stop();
        std::thread::sleep(FAREWELL);
        if !self.over.load(Ordering::SeqCst) {
            leave();
        }
    }
}

/// The service manager that started this, as `sd_notify(3)` and `sd_watchdog_enabled(3)` say.
#[derive(Clone)]
struct Manager {
    /// Where it listens; none when nobody does.
    socket: Option<String>,
    /// How often it wants to hear that this lives: twice within its limit.
    within: Duration,
}

/// How long what is under way may go on when the configuration has changed. Meanwhile everything is answered as before.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at whether something still is.
const LOOKS: Duration = Duration::from_millis(100);
/// How long turns under way may go on when the program is told to end. They are taken up at the next start.
const FAREWELL: Duration = Duration::from_secs(3);
/// A file that is being written is left alone until it has been the same for so long.
const SETTLED: Duration = Duration::from_millis(200);
/// So often it is looked at before the next poll.
const MOST_LOOKS: u32 = 20;

/// How often nobody in particular wants a sign.
const SELDOM: Duration = Duration::from_secs(3600);

impl Manager {
    fn of(env: &Env) -> Self {
        let own = env.get("WATCHDOG_PID").is_none_or(|pid| *pid == std::process::id().to_string());
        let limit = env.get("WATCHDOG_USEC").and_then(|limit| limit.parse::<u64>().ok());
        let limit = limit.filter(|limit| own && *limit > 0).map(Duration::from_micros);
        Self { socket: env.get("NOTIFY_SOCKET").cloned(), within: limit.map_or(SELDOM, |limit| limit / 2) }
    }

    fn notify(&self, state: &str) {
        let Some(path) = &self.socket else { return };
        let send = || -> std::io::Result<usize> {
            let address = match path.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name)?,
                None => SocketAddr::from_pathname(path)?,
            };
            UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)
        };
        // It is gone, or wants to know nothing.
        drop(send());
    }
}

/// Begins to watch, and says that the gateway is ready. `change` is told when the clock was set. The hook is for when a signal
/// ends it.
pub fn begin(
    file: File,
    cancel: &Cancel,
    end: &Arc<End>,
    log: Log,
    change: SyncSender<()>,
    is_idle: IsIdle,
) -> (Watch, Hook) {
    let manager = Manager::of(&file.env);
    let status = Arc::new(Status::new(&file.home, SystemTime::now()));
    noted(log, status.write());
    let farewell = {
        let (end, status, manager) = (end.clone(), status.clone(), manager.clone());
        cancel.on_stop(move || {
            if end.told.load(Ordering::SeqCst) {
                manager.notify("STOPPING=1");
                noted(log, status.ends(SystemTime::now()));
            }
        })
    };
    manager.notify("READY=1");
    let within = manager.within;
    let watcher = Mutex::new(Watcher {
        file,
        is_idle,
        clock: StepDetector::new(schedule::millis(SystemTime::now()), Instant::now()),
        change,
        manager,
        status,
        end: end.clone(),
        cancel: cancel.clone(),
        log,
    });
    let hear = move |sign: PollEvent| watcher.lock().unwrap_or_else(PoisonError::into_inner).hears(sign);
    (Watch { tell: Box::new(hear), within }, farewell)
}

/// Whether nothing is under way.
pub type IsIdle = Arc<dyn Fn() -> bool + Send + Sync>;

struct Watcher {
    file: File,
    is_idle: IsIdle,
    clock: StepDetector,
    change: SyncSender<()>,
    manager: Manager,
    status: Arc<Status>,
    end: Arc<End>,
    cancel: Cancel,
    log: Log,
}

impl Watcher {
    /// The poll gives a sign.
    fn hears(&mut self, sign: PollEvent) {
        let now = SystemTime::now();
        match sign {
            PollEvent::Serving(name) => {
                noted(self.log, self.status.serves_as(name));
                self.manager.notify(&format!("STATUS=serving as @{}", one_line(name, 80)));
            }
            PollEvent::Polled => {
                noted(self.log, self.status.polls(None, now));
            }
            PollEvent::Failing(why) => noted(self.log, self.status.polls(Some(&one_line(why, 300)), now)),
            PollEvent::Waiting => {}
        }
        self.manager.notify("WATCHDOG=1");
        if self.clock.was_lost(schedule::millis(now), Instant::now()) {
            // Next runs are reckoned anew. One that waits already is enough.
            let _full = self.change.try_send(());
        }
        let is_leaving = self.end.anew.load(Ordering::SeqCst) || self.cancel.why().is_some();
        if !is_leaving && self.file.has_changed(self.log) {
            self.log.write(Level::Info, "config.json has changed: starting anew");
            self.end.anew.store(true, Ordering::SeqCst);
            self.begin_anew();
        }
    }

    /// Begins anew once nothing is under way, or after a while in any case. Until then everything goes on: a message is
    /// answered, and a stop is heard.
    fn begin_anew(&self) {
        let (is_idle, cancel, end, log) = (self.is_idle.clone(), self.cancel.clone(), self.end.clone(), self.log);
        let wait = move || {
            let until = Instant::now() + PATIENCE;
            while !is_idle() && Instant::now() < until {
                if cancel.sleep(LOOKS).is_err() {
                    return;
                }
            }
            end.begin(&cancel, || {
                // Whoever was told to end does not begin anew.
                if !end.told.load(Ordering::SeqCst) {
                    let why = child::reexec(&["gateway"]);
                    log.write(Level::Error, &format!("starting anew: {why}"));
                    std::process::exit(1);
                }
            });
        };
        if let Err(e) = Builder::new().spawn(wait) {
            self.log.write(Level::Error, &format!("starting a thread: {e}"));
            self.cancel.stop();
        }
    }
}

/// Tells when the status file could not be written; nothing else depends on it.
fn noted(log: Log, written: Result<()>) {
    if let Err(e) = written {
        log.write(Level::Error, &format!("writing the status file: {e}"));
    }
}

/// Notices that config.json is another one.
pub struct File {
    home: Home,
    seen: Option<(SystemTime, u64)>,
    env: Env,
}

fn stamp(home: &Home) -> Option<(SystemTime, u64)> {
    let meta = fs_err::metadata(home.config()).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

impl File {
    /// As it is now. It is to be read only after this: a change between the two is noticed then.
    pub fn of(home: &Home, env: &Env) -> Self {
        Self { home: home.clone(), seen: stamp(home), env: env.clone() }
    }

    /// Whether it has changed to something that works. What does not work is told, once.
    fn has_changed(&mut self, log: Log) -> bool {
        let mut now = stamp(&self.home);
        if now == self.seen {
            return false;
        }
        // Whoever saves it in two steps is not caught between them.
        let mut looks = 0;
        loop {
            std::thread::sleep(SETTLED);
            let before = std::mem::replace(&mut now, stamp(&self.home));
            if before == now {
                break;
            }
            looks += 1;
            if looks > MOST_LOOKS {
                // The next poll sees what it has come to.
                return false;
            }
        }
        self.seen = now;
        match config::read(&self.home).and_then(|file| self.can_start(file)) {
            Ok(()) => true,
            Err(e) => {
                let why = e.message;
                log.write(
                    Level::Error,
                    &format!("config.json has changed and cannot be used, so the old one holds: {why}"),
                );
                false
            }
        }
    }

    /// Makes all that a gateway of this configuration begins with.
    fn can_start(&self, file: Option<String>) -> Result<()> {
        let Self { home, env, .. } = self;
        let loaded = config::load_for(home, file.as_deref(), env, Vec::new())?;
        let telegram = deliver::resolved(&bot_of(&loaded)?, home, env)?;
        deliver::bot(&telegram, env)?;
        app::hands(home, &loaded.config, env)?;
        app::make_workspace(home, &loaded.config, env)?;
        AgentPool::new(home, file, env, telegram.token).make(None).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_is_given_twice_within_the_limit_of_whoever_asks_this_process() {
        let within = |pairs: &[(&str, &str)]| {
            let env: Env = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            Manager::of(&env).within
        };
        let own = std::process::id().to_string();
        assert_eq!(within(&[("WATCHDOG_USEC", "180000000")]), Duration::from_secs(90));
        assert_eq!(within(&[("WATCHDOG_USEC", "180000000"), ("WATCHDOG_PID", &own)]), Duration::from_secs(90));
        for other in [&[][..], &[("WATCHDOG_USEC", "180000000"), ("WATCHDOG_PID", "1")], &[("WATCHDOG_USEC", "0")]] {
            assert_eq!(within(other), SELDOM);
        }
    }
}
