//! Markdown on a terminal, shown while it streams in.
//!
//! Text goes through as soon as nothing behind it can change how it reads: it is held back while a mark or a link is open, and
//! never over the end of its line. A table is shown when it is complete.

use super::blocks::{BULLET, Fence, Line};
use super::inline::{self, PLAIN, TERMINAL};
use super::styled::{BOLD, CODE, ITALIC, LINK, STRIKE, Style, StyledText};
use super::table::{self, Table};
use super::wrap::{Wrap, columns};

/// What the terminal can show.
#[derive(Clone, Copy, Default)]
pub(crate) struct Look {
    /// 256 colours.
    pub colors: bool,
    /// Links by OSC 8.
    pub links: bool,
    pub columns: usize,
}

const RESET: &str = "\x1b[0m";
const DIM: &str = "\x1b[2m";
const CYAN: &str = "\x1b[36m";
/// Light grey on dark grey, which is readable on every background.
const BLOCK: &str = "\x1b[48;5;236;38;5;252m";
const STYLES: [(u16, &str); 4] = [
    (BOLD, "\x1b[1m"),
    (ITALIC, "\x1b[3m"),
    (STRIKE, "\x1b[9m"),
    (CODE, CYAN),
];

/// The most bytes held back for a mark that may yet be closed.
const MAX_HELD: usize = 600;

/// The writer of one answer.
#[derive(Default)]
pub(crate) struct Markdown {
    look: Look,
    /// What is not shown yet of the current line.
    held: String,
    /// The kind of the current line is known, and its marker shown.
    is_begun: bool,
    /// The current line shows nothing.
    is_silent: bool,
    /// The style of the current line.
    base: u16,
    /// The last character read of the current line.
    before: Option<char>,
    /// The code block that is open, and whether it stands in a quote.
    fence: Option<Fence>,
    is_quoted: bool,
    /// The lines of a table, or of what may become one.
    table: Vec<String>,
    wrap: Wrap,
}

impl Markdown {
    pub(crate) fn new(look: Look) -> Self {
        Self {
            look,
            wrap: Wrap::new(look.columns),
            ..Self::default()
        }
    }

