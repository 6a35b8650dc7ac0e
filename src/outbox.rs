//! What is to be said in chats, kept until it has been said.
//!
//! A journal, `state/outbox.jsonl`. Any process may post, under the lock; whoever holds the right to deliver says it: the
//! gateway, or somebody else while none runs. Its lines are `{"post":ID,"to","text",..}`, `{"said":ID,"pieces":N}` after each
//! piece of a long one, and at the end `{"over":ID}`, with `"why"` when it was given up. The line that posts it anew for another
//! place says that the earlier one is over, too, and has `"as":ID`. `{"answered":[..]}` holds what an earlier file knew to be
//! answered. Files that go out are copies of ours in `state/outbox/`.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::cancel::Cancel;
use crate::disk::{self, Durability, Fields, Journal, Line, Lock, NewFile};
use crate::error::{Context, Result};
use crate::paths::{Home, telegram_chat};
use crate::text::one_line;

/// Something to say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Item {
    /// Where: `telegram:CHAT`.
    pub to: String,
    /// Markdown.
    pub text: String,
    /// The messages that it answers, as their channel calls them.
    pub answers: Vec<String>,
    /// A file that goes with it, by its name in `state/outbox/`; empty for none.
    pub file: String,
    /// What people see it called.
    pub name: String,
}

/// Something that has not been said to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Pending {
    pub id: String,
    pub item: Item,
    /// How many of its pieces have been said.
    pub pieces: usize,
    /// How often it was posted anew for another place.
    pub moves: usize,
}

/// What became of something that was posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Pending,
    Said,
    /// It will never be taken; why.
    GivenUp(String),
}

/// The outbox of a home.
#[derive(Clone, Debug)]
pub struct Outbox {
    home: Home,
}

/// How long another process may hold it: for a write.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// From this many bytes on what is over is left behind. All of it is read for every message, so it is kept short.
const RENEWED_AT: usize = 32 << 10;
/// Answered messages that are remembered when it is. More than can be open at a time: an inbox may not know yet that
/// they are closed.
const REMEMBERED: usize = 500;
/// Bytes of a reason for giving up.
const LONGEST_WHY: usize = 200;

impl Outbox {
    pub fn new(home: Home) -> Self {
        Self { home }
    }

    fn path(&self) -> PathBuf {
        self.home.state().join("outbox.jsonl")
    }

    /// Where a file that goes out is, by its name in here.
    pub fn file(&self, name: &str) -> PathBuf {
        self.files().join(name)
    }

    fn files(&self) -> PathBuf {
        self.home.state().join("outbox")
    }

    /// A file to be filled and posted, and its name in here. It is to be kept before, and held until it is posted.
    pub fn new_file(&self) -> Result<(NewFile, String)> {
        let name = fresh_id();
        Ok((NewFile::begin(&self.file(&name))?, name))
    }

    /// Keeps `item` to be said. On disk when this returns, with its id.
    pub fn post(&self, item: &Item) -> Result<String> {
        telegram_chat(&item.to)?;
        let new = Pending { id: fresh_id(), item: item.clone(), pieces: 0, moves: 0 };
        self.append(&posted(&new), Durability::Now).doing("keeping a message to be sent")?;
        Ok(new.id)
    }

    /// Notes how many of its pieces have been said.
    pub fn said(&self, id: &str, pieces: usize) -> Result<()> {
        self.append(&json!({"said": id, "pieces": pieces}), Durability::Later)
    }

    /// Notes that it has been said to its end.
    pub fn over(&self, id: &str) -> Result<()> {
        self.append(&json!({"over": id}), Durability::Later)
    }

    /// Notes that it will never be taken, and why.
    pub fn give_up(&self, id: &str, why: &str) -> Result<()> {
        self.append(&json!({"over": id, "why": one_line(why, LONGEST_WHY)}), Durability::Later)
    }

    /// Posts what is left of it anew for another place.
    pub fn redirect(&self, pending: &Pending, to: String) -> Result<()> {
        let id = fresh_id();
        let mut line = posted(&Pending {
            id: id.clone(),
            item: Item { to, ..pending.item.clone() },
            pieces: pending.pieces,
            moves: pending.moves + 1,
        });
        // One line: a crash leaves either the one or the other to be said.
        line["over"] = pending.id.as_str().into();
        line["as"] = id.into();
        self.append(&line, Durability::Now)
    }

