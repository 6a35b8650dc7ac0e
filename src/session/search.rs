//! Finds conversations by the words in them, archived segments included. Takes no lock and changes nothing.

use std::collections::BTreeMap;

use super::archive::{self, StoredSegment};
use super::entries::{Item, entries};
use crate::bus::Origin;
use crate::error::Result;
use crate::message::Message;
use crate::paths::{CLI, Home, session_name};
use crate::storage::segments::Part;

/// Maximum number of characters shown before a match, and of the whole line.
const BEFORE: usize = 30;
const MAX_LINE: usize = 500;
/// Maximum size of the segments that a search reads, in bytes.
const MAX_READ: u64 = 64 << 20;
/// Maximum number of conversations that a model finds.
const MOST_FOUND: usize = 5;

/// A conversation that contains all the words.
#[derive(Clone, Default)]
pub(crate) struct Found {
    pub key: String,
    /// Time of its last message, as RFC 3339 in UTC.
    pub last: String,
    /// The line with the highest number of the words, from shortly before the first match.
    pub line: String,
    /// Number of the words in the line.
    count: usize,
    /// Words that were not found yet.
    missing: Vec<String>,
}

/// Returns the conversations that contain all the words, ignoring case, the last used first, and one sentence for each part
/// that was not read.
pub(crate) fn search(home: &Home, words: &[String]) -> Result<(Vec<Found>, Vec<String>)> {
    Ok(find(archive::by_time(home)?, words, ""))
}

/// Searches earlier messages for the model: in the newest conversations of the terminal, or else only in this chat's own, so
/// that other people's messages remain private. The running turn is excluded.
pub(crate) fn search_past(
    home: &Home,
    words: &[String],
    origin: &Origin,
) -> Result<(Vec<Found>, Vec<String>)> {
    let own = session_name(&origin.channel, &origin.chat)?;
    let mut segments = archive::by_time(home)?;
    segments.retain(|segment| match origin.channel.as_str() {
        CLI => archive::is_of_cli(&segment.key),
        _ => segment.key == own,
    });
    let (mut found, unread) = find(segments, words, &own);
    found.truncate(MOST_FOUND);
    Ok((found, unread))
}

/// Searches these segments, the newest first, but not the last turn of the conversation `running`.
fn find(
    segments: Vec<StoredSegment>,
    words: &[String],
    running: &str,
) -> (Vec<Found>, Vec<String>) {
    let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
    let mut all: BTreeMap<String, Found> = BTreeMap::new();
    let (mut unread, mut bytes) = (Vec::new(), 0);
    for segment in segments {
        let key = &segment.key;
        let found = all.entry(key.clone()).or_insert_with(|| Found {
            key: key.clone(),
            missing: words.clone(),
            ..Found::default()
        });
        if found.missing.is_empty() {
            continue;
        }
        bytes += segment.len;
        if bytes > MAX_READ {
            let most = MAX_READ >> 20;
            unread.push(format!("only the newest {most} MB were searched"));
            break;
        }
        if let Err(e) = found.read(&segment, &words, running) {
            unread.push(format!("not searched: {}", e.message));
        }
    }
    let mut found: Vec<Found> = all.into_values().collect();
    found.retain(|found| found.missing.is_empty());
    found.sort_by(|a, b| b.last.cmp(&a.last));
    (found, unread)
}

impl Found {
    /// Looks for the words in a segment, but not in the last turn of the conversation `running`.
    fn read(&mut self, segment: &StoredSegment, words: &[String], running: &str) -> Result<()> {
        let is_running = segment.part == Part::Live && segment.key == running;
        let is_newest = self.last.is_empty();
        let mut before_turn = self.clone();
        for entry in entries(&segment.path)? {
            let entry = entry?;
            let Item::Message(message) = &entry.item else {
                continue;
            };
            if entry.is_undone {
                continue;
            }
            if is_running && message.is_question() {
                before_turn = self.clone();
            }
            if is_newest && !entry.time.is_empty() {
                self.last.clone_from(&entry.time);
            }
            let text = match message {
                Message::User(user) => &user.content,
                Message::Assistant(reply) => &reply.text,
                Message::ToolResult(result) => &result.content,
                Message::System(_) => continue,
            };
            text.lines().for_each(|line| self.look_at(line, words));
        }
        if is_running {
            *self = before_turn;
        }
        Ok(())
    }

    /// Looks for the words in a line.
    fn look_at(&mut self, line: &str, words: &[String]) {
        let lower = line.to_lowercase();
        self.missing.retain(|word| !lower.contains(word));
        let places: Vec<usize> = words.iter().filter_map(|word| lower.find(word)).collect();
        if places.len() <= self.count {
            return;
        }
        // Changing the case may change the length of letters, so this position is exact only for nearly all lines.
        let first = places.iter().min().map_or("", |at| &lower[..*at]);
        let skipped = first.chars().count().saturating_sub(BEFORE);
        let cut = if skipped > 0 { "…" } else { "" };
        let rest: String = line.chars().skip(skipped).take(MAX_LINE).collect();
        (self.count, self.line) = (places.len(), format!("{cut}{rest}"));
    }
}
