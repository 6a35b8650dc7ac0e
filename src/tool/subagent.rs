//! The tools that give a task to another agent: `subagent` waits for its report, `spawn` does not.

use serde_json::Value;

use super::built_in::Alone;
use super::{BuiltIn, Risk, Task, ToolOutput, ToolSpec, Turn, text};
use crate::error::{Error, Result};
use crate::text::one_line;

/// The longest label of a background task, in characters.
const MAX_LABEL: usize = 60;

pub(crate) static SUBAGENT: BuiltIn<Alone> = BuiltIn {
    adapt: None,
    spec: ToolSpec::built_in(
        "subagent",
        Risk::Runs,
        "Give a task to a subagent and wait for its report. It does not see this conversation: say all it needs. Several in one \
         reply run in parallel.",
        schema! { required(task) task: Text(); },
    ),
    shown: &["task"],
    always_parallel: true,
    is_safe: |_| false,
    replaces: None,
    run: |args, turn| {
        (turn.run_task)(&Task {
            label: "subagent".to_owned(),
            text: text(args, "task").to_owned(),
        })
    },
};

pub(crate) static SPAWN: BuiltIn<Alone> = BuiltIn::new(
    ToolSpec::built_in(
        "spawn",
        Risk::Runs,
        "Start a long task in the background; its report comes later as a message. It does not see this conversation: say all \
         it needs.",
        schema! {
            required(task)
            task: Text();
            label: Text();
        },
    ),
    &["task"],
    spawn,
);

fn spawn(args: &Value, turn: &Turn) -> Result<ToolOutput> {
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
}
