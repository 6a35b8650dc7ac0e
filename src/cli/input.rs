//! Lines typed or pasted at a terminal, which edits them itself.

use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use crate::text::printable;

/// Terminals write a paste in pieces, at most this far apart.
const PASTE_GAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Standard input, line by line.
#[derive(Default)]
pub(super) struct LineReader {
    buffer: Vec<u8>,
    at_end: bool,
}

impl LineReader {
    /// The next line; `None` at the end of input.
    pub(super) fn next(&mut self) -> Option<String> {
        while !self.buffer.contains(&b'\n') && !self.at_end {
            self.fill();
        }
        if let Some(line) = self.peek() {
            self.buffer.drain(..=line.len());
            return Some(text(&line));
        }
        // Ctrl-D behind part of a line hands that part over; alone it is the end.
        let rest = std::mem::take(&mut self.buffer);
        (!rest.is_empty()).then(|| text(&rest))
    }

    /// The next line, if it arrives together with the last one, as in a paste.
    pub(super) fn pasted(&mut self) -> Option<String> {
        let stdin = io::stdin();
        let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
        if !self.buffer.contains(&b'\n') && poll(&mut ready, Some(&PASTE_GAP)) == Ok(1) {
            self.fill();
        }
        self.peek().map(|line| text(&line))
    }

    fn peek(&self) -> Option<Vec<u8>> {
        let end = self.buffer.iter().position(|byte| *byte == b'\n')?;
        Some(self.buffer[..end].to_vec())
    }

    fn fill(&mut self) {
        let mut piece = [0; 4096];
        match retry_on_intr(|| rustix::io::read(io::stdin(), &mut piece)) {
            Ok(n) if n > 0 => self.buffer.extend_from_slice(&piece[..n]),
            _ => self.at_end = true,
        }
    }
}

fn text(line: &[u8]) -> String {
    printable(&String::from_utf8_lossy(line))
}
