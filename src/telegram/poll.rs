//! The long poll: fetches updates, records them, and only then confirms them with the offset of the next poll.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::admission::Stranger;
use super::api::Failure;
use super::chats::Chats;
use super::send::MessageSender;
use super::update::{self, IncomingMessage, KINDS, Me, Press, Update};
use super::{CHANNEL, MAX_BACK_OFF, Settings, tries};
use crate::bus::{Command, Inbound, Inbox, Origin, Source, TelegramMessage};
use crate::error;
use crate::log::Level;
use crate::paths::session_name;
use crate::tries::{MIN_DEMAND, Tries};

/// Maximum duration of a poll, in seconds.
const POLL_TIME: u64 = 50;
/// Back-off while another program polls, possibly this bot before a restart.
const CONFLICT_BACK_OFF: Duration = Duration::from_secs(30);
/// Maximum duration of a restart without running turns.
const RESTART_TIME: Duration = Duration::from_secs(5);
/// Number of conflicts that are retried soon.
const QUICK_TRIES: u32 = 3;

/// Commands that Telegram suggests.
const COMMANDS: [(&str, &str); 7] = [
    ("new", "start a new conversation"),
    ("stop", "stop the current answer"),
    ("undo", "undo the last question and its file changes"),
    ("status", "show status"),
    ("model", "show or change the model"),
    ("usage", "show token usage"),
    ("help", "show help"),
];

