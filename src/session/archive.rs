//! Conversations outside of turns: listing and reading them without locks or changes, resetting and erasing them.
//!
//! A conversation's files are `KEY.jsonl`, its earlier segments `KEY.N.jsonl`, an unfinished new segment after a crash,
//! and media. A KEY has no dot (see [`crate::paths::session_name`]).
//!
//! Lines are numbered through all segments. A segment begins with copies of some earlier lines, under their numbers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::entries::{Entry, entries, header};
use super::files::lock;
use super::{FileStore, OpenSession, Session, Store, deferred, is_unnamed, versions};
use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::paths::{CLI, Home, UNNAMED, check_session, session_name, shown_key};
use crate::storage::segments::{self, Part};
use crate::storage::{self, Lock, Queue};
use crate::text::{not_found, rfc3339, to_single_line};

/// A conversation in a list.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// Key of the conversation.
    pub key: String,
    /// Beginning of its first question, or the title given by the request.
    pub title: String,
    /// Number of messages that count, tool results included.
    pub messages: usize,
    /// Start of the conversation, as RFC 3339 in UTC; empty if unknown.
    pub created: String,
    /// Time of the last message or else of the last change, as RFC 3339 in UTC; empty if unknown.
    pub last: String,
    /// State of the last turn: a name of [`crate::TurnStop`], `new` before the first turn, `unfinished` during a turn or after a
    /// crash, `unreadable` if the conversation cannot be read or a newer program wrote it.
    pub state: &'static str,
    /// One sentence for each damage.
    pub(crate) damage: Vec<String>,
}

impl SessionInfo {
    /// Describes a conversation by its entries, of which it keeps none.
    pub(super) fn of(key: &str, entries: Result<impl Iterator<Item = Result<Entry>>>) -> Self {
        let mut session = Session::new(key);
        let mut messages = 0;
        let read = entries.and_then(|mut entries| {
            entries.try_for_each(|entry| {
                session.apply(entry?);
                messages += session.messages.len();
                session.messages.clear();
                Ok(())
            })
        });
        if read.is_err() {
            (session, messages) = (Session::new(key), 0);
        }
        let state = match session.ended {
            _ if read.is_err() => "unreadable",
            Some(end) => end.name(),
            None if session.title.is_empty() => "new",
            None => "unfinished",
        };
        Self {
            key: session.name,
            title: session.title,
            messages,
            created: session.created,
            last: session.last,
            state,
            damage: session.damage,
        }
    }
}

/// Sorts a list by last use, the newest first.
pub(super) fn newest_first(mut list: Vec<SessionInfo>) -> Vec<SessionInfo> {
    list.sort_by(|a, b| b.last.cmp(&a.last).then_with(|| a.key.cmp(&b.key)));
    list
}

/// Files of one conversation, the live one last.
type SessionFiles = Vec<(Part, PathBuf)>;

/// Returns the files of every conversation, keyed by conversation.
fn files(home: &Home) -> Result<BTreeMap<String, SessionFiles>> {
    let mut found: BTreeMap<String, SessionFiles> = BTreeMap::new();
    for (name, path) in segments::entries(&home.sessions())? {
        if let Some((key, part)) = segments::part(&name) {
            found.entry(key.to_owned()).or_default().push((part, path));
        }
    }
    for files in found.values_mut() {
        files.sort();
    }
    Ok(found)
}

/// Returns the keys of all conversations.
pub(super) fn keys(home: &Home) -> Result<Vec<String>> {
    Ok(files(home)?.into_keys().collect())
}

/// Lists all conversations by last use, the newest first.
pub(crate) fn list(home: &Home) -> Result<Vec<SessionInfo>> {
    let info = |key: String| {
        let mut info = SessionInfo::of(&key, read(home, &key));
        if info.last.is_empty() {
            let meta = fs_err::symlink_metadata(home.session(&key));
            let changed = meta.and_then(|meta| meta.modified());
            info.last = changed.map(rfc3339).unwrap_or_default();
        }
        info
    };
    Ok(newest_first(keys(home)?.into_iter().map(info).collect()))
}

/// A segment in the directory of conversations.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StoredSegment {
    /// Time of the last change.
    written: SystemTime,
    pub part: Part,
    pub key: String,
    pub path: PathBuf,
    /// Size in bytes.
    pub len: u64,
}

/// Returns the segments of all conversations, the last changed first. Reads no conversation.
pub(super) fn by_time(home: &Home) -> Result<Vec<StoredSegment>> {
    let mut found = Vec::new();
    for (key, files) in files(home)? {
        for (part, path) in files {
            // Skips a file that was removed meanwhile.
            let meta = fs_err::symlink_metadata(&path);
            if let (Part::Live | Part::Segment(_), Ok(meta)) = (part, meta) {
                found.push(StoredSegment {
                    written: meta.modified()?,
                    part,
                    key: key.clone(),
                    path,
                    len: meta.len(),
                });
            }
        }
    }
    found.sort();
    found.reverse();
    Ok(found)
}

