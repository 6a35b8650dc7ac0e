//! Parses Markdown in a paragraph: emphasis, code, links.
//!
//! [`next`] reads one token at a time, for every output. A mark only opens or closes a style if it is unambiguous:
//! `snake_case`, `2 * 3`, `src/**/*.rs` and `a ~ b` are text. [`read`] also pairs the marks of a whole paragraph; unpaired
//! marks are text. Both take linear time.

use super::styled::{BOLD, CODE, ITALIC, LINK, STRIKE, Style, StyledText, WHOLE};
use crate::text::{clip, is_unsafe_to_show};
use crate::web;

/// Maximum length of a link's address, in bytes.
const MAX_ADDRESS: usize = 2048;
/// Maximum length of a link's text, in bytes, because a terminal delays output until its end.
const MAX_LINK_TEXT: usize = 600;
/// Maximum nesting of brackets in a link's text. Without a limit, many unfinished links would be slow.
const MAX_BRACKETS: u32 = 4;
/// Maximum nesting of parentheses in an address, for the same reason.
const MAX_PARENTHESES: i32 = 32;
/// Maximum length of a run of backticks that opens code.
const MAX_BACKTICKS: usize = 31;
/// Maximum length of a name in double underscores that is not emphasis, including these.
const MAX_NAME: usize = 64;
/// Maximum length of a character's name, such as `&epsilon;`.
const MAX_ENTITY: usize = 10;

/// Paired marks: the character, its number, and the style.
pub(super) const MARKS: [(char, usize, u16); 5] = [
    ('*', 1, ITALIC),
    ('*', 2, BOLD),
    ('_', 1, ITALIC),
    ('_', 2, BOLD),
    ('~', 2, STRIKE),
];

/// Styles that a writer supports. Marks of other styles are shown unchanged.
pub(super) const TELEGRAM: u16 = PLAIN | LINK;
pub(super) const PLAIN: u16 = BOLD | ITALIC | STRIKE;

pub(super) enum Token<'a> {
    Text(&'a str),
    /// A character written by its name or number.
    Named(char),
    /// A run of one to three marks.
    Mark {
        opens: bool,
        closes: bool,
    },
    /// A run of backticks.
    Ticks(usize),
    /// A bare address, which is shown unchanged.
    Whole(&'a str),
    Link {
        text: &'a str,
        address: &'a str,
    },
}

/// Reads the first token of `rest`, and its length in bytes, which is never 0. `before` is the preceding character. Returns
/// `None` at the end, and for a token that may still change unless `rest` ends its line.
pub(super) fn next(rest: &str, before: Option<char>, is_last: bool) -> Option<(Token<'_>, usize)> {
    let mut at = 0;
    let marks = ['\\', '`', '*', '_', '~', '[', '!', '&', '<', 'h'];
    while let Some(found) = rest[at..].find(marks) {
        at += found;
        let before = rest[..at].chars().next_back().or(before);
        match read_mark(&rest[at..], before, is_last) {
            Read::Text(len) => at += len,
            Read::Token(token, len) if at == 0 => return Some((token, len)),
            Read::Open if at == 0 => return None,
            Read::Token(..) | Read::Open => return Some((Token::Text(&rest[..at]), at)),
        }
    }
    (!rest.is_empty()).then_some((Token::Text(rest), rest.len()))
}

/// Interpretation of a place with a potential mark.
enum Read<'a> {
    /// This number of bytes of text.
    Text(usize),
    Token(Token<'a>, usize),
    /// Undecided until more text arrives.
    Open,
}

fn read_mark(rest: &str, before: Option<char>, is_last: bool) -> Read<'_> {
    let bytes = rest.as_bytes();
    // Whether the text after the first `len` bytes may change their interpretation.
    let is_open = |len: usize| len >= rest.len() && !is_last;
    match bytes[0] {
        b'\\' | b'!' if is_open(1) => Read::Open,
        // Signs of formulas, `\(x\,dx\)`, are more frequent than escapes of these characters.
        b'\\' if bytes.get(1).is_some_and(|b| b"()[]{},;:!".contains(b)) => Read::Text(2),
        b'\\' if bytes.get(1).is_some_and(u8::is_ascii_punctuation) => {
            Read::Token(Token::Text(&rest[1..2]), 2)
        }
        b'`' | b'*' | b'_' | b'~' => run(rest, before, is_last),
        b'!' if rest.starts_with("![") => link(rest, 1, is_last),
        b'[' => link(rest, 0, is_last),
        b'&' => entity(rest, is_last),
        b'<' => line_break(rest, is_last),
        b'h' if !is_word(before) => bare_address(rest, is_last),
        _ => Read::Text(1),
    }
}

