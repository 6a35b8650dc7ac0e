//! The gateway's access to the bot's chats: downloads the files of messages, and posts answers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::json;

use super::activity::ActiveTurns;
use super::admission::Admit;
use super::incoming::{Downloader, UNHEARD};
use super::send::MessageSender;
use super::strangers::Strangers;
use super::update::name;
use super::{CHANNEL, Transcribe, Watch};
use crate::bus::Inbound;
use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::log::Level;
use crate::outbox::Item;
use crate::paths::session_name;
use crate::session;
use crate::sync;
use crate::text::LocalTime;
use crate::usage::Budget;
use crate::worker::Workers;

/// Time limit for finding the name of a chat.
const NAMING_TIME: Duration = Duration::from_secs(5);
/// Time limit for the end of a turn in a group that moves, for which all chats wait.
const FOLLOW_TIME: Duration = Duration::from_secs(1);
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
    pub(super) turns: ActiveTurns,
    /// Strangers whom the owner was asked to let in.
    pub(super) asked: Mutex<BTreeSet<i64>>,
    /// Chats and the kinds of unanswered messages that they or the owner were told of.
    told: Mutex<BTreeSet<String>>,
    /// Set by the gateway, which can change config.json.
    pub admission: OnceLock<Box<Admit>>,
    /// Set by the gateway, which restarts after a change.
    pub watch: OnceLock<Watch>,
}

impl Chats {
    pub(crate) fn new(
        sender: Arc<MessageSender>,
        bot: i64,
        workers: Arc<Workers>,
        local_time: LocalTime,
        transcribe: Option<Arc<Transcribe>>,
    ) -> Arc<Self> {
        let queue = sender.outbox.inbox.queue.clone();
        Arc::new(Self {
            sender,
            strangers: Strangers::new(queue, bot),
            bot,
            workers,
            local_time,
            transcribe,
            turns: ActiveTurns::default(),
            asked: Mutex::default(),
            told: Mutex::default(),
            admission: OnceLock::new(),
            watch: OnceLock::new(),
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

    /// Gives the conversation of a group to the supergroup that it became, unless that one has begun its own.
    ///
    /// # Errors
    /// Returns an error if the program is stopping. After other errors, the conversation stays behind.
    pub(super) fn follow(&self, old: i64, new: i64) -> Result<()> {
        let [from, to] = [old, new].map(|chat| session_name(CHANNEL, &chat.to_string()));
        let within = self.sender.cancel.with_timeout(FOLLOW_TIME);
        let home = &self.sender.outbox.home;
        let end = match session::archive::rename(home, &from?, &to?, &within) {
            Ok(false) => return Ok(()),
            Ok(true) => "its conversation continues",
            Err(e) if e.kind == Kind::Interrupted => return Err(e),
            Err(e) => &format!("its conversation stays behind: {e}"),
        };
        let text = format!("the group {old} is the supergroup {new} now; {end}");
        (self.sender.log)(Level::Info, &text);
        Ok(())
    }

    /// Notifies the owner once per group, until the next start, that its messages with a hidden author are not answered.
    pub(super) fn report_hidden(&self, chat: i64, name: &str) {
        let is_new = sync::lock(&self.told).insert(format!("{chat} hidden"));
        if let (true, Some(owner)) = (is_new, self.sender.owner) {
            let text = format!(
                "Somebody in the group {name} ({chat}) writes to this bot as the group or as a channel. I cannot see who it is, so \
                 I do not answer. For administrators, switch off “Remain anonymous”."
            );
            (self.sender.log)(Level::Info, &text);
            self.post(&owner.to_string(), &text);
        }
    }

    /// Tells a chat once, until the next start, that the bot cannot read messages of this kind.
    pub(super) fn report_unreadable(&self, chat: &str, kind: &str) {
        let is_new = sync::lock(&self.told).insert(format!("{chat} {kind}"));
        if is_new {
            let text = format!(
                "I cannot read messages of this kind ({kind}). Send it as text or as a file."
            );
            (self.sender.log)(Level::Info, &format!("to {chat}: {text}"));
            self.post(chat, &text);
        }
    }

    /// Ends the typing action and drafts, because a later draft would appear after the answer.
    pub(crate) fn end_activity(&self, chat: &str) {
        self.turns.end(chat);
    }

    /// Posts to a chat. An empty text is not sent.
    pub(crate) fn post(&self, chat: &str, text: &str) {
        if !text.is_empty() {
            let to = format!("{CHANNEL}:{chat}");
            self.sender.post(&Item::text(&to, text));
        }
    }
}
