//! Looking at files and directories.

use std::cell::Cell;
use std::ffi::{CStr, CString, OsStr};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, fstat, readlinkat, statat};

use super::encoding::as_utf8;
use super::{Target, shown, text};
use crate::beneath::{self, Dir, Links};
use crate::error::{Error, Result};
use crate::text::size;
use crate::wire::{Header, ImageKind, MAX_BODY, Reply};

/// The most entries that a listing shows.
const MOST_ENTRIES: usize = 200;

/// Levels that a listing goes down, at most: each takes a descriptor.
const DEEPEST: u32 = 10;

/// Lines of a file given at once, at most.
const MOST_LINES: u64 = 2000;

/// Bytes read only to count how many lines are left.
const MOST_COUNTED: usize = 64 << 20;

/// How long a file is read in search of a line. A sparse file can be larger than anything that could be read.
const PATIENCE: Duration = Duration::from_secs(30);

/// Lists a directory: one entry a line, directories with a slash, files with their size, links with their target.
pub fn list_dir(target: Target, depth: u32) -> Result<Reply> {
    let dir = target.tree.dir_at(target.path, Links::Follow).map_err(|e| beneath::explain(e, target.asked))?;
    let mut listing = Listing { text: String::new(), shown: 0, more: 0, unseen: false };
    listing.add(&dir, "", depth.clamp(1, DEEPEST))?;
    if listing.more > 0 {
        let least = if listing.unseen { "at least " } else { "" };
        listing.text.push_str(&format!("[{least}{} more]\n", listing.more));
    }
    if listing.shown == 0 {
        listing.text.push_str("(empty)\n");
    }
    Ok(text(listing.text))
}

/// The names in a directory, in order.
pub fn names(dir: &Dir) -> Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// A directory within another, by its own name.
pub fn below(dir: &Dir, name: &CStr) -> Option<Dir> {
    let name = Path::new(OsStr::from_bytes(name.to_bytes()));
    dir.dir_at(name, Links::Refuse).ok()
}

struct Listing {
    text: String,
    shown: usize,
    more: u64,
    /// Some of those not shown are directories that were not entered.
    unseen: bool,
}

impl Listing {
    fn add(&mut self, dir: &Dir, prefix: &str, depth: u32) -> Result<()> {
        for name in names(dir)? {
            if self.shown == MOST_ENTRIES {
                self.more += 1;
                self.unseen |= depth > 1;
                continue;
            }
            let Ok(stat) = statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            self.shown += 1;
            let path = format!("{prefix}{}", shown(&name.to_string_lossy()));
            let kind = FileType::from_raw_mode(stat.st_mode);
            self.text.push_str(&match kind {
                FileType::Directory => format!("{path}/\n"),
                FileType::RegularFile => format!("{path}  {}\n", size(u64::try_from(stat.st_size).unwrap_or(0))),
                FileType::Symlink => {
                    let target = readlinkat(dir, &name, Vec::new()).unwrap_or_default();
                    format!("{path} -> {}\n", shown(&target.to_string_lossy()))
                }
                _ => format!("{path}  (not a regular file)\n"),
            });
            if depth > 1 && kind == FileType::Directory {
                // One that cannot be entered is listed by its name alone.
                if let Some(below) = below(dir, &name) {
                    self.add(&below, &format!("{path}/"), depth - 1)?;
                }
            }
        }
        Ok(())
    }
}

/// Gives a part of a regular file as it is.
pub fn give_file(target: Target, offset: u64, most: u64) -> Result<Reply> {
    let mut file = target.tree.read(target.path, target.asked, Links::Follow)?;
    let stat = fstat(&file)?;
    let whole = u64::try_from(stat.st_size).unwrap_or(0);
    if whole > most {
        let (whole, most) = (size(whole), size(most));
        return Err(Error::failed(format!(
            "{} is too large: it has {whole} of at most {most}",
            target.asked.display()
        )));
    }
    let mut body = Vec::new();
    file.seek(SeekFrom::Start(offset))?;
    file.take(MAX_BODY as u64).read_to_end(&mut body)?;
    let stamp = format!("{}-{}-{whole}-{}-{}", stat.st_dev, stat.st_ino, stat.st_ctime, stat.st_ctime_nsec);
    Ok(Reply { header: Header::Part(stamp), body })
}

