//! Conversations: the [`Store`] trait, implemented by [`FileStore`], [`MemoryStore`] and custom stores. A turn locks its
//! conversation. Programs list, read and erase conversations through [`crate::agent::Agent`].

// A session file is an append log in segments (see `storage::segments`). Line 0 is `{"v":1,"session","created"}`, in a later
// segment with a `title` and a `summary` of the conversation so far, the `state`, the `base` that continues the line numbers,
// and the start of the conversation as `began`. The other lines are messages with a time, `{"state":{"model":...}}`,
// `{"state":{"allowed":[...]}}`, `{"state":{"asked":CALL}}` or `{"state":{"value":{NAME:VALUE}}}`, `{"turn":STOP}` with a name
// of `TurnStop` at the end of each turn, and `{"undo":N}`, which undoes the lines from N on. Media bytes are stored next to the
// log (see `media`).

pub(crate) mod archive;
mod deferred;
mod entries;
mod files;
mod lock;
mod media;
mod open;
mod replay;
pub(crate) mod search;
mod store;
mod values;
pub(crate) mod versions;

use std::time::Duration;

use serde_json::Value;

use crate::cancel::Cancel;
use crate::error::Result;
use crate::message::{Message, Reply, TurnStop};
pub(crate) use crate::paths::fresh_key;
pub use crate::paths::session_name as key;
use crate::paths::{UNNAMED, check_session, shown_key};
pub use crate::storage::Durability;
use crate::text::{counted, to_single_line};
pub use archive::SessionInfo;
use archive::newest_first;
pub(crate) use deferred::{deferred, displaced_by};
pub(crate) use entries::{Entry, Item, entries};
use entries::{of_lines, title};
pub use files::FileStore;
use lock::lock_when_free;
pub(crate) use media::{NOT_SHOWN, SHOWN_TURNS};
pub(crate) use open::OpenSession;
pub use store::{Guard, MemoryStore, Store};
pub use values::Values;

/// Time to wait for a conversation that another process has locked.
const LOCK_WAIT: Duration = Duration::from_secs(30);
/// Time to wait before the user is told.
const QUIET_WAIT: Duration = Duration::from_secs(1);

/// Result of a call that waited for the user's decision when the program ended, and of the calls after it.
const NOT_BEGUN: &str = "not run: the program ended before the user could say whether it may";

/// Maximum length of a title, in characters.
pub(crate) const MAX_TITLE: usize = 60;

/// A JSON object, one line of a conversation in a [`Store`].
pub type Line = serde_json::Map<String, Value>;

