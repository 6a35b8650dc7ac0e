//! Subagents: the common implementation of all tools that give a task to another agent.
//!
//! A subagent is this agent with its own context: it sees its task instead of the conversation, lacks the tools that send
//! messages or start agents, has the same limits, shares the turn's budget, and is not stored. Its caller waits for it, or
//! continues while the task runs on a thread of [`Tasks`] and gets the report as a message.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::SystemTime;

use super::history::shortened;
use super::turn::{Events, Shared};
use super::{Agent, Request};
use crate::bus::{Event, Origin};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind, Result};
use crate::paths::fresh_key;
use crate::sync;
use crate::text::fenced;
use crate::tool::{JOB, NOT_FOR_SUBAGENTS, SUBAGENT, Task, ToolOutput};
use crate::usage::Budget;

/// Maximum size of a background task's report to the model, in bytes.
const MAX_REPORT: usize = 64 << 10;
/// Maximum number of tasks that run at the same time; others wait.
const MAX_RUNNING: usize = 4;
/// Maximum number of tasks of a conversation with unanswered reports.
const MAX_OPEN: usize = MAX_RUNNING + 16;

/// Background tasks of all conversations of a program. Clones share them. A turn can start tasks if its [`Request::tasks`] has
/// a clone.
#[derive(Clone)]
pub struct Tasks(Arc<TaskEngine>);

struct TaskEngine {
    sink: Box<dyn TaskSink>,
    state: Mutex<State>,
    /// Notified when a running task has ended.
    has_ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Tasks without an answered report, oldest first.
    open: Vec<OpenTask>,
    running: usize,
}

impl State {
    fn count(&self, session: Option<&str>) -> usize {
        let of_session =
            |task: &&OpenTask| session.is_none_or(|session| task.report.session == session);
        self.open.iter().filter(of_session).count()
    }
}

struct OpenTask {
    report: TaskReport,
    cancel: Cancel,
    /// Whether a turn is answering the report. Stopping the task would then mean stopping that turn.
    is_answering: bool,
}

/// Outcome of a background task. `Request::from` converts it to a message for its conversation.
#[derive(Clone)]
#[non_exhaustive]
pub struct TaskReport {
    /// Unique id of the task.
    pub id: String,
    /// Name of the task, for people.
    pub label: String,
    /// Key of the conversation that started the task and gets the report.
    pub session: String,
    /// Channel and chat of that conversation.
    pub origin: Origin,
    /// Text for the model.
    pub text: String,
    /// Budget of the turn that started the task.
    pub budget: Arc<Budget>,
}

impl From<&TaskReport> for Request {
    fn from(report: &TaskReport) -> Self {
        Self {
            origin: report.origin.clone(),
            budget: Some(report.budget.clone()),
            ..Self::new(&report.text, &report.session)
        }
    }
}

/// Receives the reports of tasks.
pub(crate) trait TaskSink: Send + Sync {
    /// Registers the start of a task. Returns the handle that cancels it.
    fn begin(&self) -> Cancel;

    /// Stores a report for the user in case the program ends before it is answered.
    ///
    /// # Errors
    /// Returns an error for the model; a task that has not begun then does not start.
    fn keep(&self, _report: &TaskReport) -> Result<()> {
        Ok(())
    }

    /// Deletes the stored reports of these tasks.
    fn forget(&self, _ids: &[String]) -> Result<()> {
        Ok(())
    }

    /// Shows an event of a task.
    fn event(&self, _origin: &Origin, _event: Event) {}

    /// Registers the end of a task, without a report if it was stopped or could not start.
    fn end(&self, report: Option<TaskReport>);
}

/// Sends reports to the program.
impl TaskSink for Sender<TaskReport> {
    fn begin(&self) -> Cancel {
        Cancel::new(None)
    }

    fn end(&self, report: Option<TaskReport>) {
        if let Some(report) = report {
            // The receiver may have been dropped.
            self.send(report).ok();
        }
    }
}

impl Tasks {
    /// For a program that answers reports itself: each by a turn with [`Request::from`] it, and then [`Tasks::close`].
    pub fn new() -> (Self, Receiver<TaskReport>) {
        let (sender, reports) = mpsc::channel();
        (Self::with_sink(sender), reports)
    }

