//! `bantam onboard --import`, the conversations of another agent: what the user and the agent said, without the calls of tools,
//! which are others here. Formats, by the programs that write them:
//!
//! - picoclaw (`pkg/session/manager.go`): `KEY.json`, an object with `key`, `messages`, `summary` and `created`; later
//!   (`pkg/memory/jsonl.go`) `KEY.jsonl`, a message a line, and `KEY.meta.json`, whose `skip` says how many lines the `summary` covers.
//! - nanobot (`nanobot/session/manager.py`): `KEY.jsonl`, whose line with `_type` says what the others do not.
//! - Any other program (`SmartBot`, say) whose files are like one of these, or a bare list of messages.
//!
//! A message has a `role`, a `content` and perhaps a `timestamp`.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::import::ForeignHome;
use super::print;
use crate::access::Links;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::message::{Message, Reply, User};
use crate::paths::{Home, session_name};
use crate::session::{Entry, Files, Session, Store, TurnEnd};
use crate::storage;
use crate::text::{counted, one_line, parse_json};
use crate::timezone::parse_time;

/// Bytes of a file.
const MOST: u64 = 64 << 20;

/// A conversation as it was found.
#[derive(Default)]
struct Found {
    /// `channel:chat`, if the file says it.
    key: String,
    created: String,
    summary: String,
    messages: Vec<Value>,
}

/// Brings over all conversations of a folder, and tells what became of each file.
pub(super) fn bring(source: &ForeignHome, dir: &Path, home: &Home) -> Result<()> {
    let names = match source.names(dir) {
        Ok(names) => names,
        Err(e) => return source.skip(dir, &e.message),
    };
    let mut taken = BTreeSet::new();
    for name in names {
        let path = dir.join(&name);
        let name = name.to_string_lossy().into_owned();
        let stem = match name.rsplit_once('.') {
            _ if name.ends_with(".meta.json") => continue,
            Some((stem, "json" | "jsonl")) => stem,
            _ => {
                source.skip(&path, "only the other program uses it")?;
                continue;
            }
        };
        let done = read(source, &path, stem).and_then(|found| keep(&found, stem, home, &mut taken));
        match done {
            Ok(line) => print(&format!(
                "{line} from {}\n",
                one_line(&path.to_string_lossy(), 200)
            ))?,
            Err(e) => source.skip(&path, &e.message)?,
        }
    }
    Ok(())
}

fn read_text(source: &ForeignHome, path: &Path) -> Result<Vec<u8>> {
    let file = source.dir.read(path, Path::new("it"), Links::Refuse)?;
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        return Err(Error::failed("it is larger than 64 MB"));
    }
    Ok(bytes)
}

fn read(source: &ForeignHome, path: &Path, stem: &str) -> Result<Found> {
    let bytes = read_text(source, path)?;
    let damaged = |e: &dyn std::fmt::Display| Error::failed(format!("it is damaged: {e}"));
    let found = if path
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        let whole = parse_json(&bytes).map_err(|e| damaged(&e))?;
        match whole {
            Value::Array(messages) => Found {
                messages,
                ..Found::default()
            },
            whole => Found {
                key: text(&whole, "key").to_owned(),
                created: text(&whole, "created").to_owned(),
                summary: text(&whole, "summary").to_owned(),
                messages: whole["messages"].as_array().cloned().unwrap_or_default(),
            },
        }
    } else {
        let mut found = Found::default();
        let meta = path.with_file_name(format!("{stem}.meta.json"));
        let meta = read_text(source, &meta).ok();
        let meta = meta
            .and_then(|bytes| parse_json(&bytes).ok())
            .unwrap_or_default();
        let skip = meta["skip"].as_u64().unwrap_or(0);
        let lines = bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        for (n, line) in (0..).zip(lines) {
            if n < skip {
                continue;
            }
            let line = parse_json(line).map_err(|e| damaged(&format!("line {}: {e}", n + 1)))?;
            if line["_type"].is_string() {
                text(&line, "key").clone_into(&mut found.key);
                text(&line, "created_at").clone_into(&mut found.created);
            } else {
                found.messages.push(line);
            }
        }
        if !meta.is_null() {
            text(&meta, "key").clone_into(&mut found.key);
            text(&meta, "summary").clone_into(&mut found.summary);
            text(&meta, "created_at").clone_into(&mut found.created);
        }
        found
    };
    if found.messages.iter().all(|message| said(message).is_none()) {
        return Err(Error::failed("it contains no conversation"));
    }
    Ok(found)
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// What the user or the agent said.
fn said(message: &Value) -> Option<Message> {
    let content = match &message["content"] {
        Value::String(text) => text.trim().to_owned(),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().map(|part| text(part, "text")).collect();
            texts.join("\n").trim().to_owned()
        }
        _ => String::new(),
    };
    if content.is_empty() {
        return None;
    }
    match text(message, "role") {
        "user" => Some(Message::User(User {
            content,
            ..User::default()
        })),
        "assistant" => Some(Message::Assistant(Reply {
            text: content,
            ..Reply::default()
        })),
        _ => None,
    }
}

