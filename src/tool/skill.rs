//! The tool `skill`, which reads a skill.

use super::{Function, Risk, ToolOutput, ToolSpec, text};
use crate::error::{Error, Result};
use crate::skills::Skills;
use crate::text::foreign_line;

pub(crate) const READ_SKILL: &str = "skill";

pub(crate) fn skill_tool(skills: Skills) -> Function {
    let spec = ToolSpec::built_in(
        READ_SKILL,
        Risk::Safe,
        "Read a skill.",
        r#"{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}"#,
    );
    Function::built_in(spec, &["name"], move |args, _| {
        read(&skills, text(args, "name")).map(ToolOutput::text)
    })
}

/// Makes `skill` for programs whose prompts may not list the skills; the description does.
pub(crate) fn listing_skill_tool(skills: Skills) -> Function {
    let found = skills.all();
    let offered = found.skills.iter().filter(|skill| skill.is_offered());
    let list = offered.map(|skill| format!("\n- {}: {}", skill.name, skill.description));
    let list = list.collect::<Vec<_>>().concat();
    let mut tool = skill_tool(skills);
    tool.spec.description = format!("Read a skill:{list}").into();
    tool
}

/// Returns the text of a skill that models may use.
fn read(skills: &Skills, name: &str) -> Result<String> {
    let found = skills.all();
    let Some(skill) = found.named(name).filter(|skill| !skill.hidden) else {
        let offered = found.skills.iter().filter(|skill| skill.is_offered());
        let names: Vec<&str> = offered.map(|skill| skill.name.as_str()).collect();
        let (name, names) = (foreign_line(name, 300), names.join(", "));
        let what = format!("there is no skill called \"{name}\"; the skills are: {names}");
        return Err(Error::failed(what));
    };
    if !skill.missing.is_empty() {
        let missing = skill.missing.join(", ");
        let what = format!("the skill {} requires {missing}", skill.name);
        return Err(Error::failed(what));
    }
    Ok(skill.prompt_text())
}