    /// Takes the next piece of the answer and returns what can be shown now.
    pub(crate) fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for piece in text.split_inclusive('\n') {
            let line = piece.strip_suffix('\n');
            self.held.push_str(line.unwrap_or(piece));
            self.show(line.is_some(), &mut out);
            if line.is_some() && !std::mem::take(&mut self.is_silent) {
                out.push('\n');
            }
        }
        out
    }

    /// Returns what is still held. A new answer may follow.
    pub(crate) fn finish(&mut self) -> String {
        let mut out = String::new();
        if self.is_begun || !self.held.is_empty() {
            self.show(true, &mut out);
        }
        self.end_table(&mut out);
        (self.fence, self.is_quoted, self.is_silent) = (None, false, false);
        out
    }

    fn show(&mut self, is_whole: bool, out: &mut String) {
        let was_code = self.fence.is_some();
        if !self.is_begun {
            if !is_whole && self.is_undecided() {
                return;
            }
            if self.is_row() {
                self.is_silent = true;
                return self.table.push(std::mem::take(&mut self.held));
            }
            self.end_table(out);
            self.begin(out);
            self.is_begun = true;
        }
        if was_code && self.fence.is_some() {
            self.show_code(out);
        } else {
            self.show_spans(is_whole || self.held.len() > MAX_HELD, out);
        }
        if is_whole {
            self.wrap.end_line(out);
            (self.is_begun, self.base, self.before) = (false, 0, None);
        }
    }

    /// Whether the line may belong to a table. Models begin each of its rows with a bar.
    fn is_row(&self) -> bool {
        self.fence.is_none() && self.held.trim_start().starts_with('|')
    }

    /// Whether the kind of the line may still change.
    fn is_undecided(&self) -> bool {
        match self.fence {
            Some(fence) if self.is_quoted => {
                fence.may_close(self.held.trim_start_matches(['>', ' ']))
            }
            Some(fence) => fence.may_close(&self.held),
            None => self.is_row() || may_change(&self.held),
        }
    }

    /// Shows the marker of a line.
    fn begin(&mut self, out: &mut String) {
        if self.is_quoted {
            self.begin_quoted_code(out);
        }
        if let Some(fence) = self.fence {
            if fence.closes(&self.held) {
                (self.fence, self.is_quoted) = (None, false);
                self.held.clear();
                self.is_silent = true;
            } else if self.look.colors {
                // The row to its edge, before there is text: behind a full row it would erase the last character.
                paint(out, BLOCK, "\x1b[K");
            }
            return;
        }
        let indent = self.held.len() - self.held.trim_start().len();
        match Line::of(&self.held) {
            Line::Fence(fence, language) => {
                paint(
                    out,
                    DIM,
                    &format!(
                        "{}{language}",
                        if language.is_empty() {
                            ""
                        } else {
                            &self.held[..indent]
                        }
                    ),
                );
                self.is_silent = language.is_empty();
                self.fence = Some(fence);
                self.held.clear();
            }
            Line::Heading(title) => {
                self.base = BOLD;
                let start = self.held.find(title).unwrap_or(0);
                self.held.drain(..start);
            }
            Line::Rule => {
                paint(out, DIM, &"─".repeat(20));
                self.held.clear();
            }
            Line::Quote => {
                let mut bar = self.held[..indent].to_owned();
                paint(&mut bar, DIM, "│");
                self.held.drain(..=indent);
                self.begin_in_quote(&bar, out);
            }
            Line::Item(marker, text) if !marker.ends_with(['.', ')']) => {
                let bullet = if marker == BULLET {
                    ["•", "◦", "▪"][(indent / 2).min(2)]
                } else {
                    marker
                };
                let marker = format!("{}{bullet} ", &self.held[..indent]);
                let start = self.held.trim_end().len() - text.len();
                self.held.drain(..start);
                let hang = " ".repeat(columns(&marker));
                self.wrap.begin(&marker, hang, out);
            }
            // A number is shown as it is written.
            Line::Item(marker, _) => {
                let start = self.held[..indent + marker.len()].to_owned();
                self.held.drain(..start.len());
                let hang = " ".repeat(columns(&start) + 1);
                self.wrap.begin(&start, hang, out);
            }
            Line::Text => {
                let start = self.held[..indent].to_owned();
                self.held.drain(..indent);
                self.wrap.begin(&start, start.clone(), out);
            }
            Line::Blank => {}
        }
    }

    /// Shows the marker of a line in a quote: a list or a code block may stand in it, too.
    fn begin_in_quote(&mut self, bar: &str, out: &mut String) {
        let bar = format!("{bar} ");
        let inside = self.held.strip_prefix(' ').unwrap_or(&self.held).to_owned();
        match Line::of(&inside) {
            Line::Fence(fence, language) => {
                out.push_str(&bar);
                paint(out, DIM, language);
                (self.fence, self.is_quoted) = (Some(fence), true);
                self.held.clear();
            }
            Line::Item(marker, text) if !marker.ends_with(['.', ')']) => {
                let indent = &inside[..inside.len() - inside.trim_start().len()];
                let hang = format!("{bar}{indent}  ");
                self.wrap
                    .begin(&format!("{bar}{indent}{marker} "), hang, out);
                self.held = inside[inside.trim_end().len() - text.len()..].to_owned();
            }
            Line::Heading(title) => {
                self.base = BOLD;
                self.wrap.begin(&bar, bar.clone(), out);
                self.held = inside[inside.find(title).unwrap_or(0)..].to_owned();
            }
            _ => {
                self.wrap.begin(bar.trim_end_matches(' '), bar.clone(), out);
            }
        }
    }

    /// Shows the bar before a line of code in a quote, which ends with the quote.
    fn begin_quoted_code(&mut self, out: &mut String) {
        let Some(code) = self.held.trim_start().strip_prefix('>') else {
            (self.fence, self.is_quoted) = (None, false);
            return;
        };
        let code = code.strip_prefix(' ').unwrap_or(code).to_owned();
        self.held = code;
        if self.fence.is_some_and(|fence| !fence.closes(&self.held)) {
            paint(out, DIM, "│");
            out.push(' ');
        }
    }

    fn show_code(&mut self, out: &mut String) {
        paint(out, if self.look.colors { BLOCK } else { CYAN }, &self.held);
        self.held.clear();
    }

    fn show_spans(&mut self, is_all: bool, out: &mut String) {
        let mut styled = StyledText::default();
        let len = inline::read_piece(&self.held, self.before, is_all, self.base, &mut styled);
        let mut painted = String::new();
        self.paint_styled(&styled, &mut painted);
        self.wrap.push(&painted, out);
        self.before = self.held[..len].chars().next_back().or(self.before);
        self.held.drain(..len);
    }

    fn paint_styled(&self, styled: &StyledText, out: &mut String) {
        let address = |style: &Style| {
            style
                .has(LINK)
                .then(|| styled.targets[style.target].as_str())
        };
        let (mut at, mut start) = (0, 0);
        let runs = styled.runs_from(0);
        for (n, (end, style)) in runs.iter().enumerate() {
            let link = address(style);
            let is_first = n == 0 || address(&runs[n - 1].1) != link;
            let is_last = runs
                .get(n + 1)
                .is_none_or(|(_, next)| address(next) != link);
            start = if is_first { at } else { start };
            if let Some(link) = link.filter(|_| is_first && self.look.links) {
                out.push_str(&format!("\x1b]8;;{link}\x1b\\"));
            }
            let codes: String = STYLES
                .iter()
                .filter(|(mark, _)| style.has(*mark))
                .map(|(_, code)| *code)
                .collect();
            paint(out, &codes, &styled.text[at..*end]);
            at = *end;
            match link.filter(|_| is_last) {
                Some(_) if self.look.links => out.push_str("\x1b]8;;\x1b\\"),
                Some(link) if styled.text[start..at] != *link => {
                    paint(out, DIM, &format!(" ({link})"));
                }
                _ => {}
            }
        }
    }

    /// Shows the table, or the lines that did not become one.
    fn end_table(&mut self, out: &mut String) {
        let lines = std::mem::take(&mut self.table);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let Some(first) = lines.first() else { return };
        let cell = |text: &str, is_header: bool| {
            let (mut styled, mut shown) = (StyledText::default(), String::new());
            let styles = if self.look.links { TERMINAL } else { PLAIN };
            inline::read(text, if is_header { BOLD } else { 0 }, styles, &mut styled);
            self.paint_styled(&styled, &mut shown);
            (shown, table::longest_line(&styled.text))
        };
        if table::begins(first, lines.get(1)) {
            let mut table = Table::read(&lines, cell);
            let fits = table.shrink(self.look.columns.saturating_sub(1));
            return out.push_str(&if fits {
                table.aligned()
            } else {
                table.listed()
            });
        }
        for line in lines {
            out.push_str(&cell(line, false).0);
            out.push('\n');
        }
    }
}

