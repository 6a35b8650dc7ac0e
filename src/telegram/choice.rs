//! Menu of models as buttons, page by page.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::CHANNEL;
use super::chats::Chats;
use super::update::{IncomingMessage, Press};
use crate::error::Result;
use crate::outbox::{Button, Item};
use crate::sync;
use crate::text::clip;

/// Number of models on a page.
const PAGE: usize = 10;
/// Maximum size of a button's data, in bytes (Bot API, `callback_data`).
const MAX_DATA: usize = 64;
/// Maximum size of a truncated name in it, in bytes.
const MAX_BEGINNING: usize = 40;
/// Prefixes of the button data: a model by name, a model by position, a page.
const NAME: &str = "m:";
const PLACE: &str = "i:";
const TURN: &str = "p:";

/// Latest list of each chat: its text and the names. After a restart, users must send `/model` again.
#[derive(Default)]
pub(super) struct ModelLists(Mutex<BTreeMap<String, (String, Vec<String>)>>);

impl ModelLists {
    fn put(&self, chat: &str, text: String, models: Vec<String>) {
        let mut lists = sync::lock(&self.0);
        lists.insert(chat.to_owned(), (text, models));
    }

    fn get(&self, chat: &str) -> Option<(String, Vec<String>)> {
        let lists = sync::lock(&self.0);
        lists.get(chat).cloned()
    }
}

/// Returns the buttons of a page, counted from 0, and its links to the neighboring pages.
fn rows(models: &[String], page: usize) -> Vec<Vec<Button>> {
    let pages = models.len().div_ceil(PAGE);
    let mut rows: Vec<Vec<Button>> = Vec::new();
    for (place, name) in models.iter().enumerate().skip(page * PAGE).take(PAGE) {
        let data = if NAME.len() + name.len() <= MAX_DATA {
            format!("{NAME}{name}")
        } else {
            // The beginning of the name detects a press on an outdated list.
            format!("{PLACE}{place}:{}", clip(name, MAX_BEGINNING))
        };
        let text = name.clone();
        rows.push(vec![Button { text, data }]);
    }
    let turn = |to: usize, text: String| Button {
        text,
        data: format!("{TURN}{to}"),
    };
    let mut ways = Vec::new();
    if page > 0 {
        ways.push(turn(page - 1, format!("{page}/{pages} «")));
    }
    if page + 1 < pages {
        ways.push(turn(page + 1, format!("{}/{pages} »", page + 2)));
    }
    if !ways.is_empty() {
        rows.push(ways);
    }
    rows
}

impl Chats {
    /// Posts a reply with a menu of models, and finishes the answered messages.
    pub(crate) fn offer_models(
        &self,
        chat: &str,
        text: String,
        models: Vec<String>,
        answered: &[String],
    ) {
        let item = Item {
            buttons: rows(&models, 0),
            ..Item::text(&format!("{CHANNEL}:{chat}"), &text)
        };
        self.lists.put(chat, text, models);
        self.sender.post(item, answered, None);
    }

    /// Handles the press of a button. Returns the equivalent command, and the text for the user.
    pub(super) fn press(&self, press: &Press) -> Result<(Option<IncomingMessage>, String)> {
        if let Some(name) = press.data.strip_prefix(NAME) {
            return Ok((Some(choice(press, name)), name.to_owned()));
        }
        let list = || self.lists.get(&press.chat);
        let gone = || (None, "Send /model for a new list.".to_owned());
        if let Some(place) = press.data.strip_prefix(PLACE) {
            let name = place.split_once(':').and_then(|(place, beginning)| {
                let (_, models) = list()?;
                let name = models.get(place.parse::<usize>().ok()?)?;
                name.starts_with(beginning).then(|| name.clone())
            });
            return Ok(name.map_or_else(gone, |name| (Some(choice(press, &name)), String::new())));
        }
        if let Some(shown) = self.press_admission(press) {
            return Ok((None, shown));
        }
        let Some(page) = press.data.strip_prefix(TURN) else {
            let shown = self.sender.questions.press(press)?;
            return Ok((None, shown.to_owned()));
        };
        let (Some((text, models)), Ok(page)) = (list(), page.parse::<usize>()) else {
            return Ok(gone());
        };
        if page >= models.len().div_ceil(PAGE) {
            return Ok(gone());
        }
        let item = Item {
            buttons: rows(&models, page),
            edits: press.message,
            ..Item::text(&format!("{CHANNEL}:{}", press.chat), &text)
        };
        self.sender.outbox.post(&item, &[])?;
        self.sender.wake();
        Ok((None, String::new()))
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
