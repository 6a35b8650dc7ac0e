//! Skills in the Agent Skills format (agentskills.io): folders with a `SKILL.md`, whose front matter describes them.
//!
//! Every prompt lists names and descriptions; a model reads the text when it needs it. Skills are part of `agent/`, which is
//! read-only for tools; a home without that folder has the built-in skills.

mod front;
mod install;
pub(crate) mod source;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::access;
use crate::child::PATH;
use crate::error::{Error, Result};
use crate::template;
use crate::text::to_single_line;
pub(crate) use install::{Candidate, candidates, install, remove, unknown};

/// Maximum length of a description in the format.
const MAX_DESCRIPTION: usize = 1024;
/// File names of a skill, the usual one first.
const FILES: [&str; 2] = ["SKILL.md", "skill.md"];
/// Hint for an invalid name.
const NAME_RULE: &str = "rename its folder: lower-case letters, digits and single hyphens";

/// Location of skills, and the environment of their commands.
#[derive(Clone, Debug)]
pub(crate) struct Skills {
    agent_dir: PathBuf,
    /// Names of environment variables.
    variables: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Skill {
    /// Name of its folder.
    pub(crate) name: String,
    pub(crate) description: String,
    /// Its folder; `None` for a built-in skill.
    pub(crate) dir: Option<PathBuf>,
    /// Whether every prompt includes its text.
    pub(crate) always: bool,
    /// Whether only people can invoke it.
    pub(crate) hidden: bool,
    /// Missing requirements as text, such as `the program gh`.
    pub(crate) missing: Vec<String>,
    /// Text without the front matter.
    pub(crate) text: String,
}

impl Skill {
    /// Whether models may use it.
    pub(crate) fn is_offered(&self) -> bool {
        !self.hidden && self.missing.is_empty()
    }

    pub(crate) fn prompt_text(&self) -> String {
        let files = self.dir.as_ref().map_or(String::new(), |dir| {
            format!(
                " Its files are in {}: you can read and run them there, but not change them.",
                dir.display()
            )
        });
        format!("[The skill {}.{files}]\n\n{}", self.name, self.text.trim())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Skills, sorted by name.
    pub(crate) skills: Vec<Skill>,
    /// One sentence for each broken or doubtful skill.
    pub(crate) problems: Vec<String>,
    /// Error of an existing skill or folder that cannot be read.
    pub(crate) unreadable: Option<Error>,
}

impl Found {
    pub(crate) fn named(&self, name: &str) -> Option<&Skill> {
        self.skills.iter().find(|skill| skill.name == name.trim())
    }
}

impl Skills {
    pub(crate) fn new(agent_dir: PathBuf, variables: Vec<String>) -> Self {
        Self {
            agent_dir,
            variables,
        }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.agent_dir.join("skills")
    }

    /// Reads all skills. Broken skills are left out and reported.
    pub(crate) fn all(&self) -> Found {
        let mut found = Found::default();
        let is_there =
            |path: &Path| fs_err::symlink_metadata(path).is_ok_and(|meta| !meta.is_symlink());
        if matches!(fs_err::symlink_metadata(&self.agent_dir), Err(e) if e.kind() == ErrorKind::NotFound)
        {
            let built_in = template::below("agent/skills").filter_map(|(path, text)| {
                let skill = self.read(path.strip_suffix("/SKILL.md")?, text).ok()?;
                Some(Skill { dir: None, ..skill })
            });
            found.skills = built_in.collect();
            return found;
        }
        let entries = match fs_err::read_dir(self.dir()) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                found.unreadable = Some(Error::failed(e.to_string()));
                None
            }
            entries => entries.ok(),
        };
        let entries = entries.into_iter().flatten().flatten();
        // Includes links, which are reported as broken.
        let folders = entries.filter(|entry| !entry.file_type().is_ok_and(|kind| kind.is_file()));
        let mut names: Vec<String> = folders
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.retain(|name| !name.starts_with('.'));
        names.sort_unstable();
        for name in names {
            let file = file_in(&self.dir().join(&name)).unwrap_or(FILES[0]);
            let path = format!("skills/{name}/{file}");
            match access::read_untrusted(&self.agent_dir, &path) {
                Ok(Some(text)) => match self.read(&name, &text) {
                    Ok(skill) => found.skills.push(skill),
                    Err(e) => {
                        let name = to_single_line(&name, 64);
                        found.problems.push(format!("skill {name}: {}", e.message));
                    }
                },
                Ok(None) => {}
                Err(e) => {
                    let e = e.doing(self.agent_dir.join(&path).display());
                    found.problems.push(e.message.clone());
                    if is_there(&self.dir().join(&name)) && is_there(&self.agent_dir.join(&path)) {
                        found.unreadable = Some(e);
                    }
                }
            }
        }
        found
    }

