//! The named characters of HTML 4 (section 24 of its specification), and a few later names that pages use.

use encoding_rs::WINDOWS_1252;

use super::charset::decode_as;

/// Names of U+00A0 to U+00FF, in order.
const LATIN_1: &str = "nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg plusmn \
    sup2 sup3 acute micro para middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest Agrave Aacute Acirc Atilde Auml Aring AElig \
    Ccedil Egrave Eacute Ecirc Euml Igrave Iacute Icirc Iuml ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute \
    Ucirc Uuml Yacute THORN szlig agrave aacute acirc atilde auml aring aelig ccedil egrave eacute ecirc euml igrave iacute icirc \
    iuml eth ntilde ograve oacute ocirc otilde ouml divide oslash ugrave uacute ucirc uuml yacute thorn yuml";

/// Other names and their characters.
const NAMED: &str = include_str!("entities.txt");

/// Returns the character `&name;`; `name` excludes the delimiters: `amp`, `#8212`, `#x2014`. The semicolon is optional for the
/// oldest names.
pub(super) fn named_character(name: &str, has_semicolon: bool) -> Option<char> {
    if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok()?,
            None => number.parse().ok()?,
        };
        return match u8::try_from(code) {
            Ok(0) => None,
            // Numbers below 256 are Windows-1252 codes on many pages.
            Ok(byte) => decode_as(WINDOWS_1252, &[byte]).chars().next(),
            Err(_) => char::from_u32(code),
        };
    }
    let mut latin = LATIN_1.split(' ').zip('\u{a0}'..);
    let latin = latin.find_map(|(known, c)| (known == name).then_some(c));
    let value = |entry: &str| entry.strip_prefix(name)?.strip_prefix('=')?.chars().next();
    let named = || NAMED.lines().find_map(value);
    match name {
        "amp" | "AMP" => Some('&'),
        "lt" | "LT" => Some('<'),
        "gt" | "GT" => Some('>'),
        "quot" | "QUOT" => Some('"'),
        _ if has_semicolon => latin.or_else(named),
        _ => latin,
    }
}
