//! Shows Markdown on a terminal while it arrives.
//!
//! Output is final: a mark starts or ends its style immediately, and every style ends with its paragraph. Words, lines of code
//! and tables are shown when they are complete.

use super::blocks::{Fence, Line, indentation, unquoted};
use super::inline::{self, MARKS, Token};
use super::styled::{BOLD, CODE, LINK};
use super::table;
use super::wrap::{DIM, RESET, Wrap, columns};
use crate::text::clip;

/// Capabilities of the terminal.
#[derive(Clone, Copy, Default)]
pub(crate) struct Look {
    /// Width of the terminal; 0 disables wrapping.
    pub columns: usize,
}

/// Maximum number of bytes for detecting the kind of a line.
const MAX_START: usize = 256;

/// Writer of one answer.
#[derive(Default)]
pub(crate) struct Terminal {
    look: Look,
    /// Unread text of the current line.
    held: String,
    /// Whether the kind of the current line is known, and its marker was shown.
    is_begun: bool,
    /// The paragraph that the next line may continue; the value is whether it is in a quote.
    paragraph: Option<bool>,
    /// Base style of the current line.
    base: u16,
    /// Open marks by row of [`MARKS`], and the length of the open run of backticks.
    open: [bool; MARKS.len()],
    ticks: usize,
    is_in_link: bool,
    /// Last character read of the current line.
    before: Option<char>,
    /// Open code block, and whether it is in a quote.
    fence: Option<(Fence, bool)>,
    /// Lines of a table or a potential table.
    table: Vec<String>,
    wrap: Wrap,
}

