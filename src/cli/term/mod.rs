//! The terminal and the standard streams: the only code that writes to the streams and reads answers.

pub(super) mod ask;
pub(super) mod screen;
pub(super) mod signals;
pub(super) mod tty;

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use crate::error::{Error, Result};
use crate::markdown;
use crate::text::to_single_line;

/// Writes to standard output. A closed pipe is no error, because its reader has read enough.
pub(super) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::from(e).doing("writing the answer"))
        }
        _ => Ok(()),
    }
}

/// Writes JSON as one line to standard output.
pub(super) fn print_json(json: &dyn Display) -> Result<()> {
    print(&json_line(json))
}

/// Formats JSON as one line. Escapes terminal control characters that JSON leaves unescaped.
pub(super) fn json_line(json: &dyn Display) -> String {
    let mut line = String::new();
    for c in json.to_string().chars() {
        match c {
            '\u{7f}'..='\u{9f}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => line.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => line.push(c),
        }
    }
    line + "\n"
}

/// Writes a line to standard error, and ignores a closed one.
pub(super) fn tell(text: &str) {
    let text = wrap(text, 0, io::stderr().is_terminal());
    drop(writeln!(io::stderr().lock(), "{text}"));
}

/// Shows a notice to the user.
pub(super) fn notice(text: &str) {
    tell(&format!("bantam: {text}"));
}

/// Prints an error and its hint, and returns the exit code.
pub(super) fn report(e: &Error) -> u8 {
    tell(&format!(
        "bantam: error: {}",
        to_single_line(&e.message, 2000)
    ));
    if let Some(hint) = &e.hint {
        tell(&format!("hint: {}", to_single_line(hint, 2000)));
    }
    e.kind.exit_code()
}

/// Formats a line for standard output, with its end. On a terminal, its continuation lines begin in this column.
pub(super) fn hung(line: &str, column: usize) -> String {
    wrap(line, column, io::stdout().is_terminal()) + "\n"
}

/// Wraps lines between words, because a terminal breaks words. Continuation lines are indented by `hang`.
fn wrap(text: &str, hang: usize, is_terminal: bool) -> String {
    if !is_terminal {
        return text.to_owned();
    }
    let (columns, hang) = (line_width(), " ".repeat(hang));
    let lines = text
        .lines()
        .flat_map(|line| markdown::hanging(line, columns, &hang));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the columns of a line that does not wrap, with space for the cursor.
fn line_width() -> usize {
    tty::size().0.saturating_sub(1)
}

/// Limits of cells, in characters, and of the last column on a terminal, in columns.
const MAX_CELL: usize = 400;
const MIN_LAST: usize = 20;

/// Formats rows as lines under the names of their columns; empty without rows. A column is as wide as its widest cell, numbers
/// are aligned to the right, and a terminal clips the last column.
pub(super) fn table<R: AsRef<[String]>>(head: &[&str], rows: &[R]) -> String {
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        cells
            .map(|cell| to_single_line(cell, MAX_CELL))
            .collect::<Vec<_>>()
    };
    let mut lines = Vec::new();
    if !rows.is_empty() && !head.is_empty() {
        lines.push(line(&mut head.iter().copied()));
    }
    for row in rows {
        lines.push(line(&mut row.as_ref().iter().map(String::as_str)));
    }
    let room = io::stdout().is_terminal().then(line_width);
    lay_out(&lines, room)
}

fn lay_out(lines: &[Vec<String>], room: Option<usize>) -> String {
    let count = lines.first().map_or(0, Vec::len);
    let width = |n: usize| lines.iter().map(|row| markdown::columns(&row[n])).max();
    let widths: Vec<usize> = (0..count).map(|n| width(n).unwrap_or_default()).collect();
    let before: usize = widths.iter().rev().skip(1).map(|width| width + 2).sum();
    let most = room.map(|room| room.saturating_sub(before).max(MIN_LAST));
    let mut page = String::new();
    for row in lines {
        let mut line = String::new();
        for (n, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - markdown::columns(cell));
            line.push_str(if n > 0 { "  " } else { "" });
            match most.filter(|most| n + 1 == count && markdown::columns(cell) > *most) {
                Some(most) => {
                    line.push_str(screen::within(cell, most - 1));
                    line.push('…');
                }
                None if cell.parse::<f64>().is_ok() => line.push_str(&(pad + cell)),
                None => line.push_str(&(cell.clone() + &pad)),
            }
        }
        page.push_str(line.trim_end());
        page.push('\n');
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_fit_their_cells_and_a_terminal_clips_the_last() {
        let rows = [["a", "1", "two lines"], ["bcd", "10", &"x".repeat(30)]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let lines = |room| lay_out(&rows, room);
        let whole = format!("a     1  two lines\nbcd  10  {}\n", "x".repeat(30));
        assert_eq!(lines(None), whole);
        assert_eq!(lines(Some(39)), whole);
        let clipped = format!("a     1  two lines\nbcd  10  {}…\n", "x".repeat(19));
        assert_eq!(
            (lines(Some(29)), lines(Some(10))),
            (clipped.clone(), clipped)
        );
        assert_eq!(table(&["name"], &[] as &[Vec<String>]), "");
    }
}
