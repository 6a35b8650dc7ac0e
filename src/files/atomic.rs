//! Creates, replaces and removes files atomically.
//!
//! New content is written to an unnamed file in the same directory, which is linked through the directory's handle when it is
//! complete, so that links and races cannot redirect the write. A crash before the link leaves no file. Between the link and a
//! rename, or without support for unnamed files, a crash leaves `.bantam-new`. The next write in the directory replaces a file
//! of that name, but not another kind of entry. The directory is locked during a change, so that a second change to a file sees
//! the result of the first. Changes are not synced, because they are the user's work instead of our records.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use fs_err::File;
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, flock,
    fstat, linkat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::Target;
use super::read::stamp;
use crate::access::{self, Dir, Links};
use crate::error::{Error, Result};

/// Time to wait for another change in the directory, and the interval between attempts.
const LOCK_WAIT: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Temporary name of new content.
const NEW: &str = ".bantam-new";

/// A file's directory, open and locked, and the file's name in it. The file may be missing.
pub(super) struct LockedEntry<'a> {
    pub(super) dir: Dir,
    pub(super) name: OsString,
    asked: &'a Path,
    /// Temporary name of new content.
    new: String,
}

/// A file before its change.
pub(super) struct Existing {
    pub(super) file: File,
    stat: Stat,
}

impl Existing {
    /// Returns the length in bytes.
    pub(super) fn len(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }
}

impl<'a> LockedEntry<'a> {
    /// Locks the directory of a file. The directory must exist.
    pub(super) fn lock(target: &Target<'a>) -> Result<Self> {
        let Target { dir, path, asked } = target;
        names_a_file(asked)?;
        let (dir, name) = dir.locate(path).map_err(|e| target.error(e))?;
        let is_locked = lock(&dir);
        // Writes leave only regular files. Without the lock, another process may be using the same name.
        let is_free = match statat(&dir, NEW, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode).is_file(),
            Err(_) => true,
        };
        let new = if is_locked && is_free {
            NEW.to_owned()
        } else {
            temporary_name()
        };
        Ok(Self {
            dir,
            name,
            asked,
            new,
        })
    }

    /// Creates missing parent directories, and locks the last of them.
    pub(super) fn make_and_lock(target: &Target<'a>) -> Result<Self> {
        names_a_file(target.asked)?;
        if let Err(Errno::NOENT) = target.dir.locate(&target.path) {
            let parents = target.path.parent().unwrap_or(&target.path);
            let mode = Mode::from_raw_mode(0o777);
            let made = target.dir.make_dirs(parents, mode, Links::Follow);
            made.map_err(|e| target.error(e))?;
        }
        Self::lock(target)
    }

    pub(super) fn error(&self, e: Errno) -> Error {
        access::explain(e, self.asked)
    }

    /// Returns the stamp of the file, which changes with it; empty if it is missing.
    pub(super) fn state(&self) -> String {
        let stat = statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        stat.map_or_else(|_| String::new(), |stat| stamp(&stat))
    }

    /// Opens the file, if it exists, without following a link or waiting for a pipe.
    pub(super) fn open(&self, flags: OFlags) -> Result<Option<Existing>> {
        // Checked before opening, because opening some devices has effects.
        match statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(self.error(e)),
            Ok(stat) => access::is_regular(&stat, self.asked)?,
        }
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = openat(&self.dir, &self.name, flags, Mode::empty()).map_err(|e| self.error(e))?;
        let stat = fstat(&fd)?;
        access::is_regular(&stat, self.asked)?;
        access::has_one_name(&stat, self.asked)?;
        Ok(Some(Existing {
            file: File::from_parts(fd.into(), self.asked),
            stat,
        }))
    }

    /// Replaces `old` by a file with this content, or creates one.
    pub(super) fn write(&self, old: Option<&Existing>, content: &[u8]) -> Result<()> {
        let mode = Mode::from_raw_mode(if old.is_some() { 0o600 } else { 0o666 });
        self.remove_new().map_err(|e| self.error(e))?;
        let (fd, is_named) = self.begin(mode).map_err(|e| self.error(e))?;
        let owned = old
            .map_or(Ok(()), |old| copy_owner_and_mode(&fd, &old.stat))
            .map_err(|e| self.error(e));
        let replaced = owned.and_then(|()| {
            let mut file = File::from_parts(fd.into(), self.asked);
            file.write_all(content)?;
            let named = if is_named {
                self.put_in_place()
            } else {
                self.name_file(&file, old.is_none())
            };
            named.map_err(|e| self.error(e))
        });
        if replaced.is_err() {
            // Ignores errors of cleaning up, because the first error matters more.
            unlinkat(&self.dir, &*self.new, AtFlags::empty()).ok();
        }
        replaced
    }

    /// Creates a new file. Also returns whether it has a name yet.
    fn begin(&self, mode: Mode) -> Result<(OwnedFd, bool), Errno> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        // Linking it needs /proc, which some sandboxes lack.
        if let Ok(fd) = openat(&self.dir, c".", flags | OFlags::TMPFILE, mode) {
            if statat(CWD, link_of(&fd), AtFlags::empty()).is_ok() {
                return Ok((fd, false));
            }
        }
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        openat(&self.dir, &*self.new, flags, mode).map(|fd| (fd, true))
    }

    /// Removes a leftover of a crash.
    fn remove_new(&self) -> Result<(), Errno> {
        match unlinkat(&self.dir, &*self.new, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            result => result,
        }
    }

    /// Links a complete file under its name.
    fn name_file(&self, file: &File, is_new: bool) -> Result<(), Errno> {
        let link = |name: &OsStr| {
            let from = link_of(file);
            linkat(CWD, from, &self.dir, name, AtFlags::SYMLINK_FOLLOW)
        };
        if is_new {
            match link(&self.name) {
                Err(Errno::EXIST) => {}
                result => return result,
            }
        }
        // Only a rename can replace a file.
        link(self.new.as_ref())?;
        self.put_in_place()
    }

    fn put_in_place(&self) -> Result<(), Errno> {
        renameat(&self.dir, &*self.new, &self.dir, &self.name)
    }

    pub(super) fn remove(&self) -> Result<(), Errno> {
        unlinkat(&self.dir, &self.name, AtFlags::empty())
    }
}

fn names_a_file(path: &Path) -> Result<()> {
    let bytes = path.as_os_str().as_encoded_bytes();
    let name = bytes.rsplit(|b| *b == b'/').next();
    if matches!(name, None | Some(b"" | b"." | b"..")) {
        return Err(Error::failed(format!(
            "{} names a directory, not a file",
            path.display()
        )));
    }
    Ok(())
}

/// Locks the directory; false if it cannot, as on some network file systems. Changes take milliseconds, so a longer lock belongs
/// to another program. Renames are still atomic, but two simultaneous changes may then be applied in any order.
fn lock(dir: &Dir) -> bool {
    let deadline = Instant::now() + LOCK_WAIT;
    let mut locked = flock(dir, FlockOperation::NonBlockingLockExclusive);
    while matches!(locked, Err(Errno::AGAIN | Errno::INTR)) && Instant::now() < deadline {
        thread::sleep(LOCK_PAUSE);
        locked = flock(dir, FlockOperation::NonBlockingLockExclusive);
    }
    locked.is_ok()
}

fn link_of(file: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Returns an unused name. It is random, because the process id can be 1 in every namespace.
pub(super) fn temporary_name() -> String {
    format!(".bantam{}", random_name())
}

/// Returns an unpredictable end of a name.
pub(crate) fn random_name() -> String {
    format!("-{:016x}", RandomState::new().build_hasher().finish())
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
