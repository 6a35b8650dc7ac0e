//! Turns with a scripted provider and tools that record their calls.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::bus::{Response, TurnStop};
use crate::config::DailyBudget;
use crate::error::{Error, Kind};
use crate::message::{Reply, ToolCall, Usage};
use crate::provider::{self, Provider, ProviderError};
use crate::session::{MemoryStore, Session, Store};
use crate::test_dir::TestDir;
use crate::tool::{CallContext, Function, Registry, Risk, Tool, ToolOutput, ToolSpec};
use crate::usage::{Call, Spend};

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

fn spent(mut reply: Reply, prompt_tokens: u64) -> Reply {
    reply.usage = Usage {
        prompt_tokens,
        ..Usage::default()
    };
    reply
}

type Log = Arc<(Mutex<Vec<String>>, Condvar)>;

/// A tool that waits until `meets` calls run at the same time, and logs their start and end.
struct Watched {
    spec: ToolSpec,
    meets: usize,
    log: Log,
}

impl Watched {
    fn new(name: &str, risk: Risk, meets: usize, log: &Log) -> Self {
        let schema = r#"{"type":"object","properties":{"n":{"type":"integer"}}}"#.into();
        let name = name.to_owned().into();
        let spec = ToolSpec {
            name,
            description: "".into(),
            schema,
            risk,
            source: "".into(),
        };
        Self {
            spec,
            meets,
            log: log.clone(),
        }
    }
}

impl Tool for Watched {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call(&self, args: &Value, turn: &CallContext) -> Result<ToolOutput> {
        let (log, changed) = &*self.log;
        let (name, n) = (&self.spec.name, &args["n"]);
        let begun = |log: &[String]| {
            log.iter()
                .filter(|line| line.starts_with(&format!("{name} begins")))
                .count()
        };
        let mut log = log.lock().unwrap();
        log.push(format!("{name} begins {n}"));
        changed.notify_all();
        let few = |log: &mut Vec<String>| begun(log) < self.meets;
        let (mut log, waited) = changed
            .wait_timeout_while(log, Duration::from_secs(20), few)
            .unwrap();
        log.push(format!("{name} ends {n}"));
        drop(log);
        if name == "stop" {
            turn.cancel.stop();
        }
        if waited.timed_out() {
            Err(Error::failed("alone"))
        } else {
            Ok(ToolOutput::text(format!("{name} {n}")))
        }
    }
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
    let tool = Watched::new("look", Risk::Safe, 8, &log);
    let (response, kept, _) = run(vec![calls(&["look"; 8]), says("done")], |b| b.tool(tool));
    assert_eq!(response.output, "done");
    let expected: Vec<(String, String)> = (0..8)
        .map(|n| (format!("c{n}"), format!("look {n}")))
        .collect();
    assert_eq!(results(&kept), expected);
    assert!(response.tool_calls.iter().all(|report| report.ok));
}

#[test]
fn no_more_than_eight_are_run_at_once() {
    let log = Log::default();
    let tool = Watched::new("look", Risk::Safe, 1, &log);
    let (_, kept, _) = run(vec![calls(&["look"; 64]), says("done")], |b| b.tool(tool));
    assert_eq!(results(&kept).len(), 64);
    let (mut under_way, mut most) = (0_usize, 0);
    for line in log.0.lock().unwrap().iter() {
        under_way = if line.contains("begins") {
            under_way + 1
        } else {
            under_way - 1
        };
        most = most.max(under_way);
    }
    assert!(most <= 8, "{most} at once");
}

#[test]
fn a_call_that_does_more_keeps_its_place() {
    let log = Log::default();
    let (look, write) = (
        Watched::new("look", Risk::Safe, 2, &log),
        Watched::new("write", Risk::Writes, 1, &log),
    );
    let names = ["look", "look", "write", "write", "look", "write"];
    let (response, kept, _) = run(vec![calls(&names), says("done")], |b| {
        b.tool(look).tool(write)
    });
    assert!(response.error.is_none());
    let log = log.0.lock().unwrap();
    // The first two looks may swap; the others are in order.
    assert_eq!(
        log[4..],
        [
            "write begins 2",
            "write ends 2",
            "write begins 3",
            "write ends 3",
            "look begins 4",
            "look ends 4"
        ]
        .into_iter()
        .chain(["write begins 5", "write ends 5"])
        .map(str::to_owned)
        .collect::<Vec<_>>()
    );
    let ids: Vec<String> = results(&kept).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["c0", "c1", "c2", "c3", "c4", "c5"]);
}

