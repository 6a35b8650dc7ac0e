//! What the model is told before the conversation: the system prompt, made anew each turn from files and parts.
//!
//! What changes least comes first, so that prompt caches hit.

use std::path::{Path, PathBuf};

use crate::beneath;
use crate::bus::Origin;
use crate::skills::{Skill, Skills};
use crate::template;
use crate::text::fence;
use crate::tool::Registry;
use crate::tool::skill::ReadSkill;

type Part = Box<dyn Fn() -> String + Send + Sync>;

/// What the system prompt is made from.
#[derive(Default)]
pub struct Prompt {
    /// What bantam obeys; the defaults that are compiled in stand for what is absent.
    agent_dir: Option<PathBuf>,
    /// Where the agent works.
    workspace: Option<PathBuf>,
    /// Its tools reach beyond the workspace.
    unrestricted: bool,
    skills: Option<Skills>,
    parts: Vec<(String, Part)>,
}

/// A prompt, and what was wrong with the files that it was made from.
pub struct Built {
    pub text: String,
    /// Where in the text what stays the same from turn to turn ends.
    pub mark: usize,
    pub notices: Vec<String>,
}

impl Prompt {
    /// The prompt of a home: its agent files, and its workspace's.
    #[must_use]
    pub fn from_files(agent_dir: PathBuf, workspace: PathBuf) -> Self {
        Self { agent_dir: Some(agent_dir), workspace: Some(workspace), ..Self::default() }
    }

    /// Says whether tools reach beyond the workspace.
    #[must_use]
    pub fn unrestricted(self, unrestricted: bool) -> Self {
        Self { unrestricted, ..self }
    }

    /// Tells the model of these skills, where it has the tool to read them.
    #[must_use]
    pub fn skills(self, skills: Skills) -> Self {
        Self { skills: Some(skills), ..self }
    }

    /// What the user says, with the skill that it calls for by name.
    #[must_use]
    pub fn spelled_out(&self, input: &str) -> String {
        self.skills.as_ref().and_then(|skills| skills.called(input)).unwrap_or_else(|| input.to_owned())
    }

    /// Adds a part of an embedding program's.
    pub fn add(&mut self, title: &str, text: impl Fn() -> String + Send + Sync + 'static) {
        self.parts.push((title.to_owned(), Box::new(text)));
    }

    /// The prompt of one turn. A file that is missing is left out, one that is broken is reported; neither stops it.
    #[must_use]
    pub fn build(&self, tools: &Registry, origin: &Origin) -> Built {
        let mut built = Built { text: String::new(), mark: 0, notices: Vec::new() };
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
        if let Some(skills) = &self.skills {
            let found = skills.all();
            built.notices.extend(found.problems);
            let readable = tools.specs().any(|spec| spec.name == ReadSkill::NAME);
            built.section("SKILLS", &catalogue(&found.skills, readable));
        }
        let mut list = String::new();
        for spec in tools.specs() {
            list.push_str(&format!("- {}: {}\n", spec.name, spec.purpose()));
        }
        built.section("TOOLS", &list);
        if let Some(workspace) = &self.workspace {
            let (os, arch, at) = (std::env::consts::OS, std::env::consts::ARCH, workspace.display());
            let beyond = if self.unrestricted { " (files elsewhere are open to your tools, too)" } else { "" };
            let channel = &origin.channel;
            built.section("RUNTIME", &format!("System: {os} on {arch}\nWorkspace: {at}{beyond}\nChannel: {channel}"));
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
        built
    }
}

/// Bytes of the list of skills that every prompt pays for, at most.
const MOST_SKILLS: usize = 16 << 10;

/// A line for each skill that models may read, and the whole text of those that are always to be there.
fn catalogue(skills: &[Skill], readable: bool) -> String {
    let mut text = String::new();
    let offered = || skills.iter().filter(|skill| skill.is_offered());
    let listed: Vec<&Skill> = offered().filter(|skill| readable && !skill.always).collect();
    if !listed.is_empty() {
        text.push_str(&format!("Read one with the {} tool before you do what it is for.\n", ReadSkill::NAME));
    }
    for (n, skill) in listed.iter().enumerate() {
        if text.len() > MOST_SKILLS {
            let names: Vec<&str> = listed[n..].iter().map(|skill| skill.name.as_str()).collect();
            text.push_str(&format!("More: {}\n", names.join(", ")));
            break;
        }
        text.push_str(&format!("- {}: {}\n", skill.name, skill.description));
    }
    for skill in offered().filter(|skill| skill.always) {
        text.push_str(&format!("\n{}\n", skill.sheet()));
    }
    text
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
    fn skills_are_listed_by_name_and_those_that_are_always_there_whole() {
        let skill = |name: &str, always, hidden| Skill {
            name: name.into(),
            description: format!("For {name}."),
            dir: None,
            always,
            hidden,
            missing: Vec::new(),
            text: format!("Do {name}."),
        };
        let mut skills = vec![skill("a", false, false), skill("b", true, false), skill("c", false, true)];
        skills.push(Skill { missing: vec!["the program x".into()], ..skill("d", true, false) });
        let text = catalogue(&skills, true);
        assert!(text.contains("- a: For a.") && text.ends_with("Do b.\n"), "{text}");
        assert!(
            !text.contains("- b") && !text.contains("Do a") && !text.contains('c') && !text.contains("Do d"),
            "{text}"
        );
        assert!(!catalogue(&skills, false).contains("- a"));
        let many: Vec<Skill> = (0..2000).map(|n| skill(&format!("skill-{n:04}"), false, false)).collect();
        let text = catalogue(&many, true);
        assert!(text.contains("\nMore: ") && text.ends_with("skill-1999\n") && text.len() < 48 << 10);
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
