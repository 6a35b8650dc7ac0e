//! Keeps USER.md and the notes as they were before a call that may change them, in the home, where no tool reaches. A command
//! that empties the workspace takes nothing from there.
//!
//! `NAME` is the newest version that was seen, `NAME.1` one before it, from an hour ago or from before the note shrank, and
//! `NAME.day` one that stays for a day, whatever a model writes meanwhile.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::disk::{self, Durability};
use crate::error::Result;
use crate::reach::{Dir, Links, Tree};
use crate::template;
use crate::wire::{FileJob, Job, MemoryAction};

/// A note of the memory tool has no more, in bytes.
const MAX_NOTE: u64 = 64 << 10;
/// Notes that are kept, so that nobody fills the disk with them.
const MAX_KEPT: usize = 200;
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

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
            drop(self.keep());
        }
    }

    fn keep(&self) -> Result<()> {
        let Some(workspace) = self.workspace.open()?.map(Dir::from) else {
            return Ok(());
        };
        self.keep_one(&workspace, "USER.md")?;
        self.keep_one(&workspace, "memory/MEMORY.md")?;
        let Ok(memory) = workspace.dir_at("memory".as_ref(), Links::Refuse) else {
            return Ok(());
        };
        for name in memory.names()? {
            let note = name.to_str().ok().filter(|name| {
                name.ends_with(".md") && !name.starts_with('.') && *name != "MEMORY.md"
            });
            if let Some(name) = note {
                self.keep_one(&workspace, &format!("memory/{name}"))?;
            }
        }
        Ok(())
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
            Err(e) if e.kind() == ErrorKind::NotFound && self.has_room() => {}
            Err(_) => return Ok(()),
        }
        let mut text = Vec::new();
        file.take(MAX_NOTE).read_to_end(&mut text)?;
        let is_as_made = || template::text(&format!("workspace/{name}"));
        if !kept.exists() && is_as_made().is_some_and(|made| made.as_bytes() == text) {
            return Ok(());
        }
        disk::replace(&kept, &text, Durability::Later)?;
        Ok(std::fs::File::open(&kept)?.set_modified(changed)?)
    }

    fn keep_earlier(&self, name: &str, has_shrunk: bool) -> Result<()> {
        let old = fs_err::read(self.kept.join(name))?;
        for (suffix, age) in [("1", HOUR), ("day", DAY)] {
            let path = self.kept.join(format!("{name}.{suffix}"));
            if is_older(&path, age) || suffix == "1" && has_shrunk {
                disk::replace(&path, &old, Durability::Later)?;
            }
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        let kept = std::fs::read_dir(self.kept.join("memory"));
        kept.map_or(true, |kept| kept.count() < 3 * MAX_KEPT)
    }
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
