//! Names of files: how they are shown, and finding a file by the name that was shown.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;

use crate::access::{Dir, Links};

/// Unicode's canonical compositions: on each line a mark in hexadecimal, then letters, each before its composition with the
/// mark. Korean is missing, because its compositions are computed.
const COMPOSED: &str = include_str!("composed.txt");

/// Returns a name or a path on one line. Control characters are escaped, and so are bytes that are not UTF-8: `caf\xe9`.
pub(super) fn shown(name: &[u8]) -> String {
    let mut out = String::new();
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        out.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    out
}

/// Returns a name with one character for each letter and its marks, as systems other than macOS write it (Unicode's form C).
/// The marks must be in Unicode's order, as macOS writes them.
pub(super) fn composed(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        let last = out.chars().next_back();
        match last.and_then(|letter| composition(letter, c)) {
            Some(both) => {
                out.pop();
                out.push(both);
            }
            None => out.push(c),
        }
    }
    out
}

fn composition(letter: char, mark: char) -> Option<char> {
    match (u32::from(letter), u32::from(mark)) {
        (_, ..0x300) => None,
        // A Korean syllable: 19 initial letters, 21 vowels, and 27 final letters or none (Unicode, section 3.12).
        (first @ 0x1100..=0x1112, vowel @ 0x1161..=0x1175) => {
            char::from_u32(0xac00 + ((first - 0x1100) * 21 + vowel - 0x1161) * 28)
        }
        (syllable @ 0xac00..=0xd7a3, last @ 0x11a8..=0x11c2) if (syllable - 0xac00) % 28 == 0 => {
            char::from_u32(syllable + last - 0x11a7)
        }
        (_, mark) => {
            let mark = format!("{mark:04X} ");
            let row = COMPOSED.lines().find_map(|row| row.strip_prefix(&mark))?;
            let mut letters = row.chars();
            letters.by_ref().step_by(2).position(|own| own == letter)?;
            letters.next()
        }
    }
}

/// Returns the path with the names that exist: a missing part becomes the entry that is shown so, or whose letters are the same
/// in another form. Paths of plain ASCII are unchanged.
pub(super) fn existing(dir: &Dir, path: &Path) -> PathBuf {
    let is_plain = |byte: &u8| byte.is_ascii() && *byte != b'\\';
    if path.as_os_str().as_bytes().iter().all(is_plain) {
        return path.to_owned();
    }
    let mut found = PathBuf::new();
    for part in path.components() {
        let name = match part {
            Component::Normal(name) => entry(dir, &found, name),
            _ => None,
        };
        match name {
            Some(name) => found.push(name),
            None => found.push(part),
        }
    }
    found
}

/// Returns the entry of the directory at `parent` that `name` means, if the name itself is missing.
fn entry(dir: &Dir, parent: &Path, name: &OsStr) -> Option<PathBuf> {
    let parent = dir.dir_at(parent, Links::Follow).ok()?;
    let there = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW);
    if !matches!(there, Err(Errno::NOENT)) {
        return None;
    }
    let wanted = composed(&name.to_string_lossy());
    let mut names = parent.names().ok()?.into_iter();
    let is_meant = |name: &OsString| composed(&shown(name.as_bytes())) == wanted;
    names.find(is_meant).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_and_marks_are_composed() {
        for (parts, whole) in [
            ("cafe\u{301}", "caf\u{e9}"),
            ("Vie\u{323}\u{302}t", "Vi\u{1ec7}t"),
            ("\u{438}\u{306}", "\u{439}"),
            ("\u{304b}\u{3099}", "\u{304c}"),
            ("\u{1112}\u{1161}\u{11ab}", "\u{d55c}"),
            ("\u{11131}\u{11127}", "\u{1112e}"),
            ("x\u{301}, \u{e9}", "x\u{301}, \u{e9}"),
            ("plain", "plain"),
        ] {
            assert_eq!(composed(parts), whole);
            assert_eq!(composed(whole), whole);
        }
    }

    #[test]
    fn a_shown_name_is_one_line_of_text() {
        for (name, text) in [
            (&b"a b"[..], "a b"),
            (b"caf\xe9\xff.txt", "caf\\xe9\\xff.txt"),
            (b"a\n\x1b", "a\\n\\u{1b}"),
        ] {
            assert_eq!(shown(name), text);
        }
    }
}
