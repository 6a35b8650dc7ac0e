//! The one writer of files: whole new files, journals of checked lines (`journal`) that are begun anew from time to time
//! (`segments`), files in trees that others write, too (`below`), and locks.

mod below;
mod journal;
pub mod segments;

use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fs_err::os::unix::fs::OpenOptionsExt;
use fs_err::{File, OpenOptions};
use rustix::fs::{FlockOperation, flock};

pub use below::{Copied, Runs, copy_new, settle};
pub use journal::{Durability, Fields, Journal, Line, Looked, crc32, find_lines, read_file, read_journal};

use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};

/// Makes `dir` and what is missing above it, readable by the owner alone.
pub fn make_dir(dir: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    match std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Ok(()) => Ok(()),
        Err(e) => Err(Error::from(e).doing(format_args!("making the directory {}", dir.display()))),
    }
}

/// The same, on disk before this returns. Above a new directory others may be new, too: one call is for the names of all
/// of them, once in the life of a home.
fn make_lasting_dir(dir: &Path) -> Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    make_dir(dir)?;
    settle(dir)
}

/// Writes a file that is not there yet, readable by the owner alone, with the directories above it. `false`, and
/// nothing changed, when there is something at that path.
pub fn write_new(path: &Path, content: &[u8]) -> Result<bool> {
    if let Some(parent) = path.parent() {
        make_dir(parent)?;
    }
    let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => return Ok(false),
        result => result?,
    };
    file.write_all(content)?;
    Ok(true)
}

/// Replaces the file at `path`, readable by the owner alone: readers see the old one or the new one, whole. With
/// [`Durability::Now`] the new one is on disk before this returns; else a power cut may lose both. The caller holds a lock.
pub fn replace(path: &Path, content: &[u8], durability: Durability) -> Result<()> {
    let dir = parent(path);
    if durability == Durability::Now {
        make_lasting_dir(dir)?
    } else {
        make_dir(dir)?
    }
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    // Left by a crash.
    remove(&new)?;
    let write = || -> Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(content)?;
        if durability == Durability::Now {
            file.sync_all()?;
        }
        Ok(fs_err::rename(&new, path)?)
    };
    if let Err(e) = write() {
        remove(&new)?;
        return Err(e);
    }
    if durability == Durability::Now { sync_dir(dir) } else { Ok(()) }
}

/// Adds a line to a file that other processes may add to at the same moment, with one write. The file and the directories
/// above it are made where they are missing. Where the last write was cut short, its rest becomes a line. The name of a new
/// directory is not synced.
pub fn append_line(path: &Path, line: &str, durability: Durability) -> Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    let mut file = match options.open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            make_dir(parent(path))?;
            options.open(path)?
        }
        opened => opened?,
    };
    let (len, mut last) = (file.metadata()?.len(), [b'\n']);
    if len > 0 {
        file.file().read_exact_at(&mut last, len - 1)?;
    }
    let line = format!("{}{line}\n", if last == *b"\n" { "" } else { "\n" });
    if file.write(line.as_bytes())? < line.len() {
        return Err(Error::failed(format!("only a part of a line could be written to {}", path.display())));
    }
    if durability == Durability::Now {
        file.sync_data()?;
        if len == 0 {
            sync_dir(parent(path))?;
        }
    }
    Ok(())
}

/// The bytes that are free in the file system of `path`, for whoever is no administrator.
pub fn free(path: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(path)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// A new file that is written piece by piece, readable by the owner alone. It is locked for as long as this is there, so
/// that whoever clears away what nobody needs can tell that somebody does. Unless it is kept, it goes with this.
pub struct NewFile {
    path: PathBuf,
    lock: Lock,
    kept: bool,
}

impl NewFile {
    /// Makes it, with the directories above it.
    pub fn begin(path: &Path) -> Result<Self> {
        let lock = Lock::acquire(path, Duration::ZERO, &Cancel::new(None))?;
        Ok(Self { path: path.to_owned(), lock, kept: false })
    }

    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.lock.file.write_all(bytes)?)
    }

    /// Has it stay. On disk before this returns.
    pub fn keep(&mut self) -> Result<()> {
        self.lock.file.sync_all()?;
        sync_dir(parent(&self.path))?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.kept {
            drop(fs_err::remove_file(&self.path));
        }
    }
}

