//! Segments: a journal that is begun anew, so that reading it costs the same however long it has been kept.
//!
//! `KEY.jsonl` is the live one, `KEY.N.jsonl` are those before it, in the order of N. The steps of a renewal, each of
//! which may be the last one that a crash lets happen:
//!
//! 1. the new one is written as `KEY.jsonl.new`, and synced;
//! 2. `KEY.jsonl` is renamed to `KEY.N.jsonl`;
//! 3. `KEY.jsonl.new` is renamed to `KEY.jsonl`.
//!
//! Before step 2 the old one counts. After it, the new one does, which is whole by then: its line 0 says how many lines it
//! was begun with. One that is not whole (a disk that lied about syncing) never counts; then the newest segment does.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::journal::{Fields, Journal, read_file};
use super::{remove_files, sync_dir};
use crate::error::{Error, Result};

/// What a name of ours belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Live,
    Segment(u64),
    /// A successor that a crash left behind, a torn tail that was put aside, or what is still to be noted in it, with its
    /// successor.
    Other,
}

/// The KEY of a file's name and what it is; `None` when it is not ours. A KEY holds no dot.
pub fn part(name: &str) -> Option<(&str, Part)> {
    let (key, rest) = name.split_once('.')?;
    if rest == "jsonl" {
        return Some((key, Part::Live));
    }
    if matches!(rest, "jsonl.new" | "jsonl.notes" | "jsonl.notes.new") || rest.starts_with("jsonl.torn-") {
        return Some((key, Part::Other));
    }
    let number = rest.strip_suffix(".jsonl").filter(|n| n.bytes().all(|b| b.is_ascii_digit()))?;
    Some((key, Part::Segment(number.parse().ok()?)))
}

/// The segments before the journal at `live`, by their numbers.
pub fn segments(live: &Path) -> Result<BTreeMap<u64, PathBuf>> {
    let key = live.file_stem().unwrap_or_default();
    let mut found = BTreeMap::new();
    let entries = match fs_err::read_dir(directory(live)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(found),
        result => result?,
    };
    for entry in entries {
        let entry = entry?;
        if let Some((_, Part::Segment(number))) = entry.file_name().to_str().and_then(part).filter(|(k, _)| *k == key) {
            found.insert(number, entry.path());
        }
    }
    Ok(found)
}

impl Journal {
    /// Goes on in a new segment that begins with `first`, and returns where what was here before is kept. On disk before
    /// this returns.
    pub fn renew(&mut self, mut first: Vec<Fields>) -> Result<PathBuf> {
        let path = self.path.clone();
        let dir = directory(&path);
        let count = first.len();
        if let Some(header) = first.first_mut() {
            header.insert("lines".to_owned(), Value::from(count));
        }
        let number = segments(&path)?.keys().next_back().map_or(1, |newest| newest.saturating_add(1));
        let (new, old) = (successor(&path), path.with_extension(format!("{number}.jsonl")));
        if fs_err::symlink_metadata(&old).is_ok() {
            return Err(Error::failed(format!("there is something at {} already", old.display())));
        }
        forget_successor(&path)?;
        let mut journal = Self::create(&new, &first)?;
        let mut moved = false;
        let mut swap = || -> Result<()> {
            fs_err::rename(&path, &old)?;
            moved = true;
            // Not every file system keeps the order of renames by itself.
            sync_dir(dir)?;
            fs_err::rename(&new, &path)?;
            sync_dir(dir)
        };
        if let Err(e) = swap() {
            if moved && fs_err::rename(&old, &path).is_err() {
                // This handle may write to a file that nobody is going to read.
                self.suspect = true;
            }
            drop(fs_err::remove_file(&new));
            return Err(e.doing(format_args!("beginning a new segment of {}", path.display())));
        }
        journal.path = path;
        *self = journal;
        Ok(old)
    }

