//! All conversations, from outside of a turn: listed and read without a lock and without touching them, started anew,
//! erased.
//!
//! A conversation's files are `KEY.jsonl`, its earlier segments `KEY.N.jsonl`, a successor that a crash left behind, the torn
//! tails that were put aside, and what is to be noted in it with its next turn. A KEY holds no dot (see
//! [`crate::paths::session_name`]), so none of these can belong to another one.
//!
//! The lines of a conversation are numbered through all its segments, so that whoever has seen a line can ask for what
//! came after it. A segment begins with lines that repeat some of those before it, under numbers that those had.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::{Files, Store, TurnEnd, base, later_base, later_header, lock, note, standing, too_new};
use crate::cancel::Cancel;
use crate::disk::segments::{self, Part};
use crate::disk::{self, Journal};
use crate::error::{Context, Error, Result};
use crate::message::{Message, NOTE};
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
    /// The line's number in the conversation.
    pub seq: u64,
    /// As RFC 3339 in UTC; empty when unknown.
    pub time: String,
    pub what: What,
}

pub enum What {
    /// What a model made of all that was said before.
    Summary(String),
    Message(Message),
    TurnEnd(TurnEnd),
}

/// A conversation as its file tells it.
#[derive(Default)]
pub struct Transcript {
    pub created: String,
    /// What counts, in order.
    pub entries: Vec<Entry>,
    /// What is noted for it, and comes into it with its next turn: messages, without numbers of lines.
    pub waiting: Vec<Entry>,
    /// One sentence, with file and line, for each thing that is not as it should be.
    pub damage: Vec<String>,
}

impl Transcript {
    pub fn state(&self) -> State {
        let is_note = |what: &&What| matches!(what, What::Message(Message::User(user)) if user.id.starts_with(NOTE));
        match self.entries.iter().map(|entry| &entry.what).rfind(|what| !is_note(what)) {
            None | Some(What::Summary(_)) => State::New,
            Some(What::TurnEnd(end)) => State::Ended(*end),
            Some(What::Message(_)) => State::Unfinished,
        }
    }

    fn messages(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        let entries = self.entries.iter().chain(&self.waiting);
        entries.filter(|entry| matches!(entry.what, What::Message(_)))
    }
}

/// What is below `sessions/` of one conversation.
#[derive(Default)]
struct Kept {
    live: Option<PathBuf>,
    segments: BTreeMap<u64, PathBuf>,
    /// A successor, torn tails, notes.
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
        let Some((key, part)) = name.to_str().and_then(segments::part) else { continue };
        let kept = found.entry(key.to_owned()).or_default();
        match part {
            Part::Live => kept.live = Some(path),
            Part::Segment(number) => drop(kept.segments.insert(number, path)),
            Part::Other => kept.other.push(path),
        }
    }
    Ok(found)
}

