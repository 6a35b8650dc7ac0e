//! The user's notes: which jobs are about them, who owns them, and a copy of them from before the first change of a day, where
//! no tool reaches: a model may write nonsense over them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::access::Grant;
use crate::error::{Context, Result};
use crate::storage::{self, Durability, segments};
use crate::template;
use crate::worker::protocol::{FileJob, Job};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// A note has no more bytes.
const MAX_NOTE: u64 = 64 << 10;
/// The most notes that are copied.
const MAX_NOTES: usize = 1000;

/// The user's notes.
pub(super) struct Notes {
    pub grant: Grant,
    pub kept: PathBuf,
    pub workspace: Grant,
    /// `USER.md` and `memory/` of the workspace mean the notes: a model writes there by habit.
    pub is_own_workspace: bool,
}

impl Notes {
    /// The job as the notes have it, if it is about them.
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

    /// A path that means a note, relative to the notes.
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

    /// Makes the notes of a new home, lets the owner of the workspace have them, for whom root runs the tools, and copies them
    /// before a change.
    pub(super) fn prepare(&self, job: &Job) -> Result<()> {
        template::make_notes(&self.grant.real)?;
        if rustix::process::geteuid().is_root() {
            self.give_to_owner()
                .doing("giving the notes to the owner of the workspace")?;
        }
        if matches!(job, Job::File(job) if job.changes_files()) {
            // A full disk stops nobody from tidying up.
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

    /// Copies all notes, unless there is a copy of the last day. It is written beside the old one and takes its place whole.
    fn keep_copy(&self, now: SystemTime) -> Result<()> {
        let made = std::fs::metadata(&self.kept).and_then(|meta| meta.modified());
        let age = made.ok().and_then(|made| now.duration_since(made).ok());
        if age.is_some_and(|age| age < DAY) || !self.grant.real.is_dir() {
            return Ok(());
        }
        let new = self.kept.with_extension("new");
        drop(fs_err::remove_dir_all(&new));
        storage::make_dir(&new)?;
        for (name, path) in segments::entries(&self.grant.real)?
            .into_iter()
            .take(MAX_NOTES)
        {
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
