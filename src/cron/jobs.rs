//! The jobs on disk: reading, changing, claiming a run and recording its end.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::job::{Due, Job};
use super::runs::{self, Outcome, Run, Status};
use super::schedule::{self, Cron, Millis, Schedule};
use crate::cancel::Cancel;
use crate::disk::{Lock, Replacement};
use crate::error::{Context, Error, Kind, Result};
use crate::notify;
use crate::paths::{Home, TELEGRAM, session_name, telegram_chat};
use crate::text::{nearest, one_line};
use crate::zone::Zone;

/// The jobs of a home.
#[derive(Clone)]
pub struct Jobs {
    home: Home,
    /// What of the environment says which zone is meant.
    env: BTreeMap<String, String>,
}

/// A job to be.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// Empty: the beginning of its message stands for it.
    pub name: String,
    pub message: String,
    pub when: Option<When>,
    /// What times of day are meant in; empty: the zone of this machine.
    pub tz: String,
    /// `telegram:CHAT`; empty: nowhere.
    pub to: String,
    /// The conversation to continue; empty: each run begins anew.
    pub session: String,
}

#[derive(Clone, Debug)]
pub enum When {
    /// As [`schedule::at`] reads it.
    At(String),
    /// Seconds.
    Every(u64),
    /// An expression.
    Cron(String),
}

/// Who makes a job. What a model makes is bounded, as nobody looks on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    User,
    Model,
}

/// Why a run is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Its time has come, at most this long ago.
    Due(Millis),
    /// Somebody wants it now.
    Asked,
}

/// What becomes of jobs for a single time. While the clock has not been set they wait: it may show any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneShots {
    Run,
    Wait,
}

/// The right to run a job now, given up when dropped. A claim that is never finished becomes a run of unknown outcome.
pub struct Claim {
    pub job: Job,
    /// The job as it was before.
    before: Job,
    /// When the run began; its name in the record.
    at: Millis,
    _lock: Lock,
}

impl Claim {
    /// When the run began: its name in the record.
    pub fn at(&self) -> Millis {
        self.at
    }
}

/// What [`Jobs::look`] found.
#[derive(Debug, Default)]
pub struct Looked {
    /// The ids of those that are to run now.
    pub due: Vec<String>,
    /// Those that were missed, and when they should have run.
    pub missed: Vec<(Job, Millis)>,
    /// Those whose last run has been recorded as of unknown outcome since the last look.
    pub interrupted: Vec<Job>,
    /// When the next one is due.
    pub next: Option<Millis>,
    /// One sentence for each job that cannot be understood.
    pub broken: Vec<String>,
}

/// A process that is being started holds its starter's locks until it runs its own program: so long a lock that was given up
/// may still seem to be held.
const FORK: Duration = Duration::from_millis(100);
/// Nobody holds the lock for longer than a few writes take.
const WAIT: Duration = Duration::from_secs(10);
/// A file of more bytes is not one of jobs.
const MOST_BYTES: u64 = 4 << 20;
const MOST_JOBS: usize = 1000;
/// Of all jobs, when a model adds one.
const MOST_FOR_MODELS: usize = 100;
/// Seconds.
const SHORTEST_FOR_MODELS: u64 = 60;

impl Jobs {
    /// `env` is the environment; only what names a zone is kept.
    pub fn new(home: Home, env: &BTreeMap<String, String>) -> Self {
        let mut kept = BTreeMap::new();
        for name in ["TZ", "TZDIR"] {
            if let Some(value) = env.get(name) {
                kept.insert(name.to_owned(), value.clone());
            }
        }
        Self { home, env: kept }
    }

    /// The zone of that name, else the one of this machine.
    pub fn zone(&self, name: Option<&str>) -> Result<Zone> {
        name.map_or_else(|| Zone::local(&self.env), |name| Zone::named(name, &self.env))
    }

    /// The next times of a job, in the zone that it is meant in.
    pub fn upcoming(&self, job: &Job, now: Millis, count: usize) -> Result<(Zone, Vec<Millis>)> {
        let (zone, schedule) = (self.zone(job.tz())?, job.schedule()?);
        let times =
            std::iter::successors(schedule.next(now, &zone), |at| schedule.next(*at, &zone)).take(count).collect();
        Ok((zone, times))
    }

    /// All jobs, as they are now. Needs no lock: the file is replaced as a whole.
    pub fn list(&self) -> Result<Vec<Job>> {
        self.read().map(|book| book.jobs)
    }

