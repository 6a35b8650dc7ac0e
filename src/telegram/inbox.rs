//! Incoming messages, kept from before Telegram forgets them until they are answered.
//!
//! They are items of the home's queue, as are the unknown users who wrote: a bot reads its own.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::update::IncomingMessage;
use crate::error::Result;
use crate::storage::{Entry, Queue};

/// Unknown users to remember and tell of. Further ones are ignored: anybody can make accounts and write from them.
const MAX_UNKNOWN_USERS: usize = 200;
/// Which items of the queue are messages, and which are unknown users.
const MESSAGE: &str = "in";
const UNKNOWN: &str = "stranger";

/// A message that is not answered yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OpenMessage {
    /// Its id on the bus.
    pub id: String,
    pub message: IncomingMessage,
    /// The messages that its last turn answered together; empty before the first turn.
    pub group: Vec<String>,
    /// Turns of it that never ended.
    pub starts: u32,
}

/// What the queue has of a message.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct KeptMessage {
    bot: i64,
    #[serde(flatten)]
    message: IncomingMessage,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct UnknownUser {
    bot: i64,
    user: i64,
}

#[derive(Clone)]
pub(crate) struct Inbox {
    queue: Arc<Queue>,
    bot: i64,
}

impl Inbox {
    /// The inbox of the bot with this number.
    pub(crate) fn new(queue: Arc<Queue>, bot: i64) -> Self {
        Self { queue, bot }
    }

    /// The open messages, the oldest first.
    pub(crate) fn all(&self) -> Result<Vec<OpenMessage>> {
        let entries = self.queue.entries(MESSAGE)?;
        Ok(self.own(entries))
    }

    /// Those of these messages that are open.
    pub(crate) fn find(&self, ids: &[String]) -> Result<Vec<OpenMessage>> {
        let entries = self.queue.find(ids)?;
        Ok(self.own(entries))
    }

    /// Those of these items that are messages of this bot.
    pub(crate) fn own(&self, entries: Vec<Entry>) -> Vec<OpenMessage> {
        let mut own = Vec::new();
        for entry in entries {
            let kept: KeptMessage = entry.read();
            if entry.kind == MESSAGE && kept.bot == self.bot {
                own.push(OpenMessage {
                    id: entry.id,
                    message: kept.message,
                    group: entry.group,
                    starts: entry.starts,
                });
            }
        }
        own
    }

    pub(crate) fn has_seen(&self, update: u64) -> Result<bool> {
        let id = id(update);
        Ok(self.queue.is_done(&id)? || !self.find(&[id])?.is_empty())
    }

    /// Records unknown users while there is room, and returns those that are new.
    pub(crate) fn keep_unknown_users(&self, mut users: Vec<i64>) -> Result<Vec<i64>> {
        let known = self.unknown_users()?;
        users.retain(|user| !known.contains(user));
        users.truncate(MAX_UNKNOWN_USERS.saturating_sub(known.len()));
        let entry = |user: &i64| {
            let (bot, user) = (self.bot, *user);
            let id = format!("{UNKNOWN}:{bot}:{user}");
            Entry::new(&id, UNKNOWN, &UnknownUser { bot, user })
        };
        let entries: Vec<Entry> = users.iter().map(entry).collect();
        self.queue.add_later(&entries)?;
        Ok(users)
    }

    fn unknown_users(&self) -> Result<Vec<i64>> {
        let mut users = Vec::new();
        for entry in self.queue.entries(UNKNOWN)? {
            let kept: UnknownUser = entry.read();
            if kept.bot == self.bot {
                users.push(kept.user);
            }
        }
        Ok(users)
    }

    /// Records the messages of a poll. An edit replaces the text of its message until the first turn of that begins. On disk
    /// when this returns.
    pub(crate) fn keep(&self, messages: &[(u64, IncomingMessage)]) -> Result<()> {
        let open = if messages.iter().any(|(_, message)| message.is_edit) {
            self.all()?
        } else {
            Vec::new()
        };
        let mut changed: Vec<(String, IncomingMessage)> = Vec::new();
        for (update, message) in messages {
            if !message.is_edit {
                changed.push((id(*update), message.clone()));
                continue;
            }
            let is_same =
                |other: &IncomingMessage| other.id == message.id && other.chat == message.chat;
            if let Some((_, new)) = changed.iter_mut().rfind(|(_, new)| is_same(new)) {
                new.text.clone_from(&message.text);
            } else if let Some(open) = open
                .iter()
                .find(|open| is_same(&open.message) && open.group.is_empty())
            {
                let text = message.text.clone();
                let edited = IncomingMessage {
                    text,
                    ..open.message.clone()
                };
                changed.push((open.id.clone(), edited));
            }
        }
        let bot = self.bot;
        let entry = |(id, message): (String, IncomingMessage)| {
            Entry::new(&id, MESSAGE, &KeptMessage { bot, message })
        };
        let entries: Vec<Entry> = changed.into_iter().map(entry).collect();
        self.queue.add(&entries)
    }

    /// Records that these messages are answered.
    pub(crate) fn close(&self, ids: &[String]) -> Result<()> {
        self.queue.done(ids)
    }
}

/// The texts of messages that are answered together.
pub(crate) fn texts(messages: &[OpenMessage]) -> String {
    let texts = messages
        .iter()
        .map(|open| open.message.text.as_str())
        .filter(|text| !text.is_empty());
    texts.collect::<Vec<_>>().join("\n\n")
}

#[derive(Debug, Default)]
pub(crate) struct InboxStatus {
    /// How many messages are open.
    pub waiting: usize,
    /// Users who wrote and are not in `allow_from`.
    pub unknown_users: Vec<i64>,
}

/// Reads the messages of all bots and changes nothing.
pub(crate) fn status(queue: &Queue) -> Result<InboxStatus> {
    let unknown = queue.entries(UNKNOWN)?;
    Ok(InboxStatus {
        waiting: queue.entries(MESSAGE)?.len(),
        unknown_users: unknown
            .iter()
            .map(|entry| entry.read::<UnknownUser>().user)
            .collect(),
    })
}

/// The id of a message on the bus.
pub(crate) fn id(update: u64) -> String {
    format!("{}:{update}", super::CHANNEL)
}

#[cfg(test)]
mod tests;
