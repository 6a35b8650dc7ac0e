//! Telegram, by long polling: what users write comes in and is kept until it has been answered; answers go out.
//!
//! One thread polls ([`poll`]), one sends ([`send`]) and has another for a file that goes out, and the workers of the gateway
//! do the turns between. What comes with messages is kept by `incoming`.

pub(crate) mod api;
pub(crate) mod inbox;
mod incoming;
mod poll;
mod send;
#[cfg(test)]
mod tests;
mod unknown_users;
mod update;
mod upload;

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::bus::{Ack, Channel, Inbound, Origin, Outbound, Response, TurnStop};
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::hands::Hands;
use crate::log::{Level, Sink};
use crate::message::Image;
use crate::outbox::{Item, Outbox};
/// The name of this channel.
pub(crate) use crate::paths::TELEGRAM as CHANNEL;
use crate::text::LocalTime;
use api::Api;
use inbox::Inbox;
use poll::Poller;
pub(crate) use poll::{PollEvent, Watch};
use send::{MessageSender, SendEvent};

/// Crashes during a message's turn, with no other under way, before the message is quarantined.
const MAX_CRASHES: u32 = 3;
/// How long the program must be up before the last try.
const CALM: Duration = Duration::from_secs(2);

/// The most time to fetch the files of one message.
const DOWNLOAD_TIME: Duration = Duration::from_secs(300);
/// How long the program waits for an upload when it stops.
const UPLOAD_GRACE: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(crate) struct Settings {
    /// Numeric ids; the first is the owner.
    pub allow_from: Vec<i64>,
    /// In groups, answer every message instead of mentions and replies.
    pub answers_all: bool,
    /// Show drafts while an answer is written.
    pub drafts: bool,
}

/// The bot as a channel.
pub(crate) struct Telegram {
    pub api: Arc<Api>,
    pub settings: Settings,
    pub inbox: Inbox,
    /// Reports of background tasks that an earlier run left.
    pub reports: Vec<Inbound>,
    pub outbox: Outbox,
    /// Stores incoming files.
    pub hands: Arc<Hands>,
    /// Names the folder of the day.
    pub local_time: LocalTime,
    /// Ends the polling.
    pub cancel: Cancel,
    pub watch: Watch,
    pub log: Sink,
    pub wake: Arc<Wake>,
}

/// Wakes the sender when something was posted.
#[derive(Default)]
pub(crate) struct Wake {
    events: Mutex<Option<Sender<SendEvent>>>,
    /// Held while a message is sent.
    sending: Arc<Mutex<()>>,
    /// Held while a file is uploaded.
    uploading: Arc<Mutex<()>>,
}

