//! Shows that an answer is being written: the typing action, and in private chats a draft of the text so far.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::CHANNEL;
use super::api::{Api, Failure};
use super::send::chat_params;
use crate::bus::{Event, Outbound};
use crate::cancel::Cancel;
use crate::text::clip;

/// How often to send the typing action, which Telegram shows for five seconds.
const TYPING: Duration = Duration::from_millis(4500);
/// The least time between two drafts of an answer.
const DRAFTS: Duration = Duration::from_millis(1500);
/// The most bytes of a draft: a message holds 4096 UTF-16 units, and a text has no more of these than bytes.
const MAX_DRAFT: usize = 2000;

/// The answer that is being written in a chat.
struct ActiveTurn {
    /// The id of its drafts.
    id: u64,
    draft: String,
    /// The bytes of the draft that are shown.
    shown: usize,
    /// When to show the next draft, and the typing action, at the earliest.
    next_draft: Instant,
    next_typing: Instant,
}

/// The turns by chat.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<Mutex<BTreeMap<String, ActiveTurn>>>);

impl Turns {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ActiveTurn>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once nothing more is shown for a turn in this chat: a draft would stay below the answer.
    pub(super) fn end(&self, chat: &str) {
        self.lock().remove(chat);
    }
}

pub(super) struct Activity {
    pub api: Arc<Api>,
    pub turns: Turns,
    pub drafts: bool,
    pub cancel: Cancel,
    /// Chats that refuse drafts.
    pub without_drafts: BTreeSet<String>,
}

impl Activity {
    /// Shows the turns in chats of Telegram.
    pub(super) fn run(mut self, events: &Receiver<Outbound>) {
        for id in 1.. {
            let received = match self.show() {
                Some(at) => events.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match received {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(outbound) if outbound.origin.channel == CHANNEL => self.update(outbound, id),
                Ok(_) => {}
            }
        }
    }

    /// `id` is for the drafts of a turn that begins.
    fn update(&self, Outbound { origin, event }: Outbound, id: u64) {
        let mut turns = self.turns.lock();
        let turn = turns.get_mut(&origin.chat);
        match (event, turn) {
            (Event::TurnStarted, _) => {
                let (now, draft) = (Instant::now(), String::new());
                turns.insert(origin.chat, ActiveTurn { id, draft, shown: 0, next_draft: now, next_typing: now });
            }
            (Event::Done(_), _) => drop(turns.remove(&origin.chat)),
            (Event::Delta(text), Some(turn)) => turn.draft.push_str(&text),
            (Event::Progress(_), Some(turn)) => {
                turn.draft.clear();
                turn.shown = 0;
            }
            _ => {}
        }
    }

    /// Shows what is due. Returns when something is due again.
    fn show(&mut self) -> Option<Instant> {
        let turns = self.turns.clone();
        let mut turns = turns.lock();
        let shown = turns.iter_mut().map(|(chat, turn)| {
            if let Err(wait) = self.show_draft(chat, turn).and_then(|()| self.show_typing(chat, turn)) {
                // Time for which the server wants to hear no more.
                (turn.next_draft, turn.next_typing) = (Instant::now() + wait, Instant::now() + wait);
            }
            let has_more = turn.draft.trim().len() > turn.shown && self.shows_drafts(chat);
            if has_more { turn.next_draft.min(turn.next_typing) } else { turn.next_typing }
        });
        shown.min()
    }

    /// There are no drafts in groups, whose ids are negative.
    fn shows_drafts(&self, chat: &str) -> bool {
        self.drafts && !chat.starts_with('-') && !chat.contains('_') && !self.without_drafts.contains(chat)
    }

    fn show_draft(&mut self, chat: &str, turn: &mut ActiveTurn) -> Result<(), Duration> {
        let draft = turn.draft.trim();
        if draft.len() <= turn.shown || turn.next_draft > Instant::now() || !self.shows_drafts(chat) {
            return Ok(());
        }
        (turn.next_draft, turn.shown) = (Instant::now() + DRAFTS, draft.len());
        let mut params = chat_params(chat);
        (params["draft_id"], params["text"]) = (turn.id.into(), clip(draft, MAX_DRAFT).into());
        match self.api.call("sendMessageDraft", &params, Duration::ZERO, &self.cancel) {
            Err(Failure::TooMany(time)) => return Err(time),
            // This server has no drafts.
            Err(Failure::Refused(404, _) | Failure::Unauthorized(_)) => self.drafts = false,
            Err(Failure::Refused(..)) => drop(self.without_drafts.insert(chat.to_owned())),
            Ok(_) | Err(_) => {}
        }
        Ok(())
    }

    fn show_typing(&self, chat: &str, turn: &mut ActiveTurn) -> Result<(), Duration> {
        if turn.next_typing > Instant::now() {
            return Ok(());
        }
        turn.next_typing = Instant::now() + TYPING;
        let mut params = chat_params(chat);
        params["action"] = "typing".into();
        match self.api.call("sendChatAction", &params, Duration::ZERO, &self.cancel) {
            Err(Failure::TooMany(time)) => Err(time),
            _ => Ok(()),
        }
    }
}
