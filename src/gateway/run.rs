//! A run of a job in the gateway: a message in a conversation of its own, whose answer goes to the chat that the job names.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::SystemTime;

use crate::bus::{Ack, Inbound, Origin, Response};
use crate::cancel::Cancel;
use crate::cron::{ActiveRun, Job, Jobs, Outcome, heartbeat, schedule};
use crate::error::{Context, Result};
use crate::log::{Level, Sink};
use crate::notify;
use crate::outbox::{Item, Note, Outbox};
use crate::paths::{Home, session_name};
use crate::session::archive;
use crate::text::one_line;

/// The name of the channel.
const CHANNEL: &str = "cron";
/// Earlier runs of a job whose conversations are kept.
const KEPT_RUNS: usize = 10;

/// The conversation of a job's next run, and whether it starts empty.
pub(crate) fn job_session(home: &Home, job: &Job) -> Result<(String, bool)> {
    match job.session() {
        Some(key) => Ok((
            archive::find(home, key).or_else(|_| session_name("cli", key))?,
            false,
        )),
        None => Ok((session_name(CHANNEL, job.id())?, true)),
    }
}

/// Archives the conversation of a job's last run and deletes the oldest ones.
pub(crate) fn reset_session(home: &Home, session: &str) -> Result<()> {
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

/// What all runs of a gateway need.
pub(crate) struct RunContext {
    pub home: Home,
    pub jobs: Jobs,
    /// A run that would start later than this, in milliseconds, is recorded as missed.
    pub grace: i64,
    pub outbox: Outbox,
    pub cancel: Cancel,
    pub log: Sink,
}

impl RunContext {
    /// Logs an error and returns the value of a success.
    pub(super) fn logged<T>(&self, result: Result<T>) -> Option<T> {
        result
            .map_err(|e| (self.log)(Level::Error, &e.message))
            .ok()
    }

    /// Records how runs ended that were under way when the last program ended.
    pub(super) fn settle(&self, interrupted: &[Job]) {
        if interrupted.is_empty() {
            return;
        }
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

/// A run of a job, or a heartbeat.
pub(super) struct Run {
    context: Arc<RunContext>,
    active: ActiveRun,
    session: String,
    /// The conversation is emptied before the run.
    is_fresh: bool,
}

impl Run {
    /// Sends a run to the dispatcher, which holds it until it is done.
    pub(super) fn send(
        context: &Arc<RunContext>,
        active: ActiveRun,
        text: String,
        inbound: &Sender<Inbound>,
    ) -> Result<()> {
        let (session, is_fresh) = job_session(&context.home, &active.job)?;
        let origin = Origin {
            channel: CHANNEL.to_owned(),
            chat: active.job.id().to_owned(),
        };
        let message = Inbound::message(origin, session.clone(), text);
        let run = Arc::new(Self {
            context: context.clone(),
            active,
            session,
            is_fresh,
        });
        // Nobody receives it when the program ends; the next start finds that it was interrupted.
        drop(inbound.send(Inbound {
            ids: vec![run.id()],
            ack: Some(run),
            ..message
        }));
        Ok(())
    }

    fn id(&self) -> String {
        run_id(self.active.job.id(), self.active.at)
    }

    /// Posts the text of a run that has ended, and records the run.
    fn finish(&self, text: &str, outcome: &Outcome) {
        let job = &self.active.job;
        let name = one_line(job.name(), 80);
        // A heartbeat is recorded only if it reports something.
        if job.id() == heartbeat::ID
            && outcome
                .as_ref()
                .map_or(true, |answer| heartbeat::is_quiet(answer))
        {
            return;
        }
        if let Some(to) = job.to().filter(|_| !text.is_empty()) {
            let note = Note {
                title: &format!("The job “{name}” sent this to the chat"),
                from: &self.session,
                text,
            };
            let item = Item::text(&to, text);
            let posted = self
                .context
                .outbox
                .post_and_note(&item, &[self.id()], &note);
            self.context.logged(posted.and_then(|posted| posted.noted));
        }
        let recorded = self
            .context
            .jobs
            .finish(job.id(), self.active.at, outcome, Some(now()));
        self.context
            .logged(recorded.doing(format_args!("recording the run of {name}")));
    }

    fn failure(&self, why: &str) -> String {
        format!(
            "⚠️ The job “{}” failed: {why}",
            one_line(self.active.job.name(), 80)
        )
    }
}

impl Ack for Run {
    fn begin(&self, _: &mut Inbound) -> bool {
        if self.context.cancel.why().is_some() {
            return false;
        }
        if self.is_fresh {
            self.context
                .logged(reset_session(&self.context.home, &self.session));
        }
        true
    }

    fn end(&self, _: &Inbound, response: &Response) -> bool {
        let answer = response.output.trim();
        match &response.error {
            None => self.finish(answer, &Ok(answer.to_owned())),
            Some(e) if answer.is_empty() => {
                self.finish(&self.failure(&e.message), &Err(e.message.clone()));
            }
            Some(e) => self.finish(answer, &Err(e.message.clone())),
        }
        true
    }

    fn reply(&self, _: &Inbound, text: &str) -> bool {
        // The run failed before its turn began.
        self.finish(&self.failure(text), &Err(text.to_owned()));
        true
    }
}
