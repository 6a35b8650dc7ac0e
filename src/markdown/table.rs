//! Tables become fixed-width text with aligned columns: Telegram has none.

use unicode_width::UnicodeWidthStr;

use super::inline::{self, PLAIN};
use super::styled::StyledText;
use super::wrap::{columns, lines};

/// No column is made wider than this for the sake of its longest cell.
const MAX_COLUMN: usize = 40;
/// Columns of words are made no narrower than this to fit.
const MIN_COLUMN: usize = 10;

/// Whether a table begins with this line: a delimiter row with as many cells follows.
pub(super) fn begins(line: &str, next: Option<&&str>) -> bool {
    let is_delimiter = |row: &str| {
        row.contains('|')
            && row.chars().all(|c| "|-: \t".contains(c))
            && cells(row).iter().all(|cell| cell.contains('-'))
    };
    line.contains('|')
        && next.is_some_and(|next| is_delimiter(next) && cells(next).len() == cells(line).len())
}

fn cells(line: &str) -> Vec<String> {
    // A bar behind a backslash ends no cell.
    let line = line.trim().replace("\\|", "\0");
    let line = line.strip_prefix('|').unwrap_or(&line);
    let mut cells: Vec<String> = line
        .split('|')
        .map(|cell| cell.trim().replace('\0', "|"))
        .collect();
    // What follows a closing bar.
    if cells.last().is_some_and(String::is_empty) {
        cells.pop();
    }
    cells
}

/// A table: each cell as it is shown, and how many columns that takes.
pub(super) struct Table {
    rows: Vec<Vec<(String, usize)>>,
    is_right: Vec<bool>,
    widths: Vec<usize>,
    /// Cells are broken to the width of their columns.
    breaks: bool,
    /// How many lines it was written in.
    pub lines: usize,
}

impl Table {
    /// Reads the table at the beginning of `lines`; `shown` makes a cell of what is written, and is told whether that is in
    /// the header.
    pub(super) fn read(lines: &[&str], shown: impl Fn(&str, bool) -> (String, usize)) -> Self {
        let count = lines.iter().take_while(|line| line.contains('|')).count();
        let is_right = cells(lines[1])
            .iter()
            .map(|cell| cell.ends_with(':') && !cell.starts_with(':'))
            .collect();
        let row = |line: &&str, is_header| {
            cells(line)
                .iter()
                .map(|cell| shown(cell, is_header))
                .collect::<Vec<_>>()
        };
        let header = std::iter::once(row(&lines[0], true));
        let rows: Vec<_> = header
            .chain(lines[2..count].iter().map(|line| row(line, false)))
            .collect();
        let mut widths: Vec<usize> = Vec::new();
        for row in &rows {
            widths.resize(widths.len().max(row.len()), 0);
            for (widest, (_, width)) in widths.iter_mut().zip(row) {
                *widest = (*width).min(MAX_COLUMN).max(*widest);
            }
        }
        Self {
            rows,
            is_right,
            widths,
            breaks: false,
            lines: count,
        }
    }

    /// Makes the widest columns narrower until the table fits, none of them narrower than its longest word. `false` if it
    /// cannot.
    pub(super) fn shrink(&mut self, most: usize) -> bool {
        self.breaks = true;
        let least: Vec<usize> = (0..self.widths.len())
            .map(|n| self.longest_word(n))
            .collect();
        for (width, least) in self.widths.iter_mut().zip(&least) {
            *width = (*width).max(*least);
        }
        let between = 3 * self.widths.len().saturating_sub(1);
        while self.widths.iter().sum::<usize>() + between > most {
            let shrinkable = self.widths.iter_mut().zip(&least);
            let widest = shrinkable
                .filter(|(width, least)| **width > MIN_COLUMN.max(**least))
                .map(|(width, _)| width)
                .max();
            let Some(widest) = widest else { return false };
            *widest -= 1;
        }
        true
    }

    /// The columns of the longest part of a column that is never broken.
    fn longest_word(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let words = cells.flat_map(|(cell, _)| lines(cell, 1));
        words.map(|word| columns(&word)).max().unwrap_or(0)
    }

    pub(super) fn aligned(&self) -> String {
        let mut out = String::new();
        for (n, row) in self.rows.iter().enumerate() {
            let cells: Vec<Vec<String>> = row
                .iter()
                .zip(&self.widths)
                .map(|((cell, _), width)| {
                    lines(cell, if self.breaks { *width } else { usize::MAX - 1 })
                })
                .collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(0);
            for line in 0..height {
                let cells = cells.iter().enumerate().map(|(column, cell)| {
                    let text = cell.get(line).map_or("", String::as_str);
                    let pad = " ".repeat(self.widths[column].saturating_sub(columns(text)));
                    if self.is_right.get(column) == Some(&true) {
                        pad + text
                    } else {
                        format!("{text}{pad}")
                    }
                });
                let cells: Vec<String> = cells.collect();
                out.push_str(cells.join(" │ ").trim_end_matches(' '));
                out.push('\n');
            }
            if n == 0 {
                let dashes: Vec<String> =
                    self.widths.iter().map(|width| "─".repeat(*width)).collect();
                out.push_str(&dashes.join("─┼─"));
                out.push('\n');
            }
        }
        out
    }

    /// A line for each cell, under the name of its column.
    pub(super) fn listed(&self) -> String {
        let (header, rows) = self
            .rows
            .split_first()
            .map_or((&[][..], &[][..]), |(header, rows)| (&header[..], rows));
        let row = |row: &Vec<(String, usize)>| {
            let cells = row
                .iter()
                .zip(header)
                .map(|((cell, _), (name, _))| format!("{name}: {cell}\n"));
            cells.collect::<String>()
        };
        rows.iter().map(row).collect::<Vec<_>>().join("\n")
    }
}

/// A cell without its styles, and with its links as written.
pub(super) fn plain(cell: &str, _: bool) -> (String, usize) {
    let mut styled = StyledText::default();
    inline::read(cell, 0, PLAIN, &mut styled);
    let width = longest_line(&styled.text);
    (styled.text, width)
}

/// The columns of the longest line of a cell.
pub(super) fn longest_line(text: &str) -> usize {
    text.lines().map(UnicodeWidthStr::width).max().unwrap_or(0)
}
