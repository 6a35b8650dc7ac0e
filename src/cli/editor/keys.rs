//! Reads keys: what a terminal sends for each, in UTF-8.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::retry_on_intr;

use super::buffer::Motion;
use crate::sys;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Key {
    Text(String),
    Paste(String),
    Enter,
    /// Alt-Enter.
    Newline,
    Tab,
    Go(Motion),
    Delete(Motion),
    Cut(Motion),
    /// Puts back what was cut.
    PutBack,
    Swap,
    /// Ctrl-R.
    Search,
    /// Ctrl-L.
    Clear,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-D.
    End,
    /// Ctrl-Z.
    Suspend,
    /// Esc and Ctrl-G.
    Cancel,
    Unknown,
}

/// What happened first.
pub(super) enum Happened {
    Key(Key),
    /// The terminal has another size.
    Resized,
    /// The terminal is gone.
    Gone,
}

/// The keys typed on standard input.
#[derive(Default)]
pub(super) struct Keys {
    bytes: Vec<u8>,
}

/// How long the rest of a sequence may take to follow its first byte.
const SEQUENCE: Duration = Duration::from_millis(50);
/// A terminal that does not mark pastes writes them in pieces, at most this far apart.
const PASTE_GAP: Duration = Duration::from_millis(20);

impl Keys {
    pub(super) fn next(&mut self, resized: BorrowedFd) -> Happened {
        let mut is_whole = false;
        loop {
            if let Some((key, len)) = parse(&self.bytes, is_whole) {
                self.bytes.drain(..len);
                return Happened::Key(key);
            }
            // What begins a sequence may be a key of its own.
            let wait = (!self.bytes.is_empty() && !is_whole).then_some(SEQUENCE);
            let stdin = io::stdin();
            let watched = [(stdin.as_fd(), PollFlags::IN), (resized, PollFlags::IN)];
            match sys::poll(&watched, wait).as_deref() {
                Ok([true, _]) => is_whole = false,
                Ok([_, true]) => {
                    // It is only a count of signals.
                    rustix::io::read(resized, &mut [0; 8]).ok();
                    return Happened::Resized;
                }
                Ok(_) => {
                    is_whole = true;
                    continue;
                }
                Err(_) => return Happened::Gone,
            }
            if !self.fill() {
                return Happened::Gone;
            }
        }
    }

    /// What follows in the same paste.
    pub(super) fn pasted(&mut self) -> &[u8] {
        let stdin = io::stdin();
        if self.bytes.is_empty() && sys::poll(&[(stdin.as_fd(), PollFlags::IN)], Some(PASTE_GAP)).is_ok_and(|r| r[0]) {
            self.fill();
        }
        &self.bytes
    }

    fn fill(&mut self) -> bool {
        let mut piece = [0; 4096];
        let read = retry_on_intr(|| rustix::io::read(io::stdin(), &mut piece)).unwrap_or(0);
        self.bytes.extend_from_slice(&piece[..read]);
        read > 0
    }
}

const PASTE_END: &[u8] = b"\x1b[201~";

/// The first key in `bytes` and its length. `None` if more bytes are needed; if it `is_whole`, no more come for now.
fn parse(bytes: &[u8], is_whole: bool) -> Option<(Key, usize)> {
    if let Some(pasted) = bytes.strip_prefix(b"\x1b[200~") {
        let len = pasted.windows(PASTE_END.len()).position(|piece| piece == PASTE_END)?;
        let text = String::from_utf8_lossy(&pasted[..len]).replace("\r\n", "\n").replace('\r', "\n");
        return Some((Key::Paste(text), 2 * PASTE_END.len() + len));
    }
    match *bytes {
        [] => None,
        [0x1b, b'[', ..] => sequence(bytes).or(is_whole.then_some((Key::Unknown, bytes.len()))),
        [0x1b, b'O', last, ..] => Some((named(last, false), 3)),
        [0x1b, key, ..] if key != b'O' && key != 0x1b => Some((with_alt(key), 2)),
        [0x1b, ..] => (is_whole || bytes.get(1) == Some(&0x1b)).then_some((Key::Cancel, 1)),
        [control, ..] if control < b' ' || control == 0x7f => Some((with_ctrl(control), 1)),
        _ => text(bytes, is_whole),
    }
}

fn text(bytes: &[u8], is_whole: bool) -> Option<(Key, usize)> {
    let run = bytes.iter().position(|b| *b < b' ' || *b == 0x7f).unwrap_or(bytes.len());
    match std::str::from_utf8(&bytes[..run]) {
        Ok(text) => Some((Key::Text(text.to_owned()), run)),
        Err(e) if e.valid_up_to() > 0 => text(&bytes[..e.valid_up_to()], true),
        Err(e) if e.error_len().is_none() && run == bytes.len() && !is_whole => None,
        Err(e) => Some((Key::Unknown, e.error_len().unwrap_or(run))),
    }
}

fn with_ctrl(byte: u8) -> Key {
    match byte {
        b'\r' | b'\n' => Key::Enter,
        b'\t' => Key::Tab,
        0x7f | 0x08 => Key::Delete(Motion::Left),
        _ => match byte | 0x60 {
            b'a' => Key::Go(Motion::LineStart),
            b'b' => Key::Go(Motion::Left),
            b'c' => Key::Interrupt,
            b'd' => Key::End,
            b'e' => Key::Go(Motion::LineEnd),
            b'f' => Key::Go(Motion::Right),
            b'g' => Key::Cancel,
            b'k' => Key::Cut(Motion::LineEnd),
            b'l' => Key::Clear,
            b'n' => Key::Go(Motion::Down),
            b'p' => Key::Go(Motion::Up),
            b'r' => Key::Search,
            b't' => Key::Swap,
            b'u' => Key::Cut(Motion::LineStart),
            b'w' => Key::Cut(Motion::WordLeft),
            b'y' => Key::PutBack,
            b'z' => Key::Suspend,
            _ => Key::Unknown,
        },
    }
}

