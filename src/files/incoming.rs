//! Stores a file that arrives from outside in parts, an attachment for example.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{AtFlags, OFlags, renameat, statat};
use rustix::io::Errno;

use super::atomic::LockedEntry;
use super::{Trees, text_reply};
use crate::beneath::Links;
use crate::error::{Error, Result};
use crate::tree::Access;
use crate::wire::{FilePart, Reply};

/// Names to try for one file.
const MAX_NAMES: usize = 1000;

/// Adds a part. The last one gives the file its name, and the reply is its path: with a number where the name is taken
/// by another file.
pub(super) fn take_file(trees: &Trees, part: &FilePart) -> Result<Reply> {
    let temporary = format!(".bantam-{}", part.key);
    let path = format!("{}/{temporary}", part.dir);
    let entry = LockedEntry::lock(trees.find(&path, Access::Write)?)?;
    if entry.name != *temporary {
        return Err(Error::failed(format!("{path} is a link")));
    }
    let stored = take_part(&entry, part);
    if stored.is_err() {
        // The error says more than a failure to clean up.
        entry.remove().ok();
    }
    stored.map(text_reply)
}

fn take_part(entry: &LockedEntry, part: &FilePart) -> Result<String> {
    let bytes = STANDARD.decode(&part.content).map_err(|e| Error::failed(e.to_string()))?;
    let mut flags = OFlags::RDWR | OFlags::APPEND;
    if part.offset == 0 {
        // A crash may have left an earlier beginning.
        match entry.remove() {
            Ok(()) | Err(Errno::NOENT) => flags |= OFlags::CREATE | OFlags::EXCL,
            Err(e) => return Err(entry.error(e)),
        }
    }
    let (file, stat) = entry.open_regular(flags)?;
    let mut file = file.into_file();
    if u64::try_from(stat.st_size) != Ok(part.offset) {
        return Err(Error::failed("another process changed the file"));
    }
    file.write_all(&bytes)?;
    if !part.is_last {
        return Ok(String::new());
    }
    let (stem, extension) = match part.name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() => (stem, format!(".{extension}")),
        _ => (part.name.as_str(), String::new()),
    };
    for n in 1..=MAX_NAMES {
        let name = if n == 1 { part.name.clone() } else { format!("{stem}-{n}{extension}") };
        match statat(&entry.dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => renameat(&entry.dir, &entry.name, &entry.dir, &name),
            Ok(_) if has_same_content(entry, &name, &mut file) => entry.remove(),
            Ok(_) => continue,
            Err(e) => Err(e),
        }
        .map_err(|e| entry.error(e))?;
        return Ok(format!("{}/{name}", part.dir));
    }
    Err(Error::failed(format!("{MAX_NAMES} files have that name")))
}

/// A message that is handled again after a crash brings the same file again.
fn has_same_content(entry: &LockedEntry, name: &str, file: &mut File) -> bool {
    let Ok(other) = entry.dir.read(Path::new(name), Path::new(name), Links::Refuse) else { return false };
    let same_len = match (other.metadata(), file.metadata()) {
        (Ok(theirs), Ok(ours)) => theirs.len() == ours.len(),
        _ => false,
    };
    let bytes = |file| BufReader::new(file).bytes().map_while(Result::ok);
    same_len && file.seek(SeekFrom::Start(0)).is_ok() && bytes(file).eq(bytes(&mut other.into_file()))
}
