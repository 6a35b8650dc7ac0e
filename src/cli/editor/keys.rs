//! Reads keys: what a terminal sends for each, in UTF-8.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::retry_on_intr;

use super::buffer::Motion;
use crate::sys;

#[derive(Clone, Debug, PartialEq, Eq)]
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
            let mut piece = [0; 4096];
            match retry_on_intr(|| rustix::io::read(io::stdin(), &mut piece)) {
                Ok(read) if read > 0 => self.bytes.extend_from_slice(&piece[..read]),
                _ => return Happened::Gone,
            }
        }
    }
}

const PASTE_END: &[u8] = b"\x1b[201~";

/// What terminals send for each key; a row for several of a kind.
const KEYS: &[(&[&str], Key)] = {
    use Motion::{Down, Left, LineEnd, LineStart, Right, Up, WordLeft, WordRight};
    &[
        (&["\r", "\n", "\x1bOM"], Key::Enter),
        // The last two are Shift-Enter or the like of some terminals.
        (
            &[
                "\x1b\r",
                "\x1b\n",
                "\x1b[27;2;13~",
                "\x1b[27;3;13~",
                "\x1b[13;2u",
                "\x1b[13;3u",
            ],
            Key::Newline,
        ),
        (&["\t"], Key::Tab),
        (&["\x02", "\x1b[D", "\x1bOD"], Key::Go(Left)),
        (&["\x06", "\x1b[C", "\x1bOC"], Key::Go(Right)),
        (&["\x10", "\x1b[A", "\x1bOA"], Key::Go(Up)),
        (&["\x0e", "\x1b[B", "\x1bOB"], Key::Go(Down)),
        (&["\x1bb", "\x1b[1;3D", "\x1b[1;5D"], Key::Go(WordLeft)),
        (&["\x1bf", "\x1b[1;3C", "\x1b[1;5C"], Key::Go(WordRight)),
        (
            &["\x01", "\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"],
            Key::Go(LineStart),
        ),
        (
            &["\x05", "\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"],
            Key::Go(LineEnd),
        ),
        (&["\x7f", "\x08"], Key::Delete(Left)),
        (&["\x1b[3~"], Key::Delete(Right)),
        (&["\x17", "\x1b\x7f", "\x1b\x08"], Key::Cut(WordLeft)),
        (&["\x1bd"], Key::Cut(WordRight)),
        (&["\x15"], Key::Cut(LineStart)),
        (&["\x0b"], Key::Cut(LineEnd)),
        (&["\x19"], Key::PutBack),
        (&["\x12"], Key::Search),
        (&["\x0c"], Key::Clear),
        (&["\x03"], Key::Interrupt),
        (&["\x04"], Key::End),
        (&["\x1a"], Key::Suspend),
        (&["\x07"], Key::Cancel),
    ]
};

/// The first key in `bytes` and its length. `None` if more bytes are needed; if it `is_whole`, no more come for now.
fn parse(bytes: &[u8], is_whole: bool) -> Option<(Key, usize)> {
    if let Some(pasted) = bytes.strip_prefix(b"\x1b[200~") {
        let len = pasted
            .windows(PASTE_END.len())
            .position(|piece| piece == PASTE_END)?;
        let text = String::from_utf8_lossy(&pasted[..len])
            .replace("\r\n", "\n")
            .replace('\r', "\n");
        return Some((Key::Paste(text), 2 * PASTE_END.len() + len));
    }
    let len = match *bytes {
        [] => return None,
        // Parameters, and a last byte.
        [0x1b, b'[', ref rest @ ..] => match rest.iter().position(|b| (0x40..=0x7e).contains(b)) {
            Some(last) => last + 3,
            None if is_whole => bytes.len(),
            None => return None,
        },
        [0x1b, b'O', _, ..] => 3,
        [0x1b, 0x1b, ..] => return Some((Key::Cancel, 1)),
        [0x1b, key, ..] if key != b'O' => 2,
        [0x1b, ..] => return is_whole.then_some((Key::Cancel, 1)),
        [control, ..] if control < b' ' || control == 0x7f => 1,
        _ => return text(bytes, is_whole),
    };
    let is = |sent: &&str| sent.as_bytes() == &bytes[..len];
    let key = KEYS.iter().find(|(sent, _)| sent.iter().any(is));
    Some((key.map_or(Key::Unknown, |(_, key)| key.clone()), len))
}

fn text(bytes: &[u8], is_whole: bool) -> Option<(Key, usize)> {
    let run = bytes
        .iter()
        .position(|b| *b < b' ' || *b == 0x7f)
        .unwrap_or(bytes.len());
    match std::str::from_utf8(&bytes[..run]) {
        Ok(text) => Some((Key::Text(text.to_owned()), run)),
        Err(e) if e.valid_up_to() > 0 => text(&bytes[..e.valid_up_to()], true),
        Err(e) if e.error_len().is_none() && run == bytes.len() && !is_whole => None,
        Err(e) => Some((Key::Unknown, e.error_len().unwrap_or(run))),
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
            (
                b"\x1b[A\x1bOB\x1b[C",
                vec![
                    Key::Go(Motion::Up),
                    Key::Go(Motion::Down),
                    Key::Go(Motion::Right),
                ],
            ),
            (
                b"\x1b[1;5D\x1bf\x17",
                vec![
                    Key::Go(Motion::WordLeft),
                    Key::Go(Motion::WordRight),
                    Key::Cut(Motion::WordLeft),
                ],
            ),
            (
                b"\x1b[1~\x1b[4~\x1b[3~",
                vec![
                    Key::Go(Motion::LineStart),
                    Key::Go(Motion::LineEnd),
                    Key::Delete(Motion::Right),
                ],
            ),
            (
                b"\x1b\r\x1b[13;2u\x1b[27;2;13~",
                vec![Key::Newline, Key::Newline, Key::Newline],
            ),
            (
                b"\x1b[200~a\r\nb\rc\n\x1b[201~x",
                vec![Key::Paste("a\nb\nc\n".to_owned()), typed("x")],
            ),
            (b"\x1b", vec![Key::Cancel]),
            (b"\x1b\x1b[A", vec![Key::Cancel, Key::Go(Motion::Up)]),
            (
                b"a\xff\xffb",
                vec![typed("a"), Key::Unknown, Key::Unknown, typed("b")],
            ),
            (
                b"\x1b[?1;2c\0x",
                vec![Key::Unknown, Key::Unknown, typed("x")],
            ),
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
            let text: String = keys
                .iter()
                .map(|key| if let Key::Text(text) = key { text } else { "" })
                .collect();
            assert_eq!(text, "é世", "cut at {cut}");
            let rest = [Key::Paste("pasted".to_owned()), Key::Go(Motion::WordRight)];
            assert!(keys.ends_with(&rest), "cut at {cut}: {keys:?}");
        }
        assert_eq!(parse(b"\x1b[200~slow", true), None);
        assert_eq!(parse(b"\xe4\xb8", false), None);
    }
}
