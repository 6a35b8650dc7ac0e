//! Finds conversations by words that were said in them, archived parts included. Takes no lock and changes nothing.

use super::archive::{self, Item, Transcript};
use crate::error::Result;
use crate::message::Message;
use crate::paths::Home;

/// The most characters that are shown before a match.
const BEFORE: usize = 30;

/// A conversation that holds all the words.
pub(crate) struct Found {
    pub key: String,
    /// The time of its last message, as RFC 3339 in UTC.
    pub last: String,
    /// The first line with the most of the words, from shortly before the first one.
    pub line: String,
}

/// The conversations whose messages hold all the words, in letters of either case, the one used last first; and a sentence for
/// each that could not be read.
pub(crate) fn search(home: &Home, words: &[String]) -> Result<(Vec<Found>, Vec<String>)> {
    let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
    let (mut found, mut unread) = (Vec::new(), Vec::new());
    for summary in archive::list(home)? {
        match archive::read(home, &summary.key, Some(0)) {
            Ok(transcript) => found.extend(line_with(&transcript, &words).map(|line| Found {
                key: summary.key,
                last: summary.last,
                line,
            })),
            Err(e) => unread.push(format!("{} was not searched: {}", summary.key, e.message)),
        }
    }
    Ok((found, unread))
}

/// The line to show, if the conversation holds all the words.
fn line_with(transcript: &Transcript, words: &[String]) -> Option<String> {
    let entries = transcript.entries.iter().chain(&transcript.waiting);
    let texts = entries.filter_map(|entry| match &entry.item {
        Item::Message(Message::User(user)) => Some(&user.content),
        Item::Message(Message::Assistant(reply)) => Some(&reply.text),
        Item::Message(Message::ToolResult(result)) => Some(&result.content),
        Item::Message(Message::System(_)) | Item::Summary(_) | Item::TurnEnd(_) => None,
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
    let (line, lower) = best.filter(|_| missing.is_empty())?;
    let first = words.iter().filter_map(|word| lower.find(word)).min()?;
    // Letters may change their length with their case, so this is where the match is in nearly all lines.
    let skipped = lower[..first].chars().count().saturating_sub(BEFORE);
    let rest: String = line.chars().skip(skipped).collect();
    Some(if skipped > 0 {
        format!("…{rest}")
    } else {
        rest
    })
}
