//! Scheduled jobs in the gateway: each comes in like a message, in a conversation of its own, and its answer goes where the
//! job says.
//!
//! A board without a battery starts with a clock that shows 1970, or when it was last switched off, until NTP has set it.
//! Such a clock is waited for, two minutes at most; then jobs run by it, except those for a single time, which wait on
//! until it has been set. A machine whose clock is right and whose kernel says that nothing keeps it (containers, boards with
//! a battery and no NTP) is not waited for: what counts is what the clock shows ([`face`]).

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use crate::beneath;
use crate::bus::{Ack, Channel, Inbound, Origin, Outbound, Response};
use crate::cancel::Cancel;
use crate::cron::{ActiveRun, Job, Jobs, OneShots, heartbeat, schedule};
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
/// The most between two looks at the jobs: a clock may be set, and a bell may not be heard.
const LONGEST: Duration = Duration::from_secs(3600);
/// How soon to look again, in milliseconds, after an error or while a due job waits for a worker.
const RETRY: i64 = 60_000;
/// Earlier runs of a job whose conversation is kept.
const KEPT_RUNS: usize = 10;
/// 2025-01-01: this program is not as old as a clock that shows an earlier time. Fixed, so that a build can be repeated.
const PLAUSIBLE: i64 = 1_735_689_600_000;
/// How long a clock that has not been set is waited for.
const UNSET: Duration = Duration::from_secs(120);
/// Milliseconds by which a clock may be put right without anybody being told.
const CORRECTION: i64 = 1000;

/// What can be said of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClockState {
    /// It shows the time, as far as anybody can tell.
    Set,
    /// It shows a time that has passed already.
    Unset,
}

/// `floor` is the latest time that is known to have passed. A clock that is kept is right, also when it is earlier: then
/// what wrote the floor was wrong.
fn face(now: i64, floor: i64, is_kept: bool) -> ClockState {
    if is_kept || now >= floor { ClockState::Set } else { ClockState::Unset }
}

/// Notices that the clock was set: it has moved otherwise than the time.
pub struct StepDetector {
    shown: i64,
    at: Instant,
}

impl StepDetector {
    /// `shown` is what the clock shows `at` this moment, in milliseconds since 1970.
    pub fn new(shown: i64, at: Instant) -> Self {
        Self { shown, at }
    }

    /// Whether the clock was set since this was asked last.
    pub fn was_set(&mut self, shown: i64, at: Instant) -> bool {
        let passed = millis(at.saturating_duration_since(self.at));
        let moved = shown.saturating_sub(self.shown);
        *self = Self { shown, at };
        moved.saturating_sub(passed).saturating_abs() > CORRECTION
    }
}

/// What the clock works with.
pub struct Clock {
    pub home: Home,
    pub jobs: Jobs,
    pub zone: Zone,
    /// A run that is later than this is recorded as missed.
    pub grace: Duration,
    /// Minutes between two heartbeats; `None` for none.
    pub heartbeat: Option<u64>,
    /// Where heartbeats go, as `telegram:CHAT`; empty for nowhere.
    pub owner: String,
    pub outbox: Outbox,
    /// Something has changed: look again.
    pub changed: Receiver<()>,
    /// Tells that something was posted.
    pub posted: Arc<dyn Fn() + Send + Sync>,
    pub cancel: Cancel,
    pub log: Sink,
}

/// A channel, and beside it the clock.
pub struct WithClock<C> {
    pub channel: C,
    /// `None` if scheduled jobs are switched off.
    pub clock: Option<Clock>,
}

impl<C: Channel> Channel for WithClock<C> {
    fn start(self, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let Self { channel, clock } = self;
        if let Some(clock) = clock {
            let own = inbound.clone();
            let run = move || clock.run(&own);
            std::thread::Builder::new().spawn(run).doing("starting a thread")?;
        }
        channel.start(inbound)
    }
}

