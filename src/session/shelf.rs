//! All conversations, from outside of a turn: listed and read without a lock and without touching them, started anew,
//! erased.
//!
//! A conversation's files are `KEY.jsonl`, its earlier segments `KEY.N.jsonl`, a successor that a crash left behind, and
//! the torn tails that were put aside. A KEY holds no dot (see [`crate::paths::session_name`]), so none of these can
//! belong to another one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

use super::{TurnEnd, header, lock, standing, too_new};
use crate::cancel::Cancel;
use crate::disk::{self, Journal};
use crate::error::{Context, Error, Result};
use crate::message::Message;
use crate::paths::Home;
use crate::text::rfc3339;

/// What is told of a conversation in a list.
pub struct Summary {
    pub key: String,
    /// Those that count, tool results included.
    pub messages: usize,
    /// When the last of them came, as RFC 3339 in UTC; without one, when the conversation was started.
    pub last: String,
    /// All its files together.
    pub bytes: u64,
    pub earlier_segments: usize,
    pub state: State,
    /// How many things are not as they should be.
    pub damage: usize,
}

/// How the last turn of a conversation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There was none yet.
    New,
    Ended(TurnEnd),
    /// It is under way, or a crash ended it.
    Unfinished,
    /// This program cannot tell: the file cannot be read, or a newer one wrote it.
    Unreadable,
}

impl State {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Ended(end) => end.name(),
            Self::Unfinished => "unfinished",
            Self::Unreadable => "unreadable",
        }
    }
}

/// A thing that happened in a conversation.
pub struct Entry {
    pub seq: u64,
    /// As RFC 3339 in UTC; empty when unknown.
    pub time: String,
    pub what: What,
}

pub enum What {
    Message(Message),
    TurnEnd(TurnEnd),
}

/// A conversation as its file tells it.
pub struct Story {
    pub created: String,
    /// What counts, in order.
    pub entries: Vec<Entry>,
    /// One sentence, with file and line, for each thing that is not as it should be.
    pub damage: Vec<String>,
}

impl Story {
    #[must_use]
    pub fn state(&self) -> State {
        match self.entries.last().map(|entry| &entry.what) {
            None => State::New,
            Some(What::TurnEnd(end)) => State::Ended(*end),
            Some(What::Message(_)) => State::Unfinished,
        }
    }

    fn messages(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter().filter(|entry| matches!(entry.what, What::Message(_)))
    }
}

/// What is below `sessions/` of one conversation.
#[derive(Default)]
struct Kept {
    live: Option<PathBuf>,
    segments: BTreeMap<u64, PathBuf>,
    /// A successor, torn tails.
    other: Vec<PathBuf>,
}

impl Kept {
    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.segments.values().chain(&self.other).chain(&self.live)
    }
}

/// The files of every conversation, by key. A home without any has none.
fn kept(home: &Home) -> Result<BTreeMap<String, Kept>> {
    let mut found: BTreeMap<String, Kept> = BTreeMap::new();
    let entries = match fs_err::read_dir(home.sessions()) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        result => result?,
    };
    for entry in entries {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        let Some((key, rest)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
        let number = rest.strip_suffix(".jsonl").filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
        if rest == "jsonl" {
            found.entry(key.to_owned()).or_default().live = Some(path);
        } else if let Some(Ok(number)) = number.map(str::parse) {
            found.entry(key.to_owned()).or_default().segments.insert(number, path);
        } else if rest == "jsonl.new" || rest.starts_with("jsonl.torn-") {
            found.entry(key.to_owned()).or_default().other.push(path);
        }
    }
    Ok(found)
}

/// Every conversation, the one that was last spoken in first.
///
/// # Errors
/// The directory cannot be read. A file that cannot is told of in its summary.
pub fn list(home: &Home) -> Result<Vec<Summary>> {
    let mut list: Vec<Summary> = kept(home)?.iter().map(|(key, kept)| summary(home, key, kept)).collect();
    list.sort_by(|a, b| b.last.cmp(&a.last).then_with(|| a.key.cmp(&b.key)));
    Ok(list)
}

fn summary(home: &Home, key: &str, kept: &Kept) -> Summary {
    let mut summary = Summary {
        key: key.to_owned(),
        messages: 0,
        last: String::new(),
        bytes: kept.files().filter_map(|file| Some(fs_err::symlink_metadata(file).ok()?.len())).sum(),
        earlier_segments: kept.segments.len(),
        state: State::New,
        damage: 0,
    };
    match read(home, key) {
        Ok(story) => {
            let last = story.messages().next_back().map_or(&story.created, |entry| &entry.time);
            summary.last.clone_from(last);
            summary.messages = story.messages().count();
            summary.state = story.state();
            summary.damage = story.damage.len();
        }
        Err(_) => summary.state = State::Unreadable,
    }
    if summary.last.is_empty() {
        let newest = kept.files().filter_map(|file| fs_err::symlink_metadata(file).ok()?.modified().ok()).max();
        summary.last = newest.map(rfc3339).unwrap_or_default();
    }
    summary
}

