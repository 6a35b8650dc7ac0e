//! The end of a turn: its last reply, its error, and the stored messages.

use crate::bus::{Response, TurnStop};
use crate::error::{Error, Kind};
use crate::message::{Message, Reply, Stop};
use crate::provider::ProviderError;
use crate::text::{clip, has_text, to_single_line};

/// Maximum size of the stored part of a broken reply, in bytes; an endless reply would fill the context window forever.
const MOST_PARTIAL: usize = 64 << 10;

pub(super) struct TurnEnd {
    /// The last reply, which is not stored yet.
    pub reply: Option<Reply>,
    pub error: Option<Error>,
    pub keep: Keep,
}

/// Part of an ending turn that remains in the conversation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// The whole turn; the reply is the answer, or the part that arrived.
    Answer,
    /// The whole turn; the reply is a placeholder for an answer, which is not shown.
    StandIn,
    /// Undoes the turn.
    Nothing,
}

impl TurnEnd {
    fn with_answer(reply: Option<Reply>, error: Option<Error>) -> Self {
        Self {
            reply,
            error,
            keep: Keep::Answer,
        }
    }

    pub(super) fn of_error(error: Error) -> Self {
        Self::with_answer(None, Some(error))
    }

    /// The client runs the calls of the last reply and continues; `text` is the text that came with them.
    pub(super) fn handed_over(text: String) -> Self {
        let reply = Reply {
            text,
            ..Reply::default()
        };
        Self::with_answer(Some(reply), None)
    }

    /// Returns the end of a turn with a reply without calls. `limit` is the reason why no further step is possible, if any.
    pub(super) fn of_reply(reply: Reply, limit: Option<Error>) -> Self {
        if !reply.refused.is_empty() {
            return Self::of_refusal(reply);
        }
        if reply.used_all_to_think() {
            let message = match reply.stop {
                Stop::Window => "the model's thoughts filled its context window".to_owned(),
                _ => format!("the model used all {} tokens to think", reply.limit),
            };
            let hint = "allow more with --max-tokens, or lower reasoning_effort";
            return Self::of_error(Error::new(Kind::Limit, message).hint(hint));
        }
        if !has_text(&reply.text) && reply.images.is_empty() {
            return Self::of_error(match limit {
                Some(limit) => Error {
                    message: format!("{}, and the model gave no answer", limit.message),
                    ..limit
                },
                None => Error::failed("the model gave an empty answer")
                    .hint("ask again, or use another model (--model, /model)"),
            });
        }
        let error = match reply.stop {
            Stop::Length | Stop::Window => None,
            _ => limit,
        };
        Self::with_answer(Some(reply), error)
    }

    /// The host cut the reply off, or gave none, because of its content.
    fn of_refusal(reply: Reply) -> Self {
        let why = to_single_line(&reply.refused, 300);
        let error = Error::failed(format!("the model's host refused this answer ({why})"))
            .hint("rephrase the request, or use another model (--model, /model)");
        let begun = has_text(&reply.text).then_some(Reply {
            partial: true,
            ..reply
        });
        Self::with_answer(begun, Some(error))
    }

    /// Returns the end of a turn in which the model had to answer without tools and only made more calls. The error lists the
    /// results of the turn, and also replaces the answer in the conversation.
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
            keep: Keep::StandIn,
        }
    }

    /// Returns the end of a turn whose request failed after the text `arrived`, whose beginning is stored. A turn that
    /// `has_no_reply` is undone if it was not sent, or was refused permanently, because it would be refused again.
    pub(super) fn of_failure(
        error: ProviderError,
        arrived: &str,
        model: &str,
        has_no_reply: bool,
    ) -> Self {
        use ProviderError::{AuthFailed, MessageRefused, NotSent};
        let is_refused = matches!(error, MessageRefused(_));
        let is_undone =
            has_no_reply && (is_refused || matches!(error, AuthFailed { .. } | NotSent(_)));
        let mut error = error.into_error(model);
        if is_undone && is_refused {
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
            error: Some(error),
            keep: if is_undone {
                Keep::Nothing
            } else {
                Keep::Answer
            },
        }
    }

    pub(super) fn stop(&self) -> TurnStop {
        let is_cut = self.reply.as_ref().is_some_and(|reply| reply.stop.is_cut());
        match &self.error {
            None if is_cut => TurnStop::Length,
            None => TurnStop::Done,
            Some(e) if e.kind == Kind::Interrupted => TurnStop::Cancelled,
            Some(e) if e.kind == Kind::Limit => TurnStop::Limit,
            Some(_) => TurnStop::Error,
        }
    }

    /// Copies the end into the response.
    pub(super) fn fill(self, response: &mut Response) {
        response.stop = self.stop();
        if let (Some(reply), false) = (self.reply, self.keep == Keep::StandIn) {
            (response.output, response.partial) = (reply.text, reply.partial);
        }
        response.error = self.error;
    }
}

/// Returns the successful calls of the turn, each with the first line of its result, limited to the last ones.
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
                done.push(format!("{name}: {}", to_single_line(first, 100)));
            }
            _ => {}
        }
    }
    done.split_off(done.len().saturating_sub(MOST))
}
