//! The tools that give a task to another agent: `subagent` waits for its report, `spawn` does not.

use serde_json::Value;

use super::{Risk, Task, Tool, ToolOutput, ToolSpec, Turn, text};
use crate::error::{Error, Result};
use crate::text::one_line;

/// The longest label of a background task, in characters.
const MAX_LABEL: usize = 60;

pub(crate) struct Subagent {
    spec: ToolSpec,
}

impl Subagent {
    pub(crate) fn new() -> Self {
        let schema = r#"{"type":"object","properties":{"task":{"type":"string"}},"required":["task"]}"#;
        let description = "Give a task to a subagent and wait for its report. It has your tools but does not see this \
                           conversation: include everything it needs. Several in one reply run in parallel.";
        Self { spec: ToolSpec::built_in("subagent", Risk::Runs, description, schema) }
    }
}

impl Tool for Subagent {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn is_parallel(&self, _: &Value) -> bool {
        true
    }

    fn summary(&self, args: &Value) -> String {
        one_line(text(args, "task"), 80)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        (turn.run_task)(&Task { text: text(args, "task").to_owned() })
    }
}

pub(crate) struct Spawn {
    spec: ToolSpec,
}

impl Spawn {
    pub(crate) fn new() -> Self {
        let schema = concat!(
            r#"{"type":"object","properties":{"task":{"type":"string"},"#,
            r#""label":{"type":"string","description":"A short name"}},"required":["task"]}"#
        );
        let description = "Start a long task in the background. Returns at once; the report arrives later as a \
                           message. The subagent has your tools but does not see this conversation: include \
                           everything it needs.";
        Self { spec: ToolSpec::built_in("spawn", Risk::Runs, description, schema) }
    }
}

impl Tool for Spawn {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        one_line(text(args, "task"), 80)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let (task, label) = (text(args, "task"), text(args, "label").trim());
        if task.trim().is_empty() {
            return Err(Error::failed("task is empty"));
        }
        let label = one_line(if label.is_empty() { task.trim() } else { label }, MAX_LABEL);
        (turn.start_task)(&label, Task { text: task.to_owned() })?;
        Ok(ToolOutput::text(format!(
            "Started the background task \"{label}\". Its report arrives as a separate message: do not wait for it."
        )))
    }
}
