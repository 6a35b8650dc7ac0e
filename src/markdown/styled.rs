//! Text as runs of one style each. Styles may overlap arbitrarily; writers nest the markup.

use std::ops::Range;

pub(super) const QUOTE: u16 = 1;
pub(super) const LINK: u16 = 1 << 1;
pub(super) const BOLD: u16 = 1 << 2;
pub(super) const ITALIC: u16 = 1 << 3;
pub(super) const STRIKE: u16 = 1 << 4;
pub(super) const CODE: u16 = 1 << 5;
pub(super) const PRE: u16 = 1 << 6;
/// Invisible style of text that should remain in one message, such as an address.
pub(super) const WHOLE: u16 = 1 << 7;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Style {
    /// Bitwise sum of the constants above.
    pub marks: u16,
    /// Index in [`StyledText::targets`]: the address of a `LINK`, the language of a `PRE`.
    pub target: usize,
}

impl Style {
    pub(super) fn has(self, mark: u16) -> bool {
        self.marks & mark != 0
    }
}

#[derive(Default)]
pub(super) struct StyledText {
    pub text: String,
    /// End of each run in bytes, and its style.
    runs: Vec<(usize, Style)>,
    pub targets: Vec<String>,
    /// Number of line feeds to write before the next text.
    gap: usize,
}

impl StyledText {
    pub(super) fn push(&mut self, text: &str, style: Style) {
        if text.is_empty() {
            return;
        }
        if self.gap > 0 && !self.text.is_empty() {
            let last = self.runs.last().map_or(0, |run| run.1.marks);
            let marks = last & style.marks & QUOTE;
            self.append(&"\n\n"[..self.gap], Style { marks, target: 0 });
        }
        self.gap = 0;
        self.append(text, style);
    }

    fn append(&mut self, text: &str, style: Style) {
        self.text.push_str(text);
        match self.runs.last_mut() {
            Some(run) if run.1 == style => run.0 = self.text.len(),
            _ => self.runs.push((self.text.len(), style)),
        }
    }

    /// Requires at least `feeds` line feeds, one or two, before the next text.
    pub(super) fn gap(&mut self, feeds: usize) {
        self.gap = self.gap.max(feeds);
    }

    /// Returns a part of the text with these styles only, and with the address of each link after it, unless it is the text of
    /// the link. Only the address has the style of a link.
    pub(super) fn with_addresses(&self, part: Range<usize>, styles: u16) -> Self {
        let mut out = Self::default();
        let (mut at, mut link) = (part.start, None);
        let end_link = |out: &mut Self, link: Option<usize>| {
            let address = link.map_or("", |target| &self.targets[target]);
            if !out.text.ends_with(address) {
                let marks = LINK & styles;
                out.push(&format!(" ({address})"), Style { marks, target: 0 });
            }
        };
        for (end, style) in self.runs_from(at) {
            if at >= part.end {
                break;
            }
            let next = style.has(LINK).then_some(style.target);
            if next != link {
                end_link(&mut out, std::mem::replace(&mut link, next));
            }
            let marks = style.marks & styles & !LINK;
            let text = &self.text[at..part.end.min(*end)];
            out.push(text, Style { marks, target: 0 });
            at = *end;
        }
        end_link(&mut out, link);
        out
    }

    pub(super) fn add_target(&mut self, text: &str) -> usize {
        self.targets.push(text.to_owned());
        self.targets.len() - 1
    }

    /// Returns the runs from byte `at` on, as end and style.
    pub(super) fn runs_from(&self, at: usize) -> &[(usize, Style)] {
        &self.runs[self.runs.partition_point(|run| run.0 <= at)..]
    }
}
