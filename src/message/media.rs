//! Images, PDFs and recordings: detects them by their first bytes, and replaces them by text.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::text::{fenced, foreign_name, size};

/// An image, a PDF or a recording, in the format of requests and session lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Media {
    /// IANA media type, such as `image/png`.
    pub mime: String,
    /// Bytes of the file in base64 (RFC 4648, section 4, with padding).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub base64: String,
    /// Name of the file next to the log in which [`crate::FileStore`] stores the bytes, if the line does not contain them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// File name for the model, such as `offer.pdf`; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Text of a PDF, for models that do not support PDFs; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// A kind of media that a model may or may not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediaKind {
    Image,
    Pdf,
    Audio,
}

/// Maximum size of a PDF or a recording, in bytes, because it is in memory and part of every request.
pub(crate) const MAX_FILE: usize = 10 << 20;
/// Maximum size of an image, in bytes, because hosts reject larger ones.
pub(crate) const MAX_IMAGE: usize = 5 << 20;
/// Maximum number of images that the tools of one turn show.
pub(crate) const MAX_IMAGES: usize = 20;
/// Maximum size in base64, in bytes, for each of these: all files of a message, all files that the tools of a turn show, and
/// all files of a conversation.
pub(crate) const MAX_MEDIA: usize = 12 << 20;
/// Maximum length of a file's name for the model, in characters.
const MAX_NAME: usize = 80;
/// Maximum number of pixels of an image, twice as many as the largest cameras have. A header of a few bytes can claim billions.
const MAX_PIXELS: u64 = 100_000_000;

impl Media {
    /// Reads an image, a PDF or a recording from a file, with the file's name.
    ///
    /// # Errors
    /// Returns a `Usage` error if the file cannot be read, and the errors of [`Media::from_bytes`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = fs_err::read(path).map_err(|e| Error::usage(e.to_string()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Self::from_bytes(&name, &bytes)
    }

    /// Detects an image, a PDF or a recording by its content, and gives it this name.
    ///
    /// # Errors
    /// Returns a `Usage` error for other files, and for files larger than 5 MB (images) or 10 MB (others).
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Self> {
        let shown = foreign_name(name, MAX_NAME);
        let Some(media) = Self::detect(bytes) else {
            return Err(Error::usage(format!(
                "{shown} is neither an image, a PDF nor audio in a known format"
            )));
        };
        let limit = match media.kind() {
            MediaKind::Image => MAX_IMAGE,
            MediaKind::Pdf | MediaKind::Audio => MAX_FILE,
        };
        if bytes.len() > limit {
            return Err(Error::usage(format!(
                "{shown} is larger than {} MB",
                limit >> 20
            )));
        }
        Ok(media.named(name))
    }

    /// Sets an untrusted name, which is sanitized.
    pub(crate) fn named(mut self, name: &str) -> Self {
        self.name = foreign_name(name, MAX_NAME);
        self
    }

    /// Returns the line before the file in a request, if the file has a name.
    pub(crate) fn label(&self) -> Option<String> {
        let kind = match self.kind() {
            MediaKind::Image => "image",
            MediaKind::Pdf => "file",
            MediaKind::Audio => "recording",
        };
        (!self.name.is_empty()).then(|| format!("[{kind}: {}]", self.name))
    }

    /// Detects a file by its first bytes. An image needs a complete header of its format, and up to [`MAX_PIXELS`] pixels.
    pub(crate) fn detect(bytes: &[u8]) -> Option<Self> {
        let mime = media_type(bytes)?.to_owned();
        if image_type(bytes).is_some() && !is_shown(bytes) {
            return None;
        }
        Some(Self {
            mime,
            base64: STANDARD.encode(bytes),
            ..Self::default()
        })
    }

    /// Detects an image by its first bytes.
    pub(crate) fn image(bytes: &[u8]) -> Option<Self> {
        image_type(bytes).and_then(|_| Self::detect(bytes))
    }

    pub(crate) fn kind(&self) -> MediaKind {
        match self.mime.split('/').next() {
            Some("audio") => MediaKind::Audio,
            Some("application") => MediaKind::Pdf,
            _ => MediaKind::Image,
        }
    }

    /// Returns the size of the file, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let here = self.base64.trim_end_matches('=').len() as u64 * 3 / 4;
        // The name of a stored file ends with its size.
        let kept = self.file.rsplit('-').next();
        kept.and_then(|len| len.parse().ok()).unwrap_or(here)
    }

    /// Format name for chat APIs; `None` if they do not support it.
    pub(crate) fn audio_format(&self) -> Option<&'static str> {
        match self.mime.as_str() {
            "audio/wav" => Some("wav"),
            "audio/mpeg" => Some("mp3"),
            _ => None,
        }
    }

    /// Returns a replacement: the text of a PDF if known, else a line with the reason.
    pub(crate) fn replacement(&self, why: &str) -> String {
        if !self.text.is_empty() {
            return format!("[the text of a PDF]\n{}", fenced(&self.text));
        }
        let what = match self.kind() {
            MediaKind::Image => "an image",
            MediaKind::Pdf => "a PDF",
            MediaKind::Audio => "a recording",
        };
        let name = if self.name.is_empty() {
            String::new()
        } else {
            format!(" {}", self.name)
        };
        format!(
            "[{what}{name}, {}, {}: {why}]",
            self.mime,
            size(self.bytes())
        )
    }
}

