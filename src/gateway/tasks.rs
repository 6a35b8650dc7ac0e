//! Background tasks: work that a conversation has handed to a subagent without waiting for it.
//!
//! Each task has a thread. Its report comes back as a message of the conversation, and a turn answers it. A gateway stores in
//! `state/tasks.json` what the user gets if the program ends before that: the report or, while the task runs, that it was
//! interrupted. The next program posts it and runs nothing again.

use std::collections::HashMap;
use std::io::ErrorKind as IoErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use serde_json::json;

use super::Dispatcher;
use crate::agent::{Agent, Background, Spending, report_text};
use crate::bus::Inbound;
use crate::cancel::Cancel;
use crate::disk::{self, Durability};
use crate::error::{Context, Error, Result};
use crate::outbox::{Item, Outbox, fresh_id};
use crate::paths::{Home, session_name};
use crate::session::note;
use crate::text::{clip, from_json};
use crate::tool::Task;

/// Tasks that run at the same time.
pub(super) const MAX_RUNNING: usize = 4;
/// Tasks of one conversation whose reports are not answered yet.
const MAX_OPEN: usize = MAX_RUNNING + 16;
/// The longest report that goes to the user instead, in bytes.
const MAX_POSTED: usize = 3000;

/// The background tasks of all conversations.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<TaskState>);

#[derive(Default)]
struct TaskState {
    /// `None` for a process that waits for its tasks.
    file: Option<PathBuf>,
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
    spending: Arc<Spending>,
    cancel: Cancel,
    /// A turn answers its report; to stop that is to stop the turn.
    is_answering: bool,
}

impl Tasks {
    /// The tasks of a gateway, which alone has the file open, and what is wrong with the file. Posts the reports that an
    /// earlier gateway left to their chats, and notes them in the conversations.
    pub(crate) fn open(home: &Home) -> Result<(Self, Option<String>)> {
        let file = home.state().join("tasks.json");
        let (mut left, mut damage) = (Vec::new(), None);
        match fs_err::read(&file) {
            Err(e) if e.kind() == IoErrorKind::NotFound => {}
            text => match from_json::<Vec<Item>>(&text?) {
                Ok(items) => left = items,
                Err(e) => {
                    damage = Some(format!(
                        "{} is damaged and was left out: {e}",
                        file.display()
                    ));
                }
            },
        }
        let outbox = Outbox::new(home.clone());
        let answered = outbox.answered()?;
        for mut item in left {
            let [id] = &*item.answers else { continue };
            let Some((channel, chat)) = item.to.split_once(':').filter(|_| !answered.contains(id))
            else {
                continue;
            };
            note(
                home,
                &session_name(channel, chat)?,
                id,
                "This was sent to the chat",
                &item.text,
            )?;
            item.text.truncate(clip(&item.text, MAX_POSTED).len());
            outbox.post(&item)?;
        }
        disk::remove(&file)?;
        Ok((
            Self(Mutex::new(TaskState {
                file: Some(file),
                ..TaskState::default()
            })),
            damage,
        ))
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
        if self.count(Some(&task.session)) >= MAX_OPEN {
            return Err(Error::failed(format!(
                "{MAX_OPEN} background tasks of this conversation are open: wait for them"
            )));
        }
        let mut state = self.lock();
        state.open.push(task);
        state.save().inspect_err(|_| drop(state.open.pop()))
    }

    /// Stores the report of a task. False if the task has been stopped.
    fn end(&self, id: &str, report: &str) -> Result<bool> {
        let mut state = self.lock();
        let Some(open) = state.find(id) else {
            return Ok(false);
        };
        open.item.text = report.to_owned();
        state.save().map(|()| true)
    }

    /// A turn answers the report of a task; `None` if the task has been stopped.
    pub(super) fn begin_answer(&self, id: &str) -> Option<Arc<Spending>> {
        let mut state = self.lock();
        let open = state.find(id)?;
        open.is_answering = true;
        Some(open.spending.clone())
    }

    /// Forgets a task: its report is answered, or it could not begin.
    pub(super) fn close(&self, id: &str) -> Result<()> {
        let mut state = self.lock();
        state.open.retain(|open| open.id != id);
        state.save()
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
        let stored = if stopped.is_empty() {
            Ok(())
        } else {
            state.save()
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

    fn save(&self) -> Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let items: Vec<&Item> = self.open.iter().map(|open| &open.item).collect();
        let stored = match items[..] {
            [] => disk::remove(file),
            _ => disk::replace(file, json!(items).to_string().as_bytes(), Durability::Now),
        };
        stored.doing("storing the background tasks")
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
        Arc::new(move |task, spending| own.begin_task(&agent, report.clone(), task, spending))
    }

    fn begin_task(
        self: &Arc<Self>,
        agent: &Arc<Agent>,
        mut report: Inbound,
        task: Task,
        spending: Arc<Spending>,
    ) -> Result<()> {
        let (origin, session) = (report.origin.clone(), report.session.clone());
        if origin.channel == "cron" {
            return Err(Error::failed(
                "a scheduled job ends with its answer: use subagent, which waits",
            ));
        }
        let (id, label) = (format!("task-{}", fresh_id()), &task.label);
        report.ids = vec![id.clone()];
        let text = format!(
            "[The background task “{label}” was interrupted when the program ended. What it did is unknown, and it is not run \
             again.]"
        );
        let to = format!("{}:{}", origin.channel, origin.chat);
        let cancel = Cancel::new(None);
        self.tasks.add(OpenTask {
            id: id.clone(),
            label: label.clone(),
            session: session.clone(),
            item: Item {
                to,
                text,
                answers: report.ids.clone(),
                ..Item::default()
            },
            spending: spending.clone(),
            cancel: cancel.clone(),
            is_answering: false,
        })?;
        let (own, agent) = (self.clone(), agent.clone());
        let work = move || {
            let slot = own.task_slots.acquire();
            let show = |event| own.show(&report.origin, event);
            let result = agent.perform(&task, &report.ids[0], spending, &cancel, &show);
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
