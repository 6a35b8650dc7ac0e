//! The reports of background tasks in a gateway: each comes back as a message of its conversation, and a turn answers it.
//!
//! The store holds that message from the begin of the task on. Until the task ends, its text says that the task was
//! interrupted: the next program passes it on, and runs nothing again.

use std::sync::Weak;

use super::Dispatcher;
use crate::agent::{TaskReport, TaskSink};
use crate::bus::{Event, Inbound, Origin, Source, message_id};
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::outbox::{Item, Note};
use crate::telegram;
use crate::text::clip;

/// The longest report that goes to the user as it is, in bytes.
pub(super) const MAX_POSTED: usize = 3000;

/// Begins the ids of reports.
const CHANNEL: &str = "task";

/// The message of a report.
fn message(report: &TaskReport) -> Inbound {
    let Origin { channel, chat } = &report.origin;
    Inbound {
        id: message_id(CHANNEL, &report.id),
        reply_to: (channel == telegram::CHANNEL).then(|| format!("{channel}:{chat}")),
        source: Source::Task,
        ..Inbound::message(
            report.origin.clone(),
            report.session.clone(),
            report.text.clone(),
        )
    }
}

/// The id of the task whose report a message is.
pub(super) fn task_of(message: &Inbound) -> &str {
    let id = message.id.split_once(':');
    id.map_or("", |(_, id)| id)
}

impl Dispatcher {
    /// Gives the report of a task of an earlier program to its chat. No model is asked: with each restart, its message would cause
    /// more calls than it may.
    pub(super) fn pass_on(&self, report: &Inbound) {
        let text = clip(&report.text, MAX_POSTED);
        let Some(to) = &report.reply_to else {
            return self.reply(report, text);
        };
        let note = Note {
            title: "This was sent to the chat",
            from: "",
            text: &report.text,
        };
        let ids = std::slice::from_ref(&report.id);
        self.poster.post(Item::text(to, text), ids, Some(&note));
    }
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
        let kept = own.store.keep(&[message(report)]);
        kept.doing("storing a background task")
    }

    fn forget(&self, ids: &[String]) -> Result<()> {
        let Some(own) = self.upgrade() else {
            return Ok(());
        };
        // The answer has ended it where there is one.
        let ids: Vec<String> = ids.iter().map(|id| message_id(CHANNEL, id)).collect();
        let forgotten = own.store.finish(&ids);
        forgotten.doing("forgetting a background task")
    }

    fn event(&self, origin: &Origin, event: Event) {
        if let Some(own) = self.upgrade() {
            own.show(origin, event);
        }
    }

    fn end(&self, report: Option<TaskReport>) {
        let Some(own) = self.upgrade() else { return };
        if let Some(report) = report {
            own.enqueue(message(&report));
        }
        own.queues.task_ends();
    }
}