    /// What is still to be said, the oldest first.
    pub fn pending(&self) -> Result<Vec<Pending>> {
        Ok(left(&self.lines()?))
    }

    /// What became of something that was posted. What is not known any more counts as said.
    pub fn fate(&self, id: &str) -> Result<Outcome> {
        let (lines, mut id) = (self.lines()?, id);
        for Line { fields, .. } in &lines {
            if fields.get("over").and_then(Value::as_str) != Some(id) {
                continue;
            }
            let text = |name| fields.get(name).and_then(Value::as_str);
            match (text("as"), text("why")) {
                (Some(new), _) => id = new,
                (None, Some(why)) => return Ok(Outcome::GivenUp(why.to_owned())),
                (None, None) => return Ok(Outcome::Said),
            }
        }
        Ok(if left(&lines).iter().any(|pending| pending.id == id) { Outcome::Pending } else { Outcome::Said })
    }

    /// The messages that have been answered by something that is or was in here.
    pub fn answered(&self) -> Result<Vec<String>> {
        Ok(answered(&self.lines()?))
    }

    /// The right to say what is in here, for whoever holds it: two would say things twice. The gateway does as long as it
    /// runs.
    pub fn sender(&self, wait: Duration, cancel: &Cancel) -> Result<Lock> {
        Lock::acquire(&self.home.session_lock("sender"), wait, cancel)
    }

    /// Removes files that nothing in here names: a crash has left them.
    pub fn sweep(&self) -> Result<()> {
        let _lock = self.lock()?;
        self.clear_away(&self.lines()?)
    }

    fn clear_away(&self, lines: &[Line]) -> Result<()> {
        let pending = left(lines);
        let entries = match fs_err::read_dir(self.files()) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if pending.iter().any(|pending| entry.file_name() == pending.item.file.as_str()) {
                continue;
            }
            // One that somebody is filling is about to be posted.
            if let Ok(_held) = Lock::acquire(&entry.path(), Duration::ZERO, &Cancel::new(None)) {
                disk::remove(&entry.path())?;
            }
        }
        Ok(())
    }

    fn lines(&self) -> Result<Vec<Line>> {
        let found = disk::read_journal(&self.path()).doing("reading the outbox")?;
        Ok(found.unwrap_or_default().lines)
    }

    fn lock(&self) -> Result<Lock> {
        Lock::acquire(&self.home.session_lock("outbox"), LOCK_WAIT, &Cancel::new(None))
    }

    fn append(&self, line: &Value, durability: Durability) -> Result<()> {
        let _lock = self.lock()?;
        let path = self.path();
        let fields = line.as_object().cloned().unwrap_or_default();
        let Some(opened) = Journal::open(&path)? else {
            return Journal::create(&path, &[header(), fields]).map(drop);
        };
        let mut journal = opened.journal;
        journal.append(&[fields], durability)?;
        let Some(over) = line.get("over").and_then(Value::as_str) else { return Ok(()) };
        let mut lines = opened.lines;
        let file = left(&lines).into_iter().find(|pending| pending.id == over).map(|pending| pending.item.file);
        lines.push(Line { seq: journal.next(), fields: line.clone() });
        if let Some(file) = file.filter(|file| !file.is_empty()) {
            // Posted anew it has the same one.
            if !left(&lines).iter().any(|pending| pending.item.file == file) {
                disk::remove(&self.file(&file))?;
            }
        }
        if fs_err::metadata(&path)?.len() <= RENEWED_AT as u64 {
            return Ok(());
        }
        let kept = worth_keeping(&lines);
        let weight: usize = kept.iter().map(|line| line.to_string().len()).sum();
        // Twice what will stay: what waits for long is not written anew each time.
        if fs_err::metadata(&path)?.len() > RENEWED_AT.max(2 * weight) as u64 {
            let kept = kept.iter().filter_map(|line| line.as_object().cloned());
            journal.restart(std::iter::once(header()).chain(kept).collect())?;
            self.clear_away(&lines)?;
        }
        Ok(())
    }
}

/// An id that nothing else in an outbox has.
fn fresh_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    format!("{now:x}-{:x}-{:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn header() -> Fields {
    json!({"v": 1}).as_object().cloned().unwrap_or_default()
}

