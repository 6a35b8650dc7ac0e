//! Detects repetition: refuses a call if the model already has its result.

use std::collections::HashMap;

use crate::tool::{Call, Risk};

/// Maximum number of consecutive invalid calls of a tool, and of identical calls to other programs' tools with effects, because
/// pressing a key twice is not repetition.
const MOST: u32 = 3;
/// Number of replies with refused calls after which the model is stuck.
const MOST_WARNINGS: u32 = 2;

/// Calls of one turn.
///
/// A repeated call without a change in between would have the same result, so it is refused. Real small models repeat a
/// finished call until their limit. Running the tests after each edit is not repetition, so a call may be repeated once a new
/// call has written or run something. The call must be new, because two calls can also alternate forever.
#[derive(Default)]
pub(super) struct LoopDetector {
    /// Keyed by the identity of a call, or by the name of the tool for invalid calls.
    calls: HashMap<String, Repeats>,
    /// Number of calls that have written or run something.
    changes: u32,
    /// Number of these calls that were new.
    new_changes: u32,
    /// Replies with refused calls since the last change.
    warnings: u32,
    /// Whether the current reply has refused calls.
    warned: bool,
}

#[derive(Clone, Default)]
struct Repeats {
    /// Id of the last call that was run.
    id: String,
    times: u32,
    /// Values of [`LoopDetector::changes`] and [`LoopDetector::new_changes`] at the last call.
    changes: u32,
    new_changes: u32,
    /// Whether the last call failed, so that the next may succeed.
    failed: bool,
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
            call.identity().to_string()
        } else {
            name.to_owned()
        };
        if fits {
            self.calls.remove(name);
        }
        let seen = self.calls.get(&key).cloned();
        let is_new = seen.is_none();
        let still_holds =
            |seen: &Repeats| seen.new_changes == self.new_changes && !is_gone(&seen.id);
        let repeats = seen
            .filter(|seen| !fits || still_holds(seen))
            .unwrap_or_default();
        let acts_elsewhere = !call.is_built_in() && call.risk() != Risk::Safe;
        // A repeated call may have undone changes on which the result depends.
        let is_same = repeats.changes == self.changes && !repeats.failed;
        let most = if fits && !acts_elsewhere && is_same {
            1
        } else {
            MOST
        };
        if repeats.times >= most {
            return Some(self.warning(&match fits {
                true if acts_elsewhere || !is_same => format!(
                    "this same call has been made {MOST} times already, and nothing new was done since"
                ),
                true => "you have this result already, above".to_owned(),
                false => format!(
                    "{MOST} calls of {name} in a row could not be run, and neither can this one"
                ),
            }));
        }
        if fits && call.risk() != Risk::Safe {
            self.changes += 1;
            if is_new {
                self.new_changes += 1;
                self.warnings = 0;
            }
        }
        self.calls.insert(
            key,
            Repeats {
                id: call.id().to_owned(),
                times: repeats.times + 1,
                changes: self.changes,
                new_changes: self.new_changes,
                failed: false,
            },
        );
        None
    }

    /// Records that the call with this id failed, so it may be repeated.
    pub(super) fn failed(&mut self, id: &str) {
        for repeats in self.calls.values_mut().filter(|repeats| repeats.id == id) {
            repeats.failed = true;
        }
    }

    fn warning(&mut self, why: &str) -> String {
        self.warnings += u32::from(!std::mem::replace(&mut self.warned, true));
        let instead = if self.is_stuck() {
            "no more tools now: answer in words, with what you have"
        } else {
            "answer in words, or do something else"
        };
        format!("{why}; {instead}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;
    use crate::message::ToolCall;
    use crate::tool::{CallContext, Owner, Registry, Tool, ToolOutput, ToolSpec};
    use serde_json::{Value, json};

    struct SpecOnly(ToolSpec);

    impl Tool for SpecOnly {
        fn spec(&self) -> &ToolSpec {
            &self.0
        }
        fn owner(&self) -> Owner {
            match &*self.0.source {
                "a server" => Owner::Server,
                _ => Owner::BuiltIn,
            }
        }
        fn call(&self, _: &Value, _: &CallContext) -> Result<ToolOutput> {
            Ok(ToolOutput::default())
        }
    }

    fn tool(name: &str, risk: Risk) -> SpecOnly {
        let schema = r#"{"type":"object","properties":{"x":{"type":"string"}}}"#;
        let source = if name == "push" { "a server" } else { "" };
        SpecOnly(ToolSpec {
            name: name.to_owned().into(),
            description: "".into(),
            schema: schema.into(),
            risk,
            source: source.into(),
        })
    }

    fn registry(tools: impl IntoIterator<Item = SpecOnly>) -> Registry {
        let mut registry = Registry::new();
        for tool in tools {
            registry.add(tool).unwrap();
        }
        registry
    }

    /// Returns which of these calls are refused, each in a separate reply: `R` for a refusal, followed by `S` if the model is
    /// then stuck. `look` only reads, `test` and `edit` have effects. The argument follows the name; `!` is invalid.
    fn refused(calls: &str) -> String {
        let tools = vec![
            tool("look", Risk::Safe),
            tool("edit", Risk::Writes),
            tool("test", Risk::Runs),
            tool("push", Risk::Writes),
        ];
        let registry = registry(tools);
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
    fn repeated_call_is_refused_then_stopped() {
        assert_eq!(refused("look look look"), ".RS");
        assert_eq!(refused("look1 look2 look1 look2 look3"), "..RS.");
        assert_eq!(refused("test test edit test"), ".R..");
        // An edit that was undone and repeated.
        assert_eq!(refused("edit1 test edit2 test edit1 test"), "......");
        assert_eq!(refused("edit edit"), ".R");
    }

    #[test]
    fn a_call_may_be_made_again_when_something_new_was_done() {
        assert_eq!(
            refused("edit1 test edit2 test edit3 test edit4 test edit5 test"),
            ".........."
        );
        // After something new, one more warning precedes the end.
        assert_eq!(refused("look look edit1 look look look"), ".R..RS");
    }

    #[test]
    fn another_programs_tool_may_act_the_same_way_a_few_times() {
        assert_eq!(refused("push push push push push"), "...RS");
    }

    #[test]
    fn calls_that_take_turns_for_ever_are_still_for_ever() {
        let calls = "edit1 test edit1 test edit1 test edit1 test edit1";
        assert_eq!(refused(calls), ".......RS");
    }

    #[test]
    fn a_tool_that_is_never_called_rightly_is_given_up() {
        assert_eq!(refused("look!1 look!2 look!3 look!4 look!5"), "...RS");
        assert_eq!(refused("look!1 look!2 look!3 look look!4 look!5"), "......");
        assert_eq!(refused("nono1 nono2 nono3 nono4"), "...R");
    }

    #[test]
    fn a_call_that_failed_may_be_made_again_a_few_times() {
        let registry = registry([tool("look", Risk::Safe)]);
        let mut detector = LoopDetector::default();
        let calls = [("a", false), ("b", false), ("c", false), ("d", true)];
        for (id, is_refused) in calls {
            let call = ToolCall {
                id: id.into(),
                name: "look".into(),
                ..ToolCall::default()
            };
            let refused = detector.refuses(&registry.prepare(&call), |_| false);
            assert_eq!(refused.is_some(), is_refused, "{id}: {refused:?}");
            detector.failed(id);
        }
    }

    #[test]
    fn a_result_that_is_gone_is_fetched_again() {
        let registry = registry([tool("look", Risk::Safe)]);
        let mut detector = LoopDetector::default();
        let call = |id: &str| ToolCall {
            id: id.into(),
            name: "look".into(),
            ..ToolCall::default()
        };
        for (id, gone, is_refused) in [("a", "", false), ("b", "a", false), ("c", "a", true)] {
            let call = call(id);
            let refused = detector.refuses(&registry.prepare(&call), |id| id == gone);
            assert_eq!(refused.is_some(), is_refused, "{id}");
        }
    }
}
