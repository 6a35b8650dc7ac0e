//! Skills in the Agent Skills format (agentskills.io): folders with a `SKILL.md`, whose front matter says what they are for.
//!
//! They come in two stages. Names and descriptions are in every prompt; the text is read when a model asks for it. They
//! stand in `agent/`, so no tool writes them; a home without that folder has those that are compiled in.

mod front;
mod install;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::beneath;
use crate::child::PATH;
use crate::template;
use crate::text::one_line;
pub use install::{install, remove};

/// The most skills that are looked at.
const MOST: usize = 100;
/// The most bytes of a description, by the format.
const LONGEST_DESCRIPTION: usize = 1024;

/// Where skills are, and what their commands would have.
#[derive(Clone, Debug)]
pub struct Skills {
    /// The folder that bantam obeys.
    agent_dir: PathBuf,
    /// The names of the variables that commands get.
    variables: Vec<String>,
}

/// A skill.
#[derive(Clone, Debug, PartialEq)]
pub struct Skill {
    /// Its folder's name.
    pub name: String,
    pub description: String,
    /// Where its other files are; `None` for one that is compiled in.
    pub dir: Option<PathBuf>,
    /// Its text is in every prompt.
    pub always: bool,
    /// Only people call for it: models are not told of it.
    pub hidden: bool,
    /// What it requires and is not there, in words: `the program gh`.
    pub missing: Vec<String>,
    /// Without the front matter.
    pub text: String,
}

impl Skill {
    /// Whether models may use it.
    pub fn is_offered(&self) -> bool {
        !self.hidden && self.missing.is_empty()
    }

    /// The whole of it, for a model.
    pub fn prompt_text(&self) -> String {
        let place = self.dir.as_ref().map_or(String::new(), |dir| {
            format!(" Its files are in {}: they can be read and run there, and not changed.", dir.display())
        });
        format!("[The skill {}.{place}]\n\n{}", self.name, self.text.trim())
    }
}

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// In the order of their names.
    pub skills: Vec<Skill>,
    /// One sentence for each that could not be read, or says something that is not right.
    pub problems: Vec<String>,
}

impl Found {
    /// The skill called `name`.
    pub fn named(&self, name: &str) -> Option<&Skill> {
        self.skills.iter().find(|skill| skill.name == name.trim())
    }
}

impl Skills {
    /// `variables`: the names of those that commands get.
    pub fn new(agent_dir: PathBuf, variables: Vec<String>) -> Self {
        Self { agent_dir, variables }
    }

    /// The folder that holds them.
    pub fn dir(&self) -> PathBuf {
        self.agent_dir.join("skills")
    }

    /// All there are, read anew. What is broken is left out and reported.
    pub fn all(&self) -> Found {
        let mut found = Found::default();
        if self.agent_dir.exists() {
            let entries = fs_err::read_dir(self.dir()).into_iter().flatten().flatten();
            let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
            names.retain(|name| !name.starts_with('.'));
            names.sort_unstable();
            if names.len() > MOST {
                found.problems.push(format!("there are {} skills: the first {MOST} are used", names.len()));
                names.truncate(MOST);
            }
            for name in names {
                let path = format!("skills/{name}/SKILL.md");
                match beneath::read_untrusted(&self.agent_dir, &path) {
                    Ok(Some(text)) => self.add(&mut found, name.clone(), Some(self.dir().join(name)), &text),
                    // A file beside the folders, or a folder of something else.
                    Ok(None) => {}
                    Err(e) if e.message.contains("not a directory") => {}
                    Err(e) => found.problems.push(format!("{}/{path}: {e}", self.agent_dir.display())),
                }
            }
        } else {
            for (path, text) in template::below("agent/skills") {
                if let Some(name) = path.strip_suffix("/SKILL.md") {
                    self.add(&mut found, name.to_owned(), None, text);
                }
            }
        }
        found
    }

    /// A message that calls for a skill by `/NAME`, with that skill's text before what the user says; `None` for any other
    /// message.
    pub fn called(&self, message: &str) -> Option<String> {
        let said = message.trim().strip_prefix('/')?;
        let (name, rest) = said.split_once(char::is_whitespace).unwrap_or((said, ""));
        if !is_a_name(name) {
            return None;
        }
        let found = self.all();
        let skill = found.named(name)?;
        Some(
            format!("{}\n\n[The user calls for this skill]\n\n{}", skill.prompt_text(), rest.trim())
                .trim_end()
                .to_owned(),
        )
    }

