//! Conversations on disk: one journal each, locked for the length of a turn.
//!
//! A session file is a [`disk::Journal`] in segments (see [`disk::segments`]). Line 0 is `{"v":1,"session","created"}`, in a
//! later segment with a `summary` of what was said before, the `state`, and the `base` that makes line numbers go on. The
//! others are messages with a time, `{"state":{k:v}}`, `{"turn":"done|failed|cancelled"}` at the end of each turn, and
//! `{"undo":N}`: the lines from N on are not history.

pub mod archive;
mod memory;
mod note;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::cancel::Cancel;
use crate::disk::{self, Durability, Fields, Journal, Lock};
use crate::error::{Context, Error, Kind, Result};
use crate::message::{Message, NOTE, ToolResult, User};
use crate::paths::Home;
use crate::text::rfc3339;
pub use memory::Memory;
pub use note::note;

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
    /// Something about the conversation that is no message: its name and its value. The last one of a name counts.
    State(&'a str, &'a str),
    /// The lines from this one on are not history.
    Undo(u64),
}

/// What is known about a conversation beside its messages; see [`Entry::State`].
pub type State = BTreeMap<String, String>;

/// The name of a state: the model that answers in this conversation, as `--model` takes it.
pub const MODEL: &str = "model";

/// A conversation, loaded, and locked unless it was only looked at.
#[derive(Default)]
pub struct Session {
    pub name: String,
    /// The history: every call in it has exactly one result.
    pub messages: Vec<Message>,
    /// What came before the messages, as a model put it.
    pub summary: Option<String>,
    pub state: State,
    /// How the last turn ended; `None` while it has not.
    pub ended: Option<TurnEnd>,
    /// When the last message came, as RFC 3339 in UTC; empty when there is none.
    pub last: String,
    /// One sentence for each thing about the file that was not as it should be.
    pub damage: Vec<String>,
    next: u64,
    base: u64,
    held: Option<Held>,
}

struct Held {
    journal: Option<Journal>,
    _lock: Lock,
}

impl Session {
    /// The number of the next line of the segment: what [`Entry::Undo`] takes to undo what follows.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The number of the next line of the conversation: no other line of it, in any segment, has the same.
    pub fn place(&self) -> u64 {
        self.base + self.next
    }

    /// What the lines of a file come to.
    fn replay(&mut self, lines: Vec<disk::Line>, next: u64) {
        self.next = next;
        let header = lines.first().map_or(&Value::Null, |line| &line.fields);
        self.base = base(header);
        self.summary = header.get("summary").and_then(Value::as_str).map(str::to_owned);
        self.state = state(&lines);
        for line in standing(lines) {
            let Some(message) = Message::from_json(&line.fields) else {
                let end = line.fields.get("turn").and_then(Value::as_str).and_then(TurnEnd::from_name);
                self.ended = end.or(self.ended);
                continue;
            };
            let is_note = matches!(&message, Message::User(user) if user.id.starts_with(NOTE));
            self.ended = self.ended.filter(|_| is_note);
            if let Some(Value::String(time)) = line.fields.get("time") {
                self.last.clone_from(time);
            }
            self.messages.push(message);
        }
    }

    /// The session in its next segment.
    fn begin_anew(&mut self, summary: Option<String>, kept: Vec<Message>, base: u64, next: u64) {
        (self.summary, self.messages) = (summary, kept);
        (self.base, self.next) = (base, next);
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

    /// The conversation `name` as it is now, to look at, with what is noted for it. Changes nothing and waits for nobody.
    ///
    /// # Errors
    /// [`Kind::Config`] when a newer program wrote it, and what the file system says.
    fn peek(&self, name: &str) -> Result<Session>;

    /// Appends to a loaded conversation; `now` is the time of what is appended. Does not touch `session.messages`.
    ///
    /// # Errors
    /// What the file system says; nothing is appended then.
    fn append(&self, session: &mut Session, entries: &[Entry], durability: Durability, now: SystemTime) -> Result<()>;

    /// Goes on in a new segment, which begins with `summary` and `kept` at the time `now`; `session.messages` are `kept`
    /// then, and the state stays. Returns where what was there before is kept, if it is.
    ///
    /// # Errors
    /// What the file system says; then nothing has changed, or nothing can be appended any more.
    fn renew(
        &self,
        session: &mut Session,
        summary: Option<String>,
        kept: Vec<Message>,
        now: SystemTime,
    ) -> Result<Option<PathBuf>>;
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn load(&self, name: &str, cancel: &Cancel) -> Result<Session> {
        (**self).load(name, cancel)
    }

    fn peek(&self, name: &str) -> Result<Session> {
        (**self).peek(name)
    }

    fn append(&self, session: &mut Session, entries: &[Entry], durability: Durability, now: SystemTime) -> Result<()> {
        (**self).append(session, entries, durability, now)
    }

    fn renew(
        &self,
        session: &mut Session,
        summary: Option<String>,
        kept: Vec<Message>,
        now: SystemTime,
    ) -> Result<Option<PathBuf>> {
        (**self).renew(session, summary, kept, now)
    }
}

/// Conversations as files below `$BANTAM_HOME/sessions`.
pub struct Files {
    home: Home,
}

impl Files {
    pub fn new(home: Home) -> Self {
        Self { home }
    }

    /// Keeps conversations in `dir/sessions`.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self::new(Home::new(dir.into()))
    }

