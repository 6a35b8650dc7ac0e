//! The tools for skills: `skill` reads one, `run_skill` gives it to a subagent with a task.

use super::Takes::Text;
use super::function::Function;
use super::{Risk, Task, ToolOutput, ToolSpec, text};
use crate::error::{Error, Result};
use crate::skills::{Skill, Skills};
use crate::text::one_line;

/// The name of the tool that reads a skill.
pub(crate) const READ_SKILL: &str = "skill";

pub(crate) fn read_skill(skills: Skills) -> Function {
    let description = "Read a skill before you do what it is for.";
    let spec = ToolSpec::built_in(
        READ_SKILL,
        Risk::Safe,
        description,
        &[("name", Text, "")],
        1,
    );
    Function::of(spec, &["name"], move |args, _| {
        Ok(ToolOutput::text(
            find(&skills, text(args, "name"))?.prompt_text(),
        ))
    })
}

pub(crate) fn run_skill(skills: Skills) -> Function {
    let parameters = [("name", Text, ""), ("task", Text, "")];
    let description =
        "Have a subagent, which does not see this conversation, do a task with a skill.";
    let spec = ToolSpec::built_in("run_skill", Risk::Runs, description, &parameters, 2);
    let run = Function::of(spec, &["name", "task"], move |args, turn| {
        let (skill, task) = (find(&skills, text(args, "name"))?, text(args, "task"));
        let text = format!("{task}\n\nFollow this skill:\n\n{}", skill.prompt_text());
        (turn.run_task)(&Task {
            label: "subagent".to_owned(),
            text,
        })
    });
    run.always_parallel()
}

/// The skill of that name, if models may use it.
fn find(skills: &Skills, name: &str) -> Result<Skill> {
    let found = skills.all();
    let Some(skill) = found
        .named(name)
        .filter(|skill| !skill.hidden && !skill.disabled)
    else {
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
            one_line(name, 64)
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