impl Wake {
    /// Waits until no message is being sent, and a moment for an upload, which may take an hour.
    pub(crate) fn wait(&self) {
        drop(self.sending.lock().unwrap_or_else(PoisonError::into_inner));
        let until = Instant::now() + UPLOAD_GRACE;
        while matches!(self.uploading.try_lock(), Err(TryLockError::WouldBlock)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn wake(&self) {
        if let Some(events) = &*self.events.lock().unwrap_or_else(PoisonError::into_inner) {
            drop(events.send(SendEvent::Posted));
        }
    }
}

/// Delivers the outbox on this thread until `is_done` or the cancel: messages to `first` before the others, and each one that
/// has begun to its end. The caller holds the lock of [`Outbox::sender`].
pub(crate) fn deliver(
    api: Arc<Api>,
    outbox: Outbox,
    first: &str,
    is_done: &dyn Fn() -> bool,
    cancel: Cancel,
    log: Sink,
) {
    MessageSender::new(api, outbox, false, cancel, log, &Wake::default()).run_until(first, is_done);
}

impl Channel for Telegram {
    fn start(self: Box<Self>, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let Self { api, settings, inbox, reports, outbox, hands, local_time, cancel, watch, log, wake } = *self;
        let (signals, signalled) = channel();
        *wake.events.lock().unwrap_or_else(PoisonError::into_inner) = Some(signals.clone());
        let inbox = Arc::new(Mutex::new(inbox));
        let ack = Arc::new(TelegramAck {
            started: Instant::now(),
            api: api.clone(),
            inbox: inbox.clone(),
            outbox: outbox.clone(),
            hands,
            local_time,
            signals: signals.clone(),
            log: log.clone(),
            cancel: cancel.clone(),
        });
        let sending = MessageSender::new(api.clone(), outbox, settings.drafts, cancel.clone(), log.clone(), &wake);
        Builder::new().spawn(move || sending.run(&signalled)).doing("starting a thread")?;
        let poller = Poller { api, settings, inbox, ack, inbound, cancel, log, watch };
        Builder::new().spawn(move || poller.run(reports)).doing("starting a thread")?;
        let (outbound, events) = channel::<Outbound>();
        let passing = move || {
            for Outbound { origin, event } in events {
                if origin.channel == CHANNEL {
                    drop(signals.send(SendEvent::Turn(origin.chat, event)));
                }
            }
        };
        Builder::new().spawn(passing).doing("starting a thread")?;
        Ok(outbound)
    }
}

struct TelegramAck {
    started: Instant,
    api: Arc<Api>,
    inbox: Arc<Mutex<Inbox>>,
    outbox: Outbox,
    hands: Arc<Hands>,
    local_time: LocalTime,
    signals: Sender<SendEvent>,
    log: Sink,
    cancel: Cancel,
}

impl TelegramAck {
    /// Posts the answer to these messages. Returns whether it is on disk.
    fn post(&self, chat: &str, text: &str, answers: &[String]) -> bool {
        let (to, text) = (format!("{CHANNEL}:{chat}"), text.to_owned());
        let item = Item { to, text, answers: answers.to_vec(), ..Item::default() };
        match self.outbox.post(&item) {
            Ok(_) => {
                self.close(answers);
                drop(self.signals.send(SendEvent::Posted));
                true
            }
            // The message stays open and is answered again after a restart.
            Err(e) => {
                (self.log)(Level::Error, &format!("the outbox cannot keep an answer, sending it anyway: {e}"));
                drop(self.signals.send(SendEvent::Unkept(item)));
                false
            }
        }
    }

    /// Delays the last try of a message before quarantine until the program has been up for a while: being killed every other
    /// second, by a supervisor or a weak battery, is not the message's fault. `false`: the program is stopping.
    fn wait_for_calm(&self, ids: &[String]) -> bool {
        let crashes = self.inbox.lock().unwrap_or_else(PoisonError::into_inner).crashes(ids);
        crashes + 1 < MAX_CRASHES || self.cancel.sleep(CALM.saturating_sub(self.started.elapsed())).is_ok()
    }

    /// Marks those of these messages as answered that came from Telegram.
    fn close(&self, ids: &[String]) {
        let own: Vec<String> = ids.iter().filter(|id| is_own(id)).cloned().collect();
        if let Err(e) = self.inbox.lock().unwrap_or_else(PoisonError::into_inner).close(&own) {
            (self.log)(Level::Error, &format!("recording that a message was answered: {e}"));
        }
    }
}

/// Whether a message came from Telegram; reports of background tasks are answered here, too.
fn is_own(id: &str) -> bool {
    id.starts_with(CHANNEL)
}

impl Ack for TelegramAck {
    fn has_files(&self, ids: &[String]) -> bool {
        !self.inbox.lock().unwrap_or_else(PoisonError::into_inner).files(ids).is_empty()
    }

    fn begin(
        &self,
        ids: &[String],
        origin: &Origin,
        text: &mut String,
        images: &mut Vec<Image>,
        cancel: &Cancel,
    ) -> bool {
        if self.cancel.why().is_some() {
            return false;
        }
        drop(self.signals.send(SendEvent::TurnBegins(origin.chat.clone())));
        if !self.wait_for_calm(ids) {
            return false;
        }
        let files = if ids.iter().any(|id| is_own(id)) {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            // It may have been edited.
            let current = inbox.texts(ids);
            if !current.is_empty() {
                *text = current;
            }
            if let Err(e) = inbox.start(ids) {
                (self.log)(Level::Error, &format!("recording that a turn begins: {e}"));
            }
            inbox.files(ids)
        } else {
            Vec::new()
        };
        let Self { api, hands, local_time, .. } = self;
        let stop = cancel.clone();
        let ends = self.cancel.on_stop(move || stop.stop());
        let downloader = incoming::Downloader { api, hands, local_time, cancel: &cancel.with_timeout(DOWNLOAD_TIME) };
        let key = ids.first().map(|id| id.replace(':', "-")).unwrap_or_default();
        for (n, file) in files.iter().enumerate() {
            downloader.attach(file, format!("{key}-{n}"), text, images);
            if cancel.why().is_some() {
                break;
            }
        }
        drop(ends);
        // A turn that the user stopped says so itself; at a shutdown it resumes at the next start.
        self.cancel.why().is_none()
    }

    fn end(&self, ids: &[String], origin: &Origin, response: &Response) -> bool {
        drop(self.signals.send(SendEvent::TurnEnds(origin.chat.clone())));
        self.post(&origin.chat, &final_text(response), ids)
    }

    fn reply(&self, ids: &[String], origin: &Origin, text: &str) -> bool {
        if text.is_empty() {
            self.close(ids);
            return true;
        }
        self.post(&origin.chat, text, ids)
    }
}

/// The text that ends a turn in its chat.
fn final_text(response: &Response) -> String {
    let output = response.output.trim();
    match &response.error {
        Some(_) if response.stop == TurnStop::Cancelled => format!("{output}\n\n(Stopped.)").trim_start().to_owned(),
        None if output.is_empty() => "(The answer is empty.)".to_owned(),
        None => output.to_owned(),
        Some(error) => {
            // Its hint is for the terminal.
            let why = &error.message;
            if output.is_empty() { format!("⚠️ {why}") } else { format!("{output}\n\n⚠️ {why}") }
        }
    }
}
