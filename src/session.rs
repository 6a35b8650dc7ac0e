//! Conversations on disk: one journal each, locked for the length of a turn.
//!
//! A session file is a [`disk::Journal`]. Line 0 is `{"v":1,"session","created"}`; the others are messages with a time,
//! `{"turn":"done|failed|cancelled"}` at the end of each turn, and `{"undo":N}`: the lines from N on are not history.

pub mod shelf;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::cancel::Cancel;
use crate::disk::{self, Durability, Fields, Journal, Lock};
use crate::error::{Context, Error, Kind, Result};
use crate::message::{Message, ToolResult, User};
use crate::paths::Home;
use crate::text::rfc3339;

/// The version of the format that this program writes. A file of a higher one is refused: guessing would damage it.
const VERSION: u64 = 1;

/// How long a run waits for another that holds the session.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// Stands for the result of a call that was under way when the program ended.
const INTERRUPTED: &str = "interrupted, outcome unknown";

/// How a turn ended, as its last line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    Done,
    Failed,
    Cancelled,
}

impl TurnEnd {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Done, Self::Failed, Self::Cancelled].into_iter().find(|end| end.name() == name)
    }
}

/// A thing to append.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    Message(&'a Message),
    TurnEnd(TurnEnd),
    /// The lines from this one on are not history.
    Undo(u64),
}

/// A conversation, locked and loaded.
pub struct Session {
    pub name: String,
    /// The history: every call in it has exactly one result.
    pub messages: Vec<Message>,
    /// One sentence for each thing about the file that was not as it should be.
    pub damage: Vec<String>,
    next: u64,
    held: Option<Held>,
}

struct Held {
    journal: Option<Journal>,
    _lock: Lock,
}

impl Session {
    /// The number of the next line: what [`Entry::Undo`] takes to undo what follows.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }
}

/// Where conversations are kept.
pub trait Store: Send + Sync {
    /// Loads the conversation `name`, empty if it is new, and holds it until the session is dropped.
    ///
    /// # Errors
    /// [`Kind::Busy`] when somebody else holds it for too long, [`Kind::Config`] when a newer program wrote it, and
    /// what the file system says.
    fn load(&self, name: &str, cancel: &Cancel) -> Result<Session>;

    /// The history of the conversation `name` as it is now. Changes nothing and waits for nobody.
    ///
    /// # Errors
    /// [`Kind::Config`] when a newer program wrote it, and what the file system says.
    fn peek(&self, name: &str) -> Result<Vec<Message>>;

    /// Appends to a loaded conversation; `now` is the time of what is appended. Does not touch `session.messages`.
    ///
    /// # Errors
    /// What the file system says; nothing is appended then.
    fn append(&self, session: &mut Session, entries: &[Entry], durability: Durability, now: SystemTime) -> Result<()>;
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn load(&self, name: &str, cancel: &Cancel) -> Result<Session> {
        (**self).load(name, cancel)
    }

    fn peek(&self, name: &str) -> Result<Vec<Message>> {
        (**self).peek(name)
    }

    fn append(&self, session: &mut Session, entries: &[Entry], durability: Durability, now: SystemTime) -> Result<()> {
        (**self).append(session, entries, durability, now)
    }
}

/// Conversations as files below `$BANTAM_HOME/sessions`.
pub struct Files {
    home: Home,
}

impl Files {
    #[must_use]
    pub fn new(home: Home) -> Self {
        Self { home }
    }

    /// An error of the file system, with what to check.
    fn hinted(&self, e: Error) -> Error {
        if e.hint.is_some() {
            return e;
        }
        let home = self.home.root().display();
        e.hint(format!("check that {home} is a directory you can write, or set BANTAM_HOME to another"))
    }
}

impl Store for Files {
    fn load(&self, name: &str, cancel: &Cancel) -> Result<Session> {
        let lock = lock(&self.home, name, cancel).map_err(|e| self.hinted(e))?;
        let path = self.home.session(name);
        let mut session = Session {
            name: name.to_owned(),
            messages: Vec::new(),
            damage: Vec::new(),
            next: 1,
            held: Some(Held { journal: None, _lock: lock }),
        };
        let Some(opened) = Journal::open(&path).doing("opening the session").map_err(|e| self.hinted(e))? else {
            return Ok(session);
        };
        if let Some(e) = too_new(&opened.lines, &path) {
            return Err(e.hint("use the newer bantam that wrote it, or another --session"));
        }
        session.damage = opened.damage;
        session.next = opened.journal.next();
        session.messages = replay(opened.lines);
        if let Some(held) = &mut session.held {
            held.journal = Some(opened.journal);
        }
        let missing = pair(&mut session.messages);
        if !missing.is_empty() {
            let entries: Vec<Entry> = missing.iter().map(Entry::Message).collect();
            self.append(&mut session, &entries, Durability::Later, SystemTime::now())?;
        }
        Ok(session)
    }

