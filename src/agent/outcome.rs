//! How a turn ends: its last reply, its error, and what is stored.

use crate::bus::TurnStop;
use crate::error::{Error, Kind};
use crate::message::{Message, Reply, Stop};
use crate::provider::ProviderError;
use crate::session::TurnEnd;
use crate::text::{clip, has_text, one_line};

/// The most bytes that are kept of a reply that broke off: an endless one would fill the window for ever.
const MOST_PARTIAL: usize = 64 << 10;

pub(super) struct Outcome {
    /// The last reply, not stored yet.
    pub reply: Option<Reply>,
    pub error: Option<Error>,
    /// The turn leaves no trace.
    pub undo: bool,
    /// The reply is our own text, for the conversation alone: it is no answer.
    pub is_stand_in: bool,
}

impl Outcome {
    /// A reply without calls. `limit` says why no further step is possible, if so.
    pub(super) fn of_reply(reply: Reply, limit: Option<Error>) -> Self {
        if !reply.refused.is_empty() {
            return Self::of_refusal(reply);
        }
        if reply.used_all_to_think() {
            let message = format!("the model used all {} tokens to think", reply.limit);
            let hint = "allow more with --max-tokens, or lower reasoning_effort";
            return Self::of_error(Error::new(Kind::Limit, message).hint(hint));
        }
        if !has_text(&reply.text) {
            return Self::of_error(match limit {
                Some(limit) => Error {
                    message: format!("{}, and the model gave no answer", limit.message),
                    ..limit
                },
                None => Error::failed("the model gave an empty answer")
                    .hint("ask again, or use another model (--model, /model)"),
            });
        }
        let error = limit.filter(|_| reply.stop != Stop::Length);
        Self {
            reply: Some(reply),
            error,
            undo: false,
            is_stand_in: false,
        }
    }

    /// Somebody else runs the calls of this reply and goes on.
    pub(super) fn handed_over(reply: Reply) -> Self {
        Self {
            reply: Some(reply),
            error: None,
            undo: false,
            is_stand_in: false,
        }
    }

    /// The host cut the reply off, or gave none, because of its content.
    fn of_refusal(reply: Reply) -> Self {
        let why = one_line(&reply.refused, 300);
        let error = Error::failed(format!("the model's host refused this answer ({why})"))
            .hint("rephrase the request, or use another model (--model, /model)");
        let reply = Some(Reply {
            partial: true,
            ..reply
        });
        let reply = reply.filter(|reply| has_text(&reply.text));
        Self {
            reply,
            error: Some(error),
            undo: false,
            is_stand_in: false,
        }
    }

    /// The model was asked to answer without tools and only called more of them. The error says what the turn has done, and the
    /// conversation has the same in place of an answer.
    pub(super) fn of_calls_alone(limit: Error, messages: &[Message]) -> Self {
        let done = done_in_turn(messages);
        let message = match done.len() {
            0 => limit.message,
            _ => format!("{}; done so far: {}", limit.message, done.join("; ")),
        };
        Self {
            reply: Some(Reply {
                text: format!("[No answer: {message}]"),
                ..Reply::default()
            }),
            error: Some(Error { message, ..limit }),
            undo: false,
            is_stand_in: true,
        }
    }

    pub(super) fn of_error(error: Error) -> Self {
        Self {
            reply: None,
            error: Some(error),
            undo: false,
            is_stand_in: false,
        }
    }

    /// A request that failed after the text `arrived`, of which the beginning is kept. The turn is undone if it is `unanswered` and was not asked, or was
    /// refused for good: it would only be refused again.
    pub(super) fn of_failure(
        error: ProviderError,
        arrived: &str,
        model: &str,
        unanswered: bool,
    ) -> Self {
        use ProviderError::{AuthFailed, MessageRefused, NotSent};
        let undo =
            unanswered && matches!(error, AuthFailed { .. } | NotSent(_) | MessageRefused(_));
        let is_refused = undo && matches!(error, MessageRefused(_));
        let mut error = error.into_error(model);
        if is_refused {
            error
                .message
                .push_str("; the message is left out of the conversation from now on");
        }
        let text = clip(arrived, MOST_PARTIAL).to_owned();
        let reply = (!text.is_empty()).then(|| Reply {
            text,
            partial: true,
            ..Reply::default()
        });
        Self {
            reply,
            undo,
            is_stand_in: false,
            error: Some(error),
        }
    }

    pub(super) fn stop(&self) -> TurnStop {
        match &self.error {
            None if self
                .reply
                .as_ref()
                .is_some_and(|reply| reply.stop == Stop::Length) =>
            {
                TurnStop::Length
            }
            None => TurnStop::Done,
            Some(e) if e.kind == Kind::Interrupted => TurnStop::Cancelled,
            Some(e) if e.kind == Kind::Limit => TurnStop::Limit,
            Some(_) => TurnStop::Error,
        }
    }

    pub(super) fn turn_end(&self) -> TurnEnd {
        match self.stop() {
            TurnStop::Done | TurnStop::Length => TurnEnd::Done,
            TurnStop::Limit if self.reply.as_ref().is_some_and(|r| !r.partial) => TurnEnd::Done,
            TurnStop::Cancelled => TurnEnd::Cancelled,
            TurnStop::Limit | TurnStop::Error => TurnEnd::Failed,
        }
    }
}

/// The calls of the turn that succeeded, each with the first line of its result; the last ones, if there are many.
fn done_in_turn(messages: &[Message]) -> Vec<String> {
    const MOST: usize = 5;
    let begin = messages.iter().rposition(Message::is_question).unwrap_or(0);
    let mut done = Vec::new();
    let mut calls = &[][..];
    for message in &messages[begin..] {
        match message {
            Message::Assistant(reply) => calls = &reply.calls,
            Message::ToolResult(result) if !result.is_error => {
                let call = calls.iter().find(|call| call.id == result.call_id);
                let name = call.map_or("a tool", |call| &call.name);
                let first = result.content.trim().lines().next().unwrap_or_default();
                done.push(format!("{name}: {}", one_line(first, 100)));
            }
            _ => {}
        }
    }
    done.split_off(done.len().saturating_sub(MOST))
}
