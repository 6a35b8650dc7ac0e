//! The jobs of a home: listing and changing them, finding what is due, starting and finishing runs.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::file::JobsFile;
use super::job::{Due, Job};
use super::new::NewJob;
use super::runs::{self, Outcome, Run, Status};
use super::schedule::{self, Millis, Schedule};
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

/// What [`Jobs::tick`] does with jobs for a single time. They wait while the clock may show any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OneShots {
    Run,
    Wait,
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
    _lock: Lock,
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
        if jobs.iter().any(Job::is_running) {
            // Under the lock, because a run may be ending right now.
            let _lock = self.lock()?;
            jobs = JobsFile::read(&self.home)?.jobs;
            for job in &mut jobs {
                if let Some(run) = self.interrupted_run(job)? {
                    job.set_last(&run);
                }
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
        for run in self.list()?.iter().filter_map(Run::unrecorded) {
            if !runs.iter().any(|other| other.is(&run)) {
                runs.push(run);
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
            if job.is_running() {
                // Its end, if it comes, replaces this.
                runs::record(&self.home.cron_runs(), &Run::interrupted(&job))?;
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
            job.set_state("nextRunAtMs", next.into());
            Ok(job.clone())
        })
    }

    /// What to run now, what was missed or cut short, and when the next job is due. Missed runs and those that were cut short
    /// are recorded; where there are none, nothing is written. A run that began more than `grace` late would be missed.
    /// `is_queued` tells which jobs were found due before and have not begun yet.
    pub(crate) fn tick(
        &self,
        now: Millis,
        grace: Millis,
        one_shots: OneShots,
        is_queued: &dyn Fn(&Job) -> bool,
    ) -> Result<Tick> {
        let _lock = self.lock()?;
        let mut file = JobsFile::read(&self.home)?;
        let mut tick = Tick::default();
        let mut changed = false;
        for job in &mut file.jobs {
            if let Some(run) = self.interrupted_run(job)? {
                if self.record_interrupted(job, run)? {
                    tick.interrupted.push(job.clone());
                }
                changed = true;
            }
            if one_shots == OneShots::Wait && matches!(job.schedule(), Ok(Schedule::At(_))) {
                continue;
            }
            let zone = self.zone(job.tz()).doing(format_args!("the job {}", one_line(job.id(), 40)));
            let next = match zone.and_then(|zone| Ok((job.due(now, grace, &zone)?, zone))) {
                Err(e) => {
                    tick.broken.push(e.message);
                    None
                }
                Ok((Due::Now | Due::Missed(_), _)) if job.is_running() || is_queued(job) => Some(now + BUSY_RETRY),
                Ok((Due::Now, _)) => {
                    tick.due.push(job.clone());
                    None
                }
                Ok((Due::Missed(at), zone)) => {
                    let run = Run::new(job, now, Status::Missed);
                    runs::record(&self.home.cron_runs(), &run)?;
                    job.advance(now, &zone)?;
                    job.set_state("lastStatus", Status::Missed.name().into());
                    tick.missed.push((job.clone(), at));
                    changed = true;
                    job.next_run()
                }
                Ok((Due::Later(next), _)) => {
                    if job.next_run() != next {
                        job.set_state("nextRunAtMs", next.into());
                        changed = true;
                    }
                    next
                }
            };
            tick.next = [tick.next, next].into_iter().flatten().min();
        }
        if changed {
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
        let lock = self.run_lock(job).map_err(|e| match e.kind {
            Kind::Busy => Error::new(Kind::Busy, format!("the job {} is already running", one_line(id, 40)))
                .hint("wait until it ends; bantam cron history shows when it began"),
            _ => e,
        })?;
        if job.is_running() {
            // Nobody held the lock.
            self.record_interrupted(job, Run::interrupted(job))?;
        }
        job.advance(now, &self.zone(job.tz())?)?;
        job.set_last(&Run::new(job, at, Status::Running));
        let job = job.clone();
        file.write(&self.home)?;
        // The gateway looks for the next time.
        notify::signal(&self.home);
        Ok(ActiveRun { job, at, _lock: lock })
    }

    /// Records the end of the run of a job that began at the time `at`. A job for a single time that went well is removed, if
    /// it says so.
    pub(crate) fn finish(&self, id: &str, at: Millis, outcome: &Outcome, now: Millis) -> Result<()> {
        let _lock = self.lock()?;
        let (status, error) = match outcome {
            Ok(()) => (Status::Ok, ""),
            Err(e) => (Status::Error, e.as_str()),
        };
        let run = Run { job: id.to_owned(), at, ended: Some(now), status, error: one_line(error, 300) };
        runs::record(&self.home.cron_runs(), &run)?;
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

    /// The run of a job that says it is running while nobody runs it.
    fn interrupted_run(&self, job: &Job) -> Result<Option<Run>> {
        if !job.is_running() {
            return Ok(None);
        }
        match self.run_lock(job) {
            Err(e) if e.kind == Kind::Busy => Ok(None),
            Err(e) => Err(e),
            Ok(_free) => Ok(Some(Run::interrupted(job))),
        }
    }

    /// Records a run that was cut short, and whether its outcome is unknown: its end may be on record already, and only the
    /// job not know of it.
    fn record_interrupted(&self, job: &mut Job, run: Run) -> Result<bool> {
        let path = self.home.cron_runs();
        let run = match runs::read(&path)?.into_iter().rev().find(|other| other.is(&run)) {
            Some(recorded) => recorded,
            None => {
                runs::record(&path, &run)?;
                run
            }
        };
        job.set_last(&run);
        Ok(run.status == Status::Unknown)
    }

    fn run_lock(&self, job: &Job) -> Result<Lock> {
        Lock::acquire(&self.home.run_lock(&session_name("cron", job.id())?), FORK_TIME, &Cancel::new(None))
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
