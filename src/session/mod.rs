//! Conversations: the [`Store`] that keeps them, in [`Files`] or in [`Memory`]. A turn locks its conversation.
//!
//! A session file is an append log in segments (see `disk::segments`). Line 0 is `{"v":1,"session","created"}`, in a
//! later segment with a `summary` of the conversation so far, the `state`, and the `base` that continues the line numbers. The
//! other lines are messages with a time, `{"state":{"model":...}}`, `{"state":{"allowed":[...]}}` or `{"state":{"damage_told":N}}`,
//! `{"turn":"done|failed|cancelled"}` at the end of each turn, and `{"undo":N}`: the lines from N on do not count. `began` in a
//! later segment is when the conversation began.

pub(crate) mod archive;
mod check;
mod memory;
mod note;
pub(crate) mod versions;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::cancel::Cancel;
pub use crate::disk::Durability;
use crate::disk::{self, Journal, Line as Numbered, Lock};
use crate::error::{Context, Error, Kind, Result};
use crate::message::{Message, Reply, ToolResult, User};
use crate::pace::paced;
use crate::paths::Home;
use crate::text::rfc3339;
pub use check::check_store;
pub use memory::Memory;
pub(crate) use note::note;

/// The version of the format. A file with a higher one is refused: guessing would damage it.
const VERSION: u64 = 1;

/// How long to wait for another process that holds the conversation.
const LOCK_WAIT: Duration = Duration::from_secs(30);
/// How much of that passes before the user is told.
const QUIET_WAIT: Duration = Duration::from_secs(1);

/// The result of a call that was under way when the program ended.
const INTERRUPTED: &str = "interrupted, outcome unknown";

/// How a turn ended.
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
        [Self::Done, Self::Failed, Self::Cancelled]
            .into_iter()
            .find(|end| end.name() == name)
    }
}

/// One line of a conversation as a [`Store`] keeps it: a JSON object, whose content is for [`Session::read`].
pub type Line = serde_json::Map<String, Value>;

