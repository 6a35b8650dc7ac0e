//! The user's notes: recognizes jobs about them, sets their owner, and makes a backup copy before the first change of a day.
//! Tools cannot access the copy, because a model may overwrite notes with nonsense.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::access::{Dir, Grant, Links};
use crate::error::{Context, Result};
use crate::storage;
use crate::template;
use crate::worker::protocol::{FileAction, FileJob};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Maximum depth of copied directories; each level takes a descriptor.
const MAX_DEPTH: usize = 8;

/// Directory of the user's notes, and of their backup copy.
pub(super) struct Notes {
    pub grant: Grant,
    pub kept: PathBuf,
    pub workspace: Grant,
    /// Whether `USER.md` and `memory/` in the workspace refer to the notes, because models write there by habit.
    pub is_own_workspace: bool,
}

impl Notes {
    /// Returns the path of a job relative to the notes, if it is about them.
    pub(super) fn path_of(&self, job: &FileJob) -> Option<String> {
        match job.action {
            FileAction::Passages => Some(String::new()),
            FileAction::TakeFile { .. } => None,
            _ => Some(self.below(Path::new(&job.path))?.to_str()?.to_owned()),
        }
    }

    /// Returns a path relative to the notes, if it leads to a note.
    fn below<'a>(&self, asked: &'a Path) -> Option<&'a Path> {
        if let Some(below) = self.grant.below(asked) {
            return Some(below);
        }
        if !self.is_own_workspace {
            return None;
        }
        let below = if asked.is_relative() {
            asked.strip_prefix(".").unwrap_or(asked)
        } else {
            self.workspace.below(asked)?
        };
        if below == Path::new("USER.md") {
            return Some(below);
        }
        below.strip_prefix("memory").ok()
    }

    /// Creates the notes of a new home, makes a copy before a change, and, as root, gives the notes to the owner of the
    /// workspace, because root runs the tools as that user.
    pub(super) fn prepare(&self, job: &FileJob) -> Result<()> {
        template::make_notes(&self.grant.real)?;
        if rustix::process::geteuid().is_root() {
            self.give_to_owner()
                .doing("giving the notes to the owner of the workspace")?;
        }
        if job.changes_files() {
            // Ignores errors, so that notes can be deleted on a full disk.
            drop(self.keep_copy(SystemTime::now()));
        }
        Ok(())
    }

    fn give_to_owner(&self) -> std::io::Result<()> {
        let Ok(owner) = std::fs::metadata(&self.workspace.real) else {
            return Ok(());
        };
        let notes = &self.grant.real;
        if std::fs::metadata(notes)?.uid() == owner.uid() {
            return Ok(());
        }
        let (uid, gid) = (Some(owner.uid()), Some(owner.gid()));
        for entry in std::fs::read_dir(notes)? {
            std::os::unix::fs::lchown(entry?.path(), uid, gid)?;
        }
        std::os::unix::fs::lchown(notes, uid, gid)
    }

    /// Copies the notes, unless the last copy is less than a day old. A complete new copy replaces the old one.
    fn keep_copy(&self, now: SystemTime) -> Result<()> {
        let made = fs_err::metadata(&self.kept).and_then(|meta| meta.modified());
        // The clock may have been set back since, but not for long.
        if made.is_ok_and(|made| now < made + DAY && made < now + DAY) {
            return Ok(());
        }
        let new = self.kept.with_extension("new");
        storage::remove(&new)?;
        let notes = Dir::open(&self.grant.real)?.dir_at(".".as_ref(), Links::Refuse)?;
        copy_notes(&notes, &new, MAX_DEPTH)?;
        storage::remove(&self.kept)?;
        Ok(fs_err::rename(&new, &self.kept)?)
    }
}

/// Copies a directory and its subdirectories to a new directory, except links and pipes.
fn copy_notes(from: &Dir, to: &Path, depth: usize) -> Result<()> {
    storage::make_dir(to)?;
    for name in from.names()? {
        let path = Path::new(&name);
        if let Ok(inner) = from.dir_at(name.as_ref(), Links::Refuse) {
            if depth > 0 {
                copy_notes(&inner, &to.join(path), depth - 1)?;
            }
        } else if let Ok(mut file) = from.read(path, path, Links::Refuse) {
            // The directory is new, so the file needs no other name until it is complete.
            std::io::copy(&mut file, &mut fs_err::File::create(to.join(path))?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use crate::test_dir::TestDir;

    #[test]
    fn notes_are_copied_once_a_day() {
        let dir = TestDir::new();
        let (notes, kept) = (dir.join("memory"), dir.join("state/notes"));
        fs_err::create_dir_all(&notes).unwrap();
        let grant = |path: &Path| Grant::at(path.to_owned(), Access::Write);
        let copy = Notes {
            grant: grant(&notes),
            kept,
            workspace: grant(&dir.join("workspace")),
            is_own_workspace: true,
        };
        let now = SystemTime::now();
        let text = || fs_err::read_to_string(copy.kept.join("USER.md")).unwrap();
        for (written, at, then) in [
            ("likes tea", now, "likes tea"),
            ("nonsense", now + Duration::from_secs(60), "likes tea"),
            ("likes coffee", now + DAY + DAY, "likes coffee"),
        ] {
            fs_err::write(notes.join("USER.md"), written).unwrap();
            copy.keep_copy(at).unwrap();
            assert_eq!(text(), then, "{written}");
        }
        fs_err::create_dir(notes.join("garden")).unwrap();
        fs_err::write(notes.join("garden/long.md"), vec![b'a'; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", notes.join("link.md")).unwrap();
        // No note keeps the others from being copied.
        let deep: PathBuf = std::iter::repeat_n("deep", MAX_DEPTH + 2).collect();
        fs_err::create_dir_all(notes.join(deep)).unwrap();
        fs_err::write(notes.join("n".repeat(255)), "").unwrap();
        copy.keep_copy(now + DAY * 4).unwrap();
        let long = copy.kept.join("garden/long.md");
        assert_eq!(fs_err::metadata(long).unwrap().len(), 1 << 20);
        assert_eq!(text(), "likes coffee");
        assert!(!copy.kept.join("link.md").exists());
    }

    #[test]
    fn paths_of_notes_are_known_by_every_name() {
        let grant = |path: &str| Grant::at(path.into(), Access::Write);
        let mut notes = Notes {
            grant: grant("/h/memory"),
            kept: "/h/state/notes".into(),
            workspace: grant("/h/workspace"),
            is_own_workspace: true,
        };
        for (path, own, elsewhere) in [
            ("USER.md", Some("USER.md"), None),
            ("./memory/a.md", Some("a.md"), None),
            ("memory", Some(""), None),
            ("/h/workspace/memory/a.md", Some("a.md"), None),
            ("/h/memory/b.md", Some("b.md"), Some("b.md")),
            ("sub/USER.md", None, None),
            ("memory.txt", None, None),
            ("/etc/passwd", None, None),
        ] {
            for (is_own, below) in [(true, own), (false, elsewhere)] {
                notes.is_own_workspace = is_own;
                assert_eq!(notes.below(Path::new(path)), below.map(Path::new), "{path}");
            }
        }
    }
}
