//! Unpacks a zip file (APPNOTE 6.3) that somebody else made: stored and deflated files, within limits of size, number and path.

use rustix::fs::{AtFlags, Mode, chmodat};

use super::atomic::LockedEntry;
use super::{Trees, text_reply};
use crate::access::Access;
use crate::error::{Error, Result};
use crate::packed::inflate;
use crate::text::{one_line, size};
use crate::worker::protocol::Reply;

/// The limits on what is unpacked: files, bytes of all of them, directories above one of them.
const MAX_FILES: usize = 2_000;
const MAX_BYTES: u64 = 40 << 20;
const MAX_DEPTH: usize = 12;
/// The longest name, in bytes.
const MAX_NAME: usize = 300;
/// The bytes of the end of the central directory without its comment, of an entry there, and of one before its data.
const END: usize = 22;
const CENTRAL: usize = 46;
const LOCAL: usize = 30;
/// How far from its end the end of a central directory may be: its comment has a length of two bytes.
const MAX_COMMENT: usize = 0xffff;
/// The type of a file in Unix's mode, and those that are unpacked: none given, and a regular file.
const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

/// A file of the archive.
struct Entry<'a> {
    name: String,
    is_deflated: bool,
    packed: &'a [u8],
    size: u64,
    crc: u32,
    is_program: bool,
}

/// Unpacks the archive into the workspace, and replies with the number of files.
pub(super) fn unzip(trees: &Trees, archive: &[u8]) -> Result<Reply> {
    let entries = entries(archive)?;
    for entry in &entries {
        let content = entry.content()?;
        let written = LockedEntry::lock(trees.find(&entry.name, Access::Write)?)?;
        written.write(None, &content)?;
        if entry.is_program {
            // Where a sandbox knows no modes, scripts run by the name of their interpreter.
            let mode = Mode::from_raw_mode(0o755);
            chmodat(&written.dir, &written.name, mode, AtFlags::empty()).ok();
        }
    }
    Ok(text_reply(entries.len().to_string()))
}

/// The files that the central directory lists, all of them within the limits.
fn entries(archive: &[u8]) -> Result<Vec<Entry<'_>>> {
    let end = end(archive).ok_or_else(|| broken("it is not a zip file, or its end is missing"))?;
    let count = usize::from(short(archive, end + 10)?);
    let mut at = long(archive, end + 16)? as usize;
    let mut entries = Vec::new();
    let mut bytes = 0;
    for _ in 0..count {
        if archive.get(at..at + 4) != Some(b"PK\x01\x02") {
            return Err(broken("its directory is cut short"));
        }
        let lengths = [28, 30, 32].map(|offset| short(archive, at + offset).map(usize::from));
        let [name, extra, comment] = lengths;
        let (name, rest) = (name?, extra? + comment?);
        let written = archive
            .get(at + CENTRAL..at + CENTRAL + name)
            .ok_or_else(|| broken("its directory is cut short"))?;
        let name = String::from_utf8_lossy(written).into_owned();
        let here = at;
        at += CENTRAL + written.len() + rest;
        if name.ends_with('/') {
            continue;
        }
        let entry = entry(archive, here, name)?;
        bytes += entry.size;
        if entries.len() == MAX_FILES || bytes > MAX_BYTES {
            let most = size(MAX_BYTES);
            return Err(broken(&format!(
                "it holds more than {MAX_FILES} files or {most}"
            )));
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// The entry of the central directory at `at`.
fn entry(archive: &[u8], at: usize, name: String) -> Result<Entry<'_>> {
    let shown = one_line(&name, 80);
    let parts: Vec<&str> = name.split('/').collect();
    let is_plain = |part: &&str| !matches!(*part, "" | "." | "..");
    let is_safe = name.len() <= MAX_NAME
        && parts.len() <= MAX_DEPTH
        && parts.iter().all(is_plain)
        && !name.contains(|c: char| c == '\\' || c.is_control());
    if !is_safe {
        return Err(broken(&format!("{shown} is not a safe path")));
    }
    let mode = long(archive, at + 38)? >> 16;
    if !matches!(mode & TYPE, 0 | REGULAR) {
        return Err(broken(&format!("{shown} is a link or a device")));
    }
    if short(archive, at + 8)? & 1 != 0 {
        return Err(broken(&format!("{shown} is encrypted")));
    }
    let is_deflated = match short(archive, at + 10)? {
        0 => false,
        8 => true,
        method => return Err(broken(&format!("{shown} is packed by method {method}"))),
    };
    let packed_len = long(archive, at + 20)? as usize;
    let local = long(archive, at + 42)? as usize;
    let above = usize::from(short(archive, local + 26)?) + usize::from(short(archive, local + 28)?);
    let start = local + LOCAL + above;
    let packed = archive
        .get(start..start.saturating_add(packed_len))
        .ok_or_else(|| broken(&format!("{shown} is cut short")))?;
    Ok(Entry {
        name,
        is_deflated,
        packed,
        size: long(archive, at + 24)?.into(),
        crc: long(archive, at + 16)?,
        is_program: mode & 0o100 != 0,
    })
}

impl Entry<'_> {
    /// Its bytes, as many as the directory says.
    fn content(&self) -> Result<Vec<u8>> {
        let content = if self.is_deflated {
            let most = usize::try_from(self.size).unwrap_or(0);
            inflate(self.packed, most)
        } else {
            self.packed.to_vec()
        };
        if content.len() as u64 != self.size || crc32fast::hash(&content) != self.crc {
            let name = one_line(&self.name, 80);
            return Err(broken(&format!(
                "{name} does not match its entry in the directory"
            )));
        }
        Ok(content)
    }
}

