//! Parses Markdown line by line: paragraphs, headings, lists, quotes, code blocks, tables.
//!
//! Made for the output of models, without all details of `CommonMark`: line breaks are preserved, lists are text with
//! indentation, a nested quote shows its `>`, and indented code blocks and HTML are not supported.

use super::inline;
use super::styled::{BOLD, PRE, QUOTE, Style, StyledText};
use super::table::{self, MAX_COLUMN};

/// Maximum indentation, in columns, because phones are narrow.
const MAX_INDENT: usize = 24;
/// Marker of an unordered list item.
const BULLET: &str = "•";

/// Kind of a line, regardless of its context.
pub(super) enum Line<'a> {
    Blank,
    /// Opening line of a code block, with what follows the fence: its language, or anything.
    Fence(Fence, &'a str),
    Quote,
    Heading(&'a str),
    Rule,
    /// Displayed marker of a list item, and its text.
    Item(&'a str, &'a str),
    Text,
}

impl<'a> Line<'a> {
    pub(super) fn parse(line: &'a str) -> Self {
        let text = line.trim();
        if text.is_empty() {
            Self::Blank
        } else if let Some((fence, language)) = fence(text) {
            Self::Fence(fence, language)
        } else if text.starts_with('>') {
            Self::Quote
        } else if let Some(title) = heading(text) {
            Self::Heading(title)
        } else if is_rule(text) {
            Self::Rule
        } else {
            item(text).map_or(Self::Text, |(marker, text)| Self::Item(marker, text))
        }
    }
}

/// Fence of a code block, which is closed by at least `count` times `mark`.
#[derive(Clone, Copy)]
pub(super) struct Fence {
    mark: char,
    count: usize,
}

impl Fence {
    pub(super) fn closes(self, line: &str) -> bool {
        let line = line.trim();
        line.len() >= self.count && line.chars().all(|c| c == self.mark)
    }
}

fn fence(text: &str) -> Option<(Fence, &str)> {
    let mark = text.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let info = text.trim_start_matches(mark);
    let count = text.len() - info.len();
    if count < 3 || info.contains('`') {
        return None;
    }
    Some((Fence { mark, count }, info.trim()))
}

fn heading(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches('#');
    let level = text.len() - rest.len();
    if !(1..=6).contains(&level) {
        return None;
    }
    Some(rest.strip_prefix([' ', '\t'])?.trim())
}

fn is_rule(text: &str) -> bool {
    ['-', '*', '_'].iter().any(|mark| {
        text.chars().all(|c| c == *mark || c == ' ') && text.matches(*mark).count() >= 3
    })
}

fn item(text: &str) -> Option<(&str, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let is_marker = match text.as_bytes().get(digits)? {
        b'-' | b'*' | b'+' => digits == 0,
        b'.' | b')' => (1..=9).contains(&digits),
        _ => false,
    };
    let (marker, rest) = text.split_at_checked(digits + 1)?;
    if !is_marker || !rest.starts_with([' ', '\t']) {
        return None;
    }
    let marker = if digits > 0 { marker } else { BULLET };
    Some((marker, rest.trim_start()))
}

/// Joins the lines of each paragraph of a page, for a terminal that wraps lines. Code and rows of tables remain unchanged.
pub(crate) fn refilled(page: &str) -> String {
    let mut out = String::new();
    let (mut is_code, mut is_open) = (false, false);
    for line in page.lines() {
        is_code ^= line.starts_with("```");
        let kind = Line::parse(line);
        let is_apart = is_code || line.starts_with("    ") || line.starts_with('|');
        let is_text = !is_apart && matches!(kind, Line::Text);
        if is_open && is_text {
            out.push_str(&format!(" {}", line.trim_start()));
        } else {
            out.push_str(&format!("\n{line}"));
        }
        is_open = is_text || !is_apart && matches!(kind, Line::Item(..));
    }
    out.trim_start().to_owned() + "\n"
}

/// Parses a whole answer.
pub(super) fn parse(markdown: &str) -> StyledText {
    let mut styled = StyledText::default();
    // Telegram drops control characters, and a NUL might end the text.
    let clean: String = markdown
        .chars()
        .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
        .collect();
    read(&clean.lines().collect::<Vec<_>>(), 0, &mut styled);
    styled
}

fn read(lines: &[&str], base: u16, styled: &mut StyledText) {
    let (marks, target, mut at) = (base, 0, 0);
    let plain = Style { marks, target };
    while at < lines.len() {
        let (line, rest) = (lines[at], &lines[at + 1..]);
        at += 1;
        styled.gap(1);
        match Line::parse(line) {
            Line::Blank => styled.gap(2),
            Line::Fence(fence, info) => {
                at += code(fence, info, rest, indent(line), base, styled);
            }
            Line::Quote if base & QUOTE == 0 => {
                let count = rest
                    .iter()
                    .take_while(|line| line.trim_start().starts_with('>'))
                    .count();
                let quoted = lines[at - 1..at + count].iter();
                let quoted: Vec<&str> = quoted.map(|line| unquoted(line)).collect();
                read(&quoted, base | QUOTE, styled);
                at += count;
            }
            Line::Heading(title) => inline::read(title, base | BOLD, styled),
            Line::Rule => styled.push(&"─".repeat(10), plain),
            _ if table::begins(line, rest.first()) => {
                let count = table::count(&lines[at - 1..]);
                let written = table::rows(&lines[at - 1..at - 1 + count]);
                let plain = |row: &Vec<String>| row.iter().map(|cell| table::plain(cell)).collect();
                let rows: Vec<Vec<String>> = written.iter().map(plain).collect();
                let table = table::aligned(&rows, MAX_COLUMN);
                preformatted(&table, "", base, styled);
                at += count - 1;
            }
            Line::Item(marker, text) => {
                let prefix = format!("{}{marker}", indentation(line));
                styled.push(&prefix, plain);
                match fence(text) {
                    Some((fence, info)) => {
                        at += code(fence, info, rest, indent(line) + 2, base, styled);
                    }
                    None => inline::read(&format!(" {text}"), base, styled),
                }
            }
            Line::Quote | Line::Text => {
                let text = format!("{}{}", indentation(line), line.trim());
                inline::read(&text, base, styled);
            }
        }
    }
}

/// Returns the indentation of a line, in columns. A tab counts as four.
fn indent(line: &str) -> usize {
    line.chars()
        .take_while(|c| c.is_whitespace())
        .map(|c| if c == '\t' { 4 } else { 1 })
        .sum()
}

pub(super) fn indentation(line: &str) -> String {
    " ".repeat(indent(line).min(MAX_INDENT))
}

/// Returns the line without its quote mark.
pub(super) fn unquoted(line: &str) -> &str {
    let line = line.trim_start();
    let line = line.strip_prefix('>').unwrap_or(line);
    line.strip_prefix(' ').unwrap_or(line)
}

/// Reads a code block, without the indentation of its fence, and returns its number of lines including the closing fence. An
/// unclosed block extends to the end of the answer. Text after the fence is its first line unless it is only a language.
fn code(
    fence: Fence,
    info: &str,
    lines: &[&str],
    indent: usize,
    base: u16,
    styled: &mut StyledText,
) -> usize {
    let count = lines.iter().take_while(|line| !fence.closes(line)).count();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "+-#_.".contains(c);
    let language = info.split_whitespace().next();
    let language = language.filter(|name| name.len() <= 32 && name.chars().all(is_name));
    let language = language.unwrap_or_default();
    let first = if info == language { "" } else { info };
    let mut code = format!("{first}\n");
    for line in &lines[..count] {
        let spaces = line.bytes().take_while(|b| *b == b' ').count();
        code.push_str(&line[spaces.min(indent)..]);
        code.push('\n');
    }
    preformatted(&code, language, base, styled);
    (count + 1).min(lines.len())
}

fn preformatted(text: &str, language: &str, base: u16, styled: &mut StyledText) {
    let text = text.trim_start_matches('\n').trim_end();
    if !text.trim().is_empty() {
        let (marks, target) = (base | PRE, styled.add_target(language));
        styled.gap(1);
        styled.push(text, Style { marks, target });
        styled.gap(1);
    }
}
