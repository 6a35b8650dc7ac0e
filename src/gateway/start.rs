//! The gateway: Telegram, scheduled jobs, background tasks, and their supervision.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::clock::Clock;
use super::endpoint::HttpEndpoint;
use super::handler::GatewayHandler;
use super::monitor::{self, Monitor, Shutdown};
use super::poster::Poster;
use super::run::RunStarter;
use super::serving::{Taken, take};
use super::turn_log::TurnLog;
use super::{Dispatcher, Resources, check_command};
use crate::app::bot::Bot;
use crate::app::status::StatusFile;
use crate::app::{App, Flags, local_time, make_workspace, media};
use crate::bus::{Channel, Command, Inbound, Inbox, MessageStore, Source};
use crate::cancel::Cancel;
use crate::config::edit;
use crate::config::{Loaded, keys};
use crate::cron::{Job, Jobs, heartbeat};
use crate::error::{Context, Error, Result};
use crate::http_api::{Settings, new_token};
use crate::log::{Level, Log};
use crate::mcp::{Background, Unknown};
use crate::notify;
use crate::outbox::Outbox;
use crate::paths::Home;
use crate::provider::catalog::learn_window;
use crate::secret::Secret;
use crate::storage::{self, Durability};
use crate::sync;
use crate::sys;
use crate::telegram::admission::Admit;
use crate::telegram::{Chats, MessageSender, Telegram, Watch};
use crate::timezone::Zone;

/// Wakes the scheduler, after a change of jobs or of the system clock, and delivers the messages in the outbox.
type Wake = Arc<dyn Fn() + Send + Sync>;

const MINUTE: i64 = 60_000;
/// Time for Telegram to check a new token.
const CHECK_TIME: Duration = Duration::from_secs(15);
/// Time for uploads to finish when the program stops.
const UPLOAD_GRACE: Duration = Duration::from_secs(2);

/// Everything a gateway needs to start. Loading it proves that the configuration works.
pub(crate) struct Startup {
    app: Arc<App>,
    /// `None` if Telegram is off.
    bot: Option<Bot>,
    /// `None` if the HTTP endpoint is off.
    http: Option<Settings>,
    handler: GatewayHandler,
    heartbeat: Option<Job>,
    notices: Vec<String>,
}

impl Startup {
    /// Loads config.json, or its text before this restart, because an incomplete file may have been saved meanwhile. Also
    /// returns the error in config.json.
    fn load_or_inherited(app: &App, inherited: Option<String>) -> Result<(Self, Option<Error>)> {
        match (Self::check(app.reread()), inherited) {
            (Ok(startup), _) => Ok((startup, None)),
            (Err(e), Some(text)) => Ok((Self::check(app.with_text(text))?, Some(e))),
            (Err(e), None) => Err(e),
        }
    }

    pub(crate) fn check(app: App) -> Result<Self> {
        let app = Arc::new(app);
        *sync::lock(&app.servers.unknown) = Unknown::Skip;
        let loaded = app.loaded()?;
        let bot = Bot::if_wanted(loaded)?;
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
        let tokens = bot.iter().map(|bot| &bot.settings.token);
        let tokens = tokens.chain(http.iter().map(|http| &http.token));
        let redactor = app.redactor()?;
        tokens.for_each(|token| redactor.learn(token.clone()));
        let handler = GatewayHandler::new(app.clone(), flags);
        let (agent, mut notices) = handler.build()?;
        notices.extend(agent.models().choose("", None)?.warnings);
        notices.extend(told);
        notices.extend(bot.iter().flat_map(Bot::warnings));
        Ok(Self {
            app,
            bot,
            http,
            handler,
            heartbeat,
            notices,
        })
    }
}

impl Startup {
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
    fn warn(&self, loaded: &Loaded, log: Log) {
        for text in loaded.warnings.iter().chain(&self.notices) {
            log.write(Level::Warn, text);
        }
    }
}

/// Serves until a signal. Returns only if the process is to exit.
pub(crate) fn run(app: &App) -> Result<()> {
    let inherited = sys::take_inherited_text();
    // The kernel named the process after the link that started it.
    rustix::thread::set_name(c"bantam").doing("naming the process")?;
    let shutdown = Shutdown::on_signal()?;
    let home = &app.home;
    // Must precede reading the file, so that later changes are detected.
    let seen = monitor::stamp(home);
    let (startup, broken) = Startup::load_or_inherited(app, inherited)?;
    let Taken {
        lock: _lock,
        outbox,
        store,
    } = take(home)?;
    let loaded = startup.app.loaded()?.clone();
    let place = Place {
        log: log(&loaded),
        loaded: loaded.clone(),
        outbox,
        store,
        shutdown: shutdown.clone(),
    };
    startup.warn(&loaded, place.log);
    let gateway = Gateway::new(place, startup)?;
    if let Some(e) = broken {
        (gateway.report)(&monitor::rejected(&e));
    }
    gateway.serve(seen)?;
    notify::close(home)?;
    shutdown.finish()
}

