//! The tool that sends a message to a chat during a turn, optionally with a file of the workspace.
//!
//! It only adds to the outbox, which delivers and retries.

use std::sync::Arc;

use rustix::fs::statvfs;
use serde_json::Value;

use super::{CallContext, Function, JOB, Risk, ToolOutput, ToolSpec, text};
use crate::bus::Origin;
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

/// Sends messages for models.
struct Sender<'a> {
    loaded: &'a Loaded,
    workers: &'a Workers,
    /// Users who may talk to the bot; the first is the owner.
    allowed: Vec<i64>,
}

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
        let sender = Sender {
            loaded: &loaded,
            workers: &workers,
            allowed: loaded.config.channels.telegram.ids(),
        };
        sender.send(args, turn)
    })
}

impl Sender<'_> {
    /// Returns the destination of a message, as `telegram:CHAT`.
    fn destination(&self, chat_id: &str, origin: &Origin) -> Result<String> {
        if !chat_id.is_empty() {
            let to = format!("{TELEGRAM}:{}", chat_id.trim_start_matches("telegram:"));
            return match telegram_chat(&to) {
                Ok(chat) if self.is_known(chat) => Ok(to),
                Ok(_) | Err(_) => Err(Error::failed(format!(
                    "unknown chat {}: omit chat_id to write to the user; a chat becomes known when the user writes to \
                     the bot from it",
                    foreign_line(chat_id, 300)
                ))),
            };
        }
        let Loaded { home, config, .. } = self.loaded;
        let job_chat = || {
            let jobs = Jobs::new(home.clone(), &self.loaded.env).list().ok()?;
            let job = jobs.into_iter().find(|job| job.id() == origin.chat)?;
            telegram_chat(&job.to(None)?).ok().map(str::to_owned)
        };
        let chat = match origin.channel.as_str() {
            TELEGRAM => Some(origin.chat.clone()),
            JOB if origin.chat == heartbeat::ID => {
                telegram_chat(&config.heartbeat.to).ok().map(str::to_owned)
            }
            JOB => job_chat(),
            _ => None,
        };
        let chat = chat.or_else(|| self.allowed.first().map(i64::to_string));
        let chat = chat.ok_or_else(|| {
            Error::failed("no chat to write to: channels.telegram.allow_from is empty")
        })?;
        Ok(format!("{TELEGRAM}:{chat}"))
    }

    /// Whether the chat belongs to an allowed user, or is a group with a conversation. A manipulated model must not write to
    /// other chats.
    fn is_known(&self, chat: &str) -> bool {
        let base = chat.split('_').next().unwrap_or_default();
        let has_session = |chat| {
            session_name(TELEGRAM, chat).is_ok_and(|name| self.loaded.home.session(&name).exists())
        };
        match base.parse::<i64>() {
            Ok(group) if group < 0 => has_session(chat) || has_session(base),
            Ok(user) => self.allowed.contains(&user),
            Err(_) => false,
        }
    }

    /// Copies the file at `path` into the outbox, and returns its size.
    fn attach(
        &self,
        outbox: &Outbox,
        path: &str,
        item: &mut Item,
        turn: &CallContext,
    ) -> Result<(NewFile, u64)> {
        let (mut file, name) = outbox.new_file()?;
        let mut copied = 0;
        let copy = &mut |bytes: &[u8]| {
            copied += bytes.len() as u64;
            let disk = statvfs(self.loaded.home.root())?;
            if disk.f_bavail.saturating_mul(disk.f_frsize) < MIN_FREE {
                return Err(Error::failed("the disk has too little free space"));
            }
            file.push(bytes)
        };
        self.workers.send_file(path, MAX_FILE, turn.cancel, copy)?;
        if copied == 0 {
            return Err(Error::failed(format!(
                "{} is empty, and Telegram takes no empty files",
                foreign_line(path, 300)
            )));
        }
        file.keep()?;
        item.file = name;
        item.name = path
            .trim_end_matches('/')
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        Ok((file, copied))
    }

    fn send(&self, args: &Value, turn: &CallContext) -> Result<ToolOutput> {
        let (content, path) = (text(args, "content").trim(), text(args, "file").trim());
        let to = self.destination(text(args, "chat_id").trim(), turn.origin)?;
        let outbox = Outbox::new(self.loaded.home.clone());
        let mut item = Item {
            to,
            text: content.to_owned(),
            ..Item::default()
        };
        if content.is_empty() && path.is_empty() {
            return Err(Error::failed("content is empty, and there is no file"));
        }
        // Protects the file from cleanup until the item is posted.
        let attached = if path.is_empty() {
            None
        } else {
            Some(self.attach(&outbox, path, &mut item, turn)?)
        };
        let mut report = format!("sending to {}", item.to);
        let mut noted = item.text.clone();
        if let Some((_, size)) = &attached {
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
        outbox.post(&item, &[], Some(&note))?;
        Ok(ToolOutput::text(report))
    }
}
