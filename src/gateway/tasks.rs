//! Background tasks: what a conversation has handed to a subagent and does not wait for.
//!
//! Each runs on a thread of its own. Its report comes back as a message of the conversation, and is answered by a turn of
//! its own. A gateway keeps a journal, `state/tasks.jsonl`, so that none vanishes: its lines are `{"task":ID,"label",
//! "session","channel","chat","depth"}` when one begins, the same with `"text"`, which is what it is to do, when it has to
//! wait before, and then `{"begun":ID}`; `{"ended":ID,"text"}` with what is said of its end, `{"asked":ID}` when a turn for
//! that begins, `{"left":ID}` when the program was told to end before that was over, and `{"over":ID}` when its answer is
//! kept. One that has not begun when the program ends is run by the next one.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::Dispatcher;
use crate::agent::{Agent, Background, TaskResult, Tokens};
use crate::bus::{Ack, Event, Inbound, Kind, Origin};
use crate::cancel::Cancel;
use crate::disk::{Durability, Fields, Journal};
use crate::error::{Context, Error, Kind as ErrorKind, Result};
use crate::message::Usage;
use crate::outbox::{Item, Outbox};
use crate::paths::Home;
use crate::text::{clip, fence};
use crate::tool::Task;

/// Tasks under way at once; further ones wait for their turn.
const AT_ONCE: usize = 4;
/// Tasks of one conversation that wait; a further one is refused.
const MOST_WAITING: usize = 16;
/// How many tasks may have come of one another, each begun by the answer to the one before.
const DEEPEST: u64 = 4;
/// The longest report that goes to the model, in bytes.
const LONGEST_REPORT: usize = 64 << 10;
/// A report whose answer has died this often with the program is set aside.
const MOST_DEATHS: usize = 3;
/// From this many bytes on, a journal in which nothing is open is begun anew.
const RENEWED_AT: u64 = 64 << 10;

/// The background tasks of all conversations.
#[derive(Default)]
pub struct Tasks {
    state: Mutex<State>,
    /// One has ended.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Where they are written down, if they are.
    path: Option<PathBuf>,
    journal: Option<Journal>,
    /// Those whose report has not been answered yet.
    open: BTreeMap<String, Open>,
    running: usize,
    waiting: VecDeque<Job>,
    /// What was stopped in a conversation, and its model does not know yet.
    stopped: BTreeMap<String, Vec<String>>,
}

/// What the journal says of a task that is not over.
#[derive(Default)]
struct Left {
    id: String,
    fields: Value,
    /// What it is to do, if it has not begun.
    task: Option<String>,
    /// What is said of its end, if it has ended.
    text: String,
    /// The answer to that has begun, and so often died with the program.
    begun: bool,
    deaths: usize,
}

/// A task whose report has not been answered yet.
struct Open {
    label: String,
    session: String,
    depth: u64,
    cancel: Cancel,
    /// It is at work.
    is_running: bool,
    /// Its report is being answered: from here on it is a turn like any other.
    is_asked: bool,
    /// And that stands in the journal.
    is_begun: bool,
    used: (Usage, Option<f64>),
}

/// A task that is to be run.
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

/// What the answer to a report has to know of its task.
pub struct Asked {
    pub depth: u64,
    /// What the task used, with what that cost.
    pub used: (Usage, Option<f64>),
}