/// One entry of a conversation, to be appended.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    Message(&'a Message),
    TurnEnd(TurnEnd),
    /// Sets [`Session::model`].
    Model(&'a str),
    /// Takes back the lines from this one on; see [`Session::next`].
    Undo(u64),
    /// Sets [`Session::allowed`].
    Allow(&'a [String]),
    /// The user has been told of so many damaged places in the segment.
    DamageTold(usize),
}

/// A conversation, made by [`Session::read`]. [`Store::load`] locks it until this is dropped; [`Store::peek`] does not.
pub struct Session {
    pub name: String,
    /// The history: every call in it has exactly one result.
    pub messages: Vec<Message>,
    /// A model's summary of what came before the messages.
    pub summary: Option<String>,
    /// The model chosen for this conversation, as `--model` takes it.
    pub model: Option<String>,
    /// The tools that the user is not asked about any more in this conversation.
    pub allowed: Vec<String>,
    /// How the last turn ended; `None` if it has not.
    pub ended: Option<TurnEnd>,
    /// When the conversation began, as RFC 3339 in UTC; empty if that is not known.
    pub created: String,
    /// The time of the last message, as RFC 3339 in UTC; empty if there is none.
    pub last: String,
    /// One sentence for each damage found in the file.
    pub damage: Vec<String>,
    /// How many damaged places the user knows of once they were told of those; 0 if they know.
    untold: usize,
    next: u64,
    base: u64,
    /// The number of the line with the user's last message.
    asked: u64,
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

/// A key for a conversation that nobody has named: the time, and the process, for two may begin in the same microsecond.
pub(crate) fn fresh_key(now: SystemTime) -> String {
    let digits: String = rfc3339(now).chars().filter(char::is_ascii_digit).collect();
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    format!(
        "{}-{}-{:06}-{}",
        &digits[..8],
        &digits[8..14],
        since.subsec_micros(),
        std::process::id()
    )
}

/// Whether [`fresh_key`] has made this key of the command line.
fn is_unnamed(key: &str) -> bool {
    let Some(time) = key.strip_prefix("cli_") else {
        return false;
    };
    let parts: Vec<&str> = time.split('-').collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    // Older versions wrote the milliseconds behind the seconds.
    let has_time = matches!(parts[..], [date, time, _] | [date, time, _, _]
        if date.len() == 8 && (time.len() == 6 || time.len() == 9));
    has_time && parts.iter().all(is_number)
}

impl Session {
    /// The number of the next line in its segment. [`Entry::Undo`] with it takes back what is appended from now on.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The number of the next line in the conversation: no other line of it, in any segment, has the same.
    pub fn place(&self) -> u64 {
        self.base + self.next
    }

    /// The place of the user's last message.
    pub(crate) fn asked_at(&self) -> u64 {
        self.base + self.asked
    }

    /// Takes back the user's last message and all that follows it.
    pub(crate) fn undo_turn(&self) -> Entry<'static> {
        Entry::Undo(self.asked)
    }

    /// Says what became of the last question if it has no answer: next to another one, a model would answer both.
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

    /// Leaves out the damage that the user was told of before: so many places of the file.
    fn forget_told(&mut self, told: usize, path: &Path) {
        let place = format!("{}:", path.display());
        let lasts = |damage: &&mut String| damage.starts_with(&place);
        let lasting = self.damage.iter_mut().filter(lasts).count();
        if lasting <= told {
            self.damage.retain(|damage| !damage.starts_with(&place));
            return;
        }
        if let Some(last) = self.damage.iter_mut().rfind(lasts) {
            last.push_str(&format!(
                "; the rest is intact and goes on (bantam sessions reset {} starts over)",
                self.name
            ));
        }
        self.untold = lasting;
    }

    /// The damage to tell the user of, and the entry to append so that it is not told again.
    pub(crate) fn take_damage(&mut self) -> (Vec<String>, Option<Entry<'static>>) {
        let told = std::mem::take(&mut self.untold);
        (
            std::mem::take(&mut self.damage),
            (told > 0).then_some(Entry::DamageTold(told)),
        )
    }

    /// A conversation of the lines that a [`Store`] has kept of it.
    ///
    /// # Errors
    /// [`Kind::Config`] when a newer program wrote them.
    pub fn read(name: &str, lines: Vec<Line>) -> Result<Self> {
        let lines = (0..)
            .zip(lines)
            .map(|(seq, fields)| Numbered {
                seq,
                fields: Value::Object(fields),
            })
            .collect::<Vec<_>>();
        refuse_newer(&lines, Path::new(name))?;
        let next = lines.len() as u64;
        let mut session = Self::new(name);
        // What is missing is missing the next time as well.
        let _results = session.replay(lines, next);
        Ok(session)
    }

    /// Drops `lock` when this is dropped.
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
            ended: None,
            created: String::new(),
            last: String::new(),
            damage: Vec::new(),
            untold: 0,
            next: 0,
            base: 0,
            asked: 0,
            file: None,
            lock: None,
        }
    }

    /// Takes over the lines of a segment. Returns the results that it lacks at its end.
    fn replay(&mut self, lines: Vec<Numbered>, next: u64) -> Vec<Message> {
        self.next = next;
        let header = lines.first().map_or(&Value::Null, |line| &line.fields);
        self.base = base(header);
        let began = header.get("began").or_else(|| header.get("created"));
        self.created = began.and_then(Value::as_str).unwrap_or_default().to_owned();
        self.summary = header
            .get("summary")
            .and_then(Value::as_str)
            .map(str::to_owned);
        let chosen =
            |line: &Numbered| Some(line.fields.get("state")?.get("model")?.as_str()?.to_owned());
        self.model = lines.iter().rev().find_map(chosen);
        let allowed = |line: &Numbered| {
            line.fields
                .get("state")?
                .get("allowed")?
                .as_array()
                .cloned()
        };
        let allowed = lines.iter().rev().find_map(allowed).unwrap_or_default();
        self.allowed = allowed
            .iter()
            .filter_map(|tool| tool.as_str().map(str::to_owned))
            .collect();
        for line in effective_lines(lines) {
            let Some(message) = Message::from_json(&line.fields) else {
                self.ended = turn_end(&line.fields).or(self.ended);
                continue;
            };
            if message.is_question() {
                self.close_turn();
                self.asked = line.seq;
            }
            self.ended = self.ended.filter(|_| message.is_note());
            if let Some(Value::String(time)) = line.fields.get("time") {
                self.last.clone_from(time);
            }
            self.messages.push(message);
        }
        pair(&mut self.messages)
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
                Entry::Message(message) => {
                    self.last = rfc3339(now);
                    self.asked = if message.is_question() {
                        line
                    } else {
                        self.asked
                    };
                }
                Entry::TurnEnd(_) | Entry::Undo(_) | Entry::DamageTold(_) => {}
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
        let mut state = Line::new();
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
        (self.summary, self.messages) = (summary, kept);
    }
}

