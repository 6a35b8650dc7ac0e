//! What is to be said in chats, kept until it has been said.
//!
//! A journal, `state/outbox.jsonl`. Any process may post, under the lock; the gateway delivers. Its lines are
//! `{"post":ID,"to","text",..}`, `{"said":ID,"pieces":N}` after each piece of a long one, and `{"over":ID}` at the end.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cancel::Cancel;
use crate::disk::{self, Durability, Fields, Journal, Line, Lock};
use crate::error::{Context, Error, Result};
use crate::paths::Home;

/// Something to say.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub struct Item {
    /// Where: `telegram:CHAT`.
    pub to: String,
    /// Markdown.
    pub text: String,
    /// The messages that it answers, as their channel calls them.
    pub answers: Vec<String>,
}

/// Something that has not been said to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Pending {
    pub id: String,
    pub item: Item,
    /// How many of its pieces have been said.
    pub pieces: usize,
}

/// The outbox of a home.
#[derive(Clone, Debug)]
pub struct Outbox {
    home: Home,
}

/// How long another process may hold it: for a write.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// From this many bytes on what is over is left behind. All of it is read for every message, so it is kept short.
const RENEWED_AT: u64 = 32 << 10;

impl Outbox {
    #[must_use]
    pub fn new(home: Home) -> Self {
        Self { home }
    }

    fn path(&self) -> PathBuf {
        self.home.root().join("state").join("outbox.jsonl")
    }

    /// Keeps `item` to be said. On disk when this returns, with its id.
    ///
    /// # Errors
    /// What the file system says.
    pub fn post(&self, item: &Item) -> Result<String> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let id = format!("{now:x}-{:x}-{:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut line = serde_json::to_value(item).map_err(|e| Error::failed(e.to_string()))?;
        line["post"] = id.clone().into();
        self.append(&line, Durability::Now).doing("keeping a message to be sent")?;
        Ok(id)
    }

    /// Notes how many of its pieces have been said.
    ///
    /// # Errors
    /// What the file system says.
    pub fn said(&self, id: &str, pieces: usize) -> Result<()> {
        self.append(&json!({"said": id, "pieces": pieces}), Durability::Later)
    }

    /// Notes that there is nothing more to say of it.
    ///
    /// # Errors
    /// What the file system says.
    pub fn over(&self, id: &str) -> Result<()> {
        self.append(&json!({"over": id}), Durability::Later)
    }

    /// What is still to be said, the oldest first.
    ///
    /// # Errors
    /// What the file system says.
    pub fn pending(&self) -> Result<Vec<Pending>> {
        let found = disk::read_journal(&self.path()).doing("reading the outbox")?;
        Ok(found.map(|found| left(&found.lines)).unwrap_or_default())
    }

    /// The messages that have been answered by something that is or was in here.
    ///
    /// # Errors
    /// What the file system says.
    pub fn answered(&self) -> Result<Vec<String>> {
        let found = disk::read_journal(&self.path()).doing("reading the outbox")?.unwrap_or_default();
        let answers = found.lines.iter().filter_map(|line| item(&line.fields)).flat_map(|(_, item)| item.answers);
        Ok(answers.collect())
    }

    fn append(&self, line: &Value, durability: Durability) -> Result<()> {
        let _lock = Lock::acquire(&self.home.session_lock("outbox"), LOCK_WAIT, &Cancel::new(None))?;
        let path = self.path();
        let fields = line.as_object().cloned().unwrap_or_default();
        let Some(opened) = Journal::open(&path)? else {
            return Journal::create(&path, &[header(), fields]).map(drop);
        };
        let mut journal = opened.journal;
        journal.append(&[fields], durability)?;
        let over = line.get("over").is_some();
        if over && fs_err::metadata(&path)?.len() > RENEWED_AT {
            let mut lines = opened.lines;
            lines.push(Line { seq: journal.next(), fields: line.clone() });
            let mut kept = vec![header()];
            for Pending { id, item, pieces } in left(&lines) {
                let mut line = serde_json::to_value(item).map_err(|e| Error::failed(e.to_string()))?;
                line["post"] = id.clone().into();
                kept.extend(line.as_object().cloned());
                kept.extend(json!({"said": id, "pieces": pieces}).as_object().cloned());
            }
            journal.restart(kept)?;
        }
        Ok(())
    }
}

fn header() -> Fields {
    json!({"v": 1}).as_object().cloned().unwrap_or_default()
}

/// What a line posts.
fn item(fields: &Value) -> Option<(String, Item)> {
    let id = fields.get("post")?.as_str()?.to_owned();
    Some((id, serde_json::from_value(fields.clone()).ok()?))
}

fn left(lines: &[Line]) -> Vec<Pending> {
    let mut left: Vec<Pending> = Vec::new();
    for Line { fields, .. } in lines {
        if let Some((id, item)) = item(fields) {
            left.push(Pending { id, item, pieces: 0 });
        } else if let Some(id) = fields.get("over").and_then(Value::as_str) {
            left.retain(|pending| pending.id != id);
        } else if let Some(id) = fields.get("said").and_then(Value::as_str) {
            let pieces = fields.get("pieces").and_then(Value::as_u64).and_then(|n| n.try_into().ok());
            if let Some(pending) = left.iter_mut().find(|pending| pending.id == id) {
                pending.pieces = pieces.unwrap_or(0);
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
        };
        let kept = outbox.post(&item(0)).unwrap();
        outbox.said(&kept, 2).unwrap();
        for n in 1..150 {
            let id = outbox.post(&item(n)).unwrap();
            assert_eq!(outbox.pending().unwrap().len(), 2);
            outbox.over(&id).unwrap();
        }
        let left = outbox.pending().unwrap();
        assert_eq!(left, [Pending { id: kept, item: item(0), pieces: 2 }]);
        assert!(outbox.answered().unwrap().contains(&"telegram:0".to_owned()));
        let files =
            fs_err::read_dir(root.join("state")).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_file());
        assert_eq!(files.count(), 1);
        assert!(fs_err::metadata(root.join("state/outbox.jsonl")).unwrap().len() < 2 * RENEWED_AT);
        fs_err::remove_dir_all(root).unwrap();
    }
}
