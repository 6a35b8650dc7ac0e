//! New files in a tree that somebody else can write: nothing on the way to them may be a symbolic link, so that none
//! lands outside of it.

use std::io::{ErrorKind, Read, Write};
use std::path::{Component, Path};

use fs_err::File;
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, open, openat, statat, unlinkat};
use rustix::io::Errno;

use super::make_dir;
use crate::error::{Context, Error, Result};

/// How [`copy_new`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// The file is there now, with this many bytes.
    Made(u64),
    /// There was something at that path, and it stays.
    Kept,
    /// A symbolic link or a file stands where a directory should be on the way, and stays.
    Blocked,
    /// There was more than allowed; no file was made.
    TooLarge,
}

/// Whether people may run the file that is made. Nobody but the owner may read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    No,
    Yes,
}

/// Makes the file `path` below `root` of what `from` gives, at most `most` bytes, with the directories that are missing.
pub fn copy_new(root: &Path, path: &Path, from: &mut impl Read, runs: Runs, most: u64) -> Result<Copied> {
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
        return Err(Error::failed("there is no name").doing(doing()));
    };
    let mut dir = open(root, step, Mode::empty()).doing(doing())?;
    for name in parents {
        match mkdirat(&dir, *name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(Error::from(e).doing(doing())),
        }
        dir = match openat(&dir, *name, step | OFlags::NOFOLLOW, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(Copied::Blocked),
            result => result.doing(doing())?,
        };
    }
    // Looked at first, because a source that is too large or cannot be read is no fault where nothing is wanted.
    if statat(&dir, *last, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Ok(Copied::Kept);
    }
    let mode = if runs == Runs::Yes { 0o700 } else { 0o600 };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = match openat(&dir, *last, flags, Mode::from_raw_mode(mode)) {
        Err(Errno::EXIST) => return Ok(Copied::Kept),
        result => result.doing(doing())?,
    };
    match fill(&mut File::from_parts(file.into(), &whole), from, most) {
        Ok(bytes) if bytes <= most => Ok(Copied::Made(bytes)),
        result => {
            // Half a file would be taken for a whole one the next time.
            unlinkat(&dir, *last, AtFlags::empty()).doing(doing())?;
            result.map(|_| Copied::TooLarge).doing(doing())
        }
    }
}

/// Copies until the end, or one byte more than allowed. Returns how many.
fn fill(file: &mut File, from: &mut impl Read, most: u64) -> Result<u64> {
    let mut piece = vec![0; 64 << 10];
    let mut total = 0;
    while total <= most {
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

/// Has everything that was written to the file system of `dir` on disk before it returns.
pub fn settle(dir: &Path) -> Result<()> {
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
        let copy =
            |path: &str, text: &str, most| copy_new(&root, Path::new(path), &mut text.as_bytes(), Runs::No, most);
        assert_eq!(copy("a/b/c.txt", "hello", 5).unwrap(), Copied::Made(5));
        assert_eq!(copy("a/b/c.txt", "other", 5).unwrap(), Copied::Kept);
        assert_eq!(fs_err::read_to_string(root.join("a/b/c.txt")).unwrap(), "hello");
        assert_eq!(fs_err::metadata(root.join("a/b/c.txt")).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(copy("a/large", "123456", 5).unwrap(), Copied::TooLarge);
        assert!(!root.join("a/large").exists());

        symlink("/tmp", root.join("out")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        assert_eq!(copy("out/x", "x", 5).unwrap(), Copied::Blocked);
        assert_eq!(copy("a/b/c.txt/d", "x", 5).unwrap(), Copied::Blocked);
        assert_eq!(copy("dangling", "x", 5).unwrap(), Copied::Kept);
        assert!(copy("../x", "x", 5).is_err() && copy("", "x", 5).is_err());
        fs_err::remove_dir_all(&root).unwrap();
    }
}
