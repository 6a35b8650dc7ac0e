//! The gateway: Telegram, scheduled jobs, background tasks, and their supervision.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::Dispatcher;
use super::handler::HomeAgent;
use super::reload::{ConfigCheck, ConfigStamp, stamp};
use super::reports::Reports;
use super::run::JobRunner;
use super::serving::lock;
use super::shutdown::Shutdown;
use crate::agent::{Models, Tasks};
use crate::app::bot::{self, Bot};
use crate::app::{App, Flags, local_time, make_workspace, media};
use crate::bus::{Channel, TelegramMessage};
use crate::cancel::Cancel;
use crate::config::{self, GroupTrigger, Loaded, edit, keys};
use crate::cron::{Job, Jobs, heartbeat};
use crate::error::{Context, Error, Kind, Result};
use crate::http_api::{EndpointSettings, new_token};
use crate::log::{Level, Log, log_error};
use crate::mcp::Keeper;
use crate::notify;
use crate::outbox::Outbox;
use crate::paths::Home;
use crate::provider::catalog::learn_window;
use crate::secret::Secret;
use crate::storage::{self, Durability};
use crate::sync;
use crate::telegram::admission::Admit;
use crate::telegram::{Chats, MessageSender, PollEvent, Settings, Telegram};
use crate::text::to_single_line;

/// Time to finish sending a text when the program stops.
const SEND_GRACE: Duration = Duration::from_secs(3);

/// Delay of another look at an invalid config.json.
const CONFIG_RETRY: Duration = Duration::from_secs(1);

/// A configuration that a gateway can serve. Making it proves that.
pub(super) struct GatewaySetup {
    pub app: Arc<App>,
    pub loaded: Arc<Loaded>,
    /// `None` if Telegram is off.
    bot: Option<Bot>,
    /// `None` if the HTTP endpoint is off.
    pub http: Option<EndpointSettings>,
    agent: Arc<HomeAgent>,
    /// The built-in job, if heartbeats are enabled.
    pub heartbeat: Option<Job>,
    /// Problems of the configuration.
    pub notices: Vec<String>,
}

impl GatewaySetup {
    /// Reads config.json again.
    pub(super) fn check(app: &App) -> Result<Self> {
        let app = Arc::new(App::new(app.home.clone(), app.env.clone()));
        sync::lock(&app.servers.patience).stop();
        let loaded = app.loaded()?;
        let bot = bot::is_enabled(loaded).then(|| Bot::configured(loaded));
        let bot = bot.transpose()?;
        let http = endpoint_settings(loaded)?;
        let streams = bot.is_some() && loaded.config.channels.telegram.streaming;
        let flags = Flags {
            undo_of: Some("telegram_"),
            unseen: !streams && http.is_none(),
            ..Flags::default()
        };
        let beat = &loaded.config.heartbeat;
        if bot.is_none() && http.is_none() && !loaded.config.cron.enabled && !beat.enabled {
            return Err(Error::config(
                "the gateway has nothing to do: Telegram, HTTP, cron and the heartbeat are off",
            )
            .hint(
                "set channels.telegram.token, channels.http.enabled, cron.enabled or heartbeat.enabled in config.json",
            ));
        }
        app.workers()?;
        make_workspace(loaded)?;
        let told = loaded
            .config
            .choose_model(&app.env)?
            .and_then(|model| learn_window(loaded, &model));
        let to = match beat.to.as_str() {
            "" => bot::owner(loaded).unwrap_or_default(),
            to => to.to_owned(),
        };
        // Checked even if it is disabled.
        let job = heartbeat::job(beat.interval_minutes, &to).doing("heartbeat.to")?;
        let heartbeat = beat.enabled.then_some(job);
        let tokens = bot.iter().map(|bot| &bot.settings.token);
        let tokens = tokens.chain(http.iter().map(|http| &http.token));
        let redactor = app.redactor()?;
        tokens.for_each(|token| redactor.learn(token.clone()));
        let (agent, mut notices) = HomeAgent::new(app.clone(), flags)?;
        notices.extend(app.choose("", None)?.warnings);
        notices.extend(told);
        let users = bot.iter().flat_map(|bot| &bot.settings.allow_from);
        let ignored = users.filter(|user| config::user_id(user).is_none());
        notices.extend(ignored.map(|user| {
            let user = config::shown(user);
            format!("channels.telegram.allow_from: \"{user}\" is not a numeric id and is ignored")
        }));
        Ok(Self {
            loaded: loaded.clone(),
            app,
            bot,
            http,
            agent: Arc::new(agent),
            heartbeat,
            notices,
        })
    }
}

/// Serves until a signal. Returns only if the process is to exit.
pub(crate) fn run(app: &App) -> Result<()> {
    // The kernel named the process after the link that started it.
    rustix::thread::set_name(c"bantam").doing("naming the process")?;
    let home = &app.home;
    let shutdown = Shutdown::on_signal(home)?;
    let Some((seen, setup)) = read_config(app, &shutdown)? else {
        return shutdown.finish();
    };
    let _lock = lock(home)?;
    serve(setup, seen, shutdown.clone())?;
    notify::close(home)?;
    shutdown.finish()
}

