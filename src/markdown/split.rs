//! Splits styled text into messages.
//!
//! A message may have 4096 characters "after entities parsing" (Bot API, `sendMessage`), counted in UTF-16 code units of the
//! visible text, without tags. The server has undocumented limits: it rejects a source above 32 KiB ("text is too long") and
//! entities that take more than about 9,500 bytes with their addresses (`ENTITIES_TOO_LONG`, tdlib/telegram-bot-api#165), and
//! ignores all but the first hundred entities of a message. [`reach`] counts them all. Within these limits, a message extends
//! to the best place for a split.

use std::cmp::Reverse;
use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;

use super::html::switch;
use super::styled::{CODE, LINK, PRE, Style, StyledText, WHOLE};
use crate::text::is_invisible;

/// Maximum length of a message's text, in UTF-16 code units.
pub(super) const MAX_UNITS: usize = 4096;
/// Maximum size of a message's source, in bytes, with a reserve for closing tags.
const MAX_SOURCE: usize = 30_000;
const MAX_ENTITIES: usize = 100;
/// Maximum size of a message's entities and their addresses, in bytes, with a reserve for what the server adds.
const MAX_ENTITY_BYTES: usize = 8_000;
/// Size of an entity without its address: kind, offset and length.
const ENTITY_BYTES: usize = 16;

/// Returns the parts of the text to send as messages, without invisible parts.
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
        // Skips white space that fills a message, for example in a line of code.
        let next = if shown > start { shown } else { end };
        assert!(next > at, "each round takes text");
        at = next;
    }
    ranges.retain(|range| !styled.text[range.clone()].chars().all(is_invisible));
    ranges
}

/// Returns the start of the next message: code retains its indentation, other text starts with a visible character.
fn start_of_message(styled: &StyledText, at: usize) -> Option<usize> {
    let rest = &styled.text[at..];
    let space = rest.len() - rest.trim_start().len();
    let (_, style) = styled.runs_from(at + space).first()?;
    let indentation = rest[..space].rfind('\n').map_or(0, |feed| feed + 1);
    Some(at + if style.has(PRE) { indentation } else { space })
}

/// Returns the first visible character that does not fit in a message from `start`, or the end of the text. One character
/// always fits.
fn reach(styled: &StyledText, start: usize) -> usize {
    let (mut at, mut open) = (start, Vec::new());
    let (mut units, mut source, mut entities, mut entity_bytes) = (0, 0, 0, 0);
    for (end, style) in styled.runs_from(start) {
        let (_, kept) = switch(&mut open, *style);
        let opened = &open[kept..];
        entities += opened.len();
        for tag in opened {
            let opening = tag.opening(styled).len();
            source += opening + tag.closing(styled).len();
            entity_bytes += ENTITY_BYTES + opening;
        }
        for c in styled.text[at..*end].chars() {
            units += c.len_utf16();
            source += if matches!(c, '&' | '<' | '>' | '"') {
                "&quot;".len()
            } else {
                c.len_utf8()
            };
            if !c.is_whitespace()
                && at > start
                && (units > MAX_UNITS
                    || source > MAX_SOURCE
                    || entities > MAX_ENTITIES
                    || entity_bytes > MAX_ENTITY_BYTES)
            {
                return at;
            }
            at += c.len_utf8();
        }
    }
    at
}

/// Returns the best end of a message, up to `most`; the last one wins a tie.
fn cut(styled: &StyledText, start: usize, most: usize) -> usize {
    let half = usize::midpoint(start, most);
    let indentation = styled.text[start..].len() - styled.text[start..].trim_start().len();
    // Graphemes are not split.
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

/// Rates a split before the visible character at `at`, from good to bad: between two paragraphs (0), lines, or words, within a
/// word (3), early in the message (4), or within an indivisible part (5).
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
    match gap.matches('\n').count() {
        _ if both(LINK) => 5,
        0 if both(CODE | WHOLE | PRE) => 5,
        _ if is_early => 4,
        0 => 2 + usize::from(gap.is_empty()),
        1 => 1,
        _ => 0,
    }
}
