//! The earlier versions of files that a turn's tools have changed, kept for as long as the user may take the turn back. They
//! lie in `state/undo/KEY/PLACE/`, where no tool can write, in a folder for each turn: `index.json`, and the contents by
//! number.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::{Context, Result};
use crate::paths::Home;
use crate::storage::{self, Durability};
use crate::text::from_json;

/// The most bytes that are kept of a conversation. The oldest turns make room.
pub(crate) const MOST_KEPT: u64 = 20 << 20;

const INDEX: &str = "index.json";

/// A file as it was before a turn changed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Version {
    /// As tools name it.
    pub path: String,
    pub before: Before,
    /// The file's stamp before the turn; empty if that is not known.
    #[serde(default)]
    pub was: String,
    /// The stamp of what the tool left; it changes with the file.
    pub stamp: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Before {
    Absent,
    /// The number of its content.
    Kept(usize),
    /// It was too large to be kept, or could not be read.
    Lost,
}

/// What a file was, as far as that is known.
#[derive(Clone, Copy)]
pub(crate) enum Old<'a> {
    Unknown,
    Absent,
    /// What it held, and its stamp.
    Content(&'a [u8], &'a str),
}

/// The versions of one turn.
#[derive(Debug)]
pub(crate) struct Versions {
    /// Of the conversation.
    dir: PathBuf,
    /// The number of the line with the turn's question.
    place: u64,
    known: Mutex<Vec<Version>>,
}

impl Versions {
    /// Those of the turn whose question is line `place` of a conversation. Reads and writes nothing.
    pub(crate) fn of(dir: PathBuf, place: u64) -> Self {
        Self {
            dir,
            place,
            known: Mutex::default(),
        }
    }

    /// The same for a turn that goes on after the program's end, with what is kept of it already.
    pub(crate) fn resumed(dir: PathBuf, place: u64) -> Self {
        let versions = Self::of(dir, place);
        // An index that cannot be read is written again.
        *versions.lock() = versions.read().unwrap_or_default();
        versions
    }

    fn turn(&self) -> PathBuf {
        self.dir.join(self.place.to_string())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Version>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the file's earlier version is known.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.lock().iter().any(|version| version.path == path)
    }

    /// Records that a tool has changed a file. `before` is what it was. Only the first counts.
    pub(crate) fn changed(&self, path: &str, before: Old, stamp: String) -> Result<()> {
        let mut known = self.lock();
        if let Some(version) = known.iter_mut().find(|version| version.path == path) {
            version.stamp = stamp;
        } else {
            let number = known.len();
            let was = match before {
                Old::Content(_, was) => was.to_owned(),
                Old::Unknown | Old::Absent => String::new(),
            };
            let before = match before {
                Old::Unknown => Before::Lost,
                Old::Absent => Before::Absent,
                Old::Content(content, _) if self.make_room(content.len() as u64)? => {
                    let file = self.turn().join(number.to_string());
                    storage::replace(&file, content, Durability::Later)?;
                    Before::Kept(number)
                }
                Old::Content(..) => Before::Lost,
            };
            known.push(Version {
                path: path.to_owned(),
                before,
                was,
                stamp,
            });
        }
        self.write(&known)
    }

    fn write(&self, versions: &[Version]) -> Result<()> {
        let index = serde_json::to_vec(versions)?;
        storage::replace(&self.turn().join(INDEX), &index, Durability::Later)
    }

    /// Records that a file is again as it was before this turn, with a new stamp, so that the turn before can be taken back,
    /// too.
    pub(crate) fn put_back(&self, version: &Version, stamp: &str) -> Result<()> {
        let mut turns = self.turns()?;
        turns.retain(|place, _| *place < self.place);
        for place in turns.into_keys().rev() {
            let turn = Self::of(self.dir.clone(), place);
            let mut versions = turn.read()?;
            let left = versions.iter_mut().find(|left| left.path == version.path);
            let Some(left) = left else { continue };
            if left.stamp == version.was {
                stamp.clone_into(&mut left.stamp);
                turn.write(&versions)?;
            }
            break;
        }
        Ok(())
    }

