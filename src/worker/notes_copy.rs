//! A copy of the notes from before the first change of a day, where no tool reaches: a model may write nonsense over them.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::error::Result;
use crate::storage::{self, Durability, segments};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// A note has no more bytes.
const MAX_NOTE: u64 = 64 << 10;
/// The most notes that are copied.
const MAX_NOTES: usize = 1000;

/// Copies the notes.
pub(super) struct NotesCopy {
    pub notes: PathBuf,
    pub kept: PathBuf,
}

impl NotesCopy {
    /// Copies all notes, unless there is a copy of the last day. It is written beside the old one and takes its place whole.
    pub(super) fn keep(&self, now: SystemTime) -> Result<()> {
        let made = std::fs::metadata(&self.kept).and_then(|meta| meta.modified());
        let age = made.ok().and_then(|made| now.duration_since(made).ok());
        if age.is_some_and(|age| age < DAY) || !self.notes.is_dir() {
            return Ok(());
        }
        let new = self.kept.with_extension("new");
        drop(fs_err::remove_dir_all(&new));
        storage::make_dir(&new)?;
        for (name, path) in segments::entries(&self.notes)?.into_iter().take(MAX_NOTES) {
            // Links are no notes.
            let meta = fs_err::symlink_metadata(&path)?;
            if meta.is_file() && meta.len() <= MAX_NOTE {
                storage::replace(&new.join(name), &fs_err::read(&path)?, Durability::Later)?;
            }
        }
        drop(fs_err::remove_dir_all(&self.kept));
        Ok(fs_err::rename(&new, &self.kept)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_copied_once_a_day() {
        let dir = std::env::temp_dir().join(format!("bantam-notes-copy-{}", std::process::id()));
        let (notes, kept) = (dir.join("memory"), dir.join("state/notes"));
        fs_err::create_dir_all(&notes).unwrap();
        let copy = NotesCopy { notes, kept };
        let now = SystemTime::now();
        let text = || fs_err::read_to_string(copy.kept.join("USER.md")).unwrap();
        for (written, at, then) in [
            ("likes tea", now, "likes tea"),
            ("nonsense", now + Duration::from_secs(60), "likes tea"),
            ("likes coffee", now + DAY + DAY, "likes coffee"),
        ] {
            fs_err::write(copy.notes.join("USER.md"), written).unwrap();
            copy.keep(at).unwrap();
            assert_eq!(text(), then, "{written}");
        }
        fs_err::remove_dir_all(dir).unwrap();
    }
}
