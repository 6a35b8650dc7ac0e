//! `bantam sessions`: what was said, to look at, to start anew, to erase.

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::args::{Command, Flag, Given};
use super::{ask, print, shown, tell, zone};
use crate::cancel::Cancel;
use crate::config::{self, Env};
use crate::error::{Error, Result};
use crate::message::{Message, ToolCall, ToolResult};
use crate::session::archive::{self, Entry, Transcript, What};
use crate::text::{one_line, printable};
use crate::zone::Zone;

pub const LIST: Command = Command {
    name: "sessions list",
    words: "",
    about: "every conversation, the newest first: messages, last time, size, how its last turn ended",
    flags: &[Flag::new(None, "json", "", "one JSON object")],
    run: list,
};

pub const SHOW: Command = Command {
    name: "sessions show",
    words: "KEY",
    about: "what was said; KEY as the list has it, or the NAME that --session took",
    flags: &[
        Flag::new(None, "json", "", "JSON Lines: one object for each message, and for the end of each turn"),
        Flag::new(None, "after", "SEQ", "only what follows line SEQ, in earlier segments too"),
    ],
    run: show,
};

pub const RESET: Command = Command {
    name: "sessions reset",
    words: "KEY",
    about: "start it anew; what was said stays beside it, as KEY.N.jsonl",
    flags: &[],
    run: reset,
};

pub const PRUNE: Command = Command {
    name: "sessions prune",
    words: "",
    about: "remove what conversations have put aside long ago: earlier segments, never what they go on with",
    flags: &[Flag::new(None, "days", "N", "those last written more than N days ago (default: 30)")],
    run: prune,
};

pub const ERASE: Command = Command {
    name: "sessions erase",
    words: "KEY",
    about: "remove all that is kept of it, earlier segments too",
    flags: &[Flag::new(Some('y'), "yes", "", "do not ask")],
    run: erase,
};

fn list(given: &Given, env: &Env) -> Result<u8> {
    let list = archive::list(&config::home(env)?)?;
    if given.has("json") {
        let rows = list.iter().map(|s| {
            json!({
                "key": s.key, "messages": s.messages, "last": s.last, "bytes": s.bytes,
                "earlier_segments": s.earlier_segments, "state": s.state.name(), "damage": s.damage,
            })
        });
        return print(&format!("{}\n", json!({"sessions": rows.collect::<Value>()}))).map(|()| 0);
    }
    if list.is_empty() {
        tell("bantam: there are no conversations yet");
    }
    let width = list.iter().map(|s| s.key.chars().count()).max().unwrap_or_default();
    let zone = zone(env);
    let mut page = String::new();
    for s in &list {
        let (key, size, state) = (printable(&s.key), size(s.bytes), s.state.name());
        page.push_str(&format!("{key:<width$}  {:>5}  {:<19}  {size:>8}  {state}", s.messages, shown(&s.last, &zone)));
        if s.damage > 0 {
            page.push_str(&format!("  (damage: bantam sessions show {key})"));
        }
        page.push('\n');
    }
    print(&page).map(|()| 0)
}

fn show(given: &Given, env: &Env) -> Result<u8> {
    let home = config::home(env)?;
    let key = archive::find(&home, &given.words[0])?;
    let after = match given.value("after") {
        None => None,
        Some(text) => Some(text.parse::<u64>().map_err(|_| {
            Error::usage(format!("--after {text}: not a line's number"))
                .hint("--after 12, as bantam sessions show has it")
        })?),
    };
    let mut story = match after {
        Some(seq) => archive::read_after(&home, &key, seq)?,
        None => archive::read(&home, &key)?,
    };
    let state = story.state();
    for damage in &story.damage {
        tell(&format!("bantam: {}", printable(damage)));
    }
    // The calls are kept: a result that is asked for may belong to one that is not.
    let wanted = |entry: &Entry| after.is_none_or(|after| entry.seq > after);
    if given.has("json") {
        story.entries.retain(wanted);
        let waiting = story.waiting.iter().map(|entry| {
            let mut object = object(entry);
            (object["seq"], object["waiting"]) = (Value::Null, true.into());
            object.to_string()
        });
        let entries = story.entries.iter().map(|entry| object(entry).to_string());
        return print(&lines(entries.chain(waiting))).map(|()| 0);
    }
    let mut page = page(&story, &zone(env), wanted);
    for entry in &story.waiting {
        if let What::Message(Message::User(user)) = &entry.what {
            let (time, text) = (shown(&entry.time, &zone(env)), printable(&user.content));
            page.push_str(&format!("[-] {time:<19} user (comes in with the next turn)\n{text}\n"));
        }
    }
    print(&page)?;
    if state == archive::State::Unfinished {
        tell("bantam: the last turn is under way, or was cut short");
    }
    Ok(0)
}

