//! Unpacks deflate and gzip (RFC 1951, RFC 1952).

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

/// Unpacks raw deflate: as much as there is, up to `max` bytes.
pub(super) fn inflate(mut packed: &[u8], max: usize) -> Vec<u8> {
    let mut state = Box::<DecompressorOxide>::default();
    let (mut unpacked, mut len) = (vec![0; max.min(packed.len() * 4)], 0);
    loop {
        let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        let (status, read, written) = decompress(&mut state, packed, &mut unpacked, len, flags);
        (packed, len) = (&packed[read..], len + written);
        if status != TINFLStatus::HasMoreOutput || unpacked.len() == max {
            unpacked.truncate(len);
            return unpacked;
        }
        unpacked.resize(max.min(unpacked.len() * 2), 0);
    }
}

/// Unpacks gzip likewise; `None` if it is not that. The checksum at its end does not matter to a page.
pub(super) fn gunzip(packed: &[u8], max: usize) -> Option<Vec<u8>> {
    let [0x1f, 0x8b, 8, flags, _, _, _, _, _, _, rest @ ..] = packed else { return None };
    let mut rest = rest;
    if flags & 4 > 0 {
        let [low, high, after @ ..] = rest else { return None };
        rest = after.get(usize::from(u16::from_le_bytes([*low, *high]))..)?;
    }
    // A file's name, a comment.
    for _ in 0..(flags >> 3 & 1) + (flags >> 4 & 1) {
        rest = &rest[rest.iter().position(|byte| *byte == 0)? + 1..];
    }
    rest = if flags & 2 > 0 { rest.get(2..)? } else { rest };
    Some(inflate(rest, max))
}
