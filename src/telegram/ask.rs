//! Asks the owner to confirm calls: a message with buttons in the owner's private chat.
//!
//! A question, and later its answer, is a field of the message whose turn asks, so that it survives a restart. Only the owner can
//! answer, with a button of that message in that chat, within [`ANSWER_TIME`].

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::CHANNEL;
use super::chats::Chats;
use super::update::{IncomingMessage, Press};
use crate::bus::{Decision, Inbound, Inbox, Question};
use crate::cancel::{Cancel, CancelReason};
use crate::error::{Error, Result};
use crate::outbox::{Button, Item};
use crate::paths::fresh_key;
use crate::test_speed::paced;

/// Time limit for an answer; afterwards the call is not allowed.
const ANSWER_TIME: Duration = Duration::from_secs(3600);
/// Prefix of the data of a button that chooses a model.
pub(crate) const MODEL_BUTTON: &str = "m:";

/// The buttons: label, prefix of the button data, answer, and what a press shows.
const BUTTONS: [(&str, &str, Decision, &str); 3] = [
    ("Yes", "y", Decision::Yes, "Allowed."),
    ("No", "n", Decision::No, "Not allowed."),
    (
        "Always allow this tool here",
        "a",
        Decision::Always,
        "Always allowed in this conversation.",
    ),
];
/// What a press on a settled question shows.
const OVER: &str = "This question is closed.";

/// Returns the message of a question.
fn item(question: &Question) -> Item {
    let button = |(shown, data, ..): &(&str, &str, Decision, &str)| Button {
        text: (*shown).to_owned(),
        data: format!("{data}:{}", question.id),
    };
    let [yes, no, always] = BUTTONS.each_ref().map(button);
    let buttons = if question.only_no {
        vec![vec![no]]
    } else {
        vec![vec![yes, no], vec![always]]
    };
    Item {
        buttons,
        question: question.id.clone(),
        ..Item::text(&format!("{CHANNEL}:{}", question.owner), &question.text)
    }
}

/// Returns the tool and the call in the text of a question, without the name of the chat, which Telegram may not tell again.
fn asked(text: &str) -> (Option<&str>, Option<&str>) {
    let call = text.split_once('\n').map(|(_, call)| call);
    (text.split('`').nth(1), call)
}

fn now() -> Duration {
    UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// Returns the remaining time for an answer.
fn left(question: &Question) -> Duration {
    (Duration::from_millis(question.asked) + paced(ANSWER_TIME)).saturating_sub(now())
}

/// Changes an open question, and writes it to disk. Returns false if it is settled.
fn change(inbox: &Inbox, id: &str, change: &mut dyn FnMut(&mut Question) -> bool) -> Result<bool> {
    inbox.change_question(id, &mut |question| {
        question.as_mut().is_some_and(&mut *change)
    })
}

/// Records the number of the message that shows a question.
pub(super) fn record_message(inbox: &Inbox, id: &str, message: i64) -> Result<()> {
    let mut record = |question: &mut Question| {
        question.message = message;
        true
    };
    change(inbox, id, &mut record).map(drop)
}

/// Records that a question could not be sent.
pub(super) fn record_failure(inbox: &Inbox, id: &str) -> Result<()> {
    let mut record =
        |question: &mut Question| question.answer.replace(Decision::Unanswered).is_none();
    change(inbox, id, &mut record).map(drop)
}

/// Handles a press of a button of a question, and returns the text for the user. Writes to disk before returning.
fn press_answer(inbox: &Inbox, press: &Press) -> Result<&'static str> {
    let parts = press.data.split_once(':');
    let button = |data: &str| BUTTONS.iter().find(|(_, begins, ..)| *begins == data);
    let Some((id, (.., answer, shown))) = parts.and_then(|(data, id)| Some((id, button(data)?)))
    else {
        return Ok(OVER);
    };
    let mut refused = OVER;
    let is_taken = change(inbox, id, &mut |question| {
        if press.from != question.owner {
            refused = "Only the owner of this bot can answer.";
            return false;
        }
        // After a crash the message may exist twice, both copies with buttons.
        let is_here = press.chat == question.owner.to_string();
        let is_open = question.answer.is_none() && !left(question).is_zero();
        let is_offered = *answer == Decision::No || !question.only_no;
        if is_here && is_open && is_offered {
            (question.message, question.answer) = (press.message, Some(*answer));
            return true;
        }
        false
    })?;
    Ok(if is_taken { shown } else { refused })
}

/// Returns the answer to a question that is waited for no longer, and its words.
fn decision(question: &Question, cancel: &Cancel) -> (Decision, &'static str) {
    let answer = question.answer.unwrap_or(Decision::Unanswered);
    let words = match (question.answer, cancel.reason()) {
        (Some(Decision::Yes), _) => "✅ Allowed.",
        (Some(Decision::Always), _) => "✅ Allowed, always in this conversation.",
        (Some(Decision::No), _) => "❌ Not allowed.",
        (Some(Decision::Unanswered), _) => "❌ Not allowed: the question could not be sent.",
        (None, Some(CancelReason::Stopped)) => "❌ Not allowed: the turn was stopped.",
        (None, _) => "❌ Not allowed: no answer within an hour.",
    };
    (answer, words)
}

