//! Parses Markdown in a line: emphasis, code, links.
//!
//! [`next`] reads one token at a time. A mark only opens or closes a style if it is unambiguous: `snake_case`, `2 * 3`,
//! `src/**/*.rs` and `a ~ b` are text. [`read`] also pairs the marks of a whole line; unpaired marks are text. [`read_settled`]
//! reads the part of a growing line that cannot change any more. All take linear time.

use super::styled::{BOLD, CODE, ITALIC, LINK, STRIKE, Style, StyledText, WHOLE};
use crate::text::clip;

/// Maximum length of a link's address, in bytes.
const MAX_ADDRESS: usize = 2048;
/// Maximum length of emphasis, of code and of a link's text, in bytes, because a terminal delays output until its end.
const MAX_SPAN: usize = 400;
/// Maximum nesting of brackets in a link's text. Without a limit, many unfinished links would be slow.
const MAX_BRACKETS: u32 = 4;
/// Maximum nesting of parentheses in an address, for the same reason.
const MAX_PARENTHESES: i32 = 32;

/// Paired marks: the text and the style.
const MARKS: [(&str, u16); 5] = [
    ("*", ITALIC),
    ("**", BOLD),
    ("_", ITALIC),
    ("__", BOLD),
    ("~~", STRIKE),
];

/// Characters that models write in HTML, and the only line break that a cell of a table can have.
const CHARACTERS: [(&str, &str); 8] = [
    ("&amp;", "&"),
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&quot;", "\""),
    ("&#39;", "'"),
    ("&nbsp;", "\u{a0}"),
    ("<br>", "\n"),
    ("<br/>", "\n"),
];

enum Token<'a> {
    /// Text with a style: code, or an address that should not be split.
    Text(&'a str, u16),
    /// A run of one to three marks.
    Mark {
        opens: bool,
        closes: bool,
    },
    Link {
        text: &'a str,
        address: &'a str,
    },
}

/// A token and its length in bytes, which is never 0.
type Found<'a> = (Token<'a>, usize);

/// Reads the first token of `rest`. `before` is the preceding character. Returns `None` at the end, and for a token that may
/// still change unless `rest` ends its line.
fn next(rest: &str, before: Option<char>, is_last: bool) -> Option<Found<'_>> {
    let marks = ['\\', '`', '*', '_', '~', '[', '!', '&', '<', 'h'];
    let at = rest.find(marks).unwrap_or(rest.len());
    if at > 0 {
        return Some(plain(&rest[..at]));
    }
    let bytes = rest.as_bytes();
    // Whether the character after the mark may change its interpretation.
    let is_open = rest.len() == 1 && !is_last;
    match bytes.first()? {
        b'\\' | b'!' if is_open => None,
        // Signs of formulas, `\(x\,dx\)`, are more frequent than escapes of these characters.
        b'\\' if bytes.get(1).is_some_and(|b| b"()[]{},;:!".contains(b)) => Some(plain(&rest[..2])),
        b'\\' if bytes.get(1).is_some_and(u8::is_ascii_punctuation) => {
            Some((Token::Text(&rest[1..2], 0), 2))
        }
        b'`' | b'*' | b'_' | b'~' => run(rest, before, is_last),
        b'!' if rest.starts_with("![") => link(rest, 1, is_last),
        b'[' => link(rest, 0, is_last),
        b'&' | b'<' => character(rest, is_last),
        b'h' if !is_word(before) => bare_address(rest, is_last),
        _ => Some(plain(&rest[..1])),
    }
}

fn plain(text: &str) -> Found<'_> {
    (Token::Text(text, 0), text.len())
}

