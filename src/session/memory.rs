//! Conversations in memory, for `--no-session` and for embedding.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::lock::Locks;
use super::{Guard, Line, Store};
use crate::error::Result;
use crate::storage::Durability;
use crate::sync;

/// Stores conversations in memory, as the same lines that a file would have. Clones share them.
#[derive(Clone, Default)]
pub struct MemoryStore {
    all: Arc<Mutex<HashMap<String, Vec<Line>>>>,
    locks: Locks,
}

impl MemoryStore {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Vec<Line>>> {
        sync::lock(&self.all)
    }
}

impl Store for MemoryStore {
    fn read(&self, key: &str) -> Result<Vec<Line>> {
        Ok(self.all().get(key).cloned().unwrap_or_default())
    }

    fn write(&self, key: &str, from: usize, lines: &[Line], _: Durability) -> Result<()> {
        let mut all = self.all();
        let stored = all.entry(key.to_owned()).or_default();
        stored.truncate(from);
        stored.extend_from_slice(lines);
        if stored.is_empty() {
            all.remove(key);
        }
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.all().keys().cloned().collect())
    }

    fn lock(&self, key: &str) -> Result<Option<Guard>> {
        Ok(self.locks.lock(key))
    }
}
