//! Creates, replaces and removes files, whole or not at all.
//!
//! New content goes to a temporary file beside the old one and is renamed over it, by the handle of the directory that
//! holds it, so no link or race can redirect the write. The directory is locked meanwhile: of two changes to one file
//! the second sees the result of the first. Nothing is synced: this is the user's work, not our record of it.

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;

use fs_err::File;
use rustix::fs::{
    AtFlags, FlockOperation, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, flock, fstat, openat,
    renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::Target;
use super::read::stamp;
use crate::error::{Error, Result};
use crate::reach::{self, Dir, Links};

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
        let last = asked
            .as_os_str()
            .as_encoded_bytes()
            .rsplit(|b| *b == b'/')
            .next();
        if matches!(last, None | Some(b"" | b"." | b"..")) {
            return Err(Error::failed(format!(
                "{} names a directory, not a file",
                asked.display()
            )));
        }
        let found = match tree.locate(path) {
            Err(Errno::NOENT) => {
                let parents = path.parent().unwrap_or(path);
                let made = tree.make_dirs(parents, Mode::from_raw_mode(0o777), Links::Follow);
                made.and_then(|()| tree.locate(path))
            }
            found => found,
        };
        let (dir, name) = found.map_err(|e| target.error(e))?;
        lock(&dir).map_err(|e| target.error(e))?;
        Ok(Self { dir, name, asked })
    }

    pub(super) fn error(&self, e: Errno) -> Error {
        reach::explain(e, self.asked)
    }

    /// Opens the file, if it exists. Never follows a link or waits for a pipe.
    pub(super) fn open(&self, flags: OFlags) -> Result<Option<Existing>> {
        // Checked before it is opened: merely opening some devices has effects.
        match statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(self.error(e)),
            Ok(stat) => reach::is_regular(&stat, self.asked)?,
        }
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = openat(&self.dir, &self.name, flags, Mode::empty()).map_err(|e| self.error(e))?;
        let stat = fstat(&fd)?;
        reach::is_regular(&stat, self.asked)?;
        if stat.st_nlink > 1 {
            return Err(Error::failed(format!(
                "{} has {} names (hard links), and the others may be outside the workspace: it is not changed",
                self.asked.display(),
                stat.st_nlink
            )));
        }
        Ok(Some(Existing {
            file: File::from_parts(fd.into(), self.asked),
            stat,
        }))
    }

    /// Replaces `old` by a file with this content, or creates one.
    pub(super) fn write(&self, old: Option<&Existing>, content: &[u8]) -> Result<()> {
        let name = temporary_name();
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(if old.is_some() { 0o600 } else { 0o666 });
        let fd = openat(&self.dir, &name, flags, mode).map_err(|e| self.error(e))?;
        let owned = old
            .map_or(Ok(()), |old| copy_owner_and_mode(&fd, &old.stat))
            .map_err(|e| self.error(e));
        let replaced = owned
            .and_then(|()| Ok(File::from_parts(fd.into(), self.asked).write_all(content)?))
            .and_then(|()| {
                renameat(&self.dir, &name, &self.dir, &self.name).map_err(|e| self.error(e))
            });
        if replaced.is_err() {
            // The error says more than one of cleaning up.
            unlinkat(&self.dir, &name, AtFlags::empty()).ok();
        }
        replaced
    }

    /// What changes with the file.
    pub(super) fn stamp(&self) -> Result<String> {
        let stat = statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        Ok(stamp(&stat.map_err(|e| self.error(e))?))
    }

    pub(super) fn remove(&self) -> Result<(), Errno> {
        unlinkat(&self.dir, &self.name, AtFlags::empty())
    }
}

fn lock(dir: &Dir) -> Result<(), Errno> {
    match flock(dir, FlockOperation::LockExclusive) {
        Err(Errno::INTR) => lock(dir),
        // Some network file systems cannot lock directories. A rename is atomic there too; only the order of two
        // simultaneous changes is lost.
        Err(Errno::BADF | Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        result => result,
    }
}

/// A name that nothing has. Random, not the process id: every process may be number 1 of its namespace.
pub(super) fn temporary_name() -> String {
    format!(
        ".bantam-{:016x}",
        RandomState::new().build_hasher().finish()
    )
}

fn copy_owner_and_mode(to: &OwnedFd, from: &Stat) -> Result<(), Errno> {
    let own = fstat(to)?;
    if (own.st_uid, own.st_gid) != (from.st_uid, from.st_gid) {
        fchown(
            to,
            Some(Uid::from_raw(from.st_uid)),
            Some(Gid::from_raw(from.st_gid)),
        )?;
    }
    fchmod(to, Mode::from_raw_mode(from.st_mode & 0o777))
}
