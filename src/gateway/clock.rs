//! Scheduled jobs in the gateway: each comes in like a message, in a conversation of its own, and its answer goes where the
//! job says.
//!
//! A board without a battery starts with a clock that shows 1970, or when it was last switched off, until NTP has set it.
//! Such a clock is waited for, two minutes at most; then jobs run by it, except those for a single time, which wait on
//! until it has been set. A machine whose clock is right and whose kernel says that nothing keeps it (containers, boards with
//! a battery and no NTP) is not waited for: what counts is what the clock shows ([`face`]).

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::beneath;
use crate::bus::{Ack, Channel, Inbound, Origin, Outbound, Response};
use crate::cancel::{Cancel, Hook};
use crate::cron::{Claim, Jobs, OneShots, Trigger, heartbeat, schedule};
use crate::error::{Context, Kind as ErrorKind, Result};
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
    pub fn was_lost(&mut self, shown: i64, at: Instant) -> bool {
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
    pub clock: Clock,
}

impl<C: Channel> Channel for WithClock<C> {
    fn start(self, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let Self { channel, clock } = self;
        let own = inbound.clone();
        let run = move || clock.run(&own);
        std::thread::Builder::new().spawn(run).doing("starting a thread")?;
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
                let mut next = self.look(inbound, if face == ClockState::Set { OneShots::Run } else { OneShots::Wait });
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

    /// Sends what is due, and tells when to look again.
    fn look(&self, inbound: &Sender<Inbound>, singles: OneShots) -> Option<i64> {
        let looked = match self.jobs.look(now(), millis(self.grace), singles) {
            Ok(looked) => looked,
            Err(e) => {
                (self.log)(Level::Error, &e.message);
                return Some(now() + 60_000);
            }
        };
        for broken in &looked.broken {
            (self.log)(Level::Error, broken);
        }
        for (job, at) in &looked.missed {
            let when = self.zone.stamp(at / 1000);
            let name = one_line(job.name(), 80);
            (self.log)(Level::Warn, &format!("the job {name} was missed at {when}"));
            if let Some((channel, chat)) = job.to() {
                self.tell(&format!("{channel}:{chat}"), &format!("The job “{name}” was missed at {when}."));
            }
        }
        let answered = if looked.interrupted.is_empty() { Ok(Vec::new()) } else { self.outbox.answered() };
        for job in &looked.interrupted {
            let at = job.last_run().unwrap_or_default();
            if answered.as_ref().is_ok_and(|answered| answered.contains(&run_name(job.id(), at))) {
                // Its answer was kept: all that is missing is the record of that.
                if let Err(e) = self.jobs.finish_late(job.id(), at, now()) {
                    (self.log)(Level::Error, &e.message);
                }
                continue;
            }
            let text = format!(
                "The job “{}” was interrupted when the program ended; what it did is unknown.",
                one_line(job.name(), 80)
            );
            (self.log)(Level::Warn, &text);
            if let Some((channel, chat)) = job.to() {
                self.tell(&format!("{channel}:{chat}"), &text);
            }
        }
        let mut failed = false;
        for id in &looked.due {
            match self.jobs.claim(id, Trigger::Due(millis(self.grace)), now()) {
                Ok(Some(claim)) => self.begin(claim, inbound),
                Ok(None) => {}
                // It runs already: once it is over there is another look.
                Err(e) if e.kind == ErrorKind::Busy => {}
                Err(e) => {
                    (self.log)(Level::Error, &e.message);
                    failed = true;
                }
            }
        }
        match (looked.due.is_empty(), failed) {
            (true, _) => looked.next,
            // Their next times are known now.
            (false, false) => Some(now()),
            (false, true) => Some(now() + 60_000),
        }
    }

    fn begin(&self, claim: Claim, inbound: &Sender<Inbound>) {
        let job = claim.job.clone();
        let origin = Origin { channel: CHANNEL.to_owned(), chat: job.id().to_owned() };
        let named = job.session().map(|key| archive::find(&self.home, key).or_else(|_| session_name("cli", key)));
        let is_fresh = named.is_none();
        let session = match named.unwrap_or_else(|| session_name(CHANNEL, job.id())) {
            Ok(session) => session,
            Err(e) => return (self.log)(Level::Error, &e.message),
        };
        let to = job.to().map(|(channel, chat)| format!("{channel}:{chat}")).unwrap_or_default();
        let name = one_line(job.name(), 80);
        let id = run_name(job.id(), claim.at());
        let claim: Held = Arc::new(Mutex::new(Some(claim)));
        let (own, jobs, log) = (claim.clone(), self.jobs.clone(), self.log.clone());
        let run = Run {
            claim,
            // It may wait for others, and what has not begun when the program ends is run by the next one.
            waits: Mutex::new(Some(self.cancel.on_stop(move || put_back(&own, &jobs, &log)))),
            id: id.clone(),
            is_fresh,
            session: session.clone(),
            to,
            name,
            clock: self.parts(),
        };
        let message = Inbound::message(origin, session, job.message().to_owned());
        drop(inbound.send(Inbound { ids: vec![id], ack: Some(Arc::new(run)), ..message }));
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
            claim: Held::default(),
            waits: Mutex::default(),
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

    fn tell(&self, to: &str, text: &str) {
        drop(self.parts().post(to, text, Vec::new()));
    }
}

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

/// The claim of a run, until it is over or given back.
type Held = Arc<Mutex<Option<Claim>>>;

/// Gives it back, if it is there still.
fn put_back(held: &Held, jobs: &Jobs, log: &Sink) {
    let claim = held.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(Err(e)) = claim.map(|claim| jobs.put_back(claim)) {
        log(Level::Error, &format!("leaving a job to the next start: {}", e.message));
    }
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

/// One run of a job, or one heartbeat.
struct Run {
    /// Of a job; until it is over.
    claim: Held,
    /// Gives the claim back when the program ends. Until the run begins.
    waits: Mutex<Option<Hook>>,
    id: String,
    /// It begins a conversation.
    is_fresh: bool,
    session: String,
    to: String,
    name: String,
    clock: Parts,
}

impl Run {
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
        let claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(e)) = claim.map(|claim| jobs.finish(claim, outcome, now())) {
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
        drop(self.waits.lock().unwrap_or_else(PoisonError::into_inner).take());
        if self.clock.cancel.why().is_some() {
            put_back(&self.claim, &self.clock.jobs, &self.clock.log);
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
        self.over("", &Err(text.to_owned()));
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
        assert!(!steadiness.was_lost(50_000, at(50)));
        assert!(!steadiness.was_lost(100_900, at(100)));
        assert!(steadiness.was_lost(PLAUSIBLE, at(150)));
        assert!(!steadiness.was_lost(PLAUSIBLE + 50_000, at(200)));
        assert!(steadiness.was_lost(PLAUSIBLE + 50_000, at(250)), "it stood still");
        assert!(steadiness.was_lost(5, at(300)), "it went back");
    }
}
