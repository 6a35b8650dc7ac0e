//! Delivers the outbox on one thread: the oldest message of each chat when it is due. A failed delivery never blocks other
//! chats.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::Builder;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::api::{Api, Failure, send_styled};
use super::ask::Questions;
use super::update::GENERAL;
use super::{CHANNEL, MAX_BACK_OFF, back_off, tries};
use crate::cancel::Cancel;
use crate::error::{Context, Kind, Result};
use crate::log::{Level, Logger};
use crate::markdown::{self, Piece};
use crate::outbox::{Button, Item, Note, Outbox, Pending};
use crate::paths::telegram_chat;
use crate::storage::Lock;
use crate::storage::queue::{CALM, MAX_STARTS};
use crate::sync;
use crate::text::to_single_line;
use crate::tries::Tries;

/// Maximum length of a caption, in UTF-16 units (Bot API, `sendDocument`).
const MAX_CAPTION: usize = 1024;
/// Maximum number of consecutive failures, about two minutes, of a message while the server accepts other calls.
const MAX_FAILURES: u32 = 7;
/// Time for which another process may send before the log reports that it blocks this process.
const OTHER_SENDER: Duration = Duration::from_secs(60);
/// Interval between checks for sent messages.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct MessageSender {
    pub(super) api: Arc<Api>,
    pub(crate) outbox: Outbox,
    pub(crate) cancel: Cancel,
    pub(super) log: Logger,
    /// User who is asked to confirm calls, and is notified of unreachable chats.
    pub(crate) owner: Option<i64>,
    pub(super) questions: Arc<Questions>,
    /// Cancel for single messages, which are sent completely when the program stops.
    pub(super) whole: Cancel,
    created: Instant,
    state: Mutex<SenderState>,
    changed: Condvar,
}

#[derive(Default)]
struct SenderState {
    /// Held while this process delivers.
    lock: Option<Lock>,
    /// Whether a message may have been posted.
    is_woken: bool,
    is_sending: bool,
    /// Chat of the current file upload. An upload may take minutes, so it has a separate thread, one file at a time.
    uploading: Option<String>,
    chats: BTreeMap<String, ChatState>,
    /// Messages that were tried. A message that this process survived once is not the cause of its crashes.
    tried: BTreeSet<String>,
    /// Ids of messages whose counted start has not ended.
    under_way: BTreeSet<String>,
    /// Unreachable chats that the owner was notified of.
    refusing: BTreeSet<String>,
}

