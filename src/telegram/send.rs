//! Sending: answers from the outbox, in order for each chat; signs of life while an answer is made.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use fs_err::File;
use serde_json::{Value, json};

use super::api::{Api, Failure};
use super::{CHANNEL, Wake};
use crate::bus::Event;
use crate::cancel::Cancel;
use crate::disk::Lock;
use crate::log::{Level, Sink};
use crate::markdown::{Piece, pieces};
use crate::outbox::{Item, Outbox, Pending};
use crate::paths::telegram_chat;
use crate::text::{clip, one_line};
use crate::wire::ImageKind;

/// What wakes the sender.
pub enum Signal {
    /// Something stands in the outbox.
    Posted,
    /// Something to say that could not be kept.
    Unkept(Item),
    /// An answer for this chat is being made, or no longer.
    Busy(String),
    Idle(String),
    /// Something happened in a turn of this chat.
    Event(String, Event),
    /// How an upload went, and whether its end is noted already.
    Uploaded(Box<Pending>, Result<(), Failure>, bool),
}

/// Telegram shows for five seconds that somebody is typing.
const TYPING: Duration = Duration::from_millis(4500);
/// Between two drafts of one answer.
const DRAFTS: Duration = Duration::from_millis(1500);
/// Bytes of a draft: a message holds 4096 UTF-16 units, and no text has more of these than bytes.
const MOST_DRAFT: usize = 2000;
/// Between tries when something is at fault that may pass: the first and the last.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// The most UTF-16 units of the text below a file (Bot API, `sendDocument`).
const MOST_CAPTION: usize = 1024;
/// The most bytes of what is sent as a photo (Bot API, `sendPhoto`).
const MOST_PHOTO: u64 = 10 << 20;
/// An upload that broke off this often is given up: the chat would wait for it for ever.
const MOST_BREAKS: u32 = 6;
/// How often one message follows its chat to another number: once is what there is (Bot API, `migrate_to_chat_id`).
const MOST_MOVES: usize = 3;
/// How long another process may take that is just sending something, before it is said that it holds everything up.
const OTHER_SENDER: Duration = Duration::from_secs(60);

/// A chat that is being answered.
#[derive(Default)]
struct Turn {
    /// No other draft has this number.
    id: u64,
    typed: Option<Instant>,
    draft: String,
    drafted: Option<Instant>,
    shown: usize,
}

pub struct Sending {
    api: Arc<Api>,
    outbox: Outbox,
    drafts: bool,
    cancel: Cancel,
    log: Sink,
    turns: BTreeMap<String, Turn>,
    /// Chats that may not be written to before a time.
    held: BTreeMap<String, Instant>,
    /// How long the next pause of a chat is, where the last message to it went wrong.
    pauses: BTreeMap<String, Duration>,
    /// How long nothing is sent when the server cannot be reached.
    pause: Duration,
    /// For one message: it goes on when the program is told to end. Its fate is known then.
    whole: Cancel,
    /// Where an upload tells how it went. Without it files go out here and now, and everything else waits.
    tell: Option<Sender<Signal>>,
    /// The chat to which a file is going out, on a thread of its own. One at a time; what is for that chat waits.
    uploading: Option<String>,
    /// Held by that thread.
    upload: Arc<Mutex<()>>,
    /// How often an upload broke off, by the item.
    breaks: BTreeMap<String, u32>,
    /// What was posted to tell that something else was given up: of these themselves nothing is told.
    notices: Vec<String>,
    /// Chats in which drafts are refused.
    undrafted: BTreeSet<String>,
    turns_begun: u64,
    /// What was said of items, in pieces, and could not be noted; all of it where there is none.
    unnoted: BTreeMap<String, Option<usize>>,
    /// A signal that something was posted is on its way.
    posted: Arc<AtomicBool>,
    /// Held while something is sent.
    at_work: Arc<Mutex<()>>,
}

impl Sending {
    pub fn new(api: Arc<Api>, outbox: Outbox, drafts: bool, cancel: Cancel, log: Sink, wake: &Wake) -> Self {
        let (posted, at_work, upload) = (wake.posted.clone(), wake.sending.clone(), wake.uploading.clone());
        let tell = wake.sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (turns, held, pauses, unnoted) = Default::default();
        Self {
            api,
            outbox,
            drafts,
            cancel,
            log,
            turns,
            held,
            pauses,
            pause: FIRST_PAUSE,
            whole: Cancel::new(None),
            tell,
            uploading: None,
            upload,
            breaks: BTreeMap::new(),
            notices: Vec::new(),
            undrafted: BTreeSet::new(),
            turns_begun: 0,
            unnoted,
            posted,
            at_work,
        }
    }

