//! The jobs of a home: listing and changing them, finding what is due, starting and finishing runs.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use super::file::JobsFile;
use super::job::{Due, Job};
use super::new::NewJob;
use super::runs::{self, Outcome, Run, Status};
use super::schedule::{self, Millis, PLAUSIBLE, Schedule};
use crate::cancel::Cancel;
use crate::disk::Lock;
use crate::error::{Context, Error, Kind, Result};
use crate::notify;
use crate::paths::{Home, session_name};
use crate::text::one_line;
use crate::zone::Zone;

#[derive(Clone)]
pub(crate) struct Jobs {
    home: Home,
    /// The variables that name a time zone.
    env: BTreeMap<String, String>,
}

/// The work that is due.
#[derive(Debug, Default)]
pub(crate) struct Tick {
    /// The jobs that are due.
    pub due: Vec<Job>,
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
    started: Instant,
    _lock: Lock,
}

impl ActiveRun {
    /// When the run ends if that is now, by the clock that showed its beginning: it may have been set since.
    pub(crate) fn ended(&self) -> Millis {
        let elapsed = Millis::try_from(self.started.elapsed().as_millis()).unwrap_or(Millis::MAX);
        self.at.saturating_add(elapsed)
    }
}

/// A child process holds its parent's locks until it executes its own program, so a free lock may look held for this long.
const FORK_TIME: Duration = Duration::from_millis(100);
/// Nobody holds the lock for longer than a few writes take.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// How soon to look again at a job that is due while it runs or waits.
const BUSY_RETRY: Millis = 60_000;

impl Jobs {
    pub(crate) fn new(home: Home, env: &BTreeMap<String, String>) -> Self {
        let mut env = env.clone();
        env.retain(|name, _| matches!(name.as_str(), "TZ" | "TZDIR"));
        Self { home, env }
    }

    /// The zone of that name, else the zone of this machine.
    pub(crate) fn zone(&self, name: Option<&str>) -> Result<Zone> {
        name.map_or_else(|| Zone::local(&self.env), |name| Zone::named(name, &self.env))
    }

    /// The next times of a job, and the zone of its times of day.
    pub(crate) fn upcoming(&self, job: &Job, now: Millis, count: usize) -> Result<(Zone, Vec<Millis>)> {
        let (zone, schedule) = (self.zone(job.tz())?, job.schedule()?);
        let times =
            std::iter::successors(schedule.next(now, &zone), |at| schedule.next(*at, &zone)).take(count).collect();
        Ok((zone, times))
    }

    /// All jobs. A run that was cut short shows as of unknown outcome. Changes nothing.
    pub(crate) fn list(&self) -> Result<Vec<Job>> {
        let mut jobs = JobsFile::read(&self.home)?.jobs;
        if jobs.iter().any(|job| job.is(Status::Running)) {
            // Under the lock, because a run may be ending right now.
            let _lock = self.lock()?;
            jobs = JobsFile::read(&self.home)?.jobs;
            for job in &mut jobs {
                self.find_interrupted(job)?;
            }
        }
        Ok(jobs)
    }

    /// When the file was last written, by the clock of that time.
    pub(crate) fn written(&self) -> Option<Millis> {
        Some(schedule::millis(fs_err::metadata(self.home.cron_jobs()).ok()?.modified().ok()?))
    }