    /// The same where nothing of what was here before is to be kept: nor what a crash left of an earlier time.
    pub fn restart(&mut self, first: Vec<Fields>) -> Result<()> {
        self.renew(first)?;
        for old in segments(&self.path).unwrap_or_default().into_values() {
            drop(fs_err::remove_file(old));
        }
        Ok(())
    }
}

/// What counts while there is no journal at `live`: its successor, else its newest predecessor.
pub(super) fn stand_in(live: &Path) -> Result<Option<PathBuf>> {
    let new = successor(live);
    if is_whole(&new)? {
        return Ok(Some(new));
    }
    Ok(segments(live)?.into_values().next_back())
}

/// Puts what counts while there is no journal at `live` into its place. `false` when there is nothing.
pub(super) fn put_in_place(live: &Path) -> Result<bool> {
    let Some(other) = stand_in(live)? else { return Ok(false) };
    fs_err::rename(other, live)?;
    sync_dir(directory(live))?;
    Ok(true)
}

/// Removes what a renewal had written when it was cut short, before it counted.
pub(super) fn forget_successor(live: &Path) -> Result<()> {
    let new = successor(live);
    // Asked first: the removal is synced, and there is hardly ever one.
    if fs_err::symlink_metadata(&new).is_err() {
        return Ok(());
    }
    remove_files(&[new])
}

fn is_whole(path: &Path) -> Result<bool> {
    let Some(found) = read_file(path)? else { return Ok(false) };
    let begun = found.lines.first().filter(|line| line.seq == 0);
    let lines = begun.map(|line| line.fields.get("lines").and_then(Value::as_u64).unwrap_or(1));
    Ok(found.damage.is_empty() && found.torn.is_none() && lines.is_some_and(|lines| found.lines.len() as u64 >= lines))
}

/// Where the journal that is about to stand at `live` is written.
fn successor(live: &Path) -> PathBuf {
    live.with_extension("jsonl.new")
}

