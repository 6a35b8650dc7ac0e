//! Tables: Telegram has none, so they become fixed-width text with columns that stand under each other.

use super::characters::width;
use super::inline;
use super::rich::Rich;

/// No column is made wider than this for the sake of its longest cell.
const WIDEST: usize = 40;

/// Whether a table begins with this line: it is followed by a row of dashes with as many cells.
pub fn begins(line: &str, next: Option<&&str>) -> bool {
    line.contains('|') && next.is_some_and(|next| is_rule(next) && cells(next).len() == cells(line).len())
}

fn is_rule(line: &str) -> bool {
    let marks = |b: u8| matches!(b, b'|' | b'-' | b':' | b' ' | b'\t');
    line.bytes().all(marks) && line.contains('|') && cells(line).iter().all(|cell| cell.contains('-'))
}

fn cells(line: &str) -> Vec<&str> {
    let line = line.trim();
    let line = line.strip_prefix('|').unwrap_or(line);
    let mut cells = Vec::new();
    let mut from = 0;
    let mut escaped = false;
    for (at, b) in line.bytes().enumerate() {
        if b == b'|' && !escaped {
            cells.push(line[from..at].trim());
            from = at + 1;
        }
        escaped = b == b'\\' && !escaped;
    }
    if from < line.len() {
        cells.push(line[from..].trim());
    }
    cells
}

/// The table at the beginning of `lines` as text, and how many lines it had. Cells are shown without styles.
pub fn read(lines: &[&str]) -> (String, usize) {
    let count = lines.iter().take_while(|line| line.contains('|')).count();
    let right: Vec<bool> = cells(lines[1]).iter().map(|cell| cell.ends_with(':') && !cell.starts_with(':')).collect();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for line in lines[..1].iter().chain(&lines[2..count]) {
        rows.push(cells(line).iter().map(|cell| shown(cell)).collect());
    }
    let mut widths: Vec<usize> = Vec::new();
    for row in &rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (most, cell) in widths.iter_mut().zip(row) {
            *most = width(cell).min(WIDEST).max(*most);
        }
    }
    let mut out = String::new();
    for (n, row) in rows.iter().enumerate() {
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column].saturating_sub(width(cell)));
            let right = right.get(column) == Some(&true);
            out.push_str(if column > 0 { " │ " } else { "" });
            out.push_str(if right { &pad } else { "" });
            out.push_str(cell);
            out.push_str(if right { "" } else { &pad });
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
        if n == 0 {
            let dashes: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
            out.push_str(&dashes.join("─┼─"));
            out.push('\n');
        }
    }
    (out, count)
}

/// A cell without its marks; links keep their addresses.
fn shown(cell: &str) -> String {
    let mut rich = Rich::default();
    inline::read(&cell.replace("\\|", "|"), 0, inline::Links::Spelt, &mut rich);
    rich.text
}
