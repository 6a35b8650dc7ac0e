//! Markdown within a paragraph: emphasis, code, links.
//!
//! A mark opens or closes something only where it plainly does, as on the terminal: `snake_case`, `2 * 3`, `src/**/*.rs`
//! and `a || b` are text, and so is whatever finds no partner. The time it takes grows with the length of the text
//! alone, whatever the text is.

use super::rich::{BOLD, CODE, ITALIC, LINK, Rich, SPOILER, STRIKE, Style, WHOLE};

/// The longest address of a link, in bytes.
const LONGEST_ADDRESS: usize = 2048;
/// The longest run of backticks that is looked at.
const LONGEST_RUN: usize = 16;

/// What becomes of links.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Links {
    Kept,
    /// `text (address)`, where there can be no link.
    Spelt,
}

enum Kind<'a> {
    Text,
    /// Text that should not be cut.
    Whole,
    Code,
    /// The style with this mark begins (1) or ends (-1) here; 0 is text.
    Mark {
        style: u16,
        turn: i32,
    },
    /// `[` or `![`. It is text as long as no link is known to begin here.
    Bracket {
        link: Option<&'a str>,
    },
    /// The end of a link to this address.
    End(&'a str),
}

struct Token<'a> {
    /// Where it begins.
    at: usize,
    /// As it is written; of code, what is inside.
    text: &'a str,
    kind: Kind<'a>,
}

/// Puts `text` into `rich`, with the marks of `base` over all of it.
pub fn read(text: &str, base: u16, links: Links, rich: &mut Rich) {
    let mut reader = Reader { text, ..Reader::default() };
    reader.scan();
    write(&reader.tokens, base, links, rich);
}

#[derive(Default)]
struct Reader<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    /// The tokens that may open each style, the last one on top, as [`Reader::pair`] numbers the kinds of marks.
    open: [Vec<usize>; 6],
    /// The brackets that are not closed yet.
    brackets: Vec<usize>,
    /// So many of `brackets`, from the first, cannot begin a link, since there is one inside.
    barren: usize,
}

impl<'a> Reader<'a> {
    fn scan(&mut self) {
        let text = self.text;
        let bytes = text.as_bytes();
        let ticks = last_runs(text);
        let (mut at, mut plain) = (0, 0);
        while at < bytes.len() {
            if !bytes[at].is_ascii() {
                at += 1;
                continue;
            }
            let rest = &text[at..];
            let run = |b: u8| rest.bytes().take_while(|c| *c == b).count();
            // What was found, and its length in bytes.
            let found = match bytes[at] {
                b'\\' if bytes.get(at + 1).is_some_and(u8::is_ascii_punctuation) => {
                    self.plain(plain, at);
                    self.token(at, &rest[1..2], Kind::Text);
                    Some(2)
                }
                b'`' => {
                    let run = run(b'`');
                    let code = if run <= LONGEST_RUN && ticks[run] > at { code(rest, run) } else { None };
                    match code {
                        Some((inside, len)) => {
                            self.plain(plain, at);
                            self.token(at, inside, Kind::Code);
                            Some(len)
                        }
                        None => {
                            at += run;
                            continue;
                        }
                    }
                }
                mark @ (b'*' | b'_' | b'~' | b'|') => {
                    let run = run(mark);
                    let least = if matches!(mark, b'*' | b'_') { 1 } else { 2 };
                    let most = if matches!(mark, b'*' | b'_') { 3 } else { 2 };
                    if !(least..=most).contains(&run) {
                        at += run;
                        continue;
                    }
                    self.plain(plain, at);
                    self.marks(at, mark, run);
                    Some(run)
                }
                b'[' => {
                    self.plain(plain, at);
                    self.bracket(at, &rest[..1]);
                    Some(1)
                }
                b'!' if rest.starts_with("![") => {
                    self.plain(plain, at);
                    self.bracket(at, &rest[..2]);
                    Some(2)
                }
                b']' => match self.brackets.pop() {
                    Some(bracket) => {
                        destination(&rest[1..]).filter(|_| self.may_link(bracket)).map(|(address, len)| {
                            self.plain(plain, at);
                            self.link(bracket, at, address);
                            len + 1
                        })
                    }
                    None => None,
                },
                b'<' => pointed(rest).map(|address| {
                    self.plain(plain, at);
                    self.token(at, "", Kind::Bracket { link: Some(address) });
                    self.token(at, address, Kind::Whole);
                    self.token(at, "", Kind::End(address));
                    address.len() + 2
                }),
                b'h' if !(at > 0 && bytes[at - 1].is_ascii_alphanumeric()) => bare(rest).inspect(|len| {
                    self.plain(plain, at);
                    self.token(at, &rest[..*len], Kind::Whole);
                }),
                _ => None,
            };
            at += found.unwrap_or(1);
            if found.is_some() {
                plain = at;
            }
        }
        self.plain(plain, at);
    }

