//! The tool that sends a message to a chat during a turn, optionally with a file of the workspace.
//!
//! It only adds to the outbox, which delivers and retries.

use std::sync::Arc;

use rustix::fs::statvfs;
use serde_json::Value;

use super::{CallContext, Function, JOB, Risk, ToolOutput, ToolSpec, text};
use crate::bus::Origin;
use crate::cancel::Cancel;
use crate::config::Loaded;
use crate::cron::{Jobs, heartbeat};
use crate::error::{Error, Result};
use crate::outbox::{Item, Note, Outbox};
use crate::paths::{TELEGRAM, session_name, telegram_chat};
use crate::storage::NewFile;
use crate::text::{foreign_line, to_single_line};
use crate::worker::Workers;

/// Maximum size of a file, in bytes (Bot API, `sendDocument`).
const MAX_FILE: u64 = 50 << 20;
/// Free space that copying a file must leave, in bytes, because copies wait as long as Telegram cannot be reached.
const MIN_FREE: u64 = 64 << 20;

pub(crate) fn message_tool(loaded: &Arc<Loaded>, workers: &Arc<Workers>) -> Function {
    let spec = ToolSpec::built_in(
        "message",
        Risk::Writes,
        "Send a message or a file to the user's chat now. Your final answer is delivered automatically: do not repeat in it \
         what you sent, and do not send what it will say.",
        concat!(
            r#"{"type":"object","properties":{"content":{"type":"string","description":"Markdown; optional with a file"},"#,
            r#""channel":{"type":"string","enum":["telegram"]},"#,
            r#""chat_id":{"type":"string","description":"A chat's number; default: where this turn replies, else the owner"},"#,
            r#""file":{"type":"string","description":"Of the workspace, up to 50 MB; images are photos"}}}"#
        ),
    );
    let (loaded, workers) = (loaded.clone(), workers.clone());
    Function::built_in(spec, &["file", "content"], move |args, turn| {
        send(&loaded, &workers, args, turn)
    })
}

/// Returns the destination of a message, as `telegram:CHAT`.
fn destination(loaded: &Loaded, chat_id: &str, origin: &Origin) -> Result<String> {
    let Loaded {
        home, config, env, ..
    } = loaded;
    if !chat_id.is_empty() {
        let to = format!("{TELEGRAM}:{}", chat_id.trim_start_matches("telegram:"));
        return match telegram_chat(&to) {
            Ok(chat) if is_known(loaded, chat) => Ok(to),
            _ => Err(Error::failed(format!(
                "unknown chat {}: omit chat_id to write to the user; a chat becomes known when the user writes to the bot \
                 from it",
                foreign_line(chat_id, 300)
            ))),
        };
    }
    let to = match origin.channel.as_str() {
        TELEGRAM => Some(format!("{TELEGRAM}:{}", origin.chat)),
        JOB if origin.chat == heartbeat::ID => Some(config.heartbeat.to.clone()),
        JOB => {
            let job = Jobs::new(home.clone(), env).find(&origin.chat);
            job.ok().and_then(|job| job.to(None))
        }
        _ => None,
    };
    let owner = config.channels.telegram.ids().into_iter().next();
    to.filter(|to| telegram_chat(to).is_ok())
        .or(owner.map(|owner| format!("{TELEGRAM}:{owner}")))
        .ok_or_else(|| Error::failed("no chat to write to: channels.telegram.allow_from is empty"))
}

/// Whether the chat belongs to an allowed user, or is a group with a conversation. A manipulated model must not write to other
/// chats.
fn is_known(loaded: &Loaded, chat: &str) -> bool {
    let base = chat.split('_').next().unwrap_or_default();
    let has_session =
        |chat| session_name(TELEGRAM, chat).is_ok_and(|name| loaded.home.session(&name).exists());
    match base.parse::<i64>() {
        Ok(group) if group < 0 => has_session(chat) || has_session(base),
        Ok(user) => loaded.config.channels.telegram.ids().contains(&user),
        Err(_) => false,
    }
}

/// Copies a file of the workspace into the outbox. Returns also its name there, and its size.
fn copied(
    loaded: &Loaded,
    workers: &Workers,
    path: &str,
    cancel: &Cancel,
) -> Result<(NewFile, String, u64)> {
    let (mut file, name) = Outbox::new(loaded.home.clone()).new_file()?;
    let mut size = 0;
    let copy = &mut |bytes: &[u8]| {
        size += bytes.len() as u64;
        let disk = statvfs(loaded.home.root())?;
        if disk.f_bavail.saturating_mul(disk.f_frsize) < MIN_FREE {
            return Err(Error::failed("the disk has too little free space"));
        }
        file.push(bytes)
    };
    workers.send_file(path, MAX_FILE, cancel, copy)?;
    if size == 0 {
        let path = foreign_line(path, 300);
        let why = format!("{path} is empty, and Telegram takes no empty files");
        return Err(Error::failed(why));
    }
    file.keep()?;
    Ok((file, name, size))
}

fn send(
    loaded: &Loaded,
    workers: &Workers,
    args: &Value,
    turn: &CallContext,
) -> Result<ToolOutput> {
    let (content, path) = (text(args, "content").trim(), text(args, "file").trim());
    let mut item = Item {
        to: destination(loaded, text(args, "chat_id").trim(), turn.origin)?,
        text: content.to_owned(),
        ..Item::default()
    };
    if content.is_empty() && path.is_empty() {
        return Err(Error::failed("content is empty, and there is no file"));
    }
    let mut report = format!("sending to {}", item.to);
    let mut noted = content.to_owned();
    // Protects the file from cleanup until the item is posted.
    let copy = (!path.is_empty()).then(|| copied(loaded, workers, path, turn.cancel));
    let copy = copy.transpose()?;
    if let Some((_, name, size)) = &copy {
        let shown = path.trim_end_matches('/').rsplit('/').next();
        (item.file, item.name) = (name.clone(), shown.unwrap_or_default().to_owned());
        report.push_str(&format!(", with {} ({size} bytes)", item.name));
        noted.push_str(&format!("\n(with the file {})", item.name));
    }
    let own = format!("{}:{}", turn.origin.channel, turn.origin.chat);
    let note = Note {
        title: &format!(
            "You sent this to the chat from another conversation, {}",
            to_single_line(&own, 60)
        ),
        from: &session_name(&turn.origin.channel, &turn.origin.chat)?,
        text: noted.trim(),
    };
    Outbox::new(loaded.home.clone()).post(&item, &[], Some(&note))?;
    Ok(ToolOutput::text(report))
}
