//! The gateway, put together: Telegram, scheduled jobs, background tasks, and what watches over them.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use super::bot::Bot;
use super::factory::AgentFactory;
use super::pool::AgentPool;
use super::reload::{self, Reload};
use super::shutdown::Shutdown;
use super::{hands, learn_window, local_time, make_workspace, media, monitor};
use crate::bus::Channel;
use crate::cancel::Cancel;
use crate::config::{self, Config, Env, Loaded};
use crate::cron::{Job, Jobs, heartbeat};
use crate::disk::Lock;
use crate::error::{Context, Error, Kind, Result};
use crate::gateway::Dispatcher;
use crate::gateway::clock::Clock;
use crate::gateway::event_log::EventLog;
use crate::gateway::run::RunContext;
use crate::gateway::tasks::Tasks;
use crate::hands::Hands;
use crate::log::{Level, Log};
use crate::notify;
use crate::outbox::Outbox;
use crate::paths::Home;
use crate::telegram::inbox::Inbox;
use crate::telegram::{MessageSender, Telegram};
use crate::zone::Zone;

/// The shortest time between reactions to other programs of this home.
const BETWEEN_SIGNALS: Duration = Duration::from_millis(200);

/// How long an upload may go on when the program stops.
const UPLOAD_GRACE: Duration = Duration::from_secs(2);

/// What a gateway needs to start. Loading it proves that the configuration works.
pub(crate) struct Startup {
    loaded: Loaded,
    /// `None` if Telegram is off.
    bot: Option<Bot>,
    hands: Hands,
    pool: AgentPool,
    heartbeat: Option<Job>,
    notices: Vec<String>,
}

impl Startup {
    pub(crate) fn load(home: &Home, env: &Env) -> Result<Self> {
        let mut factory = AgentFactory::new(home, env)?;
        let loaded = factory.load(None)?;
        let bot = Bot::of(&loaded, home, env)?;
        factory.options.unseen = bot.is_none() || !loaded.config.channels.telegram.streaming;
        let beat = &loaded.config.heartbeat;
        if bot.is_none() && !loaded.config.cron.enabled && !beat.enabled {
            return Err(Error::config("the gateway has nothing to do: Telegram, cron and the heartbeat are off")
                .hint("set channels.telegram.token, cron.enabled or heartbeat.enabled in config.json"));
        }
        let hands = hands(home, &loaded.config, env)?;
        make_workspace(home, &loaded.config, env)?;
        let owner = bot.as_ref().and_then(|bot| bot.settings.ids().first().map(|id| format!("telegram:{id}")));
        let to = if beat.to.is_empty() { owner.unwrap_or_default() } else { beat.to.clone() };
        let heartbeat = heartbeat::job(beat.interval_minutes, &to).doing("heartbeat.to")?;
        let heartbeat = Some(heartbeat).filter(|_| beat.enabled);
        let pool = AgentPool::new(factory, bot.as_ref().map(|bot| bot.settings.token.clone()));
        let window = loaded.config.agents.defaults.context_window;
        let told = loaded.config.choose_model(env)?.and_then(|model| learn_window(home, window, &model));
        let mut notices = pool.get(None)?.1;
        notices.extend(told);
        notices.extend(bot.iter().flat_map(Bot::warnings));
        Ok(Self { loaded, bot, hands, pool, heartbeat, notices })
    }
}

/// Serves until a signal. Returns only if the process is to exit.
pub(crate) fn run(env: &Env) -> Result<()> {
    // The kernel named the process after the link that started it.
    rustix::thread::set_name(c"bantam").doing("naming the process")?;
    let shutdown = Shutdown::on_signal()?;
    let home = config::home(env)?;
    // Before the file is read, so that no change goes unnoticed.
    let seen = reload::stamp(&home);
    let Startup { loaded, bot, hands, pool, heartbeat, notices } = Startup::load(&home, env)?;
    let config = &loaded.config;
    let log = Log::new(&config.log.level, config.log.json, env.get("JOURNAL_STREAM").map(String::as_str));
    let _lock = lock(&home)?;
    let account = bot.as_ref().map_or(Ok(None), |bot| bot.account(&shutdown.cancel))?;
    let (tasks, damaged) = Tasks::open(&home)?;
    for warning in loaded.warnings.iter().chain(&notices).chain(&damaged) {
        log.write(Level::Warn, warning);
    }
    let dispatcher = Arc::new(Dispatcher::new(Arc::new(pool), config.gateway.workers, tasks));
    let (change, changed) = sync_channel(1);
    let sender = bot.as_ref().map(|bot| {
        let (outbox, log) = (Outbox::new(home.clone()), log.sink("telegram"));
        MessageSender::new(bot.api.clone(), outbox, shutdown.cancel.clone(), log)
    });
    let own = sender.clone();
    let posted: Posted = Arc::new(move || {
        if let Some(sender) = &own {
            sender.wake();
        }
    });
    let (own, dispatching, ending) = (home.clone(), dispatcher.clone(), shutdown.clone());
    let reload = Reload { home: own, env: env.clone(), seen, dispatcher: dispatching, shutdown: ending, log };
    let (clock, sending) = (change.clone(), posted.clone());
    let wake = Box::new(move || {
        let _full = clock.try_send(());
        sending();
    });
    let (watch, _at_end) = monitor::start(&home, env, reload, wake, log);
    listen(&home, change.clone(), posted.clone(), log);
    let mut channels: Vec<Box<dyn Channel>> = vec![Box::new(EventLog(log.sink("turn")))];
    if config.cron.enabled || heartbeat.is_some() {
        let context = Arc::new(run_context(&home, env, config, shutdown.cancel.clone(), posted, log));
        let (zone, runs_jobs) = (Zone::local(env).unwrap_or_else(|_| Zone::utc()), config.cron.enabled);
        channels.push(Box::new(Clock { context, zone, runs_jobs, heartbeat, wake: change, changed }));
    }
    if let (Some(bot), Some(sender)) = (bot, sender.clone()) {
        let (inbox, damaged) = Inbox::open(&home.state(), bot.id())?;
        for damage in &damaged {
            log.write(Level::Warn, damage);
        }
        let (settings, hands, local_time) = (bot.channel_settings(), Arc::new(hands), local_time(env));
        let transcribe = media::transcriber(&home, config, env)?;
        channels.push(Box::new(Telegram { sender, settings, account, inbox, hands, local_time, transcribe, watch }));
    } else {
        log.write(Level::Info, "Telegram is off; scheduled jobs and heartbeats run");
        monitor::tick(watch, shutdown.cancel.clone())?;
    }
    let served = dispatcher.serve(channels);
    if let Some(sender) = sender {
        sender.wait(UPLOAD_GRACE);
    }
    served?;
    notify::close(&home)?;
    shutdown.finish()
}

/// Called when an item was posted to the outbox.
type Posted = Arc<dyn Fn() + Send + Sync>;

fn run_context(home: &Home, env: &Env, config: &Config, cancel: Cancel, posted: Posted, log: Log) -> RunContext {
    RunContext {
        home: home.clone(),
        jobs: Jobs::new(home.clone(), env),
        grace: i64::try_from(config.cron.grace_minutes).unwrap_or(i64::MAX).saturating_mul(60_000),
        outbox: Outbox::new(home.clone()),
        cancel,
        posted,
        log: log.sink("jobs"),
    }
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

/// Passes on signals of other programs of this home: a new job, a message to send.
fn listen(home: &Home, change: SyncSender<()>, posted: Posted, log: Log) {
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
            posted();
            std::thread::sleep(BETWEEN_SIGNALS);
        }
    };
    drop(Builder::new().spawn(pass_on));
}
