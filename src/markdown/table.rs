//! Converts tables to fixed-width text with aligned columns, because Telegram has no tables.

use super::inline;
use super::styled::StyledText;
use super::wrap::columns;

/// Maximum width of a column in a message, except for longer cells.
pub(super) const MAX_COLUMN: usize = 40;

/// Whether a table starts with this line: the next line is a delimiter row with an equal number of cells.
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
    // An escaped bar does not end a cell.
    let line = line.trim().replace("\\|", "\0");
    let line = line.strip_prefix('|').unwrap_or(&line);
    let mut cells: Vec<String> = line
        .split('|')
        .map(|cell| cell.trim().replace('\0', "|"))
        .collect();
    // The empty text after a closing bar.
    if cells.last().is_some_and(String::is_empty) {
        cells.pop();
    }
    cells
}

/// Returns the number of lines of the table at the start of `lines`.
pub(super) fn count(lines: &[&str]) -> usize {
    lines.iter().take_while(|line| line.contains('|')).count()
}

/// Returns the rows of a table, header first, without the delimiter row. Cells are source text.
pub(super) fn rows(lines: &[&str]) -> Vec<Vec<String>> {
    let rows = lines.iter().enumerate().filter(|(n, _)| *n != 1);
    rows.map(|(_, line)| cells(line)).collect()
}

/// Returns the rows as aligned columns, whose padding is limited to the width `most`.
pub(super) fn aligned(rows: &[Vec<String>], most: usize) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = columns(cell).min(most).max(*widest);
        }
    }
    let mut out = String::new();
    for (n, row) in rows.iter().enumerate() {
        let padded = |(cell, width): (&String, &usize)| {
            cell.to_owned() + &" ".repeat(width.saturating_sub(columns(cell)))
        };
        let cells: Vec<String> = row.iter().zip(&widths).map(padded).collect();
        out.push_str(cells.join(" │ ").trim_end_matches(' '));
        out.push('\n');
        if n == 0 {
            let dashes: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
            out.push_str(&dashes.join("─┼─"));
            out.push('\n');
        }
    }
    out
}

/// Returns a cell for a message, without styles, and with the addresses of its links.
pub(super) fn plain(cell: &str) -> String {
    let mut styled = StyledText::default();
    inline::read(cell, 0, &mut styled);
    let plain = styled.with_addresses(0..styled.text.len(), 0);
    plain.text.replace('\n', " ")
}
