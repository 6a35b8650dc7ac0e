//! Keeps a message open until its answer is in the outbox.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::activity::Turns;
use super::inbox::Inbox;
use super::incoming::Downloader;
use super::send::MessageSender;
use super::update::Attachment;
use super::{CHANNEL, MAX_CRASHES, Transcribe};
use crate::bus::{Ack, Inbound, Response, TurnStop};
use crate::cancel::Cancel;
use crate::hands::Hands;
use crate::log::Level;
use crate::outbox::{Item, Pending};
use crate::text::LocalTime;

/// How long the program must be up before the last try.
const CALM: Duration = Duration::from_secs(2);
/// The most time to fetch the files of one message.
const DOWNLOAD_TIME: Duration = Duration::from_secs(300);

pub(super) struct TelegramAck {
    pub started: Instant,
    pub sender: Arc<MessageSender>,
    pub inbox: Mutex<Inbox>,
    /// Stores incoming files.
    pub hands: Arc<Hands>,
    pub local_time: LocalTime,
    pub transcribe: Option<Arc<Transcribe>>,
    pub turns: Turns,
}

impl TelegramAck {
    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts the answer to these messages. Returns whether it is on disk.
    pub(super) fn post(&self, chat: &str, text: &str, answers: &[String]) -> bool {
        let (to, text) = (format!("{CHANNEL}:{chat}"), text.to_owned());
        let item = Item {
            to,
            text,
            answers: answers.to_vec(),
            ..Item::default()
        };
        let is_kept = self.sender.is_ok(
            "keeping an answer",
            &self.sender.outbox.post(&item).map(drop),
        );
        if is_kept {
            self.close(answers);
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

    /// Marks those of these messages as answered that came from Telegram.
    pub(super) fn close(&self, ids: &[String]) {
        let own: Vec<String> = ids
            .iter()
            .filter(|id| id.starts_with(CHANNEL))
            .cloned()
            .collect();
        self.sender.is_ok(
            "recording that a message was answered",
            &self.inbox().close(&own),
        );
    }

    /// Delays the last try of a message before quarantine until the program has been up for a while: being killed every other
    /// second, by a supervisor or a weak battery, is not the message's fault. `false`: the program is stopping.
    fn wait_for_calm(&self, ids: &[String]) -> bool {
        let crashes = self
            .inbox()
            .find(ids)
            .map(|open| open.crashes)
            .max()
            .unwrap_or(0);
        crashes + 1 < MAX_CRASHES
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
        let mut inbox = self.inbox();
        if self.sender.cancel.why().is_some() {
            return false;
        }
        if is_own(message) {
            // It may have been edited. What is there tells of its files.
            message.text.insert_str(0, &inbox.texts(&message.ids));
            self.sender
                .is_ok("recording that a turn begins", &inbox.start(&message.ids));
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
            .inbox()
            .find(&message.ids)
            .flat_map(|open| open.message.files.clone())
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
