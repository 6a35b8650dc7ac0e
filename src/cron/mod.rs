//! Scheduled jobs: `cron/jobs.json` holds them and how each stands, `cron/history.jsonl` what became of their runs.
//!
//! One rule keeps a job from running twice for one time: before a run begins, the job's next time and the status `running`
//! are synced to `jobs.json` ([`Jobs::tick`]). The run itself is a message in the inbox, named by its job and this time, which is
//! resumed after a crash like any other. Every change is made under one lock, so commands and a running gateway see each other's.

mod file;
pub(crate) mod heartbeat;
mod job;
mod jobs;
mod new;
mod runs;
pub(crate) mod schedule;

pub(crate) use job::{Due, Job, JobCheck, is_quiet};
pub(crate) use jobs::{CHANNEL, DueRun, Jobs};
pub(crate) use new::{NewJob, When};
pub(crate) use runs::{Run, RunEnd, RunStatus};

#[cfg(test)]
mod tests;