/// Delivery state of a chat.
struct ChatState {
    /// Earliest time of the next try.
    not_before: Instant,
    /// Tries of the next message after failures, and after demands to wait, which are no failures.
    failing: Tries,
    flooded: Tries,
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
            questions: Arc::new(Questions::new(outbox.queue().clone())),
            outbox,
            cancel,
            log,
            owner,
            whole: Cancel::new(None),
            created: Instant::now(),
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Delivers whenever it is woken, as soon as no other process delivers. One-shot commands only deliver briefly.
    pub(super) fn start(self: &Arc<Self>) -> Result<()> {
        let own = self.clone();
        let work = move || {
            loop {
                match own.outbox.sender(OTHER_SENDER) {
                    Ok(lock) => {
                        own.state().lock = Some(lock);
                        return own.deliver();
                    }
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
            if self.state().lock.is_some() {
                continue;
            }
            match self.outbox.sender(Duration::ZERO) {
                Ok(lock) => {
                    let mut state = self.state();
                    state.lock = Some(lock);
                    // The thread has no message yet, but is about to send.
                    state.is_sending = true;
                    drop(state);
                    let own = self.clone();
                    Builder::new()
                        .spawn(move || own.deliver())
                        .doing("starting a thread")?;
                }
                Err(e) if e.kind == Kind::Busy => {}
                Err(e) => return Err(e),
            }
        }
        self.cancel.stop();
        self.wait(Duration::MAX);
        self.state().lock = None;
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, SenderState> {
        sync::lock(&self.state)
    }

    /// Wakes the thread to deliver new messages.
    pub(crate) fn wake(&self) {
        self.state().is_woken = true;
        self.changed.notify_all();
    }

    /// Waits until all messages are sent, and up to `grace` for a file, whose upload may take an hour.
    pub(crate) fn wait(&self, grace: Duration) {
        let state = self.state();
        let is_sending = |state: &mut SenderState| state.is_sending;
        let state = sync::wait_while(&self.changed, state, is_sending);
        let is_uploading = |state: &mut SenderState| state.uploading.is_some();
        drop(self.changed.wait_timeout_while(state, grace, is_uploading));
    }

    /// Logs an error. Returns whether the result is a success.
    pub(super) fn is_ok<T>(&self, doing: &str, result: &Result<T>) -> bool {
        if let Err(e) = result {
            (self.log)(Level::Error, &format!("{doing}: {e}"));
        }
        result.is_ok()
    }

    /// Posts a message. `ends` are the items of the queue that it answers. Returns whether this is on disk.
    pub(crate) fn post(&self, item: &Item, ends: &[String], note: Option<&Note>) -> bool {
        let posted = self.outbox.post(item, ends, note);
        self.wake();
        self.is_ok("keeping an answer", &posted)
    }

    /// Sends an answer that a full disk refused, until Telegram accepts or refuses it or the program stops, and then records
    /// that its messages are answered.
    pub(crate) fn send_unrecorded(&self, item: Item, ends: &[String]) {
        let unsent = |item| Pending {
            item,
            ..Pending::default()
        };
        let (mut pending, mut tries) = (unsent(item), tries(u32::MAX));
        while let Err(failure) = self.send(&mut pending) {
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
        self.record(|| self.outbox.queue().done(ends));
    }

    /// Returns the waiting messages, oldest first.
    fn pending(&self) -> Vec<Pending> {
        self.outbox.pending().unwrap_or_else(|e| {
            self.is_ok::<()>("the outbox", &Err(e));
            Vec::new()
        })
    }

    /// Delivers until the program stops: the oldest message of each chat when it is due.
    fn deliver(self: &Arc<Self>) {
        let own = self.clone();
        let _hook = self.cancel.on_stop(move || {
            // A planned stop does not count as a crash during a send.
            let under_way = std::mem::take(&mut own.state().under_way);
            let ids: Vec<String> = under_way.into_iter().collect();
            if !ids.is_empty() {
                own.is_ok("the outbox", &own.outbox.queue().halt(&ids));
            }
            own.wake();
        });
        while self.cancel.reason().is_none() {
            self.state().is_woken = false;
            match self.next(&self.pending()) {
                Next::Send(pending) => self.try_to_send(pending),
                Next::Upload(pending) => self.upload_apart(pending),
                Next::Wait(until) => self.sleep(until),
            }
        }
        self.state().is_sending = false;
        self.changed.notify_all();
    }

    /// Returns the next step, or the time of the next try. Sets `is_sending` under the lock that [`MessageSender::wait`] uses.
    fn next(&self, pending: &[Pending]) -> Next {
        let mut state = self.state();
        let now = Instant::now();
        let (mut seen, mut until) = (BTreeSet::new(), None::<Instant>);
        state.is_sending = false;
        if self.cancel.reason().is_some() {
            self.changed.notify_all();
            return Next::Wait(None);
        }
        for pending in pending {
            let chat = chat_of(&pending.item);
            let is_file = !pending.item.file.is_empty();
            let is_first = seen.insert(chat);
            if !is_first
                || state.uploading.as_deref() == Some(chat)
                || (is_file && state.uploading.is_some())
            {
                continue;
            }
            let mut not_before = state.chats.get(chat).map_or(now, |chat| chat.not_before);
            // The last try of a message during which the program has crashed twice.
            if pending.starts + 1 == MAX_STARTS && !state.tried.contains(&pending.id) {
                not_before = not_before.max(self.created + CALM);
            }
            if not_before > now {
                until = Some(until.map_or(not_before, |until| until.min(not_before)));
                continue;
            }
            if is_file {
                state.uploading = Some(chat.to_owned());
                return Next::Upload(pending.clone());
            }
            state.is_sending = true;
            return Next::Send(pending.clone());
        }
        self.changed.notify_all();
        Next::Wait(until)
    }

    /// Waits until a message is posted, the program stops, or this time.
    fn sleep(&self, until: Option<Instant>) {
        let state = self.state();
        let is_asleep = |state: &mut SenderState| !state.is_woken && self.cancel.reason().is_none();
        if let Some(until) = until {
            let left = until.saturating_duration_since(Instant::now());
            drop(self.changed.wait_timeout_while(state, left, is_asleep));
        } else {
            drop(self.changed.wait_while(state, is_asleep));
        }
    }

    /// Sends a message with a file on a separate thread.
    fn upload_apart(self: &Arc<Self>, pending: Pending) {
        let own = self.clone();
        let work = move || {
            own.try_to_send(pending);
            own.state().uploading = None;
            own.wake();
        };
        if let Err(e) = Builder::new().spawn(work) {
            self.is_ok::<()>("starting a thread", &Err(e.into()));
            self.state().uploading = None;
            let _ended = self.cancel.sleep(back_off(0));
        }
    }

    /// Sends one message and records the result.
    fn try_to_send(&self, mut pending: Pending) {
        let id = [pending.id.clone()];
        let is_first = {
            let mut state = self.state();
            if self.cancel.reason().is_some() {
                return;
            }
            let is_first = state.tried.insert(pending.id.clone());
            if is_first {
                state.under_way.insert(pending.id.clone());
            }
            is_first
        };
        let result = if is_first && pending.starts >= MAX_STARTS {
            let why = "it has crashed this program three times";
            Err(Failure::Refused(0, why.to_owned()))
        } else {
            if is_first {
                self.is_ok("the outbox", &self.outbox.queue().start_later(&id));
            }
            self.send(&mut pending)
        };
        let is_counted = self.state().under_way.remove(&pending.id);
        if is_counted && result.is_err() {
            self.is_ok("the outbox", &self.outbox.queue().halt(&id));
        }
        let chat = chat_of(&pending.item);
        let known = self.state().chats.remove(chat);
        let mut now = known.unwrap_or_else(|| ChatState {
            not_before: Instant::now(),
            failing: tries(u32::MAX),
            flooded: tries(u32::MAX),
        });
        let wait = self.settle(&pending, result, &mut now);
        let mut state = self.state();
        if wait.is_zero() {
            state.tried.remove(&pending.id);
        } else {
            now.not_before = Instant::now() + wait;
            state.chats.insert(chat.to_owned(), now);
        }
    }

    /// Handles the result of sending one message. Returns the pause of its chat.
    fn settle(
        &self,
        pending: &Pending,
        result: Result<(), Failure>,
        chat: &mut ChatState,
    ) -> Duration {
        let Pending { id, item, .. } = pending;
        let Err(mut failure) = result else {
            self.is_done(id);
            return Duration::ZERO;
        };
        // A duplicate notice of a possible loss is better than no notice.
        if item.text.starts_with(NOTICE) && matches!(failure, Failure::Lost(_)) {
            failure = Failure::Failing(failure.text());
        }
        let retry = || {
            (self.log)(
                Level::Warn,
                &format!("sending to {}, will retry: {}", item.to, failure.text()),
            );
        };
        match &failure {
            Failure::TooMany(time) => {
                retry();
                return chat.flooded.wait(Some(*time)).unwrap_or(*time);
            }
            Failure::Migrated(new) => {
                let topic = chat_of(item)
                    .split_once('_')
                    .map_or(String::new(), |(_, topic)| format!("_{topic}"));
                let to = format!("{CHANNEL}:{new}{topic}");
                let item = item.clone();
                let item = Item { to, ..item };
                self.record(|| self.outbox.replace(id, &item));
            }
            // The topic no longer exists, so the message goes to its group.
            Failure::Refused(400, why) if has_no_topic(why) && chat_of(item).contains('_') => {
                let (group, topic) = chat_of(item).split_once('_').unwrap_or_default();
                let mut item = item.clone();
                item.to = format!("{CHANNEL}:{group}");
                if pending.pieces == 0 {
                    item.text = format!("(for the topic {topic})\n\n{}", item.text);
                }
                self.record(|| self.outbox.replace(id, &item));
            }
            Failure::Failing(_) | Failure::Unauthorized(_) | Failure::Stopped
                if chat.failing.made() < MAX_FAILURES || !self.server_works() =>
            {
                retry();
                return chat.failing.wait(None).unwrap_or(MAX_BACK_OFF);
            }
            _ => self.give_up(id, item, &failure),
        }
        Duration::ZERO
    }

    /// Whether the server answers; if it does, the cause of a lasting failure is the message.
    fn server_works(&self) -> bool {
        self.api
            .call("getMe", &json!({}), Duration::ZERO, &self.whole)
            .is_ok()
    }

    fn is_done(&self, id: &str) {
        self.record(|| self.outbox.done(id));
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

    /// Drops a message that is rejected permanently or may have arrived, and reports this in its chat.
    fn give_up(&self, id: &str, item: &Item, failure: &Failure) {
        if item.edits != 0 {
            // The edited message may be deleted, or have this text already.
            return self.is_done(id);
        }
        if !item.question.is_empty() && !matches!(failure, Failure::Lost(_)) {
            self.record(|| self.questions.fails(&item.question));
        }
        let why = what_happened(failure);
        (self.log)(Level::Error, &format!("a message to {} {why}", item.to));
        let is_about_chat =
            matches!(failure, Failure::Refused(403, _)) || why.contains("chat not found");
        if is_about_chat {
            self.tell_owner_of_refusal(chat_of(item), &why);
        } else if !item.text.starts_with(NOTICE) {
            self.post(&notice(item, failure), &[], None);
        }
        self.record(|| self.outbox.give_up(id, &why));
    }

    /// Notifies the owner, once per chat, that a chat is unreachable.
    fn tell_owner_of_refusal(&self, chat: &str, why: &str) {
        let Some(owner) = self.owner.map(|owner| owner.to_string()) else {
            return;
        };
        if chat != owner && self.state().refusing.insert(chat.to_owned()) {
            let text = format!("{NOTICE}a message to {chat} {}", to_single_line(why, 200));
            self.post(&Item::text(&format!("{CHANNEL}:{owner}"), &text), &[], None);
        }
    }

    /// Sends the rest of a message piece by piece, its file last.
    fn send(&self, pending: &mut Pending) -> Result<(), Failure> {
        let item = &pending.item;
        let chat = chat_of(item);
        if chat.is_empty() {
            return Err(Failure::Refused(403, "invalid destination".to_owned()));
        }
        let (mut pieces, has_file) = (markdown::pieces(&item.text), !item.file.is_empty());
        if pieces.is_empty() && !has_file {
            pieces = markdown::pieces("(empty answer)");
        }
        let fits_caption =
            |piece: &Piece| piece.plain.concat().encode_utf16().count() <= MAX_CAPTION;
        let is_caption = has_file && pieces.len() == 1 && fits_caption(&pieces[0]);
        let caption = if is_caption { pieces.pop() } else { None };
        if item.edits != 0 {
            // Only the last piece has changed.
            pieces.drain(..pieces.len() - 1);
        }
        for (n, piece) in pieces.iter().enumerate().skip(pending.pieces) {
            let is_last = n + 1 == pieces.len();
            let sent = send_styled("text", Some(piece), chat_params(chat), &|mut params| {
                params["link_preview_options"] = json!({"is_disabled": true});
                if is_last && !item.buttons.is_empty() {
                    params["reply_markup"] = keyboard(&item.buttons);
                }
                let method = if item.edits == 0 {
                    "sendMessage"
                } else {
                    params["message_id"] = item.edits.into();
                    "editMessageText"
                };
                self.api.call(method, &params, Duration::ZERO, &self.whole)
            })?;
            if !is_last || has_file {
                pending.pieces = n + 1;
                let recorded = self.outbox.progress(&pending.id, pending.pieces);
                self.is_ok("the outbox", &recorded);
            } else if !item.question.is_empty() {
                let message = sent["message_id"].as_i64().unwrap_or_default();
                let recorded = self.questions.record_message(&item.question, message);
                self.is_ok("the outbox", &recorded);
            }
        }
        if has_file {
            self.upload(item, caption.as_ref(), &chat_params(chat))
        } else {
            Ok(())
        }
    }
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

/// Next step of the sender.
enum Next {
    Send(Pending),
    Upload(Pending),
    /// Wait, until this time if there is one.
    Wait(Option<Instant>),
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