pub(super) struct Poller {
    pub settings: Settings,
    pub chats: Arc<Chats>,
    /// The latest albums in groups that are addressed to the bot by one of their pictures.
    pub albums: Vec<String>,
    /// The latest parts of other albums, of which a later part may address the bot.
    pub parts: Vec<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollEvent<'a> {
    /// Updates have arrived, but are not recorded yet.
    Arrived,
    /// The bot's user name is known.
    Serving(&'a str),
    /// A poll was answered.
    Polled,
    /// Polls fail repeatedly for this reason, and are retried.
    Failing(&'a str),
}

/// Number of remembered albums, and of remembered parts.
const MAX_ALBUMS: usize = 16;

/// Handles an event of the poller. Returns whether the program is about to restart.
pub(super) type Watch = Box<dyn Fn(PollEvent) -> bool + Send + Sync>;

struct BackOff {
    tries: Tries,
    /// The last reason, to log each reason once.
    reason: String,
}

impl BackOff {
    fn new() -> Self {
        Self {
            tries: tries(u32::MAX),
            reason: String::new(),
        }
    }
}

impl Poller {
    /// Polls until cancelled.
    pub(super) fn run(mut self) {
        let mut back_off = BackOff::new();
        let Some(me) = self.introduce(&mut back_off) else {
            return;
        };
        // Confirms earlier updates. A successful poll has confirmed them, so the next poll needs no offset. Telegram may
        // restart its ids below any old offset.
        let mut offset = None;
        while !self.is_stopping() {
            let mut params = json!({"timeout": POLL_TIME, "allowed_updates": KINDS});
            if let Some(offset) = offset {
                params["offset"] = u64::into(offset);
            }
            let asked = Instant::now();
            match self.call("getUpdates", &params, Duration::from_secs(POLL_TIME)) {
                Ok(updates) => {
                    let updates = updates.as_array().map(Vec::as_slice).unwrap_or_default();
                    // A changed config.json may affect users and models, so the restarted program fetches the updates again.
                    if !updates.is_empty() && self.watch(PollEvent::Arrived) {
                        let _ended = self.sender().cancel.sleep(RESTART_TIME);
                        continue;
                    }
                    // Updates that cannot be recorded remain at Telegram.
                    let inbox = self.inbox().clone();
                    if let Err(e) = inbox.while_serving(|| self.take(updates, &me)) {
                        let failure = Failure::Failing(format!("cannot record messages: {e}"));
                        self.pause(&mut back_off, &failure);
                        continue;
                    }
                    if !back_off.reason.is_empty() {
                        self.log(Level::Info, "polling works again");
                    }
                    back_off = BackOff::new();
                    self.watch(PollEvent::Polled);
                    let last = updates.iter().filter_map(update_id).max();
                    let next = last.map(|last| last + 1);
                    // A server that answers the same at once is not asked again at once.
                    if next == offset {
                        let left = MIN_DEMAND.saturating_sub(asked.elapsed());
                        let _ended = self.sender().cancel.sleep(left);
                    }
                    offset = next;
                }
                Err(failure) => self.pause(&mut back_off, &failure),
            }
        }
    }

    fn watch(&self, event: PollEvent) -> bool {
        self.chats.watch.get().is_some_and(|watch| watch(event))
    }

    fn sender(&self) -> &MessageSender {
        &self.chats.sender
    }

    fn inbox(&self) -> &Inbox {
        &self.sender().outbox.inbox
    }

    fn log(&self, level: Level, text: &str) {
        (self.sender().log)(level, text);
    }

    fn is_stopping(&self) -> bool {
        self.sender().cancel.reason().is_some()
    }

    fn call(&self, method: &str, params: &Value, within: Duration) -> Result<Value, Failure> {
        self.sender()
            .api
            .call(method, params, within, &self.sender().cancel)
    }

    /// Gets the bot's account, and registers its commands.
    fn introduce(&self, back_off: &mut BackOff) -> Option<Me> {
        let me = loop {
            match self.call("getMe", &json!({}), Duration::ZERO) {
                Ok(me) => break me,
                Err(_) if self.is_stopping() => return None,
                Err(failure) => self.pause(back_off, &failure),
            }
        };
        let commands: Vec<Value> = COMMANDS
            .iter()
            .map(|(command, about)| json!({"command": command, "description": about}))
            .collect();
        let commands = json!({"commands": commands});
        if let Err(e) = self.call("setMyCommands", &commands, Duration::ZERO) {
            let why = e.text();
            self.log(Level::Warn, &format!("setting the bot's commands: {why}"));
        }
        *back_off = BackOff::new();
        let username = me["username"].as_str().unwrap_or_default().to_owned();
        self.log(Level::Info, &format!("serving as @{username}"));
        self.watch(PollEvent::Serving(&username));
        Some(Me {
            id: me["id"].as_i64().unwrap_or_default(),
            username,
        })
    }

    /// Records the updates of a poll, and passes the messages on.
    fn take(&mut self, updates: &[Value], me: &Me) -> error::Result<()> {
        // Updates come again if a disk was full.
        self.parts.retain(|part| !updates.contains(part));
        for update in updates {
            if let (Some(album), Update::Message(_)) = (
                update::album(update),
                update::read(update, &self.settings, me),
            ) {
                self.albums.push(album.to_owned());
            }
        }
        let old = self.albums.len().saturating_sub(MAX_ALBUMS);
        self.albums.drain(..old);
        let addressed = Settings {
            answers_all: true,
            ..self.settings.clone()
        };
        let (mut messages, mut edits) = (Vec::new(), Vec::new());
        let (mut unknown, mut presses) = (Vec::new(), Vec::new());
        let mut parts = Vec::new();
        for update in self.parts.iter().chain(updates) {
            let Some(update_id) = update_id(update) else {
                continue;
            };
            let id = self.id(update_id);
            if self.inbox().queue.is_known(&id)? {
                continue;
            }
            let album = update::album(update);
            let known = album.filter(|album| self.albums.contains(&(*album).to_owned()));
            let settings = known.map_or(&self.settings, |_| &addressed);
            match update::read(update, settings, me) {
                Update::Message(message) if message.is_edit => {
                    edits.extend(Self::inbound(id, message));
                }
                Update::Message(message) => messages.extend(Self::inbound(id, message)),
                Update::Press(press) => {
                    let (choice, shown) = self.chats.press(&press)?;
                    match choice {
                        Some(choice) => messages.extend(Self::inbound(id, choice)),
                        // The press may restart the program before the next poll confirms the update.
                        None => self.inbox().queue.done(&[id])?,
                    }
                    presses.push((press, shown));
                }
                Update::UnknownUser(user) if !unknown.contains(&user) => unknown.push(user),
                Update::Moved(old, new) => {
                    self.chats.follow(old, new)?;
                    for message in &mut messages {
                        move_to(message, old, new);
                    }
                }
                Update::Hidden(chat, name) => self.chats.report_hidden(chat, &name),
                Update::Unreadable(chat, kind) => {
                    self.inbox().queue.done(&[id])?;
                    self.chats.report_unreadable(&chat, &kind);
                }
                Update::Ignored if album.is_some() => parts.push(update.clone()),
                Update::UnknownUser(_) | Update::Ignored => {}
            }
        }
        self.inbox().add_all(messages)?;
        for edited in edits {
            self.inbox().edit(edited)?;
        }
        for (press, shown) in presses {
            self.acknowledge(&press, &shown);
        }
        parts.drain(..parts.len().saturating_sub(MAX_ALBUMS));
        self.parts = parts;
        self.tell_of_strangers(unknown)
    }

    /// Notifies the owner of each new user who is not in `allow_from`, with buttons.
    fn tell_of_strangers(&self, mut strangers: Vec<Stranger>) -> error::Result<()> {
        let ids = strangers.iter().map(|stranger| stranger.id).collect();
        let new = self.chats.strangers.keep(ids)?;
        strangers.retain(|stranger| new.contains(&stranger.id));
        for stranger in &strangers {
            self.chats.announce(stranger);
        }
        Ok(())
    }

    /// Ends the button's progress indicator, and shows the result of the press.
    fn acknowledge(&self, press: &Press, shown: &str) {
        let params = json!({"callback_query_id": press.id, "text": shown});
        if let Err(e) = self.call("answerCallbackQuery", &params, Duration::ZERO) {
            let why = e.text();
            self.log(Level::Info, &format!("acknowledging a button: {why}"));
        }
    }

    fn id(&self, update: u64) -> String {
        format!("{CHANNEL}:{}:{update}", self.chats.bot)
    }

    /// Builds the inbox entries of a message: one, or two for a command with a question.
    fn inbound(id: String, message: IncomingMessage) -> Vec<Inbound> {
        let Ok(session) = session_name(CHANNEL, &message.chat) else {
            return Vec::new();
        };
        let origin = Origin {
            channel: CHANNEL.to_owned(),
            chat: message.chat,
        };
        let said = message.command.unwrap_or_default();
        let inbound = Inbound {
            id,
            command: command(&said),
            source: Source::Telegram(TelegramMessage {
                user: message.from,
                message: message.id,
                files: message.files,
                more_follows: message.more_follows,
            }),
            ..Inbound::message(origin, session, message.text)
        };
        let head = inbound.text.strip_suffix(&said).unwrap_or_default();
        if inbound.command.is_none() && !said.is_empty() {
            // A skill or an unknown command is known by its slash, also in a group and in a reply.
            let quoted = if head.lines().count() > 1 { head } else { "" };
            let text = format!("{said}\n\n{quoted}").trim_end().to_owned();
            return vec![Inbound { text, ..inbound }];
        }
        let rest = said.split_once(char::is_whitespace).unwrap_or_default().1;
        let is_bare = rest.trim().is_empty() && inbound.files().is_empty();
        if is_bare || inbound.command != Some(Command::New) {
            return vec![inbound];
        }
        let question = Inbound {
            id: format!("{}:question", inbound.id),
            command: None,
            text: format!("{head}{}", rest.trim()),
            ..inbound.clone()
        };
        vec![inbound, question]
    }

    /// Waits before the next try, and logs each reason once.
    fn pause(&self, failing: &mut BackOff, failure: &Failure) {
        if self.is_stopping() {
            return;
        }
        let why = failure.text();
        let time = match failure {
            Failure::TooMany(time) => Some(*time),
            Failure::Unauthorized(_) => Some(MAX_BACK_OFF),
            Failure::Refused(409, _) if failing.tries.made() >= QUICK_TRIES => {
                Some(CONFLICT_BACK_OFF)
            }
            _ => None,
        };
        if failing.reason != why {
            self.log(Level::Warn, &format!("polling: {why}"));
            failing.reason.clone_from(&why);
        }
        // A single failure is not reported as an event.
        if time.is_some() || failing.tries.made() > 0 {
            self.watch(PollEvent::Failing(&why));
        }
        let wait = failing.tries.wait(time).unwrap_or(MAX_BACK_OFF);
        let wait = wait.min(MAX_BACK_OFF);
        let _ended = self.sender().cancel.sleep(wait);
    }
}

/// Parses a command; `None` is a text for the model.
pub(super) fn command(text: &str) -> Option<Command> {
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    Some(match name.to_lowercase().as_str() {
        "/stop" => Command::Stop,
        "/new" | "/clear" | "/reset" => Command::New,
        // `/undo` takes no arguments, because it only undoes the last question.
        "/undo" if !rest.trim().is_empty() => Command::Help,
        "/undo" => Command::Undo,
        "/model" => Command::Model(rest.trim().to_owned()),
        "/status" => Command::Status,
        "/usage" => Command::Usage,
        "/start" | "/help" => Command::Help,
        _ => return None,
    })
}

/// Returns the text of `/help`.
pub(crate) fn help() -> String {
    let commands = COMMANDS.map(|(command, about)| format!("\n/{command} {about}"));
    format!("Ask me anything. Commands:{}", commands.concat())
}

/// Gives a message of a group to the supergroup that it became.
fn move_to(message: &mut Inbound, old: i64, new: i64) {
    let new = new.to_string();
    if let (true, Ok(session)) = (
        message.origin.chat == old.to_string(),
        session_name(CHANNEL, &new),
    ) {
        message.session = session;
        message.reply_to = Some(format!("{CHANNEL}:{new}"));
        message.origin.chat = new;
    }
}

fn update_id(update: &Value) -> Option<u64> {
    update["update_id"].as_u64()
}
