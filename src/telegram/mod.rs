//! Telegram, by long polling: what users write comes in and is kept until it has been answered; answers go out.
//!
//! One thread polls ([`poll`]), one sends ([`send`]) and has another for a file that goes out, and the workers of the gateway
//! do the turns between. What comes with messages is kept by `incoming`.

pub mod api;
pub mod inbox;
mod incoming;
mod poll;
mod send;
mod update;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::bus::{Ack, Channel, Event, Inbound, Origin, Outbound, Response, TurnStop};
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::hands::Hands;
use crate::log::{Level, Sink};
use crate::message::{Image, Usage};
use crate::outbox::{Item, Outbox};
/// The name of this channel.
pub use crate::paths::TELEGRAM as CHANNEL;
use crate::text::LocalTime;
use api::Api;
use inbox::Inbox;
use poll::Poller;
pub use poll::{PollEvent, Watch};
use send::{Sending, Signal};
pub use update::Said;

/// A message whose turn was alone under way when the program died, this often, is set aside.
const MOST_DEATHS: u32 = 3;
/// How long the program has to be up before it tries such a message for the last time.
const CALM: Duration = Duration::from_secs(2);

/// What the files of one message may take to be fetched.
const FETCHING: Duration = Duration::from_secs(300);
/// How long an upload may take to its end when the program ends.
const UPLOAD_FAREWELL: Duration = Duration::from_secs(2);

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
    /// Of background tasks, as an earlier run of the program left them.
    pub reports: Vec<Inbound>,
    pub outbox: Outbox,
    /// Who keeps files that come in.
    pub hands: Arc<Hands>,
    /// By which their days begin and end.
    pub local_time: LocalTime,
    /// Ends the polling.
    pub cancel: Cancel,
    pub watch: Watch,
    /// Where what people should know is written: standard error.
    pub log: Sink,
    /// Given to whoever wants to tell that something was posted.
    pub wake: Arc<Wake>,
}

/// Tells the sender that something was posted.
#[derive(Default)]
pub struct Wake {
    sender: Mutex<Option<Sender<Signal>>>,
    /// It has been told, and has not looked yet.
    posted: Arc<AtomicBool>,
    sending: Arc<Mutex<()>>,
    /// The same for a file.
    uploading: Arc<Mutex<()>>,
}

