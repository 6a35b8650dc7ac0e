//! Breaks repetition: refuses the fourth identical call of a turn.

use std::collections::HashMap;

use crate::tool::{PreparedCall, Risk};

/// How often a call may be made, and how many calls of a tool in a row may have arguments that do not fit.
const MOST: u32 = 3;
/// How many replies may contain refused calls before the model is stuck.
const MOST_WARNINGS: u32 = 2;

/// The calls of one turn.
///
/// Running the tests after each edit is not repetition: a call may be made again once a new call has written or run
/// something. The call must be new, because two calls can also alternate for ever.
#[derive(Default)]
pub(super) struct Breaker {
    /// By the identity of a call; calls that do not fit count by the name of their tool.
    calls: HashMap<String, Repeats>,
    /// How many different calls have written or run something.
    changes: u32,
    /// Replies with refused calls since the last change.
    warnings: u32,
    /// The current reply has one.
    warned: bool,
}

#[derive(Clone, Copy, Default)]
struct Repeats {
    times: u32,
    /// The value of [`Breaker::changes`] at the last call.
    changes: u32,
}

impl Breaker {
    pub(super) fn next_reply(&mut self) {
        self.warned = false;
    }

    /// Whether the model has been warned and repeats itself all the same.
    pub(super) fn is_stuck(&self) -> bool {
        self.warnings >= MOST_WARNINGS
    }

    /// Counts a call; returns the reason not to run it, if there is one.
    pub(super) fn refuses(&mut self, call: &PreparedCall) -> Option<String> {
        let (name, fits) = (call.name(), call.is_valid());
        let key = if fits {
            call.identity().to_string()
        } else {
            name.to_owned()
        };
        if fits {
            self.calls.remove(name);
        }
        let seen = self.calls.get(&key).copied();
        let repeats = seen
            .filter(|seen| !fits || seen.changes == self.changes)
            .unwrap_or_default();
        if repeats.times == MOST {
            return Some(self.warning(&if fits {
                format!("this same call has been made {MOST} times already, and nothing has changed since")
            } else {
                format!("{MOST} calls of {name} in a row could not be run, and neither can this one")
            }));
        }
        if fits && seen.is_none() && call.risk() != Risk::Safe {
            self.changes += 1;
            self.warnings = 0;
        }
        self.calls.insert(
            key,
            Repeats {
                times: repeats.times + 1,
                changes: self.changes,
            },
        );
        None
    }

    fn warning(&mut self, why: &str) -> String {
        self.warnings += u32::from(!std::mem::replace(&mut self.warned, true));
        let instead = if self.is_stuck() {
            "no more tools now: answer with what you have"
        } else {
            "do something else, or answer"
        };
        format!("{why}; {instead}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;
    use crate::message::ToolCall;
    use crate::secret::Redactor;
    use crate::tool::{Registry, Tool, ToolOutput, ToolSpec, Turn};
    use serde_json::{Value, json};

    struct SpecOnly(ToolSpec);

    impl Tool for SpecOnly {
        fn spec(&self) -> &ToolSpec {
            &self.0
        }
        fn call(&self, _: &Value, _: &Turn) -> Result<ToolOutput> {
            Ok(ToolOutput::default())
        }
    }

    /// Which of these calls are refused, each in a reply of its own, `R` for one too many and `S` when it is stuck then.
    /// `look` only looks, `test` and `edit` do more; what follows the name is the argument, `!` one that does not fit.
    fn refused(calls: &str) -> String {
        let tool = |name: &str, risk| -> Box<dyn Tool> {
            let schema = r#"{"type":"object","properties":{"x":{"type":"string"}}}"#.into();
            let (name, description, source) = (name.to_owned().into(), "".into(), "".into());
            Box::new(SpecOnly(ToolSpec {
                name,
                description,
                schema,
                risk,
                source,
            }))
        };
        let tools = vec![
            tool("look", Risk::Safe),
            tool("edit", Risk::Writes),
            tool("test", Risk::Runs),
        ];
        let registry = Registry::new(tools, Redactor::default()).unwrap();
        let mut breaker = Breaker::default();
        let mut out = String::new();
        for word in calls.split_whitespace() {
            let (name, x) = word.split_at(4);
            let arguments = if x.starts_with('!') {
                format!("{{oops {x}")
            } else {
                json!({"x": x}).to_string()
            };
            let call = ToolCall {
                name: name.into(),
                arguments,
                ..ToolCall::default()
            };
            breaker.next_reply();
            let refused = breaker.refuses(&registry.prepare(&call)).is_some();
            out.push(match (refused, breaker.is_stuck()) {
                (false, _) => '.',
                (true, false) => 'R',
                (true, true) => 'S',
            });
        }
        out
    }

    #[test]
    fn the_fourth_of_the_same_is_refused_and_the_fifth_ends_it() {
        assert_eq!(refused("look look look look look"), "...RS");
        assert_eq!(
            refused("look1 look2 look1 look2 look1 look1 look2 look2"),
            ".....R.S"
        );
        assert_eq!(refused("test test test test"), "...R");
    }

    #[test]
    fn a_call_may_be_made_again_when_something_new_was_done() {
        assert_eq!(
            refused("edit1 test edit2 test edit3 test edit4 test edit5 test"),
            ".........."
        );
        assert_eq!(
            refused("look look look edit1 look look look look edit2 look"),
            ".......R.."
        );
        // After something new, one more warning comes before the end.
        assert_eq!(
            refused("look look look look edit1 look look look look look"),
            "...R....RS"
        );
    }

    #[test]
    fn calls_that_take_turns_for_ever_are_still_for_ever() {
        assert_eq!(
            refused("edit1 test edit1 test edit1 test edit1 test edit1"),
            ".......RS"
        );
    }

    #[test]
    fn a_tool_that_is_never_called_rightly_is_given_up() {
        assert_eq!(refused("look!1 look!2 look!3 look!4 look!5"), "...RS");
        assert_eq!(refused("look!1 look!2 look!3 look look!4 look!5"), "......");
        assert_eq!(refused("nono1 nono2 nono3 nono4"), "...R");
    }
}