    fn token(&mut self, at: usize, text: &'a str, kind: Kind<'a>) {
        self.tokens.push(Token { at, text, kind });
    }

    fn plain(&mut self, from: usize, to: usize) {
        if from < to {
            self.token(from, &self.text[from..to], Kind::Text);
        }
    }

    fn bracket(&mut self, at: usize, text: &'a str) {
        self.brackets.push(self.tokens.len());
        self.token(at, text, Kind::Bracket { link: None });
    }

    /// Whether the bracket that was just taken from the stack may begin a link. There are none within others; an image
    /// may stand in one.
    fn may_link(&mut self, bracket: usize) -> bool {
        let barren = self.brackets.len() < self.barren;
        self.barren = self.barren.min(self.brackets.len());
        !barren || self.tokens[bracket].text == "!["
    }

    fn link(&mut self, bracket: usize, at: usize, address: &'a str) {
        self.tokens[bracket].kind = Kind::Bracket { link: Some(address) };
        if self.tokens[bracket].text == "[" {
            self.barren = self.brackets.len();
        }
        self.token(at, "", Kind::End(address));
    }

    /// A run of one to three marks. Three are two and one, so that either may find a partner.
    fn marks(&mut self, at: usize, mark: u8, run: usize) {
        let before = self.text[..at].chars().next_back();
        let after = self.text[at + run..].chars().next();
        let closes = closes(mark, run, before, after);
        let opens = opens(mark, run, before, after);
        let mut at = at;
        let parts = if run == 3 { [2, 1] } else { [run, 0] };
        for len in parts.into_iter().filter(|len| *len > 0) {
            let (kind, style) = match (mark, len) {
                (b'*', 1) => (0, ITALIC),
                (b'*', _) => (1, BOLD),
                (b'_', 1) => (2, ITALIC),
                (b'_', _) => (3, BOLD),
                (b'~', _) => (4, STRIKE),
                _ => (5, SPOILER),
            };
            let mut turn = 0;
            if let Some(opener) = if closes { self.open[kind].pop() } else { None } {
                let inside = self.tokens[opener].at + len;
                // Python's names in double underscores are lower case and nothing else.
                let name = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
                if kind != 3 || !self.text[inside..at].bytes().all(name) {
                    self.tokens[opener].kind = Kind::Mark { style, turn: 1 };
                    turn = -1;
                }
            } else if opens {
                self.open[kind].push(self.tokens.len());
            }
            self.token(at, &self.text[at..at + len], Kind::Mark { style, turn });
            at += len;
        }
    }
}

fn is_word(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_ascii_alphanumeric())
}

fn is_space(c: Option<char>) -> bool {
    c.is_none_or(char::is_whitespace)
}

/// Whether a run of marks may begin something.
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

/// Whether a run of marks may end something.
fn closes(mark: u8, run: usize, before: Option<char>, after: Option<char>) -> bool {
    !is_space(before)
        && match mark {
            b'*' => !(is_word(after) || run > 1 && after == Some('/')),
            b'_' => after.is_none_or(|c| !c.is_alphanumeric() && !"_/\\=".contains(c)),
            b'|' => !is_word(after),
            _ => true,
        }
}

/// Where the last run of each length of backticks begins.
fn last_runs(text: &str) -> [usize; LONGEST_RUN + 1] {
    let mut last = [0; LONGEST_RUN + 1];
    let mut run = 0;
    for (at, b) in text.bytes().chain([b' ']).enumerate() {
        if b == b'`' {
            run += 1;
        } else if run > 0 {
            if run <= LONGEST_RUN {
                last[run] = at - run;
            }
            run = 0;
        }
    }
    last
}

/// The inside and the length of the code at the beginning of `rest`, which has so many backticks.
fn code(rest: &str, run: usize) -> Option<(&str, usize)> {
    let mut at = run;
    loop {
        let start = at + rest[at..].find('`')?;
        let count = rest[start..].bytes().take_while(|b| *b == b'`').count();
        at = start + count;
        if count == run {
            let inside = &rest[run..start];
            let bare = inside.strip_prefix(' ').and_then(|inside| inside.strip_suffix(' '));
            let inside = bare.filter(|bare| !bare.trim().is_empty()).unwrap_or(inside);
            return (!inside.trim().is_empty()).then_some((inside, at));
        }
    }
}