impl Wake {
    /// Waits until nothing is being sent; for a file, which may take an hour, only for moments.
    pub fn wait(&self) {
        drop(self.sending.lock().unwrap_or_else(PoisonError::into_inner));
        let until = Instant::now() + UPLOAD_FAREWELL;
        while matches!(self.uploading.try_lock(), Err(TryLockError::WouldBlock)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn wake(&self) {
        if let Some(sender) = &*self.sender.lock().unwrap_or_else(PoisonError::into_inner) {
            if !self.posted.swap(true, Ordering::SeqCst) {
                drop(sender.send(Signal::Posted));
            }
        }
    }
}

/// Sends what stands in the outbox, here and now, until `is_done` or `cancel` says so; what is for the place `first` goes
/// first, and what has begun is sent to its end. The caller has the right to, see [`Outbox::sender`].
pub fn deliver(api: Arc<Api>, outbox: Outbox, first: &str, is_done: &dyn Fn() -> bool, cancel: Cancel, log: Sink) {
    Sending::new(api, outbox, false, cancel, log, &Wake::default()).run_until(first, is_done);
}

impl Channel for Telegram {
    fn start(self, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let Self { api, settings, inbox, reports, outbox, hands, local_time, cancel, watch, log, wake } = self;
        let (signals, signalled) = channel();
        *wake.sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(signals.clone());
        let inbox = Arc::new(Mutex::new(inbox));
        let desk = Arc::new(TelegramAck {
            since: Instant::now(),
            api: api.clone(),
            inbox: inbox.clone(),
            outbox: outbox.clone(),
            hands,
            local_time,
            signals: signals.clone(),
            log: log.clone(),
            cancel: cancel.clone(),
        });
        let sending = Sending::new(api.clone(), outbox, settings.drafts, cancel.clone(), log.clone(), &wake);
        Builder::new().spawn(move || sending.run(&signalled)).doing("starting a thread")?;
        let told = log.clone();
        let poller = Poller { api, settings, inbox, desk, inbound, cancel, log, watch };
        Builder::new().spawn(move || poller.run(reports)).doing("starting a thread")?;
        let (outbound, events) = channel::<Outbound>();
        let passing = move || {
            for Outbound { origin, event } in events {
                tell_of(&origin, &event, &told);
                drop(signals.send(Signal::Event(origin.chat, event)));
            }
        };
        Builder::new().spawn(passing).doing("starting a thread")?;
        Ok(outbound)
    }
}

/// Tells the log what happens in a turn.
fn tell_of(origin: &Origin, event: &Event, log: &Sink) {
    let (level, text) = match event {
        Event::Notice(text) => (Level::Warn, text.clone()),
        Event::Trace(text) => (Level::Debug, text.clone()),
        Event::ToolStarted { summary } => (Level::Debug, summary.clone()),
        Event::ToolFinished { name, ok, ms } => {
            (Level::Debug, format!("{name} {} in {ms} ms", if *ok { "done" } else { "failed" }))
        }
        Event::Done(response) => {
            let Usage { prompt_tokens, completion_tokens, .. } = response.usage;
            let (end, ms) = (response.stop.name(), response.ms);
            match &response.error {
                Some(error) if response.stop == TurnStop::Error => {
                    (Level::Warn, format!("a turn failed after {ms} ms: {}", error.message))
                }
                _ => (
                    Level::Debug,
                    format!("a turn ended ({end}) after {ms} ms: {prompt_tokens} + {completion_tokens} tokens"),
                ),
            }
        }
        Event::Delta(_) | Event::DeltasDiscarded | Event::Background(_) => return,
    };
    log(level, &format!("{} {}: {text}", origin.channel, origin.chat));
}

/// Keeps messages until they are answered.
struct TelegramAck {
    /// When it began.
    since: Instant,
    api: Arc<Api>,
    inbox: Arc<Mutex<Inbox>>,
    outbox: Outbox,
    hands: Arc<Hands>,
    local_time: LocalTime,
    signals: Sender<Signal>,
    log: Sink,
    cancel: Cancel,
}

impl TelegramAck {
    /// Says something in a chat, as the answer to these messages. Whether it was kept.
    fn say(&self, chat: &str, text: &str, answers: &[String]) -> bool {
        let (to, text) = (format!("{CHANNEL}:{chat}"), text.to_owned());
        let item = Item { to, text, answers: answers.to_vec(), ..Item::default() };
        match self.outbox.post(&item) {
            Ok(_) => {
                self.close(answers);
                drop(self.signals.send(Signal::Posted));
                true
            }
            // The answer is in the conversation, and the message stays open: it is answered again after a restart.
            Err(e) => {
                (self.log)(Level::Error, &format!("an answer could not be kept, and is sent without: {e}"));
                drop(self.signals.send(Signal::Unkept(item)));
                false
            }
        }
    }

    /// A message that is set aside if the program dies once more begins only when that has been up for a while: whoever kills
    /// it every other second, a supervisor or a battery that runs down, is no fault of the message. `false`: the program ends.
    fn wait_for_calm(&self, ids: &[String]) -> bool {
        let deaths = self.inbox.lock().unwrap_or_else(PoisonError::into_inner).deaths(ids);
        deaths + 1 < MOST_DEATHS || self.cancel.sleep(CALM.saturating_sub(self.since.elapsed())).is_ok()
    }

    /// What of these came by this channel is answered.
    fn close(&self, ids: &[String]) {
        let own: Vec<String> = ids.iter().filter(|id| is_own(id)).cloned().collect();
        if let Err(e) = self.inbox.lock().unwrap_or_else(PoisonError::into_inner).close(&own) {
            (self.log)(Level::Error, &format!("noting that a message was answered: {e}"));
        }
    }
}

/// Whether it is the name of a message that came by this channel: reports of background tasks are answered here, too.
fn is_own(id: &str) -> bool {
    id.starts_with(CHANNEL)
}

impl Ack for TelegramAck {
    fn is_ending(&self) -> bool {
        self.cancel.why().is_some()
    }

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
        drop(self.signals.send(Signal::Busy(origin.chat.clone())));
        if !self.wait_for_calm(ids) {
            return false;
        }
        let files = if ids.iter().any(|id| is_own(id)) {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            // They may have been edited since they came.
            let said = inbox.texts(ids);
            if !said.is_empty() {
                *text = said;
            }
            if let Err(e) = inbox.start(ids) {
                (self.log)(Level::Error, &format!("noting that a message is being answered: {e}"));
            }
            inbox.files(ids)
        } else {
            Vec::new()
        };
        let Self { api, hands, local_time, .. } = self;
        let stop = cancel.clone();
        let ends = self.cancel.on_stop(move || stop.stop());
        let place = incoming::Place { api, hands, local_time, cancel: &cancel.with_timeout(FETCHING) };
        // The name of a message is its own for ever.
        let name = ids.first().map(|id| id.replace(':', "-")).unwrap_or_default();
        for (n, file) in files.iter().enumerate() {
            place.bring(file, format!("{name}-{n}"), text, images);
            if cancel.why().is_some() {
                break;
            }
        }
        drop(ends);
        // When the program is ending, it is taken up at the next start. When somebody has stopped it, the turn says so.
        self.cancel.why().is_none()
    }

    fn end(&self, ids: &[String], origin: &Origin, response: &Response) -> bool {
        drop(self.signals.send(Signal::Idle(origin.chat.clone())));
        self.say(&origin.chat, &told(response), ids)
    }

    fn reply(&self, ids: &[String], origin: &Origin, text: &str) -> bool {
        if text.is_empty() {
            self.close(ids);
            return true;
        }
        self.say(&origin.chat, text, ids)
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
            // Its hint is for who sits at the program's terminal.
            let why = &error.message;
            if output.is_empty() { format!("⚠️ {why}") } else { format!("{output}\n\n⚠️ {why}") }
        }
    }
}
