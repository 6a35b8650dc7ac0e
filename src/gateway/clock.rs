//! Adds runs of jobs and heartbeats to the inbox when they are due, and forwards the signals of other programs of this home: a
//! new job, a message to send, or a changed setting.
//!
//! A board without a battery may start with the time set to 1970. Jobs wait until the time is set; every wake-up of this thread
//! checks it again.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, SystemTime};

use super::run::{now, run_message};
use super::start::Gateway;
use crate::access;
use crate::app::bot;
use crate::bus::Inbound;
use crate::cron::schedule::EARLIEST;
use crate::cron::{DueRun, heartbeat};
use crate::error::{Context, Result};
use crate::log::{Level, log_error};
use crate::notify;
use crate::session::archive;
use crate::test_speed::paced;
use crate::timezone::Zone;

/// Maximum time between two checks, because a signal may be lost and config.json may be changed by hand.
const PAUSE: Duration = Duration::from_secs(50);
/// The same with a bot, whose polls wake the clock; longer than a poll, so that they alone do.
const MAX_WAIT: Duration = Duration::from_secs(120);
/// Interval for removing old conversations, in milliseconds.
const REMOVAL_INTERVAL: i64 = 24 * 3600 * 1000;
/// Delay of a new check after an error, in milliseconds.
const RETRY: i64 = 60_000;

impl Gateway {
    pub(super) fn run_clock(&self) {
        let listener = self.listener();
        let log = self.log.sink("jobs");
        let zone = Zone::local(&self.setup.loaded.env).unwrap_or_else(|_| Zone::utc());
        let (mut was_set, mut beat_at, mut removed_at) = (true, None, None);
        let is_woken = listener.is_some() && self.dispatcher.bot.is_some();
        let most = if is_woken { MAX_WAIT } else { paced(PAUSE) };
        let mut problems = Vec::new();
        while self.shutdown.cancel.reason().is_none() {
            let now = now();
            let is_set = now >= EARLIEST;
            if is_set != was_set {
                let shown = zone.stamp(now / 1000);
                let what = if is_set {
                    "has been set: jobs run"
                } else {
                    "is not set: no job runs until it is"
                };
                log(Level::Warn, &format!("the clock {what}; it shows {shown}"));
                was_set = is_set;
            }
            let mut next = None;
            if is_set {
                if removed_at.is_none_or(|at: i64| now.saturating_sub(at) >= REMOVAL_INTERVAL) {
                    log_error(&log, self.remove_expired());
                    removed_at = Some(now);
                }
                let job_at = self.tick(now, &mut problems);
                let due = beat_at.filter(|at| *at <= now);
                log_error(&log, due.map_or(Ok(()), |due| self.beat(due)));
                let beat = self.setup.heartbeat.as_ref();
                let next_beat = beat.map_or(Ok(None), |job| job.due(now, 0, &zone));
                beat_at = log_error(&log, next_beat).flatten();
                next = [job_at, beat_at].into_iter().flatten().min();
            }
            let left =
                |at: i64| Duration::from_millis(u64::try_from(at.saturating_sub(now)).unwrap_or(0));
            // The extra time prevents a rounded wait from ending too early.
            let wait = next.map_or(most, left).min(most) + Duration::from_millis(2);
            let waited = listener.as_ref().map(|socket| notify::wait(socket, wait));
            if !matches!(waited, Some(Ok(()))) {
                let _stopped = self.shutdown.cancel.sleep(wait);
            }
            self.dispatcher.outbox.wake();
            self.wake_watch();
        }
    }

    /// Listens to signals of other programs of this home, if that is possible.
    fn listener(&self) -> Option<UnixDatagram> {
        let bound = notify::bind(&self.setup.app.home).map_err(|e| {
            let text = format!("other programs cannot wake the gateway, which looks for their changes every minute: {e}");
            self.log.write(Level::Warn, &text);
        });
        bound.ok()
    }

    /// Removes old, unused conversations of jobs and questions.
    fn remove_expired(&self) -> Result<()> {
        let days = self.setup.loaded.config.session.keep_days;
        if days == 0 {
            return Ok(());
        }
        let keep = Duration::from_secs(days.saturating_mul(24 * 3600));
        let removed = archive::remove_expired(&self.setup.app.home, keep, SystemTime::now());
        removed.doing("removing old conversations").map(drop)
    }

    /// Adds due runs, and returns the time of the next check. Reports new problems; `known` are those of the last check.
    fn tick(&self, now: i64, known: &mut Vec<String>) -> Option<i64> {
        let (loaded, home) = (&self.setup.loaded, &self.setup.app.home);
        if !loaded.config.cron.enabled {
            return None;
        }
        let runner = self.dispatcher.runner.as_ref()?;
        let start = |due: &DueRun| self.add_run(run_message(home, due, bot::owner(loaded))?);
        let ticked = runner.jobs.tick(now, runner.grace(), &start);
        let (next, problems) = ticked.unwrap_or_else(|e| (Some(now + RETRY), vec![e.message]));
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            self.report(problem);
        }
        *known = problems;
        next
    }

    fn add_run(&self, message: Inbound) -> Result<()> {
        match self.dispatcher.inbox.add(message) {
            // The next start adds the run again.
            Err(_) if self.shutdown.cancel.reason().is_some() => Ok(()),
            added => added.map(drop).doing("starting a job"),
        }
    }

    /// Adds a heartbeat, if there is something to ask.
    fn beat(&self, due: i64) -> Result<()> {
        let (home, job) = (&self.setup.app.home, self.setup.heartbeat.clone());
        let file = access::read_untrusted(&home.agent(), "HEARTBEAT.md").doing("reading agent/")?;
        let text = file.and_then(|file| heartbeat::question(&file));
        let (Some(job), Some(text)) = (job, text) else {
            return Ok(());
        };
        let message = run_message(home, &DueRun { job, due }, None)?;
        self.add_run(Inbound { text, ..message })
    }
}