    pub(crate) fn with_sink(sink: impl TaskSink + 'static) -> Self {
        Self(Arc::new(TaskEngine {
            sink: Box::new(sink),
            state: Mutex::default(),
            has_ended: Condvar::new(),
        }))
    }

    /// Returns the number of open tasks, of one conversation or of all: running tasks and unanswered reports.
    pub fn open(&self, session: Option<&str>) -> usize {
        self.lock().count(session)
    }

    /// Stops the tasks of a conversation, except one whose report is being answered, and returns their labels.
    ///
    /// # Errors
    /// Returns an error if a stored report could not be deleted; the tasks are stopped anyway.
    pub fn stop(&self, session: &str) -> (Vec<String>, Result<()>) {
        let mut state = self.lock();
        let (stopped, open): (Vec<_>, Vec<_>) = std::mem::take(&mut state.open)
            .into_iter()
            .partition(|task| task.report.session == session && !task.is_answering);
        state.open = open;
        let ids: Vec<String> = stopped.iter().map(|task| task.report.id.clone()).collect();
        let forgotten = self.0.sink.forget(&ids);
        drop(state);
        // Newest first, so that a waiting task cannot start in place of a stopped one.
        stopped.iter().rev().for_each(|task| task.cancel.stop());
        (
            stopped.into_iter().map(|task| task.report.label).collect(),
            forgotten,
        )
    }

    /// Marks a task's report as being answered. Returns the budget of both; `None` if the task was stopped.
    pub(crate) fn begin_answer(&self, id: &str) -> Option<Arc<Budget>> {
        let mut state = self.lock();
        let task = state.open.iter_mut().find(|task| task.report.id == id)?;
        task.is_answering = true;
        Some(task.report.budget.clone())
    }

    /// Closes a task whose report is answered, or that could not start.
    ///
    /// # Errors
    /// Returns an error if a stored report could not be deleted.
    pub fn close(&self, id: &str) -> Result<()> {
        let mut state = self.lock();
        state.open.retain(|task| task.report.id != id);
        self.0.sink.forget(&[id.to_owned()])
    }

    /// Starts a background task of a turn.
    fn start(&self, context: &Shared, task: Task) -> Result<()> {
        let request = context.request;
        if request.origin.channel == JOB {
            return Err(Error::failed(
                "a job has no background: give the task without it, and wait",
            ));
        }
        let report = TaskReport {
            id: format!("task-{}", fresh_key(SystemTime::now())),
            label: task.label.clone(),
            session: request.session.clone(),
            origin: request.origin.clone(),
            text: format!(
                "[The background task “{}” was interrupted when the program ended. What it did is unknown, and it will not be run again.]",
                task.label
            ),
            budget: context.budget.clone(),
        };
        let subagent = context.subagent();
        let cancel = self.0.sink.begin();
        let begun = self.add(&report, &cancel).and_then(|()| {
            let (own, report) = (self.clone(), report.clone());
            let work = move || own.run(&subagent, &task, report, &cancel);
            let thread = thread::Builder::new().name("task".to_owned()).spawn(work);
            thread.map(drop).doing("starting a thread")
        });
        if let Err(e) = begun {
            let closed = self.close(&report.id);
            self.0.sink.end(None);
            return closed.and(Err(e));
        }
        let open = self.open(Some(&report.session));
        self.0.sink.event(&report.origin, Event::Background(open));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.0.state)
    }

    fn add(&self, report: &TaskReport, cancel: &Cancel) -> Result<()> {
        let mut state = self.lock();
        if state.count(Some(&report.session)) >= MAX_OPEN {
            let why = "background tasks of this conversation are open: wait for them";
            return Err(Error::failed(format!("{MAX_OPEN} {why}")));
        }
        self.0.sink.keep(report)?;
        state.open.push(OpenTask {
            report: report.clone(),
            cancel: cancel.clone(),
            is_answering: false,
        });
        Ok(())
    }

    /// Runs a task on this thread, once the number of running tasks permits.
    fn run(&self, subagent: &Agent, task: &Task, mut report: TaskReport, cancel: &Cancel) {
        let is_full = |state: &mut State| state.running >= MAX_RUNNING;
        sync::wait_while(&self.0.has_ended, self.lock(), is_full).running += 1;
        let show = |event| self.0.sink.event(&report.origin, event);
        let result = subagent.run_task(task, &report.budget, cancel, &show);
        report.text = report_text(&report.label, result);
        let mut state = self.lock();
        state.running -= 1;
        self.0.has_ended.notify_one();
        // Stored under the lock, so that [`Tasks::stop`] also deletes this report.
        let is_open = state.open.iter().any(|task| task.report.id == report.id);
        let kept = is_open.then(|| self.0.sink.keep(&report));
        drop(state);
        if let Some(Err(e)) = kept {
            self.0.sink.event(&report.origin, Event::Notice(e.message));
        }
        self.0.sink.end(is_open.then_some(report));
    }
}

