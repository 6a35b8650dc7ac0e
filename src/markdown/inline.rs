//! Markdown within a paragraph: emphasis, code, links.
//!
//! A mark opens or closes something only where it plainly does: `snake_case`, `2 * 3`, `src/**/*.rs` and `a || b` are text, and
//! so is whatever finds no partner. The time it takes grows with the length of the text alone, whatever the text is.

use super::styled::{BOLD, CODE, ITALIC, LINK, SPOILER, STRIKE, Style, StyledText, WHOLE};

/// The longest address of a link, in bytes.
const MAX_ADDRESS: usize = 2048;
/// The longest run of backticks that opens code.
const MAX_BACKTICKS: usize = 31;
/// The deepest parentheses in an address. Without a limit many unfinished links would be slow.
const MAX_PARENTHESES: i32 = 32;

/// Marks in pairs: the character, how many of it, and the style.
const MARKS: [(u8, usize, u16); 6] = [
    (b'*', 1, ITALIC),
    (b'*', 2, BOLD),
    (b'_', 1, ITALIC),
    (b'_', 2, BOLD),
    (b'~', 2, STRIKE),
    (b'|', 2, SPOILER),
];
const DOUBLE_UNDERSCORE: usize = 3;

/// What models write as in HTML, and what it means.
const HTML: [(&str, &str); 11] = [
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&amp;", "&"),
    ("&quot;", "\""),
    ("&#39;", "'"),
    ("&apos;", "'"),
    ("&nbsp;", "\u{a0}"),
    ("<br>", "\n"),
    ("<br/>", "\n"),
    ("<br />", "\n"),
    ("<BR>", "\n"),
];

/// The styles that a writer shows. What it has none for stays as written.
pub(super) const TELEGRAM: u16 = TERMINAL | SPOILER;
pub(super) const TERMINAL: u16 = PLAIN | LINK;
pub(super) const PLAIN: u16 = BOLD | ITALIC | STRIKE;

enum Kind<'a> {
    Text,
    /// Text that should not be cut.
    Whole,
    Code,
    /// A mark with which a style begins, or ends.
    On(u16),
    Off(u16),
    /// A link to this address begins, or ends.
    Link(&'a str),
    LinkEnd(&'a str),
}

struct Token<'a> {
    at: usize,
    /// As written; of code, the inside.
    text: &'a str,
    kind: Kind<'a>,
}

/// Adds `text` to `styled`, with the marks of `base` over all of it, and those of `shown` where it has them.
pub(super) fn read(text: &str, base: u16, shown: u16, styled: &mut StyledText) {
    write(&scan(text, None).tokens, base, shown, styled);
}

/// The same for a piece of a line on a terminal; `before` is the character before it. Unless the piece `is_last`, it stops
/// before what may still change, and returns the length of what it has read.
pub(super) fn read_piece(
    text: &str,
    before: Option<char>,
    is_last: bool,
    base: u16,
    styled: &mut StyledText,
) -> usize {
    // A run of marks may become longer.
    let text = if is_last {
        text
    } else {
        without_open_tag(text).trim_end_matches(['*', '_', '~', '|', '`', '\\', ']', '!'])
    };
    let scanner = scan(text, before);
    if !is_last && !scanner.is_stable() {
        return 0;
    }
    write(&scanner.tokens, base, TERMINAL, styled);
    text.len()
}

#[derive(Default)]
struct Scanner<'a> {
    text: &'a str,
    before: Option<char>,
    tokens: Vec<Token<'a>>,
    /// The text from here on is in no token yet.
    plain: usize,
    /// By row of [`MARKS`], the tokens that may open it, the last one on top.
    openers: [Vec<usize>; MARKS.len()],
    /// The brackets that are not closed yet.
    brackets: Vec<usize>,
    /// The lengths of runs of backticks that no other one follows, as bits.
    last_runs: u32,
    /// A run of backticks, or the address of a link, is not closed.
    is_open: bool,
}

fn scan(text: &str, before: Option<char>) -> Scanner<'_> {
    let mut scanner = Scanner {
        text,
        before,
        ..Scanner::default()
    };
    let mut at = 0;
    let marks = ['\\', '`', '*', '_', '~', '|', '[', '!', ']', '&', '<', 'h'];
    while let Some(found) = text[at..].find(marks) {
        at += found;
        at += scanner.mark(at);
    }
    scanner.end_text(text.len());
    scanner
}