pub(super) fn is_of_cli(key: &str) -> bool {
    key.starts_with("cli_")
}

/// Records that a conversation is about to change, if it is one of the command line, so that [`newest`] need not list all.
pub(super) fn point_to(home: &Home, key: &str) {
    let pointer = home.newest();
    if is_of_cli(key) && storage::overwrite(&pointer, key.as_bytes()).is_err() {
        // An old pointer would be wrong; on a full disk it is empty by now.
        drop(storage::remove(&pointer));
    }
}

/// Returns the key of the command line's conversation that was used last. Reads no conversation.
pub(crate) fn newest(home: &Home, now: SystemTime) -> Result<Option<String>> {
    let pointed = pointed(home, now).filter(|key| is_of_cli(key) && check_session(key).is_ok());
    match pointed.filter(|key| home.session(key).exists()) {
        Some(key) => Ok(Some(key)),
        None => {
            let mut segments = by_time(home)?.into_iter();
            let newest =
                segments.find(|segment| segment.part == Part::Live && is_of_cli(&segment.key));
            Ok(newest.map(|segment| segment.key))
        }
    }
}

/// Returns the content of the pointer. A pointer from before the last boot may be too old, after a power cut.
fn pointed(home: &Home, now: SystemTime) -> Option<String> {
    let uptime = u64::try_from(rustix::system::sysinfo().uptime).ok()?;
    let written = fs_err::metadata(home.newest()).ok()?.modified().ok()?;
    let booted = now.checked_sub(Duration::from_secs(uptime))?;
    let pointer = fs_err::read_to_string(home.newest()).ok()?;
    (written > booted).then_some(pointer)
}

/// Reads the live segment of a conversation.
pub(crate) fn read(home: &Home, key: &str) -> Result<impl Iterator<Item = Result<Entry>> + use<>> {
    entries(&segments::current(&home.session(key))?)
}

/// Returns the key that the argument of `--session` means, of an existing conversation or a new one.
///
/// # Errors
/// Returns an error of the kind `Usage` for a conversation of another channel, and for an unnamed one that does not exist.
pub(crate) fn key_for(home: &Home, typed: &str) -> Result<String> {
    let name = typed.strip_prefix("cli_").unwrap_or(typed);
    if ["telegram_", "cron_", "http_", "library_"]
        .iter()
        .any(|channel| name.starts_with(channel))
    {
        let (shown, quoted) = (to_single_line(typed, 80), shell_words::quote(typed));
        return Err(
            Error::usage(format!("{shown} belongs to another channel")).hint(format!(
                "choose another name; `bantam sessions show {quoted}` shows that one"
            )),
        );
    }
    let key = session_name(CLI, name)?;
    if name.starts_with(UNNAMED) && !home.session(&key).exists() {
        return Err(not_found("session", typed, [], "bantam sessions list"));
    }
    Ok(key)
}

/// Returns the key that a user means by the name of an existing conversation, or by its key.
pub(crate) fn find(home: &Home, wanted: &str) -> Result<String> {
    let keys = keys(home)?;
    let names: Vec<String> = keys.iter().map(|key| shown_key(key)).collect();
    let is_meant = |key: &&String| **key == wanted || shown_key(key) == wanted;
    if let Some(key) = keys.iter().find(is_meant) {
        return Ok(key.clone());
    }
    let known = names.iter().map(String::as_str);
    Err(not_found("session", wanted, known, "bantam sessions list"))
}

/// Begins an empty segment without a chosen model, and returns the path of the one before it; `None` if the conversation is
/// empty already. Deferred messages go to the earlier segment.
pub(crate) fn reset(
    home: &Home,
    key: &str,
    cancel: &Cancel,
    now: SystemTime,
) -> Result<Option<PathBuf>> {
    let store: Arc<dyn Store> = Arc::new(FileStore::new(home.clone()));
    let mut open = match OpenSession::open(&store, key, cancel, &|| ()) {
        Err(e) if e.kind == Kind::Config => {
            let _lock = lock(home, key, cancel, &|| ())?;
            return begin_anew(home, key, now).map(Some);
        }
        loaded => loaded?,
    };
    if open.session.next <= 1 {
        // Opening leaves a file that is too large to an earlier segment.
        if open.session.damage.is_empty() {
            return Ok(None);
        }
        return Ok(segments::earlier(&home.session(key))?.next());
    }
    versions::forget(home, key)?;
    open.session.model = None;
    open.session.allowed.clear();
    open.renew(None, Vec::new(), now)?;
    Ok(segments::earlier(&home.session(key))?.next())
}

