//! Reports of background tasks in a gateway. Each report is a message in its conversation, which a turn answers.
//!
//! The message is stored when the task starts. Until the task ends, its text reports an interruption, which the next program
//! passes on without repeating the task.

use std::sync::Weak;

use super::Dispatcher;
use crate::agent::{TaskReport, TaskSink};
use crate::bus::{Event, Inbound, Inbox, Origin, Source};
use crate::cancel::Cancel;
use crate::error::{Context, Result};

/// Maximum size of a report that is sent to the user unchanged, in bytes.
pub(super) const MAX_POSTED: usize = 3000;

/// Returns the id of the message that reports on a task.
fn id(task: &str) -> String {
    format!("task:{task}")
}

/// Builds the message of a report.
fn message(report: &TaskReport) -> Inbound {
    Inbound {
        id: id(&report.id),
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

/// The reports of tasks go to the inbox. A dropped dispatcher shows no events.
pub(super) struct Reports(pub Inbox, pub Weak<Dispatcher>);

impl TaskSink for Reports {
    fn begin(&self) -> Cancel {
        self.0.begin_task();
        Cancel::new(None)
    }

    /// Writes to disk before returning.
    fn keep(&self, report: &TaskReport) -> Result<()> {
        let kept = self.0.keep(&[message(report)]);
        kept.doing("storing a background task")
    }

    fn forget(&self, ids: &[String]) -> Result<()> {
        // An answered report is finished already.
        let ids: Vec<String> = ids.iter().map(|task| id(task)).collect();
        let forgotten = self.0.queue.done(&ids);
        forgotten.doing("forgetting a background task")
    }

    fn event(&self, origin: &Origin, event: Event) {
        if let Some(own) = self.1.upgrade() {
            own.show(origin, &event);
        }
    }

    fn end(&self, report: Option<TaskReport>) {
        self.0.push(report.iter().map(message).collect());
        self.0.end_task();
    }
}
