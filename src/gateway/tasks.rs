//! Background tasks: what a conversation has handed to a subagent without waiting for it.
//!
//! Each has a thread. Its report comes back as a message of the conversation, and a turn answers it. A gateway records tasks
//! in the journal `state/tasks.jsonl`, which exists while there are any:
//! - `{"task":ID,"label","session","channel","chat","depth","text"}` before one begins: the next program runs it if this one
//!   ends first;
//! - `{"begun":ID}`: it is not run again;
//! - `{"ended":ID,"text"}` with its report, and `{"asked":ID}` when a turn for that begins;
//! - `{"over":ID}` when the answer is kept, or the task was stopped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::Dispatcher;
use crate::agent::{Agent, Background, TaskResult, Tokens};
use crate::bus::{Ack, Event, Inbound, Kind, Origin};
use crate::cancel::Cancel;
use crate::disk::{self, Durability, Fields, Journal, Line};
use crate::error::{Context, Error, Kind as ErrorKind, Result};
use crate::message::Usage;
use crate::outbox::{Item, Outbox};
use crate::paths::Home;
use crate::text::{clip, fence};
use crate::tool::Task;

/// Tasks that run at the same time.
const MAX_RUNNING: usize = 4;
/// Tasks of one conversation that wait for that.
const MAX_WAITING: usize = 16;
/// How many tasks may follow from one another, each begun by the answer to the one before.
const MAX_DEPTH: u64 = 4;
/// The longest report that goes to the model, in bytes.
const MAX_REPORT: usize = 64 << 10;
/// Programs that may end while answering a report, before the user gets the report itself.
const MAX_ANSWERS: usize = 3;

/// The background tasks of all conversations.
#[derive(Default)]
pub(crate) struct Tasks {
    state: Mutex<TaskState>,
    /// A task has ended or was stopped.
    changed: Condvar,
}

#[derive(Default)]
struct TaskState {
    /// `None` for a process that waits for its tasks.
    journal: Option<PathBuf>,
    /// By id, until the report is answered.
    open: BTreeMap<String, OpenTask>,
    /// Labels by conversation, until its model is told.
    stopped: BTreeMap<String, Vec<String>>,
}

struct OpenTask {
    label: String,
    session: String,
    cancel: Cancel,
    report: Report,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Running,
    Ended,
    /// A turn answers its report; to stop that is to stop the turn.
    Answering,
}

/// What the answer to a report needs to know about its task.
#[derive(Clone, Copy, Default)]
pub(crate) struct Report {
    pub depth: u64,
    pub usage: Usage,
    pub cost: Option<f64>,
}

/// A task for its thread.
struct Job {
    id: String,
    label: String,
    task: Task,
    tokens: Arc<Tokens>,
    cancel: Cancel,
    agent: Arc<Agent>,
    /// Without its text.
    report: Inbound,
}

/// What the journal says about an open task.
#[derive(Default)]
struct Record {
    fields: Value,
    begun: bool,
    report: Option<String>,
    answers: usize,
}

impl Tasks {
    /// The recorded tasks of a home; what an earlier program left, as messages without an [`Ack`]; and the damage, in
    /// sentences. The caller is the only one to have it open.
    pub(crate) fn open(home: &Home) -> Result<(Self, Vec<Inbound>, Vec<String>)> {
        let path = home.state().join("tasks.jsonl");
        let (mut messages, mut damage) = (Vec::new(), Vec::new());
        let mut state = TaskState { journal: Some(path.clone()), ..TaskState::default() };
        let opened = Journal::open(&path).doing("opening the journal of background tasks")?;
        let mut records = BTreeMap::new();
        if let Some(opened) = opened {
            records = read(&opened.lines);
            damage = opened.damage;
        }
        for (id, record) in &records {
            let text = |key: &str| record.fields[key].as_str().unwrap_or_default().to_owned();
            let depth = record.fields["depth"].as_u64().unwrap_or_default();
            let mut open = OpenTask::new(text("label"), text("session"), depth, Cancel::new(None));
            if record.begun {
                open.stage = Stage::Ended;
            }
            state.open.insert(id.clone(), open);
        }
        let outbox = Outbox::new(home.clone());
        let answered = if records.is_empty() { Vec::new() } else { outbox.answered()? };
        for (id, Record { fields, begun, report, answers }) in records {
            let text = |key: &str| fields[key].as_str().unwrap_or_default().to_owned();
            let (kind, said) = match report {
                Some(report) => (Kind::Report, report),
                None if begun => (Kind::Report, interrupted(&text("label"))),
                None => (Kind::Task, text("text")),
            };
            if answered.contains(&id) {
                state.close(&id)?;
            } else if answers >= MAX_ANSWERS {
                let to = format!("{}:{}", text("channel"), text("chat"));
                let text = format!("The program ended each time it tried to answer this report:\n\n{said}");
                outbox.post(&Item { to, text, answers: vec![id.clone()], ..Item::default() })?;
                state.close(&id)?;
            } else {
                let origin = Origin { channel: text("channel"), chat: text("chat") };
                let message = Inbound::message(origin, text("session"), said);
                messages.push(Inbound { kind, ids: vec![id], is_alone: answers > 0, ..message });
            }
        }
        Ok((Self { state: Mutex::new(state), ..Self::default() }, messages, damage))
    }

