//! Reads untrusted JSON within bounds, and writes long texts.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

/// Maximum number of values in a JSON text, enough for any expected response, embeddings included. A value takes at least 32
/// bytes of memory, and as few as two bytes of text.
const MAX_VALUES: usize = 1_000_000;

/// Reads JSON. This is the only parser, because each further source or type would add a copy of it to the binary. Half of a
/// UTF-16 pair becomes U+FFFD; programs that cut an emoji in the middle, like `slice` of `JavaScript`, write `"\\ud83e"`.
pub(crate) fn parse_json(text: impl AsRef<[u8]>) -> serde_json::Result<Value> {
    let text = text.as_ref();
    refuse_more_values(text, MAX_VALUES)?;
    parse_mending(text).map(|(value, _)| value)
}

/// Also returns the halves of UTF-16 pairs that were replaced, in their order.
pub(crate) fn parse_mending(text: &[u8]) -> serde_json::Result<(Value, Vec<u32>)> {
    serde_json::from_slice(text)
        .map(|value| (value, Vec::new()))
        .or_else(|e| match without_lone_surrogates(text) {
            (_, halves) if halves.is_empty() => Err(e),
            (mended, halves) => Ok((serde_json::from_slice(&mended)?, halves)),
        })
}

/// Returns the character of a UTF-16 pair.
pub(crate) fn join_halves(high: u32, low: u32) -> Option<char> {
    if !(0xd800..0xdc00).contains(&high) || !(0xdc00..0xe000).contains(&low) {
        return None;
    }
    char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00))
}

/// Describes a syntax error and its position: `line 3, column 31: trailing comma`.
pub(crate) fn explain(e: &serde_json::Error) -> String {
    let what = e.to_string().replace("EOF while parsing", "it ends within");
    let what = what.split(" at line ").next().unwrap_or_default();
    format!("line {}, column {}: {what}", e.line(), e.column())
}

/// Estimates the number of values in a JSON text, and how many of them are objects. Each takes far more memory than its bytes, so
/// untrusted texts are counted before they are parsed.
pub(crate) fn count_values(text: &[u8]) -> (usize, usize) {
    let (mut values, mut objects) = (0, 0);
    let (mut in_string, mut escaped) = (false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => {
                values += 1;
                objects += usize::from(*byte == b'{');
            }
            _ => {}
        }
    }
    (values, objects)
}

/// Memory of an object with a member, in other values: about 640 bytes.
const WEIGHT_OF_AN_OBJECT: usize = 20;

/// # Errors
/// The text has more than `most` values, or as many objects as take their memory.
pub(crate) fn refuse_more_values(text: &[u8], most: usize) -> serde_json::Result<()> {
    let most_objects = most / WEIGHT_OF_AN_OBJECT;
    // An object that takes memory has at least six bytes, and a comma.
    if text.len() <= 6 * most_objects {
        return Ok(());
    }
    let (values, objects) = count_values(text);
    if values <= most && objects <= most_objects {
        return Ok(());
    }
    let why = format!("it has more than {most} values or {most_objects} objects");
    Err(serde::de::Error::custom(why))
}

/// Reads JSON into a Rust type.
pub(crate) fn from_json<T: DeserializeOwned>(text: impl AsRef<[u8]>) -> serde_json::Result<T> {
    T::deserialize(&parse_json(text)?)
}

/// Writes the pieces as one JSON string. A conversation is mostly text without escapes, and is sent with every request;
/// checking eight bytes at a time takes a third of the time of `serde_json`.
pub(crate) fn write_text<'a>(pieces: impl Iterator<Item = &'a str> + Clone) -> Box<RawValue> {
    let len: usize = pieces.clone().map(str::len).sum();
    let mut json = String::with_capacity(len + len / 16 + 2);
    json.push('"');
    for piece in pieces {
        push_escaped(&mut json, piece);
    }
    json.push('"');
    RawValue::from_string(json).unwrap_or_default()
}

fn push_escaped(json: &mut String, text: &str) {
    let mut rest = text;
    loop {
        let (plain, other) = rest.split_at(plain_len(rest.as_bytes()));
        json.push_str(plain);
        let mut chars = other.chars();
        match chars.next() {
            None => return,
            Some('"') => json.push_str("\\\""),
            Some('\\') => json.push_str("\\\\"),
            Some('\n') => json.push_str("\\n"),
            Some('\t') => json.push_str("\\t"),
            Some(control) => json.push_str(&format!("\\u{:04x}", u32::from(control))),
        }
        rest = chars.as_str();
    }
}

