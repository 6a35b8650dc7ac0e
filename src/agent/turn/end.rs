//! The end of a turn: its last reply, its error, and what remains of it in the conversation.

use super::{Ended, State, Turn, last_reply};
use crate::agent::history;
use crate::bus::TurnStop;
use crate::cancel::CancelReason;
use crate::error::{Error, Kind, Result};
use crate::message::{Message, Reply, Stop};
use crate::provider::ProviderError;
use crate::session::{Record, Session};
use crate::text::{clip, has_text, to_single_line};

/// Maximum size of the stored part of a broken reply, in bytes; an endless reply would fill the context window forever.
const MOST_PARTIAL: usize = 64 << 10;

impl Turn<'_> {
    /// Ends the turn with its last reply, which is not stored yet, and an error.
    pub(super) fn end(&mut self, reply: Option<Reply>, error: Option<Error>) -> Result<State> {
        let error = error.or_else(|| self.calls.take_unasked());
        self.finish(reply.clone(), (reply, error))
    }

    /// Ends a turn in which the model had to answer without tools and only made more calls. In the conversation, the error takes
    /// the place of the answer.
    pub(super) fn end_without_answer(&mut self, limit: Error) -> Result<State> {
        let stand_in = Reply {
            text: format!("[No answer: {}]", limit.message),
            ..Reply::default()
        };
        self.finish(Some(stand_in), (None, Some(limit)))
    }

    /// Ends a turn whose request failed. The text that arrived is its answer. A turn without a reply is undone if its message was
    /// not sent, or was refused permanently, because it would be refused again.
    pub(super) fn end_failed(&mut self, failure: ProviderError) -> Result<State> {
        use ProviderError::{AuthFailed, Cancelled, MessageRefused, NotSent, TooLong};
        let messages = &self.open.session.messages;
        let has_no_reply = messages.last().is_some_and(Message::is_question);
        let is_undone = has_no_reply
            && match failure {
                MessageRefused(_) => true,
                AuthFailed { .. } | NotSent(_) => !self.shared.is_follow_up,
                _ => false,
            };
        let is_first_turn =
            self.open.session.summary.is_none() && history::last_turns(messages, 1).is_none();
        let is_refused = matches!(failure, MessageRefused(_));
        let is_too_long = matches!(failure, TooLong { .. });
        let mut error = match failure {
            Cancelled(CancelReason::Deadline) => self.shared.cancel.timed_out(),
            failure => failure.into_error(&self.response.model),
        };
        if is_undone && is_refused {
            let note = "; the message is left out of the conversation from now on";
            error.message.push_str(note);
        }
        if is_too_long && is_first_turn {
            // A new conversation would be as long.
            error = error.hint("shorten the message or its files, or use a model with a larger window (--model, /model)");
        }
        let text = clip(&self.arrived, MOST_PARTIAL).to_owned();
        let begun = (!text.is_empty()).then(|| Reply {
            text,
            partial: true,
            ..Reply::default()
        });
        if !is_undone {
            return self.end(begun, Some(error));
        }
        let undone = [
            self.open.undo_turn(),
            Record::End(stop_of(None, Some(&error))),
        ];
        self.open.store(&undone)?;
        self.ended = (begun, Some(error));
        Ok(State::Done)
    }

    /// Stores a last message and the end of the turn, and returns the turn's messages in the response.
    fn finish(&mut self, last: Option<Reply>, ended: Ended) -> Result<State> {
        let last = last.map(Message::Assistant);
        let mut records: Vec<Record> = last.iter().map(Record::Message).collect();
        records.push(Record::End(stop_of(ended.0.as_ref(), ended.1.as_ref())));
        self.open.store(&records)?;
        let messages = &mut self.open.session.messages;
        let asked = messages.iter().rposition(Message::is_question);
        self.response.stored = messages.split_off(asked.unwrap_or_default());
        self.ended = ended;
        Ok(State::Done)
    }
}

/// Returns the end of a turn that has ended before.
pub(super) fn end_of(session: &Session) -> Result<Ended> {
    if session.ended == Some(TurnStop::Cancelled) {
        return Err(Error::new(Kind::Interrupted, "stopped by the user"));
    }
    Ok(judge(
        last_reply(session).cloned().unwrap_or_default(),
        None,
    ))
}

/// Returns the answer and the error of a turn with this last reply without calls. `limit` is the reason why no further step is
/// possible, if any.
pub(super) fn judge(reply: Reply, limit: Option<Error>) -> Ended {
    if !reply.refused.is_empty() {
        let why = to_single_line(&reply.refused, 300);
        let error = Error::failed(format!("the provider refused this answer ({why})"))
            .hint("rephrase the request, or use another model (--model, /model)");
        let begun = has_text(&reply.text).then_some(Reply {
            partial: true,
            ..reply
        });
        return (begun, Some(error));
    }
    if reply.used_all_to_think() {
        let message = match reply.stop {
            Stop::Window => "the model's thoughts filled its context window".to_owned(),
            _ => format!("the model used all {} tokens to think", reply.limit),
        };
        let hint = "allow more with --max-tokens, or lower reasoning_effort";
        return (None, Some(Error::new(Kind::Limit, message).hint(hint)));
    }
    if !has_text(&reply.text) && reply.images.is_empty() {
        let error = match limit {
            Some(limit) => Error {
                message: format!("{}, and the model gave no answer", limit.message),
                ..limit
            },
            None => Error::failed("the model gave an empty answer")
                .hint("ask again, or use another model (--model, /model)"),
        };
        return (None, Some(error));
    }
    let error = match reply.stop {
        Stop::Length | Stop::Window => None,
        _ => limit,
    };
    (Some(reply), error)
}

pub(super) fn stop_of(reply: Option<&Reply>, error: Option<&Error>) -> TurnStop {
    match error.map(|error| error.kind) {
        None if reply.is_some_and(|reply| reply.stop.is_cut()) => TurnStop::Length,
        None => TurnStop::Done,
        Some(Kind::Interrupted) => TurnStop::Cancelled,
        Some(Kind::Limit) => TurnStop::Limit,
        Some(_) => TurnStop::Error,
    }
}
