//! The gateway: Telegram, scheduled jobs, background tasks, and their supervision.

use std::net::TcpListener;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::clock::Clock;
use super::handler::HomeAgent;
use super::monitor::{self, ConfigStamp, Monitor, Owner, Shutdown};
use super::reports::Reports;
use super::run::JobRunner;
use super::serving::lock;
use super::{Dispatcher, Handler, endpoint};
use crate::agent::Tasks;
use crate::app::bot::{self, Bot};
use crate::app::status;
use crate::app::{App, Flags, local_time, make_workspace, media};
use crate::bus::{Channel, Inbound, Inbox, Source};
use crate::cancel::Cancel;
use crate::config::edit;
use crate::config::{Loaded, keys};
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
use crate::telegram::{self, Chats, MessageSender, PollEvent, Telegram};
use crate::timezone::Zone;

/// Time for Telegram to check a new token.
const CHECK_TIME: Duration = Duration::from_secs(15);
/// Time to finish sending a text when the program stops.
const SEND_GRACE: Duration = Duration::from_secs(3);

/// Delay of another look at an invalid config.json.
const CONFIG_RETRY: Duration = Duration::from_secs(1);

/// A configuration that a gateway can serve. Making it proves that.
pub(crate) struct GatewaySetup {
    app: Arc<App>,
    /// `None` if Telegram is off.
    bot: Option<Bot>,
    /// `None` if the HTTP endpoint is off.
    http: Option<EndpointSettings>,
    agent: HomeAgent,
    heartbeat: Option<Job>,
    pub notices: Vec<String>,
}

impl GatewaySetup {
    pub(crate) fn check(app: App) -> Result<Self> {
        let app = Arc::new(app);
        sync::lock(&app.servers.patience).stop();
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
        let agent = HomeAgent::new(app.clone(), flags);
        let (built, mut notices) = agent.build()?;
        notices.extend(built.models.choose("", None)?.warnings);
        notices.extend(told);
        notices.extend(bot.iter().flat_map(Bot::warnings));
        Ok(Self {
            app,
            bot,
            http,
            agent,
            heartbeat,
            notices,
        })
    }