fn object(entry: &Entry) -> Value {
    let mut fields = serde_json::Map::new();
    fields.insert("seq".to_owned(), entry.seq.into());
    if !entry.time.is_empty() {
        fields.insert("time".to_owned(), entry.time.as_str().into());
    }
    match &entry.what {
        What::Summary(text) => drop(fields.insert("summary".to_owned(), text.as_str().into())),
        What::Message(message) => fields.extend(message.to_json()),
        What::TurnEnd(end) => drop(fields.insert("turn".to_owned(), end.name().into())),
    }
    Value::Object(fields)
}

/// The conversation for a reader: what was said in full, a line for each call with the beginning of its result.
fn page(story: &Transcript, zone: &Zone, wanted: impl Fn(&Entry) -> bool) -> String {
    let mut page = String::new();
    let mut left: VecDeque<&Entry> = story.entries.iter().collect();
    while let Some(entry) = left.pop_front() {
        let is_wanted = wanted(entry);
        let mut said = |who: &str, text: &str| {
            if is_wanted {
                page.push_str(&format!("[{}] {:<19} {who}\n", entry.seq, shown(&entry.time, zone)));
                page.push_str(printable(text.trim_end()).trim_start_matches('\n'));
                page.push_str(if text.trim().is_empty() { "" } else { "\n" });
            }
        };
        match &entry.what {
            What::Summary(text) => said("what was said before, in short", text),
            What::Message(Message::System(text)) => said("system", text),
            What::Message(Message::User(user)) => said("user", &user.content),
            What::Message(Message::Assistant(reply)) => {
                said(if reply.partial { "assistant (broke off)" } else { "assistant" }, &reply.text);
                let mut results = results(&mut left);
                for call in &reply.calls {
                    let found = results.iter().position(|(_, result)| result.call_id == call.id);
                    let found = found.map(|at| results.swap_remove(at));
                    if is_wanted || found.is_some_and(|(entry, _)| wanted(entry)) {
                        page.push_str(&line(call, found.map(|(_, result)| result)));
                    }
                }
            }
            // Belongs to no call: something was lost.
            What::Message(Message::ToolResult(result)) => said("result of a lost call", &result.content),
            What::TurnEnd(end) => {
                if is_wanted {
                    page.push_str(&format!("-- {}\n\n", end.name()));
                }
            }
        }
    }
    page
}

/// Takes the results that come next.
fn results<'a>(left: &mut VecDeque<&'a Entry>) -> Vec<(&'a Entry, &'a ToolResult)> {
    let mut results = Vec::new();
    while let Some((entry, What::Message(Message::ToolResult(result)))) =
        left.front().map(|entry| (*entry, &entry.what))
    {
        results.push((entry, result));
        left.pop_front();
    }
    results
}

fn line(call: &ToolCall, result: Option<&ToolResult>) -> String {
    let came = match result {
        None => "(no result)".to_owned(),
        Some(result) if result.is_error => format!("failed: {}", one_line(&result.content, 100)),
        Some(result) => one_line(&result.content, 100),
    };
    format!("  {} {} -> {came}\n", one_line(&call.name, 64), one_line(&call.arguments, 80))
}

#[allow(clippy::cast_precision_loss)] // one digit behind the point is shown
fn size(bytes: u64) -> String {
    match bytes {
        0..1000 => format!("{bytes} B"),
        1000..1_000_000 => format!("{:.1} KB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

fn reset(given: &Given, env: &Env) -> Result<u8> {
    let home = config::home(env)?;
    let key = archive::find(&home, &given.words[0])?;
    let now = SystemTime::now();
    print(&match archive::reset(&home, &key, &Cancel::new(None), now)? {
        Some(old) => format!("{key} starts anew; what was said is kept in {}\n", old.display()),
        None => format!("{key} is empty already\n"),
    })
    .map(|()| 0)
}

fn prune(given: &Given, env: &Env) -> Result<u8> {
    let days: u64 = match given.value("days") {
        None => 30,
        Some(text) => text.parse().map_err(|_| {
            Error::usage(format!("--days {text}: not a number")).hint("--days takes a whole number, as in --days 30")
        })?,
    };
    let age = Duration::from_secs(days.saturating_mul(24 * 60 * 60));
    let removed = archive::prune(&config::home(env)?, age, SystemTime::now())?;
    if removed.is_empty() {
        tell(&format!("bantam: nothing that was put aside is older than {days} days"));
    }
    print(&lines(removed.iter().map(|path| format!("removed {}", printable(&path.to_string_lossy()))))).map(|()| 0)
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.flat_map(|line| [line, "\n".to_owned()]).collect()
}

fn erase(given: &Given, env: &Env) -> Result<u8> {
    let home = config::home(env)?;
    let key = archive::find(&home, &given.words[0])?;
    if !given.has("yes") {
        if !io::stdin().is_terminal() {
            return Err(Error::usage(format!("erasing {key}: nobody can be asked, for there is no terminal"))
                .hint(format!("bantam sessions erase {key} --yes")));
        }
        let answer = ask(&format!("Erase all that is kept of {key}? It cannot be undone. [y/N] "))?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return print("nothing was erased\n").map(|()| 0);
        }
    }
    let files = archive::erase(&home, &key, &Cancel::new(None))?;
    let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    print(&format!("{key} is erased ({files})\n")).map(|()| 0)
}
