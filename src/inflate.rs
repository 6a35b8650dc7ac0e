//! Unpacks deflate and gzip (RFC 1951, RFC 1952).

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

/// Unpacks raw deflate up to `max` bytes; damaged or incomplete input gives the bytes before the damage.
pub(crate) fn inflate(mut packed: &[u8], max: usize) -> Vec<u8> {
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

/// Unpacks gzip like [`inflate`]; `None` for other formats. Ignores the checksum, because part of a page is still useful.
pub(crate) fn gunzip(packed: &[u8], max: usize) -> Option<Vec<u8>> {
    let [0x1f, 0x8b, 8, flags, _, _, _, _, _, _, rest @ ..] = packed else {
        return None;
    };
    let mut rest = rest;
    if flags & 4 > 0 {
        let [low, high, after @ ..] = rest else {
            return None;
        };
        rest = after.get(usize::from(u16::from_le_bytes([*low, *high]))..)?;
    }
    // Skips the optional file name and comment.
    for _ in 0..(flags >> 3 & 1) + (flags >> 4 & 1) {
        rest = &rest[rest.iter().position(|byte| *byte == 0)? + 1..];
    }
    rest = if flags & 2 > 0 { rest.get(2..)? } else { rest };
    Some(inflate(rest, max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_unpacked_as_far_as_it_goes() {
        // Made by Python's gzip, with a file name.
        let packed = b"\x1f\x8b\x08\x08\x00\x00\x00\x00\x02\xffname.txt\x00\xcbH\xcd\xc9\xc9W\xc8@'\xb9\x00\x00\x88Y\x0b\x18\x00\x00\x00";
        assert_eq!(gunzip(packed, 100).unwrap(), b"hello hello hello hello\n");
        assert_eq!(gunzip(packed, 5).unwrap().len(), 5);
        for cut in 0..packed.len() {
            let unpacked = gunzip(&packed[..cut], 100).unwrap_or_default();
            assert!(b"hello hello hello hello\n".starts_with(&unpacked), "{cut}");
        }
        assert_eq!(gunzip(b"hello", 100), None);
    }
}
