//! What the model is told before the conversation: the system prompt, made anew each turn from files and parts.
//!
//! What changes least comes first, so that prompt caches hit.

use std::path::{Path, PathBuf};

use crate::beneath;
use crate::bus::Origin;
use crate::template;
use crate::text::fence;
use crate::tool::Registry;

type Part = Box<dyn Fn() -> String + Send + Sync>;

/// What the system prompt is made from.
#[derive(Default)]
pub struct Prompt {
    /// What bantam obeys; the defaults that are compiled in stand for what is absent.
    agent_dir: Option<PathBuf>,
    /// Where the agent works.
    workspace: Option<PathBuf>,
    parts: Vec<(String, Part)>,
}

/// A prompt, and what was wrong with the files that it was made from.
pub struct Built {
    pub text: String,
    /// Where in the text what stays the same from turn to turn ends.
    pub mark: usize,
    /// How much of it does not depend on the conversation.
    len: usize,
    pub notices: Vec<String>,
}

impl Prompt {
    /// The prompt of a home: its agent files, and its workspace's.
    #[must_use]
    pub fn from_files(agent_dir: PathBuf, workspace: PathBuf) -> Self {
        Self { agent_dir: Some(agent_dir), workspace: Some(workspace), parts: Vec::new() }
    }

    /// Adds a part of an embedding program's.
    pub fn add(&mut self, title: &str, text: impl Fn() -> String + Send + Sync + 'static) {
        self.parts.push((title.to_owned(), Box::new(text)));
    }

    /// The prompt of one turn. A file that is missing is left out, one that is broken is reported; neither stops it.
    #[must_use]
    pub fn build(&self, tools: &Registry, origin: &Origin) -> Built {
        let mut built = Built { text: String::new(), mark: 0, len: 0, notices: Vec::new() };
        if let Some(dir) = &self.agent_dir {
            for (title, names) in [
                ("IDENTITY", &["IDENTITY.md"][..]),
                ("AGENT GUIDELINES", &["AGENT.md", "AGENTS.md"]),
                ("PERSONALITY", &["SOUL.md"]),
            ] {
                let text = names.iter().find_map(|name| built.agent_file(dir, name));
                let text = text.or_else(|| names.iter().find_map(|name| template::text(&format!("agent/{name}"))));
                built.section(title, &text.unwrap_or_default());
            }
        }
        let mut list = String::new();
        for spec in tools.specs() {
            list.push_str(&format!("- {}: {}\n", spec.name, spec.purpose()));
        }
        built.section("TOOLS", &list);
        if let Some(workspace) = &self.workspace {
            let (os, arch, at) = (std::env::consts::OS, std::env::consts::ARCH, workspace.display());
            built.section("RUNTIME", &format!("System: {os} on {arch}\nWorkspace: {at}\nChannel: {}", origin.channel));
        }
        for (title, part) in &self.parts {
            built.section(title, &part());
        }
        built.mark = built.text.len();
        if let Some(workspace) = &self.workspace {
            for (title, name) in [("USER PREFERENCES", "USER.md"), ("MEMORY", "memory/MEMORY.md")] {
                match beneath::read_trusted(workspace, name) {
                    Ok(Some(text)) => built.section(title, &fenced(&text)),
                    Ok(None) => {}
                    Err(e) => built.notices.push(format!("{}/{name} was left out: {e}", workspace.display())),
                }
            }
        }
        built.len = built.text.len();
        built
    }
}

/// What a model wrote is data to the next one, not orders. A fence inside it cannot close ours.
fn fenced(text: &str) -> String {
    if text.trim().is_empty() {
        return String::new();
    }
    let fence = fence(text);
    format!("{fence}\n{}\n{fence}", text.trim())
}

impl Built {
    /// Puts what was said before the messages into the prompt, as `summary` has it, in the place of what was there. It is
    /// no message: some hosts want the user and the model to speak in turn.
    pub fn recall(&mut self, summary: Option<&str>) {
        self.text.truncate(self.len);
        self.section("EARLIER IN THIS CONVERSATION", &fenced(summary.unwrap_or_default()));
    }

    fn section(&mut self, title: &str, text: &str) {
        let text = text.trim();
        if text.is_empty() {
            return;
        }
        if !self.text.is_empty() {
            self.text.push_str("\n\n");
        }
        self.text.push_str(&format!("[{title}]\n{text}"));
    }

    fn agent_file(&mut self, dir: &Path, name: &str) -> Option<String> {
        match beneath::read_trusted(dir, name) {
            Ok(text) => text,
            Err(e) => {
                self.notices.push(format!("{}/{name} was left out: {e}", dir.display()));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_cannot_be_closed_from_inside() {
        assert_eq!(fenced("a"), "```\na\n```");
        assert_eq!(fenced("a ```` b"), "`````\na ```` b\n`````");
        assert_eq!(fenced(" \n"), "");
    }

    #[test]
    fn parts_stand_in_order_and_empty_ones_are_left_out() {
        let mut prompt = Prompt::default();
        prompt.add("ONE", || "1".into());
        prompt.add("NONE", || " ".into());
        prompt.add("TWO", || "2".into());
        let origin = Origin { channel: "cli".into(), chat: "x".into() };
        let tools = Registry::new(Vec::new(), crate::secret::Redactor::default()).unwrap();
        let built = prompt.build(&tools, &origin);
        assert_eq!((built.text.as_str(), built.mark), ("[ONE]\n1\n\n[TWO]\n2", 16));
    }

    #[test]
    fn what_the_model_writes_comes_after_the_mark() {
        let workspace = std::env::temp_dir().join(format!("bantam-context-{}", std::process::id()));
        fs_err::create_dir_all(&workspace).unwrap();
        fs_err::write(workspace.join("USER.md"), "likes tea").unwrap();
        let prompt = Prompt { workspace: Some(workspace.clone()), ..Prompt::default() };
        let origin = Origin { channel: "cli".into(), chat: "x".into() };
        let tools = Registry::new(Vec::new(), crate::secret::Redactor::default()).unwrap();
        let built = prompt.build(&tools, &origin);
        fs_err::remove_dir_all(workspace).unwrap();
        let (stable, changing) = built.text.split_at(built.mark);
        assert!(stable.contains("[RUNTIME]") && !stable.contains("tea"), "{stable}");
        assert!(changing.contains("[USER PREFERENCES]") && changing.contains("tea"), "{changing}");
    }
}
