//! Asks the owner to confirm the calls in `tools.confirm`, with buttons in Telegram.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use super::Dispatcher;
use super::answer::TurnIds;
use crate::agent::{Confirm, Decision, PendingCall};
use crate::bus::{Event, Inbound, Origin};
use crate::cancel::Cancel;
use crate::sync;
use crate::telegram::Chats;
use crate::telegram::ask::{Answer, Question};
use crate::text::{clip, fence};

/// Maximum size of a call that a question shows, in bytes; about eight messages. A longer call can only be rejected.
const MAX_SHOWN: usize = 30_000;

/// Context of a turn that may ask.
struct Asker {
    chats: Arc<Chats>,
    owner: i64,
    /// The conversation and its chat.
    session: String,
    origin: Origin,
    /// Messages of the turn so far.
    ids: TurnIds,
    /// Whether the turn has crashed the program before.
    is_suspect: bool,
    cancel: Cancel,
}

impl Dispatcher {
    /// Returns the callback for a message's turn; `None` if there is no owner to ask.
    pub(super) fn asker(
        self: &Arc<Self>,
        message: &Inbound,
        ids: &TurnIds,
        cancel: &Cancel,
    ) -> Option<Arc<Confirm>> {
        let chats = self.chats_of(&message.origin)?;
        let asker = Asker {
            chats: chats.clone(),
            owner: chats.sender.owner?,
            session: message.session.clone(),
            origin: message.origin.clone(),
            ids: ids.clone(),
            is_suspect: message.starts > 0,
            cancel: cancel.clone(),
        };
        let own = self.clone();
        Some(Arc::new(move |pending: &PendingCall| {
            own.ask(&asker, pending)
        }))
    }

    fn asking(&self) -> MutexGuard<'_, HashMap<String, bool>> {
        sync::lock(&self.asking)
    }

    /// Asks and waits. Meanwhile, other turns may run, and a crash is not attributed to this turn.
    fn ask(&self, asker: &Asker, pending: &PendingCall) -> Decision {
        let (text, is_whole) = text(asker, pending);
        let ids = asker.ids.all();
        let mut question = Question::new(asker.owner, &ids, &pending.id, text);
        question.only_no = !is_whole;
        let wait = || asker.chats.ask(question, &asker.cancel);
        self.suspend(&ids);
        asker.chats.end_activity(&asker.origin.chat);
        let session = asker.session.clone();
        self.asking().insert(session.clone(), false);
        let answer = self.turns.without(|| {
            if asker.is_suspect {
                self.alone.without(wait)
            } else {
                wait()
            }
        });
        self.asking().remove(&session);
        self.start(&asker.origin, &ids);
        self.show(&asker.origin, Event::TurnStarted);
        match answer {
            Answer::Yes => Decision::Yes,
            Answer::Always => Decision::Always,
            Answer::No => Decision::No,
            Answer::None => Decision::Unanswered,
        }
    }
}

/// Returns the question as Markdown, and whether it shows the whole call.
fn text(asker: &Asker, pending: &PendingCall) -> (String, bool) {
    let chat = &asker.origin.chat;
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
            "\n{hidden} more characters are not shown, so this call can only be refused here: a terminal shows all of it."
        )
    } else {
        String::new()
    };
    let (tool, fence) = (pending.tool.replace('`', ""), fence(shown));
    let text = format!("**May I call `{tool}`{place}?**\n{fence}\n{shown}\n{fence}{more}");
    (text, hidden == 0)
}
