//! Tables become fixed-width text with aligned columns: Telegram has none.

use super::inline::{self, Output};
use super::styled::StyledText;
use super::unicode::width;

/// No column is made wider than this for the sake of its longest cell.
const MAX_COLUMN: usize = 40;

/// Whether a table begins with this line: a delimiter row with as many cells follows.
pub(super) fn begins(line: &str, next: Option<&&str>) -> bool {
    let is_delimiter = |row: &str| {
        row.contains('|')
            && row.chars().all(|c| "|-: \t".contains(c))
            && cells(row).iter().all(|cell| cell.contains('-'))
    };
    line.contains('|') && next.is_some_and(|next| is_delimiter(next) && cells(next).len() == cells(line).len())
}

fn cells(line: &str) -> Vec<&str> {
    let line = line.trim();
    let line = line.strip_prefix('|').unwrap_or(line);
    let mut is_escaped = false;
    let mut cells: Vec<&str> = line
        .split(|c| {
            let ends = c == '|' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        })
        .map(str::trim)
        .collect();
    // What follows a closing bar.
    if cells.last() == Some(&"") {
        cells.pop();
    }
    cells
}

/// The table at the beginning of `lines` as text, and how many lines it has. Cells lose their styles and keep links as written.
pub(super) fn read(lines: &[&str]) -> (String, usize) {
    let count = lines.iter().take_while(|line| line.contains('|')).count();
    let is_right: Vec<bool> =
        cells(lines[1]).iter().map(|cell| cell.ends_with(':') && !cell.starts_with(':')).collect();
    let rows: Vec<Vec<String>> =
        lines[..1].iter().chain(&lines[2..count]).map(|line| cells(line).into_iter().map(shown).collect()).collect();
    let mut widths: Vec<usize> = Vec::new();
    for row in &rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = width(cell).min(MAX_COLUMN).max(*widest);
        }
    }
    let mut out = String::new();
    for (n, row) in rows.iter().enumerate() {
        let mut line = Vec::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column].saturating_sub(width(cell)));
            line.push(if is_right.get(column) == Some(&true) { pad + cell } else { format!("{cell}{pad}") });
        }
        out.push_str(line.join(" │ ").trim_end_matches(' '));
        out.push('\n');
        if n == 0 {
            let dashes: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
            out.push_str(&dashes.join("─┼─"));
            out.push('\n');
        }
    }
    (out, count)
}

fn shown(cell: &str) -> String {
    let mut styled = StyledText::default();
    inline::read(&cell.replace("\\|", "|"), 0, Output::Terminal, &mut styled);
    styled.text
}
