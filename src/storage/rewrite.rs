//! A log that is too large to be read, made smaller line by line.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use fs_err::OpenOptions;
use fs_err::os::unix::fs::OpenOptionsExt;

use super::journal::{Fields, decode, encode};
use super::segments::{remove_unfinished, unfinished};
use super::{NewFile, parent, sync_dir};
use crate::error::Result;

/// The most bytes of a line that is looked at: it is in memory several times over.
const MAX_CHANGED: u64 = 17 << 20;

/// Puts the lines that `change` says it has changed in the place of what they were. Everything else stays as it is, damage and
/// a torn tail too, and so do a line too long to be held and a file of which nothing is changed. On disk before this returns; after a crash one of the two
/// files is there, whole. The caller holds the lock that guards the log.
pub(crate) fn rewrite(
    path: &Path,
    mut change: impl FnMut(&mut Fields) -> Result<bool>,
) -> Result<()> {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    let mut file = BufReader::new(file);
    remove_unfinished(path)?;
    let new = unfinished(path);
    let mut to = NewFile::begin(&new)?;
    let mut is_changed = false;
    // Of a line that is too long for that, there are several pieces.
    let mut is_start = true;
    loop {
        let mut bytes = Vec::new();
        let mut piece = file.by_ref().take(MAX_CHANGED);
        let len = piece.read_until(b'\n', &mut bytes)?;
        if len == 0 {
            break;
        }
        let is_whole = bytes.ends_with(b"\n");
        let line = (is_start && is_whole).then(|| decode(&bytes)).flatten();
        is_start = is_whole;
        if let Some(line) = line {
            let seq = line.seq;
            let mut fields = line.into_fields();
            if change(&mut fields)? {
                is_changed = true;
                bytes = encode(&fields, seq);
            }
        }
        to.push(&bytes)?;
    }
    if !is_changed {
        return Ok(());
    }
    to.keep()?;
    fs_err::rename(&new, path)?;
    sync_dir(parent(path))
}