/// Every conversation, the one that was last spoken in first.
pub fn list(home: &Home) -> Result<Vec<Summary>> {
    let mut list: Vec<Summary> = kept(home)?.iter().map(|(key, kept)| summary(home, key, kept)).collect();
    list.sort_unstable_by(|a, b| b.last.cmp(&a.last).then_with(|| a.key.cmp(&b.key)));
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

/// The conversation `key`, as it is now: what was said since it was last summarised, before that the summary, and what is
/// noted for it. Where a crash has come between two segments, it is what the next turn will find.
pub fn read(home: &Home, key: &str) -> Result<Transcript> {
    let path = home.session(key);
    let found = disk::read_journal(&path).doing("reading the session")?.unwrap_or_default();
    let mut story = story(found, &path)?.0;
    let messages = story.entries.iter().filter_map(|entry| match &entry.what {
        What::Message(message) => Some(message),
        What::Summary(_) | What::TurnEnd(_) => None,
    });
    for (user, at) in note::waiting(home, key, messages)? {
        story.waiting.push(Entry { seq: 0, time: rfc3339(at), what: What::Message(Message::User(user)) });
    }
    Ok(story)
}

/// The conversation `key` with all that has come into it behind the line `seq`, in earlier segments too, and perhaps more.
/// What is noted for it has not come into it.
pub fn read_after(home: &Home, key: &str, seq: u64) -> Result<Transcript> {
    let path = home.session(key);
    let found = disk::read_journal(&path).doing("reading the session")?.unwrap_or_default();
    let (mut story, mut repeated) = self::story(found, &path)?;
    // A segment repeats lines up to this one; the lines themselves are in those before it.
    for (_, earlier) in segments::segments(&path)?.into_iter().rev() {
        if repeated <= seq {
            break;
        }
        let found = disk::read_file(&earlier).doing("reading the session")?.unwrap_or_default();
        let (before, its_repeated) = self::story(found, &earlier)?;
        story.entries.retain(|entry| entry.seq > repeated);
        story.entries.splice(..0, before.entries.into_iter().filter(|entry| entry.seq <= repeated));
        story.damage.splice(..0, before.damage);
        repeated = its_repeated;
    }
    Ok(story)
}

/// What a file tells, and the number of the last line that repeats one of an earlier segment.
fn story(found: disk::Looked, path: &Path) -> Result<(Transcript, u64)> {
    let disk::Looked { lines, mut damage, torn } = found;
    damage.extend(torn);
    if let Some(e) = too_new(&lines, path) {
        return Err(e.hint("use the newer bantam that wrote it"));
    }
    let text = |fields: &Value, name| fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let header = lines.first().map_or(&Value::Null, |line| &line.fields);
    let (base, created) = (base(header), text(header, "created"));
    let begun = header.get("lines").and_then(Value::as_u64).unwrap_or(1);
    let entry = |line: disk::Line| {
        let end = line.fields.get("turn").and_then(Value::as_str).and_then(TurnEnd::from_name);
        let what = match (end, line.fields.get("summary").and_then(Value::as_str)) {
            (Some(end), _) => What::TurnEnd(end),
            (_, Some(summary)) => What::Summary(summary.to_owned()),
            _ => What::Message(Message::from_json(&line.fields)?),
        };
        let time = text(&line.fields, if matches!(what, What::Summary(_)) { "created" } else { "time" });
        Some(Entry { seq: base + line.seq, time, what })
    };
    let entries = standing(lines).into_iter().filter_map(entry).collect();
    Ok((Transcript { created, entries, damage, ..Transcript::default() }, (base + begun).saturating_sub(1)))
}

/// The key that somebody means: one of a list, or the command line's conversation of that name.
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

/// Starts the conversation anew: what was said stays, as its newest earlier segment, whose file is returned, and so does
/// its state. `None` when there is nothing to put there.
pub fn reset(home: &Home, key: &str, cancel: &Cancel, now: SystemTime) -> Result<Option<PathBuf>> {
    if fs_err::symlink_metadata(home.session_notes(key)).is_ok() {
        // What was noted before belongs to what is put aside.
        drop(Files::new(home.clone()).load(key, cancel)?);
    }
    let _lock = lock(home, key, cancel)?;
    let path = home.session(key);
    // Looked at first: what a newer program wrote is not to be mended by this one.
    let Some(found) = disk::read_journal(&path)? else { return Ok(None) };
    if let Some(e) = too_new(&found.lines, &path) {
        return Err(e.hint("use the newer bantam that wrote it"));
    }
    if found.lines.len() <= 1 && found.damage.is_empty() && found.torn.is_none() {
        return Ok(None);
    }
    let Some(opened) = Journal::open(&path)? else { return Ok(None) };
    let mut journal = opened.journal;
    let mut session = super::Session { name: key.to_owned(), ..super::Session::default() };
    session.replay(opened.lines, journal.next());
    let header = later_header(&session, None, later_base(&session, 1), &rfc3339(now));
    journal.renew(vec![header]).map(Some)
}

/// Removes earlier segments of a conversation but the newest `keep`.
pub fn thin(home: &Home, key: &str, keep: usize, cancel: &Cancel) -> Result<()> {
    let kept = kept(home)?;
    let Some(segments) = kept.get(key).map(|kept| &kept.segments).filter(|segments| segments.len() > keep) else {
        return Ok(());
    };
    let _lock = lock(home, key, cancel)?;
    let files: Vec<PathBuf> = segments.values().take(segments.len() - keep).cloned().collect();
    disk::remove_files(&files)
}

/// Removes every file of the conversation and its lock, and returns how many files there were. The live file goes last:
/// should it stop half way, the conversation is still listed and can be erased again.
pub fn erase(home: &Home, key: &str, cancel: &Cancel) -> Result<usize> {
    let _lock = lock(home, key, cancel)?;
    let files: Vec<PathBuf> = kept(home)?.get(key).map(|kept| kept.files().cloned().collect()).unwrap_or_default();
    disk::remove_files(&files)?;
    disk::remove(&home.session_lock(key))?;
    Ok(files.len())
}

/// Removes the earlier segments that were last written more than `age` before `now`, of every conversation, and returns
/// them. What a conversation goes on with is never one of them.
pub fn prune(home: &Home, age: Duration, now: SystemTime) -> Result<Vec<PathBuf>> {
    let before = now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut old = Vec::new();
    // Where there is no live file, a crash came between two segments, and one of them is what counts.
    for kept in kept(home)?.into_values().filter(|kept| kept.live.is_some()) {
        for segment in kept.segments.into_values() {
            if fs_err::symlink_metadata(&segment)?.modified()? < before {
                old.push(segment);
            }
        }
    }
    disk::remove_files(&old)?;
    Ok(old)
}
