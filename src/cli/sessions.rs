//! `bantam sessions`: lists, shows, searches, resets and erases conversations.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::args::Args;
use super::ui::Ui;
use super::{confirm, local_time, notice, print, print_json, table, zone};
use crate::app::App;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::message::Message;
use crate::paths::{CLI, Home, session_name, shown_key};
use crate::session::{Entry, FileStore, Item, OpenSession, Session, Store};
use crate::session::{archive, entries, search};
use crate::text::{counted, printable, to_single_line};
use crate::timezone::Zone;

/// Maximum length of a found line, in characters.
const MAX_LINE: usize = 100;
/// Length of the text that is printed at a time, in bytes.
const MAX_PAGE: usize = 64 << 10;

pub(super) fn list(app: &App, _ui: &Ui, args: &Args) -> Result<u8> {
    let (home, loaded) = (&app.home, app.loaded()?);
    let days = loaded.config.session.keep_days;
    if days > 0 {
        let keep = Duration::from_secs(days.saturating_mul(24 * 60 * 60));
        // A failure does not prevent the list.
        if let Err(e) = archive::remove_expired(home, keep, SystemTime::now()) {
            notice(&printable(&e.doing("deleting old conversations").message));
        }
    }
    let mut list = archive::list(home)?;
    if args.has("json") {
        let rows = list.iter().map(|s| {
            json!({
                "key": shown_key(&s.key), "title": s.title, "messages": s.messages, "created": s.created, "updated": s.last,
                "last": s.last, "state": s.state, "damage": s.damage.len(),
            })
        });
        return print_json(&json!({"sessions": rows.collect::<Value>()})).map(|()| 0);
    }
    if list.is_empty() {
        notice("no conversations yet");
        return Ok(0);
    }
    list.reverse();
    let zone = zone(&app.env);
    let row = |s: &archive::SessionInfo| {
        let state = match s.state {
            _ if !s.damage.is_empty() => "(damaged) ".to_owned(),
            "done" => String::new(),
            state => format!("({state}) "),
        };
        let (key, updated) = (shown_key(&s.key), local_time(&s.last, &zone));
        [key, updated, format!("{state}{}", s.title)]
    };
    let rows: Vec<_> = list.iter().map(row).collect();
    print(&table(&["key", "updated", "first question"], &rows)).map(|()| 0)
}

