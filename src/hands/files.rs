//! Looking at files, below a held directory.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, readlinkat, statat};

use super::wire::{Header, MAX_BODY, Reply, Setup};
use crate::beneath::{self, Dir, Links};
use crate::error::{Error, Result};

/// The most entries that a listing shows.
const MOST_ENTRIES: usize = 200;

/// `path` as the tools' users write it, relative to the workspace: an absolute path inside it is fine.
pub fn inside<'a>(setup: &Setup, path: &'a str) -> &'a str {
    let Some(workspace) = setup.workspace.to_str() else { return path };
    match path.strip_prefix(workspace) {
        Some("") => ".",
        // What does not go on with a slash only begins with the same letters.
        Some(rest) if rest.starts_with('/') => rest.trim_start_matches('/'),
        _ => path,
    }
}

fn clean<'a>(setup: &Setup, path: &'a str) -> Result<&'a Path> {
    if path.contains('\0') {
        return Err(Error::failed("the path contains a NUL byte"));
    }
    let path = inside(setup, path);
    Ok(Path::new(if path.is_empty() { "." } else { path }))
}

/// Lists a directory: one entry a line, directories with a slash, files with their size, links with their target.
///
/// # Errors
/// In words for the model.
pub fn list_dir(workspace: &Dir, setup: &Setup, path: &str, depth: u32) -> Result<Reply> {
    let path = clean(setup, path)?;
    let dir = open_dir(workspace, path, Links::Follow)?;
    let mut listing = Listing { text: String::new(), shown: 0, more: 0 };
    listing.add(&dir, "", depth.max(1))?;
    if listing.more > 0 {
        writeln!(listing.text, "[{} more]", listing.more).map_err(|e| Error::failed(e.to_string()))?;
    }
    if listing.shown == 0 {
        listing.text.push_str("(empty)\n");
    }
    Ok(Reply { header: Header::Text, body: listing.text.into_bytes() })
}

fn open_dir(at: &Dir, path: &Path, links: Links) -> Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    at.open_at(path, flags, Mode::empty(), links).map(Dir::from).map_err(|e| beneath::explain(e, path))
}

struct Listing {
    text: String,
    shown: usize,
    more: u64,
}

impl Listing {
    fn add(&mut self, dir: &Dir, prefix: &str, depth: u32) -> Result<()> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(dir)? {
            let name = entry?.file_name().to_owned();
            if !matches!(name.to_bytes(), b"." | b"..") {
                names.push(name);
            }
        }
        names.sort();
        for name in names {
            if self.shown == MOST_ENTRIES {
                self.more += 1;
                continue;
            }
            let Ok(stat) = statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            self.shown += 1;
            let shown = format!("{prefix}{}", name.to_string_lossy().escape_debug());
            let line = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => format!("{shown}/\n"),
                FileType::RegularFile => format!("{shown}  {}\n", size(u64::try_from(stat.st_size).unwrap_or(0))),
                FileType::Symlink => {
                    let target = readlinkat(dir, &name, Vec::new()).unwrap_or_default();
                    format!("{shown} -> {}\n", target.to_string_lossy().escape_debug())
                }
                _ => format!("{shown}  (not a regular file)\n"),
            };
            self.text.push_str(&line);
            if depth > 1 && FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let below = Path::new(OsStr::from_bytes(name.to_bytes()));
                // One that cannot be entered is listed by its name alone.
                if let Ok(below) = open_dir(dir, below, Links::Refuse) {
                    self.add(&below, &format!("{shown}/"), depth - 1)?;
                }
            }
        }
        Ok(())
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes} bytes"),
        1_024..1_048_576 => format!("{} KB", bytes / 1_024),
        _ => format!("{} MB", bytes / 1_048_576),
    }
}

/// Reads lines of a text file, and says what was left out.
///
/// # Errors
/// In words for the model.
pub fn read_file(workspace: &Dir, setup: &Setup, path: &str, offset: u64, limit: u64) -> Result<Reply> {
    let path = clean(setup, path)?;
    let mut file = BufReader::new(workspace.read(path, Links::Follow)?);
    let first = offset.max(1);
    let last = first.saturating_add(limit.max(1)) - 1;
    let (mut body, mut number, mut cut) = (Vec::new(), 0, false);
    // Room is left for the notice at the end.
    let room = MAX_BODY - 1024;
    loop {
        let before = body.len();
        let more = take_line(&mut file, &mut body, number + 1 >= first && number < last && !cut, room)?;
        if !more {
            break;
        }
        number += 1;
        if body.len() >= room && before < room {
            cut = true;
        }
    }
    let shown_last = number.min(last);
    if first > number && number > 0 {
        return Err(Error::failed(format!("{} has only {number} lines", path.display())));
    }
    if cut {
        body.extend_from_slice(b"\n[cut: the rest of these lines is too long to show]\n");
    } else if shown_last < number {
        let notice = format!("[lines {first} to {shown_last} of {number}; go on with offset {}]\n", shown_last + 1);
        body.extend_from_slice(notice.as_bytes());
    }
    Ok(Reply { header: Header::Text, body })
}

/// Reads one line, of any length, and keeps it if `keep`, up to `room` bytes of `body`. `false` at the end of the file.
fn take_line(file: &mut impl BufRead, body: &mut Vec<u8>, keep: bool, room: usize) -> Result<bool> {
    let mut any = false;
    loop {
        let piece = file.fill_buf()?;
        if piece.is_empty() {
            return Ok(any);
        }
        any = true;
        let end = piece.iter().position(|b| *b == b'\n').map(|at| at + 1);
        let used = end.unwrap_or(piece.len());
        if keep {
            let fits = room.saturating_sub(body.len()).min(used);
            body.extend_from_slice(&piece[..fits]);
        }
        file.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}
