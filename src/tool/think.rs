//! The tool that does nothing: room for a model to think between its calls.

use super::built_in::Alone;
use super::{BuiltIn, Risk, ToolOutput, ToolSpec};

pub(crate) static THINK: BuiltIn<Alone> = BuiltIn::new(
    ToolSpec::built_in(
        "think",
        Risk::Safe,
        "Write down a thought.",
        schema! { required(thought) thought: Text(); },
    ),
    &["thought"],
    |_, _| Ok(ToolOutput::text("Noted.")),
);