/// One entry of a conversation, to be appended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Record<'a> {
    /// A message of the user, of the model or of a tool.
    Message(&'a Message),
    /// The turn has ended.
    End(TurnStop),
    /// Sets [`Session::model`].
    Model(&'a str),
    /// Undoes all lines from this number on.
    Undo(u64),
    /// Sets [`Session::allowed`].
    Allow(&'a [String]),
    /// The user is being asked about the call with this id; it and the calls after it in the reply have not begun. Empty after
    /// the user's decision.
    Asked(&'a str),
    /// Sets the value of this name in [`Session::values`]; null removes it.
    Value(&'a str, &'a Value),
}

/// A conversation, as returned by [`Agent::session`](crate::agent::Agent::session).
#[derive(Default)]
pub struct Session {
    /// Key of the conversation.
    pub name: String,
    /// History, in which every call has exactly one result.
    pub messages: Vec<Message>,
    /// A model's summary of the conversation before the messages.
    pub summary: Option<String>,
    /// Model chosen for this conversation, as accepted by `--model`.
    pub model: Option<String>,
    /// Tools that the user has allowed for the whole conversation.
    pub allowed: Vec<String>,
    /// Values that programs and tools store with the conversation, by name: a JSON object.
    pub values: Line,
    /// Beginning of its first question; empty without a question.
    pub title: String,
    /// How the last turn ended; `None` before that.
    pub ended: Option<TurnStop>,
    /// Start of the conversation, as RFC 3339 in UTC; empty if unknown.
    pub created: String,
    /// Time of the last message, as RFC 3339 in UTC; empty without messages.
    pub last: String,
    /// One sentence for each damage in the file.
    pub damage: Vec<String>,
    /// Number in the conversation of its segment's first line.
    pub(crate) base: u64,
    /// Number of the next line in its segment.
    pub(crate) next: u64,
    /// Number in the conversation of the user's last message.
    pub(crate) asked: u64,
    /// Whether the title is that of a question that counts.
    has_title: bool,
    /// Id of the call about which the user is being asked; empty if none.
    asked_about: String,
    /// Results that the file lacks at its end.
    missing: Vec<Message>,
    /// Number of results at the end, of calls that have not begun. They are not in the file.
    not_begun: usize,
    /// Whether a turn was undone, and no turn has begun or ended since.
    pub(crate) is_undone: bool,
}

/// Channel of the library's own conversations.
pub(crate) const LIBRARY: &str = "library";

/// Channel of jobs, whose conversations are named after the job.
const JOBS: &str = "cron";

/// Whether bantam made the name of this conversation. That includes conversations of jobs, and of questions without `-s`.
pub(crate) fn is_unnamed(key: &str) -> bool {
    match key.split_once('_') {
        Some((JOBS, _)) => true,
        Some(("cli" | LIBRARY, name)) => name.starts_with(UNNAMED),
        _ => false,
    }
}

impl Session {
    /// Describes the conversation for a user: its name, the number of messages and the last question, or that it is new.
    pub(crate) fn describe(&self) -> String {
        let name = to_single_line(&shown_key(&self.name), 80);
        let Some(last) = self.messages.iter().rev().find_map(title) else {
            return format!("{name}: a new conversation");
        };
        let count = counted(self.messages.len(), "message");
        format!("{name}: {count}; you asked last: {last}")
    }

    /// Adds a reply to a last question without an answer; otherwise a model would answer it together with the next question.
    pub(crate) fn close_turn(&mut self) {
        let last = self.messages.iter().rfind(|message| !message.is_note());
        let text = match (last, self.ended) {
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

    /// Reads a conversation without locking or changing it. A new conversation is empty.
    ///
    /// # Errors
    /// Returns an error of the kind `Config` if a newer program wrote it, `Usage` for an invalid key, and errors of the storage.
    pub(crate) fn peek(store: &dyn Store, key: &str) -> Result<Self> {
        check_session(key)?;
        let lines = store.read(key)?;
        let count = lines.len();
        let session = Self::of(key, of_lines(key, lines)?)?;
        // Lines about damage are not in the store.
        let next = (count - session.damage.len()) as u64;
        Ok(Self { next, ..session })
    }

    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }
}

/// Lists all conversations of a store by last use, the newest first.
pub(crate) fn list(store: &dyn Store) -> Result<Vec<SessionInfo>> {
    let mut list = Vec::new();
    for key in store.list()? {
        match store.read(&key) {
            Ok(lines) if lines.is_empty() => {}
            lines => {
                let entries = lines.and_then(|lines| of_lines(&key, lines));
                list.push(SessionInfo::of(&key, entries));
            }
        }
    }
    Ok(newest_first(list))
}

/// Erases a conversation after its turn has ended, and returns whether it existed.
pub(crate) fn erase(store: &dyn Store, key: &str) -> Result<bool> {
    check_session(key)?;
    let _guard = lock_when_free(key, &Cancel::new(None), &|| (), || store.lock(key))?;
    // An unreadable conversation exists.
    let is_there = store.read(key).map_or(true, |lines| !lines.is_empty());
    store.write(key, 0, &[], Durability::Now)?;
    Ok(is_there)
}

#[cfg(test)]
mod tests;
