//! Reports of background tasks in a gateway. Each report is a message in its conversation, which a turn answers.
//!
//! The message is stored when the task starts. Until the task ends, its text reports an interruption, which the next program
//! passes on without repeating the task.

use std::sync::Weak;

use super::Dispatcher;
use crate::agent::{TaskReport, TaskSink};
use crate::bus::{Event, Inbound, Origin, Source, message_id};
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::outbox::{Item, Note};
use crate::telegram;
use crate::text::clip;

/// Maximum size of a report that is sent to the user unchanged, in bytes.
pub(super) const MAX_POSTED: usize = 3000;

/// Prefix of the ids of reports.
const CHANNEL: &str = "task";

/// Builds the message of a report.
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

/// Returns the id of the task that a message reports on.
pub(super) fn task_of(message: &Inbound) -> &str {
    let id = message.id.split_once(':');
    id.map_or("", |(_, id)| id)
}

impl Dispatcher {
    /// Posts the report of an earlier program's task to its chat, without a model: otherwise each restart could exceed the
    /// task's limit of requests.
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
        self.poster.post(&Item::text(to, text), ids, Some(&note));
    }
}

/// A dropped dispatcher ignores reports.
impl TaskSink for Weak<Dispatcher> {
    fn begin(&self) -> Cancel {
        if let Some(own) = self.upgrade() {
            own.queues.begin_other();
        }
        Cancel::new(None)
    }

    /// Writes to disk before returning.
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
        // An answered report is finished already.
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
        own.queues.end_other();
    }
}
