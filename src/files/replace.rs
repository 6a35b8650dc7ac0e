//! Finds the text to replace, or reports the most similar text in the file.
//!
//! It works on bytes, so that the rest of the file is unchanged. If every line ends in CRLF, the lines of the replacement do
//! also.

use memchr::memmem;

use super::text::{has_only_crlf, with_ends};
use crate::error::{Error, Result};
use crate::redact::REMOVED;
use crate::text::{clip, counted};

/// Maximum size of a file that is searched for similar text, in bytes.
const MAX_SEARCHED: usize = 1 << 20;

/// Replaces the only match of `old`, or with `all` every match. Returns the new content, and a report for the model.
pub(super) fn replaced(
    content: &[u8],
    old: &str,
    new: &str,
    all: bool,
) -> Result<(Vec<u8>, String)> {
    if old.is_empty() {
        return Err(Error::failed(
            "old_text is empty: use append_file or write_file to add text",
        ));
    }
    if old == new {
        return Err(Error::failed("old_text and new_text are the same"));
    }
    let crlf = has_only_crlf(content);
    let [old_adapted, new_adapted] = [old, new].map(|text| with_ends(text, crlf));
    // Its time is linear, whatever the texts are.
    let matches: Vec<usize> = memmem::find_iter(content, &*old_adapted).collect();
    if matches.is_empty() {
        return Err(Error::failed(explain_miss(content, old)));
    }
    let count = matches.len();
    let line = content[..matches[0]].split(|byte| *byte == b'\n').count();
    if count > 1 && !all {
        return Err(Error::failed(format!(
            "old_text occurs {count} times, first in line {line}: add surrounding text to select one, or set replace_all"
        )));
    }
    let mut out = Vec::new();
    let mut copied = 0;
    for start in &matches {
        out.extend_from_slice(&content[copied..*start]);
        out.extend_from_slice(new_adapted.as_bytes());
        copied = start + old_adapted.len();
    }
    out.extend_from_slice(&content[copied..]);
    let report = format!("{} replaced, first in line {line}", counted(count, "text"));
    Ok((out, report))
}

/// Explains why `old` was not found, with the most similar text and its line.
fn explain_miss(content: &[u8], old: &str) -> String {
    const MISS: &str = "old_text not found";
    if content.is_empty() {
        return format!("{MISS}: the file is empty");
    }
    if old.contains(char::REPLACEMENT_CHARACTER) {
        return format!(
            "{MISS}: \u{fffd} stands for bytes that are not UTF-8; choose an old_text without it"
        );
    }
    if old.contains(REMOVED) {
        return format!(
            "{MISS}: \"{REMOVED}\" stands for a secret in the file; choose an old_text without it"
        );
    }
    if content.len() > MAX_SEARCHED {
        return MISS.to_owned();
    }
    let text = String::from_utf8_lossy(content);
    if let Some((line, found)) = find_similar(&text, old) {
        let difference = "other white space, letter case, quotes or dashes";
        return format!(
            "{MISS}, but line {line} has the same text with {difference}: {:?}",
            clip(found, 300)
        );
    }
    format!("{MISS}, nor anything like it: read the file again")
}

/// Returns the character that `c` is compared as; `None` drops it.
fn plain(c: char) -> Option<char> {
    match c {
        '\u{2018}' | '\u{2019}' => Some('\''),
        '\u{201c}' | '\u{201d}' => Some('"'),
        '\u{2010}'..='\u{2015}' => Some('-'),
        c if c.is_whitespace() => None,
        c => c.to_lowercase().next(),
    }
}

