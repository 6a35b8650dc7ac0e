//! Encoding, byte order mark and line ends of a text file, which a change preserves.

use crate::error::{Error, Result};

/// Bytes of a file that are inspected to detect its style.
pub(super) const SAMPLE: usize = 64 << 10;

/// Encoding of a file, named by its byte order mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// UTF-8, possibly with invalid bytes.
    Unmarked,
    Utf8,
    Utf16Le,
    Utf16Be,
}

impl Encoding {
    /// Detects the encoding from the first bytes.
    pub(super) fn detect(start: &[u8]) -> Self {
        let marked = [Self::Utf8, Self::Utf16Le, Self::Utf16Be];
        let found = marked.into_iter().find(|one| start.starts_with(one.mark()));
        found.unwrap_or(Self::Unmarked)
    }

    fn mark(self) -> &'static [u8] {
        match self {
            Self::Unmarked => b"",
            Self::Utf8 => b"\xef\xbb\xbf",
            Self::Utf16Le => b"\xff\xfe",
            Self::Utf16Be => b"\xfe\xff",
        }
    }

    pub(super) fn is_utf16(self) -> bool {
        matches!(self, Self::Utf16Le | Self::Utf16Be)
    }

    /// Returns the text without its mark, and the number of invalid bytes, which become U+FFFD.
    pub(super) fn decode(self, content: &[u8]) -> (String, usize) {
        let content = content.strip_prefix(self.mark()).unwrap_or(content);
        if !self.is_utf16() {
            let text = String::from_utf8_lossy(content).into_owned();
            return (text, not_utf8(content));
        }
        let units = content.chunks_exact(2);
        let mut bad = units.remainder().len();
        let units = units.map(|unit| match self {
            Self::Utf16Be => u16::from(unit[0]) << 8 | u16::from(unit[1]),
            _ => u16::from(unit[1]) << 8 | u16::from(unit[0]),
        });
        let mut text = String::new();
        for c in char::decode_utf16(units) {
            text.push(c.unwrap_or_else(|_| {
                bad += 2;
                char::REPLACEMENT_CHARACTER
            }));
        }
        (text, bad)
    }

    /// Returns the text without a mark; fails on invalid bytes.
    pub(super) fn decode_all(self, content: &[u8]) -> Result<String> {
        match self.decode(content) {
            (text, 0) => Ok(text),
            _ => Err(Error::failed("invalid UTF-16: use exec")),
        }
    }

    /// Encodes text without a mark.
    fn encode(self, text: &str) -> Vec<u8> {
        let bytes = |to: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(to).collect();
        match self {
            Self::Unmarked | Self::Utf8 => text.into(),
            Self::Utf16Le => bytes(u16::to_le_bytes),
            Self::Utf16Be => bytes(u16::to_be_bytes),
        }
    }

    /// Encodes a whole file. A mark in the text is not repeated.
    pub(super) fn encode_all(self, text: &str) -> Vec<u8> {
        let text = match self {
            Self::Unmarked => text,
            _ => text.strip_prefix('\u{feff}').unwrap_or(text),
        };
        [self.mark().to_vec(), self.encode(text)].concat()
    }
}

/// Encoding and line ends of a file.
pub(super) struct Style {
    encoding: Encoding,
    /// Whether every line ends in CRLF.
    has_crlf: bool,
}

impl Style {
    /// Detects the style from the first and the last bytes.
    pub(super) fn detect(start: &[u8], end: &[u8]) -> Self {
        let encoding = Encoding::detect(start);
        let (text, _) = encoding.decode(end);
        Self {
            encoding,
            has_crlf: has_only_crlf(text.as_bytes()),
        }
    }

    /// Encodes new content of the whole file.
    pub(super) fn whole(&self, text: &str) -> Vec<u8> {
        self.encoding.encode_all(&self.with_line_ends(text))
    }

    /// Encodes text to append to the file.
    pub(super) fn part(&self, text: &str) -> Vec<u8> {
        self.encoding.encode(&self.with_line_ends(text))
    }

    fn with_line_ends(&self, text: &str) -> String {
        if self.has_crlf {
            with_crlf(text)
        } else {
            text.to_owned()
        }
    }
}

pub(super) fn has_only_crlf(content: &[u8]) -> bool {
    let feeds = content.iter().filter(|b| **b == b'\n').count();
    feeds > 0 && content.windows(2).filter(|pair| pair == b"\r\n").count() == feeds
}

pub(super) fn with_crlf(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\n', "\r\n")
}

/// Returns the number of bytes that are not UTF-8.
fn not_utf8(content: &[u8]) -> usize {
    content
        .utf8_chunks()
        .map(|chunk| chunk.invalid().len())
        .sum()
}
