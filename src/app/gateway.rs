//! The gateway: Telegram, scheduled jobs, background tasks, and their supervision.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::bot::Bot;
use super::factory::AgentFactory;
use super::handler::GatewayHandler;
use super::serving::{Taken, take};
use super::{Parts, check_command, local_time, make_workspace, media, workers};
use crate::bus::{Channel, Command, Inbound, Inbox, MessageStore, Source};
use crate::cancel::Cancel;
use crate::config::edit;
use crate::config::{self, Config, Env, Loaded, keys};
use crate::cron::{Job, Jobs, heartbeat};
use crate::error::{Context, Error, Result};
use crate::gateway::clock::Clock;
use crate::gateway::endpoint::{EndpointTurns, HttpChannel};
use crate::gateway::monitor::{self, Monitor, Shutdown};
use crate::gateway::poster::Poster;
use crate::gateway::run::RunStarter;
use crate::gateway::status::StatusFile;
use crate::gateway::turn_log::TurnLog;
use crate::gateway::{Dispatcher, Resources};
use crate::http_api::{Settings, new_token};
use crate::log::{Level, Log};
use crate::mcp::{Background, Unknown};
use crate::notify;
use crate::outbox::Outbox;
use crate::paths::Home;
use crate::provider::catalog::learn_window;
use crate::secret::Secret;
use crate::storage::{self, Durability};
use crate::sys;
use crate::telegram::admission::Admit;
use crate::telegram::{Chats, MessageSender, Telegram, Watch};
use crate::timezone::Zone;
use crate::worker::Workers;

/// Wakes the scheduler, after a change of jobs or of the system clock, and delivers the messages in the outbox.
type Wake = Arc<dyn Fn() + Send + Sync>;

const MINUTE: i64 = 60_000;
/// Time for Telegram to check a new token.
const CHECK_TIME: Duration = Duration::from_secs(15);
/// Time for uploads to finish when the program stops.
const UPLOAD_GRACE: Duration = Duration::from_secs(2);

/// Everything a gateway needs to start. Loading it proves that the configuration works.
pub(crate) struct Startup {
    loaded: Loaded,
    /// `None` if Telegram is off.
    bot: Option<Bot>,
    /// `None` if the HTTP endpoint is off.
    http: Option<Settings>,
    workers: Workers,
    handler: GatewayHandler,
    heartbeat: Option<Job>,
    notices: Vec<String>,
}

impl Startup {
    pub(crate) fn load(home: &Home, env: &Env) -> Result<Self> {
        Self::load_file(home, env, config::read(home)?)
    }

    /// Loads config.json, or its text before this restart, because an incomplete file may have been saved meanwhile. Also
    /// returns the error in config.json.
    fn load_or_inherited(
        home: &Home,
        env: &Env,
        inherited: Option<String>,
    ) -> Result<(Self, Option<Error>)> {
        match (Self::load(home, env), inherited) {
            (Ok(startup), _) => Ok((startup, None)),
            (Err(e), Some(text)) => Ok((Self::load_file(home, env, Some(text))?, Some(e))),
            (Err(e), None) => Err(e),
        }
    }

    fn load_file(home: &Home, env: &Env, file: Option<String>) -> Result<Self> {
        let mut factory = AgentFactory::with_file(home, env, file);
        factory.options.undo_of = Some("telegram_");
        factory.options.servers.unknown = Unknown::Skip;
        let loaded = factory.load()?;
        let bot = Bot::if_wanted(&loaded, home, env)?;
        let http = endpoint_settings(&loaded.config, env, home)?;
        let streams = bot.is_some() && loaded.config.channels.telegram.streaming;
        factory.options.unseen = !streams && http.is_none();
        let beat = &loaded.config.heartbeat;
        if bot.is_none() && http.is_none() && !loaded.config.cron.enabled && !beat.enabled {
            return Err(Error::config(
                "the gateway has nothing to do: Telegram, HTTP, cron and the heartbeat are off",
            )
            .hint(
                "set channels.telegram.token, channels.http.enabled, cron.enabled or heartbeat.enabled in config.json",
            ));
        }
        let parts = factory.parts(&loaded.config);
        let workers = workers(parts)?;
        make_workspace(parts)?;
        let told = loaded
            .config
            .choose_model(env)?
            .and_then(|model| learn_window(parts, &model));
        let owner = bot.as_ref().and_then(|bot| {
            bot.settings
                .ids()
                .first()
                .map(|id| format!("telegram:{id}"))
        });
        let to = if beat.to.is_empty() {
            owner.unwrap_or_default()
        } else {
            beat.to.clone()
        };
        // Checked even if it is disabled.
        let job = heartbeat::job(beat.interval_minutes, &to).doing("heartbeat.to")?;
        let heartbeat = beat.enabled.then_some(job);
        let mut config = loaded.config.clone();
        let channels = &mut Arc::make_mut(&mut config).channels;
        if let Some(bot) = &bot {
            channels.telegram.token = bot.settings.token.clone();
        }
        if let Some(http) = &http {
            channels.http.token = http.token.clone();
        }
        let handler = GatewayHandler::new(factory, config);
        let (agent, mut notices) = handler.build()?;
        notices.extend(agent.models().choose("", None)?.warnings);
        notices.extend(told);
        notices.extend(bot.iter().flat_map(Bot::warnings));
        Ok(Self {
            loaded,
            bot,
            http,
            workers,
            handler,
            heartbeat,
            notices,
        })
    }
}

