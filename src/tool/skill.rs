//! The tool `skill`, which reads a skill.

use std::sync::Arc;

use super::{Function, Risk, ToolOutput, ToolSpec, Workshop, text};
use crate::error::{Error, Result};
use crate::skills::{Skill, Skills};
use crate::text::foreign_line;

pub(crate) const READ_SKILL: &str = "skill";

pub(crate) fn skill_tool(workshop: &Arc<Workshop>) -> Function {
    let spec = ToolSpec::built_in(
        READ_SKILL,
        Risk::Safe,
        "Read a skill.",
        r#"{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}"#,
    );
    workshop.tool(spec, &["name"], |workshop, args, _| {
        let skill = find_skill(workshop, text(args, "name"))?;
        Ok(ToolOutput::text(skill.prompt_text()))
    })
}

/// Finds a skill that models may use, by name.
pub(super) fn find_skill(workshop: &Workshop, name: &str) -> Result<Skill> {
    let variables = workshop.config.tools.exec.pass_env.clone();
    let found = Skills::new(workshop.home.agent(), variables).all();
    let Some(skill) = found.named(name).filter(|skill| !skill.hidden) else {
        let names: Vec<&str> = found
            .skills
            .iter()
            .filter(|skill| skill.is_offered())
            .map(|skill| skill.name.as_str())
            .collect();
        let names = if names.is_empty() {
            "(none)".to_owned()
        } else {
            names.join(", ")
        };
        return Err(Error::failed(format!(
            "there is no skill called \"{}\"; the skills are: {names}",
            foreign_line(name, 300)
        )));
    };
    if !skill.missing.is_empty() {
        return Err(Error::failed(format!(
            "the skill {} requires {}",
            skill.name,
            skill.missing.join(", ")
        )));
    }
    Ok(skill.clone())
}