    /// Every run on record, the oldest first, then those under way or cut short.
    pub(crate) fn history(&self) -> Result<Vec<Run>> {
        let mut runs = runs::read(&self.home.cron_runs())?;
        for job in self.list()? {
            for status in [Status::Running, Status::Unknown] {
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
        let zone = self.zone(tz).map_err(|e| Error { kind: Kind::Usage, ..e })?;
        let mut job = Job { fields: new.fields(&zone, now)? };
        self.edit(|file| {
            let mut hasher = DefaultHasher::new();
            (now, std::process::id(), &new.message).hash(&mut hasher);
            let mut id = hasher.finish();
            let text = |id: u64| format!("{:06x}", id & 0xff_ffff);
            while file.jobs.iter().any(|job| job.id() == text(id)) {
                id = id.wrapping_add(1);
            }
            job.fields.insert("id".to_owned(), text(id).into());
            file.jobs.push(job.clone());
            Ok(job)
        })
    }

    pub(crate) fn remove(&self, id: &str) -> Result<Job> {
        self.edit(|file| {
            let job = file.find(id)?.clone();
            if job.is(Status::Running) {
                // Its end, if it comes, replaces this.
                self.record(&Run::last(&job, Status::Unknown))?;
            }
            file.jobs.retain(|other| other.id() != job.id());
            Ok(job)
        })
    }

    /// Enables or disables a job. An enabled one runs at its next time.
    pub(crate) fn set_enabled(&self, id: &str, enabled: bool, now: Millis) -> Result<Job> {
        self.edit(|file| {
            let job = file.find(id)?;
            let next = if enabled { job.schedule()?.next(now, &self.zone(job.tz())?) } else { None };
            if enabled && next.is_none() {
                return Err(Error::failed("its time has passed").hint("add a new job with another time"));
            }
            job.set_enabled(enabled, now);
            job.set_next(next);
            Ok(job.clone())
        })
    }

    /// What to run now, what was missed or cut short, and when the next job is due. Missed runs and those that were cut short
    /// are recorded; where there are none, nothing is written. A run that began more than `grace` late would be missed. Jobs
    /// for a single time wait if the clock may show any time. `is_queued` tells which jobs the caller has found due before and
    /// not finished yet.
    pub(crate) fn tick(
        &self,
        now: Millis,
        grace: Millis,
        is_plausible: bool,
        is_queued: &dyn Fn(&Job) -> bool,
    ) -> Result<Tick> {
        let _lock = self.lock()?;
        let mut file = JobsFile::read(&self.home)?;
        let stored = file.jobs.clone();
        let mut tick = Tick::default();
        for job in &mut file.jobs {
            if !is_queued(job) && self.find_interrupted(job)? {
                self.record(&Run::last(job, Status::Unknown))?;
                tick.interrupted.push(job.clone());
            }
            if !is_plausible && matches!(job.schedule(), Ok(Schedule::At(_))) {
                continue;
            }
            let zone = self.zone(job.tz()).doing(format_args!("the job {}", one_line(job.id(), 40)));
            let (due, zone) = match zone.and_then(|zone| Ok((job.due(now, grace, &zone)?, zone))) {
                Ok(found) => found,
                Err(e) => {
                    tick.broken.push(e.message);
                    continue;
                }
            };
            let next = match due {
                Due::Now | Due::Missed(_) if job.is(Status::Running) || is_queued(job) => Some(now + BUSY_RETRY),
                Due::Now => {
                    tick.due.push(job.clone());
                    None
                }
                Due::Missed(at) => {
                    job.advance(now, &zone)?;
                    // A clock that was not set then makes no job missed.
                    if at >= PLAUSIBLE || now < PLAUSIBLE {
                        self.record(&Run::new(job, now, Status::Missed))?;
                        job.set_state("lastStatus", Status::Missed.name().into());
                        tick.missed.push((job.clone(), at));
                    }
                    job.next_run()
                }
                Due::Later(next) => {
                    job.set_next(next);
                    next
                }
            };
            tick.next = [tick.next, next].into_iter().flatten().min();
        }
        if file.jobs != stored {
            file.write(&self.home)?;
        }
        Ok(tick)
    }

    /// Starts a run of a job, due or not. On disk before this returns: the run, and when the job runs next.
    pub(crate) fn start(&self, id: &str, now: Millis) -> Result<ActiveRun> {
        let _lock = self.lock()?;
        self.begin(JobsFile::read(&self.home)?, id, now, now)
    }

    /// Starts a run that was found due at the time `at`. `None` when it is not due any more: somebody else has run the job,
    /// or changed it.
    pub(crate) fn start_due(&self, id: &str, at: Millis, grace: Millis, now: Millis) -> Result<Option<ActiveRun>> {
        let _lock = self.lock()?;
        let mut file = JobsFile::read(&self.home)?;
        let Some(job) = file.jobs.iter_mut().find(|job| job.id() == id) else { return Ok(None) };
        match job.due(at, grace, &self.zone(job.tz())?)? {
            Due::Now => self.begin(file, id, at, now).map(Some),
            Due::Later(_) | Due::Missed(_) => Ok(None),
        }
    }

    fn begin(&self, mut file: JobsFile, id: &str, at: Millis, now: Millis) -> Result<ActiveRun> {
        let job = file.find(id)?;
        let lock = self.run_lock(job, FORK_TIME).map_err(|e| match e.kind {
            Kind::Busy => Error::new(Kind::Busy, format!("the job {} is already running", one_line(id, 40)))
                .hint("wait until it ends; bantam cron history shows when it began"),
            _ => e,
        })?;
        if job.is(Status::Running) && self.set_interrupted(job)? {
            self.record(&Run::last(job, Status::Unknown))?;
        }
        job.advance(now, &self.zone(job.tz())?)?;
        job.set_last(&Run::new(job, at, Status::Running));
        let job = job.clone();
        file.write(&self.home)?;
        // The gateway looks for the next time.
        notify::signal(&self.home);
        Ok(ActiveRun { job, at, started: Instant::now(), _lock: lock })
    }

    /// Records the end of the run of a job that began at the time `at`. A job for a single time that went well is removed, if
    /// it says so.
    pub(crate) fn finish(&self, id: &str, at: Millis, outcome: &Outcome, ended: Option<Millis>) -> Result<()> {
        let _lock = self.lock()?;
        let (status, answer, error) = match outcome {
            Ok(answer) => (Status::Ok, answer.as_str(), ""),
            Err(e) => (Status::Error, "", e.as_str()),
        };
        let (error, answer) = (one_line(error, 300), one_line(answer, 300));
        let run = Run { job: id.to_owned(), at, ended, status, error, answer };
        self.record(&run)?;
        let mut file = JobsFile::read(&self.home)?;
        // It may have been removed meanwhile.
        let Some(job) = file.jobs.iter_mut().find(|job| job.id() == id) else { return Ok(()) };
        let is_one_shot = matches!(job.schedule(), Ok(Schedule::At(_)));
        job.set_last(&run);
        if is_one_shot && job.is_deleted_after_run() && !job.is_enabled() && outcome.is_ok() {
            file.jobs.retain(|job| job.id() != id);
        }
        file.write(&self.home)
    }

    /// Sets the state of a job that says it is running while nobody runs it. Returns whether that is so and the outcome is
    /// unknown. A lock that another process forks with looks held for a moment, so such a job may be found a check later.
    fn find_interrupted(&self, job: &mut Job) -> Result<bool> {
        if !job.is(Status::Running) {
            return Ok(false);
        }
        match self.run_lock(job, Duration::ZERO) {
            Err(e) if e.kind == Kind::Busy => Ok(false),
            free => free.and_then(|_lock| self.set_interrupted(job)),
        }
    }

    /// Sets the state of a job whose last run was cut short: as recorded, else unknown. Returns whether it is unknown.
    fn set_interrupted(&self, job: &mut Job) -> Result<bool> {
        // The program may have ended after it had recorded the end.
        let run = Run::last(job, Status::Unknown);
        let recorded = runs::read(&self.home.cron_runs())?.into_iter().rev().find(|other| other.is(&run));
        job.set_last(&recorded.unwrap_or(run));
        Ok(job.is(Status::Unknown))
    }

    fn record(&self, run: &Run) -> Result<()> {
        runs::record(&self.home.cron_runs(), run)
    }

    fn run_lock(&self, job: &Job, wait: Duration) -> Result<Lock> {
        Lock::acquire(&self.home.run_lock(&session_name("cron", job.id())?), wait, &Cancel::new(None))
    }

    fn lock(&self) -> Result<Lock> {
        Lock::acquire(&self.home.cron_lock(), LOCK_WAIT, &Cancel::new(None)).doing("changing the jobs")
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
