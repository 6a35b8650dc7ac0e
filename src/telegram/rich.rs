//! Text and how it looks: the form between Markdown and messages.
//!
//! Styles are laid on the text and know nothing of each other, so nothing here can be nested wrongly: who writes the
//! markup decides what stands in what.

pub const QUOTE: u16 = 1;
pub const LINK: u16 = 1 << 1;
pub const SPOILER: u16 = 1 << 2;
pub const BOLD: u16 = 1 << 3;
pub const ITALIC: u16 = 1 << 4;
pub const STRIKE: u16 = 1 << 5;
pub const CODE: u16 = 1 << 6;
pub const PRE: u16 = 1 << 7;
/// Not seen: should stay in one piece, as an address does.
pub const WHOLE: u16 = 1 << 8;

/// How a run of text looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// The sum of the constants above.
    pub marks: u16,
    /// Which of [`Rich::targets`] a `LINK` leads to, or is the language of a `PRE`.
    pub of: usize,
}

impl Style {
    pub fn has(self, mark: u16) -> bool {
        self.marks & mark != 0
    }
}

/// Text in runs of one style each.
#[derive(Default)]
pub struct Rich {
    pub text: String,
    /// Where each run ends, in bytes, and how it looks.
    pub runs: Vec<(usize, Style)>,
    /// Addresses of links and languages of code.
    pub targets: Vec<String>,
    /// Line feeds to come before the next text.
    gap: usize,
    /// The gap is between two quotes, not within one.
    apart: bool,
}

impl Rich {
    pub fn push(&mut self, text: &str, style: Style) {
        if text.is_empty() {
            return;
        }
        if self.gap > 0 && !self.text.is_empty() {
            let quoted = |style: Style| style.marks & QUOTE;
            let last = self.runs.last().map_or(0, |run| quoted(run.1));
            let marks = if self.apart { 0 } else { last & quoted(style) };
            let feeds = &"\n\n"[..self.gap];
            self.append(feeds, Style { marks, of: 0 });
        }
        (self.gap, self.apart) = (0, false);
        self.append(text, style);
    }

    fn append(&mut self, text: &str, style: Style) {
        self.text.push_str(text);
        match self.runs.last_mut() {
            Some(run) if run.1 == style => run.0 = self.text.len(),
            _ => self.runs.push((self.text.len(), style)),
        }
    }

    /// At least so many line feeds, one or two, before what comes next.
    pub fn gap(&mut self, feeds: usize) {
        self.gap = self.gap.max(feeds);
    }

    /// What comes next is in no quote with what was before.
    pub fn apart(&mut self) {
        self.gap(1);
        self.apart = true;
    }

    pub fn target(&mut self, text: &str) -> usize {
        self.targets.push(text.to_owned());
        self.targets.len() - 1
    }
}
