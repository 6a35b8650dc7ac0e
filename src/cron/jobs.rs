//! The jobs of a home: listing and changing them, starting what is due, and finishing runs.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::file::JobsFile;
use super::job::{Due, Job};
use super::new::NewJob;
use super::runs::{Run, RunResult, RunStatus, Runs};
use super::schedule::{Millis, Schedule};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind, Result};
use crate::notify;
use crate::paths::{Home, session_name};
use crate::storage::Lock;
use crate::text::one_line;
use crate::timezone::Zone;

#[derive(Clone)]
pub(crate) struct Jobs {
    home: Home,
    runs: Runs,
    /// The variables that name a time zone.
    env: BTreeMap<String, String>,
}

/// The work that is due.
#[derive(Default)]
pub(crate) struct Tick {
    /// The runs that were due and have been started.
    pub started: Vec<ActiveRun>,
    /// The jobs that were missed, each with the time it should have run at.
    pub missed: Vec<(Job, Millis)>,
    /// The jobs whose last run was cut short.
    pub interrupted: Vec<Job>,
    /// When the next job is due.
    pub next: Option<Millis>,
    /// One sentence for each job whose schedule or zone is not valid.
    pub broken: Vec<String>,
}

/// A run under way. While this lives, no other run of the job begins; [`Jobs::finish`] records how the run ended.
pub(crate) struct ActiveRun {
    pub job: Job,
    /// When the run began; with the job's id, its name in the record.
    pub at: Millis,
    _lock: Option<Lock>,
}

impl ActiveRun {
    /// Of a job that is in no file.
    pub(crate) fn unlocked(job: Job, at: Millis) -> Self {
        Self {
            job,
            at,
            _lock: None,
        }
    }
}

/// A child process holds its parent's locks until it executes its own program, so a free lock may look held for this long.
const FORK_TIME: Duration = Duration::from_millis(100);
/// Nobody holds the lock for longer than a few writes take.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// How soon to look again at a job that is due while it runs.
const BUSY_RETRY: Millis = 60_000;

impl Jobs {
    pub(crate) fn new(home: Home, env: &BTreeMap<String, String>) -> Self {
        let mut env = env.clone();
        env.retain(|name, _| matches!(name.as_str(), "TZ" | "TZDIR"));
        let runs = Runs::of(&home);
        Self { home, runs, env }
    }

    /// The zone of that name, else the zone of this machine.
    pub(crate) fn zone(&self, name: Option<&str>) -> Result<Zone> {
        name.map_or_else(
            || Zone::local(&self.env),
            |name| Zone::named(name, &self.env),
        )
    }

    /// The next times of a job, and the zone of its times of day.
    pub(crate) fn upcoming(
        &self,
        job: &Job,
        now: Millis,
        count: usize,
    ) -> Result<(Zone, Vec<Millis>)> {
        let (zone, schedule) = (self.zone(job.tz())?, job.schedule()?);
        let times =
            std::iter::successors(schedule.next(now, &zone), |at| schedule.next(*at, &zone))
                .take(count)
                .collect();
        Ok((zone, times))
    }

    /// All jobs. A run that was cut short shows as of unknown outcome. Changes nothing.
    pub(crate) fn list(&self) -> Result<Vec<Job>> {
        let mut jobs = JobsFile::read(&self.home)?.jobs;
        for job in &mut jobs {
            self.find_interrupted(job)?;
        }
        Ok(jobs)
    }

    /// Every run on record, the oldest first, then those under way or cut short.
    pub(crate) fn history(&self) -> Result<Vec<Run>> {
        let mut runs = self.runs.read()?;
        for job in self.list()? {
            for status in [RunStatus::Running, RunStatus::Unknown] {
                let run = Run::last(&job, status);
                if job.is(status) && !runs.iter().any(|other| other.is(&run)) {
                    runs.push(run);
                }
            }
        }
        Ok(runs)
    }

