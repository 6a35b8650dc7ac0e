//! Markdown on a terminal, shown while it streams in.
//!
//! Text goes through as soon as nothing behind it can change how it reads: it is held back while a mark is open, and never over
//! the end of its line. Tables and links are readable as written.

use super::blocks::{Fence, Line};
use super::inline;
use super::styled::{BOLD, CODE, ITALIC, StyledText};

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Bullets and rules beyond ASCII.
    pub utf8: bool,
}

const RESET: &str = "\x1b[0m";
const DIM: &str = "\x1b[2m";
const CYAN: &str = "\x1b[36m";
const STYLES: [(u16, &str); 3] = [(BOLD, "\x1b[1m"), (ITALIC, "\x1b[3m"), (CODE, CYAN)];

/// The most bytes held back for a mark that may yet be closed.
const MAX_HELD: usize = 600;

/// The writer of one answer.
pub(crate) struct Markdown {
    look: Look,
    /// What is not shown yet of the current line.
    held: String,
    /// The kind of the current line is known, and its marker shown.
    is_begun: bool,
    /// The style of the current line.
    base: u16,
    /// The last character read of the current line.
    before: Option<char>,
    /// The code block that is open.
    fence: Option<Fence>,
}

impl Markdown {
    pub(crate) fn new(look: Look) -> Self {
        Self { look, held: String::new(), is_begun: false, base: 0, before: None, fence: None }
    }

