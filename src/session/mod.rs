//! Conversations: the [`Store`] that keeps them, in [`FileStore`], in [`MemoryStore`], or in one of your own. A turn locks its
//! conversation. Programs list, read and erase conversations by the functions of [`crate::agent::Agent`].

// A session file is an append log in segments (see `storage::segments`). Line 0 is `{"v":1,"session","created"}`, in a
// later segment with a `title` and a `summary` of the conversation so far, the `state`, and the `base` that continues the line
// numbers. The other lines are messages with a time, `{"state":{"model":...}}`, `{"state":{"allowed":[...]}}`,
// `{"state":{"asked":CALL}}` or `{"state":{"value":{NAME:VALUE}}}`,
// `{"turn":STOP}` with a name of `TurnStop` at the end of each turn, and `{"undo":N}`: the lines from N on do not count. `began` in a
// later segment is when the conversation began. The bytes of images and other media lie beside the log (see `media`).

pub(crate) mod archive;
mod deferred;
mod files;
mod lines;
mod lock;
mod media;
mod memory;
mod open;
mod replay;
pub(crate) mod search;
mod store;
mod values;
pub(crate) mod versions;

use std::time::Duration;

use serde_json::Value;

use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::message::{Message, Reply, TurnStop};
pub(crate) use crate::paths::fresh_key;
pub use crate::paths::session_name as key;
use crate::paths::{UNNAMED, shown_key};
pub use crate::storage::Durability;
use crate::text::{counted, one_line};
pub use archive::SessionInfo;
use archive::newest_first;
pub(crate) use deferred::{deferred, displaced_by};
pub use files::FileStore;
pub(crate) use files::inspect;
use lock::lock_when_free;
pub(crate) use media::{NOT_SHOWN, SHOWN_TURNS};
pub use memory::MemoryStore;
pub(crate) use open::OpenSession;
use replay::replay;
pub use store::{Guard, Loaded, Store};
pub use values::Values;

use crate::paths::check_session;
use lines::{base, empty_undone, refuse_newer, turn_end};

/// How long to wait for another process that holds the conversation.
const LOCK_WAIT: Duration = Duration::from_secs(30);
/// How long to wait before the user is told.
const QUIET_WAIT: Duration = Duration::from_secs(1);

/// The result of a call that waited for the user's decision when the program ended, and of the calls after it.
const NOT_BEGUN: &str = "not run: the program ended before the user could say whether it may";

/// The longest title, in characters.
pub(crate) const MAX_TITLE: usize = 60;

/// A JSON object: one line of a conversation as a [`Store`] keeps it.
pub type Line = serde_json::Map<String, Value>;

