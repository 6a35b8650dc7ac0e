//! Finding the text that is to be replaced, and saying what is there instead when it is not found.
//!
//! It works on bytes: what is not replaced stays as it is, whatever it is. The encoding is the file's own. So are the
//! line ends: where every line ends in CRLF, a line feed in the call means that.

use super::encoding::Encoding;
use crate::error::{Error, Result};
use crate::text::clip;

/// Beyond this size no near misses are looked for.
const MOST_SEARCHED: usize = 4 << 20;

/// Places that are named, at most.
const MOST_NAMED: usize = 5;

/// What is to be changed.
pub struct Change<'a> {
    pub old: &'a str,
    pub new: &'a str,
    /// Every place, and not the only one.
    pub all: bool,
}

/// The content after the change, and what was done in words.
pub fn replaced(content: &[u8], change: &Change) -> Result<(Vec<u8>, String)> {
    let Change { old, new, all } = *change;
    if old.is_empty() {
        return Err(Error::failed("old_text is empty: use append_file or write_file to add text"));
    }
    if old == new {
        return Err(Error::failed("old_text and new_text are the same"));
    }
    let (encoding, _) = Encoding::of(content);
    let ends = Ends::of(content, encoding);
    let [old_bytes, new_bytes] = [old, new].map(|text| encoding.encode(&ends.adapt(text)));
    let places = places(content, &old_bytes, encoding.unit());
    if places.is_empty() {
        return Err(Error::failed(miss(content, encoding, old)));
    }
    let lines = named(content, &places, encoding);
    if places.len() > 1 && !all {
        return Err(Error::failed(format!(
            "old_text is there {} times ({lines}): add text around the one that is meant, or set replace_all",
            places.len()
        )));
    }
    let mut out = Vec::new();
    let mut kept = 0;
    for place in &places {
        out.extend_from_slice(&content[kept..*place]);
        out.extend_from_slice(&new_bytes);
        kept = place + old_bytes.len();
    }
    out.extend_from_slice(&content[kept..]);
    let matches = if places.len() == 1 { "1 match".to_owned() } else { format!("{} matches", places.len()) };
    Ok((out, format!("{matches} replaced ({lines})")))
}

/// How the lines of a file end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// Every one in CRLF.
    Windows,
    /// In line feeds, or some in this and some in that.
    Other,
}

impl Ends {
    fn of(content: &[u8], encoding: Encoding) -> Self {
        let unit = encoding.unit();
        let [cr, lf] = ["\r", "\n"].map(|end| encoding.encode(end));
        let (mut before, mut any) = (&[][..], false);
        for character in content.chunks(unit) {
            if character == lf {
                if before != cr {
                    return Self::Other;
                }
                any = true;
            }
            before = character;
        }
        if any { Self::Windows } else { Self::Other }
    }

    fn adapt(self, text: &str) -> String {
        match self {
            Self::Windows => text.replace("\r\n", "\n").replace('\n', "\r\n"),
            Self::Other => text.to_owned(),
        }
    }
}

/// Where `part` begins in `content`, without overlaps, at multiples of `unit`.
fn places(content: &[u8], part: &[u8], unit: usize) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(step) = content[at..].iter().position(|b| *b == part[0]) {
        at += step;
        if at % unit == 0 && content[at..].starts_with(part) {
            found.push(at);
            at += part.len();
        } else {
            at += 1;
        }
    }
    found
}

/// `line 3`, or `lines 3, 8, 9 and 12 more`.
fn named(content: &[u8], places: &[usize], encoding: Encoding) -> String {
    let lf = encoding.encode("\n");
    let mut numbers = Vec::new();
    let (mut line, mut counted) = (1, 0);
    for place in places.iter().take(MOST_NAMED) {
        line += content[counted..*place].chunks(encoding.unit()).filter(|c| *c == lf).count();
        counted = *place;
        numbers.push(line.to_string());
    }
    let numbers_text = numbers.join(", ");
    match places.len() {
        1 => format!("line {numbers_text}"),
        n if n > MOST_NAMED => format!("lines {numbers_text} and {} more", n - MOST_NAMED),
        _ => format!("lines {numbers_text}"),
    }
}

/// Why `old` was not found: what is most like it, and where.
fn miss(content: &[u8], encoding: Encoding, old: &str) -> String {
    const NOT_THERE: &str = "old_text is not there";
    if content.is_empty() {
        return format!("{NOT_THERE}: the file is empty");
    }
    if old.contains(char::REPLACEMENT_CHARACTER) {
        return format!(
            "{NOT_THERE}: \u{fffd} stands for bytes that are no text; choose an old_text without it, they will be kept"
        );
    }
    if content.len() > MOST_SEARCHED {
        return NOT_THERE.to_owned();
    }
    let text = encoding.decode(content);
    let likenesses: [(&str, Fold); 3] = [
        ("the same text with other line ends", |c| (c != '\r').then_some(c)),
        ("the same text with other white space", |c| (!c.is_whitespace()).then_some(c)),
        ("the same text with other letter case, quotes or dashes", plain),
    ];
    for (likeness, fold) in likenesses {
        if let Some((line, there)) = like(&text, old, fold) {
            return format!("{NOT_THERE}, but line {line} has {likeness}: {:?}", clip(there, 300));
        }
    }
    let first = old.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let found = text.lines().zip(1..).find(|(line, _)| !first.is_empty() && line.trim() == first);
    match found {
        Some((_, line)) => {
            format!("{NOT_THERE}: line {line} is its first line, but what follows is different; read the file again")
        }
        None => format!("{NOT_THERE}, nor anything like it: read the file again"),
    }
}

