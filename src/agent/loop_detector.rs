//! Detects repetition: refuses a call if the model already has its result.

use std::collections::HashMap;

use crate::tool::{Call, Risk};

/// Maximum number of consecutive calls of a tool that are invalid.
const MOST: u32 = 3;
/// Number of replies with refused calls after which the model is stuck.
const MOST_WARNINGS: u32 = 2;

/// Calls of one turn.
///
/// Real small models repeat a finished call until their limit. Running the tests after each edit is not repetition, so all
/// calls count from zero after a new call that acts. It must be new, because two calls can also alternate forever.
#[derive(Default)]
pub(super) struct LoopDetector {
    /// Keyed by the identity of a call, or by the name of the tool for invalid calls.
    calls: HashMap<String, Repeats>,
    /// Replies with refused calls since something new was done.
    warnings: u32,
    /// Whether the current reply has refused calls.
    warned: bool,
}

#[derive(Default)]
struct Repeats {
    /// Id of the last call that was run.
    id: String,
    times: u32,
    acts: bool,
}

impl LoopDetector {
    pub(super) fn next_reply(&mut self) {
        self.warned = false;
    }

    /// Whether the model has been warned and still repeats itself.
    pub(super) fn is_stuck(&self) -> bool {
        self.warnings >= MOST_WARNINGS
    }

    /// Counts a call. Returns why it must not run, if it must not. `is_gone` returns whether the result of the call with an id
    /// has been dropped from the conversation.
    pub(super) fn refuses(
        &mut self,
        call: &Call,
        is_gone: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let (name, fits) = (call.name(), call.is_valid());
        let key = if fits {
            self.calls.remove(name);
            call.identity().to_string()
        } else {
            name.to_owned()
        };
        let seen = self.calls.remove(&key);
        let is_new = seen.is_none();
        let mut repeats = seen.unwrap_or_default();
        if is_gone(&repeats.id) {
            repeats.times = 0;
        }
        let most = if fits { call.most_times() } else { MOST };
        if repeats.times >= most {
            self.calls.insert(key, repeats);
            return Some(self.warning(&match most {
                _ if !fits => format!(
                    "{MOST} calls of {name} in a row could not be run, and neither can this one"
                ),
                1 => "you have this result already, above".to_owned(),
                _ => format!("this same call has been made {most} times already"),
            }));
        }
        let acts = fits && call.risk() != Risk::Safe;
        if acts {
            let stale = |other: &&mut Repeats| is_new || !other.acts;
            let counts = self.calls.values_mut().filter(stale);
            counts.for_each(|other| other.times = 0);
            if is_new {
                self.warnings = 0;
            }
        }
        repeats = Repeats {
            id: call.id().to_owned(),
            times: repeats.times + 1,
            acts,
        };
        self.calls.insert(key, repeats);
        None
    }

    fn warning(&mut self, why: &str) -> String {
        self.warnings += u32::from(!std::mem::replace(&mut self.warned, true));
        let instead = if self.is_stuck() {
            "no more tools now: answer with text, from the results so far"
        } else {
            "answer with text, or do something else"
        };
        format!("{why}; {instead}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::ToolCall;
    use crate::tool::{Function, Owner, Registry, ToolOutput, ToolSpec};
    use serde_json::json;

    fn tool(name: &'static str, risk: Risk) -> Function {
        let schema = r#"{"type":"object","properties":{"x":{"type":"string"}}}"#;
        let owner = match name {
            "push" => Owner::Server,
            _ => Owner::BuiltIn,
        };
        let spec = ToolSpec::built_in(name, risk, "", schema);
        Function::owned(owner, spec, &[], |_, _| Ok(ToolOutput::default()))
    }

    /// Returns which of these calls are refused, each in a separate reply: `R` for a refusal, followed by `S` if the model is
    /// then stuck. The argument follows the name; `!` is invalid.
    fn refused(calls: &str) -> String {
        let mut registry = Registry::new();
        for (name, risk) in [
            ("look", Risk::Safe),
            ("edit", Risk::Writes),
            ("test", Risk::Runs),
            ("push", Risk::Writes),
        ] {
            registry.add(tool(name, risk)).unwrap();
        }
        let mut detector = LoopDetector::default();
        let mut out = String::new();
        for word in calls.split_whitespace() {
            let (name, x) = word.split_at(4);
            let arguments = if x.starts_with('!') {
                format!("{{oops {x}")
            } else {
                json!({"x": x}).to_string()
            };
            let call = ToolCall {
                id: out.len().to_string(),
                name: name.into(),
                arguments,
                ..ToolCall::default()
            };
            detector.next_reply();
            let refused = detector
                .refuses(&registry.prepare(&call), |_| false)
                .is_some();
            out.push(match (refused, detector.is_stuck()) {
                (false, _) => '.',
                (true, false) => 'R',
                (true, true) => 'S',
            });
        }
        out
    }

    #[test]
    fn a_repeated_call_is_refused_until_something_new_was_done() {
        for (calls, expected) in [
            ("look look look", ".RS"),
            ("look1 look2 look1 look2 look3", "..RS."),
            ("edit edit", ".R"),
            ("edit1 test edit2 test edit3 test edit4 test", "........"),
            // After something new, one more warning precedes the end.
            ("look look edit1 look look look", ".R..RS"),
            // What is read may have changed with each call that acts.
            ("test look test look", "...."),
            // Calls that take turns for ever.
            ("edit1 look edit1 look edit1", "..RSS"),
            ("edit1 edit2 edit1 edit2 edit1", "...RS"),
            // Waiting for something, or pressing a key twice.
            ("test test test test test", "....."),
            ("push push push push push", "...RS"),
            // A tool that is never called rightly.
            ("look!1 look!2 look!3 look!4 look!5", "...RS"),
            ("look!1 look!2 look!3 look look!4 look!5", "......"),
            ("nono1 nono2 nono3 nono4", "...R"),
        ] {
            assert_eq!(refused(calls), expected, "{calls}");
        }
    }

    #[test]
    fn a_result_that_is_gone_is_fetched_again() {
        let mut registry = Registry::new();
        registry.add(tool("look", Risk::Safe)).unwrap();
        let mut detector = LoopDetector::default();
        for (id, gone, is_refused) in [("a", "", false), ("b", "a", false), ("c", "a", true)] {
            let call = ToolCall {
                id: id.into(),
                name: "look".into(),
                ..ToolCall::default()
            };
            let refused = detector.refuses(&registry.prepare(&call), |id| id == gone);
            assert_eq!(refused.is_some(), is_refused, "{id}");
        }
    }
}
