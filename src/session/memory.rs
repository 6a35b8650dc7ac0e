//! Conversations that end with the program, for `--no-session` and for embedding.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::{Entry, Session, State, Store, later_base, pair};
use crate::cancel::Cancel;
use crate::disk::Durability;
use crate::error::Result;
use crate::message::{Message, User};
use crate::text::rfc3339;

/// Keeps conversations in memory, of each only the newest segment. Clones share them.
#[derive(Clone, Default)]
pub struct Memory {
    all: Arc<Mutex<HashMap<String, Conversation>>>,
}

#[derive(Clone, Default)]
struct Conversation {
    messages: Vec<Message>,
    summary: Option<String>,
    state: State,
    last: String,
    base: u64,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Conversation>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Memory {
    fn load(&self, name: &str, _: &Cancel) -> Result<Session> {
        self.peek(name)
    }

    fn peek(&self, name: &str) -> Result<Session> {
        let Conversation { messages, summary, state, last, base } = self.lock().get(name).cloned().unwrap_or_default();
        let next = messages.len() as u64;
        let mut session =
            Session { name: name.to_owned(), messages, summary, state, last, next, base, ..Session::default() };
        pair(&mut session.messages);
        Ok(session)
    }

    fn append(&self, session: &mut Session, entries: &[Entry], _: Durability, now: SystemTime) -> Result<()> {
        let mut all = self.lock();
        let kept = all.entry(session.name.clone()).or_default();
        for entry in entries {
            match entry {
                Entry::Message(message) => {
                    kept.messages.push(match message {
                        Message::User(user) => Message::User(User { time: rfc3339(now), ..user.clone() }),
                        other => (*other).clone(),
                    });
                    kept.last = rfc3339(now);
                }
                Entry::State(name, value) => drop(kept.state.insert((*name).to_owned(), (*value).to_owned())),
                Entry::Undo(from) => kept.messages.truncate(usize::try_from(*from).unwrap_or(usize::MAX)),
                Entry::TurnEnd(_) => {}
            }
        }
        session.next = kept.messages.len() as u64;
        session.state.clone_from(&kept.state);
        session.last.clone_from(&kept.last);
        Ok(())
    }

    fn renew(
        &self,
        session: &mut Session,
        summary: Option<String>,
        messages: Vec<Message>,
        _: SystemTime,
    ) -> Result<Option<PathBuf>> {
        let (base, next) = (later_base(session, messages.len()), messages.len() as u64);
        session.enter_segment(summary, messages, base, next);
        let mut all = self.lock();
        let kept = all.entry(session.name.clone()).or_default();
        (kept.messages, kept.summary, kept.base) = (session.messages.clone(), session.summary.clone(), base);
        Ok(None)
    }
}
