//! A tool without effect that lets a model think between its calls.

use super::{Function, Owner, Risk, ToolOutput, ToolSpec};

pub(crate) fn think_tool() -> Function {
    let spec = ToolSpec::built_in(
        "think",
        Risk::Safe,
        "Write down a thought.",
        r#"{"type":"object","properties":{"thought":{"type":"string"}},"required":["thought"]}"#,
    );
    Function::owned(Owner::BuiltIn, spec, &["thought"], |_, _| {
        Ok(ToolOutput::text("Noted."))
    })
}
