//! Tables: those of data stay tables, and what a page only lays out in one becomes paragraphs.

use super::{Attributes, Block, Writer, attribute};

/// Cells of a layout up to this many bytes stand on one line.
const MAX_SHORT: usize = 100;
/// The most columns and rows that a cell may span.
const MAX_SPAN: [usize; 2] = [20, 1_000];

/// A table under construction, and the text it interrupted.
#[derive(Default)]
pub(super) struct Table {
    pub(super) outer: String,
    pub(super) outer_prefix: String,
    /// What stands in no cell: captions, as a rule.
    captions: Vec<String>,
    rows: Vec<Vec<String>>,
    in_cell: bool,
    /// Columns and rows of the open cell.
    span: [usize; 2],
    /// For each column, how many rows a cell from above still covers.
    covered: Vec<usize>,
}

impl Table {
    /// Adds a cell to the last row.
    fn add(&mut self, cell: String) {
        if self.rows.is_empty() {
            self.rows.push(Vec::new());
        }
        let (Some(row), [columns, rows]) = (self.rows.last_mut(), self.span) else {
            return;
        };
        while self.covered.get(row.len()).is_some_and(|rows| *rows > 0) {
            self.covered[row.len()] -= 1;
            row.push(String::new());
        }
        for cell in std::iter::once(cell).chain(std::iter::repeat_n(String::new(), columns.saturating_sub(1))) {
            let column = row.len();
            row.push(cell);
            if rows > 1 || column < self.covered.len() {
                self.covered.resize(self.covered.len().max(column + 1), 0);
                self.covered[column] = rows.saturating_sub(1);
            }
        }
    }

    fn add_row(&mut self) {
        // Cells from above may also lie behind the last cell.
        let len = self.rows.last().map_or(usize::MAX, Vec::len);
        self.covered.iter_mut().skip(len).for_each(|rows| *rows = rows.saturating_sub(1));
        self.rows.push(Vec::new());
    }
}

impl Writer {
    pub(super) fn table(&mut self) -> Option<&mut Table> {
        self.blocks.iter_mut().rev().find_map(|block| match block {
            Block::Table(table) => Some(table),
            _ => None,
        })
    }

    pub(super) fn start_row(&mut self) {
        self.end_cell();
        if let Some(table) = self.table() {
            table.add_row();
        }
    }

    pub(super) fn start_cell(&mut self, attributes: &Attributes) {
        self.end_cell();
        let span = |name, most| attribute(attributes, name).trim().parse().unwrap_or(1).clamp(1, most);
        let text = std::mem::take(&mut self.text);
        match self.table() {
            Some(table) => {
                table.in_cell = true;
                table.span = [span("colspan", MAX_SPAN[0]), span("rowspan", MAX_SPAN[1])];
                table.captions.push(text.trim().to_owned());
                (self.breaks, self.line_prefix, self.marker) = (0, String::new(), None);
            }
            None => self.text = text,
        }
    }

    pub(super) fn end_cell(&mut self) {
        if !self.table().is_some_and(|table| table.in_cell) {
            return;
        }
        // What the cell left open ends with it.
        while self.blocks.last().is_some_and(|block| !matches!(block, Block::Table(_))) {
            if let Some(block) = self.blocks.pop() {
                self.close(block);
            }
        }
        self.drop_marker();
        self.inlines.clear();
        let cell = std::mem::take(&mut self.text).trim().to_owned();
        self.breaks = 0;
        if let Some(table) = self.table() {
            table.in_cell = false;
            table.add(cell);
        }
    }

    /// Writes a table of data as one; what a page only lays out in a table, as paragraphs.
    pub(super) fn write_table(&mut self, mut table: Table) {
        match self.text.trim().to_owned() {
            cell if table.in_cell => table.add(cell),
            caption => table.captions.push(caption),
        }
        (self.text, self.line_prefix, self.marker) = (table.outer, table.outer_prefix, None);
        self.inlines.clear();
        self.breaks = 2;
        for caption in table.captions.iter().filter(|caption| !caption.is_empty()) {
            self.cell(caption);
        }
        table.rows.retain(|row| row.iter().any(|cell| !cell.is_empty()));
        let columns = table.rows.iter().map(Vec::len).max().unwrap_or(0);
        let is_block = |cell: &String| cell.contains("\n\n") || cell.contains("```\n");
        let is_data = columns > 1 && table.rows.len() > 1 && !table.rows.iter().flatten().any(is_block);
        for (n, row) in table.rows.iter().enumerate() {
            let filled: Vec<&str> = row.iter().map(String::as_str).filter(|cell| !cell.is_empty()).collect();
            if is_data {
                let cells = row.iter().map(String::as_str).chain(std::iter::repeat("")).take(columns);
                let cells: Vec<String> = cells.map(|cell| cell.replace('\n', " ").replace('|', "\\|")).collect();
                self.line(&format!("| {} |", cells.join(" | ")), 1);
                if n == 0 {
                    self.line(&format!("|{}", " --- |".repeat(columns)), 1);
                }
            } else if filled.iter().all(|cell| !cell.contains('\n') && cell.len() <= MAX_SHORT) {
                self.line(&filled.join(" | "), 2);
            } else {
                for cell in filled {
                    self.cell(cell);
                }
            }
        }
        self.breaks = 2;
    }

    /// Writes a cell that is a paragraph, or several.
    fn cell(&mut self, cell: &str) {
        let lines = cell.replace('\n', &format!("\n{}", self.prefix()));
        self.line(&lines, 2);
    }

    /// Writes a finished line.
    fn line(&mut self, line: &str, breaks: usize) {
        self.open_line();
        self.text.push_str(line);
        self.breaks = breaks;
    }
}
