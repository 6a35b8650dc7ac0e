//! Delivers the outbox to chats, in order for each chat, and shows that an answer is being written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::api::{Api, Failure, send_styled};
use super::upload::Upload;
use super::{CHANNEL, Wake};
use crate::bus::Event;
use crate::cancel::Cancel;
use crate::disk::Lock;
use crate::error::Result;
use crate::log::{Level, Sink};
use crate::markdown::{Piece, pieces};
use crate::outbox::{Item, Outbox, Pending};
use crate::paths::telegram_chat;
use crate::text::{clip, one_line};

/// What wakes the sender.
pub(super) enum SendEvent {
    /// The outbox has something new.
    Posted,
    /// A message that the outbox could not keep: it is sent without.
    Unkept(Item),
    /// A turn of this chat begins or ends.
    TurnBegins(String),
    TurnEnds(String),
    /// An event in a turn of this chat.
    Turn(String, Event),
    /// The result of an upload, and whether the outbox knows it.
    Uploaded(Box<Pending>, Result<(), Failure>, bool),
}

/// How often to send the typing action, which Telegram shows for five seconds.
const TYPING: Duration = Duration::from_millis(4500);
/// The least time between two drafts of an answer.
const DRAFTS: Duration = Duration::from_millis(1500);
/// The most bytes of a draft: a message holds 4096 UTF-16 units, and a text has no more of these than bytes.
const MAX_DRAFT: usize = 2000;
/// The longest back-off; the first is a second.
const MAX_BACK_OFF: Duration = Duration::from_secs(60);
/// The most UTF-16 units of a caption (Bot API, `sendDocument`).
const MAX_CAPTION: usize = 1024;
/// An upload that broke off this often is given up, or its chat would wait for ever.
const MAX_BREAKS: u32 = 6;
/// How often to follow one message's chat to another id.
const MAX_MOVES: usize = 3;
/// How long another process may send before the log says that it blocks this one.
const OTHER_SENDER: Duration = Duration::from_secs(60);

/// The answer that is being written in a chat.
#[derive(Default)]
struct ActiveTurn {
    /// The id of its drafts.
    id: u64,
    typed: Option<Instant>,
    draft: String,
    drafted: Option<Instant>,
    /// The bytes of the draft that are shown.
    shown: usize,
}

/// The failures in a row of a chat.
#[derive(Default)]
struct ChatFailures {
    not_before: Option<Instant>,
    count: u32,
    broken_uploads: u32,
}

pub(super) struct MessageSender {
    api: Arc<Api>,
    outbox: Outbox,
    drafts: bool,
    cancel: Cancel,
    log: Sink,
    turns: BTreeMap<String, ActiveTurn>,
    turns_begun: u64,
    failures: BTreeMap<String, ChatFailures>,
    /// Failures in a row to reach the server at all.
    unreachable: u32,
    /// For one message, which is sent to its end when the program stops.
    whole: Cancel,
    /// Where uploads report. Without it files are sent inline, and everything else waits.
    events: Option<Sender<SendEvent>>,
    /// The chat of the upload in progress; other messages of that chat, and other files, wait for it.
    uploading: Option<String>,
    upload_lock: Arc<Mutex<()>>,
    /// Notices that another message was given up. Nothing is said when one of these fails.
    notices: Vec<String>,
    /// Chats that refuse drafts.
    without_drafts: BTreeSet<String>,
    /// Messages that were sent and could not be recorded as sent.
    unrecorded: BTreeSet<String>,
    send_lock: Arc<Mutex<()>>,
}

fn back_off(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.min(6)).min(MAX_BACK_OFF)
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    [one, other].into_iter().flatten().min()
}

impl MessageSender {
    pub(super) fn new(api: Arc<Api>, outbox: Outbox, drafts: bool, cancel: Cancel, log: Sink, wake: &Wake) -> Self {
        Self {
            api,
            outbox,
            drafts,
            cancel,
            log,
            turns: BTreeMap::new(),
            turns_begun: 0,
            failures: BTreeMap::new(),
            unreachable: 0,
            whole: Cancel::new(None),
            events: wake.events.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            uploading: None,
            upload_lock: wake.uploading.clone(),
            notices: Vec::new(),
            without_drafts: BTreeSet::new(),
            unrecorded: BTreeSet::new(),
            send_lock: wake.sending.clone(),
        }
    }