/// Reads a run of one mark. A run that exceeds the maximum is text, including its continuation in a later piece.
fn run(rest: &str, before: Option<char>, is_last: bool) -> Option<Found<'_>> {
    let mark = rest.as_bytes()[0];
    let len = rest.bytes().take_while(|b| *b == mark).count();
    if len > 3 || before == Some(char::from(mark)) {
        return Some(plain(&rest[..len]));
    }
    if len == rest.len() && !is_last {
        return None;
    }
    if mark == b'`' {
        return code(rest, len, is_last);
    }
    if mark == b'~' && len != 2 {
        return Some(plain(&rest[..len]));
    }
    let after = rest[len..].chars().next();
    let token = Token::Mark {
        opens: opens(mark, len, before, after),
        closes: closes(mark, len, before, after),
    };
    Some((token, len))
}

/// Reads code up to the next run of backticks of equal length, unless it is blank.
fn code(rest: &str, run: usize, is_last: bool) -> Option<Found<'_>> {
    let inside = clip(&rest[run..], MAX_SPAN);
    let is_open = !is_last && rest.len() - run < MAX_SPAN;
    let mut end = 0;
    while let Some(found) = inside[end..].find('`') {
        let start = end + found;
        end = start + inside[start..].bytes().take_while(|b| *b == b'`').count();
        if end == inside.len() && is_open {
            break;
        }
        if end - start == run {
            return match inside[..start].trim() {
                "" => Some(plain(&rest[..run])),
                code => Some((Token::Text(code, CODE), run + end)),
            };
        }
    }
    (!is_open).then(|| plain(&rest[..run]))
}

/// Reads `[text](address)` after `skipped` bytes.
fn link(rest: &str, skipped: usize, is_last: bool) -> Option<Found<'_>> {
    let no = Some(plain(&rest[..1]));
    let bytes = rest.as_bytes();
    let (mut at, mut depth) = (skipped, 0);
    loop {
        match bytes.get(at) {
            _ if at > MAX_SPAN => return no,
            None => return if is_last { no } else { None },
            Some(b'\\') => at += 1,
            Some(b'[') if depth == MAX_BRACKETS => return no,
            Some(b'[') => depth += 1,
            Some(b']') if depth == 1 => break,
            Some(b']') => depth -= 1,
            Some(_) => {}
        }
        at += 1;
    }
    let (text, after) = (&rest[skipped + 1..at], &rest[at + 1..]);
    let may_go_on = |inside: &str| inside.len() < MAX_ADDRESS && end_of_address(inside).is_none();
    match destination(after) {
        Some((address, len)) => Some((Token::Link { text, address }, at + 1 + len)),
        None if is_last => no,
        None if after.is_empty() || after.strip_prefix('(').is_some_and(may_go_on) => None,
        None => no,
    }
}

fn character(rest: &str, is_last: bool) -> Option<Found<'_>> {
    for (written, shown) in CHARACTERS {
        if rest.starts_with(written) {
            return Some((Token::Text(shown, 0), written.len()));
        }
        if written.starts_with(rest) && !is_last {
            return None;
        }
    }
    Some(plain(&rest[..1]))
}

/// Reads an address that Telegram detects as a link; it only has to remain unchanged.
fn bare_address(rest: &str, is_last: bool) -> Option<Found<'_>> {
    let schemes = ["http://", "https://"];
    if !schemes.iter().any(|scheme| rest.starts_with(scheme)) {
        let is_open = !is_last && schemes.iter().any(|scheme| scheme.starts_with(rest));
        return (!is_open).then(|| plain(&rest[..1]));
    }
    let ends = |c: char| c.is_whitespace() || "<>*|`\"[]".contains(c);
    let address = clip(rest, MAX_ADDRESS);
    let address = &address[..address.find(ends).unwrap_or(address.len())];
    if address.len() == rest.len() && rest.len() < MAX_ADDRESS && !is_last {
        return None;
    }
    let address = address.trim_end_matches(['_', '~', '.', ',', ';', ':', '!', '?', '\'', '\\']);
    let address = if address.contains('(') {
        address
    } else {
        address.trim_end_matches(')')
    };
    Some((Token::Text(address, WHOLE), address.len()))
}

