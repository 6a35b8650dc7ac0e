//! Background tasks: work that a conversation has handed to a subagent without waiting for it.
//!
//! Each task has a thread. Its report comes back as a message of the conversation, and a turn answers it. A gateway stores the
//! tasks in `state/tasks.json`, by id, until their reports are answered. The next program answers a report that was stored.
//! It does not run a task again that had none: the report then says that the task was interrupted.

use std::collections::BTreeMap;
use std::io::ErrorKind as IoErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Dispatcher;
use crate::agent::{Agent, Background, Spending, TaskResult};
use crate::bus::{Event, Inbound, Kind, Origin};
use crate::cancel::Cancel;
use crate::disk::{self, Durability};
use crate::error::{Context, Error, Kind as ErrorKind, Result};
use crate::message::Usage;
use crate::outbox::{Item, Outbox};
use crate::paths::Home;
use crate::text::{clip, fenced};
use crate::tool::Task;
use crate::usage;

/// Tasks that run at the same time.
pub(super) const MAX_RUNNING: usize = 4;
/// Tasks of one conversation whose reports are not answered yet.
const MAX_OPEN: usize = MAX_RUNNING + 16;
/// How many tasks may follow from one another, each begun by the answer to the one before.
const MAX_DEPTH: u64 = 4;
/// The longest report that goes to the model, in bytes.
const MAX_REPORT: usize = 64 << 10;
/// Programs that may end while answering a report, before the user gets the report itself.
const MAX_ANSWERS: usize = 3;

/// The background tasks of all conversations.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<TaskState>);

#[derive(Default)]
struct TaskState {
    /// `None` for a process that waits for its tasks.
    file: Option<PathBuf>,
    /// By id, until the report is answered.
    open: BTreeMap<String, OpenTask>,
    /// Labels by conversation, until its model is told.
    stopped: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Deserialize, Serialize)]
struct OpenTask {
    label: String,
    session: String,
    channel: String,
    chat: String,
    /// How many tasks led to this one, with itself.
    depth: u64,
    /// The id of the message that all of them follow from.
    #[serde(default)]
    cause: String,
    /// `None` until it has ended.
    report: Option<String>,
    /// The turns that began to answer the report.
    answers: usize,
    #[serde(skip)]
    usage: Usage,
    #[serde(skip)]
    cost: Option<f64>,
    #[serde(skip)]
    spending: Arc<Spending>,
    #[serde(skip)]
    cancel: Cancel,
    /// A turn answers its report; to stop that is to stop the turn.
    #[serde(skip)]
    is_answering: bool,
}

/// What the answer to a report needs to know about its task.
pub(crate) struct Report {
    pub depth: u64,
    pub spending: Arc<Spending>,
    pub usage: Usage,
    pub cost: Option<f64>,
}

impl Tasks {
    /// The tasks of a gateway; the reports that an earlier one left, as messages without an `Ack`; and what is wrong with
    /// the file. The caller is the only one to have it open.
    pub(crate) fn open(home: &Home) -> Result<(Self, Vec<Inbound>, Option<String>)> {
        let path = home.state().join("tasks.json");
        let stored = match fs_err::read(&path) {
            Err(e) if e.kind() == IoErrorKind::NotFound => {
                return Ok((Self::of(path, BTreeMap::new()), Vec::new(), None));
            }
            stored => serde_json::from_slice::<BTreeMap<String, OpenTask>>(&stored?),
        };
        let damage = stored.as_ref().err().map(|e| format!("{} is damaged and was left out: {e}", path.display()));
        let outbox = Outbox::new(home.clone());
        let answered = outbox.answered()?;
        let (mut open, mut messages) = (BTreeMap::new(), Vec::new());
        let mut spending: BTreeMap<String, Arc<Spending>> = BTreeMap::new();
        for (id, mut task) in stored.unwrap_or_default() {
            let report = task.report.take().unwrap_or_else(|| interrupted(&task.label));
            if answered.contains(&id) {
                continue;
            }
            if task.answers >= MAX_ANSWERS {
                let to = format!("{}:{}", task.channel, task.chat);
                let text = format!("The program ended each time it tried to answer this report:\n\n{report}");
                outbox.post(&Item { to, text, answers: vec![id], ..Item::default() })?;
                continue;
            }
            let origin = Origin { channel: task.channel.clone(), chat: task.chat.clone() };
            let message = Inbound::message(origin, task.session.clone(), report.clone());
            messages.push(Inbound { kind: Kind::Report, ids: vec![id.clone()], is_alone: task.answers > 0, ..message });
            if !spending.contains_key(&task.cause) {
                let calls = usage::calls(&home.usage(), &task.cause)?;
                spending.insert(task.cause.clone(), Arc::new(Spending::of(&task.cause, calls)));
            }
            task.spending = spending[&task.cause].clone();
            task.report = Some(report);
            open.insert(id, task);
        }
        let tasks = Self::of(path, open);
        tasks.lock().save()?;
        Ok((tasks, messages, damage))
    }

