//! Shows Markdown on a terminal while it arrives.
//!
//! Output is final: a word is shown when it is complete and its style is known, a line of code or a table when it is complete.

use std::iter;

use super::blocks::{Fence, Line, indentation, unquoted};
use super::inline;
use super::styled::{BOLD, StyledText};
use super::table;
use super::wrap::{DIM, RESET, SHOWN, Wrap, columns};
use crate::text::clip;

/// Maximum number of bytes for detecting the kind of a line.
const MAX_START: usize = 256;

/// Writer of one answer.
#[derive(Default)]
pub(crate) struct Terminal {
    /// Width of the terminal. A change counts from the next line of text or table on.
    pub(crate) columns: usize,
    /// Unread text of the current line.
    held: String,
    /// Whether the kind of the current line is known, and its marker was shown.
    is_begun: bool,
    /// Base style of the current line.
    base: u16,
    /// Last character read of the current line.
    before: Option<char>,
    /// Open code block.
    fence: Option<Fence>,
    /// Lines of a table or a potential table.
    table: Vec<String>,
    wrap: Wrap,
}

impl Terminal {
    /// Writes for a terminal of this width.
    pub(crate) fn new(columns: usize) -> Self {
        Self {
            columns,
            ..Self::default()
        }
    }

    /// Adds the next piece of the answer, and returns the text to show now.
    pub(crate) fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for piece in text.split_inclusive('\n') {
            let line = piece.strip_suffix('\n');
            self.held.push_str(line.unwrap_or(piece));
            self.show(line.is_some(), &mut out);
        }
        out
    }

    /// Returns the remaining text, and resets the writer for a new answer.
    pub(crate) fn finish(&mut self) -> String {
        let mut out = String::new();
        if self.is_begun || !self.held.is_empty() {
            self.show(true, &mut out);
        }
        self.end_table(&mut out);
        *self = Self::new(self.columns);
        out
    }

    fn show(&mut self, is_whole: bool, out: &mut String) {
        if let Some(fence) = self.fence {
            if is_whole {
                self.show_code(fence, out);
            }
            return;
        }
        if !self.is_begun {
            let is_short = self.held.len() < MAX_START;
            let is_row = clip(&self.held, MAX_START).trim_start().starts_with('|');
            if !is_whole && (is_row || is_short && may_change(&self.held)) {
                return;
            }
            if is_row {
                return self.table.push(std::mem::take(&mut self.held));
            }
            self.end_table(out);
            self.begin(out);
        }
        let mut styled = StyledText::default();
        if is_whole {
            inline::read_rest(&self.held, self.before, self.base, &mut styled);
            self.held.clear();
            put(&styled, &mut self.wrap, out);
            self.end_line(out);
        } else {
            let read = inline::read_settled(&self.held, self.before, self.base, &mut styled);
            self.before = self.held[..read].chars().next_back().or(self.before);
            self.held.drain(..read);
            put(&styled, &mut self.wrap, out);
        }
    }

    fn end_line(&mut self, out: &mut String) {
        self.wrap.end_line(out);
        out.push('\n');
        (self.is_begun, self.base, self.before) = (false, 0, None);
    }

    /// Shows the marker of a line.
    fn begin(&mut self, out: &mut String) {
        let held = std::mem::take(&mut self.held);
        let (mut rest, mut start) = (held.as_str(), String::new());
        let is_quote = matches!(kind(rest), Line::Quote);
        if is_quote {
            start = format!("{}{}", indentation(rest), dim("│ "));
            rest = unquoted(rest);
        }
        let mut hang = start.clone();
        let line = kind(rest);
        match line {
            Line::Blank => {
                start.truncate(start.trim_end().len());
                rest = "";
            }
            Line::Fence(fence, _) if !is_quote => {
                start += &(indentation(rest) + &dim(rest.trim()));
                self.fence = Some(fence);
                rest = "";
            }
            Line::Heading(_) => {
                self.base = BOLD;
                rest = rest.trim_start().trim_start_matches('#').trim_start();
            }
            Line::Rule => {
                start += &dim(&"─".repeat(20));
                rest = "";
            }
            Line::Item(marker, text) => {
                let marker = format!("{}{marker} ", indentation(rest));
                start += &marker;
                hang += &" ".repeat(columns(&marker));
                rest = &rest[rest.trim_end().len() - text.len()..];
                if let (Line::Fence(fence, _), false) = (kind(rest), is_quote) {
                    start += &dim(rest.trim());
                    self.fence = Some(fence);
                    rest = "";
                }
            }
            Line::Quote | Line::Text | Line::Fence(..) => {
                start += &indentation(rest);
                hang += &indentation(rest);
                rest = rest.trim_start();
            }
        }
        rest.clone_into(&mut self.held);
        self.begin_wrap(&start, hang, out);
        self.is_begun = true;
    }

    /// Wraps from here on. The last column remains empty, because terminals differ there.
    fn begin_wrap(&mut self, start: &str, hang: String, out: &mut String) {
        self.wrap.limit = self.columns.saturating_sub(1);
        self.wrap.begin(start, hang, out);
    }

    /// Shows a line of a code block, unchanged.
    fn show_code(&mut self, fence: Fence, out: &mut String) {
        let line = std::mem::take(&mut self.held);
        if fence.closes(&line) {
            self.fence = None;
            out.push_str(&(indentation(&line) + &dim(line.trim())));
        } else {
            out.push_str(&line);
        }
        self.end_line(out);
    }

    /// Shows the table, or the lines that did not become a table.
    fn end_table(&mut self, out: &mut String) {
        let lines = std::mem::take(&mut self.table);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let Some(first) = lines.first() else { return };
        // A list of cells would not show a table that has only names of columns.
        if lines.len() < 3 || !table::begins(first, lines.get(1)) {
            for line in lines {
                self.show_row(&[(line, 0)], out);
            }
            return;
        }
        let rows = table::rows(&lines);
        let cell = |n: usize, cell: &String| {
            let (mut wrap, mut out) = (Wrap::default(), String::new());
            let base = if n == 0 { BOLD } else { 0 };
            put(&read(cell, base), &mut wrap, &mut out);
            wrap.end_line(&mut out);
            out.replace('\n', " ")
        };
        let shown = rows.iter().enumerate();
        let shown = shown.map(|(n, row)| row.iter().map(|text| cell(n, text)).collect());
        let shown: Vec<Vec<String>> = shown.collect();
        // One long cell must not pad a million rows.
        let table = table::aligned(&shown, self.columns);
        if table.lines().all(|line| columns(line) < self.columns) {
            out.push_str(&table);
        } else {
            self.list(&rows, out);
        }
    }

    /// Shows each cell on a line, after the name of its column.
    fn list(&mut self, rows: &[Vec<String>], out: &mut String) {
        for (n, row) in rows.iter().enumerate().skip(1) {
            out.push_str(if n == 1 { "" } else { "\n" });
            let names = rows[0].iter().map(String::as_str);
            for (name, cell) in names.chain(iter::repeat("")).zip(row) {
                let colon = if name.is_empty() { "" } else { ": " };
                self.show_row(&[(name, BOLD), (colon, 0), (cell, 0)], out);
            }
        }
    }

    /// Shows a line of texts with their styles.
    fn show_row(&mut self, texts: &[(&str, u16)], out: &mut String) {
        self.begin_wrap("", "  ".to_owned(), out);
        for (text, base) in texts {
            put(&read(text, *base), &mut self.wrap, out);
        }
        self.end_line(out);
    }
}

