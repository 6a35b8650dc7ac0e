//! Reads the agent's notes for a search: files `KEY.md` in their own directory.

use std::cmp::Reverse;
use std::io::{BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use serde_json::json;

use super::lines::skip_bom;
use super::names::shown;
use super::text_reply;
use crate::access::{self, Dir, Links};
use crate::error::Result;
use crate::text::clip;
use crate::worker::protocol::{MAX_BODY, Reply};

/// Part of `MEMORY.md` that is included in every prompt, in bytes.
pub(crate) const SHOWN_OF_MEMORY: usize = 8 << 10;

/// Maximum size read of a note, and of all notes, in bytes.
const MAX_NOTE: u64 = 64 << 10;
const MAX_READ: usize = 8 << 20;
/// Size from which a passage ends with its paragraph, and maximum size of a passage, in bytes.
const MIN_PASSAGE: usize = 300;
const MAX_PASSAGE: usize = 1_200;

/// The key of a note, when it was changed, and its beginning.
type Note = (String, Option<SystemTime>, String);

/// Returns the notes in passages, the newest note first, as many as fit into a reply.
pub(super) fn passages(dir: &Dir) -> Result<Reply> {
    let mut notes = read_notes(dir)?;
    notes.sort_by_key(|(_, modified, _)| Reverse(*modified));
    let mut out = String::new();
    for (key, _, text) in &notes {
        for (line, text) in split(text) {
            let entry = json!([key, line + 1, text]).to_string();
            if out.len() + entry.len() >= MAX_BODY {
                return Ok(text_reply(out));
            }
            out.push_str(&entry);
            out.push('\n');
        }
    }
    Ok(text_reply(out))
}

/// Reads the notes, newest date first. Skips directories, links and pipes.
fn read_notes(dir: &Dir) -> Result<Vec<Note>> {
    let here = Path::new(".");
    let dir = dir
        .dir_at(here, Links::Refuse)
        .map_err(|e| access::explain(e, here))?;
    let (mut notes, mut bytes) = (Vec::new(), 0);
    for name in dir.names()?.iter().rev() {
        let key = name.as_bytes().strip_suffix(b".md");
        let Some(key) = key.filter(|key| !key.starts_with(b".")) else {
            continue;
        };
        let path = Path::new(name);
        let Ok(file) = dir.read(path, path, Links::Refuse) else {
            continue;
        };
        let modified = file.metadata()?.modified().ok();
        let (mut file, mut start) = (BufReader::new(file), Vec::new());
        skip_bom(&mut file)?;
        bytes += file.take(MAX_NOTE).read_to_end(&mut start)?;
        let text = String::from_utf8_lossy(&start).into_owned();
        notes.push((shown(key), modified, text));
        if bytes >= MAX_READ {
            break;
        }
    }
    Ok(notes)
}

/// Splits a note into passages, if possible between paragraphs. Each has the number of its first line, from 0.
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
        match passages.last_mut() {
            Some((_, passage)) if is_open => passage.extend(["\n", line]),
            _ => passages.push((n, line.to_owned())),
        }
        is_open = true;
    }
    passages
}
