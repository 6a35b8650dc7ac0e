//! The tools for skills: the text of one, and having one done by a subagent.

use serde::Deserialize;
use serde_json::Value;

use super::{Risk, Task, Tool, ToolOutput, ToolSpec, Turn, arguments};
use crate::error::{Error, Result};
use crate::skills::{Skill, Skills};
use crate::text::one_line;

/// `skill`: the full text of one.
pub struct ReadSkill {
    spec: ToolSpec,
    skills: Skills,
}

impl ReadSkill {
    pub const NAME: &str = "skill";

    pub fn new(skills: Skills) -> Self {
        let spec = ToolSpec {
            name: Self::NAME.into(),
            description: "Read the full text of a skill. Do so before you do what it is for.".into(),
            schema: r#"{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}"#.into(),
            risk: Risk::Safe,
            source: "built in".into(),
        };
        Self { spec, skills }
    }
}

/// `run_skill`: a subagent that follows one.
pub struct RunSkill {
    spec: ToolSpec,
    skills: Skills,
}

impl RunSkill {
    pub fn new(skills: Skills) -> Self {
        let spec = ToolSpec {
            name: "run_skill".into(),
            description: "Have another agent do a task by a skill and report. It sees nothing of this conversation."
                .into(),
            schema: r#"{"type":"object","properties":{"name":{"type":"string"},"task":{"type":"string"}},"required":["name","task"]}"#
                .into(),
            risk: Risk::Runs,
            source: "built in".into(),
        };
        Self { spec, skills }
    }
}

/// The skill of that name, if models may use it.
fn offered(skills: &Skills, name: &str) -> Result<Skill> {
    let found = skills.all();
    let Some(skill) = found.named(name).filter(|skill| !skill.hidden) else {
        let names: Vec<&str> = found.skills.iter().filter(|s| s.is_offered()).map(|s| s.name.as_str()).collect();
        let there =
            if names.is_empty() { "there are none".into() } else { format!("the skills are: {}", names.join(", ")) };
        return Err(Error::failed(format!("there is no skill called \"{}\"; {there}", one_line(name, 64))));
    };
    if !skill.missing.is_empty() {
        let missing = skill.missing.join(", ");
        return Err(Error::failed(format!("the skill {} cannot be used here: it requires {missing}", skill.name)));
    }
    Ok(skill.clone())
}

#[derive(Deserialize)]
struct Args {
    name: String,
    #[serde(default)]
    task: String,
}

impl Tool for ReadSkill {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        one_line(args.get("name").and_then(Value::as_str).unwrap_or_default(), 64)
    }

    fn call(&self, args: &Value, _: &Turn) -> Result<ToolOutput> {
        let Args { name, .. } = arguments(args)?;
        Ok(ToolOutput::text(offered(&self.skills, &name)?.prompt_text()))
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
        let text = |key: &str| args.get(key).and_then(Value::as_str).unwrap_or_default();
        one_line(&format!("{}: {}", text("name"), text("task")), 80)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let Args { name, task } = arguments(args)?;
        let skill = offered(&self.skills, &name)?;
        (turn.run_task)(&Task { text: format!("{task}\n\nFollow this skill:\n\n{}", skill.prompt_text()) })
    }
}