    /// Sends what stands in the outbox, what is for `first` before the rest, until `is_done` or `cancel` says so. Whoever
    /// calls has the right to deliver.
    pub fn run_until(mut self, first: &str, is_done: &dyn Fn() -> bool) {
        while let (Some(again), false) = (self.deliver(first, is_done), is_done()) {
            if self.cancel.sleep(again.saturating_duration_since(Instant::now())).is_err() {
                return;
            }
        }
    }

    /// The right to deliver, which this keeps; `None` when the program ends before. A process that sends one message has it
    /// for moments.
    fn sole_sender(&self) -> Option<Lock> {
        loop {
            match self.outbox.sender(OTHER_SENDER, &self.cancel) {
                Ok(right) => return Some(right),
                Err(_) if self.cancel.why().is_some() => return None,
                Err(e) => (self.log)(Level::Warn, &format!("waiting for another program that sends: {e}")),
            }
        }
    }

    /// Sends until nobody is left to wake it, or the program ends.
    pub fn run(mut self, signals: &Receiver<Signal>) {
        let Some(_right) = self.sole_sender() else { return };
        if let Err(e) = self.outbox.sweep() {
            (self.log)(Level::Error, &format!("the outbox: {e}"));
        }
        let mut wake = self.deliver("", &|| false);
        loop {
            let signs = self.signs_of_life();
            let next = [wake, signs].into_iter().flatten().min();
            let signal = match next {
                Some(at) => signals.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => signals.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            if self.cancel.why().is_some() {
                return;
            }
            match signal {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    if wake.is_some_and(|at| at <= Instant::now()) {
                        wake = self.deliver("", &|| false);
                    }
                }
                Ok(Signal::Posted) => wake = self.deliver("", &|| false),
                Ok(Signal::Uploaded(item, result, is_noted)) => {
                    self.uploading = None;
                    wake = match self.settle(&item, result, is_noted) {
                        Ok(()) => self.deliver("", &|| false),
                        Err(again) => again,
                    };
                }
                Ok(Signal::Unkept(item)) => {
                    let pending = Pending { id: String::new(), item, pieces: 0, moves: 0 };
                    if let Err(e) = self.say(&pending) {
                        (self.log)(Level::Error, &format!("sending: {}", e.text()));
                    }
                }
                Ok(Signal::Busy(chat)) => {
                    self.turns_begun += 1;
                    self.turns.insert(chat, Turn { id: self.turns_begun, ..Turn::default() });
                }
                Ok(Signal::Idle(chat)) => drop(self.turns.remove(&chat)),
                Ok(Signal::Event(chat, event)) => self.note(&chat, event),
            }
        }
    }

    fn note(&mut self, chat: &str, event: Event) {
        let Some(turn) = self.turns.get_mut(chat) else { return };
        match event {
            Event::Delta(text) => turn.draft.push_str(&text),
            Event::DeltasDiscarded => {
                turn.draft.clear();
                turn.shown = 0;
            }
            _ => {}
        }
    }

    /// Says what can be said now. When to try again, if something is left.
    fn deliver(&mut self, first: &str, is_done: &dyn Fn() -> bool) -> Option<Instant> {
        self.posted.store(false, Ordering::SeqCst);
        let sending = self.at_work.clone();
        let _sending = sending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut again: Option<Instant> = None;
        loop {
            if self.cancel.why().is_some() || is_done() {
                return None;
            }
            let mut pending = match self.outbox.pending() {
                Ok(pending) => self.known(pending),
                Err(e) => {
                    (self.log)(Level::Error, &format!("the outbox: {e}"));
                    return Some(Instant::now() + LAST_PAUSE);
                }
            };
            pending.sort_by_key(|pending| pending.item.to != first);
            let now = Instant::now();
            self.held.retain(|_, until| *until > now);
            let mut waiting: Vec<&str> = Vec::new();
            let mut next = None;
            for item in &pending {
                let Ok(chat) = telegram_chat(&item.item.to) else {
                    (self.log)(
                        Level::Error,
                        &format!("a message to {} is given up: nothing leads there", one_line(&item.item.to, 40)),
                    );
                    self.over(item, Some("nothing leads there"));
                    continue;
                };
                if let Some(until) = self.held.get(chat) {
                    again = Some(again.map_or(*until, |at: Instant| at.min(*until)));
                } else if !waiting.contains(&chat) && !self.waits_for_upload(item, chat) {
                    next = Some(item.clone());
                    break;
                }
                // Order within a chat is kept.
                waiting.push(chat);
            }
            let Some(item) = next else { return again };
            let settled = match self.say(&item) {
                Ok(false) => Ok(()),
                Ok(true) => self.settle(&item, Ok(()), false),
                Err(e) => self.settle(&item, Err(e), false),
            };
            if let Err(at) = settled {
                return match (at, again) {
                    (Some(at), Some(other)) => Some(at.min(other)),
                    (at, _) => at,
                };
            }
        }
    }

