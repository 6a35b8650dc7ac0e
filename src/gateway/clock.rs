//! Scheduled jobs in the gateway: each arrives as a message in a conversation of its own, and its answer goes to the chat
//! that the job names.
//!
//! A board without a battery starts with a clock that shows 1970, or the time of its last shutdown, until NTP sets it. Jobs
//! wait two minutes at most for that; then they run by the clock as it is, except one-shot jobs, which wait until it is set.
//! A plausible clock is used at once, even if the kernel calls it unsynchronised: containers and boards without NTP have
//! such clocks.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use crate::beneath;
use crate::bus::{Ack, Channel, Inbound, Origin, Outbound, Response};
use crate::cancel::Cancel;
use crate::cron::{ActiveRun, Job, Jobs, OneShots, Tick, heartbeat, schedule};
use crate::error::{Context, Result};
use crate::log::{Level, Sink};
use crate::message::Image;
use crate::outbox::{Item, Outbox};
use crate::paths::{Home, session_name};
use crate::session::{archive, note};
use crate::sys;
use crate::text::one_line;
use crate::zone::Zone;

/// The name of this channel.
const CHANNEL: &str = "cron";
/// The longest time between two checks of the jobs: a change of the clock or of the jobs may go unnoticed.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// How soon to check again, in milliseconds, after an error or while a due job waits for a worker.
const RETRY: i64 = 60_000;
/// Earlier runs of a job whose conversations are kept.
const KEPT_RUNS: usize = 10;
/// 2025-01-01, older than this program: an earlier time is wrong. Fixed, so that builds are reproducible.
const PLAUSIBLE: i64 = 1_735_689_600_000;
/// How long to wait for a clock to be set.
const UNSET_WAIT: Duration = Duration::from_secs(120);
/// The largest correction of the clock, in milliseconds, that does not count as setting it.
const CORRECTION: i64 = 1000;

/// Whether the clock can be right. `earliest` is the latest time known to have passed; a synchronised clock may show an
/// earlier time, because the clock that recorded `earliest` may have been fast.
fn is_plausible(now: i64, earliest: i64, is_synchronised: bool) -> bool {
    is_synchronised || now >= earliest
}

/// Detects that the clock was set.
pub(crate) struct StepDetector {
    shown: i64,
    at: Instant,
}

impl StepDetector {
    /// `shown` is what the clock shows `at` this moment, in milliseconds since 1970.
    pub(crate) fn new(shown: i64, at: Instant) -> Self {
        Self { shown, at }
    }

    /// Whether the clock was set since the last call.
    pub(crate) fn was_set(&mut self, shown: i64, at: Instant) -> bool {
        let passed = millis(at.saturating_duration_since(self.at));
        let moved = shown.saturating_sub(self.shown);
        *self = Self { shown, at };
        moved.saturating_sub(passed).saturating_abs() > CORRECTION
    }
}

/// Sends due jobs and heartbeats to the dispatcher.
pub(crate) struct Clock {
    pub home: Home,
    pub jobs: Jobs,
    pub zone: Zone,
    /// A run that would start later than this is recorded as missed.
    pub grace: Duration,
    /// Minutes between two heartbeats; `None` for none.
    pub heartbeat: Option<u64>,
    /// Where heartbeats go, as `telegram:CHAT`; empty for nowhere.
    pub owner: String,
    pub outbox: Outbox,
    /// Called after an item was posted to the outbox.
    pub posted: Arc<dyn Fn() + Send + Sync>,
    pub cancel: Cancel,
    pub log: Sink,
}

/// A channel with a clock.
pub(crate) struct WithClock<C> {
    pub channel: C,
    /// `None` if scheduled jobs are switched off.
    pub clock: Option<Clock>,
    /// Receives when the jobs or the clock may have changed.
    pub changed: Receiver<()>,
}

