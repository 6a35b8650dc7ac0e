//! The tool that gives a task to another agent.

use serde_json::Value;

use super::built_in::{Alone, InWorkshop};
use super::skill::find_skill;
use super::{BuiltIn, JOB, Risk, Task, ToolOutput, ToolSpec, Turn, text};
use crate::error::{Error, Result};
use crate::skills::Skill;
use crate::text::one_line;

/// The longest label of a task, in characters.
const MAX_LABEL: usize = 60;

const SPEC: ToolSpec = ToolSpec::built_in(
    "subagent",
    Risk::Runs,
    "Give a task to a subagent and wait for its report. It does not see this conversation: say all it needs. Several in one \
     reply run in parallel.",
    schema! {
        required(task)
        task: Text();
        skill: Text();
        background: Flag() "Do not wait; the report is a message";
    },
);
const SHOWN: &[&str] = &["task", "skill"];

pub(crate) static SUBAGENT: BuiltIn =
    BuiltIn::<InWorkshop>::new(SPEC, SHOWN, |workshop, args, turn| {
        give_task(args, turn, &|name| find_skill(workshop, name))
    })
    .parallel();

/// The same where there is no home, and so no skill.
pub(crate) static SUBAGENT_ALONE: BuiltIn<Alone> =
    BuiltIn::<Alone>::new(SPEC, SHOWN, |args, turn| {
        give_task(args, turn, &|_| {
            Err(Error::failed("there are no skills here"))
        })
    })
    .parallel();

fn give_task(
    args: &Value,
    turn: &Turn,
    find: &dyn Fn(&str) -> Result<Skill>,
) -> Result<ToolOutput> {
    let task = text(args, "task").trim();
    if task.is_empty() {
        return Err(Error::failed("task is empty"));
    }
    let label = one_line(task, MAX_LABEL);
    let text = match text(args, "skill") {
        "" => task.to_owned(),
        name => {
            let skill = find(name)?;
            format!("{task}\n\nFollow this skill:\n\n{}", skill.prompt_text())
        }
    };
    if args["background"] != true {
        return (turn.run_task)(&Task { label, text });
    }
    if turn.origin.channel == JOB {
        return Err(Error::failed(
            "a job has no background: give the task without it, and wait",
        ));
    }
    let started = format!(
        "Started the background task \"{label}\". Its report arrives as a separate message: do not wait for it."
    );
    (turn.start_task)(Task { label, text })?;
    Ok(ToolOutput::text(started))
}
