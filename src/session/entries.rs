//! Entries of a conversation: how its lines are written, and read one at a time, because a segment may fill a small board's
//! memory.

use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::{Value, json};

use super::{Line, MAX_TITLE, Record};
use crate::error::{Error, Result};
use crate::message::{Message, TurnStop};
use crate::paths::shown_key;
use crate::storage::{self, LogItem, LogReader};
use crate::text::to_single_line;

/// Version of the format. A file with a higher one is refused, because guessing would damage it.
const VERSION: u64 = 1;

/// Maximum length of a line that undoes others, in bytes.
const MAX_UNDO: usize = 100;

/// One line of a conversation.
pub(crate) struct Entry {
    /// Number of the line in the conversation; `None` for damage, and for a message that is in no file.
    pub seq: Option<u64>,
    /// Time as RFC 3339 in UTC; empty if unknown.
    pub time: String,
    pub is_undone: bool,
    pub item: Item,
}

pub(crate) enum Item {
    /// The first line of a segment.
    Header(Line),
    Message(Message),
    /// The end of a turn.
    End(TurnStop),
    /// A change of the conversation's state.
    State(Value),
    Undo,
    /// Sentence about damage, with file and line.
    Damage(String),
}

impl Entry {
    /// Parses a line, which has no number yet; `None` if its kind is unknown, or if it is damaged and therefore empty.
    pub(super) fn parse(mut line: Line) -> Option<Self> {
        let time = line.get("time").or_else(|| line.get("created"));
        let time = time.and_then(Value::as_str).unwrap_or_default();
        let time = time.to_owned();
        let item = if is_message(&line) {
            Item::Message(Message::from_line(Value::Object(line))?)
        } else if version(&line).is_some() {
            Item::Header(line)
        } else if let Some(what) = line.get("damage").and_then(Value::as_str) {
            Item::Damage(what.to_owned())
        } else if line.contains_key("undo") {
            Item::Undo
        } else if let Some(state) = line.remove("state") {
            Item::State(state)
        } else {
            Item::End(TurnStop::from_name(line.get("turn")?.as_str()?)?)
        };
        Some(Self {
            seq: None,
            time,
            is_undone: false,
            item,
        })
    }

    /// Returns the title of a conversation that begins with this entry, if it is a question.
    pub(crate) fn title(&self) -> Option<String> {
        match &self.item {
            Item::Message(message) => title(message),
            _ => None,
        }
    }
}

/// Returns the beginning of a question, as it was typed; `None` for other messages.
pub(super) fn title(message: &Message) -> Option<String> {
    match message {
        Message::User(user) if message.is_question() => {
            let typed = Some(&user.title).filter(|title| !title.is_empty());
            Some(to_single_line(typed.unwrap_or(&user.content), MAX_TITLE))
        }
        _ => None,
    }
}

/// First number and undone lines of a segment, found before its lines are read.
#[derive(Default)]
struct Outline {
    /// Number of its first line in the conversation.
    base: u64,
    /// Lines that were undone.
    undone: Vec<RangeInclusive<u64>>,
}

impl Outline {
    /// Skims a file, of which it parses only the first line and short ones.
    fn of_file(path: &Path) -> Result<Self> {
        // Refuses a file that is too large, and a named pipe, which would block.
        LogReader::open(path)?;
        let (mut outline, mut is_first, mut added) = (Self::default(), true, Ok(()));
        storage::read_lines(path, 0, &mut |line| {
            if std::mem::take(&mut is_first) || line.len() <= MAX_UNDO {
                if let Some((n, line)) = storage::decode(&mut line.to_vec()) {
                    let result = outline.add(n as u64, &line, path);
                    added = std::mem::replace(&mut added, Ok(())).and(result);
                }
            }
        })?;
        added.map(|()| outline)
    }

    /// Adds the line with number `n` in its segment.
    fn add(&mut self, n: u64, line: &Line, path: &Path) -> Result<()> {
        if is_message(line) {
            return Ok(());
        }
        refuse_newer(line, path)?;
        let number = |name: &str| line.get(name).and_then(Value::as_u64);
        if version(line).is_some() {
            self.base = number("base").unwrap_or_default();
        }
        if let Some(from) = number("undo") {
            let from = self.base + from.min(n);
            self.undone.retain(|lines| *lines.start() < from);
            self.undone.push(from..=self.base + n);
        }
        Ok(())
    }

    /// Parses the line with number `n` in its segment.
    fn entry(&self, n: u64, line: Line) -> Option<Entry> {
        let seq = self.base + n;
        Some(Entry {
            seq: Some(seq),
            is_undone: self.undone.iter().any(|lines| lines.contains(&seq)),
            ..Entry::parse(line)?
        })
    }
}

/// Reads the entries of a segment.
pub(crate) fn entries(path: &Path) -> Result<impl Iterator<Item = Result<Entry>> + use<>> {
    let outline = Outline::of_file(path)?;
    let entry = move |item: Result<LogItem>| match item {
        Ok(LogItem::Line(n, line)) => outline.entry(n as u64, line).map(Ok),
        Ok(LogItem::Damage(what) | LogItem::Torn(what)) => Entry::parse(damage_line(what)).map(Ok),
        Err(e) => Some(Err(e)),
    };
    Ok(LogReader::open(path)?
        .into_iter()
        .flatten()
        .filter_map(entry))
}

/// Reads the entries of a conversation in the lines that a store returned.
pub(super) fn of_lines(
    key: &str,
    lines: Vec<Line>,
) -> Result<impl Iterator<Item = Result<Entry>> + use<>> {
    let mut outline = Outline::default();
    for (n, line) in (0..).zip(&lines) {
        outline.add(n, line, Path::new(key))?;
    }
    let entries = (0..).zip(lines);
    Ok(entries
        .filter_map(move |(n, line)| outline.entry(n, line))
        .map(Ok))
}

/// Creates a line that reports damage.
pub(super) fn damage_line(what: String) -> Line {
    Line::from_iter([("damage".to_owned(), what.into())])
}

/// Whether this line is a message, as nearly all lines are.
fn is_message(line: &Line) -> bool {
    line.contains_key("role")
}

/// Returns the format version in a line.
fn version(line: &Line) -> Option<u64> {
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

/// Formats an entry that is appended.
pub(super) fn fields(entry: &Record, now: &str) -> Line {
    let (name, value) = match entry {
        Record::Message(message) => {
            let mut line = message.to_json();
            line.insert("time".to_owned(), now.into());
            return line;
        }
        Record::End(end) => ("turn", end.name().into()),
        Record::Undo(from) => ("undo", (*from).into()),
        Record::Model(model) => ("state", json!({"model": model})),
        Record::Allow(tools) => ("state", json!({"allowed": tools})),
        Record::Asked(call) => ("state", json!({"asked": call})),
        Record::Value(name, value) => ("state", json!({"value": {*name: value}})),
    };
    Line::from_iter([(name.to_owned(), value)])
}
