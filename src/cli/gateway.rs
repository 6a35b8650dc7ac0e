//! `bantam gateway`: the bot, until it is told to end.

use std::collections::HashMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::args::{Command, Given};
use super::tell;
use crate::agent::Agent;
use crate::bus::Kind;
use crate::cancel::Cancel;
use crate::config::proxy::proxy;
use crate::config::{self, Config, Env, Loaded};
use crate::cron::Jobs;
use crate::disk::{Durability, Lock};
use crate::error::{Context, Error, Kind as ErrorKind, Result};
use crate::gateway::{self, Staff};
use crate::outbox::Outbox;
use crate::paths::Home;
use crate::session::{self, Entry, Files, Store, shelf};
use crate::telegram::api::{Api, BASE};
use crate::telegram::inbox::Inbox;
use crate::telegram::{Settings, Telegram, Wake};
use crate::text::one_line;
use crate::{app, child, http, sys};

pub const COMMAND: Command = Command {
    name: "gateway",
    words: "",
    about: "the Telegram bot, until SIGTERM; for systemd, a container, or a terminal",
    flags: &[],
    run,
};

/// How long turns under way may go on when the program is told to end. They are taken up at the next start.
const FAREWELL: Duration = Duration::from_secs(3);

fn run(_: &Given, env: &Env) -> Result<u8> {
    let home = config::home(env)?;
    let file = config::read(&home)?;
    let loaded = load(&home, file.as_deref(), env)?;
    for line in &loaded.warnings {
        tell(&format!("bantam: {line}"));
    }
    let telegram = loaded.config.channels.telegram.clone();
    let token_is_there = !telegram.token.is_empty();
    // A token in the environment, and nothing said: that is meant.
    let said = loaded.origins.contains_key("channels.telegram.enabled");
    if !token_is_there || said && !telegram.enabled {
        let what =
            if token_is_there { "channels.telegram.enabled is false" } else { "there is no channels.telegram.token" };
        return Err(Error::config(format!("the gateway has nothing to serve: {what}"))
            .hint("@BotFather gives a token; put it into channels.telegram.token, or into TELEGRAM_BOT_TOKEN"));
    }
    let mut allow_from = Vec::new();
    for written in &telegram.allow_from {
        // Others write id|username.
        match written.split('|').next().unwrap_or_default().trim().parse() {
            Ok(id) => allow_from.push(id),
            Err(_) => tell(&format!(
                "bantam: channels.telegram.allow_from: \"{}\" is no numeric id and lets nobody in",
                one_line(written, 40)
            )),
        }
    }
    if allow_from.is_empty() {
        tell("bantam: channels.telegram.allow_from is empty: whoever writes gets no answer, and their id is told here");
    }
    let lock = Lock::acquire(&home.session_lock("gateway"), Duration::ZERO, &Cancel::new(None));
    let _lock = lock.map_err(|e| match e.kind {
        ErrorKind::Busy => Error::new(ErrorKind::Busy, "a gateway of this home is running already")
            .hint("bantam status tells about it"),
        _ => e,
    })?;
    app::make_workspace(&home, &loaded.config, env)?;
    let crew = Arc::new(Crew::new(&home, file, env));
    // What is wrong with the model is told now and not to whoever writes first.
    for notice in crew.make(None)?.1 {
        tell(&format!("bantam: {notice}"));
    }

    sys::hold_signals();
    let cancel = Cancel::new(None);
    let (again, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    {
        let (cancel, over) = (cancel.clone(), over.clone());
        let watching = move || {
            let _signal = sys::wait_for_signal();
            cancel.stop();
            std::thread::sleep(FAREWELL);
            // What is under way now is taken up at the next start: it is on disk.
            if !over.load(Ordering::SeqCst) {
                std::process::exit(0);
            }
        };
        Builder::new().spawn(watching).doing("starting a thread")?;
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
            notify(socket.as_deref(), "WATCHDOG=1");
            if watch.lock().unwrap_or_else(PoisonError::into_inner).has_changed() {
                tell("bantam: config.json has changed: starting anew");
                again.store(true, Ordering::SeqCst);
                cancel.stop();
            }
        })
    };
    let channel = Telegram {
        api: Arc::new(api),
        settings: Settings { allow_from, answers_all: telegram.group_trigger == "all", drafts: telegram.streaming },
        inbox,
        outbox: Outbox::new(home.clone()),
        cancel,
        alive,
        log: Arc::new(|line| tell(&format!("bantam: telegram: {}", one_line(line, 500)))),
        wake: Arc::new(Wake::default()),
    };
    let served = gateway::serve(crew, loaded.config.gateway.workers, channel);
    over.store(true, Ordering::SeqCst);
    served?;
    if again.load(Ordering::SeqCst) {
        return Err(child::become_again(&["gateway"])).doing("starting anew");
    }
    Ok(0)
}

