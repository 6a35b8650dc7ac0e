//! The long poll: fetches updates, records them, and only then confirms them with the offset of the next poll.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::api::{Api, Failure};
use super::inbox::{Inbox, OpenMessage, id};
use super::unknown_users::UnknownUsers;
use super::update::{self, IncomingMessage, KINDS, Me, Update};
use super::{CHANNEL, MAX_CRASHES, Settings, TelegramAck};
use crate::bus::{Ack, Inbound, Kind, Origin};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::log::{Level, Sink};
use crate::paths::session_name;

/// How long Telegram holds a poll open, in seconds.
const POLL_TIME: u64 = 50;
/// What a poll may take beyond that, in seconds, before the watch hears of it.
const SLACK: u64 = 25;
/// The back-off while another program polls, perhaps this bot from before a restart.
const CONFLICT_BACK_OFF: Duration = Duration::from_secs(30);
/// Conflicts that are retried soon.
const QUICK_TRIES: u32 = 3;
const MAX_BACK_OFF: Duration = Duration::from_secs(60);

const HELP: &str = "Write what you want. Commands:\n/new start a new conversation\n/stop stop the current answer\n\
                    /status show status\n/model [NAME] show or change the model\n/usage show token usage\n/help show this help";

/// The commands that Telegram suggests.
const COMMANDS: [(&str, &str); 6] = [
    ("new", "start a new conversation"),
    ("stop", "stop the current answer"),
    ("status", "show status"),
    ("model", "show or change the model"),
    ("usage", "show token usage"),
    ("help", "show help"),
];

