//! A durable queue of incoming messages, outgoing messages and background tasks, stored until they are done.
//!
//! A journal of these lines:
//!
//! - `{"add":ID,"kind","item":{..}}` adds an item, or replaces the item with this id. With `"done":[ID..]` it ends these items
//!   in the same line, so that an answer is stored and its question closed atomically. `"starts"`, `"begun"` and `"part"` are
//!   the state of a compacted item.
//! - `{"start":[ID..]}`: work on these items begins.
//! - `{"halt":[ID..]}`: work was put off in good order, so that start does not count.
//! - `{"part":ID,"n":N}`: the finished part of an item.
//! - `{"done":[ID..]}`: these items are done; with `"why"` if one was given up.
//! - `{"known":[ID..]}`: the latest ids that were done.
//!
//! Several processes may open the same file. Every change is made under a lock, and a process that finds the file changed reads
//! it again. An item that was started [`MAX_STARTS`] times without ending probably crashes the program, so it is skipped.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::journal::fields;
use super::{Durability, Fields, Journal, Lock, MAX_LOG, read_journal};
use crate::error::{Error, Result};
use crate::paths::Home;
use crate::sync;
use crate::text::size;

/// Number of unfinished starts before an item is skipped.
pub(crate) const MAX_STARTS: u32 = 3;
/// Uptime of a program before it may start an item for the last time, so that an item is not blamed when a supervisor or a weak
/// battery kills the program every other second.
pub(crate) const CALM: Duration = Duration::from_secs(5);
/// Time to wait for the lock, which other processes need only for one write.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Size in bytes above which the file is compacted, if more than half of it is done.
const COMPACT_AT: u64 = 64 << 10;
/// Approximate size of a line in bytes, besides an item's fields.
const LINE: u64 = 40;
/// Number of done ids that a home's queue remembers: more than the messages of a poll and the replies to each.
const REMEMBERED: usize = 1000;
const VERSION: u64 = 1;

/// An open item.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Entry {
    #[serde(rename = "add")]
    pub id: String,
    /// Kind of the item; several kinds share a file.
    pub kind: String,
    pub item: Value,
    /// How often work on it began and did not end.
    #[serde(skip_serializing_if = "is_default")]
    pub starts: u32,
    /// Whether work on it has ever begun.
    #[serde(skip_serializing_if = "is_default")]
    pub begun: bool,
    /// The finished part of it.
    #[serde(skip_serializing_if = "is_default")]
    pub part: usize,
    /// Approximate size of its line, in bytes.
    #[serde(skip)]
    size: u64,
    /// Number of items before it, ended ones included.
    #[serde(skip)]
    number: usize,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Entry {
    pub(crate) fn new(id: &str, kind: &str, item: &impl Serialize) -> Self {
        Self {
            id: id.to_owned(),
            kind: kind.to_owned(),
            item: json!(item),
            ..Self::default()
        }
    }

    pub(crate) fn read<T: DeserializeOwned + Default>(&self) -> T {
        serde_json::from_value(self.item.clone()).unwrap_or_default()
    }
}

/// State of a queue after all its lines. Beside thousands of open items, a step copies only the wanted ones.
#[derive(Default)]
struct Content {
    /// Open items by their number, the oldest first.
    entries: Vec<Entry>,
    /// Numbers of the open items, by id.
    keys: BTreeMap<String, usize>,
    /// Number of items so far, ended ones included.
    added: usize,
    /// Total size of the open items, in bytes.
    open: u64,
    /// Ids of the latest done items, the oldest first, with the reasons of those that were given up.
    known: Vec<(String, Option<String>)>,
}

/// Identifies a state of the file: device, inode, length, and the time of the last change.
type Stamp = Option<(u64, u64, u64, (i64, i64))>;

#[derive(Default)]
struct State {
    stamp: Stamp,
    content: Content,
    /// `None` before the first change, and after a failed one, because that handle is no longer trusted.
    journal: Option<Journal>,
    /// Items whose start by this process is counted.
    started: Vec<String>,
    /// No start counts any more, because the program stops.
    is_stopped: bool,
}

