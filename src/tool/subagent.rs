//! The tools that give a task to another agent: `subagent` waits for its report, `spawn` does not.

use super::Takes::Text;
use super::function::Function;
use super::{Risk, Task, ToolOutput, ToolSpec, text};
use crate::error::Error;
use crate::text::one_line;

/// The longest label of a background task, in characters.
const MAX_LABEL: usize = 60;

pub(crate) fn subagent() -> Function {
    let description = "Give a task to a subagent and wait for its report. It does not see this conversation: say all it \
                       needs. Several in one reply run in parallel.";
    let spec = ToolSpec::built_in(
        "subagent",
        Risk::Runs,
        description,
        &[("task", Text, "")],
        1,
    );
    let run = Function::of(spec, &["task"], |args, turn| {
        (turn.run_task)(&Task {
            label: "subagent".to_owned(),
            text: text(args, "task").to_owned(),
        })
    });
    run.always_parallel()
}

pub(crate) fn spawn() -> Function {
    let parameters = [("task", Text, ""), ("label", Text, "")];
    let description = "Start a long task in the background; its report comes later as a message. It does not see this \
                       conversation: say all it needs.";
    let spec = ToolSpec::built_in("spawn", Risk::Runs, description, &parameters, 1);
    Function::of(spec, &["task"], |args, turn| {
        let (task, label) = (text(args, "task"), text(args, "label").trim());
        if task.trim().is_empty() {
            return Err(Error::failed("task is empty"));
        }
        let label = one_line(
            if label.is_empty() { task.trim() } else { label },
            MAX_LABEL,
        );
        let started = format!(
            "Started the background task \"{label}\". Its report arrives as a separate message: do not wait for it."
        );
        (turn.start_task)(Task {
            label,
            text: task.to_owned(),
        })?;
        Ok(ToolOutput::text(started))
    })
}