/// What a character is to be taken for; `None` when it does not count.
type Fold = fn(char) -> Option<char>;

/// A character without what people and models get wrong about it.
fn plain(c: char) -> Option<char> {
    match c {
        '\u{2018}' | '\u{2019}' => Some('\''),
        '\u{201c}' | '\u{201d}' => Some('"'),
        '\u{2010}'..='\u{2015}' => Some('-'),
        c if c.is_whitespace() => None,
        c => c.to_lowercase().next(),
    }
}

/// Where `old` is in `text` when both are seen through `fold`: the line, and what stands there.
fn like<'a>(text: &'a str, old: &str, fold: Fold) -> Option<(usize, &'a str)> {
    let folded = |text: &str| text.chars().filter_map(fold).collect::<String>();
    let wanted = folded(old);
    let start = folded(text).find(&wanted).filter(|_| !wanted.is_empty())?;
    // Back from bytes of the folded text to bytes of the text: both ends of what was found.
    let mut passed = 0;
    let (mut from, mut to) = (None, text.len());
    for (at, c) in text.char_indices() {
        let Some(seen) = fold(c) else { continue };
        if passed == start {
            from = Some(at);
        }
        passed += seen.len_utf8();
        if passed == start + wanted.len() {
            to = at + c.len_utf8();
            break;
        }
    }
    let from = from?;
    Some((text[..from].matches('\n').count() + 1, &text[from..to]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(content: &[u8], old: &str, new: &str, all: bool) -> Result<(Vec<u8>, String), String> {
        replaced(content, &Change { old, new, all }).map_err(|e| e.message)
    }

    #[test]
    fn only_the_text_that_was_meant_is_changed() {
        type Row<'a> = (&'a [u8], &'a str, &'a str, bool, &'a [u8]);
        let rows: [Row; 12] = [
            (b"a\nb\nc\n", "b", "x\ny", false, b"a\nx\ny\nc\n"),
            (b"one", "one", "", false, b""),
            (b"no line end", "end", "END", false, b"no line END"),
            (b"aaa", "aa", "b", true, b"ba"),
            (b"x.x.x", "x", "xx", true, b"xx.xx.xx"),
            // Every line ends in CRLF: so do those of the change.
            (b"a\r\nb\r\n", "a\nb", "a\nz\nb", false, b"a\r\nz\r\nb\r\n"),
            (b"a\r\nb\r\n", "a\r\nb", "b\na", false, b"b\r\na\r\n"),
            // Mixed: the bytes as they are.
            (b"a\r\nb\nc", "a\r\nb", "q\nb", false, b"q\nb\nc"),
            // Latin-1, and bytes that are no text at all.
            (b"caf\xe9 = 1\n\xff\x00", "= 1", "= 2", false, b"caf\xe9 = 2\n\xff\x00"),
            ("文字 😀 שלום".as_bytes(), "😀", "🎉", false, "文字 🎉 שלום".as_bytes()),
            (b"\xff\xfea\0\r\0\n\0", "a\n", "\u{e9}\n", false, b"\xff\xfe\xe9\0\r\0\n\0"),
            // The bytes 0x61 0x00 also stand across two characters, at an odd place.
            (b"\xfe\xff\x61\x00\x00\x61", "a", "b", false, b"\xfe\xff\x61\x00\x00\x62"),
        ];
        for (content, old, new, all, becomes) in rows {
            let (bytes, _) = change(content, old, new, all).unwrap();
            assert_eq!(bytes, becomes, "{old:?} to {new:?}");
        }
    }

    #[test]
    fn it_says_how_often_and_where() {
        let says = |content: &str, old, all| match change(content.as_bytes(), old, "new", all) {
            Ok((_, report)) | Err(report) => report,
        };
        assert_eq!(says("a\nb\n", "b", false), "1 match replaced (line 2)");
        assert_eq!(says("a\na\nb\na", "a", true), "3 matches replaced (lines 1, 2, 4)");
        assert!(says("a\na\n", "a", false).starts_with("old_text is there 2 times (lines 1, 2): "));
        assert!(says(&"a\n".repeat(9), "a", false).contains("(lines 1, 2, 3, 4, 5 and 4 more)"));
    }

    #[test]
    fn what_is_nearly_right_is_named_with_its_line() {
        for (content, old, says) in [
            (
                "x\n\tif a {\n\t\tb\n",
                "if a {\n  b",
                "line 2 has the same text with other white space: \"if a {\\n\\t\\tb\"",
            ),
            ("x\na\r\nb\nc\n", "a\nb", "line 2 has the same text with other line ends: \"a\\r\\nb\""),
            ("a\nb\n", "a\r\nb", "line 1 has the same text with other line ends"),
            ("say “Hello”\n", "say \"hello\"", "line 1 has the same text with other letter case, quotes or dashes"),
            ("a\nfirst\nthird\n", "first\nsecond\n", "line 2 is its first line, but what follows is different"),
            ("a\n", "b", "nor anything like it"),
            ("", "b", "the file is empty"),
            ("a\n", "caf\u{fffd}", "stands for bytes that are no text"),
        ] {
            let told = change(content.as_bytes(), old, "new", false).unwrap_err();
            assert!(told.starts_with("old_text is not there") && told.contains(says), "{old:?}: {told}");
        }
        assert!(change(b"a", "", "b", false).unwrap_err().contains("old_text is empty"));
        assert!(change(b"a", "a", "a", false).unwrap_err().contains("the same"));
    }
}