/// Whether the kind of a line may change while it goes on.
fn may_change(line: &str) -> bool {
    match Line::of(line) {
        Line::Fence(..) => true,
        // It may become a checkbox.
        Line::Item(_, text) => text.is_empty() || text.starts_with('[') && text.len() < 4,
        Line::Quote => {
            let inside = line.trim_start().trim_start_matches('>');
            inside.trim().is_empty() || may_change(inside)
        }
        _ => line.trim().chars().all(|c| "`~#-*_+>".contains(c)),
    }
}

fn paint(out: &mut String, style: &str, text: &str) {
    let reset = if style.is_empty() { "" } else { RESET };
    if !text.is_empty() {
        out.extend([style, text, reset]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Look = Look {
        colors: true,
        links: true,
        columns: 100,
    };

    /// Tags for escape sequences, so that the tables can be read.
    fn tagged(text: &str) -> String {
        [
            (RESET, "</>"),
            (STYLES[0].1, "<b>"),
            (DIM, "<dim>"),
            (STYLES[1].1, "<i>"),
            (STYLES[2].1, "<s>"),
            (CYAN, "<code>"),
            (BLOCK, "<block>"),
            ("\x1b[K", "<edge>"),
            ("\x1b]8;;\x1b\\", "</a>"),
            ("\x1b]8;;", "<a "),
            ("\x1b\\", ">"),
        ]
        .iter()
        .fold(text.to_owned(), |text, (sequence, tag)| {
            text.replace(sequence, tag)
        })
    }

    fn whole(text: &str) -> String {
        on(LOOK, text)
    }

    fn on(look: Look, text: &str) -> String {
        let mut markdown = Markdown::new(look);
        tagged(&(markdown.push(text) + &markdown.finish()))
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
                "~~gone~~, ~5 and ||hidden||",
                "<s>gone</>, ~5 and ||hidden||",
            ),
            ("run `ls **` now", "run <code>ls **</> now"),
            ("`` a`b ``!", "<code>a`b</>!"),
            (
                "**use `x` and *y***.",
                "<b>use </><b><code>x</><b> and </><b><i>y</>.",
            ),
            ("# Title\ntext", "<b>Title</>\ntext"),
            ("## A `b` c\n", "<b>A </><b><code>b</><b> c</>\n"),
            (
                "- one\n  * **two**\n    + three\n- four",
                "• one\n  ◦ <b>two</>\n    ▪ three\n• four",
            ),
            (
                "- [ ] open\n- [x] done\n- [ ]\n- [t](http://h)",
                "☐ open\n☑ done\n• [ ]\n• <a http://h>t</a>",
            ),
            ("1. one\n2) two\n   - three", "1. one\n2) two\n   ◦ three"),
            ("> said", "<dim>│</> said"),
            (
                "> - one\n>   - two\n> 1. three\n> # T",
                "<dim>│</> • one\n<dim>│</>   • two\n<dim>│</> 1. three\n<dim>│</> <b>T</>",
            ),
            (
                "> ```sh\n> ls **\n> ```\n> end",
                "<dim>│</> <dim>sh</>\n<dim>│</> <block><edge></><block>ls **</>\n<dim>│</> end",
            ),
            (
                "> ```\n> ls\nend",
                "<dim>│</> \n<dim>│</> <block><edge></><block>ls</>\nend",
            ),
            ("a &lt;b&gt; &amp;&nbsp;c<br>d<BR>e", "a <b> &\u{a0}c\nd\ne"),
            ("a < b && c &lt d", "a < b && c &lt d"),
            (
                "\\(a_1 \\cdot b_1\\) and \\(so on",
                "<code>a_1 \\cdot b_1</> and (so on",
            ),
            ("---\n", "<dim>────────────────────</>\n"),
            ("\\*not\\* this", "*not* this"),
        ] {
            assert_eq!(whole(text), shown, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_markdown_is_shown_as_it_came() {
        for text in [
            "snake_case_name and __init__",
            "2*3*4 = 24, 2 * 3 * 4, 2**3",
            "*.rs and *.toml",
            "an open **bold\nand `code\nand *so on",
            "#hashtag\n####### seven",
            "-5 degrees\n--flag\n*",
            "a \\d+ C:\\dir",
            "a | b\n|x| is not negative\n| nor | this |\nend",
            "[text] (see [1]), a[0](x, [open",
            "``inline``` here",
            "   \n\n\tx",
        ] {
            assert_eq!(whole(text).trim_end_matches('\n'), text);
        }
    }

    #[test]
    fn links_lead_where_they_say() {
        let text = "see [the **docs**](http://h/_x_/y_z), ![a](http://i) and http://h.";
        assert_eq!(
            whole(text),
            "see <a http://h/_x_/y_z>the <b>docs</></a>, <a http://i>a</a> and http://h."
        );
        let plain = Look {
            links: false,
            ..LOOK
        };
        assert_eq!(
            on(plain, text),
            "see the <b>docs</><dim> (http://h/_x_/y_z)</>, a<dim> (http://i)</> and http://h."
        );
        assert_eq!(on(plain, "[http://h](http://h)"), "http://h");
    }

    #[test]
    fn code_blocks_keep_every_character_and_end_where_they_say() {
        assert_eq!(
            whole("```sh\nls *.rs # **x**\n\n  ``\n```\n**b**"),
            "<dim>sh</>\n<block><edge></><block>ls *.rs # **x**</>\n<block><edge></>\n<block><edge></><block>  ``</>\n<b>b</>"
        );
        let dull = Look {
            colors: false,
            ..LOOK
        };
        assert_eq!(
            on(dull, "~~~~\n```\n~~~\n~~~~"),
            "<code>```</>\n<code>~~~</>\n"
        );
        assert_eq!(on(dull, "```\nnever closed"), "<code>never closed</>");
    }

    #[test]
    fn tables_are_aligned_or_listed_where_they_do_not_fit() {
        let table = "| Plant | **Water** |\n|:--|--:|\n| 罗勒 basil | `2` l |\n| [mint](http://m) | 10 l |\nDone.";
        assert_eq!(
            whole(table),
            "<b>Plant</>      │ <b>Water</>\n───────────┼──────\n罗勒 basil │   <code>2</> l\n<a http://m>mint</a>       │  10 l\nDone."
        );
        let narrow = Look {
            columns: 12,
            ..LOOK
        };
        assert_eq!(
            on(
                narrow,
                "| a | b |\n|---|---|\n| one two | three |\n| 1 | 2 |\n"
            ),
            "<b>a</>: one two\n<b>b</>: three\n\n<b>a</>: 1\n<b>b</>: 2\n"
        );
        let words =
            "| a | what to do |\n|---|---|\n| 1 | set `seccomp=unconfined`, see the page |\n";
        let room_for_a_word = Look {
            columns: 25,
            ..LOOK
        };
        assert_eq!(
            on(room_for_a_word, words),
            "<b>a</> │ <b>what to do</>\n\
             ──┼─────────────────────\n\
             1 │ set\n  │ <code>seccomp=unconfined</>,\n  │ see the page\n"
        );
        let too_narrow = Look {
            columns: 22,
            ..LOOK
        };
        assert!(on(too_narrow, words).starts_with("<b>a</>: 1\n"));
        let middling = Look {
            columns: 31,
            ..LOOK
        };
        assert_eq!(
            on(
                middling,
                "| a | words |\n|---|---|\n| 1 | one **two three four** five<br>six |\n| 2 | x |\n"
            ),
            "<b>a</> │ <b>words</>\n\
             ──┼────────────────────────\n\
             1 │ one <b>two three four</> five\n  │ six\n2 │ x\n"
        );
    }

    #[test]
    fn paragraphs_lists_and_quotes_wrap_between_words() {
        let narrow = Look {
            columns: 17,
            ..LOOK
        };
        for (text, shown) in [
            ("one two three four", "one two three\nfour"),
            ("- one **two three** x", "• one <b>two three</>\n  x"),
            ("10. one two three four", "10. one two\n    three four"),
            (
                "> one two three four",
                "<dim>│</> one two three\n<dim>│</> four",
            ),
            ("  one two three four", "  one two three\n  four"),
            ("世界世界世界世界世界", "世界世界世界世界\n世界"),
            (
                "```\nlet x = a + b + c + d;\n```",
                "<block><edge></><block>let x = a + b + c + d;</>\n",
            ),
        ] {
            assert_eq!(on(narrow, text), shown, "{text:?}");
        }
    }

    #[test]
    fn however_it_is_cut_into_pieces_the_same_is_shown() {
        let text = "# T\n\nan **old** `code` x_y_z *i* 2*3\n- a\n- **b\n- [x] c\n```rust\nfn f() {}\n\n```\n> q\n***\n\
                    a [link **b**](http://h/a_b) ~~s~~!\n| a | b |\n|--|--|\n| 1 | *2* |\n\n> - q &lt;b&gt;<br>\n> ```\n> x\n> ```\n\\(x_1\\) end `é` **世界**";
        // Text of one style may come in several pieces.
        let joined = |text: &str| {
            let tags = ["b", "code", "dim", "block", "s"];
            tags.iter().fold(tagged(text), |text, tag| {
                text.replace(&format!("</><{tag}>"), "")
            })
        };
        for size in 1..9 {
            let mut markdown = Markdown::new(LOOK);
            let characters: Vec<char> = text.chars().collect();
            let pieces = characters
                .chunks(size)
                .map(|piece| markdown.push(&piece.iter().collect::<String>()));
            let shown = pieces.collect::<String>() + &markdown.finish();
            assert_eq!(joined(&shown), joined(&whole(text)), "in pieces of {size}");
        }
    }

    #[test]
    fn plain_text_is_not_held_back() {
        let mut markdown = Markdown::new(LOOK);
        assert_eq!(markdown.push("First wo"), "First wo");
        assert_eq!(markdown.push("rds, "), "rds, ");
        assert_eq!(markdown.push("**bo"), "");
        assert_eq!(tagged(&markdown.push("ld** a")), "<b>bold</> a");
        assert_eq!(
            markdown
                .push(&format!(" *{}", "x".repeat(MAX_HELD)))
                .matches('x')
                .count(),
            MAX_HELD
        );
        assert_eq!(markdown.push("\n- "), "\n");
        assert_eq!(markdown.finish(), "- ");
        assert_eq!(markdown.push("a [li"), "");
        assert_eq!(tagged(&markdown.push("nk](http://h")), "");
        assert_eq!(tagged(&markdown.push(") b")), "a <a http://h>link</a> b");
    }
}