impl Tasks {
    /// The tasks of a home, written down there; and what an earlier run of the program left, as messages without a ack:
    /// those whose answer had begun are [`Inbound::is_alone`]. Nobody else may have it open. Damage is told in sentences.
    pub fn open(home: &Home) -> Result<(Self, Vec<Inbound>, Vec<String>)> {
        let path = home.state().join("tasks.jsonl");
        let mut state = State { path: Some(path.clone()), ..State::default() };
        let Some(opened) = Journal::open(&path).doing("opening the journal of background tasks")? else {
            return Ok((Self { state: Mutex::new(state), ..Self::default() }, Vec::new(), Vec::new()));
        };
        state.journal = Some(opened.journal);
        let mut left: Vec<Left> = Vec::new();
        for line in opened.lines {
            let is = |key: &str| line.fields.get(key).and_then(Value::as_str);
            if let Some(id) = is("task") {
                let task = is("text").map(str::to_owned);
                left.push(Left { id: id.to_owned(), task, fields: line.fields.clone(), ..Left::default() });
                continue;
            }
            let keys = ["over", "begun", "ended", "asked", "left"];
            let Some((key, id)) = keys.iter().find_map(|key| Some((*key, is(key)?))) else { continue };
            let Some(at) = left.iter().position(|left| left.id == id) else { continue };
            match key {
                "over" => drop(left.remove(at)),
                "begun" => left[at].task = None,
                "ended" => left[at].text = is("text").unwrap_or_default().to_owned(),
                "asked" => (left[at].begun, left[at].deaths) = (true, left[at].deaths + 1),
                _ => left[at].deaths = left[at].deaths.saturating_sub(1),
            }
        }
        let outbox = Outbox::new(home.clone());
        let answered = if left.is_empty() { Vec::new() } else { outbox.answered()? };
        let mut messages = Vec::new();
        for Left { id, fields, task, text: said, begun, deaths } in left {
            let text = |key: &str| fields[key].as_str().unwrap_or_default().to_owned();
            let origin = Origin { channel: text("channel"), chat: text("chat") };
            let label = text("label");
            if answered.contains(&id) {
                state.note(&json!({"over": id}), Durability::Later)?;
                continue;
            }
            if deaths >= MOST_DEATHS {
                let text = format!(
                    "The report of the background task “{label}” was set aside: this program ended each time it tried to \
                     answer it."
                );
                let to = format!("{}:{}", origin.channel, origin.chat);
                outbox.post(&Item { to, text, answers: vec![id.clone()], ..Item::default() })?;
                state.note(&json!({"over": id}), Durability::Later)?;
                continue;
            }
            let kind = if task.is_some() { Kind::Task } else { Kind::Report };
            let said = if let Some(task) = task {
                task
            } else if said.is_empty() {
                format!(
                    "[The background task “{label}” was interrupted when the program ended. What it did is unknown, and it \
                     is not run again.]"
                )
            } else {
                said
            };
            let depth = fields["depth"].as_u64().unwrap_or_default();
            let message = Inbound::message(origin, text("session"), said);
            let session = message.session.clone();
            messages.push(Inbound { kind, ids: vec![id.clone()], is_alone: begun, ..message });
            state.open.insert(id, Open::new(label, session, depth, Cancel::new(None)));
        }
        Ok((Self { state: Mutex::new(state), ..Self::default() }, messages, opened.damage))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many have been begun and not been answered, in a conversation or in all.
    pub fn count(&self, session: Option<&str>) -> usize {
        let state = self.lock();
        state.open.values().filter(|open| session.is_none_or(|session| open.session == session)).count()
    }

    /// Takes a job: written down when this returns. It is given back when it can be run at once.
    fn take(&self, job: Job, depth: u64) -> Result<Option<Job>> {
        let mut state = self.lock();
        let Inbound { origin, session, .. } = &job.report;
        if state.waiting.iter().filter(|other| other.report.session == *session).count() >= MOST_WAITING {
            return Err(Error::failed(format!(
                "{AT_ONCE} background tasks are under way and {MOST_WAITING} of this conversation wait: wait for their \
                 reports"
            )));
        }
        let mut line = json!({
            "task": job.id, "label": job.label, "session": session, "channel": origin.channel, "chat": origin.chat,
            "depth": depth,
        });
        if state.running >= AT_ONCE {
            line["text"] = job.task.text.as_str().into();
        }
        state.note(&line, Durability::Now)?;
        let open = Open::new(job.label.clone(), session.clone(), depth, job.cancel.clone());
        state.open.insert(job.id.clone(), open);
        Ok(state.admit(job))
    }

    /// The same for one that an earlier run of the program took; `None` also when it has been stopped meanwhile.
    fn take_again(&self, job: Job) -> Result<Option<Job>> {
        let mut state = self.lock();
        if !state.open.contains_key(&job.id) {
            return Ok(None);
        }
        if state.running < AT_ONCE {
            state.begun(&job.id)?;
        }
        Ok(state.admit(job))
    }

    /// The name of one, and what stops it; `None` when it is over.
    fn known(&self, id: &str) -> Option<(String, Cancel)> {
        self.lock().open.get(id).map(|open| (open.label.clone(), open.cancel.clone()))
    }

    /// One has ended. Whether anybody wants to know; then it is on disk what is said of it.
    fn ended(&self, id: &str, text: &str, used: (Usage, Option<f64>)) -> Result<bool> {
        let mut state = self.lock();
        let Some(open) = state.open.get_mut(id) else { return Ok(false) };
        (open.used, open.is_running) = (used, false);
        state.note(&json!({"ended": id, "text": text}), Durability::Now).map(|()| true)
    }

    /// What is to be run next on the thread of one that has ended. When the program is ending, those that wait stay in the
    /// journal.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        while let Some(job) = state.take_turn() {
            if job.report.ack.as_ref().is_some_and(|ack| ack.is_ending()) {
                break;
            }
            // What cannot be written down is not begun: it would be run again.
            if state.begun(&job.id).is_ok() {
                state.mark(&job);
                return Some(job);
            }
        }
        state.running -= 1;
        self.changed.notify_all();
        None
    }

    /// One that was to be run has no thread. Those that wait are taken by the threads of others.
    fn withdraw(&self, id: &str) -> Result<()> {
        self.lock().running -= 1;
        self.changed.notify_all();
        self.over(id)
    }

    /// The answer to a report begins; `None` when the task has been stopped meanwhile.
    pub fn ask(&self, id: &str) -> Option<Asked> {
        let mut state = self.lock();
        let open = state.open.get_mut(id)?;
        open.is_asked = true;
        Some(Asked { depth: open.depth, used: open.used })
    }

    /// Writes down that the answer to a report has begun.
    pub fn asked(&self, id: &str) -> Result<()> {
        let mut state = self.lock();
        if let Some(open) = state.open.get_mut(id) {
            open.is_begun = true;
        }
        state.note(&json!({"asked": id}), Durability::Later)
    }

    /// The answer to a report did not begin, or could not be kept: the next start tries again.
    pub fn put_back(&self, id: &str) {
        if let Some(open) = self.lock().open.get_mut(id) {
            open.is_asked = false;
        }
    }

    /// The report was answered.
    pub fn over(&self, id: &str) -> Result<()> {
        let mut state = self.lock();
        state.open.remove(id);
        state.note(&json!({"over": id}), Durability::Later)
    }

    /// Ends the tasks of a conversation, but for one whose report is being answered. How many there were.
    pub fn stop(&self, session: &str) -> (usize, Result<()>) {
        let mut state = self.lock();
        let these = state.open.iter().filter(|(_, open)| open.session == session && !open.is_asked);
        let ids: Vec<String> = these.map(|(id, _)| id.clone()).collect();
        state.waiting.retain(|job| !ids.contains(&job.id));
        let mut noted = Ok(());
        let mut cancels = Vec::new();
        for id in &ids {
            let Some(Open { label, cancel, .. }) = state.open.remove(id) else { continue };
            cancels.push(cancel);
            state.stopped.entry(session.to_owned()).or_default().push(label);
            noted = noted.and(state.note(&json!({"over": id}), Durability::Later));
        }
        drop(state);
        cancels.iter().for_each(Cancel::stop);
        (ids.len(), noted)
    }

    /// The labels of those that were stopped since this was last asked.
    pub fn take_stopped(&self, session: &str) -> Vec<String> {
        self.lock().stopped.remove(session).unwrap_or_default()
    }

    /// The program ends as it should: that does not count against the answers under way.
    pub fn close(&self) -> Result<()> {
        let mut state = self.lock();
        let asked = state.open.iter().filter(|(_, open)| open.is_begun).map(|(id, _)| id.clone());
        asked.collect::<Vec<_>>().iter().try_for_each(|id| state.note(&json!({"left": id}), Durability::Later))
    }

    pub fn are_idle(&self) -> bool {
        self.lock().running == 0
    }

    /// Waits until none is under way.
    pub fn wait(&self) {
        drop(self.changed.wait_while(self.lock(), |state| state.running > 0));
    }
}

