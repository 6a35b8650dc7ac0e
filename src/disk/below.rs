//! New files below a directory that others can write: no part of their path may be a symbolic link, so that none is created
//! outside of it.

use std::io::{ErrorKind, Read, Write};
use std::path::{Component, Path};

use fs_err::File;
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, open, openat, statat, unlinkat};
use rustix::io::Errno;

use super::make_dir;
use crate::error::{Context, Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyOutcome {
    /// The file was created, with this many bytes.
    Created(u64),
    /// Something is at that path already, and stays.
    Exists,
    /// A symbolic link or a file is where a directory should be, and stays.
    Blocked,
    /// The source is larger than allowed; no file was created.
    TooLarge,
}

/// Who may do what with a new file. In both cases that is the owner alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadWrite,
    Execute,
}

/// Creates the file `path` below `root` with what `from` gives, at most `max` bytes, and the directories that are missing.
pub(crate) fn copy_new(
    root: &Path,
    path: &Path,
    from: &mut impl Read,
    access: Access,
    max: u64,
) -> Result<CopyOutcome> {
    make_dir(root)?;
    let whole = root.join(path);
    let doing = || format!("writing {}", whole.display());
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            _ => return Err(Error::failed("the path leads out of the tree").doing(doing())),
        }
    }
    let Some((last, parents)) = names.split_last() else {
        return Err(Error::failed("the path is empty").doing(doing()));
    };
    let mut dir = open(root, step, Mode::empty()).doing(doing())?;
    for name in parents {
        match mkdirat(&dir, *name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(Error::from(e).doing(doing())),
        }
        dir = match openat(&dir, *name, step | OFlags::NOFOLLOW, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(CopyOutcome::Blocked),
            result => result.doing(doing())?,
        };
    }
    // Checked first: a source that is too large or unreadable is no error where nothing is to be written.
    if statat(&dir, *last, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Ok(CopyOutcome::Exists);
    }
    let mode = if access == Access::Execute { 0o700 } else { 0o600 };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = match openat(&dir, *last, flags, Mode::from_raw_mode(mode)) {
        Err(Errno::EXIST) => return Ok(CopyOutcome::Exists),
        result => result.doing(doing())?,
    };
    match fill(&mut File::from_parts(file.into(), &whole), from, max) {
        Ok(bytes) if bytes <= max => Ok(CopyOutcome::Created(bytes)),
        result => {
            // Else the next call would take half a file for a whole one.
            unlinkat(&dir, *last, AtFlags::empty()).doing(doing())?;
            result.map(|_| CopyOutcome::TooLarge).doing(doing())
        }
    }
}

/// Copies up to the end, or past the limit. Returns the number of bytes.
fn fill(file: &mut File, from: &mut impl Read, max: u64) -> Result<u64> {
    let mut piece = vec![0; 64 << 10];
    let mut total = 0;
    while total <= max {
        match from.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => {
                file.write_all(&piece[..n])?;
                total += n as u64;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(total)
}

/// Syncs everything that was written to the file system of `dir`.
pub(crate) fn sync_all(dir: &Path) -> Result<()> {
    let dir = open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(rustix::fs::syncfs(dir)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_file_is_made_once_whole_and_inside() {
        let root = std::env::temp_dir().join(format!("bantam-below-{}", std::process::id()));
        let copy = |path: &str, text: &str, most| {
            copy_new(&root, Path::new(path), &mut text.as_bytes(), Access::ReadWrite, most)
        };
        assert_eq!(copy("a/b/c.txt", "hello", 5).unwrap(), CopyOutcome::Created(5));
        assert_eq!(copy("a/b/c.txt", "other", 5).unwrap(), CopyOutcome::Exists);
        assert_eq!(fs_err::read_to_string(root.join("a/b/c.txt")).unwrap(), "hello");
        assert_eq!(fs_err::metadata(root.join("a/b/c.txt")).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(copy("a/large", "123456", 5).unwrap(), CopyOutcome::TooLarge);
        assert!(!root.join("a/large").exists());

        symlink("/tmp", root.join("out")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        assert_eq!(copy("out/x", "x", 5).unwrap(), CopyOutcome::Blocked);
        assert_eq!(copy("a/b/c.txt/d", "x", 5).unwrap(), CopyOutcome::Blocked);
        assert_eq!(copy("dangling", "x", 5).unwrap(), CopyOutcome::Exists);
        assert!(copy("../x", "x", 5).is_err() && copy("", "x", 5).is_err());
        fs_err::remove_dir_all(&root).unwrap();
    }
}
