//! Tab completion of commands and file names.

use std::path::PathBuf;
use std::sync::Arc;

use crate::cli::slash;
use crate::config::Env;
use crate::paths::of_user;

pub(in crate::cli) struct Completer {
    pub env: Arc<Env>,
}

/// Maximum number of candidates.
const MOST: usize = 200;

impl Completer {
    /// Returns the start of the word before the cursor, and its possible completions.
    pub(super) fn words(&self, before: &str) -> (usize, Vec<String>) {
        let start = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        let word = &before[start..];
        let mut found: Vec<String> = match word.strip_prefix('@') {
            Some(path) => {
                let files = files(path, &self.env).into_iter();
                files.map(|path| format!("@{path}")).collect()
            }
            None if start == 0 && word.starts_with('/') => slash::names()
                .filter(|name| name.starts_with(word))
                .map(str::to_owned)
                .collect(),
            None => Vec::new(),
        };
        found.sort_unstable();
        found.truncate(MOST);
        (start, found)
    }
}

/// Returns the files whose paths begin with `start`; directories end in a slash. White space would split a name into words.
fn files(start: &str, env: &Env) -> Vec<String> {
    let (dir, name) = start
        .rsplit_once('/')
        .map_or(("", start), |(dir, name)| (&start[..=dir.len()], name));
    let entries = std::fs::read_dir(match dir {
        "" => PathBuf::from("."),
        dir => of_user(dir, env.get("HOME")),
    });
    let shown = |entry: std::fs::DirEntry| {
        let found = entry.file_name().into_string().ok()?;
        let is_meant =
            found.starts_with(name) && (!found.starts_with('.') || name.starts_with('.'));
        let is_word = !found.chars().any(|c| c.is_whitespace() || c.is_control());
        let slash = if entry.path().is_dir() { "/" } else { "" };
        (is_meant && is_word).then(|| format!("{dir}{found}{slash}"))
    };
    entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(shown)
        .collect()
}