#[test]
fn calls_after_stop_get_results_unrun() {
    let log = Log::default();
    let (stop, look) = (
        Watched::new("stop", Risk::Writes, 1, &log),
        Watched::new("look", Risk::Safe, 1, &log),
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

/// Runs a turn of three requests with 1000 tokens each and this budget.
fn budgeted(budget: Option<u64>) -> (Response, Vec<Message>, Vec<usize>) {
    let tool = Watched::new("look", Risk::Safe, 1, &Log::default());
    let replies = vec![
        spent(calls(&["look"]), 1000),
        spent(calls(&["look", "look"]), 1000),
        spent(says("done"), 1000),
    ];
    run(replies, |b| {
        b.tool(tool).limits(Limits {
            budget_tokens: budget,
            ..Limits::default()
        })
    })
}

#[test]
fn a_request_that_would_exceed_the_budget_is_not_made() {
    for (budget, requests) in [(0, 0), (1, 0), (500, 1), (1000, 1), (1500, 2), (2000, 2)] {
        let (response, kept, offered) = budgeted(Some(budget));
        assert_eq!(
            (offered.len(), response.stop),
            (requests, TurnStop::Limit),
            "{budget}"
        );
        let error = response.error.unwrap();
        assert_eq!(error.kind, Kind::Limit);
        assert!(
            error
                .message
                .contains(&format!("budget of {budget} tokens")),
            "{}",
            error.message
        );
        assert!(error.hint.unwrap().contains("--budget-tokens"));
        assert_eq!(
            results(&kept).len(),
            [0, 1, 3][requests],
            "every call has its result"
        );
    }
    for budget in [Some(2500), None] {
        let (response, _, offered) = budgeted(budget);
        assert_eq!((offered.len(), response.error), (3, None));
        assert_eq!(response.usage.total(), 3000);
    }
}

#[test]
fn a_budget_holds_though_the_server_counts_nothing() {
    let tool = Watched::new("look", Risk::Safe, 1, &Log::default());
    let long = Reply {
        text: "x".repeat(4000),
        ..calls(&["look"])
    };
    let limits = Limits {
        budget_tokens: Some(1000),
        ..Limits::default()
    };
    let (response, _, offered) = run(vec![long, says("done")], |b| b.tool(tool).limits(limits));
    assert_eq!((offered.len(), response.stop), (1, TurnStop::Limit));
    assert_eq!(
        response.usage,
        Usage::default(),
        "what is reported is not guessed"
    );
}

#[test]
fn the_last_step_has_no_tools() {
    for max_steps in [0, 1] {
        let tool = Watched::new("look", Risk::Safe, 1, &Log::default());
        let limits = Limits {
            max_steps,
            ..Limits::default()
        };
        let (response, _, offered) = run(vec![says("at once")], |b| b.tool(tool).limits(limits));
        assert_eq!(
            (offered.as_slice(), response.output.as_str(), response.error),
            (&[0][..], "at once", None)
        );
    }
    let tool = Watched::new("look", Risk::Safe, 1, &Log::default());
    let limits = Limits {
        max_steps: 2,
        ..Limits::default()
    };
    let (response, kept, offered) = run(vec![calls(&["look"]), says("so far")], |b| {
        b.tool(tool).limits(limits)
    });
    assert_eq!(
        (offered.as_slice(), response.output.as_str()),
        (&[2, 0][..], "so far")
    );
    assert!(
        response
            .error
            .unwrap()
            .message
            .ends_with("limit of 2 steps")
    );
    assert_eq!(
        results(&kept)[0].1,
        "look 0\n[no more tools in this turn: answer with what you have]"
    );
}

/// Returns the turn's metadata under `who`.
struct Who(ToolSpec);

impl Tool for Who {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn call(&self, _: &Value, turn: &CallContext) -> Result<ToolOutput> {
        Ok(ToolOutput::text(turn.metadata["who"].as_str()))
    }
}

#[test]
fn response_returns_the_request_key() {
    let spec = ToolSpec::built_in("who", Risk::Safe, "", r#"{"type":"object"}"#);
    let script = ScriptedProvider::new([calls(&["who"]), says("done")]);
    let (store, mut request) = (MemoryStore::default(), Request::new("go", "a-key"));
    let agent = Agent::builder()
        .provider(script)
        .tool(Who(spec))
        .store(store.clone())
        .build()
        .unwrap();
    request.metadata.insert("who".into(), "Ada".into());
    let response = agent.run(&request, &|_| ());
    assert_eq!(
        (response.session.as_str(), response.output.as_str()),
        ("a-key", "done")
    );
    assert_eq!(
        results(&Session::peek(&store, "a-key").unwrap().messages)[0].1,
        "Ada"
    );
    let other = Request {
        model: "acme/y".to_owned(),
        ..Request::new("go", "a-key")
    };
    let error = agent.run(&other, &|_| ()).error.unwrap();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (Kind::Usage, "this agent has no model called acme/y")
    );
    // Without a key, a new conversation starts, and its key is returned.
    let fresh = agent.run(&Request::new("go", ""), &|_| ()).session;
    assert!(fresh.starts_with("library_+"), "{fresh}");
    assert!(!Session::peek(&store, &fresh).unwrap().messages.is_empty());
}

#[test]
fn a_call_is_made_as_in_a_turn() {
    let (store, log) = (MemoryStore::default(), Log::default());
    let keep = Function::new("keep", "", r#"{"type":"object"}"#, |_: Value, turn| {
        turn.values.set("kept", json!(7));
        Ok("kept")
    });
    let agent = Agent::builder()
        .provider(ScriptedProvider::default())
        .tool(Watched::new("look", Risk::Safe, 1, &log))
        .tool(keep)
        .store(store.clone())
        .build()
        .unwrap();
    let looked = agent.call("look", &Value::Null).unwrap();
    assert_eq!(looked.text, "look null");
    agent.call("keep", &json!({})).unwrap();
    let session = Session::peek(&store, "library_default").unwrap();
    assert_eq!(
        (session.messages.len(), &session.values["kept"]),
        (0, &json!(7))
    );
}

#[test]
fn only_the_chosen_tools_are_offered() {
    let mut tools = Registry::new();
    for (name, risk) in [("look", Risk::Safe), ("write", Risk::Writes)] {
        let tool = Watched::new(name, risk, 1, &Log::default());
        tools.add(tool).unwrap();
    }
    let chosen = |names: &[&str]| tools.only(names).unwrap();
    let offered = |names: &[&str]| run(vec![says("done")], |b| b.tools(chosen(names))).2[0];
    assert_eq!(offered(&["look", "write"]), 3);
    assert_eq!(offered(&["write"]), 2, "and read_more");
    assert_eq!(offered(&[]), 0);
    // A call of a tool that was not chosen fails like an unknown tool.
    let (_, kept, _) = run(vec![calls(&["write"]), says("done")], |b| {
        b.tools(chosen(&["look"]))
    });
    assert!(
        results(&kept)[0].1.contains("no tool named \"write\""),
        "{kept:?}"
    );
    let e = tools.only(&["lok"]).err().unwrap();
    assert_eq!(e.kind, Kind::Usage);
    assert_eq!(e.hint.as_deref(), Some("did you mean `look`?"));
}

#[test]
fn the_ledger_is_asked_before_each_request_and_told_after_it() {
    let log = Log::default();
    let root = TestDir::new();
    let dir = root.join("usage");
    let ledger = |daily_tokens| {
        drop(fs_err::remove_dir_all(&dir));
        let ledger = Ledger::new(
            dir.clone(),
            DailyBudget {
                daily_tokens,
                daily_cost: 0.0,
            },
            Arc::new(crate::text::utc),
        );
        Some(Arc::new(ledger))
    };
    let spends = |daily_tokens| {
        let replies = vec![spent(calls(&["look"]), 1000), spent(says("done"), 5)];
        let tool = Watched::new("look", Risk::Safe, 1, &log);
        run(replies, |mut b| {
            b.ledger = ledger(daily_tokens);
            b.tool(tool)
        })
    };
    let (response, ..) = spends(0);
    assert_eq!(
        (response.output.as_str(), response.cost),
        ("done", None),
        "{:?}",
        response.error
    );
    let total = crate::usage::report(&dir, "2026-01-01").unwrap().total;
    assert_eq!((total.calls, total.usage.total()), (2, 1005));

    let (response, kept, offered) = spends(1000);
    assert_eq!((offered.len(), response.stop), (1, TurnStop::Limit));
    assert!(
        response
            .error
            .unwrap()
            .message
            .contains("the day's budget is used up")
    );
    assert_eq!(results(&kept).len(), 1, "what was done is kept");

    let used_up = ledger(1);
    let usage = Usage {
        prompt_tokens: 1,
        ..Usage::default()
    };
    let call = Call {
        model: "m",
        session: "s",
        channel: "c",
        usage,
        estimated: false,
        cost: None,
    };
    used_up.as_ref().unwrap().record(&call, SystemTime::now());
    let (response, kept, offered) = run(vec![says("done")], |mut b| {
        b.ledger = used_up;
        b
    });
    assert_eq!(
        (offered.len(), kept.len(), response.steps),
        (0, 0, 0),
        "a turn that never began leaves no trace"
    );
}

#[test]
fn empty_message_is_wrong_usage_and_stores_nothing() {
    let store = MemoryStore::default();
    let agent = Agent::builder()
        .provider(ScriptedProvider::default())
        .store(store.clone())
        .build()
        .unwrap();
    let response = agent.run(&Request::new(" \n", "a-key"), &|_| ());
    assert_eq!(response.error.unwrap().kind, Kind::Usage);
    assert!(store.read("a-key").unwrap().lines.is_empty());
}

/// A provider that refuses its key.
struct Locked;

impl Provider for Locked {
    fn model(&self) -> &'static str {
        "script/x"
    }

    fn chat(&self, _: &provider::Request, _: &dyn provider::Sink) -> Result<Reply, ProviderError> {
        Err(ProviderError::AuthFailed {
            message: "no such key".into(),
            no_key: false,
        })
    }
}

#[test]
fn a_refused_key_takes_back_a_question_whose_recording_was_transcribed() {
    let store = MemoryStore::default();
    let agent = Agent::builder()
        .provider(Locked)
        .store(store.clone())
        .build()
        .unwrap();
    let budget = agent.budget("a-key", "c");
    budget.begin(Spend::Other, || 1).unwrap();
    let request = Request {
        budget: Some(budget),
        ..Request::new("what was said", "a-key")
    };
    let response = agent.run(&request, &|_| ());
    assert_eq!(response.error.unwrap().kind, Kind::Auth);
    assert!(Session::peek(&store, "a-key").unwrap().messages.is_empty());
}
