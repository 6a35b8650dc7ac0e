//! The gateway, put together: Telegram, scheduled jobs, background tasks, and what watches over them.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use super::bot::{self, Bot};
use super::factory::AgentFactory;
use super::pool::AgentPool;
use super::reload::Reload;
use super::shutdown::Shutdown;
use super::{hands, local_time, make_workspace, monitor};
use crate::cancel::Cancel;
use crate::config::{self, Env, Loaded};
use crate::cron::Jobs;
use crate::disk::Lock;
use crate::error::{Context, Error, Kind, Result};
use crate::gateway::Dispatcher;
use crate::gateway::clock::{Clock, WithClock};
use crate::gateway::tasks::Tasks;
use crate::hands::Hands;
use crate::log::{Level, Log};
use crate::notify;
use crate::outbox::Outbox;
use crate::paths::Home;
use crate::telegram::inbox::Inbox;
use crate::telegram::{Settings, Telegram, Wake};
use crate::text::one_line;
use crate::zone::Zone;

/// The shortest time between reactions to other programs of this home.
const BETWEEN_SIGNALS: Duration = Duration::from_millis(200);

/// What a gateway needs to start. Loading it proves that the configuration works.
pub(crate) struct Startup {
    loaded: Loaded,
    bot: Bot,
    hands: Hands,
    pool: AgentPool,
    /// About the model.
    notices: Vec<String>,
}

impl Startup {
    pub(crate) fn load(home: &Home, env: &Env) -> Result<Self> {
        let factory = AgentFactory::new(home, env)?;
        let loaded = factory.load(None)?;
        if !bot::is_enabled(&loaded) {
            return Err(Error::config("the gateway has nothing to serve: channels.telegram.enabled is false")
                .hint("set it to true in config.json"));
        }
        let bot = Bot::new(&loaded.config.channels.telegram, home, env)?;
        let hands = hands(home, &loaded.config, env)?;
        make_workspace(home, &loaded.config, env)?;
        let pool = AgentPool::new(factory, bot.settings.token.clone());
        let notices = pool.get(None)?.1;
        Ok(Self { loaded, bot, hands, pool, notices })
    }
}

/// Serves until a signal. Returns only if the process is to exit.
pub(crate) fn run(env: &Env) -> Result<()> {
    // The kernel named the process after the link that started it.
    rustix::thread::set_name(c"bantam").doing("naming the process")?;
    let shutdown = Shutdown::on_signal()?;
    let home = config::home(env)?;
    let reload = Reload::new(&home, env);
    let Startup { loaded, bot, hands, pool, notices } = Startup::load(&home, env)?;
    let config = &loaded.config;
    let log = Log::new(&config.log.level, config.log.json);
    let warn = |line: &String| log.write(Level::Warn, line);
    loaded.warnings.iter().chain(&notices).for_each(warn);
    warn_about_users(&bot.settings.allow_from, log);
    let _lock = lock(&home)?;
    let (inbox, damaged) = Inbox::open(&home.state(), bot.id())?;
    let (tasks, reports, torn) = Tasks::open(&home)?;
    damaged.iter().chain(&torn).for_each(warn);

    let dispatcher = Dispatcher::new(Arc::new(pool), config.gateway.workers, tasks);
    let (change, changed) = sync_channel(1);
    let (watch, _at_end) = monitor::start(&home, env, reload, &dispatcher, &shutdown, change.clone(), log);
    let stop = change.clone();
    let _wake_clock = shutdown.cancel.on_stop(move || {
        let _full = stop.try_send(());
    });
    let wake = Arc::new(Wake::default());
    listen(&home, change, wake.clone(), log);
    let allow_from = bot.settings.ids();
    let owner = allow_from.first().map_or(String::new(), |id| format!("telegram:{id}"));
    let posted = wake.clone();
    let clock = config.cron.enabled.then(|| Clock {
        home: home.clone(),
        jobs: Jobs::new(home.clone(), env),
        zone: Zone::local(env).unwrap_or_else(|_| Zone::utc()),
        grace: Duration::from_secs(config.cron.grace_minutes * 60),
        heartbeat: config.heartbeat.enabled.then_some(config.heartbeat.interval_minutes),
        owner: if config.heartbeat.to.is_empty() { owner } else { config.heartbeat.to.clone() },
        outbox: Outbox::new(home.clone()),
        posted: Arc::new(move || posted.wake()),
        cancel: shutdown.cancel.clone(),
        log: log.sink("jobs"),
    });
    let drafts = bot.settings.streaming;
    let channel = Telegram {
        api: Arc::new(bot.api),
        settings: Settings { allow_from, answers_all: bot.settings.group_trigger == "all", drafts },
        inbox,
        reports,
        outbox: Outbox::new(home.clone()),
        hands: Arc::new(hands),
        local_time: local_time(env),
        cancel: shutdown.cancel.clone(),
        watch,
        log: log.sink("telegram"),
        wake: wake.clone(),
    };
    let served = dispatcher.serve(WithClock { channel, clock, changed });
    wake.wait();
    served?;
    notify::close(&home)?;
    shutdown.finish()
}

/// The lock that a gateway holds while it runs.
fn lock(home: &Home) -> Result<Lock> {
    // A program that checks for a gateway holds it for a moment.
    let wait = Duration::from_millis(300);
    Lock::acquire(&home.session_lock("gateway"), wait, &Cancel::new(None)).map_err(|e| match e.kind {
        Kind::Busy => Error::new(Kind::Busy, "a gateway of this home is already running")
            .hint("stop that one first, or set BANTAM_HOME to another home"),
        _ => e,
    })
}

fn warn_about_users(allow_from: &[String], log: Log) {
    let (valid, invalid): (Vec<&String>, Vec<&String>) =
        allow_from.iter().partition(|written| config::user_id(written).is_some());
    for written in invalid {
        let written = one_line(written, 40);
        let text = format!("channels.telegram.allow_from: \"{written}\" is not a numeric id and is ignored");
        log.write(Level::Warn, &text);
    }
    if valid.is_empty() {
        let text =
            "channels.telegram.allow_from is empty: nobody gets an answer; the log shows the ids of users who write";
        log.write(Level::Warn, text);
    }
}

/// Passes on signals of other programs of this home: a new job, a message to send.
fn listen(home: &Home, change: SyncSender<()>, wake: Arc<Wake>, log: Log) {
    let listener = match notify::bind(home) {
        Ok(listener) => listener,
        Err(e) => {
            let text = format!("new jobs may start up to an hour late, and messages wait for the next one: {e}");
            return log.write(Level::Warn, &text);
        }
    };
    let pass_on = move || {
        while listener.wait().is_ok() {
            let _full = change.try_send(());
            wake.wake();
            std::thread::sleep(BETWEEN_SIGNALS);
        }
    };
    drop(Builder::new().spawn(pass_on));
}