/// The address of `(address "title")` at the beginning of `rest`, and the length of all of it.
fn destination(rest: &str) -> Option<(&str, usize)> {
    let inside = rest.strip_prefix('(')?;
    let skipped = inside.len() - inside.trim_start_matches(' ').len();
    let inside = &inside[skipped..];
    let mut depth = 0_usize;
    let pointed = inside.starts_with('<');
    let ends = |(at, b): (usize, u8)| {
        match b {
            _ if at > LONGEST_ADDRESS || b == b'\n' => return true,
            b'>' => return pointed,
            _ if pointed => return false,
            b' ' | b'\t' => return true,
            // As deep as other readers go; without an end this would be slow for many beginnings.
            b'(' if depth == 32 => return true,
            b'(' => depth += 1,
            b')' if depth == 0 => return true,
            b')' => depth -= 1,
            _ => {}
        }
        false
    };
    let end = inside.bytes().enumerate().position(ends)?;
    let address = inside.get(usize::from(pointed)..end)?;
    let after = inside.get(end + usize::from(pointed)..)?;
    let spaces = after.len() - after.trim_start_matches(' ').len();
    let title = &after[spaces..];
    let title = match title.bytes().next()? {
        quote @ (b'"' | b'\'') => {
            let inside = title.bytes().enumerate().skip(1).take(LONGEST_ADDRESS);
            let close = inside.take_while(|(_, b)| *b != b'\n').find(|(_, b)| *b == quote)?;
            close.0 + 1
        }
        _ => 0,
    };
    let close = after.len() - after[spaces + title..].trim_start_matches(' ').len();
    let whole = rest.len() - after.len() + close + 1;
    (after[close..].starts_with(')') && !address.is_empty()).then_some((address, whole))
}

/// The address of `<https://host/>` at the beginning of `rest`.
fn pointed(rest: &str) -> Option<&str> {
    let inside = &rest[1..];
    let scheme = inside.starts_with("http") || inside.starts_with("mailto:") || inside.starts_with("tg:");
    let ends = |b: u8| b.is_ascii_whitespace() || b == b'<' || b == b'>';
    let end = if scheme { inside.bytes().take(LONGEST_ADDRESS).position(ends)? } else { return None };
    Some(&inside[..end]).filter(|address| inside[end..].starts_with('>') && is_linkable(address))
}

/// The length of the address that `rest` begins with. Telegram finds it by itself; here it is left as it is.
fn bare(rest: &str) -> Option<usize> {
    if !rest.starts_with("http://") && !rest.starts_with("https://") {
        return None;
    }
    let ends = |c: char| c.is_whitespace() || "<>*|`\"[]".contains(c);
    let address = &rest[..rest.find(ends).unwrap_or(rest.len())];
    let address = address.trim_end_matches(['_', '~', '.', ',', ';', ':', '!', '?', '\'', '\\']);
    Some(if address.contains('(') { address.len() } else { address.trim_end_matches(')').len() })
}

/// Whether a link may lead there.
fn is_linkable(address: &str) -> bool {
    let schemes = ["http://", "https://", "tg://", "mailto:"];
    let begins = |scheme: &&str| address.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    let rest = schemes.iter().find(|scheme| begins(scheme)).map_or("", |scheme| &address[scheme.len()..]);
    !rest.is_empty() && address.len() <= LONGEST_ADDRESS && !address.contains(char::is_whitespace)
}

/// Puts the tokens into `rich`, now that it is known what opens and closes what.
fn write(tokens: &[Token], base: u16, links: Links, rich: &mut Rich) {
    // How often each style has been opened and not closed, by the number of its bit.
    let mut depths = [0_i32; 16];
    // Where the text of each open link begins, and whose link it is: that of the outermost one.
    let mut starts: Vec<usize> = Vec::new();
    let mut target = None;
    for token in tokens {
        let mut marks = base;
        for (bit, depth) in depths.iter().enumerate() {
            marks |= u16::from(*depth > 0) << bit;
        }
        if target.is_some() {
            marks |= LINK;
        }
        let style = Style { marks, of: target.unwrap_or(0) };
        let with = |mark: u16| Style { marks: marks | mark, ..style };
        match token.kind {
            Kind::Text => rich.push(token.text, style),
            Kind::Whole => rich.push(token.text, with(WHOLE)),
            Kind::Code => rich.push(token.text, with(CODE)),
            Kind::Mark { turn: 0, .. } | Kind::Bracket { link: None } => rich.push(token.text, style),
            Kind::Mark { style, turn } => depths[style.trailing_zeros() as usize] += turn,
            Kind::Bracket { link: Some(address) } => {
                if starts.is_empty() && links == Links::Kept && is_linkable(address) {
                    target = Some(rich.target(address));
                }
                starts.push(rich.text.len());
            }
            Kind::End(address) => {
                let start = starts.pop().unwrap_or(0);
                let shown = rich.text[start.min(rich.text.len())..].trim();
                if shown.is_empty() {
                    rich.push(address, with(WHOLE));
                } else if target.is_none() && shown != address {
                    rich.push(&[" (", address, ")"].concat(), with(WHOLE));
                }
                if starts.is_empty() {
                    target = None;
                }
            }
        }
    }
}
