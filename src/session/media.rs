//! Media next to the log. The bytes of images, PDFs and recordings are stored in separate files, `KEY.CHECKSUM-SIZE.media`,
//! each content once, and lines refer to them by name. Files are deleted after the last turn that shows them.

use std::borrow::Cow;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::Line;
use crate::error::{Context, Error, Result};
use crate::storage::{self, Durability, LogItem, LogReader};

/// Number of turns that show their media: the current turn and the ones before it.
pub(crate) const SHOWN_TURNS: usize = 3;
/// Fields of a line that contain media.
const MEDIA: [&str; 2] = ["media", "images"];
/// Text in place of media that is no longer shown.
pub(crate) const NOT_SHOWN: &str = "no longer shown; attach or read it again if needed";
/// Maximum size of a file, in bytes, when read; written files are smaller.
const MAX_FILE: u64 = 64 << 20;

/// Returns the file names in a line.
fn names(line: &Line) -> impl Iterator<Item = &str> {
    media_of(line).filter_map(|media| media.get("file")?.as_str())
}

fn media_of(line: &Line) -> impl Iterator<Item = &Value> {
    MEDIA
        .into_iter()
        .filter_map(|name| line.get(name)?.as_array())
        .flatten()
}

fn media_mut(line: &mut Line) -> impl Iterator<Item = &mut Line> {
    let lists = line
        .iter_mut()
        .filter(|(name, _)| MEDIA.contains(&name.as_str()));
    lists
        .filter_map(|(_, list)| list.as_array_mut())
        .flatten()
        .filter_map(Value::as_object_mut)
}

fn path_of(live: &Path, name: &str) -> PathBuf {
    // The name in a damaged line may be a path.
    live.with_extension(format!("{}.media", name.replace('/', "_")))
}

/// Moves the media of these lines to files next to the log, on disk before this returns.
pub(super) fn put_beside<'l>(live: &Path, lines: &'l [Line]) -> Result<Cow<'l, [Line]>> {
    let mut lines = Cow::Borrowed(lines);
    for n in 0..lines.len() {
        if media_of(&lines[n]).any(|media| media.get("base64").is_some()) {
            put_media(live, &mut lines.to_mut()[n])?;
        }
    }
    Ok(lines)
}

fn put_media(live: &Path, line: &mut Line) -> Result<()> {
    for media in media_mut(line) {
        let bytes = media.get("base64").and_then(Value::as_str);
        // Invalid base64 remains in the line.
        let Some(bytes) = bytes.and_then(|text| STANDARD.decode(text).ok()) else {
            continue;
        };
        let file = put(live, &bytes).doing("saving the media of a message")?;
        media.remove("base64");
        media.insert("file".to_owned(), file.into());
    }
    Ok(())
}

/// Writes a file unless its content is stored already. Returns its name.
fn put(live: &Path, bytes: &[u8]) -> Result<String> {
    let sum = crc32fast::hash(bytes);
    // The size comes last; see [`crate::message::Media`].
    let name = format!("{sum:08x}-{}", bytes.len());
    let path = path_of(live, &name);
    match read(&path)? {
        Some(there) if there == bytes => {}
        // It must not be replaced, because checksums are easy to forge.
        Some(there) if crc32fast::hash(&there) == sum && there.len() == bytes.len() => {
            return Err(Error::failed(format!(
                "another file of the conversation has the checksum {sum:08x}"
            )));
        }
        // Replaces a file that a crash or a bad disk has left incomplete.
        _ => storage::replace(&path, bytes, Durability::Now)?,
    }
    Ok(name)
}

/// Reads a file; `None` if it is missing.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match fs_err::File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Whether this line begins a turn; the lines of other messages of the user have a kind.
fn is_question(line: &Line) -> bool {
    line.get("role").and_then(Value::as_str) == Some("user") && !line.contains_key("kind")
}

/// Returns the number of the first line whose media the next turn may show.
fn first_shown(lines: &[Line]) -> usize {
    let (mut at, mut turns) = (lines.len(), 0);
    while at > 0 && turns < SHOWN_TURNS {
        at -= 1;
        if let Some(from) = lines[at].get("undo").and_then(Value::as_u64) {
            // Undone lines show no media.
            at = at.min(usize::try_from(from).unwrap_or(at));
        } else if is_question(&lines[at]) {
            turns += 1;
        }
    }
    at
}

/// Reads the media that the next turn shows into the lines that name it.
pub(super) fn fetch(live: &Path, lines: &mut [Line]) {
    let at = first_shown(lines);
    for line in &mut lines[at..] {
        fetch_line(live, line);
    }
}

/// Removes the media that the next turn does not show.
pub(super) fn remove_old(live: &Path, lines: &[Line]) {
    let (old, shown) = lines.split_at(first_shown(lines));
    remove(live, old.iter().flat_map(names), shown);
}

/// Returns the file names in a log, which it reads one line at a time, because the lines of a large one fill the memory.
pub(super) fn names_in(log: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for item in LogReader::open(log)?.into_iter().flatten() {
        if let LogItem::Line(_, line) = item? {
            found.extend(names(&line).map(str::to_owned));
        }
    }
    Ok(found)
}

/// Removes media, except those that the lines `shown` name. A failure is no error, because no line shows them any more.
pub(super) fn remove<'n>(live: &Path, old: impl Iterator<Item = &'n str>, shown: &[Line]) {
    let shown: Vec<&str> = shown.iter().flat_map(names).collect();
    for name in old.filter(|name| !shown.contains(name)) {
        drop(storage::remove(&path_of(live, name)));
    }
}

fn fetch_line(live: &Path, line: &mut Line) {
    for media in media_mut(line) {
        let Some(file) = media.get("file").and_then(Value::as_str) else {
            continue;
        };
        // An unreadable file is not shown, and the turn continues.
        let Ok(Some(bytes)) = read(&path_of(live, file)) else {
            continue;
        };
        if file.starts_with(&format!("{:08x}-", crc32fast::hash(&bytes))) {
            media.remove("file");
            media.insert("base64".to_owned(), STANDARD.encode(bytes).into());
        }
    }
}
