//! Keeps a message open until its answer is in the outbox.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::activity::Turns;
use super::inbox::{self, Inbox, OpenMessage};
use super::incoming::Downloader;
use super::send::MessageSender;
use super::update::Attachment;
use super::{CHANNEL, Transcribe};
use crate::bus::{Ack, Inbound, Response, TurnStop};
use crate::cancel::Cancel;
use crate::disk::queue::{CALM, MAX_STARTS};
use crate::hands::Hands;
use crate::log::Level;
use crate::outbox::{Item, Pending};
use crate::text::LocalTime;

/// The most time to fetch the files of one message.
const DOWNLOAD_TIME: Duration = Duration::from_secs(300);

pub(super) struct TelegramAck {
    pub started: Instant,
    pub sender: Arc<MessageSender>,
    pub inbox: Inbox,
    /// The messages whose turns are under way.
    pub running: Mutex<Vec<String>>,
    /// Stores incoming files.
    pub hands: Arc<Hands>,
    pub local_time: LocalTime,
    pub transcribe: Option<Arc<Transcribe>>,
    pub turns: Turns,
}

impl TelegramAck {
    fn running(&self) -> MutexGuard<'_, Vec<String>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of these messages that are open.
    pub(super) fn open(&self, ids: &[String]) -> Vec<OpenMessage> {
        let found = self.inbox.find(ids);
        self.sender.is_ok("reading the inbox", &found);
        found.unwrap_or_default()
    }

    /// Records that the turns under way were put off, when the program ends in good order. The cancel is set by then.
    pub(super) fn halt(&self) {
        let running = std::mem::take(&mut *self.running());
        if !running.is_empty() {
            self.sender
                .is_ok("recording the shutdown", &self.inbox.halt(&running));
        }
    }

    /// Posts the answer to these messages. Returns whether it is on disk.
    pub(super) fn post(&self, chat: &str, text: &str, answers: &[String]) -> bool {
        let (to, text) = (format!("{CHANNEL}:{chat}"), text.to_owned());
        let item = Item {
            to,
            text,
            ..Item::default()
        };
        let posted = self.sender.outbox.post(&item, answers).map(drop);
        let is_kept = self.sender.is_ok("keeping an answer", &posted);
        if is_kept {
            self.ended(answers);
            self.sender.wake();
        } else if let Err(e) = self.sender.send(&Pending {
            item,
            ..Pending::default()
        }) {
            // It is sent anyway. Its message stays open and is answered again after a restart.
            (self.sender.log)(Level::Error, &format!("sending: {}", e.text()));
        }
        is_kept
    }

    fn ended(&self, ids: &[String]) {
        self.running().retain(|id| !ids.contains(id));
    }

    /// Marks these messages as answered.
    pub(super) fn close(&self, ids: &[String]) {
        self.ended(ids);
        self.sender.is_ok(
            "recording that a message was answered",
            &self.inbox.close(ids),
        );
    }

    /// Delays the last try of a message before quarantine until the program has been up for a while: being killed every other
    /// second, by a supervisor or a weak battery, is not the message's fault. `false`: the program is stopping.
    fn wait_for_calm(&self, ids: &[String]) -> bool {
        let starts = self.open(ids).iter().map(|open| open.starts).max();
        starts.unwrap_or(0) + 1 < MAX_STARTS
            || self
                .sender
                .cancel
                .sleep(CALM.saturating_sub(self.started.elapsed()))
                .is_ok()
    }
}

/// Whether a message came from Telegram; reports of background tasks are answered here, too.
fn is_own(message: &Inbound) -> bool {
    message
        .ids
        .first()
        .is_some_and(|id| id.starts_with(CHANNEL))
}

impl Ack for TelegramAck {
    fn begin(&self, message: &mut Inbound) -> bool {
        if !self.wait_for_calm(&message.ids) {
            return false;
        }
        // Held over the check: the shutdown records what is running after it has set the cancel.
        let mut running = self.running();
        if self.sender.cancel.why().is_some() {
            return false;
        }
        if is_own(message) {
            // It may have been edited. What is there tells of its files.
            let texts = inbox::texts(&self.open(&message.ids));
            message.text.insert_str(0, &texts);
            let started = self.inbox.start(&message.ids);
            self.sender.is_ok("recording that a turn begins", &started);
            running.extend(message.ids.iter().cloned());
        }
        true
    }

    fn end(&self, message: &Inbound, response: &Response) -> bool {
        self.turns.end(&message.origin.chat);
        self.post(&message.origin.chat, &final_text(response), &message.ids)
    }

    fn reply(&self, message: &Inbound, text: &str) -> bool {
        if text.is_empty() {
            self.close(&message.ids);
            return true;
        }
        self.post(&message.origin.chat, text, &message.ids)
    }

    fn progress(&self, message: &Inbound, text: &str) {
        if !text.trim().is_empty() {
            self.post(&message.origin.chat, text, &[]);
        }
    }

    fn fetch(&self, message: &mut Inbound, cancel: &Cancel) {
        if !is_own(message) {
            return;
        }
        message.text.clear();
        let files: Vec<Attachment> = self
            .open(&message.ids)
            .into_iter()
            .flat_map(|open| open.message.files)
            .collect();
        let stop = cancel.clone();
        let _hook = self.sender.cancel.on_stop(move || stop.stop());
        let downloader = Downloader {
            ack: self,
            cancel: &cancel.with_timeout(DOWNLOAD_TIME),
        };
        for file in files.iter().take_while(|_| cancel.why().is_none()) {
            downloader.attach(file, &mut message.text, &mut message.attachments);
        }
    }
}

/// The text that ends a turn in its chat.
fn final_text(response: &Response) -> String {
    let output = response.output.trim();
    let end = match &response.error {
        None => return output.to_owned(),
        Some(_) if response.stop == TurnStop::Cancelled => "(Stopped.)".to_owned(),
        // Its hint is for the terminal.
        Some(error) => format!("⚠️ {}", error.message),
    };
    format!("{output}\n\n{end}").trim_start().to_owned()
}
