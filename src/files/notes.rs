//! The agent's notes: the files `KEY.md` of a directory of their own.

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::io::{BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::json;

use super::lines::{excerpt, skip_bom};
use super::ranking::{rank, terms};
use super::{Target, edit, escape_controls, read, text_reply};
use crate::access::{self, Dir, Links};
use crate::error::{Error, Result};
use crate::text::{clip, one_line, size};
use crate::worker::protocol::{MAX_BODY, MemoryAction, MemoryRequest, Reply};

/// How much of `MEMORY.md` goes into every prompt, in bytes.
pub(crate) const SHOWN_OF_MEMORY: usize = 8 << 10;

/// The note that is used when none is named.
const MEMORY: &str = "MEMORY";
/// The most bytes of a note, and of a key: with a suffix it has to be a file name.
const MAX_NOTE: u64 = 64 << 10;
const MAX_KEY: usize = 120;
/// The most notes that `view` lists, and the bytes read of each.
const MAX_LISTED: usize = 200;
const HEAD: u64 = 512;
/// The most bytes of notes that are read for one call.
const MAX_READ: usize = 8 << 20;
/// The most matching lines that `search` shows, and the bytes after which it shows no further one.
const MAX_FOUND: usize = 20;
const MAX_OUTPUT: usize = 16 << 10;
/// Bytes from which on a passage ends with its paragraph, and the most that it has.
const MIN_PASSAGE: usize = 300;
const MAX_PASSAGE: usize = 1_200;

/// Does one call of the memory tool. `now` is local time, as a [`crate::text::LocalTime`] writes it.
pub(super) fn perform(
    notes: &Dir,
    ask: &MemoryRequest,
    now: &str,
    hung_up: &dyn Fn() -> bool,
) -> Result<Reply> {
    let key = ask
        .key
        .as_deref()
        .filter(|key| !key.trim().is_empty())
        .map(|key| checked(key, now))
        .transpose()?;
    let path = format!("{}.md", key.as_deref().unwrap_or(MEMORY));
    let asked = format!("memory/{path}");
    let target = Target {
        tree: notes,
        path: Path::new(&path),
        asked: Path::new(&asked),
    };
    // A write through a link would change another file, and prompts include no notes through links.
    if let Err(Errno::LOOP) = notes.open_at(target.path, OFlags::PATH, Mode::empty(), Links::Refuse)
    {
        return Err(target.error(Errno::LOOP));
    }
    match ask.action {
        MemoryAction::View if key.is_some() => read::read_file(target, 1, None, hung_up),
        MemoryAction::View => list(notes),
        MemoryAction::Search => search(
            notes,
            ask.query
                .as_deref()
                .or(ask.content.as_deref())
                .unwrap_or_default(),
        ),
        MemoryAction::Write => {
            let content = content(ask)?;
            check_len(content.len() as u64)?;
            edit::write_file(target, content, None)
        }
        MemoryAction::Append => {
            let content = content(ask)?.trim_end();
            if content.is_empty() {
                return Err(Error::failed("content is empty"));
            }
            let line = match key.as_deref().filter(|key| is_day(key)) {
                // Hours and minutes; on another day with the date.
                Some(day) => {
                    let time = if now.starts_with(day) {
                        now.get(11..16)
                    } else {
                        now.get(..16)
                    };
                    format!("- {} {content}\n", time.unwrap_or(now))
                }
                None => format!("{content}\n"),
            };
            let old = target
                .open(Links::Refuse)
                .and_then(|file| Ok(file.metadata()?.len()))
                .unwrap_or(0);
            check_len(old + line.len() as u64)?;
            edit::append(target, &line, "\n")
        }
        MemoryAction::Delete if key.is_none() => {
            Err(Error::failed("\"key\" is missing: which note to delete"))
        }
        MemoryAction::Delete => edit::remove_file(target),
    }
}

fn content(ask: &MemoryRequest) -> Result<&str> {
    ask.content
        .as_deref()
        .ok_or_else(|| Error::failed("\"content\" is missing: what to write"))
}

fn check_len(len: u64) -> Result<()> {
    if len <= MAX_NOTE {
        return Ok(());
    }
    let (len, max) = (size(len), size(MAX_NOTE));
    Err(Error::failed(format!(
        "the note would have {len}; the limit is {max}: shorten it, or use several notes"
    )))
}

/// The key as it appears in the file name. `now` gives the day for `today`.
fn checked(key: &str, now: &str) -> Result<String> {
    let key = key.trim();
    let key = key.strip_suffix(".md").unwrap_or(key);
    let problem = if key.is_empty() {
        "it is empty"
    } else if key.contains(['/', '\\']) || key.chars().any(char::is_control) {
        "it contains a slash or a control character"
    } else if key.starts_with('.') {
        "it starts with a dot"
    } else if key.len() > MAX_KEY {
        "it is too long"
    } else {
        return Ok(match key.to_ascii_lowercase().as_str() {
            "today" => now.get(..10).unwrap_or(now).to_owned(),
            "memory" => MEMORY.to_owned(),
            _ => key.to_owned(),
        });
    };
    let key = one_line(key, 60);
    Err(Error::failed(format!(
        "invalid key \"{key}\": {problem}; use a plain name, for example garden"
    )))
}

/// Whether a key is a date, `2026-11-22`.
fn is_day(key: &str) -> bool {
    let fits = |(at, b): (usize, u8)| {
        if matches!(at, 4 | 7) {
            b == b'-'
        } else {
            b.is_ascii_digit()
        }
    };
    key.len() == 10 && key.bytes().enumerate().all(fits)
}

/// A note, or its beginning.
#[derive(Default)]
pub(super) struct Note {
    pub(super) key: String,
    pub(super) modified: Option<SystemTime>,
    pub(super) len: u64,
    pub(super) text: String,
}

/// The notes, with at most `max` bytes of each, those of days newest first; and how many were left out because of
/// [`MAX_READ`].
fn read_all(notes: &Dir, max: u64) -> Result<(Vec<Note>, usize)> {
    let here = Path::new(".");
    let dir = notes
        .dir_at(here, Links::Refuse)
        .map_err(|e| access::explain(e, here))?;
    let (mut notes, mut omitted, mut bytes) = (Vec::new(), 0, 0);
    for name in dir.names()?.iter().rev() {
        let Some(key) = name
            .to_bytes()
            .strip_suffix(b".md")
            .filter(|key| !key.starts_with(b"."))
        else {
            continue;
        };
        if bytes >= MAX_READ {
            omitted += 1;
            continue;
        }
        let path = Path::new(OsStr::from_bytes(name.to_bytes()));
        // Directories, links and pipes are not notes.
        let Ok(file) = dir.read(path, path, Links::Refuse) else {
            continue;
        };
        let meta = file.metadata()?;
        let (mut file, mut start) = (BufReader::new(file), Vec::new());
        skip_bom(&mut file)?;
        bytes += file.take(max).read_to_end(&mut start)?;
        let (key, text) = (
            escape_controls(&String::from_utf8_lossy(key)),
            String::from_utf8_lossy(&start).into_owned(),
        );
        notes.push(Note {
            key,
            modified: meta.modified().ok(),
            len: meta.len(),
            text,
        });
    }
    Ok((notes, omitted))
}

fn list(dir: &Dir) -> Result<Reply> {
    let (mut notes, omitted) = read_all(dir, HEAD)?;
    notes.sort_by_key(|note| Reverse(note.modified));
    let mut out = String::new();
    for note in notes.iter().take(MAX_LISTED) {
        let first = note
            .text
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default();
        out.push_str(&format!(
            "{}  {}  {}\n",
            note.key,
            size(note.len),
            one_line(first, 100)
        ));
    }
    let more = notes.len().saturating_sub(MAX_LISTED) + omitted;
    if more > 0 {
        out.push_str(&format!("[{more} more: use search]\n"));
    }
    Ok(text_reply(if out.is_empty() {
        "no notes yet\n".to_owned()
    } else {
        out
    }))
}

/// What the notes say, the newest first, as far as one reply holds.
pub(super) fn passages(dir: &Dir) -> Result<Reply> {
    let (mut notes, _) = read_all(dir, MAX_NOTE)?;
    notes.sort_by_key(|note| Reverse(note.modified));
    let mut out = String::new();
    for note in &notes {
        for (line, text) in split(&note.text) {
            let entry = json!([note.key, line + 1, text]).to_string();
            if out.len() + entry.len() >= MAX_BODY {
                return Ok(text_reply(out));
            }
            out.push_str(&entry);
            out.push('\n');
        }
    }
    Ok(text_reply(out))
}

/// Cuts a note into passages, between paragraphs where it can; each with the number of its first line, from 0.
fn split(text: &str) -> Vec<(usize, String)> {
    let mut passages: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (n, line) in text.lines().enumerate() {
        let is_blank = line.trim().is_empty();
        let len = passages.last().map_or(0, |(_, passage)| passage.len());
        is_open &= len + line.len() <= MAX_PASSAGE && !(is_blank && len >= MIN_PASSAGE);
        if is_blank {
            continue;
        }
        let line = clip(line, MAX_PASSAGE);
        match passages.last_mut().filter(|_| is_open) {
            Some((_, passage)) => passage.extend(["\n", line]),
            None => passages.push((n, line.to_owned())),
        }
        is_open = true;
    }
    passages
}

/// Shows the best lines, each with the one before and after it.
fn search(dir: &Dir, query: &str) -> Result<Reply> {
    let terms = terms(query);
    if terms.is_empty() {
        return Err(Error::failed("\"query\" contains no word to search for"));
    }
    let (notes, omitted) = read_all(dir, MAX_NOTE)?;
    let matches = rank(&notes, &terms);
    let (mut out, mut shown) = (String::new(), 0);
    for found in matches.iter().take(MAX_FOUND) {
        if out.len() > MAX_OUTPUT {
            break;
        }
        shown += 1;
        let note = &notes[found.note];
        let first = found.line.saturating_sub(1);
        for (n, line) in note
            .text
            .lines()
            .enumerate()
            .take(found.line + 2)
            .skip(first)
        {
            if n == found.line {
                out.push_str(&format!(
                    "{}:{}: {}\n",
                    note.key,
                    n + 1,
                    excerpt(line, found.at)
                ));
            } else if !line.trim().is_empty() {
                out.push_str(&format!("{}:{}- {}\n", note.key, n + 1, excerpt(line, 0)));
            }
        }
        out.push('\n');
    }
    if matches.is_empty() {
        out.push_str(&format!("no matches in {} notes\n", notes.len()));
    } else if matches.len() > shown {
        out.push_str(&format!(
            "[{} more lines match: use rarer words]\n",
            matches.len() - shown
        ));
    }
    if omitted > 0 {
        out.push_str(&format!(
            "[{omitted} notes were not searched: there are too many]\n"
        ));
    }
    Ok(text_reply(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_plain_name_in_any_language() {
        let now = "2026-11-22 10:04:05";
        for (key, comes_to) in [
            ("garden", "garden"),
            (" garden.md ", "garden"),
            ("Sebastian's birthday", "Sebastian's birthday"),
            ("買い物", "買い物"),
            ("רשימה", "רשימה"),
            ("v1.2", "v1.2"),
            ("Today", "2026-11-22"),
            ("memory.md", "MEMORY"),
        ] {
            assert_eq!(checked(key, now).unwrap(), comes_to);
        }
        for key in [
            "../x",
            "a/b",
            "/etc/passwd",
            ".hidden",
            "..",
            ".md",
            "a\\b",
            "a\nb",
            "a\0b",
            &"長".repeat(50),
        ] {
            assert!(checked(key, now).is_err(), "{key:?}");
        }
        let (para, long) = ("x".repeat(400), "y".repeat(900));
        let text = format!("# A\nb\n\n{para}\n\nc\n{long}\nd\n{}\n", "z".repeat(5_000));
        let passages: Vec<_> = split(&text)
            .into_iter()
            .map(|(line, text)| (line, text.len()))
            .collect();
        assert_eq!(passages, [(0, 406), (5, 904), (8, 1_200)]);
        assert!(is_day("2026-11-22") && !is_day("2026-1-22x") && !is_day("garden"));
    }
}
