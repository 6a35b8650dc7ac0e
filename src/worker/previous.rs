//! Keeps USER.md and the notes as they were before a call that may change them, in the home, where no tool reaches. A command
//! that empties the workspace takes nothing from there.
//!
//! `NAME` is the newest version that was seen, `NAME.1` one before it, from an hour ago or from before the note shrank, and
//! `NAME.day` one that stays for a day, whatever a model writes meanwhile.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::access::{Dir, Links, Tree};
use crate::error::Result;
use crate::storage::{self, Durability, segments};
use crate::template;
use crate::worker::protocol::{FileJob, Job, MemoryAction};

/// A note of the memory tool has no more, in bytes.
const MAX_NOTE: u64 = 64 << 10;
/// Copies of notes that are kept, so that nobody fills the disk with them: three of each at most.
const MAX_COPIES: usize = 600;
/// Names in the folder of notes that are looked at.
const MAX_SEEN: usize = 1000;
/// The mode of a copy whose note is gone.
const GONE: u32 = 0o700;
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

/// Keeps the notes of `workspace` below `kept`.
pub(crate) struct Previous {
    pub workspace: Tree,
    pub kept: PathBuf,
}

impl Previous {
    /// Keeps the notes, if this job may change them. Without a copy the job runs all the same: a full disk stops nobody from
    /// tidying up.
    pub(super) fn before(&self, job: &Job) {
        let changes = match job {
            Job::Exec(_) | Job::Serve(_) => true,
            Job::File(FileJob::Memory { request, .. }) => {
                !matches!(request.action, MemoryAction::View | MemoryAction::Search)
            }
            Job::File(job) => matches!(
                job,
                FileJob::WriteFile { .. } | FileJob::AppendFile { .. } | FileJob::EditFile { .. }
            ),
            Job::Read(_) | Job::Layers => false,
        };
        if changes {
            self.keep();
        }
    }

    fn keep(&self) {
        self.keep_for(MONTH);
    }

    /// The same, which keeps copies of notes that are gone for so long where there is no room for others. A note that cannot be
    /// kept stops no other.
    fn keep_for(&self, age: Duration) {
        let Ok(Some(workspace)) = self.workspace.open().map(|dir| dir.map(Dir::from)) else {
            return;
        };
        drop(self.keep_one(&workspace, "USER.md"));
        drop(self.keep_one(&workspace, "memory/MEMORY.md"));
        let copies = names_in(&self.kept.join("memory"));
        for note in copies.iter().filter(|name| is_note(name)) {
            drop(self.keep_one(&workspace, &format!("memory/{note}")));
        }
        let Ok(memory) = workspace.dir_at("memory".as_ref(), Links::Refuse) else {
            return;
        };
        // Whoever fills the folder has no more of them looked at.
        let notes = memory.some_names(MAX_SEEN).unwrap_or_default();
        let notes = notes.iter().filter_map(|name| name.to_str().ok());
        let new: Vec<&str> = notes
            .filter(|name| is_note(name) && !copies.contains(*name))
            .collect();
        let mut room = MAX_COPIES.saturating_sub(copies.len());
        if room < new.len() {
            room += self.make_room(&workspace, &copies, age);
        }
        for note in new.into_iter().take(room) {
            drop(self.keep_one(&workspace, &format!("memory/{note}")));
        }
    }

    /// Removes the copies of notes that are gone for so long, and returns how many. When that was first seen is the time of the
    /// copy's last change: its mode changes then. Nothing younger goes, or a command that empties the folder and fills it again
    /// would take the copies, too.
    fn make_room(&self, workspace: &Dir, copies: &BTreeSet<String>, age: Duration) -> usize {
        let remove = |copy: &&String| -> Result<bool> {
            let end = copy.find(".md").unwrap_or(copy.len());
            let note = format!("memory/{}.md", &copy[..end]);
            let path = self.kept.join("memory").join(copy);
            let meta = fs_err::metadata(&path)?;
            if workspace.open_untrusted(&note)?.is_some() {
                return Ok(false);
            }
            if meta.mode() & 0o777 != GONE {
                fs_err::set_permissions(&path, Permissions::from_mode(GONE))?;
                return Ok(false);
            }
            let since = Duration::from_secs(u64::try_from(meta.ctime()).unwrap_or(u64::MAX));
            let is_old = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .is_ok_and(|now| now >= since.saturating_add(age));
            if is_old {
                storage::remove(&path)?;
            }
            Ok(is_old)
        };
        let removed = copies.iter().filter(|copy| remove(copy).unwrap_or(false));
        removed.count()
    }