impl Startup {
    fn log(&self, env: &Env) -> Log {
        let log = &self.loaded.config.log;
        let journal = env.get("JOURNAL_STREAM").map(String::as_str);
        Log::new(log.level, log.json, journal)
    }

    /// Checks settings that differ from the running gateway and could prevent a channel from serving: a token that Telegram
    /// refuses, or an address in use.
    fn check_channels(&self, current: &Current) -> Result<()> {
        match &self.bot {
            Some(bot) if Some(&bot.settings.token) != current.token.as_ref() => {
                bot.check_token(&current.cancel.with_timeout(CHECK_TIME))?;
            }
            _ => {}
        }
        match &self.http {
            Some(http) if Some(http.listen) != current.listen => TcpListener::bind(http.listen)
                .map(drop)
                .doing(format_args!("listening at {}", http.listen)),
            _ => Ok(()),
        }
    }

    /// Logs the warnings and notices for the user.
    fn warn(&self, log: Log) {
        for text in self.loaded.warnings.iter().chain(&self.notices) {
            log.write(Level::Warn, text);
        }
    }
}

/// Serves until a signal. Returns only if the process is to exit.
pub(crate) fn run(env: &Env) -> Result<()> {
    let inherited = sys::take_inherited_text();
    // The kernel named the process after the link that started it.
    rustix::thread::set_name(c"bantam").doing("naming the process")?;
    let shutdown = Shutdown::on_signal()?;
    let home = config::home(env)?;
    // Must precede reading the file, so that later changes are detected.
    let seen = monitor::stamp(&home);
    let (startup, broken) = Startup::load_or_inherited(&home, env, inherited)?;
    let Taken {
        lock: _lock,
        outbox,
        store,
    } = take(&home)?;
    let place = Place {
        home: home.clone(),
        env: env.clone(),
        log: startup.log(env),
        outbox,
        store,
        shutdown: shutdown.clone(),
    };
    startup.warn(place.log);
    let gateway = Gateway::new(place, startup)?;
    if let Some(e) = broken {
        (gateway.report)(&monitor::rejected(&e));
    }
    gateway.serve(seen)?;
    notify::close(&home)?;
    shutdown.finish()
}

/// Where a gateway runs, and its shutdown.
struct Place {
    home: Home,
    env: Env,
    log: Log,
    outbox: Outbox,
    store: MessageStore,
    shutdown: Arc<Shutdown>,
}

impl Place {
    fn parts<'a>(&'a self, config: &'a Arc<Config>) -> Parts<'a> {
        Parts {
            home: &self.home,
            config,
            env: &self.env,
        }
    }
}

