//! Conversations: the [`Store`] that keeps them, in [`Files`], in [`Memory`], or in [`Lines`] of your own. A turn locks its
//! conversation. Programs list, read and erase conversations by the functions of [`crate::agent::Agent`].

// A session file is an append log in segments (see `storage::segments`). Line 0 is `{"v":1,"session","created"}`, in a
// later segment with a `title` and a `summary` of the conversation so far, the `state`, and the `base` that continues the line
// numbers. The other lines are messages with a time, `{"state":{"model":...}}`, `{"state":{"allowed":[...]}}`,
// `{"state":{"asked":CALL}}` or `{"state":{"value":{NAME:VALUE}}}`,
// `{"turn":"done|failed|cancelled"}` at the end of each turn, and `{"undo":N}`: the lines from N on do not count. `began` in a
// later segment is when the conversation began. The bytes of images and other media lie beside the log (see `media`).

pub(crate) mod archive;
mod check;
mod files;
mod line_store;
mod lines;
mod media;
mod memory;
mod note;
mod replay;
pub(crate) mod search;
mod values;
pub(crate) mod versions;
mod wait;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::message::{Message, Reply, ToolCall, User};
pub(crate) use crate::paths::fresh_key;
pub use crate::paths::session_name as key;
use crate::paths::{UNNAMED, shown_key};
pub use crate::storage::Durability;
use crate::storage::{Journal, Line as Numbered, Lock, Sink};
use crate::text::{counted, one_line, rfc3339};
pub use archive::Summary;
pub use check::check_store;
pub use files::Files;
pub(crate) use files::inspect;
pub use line_store::{LineStore, Lines};
use media::Named;
pub(crate) use media::{NOT_SHOWN, SHOWN_TURNS};
pub use memory::Memory;
pub(crate) use note::note;
pub use values::Values;
use wait::lock_when_free;

use files::lock;
use lines::{base, effective_lines, fields, header, refuse_newer, turn_end};
use replay::Replay;

/// How long to wait for another process that holds the conversation.
const LOCK_WAIT: Duration = Duration::from_secs(30);
/// How long to wait before the user is told.
const QUIET_WAIT: Duration = Duration::from_secs(1);

/// The result of a call that waited for the user's decision when the program ended, and of the calls after it.
const NOT_BEGUN: &str = "not run: the program ended before the user could say whether it may";

/// The longest title, in characters.
pub(crate) const MAX_TITLE: usize = 60;

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    /// The model answered.
    Done,
    /// Something went wrong.
    Failed,
    /// It was stopped.
    Cancelled,
}

impl TurnEnd {
    /// Its name in a session's file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Done, Self::Failed, Self::Cancelled]
            .into_iter()
            .find(|end| end.name() == name)
    }
}

/// A JSON object: one line of a conversation as a [`Store`] keeps it, which [`Session::read`] understands.
pub type Line = serde_json::Map<String, Value>;

