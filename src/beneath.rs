//! Opening files below a directory, so that no path, link or race can lead out of it.
//!
//! The boundary is the kernel's: `openat2` with `RESOLVE_BENEATH` from a held directory handle. Where the kernel lacks
//! it (before 5.6, or under a filter), the path is walked one component at a time, no component is ever opened through
//! a symbolic link, and the links are read and followed here, by the same rules. Either way a path comes to the same.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat, openat2, readlinkat};
use rustix::io::Errno;

use crate::error::{Context, Error, Result};

/// Symbolic links followed on one path, at most; the kernel's own number.
const MOST_LINKS: usize = 40;

/// A held directory.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    reach: Reach,
}

/// How far paths from a directory lead.
#[derive(Clone, Debug)]
pub enum Reach {
    /// Nowhere but below it.
    Beneath,
    /// Wherever the process may go, as its user has chosen.
    Everywhere,
    /// The same, without a jail to keep a tree shut: into it only where it is opened again.
    But(Arc<Shut>),
}

/// A tree that is shut, and the one within it that is not. Real paths, without links.
#[derive(Debug)]
pub struct Shut {
    pub tree: PathBuf,
    pub open: PathBuf,
}

impl Shut {
    fn check(&self, fd: &OwnedFd) -> Result<(), Errno> {
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let real = readlinkat(CWD, link, Vec::new()).map_err(|_| Errno::ACCESS)?;
        let real = Path::new(OsStr::from_bytes(real.to_bytes()));
        let shut = real.starts_with(&self.tree) && !real.starts_with(&self.open);
        if shut { Err(Errno::ACCESS) } else { Ok(()) }
    }
}

/// What to do with symbolic links, those within a directory's reach. Where that is everywhere, the last part of a path
/// counts alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Links {
    Follow,
    Refuse,
}

impl Dir {
    pub fn open(path: &Path) -> Result<Self> {
        let fd = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .doing(format_args!("opening {}", path.display()))?;
        Ok(Self::from(fd))
    }

    /// This directory, with another reach.
    pub fn reaching(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }

    /// The directory at `path`, open for reading and as far-reaching as this one.
    pub fn dir_at(&self, path: &Path, links: Links) -> Result<Self, Errno> {
        let fd = self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty(), links)?;
        Ok(Self { fd, reach: self.reach.clone() })
    }

    /// Opens `path` below this directory. `""` and `.` are the directory itself.
    pub fn open_at(&self, path: &Path, flags: OFlags, mode: Mode, links: Links) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let shut = match &self.reach {
            Reach::Beneath => return self.open_beneath(path, flags, mode, links),
            Reach::Everywhere => None,
            Reach::But(shut) => Some(shut),
        };
        let last = if links == Links::Refuse { OFlags::NOFOLLOW } else { OFlags::empty() };
        let fd = openat(&self.fd, path, flags | last | OFlags::CLOEXEC, mode)?;
        shut.map_or(Ok(()), |shut| shut.check(&fd))?;
        Ok(fd)
    }

    fn open_beneath(&self, path: &Path, flags: OFlags, mode: Mode, links: Links) -> Result<OwnedFd, Errno> {
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        if links == Links::Refuse {
            resolve |= ResolveFlags::NO_SYMLINKS;
        }
        // EAGAIN: something was renamed while the kernel looked, so it could not be sure. A hostile racer can force it
        // for ever, so it is tried a bounded number of times.
        for _ in 0..128 {
            match openat2(&self.fd, path, flags | OFlags::CLOEXEC, mode, resolve) {
                Err(Errno::AGAIN) => {}
                Err(Errno::NOSYS | Errno::PERM) => return self.walk(path, flags, mode, links),
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }

    /// The same without `openat2`.
    ///
    /// `..` goes back to the directory that the walk came from, not to what the file system calls its parent by now: a
    /// directory that is moved away meanwhile takes nobody with it.
    fn walk(&self, path: &Path, flags: OFlags, mode: Mode, links: Links) -> Result<OwnedFd, Errno> {
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // What is still to be walked, the next component last; and the directories on the way here.
        let mut left = components(path)?;
        let mut trail = vec![openat(&self.fd, ".", step, Mode::empty())?];
        let mut followed = 0;
        while let Some(name) = left.pop() {
            let at = trail.last().ok_or(Errno::XDEV)?;
            if name == ".." {
                trail.pop();
                continue;
            }
            // What is no link says EINVAL here; whatever else is wrong with it, the opening will say.
            if let Ok(target) = readlinkat(at, name.as_os_str(), Vec::new()) {
                followed += 1;
                if links == Links::Refuse || followed > MOST_LINKS {
                    return Err(Errno::LOOP);
                }
                left.extend(components(Path::new(OsStr::from_bytes(target.to_bytes())))?);
            } else if left.is_empty() {
                return openat(at, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode);
            } else {
                let below = openat(at, name, step, Mode::empty())?;
                trail.push(below);
            }
        }
        // It ended in a dot or in two.
        openat(trail.last().ok_or(Errno::XDEV)?, ".", flags | OFlags::CLOEXEC, mode)
    }

    /// Where something at `path` is, or would be made: the directory that holds it, open for reading, and its name
    /// there. A link in the last place is followed, so that the name is its target's.
    pub fn place(&self, path: &Path) -> Result<(Self, OsString), Errno> {
        let mut path = path.to_owned();
        for _ in 0..=MOST_LINKS {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::ISDIR) };
            let dir = self.dir_at(parent, Links::Follow)?;
            match readlinkat(&dir, name, Vec::new()) {
                Ok(target) => path = parent.join(OsStr::from_bytes(target.to_bytes())),
                Err(Errno::INVAL | Errno::NOENT) => return Ok((dir, name.to_owned())),
                Err(e) => return Err(e),
            }
        }
        Err(Errno::LOOP)
    }

    /// Opens a regular file for reading. Never hangs: a pipe or a device is refused. `called` is its
    /// path as the reader knows it.
    pub fn read(&self, path: &Path, called: &Path, links: Links) -> Result<fs_err::File> {
        // Non-blocking, or opening a pipe that nobody writes would wait for ever.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = self.open_at(path, flags, Mode::empty(), links).map_err(|e| explain(e, called))?;
        regular(&fd, called)?;
        Ok(fs_err::File::from_parts(fd.into(), called))
    }
}

