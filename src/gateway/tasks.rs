//! The reports of background tasks in a gateway: each comes back as a message of its conversation, and a turn answers it.
//!
//! The queue holds what the user gets if the program ends before that: the report or, while the task runs, that it was
//! interrupted. The next program posts it and runs nothing again.

use std::sync::Weak;

use super::Dispatcher;
use crate::agent::{TaskReport, TaskSink};
use crate::bus::{Event, Inbound, Kind, Origin};
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::outbox::{Item, Note, Outbox};
use crate::paths::telegram_chat;
use crate::storage::Entry;
use crate::text::clip;

/// The longest report that goes to the user instead, in bytes.
const MAX_POSTED: usize = 3000;

/// Which items of the queue are background tasks.
const KIND: &str = "task";

/// Posts the reports that an earlier program left to their chats, and notes them in the conversations.
pub(crate) fn post_left_reports(outbox: &Outbox) -> Result<()> {
    for entry in outbox.queue().entries(KIND)? {
        let mut item: Item = entry.read();
        let text = std::mem::take(&mut item.text);
        clip(&text, MAX_POSTED).clone_into(&mut item.text);
        let told = Note {
            title: "This was sent to the chat",
            from: "",
            text: &text,
        };
        if telegram_chat(&item.to).is_ok() {
            outbox.post_and_note(&item, &[entry.id], &told)?;
        } else {
            outbox.queue().done(&[entry.id])?;
        }
    }
    Ok(())
}

/// A dispatcher that has gone needs no reports.
impl TaskSink for Weak<Dispatcher> {
    fn begin(&self) -> Cancel {
        if let Some(own) = self.upgrade() {
            own.queues.task_begins();
        }
        Cancel::new(None)
    }

    /// On disk when this returns.
    fn keep(&self, report: &TaskReport) -> Result<()> {
        let Some(own) = self.upgrade() else {
            return Ok(());
        };
        let to = format!("{}:{}", report.origin.channel, report.origin.chat);
        let item = Item::text(&to, &report.text);
        let stored = own
            .runs
            .outbox
            .queue()
            .add(&[Entry::new(&report.id, KIND, &item)]);
        stored.doing("storing a background task")
    }

    fn forget(&self, ids: &[String]) -> Result<()> {
        let Some(own) = self.upgrade() else {
            return Ok(());
        };
        let queue = own.runs.outbox.queue();
        // The answer has ended it where there is one.
        let open = queue.find(ids)?;
        let ids: Vec<String> = open.into_iter().map(|entry| entry.id).collect();
        queue.done(&ids).doing("forgetting a background task")
    }

    fn event(&self, origin: &Origin, event: Event) {
        if let Some(own) = self.upgrade() {
            own.show(origin, event);
        }
    }

    fn end(&self, report: Option<TaskReport>) {
        let Some(own) = self.upgrade() else { return };
        if let Some(report) = report {
            own.enqueue(Inbound {
                kind: Kind::Report,
                ids: vec![report.id],
                ..Inbound::message(report.origin, report.session, report.text)
            });
        }
        own.queues.task_ends();
    }
}
