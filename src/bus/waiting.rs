//! The waiting messages of each conversation, and what may begin.
//!
//! A conversation has one turn or command at a time. Messages wait for more only after a sign that more will come: parts of an
//! album or of a cut text, or a forwarded message, whose comment may follow.

use std::collections::{BTreeMap, VecDeque};
use std::mem::take;
use std::time::{Duration, Instant};

use super::{Command, Inbound, Source};
use crate::cancel::Cancel;
use crate::storage::queue::{CALM, MAX_STARTS};

/// Maximum wait for the next part of a message, because Telegram sends the parts of an album one by one.
const NEXT_PART: Duration = Duration::from_secs(1);
/// Maximum number of messages per turn. After a long absence hundreds may wait, too many for one turn.
const MAX_JOINED: usize = 16;

#[derive(Default)]
pub(super) struct WaitingMessages {
    /// By the key of the conversation. A command that waits for no turn has the key of its id.
    by_key: BTreeMap<String, Conversation>,
    /// Number of tasks, turns of HTTP clients and other work without a message.
    pub others: usize,
    /// Whether no further message is accepted.
    pub is_closed: bool,
    /// Whether no turn begins any more.
    pub is_halted: bool,
    /// Number of turns that may run at the same time; 0 is like 1.
    pub most_turns: usize,
}

#[derive(Default)]
pub(super) struct Conversation {
    waiting: VecDeque<(Instant, Inbound)>,
    /// Messages of the running turn or command, without their contents; empty if there is none.
    running: Vec<Inbound>,
    /// Stops the running turn, or the next one before it starts.
    cancel: Cancel,
    /// A message that arrives stops this, if the turn has no reply yet.
    asking: Option<Cancel>,
    pub has_replied: bool,
    /// Whether the turn waits for something slow, so that other turns may run.
    pub waits: bool,
    /// What an answer of its user stops. While it waits for that, a restart interrupts nothing.
    pub asks: Option<Cancel>,
}

impl WaitingMessages {
    /// Adds a message. Returns what to stop.
    pub(super) fn push(&mut self, mut message: Inbound, mut now: Instant) -> Option<Cancel> {
        let mut stopped = None;
        if message.starts + 1 == MAX_STARTS {
            now += CALM;
        }
        let key = match message.command {
            Some(Command::Stop) => {
                stopped = self.stop(&message.session);
                message.has_stopped = stopped.is_some();
                message.id.clone()
            }
            Some(Command::Status | Command::Usage | Command::Help) => message.id.clone(),
            _ => message.session.clone(),
        };
        let conversation = self.by_key.entry(key).or_default();
        let is_new = message.command == Some(Command::New);
        if conversation.runs_turn() && is_new {
            stopped = Some(conversation.cancel.clone());
        } else if conversation.takes(&message) && !conversation.has_replied {
            stopped = conversation.asking.take();
        }
        if is_new {
            // `/new` takes effect immediately; waiting messages are answered in the new conversation.
            conversation.waiting.push_front((now, message));
        } else {
            conversation.waiting.push_back((now, message));
        }
        stopped
    }

    /// Returns the cancel of the running turn, or of the next waiting one.
    fn stop(&mut self, session: &str) -> Option<Cancel> {
        let conversation = self.by_key.get_mut(session)?;
        // The tasks of these reports are stopped, and a report must not take the stop of the next message.
        let waiting = &mut conversation.waiting;
        waiting.retain(|(_, message)| !matches!(message.source, Source::Task));
        let waits = waiting.iter().any(|(_, next)| next.command.is_none());
        let has_turn = waits || conversation.runs_turn();
        let stopped = has_turn.then(|| conversation.cancel.clone());
        self.remove_ended();
        stopped
    }

