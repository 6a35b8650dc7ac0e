//! Interrupted turns: derives their state from the lines of the conversation.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::*;
use crate::agent::ReceivedMessage;
use crate::agent::{Agent, Decision};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::message::{ToolCall, ToolResult};
use crate::provider::{self, Provider, ProviderError};
use crate::session::{Line, Loaded, MemoryStore, Store};
use crate::storage::Durability;
use crate::tool::Function;

/// Returns a store with the conversation `c` of these lines.
fn store(lines: &[Value]) -> MemoryStore {
    let store = MemoryStore::default();
    let header = json!({"v": 1, "session": "c", "created": "2026-11-27T10:00:00Z"});
    let lines: Vec<_> = std::iter::once(&header)
        .chain(lines)
        .map(|line| line.as_object().unwrap().clone())
        .collect();
    store.write("c", 0, &lines, Durability::Now).unwrap();
    store
}

fn question(id: &str) -> Value {
    json!({"role": "user", "content": "Tidy up.", "ids": [id]})
}

/// Returns a reply with the calls `c1` and `c2`.
fn two_calls() -> Value {
    let call = |id: &str| json!({"id": id, "name": "tidy", "arguments": "{}"});
    json!({"role": "assistant", "content": "", "tool_calls": [call("c1"), call("c2")]})
}

fn result(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": "tidied"})
}

#[test]
fn the_lines_of_a_conversation_tell_where_its_turn_stands() {
    let (answer, part) = (
        json!({"role": "assistant", "content": "Done."}),
        json!({"role": "assistant", "content": "Do", "partial": true}),
    );
    let asked = |id: &str| json!({"state": {"asked": id}});
    let end = |stop: &str| json!({"turn": stop});
    let note = json!({"role": "user", "content": "[sent]", "ids": ["1"], "kind": "note"});
    let awaiting = |ids: &[&str]| {
        let call = |id: &&str| ToolCall {
            id: (*id).to_owned(),
            name: "tidy".into(),
            arguments: "{}".into(),
            ..ToolCall::default()
        };
        Some(State::AwaitingApproval(ids.iter().map(call).collect()))
    };
    let own = question("m1");
    let request = Request {
        ids: vec!["m1".to_owned()],
        ..Request::new("Tidy up.", "c")
    };
    let table: Vec<(&str, Vec<Value>, Option<State>)> = vec![
        ("nothing", vec![], None),
        ("another question", vec![question("m0")], None),
        (
            "an answered one before it",
            vec![question("m1"), answer.clone(), end("done"), question("m2")],
            None,
        ),
        ("a question", vec![own.clone()], Some(State::Asking)),
        (
            "a call under way",
            vec![own.clone(), two_calls()],
            Some(State::Asking),
        ),
        (
            "a result",
            vec![own.clone(), two_calls(), result("c1")],
            Some(State::Asking),
        ),
        (
            "all results",
            vec![own.clone(), two_calls(), result("c1"), result("c2")],
            Some(State::Asking),
        ),
        (
            "asked about both",
            vec![own.clone(), two_calls(), asked("c1")],
            awaiting(&["c1", "c2"]),
        ),
        (
            "asked about the second",
            vec![own.clone(), two_calls(), result("c1"), asked("c2")],
            awaiting(&["c2"]),
        ),
        (
            "allowed",
            vec![own.clone(), two_calls(), asked("c1"), asked("")],
            Some(State::Asking),
        ),
        (
            "answered",
            vec![own.clone(), answer.clone(), end("done")],
            Some(State::Done),
        ),
        (
            "cut",
            vec![own.clone(), answer.clone(), end("length")],
            Some(State::Done),
        ),
        (
            "answered at its limit",
            vec![own.clone(), answer.clone(), end("limit")],
            Some(State::Done),
        ),
        (
            "answered, and a note",
            vec![own.clone(), answer.clone(), end("done"), note],
            Some(State::Done),
        ),
        (
            "answered without its end",
            vec![own.clone(), answer],
            Some(State::Asking),
        ),
        (
            "stopped",
            vec![own.clone(), end("cancelled")],
            Some(State::Done),
        ),
        (
            "timed out",
            vec![own.clone(), part, end("limit")],
            Some(State::Asking),
        ),
        (
            "failed",
            vec![own.clone(), end("error")],
            Some(State::Asking),
        ),
        (
            "taken back",
            vec![own, json!({"undo": 1}), end("error")],
            None,
        ),
    ];
    for (what, lines, wanted) in table {
        let store: Arc<dyn Store> = Arc::new(store(&lines));
        let mut open = OpenSession::open(&store, "c", &Cancel::new(None), &|| ()).unwrap();
        assert_eq!(resume(&mut open, &request), wanted, "{what}");
    }
}

#[test]
fn resumed_turn_counts_only_its_requests() {
    let mut calls = two_calls();
    calls["calls_used"] = json!(5);
    let failed = json!({"turn": "error"});
    let mut lines = vec![question("m0"), calls.clone(), result("c1"), failed];
    let used = |lines: &[Value]| calls_used(&Session::peek(&store(lines), "c").unwrap());
    assert_eq!(used(&lines), 5);
    lines.push(question("m1"));
    assert_eq!(used(&lines), 0);
    calls["calls_used"] = json!(2);
    lines.push(calls);
    assert_eq!(used(&lines), 2);
}

/// Calls `tidy`, answers after a result, and records the messages of the last request.
#[derive(Clone, Default)]
struct Tidies(Arc<Mutex<Vec<Message>>>);