impl<C: Channel> Channel for WithClock<C> {
    fn start(self, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let Self { channel, clock, changed } = self;
        if let Some(clock) = clock.map(Arc::new) {
            let own = inbound.clone();
            std::thread::Builder::new().spawn(move || clock.run(&changed, &own)).doing("starting a thread")?;
        }
        channel.start(inbound)
    }
}

/// The conversation of a job's next run, and whether it starts empty.
pub(crate) fn job_session(home: &Home, job: &Job) -> Result<(String, bool)> {
    match job.session() {
        Some(key) => Ok((archive::find(home, key).or_else(|_| session_name("cli", key))?, false)),
        None => Ok((session_name(CHANNEL, job.id())?, true)),
    }
}

/// Archives the conversation of a job's last run and deletes the oldest ones.
pub(crate) fn reset_session(home: &Home, session: &str) -> Result<()> {
    let cancel = Cancel::new(None);
    archive::reset(home, session, &cancel, SystemTime::now())?;
    archive::thin(home, session, KEPT_RUNS, &cancel)
}

fn now() -> i64 {
    schedule::millis(SystemTime::now())
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// Names a run in the message that starts it and in the answer in the outbox.
fn run_id(job: &str, at: i64) -> String {
    format!("{CHANNEL}:{job}:{at}")
}

/// The runs that were sent, by the ids of their jobs.
type Queued = BTreeMap<String, Weak<Run>>;

#[derive(Default)]
struct Heartbeats {
    next: Option<i64>,
    last: Option<Instant>,
}

impl Clock {
    fn run(self: &Arc<Self>, changed: &Receiver<()>, inbound: &Sender<Inbound>) {
        let started = Instant::now();
        let earliest = self.jobs.written().map_or(PLAUSIBLE, |written| written.max(PLAUSIBLE));
        let mut was_plausible = true;
        let (mut queued, mut heartbeats) = (Queued::new(), Heartbeats::default());
        while self.cancel.why().is_none() {
            let is_plausible = is_plausible(now(), earliest, sys::clock_is_synchronised());
            let mut wait = if is_plausible { Duration::ZERO } else { UNSET_WAIT.saturating_sub(started.elapsed()) };
            if wait.is_zero() {
                if is_plausible != was_plausible {
                    was_plausible = is_plausible;
                    self.log_clock(is_plausible, earliest);
                }
                let one_shots = if is_plausible { OneShots::Run } else { OneShots::Wait };
                let next = [self.tick(inbound, one_shots, &mut queued), self.heartbeat(inbound, &mut heartbeats)];
                wait = next.into_iter().flatten().min().map_or(MAX_WAIT, |at| {
                    Duration::from_millis(u64::try_from(at.saturating_sub(now())).unwrap_or(0)).min(MAX_WAIT)
                });
            }
            // The extra time keeps a rounded wait from ending just before its time.
            if changed.recv_timeout(wait + Duration::from_millis(2)) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
            while changed.try_recv().is_ok() {}
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
        (self.log)(Level::Warn, &text);
    }

    /// Logs an error and returns the value of a success.
    fn logged<T>(&self, result: Result<T>) -> Option<T> {
        result.map_err(|e| (self.log)(Level::Error, &e.message)).ok()
    }

    /// Sends due jobs, reports missed and interrupted ones, and returns when to check again.
    fn tick(self: &Arc<Self>, inbound: &Sender<Inbound>, one_shots: OneShots, queued: &mut Queued) -> Option<i64> {
        let is_queued = |job: &Job| queued.get(job.id()).is_some_and(|run| run.strong_count() > 0);
        let retry = now() + RETRY;
        let tick = self.logged(self.jobs.tick(now(), millis(self.grace), one_shots, &is_queued));
        let Some(Tick { due, missed, interrupted, next, broken }) = tick else { return Some(retry) };
        for broken in &broken {
            (self.log)(Level::Error, broken);
        }
        for (job, at) in &missed {
            self.report(job, &format!("was missed at {}.", self.zone.stamp(at / 1000)));
        }
        self.handle_interrupted(&interrupted);
        for job in &due {
            if let Some(run) = self.logged(self.send(job, inbound)) {
                queued.insert(job.id().to_owned(), run);
            }
        }
        // A due job whose run never begins is tried again; one that begins signals its next time.
        [next, Some(retry).filter(|_| !due.is_empty())].into_iter().flatten().min()
    }

    fn handle_interrupted(&self, jobs: &[Job]) {
        if jobs.is_empty() {
            return;
        }
        let answered = self.outbox.answered().unwrap_or_default();
        for job in jobs {
            let at = job.last_run().unwrap_or_default();
            if answered.contains(&run_id(job.id(), at)) {
                // The answer was posted; only the record of the run is missing.
                self.logged(self.jobs.finish(job.id(), at, &Ok(()), now()));
            } else {
                self.report(job, "was interrupted when the program ended; what it did is unknown.");
            }
        }
    }

    /// Logs what happened to a job, and posts it to the job's chat.
    fn report(&self, job: &Job, what: &str) {
        let text = format!("The job “{}” {what}", one_line(job.name(), 80));
        (self.log)(Level::Warn, &text);
        self.post(&job.to().unwrap_or_default(), &text, Vec::new());
    }

    fn send(self: &Arc<Self>, job: &Job, inbound: &Sender<Inbound>) -> Result<Weak<Run>> {
        let (session, is_fresh) = job_session(&self.home, job)?;
        let run = Arc::new(Run {
            clock: self.clone(),
            job: job.id().to_owned(),
            is_heartbeat: false,
            due_at: now(),
            name: one_line(job.name(), 80),
            session,
            is_fresh,
            to: job.to().unwrap_or_default(),
            active: Mutex::default(),
        });
        let queued = Arc::downgrade(&run);
        run.send(job.message().to_owned(), inbound);
        Ok(queued)
    }

    /// Sends a heartbeat if it is due, and returns when the next one is.
    fn heartbeat(self: &Arc<Self>, inbound: &Sender<Inbound>, heartbeats: &mut Heartbeats) -> Option<i64> {
        let minutes = self.heartbeat?;
        let planned = heartbeat::schedule(minutes).next(now(), &self.zone);
        // After the clock was set back, the newly planned time is the earlier one.
        let next = [heartbeats.next, planned].into_iter().flatten().min()?;
        heartbeats.next = Some(next);
        if next <= now() {
            heartbeats.next = planned;
            // A small correction of the clock must not repeat a heartbeat.
            let half = Duration::from_secs(minutes * 30);
            if heartbeats.last.is_none_or(|last| last.elapsed() > half) {
                self.send_heartbeat(inbound);
                heartbeats.last = Some(Instant::now());
            }
        }
        heartbeats.next
    }

    fn send_heartbeat(self: &Arc<Self>, inbound: &Sender<Inbound>) {
        let file = beneath::read_untrusted(&self.home.agent(), "HEARTBEAT.md").ok().flatten();
        let Some(question) = file.and_then(|file| heartbeat::question(&file)) else { return };
        let Some(session) = self.logged(session_name(CHANNEL, heartbeat::ID)) else { return };
        let run = Run {
            clock: self.clone(),
            job: heartbeat::ID.to_owned(),
            is_heartbeat: true,
            due_at: now(),
            name: heartbeat::ID.to_owned(),
            session,
            is_fresh: true,
            to: self.owner.clone(),
            active: Mutex::default(),
        };
        Arc::new(run).send(question, inbound);
    }

    /// Posts to a chat and returns the id of the item. `answers`: the id of the run that the text answers.
    fn post(&self, to: &str, text: &str, answers: Vec<String>) -> Option<String> {
        if to.is_empty() || text.is_empty() {
            return None;
        }
        let item = Item { to: to.to_owned(), text: text.to_owned(), answers, ..Item::default() };
        let id = self.logged(self.outbox.post(&item))?;
        (self.posted)();
        Some(id)
    }
}

/// A run of a job, or a heartbeat.
struct Run {
    clock: Arc<Clock>,
    /// The id of the job.
    job: String,
    is_heartbeat: bool,
    /// When the job was found due.
    due_at: i64,
    name: String,
    session: String,
    /// The conversation is emptied before the run.
    is_fresh: bool,
    to: String,
    /// Set while the run of a job is under way.
    active: Mutex<Option<ActiveRun>>,
}

impl Run {
    fn id(&self) -> String {
        run_id(&self.job, self.due_at)
    }

    fn send(self: Arc<Self>, text: String, inbound: &Sender<Inbound>) {
        let origin = Origin { channel: CHANNEL.to_owned(), chat: self.job.clone() };
        let message = Inbound::message(origin, self.session.clone(), text);
        drop(inbound.send(Inbound { ids: vec![self.id()], ack: Some(self), ..message }));
    }

    fn active(&self) -> MutexGuard<'_, Option<ActiveRun>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores that the run begins. Returns `false` if it must not.
    fn start(&self) -> bool {
        let mut active = self.active();
        if self.is_heartbeat || active.is_some() {
            return true;
        }
        let Clock { jobs, grace, .. } = &*self.clock;
        let started = jobs.start_due(&self.job, self.due_at, millis(*grace), now());
        *active = self.clock.logged(started).flatten();
        active.is_some()
    }

    fn finish(&self, answer: &str, outcome: &Result<(), String>) {
        if !(self.is_heartbeat && (heartbeat::is_quiet(answer) || outcome.is_err())) {
            let text = match outcome {
                Err(why) if answer.is_empty() => format!("⚠️ The job “{}” failed: {why}", self.name),
                _ => answer.to_owned(),
            };
            if let Some(id) = self.clock.post(&self.to, &text, vec![self.id()]) {
                self.note(&id, &text);
            }
        }
        let Some(run) = self.active().take() else { return };
        let recorded = self.clock.jobs.finish(run.job.id(), run.at, outcome, now());
        self.clock.logged(recorded.doing(format_args!("recording the run of {}", self.name)));
    }

    /// Notes the text in the conversation of the chat, so that a reply there has something to refer to.
    fn note(&self, id: &str, text: &str) {
        let Some((channel, chat)) = self.to.split_once(':') else { return };
        let title = format!("The job “{}” sent this to the chat", self.name);
        let noted = session_name(channel, chat).and_then(|session| {
            // A job may continue that very conversation.
            if session == self.session { Ok(()) } else { note(&self.clock.home, &session, id, &title, text) }
        });
        self.clock.logged(noted.doing(format_args!("noting in {} what a job sent there", self.to)));
    }
}

impl Ack for Run {
    fn begin(&self, _: &[String], _: &Origin, _: &mut String, _: &mut Vec<Image>, _: &Cancel) -> bool {
        // A run that has not begun when the program ends is left to the next start.
        if self.clock.cancel.why().is_some() || !self.start() {
            return false;
        }
        if self.is_fresh {
            self.clock.logged(reset_session(&self.clock.home, &self.session));
        }
        true
    }

    fn end(&self, _: &[String], _: &Origin, response: &Response) -> bool {
        let outcome = response.error.as_ref().map_or(Ok(()), |e| Err(e.message.clone()));
        self.finish(response.output.trim(), &outcome);
        true
    }

    fn reply(&self, _: &[String], _: &Origin, text: &str) -> bool {
        // The run failed before it began.
        if self.start() {
            self.finish("", &Err(text.to_owned()));
        }
        true
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

    #[test]
    fn setting_the_clock_is_noticed_once_and_small_corrections_are_not() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut detector = StepDetector::new(0, start);
        assert!(!detector.was_set(50_000, at(50)));
        assert!(!detector.was_set(100_900, at(100)));
        assert!(detector.was_set(PLAUSIBLE, at(150)));
        assert!(!detector.was_set(PLAUSIBLE + 50_000, at(200)));
        assert!(detector.was_set(PLAUSIBLE + 50_000, at(250)), "it stood still");
        assert!(detector.was_set(5, at(300)), "it went back");
    }
}
