//! A turn's conversation: locked, with its position in the store.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::json;

use super::entries::{Entry, fields, header};
use super::lock::lock_when_free;
use super::{Durability, Guard, Line, MemoryStore, Record, Session, Store};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::message::{Message, User};
use crate::paths::check_session;
use crate::text::rfc3339;

/// A locked conversation, which only its owner can change.
pub(crate) struct OpenSession {
    pub session: Session,
    store: Arc<dyn Store>,
    _guard: Guard,
}

impl OpenSession {
    /// Locks a conversation, and reads it for a turn. Calls `on_wait` after waiting for a second; `cancel` ends the wait.
    ///
    /// # Errors
    /// Returns [`crate::error::Kind::Busy`] if it is still locked after 30 seconds, [`crate::error::Kind::Interrupted`] if the
    /// wait is cancelled, [`crate::error::Kind::Config`] if a newer program wrote it, [`crate::error::Kind::Usage`] for an
    /// invalid key, and errors of the storage.
    pub(crate) fn open(
        store: &Arc<dyn Store>,
        key: &str,
        cancel: &Cancel,
        on_wait: &dyn Fn(),
    ) -> Result<Self> {
        check_session(key)?;
        let guard = lock_when_free(key, cancel, on_wait, || store.lock(key))?;
        let mut open = Self {
            session: Session::peek(&**store, key)?,
            store: store.clone(),
            _guard: guard,
        };
        let missing = std::mem::take(&mut open.session.missing);
        if !missing.is_empty() {
            let entries: Vec<Record> = missing.iter().map(Record::Message).collect();
            // They are among the messages already, each after its call.
            let messages = open.session.messages.clone();
            open.append(&entries, Durability::Later, SystemTime::now())?;
            open.session.messages = messages;
        }
        Ok(open)
    }

    /// Begins a conversation with these messages that is only in memory.
    ///
    /// # Errors
    /// Returns [`crate::error::Kind::Usage`] for an invalid key.
    pub(crate) fn with_history(key: &str, history: &[Message]) -> Result<Self> {
        check_session(key)?;
        let now = rfc3339(SystemTime::now());
        let line = |message| fields(&Record::Message(message), &now);
        let entries = history.iter().map(line).filter_map(Entry::parse);
        Ok(Self {
            session: Session::of(key, entries.map(Ok))?,
            store: Arc::new(MemoryStore::default()),
            _guard: Box::new(()),
        })
    }

    /// Returns the number of the next line in the conversation, unique across all its segments.
    pub(crate) fn place(&self) -> u64 {
        self.session.base + self.session.next
    }

    /// Creates the entry that undoes the user's last message and all that follows it.
    pub(crate) fn undo_turn(&self) -> Record<'static> {
        Record::Undo(self.session.asked.saturating_sub(self.session.base))
    }

    /// Appends entries, on disk before this returns.
    ///
    /// # Errors
    /// Returns those of [`OpenSession::append`].
    pub(crate) fn store(&mut self, entries: &[Record]) -> Result<()> {
        self.append(entries, Durability::Now, SystemTime::now())
    }

    /// Appends entries with the time `now`.
    ///
    /// # Errors
    /// Returns errors of the storage; then no entry is stored.
    pub(crate) fn append(
        &mut self,
        entries: &[Record],
        durability: Durability,
        now: SystemTime,
    ) -> Result<()> {
        let lines = self.lines(entries, now);
        let session = &mut self.session;
        let next = usize::try_from(session.next).unwrap_or(usize::MAX);
        self.store.write(&session.name, next, &lines, durability)?;
        for line in lines {
            let seq = Some(session.base + session.next);
            session.next += 1;
            if let Some(entry) = Entry::parse(line) {
                session.apply(Entry { seq, ..entry });
            }
        }
        Ok(())
    }

    /// Begins a new segment with `summary` and the messages `kept`, which replace the messages of this conversation. Its model
    /// is unchanged. Does nothing before the first line.
    ///
    /// # Errors
    /// Returns errors of the storage. Then either nothing has changed, or all later writes fail.
    pub(crate) fn renew(
        &mut self,
        summary: Option<String>,
        kept: Vec<Message>,
        now: SystemTime,
    ) -> Result<()> {
        if self.session.next == 0 {
            return Ok(());
        }
        // Without a summary and messages, a new conversation begins.
        if summary.is_none() && kept.is_empty() {
            self.session.created = rfc3339(now);
            self.session.title.clear();
            self.session.has_title = false;
            self.session.values.clear();
        }
        // The kept messages repeat lines of this segment and take its last numbers, so that line numbers remain unique.
        let next = kept.len() as u64 + 1;
        let base = self.place().saturating_sub(next);
        let mut lines = self.next_segment(summary.as_deref(), &kept, now);
        lines[0].insert("base".to_owned(), base.into());
        let session = &mut self.session;
        self.store
            .write(&session.name, 0, &lines, Durability::Now)?;
        let asked = kept.iter().rposition(Message::is_question);
        session.asked = base + asked.map_or(0, |at| at as u64 + 1);
        (session.base, session.next) = (base, next);
        (session.summary, session.messages) = (summary, kept);
        Ok(())
    }

    /// Takes the results of the calls at the end that have not begun, for a turn that runs the calls, or stores the results.
    pub(crate) fn take_not_begun(&mut self) -> Vec<Message> {
        let count = std::mem::take(&mut self.session.not_begun);
        let messages = &mut self.session.messages;
        messages.split_off(messages.len() - count)
    }

    /// Converts entries to lines, after line 0 if it is not written yet.
    fn lines(&self, entries: &[Record], now: SystemTime) -> Vec<Line> {
        let now = rfc3339(now);
        let header = (self.session.next == 0).then(|| header(&self.session.name, &now));
        header
            .into_iter()
            .chain(entries.iter().map(|entry| fields(entry, &now)))
            .collect()
    }

    /// Creates the first lines of the next segment. A reply or a result has the time of the user's message before it.
    fn next_segment(&self, summary: Option<&str>, kept: &[Message], now: SystemTime) -> Vec<Line> {
        let mut time = rfc3339(now);
        let session = &self.session;
        let state = json!({
            "values": session.values,
            "model": session.model,
            "allowed": session.allowed,
        });
        let mut header = header(&session.name, &time);
        for (name, value) in [
            ("began", json!(session.created)),
            ("summary", json!(summary)),
            ("title", json!(session.title)),
            ("state", state),
        ] {
            header.insert(name.to_owned(), value);
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
}