/// Returns how many bytes at the beginning need no escape.
fn plain_len(text: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    // Sets the top bit of each zero byte; bits before the first zero byte remain clear.
    let zeros = |bytes: u64| bytes.wrapping_sub(ONES) & !bytes;
    for (n, word) in text.chunks_exact(8).enumerate() {
        let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
        let controls = word.wrapping_sub(ONES * 0x20) & !word;
        let quotes = zeros(word ^ (ONES * u64::from(b'"')));
        let backslashes = zeros(word ^ (ONES * u64::from(b'\\')));
        let found = (controls | quotes | backslashes) & (ONES << 7);
        if found != 0 {
            return 8 * n + found.trailing_zeros() as usize / 8;
        }
    }
    let start = text.len() / 8 * 8;
    let is_plain = |byte: &u8| *byte >= 0x20 && !matches!(byte, b'"' | b'\\');
    let rest = text[start..].iter();
    start + rest.take_while(|byte| is_plain(byte)).count()
}

/// Replaces each half of a UTF-16 pair by U+FFFD; `None` if the text has only whole pairs.
pub(crate) fn replace_lone_surrogates(json: &[u8]) -> Option<Vec<u8>> {
    let (mended, halves) = without_lone_surrogates(json);
    (!halves.is_empty()).then_some(mended)
}

fn without_lone_surrogates(json: &[u8]) -> (Vec<u8>, Vec<u32>) {
    let (mut out, mut halves) = (Vec::new(), Vec::new());
    let (mut at, mut written) = (0, 0);
    while let Some(offset) = json[at..].iter().position(|byte| *byte == b'\\') {
        at += offset;
        match (
            escape(&json[at..]),
            escape(json.get(at + 6..).unwrap_or_default()),
        ) {
            (Some(0xd800..0xdc00), Some(0xdc00..=0xdfff)) => at += 12,
            (Some(half @ 0xd800..=0xdfff), _) => {
                halves.push(half);
                out.extend_from_slice(&json[written..at]);
                out.extend_from_slice("\u{fffd}".as_bytes());
                at += 6;
                written = at;
            }
            // Skips any other escape, so that the second of two backslashes does not begin one.
            _ => at = (at + 2).min(json.len()),
        }
    }
    out.extend_from_slice(&json[written..]);
    (out, halves)
}

/// Returns the UTF-16 unit of `\uXXXX` at the beginning.
fn escape(json: &[u8]) -> Option<u32> {
    let digits = json.strip_prefix(b"\\u")?.get(..4)?;
    let digits = std::str::from_utf8(digits).ok()?;
    u32::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_with_too_many_values_is_refused() {
        let list = |n: usize| format!("[{}0]", "0,".repeat(n));
        assert!(parse_json(list(MAX_VALUES - 2)).is_ok());
        let e = parse_json(list(MAX_VALUES + 1)).err();
        let e = e.map(|e| e.to_string()).unwrap_or_default();
        assert!(e.contains("more than 1000000 values"), "{e}");
        assert!(parse_json(format!("\"{}\"", ",".repeat(3 * MAX_VALUES))).is_ok());
        let objects = |n: usize| format!("[{}0]", "{\"\":0},".repeat(n));
        assert!(parse_json(objects(MAX_VALUES / 20)).is_ok());
        let e = parse_json(objects(MAX_VALUES / 20 + 1)).err();
        let e = e.map(|e| e.to_string()).unwrap_or_default();
        assert!(e.contains(" 50000 objects"), "{e}");
    }

    #[test]
    fn a_text_reads_as_it_was_written() {
        let each: String = (0..0x3000).filter_map(char::from_u32).collect();
        let mut texts = vec![
            each.clone(),
            String::new(),
            "🐓 \"\\\u{7f}\u{80}\u{fffd}".to_owned(),
        ];
        for n in 0..24 {
            for special in ['"', '\\', '\n', '\u{1f}', '\u{0}', '\u{a0}', '🐓'] {
                texts.push(format!("{}{special}{}", "a".repeat(n), "b".repeat(24 - n)));
            }
        }
        for text in &texts {
            let (first, second) = text.split_at(text.char_indices().nth(3).map_or(0, |(at, _)| at));
            let written = write_text([first, second].into_iter());
            let read: String = serde_json::from_str(written.get()).unwrap();
            assert_eq!(read, *text, "{written}");
        }
    }

    #[test]
    fn half_a_pair_is_replaced_and_a_whole_one_stays() {
        for (text, read) in [
            (r#""a\ud83e""#, "a\u{fffd}"),
            (r#""\uDD14b""#, "\u{fffd}b"),
            (r#""\ud83e\ud83e\udd14""#, "\u{fffd}🤔"),
            (r#""\ud83e\udd14\ud83e""#, "🤔\u{fffd}"),
            (r#""\\ud83e \ud83e""#, "\\ud83e \u{fffd}"),
        ] {
            assert_eq!(parse_json(text).unwrap(), json!(read), "{text}");
        }
        for broken in [
            r#""\ud83"#,
            r#""\ud83e"#,
            r#"{"a":"\uzzzz"}"#,
            "\\",
            r#"["\ud83e""#,
        ] {
            assert!(parse_json(broken).is_err(), "{broken}");
        }
        assert_eq!(replace_lone_surrogates(br#"{"a":"\ud83e\udd14\n"}"#), None);
    }
}
