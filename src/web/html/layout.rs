//! Lines and blocks: what stands before a line, and how many line ends before it.

use super::{Block, MAX_DEPTH, Text, Writer};

impl Writer {
    /// Adds text to the current line, with white space as HTML counts it.
    pub(super) fn write(&mut self, text: &str) {
        if self.text_is == Text::Verbatim {
            // The first line end after the tag does not count.
            let text = if self.breaks > 0 { text.strip_prefix('\n').unwrap_or(text) } else { text };
            self.open_line();
            let prefix = self.prefix();
            self.text.push_str(&text.replace('\n', &format!("\n{prefix}")));
            return;
        }
        for (n, word) in text.split([' ', '\t', '\n', '\r', '\u{c}']).enumerate() {
            let at_start = self.breaks > 0 || self.text.is_empty() || self.text.ends_with(['\n', ' ']);
            if n > 0 && !at_start && !self.at_line_start() {
                self.text.push(' ');
            }
            if !word.is_empty() {
                self.open_line();
                self.text.push_str(word);
            }
        }
    }

    /// Whether nothing but prefixes stands on the current line.
    pub(super) fn at_line_start(&self) -> bool {
        let line = self.text.trim_end_matches(['>', '-', ' ']);
        line.is_empty() || line.ends_with('\n')
    }

    /// Writes the line ends that are due.
    pub(super) fn open_line(&mut self) {
        let breaks = std::mem::take(&mut self.breaks);
        if breaks == 0 {
            return;
        }
        let prefix = self.prefix();
        if self.has_marker() {
            // A block that begins an item stands beside its marker.
            self.text.push_str(prefix.strip_prefix(&self.line_prefix).unwrap_or_default());
            self.line_start = self.text.len();
            self.line_prefix = prefix;
            return;
        }
        self.text.truncate(self.text.trim_end_matches(' ').len());
        // Lines that were opened for something that turned out to be empty.
        while let Some((before, _)) =
            self.text.rsplit_once('\n').filter(|(_, line)| line.trim_matches(['>', ' ']).is_empty())
        {
            self.text.truncate(before.trim_end_matches(' ').len());
        }
        self.line_start = self.text.len();
        if self.text.is_empty() {
            self.text.push_str(&prefix);
        } else {
            let common = prefix.bytes().zip(self.line_prefix.bytes()).take_while(|(a, b)| a == b).count();
            self.text.push_str(&format!("\n{}", prefix[..common].trim_end()).repeat(breaks - 1));
            self.text.push('\n');
            self.text.push_str(&prefix);
        }
        self.line_prefix = prefix;
        // Those that have no text yet begin here.
        let (line_start, len) = (self.line_start, self.text.len());
        self.inlines.iter_mut().rev().take_while(|i| i.start >= line_start).for_each(|inline| inline.start = len);
    }

    /// Writes the marker of a heading or an item, which goes again if nothing follows it.
    pub(super) fn write_marker(&mut self, marker: &str) {
        let breaks = self.breaks;
        self.open_line();
        self.text.push_str(marker);
        self.text.push(' ');
        self.marker = Some((self.text.len(), breaks));
    }

    pub(super) fn has_marker(&self) -> bool {
        self.marker.is_some_and(|(end, _)| end == self.text.len())
    }

    pub(super) fn drop_marker(&mut self) {
        if let Some((_, breaks)) = self.marker.filter(|_| self.has_marker()) {
            self.text.truncate(self.line_start);
            self.marker = None;
            self.breaks = self.breaks.max(breaks);
        }
    }

    /// What stands before each line of the open blocks.
    pub(super) fn prefix(&self) -> String {
        let inner = self.blocks.iter().rev().take_while(|block| !matches!(block, Block::Table(_)));
        let prefixes: Vec<String> = inner
            .map(|block| match block {
                Block::Quote => "> ".to_owned(),
                Block::Item(indentation) => " ".repeat(*indentation),
                Block::List(_) | Block::Table(_) => String::new(),
            })
            .collect();
        prefixes.into_iter().rev().collect()
    }

    /// Ends the line; with 2, also the paragraph. Open inline elements do not span lines.
    pub(super) fn break_line(&mut self, breaks: usize) {
        self.breaks = self.breaks.max(breaks);
    }

    pub(super) fn paragraph(&mut self, text: &str) {
        self.break_line(2);
        self.write(text);
        self.break_line(2);
    }

    pub(super) fn open(&mut self, block: Block) {
        if self.blocks.len() == MAX_DEPTH {
            return self.break_line(2);
        }
        let nested = matches!((&block, self.blocks.last()), (Block::List(_), Some(Block::Item(_))));
        self.break_line(if nested { 1 } else { 2 });
        match block {
            Block::Table(mut table) => {
                self.open_line();
                table.outer = std::mem::take(&mut self.text);
                table.outer_prefix = std::mem::take(&mut self.line_prefix);
                self.marker = None;
                self.blocks.push(Block::Table(table));
            }
            block => self.blocks.push(block),
        }
    }

    /// Closes the innermost block of a kind, and those within it that were left open.
    pub(super) fn close_until(&mut self, is_kind: impl Fn(&Block) -> bool) {
        let inner = self.blocks.iter().rposition(&is_kind);
        let outer_table = self.blocks.iter().rposition(|block| matches!(block, Block::Table(_)));
        // An end tag within a cell does not close what is around the table.
        if inner.is_none() || inner < outer_table {
            return self.break_line(1);
        }
        while let Some(block) = self.blocks.pop() {
            let is_last = is_kind(&block);
            self.close(block);
            if is_last {
                return;
            }
        }
    }

    pub(super) fn close(&mut self, block: Block) {
        let is_nested = matches!(self.blocks.last(), Some(Block::Item(_)));
        match block {
            Block::Table(table) => self.write_table(table),
            Block::Item(_) => {
                self.drop_marker();
                self.break_line(1);
            }
            Block::List(_) if is_nested => self.break_line(1),
            Block::List(_) | Block::Quote => self.break_line(2),
        }
    }

    pub(super) fn start_item(&mut self) {
        if matches!(self.blocks.last(), Some(Block::Item(_))) {
            self.end_item();
        }
        self.break_line(1);
        let marker = match self.blocks.last_mut() {
            Some(Block::List(Some(number))) => {
                let marker = format!("{number}.");
                *number = number.saturating_add(1);
                marker
            }
            _ => "-".to_owned(),
        };
        self.write_marker(&marker);
        if self.blocks.len() < MAX_DEPTH {
            self.blocks.push(Block::Item(marker.len() + 1));
            self.line_prefix = self.prefix();
        }
    }

    pub(super) fn end_item(&mut self) {
        self.drop_marker();
        self.blocks.pop();
    }
}
