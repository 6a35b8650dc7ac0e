//! Output of a command: its beginning, its end, and its last line so far.

use std::time::{Duration, Instant};

use crate::text::size;

/// Maximum length of a running command's last line, in bytes.
pub(crate) const MAX_LINE: usize = 400;
/// Bytes at the end of the output that are searched for the last line.
const MAX_END: usize = 64 << 10;
/// Minimum interval between reports of the last line.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum length of a line that is cut out whole, in bytes; longer ones are cut between words.
const LONG_LINE: usize = 64 << 10;

/// Stores the beginning and the end of the output, and counts the bytes in between.
pub(super) struct OutputBuffer {
    head: Vec<u8>,
    most_head: usize,
    /// Bytes after the head, up to twice the limit before they are trimmed.
    tail: Vec<u8>,
    most_tail: usize,
    dropped: usize,
}

impl OutputBuffer {
    /// Limits the beginning and the end to these sizes, in bytes.
    pub(super) fn new(most_head: usize, most_tail: usize) -> Self {
        Self {
            head: Vec::new(),
            most_head,
            tail: Vec::new(),
            most_tail,
            dropped: 0,
        }
    }

    pub(super) fn push(&mut self, piece: &[u8]) {
        let room = (self.most_head - self.head.len()).min(piece.len());
        self.head.extend_from_slice(&piece[..room]);
        self.tail.extend_from_slice(&piece[room..]);
        // Trims rarely, because the remaining bytes must be moved.
        if self.tail.len() > 2 * self.most_tail {
            self.trim();
        }
    }

    fn trim(&mut self) {
        let old = self.tail.len().saturating_sub(self.most_tail);
        self.tail.drain(..old);
        self.dropped += old;
    }

    /// Returns the output, with a note in place of a middle that is missing. Both sides of it are cut after a line or a word,
    /// because redaction would miss half of a secret.
    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        self.trim();
        if self.dropped > 0 {
            let (head, tail) = (&self.head, &self.tail);
            let near = head.len().saturating_sub(LONG_LINE);
            let line = head[near..].iter().rposition(|b| *b == b'\n');
            let word = || head.iter().rposition(u8::is_ascii_whitespace);
            let end = line.map(|at| near + at).or_else(word).unwrap_or(0);
            let near = tail.len().min(LONG_LINE);
            let line = tail[..near]
                .iter()
                .position(|b| *b == b'\n')
                .map(|at| at + 1)
                .filter(|at| *at < tail.len());
            let word = || tail.iter().position(u8::is_ascii_whitespace);
            let start = line.or_else(word).unwrap_or(tail.len());
            let missing = size((head.len() - end + self.dropped + start) as u64);
            self.head.truncate(end);
            self.tail.drain(..start);
            let note = format!("\n[{missing} of output are missing here]\n");
            self.head.extend_from_slice(note.as_bytes());
        }
        self.head.append(&mut self.tail);
        self.head
    }
}

/// Last line of a running command's output.
pub(super) struct LastLine {
    /// End of the output.
    end: Vec<u8>,
    is_new: bool,
    told: Instant,
}

impl LastLine {
    pub(super) fn new() -> Self {
        Self {
            end: Vec::new(),
            is_new: false,
            told: Instant::now(),
        }
    }

    pub(super) fn push(&mut self, piece: &[u8]) {
        self.is_new |= !piece.is_empty();
        self.end.extend_from_slice(piece);
        let Some(old) = self.end.len().checked_sub(MAX_END) else {
            return;
        };
        // Drops the incomplete first line.
        let line_end = self.end[old..].iter().position(|byte| *byte == b'\n');
        let begin = line_end.map_or(self.end.len(), |at| old + at + 1);
        self.end.drain(..begin);
    }

    /// Returns the last line, if there is new output and the last report is old enough.
    pub(super) fn take(&mut self) -> Option<&[u8]> {
        if !self.is_new || self.told.elapsed() < TELL_INTERVAL {
            return None;
        }
        (self.is_new, self.told) = (false, Instant::now());
        Some(last_line(&self.end)).filter(|line| !line.is_empty())
    }
}

/// Returns the last line that is not blank. Cuts a long line at a space, because redaction would miss half a key.
fn last_line(output: &[u8]) -> &[u8] {
    // A progress bar rewrites its line after `\r`.
    let lines = output.rsplit(|byte| matches!(byte, b'\n' | b'\r'));
    let mut lines = lines.map(<[u8]>::trim_ascii);
    let last = lines.find(|line| !line.is_empty()).unwrap_or_default();
    if last.len() <= MAX_LINE {
        return last;
    }
    let space = last[..MAX_LINE].iter().rposition(u8::is_ascii_whitespace);
    &last[..space.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_middle_is_missing_between_lines_or_words() {
        let kept = |most: usize, pieces: &[&str]| {
            let mut output = OutputBuffer::new(most, most);
            for piece in pieces {
                output.push(piece.as_bytes());
            }
            String::from_utf8(output.into_bytes()).unwrap()
        };
        assert_eq!(kept(3, &["ab", "cde"]), "abcde");
        let lines = kept(
            12,
            &["one\ntwo sk-half", "x".repeat(99).as_str(), "-key at\nlast"],
        );
        assert_eq!(lines, "one\n[119 bytes of output are missing here]\nlast");
        assert_eq!(
            kept(3, &["sk-half-of-a-key"]),
            "\n[16 bytes of output are missing here]\n"
        );
        assert_eq!(
            kept(10, &[&"word ".repeat(20), "the end\n"]),
            "word word\n[90 bytes of output are missing here]\n the end\n"
        );
        let words = "x ".repeat(50_000) + "sk-half-of-a-key" + &" y".repeat(50_000);
        let words = kept(100_005, &[&words]);
        assert!(words.contains("x\n[") && words.contains("]\n y") && !words.contains("half"));
    }

    #[test]
    fn the_last_line_is_the_newest_that_says_something() {
        for (output, line) in [
            (&b"one\ntwo\n\n"[..], &b"two"[..]),
            (b"10 %\r20 %\r", b"20 %"),
            (b"one\n tw", b"tw"),
            (b"\n", b""),
        ] {
            assert_eq!(last_line(output), line);
        }
        let long = [&b"one two "[..], &[b'x'; 5000]].concat();
        assert_eq!(last_line(&long), b"one two");
        assert_eq!(last_line(&long[8..]), b"");
    }

    #[test]
    fn the_last_line_moves_on_however_much_is_printed() {
        let mut last = LastLine::new();
        for number in 0..200_000 {
            last.push(format!("line {number}\n").as_bytes());
            assert!(last.end.len() < MAX_END);
        }
        assert_eq!(last_line(&last.end), b"line 199999");
        last.push(&vec![b'x'; 2 * MAX_END]);
        last.push(b"\nat the end");
        assert_eq!(last_line(&last.end), b"at the end");
    }
}
