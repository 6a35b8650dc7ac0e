//! Unanswered messages of a home, and the work of answering them.
//!
//! A message is an item of the home's [`Queue`], keyed by the channel and its message id. It is on disk before it is
//! acknowledged, and remains there until its answer ends it, in this process or a later one. Its id is remembered for a while
//! after that. In memory, the messages of each conversation wait in order, and [`Inbox::take`] returns what may begin.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use super::waiting::{Conversation, WaitingMessages};
use super::{Inbound, Question, Source};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind, Result};
use crate::paths::{Home, fresh_key};
use crate::storage::{Durability, Entry, Queue};
use crate::sync;

/// Kind of the queue items that are unanswered messages.
const KIND: &str = "message";

/// Receives the messages of channels. Clones share it.
#[derive(Clone)]
pub struct Inbox {
    /// Ends messages, and knows their ids.
    pub(crate) queue: Arc<Queue>,
    /// Messages in memory, and a signal for every change.
    state: Arc<(Mutex<WaitingMessages>, Condvar)>,
    /// Locked while a question changes on disk.
    questions: Arc<Mutex<()>>,
}

impl Inbox {
    /// Creates the inbox of a home, for one turn at a time.
    pub(crate) fn new(home: &Home) -> Self {
        Self {
            queue: Arc::new(Queue::of_home(home)),
            state: Arc::default(),
            questions: Arc::default(),
        }
    }

    /// Sets the number of turns that may run at the same time, in different conversations.
    pub(crate) fn allow_turns(&self, most: usize) {
        self.change(|waiting| waiting.most_turns = most);
    }

