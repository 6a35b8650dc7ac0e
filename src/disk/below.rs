//! New files below a directory that others can write: no part of their path may be a symbolic link, so that none is created
//! outside of it.

use std::io::Read;
use std::path::{Component, Path};

use fs_err::File;
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, open, openat, statat, unlinkat};
use rustix::io::Errno;

use super::make_dir;
use crate::error::{Context, Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyOutcome {
    Created,
    /// Something is at that path already, and stays.
    Exists,
    /// A symbolic link or a file is where a directory should be, and stays.
    Blocked,
}

/// Who may do what with a new file. In both cases that is the owner alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadWrite,
    Execute,
}

/// Creates the file `path` below `root` with what `from` gives, and the directories that are missing.
pub(crate) fn copy_new(root: &Path, path: &Path, from: &mut impl Read, access: Access) -> Result<CopyOutcome> {
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
    // Checked first: a source that cannot be read is no error where nothing is to be written.
    if statat(&dir, *last, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Ok(CopyOutcome::Exists);
    }
    let mode = if access == Access::Execute { 0o700 } else { 0o600 };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = match openat(&dir, *last, flags, Mode::from_raw_mode(mode)) {
        Err(Errno::EXIST) => return Ok(CopyOutcome::Exists),
        result => result.doing(doing())?,
    };
    if let Err(e) = std::io::copy(from, &mut File::from_parts(file.into(), &whole)) {
        // Else the next call would take half a file for a whole one.
        unlinkat(&dir, *last, AtFlags::empty()).doing(doing())?;
        return Err(Error::from(e).doing(doing()));
    }
    Ok(CopyOutcome::Created)
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
        let copy = |path: &str, text: &str| copy_new(&root, Path::new(path), &mut text.as_bytes(), Access::ReadWrite);
        assert_eq!(copy("a/b/c.txt", "hello").unwrap(), CopyOutcome::Created);
        assert_eq!(copy("a/b/c.txt", "other").unwrap(), CopyOutcome::Exists);
        assert_eq!(fs_err::read_to_string(root.join("a/b/c.txt")).unwrap(), "hello");
        assert_eq!(fs_err::metadata(root.join("a/b/c.txt")).unwrap().permissions().mode() & 0o777, 0o600);

        symlink("/tmp", root.join("out")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        assert_eq!(copy("out/x", "x").unwrap(), CopyOutcome::Blocked);
        assert_eq!(copy("a/b/c.txt/d", "x").unwrap(), CopyOutcome::Blocked);
        assert_eq!(copy("dangling", "x").unwrap(), CopyOutcome::Exists);
        assert!(copy("../x", "x").is_err() && copy("", "x").is_err());
        fs_err::remove_dir_all(&root).unwrap();
    }
}
