//! Lines of text files.

use std::io::{self, BufRead, BufReader, Read};

use crate::text::without_controls;

/// Skips the byte order mark that Windows programs put before UTF-8.
pub(super) fn skip_bom(file: &mut BufReader<impl Read>) -> io::Result<()> {
    const BOM: &[u8] = b"\xef\xbb\xbf";
    if file.fill_buf()?.starts_with(BOM) {
        file.consume(BOM.len());
    }
    Ok(())
}

/// Maximum number of characters shown of a line, and of those before the match.
const EXCERPT: usize = 300;
const BEFORE_MATCH: usize = 100;

/// Formats a line for display: all of it, or the part around byte `at`.
pub(super) fn excerpt(line: &str, at: usize) -> String {
    let before = line[..at].chars().count();
    let skipped = if line.chars().count() > EXCERPT {
        before.saturating_sub(BEFORE_MATCH)
    } else {
        0
    };
    let mut rest = line.chars().skip(skipped);
    let shown: String = rest.by_ref().take(EXCERPT).collect();
    let [start, end] = [skipped > 0, rest.next().is_some()].map(|cut| if cut { "…" } else { "" });
    without_controls(&format!("{start}{shown}{end}"))
}
