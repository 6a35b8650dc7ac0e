//! Delivers the outbox on one thread, and files on another: one piece of a message at a time. A failed delivery never blocks
//! other chats.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::Duration;

use serde_json::{Value, json};

use super::api::{Api, Failure};
use super::ask::{record_failure, record_message};
use super::update::GENERAL;
use super::{CHANNEL, MAX_BACK_OFF, back_off, tries};
use crate::cancel::Cancel;
use crate::error::{Context, Kind, Result};
use crate::log::{Level, Logger};
use crate::markdown::{self, Piece};
use crate::outbox::{Button, Item, Outbox, Pending, Tried};
use crate::paths::telegram_chat;
use crate::storage::Lock;
use crate::storage::queue::MAX_STARTS;
use crate::sync;
use crate::text::{clip, to_single_line};

/// Maximum length of a caption, in UTF-16 units (Bot API, `sendDocument`).
const MAX_CAPTION: usize = 1024;
/// Maximum number of messages for one text. A longer text is sent as a file, after its beginning of up to so many bytes.
const MAX_PIECES: usize = 20;
const BEGINNING: usize = 3000;
/// Maximum number of consecutive failures, about two minutes, of a message while the server accepts other calls.
const MAX_FAILURES: u32 = 7;
/// Minimum size of a text that is divided because the server finds it too long, in bytes.
const MIN_DIVIDED: usize = 500;
/// Time for which another process may send before the log reports that it blocks this process.
const OTHER_SENDER: Duration = Duration::from_secs(60);
/// Lock of the process that delivers, so that no other sends messages twice.
const LOCK: &str = "sender";
/// Interval between checks whether another process has stopped sending.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct MessageSender {
    pub(super) api: Arc<Api>,
    pub(crate) outbox: Outbox,
    pub(crate) cancel: Cancel,
    pub(super) log: Logger,
    /// User who is asked to confirm calls, and is notified of unreachable chats.
    pub(crate) owner: Option<i64>,
    /// Cancel for single messages, which are sent completely when the program stops.
    pub(super) whole: Cancel,
    /// Unreachable chats that the owner was notified of.
    refusing: Mutex<BTreeSet<String>>,
}

/// Prefix of a notice about a failed message. A failed notice is not reported.
const NOTICE: &str = "⚠️ Delivery: ";

impl MessageSender {
    pub(crate) fn new(
        api: Arc<Api>,
        outbox: Outbox,
        cancel: Cancel,
        log: Logger,
        owner: Option<i64>,
    ) -> Arc<Self> {
        Arc::new(Self {
            api,
            outbox,
            cancel,
            log,
            owner,
            whole: Cancel::new(None),
            refusing: Mutex::default(),
        })
    }

    /// Delivers on a thread, as soon as no other process does. One-shot commands only deliver briefly.
    pub(super) fn start(self: &Arc<Self>) -> Result<()> {
        let (own, lock) = (self.clone(), self.outbox.home.lock(LOCK));
        let work = move || {
            loop {
                match Lock::acquire(&lock, OTHER_SENDER) {
                    Ok(_lock) => return own.deliver(&|| false),
                    Err(_) if own.cancel.reason().is_some() => return,
                    Err(e) => (own.log)(
                        Level::Warn,
                        &format!("waiting for another program that is sending: {e}"),
                    ),
                }
            }
        };
        Builder::new()
            .spawn(work)
            .map(drop)
            .doing("starting a thread")
    }

