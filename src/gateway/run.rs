//! A run of a job: a message in a separate conversation, whose answer goes to the job's chat.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::Builder;
use std::time::SystemTime;

use crate::bus::{Inbound, Inbox, JobRun, Origin, Response, Source};
use crate::cancel::Cancel;
use crate::cron::{CHANNEL, DueRun, Job, JobCheck, Jobs, RunEnd, heartbeat, report, schedule};
use crate::error::{Context, Error, Kind, Result};
use crate::log::{Logger, log_error};
use crate::message::Message;
use crate::paths::{Home, session_name};
use crate::session::{FileStore, Session, archive};
use crate::sync;
use crate::text::{clip, fenced, to_single_line};

/// Number of earlier runs of a job whose conversations are retained.
const KEPT_RUNS: usize = 10;
/// Maximum size of a check's output in the question, in bytes.
const MAX_OUTPUT: usize = 30_000;
/// Maximum number of concurrent checks; each is a process.
const MAX_CHECKS: usize = 4;

pub(super) fn now() -> i64 {
    schedule::millis(SystemTime::now())
}

/// Returns the conversation of a job's next run, and whether it starts empty.
fn job_session(home: &Home, job: &Job) -> Result<(String, bool)> {
    match job.session() {
        Some(key) => Ok((
            archive::find(home, key).or_else(|_| session_name("cli", key))?,
            false,
        )),
        None => Ok((session_name(CHANNEL, job.id())?, true)),
    }
}

/// Returns a run and its message with this question.
pub(crate) fn run_message(
    home: &Home,
    due: &DueRun,
    question: String,
) -> Result<(JobRun, Inbound)> {
    let job = &due.job;
    let (session, is_fresh) = job_session(home, job)?;
    let origin = Origin {
        channel: CHANNEL.to_owned(),
        chat: job.id().to_owned(),
    };
    let run = JobRun {
        job: job.id().to_owned(),
        name: to_single_line(job.name(), 80),
        at: due.at,
        is_fresh,
    };
    let message = Inbound {
        id: due.name(),
        reply_to: job.to(),
        model: job.model().unwrap_or_default().to_owned(),
        source: Source::Job(run.clone()),
        ..Inbound::message(origin, session, question)
    };
    Ok((run, message))
}

/// Empties the conversation of a run, unless the job continues a conversation or the conversation contains this run.
pub(crate) fn begin_run(home: &Home, message: &Inbound) -> Result<()> {
    match &message.source {
        Source::Job(run) if run.is_fresh => {}
        _ => return Ok(()),
    }
    if message.has_begun {
        let store = FileStore::new(home.clone());
        let stored = Session::peek(&store, &message.session)?.messages;
        let is_own = |stored: &Message| matches!(stored, Message::User(user) if user.ids.contains(&message.id));
        if stored.iter().any(is_own) {
            return Ok(());
        }
    }
    let cancel = Cancel::new(None);
    archive::reset(home, &message.session, &cancel, SystemTime::now())?;
    archive::keep_newest_segments(home, &message.session, KEPT_RUNS, &cancel)
}

/// Returns the result of a run, and the text for its chat.
pub(crate) fn end_of_run(run: &JobRun, response: &Response) -> (RunEnd, String) {
    let answer = response.answer_for_chat();
    let Some(e) = &response.error else {
        let told = report(&answer).to_owned();
        return match told.as_str() {
            "" => (RunEnd::Quiet, told),
            _ => (RunEnd::Answered(told.clone()), told),
        };
    };
    let told = if run.job == heartbeat::ID {
        // The next heartbeat will try again.
        String::new()
    } else if answer.is_empty() {
        format!("⚠️ The job “{}” failed: {}", run.name, e.message)
    } else {
        answer
    };
    (RunEnd::Failed(e.message.clone()), told)
}

/// Returns the title of the note that the chat's conversation gets with an answer.
pub(crate) fn note_title(run: &JobRun) -> String {
    format!("The job “{}” sent this to the chat", run.name)
}

/// Runs the command of a check until it ends or is cancelled. Returns what it printed, or the reason for not asking the model.
/// An error means that the command could not run or did not end.
pub(crate) type CheckCommand =
    dyn Fn(&JobCheck, &Cancel) -> Result<Result<String, String>> + Send + Sync;

/// Returns the question of a job whose check printed output.
pub(crate) fn question_with(job: &Job, output: &str) -> String {
    let output = fenced(clip(output, MAX_OUTPUT));
    let check = job.check();
    let command = to_single_line(check.as_ref().map_or("", JobCheck::command), 200);
    format!("{}\n\nOutput of {command}:\n{output}", job.question())
}

/// Adds the runs of jobs to the inbox, after their checks if they have one.
pub(crate) struct RunStarter {
    pub(super) jobs: Jobs,
    pub(super) cancel: Cancel,
    pub(super) log: Logger,
    /// Runs checks; if `None`, jobs with a check do not run.
    check: Option<Arc<CheckCommand>>,
    /// Number of running checks, and the end of one.
    running: Mutex<usize>,
    ended: Condvar,
    /// Names of the runs whose checks are running.
    checking: Mutex<BTreeSet<String>>,
}

impl RunStarter {
    pub(crate) fn new(
        jobs: Jobs,
        cancel: Cancel,
        log: Logger,
        check: Option<Arc<CheckCommand>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            jobs,
            cancel,
            log,
            check,
            running: Mutex::new(0),
            ended: Condvar::new(),
            checking: Mutex::default(),
        })
    }

    pub(super) fn checking(&self) -> MutexGuard<'_, BTreeSet<String>> {
        sync::lock(&self.checking)
    }

    /// Adds a run, or starts its check first.
    pub(super) fn start(self: &Arc<Self>, due: DueRun, inbox: &Inbox) -> Result<()> {
        let Some(job_check) = due.job.check() else {
            return self.add(&due, due.job.question(), inbox);
        };
        self.checking().insert(due.name());
        let (own, inbox) = (self.clone(), inbox.clone());
        let check = move || {
            let result = own.check(&due, &job_check, &inbox);
            own.checking().remove(&due.name());
            log_error(&own.log, result);
        };
        let thread = Builder::new().name("check".to_owned()).spawn(check);
        thread.map(drop).doing("starting a thread")
    }

    fn check(&self, due: &DueRun, job_check: &JobCheck, inbox: &Inbox) -> Result<()> {
        let is_full = |running: &mut usize| *running >= MAX_CHECKS;
        *sync::wait_while(&self.ended, sync::lock(&self.running), is_full) += 1;
        let result = match &self.check {
            Some(check) => check(job_check, &self.cancel),
            None => Err(Error::failed("a check needs tools.exec")),
        };
        *sync::lock(&self.running) -= 1;
        self.ended.notify_one();
        let why = match result {
            Ok(Ok(output)) => return self.add(due, question_with(&due.job, &output), inbox),
            // The next start repeats the check.
            _ if self.cancel.reason().is_some() => return Ok(()),
            Ok(Err(why)) => Ok(why),
            Err(e) => Err(e),
        };
        self.jobs.skip(due.job.id(), why)
    }

    pub(super) fn add(&self, due: &DueRun, question: String, inbox: &Inbox) -> Result<()> {
        let (_, message) = run_message(self.jobs.home(), due, question)?;
        match inbox.add(message) {
            // The next start adds the run again.
            Err(Error {
                kind: Kind::Interrupted,
                ..
            }) => Ok(()),
            added => added.map(drop).doing("starting a job"),
        }
    }
}
