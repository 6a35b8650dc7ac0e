//! The waiting messages of each conversation, and what may begin.
//!
//! A conversation has one turn or command at a time. Messages wait for more only after a sign that more will come: parts of an
//! album or of a cut text, or a forwarded message, whose comment may follow.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::{Command, Inbound, Source};
use crate::cancel::Cancel;
use crate::storage::queue::{CALM, MAX_STARTS};

/// Maximum wait for the next part of a message, because Telegram sends the parts of an album one by one.
const NEXT_PART: Duration = Duration::from_secs(1);
/// Maximum number of messages per turn. After a long absence hundreds may wait, too many for one turn.
const MAX_JOINED: usize = 16;

pub(super) struct WaitingMessages {
    by_session: BTreeMap<String, Conversation>,
    /// Commands that wait for no turn, and whether each has stopped one.
    pub apart: VecDeque<(Inbound, bool)>,
    /// Number of tasks, turns of HTTP clients, commands and other work without a conversation.
    pub others: usize,
    /// Whether no further message is accepted.
    pub is_closed: bool,
    /// Whether no turn begins any more.
    pub is_halted: bool,
    pub most_turns: usize,
    /// Counts changes of questions.
    pub answers: u64,
    created: Instant,
}

struct Conversation {
    waiting: VecDeque<(Instant, Inbound)>,
    running: Option<Running>,
    /// Stops the running turn, or the next one before it starts.
    cancel: Cancel,
}

#[derive(Default)]
pub(super) struct Running {
    pub ids: Vec<String>,
    /// Ids whose start is counted on disk.
    pub counted: Vec<String>,
    first: Inbound,
    /// Numbers of the messages in their Telegram chat.
    numbers: Vec<i64>,
    /// A message that arrives stops this, if the turn has no reply yet.
    pub asking: Option<Cancel>,
    pub has_replied: bool,
    /// Whether it waits for something slow, so that other turns may run.
    pub waits: bool,
    /// Whether it waits for an answer of its user, so that a restart interrupts nothing.
    pub asks: bool,
}

impl Running {
    fn new(messages: &[Inbound]) -> Self {
        let mut running = Self::default();
        if let Some(first) = messages.first() {
            running.first = Inbound {
                text: String::new(),
                media: Vec::new(),
                ..first.clone()
            };
        }
        running.join(messages);
        running
    }

    pub(super) fn join(&mut self, messages: &[Inbound]) {
        let ids = messages.iter().map(|message| message.id.clone());
        self.ids.extend(ids);
        self.numbers.extend(
            messages
                .iter()
                .filter_map(|message| Some(message.written()?.message)),
        );
    }

    /// Whether it counts against the number of turns.
    fn is_turn(&self) -> bool {
        !self.waits && self.first.command.is_none()
    }

    /// Whether the turn can receive a later message. A turn that was interrupted by a crash gets no more.
    fn takes(&self, next: &Inbound) -> bool {
        let first = &self.first;
        let users = first.written().zip(next.written());
        let is_of_same_user = users.is_some_and(|(first, next)| first.user == next.user);
        next.is_plain()
            && first.starts == 0
            && first.command.is_none()
            && next.origin == first.origin
            && is_of_same_user
            && self.ids.len() < MAX_JOINED
    }
}

impl Conversation {
    fn has_ended(&self) -> bool {
        self.waiting.is_empty() && self.running.is_none()
    }

    /// Returns the number of the first messages that one turn answers, and when it may begin.
    fn next(&self, created: Instant) -> Option<(usize, Instant)> {
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
        if first.starts + 1 == MAX_STARTS {
            begin = begin.max(created + CALM);
        }
        Some((count, begin))
    }
}

impl WaitingMessages {
    pub(super) fn new(created: Instant) -> Self {
        Self {
            by_session: BTreeMap::new(),
            apart: VecDeque::new(),
            others: 0,
            is_closed: false,
            is_halted: false,
            most_turns: 1,
            answers: 0,
            created,
        }
    }

