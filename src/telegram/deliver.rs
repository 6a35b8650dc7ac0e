//! Delivers to a chat from one-shot commands: through the running gateway, else directly.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::api::Api;
use super::{CHANNEL, MessageSender};
use crate::bus::Response;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::notify::is_running;
use crate::outbox::{Item, Note, Outbox};
use crate::paths::Home;
use crate::sync;
use crate::test_speed::paced;
use crate::text::to_single_line;

/// Time limit for a delivery; a send in progress is completed.
const WAIT: Duration = Duration::from_secs(30);

/// Delivers the messages of a command's turns.
pub(crate) struct Delivery {
    home: Home,
    outbox: Outbox,
    api: Arc<Api>,
    /// Shows a line to the user.
    notice: fn(&str),
}

impl Delivery {
    pub(crate) fn new(home: &Home, api: Arc<Api>, notice: fn(&str)) -> Self {
        Self {
            home: home.clone(),
            outbox: Outbox::new(home.clone()),
            api,
            notice,
        }
    }

    /// Delivers a turn's answer to a chat, with a note under the title in the chat's conversation, and the messages that the
    /// turn posted with the tool `message`. A failure becomes the turn's error, unless the turn has one.
    pub(crate) fn deliver(&self, response: &mut Response, to: Option<(String, String)>) {
        if let Some((chat, title)) = to {
            let delivered = self.answer(&chat, response, &title);
            self.tell(response, delivered);
        }
        if response
            .tool_calls
            .iter()
            .any(|call| call.ok && call.name == "message")
        {
            self.send_posted();
        }
    }

    /// Delivers a posted message, and all other messages that the turn posted.
    pub(crate) fn deliver_posted(&self, response: &mut Response, id: &str, to: &str) {
        let delivered = self.confirm(id, to);
        self.tell(response, delivered);
        self.send_posted();
    }

    /// Stores a failure as the turn's error, unless the turn has one.
    fn tell(&self, response: &mut Response, delivered: Result<()>) {
        match delivered {
            Ok(()) => {}
            Err(e) if response.error.is_none() => response.error = Some(e),
            Err(e) => (self.notice)(&e.message),
        }
    }

    /// Delivers a turn's answer, unless it is partial or empty.
    fn answer(&self, chat: &str, response: &Response, title: &str) -> Result<()> {
        let text = response.answer_for_chat();
        if response.partial || text.is_empty() {
            return Ok(());
        }
        let note = Note {
            title,
            from: &response.session,
            text: &text,
        };
        self.post(chat, &note)
    }

    /// Sends a text of the user, and adds a note to the chat's conversation.
    ///
    /// # Errors
    /// Telegram rejected the text, or did not accept it within 30 s; in that case it remains in the outbox.
    pub(crate) fn send(&self, chat: &str, text: &str) -> Result<()> {
        let note = Note {
            title: "A program sent this to the chat",
            from: "",
            text,
        };
        self.post(chat, &note)
    }

    fn post(&self, chat: &str, note: &Note) -> Result<()> {
        let to = format!("{CHANNEL}:{chat}");
        let item = Item::text(&to, note.text);
        let id = self.outbox.post(&item, &[], Some(note))?;
        self.confirm(&id, &to)
    }

    /// Sends a message, or waits until a gateway has sent it.
    fn confirm(&self, id: &str, to: &str) -> Result<()> {
        let queue = &self.outbox.inbox.queue;
        let is_done = || {
            let open = self.outbox.pending(&mut |entry| entry.id == id);
            open.is_ok_and(|open| open.is_empty())
        };
        let last = self.send_until(&is_done)?;
        let what = format!("delivering the answer to {to}");
        if let Some(why) = queue.given_up(id)? {
            let hint = "write to the bot from that chat first";
            return Err(Error::failed(why).doing(what).hint(hint));
        }
        if is_done() {
            return Ok(());
        }
        let secs = WAIT.as_secs();
        let what = format!("{what}: Telegram did not accept the message within {secs} s ({last})");
        let next = "run `bantam gateway`, which sends the queued message";
        Err(Error::failed(what).hint(next))
    }

    /// Sends messages that turns posted with the tool `message`, unless a gateway is running.
    pub(crate) fn send_posted(&self) {
        let is_done = || {
            let pending = self.outbox.pending(&mut |_| true);
            pending.is_ok_and(|pending| pending.is_empty())
        };
        if is_done() || is_running(&self.home) {
            return;
        }
        let why = self.send_until(&is_done).unwrap_or_else(|e| e.message);
        if !is_done() {
            (self.notice)(&format!(
                "a message waits in the outbox until bantam gateway runs: {why}"
            ));
        }
    }

    /// Sends the outbox, or waits while another process sends it, until `is_done` or a timeout. Returns the last problem.
    fn send_until(&self, is_done: &dyn Fn() -> bool) -> Result<String> {
        let last = Arc::new(Mutex::new("no try has ended".to_owned()));
        let heard = last.clone();
        let log = move |_, line: &str| {
            *sync::lock(&heard) = to_single_line(line, 300);
        };
        // Of its own, because this sender ends here.
        let (api, outbox) = (self.api.clone(), Outbox::new(self.home.clone()));
        let cancel = Cancel::new(Some(paced(WAIT)));
        MessageSender::new(api, outbox, cancel, Arc::new(log), None).deliver_until(is_done)?;
        let last = sync::lock(&last).clone();
        Ok(last)
    }
}