fn is_word(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_ascii_alphanumeric())
}

fn is_space(c: Option<char>) -> bool {
    c.is_none_or(char::is_whitespace)
}

/// Whether a run of marks may open a style.
fn opens(mark: u8, run: usize, before: Option<char>, after: Option<char>) -> bool {
    let begins = |c: char| c.is_alphanumeric() || !c.is_ascii() || "`\"'([_~|$#@\\".contains(c);
    !is_space(after)
        && match mark {
            b'*' if run == 1 => !is_word(before) && after.is_some_and(begins),
            b'*' => !is_word(before) && before != Some('/'),
            b'_' => before.is_none_or(|c| c.is_whitespace() || "([{\"'*~|>-—:“‘«".contains(c)),
            _ => true,
        }
}

/// Whether a run of marks may close a style.
fn closes(mark: u8, run: usize, before: Option<char>, after: Option<char>) -> bool {
    !is_space(before)
        && match mark {
            b'*' => !(is_word(after) || run > 1 && after == Some('/')),
            b'_' => after.is_none_or(|c| !c.is_alphanumeric() && !"_/\\=".contains(c)),
            _ => true,
        }
}

/// Returns the end of a link's address and title, after the opening parenthesis.
fn end_of_address(inside: &str) -> Option<usize> {
    let mut depth = 0;
    inside.bytes().take(MAX_ADDRESS).position(|b| {
        depth += i32::from(b == b'(') - i32::from(b == b')');
        !(0..=MAX_PARENTHESES).contains(&depth)
    })
}

/// Parses `(address "title")` at the start of `rest`. Returns the address, and the length of all.
fn destination(rest: &str) -> Option<(&str, usize)> {
    let inside = rest.strip_prefix('(')?;
    let end = end_of_address(inside).filter(|end| inside.as_bytes()[*end] == b')')?;
    let inside = inside[..end].trim();
    let (address, title) = inside.split_once([' ', '\t']).unwrap_or((inside, "\""));
    (is_linkable(address) && title.trim_start().starts_with(['"', '\'']))
        .then_some((address, end + 2))
}

fn is_linkable(address: &str) -> bool {
    let schemes = ["http://", "https://", "tg://", "mailto:"];
    schemes.iter().any(|scheme| {
        let start = address.get(..scheme.len()).unwrap_or_default();
        start.eq_ignore_ascii_case(scheme) && address.len() > scheme.len()
    })
}

/// A token with a resolved mark.
struct Part<'a> {
    text: &'a str,
    kind: Kind<'a>,
    /// Its end in the line.
    end: usize,
}

enum Kind<'a> {
    /// Text with a style.
    Text(u16),
    /// A mark that starts or ends a style.
    On(u16),
    Off(u16),
    /// The start or the end of a link to this address.
    Link(&'a str),
    LinkEnd(&'a str),
}

/// Adds a line to `styled`, with the style `base` for all of it.
pub(super) fn read(line: &str, base: u16, styled: &mut StyledText) {
    read_rest(line, None, base, styled);
}

/// Adds the rest of a line. `before` is the character before it.
pub(super) fn read_rest(rest: &str, before: Option<char>, base: u16, styled: &mut StyledText) {
    let mut pairing = Pairing::default();
    pairing.read(rest, before, true);
    write(&pairing.parts, base, styled);
}

/// Adds the start of an unfinished line as far as it is settled, and returns its length. `before` is the character before it.
pub(super) fn read_settled(
    line: &str,
    before: Option<char>,
    base: u16,
    styled: &mut StyledText,
) -> usize {
    let mut pairing = Pairing::default();
    pairing.read(line, before, false);
    let parts = pairing.settled();
    write(parts, base, styled);
    parts.last().map_or(0, |part| part.end)
}

#[derive(Default)]
struct Pairing<'a> {
    parts: Vec<Part<'a>>,
    /// For each row of [`MARKS`], the parts that may open it; the last one is innermost.
    openers: [Vec<usize>; MARKS.len()],
    /// Length of what was read.
    at: usize,
}