/// Reads a run of one mark. A run that exceeds the maximum is text, including its continuation in a later piece.
fn run(rest: &str, before: Option<char>, is_last: bool) -> Read<'_> {
    let mark = rest.as_bytes()[0];
    let len = rest.bytes().take_while(|b| *b == mark).count();
    let most = if mark == b'`' { MAX_BACKTICKS } else { 3 };
    if len > most || before == Some(char::from(mark)) {
        return Read::Text(len);
    }
    if len == rest.len() && !is_last {
        return Read::Open;
    }
    if mark == b'`' {
        return Read::Token(Token::Ticks(len), len);
    }
    if parts(&rest[..len]).next().is_none() {
        return Read::Text(len);
    }
    if mark == b'_' && len == 2 {
        match name(rest, is_last) {
            None => return Read::Open,
            Some(0) => {}
            Some(len) => return Read::Text(len),
        }
    }
    let after = rest[len..].chars().next();
    let token = Token::Mark {
        opens: opens(mark, len, before, after),
        closes: closes(mark, len, before, after),
    };
    Read::Token(token, len)
}

/// Splits a run into marks, as rows of [`MARKS`] with their text. A run of three is two marks, which are paired separately.
pub(super) fn parts(run: &str) -> impl Iterator<Item = (usize, &str)> {
    let (first, second) = run.split_at(run.len().min(2));
    [first, second].into_iter().filter_map(|text| {
        let is_it = |row: &(char, usize, u16)| row.1 == text.len() && text.starts_with(row.0);
        Some((MARKS.iter().position(is_it)?, text))
    })
}

/// Returns the length of a name such as `__init__`, which is not emphasis; 0 for other text, `None` if undecided.
fn name(rest: &str, is_last: bool) -> Option<usize> {
    let is_name = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'_';
    let len = rest.bytes().take(MAX_NAME).take_while(is_name).count();
    if len == rest.len() && len < MAX_NAME && !is_last {
        return None;
    }
    Some(if len > 4 && rest[..len].ends_with("__") {
        len
    } else {
        0
    })
}

/// Reads `[text](address)` after `skipped` bytes. A link must end on its line.
fn link(rest: &str, skipped: usize, is_last: bool) -> Read<'_> {
    let no = Read::Text(1);
    let bytes = rest.as_bytes();
    let (mut at, mut depth, mut images) = (skipped, 0, 0_u32);
    loop {
        match bytes.get(at) {
            _ if at > MAX_LINK_TEXT => return no,
            None => return if is_last { no } else { Read::Open },
            Some(b'\n') => return no,
            Some(b'\\') => at += 1,
            Some(b'[') if depth == MAX_BRACKETS => return no,
            Some(b'[') => {
                depth += 1;
                images = images << 1 | u32::from(rest[..at].ends_with('!'));
            }
            Some(b']') if depth == 1 => break,
            // Links cannot contain links, but they can contain images.
            Some(b']') if images & 1 == 0 && bytes.get(at + 1) == Some(&b'(') => return no,
            Some(b']') => {
                depth -= 1;
                images >>= 1;
            }
            Some(_) => {}
        }
        at += 1;
    }
    let (text, after) = (&rest[skipped + 1..at], &rest[at + 1..]);
    let may_go_on = || after.is_empty() || after.strip_prefix('(').is_some_and(may_be_address);
    match destination(after) {
        Some((address, len)) => Read::Token(Token::Link { text, address }, at + 1 + len),
        None if !is_last && may_go_on() => Read::Open,
        None => no,
    }
}