fn read(text: &str, base: u16) -> StyledText {
    let mut styled = StyledText::default();
    inline::read(text, base, &mut styled);
    styled
}

/// Shows a text, and the address of each link after it.
fn put(styled: &StyledText, wrap: &mut Wrap, out: &mut String) {
    let styled = styled.with_addresses(0..styled.text.len(), SHOWN);
    let mut at = 0;
    for (end, style) in styled.runs_from(0) {
        wrap.push(&styled.text[at..*end], style.marks, out);
        at = *end;
    }
}

/// Returns the kind of a line. A long undecided line is text.
fn kind(line: &str) -> Line<'_> {
    if line.len() >= MAX_START && may_change(clip(line, MAX_START)) {
        Line::Text
    } else {
        Line::parse(line)
    }
}

/// Whether the kind of a line may change when more text arrives.
fn may_change(line: &str) -> bool {
    let text = line.trim_start_matches(|c: char| c.is_whitespace() || c == '>');
    let may_mark = |c: char| c.is_ascii_digit() || c.is_whitespace() || "`~#-*_+.)".contains(c);
    let line = match Line::parse(text) {
        Line::Item(_, text) => Line::parse(text),
        line => line,
    };
    text.chars().all(may_mark) || matches!(line, Line::Fence(..))
}

fn dim(text: &str) -> String {
    let shown = text.trim_end();
    format!("{DIM}{shown}{RESET}{}", &text[shown.len()..])
}

#[cfg(test)]
mod tests {
    use super::super::tests;
    use super::super::wrap::STYLES;
    use super::*;

    const WIDTH: usize = 100;