fn with_alt(byte: u8) -> Key {
    match byte {
        b'\r' | b'\n' => Key::Newline,
        0x7f | 0x08 => Key::Cut(Motion::WordLeft),
        b'b' => Key::Go(Motion::WordLeft),
        b'f' => Key::Go(Motion::WordRight),
        b'd' => Key::Cut(Motion::WordRight),
        _ => Key::Unknown,
    }
}

/// `ESC [`, parameters, and a last byte.
fn sequence(bytes: &[u8]) -> Option<(Key, usize)> {
    let end = 2 + bytes[2..].iter().position(|b| (0x40..=0x7e).contains(b))?;
    let parameters: Vec<&[u8]> = bytes[2..end].split(|b| *b == b';').collect();
    // 2 is Shift, 3 Alt, 5 Ctrl.
    let is_word = matches!(parameters.get(1), Some([b'3'..=b'8']));
    let key = match (bytes[end], parameters[..].first().copied().unwrap_or_default()) {
        (b'~', b"1" | b"7") => Key::Go(Motion::LineStart),
        (b'~', b"4" | b"8") => Key::Go(Motion::LineEnd),
        (b'~', b"3") => Key::Delete(Motion::Right),
        // Shift-Enter and the like, as some terminals send it.
        (b'~', b"27") if parameters.get(2) == Some(&&b"13"[..]) => Key::Newline,
        (b'u', b"13") => Key::Newline,
        (last, _) => named(last, is_word),
    };
    Some((key, end + 1))
}

fn named(last: u8, is_word: bool) -> Key {
    match (last, is_word) {
        (b'A', _) => Key::Go(Motion::Up),
        (b'B', _) => Key::Go(Motion::Down),
        (b'C', false) => Key::Go(Motion::Right),
        (b'C', true) => Key::Go(Motion::WordRight),
        (b'D', false) => Key::Go(Motion::Left),
        (b'D', true) => Key::Go(Motion::WordLeft),
        (b'F', _) => Key::Go(Motion::LineEnd),
        (b'H', _) => Key::Go(Motion::LineStart),
        (b'M', _) => Key::Enter,
        _ => Key::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        while !bytes.is_empty() {
            let (key, len) = parse(bytes, true).unwrap();
            keys.push(key);
            bytes = &bytes[len..];
        }
        keys
    }

    #[test]
    fn bytes_become_keys() {
        let typed = |text: &str| Key::Text(text.to_owned());
        for (bytes, keys) in [
            (&b"abc\r"[..], vec![typed("abc"), Key::Enter]),
            ("世界".as_bytes(), vec![typed("世界")]),
            (b"\x1b[A\x1bOB\x1b[C", vec![Key::Go(Motion::Up), Key::Go(Motion::Down), Key::Go(Motion::Right)]),
            (
                b"\x1b[1;5D\x1bf\x17",
                vec![Key::Go(Motion::WordLeft), Key::Go(Motion::WordRight), Key::Cut(Motion::WordLeft)],
            ),
            (
                b"\x1b[1~\x1b[4~\x1b[3~",
                vec![Key::Go(Motion::LineStart), Key::Go(Motion::LineEnd), Key::Delete(Motion::Right)],
            ),
            (b"\x1b\r\x1b[13;2u\x1b[27;2;13~", vec![Key::Newline, Key::Newline, Key::Newline]),
            (b"\x1b[200~a\r\nb\rc\n\x1b[201~x", vec![Key::Paste("a\nb\nc\n".to_owned()), typed("x")]),
            (b"\x1b", vec![Key::Cancel]),
            (b"\x1b\x1b[A", vec![Key::Cancel, Key::Go(Motion::Up)]),
            (b"a\xff\xffb", vec![typed("a"), Key::Unknown, Key::Unknown, typed("b")]),
            (b"\x1b[?1;2c\0x", vec![Key::Unknown, Key::Unknown, typed("x")]),
        ] {
            assert_eq!(all(bytes), keys, "{:?}", bytes.escape_ascii().to_string());
        }
    }

    #[test]
    fn what_is_not_whole_yet_waits_for_the_rest() {
        let all = "é世\x1b[200~pasted\x1b[201~\x1b[1;5C".as_bytes();
        for cut in 0..all.len() {
            let (mut bytes, mut keys) = (Vec::new(), Vec::new());
            for piece in [&all[..cut], &all[cut..]] {
                bytes.extend_from_slice(piece);
                while let Some((key, len)) = parse(&bytes, false) {
                    bytes.drain(..len);
                    keys.push(key);
                }
            }
            let text: String = keys.iter().map(|key| if let Key::Text(text) = key { text } else { "" }).collect();
            assert_eq!(text, "é世", "cut at {cut}");
            let rest = [Key::Paste("pasted".to_owned()), Key::Go(Motion::WordRight)];
            assert!(keys.ends_with(&rest), "cut at {cut}: {keys:?}");
        }
        assert_eq!(parse(b"\x1b[200~slow", true), None);
        assert_eq!(parse(b"\xe4\xb8", false), None);
    }
}