    /// The folders of the conversation's turns.
    fn turns(&self) -> Result<BTreeMap<u64, PathBuf>> {
        let entries = storage::segments::entries(&self.dir)?.into_iter();
        Ok(entries
            .filter_map(|(name, path)| Some((name.parse().ok()?, path)))
            .collect())
    }

    /// Removes the oldest turns until so many bytes more may be kept. Returns whether they may.
    fn make_room(&self, more: u64) -> Result<bool> {
        let mut turns = BTreeMap::new();
        for (place, path) in self.turns()? {
            turns.insert(place, (bytes(&path)?, path));
        }
        let mut kept: u64 = turns.values().map(|(bytes, _)| bytes).sum();
        for (place, (bytes, path)) in turns {
            if kept + more <= MOST_KEPT || place >= self.place {
                break;
            }
            storage::remove(&path)?;
            kept -= bytes;
        }
        Ok(kept + more <= MOST_KEPT)
    }

    /// What the turn has changed, the first change first.
    pub(crate) fn read(&self) -> Result<Vec<Version>> {
        match fs_err::read(self.turn().join(INDEX)) {
            Ok(text) => Ok(from_json(&text)?),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(e).doing("reading what the files were"),
        }
    }

    pub(crate) fn content(&self, number: usize) -> Result<Vec<u8>> {
        Ok(fs_err::read(self.turn().join(number.to_string()))?)
    }

    /// Forgets the turn.
    pub(crate) fn forget(&self) -> Result<()> {
        storage::remove(&self.turn())
    }
}

/// Forgets all turns of a conversation.
pub(super) fn forget(home: &Home, key: &str) -> Result<()> {
    storage::remove(&home.undo(key))
}

fn bytes(dir: &Path) -> Result<u64> {
    let files = storage::segments::entries(dir)?;
    let sizes = files.iter().filter_map(|(_, path)| {
        let meta = fs_err::symlink_metadata(path).ok()?;
        Some(meta.len())
    });
    Ok(sizes.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_counts_and_the_oldest_turns_make_room() {
        let home = std::env::temp_dir().join(format!("bantam-versions-{}", std::process::id()));
        let turn = |place| Versions::of(home.clone(), place);
        let first = turn(3);
        first
            .changed("a", Old::Content(b"one", ""), "s1".into())
            .unwrap();
        first
            .changed("a", Old::Content(b"two", ""), "s2".into())
            .unwrap();
        first.changed("b", Old::Absent, "s3".into()).unwrap();
        first.changed("c", Old::Unknown, "s4".into()).unwrap();
        let read = turn(3).read().unwrap();
        let before: Vec<_> = read.iter().map(|v| (v.before, v.stamp.as_str())).collect();
        assert_eq!(
            before,
            [
                (Before::Kept(0), "s2"),
                (Before::Absent, "s3"),
                (Before::Lost, "s4")
            ]
        );
        assert_eq!(turn(3).content(0).unwrap(), b"one");
        assert!(first.has("a") && !first.has("d"));

        let large = vec![0; 20_000_000];
        turn(9)
            .changed("d", Old::Content(&large, ""), "s".into())
            .unwrap();
        assert_eq!(turn(3).read().unwrap().len(), 3, "there is room for both");
        turn(20)
            .changed("e", Old::Content(&large, ""), "s".into())
            .unwrap();
        assert!(turn(3).read().unwrap().is_empty() && turn(9).read().unwrap().is_empty());
        let last = turn(21);
        last.changed("e", Old::Content(&large, ""), "s".into())
            .unwrap();
        last.changed("f", Old::Content(&large, ""), "s".into())
            .unwrap();
        let before = last.read().unwrap()[1].before;
        assert_eq!(before, Before::Lost, "it makes no room in its own turn");
        storage::remove(&home).unwrap();
    }
}
