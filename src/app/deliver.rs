//! Delivers to a chat from a command other than the gateway: the running gateway sends, else the command itself.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::bot::Bot;
use crate::bus::Response;
use crate::cancel::Cancel;
use crate::config::{Config, Env};
use crate::error::{Error, Result};
use crate::gateway::status::is_running;
use crate::outbox::{Item, Note, Outbox, Outcome};
use crate::pace::paced;
use crate::paths::Home;
use crate::telegram::api::Api;
use crate::telegram::{CHANNEL, MessageSender};
use crate::text::one_line;

/// How long to wait for a delivery. What is being sent then is finished.
const WAIT: Duration = Duration::from_secs(30);

/// Delivers what turns of a command send.
pub(crate) struct Delivery {
    home: Home,
    outbox: Outbox,
    api: Arc<Api>,
    /// Shows a line to the user.
    notice: fn(&str),
}

impl Delivery {
    /// `None` without a bot, which is an error when there is a chat `to` deliver to: it is reported before the model is asked.
    pub(crate) fn find(
        home: &Home,
        config: &Config,
        env: &Env,
        to: Option<&str>,
        notice: fn(&str),
    ) -> Result<Option<Self>> {
        match Bot::new(&config.channels.telegram, home, env) {
            Err(e) if to.is_some() => Err(e),
            Err(_) => Ok(None),
            Ok(bot) => {
                let outbox = Outbox::new(home.clone());
                Ok(Some(Self {
                    home: home.clone(),
                    outbox,
                    api: bot.api,
                    notice,
                }))
            }
        }
    }

    /// Delivers the answer of a turn to the chat of `to`, noted there under the title, and what the turn has posted with the
    /// tool `message`. A failure becomes the turn's error, unless it has one.
    pub(crate) fn deliver(&self, response: &mut Response, to: Option<(String, String)>) {
        match (
            to.map_or(Ok(()), |(chat, title)| self.answer(&chat, response, &title)),
            &response.error,
        ) {
            (Ok(()), _) => {}
            (Err(e), None) => response.error = Some(e),
            (Err(e), Some(_)) => (self.notice)(&e.message),
        }
        if response
            .tool_calls
            .iter()
            .any(|call| call.ok && call.name == "message")
        {
            self.send_posted();
        }
    }

    /// Delivers the answer of a turn, unless it is partial or empty.
    fn answer(&self, chat: &str, response: &Response, title: &str) -> Result<()> {
        let text = response.output.trim();
        if response.partial || text.is_empty() {
            return Ok(());
        }
        let to = format!("{CHANNEL}:{chat}");
        let note = Note {
            title,
            from: &response.session,
            text,
        };
        let posted = self
            .outbox
            .post_and_note(&Item::text(&to, text), &[], &note)?;
        if let Err(e) = posted.noted {
            (self.notice)(&one_line(&e.message, 300));
        }
        let id = posted.id;
        let last =
            self.send_until(&|| !matches!(self.outbox.outcome(&id), Ok(Outcome::Pending)))?;
        let what = format!("delivering the answer to {to}");
        match self.outbox.outcome(&id)? {
            Outcome::Sent => Ok(()),
            Outcome::GivenUp(why) => Err(Error::failed(why)
                .doing(what)
                .hint("write to the bot from that chat first")),
            Outcome::Pending => {
                let last = if last.is_empty() {
                    last
                } else {
                    format!(" ({last})")
                };
                let runs = is_running(&self.home);
                let next = if runs {
                    "the gateway keeps trying"
                } else {
                    "bantam gateway sends it when it runs"
                };
                Err(Error::failed(format!(
                    "{what}: not taken within {} s{last}",
                    WAIT.as_secs()
                ))
                .hint(format!("it stays in the outbox; {next}")))
            }
        }
    }

    /// Sends what turns have posted with the tool `message`, unless a gateway does.
    pub(crate) fn send_posted(&self) {
        let is_done = || {
            self.outbox
                .pending()
                .is_ok_and(|pending| pending.is_empty())
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

    /// Sends the outbox, or waits while another process does, until `is_done` or a timeout. Returns the last problem.
    fn send_until(&self, is_done: &dyn Fn() -> bool) -> Result<String> {
        let last = Arc::new(Mutex::new(String::new()));
        let heard = last.clone();
        let log = move |_, line: &str| {
            *heard.lock().unwrap_or_else(PoisonError::into_inner) = one_line(line, 300);
        };
        let (api, outbox) = (self.api.clone(), self.outbox.clone());
        MessageSender::new(api, outbox, Cancel::new(Some(paced(WAIT))), Arc::new(log))
            .deliver_until(is_done)?;
        let last = last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(last)
    }
}