    /// Delivers, or waits while another process does, until `is_done` or the cancel. Completes a send in progress.
    pub(crate) fn deliver_until(self: &Arc<Self>, is_done: &dyn Fn() -> bool) -> Result<()> {
        while !is_done() && self.cancel.sleep(PAUSE).is_ok() {
            match Lock::acquire(&self.outbox.home.lock(LOCK), Duration::ZERO) {
                Ok(_lock) => self.deliver(is_done),
                Err(e) if e.kind == Kind::Busy => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Delivers until `is_done` or the program stops, and completes what is being sent.
    fn deliver(self: &Arc<Self>, is_done: &dyn Fn() -> bool) {
        let own = self.clone();
        let _hook = self.cancel.on_stop(move || {
            own.is_ok("the outbox", &own.outbox.stop());
        });
        while self.cancel.reason().is_none() && !is_done() {
            let most = || (!is_done()).then(|| self.cancel.remaining(Duration::MAX));
            match self.outbox.next(CHANNEL, most) {
                Ok(Some(pending)) if pending.item.file.is_empty() => self.try_to_send(&pending),
                Ok(Some(pending)) => self.upload_apart(&pending),
                Ok(None) => {}
                Err(e) => {
                    self.is_ok::<()>("the outbox", &Err(e));
                    let _ended = self.cancel.sleep(MAX_BACK_OFF);
                }
            }
        }
        self.cancel.stop();
        self.outbox.wait(Duration::MAX);
    }

    /// Logs an error. Returns whether the result is a success.
    pub(super) fn is_ok<T>(&self, doing: &str, result: &Result<T>) -> bool {
        if let Err(e) = result {
            (self.log)(Level::Error, &format!("{doing}: {e}"));
        }
        result.is_ok()
    }

    /// Posts a message of its own.
    pub(super) fn post(&self, item: &Item) {
        let posted = self.outbox.post(item, &[], None);
        self.is_ok("keeping an answer", &posted);
    }

    /// Sends an answer that a full disk refused, until Telegram accepts or refuses it or the program stops, and then records
    /// that its messages are answered.
    pub(crate) fn send_unrecorded(&self, item: Item, ends: &[String]) {
        let unsent = |item| Pending {
            item,
            ..Pending::default()
        };
        let (mut pending, mut tries) = (unsent(item), tries(u32::MAX));
        loop {
            let failure = match self.send(&pending) {
                Ok(Tried::Pieces(sent)) => {
                    pending.pieces = sent;
                    continue;
                }
                Ok(_) => break,
                Err(failure) => failure,
            };
            let Item { to, text, .. } = &pending.item;
            let why = what_happened(&failure);
            (self.log)(Level::Error, &format!("a message to {to} {why}"));
            let wait = match &failure {
                Failure::Migrated(_) | Failure::Refused(..) => break,
                Failure::TooMany(time) => tries.wait(Some(*time)),
                _ => tries.wait(None),
            };
            if matches!(failure, Failure::Lost(_)) && !text.starts_with(NOTICE) {
                pending = unsent(notice(&pending.item, &failure));
            }
            if self.cancel.sleep(wait.unwrap_or(MAX_BACK_OFF)).is_err() {
                return;
            }
        }
        self.record(|| self.outbox.inbox.queue.done(ends));
    }

    /// Sends a message with a file on a separate thread.
    fn upload_apart(self: &Arc<Self>, pending: &Pending) {
        let (own, uploaded) = (self.clone(), pending.clone());
        let work = move || own.try_to_send(&uploaded);
        if let Err(e) = Builder::new().spawn(work) {
            self.is_ok::<()>("starting a thread", &Err(e.into()));
            let result = Tried::PutOff {
                time: MAX_BACK_OFF,
                failures: 0,
            };
            self.record(|| self.outbox.tried(pending, &result));
        }
    }

    /// Sends the next piece of a message, and records the result.
    fn try_to_send(&self, pending: &Pending) {
        let sent = if pending.starts >= MAX_STARTS {
            let why = "sending it crashed bantam three times";
            Err(Failure::Refused(0, why.to_owned()))
        } else if needs_file(pending) {
            let sent = self.send_as_file(pending);
            if self.is_ok("writing a long answer to a file", &sent) {
                return;
            }
            self.send(pending)
        } else {
            self.send(pending)
        };
        let tried = sent.unwrap_or_else(|failure| self.settle(pending, &failure));
        self.record(|| self.outbox.tried(pending, &tried));
    }

    /// Replaces a message by its beginning and a file.
    fn send_as_file(&self, pending: &Pending) -> Result<()> {
        let text = &pending.item.text;
        let (mut file, name) = self.outbox.new_file()?;
        file.push(text.as_bytes())?;
        file.keep()?;
        let beginning = clip(text, BEGINNING);
        let item = Item {
            text: format!(
                "📄 The whole answer is in the file answer.md. It begins:\n\n{beginning}…"
            ),
            file: name,
            name: "answer.md".to_owned(),
            ..pending.item.clone()
        };
        self.outbox.tried(pending, &Tried::Replaced(item))
    }

    /// Handles a failure of a message.
    fn settle(
        &self,
        Pending {
            item,
            failures,
            pieces,
            ..
        }: &Pending,
        failure: &Failure,
    ) -> Tried {
        let chat = chat_of(item);
        let retry = |time, failures| {
            let why = failure.text();
            (self.log)(
                Level::Warn,
                &format!("sending to {}, will retry: {why}", item.to),
            );
            Tried::PutOff { time, failures }
        };
        match failure {
            Failure::TooMany(time) => retry(*time, *failures),
            Failure::Migrated(new) => {
                let topic = chat.find('_').map_or("", |at| &chat[at..]);
                let mut item = item.clone();
                item.to = format!("{CHANNEL}:{new}{topic}");
                Tried::Replaced(item)
            }
            // The topic no longer exists, so the message goes to its group.
            Failure::Refused(400, why) if has_no_topic(why) && chat.contains('_') => {
                let (group, topic) = chat.split_once('_').unwrap_or_default();
                let mut item = item.clone();
                item.to = format!("{CHANNEL}:{group}");
                if *pieces == 0 {
                    item.text = format!("(for the topic {topic})\n\n{}", item.text);
                }
                Tried::Replaced(item)
            }
            // A duplicate notice of a possible loss is better than no notice.
            Failure::Lost(_) if !item.text.starts_with(NOTICE) => self.give_up(item, failure),
            Failure::Refused(..) => self.give_up(item, failure),
            _ if *failures < MAX_FAILURES || !self.server_works() => {
                retry(back_off(*failures), failures + 1)
            }
            _ => self.give_up(item, failure),
        }
    }

    /// Whether the server answers; if it does, the cause of a lasting failure is the message.
    fn server_works(&self) -> bool {
        self.api
            .call("getMe", &json!({}), Duration::ZERO, &self.whole)
            .is_ok()
    }

    /// Records in the outbox, with retries, because an unrecorded message would be sent again.
    fn record(&self, write: impl Fn() -> Result<()>) {
        for failures in 0.. {
            if self.is_ok("the outbox", &write()) || self.cancel.sleep(back_off(failures)).is_err()
            {
                return;
            }
        }
    }

    /// Drops a message that is rejected permanently or may have arrived, and reports this in its chat, or to the owner if the
    /// chat takes nothing.
    fn give_up(&self, item: &Item, failure: &Failure) -> Tried {
        if item.edits.is_some() {
            // The edited message may be deleted, or have this text already.
            return Tried::Sent;
        }
        if !item.question.is_empty() && !matches!(failure, Failure::Lost(_)) {
            self.record(|| record_failure(&self.outbox.inbox, &item.question));
        }
        let why = what_happened(failure);
        (self.log)(Level::Error, &format!("a message to {} {why}", item.to));
        // A chat that takes not even the notice may have rules of its own.
        if failure.is_about_chat() || item.text.starts_with(NOTICE) {
            self.tell_owner_of_refusal(chat_of(item), &why);
        } else {
            self.post(&notice(item, failure));
        }
        Tried::Refused(why)
    }

    /// Notifies the owner, once per chat, that a chat is unreachable.
    fn tell_owner_of_refusal(&self, chat: &str, why: &str) {
        let Some(owner) = self.owner.map(|owner| owner.to_string()) else {
            return;
        };
        if chat != owner && sync::lock(&self.refusing).insert(chat.to_owned()) {
            let text = format!("{NOTICE}a message to {chat} {}", to_single_line(why, 200));
            self.post(&Item::text(&format!("{CHANNEL}:{owner}"), &text));
        }
    }

    /// Sends the next piece of a message, or its file after the last.
    fn send(
        &self,
        Pending {
            item, pieces: sent, ..
        }: &Pending,
    ) -> Result<Tried, Failure> {
        if chat_of(item).is_empty() {
            return Err(Failure::Refused(403, "invalid destination".to_owned()));
        }
        let mut pieces = markdown::pieces(&item.text);
        let has_file = !item.file.is_empty();
        if pieces.is_empty() && !has_file {
            pieces = markdown::pieces("(empty answer)");
        }
        if item.edits.is_some() {
            // Only the last piece has changed.
            pieces.drain(..pieces.len() - 1);
        }
        let is_caption = has_file && *sent == 0 && pieces.len() == 1 && fits_caption(&pieces[0]);
        if is_caption {
            let caption = Some(pieces[0].html.as_str());
            match self.upload(item, caption, chat_params(chat_of(item))) {
                // The text goes first, without limits of a caption.
                Err(Failure::Refused(400, why)) => {
                    (self.log)(Level::Info, &format!("sending a caption as text: {why}"));
                }
                result => return result.map(|()| Tried::Sent),
            }
        }
        let Some(piece) = pieces.get(*sent) else {
            let params = chat_params(chat_of(item));
            return self.upload(item, None, params).map(|()| Tried::Sent);
        };
        let is_last = sent + 1 == pieces.len();
        let message = self.send_piece(item, piece, is_last)?;
        if !is_last || has_file {
            return Ok(Tried::Pieces(sent + 1));
        }
        if !item.question.is_empty() {
            let message = message["message_id"].as_i64().unwrap_or_default();
            let recorded = record_message(&self.outbox.inbox, &item.question, message);
            self.is_ok("the outbox", &recorded);
        }
        Ok(Tried::Sent)
    }

    /// Sends a piece, without its styles if the server refuses them.
    fn send_piece(&self, item: &Item, piece: &Piece, is_last: bool) -> Result<Value, Failure> {
        let (mut edits, mut parts) = (item.edits, VecDeque::from([piece.plain.clone()]));
        let mut send = |text: &str, mode: &str, has_buttons: bool| {
            let mut params = chat_params(chat_of(item));
            params["text"] = text.into();
            params["link_preview_options"] = json!({"is_disabled": true});
            if !mode.is_empty() {
                params["parse_mode"] = mode.into();
            }
            if has_buttons && !item.buttons.is_empty() {
                params["reply_markup"] = keyboard(&item.buttons);
            }
            let method = match edits {
                None => "sendMessage",
                Some(id) => {
                    params["message_id"] = id.into();
                    "editMessageText"
                }
            };
            let sent = self
                .api
                .call(method, &params, Duration::ZERO, &self.whole)?;
            edits = None;
            Ok(sent)
        };
        let mut result = send(&piece.html, "HTML", is_last);
        if !result.as_ref().is_err_and(Failure::is_about_text) {
            return result;
        }
        // After a failure of one part, all are sent again.
        while let Some(part) = parts.pop_front() {
            result = send(&part, "", is_last && parts.is_empty());
            match &result {
                Err(Failure::Refused(400, why)) if is_too_long(why) && part.len() > MIN_DIVIDED => {
                    let half = clip(&part, part.len() / 2);
                    // Lines stay whole if possible, words and addresses anyway.
                    let space = half.rfind('\n').or(half.rfind(char::is_whitespace));
                    let space = space.filter(|at| *at > 0);
                    let (first, second) = part.split_at(space.unwrap_or(half.len()));
                    parts.push_front(second.to_owned());
                    parts.push_front(first.to_owned());
                }
                Err(_) => break,
                Ok(_) => {}
            }
        }
        result
    }
}

/// Whether a text is sent as a file, because it would be too many messages.
fn needs_file(Pending { item, pieces, .. }: &Pending) -> bool {
    let is_text =
        *pieces == 0 && item.file.is_empty() && item.buttons.is_empty() && item.edits.is_none();
    is_text && markdown::pieces(&item.text).len() > MAX_PIECES
}

/// Whether a refusal such as `MESSAGE_TOO_LONG` is about the length of a text.
fn is_too_long(why: &str) -> bool {
    why.to_lowercase().replace('_', " ").contains("too long")
}

/// Whether a text fits in a caption, also without its styles.
fn fits_caption(piece: &Piece) -> bool {
    piece.plain.encode_utf16().count() <= MAX_CAPTION
}

/// Describes the failure of a message.
fn what_happened(failure: &Failure) -> String {
    match failure {
        Failure::Lost(why) => format!("may not have arrived: Telegram did not confirm it ({why})"),
        failure => format!("could not be sent: {}", failure.text()),
    }
}

/// Returns the notice for the chat of a message that failed.
fn notice(item: &Item, failure: &Failure) -> Item {
    let what = match item.name.as_str() {
        "" => "a message".to_owned(),
        name => format!("the file `{}`", to_single_line(name, 80).replace('`', "")),
    };
    let why = to_single_line(&what_happened(failure), 200);
    Item::text(&item.to, &format!("{NOTICE}{what} {why}"))
}

/// Whether a group rejects a message because its topic is closed or deleted.
fn has_no_topic(why: &str) -> bool {
    let refusals = ["message thread not found", "TOPIC_CLOSED", "TOPIC_DELETED"];
    refusals.iter().any(|refusal| why.contains(refusal))
}

/// Serializes rows of buttons as a parameter.
fn keyboard(rows: &[Vec<Button>]) -> Value {
    let button = |button: &Button| json!({"text": button.text, "callback_data": button.data});
    let row = |row: &Vec<Button>| -> Vec<Value> { row.iter().map(button).collect() };
    json!({"inline_keyboard": rows.iter().map(row).collect::<Vec<_>>()})
}

/// Returns the chat of a message; empty if the outbox was edited to be invalid.
fn chat_of(item: &Item) -> &str {
    telegram_chat(&item.to).unwrap_or_default()
}

/// Converts a chat, or a topic of a chat, to parameters.
pub(super) fn chat_params(chat: &str) -> Value {
    let (id, topic) = chat.split_once('_').unwrap_or((chat, ""));
    let mut params = json!({"chat_id": id.parse::<i64>().unwrap_or_default()});
    if let Some(topic) = topic.parse::<i64>().ok().filter(|topic| *topic != GENERAL) {
        params["message_thread_id"] = topic.into();
    }
    params
}
