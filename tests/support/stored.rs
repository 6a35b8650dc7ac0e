//! Format of a conversation on disk and on the wire, checked line by line, independent of the program's code.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// CRC-32 (IEEE 802.3), bit by bit: slow, simple, and independent of the program.
pub fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            };
        }
    }
    !crc
}

/// Returns a line of a session file. `rest` is the object's text from `"seq"` to its closing brace.
pub fn sealed(rest: &str) -> String {
    format!("{{\"crc\":\"{:08x}\",{rest}\n", crc32(rest.as_bytes()))
}

/// Returns a journal with these objects.
pub fn journal<const N: usize>(lines: [Value; N]) -> String {
    let line =
        |(n, line): (usize, Value)| sealed(&format!("\"seq\":{n},{}", &line.to_string()[1..]));
    lines.into_iter().enumerate().map(line).collect()
}

/// A session file with verified lines: the checksum, the numbering, the header.
#[derive(Debug)]
pub struct Session {
    pub lines: Vec<Value>,
}

impl Session {
    #[track_caller]
    pub fn parse(bytes: &[u8]) -> Self {
        Self::read(bytes).unwrap_or_else(|what| panic!("{what}"))
    }

    /// Parses a session file, or returns its error.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|e| format!("a session is UTF-8: {e}"))?;
        if !text.ends_with('\n') {
            return Err(format!("the last line is torn: {text:?}"));
        }
        let lines: Vec<Value> = text
            .lines()
            .enumerate()
            .map(|(n, line)| verified(n, line))
            .collect::<Result<_, _>>()?;
        if lines[0]["v"] != 1 {
            return Err(format!("the first line is no header: {}", lines[0]));
        }
        Ok(Self { lines })
    }

    /// Returns the messages that count, without undone ones.
    pub fn history(&self) -> Vec<&Value> {
        let mut history: Vec<&Value> = Vec::new();
        for line in &self.lines {
            if let Some(from) = line["undo"].as_u64() {
                history.retain(|message| message["seq"].as_u64() < Some(from));
            } else if line["role"].is_string() {
                history.push(line);
            }
        }
        history
    }

    /// Returns the roles of the history, in order.
    pub fn roles(&self) -> Vec<&str> {
        self.history()
            .iter()
            .map(|message| message["role"].as_str().unwrap())
            .collect()
    }

    /// Returns the texts of one role, in order.
    pub fn texts(&self, role: &str) -> Vec<&str> {
        let said = self
            .history()
            .into_iter()
            .filter(|message| message["role"] == role);
        said.map(|message| message["content"].as_str().unwrap_or_default())
            .collect()
    }

    /// Returns how the turns ended, in order.
    pub fn turns(&self) -> Vec<&str> {
        self.lines
            .iter()
            .filter_map(|line| line["turn"].as_str())
            .collect()
    }

    /// Fails the test unless every call of the history has exactly one result, directly after it.
    #[track_caller]
    pub fn has_one_result_per_call(&self) -> &Self {
        assert_single_result_per_call(&self.history());
        self
    }
}

/// Returns every segment of a conversation, including the live one, by file name; an error if one is damaged.
pub fn segments(sessions: &Path, key: &str) -> Result<BTreeMap<String, Session>, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(sessions).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name
            .strip_prefix(key)
            .is_some_and(|rest| rest.starts_with('.'))
            && Path::new(&name).extension() == Some("jsonl".as_ref())
        {
            let bytes = fs::read(entry.path()).unwrap();
            let session =
                Session::read(&bytes).map_err(|what| format!("{name} is damaged: {what}"))?;
            found.insert(name, session);
        }
    }
    Ok(found)
}

/// Returns the ids of the unfinished items of a kind in a home's queue.
pub fn open_items(home: &Path, kind: &str) -> Vec<String> {
    let (added, done) = queued(home, kind);
    let is_open = |id: &String| !done.contains(id);
    added.into_iter().filter(is_open).collect()
}

/// Returns the ids of the background tasks with unanswered reports.
pub fn open_tasks(home: &Path) -> Vec<String> {
    let messages = open_items(home, "message").into_iter();
    messages.filter(|id| id.starts_with("task:")).collect()
}

/// Returns the number of sent messages to chats.
pub fn sent_items(home: &Path) -> usize {
    let (added, done) = queued(home, "out");
    added.iter().filter(|id| done.contains(id)).count()
}

fn queued(home: &Path, kind: &str) -> (Vec<String>, Vec<String>) {
    let queue = fs::read_to_string(home.join("state/queue.jsonl")).unwrap_or_default();
    let (mut added, mut done) = (Vec::new(), Vec::new());
    for line in queue.lines() {
        // The last line may be incomplete.
        let line: Value = serde_json::from_str(line).unwrap_or_default();
        if line["kind"] == kind {
            added.extend(line["add"].as_str().map(str::to_owned));
        }
        let ids = line["done"].as_array().into_iter().flatten();
        done.extend(ids.filter_map(Value::as_str).map(str::to_owned));
    }
    (added, done)
}

fn verified(n: usize, line: &str) -> Result<Value, String> {
    let (crc, rest) = line
        .split_once(',')
        .ok_or_else(|| format!("line {n}: {line:?}"))?;
    if crc != format!("{{\"crc\":\"{:08x}\"", crc32(rest.as_bytes())) {
        return Err(format!("the checksum of line {n}: {line}"));
    }
    let value: Value = serde_json::from_str(line).map_err(|e| format!("line {n}: {e}: {line}"))?;
    if value["seq"] != n {
        return Err(format!("the number of line {n}: {line}"));
    }
    Ok(value)
}

/// Checks the rule of every provider: all calls of a message are followed directly by their results, each once, without
/// unrelated results. `messages` are from a session or a request.
#[track_caller]
pub fn assert_single_result_per_call(messages: &[&Value]) {
    let mut left = messages.iter().copied().peekable();
    while let Some(message) = left.next() {
        assert_ne!(
            message["role"], "tool",
            "a result without a call: {message}"
        );
        let calls = message["tool_calls"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let mut open: Vec<&Value> = calls.iter().map(|call| &call["id"]).collect();
        while let Some(result) = left.next_if(|next| next["role"] == "tool") {
            let place = open.iter().position(|id| **id == result["tool_call_id"]);
            let place =
                place.unwrap_or_else(|| panic!("a result too many: {result} after {message}"));
            open.remove(place);
        }
        assert!(open.is_empty(), "no result for {open:?} of {message}");
    }
}

#[test]
fn the_checksum_is_the_one_of_the_standard() {
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
}
