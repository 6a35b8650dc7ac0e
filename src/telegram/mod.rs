//! Telegram, by long polling: what users write comes in and is kept until it has been answered; answers go out.
//!
//! One thread polls ([`poll`]), one shows that answers are being written ([`activity`]), one delivers ([`send`]), and the workers of
//! the gateway do the turns between ([`chats`]), which may ask the owner something ([`ask`]) or
//! offer a choice ([`choice`]).

mod activity;
pub(crate) mod admission;
pub(crate) mod api;
pub(crate) mod ask;
mod chats;
mod choice;
pub(crate) mod deliver;
mod held;
mod incoming;
mod marked;
mod poll;
mod send;
pub(crate) mod strangers;
#[cfg(test)]
mod tests;
mod update;
mod upload;

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use crate::bus::{Channel, Inbox, Outbound};
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::message::Media;
/// The name of this channel.
pub(crate) use crate::paths::TELEGRAM as CHANNEL;
use crate::test_speed::paced;
use crate::usage::Budget;
use activity::Activity;
pub(crate) use chats::Chats;
use poll::Poller;
pub(crate) use poll::{PollEvent, Watch, help};
pub(crate) use send::MessageSender;

/// Makes words of a recording.
pub(crate) type Transcribe = dyn Fn(&Media, &Cancel, &Budget) -> Result<String> + Send + Sync;

/// What helps against a refused token.
pub(crate) const REFUSED_TOKEN: &str =
    "copy it again from @BotFather into channels.telegram.token, or TELEGRAM_BOT_TOKEN";

/// The longest back-off.
const MAX_BACK_OFF: Duration = Duration::from_secs(60);
/// The first back-off; short in tests, which retry often.
const FIRST_BACK_OFF: Duration = if cfg!(test) {
    Duration::from_millis(5)
} else {
    Duration::from_secs(1)
};

/// The back-off after `failures` earlier failures in a row.
fn back_off(failures: u32) -> Duration {
    paced((FIRST_BACK_OFF * (1 << failures.min(6))).min(MAX_BACK_OFF))
}

#[derive(Clone)]
pub(crate) struct Settings {
    /// Numeric ids; the first is the owner.
    pub allow_from: Vec<i64>,
    /// In groups, answer every message instead of mentions and replies.
    pub answers_all: bool,
    /// Show drafts while an answer is written.
    pub drafts: bool,
}

/// The bot as a channel. The sender's cancel ends the polling.
pub(crate) struct Telegram {
    pub chats: Arc<Chats>,
    pub settings: Settings,
    pub watch: Watch,
}

impl Channel for Telegram {
    fn start(self: Box<Self>, inbox: Inbox) -> Result<Sender<Outbound>> {
        let sender = self.chats.sender.clone();
        let activity = Activity {
            api: sender.api.clone(),
            turns: self.chats.turns.clone(),
            drafts: self.settings.drafts,
            cancel: sender.cancel.clone(),
        };
        sender.start()?;
        let poller = Poller {
            settings: self.settings,
            chats: self.chats,
            inbox,
            watch: self.watch,
        };
        Builder::new()
            .spawn(move || poller.run())
            .doing("starting a thread")?;
        let (outbound, events) = channel();
        Builder::new()
            .spawn(move || activity.run(&events))
            .doing("starting a thread")?;
        Ok(outbound)
    }
}
