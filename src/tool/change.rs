//! Changes that a call of a file tool makes, formatted for people.

use crate::text::{counted, size};

/// Maximum number of lines shown of a replaced file.
const MOST_REPLACED: usize = 12;

/// What a call of a file tool changes.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// Lines that it removes, prefixed with `-`, and adds, prefixed with `+`.
    pub lines: Vec<String>,
    /// State of the replaced file, empty if it is missing; `None` if it was not read.
    pub(crate) shown: Option<String>,
}

impl Change {
    /// The change of a part of a file.
    pub(super) fn between(old: &str, new: &str) -> Self {
        let (removed, added) = differing(old, new);
        Self::of(&removed, &added)
    }

    /// The change of a file with the content `old`, of which up to [`MOST_REPLACED`] lines are shown.
    pub(super) fn replacing(old: &[u8], new: &str) -> Self {
        let text = std::str::from_utf8(old).ok();
        let Some(text) = text.filter(|text| !text.contains('\0')) else {
            return Self::unseen(&format!("{}, not text", size(old.len() as u64)), new);
        };
        let (mut removed, added) = differing(text, new);
        let hidden = removed.len().saturating_sub(MOST_REPLACED);
        let more = format!("[and {}]", counted(hidden, "more line"));
        if hidden > 1 {
            removed.truncate(MOST_REPLACED);
            removed.push(&more);
        }
        Self::of(&removed, &added)
    }

    /// The change of a file whose content cannot be shown.
    pub(super) fn unseen(why: &str, new: &str) -> Self {
        Self::of(&[&format!("[{why}]")], &new.lines().collect::<Vec<_>>())
    }

    fn of(removed: &[&str], added: &[&str]) -> Self {
        let removed = removed.iter().map(|line| format!("-{line}"));
        let added = added.iter().map(|line| format!("+{line}"));
        let lines = removed.chain(added).collect();
        Self { lines, shown: None }
    }
}

/// Returns the lines of both texts without their common start and end.
fn differing<'a>(old: &'a str, new: &'a str) -> (Vec<&'a str>, Vec<&'a str>) {
    let mut old: Vec<&str> = old.lines().collect();
    let mut new: Vec<&str> = new.lines().collect();
    let pairs = old.iter().zip(&new);
    let start = pairs.take_while(|(old, new)| old == new).count();
    (old, new) = (old.split_off(start), new.split_off(start));
    while !old.is_empty() && old.last() == new.last() {
        old.pop();
        new.pop();
    }
    (old, new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_shown_up_to_a_limit() {
        let replacing = |old: &[u8], new: &str| Change::replacing(old, new).lines;
        let lines = replacing(b"one\ntwo\nthree\n", "one\n2\nthree\n");
        assert_eq!(lines, ["-two", "+2"]);
        assert_eq!(replacing(b"\xff\xff", "")[0], "-[2 bytes, not text]");
        let lines = replacing("old\n".repeat(100).as_bytes(), "new");
        assert_eq!(lines.len(), 14, "{lines:?}");
        assert_eq!(&lines[11..], ["-old", "-[and 88 more lines]", "+new"]);
    }
}