impl Shared<'_> {
    /// Runs a task as a subagent of the turn and waits for it.
    pub(super) fn run_task(&self, task: &Task) -> Result<ToolOutput> {
        // A tool of a program may try, whatever its name is.
        if self.agent.is_subagent {
            let why = "a subagent cannot start others: do the task yourself";
            return Err(Error::failed(why));
        }
        self.subagent()
            .run_task(task, self.budget, self.cancel, self.events)
            .map(|report| ToolOutput::text(fenced(&report)))
    }

    /// Returns the agent for a task, which uses the turn's models.
    fn subagent(&self) -> Agent {
        let agent = self.agent;
        let mut limits = agent.limits;
        limits.retry.partial = true;
        Agent {
            models: Arc::new(self.chain.clone()),
            filter: None,
            is_subagent: true,
            undo_in: None,
            limits,
            ..agent.with_tools(agent.tools.without(&NOT_FOR_SUBAGENTS))
        }
    }

    /// Starts a task in the background of the turn.
    pub(super) fn start_task(&self, task: Task) -> Result<()> {
        match &self.request.tasks {
            Some(tasks) => tasks.start(self, task),
            None => Err(Error::failed(
                "there is no background here: give the task without it, and wait",
            )),
        }
    }
}

impl Agent {
    /// Runs a task as this subagent, and returns its report. Errors are worded for the model.
    fn run_task(
        &self,
        task: &Task,
        budget: &Arc<Budget>,
        cancel: &Cancel,
        events: Events,
    ) -> Result<String> {
        let input = format!(
            "You are a subagent. Another agent gave you the task below; you do not see its conversation, and nobody can \
             answer questions. Complete the task with your tools, then report what you found or did, and what you could \
             not do.\n\nThe task:\n\n{}",
            task.text
        );
        let request = Request {
            origin: Origin {
                channel: SUBAGENT.to_owned(),
                chat: SUBAGENT.to_owned(),
            },
            history: Some(Vec::new()),
            cancel: cancel.clone(),
            budget: Some(budget.clone()),
            ..Request::new(input, SUBAGENT)
        };
        let shown = |event: Event| match event {
            // The subagent's text is for its caller, not for the user.
            Event::Delta(_) | Event::Thought(_) | Event::Progress(_) => {}
            Event::ToolStarted { summary } => {
                events(Event::ToolStarted {
                    summary: format!("{}: {summary}", task.label),
                });
            }
            event => events(event),
        };
        let response = self.run(&request, &shown);
        let output = response.output.trim();
        match response.error {
            None => Ok(output.to_owned()),
            Some(error) if error.kind == Kind::Interrupted => Err(error),
            Some(error) if output.is_empty() => Err(error.doing("the subagent failed")),
            Some(error) => Ok(format!(
                "{output}\n[the subagent had to stop: {}]",
                error.message
            )),
        }
    }
}

/// Describes the end of a task to the model. The report is fenced as data, because the task may have read anything.
fn report_text(label: &str, result: Result<String>) -> String {
    let (how, text) = match result {
        Ok(text) => ("has ended. Its report:", text),
        Err(e) if e.kind == Kind::Interrupted => ("was stopped:", e.message),
        Err(e) => ("failed:", e.message),
    };
    let shown = shortened(text.trim(), MAX_REPORT);
    format!("[The background task “{label}” {how}]\n{}", fenced(&shown))
}