    /// Returns the name in a message like `/NAME ...` without a skill of that name.
    pub(crate) fn unknown_command(&self, message: &str) -> Option<String> {
        let command = message.trim().strip_prefix('/')?;
        let name = command.split_whitespace().next()?;
        // Telegram's commands have no other characters; a path has.
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let is_known = self.all().named(&name.to_lowercase()).is_some();
        (name.chars().all(is_part) && !is_known).then(|| name.to_owned())
    }

    /// Puts a skill's text before a message that invokes it by `/NAME ...`; `None` for other messages.
    pub(crate) fn expand(&self, message: &str) -> Option<String> {
        let command = message.trim().strip_prefix('/')?;
        let (name, rest) = command
            .split_once(char::is_whitespace)
            .unwrap_or((command, ""));
        let text = self.all().named(name)?.prompt_text();
        Some(
            format!("{text}\n\n[The user invokes this skill]\n\n{}", rest.trim())
                .trim_end()
                .to_owned(),
        )
    }

    fn read(&self, name: &str, text: &str) -> Result<Skill> {
        let (fields, body) = front::split(text)?;
        if !is_valid_name(name) {
            return Err(Error::failed(NAME_RULE));
        }
        Ok(Skill {
            name: name.to_owned(),
            description: description(&fields, body, MAX_DESCRIPTION),
            dir: Some(self.dir().join(name)),
            always: is_true(&fields, "always"),
            hidden: is_true(&fields, "disable-model-invocation"),
            missing: self.missing(&fields),
            text: body.to_owned(),
        })
    }

    /// Returns the unmet requirements in `requires` (`{"bins": [..], "anyBins": [..], "env": [..]}`), which is at the top, in
    /// `metadata`, or in `metadata` under the name of another agent.
    fn missing(&self, fields: &Map<String, Value>) -> Vec<String> {
        let metadata = fields.get("metadata").and_then(Value::as_object);
        let agents = metadata
            .into_iter()
            .flat_map(|metadata| metadata.values().filter_map(Value::as_object));
        let mut missing = BTreeSet::new();
        for map in [Some(fields), metadata].into_iter().flatten().chain(agents) {
            let Some(requires) = map.get("requires") else {
                continue;
            };
            let of = |key: &str| words(requires.get(key));
            let programs = of("bins").into_iter().filter(|name| !is_program(name));
            missing.extend(programs.map(|name| format!("the program {name}")));
            let any = of("anyBins");
            if !any.is_empty() && !any.iter().any(|name| is_program(name)) {
                missing.insert(format!("one of the programs {}", any.join(", ")));
            }
            let unset = of("env")
                .into_iter()
                .filter(|name| !self.variables.contains(name));
            missing.extend(
                unset.map(|name| format!("the variable {name} (add it to tools.exec.pass_env)")),
            );
        }
        let lines = missing.iter().map(|what| to_single_line(what, 100));
        lines.collect()
    }
}

fn is_true(fields: &Map<String, Value>, key: &str) -> bool {
    fields
        .get(key)
        .is_some_and(|value| *value == true || *value == "true")
}

/// Returns the words of a list, or of a string separated by commas or spaces.
fn words(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::Array(list)) => list
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        Some(Value::String(text)) => text
            .split([',', ' '])
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect(),
        _ => Vec::new(),
    }
}

/// Whether commands find the program.
fn is_program(name: &str) -> bool {
    !name.contains('/')
        && PATH
            .split(':')
            .any(|dir| Path::new(dir).join(name).is_file())
}

/// Returns the name of a skill's file in its folder, if it exists.
fn file_in(folder: &Path) -> Option<&'static str> {
    FILES
        .into_iter()
        .find(|file| folder.join(file).symlink_metadata().is_ok())
}

/// Whether a name follows the format: 1 to 64 lower-case letters of any language, digits and single inner hyphens.
fn is_valid_name(name: &str) -> bool {
    let is_lower = |c: char| c.to_lowercase().eq([c]);
    let is_valid =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() && is_lower(c));
    name.chars().count() <= 64 && name.split('-').all(is_valid)
}

