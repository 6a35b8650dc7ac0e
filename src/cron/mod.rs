//! Scheduled jobs: `cron/jobs.json` is the truth about them, `cron/runs.jsonl` tells what became of them.
//!
//! A run is claimed before it begins and finished after its end ([`Jobs::claim`], [`Jobs::finish`]). The claim is on disk,
//! and the job's next time with it, before the run begins: a crash neither loses it from sight nor runs it twice. Every
//! change is made under one lock, so commands and a gateway that runs at the same time see each other's.

pub mod heartbeat;
mod job;
mod jobs;
mod runs;
pub mod schedule;

pub use job::{Due, Job};
pub use jobs::{Author, Claim, Draft, Jobs, Looked, OneShots, Trigger, When};
pub use runs::{Outcome, Run, Status};