/// Gives what is at `from` the name `to` in the same directory, on disk before this returns: whoever looks sees all of it
/// there, or nothing. `false`, and nothing changed, when there is something at `to`.
pub fn put(from: &Path, to: &Path) -> Result<bool> {
    if to.symlink_metadata().is_ok() {
        return Ok(false);
    }
    fs_err::rename(from, to)?;
    sync_dir(parent(to)).map(|()| true)
}

/// Removes a file, or a directory with all that is in it. What is not there is removed already.
pub fn remove(path: &Path) -> Result<()> {
    let is_dir = fs_err::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
    match if is_dir { fs_err::remove_dir_all(path) } else { fs_err::remove_file(path) } {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        result => Ok(result?),
    }
}

/// Removes files; one that is not there is fine. On disk before this returns.
pub fn remove_files(files: &[PathBuf]) -> Result<()> {
    for file in files {
        match fs_err::remove_file(file) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
    }
    files.first().and_then(|file| file.parent()).map_or(Ok(()), sync_dir)
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// Makes what was created or renamed in `dir` survive a power cut.
fn sync_dir(dir: &Path) -> Result<()> {
    Ok(File::open(dir)?.sync_all()?)
}

/// A lock between processes, held until dropped, and given up by the kernel when the process dies.
///
/// A lock on a file that somebody has removed meanwhile would guard nothing: whoever gets one looks whether the file is
/// still the one at that path, and else begins again. So whoever holds it may remove the file.
pub struct Lock {
    file: File,
}

impl Lock {
    /// Waits up to `wait` for the lock at `path`.
    pub fn acquire(path: &Path, wait: Duration, cancel: &Cancel) -> Result<Self> {
        if let Some(parent) = path.parent() {
            make_lasting_dir(parent)?;
        }
        let open = || OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        let mut lock = Self { file: open()? };
        let until = Instant::now() + wait;
        // flock has no timeout, and a signal to end it would need a handler: so ask again, at growing intervals.
        let mut pause = Duration::from_millis(5);
        loop {
            match flock(lock.file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if !lock.is_removed(path)? => return Ok(lock),
                Ok(()) => lock.file = open()?,
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Error::from(e).doing(format_args!("locking {}", path.display()))),
            }
            if Instant::now() >= until {
                return Err(Error::new(Kind::Busy, format!("still busy after {} s", wait.as_secs())));
            }
            if cancel.sleep(pause).is_err() {
                return Err(Error::new(Kind::Interrupted, "stopped while waiting for a lock"));
            }
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    /// Whether the file is not the one at `path` any more. Neither sign would do alone: there are file systems that count
    /// no links, and some that number a file anew each time.
    fn is_removed(&self, path: &Path) -> Result<bool> {
        let held = self.file.metadata()?;
        let there = |there: std::fs::Metadata| (there.dev(), there.ino()) == (held.dev(), held.ino());
        Ok(held.nlink() == 0 && !fs_err::metadata(path).is_ok_and(there))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_makes_others_wait_and_then_say_busy() {
        let path = std::env::temp_dir().join(format!("bantam-disk-{}.lock", std::process::id()));
        let cancel = Cancel::new(None);
        let held = Lock::acquire(&path, Duration::ZERO, &cancel).unwrap();
        let refused = Lock::acquire(&path, Duration::ZERO, &cancel).err().unwrap();
        assert_eq!(refused.kind, Kind::Busy);
        drop(held);
        assert!(Lock::acquire(&path, Duration::ZERO, &cancel).is_ok());
        remove(&path).unwrap();
    }

    #[test]
    fn a_lock_whose_file_was_removed_while_it_was_waited_for_is_not_taken_for_one() {
        let path = std::env::temp_dir().join(format!("bantam-disk-{}-gone.lock", std::process::id()));
        let cancel = Cancel::new(None);
        let first = Lock::acquire(&path, Duration::ZERO, &cancel).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| Lock::acquire(&path, Duration::from_secs(20), &cancel).unwrap());
            // It has the same file open, and waits.
            let waits = || {
                fs_err::read_dir("/proc/self/fd")
                    .unwrap()
                    .flatten()
                    .filter(|fd| fs_err::read_link(fd.path()).is_ok_and(|target| target == path))
            };
            while waits().count() < 2 {
                std::thread::yield_now();
            }
            remove(&path).unwrap();
            drop(first);
            let second = second.join().unwrap();
            assert!(!second.is_removed(&path).unwrap());
            assert_eq!(Lock::acquire(&path, Duration::ZERO, &cancel).err().unwrap().kind, Kind::Busy);
        });
        remove(&path).unwrap();
    }
}
