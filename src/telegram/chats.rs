//! What the gateway does in the bot's chats: it fetches the files of messages, and keeps what is said there.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::CHANNEL;
use super::Transcribe;
use super::activity::Turns;
use super::admission::Admit;
use super::choice::ModelLists;
use super::inbox::{Inbox, OpenMessage};
use super::incoming::Downloader;
use super::send::MessageSender;
use crate::bus::Inbound;
use crate::cancel::Cancel;
use crate::outbox::Item;
use crate::text::LocalTime;
use crate::usage::Budget;
use crate::worker::Workers;

/// The most time to fetch the files of one message.
const DOWNLOAD_TIME: Duration = Duration::from_secs(300);

pub(crate) struct Chats {
    pub sender: Arc<MessageSender>,
    pub inbox: Inbox,
    /// Stores incoming files.
    pub workers: Workers,
    /// Names the folder of the day.
    pub local_time: LocalTime,
    pub transcribe: Option<Arc<Transcribe>>,
    /// The user who is asked about calls.
    pub owner: Option<i64>,
    pub(super) turns: Turns,
    pub(super) lists: ModelLists,
    /// Set by the gateway, which may change config.json.
    pub admission: OnceLock<Box<Admit>>,
}

impl Chats {
    pub(crate) fn new(
        sender: Arc<MessageSender>,
        inbox: Inbox,
        workers: Workers,
        local_time: LocalTime,
        transcribe: Option<Arc<Transcribe>>,
        owner: Option<i64>,
    ) -> Arc<Self> {
        Arc::new(Self {
            sender,
            inbox,
            workers,
            local_time,
            transcribe,
            owner,
            turns: Turns::default(),
            lists: ModelLists::default(),
            admission: OnceLock::new(),
        })
    }

    /// Those of these messages that are not answered.
    pub(crate) fn open(&self, ids: &[String]) -> Vec<OpenMessage> {
        let found = self.inbox.find(ids);
        self.sender.is_ok("reading the inbox", &found);
        found.unwrap_or_default()
    }

    /// Fetches the files of messages, which may take minutes, and adds to the message what they hold.
    pub(crate) fn fetch(
        &self,
        open: &[OpenMessage],
        message: &mut Inbound,
        cancel: &Cancel,
        budget: &Budget,
    ) {
        let stop = cancel.clone();
        let _hook = self.sender.cancel.on_stop(move || stop.stop());
        let downloader = Downloader {
            chats: self,
            cancel: &cancel.with_timeout(DOWNLOAD_TIME),
            budget,
        };
        for file in open.iter().flat_map(|open| &open.message.files) {
            if cancel.reason().is_some() {
                return;
            }
            downloader.attach(file, &mut message.text, &mut message.attachments);
        }
    }

    /// Ends what shows that an answer is being written: a draft would stay below the answer.
    pub(crate) fn end_activity(&self, chat: &str) {
        self.turns.end(chat);
    }

    /// Posts to a chat and ends the messages that this answers. Returns whether it is on disk. An empty text is not sent.
    pub(crate) fn post(&self, chat: &str, text: &str, answered: &[String]) -> bool {
        if text.is_empty() {
            return self.close(answered);
        }
        let item = Item::text(&format!("{CHANNEL}:{chat}"), text);
        self.sender.post(item, answered)
    }

    /// Ends messages that need no answer.
    pub(crate) fn close(&self, ids: &[String]) -> bool {
        let closed = self.inbox.close(ids);
        self.sender
            .is_ok("recording that a message was answered", &closed)
    }
}
