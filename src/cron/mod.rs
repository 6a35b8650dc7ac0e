//! Scheduled jobs: `cron/jobs.json` contains the jobs and their state, `cron/history.jsonl` the results of runs.
//!
//! Each due time runs a job at most once, because the job's next time and the status `running` are synced to `jobs.json` before
//! the run begins ([`Jobs::tick`]). The run itself is a message in the inbox, named by its job and this time, and is resumed
//! after a crash like other messages. One lock guards all changes, so commands and a running gateway see each other's.

mod file;
pub(crate) mod heartbeat;
mod job;
mod jobs;
mod new;
mod runs;
pub(crate) mod schedule;

pub(crate) use job::{Due, Job, JobCheck, report};
pub(crate) use jobs::{CHANNEL, DueRun, Jobs};
pub(crate) use new::{NewJob, When};
pub(crate) use runs::{Run, RunEnd, RunStatus};

#[cfg(test)]
mod tests;
