//! The files of a new home, compiled in from `workspace-template/`.

use std::path::Path;

use crate::disk::{self, CopyOutcome};
use crate::error::Result;

include!(concat!(env!("OUT_DIR"), "/template.rs"));

/// The text of the file at `path` in `workspace-template/`.
pub(crate) fn text(path: &str) -> Option<String> {
    FILES
        .iter()
        .find(|(name, _)| *name == path)
        .map(|(_, text)| (*text).to_owned())
}

/// The files below `dir` in `workspace-template/`: paths relative to it, and texts.
pub(crate) fn below(dir: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES
        .iter()
        .filter_map(move |(path, text)| Some((path.strip_prefix(dir)?.strip_prefix('/')?, *text)))
}

/// The names of the files directly in `dir`.
pub(crate) fn names(dir: &str) -> Vec<&'static str> {
    below(dir)
        .map(|(name, _)| name)
        .filter(|name| !name.contains('/'))
        .collect()
}

/// Writes the files below `part` (`agent` or `workspace`) into `dir`, and keeps those that exist.
pub(crate) fn write(part: &str, dir: &Path) -> Result<Vec<(&'static str, CopyOutcome)>> {
    disk::make_dir(dir)?;
    let mut written = Vec::new();
    for (path, text) in below(part) {
        if path == "AGENT.md" && dir.join("AGENTS.md").exists() {
            // It would take precedence over the existing file.
            written.push(("AGENTS.md", CopyOutcome::Exists));
            continue;
        }
        let copied = disk::copy_new(dir, Path::new(path), &mut text.as_bytes(), disk::PLAIN)?;
        written.push((path, copied));
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_skill_says_its_name_and_what_it_is_for() {
        let skills: Vec<_> = FILES
            .iter()
            .filter(|(path, _)| path.starts_with("agent/skills/"))
            .collect();
        assert!(skills.len() >= 2);
        for (path, text) in skills {
            let folder = path.split('/').nth(2).unwrap();
            let front = text
                .strip_prefix("---\n")
                .and_then(|rest| rest.split_once("\n---\n"))
                .unwrap()
                .0;
            let field = |name| {
                front
                    .lines()
                    .find_map(|line: &str| line.strip_prefix(name)?.strip_prefix(": "))
            };
            assert_eq!(field("name"), Some(folder), "{path}");
            // The limit of the Agent Skills format.
            assert!(
                field("description").is_some_and(|text| (1..=1024).contains(&text.len())),
                "{path}"
            );
        }
    }

    #[test]
    fn what_every_call_pays_for_is_short() {
        let paid = [
            "agent/IDENTITY.md",
            "agent/AGENT.md",
            "agent/SOUL.md",
            "workspace/USER.md",
            "workspace/memory/MEMORY.md",
        ];
        let total: usize = paid.iter().map(|path| text(path).unwrap().len()).sum();
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
