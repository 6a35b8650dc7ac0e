//! The tools for skills: `skill` reads one, `run_skill` gives it to a subagent with a task.

use serde_json::Value;

use super::{Risk, Task, Tool, ToolOutput, ToolSpec, Turn, text};
use crate::error::{Error, Result};
use crate::skills::{Skill, Skills};
use crate::text::one_line;

pub(crate) struct ReadSkill {
    spec: ToolSpec,
    skills: Skills,
}

impl ReadSkill {
    pub(crate) const NAME: &str = "skill";

    pub(crate) fn new(skills: Skills) -> Self {
        let schema = r#"{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}"#;
        let description = "Read the full text of a skill. Do this before you do what the skill is for.";
        Self { spec: ToolSpec::built_in(Self::NAME, Risk::Safe, description, schema), skills }
    }
}

impl Tool for ReadSkill {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        one_line(text(args, "name"), 64)
    }

    fn call(&self, args: &Value, _: &Turn) -> Result<ToolOutput> {
        Ok(ToolOutput::text(find(&self.skills, text(args, "name"))?.prompt_text()))
    }
}

pub(crate) struct RunSkill {
    spec: ToolSpec,
    skills: Skills,
}

impl RunSkill {
    pub(crate) fn new(skills: Skills) -> Self {
        let schema = concat!(
            r#"{"type":"object","properties":{"name":{"type":"string"},"task":{"type":"string"}},"#,
            r#""required":["name","task"]}"#
        );
        let description = "Have a subagent do a task with a skill, and wait for its report. It does not see this \
                           conversation.";
        Self { spec: ToolSpec::built_in("run_skill", Risk::Runs, description, schema), skills }
    }
}

impl Tool for RunSkill {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn is_parallel(&self, _: &Value) -> bool {
        true
    }

    fn summary(&self, args: &Value) -> String {
        one_line(&format!("{}: {}", text(args, "name"), text(args, "task")), 80)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let skill = find(&self.skills, text(args, "name"))?;
        let task = text(args, "task");
        (turn.run_task)(&Task { text: format!("{task}\n\nFollow this skill:\n\n{}", skill.prompt_text()) })
    }
}

/// The skill of that name, if models may use it.
fn find(skills: &Skills, name: &str) -> Result<Skill> {
    let found = skills.all();
    let Some(skill) = found.named(name).filter(|skill| !skill.hidden) else {
        let names: Vec<&str> =
            found.skills.iter().filter(|skill| skill.is_offered()).map(|skill| skill.name.as_str()).collect();
        let names = if names.is_empty() { "(none)".to_owned() } else { names.join(", ") };
        return Err(Error::failed(format!(
            "there is no skill called \"{}\"; the skills are: {names}",
            one_line(name, 64)
        )));
    };
    if !skill.missing.is_empty() {
        return Err(Error::failed(format!("the skill {} requires {}", skill.name, skill.missing.join(", "))));
    }
    Ok(skill.clone())
}