/// Reads an image, or lines of a text file, and says what was left out.
pub fn read_file(target: Target, first: u64, limit: Option<u64>, hung_up: &dyn Fn() -> bool) -> Result<Reply> {
    let name = target.asked.display();
    let file = target.tree.read(target.path, target.asked, Links::Follow)?;
    let bytes = fstat(&file)?.st_size;
    let mut file = BufReader::new(file);
    if let Some(kind) = ImageKind::of(file.fill_buf()?) {
        return image(file, kind, u64::try_from(bytes).unwrap_or(0), &target);
    }
    let mut file = as_utf8(file)?;
    let until = Instant::now() + PATIENCE;
    let impatient = |_| Instant::now() > until || hung_up();
    let first = first.max(1);
    for number in 1..first {
        match take_line(&mut file, None, &impatient)? {
            Line::End if number > 1 => return Err(Error::failed(format!("{name} has only {} lines", number - 1))),
            Line::End => break,
            Line::Stopped => {
                return Err(Error::failed(format!(
                    "{name} is too large: in the time there was, line {number} was reached"
                )));
            }
            Line::Whole | Line::Cut => {}
        }
    }
    // Room is left for the notice at the end.
    let (mut body, room) = (Vec::new(), MAX_BODY - 1024);
    let (mut next, end) = (first, first.saturating_add(limit.unwrap_or(MOST_LINES).clamp(1, MOST_LINES)));
    let mut ended = Line::Whole;
    while next < end && ended == Line::Whole {
        ended = take_line(&mut file, Some((&mut body, room)), &impatient)?;
        next += u64::from(ended == Line::Whole);
    }
    let notice = match ended {
        Line::Whole => rest(&mut file, hung_up)?.map(|(least, left)| {
            let (last, of) = (next - 1, next - 1 + left);
            format!("[lines {first} to {last} of {least}{of}; go on with offset {next}]\n")
        }),
        Line::End => None,
        Line::Cut | Line::Stopped => Some(format!("[line {next} is cut: there is no more room]\n")),
    };
    if let Some(notice) = notice {
        if body.last().is_some_and(|b| *b != b'\n') {
            body.push(b'\n');
        }
        body.extend_from_slice(notice.as_bytes());
    }
    Ok(text(body))
}

/// How many lines are left, with `more than ` where that took too long to tell; `None` when there are none.
fn rest(file: &mut impl BufRead, hung_up: &dyn Fn() -> bool) -> Result<Option<(&'static str, u64)>> {
    let mut left = 0;
    let counted = Cell::new(0);
    let enough = |bytes| {
        counted.set(counted.get() + bytes);
        counted.get() > MOST_COUNTED || hung_up()
    };
    loop {
        match take_line(file, None, &enough)? {
            Line::Whole | Line::Cut => left += 1,
            Line::End => return Ok(Some(("", left)).filter(|_| left > 0)),
            Line::Stopped => return Ok(Some(("more than ", left))),
        }
    }
}

/// What became of a line that was to be read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Line {
    Whole,
    /// The room was used up; the rest of the line is still to be read.
    Cut,
    /// There was none: the file is at its end.
    End,
    /// It was told to stop.
    Stopped,
}

/// Reads to the end of a line, and keeps it where there is a place for it, up to so many bytes of that place in all.
/// `stop` is asked now and then, and told how many bytes were read since.
pub fn take_line(
    file: &mut impl BufRead,
    mut keep: Option<(&mut Vec<u8>, usize)>,
    stop: &dyn Fn(usize) -> bool,
) -> Result<Line> {
    let mut any = false;
    loop {
        let piece = file.fill_buf()?;
        if piece.is_empty() {
            return Ok(if any { Line::Whole } else { Line::End });
        }
        any = true;
        let end = piece.iter().position(|b| *b == b'\n').map(|at| at + 1);
        let mut used = end.unwrap_or(piece.len());
        let mut whole = end.is_some();
        if let Some((place, room)) = &mut keep {
            let fits = room.saturating_sub(place.len());
            if fits < used {
                (used, whole) = (fits, false);
            }
            place.extend_from_slice(&piece[..used]);
            if fits == used && !whole {
                file.consume(used);
                return Ok(Line::Cut);
            }
        }
        file.consume(used);
        if whole {
            return Ok(Line::Whole);
        }
        if stop(used) {
            return Ok(Line::Stopped);
        }
    }
}

fn image(mut file: impl Read, kind: ImageKind, bytes: u64, target: &Target) -> Result<Reply> {
    let mut body = Vec::new();
    file.by_ref().take(MAX_BODY as u64 + 1).read_to_end(&mut body)?;
    if body.len() > MAX_BODY {
        return Err(Error::failed(format!(
            "{} is an image of {} ({}), and images of up to {} can be shown: make a smaller copy of it first",
            target.asked.display(),
            size(bytes),
            kind.mime(),
            size(MAX_BODY as u64)
        )));
    }
    Ok(Reply { header: Header::Image { kind }, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_given_in_parts_that_tell_when_it_is_another() {
        let root = std::env::temp_dir().join(format!("bantam-give-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let whole: Vec<u8> = (0..=250).cycle().take(MAX_BODY + 1000).collect();
        std::fs::write(root.join("file"), &whole).unwrap();
        let (dir, path) = (Dir::open(&root).unwrap(), Path::new("file"));
        let give = |offset: usize| {
            let target = Target { tree: &dir, path, asked: path };
            let reply = give_file(target, offset as u64, whole.len() as u64).unwrap();
            let Header::Part(stamp) = reply.header else { panic!("{:?}", reply.header) };
            (reply.body, stamp)
        };
        let (first, stamp) = give(0);
        let (second, same) = give(first.len());
        assert_eq!((first.len(), &stamp), (MAX_BODY, &same));
        let target = Target { tree: &dir, path, asked: path };
        assert!(give_file(target, 0, whole.len() as u64 - 1).unwrap_err().message.contains("too large"));
        assert!([first, second].concat() == whole && give(whole.len()).0.is_empty());
        std::fs::write(root.join("other"), &whole).unwrap();
        std::fs::rename(root.join("other"), root.join("file")).unwrap();
        let (_, renamed) = give(0);
        std::fs::write(root.join("file"), &whole[1..]).unwrap();
        let (_, shorter) = give(0);
        assert!(stamp != renamed && renamed != shorter, "{stamp} {renamed} {shorter}");
        std::fs::remove_dir_all(root).unwrap();
    }
}
