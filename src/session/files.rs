//! Conversations as files, one per conversation, shared by several processes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use super::entries::{damage_line, fields, header, of_lines, refuse_newer};
use super::lock::lock_when_free;
use super::media;
use super::{Guard, Line, Record, Session, Store, archive, deferred};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind, Result};
use crate::paths::{Home, check_session, shown_key};
use crate::storage::{self, Contents, Durability, Journal, Lock, Queue};
use crate::sync;
use crate::text::{rfc3339, size};

/// Maximum size of a message, in bytes; more than any context window.
const MAX_MESSAGE: usize = 4 << 20;

/// Stores conversations as files.
pub struct FileStore {
    pub(super) home: Home,
    /// Conversations that are locked through this value, by key.
    locked: LockedFiles,
}

/// Files of locked conversations, by key.
type LockedFiles = Arc<Mutex<HashMap<String, Arc<Mutex<OpenFile>>>>>;

/// File of a locked conversation.
#[derive(Default)]
enum OpenFile {
    #[default]
    Unread,
    /// The conversation has no file yet.
    Missing,
    Open(Journal),
}

/// Unlocks a conversation when it is dropped.
struct FileGuard {
    locked: LockedFiles,
    key: String,
    _lock: Lock,
}

impl Drop for FileGuard {
    fn drop(&mut self) {
        // Removed before the lock is released, because the next owner of this key waits for the lock.
        sync::lock(&self.locked).remove(&self.key);
    }
}

impl FileStore {
    /// Stores conversations in `dir`, which is created when first needed: the files in `sessions/` and their locks in
    /// `state/locks/`. Several processes may use it at the same time; `$BANTAM_HOME` is such a directory.
    ///
    /// A key is part of a file name. Keys that are empty, longer than 200 bytes, or have a slash, a backslash, a dot or a
    /// control character are refused with an error of the kind [`Kind::Usage`](crate::error::Kind::Usage).
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self::new(Home::new(dir.into()))
    }

    pub(crate) fn new(home: Home) -> Self {
        Self {
            home,
            locked: Arc::default(),
        }
    }

    fn locked_file(&self, key: &str) -> Option<Arc<Mutex<OpenFile>>> {
        sync::lock(&self.locked).get(key).cloned()
    }

    /// Returns the lines of a conversation, and sentences about damage. The first call for a locked one also repairs it and
    /// imports deferred messages.
    fn read_or_open(&self, key: &str) -> Result<(Vec<Line>, Vec<String>)> {
        let file = self.locked_file(key);
        let mut file = file.as_deref().map(sync::lock);
        let Some(file) = file
            .as_mut()
            .filter(|file| matches!(***file, OpenFile::Unread))
        else {
            return self.load(key);
        };
        let (mut lines, mut damage) = self.open_file(key, file)?;
        if let Err(e) = self.take_deferred(key, file, &mut lines) {
            let e = e.doing("taking over what was sent to the chat");
            damage.push(e.message);
        }
        Ok((lines, damage))
    }

    /// Returns the lines of a conversation without the bytes of their media, and sentences about damage.
    fn load(&self, key: &str) -> Result<(Vec<Line>, Vec<String>)> {
        let path = self.home.session(key);
        let found = storage::read_journal(&path)
            .doing(format_args!("reading the session {}", shown_key(key)))?
            .unwrap_or_default();
        let first = found.lines.first();
        first.map_or(Ok(()), |line| refuse_newer(line, &path))?;
        Ok((
            found.lines,
            found.damage.into_iter().chain(found.torn).collect(),
        ))
    }

    /// Opens the file of a locked conversation and repairs it after a crash or disk damage, or begins a new one if it is too
    /// large.
    fn open_file(&self, key: &str, file: &mut OpenFile) -> Result<(Vec<Line>, Vec<String>)> {
        let path = self.home.session(key);
        let mut damage = Vec::new();
        let len = fs_err::metadata(&path).map_or(0, |meta| meta.len());
        let mut opened = Journal::open(&path);
        if opened.is_err() && len > storage::MAX_LOG {
            let old = archive::begin_anew(&self.home, key, SystemTime::now())?;
            let most = size(storage::MAX_LOG);
            damage.push(format!(
                "the conversation has grown to more than {most}: a new one begins, and the old one is {}",
                old.display()
            ));
            opened = Journal::open(&path);
        }
        let opened = opened
            .doing("opening the session")
            .map_err(|e| self.home.hinted(e))?;
        let Some((mut journal, found)) = opened else {
            let path = path.display();
            let begins = format!("{path} has no complete line: a new conversation begins");
            damage.extend((len > 0).then_some(begins));
            *file = OpenFile::Missing;
            return Ok((Vec::new(), damage));
        };
        let first = found.lines.first();
        first.map_or(Ok(()), |line| refuse_newer(line, &path))?;
        damage.extend(leave_damage(&mut journal, &found));
        damage.extend(found.torn);
        media::remove_old(&path, &found.lines);
        *file = OpenFile::Open(journal);
        Ok((found.lines, damage))
    }

    /// Imports deferred messages into the conversation, unless a tool call in it waits for a decision.
    fn take_deferred(&self, key: &str, file: &mut OpenFile, lines: &mut Vec<Line>) -> Result<()> {
        let queue = Queue::of_home(&self.home);
        let waiting = deferred::waiting(&queue, key, lines)?;
        if waiting.lines.is_empty() {
            return queue.done(&waiting.ids);
        }
        let found = Session::of(key, of_lines(key, lines.clone())?)?;
        if found.not_begun > 0 {
            return Ok(());
        }
        let now = rfc3339(SystemTime::now());
        let mut new = Vec::new();
        if lines.is_empty() {
            new.push(header(key, &now));
        }
        // Results must follow their calls.
        let missing = found.missing.iter();
        new.extend(missing.map(|m| fields(&Record::Message(m), &now)));
        new.extend_from_slice(&waiting.lines);
        self.append(key, file, &new, Durability::Now)?;
        lines.extend(new);
        queue.done(&waiting.ids)
    }

    /// Appends lines, whose media files are already written.
    fn append(
        &self,
        key: &str,
        file: &mut OpenFile,
        lines: &[Line],
        durability: Durability,
    ) -> Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        if let OpenFile::Open(journal) = file {
            return journal.append(lines, durability);
        }
        let journal = Journal::create(&self.home.session(key), lines)
            .doing("starting the session")
            .map_err(|e| self.home.hinted(e))?;
        *file = OpenFile::Open(journal);
        Ok(())
    }
}