fn now() -> i64 {
    schedule::millis(SystemTime::now())
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

impl Clock {
    fn run(self, inbound: &Sender<Inbound>) {
        let started = Instant::now();
        let floor = self.jobs.written().map_or(PLAUSIBLE, |written| written.max(PLAUSIBLE));
        let mut told = ClockState::Set;
        let mut queued = Queued::new();
        let mut beat = None;
        let mut beaten: Option<Instant> = None;
        while self.cancel.why().is_none() {
            let face = face(now(), floor, sys::clock_is_synchronised());
            let wait = if face == ClockState::Unset { UNSET.saturating_sub(started.elapsed()) } else { Duration::ZERO };
            let left = if wait.is_zero() {
                if face != told {
                    told = face;
                    self.tell_of(face, floor);
                }
                let one_shots = if face == ClockState::Set { OneShots::Run } else { OneShots::Wait };
                let mut next = self.look(inbound, one_shots, &mut queued);
                // One that was planned by a clock that has been set back since is nearer now.
                let planned = self.next_beat(now());
                beat = beat.map_or(planned, |beat: i64| planned.map(|planned| planned.min(beat)));
                if let Some(at) = beat {
                    if at <= now() {
                        let half = Duration::from_secs(self.heartbeat.unwrap_or(0) * 30);
                        // For one time it beats once, even if the clock has been put right by a hair.
                        if beaten.is_none_or(|beaten| beaten.elapsed() > half) {
                            self.beat(inbound);
                            beaten = Some(Instant::now());
                        }
                        beat = planned;
                    }
                    next = [next, beat].into_iter().flatten().min();
                }
                next.map_or(LONGEST, |at| {
                    Duration::from_millis(u64::try_from(at.saturating_sub(now())).unwrap_or(0)).min(LONGEST)
                })
            } else {
                wait
            };
            // Whoever sets the clock is noticed when a poll returns, and that comes in here like any change. Waits that end by a hair too early would be many.
            match self.changed.recv_timeout(left + Duration::from_millis(2)) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while self.changed.try_recv().is_ok() {}
        }
    }

    fn tell_of(&self, face: ClockState, floor: i64) {
        (self.log)(
            Level::Warn,
            &match face {
                ClockState::Set => "the clock has been set: all jobs run again".to_owned(),
                ClockState::Unset => format!(
                    "the clock shows {}, which is before {}: jobs for a single time wait until it is set, others run by it",
                    self.zone.stamp(now() / 1000),
                    self.zone.stamp(floor / 1000)
                ),
            },
        );
    }

    /// Sends what is due, and returns when to look again.
    fn look(&self, inbound: &Sender<Inbound>, one_shots: OneShots, queued: &mut Queued) -> Option<i64> {
        let is_queued = |job: &Job| queued.get(job.id()).is_some_and(|run| run.strong_count() > 0);
        let tick = match self.jobs.tick(now(), millis(self.grace), one_shots, &is_queued) {
            Ok(tick) => tick,
            Err(e) => {
                (self.log)(Level::Error, &e.message);
                return Some(now() + RETRY);
            }
        };
        for broken in &tick.broken {
            (self.log)(Level::Error, broken);
        }
        for (job, at) in &tick.missed {
            let when = self.zone.stamp(at / 1000);
            let name = one_line(job.name(), 80);
            (self.log)(Level::Warn, &format!("the job {name} was missed at {when}"));
            self.tell(job, &format!("The job “{name}” was missed at {when}."));
        }
        let answered = if tick.interrupted.is_empty() { Ok(Vec::new()) } else { self.outbox.answered() };
        for job in &tick.interrupted {
            let at = job.last_run().unwrap_or_default();
            if answered.as_ref().is_ok_and(|answered| answered.contains(&run_name(job.id(), at))) {
                // Its answer was kept: all that is missing is the record of that.
                if let Err(e) = self.jobs.finish(job.id(), at, &Ok(()), now()) {
                    (self.log)(Level::Error, &e.message);
                }
                continue;
            }
            let text = format!(
                "The job “{}” was interrupted when the program ended; what it did is unknown.",
                one_line(job.name(), 80)
            );
            (self.log)(Level::Warn, &text);
            self.tell(job, &text);
        }
        for job in &tick.due {
            queued.extend(self.send(job, inbound));
        }
        // A run that begins signals that its next time is known.
        let retry = Some(now() + RETRY).filter(|_| !tick.due.is_empty());
        [tick.next, retry].into_iter().flatten().min()
    }

    fn send(&self, job: &Job, inbound: &Sender<Inbound>) -> Option<(String, Weak<Run>)> {
        let origin = Origin { channel: CHANNEL.to_owned(), chat: job.id().to_owned() };
        let named = job.session().map(|key| archive::find(&self.home, key).or_else(|_| session_name("cli", key)));
        let is_fresh = named.is_none();
        let session = match named.unwrap_or_else(|| session_name(CHANNEL, job.id())) {
            Ok(session) => session,
            Err(e) => {
                (self.log)(Level::Error, &e.message);
                return None;
            }
        };
        let due_at = now();
        let id = run_name(job.id(), due_at);
        let run = Arc::new(Run {
            due: Some(DueJob { id: job.id().to_owned(), at: due_at, grace: millis(self.grace) }),
            active: Mutex::default(),
            id: id.clone(),
            is_fresh,
            session: session.clone(),
            to: job.to().unwrap_or_default(),
            name: one_line(job.name(), 80),
            clock: self.parts(),
        });
        let message = Inbound::message(origin, session, job.message().to_owned());
        let queued = (job.id().to_owned(), Arc::downgrade(&run));
        drop(inbound.send(Inbound { ids: vec![id], ack: Some(run), ..message }));
        Some(queued)
    }

    fn next_beat(&self, after: i64) -> Option<i64> {
        heartbeat::schedule(self.heartbeat?).next(after, &self.zone)
    }

    fn beat(&self, inbound: &Sender<Inbound>) {
        let file = beneath::read_untrusted(&self.home.agent(), "HEARTBEAT.md").ok().flatten();
        let Some(question) = file.and_then(|file| heartbeat::question(&file)) else { return };
        let Ok(session) = session_name(CHANNEL, heartbeat::ID) else { return };
        let origin = Origin { channel: CHANNEL.to_owned(), chat: heartbeat::ID.to_owned() };
        let id = run_name(heartbeat::ID, now());
        let run = Run {
            due: None,
            active: Mutex::default(),
            id: id.clone(),
            is_fresh: true,
            session: session.clone(),
            to: self.owner.clone(),
            name: heartbeat::ID.to_owned(),
            clock: self.parts(),
        };
        let message = Inbound::message(origin, session, question);
        drop(inbound.send(Inbound { ids: vec![id], ack: Some(Arc::new(run)), ..message }));
    }

    fn parts(&self) -> Parts {
        Parts {
            home: self.home.clone(),
            jobs: self.jobs.clone(),
            outbox: self.outbox.clone(),
            posted: self.posted.clone(),
            cancel: self.cancel.clone(),
            log: self.log.clone(),
        }
    }

    /// Posts to the chat of a job.
    fn tell(&self, job: &Job, text: &str) {
        drop(self.parts().post(&job.to().unwrap_or_default(), text, Vec::new()));
    }
}

/// The runs that were sent, by the ids of their jobs.
type Queued = BTreeMap<String, Weak<Run>>;

/// What a run needs of the clock.
struct Parts {
    home: Home,
    jobs: Jobs,
    outbox: Outbox,
    posted: Arc<dyn Fn() + Send + Sync>,
    cancel: Cancel,
    log: Sink,
}

/// What a run is called where it is answered.
fn run_name(job: &str, at: i64) -> String {
    format!("{CHANNEL}:{job}:{at}")
}

impl Parts {
    /// Has it sent, and gives the id of what is. `answers`: the name of the run that it came of.
    fn post(&self, to: &str, text: &str, answers: Vec<String>) -> Option<String> {
        if to.is_empty() || text.is_empty() {
            return None;
        }
        match self.outbox.post(&Item { to: to.to_owned(), text: text.to_owned(), answers, ..Item::default() }) {
            Ok(id) => {
                (self.posted)();
                Some(id)
            }
            Err(e) => {
                (self.log)(Level::Error, &e.message);
                None
            }
        }
    }
}

/// A job that was found due.
struct DueJob {
    id: String,
    /// When it was found.
    at: i64,
    grace: i64,
}

/// One run of a job, or one heartbeat.
struct Run {
    /// `None` for a heartbeat.
    due: Option<DueJob>,
    /// From the run's beginning to its end.
    active: Mutex<Option<ActiveRun>>,
    id: String,
    /// It begins a conversation.
    is_fresh: bool,
    session: String,
    to: String,
    name: String,
    clock: Parts,
}

impl Run {
    /// Stores that the run begins. `false` when it is not to.
    fn start(&self) -> bool {
        let Some(due) = &self.due else { return true };
        if self.active.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return true;
        }
        match self.clock.jobs.start_due(&due.id, due.at, due.grace, now()) {
            Ok(Some(run)) => {
                *self.active.lock().unwrap_or_else(PoisonError::into_inner) = Some(run);
                true
            }
            Ok(None) => false,
            Err(e) => {
                (self.clock.log)(Level::Error, &e.message);
                false
            }
        }
    }

    fn over(&self, answer: &str, outcome: &Result<(), String>) {
        let Parts { jobs, log, .. } = &self.clock;
        let heartbeat = self.name == heartbeat::ID;
        if !(heartbeat && (heartbeat::is_quiet(answer) || outcome.is_err())) {
            let text = match outcome {
                Err(why) if answer.is_empty() => format!("⚠️ The job “{}” failed: {why}", self.name),
                _ => answer.to_owned(),
            };
            if let Some(id) = self.clock.post(&self.to, &text, vec![self.id.clone()]) {
                self.note(&id, &text);
            }
        }
        let Some(run) = self.active.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if let Err(e) = jobs.finish(run.job.id(), run.at, outcome, now()) {
            log(Level::Error, &format!("recording the run of {}: {}", self.name, e.message));
        }
    }

    /// In the chat that it went to, so that "yes, do it" has something to refer to.
    fn note(&self, id: &str, text: &str) {
        let Some((channel, chat)) = self.to.split_once(':') else { return };
        let title = format!("The job “{}” sent this to the chat", self.name);
        let noted = session_name(channel, chat).and_then(|session| {
            // A job may continue that very conversation.
            if session == self.session { Ok(()) } else { note(&self.clock.home, &session, id, &title, text) }
        });
        if let Err(e) = noted {
            (self.clock.log)(Level::Error, &format!("noting in {} what a job sent there: {}", self.to, e.message));
        }
    }
}

