//! Background tasks: work that a conversation has handed to a subagent without waiting for it.
//!
//! Each task has a thread. Its report comes back as a message of the conversation, and a turn answers it. A gateway's queue
//! holds what the user gets if the program ends before that: the report or, while the task runs, that it was interrupted. The
//! next program posts it and runs nothing again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use super::Dispatcher;
use crate::agent::{Agent, Background, Budget, report_text};
use crate::bus::Inbound;
use crate::cancel::Cancel;
use crate::error::{Context, Error, Result};
use crate::outbox::{Item, Note, Outbox, fresh_id};
use crate::paths::telegram_chat;
use crate::storage::{Entry, Queue};
use crate::text::clip;
use crate::tool::Task;

/// Tasks that run at the same time.
pub(super) const MAX_RUNNING: usize = 4;
/// Tasks of one conversation whose reports are not answered yet.
const MAX_OPEN: usize = MAX_RUNNING + 16;
/// The longest report that goes to the user instead, in bytes.
const MAX_POSTED: usize = 3000;

/// Which items of the queue are background tasks.
const KIND: &str = "task";

/// The background tasks of all conversations.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<TaskState>);

#[derive(Default)]
struct TaskState {
    /// `None` for a process that waits for its tasks.
    queue: Option<Arc<Queue>>,
    /// The oldest first, until their reports are answered.
    open: Vec<OpenTask>,
    /// Labels by conversation, until its model is told.
    stopped: HashMap<String, Vec<String>>,
}

struct OpenTask {
    id: String,
    label: String,
    session: String,
    /// For the next program, if this one ends.
    item: Item,
    budget: Arc<Budget>,
    cancel: Cancel,
    /// A turn answers its report; to stop that is to stop the turn.
    is_answering: bool,
}

impl Tasks {
    /// The tasks of a gateway. Posts the reports that an earlier one left to their chats, and notes them in the conversations.
    pub(crate) fn open(outbox: &Outbox) -> Result<(Self, Vec<String>)> {
        let mut notices = Vec::new();
        for entry in outbox.queue().entries(KIND)? {
            let mut item: Item = entry.read();
            let text = std::mem::take(&mut item.text);
            clip(&text, MAX_POSTED).clone_into(&mut item.text);
            let told = Note {
                title: "This was sent to the chat",
                from: "",
                text: &text,
            };
            if telegram_chat(&item.to).is_ok() {
                let posted = outbox.post_and_note(&item, &[entry.id], &told)?;
                notices.extend(posted.noted.err().map(|e| e.message));
            } else {
                outbox.queue().done(&[entry.id])?;
            }
        }
        let state = TaskState {
            queue: Some(outbox.queue().clone()),
            ..TaskState::default()
        };
        Ok((Self(Mutex::new(state)), notices))
    }

    fn lock(&self) -> MutexGuard<'_, TaskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of open tasks, of one conversation or of all.
    pub(crate) fn count(&self, session: Option<&str>) -> usize {
        self.lock()
            .open
            .iter()
            .filter(|open| session.is_none_or(|session| open.session == session))
            .count()
    }

    /// Stores a new task.
    fn add(&self, task: OpenTask) -> Result<()> {
        let mut state = self.lock();
        let own = state
            .open
            .iter()
            .filter(|open| open.session == task.session);
        if own.count() >= MAX_OPEN {
            return Err(Error::failed(format!(
                "{MAX_OPEN} background tasks of this conversation are open: wait for them"
            )));
        }
        state.keep(&task.id, &task.item)?;
        state.open.push(task);
        Ok(())
    }

    /// Stores the report of a task. False if the task has been stopped.
    fn end(&self, id: &str, report: &str) -> Result<bool> {
        let mut state = self.lock();
        let Some(open) = state.find(id) else {
            return Ok(false);
        };
        open.item.text = report.to_owned();
        let item = open.item.clone();
        state.keep(id, &item).map(|()| true)
    }

    /// A turn answers the report of a task; `None` if the task has been stopped.
    pub(super) fn begin_answer(&self, id: &str) -> Option<Arc<Budget>> {
        let mut state = self.lock();
        let open = state.find(id)?;
        open.is_answering = true;
        Some(open.budget.clone())
    }

    /// Forgets a task: its report is answered, or it could not begin.
    pub(super) fn close(&self, id: &str) -> Result<()> {
        let mut state = self.lock();
        state.open.retain(|open| open.id != id);
        state.forget(&[id.to_owned()])
    }

