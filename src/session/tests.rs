//! Sessions as files and in memory: replay, renewal and media. tests/it/bytes.rs cuts files and flips bits.

use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::cancel::Cancel;
use crate::message::ToolResult;
use crate::message::{Media, Reply, ToolCall, Usage, User};
use crate::test_dir::TestDir;
use crate::text::rfc3339;

fn asks(ids: &[&str]) -> Message {
    let calls = ids
        .iter()
        .map(|id| ToolCall {
            id: (*id).into(),
            ..ToolCall::default()
        })
        .collect();
    Message::Assistant(Reply {
        calls,
        ..Reply::default()
    })
}

fn answers(id: &str, content: &str) -> Message {
    Message::ToolResult(ToolResult {
        call_id: id.into(),
        content: content.into(),
        ..ToolResult::default()
    })
}

#[test]
fn a_message_too_long_for_any_model_is_refused() {
    let dir = TestDir::new();
    let store = files(&dir);
    let mut open = load(&store);
    let add = |open: &mut OpenSession, text: String| {
        let message = Message::user(&text);
        open.append(
            &[Record::Message(&message)],
            Durability::Now,
            SystemTime::now(),
        )
    };
    let refused = add(&mut open, "\u{1}".repeat(1 << 20)).unwrap_err();
    assert!(
        refused.message.contains("takes 6.0 MB"),
        "{}",
        refused.message
    );
    add(&mut open, "x".repeat(4_100_000)).unwrap();
    drop(open);
    assert_eq!(load(&store).session.messages.len(), 1);
}

fn files(dir: &TestDir) -> Arc<dyn Store> {
    Arc::new(FileStore::new(dir.home()))
}

fn load(store: &Arc<dyn Store>) -> OpenSession {
    OpenSession::open(store, "s", &Cancel::new(None), &|| ()).unwrap()
}

fn peek(store: &Arc<dyn Store>) -> Session {
    Session::peek(&**store, "s").unwrap()
}

fn at(second: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + second)
}

/// Appends these messages, one per second.
fn say(open: &mut OpenSession, messages: &[Message]) {
    for (second, message) in (0..).zip(messages) {
        let mut message = message.clone();
        if let Message::User(user) = &mut message {
            user.time = rfc3339(at(second));
        }
        open.append(&[Record::Message(&message)], Durability::Now, at(second))
            .unwrap();
    }
}

fn some() -> Vec<Message> {
    let image = Media {
        mime: "image/png".into(),
        base64: "iVBORw==".into(),
        ..Media::default()
    };
    let user = User {
        content: "what is 日本?".into(),
        media: vec![image],
        ..User::default()
    };
    let usage = Usage {
        prompt_tokens: 7,
        completion_tokens: 2,
        cached_tokens: 1,
    };
    let reply = Message::Assistant(Reply {
        text: "A \"country\".".into(),
        usage,
        ..Reply::default()
    });
    vec![
        Message::user("hi"),
        reply.clone(),
        Message::User(user),
        asks(&["a", "b"]),
        answers("a", "1"),
        answers("b", "2"),
        reply,
    ]
}

/// Checks that a renewal keeps the summary, the messages with their times and the state, and that line numbers remain unique.
fn renewal_keeps(store: &Arc<dyn Store>) {
    let mut open = load(store);
    say(&mut open, &some());
    open.append(
        &[Record::Model("a/b"), Record::Model("x/y")],
        Durability::Now,
        at(9),
    )
    .unwrap();
    let place = open.place();
    let kept = open.session.messages[2..].to_vec();
    open.renew(Some("said hi".into()), kept.clone(), at(10))
        .unwrap();
    assert_eq!((open.place(), &open.session.messages), (place, &kept));
    for again in [peek(store), {
        drop(open);
        load(store).session
    }] {
        assert_eq!(
            (again.summary.as_deref(), &again.messages),
            (Some("said hi"), &kept)
        );
        assert_eq!(again.model.as_deref(), Some("x/y"));
    }
    let mut open = load(store);
    assert_eq!(open.place(), place);
    say(&mut open, &[Message::user("more")]);
    assert_eq!(open.place(), place + 1);
    open.append(&[Record::Model("z")], Durability::Now, at(11))
        .unwrap();
    // A renewal without a summary and messages begins a new conversation, with the state of the old one.
    open.renew(None, Vec::new(), at(12)).unwrap();
    drop(open);
    let open = load(store);
    assert_eq!(
        (
            open.session.summary.as_ref(),
            open.session.messages.len(),
            open.session.model.as_deref()
        ),
        (None, 0, Some("z"))
    );
    assert!(open.place() > place);
}

#[test]
fn a_renewal_keeps_what_it_is_given_and_the_state() {
    let dir = TestDir::new();
    renewal_keeps(&files(&dir));
    assert_eq!(peek(&files(&dir)).model.as_deref(), Some("z"));
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::default());
    renewal_keeps(&memory);
}

#[test]
fn no_media_stand_in_for_others_of_the_same_checksum() {
    // Contents that differ by a multiple of the polynomial have equal checksums.
    let polynomial = (0xedb8_8320_u64 << 1) | 1;
    let made = |number: u64| {
        let bits = (0..8).filter(|bit| number >> bit & 1 == 1);
        let bytes = bits.fold(0, |bytes, bit| bytes ^ (polynomial << bit));
        bytes.to_le_bytes()
    };
    assert_eq!(crc32fast::hash(&made(1)), crc32fast::hash(&made(77)));
    let dir = TestDir::new();
    let store = files(&dir);
    let mut open = load(&store);
    let mut look = |number| {
        let media = Media {
            mime: "image/png".into(),
            base64: STANDARD.encode(made(number)),
            ..Media::default()
        };
        let question = Message::User(User {
            content: "look".into(),
            media: vec![media],
            ..User::default()
        });
        open.append(&[Record::Message(&question)], Durability::Later, at(number))
    };
    look(1).unwrap();
    let e = look(77).unwrap_err();
    assert!(e.message.contains("the checksum"), "{}", e.message);
    let Some(Message::User(user)) = peek(&store).messages.pop() else {
        panic!("it is the user's");
    };
    assert_eq!(user.media[0].base64, STANDARD.encode(made(1)));
}