impl Ack for Run {
    fn begin(&self, _: &[String], _: &Origin, _: &mut String, _: &mut Vec<Image>, _: &Cancel) -> bool {
        // What has not begun when the program ends is run by the next one.
        if self.clock.cancel.why().is_some() || !self.start() {
            return false;
        }
        if self.is_fresh {
            let cancel = Cancel::new(None);
            let anew = archive::reset(&self.clock.home, &self.session, &cancel, SystemTime::now())
                .and_then(|_| archive::thin(&self.clock.home, &self.session, KEPT_RUNS, &cancel));
            if let Err(e) = anew {
                (self.clock.log)(Level::Error, &e.message);
            }
        }
        true
    }

    fn end(&self, _: &[String], _: &Origin, response: &Response) -> bool {
        let outcome = response.error.as_ref().map_or(Ok(()), |e| Err(e.message.clone()));
        self.over(response.output.trim(), &outcome);
        true
    }

    fn reply(&self, _: &[String], _: &Origin, text: &str) -> bool {
        // It failed before it began.
        if self.start() {
            self.over("", &Err(text.to_owned()));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_believed_when_it_is_kept_or_shows_nothing_that_has_passed() {
        let floor = PLAUSIBLE + 5;
        assert_eq!(face(0, floor, false), ClockState::Unset);
        assert_eq!(face(floor - 1, floor, false), ClockState::Unset);
        // Nothing keeps it, and it is plausible: a container, a board with a battery.
        assert_eq!(face(floor, floor, false), ClockState::Set);
        // A clock that was ahead wrote last, and has been put right.
        assert_eq!(face(floor - 1, floor, true), ClockState::Set);
    }

    #[test]
    fn a_clock_that_was_set_is_noticed_once_and_one_that_is_put_right_is_not() {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let mut steadiness = StepDetector::new(0, begun);
        assert!(!steadiness.was_set(50_000, at(50)));
        assert!(!steadiness.was_set(100_900, at(100)));
        assert!(steadiness.was_set(PLAUSIBLE, at(150)));
        assert!(!steadiness.was_set(PLAUSIBLE + 50_000, at(200)));
        assert!(steadiness.was_set(PLAUSIBLE + 50_000, at(250)), "it stood still");
        assert!(steadiness.was_set(5, at(300)), "it went back");
    }
}
