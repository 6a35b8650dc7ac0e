//! Hints in a conversation: they name what can be typed there, not flags of a command line that has been left behind.

use crate::error::Error;

/// What hints for a command line say, and what can be done in a conversation instead. A longer text comes before its part.
const HERE: [(&str, &str); 8] = [
    (
        "use --no-tools, or another model (--model, /model)",
        "choose another model: /model NAME",
    ),
    ("(--model, /model)", "(/model NAME)"),
    ("(--new, /new)", "(/new)"),
    (
        "-a takes one file, and can be given again for another",
        "/attach FILE takes one file; repeat it for another",
    ),
    (
        "allow more with --max-steps, or ask it to continue",
        "ask it to continue",
    ),
    (
        "allow more with --budget-tokens",
        "ask it to continue, or /quit and start again with a higher --budget-tokens",
    ),
    (
        "allow more time with --timeout",
        "ask it to continue, or raise agents.defaults.timeout in config.json",
    ),
    (
        "or use --session with another key",
        "or continue another conversation: /resume KEY",
    ),
];

/// The error with a hint for a conversation.
pub(super) fn in_a_conversation(e: Error) -> Error {
    let Some(hint) = e.hint.clone() else {
        return e;
    };
    let row = HERE.iter().find(|(there, _)| hint.contains(there));
    match row {
        Some((there, here)) => e.hint(hint.replace(there, here)),
        None => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flag_is_named_where_none_can_be_typed() {
        for (hint, expected) in [
            (
                "use --no-tools, or another model (--model, /model)",
                "choose another model: /model NAME",
            ),
            (
                "try again later, or use another model (--model, /model)",
                "try again later, or use another model (/model NAME)",
            ),
            (
                "another run is using it: wait for that, or use --session with another key",
                "another run is using it: wait for that, or continue another conversation: /resume KEY",
            ),
            ("check the path", "check the path"),
        ] {
            let e = in_a_conversation(Error::failed("x").hint(hint));
            assert_eq!(e.hint.as_deref(), Some(expected));
        }
    }
}
