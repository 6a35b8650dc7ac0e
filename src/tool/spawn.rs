//! The tool that hands a task to another agent and does not wait for it.

use serde::Deserialize;
use serde_json::Value;

use super::{Risk, Task, Tool, ToolOutput, ToolSpec, Turn, arguments};
use crate::error::{Error, Result};
use crate::text::one_line;

/// The longest label, in bytes. A task without one is called by its beginning.
const LONGEST_LABEL: usize = 60;

const SCHEMA: &str = concat!(
    r#"{"type":"object","properties":{"task":{"type":"string"},"#,
    r#""label":{"type":"string","description":"A short name"}},"required":["task"]}"#
);

pub struct Spawn {
    spec: ToolSpec,
}

impl Spawn {
    pub fn new() -> Self {
        let spec = ToolSpec {
            name: "spawn".into(),
            description: "Have another agent do a long task in the background. Returns at once; the report comes as a \
                          message later. It has your tools but sees nothing of this conversation: tell it all it needs."
                .into(),
            schema: SCHEMA.into(),
            risk: Risk::Runs,
            source: "built in".into(),
        };
        Self { spec }
    }
}

impl Default for Spawn {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Deserialize)]
struct Args {
    task: String,
    label: Option<String>,
}

impl Tool for Spawn {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        one_line(args.get("task").and_then(Value::as_str).unwrap_or_default(), 80)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let Args { task, label } = arguments(args)?;
        if task.trim().is_empty() {
            return Err(Error::failed("the task is empty: say what is to be done"));
        }
        let label = label.filter(|label| !label.trim().is_empty());
        let label = one_line(label.as_deref().unwrap_or(&task).trim(), LONGEST_LABEL);
        (turn.start_task)(&label, Task { text: task })?;
        Ok(ToolOutput::text(format!(
            "The background task \"{label}\" has begun. Its report comes as a message of its own: do not wait for it here."
        )))
    }
}
