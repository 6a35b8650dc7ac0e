//! Runs a job: its check, then its question in a conversation of its own, and the record of its end.
//!
//! A run is a message. A gateway adds it when it is due, and `bantam cron run` makes one and runs it in its own process.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use super::{Dispatcher, run_check};
use crate::bus::{Inbound, JobRun, Origin, Response, Source, Work};
use crate::cancel::Cancel;
use crate::config::Loaded;
use crate::cron::{CHANNEL, DueRun, Job, Jobs, MIN_GRACE, RunStatus};
use crate::cron::{heartbeat, report, schedule};
use crate::error::{Error, Kind, Result};
use crate::log::{Level, log_error};
use crate::message::Message;
use crate::paths::{Home, session_name};
use crate::session::{FileStore, Session, archive};
use crate::storage::queue::MAX_STARTS;
use crate::sync;
use crate::text::{clip, fenced, to_single_line};

/// Number of earlier runs of a job whose conversations are retained.
const KEPT_RUNS: usize = 10;
/// Maximum size of a check's output in the question, in bytes.
const MAX_OUTPUT: usize = 30_000;

pub(crate) fn now() -> i64 {
    schedule::millis(SystemTime::now())
}

/// Returns the message of a run that starts now. `owner` is the chat of a job without one.
pub(crate) fn run_message(home: &Home, due: &DueRun, owner: Option<String>) -> Result<Inbound> {
    let (job, reply_to) = (&due.job, due.job.to(owner));
    let session = match job.session() {
        Some(key) => archive::find(home, key).or_else(|_| session_name("cli", key))?,
        None => session_name(CHANNEL, job.id())?,
    };
    let origin = Origin {
        channel: CHANNEL.to_owned(),
        chat: job.id().to_owned(),
    };
    let run = JobRun {
        job: job.id().to_owned(),
        name: to_single_line(job.name(), 80),
        due: due.due,
        at: now(),
    };
    let text = match reply_to {
        Some(_) => job.question(),
        None => job.message().to_owned(),
    };
    Ok(Inbound {
        id: due.id(),
        reply_to,
        model: job.model().unwrap_or_default().to_owned(),
        source: Source::Job(run),
        ..Inbound::message(origin, session, text)
    })
}

/// What became of a run.
pub(crate) enum JobEnd {
    /// The model was asked. The text is for the chat of the job, and may be empty.
    Asked(Box<Response>, String),
    /// The check said no, for this reason.
    Skipped(String),
}

/// Runs jobs, for the clock and for `bantam cron run`.
pub(crate) struct JobRunner {
    pub jobs: Jobs,
    loaded: Arc<Loaded>,
    /// Locked during a check: they take no turn, and many could exhaust a small machine.
    checking: Mutex<()>,
}

impl JobRunner {
    pub(crate) fn new(jobs: Jobs, loaded: &Arc<Loaded>) -> Self {
        Self {
            jobs,
            loaded: loaded.clone(),
            checking: Mutex::default(),
        }
    }

    /// Returns the time in milliseconds after which a run that has not begun is missed, and an interrupted one is not resumed.
    pub(super) fn grace(&self) -> i64 {
        let minutes = i64::try_from(self.loaded.config.cron.grace_minutes);
        minutes.unwrap_or(i64::MAX).saturating_mul(60_000)
    }

