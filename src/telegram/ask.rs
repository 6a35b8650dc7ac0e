//! Asks the owner to confirm calls: a message with buttons in the owner's private chat.
//!
//! A question, and later its answer, is an item of the home's queue until it is settled, so that it survives a restart. Only
//! the owner can answer, with a button of that message in that chat, within [`ANSWER_TIME`].

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::CHANNEL;
use super::chats::Chats;
use super::update::Press;
use crate::cancel::{Cancel, CancelReason};
use crate::error::Result;
use crate::outbox::{Button, Item, fresh_id};
use crate::storage::{Entry, Queue};
use crate::sync;
use crate::test_speed::paced;

/// Time limit for an answer; afterwards the call is not allowed.
const ANSWER_TIME: Duration = Duration::from_secs(3600);
/// Kind of the queue's items that are questions.
const KIND: &str = "ask";

/// The owner's answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    Yes,
    Always,
    No,
    /// No answer, or the question could not be sent.
    None,
}

/// The buttons: label, prefix of the button data, and answer.
const BUTTONS: [(&str, &str, Answer); 3] = [
    ("Yes", "y", Answer::Yes),
    ("No", "n", Answer::No),
    ("Always allow this tool here", "a", Answer::Always),
];

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Question {
    /// Ids of the messages whose turn asks, and the call to confirm.
    ids: Vec<String>,
    call: String,
    /// Markdown.
    text: String,
    /// Id of the user who may answer, and of their private chat.
    owner: i64,
    /// Whether "No" is the only answer, because the question does not show the whole call.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) only_no: bool,
    /// Time of the question, in milliseconds since 1970.
    asked: u64,
    /// Id of the message with the buttons; 0 until it is sent.
    message: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<Answer>,
}

impl Question {
    pub(crate) fn new(owner: i64, ids: &[String], call: &str, text: String) -> Self {
        let now = UNIX_EPOCH.elapsed().unwrap_or_default();
        Self {
            ids: ids.to_vec(),
            call: call.to_owned(),
            text,
            owner,
            asked: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            ..Self::default()
        }
    }

    fn item(&self, id: &str) -> Item {
        let button = |(shown, data, _): &(&str, &str, Answer)| Button {
            text: (*shown).to_owned(),
            data: format!("{data}:{id}"),
        };
        let [yes, no, always] = BUTTONS.each_ref().map(button);
        let buttons = if self.only_no {
            vec![vec![no]]
        } else {
            vec![vec![yes, no], vec![always]]
        };
        Item {
            buttons,
            question: id.to_owned(),
            ..Item::text(&format!("{CHANNEL}:{}", self.owner), &self.text)
        }
    }

    fn takes(&self, answer: Answer) -> bool {
        answer == Answer::No || !self.only_no
    }

    /// Returns the remaining time for an answer.
    fn left(&self) -> Duration {
        let now = UNIX_EPOCH.elapsed().unwrap_or_default();
        (Duration::from_millis(self.asked) + paced(ANSWER_TIME)).saturating_sub(now)
    }
}

/// The questions of a home.
pub(super) struct Questions {
    queue: Arc<Queue>,
    /// Lock for changing a question, and for settling it without a change in between.
    changes: Mutex<()>,
    changed: Condvar,
}

