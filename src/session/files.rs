//! Conversations as files, one for each, which several processes may use.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

use super::lines::{refuse_newer, version};
use super::media::{self, Named};
use super::replay::Replay;
use super::{
    Entry, LOCK_WAIT, Line, QUIET_WAIT, Session, SessionFile, Store, Summary, archive, busy, note,
};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind, Result};
use crate::message::Message;
use crate::paths::{Home, check_session};
use crate::storage::{self, Durability, Journal, Lock, Opened};
use crate::test_speed::paced;
use crate::text::size;

/// The most bytes of a message: no window has room for more.
const MAX_MESSAGE: usize = 4 << 20;

/// Conversations as files.
pub struct Files {
    pub(super) home: Home,
}

impl Files {
    /// Keeps conversations in `dir`, which is created when first needed: the files in `sessions/` and their locks in
    /// `state/locks/`. Several processes may use it at the same time; `$BANTAM_HOME` is such a directory.
    ///
    /// A key is part of a file's name: one that is empty, longer than 200 bytes, or has a slash, a backslash, a dot or a control
    /// character is refused with an error of the kind [`Kind::Usage`].
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self::new(Home::new(dir.into()))
    }

    pub(crate) fn new(home: Home) -> Self {
        Self { home }
    }

    /// The conversation without the media that lie beside it.
    pub(super) fn look(&self, name: &str) -> Result<Session> {
        check_session(name)?;
        let path = self.home.session(name);
        let mut replay = Replay::new(name);
        let read = |path: &Path| storage::read_journal_into(path, &mut replay);
        let found = read_log(name, &path, read)?;
        refuse_newer(replay.version, &path)?;
        let (mut session, _results) = replay.finish(found.next);
        session.damage = found.damage.into_iter().chain(found.torn).collect();
        let waiting = note::waiting(&self.home, name, session.messages.iter())?;
        session
            .messages
            .extend(waiting.into_iter().map(|(user, _)| Message::User(user)));
        Ok(session)
    }
}

impl Store for Files {
    fn load(&self, name: &str, cancel: &Cancel, waiting: &dyn Fn()) -> Result<Session> {
        check_session(name)?;
        let lock = lock(&self.home, name, cancel, waiting).map_err(|e| self.home.hinted(e))?;
        let path = self.home.session(name);
        let mut warnings = Vec::new();
        if is_too_large(&path) {
            let old = archive::begin_anew(&self.home, name, SystemTime::now())?;
            let most = size(storage::MAX_LOG);
            warnings.push(format!(
                "the conversation has grown to more than {most}: a new one begins, and the old one is {}",
                old.display()
            ));
        }
        let mut replay = Replay::new(name);
        let opened = Journal::open_into(&path, &mut replay)
            .doing("opening the session")
            .map_err(|e| self.home.hinted(e))?;
        refuse_newer(replay.version, &path)?;
        let journal = opened.map(|opened| without_damage(opened, &mut warnings));
        let next = journal.as_ref().map_or(0, Journal::next);
        let (mut session, missing) = replay.finish(next);
        session.damage = warnings;
        media::fetch(&path, &mut session.messages);
        session.file = Some(SessionFile {
            journal,
            _lock: lock,
        });
        let entries: Vec<Entry> = missing.iter().map(Entry::Message).collect();
        if !entries.is_empty() {
            self.append(&mut session, &entries, Durability::Later, SystemTime::now())?;
        }
        // Results follow their calls, so notes wait for the next turn, as they do when that fails.
        if session.not_begun > 0 {
            return Ok(session);
        }
        if let Err(e) = note::take_over(self, &mut session) {
            session
                .damage
                .push(format!("the notes for {name} could not be taken over: {e}"));
        }
        Ok(session)
    }

    fn list(&self) -> Result<Vec<Summary>> {
        archive::list(&self.home)
    }

    fn erase(&self, name: &str) -> Result<bool> {
        check_session(name)?;
        Ok(archive::erase(&self.home, name, &Cancel::new(None))? > 0)
    }