/// Returns the IANA media type of a supported file, by its first bytes.
pub(crate) fn media_type(start: &[u8]) -> Option<&'static str> {
    Some(match start {
        [b'%', b'P', b'D', b'F', b'-', ..] => "application/pdf",
        [b'O', b'g', b'g', b'S', ..] => "audio/ogg",
        [b'f', b'L', b'a', b'C', ..] => "audio/flac",
        [b'R', b'I', b'F', b'F', _, _, _, _, kind @ ..] if kind.starts_with(b"WAVE") => "audio/wav",
        [_, _, _, _, b'f', b't', b'y', b'p', b'M', b'4', b'A', ..] => "audio/mp4",
        [b'I', b'D', b'3', ..] => "audio/mpeg",
        // A frame of MPEG audio, layer III.
        [0xff, second, ..] if second & 0xe6 == 0xe2 => "audio/mpeg",
        _ => image_type(start)?,
    })
}

/// Returns the IANA media type of an image, by its first bytes.
pub(crate) fn image_type(start: &[u8]) -> Option<&'static str> {
    Some(match start {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => "image/png",
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => "image/gif",
        [b'R', b'I', b'F', b'F', _, _, _, _, kind @ ..] if kind.starts_with(b"WEBP") => {
            "image/webp"
        }
        _ => return None,
    })
}

/// Whether these bytes are an image with a plausible size in its header.
pub(crate) fn is_shown(image: &[u8]) -> bool {
    let pixels =
        dimensions(image).map_or(0, |(width, height)| u64::from(width) * u64::from(height));
    (1..=MAX_PIXELS).contains(&pixels)
}

/// Returns the width and height in an image's header.
fn dimensions(image: &[u8]) -> Option<(u32, u32)> {
    match image_type(image)? {
        "image/png" => {
            let header = image.get(8..24)?.strip_prefix(b"\0\0\0\rIHDR")?;
            Some((big_endian(&header[..4]), big_endian(&header[4..])))
        }
        "image/gif" => {
            let screen = image.get(6..10)?;
            Some((little_endian(&screen[..2]), little_endian(&screen[2..])))
        }
        "image/jpeg" => of_jpeg(image),
        _ => of_webp(image),
    }
}

/// Reads the segments up to the start of a frame (ITU T.81, B.2.2).
fn of_jpeg(image: &[u8]) -> Option<(u32, u32)> {
    let mut rest = image.get(2..)?;
    loop {
        let [0xff, marker, after @ ..] = rest else {
            return None;
        };
        match marker {
            // A fill byte.
            0xff => rest = &rest[1..],
            // Segments without a length.
            0x01 | 0xd0..=0xd7 => rest = after,
            // A frame; excludes the tables of Huffman and arithmetic coding, and the extension.
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                let size = after.get(3..7)?;
                return Some((big_endian(&size[2..]), big_endian(&size[..2])));
            }
            // The data starts, or the image ends.
            0xd8..=0xda => return None,
            _ => {
                let len = big_endian(after.get(..2)?) as usize;
                rest = after.get(len.max(2)..)?;
            }
        }
    }
}

/// Reads the first chunk (RFC 9649).
fn of_webp(image: &[u8]) -> Option<(u32, u32)> {
    let (kind, data) = (image.get(12..16)?, image.get(20..)?);
    match kind {
        b"VP8 " => {
            let [_, _, _, 0x9d, 0x01, 0x2a, size @ ..] = data else {
                return None;
            };
            let side = |at: usize| Some(little_endian(size.get(at..at + 2)?) & 0x3fff);
            Some((side(0)?, side(2)?))
        }
        b"VP8L" => {
            let bits = little_endian(data.get(..5)?.strip_prefix(&[0x2f])?);
            Some(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
        }
        b"VP8X" => {
            let size = data.get(4..10)?;
            Some((little_endian(&size[..3]) + 1, little_endian(&size[3..]) + 1))
        }
        _ => None,
    }
}

/// Converts up to four bytes to a number, highest byte first.
fn big_endian(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn little_endian(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_a_header_that_says_how_large_it_is() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x06".as_slice();
        let gif = b"GIF89a\x80\x02\xe0\x01\x80".as_slice();
        let jpeg =
            b"\xff\xd8\xff\xe0\0\x04xx\xff\xff\xc4\0\x03y\xff\xc2\0\x11\x08\x01\xe0\x02\x80\x03"
                .as_slice();
        let lossy = b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a\x80\x02\xe0\x01".as_slice();
        let lossless = b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f\x7f\xc2\x77\x00".as_slice();
        let extended = b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0\x7f\x02\0\xdf\x01\0".as_slice();
        for image in [png, gif, jpeg, lossy, lossless, extended] {
            assert_eq!(dimensions(image), Some((640, 480)), "{image:?}");
            assert!(Media::image(image).is_some());
            for cut in 0..image.len() {
                // A truncated file has a smaller size, another size or none, and must not cause a read beyond its end.
                let _size = dimensions(&image[..cut]);
            }
        }
    }

    #[test]
    fn truncated_image_header_is_not_an_image() {
        let zeros = |start: &[u8]| [start, vec![0; 1000].as_slice()].concat();
        let huge = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\xff\xff\0\0\xff\xff";
        for start in [
            b"\x89PNG\r\n\x1a\n".as_slice(),
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
            b"\xff\xd8\xff",
            b"\xff\xd8\xff\xe0\0\0",
            b"GIF89a",
            b"RIFF\0\0\0\0WEBP",
            b"RIFF\0\0\0\0WEBPVP8 ",
            huge,
        ] {
            assert_eq!(Media::detect(&zeros(start)), None, "{start:?}");
            assert_eq!(Media::detect(start), None, "{start:?}");
        }
        // 16 MB of segments without an end.
        assert_eq!(
            dimensions(&[b"\xff\xd8".as_slice(), &vec![0xff; 16 << 20]].concat()),
            None
        );
        assert_eq!(
            dimensions(&[b"\xff\xd8".as_slice(), &[0xff, 1].repeat(8 << 20)].concat()),
            None
        );
    }
}
