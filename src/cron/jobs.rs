//! The jobs of a home: lists and changes them, starts due runs, and records their ends.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use super::file::JobsFile;
use super::heartbeat;
use super::job::Job;
use super::new::NewJob;
use super::runs::{Run, RunStatus, Runs};
use super::schedule::{Millis, Schedule, millis};
use crate::bus::{Inbound, Inbox, JobRun, Source};
use crate::error::{Context, Error, Kind, Result};
use crate::notify;
use crate::paths::Home;
use crate::storage::{Entry, Lock};
use crate::text::to_single_line;
use crate::timezone::Zone;

#[derive(Clone)]
pub(crate) struct Jobs {
    home: Home,
    runs: Runs,
    /// Unanswered messages, which include unfinished runs.
    pub messages: Inbox,
    /// Environment variables of the time zone.
    env: BTreeMap<String, String>,
}

/// A job that is due.
pub(crate) struct DueRun {
    pub job: Job,
    pub due: Millis,
}

/// Channel of runs.
pub(crate) const CHANNEL: &str = "cron";

impl DueRun {
    /// Returns the id of its message within the channel. It stays the same until the run is recorded in the file, so that a run
    /// is added once, and differs when a clock that was set back shows the same time again.
    pub(crate) fn id(&self) -> String {
        let last = self.job.last_run().unwrap_or_default();
        format!("{}:{}:{last}", self.job.id(), self.due)
    }
}

/// Time to wait for the lock, which other processes need only for a few writes.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// A run is on time for at least this long, because a gateway may wake up a little late.
pub(crate) const MIN_GRACE: Millis = 60_000;
/// Delay before the next look at a job that is due and cannot start yet.
const RETRY: Millis = 60_000;

impl Jobs {
    pub(crate) fn new(home: Home, env: &BTreeMap<String, String>) -> Self {
        let mut env = env.clone();
        env.retain(|name, _| matches!(name.as_str(), "TZ" | "TZDIR"));
        let runs = Runs::new(&home);
        let messages = Inbox::new(&home);
        Self {
            home,
            runs,
            messages,
            env,
        }
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
        let running = self.running()?;
        for job in &mut jobs {
            if running.iter().any(|run| run.job == job.id()) {
                job.set_state("lastStatus", RunStatus::Running.name().into());
            }
        }
        Ok(jobs)
    }

    /// Returns the job with this id or name, as stored in the file.
    pub(crate) fn find(&self, id: &str) -> Result<Job> {
        JobsFile::read(&self.home)?.find(id).cloned()
    }

    /// Returns the runs that wait for their end in the inbox.
    pub(crate) fn running(&self) -> Result<Vec<JobRun>> {
        let run = |message: Inbound| match message.source {
            Source::Job(run) => Some(run),
            _ => None,
        };
        let is_run = |entry: &Entry| entry.item["source"]["job"].is_object();
        let runs = self.messages.open(&is_run)?.into_iter();
        Ok(runs.filter_map(run).collect())
    }

    /// Returns all recorded runs, the oldest first, followed by the running ones.
    pub(crate) fn history(&self) -> Result<Vec<Run>> {
        let mut runs = self.runs.read()?;
        let running = self.running()?.into_iter();
        runs.extend(running.map(|run| Run::new(&run, RunStatus::Running, None, "")));
        Ok(runs)
    }

