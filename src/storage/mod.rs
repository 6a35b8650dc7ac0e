//! The only writer of files: atomic files, lines appended by several processes, append logs with checksums (`journal`) in
//! `segments`, files under directories that others can write (`below`), durable queues (`queue`), and locks between processes
//! (`lock`).

mod below;
mod journal;
mod lock;
pub(crate) mod queue;
pub(crate) mod segments;
#[cfg(test)]
pub(crate) mod tests;

use std::io::{BufRead, BufReader, ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err::os::unix::fs::OpenOptionsExt;
use fs_err::{File, OpenOptions};

pub(crate) use below::{PLAIN, PROGRAM, copy_new, sync_all};
pub use journal::Durability;
pub(crate) use journal::{Contents, Fields, Journal, LogItem, LogReader, MAX_LOG, decode};
pub(crate) use lock::Lock;
pub(crate) use queue::{Entry, Queue};
pub(crate) use segments::read_journal;

use crate::error::{Context, Error, Result};

/// Creates `dir` and its missing parents, readable only by the owner. Returns false if it exists.
pub(crate) fn make_dir(dir: &Path) -> Result<bool> {
    use std::os::unix::fs::DirBuilderExt;
    if dir.is_dir() {
        return Ok(false);
    }
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir);
    made.doing(format_args!("making the directory {}", dir.display()))?;
    Ok(true)
}

/// Creates `dir`, and syncs it before returning. Syncs the whole file system, because parents may also be new; this happens
/// once in the life of a home.
fn make_dir_synced(dir: &Path) -> Result<()> {
    if make_dir(dir)? {
        sync_all(dir)
    } else {
        Ok(())
    }
}

/// Creates a file, readable only by the owner.
fn create_new(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// Creates a file, readable only by the owner, and its parent directories. Returns `false` without changes if the path already
/// exists.
pub(crate) fn write_new(path: &Path, content: &[u8]) -> Result<bool> {
    make_dir(parent(path))?;
    let mut file = match create_new(path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => return Ok(false),
        result => result?,
    };
    file.write_all(content)?;
    Ok(true)
}

/// Replaces the file at `path` atomically, readable only by the owner. With [`Durability::Now`], the new file is on disk before
/// this returns; otherwise a power cut may lose both versions. The caller must own a lock.
pub(crate) fn replace(path: &Path, content: &[u8], durability: Durability) -> Result<()> {
    let dir = parent(path);
    if durability == Durability::Now {
        make_dir_synced(dir)?;
    } else {
        make_dir(dir)?;
    }
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    // Removes the leftover of a crash.
    remove(&new)?;
    let write = || -> Result<()> {
        let mut file = create_new(&new)?;
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
    if durability == Durability::Now {
        sync_dir(dir)
    } else {
        Ok(())
    }
}

/// Replaces the content of a file, readable only by the owner, with a single write. Not atomic, and a power cut may lose it: for
/// hints that their readers check.
pub(crate) fn overwrite(path: &Path, content: &[u8]) -> Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    Ok(file.write_all(content)?)
}

/// Appends a line, with a single write, to a file that other processes may also append to. Creates the file and its parent
/// directories. Terminates an incomplete last line first; if another process is still writing it, this leaves an empty line. A
/// power cut may lose the line.
pub(crate) fn append_line(path: &Path, line: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    make_dir(parent(path))?;
    let mut file = options.open(path)?;
    let (len, mut last) = (file.metadata()?.len(), [b'\n']);
    if len > 0 {
        file.file().read_exact_at(&mut last, len - 1)?;
    }
    let line = format!("{}{line}\n", if last == *b"\n" { "" } else { "\n" });
    if file.write(line.as_bytes())? < line.len() {
        return Err(Error::failed(format!(
            "only part of a line could be written to {}",
            path.display()
        )));
    }
    Ok(())
}

/// Reads the complete lines of a file from byte `from` on, and returns the end of the last one. A missing file is empty.
pub(crate) fn read_lines(path: &Path, from: u64, each: &mut dyn FnMut(&[u8])) -> Result<u64> {
    let mut file = match File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(from),
        opened => opened?,
    };
    file.seek(SeekFrom::Start(from))?;
    let mut file = BufReader::new(file);
    let (mut end, mut line) = (from, Vec::new());
    while file.read_until(b'\n', &mut line)? > 0 {
        if line.ends_with(b"\n") {
            each(&line);
            end += line.len() as u64;
        }
        line.clear();
    }
    Ok(end)
}

/// Time to wait for a new file that another process examines as a leftover.
const NEW_FILE_WAIT: Duration = Duration::from_secs(10);

/// A new file, readable only by the owner, that is written in pieces. Dropping it removes the file, unless [`NewFile::keep`]
/// was called. It is locked meanwhile, to distinguish it from the leftover of a crash.
pub(crate) struct NewFile {
    path: PathBuf,
    lock: Lock,
    kept: bool,
}

impl NewFile {
    /// Creates the file and its parent directories.
    pub(crate) fn begin(path: &Path) -> Result<Self> {
        // Another process may lock it first, to remove it as a leftover.
        let lock = Lock::acquire(path, NEW_FILE_WAIT)?;
        Ok(Self {
            path: path.to_owned(),
            lock,
            kept: false,
        })
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.lock.file.write_all(bytes)?)
    }

    /// Prevents removal, and syncs the file before returning.
    pub(crate) fn keep(&mut self) -> Result<()> {
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

/// Renames `from` to `to` in the same directory, and syncs it before returning. Changes nothing if `to` exists.
pub(crate) fn rename_new(from: &Path, to: &Path) -> Result<()> {
    if to.symlink_metadata().is_ok() {
        return Ok(());
    }
    fs_err::rename(from, to)?;
    sync_dir(parent(to))
}

/// Removes a file, or a directory with its contents, if it exists.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let removed = match fs_err::remove_file(path) {
        Err(e) if e.kind() == ErrorKind::IsADirectory => fs_err::remove_dir_all(path),
        removed => removed,
    };
    match removed {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        result => Ok(result?),
    }
}

/// Removes files of one directory, as far as they exist, and syncs it before returning.
pub(crate) fn remove_files(files: &[PathBuf]) -> Result<()> {
    for file in files {
        remove(file)?;
    }
    files
        .first()
        .and_then(|file| file.parent())
        .map_or(Ok(()), sync_dir)
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// Syncs the directory, so that its names survive a power cut.
fn sync_dir(dir: &Path) -> Result<()> {
    Ok(File::open(dir)?.sync_all()?)
}
