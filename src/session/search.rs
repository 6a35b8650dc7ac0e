//! Finds conversations by the words in them, archived segments included. Takes no lock and changes nothing.

use super::archive::{self, Item, Transcript, TranscriptEntry};
use crate::bus::Origin;
use crate::error::Result;
use crate::message::Message;
use crate::paths::{CLI, Home, session_name, shown_key};

/// Maximum number of characters shown before a match.
const BEFORE: usize = 30;

/// A conversation that contains all the words.
pub(crate) struct Found {
    pub key: String,
    /// Time of its last message, as RFC 3339 in UTC.
    pub last: String,
    /// The first line with the highest number of the words, from shortly before the first match.
    pub line: String,
}

/// Returns the conversations that contain all the words, ignoring case, the last used first, and one sentence for each
/// unreadable conversation.
pub(crate) fn search(home: &Home, words: &[String]) -> Result<(Vec<Found>, Vec<String>)> {
    let words = lower(words);
    let (mut found, mut unread) = (Vec::new(), Vec::new());
    for key in archive::keys(home)? {
        match archive::read(home, &key, Some(0)) {
            Ok(transcript) => found.extend(Found::new(&key, &transcript, &words)),
            Err(e) => unread.push(format!(
                "{} was not searched: {}",
                shown_key(&key),
                e.message
            )),
        }
    }
    found.sort_by(|a, b| b.last.cmp(&a.last));
    Ok((found, unread))
}

/// Maximum number of conversations that a model finds, and that are read for it.
const MOST_FOUND: usize = 5;
const MOST_READ: usize = 200;

/// Searches earlier messages for the model: in the newest conversations of the terminal, or else only in this chat's own, so
/// that other people's messages remain private. The running turn is excluded.
pub(crate) fn search_past(home: &Home, words: &[String], origin: &Origin) -> Result<Vec<Found>> {
    let own = session_name(&origin.channel, &origin.chat)?;
    let keys = match origin.channel.as_str() {
        CLI => archive::by_time(home)?,
        _ => vec![own.clone()],
    };
    let (words, mut found) = (lower(words), Vec::new());
    for key in keys.into_iter().take(MOST_READ) {
        // Skips unreadable conversations, because an error would not help the model.
        let Ok(mut transcript) = archive::read(home, &key, Some(0)) else {
            continue;
        };
        if key == own {
            let is_question = |entry: &TranscriptEntry| matches!(&entry.item, Item::Message(message) if message.is_question());
            let begun = transcript.entries.iter().rposition(is_question);
            transcript.entries.truncate(begun.unwrap_or(0));
            transcript.waiting.clear();
        }
        found.extend(Found::new(&key, &transcript, &words));
        if found.len() == MOST_FOUND {
            break;
        }
    }
    Ok(found)
}

fn lower(words: &[String]) -> Vec<String> {
    words.iter().map(|word| word.to_lowercase()).collect()
}

impl Found {
    /// Describes a conversation, if it contains all the words.
    fn new(key: &str, transcript: &Transcript, words: &[String]) -> Option<Self> {
        let times = transcript.entries.iter().chain(&transcript.waiting);
        let last = times
            .map(|entry| &entry.time)
            .rfind(|time| !time.is_empty());
        Some(Self {
            key: key.to_owned(),
            last: last.cloned().unwrap_or_default(),
            line: line_with(transcript, words)?,
        })
    }
}

/// Returns the line to show, if the conversation contains all the words.
fn line_with(transcript: &Transcript, words: &[String]) -> Option<String> {
    let entries = transcript.entries.iter().chain(&transcript.waiting);
    let texts = entries.filter_map(|entry| match &entry.item {
        Item::Message(Message::User(user)) => Some(&user.content),
        Item::Message(Message::Assistant(reply)) => Some(&reply.text),
        Item::Message(Message::ToolResult(result)) => Some(&result.content),
        Item::Message(Message::System(_)) | Item::Summary(_) | Item::End(_) => None,
    });
    let mut missing: Vec<&str> = words.iter().map(String::as_str).collect();
    let (mut best, mut most) = (None, 0);
    for line in texts.flat_map(|text| text.lines()) {
        let lower = line.to_lowercase();
        missing.retain(|word| !lower.contains(word));
        let count = words.iter().filter(|word| lower.contains(*word)).count();
        if count > most {
            (best, most) = (Some((line, lower)), count);
        }
    }
    if !missing.is_empty() {
        return None;
    }
    let (line, lower) = best?;
    let first = words.iter().filter_map(|word| lower.find(word)).min()?;
    // Changing the case may change the length of letters, so this position is exact only for nearly all lines.
    let skipped = lower[..first].chars().count().saturating_sub(BEFORE);
    let rest: String = line.chars().skip(skipped).collect();
    Some(if skipped > 0 {
        format!("…{rest}")
    } else {
        rest
    })
}