    fn peek(&self, name: &str) -> Result<Session> {
        let mut session = self.look(name)?;
        media::fetch(&self.home.session(name), &mut session.messages);
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

    fn append(
        &self,
        session: &mut Session,
        entries: &[Entry],
        durability: Durability,
        now: SystemTime,
    ) -> Result<()> {
        check_session(&session.name)?;
        let live = self.home.session(&session.name);
        let mut lines = session.lines(entries, now);
        media::put_beside(&live, &mut lines)?;
        check_length(&lines)?;
        self.write(session, &lines, durability)?;
        session.appended(entries, now);
        for line in &lines {
            session.named.line(line);
        }
        // What was taken back shows nothing, either.
        let ends = |entry: &Entry| matches!(entry, Entry::TurnEnd(_) | Entry::Undo(_));
        if entries.iter().any(ends) {
            session.named.remove_old(&live);
        }
        Ok(())
    }

    fn replace(&self, session: &mut Session, mut lines: Vec<Line>) -> Result<Option<PathBuf>> {
        check_session(&session.name)?;
        let live = self.home.session(&session.name);
        media::put_beside(&live, &mut lines)?;
        let named = Named::of(&lines);
        let Some(journal) = session.file.as_mut().and_then(|file| file.journal.as_mut()) else {
            return Err(Error::failed("the session was not loaded from a file"));
        };
        let old = journal.renew(lines).map_err(|e| self.home.hinted(e))?;
        // The new segment counts by now. What is left is removed with the next one.
        drop(media::remove_others(&live, &named));
        session.named = named;
        Ok(Some(old))
    }
}

/// Refuses a message that is too long for any model.
fn check_length(lines: &[Line]) -> Result<()> {
    for line in lines {
        // Escaping makes at most six bytes of one.
        if line.values().map(text_len).sum::<usize>() < MAX_MESSAGE / 8 {
            continue;
        }
        let len = serde_json::to_vec(line).map_or(0, |line| line.len());
        if len > MAX_MESSAGE {
            let (len, most) = (size(len as u64), size(MAX_MESSAGE as u64));
            return Err(Error::usage(format!(
                "the message takes {len} in the conversation's file; the limit is {most}"
            ))
            .hint("put the text into a file of the workspace and name it"));
        }
    }
    Ok(())
}

/// About how many bytes of text a value has, before they are escaped.
fn text_len(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(text_len).sum(),
        Value::Object(fields) => fields.values().map(text_len).sum(),
        _ => 0,
    }
}

/// Reads a segment of a conversation.
pub(super) fn read_log(
    name: &str,
    segment: &Path,
    read: impl FnOnce(&Path) -> Result<Option<storage::Contents>>,
) -> Result<storage::Contents> {
    let found = read(segment).doing(format_args!("reading the session {name}"))?;
    Ok(found.unwrap_or_default())
}

/// Every damage in a session file, and whether its last line is incomplete, in sentences. Changes nothing: the next turn repairs
/// what can be repaired.
pub(crate) fn inspect(path: &Path) -> Result<(Vec<String>, Option<String>)> {
    let found = storage::read_journal(path)
        .doing("reading the session")?
        .unwrap_or_default();
    let mut damage = found.damage;
    let version = found.lines.iter().find_map(|line| version(&line.fields));
    damage.extend(refuse_newer(version, path).err().map(|e| e.message));
    Ok((damage, found.torn))
}

/// Whether a log is larger than what is read.
pub(super) fn is_too_large(path: &Path) -> bool {
    fs_err::metadata(path).is_ok_and(|meta| meta.len() > storage::MAX_LOG)
}

/// Leaves the damage of a journal behind in an archived segment, and tells of it. On a full disk it is told again the next time.
fn without_damage(opened: Opened, warnings: &mut Vec<String>) -> Journal {
    let mut journal = opened.journal;
    let mut damage = opened.damage;
    if let Some(last) = damage.last_mut() {
        last.push_str("; the rest is intact, and the conversation continues");
        if let Ok(old) = journal.leave_damage() {
            last.push_str(&format!("; the damaged file is {}", old.display()));
        }
    }
    warnings.extend(damage);
    warnings.extend(opened.repaired);
    journal
}

pub(super) fn lock(home: &Home, name: &str, cancel: &Cancel, waiting: &dyn Fn()) -> Result<Lock> {
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