    fn lock(&self) -> MutexGuard<'_, TaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of open tasks, of one conversation or of all.
    pub(crate) fn count(&self, session: Option<&str>) -> usize {
        let state = self.lock();
        state.open.values().filter(|open| session.is_none_or(|session| open.session == session)).count()
    }

    /// Records a new task.
    fn add(&self, job: &Job, depth: u64) -> Result<()> {
        let mut state = self.lock();
        let Inbound { origin, session, .. } = &job.report;
        if state.in_stage(Stage::Waiting, session) >= MAX_WAITING {
            return Err(Error::failed(format!(
                "{MAX_RUNNING} background tasks are under way and {MAX_WAITING} of this conversation wait: wait for their \
                 reports"
            )));
        }
        let line = json!({
            "task": job.id, "label": job.label, "session": session, "channel": origin.channel, "chat": origin.chat,
            "depth": depth, "text": job.task.text,
        });
        state.write(&line, Durability::Now)?;
        let open = OpenTask::new(job.label.clone(), session.clone(), depth, job.cancel.clone());
        state.open.insert(job.id.clone(), open);
        state.admit();
        Ok(())
    }

    /// Waits until a task is to run. It may have been stopped then.
    fn wait_to_run(&self, id: &str) {
        let is_waiting = |state: &mut TaskState| {
            state.admit();
            state.open.get(id).is_some_and(|open| open.stage == Stage::Waiting)
        };
        drop(self.changed.wait_while(self.lock(), is_waiting));
        // Others may have been admitted meanwhile.
        self.changed.notify_all();
    }

    /// Records that a task begins. False if it has been stopped.
    fn begin(&self, id: &str) -> Result<bool> {
        let state = self.lock();
        Ok(state.open.contains_key(id) && state.write(&json!({"begun": id}), Durability::Now).map(|()| true)?)
    }

    /// Records the report of a task. False if the task has been stopped.
    fn end(&self, id: &str, text: &str, usage: Usage, cost: Option<f64>) -> Result<bool> {
        let mut state = self.lock();
        let Some(open) = state.open.get_mut(id) else { return Ok(false) };
        (open.report.usage, open.report.cost, open.stage) = (usage, cost, Stage::Ended);
        self.changed.notify_all();
        state.write(&json!({"ended": id, "text": text}), Durability::Now).map(|()| true)
    }

    /// Records that a turn answers the report of a task; `None` if the task has been stopped.
    pub(crate) fn begin_answer(&self, id: &str) -> Option<(Report, Result<()>)> {
        let mut state = self.lock();
        let open = state.open.get_mut(id)?;
        open.stage = Stage::Answering;
        let report = open.report;
        Some((report, state.write(&json!({"asked": id}), Durability::Later)))
    }

    /// Forgets a task: its report is answered, or it could not begin.
    pub(crate) fn close(&self, id: &str) -> Result<()> {
        self.lock().close(id)
    }

