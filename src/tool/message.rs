//! The tool that talks: a message to a chat while the turn goes on, with a file of the workspace if need be.
//!
//! It posts to the outbox and no more: who delivers, when, and how often it is tried, is not this tool's concern.

use std::sync::Arc;

use serde_json::Value;

use super::{Risk, Tool, ToolOutput, ToolSpec, Turn};
use crate::bus::Origin;
use crate::cron::{Jobs, heartbeat};
use crate::disk::{self, NewFile};
use crate::error::{Error, Result};
use crate::hands::Hands;
use crate::notify;
use crate::outbox::{Item, Outbox};
use crate::paths::{Home, TELEGRAM as CHANNEL, session_name, telegram_chat};
use crate::session::note;
use crate::text::{one_line, size};

/// The most bytes of a file (Bot API, `sendDocument`).
const MOST_FILE: u64 = 50 << 20;

/// The most messages that wait to be sent to a chat when another is posted.
const MOST_WAITING: usize = 20;
/// The most bytes of files that wait to be sent, to all chats together.
const MOST_WAITING_FILES: u64 = 200 << 20;
/// What a copy of a file leaves free on the disk, in bytes.
const LEAST_FREE: u64 = 64 << 20;
/// What the model can do when there is no room.
const LATER: &str = "Telegram has not taken them yet. Send no more of them now";

const SCHEMA: &str = concat!(
    r#"{"type":"object","properties":{"#,
    r#""content":{"type":"string","description":"Markdown; not needed with a file"},"#,
    r#""channel":{"type":"string","enum":["telegram"]},"#,
    r#""chat_id":{"type":"string","#,
    r#""description":"Another chat, by its number; default: where this turn or job answers, else the owner"},"#,
    r#""file":{"type":"string","description":"Path in the workspace, at most 50 MB; pictures are shown as such"}},"#,
    r#""required":[]}"#
);

pub struct SendMessage {
    spec: ToolSpec,
    hands: Arc<Hands>,
    home: Home,
    jobs: Jobs,
    /// Who may talk to the bot; the first is the owner.
    allowed: Vec<i64>,
    /// Where heartbeats go, as `telegram:CHAT`; empty: to the owner.
    heartbeat: String,
}

impl SendMessage {
    pub fn new(hands: Arc<Hands>, home: Home, jobs: Jobs, allowed: Vec<i64>, heartbeat: String) -> Self {
        let spec = ToolSpec {
            name: "message".into(),
            description: "Send a message to the user's chat now, or a file of the workspace. Your final answer is \
                          delivered by itself: never repeat in it what you sent, nor send what it will say."
                .into(),
            schema: SCHEMA.into(),
            risk: Risk::Writes,
            source: "built in".into(),
        };
        Self { spec, hands, home, jobs, allowed, heartbeat }
    }

    /// Where a message goes.
    fn place(&self, named: &str, origin: &Origin) -> Result<String> {
        if !named.is_empty() {
            let to = format!("{CHANNEL}:{}", named.trim_start_matches("telegram:"));
            let is_known = telegram_chat(&to).is_ok_and(|chat| self.knows(chat));
            return if is_known { Ok(to) } else { Err(stranger(named)) };
        }
        let job = || self.jobs.list().ok()?.into_iter().find(|job| job.id() == origin.chat);
        let to = match origin.channel.as_str() {
            CHANNEL => Some(origin.chat.clone()),
            "cron" if origin.chat == heartbeat::ID => telegram_chat(&self.heartbeat).ok().map(str::to_owned),
            "cron" => job().and_then(|job| Some(telegram_chat(&job.to()?).ok()?.to_owned())),
            _ => None,
        };
        let owner = || self.allowed.first().map(i64::to_string);
        let to = to.or_else(owner).ok_or_else(|| {
            Error::failed("there is no chat to write to: the user has not put an id into channels.telegram.allow_from")
        })?;
        Ok(format!("{CHANNEL}:{to}"))
    }

    /// Whether it is the chat of somebody who may talk to the bot, or a group where one has. A model that was talked into
    /// it is not to write to anybody else, nor to those who may not any more.
    fn knows(&self, chat: &str) -> bool {
        let base = chat.split('_').next().unwrap_or_default();
        let spoken = |chat| session_name(CHANNEL, chat).is_ok_and(|name| self.home.session(&name).exists());
        match base.parse::<i64>() {
            Ok(group) if group < 0 => spoken(chat) || spoken(base),
            Ok(user) => self.allowed.contains(&user),
            Err(_) => false,
        }
    }