/// A queue on disk. The file is read or created at its first use.
pub(crate) struct Queue {
    path: PathBuf,
    lock: PathBuf,
    /// How many done ids to remember.
    remembered: usize,
    /// Maximum size of the file, in bytes.
    max: u64,
    state: Mutex<State>,
}

impl Queue {
    pub(crate) fn new(path: PathBuf, lock: PathBuf, remembered: usize) -> Self {
        Self {
            path,
            lock,
            remembered,
            max: MAX_LOG,
            state: Mutex::default(),
        }
    }

    /// Returns the queue of a home: unanswered messages, outgoing messages, and background tasks.
    pub(crate) fn of_home(home: &Home) -> Self {
        let path = home.state().join("queue.jsonl");
        Self::new(path, home.lock("queue"), REMEMBERED)
    }

    /// Returns the wanted ones of the open items of a kind, the oldest first.
    pub(crate) fn select(
        &self,
        kind: &str,
        is_wanted: &mut dyn FnMut(&Entry) -> bool,
    ) -> Result<Vec<Entry>> {
        let entries = &self.current()?.content.entries;
        let of_kind = entries.iter().filter(|entry| entry.kind == kind);
        Ok(of_kind.filter(|entry| is_wanted(entry)).cloned().collect())
    }

    /// Whether an item is open, or done as far as ids are remembered.
    pub(crate) fn is_known(&self, id: &str) -> Result<bool> {
        let content = &self.current()?.content;
        Ok(content.keys.contains_key(id) || content.done(id).is_some())
    }

    /// Returns why an item was given up.
    pub(crate) fn given_up(&self, id: &str) -> Result<Option<String>> {
        let state = self.current()?;
        let done = state.content.done(id);
        Ok(done.and_then(|(_, why)| why.clone()))
    }

    /// Adds items, or replaces items with the same ids, and ends others atomically. On disk when this returns.
    pub(crate) fn add(&self, entries: &[Entry], done: &[String]) -> Result<()> {
        let mut lines: Vec<Value> = entries.iter().map(|entry| json!(entry)).collect();
        // A crash may cut the write after any line, so the last line ends the items.
        if let (Some(last), false) = (lines.last_mut(), done.is_empty()) {
            last["done"] = json!(done);
        }
        self.append(&lines, Durability::Now)
    }

    /// Counts a start of these items, unless this process has started them. Returns false after [`Queue::stop`].
    pub(crate) fn start(&self, ids: &[String], durability: Durability) -> Result<bool> {
        let mut state = sync::lock(&self.state);
        let mut new = ids.to_vec();
        new.retain(|id| !state.started.contains(id));
        if !state.is_stopped && !new.is_empty() {
            self.write(&mut state, &[json!({"start": new})], durability)?;
            state.started.extend(new);
        }
        Ok(!state.is_stopped)
    }

    /// Undoes what this process has started of these items, unless they are done.
    pub(crate) fn halt(&self, ids: &[String]) -> Result<()> {
        let (mut state, mut halted) = (self.current()?, ids.to_vec());
        halted.retain(|id| state.started.contains(id) && state.content.keys.contains_key(id));
        state.started.retain(|id| !ids.contains(id));
        if halted.is_empty() {
            return Ok(());
        }
        self.write(&mut state, &[json!({"halt": halted})], Durability::Later)
    }

    /// Undoes all starts of this process, and counts no more of them.
    pub(crate) fn stop(&self) -> Result<()> {
        let mut state = sync::lock(&self.state);
        state.is_stopped = true;
        let ids = state.started.clone();
        drop(state);
        self.halt(&ids)
    }

    /// Records the finished part of an item.
    pub(crate) fn part(&self, id: &str, n: usize) -> Result<()> {
        self.append(&[json!({"part": id, "n": n})], Durability::Later)
    }