    /// Whether this has to wait for the file that is going out.
    fn waits_for_upload(&self, item: &Pending, chat: &str) -> bool {
        self.uploading.as_ref().is_some_and(|uploading| uploading == chat || !item.item.file.is_empty())
    }

    /// Does what follows from how it went with one item; `is_noted` says that its end is noted. With an error nothing else is
    /// to be sent now, but at that time, if it is one.
    fn settle(&mut self, item: &Pending, went: Result<(), Failure>, is_noted: bool) -> Result<(), Option<Instant>> {
        let chat = item.item.to[CHANNEL.len() + 1..].to_owned();
        let e = match went {
            Ok(()) => {
                self.pause = FIRST_PAUSE;
                self.breaks.remove(&item.id);
                if !is_noted {
                    self.over(item, None);
                }
                self.pauses.insert(chat, FIRST_PAUSE);
                return Ok(());
            }
            Err(e) => e,
        };
        match e {
            Failure::Stopped => return Err(None),
            Failure::TooMany(time) => drop(self.held.insert(chat, Instant::now() + time)),
            Failure::Migrated(new) => {
                let (old, topic) = chat.split_once('_').unwrap_or((&chat, ""));
                if item.moves >= MOST_MOVES || new.to_string() == old {
                    self.give_up(item, &Failure::Refused(400, "its chat moves around in a circle".to_owned()));
                    return Ok(());
                }
                let to = format!("{CHANNEL}:{new}{}{topic}", if topic.is_empty() { "" } else { "_" });
                if let Err(e) = self.outbox.redirect(item, to) {
                    (self.log)(Level::Error, &format!("the outbox: {e}"));
                    return Err(Some(Instant::now() + LAST_PAUSE));
                }
            }
            Failure::Refused(..) => self.give_up(item, &e),
            // It may be this message, or this chat: others go on.
            Failure::Passing(_) | Failure::Broken(_) | Failure::TooLarge => {
                if matches!(e, Failure::Broken(_)) {
                    let breaks = self.breaks.entry(item.id.clone()).or_default();
                    *breaks += 1;
                    if *breaks >= MOST_BREAKS {
                        self.give_up(item, &e);
                        return Ok(());
                    }
                }
                (self.log)(Level::Warn, &format!("sending to chat {chat}, to be tried again: {}", e.text()));
                let pause = self.pauses.get(&chat).copied().unwrap_or(FIRST_PAUSE);
                self.held.insert(chat.clone(), Instant::now() + pause);
                self.pauses.insert(chat, (pause * 2).min(LAST_PAUSE));
            }
            e => {
                (self.log)(Level::Warn, &format!("sending, to be tried again: {}", e.text()));
                let at = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(LAST_PAUSE);
                return Err(Some(at));
            }
        }
        Ok(())
    }