    /// Changes the text of a waiting message, and returns it. For a message of a running turn without a reply, returns `edited`
    /// as a message of its own.
    pub(super) fn edit(&mut self, mut edited: Inbound) -> Option<Inbound> {
        let number = edited.number()?;
        let conversation = self.by_key.get_mut(&edited.session)?;
        for (_, message) in &mut conversation.waiting {
            if message.number() == Some(number) && !message.has_begun {
                message.text = edited.text;
                return Some(message.clone());
            }
        }
        let mut running = conversation.running.iter();
        let has_it = running.any(|message| message.number() == Some(number));
        edited.text = format!("[I edited my message. It now reads:]\n{}", edited.text);
        (has_it && !conversation.has_replied && conversation.takes(&edited)).then_some(edited)
    }

    /// Removes the messages of the next work, and returns them with their key and the cancel of their turn. They are never
    /// empty; if there are several, all are plain messages of one chat.
    ///
    /// # Errors
    /// Returns when the next work may begin, if only time is missing.
    pub(super) fn take(
        &mut self,
        now: Instant,
    ) -> Result<(String, Vec<Inbound>, Cancel), Option<Instant>> {
        if self.is_halted {
            return Err(None);
        }
        let has_turn = self.has_turn();
        let is_suspect = |of: &Conversation| of.running[0].starts > 0 && !of.waits;
        let has_suspect = self.running().any(is_suspect);
        let idle = self.by_key.iter().filter(|(_, of)| of.running.is_empty());
        let works = idle.filter_map(|(key, of)| {
            let (count, begin) = of.next()?;
            let first = &of.waiting[0].1;
            // Unfinished turns run one at a time after a restart, so that the message that crashes the program is identified.
            let may_run = has_turn && !(has_suspect && first.starts > 0);
            (may_run || first.command.is_some()).then_some((begin, key, count))
        });
        let (begin, key, count) = works.min().ok_or(None)?;
        if begin > now {
            return Err(Some(begin));
        }
        let key = key.clone();
        let conversation = self.by_key.get_mut(&key).ok_or(None)?;
        Ok((key, conversation.run(count), conversation.cancel.clone()))
    }

    fn running(&self) -> impl Iterator<Item = &Conversation> {
        let conversations = self.by_key.values();
        conversations.filter(|conversation| !conversation.running.is_empty())
    }

    pub(super) fn get(&mut self, session: &str) -> Option<&mut Conversation> {
        self.by_key.get_mut(session)
    }

    /// Returns the number of running turns, without those that let others run.
    pub(super) fn turns(&self) -> usize {
        self.running()
            .filter(|of| of.runs_turn() && !of.waits)
            .count()
    }

    /// Whether another turn may run.
    pub(super) fn has_turn(&self) -> bool {
        self.turns() < self.most_turns.max(1)
    }

    /// Returns how many waiting messages the running turn of a conversation can receive, and until when to wait for further
    /// parts of the last one.
    pub(super) fn joining(&self, session: &str) -> (usize, Option<Instant>) {
        let Some(of) = self.by_key.get(session) else {
            return (0, None);
        };
        let most = MAX_JOINED.saturating_sub(of.running.len());
        let joining = of.waiting.iter().take(most);
        let count = joining.take_while(|(_, next)| of.takes(next)).count();
        let is_part =
            |last: &&(Instant, Inbound)| count == of.waiting.len() && last.1.more_follows();
        let part = of.waiting.back().filter(is_part);
        (count, part.map(|(arrived, _)| *arrived + NEXT_PART))
    }

    /// Removes the messages that the running turn of a conversation can receive, and lets them join it. While the program stops
    /// there are none: they remain open on disk for the next one.
    pub(super) fn take_more(&mut self, session: &str, asking: &Cancel) -> Vec<Inbound> {
        let (count, _) = self.joining(session);
        let count = if self.is_halted { 0 } else { count };
        let Some(conversation) = self.by_key.get_mut(session) else {
            return Vec::new();
        };
        conversation.asking = Some(asking.clone());
        conversation.run(count)
    }

