//! Writes styled text as Telegram's HTML (Bot API, "Formatting options").
//!
//! Tags must be nested properly; code contains no other styles, and links and quotes are not nested in themselves.

use std::ops::Range;

use super::blocks;
use super::split::split;
use super::styled::{BOLD, CODE, ITALIC, LINK, PRE, QUOTE, STRIKE, Style, StyledText};

/// A message in two formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// HTML for `parse_mode` `HTML`.
    pub html: String,
    /// The same text without styles and with the addresses of its links, in case the server refuses the HTML. Addresses may
    /// make it too long for one message.
    pub plain: String,
}

/// Converts `markdown` to messages in order; an invisible text has no messages. Only white space at the splits is lost.
pub(crate) fn pieces(markdown: &str) -> Vec<Piece> {
    let styled = blocks::parse(markdown);
    let ranges = split(&styled).into_iter();
    ranges.map(|range| piece(&styled, range)).collect()
}

/// Tags of the styles, outermost first.
const TAGS: [(u16, &str); 7] = [
    (QUOTE, "blockquote"),
    (LINK, "a"),
    (BOLD, "b"),
    (ITALIC, "i"),
    (STRIKE, "s"),
    (CODE, "code"),
    (PRE, "pre"),
];

/// A tag with the index of its target for `a` and `pre`, because two links to one address are different.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Tag {
    name: &'static str,
    target: usize,
}

impl Tag {
    pub(super) fn opening(self, styled: &StyledText) -> String {
        let target = styled.targets.get(self.target).map(String::as_str);
        match (self.name, target) {
            ("a", Some(address)) => format!("<a href=\"{}\">", escaped(address)),
            ("pre", Some(language)) if !language.is_empty() => {
                format!("<pre><code class=\"language-{language}\">")
            }
            (name, _) => format!("<{name}>"),
        }
    }

    pub(super) fn closing(self, styled: &StyledText) -> String {
        let has_code = self.name == "pre" && !styled.targets[self.target].is_empty();
        format!("{}</{}>", if has_code { "</code>" } else { "" }, self.name)
    }
}

/// Returns the tags for a style, outermost first.
fn tags(style: Style) -> Vec<Tag> {
    let allowed = match style {
        style if style.has(PRE) => QUOTE | PRE,
        style if style.has(CODE) && !style.has(LINK) => QUOTE | CODE,
        _ => !CODE,
    };
    let shown = TAGS.iter().filter(|(mark, _)| style.has(mark & allowed));
    let tag = |(mark, name): &(u16, &'static str)| {
        let has_target = mark & (LINK | PRE) != 0;
        let target = if has_target { style.target } else { 0 };
        Tag { name, target }
    };
    shown.map(tag).collect()
}

/// Replaces `open` by the tags for a style. Returns the closed tags, innermost first, and the number of tags that remain open.
pub(super) fn switch(open: &mut Vec<Tag>, style: Style) -> (Vec<Tag>, usize) {
    let wanted = tags(style);
    let kept = open.iter().take_while(|tag| wanted.contains(tag)).count();
    let closed = open.drain(kept..).rev().collect();
    for tag in wanted {
        if !open[..kept].contains(&tag) {
            open.push(tag);
        }
    }
    (closed, kept)
}

fn piece(styled: &StyledText, range: Range<usize>) -> Piece {
    let mut html = String::new();
    let mut open: Vec<Tag> = Vec::new();
    let mut at = range.start;
    for (end, style) in styled.runs_from(range.start) {
        if at >= range.end {
            break;
        }
        let (closed, kept) = switch(&mut open, *style);
        html.extend(closed.iter().map(|tag| tag.closing(styled)));
        html.extend(open[kept..].iter().map(|tag| tag.opening(styled)));
        let end = range.end.min(*end);
        html.push_str(&escaped(&styled.text[at..end]));
        at = end;
    }
    html.extend(open.iter().rev().map(|tag| tag.closing(styled)));
    let plain = styled.with_addresses(range, 0).text;
    Piece { html, plain }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
