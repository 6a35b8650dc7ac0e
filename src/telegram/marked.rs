//! Telegram texts with entities: links on words and buttons, and mentions of the bot.

use std::ops::Range;

use serde_json::Value;

use super::update::Me;
use crate::text::{foreign_name, to_single_line};

/// Maximum size of a shown address, in bytes.
const MAX_ADDRESS: usize = 500;

/// A text with its entities (Bot API, `MessageEntity`), whose offsets are in UTF-16 units.
pub(super) struct Marked<'a> {
    pub text: &'a str,
    entities: &'a [Value],
    buttons: &'a Value,
}

impl<'a> Marked<'a> {
    /// Returns the text or the caption of a message.
    pub(super) fn new(message: &'a Value) -> Self {
        let (text, entities) = match message["text"].as_str() {
            Some(text) => (text, &message["entities"]),
            None => (
                message["caption"].as_str().unwrap_or_default(),
                &message["caption_entities"],
            ),
        };
        Self {
            text,
            entities: entities.as_array().map_or(&[], Vec::as_slice),
            buttons: &message["reply_markup"]["inline_keyboard"],
        }
    }

    /// Returns the range of an entity, in bytes.
    fn place(&self, entity: &Value) -> Option<Range<usize>> {
        let (offset, length) = (entity["offset"].as_u64()?, entity["length"].as_u64()?);
        let end = self.byte_at(offset.checked_add(length)?);
        Some(self.byte_at(offset)..end)
    }

    fn byte_at(&self, units: u64) -> usize {
        let mut left = units;
        for (at, c) in self.text.char_indices() {
            if left == 0 {
                return at;
            }
            left = left.saturating_sub(c.len_utf16() as u64);
        }
        self.text.len()
    }

    /// Returns the range of the bot's name, with its `@`, in a command at the start: `/new@NAME`.
    pub(super) fn command_bot(&self) -> Option<Range<usize>> {
        let first = self.text.split(char::is_whitespace).next()?;
        let (command, bot) = first.strip_prefix('/')?.split_once('@')?;
        let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let is_word = |word: &str| !word.is_empty() && word.chars().all(is_letter);
        (is_word(command) && is_word(bot)).then(|| command.len() + 1..first.len())
    }

    /// Returns the ranges of mentions of the bot.
    pub(super) fn names(&self, me: &Me) -> Vec<Range<usize>> {
        let name = format!("@{}", me.username);
        let is_name = |place: &Range<usize>| self.text[place.clone()].eq_ignore_ascii_case(&name);
        let named = |entity: &Value| {
            let mut place = self.place(entity)?;
            let is_named = match entity["type"].as_str()? {
                "mention" => is_name(&place),
                // A command may include the name of its bot.
                "bot_command" => {
                    place.start += self.text[place.clone()].find('@')?;
                    is_name(&place)
                }
                "text_mention" => entity["user"]["id"].as_i64() == Some(me.id),
                _ => false,
            };
            is_named.then_some(place)
        };
        let command = self.command_bot().filter(is_name);
        let mentions = self.entities.iter().filter_map(named);
        mentions.chain(command).collect()
    }

    /// Returns the text without mentions of the bot, and with the addresses of links and buttons.
    pub(super) fn read(&self, me: Option<&Me>) -> String {
        let names = me.map_or(Vec::new(), |me| self.names(me));
        let names = names.into_iter().chain(me.and(self.command_bot()));
        let mut changes: Vec<_> = names.map(|place| (place, String::new())).collect();
        let links = self
            .entities
            .iter()
            .filter(|entity| entity["type"] == "text_link");
        for entity in links {
            if let (Some(url), Some(place)) = (entity["url"].as_str(), self.place(entity)) {
                let address = format!(" ({})", to_single_line(url, MAX_ADDRESS));
                changes.push((place.end..place.end, address));
            }
        }
        changes.sort_by_key(|(place, _)| std::cmp::Reverse(place.start));
        let mut text = self.text.to_owned();
        let mut end = text.len();
        for (place, new) in changes {
            // Nested changes would shift offsets.
            if place.end <= end {
                end = place.start;
                text.replace_range(place, &new);
            }
        }
        let mut text = text.trim().to_owned();
        for button in self.buttons.as_array().into_iter().flatten() {
            for button in button.as_array().into_iter().flatten() {
                if let Some(url) = button["url"].as_str() {
                    let shown = foreign_name(button["text"].as_str().unwrap_or_default(), 60);
                    let url = to_single_line(url, MAX_ADDRESS);
                    text.push_str(&format!("\n[button \"{shown}\": {url}]"));
                }
            }
        }
        text
    }
}