impl Store for FileStore {
    fn read(&self, key: &str) -> Result<Vec<Line>> {
        check_session(key)?;
        let (mut lines, damage) = self.read_or_open(key)?;
        media::fetch(&self.home.session(key), &mut lines);
        lines.extend(damage.into_iter().map(damage_line));
        Ok(lines)
    }

    fn write(&self, key: &str, from: usize, lines: &[Line], durability: Durability) -> Result<()> {
        check_session(key)?;
        let Some(file) = self.locked_file(key) else {
            return Err(Error::failed("the session is not locked"));
        };
        let mut file = sync::lock(&file);
        if from == 0 && lines.is_empty() {
            *file = OpenFile::Missing;
            return archive::remove(&self.home, key).map(drop);
        }
        if matches!(*file, OpenFile::Unread) {
            self.open_file(key, &mut file)?;
        }
        let live = self.home.session(key);
        let lines = media::put_beside(&live, lines)?;
        check_length(&lines)?;
        let journal = match &mut *file {
            OpenFile::Open(journal) if (from as u64) < journal.next => journal,
            _ => return self.append(key, &mut file, &lines, durability),
        };
        let mut all = match from {
            0 => Vec::new(),
            _ => self.load(key)?.0,
        };
        all.truncate(from);
        all.extend(lines.into_owned());
        // Of a log that has grown too large to be read, the media remain.
        let old = media::names_in(&live).unwrap_or_default();
        let renewed = journal.renew(all.clone());
        renewed.map_err(|e| self.home.hinted(e))?;
        media::remove(&live, old.iter().map(String::as_str), &all);
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>> {
        archive::keys(&self.home)
    }

    fn lock(&self, key: &str) -> Result<Option<Guard>> {
        check_session(key)?;
        let Some(lock) = try_lock(&self.home, key)? else {
            return Ok(None);
        };
        archive::point_to(&self.home, key);
        sync::lock(&self.locked).insert(key.to_owned(), Arc::default());
        Ok(Some(Box::new(FileGuard {
            locked: self.locked.clone(),
            key: key.to_owned(),
            _lock: lock,
        })))
    }
}

/// Returns an error if a message is too long for any model.
fn check_length(lines: &[Line]) -> Result<()> {
    for line in lines {
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

/// Moves the damage of a journal to an archived segment, so that it is reported only once, and returns the report. On a full
/// disk, the next opening reports it again.
fn leave_damage(journal: &mut Journal, found: &Contents) -> Vec<String> {
    let mut damage = found.damage.clone();
    if let Some(last) = damage.last_mut() {
        last.push_str("; the rest is intact, and the conversation continues");
        if let Ok(old) = journal.renew(found.lines.clone()) {
            last.push_str(&format!("; the damaged file is {}", old.display()));
        }
    }
    damage
}

/// Locks a conversation for changes to its files. Calls `on_wait` after waiting for a second.
pub(super) fn lock(home: &Home, key: &str, cancel: &Cancel, on_wait: &dyn Fn()) -> Result<Lock> {
    lock_when_free(key, cancel, on_wait, || try_lock(home, key))
}

/// Locks a conversation, or returns `None` if it is already locked.
fn try_lock(home: &Home, key: &str) -> Result<Option<Lock>> {
    match Lock::acquire(&home.lock(key), Duration::ZERO) {
        Err(e) if e.kind == Kind::Busy => Ok(None),
        lock => lock.map(Some).map_err(|e| home.hinted(e)),
    }
}