pub(super) struct Poller {
    pub api: Arc<Api>,
    pub settings: Settings,
    pub inbox: Arc<Mutex<Inbox>>,
    pub ack: Arc<TelegramAck>,
    pub inbound: Sender<Inbound>,
    pub cancel: Cancel,
    pub log: Sink,
    pub watch: Watch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollEvent<'a> {
    /// The bot's user name is known.
    Serving(&'a str),
    /// A poll was answered.
    Polled,
    /// Polls keep failing, for this reason; they are retried.
    Failing(&'a str),
    /// The poller backs off.
    Waiting,
}

/// A watchdog for the poller.
pub(crate) struct Watch {
    pub tell: Box<dyn Fn(PollEvent) + Send>,
    /// The longest time between two events.
    pub within: Duration,
}

#[derive(Default)]
struct BackOff {
    failures: u32,
    /// The last reason, to log each once.
    reason: String,
}

impl Poller {
    /// Polls until the cancel. `reports` of background tasks are from an earlier run.
    pub(super) fn run(self, reports: Vec<Inbound>) {
        let (inbox, log) = (self.inbox.clone(), self.log.clone());
        let _hook = self.cancel.on_stop(move || {
            if let Err(e) = inbox.lock().unwrap_or_else(PoisonError::into_inner).interrupt(false) {
                log(Level::Error, &format!("recording the shutdown: {e}"));
            }
        });
        let mut back_off = BackOff::default();
        let Some(me) = self.introduce(&mut back_off) else { return };
        self.resume(reports);
        let mut unknown_users = UnknownUsers::default();
        // Confirms the updates before it. A poll that succeeds has confirmed them, so the next one needs none: Telegram may
        // restart its ids below any old offset.
        let mut offset = None;
        let poll_time = self.watch.within.as_secs().saturating_sub(SLACK).clamp(1, POLL_TIME);
        while self.cancel.why().is_none() {
            let mut params = json!({"timeout": poll_time, "allowed_updates": KINDS});
            if let Some(offset) = offset {
                params["offset"] = u64::into(offset);
            }
            match self.api.call("getUpdates", &params, Duration::from_secs(poll_time), &self.cancel) {
                Ok(updates) => {
                    let updates = updates.as_array().map(Vec::as_slice).unwrap_or_default();
                    // Updates that cannot be recorded stay with Telegram.
                    if let Err(e) = self.take(updates, &me, &mut unknown_users) {
                        self.pause(&mut back_off, &format!("cannot record messages: {e}"), None);
                        continue;
                    }
                    self.report(&mut unknown_users);
                    if !std::mem::take(&mut back_off).reason.is_empty() {
                        (self.log)(Level::Info, "polling works again");
                    }
                    offset = updates.iter().filter_map(update_id).max().map(|last| last + 1);
                    (self.watch.tell)(PollEvent::Polled);
                }
                Err(Failure::Conflict(why)) => {
                    let time = (back_off.failures >= QUICK_TRIES).then_some(CONFLICT_BACK_OFF);
                    let text = format!("another program polls with this token, or a webhook is set ({why})");
                    self.pause(&mut back_off, &text, time);
                }
                Err(Failure::TooMany(time)) => self.pause(&mut back_off, "too many requests", Some(time)),
                Err(e @ Failure::Unauthorized(_)) => self.pause(&mut back_off, &e.text(), Some(MAX_BACK_OFF)),
                Err(e) => self.pause(&mut back_off, &e.text(), None),
            }
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_error(&self, doing: &str, result: Result<()>) {
        if let Err(e) = result {
            (self.log)(Level::Error, &format!("{doing}: {e}"));
        }
    }

    /// Asks who the bot is, and tells Telegram its commands.
    fn introduce(&self, back_off: &mut BackOff) -> Option<Me> {
        let me = loop {
            match self.api.call("getMe", &json!({}), Duration::ZERO, &self.cancel) {
                Ok(me) => break me,
                Err(e) => self.pause(back_off, &e.text(), None),
            }
            if self.cancel.why().is_some() {
                return None;
            }
        };
        let commands: Vec<Value> =
            COMMANDS.iter().map(|(command, about)| json!({"command": command, "description": about})).collect();
        if let Err(e) = self.api.call("setMyCommands", &json!({"commands": commands}), Duration::ZERO, &self.cancel) {
            (self.log)(Level::Warn, &format!("setting the bot's commands: {}", e.text()));
        }
        *back_off = BackOff::default();
        let username = me["username"].as_str().unwrap_or_default().to_owned();
        (self.log)(Level::Info, &format!("serving as @{username}"));
        (self.watch.tell)(PollEvent::Serving(&username));
        Some(Me { id: me["id"].as_i64().unwrap_or_default(), username })
    }

    /// Records the updates of a poll, and passes the messages on.
    fn take(&self, updates: &[Value], me: &Me, unknown_users: &mut UnknownUsers) -> Result<()> {
        let (mut messages, mut others, mut edits, mut unknown) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for update in updates {
            let Some(update_id) = update_id(update).filter(|id| !self.inbox().has_seen(*id)) else { continue };
            match update::read(update, &self.settings, me) {
                Update::Message(edit) if edit.is_edit => edits.push((update_id, edit)),
                Update::Message(message) => messages.push((update_id, message)),
                Update::UnknownUser(user) => {
                    unknown.push(user);
                    others.push(update_id);
                }
                Update::Ignored => others.push(update_id),
            }
        }
        self.inbox().keep(&messages, &others, &edits)?;
        for (update_id, message) in messages {
            self.dispatch(&[update_id], &message);
        }
        for user in unknown {
            let is_new = self.inbox().add_unknown_user(user);
            if matches!(is_new, Ok(true)) && unknown_users.add(user) {
                let text = format!("ignored a message of user {user}, who is not in allow_from");
                (self.log)(Level::Info, &text);
            }
            self.log_error("recording an unknown user", is_new.map(drop));
        }
        Ok(())
    }

    /// Tells the owner of unknown users, when it is time.
    fn report(&self, unknown_users: &mut UnknownUsers) {
        let Some(owner) = self.settings.allow_from.first() else { return };
        if let Some(text) = unknown_users.report(Instant::now()) {
            self.ack.post(&owner.to_string(), &text, &[]);
        }
    }

    /// Takes up what an earlier run left: the turns that were interrupted first, each alone, so that a message that crashes the
    /// program is found.
    fn resume(&self, reports: Vec<Inbound>) {
        // The program ended between posting an answer and closing its messages.
        let answered = self.ack.outbox.answered().unwrap_or_default();
        let ids = self.inbox().all().into_iter().map(|open| open.update);
        self.close(&ids.filter(|update| answered.contains(&id(*update))).collect::<Vec<_>>());
        let open = {
            let mut inbox = self.inbox();
            let recorded = inbox.interrupt(true);
            self.log_error("recording a crash", recorded);
            inbox.all()
        };
        let send = |reports: Vec<Inbound>| {
            for report in reports {
                drop(self.inbound.send(Inbound { ack: Some(self.ack.clone()), ..report }));
            }
        };
        let (interrupted, others): (Vec<Inbound>, Vec<Inbound>) =
            reports.into_iter().partition(|report| report.is_alone);
        send(interrupted);
        self.resume_messages(open);
        send(others);
    }

    fn resume_messages(&self, open: Vec<OpenMessage>) {
        let is_allowed = |open: &OpenMessage| self.settings.allow_from.contains(&open.message.from);
        let (open, barred): (Vec<OpenMessage>, Vec<OpenMessage>) = open.into_iter().partition(is_allowed);
        let barred: Vec<u64> = barred.iter().map(|open| open.update).collect();
        if !barred.is_empty() {
            let text = format!("dropped {} messages of users who are no longer in allow_from", barred.len());
            (self.log)(Level::Info, &text);
            self.close(&barred);
        }
        let mut resumed: Vec<u64> = Vec::new();
        for OpenMessage { update, mut message, group, crashes, .. } in open {
            if resumed.contains(&update) {
                continue;
            }
            let was_running = !group.is_empty();
            let mut group = if was_running { group } else { vec![update] };
            group.retain(|update| !barred.contains(update));
            resumed.extend(&group);
            if crashes >= MAX_CRASHES {
                self.quarantine(&message.chat, &group);
            } else if message.command.is_none() || was_running {
                message.text = self.inbox().texts(&ids(&group));
                self.send(&group, &message, Kind::Message, was_running);
            } else if message.command.as_deref() == Some("/stop") {
                // There is nothing to stop any more.
                self.close(&group);
            } else {
                self.dispatch(&group, &message);
            }
        }
    }

    /// Closes messages that crashed the program too often, without their text: it might crash the sender as well.
    fn quarantine(&self, chat: &str, group: &[u64]) {
        let what = match group.len() {
            1 => "One message of yours was".to_owned(),
            count => format!("{count} messages of yours were"),
        };
        let text = format!("{what} set aside: this program crashed each time it tried to answer.");
        self.ack.post(chat, &text, &ids(group));
    }

    fn close(&self, updates: &[u64]) {
        let closed = self.inbox().close(&ids(updates));
        self.log_error("recording that a message was answered", closed);
    }

    fn dispatch(&self, updates: &[u64], message: &IncomingMessage) {
        let command = message.command.as_deref().unwrap_or_default();
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let kind = match name {
            "/start" | "/help" => {
                self.ack.post(&message.chat, HELP, &ids(updates));
                return;
            }
            "/stop" => Kind::Stop,
            "/new" | "/clear" | "/reset" => Kind::New,
            "/model" => Kind::Model(rest.trim().to_owned()),
            "/status" => Kind::Status,
            "/usage" => Kind::Usage,
            _ => Kind::Message,
        };
        self.send(updates, message, kind, false);
    }

    fn send(&self, updates: &[u64], message: &IncomingMessage, kind: Kind, is_alone: bool) {
        let Ok(session) = session_name(CHANNEL, &message.chat) else { return };
        let inbound = Inbound {
            origin: Origin { channel: CHANNEL.to_owned(), chat: message.chat.clone() },
            session,
            text: message.text.clone(),
            attachments: Vec::new(),
            kind,
            ids: ids(updates),
            ack: Some(self.ack.clone() as Arc<dyn Ack>),
            is_part: message.is_part,
            is_alone,
        };
        // Nobody receives it when the program ends; the inbox keeps it.
        drop(self.inbound.send(inbound));
    }

    /// Backs off before the next try, and logs why, once.
    fn pause(&self, back_off: &mut BackOff, why: &str, time: Option<Duration>) {
        if self.cancel.why().is_some() {
            return;
        }
        if back_off.reason != why {
            (self.log)(Level::Warn, &format!("polling: {why}"));
            why.clone_into(&mut back_off.reason);
        }
        // A single failure is not worth an event.
        if time.is_some() || back_off.failures > 0 {
            (self.watch.tell)(PollEvent::Failing(why));
        }
        let grown = Duration::from_secs(1 << back_off.failures.min(6));
        back_off.failures += 1;
        let until = Instant::now() + time.unwrap_or(grown).min(MAX_BACK_OFF);
        loop {
            (self.watch.tell)(PollEvent::Waiting);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.cancel.sleep(left.min(self.watch.within)).is_err() {
                return;
            }
        }
    }
}

fn ids(updates: &[u64]) -> Vec<String> {
    updates.iter().copied().map(id).collect()
}

fn update_id(update: &Value) -> Option<u64> {
    update["update_id"].as_u64()
}