/// Where conversations are kept: of each, its lines since the last [`Store::replace`], and a lock.
///
/// A store of your own keeps the lines that it is given, in their order, and needs to know nothing of what is in them. It has four
/// functions to write; [`Store::append`] and [`Store::renew`] come with them. `docs/examples/store.rs` is a whole one, and
/// [`check_store`] tries one out.
pub trait Store: Send + Sync {
    /// Locks the conversation `name`, and loads it as [`Store::peek`] does; hand the lock to [`Session::locked_by`]. Calls
    /// `waiting` when somebody else has held it for a second. `cancel` ends the wait: [`Cancel::sleep`] returns an error then.
    ///
    /// # Errors
    /// [`Kind::Busy`] when it stays locked for 30 seconds, [`Kind::Interrupted`] when the wait is cancelled, [`Kind::Config`] when
    /// a newer program wrote it, and errors of the storage.
    fn load(&self, name: &str, cancel: &Cancel, waiting: &dyn Fn()) -> Result<Session>;

    /// Reads the conversation `name` without locking or changing it: [`Session::read`] makes it of its lines, of none if it is new.
    ///
    /// # Errors
    /// [`Kind::Config`] when a newer program wrote it, and errors of the storage.
    fn peek(&self, name: &str) -> Result<Session>;

    /// Keeps these lines of a loaded conversation, behind those that it has.
    ///
    /// # Errors
    /// Errors of the storage; then none of them is kept.
    fn write(&self, session: &mut Session, lines: &[Line], durability: Durability) -> Result<()>;

    /// Puts these lines in the place of all that the conversation has. Returns the path of what it had, if that is kept.
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

    /// Begins a new segment with `summary` and the messages `kept`, which become those of `session`; its model stays. Nothing is
    /// begun where nothing is stored yet. Returns the path of the segment before it, if there is one.
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
}

/// Conversations as files.
pub struct Files {
    home: Home,
}

impl Files {
    /// Keeps conversations in `dir`, which is created when first needed: the files in `sessions/` and their locks in
    /// `state/locks/`. Several processes may use it at the same time; `$BANTAM_HOME` is such a directory.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self::new(Home::new(dir.into()))
    }

    pub(crate) fn new(home: Home) -> Self {
        Self { home }
    }
}