/// Where the end of the central directory is.
fn end(archive: &[u8]) -> Option<usize> {
    let last = archive.len().checked_sub(END)?;
    let first = last.saturating_sub(MAX_COMMENT);
    (first..=last)
        .rev()
        .find(|at| archive[*at..].starts_with(b"PK\x05\x06"))
}

fn short(archive: &[u8], at: usize) -> Result<u16> {
    let bytes = archive.get(at..at + 2);
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    bytes
        .map(u16::from_le_bytes)
        .ok_or_else(|| broken("it is cut short"))
}

fn long(archive: &[u8], at: usize) -> Result<u32> {
    let bytes = archive.get(at..at + 4);
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    bytes
        .map(u32::from_le_bytes)
        .ok_or_else(|| broken("it is cut short"))
}

fn broken(why: &str) -> Error {
    Error::failed(format!("unpacking the zip file: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive of one stored file.
    fn archive(name: &str, mode: u32, content: &[u8]) -> Vec<u8> {
        let len = u32::try_from(content.len()).unwrap().to_le_bytes();
        let crc = crc32fast::hash(content).to_le_bytes();
        let name_len = u16::try_from(name.len()).unwrap().to_le_bytes();
        let mut local = b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0".to_vec();
        local.extend([crc, len, len].concat());
        local.extend(name_len);
        local.extend([0, 0]);
        local.extend(name.as_bytes());
        local.extend(content);
        let offset = u32::try_from(local.len()).unwrap().to_le_bytes();
        let mut whole = local;
        whole.extend(b"PK\x01\x02\x14\x03\x14\0\0\0\0\0\0\0\0\0");
        whole.extend([crc, len, len].concat());
        whole.extend(name_len);
        whole.extend([0; 8]);
        whole.extend((mode << 16).to_le_bytes());
        whole.extend([0; 4]);
        whole.extend(name.as_bytes());
        whole.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0\0\0\0\0");
        whole.extend(offset);
        whole.extend([0, 0]);
        whole
    }

    #[test]
    fn a_file_is_read_and_what_is_unsafe_is_refused() {
        let good = archive("tea/SKILL.md", 0o100_755, b"hello");
        let found = entries(&good).unwrap();
        assert_eq!(found[0].name, "tea/SKILL.md");
        assert!(found[0].is_program);
        assert_eq!(found[0].content().unwrap(), b"hello");
        let deep = "a/".repeat(20) + "x";
        for (name, mode, says) in [
            ("../x", 0, "not a safe path"),
            ("/etc/x", 0, "not a safe path"),
            ("a/../../x", 0, "not a safe path"),
            ("a\\..\\x", 0, "not a safe path"),
            ("a\0b", 0, "not a safe path"),
            (&deep, 0, "not a safe path"),
            ("link", 0o120_777, "a link or a device"),
            ("pipe", 0o010_644, "a link or a device"),
        ] {
            let e = entries(&archive(name, mode, b"x")).map(drop).unwrap_err();
            assert!(e.message.contains(says), "{name:?}: {e}");
        }
        let mut false_crc = good.clone();
        *false_crc.iter_mut().find(|byte| **byte == b'h').unwrap() = b'j';
        let found = entries(&false_crc).unwrap();
        assert!(found[0].content().is_err());
    }

    #[test]
    fn no_damage_makes_it_panic() {
        let good = archive("tea/SKILL.md", 0o100_644, b"hello");
        for at in 0..good.len() {
            drop(entries(&good[..at]));
            for byte in [0, 1, 0x7f, 0xff] {
                let mut changed = good.clone();
                changed[at] = byte;
                let content = entries(&changed)
                    .map(|found| found.iter().try_for_each(|entry| entry.content().map(drop)));
                drop(content);
            }
        }
    }
}
