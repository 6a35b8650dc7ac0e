//! The record of runs, `cron/history.jsonl`, with every finished, interrupted or missed run.

use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::job::Job;
use super::schedule::{Millis, millis};
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
    /// The run had nothing to report.
    Quiet,
    Error,
    /// The check of the job prevented the run.
    Skipped,
    /// No gateway was running at its time.
    Missed,
    /// The program ended during the run, too long ago to resume it.
    #[serde(other)]
    Interrupted,
}

impl RunStatus {
    /// Returns the name that is stored and shown.
    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RunEnd {
    Answered(String),
    /// The run had nothing to report.
    Quiet,
    /// The run failed for this reason.
    Failed(String),
    /// The program ended during the run, too long ago to resume it.
    Interrupted,
}

impl RunEnd {
    /// Creates the record of a run that ends now.
    pub(super) fn run(&self, run: &JobRun, name: &str) -> Run {
        let (status, answer, error) = match self {
            Self::Answered(answer) => (RunStatus::Ok, answer.as_str(), ""),
            Self::Quiet => (RunStatus::Quiet, "", ""),
            Self::Failed(why) => (RunStatus::Error, "", why.as_str()),
            Self::Interrupted => (RunStatus::Interrupted, "", CUT_SHORT),
        };
        let ended = (*self != Self::Interrupted).then(|| millis(SystemTime::now()));
        Run {
            job: run.job.clone(),
            name: name.to_owned(),
            at: run.at,
            status,
            ended,
            error: to_single_line(error, 300),
            answer: to_single_line(answer, 300),
        }
    }
}

const CUT_SHORT: &str = "the program ended before the run did";

/// A run, as recorded in a line.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Run {
    pub job: String,
    /// Name of the job, for display after the job is deleted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Start of the run; for a missed run, the time when that was detected.
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
    pub(crate) fn new(job: &Job, at: Millis, status: RunStatus) -> Self {
        let error = match status {
            RunStatus::Interrupted => CUT_SHORT,
            _ => "",
        };
        Self {
            job: job.id().to_owned(),
            name: to_single_line(job.name(), 80),
            at,
            ended: None,
            status,
            error: error.to_owned(),
            answer: String::new(),
        }
    }

    /// Creates the record of a job's last run with this status.
    pub(crate) fn last(job: &Job, status: RunStatus) -> Self {
        Self::new(job, job.last_run().unwrap_or_default(), status)
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.at == other.at && self.job == other.job
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
        let entries = self.0.entries(KIND);
        let entries = entries.doing("reading the record of runs")?;
        Ok(entries
            .iter()
            .filter_map(|entry| Run::deserialize(&entry.item).ok())
            .collect())
    }

    /// Adds or updates the record of a run, on disk before this returns.
    pub(super) fn record(&self, run: &Run) -> Result<()> {
        let new = entry(run);
        let others = self.0.entries(KIND)?.into_iter();
        let mut old: Vec<String> = others
            .map(|entry| entry.id)
            .filter(|id| *id != new.id)
            .collect();
        old.truncate((old.len() + 1).saturating_sub(KEPT_RUNS));
        self.0.add_for(&[new], &old)
    }
}

fn entry(run: &Run) -> Entry {
    Entry::new(&format!("{}:{}", run.job, run.at), KIND, run)
}