impl Store for Files {
    fn load(&self, name: &str, cancel: &Cancel, waiting: &dyn Fn()) -> Result<Session> {
        let lock = lock(&self.home, name, cancel, waiting).map_err(|e| self.home.hinted(e))?;
        let path = self.home.session(name);
        let mut session = Session::new(name);
        let mut file = SessionFile {
            journal: None,
            _lock: lock,
        };
        let (mut missing, mut told) = (Vec::new(), 0);
        if let Some(opened) = Journal::open(&path)
            .doing("opening the session")
            .map_err(|e| self.home.hinted(e))?
        {
            refuse_newer(&opened.lines, &path)?;
            session.damage = opened.damage;
            told = damage_told(&opened.lines);
            missing = session.replay(opened.lines, opened.journal.next());
            file.journal = Some(opened.journal);
        }
        session.file = Some(file);
        session.forget_told(told, &path);
        let entries: Vec<Entry> = missing.iter().map(Entry::Message).collect();
        if !entries.is_empty() {
            self.append(&mut session, &entries, Durability::Later, SystemTime::now())?;
        }
        // What fails waits for the next turn.
        if let Err(e) = note::take_over(self, &mut session) {
            session
                .damage
                .push(format!("the notes for {name} could not be taken over: {e}"));
        }
        Ok(session)
    }

    fn peek(&self, name: &str) -> Result<Session> {
        let path = self.home.session(name);
        let found = disk::read_journal(&path)
            .doing("reading the session")?
            .unwrap_or_default();
        let disk::Contents {
            lines,
            damage,
            torn,
            ..
        } = found;
        refuse_newer(&lines, &path)?;
        let mut session = Session::new(name);
        session.damage = damage.into_iter().chain(torn).collect();
        let next = lines.len() as u64;
        session.replay(lines, next);
        let waiting = note::waiting(&self.home, name, session.messages.iter())?;
        session
            .messages
            .extend(waiting.into_iter().map(|(user, _)| Message::User(user)));
        Ok(session)
    }

    fn write(&self, session: &mut Session, lines: &[Line], durability: Durability) -> Result<()> {
        let Some(file) = &mut session.file else {
            return Err(Error::failed("the session was not loaded from a file"));
        };
        if let Some(journal) = &mut file.journal {
            return journal.append(lines, durability);
        }
        let journal = Journal::create(&self.home.session(&session.name), lines)
            .doing("starting the session")
            .map_err(|e| self.home.hinted(e))?;
        file.journal = Some(journal);
        Ok(())
    }

    fn replace(&self, session: &mut Session, lines: Vec<Line>) -> Result<Option<PathBuf>> {
        let Some(journal) = session.file.as_mut().and_then(|file| file.journal.as_mut()) else {
            return Err(Error::failed("the session was not loaded from a file"));
        };
        let old = journal.renew(lines).map_err(|e| self.home.hinted(e))?;
        Ok(Some(old))
    }
}

/// Every damage in a session file, and whether its last line is incomplete, in sentences. Changes nothing: the next turn repairs
/// what can be repaired.
pub(crate) fn inspect(path: &Path) -> Result<(Vec<String>, Option<String>)> {
    let found = disk::read_journal(path)
        .doing("reading the session")?
        .unwrap_or_default();
    let mut damage = found.damage;
    damage.extend(refuse_newer(&found.lines, path).err().map(|e| e.message));
    Ok((damage, found.torn))
}

fn lock(home: &Home, name: &str, cancel: &Cancel, waiting: &dyn Fn()) -> Result<Lock> {
    let path = home.lock(name);
    let lock = match Lock::acquire(&path, QUIET_WAIT, cancel) {
        Err(e) if e.kind == Kind::Busy => {
            waiting();
            Lock::acquire(&path, paced(LOCK_WAIT).saturating_sub(QUIET_WAIT), cancel)
        }
        result => result,
    };
    lock.map_err(|e| busy(name, e))
}

/// Says what is busy, and what to do about it.
fn busy(name: &str, e: Error) -> Error {
    if e.kind != Kind::Busy {
        return e;
    }
    e.doing(format_args!("waiting for session {name}"))
        .hint("another run is using it: wait for that, or use --session with another key")
}

