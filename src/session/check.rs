//! The tests that every store must pass.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::{Durability, Entry, Session, Store, TurnEnd, unlisted};
use crate::cancel::Cancel;
use crate::message::{Message, Reply, ToolCall, User};

/// Names of conversations, as channels and users make them.
const NAMES: [&str; 3] = ["check_default", "check_日本 +1", "check_a%2Eb"];

/// Names that a path could be read from. A store takes them as they are, or refuses them.
const PATHS: [&str; 3] = ["./check_default", "check_a/../check_default", "check_a/b"];

/// Tests a store of your own: `open` opens it, the same one each time, as another part of the program or another process would.
/// It writes conversations whose names begin with `check_`, expects that there are none yet, and erases them at its end. A store
/// that does not list its conversations passes, too.
///
/// ```
/// use bantam::session::{Memory, check_store};
///
/// let memory = Memory::default();
/// check_store(|| memory.clone());
/// ```
///
/// # Panics
/// At the first requirement that the store does not meet, with a sentence that names it.
pub fn check_store<S: Store>(open: impl Fn() -> S + Sync) {
    for name in NAMES {
        keeps(&open, name);
    }
    for name in PATHS {
        keeps_or_refuses(&open, name);
    }
    takes_back(&open);
    begins_anew(&open);
    pairs(&open);
    locks(&open);
    takes_turns(&open);
    lists_and_erases(&open);
}

fn user(text: &str) -> Message {
    Message::User(User {
        content: text.to_owned(),
        ..User::default()
    })
}

fn reply(text: &str) -> Message {
    Message::Assistant(Reply {
        text: text.to_owned(),
        ..Reply::default()
    })
}

/// The texts of the messages.
fn texts(session: &Session) -> Vec<String> {
    let text = |message: &Message| match message {
        Message::System(text) => text.clone(),
        Message::User(user) => user.content.clone(),
        Message::Assistant(reply) => reply.text.clone(),
        Message::ToolResult(result) => result.content.clone(),
    };
    session.messages.iter().map(text).collect()
}

fn load<S: Store>(store: &S, name: &str) -> Session {
    store
        .load(name, &Cancel::new(None), &|| {})
        .unwrap_or_else(|e| panic!("loading {name}: {e}"))
}

fn append<S: Store>(store: &S, session: &mut Session, entries: &[Entry]) {
    store
        .append(session, entries, Durability::Now, SystemTime::now())
        .unwrap_or_else(|e| panic!("appending to {}: {e}", session.name));
}

fn keeps<S: Store>(open: &impl Fn() -> S, name: &str) {
    let store = open();
    let seen = store.peek(name).expect("a new conversation can be read");
    assert!(seen.messages.is_empty(), "{name} is not new");
    let mut session = load(&store, name);
    assert_eq!(session.name, name, "a session has the name it is loaded by");
    let (asked, answered) = (user("Is 🐓 a bird?\n\0"), reply("Yes."));
    append(&store, &mut session, &[Entry::Message(&asked)]);
    append(
        &store,
        &mut session,
        &[
            Entry::Message(&answered),
            Entry::Model("a/b"),
            Entry::TurnEnd(TurnEnd::Done),
        ],
    );
    let next = session.next();
    drop(session);
    for seen in [
        store.peek(name).expect("reading"),
        open().peek(name).expect("reading after opening it anew"),
        load(&open(), name),
    ] {
        assert_eq!(
            texts(&seen),
            ["Is 🐓 a bird?\n\0", "Yes."],
            "{name}: what was appended comes back, in its order"
        );
        assert_eq!(
            (seen.model.as_deref(), seen.ended, seen.next()),
            (Some("a/b"), Some(TurnEnd::Done), next),
            "{name}: every line comes back"
        );
    }
}

fn keeps_or_refuses<S: Store>(open: &impl Fn() -> S, name: &str) {
    let store = open();
    let loaded = store.load(name, &Cancel::new(None), &|| {}).is_ok();
    assert_eq!(
        store.peek(name).is_ok(),
        loaded,
        "{name} is refused whenever it is read, or never"
    );
    if loaded {
        keeps(open, name);
    }
}

fn takes_back<S: Store>(open: &impl Fn() -> S) {
    let name = "check_undo";
    let store = open();
    let mut session = load(&store, name);
    let (one, two) = (user("one"), user("two"));
    append(
        &store,
        &mut session,
        &[Entry::Message(&one), Entry::Message(&reply("1"))],
    );
    drop(session);
    let mut session = load(&store, name);
    let undo = Entry::Undo(session.next());
    append(&store, &mut session, &[Entry::Message(&two), undo]);
    drop(session);
    assert_eq!(
        texts(&load(&store, name)),
        ["one", "1"],
        "what is taken back does not come back, and the rest does"
    );
}