    /// Ends items. A power cut may undo it.
    pub(crate) fn done(&self, ids: &[String]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        self.append(&[json!({"done": ids})], Durability::Later)
    }

    /// Ends an item that cannot succeed.
    pub(crate) fn give_up(&self, id: &str, why: &str) -> Result<()> {
        self.append(&[json!({"done": [id], "why": why})], Durability::Later)
    }

    fn current(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = sync::lock(&self.state);
        // Taken before the file is read, so that the next call detects a concurrent append.
        let stamp = stamp(&self.path);
        if stamp.is_none() || stamp != state.stamp {
            let found = read_journal(&self.path)?.unwrap_or_default();
            state.content = self.content(found.lines)?;
            state.stamp = stamp;
            state.journal = None;
        }
        Ok(state)
    }

    fn append(&self, lines: &[Value], durability: Durability) -> Result<()> {
        self.write(&mut sync::lock(&self.state), lines, durability)
    }

    fn write(&self, state: &mut State, lines: &[Value], durability: Durability) -> Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let _lock = Lock::acquire(&self.lock, LOCK_WAIT)?;
        if state.stamp.is_none() || stamp(&self.path) != state.stamp {
            state.journal = None;
        }
        let mut journal = match state.journal.take() {
            Some(journal) => journal,
            None => self.open(state)?,
        };
        // A failed write leaves no handle and no stamp, so the next call reads the file again.
        state.stamp = None;
        let room = self.make_room(&mut journal, &state.content, lines)?;
        if room.is_ok() {
            journal.append(&fields(lines), durability)?;
            for line in lines {
                state.content.apply(line, self.remembered);
            }
        }
        // The lines are on disk even if this fails.
        if state.content.compact(&mut journal).is_ok() {
            state.stamp = stamp(&self.path);
            state.journal = Some(journal);
        }
        room
    }

    /// Makes space for these lines. The inner error refuses items that would make the file too large to read; marks need no
    /// space of their own.
    fn make_room(
        &self,
        journal: &mut Journal,
        content: &Content,
        lines: &[Value],
    ) -> Result<Result<()>> {
        let adds = lines.iter().filter(|line| line.get("add").is_some());
        let added: u64 = adds.clone().map(line_size).sum();
        let freed: u64 = adds.map(|line| content.freed_by(line)).sum();
        let open = content.size();
        let has_room = added == 0 || open + added <= self.max / 4 * 3 + freed;
        if has_room && journal.len + added > self.max / 16 * 15 {
            journal.replace(&content.lines())?;
        }
        if added == 0 || (has_room && journal.len + added <= self.max / 64 * 63) {
            return Ok(Ok(()));
        }
        let (path, open) = (self.path.display(), size(open));
        Ok(Err(Error::failed(format!(
            "{path} is full: {open} of unfinished entries"
        ))))
    }

    /// Opens or creates the file.
    fn open(&self, state: &mut State) -> Result<Journal> {
        if let Some((journal, found)) = Journal::open(&self.path)? {
            state.content = self.content(found.lines)?;
            return Ok(journal);
        }
        state.content = Content::default();
        Journal::create(&self.path, &state.content.lines())
    }

    fn content(&self, lines: Vec<Fields>) -> Result<Content> {
        let mut content = Content::default();
        for line in lines.into_iter().map(Value::Object) {
            if line["v"].as_u64().is_some_and(|v| v > VERSION) {
                let path = self.path.display();
                return Err(Error::config(format!("a newer bantam wrote {path}")));
            }
            content.apply(&line, self.remembered);
        }
        Ok(content)
    }
}

