//! Breaks lines between words at the width of a terminal, while the text streams in.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const RESET: &str = "\x1b[0m";

/// Text with escape sequences, in lines that fit. A word that is shown already and then grows too long is erased and written on
/// the next line. One that is longer than a line, such as an address, is left to the terminal, which keeps it whole.
#[derive(Default)]
pub(crate) struct Wrap {
    /// The longest line. 0 breaks none.
    limit: usize,
    /// Where the terminal wraps what is longer. 0: it does not, as in a cell of a table.
    edge: usize,
    /// The column at which `word` begins.
    column: usize,
    /// The spaces before the last word, and what has come of it.
    word: String,
    width: usize,
    /// How many bytes and columns of `word` are shown.
    shown: (usize, usize),
    /// The escape sequences in force, and those at the beginning of `word`.
    style: String,
    word_style: String,
    /// What each further line of the paragraph begins with.
    hang: String,
    joins: bool,
}

impl Wrap {
    /// For a terminal of so many columns: its last one stays free, where terminals differ.
    pub(crate) fn new(columns: usize) -> Self {
        Self {
            limit: columns.saturating_sub(1),
            edge: columns,
            ..Self::default()
        }
    }

    /// Writes the beginning of a line, below which the lines of its paragraph begin with `hang`.
    pub(crate) fn begin(&mut self, start: &str, hang: String, out: &mut String) {
        out.push_str(start);
        self.column = columns(start);
        self.hang = hang;
    }

    /// Adds text and shows it all.
    pub(crate) fn push(&mut self, text: &str, out: &mut String) {
        self.add(text, out);
        if !self.fits() {
            self.break_line(out);
        }
        out.push_str(&self.word[self.shown.0..]);
        self.shown = (self.word.len(), self.width);
    }

    /// Ends a line.
    pub(crate) fn end_line(&mut self, out: &mut String) {
        self.end_word(out);
        self.column = 0;
        self.hang.clear();
    }

    fn add(&mut self, text: &str, out: &mut String) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let len = if c == '\x1b' {
                escape(rest)
            } else {
                c.len_utf8()
            };
            let (piece, after) = rest.split_at(len);
            rest = after;
            match c {
                '\x1b' => self.escape(piece),
                '\n' => {
                    self.end_word(out);
                    out.push('\n');
                    out.push_str(&self.hang);
                    self.column = columns(&self.hang);
                }
                ' ' => {
                    if !self.word.trim_start_matches(' ').is_empty() {
                        self.end_word(out);
                    }
                    self.word.push(c);
                    self.width += 1;
                }
                c => self.character(c, out),
            }
        }
    }

    fn character(&mut self, c: char, out: &mut String) {
        let width = c.width().unwrap_or(0);
        // Between wide characters a line may break, but not within joined ones.
        let is_alone = width == 2 && !self.joins;
        if is_alone && !self.word.trim_start_matches(' ').is_empty() {
            self.end_word(out);
        }
        self.word.push(c);
        self.width += if self.joins { 0 } else { width };
        self.joins = c == '\u{200d}';
    }

    fn escape(&mut self, sequence: &str) {
        self.word.push_str(sequence);
        if sequence == RESET {
            self.style.clear();
        } else if sequence.ends_with('m') {
            self.style.push_str(sequence);
        }
    }

    fn fits(&self) -> bool {
        self.limit == 0
            || self.word.trim_start_matches(' ').is_empty()
            || self.column + self.width <= self.limit
            || self.column <= columns(&self.hang)
    }

    fn end_word(&mut self, out: &mut String) {
        if !self.fits() {
            self.break_line(out);
        }
        out.push_str(&self.word[self.shown.0..]);
        self.column += self.width;
        // The terminal has wrapped a word that is longer than a line.
        if self.edge > 0 && self.column > self.edge {
            self.column %= self.edge;
        }
        self.word.clear();
        (self.width, self.shown) = (0, (0, 0));
        self.word_style.clone_from(&self.style);
    }

    /// Takes the last word to a new line, without the spaces before it.
    fn break_line(&mut self, out: &mut String) {
        if self.shown.1 > 0 {
            out.push_str(&format!("\x1b[{}D\x1b[K", self.shown.1));
        }
        if !self.word_style.is_empty() || self.shown.0 > 0 {
            out.push_str(RESET);
        }
        out.push('\n');
        out.push_str(&self.hang);
        out.push_str(&self.word_style);
        let spaces = self.word.len() - self.word.trim_start_matches(' ').len();
        self.word.drain(..spaces);
        self.width -= spaces;
        self.shown = (0, 0);
        self.column = columns(&self.hang);
    }
}