    /// Takes the next piece of the answer and returns what can be shown now.
    pub(crate) fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for piece in text.split_inclusive('\n') {
            let line = piece.strip_suffix('\n');
            self.held.push_str(line.unwrap_or(piece));
            self.show(line.is_some(), &mut out);
            out.push_str(if line.is_some() { "\n" } else { "" });
        }
        out
    }

    /// Returns what is still held. A new answer may follow.
    pub(crate) fn finish(&mut self) -> String {
        let mut out = String::new();
        self.show(true, &mut out);
        self.fence = None;
        out
    }

    fn show(&mut self, is_whole: bool, out: &mut String) {
        if !self.is_begun {
            if !is_whole && self.is_undecided() {
                return;
            }
            self.begin(out);
            self.is_begun = true;
        }
        if self.fence.is_some() {
            self.show_held(CYAN, out);
        } else {
            self.show_spans(is_whole || self.held.len() > MAX_HELD, out);
        }
        if is_whole {
            (self.is_begun, self.base, self.before) = (false, 0, None);
        }
    }

    /// Whether the kind of the line may still change.
    fn is_undecided(&self) -> bool {
        let text = self.held.trim();
        match self.fence {
            Some(fence) => fence.may_close(text),
            None => matches!(Line::of(text), Line::Fence(..)) || text.chars().all(|c| "`~#-*_+>".contains(c)),
        }
    }

    /// Shows the marker of a line.
    fn begin(&mut self, out: &mut String) {
        if let Some(fence) = self.fence {
            if fence.closes(&self.held) {
                self.show_held(DIM, out);
                self.fence = None;
            }
            return;
        }
        let indent = self.held.len() - self.held.trim_start().len();
        let [bullet, bar, rule] = if self.look.utf8 { ["•", "│", "─"] } else { ["-", ">", "-"] };
        match Line::of(&self.held) {
            Line::Fence(fence, _) => {
                self.fence = Some(fence);
                self.show_held(DIM, out);
            }
            Line::Heading(title) => {
                self.base = BOLD;
                let start = self.held.find(title).unwrap_or(0);
                self.held.drain(..start);
            }
            Line::Rule => {
                self.held = rule.repeat(20);
                self.show_held(DIM, out);
            }
            Line::Quote => {
                out.push_str(&self.held[..indent]);
                paint(out, DIM, bar);
                self.held.drain(..=indent);
            }
            Line::Item(marker, _) if marker.len() == 1 => {
                out.push_str(&self.held[..indent]);
                out.push_str(bullet);
                self.held.drain(..=indent);
            }
            Line::Blank | Line::Item(..) | Line::Text => {}
        }
    }

    fn show_held(&mut self, style: &str, out: &mut String) {
        paint(out, style, &self.held);
        self.held.clear();
    }

    fn show_spans(&mut self, is_all: bool, out: &mut String) {
        let mut styled = StyledText::default();
        let len = inline::read_piece(&self.held, self.before, is_all, self.base, &mut styled);
        let mut at = 0;
        for (end, style) in styled.runs_from(0) {
            let codes: String = STYLES.iter().filter(|(mark, _)| style.has(*mark)).map(|(_, code)| *code).collect();
            paint(out, &codes, &styled.text[at..*end]);
            at = *end;
        }
        self.before = self.held[..len].chars().next_back().or(self.before);
        self.held.drain(..len);
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

    /// Tags for escape sequences, so that the tables can be read.
    fn tagged(text: &str) -> String {
        [(RESET, "</>"), (STYLES[0].1, "<b>"), (DIM, "<dim>"), (STYLES[1].1, "<i>"), (CYAN, "<code>")]
            .iter()
            .fold(text.to_owned(), |text, (sequence, tag)| text.replace(sequence, tag))
    }

    fn whole(text: &str) -> String {
        let mut markdown = Markdown::new(Look { utf8: true });
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
            ("run `ls **` now", "run <code>ls **</> now"),
            ("`` a`b ``!", "<code>a`b</>!"),
            ("**use `x` and *y***.", "<b>use </><b><code>x</><b> and </><b><i>y</>."),
            ("# Title\ntext", "<b>Title</>\ntext"),
            ("## A `b` c\n", "<b>A </><b><code>b</><b> c</>\n"),
            ("- one\n  * **two**\n+ three", "• one\n  • <b>two</>\n• three"),
            ("1. one\n2) two", "1. one\n2) two"),
            ("> said", "<dim>│</> said"),
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
            "| a | b |\n|---|---|\n| 1 | 2 |",
            "[text](http://h/_x_/y_z)",
            "``inline``` here",
            "   \n\n\tx",
        ] {
            assert_eq!(whole(text), text);
        }
    }

    #[test]
    fn code_blocks_keep_every_character_and_end_where_they_say() {
        assert_eq!(
            whole("```sh\nls *.rs # **x**\n\n  ``\n```\n**b**"),
            "<dim>```sh</>\n<code>ls *.rs # **x**</>\n\n<code>  ``</>\n<dim>```</>\n<b>b</>"
        );
        assert_eq!(whole("~~~~\n```\n~~~\n~~~~"), "<dim>~~~~</>\n<code>```</>\n<code>~~~</>\n<dim>~~~~</>");
        assert_eq!(whole("```\nnever closed"), "<dim>```</>\n<code>never closed</>");
    }

    #[test]
    fn however_it_is_cut_into_pieces_the_same_is_shown() {
        let text =
            "# T\n\nan **old** `code` x_y_z *i* 2*3\n- a\n- **b\n```rust\nfn f() {}\n```\n> q\n***\nend `é` **世界**";
        // Text of one style may come in several pieces.
        let joined =
            |text: &str| ["b", "code", "dim"].iter().fold(tagged(text), |t, tag| t.replace(&format!("</><{tag}>"), ""));
        for size in 1..9 {
            let mut markdown = Markdown::new(Look { utf8: true });
            let characters: Vec<char> = text.chars().collect();
            let pieces = characters.chunks(size).map(|piece| markdown.push(&piece.iter().collect::<String>()));
            let shown = pieces.collect::<String>() + &markdown.finish();
            assert_eq!(joined(&shown), joined(&whole(text)), "in pieces of {size}");
        }
    }

    #[test]
    fn plain_text_is_not_held_back() {
        let mut markdown = Markdown::new(Look { utf8: false });
        assert_eq!(markdown.push("First wo"), "First wo");
        assert_eq!(markdown.push("rds, "), "rds, ");
        assert_eq!(markdown.push("**bo"), "");
        assert_eq!(tagged(&markdown.push("ld** a")), "<b>bold</> a");
        assert_eq!(markdown.push(&format!(" *{}", "x".repeat(MAX_HELD))).len(), MAX_HELD + 2);
        assert_eq!(markdown.push("\n- "), "\n");
        assert_eq!(markdown.finish(), "- ");
    }
}
