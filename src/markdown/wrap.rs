//! Wraps lines between words at the width of a terminal, while the text arrives.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::styled::{BOLD, CODE, ITALIC, LINK, STRIKE};

pub(super) const RESET: &str = "\x1b[0m";
pub(super) const DIM: &str = "\x1b[2m";
/// Styles and their escape sequences; `LINK` is the address shown after a link's text.
pub(super) const STYLES: [(u16, &str); 5] = [
    (BOLD, "\x1b[1m"),
    (ITALIC, "\x1b[3m"),
    (STRIKE, "\x1b[9m"),
    (CODE, "\x1b[36m"),
    (LINK, DIM),
];

/// All of them.
pub(super) const SHOWN: u16 = BOLD | ITALIC | STRIKE | CODE | LINK;

/// Writes complete words. The terminal wraps a word that is longer than a line, such as an address, so that it can be copied
/// whole.
#[derive(Default)]
pub(super) struct Wrap {
    /// Maximum length of a line; 0 disables wrapping. Each line may have another one.
    pub(super) limit: usize,
    /// Column of the cursor, and number of pending spaces before `word`.
    column: usize,
    spaces: usize,
    word: String,
    /// Whether the word ends with an East Asian letter.
    is_east_asian: bool,
    /// Style at the end of `word`, and style at the cursor.
    style: u16,
    shown: u16,
    /// Prefix of each further line of the paragraph.
    hang: String,
}

impl Wrap {
    /// Writes the start of a line; further lines of its paragraph start with `hang`.
    pub(super) fn begin(&mut self, start: &str, hang: String, out: &mut String) {
        out.push_str(start);
        self.column = columns(start);
        self.hang = hang;
    }

    /// Adds text of one style.
    pub(super) fn push(&mut self, text: &str, style: u16, out: &mut String) {
        for c in text.chars() {
            let width = c.width().unwrap_or(0);
            let is_east_asian = width == 2 && c.is_alphabetic();
            if is_east_asian && self.is_east_asian {
                self.end_word(out);
            }
            if style != self.style {
                self.word.push_str(if self.style == 0 { "" } else { RESET });
                self.word.push_str(&codes(style));
                self.style = style;
            }
            match c {
                '\n' => {
                    self.end_word(out);
                    self.break_line(out);
                }
                ' ' | '\t' => {
                    self.end_word(out);
                    self.spaces += if c == ' ' { 1 } else { 4 };
                }
                c => self.word.push(c),
            }
            // Combining characters belong to the letter before them.
            if width > 0 {
                self.is_east_asian = is_east_asian;
            }
        }
    }

    /// Ends a line, including all styles.
    pub(super) fn end_line(&mut self, out: &mut String) {
        self.end_word(out);
        if self.shown != 0 {
            out.push_str(RESET);
        }
        *self = Self::default();
    }

    fn end_word(&mut self, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let width = columns(&self.word);
        let is_over = self.limit > 0 && width > 0 && self.column + self.spaces + width > self.limit;
        if is_over && self.column > columns(&self.hang) {
            self.break_line(out);
        }
        out.push_str(&" ".repeat(self.spaces));
        out.push_str(&self.word);
        self.column += self.spaces + width;
        self.word.clear();
        (self.spaces, self.is_east_asian, self.shown) = (0, false, self.style);
    }

    fn break_line(&mut self, out: &mut String) {
        if self.shown != 0 {
            out.push_str(RESET);
        }
        out.push('\n');
        out.push_str(&self.hang);
        out.push_str(&codes(self.shown));
        (self.column, self.spaces) = (columns(&self.hang), 0);
    }
}

fn codes(style: u16) -> String {
    let shown = STYLES.iter().filter(|(mark, _)| style & mark != 0);
    shown.map(|(_, code)| *code).collect()
}

/// Wraps plain text at this width. Lines after the first one start with `hang`.
pub(crate) fn hanging(text: &str, width: usize, hang: &str) -> Vec<String> {
    let mut out = String::new();
    let mut wrap = Wrap {
        limit: width,
        ..Wrap::default()
    };
    let start = text.len() - text.trim_start_matches(' ').len();
    wrap.begin(&text[..start], hang.to_owned(), &mut out);
    wrap.push(&text[start..], 0, &mut out);
    wrap.end_line(&mut out);
    out.split('\n').map(str::to_owned).collect()
}

/// Returns the width of a text in columns, without its escape sequences.
pub(crate) fn columns(text: &str) -> usize {
    let mut total = 0;
    let mut rest = text;
    while let Some(at) = rest.find('\x1b') {
        total += rest[..at].width();
        rest = &rest[at + escape(&rest[at..])..];
    }
    total + rest.width()
}

/// Returns the length of the leading escape sequence of a style.
fn escape(text: &str) -> usize {
    let end = text[1..].find(|c: char| c.is_ascii_alphabetic());
    end.map_or(text.len(), |at| at + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_east_asian_letters() {
        for (text, width, expected) in [
            ("one two three", 8, &["one two", "three"][..]),
            ("one two three", 7, &["one two", "three"]),
            ("one  two", 5, &["one", "two"]),
            ("exactly", 7, &["exactly"]),
            ("世界你好", 5, &["世界", "你好"]),
            ("世界你好。", 8, &["世界你", "好。"]),
            ("a 世界你好", 5, &["a 世", "界你", "好"]),
            (
                "see http://host/long now",
                8,
                &["see", "http://host/long", "now"],
            ),
            (
                "👨\u{200d}👩\u{200d}👧 👍",
                4,
                &["👨\u{200d}👩\u{200d}👧", "👍"],
            ),
            ("one\ntwo", 9, &["one", "two"]),
            ("  one two", 6, &["  one", "two"]),
            ("שלום עולם", 5, &["שלום", "עולם"]),
            ("", 5, &[""]),
        ] {
            assert_eq!(hanging(text, width, ""), expected, "{text}");
        }
        assert_eq!(hanging("  one two", 6, "    "), ["  one", "    two"]);
    }
}