impl Open {
    fn new(label: String, session: String, depth: u64, cancel: Cancel) -> Self {
        let used = Default::default();
        Self { label, session, depth, cancel, is_running: false, is_asked: false, is_begun: false, used }
    }
}

impl State {
    /// Gives the job back when it can be run at once; else it waits.
    fn admit(&mut self, job: Job) -> Option<Job> {
        if self.running >= AT_ONCE {
            self.waiting.push_back(job);
            return None;
        }
        self.running += 1;
        self.mark(&job);
        Some(job)
    }

    fn mark(&mut self, job: &Job) {
        if let Some(open) = self.open.get_mut(&job.id) {
            open.is_running = true;
        }
    }

    /// Of those that wait, the first of the conversation that has the fewest under way: nobody waits for all of another's.
    fn take_turn(&mut self) -> Option<Job> {
        let under_way =
            |job: &Job| self.open.values().filter(|open| open.is_running && open.session == job.report.session).count();
        let at = (0..self.waiting.len()).min_by_key(|at| under_way(&self.waiting[*at]))?;
        self.waiting.remove(at)
    }

    /// Writes down that one that waited is run.
    fn begun(&mut self, id: &str) -> Result<()> {
        self.note(&json!({"begun": id}), Durability::Now)
    }

    /// Writes a line, where they are written down.
    fn note(&mut self, line: &Value, durability: Durability) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let fields = |line: Value| line.as_object().cloned().unwrap_or_default();
        let header = || -> Fields { fields(json!({"v": 1})) };
        let doing = "writing down background tasks";
        let journal = match self.journal.take() {
            Some(journal) => Some(journal),
            // A handle that has failed is not trusted again: the file is, and is read anew.
            None => Journal::open(path).doing(doing)?.map(|opened| opened.journal),
        };
        let Some(mut journal) = journal else {
            self.journal = Some(Journal::create(path, &[header(), fields(line.clone())]).doing(doing)?);
            return Ok(());
        };
        journal.append(&[fields(line.clone())], durability).doing(doing)?;
        if self.open.is_empty() && fs_err::metadata(path)?.len() > RENEWED_AT {
            journal.restart(vec![header()]).doing(doing)?;
        }
        self.journal = Some(journal);
        Ok(())
    }
}

