//! The character encodings of pages.

/// Windows-1252 from 0x80 to 0x9f; the rest of it is Latin-1. It is what browsers take for Latin-1 and ASCII, too
/// (WHATWG Encoding Standard, index windows-1252).
const WINDOWS_1252: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}', '‘', '’',
    '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];
/// Browsers look for a page's own word on its encoding this far.
const PRESCAN: usize = 1024;

pub(super) fn is_utf_16(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff")
}

/// Decodes a page by its byte order mark, else by its `content-type`, else by what it says itself, else as UTF-8 if it
/// is valid and as Windows-1252 if it is not. Other encodings are read as UTF-8, with replacement characters.
pub(super) fn decode(bytes: &[u8], content_type: &str, is_html: bool) -> String {
    let utf_16 = |bytes: &[u8], to_unit: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| to_unit([pair[0], pair[1]])).collect();
        String::from_utf16_lossy(&units)
    };
    if let Some(rest) = bytes.strip_prefix(b"\xef\xbb\xbf") {
        return String::from_utf8_lossy(rest).into_owned();
    }
    if is_utf_16(bytes) {
        let to_unit = if bytes[0] == 0xff { u16::from_le_bytes } else { u16::from_be_bytes };
        return utf_16(&bytes[2..], to_unit);
    }
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(PRESCAN)]);
    let name = named(content_type).or_else(|| named(&start).filter(|_| is_html));
    match name.as_deref() {
        Some("utf-16" | "utf-16le") => utf_16(bytes, u16::from_le_bytes),
        Some("utf-16be") => utf_16(bytes, u16::from_be_bytes),
        Some("iso-8859-1" | "latin1" | "windows-1252" | "cp1252" | "us-ascii" | "ascii") => windows_1252(bytes),
        None if std::str::from_utf8(bytes).is_err() => windows_1252(bytes),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

/// The value behind `charset=`, in a header or in a page, in lower case.
fn named(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let (_, rest) = text.split_once("charset")?;
    let rest = rest.trim_start().strip_prefix('=')?.trim_start().trim_start_matches(['"', '\'']);
    Some(rest.chars().take_while(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect())
}

fn windows_1252(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| windows_1252_character(*byte)).collect()
}

pub(super) fn windows_1252_character(byte: u8) -> char {
    match byte {
        0x80..=0x9f => WINDOWS_1252[usize::from(byte - 0x80)],
        byte => char::from(byte),
    }
}
