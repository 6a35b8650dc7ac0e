//! The `memory` tool: notes that outlast a conversation, one file each, outside the workspace. Each action is a job for files.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;

use super::files::{do_job, read_whole};
use super::meaning::Meaning;
use super::{CallContext, Function, Risk, ToolOutput, ToolSpec, text};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::json::from_json;
use crate::paths::Home;
use crate::session::search::{Found, search_past};
use crate::session::versions::MOST_KEPT;
use crate::text::{LocalTime, clip, fenced, first_lines, foreign_line};
use crate::worker::Workers;
use crate::worker::protocol::{FileAction, FileJob, LineRange};

/// Default note.
const MEMORY: &str = "MEMORY";
/// Maximum length of a key, in bytes; with a suffix, it must be a valid file name.
const MAX_KEY: usize = 120;
/// Maximum number of passages shown by a search for words, and maximum size of each, in bytes.
const MAX_FOUND: usize = 10;
const MAX_SHOWN: usize = 600;
/// Maximum length of a line from a conversation, in characters.
const MAX_LINE: usize = 300;

const SPEC: ToolSpec = ToolSpec::built_in(
    "memory",
    Risk::Writes,
    "Notes (memory/KEY.md) that outlast the conversation. You always see MEMORY, today's and yesterday's.",
    concat!(
        r#"{"type":"object","properties":{"action":{"type":"string","enum":["view","write","append","search","delete"],"description":"view without key lists all; write replaces; append adds a line"},"#,
        r#""key":{"type":"string","description":"A name, MEMORY or today"},"#,
        r#""content":{"type":"string"},"#,
        r#""query":{"type":"string"}},"required":["action"]}"#
    ),
);

/// What the tool uses.
pub(crate) struct Memory {
    pub home: Home,
    pub workers: Arc<Workers>,
    pub local_time: LocalTime,
    /// Finds notes by meaning, if a model is configured for it.
    pub meaning: Option<Meaning>,
}

pub(crate) fn memory_tool(memory: Memory) -> Function {
    let shown = &["action", "key", "query"];
    Function {
        is_safe: |args| matches!(text(args, "action"), "view" | "search"),
        ..Function::built_in(SPEC, shown, move |args, turn| run(&memory, args, turn))
    }
}

fn run(memory: &Memory, args: &Value, turn: &CallContext) -> Result<ToolOutput> {
    let [action, asked, content] = ["action", "key", "content"].map(|name| text(args, name));
    let workers = &memory.workers;
    let Some(notes) = workers.notes() else {
        return Err(Error::failed("there are no notes here"));
    };
    if action == "search" {
        return search(memory, text(args, "query"), turn);
    }
    let now = (memory.local_time)(SystemTime::now());
    let key = match asked.trim() {
        "" => None,
        key => Some(checked_key(key, &now)?),
    };
    let name = key.as_deref().unwrap_or(MEMORY);
    let note = notes.real.join(format!("{name}.md")).display().to_string();
    if matches!(action, "write" | "append") && content.trim().is_empty() {
        return Err(Error::failed("\"content\" is missing: what to write"));
    }
    let (path, action) = match (action, &key) {
        ("view", None) => {
            let all = FileAction::ListDir { depth: None };
            (notes.real.display().to_string(), all)
        }
        ("view", Some(_)) => {
            let room = Some(turn.room);
            let range = LineRange {
                room,
                ..LineRange::default()
            };
            (note, FileAction::ReadFile(range))
        }
        ("append", _) => {
            let mut content = entry(name, content.trim_end(), &now);
            // Some editors leave the last line without an end.
            let (before, _) = read_whole(workers, &note, MOST_KEPT, turn.cancel);
            if before.last().is_some_and(|last| *last != b'\n') {
                content.insert(0, '\n');
            }
            (note, FileAction::AppendFile { content })
        }
        (_, None) => {
            return Err(Error::failed(
                "write and delete need a key, for example garden; MEMORY is the key of MEMORY.md",
            ));
        }
        ("write", Some(_)) => {
            let (content, shown) = (format!("{}\n", content.trim_end()), None);
            (note, FileAction::WriteFile { content, shown })
        }
        (_, Some(_)) => (note, FileAction::RemoveFile),
    };
    let reply = do_job(workers, FileJob::new(path, action), turn)?;
    Ok(ToolOutput::text(reply.into_text()?))
}

/// Formats an entry to append: a line, with the time if the note is about today.
fn entry(key: &str, content: &str, now: &str) -> String {
    match now.get(11..16) {
        Some(time) if now.get(..10) == Some(key) => format!("- {time} {content}\n"),
        _ => format!("{content}\n"),
    }
}

/// Returns the key as in the file name. `now` gives the day for `today`.
fn checked_key(key: &str, now: &str) -> Result<String> {
    let key = key.strip_prefix("memory/").unwrap_or(key);
    let key = key.strip_suffix(".md").unwrap_or(key);
    let is_plain = |c: char| !matches!(c, '/' | '\\') && !c.is_control();
    let fits = (1..=MAX_KEY).contains(&key.len()) && !key.starts_with('.');
    if !fits || !key.chars().all(is_plain) {
        let key = foreign_line(key, 300);
        return Err(Error::failed(format!(
            "invalid key \"{key}\": use a plain name, for example garden"
        )));
    }
    Ok(match key.to_ascii_lowercase().as_str() {
        "today" => now.get(..10).unwrap_or(now).to_owned(),
        "memory" => MEMORY.to_owned(),
        _ => key.to_owned(),
    })
}