impl Content {
    fn apply(&mut self, line: &Value, remembered: usize) {
        let list = |key: &str| -> Vec<&str> {
            let ids = line[key].as_array().into_iter().flatten();
            ids.filter_map(Value::as_str).collect()
        };
        if line["add"].is_string() {
            let mut new = Entry::deserialize(line).unwrap_or_default();
            new.size = line_size(line);
            self.put(new);
        }
        for id in list("start") {
            self.change(id, |entry| {
                entry.starts += 1;
                entry.begun = true;
            });
        }
        for id in list("halt") {
            self.change(id, |entry| entry.starts = entry.starts.saturating_sub(1));
        }
        if let Some(id) = line["part"].as_str() {
            let part = line["n"].as_u64().and_then(|n| n.try_into().ok());
            self.change(id, |entry| entry.part = part.unwrap_or(0));
        }
        let done = list("done");
        for id in &done {
            if let Some(at) = self.place(id) {
                self.open -= self.entries.remove(at).size;
                self.keys.remove(*id);
            }
        }
        let why = line["why"].as_str().map(str::to_owned);
        for id in done.into_iter().chain(list("known")) {
            // An answer may end an id again.
            if self.done(id).is_none() {
                self.known.push((id.to_owned(), why.clone()));
            }
        }
        let forgotten = self.known.len().saturating_sub(remembered);
        self.known.drain(..forgotten);
    }

    fn done(&self, id: &str) -> Option<&(String, Option<String>)> {
        self.known.iter().find(|(known, _)| known == id)
    }

    /// Returns the place of an open item.
    fn place(&self, id: &str) -> Option<usize> {
        let number = self.keys.get(id)?;
        let place = self
            .entries
            .binary_search_by_key(number, |entry| entry.number);
        place.ok()
    }

    /// Adds an open item, or replaces the one with its id, which keeps its state.
    fn put(&mut self, mut new: Entry) {
        self.open += new.size;
        if let Some(at) = self.place(&new.id) {
            let old = &mut self.entries[at];
            self.open -= old.size;
            (old.item, old.size) = (new.item, new.size);
            return;
        }
        new.number = self.added;
        self.added += 1;
        self.keys.insert(new.id.clone(), new.number);
        self.entries.push(new);
    }

    /// Changes an item, if it is open.
    fn change(&mut self, id: &str, change: impl FnOnce(&mut Entry)) {
        if let Some(at) = self.place(id) {
            change(&mut self.entries[at]);
        }
    }

    /// Returns the size of the items that this line ends or replaces, in bytes.
    fn freed_by(&self, line: &Value) -> u64 {
        let ended = line["done"].as_array().into_iter().flatten();
        let ids = ended.chain(line.get("add")).filter_map(Value::as_str);
        let freed = ids.filter_map(|id| self.place(id));
        freed.map(|at| self.entries[at].size).sum()
    }

    /// Estimates the size of a compacted file, in bytes.
    fn size(&self) -> u64 {
        let reason = |why: &Option<String>| why.as_ref().map_or(0, |why| why.len() + 60);
        let known = self.known.iter();
        let known = known.map(|(id, why)| id.len() + 3 + reason(why));
        self.open + known.sum::<usize>() as u64
    }

    /// Compacts the file if that halves it.
    fn compact(&self, journal: &mut Journal) -> Result<()> {
        if journal.len > COMPACT_AT.max(2 * self.size()) {
            journal.replace(&self.lines())?;
        }
        Ok(())
    }

    /// Returns the lines of a compacted file.
    fn lines(&self) -> Vec<Fields> {
        let mut lines = vec![json!({"v": VERSION})];
        for known in self.known.chunk_by(|one, next| one.1 == next.1) {
            let ids: Vec<&str> = known.iter().map(|(id, _)| id.as_str()).collect();
            lines.push(match &known[0].1 {
                None => json!({"known": ids}),
                why => json!({"done": ids, "why": why}),
            });
        }
        lines.extend(self.entries.iter().map(|entry| json!(entry)));
        fields(&lines)
    }
}

fn line_size(line: &Value) -> u64 {
    line.to_string().len() as u64 + LINE
}

fn stamp(path: &Path) -> Stamp {
    let meta = fs_err::metadata(path).ok()?;
    let changed = (meta.mtime(), meta.mtime_nsec());
    Some((meta.dev(), meta.ino(), meta.len(), changed))
}

#[cfg(test)]
mod tests;