    /// Takes over what was noted. What cannot be waits for the next turn.
    fn note(&self, session: &mut Session) {
        if let Err(e) = note::take_over(self, session) {
            session.damage.push(format!("what is noted for {} could not be taken over: {e}", session.name));
        }
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
        let held = Some(Held { journal: None, _lock: lock });
        let mut session = Session { name: name.to_owned(), next: 1, held, ..Session::default() };
        let Some(opened) = Journal::open(&path).doing("opening the session").map_err(|e| self.hinted(e))? else {
            self.note(&mut session);
            return Ok(session);
        };
        if let Some(e) = too_new(&opened.lines, &path) {
            return Err(e.hint("use the newer bantam that wrote it, or another --session"));
        }
        session.damage = opened.damage;
        session.replay(opened.lines, opened.journal.next());
        if let Some(held) = &mut session.held {
            held.journal = Some(opened.journal);
        }
        let missing = pair(&mut session.messages);
        if !missing.is_empty() {
            let entries: Vec<Entry> = missing.iter().map(Entry::Message).collect();
            self.append(&mut session, &entries, Durability::Later, SystemTime::now())?;
        }
        self.note(&mut session);
        Ok(session)
    }

    fn peek(&self, name: &str) -> Result<Session> {
        let path = self.home.session(name);
        let found = disk::read_journal(&path).doing("reading the session")?.unwrap_or_default();
        let disk::Looked { lines, mut damage, torn } = found;
        if let Some(e) = too_new(&lines, &path) {
            return Err(e.hint("use the newer bantam that wrote it, or another --session"));
        }
        damage.extend(torn);
        let mut session = Session { name: name.to_owned(), damage, ..Session::default() };
        session.replay(lines, 1);
        pair(&mut session.messages);
        let waiting = note::waiting(&self.home, name, session.messages.iter())?;
        session.messages.extend(waiting.into_iter().map(|(user, _)| Message::User(user)));
        Ok(session)
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
        for entry in entries {
            match entry {
                Entry::State(name, value) => drop(session.state.insert((*name).to_owned(), (*value).to_owned())),
                Entry::Message(_) => session.last.clone_from(&now),
                Entry::TurnEnd(_) | Entry::Undo(_) => {}
            }
        }
        Ok(())
    }

    fn renew(
        &self,
        session: &mut Session,
        summary: Option<String>,
        kept: Vec<Message>,
        now: SystemTime,
    ) -> Result<Option<PathBuf>> {
        let (base, next) = (later_base(session, kept.len() + 1), kept.len() as u64 + 1);
        let mut lines = vec![later_header(session, summary.as_deref(), base, &rfc3339(now))];
        lines.extend(kept_lines(&kept, &rfc3339(now)));
        if let Some(journal) = session.held.as_mut().and_then(|held| held.journal.as_mut()) {
            let old = journal.renew(lines).map_err(|e| self.hinted(e))?;
            session.begin_anew(summary, kept, base, next);
            return Ok(Some(old));
        }
        // Nothing has been said yet, so there is nothing to put aside.
        Ok(None)
    }
}

/// The state of the conversation `name` alone, without reading the rest of it closely.
///
/// # Errors
/// The file cannot be read.
pub fn stored_state(home: &Home, name: &str) -> Result<State> {
    // A quotation mark inside of a text has a backslash before it, so no text has this in it.
    Ok(state(&disk::find_lines(&home.session(name), "\"state\":{").doing("reading the session")?))
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

/// Line 0 of the segment after the one that the session is in.
fn later_header(session: &Session, summary: Option<&str>, base: u64, now: &str) -> Fields {
    let mut header = header(&session.name, now);
    header.insert("base".to_owned(), base.into());
    if let Some(summary) = summary {
        header.insert("summary".to_owned(), summary.into());
    }
    if !session.state.is_empty() {
        let mut state = Fields::new();
        state.extend(session.state.iter().map(|(k, v)| (k.clone(), Value::from(&**v))));
        header.insert("state".to_owned(), state.into());
    }
    header
}

/// Where the lines of the next segment count from. The lines that it begins with repeat what is in this one, so they take
/// the last numbers here: a line that comes after them has a number that none had before.
fn later_base(session: &Session, lines: usize) -> u64 {
    session.place().saturating_sub(lines as u64)
}

/// The lines of messages that were said before. What the model said and what tools told is dated as the user's message
/// before it.
fn kept_lines<'a>(kept: &'a [Message], now: &str) -> impl Iterator<Item = Fields> + 'a {
    let mut time = now.to_owned();
    kept.iter().map(move |message| {
        if let Message::User(User { time: said, .. }) = message {
            if !said.is_empty() {
                time.clone_from(said);
            }
        }
        fields(&Entry::Message(message), &time)
    })
}

fn base(header: &Value) -> u64 {
    header.get("base").and_then(Value::as_u64).unwrap_or_default()
}

/// What was said about the conversation, each name with its last value.
fn state(lines: &[disk::Line]) -> State {
    let said = lines.iter().filter_map(|line| line.fields.get("state")?.as_object()).flatten();
    let mut state = State::new();
    state.extend(said.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))));
    state
}

fn fields(entry: &Entry, now: &str) -> Fields {
    let mut line = Fields::new();
    match entry {
        Entry::Message(message) => {
            line.insert("time".to_owned(), now.into());
            line.extend(message.to_json());
        }
        Entry::TurnEnd(end) => drop(line.insert("turn".to_owned(), end.name().into())),
        Entry::State(name, value) => drop(line.insert("state".to_owned(), json!({ *name: value }))),
        Entry::Undo(from) => drop(line.insert("undo".to_owned(), (*from).into())),
    }
    line
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

#[cfg(test)]
mod tests;
