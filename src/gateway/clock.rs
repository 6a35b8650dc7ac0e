//! Adds scheduled jobs and heartbeats to the inbox when they are due.
//!
//! A board without a battery may start with the time set to 1970. Jobs wait until the time is set; every wake-up of this thread
//! checks it again.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::thread::Builder;
use std::time::{Duration, SystemTime};

use super::run::{RunStarter, now};
use crate::access;
use crate::bus::{Inbox, Source};
use crate::cron::schedule::EARLIEST;
use crate::cron::{DueRun, Job, heartbeat};
use crate::error::{Context, Result};
use crate::log::{Level, log_error};
use crate::session::archive;
use crate::text::to_single_line;
use crate::timezone::Zone;

/// Maximum time between two checks of the jobs, because a signal may be lost.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// Interval for removing old conversations, in milliseconds.
const REMOVAL_INTERVAL: i64 = 24 * 3600 * 1000;
/// Delay of a new check after an error, in milliseconds.
const RETRY: i64 = 60_000;

/// Report on an interrupted run that is not resumed.
const INTERRUPTED: &str = "was interrupted when the program ended; what it did is unknown.";

/// Posts a text to a chat.
pub(crate) type Post = dyn Fn(&str, &str) + Send;

/// Adds due jobs and heartbeats.
pub(crate) struct Clock {
    pub starter: Arc<RunStarter>,
    /// Time in milliseconds after which a run that has not started is missed, and an interrupted run is not resumed.
    pub grace: i64,
    pub post: Box<Post>,
    pub zone: Zone,
    /// Retention time of unnamed conversations; zero is unlimited.
    pub keep: Duration,
    /// Whether scheduled jobs run.
    pub runs_jobs: bool,
    /// The built-in job, if heartbeats are enabled.
    pub heartbeat: Option<Job>,
    /// Wakes the clock when the jobs or the time may have changed.
    pub wake: SyncSender<()>,
    pub changed: Receiver<()>,
}

impl Clock {
    /// Starts the clock's thread.
    pub(crate) fn start(self, inbox: Inbox) -> Result<()> {
        let wake = self.wake.clone();
        let stop = self.starter.cancel.on_stop(move || {
            // If the channel is full, a wake-up is already pending.
            let _full = wake.try_send(());
        });
        let work = move || {
            self.run(&inbox);
            drop(stop);
        };
        let thread = Builder::new().spawn(work);
        thread.map(drop).doing("starting a thread")
    }

    /// Whether the configuration needs the clock.
    pub(crate) fn has_work(&self) -> bool {
        self.runs_jobs || self.heartbeat.is_some() || !self.keep.is_zero()
    }

    fn run(self, inbox: &Inbox) {
        let (mut was_set, mut beat_at, mut removed_at) = (true, None, None);
        while self.starter.cancel.reason().is_none() {
            let now = now();
            let is_set = now >= EARLIEST;
            if is_set != was_set {
                let what = if is_set {
                    "has been set: jobs run"
                } else {
                    "is not set: no job runs until it is"
                };
                (self.starter.log)(
                    Level::Warn,
                    &format!("the clock {what}; it shows {}", self.zone.stamp(now / 1000)),
                );
                was_set = is_set;
            }
            let mut next = None;
            if is_set {
                if removed_at.is_none_or(|at: i64| now.saturating_sub(at) >= REMOVAL_INTERVAL) {
                    self.remove_expired();
                    removed_at = Some(now);
                }
                let job_at = if self.runs_jobs {
                    self.tick(now, inbox)
                } else {
                    None
                };
                beat_at = self.beat(now, beat_at, inbox);
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
            let removed =
                archive::remove_expired(self.starter.jobs.home(), self.keep, SystemTime::now());
            log_error(
                &self.starter.log,
                removed.doing("removing old conversations"),
            );
        }
    }

    /// Adds due runs, reports missed and interrupted jobs, and returns the time of the next check.
    fn tick(&self, now: i64, inbox: &Inbox) -> Option<i64> {
        // Read before the jobs. A check that ends in between has added its run by then, and still counts as running here.
        let checking = self.starter.checking().clone();
        let Some(tick) = log_error(
            &self.starter.log,
            self.starter.jobs.tick(now, self.grace, &checking),
        ) else {
            return Some(now + RETRY);
        };
        for broken in &tick.broken {
            (self.starter.log)(Level::Error, broken);
        }
        for (job, at) in &tick.missed {
            let at = self.zone.stamp(at / 1000);
            self.report(job.to(), job.name(), &format!("was missed at {at}."));
        }
        for job in &tick.interrupted {
            self.report(job.to(), job.name(), INTERRUPTED);
        }
        let mut next = tick.next;
        for due in tick.started {
            let started = self.starter.start(due, inbox);
            if log_error(&self.starter.log, started).is_none() {
                next = next.min(Some(now + RETRY)).or(Some(now + RETRY));
            }
        }
        next
    }

    /// Ends runs that were interrupted too long ago, before the others are resumed.
    pub(crate) fn end_old_runs(&self) {
        let now = now();
        if now < EARLIEST {
            return;
        }
        let ended = log_error(
            &self.starter.log,
            self.starter.jobs.end_old(now - self.grace),
        );
        for message in ended.into_iter().flatten() {
            match &message.source {
                // The next heartbeat repeats the check.
                Source::Job(run) if run.job != heartbeat::ID => {
                    self.report(message.reply_to.clone(), &run.name, INTERRUPTED);
                }
                _ => {}
            }
        }
    }

    /// Logs an event of a job, and posts it to the job's chat.
    fn report(&self, to: Option<String>, name: &str, what: &str) {
        let text = format!("The job “{}” {what}", to_single_line(name, 80));
        (self.starter.log)(Level::Warn, &text);
        if let Some(to) = to {
            (self.post)(&to, &text);
        }
    }

    /// Adds a heartbeat if the time `beat_at` has passed, and returns the time of the next heartbeat.
    fn beat(&self, now: i64, beat_at: Option<i64>, inbox: &Inbox) -> Option<i64> {
        let job = self.heartbeat.as_ref()?;
        if beat_at.is_some_and(|at| at <= now) {
            let file = access::read_untrusted(&self.starter.jobs.home().agent(), "HEARTBEAT.md");
            let file = log_error(&self.starter.log, file.doing("reading agent/")).flatten();
            if let Some(question) = file.and_then(|file| heartbeat::question(&file)) {
                let job = job.clone();
                let due = DueRun { job, at: now };
                log_error(&self.starter.log, self.starter.add(&due, question, inbox));
            }
        }
        log_error(&self.starter.log, job.schedule())?.next(now, &self.zone)
    }
}
