//! New files in a directory that others can write. No part of their path may be a symbolic link, so that no file is created
//! outside of the directory.

use std::io::Read;
use std::path::Path;

use fs_err::File;
use rustix::fs::{AtFlags, Mode, OFlags, unlinkat};
use rustix::io::Errno;

use super::make_dir;
use crate::access::{Dir, Links};
use crate::error::{Context, Result};

/// Modes of new files, for the owner only.
pub(crate) const PLAIN: Mode = Mode::RUSR.union(Mode::WUSR);
pub(crate) const PROGRAM: Mode = Mode::RWXU;

/// Creates the file `path` in `root` with the data of `from`, and any missing directories. Returns `false` without changes if
/// something is at that path, or a symbolic link or a file in place of a directory.
pub(crate) fn copy_new(root: &Path, path: &Path, from: &mut dyn Read, mode: Mode) -> Result<bool> {
    make_dir(root)?;
    let (dir, whole) = (Dir::open(root)?, root.join(path));
    let doing = || format!("writing {}", whole.display());
    let create = || {
        dir.make_dirs(path.parent().unwrap_or(path), Mode::RWXU, Links::Refuse)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        dir.open_at(path, flags, mode, Links::Refuse)
    };
    let file = match create() {
        Err(Errno::EXIST | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
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
    Ok(true)
}

/// Syncs the file system of `dir`.
pub(crate) fn sync_all(dir: &Path) -> Result<()> {
    let dir = File::open(dir)?;
    Ok(rustix::fs::syncfs(dir.file())?)
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
        assert!(copy("a/b/c.txt", "hello").unwrap());
        assert!(!copy("a/b/c.txt", "other").unwrap());
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
        for path in ["out/x", "a/b/c.txt/d", "dangling"] {
            assert!(!copy(path, "x").unwrap(), "{path}");
        }
        assert!(copy("../x", "x").is_err());
    }
}
