//! The tool that does nothing: room for a model to think between its calls.

use serde_json::Value;

use super::{Risk, Tool, ToolOutput, ToolSpec, Turn};
use crate::error::Result;
use crate::text::one_line;

pub struct Think {
    spec: ToolSpec,
}

impl Think {
    pub fn new() -> Self {
        let spec = ToolSpec {
            name: "think".into(),
            description: "Note a thought: a plan, or what results mean. It changes nothing.".into(),
            schema: r#"{"type":"object","properties":{"thought":{"type":"string"}},"required":["thought"]}"#.into(),
            risk: Risk::Safe,
            source: "built in".into(),
        };
        Self { spec }
    }
}

impl Default for Think {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for Think {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        one_line(args.get("thought").and_then(Value::as_str).unwrap_or_default(), 80)
    }

    fn call(&self, _: &Value, _: &Turn) -> Result<ToolOutput> {
        Ok(ToolOutput::text("Noted."))
    }
}
