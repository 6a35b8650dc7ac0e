//! Locks between processes.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use fs_err::os::unix::fs::OpenOptionsExt;
use fs_err::{File, OpenOptions};
use rustix::fs::{FlockOperation, flock};

use super::{make_dir_synced, parent};
use crate::error::{Error, Kind, Result};

/// A lock between processes, released when it is dropped or the process dies. Its owner may remove the file. A removed file
/// protects nothing, so [`Lock::acquire`] checks for that and starts over.
pub(crate) struct Lock {
    pub(super) file: File,
}

impl Lock {
    /// Waits up to `wait` for the lock at `path`.
    pub(crate) fn acquire(path: &Path, wait: Duration) -> Result<Self> {
        let open = || {
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)
        };
        make_dir_synced(parent(path))?;
        let mut lock = Self { file: open()? };
        let until = Instant::now() + wait;
        // Polls, because flock has no timeout and interrupting it would need a signal handler.
        let mut pause = Duration::from_millis(5);
        loop {
            match flock(lock.file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if !lock.is_removed(path)? => return Ok(lock),
                Ok(()) => lock.file = open()?,
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(e) => {
                    return Err(Error::from(e).doing(format_args!("locking {}", path.display())));
                }
            }
            if Instant::now() >= until {
                return Err(Error::new(
                    Kind::Busy,
                    format!("still busy after {} s", wait.as_secs()),
                ));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    /// Whether the file at `path` is missing or another file. Both conditions are needed, because some file systems do not
    /// count links, and some change the inode number each time.
    fn is_removed(&self, path: &Path) -> Result<bool> {
        let held = self.file.metadata()?;
        let there =
            |there: std::fs::Metadata| (there.dev(), there.ino()) == (held.dev(), held.ino());
        Ok(held.nlink() == 0 && !fs_err::metadata(path).is_ok_and(there))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::remove;
    use crate::test_dir::TestDir;

    #[test]
    fn a_held_lock_makes_others_wait_and_then_say_busy() {
        let dir = TestDir::new();
        let path = dir.join("lock");
        let held = Lock::acquire(&path, Duration::ZERO).unwrap();
        let refused = Lock::acquire(&path, Duration::ZERO).err().unwrap();
        assert_eq!(refused.kind, Kind::Busy);
        drop(held);
        assert!(Lock::acquire(&path, Duration::ZERO).is_ok());
    }

    #[test]
    fn lock_on_removed_file_is_not_held() {
        let dir = TestDir::new();
        let path = dir.join("lock");
        let first = Lock::acquire(&path, Duration::ZERO).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| Lock::acquire(&path, Duration::from_secs(20)).unwrap());
            // It has opened the same file, and waits.
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
            assert_eq!(
                Lock::acquire(&path, Duration::ZERO).err().unwrap().kind,
                Kind::Busy
            );
        });
    }

    /// The sender removes leftover files, and may look at a file between its creation and its lock.
    #[test]
    fn a_new_file_is_begun_again_when_another_process_removed_it() {
        let dir = TestDir::new();
        let path = dir.join("lock");
        let remover = Lock::acquire(&path, Duration::ZERO).unwrap();
        std::thread::scope(|scope| {
            let begun = scope.spawn(|| crate::storage::NewFile::begin(&path));
            let opened = || {
                let open = fs_err::read_dir("/proc/self/fd").unwrap().flatten();
                open.filter(|fd| fs_err::read_link(fd.path()).is_ok_and(|target| target == path))
                    .count()
            };
            while opened() < 2 && !begun.is_finished() {
                std::thread::yield_now();
            }
            remove(&path).unwrap();
            drop(remover);
            let mut file = begun.join().unwrap().unwrap();
            file.push(b"content").unwrap();
            assert_eq!(fs_err::read(&path).unwrap(), b"content");
        });
        assert!(!path.exists());
    }
}
