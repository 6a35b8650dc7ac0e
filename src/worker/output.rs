//! Output of a command: its beginning, its end, and its last line so far.

use std::time::{Duration, Instant};

/// Maximum length of a running command's last line, in bytes.
pub(crate) const MAX_LINE: usize = 400;
/// Bytes at the end of the output that are searched for the last line.
const MAX_END: usize = 64 << 10;
/// Minimum interval between reports of the last line.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// Gap in the output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Position in the output. Both sides may end within a word.
    pub at: usize,
    pub bytes: u64,
}

/// Stores the beginning and the end of the output, and counts the bytes in between.
pub(super) struct OutputBuffer {
    head: Vec<u8>,
    most_head: usize,
    /// Bytes after the head, up to twice the limit before they are trimmed.
    tail: Vec<u8>,
    most_tail: usize,
    dropped: u64,
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
        self.dropped += old as u64;
    }

    /// Returns the beginning and the end, and the gap between them.
    pub(super) fn into_parts(mut self) -> (Vec<u8>, Option<Dropped>) {
        self.trim();
        let dropped = Dropped {
            at: self.head.len(),
            bytes: self.dropped,
        };
        self.head.append(&mut self.tail);
        (self.head, Some(dropped).filter(|dropped| dropped.bytes > 0))
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
    fn output_keeps_both_ends_and_counts_rest() {
        let kept = |pieces: &[&[u8]]| {
            let mut output = OutputBuffer::new(3, 2);
            for piece in pieces {
                output.push(piece);
            }
            output.into_parts()
        };
        assert_eq!(kept(&[b"ab"]), (b"ab".to_vec(), None));
        assert_eq!(kept(&[b"ab", b"cde"]), (b"abcde".to_vec(), None));
        let dropped = Some(Dropped { at: 3, bytes: 5 });
        assert_eq!(kept(&[b"abcdefg", b"hij"]), (b"abcij".to_vec(), dropped));
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