    fn lock(&self) -> MutexGuard<'_, WaitingMessages> {
        sync::lock(&self.state.0)
    }

    /// Changes the waiting messages, and wakes all threads that wait for a change.
    fn change<T>(&self, change: impl FnOnce(&mut WaitingMessages) -> T) -> T {
        let changed = change(&mut self.lock());
        self.state.1.notify_all();
        changed
    }

    /// Adds a message to be answered, after a crash by the next program. It is on disk when this returns. Returns false if a
    /// message with this id was added before; the new one is then dropped.
    ///
    /// # Errors
    /// Returns an error of the kind [`crate::error::Kind::Interrupted`] if serving has been stopped, or another if the disk or
    /// the queue is full. The message is then not added.
    pub fn add(&self, mut message: Inbound) -> Result<bool> {
        if message.id.is_empty() {
            message.id = fresh_key(SystemTime::now());
        }
        message.id = format!("{}:{}", message.origin.channel, message.id);
        let is_new = !self.queue.is_known(&message.id)?;
        if is_new {
            if let Source::Channel = message.source {
                message.reply_to = Some(message.origin.address());
            }
            self.add_all(vec![message])?;
        }
        Ok(is_new)
    }

    /// Adds new messages, whose ids begin with their channel, in one write. What arrives together can share a turn.
    pub(crate) fn add_all(&self, messages: Vec<Inbound>) -> Result<()> {
        // The end of serving waits for this write, so that a message added before it is answered.
        self.while_serving(|| {
            if self.lock().is_closed {
                return Err(Error::new(Kind::Interrupted, "serving has been stopped"));
            }
            self.keep(&messages)?;
            self.push(messages);
            Ok(())
        })
    }

    /// Lets messages wait that are on disk already.
    pub(crate) fn push(&self, messages: Vec<Inbound>) {
        let now = Instant::now();
        let push = |waiting: &mut WaitingMessages| -> Vec<Cancel> {
            let pushed = messages
                .into_iter()
                .map(|message| waiting.push(message, now));
            pushed.flatten().collect()
        };
        // Hooks of a stop may take their time, so nothing is locked.
        self.change(push).iter().for_each(Cancel::stop);
    }

    /// Handles the new text of a message. A waiting message gets it; a turn that has no reply yet gets it as another message.
    /// Later, an edit changes nothing. On disk when this returns.
    pub(crate) fn edit(&self, edited: Inbound) -> Result<()> {
        let id = edited.id.clone();
        match self.change(|waiting| waiting.edit(edited)) {
            Some(message) if message.id == id => self.add_all(vec![message]),
            Some(message) => self.keep(&[message]),
            None => Ok(()),
        }
    }

    /// Waits for the next work. Returns `None` after the end of serving.
    pub(crate) fn take(&self) -> Option<Work> {
        let mut waiting = self.lock();
        loop {
            let now = Instant::now();
            let until = match waiting.take(now) {
                Ok((key, messages, cancel)) => {
                    return Some(Work {
                        inbox: self.clone(),
                        key,
                        messages,
                        cancel,
                    });
                }
                Err(until) => until,
            };
            if waiting.is_over() {
                return None;
            }
            let most = until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
            waiting = sync::wait(&self.state.1, waiting, most);
        }
    }

    /// Changes the running work of a conversation.
    fn change_running<T: Default>(
        &self,
        session: &str,
        change: impl FnOnce(&mut Conversation) -> T,
    ) -> T {
        let changed = self.change(|waiting| waiting.get(session).map(change));
        changed.unwrap_or_default()
    }

    /// Counts the start of the running messages of a conversation on disk. Returns false if the program is stopping; they then
    /// remain open.
    ///
    /// # Errors
    /// Returns an error if the start is not counted, which does not prevent the answer.
    pub(crate) fn start(&self, session: &str) -> Result<bool> {
        let started = self.queue.start(&self.ids(session), Durability::Now);
        started.doing("recording that a turn begins")
    }

    /// Returns the messages that join a running turn before its next request, with their start counted on disk. One that arrives
    /// before the turn's first reply stops `asking`. None is taken while the program stops.
    pub(crate) fn take_more(&self, session: &str, asking: &Cancel) -> (Vec<Inbound>, Result<()>) {
        let mut waiting = self.lock();
        while let Some(until) = waiting.joining(session).1 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || asking.reason().is_some() {
                break;
            }
            waiting = sync::wait(&self.state.1, waiting, left);
        }
        let more = waiting.take_more(session, asking);
        drop(waiting);
        let joined = more.first().map_or(Ok(false), |_| self.start(session));
        (more, joined.map(drop))
    }

    /// Notes the first reply of a running turn: later messages no longer repeat its request.
    pub(crate) fn has_replied(&self, session: &str) {
        if let Some(running) = self.lock().get(session) {
            running.has_replied = true;
        }
    }

    /// Lets other turns run while a turn does something slow.
    pub(crate) fn without_turn<T>(&self, session: &str, work: impl FnOnce() -> T) -> T {
        self.change_running(session, |running| running.waits = true);
        let done = work();
        let is_full = |waiting: &mut WaitingMessages| !waiting.has_turn();
        let mut waiting = sync::wait_while(&self.state.1, self.lock(), is_full);
        if let Some(running) = waiting.get(session) {
            running.waits = false;
        }
        done
    }

    /// Lets other turns run while a turn waits for its user, whose answer stops the cancel, as `cancel` does. A crash then is not
    /// the fault of the turn, and a restart does not wait for it.
    pub(crate) fn ask_user<T>(
        &self,
        session: &str,
        cancel: &Cancel,
        wait: impl FnOnce(&Cancel) -> T,
    ) -> T {
        let (ids, (answered, _hook)) = (self.ids(session), cancel.follower());
        self.change_running(session, |running| running.asks = Some(answered.clone()));
        // A mark that the disk does not take only counts a start too much.
        drop(self.queue.halt(&ids));
        let answer = self.without_turn(session, || wait(&answered));
        self.change_running(session, |running| running.asks = None);
        drop(self.start(session));
        answer
    }

    /// Returns the ids of the messages of a running turn; further messages may have joined it.
    pub(crate) fn ids(&self, session: &str) -> Vec<String> {
        self.change_running(session, |running| running.ids())
    }

    /// Forgets waiting messages of a conversation that are answered.
    pub(crate) fn forget(&self, session: &str, ids: &[String]) {
        self.change(|waiting| waiting.forget(session, ids));
    }

    /// Undoes all counted starts, because the program stops in good order; no turn begins any more.
    pub(crate) fn halt(&self) -> Result<()> {
        self.change(|waiting| waiting.is_halted = true);
        self.queue.stop()
    }

    /// Refuses further messages.
    pub(crate) fn close(&self) {
        self.change(|waiting| waiting.is_closed = true);
    }

    /// Whether a restart interrupts nothing: no turn is running or waiting, except those that wait for an answer of their user.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().is_idle()
    }

    /// Waits until [`Inbox::is_idle`].
    pub(crate) fn wait_until_idle(&self) {
        let is_busy = |waiting: &mut WaitingMessages| !waiting.is_idle();
        drop(sync::wait_while(&self.state.1, self.lock(), is_busy));
    }

    /// Returns the number of running turns, and how many messages wait behind each turn that waits for its user.
    pub(crate) fn running(&self) -> (usize, Vec<usize>) {
        let waiting = self.lock();
        (waiting.turns(), waiting.behind_questions())
    }

    /// Does work without a message, such as a turn of an HTTP client. The end of serving and a restart wait for it.
    pub(crate) fn while_serving<T>(&self, work: impl FnOnce() -> T) -> T {
        self.begin_task();
        let done = work();
        self.end_task();
        done
    }

    /// Begins a background task, until [`Inbox::end_task`].
    pub(crate) fn begin_task(&self) {
        self.change(|waiting| waiting.others += 1);
    }

    pub(crate) fn end_task(&self) {
        self.change(|waiting| waiting.others -= 1);
    }

    /// Returns the wanted messages on disk, the oldest first.
    pub(crate) fn open(&self, is_wanted: &dyn Fn(&Entry) -> bool) -> Result<Vec<Inbound>> {
        let message = |entry: Entry| Inbound {
            id: entry.id.clone(),
            starts: entry.starts,
            has_begun: entry.begun,
            ..entry.read()
        };
        let entries = self.queue.select(KIND, &mut |entry| is_wanted(entry))?;
        Ok(entries.into_iter().map(message).collect())
    }

    /// Stores messages, or replaces messages with the same ids. On disk when this returns. Nobody answers them before the next
    /// start.
    pub(crate) fn keep(&self, messages: &[Inbound]) -> Result<()> {
        let entry = |message: &Inbound| Entry::new(&message.id, KIND, message);
        let entries: Vec<Entry> = messages.iter().map(entry).collect();
        self.queue.add(&entries, &[]).doing("keeping a message")
    }

    /// Changes the question of a message, found by the id of either, by `change`, which returns whether to write it to disk. An
    /// answer wakes its turn. Returns false if there is no such message, or nothing is changed.
    pub(crate) fn change_question(
        &self,
        id: &str,
        change: &mut dyn FnMut(&mut Option<Question>) -> bool,
    ) -> Result<bool> {
        let _changing = sync::lock(&self.questions);
        let has = |entry: &Entry| entry.id == id || entry.item["question"]["id"] == id;
        let Some(mut message) = self.open(&has)?.pop() else {
            return Ok(false);
        };
        if !change(&mut message.question) {
            return Ok(false);
        }
        let answer = message.question.as_ref().and_then(|open| open.answer);
        let asks = self.change_running(&message.session, |running| running.asks.clone());
        self.keep(&[message])?;
        if let (Some(_), Some(asking)) = (answer, asks) {
            asking.stop();
        }
        Ok(true)
    }
}

