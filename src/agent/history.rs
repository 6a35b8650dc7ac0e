//! Measures, cuts and shortens a conversation. Weights are estimated tokens, because only the host can count them. Three bytes
//! per token is a safe overestimate for most texts (English has about four bytes per token).

use std::borrow::Cow;

use crate::message::{MAX_MEDIA, Media, Message, Reply, ToolResult, Usage, UserKind};
use crate::provider::ToolOffer;
use crate::session::{NOT_SHOWN, SHOWN_TURNS};
use crate::text::clip;

/// Number of bytes per token.
pub(super) const TOKEN: u64 = 3;
/// Tokens of an image; hosts count from a few hundred up to about this.
const IMAGE: u64 = 1600;
/// Tokens of the framing of a message.
const FRAMING: u64 = 4;
/// Maximum size of tool results that are never replaced, in bytes.
const WORTH_A_STUB: usize = 200;
/// Maximum size of a call's arguments and of a result in a transcript, in bytes.
const SHOWN_OF_ARGUMENTS: usize = 300;
const SHOWN_OF_A_RESULT: usize = 1000;

pub(super) fn weight<'a>(messages: impl IntoIterator<Item = &'a Message>) -> u64 {
    messages.into_iter().map(weight_of).sum()
}

fn weight_of(message: &Message) -> u64 {
    let bytes = match message {
        Message::System(text) => text.len(),
        Message::User(user) => {
            let texts = user.media.iter().map(|media| media.text.len());
            user.content.len() + user.shown_time().len() + texts.sum::<usize>()
        }
        Message::ToolResult(result) => result.content.len() + result.call_id.len(),
        Message::Assistant(reply) => {
            let calls = reply.calls.iter();
            let calls = calls.map(|call| call.id.len() + call.name.len() + call.arguments.len());
            let extra = reply.extra.values().map(|value| value.to_string().len());
            reply.text.len() + reply.reasoning.len() + calls.chain(extra).sum::<usize>()
        }
    };
    bytes as u64 / TOKEN + FRAMING + message.media().len() as u64 * IMAGE
}

pub(super) fn weight_of_offers(offers: &[ToolOffer]) -> u64 {
    let bytes = |o: &ToolOffer| o.name.len() + o.description.len() + o.schema.len();
    offers.iter().map(bytes).sum::<usize>() as u64 / TOKEN
}

/// Returns the least number of tokens that is plausible for an estimate: six bytes per token.
pub(super) fn at_least(estimate: u64) -> u64 {
    estimate / 2
}

/// Estimates the weight of a request, where `base` is the weight of the system prompt and the tools. Uses the host's count for
/// its last reply, if plausible.
pub(super) fn estimate(base: u64, messages: &[Message]) -> u64 {
    let all = base + weight(messages);
    let counted = |(at, message)| match message {
        &Message::Assistant(Reply { usage, .. }) if usage.prompt_tokens > 0 => {
            Some(usage.total().saturating_add(weight(&messages[at + 1..])))
        }
        _ => None,
    };
    let tokens = messages.iter().enumerate().rev().find_map(counted);
    tokens.map_or(all, |tokens| tokens.max(at_least(all)))
}

/// Returns the start of the last `turns` turns, which is a user's message, so that calls remain with their results. `None` if
/// there are no earlier messages.
pub(super) fn last_turns(messages: &[Message], turns: usize) -> Option<usize> {
    let begins = |at: &usize| messages[*at].is_question();
    let mut starts = (0..messages.len()).rev().filter(begins);
    starts.nth(turns.checked_sub(1)?).filter(|at| *at > 0)
}

/// Returns where to cut so that half of `room` remains free: before the last two whole turns and the current one if possible,
/// or else before the last whole turn, or else before the current turn. 0 if nothing can be cut off.
pub(super) fn cut(messages: &[Message], room: u64) -> usize {
    let fits =
        |turns, room| last_turns(messages, turns).filter(|at| weight(&messages[*at..]) <= room);
    fits(3, room / 2)
        .or_else(|| fits(2, room / 4 * 3))
        .or_else(|| last_turns(messages, 1))
        .unwrap_or(0)
}

