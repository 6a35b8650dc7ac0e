//! A run of a job: a message in a conversation of its own, whose answer goes to the chat that the job names.

use std::collections::HashMap;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::SystemTime;

use super::semaphore::Semaphore;
use crate::bus::{Inbound, Origin, Response};
use crate::cancel::Cancel;
use crate::cron::{ActiveRun, Job, JobCheck, Jobs, RunResult, heartbeat, is_quiet, schedule};
use crate::error::{Context, Result};
use crate::log::{Level, Sink};
use crate::notify;
use crate::outbox::{Item, Note, Outbox};
use crate::paths::{Home, session_name};
use crate::session::archive;
use crate::text::{clip, fenced, one_line};

/// The name of the channel.
const CHANNEL: &str = "cron";
/// Earlier runs of a job whose conversations are kept.
const KEPT_RUNS: usize = 10;

/// The conversation of a job's next run, and whether it starts empty.
fn job_session(home: &Home, job: &Job) -> Result<(String, bool)> {
    match job.session() {
        Some(key) => Ok((
            archive::find(home, key).or_else(|_| session_name("cli", key))?,
            false,
        )),
        None => Ok((session_name(CHANNEL, job.id())?, true)),
    }
}

/// Archives the conversation of a job's last run and deletes the oldest ones.
fn reset_session(home: &Home, session: &str) -> Result<()> {
    let cancel = Cancel::new(None);
    archive::reset(home, session, &cancel, SystemTime::now())?;
    archive::thin(home, session, KEPT_RUNS, &cancel)
}

pub(super) fn now() -> i64 {
    schedule::millis(SystemTime::now())
}

/// Names a run in the message that starts it and in the answer in the outbox.
fn run_id(job: &str, at: i64) -> String {
    format!("{CHANNEL}:{job}:{at}")
}

/// A run of a job, or a heartbeat, that is under way.
pub(crate) struct JobRun {
    active: ActiveRun,
    pub session: String,
    /// The conversation is emptied before the run.
    is_fresh: bool,
}

impl JobRun {
    pub(crate) fn new(home: &Home, active: ActiveRun) -> Result<Self> {
        let (session, is_fresh) = job_session(home, &active.job)?;
        Ok(Self {
            active,
            session,
            is_fresh,
        })
    }

    pub(crate) fn job(&self) -> &Job {
        &self.active.job
    }

    /// When it began.
    pub(crate) fn at(&self) -> i64 {
        self.active.at
    }

    pub(crate) fn origin(&self) -> Origin {
        Origin {
            channel: CHANNEL.to_owned(),
            chat: self.active.job.id().to_owned(),
        }
    }

    /// Records that the check decided against the run.
    pub(crate) fn skip(&self, jobs: &Jobs, why: &str) -> Result<()> {
        jobs.skip(&self.active, why)
    }

    fn id(&self) -> String {
        run_id(self.active.job.id(), self.active.at)
    }

    /// Empties the conversation, unless the job goes on with one.
    pub(crate) fn begin(&self, home: &Home) -> Result<()> {
        if self.is_fresh {
            reset_session(home, &self.session)
        } else {
            Ok(())
        }
    }

    /// What the run is to its job, and what its chat is told.
    fn outcome(&self, response: &Response) -> (RunResult, String) {
        let answer = response.answer_for_chat();
        let Some(e) = &response.error else {
            return (Ok(answer.clone()), answer);
        };
        let name = one_line(self.active.job.name(), 80);
        let told = if answer.is_empty() {
            format!("⚠️ The job “{name}” failed: {}", e.message)
        } else {
            answer
        };
        (Err(e.message.clone()), told)
    }
}

/// Runs the command of a check until it ends or the cancel stops it. The error is why the model is not asked.
pub(crate) type CheckCommand = dyn Fn(&JobCheck, &Cancel) -> Result<String, String> + Send + Sync;

/// Maximum size of a check's output in the question, in bytes.
const MAX_OUTPUT: usize = 30_000;
/// Checks that run at once: each is a process.
const MAX_CHECKS: usize = 4;

/// The question of a job whose check printed something.
pub(crate) fn question_with(job: &Job, output: &str) -> String {
    let output = fenced(clip(output, MAX_OUTPUT));
    let check = job.check();
    let command = one_line(check.as_ref().map_or("", JobCheck::command), 200);
    format!("{}\n\nOutput of {command}:\n{output}", job.question())
}

/// Starts the runs of jobs, and records how they end.
pub(crate) struct JobRunner {
    pub home: Home,
    pub jobs: Jobs,
    /// A run that would start later than this, in milliseconds, is recorded as missed.
    pub grace: i64,
    pub outbox: Outbox,
    pub cancel: Cancel,
    pub log: Sink,
    /// Runs checks; without it, jobs with a check do not run.
    pub check: Option<Arc<CheckCommand>>,
    checks: Semaphore,
    /// The runs of this gateway by their ids.
    active: Mutex<HashMap<String, JobRun>>,
}

