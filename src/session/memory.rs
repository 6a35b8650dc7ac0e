//! Conversations that end with the program, for `--no-session` and for embedding.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::archive::newest_first;
use super::line_store::Locks;
use super::{Line, Session, Store, Summary, lock_when_free};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::storage::Durability;

/// Keeps conversations in memory, as the lines that their file would have. Clones share them.
#[derive(Clone, Default)]
pub struct Memory {
    all: Arc<Mutex<HashMap<String, Vec<Line>>>>,
    locks: Locks,
}

impl Memory {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Vec<Line>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Memory {
    fn load(&self, name: &str, cancel: &Cancel, waiting: &dyn Fn()) -> Result<Session> {
        let lock = lock_when_free(name, cancel, waiting, || Ok(self.locks.lock(name)))?;
        Ok(self.peek(name)?.locked_by(lock))
    }

    fn peek(&self, name: &str) -> Result<Session> {
        let lines = self.all().get(name).cloned();
        Session::read(name, lines.unwrap_or_default())
    }

    fn write(&self, session: &mut Session, lines: &[Line], _: Durability) -> Result<()> {
        let mut all = self.all();
        all.entry(session.name.clone())
            .or_default()
            .extend_from_slice(lines);
        Ok(())
    }

    fn replace(&self, session: &mut Session, lines: Vec<Line>) -> Result<Option<PathBuf>> {
        let mut all = self.all();
        if lines.is_empty() {
            all.remove(&session.name);
        } else {
            all.insert(session.name.clone(), lines);
        }
        Ok(None)
    }

    fn list(&self) -> Result<Vec<Summary>> {
        let all = self.all().clone();
        let list = all.into_iter();
        let list = list.map(|(key, lines)| Summary::of(&key, Session::read(&key, lines).ok()));
        Ok(newest_first(list.collect()))
    }
}
