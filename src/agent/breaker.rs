//! Breaking up repetition: a call that was made three times to no effect is not made a fourth time.

use std::collections::HashMap;

use crate::tool::{Ready, Risk};

/// How often the same call is made, and how many replies in a row may call a tool so that it cannot be run.
const MOST: u32 = 3;
/// How many replies may have calls that were refused.
const MOST_STRIKES: u32 = 2;

/// What has been called in one turn.
///
/// Tests that are run after each edit are no repetition, so a call may be made again once something else was written or
/// run. That must be something new: two calls that take turns for ever are still for ever.
#[derive(Default)]
pub struct Breaker {
    seen: HashMap<u64, Seen>,
    /// How many different calls have written or run something.
    changes: u32,
    /// For each tool, the last replies that called it so that it could not be run.
    misfits: HashMap<String, Misfits>,
    strikes: u32,
    /// The number of the reply whose calls these are, from 1.
    reply: u32,
    /// That of the last one with a strike.
    struck: u32,
}

/// Several in one reply count once: the model has not been told yet.
#[derive(Default)]
struct Misfits {
    replies: u32,
    last: u32,
}

struct Seen {
    times: u32,
    /// [`Breaker::changes`] when it was last made.
    changes: u32,
}

impl Breaker {
    /// The calls that follow are of one more reply.
    pub fn next_reply(&mut self) {
        self.reply += 1;
    }

    /// The model has been told, and goes on all the same.
    pub fn is_stuck(&self) -> bool {
        self.strikes >= MOST_STRIKES
    }

    /// Counts a call that is about to be made. The reason not to make it, if there is one.
    pub fn refuses(&mut self, call: &Ready) -> Option<String> {
        let name = call.name();
        if call.fits() {
            self.misfits.remove(name);
        } else {
            let misfits = self.misfits.entry(name.to_owned()).or_default();
            if misfits.last != self.reply {
                *misfits = Misfits { replies: misfits.replies + 1, last: self.reply };
            }
            if misfits.replies > MOST {
                let why = format!("{MOST} calls of {name} in a row could not be run, and nor can this one");
                return Some(self.redact(&why));
            }
        }
        let id = call.identity();
        let seen = self.seen.get(&id);
        let times = seen.filter(|seen| seen.changes == self.changes).map_or(0, |seen| seen.times);
        if times >= MOST {
            return Some(
                self.redact(&format!(
                    "this same call has been made {MOST} times already, and nothing has changed since"
                )),
            );
        }
        if seen.is_none() && call.risk() != Risk::Safe {
            self.changes += 1;
            self.strikes = 0;
        }
        self.seen.insert(id, Seen { times: times + 1, changes: self.changes });
        None
    }

    fn redact(&mut self, why: &str) -> String {
        if self.struck != self.reply {
            self.struck = self.reply;
            self.strikes += 1;
        }
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

    struct Named(ToolSpec);

    impl Tool for Named {
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
            Box::new(Named(ToolSpec { name, description, schema, risk, source }))
        };
        let tools = vec![tool("look", Risk::Safe), tool("edit", Risk::Writes), tool("test", Risk::Runs)];
        let registry = Registry::new(tools, Redactor::default()).unwrap();
        let mut breaker = Breaker::default();
        let mut out = String::new();
        for word in calls.split_whitespace() {
            let (name, x) = word.split_at(4);
            let arguments = if x.starts_with('!') { format!("{{oops {x}") } else { json!({"x": x}).to_string() };
            let call = ToolCall { name: name.into(), arguments, ..ToolCall::default() };
            breaker.next_reply();
            let refused = breaker.refuses(&registry.read(&call)).is_some();
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
        assert_eq!(refused("look1 look2 look1 look2 look1 look1 look2 look2"), ".....R.S");
        assert_eq!(refused("test test test test"), "...R");
    }

    #[test]
    fn a_call_may_be_made_again_when_something_new_was_done() {
        assert_eq!(refused("edit1 test edit2 test edit3 test edit4 test edit5 test"), "..........");
        assert_eq!(refused("look look look edit1 look look look look edit2 look"), ".......R..");
        // After something new, one more warning comes before the end.
        assert_eq!(refused("look look look look edit1 look look look look look"), "...R....RS");
    }

    #[test]
    fn calls_that_take_turns_for_ever_are_still_for_ever() {
        assert_eq!(refused("edit1 test edit1 test edit1 test edit1 test edit1"), ".......RS");
    }

    #[test]
    fn a_tool_that_is_never_called_rightly_is_given_up() {
        assert_eq!(refused("look!1 look!2 look!3 look!4 look!5"), "...RS");
        assert_eq!(refused("look!1 look!2 look!3 look look!4 look!5"), "......");
        assert_eq!(refused("nono1 nono2 nono3 nono4"), "...R");
    }
}
