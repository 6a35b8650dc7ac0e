//! Creates, replaces and removes files, whole or not at all.
//!
//! New content goes to a temporary file beside the old one and is renamed over it, by the handle of the directory that
//! holds it, so no link or race can redirect the write. The directory is locked meanwhile: of two changes to one file
//! the second sees the result of the first. Nothing is synced: this is the user's work, not our record of it.

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use fs_err::File;
use rustix::fs::{
    AtFlags, FallocateFlags, FlockOperation, Gid, Mode, OFlags, Stat, Uid, fallocate, fchmod, fchown, flock, fstat,
    mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::Target;
use crate::beneath::{self, Dir, Links};
use crate::error::{Error, Result};

/// How long to wait for another change in the same directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The directory of a file, held and locked, and the file's name there. The file need not exist.
pub(super) struct LockedEntry<'a> {
    pub(super) dir: Dir,
    pub(super) name: OsString,
    asked: &'a Path,
}

/// A file that is about to change, as it was found.
pub(super) struct Existing {
    pub(super) file: File,
    stat: Stat,
}

impl Existing {
    /// In bytes.
    pub(super) fn len(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }
}

impl<'a> LockedEntry<'a> {
    /// Creates missing parent directories.
    pub(super) fn lock(target: Target<'a>) -> Result<Self> {
        let Target { tree, path, asked } = target;
        let last = asked.as_os_str().as_encoded_bytes().rsplit(|b| *b == b'/').next();
        if matches!(last, None | Some(b"" | b"." | b"..")) {
            return Err(Error::failed(format!("{} names a directory, not a file", asked.display())));
        }
        let found = match tree.locate(path) {
            Err(Errno::NOENT) => make_parents(tree, path).and_then(|()| tree.locate(path)),
            found => found,
        };
        let (dir, name) = found.map_err(|e| target.error(e))?;
        lock(&dir, asked)?;
        Ok(Self { dir, name, asked })
    }

    pub(super) fn error(&self, e: Errno) -> Error {
        beneath::explain(e, self.asked)
    }

    /// Opens the file, if it exists.
    pub(super) fn open(&self, flags: OFlags) -> Result<Option<Existing>> {
        // Checked before it is opened: merely opening some devices has effects.
        match statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(self.error(e)),
            Ok(stat) => beneath::is_regular(&stat, self.asked)?,
        }
        let (file, stat) = self.open_regular(flags)?;
        if stat.st_nlink > 1 {
            return Err(Error::failed(format!(
                "{} has {} names (hard links), and the others may be outside the workspace: it is not changed",
                self.asked.display(),
                stat.st_nlink
            )));
        }
        Ok(Some(Existing { file, stat }))
    }

    /// Opens a regular file, or with `CREATE` makes one. Never follows a link or waits for a pipe.
    pub(super) fn open_regular(&self, flags: OFlags) -> Result<(File, Stat)> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = openat(&self.dir, &self.name, flags, Mode::from_raw_mode(0o666)).map_err(|e| self.error(e))?;
        let stat = fstat(&fd)?;
        beneath::is_regular(&stat, self.asked)?;
        Ok((File::from_parts(fd.into(), self.asked), stat))
    }

    /// Replaces `old` by a file with this content, or creates one.
    pub(super) fn write(&self, old: Option<&Existing>, content: &[u8]) -> Result<()> {
        let temporary = match (TempFile::new(self, old), old) {
            (Ok(temporary), _) => temporary,
            // The directory takes no new files, or a new one could not belong to the same user.
            (Err(Errno::ACCESS | Errno::PERM | Errno::ROFS), Some(old)) => return overwrite(old, content),
            (Err(e), _) => return Err(self.error(e)),
        };
        (&temporary.file).write_all(content)?;
        temporary.rename().map_err(|e| self.error(e))
    }

    pub(super) fn remove(&self) -> Result<(), Errno> {
        unlinkat(&self.dir, &self.name, AtFlags::empty())
    }
}

fn lock(dir: &Dir, asked: &Path) -> Result<()> {
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(dir, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {
                return Err(Error::failed(format!(
                    "another process is changing files beside {}: try again",
                    asked.display()
                )));
            }
            // Some network file systems cannot lock directories. A rename is atomic there too; only the order of two
            // simultaneous changes is lost.
            Ok(()) | Err(Errno::BADF | Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(()),
            Err(e) => return Err(Error::from(e).doing(format_args!("locking the directory of {}", asked.display()))),
        }
    }
}

/// A new file beside the one it is to replace, removed when dropped before that.
struct TempFile<'a> {
    entry: &'a LockedEntry<'a>,
    name: OsString,
    file: File,
    renamed: bool,
}

impl<'a> TempFile<'a> {
    /// With the mode and owner of `old`, or those of a new file.
    fn new(entry: &'a LockedEntry<'a>, old: Option<&Existing>) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        // Random, not the process id: every process may be number 1 of its namespace.
        let name = OsString::from(format!(".bantam-{:016x}", RandomState::new().build_hasher().finish()));
        let fd = openat(&entry.dir, &name, flags, Mode::from_raw_mode(mode))?;
        let temporary = Self { entry, name, file: File::from_parts(fd.into(), entry.asked), renamed: false };
        if let Some(Existing { stat, .. }) = old {
            let own = fstat(&temporary.file)?;
            if (own.st_uid, own.st_gid) != (stat.st_uid, stat.st_gid) {
                fchown(&temporary.file, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
            }
            fchmod(&temporary.file, Mode::from_raw_mode(stat.st_mode & 0o777))?;
        }
        Ok(temporary)
    }

    fn rename(mut self) -> Result<(), Errno> {
        renameat(&self.entry.dir, &self.name, &self.entry.dir, &self.entry.name)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for TempFile<'_> {
    fn drop(&mut self) {
        if !self.renamed {
            // The error that brought us here says more than a failure to clean up.
            unlinkat(&self.entry.dir, &self.name, AtFlags::empty()).ok();
        }
    }
}

/// Overwrites a file in place, after reserving the space. A crash meanwhile leaves a mixture.
fn overwrite(old: &Existing, content: &[u8]) -> Result<()> {
    let mut file = &old.file;
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, content.len().max(1) as u64) {
        // Not every file system can reserve space.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(e) => return Err(Error::from(e).doing("reserving space")),
    }
    file.seek(SeekFrom::Start(0))?;
    file.write_all(content)?;
    Ok(file.set_len(content.len() as u64)?)
}

/// Creates the missing directories above `path`, each beneath `tree`.
fn make_parents(tree: &Dir, path: &Path) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let mut parent = PathBuf::new();
    for component in path.parent().unwrap_or(Path::new("")).components() {
        parent.push(component);
        match tree.open_at(&parent, flags, Mode::empty(), Links::Follow) {
            Err(Errno::NOENT) if component != Component::ParentDir => {
                let (dir, name) = tree.locate(&parent)?;
                match mkdirat(&dir, &name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(_) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
