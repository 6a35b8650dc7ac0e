//! `bantam gateway`: the bot, until it is told to end.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, SystemTime};

use super::args::{Command, Given};
use super::crew::Crew;
use super::tell;
use crate::cancel::Cancel;
use crate::config::proxy::proxy;
use crate::config::{self, Config, Env, Loaded};
use crate::cron::Jobs;
use crate::disk::Lock;
use crate::error::{Context, Error, Kind as ErrorKind, Result};
use crate::gateway;
use crate::gateway::clock::{Clock, WithClock};
use crate::outbox::Outbox;
use crate::paths::Home;
use crate::telegram::api::{Api, BASE};
use crate::telegram::inbox::Inbox;
use crate::telegram::{Settings, Telegram, Wake};
use crate::text::one_line;
use crate::zone::Zone;
use crate::{app, bell, child, http, sys};

pub const COMMAND: Command = Command {
    name: "gateway",
    words: "",
    about: "the Telegram bot, until SIGTERM; for systemd, a container, or a terminal",
    flags: &[],
    run,
};

/// How long turns under way may go on when the program is told to end. They are taken up at the next start.
const FAREWELL: Duration = Duration::from_secs(3);

/// glibc reads it when a program begins, and here it has no function for what this says: each thread keeps up to 240 KB of
/// what it freed, which nobody else can use and nothing gives back. What passes from thread to thread fills that in hours.
const TUNABLES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");