fn directory(live: &Path) -> &Path {
    live.parent().unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Durability, read_journal};
    use serde_json::json;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("bantam-segments-{name}-{}", std::process::id()));
            drop(fs_err::remove_dir_all(&dir));
            fs_err::create_dir(&dir).unwrap();
            Self(dir)
        }

        fn live(&self) -> PathBuf {
            self.0.join("j.jsonl")
        }

        /// Every file with its content.
        fn image(&self) -> BTreeMap<PathBuf, Vec<u8>> {
            let files = fs_err::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
            files.map(|path| (path.clone(), fs_err::read(path).unwrap())).collect()
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

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs_err::remove_dir_all(&self.0).unwrap();
        }
    }

    fn fields(n: u64) -> Fields {
        json!({"n": n, "text": "日本"}).as_object().cloned().unwrap()
    }

    fn numbers(lines: &[crate::disk::Line]) -> Vec<u64> {
        lines.iter().map(|l| l.fields["n"].as_u64().unwrap()).collect()
    }

    /// The image loads as `expected`, looking comes to the same and changes nothing, and what is appended then is kept.
    #[track_caller]
    fn loads(scratch: &Scratch, image: &BTreeMap<PathBuf, Vec<u8>>, expected: &[u64]) {
        scratch.restore(image);
        let looked = read_journal(&scratch.live()).unwrap().unwrap();
        assert_eq!((numbers(&looked.lines).as_slice(), looked.torn.is_none()), (expected, true));
        assert_eq!(&scratch.image(), image, "looking changes nothing");
        let mut opened = Journal::open(&scratch.live()).unwrap().unwrap();
        assert_eq!((numbers(&opened.lines).as_slice(), &opened.damage), (expected, &Vec::new()));
        opened.journal.append(&[fields(99)], Durability::Now).unwrap();
        assert!(!successor(&scratch.live()).exists());
        let again = Journal::open(&scratch.live()).unwrap().unwrap();
        assert_eq!(numbers(&again.lines), [expected, &[99]].concat());
    }

    #[test]
    fn a_renewal_cut_short_at_any_step_or_byte_loses_nothing() {
        let scratch = Scratch::new("steps");
        let live = scratch.live();
        let mut journal = Journal::create(&live, &[fields(0), fields(1)]).unwrap();
        let before = scratch.image();
        let old = journal.renew(vec![fields(10), fields(11), fields(12)]).unwrap();
        let after = scratch.image();
        assert_eq!(before[&live], after[&old]);
        let (new, first) = (after[&live].clone(), before[&live].clone());

        // While the new one is written, and before the first rename.
        for cut in 0..=new.len() {
            let image = [(live.clone(), first.clone()), (successor(&live), new[..cut].to_vec())];
            loads(&scratch, &BTreeMap::from(image), &[0, 1]);
        }
        // Between the renames; had the disk lied about what is on it, the old one would count again.
        for cut in 0..=new.len() {
            let image = [(old.clone(), first.clone()), (successor(&live), new[..cut].to_vec())];
            let expected: &[u64] = if cut == new.len() { &[10, 11, 12] } else { &[0, 1] };
            loads(&scratch, &BTreeMap::from(image), expected);
        }
        loads(&scratch, &after, &[10, 11, 12]);
        // A successor with a flipped bit is not whole either.
        for bit in 0..new.len() * 8 {
            let mut bytes = new.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            loads(&scratch, &BTreeMap::from([(old.clone(), first.clone()), (successor(&live), bytes)]), &[0, 1]);
        }
    }

    #[test]
    fn without_a_successor_the_newest_segment_is_taken_by_number() {
        let scratch = Scratch::new("newest");
        let mut journal = Journal::create(&scratch.live(), &[fields(1)]).unwrap();
        for n in 2..=11 {
            journal.renew(vec![fields(n)]).unwrap();
        }
        let mut image = scratch.image();
        // Emptied by a power cut, or gone.
        image.insert(scratch.live(), Vec::new());
        loads(&scratch, &image, &[10]);
        image.remove(&scratch.live());
        loads(&scratch, &image, &[10]);
        // And the numbers go on.
        let opened = Journal::open(&scratch.live()).unwrap().unwrap();
        let mut journal = opened.journal;
        assert!(journal.renew(vec![fields(12)]).unwrap().ends_with("j.10.jsonl"));
        assert!(Journal::open(&scratch.0.join("k.jsonl")).unwrap().is_none(), "another key has none of them");
    }

    #[test]
    fn a_renewal_that_fails_leaves_everything_as_it_was() {
        let scratch = Scratch::new("fails");
        let live = scratch.live();
        let mut journal = Journal::create(&live, &[fields(0)]).unwrap();
        // No number is left; and then no successor can be written.
        let last = scratch.0.join("j.18446744073709551615.jsonl");
        fs_err::write(&last, "kept").unwrap();
        assert!(journal.renew(vec![fields(1)]).is_err());
        assert_eq!(fs_err::read(&last).unwrap(), b"kept");
        fs_err::remove_file(&last).unwrap();
        fs_err::create_dir(successor(&live)).unwrap();
        assert!(journal.renew(vec![fields(1)]).is_err());
        fs_err::remove_dir(successor(&live)).unwrap();
        assert!(!successor(&live).exists());
        journal.append(&[fields(2)], Durability::Now).unwrap();
        assert_eq!(numbers(&read_journal(&live).unwrap().unwrap().lines), [0, 2]);
        journal.renew(vec![fields(3)]).unwrap();
        assert_eq!(numbers(&read_journal(&live).unwrap().unwrap().lines), [3]);
    }

    #[test]
    fn names_are_told_apart() {
        for (name, expected) in [
            ("a.jsonl", Some(("a", Part::Live))),
            ("a.12.jsonl", Some(("a", Part::Segment(12)))),
            ("a.jsonl.new", Some(("a", Part::Other))),
            ("a.jsonl.torn-17", Some(("a", Part::Other))),
            ("a.b.jsonl", None),
            ("a.txt", None),
            ("a.jsonl.notes", Some(("a", Part::Other))),
            ("a.notes", None),
            ("a", None),
        ] {
            assert_eq!(part(name), expected, "{name}");
        }
    }
}