/// Reads config.json. A restarted gateway waits until the file is valid, because a supervisor does not start it again after such
/// an error. Returns `None` if the gateway is shut down.
fn read_config(app: &App, shutdown: &Shutdown) -> Result<Option<(ConfigStamp, GatewaySetup)>> {
    let mut told = String::new();
    loop {
        // Must precede reading the file, so that later changes are detected.
        let seen = stamp(&app.home);
        match GatewaySetup::check(app) {
            Err(e) if e.kind == Kind::Config && shutdown.status.has_begun() => {
                if e.message != told {
                    let journal = app.env.get("JOURNAL_STREAM").map(String::as_str);
                    let text = format!("config.json is invalid; waiting for a valid one: {e}");
                    Log::new(Level::Error, false, journal).write(Level::Error, &text);
                    told = e.message;
                }
                if shutdown.cancel.sleep(CONFIG_RETRY).is_err() {
                    return Ok(None);
                }
            }
            setup => return Ok(Some((seen, setup?))),
        }
    }
}

/// Serves a home that this process has locked, until it is shut down. `seen` is the version of config.json before it was read.
fn serve(setup: GatewaySetup, seen: ConfigStamp, shutdown: Arc<Shutdown>) -> Result<()> {
    let log = log(&setup.loaded);
    for text in setup.loaded.warnings.iter().chain(&setup.notices) {
        log.write(Level::Warn, text);
    }
    let dispatcher = dispatcher(&setup, log, &shutdown.cancel)?;
    let (watch, woken) = sync_channel(1);
    let config = ConfigCheck {
        seen,
        restarts: false,
    };
    let gateway = Arc::new(Gateway {
        setup,
        dispatcher,
        shutdown,
        log,
        config: Mutex::new(config),
        watch,
    });
    gateway.begin()?;
    let own = gateway.clone();
    let watching = Builder::new().spawn(move || own.watch_config(&woken));
    watching.doing("starting a thread")?;
    let own = gateway.clone();
    let clock = Builder::new().spawn(move || own.run_clock());
    clock.doing("starting a thread")?;
    let endpoint = gateway.start_endpoint()?;
    let dispatcher = &gateway.dispatcher;
    let served = dispatcher.serve_channels(&gateway.shutdown.cancel);
    endpoint.map(JoinHandle::join);
    dispatcher.outbox.wait(SEND_GRACE);
    served
}

/// Makes the dispatcher of a gateway, with its Telegram bot.
fn dispatcher(setup: &GatewaySetup, log: Log, cancel: &Cancel) -> Result<Arc<Dispatcher>> {
    let (home, loaded) = (&setup.app.home, &setup.loaded);
    let outbox = Outbox::new(home.clone());
    let inbox = outbox.inbox.clone();
    inbox.allow_turns(loaded.config.gateway.workers);
    let mut channels: Vec<Arc<dyn Channel>> = Vec::new();
    let mut chats = None;
    if let Some(bot) = &setup.bot {
        let own = chats_of(&setup.app, bot, &outbox, cancel)?;
        let settings = Settings {
            allow_from: bot.settings.ids(),
            answers_all: bot.settings.group_trigger == GroupTrigger::All,
            drafts: bot.settings.streaming,
        };
        channels.push(Arc::new(Telegram::start(&own, settings)?));
        chats = Some(own);
    }
    let mut jobs = Jobs::new(home.clone(), &loaded.env);
    jobs.messages = inbox.clone();
    Ok(Arc::new_cyclic(|own| Dispatcher {
        agents: setup.agent.clone(),
        inbox: inbox.clone(),
        outbox,
        runner: Some(JobRunner::new(jobs, loaded)),
        channels,
        bot: chats,
        tasks: Tasks::with_sink(Reports(inbox.clone(), own.clone())),
        cancel: cancel.clone(),
        log: log.sink("gateway"),
        turn_log: log.sink("turn"),
    }))
}

/// A running gateway. Its threads share it.
pub(super) struct Gateway {
    pub setup: GatewaySetup,
    pub dispatcher: Arc<Dispatcher>,
    pub shutdown: Arc<Shutdown>,
    pub log: Log,
    /// Locked during a check, so that a second one waits for the result; a signal never does.
    pub config: Mutex<ConfigCheck>,
    /// Wakes the thread that checks config.json.
    pub watch: SyncSender<()>,
}

