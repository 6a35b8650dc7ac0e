//! The character encodings of pages (WHATWG Encoding Standard).

use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};

/// Number of bytes that browsers search for a page's declaration of its encoding.
const PRESCAN: usize = 1024;

pub(super) fn is_utf_16(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff")
}

/// Decodes a page by its byte order mark, else by its `content-type`, else by its declaration, else, or if that is unknown, as
/// UTF-8 if it is valid and as Windows-1252 if it is not.
pub(super) fn decode(bytes: &[u8], content_type: &str, is_html: bool) -> String {
    if let Some((encoding, mark)) = Encoding::for_bom(bytes) {
        return decode_as(encoding, &bytes[mark..]);
    }
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(PRESCAN)]);
    let page = if is_html { &*start } else { "" };
    let name = named(content_type).or_else(|| named(page));
    let encoding = name.and_then(|name| Encoding::for_label_no_replacement(name.as_bytes()));
    let is_utf_8 = std::str::from_utf8(bytes).is_ok();
    let guess = if is_utf_8 { UTF_8 } else { WINDOWS_1252 };
    decode_as(encoding.unwrap_or(guess), bytes)
}

pub(super) fn decode_as(encoding: &'static Encoding, bytes: &[u8]) -> String {
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
