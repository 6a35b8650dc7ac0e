//! Interrupted turns: derives their state from the lines of the conversation.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::cancel::Cancel;
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

/// Returns the line that a word of a row stands for.
fn line(word: &str) -> Value {
    let call = |id: &str| json!({"id": id, "name": "tidy", "arguments": "{}"});
    match word.split_once(':').unwrap_or((word, "")) {
        ("question", id) => json!({"role": "user", "content": "Tidy up.", "ids": [id]}),
        ("note", id) => json!({"role": "user", "content": "[sent]", "ids": [id], "kind": "note"}),
        ("calls", _) => {
            json!({"role": "assistant", "content": "", "tool_calls": [call("c1"), call("c2")]})
        }
        ("result", id) => json!({"role": "tool", "tool_call_id": id, "content": "tidied"}),
        ("asked", id) => json!({"state": {"asked": id}}),
        ("answer", _) => json!({"role": "assistant", "content": "Done."}),
        ("part", _) => json!({"role": "assistant", "content": "Do", "partial": true}),
        ("end", stop) => json!({"turn": stop}),
        ("undo", _) => json!({"undo": 1}),
        _ => panic!("{word}"),
    }
}

/// The words of stored lines, and the state of the turn that asks `m1`: `-` for none, or the calls that wait for an approval.
const ROWS: &str = "
- |
- | question:m0
- | question:m1 answer end:done question:m2
asking | question:m1
asking | question:m1 calls
asking | question:m1 calls result:c1
asking | question:m1 calls result:c1 result:c2
c1 c2 | question:m1 calls asked:c1
c2 | question:m1 calls result:c1 asked:c2
asking | question:m1 calls asked:c1 asked:
done | question:m1 answer end:done
done | question:m1 answer end:length
done | question:m1 answer end:limit
done | question:m1 answer end:done note:1
asking | question:m1 answer
done | question:m1 end:cancelled
asking | question:m1 part end:limit
asking | question:m1 end:error
- | question:m1 undo end:error";

#[test]
fn turn_state_follows_from_stored_lines() {
    let request = Request {
        ids: vec!["m1".to_owned()],
        ..Request::new("Tidy up.", "c")
    };
    for row in ROWS.trim().lines() {
        let (wanted, words) = row.split_once('|').unwrap();
        let lines: Vec<Value> = words.split_whitespace().map(line).collect();
        let store: Arc<dyn Store> = Arc::new(store(&lines));
        let mut open = OpenSession::open(&store, "c", &Cancel::new(None), &|| ()).unwrap();
        let state = match resume(&mut open, &request) {
            None => "-".to_owned(),
            Some(State::Asking) => "asking".to_owned(),
            Some(State::Done) => "done".to_owned(),
            Some(State::AwaitingApproval(calls)) => {
                let ids: Vec<_> = calls.iter().map(|call| call.id.as_str()).collect();
                ids.join(" ")
            }
            Some(State::Running(_)) => "running".to_owned(),
        };
        assert_eq!(state, wanted.trim(), "{row}");
    }
}