impl Provider for Tidies {
    fn model(&self) -> &'static str {
        "script/x"
    }

    fn chat(
        &self,
        request: &provider::Request,
        _: &dyn provider::Sink,
    ) -> Result<Reply, ProviderError> {
        *self.0.lock().unwrap() = request.messages.to_vec();
        let is_result = |message: &Message| matches!(message, Message::ToolResult(_));
        if request.messages.iter().any(is_result) {
            return Ok(Reply {
                text: "Done.".to_owned(),
                ..Reply::default()
            });
        }
        let call = ToolCall {
            name: "tidy".to_owned(),
            arguments: "{}".to_owned(),
            ..ToolCall::default()
        };
        Ok(Reply {
            calls: vec![call],
            ..Reply::default()
        })
    }
}

#[test]
fn pending_call_results_precede_later_messages() {
    let lines = [
        question("m1"),
        two_calls(),
        json!({"state": {"asked": "c1"}}),
    ];
    let (store, seen) = (store(&lines), Tidies::default());
    let tidy = Function::new("tidy", "", r#"{"type":"object"}"#, |_: Value, _| {
        Ok("tidied")
    });
    let agent = Agent::builder()
        .provider(seen.clone())
        .tool(tidy)
        .confirm(["tidy"])
        .store(store.clone())
        .build()
        .unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    let waiting = Mutex::new(vec![ReceivedMessage {
        id: "m2".to_owned(),
        text: "Message m2.".to_owned(),
    }]);
    let request = Request {
        ids: vec!["m1".to_owned()],
        steering: Some(Arc::new(move || {
            std::mem::take(&mut waiting.lock().unwrap())
        })),
        confirm: Some(Arc::new(move |call| {
            log.lock().unwrap().push(call.id.clone());
            Decision::Yes
        })),
        ..Request::new("Tidy up.", "c")
    };
    let response = agent.run(&request, &|_| ());
    assert_eq!(response.output, "Done.", "{:?}", response.error);
    assert_eq!(*asked.lock().unwrap(), ["c1", "c2"]);
    let after_the_reply = |messages: &[Message]| -> Vec<String> {
        let told = |message: &Message| match message {
            Message::ToolResult(ToolResult {
                call_id, content, ..
            }) => {
                format!("{call_id} {content}")
            }
            Message::User(user) => user.content.clone(),
            _ => String::new(),
        };
        let spoken = messages[2..].iter();
        let all = spoken.filter(|message| !matches!(message, Message::Assistant(_)));
        all.take(3).map(told).collect()
    };
    let wanted = ["c1 tidied", "c2 tidied", "Message m2."];
    assert_eq!(after_the_reply(&seen.0.lock().unwrap()), wanted);
    let stored = Session::peek(&store, "c").unwrap();
    assert_eq!(after_the_reply(&stored.messages), wanted);
}

/// A store that fails after some more writes, like a killed program.
struct Dying {
    store: MemoryStore,
    left: AtomicUsize,
}

impl Store for Dying {
    fn read(&self, key: &str) -> Result<Loaded> {
        self.store.read(key)
    }

    fn write(&self, key: &str, from: usize, lines: &[Line], durability: Durability) -> Result<()> {
        let take = |left: usize| left.checked_sub(1);
        let taken = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        taken.map_err(|_| Error::failed("killed"))?;
        self.store.write(key, from, lines, durability)
    }

    fn list(&self) -> Result<Vec<String>> {
        self.store.list()
    }
}

#[test]
fn killed_steered_turn_repeats_no_message() {
    let part = |id: &str| ReceivedMessage {
        id: id.to_owned(),
        text: format!("Message {id}."),
    };
    let request = |id: &str| Request {
        ids: vec![id.to_owned()],
        ..Request::new(format!("Message {id}."), "c")
    };
    let agent = |model: &Tidies, store: Dying| {
        let tidy = Function::new("tidy", "", r#"{"type":"object"}"#, |_: Value, _| {
            Ok("tidied")
        });
        let builder = Agent::builder().provider(model.clone()).tool(tidy);
        builder.store(store).build().unwrap()
    };
    let mut killed = 0;
    for writes in 0.. {
        let (store, model) = (MemoryStore::default(), Tidies::default());
        let dying = |writes| Dying {
            store: store.clone(),
            left: AtomicUsize::new(writes),
        };
        let waiting = Arc::new(Mutex::new(vec![part("m2")]));
        let taken = waiting.clone();
        let first = agent(&model, dying(writes)).run(
            &Request {
                steering: Some(Arc::new(move || std::mem::take(&mut taken.lock().unwrap()))),
                ..request("m1")
            },
            &|_| (),
        );
        let is_taken = waiting.lock().unwrap().is_empty();
        let all = if is_taken { &["m1", "m2"][..] } else { &["m1"] };
        let mut left: Vec<&str> = all.to_vec();
        // After a restart, a taken message is answered with the first one if its line was stored, otherwise after it.
        while let Some(id) = left.first() {
            let last = agent(&model, dying(usize::MAX)).run(&request(id), &|_| ());
            assert_eq!(last.output, "Done.", "{writes}: {:?}", last.error);
            let id = (*id).to_owned();
            left.retain(|other| *other != id && !last.answered.iter().any(|one| one == other));
        }
        let stored = Session::peek(&store, "c").unwrap().messages;
        for (what, messages) in [
            ("asked", model.0.lock().unwrap().clone()),
            ("stored", stored),
        ] {
            let said = messages.iter().filter_map(|message| match message {
                Message::User(user) => Some(user.content.as_str()),
                _ => None,
            });
            let wanted = &["Message m1.", "Message m2."][..all.len()];
            assert_eq!(
                said.collect::<Vec<_>>(),
                wanted,
                "{what} after {writes} writes"
            );
        }
        if first.error.is_none() {
            break;
        }
        killed += 1;
    }
    assert!(killed > 4, "{killed}");
}
