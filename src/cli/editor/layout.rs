//! Where each character of an edited text goes on the screen.

use super::CONTINUATION;
use crate::markdown::{begins_cluster, width};

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    pub rows: Vec<String>,
    /// The row and the column of the cursor.
    pub cursor: (usize, usize),
}

/// Lays out `text`, with the cursor at byte `cursor`, behind the prompt.
pub(super) fn layout(prompt: &str, text: &str, cursor: usize, columns: usize) -> Layout {
    let mut layout = Layout {
        rows: vec![prompt.to_owned()],
        cursor: (0, 0),
    };
    let (mut column, mut at) = (width(prompt), 0);
    while at <= text.len() {
        let cluster = cluster(&text[at..]);
        let shown = if cluster == "\t" { "    " } else { cluster };
        // The cursor at the end needs a column of its own.
        if cluster != "\n" && column + width(shown).max(1) > columns.max(4) {
            layout.rows.push(String::new());
            column = 0;
        }
        if at == cursor {
            layout.cursor = (layout.rows.len() - 1, column);
        }
        if cluster == "\n" {
            layout.rows.push(CONTINUATION.to_owned());
            column = CONTINUATION.len();
        } else if let Some(row) = layout.rows.last_mut() {
            row.push_str(shown);
            column += width(shown);
        }
        at += cluster.len().max(1);
    }
    layout
}

/// What people see as the first character.
fn cluster(text: &str) -> &str {
    let characters = text.char_indices().zip(text.char_indices().skip(1));
    let next = characters
        .map(|((_, before), next)| (before, next))
        .find(|(before, (_, c))| begins_cluster(Some(*before), *c));
    next.map_or(text, |(_, (at, _))| &text[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_wrap_where_the_terminal_would() {
        for (text, cursor, rows, at) in [
            ("", 0, &["> "][..], (0, 2)),
            ("abc", 1, &["> abc"], (0, 3)),
            ("abcdef", 6, &["> abcdef", ""], (1, 0)),
            ("abcdef", 5, &["> abcdef"], (0, 7)),
            ("abcdefg", 6, &["> abcdef", "g"], (1, 0)),
            ("ab世界", 8, &["> ab世界", ""], (1, 0)),
            ("abc世界", 3, &["> abc世", "界"], (0, 5)),
            ("abcde世", 5, &["> abcde", "世"], (1, 0)),
            ("ab\nc", 2, &["> ab", ". c"], (0, 4)),
            ("abcdef\ng", 6, &["> abcdef", ". g"], (0, 8)),
            ("a\tb", 2, &["> a    b", ""], (0, 7)),
            ("e\u{301}x", 3, &["> e\u{301}x"], (0, 3)),
        ] {
            let mut shown = layout("> ", text, cursor, 8);
            // A last row that is empty only holds the cursor.
            if shown.rows.last().is_some_and(String::is_empty)
                && shown.cursor.0 + 1 < shown.rows.len()
            {
                assert!(
                    rows.last().is_some_and(|row| row.is_empty()) || shown.rows.pop().is_some()
                );
            }
            assert_eq!(
                (shown.rows, shown.cursor),
                (rows.iter().map(|row| (*row).to_owned()).collect(), at),
                "{text:?}"
            );
        }
    }
}