    /// An empty note says nothing that could be lost.
    fn keep_one(&self, workspace: &Dir, name: &str) -> Result<()> {
        let Ok(Some((file, len))) = workspace.open_untrusted(name) else {
            return Ok(());
        };
        if len == 0 || len > MAX_NOTE {
            return Ok(());
        }
        let kept = self.kept.join(name);
        let changed = file.metadata()?.modified()?;
        match fs_err::metadata(&kept) {
            Ok(known) if known.len() == len && known.modified()? == changed => return Ok(()),
            Ok(known) => self.keep_earlier(name, len < known.len() / 2)?,
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(_) => return Ok(()),
        }
        let mut text = Vec::new();
        file.take(MAX_NOTE).read_to_end(&mut text)?;
        let is_as_made = || template::text(&format!("workspace/{name}"));
        if !kept.exists() && is_as_made().is_some_and(|made| made.as_bytes() == text) {
            return Ok(());
        }
        storage::replace(&kept, &text, Durability::Later)?;
        Ok(std::fs::File::open(&kept)?.set_modified(changed)?)
    }

    fn keep_earlier(&self, name: &str, has_shrunk: bool) -> Result<()> {
        let old = fs_err::read(self.kept.join(name))?;
        for (suffix, age) in [("1", HOUR), ("day", DAY)] {
            let path = self.kept.join(format!("{name}.{suffix}"));
            if is_older(&path, age) || suffix == "1" && has_shrunk {
                storage::replace(&path, &old, Durability::Later)?;
            }
        }
        Ok(())
    }
}

/// The names in a directory of ours, which may be missing.
fn names_in(dir: &Path) -> BTreeSet<String> {
    let entries = segments::entries(dir).unwrap_or_default();
    entries.into_iter().map(|(name, _)| name).collect()
}

fn is_note(name: &str) -> bool {
    name.ends_with(".md") && !name.starts_with('.') && name != "MEMORY.md"
}

/// Whether there is no file of the last so much time.
fn is_older(path: &Path, age: Duration) -> bool {
    let written = std::fs::metadata(path).and_then(|meta| meta.modified());
    written.map_or(true, |written| {
        SystemTime::now()
            .duration_since(written)
            .unwrap_or_default()
            >= age
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir();
            let dir = dir.join(format!("bantam-previous-{name}-{}", std::process::id()));
            drop(fs_err::remove_dir_all(&dir));
            fs_err::create_dir_all(dir.join("workspace/memory")).unwrap();
            Self(dir)
        }

        fn previous(&self) -> Previous {
            Previous {
                workspace: Tree::at(self.0.join("workspace"), Access::Write),
                kept: self.0.join("kept"),
            }
        }

        fn note(&self, name: &str) -> PathBuf {
            self.0.join("workspace/memory").join(name)
        }

        fn write(&self, name: &str) {
            fs_err::write(self.note(name), name).unwrap();
        }

        fn has(&self, name: &str) -> bool {
            let kept = fs_err::read_to_string(self.0.join("kept/memory").join(name));
            kept.is_ok_and(|kept| kept == name)
        }

        fn count(&self) -> usize {
            fs_err::read_dir(self.0.join("kept/memory"))
                .unwrap()
                .count()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            drop(fs_err::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn a_name_too_long_for_a_copy_keeps_no_other_note_from_one() {
        let scratch = Scratch::new("long");
        scratch.write(&format!("{}.md", "0".repeat(252)));
        scratch.write("garden.md");
        scratch.previous().keep();
        assert!(scratch.has("garden.md"));
    }

    #[test]
    fn copies_of_notes_that_are_gone_make_room_after_a_month() {
        let scratch = Scratch::new("full");
        scratch.write("garden.md");
        scratch.previous().keep();
        let junk = |number| format!("junk-{number}.md");
        (0..800).for_each(|number| scratch.write(&junk(number)));
        scratch.previous().keep();
        assert_eq!(scratch.count(), MAX_COPIES);
        (0..800).for_each(|number| fs_err::remove_file(scratch.note(&junk(number))).unwrap());
        fs_err::remove_file(scratch.note("garden.md")).unwrap();
        scratch.write("plans.md");
        let previous = scratch.previous();
        previous.keep();
        assert!(scratch.has("garden.md"), "it was gone for a moment");
        assert!(!scratch.has("plans.md"), "there is no room");
        scratch.write("garden.md");
        // The same calls, a month later.
        previous.keep_for(Duration::ZERO);
        assert!(scratch.has("plans.md") && scratch.has("garden.md"));
        assert_eq!(scratch.count(), 4, "with two of garden.md as it was before");
    }

    #[test]
    fn a_folder_of_very_many_notes_is_not_read_to_its_end() {
        let scratch = Scratch::new("many");
        scratch.write("garden.md");
        scratch.previous().keep();
        (0..5_000).for_each(|number| scratch.write(&format!("junk-{number}.md")));
        fs_err::write(scratch.note("garden.md"), "garden of later").unwrap();
        let began = std::time::Instant::now();
        (0..20).for_each(|_| scratch.previous().keep());
        let took = began.elapsed();
        assert!(took < Duration::from_secs(30), "{took:?}");
        let kept = fs_err::read_to_string(scratch.0.join("kept/memory/garden.md")).unwrap();
        assert_eq!(kept, "garden of later", "what is known comes first");
    }
}