impl<'a> Scanner<'a> {
    /// Reads the mark at `at`, if it is one, and returns how many bytes to go on.
    fn mark(&mut self, at: usize) -> usize {
        let rest = &self.text[at..];
        let first = rest.as_bytes()[0];
        let run = || rest.bytes().take_while(|b| *b == first).count();
        match first {
            b'\\' if rest.starts_with("\\(") => self.math(at),
            b'\\' if rest[1..].starts_with(|c: char| c.is_ascii_punctuation()) => {
                self.push(at, 2, &rest[1..2], Kind::Text)
            }
            b'`' => self.code(at, run()),
            b'*' | b'_' | b'~' | b'|' => self.emphasis(at, run()),
            b'[' => self.bracket(at, 1),
            b'!' if rest.starts_with("![") => self.bracket(at, 2),
            b']' => self.link(at),
            b'&' | b'<' => HTML
                .iter()
                .find(|(written, _)| rest.starts_with(written))
                .map_or(1, |(written, text)| {
                    self.push(at, written.len(), text, Kind::Text)
                }),
            b'h' if !is_word(self.before(at)) => {
                bare_address(rest).map_or(1, |len| self.push(at, len, &rest[..len], Kind::Whole))
            }
            _ => 1,
        }
    }

    fn before(&self, at: usize) -> Option<char> {
        self.text[..at].chars().next_back().or(self.before)
    }

    /// Adds a token for `len` bytes.
    fn push(&mut self, at: usize, len: usize, text: &'a str, kind: Kind<'a>) -> usize {
        self.end_text(at);
        self.tokens.push(Token { at, text, kind });
        self.plain = at + len;
        len
    }

    fn end_text(&mut self, at: usize) {
        if self.plain < at {
            self.tokens.push(Token {
                at: self.plain,
                text: &self.text[self.plain..at],
                kind: Kind::Text,
            });
            self.plain = at;
        }
    }

    fn code(&mut self, at: usize, run: usize) -> usize {
        let rest = &self.text[at..];
        if run > MAX_BACKTICKS {
            return run;
        }
        let mut end = run;
        while let Some(found) = rest[end..]
            .find('`')
            .filter(|_| self.last_runs & 1 << run == 0)
        {
            let start = end + found;
            end = start + rest[start..].bytes().take_while(|b| *b == b'`').count();
            let inside = &rest[run..start];
            if end - start == run && inside.trim().is_empty() {
                return run;
            }
            if end - start == run {
                // One space on either side belongs to the backticks.
                let padded = inside
                    .strip_prefix(' ')
                    .and_then(|inside| inside.strip_suffix(' '));
                return self.push(
                    at,
                    end,
                    padded
                        .filter(|text| !text.trim().is_empty())
                        .unwrap_or(inside),
                    Kind::Code,
                );
            }
        }
        self.last_runs |= 1 << run;
        self.is_open = true;
        self.push(at, run, &rest[..run], Kind::Text)
    }

    /// A formula between `\(` and `\)` is shown as code; what no `\)` follows on its line is an escaped parenthesis.
    fn math(&mut self, at: usize) -> usize {
        let text = self.text;
        let inside = &text[at + 2..];
        let line = inside.split('\n').next().unwrap_or_default();
        match line.find("\\)") {
            Some(end) if !line[..end].trim().is_empty() => {
                self.push(at, end + 4, line[..end].trim(), Kind::Code)
            }
            Some(_) => self.push(at, 2, "(", Kind::Text),
            None => {
                self.is_open |= line.len() == inside.len();
                self.push(at, 2, "(", Kind::Text)
            }
        }
    }

    /// A run of one to three marks. Three are two and one, so that either may find a partner.
    fn emphasis(&mut self, at: usize, run: usize) -> usize {
        let (mark, before, after) = (
            self.text.as_bytes()[at],
            self.before(at),
            self.text[at + run..].chars().next(),
        );
        let parts = if run == 3 { [2, 1] } else { [run, 0] };
        let row = |len| MARKS.iter().position(|row| row.0 == mark && row.1 == len);
        if row(parts[0]).is_none() || run == 3 && row(1).is_none() {
            return run;
        }
        let (closes, opens) = (
            closes(mark, run, before, after),
            opens(mark, run, before, after),
        );
        let mut start = at;
        for row in parts.into_iter().filter_map(row) {
            let (_, len, style) = MARKS[row];
            self.end_text(start);
            let mut kind = Kind::Text;
            match if closes {
                self.openers[row].pop()
            } else {
                None
            } {
                Some(opener) => {
                    let inside = &self.text[self.tokens[opener].at + len..start];
                    // `__init__`
                    let is_name = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
                    if row != DOUBLE_UNDERSCORE || !inside.bytes().all(is_name) {
                        (self.tokens[opener].kind, kind) = (Kind::On(style), Kind::Off(style));
                    }
                }
                None if opens => self.openers[row].push(self.tokens.len()),
                None => {}
            }
            self.push(start, len, &self.text[start..start + len], kind);
            start += len;
        }
        run
    }

    fn bracket(&mut self, at: usize, len: usize) -> usize {
        self.end_text(at);
        self.brackets.push(self.tokens.len());
        self.push(at, len, &self.text[at..at + len], Kind::Text)
    }

    fn link(&mut self, at: usize) -> usize {
        let text = self.text;
        let rest = &text[at + 1..];
        let Some((bracket, (address, len))) = self.brackets.pop().zip(destination(rest)) else {
            self.is_open |= rest.starts_with('(') && !rest.contains(')');
            return 1;
        };
        self.tokens[bracket].kind = Kind::Link(address);
        if self.tokens[bracket].text == "[" {
            // There are no links within links; an image may stand in one.
            self.brackets.clear();
        }
        self.push(at, len + 1, &text[at..=at + len], Kind::LinkEnd(address))
    }

