//! Posts to chats: by the sender of the bot or, without one, to the outbox, from which a bot that is on again delivers.

use std::sync::Arc;

use crate::log::{Sink, log_error};
use crate::outbox::{Item, Note, Outbox};
use crate::telegram::Chats;

#[derive(Clone)]
pub(crate) struct Poster {
    pub outbox: Outbox,
    /// The chats of the bot, if there is one.
    pub chats: Option<Arc<Chats>>,
    pub log: Sink,
}

impl Poster {
    /// Posts a message and ends those that it answers. Returns whether it is on disk.
    pub(super) fn post(&self, item: Item, ends: &[String], note: Option<&Note>) -> bool {
        match &self.chats {
            Some(chats) => chats.sender.post(item, ends, note),
            None => log_error(&self.log, self.outbox.post_noted(&item, ends, note)).is_some(),
        }
    }
}
