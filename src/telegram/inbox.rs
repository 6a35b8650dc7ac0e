//! Incoming messages, kept from before Telegram forgets them until they are answered.
//!
//! A journal for each bot, `state/telegram-BOT.jsonl`. Its lines are `{"in":UPDATE,"chat",..}`; `{"edit":UPDATE,"of":UPDATE,"text"}`;
//! `{"started":[UPDATE..]}` each time a turn begins; `{"ended":[UPDATE..]}` when turns were interrupted, with the updates of the
//! only one that a crash interrupted; `{"closed":[UPDATE..]}` once they are answered; `{"stranger":USER}` for an unknown user; and
//! `{"seen":[UPDATE..]}` for ids to remember.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::update::{Attachment, IncomingMessage};
use crate::disk::{self, Durability, Fields, Journal};
use crate::error::{Context, Result};

/// Compacts above this size in bytes.
const COMPACT_AT: u64 = 1 << 20;
/// Update ids to remember, for deduplication.
const MAX_SEEN: usize = 4000;
/// Unknown users to remember.
const MAX_UNKNOWN_USERS: usize = 1000;

/// A message that is not answered yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenMessage {
    pub update: u64,
    pub message: IncomingMessage,
    /// The updates that its last turn answered together; empty before the first turn.
    pub group: Vec<u64>,
    is_running: bool,
    /// Crashes while its turn was the only one running.
    pub crashes: u32,
}

pub(crate) struct Inbox {
    path: PathBuf,
    journal: Option<Journal>,
    open: Vec<OpenMessage>,
    seen: BTreeSet<u64>,
    /// The same in order of arrival: Telegram may restart its ids anywhere.
    order: VecDeque<u64>,
    /// The newest at the end.
    unknown_users: VecDeque<i64>,
    is_stopping: bool,
    bytes: u64,
}

impl Inbox {
    /// Opens the inbox of the bot `bot` in `state`, and returns a sentence for each damage. No other process may have it open.
    pub(crate) fn open(state: &Path, bot: i64) -> Result<(Self, Vec<String>)> {
        let path = state.join(format!("telegram-{bot}.jsonl"));
        let opened = Journal::open(&path).doing("opening the inbox")?;
        let mut inbox = Self::empty(path);
        inbox.bytes = fs_err::metadata(&inbox.path).map_or(0, |meta| meta.len());
        let mut damage = Vec::new();
        if let Some(opened) = opened {
            for line in &opened.lines {
                inbox.apply(&line.fields);
            }
            inbox.journal = Some(opened.journal);
            damage = opened.damage;
        }
        Ok((inbox, damage))
    }

    fn empty(path: PathBuf) -> Self {
        Self {
            path,
            journal: None,
            open: Vec::new(),
            seen: BTreeSet::new(),
            order: VecDeque::new(),
            unknown_users: VecDeque::new(),
            is_stopping: false,
            bytes: 0,
        }
    }

    /// The open messages, the oldest first.
    pub(crate) fn all(&self) -> Vec<OpenMessage> {
        self.open.clone()
    }

    pub(crate) fn has_seen(&self, update: u64) -> bool {
        self.seen.contains(&update)
    }

    /// Records an unknown user; true if new.
    pub(crate) fn add_unknown_user(&mut self, user: i64) -> Result<bool> {
        if self.unknown_users.contains(&user) {
            return Ok(false);
        }
        self.append(&[json!({"stranger": user})], Durability::Later)?;
        Ok(true)
    }

    /// Records the updates of a poll: messages, others to remember as seen, and edits, which replace a message's text until its
    /// first turn begins. On disk when this returns.
    pub(crate) fn keep(
        &mut self,
        messages: &[(u64, IncomingMessage)],
        others: &[u64],
        edits: &[(u64, IncomingMessage)],
    ) -> Result<()> {
        let mut lines: Vec<Value> = messages.iter().map(|(update, message)| message.line(*update)).collect();
        if !others.is_empty() {
            lines.push(json!({"seen": others}));
        }
        for (update, edit) in edits {
            let same = |other: &IncomingMessage| other.id == edit.id && other.chat == edit.chat;
            let of = match self.open.iter().find(|open| same(&open.message)) {
                Some(open) => open.group.is_empty().then_some(open.update),
                None => messages.iter().find(|(_, message)| same(message)).map(|(update, _)| *update),
            };
            lines.push(match of {
                Some(of) => json!({"edit": update, "of": of, "text": edit.text}),
                None => json!({"seen": [update]}),
            });
        }
        let counts = !messages.is_empty() || lines.iter().any(|line| line.get("edit").is_some());
        self.append(&lines, if counts { Durability::Now } else { Durability::Later })
    }

