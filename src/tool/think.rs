//! The tool that does nothing: room for a model to think between its calls.

use super::Takes::Text;
use super::function::Function;
use super::{Risk, ToolOutput, ToolSpec};

pub(crate) fn think() -> Function {
    let description = "Write down a thought. Changes nothing.";
    let spec = ToolSpec::built_in(
        "think",
        Risk::Safe,
        description,
        &[("thought", Text, "")],
        1,
    );
    Function::of(spec, &["thought"], |_, _| Ok(ToolOutput::text("Noted.")))
}