fn run(_: &Given, env: &Env) -> Result<u8> {
    if cfg!(target_env = "gnu") && !env.contains_key(TUNABLES.0) {
        // Where it cannot be, there is only more memory in use.
        let _why = child::become_again(&["gateway"], &[TUNABLES]);
    }
    // The kernel has called it by the link that it was started from.
    rustix::thread::set_name(c"bantam").doing("giving the process its name")?;
    let home = config::home(env)?;
    let file = config::read(&home)?;
    let loaded = config::load_for(&home, file.as_deref(), env, Vec::new())?;
    for line in &loaded.warnings {
        tell(&format!("bantam: {line}"));
    }
    let telegram = bot_of(&loaded)?;
    let allow_from = allowed(&telegram.allow_from);
    let lock = Lock::acquire(&home.session_lock("gateway"), Duration::ZERO, &Cancel::new(None));
    let _lock = lock.map_err(|e| match e.kind {
        ErrorKind::Busy => Error::new(ErrorKind::Busy, "a gateway of this home is running already")
            .hint("end that one first, or set BANTAM_HOME to another home"),
        _ => e,
    })?;
    app::make_workspace(&home, &loaded.config, env)?;
    let crew = Arc::new(Crew::new(&home, file, env));
    // What is wrong with the model is told now and not to whoever writes first.
    for notice in crew.make(None)?.1 {
        tell(&format!("bantam: {notice}"));
    }

    let cancel = Cancel::new(None);
    let (again, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    end_at_a_signal(&cancel, &over)?;
    if !telegram.api_base.is_empty() && !telegram.api_base.starts_with("http") {
        return Err(Error::config("channels.telegram.api_base is no address").hint("write it as http://HOST:PORT"));
    }
    let base = if telegram.api_base.is_empty() { BASE } else { &telegram.api_base };
    let proxy = if telegram.proxy.is_empty() { proxy(base, env) } else { telegram.proxy };
    let settings = http::Settings { proxy, ca_file: env.get("SSL_CERT_FILE").map(Into::into) };
    let api = Api::new(settings, &telegram.api_base, &telegram.token);
    let bot = telegram.token.reveal().split(':').next().and_then(|id| id.parse().ok()).unwrap_or_default();
    let (inbox, damage) = Inbox::open(&home.root().join("state"), bot)?;
    for line in damage {
        tell(&format!("bantam: {line}"));
    }
    let watch = Watch { home: home.clone(), seen: stamp(&home), env: env.clone() };
    let socket = env.get("NOTIFY_SOCKET").cloned();
    notify(socket.as_deref(), "READY=1");
    let alive = {
        let (cancel, again, watch) = (cancel.clone(), again.clone(), Mutex::new(watch));
        Box::new(move || {
            // Whatever was done, by now it is likely over, and what comes next may be far away.
            sys::give_back_memory();
            notify(socket.as_deref(), "WATCHDOG=1");
            if watch.lock().unwrap_or_else(PoisonError::into_inner).has_changed() {
                tell("bantam: config.json has changed: starting anew");
                again.store(true, Ordering::SeqCst);
                cancel.stop();
            }
        })
    };
    let wake = Arc::new(Wake::default());
    let (change, changed) = sync_channel(1);
    let stop = change.clone();
    let _hook = cancel.on_stop(move || {
        let _full = stop.try_send(());
    });
    listen(&home, change, wake.clone());
    let owner = allow_from.first().map_or(String::new(), |id| format!("telegram:{id}"));
    let Config { cron, heartbeat, .. } = &loaded.config;
    let ring = wake.clone();
    let clock = cron.enabled.then(|| Clock {
        home: home.clone(),
        jobs: Jobs::new(home.clone(), env),
        zone: Zone::local(env).unwrap_or_else(|_| Zone::utc()),
        grace: Duration::from_secs(cron.grace_minutes * 60),
        heartbeat: heartbeat.enabled.then_some(heartbeat.interval_minutes),
        owner: if heartbeat.to.is_empty() { owner } else { heartbeat.to.clone() },
        outbox: Outbox::new(home.clone()),
        changed,
        posted: Arc::new(move || ring.wake()),
        cancel: cancel.clone(),
        log: Arc::new(|line| tell(&format!("bantam: jobs: {}", one_line(line, 500)))),
    });
    let telegram = Telegram {
        api: Arc::new(api),
        settings: Settings { allow_from, answers_all: telegram.group_trigger == "all", drafts: telegram.streaming },
        inbox,
        outbox: Outbox::new(home.clone()),
        cancel,
        alive,
        log: Arc::new(|line| tell(&format!("bantam: telegram: {}", one_line(line, 500)))),
        wake: wake.clone(),
    };
    let workers = loaded.config.gateway.workers;
    let served = match clock {
        Some(clock) => gateway::serve(crew, workers, WithClock { channel: telegram, clock }),
        None => gateway::serve(crew, workers, telegram),
    };
    wake.wait();
    over.store(true, Ordering::SeqCst);
    served?;
    if again.load(Ordering::SeqCst) {
        return Err(child::become_again(&["gateway"], &[])).doing("starting anew");
    }
    Ok(0)
}

/// The bot, if there is one to run.
fn bot_of(loaded: &Loaded) -> Result<config::Telegram> {
    let telegram = loaded.config.channels.telegram.clone();
    let token_is_there = !telegram.token.is_empty();
    // A token in the environment, and nothing said: that is meant.
    let said = loaded.origins.contains_key("channels.telegram.enabled");
    if token_is_there && (telegram.enabled || !said) {
        return Ok(telegram);
    }
    let what =
        if token_is_there { "channels.telegram.enabled is false" } else { "there is no channels.telegram.token" };
    Err(Error::config(format!("the gateway has nothing to serve: {what}"))
        .hint("@BotFather gives a token; put it into channels.telegram.token, or into TELEGRAM_BOT_TOKEN"))
}

/// The ids of those who may.
fn allowed(written: &[String]) -> Vec<i64> {
    let mut ids = Vec::new();
    for written in written {
        // Others write id|username.
        match written.split('|').next().unwrap_or_default().trim().parse() {
            Ok(id) => ids.push(id),
            Err(_) => tell(&format!(
                "bantam: channels.telegram.allow_from: \"{}\" is no numeric id and lets nobody in",
                one_line(written, 40)
            )),
        }
    }
    if ids.is_empty() {
        tell("bantam: channels.telegram.allow_from is empty: whoever writes gets no answer, and their id is told here");
    }
    ids
}

/// Ends the polling at a signal, and a little later the program, unless it is `over` by then.
fn end_at_a_signal(cancel: &Cancel, over: &Arc<AtomicBool>) -> Result<()> {
    sys::hold_signals();
    let (cancel, over) = (cancel.clone(), over.clone());
    let wait = move || {
        let _which = sys::wait_for_signal();
        cancel.stop();
        std::thread::sleep(FAREWELL);
        // What is under way now is taken up at the next start: it is on disk.
        if !over.load(Ordering::SeqCst) {
            std::process::exit(0);
        }
    };
    Builder::new().spawn(wait).map(drop).doing("starting a thread")
}

/// Passes on what other programs of this home tell.
fn listen(home: &Home, change: SyncSender<()>, wake: Arc<Wake>) {
    // Without it a new job is seen within the hour, and a message goes out with the next one.
    let Ok(bell) = bell::hang(home) else { return };
    let pass_on = move || {
        while bell.recv(&mut [0; 8]).is_ok() {
            // One that waits already is enough.
            let _full = change.try_send(());
            wake.wake();
        }
    };
    drop(Builder::new().spawn(pass_on));
}

/// Tells the service manager that started this, as `sd_notify(3)` says.
fn notify(socket: Option<&str>, state: &str) {
    let Some(path) = socket else { return };
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

/// Notices that config.json is another one.
struct Watch {
    home: Home,
    seen: Option<(SystemTime, u64)>,
    env: Env,
}

fn stamp(home: &Home) -> Option<(SystemTime, u64)> {
    let meta = fs_err::metadata(home.config()).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

impl Watch {
    /// Whether it has changed to something that works. What does not work is told, once.
    fn has_changed(&mut self) -> bool {
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
                tell(&format!(
                    "bantam: config.json has changed and cannot be used, so the old one holds: {}",
                    e.message
                ));
                false
            }
        }
    }
}