    /// It will never be taken. That is said in its chat.
    fn give_up(&mut self, item: &Pending, failure: &Failure) {
        let why = failure.text();
        (self.log)(Level::Error, &format!("a message to {} is given up: {why}", item.item.to));
        self.over(item, Some(&why));
        self.breaks.remove(&item.id);
        // Not where the chat itself is what refuses, nor of such a word itself.
        let is_of_the_chat = matches!(failure, Failure::Refused(403, _)) || why.contains("chat not found");
        if is_of_the_chat || self.notices.contains(&item.id) {
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

    /// Nothing more is to be said of it; with the reason, when it was given up.
    fn over(&mut self, item: &Pending, why: Option<&str>) {
        self.unnoted.remove(&item.id);
        if let Err(e) = why.map_or_else(|| self.outbox.over(&item.id), |why| self.outbox.give_up(&item.id, why)) {
            (self.log)(Level::Error, &format!("noting that a message was sent: {e}"));
            self.unnoted.insert(item.id.clone(), None);
        }
    }

    /// What is pending, but for what has been said and could not be noted. That is tried again.
    fn known(&mut self, mut pending: Vec<Pending>) -> Vec<Pending> {
        if self.unnoted.is_empty() {
            return pending;
        }
        let outbox = &self.outbox;
        self.unnoted.retain(|id, said| said.is_some() || outbox.over(id).is_err());
        for item in &mut pending {
            if let Some(Some(pieces)) = self.unnoted.get(&item.id) {
                item.pieces = item.pieces.max(*pieces);
            }
        }
        pending.retain(|item| self.unnoted.get(&item.id) != Some(&None));
        pending
    }

    /// Says what is left of an item, a piece after the other, and its file last. `false`: the file is on its way.
    fn say(&mut self, pending: &Pending) -> Result<bool, Failure> {
        let Pending { id, item, pieces: said, .. } = pending;
        let chat = item.to[CHANNEL.len() + 1..].to_owned();
        let (pieces, has_file) = (pieces(&item.text), !item.file.is_empty());
        let is_caption = |piece: &Piece| has_file && piece.plain.encode_utf16().count() <= MOST_CAPTION;
        let caption = match pieces.as_slice() {
            [only] if is_caption(only) => Some(only),
            _ => None,
        };
        let messages = if caption.is_some() { 0 } else { pieces.len() };
        let all = messages + usize::from(has_file);
        for n in *said..all {
            match pieces.get(n).filter(|_| n < messages) {
                Some(piece) => styled("text", Some(piece), place(&chat), &|mut params| {
                    params["link_preview_options"] = json!({"is_disabled": true});
                    self.api.call("sendMessage", &params, Duration::ZERO, &self.whole)
                })?,
                None => {
                    let upload = Upload {
                        api: self.api.clone(),
                        outbox: self.outbox.clone(),
                        caption: caption.cloned(),
                        chat: chat.clone(),
                        whole: self.whole.clone(),
                        log: self.log.clone(),
                    };
                    let Some(tell) = self.tell.clone() else {
                        upload.send(item)?;
                        continue;
                    };
                    upload.begin(pending.clone(), tell, self.upload.clone())?;
                    self.uploading = Some(chat);
                    return Ok(false);
                }
            }
            if n + 1 < all {
                if let Err(e) = self.outbox.said(id, n + 1) {
                    (self.log)(Level::Error, &format!("noting that a message was sent: {e}"));
                    self.unnoted.insert(id.clone(), Some(n + 1));
                }
            }
        }
        Ok(true)
    }

    /// Shows who is waiting that something is going on. When to do so again.
    fn signs_of_life(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        let mut sooner = |at: Instant| next = Some(next.map_or(at, |other: Instant| other.min(at)));
        for (chat, turn) in &mut self.turns {
            if let Some(until) = self.held.get(chat) {
                sooner(*until);
                continue;
            }
            // A group's id is negative. There are no drafts in groups.
            let drafts = self.drafts && !self.undrafted.contains(chat) && !chat.starts_with('-') && !chat.contains('_');
            if drafts && turn.draft.trim().len() > turn.shown {
                let due = turn.drafted.map_or(now, |at| at + DRAFTS);
                if due > now {
                    sooner(due);
                } else {
                    turn.drafted = Some(now);
                    turn.shown = turn.draft.trim().len();
                    let mut params = place(chat);
                    params["draft_id"] = turn.id.into();
                    params["text"] = clip(turn.draft.trim(), MOST_DRAFT).into();
                    match self.api.call("sendMessageDraft", &params, Duration::ZERO, &self.cancel) {
                        Err(Failure::TooMany(time)) => drop(self.held.insert(chat.clone(), Instant::now() + time)),
                        // This server has no drafts.
                        Err(Failure::Refused(404, _) | Failure::Unauthorized(_)) => self.drafts = false,
                        // Nor has this chat.
                        Err(Failure::Refused(..)) => drop(self.undrafted.insert(chat.clone())),
                        Ok(_) | Err(_) => {}
                    }
                }
            }
            let due = turn.typed.map_or(now, |at| at + TYPING);
            if due > now {
                sooner(due);
                continue;
            }
            turn.typed = Some(now);
            sooner(now + TYPING);
            let mut params = place(chat);
            params["action"] = "typing".into();
            if let Err(Failure::TooMany(time)) = self.api.call("sendChatAction", &params, Duration::ZERO, &self.cancel)
            {
                self.held.insert(chat.clone(), Instant::now() + time);
            }
        }
        next
    }
}

/// A file that is to go out.
struct Upload {
    api: Arc<Api>,
    outbox: Outbox,
    /// What stands below it.
    caption: Option<Piece>,
    chat: String,
    whole: Cancel,
    log: Sink,
}

impl Upload {
    /// Sends it on a thread of its own, which tells how it went, and holds `at_work` meanwhile.
    fn begin(self, pending: Pending, tell: Sender<Signal>, at_work: Arc<Mutex<()>>) -> Result<(), Failure> {
        let work = move || {
            let at_work = at_work.lock().unwrap_or_else(PoisonError::into_inner);
            let went = self.send(&pending.item);
            // Here, as nobody may listen any more when the program ends.
            let is_noted = went.is_ok() && self.outbox.over(&pending.id).is_ok();
            drop(at_work);
            drop(tell.send(Signal::Uploaded(Box::new(pending), went, is_noted)));
        };
        Builder::new().spawn(work).map(drop).map_err(|e| Failure::Passing(e.to_string()))
    }

    /// Sends the file of an item: a picture as one, if Telegram takes it for that.
    fn send(&self, item: &Item) -> Result<(), Failure> {
        let path = self.outbox.file(&item.file);
        let open = || {
            File::open(&path).map_err(|e| match e.kind() {
                ErrorKind::NotFound => Failure::Refused(0, "the file is not there any more".to_owned()),
                // No handles left, or no right to it: that may change.
                _ => Failure::Passing(e.to_string()),
            })
        };
        let send = |method: &str, field: &str| {
            styled("caption", self.caption.as_ref(), place(&self.chat), &|params| {
                self.api.upload(method, &params, (field, &item.name, open()?), &self.whole)
            })
        };
        if is_photo(open()?) {
            match send("sendPhoto", "photo") {
                // Too wide, too high, or not what it seems to be: then it is a file.
                Err(Failure::Refused(400 | 413, why)) => {
                    (self.log)(Level::Info, &format!("{} goes as a file: {why}", one_line(&item.name, 80)));
                }
                result => return result,
            }
        }
        send("sendDocument", "document")
    }
}

/// A chat, or a topic in it, as parameters.
fn place(chat: &str) -> Value {
    let (id, topic) = chat.split_once('_').unwrap_or((chat, ""));
    let mut params = json!({"chat_id": id.parse::<i64>().unwrap_or_default()});
    if let Ok(topic) = topic.parse::<i64>() {
        params["message_thread_id"] = topic.into();
    }
    params
}

/// Whether it is of a kind that people want to see at once, and not too large for that.
fn is_photo(mut file: File) -> bool {
    let mut start = [0; 12];
    let is_small = file.metadata().is_ok_and(|meta| meta.len() <= MOST_PHOTO);
    let kind = file.read(&mut start).ok().and_then(|read| ImageKind::of(&start[..read]));
    is_small && matches!(kind, Some(ImageKind::Png | ImageKind::Jpeg | ImageKind::Webp))
}

/// Sends a text as the parameter `field`, without any formatting where the server cannot parse it with.
fn styled(
    field: &str,
    piece: Option<&Piece>,
    mut params: Value,
    send: &dyn Fn(Value) -> Result<Value, Failure>,
) -> Result<(), Failure> {
    let plain = params.clone();
    if let Some(piece) = piece {
        params[field] = piece.html.clone().into();
        params["parse_mode"] = "HTML".into();
    }
    match (send(params), piece) {
        // Of the text and not of the chat.
        (Err(Failure::Refused(400, why)), Some(piece)) if why.contains("parse") || why.contains("entit") => {
            let mut params = plain;
            params[field] = piece.plain.clone().into();
            send(params).map(drop)
        }
        (result, _) => result.map(drop),
    }
}
