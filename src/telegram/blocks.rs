//! Markdown line by line: paragraphs, headings, lists, quotes, code blocks, tables.
//!
//! Written for what models write, not for every corner of `CommonMark`: line breaks are kept, lists stay text with their
//! indentation, quotes within quotes keep their `>`, and there are no indented code blocks and no HTML.

use super::inline::{self, Links};
use super::rich::{BOLD, PRE, QUOTE, Rich, Style};
use super::table;

/// The deepest indentation that is kept, in columns: a telephone is narrow.
const DEEPEST: usize = 24;

/// Reads a whole answer.
pub fn read(markdown: &str) -> Rich {
    let mut rich = Rich::default();
    // Telegram would drop these itself, and a NUL might end the text.
    let clean: String = markdown.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
    let lines: Vec<&str> = clean.lines().collect();
    blocks(&lines, 0, &mut rich);
    rich
}

fn blocks(lines: &[&str], base: u16, rich: &mut Rich) {
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        let text = line.trim();
        rich.gap(if text.is_empty() { 2 } else { 1 });
        at += 1;
        if text.is_empty() {
        } else if let Some(fence) = Fence::opening(text) {
            at += fence.read(&lines[at..], columns(line).0, base, rich);
        } else if text.starts_with('>') && base == 0 {
            let count = lines[at..].iter().take_while(|line| line.trim_start().starts_with('>')).count();
            let quoted: Vec<&str> = lines[at - 1..at + count].iter().map(|line| unquoted(line)).collect();
            rich.apart();
            blocks(&quoted, QUOTE, rich);
            rich.apart();
            at += count;
        } else if let Some(heading) = heading(text) {
            inline::read(heading, base | BOLD, Links::Kept, rich);
        } else if is_rule(text) {
            rich.push(&"─".repeat(10), Style { marks: base, of: 0 });
        } else if table::begins(line, lines.get(at)) {
            let (table, count) = table::read(&lines[at - 1..]);
            preformatted(&table, "", base, rich);
            at += count - 1;
        } else {
            at += paragraph(line, &lines[at..], base, rich);
        }
    }
}

/// Reads a paragraph or an item of a list, whose first line is `first`, and says how many lines of `more` belong to it.
fn paragraph(first: &str, more: &[&str], base: u16, rich: &mut Rich) -> usize {
    let (prefix, text) = item(first).unwrap_or_else(|| (indentation(first), first.trim()));
    let fence = Fence::opening(text);
    let prefix = if fence.is_some() { prefix.trim_end() } else { &prefix };
    rich.push(prefix, Style { marks: base, of: 0 });
    if let Some(fence) = fence {
        return fence.read(more, columns(first).0 + 2, base, rich);
    }
    let mut whole = text.to_owned();
    let mut count = 0;
    for (n, line) in more.iter().enumerate() {
        if begins_a_block(line, base) || table::begins(line, more.get(n + 1)) {
            break;
        }
        whole.push('\n');
        whole.push_str(&indentation(line));
        whole.push_str(line.trim());
        count += 1;
    }
    inline::read(&whole, base, Links::Kept, rich);
    count
}

fn begins_a_block(line: &str, base: u16) -> bool {
    let text = line.trim();
    text.is_empty()
        || Fence::opening(text).is_some()
        || text.starts_with('>') && base == 0
        || heading(text).is_some()
        || is_rule(text)
        || item(line).is_some()
}

/// How far a line is indented, in columns and in bytes. A tab counts as four.
fn columns(line: &str) -> (usize, usize) {
    let bytes = line.len() - line.trim_start().len();
    (line[..bytes].chars().map(|c| if c == '\t' { 4 } else { 1 }).sum(), bytes)
}

fn indentation(line: &str) -> String {
    " ".repeat(columns(line).0.min(DEEPEST))
}

/// The text of a heading.
fn heading(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches('#');
    let level = text.len() - rest.len();
    let title = rest.strip_prefix([' ', '\t']).filter(|_| (1..=6).contains(&level))?.trim();
    let bare = title.trim_end_matches('#');
    Some(if bare.is_empty() || bare.ends_with(' ') { bare.trim() } else { title })
}

fn is_rule(text: &str) -> bool {
    let mark = text.chars().next().unwrap_or(' ');
    let count = text.chars().filter(|c| *c == mark).count();
    matches!(mark, '-' | '*' | '_') && count >= 3 && text.chars().all(|c| c == mark || c == ' ')
}

/// What stands before an item of a list, as it is shown, and its text.
fn item(line: &str) -> Option<(String, &str)> {
    let text = line.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let mark = match text.as_bytes().get(digits)? {
        b'-' | b'*' | b'+' if digits == 0 => "•",
        b'.' | b')' if (1..=9).contains(&digits) => &text[..=digits],
        _ => return None,
    };
    let rest = &text[digits + 1..];
    if !rest.starts_with([' ', '\t']) {
        return None;
    }
    let rest = rest.trim_start();
    let tasks = [("[ ]", "☐"), ("[x]", "☑"), ("[X]", "☑")];
    let task = tasks.iter().find_map(|(written, shown)| Some((rest.strip_prefix(written)?, *shown)));
    let (rest, mark) = match task {
        Some((rest, shown)) if rest.starts_with(' ') => (rest.trim_start(), shown),
        _ => (rest, mark),
    };
    Some((format!("{}{mark} ", indentation(line)), rest))
}

/// The line without the mark of its quote.
fn unquoted(line: &str) -> &str {
    let line = line.trim_start();
    let line = line.strip_prefix('>').unwrap_or(line);
    line.strip_prefix(' ').unwrap_or(line)
}

/// The opening line of a code block, which ends with a line of at least so many of the same character.
struct Fence<'a> {
    mark: char,
    count: usize,
    language: &'a str,
}

impl<'a> Fence<'a> {
    fn opening(text: &'a str) -> Option<Self> {
        let mark = text.chars().next().filter(|c| matches!(c, '`' | '~'))?;
        let info = text.trim_start_matches(mark);
        let count = text.len() - info.len();
        if count < 3 || info.contains('`') {
            return None;
        }
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '#' | '_' | '.');
        let language = info.split_whitespace().next().unwrap_or_default();
        let language = if language.len() <= 32 && language.chars().all(named) { language } else { "" };
        Some(Self { mark, count, language })
    }

    fn closes(&self, line: &str) -> bool {
        let text = line.trim();
        text.len() >= self.count && text.chars().all(|c| c == self.mark)
    }

    /// Reads the code, less the fence's own indentation, and says how many lines it and the closing fence were. A block
    /// that nobody closes ends with the answer.
    fn read(&self, lines: &[&str], indent: usize, base: u16, rich: &mut Rich) -> usize {
        let count = lines.iter().take_while(|line| !self.closes(line)).count();
        let mut code = String::new();
        for line in &lines[..count] {
            let spaces = line.bytes().take_while(|b| *b == b' ').count();
            code.push_str(&line[spaces.min(indent)..]);
            code.push('\n');
        }
        preformatted(&code, self.language, base, rich);
        (count + 1).min(lines.len())
    }
}

fn preformatted(text: &str, language: &str, base: u16, rich: &mut Rich) {
    let text = text.trim_start_matches('\n').trim_end();
    if !text.trim().is_empty() {
        let of = rich.target(language);
        rich.gap(1);
        rich.push(text, Style { marks: base | PRE, of });
        rich.gap(1);
    }
}
