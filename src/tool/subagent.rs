//! The tool that gives a task to another agent.

use serde_json::Value;

use super::{CallContext, Function, Risk, Task, ToolOutput, ToolSpec, text};
use crate::error::{Error, Result};
use crate::text::to_single_line;

/// Maximum length of a task's label, in characters.
const MAX_LABEL: usize = 60;

const SPEC: ToolSpec = ToolSpec::built_in(
    "subagent",
    Risk::Runs,
    "Give a task to a subagent and wait for its report. It does not see this conversation: say all it needs. Several in one \
     reply run in parallel.",
    concat!(
        r#"{"type":"object","properties":{"task":{"type":"string"},"#,
        r#""background":{"type":"boolean","description":"Do not wait; the report is a message"}},"required":["task"]}"#
    ),
);

pub(crate) fn subagent_tool() -> Function {
    Function {
        always_parallel: true,
        ..Function::built_in(SPEC, &["task"], give_task)
    }
}

fn give_task(args: &Value, turn: &CallContext) -> Result<ToolOutput> {
    let task = text(args, "task").trim();
    if task.is_empty() {
        return Err(Error::failed("task is empty"));
    }
    let label = to_single_line(task, MAX_LABEL);
    let text = task.to_owned();
    if args["background"] != true {
        return (turn.run_task)(&Task { label, text });
    }
    let started = format!(
        "Started the background task \"{label}\". Its report arrives as a separate message: do not wait for it."
    );
    (turn.start_task)(Task { label, text })?;
    Ok(ToolOutput::text(started))
}