fn begins_anew<S: Store>(open: &impl Fn() -> S) {
    let name = "check_renew";
    let store = open();
    let mut session = load(&store, name);
    append(
        &store,
        &mut session,
        &[
            Entry::Message(&user("old")),
            Entry::Model("a/b"),
            Entry::Value("mood", &"fair".into()),
            Entry::Value("gone", &1.into()),
            Entry::Value("gone", &Value::Null),
            Entry::Message(&reply("gone")),
        ],
    );
    let place = session.place();
    let kept = vec![reply("kept")];
    store
        .renew(
            &mut session,
            Some("before".to_owned()),
            kept,
            SystemTime::now(),
        )
        .expect("a new segment can begin");
    append(&store, &mut session, &[Entry::Message(&user("new"))]);
    assert!(session.place() > place, "no line has the number of another");
    drop(session);
    let seen = load(&store, name);
    assert_eq!(
        texts(&seen),
        ["kept", "new"],
        "what was replaced is not read"
    );
    assert_eq!(
        (seen.summary.as_deref(), seen.model.as_deref()),
        (Some("before"), Some("a/b")),
        "the summary and the model are kept"
    );
    let values = serde_json::to_string(&seen.values).unwrap_or_default();
    assert_eq!(
        (values.as_str(), seen.title.as_str()),
        (r#"{"mood":"fair"}"#, "old"),
        "the values and the title are kept"
    );
}

fn pairs<S: Store>(open: &impl Fn() -> S) {
    let name = "check_calls";
    let store = open();
    let mut session = load(&store, name);
    let call = Message::Assistant(Reply {
        calls: vec![ToolCall {
            id: "1".to_owned(),
            name: "look".to_owned(),
            arguments: "{}".to_owned(),
            ..ToolCall::default()
        }],
        ..Reply::default()
    });
    append(
        &store,
        &mut session,
        &[Entry::Message(&user("look")), Entry::Message(&call)],
    );
    drop(session);
    let seen = load(&store, name);
    assert!(
        matches!(seen.messages.last(), Some(Message::ToolResult(_))),
        "a call that was under way has a result: use Session::read"
    );
}

fn locks<S: Store>(open: &impl Fn() -> S) {
    let name = "check_lock";
    let (first, second) = (open(), open());
    let held = load(&first, name);
    drop(load(&second, "check_lock_of_another"));
    second.peek(name).expect("reading needs no lock");
    let told = AtomicUsize::new(0);
    let is_told = || {
        told.fetch_add(1, Ordering::SeqCst);
    };
    let cancel = Cancel::new(Some(Duration::from_millis(1500)));
    let refused = second.load(name, &cancel, &is_told);
    assert!(
        refused.is_err(),
        "a conversation is loaded once at a time: here, a second one of the stores that were opened loaded it, too. Clone one \
         LineStore, whose clones share their locks, or implement Lines::lock if other processes use the same lines"
    );
    assert_eq!(
        told.load(Ordering::SeqCst),
        1,
        "whoever waits for a second is told, once"
    );
    drop(held);
    drop(load(&second, name));
}

/// Leaves none of the conversations behind.
fn lists_and_erases<S: Store>(open: &impl Fn() -> S) {
    let store = open();
    let is_listed = |name: &str| match store.list() {
        Ok(list) => Some(list.iter().any(|summary| summary.key == name)),
        Err(e) if e.message == unlisted().message => None,
        Err(e) => panic!("list: {e}"),
    };
    let others = [
        "check_undo",
        "check_renew",
        "check_calls",
        "check_turns",
        "check_lock",
        "check_lock_of_another",
    ];
    for name in NAMES.into_iter().chain(PATHS).chain(others) {
        let is_there = store.peek(name).is_ok_and(|seen| seen.next() > 0);
        if !is_there {
            continue;
        }
        assert_ne!(is_listed(name), Some(false), "{name} is in the list");
        let erased = store.erase(name);
        assert_eq!(erased, Ok(true), "{name} can be erased");
        assert_ne!(
            is_listed(name),
            Some(true),
            "{name} is erased, so it is not in the list"
        );
        let seen = open().peek(name).expect("reading what is erased");
        assert_eq!(seen.next(), 0, "{name} is erased, so it is new");
        assert_eq!(store.erase(name), Ok(false), "{name} is erased already");
    }
}

fn takes_turns<S: Store>(open: &(impl Fn() -> S + Sync)) {
    let name = "check_turns";
    thread::scope(|scope| {
        for who in 0..4 {
            scope.spawn(move || {
                let store = open();
                for n in 0..5 {
                    let mut session = load(&store, name);
                    let text = format!("{who} {n}");
                    append(&store, &mut session, &[Entry::Message(&user(&text))]);
                    thread::yield_now();
                    append(&store, &mut session, &[Entry::Message(&reply(&text))]);
                }
            });
        }
    });
    let all = texts(&load(&open(), name));
    assert_eq!(all.len(), 40, "nothing is lost: {all:?}");
    for pair in all.chunks(2) {
        assert_eq!(pair[0], pair[1], "turns do not mix: {all:?}");
    }
}
