//! The gateway's access to the bot's chats: downloads the files of messages, and posts answers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::json;

use super::CHANNEL;
use super::Transcribe;
use super::activity::Turns;
use super::admission::Admit;
use super::incoming::{Downloader, UNHEARD};
use super::send::MessageSender;
use super::strangers::Strangers;
use super::update::name;
use crate::bus::Inbound;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::outbox::Item;
use crate::text::LocalTime;
use crate::usage::Budget;
use crate::worker::Workers;

/// Time limit for finding the name of a chat.
const NAMING_TIME: Duration = Duration::from_secs(5);
/// Time limit for downloading the files of one message.
const DOWNLOAD_TIME: Duration = Duration::from_secs(300);

pub(crate) struct Chats {
    pub sender: Arc<MessageSender>,
    pub(super) strangers: Strangers,
    /// Id of the bot.
    pub bot: i64,
    /// Workers that store incoming files.
    pub workers: Arc<Workers>,
    /// Clock for the name of the day's directory.
    pub local_time: LocalTime,
    pub transcribe: Option<Arc<Transcribe>>,
    pub(super) turns: Turns,
    /// Strangers whom the owner was asked to let in.
    pub(super) asked: Mutex<BTreeSet<i64>>,
    /// Set by the gateway, which can change config.json.
    pub admission: OnceLock<Box<Admit>>,
}

impl Chats {
    pub(crate) fn new(
        sender: Arc<MessageSender>,
        bot: i64,
        workers: Arc<Workers>,
        local_time: LocalTime,
        transcribe: Option<Arc<Transcribe>>,
    ) -> Arc<Self> {
        let queue = sender.outbox.queue().clone();
        Arc::new(Self {
            sender,
            strangers: Strangers::new(queue, bot),
            bot,
            workers,
            local_time,
            transcribe,
            turns: Turns::default(),
            asked: Mutex::default(),
            admission: OnceLock::new(),
        })
    }

    /// Downloads the files of a message, which may take minutes, and adds their contents to the message.
    ///
    /// # Errors
    /// Returns an error if the message is only a recording, and its words are unknown.
    pub(crate) fn fetch(
        &self,
        message: &mut Inbound,
        cancel: &Cancel,
        budget: &Budget,
    ) -> Result<()> {
        let (files, is_bare) = (message.files().to_vec(), message.text.is_empty());
        let stop = cancel.clone();
        let _hook = self.sender.cancel.on_stop(move || stop.stop());
        let downloader = Downloader {
            chats: self,
            cancel: &cancel.with_timeout(DOWNLOAD_TIME),
            budget,
        };
        for file in &files {
            if cancel.reason().is_some() {
                return Ok(());
            }
            downloader.attach(file, &mut message.text, &mut message.media);
        }
        match (&files[..], message.text.rsplit_once(UNHEARD)) {
            // A stop is told as the end of the turn.
            _ if cancel.reason().is_some() => Ok(()),
            ([file], Some((_, why))) if is_bare && file.is_media => {
                let why = why.trim_end_matches(']');
                let what = "the recording could not be transcribed";
                Err(Error::failed(format!("{what}: {why}")))
            }
            _ => Ok(()),
        }
    }

    /// Names a chat for its owner: by the name that Telegram knows for it, if it answers, and by its number.
    pub(crate) fn describe(&self, chat: &str, cancel: &Cancel) -> String {
        let id = chat.split('_').next().unwrap_or_default();
        let asked = json!({"chat_id": id});
        let within = cancel.with_timeout(NAMING_TIME);
        match self
            .sender
            .api
            .call("getChat", &asked, Duration::ZERO, &within)
        {
            Ok(known) => format!("{} ({chat})", name(&known)),
            Err(_) => chat.to_owned(),
        }
    }

    /// Ends the typing action and drafts, because a later draft would appear after the answer.
    pub(crate) fn end_activity(&self, chat: &str) {
        self.turns.end(chat);
    }

    /// Posts to a chat and finishes the answered messages. Returns whether this is on disk. An empty text is not sent.
    pub(crate) fn post(&self, chat: &str, text: &str, answered: &[String]) -> bool {
        if text.is_empty() {
            let ended = self.sender.outbox.inbox().finish(answered);
            return self.sender.is_ok("ending a message", &ended);
        }
        let item = Item::text(&format!("{CHANNEL}:{chat}"), text);
        self.sender.post(&item, answered, None)
    }
}