impl Questions {
    pub(super) fn new(queue: Arc<Queue>) -> Self {
        Self {
            queue,
            changes: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        sync::lock(&self.changes)
    }

    /// Wakes the waiting threads to check their questions.
    fn wake(&self) {
        drop(self.lock());
        self.changed.notify_all();
    }

    fn all(&self) -> Result<Vec<(String, Question)>> {
        let entries = self.queue.entries(KIND)?;
        Ok(entries
            .into_iter()
            .map(|entry| (entry.id.clone(), entry.read()))
            .collect())
    }

    fn find(&self, id: &str) -> Result<Option<Question>> {
        let found = self.queue.find(&[id.to_owned()])?;
        Ok(found
            .iter()
            .find(|entry| entry.kind == KIND)
            .map(Entry::read))
    }

    /// Applies `change`, which returns whether it changed the question, unless the question is settled. Writes to disk before
    /// returning.
    fn change(&self, id: &str, change: impl FnOnce(&mut Question) -> bool) -> Result<bool> {
        let changes = self.lock();
        let Some(mut question) = self.find(id)? else {
            return Ok(false);
        };
        let is_changed = change(&mut question);
        if is_changed {
            self.queue.add(&[Entry::new(id, KIND, &question)])?;
        }
        drop(changes);
        self.changed.notify_all();
        Ok(is_changed)
    }

    /// Stores the message of a question.
    pub(super) fn record_message(&self, id: &str, message: i64) -> Result<()> {
        self.change(id, |question| {
            question.message = message;
            true
        })
        .map(drop)
    }

    /// Records that the message of a question will never be sent.
    pub(super) fn fails(&self, id: &str) -> Result<()> {
        self.change(id, |question| {
            question.answer.get_or_insert(Answer::None);
            true
        })
        .map(drop)
    }

    /// Waits for the decision on a question, and calls `settle` before any other change.
    fn decide(
        &self,
        id: &str,
        cancel: &Cancel,
        settle: impl FnOnce(&Question, &str),
    ) -> Result<Answer> {
        let mut changes = self.lock();
        loop {
            let Some(question) = self.find(id)? else {
                return Ok(Answer::None);
            };
            let left = question.left();
            let (answer, decided) = match (question.answer, cancel.reason()) {
                (Some(Answer::Yes), _) => (Answer::Yes, "✅ Allowed."),
                (Some(Answer::Always), _) => {
                    (Answer::Always, "✅ Allowed, always in this conversation.")
                }
                (Some(Answer::No), _) => (Answer::No, "❌ Not allowed."),
                (Some(Answer::None), _) => (
                    Answer::None,
                    "❌ Not allowed: the question could not be sent.",
                ),
                (None, Some(CancelReason::Stopped)) => {
                    (Answer::None, "❌ Not allowed: the turn was stopped.")
                }
                (None, _) if left.is_zero() => {
                    (Answer::None, "❌ Not allowed: no answer within an hour.")
                }
                (None, _) => {
                    changes = sync::wait(&self.changed, changes, left);
                    continue;
                }
            };
            settle(&question, decided);
            return Ok(answer);
        }
    }

    /// Handles a press of a button, and returns the text for the user. Writes to disk before returning.
    pub(super) fn press(&self, press: &Press) -> Result<&'static str> {
        const OVER: &str = "This question is closed.";
        let parts = press.data.split_once(':');
        let answer = |data: &str| BUTTONS.iter().find(|(_, begins, _)| *begins == data);
        let Some((id, (.., answer))) = parts.and_then(|(data, id)| Some((id, answer(data)?)))
        else {
            return Ok(OVER);
        };
        let Some(question) = self.find(id)? else {
            return Ok(OVER);
        };
        if press.from != question.owner {
            return Ok("Only the owner of this bot can answer.");
        }
        // After a crash the message may exist twice, both copies with buttons.
        if press.chat != question.owner.to_string() || !question.takes(*answer) {
            return Ok(OVER);
        }
        let is_taken = self.change(id, |question| {
            let is_open = question.answer.is_none() && !question.left().is_zero();
            if is_open {
                question.message = press.message;
                question.answer = Some(*answer);
            }
            is_open
        })?;
        if !is_taken {
            return Ok(OVER);
        }
        Ok(match answer {
            Answer::Yes => "Allowed.",
            Answer::Always => "Always allowed in this conversation.",
            Answer::No | Answer::None => "Not allowed.",
        })
    }
}

impl Chats {
    /// Asks the owner and waits for the answer. A resumed turn waits for its earlier question.
    pub(crate) fn ask(&self, question: Question, cancel: &Cancel) -> Answer {
        let begun = self.begin_question(question);
        self.sender.is_ok("asking the owner", &begun);
        let Ok(id) = begun else { return Answer::None };
        let questions = &self.sender.questions;
        let waiting = questions.clone();
        let _wake = cancel.on_stop(move || waiting.wake());
        let decided = questions.decide(&id, cancel, |question, decided| {
            self.settle(&id, question, decided);
        });
        self.sender.is_ok("reading a question", &decided);
        decided.unwrap_or(Answer::None)
    }

