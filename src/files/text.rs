//! Encoding, byte order mark and line ends of a text file, which a change preserves.

use std::borrow::Cow;

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};

/// Bytes of a file that are inspected to detect its style.
pub(super) const SAMPLE: usize = 64 << 10;

/// Encoding and line ends of a file.
pub(super) struct Style<'a> {
    /// UTF-8 without a mark that says otherwise, possibly with invalid bytes.
    pub(super) encoding: &'static Encoding,
    mark: &'a [u8],
    /// Whether every line ends in CRLF.
    has_crlf: bool,
}

impl<'a> Style<'a> {
    /// Detects the style from the first and the last bytes.
    pub(super) fn detect(start: &'a [u8], end: &[u8]) -> Self {
        let (encoding, len) = Encoding::for_bom(start).unwrap_or((UTF_8, 0));
        let (text, _) = encoding.decode_without_bom_handling(end);
        Self {
            encoding,
            mark: &start[..len],
            has_crlf: has_only_crlf(text.as_bytes()),
        }
    }

    /// Encodes new content of the whole file. A mark in the text is not repeated.
    pub(super) fn whole(&self, text: &str) -> Vec<u8> {
        let bare = text.strip_prefix('\u{feff}').unwrap_or(text);
        let text = if self.mark.is_empty() { text } else { bare };
        [self.mark, &self.part(text)].concat()
    }

    /// Encodes text to append to the file.
    pub(super) fn part(&self, text: &str) -> Vec<u8> {
        let text = with_ends(text, self.has_crlf);
        let bytes = |to: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(to).collect();
        if self.encoding == UTF_16LE {
            bytes(u16::to_le_bytes)
        } else if self.encoding == UTF_16BE {
            bytes(u16::to_be_bytes)
        } else {
            text.as_bytes().to_vec()
        }
    }
}

pub(super) fn has_only_crlf(content: &[u8]) -> bool {
    let feeds = content.iter().filter(|b| **b == b'\n').count();
    feeds > 0 && content.windows(2).filter(|pair| pair == b"\r\n").count() == feeds
}

/// Returns the text with every line ending in CRLF, if `has_crlf`.
pub(super) fn with_ends(text: &str, has_crlf: bool) -> Cow<'_, str> {
    if has_crlf {
        let text = text.replace("\r\n", "\n").replace('\n', "\r\n");
        text.into()
    } else {
        text.into()
    }
}