    /// When the file was last written, by the clock of that time.
    pub fn written(&self) -> Option<Millis> {
        Some(schedule::millis(fs_err::metadata(self.home.cron_jobs()).ok()?.modified().ok()?))
    }

    /// Every recorded run, the oldest first; those whose program died are recorded as such first.
    pub fn history(&self, now: Millis) -> Result<Vec<Run>> {
        let path = self.home.cron_runs();
        let runs = runs::read(&path)?;
        if runs.iter().all(|run| run.status != Status::Running) {
            return Ok(runs);
        }
        let _lock = self.lock()?;
        self.settle(runs, now)
    }

    pub fn add(&self, draft: &Draft, author: Author, now: Millis) -> Result<Job> {
        let fields = self.drafted(draft, author, now)?;
        self.edit(&mut |book| {
            let most = if author == Author::Model { MOST_FOR_MODELS } else { MOST_JOBS };
            if book.jobs.len() >= most {
                return Err(Error::new(Kind::Limit, format!("there are {} jobs already", book.jobs.len()))
                    .hint("remove some that are no longer needed"));
            }
            let mut hasher = DefaultHasher::new();
            (now, std::process::id(), &draft.message).hash(&mut hasher);
            let mut id = hasher.finish();
            let text = |id: u64| format!("{:06x}", id & 0xff_ffff);
            while book.jobs.iter().any(|job| job.id() == text(id)) {
                id = id.wrapping_add(1);
            }
            let mut job = Job { fields: fields.clone() };
            job.fields.insert("id".to_owned(), text(id).into());
            book.jobs.push(job.clone());
            Ok(job)
        })
    }

    /// What a draft is as an object; all but its id.
    fn drafted(&self, draft: &Draft, author: Author, now: Millis) -> Result<Map<String, Value>> {
        let message = draft.message.trim();
        if message.is_empty() {
            return Err(Error::usage("the job has no message").hint("say what it is to do: -m \"...\""));
        }
        let tz = Some(draft.tz.trim()).filter(|tz| !tz.is_empty());
        let zone = self.zone(tz).map_err(|e| Error { kind: Kind::Usage, ..e })?;
        let tz_written = tz.map_or(Value::Null, Value::from);
        let (schedule, written): (_, Vec<(&str, Value)>) = match &draft.when {
            None => return Err(Error::usage("the job has no time").hint("-e SECONDS, -c EXPRESSION or --at TIME")),
            Some(When::At(text)) => {
                let at = schedule::at(text, now, &zone)?;
                (Schedule::At(at), vec![("kind", "at".into()), ("atMs", at.into()), ("tz", tz_written)])
            }
            Some(When::Every(seconds)) => {
                let shortest = if author == Author::Model { SHORTEST_FOR_MODELS } else { 1 };
                let interval = seconds.checked_mul(1000).and_then(|ms| Millis::try_from(ms).ok());
                let Some(interval) = interval.filter(|_| *seconds >= shortest) else {
                    return Err(Error::usage(format!("{seconds} s is no interval: {shortest} s is the shortest")));
                };
                (
                    Schedule::Every { interval, anchor: now },
                    vec![("kind", "every".into()), ("everyMs", interval.into())],
                )
            }
            Some(When::Cron(expr)) => {
                let written = vec![("kind", "cron".into()), ("expr", expr.trim().into()), ("tz", tz_written)];
                (Schedule::Cron(Cron::parse(expr)?), written)
            }
        };
        let Some(next) = schedule.next(now, &zone) else {
            return Err(match schedule {
                Schedule::At(at) => Error::usage(format!("{} has passed", zone.stamp(at / 1000)))
                    .hint(format!("it is {} now", zone.stamp(now / 1000))),
                _ => Error::usage("the job would never run: there is no such day").hint("choose another day or month"),
            });
        };
        let deliver = Value::Bool(!draft.to.is_empty());
        let mut payload = vec![("kind", "agent_turn".into()), ("message", message.into()), ("deliver", deliver)];
        if !draft.to.is_empty() {
            payload.push(("to", telegram_chat(&draft.to)?.into()));
            payload.push(("channel", TELEGRAM.into()));
        }
        if !draft.session.is_empty() {
            session_name("cli", &draft.session)?;
            payload.push(("session", draft.session.as_str().into()));
        }
        let is_single = matches!(schedule, Schedule::At(_));
        let name = one_line(if draft.name.trim().is_empty() { message } else { &draft.name }, 60);
        Ok(object(vec![
            ("name", name.into()),
            ("enabled", true.into()),
            ("schedule", Value::Object(object(written))),
            ("payload", Value::Object(object(payload))),
            ("state", Value::Object(object(vec![("nextRunAtMs", next.into())]))),
            ("createdAtMs", now.into()),
            ("updatedAtMs", now.into()),
            ("deleteAfterRun", is_single.into()),
        ]))
    }

