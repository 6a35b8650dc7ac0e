//! Tables: those of data stay tables, and what a page only lays out in one becomes paragraphs.

use super::{Element, Flow, Gap, Node, Within, Writer};

/// Cells of a layout up to this many bytes stand on one line.
const MAX_SHORT: usize = 100;
/// The most columns and rows that a cell may span.
const MAX_SPAN: [usize; 2] = [20, 1_000];

/// The most cells of a table, those that others cover included, and its most columns.
const MAX_CELLS: usize = 20_000;
const MAX_COLUMNS: usize = 200;

#[derive(Default)]
struct Table {
    /// What stands in no cell: captions, as a rule.
    captions: Vec<String>,
    rows: Vec<Vec<String>>,
    /// For each column, how many rows a cell from above still covers.
    covered: Vec<usize>,
    cells: usize,
}

impl Table {
    /// Adds a cell to the last row.
    fn add(&mut self, cell: String, [columns, rows]: [usize; 2]) {
        if self.rows.is_empty() {
            self.rows.push(Vec::new());
        }
        let Some(row) = self.rows.last_mut() else {
            return;
        };
        let before = row.len();
        if self.cells > MAX_CELLS || before >= MAX_COLUMNS {
            return;
        }
        while let Some(covered) = self.covered.get_mut(row.len()).filter(|rows| **rows > 0) {
            *covered -= 1;
            row.push(String::new());
        }
        for cell in std::iter::once(cell).chain(std::iter::repeat_n(String::new(), columns - 1)) {
            self.covered
                .resize(self.covered.len().max(row.len() + 1), 0);
            self.covered[row.len()] = rows - 1;
            row.push(cell);
        }
        self.cells += row.len() - before;
    }

    fn add_row(&mut self) {
        // Cells from above may also lie behind the last cell.
        let len = self.rows.last().map_or(usize::MAX, Vec::len);
        self.covered
            .iter_mut()
            .skip(len)
            .for_each(|rows| *rows = rows.saturating_sub(1));
        if self.cells <= MAX_CELLS {
            self.cells += 1;
            self.rows.push(Vec::new());
        }
    }
}

impl Writer {
    pub(super) fn table(&mut self, element: &Element, flow: &mut Flow) {
        let (place, mut table) = (self.place, Table::default());
        self.place.within = Within::Block;
        self.rows(element, &mut table);
        self.place = place;
        flow.space(Gap::Paragraph);
        for caption in &table.captions {
            flow.block(caption, Gap::Paragraph);
        }
        table
            .rows
            .retain(|row| row.iter().any(|cell| !cell.is_empty()));
        let columns = table.rows.iter().map(Vec::len).max().unwrap_or(0);
        let is_block = |cell: &String| cell.contains("\n\n") || cell.contains("```\n");
        let is_data =
            columns > 1 && table.rows.len() > 1 && !table.rows.iter().flatten().any(is_block);
        for (n, row) in table.rows.iter().enumerate() {
            let filled: Vec<&str> = row
                .iter()
                .map(String::as_str)
                .filter(|cell| !cell.is_empty())
                .collect();
            if is_data {
                let cells = row
                    .iter()
                    .map(String::as_str)
                    .chain(std::iter::repeat(""))
                    .take(columns);
                let cells: Vec<String> = cells
                    .map(|cell| cell.replace('\n', " ").replace('|', "\\|"))
                    .collect();
                flow.block(&format!("| {} |", cells.join(" | ")), Gap::Line);
                if n == 0 {
                    flow.block(&format!("|{}", " --- |".repeat(columns)), Gap::Line);
                }
            } else if filled
                .iter()
                .all(|cell| !cell.contains('\n') && cell.len() <= MAX_SHORT)
            {
                flow.block(&filled.join(" | "), Gap::Paragraph);
            } else {
                for cell in filled {
                    flow.block(cell, Gap::Paragraph);
                }
            }
        }
        flow.space(Gap::Paragraph);
    }

    fn rows(&mut self, element: &Element, table: &mut Table) {
        for node in &element.children {
            match node {
                Node::Text(text) => table.captions.push(text.trim().to_owned()),
                Node::Element(element) => match &*element.name {
                    "thead" | "tbody" | "tfoot" | "form" => self.rows(element, table),
                    "tr" => {
                        table.add_row();
                        self.rows(element, table);
                    }
                    "td" | "th" => {
                        let most = |name, most| {
                            element.get(name).trim().parse().unwrap_or(1).clamp(1, most)
                        };
                        let span = [most("colspan", MAX_SPAN[0]), most("rowspan", MAX_SPAN[1])];
                        table.add(self.inside(element, |_| {}).text, span);
                    }
                    _ => {
                        let mut caption = Flow::default();
                        self.element(element, &mut caption);
                        table.captions.push(caption.text);
                    }
                },
            }
        }
    }
}
