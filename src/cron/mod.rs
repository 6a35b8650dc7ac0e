//! Scheduled jobs: `cron/jobs.json` contains the jobs and their state, `cron/history.jsonl` the results of runs.
//!
//! A run is a message in the inbox, named by its job and its due time. It is added before the job's next time is stored, and the
//! inbox ignores a message that it knows, so each due time runs a job once, whenever the program ends. One lock guards all
//! changes, so commands and a running gateway see each other's.

mod file;
pub(crate) mod heartbeat;
mod job;
mod jobs;
mod new;
mod runs;
pub(crate) mod schedule;

pub(crate) use job::{Job, JobCheck, report};
pub(crate) use jobs::{CHANNEL, DueRun, Jobs, MIN_GRACE};
pub(crate) use new::{NewJob, When};
pub(crate) use runs::{Run, RunStatus};

#[cfg(test)]
mod tests;