    pub(crate) fn add(&self, new: &NewJob, now: Millis) -> Result<Job> {
        let tz = Some(new.tz.trim()).filter(|tz| !tz.is_empty());
        let zone = self.zone(tz).map_err(|e| Error {
            kind: Kind::Usage,
            ..e
        })?;
        let mut fields = new.fields(&zone, now)?;
        self.edit(|file| {
            // One that is named is removed and run by its name.
            let is_taken = |job: &Job| !new.name.trim().is_empty() && fields["name"] == job.name();
            if file.jobs.iter().any(is_taken) {
                let name = one_line(&new.name, 60);
                return Err(
                    Error::usage(format!("there is a job {name} already")).hint(format!(
                        "choose another name, or run `bantam cron remove {name}`"
                    )),
                );
            }
            let mut ids =
                (0..).map(|n: u64| format!("{:06x}", RandomState::new().hash_one(n) & 0xff_ffff));
            fields["id"] = ids
                .find(|id| file.jobs.iter().all(|job| job.id() != id))
                .into();
            file.jobs.push(Job(fields.clone()));
            Ok(Job(fields))
        })
    }

    pub(crate) fn remove(&self, id: &str) -> Result<Job> {
        self.edit(|file| {
            let job = file.find(id)?.clone();
            file.jobs.retain(|other| other.id() != job.id());
            Ok(job)
        })
    }

    /// Enables or disables a job. An enabled one runs at its next time.
    pub(crate) fn set_enabled(&self, id: &str, enabled: bool, now: Millis) -> Result<Job> {
        self.edit(|file| {
            let job = file.find(id)?;
            let next = if enabled {
                job.schedule()?.next(now, &self.zone(job.tz())?)
            } else {
                None
            };
            if enabled && next.is_none() {
                return Err(
                    Error::failed("its time has passed").hint("add a new job with another time")
                );
            }
            (job.0["enabled"], job.0["updatedAtMs"]) = (enabled.into(), now.into());
            job.set_next(next);
            Ok(job.clone())
        })
    }

    /// Starts what is due, finds what was missed or cut short, and when the next job is due. On disk before this returns; where
    /// there is nothing to store, nothing is written. A run more than `grace` late is missed.
    pub(crate) fn tick(&self, now: Millis, grace: Millis) -> Result<Tick> {
        let _lock = self.lock()?;
        let mut file = JobsFile::read(&self.home)?;
        let stored = file.jobs.clone();
        let mut tick = Tick::default();
        for job in &mut file.jobs {
            match self.check(job, now, grace, &mut tick) {
                Ok(next) => tick.next = [tick.next, next].into_iter().flatten().min(),
                Err(e) => tick.broken.push(e.message),
            }
        }
        if file.jobs != stored {
            file.write(&self.home)?;
        }
        Ok(tick)
    }

    /// Does with one job what a tick does, and returns when it is due next.
    fn check(
        &self,
        job: &mut Job,
        now: Millis,
        grace: Millis,
        tick: &mut Tick,
    ) -> Result<Option<Millis>> {
        if self.find_interrupted(job)? {
            self.record(&Run::last(job, RunStatus::Unknown))?;
            tick.interrupted.push(job.clone());
        }
        let zone = self
            .zone(job.tz())
            .doing(format_args!("the job {}", one_line(job.id(), 40)))?;
        match job.due(now, grace, &zone)? {
            Due::Later(next) => job.set_next(next),
            Due::Missed(_) | Due::Now if job.is(RunStatus::Running) => {
                return Ok(Some(now + BUSY_RETRY));
            }
            Due::Missed(at) => {
                job.advance(now, &zone)?;
                self.record(&Run::new(job, now, RunStatus::Missed))?;
                job.set_state("lastStatus", RunStatus::Missed.name().into());
                tick.missed.push((job.clone(), at));
            }
            Due::Now => tick.started.push(self.begin(job, now, &zone)?),
        }
        Ok(job.next_run())
    }

    /// Starts a run of a job, due or not. On disk before this returns: the run, and when the job runs next.
    pub(crate) fn start(&self, id: &str, now: Millis) -> Result<ActiveRun> {
        let _lock = self.lock()?;
        let mut file = JobsFile::read(&self.home)?;
        let job = file.find(id)?;
        if self.find_interrupted(job)? {
            self.record(&Run::last(job, RunStatus::Unknown))?;
        }
        let zone = self.zone(job.tz())?;
        let run = self.begin(job, now, &zone)?;
        file.write(&self.home)?;
        // The gateway looks for the next time.
        notify::signal(&self.home);
        Ok(run)
    }

    /// Stores in `job` that a run begins.
    fn begin(&self, job: &mut Job, now: Millis, zone: &Zone) -> Result<ActiveRun> {
        let lock = self.run_lock(job, FORK_TIME).map_err(|e| match e.kind {
            Kind::Busy => Error::new(
                Kind::Busy,
                format!("the job {} is already running", one_line(job.id(), 40)),
            )
            .hint("wait until it ends; `bantam cron history` shows when it began"),
            _ => e,
        })?;
        job.advance(now, zone)?;
        job.set_last(&Run::new(job, now, RunStatus::Running));
        Ok(ActiveRun {
            job: job.clone(),
            at: now,
            _lock: Some(lock),
        })
    }

