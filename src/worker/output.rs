//! Output of a command: its beginning and its end.

use crate::text::size;

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
}
