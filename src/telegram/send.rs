//! Delivers the outbox: each chat that a message waits for has a thread, which sends its messages in order and ends.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::api::{Api, Failure, send_styled};
use super::{CHANNEL, back_off};
use crate::cancel::Cancel;
use crate::disk::Lock;
use crate::error::{Context, Kind, Result};
use crate::log::{Level, Sink};
use crate::markdown::{self, Piece};
use crate::outbox::{Item, Outbox, Pending};
use crate::paths::telegram_chat;
use crate::text::one_line;

/// The most UTF-16 units of a caption (Bot API, `sendDocument`).
const MAX_CAPTION: usize = 1024;
/// Failures in a row, two minutes of back-off, before a message is given up on which alone the server fails.
const MAX_FAILURES: u32 = 7;
/// How long another process may send before the log says that it blocks this one.
const OTHER_SENDER: Duration = Duration::from_secs(60);
/// Between two checks of whether something is sent.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct MessageSender {
    pub(super) api: Arc<Api>,
    pub(crate) outbox: Outbox,
    pub(crate) cancel: Cancel,
    pub(super) log: Sink,
    /// For one message, which is sent to its end when the program stops.
    pub(super) whole: Cancel,
    /// `None` until the gateway holds the sender's lock.
    active: Mutex<Option<ActiveChats>>,
    /// Cloned while a message, or one with a file, is sent.
    sending: Arc<()>,
    uploading: Arc<()>,
}

struct ActiveChats {
    _lock: Lock,
    /// The chats that have a thread.
    chats: BTreeSet<String>,
}

/// Begins the notice that a message was given up. Nothing is said when that one fails.
const NOTICE: &str = "⚠️ Delivery: ";

impl MessageSender {
    pub(crate) fn new(api: Arc<Api>, outbox: Outbox, cancel: Cancel, log: Sink) -> Arc<Self> {
        let (whole, active) = (Cancel::new(None), Mutex::default());
        Arc::new(Self {
            api,
            outbox,
            cancel,
            log,
            whole,
            active,
            sending: Arc::default(),
            uploading: Arc::default(),
        })
    }

    /// Delivers whenever it is woken, from when no other process does: one-shot commands deliver for moments.
    pub(super) fn start(self: &Arc<Self>) -> Result<()> {
        let own = self.clone();
        let work = move || {
            loop {
                match own.outbox.sender(OTHER_SENDER, &own.cancel) {
                    Ok(lock) => return own.begin(lock),
                    Err(_) if own.cancel.why().is_some() => return,
                    Err(e) => (own.log)(
                        Level::Warn,
                        &format!("waiting for another program that sends: {e}"),
                    ),
                }
            }
        };
        Builder::new()
            .spawn(work)
            .map(drop)
            .doing("starting a thread")
    }