impl From<OwnedFd> for Dir {
    fn from(fd: OwnedFd) -> Self {
        Self { fd, reach: Reach::Beneath }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The parts of a path, the last one first.
fn components(path: &Path) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    for component in path.components().rev() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => names.push(name.to_owned()),
            Component::ParentDir => names.push("..".into()),
            Component::RootDir | Component::Prefix(_) => return Err(Errno::XDEV),
        }
    }
    Ok(names)
}

fn regular(fd: impl AsFd, path: &Path) -> Result<Stat> {
    let stat = fstat(fd).doing(path.display())?;
    is_regular(&stat, path)?;
    Ok(stat)
}

pub fn is_regular(stat: &Stat, path: &Path) -> Result<()> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Error::failed(format!("{} is a directory", path.display()))),
        _ => Err(Error::failed(format!("{} is not a regular file", path.display()))),
    }
}

/// An error of [`Dir::open_at`] in words.
pub fn explain(e: Errno, path: &Path) -> Error {
    let path = path.display();
    Error::failed(match e {
        Errno::XDEV => format!("{path} leads out of the workspace"),
        Errno::NOENT => format!("{path} does not exist"),
        Errno::NOTDIR => format!("{path}, or a part of it, is not a directory"),
        Errno::ISDIR => format!("{path} is a directory"),
        Errno::LOOP => format!("{path} goes through symbolic links that cannot be followed"),
        Errno::ACCESS | Errno::PERM => format!("{path}: permission denied"),
        Errno::NAMETOOLONG => "the path, or a name in it, is too long".to_owned(),
        Errno::AGAIN => format!("{path} kept changing while it was opened: try again"),
        Errno::NXIO => format!("{path} is not a regular file"),
        e => format!("{path}: {}", std::io::Error::from(e)),
    })
}

/// The most that the program itself reads of a file that a model can write.
pub const MAX_TRUSTED: usize = 64 << 10;

/// The first [`MAX_TRUSTED`] bytes of a file that a model can write, with a notice where it is cut there.
pub fn read_trusted(dir: &Path, path: &str) -> Result<Option<String>> {
    let Some((file, len)) = open_trusted(dir, path)? else { return Ok(None) };
    let mut text = start_of(file, MAX_TRUSTED)?;
    if len > MAX_TRUSTED as u64 {
        text.push_str(&format!("\n[cut at {MAX_TRUSTED} bytes]\n"));
    }
    Ok(Some(text))
}

/// The last `most` bytes of such a file, and whether that is all of it.
pub fn read_trusted_end(dir: &Path, path: &str, most: usize) -> Result<Option<(String, bool)>> {
    let Some((mut file, len)) = open_trusted(dir, path)? else { return Ok(None) };
    let most = most.min(MAX_TRUSTED);
    let before = len.saturating_sub(most as u64);
    file.seek(SeekFrom::Start(before))?;
    Ok(Some((start_of(file, most)?, before == 0)))
}

