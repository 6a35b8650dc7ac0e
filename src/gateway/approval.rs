//! Asks the owner to confirm the calls in `tools.confirm`, with buttons in Telegram.

use std::sync::Arc;

use super::Dispatcher;
use crate::agent::{Confirm, PendingCall};
use crate::bus::{Decision, Event, Inbound, Question};
use crate::cancel::Cancel;
use crate::telegram::Chats;
use crate::text::{clip, fence};

/// Maximum size of a call that a question shows, in bytes; about eight messages. A longer call can only be rejected.
const MAX_SHOWN: usize = 30_000;

/// Context of a turn that may ask.
struct Asker {
    chats: Arc<Chats>,
    owner: i64,
    /// The first message of the turn, which has the question.
    first: Inbound,
    cancel: Cancel,
}

impl Dispatcher {
    /// Returns the callback for a message's turn; `None` if there is no owner to ask.
    pub(super) fn asker(
        self: &Arc<Self>,
        first: &Inbound,
        cancel: &Cancel,
    ) -> Option<Arc<Confirm>> {
        let chats = self.chats_of(&first.origin)?;
        let asker = Asker {
            chats: chats.clone(),
            owner: chats.sender.owner?,
            first: first.clone(),
            cancel: cancel.clone(),
        };
        let own = self.clone();
        Some(Arc::new(move |pending: &PendingCall| {
            own.ask(&asker, pending)
        }))
    }

    /// Asks and waits. Meanwhile, other turns may run, and a crash is not attributed to this turn.
    fn ask(&self, asker: &Asker, pending: &PendingCall) -> Decision {
        let (text, is_whole) = text(asker, pending);
        let question = Question {
            call: pending.id.clone(),
            text,
            owner: asker.owner,
            only_no: !is_whole,
            ..Question::default()
        };
        let (first, chats) = (&asker.first, &asker.chats);
        chats.end_activity(&first.origin.chat);
        let ask = |answered: &Cancel| chats.ask(&first.id, question, answered);
        let answer = self.inbox.ask_user(&first.session, &asker.cancel, ask);
        self.show(&first.origin, Event::TurnStarted);
        answer
    }
}

/// Returns the question as Markdown, and whether it shows the whole call.
fn text(asker: &Asker, pending: &PendingCall) -> (String, bool) {
    let chat = &asker.first.origin.chat;
    let place = if *chat == asker.owner.to_string() {
        String::new()
    } else {
        let chat = asker.chats.describe(chat, &asker.cancel);
        format!(" in the chat `{}`", chat.replace('`', ""))
    };
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