    /// Delivers, or waits while another process does, until `is_done` or the cancel. What is being sent then is finished.
    pub(crate) fn deliver_until(self: &Arc<Self>, is_done: &dyn Fn() -> bool) -> Result<()> {
        while !is_done() && self.cancel.sleep(PAUSE).is_ok() {
            if self.active().is_none() {
                match self.outbox.sender(Duration::ZERO, &self.cancel) {
                    Ok(lock) => self.begin(lock),
                    Err(e) if matches!(e.kind, Kind::Busy | Kind::Interrupted) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        self.cancel.stop();
        self.wait(Duration::MAX);
        *self.active() = None;
        Ok(())
    }

    fn begin(self: &Arc<Self>, lock: Lock) {
        *self.active() = Some(ActiveChats {
            _lock: lock,
            chats: BTreeSet::new(),
        });
        self.wake();
    }

    fn active(&self) -> MutexGuard<'_, Option<ActiveChats>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers what has been posted.
    pub(crate) fn wake(self: &Arc<Self>) {
        let mut active = self.active();
        let Some(ActiveChats { chats, .. }) = active.as_mut() else {
            return;
        };
        for Pending { item, .. } in self.pending() {
            let chat = chat_of(&item).to_owned();
            if chats.contains(&chat) {
                continue;
            }
            let (own, to) = (self.clone(), chat.clone());
            let started = Builder::new().spawn(move || own.deliver_chat(&to));
            if self.is_ok("starting a thread", &started.map(drop).map_err(Into::into)) {
                chats.insert(chat);
            }
        }
    }

    /// Waits until no message is being sent, and up to `grace` for files, which may take an hour.
    pub(crate) fn wait(&self, grace: Duration) {
        let start = Instant::now();
        let is_uploading = || Arc::strong_count(&self.uploading) > 1 && start.elapsed() < grace;
        while Arc::strong_count(&self.sending) > 1 || is_uploading() {
            thread::sleep(PAUSE);
        }
    }

    /// Logs an error.
    pub(super) fn is_ok<T>(&self, doing: &str, result: &Result<T>) -> bool {
        if let Err(e) = result {
            (self.log)(Level::Error, &format!("{doing}: {e}"));
        }
        result.is_ok()
    }

    /// The messages that wait, the oldest first.
    fn pending(&self) -> Vec<Pending> {
        self.outbox.pending().unwrap_or_else(|e| {
            self.is_ok::<()>("the outbox", &Err(e));
            Vec::new()
        })
    }

    /// The next message to a chat. Without one its thread ends.
    fn next(&self, chat: &str) -> Option<Pending> {
        let mut active = self.active();
        let next = self
            .pending()
            .into_iter()
            .find(|pending| chat_of(&pending.item) == chat);
        if let (Some(active), None) = (active.as_mut(), &next) {
            active.chats.remove(chat);
        }
        next
    }

    /// Delivers the messages to a chat until none is left or the program stops.
    fn deliver_chat(self: &Arc<Self>, chat: &str) {
        let mut failures = 0;
        while let Some(pending) = self.next(chat) {
            let guard = if pending.item.file.is_empty() {
                &self.sending
            } else {
                &self.uploading
            }
            .clone();
            if self.cancel.why().is_some() {
                return;
            }
            let result = self.send(&pending);
            let wait = self.settle(&pending, result, &mut failures);
            drop(guard);
            if self.cancel.sleep(wait).is_err() {
                return;
            }
        }
    }

    /// Acts on the result of sending one message, after so many failures in a row. Returns how long to wait before the next try.
    fn settle(
        self: &Arc<Self>,
        pending: &Pending,
        result: Result<(), Failure>,
        failures: &mut u32,
    ) -> Duration {
        let Pending { id, item, .. } = pending;
        let Err(failure) = result else {
            self.record(|| self.outbox.done(id));
            *failures = 0;
            return Duration::ZERO;
        };
        match &failure {
            Failure::TooMany(time) => return *time,
            Failure::Migrated(new) => {
                let topic = chat_of(item)
                    .split_once('_')
                    .map_or(String::new(), |(_, topic)| format!("_{topic}"));
                self.record(|| {
                    self.outbox
                        .redirect(pending, format!("{CHANNEL}:{new}{topic}"))
                });
                self.wake();
            }
            Failure::Failing(_) | Failure::Unauthorized(_) | Failure::Stopped
                if *failures < MAX_FAILURES || !self.server_works() =>
            {
                (self.log)(
                    Level::Warn,
                    &format!("sending to {}, will retry: {}", item.to, failure.text()),
                );
                *failures += 1;
                return back_off(*failures - 1);
            }
            _ => {
                self.give_up(id, item, &failure);
                *failures = 0;
            }
        }
        Duration::ZERO
    }

    /// Whether the server answers at all: if so, a failure that lasts is of the message.
    fn server_works(&self) -> bool {
        self.api
            .call("getMe", &json!({}), Duration::ZERO, &self.whole)
            .is_ok()
    }

    /// Records in the outbox. Tries until that succeeds, or the message would be sent again.
    fn record(&self, write: impl Fn() -> Result<()>) {
        for failures in 0.. {
            if self.is_ok("the outbox", &write()) || self.cancel.sleep(back_off(failures)).is_err()
            {
                return;
            }
        }
    }

    /// Gives up a message that will never be accepted, or may have arrived, and says so in its chat.
    fn give_up(&self, id: &str, item: &Item, failure: &Failure) {
        let why = match failure {
            Failure::Lost(why) => {
                format!("may not have arrived: Telegram did not confirm it ({why})")
            }
            failure => format!("could not be sent: {}", failure.text()),
        };
        (self.log)(Level::Error, &format!("a message to {} {why}", item.to));
        let is_about_chat =
            matches!(failure, Failure::Refused(403, _)) || why.contains("chat not found");
        if !is_about_chat && !item.text.starts_with(NOTICE) {
            let what = match item.name.as_str() {
                "" => "a message".to_owned(),
                name => format!("the file `{}`", one_line(name, 80).replace('`', "")),
            };
            let text = format!("{NOTICE}{what} {}", one_line(&why, 200));
            let posted = self.outbox.post(&Item::text(&item.to, &text), &[]);
            self.is_ok("the outbox", &posted);
        }
        self.record(|| self.outbox.give_up(id, &why));
    }

    /// Sends the rest of a message piece by piece, its file last.
    pub(super) fn send(&self, pending: &Pending) -> Result<(), Failure> {
        let item = &pending.item;
        let chat = chat_of(item);
        if chat.is_empty() {
            return Err(Failure::Refused(403, "invalid destination".to_owned()));
        }
        let (mut pieces, has_file) = (markdown::pieces(&item.text), !item.file.is_empty());
        if pieces.is_empty() && !has_file {
            pieces = markdown::pieces("(The answer shows nothing.)");
        }
        let fits_caption = |piece: &Piece| piece.plain.encode_utf16().count() <= MAX_CAPTION;
        let is_caption = has_file && pieces.len() == 1 && fits_caption(&pieces[0]);
        let caption = if is_caption { pieces.pop() } else { None };
        for (n, piece) in pieces.iter().enumerate().skip(pending.pieces) {
            send_styled("text", Some(piece), chat_params(chat), &|mut params| {
                params["link_preview_options"] = json!({"is_disabled": true});
                self.api
                    .call("sendMessage", &params, Duration::ZERO, &self.whole)
            })?;
            if n + 1 < pieces.len() || has_file {
                self.is_ok("the outbox", &self.outbox.progress(&pending.id, n + 1));
            }
        }
        if has_file {
            self.upload(item, caption.as_ref(), &chat_params(chat))
        } else {
            Ok(())
        }
    }
}

/// The chat of a message; empty if somebody has edited the outbox.
fn chat_of(item: &Item) -> &str {
    telegram_chat(&item.to).unwrap_or_default()
}

/// A chat, or a topic in it, as parameters.
pub(super) fn chat_params(chat: &str) -> Value {
    let (id, topic) = chat.split_once('_').unwrap_or((chat, ""));
    let mut params = json!({"chat_id": id.parse::<i64>().unwrap_or_default()});
    if let Ok(topic) = topic.parse::<i64>() {
        params["message_thread_id"] = topic.into();
    }
    params
}
