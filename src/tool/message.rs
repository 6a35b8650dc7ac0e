//! The tool that talks: a message to a chat while the turn goes on, with a file of the workspace if need be.
//!
//! It posts to the outbox and no more: who delivers, when, and how often it is tried, is not this tool's concern.

use std::sync::Arc;

use serde_json::Value;

use super::{Risk, Tool, ToolOutput, ToolSpec, Turn};
use crate::bell;
use crate::bus::Origin;
use crate::cron::{Jobs, heartbeat};
use crate::disk::NewFile;
use crate::error::{Error, Result};
use crate::hands::Hands;
use crate::outbox::{Item, Outbox};
use crate::paths::{Home, TELEGRAM as CHANNEL, session_name, telegram_chat};
use crate::session::note;
use crate::text::one_line;

/// The most bytes of a file (Bot API, `sendDocument`).
const MOST_FILE: u64 = 50 << 20;

const SCHEMA: &str = concat!(
    r#"{"type":"object","properties":{"#,
    r#""content":{"type":"string","description":"Markdown; may be empty when there is a file"},"#,
    r#""channel":{"type":"string","enum":["telegram"]},"#,
    r#""chat_id":{"type":"string","#,
    r#""description":"Another chat, by its number; default: where this turn or job answers, else the owner"},"#,
    r#""file":{"type":"string","description":"Path in the workspace, at most 50 MB; pictures are shown as such"}},"#,
    r#""required":["content"]}"#
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
    #[must_use]
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
            "cron" => job().and_then(|job| Some(job.to().filter(|(channel, _)| *channel == CHANNEL)?.1.to_owned())),
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
        let (mut file, name) = outbox.new_file()?;
        let size = self.hands.give_file(path, MOST_FILE, turn.cancel, &mut |bytes| file.push(bytes))?;
        if size == 0 {
            return Err(Error::failed(format!("{} is empty, and Telegram takes no empty files", one_line(path, 200))));
        }
        file.keep()?;
        item.file = name;
        item.name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
        Ok((file, size))
    }
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
        // Held until it is posted: nobody clears it away before.
        let copied = match said("file") {
            "" => None,
            path => Some(self.copy(&outbox, path, &mut item, turn)?),
        };
        let id = outbox.post(&item)?;
        bell::ring(&self.home);
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