    /// Stops the tasks of a conversation except one whose report is being answered. Returns their number, and whether
    /// that is recorded.
    pub(crate) fn stop(&self, session: &str) -> (usize, Result<()>) {
        let mut state = self.lock();
        let stoppable = state.open.iter().filter(|(_, open)| open.session == session && open.stage != Stage::Answering);
        let stoppable: Vec<(String, String, Cancel)> =
            stoppable.map(|(id, open)| (id.clone(), open.label.clone(), open.cancel.clone())).collect();
        let mut written = Ok(());
        for (id, label, _) in &stoppable {
            written = written.and(state.close(id));
            state.stopped.entry(session.to_owned()).or_default().push(label.clone());
        }
        drop(state);
        self.changed.notify_all();
        for (_, _, cancel) in &stoppable {
            cancel.stop();
        }
        (stoppable.len(), written)
    }

    /// The labels of the tasks stopped since the last call.
    pub(crate) fn take_stopped(&self, session: &str) -> Vec<String> {
        self.lock().stopped.remove(session).unwrap_or_default()
    }
}

impl OpenTask {
    fn new(label: String, session: String, depth: u64, cancel: Cancel) -> Self {
        let report = Report { depth, ..Report::default() };
        Self { label, session, cancel, report, stage: Stage::Waiting }
    }
}

impl TaskState {
    fn in_stage(&self, stage: Stage, session: &str) -> usize {
        self.open.values().filter(|open| open.stage == stage && open.session == session).count()
    }

    /// Lets the next task run if there is room: the oldest one of a conversation with the fewest running.
    fn admit(&mut self) {
        if self.open.values().filter(|open| open.stage == Stage::Running).count() >= MAX_RUNNING {
            return;
        }
        let waiting = self.open.iter().filter(|(_, open)| open.stage == Stage::Waiting);
        let next = waiting.min_by_key(|(_, open)| self.in_stage(Stage::Running, &open.session));
        let next = next.map(|(id, _)| id.clone());
        if let Some(open) = next.and_then(|id| self.open.get_mut(&id)) {
            open.stage = Stage::Running;
        }
    }

    fn close(&mut self, id: &str) -> Result<()> {
        self.open.remove(id);
        match &self.journal {
            Some(path) if self.open.is_empty() => disk::remove(path).doing("removing the journal of background tasks"),
            _ => self.write(&json!({"over": id}), Durability::Later),
        }
    }

    fn write(&self, line: &Value, durability: Durability) -> Result<()> {
        self.journal
            .as_deref()
            .map_or(Ok(()), |path| append(path, line, durability).doing("recording a background task"))
    }
}

/// Appends a line to a journal, which is small and seldom written, so that no handle needs to stay open.
fn append(path: &Path, line: &Value, durability: Durability) -> Result<()> {
    let fields = |line: &Value| -> Fields { line.as_object().cloned().unwrap_or_default() };
    match Journal::open(path)? {
        Some(mut opened) => opened.journal.append(&[fields(line)], durability),
        None => Journal::create(path, &[fields(&json!({"v": 1})), fields(line)]).map(drop),
    }
}

/// The open tasks of a journal.
fn read(lines: &[Line]) -> BTreeMap<String, Record> {
    let mut records: BTreeMap<String, Record> = BTreeMap::new();
    for Line { fields, .. } in lines {
        for key in ["task", "begun", "ended", "asked", "over"] {
            let Some(id) = fields[key].as_str() else { continue };
            let record = records.entry(id.to_owned()).or_default();
            match key {
                "task" => record.fields = fields.clone(),
                "begun" => record.begun = true,
                "ended" => record.report = fields["text"].as_str().map(str::to_owned),
                "asked" => record.answers += 1,
                _ => drop(records.remove(id)),
            }
        }
    }
    // Damage may have taken the line that says what a task is.
    records.retain(|_, record| record.fields.is_object());
    records
}

/// Starts the background tasks of one turn.
pub(crate) struct Spawner {
    pub dispatcher: Arc<Dispatcher>,
    pub agent: Arc<Agent>,
    pub session: String,
    pub origin: Origin,
    pub ack: Option<Arc<dyn Ack>>,
    /// Of the task whose report the turn answers, else 0.
    pub depth: u64,
}

