//! A conversation that a turn has: locked, with its place in the store.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::json;

use super::lines::{fields, header};
use super::lock::lock_when_free;
use super::replay::{Position, replay};
use super::{Durability, Guard, Line, MemoryStore, Record, Session, Store, values};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::message::{Message, ToolCall, User};
use crate::paths::check_session;
use crate::text::rfc3339;

/// A conversation that is locked: nobody else changes it.
pub(crate) struct OpenSession {
    pub session: Session,
    position: Position,
    /// The results of so many messages at the end stand for calls that have not begun: no file has them.
    not_begun: usize,
    is_undone: bool,
    store: Arc<dyn Store>,
    _guard: Guard,
}

impl OpenSession {
    /// Locks a conversation, and reads it for a turn. Calls `on_wait` when somebody else has held it for a second; `cancel` ends
    /// the wait.
    ///
    /// # Errors
    /// [`crate::error::Kind::Busy`] when it stays locked for 30 seconds, [`crate::error::Kind::Interrupted`] when the wait is
    /// cancelled, [`crate::error::Kind::Config`] when a newer program wrote it, [`crate::error::Kind::Usage`] for a key that is no
    /// plain name, and errors of the storage.
    pub(crate) fn open(
        store: &Arc<dyn Store>,
        key: &str,
        cancel: &Cancel,
        on_wait: &dyn Fn(),
    ) -> Result<Self> {
        check_session(key)?;
        let guard = lock_when_free(key, cancel, on_wait, || store.lock(key))?;
        let found = replay(key, store.read(key)?)?;
        let mut open = Self {
            session: found.session,
            position: found.position,
            not_begun: found.not_begun,
            is_undone: found.is_undone,
            store: store.clone(),
            _guard: guard,
        };
        let entries: Vec<Record> = found.missing.iter().map(Record::Message).collect();
        if !entries.is_empty() {
            open.append(&entries, Durability::Later, SystemTime::now())?;
        }
        Ok(open)
    }

    /// A conversation with these messages that is stored nowhere else.
    ///
    /// # Errors
    /// Of the kind [`crate::error::Kind::Usage`] for a key that is no plain name.
    pub(crate) fn with_history(key: &str, history: &[Message]) -> Result<Self> {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let open = || Self::open(&store, key, &Cancel::new(None), &|| ());
        let mut session = open()?;
        if !history.is_empty() {
            let records: Vec<Record> = history.iter().map(Record::Message).collect();
            session.append(&records, Durability::Later, SystemTime::now())?;
        }
        drop(session);
        // Read again, so that each call in it has one result.
        open()
    }

    /// The number of the next line in the conversation, unique across all its segments.
    pub(crate) fn place(&self) -> u64 {
        self.position.base + self.position.next
    }

    /// Whether nothing follows its first line.
    pub(super) fn is_empty(&self) -> bool {
        self.position.next <= 1
    }

    /// The place of the user's last message.
    pub(crate) fn asked_at(&self) -> u64 {
        self.position.base + self.position.asked
    }

    /// Whether the last that happened is that a turn was taken back.
    pub(crate) fn is_undone(&self) -> bool {
        self.is_undone
    }

