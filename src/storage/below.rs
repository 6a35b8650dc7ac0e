//! New files in a directory that others can write. No part of their path may be a symbolic link, so that no file is created
//! outside of the directory.

use std::io::Read;
use std::path::Path;

use fs_err::File;
use rustix::fs::{AtFlags, Mode, OFlags, open, unlinkat};
use rustix::io::Errno;

use super::make_dir;
use crate::access::{Dir, Links};
use crate::error::{Context, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyOutcome {
    Created,
    /// A file exists at that path, and is unchanged.
    Exists,
    /// A symbolic link or a file is in place of a directory, and is unchanged.
    Blocked,
}

/// Modes of new files, for the owner only.
pub(crate) const PLAIN: Mode = Mode::RUSR.union(Mode::WUSR);
pub(crate) const PROGRAM: Mode = Mode::RWXU;

/// Creates the file `path` in `root` with the data of `from`, and any missing directories.
pub(crate) fn copy_new(
    root: &Path,
    path: &Path,
    from: &mut dyn Read,
    mode: Mode,
) -> Result<CopyOutcome> {
    make_dir(root)?;
    let (dir, whole) = (Dir::open(root)?, root.join(path));
    let doing = || format!("writing {}", whole.display());
    let create = || {
        dir.make_dirs(path.parent().unwrap_or(path), Mode::RWXU, Links::Refuse)?;
        dir.open_at(
            path,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
            mode,
            Links::Refuse,
        )
    };
    let file = match create() {
        Err(Errno::EXIST) => return Ok(CopyOutcome::Exists),
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(CopyOutcome::Blocked),
        result => result.doing(doing())?,
    };
    if let Err(e) = std::io::copy(from, &mut File::from_parts(file.into(), &whole)) {
        // Otherwise the next call would take half a file for a whole one.
        dir.locate(path)
            .and_then(|(dir, name)| unlinkat(&dir, &name, AtFlags::empty()))
            .doing(doing())?;
        // The error already names the file.
        return Err(e.into());
    }
    Ok(CopyOutcome::Created)
}

/// Syncs the file system of `dir`.
pub(crate) fn sync_all(dir: &Path) -> Result<()> {
    let dir = open(
        dir,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    Ok(rustix::fs::syncfs(dir)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_file_is_made_once_whole_and_inside() {
        let dir = TestDir::new();
        let root = dir.join("new");
        let copy =
            |path: &str, text: &str| copy_new(&root, Path::new(path), &mut text.as_bytes(), PLAIN);
        assert_eq!(copy("a/b/c.txt", "hello").unwrap(), CopyOutcome::Created);
        assert_eq!(copy("a/b/c.txt", "other").unwrap(), CopyOutcome::Exists);
        assert_eq!(
            fs_err::read_to_string(root.join("a/b/c.txt")).unwrap(),
            "hello"
        );
        assert_eq!(
            fs_err::metadata(root.join("a/b/c.txt"))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o600
        );

        symlink("/tmp", root.join("out")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        assert_eq!(copy("out/x", "x").unwrap(), CopyOutcome::Blocked);
        assert_eq!(copy("a/b/c.txt/d", "x").unwrap(), CopyOutcome::Blocked);
        assert_eq!(copy("dangling", "x").unwrap(), CopyOutcome::Exists);
        assert!(copy("../x", "x").is_err());
    }
}