/// One entry of a conversation, to be appended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Record<'a> {
    /// A message of the user, of the model or of a tool.
    Message(&'a Message),
    /// The turn is over.
    End(TurnStop),
    /// Sets [`Session::model`].
    Model(&'a str),
    /// Takes back all lines from this number on; see [`Session::next`].
    Undo(u64),
    /// Sets [`Session::allowed`].
    Allow(&'a [String]),
    /// The user is being asked about the call with this id; neither it nor any call after it in the reply has begun. Empty: the
    /// user has decided.
    Asked(&'a str),
    /// Sets the value of this name in [`Session::values`]; null removes it.
    Value(&'a str, &'a Value),
}

/// A conversation, as [`Agent::session`](crate::agent::Agent::session) shows it.
pub struct Session {
    /// The key of the conversation.
    pub name: String,
    /// The history: every call in it has exactly one result.
    pub messages: Vec<Message>,
    /// A model's summary of what came before the messages.
    pub summary: Option<String>,
    /// The model chosen for this conversation, as `--model` takes it.
    pub model: Option<String>,
    /// The tools that the user is no longer asked about in this conversation.
    pub allowed: Vec<String>,
    /// What programs and tools keep beside the messages, by name: a JSON object.
    pub values: Line,
    /// The beginning of its first question; empty if there is none.
    pub title: String,
    /// How the last turn ended; `None` if it has not.
    pub ended: Option<TurnStop>,
    /// When the conversation began, as RFC 3339 in UTC; empty if that is not known.
    pub created: String,
    /// The time of the last message, as RFC 3339 in UTC; empty if there is none.
    pub last: String,
    /// One sentence for each damage found in the file.
    pub damage: Vec<String>,
}

/// The channel of the library's own conversations.
pub(crate) const LIBRARY: &str = "library";

/// The channel of jobs, whose conversations are named after them.
const JOBS: &str = "cron";

/// Whether the user has not named this conversation. Those of jobs, and of questions without `-s`, have names that bantam made.
pub(crate) fn is_unnamed(key: &str) -> bool {
    match key.split_once('_') {
        Some((JOBS, _)) => true,
        Some(("cli" | LIBRARY, name)) => name.starts_with(UNNAMED),
        _ => false,
    }
}

impl Session {
    /// What a user recognizes it by: its name, the number of messages and the last question, or that it is new.
    pub(crate) fn describe(&self) -> String {
        let name = shown_key(&self.name);
        let last = self
            .messages
            .iter()
            .rev()
            .find_map(|message| match message {
                Message::User(user) if message.is_question() => Some(&user.content),
                _ => None,
            });
        match last {
            None => format!("{name} is a new conversation"),
            Some(last) => format!(
                "{name}: {}; you asked last: {}",
                counted(self.messages.len(), "message"),
                one_line(last, 60)
            ),
        }
    }

    /// Says what happened to the last question if it has no answer; otherwise a model would answer it together with the next
    /// one.
    pub(crate) fn close_turn(&mut self) {
        let text = match (
            self.messages.iter().rfind(|message| !message.is_note()),
            self.ended,
        ) {
            (None | Some(Message::System(_)), _) => return,
            (Some(Message::Assistant(reply)), _) if reply.calls.is_empty() => return,
            (_, Some(TurnStop::Cancelled)) => "[stopped by the user before an answer]",
            (_, Some(_)) => "[failed before an answer]",
            (_, None) => "[interrupted before an answer]",
        };
        self.messages.push(Message::Assistant(Reply {
            text: text.to_owned(),
            ..Reply::default()
        }));
    }

    /// Reads a conversation without locking or changing it. A new one is empty.
    ///
    /// # Errors
    /// [`Kind::Config`] when a newer program wrote it, [`Kind::Usage`] for a key that is no plain name, and errors of the storage.
    pub(crate) fn peek(store: &dyn Store, key: &str) -> Result<Self> {
        check_session(key)?;
        Ok(replay(key, store.read(key)?)?.session)
    }

    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            messages: Vec::new(),
            summary: None,
            model: None,
            allowed: Vec::new(),
            values: Line::new(),
            title: String::new(),
            ended: None,
            created: String::new(),
            last: String::new(),
            damage: Vec::new(),
        }
    }

    /// Gives it the title of this message, if it has none and this is a question.
    fn entitle(&mut self, message: &Message) {
        if let Message::User(user) = message {
            if self.title.is_empty() && message.is_question() {
                let title = if user.title.is_empty() {
                    &user.content
                } else {
                    &user.title
                };
                self.title = one_line(title, MAX_TITLE);
            }
        }
    }
}

/// Every conversation of a store, the one used last first.
pub(crate) fn list(store: &dyn Store) -> Result<Vec<SessionInfo>> {
    let mut list = Vec::new();
    for key in store.list()? {
        let read = || replay(&key, store.read(&key)?);
        match read() {
            Ok(erased) if erased.position.next == 0 => {}
            found => list.push(SessionInfo::of(&key, found.ok().map(|found| found.session))),
        }
    }
    Ok(newest_first(list))
}

/// Erases a conversation once no turn holds it, and returns whether there was one.
pub(crate) fn erase(store: &dyn Store, key: &str) -> Result<bool> {
    check_session(key)?;
    let _guard = lock_when_free(key, &Cancel::new(None), &|| (), || store.lock(key))?;
    // What cannot be read is there.
    let is_there = store
        .read(key)
        .map_or(true, |found| !found.lines.is_empty());
    store.write(key, 0, &[], Durability::Now)?;
    Ok(is_there)
}

/// Says what is busy, and what to do about it.
fn busy(name: &str, e: Error) -> Error {
    if e.kind != Kind::Busy {
        return e;
    }
    e.doing(format_args!("waiting for the conversation {name}"))
        .hint("another run is using it: wait for that, or use --session with another key")
}

#[cfg(test)]
mod tests;
