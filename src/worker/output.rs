//! What a command prints: its beginning, its end, and its last line so far.

use std::time::{Duration, Instant};

/// Bytes of a line that a running command has printed.
pub(crate) const MAX_LINE: usize = 400;
/// How much of the end of the output is searched for the last line.
const MAX_END: usize = 64 << 10;
/// How often the last line is told.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// What is missing of a command's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Where in the output it was: both sides may end in the middle of a word.
    pub at: usize,
    pub bytes: u64,
}

/// Keeps the beginning and the end of the output, and counts what was between.
pub(super) struct OutputBuffer {
    head: Vec<u8>,
    most_head: usize,
    /// What came after the head: its end, and up to as much again before that.
    tail: Vec<u8>,
    most_tail: usize,
    dropped: u64,
}

impl OutputBuffer {
    /// Keeps so many bytes of the beginning and of the end.
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
        // Not for each piece: the rest moves.
        if self.tail.len() > 2 * self.most_tail {
            self.trim();
        }
    }

    fn trim(&mut self) {
        let old = self.tail.len().saturating_sub(self.most_tail);
        self.tail.drain(..old);
        self.dropped += old as u64;
    }

    /// The beginning and the end, and what was between.
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

/// The last line of an output that goes on.
pub(super) struct LastLine {
    /// The end of the output.
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
        // From the beginning of a line on.
        let line_end = self.end[old..].iter().position(|byte| *byte == b'\n');
        let begin = line_end.map_or(self.end.len(), |at| old + at + 1);
        self.end.drain(..begin);
    }

    /// The last line, if something was printed and some time has passed since it was asked for.
    pub(super) fn take(&mut self) -> Option<&[u8]> {
        if !self.is_new || self.told.elapsed() < TELL_INTERVAL {
            return None;
        }
        (self.is_new, self.told) = (false, Instant::now());
        Some(last_line(&self.end)).filter(|line| !line.is_empty())
    }
}

/// The last line that says something. Of a long one its beginning, up to a space: half a key would not be known as one.
fn last_line(output: &[u8]) -> &[u8] {
    // A progress bar begins its line again.
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
    fn the_beginning_and_the_end_are_kept_and_the_rest_is_counted() {
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
