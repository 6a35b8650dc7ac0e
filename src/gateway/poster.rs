//! Posts to chats: through the bot's sender or, without a bot, to the outbox, which the bot delivers when it is enabled again.

use std::sync::Arc;

use crate::log::{Logger, log_error};
use crate::outbox::{Item, Note, Outbox};
use crate::telegram::Chats;

#[derive(Clone)]
pub(crate) struct Poster {
    pub outbox: Outbox,
    /// The bot's chats, if there is a bot.
    pub chats: Option<Arc<Chats>>,
    pub log: Logger,
}

impl Poster {
    /// Posts a message and finishes the answered messages. Returns whether this is on disk.
    pub(super) fn post(&self, item: &Item, ends: &[String], note: Option<&Note>) -> bool {
        match &self.chats {
            Some(chats) => chats.sender.post(item, ends, note),
            None => log_error(&self.log, self.outbox.post(item, ends, note)).is_some(),
        }
    }
}
