//! Conversations: the [`Store`] that keeps them, in [`FileStore`], in [`MemoryStore`], or in one of your own. A turn locks its
//! conversation. Programs list, read and erase conversations by the functions of [`crate::agent::Agent`].

// A session file is an append log in segments (see `storage::segments`). Line 0 is `{"v":1,"session","created"}`, in a
// later segment with a `title` and a `summary` of the conversation so far, the `state`, and the `base` that continues the line
// numbers. The other lines are messages with a time, `{"state":{"model":...}}`, `{"state":{"allowed":[...]}}`,
// `{"state":{"asked":CALL}}` or `{"state":{"value":{NAME:VALUE}}}`,
// `{"turn":STOP}` with a name of `TurnStop` at the end of each turn, and `{"undo":N}`: the lines from N on do not count. `began` in a
// later segment is when the conversation began. The bytes of images and other media lie beside the log (see `media`).

pub(crate) mod archive;
mod files;
mod lines;
mod lock;
mod media;
mod memory;
mod note;
mod replay;
pub(crate) mod search;
mod store;
mod values;
pub(crate) mod versions;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::message::{Message, Reply, ToolCall, TurnStop, User};
pub(crate) use crate::paths::fresh_key;
pub use crate::paths::session_name as key;
use crate::paths::{UNNAMED, shown_key};
pub use crate::storage::Durability;
use crate::text::{counted, one_line, rfc3339};
pub use archive::SessionInfo;
use archive::newest_first;
pub use files::FileStore;
pub(crate) use files::inspect;
use lock::lock_when_free;
pub(crate) use media::{NOT_SHOWN, SHOWN_TURNS};
pub use memory::MemoryStore;
pub(crate) use note::note;
pub use store::{Guard, Loaded, Store};
pub use values::Values;

use crate::paths::check_session;
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

/// A JSON object: one line of a conversation as a [`Store`] keeps it.
pub type Line = serde_json::Map<String, Value>;

/// One entry of a conversation, to be appended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Record<'a> {
    /// A message of the user, of the model or of a tool.
    Message(&'a Message),
    /// The turn is over.
    End(TurnStop),
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

/// A conversation, as [`Agent::session`](crate::agent::Agent::session) shows it. While a turn has it, it is locked.
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
    pub ended: Option<TurnStop>,
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
    /// Where it is written; `None` for one that is only read.
    log: Option<SessionLog>,
}

/// A locked conversation in its store.
struct SessionLog {
    store: Arc<dyn Store>,
    _guard: Guard,
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

    /// The number of the next line in its segment. [`Record::Undo`] with this number takes back everything appended from now on.
    fn next(&self) -> u64 {
        self.next
    }