/// Takes the tasks of one turn.
pub struct Spawner {
    pub floor: Arc<Dispatcher>,
    pub agent: Arc<Agent>,
    pub session: String,
    pub origin: Origin,
    pub ack: Option<Arc<dyn Ack>>,
    /// Of the task whose report the turn answers.
    pub depth: u64,
}

impl Background for Spawner {
    fn begin(&self, label: &str, task: Task, tokens: Arc<Tokens>) -> Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        if self.origin.channel == "cron" {
            return Err(Error::failed("a job is over with its answer: use subagent, which waits"));
        }
        if self.depth >= DEEPEST {
            return Err(Error::failed(format!(
                "this came of {DEEPEST} background tasks in a row: answer your user before you begin another"
            )));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let id = format!("task-{now:x}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let (ids, ack) = (vec![id.clone()], self.ack.clone());
        let report = Inbound::message(self.origin.clone(), self.session.clone(), String::new());
        let report = Inbound { kind: Kind::Report, ids, ack, ..report };
        let (label, cancel, agent) = (label.to_owned(), self.floor.cancel(Cancel::new(None)), self.agent.clone());
        let job = Job { id, label, task, tokens, cancel, agent, report };
        if let Some(job) = self.floor.tasks.take(job, self.depth + 1)? {
            start(&self.floor, job)?;
        }
        self.floor.show_tasks(&self.origin, &self.session);
        Ok(())
    }
}

/// Runs a job on a thread of its own.
fn start(floor: &Arc<Dispatcher>, job: Job) -> Result<()> {
    let (own, id) = (floor.clone(), job.id.clone());
    if let Err(e) = std::thread::Builder::new().name("task".to_owned()).spawn(move || work(&own, job)) {
        floor.tasks.withdraw(&id)?;
        return Err(Error::from(e).doing("starting a thread"));
    }
    Ok(())
}

/// Takes up a task that an earlier run of the program did not begin.
pub fn resume(floor: &Arc<Dispatcher>, message: Inbound) {
    let (id, text, origin) = (message.ids.first().cloned().unwrap_or_default(), message.text, message.origin.clone());
    let Some((label, cancel)) = floor.tasks.known(&id) else { return };
    let report = Inbound { kind: Kind::Report, text: String::new(), ..message };
    let resumed = floor.staff.agent(&report.session).and_then(|agent| {
        let tokens = Arc::new(Tokens::new(agent.limits().budget_tokens));
        let job = Job { id, label, task: Task { text }, tokens, cancel: floor.cancel(cancel), agent, report };
        floor.tasks.take_again(job)?.map_or(Ok(()), |job| start(floor, job))
    });
    // It stays in the journal, for the next start.
    floor.note(&origin, resumed);
}

/// Runs a job, and then those that wait.
fn work(floor: &Arc<Dispatcher>, first: Job) {
    let mut next = Some(first);
    while let Some(Job { id, label, task, tokens, cancel, agent, report }) = next {
        let shown = |event: Event| {
            floor.show(
                &report.origin,
                match event {
                    Event::ToolStarted { summary } => Event::ToolStarted { summary: format!("{label}: {summary}") },
                    event => event,
                },
            );
        };
        let TaskResult { report: told, usage, cost } = agent.perform(&task, &id, tokens, &cancel, &shown);
        let text = said(&label, told);
        let origin = report.origin.clone();
        match floor.tasks.ended(&id, &text, (usage, cost)) {
            // It was stopped: nobody is told.
            Ok(false) => {}
            kept => {
                floor.note(&origin, kept.map(drop));
                let session = report.session.clone();
                if let Err(e) = floor.take(Inbound { text, ..report }) {
                    floor.note(&origin, Err(e));
                    floor.note(&origin, floor.tasks.over(&id));
                    floor.show_tasks(&origin, &session);
                }
            }
        }
        next = floor.tasks.next();
    }
}

/// What the model is told of the end of a task. What it reports is data: it may have read anything.
fn said(label: &str, report: Result<String>) -> String {
    let (how, text) = match report {
        Ok(text) => ("has ended. Its report:", text),
        Err(e) if e.kind == ErrorKind::Interrupted => ("was stopped:", e.message),
        Err(e) => ("failed:", e.message),
    };
    let shown = clip(text.trim(), LONGEST_REPORT);
    let cut = if shown.len() < text.trim().len() { "\n[the rest is cut off]" } else { "" };
    let fence = fence(shown);
    format!("[The background task “{label}” {how}]\n{fence}\n{shown}\n{fence}{cut}")
}
