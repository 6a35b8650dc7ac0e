//! Conversations that end with the program, for `--no-session` and for embedding.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::Value;

use super::{Entry, Session, Store};
use crate::cancel::Cancel;
use crate::disk::{Durability, Fields, Line};
use crate::error::Result;
use crate::message::Message;

/// Keeps conversations in memory: of each the lines that the live file would have. Clones share them.
#[derive(Clone, Default)]
pub struct Memory {
    all: Arc<Mutex<HashMap<String, Vec<Line>>>>,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Line>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn push(lines: &mut Vec<Line>, new: Vec<Fields>) {
    let first = lines.len() as u64;
    lines.extend((first..).zip(new).map(|(seq, fields)| Line {
        seq,
        fields: Value::Object(fields),
    }));
}

impl Store for Memory {
    fn load(&self, name: &str, _: &Cancel, _: &dyn Fn()) -> Result<Session> {
        self.peek(name)
    }

    fn peek(&self, name: &str) -> Result<Session> {
        let lines = self.lock().get(name).cloned().unwrap_or_default();
        let next = lines.len() as u64;
        let mut session = Session::new(name);
        session.replay(lines, next);
        Ok(session)
    }

    fn append(
        &self,
        session: &mut Session,
        entries: &[Entry],
        _: Durability,
        now: SystemTime,
    ) -> Result<()> {
        let new = session.lines(entries, now);
        push(self.lock().entry(session.name.clone()).or_default(), new);
        session.appended(entries, now);
        Ok(())
    }

    fn renew(
        &self,
        session: &mut Session,
        summary: Option<String>,
        kept: Vec<Message>,
        now: SystemTime,
    ) -> Result<Option<PathBuf>> {
        let mut lines = Vec::new();
        push(
            &mut lines,
            session.next_segment(summary.as_deref(), &kept, now),
        );
        self.lock().insert(session.name.clone(), lines);
        session.enter_segment(summary, kept);
        Ok(None)
    }
}