/// Stores a conversation under a key of ours, unless there is one. Returns what to tell.
fn keep(found: &Found, stem: &str, home: &Home, taken: &mut BTreeSet<String>) -> Result<String> {
    let key = key(&found.key, stem)?;
    if !taken.insert(key.clone()) {
        return Err(Error::failed(format!(
            "another conversation has the name {key}, too"
        )));
    }
    let mut at = time(&found.created).unwrap_or_else(SystemTime::now);
    let mut messages = Vec::new();
    for message in &found.messages {
        at = time(text(message, "timestamp")).unwrap_or(at);
        messages.extend(said(message).map(|said| (said, at)));
    }
    let all = messages.len();
    let messages = newest(messages)?;
    let store = Files::new(home.clone());
    let mut session = store.load(&key, &Cancel::new(None), &|| ())?;
    if session.next() > 0 && !is_half(&session, &messages) {
        return Ok(format!(
            "kept     sessions/{key}.jsonl (already there), nothing"
        ));
    }
    let mut entries: Vec<(Entry, SystemTime)> = messages
        .iter()
        .map(|(message, at)| (Entry::Message(message), *at))
        .collect();
    entries.push((Entry::TurnEnd(TurnEnd::Done), at));
    let summary = Some(found.summary.trim()).filter(|summary| !summary.is_empty());
    store.store_whole(&mut session, summary, &entries)?;
    let count = counted(messages.len(), "message");
    let what = if messages.len() < all {
        format!("the newest {count} of {all}")
    } else {
        count
    };
    Ok(format!(
        "copied   sessions/{key}.jsonl ({what}, without tool calls)"
    ))
}

/// As many of the newest messages as a conversation can begin with: it has to have room to go on.
fn newest(mut messages: Vec<(Message, SystemTime)>) -> Result<Vec<(Message, SystemTime)>> {
    let mut left = storage::MAX_LOG / 2;
    let fits = |(message, _): &&(Message, SystemTime)| {
        // Escaped, as it is stored, and with what stands around it.
        let stored = json!(words(message)).to_string().len() as u64 + 200;
        let fits = stored <= left;
        left = left.saturating_sub(stored);
        fits
    };
    let count = messages.iter().rev().take_while(fits).count();
    let kept = messages.split_off(messages.len() - count);
    if kept.is_empty() {
        return Err(Error::failed("its newest message is too large"));
    }
    Ok(kept)
}

/// Whether a conversation is the beginning of this one and nothing else: an import of it was cut off. It chose no model, allowed
/// nothing and stored no values.
fn is_half(session: &Session, messages: &[(Message, SystemTime)]) -> bool {
    let is_same =
        |(ours, (theirs, _)): (&Message, &(Message, SystemTime))| words(ours) == words(theirs);
    session.ended.is_none()
        && session.model.is_none()
        && session.allowed.is_empty()
        && session.values.is_empty()
        && session.messages.len() <= messages.len()
        && session.messages.iter().zip(messages).all(is_same)
}

fn words(message: &Message) -> (bool, &str) {
    match message {
        Message::User(user) => (true, &user.content),
        Message::Assistant(reply) => (false, &reply.text),
        _ => (false, ""),
    }
}

/// Our key for one of theirs: a chat of Telegram stays one, and all else is a conversation of the command line.
fn key(theirs: &str, stem: &str) -> Result<String> {
    let named = if theirs.is_empty() {
        stem.replacen('_', ":", 1)
    } else {
        theirs.to_owned()
    };
    let chat = named.strip_prefix("telegram:").unwrap_or_default();
    if chat.parse::<i64>().is_ok() {
        return session_name("telegram", chat);
    }
    let name = named.strip_prefix("cli:").unwrap_or(&named);
    session_name("cli", &name.replace([':', '/'], "-"))
}

/// RFC 3339, or the same without a zone.
fn time(text: &str) -> Option<SystemTime> {
    let (seconds, offset) = parse_time(text)?;
    let seconds = u64::try_from(seconds - i64::from(offset.unwrap_or(0))).ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Memory;

    #[test]
    fn their_keys_become_ours() {
        for (theirs, stem, ours) in [
            ("telegram:123", "telegram_123", "telegram_123"),
            ("", "telegram_123", "telegram_123"),
            ("cli:direct", "x", "cli_direct"),
            ("agent:main:main", "x", "cli_agent-main-main"),
            ("telegram:../x", "x", "cli_telegram-%2E%2E-x"),
            ("", "notes", "cli_notes"),
        ] {
            assert_eq!(key(theirs, stem).unwrap(), ours, "{theirs} {stem}");
        }
    }

    #[test]
    fn what_the_user_chose_is_no_half_import() {
        let changed = |change: fn(&mut Session)| {
            let mut session = Memory::default().peek("telegram_42").unwrap();
            change(&mut session);
            is_half(&session, &[])
        };
        assert!(changed(|_| ()));
        assert!(!changed(|session| session.model = Some("large".to_owned())));
        assert!(!changed(|session| session.allowed = vec!["exec".to_owned()]));
        assert!(!changed(|session| {
            session.values.insert("city".to_owned(), "Ulm".into());
        }));
    }
}