/// The conversation `key`, as it is now. One that has only earlier segments is empty.
///
/// # Errors
/// The file cannot be read, or a newer program wrote it.
pub fn read(home: &Home, key: &str) -> Result<Story> {
    let path = home.session(key);
    let found = disk::read_journal(&path).doing("reading the session")?.unwrap_or_default();
    let disk::Looked { lines, mut damage, torn } = found;
    damage.extend(torn);
    if let Some(e) = too_new(&lines, &path) {
        return Err(e.hint("use the newer bantam that wrote it"));
    }
    let text = |fields: &Value, name| fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let created = lines.first().map(|line| text(&line.fields, "created")).unwrap_or_default();
    let entry = |line: disk::Line| {
        let end = line.fields.get("turn").and_then(Value::as_str).and_then(TurnEnd::from_name);
        let what = match end {
            Some(end) => What::TurnEnd(end),
            None => What::Message(Message::from_json(&line.fields)?),
        };
        Some(Entry { seq: line.seq, time: text(&line.fields, "time"), what })
    };
    Ok(Story { created, entries: standing(lines).into_iter().filter_map(entry).collect(), damage })
}

/// The key that somebody means: one of a list, or the command line's conversation of that name.
///
/// # Errors
/// There is no such conversation; the hint has the nearest one.
pub fn find(home: &Home, wanted: &str) -> Result<String> {
    let kept = kept(home)?;
    let of_cli = crate::paths::session_name("cli", wanted);
    if let Some(key) = std::iter::once(wanted).chain(of_cli.as_deref().ok()).find(|key| kept.contains_key(*key)) {
        return Ok(key.to_owned());
    }
    let bare = kept.keys().filter_map(|key| key.strip_prefix("cli_"));
    let near = crate::text::nearest(wanted, kept.keys().map(String::as_str).chain(bare));
    let hint = near.map(|near| format!("did you mean {near}?"));
    Err(Error::failed(format!("there is no conversation \"{}\"", crate::text::one_line(wanted, 80)))
        .hint(hint.unwrap_or_else(|| "bantam sessions list shows them".to_owned())))
}

/// Starts the conversation anew: what was said stays, as its newest earlier segment, whose file is returned. `None` when
/// there is nothing to put there.
///
/// # Errors
/// Somebody holds it, a newer program wrote it, or what the file system says.
pub fn reset(home: &Home, key: &str, cancel: &Cancel, now: SystemTime) -> Result<Option<PathBuf>> {
    let _lock = lock(home, key, cancel)?;
    let path = home.session(key);
    let Some(disk::Looked { lines, damage, torn }) = disk::read_journal(&path)? else { return Ok(None) };
    if let Some(e) = too_new(&lines, &path) {
        return Err(e.hint("use the newer bantam that wrote it"));
    }
    if lines.len() <= 1 && damage.is_empty() && torn.is_none() {
        return Ok(None);
    }
    let newest = kept(home)?.get(key).and_then(|kept| kept.segments.keys().next_back().copied());
    let old = segment(&path, newest.map_or(1, |n| n.saturating_add(1)));
    Journal::renew(&path, &old, &[header(key, &rfc3339(now))])?;
    Ok(Some(old))
}

/// Removes earlier segments of a conversation but the newest `keep`.
///
/// # Errors
/// Somebody holds it, or what the file system says.
pub fn thin(home: &Home, key: &str, keep: usize, cancel: &Cancel) -> Result<()> {
    let kept = kept(home)?;
    let Some(segments) = kept.get(key).map(|kept| &kept.segments).filter(|segments| segments.len() > keep) else {
        return Ok(());
    };
    let _lock = lock(home, key, cancel)?;
    let files: Vec<PathBuf> = segments.values().take(segments.len() - keep).cloned().collect();
    disk::remove_files(&files)
}

fn segment(live: &Path, number: u64) -> PathBuf {
    live.with_extension(format!("{number}.jsonl"))
}

/// Removes every file of the conversation, and returns how many there were. The live file goes last: should it stop half
/// way, the conversation is still listed and can be erased again.
///
/// # Errors
/// Somebody holds it, or what the file system says.
pub fn erase(home: &Home, key: &str, cancel: &Cancel) -> Result<usize> {
    let _lock = lock(home, key, cancel)?;
    let files: Vec<PathBuf> = kept(home)?.get(key).map(|kept| kept.files().cloned().collect()).unwrap_or_default();
    disk::remove_files(&files)?;
    Ok(files.len())
}
