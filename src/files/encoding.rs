//! How a text file is written down: which bytes its characters are, told by the byte order mark at its beginning.

use std::io::{self, BufRead, BufReader, Read};

/// The way from characters to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// UTF-8, and whatever else has no mark: its ASCII is right and the rest is shown as far as possible.
    Utf8,
    Utf16Le,
    Utf16Be,
}

const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";

impl Encoding {
    /// What the first bytes of a file say, and how many of them only say that.
    pub fn of(start: &[u8]) -> (Self, usize) {
        match start {
            [0xff, 0xfe, ..] => (Self::Utf16Le, 2),
            [0xfe, 0xff, ..] => (Self::Utf16Be, 2),
            _ if start.starts_with(UTF8_MARK) => (Self::Utf8, UTF8_MARK.len()),
            _ => (Self::Utf8, 0),
        }
    }

    /// Bytes of the smallest step from character to character.
    pub fn unit(self) -> usize {
        if self == Self::Utf8 { 1 } else { 2 }
    }

    pub fn encode(self, text: &str) -> Vec<u8> {
        match self {
            Self::Utf8 => text.as_bytes().to_vec(),
            Self::Utf16Le => text.encode_utf16().flat_map(u16::to_le_bytes).collect(),
            Self::Utf16Be => text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        }
    }

    /// What is not text in this encoding becomes U+FFFD.
    pub fn decode(self, bytes: &[u8]) -> String {
        let units = bytes.chunks_exact(2).map(|pair| self.number([pair[0], pair[1]]));
        match self {
            Self::Utf8 => String::from_utf8_lossy(bytes).into_owned(),
            Self::Utf16Le | Self::Utf16Be => lossy(units),
        }
    }

    fn number(self, pair: [u8; 2]) -> u16 {
        if self == Self::Utf16Be { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) }
    }
}

fn lossy(units: impl Iterator<Item = u16>) -> String {
    char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

/// A file as UTF-8, without the mark. What is not text in its encoding is left as it is: the bytes are for a lossy reader.
pub fn as_utf8<R: Read>(mut file: BufReader<R>) -> io::Result<BufReader<Decoded<R>>> {
    let (encoding, mark) = Encoding::of(file.fill_buf()?);
    file.consume(mark);
    Ok(BufReader::new(Decoded { file, encoding, high: None, ready: Vec::new(), given: 0 }))
}

/// See [`as_utf8`].
pub struct Decoded<R> {
    file: BufReader<R>,
    encoding: Encoding,
    /// The first half of a pair whose second half is still to be read.
    high: Option<u16>,
    ready: Vec<u8>,
    given: usize,
}

impl<R: Read> Decoded<R> {
    /// Makes some UTF-8 ready, none at the end.
    fn decode(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        // An even number, but at the end of the file, where half a unit is nothing.
        self.file.by_ref().take(4096).read_to_end(&mut bytes)?;
        let mut units: Vec<u16> = self.high.take().into_iter().collect();
        units.extend(bytes.chunks_exact(2).map(|pair| self.encoding.number([pair[0], pair[1]])));
        if bytes.len() > 1 && units.last().is_some_and(|last| (0xd800..0xdc00).contains(last)) {
            self.high = units.pop();
        }
        (self.ready, self.given) = (lossy(units.into_iter()).into_bytes(), 0);
        if self.ready.is_empty() && self.high.is_some() { self.decode() } else { Ok(()) }
    }
}

impl<R: Read> Read for Decoded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.encoding == Encoding::Utf8 {
            return self.file.read(buf);
        }
        if self.given == self.ready.len() {
            self.decode()?;
        }
        let n = buf.len().min(self.ready.len() - self.given);
        buf[..n].copy_from_slice(&self.ready[self.given..self.given + n]);
        self.given += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> String {
        let mut text = String::new();
        as_utf8(BufReader::new(bytes)).unwrap().read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_file_is_read_by_its_mark_and_written_the_same_way() {
        let text = "naïve 文 😀 שלום\r\n".repeat(1000);
        for (mark, encoding) in [
            (&b"\xff\xfe"[..], Encoding::Utf16Le),
            (b"\xfe\xff", Encoding::Utf16Be),
            (UTF8_MARK, Encoding::Utf8),
            (b"", Encoding::Utf8),
        ] {
            let bytes = [mark, &encoding.encode(&text)].concat();
            assert_eq!(Encoding::of(&bytes), (encoding, mark.len()));
            assert_eq!(read(&bytes), text);
            assert_eq!(encoding.decode(&bytes[mark.len()..]), text);
        }
    }

    #[test]
    fn half_a_character_is_shown_as_missing() {
        assert_eq!(read(b"\xff\xfea\0\x3d\xd8b\0"), "a\u{fffd}b");
        assert_eq!(read(b"\xff\xfea\0\x3d\xd8"), "a\u{fffd}");
        assert_eq!(read(b"\xff\xfea\0b"), "a");
        assert_eq!(read(b"\xff\xfe"), "");
    }

    #[test]
    fn a_pair_that_two_reads_share_stays_one_character() {
        // The mark, then an odd number of units before each pair, so that some pair straddles every boundary.
        let text = format!("a{}", "😀".repeat(5000));
        assert_eq!(read(&[b"\xfe\xff", &Encoding::Utf16Be.encode(&text)[..]].concat()), text);
    }
}