/// Returns the description of a skill, or else the first line of its text, in up to `max` characters.
fn description(fields: &Map<String, Value>, body: &str, max: usize) -> String {
    let given = fields.get("description").and_then(Value::as_str);
    let lines = body.lines().map(|line| line.trim_start_matches('#'));
    let mut lines = given.into_iter().chain(lines);
    let first = lines.find(|line| !line.trim().is_empty());
    to_single_line(first.unwrap_or("(no description)"), max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    /// Creates an agent folder with these skills.
    fn agent_dir(skills: &[(&str, &str)]) -> TestDir {
        let dir = TestDir::new();
        for (name, text) in skills {
            fs_err::create_dir_all(dir.join("skills").join(name)).unwrap();
            fs_err::write(dir.join("skills").join(name).join("SKILL.md"), text).unwrap();
        }
        dir
    }

    fn all(agent_dir: &Path) -> Found {
        Skills::new(agent_dir.to_owned(), vec!["GIVEN".into()]).all()
    }

    #[test]
    fn skills_are_ordered_and_errors_reported() {
        let folder = agent_dir(&[
            (
                "b-2",
                "---\nname: b-2\ndescription: Second.\nalways: true\n---\nText.\n",
            ),
            ("a", "---\nname: other\ndescription: First.\n---\n"),
            ("Wrong_Name", "---\ndescription: x\n---\n"),
            ("plain", "# Only a title\ntext"),
            (
                "hidden",
                "---\ndescription: Quiet.\ndisable-model-invocation: true\n---\nx",
            ),
        ]);
        fs_err::write(folder.join("skills/README.md"), "no skill").unwrap();
        fs_err::create_dir(folder.join("skills/empty")).unwrap();
        let found = all(&folder);
        let names: Vec<&str> = found.skills.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["a", "b-2", "hidden", "plain"]);
        assert!(found.named("b-2").unwrap().always && found.named("hidden").unwrap().hidden);
        assert_eq!(found.named("plain").unwrap().description, "Only a title");
        assert_eq!(found.problems.len(), 1, "{:?}", found.problems);
        assert!(
            found
                .named("b-2")
                .unwrap()
                .prompt_text()
                .ends_with("\n\nText.")
        );
        let prompt_text = found.named("b-2").unwrap().prompt_text();
        assert!(prompt_text.contains("skills/b-2:"), "{prompt_text}");

        let skills = Skills::new(folder.to_path_buf(), Vec::new());
        assert_eq!(
            skills.expand(" /b-2  do it\n").unwrap(),
            format!("{prompt_text}\n\n[The user invokes this skill]\n\ndo it")
        );
        assert!(skills.expand("/hidden").unwrap().ends_with("this skill]"));
        for message in [
            "/b-3 do it",
            "/etc/hosts is gone",
            "b-2",
            "/",
            "/b-2/x",
            "do /b-2",
        ] {
            assert_eq!(skills.expand(message), None, "{message}");
        }
    }

    #[test]
    fn requirements_are_found_wherever_they_are_written() {
        let folder = agent_dir(&[
            (
                "a",
                "---\ndescription: x\nrequires:\n  bins: [sh, no-such-program]\n  env:\n    - GIVEN\n---\n",
            ),
            (
                "b",
                "---\ndescription: x\nmetadata: {\"nanobot\":{\"emoji\":\"x\",\"requires\":{\"env\":[\"NOT_GIVEN\"]}}}\n---\n",
            ),
            (
                "d",
                "---\ndescription: x\nmetadata:\n  openclaw:\n    requires:\n      anyBins: [no-such, sh]\n---\n",
            ),
            (
                "f",
                "---\ndescription: x\nmetadata:\n  {\n    \"openclaw\":\n      {\n        \"requires\": { \"bins\": [\"no-such\"] },\n      },\n  }\n---\n",
            ),
        ]);
        let found = all(&folder);
        assert!(found.problems.is_empty(), "{:?}", found.problems);
        let missing = |name: &str| found.named(name).unwrap().missing.join("; ");
        assert_eq!(missing("a"), "the program no-such-program");
        assert_eq!(
            missing("b"),
            "the variable NOT_GIVEN (add it to tools.exec.pass_env)"
        );
        assert_eq!(missing("d"), "");
        assert_eq!(missing("f"), "the program no-such");
        assert!(found.named("d").unwrap().is_offered() && !found.named("f").unwrap().is_offered());
    }

    #[test]
    fn a_home_without_the_folder_has_those_that_are_compiled_in() {
        let found = Skills::new("/no/such/folder".into(), Vec::new()).all();
        assert!(found.skills.len() >= 2 && found.problems.is_empty());
        assert!(
            found
                .skills
                .iter()
                .all(|skill| skill.dir.is_none() && skill.is_offered())
        );
        // The built-in skills equal the skills of a new home's files.
        let folder = agent_dir(&[]);
        template::write("agent", &folder).unwrap();
        let mut written = all(&folder);
        assert!(written.problems.is_empty(), "{:?}", written.problems);
        for skill in &mut written.skills {
            skill.dir = None;
        }
        assert_eq!(found.skills, written.skills);
    }
}