    fn peek(&self, name: &str) -> Result<Vec<Message>> {
        let path = self.home.session(name);
        let lines = disk::read_journal(&path).doing("reading the session")?.unwrap_or_default().lines;
        if let Some(e) = too_new(&lines, &path) {
            return Err(e.hint("use the newer bantam that wrote it, or another --session"));
        }
        let mut messages = replay(lines);
        pair(&mut messages);
        Ok(messages)
    }

    fn append(&self, session: &mut Session, entries: &[Entry], durability: Durability, now: SystemTime) -> Result<()> {
        let now = rfc3339(now);
        let mut lines: Vec<Fields> = entries.iter().map(|entry| fields(entry, &now)).collect();
        let Some(held) = &mut session.held else {
            return Err(Error::failed("the session was not loaded from a file"));
        };
        if let Some(journal) = &mut held.journal {
            journal.append(&lines, durability)?;
        } else {
            lines.insert(0, header(&session.name, &now));
            let journal = Journal::create(&self.home.session(&session.name), &lines)
                .doing("starting the session")
                .map_err(|e| self.hinted(e))?;
            held.journal = Some(journal);
        }
        session.next = held.journal.as_ref().map_or(session.next, Journal::next);
        Ok(())
    }
}

/// What is wrong with a session file, and whether a crash cut its end short, in sentences. Looks only: what there is to
/// mend, the next turn mends.
///
/// # Errors
/// It cannot be read.
pub fn inspect(path: &Path) -> Result<(Vec<String>, Option<String>)> {
    let found = disk::read_journal(path).doing("reading the session")?.unwrap_or_default();
    let mut damage = found.damage;
    damage.extend(too_new(&found.lines, path).map(|e| e.message));
    Ok((damage, found.torn))
}

fn lock(home: &Home, name: &str, cancel: &Cancel) -> Result<Lock> {
    Lock::acquire(&home.session_lock(name), LOCK_WAIT, cancel).map_err(|e| match e.kind {
        Kind::Busy => e
            .doing(format_args!("waiting for session {name}"))
            .hint("another run is using it: wait for that, or use --session with another key"),
        _ => e,
    })
}

/// What is wrong with a file that a newer program wrote.
fn too_new(lines: &[disk::Line], path: &Path) -> Option<Error> {
    let v = lines.iter().find_map(|l| l.fields.get("v")?.as_u64()).filter(|v| *v > VERSION)?;
    Some(Error::config(format!("{} has format {v}, newer than this bantam's {VERSION}", path.display())))
}

/// Line 0 of a session file.
fn header(name: &str, now: &str) -> Fields {
    json!({"v": VERSION, "session": name, "created": now}).as_object().cloned().unwrap_or_default()
}

fn fields(entry: &Entry, now: &str) -> Fields {
    match entry {
        Entry::Message(message) => {
            let mut line = Fields::new();
            line.insert("time".to_owned(), now.into());
            line.extend(message.to_json());
            line
        }
        Entry::TurnEnd(end) => Fields::from_iter([("turn".to_owned(), Value::from(end.name()))]),
        Entry::Undo(from) => Fields::from_iter([("undo".to_owned(), Value::from(*from))]),
    }
}

/// The lines that count: what was undone is left out.
fn standing(lines: Vec<disk::Line>) -> Vec<disk::Line> {
    let mut standing: Vec<disk::Line> = Vec::new();
    for line in lines {
        match line.fields.get("undo").and_then(Value::as_u64) {
            Some(from) => standing.retain(|line| line.seq < from),
            None => standing.push(line),
        }
    }
    standing
}

/// The messages that a file's lines come to.
fn replay(lines: Vec<disk::Line>) -> Vec<Message> {
    standing(lines).iter().filter_map(|line| Message::from_json(&line.fields)).collect()
}

