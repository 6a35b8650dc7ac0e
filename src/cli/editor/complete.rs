//! What Tab completes: commands, skills, models and the names of files.

use std::path::PathBuf;

use crate::cli::{commands, sessions};
use crate::config::Env;
use crate::paths::{Home, of_user};

pub(in crate::cli) struct Completer {
    /// The names of skills.
    pub skills: Vec<String>,
    /// The names of models that are known.
    pub models: Vec<String>,
    pub home: Home,
    pub env: Env,
}

/// The most candidates that are worth reading.
const MOST: usize = 200;

impl Completer {
    /// Where the word before the cursor begins, and the words that it may become.
    pub(super) fn words(&self, before: &str) -> (usize, Vec<String>) {
        let start = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        let word = &before[start..];
        let of = |names: &[String]| {
            names
                .iter()
                .filter(|name| name.starts_with(word))
                .cloned()
                .collect()
        };
        let command = before[..start].trim_end();
        let mut found: Vec<String> = match command {
            "" if word.starts_with('/') => commands::words(&self.skills)
                .into_iter()
                .filter(|name| name.starts_with(word))
                .collect(),
            "/model" => of(&self.models),
            "/resume" => of(&sessions::of_cli(&self.home)
                .into_iter()
                .map(|s| s.key["cli_".len()..].to_owned())
                .collect::<Vec<_>>()),
            "/attach" | "/export" => files(word, &self.env),
            _ => word
                .strip_prefix('@')
                .map_or(Vec::new(), |path| files(path, &self.env))
                .into_iter()
                .map(|path| format!("@{path}"))
                .collect(),
        };
        found.sort_unstable();
        found.dedup();
        found.truncate(MOST);
        (start, found)
    }
}

/// The files whose paths begin with `start`; directories end in a slash. A name with white space would be more than a word.
fn files(start: &str, env: &Env) -> Vec<String> {
    let (dir, name) = start
        .rsplit_once('/')
        .map_or(("", start), |(dir, name)| (&start[..=dir.len()], name));
    let entries = std::fs::read_dir(match dir {
        "" => PathBuf::from("."),
        dir => of_user(dir, env),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(before: &str) -> (usize, Vec<String>) {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (skills, models) = (names(&["weather", "write-news"]), names(&["fast", "slow"]));
        Completer {
            skills,
            models,
            home: Home::new("/nowhere".into()),
            env: Env::from([("HOME".to_owned(), "src".to_owned())]),
        }
        .words(before)
    }

    #[test]
    fn the_word_before_the_cursor_is_completed() {
        let is = |before: &str, start, found: &[&str]| {
            assert_eq!(
                completed(before),
                (start, found.iter().map(|word| (*word).to_owned()).collect()),
                "{before}"
            );
        };
        is("/un", 0, &["/undo"]);
        is("/w", 0, &["/weather", "/write-news"]);
        is("/model f", 7, &["fast"]);
        is(
            "look at @src/cli/editor/comp",
            8,
            &["@src/cli/editor/complete.rs"],
        );
        is("/attach src/cl", 8, &["src/cli/"]);
        is("/attach ~/cl", 8, &["~/cli/"]);
        is("@~/cli/editor/comp", 0, &["@~/cli/editor/complete.rs"]);
        is("say /un", 4, &[]);
        is("plain", 0, &[]);
    }
}
