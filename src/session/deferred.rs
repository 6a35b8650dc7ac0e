//! Deferred messages: messages to a chat from elsewhere (a job, `--to`, the tool `message`), for the chat's conversation.
//!
//! A turn may lock the conversation for minutes, and the sender must neither wait for it nor lose the message. So the message
//! waits in the home's queue, added in one write together with its delivery. Opening the conversation imports the message and
//! then ends the queue item. A crash between the two repeats no message, because the conversation has the ids.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::entries::fields;
use super::{Line, Record};
use crate::error::{Context, Result};
use crate::message::{Message, User, UserKind};
use crate::paths::TELEGRAM;
use crate::storage::{Entry, Queue};
use crate::text::{clip, fenced, millis, rfc3339};

/// Kind of the queue items that are deferred messages.
const KIND: &str = "deferred";
/// Maximum number of messages that wait for one conversation; a job may write for months to an abandoned chat.
const MAX_WAITING: usize = 50;
/// Maximum size of the waiting messages, in bytes; the newest one always waits.
const MAX_BYTES: usize = 64 << 10;
/// Maximum size of one message, in bytes.
const MAX_TEXT: usize = 32 << 10;

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Deferred {
    session: String,
    content: String,
    /// Time of arrival, in milliseconds since 1970.
    at: u64,
}

/// Creates a message for the conversation `session`, with `title` as the source of `text`.
pub(crate) fn deferred(id: &str, session: &str, title: &str, text: &str) -> Entry {
    let shown = clip(text, MAX_TEXT);
    let cut = if shown.len() < text.len() {
        format!("\n[cut at {MAX_TEXT} bytes]")
    } else {
        String::new()
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let item = Deferred {
        session: session.to_owned(),
        // Marks the text as data, because its author may repeat an attacker's words.
        content: format!("[{title}]\n{}{cut}", fenced(shown)),
        at: millis(now.unwrap_or_default()),
    };
    Entry::new(&format!("{id}-deferred"), KIND, &item)
}

/// Returns the ids of waiting messages that a new one displaces.
pub(crate) fn displaced_by(new: &Entry, queue: &Queue) -> Result<Vec<String>> {
    let new: Deferred = new.read();
    let waiting = all(queue, &new.session)?;
    let (mut left, mut bytes) = (waiting.len(), new.content.len());
    for (_, older) in waiting.iter().rev().take(MAX_WAITING - 1) {
        bytes += older.content.len();
        left -= usize::from(bytes <= MAX_BYTES);
    }
    Ok(waiting.into_iter().take(left).map(|(id, _)| id).collect())
}

/// Returns the waiting messages of a conversation, the oldest first, with their ids.
fn all(queue: &Queue, session: &str) -> Result<Vec<(String, Deferred)>> {
    let entries = queue.select(KIND, &mut |entry| entry.item["session"] == session)?;
    let all = entries.into_iter();
    Ok(all.map(|entry| (entry.id.clone(), entry.read())).collect())
}

/// Deferred messages of a conversation.
#[derive(Default)]
pub(super) struct Waiting {
    /// Ids of all of them.
    pub ids: Vec<String>,
    /// Messages that the conversation does not contain yet, the oldest first. The others were imported before a crash.
    pub lines: Vec<Line>,
}

/// Finds the deferred messages of the conversation with these lines. Takes no lock.
pub(super) fn waiting(queue: &Queue, session: &str, lines: &[Line]) -> Result<Waiting> {
    let mut waiting = Waiting::default();
    if !session.starts_with(TELEGRAM) {
        // Only Telegram chats get deferred messages, so a question at the terminal need not read the queue.
        return Ok(waiting);
    }
    let found = all(queue, session);
    for (id, deferred) in found.doing("reading what was sent to the chat")? {
        waiting.ids.push(id.clone());
        if !lines.iter().any(|line| is_deferred(line, &id)) {
            waiting.lines.push(line_of(id, deferred));
        }
    }
    Ok(waiting)
}

fn is_deferred(line: &Line, id: &str) -> bool {
    line.get("kind").and_then(Value::as_str) == Some("note")
        && line.get("ids").is_some_and(|ids| *ids == json!([id]))
}

fn line_of(id: String, deferred: Deferred) -> Line {
    let time = rfc3339(UNIX_EPOCH + Duration::from_millis(deferred.at));
    let message = Message::User(User {
        content: deferred.content,
        time: time.clone(),
        ids: vec![id],
        kind: UserKind::Note,
        ..User::default()
    });
    fields(&Record::Message(&message), &time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancel::Cancel;
    use crate::paths::Home;
    use crate::session::{FileStore, OpenSession, Session, Store};
    use crate::test_dir::TestDir;
    use std::sync::Arc;

    fn open(home: &Home) -> OpenSession {
        let store: Arc<dyn Store> = Arc::new(FileStore::new(home.clone()));
        OpenSession::open(&store, "telegram_1", &Cancel::new(None), &|| ()).unwrap()
    }

    /// Returns the ids of all messages that have one.
    fn ids(session: &Session) -> Vec<String> {
        let id = |message: &Message| match message {
            Message::User(user) => user.ids.first().cloned(),
            _ => None,
        };
        session.messages.iter().filter_map(id).collect()
    }

    fn defer(home: &Home, id: &str, text: &str) {
        let queue = Queue::of_home(home);
        let new = deferred(id, "telegram_1", "The job sent this", text);
        let ended = displaced_by(&new, &queue).unwrap();
        queue.add(&[new], &ended).unwrap();
    }

    fn count_waiting(home: &Home) -> usize {
        Queue::of_home(home)
            .select(KIND, &mut |_| true)
            .unwrap()
            .len()
    }

    #[test]
    fn of_many_messages_the_newest_wait() {
        let dir = TestDir::new();
        let home = &dir.home();
        for n in 0..120 {
            defer(home, &n.to_string(), &"x".repeat(1000));
            assert!(count_waiting(home) <= MAX_WAITING);
        }
        let session = open(home).session;
        let found = ids(&session);
        assert_eq!(
            (found.len(), found[0].as_str(), found[49].as_str()),
            (MAX_WAITING, "70-deferred", "119-deferred")
        );
        // Large messages are limited by bytes, and the newest one always waits.
        for n in 0..4 {
            defer(home, &format!("large{n}"), &"x".repeat(1 << 20));
        }
        let session = open(home).session;
        let Some(Message::User(last)) = session.messages.last() else {
            panic!()
        };
        assert_eq!(
            (ids(&session).len(), last.ids[0].as_str()),
            (51, "large3-deferred")
        );
        assert!(last.content.ends_with("[cut at 32768 bytes]"));
    }

    #[test]
    fn deferred_messages_survive_crash_without_duplicates() {
        let dir = TestDir::new();
        let home = &dir.home();
        for id in ["a", "b"] {
            defer(home, id, "text");
        }
        let queue = home.state().join("queue.jsonl");
        let waiting = fs_err::read(&queue).unwrap();
        assert_eq!(ids(&open(home).session).len(), 2);
        let lines = fs_err::read(home.session("telegram_1")).unwrap();
        fs_err::write(&queue, &waiting).unwrap();
        // Simulates each crash, which left part of the conversation and the whole queue.
        for cut in 0..=lines.len() {
            fs_err::write(home.session("telegram_1"), &lines[..cut]).unwrap();
            fs_err::write(&queue, &waiting).unwrap();
            let found = ids(&open(home).session);
            assert_eq!(found, ["a-deferred", "b-deferred"], "cut at {cut}");
            assert_eq!(count_waiting(home), 0);
        }
    }
}
