//! Markdown on a terminal: headings, lists, quotes, code and emphasis, shown while they arrive.
//!
//! Text goes through as soon as it is known what it is: a piece is held back only from a mark that may begin something to
//! the mark that ends it, and never over the end of its line. What turns out to be no Markdown is shown as it came. Models
//! write `snake_case`, globs and sums without any marks around them, so a mark is taken for one only where it plainly is;
//! tables and links are readable as they are.

/// How things look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Bullets and rules may be more than ASCII.
    pub utf8: bool,
}

const RESET: &str = "\x1b[0m";
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const ITALIC: &str = "\x1b[3m";
const CODE: &str = "\x1b[36m";

/// The most that is held back for a mark that may yet be closed, in bytes.
const LONGEST_SPAN: usize = 600;

/// One answer on its way to a terminal.
pub struct Markdown {
    look: Look,
    /// What of the current line is not shown yet.
    held: String,
    /// What kind of line it is has been decided, and its beginning shown.
    begun: bool,
    /// How the current line looks where nothing else is said: a heading's style.
    base: &'static str,
    /// The last character shown of this line.
    before: Option<char>,
    fence: Option<Fence>,
}

/// An open code block: it ends with a line of at least so many of this character.
#[derive(Clone, Copy)]
struct Fence {
    mark: char,
    count: usize,
}

/// What a mark turns out to be.
enum Mark {
    /// So many bytes of plain text.
    Plain(usize),
    /// A backslash that takes the meaning from the next character.
    Escape,
    Code {
        from: usize,
        to: usize,
        end: usize,
    },
    Emphasis {
        style: &'static str,
        from: usize,
        to: usize,
        end: usize,
    },
    /// What follows decides.
    Unknown,
}

impl Markdown {
    pub fn new(look: Look) -> Self {
        Self { look, held: String::new(), begun: false, base: "", before: None, fence: None }
    }

    /// Takes the next piece and gives back what can be shown now.
    pub fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for piece in text.split_inclusive('\n') {
            let (piece, ended) = piece.strip_suffix('\n').map_or((piece, false), |line| (line, true));
            self.held.push_str(piece);
            self.line(ended, &mut out);
            if ended {
                out.push('\n');
            }
        }
        out
    }

    /// Gives back what was still held. After this a new answer may begin.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        if self.begun || !self.held.is_empty() {
            self.line(true, &mut out);
        }
        self.fence = None;
        out
    }

    fn line(&mut self, ended: bool, out: &mut String) {
        if !self.begun {
            self.begun = self.begin(ended, out);
        }
        if self.begun {
            if self.fence.is_some() {
                styled(out, CODE, &self.held, "");
                self.held.clear();
            } else {
                let (shown, before) = inline(&self.held, self.base, self.before, ended, out);
                self.held.drain(..shown);
                self.before = before;
            }
        }
        if ended {
            if !self.base.is_empty() {
                out.push_str(RESET);
            }
            (self.begun, self.base, self.before) = (false, "", None);
        }
    }

    /// Decides what kind of line it is and shows its beginning. `false` while more is needed to know.
    fn begin(&mut self, ended: bool, out: &mut String) -> bool {
        let rest = self.held.trim_start_matches([' ', '\t']);
        let indent = self.held.len() - rest.len();
        let Some(first) = rest.chars().next() else { return ended };
        let run = rest.chars().take_while(|c| *c == first).count();
        let only_marks = rest.trim_end().chars().count() == run;
        if let Some(Fence { mark, count }) = self.fence {
            if first == mark && only_marks && !ended {
                return false;
            }
            if first == mark && only_marks && run >= count {
                self.whole_line(DIM, out);
                self.fence = None;
            }
            return true;
        }
        let after = &rest[run * first.len_utf8()..];
        match first {
            // Enough of the line must be there to tell what it is.
            '`' | '~' | '#' | '-' | '*' | '_' | '+' | '>' if only_marks && !ended => return false,
            '`' | '~' if run >= 3 && !after.contains('`') => {
                if !ended {
                    return false;
                }
                self.whole_line(DIM, out);
                self.fence = Some(Fence { mark: first, count: run });
                // The line is shown, and the style of code begins with the next.
                self.held.clear();
            }
            '#' if run <= 6 && after.starts_with(' ') => {
                self.base = BOLD;
                out.push_str(BOLD);
                self.held.drain(..=indent + run);
            }
            '-' | '*' | '_' if run >= 3 && only_marks => {
                let rule = if self.look.utf8 { "─".repeat(20) } else { "-".repeat(20) };
                styled(out, DIM, &rule, "");
                self.held.clear();
            }
            '-' | '*' | '+' if run == 1 && after.starts_with(' ') => {
                out.push_str(&self.held[..indent]);
                out.push_str(if self.look.utf8 { "•" } else { "-" });
                self.held.drain(..=indent);
                self.before = Some(' ');
            }
            '>' => {
                out.push_str(&self.held[..indent]);
                styled(out, DIM, if self.look.utf8 { "│" } else { ">" }, "");
                self.held.drain(..=indent);
            }
            _ => {}
        }
        true
    }

    fn whole_line(&mut self, style: &str, out: &mut String) {
        styled(out, style, &self.held, "");
        self.held.clear();
    }
}

fn styled(out: &mut String, style: &str, text: &str, base: &str) {
    if !text.is_empty() {
        out.push_str(style);
        out.push_str(text);
        out.push_str(RESET);
        out.push_str(base);
    }
}