impl JobRunner {
    pub(crate) fn new(
        home: Home,
        jobs: Jobs,
        grace: i64,
        outbox: Outbox,
        cancel: Cancel,
        log: Sink,
    ) -> Self {
        Self {
            home,
            jobs,
            grace,
            outbox,
            cancel,
            log,
            check: None,
            checks: Semaphore::new(MAX_CHECKS),
            active: Mutex::default(),
        }
    }

    /// Logs an error and returns the value of a success.
    pub(super) fn logged<T>(&self, result: Result<T>) -> Option<T> {
        result
            .map_err(|e| (self.log)(Level::Error, &e.message))
            .ok()
    }

    fn active(&self) -> MutexGuard<'_, HashMap<String, JobRun>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a run to the dispatcher, if its check has nothing against it.
    pub(super) fn start(self: &Arc<Self>, run: ActiveRun, inbound: &Sender<Inbound>) -> Result<()> {
        let Some(job_check) = run.job.check() else {
            let question = run.job.question();
            return self.send(run, question, inbound);
        };
        let (own, inbound) = (self.clone(), inbound.clone());
        let check = move || {
            let _permit = own.checks.acquire();
            let result = match &own.check {
                Some(check) => check(&job_check, &own.cancel),
                None => Err("a check needs tools.exec".to_owned()),
            };
            own.logged(match result {
                Ok(output) => {
                    let question = question_with(&run.job, &output);
                    own.send(run, question, &inbound)
                }
                // The next start finds that it was interrupted.
                Err(_) if own.cancel.reason().is_some() => Ok(()),
                Err(why) => own.jobs.skip(&run, &why),
            });
        };
        let thread = Builder::new().name("check".to_owned()).spawn(check);
        thread.map(drop).doing("starting a thread")
    }

    /// The model of the run with this id, if its job names one.
    pub(super) fn model_of(&self, id: &str) -> Option<String> {
        let active = self.active();
        active.get(id)?.job().model().map(str::to_owned)
    }

    /// Sends a run to the dispatcher.
    pub(super) fn send(
        &self,
        active: ActiveRun,
        text: String,
        inbound: &Sender<Inbound>,
    ) -> Result<()> {
        let run = JobRun::new(&self.home, active)?;
        let id = run.id();
        let message = Inbound {
            ids: vec![id.clone()],
            ..Inbound::message(run.origin(), run.session.clone(), text)
        };
        self.active().insert(id, run);
        // Nobody receives it when the program ends; the next start finds that it was interrupted.
        drop(inbound.send(message));
        Ok(())
    }

    /// The turn of a message begins: of a run, if it has this id.
    pub(super) fn begin(&self, id: &str) {
        // It waits for its conversation, and nobody else's turn must wait with it.
        let run = self.active().remove(id);
        if let Some(run) = run {
            self.logged(run.begin(&self.home));
            self.active().insert(id.to_owned(), run);
        }
    }

    /// The turn of a message is over: of a run, if it has this id.
    pub(super) fn finish(&self, id: &str, response: &Response) {
        let run = self.active().remove(id);
        if let Some(run) = run {
            self.logged(self.record(&run, response));
        }
    }

    /// Posts what came of a run, if its job has a chat, and records it. Returns the id of the message to the chat.
    pub(crate) fn record(&self, run: &JobRun, response: &Response) -> Result<Option<String>> {
        let job = &run.active.job;
        let name = one_line(job.name(), 80);
        let (outcome, text) = run.outcome(response);
        let is_quiet = outcome.as_ref().is_ok_and(|answer| is_quiet(answer));
        // A heartbeat is recorded only if it reports something.
        if job.id() == heartbeat::ID && (is_quiet || outcome.is_err()) {
            return Ok(None);
        }
        let mut posted = None;
        if let Some(to) = job.to().filter(|_| !text.is_empty() && !is_quiet) {
            let note = Note {
                title: &format!("The job “{name}” sent this to the chat"),
                from: &run.session,
                text: &text,
            };
            let item = Item::text(&to, &text);
            posted = self.logged(self.outbox.post_and_note(&item, &[run.id()], &note));
        }
        self.jobs
            .finish(job.id(), run.active.at, &outcome, Some(now()))
            .doing(format_args!("recording the run of {name}"))?;
        Ok(posted)
    }

    /// Records how runs ended that were under way when the last program ended.
    pub(super) fn settle(&self, interrupted: &[Job]) {
        for job in interrupted {
            let at = job.last_run().unwrap_or_default();
            let is_answered = self.outbox.queue().is_done(&run_id(job.id(), at));
            if is_answered.unwrap_or_default() {
                // The answer was posted; only the record of the run is missing.
                self.logged(self.jobs.finish(job.id(), at, &Ok(String::new()), None));
            } else {
                self.report(
                    job,
                    "was interrupted when the program ended; what it did is unknown.",
                );
            }
        }
    }

    /// Logs what happened to a job, and posts it to the job's chat.
    pub(super) fn report(&self, job: &Job, what: &str) {
        let text = format!("The job “{}” {what}", one_line(job.name(), 80));
        (self.log)(Level::Warn, &text);
        if let Some(to) = job.to() {
            self.logged(self.outbox.post(&Item::text(&to, &text), &[]));
            notify::signal(&self.home);
        }
    }
}
