//! The choice of a model by buttons.

use super::CHANNEL;
use super::chats::Chats;
use super::update::{IncomingMessage, Press};
use crate::error::Result;
use crate::outbox::{Button, Item};

/// Maximum number of models with a button; any other name can be typed.
const MAX_MODELS: usize = 20;
/// Maximum size of a button's data, in bytes (Bot API, `callback_data`).
const MAX_DATA: usize = 64;
/// Prefix of the data of a model's button.
const MODEL: &str = "m:";

impl Chats {
    /// Posts a reply with a button for each of the first models, and finishes the answered messages.
    pub(crate) fn offer_models(
        &self,
        chat: &str,
        text: &str,
        models: &[String],
        answered: &[String],
    ) {
        let fits = |name: &&String| MODEL.len() + name.len() <= MAX_DATA;
        let row = |name: &String| {
            let (text, data) = (name.clone(), format!("{MODEL}{name}"));
            vec![Button { text, data }]
        };
        let rows = models.iter().filter(fits).take(MAX_MODELS).map(row);
        let item = Item {
            buttons: rows.collect(),
            ..Item::text(&format!("{CHANNEL}:{chat}"), text)
        };
        self.sender.post(&item, answered, None);
    }

    /// Handles the press of a button. Returns the equivalent command, and the text for the user.
    pub(super) fn press(&self, press: &Press) -> Result<(Option<IncomingMessage>, String)> {
        if let Some(name) = press.data.strip_prefix(MODEL) {
            return Ok((Some(choice(press, name)), name.to_owned()));
        }
        if let Some(shown) = self.press_admission(press) {
            return Ok((None, shown));
        }
        let shown = self.sender.questions.press(press)?;
        Ok((None, shown.to_owned()))
    }
}

/// Returns the command for a chosen model.
fn choice(press: &Press, name: &str) -> IncomingMessage {
    let command = format!("/model {name}");
    IncomingMessage {
        chat: press.chat.clone(),
        from: press.from,
        text: command.clone(),
        command: Some(command),
        ..IncomingMessage::default()
    }
}