/// Wraps a whole text that has no lines yet, for a column of this width.
pub(crate) fn lines(text: &str, width: usize) -> Vec<String> {
    let mut wrap = Wrap {
        limit: width,
        ..Wrap::default()
    };
    let mut out = String::new();
    wrap.add(text, &mut out);
    wrap.end_word(&mut out);
    out.split('\n').map(str::to_owned).collect()
}

/// Wraps a line of text at this width. The lines below the first begin with `hang`.
pub(crate) fn hanging(text: &str, width: usize, hang: &str) -> Vec<String> {
    let indent = text.len() - text.trim_start_matches(' ').len();
    let mut out = String::new();
    let mut wrap = Wrap {
        limit: width,
        ..Wrap::default()
    };
    wrap.begin(&text[..indent], hang.to_owned(), &mut out);
    wrap.add(&text[indent..], &mut out);
    wrap.end_word(&mut out);
    out.split('\n').map(str::to_owned).collect()
}

/// The columns that text takes, without its escape sequences.
pub(crate) fn columns(text: &str) -> usize {
    let mut total = 0;
    let mut rest = text;
    while let Some(at) = rest.find('\x1b') {
        total += rest[..at].width();
        rest = &rest[at + escape(&rest[at..])..];
    }
    total + rest.width()
}

/// The length of the escape sequence at the beginning: of a style, or the address of a link.
fn escape(text: &str) -> usize {
    let end = if text.starts_with("\x1b]") {
        text.find("\x1b\\").map(|at| at + 2)
    } else {
        text[1..]
            .find(|c: char| c.is_ascii_alphabetic())
            .map(|at| at + 2)
    };
    end.unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_wide_characters() {
        for (text, width, expected) in [
            ("one two three", 8, &["one two", "three"][..]),
            ("one two three", 7, &["one two", "three"]),
            ("one  two", 5, &["one", "two"]),
            ("exactly", 7, &["exactly"]),
            ("世界你好", 5, &["世界", "你好"]),
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
            (
                "a \x1b[1mbold one\x1b[0m b",
                6,
                &["a \x1b[1mbold\x1b[0m", "\x1b[1mone\x1b[0m b"],
            ),
            ("שלום עולם", 5, &["שלום", "עולם"]),
            ("", 5, &[""]),
        ] {
            assert_eq!(lines(text, width), expected, "{text}");
        }
    }

    /// What a terminal shows, which understands just enough.
    fn seen(sent: &str) -> String {
        let mut lines = vec![String::new()];
        let mut rest = sent;
        while let Some(c) = rest.chars().next() {
            let line = lines.last_mut().unwrap();
            if c == '\x1b' {
                let (sequence, after) = rest.split_at(escape(rest));
                if let Some(back) = sequence
                    .strip_prefix("\x1b[")
                    .and_then(|back| back.strip_suffix('D')?.parse::<usize>().ok())
                {
                    for _ in 0..back {
                        line.pop();
                    }
                }
                rest = after;
                continue;
            }
            match c {
                '\n' => lines.push(String::new()),
                c => line.push(c),
            }
            rest = &rest[c.len_utf8()..];
        }
        lines.join("\n")
    }

    #[test]
    fn a_word_that_grows_moves_to_the_next_line_however_it_comes() {
        let text = "- one two \x1b[1mthree fo\x1b[0mur, http://a.host/with/a/path five";
        for size in 1..text.len() {
            let (mut wrap, mut out) = (Wrap::new(13), String::new());
            wrap.begin("- ", "  ".to_owned(), &mut out);
            let characters: Vec<char> = text[2..].chars().collect();
            // An escape sequence comes whole.
            let mut piece = String::new();
            for (n, c) in characters.iter().enumerate() {
                piece.push(*c);
                let is_open = piece
                    .rfind('\x1b')
                    .is_some_and(|at| !piece[at..].contains('m'));
                if n % size == 0 && !is_open {
                    wrap.push(&piece, &mut out);
                    piece.clear();
                }
            }
            wrap.push(&piece, &mut out);
            wrap.end_line(&mut out);
            assert_eq!(
                seen(&out),
                "- one two\n  three\n  four,\n  http://a.host/with/a/path five",
                "in pieces of {size}"
            );
        }
    }
}
