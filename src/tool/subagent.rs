//! The tool that hands a task to another agent.

use serde::Deserialize;
use serde_json::Value;

use super::{Risk, Task, Tool, ToolOutput, ToolSpec, Turn, arguments};
use crate::error::Result;
use crate::text::one_line;

pub struct Subagent {
    spec: ToolSpec,
}

impl Subagent {
    pub fn new() -> Self {
        let spec = ToolSpec {
            name: "subagent".into(),
            description: "Have another agent do a task and report. It has your tools but sees nothing of this \
                          conversation: tell it all it needs. Several in one reply work side by side."
                .into(),
            schema: r#"{"type":"object","properties":{"task":{"type":"string"}},"required":["task"]}"#.into(),
            risk: Risk::Runs,
            source: "built in".into(),
        };
        Self { spec }
    }
}

impl Default for Subagent {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Deserialize)]
struct Args {
    task: String,
}

impl Tool for Subagent {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn is_parallel(&self, _: &Value) -> bool {
        true
    }

    fn summary(&self, args: &Value) -> String {
        one_line(args.get("task").and_then(Value::as_str).unwrap_or_default(), 80)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let Args { task } = arguments(args)?;
        (turn.run_task)(&Task { text: task })
    }
}
