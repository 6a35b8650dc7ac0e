//! Interrupted turns: derives their state from the lines of the conversation.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::cancel::Cancel;
use crate::message::ToolCall;
use crate::session::{MemoryStore, Store};
use crate::storage::Durability;

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
fn turn_state_follows_from_stored_lines() {
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
