//! The record of runs, `cron/runs.jsonl`: a line for each run that has ended, was cut short or was missed.

use std::path::Path;

use serde_json::Value;

use super::job::Job;
use super::schedule::Millis;
use crate::disk::{self, Durability, Fields, Journal, Line};
use crate::error::{Context, Result};

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Running,
    Ok,
    Error,
    /// The program ended before the run did.
    Unknown,
    /// Its time passed while no gateway was running.
    Missed,
}

impl Status {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Unknown => "unknown",
            Self::Missed => "missed",
        }
    }
}

/// How a run ended: well, or with this error.
pub(super) type Outcome = std::result::Result<(), String>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub job: String,
    /// When it began; for a missed run, when that was noticed.
    pub at: Millis,
    pub ended: Option<Millis>,
    pub status: Status,
    pub error: String,
}

impl Run {
    pub(crate) fn new(job: &Job, at: Millis, status: Status) -> Self {
        Self { job: job.id().to_owned(), at, ended: None, status, error: String::new() }
    }

    /// The run of a job whose state says `running` although no process runs it.
    pub(crate) fn interrupted(job: &Job) -> Self {
        let run = Self::new(job, job.last_run().unwrap_or_default(), Status::Unknown);
        Self { error: "the program ended before the run did".to_owned(), ..run }
    }

    /// The last run of a job, if it is under way or cut short, which the record may not know yet.
    pub(crate) fn unrecorded(job: &Job) -> Option<Self> {
        match job.last_status() {
            "running" => Some(Self::new(job, job.last_run()?, Status::Running)),
            "unknown" => Some(Self::interrupted(job)),
            _ => None,
        }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.at == other.at && self.job == other.job
    }

    /// Its line in the record.
    pub(crate) fn fields(&self) -> Fields {
        let mut line = Fields::new();
        line.insert("job".to_owned(), self.job.as_str().into());
        line.insert("atMs".to_owned(), self.at.into());
        line.insert("status".to_owned(), self.status.name().into());
        if let Some(ended) = self.ended {
            line.insert("endedAtMs".to_owned(), ended.into());
        }
        if !self.error.is_empty() {
            line.insert("error".to_owned(), self.error.as_str().into());
        }
        line
    }
}

/// A record of this many lines is cut to its end.
const MAX_LINES: usize = 1000;
const KEPT_LINES: usize = 300;

/// All runs on record, the oldest first. Changes nothing and takes no lock.
pub(super) fn read(path: &Path) -> Result<Vec<Run>> {
    let found = disk::read_journal(path).doing("reading the record of runs")?.unwrap_or_default();
    let mut runs: Vec<Run> = Vec::new();
    for Line { fields, .. } in found.lines {
        let number = |name: &str| fields.get(name).and_then(Value::as_i64);
        let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some(at) = number("atMs") else { continue };
        let status = match text("status").as_str() {
            "ok" => Status::Ok,
            "error" => Status::Error,
            "missed" => Status::Missed,
            _ => Status::Unknown,
        };
        let run = Run { job: text("job"), at, ended: number("endedAtMs"), status, error: text("error") };
        // A run recorded as unknown may have ended after all.
        match runs.iter_mut().rev().find(|other| other.is(&run)) {
            Some(other) => *other = run,
            None => runs.push(run),
        }
    }
    Ok(runs)
}

/// Appends a run; on disk before this returns. The caller holds the lock.
pub(super) fn record(path: &Path, run: &Run) -> Result<()> {
    let line = run.fields();
    let mut header = Fields::new();
    header.insert("v".to_owned(), 1.into());
    let Some(mut opened) = Journal::open(path)? else { return Journal::create(path, &[header, line]).map(drop) };
    if opened.lines.len() < MAX_LINES {
        return opened.journal.append(&[line], Durability::Now);
    }
    let mut lines = vec![header];
    for kept in opened.lines.drain(opened.lines.len() - KEPT_LINES..) {
        if let Value::Object(mut fields) = kept.fields {
            fields.remove("crc");
            fields.remove("seq");
            lines.push(fields);
        }
    }
    lines.push(line);
    opened.journal.restart(lines)
}