/// Makes every call have exactly one result, right after it: results that belong to no call go, calls without one get
/// [`INTERRUPTED`]. Returns the results added at the very end, which the file does not have yet.
fn pair(messages: &mut Vec<Message>) -> Vec<Message> {
    let mut out = Vec::with_capacity(messages.len());
    let mut added = Vec::new();
    let mut rest = std::mem::take(messages).into_iter().peekable();
    while let Some(message) = rest.next() {
        match message {
            Message::ToolResult(_) => {}
            Message::Assistant(reply) => {
                let mut results: Vec<ToolResult> = Vec::new();
                while let Some(Message::ToolResult(result)) = rest.next_if(|m| matches!(m, Message::ToolResult(_))) {
                    results.push(result);
                }
                let calls: Vec<String> = reply.calls.iter().map(|c| c.id.clone()).collect();
                out.push(Message::Assistant(reply));
                added.clear();
                for call_id in calls {
                    let found = results.iter().position(|r| r.call_id == call_id).map(|at| results.swap_remove(at));
                    let result = found.unwrap_or_else(|| {
                        let content = INTERRUPTED.to_owned();
                        let lost = ToolResult { call_id, content, is_error: true, images: Vec::new() };
                        added.push(Message::ToolResult(lost.clone()));
                        lost
                    });
                    out.push(Message::ToolResult(result));
                }
            }
            other => out.push(other),
        }
    }
    *messages = out;
    if matches!(messages.last(), Some(Message::ToolResult(_))) { added } else { Vec::new() }
}

/// Conversations that live as long as the program: for `--no-session` and for embedding.
#[derive(Default)]
pub struct Memory {
    kept: Mutex<HashMap<String, Vec<Message>>>,
}

impl Store for Memory {
    fn load(&self, name: &str, _: &Cancel) -> Result<Session> {
        let mut messages = self.peek(name)?;
        let next = messages.len() as u64;
        pair(&mut messages);
        Ok(Session { name: name.to_owned(), messages, damage: Vec::new(), next, held: None })
    }

    fn peek(&self, name: &str) -> Result<Vec<Message>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kept.get(name).cloned().unwrap_or_default())
    }

    fn append(&self, session: &mut Session, entries: &[Entry], _: Durability, now: SystemTime) -> Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let messages = kept.entry(session.name.clone()).or_default();
        for entry in entries {
            match entry {
                Entry::Message(Message::User(user)) => {
                    messages.push(Message::User(User { time: rfc3339(now), ..user.clone() }));
                }
                Entry::Message(message) => messages.push((*message).clone()),
                Entry::Undo(from) => messages.truncate(usize::try_from(*from).unwrap_or(usize::MAX)),
                Entry::TurnEnd(_) => {}
            }
        }
        session.next = messages.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Reply, ToolCall};

    fn asks(ids: &[&str]) -> Message {
        let calls = ids.iter().map(|id| ToolCall { id: (*id).into(), ..ToolCall::default() }).collect();
        Message::Assistant(Reply { calls, ..Reply::default() })
    }

    fn answers(id: &str, content: &str) -> Message {
        Message::ToolResult(ToolResult { call_id: id.into(), content: content.into(), ..ToolResult::default() })
    }

    fn lost(id: &str) -> Message {
        let content = INTERRUPTED.into();
        Message::ToolResult(ToolResult { call_id: id.into(), content, is_error: true, images: Vec::new() })
    }

    #[test]
    fn every_call_gets_exactly_one_result() {
        let mut messages = vec![
            answers("orphan", "x"),
            asks(&["a", "b"]),
            answers("b", "2"),
            answers("b", "again"),
            Message::user("next"),
            asks(&["a", "c"]),
            answers("a", "3"),
        ];
        let added = pair(&mut messages);
        assert_eq!(
            messages,
            [
                asks(&["a", "b"]),
                lost("a"),
                answers("b", "2"),
                Message::user("next"),
                asks(&["a", "c"]),
                answers("a", "3"),
                lost("c"),
            ]
        );
        assert_eq!(added, [lost("c")]);
        assert!(pair(&mut messages).is_empty());
    }

    #[test]
    fn an_undone_turn_is_not_history() {
        let line = |seq, fields: Value| disk::Line { seq, fields };
        let messages = replay(vec![
            line(0, json!({"v": 1})),
            line(1, json!({"role": "user", "content": "kept"})),
            line(2, json!({"role": "user", "content": "refused"})),
            line(3, json!({"undo": 2})),
            line(4, json!({"role": "user", "content": "later"})),
        ]);
        assert_eq!(messages, [Message::user("kept"), Message::user("later")]);
    }
}