    /// Delivers the outbox, messages to `first` before the others, until `is_done` or the cancel. The caller holds the sender's
    /// lock.
    pub(super) fn run_until(mut self, first: &str, is_done: &dyn Fn() -> bool) {
        while let (Some(at), false) = (self.deliver(first, is_done), is_done()) {
            if self.cancel.sleep(at.saturating_duration_since(Instant::now())).is_err() {
                return;
            }
        }
    }

    /// Delivers until nobody is left to wake it, or the program stops.
    pub(super) fn run(mut self, events: &Receiver<SendEvent>) {
        let Some(_lock) = self.lock() else { return };
        let mut retry = self.deliver("", &|| false);
        loop {
            let event = match earlier(retry, self.show_activity()) {
                Some(at) => events.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            if self.cancel.why().is_some() {
                return;
            }
            match event {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) if retry.is_none_or(|at| at > Instant::now()) => {}
                Ok(SendEvent::Posted) | Err(RecvTimeoutError::Timeout) => retry = self.deliver("", &|| false),
                Ok(SendEvent::Uploaded(item, result, is_recorded)) => {
                    self.uploading = None;
                    retry = match self.settle(&item, result, is_recorded) {
                        Ok(()) => self.deliver("", &|| false),
                        Err(at) => at,
                    };
                }
                Ok(SendEvent::Unkept(item)) => {
                    if let Err(e) = self.send(&Pending { id: String::new(), item, pieces: 0, moves: 0 }) {
                        (self.log)(Level::Error, &format!("sending: {}", e.text()));
                    }
                }
                Ok(SendEvent::TurnBegins(chat)) => {
                    self.turns_begun += 1;
                    self.turns.insert(chat, ActiveTurn { id: self.turns_begun, ..ActiveTurn::default() });
                }
                Ok(SendEvent::TurnEnds(chat)) => drop(self.turns.remove(&chat)),
                Ok(SendEvent::Turn(chat, event)) => self.update_draft(&chat, &event),
            }
        }
    }

    /// Waits for the sender's lock, which one-shot commands hold for moments; `None` when the program stops first.
    fn lock(&self) -> Option<Lock> {
        loop {
            match self.outbox.sender(OTHER_SENDER, &self.cancel) {
                Ok(lock) => return Some(lock),
                Err(_) if self.cancel.why().is_some() => return None,
                Err(e) => (self.log)(Level::Warn, &format!("waiting for another program that sends: {e}")),
            }
        }
    }

    fn update_draft(&mut self, chat: &str, event: &Event) {
        let Some(turn) = self.turns.get_mut(chat) else { return };
        match event {
            Event::Delta(text) => turn.draft.push_str(text),
            Event::DeltasDiscarded => {
                turn.draft.clear();
                turn.shown = 0;
            }
            _ => {}
        }
    }

    fn log_outbox(&self, result: &Result<()>) -> bool {
        if let Err(e) = result {
            (self.log)(Level::Error, &format!("the outbox: {e}"));
        }
        result.is_ok()
    }

