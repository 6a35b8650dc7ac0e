//! Sending: answers from the outbox, in order for each chat; signs of life while an answer is made.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::api::{Api, Failure};
use super::format::pieces;
use super::{CHANNEL, Wake};
use crate::bus::Event;
use crate::cancel::Cancel;
use crate::outbox::{Item, Outbox, Pending};
use crate::text::clip;

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
}

/// Telegram shows for five seconds that somebody is typing.
const TYPING: Duration = Duration::from_millis(4500);
/// Between two drafts of one answer.
const DRAFTS: Duration = Duration::from_millis(1500);
/// Bytes of a draft: a message holds 4096 UTF-16 units, and no text has more of these than bytes.
const MOST_DRAFT: usize = 2000;
/// Between tries when the network is at fault: the first and the last.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);

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
    log: Arc<dyn Fn(&str) + Send + Sync>,
    turns: BTreeMap<String, Turn>,
    /// Chats that may not be written to before a time.
    held: BTreeMap<String, Instant>,
    pause: Duration,
    turns_begun: u64,
    /// What was said of items, in pieces, and could not be noted; all of it where there is none.
    unnoted: BTreeMap<String, Option<usize>>,
    /// A signal that something was posted is on its way.
    posted: Arc<AtomicBool>,
    /// Held while something is sent.
    at_work: Arc<Mutex<()>>,
}

impl Sending {
    pub fn new(
        api: Arc<Api>,
        outbox: Outbox,
        drafts: bool,
        cancel: Cancel,
        log: Arc<dyn Fn(&str) + Send + Sync>,
        wake: &Wake,
    ) -> Self {
        let (posted, at_work) = (wake.posted.clone(), wake.sending.clone());
        let (turns, held, unnoted) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self {
            api,
            outbox,
            drafts,
            cancel,
            log,
            turns,
            held,
            pause: FIRST_PAUSE,
            turns_begun: 0,
            unnoted,
            posted,
            at_work,
        }
    }

    /// Sends until nobody is left to wake it, or the program ends.
    pub fn run(mut self, signals: &Receiver<Signal>) {
        let mut wake = self.deliver();
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
                        wake = self.deliver();
                    }
                }
                Ok(Signal::Posted) => wake = self.deliver(),
                Ok(Signal::Unkept(item)) => {
                    let pending = Pending { id: String::new(), item, pieces: 0 };
                    if let Err(e) = self.say(&pending) {
                        (self.log)(&format!("sending: {}", e.text()));
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
            Event::DeltasVoid => {
                turn.draft.clear();
                turn.shown = 0;
            }
            _ => {}
        }
    }

    /// Says what can be said now. When to try again, if something is left.
    fn deliver(&mut self) -> Option<Instant> {
        self.posted.store(false, Ordering::SeqCst);
        let sending = self.at_work.clone();
        let _sending = sending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut again: Option<Instant> = None;
        loop {
            if self.cancel.why().is_some() {
                return None;
            }
            let pending = match self.outbox.pending() {
                Ok(pending) => self.known(pending),
                Err(e) => {
                    (self.log)(&format!("the outbox: {e}"));
                    return Some(Instant::now() + LAST_PAUSE);
                }
            };
            let now = Instant::now();
            self.held.retain(|_, until| *until > now);
            let mut waiting: Vec<&str> = Vec::new();
            let mut next = None;
            for item in &pending {
                let Some(chat) = item.item.to.strip_prefix(CHANNEL).and_then(|rest| rest.strip_prefix(':')) else {
                    continue;
                };
                if let Some(until) = self.held.get(chat) {
                    again = Some(again.map_or(*until, |at: Instant| at.min(*until)));
                } else if !waiting.contains(&chat) {
                    next = Some(item.clone());
                    break;
                }
                // Order within a chat is kept.
                waiting.push(chat);
            }
            let Some(item) = next else { return again };
            let chat = item.item.to[CHANNEL.len() + 1..].to_owned();
            match self.say(&item) {
                Ok(()) => {
                    self.pause = FIRST_PAUSE;
                    self.over(&item);
                }
                Err(Failure::Stopped) => return None,
                Err(Failure::TooMany(time)) => drop(self.held.insert(chat, now + time)),
                Err(Failure::Migrated(new)) => {
                    let item = Pending { item: Item { to: format!("{CHANNEL}:{new}"), ..item.item.clone() }, ..item };
                    if let Err(e) = self.outbox.post(&item.item) {
                        (self.log)(&format!("the outbox: {e}"));
                        return Some(Instant::now() + LAST_PAUSE);
                    }
                    self.over(&item);
                }
                Err(e @ Failure::Refused(..)) => {
                    (self.log)(&format!("a message to chat {chat} is given up: {}", e.text()));
                    self.over(&item);
                }
                Err(e) => {
                    (self.log)(&format!("sending, to be tried again: {}", e.text()));
                    let at = Instant::now() + self.pause;
                    self.pause = (self.pause * 2).min(LAST_PAUSE);
                    return Some(again.map_or(at, |other| other.min(at)));
                }
            }
        }
    }

    fn over(&mut self, item: &Pending) {
        self.unnoted.remove(&item.id);
        if let Err(e) = self.outbox.over(&item.id) {
            (self.log)(&format!("noting that a message was sent: {e}"));
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

    /// Says what is left of an item, a piece after the other.
    fn say(&mut self, pending: &Pending) -> Result<(), Failure> {
        let chat = pending.item.to[CHANNEL.len() + 1..].to_owned();
        // One that is being sent is sent to its end, also when the program is told to end: its fate is known then.
        let whole = Cancel::new(None);
        let pieces = pieces(&pending.item.text);
        for (n, piece) in pieces.iter().enumerate().skip(pending.pieces) {
            let mut params = place(&chat);
            params["text"] = piece.html.clone().into();
            params["parse_mode"] = "HTML".into();
            params["link_preview_options"] = json!({"is_disabled": true});
            match self.api.call("sendMessage", &params, Duration::ZERO, &whole) {
                Ok(_) => {}
                // Of the text and not of the chat: it is said without any formatting.
                Err(Failure::Refused(400, why)) if why.contains("parse") || why.contains("entit") => {
                    let mut params = place(&chat);
                    params["text"] = piece.plain.clone().into();
                    self.api.call("sendMessage", &params, Duration::ZERO, &whole)?;
                }
                Err(e) => return Err(e),
            }
            if n + 1 < pieces.len() {
                if let Err(e) = self.outbox.said(&pending.id, n + 1) {
                    (self.log)(&format!("noting that a message was sent: {e}"));
                    self.unnoted.insert(pending.id.clone(), Some(n + 1));
                }
            }
        }
        Ok(())
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
            let drafts = self.drafts && !chat.starts_with('-') && !chat.contains('_');
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
                        Err(Failure::TooMany(time)) => drop(self.held.insert(chat.clone(), now + time)),
                        // This server has no drafts.
                        Err(Failure::Refused(..) | Failure::Unauthorized(_)) => self.drafts = false,
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
                self.held.insert(chat.clone(), now + time);
            }
        }
        next
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