pub(super) fn search(app: &App, _ui: &Ui, args: &Args) -> Result<u8> {
    let home = &app.home;
    let (found, unread) = search::search(home, &args.words)?;
    for line in &unread {
        notice(&printable(line));
    }
    if args.has("json") {
        let rows = found
            .iter()
            .map(|f| json!({"key": shown_key(&f.key), "last": f.last, "line": f.line}));
        return print_json(&json!({"sessions": rows.collect::<Value>()})).map(|()| 0);
    }
    if found.is_empty() {
        notice("no conversation contains all of these words");
        return Ok(0);
    }
    let zone = zone(&app.env);
    let row = |f: &search::Found| {
        let line = to_single_line(&f.line, MAX_LINE);
        [shown_key(&f.key), local_time(&f.last, &zone), line]
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    print(&table(&["key", "updated", "line"], &rows)).map(|()| 0)
}

/// Returns the conversation, and the name of its file, that a name such as `default.1` means.
fn archived(home: &Home, typed: &str) -> Option<(String, String)> {
    let is_name = session_name(CLI, typed).is_ok_and(|key| home.session(&key).exists());
    if is_name {
        return None;
    }
    let (name, number) = typed.rsplit_once('.')?;
    let key = archive::find(home, name).ok()?;
    let part = format!("{key}.{}", number.parse::<u64>().ok()?);
    home.session(&part).exists().then_some((key, part))
}

/// Makes an archived part of a conversation of the command line the current one, archives the one that was current, and returns
/// the conversation. `None` if the name means another one.
pub(super) fn reopen(home: &Home, typed: &str) -> Result<Option<String>> {
    let Some((key, part)) = archived(home, typed) else {
        return Ok(None);
    };
    let key = archive::key_for(home, &key)?;
    let old = Session::of(&part, entries(&home.session(&part))?)?;
    let store: Arc<dyn Store> = Arc::new(FileStore::new(home.clone()));
    let mut open = OpenSession::open(&store, &key, &Cancel::new(None), &|| ())?;
    open.renew(old.summary, old.messages, SystemTime::now())?;
    Ok(Some(key))
}

pub(super) fn show(app: &App, _ui: &Ui, args: &Args) -> Result<u8> {
    let home = &app.home;
    let key = match archived(home, &args.words[0]) {
        Some((_, part)) => part,
        None => archive::find(home, &args.words[0])?,
    };
    let after = match args.value("after") {
        None => None,
        Some(text) => Some(text.parse::<u64>().map_err(|_| {
            Error::usage(format!("--after {text}: must be a line number"))
                .hint("write a number, such as `--after 12`")
        })?),
    };
    let zone = zone(&app.env);
    let mut page = String::new();
    for entry in archive::read(home, &key)? {
        let entry = entry?;
        if let Item::Damage(what) = &entry.item {
            notice(&printable(what));
        }
        if let (Item::Header(_), Some(seq), true) = (&entry.item, after, after < entry.seq) {
            let name = &args.words[0];
            notice(&format!(
                "lines after {seq} are also in archived parts ({name}.1, ...)"
            ));
        }
        let is_old = after >= entry.seq && entry.seq.is_some();
        if entry.is_undone || is_old {
            continue;
        }
        if args.has("json") {
            page.extend(object(&entry).map(|object| format!("{object}\n")));
        } else {
            page.extend(format_entry(&entry, &zone));
        }
        if page.len() > MAX_PAGE {
            print(&std::mem::take(&mut page))?;
        }
    }
    print(&page).map(|()| 0)
}

/// Converts an entry that is shown to JSON.
fn object(entry: &Entry) -> Option<Value> {
    let mut object = match &entry.item {
        Item::Header(header) => json!({"summary": header.get("summary")?.as_str()?}),
        Item::Message(message) => Value::Object(message.to_json()),
        Item::End(end) => json!({"turn": end.name()}),
        Item::State(_) | Item::Undo | Item::Damage(_) => return None,
    };
    object["seq"] = json!(entry.seq);
    if !entry.time.is_empty() {
        object["time"] = entry.time.as_str().into();
    }
    Some(object)
}

/// Formats an entry for people: a full message, one line for each call, and the first line of each result.
fn format_entry(entry: &Entry, zone: &Zone) -> Option<String> {
    let message = |role: &str, text: &str| {
        let text = printable(text.trim_end());
        let text = text.trim_start_matches('\n');
        let end = if text.is_empty() { "" } else { "\n" };
        let seq = entry.seq.map_or("-".to_owned(), |seq| seq.to_string());
        let time = local_time(&entry.time, zone);
        format!("[{seq}] {time:<19} {role}\n{text}{end}")
    };
    Some(match &entry.item {
        Item::Header(header) => message("summary", header.get("summary")?.as_str()?),
        Item::Message(Message::System(text)) => message("system", text),
        Item::Message(Message::User(user)) => message("user", &user.content),
        Item::Message(Message::Assistant(reply)) => {
            let role = if reply.partial {
                "assistant (cut off)"
            } else {
                "assistant"
            };
            let calls = reply.calls.iter().map(|call| {
                let call = format!("{} {}", call.name, call.arguments);
                format!("  {}\n", to_single_line(&call, 144))
            });
            message(role, &reply.text) + &calls.collect::<String>()
        }
        Item::Message(Message::ToolResult(result)) => {
            let arrow = if result.is_error { "-> failed:" } else { "->" };
            format!("  {arrow} {}\n", to_single_line(&result.content, 100))
        }
        Item::End(end) => format!("-- {}\n\n", end.name()),
        Item::State(_) | Item::Undo | Item::Damage(_) => return None,
    })
}

pub(super) fn reset(app: &App, _ui: &Ui, args: &Args) -> Result<u8> {
    let home = &app.home;
    let key = archive::find(home, &args.words[0])?;
    let (now, typed) = (SystemTime::now(), to_single_line(&args.words[0], 80));
    let told = match archive::reset(home, &key, &Cancel::new(None), now)? {
        Some(old) => format!(
            "{typed} starts over; the old conversation is archived in {}\n",
            old.display()
        ),
        None => format!("{typed} is already empty\n"),
    };
    print(&told).map(|()| 0)
}

pub(super) fn erase(app: &App, ui: &Ui, args: &Args) -> Result<u8> {
    let home = &app.home;
    let key = archive::find(home, &args.words[0])?;
    let typed = to_single_line(&args.words[0], 80);
    let question = format!("Permanently erase {typed} and its archived parts?");
    if !confirm(args, ui, &question)? {
        return print("Nothing erased\n").map(|()| 0);
    }
    let files = archive::erase(home, &key, &Cancel::new(None))?;
    print(&format!("Erased {typed} ({})\n", counted(files, "file"))).map(|()| 0)
}
