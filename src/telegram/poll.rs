//! The poll: updates are fetched, kept, and only then confirmed, by asking for those behind them.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::api::{Api, Failure};
use super::inbox::{Inbox, Open, id};
use super::update::{ALLOWED, Me, Meaning, Said, meaning};
use super::{CHANNEL, MOST_DEATHS, Settings, TelegramAck};
use crate::bus::{Ack, Inbound, Kind, Origin};
use crate::cancel::Cancel;
use crate::log::{Level, Sink};
use crate::paths::session_name;

/// How long Telegram holds a poll open when there is nothing new, in seconds.
const HELD: u64 = 50;
/// The most updates that a poll asks for, which is the most that there are (Bot API, `getUpdates`).
const MOST_UPDATES: u64 = 100;
/// What a poll may take beyond that, in seconds: a call waits so long for an answer that does not come, and a bit more.
const SLACK: u64 = 25;
/// Between polls while somebody else polls too: his, perhaps this bot's own from before a restart, ends by itself.
const CONFLICT: Duration = Duration::from_secs(30);
/// Polls that are refused this often at first are tried again soon.
const QUICK_TRIES: u32 = 3;
/// The most between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Once a week has passed without an update, their numbers begin anew anywhere, perhaps below what was confirmed last. So an
/// offset is good for this long; without one, Telegram gives what is not confirmed.
const OFFSET_LASTS: Duration = Duration::from_secs(24 * 3600);

/// The owner is told of strangers at most this often.
const BETWEEN_WORDS: Duration = Duration::from_secs(3600);
/// Strangers that are told by their ids at a time.
const MOST_NAMED: usize = 10;

const HELP: &str = "Write what you want. Commands:\n/new begin a new conversation\n/stop end the answer under way\n\
                    /status how it is\n/model [NAME] which model answers\n/usage what was used\n/help this";

/// The commands that Telegram offers people.
const COMMANDS: [(&str, &str); 6] = [
    ("new", "begin a new conversation"),
    ("stop", "end the answer under way"),
    ("status", "how it is"),
    ("model", "which model answers, or another one"),
    ("usage", "what was used"),
    ("help", "what there is"),
];

pub struct Poller {
    pub api: Arc<Api>,
    pub settings: Settings,
    pub inbox: Arc<Mutex<Inbox>>,
    pub desk: Arc<TelegramAck>,
    pub inbound: Sender<Inbound>,
    pub cancel: Cancel,
    pub log: Sink,
    pub watch: Watch,
}