/// Returns the start of the newest messages, up to `most`, beginning with a user's message.
pub(super) fn newest(messages: &[Message], most: usize) -> usize {
    let from = messages.len().saturating_sub(most);
    let is_user = |message: &Message| matches!(message, Message::User(_));
    let user = messages[from..].iter().position(is_user);
    // A longer turn is not split.
    user.map_or_else(|| last_turns(messages, 1).unwrap_or(0), |at| from + at)
}

/// Replaces tool results by a line each, oldest first, while `more` (given the weight saved so far) is true. Returns their
/// number.
pub(super) fn stub(messages: &mut [Message], mut more: impl FnMut(u64) -> bool) -> usize {
    let (mut calls, mut stubbed, mut saved) = (Vec::new(), 0, 0);
    for message in messages {
        let before = weight_of(message);
        match message {
            Message::Assistant(reply) => calls.clone_from(&reply.calls),
            Message::ToolResult(result) if is_worth_a_stub(result) && more(saved) => {
                let call = calls.iter().find(|call| call.id == result.call_id);
                let name = call.map_or("a tool", |call| &call.name);
                let images: u64 = result.images.iter().map(Media::bytes).sum();
                let bytes = result.content.len() as u64 + images;
                result.content = format!("[result of {name}, {bytes} bytes, dropped to save room]");
                result.images.clear();
                saved += before.saturating_sub(weight_of(message));
                stubbed += 1;
            }
            _ => {}
        }
    }
    stubbed
}

pub(super) fn is_result(message: &Message) -> bool {
    matches!(message, Message::ToolResult(_))
}

fn is_worth_a_stub(result: &ToolResult) -> bool {
    result.content.len() > WORTH_A_STUB || !result.images.is_empty()
}

/// Replaces media by text, and returns their number.
pub(super) fn drop_images<'a>(
    messages: impl IntoIterator<Item = &'a mut Message>,
    why: &str,
) -> usize {
    messages
        .into_iter()
        .map(|message| message.replace_media(|_| true, why))
        .sum()
}

/// Replaces images before the last two turns and the current one, and the oldest later images beyond the size limit, because
/// images are sent again with every request.
pub(super) fn drop_old_images(messages: &mut [Message]) {
    let mut bytes = 0;
    let is_too_much = |message: &Message| {
        let media = message.media().iter();
        bytes += media.map(|media| media.base64.len()).sum::<usize>();
        bytes > MAX_MEDIA
    };
    let full = messages.iter().rposition(is_too_much).map(|at| at + 1);
    let recent = last_turns(messages, SHOWN_TURNS).max(full).unwrap_or(0);
    // The user's last message was already limited when it arrived.
    let newest = messages.iter().rposition(Message::is_question);
    let end = recent.min(newest.unwrap_or(recent));
    drop_images(&mut messages[..end], NOT_SHOWN);
}

/// Adds a line of the assistant before each message of the user that follows a result, or joins a turn after another message.
/// Some hosts and chat templates refuse these orders of roles.
pub(super) fn alternating(messages: &[Message]) -> Cow<'_, [Message]> {
    let needs_line = |at: usize| match (&messages[at - 1], &messages[at]) {
        (Message::ToolResult(_), Message::User(_)) => true,
        (Message::User(_), Message::User(user)) => user.kind == UserKind::Steering,
        _ => false,
    };
    let places: Vec<usize> = (1..messages.len()).filter(|at| needs_line(*at)).collect();
    if places.is_empty() {
        return Cow::Borrowed(messages);
    }
    let mut all = messages.to_vec();
    for at in places.into_iter().rev() {
        let text = "[continuing]".to_owned();
        let reply = Reply {
            text,
            ..Reply::default()
        };
        all.insert(at, Message::Assistant(reply));
    }
    Cow::Owned(all)
}

