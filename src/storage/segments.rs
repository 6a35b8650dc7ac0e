//! Append-only logs in segments, so that the time to read one does not grow with its age.
//!
//! `KEY.jsonl` is the live segment; earlier segments are `KEY.N.jsonl`, in the order of N. A new segment begins in steps, and a
//! crash may happen after any of them:
//!
//! 1. write the new segment as `KEY.jsonl.new`, and sync it;
//! 2. rename `KEY.jsonl` to `KEY.N.jsonl`;
//! 3. rename `KEY.jsonl.new` to `KEY.jsonl`.
//!
//! Before step 2 the old segment is current. After it the new segment is, which is complete by then; its line 0 has the number
//! of its first lines. If it is incomplete, after a disk that lied about syncing, the newest earlier segment is current.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::journal::{Contents, Fields, Journal, LogItem, LogReader, read_file};
use super::{parent, remove, remove_files, sync_dir};
use crate::error::{Context, Error, Result};

/// Role of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Segment(u64),
    /// Bytes of an image or another file that a line names.
    Media,
    /// An unfinished new segment.
    Other,
    Live,
}

/// Parses the KEY and the role of a file from its name; `None` for other files. A KEY has no dot.
pub(crate) fn part(name: &str) -> Option<(&str, Part)> {
    let (key, rest) = name.split_once('.')?;
    if rest == "jsonl" {
        return Some((key, Part::Live));
    }
    if rest == "jsonl.new" {
        return Some((key, Part::Other));
    }
    if rest.ends_with(".media") || rest.ends_with(".media.new") {
        return Some((key, Part::Media));
    }
    let number = rest
        .strip_suffix(".jsonl")
        .filter(|n| n.bytes().all(|b| b.is_ascii_digit()))?;
    Some((key, Part::Segment(number.parse().ok()?)))
}

/// Lists names and paths in a directory, which may be missing.
pub(crate) fn entries(dir: &Path) -> Result<Vec<(String, PathBuf)>> {
    let entries = match fs_err::read_dir(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        result => result?,
    };
    entries
        .map(|entry| {
            entry
                .map(|e| (e.file_name().to_string_lossy().into_owned(), e.path()))
                .map_err(Error::from)
        })
        .collect()
}

/// Returns the earlier segments of the log at `live`, by number. Lists the directory, which may contain thousands of logs, so a
/// question in a conversation does not need this.
fn segments(live: &Path) -> Result<BTreeMap<u64, PathBuf>> {
    let key = live.file_stem().unwrap_or_default();
    let numbered = |(name, path): (String, PathBuf)| match part(&name)? {
        (found, Part::Segment(number)) if found == key => Some((number, path)),
        _ => None,
    };
    Ok(entries(parent(live))?
        .into_iter()
        .filter_map(numbered)
        .collect())
}

/// Returns the earlier segments of the log, the newest first.
pub(crate) fn earlier(live: &Path) -> Result<impl Iterator<Item = PathBuf>> {
    Ok(segments(live)?.into_values().rev())
}

impl Journal {
    /// Opens a log and reads its whole live segment. Repairs a tail that a crash cut short, and finishes an interrupted new
    /// segment. `None` if there is no log.
    pub(crate) fn open(path: &Path) -> Result<Option<(Self, Contents)>> {
        let mut opened = Self::open_file(path)?;
        if opened.is_none() {
            // The live segment is missing, or was emptied by a power cut. An empty one remains until another takes its place,
            // because it is the sign that there is another.
            let Some(other) = substitute(path)? else {
                return remove(path).map(|()| None);
            };
            fs_err::rename(other, path)?;
            sync_dir(parent(path))?;
            opened = Self::open_file(path)?;
        }
        remove_unfinished(path)?;
        Ok(opened)
    }

    /// Begins a new segment with the lines `first`, and returns the path of the one before it. On disk before this returns.
    pub(crate) fn renew(&mut self, first: Vec<Fields>) -> Result<PathBuf> {
        match begin_segment(&self.path, first) {
            Ok((journal, old)) => {
                *self = journal;
                Ok(old)
            }
            Err(e) => {
                // This handle may point to an archived file by now. The next opening finishes the new segment.
                let number = |meta: std::io::Result<Metadata>| meta.map(|meta| meta.ino()).ok();
                let live = number(fs_err::metadata(&self.path));
                self.suspect |= live != number(self.file.metadata());
                Err(e)
            }
        }
    }

    /// Replaces all lines atomically. On disk before this returns.
    pub(super) fn replace(&mut self, lines: &[Fields]) -> Result<()> {
        let (journal, new) = successor(&self.path, lines)?;
        fs_err::rename(&new, &self.path)?;
        *self = journal;
        sync_dir(parent(&self.path))
    }
}

/// Creates the next file of the log at `path`, and returns its path until it is renamed.
fn successor(path: &Path, lines: &[Fields]) -> Result<(Journal, PathBuf)> {
    remove_unfinished(path)?;
    let new = unfinished(path);
    let mut journal = Journal::create(&new, lines)?;
    path.clone_into(&mut journal.path);
    Ok((journal, new))
}

/// Begins a new segment of the log at `path` without reading it. Also returns the path of the one before it.
pub(crate) fn begin_segment(path: &Path, mut first: Vec<Fields>) -> Result<(Journal, PathBuf)> {
    let count = first.len();
    if let Some(header) = first.first_mut() {
        header.insert("lines".to_owned(), Value::from(count));
    }
    let numbers = segments(path)?.into_keys();
    let number = numbers.last().map_or(1, |newest| newest.saturating_add(1));
    let old = path.with_extension(format!("{number}.jsonl"));
    let (journal, new) = successor(path, &first)?;
    let swap = || -> Result<()> {
        fs_err::rename(path, &old)?;
        // Some file systems reorder renames.
        sync_dir(parent(path))?;
        fs_err::rename(&new, path)?;
        sync_dir(parent(path))
    };
    swap().doing(format_args!(
        "beginning a new segment of {}",
        path.display()
    ))?;
    Ok((journal, old))
}