fn start_of(file: fs_err::File, most: usize) -> Result<String> {
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The one way in which the process that holds the keys opens a file that a model can write: no links of either kind, and
/// regular. With its length in bytes.
fn open_trusted(dir: &Path, path: &str) -> Result<Option<(fs_err::File, u64)>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = match openat(CWD, dir, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        result => result.doing(format_args!("opening {}", dir.display()))?,
    };
    let path = Path::new(path);
    let held = Dir::from(fd);
    match held.open_at(path, OFlags::PATH, Mode::empty(), Links::Refuse) {
        Err(Errno::NOENT) => return Ok(None),
        Err(e) => return Err(explain(e, path)),
        Ok(_) => {}
    }
    let file = held.read(path, path, Links::Refuse)?;
    let stat = regular(&file, path)?;
    if stat.st_nlink != 1 {
        return Err(Error::failed(format!("{} has more than one name (hard links)", path.display())));
    }
    Ok(Some((file, u64::try_from(stat.st_size).unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A tree with links of every kind in it, and a file beside it. Removed when the test is over.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("bantam-beneath-{name}-{}", std::process::id()));
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
            Self(root)
        }

        fn dir(&self) -> Dir {
            Dir::open(&self.0.join("tree")).unwrap()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    const DETOURS: usize = 50;

    #[test]
    fn the_kernel_and_the_walk_find_the_same_and_neither_leads_out() {
        let tree = Tree::new("both");
        let dir = tree.dir();
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
            let by_kernel = dir.open_at(path, read, Mode::empty(), links).map(text);
            let by_walk = dir.walk(path, read, Mode::empty(), links).map(text);
            assert_eq!(by_kernel.as_deref(), comes_to.as_ref().map(|text| *text), "{} by the kernel", path.display());
            assert_eq!(by_walk.as_deref(), comes_to.as_ref().map(|text| *text), "{} by the walk", path.display());
        }
    }

    #[test]
    fn directories_are_found_by_either_way() {
        let tree = Tree::new("dirs");
        let dir = tree.dir();
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        for (path, comes_to) in [
            ("", Ok("tree")),
            (".", Ok("tree")),
            ("dir/..", Ok("tree")),
            ("dir", Ok("dir")),
            ("to-dir/deep/..", Ok("dir")),
            ("file", Err(Errno::NOTDIR)),
            ("to-file", Err(Errno::NOTDIR)),
        ] {
            let path = Path::new(path);
            let which = |fd: OwnedFd| fstat(fd).unwrap().st_ino;
            let wanted = comes_to.map(|name| {
                let path = if name == "tree" { tree.0.join(name) } else { tree.0.join("tree").join(name) };
                rustix::fs::stat(path).unwrap().st_ino
            });
            let by_kernel = dir.open_at(path, flags, Mode::empty(), Links::Follow).map(which);
            let by_walk = dir.walk(path, flags, Mode::empty(), Links::Follow).map(which);
            assert_eq!(by_kernel, wanted, "{} by the kernel", path.display());
            assert_eq!(by_walk, wanted, "{} by the walk", path.display());
        }
    }

    #[test]
    fn the_place_of_a_file_is_behind_its_links_and_never_outside() {
        let tree = Tree::new("place");
        let dir = tree.dir();
        for (path, comes_to) in [
            ("file", Ok("file")),
            ("new", Ok("new")),
            ("to-file", Ok("file")),
            ("to-dir/up", Ok("file")),
            ("winding", Ok("file")),
            ("dangling", Ok("nowhere")),
            ("out", Err(Errno::XDEV)),
            ("out-dir/new", Err(Errno::XDEV)),
            ("absolute", Err(Errno::XDEV)),
            ("nowhere/new", Err(Errno::NOENT)),
            ("loop", Err(Errno::LOOP)),
            ("..", Err(Errno::ISDIR)),
            ("/", Err(Errno::ISDIR)),
        ] {
            let name = dir.place(Path::new(path)).map(|(_, name)| name);
            assert_eq!(name, comes_to.map(OsString::from), "{path}");
        }
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let tree = Tree::new("kinds");
        let dir = tree.dir();
        rustix::fs::mkfifoat(&dir, "pipe", Mode::RUSR | Mode::WUSR).unwrap();
        for (path, says) in [("pipe", "not a regular file"), ("dir", "is a directory"), ("out", "leads out")] {
            let error = dir.read(Path::new(path), Path::new("the path asked for"), Links::Follow).unwrap_err();
            assert!(
                error.message.starts_with("the path asked for") && error.message.contains(says),
                "{}",
                error.message
            );
        }
    }
}