    pub fn remove(&self, id: &str) -> Result<Job> {
        self.edit(&mut |book| {
            let at = book.find(id)?;
            Ok(book.jobs.remove(at))
        })
    }

    /// Lets it run again. What was missed while it was disabled is not made up for.
    pub fn enable(&self, id: &str, now: Millis) -> Result<Job> {
        self.edit(&mut |book| {
            let at = book.find(id)?;
            let job = &mut book.jobs[at];
            let next = job.schedule()?.next(now, &self.zone(job.tz())?);
            if next.is_none() {
                return Err(Error::failed("its time has passed").hint("add a new job with another time"));
            }
            job.fields.insert("enabled".to_owned(), true.into());
            job.fields.insert("updatedAtMs".to_owned(), now.into());
            job.set_state("nextRunAtMs", json!(next));
            Ok(job.clone())
        })
    }

    pub fn disable(&self, id: &str, now: Millis) -> Result<Job> {
        self.edit(&mut |book| {
            let at = book.find(id)?;
            let job = &mut book.jobs[at];
            job.fields.insert("enabled".to_owned(), false.into());
            job.fields.insert("updatedAtMs".to_owned(), now.into());
            job.set_state("nextRunAtMs", Value::Null);
            Ok(job.clone())
        })
    }

    /// What is to run now, what was missed and when the next one is due. Missed runs, and those whose program died, are
    /// recorded; when there is nothing new, nothing is written.
    pub fn look(&self, now: Millis, grace: Millis, singles: OneShots) -> Result<Looked> {
        let _lock = self.lock()?;
        let mut book = self.read()?;
        let runs = self.settle(runs::read(&self.home.cron_runs())?, now)?;
        let mut looked = Looked::default();
        let mut changed = false;
        for job in &mut book.jobs {
            let last = runs.iter().rev().find(|run| run.job == job.id());
            if let Some(run) = last.filter(|run| run.status == Status::Unknown && !job.knows(run)) {
                job.set_last(run);
                looked.interrupted.push(job.clone());
                changed = true;
            }
            if singles == OneShots::Wait && matches!(job.schedule(), Ok(Schedule::At(_))) {
                continue;
            }
            let zone = self.zone(job.tz()).doing(format_args!("the job {}", one_line(job.id(), 40)));
            let judged = zone.and_then(|zone| Ok((job.due(now, grace, runs::served(&runs, job, now), &zone)?, zone)));
            let next = match judged {
                Err(e) => {
                    looked.broken.push(e.message);
                    continue;
                }
                Ok((Due::Now, _)) => {
                    // One that is still running is not started again.
                    if runs.iter().any(|run| run.job == job.id() && run.status == Status::Running) {
                        looked.next = Some(now + 60_000);
                    } else {
                        looked.due.push(job.id().to_owned());
                    }
                    continue;
                }
                Ok((Due::Missed(at), zone)) => {
                    let run = Run {
                        job: job.id().to_owned(),
                        at: now,
                        ended: None,
                        status: Status::Missed,
                        error: String::new(),
                    };
                    runs::record(&self.home.cron_runs(), &run)?;
                    job.advance(now, &zone)?;
                    job.set_state("lastStatus", Status::Missed.name().into());
                    looked.missed.push((job.clone(), at));
                    changed = true;
                    job.next_run()
                }
                Ok((Due::Later(next), _)) => {
                    if job.next_run() != next {
                        job.set_state("nextRunAtMs", json!(next));
                        changed = true;
                    }
                    next
                }
            };
            looked.next = [looked.next, next].into_iter().flatten().min();
        }
        if changed {
            self.prepare(&book)?.commit()?;
        }
        Ok(looked)
    }