/// Reads a character written by its name or number, `&mdash;` or `&#8212;`. Characters that could control a terminal or reorder
/// a line remain unchanged.
fn entity(rest: &str, is_last: bool) -> Read<'_> {
    let is_name = |b: &u8| b.is_ascii_alphanumeric() || *b == b'#';
    let len = rest
        .bytes()
        .skip(1)
        .take(MAX_ENTITY)
        .take_while(is_name)
        .count();
    match rest.as_bytes().get(1 + len) {
        None if !is_last => Read::Open,
        Some(b';') => web::named_character(&rest[1..=len], true)
            .filter(|c| !is_unsafe_to_show(*c))
            .map_or(Read::Text(1), |c| Read::Token(Token::Named(c), len + 2)),
        _ => Read::Text(1),
    }
}

fn line_break(rest: &str, is_last: bool) -> Read<'_> {
    for tag in ["<br>", "<br/>", "<br />"] {
        let len = tag.len().min(rest.len());
        let is_alike = rest.as_bytes()[..len].eq_ignore_ascii_case(&tag.as_bytes()[..len]);
        if is_alike && len == tag.len() {
            return Read::Token(Token::Named('\n'), len);
        }
        if is_alike && !is_last {
            return Read::Open;
        }
    }
    Read::Text(1)
}

/// Reads an address that Telegram detects as a link; it only has to remain unchanged.
fn bare_address(rest: &str, is_last: bool) -> Read<'_> {
    let schemes = ["http://", "https://"];
    if !schemes.iter().any(|scheme| rest.starts_with(scheme)) {
        let is_open = !is_last && schemes.iter().any(|scheme| scheme.starts_with(rest));
        return if is_open { Read::Open } else { Read::Text(1) };
    }
    let ends = |c: char| c.is_whitespace() || "<>*|`\"[]".contains(c);
    let address = clip(rest, MAX_ADDRESS);
    let address = &address[..address.find(ends).unwrap_or(address.len())];
    if address.len() == rest.len() && rest.len() < MAX_ADDRESS && !is_last {
        return Read::Open;
    }
    let address = address.trim_end_matches(['_', '~', '.', ',', ';', ':', '!', '?', '\'', '\\']);
    let address = if address.contains('(') {
        address
    } else {
        address.trim_end_matches(')')
    };
    Read::Token(Token::Whole(address), address.len())
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
        !(0..=MAX_PARENTHESES).contains(&depth) || b == b'\n'
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

const SCHEMES: [&str; 4] = ["http://", "https://", "tg://", "mailto:"];

