//! `bantam gateway`: the bot, until it is told to end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use super::args::{Args, Command};
use super::crew::AgentPool;
use super::watch::{self, End};
use super::{deliver, init};
use crate::cancel::Cancel;
use crate::config::{self, Config, Env, Loaded};
use crate::cron::Jobs;
use crate::disk::Lock;
use crate::error::{Context, Error, Kind as ErrorKind, Result};
use crate::gateway;
use crate::gateway::clock::{Clock, WithClock};
use crate::gateway::tasks::Tasks;
use crate::log::{Level, Log};
use crate::outbox::Outbox;
use crate::paths::Home;
use crate::telegram::inbox::Inbox;
use crate::telegram::{Settings, Telegram, Wake};
use crate::text::one_line;
use crate::zone::Zone;
use crate::{app, child, notify, sys};

pub const COMMAND: Command = Command {
    name: "gateway",
    words: "",
    about: "the Telegram bot, until SIGTERM; for systemd, a container, or a terminal",
    flags: &[],
    run,
};

/// The least between two looks at what other programs of this home have changed, however often they tell of it.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

fn run(_: &Args, env: &Env) -> Result<u8> {
    if init::is_called_for() {
        return init::run(&["gateway"]);
    }
    // The kernel has called it by the link that it was started from.
    rustix::thread::set_name(c"bantam").doing("giving the process its name")?;
    let cancel = Cancel::new(None);
    let end = Arc::new(End::default());
    end_at_a_signal(&cancel, &end)?;
    let home = config::home(env)?;
    let watched = watch::File::of(&home, env);
    let file = config::read(&home)?;
    let loaded = config::load_for(&home, file.as_deref(), env, Vec::new())?;
    let log = Log::new(&loaded.config.log.level, loaded.config.log.json);
    let tell_all = |lines: &[String]| lines.iter().for_each(|line| log.write(Level::Warn, line));
    tell_all(&loaded.warnings);
    let telegram = deliver::resolved(&bot_of(&loaded)?, &home, env)?;
    look_at(&telegram.allow_from, log);
    let allow_from = telegram.ids();
    // Whoever looks whether one runs holds it for a moment.
    let lock = Lock::acquire(&home.session_lock("gateway"), Duration::from_millis(300), &Cancel::new(None));
    let _lock = lock.map_err(|e| match e.kind {
        ErrorKind::Busy => Error::new(ErrorKind::Busy, "a gateway of this home is running already")
            .hint("end that one first, or set BANTAM_HOME to another home"),
        _ => e,
    })?;
    app::make_workspace(&home, &loaded.config, env)?;
    let crew = Arc::new(AgentPool::new(&home, file, env, telegram.token.clone()));
    // What is wrong with the model is told now and not to whoever writes first.
    tell_all(&crew.make(None)?.1);

    let api = deliver::bot(&telegram, env)?;
    let bot = telegram.token.reveal().split(':').next().and_then(|id| id.parse().ok()).unwrap_or_default();
    let (inbox, damage) = Inbox::open(&home.root().join("state"), bot)?;
    let (tasks, reports, torn) = Tasks::open(&home)?;
    tell_all(&damage);
    tell_all(&torn);
    let wake = Arc::new(Wake::default());
    let (change, changed) = sync_channel(1);
    let at_work = crew.clone();
    let is_idle = Arc::new(move || at_work.is_idle());
    let (watch, _farewell) = watch::begin(watched, &cancel, &end, log, change.clone(), is_idle);
    let stop = change.clone();
    let _hook = cancel.on_stop(move || {
        let _full = stop.try_send(());
    });
    listen(&home, change, wake.clone(), log);
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
        log: log.sink("jobs"),
    });
    let telegram = Telegram {
        api: Arc::new(api),
        settings: Settings { allow_from, answers_all: telegram.group_trigger == "all", drafts: telegram.streaming },
        inbox,
        reports,
        outbox: Outbox::new(home.clone()),
        hands: Arc::new(app::hands(&home, &loaded.config, env)?),
        local_time: app::local_time(env),
        cancel,
        watch,
        log: log.sink("telegram"),
        wake: wake.clone(),
    };
    let workers = loaded.config.gateway.workers;
    let served = match clock {
        Some(clock) => gateway::serve(crew, workers, tasks, WithClock { channel: telegram, clock }),
        None => gateway::serve(crew, workers, tasks, telegram),
    };
    wake.wait();
    notify::close(&home);
    end.over.store(true, Ordering::SeqCst);
    served?;
    // Whoever was told to end does not begin anew.
    if end.anew.load(Ordering::SeqCst) && !end.told.load(Ordering::SeqCst) {
        return Err(child::reexec(&["gateway"])).doing("starting anew");
    }
    Ok(0)
}

/// The bot, if there is one to run.
pub fn bot_of(loaded: &Loaded) -> Result<config::Telegram> {
    let telegram = loaded.config.channels.telegram.clone();
    let token_is_there = !telegram.token.is_empty();
    // A token in the environment, and nothing said: that is meant.
    let said = loaded.origins.contains_key("channels.telegram.enabled");
    if token_is_there && (telegram.enabled || !said) {
        return Ok(telegram);
    }
    let (what, hint) = if token_is_there {
        ("channels.telegram.enabled is false", "set it to true in config.json")
    } else {
        (
            "there is no channels.telegram.token",
            "@BotFather gives a token; put it into channels.telegram.token, or into TELEGRAM_BOT_TOKEN",
        )
    };
    Err(Error::config(format!("the gateway has nothing to serve: {what}")).hint(hint))
}

/// Tells which of `allow_from` lets nobody in.
fn look_at(allow_from: &[String], log: Log) {
    for written in allow_from.iter().filter(|written| config::user_id(written).is_none()) {
        let written = one_line(written, 40);
        let text = format!("channels.telegram.allow_from: \"{written}\" is no numeric id and lets nobody in");
        log.write(Level::Warn, &text);
    }
    if allow_from.iter().all(|written| config::user_id(written).is_none()) {
        let text = "channels.telegram.allow_from is empty: whoever writes gets no answer, and their id is told here";
        log.write(Level::Warn, text);
    }
}

/// Ends the polling at a signal, and a little later the program, unless everything is over by then.
fn end_at_a_signal(cancel: &Cancel, end: &Arc<End>) -> Result<()> {
    sys::block_signals();
    let (cancel, end) = (cancel.clone(), end.clone());
    let wait = move || {
        let _which = sys::wait_for_signal();
        end.told.store(true, Ordering::SeqCst);
        end.begin(&cancel, || std::process::exit(0));
    };
    Builder::new().spawn(wait).map(drop).doing("starting a thread")
}

/// Passes on what other programs of this home tell.
fn listen(home: &Home, change: SyncSender<()>, wake: Arc<Wake>, log: Log) {
    let listener = match notify::bind(home) {
        Ok(listener) => listener,
        Err(e) => {
            let text =
                format!("a new job may be seen within the hour only, and a message go out with the next one: {e}");
            return log.write(Level::Warn, &text);
        }
    };
    let pass_on = move || {
        while listener.wait().is_ok() {
            // One that waits already is enough.
            let _full = change.try_send(());
            wake.wake();
            std::thread::sleep(BETWEEN_LOOKS);
        }
    };
    drop(Builder::new().spawn(pass_on));
}