    /// Whether nothing behind the text can change how it reads.
    fn is_stable(&self) -> bool {
        self.openers.iter().all(Vec::is_empty) && self.brackets.is_empty() && !self.is_open
    }
}

/// A text without what may become one of [`HTML`].
fn without_open_tag(text: &str) -> &str {
    let at = text.rfind(['&', '<']).filter(|at| {
        HTML.iter().any(|(written, _)| {
            written.len() > text.len() - at && written.starts_with(&text[*at..])
        })
    });
    at.map_or(text, |at| &text[..at])
}

fn is_word(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_ascii_alphanumeric())
}

fn is_space(c: Option<char>) -> bool {
    c.is_none_or(char::is_whitespace)
}

/// Whether a run of marks may open something.
fn opens(mark: u8, run: usize, before: Option<char>, after: Option<char>) -> bool {
    let begins = |c: char| c.is_alphanumeric() || !c.is_ascii() || "`\"'([_~|$#@\\".contains(c);
    !is_space(after)
        && match mark {
            b'*' if run == 1 => !is_word(before) && after.is_some_and(begins),
            b'*' => !is_word(before) && before != Some('/'),
            b'_' => before.is_none_or(|c| c.is_whitespace() || "([{\"'*~|>-—:“‘«".contains(c)),
            b'|' => !is_word(before),
            _ => true,
        }
}

/// Whether a run of marks may close something.
fn closes(mark: u8, run: usize, before: Option<char>, after: Option<char>) -> bool {
    !is_space(before)
        && match mark {
            b'*' => !(is_word(after) || run > 1 && after == Some('/')),
            b'_' => after.is_none_or(|c| !c.is_alphanumeric() && !"_/\\=".contains(c)),
            b'|' => !is_word(after),
            _ => true,
        }
}

/// The address of `(address "title")` at the beginning of `rest`, and the length of all of it.
fn destination(rest: &str) -> Option<(&str, usize)> {
    let inside = rest.strip_prefix('(')?;
    let mut depth = 0;
    let end = inside.bytes().take(MAX_ADDRESS).position(|b| {
        depth += i32::from(b == b'(') - i32::from(b == b')');
        !(0..=MAX_PARENTHESES).contains(&depth) || b == b'\n'
    })?;
    let inside = inside.get(..end).filter(|_| depth < 0)?.trim();
    let (address, title) = inside.split_once([' ', '\t']).unwrap_or((inside, "\""));
    (is_linkable(address) && title.trim_start().starts_with(['"', '\'']))
        .then_some((address, end + 2))
}

/// The length of the address that `rest` begins with, which Telegram finds without our help: it is only kept as it is.
fn bare_address(rest: &str) -> Option<usize> {
    if !rest.starts_with("http://") && !rest.starts_with("https://") {
        return None;
    }
    let ends = |c: char| c.is_whitespace() || "<>*|`\"[]".contains(c);
    let address = &rest[..rest.find(ends).unwrap_or(rest.len())];
    let address = address.trim_end_matches(['_', '~', '.', ',', ';', ':', '!', '?', '\'', '\\']);
    Some(if address.contains('(') {
        address.len()
    } else {
        address.trim_end_matches(')').len()
    })
}

fn is_linkable(address: &str) -> bool {
    let schemes = ["http://", "https://", "tg://", "mailto:"];
    let begins = |scheme: &&str| {
        address
            .get(..scheme.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    schemes
        .iter()
        .find(|scheme| begins(scheme))
        .is_some_and(|scheme| address.len() > scheme.len())
}

fn write(tokens: &[Token], base: u16, shown: u16, styled: &mut StyledText) {
    let mut open = base;
    // How many links are open, the target of the outermost one, and where its text begins.
    let (mut links, mut target, mut start) = (0, 0, 0);
    for token in tokens {
        let with = |mark: u16| match links {
            0 => Style {
                marks: open | mark,
                target: 0,
            },
            _ => Style {
                marks: open | mark | LINK,
                target,
            },
        };
        match token.kind {
            Kind::Whole => styled.push(token.text, with(WHOLE)),
            Kind::Code => styled.push(token.text, with(CODE)),
            Kind::On(style) if shown & style != 0 => open |= style,
            Kind::Off(style) if shown & style != 0 => open = open & !style | base,
            Kind::Link(address) if shown & LINK != 0 => {
                if links == 0 {
                    (target, start) = (styled.add_target(address), styled.text.len());
                }
                links += 1;
            }
            Kind::LinkEnd(address) if shown & LINK != 0 => {
                if styled.text[start.min(styled.text.len())..]
                    .trim()
                    .is_empty()
                {
                    styled.push(address, with(WHOLE));
                }
                links -= 1;
            }
            _ => styled.push(token.text, with(0)),
        }
    }
}
