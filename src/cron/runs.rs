//! The record of runs, `cron/runs.jsonl`: a line when one begins, a line when it ends, a line for one that was missed.

use std::path::Path;

use serde_json::Value;

use super::job::{CLOCK_SET_BACK, Job};
use super::schedule::Millis;
use crate::disk::{self, Durability, Fields, Journal, Line};
use crate::error::{Context, Result};

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Running,
    Ok,
    Error,
    /// It began, and whoever ran it died.
    Unknown,
    /// Its time passed while nobody was there.
    Missed,
    /// It was claimed and given back before it began: what is read knows nothing of it.
    Withdrawn,
}

const STATUSES: [Status; 6] =
    [Status::Running, Status::Ok, Status::Error, Status::Unknown, Status::Missed, Status::Withdrawn];

impl Status {
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Unknown => "unknown",
            Self::Missed => "missed",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// How a run ended: well, or with this error.
pub type Outcome = std::result::Result<(), String>;

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub job: String,
    /// When it began; of one that was missed, when that was noticed.
    pub at: Millis,
    pub ended: Option<Millis>,
    pub status: Status,
    pub error: String,
}

impl Run {
    /// Its line in the record.
    pub fn fields(&self) -> Fields {
        let mut line = Fields::new();
        line.insert("job".to_owned(), self.job.as_str().into());
        line.insert("atMs".to_owned(), self.at.into());
        line.insert("status".to_owned(), self.status.name().into());
        if let Some(ended) = self.ended {
            line.insert("endedAtMs".to_owned(), ended.into());
        }
        if !self.error.is_empty() {
            line.insert("error".to_owned(), crate::text::clip(&self.error, MOST_ERROR).into());
        }
        line
    }
}

/// Above this many lines the record is written anew, with its end alone.
const MOST_LINES: usize = 1000;
const KEPT_LINES: usize = 300;
/// What of an error is kept, in bytes.
const MOST_ERROR: usize = 500;

/// When the last run of a job began, or was noticed to be missed. A clock that was set back makes the last one another than
/// the latest: what goes by what elapses wants the one, and a time of day that is not to be run for twice the other.
pub fn served(runs: &[Run], job: &Job, now: Millis) -> Option<Millis> {
    let mut begun = runs.iter().filter(|run| run.job == job.id()).map(|run| run.at);
    if job.schedule().is_ok_and(|schedule| schedule.elapses()) {
        return begun.next_back();
    }
    begun.filter(|at| *at <= now.saturating_add(CLOCK_SET_BACK)).max()
}

/// What has been recorded, the oldest first. Changes nothing and needs no lock.
pub fn read(path: &Path) -> Result<Vec<Run>> {
    let found = disk::read_journal(path).doing("reading the record of runs")?.unwrap_or_default();
    let mut runs: Vec<Run> = Vec::new();
    for Line { fields, .. } in found.lines {
        let number = |name: &str| fields.get(name).and_then(Value::as_i64);
        let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
        let (Some(at), job) = (number("atMs"), text("job")) else { continue };
        let status = STATUSES.iter().find(|status| status.name() == text("status")).copied().unwrap_or(Status::Unknown);
        let (ended, error) = (number("endedAtMs"), text("error").to_owned());
        if status == Status::Withdrawn {
            runs.retain(|run| run.job != job || run.at != at);
            continue;
        }
        // An end belongs to the run that began then.
        match runs.iter_mut().rev().find(|run| ended.is_some() && run.job == job && run.at == at) {
            Some(run) => (run.ended, run.status, run.error) = (ended, status, error),
            None => runs.push(Run { job: job.to_owned(), at, ended, status, error }),
        }
    }
    Ok(runs)
}

/// Appends how a run stands; on disk before this returns. The caller holds the lock.
pub fn record(path: &Path, run: &Run) -> Result<()> {
    let line = run.fields();
    let mut header = Fields::new();
    header.insert("v".to_owned(), 1.into());
    let Some(mut opened) = Journal::open(path)? else { return Journal::create(path, &[header, line]).map(drop) };
    if opened.lines.len() < MOST_LINES {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn run(at: Millis, status: Status, ended: Option<Millis>) -> Run {
        Run { job: "a".into(), at, ended, status, error: String::new() }
    }

    #[test]
    fn a_run_and_its_end_are_one_and_the_record_stays_short() {
        let dir = std::env::temp_dir().join(format!("bantam-runs-{}", std::process::id()));
        let path = dir.join("runs.jsonl");
        assert_eq!(read(&path).unwrap(), []);
        for at in 0..600 {
            record(&path, &run(at, Status::Running, None)).unwrap();
            record(&path, &run(at, Status::Ok, Some(at + 5))).unwrap();
        }
        record(&path, &run(600, Status::Missed, None)).unwrap();
        record(&path, &run(601, Status::Running, None)).unwrap();
        record(&path, &run(602, Status::Running, None)).unwrap();
        record(&path, &run(602, Status::Withdrawn, None)).unwrap();
        let runs = read(&path).unwrap();
        assert!((150..400).contains(&runs.len()), "{}", runs.len());
        assert_eq!(
            runs[runs.len() - 3..],
            [run(599, Status::Ok, Some(604)), run(600, Status::Missed, None), run(601, Status::Running, None)]
        );
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        disk::remove(&dir).unwrap();
    }
}
