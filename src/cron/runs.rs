//! The record of runs, `cron/history.jsonl`: each run that has ended, was cut short or was missed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::job::Job;
use super::schedule::Millis;
use crate::error::{Context, Result};
use crate::paths::Home;
use crate::storage::{Entry, Queue};
use crate::text::one_line;

/// The state of a run.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RunStatus {
    Running,
    Ok,
    Error,
    /// Its time passed while no gateway was running.
    Missed,
    /// The program ended before the run did.
    #[serde(other)]
    Unknown,
}

impl RunStatus {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Missed => "missed",
            Self::Unknown => "unknown",
        }
    }
}

/// The answer of a run, or why it failed.
pub(crate) type RunResult = std::result::Result<String, String>;

/// A run, as its line in the record has it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Run {
    pub job: String,
    /// The job's name, for when it is gone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// When it began; for a missed run, when that was noticed.
    #[serde(rename = "atMs")]
    pub at: Millis,
    pub status: RunStatus,
    #[serde(rename = "endedAtMs", skip_serializing_if = "Option::is_none")]
    pub ended: Option<Millis>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// The beginning of the answer, in one line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub answer: String,
}

impl Run {
    pub(crate) fn new(job: &Job, at: Millis, status: RunStatus) -> Self {
        let error = if status == RunStatus::Unknown {
            "the program ended before the run did"
        } else {
            ""
        };
        Self {
            job: job.id().to_owned(),
            name: one_line(job.name(), 80),
            at,
            ended: None,
            status,
            error: error.to_owned(),
            answer: String::new(),
        }
    }

    /// The last run of a job, with another status than the job has.
    pub(crate) fn last(job: &Job, status: RunStatus) -> Self {
        Self::new(job, job.last_run().unwrap_or_default(), status)
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.at == other.at && self.job == other.job
    }
}

/// Runs to remember.
const KEPT_RUNS: usize = 300;
/// Which items of the queue are runs.
const KIND: &str = "run";

/// The runs on record: a queue that runs leave when enough newer ones are there.
#[derive(Clone)]
pub(super) struct Runs(Arc<Queue>);

impl Runs {
    pub(super) fn of(home: &Home) -> Self {
        let queue = Queue::new(home.cron_history(), home.lock("history"), 0);
        Self(Arc::new(queue))
    }

    /// All runs on record, the oldest first. Changes nothing.
    pub(super) fn read(&self) -> Result<Vec<Run>> {
        let entries = self.0.entries(KIND);
        let entries = entries.doing("reading the record of runs")?;
        Ok(entries
            .iter()
            .filter_map(|entry| Run::deserialize(&entry.item).ok())
            .collect())
    }

    /// Records a run, or what became of one; on disk before this returns.
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

/// A run recorded as unknown may have ended after all: then it has the same id.
fn entry(run: &Run) -> Entry {
    Entry::new(&format!("{}:{}", run.job, run.at), KIND, run)
}
