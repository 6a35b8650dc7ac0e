//! Splitting styled text into messages.
//!
//! A message may have 4096 characters "after entities parsing" (Bot API, `sendMessage`), counted in UTF-16 code units: the text
//! that people see counts, not the tags. The server has two undocumented limits, found by trying: it refuses a source above
//! 32 KiB ("text is too long"), and ignores all but the first hundred entities of a message. Within these a message is as long
//! as a good place to cut allows.

use std::ops::Range;

use super::html::switch;
use super::styled::{CODE, LINK, PRE, Style, StyledText, WHOLE};
use super::unicode::begins_cluster;
use crate::text::is_invisible;

/// The most text of a message, in UTF-16 code units.
pub(super) const MAX_UNITS: usize = 4096;
/// The most source of a message, in bytes, with room for closing tags.
const MAX_SOURCE: usize = 30_000;
const MAX_ENTITIES: usize = 100;

/// Places to cut, best first.
const PARAGRAPH: usize = 0;
const LINE: usize = 1;
const SENTENCE: usize = 2;
const WORD: usize = 3;
const CHARACTER: usize = 4;
/// Within something that should stay whole.
const INNER: usize = 5;

#[derive(Clone, Copy)]
struct Cut {
    /// The end of the last visible character.
    end: usize,
    /// The length up to there, in UTF-16 code units.
    units: usize,
}

/// The parts of the text to send as messages, those left out that have nothing to see.
pub(super) fn split(styled: &StyledText) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some(start) = start_of_message(styled, at) {
        at = end_of_message(styled, start);
        ranges.push(start..at);
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

fn end_of_message(styled: &StyledText, start: usize) -> usize {
    let mut runs = styled.runs_from(start).iter();
    let (mut end_of_run, mut style, mut open) = (start, Style::default(), Vec::new());
    let (mut units, mut source, mut entities) = (0, 0, 0);
    let mut last = Cut { end: start, units: 0 };
    let mut cuts: [Option<Cut>; 6] = [None; 6];
    let mut previous = None;
    for (at, c) in styled.text[start..].char_indices() {
        let at = start + at;
        let begins = begins_cluster(previous.replace(c), c);
        let before = style;
        if at == end_of_run {
            let Some(run) = runs.next() else { break };
            (end_of_run, style) = *run;
            let (_, kept) = switch(&mut open, style);
            let opened = &open[kept..];
            entities += opened.len();
            source += opened.iter().map(|tag| tag.opening(styled).len() + tag.closing(styled).len()).sum::<usize>();
        }
        if begins && !c.is_whitespace() && last.end > start {
            let gap = &styled.text[last.end..at];
            cuts[kind_of_cut(&styled.text[..last.end], gap, before, style)] = Some(last);
        }
        units += c.len_utf16();
        source += if matches!(c, '&' | '<' | '>' | '"') { "&quot;".len() } else { c.len_utf8() };
        if c.is_whitespace() {
            continue;
        }
        if units > MAX_UNITS || entities > MAX_ENTITIES || source > MAX_SOURCE {
            return best(&cuts, units).unwrap_or(last).end;
        }
        last = Cut { end: at + c.len_utf8(), units };
    }
    last.end
}

/// What kind of place is between `text` and the next visible character, with `gap` between them.
fn kind_of_cut(text: &str, gap: &str, before: Style, after: Style) -> usize {
    let feeds = gap.matches('\n').count();
    let both = |marks: u16| before.has(marks) && after.has(marks) && before.target == after.target;
    if both(LINK) || feeds == 0 && both(CODE | WHOLE | PRE) {
        return INNER;
    }
    let ends_sentence = text.ends_with(['。', '！', '？', '…']) || !gap.is_empty() && text.ends_with(['.', '!', '?']);
    match feeds {
        0 if ends_sentence => SENTENCE,
        0 if gap.is_empty() => CHARACTER,
        0 => WORD,
        1 => LINE,
        _ => PARAGRAPH,
    }
}

/// The best kind of cut that fills at least half of a message that could have `units`, else any.
fn best(cuts: &[Option<Cut>; 6], units: usize) -> Option<Cut> {
    let is_half_full = |cut: &&Cut| cut.units * 2 >= units;
    cuts[..=CHARACTER].iter().flatten().find(is_half_full).or_else(|| cuts.iter().flatten().next()).copied()
}
