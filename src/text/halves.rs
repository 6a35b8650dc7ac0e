//! Halves of UTF-16 pairs in JSON: `"\\ud83e"` is what a program leaves of an emoji that it cuts in the middle, as
//! `JavaScript`'s `slice` does. Strict parsers refuse it, and with it all that stands around it.

/// Where halves stand for a while as characters of their own: the last of those that Unicode leaves to private use.
const MARKS: u32 = 0x10_f800;
const FIRST: u32 = 0xd800;
const FIRST_LOW: u32 = 0xdc00;
const LAST: u32 = 0xdfff;

/// JSON in which each half of a pair is a character that [`joined`] understands; `None` if there is none.
pub(crate) fn marked(json: &[u8]) -> Option<Vec<u8>> {
    mapped(json, |half| {
        char::from_u32(MARKS + half - FIRST).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

fn mapped(json: &[u8], character: impl Fn(u32) -> char) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let (mut at, mut written) = (0, 0);
    while let Some(offset) = json[at..].iter().position(|byte| *byte == b'\\') {
        at += offset;
        match (
            escape(&json[at..]),
            escape(json.get(at + 6..).unwrap_or_default()),
        ) {
            (Some(FIRST..FIRST_LOW), Some(FIRST_LOW..=LAST)) => at += 12,
            (Some(half @ FIRST..=LAST), _) => {
                out.extend_from_slice(&json[written..at]);
                let mut utf8 = [0; 4];
                out.extend_from_slice(character(half).encode_utf8(&mut utf8).as_bytes());
                at += 6;
                written = at;
            }
            // Also past the second of two backslashes.
            _ => at = (at + 2).min(json.len()),
        }
    }
    if written == 0 {
        return None;
    }
    out.extend_from_slice(&json[written..]);
    Some(out)
}

/// The unit of UTF-16 that `\uXXXX` at the beginning stands for.
fn escape(json: &[u8]) -> Option<u32> {
    let digits = json.strip_prefix(b"\\u")?.get(..4)?;
    let digits = std::str::from_utf8(digits).ok()?;
    u32::from_str_radix(digits, 16).ok()
}

/// The half that a character of [`marked`] stands for.
fn half(character: char) -> Option<u32> {
    u32::from(character).checked_sub(MARKS).map(|n| n + FIRST)
}

/// Joins neighbouring halves to their character, and replaces the others.
pub(crate) fn joined(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let Some(first) = half(character) else {
            joined.push(character);
            continue;
        };
        let is_low = |character: &char| half(*character).is_some_and(|half| half >= FIRST_LOW);
        let second = characters.next_if(|next| first < FIRST_LOW && is_low(next));
        let pair = second.and_then(half).and_then(|second| {
            char::from_u32(0x1_0000 + ((first - FIRST) << 10) + (second - FIRST_LOW))
        });
        joined.push(pair.unwrap_or(char::REPLACEMENT_CHARACTER));
    }
    joined
}

/// The bytes at the end of a marked text that wait for the other half of a pair.
pub(crate) fn waiting(text: &str) -> usize {
    let last = text.chars().next_back();
    let waits = last.filter(|last| half(*last).is_some_and(|half| half < FIRST_LOW));
    waits.map_or(0, char::len_utf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_halves_become_their_character_again() {
        let read = |json: &str| -> String {
            serde_json::from_slice(&marked(json.as_bytes()).unwrap()).unwrap()
        };
        let text = read(r#""a\ud83e""#) + &read(r#""\udd14b\udd14""#);
        assert_eq!(joined(&text), "a🤔b\u{fffd}");
        assert_eq!(waiting(&read(r#""a\ud83e""#)), 4);
        assert_eq!(waiting(&read(r#""a\udd14""#)), 0);
        assert_eq!(joined("plain"), "plain");
    }
}