    /// Stops the tasks of a conversation except one whose report is being answered. Returns their number, and whether
    /// that is stored.
    pub(super) fn stop(&self, session: &str) -> (usize, Result<()>) {
        let mut state = self.lock();
        let (stopped, open): (Vec<_>, Vec<_>) = std::mem::take(&mut state.open)
            .into_iter()
            .partition(|open| open.session == session && !open.is_answering);
        state.open = open;
        let labels = stopped.iter().map(|task| task.label.clone());
        state
            .stopped
            .entry(session.to_owned())
            .or_default()
            .extend(labels);
        let stored = {
            let ids: Vec<String> = stopped.iter().map(|task| task.id.clone()).collect();
            state.forget(&ids)
        };
        drop(state);
        // The newest first: one that waits must not take the place of one that ended.
        stopped.iter().rev().for_each(|task| task.cancel.stop());
        (stopped.len(), stored)
    }

    /// The labels of the tasks stopped since the last call.
    pub(crate) fn take_stopped(&self, session: &str) -> Vec<String> {
        self.lock().stopped.remove(session).unwrap_or_default()
    }
}

impl TaskState {
    fn find(&mut self, id: &str) -> Option<&mut OpenTask> {
        self.open.iter_mut().find(|open| open.id == id)
    }

    /// Stores what the user gets if the program ends before the task is answered. On disk when this returns.
    fn keep(&self, id: &str, item: &Item) -> Result<()> {
        let Some(queue) = &self.queue else {
            return Ok(());
        };
        let stored = queue.add(&[Entry::new(id, KIND, item)]);
        stored.doing("storing a background task")
    }

    fn forget(&self, ids: &[String]) -> Result<()> {
        let Some(queue) = &self.queue else {
            return Ok(());
        };
        // The answer has ended it where there is one.
        let open = queue.find(ids)?;
        let ids: Vec<String> = open.into_iter().map(|entry| entry.id).collect();
        queue.done(&ids).doing("forgetting a background task")
    }
}

impl Dispatcher {
    /// Starts the background tasks of a turn. `report` is the form of their reports, without text and id.
    pub(super) fn background(
        self: &Arc<Self>,
        agent: &Arc<Agent>,
        report: Inbound,
    ) -> Arc<Background> {
        let (own, agent) = (self.clone(), agent.clone());
        Arc::new(move |task, budget| own.begin_task(&agent, report.clone(), task, budget))
    }

    fn begin_task(
        self: &Arc<Self>,
        agent: &Arc<Agent>,
        mut report: Inbound,
        task: Task,
        budget: Arc<Budget>,
    ) -> Result<()> {
        let (origin, session) = (report.origin.clone(), report.session.clone());
        if origin.channel == "cron" {
            return Err(Error::failed(
                "a job has no background: give the task without it, and wait",
            ));
        }
        let (id, label) = (format!("task-{}", fresh_id()), &task.label);
        report.ids = vec![id.clone()];
        let text = format!(
            "[The background task “{label}” was interrupted when the program ended. What it did is unknown, and it will not be run again.]"
        );
        let to = format!("{}:{}", origin.channel, origin.chat);
        let cancel = Cancel::new(None);
        self.tasks.add(OpenTask {
            id: id.clone(),
            label: label.clone(),
            session: session.clone(),
            item: Item::text(&to, &text),
            budget: budget.clone(),
            cancel: cancel.clone(),
            is_answering: false,
        })?;
        let (own, agent) = (self.clone(), agent.clone());
        let work = move || {
            let slot = own.task_slots.acquire();
            let show = |event| own.show(&report.origin, event);
            let result = agent.perform(&task, &report.ids[0], budget, &cancel, &show);
            drop(slot);
            own.send_report(&task.label, report, result);
            own.queues.task_ends();
        };
        self.queues.task_begins();
        if let Err(e) = Builder::new().name("task".to_owned()).spawn(work) {
            self.queues.task_ends();
            self.tasks.close(&id)?;
            return Err(Error::from(e).doing("starting a thread"));
        }
        self.show_tasks(&origin, &session);
        Ok(())
    }

    /// Stores what a task came to and queues it for its conversation, unless the task was stopped.
    fn send_report(self: &Arc<Self>, label: &str, report: Inbound, result: Result<String>) {
        let text = report_text(label, result);
        let is_open = self.tasks.end(&report.ids[0], &text);
        if !matches!(is_open, Ok(false)) {
            self.show_failure(&report.origin, is_open.map(drop));
            self.enqueue(Inbound { text, ..report });
        }
    }
}
