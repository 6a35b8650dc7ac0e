//! A part of a page that is being written: text, pending white space, and the prefixes of its lines.

use super::MAX_WRITTEN;
use crate::text::whole_words;

/// Maximum nesting depth of marked quotations and lists.
const MAX_MARKED: usize = 16;

/// White space between two pieces of text; the largest of several wins.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Gap {
    #[default]
    None,
    Space,
    Line,
    Paragraph,
}

/// Prefix of the lines of a quotation, an item or a heading.
pub(super) struct Prefix {
    first: String,
    other: String,
    pub is_written: bool,
}

/// Text with HTML's rules for white space: a gap is only written when more text follows.
#[derive(Default)]
pub(super) struct Buffer {
    pub text: String,
    pub gap: Gap,
    pub prefixes: Vec<Prefix>,
    /// Whether the text is in a heading, which is one line.
    pub is_line: bool,
}

impl Buffer {
    pub(super) fn space(&mut self, gap: Gap) {
        // A block has no gap before its first word.
        if self.prefixes.last().is_none_or(|prefix| prefix.is_written) {
            let most = if self.is_line {
                Gap::Space
            } else {
                Gap::Paragraph
            };
            self.gap = self.gap.max(gap.min(most));
        }
    }

    /// Starts a block whose lines have a prefix.
    pub(super) fn begin(&mut self, gap: Gap, first: String, other: String) {
        self.space(gap);
        let is_marked = self.prefixes.len() < MAX_MARKED;
        let marked = |prefix: String| if is_marked { prefix } else { String::new() };
        self.prefixes.push(Prefix {
            first: marked(first),
            other: marked(other),
            is_written: false,
        });
    }

    /// Ends the innermost prefixed block. Gaps at its end are dropped.
    pub(super) fn end(&mut self, gap: Gap) {
        if self.prefixes.pop().is_some_and(|prefix| prefix.is_written) {
            self.gap = Gap::None;
        }
        self.space(gap);
    }

    /// Adds text unchanged, and returns its start.
    pub(super) fn push(&mut self, text: &str) -> usize {
        let gap = std::mem::take(&mut self.gap);
        let is_first = self.text.is_empty();
        if !is_first && gap == Gap::Space {
            self.text.push(' ');
        }
        if !is_first && gap == Gap::Paragraph {
            self.text.push('\n');
            for prefix in self.prefixes.iter().filter(|prefix| prefix.is_written) {
                self.text.push_str(&prefix.other);
            }
            self.text.truncate(self.text.trim_end_matches(' ').len());
        }
        if !is_first && gap >= Gap::Line {
            self.text.push('\n');
        }
        if is_first || gap >= Gap::Line {
            self.begin_line();
        }
        for prefix in &mut self.prefixes {
            prefix.is_written = true;
        }
        let at = self.text.len();
        for (n, line) in text.split('\n').enumerate() {
            if n > 0 {
                self.text.truncate(self.text.trim_end_matches(' ').len());
                self.text.push('\n');
                self.begin_line();
            }
            let room = MAX_WRITTEN.saturating_sub(self.text.len());
            self.text.push_str(whole_words(line, room));
            if room == 0 {
                break;
            }
        }
        at
    }

    fn begin_line(&mut self) {
        for prefix in &mut self.prefixes {
            let written = std::mem::replace(&mut prefix.is_written, true);
            self.text.push_str(if written {
                &prefix.other
            } else {
                &prefix.first
            });
        }
    }
}