    /// Records the end of the run of a job that began at the time `at`. A job for a single time that went well is removed, if
    /// it says so.
    pub(crate) fn finish(
        &self,
        id: &str,
        at: Millis,
        outcome: &RunResult,
        ended: Option<Millis>,
    ) -> Result<()> {
        let _lock = self.lock()?;
        let (status, answer, error) = match outcome {
            Ok(answer) => (RunStatus::Ok, answer.as_str(), ""),
            Err(e) => (RunStatus::Error, "", e.as_str()),
        };
        let (error, answer) = (one_line(error, 300), one_line(answer, 300));
        let file = JobsFile::read(&self.home);
        let jobs = file.as_ref().map_or(&[][..], |file| &file.jobs);
        // It may have been removed meanwhile.
        let job = jobs.iter().find(|job| job.id() == id);
        let name = job.map_or(String::new(), |job| one_line(job.name(), 80));
        let run = Run {
            job: id.to_owned(),
            name,
            at,
            ended,
            status,
            error,
            answer,
        };
        self.record(&run)?;
        let mut file = file?;
        let Some(job) = file.jobs.iter_mut().find(|job| job.id() == id) else {
            return Ok(());
        };
        job.set_last(&run);
        let is_over =
            matches!(job.schedule(), Ok(Schedule::At(_))) && !job.is_enabled() && outcome.is_ok();
        if is_over && job.0["deleteAfterRun"] == true {
            file.jobs.retain(|job| job.id() != id);
        }
        file.write(&self.home)
    }

    /// Records that the check of a run decided against it: there is no turn and no history.
    pub(crate) fn skip(&self, run: &ActiveRun, why: &str) -> Result<()> {
        let _lock = self.lock()?;
        let mut file = JobsFile::read(&self.home)?;
        let found = file.jobs.iter_mut().find(|job| job.id() == run.job.id());
        // It may have been removed meanwhile.
        let Some(job) = found else { return Ok(()) };
        let checks = job.0["state"]["checks"].as_u64().unwrap_or_default() + 1;
        job.set_state("checks", checks.into());
        job.set_state("lastStatus", "skipped".into());
        job.set_state("lastError", one_line(why, 300).into());
        file.write(&self.home)
    }

    /// Sets the state of a job that says it is running while nobody runs it: as recorded, else unknown. Returns whether the
    /// outcome is unknown. A lock that another process forks with looks held for a moment, so such a job may be found later.
    fn find_interrupted(&self, job: &mut Job) -> Result<bool> {
        if !job.is(RunStatus::Running) {
            return Ok(false);
        }
        let _lock = match self.run_lock(job, Duration::ZERO) {
            Err(e) if e.kind == Kind::Busy => return Ok(false),
            lock => lock?,
        };
        // The program may have ended after it had recorded the end.
        let run = Run::last(job, RunStatus::Unknown);
        let recorded = self
            .runs
            .read()?
            .into_iter()
            .rev()
            .find(|other| other.is(&run));
        job.set_last(&recorded.unwrap_or(run));
        Ok(job.is(RunStatus::Unknown))
    }

    fn record(&self, run: &Run) -> Result<()> {
        self.runs.record(run)
    }

    fn run_lock(&self, job: &Job, wait: Duration) -> Result<Lock> {
        Lock::acquire(
            &self.home.run_lock(&session_name("cron", job.id())?),
            wait,
            &Cancel::new(None),
        )
    }

    fn lock(&self) -> Result<Lock> {
        let lock = Lock::acquire(&self.home.cron_lock(), LOCK_WAIT, &Cancel::new(None))
            .doing("changing the jobs");
        lock.map_err(|e| self.home.hinted(e))
    }

    /// Reads, changes and writes the file under the lock, and tells the gateway. When `change` fails, nothing is written.
    fn edit(&self, change: impl FnOnce(&mut JobsFile) -> Result<Job>) -> Result<Job> {
        let _lock = self.lock()?;
        let mut file = JobsFile::read(&self.home)?;
        let job = change(&mut file)?;
        file.write(&self.home)?;
        notify::signal(&self.home);
        Ok(job)
    }
}
