//! Asks the owner to confirm the calls in `tools.confirm`, with buttons in Telegram.

use std::sync::Arc;

use super::Dispatcher;
use crate::agent::{Confirm, PendingCall};
use crate::bus::{Event, Inbound, Question};
use crate::cancel::Cancel;
use crate::text::{clip, fence};

/// Maximum size of a call that a question shows, in bytes; about eight messages. A longer call can only be rejected.
const MAX_SHOWN: usize = 30_000;

impl Dispatcher {
    /// Returns the callback for a message's turn; `None` if there is no owner to ask. While it waits, other turns may run, and a
    /// crash is not attributed to this turn.
    pub(super) fn asker(
        self: &Arc<Self>,
        first: &Inbound,
        cancel: &Cancel,
    ) -> Option<Arc<Confirm>> {
        let chats = self.chats_of(&first.origin)?.clone();
        let owner = chats.sender.owner?;
        let own = self.clone();
        let first = first.clone();
        let cancel = cancel.clone();
        Some(Arc::new(move |pending: &PendingCall| {
            let chat = &first.origin.chat;
            let place = if *chat == owner.to_string() {
                String::new()
            } else {
                let chat = chats.describe(chat, &cancel).replace('`', "");
                format!(" in the chat `{chat}`")
            };
            let (text, is_whole) = text(pending, &place);
            let question = Question {
                call: pending.id.clone(),
                text,
                owner,
                only_no: !is_whole,
                ..Question::default()
            };
            chats.end_activity(chat);
            let answer = chats.ask(&first, question, &cancel);
            own.show(&first.origin, &Event::TurnStarted);
            answer
        }))
    }
}

/// Returns the question as Markdown, and whether it shows the whole call.
fn text(pending: &PendingCall, place: &str) -> (String, bool) {
    let call = [pending.arguments.as_slice(), &pending.change]
        .concat()
        .join("\n");
    let shown = clip(&call, MAX_SHOWN);
    let hidden = call.chars().count() - shown.chars().count();
    let more = if hidden > 0 {
        format!(
            "\n{hidden} more characters are not shown, so this call can only be refused here. A terminal shows all of it."
        )
    } else {
        String::new()
    };
    let (tool, fence) = (pending.tool.replace('`', ""), fence(shown));
    let text = format!("**May I call `{tool}`{place}?**\n{fence}\n{shown}\n{fence}{more}");
    (text, hidden == 0)
}
