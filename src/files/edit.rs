//! Writes, appends to and edits files.

use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

use encoding_rs::UTF_8;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::atomic::{Existing, LockedEntry};
use super::read::too_large;
use super::replace::replaced;
use super::text::{SAMPLE, Style};
use super::{Target, text_reply};
use crate::error::{Context, Error, Result};
use crate::text::size;
use crate::worker::protocol::{Header, Reply};

/// Maximum size of a file to edit, in bytes, because files are edited in memory.
const MAX_EDITED: u64 = 32 << 20;

/// Creates or replaces a file, unless it differs from the file that the user was shown.
pub(super) fn write_file(target: &Target, content: &str, shown: Option<&str>) -> Result<Reply> {
    let entry = LockedEntry::make_and_lock(target)?;
    let before = entry.state();
    if shown.is_some_and(|shown| shown != before) {
        return Err(Error::failed(format!(
            "{} has changed since the user was asked: ask again",
            target.asked.display()
        )));
    }
    let old = entry.open(OFlags::RDWR)?;
    let (mut start, mut bytes) = (Vec::new(), content.as_bytes().to_vec());
    if let Some(old) = &old {
        let loses = content.contains(char::REPLACEMENT_CHARACTER);
        let most = if loses { MAX_EDITED } else { SAMPLE as u64 };
        (&old.file).take(most).read_to_end(&mut start)?;
        if loses && UTF_8.decode(&start).2 {
            return Err(Error::failed(format!(
                "{} has bytes that are no text, which \u{fffd} stands for: they would be lost; change it with edit_file",
                target.asked.display()
            )));
        }
        bytes = Style::detect(&start, &start).whole(content);
    }
    entry.write(old.as_ref(), &bytes)?;
    let done = if old.is_some() { "replaced" } else { "created" };
    let text = format!(
        "{done} {}: {}",
        target.asked.display(),
        size(content.len() as u64)
    );
    Ok(changed(&entry, before, text))
}

/// Reports a change of a file that was in this state.
fn changed(entry: &LockedEntry, before: String, text: String) -> Reply {
    let after = entry.state();
    Reply {
        header: Header::Changed { before, after },
        body: text.into(),
    }
}

/// Restores the content of a file, or its absence, unless its directory has been replaced or the file has changed since.
pub(super) fn put_back(target: &Target, state: &str, content: Option<&[u8]>) -> Result<Reply> {
    let entry = LockedEntry::lock(target)?;
    let now = entry.open(OFlags::RDONLY)?;
    if entry.state() != state {
        return Err(Error::failed("it was changed again"));
    }
    match (content, now) {
        (Some(content), now) => entry.write(now.as_ref(), content)?,
        (None, Some(_)) => entry.remove().map_err(|e| target.error(e))?,
        (None, None) => {}
    }
    Ok(text_reply("done"))
}

/// Appends to a file, or creates it.
pub(super) fn append_file(target: &Target, content: &str) -> Result<Reply> {
    let (entry, name) = (LockedEntry::make_and_lock(target)?, target.asked.display());
    let (before, added) = (entry.state(), size(content.len() as u64));
    let Some(old) = entry.open(OFlags::RDWR | OFlags::APPEND)? else {
        entry.write(None, content.as_bytes())?;
        let text = format!("created {name}: {added}");
        return Ok(changed(&entry, before, text));
    };
    let (mut file, len) = (&old.file, old.len());
    let content = in_style_of(&old, content)?;
    if let Err(e) = file.write_all(&content) {
        // A write to a full disk may have been partial.
        file.set_len(len)
            .doing(format_args!("undoing a partial write to {name}"))?;
        return Err(Error::from(e));
    }
    let text = format!("appended {added} to {name}");
    Ok(changed(&entry, before, text))
}

/// Encodes text to append, with the file's encoding and line ends.
fn in_style_of(old: &Existing, text: &str) -> Result<Vec<u8>> {
    let (file, len) = (old.file.file(), old.len());
    // Both lengths are short.
    let bytes = |len| vec![0; usize::try_from(len).unwrap_or(SAMPLE)];
    let mut mark = bytes(len.min(3));
    file.read_exact_at(&mut mark, 0)?;
    // Starts at an even offset, because UTF-16 units have two bytes.
    let from = len.saturating_sub(SAMPLE as u64) & !1;
    let mut end = bytes(len - from);
    file.read_exact_at(&mut end, from)?;
    Ok(Style::detect(&mark, &end).part(text))
}

pub(super) fn remove_file(target: &Target) -> Result<Reply> {
    let entry = LockedEntry::lock(target)?;
    let before = entry.state();
    entry
        .open(OFlags::RDONLY)?
        .ok_or_else(|| target.error(Errno::NOENT))?;
    entry.remove().map_err(|e| target.error(e))?;
    let text = format!("deleted {}", target.asked.display());
    Ok(changed(&entry, before, text))
}

/// Replaces the first of two texts in a file by the second; with `all`, everywhere.
pub(super) fn edit_file(target: &Target, texts: [&str; 2], all: bool) -> Result<Reply> {
    let (entry, name) = (LockedEntry::lock(target)?, target.asked.display());
    let old = entry
        .open(OFlags::RDWR)?
        .ok_or_else(|| target.error(Errno::NOENT))?;
    if old.len() > MAX_EDITED {
        return Err(too_large(target, old.len(), MAX_EDITED));
    }
    let mut content = Vec::new();
    (&old.file).take(MAX_EDITED).read_to_end(&mut content)?;
    let (content, report) = edited(&content, texts, all).map_err(|e| e.doing(&name))?;
    let before = entry.state();
    entry.write(Some(&old), &content)?;
    let text = format!("edited {name}: {report}");
    Ok(changed(&entry, before, text))
}

/// Returns the content with the text replaced, in its encoding.
fn edited(content: &[u8], [old, new]: [&str; 2], all: bool) -> Result<(Vec<u8>, String)> {
    let (text, encoding, is_damaged) = UTF_8.decode(content);
    if encoding == UTF_8 {
        return replaced(content, old, new, all);
    } else if is_damaged {
        return Err(Error::failed("invalid UTF-16: use exec"));
    }
    let (text, report) = replaced(text.as_bytes(), old, new, all)?;
    let style = Style::detect(content, b"");
    Ok((style.whole(&String::from_utf8_lossy(&text)), report))
}