    /// A copy of the file `path` in the outbox, with its size.
    fn copy(&self, outbox: &Outbox, path: &str, item: &mut Item, turn: &Turn) -> Result<(NewFile, u64)> {
        let mut room = room(outbox, &item.to)?;
        let (mut file, name) = outbox.new_file()?;
        let copied = outbox.file(&name);
        let size = self.hands.give_file(path, MOST_FILE, turn.cancel, &mut |bytes| {
            let len = bytes.len() as u64;
            room = room.checked_sub(len).ok_or_else(|| {
                let most = size(MOST_WAITING_FILES);
                Error::failed(format!("with it, files of more than {most} would wait to be sent: {LATER}"))
            })?;
            if disk::free(&copied)? < LEAST_FREE + len {
                return Err(Error::failed("there is too little free space on the disk for a copy of it"));
            }
            file.push(bytes)
        })?;
        if size == 0 {
            return Err(Error::failed(format!("{} is empty, and Telegram takes no empty files", one_line(path, 200))));
        }
        file.keep()?;
        item.file = name;
        item.name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
        Ok((file, size))
    }
}

/// How many bytes of files may still be posted, if anything may to this place. What Telegram does not take waits, and a model
/// that goes on sending would fill the disk.
fn room(outbox: &Outbox, to: &str) -> Result<u64> {
    let pending = outbox.pending()?;
    let messages = pending.iter().filter(|pending| pending.item.to == to).count();
    if messages >= MOST_WAITING {
        return Err(Error::failed(format!("{messages} messages wait to be sent to {to} already: {LATER}")));
    }
    let files = pending.iter().map(|pending| &pending.item.file).filter(|file| !file.is_empty());
    let len = |file: &String| fs_err::metadata(outbox.file(file)).map_or(0, |meta| meta.len());
    Ok(MOST_WAITING_FILES.saturating_sub(files.map(len).sum()))
}

fn stranger(named: &str) -> Error {
    Error::failed(format!(
        "{} is no chat that this bot knows: leave chat_id out to write to the user, who may also write to the bot from \
         there first",
        one_line(named, 40)
    ))
}

impl Tool for SendMessage {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        let said = |name: &str| args.get(name).and_then(Value::as_str).unwrap_or_default();
        one_line(&format!("{} {}", said("file"), said("content")), 80).trim_start().to_owned()
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let said = |name: &str| args.get(name).and_then(Value::as_str).unwrap_or_default().trim();
        let to = self.place(said("chat_id"), turn.origin)?;
        let outbox = Outbox::new(self.home.clone());
        let mut item = Item { to, text: said("content").to_owned(), ..Item::default() };
        if item.text.is_empty() && said("file").is_empty() {
            return Err(Error::failed("content is empty, and there is no file"));
        }
        room(&outbox, &item.to)?;
        // Held until it is posted: nobody clears it away before.
        let copied = match said("file") {
            "" => None,
            path => Some(self.copy(&outbox, path, &mut item, turn)?),
        };
        let id = outbox.post(&item)?;
        notify::signal(&self.home);
        let mut told = format!("on its way to {}", item.to);
        if let Some((_, size)) = copied {
            told.push_str(&format!(", with {} ({size} bytes)", item.name));
            item.text.push_str(&format!("\n(with the file {})", item.name));
        }
        let Origin { channel, chat } = turn.origin;
        let own = format!("{channel}:{chat}");
        if item.to != own {
            let title = format!("You sent this to the chat from another conversation, {}", one_line(&own, 60));
            let session = session_name(CHANNEL, &item.to[CHANNEL.len() + 1..])?;
            if let Err(e) = note(&self.home, &session, &id, &title, item.text.trim()) {
                told.push_str(&format!("; that could not be noted in the chat's conversation: {e}"));
            }
        }
        Ok(ToolOutput::text(told))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_leaves_less_room_until_there_is_none() {
        let root = std::env::temp_dir().join(format!("bantam-room-{}", std::process::id()));
        let outbox = Outbox::new(Home::new(root.clone()));
        let (here, there) = ("telegram:1", "telegram:2");
        assert_eq!(room(&outbox, here).unwrap(), MOST_WAITING_FILES);
        fs_err::create_dir_all(root.join("state/outbox")).unwrap();
        // Holes take no space.
        fs_err::File::create(outbox.file("large")).unwrap().set_len(150 << 20).unwrap();
        let item = Item { to: there.into(), file: "large".into(), ..Item::default() };
        outbox.post(&item).unwrap();
        assert_eq!(room(&outbox, here).unwrap(), 50 << 20);
        let text = Item { to: here.into(), ..Item::default() };
        let ids: Vec<String> = (0..MOST_WAITING).map(|_| outbox.post(&text).unwrap()).collect();
        assert!(room(&outbox, here).unwrap_err().message.contains("20 messages wait"));
        assert!(room(&outbox, there).is_ok());
        outbox.over(&ids[0]).unwrap();
        assert!(room(&outbox, here).is_ok());
        fs_err::remove_dir_all(root).unwrap();
    }
}