/// One entry of a conversation, to be appended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Entry<'a> {
    /// A message of the user, of the model or of a tool.
    Message(&'a Message),
    /// The turn is over.
    TurnEnd(TurnEnd),
    /// Sets [`Session::model`].
    Model(&'a str),
    /// Takes back all lines from this number on; see [`Session::next`].
    Undo(u64),
    /// Sets [`Session::allowed`].
    Allow(&'a [String]),
    /// The user is being asked about the call with this id; neither it nor any call after it in the reply has begun. Empty: the
    /// user has decided.
    Asked(&'a str),
    /// Sets the value of this name in [`Session::values`]; null removes it.
    Value(&'a str, &'a Value),
}

/// A conversation, built by [`Session::read`]. [`Store::load`] locks it until this value is dropped; [`Store::peek`] does not.
pub struct Session {
    /// The key of the conversation.
    pub name: String,
    /// The history: every call in it has exactly one result.
    pub messages: Vec<Message>,
    /// A model's summary of what came before the messages.
    pub summary: Option<String>,
    /// The model chosen for this conversation, as `--model` takes it.
    pub model: Option<String>,
    /// The tools that the user is no longer asked about in this conversation.
    pub allowed: Vec<String>,
    /// What programs and tools keep beside the messages, by name: a JSON object.
    pub values: Line,
    /// The beginning of its first question; empty if there is none.
    pub title: String,
    /// How the last turn ended; `None` if it has not.
    pub ended: Option<TurnEnd>,
    /// When the conversation began, as RFC 3339 in UTC; empty if that is not known.
    pub created: String,
    /// The time of the last message, as RFC 3339 in UTC; empty if there is none.
    pub last: String,
    /// One sentence for each damage found in the file.
    pub damage: Vec<String>,
    next: u64,
    base: u64,
    /// The number of the line with the user's last message.
    asked: u64,
    /// A turn was taken back, and none has begun or ended since.
    is_undone: bool,
    /// The results of so many messages at the end stand for calls that have not begun: no file has them.
    not_begun: usize,
    /// The files beside the log.
    named: Named,
    file: Option<SessionFile>,
    /// What a store of somebody else holds.
    lock: Option<Box<dyn Any + Send + Sync>>,
}

/// The open file of a locked conversation.
struct SessionFile {
    /// `None` until the first line is written.
    journal: Option<Journal>,
    _lock: Lock,
}

/// The channel of the library's own conversations.
pub(crate) const LIBRARY: &str = "library";

/// The channel of jobs, whose conversations are named after them.
const JOBS: &str = "cron";

/// Whether the user has not named this conversation. Those of jobs, and of questions without `-s`, have names that bantam made.
pub(crate) fn is_unnamed(key: &str) -> bool {
    match key.split_once('_') {
        Some((JOBS, _)) => true,
        Some(("cli" | LIBRARY, name)) => name.starts_with(UNNAMED),
        _ => false,
    }
}

impl Session {
    /// What a user recognizes it by: its name, the number of messages and the last question, or that it is new.
    pub(crate) fn describe(&self) -> String {
        let name = shown_key(&self.name);
        let last = self
            .messages
            .iter()
            .rev()
            .find_map(|message| match message {
                Message::User(user) if message.is_question() => Some(&user.content),
                _ => None,
            });
        match last {
            None => format!("{name} is a new conversation"),
            Some(last) => format!(
                "{name}: {}; you asked last: {}",
                counted(self.messages.len(), "message"),
                one_line(last, 60)
            ),
        }
    }

    /// The number of the next line in its segment. [`Entry::Undo`] with this number takes back everything appended from now on.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The number of the next line in the conversation, unique across all its segments.
    pub fn place(&self) -> u64 {
        self.base + self.next
    }

    /// The place of the user's last message.
    pub(crate) fn asked_at(&self) -> u64 {
        self.base + self.asked
    }

    /// Whether the last that happened is that a turn was taken back.
    pub(crate) fn is_undone(&self) -> bool {
        self.is_undone
    }

    /// Takes back the user's last message and all that follows it.
    pub(crate) fn undo_turn(&self) -> Entry<'static> {
        Entry::Undo(self.asked)
    }

    /// Says what happened to the last question if it has no answer; otherwise a model would answer it together with the next
    /// one.
    pub(crate) fn close_turn(&mut self) {
        let text = match (
            self.messages.iter().rfind(|message| !message.is_note()),
            self.ended,
        ) {
            (None | Some(Message::System(_)), _) => return,
            (Some(Message::Assistant(reply)), _) if reply.calls.is_empty() => return,
            (_, Some(TurnEnd::Cancelled)) => "[stopped by the user before an answer]",
            (_, Some(TurnEnd::Failed | TurnEnd::Done)) => "[failed before an answer]",
            (_, None) => "[interrupted before an answer]",
        };
        self.messages.push(Message::Assistant(Reply {
            text: text.to_owned(),
            ..Reply::default()
        }));
    }

    /// Builds a conversation from the lines that a [`Store`] has kept.
    ///
    /// # Errors
    /// [`Kind::Config`] when a newer program wrote them.
    pub fn read(name: &str, lines: Vec<Line>) -> Result<Self> {
        let next = lines.len() as u64;
        let mut replay = Replay::new(name);
        for (seq, line) in (0..).zip(lines) {
            let fields = Value::Object(line);
            replay.line(Numbered { seq, fields });
        }
        refuse_newer(replay.version, Path::new(name))?;
        // What results are missing are missing the next time as well.
        let (session, _results) = replay.finish(next);
        Ok(session)
    }

    /// Keeps `lock` until this value is dropped.
    pub fn locked_by(mut self, lock: impl Any + Send + Sync) -> Self {
        self.lock = Some(Box::new(lock));
        self
    }

    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            messages: Vec::new(),
            summary: None,
            model: None,
            allowed: Vec::new(),
            values: Line::new(),
            title: String::new(),
            ended: None,
            created: String::new(),
            last: String::new(),
            damage: Vec::new(),
            next: 0,
            base: 0,
            asked: 0,
            is_undone: false,
            not_begun: 0,
            named: Named::default(),
            file: None,
            lock: None,
        }
    }

    /// Takes the calls at the end that have not begun, for a turn that continues with them.
    pub(crate) fn take_not_begun(&mut self) -> Vec<ToolCall> {
        let count = std::mem::take(&mut self.not_begun);
        self.messages.truncate(self.messages.len() - count);
        let reply = |message: &Message| match message {
            Message::Assistant(reply) => Some(reply.calls.clone()),
            _ => None,
        };
        let mut calls = self
            .messages
            .iter()
            .rev()
            .find_map(reply)
            .unwrap_or_default();
        calls.split_off(calls.len().saturating_sub(count))
    }

    /// The results of the calls that have not begun, for a turn that does not go on with them to append.
    pub(crate) fn give_up_not_begun(&mut self) -> Vec<Message> {
        let count = std::mem::take(&mut self.not_begun);
        self.messages[self.messages.len() - count..].to_vec()
    }

    /// The lines of these entries, after the first line of all if there is none yet.
    fn lines(&self, entries: &[Entry], now: SystemTime) -> Vec<Line> {
        let now = rfc3339(now);
        let header = (self.next == 0).then(|| header(&self.name, &now));
        header
            .into_iter()
            .chain(entries.iter().map(|entry| fields(entry, &now)))
            .collect()
    }

    /// Takes over that these entries are stored.
    fn appended(&mut self, entries: &[Entry], now: SystemTime) {
        let first = self.next.max(1);
        self.next = first + entries.len() as u64;
        for (line, entry) in (first..).zip(entries) {
            match entry {
                Entry::Model(model) => self.model = Some((*model).to_owned()),
                Entry::Allow(tools) => self.allowed = tools.to_vec(),
                Entry::Value(name, value) => values::put(&mut self.values, name, (*value).clone()),
                Entry::Message(message) => {
                    self.last = rfc3339(now);
                    self.entitle(message);
                    self.asked = if message.is_question() {
                        line
                    } else {
                        self.asked
                    };
                }
                Entry::TurnEnd(_) | Entry::Undo(_) | Entry::Asked(_) => {}
            }
        }
    }

    /// Gives it the title of this message, if it has none and this is a question.
    fn entitle(&mut self, message: &Message) {
        if let Message::User(user) = message {
            if self.title.is_empty() && message.is_question() {
                let title = if user.title.is_empty() {
                    &user.content
                } else {
                    &user.title
                };
                self.title = one_line(title, MAX_TITLE);
            }
        }
    }

    /// The lines that the next segment begins with. Its kept messages repeat lines of this one and take its last numbers, so that a
    /// line after them has a number that none had before. A reply or a result has the time of the user's message before it.
    fn next_segment(&self, summary: Option<&str>, kept: &[Message], now: SystemTime) -> Vec<Line> {
        let mut time = rfc3339(now);
        let mut header = header(&self.name, &time);
        header.insert("base".to_owned(), self.next_base(kept).into());
        if !self.created.is_empty() {
            header.insert("began".to_owned(), self.created.as_str().into());
        }
        header.extend(summary.map(|summary| ("summary".to_owned(), summary.into())));
        // Where nothing is kept, another conversation begins.
        let goes_on = summary.is_some() || !kept.is_empty();
        if goes_on && !self.title.is_empty() {
            header.insert("title".to_owned(), self.title.as_str().into());
        }
        let mut state = Line::new();
        if goes_on && !self.values.is_empty() {
            state.insert("values".to_owned(), self.values.clone().into());
        }
        if let Some(model) = &self.model {
            state.insert("model".to_owned(), model.as_str().into());
        }
        if !self.allowed.is_empty() {
            state.insert("allowed".to_owned(), json!(self.allowed));
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
            lines.push(fields(&Entry::Message(message), &time));
        }
        lines
    }

    fn next_base(&self, kept: &[Message]) -> u64 {
        self.place().saturating_sub(kept.len() as u64 + 1)
    }

    fn enter_segment(&mut self, summary: Option<String>, kept: Vec<Message>) {
        (self.base, self.next) = (self.next_base(&kept), kept.len() as u64 + 1);
        self.asked = kept
            .iter()
            .rposition(Message::is_question)
            .map_or(0, |at| at as u64 + 1);
        if summary.is_none() && kept.is_empty() {
            self.title.clear();
            self.values.clear();
        }
        (self.summary, self.messages) = (summary, kept);
    }
}