    /// Checks settings that differ from the running gateway and could prevent a channel from serving: a token that Telegram
    /// refuses, or an address in use.
    pub(super) fn check_channels(&self, current: &Monitor) -> Result<()> {
        match &self.bot {
            Some(bot) if Some(&bot.settings.token) != current.token.as_ref() => {
                bot.check_token(&current.shutdown.cancel.with_timeout(CHECK_TIME))?;
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
}

/// Serves until a signal. Returns only if the process is to exit.
pub(crate) fn run(app: &App) -> Result<()> {
    // The kernel named the process after the link that started it.
    rustix::thread::set_name(c"bantam").doing("naming the process")?;
    let home = &app.home;
    let shutdown = Shutdown::on_signal(home)?;
    let Some((seen, setup)) = read_config(app, &shutdown.cancel)? else {
        return shutdown.finish();
    };
    let _lock = lock(home)?;
    serve(setup, seen, &shutdown)?;
    notify::close(home)?;
    shutdown.finish()
}

/// Reads config.json. A restarted gateway waits until the file is valid, because a supervisor does not start it again after such
/// an error. Returns `None` if `cancel` is stopped.
fn read_config(app: &App, cancel: &Cancel) -> Result<Option<(ConfigStamp, GatewaySetup)>> {
    let mut told = String::new();
    loop {
        // Must precede reading the file, so that later changes are detected.
        let seen = monitor::stamp(&app.home);
        match GatewaySetup::check(app.reread()) {
            Err(e) if e.kind == Kind::Config && status::is_restarted(&app.home) => {
                if e.message != told {
                    let journal = app.env.get("JOURNAL_STREAM").map(String::as_str);
                    let text = format!("config.json is invalid; waiting for a valid one: {e}");
                    Log::new(Level::Error, false, journal).write(Level::Error, &text);
                    told = e.message;
                }
                if cancel.sleep(CONFIG_RETRY).is_err() {
                    return Ok(None);
                }
            }
            setup => return Ok(Some((seen, setup?))),
        }
    }
}

/// Serves a home that this process has locked, until it is shut down. `seen` is the version of config.json before it was read.
fn serve(setup: GatewaySetup, seen: ConfigStamp, shutdown: &Arc<Shutdown>) -> Result<()> {
    let loaded = setup.app.loaded()?.clone();
    let (home, config, log) = (&loaded.home, &loaded.config, log(&loaded));
    for text in loaded.warnings.iter().chain(&setup.notices) {
        log.write(Level::Warn, text);
    }
    let (outbox, cancel) = (Outbox::new(home.clone()), shutdown.cancel.clone());
    let inbox = outbox.inbox().clone();
    inbox.allow_turns(config.gateway.workers);
    let bot = match &setup.bot {
        Some(bot) => Some(chats(&setup.app, bot, &outbox, &cancel)?),
        None => None,
    };
    let owner = Owner {
        chats: bot.clone(),
        log,
    };
    let told = owner.clone();
    let keeper = Keeper {
        cancel: cancel.clone(),
        log,
        tell_owner: Arc::new(move |text| told.tell(text)),
    };
    setup.app.servers.keep_listing(keeper);
    let handler: Arc<dyn Handler> = Arc::new(setup.agent);
    let (change, changed) = sync_channel(1);
    let monitor = Arc::new(Monitor {
        app: setup.app.clone(),
        token: setup.bot.as_ref().map(|bot| bot.settings.token.clone()),
        listen: setup.http.as_ref().map(|http| http.listen),
        seen: Mutex::new(seen),
        outbox: outbox.clone(),
        shutdown: shutdown.clone(),
        clock: change.clone(),
        owner: owner.clone(),
        notices: setup.notices,
    });
    monitor.record(status::begin(home, SystemTime::now()));
    monitor.clone().listen();
    let mut channels: Vec<Arc<dyn Channel>> = Vec::new();
    if let (Some(configured), Some(bot)) = (&setup.bot, &bot) {
        let settings = configured.channel_settings();
        let watch = Box::new(move |event: PollEvent| monitor.handle(event));
        channels.push(Arc::new(Telegram::start(bot, settings, watch)?));
    } else {
        let text = "Telegram is disabled; running scheduled jobs and the heartbeat";
        log.write(Level::Info, text);
        monitor.tick()?;
    }
    let jobs = Jobs::new(home.clone(), &loaded.env).with_messages(inbox.clone());
    let runner = JobRunner::new(jobs, &loaded);
    let dispatcher = Arc::new_cyclic(|own| Dispatcher {
        handler,
        inbox: inbox.clone(),
        outbox,
        runner: Some(runner),
        channels,
        bot,
        tasks: Tasks::with_sink(Reports::new(&inbox, own)),
        cancel: cancel.clone(),
        log: log.sink("gateway"),
        turn_log: log.sink("turn"),
    });
    let (halted, halting) = (inbox.clone(), log.sink("gateway"));
    let _halt = cancel.on_stop(move || {
        log_error(&halting, halted.halt());
    });
    dispatcher.take_left(left(&inbox, setup.bot.as_ref(), log)?);
    let clock = Clock {
        dispatcher: dispatcher.clone(),
        runs_jobs: config.cron.enabled,
        heartbeat: setup.heartbeat,
        to: bot::owner(&loaded),
        zone: Zone::local(&loaded.env).unwrap_or_else(|_| Zone::utc()),
        keep: Duration::from_secs(config.session.keep_days.saturating_mul(24 * 3600)),
        log: log.sink("jobs"),
        owner: owner.clone(),
        wake: change,
        changed,
    };
    if clock.has_work() {
        clock.start()?;
    }
    let endpoint = match setup.http {
        Some(settings) => Some(endpoint::start(dispatcher.clone(), settings, owner)?),
        None => None,
    };
    let served = dispatcher.serve_channels(&cancel);
    endpoint.map(JoinHandle::join);
    dispatcher.outbox.wait(SEND_GRACE);
    served
}

/// Returns the messages that an earlier gateway left. Ends those that may no longer be answered.
fn left(inbox: &Inbox, bot: Option<&Bot>, log: Log) -> Result<Vec<Inbound>> {
    let allowed = bot.map_or(Vec::new(), |bot| bot.settings.ids());
    let (mut left, mut ended) = (Vec::new(), Vec::new());
    for message in inbox.all()? {
        match &message.source {
            // A bot may be configured again later.
            Source::Telegram(_) if bot.is_none() => {}
            Source::Telegram(written) if !allowed.contains(&written.user) => {
                let text = "dropped a message from a user who is no longer in allow_from";
                log.sink("telegram")(Level::Info, text);
                ended.push(message.id);
            }
            // A program with this channel may serve this home again.
            Source::Task if message.origin.channel != telegram::CHANNEL => {}
            Source::Channel => {}
            Source::Telegram(_) | Source::Task | Source::Job(_) => left.push(message),
        }
    }
    inbox.finish(&ended)?;
    Ok(left)
}

fn log(loaded: &Loaded) -> Log {
    let log = &loaded.config.log;
    let journal = loaded.env.get("JOURNAL_STREAM").map(String::as_str);
    Log::new(log.level, log.json, journal)
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

fn chats(app: &App, bot: &Bot, outbox: &Outbox, cancel: &Cancel) -> Result<Arc<Chats>> {
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
