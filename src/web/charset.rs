//! The character encodings of pages (WHATWG Encoding Standard).

use crate::packed::inflate;

/// Windows-1252 from 0x80 to 0x9f; the rest of it is Latin-1. It is what browsers take for Latin-1 and ASCII, too
/// (WHATWG Encoding Standard, index windows-1252).
const WINDOWS_1252: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}',
    '\u{90}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];
/// Browsers look for a page's own word on its encoding this far.
const PRESCAN: usize = 1024;
/// The encodings in the order of the table, each with its labels in lower case and without `-`, `_` and `:`.
const ENCODINGS: [&str; 23] = [
    "iso88592 latin2 l2",
    "iso88595 cyrillic",
    "iso88596 arabic asmo708",
    "iso88597 greek greek8",
    "iso88598 iso88598i hebrew visual logical",
    "iso885915 latin9 l9",
    "koi8r koi8 koi",
    "koi8u koi8ru",
    "ibm866 cp866 866",
    "macintosh xmacroman mac",
    "windows874 iso885911 tis620 dos874",
    "windows1250 cp1250 xcp1250",
    "windows1251 cp1251 xcp1251",
    "windows1253 cp1253 xcp1253",
    "windows1254 cp1254 xcp1254 iso88599 latin5 l5",
    "windows1255 cp1255 xcp1255",
    "windows1256 cp1256 xcp1256",
    "windows1257 cp1257 xcp1257",
    "windows1258 cp1258 xcp1258",
    "gbk gb2312 gb18030 xgbk cp936 gb231280 chinese",
    "big5 big5hkscs cnbig5 xxbig5 cp950",
    "shiftjis sjis xsjis windows31j ms932 mskanji cp932",
    "euckr ksc56011987 ksc5601 ksx1001 windows949 cp949 korean",
];
/// The first of the encodings that take one or two bytes a character.
const GBK: usize = 19;
/// The second bytes of two: 0x40 to 0xfe without 0x7f.
const TRAILS: usize = 190;
/// 16-bit code points, 0 for none: for each encoding its bytes from 0x80, and from [`GBK`] on rows of second bytes for the
/// first bytes from 0x81 to 0xfe. Packed by `tests/charsets.py`, which says how.
const PACKED: &[u8] = include_bytes!("charset/tables.bin");
const TABLE_BYTES: usize = 1 << 20;

pub(super) fn is_utf_16(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff")
}

/// Decodes a page by its byte order mark, else by its `content-type`, else by what it says itself, else as UTF-8 if it
/// is valid and as Windows-1252 if it is not.
///
/// # Errors
/// The name of an encoding that is not known, and the page read as UTF-8.
pub(super) fn decode(
    bytes: &[u8],
    content_type: &str,
    is_html: bool,
) -> Result<String, (String, String)> {
    let utf_16 = |bytes: &[u8], to_unit: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes
            .chunks_exact(2)
            .map(|pair| to_unit([pair[0], pair[1]]))
            .collect();
        String::from_utf16_lossy(&units)
    };
    if let Some(rest) = bytes.strip_prefix(b"\xef\xbb\xbf") {
        return Ok(String::from_utf8_lossy(rest).into_owned());
    }
    if is_utf_16(bytes) {
        let to_unit = if bytes[0] == 0xff {
            u16::from_le_bytes
        } else {
            u16::from_be_bytes
        };
        return Ok(utf_16(&bytes[2..], to_unit));
    }
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(PRESCAN)]);
    let from_header = named(content_type);
    let name = from_header
        .clone()
        .or_else(|| named(&start).filter(|_| is_html))
        .unwrap_or_default();
    let label = name.replace(['-', '_', ':'], "");
    Ok(match label.as_str() {
        // A page that says so in its own words is not: they could be read.
        "utf16" | "utf16le" if from_header.is_some() => utf_16(bytes, u16::from_le_bytes),
        "utf16be" if from_header.is_some() => utf_16(bytes, u16::from_be_bytes),
        "iso88591" | "latin1" | "l1" | "windows1252" | "cp1252" | "xcp1252" | "usascii"
        | "ascii" => windows_1252(bytes),
        "" if std::str::from_utf8(bytes).is_err() => windows_1252(bytes),
        "" | "utf8" | "unicode11utf8" | "utf16" | "utf16le" | "utf16be" => {
            String::from_utf8_lossy(bytes).into_owned()
        }
        label => match ENCODINGS
            .iter()
            .position(|labels| labels.split(' ').any(|known| known == label))
        {
            Some(place) => from_table(bytes, place),
            None => return Err((name, String::from_utf8_lossy(bytes).into_owned())),
        },
    })
}

fn from_table(bytes: &[u8], place: usize) -> String {
    let table = table();
    let (singles, doubles) = (place.min(GBK), place.saturating_sub(GBK));
    let (alone, pairs) = table[singles * 128 + doubles * (128 + 126 * TRAILS)..].split_at(128);
    let pairs = if place < GBK {
        &[]
    } else {
        &pairs[..126 * TRAILS]
    };
    let (mut text, mut rest) = (String::with_capacity(bytes.len()), bytes);
    while let Some((&first, after)) = rest.split_first() {
        let second = after.first().copied().unwrap_or_default();
        let (code, len) = match first {
            0..0x80 => (first.into(), 1),
            _ if pairs.is_empty() || alone[usize::from(first - 0x80)] > 0 => {
                (alone[usize::from(first - 0x80)], 1)
            }
            // Four bytes of GB 18030 are a rare character.
            _ if place == GBK && second.is_ascii_digit() => (0, 4),
            _ => {
                let row = usize::from(first.wrapping_sub(0x81)) * TRAILS;
                let column = second
                    .checked_sub(0x40)
                    .map(|at| usize::from(at - u8::from(second > 0x7f)));
                let code = column
                    .filter(|at| *at < TRAILS && second != 0x7f)
                    .and_then(|at| pairs.get(row + at));
                // What is no second byte may begin something else.
                let len = if code.is_some_and(|code| *code > 0) || second >= 0x80 {
                    2
                } else {
                    1
                };
                (code.copied().unwrap_or_default(), len)
            }
        };
        text.push(
            char::from_u32(code.into())
                .filter(|c| *c != '\0' || first == 0)
                .unwrap_or(char::REPLACEMENT_CHARACTER),
        );
        rest = rest.get(len..).unwrap_or_default();
    }
    text
}

/// Unpacks the table.
fn table() -> Vec<u16> {
    let packed = inflate(PACKED, TABLE_BYTES);
    let (high, low) = packed.split_at(packed.len() / 2);
    let deltas = high
        .iter()
        .zip(low)
        .map(|(high, low)| u16::from_be_bytes([*high, *low]));
    let add = |code: &mut u16, delta| {
        *code = code.wrapping_add(delta);
        Some(*code)
    };
    deltas.scan(0, add).collect()
}

/// The value behind `charset=`, in a header or in a page, in lower case.
fn named(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let (_, rest) = text.split_once("charset")?;
    let rest = rest
        .trim_start()
        .strip_prefix('=')?
        .trim_start()
        .trim_start_matches(['"', '\'']);
    Some(
        rest.chars()
            .take_while(|c| c.is_ascii_alphanumeric() || "-_:".contains(*c))
            .take(40)
            .collect(),
    )
}

fn windows_1252(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| windows_1252_character(*byte))
        .collect()
}

pub(super) fn windows_1252_character(byte: u8) -> char {
    match byte {
        0x80..=0x9f => WINDOWS_1252[usize::from(byte - 0x80)],
        byte => char::from(byte),
    }
}