    /// Replaces escape sequences by tags, for readable test tables.
    fn tagged(text: &str) -> String {
        [
            (RESET, "</>"),
            (STYLES[0].1, "<b>"),
            (STYLES[1].1, "<i>"),
            (STYLES[2].1, "<s>"),
            (STYLES[3].1, "<code>"),
            (DIM, "<dim>"),
            ("\x1b\\", ">"),
        ]
        .iter()
        .fold(text.to_owned(), |text, (sequence, tag)| {
            text.replace(sequence, tag)
        })
    }

    /// Returns the output for a text, without the line feed at its end.
    fn on(columns: usize, text: &str) -> String {
        let mut terminal = Terminal::new(columns);
        let shown = tagged(&(terminal.push(text) + &terminal.finish()));
        shown.strip_suffix('\n').unwrap_or(&shown).to_owned()
    }

    #[test]
    fn markdown_is_written_for_messages_and_terminals() {
        // Texts, their HTML and their view at the terminal, between empty lines; `⏎` is a line feed.
        let cases = include_str!("../../tests/corpus/markdown.txt").split("\n\n");
        for case in cases {
            let fields: Vec<String> = case.lines().map(|line| line.replace('⏎', "\n")).collect();
            assert_eq!(tests::html(&fields[0]), fields[1], "{case}");
            assert_eq!(on(WIDTH, &fields[0]), fields[2], "{case}");
        }
        let long = format!("```\n{}\n```", "word ".repeat(40));
        assert_eq!(on(WIDTH, &long).lines().count(), 3, "code is never wrapped");
    }

    #[test]
    fn links_lead_where_they_say() {
        let text = "see [the **docs**](http://h/_x_/(y)), ![a](http://i), [![b](http://j)](http://k) and http://h.";
        assert_eq!(
            on(WIDTH, text),
            "see the <b>docs</><dim> (http://h/_x_/(y))</>, a<dim> (http://i)</>, b<dim> (http://k)</> and http://h."
        );
        assert_eq!(
            on(WIDTH, "[http://h](http://h) [](http://h)"),
            "http://h http://h"
        );
    }

    #[test]
    fn tables_are_aligned_or_listed_where_they_do_not_fit() {
        let table = "| Plant | **Water** |\n|:--|--:|\n| 罗勒 basil | `2` l |\n| [mint](http://m) | a<br>10 l |\nDone.";
        assert_eq!(
            on(WIDTH, table),
            "<b>Plant</>           │ <b>Water</>\n────────────────┼───────\n罗勒 basil      │ <code>2</> l\n\
             mint<dim> (http://m)</> │ a 10 l\nDone."
        );
        let narrow = |columns, table: &str| on(columns, table);
        let table = "| a | b |\n|---|---|\n| one two | three |\n| 1 | 2 |\n";
        let listed = "<b>a</>: one two\n<b>b</>: three\n\n<b>a</>: 1\n<b>b</>: 2";
        assert_eq!(narrow(15, table), listed);
        assert_eq!(narrow(10, table).lines().nth(1), Some("  two"));
        let unfinished = "| first column | second |\n|---|---|";
        assert!(narrow(15, unfinished).contains("second"));
        assert!(narrow(16, table).starts_with("<b>a</>       │ <b>b</>\n"));
    }

    #[test]
    fn paragraphs_lists_and_quotes_wrap_between_words() {
        let narrow = 17;
        for (text, shown) in [
            ("one two three four", "one two three\nfour"),
            ("- one **two three** x", "• one <b>two three</>\n  x"),
            ("10. one two three four", "10. one two\n    three four"),
            (
                "> one **two three four**",
                "<dim>│</> one <b>two three</>\n<dim>│</> <b>four</>",
            ),
            ("  one two three four", "  one two three\n  four"),
            ("世界世界世界世界世界", "世界世界世界世界\n世界"),
            (
                "see http://host/a/long/path now",
                "see\nhttp://host/a/long/path\nnow",
            ),
        ] {
            assert_eq!(on(narrow, text), shown, "{text:?}");
        }
    }

    #[test]
    fn streamed_words_appear_when_complete() {
        let mut terminal = Terminal::new(WIDTH);
        for (piece, shown) in [
            ("First wo", "First"),
            ("rds, ", " words,"),
            ("**bold wo", ""),
            ("rd** a", " <b>bold word</>"),
            (" [li", " a"),
            ("nk](http://h", ""),
            (") b\n", " link<dim> (http://h)</> b\n"),
            ("- ", ""),
            ("c", "• "),
            ("\n\n**un", "c\n\n"),
        ] {
            assert_eq!(tagged(&terminal.push(piece)), shown, "{piece:?}");
        }
        assert_eq!(tagged(&terminal.finish()), "**un\n");
        assert_eq!(terminal.push(&format!("[{} ", "x".repeat(400))).len(), 401);
    }
}
