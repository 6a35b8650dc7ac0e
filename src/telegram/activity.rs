//! Shows that an answer is being written: the typing action, and in private chats a draft of the text so far.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::api::{Api, Failure};
use super::send::chat_params;
use crate::bus::Event;
use crate::cancel::Cancel;
use crate::sync;
use crate::text::clip;

/// Interval of the typing action, which Telegram shows for five seconds.
const TYPING: Duration = Duration::from_millis(4500);
/// Minimum interval between two drafts of an answer.
const DRAFTS: Duration = Duration::from_millis(1500);
/// Maximum size of a draft, in bytes. A message is limited to 4096 UTF-16 units, and a text has no more units than bytes.
const MAX_DRAFT: usize = 2000;

/// Method that shows the text so far.
const DRAFT: &str = "sendMessageDraft";

/// An answer in progress.
struct ActiveTurn {
    /// Id of the answer's drafts.
    id: u64,
    draft: String,
    /// Number of shown bytes of the draft.
    shown: usize,
    takes_drafts: bool,
    /// Earliest times of the next draft and the next typing action.
    next_draft: Instant,
    next_typing: Instant,
}

/// Running turns by chat.
#[derive(Clone, Default)]
pub(super) struct ActiveTurns(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    turns: BTreeMap<String, ActiveTurn>,
    /// Chat whose draft is being sent, without the lock.
    drafting: Option<String>,
}

impl ActiveTurns {
    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.0.state)
    }

    /// Ends a turn, after its draft that is being sent. A later draft would appear after the answer.
    pub(super) fn end(&self, chat: &str) {
        let mut state = self.lock();
        state.turns.remove(chat);
        let is_drafting = |state: &mut State| state.drafting.as_deref() == Some(chat);
        drop(self.0.changed.wait_while(state, is_drafting));
    }
}

pub(super) struct Activity {
    pub api: Arc<Api>,
    pub turns: ActiveTurns,
    pub drafts: bool,
    /// Id of the last turn's drafts.
    pub last_id: u64,
    pub cancel: Cancel,
}

impl Activity {
    /// Shows the running turns of Telegram chats.
    pub(super) fn run(mut self, events: &Receiver<(String, Event)>) {
        loop {
            let received = match self.show() {
                Some(at) => events.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match received {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
                Ok((chat, event)) => self.update(chat, event),
            }
            // Many events may have arrived during a slow call.
            for (chat, event) in events.try_iter() {
                self.update(chat, event);
            }
        }
    }

    fn update(&mut self, chat: String, event: Event) {
        let mut state = self.turns.lock();
        let turn = state.turns.get_mut(&chat);
        match (event, turn) {
            (Event::TurnStarted, _) => {
                self.last_id += 1;
                let now = Instant::now();
                let turn = ActiveTurn {
                    id: self.last_id,
                    draft: String::new(),
                    shown: 0,
                    takes_drafts: self.drafts,
                    next_draft: now,
                    next_typing: now,
                };
                state.turns.insert(chat, turn);
            }
            (Event::Done(_), _) => drop(state.turns.remove(&chat)),
            (Event::Delta(text), Some(turn)) => turn.draft.push_str(&text),
            (Event::Progress(_), Some(turn)) => {
                turn.draft.clear();
                turn.shown = 0;
            }
            _ => {}
        }
    }

    /// Shows the first update that is due, and returns the time of the next one.
    fn show(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.turns.lock();
        let turns = state.turns.iter_mut();
        let (chat, turn) = turns.min_by_key(|(chat, turn)| next_update(chat, turn).0)?;
        let (at, method) = next_update(chat, turn);
        if at > now {
            return Some(at);
        }
        let (chat, mut params) = (chat.clone(), chat_params(chat));
        if method == DRAFT {
            let draft = turn.draft.trim();
            (turn.next_draft, turn.shown) = (now + DRAFTS, draft.len());
            (params["draft_id"], params["text"]) = (turn.id.into(), clip(draft, MAX_DRAFT).into());
            state.drafting = Some(chat.clone());
        } else {
            turn.next_typing = now + TYPING;
            params["action"] = "typing".into();
        }
        drop(state);
        let called = self.api.call(method, &params, Duration::ZERO, &self.cancel);
        let mut state = self.turns.lock();
        state.drafting = None;
        self.turns.0.changed.notify_all();
        match (called, state.turns.get_mut(&chat)) {
            // The server asked for a pause.
            (Err(Failure::TooMany(wait)), Some(turn)) => {
                let then = Instant::now() + wait;
                (turn.next_draft, turn.next_typing) = (then, then);
            }
            // The server, or this chat, does not support drafts.
            (Err(Failure::Refused(..) | Failure::Unauthorized(_)), Some(turn))
                if method == DRAFT =>
            {
                turn.takes_drafts = false;
            }
            _ => {}
        }
        Some(now)
    }
}

/// Returns the time and the method of a turn's next update.
fn next_update(chat: &str, turn: &ActiveTurn) -> (Instant, &'static str) {
    let has_more = turn.draft.trim().len() > turn.shown;
    // Groups, whose ids are negative, do not support drafts.
    let shows_draft = turn.takes_drafts && has_more && !chat.contains(['-', '_']);
    if shows_draft && turn.next_draft <= turn.next_typing {
        (turn.next_draft, DRAFT)
    } else {
        (turn.next_typing, "sendChatAction")
    }
}
