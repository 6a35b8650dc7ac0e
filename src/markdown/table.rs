//! Tables become fixed-width text with aligned columns: Telegram has none.

use super::inline::{self, PLAIN};
use super::styled::StyledText;
use super::wrap::columns;

/// In a message, no column is made wider than this for the sake of its longest cell.
pub(super) const MAX_COLUMN: usize = 40;

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

/// The lines at the beginning of `lines` that belong to the table which begins there.
pub(super) fn count(lines: &[&str]) -> usize {
    lines.iter().take_while(|line| line.contains('|')).count()
}

/// The rows of a table, with its header first and without the delimiter row. Cells are as written.
pub(super) fn rows(lines: &[&str]) -> Vec<Vec<String>> {
    let rows = lines.iter().enumerate().filter(|(n, _)| *n != 1);
    rows.map(|(_, line)| cells(line)).collect()
}

/// For each column, whether its cells are aligned to the right.
pub(super) fn alignment(delimiters: &str) -> Vec<bool> {
    let is_right = |cell: &String| cell.ends_with(':') && !cell.starts_with(':');
    cells(delimiters).iter().map(is_right).collect()
}

/// The rows as aligned columns, none made wider than `most` for the sake of its longest cell.
pub(super) fn aligned(rows: &[Vec<String>], is_right: &[bool], most: usize) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (widest, cell) in widths.iter_mut().zip(row) {
            let width = cell.lines().map(columns).max().unwrap_or(0);
            *widest = width.min(most).max(*widest);
        }
    }
    let mut out = String::new();
    for (n, row) in rows.iter().enumerate() {
        let height = row.iter().map(|cell| cell.lines().count()).max();
        for line in 0..height.unwrap_or(0).max(1) {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(column, (cell, width))| {
                let text = cell.lines().nth(line).unwrap_or_default();
                let pad = " ".repeat(width.saturating_sub(columns(text)));
                if is_right.get(column) == Some(&true) {
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
            let dashes: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
            out.push_str(&dashes.join("─┼─"));
            out.push('\n');
        }
    }
    out
}

/// A cell of a message: without its styles, and with its links as written.
pub(super) fn plain(cell: &str) -> String {
    let mut styled = StyledText::default();
    inline::read(cell, 0, PLAIN, &mut styled);
    styled.text
}