    fn of(file: PathBuf, open: BTreeMap<String, OpenTask>) -> Self {
        Self(Mutex::new(TaskState { file: Some(file), open, ..TaskState::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, TaskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of open tasks, of one conversation or of all.
    pub(crate) fn count(&self, session: Option<&str>) -> usize {
        let state = self.lock();
        state.open.values().filter(|open| session.is_none_or(|session| open.session == session)).count()
    }

    /// Stores a new task.
    fn add(&self, id: &str, task: OpenTask) -> Result<()> {
        if self.count(Some(&task.session)) >= MAX_OPEN {
            return Err(Error::failed(format!(
                "{MAX_OPEN} background tasks of this conversation are open: wait for them"
            )));
        }
        let mut state = self.lock();
        state.open.insert(id.to_owned(), task);
        state.save().inspect_err(|_| drop(state.open.remove(id)))
    }

    /// Stores the report of a task. False if the task has been stopped.
    fn end(&self, id: &str, text: &str, usage: Usage, cost: Option<f64>) -> Result<bool> {
        let mut state = self.lock();
        let Some(open) = state.open.get_mut(id) else { return Ok(false) };
        (open.report, open.usage, open.cost) = (Some(text.to_owned()), usage, cost);
        state.save().map(|()| true)
    }

    /// Stores that a turn answers the report of a task; `None` if the task has been stopped.
    pub(crate) fn begin_answer(&self, id: &str) -> Option<(Report, Result<()>)> {
        let mut state = self.lock();
        let open = state.open.get_mut(id)?;
        open.is_answering = true;
        open.answers += 1;
        let (spending, usage) = (open.spending.clone(), open.usage);
        let report = Report { depth: open.depth, spending, usage, cost: open.cost };
        Some((report, state.save()))
    }

    /// Forgets a task: its report is answered, or it could not begin.
    pub(crate) fn close(&self, id: &str) -> Result<()> {
        let mut state = self.lock();
        state.open.remove(id);
        state.save()
    }

    /// Stops the tasks of a conversation except one whose report is being answered. Returns their number, and whether
    /// that is stored.
    pub(crate) fn stop(&self, session: &str) -> (usize, Result<()>) {
        let mut state = self.lock();
        let (stopped, open): (BTreeMap<_, _>, _) = std::mem::take(&mut state.open)
            .into_iter()
            .partition(|(_, open)| open.session == session && !open.is_answering);
        state.open = open;
        if stopped.is_empty() {
            return (0, Ok(()));
        }
        let labels = stopped.values().map(|task| task.label.clone());
        state.stopped.entry(session.to_owned()).or_default().extend(labels);
        let stored = state.save();
        drop(state);
        // The newest first: one that waits must not take the place of one that ended.
        for task in stopped.values().rev() {
            task.cancel.stop();
        }
        (stopped.len(), stored)
    }

    /// The labels of the tasks stopped since the last call.
    pub(crate) fn take_stopped(&self, session: &str) -> Vec<String> {
        self.lock().stopped.remove(session).unwrap_or_default()
    }
}

impl TaskState {
    fn save(&self) -> Result<()> {
        let stored = match &self.file {
            None => Ok(()),
            Some(file) if self.open.is_empty() => disk::remove(file),
            Some(file) => disk::replace(file, json!(self.open).to_string().as_bytes(), Durability::Now),
        };
        stored.doing("storing the background tasks")
    }
}

/// Starts the background tasks of one turn.
pub(crate) struct Spawner {
    pub dispatcher: Arc<Dispatcher>,
    pub agent: Arc<Agent>,
    /// The form of a report, without its text and its id.
    pub report: Inbound,
    /// Of the task whose report the turn answers, else 0.
    pub depth: u64,
}

impl Background for Spawner {
    fn begin(&self, label: &str, task: Task, spending: Arc<Spending>) -> Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let Self { dispatcher, agent, report, depth } = self;
        let (origin, session) = (&report.origin, &report.session);
        if origin.channel == "cron" {
            return Err(Error::failed("a scheduled job ends with its answer: use subagent, which waits"));
        }
        if *depth >= MAX_DEPTH {
            return Err(Error::failed(format!(
                "this follows from {MAX_DEPTH} background tasks in a row: answer your user before you begin another"
            )));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let id = format!("task-{now:x}-{:04}", COUNT.fetch_add(1, Ordering::Relaxed));
        let cancel = dispatcher.bounded(Cancel::new(None));
        let open = OpenTask {
            label: label.to_owned(),
            session: session.clone(),
            channel: origin.channel.clone(),
            chat: origin.chat.clone(),
            depth: depth + 1,
            cause: spending.cause().to_owned(),
            spending: spending.clone(),
            cancel: cancel.clone(),
            ..OpenTask::default()
        };
        dispatcher.tasks.add(&id, open)?;
        let report = Inbound { ids: vec![id.clone()], ..report.clone() };
        let (own, label, agent) = (dispatcher.clone(), label.to_owned(), agent.clone());
        let work = move || {
            let slot = own.task_slots.acquire();
            let show = |event| own.show(&report.origin, labelled(&label, event));
            let result = agent.perform(&task, &report.first_id(), spending, &cancel, &show);
            drop(slot);
            send_report(&own, &label, report, result);
            own.queues.task_ends();
        };
        dispatcher.queues.task_begins();
        if let Err(e) = Builder::new().name("task".to_owned()).spawn(work) {
            dispatcher.queues.task_ends();
            dispatcher.tasks.close(&id)?;
            return Err(Error::from(e).doing("starting a thread"));
        }
        dispatcher.show_tasks(origin, session);
        Ok(())
    }
}

/// Tells the tool calls of a task from those of the conversation.
fn labelled(label: &str, event: Event) -> Event {
    match event {
        Event::ToolStarted { summary } => Event::ToolStarted { summary: format!("{label}: {summary}") },
        event => event,
    }
}

/// Stores what a task came to and queues it for its conversation, unless the task was stopped.
fn send_report(dispatcher: &Arc<Dispatcher>, label: &str, report: Inbound, result: TaskResult) {
    let text = report_text(label, result.report);
    let (origin, id) = (report.origin.clone(), report.first_id());
    match dispatcher.tasks.end(&id, &text, result.usage, result.cost) {
        Ok(false) => return,
        Ok(true) => {}
        Err(e) => dispatcher.show_failure(&origin, Err(e)),
    }
    if let Some(session) = dispatcher.enqueue(Inbound { text, ..report }) {
        // This thread is free.
        dispatcher.work(&session);
    }
}

/// What the model is told about the end of a task. The report is fenced as data: the task may have read anything.
fn report_text(label: &str, result: Result<String>) -> String {
    let (how, text) = match result {
        Ok(text) => ("has ended. Its report:", text),
        Err(e) if e.kind == ErrorKind::Interrupted => ("was stopped:", e.message),
        Err(e) => ("failed:", e.message),
    };
    let shown = clip(text.trim(), MAX_REPORT);
    let cut = if shown.len() < text.trim().len() { "\n[the rest is cut off]" } else { "" };
    format!("[The background task “{label}” {how}]\n{}{cut}", fenced(shown))
}

fn interrupted(label: &str) -> String {
    format!(
        "[The background task “{label}” was interrupted when the program ended. What it did is unknown, and it is not run \
         again.]"
    )
}