impl Terminal {
    pub(crate) fn new(look: Look) -> Self {
        Self {
            look,
            wrap: Wrap::new(look.columns),
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
        *self = Self::new(self.look);
        out
    }

    fn show(&mut self, is_whole: bool, out: &mut String) {
        if let Some((fence, is_quoted)) = self.fence {
            if !is_whole {
                return;
            }
            if !is_quoted || matches!(Line::parse(&self.held), Line::Quote) {
                return self.show_code(fence, is_quoted, out);
            }
            // Code ends with the quote around it.
            self.fence = None;
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
        let held = std::mem::take(&mut self.held);
        let read = self.read(&held, is_whole, out);
        held[read..].clone_into(&mut self.held);
        if is_whole {
            self.end_line(out);
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
        let is_text = matches!(line, Line::Text | Line::Quote);
        if !is_text || self.paragraph != Some(is_quote) {
            self.end_styles();
        }
        let goes_on = is_text || matches!(line, Line::Item(..));
        self.paragraph = goes_on.then_some(is_quote);
        match line {
            Line::Blank => {
                start.truncate(start.trim_end().len());
                rest = "";
            }
            Line::Fence(fence, _) => {
                start += &(indentation(rest) + &dim(rest.trim()));
                self.fence = Some((fence, is_quote));
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
                if let Line::Fence(fence, _) = kind(rest) {
                    start += &dim(rest.trim());
                    self.fence = Some((fence, is_quote));
                    rest = "";
                }
            }
            Line::Quote | Line::Text => {
                start += &indentation(rest);
                hang += &indentation(rest);
                rest = rest.trim_start();
            }
        }
        rest.clone_into(&mut self.held);
        self.wrap.begin(&start, hang, out);
        self.is_begun = true;
    }

    /// Shows a line of a code block, unchanged.
    fn show_code(&mut self, fence: Fence, is_quoted: bool, out: &mut String) {
        let held = std::mem::take(&mut self.held);
        let mut line = held.as_str();
        if is_quoted {
            out.push_str(&(indentation(line) + &dim("│ ")));
            line = unquoted(line);
        }
        if fence.closes(line) {
            self.fence = None;
            out.push_str(&(indentation(line) + &dim(line.trim())));
        } else {
            out.push_str(line);
        }
        self.end_line(out);
    }

    fn end_styles(&mut self) {
        (self.open, self.ticks) = ([false; MARKS.len()], 0);
    }

    /// Shows the tokens of a text, all of them if it ends its line, and returns the length that it has read.
    fn read(&mut self, text: &str, is_last: bool, out: &mut String) -> usize {
        let mut at = 0;
        while let Some(len) = self.read_token(&text[at..], is_last, out) {
            assert!(len > 0, "each round takes text");
            at += len;
            self.before = text[..at].chars().next_back();
        }
        at
    }

    fn read_token(&mut self, rest: &str, is_last: bool, out: &mut String) -> Option<usize> {
        if self.ticks > 0 {
            return self.read_code(rest, is_last, out);
        }
        let (token, len) = inline::next(rest, self.before, is_last)?;
        match token {
            Token::Text(text) | Token::Whole(text) => self.put(text, 0, out),
            Token::Named(c) => self.put(c.encode_utf8(&mut [0; 4]), 0, out),
            Token::Mark { opens, closes } => self.mark(&rest[..len], opens, closes, out),
            Token::Ticks(run) => self.ticks = run,
            Token::Link { text, address } => self.link(text, address, out),
        }
        Some(len)
    }

    /// Reads code up to a run of backticks of equal length.
    fn read_code(&mut self, rest: &str, is_last: bool, out: &mut String) -> Option<usize> {
        let run = rest.len() - rest.trim_start_matches('`').len();
        let is_mark = self.before != Some('`') || run == 0;
        if run == 0 {
            let len = rest.find('`').unwrap_or(rest.len());
            self.put(&rest[..len], CODE, out);
            return Some(len).filter(|len| *len > 0);
        }
        if run == rest.len() && run <= self.ticks && is_mark && !is_last {
            return None;
        }
        if run == self.ticks && is_mark {
            self.ticks = 0;
        } else {
            self.put(&rest[..run], CODE, out);
        }
        Some(run)
    }

    fn put(&mut self, text: &str, style: u16, out: &mut String) {
        let open = MARKS.iter().zip(self.open).filter(|(_, is_open)| *is_open);
        let style = open.fold(self.base | style, |style, (row, _)| style | row.2);
        self.wrap.push(text, style, out);
    }

    fn mark(&mut self, run: &str, opens: bool, closes: bool, out: &mut String) {
        for (row, text) in inline::parts(run) {
            let is_open = self.open[row];
            if if is_open { closes } else { opens } {
                self.open[row] = !is_open;
            } else {
                self.put(text, 0, out);
            }
        }
    }

    /// Shows a link with its address. An image in the text of another link is not linked.
    fn link(&mut self, text: &str, address: &str, out: &mut String) {
        let is_outermost = !std::mem::replace(&mut self.is_in_link, true);
        if text.trim().is_empty() {
            self.put(address, 0, out);
        } else {
            self.before = None;
            self.read(text, true, out);
            self.ticks = 0;
        }
        if is_outermost && !["", address].contains(&text.trim()) {
            self.put(" ", 0, out);
            self.put(&format!("({address})"), LINK, out);
        }
        self.is_in_link = !is_outermost;
    }

    /// Shows the table, or the lines that did not become a table.
    fn end_table(&mut self, out: &mut String) {
        let lines = std::mem::take(&mut self.table);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let Some(first) = lines.first() else { return };
        (self.paragraph, self.before) = (None, None);
        if !table::begins(first, lines.get(1)) {
            for line in lines {
                self.end_styles();
                self.wrap.begin("", String::new(), out);
                self.read(line, true, out);
                self.end_line(out);
            }
            return;
        }
        let rows = table::rows(&lines);
        let cell = |n: usize, cell: &String| {
            let (mut writer, mut out) = (Self::new(Look::default()), String::new());
            writer.base = if n == 0 { BOLD } else { 0 };
            writer.read(cell, true, &mut out);
            writer.wrap.end_line(&mut out);
            out.replace('\n', " ")
        };
        let shown = rows.iter().enumerate();
        let shown = shown.map(|(n, row)| row.iter().map(|text| cell(n, text)).collect());
        let shown: Vec<Vec<String>> = shown.collect();
        let table = table::aligned(&shown, &table::alignment(lines[1]), usize::MAX);
        let most = self.look.columns;
        if most == 0 || table.lines().all(|line| columns(line) < most) {
            out.push_str(&table);
        } else {
            self.list(&rows, out);
        }
    }

    /// Shows each cell on a line, after the name of its column.
    fn list(&mut self, rows: &[Vec<String>], out: &mut String) {
        for (n, row) in rows.iter().enumerate().skip(1) {
            out.push_str(if n == 1 { "" } else { "\n" });
            for (name, cell) in rows[0].iter().zip(row) {
                self.wrap.begin("", "  ".to_owned(), out);
                self.base = BOLD;
                self.end_styles();
                self.read(name, true, out);
                self.base = 0;
                self.end_styles();
                self.before = None;
                self.wrap.push(": ", 0, out);
                self.read(cell, true, out);
                self.end_line(out);
            }
        }
        self.end_styles();
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
    let text = line.trim();
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let may_be_number =
        (1..=9).contains(&(text.len() - rest.len())) && ["", ".", ")"].contains(&rest);
    match Line::parse(line) {
        Line::Blank | Line::Fence(..) | Line::Rule => true,
        // The item may become a checkbox.
        Line::Item(_, text) => may_change(text) || text.starts_with('[') && text.len() < 4,
        Line::Quote => may_change(unquoted(line)),
        _ => may_be_number || text.chars().all(|c| "`~#-*_+ ".contains(c)),
    }
}

fn dim(text: &str) -> String {
    let shown = text.trim_end();
    format!("{DIM}{shown}{RESET}{}", &text[shown.len()..])
}

#[cfg(test)]
mod tests {
    use super::super::wrap::STYLES;
    use super::*;

    const LOOK: Look = Look { columns: 100 };

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
    fn on(look: Look, text: &str) -> String {
        let mut terminal = Terminal::new(look);
        let shown = tagged(&(terminal.push(text) + &terminal.finish()));
        shown.strip_suffix('\n').unwrap_or(&shown).to_owned()
    }

    #[test]
    fn marks_become_styles() {
        for (text, shown) in [
            ("plain", "plain"),
            ("a **bold** word", "a <b>bold</> word"),
            ("这是**粗体**文字", "这是<b>粗体</>文字"),
            ("an *old* and _new_ one", "an <i>old</> and <i>new</> one"),
            ("***both*** of them", "<b><i>both</> of them"),
            (
                "~~gone for good~~, ~5 and ||hidden||",
                "<s>gone for good</>, ~5 and ||hidden||",
            ),
            ("run `ls **` now", "run <code>ls **</> now"),
            ("``a`b``!", "<code>a`b</>!"),
            (
                "**use `x` and *y***.",
                "<b>use </><b><code>x</><b> and </><b><i>y</>.",
            ),
            ("*a snake_ b*", "<i>a snake_ b</>"),
            ("**two\nlines** here", "<b>two</>\n<b>lines</> here"),
            ("# Title\ntext", "<b>Title</>\ntext"),
            ("## A `b` c", "<b>A </><b><code>b</><b> c</>"),
            (
                "- one\n  * **two**\n    + three\n- four",
                "• one\n  • <b>two</>\n    • three\n• four",
            ),
            (
                "- [ ] open\n- [x] done\n- [ ]\n- [t](http://h)",
                "☐ open\n☑ done\n• [ ]\n• t <dim>(http://h)</>",
            ),
            ("1. one\n2) two\n   - three", "1. one\n2) two\n   • three"),
            (
                "> said\n>\n> > so",
                "<dim>│</> said\n<dim>│</>\n<dim>│</> > so",
            ),
            (
                "> - one\n>   - two\n> 1. three\n> # T",
                "<dim>│</> • one\n<dim>│</>   • two\n<dim>│</> 1. three\n<dim>│</> <b>T</>",
            ),
            (
                "a &lt;b&gt; &amp;&nbsp;c<br>d<BR/>e",
                "a <b> &\u{a0}c\nd\ne",
            ),
            ("&copy; &mdash; &#8364; &#x1F600;", "© — € 😀"),
            (
                "a < b && c &lt d &nope; &#27; &rlm;",
                "a < b && c &lt d &nope; &#27; &rlm;",
            ),
            ("---", "<dim>────────────────────</>"),
            ("\\*not\\* this", "*not* this"),
        ] {
            assert_eq!(on(LOOK, text), shown, "{text:?}");
        }
    }

    #[test]
    fn links_lead_where_they_say() {
        let text = "see [the **docs**](http://h/_x_/(y)), ![a](http://i), [![b](http://j)](http://k) and http://h.";
        assert_eq!(
            on(LOOK, text),
            "see the <b>docs</> <dim>(http://h/_x_/(y))</>, a <dim>(http://i)</>, b <dim>(http://k)</> and http://h."
        );
        assert_eq!(
            on(LOOK, "[http://h](http://h) [](http://h)"),
            "http://h http://h"
        );
    }

    #[test]
    fn code_is_shown_line_by_line_as_it_is() {
        for (text, shown) in [
            (
                "```sh\nls *.rs # **x**\n\n  ``\n```\n**b**",
                "<dim>```sh</>\nls *.rs # **x**\n\n  ``\n<dim>```</>\n<b>b</>",
            ),
            (
                "~~~~\n```\n~~~\n~~~~",
                "<dim>~~~~</>\n```\n~~~\n<dim>~~~~</>",
            ),
            ("```\nnever closed", "<dim>```</>\nnever closed"),
            (
                "- ```sh\n  ls\n  ```\n- b",
                "• <dim>```sh</>\n  ls\n  <dim>```</>\n• b",
            ),
            (
                "> ```sh\n> ls **\n> ```\n> end",
                "<dim>│</> <dim>```sh</>\n<dim>│</> ls **\n<dim>│</> <dim>```</>\n<dim>│</> end",
            ),
            (
                "> ```\n> ls\n**end**",
                "<dim>│</> <dim>```</>\n<dim>│</> ls\n<b>end</>",
            ),
        ] {
            assert_eq!(on(LOOK, text), shown, "{text:?}");
        }
        let long = format!("```\n{}\n```", "word ".repeat(40));
        assert_eq!(on(LOOK, &long).lines().count(), 3, "code is never wrapped");
    }

    #[test]
    fn tables_are_aligned_or_listed_where_they_do_not_fit() {
        let table = "| Plant | **Water** |\n|:--|--:|\n| 罗勒 basil | `2` l |\n| [mint](http://m) | a<br>10 l |\nDone.";
        assert_eq!(
            on(LOOK, table),
            "<b>Plant</>           │  <b>Water</>\n────────────────┼───────\n罗勒 basil      │    <code>2</> l\n\
             mint <dim>(http://m)</> │ a 10 l\nDone."
        );
        let narrow = |columns, table: &str| on(Look { columns }, table);
        let table = "| a | b |\n|---|---|\n| one two | three |\n| 1 | 2 |\n";
        let listed = "<b>a</>: one two\n<b>b</>: three\n\n<b>a</>: 1\n<b>b</>: 2";
        assert_eq!(narrow(15, table), listed);
        assert_eq!(narrow(10, table).lines().nth(1), Some("  two"));
        assert!(narrow(16, table).starts_with("<b>a</>       │ <b>b</>\n"));
    }

    #[test]
    fn paragraphs_lists_and_quotes_wrap_between_words() {
        let narrow = Look { columns: 17 };
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
                "see\nhttp://host/a/long/path now",
            ),
        ] {
            assert_eq!(on(narrow, text), shown, "{text:?}");
        }
    }

    #[test]
    fn streamed_words_appear_when_complete() {
        let mut terminal = Terminal::new(LOOK);
        for (piece, shown) in [
            ("First wo", "First"),
            ("rds, ", " words,"),
            ("**bold wo", " <b>bold"),
            ("rd** a", " word</>"),
            (" [li", " a"),
            ("nk](http://h", ""),
            (") b\n", " link <dim>(http://h)</> b\n"),
            ("- ", ""),
            ("c", "• "),
            ("\n\n**un", "c\n\n"),
        ] {
            assert_eq!(tagged(&terminal.push(piece)), shown, "{piece:?}");
        }
        assert_eq!(tagged(&terminal.finish()), "<b>un</>\n");
        assert_eq!(terminal.push(&format!("[{} ", "x".repeat(600))).len(), 601);
    }
}
