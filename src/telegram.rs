//! Telegram, by long polling: what users write comes in and is kept until it has been answered; answers go out.
//!
//! Three threads: one polls ([`poll`]), one sends ([`send`]), and the workers of the gateway do the turns between.

pub mod api;
mod format;
pub mod inbox;
mod poll;
mod send;
mod update;

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use crate::bus::{Channel, Inbound, Keeper, Origin, Outbound, Response, TurnStop};
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::message::Image;
use crate::outbox::{Item, Outbox};
use api::Api;
use inbox::Inbox;
use poll::Poller;
use send::{Sending, Signal};
pub use update::Said;

/// The name of this channel.
pub const CHANNEL: &str = "telegram";

/// What the bot is and whom it serves.
#[derive(Clone)]
pub struct Settings {
    /// Numeric ids; the first is the owner.
    pub allow_from: Vec<i64>,
    /// In groups every message is meant for the bot, not only those that mention it or reply to it.
    pub answers_all: bool,
    /// Drafts are shown while an answer is written.
    pub drafts: bool,
}

/// The bot as a channel.
pub struct Telegram {
    pub api: Arc<Api>,
    pub settings: Settings,
    pub inbox: Inbox,
    pub outbox: Outbox,
    /// Ends the polling.
    pub cancel: Cancel,
    /// Called after each poll that worked.
    pub alive: Box<dyn Fn() + Send>,
    /// Where what people should know is written: standard error.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
    /// Given to whoever wants to tell that something was posted.
    pub wake: Arc<Wake>,
}

/// Tells the sender that something was posted.
#[derive(Default)]
pub struct Wake(Mutex<Option<Sender<Signal>>>);

impl Wake {
    pub fn wake(&self) {
        if let Some(sender) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            drop(sender.send(Signal::Posted));
        }
    }
}

impl Channel for Telegram {
    fn start(self, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let Self { api, settings, inbox, outbox, cancel, alive, log, wake } = self;
        let (signals, signalled) = channel();
        *wake.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(signals.clone());
        let inbox = Arc::new(Mutex::new(inbox));
        let desk = Arc::new(Desk {
            api: api.clone(),
            inbox: inbox.clone(),
            outbox: outbox.clone(),
            signals: signals.clone(),
            log: log.clone(),
            cancel: cancel.clone(),
        });
        let sending = Sending::new(api.clone(), outbox, settings.drafts, cancel.clone(), log.clone());
        Builder::new().spawn(move || sending.run(&signalled)).doing("starting a thread")?;
        let poller = Poller { api, settings, inbox, desk, inbound, cancel, log, alive };
        Builder::new().spawn(move || poller.run()).doing("starting a thread")?;
        let (outbound, events) = channel::<Outbound>();
        let passing = move || {
            for Outbound { origin, event } in events {
                drop(signals.send(Signal::Event(origin.chat, event)));
            }
        };
        Builder::new().spawn(passing).doing("starting a thread")?;
        Ok(outbound)
    }
}

/// Keeps messages until they are answered.
struct Desk {
    api: Arc<Api>,
    inbox: Arc<Mutex<Inbox>>,
    outbox: Outbox,
    signals: Sender<Signal>,
    log: Arc<dyn Fn(&str) + Send + Sync>,
    cancel: Cancel,
}

impl Desk {
    /// Says something in a chat, as the answer to these messages.
    fn say(&self, chat: &str, text: &str, answers: &[String]) {
        let item = Item { to: format!("{CHANNEL}:{chat}"), text: text.to_owned(), answers: answers.to_vec() };
        match self.outbox.post(&item) {
            Ok(_) => {
                let closed = self.inbox.lock().unwrap_or_else(PoisonError::into_inner).close(answers);
                if let Err(e) = closed {
                    (self.log)(&format!("noting that a message was answered: {e}"));
                }
                drop(self.signals.send(Signal::Posted));
            }
            // The answer is in the conversation, and the message stays open: it is answered again after a restart.
            Err(e) => {
                (self.log)(&format!("an answer could not be kept, and is sent without: {e}"));
                drop(self.signals.send(Signal::Unkept(item)));
            }
        }
    }
}

impl Keeper for Desk {
    fn begin(&self, ids: &[String], origin: &Origin) -> (String, Vec<Image>) {
        drop(self.signals.send(Signal::Busy(origin.chat.clone())));
        let files = {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(e) = inbox.start(ids) {
                (self.log)(&format!("noting that a message is being answered: {e}"));
            }
            inbox.files(ids)
        };
        let (mut text, mut images) = (String::new(), Vec::new());
        for file in files {
            match self.api.fetch(&file, &self.cancel) {
                Ok(update::Fetched::Image(image)) => images.push(image),
                Ok(update::Fetched::Text(part)) => text.push_str(&format!("\n\n{part}")),
                Err(why) => text.push_str(&format!("\n\n[{} was attached and cannot be read: {why}]", file.name)),
            }
        }
        (text, images)
    }

    fn end(&self, ids: &[String], origin: &Origin, response: &Response) {
        drop(self.signals.send(Signal::Idle(origin.chat.clone())));
        self.say(&origin.chat, &told(response), ids);
    }

    fn reply(&self, ids: &[String], origin: &Origin, text: &str) {
        if !text.is_empty() {
            self.say(&origin.chat, text, ids);
        } else if let Err(e) = self.inbox.lock().unwrap_or_else(PoisonError::into_inner).close(ids) {
            (self.log)(&format!("noting that a message was answered: {e}"));
        }
    }
}

/// What a turn's end looks like in a chat.
fn told(response: &Response) -> String {
    let output = response.output.trim();
    match &response.error {
        Some(_) if response.stop == TurnStop::Cancelled => format!("{output}\n\n(Stopped.)").trim_start().to_owned(),
        None if output.is_empty() => "(The answer is empty.)".to_owned(),
        None => output.to_owned(),
        Some(error) => {
            let why = error.hint.as_ref().map_or(error.message.clone(), |hint| format!("{}\n({hint})", error.message));
            if output.is_empty() { format!("⚠️ {why}") } else { format!("{output}\n\n⚠️ {why}") }
        }
    }
}
