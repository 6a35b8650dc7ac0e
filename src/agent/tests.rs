//! Turns with a scripted provider and tools that record their calls.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::bus::{Response, TurnStop};
use crate::error::Error;
use crate::message::{Reply, ToolCall};
use crate::provider::{self, Provider, ProviderError};
use crate::tool::{CallContext, Function, Risk};

/// Returns these replies in order, and records the number of tools in each request.
#[derive(Default)]
struct ScriptedProvider {
    replies: Mutex<Vec<Reply>>,
    offered: Arc<Mutex<Vec<usize>>>,
}

impl ScriptedProvider {
    fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self {
            replies: Mutex::new(replies.into_iter().collect()),
            ..Self::default()
        }
    }
}

impl Provider for ScriptedProvider {
    fn model(&self) -> &'static str {
        "script/x"
    }

    fn chat(
        &self,
        request: &provider::Request,
        _: &dyn provider::Sink,
    ) -> Result<Reply, ProviderError> {
        let offered = if request.withheld {
            0
        } else {
            request.tools.len()
        };
        self.offered.lock().unwrap().push(offered);
        Ok(self.replies.lock().unwrap().remove(0))
    }
}

fn says(text: &str) -> Reply {
    Reply {
        text: text.into(),
        ..Reply::default()
    }
}

/// Returns a reply with these calls; the argument is the position.
fn calls(names: &[&str]) -> Reply {
    let call = |(n, name): (usize, &&str)| {
        let arguments = json!({"n": n}).to_string();
        ToolCall {
            id: format!("c{n}"),
            name: (*name).into(),
            arguments,
            ..ToolCall::default()
        }
    };
    Reply {
        calls: names.iter().enumerate().map(call).collect(),
        ..Reply::default()
    }
}

type Log = Arc<(Mutex<Vec<&'static str>>, Condvar)>;

/// Makes a tool that waits until `meets` calls run at the same time, and logs their start.
fn watched(name: &'static str, risk: Risk, meets: usize, log: &Log) -> Function {
    let schema = r#"{"type":"object","properties":{"n":{"type":"integer"}}}"#;
    let log = log.clone();
    let run = move |args: Value, turn: &CallContext| {
        let (log, changed) = &*log;
        let mut log = log.lock().unwrap();
        log.push(name);
        changed.notify_all();
        let few = |log: &mut Vec<&str>| log.iter().filter(|begun| **begun == name).count() < meets;
        let limit = Duration::from_secs(20);
        let waited = changed.wait_timeout_while(log, limit, few).unwrap().1;
        if name == "stop" {
            turn.cancel.stop();
        }
        if waited.timed_out() {
            Err(Error::failed("alone"))
        } else {
            Ok(format!("{name} {}", args["n"]))
        }
    };
    Function::new(name, "", schema, run).risk(risk)
}

/// Runs one turn. Returns the response, the stored messages, and the number of tools in each request.
fn run(
    replies: Vec<Reply>,
    build: impl FnOnce(Builder) -> Builder,
) -> (Response, Vec<Message>, Vec<usize>) {
    let script = ScriptedProvider::new(replies);
    let offered = script.offered.clone();
    let agent = build(Agent::builder().provider(script)).build().unwrap();
    let response = agent.run(&Request::new("go", "s"), &|_| ());
    let kept = agent.session("s").unwrap().messages;
    let offered = offered.lock().unwrap().clone();
    (response, kept, offered)
}

/// Returns the ids and texts of the stored results.
fn results(kept: &[Message]) -> Vec<(String, String)> {
    let result = |message: &Message| {
        if let Message::ToolResult(result) = message {
            Some(result.clone())
        } else {
            None
        }
    };
    kept.iter()
        .filter_map(result)
        .map(|result| (result.call_id, result.content))
        .collect()
}

#[test]
fn read_only_calls_run_in_parallel() {
    let log = Log::default();
    let tool = watched("look", Risk::Safe, 8, &log);
    let (response, kept, _) = run(vec![calls(&["look"; 8]), says("done")], |b| b.tool(tool));
    assert_eq!(response.output, "done");
    let expected: Vec<(String, String)> = (0..8)
        .map(|n| (format!("c{n}"), format!("look {n}")))
        .collect();
    assert_eq!(results(&kept), expected);
    assert!(response.tool_calls.iter().all(|report| report.ok));
}

#[test]
fn calls_after_stop_get_results_unrun() {
    let log = Log::default();
    let (stop, look) = (
        watched("stop", Risk::Writes, 1, &log),
        watched("look", Risk::Safe, 1, &log),
    );
    let (response, kept, _) = run(vec![calls(&["stop", "look", "look", "stop"])], |b| {
        b.tool(stop).tool(look)
    });
    assert_eq!(response.stop, TurnStop::Cancelled);
    let not_run = "not run: the user stopped the turn";
    let expected = [
        ("c0", "stop 0"),
        ("c1", not_run),
        ("c2", not_run),
        ("c3", not_run),
    ];
    assert_eq!(
        results(&kept),
        expected.map(|(id, text)| (id.to_owned(), text.to_owned()))
    );
    assert_eq!(response.tool_calls.len(), 4);
}
