//! What goes on beside the polling of the gateway, each time that gives a sign: the service manager is told that it lives,
//! the status file how it is, and the clock and `config.json` are looked at.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant, SystemTime};

use crate::cancel::{Cancel, Hook};
use crate::config::{self, Env};
use crate::cron::schedule;
use crate::error::Result;
use crate::gateway::clock::Steadiness;
use crate::gateway::status::Status;
use crate::log::{Level, Log};
use crate::paths::Home;
use crate::sys;
use crate::telegram::{Sign, Watch};
use crate::text::one_line;

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

/// The service manager that started this, as `sd_notify(3)` and `sd_watchdog_enabled(3)` say.
#[derive(Clone)]
struct Manager {
    /// Where it listens; none when nobody does.
    socket: Option<String>,
    /// How often it wants to hear that this lives: twice within its limit.
    within: Duration,
}

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
    home: &Home,
    env: &Env,
    cancel: &Cancel,
    end: &Arc<End>,
    log: Log,
    change: SyncSender<()>,
) -> (Watch, Hook) {
    let manager = Manager::of(env);
    let status = Arc::new(Status::new(home, SystemTime::now()));
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
        file: File::of(home, env),
        clock: Steadiness::new(schedule::millis(SystemTime::now()), Instant::now()),
        change,
        manager,
        status,
        end: end.clone(),
        cancel: cancel.clone(),
        log,
    });
    let hear = move |sign: Sign| watcher.lock().unwrap_or_else(PoisonError::into_inner).hears(sign);
    (Watch { tell: Box::new(hear), within }, farewell)
}

struct Watcher {
    file: File,
    clock: Steadiness,
    change: SyncSender<()>,
    manager: Manager,
    status: Arc<Status>,
    end: Arc<End>,
    cancel: Cancel,
    log: Log,
}

impl Watcher {
    /// The poll gives a sign.
    fn hears(&mut self, sign: Sign) {
        let now = SystemTime::now();
        match sign {
            Sign::Serving(name) => {
                noted(self.log, self.status.serves_as(name));
                self.manager.notify(&format!("STATUS=serving as @{}", one_line(name, 80)));
            }
            Sign::Polled => {
                noted(self.log, self.status.polls(None, now));
                // Whatever was done, by now it is likely over, and what comes next may be far away.
                sys::give_back_memory();
            }
            Sign::Failing(why) => noted(self.log, self.status.polls(Some(&one_line(why, 300)), now)),
            Sign::Waiting => {}
        }
        self.manager.notify("WATCHDOG=1");
        if self.clock.was_lost(schedule::millis(now), Instant::now()) {
            // Next runs are reckoned anew. One that waits already is enough.
            let _full = self.change.try_send(());
        }
        if self.cancel.why().is_none() && self.file.has_changed(self.log) {
            self.log.write(Level::Info, "config.json has changed: starting anew");
            self.end.anew.store(true, Ordering::SeqCst);
            self.live_on();
            self.cancel.stop();
        }
    }

    /// Nobody polls any more, and the turns under way are finished, as long as each may take: that is no standstill.
    fn live_on(&self) {
        let manager = self.manager.clone();
        let live = move || {
            loop {
                std::thread::sleep(manager.within);
                manager.notify("WATCHDOG=1");
            }
        };
        // Without it a turn may have less time.
        drop(Builder::new().spawn(live));
    }
}

/// Tells when the status file could not be written; nothing else depends on it.
fn noted(log: Log, written: Result<()>) {
    if let Err(e) = written {
        log.write(Level::Error, &format!("writing the status file: {e}"));
    }
}

/// Notices that config.json is another one.
struct File {
    home: Home,
    seen: Option<(SystemTime, u64)>,
    env: Env,
}

fn stamp(home: &Home) -> Option<(SystemTime, u64)> {
    let meta = fs_err::metadata(home.config()).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

impl File {
    fn of(home: &Home, env: &Env) -> Self {
        Self { home: home.clone(), seen: stamp(home), env: env.clone() }
    }

    /// Whether it has changed to something that works. What does not work is told, once.
    fn has_changed(&mut self, log: Log) -> bool {
        let now = stamp(&self.home);
        if now == self.seen {
            return false;
        }
        self.seen = now;
        match config::read(&self.home)
            .and_then(|file| config::load_for(&self.home, file.as_deref(), &self.env, Vec::new()))
        {
            Ok(_) => true,
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