    /// Claims a run. Both that it begins and when the job runs next are on disk before this returns. `None` when it is not
    /// due after all: somebody else was faster, or it has been changed.
    pub fn claim(&self, id: &str, trigger: Trigger, now: Millis) -> Result<Option<Claim>> {
        let _lock = self.lock()?;
        let mut book = self.read()?;
        let at = book.find(id)?;
        let job = &mut book.jobs[at];
        let name = session_name("cron", job.id())?;
        let path = self.home.cron_runs();
        // Before this run's own lock is held, which would look like that of an earlier one.
        let runs = self.settle(runs::read(&path)?, now)?;
        let run = Lock::acquire(&self.home.run_lock(&name), FORK, &Cancel::new(None)).map_err(|e| match e.kind {
            Kind::Busy => Error::new(Kind::Busy, format!("the job {} is running already", one_line(id, 40)))
                .hint("wait for its end; bantam cron history shows when it began"),
            _ => e,
        })?;
        let zone = self.zone(job.tz())?;
        let grace = if let Trigger::Due(grace) = trigger { grace } else { 0 };
        let due = job.due(now, grace, runs::served(&runs, job, now), &zone)?;
        let before = job.clone();
        match due {
            Due::Later(_) | Due::Missed(_) if trigger != Trigger::Asked => return Ok(None),
            // What is overdue is served by this run, too.
            Due::Now | Due::Missed(_) => job.advance(now, &zone)?,
            Due::Later(next) => job.set_state("nextRunAtMs", json!(next)),
        }
        let job = job.clone();
        // Two runs of a job never begin in the same millisecond: this is a run's name.
        let mut at = now;
        while runs.iter().any(|run| run.job == job.id() && run.at == at) {
            at += 1;
        }
        let run_begins =
            Run { job: job.id().to_owned(), at, ended: None, status: Status::Running, error: String::new() };
        // On a full disk this fails first, and nothing has happened.
        let prepared = self.prepare(&book)?;
        runs::record(&path, &run_begins)?;
        prepared.commit()?;
        Ok(Some(Claim { job, before, at, _lock: run }))
    }

    /// Records the end of a run. A single job that went well is removed, if it asks for that.
    pub fn finish(&self, claim: Claim, outcome: &Outcome, now: Millis) -> Result<()> {
        let Claim { job, at, _lock: running, .. } = claim;
        self.end(job.id(), at, outcome, now, Some(running))
    }

    /// The same for a run of a program that died when all but this was done.
    pub fn finish_late(&self, job: &str, at: Millis, now: Millis) -> Result<()> {
        self.end(job, at, &Ok(()), now, None)
    }

    fn end(&self, job: &str, at: Millis, outcome: &Outcome, now: Millis, running: Option<Lock>) -> Result<()> {
        let _lock = self.lock()?;
        let (status, error) = match outcome {
            Ok(()) => (Status::Ok, ""),
            Err(e) => (Status::Error, e.as_str()),
        };
        let run = Run { job: job.to_owned(), at, ended: Some(now), status, error: one_line(error, 300) };
        runs::record(&self.home.cron_runs(), &run)?;
        let mut book = self.read()?;
        drop(running);
        // It may have been removed meanwhile.
        let Some(place) = book.jobs.iter().position(|other| other.id() == job) else { return Ok(()) };
        let job = &mut book.jobs[place];
        let is_single = matches!(job.schedule(), Ok(Schedule::At(_)));
        if is_single && job.is_deleted_after_run() && !job.is_enabled() && outcome.is_ok() {
            book.jobs.remove(place);
        } else {
            job.set_last(&run);
        }
        self.prepare(&book)?.commit()
    }

    /// Gives a claim back whose run has not begun: the job is due as it was before.
    pub fn put_back(&self, claim: Claim) -> Result<()> {
        let _lock = self.lock()?;
        let Claim { job, before, at, _lock: running } = claim;
        let mut book = self.read()?;
        // Whoever has changed it meanwhile has changed when it runs, too: it is left as a run that was cut short.
        let Some(place) = book.jobs.iter().position(|other| other.fields == job.fields) else { return Ok(()) };
        book.jobs[place] = before;
        self.prepare(&book)?.commit()?;
        // Last: a crash between the two makes it a run of unknown outcome, and not one that nobody ever hears of.
        let run = Run { job: job.id().to_owned(), at, ended: None, status: Status::Withdrawn, error: String::new() };
        let withdrawn = runs::record(&self.home.cron_runs(), &run);
        drop(running);
        withdrawn
    }

    /// Records the runs whose program died as of unknown outcome. The caller holds the lock.
    fn settle(&self, mut runs: Vec<Run>, now: Millis) -> Result<Vec<Run>> {
        for run in runs.iter_mut().filter(|run| run.status == Status::Running) {
            let lock = self.home.run_lock(&session_name("cron", &run.job)?);
            match Lock::acquire(&lock, FORK, &Cancel::new(None)) {
                Err(e) if e.kind == Kind::Busy => {}
                Err(e) => return Err(e),
                Ok(_free) => {
                    (run.ended, run.status) = (Some(now), Status::Unknown);
                    run.error = "the program ended before the run did".to_owned();
                    runs::record(&self.home.cron_runs(), run)?;
                }
            }
        }
        Ok(runs)
    }

