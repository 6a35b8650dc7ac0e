//! Conversations that end with the program, for `--no-session` and for embedding.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{LOCK_WAIT, Line, QUIET_WAIT, Session, Store, busy};
use crate::cancel::Cancel;
use crate::disk::Durability;
use crate::error::{Error, Kind, Result};
use crate::pace::paced;

/// Between two looks whether a conversation is free.
const PAUSE: Duration = Duration::from_millis(10);

/// Keeps conversations in memory: of each the lines that the live file would have. Clones share them.
#[derive(Clone, Default)]
pub struct Memory {
    all: Arc<Mutex<HashMap<String, Conversation>>>,
}

#[derive(Default)]
struct Conversation {
    lines: Vec<Line>,
    is_held: bool,
}

/// Frees a conversation when it is dropped.
struct Held {
    memory: Memory,
    name: String,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(conversation) = self.memory.lock().get_mut(&self.name) {
            conversation.is_held = false;
        }
    }
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Conversation>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a conversation if nobody does.
    fn hold(&self, name: &str) -> Option<Held> {
        let mut all = self.lock();
        let conversation = all.entry(name.to_owned()).or_default();
        if conversation.is_held {
            return None;
        }
        conversation.is_held = true;
        Some(Held {
            memory: self.clone(),
            name: name.to_owned(),
        })
    }
}

impl Store for Memory {
    fn load(&self, name: &str, cancel: &Cancel, waiting: &dyn Fn()) -> Result<Session> {
        let started = Instant::now();
        let mut is_told = false;
        let held = loop {
            if let Some(held) = self.hold(name) {
                break held;
            }
            let waited = started.elapsed();
            if waited >= paced(LOCK_WAIT) {
                return Err(busy(
                    name,
                    Error::new(
                        Kind::Busy,
                        format!("still busy after {} s", waited.as_secs()),
                    ),
                ));
            }
            if waited >= QUIET_WAIT && !is_told {
                waiting();
                is_told = true;
            }
            if cancel.sleep(PAUSE).is_err() {
                return Err(Error::new(
                    Kind::Interrupted,
                    "stopped while waiting for another run",
                ));
            }
        };
        Ok(self.peek(name)?.locked_by(held))
    }

    fn peek(&self, name: &str) -> Result<Session> {
        let lines = self
            .lock()
            .get(name)
            .map(|conversation| conversation.lines.clone());
        Session::read(name, lines.unwrap_or_default())
    }

    fn write(&self, session: &mut Session, lines: &[Line], _: Durability) -> Result<()> {
        let mut all = self.lock();
        let conversation = all.entry(session.name.clone()).or_default();
        conversation.lines.extend_from_slice(lines);
        Ok(())
    }

    fn replace(&self, session: &mut Session, lines: Vec<Line>) -> Result<Option<PathBuf>> {
        self.lock().entry(session.name.clone()).or_default().lines = lines;
        Ok(None)
    }
}