/// The line that posts an item.
fn posted(Pending { id, item, pieces, moves }: &Pending) -> Value {
    let mut line = json!({"post": id, "to": item.to, "text": item.text, "answers": item.answers});
    if !item.file.is_empty() {
        line["file"] = item.file.as_str().into();
        line["name"] = item.name.as_str().into();
    }
    for (name, count) in [("pieces", *pieces), ("moves", *moves)] {
        if count > 0 {
            line[name] = count.into();
        }
    }
    line
}

/// What these lines come to, without what is over: the fates that are not plain, what was answered, and what is left.
fn worth_keeping(lines: &[Line]) -> Vec<Value> {
    let mut kept = Vec::new();
    for Line { fields, .. } in lines {
        if let (Some(over), true) = (fields.get("over"), fields.get("as").or(fields.get("why")).is_some()) {
            let mut line = json!({"over": over});
            for name in ["as", "why"] {
                if let Some(value) = fields.get(name) {
                    line[name] = value.clone();
                }
            }
            kept.push(line);
        }
    }
    kept.drain(..kept.len().saturating_sub(REMEMBERED));
    let mut answered = answered(lines);
    answered.drain(..answered.len().saturating_sub(REMEMBERED));
    kept.push(json!({"answered": answered}));
    kept.extend(left(lines).iter().map(posted));
    kept
}

/// What a line posts.
fn item(fields: &Value) -> Option<(String, Item)> {
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let id = fields.get("post")?.as_str()?.to_owned();
    let mut item =
        Item { to: text("to"), text: text("text"), file: text("file"), name: text("name"), ..Item::default() };
    collect(fields, "answers", &mut item.answers);
    Some((id, item))
}

/// Adds the texts of a list.
fn collect(fields: &Value, name: &str, to: &mut Vec<String>) {
    for text in fields.get(name).and_then(Value::as_array).into_iter().flatten() {
        to.push(text.as_str().unwrap_or_default().to_owned());
    }
}

/// What has been answered, the oldest first.
fn answered(lines: &[Line]) -> Vec<String> {
    let mut answered = Vec::new();
    for Line { fields, .. } in lines {
        collect(fields, "answered", &mut answered);
        collect(fields, "answers", &mut answered);
    }
    answered
}

