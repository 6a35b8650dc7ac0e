//! A tool without effect that lets a model think between its calls.

use super::{Function, Risk, ToolOutput, ToolSpec};

pub(crate) fn think_tool() -> Function {
    let spec = ToolSpec::built_in(
        "think",
        Risk::Safe,
        "Write down a thought.",
        r#"{"type":"object","properties":{"thought":{"type":"string"}},"required":["thought"]}"#,
    );
    Function::built_in(spec, &["thought"], |_, _| Ok(ToolOutput::text("Noted.")))
}