/// Returns the file to read as the live segment of a log: if a new segment is half begun, the file that [`Journal::open`] would
/// make live.
pub(crate) fn current(live: &Path) -> Result<PathBuf> {
    let first = LogReader::open(live)?.and_then(|mut log| log.next());
    Ok(match first.transpose()? {
        Some(LogItem::Line(..) | LogItem::Damage(_)) => live.to_owned(),
        // Without a substitute, the file may have been renamed meanwhile.
        Some(LogItem::Torn(..)) | None => substitute(live)?.unwrap_or_else(|| live.to_owned()),
    })
}

/// Reads the live segment of a log and changes nothing. `None` if there is no log.
pub(crate) fn read_journal(path: &Path) -> Result<Option<Contents>> {
    read_file(&current(path)?)
}

/// Returns the current segment while the live one is missing or empty: the new one, or else the newest earlier one. `None`
/// without a sign of a crash, because a missing log must not cost a listing of the directory.
fn substitute(live: &Path) -> Result<Option<PathBuf>> {
    let new = unfinished(live);
    match read_file(&new)? {
        Some(found) if is_complete(&found) => return Ok(Some(new)),
        None if fs_err::symlink_metadata(live).is_err() => return Ok(None),
        _ => {}
    }
    Ok(earlier(live)?.next())
}

/// Removes a new segment that a crash left before it became live.
pub(super) fn remove_unfinished(live: &Path) -> Result<()> {
    let new = unfinished(live);
    // Checks first, because removals are synced, and the file rarely exists.
    if fs_err::symlink_metadata(&new).is_err() {
        return Ok(());
    }
    remove_files(&[new])
}

/// Whether a new segment is undamaged and has the number of lines in its line 0.
fn is_complete(found: &Contents) -> bool {
    let first = found.lines.first();
    let said = first.and_then(|first| first.get("lines")?.as_u64());
    let count = found.lines.len() as u64;
    found.damage.is_empty() && found.torn.is_none() && count >= said.unwrap_or(1)
}

/// Returns the path of a new segment before its rename.
pub(super) fn unfinished(live: &Path) -> PathBuf {
    live.with_extension("jsonl.new")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{Durability, read_journal};
    use crate::test_dir::TestDir;
    use serde_json::json;

    struct Scratch(TestDir);

    impl Scratch {
        fn live(&self) -> PathBuf {
            self.0.join("j.jsonl")
        }

        /// Returns every file with its content.
        fn image(&self) -> BTreeMap<PathBuf, Vec<u8>> {
            let files = fs_err::read_dir(&*self.0)
                .unwrap()
                .map(|entry| entry.unwrap().path());
            files
                .map(|path| (path.clone(), fs_err::read(path).unwrap()))
                .collect()
        }

        fn restore(&self, image: &BTreeMap<PathBuf, Vec<u8>>) {
            for path in self.image().into_keys() {
                fs_err::remove_file(path).unwrap();
            }
            for (path, bytes) in image {
                fs_err::write(path, bytes).unwrap();
            }
        }
    }

    fn fields(n: u64) -> Fields {
        json!({"n": n, "text": "日本"})
            .as_object()
            .cloned()
            .unwrap()
    }

    fn numbers(lines: &[Fields]) -> Vec<u64> {
        let number = |line: &Fields| line["n"].as_u64().unwrap();
        lines.iter().map(number).collect()
    }

    /// Checks that the image loads as `expected`, that reading it changes nothing, and that appended lines are stored.
    #[track_caller]
    fn loads(scratch: &Scratch, image: &BTreeMap<PathBuf, Vec<u8>>, expected: &[u64]) {
        scratch.restore(image);
        let looked = read_journal(&scratch.live()).unwrap().unwrap();
        assert_eq!(
            (numbers(&looked.lines).as_slice(), looked.torn.is_none()),
            (expected, true)
        );
        assert_eq!(&scratch.image(), image, "looking changes nothing");
        let (mut journal, found) = Journal::open(&scratch.live()).unwrap().unwrap();
        assert_eq!(
            (numbers(&found.lines).as_slice(), &found.damage),
            (expected, &Vec::new())
        );
        journal.append(&[fields(99)], Durability::Now).unwrap();
        assert!(!unfinished(&scratch.live()).exists());
        let (_, again) = Journal::open(&scratch.live()).unwrap().unwrap();
        assert_eq!(numbers(&again.lines), [expected, &[99]].concat());
    }

    #[test]
    fn without_a_successor_the_newest_segment_is_taken_by_number() {
        let scratch = Scratch(TestDir::new());
        let mut journal = Journal::create(&scratch.live(), &[fields(1)]).unwrap();
        for n in 2..=11 {
            journal.renew(vec![fields(n)]).unwrap();
        }
        let mut image = scratch.image();
        // The live segment was emptied by a power cut, or the new one was lost between the renames.
        image.insert(scratch.live(), Vec::new());
        loads(&scratch, &image, &[10]);
        image.remove(&scratch.live());
        image.insert(unfinished(&scratch.live()), Vec::new());
        loads(&scratch, &image, &[10]);
        // Numbers continue.
        let (mut journal, _) = Journal::open(&scratch.live()).unwrap().unwrap();
        assert!(
            journal
                .renew(vec![fields(12)])
                .unwrap()
                .ends_with("j.10.jsonl")
        );
        assert!(
            Journal::open(&scratch.0.join("k.jsonl")).unwrap().is_none(),
            "another key has none of them"
        );
    }
}