    /// Ends the work of a conversation, and returns the ids of its messages.
    pub(super) fn leave(&mut self, key: &str) -> Vec<String> {
        let Some(conversation) = self.by_key.get_mut(key) else {
            return Vec::new();
        };
        let ended = conversation.ids();
        let cancel = if conversation.runs_turn() {
            Cancel::new(None)
        } else {
            conversation.cancel.clone()
        };
        *conversation = Conversation {
            waiting: take(&mut conversation.waiting),
            cancel,
            ..Conversation::default()
        };
        self.remove_ended();
        ended
    }

    /// Forgets waiting messages of a conversation that are answered.
    pub(super) fn forget(&mut self, session: &str, ids: &[String]) {
        if let Some(conversation) = self.by_key.get_mut(session) {
            let waiting = &mut conversation.waiting;
            waiting.retain(|(_, message)| !ids.contains(&message.id));
        }
        self.remove_ended();
    }

    fn remove_ended(&mut self) {
        let is_open = |of: &Conversation| !of.running.is_empty() || !of.waiting.is_empty();
        self.by_key.retain(|_, conversation| is_open(conversation));
    }

    /// Returns how many messages wait behind each turn that waits for its user.
    pub(super) fn behind_questions(&self) -> Vec<usize> {
        let asking = self.by_key.values().filter(|of| of.asks.is_some());
        asking.map(|of| of.waiting.len()).collect()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.others == 0 && self.behind_questions().len() == self.by_key.len()
    }

    /// Whether serving has ended: no message comes any more, and all are answered or remain for the next program.
    pub(super) fn is_over(&self) -> bool {
        let is_empty = self.by_key.is_empty() || (self.is_halted && self.running().count() == 0);
        self.is_closed && self.others == 0 && is_empty
    }
}

impl Conversation {
    /// Returns the number of the first messages that one turn answers, and when it may begin.
    fn next(&self) -> Option<(usize, Instant)> {
        let (arrived, first) = self.waiting.front()?;
        let (mut count, mut last) = (1, (arrived, first));
        for (at, next) in self.waiting.iter().skip(1) {
            // All parts of one message are answered together.
            let has_room = last.1.more_follows() || count < MAX_JOINED;
            let can_join = first.is_plain() && next.is_plain() && first.origin == next.origin;
            if !can_join || !has_room {
                break;
            }
            (count, last) = (count + 1, (at, next));
        }
        let mut begin = *arrived;
        if first.is_plain() && last.1.more_follows() && count == self.waiting.len() {
            begin = *last.0 + NEXT_PART;
        }
        Some((count, begin))
    }

    /// Lets the first waiting messages run, and returns them.
    fn run(&mut self, count: usize) -> Vec<Inbound> {
        let drained = self.waiting.drain(..count);
        let messages: Vec<Inbound> = drained.map(|(_, message)| message).collect();
        let running = messages.iter().map(|message| Inbound {
            text: String::new(),
            media: Vec::new(),
            ..message.clone()
        });
        self.running.extend(running);
        messages
    }

    pub(super) fn ids(&self) -> Vec<String> {
        let ids = self.running.iter().map(|message| message.id.clone());
        ids.collect()
    }

    /// Whether a turn is running, and not a command.
    fn runs_turn(&self) -> bool {
        let first = self.running.first();
        first.is_some_and(|first| first.command.is_none())
    }

    /// Whether the turn can receive a later message. A turn that was interrupted by a crash gets no more.
    fn takes(&self, next: &Inbound) -> bool {
        let Some(first) = self.running.first() else {
            return false;
        };
        let users = first.written().zip(next.written());
        let is_of_same_user = users.is_some_and(|(first, next)| first.user == next.user);
        next.is_plain()
            && first.starts == 0
            && first.command.is_none()
            && next.origin == first.origin
            && is_of_same_user
            && self.running.len() < MAX_JOINED
    }
}
