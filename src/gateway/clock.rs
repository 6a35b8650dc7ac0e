//! The clock: sends scheduled jobs and heartbeats to the dispatcher when they are due.
//!
//! A board without a battery starts with a clock that shows 1970, or the time of its last shutdown, until NTP sets it. Jobs
//! wait two minutes at most for that; then they run by the clock as it is, except one-shot jobs, which wait until it is set.
//! A plausible clock is used at once, even if the kernel calls it unsynchronised: containers and boards without NTP have
//! such clocks.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use super::run::{Run, RunContext, now};
use crate::beneath;
use crate::bus::{Channel, Inbound, Outbound};
use crate::cron::schedule::PLAUSIBLE;
use crate::cron::{Due, Job, Tick, heartbeat};
use crate::error::{Context, Result};
use crate::log::Level;
use crate::sys;
use crate::zone::Zone;

/// The longest time between two checks of the jobs: a signal may get lost.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// How soon to check again, in milliseconds, after an error or while a due job waits for a worker.
const RETRY: i64 = 60_000;
/// How long to wait for a clock to be set.
const UNSET_WAIT: Duration = Duration::from_secs(120);

/// Whether the clock can be right. `earliest` is the latest time known to have passed; a synchronised clock may show an
/// earlier time, because the clock that recorded `earliest` may have been fast.
fn is_plausible(now: i64, earliest: i64, is_synchronised: bool) -> bool {
    is_synchronised || now >= earliest
}

/// A channel that sends due jobs and heartbeats, and shows nothing.
pub(crate) struct Clock {
    pub context: Arc<RunContext>,
    pub zone: Zone,
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
        let stop = self.context.cancel.on_stop(move || {
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
    fn run(mut self, inbound: &Sender<Inbound>) {
        let started = Instant::now();
        let earliest = self.context.jobs.written().map_or(PLAUSIBLE, |written| written.max(PLAUSIBLE));
        let (mut was_plausible, mut queued) = (true, BTreeMap::new());
        while self.context.cancel.why().is_none() {
            let is_plausible = is_plausible(now(), earliest, sys::clock_is_synchronised());
            let mut wait = if is_plausible { Duration::ZERO } else { UNSET_WAIT.saturating_sub(started.elapsed()) };
            if wait.is_zero() {
                if is_plausible != was_plausible {
                    was_plausible = is_plausible;
                    self.log_clock(is_plausible, earliest);
                }
                let due = if self.runs_jobs { self.tick(is_plausible, inbound, &mut queued) } else { None };
                let next = [due, self.beat(inbound)];
                wait = next.into_iter().flatten().min().map_or(MAX_WAIT, |at| {
                    Duration::from_millis(u64::try_from(at.saturating_sub(now())).unwrap_or(0)).min(MAX_WAIT)
                });
            }
            // The extra time keeps a rounded wait from ending just before its time.
            let _timeout = self.changed.recv_timeout(wait + Duration::from_millis(2));
            while self.changed.try_recv().is_ok() {}
        }
    }

    fn log_clock(&self, is_plausible: bool, earliest: i64) {
        let text = if is_plausible {
            "the clock has been set: all jobs run again".to_owned()
        } else {
            format!(
                "the clock shows {}, which is before {}: jobs for a single time wait until it is set, others run by it",
                self.zone.stamp(now() / 1000),
                self.zone.stamp(earliest / 1000)
            )
        };
        (self.context.log)(Level::Warn, &text);
    }

    /// Sends due jobs, reports missed and interrupted ones, and returns when to check again. `queued` holds the runs that were
    /// sent, by the ids of their jobs.
    fn tick(
        &self,
        is_plausible: bool,
        inbound: &Sender<Inbound>,
        queued: &mut BTreeMap<String, Weak<Run>>,
    ) -> Option<i64> {
        let context = &self.context;
        let is_queued = |job: &Job| queued.get(job.id()).is_some_and(|run| run.strong_count() > 0);
        let retry = now() + RETRY;
        let tick = context.logged(context.jobs.tick(now(), context.grace, is_plausible, &is_queued));
        let Some(Tick { due, missed, interrupted, next, broken }) = tick else { return Some(retry) };
        for broken in &broken {
            (context.log)(Level::Error, broken);
        }
        for (job, at) in &missed {
            context.report(job, &format!("was missed at {}.", self.zone.stamp(at / 1000)));
        }
        context.settle(&interrupted);
        for job in &due {
            if let Some(run) = context.logged(Run::send(context, job, job.message().to_owned(), inbound)) {
                queued.insert(job.id().to_owned(), run);
            }
        }
        // A due job whose run never begins is tried again; one that begins signals its next time.
        [next, Some(retry).filter(|_| !due.is_empty())].into_iter().flatten().min()
    }

    /// Sends a heartbeat if it is due, and returns when the next one is.
    fn beat(&mut self, inbound: &Sender<Inbound>) -> Option<i64> {
        let job = self.heartbeat.as_mut()?;
        let now = now();
        if let Due::Later(next) = self.context.logged(heartbeat::check(job, now, &self.zone))? {
            return next;
        }
        let file = beneath::read_untrusted(&self.context.home.agent(), "HEARTBEAT.md");
        let file = self.context.logged(file.doing("reading agent/")).flatten();
        if let Some(question) = file.and_then(|file| heartbeat::question(&file)) {
            self.context.logged(Run::send(&self.context, job, question, inbound));
        }
        job.next_run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_plausible_if_synchronised_or_not_before_a_time_that_has_passed() {
        let earliest = PLAUSIBLE + 5;
        assert!(!is_plausible(0, earliest, false));
        assert!(!is_plausible(earliest - 1, earliest, false));
        // A container, or a board with a battery.
        assert!(is_plausible(earliest, earliest, false));
        // The clock was fast when it recorded `earliest`, and has been corrected.
        assert!(is_plausible(earliest - 1, earliest, true));
    }
}
