//! The tool that does nothing: room for a model to think between its calls.

use serde_json::Value;

use super::{Risk, Tool, ToolOutput, ToolSpec, Turn, text};
use crate::error::Result;
use crate::text::one_line;

pub(crate) struct Think {
    spec: ToolSpec,
}

impl Think {
    pub(crate) fn new() -> Self {
        let schema = r#"{"type":"object","properties":{"thought":{"type":"string"}},"required":["thought"]}"#;
        let description = "Write down a thought: a plan, or what results mean. Changes nothing.";
        Self { spec: ToolSpec::built_in("think", Risk::Safe, description, schema) }
    }
}

impl Tool for Think {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        one_line(text(args, "thought"), 80)
    }

    fn call(&self, _: &Value, _: &Turn) -> Result<ToolOutput> {
        Ok(ToolOutput::text("Noted."))
    }
}