    /// Sends what can be sent now. Returns when to try again, if something is left.
    fn deliver(&mut self, first: &str, is_done: &dyn Fn() -> bool) -> Option<Instant> {
        let lock = self.send_lock.clone();
        let _sending = lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.cancel.why().is_some() || is_done() {
                return None;
            }
            let mut pending = match self.outbox.pending() {
                Ok(pending) => pending,
                Err(e) => {
                    (self.log)(Level::Error, &format!("the outbox: {e}"));
                    return Some(Instant::now() + MAX_BACK_OFF);
                }
            };
            self.unrecorded.retain(|id| self.outbox.done(id).is_err());
            pending.retain(|item| !self.unrecorded.contains(&item.id));
            pending.sort_by_key(|item| item.item.to != first);
            let (next, retry) = self.next(&pending);
            let Some(item) = next else { return retry };
            let settled = match self.send(item) {
                Ok(false) => Ok(()),
                Ok(true) => self.settle(item, Ok(()), false),
                Err(e) => self.settle(item, Err(e), false),
            };
            if let Err(at) = settled {
                return at.and_then(|at| earlier(Some(at), retry));
            }
        }
    }

    /// The first message that need not wait, and when to try those again that must. Order within a chat is kept.
    fn next<'a>(&self, pending: &'a [Pending]) -> (Option<&'a Pending>, Option<Instant>) {
        let (mut waiting, mut retry) = (Vec::new(), None);
        for item in pending {
            let chat = chat_of(&item.item);
            let not_before = self.failures.get(chat).and_then(|chat| chat.not_before).filter(|at| *at > Instant::now());
            let waits_for_upload =
                self.uploading.as_ref().is_some_and(|uploading| uploading == chat || !item.item.file.is_empty());
            if not_before.is_none() && !waiting.contains(&chat) && !waits_for_upload {
                return (Some(item), retry);
            }
            retry = earlier(retry, not_before);
            waiting.push(chat);
        }
        (None, retry)
    }

    /// Acts on the result of sending one message. With an error nothing else is to be sent before that time, if there is one.
    fn settle(
        &mut self,
        item: &Pending,
        result: Result<(), Failure>,
        is_recorded: bool,
    ) -> Result<(), Option<Instant>> {
        let chat = chat_of(&item.item).to_owned();
        let Err(failure) = result else {
            self.unreachable = 0;
            self.failures.remove(&chat);
            if !is_recorded && !self.log_outbox(&self.outbox.done(&item.id)) {
                self.unrecorded.insert(item.id.clone());
            }
            return Ok(());
        };
        match &failure {
            Failure::Stopped => return Err(None),
            Failure::TooMany(time) => {
                self.failures.entry(chat).or_default().not_before = Some(Instant::now() + *time);
            }
            Failure::Migrated(new) => {
                let (old, topic) =
                    chat.split_once('_').map_or((chat.as_str(), None), |(old, topic)| (old, Some(topic)));
                if item.moves >= MAX_MOVES || new.to_string() == old {
                    self.give_up(item, &Failure::Refused(400, "the chat moves in a circle".to_owned()));
                    return Ok(());
                }
                let topic = topic.map_or(String::new(), |topic| format!("_{topic}"));
                if !self.log_outbox(&self.outbox.redirect(item, format!("{CHANNEL}:{new}{topic}"))) {
                    return Err(Some(Instant::now() + MAX_BACK_OFF));
                }
            }
            Failure::Refused(..) => self.give_up(item, &failure),
            // The fault may be of this message or this chat: others go on.
            Failure::Passing(_) | Failure::Broken(_) | Failure::TooLarge => {
                let failures = self.failures.entry(chat.clone()).or_default();
                failures.broken_uploads += u32::from(matches!(failure, Failure::Broken(_)));
                failures.not_before = Some(Instant::now() + back_off(failures.count));
                failures.count += 1;
                if failures.broken_uploads >= MAX_BREAKS {
                    self.give_up(item, &failure);
                    return Ok(());
                }
                (self.log)(Level::Warn, &format!("sending to chat {chat}, will retry: {}", failure.text()));
            }
            Failure::Unauthorized(_) | Failure::Conflict(_) | Failure::Unreachable(_) => {
                (self.log)(Level::Warn, &format!("sending, will retry: {}", failure.text()));
                self.unreachable += 1;
                return Err(Some(Instant::now() + back_off(self.unreachable - 1)));
            }
        }
        Ok(())
    }

    /// Gives up a message that will never be accepted, and says so in its chat.
    fn give_up(&mut self, item: &Pending, failure: &Failure) {
        let why = failure.text();
        (self.log)(Level::Error, &format!("gave up a message to {}: {why}", item.item.to));
        if !self.log_outbox(&self.outbox.give_up(&item.id, &why)) {
            self.unrecorded.insert(item.id.clone());
        }
        self.failures.remove(chat_of(&item.item));
        let is_about_chat = matches!(failure, Failure::Refused(403, _)) || why.contains("chat not found");
        if is_about_chat || self.notices.contains(&item.id) {
            return;
        }
        let what = match item.item.name.as_str() {
            "" => "A message".to_owned(),
            name => format!("The file `{}`", one_line(name, 80).replace('`', "")),
        };
        let text = format!("⚠️ {what} could not be sent: {}", one_line(&why, 200));
        match self.outbox.post(&Item { to: item.item.to.clone(), text, ..Item::default() }) {
            Ok(id) => self.notices.push(id),
            Err(e) => (self.log)(Level::Error, &format!("the outbox: {e}")),
        }
    }

    /// Sends the rest of a message piece by piece, its file last. `false`: the file is being uploaded.
    fn send(&mut self, pending: &Pending) -> Result<bool, Failure> {
        let item = &pending.item;
        let chat = chat_of(item);
        if chat.is_empty() {
            return Err(Failure::Refused(403, "invalid destination".to_owned()));
        }
        let (mut pieces, has_file) = (pieces(&item.text), !item.file.is_empty());
        let fits_caption = |piece: &Piece| piece.plain.encode_utf16().count() <= MAX_CAPTION;
        let is_caption = has_file && pieces.len() == 1 && fits_caption(&pieces[0]);
        let caption = if is_caption { pieces.pop() } else { None };
        for (n, piece) in pieces.iter().enumerate().skip(pending.pieces) {
            send_styled("text", Some(piece), chat_params(chat), &|mut params| {
                params["link_preview_options"] = json!({"is_disabled": true});
                self.api.call("sendMessage", &params, Duration::ZERO, &self.whole)
            })?;
            if n + 1 < pieces.len() || has_file {
                self.log_outbox(&self.outbox.progress(&pending.id, n + 1));
            }
        }
        if !has_file {
            return Ok(true);
        }
        let (api, outbox, whole) = (self.api.clone(), self.outbox.clone(), self.whole.clone());
        let upload = Upload { api, outbox, caption, params: chat_params(chat), whole, log: self.log.clone() };
        match self.events.clone() {
            None => upload.send(item).map(|()| true),
            Some(events) => {
                upload.spawn(pending.clone(), self.upload_lock.clone(), move |item, result, is_recorded| {
                    drop(events.send(SendEvent::Uploaded(item, result, is_recorded)));
                })?;
                self.uploading = Some(chat.to_owned());
                Ok(false)
            }
        }
    }

    /// Shows drafts and the typing action in chats with an active turn. Returns when to do so again.
    fn show_activity(&mut self) -> Option<Instant> {
        let mut next = None;
        for (chat, mut turn) in std::mem::take(&mut self.turns) {
            let at = self.show_turn(&chat, &mut turn).unwrap_or_else(|time| {
                self.failures.entry(chat.clone()).or_default().not_before = Some(Instant::now() + time);
                Instant::now() + time
            });
            next = earlier(next, Some(at));
            self.turns.insert(chat, turn);
        }
        next
    }

    /// The same for one chat; fails with the time for which the server wants to hear no more.
    fn show_turn(&mut self, chat: &str, turn: &mut ActiveTurn) -> Result<Instant, Duration> {
        let now = Instant::now();
        if let Some(at) = self.failures.get(chat).and_then(|chat| chat.not_before).filter(|at| *at > now) {
            return Ok(at);
        }
        let mut next = None;
        let draft = turn.draft.trim();
        // There are no drafts in groups, whose ids are negative.
        let is_private = !chat.starts_with(['-']) && !chat.contains('_');
        if self.drafts && is_private && !self.without_drafts.contains(chat) && draft.len() > turn.shown {
            let due = turn.drafted.map_or(now, |at| at + DRAFTS);
            if due > now {
                next = Some(due);
            } else {
                (turn.drafted, turn.shown) = (Some(now), draft.len());
                let mut params = chat_params(chat);
                (params["draft_id"], params["text"]) = (turn.id.into(), clip(draft, MAX_DRAFT).into());
                match self.api.call("sendMessageDraft", &params, Duration::ZERO, &self.cancel) {
                    Err(Failure::TooMany(time)) => return Err(time),
                    // This server has no drafts.
                    Err(Failure::Refused(404, _) | Failure::Unauthorized(_)) => self.drafts = false,
                    Err(Failure::Refused(..)) => drop(self.without_drafts.insert(chat.to_owned())),
                    Ok(_) | Err(_) => {}
                }
            }
        }
        let mut due = turn.typed.map_or(now, |at| at + TYPING);
        if due <= now {
            turn.typed = Some(now);
            due = now + TYPING;
            let mut params = chat_params(chat);
            params["action"] = "typing".into();
            if let Err(Failure::TooMany(time)) = self.api.call("sendChatAction", &params, Duration::ZERO, &self.cancel)
            {
                return Err(time);
            }
        }
        Ok(next.map_or(due, |next| due.min(next)))
    }
}

/// The chat of a message; empty if somebody has edited the outbox.
fn chat_of(item: &Item) -> &str {
    telegram_chat(&item.to).unwrap_or_default()
}

/// A chat, or a topic in it, as parameters.
fn chat_params(chat: &str) -> Value {
    let (id, topic) = chat.split_once('_').unwrap_or((chat, ""));
    let mut params = json!({"chat_id": id.parse::<i64>().unwrap_or_default()});
    if let Ok(topic) = topic.parse::<i64>() {
        params["message_thread_id"] = topic.into();
    }
    params
}