    /// Stores and posts a question, unless it was asked before. Returns its id.
    fn begin_question(&self, question: Question) -> Result<String> {
        let questions = &self.sender.questions;
        let (known, others): (Vec<_>, Vec<_>) = questions
            .all()?
            .into_iter()
            .filter(|(_, known)| {
                known.owner == question.owner
                    && known.ids.iter().any(|id| question.ids.contains(id))
                    && known.call == question.call
            })
            .partition(|(_, known)| known.text == question.text);
        // Earlier answers for this call refer to other arguments.
        for (id, other) in others {
            self.settle_now(&id, &other, "❌ Not allowed: another call replaced it.");
        }
        let (id, question) = if let Some(known) = known.into_iter().next() {
            known
        } else {
            let id = format!("{KIND}-{}", fresh_id());
            questions.queue.add(&[Entry::new(&id, KIND, &question)])?;
            (id, question)
        };
        if question.message == 0 && question.answer.is_none() && self.waiting_item(&id)?.is_none() {
            self.sender.outbox.post(&question.item(&id), &[], None)?;
            self.sender.wake();
        }
        Ok(id)
    }

    /// Returns the queued item of a question that is not sent yet.
    fn waiting_item(&self, id: &str) -> Result<Option<String>> {
        let pending = self.sender.outbox.pending()?;
        let own = pending
            .into_iter()
            .find(|pending| pending.item.question == id);
        Ok(own.map(|pending| pending.id))
    }

    fn settle_now(&self, id: &str, question: &Question, decided: &str) {
        let _changes = self.sender.questions.lock();
        self.settle(id, question, decided);
    }

    /// Ends a question, and adds the decision to its message. The caller locks out other changes.
    fn settle(&self, id: &str, question: &Question, decided: &str) {
        let ended = if question.message == 0 {
            // The message was not sent yet, so it is dropped.
            self.waiting_item(id).and_then(|item| {
                let ids: Vec<String> = item.into_iter().chain([id.to_owned()]).collect();
                self.sender.outbox.queue().done(&ids)
            })
        } else {
            let item = Item {
                buttons: Vec::new(),
                question: String::new(),
                edits: question.message,
                text: format!("{}\n\n{decided}", question.text),
                ..question.item(id)
            };
            self.sender
                .outbox
                .post(&item, &[id.to_owned()], None)
                .map(drop)
        };
        self.sender.is_ok("ending a question", &ended);
        self.sender.wake();
    }

    /// Settles questions whose messages have been finished or dropped.
    pub(super) fn settle_orphans(&self) {
        let all = self.sender.questions.all();
        self.sender.is_ok("reading the questions", &all);
        for (id, question) in all.unwrap_or_default() {
            let open = self.store.find(&question.ids);
            self.sender.is_ok("reading the inbox", &open);
            if open.is_ok_and(|open| open.is_empty()) {
                let decided = "❌ Not allowed: the program ended in the meantime.";
                self.settle_now(&id, &question, decided);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::test_dir::TestDir;

    #[test]
    fn late_press_on_ended_question_is_ignored() {
        let dir = TestDir::new();
        let (path, lock) = (dir.join("state/q.jsonl"), dir.join("q.lock"));
        let queue = Arc::new(Queue::new(path, lock, 100));
        let questions = Arc::new(Questions::new(queue.clone()));
        let question = Question::new(42, &[], "call_1", "May I?".to_owned());
        queue.add(&[Entry::new("ask-1", KIND, &question)]).unwrap();
        let cancel = Cancel::new(None);
        cancel.stop();
        let pressed = RefCell::new(None);
        let (tell, told) = mpsc::channel();
        let answer = questions.decide("ask-1", &cancel, |_, _| {
            let questions = questions.clone();
            *pressed.borrow_mut() = Some(thread::spawn(move || {
                let press = Press {
                    from: 42,
                    chat: "42".to_owned(),
                    message: 7,
                    data: "y:ask-1".to_owned(),
                    ..Press::default()
                };
                let shown = questions.press(&press).unwrap();
                tell.send(()).ok();
                shown
            }));
            // The press waits for the lock; without locking it would be recorded by now.
            told.recv_timeout(Duration::from_secs(1)).ok();
            queue.done(&["ask-1".to_owned()]).unwrap();
        });
        let shown = pressed.take().unwrap().join().unwrap();
        assert_eq!(
            (answer.unwrap(), shown),
            (Answer::None, "This question is closed.")
        );
        assert!(questions.find("ask-1").unwrap().is_none());
    }
}
