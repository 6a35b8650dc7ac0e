//! Earlier versions of files that the last turn with changes modified, for undo. They are stored in `state/undo/KEY/`, which
//! tools cannot write: `index.json`, and the contents by number.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::error::{Context, Result};
use crate::json::from_json;
use crate::paths::Home;
use crate::storage::{self, Durability};
use crate::sync;

/// Maximum size of the versions stored for a turn, in bytes.
pub(crate) const MOST_KEPT: u64 = 20 << 20;

const INDEX: &str = "index.json";

/// A file before a turn changed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Version {
    /// Path by which a tool changed it.
    pub path: String,
    pub before: Before,
    /// Stamp that the last change left; empty if the file is missing.
    pub state: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Before {
    Absent,
    /// Number of the file with its content.
    Kept(usize),
    /// The file was too large to store, or could not be read.
    Lost,
}

/// Earlier state of a file, if known.
#[derive(Clone, Copy)]
pub(crate) enum Old<'a> {
    Unknown,
    Absent,
    Content(&'a [u8]),
}

/// Contents of `index.json`.
#[derive(Default, Serialize, Deserialize)]
struct Index {
    /// Number of the line with the turn's question.
    place: u64,
    /// Versions, in order of the first change.
    files: Vec<Version>,
}

/// Versions of files changed by one turn.
#[derive(Debug)]
pub(crate) struct Versions {
    /// Directory of the conversation's versions.
    dir: PathBuf,
    place: u64,
    /// Held while the index is changed.
    changing: Mutex<()>,
}

impl Versions {
    /// Makes the versions of the turn whose question is line `place` of a conversation. Does not access the disk.
    pub(crate) fn new(dir: PathBuf, place: u64) -> Self {
        Self {
            dir,
            place,
            changing: Mutex::default(),
        }
    }

    /// Records that a tool has changed a file from the stamp `before` to `after`, and its content before. The first content of a
    /// file counts, unless other means have left another content there in between.
    pub(crate) fn changed(&self, path: &str, old: Old, before: &str, after: String) -> Result<()> {
        let _changing = sync::lock(&self.changing);
        // An unreadable index is written again.
        let mut known = self.read().unwrap_or_default();
        if known.is_empty() {
            // Removes the versions of an earlier turn.
            storage::remove(&self.dir)?;
        }
        let place = known.iter().position(|version| version.path == path);
        match place {
            Some(n) if known[n].state == *before || before.is_empty() => known[n].state = after,
            _ => {
                let n = place.unwrap_or(known.len());
                let version = Version {
                    path: path.to_owned(),
                    before: self.store(n, old)?,
                    state: after,
                };
                if n == known.len() {
                    known.push(version);
                } else {
                    known[n] = version;
                }
            }
        }
        let index = Index {
            place: self.place,
            files: known,
        };
        let index = serde_json::to_vec(&index)?;
        storage::replace(&self.dir.join(INDEX), &index, Durability::Later)
    }

    /// Stores an earlier state as number `n`.
    fn store(&self, n: usize, old: Old) -> Result<Before> {
        Ok(match old {
            Old::Absent => Before::Absent,
            Old::Content(content) if bytes(&self.dir)? + content.len() as u64 <= MOST_KEPT => {
                let file = self.dir.join(n.to_string());
                storage::replace(&file, content, Durability::Later)?;
                Before::Kept(n)
            }
            Old::Content(_) | Old::Unknown => Before::Lost,
        })
    }

    /// Returns the changed files of the turn, in order of the first change.
    pub(crate) fn read(&self) -> Result<Vec<Version>> {
        let index: Index = match fs_err::read(self.dir.join(INDEX)) {
            Ok(text) => from_json(&text)?,
            Err(e) if e.kind() == ErrorKind::NotFound => Index::default(),
            Err(e) => return Err(e).doing("reading what the files were"),
        };
        Ok(if index.place == self.place {
            index.files
        } else {
            Vec::new()
        })
    }

    pub(crate) fn content(&self, number: usize) -> Result<Vec<u8>> {
        Ok(fs_err::read(self.dir.join(number.to_string()))?)
    }
}

/// Removes the stored versions of a conversation.
pub(crate) fn forget(home: &Home, key: &str) -> Result<()> {
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
    use crate::test_dir::TestDir;

    #[test]
    fn first_version_is_kept_until_next_change() {
        let dir = TestDir::new();
        let turn = |place| Versions::new(dir.join("undo"), place);
        let first = turn(3);
        for (path, old, before, after) in [
            ("a", Old::Content(b"one"), "s0", "s1"),
            ("a", Old::Content(b"two"), "s1", "s2"),
            ("b", Old::Absent, "", "s3"),
            ("c", Old::Unknown, "s0", "s4"),
        ] {
            first.changed(path, old, before, after.into()).unwrap();
        }
        let read = turn(3).read().unwrap();
        let before: Vec<_> = read.iter().map(|v| (v.before, v.state.as_str())).collect();
        assert_eq!(
            before,
            [
                (Before::Kept(0), "s2"),
                (Before::Absent, "s3"),
                (Before::Lost, "s4")
            ]
        );
        assert_eq!(turn(3).content(0).unwrap(), b"one");

        // A command removed the file, and a tool made it again.
        first.changed("a", Old::Absent, "", "s5".into()).unwrap();
        assert_eq!(turn(3).read().unwrap()[0].before, Before::Kept(0));
        // A change by other means is not undone.
        let old = Old::Content(b"of the user");
        first.changed("a", old, "user", "s6".into()).unwrap();
        assert_eq!(turn(3).content(0).unwrap(), b"of the user");
        assert_eq!(turn(3).read().unwrap().len(), 3);

        let large = vec![0; 15_000_000];
        let next = turn(9);
        assert!(next.read().unwrap().is_empty());
        for name in ["d", "e"] {
            let old = Old::Content(&large);
            next.changed(name, old, "", "s".into()).unwrap();
        }
        assert!(turn(3).read().unwrap().is_empty());
        let read = turn(9).read().unwrap();
        assert_eq!(
            (read[0].before, read[1].before),
            (Before::Kept(0), Before::Lost)
        );
    }
}