    /// Takes back the user's last message and all that follows it.
    pub(crate) fn undo_turn(&self) -> Record<'static> {
        Record::Undo(self.position.asked)
    }

    /// Appends entries, with `now` as their time, and updates all but the messages.
    ///
    /// # Errors
    /// Errors of the storage; then none of them is kept.
    pub(crate) fn append(
        &mut self,
        entries: &[Record],
        durability: Durability,
        now: SystemTime,
    ) -> Result<()> {
        let lines = self.lines(entries, now);
        let next = usize::try_from(self.position.next).unwrap_or(usize::MAX);
        self.store
            .write(&self.session.name, next, &lines, durability)?;
        self.appended(entries, now);
        Ok(())
    }

    /// Begins a new segment with `summary` and the messages `kept`, which become those of this conversation; its model stays.
    /// Does nothing if nothing is stored yet.
    ///
    /// # Errors
    /// Errors of the storage; then nothing has changed, or nothing can be written any more.
    pub(crate) fn renew(
        &mut self,
        summary: Option<String>,
        kept: Vec<Message>,
        now: SystemTime,
    ) -> Result<()> {
        if self.position.next == 0 {
            return Ok(());
        }
        let lines = self.next_segment(summary.as_deref(), &kept, now);
        let name = &self.session.name;
        self.store.write(name, 0, &lines, Durability::Now)?;
        self.enter_segment(summary, kept);
        Ok(())
    }

    /// Takes the calls at the end that have not begun, for a turn that continues with them.
    pub(crate) fn take_not_begun(&mut self) -> Vec<ToolCall> {
        let count = std::mem::take(&mut self.not_begun);
        let messages = &mut self.session.messages;
        messages.truncate(messages.len() - count);
        let reply = |message: &Message| match message {
            Message::Assistant(reply) => Some(reply.calls.clone()),
            _ => None,
        };
        let mut calls = messages.iter().rev().find_map(reply).unwrap_or_default();
        calls.split_off(calls.len().saturating_sub(count))
    }

    /// The results of the calls that have not begun, for a turn that does not go on with them to append.
    pub(crate) fn give_up_not_begun(&mut self) -> Vec<Message> {
        let count = std::mem::take(&mut self.not_begun);
        self.session.messages[self.session.messages.len() - count..].to_vec()
    }

    /// The lines of these entries, after the first line of all if there is none yet.
    fn lines(&self, entries: &[Record], now: SystemTime) -> Vec<Line> {
        let now = rfc3339(now);
        let header = (self.position.next == 0).then(|| header(&self.session.name, &now));
        header
            .into_iter()
            .chain(entries.iter().map(|entry| fields(entry, &now)))
            .collect()
    }

    /// Takes over that these entries are stored.
    fn appended(&mut self, entries: &[Record], now: SystemTime) {
        let (session, position) = (&mut self.session, &mut self.position);
        let first = position.next.max(1);
        position.next = first + entries.len() as u64;
        for (line, entry) in (first..).zip(entries) {
            match entry {
                Record::Model(model) => session.model = Some((*model).to_owned()),
                Record::Allow(tools) => session.allowed = tools.to_vec(),
                Record::Value(name, value) => {
                    values::put(&mut session.values, name, (*value).clone());
                }
                Record::Message(message) => {
                    session.last = rfc3339(now);
                    session.entitle(message);
                    if message.is_question() {
                        position.asked = line;
                    }
                }
                Record::End(_) | Record::Undo(_) | Record::Asked(_) => {}
            }
        }
    }

    /// The lines that the next segment begins with. Its kept messages repeat lines of this one and take its last numbers, so that a
    /// line after them has a number that none had before. A reply or a result has the time of the user's message before it.
    fn next_segment(&self, summary: Option<&str>, kept: &[Message], now: SystemTime) -> Vec<Line> {
        let mut time = rfc3339(now);
        let mut header = header(&self.session.name, &time);
        header.insert("base".to_owned(), self.next_base(kept).into());
        if !self.session.created.is_empty() {
            header.insert("began".to_owned(), self.session.created.as_str().into());
        }
        header.extend(summary.map(|summary| ("summary".to_owned(), summary.into())));
        // Where nothing is kept, another conversation begins.
        let goes_on = summary.is_some() || !kept.is_empty();
        if goes_on && !self.session.title.is_empty() {
            header.insert("title".to_owned(), self.session.title.as_str().into());
        }
        let mut state = Line::new();
        if goes_on && !self.session.values.is_empty() {
            state.insert("values".to_owned(), self.session.values.clone().into());
        }
        if let Some(model) = &self.session.model {
            state.insert("model".to_owned(), model.as_str().into());
        }
        if !self.session.allowed.is_empty() {
            state.insert("allowed".to_owned(), json!(self.session.allowed));
        }
        if !state.is_empty() {
            header.insert("state".to_owned(), state.into());
        }
        let mut lines = vec![header];
        for message in kept {
            if let Message::User(User { time: said, .. }) = message {
                if !said.is_empty() {
                    time.clone_from(said);
                }
            }
            lines.push(fields(&Record::Message(message), &time));
        }
        lines
    }

    fn next_base(&self, kept: &[Message]) -> u64 {
        self.place().saturating_sub(kept.len() as u64 + 1)
    }

    fn enter_segment(&mut self, summary: Option<String>, kept: Vec<Message>) {
        let (base, next) = (self.next_base(&kept), kept.len() as u64 + 1);
        let asked = kept
            .iter()
            .rposition(Message::is_question)
            .map_or(0, |at| at as u64 + 1);
        self.position = Position { base, next, asked };
        if summary.is_none() && kept.is_empty() {
            self.session.title.clear();
            self.session.values.clear();
        }
        (self.session.summary, self.session.messages) = (summary, kept);
    }
}