    /// Runs a job: `ask` sends the message of the run to the model, in a conversation with the given title. The end is recorded
    /// when this returns.
    ///
    /// # Errors
    /// Returns an error if the model was not asked: the check failed, or the run was interrupted or is running elsewhere, which
    /// is not recorded.
    pub(crate) fn run_job(
        &self,
        mut message: Inbound,
        cancel: &Cancel,
        ask: impl FnOnce(Inbound, &str) -> Result<Response>,
    ) -> Result<JobEnd> {
        let Source::Job(run) = message.source.clone() else {
            return Err(Error::failed("the message is not a run of a job"));
        };
        let all = self.jobs.list()?;
        let job = all.iter().find(|job| job.id() == run.job);
        if job.is_none() && run.job != heartbeat::ID {
            return Ok(JobEnd::Skipped("the job was removed".to_owned()));
        }
        if let Some(check) = job.and_then(Job::check) {
            let checked = self.jobs.messages.without_turn(&message.session, || {
                let _other = sync::lock(&self.checking);
                run_check(&self.loaded, &check, cancel)
            });
            match checked {
                Ok(Ok(output)) => {
                    let command = to_single_line(check.command(), 200);
                    let output = fenced(clip(&output, MAX_OUTPUT));
                    let added = format!("\n\nOutput of {command}:\n{output}");
                    message.text.push_str(&added);
                }
                Ok(Err(why)) => {
                    self.jobs.finish(&run, RunStatus::Skipped, &why)?;
                    return Ok(JobEnd::Skipped(why));
                }
                Err(e) if e.kind == Kind::Interrupted => return Err(e),
                Err(e) => {
                    self.jobs.finish(&run, RunStatus::Error, &e.message)?;
                    return Err(e.doing(format_args!("the job {}", run.name)));
                }
            }
        }
        let title = job.map_or(run.name.as_str(), Job::message);
        let (home, session) = (self.jobs.home(), message.session.clone());
        let mut response = match begin_run(home, &message).and_then(|()| ask(message, title)) {
            Err(e) if matches!(e.kind, Kind::Interrupted | Kind::Busy) => return Err(e),
            asked => asked.unwrap_or_else(|e| Response::failed(&session, e)),
        };
        let answer = response.answer_for_chat();
        let news = report(&answer);
        let (status, text, told) = match &response.error {
            None if news.is_empty() => (RunStatus::Quiet, news, String::new()),
            None => (RunStatus::Ok, news, news.to_owned()),
            Some(e) => {
                let text = e.message.as_str();
                let told = match answer.as_str() {
                    // The next heartbeat will try again.
                    _ if run.job == heartbeat::ID => String::new(),
                    "" => format!("⚠️ The job “{}” failed: {text}", run.name),
                    answer => answer.to_owned(),
                };
                (RunStatus::Error, text, told)
            }
        };
        if let Err(e) = self.jobs.finish(&run, status, text) {
            response.error.get_or_insert(e.doing("recording the run"));
        }
        Ok(JobEnd::Asked(Box::new(response), told))
    }
}

/// Empties the conversation of a run, unless the job continues a conversation or the conversation contains this run.
fn begin_run(home: &Home, message: &Inbound) -> Result<()> {
    let own = session_name(CHANNEL, &message.origin.chat)?;
    if message.session != own {
        return Ok(());
    }
    if message.has_begun {
        let store = FileStore::new(home.clone());
        let stored = Session::peek(&store, &own)?.messages;
        let is_of_run = |stored: &Message| matches!(stored, Message::User(user) if user.ids.contains(&message.id));
        if stored.iter().any(is_of_run) {
            return Ok(());
        }
    }
    let cancel = Cancel::new(None);
    archive::reset(home, &own, &cancel, SystemTime::now())?;
    archive::keep_newest_segments(home, &own, KEPT_RUNS, &cancel)
}

/// Returns the title of the note that the chat's conversation gets with the answer of a run.
pub(crate) fn note_title(source: &Source) -> Option<String> {
    match source {
        Source::Job(run) => Some(format!("The job “{}” sent this to the chat", run.name)),
        _ => None,
    }
}

impl Dispatcher {
    /// Ends the run of a job that crashed the program or is too late, and returns the text for its chat.
    pub(super) fn give_up_job(&self, message: &Inbound, run: &JobRun) -> Option<String> {
        let runner = self.runner.as_ref()?;
        let is_late = |since: i64, grace: i64| now().saturating_sub(since) > grace;
        let (status, what) = match message.has_begun {
            _ if message.starts >= MAX_STARTS => {
                (RunStatus::Error, "crashed the program three times")
            }
            true if is_late(run.at, runner.grace()) => {
                let what = "was interrupted when the program ended; its effects are unknown";
                (RunStatus::Error, what)
            }
            false if is_late(run.due, runner.grace().max(MIN_GRACE)) => {
                // Its gateway has ended, or other work took the time.
                (RunStatus::Skipped, "was missed: it could not start in time")
            }
            _ => return None,
        };
        let text = format!("The job “{}” {what}.", run.name);
        if message.reply_to.is_some() {
            (self.log)(Level::Warn, &text);
        }
        log_error(&self.log, runner.jobs.finish(run, status, what));
        Some(text)
    }

    /// Runs a job and posts its answer. If the program is ending, the message stays open.
    pub(super) fn answer_job(self: &Arc<Self>, work: &mut Work) {
        let (message, Some(runner)) = (work.first().clone(), &self.runner) else {
            return;
        };
        let ended = runner.run_job(message.clone(), &self.cancel, |asked, title| {
            let agent = self.agents.agent()?;
            let budget = agent.budget(&asked.session, &asked.origin.channel);
            work.messages = vec![asked];
            self.run(work, &agent, &budget, title)
        });
        match ended {
            Ok(JobEnd::Asked(response, text)) => self.finish(work, *response, &text),
            Err(_) if self.cancel.reason().is_some() => {}
            ended => {
                log_error(&self.log, ended.map(drop));
                self.reply(&message, "");
            }
        }
    }
}
