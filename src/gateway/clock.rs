//! The clock: starts scheduled jobs and heartbeats when they are due, and sends them to the dispatcher.
//!
//! A board without a battery may start with a clock that shows 1970. Nothing runs by such a clock; whatever wakes this one
//! makes it look again.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::thread::Builder;
use std::time::{Duration, SystemTime};

use super::run::{JobRunner, now};
use crate::access;
use crate::bus::{Channel, Inbound, Outbound};
use crate::cron::schedule::EARLIEST;
use crate::cron::{ActiveRun, Job, heartbeat};
use crate::error::{Context, Result};
use crate::log::Level;
use crate::session::archive;
use crate::timezone::Zone;

/// The longest time between two checks of the jobs: a signal may get lost.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// How often to remove old conversations, in milliseconds.
const TIDY: i64 = 24 * 3600 * 1000;
/// How soon to check again, in milliseconds, after an error.
const RETRY: i64 = 60_000;

/// A channel that sends due jobs and heartbeats, and shows nothing.
pub(crate) struct Clock {
    pub runs: Arc<JobRunner>,
    pub zone: Zone,
    /// How long conversations that nobody named are kept; zero for ever.
    pub keep: Duration,
    /// Whether scheduled jobs run.
    pub runs_jobs: bool,
    /// The built-in job, if heartbeats are switched on.
    pub heartbeat: Option<Job>,
    /// Wakes the clock when the jobs or the time may have changed.
    pub wake: SyncSender<()>,
    pub changed: Receiver<()>,
}

impl Channel for Clock {
    fn start(self: Box<Self>, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let wake = self.wake.clone();
        let stop = self.runs.cancel.on_stop(move || {
            // A full channel holds a wake-up already.
            let _full = wake.try_send(());
        });
        let work = move || {
            self.run(&inbound);
            drop(stop);
        };
        Builder::new().spawn(work).doing("starting a thread")?;
        Ok(channel().0)
    }
}

impl Clock {
    fn run(self, inbound: &Sender<Inbound>) {
        let (mut was_set, mut beat_at, mut tidied_at) = (true, None, None);
        while self.runs.cancel.reason().is_none() {
            let now = now();
            let is_set = now >= EARLIEST;
            if is_set != was_set {
                let what = if is_set {
                    "has been set: jobs run"
                } else {
                    "is not set: no job runs until it is"
                };
                (self.runs.log)(
                    Level::Warn,
                    &format!("the clock {what}; it shows {}", self.zone.stamp(now / 1000)),
                );
                was_set = is_set;
            }
            let mut next = None;
            if is_set {
                if tidied_at.is_none_or(|at: i64| now.saturating_sub(at) >= TIDY) {
                    self.tidy();
                    tidied_at = Some(now);
                }
                let job_at = if self.runs_jobs {
                    self.tick(now, inbound)
                } else {
                    None
                };
                beat_at = self.beat(now, beat_at, inbound);
                next = [job_at, beat_at].into_iter().flatten().min();
            }
            let left =
                |at: i64| Duration::from_millis(u64::try_from(at.saturating_sub(now)).unwrap_or(0));
            // The extra time keeps a rounded wait from ending just before its time.
            let wait = next.map_or(MAX_WAIT, left).min(MAX_WAIT) + Duration::from_millis(2);
            let _timeout = self.changed.recv_timeout(wait);
            while self.changed.try_recv().is_ok() {}
        }
    }

    /// Removes conversations of jobs and questions that nobody has used for long.
    fn tidy(&self) {
        if !self.keep.is_zero() {
            let tidied = archive::tidy(&self.runs.home, self.keep, SystemTime::now());
            self.runs.logged(tidied.doing("removing old conversations"));
        }
    }

    /// Sends what is due, reports missed and interrupted jobs, and returns when to check again.
    fn tick(&self, now: i64, inbound: &Sender<Inbound>) -> Option<i64> {
        let runs = &self.runs;
        let Some(tick) = runs.logged(runs.jobs.tick(now, runs.grace)) else {
            return Some(now + RETRY);
        };
        for broken in &tick.broken {
            (runs.log)(Level::Error, broken);
        }
        for (job, at) in &tick.missed {
            runs.report(
                job,
                &format!("was missed at {}.", self.zone.stamp(at / 1000)),
            );
        }
        runs.settle(&tick.interrupted);
        for run in tick.started {
            runs.logged(runs.start(run, inbound));
        }
        tick.next
    }

    /// Sends the heartbeat that was to come at the time `beat_at` if that has passed, and returns when the next one is.
    fn beat(&self, now: i64, beat_at: Option<i64>, inbound: &Sender<Inbound>) -> Option<i64> {
        let job = self.heartbeat.as_ref()?;
        if beat_at.is_some_and(|at| at <= now) {
            let file = access::read_untrusted(&self.runs.home.agent(), "HEARTBEAT.md");
            let file = self.runs.logged(file.doing("reading agent/")).flatten();
            if let Some(question) = file.and_then(|file| heartbeat::question(&file)) {
                let run = ActiveRun::unlocked(job.clone(), now);
                self.runs.logged(self.runs.send(run, question, inbound));
            }
        }
        self.runs.logged(job.schedule())?.next(now, &self.zone)
    }
}
