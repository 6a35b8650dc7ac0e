//! Opening files below a directory, so that no path, link or race can lead out of it.
//!
//! The boundary is the kernel's: `openat2` with `RESOLVE_BENEATH` from a held directory handle. Where the kernel lacks
//! it (before 5.6, or under a filter), the path is walked one component at a time and no symbolic link is followed.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2};
use rustix::io::Errno;

use crate::error::{Context, Error, Result};

/// A held directory.
pub struct Dir {
    fd: OwnedFd,
}

/// What to do with symbolic links that stay below the directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Links {
    Follow,
    Refuse,
}

impl Dir {
    /// # Errors
    /// It is not there or is not a directory.
    pub fn open(path: &Path) -> Result<Self> {
        let fd = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .doing(format_args!("opening {}", path.display()))?;
        Ok(Self { fd })
    }

    /// Opens `path` below this directory. `""` and `.` are the directory itself.
    ///
    /// # Errors
    /// `EXDEV` when the path leads out, otherwise what the kernel says.
    pub fn open_at(&self, path: &Path, flags: OFlags, mode: Mode, links: Links) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        if links == Links::Refuse {
            resolve |= ResolveFlags::NO_SYMLINKS;
        }
        // EAGAIN: something was renamed while the kernel looked, so it could not be sure. A hostile racer can force it
        // for ever, so it is tried a bounded number of times.
        for _ in 0..128 {
            match openat2(&self.fd, path, flags | OFlags::CLOEXEC, mode, resolve) {
                Err(Errno::AGAIN) => {}
                Err(Errno::NOSYS | Errno::PERM) => return self.walk(path, flags, mode),
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }

    /// The same without `openat2`.
    fn walk(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let mut names = Vec::new();
        for component in path.components() {
            match component {
                Component::CurDir => {}
                Component::Normal(name) => names.push(name),
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(Errno::XDEV),
            }
        }
        let Some((last, parents)) = names.split_last() else {
            return openat(&self.fd, ".", flags | OFlags::CLOEXEC, mode);
        };
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = openat(&self.fd, ".", step, Mode::empty())?;
        for name in parents {
            at = openat(&at, *name, step, Mode::empty())?;
        }
        openat(&at, *last, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode)
    }

    /// Opens a regular file for reading. Never hangs: a pipe or a device is refused.
    ///
    /// # Errors
    /// In words fit for the model: what is wrong with the path.
    pub fn read(&self, path: &Path, links: Links) -> Result<fs_err::File> {
        // Non-blocking, or opening a pipe that nobody writes would wait for ever.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = self.open_at(path, flags, Mode::empty(), links).map_err(|e| explain(e, path))?;
        regular(&fd, path)?;
        Ok(fs_err::File::from_parts(fd.into(), path))
    }
}

impl From<OwnedFd> for Dir {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn regular(fd: impl AsFd, path: &Path) -> Result<rustix::fs::Stat> {
    let stat = fstat(fd).doing(path.display())?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(stat),
        FileType::Directory => Err(Error::failed(format!("{} is a directory", path.display()))),
        _ => Err(Error::failed(format!("{} is not a regular file", path.display()))),
    }
}

/// An error of [`Dir::open_at`] in words.
#[must_use]
pub fn explain(e: Errno, path: &Path) -> Error {
    let path = path.display();
    Error::failed(match e {
        Errno::XDEV => format!("{path} leads out of the workspace"),
        Errno::NOENT => format!("{path} does not exist"),
        Errno::NOTDIR => format!("a part of {path} is not a directory"),
        Errno::LOOP => format!("{path} goes through symbolic links that cannot be followed"),
        Errno::ACCESS | Errno::PERM => format!("{path}: permission denied"),
        Errno::NAMETOOLONG => format!("the path is too long: {} bytes", path.to_string().len()),
        Errno::NXIO => format!("{path} is not a regular file"),
        e => format!("{path}: {}", std::io::Error::from(e)),
    })
}

/// The most that the program itself reads of a file that a model can write.
pub const MAX_TRUSTED: usize = 64 << 10;

/// The one way in which the process that holds the keys reads a file that a model can write: no links of either kind,
/// regular, cut at [`MAX_TRUSTED`] bytes with a notice.
///
/// # Errors
/// As [`Dir::read`], and for a file with more than one name. `Ok(None)` when there is no such file.
pub fn read_trusted(dir: &Path, path: &str) -> Result<Option<String>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = match openat(CWD, dir, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        result => result.doing(format_args!("opening {}", dir.display()))?,
    };
    let path = Path::new(path);
    let held = Dir { fd };
    match held.open_at(path, OFlags::PATH, Mode::empty(), Links::Refuse) {
        Err(Errno::NOENT) => return Ok(None),
        Err(e) => return Err(explain(e, path)),
        Ok(_) => {}
    }
    let file = held.read(path, Links::Refuse)?;
    if regular(&file, path)?.st_nlink != 1 {
        return Err(Error::failed(format!("{} has more than one name (hard links)", path.display())));
    }
    let mut bytes = Vec::new();
    file.take(MAX_TRUSTED as u64 + 1).read_to_end(&mut bytes)?;
    let cut = bytes.len() > MAX_TRUSTED;
    bytes.truncate(MAX_TRUSTED);
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if cut {
        text.push_str(&format!("\n[cut at {MAX_TRUSTED} bytes]\n"));
    }
    Ok(Some(text))
}