    /// Records that a turn for these messages begins.
    pub(crate) fn start(&mut self, ids: &[String]) -> Result<()> {
        if self.is_stopping {
            return Ok(());
        }
        self.append(&[json!({"started": numbers(ids)})], Durability::Later)
    }

    /// Records that the running turns were cut short, by a crash or a shutdown. A crash counts against a turn only if no other
    /// was running.
    pub(crate) fn interrupt(&mut self, is_crash: bool) -> Result<()> {
        self.is_stopping |= !is_crash;
        let mut running: Vec<&Vec<u64>> = self.open.iter().filter(|o| o.is_running).map(|o| &o.group).collect();
        running.dedup();
        let Some(first) = running.first() else { return Ok(()) };
        let alone: &[u64] = if is_crash && running.len() == 1 { first } else { &[] };
        self.append(&[json!({"ended": alone})], Durability::Later)
    }

    /// Records that these messages are answered.
    pub(crate) fn close(&mut self, ids: &[String]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        self.append(&[json!({"closed": numbers(ids)})], Durability::Later)
    }

    /// Those of these messages that are open.
    fn find(&self, ids: &[String]) -> impl Iterator<Item = &OpenMessage> {
        numbers(ids).into_iter().filter_map(|update| self.open.iter().find(|open| open.update == update))
    }

    pub(crate) fn crashes(&self, ids: &[String]) -> u32 {
        self.find(ids).map(|open| open.crashes).max().unwrap_or(0)
    }

    pub(crate) fn files(&self, ids: &[String]) -> Vec<Attachment> {
        self.find(ids).flat_map(|open| open.message.files.clone()).collect()
    }

    pub(crate) fn texts(&self, ids: &[String]) -> String {
        let texts = self.find(ids).map(|open| open.message.text.as_str()).filter(|text| !text.is_empty());
        texts.collect::<Vec<_>>().join("\n\n")
    }

    fn append(&mut self, lines: &[Value], durability: Durability) -> Result<()> {
        let fields: Vec<Fields> = lines.iter().filter_map(|line| line.as_object().cloned()).collect();
        if fields.is_empty() {
            return Ok(());
        }
        match &mut self.journal {
            Some(journal) => match journal.append(&fields, durability) {
                Ok(()) => {}
                Err(e) => {
                    // A failed handle is not trusted again; the next append opens the file.
                    self.journal = None;
                    return Err(e);
                }
            },
            None => match Journal::open(&self.path)? {
                Some(opened) => {
                    let mut journal = opened.journal;
                    journal.append(&fields, durability)?;
                    self.journal = Some(journal);
                }
                None => {
                    let header = json!({"v": 1}).as_object().cloned().unwrap_or_default();
                    let lines: Vec<Fields> = std::iter::once(header).chain(fields).collect();
                    self.journal = Some(Journal::create(&self.path, &lines)?);
                }
            },
        }
        for line in lines {
            self.bytes += line.to_string().len() as u64 + 40;
            self.apply(line);
        }
        // Twice what stays, so that messages that stay open for long are not rewritten each time.
        let open: usize = self.open.iter().map(|open| open.message.text.len()).sum();
        if self.bytes > COMPACT_AT.max(2 * open as u64) { self.compact() } else { Ok(()) }
    }

