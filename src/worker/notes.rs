//! The user's notes: recognizes jobs about them, sets their owner, and makes a backup copy before the first change of a day.
//! Tools cannot access the copy, because a model may overwrite notes with nonsense.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::access::{Dir, Grant, Links};
use crate::error::{Context, Error, Result};
use crate::storage::{self, Durability};
use crate::template;
use crate::worker::protocol::{FileJob, Job};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Limits of the copy: bytes, number of entries, and depth of directories.
const MAX_BYTES: u64 = 32 << 20;
const MAX_FILES: usize = 10_000;
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
    /// Returns the job with its path relative to the notes, if it is about them.
    pub(super) fn job(&self, job: &Job) -> Option<Job> {
        let Job::File(file_job) = job else {
            return None;
        };
        let mut file_job = file_job.clone();
        let path = match &mut file_job {
            FileJob::Passages => return Some(Job::File(file_job)),
            FileJob::TakeFile(_) => return None,
            FileJob::PutBack(file) => &mut file.path,
            FileJob::Grep { path, .. } => path.as_mut()?,
            FileJob::ListDir { path, .. }
            | FileJob::ReadFile { path, .. }
            | FileJob::SendFile { path, .. }
            | FileJob::WriteFile { path, .. }
            | FileJob::AppendFile { path, .. }
            | FileJob::EditFile { path, .. }
            | FileJob::RemoveFile { path } => path,
        };
        let below = self.below(Path::new(path))?;
        *path = match below.to_str()? {
            "" => ".".to_owned(),
            below => below.to_owned(),
        };
        Some(Job::File(file_job))
    }

    /// Returns a path relative to the notes, if it leads to a note.
    fn below<'a>(&self, asked: &'a Path) -> Option<&'a Path> {
        let within = |grant: &Grant| {
            let mut paths = [&grant.path, &grant.real].into_iter();
            paths.find_map(|path| asked.strip_prefix(path).ok())
        };
        if let Some(below) = within(&self.grant) {
            return Some(below);
        }
        if !self.is_own_workspace {
            return None;
        }
        let below = if asked.is_relative() {
            asked.strip_prefix(".").unwrap_or(asked)
        } else {
            within(&self.workspace)?
        };
        if below == Path::new("USER.md") {
            return Some(below);
        }
        below.strip_prefix("memory").ok()
    }

    /// Creates the notes of a new home, makes a copy before a change, and, as root, gives the notes to the owner of the
    /// workspace, because root runs the tools as that user.
    pub(super) fn prepare(&self, job: &Job) -> Result<()> {
        template::make_notes(&self.grant.real)?;
        if rustix::process::geteuid().is_root() {
            self.give_to_owner()
                .doing("giving the notes to the owner of the workspace")?;
        }
        if matches!(job, Job::File(job) if job.changes_files()) {
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

    /// Copies all notes, unless the last copy is less than a day old. A complete new copy replaces the old one.
    ///
    /// # Errors
    /// Returns an error if the notes exceed the limits of a copy, or cannot be read or written.
    fn keep_copy(&self, now: SystemTime) -> Result<()> {
        let made = std::fs::metadata(&self.kept).and_then(|meta| meta.modified());
        let age = made.ok().and_then(|made| now.duration_since(made).ok());
        if age.is_some_and(|age| age < DAY) || !self.grant.real.is_dir() {
            return Ok(());
        }
        let new = self.kept.with_extension("new");
        drop(fs_err::remove_dir_all(&new));
        let mut left = Left {
            bytes: MAX_BYTES,
            files: MAX_FILES,
        };
        let notes = Dir::open(&self.grant.real)?.dir_at(".".as_ref(), Links::Refuse)?;
        let copied = copy_notes(&notes, &new, MAX_DEPTH, &mut left);
        if let Err(e) = copied {
            drop(fs_err::remove_dir_all(&new));
            return Err(e);
        }
        drop(fs_err::remove_dir_all(&self.kept));
        Ok(fs_err::rename(&new, &self.kept)?)
    }
}

/// Rest of the limits during a copy.
struct Left {
    bytes: u64,
    files: usize,
}

/// Copies a directory and its subdirectories to a new directory, except links, pipes and hidden files.
fn copy_notes(from: &Dir, to: &Path, depth: usize, left: &mut Left) -> Result<()> {
    let too_much = || Error::failed("the notes are too large to be copied");
    storage::make_dir(to)?;
    for name in from.some_names(MAX_FILES + 1)? {
        if name.to_bytes().starts_with(b".") {
            continue;
        }
        left.files = left.files.checked_sub(1).ok_or_else(too_much)?;
        let path = Path::new(OsStr::from_bytes(name.to_bytes()));
        if let Some(inner) = from.subdir(&name) {
            let depth = depth.checked_sub(1).ok_or_else(too_much)?;
            copy_notes(&inner, &to.join(path), depth, left)?;
        } else if let Ok(file) = from.read(path, path, Links::Refuse) {
            let mut content = Vec::new();
            let read = file.take(left.bytes + 1).read_to_end(&mut content)?;
            left.bytes = left.bytes.checked_sub(read as u64).ok_or_else(too_much)?;
            storage::replace(&to.join(path), &content, Durability::Later)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;

    #[test]
    fn notes_are_copied_once_a_day() {
        let dir = std::env::temp_dir().join(format!("bantam-notes-copy-{}", std::process::id()));
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
        // A copy is complete, or the previous one remains.
        fs_err::create_dir(notes.join("garden")).unwrap();
        fs_err::write(notes.join("garden/long.md"), vec![b'a'; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", notes.join("link.md")).unwrap();
        copy.keep_copy(now + DAY * 4).unwrap();
        let long = copy.kept.join("garden/long.md");
        assert_eq!(fs_err::metadata(&long).unwrap().len(), 1 << 20);
        assert!(!copy.kept.join("link.md").exists());
        let huge = fs_err::File::create(notes.join("huge.md")).unwrap();
        huge.set_len(MAX_BYTES).unwrap();
        assert!(copy.keep_copy(now + DAY * 6).is_err());
        assert!(long.exists() && !copy.kept.with_extension("new").exists());
        fs_err::remove_dir_all(dir).unwrap();
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
