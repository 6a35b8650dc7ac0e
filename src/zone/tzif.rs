//! The files of the zone database, as RFC 8536 has them. Nothing in them is trusted.

use super::rule::Rule;
use super::{FARTHEST, MOST_BYTES, Zone};

/// Reads a file; `None` when it is damaged, or counts leap seconds as no ordinary clock does. The zone has no name yet.
pub fn parse(bytes: &[u8]) -> Option<Zone> {
    if bytes.len() > MOST_BYTES {
        return None;
    }
    let mut left = bytes;
    let header = Header::take(&mut left)?;
    if header.version == 0 {
        return header.table(&mut left, 4);
    }
    // The same once more, with wider numbers, which is the one that counts.
    take(&mut left, header.size(4))?;
    let mut zone = Header::take(&mut left)?.table(&mut left, 8)?;
    let left = left.strip_prefix(b"\n")?;
    let footer = &left[..left.iter().position(|b| *b == b'\n')?];
    if !footer.is_empty() {
        zone.rule = Some(Rule::parse(std::str::from_utf8(footer).ok()?)?);
    }
    Some(zone)
}

/// Section 3.1: how many of what follow.
struct Header {
    version: u8,
    marks: usize,
    leaps: usize,
    changes: usize,
    types: usize,
    letters: usize,
}

impl Header {
    fn take(left: &mut &[u8]) -> Option<Self> {
        let bytes = take(left, 44)?.strip_prefix(b"TZif")?;
        let count = |n: usize| usize::try_from(number(bytes.get(16 + 4 * n..20 + 4 * n)?)).ok();
        // Bounded, so that no sum below overflows: each of them counts at least one byte.
        let counts: Vec<usize> = (0..6).map_while(count).filter(|n| *n <= MOST_BYTES).collect();
        let [universal, standard, leaps, changes, types, letters] = counts[..] else { return None };
        Some(Self { version: bytes[0], marks: universal + standard, leaps, changes, types, letters })
    }

    /// The bytes of a table whose times have `width` bytes (section 3.2).
    fn size(&self, width: usize) -> usize {
        self.changes * (width + 1) + self.types * 6 + self.letters + self.leaps * (width + 4) + self.marks
    }

    fn table(&self, left: &mut &[u8], width: usize) -> Option<Zone> {
        let mut table = take(left, self.size(width))?;
        let times = take(&mut table, self.changes * width)?;
        let indices = take(&mut table, self.changes)?;
        let types = take(&mut table, self.types * 6)?;
        let offsets: Vec<i32> = types.chunks_exact(6).filter_map(|t| i32::try_from(number(&t[..4])).ok()).collect();
        if self.leaps > 0 || offsets.iter().any(|offset| offset.abs() >= FARTHEST) {
            return None;
        }
        let mut changes: Vec<(i64, i32)> = Vec::with_capacity(self.changes);
        for (time, index) in times.chunks_exact(width).zip(indices) {
            let at = number(time);
            if changes.last().is_some_and(|(last, _)| at <= *last) {
                return None;
            }
            changes.push((at, *offsets.get(usize::from(*index))?));
        }
        Some(Zone { name: String::new(), first: *offsets.first()?, changes, rule: None })
    }
}

fn take<'a>(left: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (taken, rest) = left.split_at_checked(n)?;
    *left = rest;
    Some(taken)
}

/// Signed, the most significant byte first.
fn number(bytes: &[u8]) -> i64 {
    let negative = bytes.first().is_some_and(|b| *b >= 0x80);
    bytes.iter().fold(if negative { -1 } else { 0 }, |n, b| n << 8 | i64::from(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zone::Wall;

    /// One table with times of `width` bytes: type 0 is UTC-1, type 1 UTC+2 from 1000 s on.
    fn table(width: usize, version: u8) -> Vec<u8> {
        let mut bytes = [&b"TZif"[..], &[version], &[0; 15]].concat();
        for count in [0_u32, 0, 0, 1, 2, 4] {
            bytes.extend(count.to_be_bytes());
        }
        bytes.extend(&1000_i64.to_be_bytes()[8 - width..]);
        bytes.push(1);
        for offset in [-3600_i32, 7200] {
            bytes.extend(offset.to_be_bytes());
            bytes.extend([0, 0]);
        }
        bytes.extend(b"abc\0");
        bytes
    }

    fn file(footer: &str) -> Vec<u8> {
        [table(4, b'2'), table(8, b'2'), format!("\n{footer}\n").into_bytes()].concat()
    }

    #[test]
    fn a_file_is_read_in_each_version() {
        let offsets = |bytes: &[u8]| {
            let zone = parse(bytes).unwrap();
            [zone.offset_at(i64::MIN), zone.offset_at(999), zone.offset_at(1000), zone.offset_at(1 << 40)]
        };
        assert_eq!(offsets(&table(4, 0)), [-3600, -3600, 7200, 7200]);
        assert_eq!(offsets(&file("")), [-3600, -3600, 7200, 7200]);
        assert_eq!(offsets(&file("XYZ-2")), [-3600, -3600, 7200, 7200]);
        assert_eq!(offsets(&file("XYZ-3")), [-3600, -3600, 10_800, 10_800]);
    }

    #[test]
    fn no_damage_does_more_than_make_it_unreadable() {
        let whole = file("CET-1CEST,M3.5.0,M10.5.0/3");
        for length in 0..whole.len() {
            assert!(parse(&whole[..length]).is_none(), "{length}");
        }
        let mut readable = 0;
        for at in 0..whole.len() {
            for bits in [0x01, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= bits;
                if let Some(zone) = parse(&bytes) {
                    readable += 1;
                    for unix in [0, 1000, 1_700_000_000, 4_000_000_000] {
                        assert!(zone.offset_at(unix).abs() < FARTHEST);
                        assert!(zone.instants(unix) != Wall::Once(unix) || zone.offset_at(unix) == 0);
                    }
                }
            }
        }
        assert!(readable > 0);
        assert!(parse(&vec![0; MOST_BYTES + 1]).is_none());
        assert!(parse(&[&b"TZif2"[..], &[0xff; 200]].concat()).is_none());
    }
}
