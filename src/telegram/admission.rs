//! Admits a stranger: the owner presses a button and confirms it, and the user's id is added to `allow_from`.

use super::CHANNEL;
use super::chats::Chats;
use super::update::Press;
use crate::error::Result;
use crate::log::Level;
use crate::outbox::{Button, Item};
use crate::sync;

/// Prefixes of the button data: request to admit, confirmation, and rejection.
const LET_IN: &str = "let:";
const CONFIRM: &str = "letin:";
const IGNORE: &str = "ignore:";

/// Adds a user's id to `channels.telegram.allow_from` of config.json.
pub(crate) type Admit = dyn Fn(i64) -> Result<()> + Send + Sync;

/// A user who is not in `allow_from`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stranger {
    pub id: i64,
    /// User name without the `@`; empty if the user has none.
    pub username: String,
    /// Display name, sanitized.
    pub name: String,
}

fn button(text: &str, data: &str, user: i64) -> Button {
    Button {
        text: text.to_owned(),
        data: format!("{data}{user}"),
    }
}

impl Chats {
    /// Notifies the owner of a stranger who wrote, with buttons to admit or ignore them.
    pub(super) fn announce(&self, stranger: &Stranger) {
        let Stranger { id, username, name } = stranger;
        let username = if username.is_empty() {
            String::new()
        } else {
            format!(", @{username}")
        };
        let text = format!(
            "Unknown users wrote to this bot and were not answered: {id}{username}, who calls themselves “{name}”."
        );
        (self.sender.log)(Level::Info, &text);
        let Some(owner) = self.sender.owner else {
            return;
        };
        let buttons = [button("Let in", LET_IN, *id), button("Ignore", IGNORE, *id)];
        let item = Item {
            buttons: vec![buttons.to_vec()],
            ..Item::text(&format!("{CHANNEL}:{owner}"), &text)
        };
        self.sender.post(&item);
    }

    /// Handles a press of these buttons, and returns the text to show; `None` for other buttons.
    pub(super) fn press_admission(&self, press: &Press) -> Option<String> {
        let (data, user) = press.data.split_once(':')?;
        let data = [LET_IN, CONFIRM, IGNORE]
            .into_iter()
            .find(|known| known.trim_end_matches(':') == data)?;
        let user: i64 = user.parse().ok()?;
        // Only in the owner's private chat, whose id equals the owner's.
        if Some(press.from) != self.sender.owner || press.chat != press.from.to_string() {
            return Some("Only the owner of this bot can answer.".to_owned());
        }
        // A client of the owner may send any data.
        if !self.strangers.is_known(user).unwrap_or(false) {
            return Some("This user has not written to this bot.".to_owned());
        }
        // The confirmation counts only after its question, and only once.
        let is_confirmed = sync::lock(&self.asked).remove(&user) && data == CONFIRM;
        let (text, buttons) = match data {
            LET_IN | CONFIRM if !is_confirmed => (
                format!(
                    "Let {user} in? They can then use all tools, commands included, change the workspace, and make me write to \
                     your chats."
                ),
                vec![vec![
                    button("Yes, let in", CONFIRM, user),
                    button("No", IGNORE, user),
                ]],
            ),
            LET_IN | CONFIRM => (self.admit(user), Vec::new()),
            _ => (format!("{user} is ignored."), Vec::new()),
        };
        if !buttons.is_empty() {
            sync::lock(&self.asked).insert(user);
        }
        let item = Item {
            buttons,
            edits: Some(press.message),
            ..Item::text(&format!("{CHANNEL}:{}", press.chat), &text)
        };
        self.sender.post(&item);
        Some(String::new())
    }

    /// Admits a user, and returns the result for the owner.
    fn admit(&self, user: i64) -> String {
        let admitted = self.admission.get().map(|admit| admit(user));
        match admitted {
            Some(Ok(())) => {
                self.post(&user.to_string(), "You may write to me now.");
                format!("{user} may write to me now.")
            }
            Some(Err(e)) => format!("⚠️ {user} could not be let in: {}", e.message),
            None => format!("⚠️ Add {user} to channels.telegram.allow_from by hand."),
        }
    }
}