    fn add(&self, found: &mut Found, name: String, dir: Option<PathBuf>, text: &str) {
        let (fields, body) = front::split(text);
        let mut wrong = |what: &str| found.problems.push(format!("the skill {}: {what}", one_line(&name, 64)));
        let text_of = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or_default().trim().to_owned();
        if !is_a_name(&name) {
            return wrong("its folder's name has to be lower-case letters, digits and single hyphens");
        }
        let called = text_of("name");
        if !called.is_empty() && called != name {
            wrong(&format!("it calls itself \"{}\"; its folder's name counts", one_line(&called, 64)));
        }
        let mut description = one_line(&text_of("description"), LONGEST_DESCRIPTION);
        if description.is_empty() {
            wrong("SKILL.md has no description in its front matter; its first line stands for it");
            let first = body.lines().map(|line| line.trim_start_matches('#').trim()).find(|line| !line.is_empty());
            description = one_line(first.unwrap_or("(no description)"), 200);
        }
        let skill = Skill {
            description,
            dir,
            always: is_true(&fields, "always"),
            hidden: is_true(&fields, "disable-model-invocation"),
            missing: self.missing(&fields),
            text: body.to_owned(),
            name,
        };
        found.skills.push(skill);
    }

    /// What of a skill's requirements is not there. They stand under `requires`, or under that in `metadata`, there also
    /// in a map of the agent that it was written for: `{"bins": [..], "anyBins": [..], "env": [..]}`, and `os` beside it.
    fn missing(&self, fields: &Map<String, Value>) -> Vec<String> {
        let mut places: Vec<&Map<String, Value>> = vec![fields];
        if let Some(metadata) = fields.get("metadata").and_then(Value::as_object) {
            places.push(metadata);
            places.extend(metadata.values().filter_map(Value::as_object));
        }
        let mut missing = Vec::new();
        for place in places {
            let systems = words(place.get("os"));
            if !systems.is_empty() && !systems.iter().any(|os| os == "linux") {
                missing.push(format!("another system ({})", systems.join(", ")));
            }
            let Some(requires) = place.get("requires") else { continue };
            let of = |key: &str| words(requires.get(key));
            // A plain list means programs.
            let programs = if requires.is_object() { of("bins") } else { words(Some(requires)) };
            missing.extend(programs.iter().filter(|p| !is_program(p)).map(|p| format!("the program {p}")));
            let any = of("anyBins");
            if !any.is_empty() && !any.iter().any(|p| is_program(p)) {
                missing.push(format!("one of the programs {}", any.join(", ")));
            }
            let unset = of("env").into_iter().filter(|name| !self.variables.contains(name));
            missing.extend(unset.map(|name| format!("the variable {name} (tools.exec.pass_env hands it on)")));
        }
        // Somebody else wrote them.
        for missing in &mut missing {
            *missing = one_line(missing, 100);
        }
        missing.sort_unstable();
        missing.dedup();
        missing
    }
}

fn is_true(fields: &Map<String, Value>, key: &str) -> bool {
    match fields.get(key) {
        Some(Value::Bool(value)) => *value,
        Some(Value::String(text)) => text == "true",
        _ => false,
    }
}