/// Where conversations are kept: the lines of each since the last [`Store::replace`], and a lock for each.
///
/// A store of your own keeps the lines that it is given, in order, and need not know what is in them. [`LineStore`] makes one
/// from two functions, or from three if several processes share it (`docs/examples/store.rs` and `sqlite.rs`). Implement this
/// trait, with its first four functions, only if the store waits for its locks or keeps old segments in its own way. [`check_store`]
/// tests one.
pub trait Store: Send + Sync {
    /// Locks the conversation `name`, and loads it as [`Store::peek`] does; hand the lock to [`Session::locked_by`]. Calls
    /// `waiting` when somebody else has held it for a second. `cancel` ends the wait: [`Cancel::sleep`] returns an error then.
    ///
    /// # Errors
    /// [`Kind::Busy`] when it stays locked for 30 seconds, [`Kind::Interrupted`] when the wait is cancelled, [`Kind::Config`] when
    /// a newer program wrote it, and errors of the storage.
    fn load(&self, name: &str, cancel: &Cancel, waiting: &dyn Fn()) -> Result<Session>;

    /// Reads the conversation `name` without locking or changing it: [`Session::read`] builds it from its lines; a new one has
    /// none.
    ///
    /// # Errors
    /// [`Kind::Config`] when a newer program wrote it, and errors of the storage.
    fn peek(&self, name: &str) -> Result<Session>;