    fn apply(&mut self, line: &Value) {
        let list = |key: &str| -> Vec<u64> {
            line.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_u64).collect()
        };
        if let Some(update) = line.get("in").and_then(Value::as_u64) {
            self.remember(update);
            let crashes = line["deaths"].as_u64().and_then(|count| count.try_into().ok()).unwrap_or(0);
            let message = IncomingMessage::from_line(line);
            self.open.push(OpenMessage { update, message, group: list("group"), is_running: false, crashes });
        } else if let Some(update) = line.get("edit").and_then(Value::as_u64) {
            self.remember(update);
            let of = line.get("of").and_then(Value::as_u64);
            if let Some(open) = self.open.iter_mut().find(|open| Some(open.update) == of) {
                open.message.text = line["text"].as_str().unwrap_or_default().to_owned();
            }
        } else if let Some(user) = line.get("stranger").and_then(Value::as_i64) {
            if !self.unknown_users.contains(&user) {
                self.unknown_users.push_back(user);
            }
            if self.unknown_users.len() > MAX_UNKNOWN_USERS {
                self.unknown_users.pop_front();
            }
        }
        let started = list("started");
        for open in self.open.iter_mut().filter(|open| started.contains(&open.update)) {
            open.is_running = true;
            open.group.clone_from(&started);
        }
        if line.get("ended").is_some() {
            let alone = list("ended");
            for open in &mut self.open {
                open.is_running = false;
                open.crashes += u32::from(alone.contains(&open.update));
            }
        }
        let closed = list("closed");
        self.open.retain(|open| !closed.contains(&open.update));
        for update in list("seen") {
            self.remember(update);
        }
    }

    fn remember(&mut self, update: u64) {
        if self.seen.insert(update) {
            self.order.push_back(update);
        }
        if self.order.len() > MAX_SEEN {
            let oldest = self.order.pop_front();
            oldest.map(|oldest| self.seen.remove(&oldest));
        }
    }

    fn compact(&mut self) -> Result<()> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let mut lines = vec![json!({"v": 1}), json!({"seen": self.order})];
        lines.extend(self.unknown_users.iter().map(|user| json!({"stranger": user})));
        for open in &self.open {
            let mut line = open.message.line(open.update);
            if !open.group.is_empty() {
                (line["group"], line["deaths"]) = (open.group.clone().into(), open.crashes.into());
            }
            lines.push(line);
            if open.is_running {
                lines.push(json!({"started": open.group}));
            }
        }
        let fields: Vec<Fields> = lines.iter().filter_map(|line| line.as_object().cloned()).collect();
        journal.restart(fields)?;
        self.bytes = fs_err::metadata(&self.path)?.len();
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct InboxStatus {
    /// How many messages are open.
    pub waiting: usize,
    /// Users who wrote and are not in `allow_from`.
    pub unknown_users: Vec<i64>,
}

/// Reads the inboxes of all bots in `state` and changes nothing.
pub(crate) fn status(state: &Path) -> Result<InboxStatus> {
    let mut status = InboxStatus::default();
    for entry in fs_err::read_dir(state).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let bot = name.strip_prefix("telegram-").and_then(|rest| rest.strip_suffix(".jsonl"));
        // Not a copy that compaction made.
        if bot.is_none_or(|bot| bot.parse::<i64>().is_err()) {
            continue;
        }
        let mut inbox = Inbox::empty(entry.path());
        for line in disk::read_journal(&inbox.path).doing("reading the inbox")?.unwrap_or_default().lines {
            inbox.apply(&line.fields);
        }
        status.waiting += inbox.open.len();
        status.unknown_users.extend(inbox.unknown_users);
    }
    Ok(status)
}

/// The id of a message on the bus.
pub(crate) fn id(update: u64) -> String {
    format!("{}:{update}", super::CHANNEL)
}

fn numbers(ids: &[String]) -> Vec<u64> {
    ids.iter().filter_map(|id| id.rsplit(':').next()?.parse().ok()).collect()
}

impl IncomingMessage {
    fn line(&self, update: u64) -> Value {
        let files: Vec<Value> = self.files.iter().map(Attachment::to_json).collect();
        let mut line =
            json!({"in": update, "chat": self.chat, "message": self.id, "text": self.text, "from": self.from});
        if !files.is_empty() {
            line["files"] = files.into();
        }
        if self.is_part {
            line["part"] = true.into();
        }
        if let Some(command) = &self.command {
            line["command"] = command.clone().into();
        }
        line
    }

    fn from_line(line: &Value) -> Self {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        Self {
            chat: text("chat"),
            id: line["message"].as_i64().unwrap_or_default(),
            from: line["from"].as_i64().unwrap_or_default(),
            text: text("text"),
            command: line["command"].as_str().map(str::to_owned),
            files: line["files"].as_array().into_iter().flatten().map(Attachment::from_json).collect(),
            is_part: line["part"] == true,
            is_edit: false,
        }
    }
}

#[cfg(test)]
mod tests;
