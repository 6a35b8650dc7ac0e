//! Delivering to a chat from a command that is no gateway: the one that runs does it, else the command itself.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::terminal::Then;
use super::{report, tell};
use crate::bus::Response;
use crate::cancel::Cancel;
use crate::config::proxy::proxy;
use crate::config::{self, Config, Env, keys};
use crate::error::{Context, Error, Kind, Result};
use crate::gateway::status::is_running;
use crate::http;
use crate::notify;
use crate::outbox::{Item, Outbox, Outcome};
use crate::paths::{Home, session_name};
use crate::session::note;
use crate::telegram::api::{Api, BASE};
use crate::telegram::{self, CHANNEL};
use crate::text::one_line;

/// How long a delivery may take before the command ends without it. What has begun by then is sent to its end.
const WAIT: Duration = Duration::from_secs(30);
/// Between two looks at what somebody else delivers: the first and the last.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LAST_LOOK: Duration = Duration::from_millis(250);

/// The bot with its token, which may stand in a variable or a file, or be what a command prints.
pub fn resolved(telegram: &config::Telegram, home: &Home, env: &Env) -> Result<config::Telegram> {
    let mut telegram = telegram.clone();
    if !telegram.token.is_empty() {
        telegram.token = keys::resolve(&telegram.token, env, &home.config()).doing("channels.telegram.token")?;
    }
    Ok(telegram)
}

/// The Bot API as it is configured, with a token that is [`resolved`].
pub fn bot(telegram: &config::Telegram, env: &Env) -> Result<Api> {
    if telegram.token.is_empty() {
        return Err(Error::config("there is no channels.telegram.token")
            .hint("@BotFather gives a token; put it into channels.telegram.token, or into TELEGRAM_BOT_TOKEN"));
    }
    if !telegram.api_base.is_empty() && !telegram.api_base.starts_with("http") {
        return Err(Error::config("channels.telegram.api_base is no address").hint("write it as http://HOST:PORT"));
    }
    let base = if telegram.api_base.is_empty() { BASE } else { &telegram.api_base };
    let proxy = if telegram.proxy.is_empty() { proxy(base, env) } else { telegram.proxy.clone() };
    let settings = http::Settings { proxy, ca_file: env.get("SSL_CERT_FILE").map(Into::into) };
    Ok(Api::new(settings, &telegram.api_base, &telegram.token))
}

/// The means to deliver.
pub struct Delivery {
    home: Home,
    outbox: Outbox,
    api: Arc<Api>,
}

impl Delivery {
    pub fn new(home: &Home, config: &Config, env: &Env) -> Result<Self> {
        let api = Arc::new(bot(&resolved(&config.channels.telegram, home, env)?, env)?);
        Ok(Self { home: home.clone(), outbox: Outbox::new(home.clone()), api })
    }

    /// Delivers the answer of a turn to a chat, and notes it in the chat's conversation with `title`. Half an answer, or
    /// none, is not delivered.
    fn answer(&self, chat: &str, response: &Response, title: &str) -> Result<()> {
        let text = response.output.trim();
        if response.partial || text.is_empty() {
            return Ok(());
        }
        let to = format!("{CHANNEL}:{chat}");
        let id = self.outbox.post(&Item { to: to.clone(), text: text.to_owned(), ..Item::default() })?;
        notify::signal(&self.home);
        let session = session_name(CHANNEL, chat)?;
        if session != response.session {
            if let Err(e) = note(&self.home, &session, &id, title, text) {
                tell(&format!("bantam: {}", one_line(&e.message, 300)));
            }
        }
        self.see_to(&id, &to)
    }

    /// Has what was posted said, and tells what became of it.
    fn see_to(&self, id: &str, to: &str) -> Result<()> {
        let last = self.work(to, &|| !matches!(self.outbox.fate(id), Ok(Outcome::Pending)))?;
        let what = format!("delivering the answer to {to}");
        match self.outbox.fate(id)? {
            Outcome::Said => Ok(()),
            Outcome::GivenUp(why) => Err(Error::failed(why).doing(what).hint("write to the bot from that chat first")),
            Outcome::Pending => {
                let last = if last.is_empty() { last } else { format!(" ({last})") };
                let runs = is_running(&self.home);
                let next = if runs { "the gateway goes on trying" } else { "bantam gateway sends it when it runs" };
                Err(Error::failed(format!("{what}: not taken within {} s{last}", WAIT.as_secs()))
                    .hint(format!("it is kept in the outbox: {next}")))
            }
        }
    }

    /// Says what stands in the outbox, that for the place `first` before the rest, or waits while somebody else does, until
    /// `is_done` or the time is up. With the last thing that was in the way.
    fn work(&self, first: &str, is_done: &dyn Fn() -> bool) -> Result<String> {
        let cancel = Cancel::new(Some(WAIT));
        let (mut pause, mut last) = (FIRST_LOOK, String::new());
        while !is_done() {
            last = self.send(first, is_done, &cancel)?.unwrap_or(last);
            if is_done() || cancel.sleep(pause).is_err() {
                break;
            }
            pause = (pause * 2).min(LAST_LOOK);
        }
        Ok(last)
    }

    /// Says what stands in the outbox, unless somebody else does. With the last thing that was in the way.
    fn send(&self, first: &str, is_done: &dyn Fn() -> bool, cancel: &Cancel) -> Result<Option<String>> {
        let _right = match self.outbox.sender(Duration::ZERO, cancel) {
            Ok(right) => right,
            Err(e) if matches!(e.kind, Kind::Busy | Kind::Interrupted) => return Ok(None),
            Err(e) => return Err(e),
        };
        let last = Arc::new(Mutex::new(None));
        let kept = last.clone();
        let log = move |_, line: &str| *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(one_line(line, 300));
        telegram::deliver(self.api.clone(), self.outbox.clone(), first, is_done, cancel.clone(), Arc::new(log));
        let last = last.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(last)
    }

    /// What to do at the end of a turn: its answer goes to the chat, if one is given, with a title for the note of it. What
    /// the turn has posted goes in any case.
    pub fn after(self, to: Option<(String, String)>) -> Then {
        Box::new(move |response| {
            to.map_or(Ok(()), |(chat, title)| self.answer(&chat, response, &title))?;
            if response.tool_calls.iter().any(|call| call.ok && call.name == "message") {
                self.rest();
            }
            Ok(())
        })
    }

    /// Says what turns have posted with the tool `message`, unless a gateway does.
    pub fn rest(&self) {
        let is_done = || self.outbox.pending().is_ok_and(|pending| pending.is_empty());
        if is_done() || is_running(&self.home) {
            return;
        }
        match self.work("", &is_done) {
            Ok(why) if !is_done() => {
                tell(&format!("bantam: a message waits in the outbox until bantam gateway runs: {why}"));
            }
            Ok(_) => {}
            Err(e) => drop(report(&e)),
        }
    }
}