/// Passage of a note: its key, the number of its first line, and its text.
pub(super) type Passage = (String, usize, String);

/// Formats a passage for a search result.
pub(super) fn show_passage((key, line, text): &Passage) -> String {
    format!("{key}:{line}: {}\n\n", first_lines(text, MAX_SHOWN))
}

/// Searches notes by words and, with an embedding model, by meaning, and earlier conversations by words.
fn search(memory: &Memory, query: &str, turn: &CallContext) -> Result<ToolOutput> {
    let words = words_of(query);
    if words.is_empty() {
        return Err(Error::failed("\"query\" contains no word to search for"));
    }
    let passages = read_passages(&memory.workers, turn.cancel)?;
    let mut found = find_words(&passages, &words);
    found.push_str(&past_conversations(&memory.home, query, turn)?);
    let Some(meaning) = &memory.meaning else {
        return Ok(ToolOutput::text(found));
    };
    let by_meaning = match meaning.search(&passages, query, turn) {
        Ok(nearest) => format!("Nearest in meaning:\n\n{}\n\n", fenced(&nearest)),
        Err(e) => format!("[not searched by meaning: {}]\n\n", e.message),
    };
    Ok(ToolOutput::text(format!(
        "{by_meaning}By words:\n\n{found}"
    )))
}

/// Reads all passages of the notes, newest note first.
fn read_passages(workers: &Workers, cancel: &Cancel) -> Result<Vec<Passage>> {
    let reply = workers.call(FileJob::new("", FileAction::Passages), cancel)?;
    let lines = reply.into_text()?;
    let passages = lines.lines().filter_map(|line| from_json(line).ok());
    Ok(passages.collect())
}

/// Returns the words of a query in lower case. Words of up to two bytes count only if there are no longer ones.
fn words_of(query: &str) -> Vec<String> {
    let lower = query.to_lowercase();
    let words = lower.split(|c: char| !c.is_alphanumeric());
    let mut words: Vec<String> = words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect();
    if words.iter().any(|word| word.len() > 2) {
        words.retain(|word| word.len() > 2);
    }
    words
}

/// Returns the passages with any of the words, those with the most words first.
fn find_words(passages: &[Passage], words: &[String]) -> String {
    let count = |(key, _, text): &Passage| {
        let text = format!("{key}\n{text}").to_lowercase();
        words.iter().filter(|word| text.contains(*word)).count()
    };
    let counted = passages.iter().map(|passage| (count(passage), passage));
    let mut found: Vec<_> = counted.filter(|(count, _)| *count > 0).collect();
    found.sort_by_key(|(count, _)| Reverse(*count));
    if found.is_empty() {
        return "no matches\n".to_owned();
    }
    let shown = found.iter().take(MAX_FOUND);
    // Notes may quote others.
    let shown: String = shown.map(|(_, passage)| show_passage(passage)).collect();
    fenced(&shown)
}

/// Returns matches in earlier conversations, fenced because others may have written them. Empty without matches.
fn past_conversations(home: &Home, query: &str, turn: &CallContext) -> Result<String> {
    let words: Vec<String> = query.split_whitespace().map(str::to_owned).collect();
    let (found, unread) = search_past(home, &words, turn.origin)?;
    if found.is_empty() && unread.is_empty() {
        return Ok(String::new());
    }
    let line = |found: &Found| {
        let line = foreign_line(&found.line, MAX_LINE);
        format!("{} ({}): {line}", found.key, clip(&found.last, 10))
    };
    let lines: Vec<String> = found.iter().map(line).chain(unread).collect();
    Ok(format!(
        "\n\nIn earlier conversations:\n\n{}",
        fenced(&lines.join("\n"))
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_plain_name_in_any_language() {
        let now = "2026-11-22 10:04:05";
        for (key, comes_to) in [
            ("garden", "garden"),
            ("memory/garden.md", "garden"),
            ("Sebastian's birthday", "Sebastian's birthday"),
            ("買い物", "買い物"),
            ("רשימה", "רשימה"),
            ("v1.2", "v1.2"),
            ("Today", "2026-11-22"),
            ("memory.md", "MEMORY"),
        ] {
            assert_eq!(checked_key(key, now).unwrap(), comes_to);
        }
        for key in [
            "../x",
            "a/b",
            "/etc/passwd",
            ".hidden",
            "..",
            ".md",
            "a\\b",
            "a\nb",
            "a\0b",
            &"長".repeat(50),
        ] {
            assert!(checked_key(key, now).is_err(), "{key:?}");
        }
    }

    #[test]
    fn passages_with_more_of_the_words_come_first() {
        let passage = |key: &str, text: &str| (key.to_owned(), 1, text.to_owned());
        let passages = [
            passage("new", "the cat sleeps"),
            passage("quince", "jam"),
            passage("old", "ÄPFEL, and food for the cat"),
            passage("買い物", "牛乳とパンを買う"),
        ];
        let keys = |query: &str| {
            let found = find_words(&passages, &words_of(query));
            let lines = found
                .lines()
                .filter(|line| !line.trim_matches('`').is_empty());
            let keys = lines.map(|line| line.split(':').next().unwrap_or_default().to_owned());
            keys.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(keys("CAT food"), "old new");
        assert_eq!(keys("is a cat"), "new old");
        assert_eq!(keys("quince"), "quince");
        assert_eq!(keys("äpfel"), "old");
        assert_eq!(keys("牛乳"), "買い物");
        assert_eq!(keys("nothing"), "no matches");
    }
}