    /// Appends these lines to a loaded conversation.
    ///
    /// # Errors
    /// Errors of the storage; then none of them is kept.
    fn write(&self, session: &mut Session, lines: &[Line], durability: Durability) -> Result<()>;

    /// Replaces all lines of the conversation with these. Returns the path of the old ones, if they are kept.
    ///
    /// # Errors
    /// Errors of the storage; then nothing has changed, or nothing can be written any more.
    fn replace(&self, session: &mut Session, lines: Vec<Line>) -> Result<Option<PathBuf>>;

    /// Appends to a loaded conversation, with `now` as the time of what is appended. Updates all of `session` but its messages.
    ///
    /// # Errors
    /// Those of [`Store::write`].
    fn append(
        &self,
        session: &mut Session,
        entries: &[Entry],
        durability: Durability,
        now: SystemTime,
    ) -> Result<()> {
        let lines = session.lines(entries, now);
        self.write(session, &lines, durability)?;
        session.appended(entries, now);
        Ok(())
    }

    /// Begins a new segment with `summary` and the messages `kept`, which become those of `session`; its model stays. Does
    /// nothing if nothing is stored yet. Returns the path of the segment before it, if there is one.
    ///
    /// # Errors
    /// Those of [`Store::replace`].
    fn renew(
        &self,
        session: &mut Session,
        summary: Option<String>,
        kept: Vec<Message>,
        now: SystemTime,
    ) -> Result<Option<PathBuf>> {
        if session.next == 0 {
            return Ok(None);
        }
        let lines = session.next_segment(summary.as_deref(), &kept, now);
        let old = self.replace(session, lines)?;
        session.enter_segment(summary, kept);
        Ok(old)
    }

    /// Every conversation, the one used last first. Default: an error, for this store does not know its keys.
    ///
    /// # Errors
    /// Errors of the storage.
    fn list(&self) -> Result<Vec<Summary>> {
        Err(unlisted())
    }

    /// Deletes the conversation `name` and all that belongs to it, and says whether there was one. Waits for a turn that is
    /// running. Default: replaces its lines with none, after which it is new.
    ///
    /// # Errors
    /// Those of [`Store::load`] and [`Store::replace`].
    fn erase(&self, name: &str) -> Result<bool> {
        let mut session = self.load(name, &Cancel::new(None), &|| ())?;
        let is_there = session.next > 0;
        if is_there {
            self.replace(&mut session, Vec::new())?;
        }
        Ok(is_there)
    }
}

/// The error of a store that does not know its keys.
fn unlisted() -> Error {
    Error::failed("this store does not list its conversations")
        .hint("implement session::Lines::keys, or session::Store::list")
}

/// A store that several agents share.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn load(&self, name: &str, cancel: &Cancel, waiting: &dyn Fn()) -> Result<Session> {
        (**self).load(name, cancel, waiting)
    }

    fn peek(&self, name: &str) -> Result<Session> {
        (**self).peek(name)
    }

    fn write(&self, session: &mut Session, lines: &[Line], durability: Durability) -> Result<()> {
        (**self).write(session, lines, durability)
    }

    fn replace(&self, session: &mut Session, lines: Vec<Line>) -> Result<Option<PathBuf>> {
        (**self).replace(session, lines)
    }

    fn append(
        &self,
        session: &mut Session,
        entries: &[Entry],
        durability: Durability,
        now: SystemTime,
    ) -> Result<()> {
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

    fn list(&self) -> Result<Vec<Summary>> {
        (**self).list()
    }

    fn erase(&self, name: &str) -> Result<bool> {
        (**self).erase(name)
    }
}

/// Says what is busy, and what to do about it.
fn busy(name: &str, e: Error) -> Error {
    if e.kind != Kind::Busy {
        return e;
    }
    e.doing(format_args!("waiting for the conversation {name}"))
        .hint("another run is using it: wait for that, or use --session with another key")
}

#[cfg(test)]
mod tests;
