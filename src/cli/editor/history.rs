//! What was typed before, kept in `state/history`: an entry a line, with `\n` and `\\` for line feeds and backslashes.

use crate::disk::{self, Durability};
use crate::error::Result;
use crate::paths::Home;
use crate::text::printable;

/// The most bytes kept in the file after it has grown to twice as many.
const MAX_BYTES: usize = 128 << 10;

#[derive(Default)]
pub(crate) struct History {
    /// `None` writes nothing.
    home: Option<Home>,
    /// The newest one last.
    pub(super) entries: Vec<String>,
}

impl History {
    /// Reads the file. One that is missing or cannot be read is as good as empty.
    pub(crate) fn load(home: &Home) -> Self {
        let bytes = fs_err::read(home.history()).unwrap_or_default();
        let entries = String::from_utf8_lossy(&bytes)
            .lines()
            .map(decode)
            .collect();
        Self {
            home: Some(home.clone()),
            entries,
        }
    }

    /// Adds an entry, unless it is the newest already. After a failure nothing more is written.
    pub(crate) fn add(&mut self, entry: &str) -> Result<()> {
        if self.entries.last().is_some_and(|last| last == entry) {
            return Ok(());
        }
        self.entries.push(entry.to_owned());
        let Some(home) = self.home.take() else {
            return Ok(());
        };
        append(&home, &encode(entry))?;
        self.home = Some(home);
        Ok(())
    }

    /// The newest entry before the one numbered `before` that has `text` in it.
    pub(super) fn find(&self, text: &str, before: usize) -> Option<usize> {
        self.entries[..before]
            .iter()
            .rposition(|entry| entry.contains(text))
    }
}

fn append(home: &Home, line: &str) -> Result<()> {
    let path = home.history();
    disk::append_line(&path, line, Durability::Later)?;
    let bytes = fs_err::read(&path)?;
    if bytes.len() > 2 * MAX_BYTES {
        let tail = &bytes[bytes.len() - MAX_BYTES..];
        let start = tail
            .iter()
            .position(|b| *b == b'\n')
            .map_or(tail.len(), |at| at + 1);
        disk::replace(&path, &tail[start..], Durability::Later)?;
    }
    Ok(())
}

fn encode(entry: &str) -> String {
    entry.replace('\\', "\\\\").replace('\n', "\\n")
}

fn decode(line: &str) -> String {
    let (mut entry, line) = (String::new(), printable(line));
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        entry.push(match c {
            '\\' => characters
                .next()
                .map_or('\\', |c| if c == 'n' { '\n' } else { c }),
            c => c,
        });
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_as_lines() {
        for entry in [
            "plain",
            "two\nlines",
            "a\\nb \\",
            "\\\\\n\\n",
            "世界\t!",
            "",
        ] {
            assert!(!encode(entry).contains('\n'), "{entry:?}");
            assert_eq!(decode(&encode(entry)), entry);
        }
    }

    #[test]
    fn the_file_stays_small_and_keeps_the_newest() {
        use std::os::unix::fs::PermissionsExt;
        let root = std::env::temp_dir().join(format!("bantam-history-{}", std::process::id()));
        let home = Home::new(root.clone());
        let mut history = History::load(&home);
        for n in 0..40 {
            history.add(&format!("{n} {}", "x".repeat(10_000))).unwrap();
            history
                .add(&history.entries.last().unwrap().clone())
                .unwrap();
        }
        let meta = fs_err::metadata(home.history()).unwrap();
        assert!(meta.len() <= 2 * MAX_BYTES as u64, "{}", meta.len());
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        let again = History::load(&home);
        assert!(again.entries.last().unwrap().starts_with("39 "));
        assert!(
            history.entries.ends_with(&again.entries) && again.entries.len() > 10,
            "{}",
            again.entries.len()
        );
        assert_eq!(
            again.find("37 ", again.entries.len()),
            Some(again.entries.len() - 3)
        );
        assert_eq!(again.find("37 ", again.entries.len() - 3), None);
        fs_err::remove_dir_all(root).unwrap();
    }
}
