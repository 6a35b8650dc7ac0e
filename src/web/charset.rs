//! The character encodings of pages (WHATWG Encoding Standard).

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};

/// Number of bytes that browsers search for a page's declaration of its encoding.
const PRESCAN: usize = 1024;

pub(super) fn is_utf_16(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff")
}

/// Decodes a page by its byte order mark, else by its `content-type`, else by its declaration, else as UTF-8 if it is valid and
/// as Windows-1252 if it is not.
///
/// # Errors
/// Name of an unknown encoding, and the page decoded as UTF-8.
pub(super) fn decode(
    bytes: &[u8],
    content_type: &str,
    is_html: bool,
) -> Result<String, (String, String)> {
    if let Some((encoding, mark)) = Encoding::for_bom(bytes) {
        return Ok(decode_as(encoding, &bytes[mark..]));
    }
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(PRESCAN)]);
    let from_header = named(content_type);
    let from_page = || {
        if is_html { named(&start) } else { None }
    };
    let is_from_page = from_header.is_none();
    let Some(name) = from_header.or_else(from_page) else {
        let is_utf_8 = std::str::from_utf8(bytes).is_ok();
        return Ok(decode_as(
            if is_utf_8 { UTF_8 } else { WINDOWS_1252 },
            bytes,
        ));
    };
    let Some(encoding) = Encoding::for_label_no_replacement(name.as_bytes()) else {
        return Err((name, decode_as(UTF_8, bytes)));
    };
    // A page with a readable declaration of UTF-16 cannot be UTF-16.
    let is_wrong = is_from_page && [UTF_16LE, UTF_16BE].contains(&encoding);
    Ok(decode_as(if is_wrong { UTF_8 } else { encoding }, bytes))
}

fn decode_as(encoding: &'static Encoding, bytes: &[u8]) -> String {
    let (text, _) = encoding.decode_without_bom_handling(bytes);
    text.into_owned()
}

/// Returns the value of `charset=` in a header or a page, in lower case.
fn named(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let (_, rest) = text.split_once("charset")?;
    let rest = rest
        .trim_start()
        .strip_prefix('=')?
        .trim_start()
        .trim_start_matches(['"', '\'']);
    let name: String = rest
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || "-_:".contains(*c))
        .take(40)
        .collect();
    Some(name).filter(|name| !name.is_empty())
}

/// Character numbers from 0x80 to 0x9f on pages refer to Windows-1252.
pub(super) fn windows_1252_character(byte: u8) -> char {
    decode_as(WINDOWS_1252, &[byte])
        .chars()
        .next()
        .unwrap_or(char::REPLACEMENT_CHARACTER)
}