impl Gateway {
    /// Records the start, watches for changes, and lets the messages of an earlier gateway wait.
    fn begin(self: &Arc<Self>) -> Result<()> {
        let own = self.clone();
        let setup = &self.setup;
        let dispatcher = &self.dispatcher;
        setup.app.servers.keep_listing(Keeper {
            cancel: self.shutdown.cancel.clone(),
            log: self.log,
            tell_owner: Arc::new(move |text| own.tell(text)),
        });
        self.logged(self.shutdown.status.begin(SystemTime::now()));
        if let Some(chats) = &dispatcher.bot {
            let own = self.clone();
            drop(chats.watch.set(Box::new(move |event| own.handle(event))));
        } else {
            let text = "Telegram is disabled; running scheduled jobs and the heartbeat";
            self.log.write(Level::Info, text);
        }
        let allowed = setup.bot.as_ref().map(|bot| bot.settings.ids());
        let is_removed = |by: &TelegramMessage| {
            let allowed = allowed.as_ref();
            allowed.is_some_and(|ids| !ids.contains(&by.user))
        };
        dispatcher.take_left(&is_removed)
    }

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
    fn handle(&self, event: PollEvent) -> bool {
        let (status, now) = (&self.shutdown.status, SystemTime::now());
        self.logged(match event {
            PollEvent::Arrived => {
                self.wake_watch();
                return self.check_config() && self.dispatcher.inbox.is_idle();
            }
            PollEvent::Serving(name) => status.set("bot", format!("@{name}").into()),
            PollEvent::Polled => status.polls(None, now),
            PollEvent::Failing(why) => status.polls(Some(&to_single_line(why, 300)), now),
        });
        // The clock need not wake up by itself.
        notify::signal(&self.setup.app.home);
        false
    }

    /// Logs an error of writing the status file.
    fn logged(&self, written: Result<()>) {
        let written = written.doing("writing the status file");
        log_error(&self.dispatcher.log, written);
    }

    pub(super) fn wake_watch(&self) {
        // A full channel already contains a wake-up.
        let _full = self.watch.try_send(());
    }
}

fn log(loaded: &Loaded) -> Log {
    let log = &loaded.config.log;
    let journal = loaded.env.get("JOURNAL_STREAM").map(String::as_str);
    Log::new(log.level, log.json, journal)
}

/// Admits users by adding their ids to config.json. The gateway then applies the change.
fn admission(loaded: &Loaded) -> Box<Admit> {
    let (home, env) = (loaded.home.clone(), loaded.env.clone());
    Box::new(move |user| {
        let edited = edit::edit(&home, &env, &|_| Vec::new(), |file| {
            let list = &mut file["channels"]["telegram"]["allow_from"];
            match list.as_array_mut() {
                Some(ids) if ids.iter().any(|id| *id == user || *id == *user.to_string()) => {}
                Some(ids) => ids.push(user.into()),
                None => *list = json!([user]),
            }
            Ok(())
        });
        edited.map(drop)
    })
}

fn chats_of(app: &App, bot: &Bot, outbox: &Outbox, cancel: &Cancel) -> Result<Arc<Chats>> {
    let loaded = app.loaded()?;
    let (outbox, log) = (outbox.clone(), log(loaded).sink("telegram"));
    let owner = bot.settings.ids().first().copied();
    let sender = MessageSender::new(bot.api.clone(), outbox, cancel.clone(), log, owner);
    // A model that cannot be used prevents no other answer: each recording gets the reason.
    let transcribe = media::transcriber(loaded)
        .unwrap_or_else(|e| Some(Arc::new(move |_, _, _| Err(e.clone()))));
    let local_time = local_time(&loaded.env);
    let chats = Chats::new(sender, bot.id(), app.workers()?, local_time, transcribe);
    drop(chats.admission.set(admission(loaded)));
    Ok(chats)
}

/// Returns the settings of the HTTP endpoint; `None` if it is off.
fn endpoint_settings(loaded: &Loaded) -> Result<Option<EndpointSettings>> {
    let Loaded { home, env, .. } = loaded;
    let http = &loaded.config.channels.http;
    if !http.enabled {
        return Ok(None);
    }
    let token = if http.token.is_empty() {
        made_token(home)?
    } else {
        keys::resolve(&http.token, env, &home.config()).doing("channels.http.token")?
    };
    let mut settings = EndpointSettings::new(&http.listen, token, &http.allow_origin)?;
    let names = loaded.config.names().into_iter();
    settings.models.extend(names.map(str::to_owned));
    Ok(Some(settings))
}

/// Returns the token of a home without a configured one. The first start generates it.
fn made_token(home: &Home) -> Result<Secret> {
    let path = home.http_token();
    let store = || -> Result<String> {
        if !path.exists() {
            storage::replace(&path, new_token()?.as_bytes(), Durability::Now)?;
        }
        Ok(fs_err::read_to_string(&path)?)
    };
    let token = store().map_err(|e| {
        e.doing("storing a token for the HTTP endpoint")
            .hint("run `export BANTAM_CHANNELS_HTTP_TOKEN=$(openssl rand -hex 16)`")
    })?;
    Ok(Secret::new(token))
}
