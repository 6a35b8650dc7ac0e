//! Lines and tables on the standard streams.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use super::terminal;
use crate::error::{Error, Result};
use crate::markdown;
use crate::text::{printable, to_single_line};

/// Writes to standard output. A closed pipe is no error, because its reader has read enough.
pub(in crate::cli) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::from(e).doing("writing the answer"))
        }
        _ => Ok(()),
    }
}

/// Writes JSON as one line to standard output.
pub(in crate::cli) fn print_json(json: &dyn Display) -> Result<()> {
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
pub(in crate::cli) fn say(text: &str) {
    let text = wrap(text, 0, io::stderr().is_terminal());
    drop(writeln!(io::stderr().lock(), "{text}"));
}

/// Shows a notice to the user.
pub(in crate::cli) fn notice(text: &str) {
    say(&format!("bantam: {}", printable(text)));
}

/// Prints an error and its hint, and returns the exit code.
pub(in crate::cli) fn report(e: &Error) -> u8 {
    say(&format!(
        "bantam: error: {}",
        to_single_line(&e.message, 2000)
    ));
    if let Some(hint) = &e.hint {
        say(&format!("hint: {}", to_single_line(hint, 2000)));
    }
    e.kind.exit_code()
}

/// Formats a line for standard output, with its end. On a terminal, its continuation lines begin in this column.
pub(in crate::cli) fn hanging_indent(line: &str, column: usize) -> String {
    wrap(line, column, io::stdout().is_terminal()) + "\n"
}

/// Wraps lines between words, because a terminal breaks words. Continuation lines are indented by `hang`.
pub(super) fn wrap(text: &str, hang: usize, is_terminal: bool) -> String {
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
pub(super) fn line_width() -> usize {
    terminal::columns().saturating_sub(1)
}

/// Maximum length of a cell, in characters, and minimum width of a column that is clipped, in columns.
const MAX_CELL: usize = 400;
const MIN_CLIPPED: usize = 20;

/// Formats rows as lines under the names of their columns; empty without rows. A column is as wide as its widest cell, and
/// columns of numbers are aligned to the right. A terminal clips the last column, or wraps the lines if it is too narrow.
pub(in crate::cli) fn table<R: AsRef<[String]>>(head: &[&str], rows: &[R]) -> String {
    lay_out(head, rows, io::stdout().is_terminal().then(line_width))
}

fn lay_out<R: AsRef<[String]>>(head: &[&str], rows: &[R], room: Option<usize>) -> String {
    let cells = |row: &R| -> Vec<String> {
        let cells = row.as_ref().iter();
        cells.map(|cell| to_single_line(cell, MAX_CELL)).collect()
    };
    let mut rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let Some(last) = rows.first().map(|row| row.len() - 1) else {
        return String::new();
    };
    let is_number = |cell: &String| cell.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let numeric = |n: usize| rows.iter().all(|row| is_number(&row[n]));
    let numeric: Vec<bool> = (0..=last).map(numeric).collect();
    if !head.is_empty() {
        rows.insert(0, head.iter().map(|name| (*name).to_owned()).collect());
    }
    let width = |n: usize| rows.iter().map(|row| markdown::columns(&row[n])).max();
    let mut widths: Vec<usize> = (0..=last).map(|n| width(n).unwrap_or_default()).collect();
    let before: usize = widths[..last].iter().map(|width| width + 2).sum();
    let room = room.unwrap_or(usize::MAX);
    let left = room.saturating_sub(before);
    if left >= MIN_CLIPPED {
        widths[last] = widths[last].min(left);
    }
    let mut page = String::new();
    for row in &rows {
        let mut line = String::new();
        for (n, cell) in row.iter().enumerate() {
            let cell = match markdown::columns(cell) {
                width if width <= widths[n] => cell.clone(),
                _ => format!("{}…", within(cell, widths[n] - 1)),
            };
            let pad = " ".repeat(widths[n].saturating_sub(markdown::columns(&cell)));
            let [left, right] = if numeric[n] { [pad, cell] } else { [cell, pad] };
            let gap = if n > 0 { "  " } else { "" };
            line.push_str(&format!("{gap}{left}{right}"));
        }
        let line = line.trim_end();
        let parts = match markdown::columns(line) {
            width if width > room => markdown::hanging(line, room, "  "),
            _ => vec![line.to_owned()],
        };
        page.push_str(&(parts.join("\n") + "\n"));
    }
    page
}

/// Returns the beginning of a line, up to `columns` wide.
pub(super) fn within(line: &str, columns: usize) -> &str {
    let mut end = 0;
    for (at, c) in line.char_indices() {
        let next = at + c.len_utf8();
        if markdown::columns(&line[..next]) > columns {
            break;
        }
        end = next;
    }
    &line[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_fits_its_terminal_and_aligns_only_numbers_to_the_right() {
        let rows = [
            ["74e413", "1", "at nine o'clock", "two lines"],
            ["740413", "10", "@daily", &*"x".repeat(30)],
        ];
        let rows = rows.map(|row| row.map(str::to_owned));
        let head = ["id", "runs", "when", "message"];
        for (room, longest) in [
            (
                None,
                "740413    10  @daily           xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
            ),
            (
                Some(52),
                "740413    10  @daily           xxxxxxxxxxxxxxxxxxxx…",
            ),
            (Some(39), "  xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
        ] {
            let page = lay_out(&head, &rows, room);
            let lines: Vec<&str> = page.lines().collect();
            assert_eq!(lines.last(), Some(&longest), "{page}");
            assert!(page.contains("\n74e413     1  at nine o'clock"), "{page}");
            let is_within = |line: &&str| markdown::columns(line) <= room.unwrap_or(61);
            assert!(lines.iter().all(is_within), "{page}");
        }
        assert_eq!(table(&["name"], &[] as &[Vec<String>]), "");
    }
}
