//! Telegram, by long polling: what users write comes in and is kept until it has been answered; answers go out.
//!
//! One thread polls ([`poll`]), one shows that answers are being written ([`activity`]), each chat with something to send has one
//! ([`send`]), and the workers of the gateway do the turns between ([`ack`]).

mod ack;
mod activity;
pub(crate) mod api;
pub(crate) mod inbox;
mod incoming;
mod poll;
mod send;
#[cfg(test)]
mod tests;
mod update;
mod upload;

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bus::{Channel, Inbound, Outbound};
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::hands::Hands;
use crate::message::Media;
use crate::pace::paced;
/// The name of this channel.
pub(crate) use crate::paths::TELEGRAM as CHANNEL;
use crate::text::LocalTime;
use ack::TelegramAck;
use activity::{Activity, Turns};
use inbox::Inbox;
use poll::Poller;
pub(crate) use poll::{PollEvent, Watch};
pub(crate) use send::MessageSender;

/// Makes words of a recording.
pub(crate) type Transcribe = dyn Fn(&Media, &Cancel) -> Result<String> + Send + Sync;

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
    pub sender: Arc<MessageSender>,
    pub settings: Settings,
    /// What `getMe` has answered, if it has.
    pub account: Option<Value>,
    pub inbox: Inbox,
    /// Stores incoming files.
    pub hands: Arc<Hands>,
    /// Names the folder of the day.
    pub local_time: LocalTime,
    pub transcribe: Option<Arc<Transcribe>>,
    pub watch: Watch,
}

impl Channel for Telegram {
    fn start(self: Box<Self>, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let Self {
            sender,
            settings,
            account,
            inbox,
            hands,
            local_time,
            transcribe,
            watch,
        } = *self;
        let (api, cancel, turns) = (sender.api.clone(), sender.cancel.clone(), Turns::default());
        let activity = Activity {
            api,
            turns: turns.clone(),
            drafts: settings.drafts,
            cancel,
        };
        sender.start()?;
        let ack = Arc::new(TelegramAck {
            started: Instant::now(),
            sender,
            inbox,
            running: Mutex::default(),
            hands,
            local_time,
            transcribe,
            turns,
        });
        let poller = Poller {
            settings,
            account,
            ack,
            inbound,
            watch,
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
