//! Detects repetition: refuses a call that brings the same result again and again.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::message::ToolResult;
use crate::tool::Call;

/// Number of replies with refused calls after which the model is stuck.
const MOST_WARNINGS: u32 = 2;

/// Calls of one turn.
///
/// Real small models repeat a finished call until their limit. Running the tests after each edit is not repetition, so all
/// counts start over with a result that is new.
#[derive(Default)]
pub(super) struct LoopDetector {
    /// Calls and their results, as hashes.
    seen: HashSet<(u64, u64)>,
    /// How often each call was made since something new came.
    times: HashMap<u64, u32>,
    /// Replies with refused calls since then.
    warnings: u32,
    /// Whether the current reply has refused calls.
    warned: bool,
}

impl LoopDetector {
    pub(super) fn next_reply(&mut self) {
        self.warned = false;
    }

    /// Whether the model has been warned and still repeats itself.
    pub(super) fn is_stuck(&self) -> bool {
        self.warnings >= MOST_WARNINGS
    }

    /// Counts a call. Returns why it must not run, if it must not.
    pub(super) fn refuses(&mut self, call: &Call) -> Option<String> {
        let times = self.times.entry(call.identity()).or_default();
        if *times < call.most_times() {
            *times += 1;
            return None;
        }
        let why = format!("this same call was made {times} times, and brings nothing new");
        self.warnings += u32::from(!std::mem::replace(&mut self.warned, true));
        let instead = if self.is_stuck() {
            "no more tools now: answer with text, from the results so far"
        } else {
            "answer with text, or do something else"
        };
        Some(format!("{why}; {instead}"))
    }

    /// Takes note of what a call has brought.
    pub(super) fn brought(&mut self, call: &Call, result: &ToolResult) {
        let mut hasher = DefaultHasher::new();
        result.content.hash(&mut hasher);
        let images = result.images.iter().map(|image| &image.base64);
        images.for_each(|image| image.hash(&mut hasher));
        if self.seen.insert((call.identity(), hasher.finish())) {
            self.times = HashMap::from([(call.identity(), 1)]);
            self.warnings = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::ToolCall;
    use crate::tool::{Function, Owner, Registry, Risk, ToolOutput, ToolSpec};
    use serde_json::json;

    fn tool(name: &'static str, risk: Risk) -> Function {
        let schema = r#"{"type":"object","properties":{"x":{"type":"string"}}}"#;
        let spec = ToolSpec::built_in(name, risk, "", schema);
        Function::owned(Owner::BuiltIn, spec, &[], |_, _| Ok(ToolOutput::default()))
    }

    /// Returns which of these calls are refused, each in a separate reply: `R` for a refusal, followed by `S` if the model is
    /// then stuck. The argument follows the name, and then the result.
    fn refused(calls: &str) -> String {
        let mut registry = Registry::new();
        for (name, risk) in [
            ("look", Risk::Safe),
            ("edit", Risk::Writes),
            ("test", Risk::Runs),
        ] {
            registry.add(tool(name, risk)).unwrap();
        }
        let mut detector = LoopDetector::default();
        let mut out = String::new();
        for word in calls.split_whitespace() {
            let (call, content) = word.split_once('=').unwrap_or((word, "same"));
            let (name, x) = call.split_at(4);
            let call = ToolCall {
                name: name.into(),
                arguments: json!({ "x": x }).to_string(),
                ..ToolCall::default()
            };
            let call = registry.prepare(&call);
            detector.next_reply();
            let refused = detector.refuses(&call).is_some();
            let result = ToolResult {
                content: content.to_owned(),
                ..ToolResult::default()
            };
            if !refused {
                detector.brought(&call, &result);
            }
            out.push(match (refused, detector.is_stuck()) {
                (false, _) => '.',
                (true, false) => 'R',
                (true, true) => 'S',
            });
        }
        out
    }

    #[test]
    fn a_call_with_the_same_result_is_not_run_a_third_time() {
        for (calls, expected) in [
            ("look look look look", "..RS"),
            ("look=1 look=2 look=3 look=4", "...."),
            ("look1 look2 look1 look2 look1 look2", ".....R"),
            ("edit1 test edit2 test edit3 test edit4 test", "........"),
            // After something new, one more warning precedes the end.
            ("look look look edit1 look look look look", "..R...RS"),
            // Calls that take turns for ever.
            ("edit1 look edit1 look edit1 look edit1", ".....RS"),
            // Waiting for something.
            (
                "test test test test test test test test test test test",
                "..........R",
            ),
            ("nono1 nono1 nono1", "..R"),
        ] {
            assert_eq!(refused(calls), expected, "{calls}");
        }
    }
}
