//! Tables: those of data stay tables, and what a page only lays out in one becomes paragraphs.

use super::{Block, Writer};

/// A table under construction, and the text it interrupted.
#[derive(Default)]
pub(super) struct Table {
    pub(super) outer: String,
    rows: Vec<Vec<String>>,
    in_cell: bool,
}

impl Table {
    /// Adds a cell to the last row.
    fn add(&mut self, cell: String) {
        match self.rows.last_mut() {
            Some(row) => row.push(cell),
            None => self.rows.push(vec![cell]),
        }
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
            table.rows.push(Vec::new());
        }
    }

    pub(super) fn start_cell(&mut self) {
        self.end_cell();
        if let Some(table) = self.table() {
            table.in_cell = true;
            self.text.clear();
            self.breaks = 0;
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
        if table.in_cell {
            table.add(self.text.trim().to_owned());
        }
        self.text = table.outer;
        self.inlines.clear();
        table.rows.retain(|row| row.iter().any(|cell| !cell.is_empty()));
        let columns = table.rows.iter().map(Vec::len).max().unwrap_or(0);
        let is_data =
            columns > 1 && table.rows.len() > 1 && !table.rows.iter().flatten().any(|cell| cell.contains("\n\n"));
        self.breaks = 2;
        for (n, row) in table.rows.iter().enumerate() {
            if is_data {
                let cells = row.iter().map(String::as_str).chain(std::iter::repeat("")).take(columns);
                let cells: Vec<String> = cells.map(|cell| cell.replace('\n', " ").replace('|', "\\|")).collect();
                self.line(&format!("| {} |", cells.join(" | ")), 1);
                if n == 0 {
                    self.line(&format!("|{}", " --- |".repeat(columns)), 1);
                }
            } else {
                for cell in row.iter().filter(|cell| !cell.is_empty()) {
                    let lines = cell.replace('\n', &format!("\n{}", self.prefix()));
                    self.line(&lines, 2);
                }
            }
        }
        self.breaks = 2;
    }

    /// Writes a finished line.
    fn line(&mut self, line: &str, breaks: usize) {
        self.open_line();
        self.text.push_str(line);
        self.breaks = breaks;
    }
}
