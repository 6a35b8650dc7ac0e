//! Derives the state of a turn from its conversation, to continue it after the program has ended.

use super::Request;
use super::turn::State;
use crate::message::{Message, Reply, TurnStop, UserKind};
use crate::session::{OpenSession, Session};

/// Returns the state of this message's turn according to its conversation; `None` for a new message.
pub(super) fn resume(open: &mut OpenSession, request: &Request) -> Option<State> {
    let stored = ids_in_turn(&open.session);
    if !request.ids.iter().any(|id| stored.contains(id)) {
        return None;
    }
    let is_over = match open.session.ended {
        None => false,
        Some(TurnStop::Cancelled) => true,
        // A turn without an answer continues.
        Some(_) => has_answer(&open.session),
    };
    if is_over {
        return Some(State::Done);
    }
    let count = open.take_not_begun().len();
    if count == 0 {
        return Some(State::Asking);
    }
    let mut calls = last_reply(&open.session)?.calls.clone();
    let not_begun = calls.split_off(calls.len().saturating_sub(count));
    Some(State::AwaitingApproval(not_begun.into()))
}

/// Whether the conversation ends with a complete answer.
fn has_answer(session: &Session) -> bool {
    let last = session.messages.iter().rfind(|message| !message.is_note());
    matches!(last, Some(Message::Assistant(reply)) if !reply.partial && reply.calls.is_empty())
}

/// Returns the messages of the last turn of the conversation, from its question on.
fn last_turn(session: &Session) -> &[Message] {
    let messages = &session.messages;
    let begin = messages.iter().rposition(Message::is_question).unwrap_or(0);
    &messages[begin..]
}

/// Returns the number of requests of the last turn of the conversation, as recorded in its replies.
pub(super) fn calls_used(session: &Session) -> u32 {
    let used = last_turn(session).iter().map(|message| match message {
        Message::Assistant(reply) => reply.calls_used,
        _ => 0,
    });
    used.max().unwrap_or(0)
}

/// Returns the ids of the messages in the last turn of the conversation.
pub(super) fn ids_in_turn(session: &Session) -> Vec<String> {
    let messages = last_turn(session).iter();
    let ids = messages.filter_map(|message| match message {
        Message::User(user) if user.kind != UserKind::Note => Some(user.ids.clone()),
        _ => None,
    });
    ids.flatten().collect()
}

pub(super) fn last_reply(session: &Session) -> Option<&Reply> {
    let mut newest_first = session.messages.iter().rev();
    newest_first.find_map(|message| match message {
        Message::Assistant(reply) => Some(reply),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