fn is_linkable(address: &str) -> bool {
    let begins = |scheme: &str| {
        let start = address.get(..scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    SCHEMES
        .iter()
        .any(|scheme| begins(scheme) && address.len() > scheme.len())
}

/// Whether `inside` may become a link's address with its closing parenthesis.
fn may_be_address(inside: &str) -> bool {
    let address = inside.trim_start().as_bytes();
    let may_begin = SCHEMES.iter().any(|scheme| {
        let len = scheme.len().min(address.len());
        address[..len].eq_ignore_ascii_case(&scheme.as_bytes()[..len])
    });
    may_begin && inside.len() < MAX_ADDRESS && end_of_address(inside).is_none()
}

/// A token with a resolved mark.
struct Part<'a> {
    /// The source text; for code, the inside.
    text: &'a str,
    kind: Kind<'a>,
}

enum Kind<'a> {
    Text,
    Named(char),
    /// Text that should not be split.
    Whole,
    Code,
    /// A mark that starts or ends a style.
    On(u16),
    Off(u16),
    /// The start or the end of a link to this address.
    Link(&'a str),
    LinkEnd(&'a str),
}

/// Adds `text` to `styled`, with the style `base` for all of it, and the styles of its marks that are in `shown`.
pub(super) fn read(text: &str, base: u16, shown: u16, styled: &mut StyledText) {
    let mut pairing = Pairing::default();
    pairing.read(text);
    write(&pairing.parts, base, shown, styled);
}

#[derive(Default)]
struct Pairing<'a> {
    parts: Vec<Part<'a>>,
    /// For each row of [`MARKS`], the parts that may open it; the last one is innermost.
    openers: [Vec<usize>; MARKS.len()],
    /// Lengths of runs of backticks without a later run of equal length, as bits.
    last_runs: u32,
}

impl<'a> Pairing<'a> {
    fn read(&mut self, text: &'a str) {
        let mut at = 0;
        while let Some((token, len)) = next(&text[at..], text[..at].chars().next_back(), true) {
            assert!(len > 0, "each round takes text");
            let written = &text[at..at + len];
            at += len;
            match token {
                Token::Text(text) => self.push(text, Kind::Text),
                Token::Named(c) => self.push(written, Kind::Named(c)),
                Token::Whole(text) => self.push(text, Kind::Whole),
                Token::Mark { opens, closes } => self.mark(written, opens, closes),
                Token::Ticks(run) => match self.code(&text[at..], run) {
                    Some(inside) => {
                        at += inside.len() + run;
                        self.push(unpadded(inside), Kind::Code);
                    }
                    None => self.push(written, Kind::Text),
                },
                Token::Link { text, address } => {
                    let (start, end) = written.split_at(written.find('[').map_or(0, |at| at + 1));
                    self.push(start, Kind::Link(address));
                    let last_runs = std::mem::take(&mut self.last_runs);
                    self.read(text);
                    self.last_runs = last_runs;
                    self.push(&end[text.len()..], Kind::LinkEnd(address));
                }
            }
        }
    }

    fn push(&mut self, text: &'a str, kind: Kind<'a>) {
        self.parts.push(Part { text, kind });
    }

    fn mark(&mut self, run: &'a str, opens: bool, closes: bool) {
        for (row, text) in parts(run) {
            let opener = closes.then(|| self.openers[row].pop()).flatten();
            let style = MARKS[row].2;
            if let Some(opener) = opener {
                self.parts[opener].kind = Kind::On(style);
                self.push(text, Kind::Off(style));
            } else {
                if opens {
                    self.openers[row].push(self.parts.len());
                }
                self.push(text, Kind::Text);
            }
        }
    }

    /// Returns the code up to the next run of backticks of equal length, unless it is blank.
    fn code(&mut self, rest: &'a str, run: usize) -> Option<&'a str> {
        let mut end = 0;
        while self.last_runs & 1 << run == 0 {
            let Some(found) = rest[end..].find('`') else {
                self.last_runs |= 1 << run;
                break;
            };
            let start = end + found;
            end = start + rest[start..].bytes().take_while(|b| *b == b'`').count();
            if end - start == run {
                return Some(&rest[..start]).filter(|inside| !inside.trim().is_empty());
            }
        }
        None
    }
}

/// Strips one space of padding on both sides.
fn unpadded(code: &str) -> &str {
    let inside = code
        .strip_prefix(' ')
        .and_then(|code| code.strip_suffix(' '));
    inside
        .filter(|code| !code.trim().is_empty())
        .unwrap_or(code)
}

fn write(parts: &[Part], base: u16, shown: u16, styled: &mut StyledText) {
    let mut open = base;
    // The number of open links, the target of the outermost one, and the start of its text.
    let (mut links, mut target, mut start) = (0, 0, 0);
    for part in parts {
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
        match part.kind {
            Kind::Named(c) => styled.push(c.encode_utf8(&mut [0; 4]), with(0)),
            Kind::Whole => styled.push(part.text, with(WHOLE)),
            Kind::Code => styled.push(part.text, with(CODE)),
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
            _ => styled.push(part.text, with(0)),
        }
    }
}