impl<'a> Pairing<'a> {
    fn read(&mut self, text: &'a str, before: Option<char>, is_last: bool) {
        let mut rest = text;
        loop {
            let before = text[..text.len() - rest.len()]
                .chars()
                .next_back()
                .or(before);
            let Some((token, len)) = next(rest, before, is_last) else {
                return;
            };
            assert!(len > 0, "each round takes text");
            let written;
            (written, rest) = rest.split_at(len);
            match token {
                Token::Text(text, style) => self.push(text, len, Kind::Text(style)),
                Token::Mark { opens, closes } => self.mark(written, opens, closes),
                Token::Link { text, address } => {
                    let start = written.find('[').map_or(0, |at| at + 1);
                    self.push("", start, Kind::Link(address));
                    self.read(text, None, true);
                    let end = len - start - text.len();
                    self.push("", end, Kind::LinkEnd(address));
                }
            }
        }
    }

    fn push(&mut self, text: &'a str, len: usize, kind: Kind<'a>) {
        self.at += len;
        let end = self.at;
        self.parts.push(Part { text, kind, end });
    }

    fn mark(&mut self, run: &'a str, opens: bool, closes: bool) {
        // A run of three is two marks, which are paired separately.
        let (first, second) = run.split_at(run.len().min(2));
        for text in [first, second] {
            let Some(row) = MARKS.iter().position(|row| row.0 == text) else {
                continue;
            };
            let opener = closes.then(|| self.openers[row].pop()).flatten();
            let mut kind = Kind::Text(0);
            match opener {
                Some(opener) if self.is_near(opener) => {
                    self.parts[opener].kind = Kind::On(MARKS[row].1);
                    kind = Kind::Off(MARKS[row].1);
                }
                _ if opens => self.openers[row].push(self.parts.len()),
                _ => {}
            }
            self.push(text, text.len(), kind);
        }
    }

    /// Whether a mark can still close this one.
    fn is_near(&self, opener: usize) -> bool {
        self.at - self.parts[opener].end <= MAX_SPAN
    }

    /// Returns the parts before the first mark that may still be paired, and outside of all styles.
    fn settled(&self) -> &[Part<'a>] {
        let open = self.openers.iter().flatten().copied();
        let first = open.filter(|opener| self.is_near(*opener)).min();
        let first = first.unwrap_or(self.parts.len());
        let (mut depth, mut count) = (0, 0);
        for (n, part) in self.parts[..first].iter().enumerate() {
            match part.kind {
                Kind::On(_) | Kind::Link(_) => depth += 1,
                Kind::Off(_) | Kind::LinkEnd(_) => depth -= 1,
                Kind::Text(_) => {}
            }
            if depth == 0 {
                count = n + 1;
            }
        }
        &self.parts[..count]
    }
}

fn write(parts: &[Part], base: u16, styled: &mut StyledText) {
    let mut open = base;
    // The number of open links, the target of the outermost one, and the start of its text.
    let (mut links, mut target, mut start) = (0, 0, 0);
    for part in parts {
        let with = |mark: u16| {
            let link = if links > 0 { LINK } else { 0 };
            let marks = open | mark | link;
            Style { marks, target }
        };
        match part.kind {
            Kind::Text(style) => styled.push(part.text, with(style)),
            Kind::On(style) => open |= style,
            Kind::Off(style) => open = open & !style | base,
            Kind::Link(address) => {
                if links == 0 {
                    (target, start) = (styled.add_target(address), styled.text.len());
                }
                links += 1;
            }
            Kind::LinkEnd(address) => {
                let written = styled.text.get(start..).unwrap_or_default();
                if written.trim().is_empty() {
                    styled.push(address, with(WHOLE));
                }
                links -= 1;
                target = if links == 0 { 0 } else { target };
            }
        }
    }
}
