//! The record of runs, `cron/runs.jsonl`: a line for each run that has ended, was cut short or was missed.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::job::Job;
use super::schedule::Millis;
use crate::disk::{self, Durability, Journal, Line, fields};
use crate::error::{Context, Result};

/// The state of a run.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Running,
    Ok,
    Error,
    /// Its time passed while no gateway was running.
    Missed,
    /// The program ended before the run did.
    #[serde(other)]
    Unknown,
}

impl Status {
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
pub(crate) type Outcome = std::result::Result<String, String>;

/// A run, as its line in the record has it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Run {
    pub job: String,
    /// When it began; for a missed run, when that was noticed.
    #[serde(rename = "atMs")]
    pub at: Millis,
    pub status: Status,
    #[serde(rename = "endedAtMs", skip_serializing_if = "Option::is_none")]
    pub ended: Option<Millis>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// The beginning of the answer, in one line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub answer: String,
}

impl Run {
    pub(crate) fn new(job: &Job, at: Millis, status: Status) -> Self {
        let error = if status == Status::Unknown {
            "the program ended before the run did"
        } else {
            ""
        };
        Self {
            job: job.id().to_owned(),
            at,
            ended: None,
            status,
            error: error.to_owned(),
            answer: String::new(),
        }
    }

    /// The last run of a job, with another status than the job has.
    pub(crate) fn last(job: &Job, status: Status) -> Self {
        Self::new(job, job.last_run().unwrap_or_default(), status)
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.at == other.at && self.job == other.job
    }
}

/// A record of this many lines is cut to its last runs.
const MAX_LINES: usize = 1000;
const KEPT_RUNS: usize = 300;

/// All runs on record, the oldest first. Changes nothing and takes no lock.
pub(super) fn read(path: &Path) -> Result<Vec<Run>> {
    Ok(runs(
        &disk::read_journal(path)
            .doing("reading the record of runs")?
            .unwrap_or_default()
            .lines,
    ))
}

fn runs(lines: &[Line]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    // The first line is the header, and no run.
    for run in lines
        .iter()
        .filter_map(|line| Run::deserialize(&line.fields).ok())
    {
        // A run recorded as unknown may have ended after all.
        match runs.iter_mut().rev().find(|other| other.is(&run)) {
            Some(other) => *other = run,
            None => runs.push(run),
        }
    }
    runs
}

/// Appends a run; on disk before this returns. The caller holds the lock.
pub(super) fn record(path: &Path, run: &Run) -> Result<()> {
    let mut lines = vec![json!({"v": 1})];
    let opened = Journal::open(path)?;
    if let Some(mut opened) = opened {
        if opened.lines.len() < MAX_LINES {
            return opened
                .journal
                .append(&fields(&[json!(run)]), Durability::Now);
        }
        lines.extend(
            runs(&opened.lines)
                .iter()
                .rev()
                .take(KEPT_RUNS)
                .rev()
                .map(|run| json!(run)),
        );
        lines.push(json!(run));
        return opened.journal.restart(fields(&lines));
    }
    lines.push(json!(run));
    Journal::create(path, &fields(&lines)).map(drop)
}