    pub(crate) fn add(&self, new: &NewJob, now: Millis) -> Result<Job> {
        let tz = Some(new.tz.trim()).filter(|tz| !tz.is_empty());
        let zone = tz.map_or(Ok(()), check_sign).and_then(|()| self.zone(tz));
        let zone = zone.map_err(|e| Error {
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

    /// Calls `start` for each job that is due and not running, which adds its run to the inbox. Returns the time of the next
    /// due job, and one sentence for each job that could not start. A run is added before the file changes, so that a crash in
    /// between adds it again, which the inbox ignores.
    pub(crate) fn tick(
        &self,
        now: Millis,
        grace: Millis,
        start: &dyn Fn(&DueRun) -> Result<()>,
    ) -> Result<(Option<Millis>, Vec<String>)> {
        let _lock = self.lock()?;
        let mut file = JobsFile::read(&self.home)?;
        let (stored, running) = (file.jobs.clone(), self.running()?);
        let (mut next, mut problems) = (None, Vec::new());
        for job in &mut file.jobs {
            let is_running = running.iter().any(|run| run.job == job.id());
            let looked = self.named_zone(job).and_then(|zone| {
                let due = match job.due(now, grace.max(MIN_GRACE), &zone)? {
                    Some(due) if due <= now => due,
                    later => {
                        job.set_next(later);
                        return Ok(later);
                    }
                };
                let run = DueRun {
                    job: job.clone(),
                    due,
                };
                if is_running || start(&run).map_err(|e| problems.push(e.message)).is_err() {
                    return Ok(Some(now + RETRY));
                }
                job.set_state("lastRunAtMs", now.into());
                job.advance(now, &zone)
            });
            match looked {
                Ok(at) => next = [next, at].into_iter().flatten().min(),
                Err(e) => problems.push(e.message),
            }
        }
        if file.jobs != stored {
            file.write(&self.home)?;
        }
        Ok((next, problems))
    }

    /// Records how a run ended, with its answer, or the reason why it has none. A one-time job that went well is removed if it
    /// has that option. On disk when this returns; a repetition changes nothing.
    pub(crate) fn finish(&self, run: &JobRun, status: RunStatus, text: &str) -> Result<()> {
        let ended = Run::new(run, status, Some(millis(SystemTime::now())), text);
        if matches!(status, RunStatus::Ok | RunStatus::Error) {
            self.runs.record(&ended)?;
        }
        if run.job == heartbeat::ID {
            // The heartbeat is not in the file.
            return Ok(());
        }
        self.edit(|file| {
            // The job may have been removed meanwhile.
            let Some(job) = file.jobs.iter_mut().find(|job| job.id() == run.job) else {
                return Ok(());
            };
            job.set_last(&ended);
            if matches!(job.schedule(), Ok(Schedule::At(at)) if at <= run.at) {
                job.0["enabled"] = false.into();
                job.set_next(None);
                let is_over = matches!(status, RunStatus::Ok | RunStatus::Quiet);
                if is_over && job.0["deleteAfterRun"] == true {
                    file.jobs.retain(|job| job.id() != run.job);
                }
            }
            Ok(())
        })
    }

    fn named_zone(&self, job: &Job) -> Result<Zone> {
        self.zone(job.tz())
            .doing(format_args!("the job {}", to_single_line(job.id(), 40)))
    }

    fn lock(&self) -> Result<Lock> {
        let lock = Lock::acquire(&self.home.lock("cron"), LOCK_WAIT).doing("changing the jobs");
        lock.map_err(|e| self.home.hinted(e))
    }

    /// Reads, changes and writes the file under the lock, and notifies the gateway. If `change` fails, the file is unchanged.
    fn edit<T>(&self, change: impl FnOnce(&mut JobsFile) -> Result<T>) -> Result<T> {
        let _lock = self.lock()?;
        let mut file = JobsFile::read(&self.home)?;
        let changed = change(&mut file)?;
        file.write(&self.home)?;
        notify::signal(&self.home);
        Ok(changed)
    }
}

/// Refuses a zone such as `UTC+2` or `EST5`, which would have the sign of POSIX: two hours west of Greenwich.
fn check_sign(tz: &str) -> Result<()> {
    let signed = tz.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let hours = signed.trim_start_matches(['+', '-']);
    let is_time = |c: char| c == ':' || c.is_ascii_digit();
    let is_zero = hours.trim_matches(['0', ':']).is_empty();
    if is_zero || signed.len() == tz.len() || !hours.chars().all(is_time) {
        return Ok(());
    }
    let (meant, other) = if signed.starts_with('-') {
        ("east", '+')
    } else {
        ("west", '-')
    };
    // Only whole hours have such a name.
    let hours = hours.trim_end_matches(":00").parse::<u8>();
    let named = hours.map_or(String::new(), |hours| {
        format!(", or Etc/GMT{other}{hours}, which has the sign of POSIX")
    });
    let shown = to_single_line(tz, 40);
    let what = format!("\"{shown}\" would be {meant} of Greenwich");
    Err(Error::usage(what).hint(format!("use a city such as Europe/Berlin{named}")))
}