fn left(lines: &[Line]) -> Vec<Pending> {
    let mut left: Vec<Pending> = Vec::new();
    for Line { fields, .. } in lines {
        let count = |name: &str| fields.get(name).and_then(Value::as_u64).and_then(|n| n.try_into().ok()).unwrap_or(0);
        if let Some(id) = fields.get("over").and_then(Value::as_str) {
            left.retain(|pending| pending.id != id);
        }
        if let Some((id, item)) = item(fields) {
            left.push(Pending { id, item, pieces: count("pieces"), moves: count("moves") });
        } else if let Some(id) = fields.get("said").and_then(Value::as_str) {
            if let Some(pending) = left.iter_mut().find(|pending| pending.id == id) {
                pending.pieces = count("pieces");
            }
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_posted_stays_until_it_is_over_through_renewals() {
        let root = std::env::temp_dir().join(format!("bantam-outbox-{}", std::process::id()));
        let outbox = Outbox::new(Home::new(root.clone()));
        assert!(outbox.pending().unwrap().is_empty());
        let item = |n: usize| Item {
            to: "telegram:1".into(),
            text: format!("{n} 日本 {}", "x".repeat(4000)),
            answers: vec![format!("telegram:{n}")],
            ..Item::default()
        };
        let kept = outbox.post(&item(0)).unwrap();
        outbox.said(&kept, 2).unwrap();
        for n in 1..150 {
            let id = outbox.post(&item(n)).unwrap();
            assert_eq!(outbox.pending().unwrap().len(), 2);
            outbox.over(&id).unwrap();
        }
        let left = outbox.pending().unwrap();
        assert_eq!(left, [Pending { id: kept, item: item(0), pieces: 2, moves: 0 }]);
        let answered = outbox.answered().unwrap();
        assert!((0..150).all(|n| answered.contains(&format!("telegram:{n}"))), "{answered:?}");
        let files =
            fs_err::read_dir(root.join("state")).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_file());
        assert_eq!(files.count(), 1);
        assert!(fs_err::metadata(root.join("state/outbox.jsonl")).unwrap().len() < 2 * RENEWED_AT as u64);
        fs_err::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_file_goes_with_what_it_was_for_and_orphans_go_unless_somebody_fills_them() {
        let root = std::env::temp_dir().join(format!("bantam-outbox-files-{}", std::process::id()));
        let outbox = Outbox::new(Home::new(root.clone()));
        let post = || {
            let (mut file, name) = outbox.new_file().unwrap();
            file.push(b"bytes").unwrap();
            file.keep().unwrap();
            let item = Item { to: "telegram:1".into(), file: name, name: "a.txt".into(), ..Item::default() };
            (outbox.post(&item).unwrap(), item)
        };
        let ((first, one), (second, two)) = (post(), post());
        let (filling, name) = outbox.new_file().unwrap();
        fs_err::write(outbox.file("orphan"), "left").unwrap();
        outbox.sweep().unwrap();
        assert!(!outbox.file("orphan").exists() && outbox.file(&name).exists());
        drop(filling);
        assert!(!outbox.file(&name).exists());
        outbox.over(&first).unwrap();
        assert!(!outbox.file(&one.file).exists() && outbox.file(&two.file).exists());
        // Posted anew, it takes its file along.
        let pending = outbox.pending().unwrap().remove(0);
        outbox.redirect(&pending, "telegram:-2".into()).unwrap();
        assert!(outbox.file(&two.file).exists());
        assert_eq!(outbox.fate(&second).unwrap(), Outcome::Pending);
        let pending = outbox.pending().unwrap().remove(0);
        assert_eq!(pending.item, Item { to: "telegram:-2".into(), ..two.clone() });
        outbox.give_up(&pending.id, "no such chat").unwrap();
        assert_eq!(outbox.fate(&second).unwrap(), Outcome::GivenUp("no such chat".into()));
        assert_eq!(outbox.fate(&first).unwrap(), Outcome::Said);
        assert_eq!(fs_err::read_dir(root.join("state/outbox")).unwrap().count(), 0);
        fs_err::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_became_of_something_is_known_through_renewals() {
        let root = std::env::temp_dir().join(format!("bantam-outbox-fates-{}", std::process::id()));
        let outbox = Outbox::new(Home::new(root.clone()));
        let item = |to: &str, text: &str| Item { to: to.into(), text: text.into(), ..Item::default() };
        let moved = outbox.post(&item("telegram:-1", "mine")).unwrap();
        outbox.said(&moved, 3).unwrap();
        let pending = outbox.pending().unwrap().remove(0);
        outbox.redirect(&pending, "telegram:-2".into()).unwrap();
        let refused = Outcome::GivenUp("chat not found".into());
        let mut ids = Vec::new();
        for n in 0..20 {
            let id = outbox.post(&item("telegram:1", &format!("{n} {}", "x".repeat(4000)))).unwrap();
            outbox.give_up(&id, "chat not found").unwrap();
            ids.push(id);
            assert!(ids.iter().all(|id| outbox.fate(id).unwrap() == refused), "item {n}");
            assert_eq!(outbox.fate(&moved).unwrap(), Outcome::Pending, "item {n}");
        }
        let left = outbox.pending().unwrap();
        // What has been said of it is not said again.
        assert_eq!((left.len(), left[0].pieces, left[0].moves), (1, 3, 1));
        outbox.give_up(&left[0].id, "chat not found").unwrap();
        assert_eq!(outbox.fate(&moved).unwrap(), refused);
        // Only the last ones are remembered, so that the file stays short.
        for n in 0..REMEMBERED {
            outbox.give_up(&format!("{n}-0-0"), "chat not found").unwrap();
        }
        let path = root.join("state/outbox.jsonl");
        assert!(fs_err::metadata(path).unwrap().len() < 5 * RENEWED_AT as u64);
        fs_err::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_nobody_could_deliver_is_not_taken() {
        let root = std::env::temp_dir().join(format!("bantam-outbox-place-{}", std::process::id()));
        let outbox = Outbox::new(Home::new(root.clone()));
        for to in ["pigeon:1", "telegram:", ""] {
            assert!(outbox.post(&Item { to: to.into(), ..Item::default() }).is_err(), "{to}");
        }
        assert!(!root.exists());
    }
}