fn log(loaded: &Loaded) -> Log {
    let log = &loaded.config.log;
    let journal = loaded.env.get("JOURNAL_STREAM").map(String::as_str);
    Log::new(log.level, log.json, journal)
}

/// Where a gateway runs, and its shutdown.
struct Place {
    loaded: Arc<Loaded>,
    log: Log,
    outbox: Outbox,
    store: MessageStore,
    shutdown: Arc<Shutdown>,
}

/// A gateway that owns its home.
struct Gateway {
    place: Place,
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
        let (bot, app) = (startup.bot, &startup.app);
        let chats = match &bot {
            Some(bot) => Some(chats(&place, app, bot)?),
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
            drop(chats.admission.set(admission(&place.loaded)));
        }
        Ok(Self {
            report: reporter(place.log, tell_owner),
            place,
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
            workers: self.place.loaded.config.gateway.workers,
            home: self.place.loaded.home.clone(),
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
        listen(&self.place.loaded.home, wake, log);
        let mut channels: Vec<Box<dyn Channel>> = vec![Box::new(TurnLog(log.sink("turn")))];
        let clock = self.clock(jobs, change, changed);
        clock.end_old_runs();
        let left = self.left()?;
        if clock.has_work() {
            channels.push(Box::new(clock));
        }
        let http = self.start_http(&dispatcher)?;
        match self.telegram_channel(watch)? {
            Some(telegram) => channels.push(telegram),
            None => log.write(
                Level::Info,
                "Telegram is disabled; running scheduled jobs and the heartbeat",
            ),
        }
        let inbox = Inbox::new(self.place.store.clone());
        let served = dispatcher.serve(channels, inbox, left, &cancel);
        // Without another channel, the endpoint alone keeps the gateway running.
        if let (Ok(()), Some(http)) = (&served, http) {
            drop(http.join());
        }
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
            home: place.loaded.home.clone(),
            prove: prove(&place.loaded, current),
            seen: Mutex::new(seen),
            dispatcher: dispatcher.clone(),
            shutdown: place.shutdown.clone(),
            wake: wake.clone(),
            status: Mutex::new(StatusFile::new(&place.loaded.home, SystemTime::now())),
            log: place.log,
            report: self.report.clone(),
        }
    }

    /// Starts the HTTP endpoint, if it is on.
    fn start_http(&self, dispatcher: &Arc<Dispatcher>) -> Result<Option<JoinHandle<()>>> {
        let endpoint = |settings| HttpEndpoint {
            settings,
            dispatcher: dispatcher.clone(),
            cancel: self.place.shutdown.cancel.clone(),
            log: self.place.log,
            report: self.report.clone(),
        };
        let endpoint = self.http.clone().map(endpoint);
        endpoint.map(HttpEndpoint::start).transpose()
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
        let jobs = Jobs::new(self.place.loaded.home.clone(), &self.place.loaded.env);
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
        let (place, config) = (&self.place, &self.place.loaded.config);
        let (cancel, log) = (&place.shutdown.cancel, place.log.sink("jobs"));
        let grace = i64::try_from(config.cron.grace_minutes).unwrap_or(i64::MAX / MINUTE);
        let check = check_command(&place.loaded).ok();
        let days = config.session.keep_days;
        Clock {
            starter: RunStarter::new(jobs, cancel.clone(), log, check),
            grace: grace.saturating_mul(MINUTE),
            poster: self.poster(),
            keep: Duration::from_secs(days.saturating_mul(24 * 3600)),
            zone: Zone::local(&place.loaded.env).unwrap_or_else(|_| Zone::utc()),
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
fn prove(loaded: &Loaded, current: Current) -> Box<dyn Fn() -> Result<String> + Send + Sync> {
    let (home, env) = (loaded.home.clone(), loaded.env.clone());
    Box::new(move || {
        let startup = Startup::check(App::new(home.clone(), env.clone()))?;
        startup.check_channels(&current)?;
        Ok(startup.app.text()?.unwrap_or("{}").to_owned())
    })
}

/// Admits users by adding their ids to config.json. The monitor then applies the change.
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

fn chats(place: &Place, app: &App, bot: &Bot) -> Result<Arc<Chats>> {
    let (outbox, log) = (&place.outbox, place.log.sink("telegram"));
    let cancel = place.shutdown.cancel.clone();
    let owner = bot.settings.ids().first().copied();
    let sender = MessageSender::new(bot.api.clone(), outbox.clone(), cancel, log, owner);
    let transcribe = media::transcriber(&place.loaded)?;
    let local_time = local_time(&place.loaded.env);
    Ok(Chats::new(
        sender,
        bot.id(),
        app.workers()?,
        local_time,
        transcribe,
    ))
}

/// Returns the settings of the HTTP endpoint; `None` if it is off.
fn endpoint_settings(loaded: &Loaded) -> Result<Option<Settings>> {
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
    let mut settings = Settings::new(&http.listen, token, &http.allow_origin)?;
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