/// The words of a list, or of a text that names them with commas or spaces between.
fn words(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Some(Value::String(text)) => {
            text.split([',', ' ']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether commands find it.
fn is_program(name: &str) -> bool {
    !name.contains('/') && PATH.split(':').any(|dir| Path::new(dir).join(name).is_file())
}

/// By the format: 1 to 64 lower-case letters, digits and hyphens, none of these at an end or twice in a row.
fn is_a_name(name: &str) -> bool {
    let fits = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= 64 && name.split('-').all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent folder with skills of these names and texts, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn of(test: &str, skills: &[(&str, &str)]) -> Self {
            let dir = std::env::temp_dir().join(format!("bantam-skills-{test}-{}", std::process::id()));
            for (name, text) in skills {
                fs_err::create_dir_all(dir.join("skills").join(name)).unwrap();
                fs_err::write(dir.join("skills").join(name).join("SKILL.md"), text).unwrap();
            }
            Self(dir)
        }

        fn all(&self) -> Found {
            Skills::new(self.0.clone(), vec!["GIVEN".into()]).all()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs_err::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn skills_are_read_in_order_and_what_is_wrong_with_them_is_told() {
        let folder = Folder::of(
            "read",
            &[
                ("b-2", "---\nname: b-2\ndescription: Second.\nalways: true\n---\nText.\n"),
                ("a", "---\nname: other\ndescription: First.\n---\n"),
                ("Wrong_Name", "---\ndescription: x\n---\n"),
                ("plain", "# Only a title\ntext"),
                ("hidden", "---\ndescription: Quiet.\ndisable-model-invocation: true\n---\nx"),
            ],
        );
        fs_err::write(folder.0.join("skills/README.md"), "no skill").unwrap();
        fs_err::create_dir(folder.0.join("skills/empty")).unwrap();
        let found = folder.all();
        let names: Vec<&str> = found.skills.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["a", "b-2", "hidden", "plain"]);
        assert!(found.named("b-2").unwrap().always && found.named("hidden").unwrap().hidden);
        assert_eq!(found.named("plain").unwrap().description, "Only a title");
        assert_eq!(found.problems.len(), 3, "{:?}", found.problems);
        assert!(found.named("b-2").unwrap().prompt_text().ends_with("\n\nText."));
        let prompt_text = found.named("b-2").unwrap().prompt_text();
        assert!(prompt_text.contains("skills/b-2:"), "{prompt_text}");

        let skills = Skills::new(folder.0.clone(), Vec::new());
        assert_eq!(
            skills.called(" /b-2  do it\n").unwrap(),
            format!("{prompt_text}\n\n[The user calls for this skill]\n\ndo it")
        );
        assert!(skills.called("/hidden").unwrap().ends_with("this skill]"));
        for message in ["/b-3 do it", "/etc/hosts is gone", "b-2", "/", "/b-2/x", "do /b-2"] {
            assert_eq!(skills.called(message), None, "{message}");
        }
    }

    #[test]
    fn requirements_are_found_wherever_they_are_written() {
        let folder = Folder::of(
            "requires",
            &[
                ("a", "---\ndescription: x\nrequires:\n  bins: [sh, no-such-program]\n  env:\n    - GIVEN\n---\n"),
                (
                    "b",
                    "---\ndescription: x\nmetadata: {\"nanobot\":{\"emoji\":\"x\",\"requires\":{\"env\":[\"NOT_GIVEN\"]}}}\n---\n",
                ),
                ("c", "---\ndescription: x\nmetadata:\n  openclaw:\n    os: [darwin]\n---\n"),
                (
                    "d",
                    "---\ndescription: x\nmetadata:\n  openclaw:\n    requires:\n      anyBins: [no-such, sh]\n---\n",
                ),
                ("e", "---\ndescription: x\nrequires: sh, no-such\n---\n"),
            ],
        );
        let found = folder.all();
        assert!(found.problems.is_empty(), "{:?}", found.problems);
        let missing = |name: &str| found.named(name).unwrap().missing.join("; ");
        assert_eq!(missing("a"), "the program no-such-program");
        assert_eq!(missing("b"), "the variable NOT_GIVEN (tools.exec.pass_env hands it on)");
        assert_eq!(missing("c"), "another system (darwin)");
        assert_eq!(missing("d"), "");
        assert_eq!(missing("e"), "the program no-such");
        assert!(found.named("d").unwrap().is_offered() && !found.named("e").unwrap().is_offered());
    }

    #[test]
    fn a_home_without_the_folder_has_those_that_are_compiled_in() {
        let found = Skills::new("/no/such/folder".into(), Vec::new()).all();
        assert!(found.skills.len() >= 2 && found.problems.is_empty());
        assert!(found.skills.iter().all(|skill| skill.dir.is_none() && skill.is_offered()));
    }

    #[test]
    fn names_are_those_of_the_format() {
        let long = "a".repeat(65);
        for (name, fits) in
            [("a", true), ("a-1-b", true), ("", false), ("-a", false), ("a--b", false), ("A", false), ("ä", false)]
        {
            assert_eq!(is_a_name(name), fits, "{name}");
        }
        assert!(!is_a_name(&long));
    }
}