/// Fails for a file that a newer program wrote.
fn refuse_newer(lines: &[Numbered], path: &Path) -> Result<()> {
    let Some(v) = lines
        .iter()
        .find_map(|l| l.fields.get("v")?.as_u64())
        .filter(|v| *v > VERSION)
    else {
        return Ok(());
    };
    Err(Error::config(format!(
        "{} has format {v}, newer than this bantam's {VERSION}",
        path.display()
    ))
    .hint("use the newer bantam that wrote it, or another session"))
}

/// Line 0 of a session file.
fn header(name: &str, now: &str) -> Line {
    json!({"v": VERSION, "session": name, "created": now})
        .as_object()
        .cloned()
        .unwrap_or_default()
}

/// How many damaged places of a segment the user has been told of.
fn damage_told(lines: &[Numbered]) -> usize {
    let told = |line: &Numbered| line.fields.get("state")?.get("damage_told")?.as_u64();
    let told = lines.iter().rev().find_map(told).unwrap_or_default();
    usize::try_from(told).unwrap_or(usize::MAX)
}

fn base(header: &Value) -> u64 {
    header
        .get("base")
        .and_then(Value::as_u64)
        .unwrap_or_default()
}

fn turn_end(line: &Value) -> Option<TurnEnd> {
    TurnEnd::from_name(line.get("turn")?.as_str()?)
}

fn fields(entry: &Entry, now: &str) -> Line {
    let mut line = Line::new();
    match entry {
        Entry::Message(message) => {
            line.insert("time".to_owned(), now.into());
            line.extend(message.to_json());
        }
        Entry::TurnEnd(end) => drop(line.insert("turn".to_owned(), end.name().into())),
        Entry::Model(model) => drop(line.insert("state".to_owned(), json!({"model": model}))),
        Entry::Allow(tools) => drop(line.insert("state".to_owned(), json!({"allowed": tools}))),
        Entry::Undo(from) => drop(line.insert("undo".to_owned(), (*from).into())),
        Entry::DamageTold(places) => {
            line.insert("state".to_owned(), json!({"damage_told": places}));
        }
    }
    line
}

/// The lines that count: those that were not undone.
fn effective_lines(lines: Vec<Numbered>) -> Vec<Numbered> {
    let mut effective: Vec<Numbered> = Vec::new();
    for line in lines {
        match line.fields.get("undo").and_then(Value::as_u64) {
            Some(from) => effective.retain(|line| line.seq < from),
            None => effective.push(line),
        }
    }
    effective
}

/// Gives every call exactly one result, right after it: results without a call go, calls without a result get [`INTERRUPTED`].
/// Returns the results added at the very end, which the file does not have yet.
fn pair(messages: &mut Vec<Message>) -> Vec<Message> {
    let mut out = Vec::with_capacity(messages.len());
    let mut added = Vec::new();
    let mut rest = std::mem::take(messages).into_iter().peekable();
    while let Some(message) = rest.next() {
        match message {
            Message::ToolResult(_) => {}
            Message::Assistant(reply) => {
                let mut results: Vec<ToolResult> = Vec::new();
                while let Some(Message::ToolResult(result)) =
                    rest.next_if(|m| matches!(m, Message::ToolResult(_)))
                {
                    results.push(result);
                }
                let calls: Vec<String> = reply.calls.iter().map(|c| c.id.clone()).collect();
                out.push(Message::Assistant(reply));
                added.clear();
                for call_id in calls {
                    let found = results
                        .iter()
                        .position(|r| r.call_id == call_id)
                        .map(|at| results.swap_remove(at));
                    let result = found.unwrap_or_else(|| {
                        let content = INTERRUPTED.to_owned();
                        let lost = ToolResult {
                            call_id,
                            content,
                            is_error: true,
                            images: Vec::new(),
                        };
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
    if matches!(messages.last(), Some(Message::ToolResult(_))) {
        added
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests;