/// Messages of a conversation that one turn or command answers; never empty. Dropping it lets the next work of the conversation
/// begin, and undoes a start that is still counted.
pub(crate) struct Work {
    inbox: Inbox,
    key: String,
    pub messages: Vec<Inbound>,
    /// Stops the turn.
    pub cancel: Cancel,
}

impl Work {
    pub(crate) fn first(&self) -> &Inbound {
        &self.messages[0]
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let ids = self.inbox.change(|waiting| waiting.leave(&self.key));
        // A mark that the disk does not take only counts a start too much.
        drop(self.inbox.queue.halt(&ids));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::{Command, Origin, TelegramMessage};
    use crate::test_dir::TestDir;

    /// Opens the inbox as the next program would.
    fn inbox_in(dir: &TestDir) -> Inbox {
        Inbox::new(&dir.home())
    }

    fn written(id: &str, number: i64, text: &str) -> Inbound {
        let origin = Origin {
            channel: "telegram".to_owned(),
            chat: "1".to_owned(),
        };
        Inbound {
            id: id.to_owned(),
            source: Source::Telegram(TelegramMessage {
                user: 42,
                message: number,
                ..TelegramMessage::default()
            }),
            ..Inbound::message(origin, "telegram_1".to_owned(), text.to_owned())
        }
    }

    /// Returns the next work.
    fn taken(inbox: &Inbox) -> Work {
        inbox.take().unwrap()
    }

    /// Counts the start of the running work.
    fn start(inbox: &Inbox) -> bool {
        inbox.start("telegram_1").unwrap()
    }

    fn texts(messages: &[Inbound]) -> Vec<&str> {
        messages
            .iter()
            .map(|message| message.text.as_str())
            .collect()
    }

    #[test]
    fn inbox_message_survives_crash_until_done() {
        let dir = TestDir::new();
        let inbox = inbox_in(&dir);
        assert!(inbox.add(written("7:10", 5, "hello")).unwrap());
        let work = taken(&inbox);
        assert!(start(&inbox));
        inbox.has_replied("telegram_1");
        assert!(inbox.add(written("7:11", 6, "you")).unwrap());
        assert!(!inbox.add(written("7:11", 6, "again")).unwrap());
        inbox.edit(written("7:12", 5, "late")).unwrap();
        inbox.edit(written("7:13", 6, "there")).unwrap();
        // The work of a crashed program is never dropped.
        std::mem::forget(work);
        let inbox = inbox_in(&dir);
        let all = inbox.open(&|_| true).unwrap();
        let found: Vec<_> = all.iter().map(|m| (m.text.as_str(), m.starts)).collect();
        assert_eq!(found, [("hello", 1), ("there", 0)]);
        let ids: Vec<String> = all.iter().map(|message| message.id.clone()).collect();
        inbox.queue.done(&ids).unwrap();
        let inbox = inbox_in(&dir);
        assert!(inbox.open(&|_| true).unwrap().is_empty());
        assert!(inbox.queue.is_known("telegram:7:11").unwrap());
    }

    #[test]
    fn message_after_shutdown_is_refused() {
        let dir = TestDir::new();
        let inbox = inbox_in(&dir);
        inbox.close();
        let refused = inbox.add(written("1", 1, "late")).unwrap_err();
        assert_eq!(refused.kind, Kind::Interrupted);
        assert!(inbox.take().is_none());
    }

    #[test]
    fn a_message_without_an_id_gets_one() {
        let dir = TestDir::new();
        let inbox = inbox_in(&dir);
        assert!(inbox.add(written("", 1, "a")).unwrap() && inbox.add(written("", 1, "a")).unwrap());
        let all = inbox.open(&|_| true).unwrap();
        assert_ne!(all[0].id, all[1].id);
    }

    #[test]
    fn parts_are_waited_for_and_a_plain_message_is_not() {
        let begun = Instant::now();
        let later = |ms| begun + Duration::from_millis(ms);
        let mut waiting = WaitingMessages::default();
        let mut part = written("1", 1, "first");
        if let Source::Telegram(written) = &mut part.source {
            written.more_follows = true;
        }
        waiting.push(part, begun);
        assert_eq!(waiting.take(begun).err(), Some(Some(later(1000))));
        waiting.push(written("2", 2, "second"), later(300));
        let Ok((_, messages, _)) = waiting.take(later(300)) else {
            panic!("no turn");
        };
        assert_eq!(texts(&messages), ["first", "second"]);
        waiting.leave("telegram_1");
        waiting.push(written("3", 3, "alone"), later(400));
        assert!(waiting.take(later(400)).is_ok());
    }

    #[test]
    fn a_stop_undoes_starts_and_lets_none_count() {
        let dir = TestDir::new();
        let inbox = inbox_in(&dir);
        inbox.add(written("1", 1, "one")).unwrap();
        let work = taken(&inbox);
        assert!(start(&inbox));
        assert_eq!(inbox.open(&|_| true).unwrap()[0].starts, 1);
        inbox.halt().unwrap();
        assert!(!start(&inbox));
        drop(work);
        assert_eq!(inbox.open(&|_| true).unwrap()[0].starts, 0);
    }

    #[test]
    fn a_stop_reaches_the_next_message_behind_a_report() {
        let begun = Instant::now();
        let mut waiting = WaitingMessages::default();
        let report = Inbound {
            source: Source::Task,
            ..written("1", 1, "report")
        };
        let stop = Inbound {
            command: Some(Command::Stop),
            ..written("3", 3, "/stop")
        };
        waiting.push(report, begun);
        waiting.push(written("2", 2, "question"), begun);
        waiting.push(stop, begun).unwrap().stop();
        let Ok((_, stop, _)) = waiting.take(begun) else {
            panic!("no command");
        };
        assert!(stop[0].has_stopped);
        let Ok((_, messages, cancel)) = waiting.take(begun) else {
            panic!("no turn");
        };
        assert_eq!(texts(&messages), ["question"]);
        assert!(cancel.reason().is_some());
    }

    #[test]
    fn a_part_that_a_turn_waits_with_can_be_edited() {
        let begun = Instant::now();
        let mut waiting = WaitingMessages::default();
        waiting.push(written("1", 1, "question"), begun);
        assert!(waiting.take(begun).is_ok());
        let mut part = written("2", 2, "old");
        if let Source::Telegram(written) = &mut part.source {
            written.more_follows = true;
        }
        waiting.push(part, begun);
        assert!(waiting.joining("telegram_1").1.is_some());
        assert!(waiting.edit(written("2:edit", 2, "new")).is_some());
        assert_eq!(
            texts(&waiting.take_more("telegram_1", &Cancel::new(None))),
            ["new"]
        );
    }

    #[test]
    fn a_message_that_a_stopping_turn_would_take_remains_open() {
        let dir = TestDir::new();
        let inbox = inbox_in(&dir);
        inbox.add(written("1", 1, "one")).unwrap();
        let work = taken(&inbox);
        assert!(start(&inbox));
        inbox.add(written("2", 2, "two")).unwrap();
        inbox.halt().unwrap();
        let (more, _) = inbox.take_more("telegram_1", &Cancel::new(None));
        assert!(more.is_empty());
        // What the turn answers at its end.
        inbox.queue.done(&inbox.ids("telegram_1")).unwrap();
        drop(work);
        assert_eq!(texts(&inbox.open(&|_| true).unwrap()), ["two"]);
    }
}
