//! Lines of a conversation: how each entry is written, and which lines count.

use std::path::Path;

use serde_json::json;

use super::{Line, Record, values};
use crate::error::{Error, Result};
use crate::message::{Message, ToolResult, TurnStop};
use crate::paths::shown_key;

/// Version of the format. A file with a higher one is refused, because guessing would damage it.
const VERSION: u64 = 1;

/// Result of a call that was running when the program ended.
pub(super) const INTERRUPTED: &str = "interrupted, outcome unknown";

/// Whether this line is a message, as nearly all lines are.
pub(super) fn is_message(line: &Line) -> bool {
    line.contains_key("role")
}

/// Returns the format version in a line.
pub(super) fn version(line: &Line) -> Option<u64> {
    line.get("v")?.as_u64()
}

/// Returns an error for a line that a newer program wrote.
pub(super) fn refuse_newer(line: &Line, path: &Path) -> Result<()> {
    let Some(v) = version(line).filter(|v| *v > VERSION) else {
        return Ok(());
    };
    // The key ends at the first dot.
    let key = path.file_name().unwrap_or_default().to_string_lossy();
    let name = shown_key(key.split('.').next().unwrap_or_default());
    Err(Error::config(format!(
        "{} has format {v}, newer than this bantam's {VERSION}",
        path.display()
    ))
    .hint(format!(
        "update bantam, or run `bantam sessions reset {}` to start over; the old file is kept",
        shell_words::quote(&name)
    )))
}

/// Creates line 0 of a session file.
pub(super) fn header(name: &str, now: &str) -> Line {
    json!({"v": VERSION, "session": name, "created": now})
        .as_object()
        .cloned()
        .unwrap_or_default()
}

pub(super) fn turn_end(line: &Line) -> Option<TurnStop> {
    TurnStop::from_name(line.get("turn")?.as_str()?)
}

pub(super) fn fields(entry: &Record, now: &str) -> Line {
    let mut line = Line::new();
    match entry {
        Record::Message(message) => {
            line.insert("time".to_owned(), now.into());
            line.extend(message.to_json());
        }
        Record::End(end) => drop(line.insert("turn".to_owned(), end.name().into())),
        Record::Model(model) => drop(line.insert("state".to_owned(), json!({"model": model}))),
        Record::Allow(tools) => drop(line.insert("state".to_owned(), json!({"allowed": tools}))),
        Record::Asked(call) => drop(line.insert("state".to_owned(), json!({"asked": call}))),
        Record::Undo(from) => drop(line.insert("undo".to_owned(), (*from).into())),
        Record::Value(name, value) => {
            line.insert("state".to_owned(), values::state(name, value));
        }
    }
    line
}

/// Gives every call exactly one result, right after it. Results without a call are removed, calls without a result get
/// [`INTERRUPTED`]. Returns the results added at the very end, which the file does not contain yet.
pub(super) fn pair(messages: &mut Vec<Message>) -> Vec<Message> {
    let mut added = Vec::new();
    let room = Vec::with_capacity(messages.len());
    let mut rest = std::mem::replace(messages, room).into_iter().peekable();
    while let Some(message) = rest.next() {
        let calls: Vec<String> = match &message {
            Message::ToolResult(_) => continue,
            Message::Assistant(reply) => reply.calls.iter().map(|c| c.id.clone()).collect(),
            Message::System(_) | Message::User(_) => Vec::new(),
        };
        messages.push(message);
        let mut results: Vec<ToolResult> = Vec::new();
        while let Some(Message::ToolResult(result)) =
            rest.next_if(|m| matches!(m, Message::ToolResult(_)))
        {
            results.push(result);
        }
        added.clear();
        for call_id in calls {
            if let Some(at) = results.iter().position(|r| r.call_id == call_id) {
                messages.push(Message::ToolResult(results.swap_remove(at)));
                continue;
            }
            let lost = Message::ToolResult(ToolResult {
                call_id,
                content: INTERRUPTED.to_owned(),
                is_error: true,
                images: Vec::new(),
            });
            added.push(lost.clone());
            messages.push(lost);
        }
    }
    added
}
