//! Adds runs of jobs and heartbeats to the inbox when they are due.
//!
//! A board without a battery may start with the time set to 1970. Jobs wait until the time is set; every wake-up of this thread
//! checks it again.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::thread::Builder;
use std::time::{Duration, SystemTime};

use super::Dispatcher;
use super::monitor::Owner;
use super::run::{now, run_message};
use crate::access;
use crate::bus::Inbound;
use crate::cron::schedule::EARLIEST;
use crate::cron::{DueRun, Job, heartbeat};
use crate::error::{Context, Result};
use crate::log::{Level, Logger, log_error};
use crate::paths::Home;
use crate::session::archive;
use crate::timezone::Zone;

/// Maximum time between two checks of the jobs, because a signal may be lost.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// Interval for removing old conversations, in milliseconds.
const REMOVAL_INTERVAL: i64 = 24 * 3600 * 1000;
/// Delay of a new check after an error, in milliseconds.
const RETRY: i64 = 60_000;

/// Adds due jobs and heartbeats.
pub(crate) struct Clock {
    pub dispatcher: Arc<Dispatcher>,
    /// Whether jobs run.
    pub runs_jobs: bool,
    /// The built-in job, if heartbeats are enabled.
    pub heartbeat: Option<Job>,
    /// Chat of jobs without one.
    pub to: Option<String>,
    pub zone: Zone,
    /// Retention time of unnamed conversations; zero is unlimited.
    pub keep: Duration,
    pub log: Logger,
    pub owner: Owner,
    /// Wakes the clock when the jobs or the time may have changed.
    pub wake: SyncSender<()>,
    pub changed: Receiver<()>,
}

impl Clock {
    /// Starts the clock's thread.
    pub(crate) fn start(self) -> Result<()> {
        let wake = self.wake.clone();
        let stop = self.dispatcher.cancel.on_stop(move || {
            // If the channel is full, a wake-up is already pending.
            let _full = wake.try_send(());
        });
        let work = move || {
            self.run();
            drop(stop);
        };
        let thread = Builder::new().spawn(work);
        thread.map(drop).doing("starting a thread")
    }

    /// Whether the configuration needs the clock.
    pub(crate) fn has_work(&self) -> bool {
        self.runs_jobs || self.heartbeat.is_some() || !self.keep.is_zero()
    }

    fn home(&self) -> &Home {
        &self.dispatcher.outbox.home
    }

    fn run(self) {
        let (mut was_set, mut beat_at, mut removed_at) = (true, None, None);
        let mut problems = Vec::new();
        while self.dispatcher.cancel.reason().is_none() {
            let now = now();
            let is_set = now >= EARLIEST;
            if is_set != was_set {
                let what = if is_set {
                    "has been set: jobs run"
                } else {
                    "is not set: no job runs until it is"
                };
                let shown = self.zone.stamp(now / 1000);
                (self.log)(Level::Warn, &format!("the clock {what}; it shows {shown}"));
                was_set = is_set;
            }
            let mut next = None;
            if is_set {
                if removed_at.is_none_or(|at: i64| now.saturating_sub(at) >= REMOVAL_INTERVAL) {
                    self.remove_expired();
                    removed_at = Some(now);
                }
                let job_at = self.tick(now, &mut problems);
                beat_at = self.beat(now, beat_at);
                next = [job_at, beat_at].into_iter().flatten().min();
            }
            let left =
                |at: i64| Duration::from_millis(u64::try_from(at.saturating_sub(now)).unwrap_or(0));
            // The extra time prevents a rounded wait from ending too early.
            let wait = next.map_or(MAX_WAIT, left).min(MAX_WAIT) + Duration::from_millis(2);
            let _timeout = self.changed.recv_timeout(wait);
            while self.changed.try_recv().is_ok() {}
        }
    }

    /// Removes old, unused conversations of jobs and questions.
    fn remove_expired(&self) {
        if !self.keep.is_zero() {
            let removed = archive::remove_expired(self.home(), self.keep, SystemTime::now());
            log_error(&self.log, removed.doing("removing old conversations"));
        }
    }

    /// Adds due runs, and returns the time of the next check. Reports new problems; `known` are those of the last check.
    fn tick(&self, now: i64, known: &mut Vec<String>) -> Option<i64> {
        if !self.runs_jobs {
            return None;
        }
        let runner = self.dispatcher.runner.as_ref()?;
        let start = |due: &DueRun| self.add(run_message(self.home(), due, self.to.clone())?);
        let ticked = runner.jobs.tick(now, runner.grace, &start);
        let (next, problems) = ticked.unwrap_or_else(|e| (Some(now + RETRY), vec![e.message]));
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            self.owner.report(problem);
        }
        *known = problems;
        next
    }

    fn add(&self, message: Inbound) -> Result<()> {
        match self.dispatcher.inbox.add(message) {
            // The next start adds the run again.
            Err(_) if self.dispatcher.cancel.reason().is_some() => Ok(()),
            added => added.map(drop).doing("starting a job"),
        }
    }

    /// Adds a heartbeat if the time `beat_at` has passed, and returns the time of the next heartbeat.
    fn beat(&self, now: i64, beat_at: Option<i64>) -> Option<i64> {
        let job = self.heartbeat.as_ref()?;
        if let Some(due) = beat_at.filter(|at| *at <= now) {
            let file = access::read_untrusted(&self.home().agent(), "HEARTBEAT.md");
            let file = log_error(&self.log, file.doing("reading agent/")).flatten();
            if let Some(text) = file.and_then(|file| heartbeat::question(&file)) {
                let job = job.clone();
                let message = run_message(self.home(), &DueRun { job, due }, None);
                let add = |message| self.add(Inbound { text, ..message });
                log_error(&self.log, message.and_then(add));
            }
        }
        log_error(&self.log, job.due(now, 0, &self.zone)).flatten()
    }
}