fn load(home: &Home, file: Option<&str>, env: &Env) -> Result<Loaded> {
    let name = home.config().display().to_string();
    Config::load(file.map(|text| (name.as_str(), text)), env, Vec::new())
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
        match config::read(&self.home).and_then(|file| load(&self.home, file.as_deref(), &self.env)) {
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

/// Makes agents for conversations, and does what is no turn.
struct Crew {
    home: Home,
    file: Option<String>,
    env: Env,
    /// By the model's name; none for the one of the configuration.
    agents: Mutex<HashMap<Option<String>, Arc<Agent>>>,
}

impl Crew {
    fn new(home: &Home, file: Option<String>, env: &Env) -> Self {
        Self { home: home.clone(), file, env: env.clone(), agents: Mutex::default() }
    }

    fn make(&self, model: Option<&str>) -> Result<(Arc<Agent>, Vec<String>)> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let key = model.map(str::to_owned);
        if let Some(agent) = agents.get(&key) {
            return Ok((agent.clone(), Vec::new()));
        }
        let mut loaded = load(&self.home, self.file.as_deref(), &self.env)?;
        if let Some(model) = model {
            loaded.config.agents.defaults.model_name = model.to_owned();
        }
        let ready = app::build(&app::Parts {
            home: &self.home,
            config: &loaded.config,
            env: &self.env,
            configured: self.file.is_some(),
            keep: app::Keep::OnDisk,
            stream: true,
            tools: None,
            jobs: Some(Jobs::new(self.home.clone(), &self.env)),
            budget_tokens: None,
        })?;
        let agent = Arc::new(ready.agent);
        agents.insert(key, agent.clone());
        Ok((agent, ready.notices))
    }

    /// The model that was chosen in a conversation.
    fn chosen(&self, session: &str) -> Option<String> {
        // A file that cannot be read is told of when it is loaded.
        session::stored_state(&self.home, session).unwrap_or_default().remove(session::MODEL)
    }
}

impl Staff for Crew {
    fn agent(&self, session: &str) -> Result<Arc<Agent>> {
        let chosen = self.chosen(session);
        // One that is not to be had any more makes room for the usual one.
        let (agent, _) = self.make(chosen.as_deref()).or_else(|_| self.make(None))?;
        Ok(agent)
    }

    fn handle(&self, kind: &Kind, session: &str, busy: usize) -> Result<String> {
        let cancel = Cancel::new(None);
        match kind {
            Kind::New => {
                shelf::reset(&self.home, session, &cancel, SystemTime::now())?;
                Ok("A new conversation begins.".to_owned())
            }
            Kind::Model(name) if name.is_empty() => {
                let loaded = load(&self.home, self.file.as_deref(), &self.env)?;
                let names = loaded.config.model_list.iter().map(|entry| entry.model_name.as_str());
                let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
                let now = self.agent(session)?.model().to_owned();
                let others = if names.is_empty() { "VENDOR/MODEL".to_owned() } else { names.join(", ") };
                Ok(format!("`{now}` answers. `/model NAME` takes another: {others}"))
            }
            Kind::Model(name) => {
                let (agent, _) = self.make(Some(name))?;
                let store = Files::new(self.home.clone());
                let mut session = store.load(session, &cancel)?;
                let entry = [Entry::State(session::MODEL, name)];
                store.append(&mut session, &entry, Durability::Now, SystemTime::now())?;
                Ok(format!("From now on `{}` answers here.", agent.model()))
            }
            Kind::Status => {
                let agent = self.agent(session)?;
                let messages = Files::new(self.home.clone()).peek(session)?.messages.len();
                Ok(format!(
                    "bantam {}, `{}`\nmessages in this conversation: {messages}\nturns under way: {busy}",
                    env!("CARGO_PKG_VERSION"),
                    agent.model()
                ))
            }
            Kind::Usage => {
                let spent = Files::new(self.home.clone()).peek(session)?;
                Ok(json!(spent.messages.len()).to_string())
            }
            Kind::Message | Kind::Stop => Ok(String::new()),
        }
    }
}
