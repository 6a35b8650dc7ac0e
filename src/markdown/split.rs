//! Splitting styled text into messages.
//!
//! A message may have 4096 characters "after entities parsing" (Bot API, `sendMessage`), counted in UTF-16 code units: the text
//! that people see counts, not the tags. The server has two undocumented limits, found by trying: it refuses a source above
//! 32 KiB ("text is too long"), and ignores all but the first hundred entities of a message. Within these a message is as long
//! as a good place to cut allows.

use std::cmp::Reverse;
use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;

use super::html::switch;
use super::styled::{CODE, LINK, PRE, Style, StyledText, WHOLE};
use crate::text::is_invisible;

/// The most text of a message, in UTF-16 code units.
pub(super) const MAX_UNITS: usize = 4096;
/// The most source of a message, in bytes, with room for closing tags.
const MAX_SOURCE: usize = 30_000;
const MAX_ENTITIES: usize = 100;

/// The parts of the text to send as messages, those left out that have nothing to see.
pub(super) fn split(styled: &StyledText) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some(start) = start_of_message(styled, at) {
        let most = reach(styled, start);
        let end = if most == styled.text.len() {
            most
        } else {
            cut(styled, start, most)
        };
        let shown = start + styled.text[start..end].trim_end().len();
        ranges.push(start..shown);
        // White space that fills a message, as a line of code may have it, is skipped.
        let next = if shown > start { shown } else { end };
        assert!(next > at, "each round takes text");
        at = next;
    }
    ranges.retain(|range| !styled.text[range.clone()].chars().all(is_invisible));
    ranges
}

/// Where the next message begins: code keeps its indentation, everything else begins with a visible character.
fn start_of_message(styled: &StyledText, at: usize) -> Option<usize> {
    let rest = &styled.text[at..];
    let space = rest.len() - rest.trim_start().len();
    let (_, style) = styled.runs_from(at + space).first()?;
    let indentation = rest[..space].rfind('\n').map_or(0, |feed| feed + 1);
    Some(at + if style.has(PRE) { indentation } else { space })
}

/// The first visible character that a message from `start` on has no room for, or the end of the text. There is room for one
/// character.
fn reach(styled: &StyledText, start: usize) -> usize {
    let (mut at, mut units, mut source, mut entities, mut open) = (start, 0, 0, 0, Vec::new());
    for (end, style) in styled.runs_from(start) {
        let (_, kept) = switch(&mut open, *style);
        let opened = &open[kept..];
        entities += opened.len();
        source += opened
            .iter()
            .map(|tag| tag.opening(styled).len() + tag.closing(styled).len())
            .sum::<usize>();
        for c in styled.text[at..*end].chars() {
            units += c.len_utf16();
            source += if matches!(c, '&' | '<' | '>' | '"') {
                "&quot;".len()
            } else {
                c.len_utf8()
            };
            if !c.is_whitespace()
                && at > start
                && (units > MAX_UNITS || entities > MAX_ENTITIES || source > MAX_SOURCE)
            {
                return at;
            }
            at += c.len_utf8();
        }
    }
    at
}

/// The best place to end a message, up to `most`; of several alike, the last.
fn cut(styled: &StyledText, start: usize, most: usize) -> usize {
    let half = usize::midpoint(start, most);
    let indentation = styled.text[start..].len() - styled.text[start..].trim_start().len();
    // What people see as one character stays whole.
    let begins =
        |(at, seen): &(usize, &str)| !seen.starts_with(char::is_whitespace) && *at > indentation;
    let text = styled.text[start..]
        .grapheme_indices(true)
        .take_while(|(at, _)| *at <= most - start);
    let places = text.filter(begins).map(|(at, _)| start + at);
    places
        .min_by_key(|at| (badness(styled, *at, *at < half), Reverse(*at)))
        .unwrap_or(most)
}

/// How bad a place to cut is before the visible character at `at`: from between two paragraphs (0) to within a word (4), early
/// in the message, or within something that should stay whole (6).
fn badness(styled: &StyledText, at: usize, is_early: bool) -> usize {
    let text = styled.text[..at].trim_end();
    let gap = &styled.text[text.len()..at];
    let style = |at: usize| {
        styled
            .runs_from(at)
            .first()
            .map_or(Style::default(), |run| run.1)
    };
    let (before, after) = (style(text.len().saturating_sub(1)), style(at));
    let both = |marks: u16| before.has(marks) && after.has(marks) && before.target == after.target;
    let ends_sentence = text.ends_with(['。', '！', '？', '…'])
        || !gap.is_empty() && text.ends_with(['.', '!', '?']);
    match gap.matches('\n').count() {
        _ if both(LINK) => 6,
        0 if both(CODE | WHOLE | PRE) => 6,
        _ if is_early => 5,
        0 if ends_sentence => 2,
        0 => 3 + usize::from(gap.is_empty()),
        1 => 1,
        _ => 0,
    }
}