impl Chats {
    /// Asks the owner about a call of the turn of `message`, and waits for the answer or the end of the turn. A resumed turn
    /// waits for its earlier question.
    pub(crate) fn ask(&self, message: &Inbound, question: Question, cancel: &Cancel) -> Decision {
        let answer = self.ask_and_wait(message, question, cancel);
        self.sender.is_ok("asking the owner", &answer);
        answer.unwrap_or(Decision::Unanswered)
    }

    fn ask_and_wait(
        &self,
        message: &Inbound,
        question: Question,
        cancel: &Cancel,
    ) -> Result<Decision> {
        // The question is on disk before its turn can be woken, so that an answer to an earlier one does not end it.
        let question = self.begin_question(&message.id, question)?;
        let inbox = &self.sender.outbox.inbox;
        inbox.ask_user(&message.session, cancel, |answered| {
            // An answer of the meantime is on disk, too.
            let mut is_open = false;
            change(inbox, &question.id, &mut |now| {
                is_open = now.answer.is_none();
                false
            })?;
            if is_open {
                // Ends with the answer, a stop, or the time.
                let _ended = answered.sleep(left(&question));
            }
            Ok::<_, Error>(())
        })?;
        let ended = self.take_question(&message.id)?.unwrap_or(question);
        let (answer, words) = decision(&ended, cancel);
        self.settle(&ended, words)?;
        Ok(answer)
    }

    /// Stores and posts a question, unless it was asked before, and returns it.
    fn begin_question(&self, id: &str, mut question: Question) -> Result<Question> {
        let inbox = &self.sender.outbox.inbox;
        let (mut known, mut other) = (None, None);
        question.id = fresh_key(SystemTime::now());
        question.asked = u64::try_from(now().as_millis()).unwrap_or(u64::MAX);
        inbox.change_question(id, &mut |open| {
            let is_same = |open: &Question| {
                open.call == question.call && asked(&open.text) == asked(&question.text)
            };
            if open.as_ref().is_some_and(is_same) {
                known.clone_from(open);
                return false;
            }
            // An earlier answer refers to another call, or to other arguments.
            other = open.replace(question.clone());
            true
        })?;
        if let Some(other) = other {
            self.settle(&other, "❌ No longer open: a newer question replaced it.")?;
        }
        let question = known.unwrap_or(question);
        let is_sent = question.message != 0 || question.answer.is_some();
        if !is_sent && self.waiting_item(&question.id)?.is_none() {
            self.sender.outbox.post(&item(&question), &[], None)?;
        }
        Ok(question)
    }

    /// Removes the question from a message, so that later presses change nothing, and returns it.
    fn take_question(&self, id: &str) -> Result<Option<Question>> {
        let mut taken = None;
        let mut take = |open: &mut Option<Question>| {
            taken = open.take();
            taken.is_some()
        };
        self.sender.outbox.inbox.change_question(id, &mut take)?;
        Ok(taken)
    }

    /// Returns the queued item of a question that is not sent yet.
    fn waiting_item(&self, question: &str) -> Result<Option<String>> {
        let outbox = &self.sender.outbox;
        let mut own = outbox.pending(&mut |entry| entry.item["question"] == question)?;
        Ok(own.pop().map(|pending| pending.id))
    }

    /// Adds the decision to the message of an ended question, or drops a message that was not sent yet.
    fn settle(&self, question: &Question, decided: &str) -> Result<()> {
        if question.message == 0 {
            let unsent: Vec<String> = self.waiting_item(&question.id)?.into_iter().collect();
            return self.sender.outbox.inbox.queue.done(&unsent);
        }
        let settled = Item {
            buttons: Vec::new(),
            question: String::new(),
            edits: Some(question.message),
            text: format!("{}\n\n{decided}", question.text),
            ..item(question)
        };
        self.sender.outbox.post(&settled, &[], None).map(drop)
    }

    /// Handles the press of a button. Returns the equivalent command, and the text for the user.
    pub(super) fn press(&self, press: &Press) -> Result<(Option<IncomingMessage>, String)> {
        if let Some(name) = press.data.strip_prefix(MODEL_BUTTON) {
            let command = format!("/model {name}");
            let choice = IncomingMessage {
                chat: press.chat.clone(),
                from: press.from,
                text: command.clone(),
                command: Some(command),
                ..IncomingMessage::default()
            };
            return Ok((Some(choice), name.to_owned()));
        }
        if let Some(shown) = self.press_admission(press) {
            return Ok((None, shown));
        }
        let shown = press_answer(&self.sender.outbox.inbox, press)?;
        Ok((None, shown.to_owned()))
    }
}