    fn lock(&self) -> Result<Lock> {
        Lock::acquire(&self.home.cron_lock(), WAIT, &Cancel::new(None)).doing("changing the jobs")
    }

    /// Reads, changes and writes the file under the lock. When `change` fails, nothing is written.
    fn edit(&self, change: &mut dyn FnMut(&mut Book) -> Result<Job>) -> Result<Job> {
        let _lock = self.lock()?;
        let mut book = self.read()?;
        let result = change(&mut book)?;
        self.prepare(&book)?.commit()?;
        // A gateway need not find out by itself.
        notify::signal(&self.home);
        Ok(result)
    }

    fn prepare(&self, book: &Book) -> Result<Replacement> {
        let mut fields = book.fields.clone();
        fields.entry("version").or_insert(json!(1));
        fields.insert("jobs".to_owned(), book.jobs.iter().map(|job| Value::Object(job.fields.clone())).collect());
        let text = format!("{:#}\n", Value::Object(fields));
        Replacement::prepare(&self.home.cron_jobs(), text.as_bytes())
            .doing("saving the jobs")
            .map_err(|e| e.hint("free some space or mend the disk; the jobs are as they were"))
    }

    fn read(&self) -> Result<Book> {
        let path = self.home.cron_jobs();
        let broken = |what: String| {
            Error::config(format!("reading the jobs: {}: {what}", path.display()))
                .hint("mend the file, or move it away; it is left as it is until then")
        };
        let meta = match fs_err::metadata(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Book::default()),
            result => result.map_err(|e| broken(e.to_string()))?,
        };
        if !meta.is_file() || meta.len() > MOST_BYTES {
            return Err(broken(format!("this is no file of at most {} MB", MOST_BYTES >> 20)));
        }
        let text = fs_err::read_to_string(&path).map_err(|e| broken(e.to_string()))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        // It says line and column.
        let value: Value = serde_json::from_str(text).map_err(|e| broken(e.to_string()))?;
        let Value::Object(mut fields) = value else { return Err(broken("it holds no object".into())) };
        if fields.get("version").and_then(Value::as_u64).is_some_and(|version| version > 1) {
            return Err(broken("a newer program wrote it".into()));
        }
        let Some(Value::Array(items)) = fields.remove("jobs").or(Some(json!([]))) else {
            return Err(broken("\"jobs\" is no list".into()));
        };
        let mut jobs = Vec::with_capacity(items.len());
        for (number, item) in (1..).zip(items) {
            let job = if let Value::Object(fields) = item { Job { fields } } else { Job { fields: Map::new() } };
            if job.id().is_empty() {
                return Err(broken(format!("job {number} of the list has no id")));
            }
            jobs.push(job);
        }
        Ok(Book { fields, jobs })
    }
}

/// The file: its jobs, and what else is in it.
#[derive(Default)]
struct Book {
    fields: Map<String, Value>,
    jobs: Vec<Job>,
}

impl Book {
    /// By its id, or by a name that only one has.
    fn find(&self, id: &str) -> Result<usize> {
        if let Some(place) = self.jobs.iter().position(|job| job.id() == id) {
            return Ok(place);
        }
        let named: Vec<usize> = (0..self.jobs.len()).filter(|at| self.jobs[*at].name() == id).collect();
        let (shown, ids) = (one_line(id, 40), |at: &usize| self.jobs[*at].id());
        match named.as_slice() {
            [one] => Ok(*one),
            [] => {
                let near = nearest(id, self.jobs.iter().map(Job::id)).map(|near| format!("did you mean {near}?"));
                let hint = near.unwrap_or_else(|| "bantam cron list shows them".to_owned());
                Err(Error::failed(format!("there is no job \"{shown}\"")).hint(hint))
            }
            several => {
                let ids: Vec<&str> = several.iter().map(ids).collect();
                Err(Error::failed(format!("several jobs are called \"{shown}\""))
                    .hint(format!("by id: {}", ids.join(", "))))
            }
        }
    }
}

/// An object of these fields.
fn object(fields: Vec<(&str, Value)>) -> Map<String, Value> {
    // Not collected: that would bring a sort of its own.
    let mut object = Map::new();
    for (name, value) in fields {
        object.insert(name.to_owned(), value);
    }
    object
}
