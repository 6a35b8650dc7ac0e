//! Shows that an answer is being written: the typing action, and in private chats a draft of the text so far.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::CHANNEL;
use super::api::{Api, Failure};
use super::send::chat_params;
use crate::bus::{Event, Outbound};
use crate::cancel::Cancel;
use crate::sync;
use crate::text::clip;

/// Interval of the typing action, which Telegram shows for five seconds.
const TYPING: Duration = Duration::from_millis(4500);
/// Minimum interval between two drafts of an answer.
const DRAFTS: Duration = Duration::from_millis(1500);
/// Maximum size of a draft, in bytes. A message is limited to 4096 UTF-16 units, and a text has no more units than bytes.
const MAX_DRAFT: usize = 2000;

/// An answer in progress.
struct ActiveTurn {
    /// Id of the answer's drafts.
    id: u64,
    draft: String,
    /// Number of shown bytes of the draft.
    shown: usize,
    /// Earliest times of the next draft and the next typing action.
    next_draft: Instant,
    next_typing: Instant,
}

/// Running turns by chat.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<Mutex<BTreeMap<String, ActiveTurn>>>);

impl Turns {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ActiveTurn>> {
        sync::lock(&self.0)
    }

    /// Ends a turn; after it returns, the chat shows no more of the turn. A later draft would appear after the answer.
    pub(super) fn end(&self, chat: &str) {
        self.lock().remove(chat);
    }
}

pub(super) struct Activity {
    pub api: Arc<Api>,
    pub turns: Turns,
    pub drafts: bool,
    pub cancel: Cancel,
}

impl Activity {
    /// Shows the running turns of Telegram chats.
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

    /// Handles an event. `id` is the draft id of a turn that starts with it.
    fn update(&self, Outbound { origin, event }: Outbound, id: u64) {
        let mut turns = self.turns.lock();
        let turn = turns.get_mut(&origin.chat);
        match (event, turn) {
            (Event::TurnStarted, _) => {
                let (now, draft) = (Instant::now(), String::new());
                turns.insert(
                    origin.chat,
                    ActiveTurn {
                        id,
                        draft,
                        shown: 0,
                        next_draft: now,
                        next_typing: now,
                    },
                );
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

    /// Shows all due updates, and returns the time of the next one.
    fn show(&mut self) -> Option<Instant> {
        let turns = self.turns.clone();
        let mut turns = turns.lock();
        turns
            .iter_mut()
            .map(|(chat, turn)| self.show_turn(chat, turn))
            .min()
    }

    fn show_turn(&mut self, chat: &str, turn: &mut ActiveTurn) -> Instant {
        let (now, draft, mut params) = (Instant::now(), turn.draft.trim(), chat_params(chat));
        // Groups, whose ids are negative, do not support drafts.
        let has_more = self.drafts && draft.len() > turn.shown && !chat.contains(['-', '_']);
        let method = if has_more && turn.next_draft <= now {
            (turn.next_draft, turn.shown) = (now + DRAFTS, draft.len());
            (params["draft_id"], params["text"]) = (turn.id.into(), clip(draft, MAX_DRAFT).into());
            "sendMessageDraft"
        } else if turn.next_typing <= now {
            turn.next_typing = now + TYPING;
            params["action"] = "typing".into();
            "sendChatAction"
        } else {
            return if has_more {
                turn.next_draft.min(turn.next_typing)
            } else {
                turn.next_typing
            };
        };
        match self.api.call(method, &params, Duration::ZERO, &self.cancel) {
            // The server asked for a pause.
            Err(Failure::TooMany(wait)) => {
                (turn.next_draft, turn.next_typing) = (now + wait, now + wait);
            }
            // The server, or this chat, does not support drafts.
            Err(Failure::Refused(..) | Failure::Unauthorized(_))
                if method == "sendMessageDraft" =>
            {
                self.drafts = false;
            }
            _ => {}
        }
        now
    }
}
