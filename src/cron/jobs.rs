//! The jobs of a home: lists and changes them, starts due runs, and finishes runs.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use super::file::JobsFile;
use super::heartbeat;
use super::job::{Due, Job};
use super::new::NewJob;
use super::runs::{Run, RunEnd, RunStatus, Runs};
use super::schedule::{Millis, Schedule};
use crate::bus::{Inbound, Inbox, JobRun, Source, message_id};
use crate::error::{Context, Error, Kind, Result};
use crate::notify;
use crate::paths::Home;
use crate::storage::{Lock, Queue};
use crate::text::to_single_line;
use crate::timezone::Zone;

#[derive(Clone)]
pub(crate) struct Jobs {
    home: Home,
    runs: Runs,
    /// Unanswered messages, which include unfinished runs.
    messages: Inbox,
    /// Environment variables of the time zone.
    env: BTreeMap<String, String>,
}

/// Due work.
#[derive(Default)]
pub(crate) struct Tick {
    /// Due runs, and runs whose message a crash has lost. Their status is `running`.
    pub started: Vec<DueRun>,
    /// Missed jobs, each with its due time.
    pub missed: Vec<(Job, Millis)>,
    /// Jobs whose last run was interrupted too long ago to be resumed.
    pub interrupted: Vec<Job>,
    /// Time of the next due job.
    pub next: Option<Millis>,
    /// One sentence for each job whose schedule or zone is invalid.
    pub broken: Vec<String>,
}

/// A run whose message must be added to the inbox.
pub(crate) struct DueRun {
    pub job: Job,
    /// Start of the run.
    pub at: Millis,
}

/// Channel of runs.
pub(crate) const CHANNEL: &str = "cron";

impl DueRun {
    /// Returns the id of its message within the channel.
    pub(crate) fn name(&self) -> String {
        run_name(self.job.id(), self.at)
    }
}

fn run_name(job: &str, at: Millis) -> String {
    format!("{job}:{at}")
}

/// Location of a job's run with the status `running`.
enum Place {
    /// Waiting in the inbox.
    Waiting,
    /// Finished, with its record.
    Over(Run),
    /// Missing, because of a crash before its message was added.
    Nowhere,
}

/// Time to wait for the lock, which other processes need only for a few writes.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Delay before the next check of a job that is due while it runs.
const BUSY_RETRY: Millis = 60_000;

impl Jobs {
    pub(crate) fn new(home: Home, env: &BTreeMap<String, String>) -> Self {
        let mut env = env.clone();
        env.retain(|name, _| matches!(name.as_str(), "TZ" | "TZDIR"));
        let runs = Runs::new(&home);
        let messages = Inbox::new(Arc::new(Queue::of_home(&home)));
        Self {
            home,
            runs,
            messages,
            env,
        }
    }

