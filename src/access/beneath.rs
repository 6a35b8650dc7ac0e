//! Opens files beneath an open directory, so that paths, links and races cannot lead out of it.
//!
//! The kernel enforces this by `openat2` with `RESOLVE_BENEATH`. Without it (before Linux 5.6, or with a filter that forbids
//! it), opening fails with an error.

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, mkdirat, open, openat, openat2,
    readlinkat,
};
use rustix::io::Errno;

use crate::error::{Context, Error, Result};

/// The kernel's limit on symbolic links followed in one path.
pub(crate) const MAX_LINKS: usize = 40;

/// Maximum number of retries while renames disturb the lookup, because a hostile process can cause them forever.
const MAX_RETRIES: usize = 128;

/// Opening pipes and devices must not block.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Opens without permission to read.
const SEARCH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Keeps a path in its directory, with links that stay there and without links.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
const STRAIGHT: ResolveFlags = BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// An open directory.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    scope: Scope,
}

/// How far paths from a directory may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Beneath,
    /// Everywhere the process may go, as the user has chosen. The sandbox hides the exceptions.
    Anywhere,
}

/// Treatment of symbolic links within the scope. With [`Scope::Anywhere`], applies only to the last component.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    Follow,
    Refuse,
}

/// Opens an absolute path without symbolic links.
pub(crate) fn open_straight(path: &Path) -> Result<OwnedFd, Errno> {
    resolve(CWD, path, SEARCH, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Retries `openat2` while it is disturbed. Returns `NOSYS` if the system lacks it.
fn resolve(
    dir: BorrowedFd,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    how: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    for _ in 0..MAX_RETRIES {
        match openat2(dir, path, flags, mode, how) {
            Err(Errno::AGAIN) => {}
            // PERM comes from filters that predate openat2, and from immutable files.
            Err(Errno::PERM) if !has_openat2() => return Err(Errno::NOSYS),
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

fn has_openat2() -> bool {
    openat2(CWD, ".", SEARCH, Mode::empty(), ResolveFlags::empty()).is_ok()
}

impl From<OwnedFd> for Dir {
    fn from(fd: OwnedFd) -> Self {
        let scope = Scope::Beneath;
        Self { fd, scope }
    }
}

impl Dir {
    /// Opens a directory with a trusted path.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let opened = open(path, SEARCH | OFlags::DIRECTORY, Mode::empty());
        let opened = opened.doing(format_args!("opening {}", path.display()));
        opened.map(Self::from)
    }

    /// Sets the scope.
    pub(crate) fn with_scope(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// Opens the directory at `path` for reading, with the same scope.
    pub(crate) fn dir_at(&self, path: &Path, links: Links) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = self.open_at(path, flags, Mode::empty(), links)?;
        Ok(Self::from(fd).with_scope(self.scope))
    }

    /// Returns the names in this directory, sorted.
    pub(crate) fn names(&self) -> Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(self)? {
            let name = entry?.file_name().to_bytes().to_owned();
            if !matches!(&*name, b"." | b"..") {
                names.push(OsString::from_vec(name));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Opens `path` from this directory. `""` and `.` are the directory itself.
    pub(crate) fn open_at(
        &self,
        path: &Path,
        flags: OFlags,
        mode: Mode,
        links: Links,
    ) -> Result<OwnedFd, Errno> {
        let is_own = path.as_os_str().is_empty();
        let path = if is_own { Path::new(".") } else { path };
        let flags = flags | OFlags::CLOEXEC;
        match (self.scope, links) {
            (Scope::Beneath, Links::Follow) => resolve(self.as_fd(), path, flags, mode, BENEATH),
            (Scope::Beneath, Links::Refuse) => resolve(self.as_fd(), path, flags, mode, STRAIGHT),
            (Scope::Anywhere, Links::Follow) => openat(&self.fd, path, flags, mode),
            (Scope::Anywhere, Links::Refuse) => {
                openat(&self.fd, path, flags | OFlags::NOFOLLOW, mode)
            }
        }
    }

    /// Returns the directory of an existing or new file at `path`, open for reading, and its name there. Follows a link in the
    /// last component to the name of its target.
    pub(crate) fn locate(&self, path: &Path) -> Result<(Self, OsString), Errno> {
        let mut path = path.to_owned();
        for _ in 0..=MAX_LINKS {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(Errno::ISDIR);
            };
            let dir = self.dir_at(parent, Links::Follow)?;
            match readlinkat(&dir, name, Vec::new()) {
                Ok(target) => path = parent.join(OsStr::from_bytes(target.to_bytes())),
                Err(Errno::INVAL | Errno::NOENT) => return Ok((dir, name.to_owned())),
                Err(e) => return Err(e),
            }
        }
        Err(Errno::LOOP)
    }

    /// Creates the directory at `path`, and its missing parents.
    pub(crate) fn make_dirs(&self, path: &Path, mode: Mode, links: Links) -> Result<(), Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let open = || self.open_at(path, flags, Mode::empty(), links).map(drop);
        match open() {
            Err(Errno::NOENT) => {}
            found => return found,
        }
        self.make_dirs(path.parent().ok_or(Errno::NOENT)?, mode, links)?;
        // A path that ends in `..` now exists or leads out.
        if path.file_name().is_some() {
            let (dir, name) = self.locate(path)?;
            match mkdirat(&dir, &name, mode) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e),
            }
        }
        open()
    }

    /// Opens a regular file for reading without waiting for a pipe or a device. Errors name it `asked`.
    pub(crate) fn read(&self, path: &Path, asked: &Path, links: Links) -> Result<fs_err::File> {
        let opened = self.open_at(path, READ, Mode::empty(), links);
        let fd = opened.map_err(|e| explain(e, asked))?;
        is_regular(&fstat(&fd)?, asked)?;
        Ok(fs_err::File::from_parts(fd.into(), asked))
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(crate) fn is_regular(stat: &Stat, path: &Path) -> Result<()> {
    let what = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "a directory",
        _ => "not a regular file",
    };
    Err(Error::failed(format!("{} is {what}", path.display())))
}

/// Refuses a file that may have another name outside the tree.
pub(crate) fn has_one_name(stat: &Stat, path: &Path) -> Result<()> {
    if stat.st_nlink > 1 {
        let text = format!("{} has several names (hard links)", path.display());
        return Err(Error::failed(text));
    }
    Ok(())
}

/// Describes an error of [`Dir::open_at`].
pub(crate) fn explain(e: Errno, path: &Path) -> Error {
    let path = path.display();
    Error::failed(match e {
        Errno::XDEV => format!("{path} leads out of the workspace"),
        Errno::NOENT => format!("{path} does not exist"),
        Errno::ISDIR => format!("{path} is a directory"),
        Errno::LOOP => format!("{path} goes through symbolic links that cannot be followed"),
        Errno::ACCESS | Errno::PERM => format!("{path}: permission denied"),
        Errno::NAMETOOLONG => "the path, or a name in it, is too long".to_owned(),
        Errno::AGAIN => format!("{path} kept changing while it was opened: try again"),
        Errno::NOSYS => format!(
            "{path} cannot be opened safely: this needs openat2, which Linux has from 5.6 on, and this system lacks or forbids it"
        ),
        e => format!("{path}: {}", std::io::Error::from(e)),
    })
}

/// Maximum size read from a file that a model can write, in bytes.
pub(crate) const MAX_UNTRUSTED: usize = 64 << 10;

/// See [`Dir::read_untrusted`]. Returns `None` also if the directory is missing.
pub(crate) fn read_untrusted(dir: &Path, path: &str) -> Result<Option<String>> {
    match fs_err::symlink_metadata(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        _ => Dir::open(dir)?.read_untrusted(path),
    }
}

impl Dir {
    /// Reads the start of a file that a model can write, with a notice if it is cut.
    pub(crate) fn read_untrusted(&self, path: &str) -> Result<Option<String>> {
        let Some((file, len)) = self.open_untrusted(path)? else {
            return Ok(None);
        };
        let mut text = read_lossy(file, MAX_UNTRUSTED)?;
        if len > MAX_UNTRUSTED as u64 {
            text.push_str(&format!("\n[cut at {MAX_UNTRUSTED} bytes]\n"));
        }
        Ok(Some(text))
    }

    /// Reads the last `max` bytes of such a file, and whether that is all of it.
    pub(crate) fn read_untrusted_end(
        &self,
        path: &str,
        max: usize,
    ) -> Result<Option<(String, bool)>> {
        let Some((mut file, len)) = self.open_untrusted(path)? else {
            return Ok(None);
        };
        let start = len.saturating_sub(max as u64);
        file.seek(SeekFrom::Start(start))?;
        Ok(Some((read_lossy(file, max)?, start == 0)))
    }

    /// Opens a file that a model can write, if it is a regular file without symbolic links and other hard links. The process
    /// with the keys must open such files only this way. Also returns the length in bytes.
    fn open_untrusted(&self, path: &str) -> Result<Option<(fs_err::File, u64)>> {
        let path = Path::new(path);
        let fd = match self.open_at(path, READ, Mode::empty(), Links::Refuse) {
            Err(Errno::NOENT) => return Ok(None),
            result => result.map_err(|e| explain(e, path))?,
        };
        let stat = fstat(&fd)?;
        is_regular(&stat, path)?;
        has_one_name(&stat, path)?;
        let len = u64::try_from(stat.st_size).unwrap_or(0);
        Ok(Some((fs_err::File::from_parts(fd.into(), path), len)))
    }
}

fn read_lossy(file: fs_err::File, max: usize) -> Result<String> {
    let mut bytes = Vec::new();
    file.take(max as u64).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;
    use std::os::unix::fs::symlink;

    /// Creates and opens a directory with links of every kind, next to a file.
    fn tree() -> (TestDir, Dir) {
        let root = TestDir::new();
        std::fs::create_dir_all(root.join("tree/dir/deep")).unwrap();
        std::fs::write(root.join("outside"), "outside").unwrap();
        std::fs::write(root.join("tree/file"), "file").unwrap();
        std::fs::write(root.join("tree/dir/deep/file"), "deep").unwrap();
        for (target, link) in [
            ("file", "to-file"),
            ("dir", "to-dir"),
            ("to-dir/deep/../deep/file", "winding"),
            ("../to-file", "dir/up"),
            ("../outside", "out"),
            ("..", "out-dir"),
            ("/etc/passwd", "absolute"),
            ("dir/../../outside", "out-by-a-detour"),
            ("/proc/self/root", "magic"),
            ("loop-2", "loop"),
            ("loop", "loop-2"),
            ("nowhere", "dangling"),
        ] {
            symlink(target, root.join("tree").join(link)).unwrap();
        }
        let dir = Dir::open(&root.join("tree")).unwrap();
        (root, dir)
    }

    const DETOURS: usize = 50;

    #[test]
    fn links_within_the_tree_are_followed_and_none_leads_out() {
        let (_root, dir) = tree();
        let read = OFlags::RDONLY | OFlags::NONBLOCK;
        let far = format!("{}file", "dir/../".repeat(DETOURS));
        for (path, links, comes_to) in [
            ("file", Links::Refuse, Ok("file")),
            ("./dir//deep/./file", Links::Refuse, Ok("deep")),
            ("dir/deep/../deep/file", Links::Refuse, Ok("deep")),
            (far.as_str(), Links::Refuse, Ok("file")),
            ("to-file", Links::Follow, Ok("file")),
            ("to-dir/deep/file", Links::Follow, Ok("deep")),
            ("to-dir/../file", Links::Follow, Ok("file")),
            ("winding", Links::Follow, Ok("deep")),
            ("to-dir/up", Links::Follow, Ok("file")),
            ("to-file", Links::Refuse, Err(Errno::LOOP)),
            ("to-dir/deep/file", Links::Refuse, Err(Errno::LOOP)),
            ("../outside", Links::Follow, Err(Errno::XDEV)),
            ("../tree/file", Links::Follow, Err(Errno::XDEV)),
            ("dir/../../outside", Links::Follow, Err(Errno::XDEV)),
            ("..", Links::Follow, Err(Errno::XDEV)),
            ("/etc/passwd", Links::Follow, Err(Errno::XDEV)),
            ("/", Links::Refuse, Err(Errno::XDEV)),
            ("out", Links::Follow, Err(Errno::XDEV)),
            ("out-dir/outside", Links::Follow, Err(Errno::XDEV)),
            ("absolute", Links::Follow, Err(Errno::XDEV)),
            ("out-by-a-detour", Links::Follow, Err(Errno::XDEV)),
            ("magic/etc/passwd", Links::Follow, Err(Errno::XDEV)),
            ("loop", Links::Follow, Err(Errno::LOOP)),
            ("dangling", Links::Follow, Err(Errno::NOENT)),
            ("nowhere", Links::Follow, Err(Errno::NOENT)),
            ("file/below", Links::Follow, Err(Errno::NOTDIR)),
        ] {
            let path = Path::new(path);
            let text = |fd: OwnedFd| std::io::read_to_string(std::fs::File::from(fd)).unwrap();
            let found = dir.open_at(path, read, Mode::empty(), links).map(text);
            assert_eq!(
                found.as_deref(),
                comes_to.as_ref().map(|text| *text),
                "{}",
                path.display()
            );
        }
    }
}