    /// The number of the next line in the conversation, unique across all its segments.
    pub(crate) fn place(&self) -> u64 {
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
    pub(crate) fn undo_turn(&self) -> Record<'static> {
        Record::Undo(self.asked)
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
            (_, Some(TurnStop::Cancelled)) => "[stopped by the user before an answer]",
            (_, Some(_)) => "[failed before an answer]",
            (_, None) => "[interrupted before an answer]",
        };
        self.messages.push(Message::Assistant(Reply {
            text: text.to_owned(),
            ..Reply::default()
        }));
    }

    /// Locks a conversation, and reads it for a turn. Calls `on_wait` when somebody else has held it for a second; `cancel` ends
    /// the wait.
    ///
    /// # Errors
    /// [`Kind::Busy`] when it stays locked for 30 seconds, [`Kind::Interrupted`] when the wait is cancelled, [`Kind::Config`] when
    /// a newer program wrote it, [`Kind::Usage`] for a key that is no plain name, and errors of the storage.
    pub(crate) fn open(
        store: &Arc<dyn Store>,
        key: &str,
        cancel: &Cancel,
        on_wait: &dyn Fn(),
    ) -> Result<Self> {
        check_session(key)?;
        let guard = lock_when_free(key, cancel, on_wait, || store.lock(key))?;
        let (mut session, missing) = Self::of_lines(key, store.read(key)?)?;
        session.log = Some(SessionLog {
            store: store.clone(),
            _guard: guard,
        });
        let entries: Vec<Record> = missing.iter().map(Record::Message).collect();
        if !entries.is_empty() {
            session.append(&entries, Durability::Later, SystemTime::now())?;
        }
        Ok(session)
    }

    /// A conversation with these messages that is stored nowhere else.
    ///
    /// # Errors
    /// Of the kind [`Kind::Usage`] for a key that is no plain name.
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

    /// Reads a conversation without locking or changing it. A new one is empty.
    ///
    /// # Errors
    /// Those of [`Session::open`] but the first two.
    pub(crate) fn peek(store: &dyn Store, key: &str) -> Result<Self> {
        check_session(key)?;
        Ok(Self::of_lines(key, store.read(key)?)?.0)
    }

    /// The conversation that these lines make, and the results that it lacks at its end.
    fn of_lines(key: &str, loaded: Loaded) -> Result<(Self, Vec<Message>)> {
        let next = loaded.lines.len() as u64;
        let mut replay = Replay::new(key);
        for (seq, line) in (0..).zip(loaded.lines) {
            replay.line(seq, line);
        }
        refuse_newer(replay.version, Path::new(key))?;
        let (mut session, missing) = replay.finish(next);
        session.damage = loaded.warnings;
        for message in &mut session.messages {
            message.replace_media(|media| media.base64.is_empty(), NOT_SHOWN);
        }
        Ok((session, missing))
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
        let next = usize::try_from(self.next).unwrap_or(usize::MAX);
        self.log()?
            .store
            .write(&self.name, next, &lines, durability)?;
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
        if self.next == 0 {
            return Ok(());
        }
        let lines = self.next_segment(summary.as_deref(), &kept, now);
        let durability = Durability::Now;
        self.log()?.store.write(&self.name, 0, &lines, durability)?;
        self.enter_segment(summary, kept);
        Ok(())
    }

    fn log(&self) -> Result<&SessionLog> {
        self.log
            .as_ref()
            .ok_or_else(|| Error::failed("the conversation was read without its lock"))
    }

    pub(crate) fn new(name: &str) -> Self {
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
            log: None,
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
    fn lines(&self, entries: &[Record], now: SystemTime) -> Vec<Line> {
        let now = rfc3339(now);
        let header = (self.next == 0).then(|| header(&self.name, &now));
        header
            .into_iter()
            .chain(entries.iter().map(|entry| fields(entry, &now)))
            .collect()
    }

    /// Takes over that these entries are stored.
    fn appended(&mut self, entries: &[Record], now: SystemTime) {
        let first = self.next.max(1);
        self.next = first + entries.len() as u64;
        for (line, entry) in (first..).zip(entries) {
            match entry {
                Record::Model(model) => self.model = Some((*model).to_owned()),
                Record::Allow(tools) => self.allowed = tools.to_vec(),
                Record::Value(name, value) => values::put(&mut self.values, name, (*value).clone()),
                Record::Message(message) => {
                    self.last = rfc3339(now);
                    self.entitle(message);
                    self.asked = if message.is_question() {
                        line
                    } else {
                        self.asked
                    };
                }
                Record::End(_) | Record::Undo(_) | Record::Asked(_) => {}
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
            lines.push(fields(&Record::Message(message), &time));
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

/// Every conversation of a store, the one used last first.
pub(crate) fn list(store: &dyn Store) -> Result<Vec<SessionInfo>> {
    let mut list = Vec::new();
    for key in store.list()? {
        let session = Session::peek(store, &key).ok();
        let is_erased = session.as_ref().is_some_and(|session| session.next == 0);
        if !is_erased {
            list.push(SessionInfo::of(&key, session));
        }
    }
    Ok(newest_first(list))
}

/// Erases a conversation once no turn holds it, and returns whether there was one.
pub(crate) fn erase(store: &dyn Store, key: &str) -> Result<bool> {
    check_session(key)?;
    let _guard = lock_when_free(key, &Cancel::new(None), &|| (), || store.lock(key))?;
    // What cannot be read is there.
    let is_there = store
        .read(key)
        .map_or(true, |found| !found.lines.is_empty());
    store.write(key, 0, &[], Durability::Now)?;
    Ok(is_there)
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