    /// Replaces the messages by a program's own instance of the inbox.
    pub(crate) fn with_messages(self, messages: Inbox) -> Self {
        Self { messages, ..self }
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    /// Returns the zone with that name, or else the zone of this machine.
    pub(crate) fn zone(&self, name: Option<&str>) -> Result<Zone> {
        name.map_or_else(
            || Zone::local(&self.env),
            |name| Zone::named(name, &self.env),
        )
    }

    /// Returns the next times of a job, and the zone of its times of day.
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

    /// Returns all jobs. Changes nothing.
    pub(crate) fn list(&self) -> Result<Vec<Job>> {
        let mut jobs = JobsFile::read(&self.home)?.jobs;
        for job in &mut jobs {
            if let Some(Place::Over(run)) = self.place_of_run(job)? {
                job.set_last(&run);
            }
        }
        Ok(jobs)
    }

    /// Returns the job with this id or name, as stored in the file.
    pub(crate) fn find(&self, id: &str) -> Result<Job> {
        JobsFile::read(&self.home)?.find(id).cloned()
    }

    /// Whether a run of this job is in the inbox.
    pub(crate) fn is_waiting(&self, job: &Job) -> Result<bool> {
        let place = self.place_of_run(job)?;
        Ok(matches!(place, Some(Place::Waiting)))
    }

    /// Returns all recorded runs, the oldest first, followed by the running ones.
    pub(crate) fn history(&self) -> Result<Vec<Run>> {
        let mut runs = self.runs.read()?;
        for job in self.list()? {
            if job.is(RunStatus::Running) {
                runs.push(Run::last(&job, RunStatus::Running));
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
            // A named job is removed and run by its name, so the name must be unique.
            let is_taken = |job: &Job| !new.name.trim().is_empty() && fields["name"] == job.name();
            if file.jobs.iter().any(is_taken) {
                let name = to_single_line(&new.name, 60);
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

    /// Enables or disables a job. An enabled job runs at its next time.
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

    /// Starts due runs, finds missed and interrupted ones, and returns the time of the next due job. On disk before this
    /// returns; unchanged jobs are not written. A run more than `grace` late is missed. `checking` are the names of runs whose
    /// checks are running.
    pub(crate) fn tick(
        &self,
        now: Millis,
        grace: Millis,
        checking: &BTreeSet<String>,
    ) -> Result<Tick> {
        let _lock = self.lock()?;
        let mut file = JobsFile::read(&self.home)?;
        let stored = file.jobs.clone();
        let mut tick = Tick::default();
        for job in &mut file.jobs {
            let looked = self
                .look_for_run(job, now - grace, checking, &mut tick)
                .and_then(|()| self.check(job, now, grace, &mut tick));
            match looked {
                Ok(next) => tick.next = [tick.next, next].into_iter().flatten().min(),
                Err(e) => tick.broken.push(e.message),
            }
        }
        if file.jobs != stored {
            file.write(&self.home)?;
        }
        Ok(tick)
    }

    /// Updates a job whose status is `running`. A run without a message is started again, or marked as interrupted if it began
    /// before `oldest`.
    fn look_for_run(
        &self,
        job: &mut Job,
        oldest: Millis,
        checking: &BTreeSet<String>,
        tick: &mut Tick,
    ) -> Result<()> {
        let at = job.last_run().unwrap_or_default();
        match self.place_of_run(job)? {
            None | Some(Place::Waiting) => {}
            Some(Place::Over(run)) => job.set_last(&run),
            Some(Place::Nowhere) if checking.contains(&run_name(job.id(), at)) => {}
            Some(Place::Nowhere) if at < oldest => {
                let run = Run::last(job, RunStatus::Interrupted);
                self.record(&run)?;
                job.set_last(&run);
                tick.interrupted.push(job.clone());
            }
            Some(Place::Nowhere) => tick.started.push(DueRun {
                job: job.clone(),
                at,
            }),
        }
        Ok(())
    }

    /// Locates the last run of a job; `None` if its status is not `running`.
    fn place_of_run(&self, job: &Job) -> Result<Option<Place>> {
        if !job.is(RunStatus::Running) {
            return Ok(None);
        }
        let run = Run::last(job, RunStatus::Quiet);
        let id = message_id(CHANNEL, &run_name(job.id(), run.at));
        if self.messages.is_open(&id)? {
            return Ok(Some(Place::Waiting));
        }
        let mut recorded = self.runs.read()?.into_iter().rev();
        if let Some(recorded) = recorded.find(|other| other.is(&run)) {
            return Ok(Some(Place::Over(recorded)));
        }
        let is_over = self.messages.is_known(&id)?;
        Ok(Some(if is_over {
            Place::Over(run)
        } else {
            Place::Nowhere
        }))
    }

    /// Ends runs in the inbox that began before `oldest`, which were interrupted too long ago. Returns their messages.
    pub(crate) fn end_old(&self, oldest: Millis) -> Result<Vec<Inbound>> {
        let mut old = self.messages.all()?;
        old.retain(|message| matches!(&message.source, Source::Job(run) if run.at < oldest));
        for message in &old {
            if let Source::Job(run) = &message.source {
                self.finish(run, &RunEnd::Interrupted)?;
                self.messages.finish(std::slice::from_ref(&message.id))?;
            }
        }
        Ok(old)
    }

    /// Updates one job during a tick, and returns when it is due next.
    fn check(
        &self,
        job: &mut Job,
        now: Millis,
        grace: Millis,
        tick: &mut Tick,
    ) -> Result<Option<Millis>> {
        let zone = self
            .zone(job.tz())
            .doing(format_args!("the job {}", to_single_line(job.id(), 40)))?;
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
            Due::Now => {
                job.advance(now, &zone)?;
                job.set_last(&Run::new(job, now, RunStatus::Running));
                let job = job.clone();
                tick.started.push(DueRun { job, at: now });
            }
        }
        Ok(job.next_run())
    }

    /// Records the end of a run. A successful one-time job is removed if it has that option. Runs without anything to report
    /// are not recorded. On disk when this returns; a repetition changes nothing.
    pub(crate) fn finish(&self, run: &JobRun, end: &RunEnd) -> Result<()> {
        if run.job == heartbeat::ID {
            // The heartbeat is not in the file.
            return match end {
                RunEnd::Answered(_) => self.record(&end.run(run, &run.name)),
                _ => Ok(()),
            };
        }
        let _lock = self.lock()?;
        let file = JobsFile::read(&self.home);
        let jobs = file.as_ref().map_or(&[][..], |file| &file.jobs);
        // The job may have been removed meanwhile.
        let job = jobs.iter().find(|job| job.id() == run.job);
        let name = job.map_or(run.name.clone(), |job| to_single_line(job.name(), 80));
        let ended = end.run(run, &name);
        if ended.status != RunStatus::Quiet {
            self.record(&ended)?;
        }
        let mut file = file?;
        let Some(job) = file.jobs.iter_mut().find(|job| job.id() == run.job) else {
            return Ok(());
        };
        if job.last_run().is_some_and(|last| last > run.at) {
            return Ok(());
        }
        job.set_last(&ended);
        if matches!(job.schedule(), Ok(Schedule::At(at)) if at <= run.at) {
            job.0["enabled"] = false.into();
            job.set_next(None);
        }
        let went_well = matches!(ended.status, RunStatus::Ok | RunStatus::Quiet);
        let is_over =
            matches!(job.schedule(), Ok(Schedule::At(_))) && !job.is_enabled() && went_well;
        if is_over && job.0["deleteAfterRun"] == true {
            file.jobs.retain(|job| job.id() != run.job);
        }
        file.write(&self.home)
    }

    /// Records why the check of a job prevented its run, which has neither a turn nor a record. Returns the error of a check
    /// that could not run.
    pub(crate) fn skip(&self, id: &str, why: Result<String>) -> Result<()> {
        let _lock = self.lock()?;
        let mut file = JobsFile::read(&self.home)?;
        let found = file.jobs.iter_mut().find(|job| job.id() == id);
        // The job may have been removed meanwhile.
        let Some(job) = found else { return Ok(()) };
        let (status, text) = match &why {
            Ok(why) => (RunStatus::Skipped, why),
            Err(e) => (RunStatus::Error, &e.message),
        };
        let checks = job.0["state"]["checks"].as_u64().unwrap_or_default() + 1;
        job.set_state("checks", checks.into());
        job.set_state("lastStatus", status.name().into());
        job.set_state("lastError", to_single_line(text, 300).into());
        file.write(&self.home)?;
        why.map(drop)
            .doing(format_args!("the job {}", to_single_line(id, 40)))
    }

    fn record(&self, run: &Run) -> Result<()> {
        self.runs.record(run)
    }

    fn lock(&self) -> Result<Lock> {
        let lock = Lock::acquire(&self.home.lock("cron"), LOCK_WAIT).doing("changing the jobs");
        lock.map_err(|e| self.home.hinted(e))
    }

    /// Reads, changes and writes the file under the lock, and notifies the gateway. If `change` fails, the file is unchanged.
    fn edit(&self, change: impl FnOnce(&mut JobsFile) -> Result<Job>) -> Result<Job> {
        let _lock = self.lock()?;
        let mut file = JobsFile::read(&self.home)?;
        let job = change(&mut file)?;
        file.write(&self.home)?;
        notify::signal(&self.home);
        Ok(job)
    }
}