/// Shows the text of a line as far as it is known what it is. Returns how many bytes that were, and the last character.
fn inline(text: &str, base: &str, mut before: Option<char>, ended: bool, out: &mut String) -> (usize, Option<char>) {
    let mut at = 0;
    while let Some(found) = text[at..].find(['*', '_', '`', '\\']) {
        out.push_str(&text[at..at + found]);
        before = text[..at + found].chars().next_back().or(before);
        at += found;
        let rest = &text[at..];
        match mark(rest, before, ended) {
            Mark::Plain(len) => {
                out.push_str(&rest[..len]);
                at += len;
            }
            Mark::Escape => {
                out.push_str(&rest[1..2]);
                at += 2;
            }
            Mark::Code { from, to, end } => {
                styled(out, CODE, &rest[from..to], base);
                at += end;
            }
            Mark::Emphasis { style, from, to, end } => {
                let inner = format!("{base}{style}");
                out.push_str(style);
                inline(&rest[from..to], &inner, None, true, out);
                out.push_str(RESET);
                out.push_str(base);
                at += end;
            }
            Mark::Unknown => return (at, before),
        }
        before = text[..at].chars().next_back();
    }
    out.push_str(&text[at..]);
    (text.len(), text[at..].chars().next_back().or(before))
}

/// What the mark at the beginning of `rest` is.
fn mark(rest: &str, before: Option<char>, ended: bool) -> Mark {
    let Some(first) = rest.chars().next() else { return Mark::Unknown };
    let run = rest.bytes().take_while(|b| *b == first as u8).count();
    // Nothing is waited for over the end of the line, nor for ever.
    let undecided = |len| if ended || rest.len() > LONGEST_SPAN { Mark::Plain(len) } else { Mark::Unknown };
    if run == rest.len() {
        return undecided(run);
    }
    if first == '\\' {
        let escapes = run == 1 && rest[1..].starts_with(['*', '_', '`', '#']);
        return if escapes { Mark::Escape } else { Mark::Plain(run) };
    }
    let opens = match first {
        '`' => true,
        '*' => opens_star(&rest[run..], run, before),
        _ => run == 1 && before.is_none_or(|c| c.is_whitespace() || c == '(') && next_is_word(&rest[run..]),
    };
    if !opens {
        return Mark::Plain(run);
    }
    let mut at = run;
    while let Some(found) = rest[at..].find(first) {
        let start = at + found;
        let count = rest[start..].bytes().take_while(|b| *b == first as u8).count();
        let end = start + count;
        let next = rest[end..].chars().next();
        if next.is_none() && !ended {
            return undecided(run);
        }
        let last = rest[..start].chars().next_back();
        if first == '`' && count == run {
            return code(rest, run, start, end);
        }
        let spaced = last.is_none_or(char::is_whitespace);
        let in_word = next.is_some_and(|c| c.is_ascii_alphanumeric());
        if first != '`' && !spaced && !in_word && (count == run || run == 2 && count > 2) {
            let style = match (first, run) {
                ('*', 2) => BOLD,
                ('*', 3) => "\x1b[1m\x1b[3m",
                _ => ITALIC,
            };
            return Mark::Emphasis { style, from: run, to: end - run, end };
        }
        at = end;
    }
    undecided(run)
}

/// A code span; one space on either side belongs to the marks.
fn code(rest: &str, run: usize, start: usize, end: usize) -> Mark {
    let inner = &rest[run..start];
    let padded = inner.starts_with(' ') && inner.ends_with(' ') && inner.trim() != "";
    let pad = usize::from(padded);
    Mark::Code { from: run + pad, to: start - pad, end }
}

/// `2*3*4` and `*.rs` are not emphasis.
fn opens_star(after: &str, run: usize, before: Option<char>) -> bool {
    let in_word = before.is_some_and(|c| c.is_ascii_alphanumeric());
    match run {
        1 => !in_word && next_is_word(after),
        2 | 3 => !in_word && !after.starts_with(char::is_whitespace),
        _ => false,
    }
}

fn next_is_word(after: &str) -> bool {
    after.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '`' | '"' | '\'' | '(' | '*'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tags for escape sequences, so that the tables can be read.
    fn tagged(text: &str) -> String {
        [(RESET, "</>"), (BOLD, "<b>"), (DIM, "<dim>"), (ITALIC, "<i>"), (CODE, "<code>")]
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
            ("**use `x` and *y***.", "<b>use <code>x</><b> and <i>y</><b></>."),
            ("# Title\ntext", "<b>Title</>\ntext"),
            ("## A `b` c\n", "<b>A <code>b</><b> c</>\n"),
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
        let style = |text: &str| ["<code>", "</>", "<dim>"].iter().fold(text.to_owned(), |t, tag| t.replace(tag, ""));
        for size in 1..9 {
            let mut markdown = Markdown::new(Look { utf8: true });
            let characters: Vec<char> = text.chars().collect();
            let pieces = characters.chunks(size).map(|piece| markdown.push(&piece.iter().collect::<String>()));
            let shown = pieces.collect::<String>() + &markdown.finish();
            // Code comes in pieces of its own style each: the text is what counts.
            assert_eq!(style(&tagged(&shown)), style(&whole(text)), "in pieces of {size}");
        }
    }

    #[test]
    fn plain_text_is_not_held_back() {
        let mut markdown = Markdown::new(Look { utf8: false });
        assert_eq!(markdown.push("First wo"), "First wo");
        assert_eq!(markdown.push("rds, **bo"), "rds, ");
        assert_eq!(tagged(&markdown.push("ld** a")), "<b>bold</> a");
        assert_eq!(markdown.push(&format!(" *{}", "x".repeat(LONGEST_SPAN))).len(), LONGEST_SPAN + 2);
        assert_eq!(markdown.push("\n- "), "\n");
        assert_eq!(markdown.finish(), "- ");
    }
}
