//! The files of a new home, compiled in from `workspace-template/`.

use std::path::Path;

use crate::error::{Context, Result};
use crate::storage;

include!(concat!(env!("OUT_DIR"), "/template.rs"));

/// Returns the text of the file at `path` in `workspace-template/`.
pub(crate) fn text(path: &str) -> Option<String> {
    FILES
        .iter()
        .find(|(name, _)| *name == path)
        .map(|(_, text)| (*text).to_owned())
}

/// Returns the files under `dir` in `workspace-template/`: paths relative to it, and texts.
pub(crate) fn below(dir: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES
        .iter()
        .filter_map(move |(path, text)| Some((path.strip_prefix(dir)?.strip_prefix('/')?, *text)))
}

/// Returns the names of the files directly in `dir`.
pub(crate) fn names(dir: &str) -> Vec<&'static str> {
    below(dir)
        .map(|(name, _)| name)
        .filter(|name| !name.contains('/'))
        .collect()
}

/// Writes the files under `part` (`agent`, `workspace` or `memory`) into `dir`. Existing files are unchanged. Returns
/// the path of each file in `dir`, and whether it was created.
pub(crate) fn write(part: &str, dir: &Path) -> Result<Vec<(&'static str, bool)>> {
    storage::make_dir(dir)?;
    let mut written = Vec::new();
    for (path, text) in below(part) {
        if path == "AGENT.md" && dir.join("AGENTS.md").exists() {
            // A new AGENT.md would take precedence over the existing file.
            written.push(("AGENTS.md", false));
            continue;
        }
        let copied = storage::copy_new(dir, Path::new(path), &mut text.as_bytes(), storage::PLAIN)?;
        written.push((path, copied));
    }
    Ok(written)
}

/// Creates the user's notes in `dir`, unless it exists.
pub(crate) fn make_notes(dir: &Path) -> Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    write("memory", dir).map(drop).doing("creating the notes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_prompt_files_are_short() {
        let paid = "agent/IDENTITY.md agent/AGENT.md agent/SOUL.md memory/USER.md memory/MEMORY.md";
        let total: usize = paid.split(' ').map(|path| text(path).unwrap().len()).sum();
        assert!(total < 2000, "{total} bytes");
    }

    #[test]
    fn no_task_waits_in_a_new_home() {
        let tasks = text("agent/HEARTBEAT.md").unwrap();
        assert!(tasks.starts_with("<!--") && tasks.trim_end().ends_with("-->"));
    }

    #[test]
    fn prompts_take_the_text() {
        let prompts: Vec<_> = FILES
            .iter()
            .filter(|(path, _)| path.starts_with("agent/prompts/"))
            .collect();
        assert!(prompts.len() >= 2 && prompts.iter().all(|(_, text)| text.contains("{{input}}")));
    }
}