/// How the polling goes, for whoever watches over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollEvent<'a> {
    /// Telegram has said how the bot is called.
    Serving(&'a str),
    /// A poll was answered.
    Polled,
    /// Polls fail, and not just once, for this reason. It goes on trying.
    Failing(&'a str),
    /// It waits before the next try.
    Waiting,
}

/// Whoever watches over the polling.
pub struct Watch {
    pub tell: Box<dyn Fn(PollEvent) + Send>,
    /// He wants a sign at least this often.
    pub within: Duration,
}

/// A way of waiting that grows with each failure in a row.
#[derive(Default)]
struct Pauses {
    failures: u32,
    /// What was said last, so that it is not said again and again.
    said: String,
}

impl Poller {
    /// Polls until it is stopped. Nothing but a stop ends it. `reports` are what an earlier run left of background tasks.
    pub fn run(self, reports: Vec<Inbound>) {
        // From here on no turn begins that would have to be taken up.
        let (inbox, log) = (self.inbox.clone(), self.log.clone());
        let _left = self.cancel.on_stop(move || {
            if let Err(e) = inbox.lock().unwrap_or_else(PoisonError::into_inner).end(false) {
                log(Level::Error, &format!("noting that the program ends: {e}"));
            }
        });
        let mut pauses = Pauses::default();
        let Some(me) = self.introduce(&mut pauses) else { return };
        // Answered, and the program ended before it said so.
        let answered = self.desk.outbox.answered().unwrap_or_default();
        let mut done: Vec<u64> = self.inbox().all().iter().map(|open| open.update).collect();
        done.retain(|update| answered.contains(&id(*update)));
        self.close(&done);
        let open = {
            let mut inbox = self.inbox();
            self.noted(inbox.end(true));
            inbox.all()
        };
        // What was being answered when it ended is the last of its conversation, and is taken up before anything else.
        let (begun, others): (Vec<Inbound>, Vec<Inbound>) = reports.into_iter().partition(|report| report.is_alone);
        self.bring(begun);
        self.take_up(open);
        self.bring(others);
        let (mut offset, mut strangers) = (Offset::default(), Strangers::default());
        let mut limit = MOST_UPDATES;
        let held = self.watch.within.as_secs().saturating_sub(SLACK).clamp(1, HELD);
        while self.cancel.why().is_none() {
            let mut params = json!({"timeout": held, "limit": limit, "allowed_updates": ALLOWED});
            if let Some(offset) = offset.at(Instant::now()) {
                params["offset"] = offset.into();
            }
            match self.api.call("getUpdates", &params, Duration::from_secs(held), &self.cancel) {
                Ok(Value::Array(updates)) => {
                    match self.take(&updates, &me, &mut strangers) {
                        Ok(()) => {
                            self.tell_of(&mut strangers);
                            if !std::mem::take(&mut pauses).said.is_empty() {
                                (self.log)(Level::Info, "polling works again");
                            }
                            limit = MOST_UPDATES;
                            offset.confirm(&updates, Instant::now());
                            (self.watch.tell)(PollEvent::Polled);
                        }
                        // They stay with Telegram until they can be kept.
                        Err(e) => self.pause(&mut pauses, &format!("messages cannot be kept: {e}"), None),
                    }
                }
                Ok(_) => self.pause(&mut pauses, "the Bot API answers something else", None),
                // All of them at once: then one at a time, until one has been taken.
                Err(Failure::TooLarge) if limit > 1 => limit = 1,
                Err(Failure::Conflict(why)) => {
                    let quick = pauses.failures < QUICK_TRIES;
                    let text = format!("another program polls with this token, or a webhook is set ({why})");
                    self.pause(&mut pauses, &text, (!quick).then_some(CONFLICT));
                }
                Err(Failure::TooMany(time)) => self.pause(&mut pauses, "too many requests", Some(time)),
                Err(Failure::Unauthorized(why)) => {
                    self.pause(&mut pauses, &format!("the token is refused ({why})"), Some(LONGEST_PAUSE));
                }
                Err(e) => self.pause(&mut pauses, &e.text(), None),
            }
        }
    }

    fn noted(&self, result: crate::error::Result<()>) {
        if let Err(e) = result {
            (self.log)(Level::Error, &format!("noting what became of a message: {e}"));
        }
    }

    fn inbox(&self) -> std::sync::MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns who the bot is, and tells Telegram its commands.
    fn introduce(&self, pauses: &mut Pauses) -> Option<Me> {
        let me = loop {
            match self.api.call("getMe", &json!({}), Duration::ZERO, &self.cancel) {
                Ok(me) => break me,
                Err(Failure::Stopped) => return None,
                Err(e) => self.pause(pauses, &e.text(), None),
            }
            if self.cancel.why().is_some() {
                return None;
            }
        };
        let commands: Vec<Value> =
            COMMANDS.iter().map(|(command, about)| json!({"command": command, "description": about})).collect();
        if let Err(e) = self.api.call("setMyCommands", &json!({"commands": commands}), Duration::ZERO, &self.cancel) {
            (self.log)(Level::Warn, &format!("telling Telegram the commands: {}", e.text()));
        }
        *pauses = Pauses::default();
        let username = me["username"].as_str().unwrap_or_default().to_owned();
        (self.log)(Level::Info, &format!("serving as @{username}"));
        (self.watch.tell)(PollEvent::Serving(&username));
        Some(Me { id: me["id"].as_i64().unwrap_or_default(), username })
    }

    /// Keeps what a poll brought, and passes it on.
    fn take(&self, updates: &[Value], me: &Me, strangers: &mut Strangers) -> crate::error::Result<()> {
        let (mut said, mut others, mut edits) = (Vec::new(), Vec::new(), Vec::new());
        let mut unknown = Vec::new();
        {
            let inbox = self.inbox();
            for update in updates {
                let Some(number) = number(update).filter(|number| !inbox.has_seen(*number)) else { continue };
                match meaning(update, &self.settings, me) {
                    Meaning::Said(edit) if edit.is_edit => edits.push((number, edit)),
                    Meaning::Said(message) => said.push((number, message)),
                    Meaning::Stranger(user) => {
                        unknown.push(user);
                        others.push(number);
                    }
                    Meaning::Nothing => others.push(number),
                }
            }
        }
        self.inbox().keep(&said, &others, &edits)?;
        // Kept is kept: from here on nothing stands in the way of passing it on.
        for (number, message) in said {
            self.pass_on(&[number], &message);
        }
        for user in unknown {
            match self.inbox().is_new_stranger(user) {
                Ok(true) => {
                    if strangers.add(user) {
                        let text = format!("a message of user {user}, who is not in allow_from, was left unread");
                        (self.log)(Level::Info, &text);
                    }
                }
                Ok(false) => {}
                Err(e) => (self.log)(Level::Error, &format!("noting that a stranger wrote: {e}")),
            }
        }
        Ok(())
    }

    /// A stranger gets no answer. The owner is told of new ones, at most once in a while.
    fn tell_of(&self, strangers: &mut Strangers) {
        let Some(text) = strangers.take(Instant::now()) else { return };
        if let Some(owner) = self.settings.allow_from.first() {
            self.desk.say(&owner.to_string(), &text, &[]);
        }
    }

    fn bring(&self, reports: Vec<Inbound>) {
        for report in reports {
            let ack = Some(self.desk.clone() as Arc<dyn Ack>);
            drop(self.inbound.send(Inbound { ack, ..report }));
        }
    }

    /// Takes up what an earlier run left open. What was being answered when it ended runs by itself, so that a message
    /// that brings the program down is found.
    fn take_up(&self, open: Vec<Open>) {
        let may = |open: &Open| self.settings.allow_from.contains(&open.said.from);
        let (open, barred): (Vec<Open>, Vec<Open>) = open.into_iter().partition(may);
        let barred: Vec<u64> = barred.iter().map(|open| open.update).collect();
        if !barred.is_empty() {
            (self.log)(
                Level::Info,
                &format!("{} messages of users who are not in allow_from any more are left", barred.len()),
            );
            self.close(&barred);
        }
        let mut done: Vec<u64> = Vec::new();
        for message in open {
            if done.contains(&message.update) {
                continue;
            }
            let has_begun = !message.group.is_empty();
            let mut group = if has_begun { message.group.clone() } else { vec![message.update] };
            group.retain(|update| !barred.contains(update));
            done.extend(&group);
            if message.deaths >= MOST_DEATHS {
                let ids: Vec<String> = group.iter().map(|update| id(*update)).collect();
                // What it says is not repeated: it may be what brings the sender down, too.
                let what = match group.len() {
                    1 => "A message of yours was".to_owned(),
                    count => format!("{count} messages of yours were"),
                };
                let text = format!("{what} set aside: this program ended each time it tried to answer.");
                self.desk.say(&message.said.chat, &text, &ids);
                continue;
            }
            let mut said = message.said;
            if said.command.is_some() && !has_begun {
                // One of those that end something has nothing to end any more.
                let is_stop = said.command.as_deref() == Some("/stop");
                if is_stop {
                    self.close(&group);
                } else {
                    self.pass_on(&group, &said);
                }
                continue;
            }
            let ids: Vec<String> = group.iter().map(|update| id(*update)).collect();
            said.text = self.inbox().texts(&ids);
            self.send(&group, &said, Kind::Message, has_begun);
        }
    }

    fn close(&self, updates: &[u64]) {
        let ids: Vec<String> = updates.iter().map(|update| id(*update)).collect();
        self.noted(self.inbox().close(&ids));
    }

    fn pass_on(&self, updates: &[u64], said: &Said) {
        let ids: Vec<String> = updates.iter().map(|update| id(*update)).collect();
        let command = said.command.clone().unwrap_or_default();
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((&command, ""));
        let kind = match name {
            "/start" | "/help" => {
                self.desk.say(&said.chat, HELP, &ids);
                return;
            }
            "/stop" => Kind::Stop,
            "/new" | "/clear" | "/reset" => Kind::New,
            "/model" => Kind::Model(rest.trim().to_owned()),
            "/status" => Kind::Status,
            "/usage" => Kind::Usage,
            _ => Kind::Message,
        };
        self.send(updates, said, kind, false);
    }

    fn send(&self, updates: &[u64], said: &Said, kind: Kind, alone: bool) {
        let Ok(session) = session_name(CHANNEL, &said.chat) else { return };
        let inbound = Inbound {
            origin: Origin { channel: CHANNEL.to_owned(), chat: said.chat.clone() },
            session,
            text: said.text.clone(),
            attachments: Vec::new(),
            kind,
            ids: updates.iter().map(|update| id(*update)).collect(),
            ack: Some(self.desk.clone() as Arc<dyn Ack>),
            is_part: said.is_part,
            is_alone: alone,
        };
        // Nobody is there to take it when the program ends; it is kept.
        drop(self.inbound.send(inbound));
    }

    /// Waits before the next try, and says why, once.
    fn pause(&self, pauses: &mut Pauses, why: &str, time: Option<Duration>) {
        if self.cancel.why().is_some() {
            return;
        }
        if pauses.said != why {
            (self.log)(Level::Warn, &format!("polling: {why}"));
            pauses.said = why.to_owned();
        }
        // What is over after one more try is not worth a word.
        if time.is_some() || pauses.failures > 0 {
            (self.watch.tell)(PollEvent::Failing(why));
        }
        let grown = Duration::from_secs(1 << pauses.failures.min(6));
        pauses.failures += 1;
        let until = Instant::now() + time.unwrap_or(grown).min(LONGEST_PAUSE);
        loop {
            (self.watch.tell)(PollEvent::Waiting);
            let left = until.saturating_duration_since(Instant::now());
            // Whether it slept or was stopped, the caller looks.
            if left.is_zero() || self.cancel.sleep(left.min(self.watch.within)).is_err() {
                return;
            }
        }
    }
}

/// New strangers of whom the owner has not been told.
#[derive(Default)]
struct Strangers {
    ids: Vec<i64>,
    /// How many there are beside these.
    more: usize,
    /// When he was told last.
    told: Option<Instant>,
}

impl Strangers {
    /// Adds one. `false`: there are so many that he is only counted.
    fn add(&mut self, user: i64) -> bool {
        let is_named = self.ids.len() < MOST_NAMED;
        if is_named {
            self.ids.push(user);
        } else {
            self.more += 1;
        }
        is_named
    }

    /// What there is to tell of them now.
    fn take(&mut self, now: Instant) -> Option<String> {
        let is_early = self.told.is_some_and(|told| now.saturating_duration_since(told) < BETWEEN_WORDS);
        if self.ids.is_empty() || is_early {
            return None;
        }
        let (ids, more) = (std::mem::take(&mut self.ids), std::mem::take(&mut self.more));
        self.told = Some(now);
        let add = "add the id to `channels.telegram.allow_from`";
        if let [user] = ids[..] {
            let who = format!("Somebody with the id {user} wrote to this bot and was not answered.");
            return Some(format!("{who} To let them in, {add}."));
        }
        let count = ids.len() + more;
        let named: Vec<String> = ids.iter().map(i64::to_string).collect();
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        let who =
            format!("{count} people wrote to this bot and were not answered. Their ids: {}{more}.", named.join(", "));
        Some(format!("{who} To let one of them in, {add}."))
    }
}

/// What confirms the updates before it.
#[derive(Default)]
struct Offset(Option<(u64, Instant)>);

impl Offset {
    /// Confirms these, by the next poll. Their numbers may be lower than those before.
    fn confirm(&mut self, updates: &[Value], now: Instant) {
        if let Some(last) = updates.iter().filter_map(number).max() {
            self.0 = Some((last.saturating_add(1), now));
        }
    }

    fn at(&self, now: Instant) -> Option<u64> {
        self.0.filter(|(_, since)| now.saturating_duration_since(*since) < OFFSET_LASTS).map(|(offset, _)| offset)
    }
}

fn number(update: &Value) -> Option<u64> {
    update["update_id"].as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_told_of_strangers_at_most_once_an_hour() {
        let begun = Instant::now();
        let (mut strangers, later) = (Strangers::default(), |seconds: u64| begun + Duration::from_secs(seconds));
        assert_eq!(strangers.take(begun), None);
        assert!(strangers.add(666));
        assert!(strangers.take(begun).unwrap().starts_with("Somebody with the id 666 wrote"));
        assert_eq!((1..=100).filter(|user| strangers.add(*user)).count(), 10);
        assert_eq!(strangers.take(later(3599)), None);
        let told = strangers.take(later(3600)).unwrap();
        assert!(told.starts_with("100 people wrote") && told.contains(": 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, and 90 more."));
        assert_eq!(strangers.take(later(7200)), None);
    }

    #[test]
    fn an_offset_follows_the_numbers_down_and_is_forgotten_in_a_day_without_any() {
        let begun = Instant::now();
        let (mut offset, later) = (Offset::default(), |hours: u64| begun + Duration::from_secs(hours * 3600));
        assert_eq!(offset.at(begun), None);
        offset.confirm(&[json!({"update_id": 7001}), json!({"update_id": 7000})], begun);
        offset.confirm(&[], later(23));
        assert_eq!((offset.at(later(23)), offset.at(later(24))), (Some(7002), None));
        offset.confirm(&[json!({"update_id": 9})], later(200));
        assert_eq!(offset.at(later(201)), Some(10));
    }
}