/// Replaces the contents of all results, because the host refuses one of them and does not name it. Returns their number.
pub(super) fn leave_out_results(messages: &mut [Message]) -> usize {
    const LEFT_OUT: &str = "[left out: the provider refused the tool results]";
    let mut count = 0;
    for message in messages {
        if let Message::ToolResult(result) = message {
            count += usize::from(result.content != LEFT_OUT);
            LEFT_OUT.clone_into(&mut result.content);
        }
    }
    count
}

/// Clears the hosts' counts, which were for longer requests.
pub(super) fn forget_usage(messages: &mut [Message]) {
    for message in messages {
        if let Message::Assistant(reply) = message {
            reply.usage = Usage::default();
        }
    }
}

/// Returns the newest messages as a text to summarize, of about `most` bytes, and the number of omitted earlier messages. The
/// oldest message may be cut.
pub(super) fn newest_transcript(messages: &[Message], most: usize) -> (usize, String) {
    let (mut parts, mut left) = (Vec::new(), most);
    for message in messages.iter().rev() {
        let part = transcript(message);
        if part.len() > left {
            if left > 0 {
                parts.push(format!("{}\n\n", shortened(&part, left)));
            }
            break;
        }
        left -= part.len();
        parts.push(part);
    }
    let skipped = messages.len() - parts.len();
    parts.reverse();
    (skipped, parts.concat())
}

/// Formats a message for a summary.
fn transcript(message: &Message) -> String {
    match message {
        Message::System(text) => format!("System: {text}\n\n"),
        Message::User(user) => {
            let time = user.shown_time().get(..16).unwrap_or("-").replace('T', " ");
            let with = match user.media.len() {
                0 => String::new(),
                files => format!(" [with {files} files]"),
            };
            format!("User ({time}): {}{with}\n\n", user.content)
        }
        Message::Assistant(reply) => {
            let mut text = String::new();
            if !reply.text.is_empty() {
                text = format!("Assistant: {}\n\n", reply.text);
            }
            for call in &reply.calls {
                let arguments = shortened(&call.arguments, SHOWN_OF_ARGUMENTS);
                text.push_str(&format!("Assistant calls {} {arguments}\n\n", call.name));
            }
            text
        }
        Message::ToolResult(result) => {
            let shown = shortened(&result.content, SHOWN_OF_A_RESULT);
            format!("Result: {shown}\n\n")
        }
    }
}

pub(super) fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    match clip(text, most) {
        shown if shown.len() < text.len() => format!("{shown} [...]").into(),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{ToolCall, User};

    fn says(text: &str) -> Message {
        Message::Assistant(Reply {
            text: text.into(),
            ..Reply::default()
        })
    }

    fn calls(name: &str) -> Message {
        let call = ToolCall {
            id: "c".into(),
            name: name.into(),
            ..ToolCall::default()
        };
        Message::Assistant(Reply {
            calls: vec![call],
            ..Reply::default()
        })
    }

    fn result(content: &str) -> Message {
        Message::ToolResult(ToolResult {
            call_id: "c".into(),
            content: content.into(),
            ..ToolResult::default()
        })
    }

    #[test]
    fn a_line_of_the_assistant_stands_before_a_message_that_joins_a_turn() {
        let steering = || {
            Message::User(User {
                kind: UserKind::Steering,
                ..User::default()
            })
        };
        let roles = |messages: &[Message]| -> String {
            let role = |message: &Message| match message {
                Message::User(_) => 'u',
                Message::Assistant(_) => 'a',
                Message::ToolResult(_) => 't',
                Message::System(_) => 's',
            };
            alternating(messages).iter().map(role).collect()
        };
        let turn = || vec![Message::user("u"), calls("look"), result("r")];
        let with = |more: Vec<Message>| [turn(), more].concat();
        for (messages, expected) in [
            (with(vec![]), "uat"),
            (with(vec![says("a"), Message::user("u")]), "uatau"),
            (with(vec![steering()]), "uatau"),
            (with(vec![steering(), steering()]), "uatauau"),
            (with(vec![Message::user("u")]), "uatau"),
            (vec![], ""),
        ] {
            assert_eq!(roles(&messages), expected);
        }
    }
}