/// Begins an empty segment without loading the current one, which is too large or was written by a newer program. Returns the
/// path of that one. Its media remain until the conversation is erased.
pub(super) fn begin_anew(home: &Home, key: &str, now: SystemTime) -> Result<PathBuf> {
    // A conversation has fewer lines than seconds have passed, so no earlier line has this number.
    let base = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let mut header = header(key, &rfc3339(now));
    header.insert("base".to_owned(), base.as_secs().into());
    versions::forget(home, key)?;
    Ok(segments::begin_segment(&home.session(key), vec![header])?.1)
}

/// Removes all but the newest `keep` earlier segments of a conversation.
pub(crate) fn keep_newest_segments(
    home: &Home,
    key: &str,
    keep: usize,
    cancel: &Cancel,
) -> Result<()> {
    let _lock = lock(home, key, cancel, &|| ())?;
    let mut old: Vec<PathBuf> = segments::earlier(&home.session(key))?.skip(keep).collect();
    // The oldest first, so that no number is missing after a crash.
    old.reverse();
    storage::remove_files(&old)
}

/// Removes all files of the conversation and its lock, and returns the number of files. The live file is removed last, so that
/// a conversation is still listed and can be erased again after a failure.
pub(crate) fn erase(home: &Home, key: &str, cancel: &Cancel) -> Result<usize> {
    let _lock = lock(home, key, cancel, &|| ())?;
    remove(home, key)
}

/// Renames a conversation, if `from` exists and `to` does not. Returns whether it did. A repeated call after a crash completes
/// the renaming, because the live file is the last one.
///
/// # Errors
/// Returns those of [`OpenSession::open`] and of the storage.
pub(crate) fn rename(home: &Home, from: &str, to: &str, cancel: &Cancel) -> Result<bool> {
    if !home.session(from).exists() || home.session(to).exists() {
        return Ok(false);
    }
    let store: Arc<dyn Store> = Arc::new(FileStore::new(home.clone()));
    // Also imports its deferred messages.
    let _old = OpenSession::open(&store, from, cancel, &|| ())?;
    let _new = lock(home, to, cancel, &|| ())?;
    // It may have begun meanwhile.
    if files(home)?.contains_key(to) {
        return Ok(false);
    }
    for (_, path) in files(home)?.remove(from).unwrap_or_default() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let rest = name.strip_prefix(from).unwrap_or_default();
        storage::rename_new(&path, &home.sessions().join(format!("{to}{rest}")))?;
    }
    versions::forget(home, from)?;
    Ok(true)
}

/// Like [`erase`], for a locked conversation.
pub(super) fn remove(home: &Home, key: &str) -> Result<usize> {
    let files = files(home)?.remove(key).unwrap_or_default();
    remove_all(home, key, files)
}

/// Removes these files of a locked conversation, and everything else of it.
fn remove_all(home: &Home, key: &str, files: SessionFiles) -> Result<usize> {
    let paths: Vec<PathBuf> = files.into_iter().map(|(_, path)| path).collect();
    storage::remove_files(&paths)?;
    let queue = Queue::of_home(home);
    queue.done(&deferred::waiting(&queue, key, &[])?.ids)?;
    versions::forget(home, key)?;
    storage::remove(&home.lock(key))?;
    Ok(paths.len())
}

/// Removes data unused for `keep` before `now`: unnamed conversations, and archived segments of all. Returns the number of
/// removed conversations. Reads no conversation, and skips conversations in use.
pub(crate) fn remove_expired(home: &Home, keep: Duration, now: SystemTime) -> Result<usize> {
    let before = now.checked_sub(keep).unwrap_or(SystemTime::UNIX_EPOCH);
    // A file without metadata may be gone, so it does not count as old.
    let is_old = |(_, path): &(Part, PathBuf)| {
        let written = fs_err::symlink_metadata(path).and_then(|meta| meta.modified());
        written.is_ok_and(|written| written < before)
    };
    let mut removed = 0;
    for (key, files) in files(home)? {
        if is_unnamed(&key) && files.iter().all(is_old) {
            match Lock::acquire(&home.lock(&key), Duration::ZERO) {
                Err(e) if e.kind == Kind::Busy => {}
                lock => {
                    let _lock = lock?;
                    // Another process may have continued it meanwhile.
                    if files.iter().all(is_old) {
                        remove_all(home, &key, files)?;
                        removed += 1;
                    }
                }
            }
        } else if files.iter().any(|(part, _)| *part == Part::Live) {
            // Without a live file, after a crash, an earlier segment may be the current one. Media files remain, because the
            // current segment shows them.
            let segments = files
                .into_iter()
                .filter(|(part, _)| matches!(part, Part::Segment(_)));
            let old: Vec<PathBuf> = segments.filter(is_old).map(|(_, path)| path).collect();
            storage::remove_files(&old)?;
        }
    }
    Ok(removed)
}
