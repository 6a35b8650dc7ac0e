//! Reads what an earlier version kept in files of their own: `outbox.jsonl`, `telegram-BOT.jsonl` and `tasks.json`.
//!
//! They had records of their own, too: `{"post":ID,..}`, `{"said":ID,"pieces":N}` and `{"over":ID}` of messages to chats,
//! `{"in":UPDATE,..}`, `{"closed":[..]}` and `{"stranger":USER}` of those that came in, and the tasks as one list.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::error::Result;
use crate::storage::{Entry, read_journal};
use crate::text::from_json;

/// The files of an earlier version that are there.
pub(super) fn files(state: &Path) -> Vec<PathBuf> {
    let mut files = inboxes(state);
    for name in ["outbox.jsonl", "tasks.json"] {
        files.push(state.join(name));
    }
    files.retain(|file| file.exists());
    files
}

/// The inboxes. Their names have a bot's number.
fn inboxes(state: &Path) -> Vec<PathBuf> {
    let entries = fs_err::read_dir(state).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| bot_of(path).is_some())
        .collect()
}

fn bot_of(path: &Path) -> Option<i64> {
    let name = path.file_name()?.to_str()?;
    let bot = name.strip_prefix("telegram-")?.strip_suffix(".jsonl")?;
    bot.parse().ok()
}

/// The lines of a queue with all that is in these files.
pub(super) fn lines(state: &Path) -> Result<Vec<Value>> {
    let mut lines = Vec::new();
    for path in inboxes(state) {
        inbox(&path, bot_of(&path).unwrap_or_default(), &mut lines)?;
    }
    // What was answered, after the questions.
    let mut answered = Vec::new();
    outbox(&state.join("outbox.jsonl"), &mut lines, &mut answered)?;
    let tasks = fs_err::read(state.join("tasks.json")).unwrap_or_default();
    for task in from_json::<Vec<Value>>(&tasks).unwrap_or_default() {
        if let Some(id) = task["answers"][0].as_str() {
            let item = json!({"to": task["to"], "text": task["text"]});
            lines.push(json!(Entry::new(id, "task", &item)));
        }
    }
    if !answered.is_empty() {
        lines.push(json!({"done": answered}));
    }
    Ok(lines)
}

fn read(path: &Path) -> Result<Vec<Value>> {
    let found = read_journal(path)?.unwrap_or_default();
    Ok(found.lines.into_iter().map(|line| line.fields).collect())
}

fn inbox(path: &Path, bot: i64, lines: &mut Vec<Value>) -> Result<()> {
    let id = |update: &Value| format!("telegram:{update}");
    let ids = |updates: &Value| -> Vec<String> {
        let updates = updates.as_array().into_iter().flatten();
        updates.map(id).collect()
    };
    let mut open: Vec<Entry> = Vec::new();
    for mut line in read(path)? {
        if let Some(update) = line.get("in").cloned() {
            let mut entry = Entry::new(&id(&update), "in", &json!({}));
            entry.group = ids(&line["group"]);
            let crashes = line["crashes"].as_u64().unwrap_or(0);
            // A message whose turn is under way when the program ends was started.
            let running = u64::from(line["running"] == true);
            entry.starts = u32::try_from((crashes + running).min(2)).unwrap_or(0);
            for own in ["in", "group", "crashes", "running", "seq", "crc"] {
                drop(line.as_object_mut().and_then(|line| line.remove(own)));
            }
            line["bot"] = bot.into();
            entry.item = line;
            match open.iter_mut().find(|other| other.id == entry.id) {
                Some(other) => *other = entry,
                None => open.push(entry),
            }
            continue;
        }
        if let Some(user) = line["stranger"].as_i64() {
            let item = json!({"bot": bot, "user": user});
            let entry = Entry::new(&format!("stranger:{bot}:{user}"), "stranger", &item);
            lines.push(json!(entry));
        }
        let closed = ids(&line["closed"]);
        open.retain(|entry| !closed.contains(&entry.id));
        for done in [closed, ids(&line["seen"])] {
            if !done.is_empty() {
                lines.push(json!({"known": done}));
            }
        }
    }
    // A line that says only that its id is known comes before the item: open ones are added again.
    lines.extend(open.iter().map(|entry| json!(entry)));
    Ok(())
}

fn outbox(path: &Path, lines: &mut Vec<Value>, answered: &mut Vec<Value>) -> Result<()> {
    for line in read(path)? {
        if line["post"].is_string() {
            let mut item = json!({"to": line["to"], "text": line["text"]});
            for name in ["file", "name"] {
                if line[name].is_string() {
                    item[name] = line[name].clone();
                }
            }
            let id = line["post"].as_str().unwrap_or_default();
            lines.push(json!(Entry::new(id, "out", &item)));
            if line["pieces"] != 0 {
                lines.push(json!({"part": id, "n": line["pieces"]}));
            }
        }
        if line["said"].is_string() {
            lines.push(json!({"part": line["said"], "n": line["pieces"]}));
        }
        if line["over"].is_string() {
            let mut done = json!({"done": [line["over"]]});
            if line["why"].is_string() {
                done["why"] = line["why"].clone();
            }
            lines.push(done);
        }
        for list in ["answers", "answered"] {
            answered.extend(line[list].as_array().into_iter().flatten().cloned());
        }
    }
    Ok(())
}
