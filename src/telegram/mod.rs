//! Telegram channel by long polling: stores incoming messages until they are answered, and delivers answers.
//!
//! One thread polls ([`poll`]), one shows activity ([`activity`]), and one delivers ([`send`]). In between, the gateway's
//! workers run the turns ([`chats`]), which may ask the owner for confirmation ([`ask`]).

mod activity;
pub(crate) mod admission;
pub(crate) mod api;
pub(crate) mod ask;
mod chats;
pub(crate) mod deliver;
mod incoming;
mod marked;
mod poll;
mod send;
pub(crate) mod strangers;
mod update;
mod upload;

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use crate::bus::{Channel, Event, Inbox};
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::message::Media;
/// Name of this channel.
pub(crate) use crate::paths::TELEGRAM as CHANNEL;
use crate::tries::{self, Tries};
use crate::usage::Budget;
use activity::Activity;
pub(crate) use ask::MODEL_BUTTON;
pub(crate) use chats::Chats;
pub(crate) use poll::{PollEvent, help};
use poll::{Poller, Watch};
pub(crate) use send::MessageSender;

/// Transcribes a recording.
pub(crate) type Transcribe = dyn Fn(&Media, &Cancel, &Budget) -> Result<String> + Send + Sync;

/// Maximum back-off.
const MAX_BACK_OFF: Duration = Duration::from_secs(60);
/// First back-off.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);

/// Returns the back-off after `failures` consecutive failures.
fn back_off(failures: u32) -> Duration {
    tries::back_off(failures, FIRST_BACK_OFF, MAX_BACK_OFF)
}

/// Tries of a call that is repeated up to this many times.
fn tries(most: u32) -> Tries {
    Tries::new(most, FIRST_BACK_OFF, MAX_BACK_OFF)
}

#[derive(Clone)]
pub(crate) struct Settings {
    /// Numeric user ids; the first one is the owner.
    pub allow_from: Vec<i64>,
    /// Whether to answer every message in groups, instead of only mentions and replies.
    pub answers_all: bool,
    /// Whether to show drafts while an answer is being written.
    pub drafts: bool,
}

/// The bot as a channel. The sender's cancel stops the polling.
pub(crate) struct Telegram {
    settings: Settings,
    chats: Arc<Chats>,
    events: Sender<(String, Event)>,
}

impl Telegram {
    /// Starts the threads that deliver messages and show activity.
    pub(crate) fn start(chats: &Arc<Chats>, settings: Settings) -> Result<Self> {
        let sender = &chats.sender;
        let activity = Activity {
            api: sender.api.clone(),
            turns: chats.turns.clone(),
            drafts: settings.drafts,
            last_id: 0,
            cancel: sender.cancel.clone(),
        };
        sender.start()?;
        let (events, shown) = channel();
        let showing = Builder::new().spawn(move || activity.run(&shown));
        showing.doing("starting a thread")?;
        Ok(Self {
            settings,
            chats: chats.clone(),
            events,
        })
    }
}

impl Channel for Telegram {
    fn name(&self) -> &str {
        CHANNEL
    }

    fn poll(&self, _: &Inbox, _: &Cancel) -> Result<()> {
        let poller = Poller {
            settings: self.settings.clone(),
            chats: self.chats.clone(),
            albums: Vec::new(),
            parts: Vec::new(),
        };
        poller.run();
        Ok(())
    }

    /// Posts a text; the bot's own sender delivers it in pieces, with files and buttons.
    fn deliver(&self, chat: &str, text: &str) -> Result<()> {
        self.chats.post(chat, text);
        Ok(())
    }

    fn show(&self, chat: &str, event: &Event) {
        // The thread ends with the program.
        self.events.send((chat.to_owned(), event.clone())).ok();
    }
}