/// A gateway that owns its home.
struct Gateway {
    place: Place,
    config: Arc<Config>,
    bot: Option<Bot>,
    http: Option<Settings>,
    handler: Arc<GatewayHandler>,
    heartbeat: Option<Job>,
    /// Chats of the bot, if there is one.
    chats: Option<Arc<Chats>>,
    /// Logs an error, and notifies the owner of the bot.
    report: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Gateway {
    fn new(place: Place, mut startup: Startup) -> Result<Self> {
        let (bot, config) = (startup.bot, startup.loaded.config);
        let chats = match &bot {
            Some(bot) => Some(chats(&place, &config, bot, startup.workers)?),
            None => None,
        };
        let tell_owner = owner_teller(chats.as_ref());
        let listing = Background {
            cancel: place.shutdown.cancel.clone(),
            log: place.log,
            tell_owner: tell_owner.clone(),
        };
        startup.handler.begin(place.outbox.queue(), listing)?;
        if let Some(chats) = &chats {
            drop(chats.admission.set(admission(place.parts(&config))));
        }
        Ok(Self {
            report: reporter(place.log, tell_owner),
            place,
            config,
            bot,
            http: startup.http,
            handler: Arc::new(startup.handler),
            heartbeat: startup.heartbeat,
            chats,
        })
    }

    /// Serves until a signal, and ends its threads. `seen` is the stamp of config.json before it was read.
    fn serve(self, seen: monitor::Stamp) -> Result<()> {
        let (cancel, log) = (self.place.shutdown.cancel.clone(), self.place.log);
        let jobs = self.jobs();
        let dispatcher = Dispatcher::new(Resources {
            handler: self.handler.clone(),
            workers: self.config.gateway.workers,
            home: self.place.home.clone(),
            store: self.place.store.clone(),
            jobs: jobs.clone(),
            poster: self.poster(),
            cancel: cancel.clone(),
            log: log.sink("gateway"),
        });
        let halting = dispatcher.clone();
        let _halt = cancel.on_stop(move || halting.halt());
        let sender = self.chats.as_ref().map(|chats| chats.sender.clone());
        let (change, changed) = sync_channel(1);
        let wake = wake(change.clone(), sender.clone());
        let watch = self.monitor(seen, &dispatcher, &wake).start();
        listen(&self.place.home, wake, log);
        let mut channels: Vec<Box<dyn Channel>> = vec![Box::new(TurnLog(log.sink("turn")))];
        let clock = self.clock(jobs, change, changed);
        clock.end_old_runs();
        let left = self.left()?;
        if clock.has_work() {
            channels.push(Box::new(clock));
        }
        channels.extend(self.http_channel(&dispatcher));
        match self.telegram_channel(watch)? {
            Some(telegram) => channels.push(telegram),
            None => log.write(
                Level::Info,
                "Telegram is off; scheduled jobs and heartbeats run",
            ),
        }
        let inbox = Inbox::new(self.place.store.clone());
        let served = dispatcher.serve(channels, inbox, left, &cancel);
        if let Some(sender) = sender {
            sender.wait(UPLOAD_GRACE);
        }
        served
    }

    fn monitor(&self, seen: monitor::Stamp, dispatcher: &Arc<Dispatcher>, wake: &Wake) -> Monitor {
        let place = &self.place;
        let current = Current {
            cancel: place.shutdown.cancel.clone(),
            token: self.bot.as_ref().map(|bot| bot.settings.token.clone()),
            listen: self.http.as_ref().map(|http| http.listen),
        };
        Monitor {
            home: place.home.clone(),
            prove: prove(place.parts(&self.config), current),
            seen: Mutex::new(seen),
            dispatcher: dispatcher.clone(),
            shutdown: place.shutdown.clone(),
            wake: wake.clone(),
            status: Mutex::new(StatusFile::new(&place.home, SystemTime::now())),
            log: place.log,
            report: self.report.clone(),
        }
    }

    /// Returns the HTTP endpoint, if it is on.
    fn http_channel(&self, dispatcher: &Arc<Dispatcher>) -> Option<Box<dyn Channel>> {
        let log = self.place.log;
        Some(Box::new(HttpChannel {
            settings: self.http.clone()?,
            turns: Arc::new(EndpointTurns::new(dispatcher.clone(), log.sink("turn"))),
            cancel: self.place.shutdown.cancel.clone(),
            log: log.sink("http"),
            report: self.report.clone(),
        }))
    }

    /// Returns the bot, if there is one, which calls `watch` between polls. Otherwise, a thread calls it.
    fn telegram_channel(&self, watch: Watch) -> Result<Option<Box<dyn Channel>>> {
        let (Some(bot), Some(chats)) = (&self.bot, &self.chats) else {
            monitor::tick(watch, self.place.shutdown.cancel.clone())?;
            return Ok(None);
        };
        Ok(Some(Box::new(Telegram {
            chats: chats.clone(),
            settings: bot.channel_settings(),
            watch,
        })))
    }

    fn jobs(&self) -> Jobs {
        let jobs = Jobs::new(self.place.home.clone(), &self.place.env);
        jobs.with_messages(self.place.store.clone())
    }

    fn poster(&self) -> Poster {
        Poster {
            outbox: self.place.outbox.clone(),
            chats: self.chats.clone(),
            log: self.place.log.sink("outbox"),
        }
    }

    fn clock(&self, jobs: Jobs, wake: SyncSender<()>, changed: Receiver<()>) -> Clock {
        let (place, config) = (&self.place, &self.config);
        let (cancel, log) = (&place.shutdown.cancel, place.log.sink("jobs"));
        let grace = i64::try_from(config.cron.grace_minutes).unwrap_or(i64::MAX / MINUTE);
        let check = check_command(place.parts(config)).ok();
        let days = config.session.keep_days;
        Clock {
            starter: RunStarter::new(jobs, cancel.clone(), log, check),
            grace: grace.saturating_mul(MINUTE),
            poster: self.poster(),
            keep: Duration::from_secs(days.saturating_mul(24 * 3600)),
            zone: Zone::local(&place.env).unwrap_or_else(|_| Zone::utc()),
            runs_jobs: config.cron.enabled,
            heartbeat: self.heartbeat.clone(),
            wake,
            changed,
        }
    }

    /// Returns the messages that an earlier gateway left. Ends those that may no longer be answered.
    fn left(&self) -> Result<Vec<Inbound>> {
        let (mut left, mut ended) = (Vec::new(), Vec::new());
        let (bot, allowed) = match &self.bot {
            Some(bot) => (bot.id(), bot.settings.ids()),
            None => (0, Vec::new()),
        };
        for message in self.place.store.all()? {
            match &message.source {
                // That bot may be configured again later.
                Source::Telegram { bot: of, .. } if *of != bot => {}
                Source::Telegram { user, .. } if !allowed.contains(user) => {
                    let text = "dropped a message from a user who is no longer in allow_from";
                    self.place.log.sink("telegram")(Level::Info, text);
                    ended.push(message.id);
                }
                // Nothing is left to stop.
                Source::Telegram { .. } if message.command == Some(Command::Stop) => {
                    ended.push(message.id);
                }
                Source::Task if message.reply_to.is_none() => {}
                Source::Channel => {}
                Source::Telegram { .. } | Source::Task | Source::Job(_) => left.push(message),
            }
        }
        self.place.store.finish(&ended)?;
        Ok(left)
    }
}

fn wake(clock: SyncSender<()>, sender: Option<Arc<MessageSender>>) -> Wake {
    Arc::new(move || {
        // A full channel already contains a wake-up.
        let _full = clock.try_send(());
        if let Some(sender) = &sender {
            sender.wake();
        }
    })
}

/// Settings of the running gateway's channels.
struct Current {
    /// Ends a check of others.
    cancel: Cancel,
    token: Option<Secret>,
    listen: Option<SocketAddr>,
}

/// Returns a check that a gateway with the current config.json could start and serve its channels; it returns the file's text.
fn prove(parts: Parts, current: Current) -> Box<dyn Fn() -> Result<String> + Send + Sync> {
    let (home, env) = (parts.home.clone(), parts.env.clone());
    Box::new(move || {
        let startup = Startup::load(&home, &env)?;
        startup.check_channels(&current)?;
        Ok(startup.handler.config_file().unwrap_or("{}").to_owned())
    })
}

/// Admits users by adding their ids to config.json. The monitor then applies the change.
fn admission(parts: Parts) -> Box<Admit> {
    let (home, env) = (parts.home.clone(), parts.env.clone());
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

/// Sends warnings to the owner's chat, if there is a bot.
fn owner_teller(chats: Option<&Arc<Chats>>) -> Arc<dyn Fn(&str) + Send + Sync> {
    let chats = chats.cloned();
    Arc::new(move |text| {
        if let Some((chats, owner)) = chats.as_ref().and_then(|c| Some((c, c.sender.owner?))) {
            chats.post(&owner.to_string(), &format!("⚠️ {text}"), &[]);
        }
    })
}

/// Logs an error, and notifies the owner of the bot.
fn reporter(
    log: Log,
    tell_owner: Arc<dyn Fn(&str) + Send + Sync>,
) -> Arc<dyn Fn(&str) + Send + Sync> {
    Arc::new(move |text| {
        log.write(Level::Error, text);
        tell_owner(text);
    })
}

/// Forwards signals of other programs of this home: a new job, or a message to send.
fn listen(home: &Home, wake: Wake, log: Log) {
    let listener = match notify::bind(home) {
        Ok(listener) => listener,
        Err(e) => {
            let text = format!(
                "other programs cannot wake the gateway, so new jobs may start up to an hour late, and their messages wait: {e}"
            );
            return log.write(Level::Warn, &text);
        }
    };
    drop(Builder::new().spawn(move || {
        while listener.wait().is_ok() {
            wake();
        }
    }));
}

fn chats(place: &Place, config: &Arc<Config>, bot: &Bot, workers: Workers) -> Result<Arc<Chats>> {
    let (outbox, log) = (&place.outbox, place.log.sink("telegram"));
    let cancel = place.shutdown.cancel.clone();
    let owner = bot.settings.ids().first().copied();
    let sender = MessageSender::new(bot.api.clone(), outbox.clone(), cancel, log, owner);
    let transcribe = media::transcriber(place.parts(config))?;
    let local_time = local_time(&place.env);
    Ok(Chats::new(
        sender,
        bot.id(),
        workers,
        local_time,
        transcribe,
    ))
}

/// Returns the settings of the HTTP endpoint; `None` if it is off.
fn endpoint_settings(config: &Config, env: &Env, home: &Home) -> Result<Option<Settings>> {
    let http = &config.channels.http;
    if !http.enabled {
        return Ok(None);
    }
    let token = if http.token.is_empty() {
        made_token(home)?
    } else {
        keys::resolve(&http.token, env, &home.config()).doing("channels.http.token")?
    };
    Settings::new(&http.listen, token, &http.allow_origin).map(Some)
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