    /// Adds a message. Returns what to stop.
    pub(super) fn push(&mut self, message: Inbound, now: Instant) -> Option<Cancel> {
        match message.command {
            Some(Command::Stop) => {
                let stopped = self.stop(&message.session);
                self.apart.push_back((message, stopped.is_some()));
                return stopped;
            }
            Some(Command::Status | Command::Usage | Command::Help) => {
                self.apart.push_back((message, false));
                return None;
            }
            _ => {}
        }
        let session = message.session.clone();
        let conversation = self
            .by_session
            .entry(session)
            .or_insert_with(|| Conversation {
                waiting: VecDeque::new(),
                running: None,
                cancel: Cancel::new(None),
            });
        let running = conversation.running.as_mut();
        let is_new = message.command == Some(Command::New);
        let mut stopped = None;
        if let Some(running) = running {
            if running.first.command.is_none() && is_new {
                stopped = Some(conversation.cancel.clone());
            } else if running.takes(&message) && !running.has_replied {
                stopped = running.asking.take();
            }
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
        let conversation = self.by_session.get_mut(session)?;
        // The tasks of these reports are stopped, and a report must not take the stop of the next message.
        let waiting = &mut conversation.waiting;
        waiting.retain(|(_, message)| !matches!(message.source, Source::Task));
        let running = conversation.running.as_ref().map(|running| &running.first);
        let waiting = conversation.waiting.iter().map(|(_, message)| message);
        let has_turn = running
            .into_iter()
            .chain(waiting)
            .any(|message| message.command.is_none());
        let stopped = has_turn.then(|| conversation.cancel.clone());
        self.by_session.retain(|_, of| !of.has_ended());
        stopped
    }

    /// Changes the text of a waiting message, and returns it. For a message of a running turn without a reply, returns `edited`
    /// as a message of its own.
    pub(super) fn edit(&mut self, mut edited: Inbound) -> Option<Inbound> {
        let number = edited.written()?.message;
        let conversation = self.by_session.get_mut(&edited.session)?;
        for (_, message) in &mut conversation.waiting {
            let is_it = message.written().is_some_and(|own| own.message == number);
            if is_it && !message.has_begun {
                message.text = edited.text;
                return Some(message.clone());
            }
        }
        let running = conversation.running.as_ref()?;
        let counts = running.numbers.contains(&number) && !running.has_replied;
        edited.text = format!("[I edited my message. It now reads:]\n{}", edited.text);
        (counts && running.takes(&edited)).then_some(edited)
    }

    /// Removes the messages of the next work, and returns them with the cancel of their turn. They are never empty; if there are
    /// several, all are plain messages of one chat.
    ///
    /// # Errors
    /// Returns when the next work may begin, if only time is missing.
    pub(super) fn next(&mut self, now: Instant) -> Result<(Vec<Inbound>, Cancel), Option<Instant>> {
        if self.is_halted {
            return Err(None);
        }
        let mut first: Option<(Instant, String, usize)> = None;
        let has_turn = self.turns() < self.most_turns;
        let has_suspect = self
            .running()
            .any(|running| running.first.starts > 0 && !running.waits);
        for (session, conversation) in &self.by_session {
            let Some((count, begin)) = conversation.next(self.created) else {
                continue;
            };
            let message = &conversation.waiting[0].1;
            // Unfinished turns run one at a time after a restart, so that the message that crashes the program is identified.
            let may_run =
                message.command.is_some() || (has_turn && !(has_suspect && message.starts > 0));
            let is_earlier = first.as_ref().is_none_or(|(at, ..)| begin < *at);
            if conversation.running.is_none() && may_run && is_earlier {
                first = Some((begin, session.clone(), count));
            }
        }
        let (begin, session, count) = first.ok_or(None)?;
        if begin > now {
            return Err(Some(begin));
        }
        let conversation = self.by_session.get_mut(&session).ok_or(None)?;
        let taken = conversation.waiting.drain(..count);
        let messages: Vec<Inbound> = taken.map(|(_, message)| message).collect();
        conversation.running = Some(Running::new(&messages));
        Ok((messages, conversation.cancel.clone()))
    }

    fn running(&self) -> impl Iterator<Item = &Running> {
        let conversations = self.by_session.values();
        conversations.filter_map(|conversation| conversation.running.as_ref())
    }

    pub(super) fn running_in(&mut self, session: &str) -> Option<&mut Running> {
        self.by_session.get_mut(session)?.running.as_mut()
    }

    pub(super) fn turns(&self) -> usize {
        self.running().filter(|running| running.is_turn()).count()
    }

    /// Returns the messages of a conversation's work whose start is not counted yet, unless the program is stopping.
    pub(super) fn begin_start(&mut self, session: &str) -> Option<Vec<String>> {
        if self.is_halted {
            return None;
        }
        let running = self.running_in(session)?;
        let mut new = running.ids.clone();
        new.retain(|id| !running.counted.contains(id));
        Some(new)
    }

    /// Returns how many waiting messages the running turn of a conversation can receive, and until when to wait for further
    /// parts of the last one.
    pub(super) fn joining(&self, session: &str) -> (usize, Option<Instant>) {
        let conversation = self.by_session.get(session);
        let Some((running, waiting)) =
            conversation.and_then(|of| Some((of.running.as_ref()?, &of.waiting)))
        else {
            return (0, None);
        };
        let most = MAX_JOINED.saturating_sub(running.ids.len());
        let joining = waiting.iter().take(most);
        let count = joining.take_while(|(_, next)| running.takes(next)).count();
        let until = match waiting.back() {
            Some((arrived, last)) if count == waiting.len() && last.more_follows() => {
                Some(*arrived + NEXT_PART)
            }
            _ => None,
        };
        (count, until)
    }

    /// Removes the messages that the running turn of a conversation can receive. While the program stops there are none: they
    /// remain open on disk for the next one.
    pub(super) fn take_more(&mut self, session: &str) -> Vec<Inbound> {
        let (count, _) = self.joining(session);
        match self.by_session.get_mut(session) {
            Some(conversation) if !self.is_halted => {
                let taken = conversation.waiting.drain(..count);
                taken.map(|(_, message)| message).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Ends the work of a conversation. Returns the messages whose start is still counted.
    pub(super) fn leave(&mut self, session: &str) -> Vec<String> {
        let Some(conversation) = self.by_session.get_mut(session) else {
            return Vec::new();
        };
        let ended = conversation.running.take().unwrap_or_default();
        if ended.first.command.is_none() {
            conversation.cancel = Cancel::new(None);
        }
        if conversation.has_ended() {
            self.by_session.remove(session);
        }
        ended.counted
    }

    /// Forgets ended messages, and counts no start of them any more.
    pub(super) fn forget(&mut self, ids: &[String]) {
        for conversation in self.by_session.values_mut() {
            let waiting = &mut conversation.waiting;
            waiting.retain(|(_, message)| !ids.contains(&message.id));
            if let Some(running) = &mut conversation.running {
                running.counted.retain(|id| !ids.contains(id));
            }
        }
        self.by_session.retain(|_, of| !of.has_ended());
    }

    /// Returns the messages whose start is counted, and counts them no more.
    pub(super) fn halt(&mut self) -> Vec<String> {
        let conversations = self.by_session.values_mut();
        let running = conversations.filter_map(|conversation| conversation.running.as_mut());
        running
            .flat_map(|running| std::mem::take(&mut running.counted))
            .collect()
    }

    pub(super) fn is_idle(&self) -> bool {
        let mut conversations = self.by_session.values();
        let asks = |running: &Running| running.asks;
        self.others == 0
            && self.apart.is_empty()
            && conversations.all(|conversation| conversation.running.as_ref().is_some_and(asks))
    }

    /// Whether serving has ended: no message comes any more, and all are answered or remain for the next program.
    pub(super) fn is_over(&self) -> bool {
        let mut conversations = self.by_session.values();
        self.is_closed
            && self.others == 0
            && conversations.all(|conversation| conversation.running.is_none() && self.is_halted)
    }
}
