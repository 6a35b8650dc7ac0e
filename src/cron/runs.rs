//! The record of runs, `cron/history.jsonl`, with every run that answered or failed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::schedule::Millis;
use crate::bus::JobRun;
use crate::error::{Context, Result};
use crate::paths::Home;
use crate::storage::{Entry, Queue};
use crate::text::to_single_line;

/// The state of a run.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RunStatus {
    Running,
    Ok,
    /// It had nothing to report.
    Quiet,
    /// It did not run: its check said no, or it was too late.
    Skipped,
    #[serde(other)]
    Error,
}

impl RunStatus {
    /// Returns the name that is stored and shown.
    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// A run, as recorded in a line.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Run {
    pub job: String,
    /// Name of the job, for display after the job is deleted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Start of the run.
    #[serde(rename = "atMs")]
    pub at: Millis,
    pub status: RunStatus,
    #[serde(rename = "endedAtMs", skip_serializing_if = "Option::is_none")]
    pub ended: Option<Millis>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Beginning of the answer, in one line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub answer: String,
}

impl Run {
    /// Creates the record of a run that ended at `ended`, with its answer, or the reason why it has none.
    pub(super) fn new(run: &JobRun, status: RunStatus, ended: Option<Millis>, text: &str) -> Self {
        let text = to_single_line(text, 300);
        let (answer, error) = match status {
            RunStatus::Ok => (text, String::new()),
            _ => (String::new(), text),
        };
        Self {
            job: run.job.clone(),
            name: run.name.clone(),
            at: run.at,
            status,
            ended,
            error,
            answer,
        }
    }
}

/// Maximum number of recorded runs.
const KEPT_RUNS: usize = 300;
/// Kind of the queue items that are runs.
const KIND: &str = "run";

/// Recorded runs: a queue that drops the oldest runs.
#[derive(Clone)]
pub(super) struct Runs(Arc<Queue>);

impl Runs {
    pub(super) fn new(home: &Home) -> Self {
        let queue = Queue::new(home.cron_history(), home.lock("history"), 0);
        Self(Arc::new(queue))
    }

    /// Returns all recorded runs, the oldest first. Changes nothing.
    pub(super) fn read(&self) -> Result<Vec<Run>> {
        let entries = self.0.select(KIND, &mut |_| true);
        let entries = entries.doing("reading the record of runs")?;
        let run = |entry: Entry| Run::deserialize(entry.item).ok();
        Ok(entries.into_iter().filter_map(run).collect())
    }

    /// Adds or updates the record of a run, on disk before this returns.
    pub(super) fn record(&self, run: &Run) -> Result<()> {
        let new = Entry::new(&format!("{}:{}", run.job, run.at), KIND, run);
        let others = self.0.select(KIND, &mut |entry| entry.id != new.id)?;
        let mut old: Vec<String> = others.into_iter().map(|entry| entry.id).collect();
        old.truncate((old.len() + 1).saturating_sub(KEPT_RUNS));
        self.0.add(&[new], &old)
    }
}