/// Finds `old` in `text`, both normalized by [`plain`]. Returns the line number, and the original text.
fn find_similar<'a>(text: &'a str, old: &str) -> Option<(usize, &'a str)> {
    let wanted: String = old.chars().filter_map(plain).collect();
    if wanted.is_empty() {
        return None;
    }
    let mut plain_text = String::new();
    // Range of the original character for each byte of the normalized text.
    let mut origins = Vec::new();
    for (at, c) in text.char_indices() {
        if let Some(mapped) = plain(c) {
            plain_text.push(mapped);
            origins.resize(plain_text.len(), (at, at + c.len_utf8()));
        }
    }
    let start = plain_text.find(&wanted)?;
    let (from, to) = (origins[start].0, origins[start + wanted.len() - 1].1);
    Some((text[..from].matches('\n').count() + 1, &text[from..to]))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn change(
        content: &[u8],
        old: &str,
        new: &str,
        all: bool,
    ) -> Result<(Vec<u8>, String), String> {
        replaced(content, old, new, all).map_err(|e| e.message)
    }

    #[test]
    fn only_the_text_that_was_meant_is_changed() {
        type Row<'a> = (&'a [u8], &'a str, &'a str, bool, &'a [u8]);
        let rows: [Row; 10] = [
            (b"a\nb\nc\n", "b", "x\ny", false, b"a\nx\ny\nc\n"),
            (b"one", "one", "", false, b""),
            (b"no line end", "end", "END", false, b"no line END"),
            (b"aaa", "aa", "b", true, b"ba"),
            (b"x.x.x", "x", "xx", true, b"xx.xx.xx"),
            // If every line ends in CRLF, the replacement's lines do also.
            (b"a\r\nb\r\n", "a\nb", "a\nz\nb", false, b"a\r\nz\r\nb\r\n"),
            (b"a\r\nb\r\n", "a\r\nb", "b\na", false, b"b\r\na\r\n"),
            // Mixed line ends are unchanged.
            (b"a\r\nb\nc", "a\r\nb", "q\nb", false, b"q\nb\nc"),
            // Latin-1, and binary data.
            (
                b"caf\xe9 = 1\n\xff\x00",
                "= 1",
                "= 2",
                false,
                b"caf\xe9 = 2\n\xff\x00",
            ),
            (
                "文字 😀 שלום".as_bytes(),
                "😀",
                "🎉",
                false,
                "文字 🎉 שלום".as_bytes(),
            ),
        ];
        for (content, old, new, all, becomes) in rows {
            let (bytes, _) = change(content, old, new, all).unwrap();
            assert_eq!(bytes, becomes, "{old:?} to {new:?}");
        }
    }

    #[test]
    fn repetitive_text_is_found_or_missed_in_linear_time() {
        let content = "ab".repeat(1 << 20);
        let half = "ab".repeat(250_000);
        let started = Instant::now();
        for (old, is_found) in [
            (format!("{half}b"), false),
            (format!("{half}a{half}"), false),
            (format!("b{half}"), true),
        ] {
            let changed = change(content.as_bytes(), &old, "", true);
            assert_eq!(changed.is_ok(), is_found);
        }
        // Generous: it took minutes in quadratic time.
        let took = started.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
    }

    #[test]
    fn near_match_error_names_its_line() {
        // A file, a text that it lacks, and the error.
        for row in r#"
x/%if a {/%%b/ | if a {/  b | line 2 has the same text with other white space, letter case, quotes or dashes: "if a {\n\t\tb"
x/a^/b/c/ | a/b | line 2 has the same text with
a/b/ | a^/b | line 1 has the same text with
say “Hello”/ | say "hello" | line 1 has the same text with
a/ | b | nor anything like it
 | b | the file is empty
a/ | caf� | stands for bytes that are not UTF-8"#
            .lines()
            .skip(1)
        {
            let cells: Vec<String> = row
                .split(" | ")
                .map(|cell| cell.replace('/', "\n").replace('%', "\t").replace('^', "\r"))
                .collect();
            let [content, old, says] = &cells[..] else {
                panic!("{row}");
            };
            let told = change(content.as_bytes(), old, "new", false).unwrap_err();
            assert!(
                told.starts_with("old_text not found") && told.contains(says.as_str()),
                "{old:?}: {told}"
            );
        }
        assert!(
            change(b"a", "", "b", false)
                .unwrap_err()
                .contains("old_text is empty")
        );
        assert!(
            change(b"a", "a", "a", false)
                .unwrap_err()
                .contains("the same")
        );
    }
}