impl Background for Spawner {
    fn begin(&self, label: &str, task: Task, tokens: Arc<Tokens>) -> Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        if self.origin.channel == "cron" {
            return Err(Error::failed("a scheduled job ends with its answer: use subagent, which waits"));
        }
        if self.depth >= MAX_DEPTH {
            return Err(Error::failed(format!(
                "this follows from {MAX_DEPTH} background tasks in a row: answer your user before you begin another"
            )));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let id = format!("task-{now:x}-{:04}", COUNT.fetch_add(1, Ordering::Relaxed));
        let report = Inbound::message(self.origin.clone(), self.session.clone(), String::new());
        let report = Inbound { kind: Kind::Report, ids: vec![id.clone()], ack: self.ack.clone(), ..report };
        let (cancel, agent) = (self.dispatcher.bounded(Cancel::new(None)), self.agent.clone());
        let job = Job { id, label: label.to_owned(), task, tokens, cancel, agent, report };
        self.dispatcher.tasks.add(&job, self.depth + 1)?;
        start(&self.dispatcher, job)?;
        self.dispatcher.show_tasks(&self.origin, &self.session);
        Ok(())
    }
}

/// Starts the thread of a task.
fn start(dispatcher: &Arc<Dispatcher>, job: Job) -> Result<()> {
    let (own, id) = (dispatcher.clone(), job.id.clone());
    dispatcher.queues.task_begins();
    let work = move || {
        run(&own, job);
        own.queues.task_ends();
    };
    if let Err(e) = Builder::new().name("task".to_owned()).spawn(work) {
        dispatcher.queues.task_ends();
        dispatcher.tasks.close(&id)?;
        return Err(Error::from(e).doing("starting a thread"));
    }
    Ok(())
}

/// Runs a task that an earlier program did not begin.
pub(super) fn resume(dispatcher: &Arc<Dispatcher>, message: Inbound) {
    let (id, origin) = (message.task_id(), message.origin.clone());
    let open = dispatcher.tasks.lock().open.get(&id).map(|open| (open.label.clone(), open.cancel.clone()));
    let Some((label, cancel)) = open else { return };
    let (task, report) = (Task { text: message.text }, Inbound { kind: Kind::Report, text: String::new(), ..message });
    let resumed = dispatcher.handler.agent(&report.session).and_then(|agent| {
        let tokens = Arc::new(Tokens::new(agent.limits().budget_tokens));
        start(dispatcher, Job { id, label, task, tokens, cancel, agent, report })
    });
    // Failing that, it stays in the journal for the next start.
    dispatcher.show_failure(&origin, resumed);
}

/// Runs a task once it is its turn, and sends the report.
fn run(dispatcher: &Arc<Dispatcher>, job: Job) {
    let Job { id, label, task, tokens, cancel, agent, report } = job;
    dispatcher.tasks.wait_to_run(&id);
    if report.ack.as_ref().is_some_and(|ack| ack.is_ending()) {
        // The next program runs it.
        return;
    }
    let show = |event: Event| {
        let event = match event {
            Event::ToolStarted { summary } => Event::ToolStarted { summary: format!("{label}: {summary}") },
            event => event,
        };
        dispatcher.show(&report.origin, event);
    };
    let TaskResult { report: result, usage, cost } = match dispatcher.tasks.begin(&id) {
        Ok(true) => agent.perform(&task, &id, tokens, &cancel, &show),
        Ok(false) => return,
        Err(e) => TaskResult { report: Err(e), usage: Usage::default(), cost: None },
    };
    let text = report_text(&label, result);
    let (origin, session) = (report.origin.clone(), report.session.clone());
    match dispatcher.tasks.end(&id, &text, usage, cost) {
        Ok(false) => return,
        Ok(true) => {}
        Err(e) => dispatcher.show_failure(&origin, Err(e)),
    }
    if let Err(e) = dispatcher.enqueue(Inbound { text, ..report }) {
        dispatcher.show_failure(&origin, Err(e));
        dispatcher.show_failure(&origin, dispatcher.tasks.close(&id));
        dispatcher.show_tasks(&origin, &session);
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
    let fence = fence(shown);
    format!("[The background task “{label}” {how}]\n{fence}\n{shown}\n{fence}{cut}")
}

fn interrupted(label: &str) -> String {
    format!(
        "[The background task “{label}” was interrupted when the program ended. What it did is unknown, and it is not run \
         again.]"
    )
}
