//! The background tasks of one question: each runs on a thread of its own, and the command waits for their reports.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use super::printer::Printer;
use crate::agent::{Agent, Budget, report_text};
use crate::bus::Event;
use crate::cancel::{Cancel, CancelReason};
use crate::error::{Context, Error, Result};
use crate::outbox::fresh_id;
use crate::tool::Task;

/// Tasks that run at the same time.
const MAX_RUNNING: usize = 4;
/// Tasks whose reports are not answered yet.
const MAX_OPEN: usize = MAX_RUNNING + 16;

pub(super) struct BackgroundTasks {
    agent: Arc<Agent>,
    /// Of the question: its end is the end of its tasks.
    cancel: Cancel,
    printer: Arc<Printer>,
    state: Mutex<TaskState>,
    changed: Condvar,
}

#[derive(Default)]
struct TaskState {
    /// The labels of the tasks whose reports are not answered yet.
    open: Vec<String>,
    running: usize,
    reports: VecDeque<Report>,
}

/// What a task has found or done.
pub(super) struct Report {
    label: String,
    pub text: String,
    pub budget: Arc<Budget>,
}

impl BackgroundTasks {
    pub(super) fn new(agent: Arc<Agent>, cancel: Cancel, printer: Arc<Printer>) -> Arc<Self> {
        Arc::new(Self {
            agent,
            cancel,
            printer,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Starts a task and returns at once.
    pub(super) fn begin(self: &Arc<Self>, task: Task, budget: Arc<Budget>) -> Result<()> {
        {
            let mut state = self.lock();
            if state.open.len() >= MAX_OPEN {
                return Err(Error::failed(format!(
                    "{MAX_OPEN} background tasks of this conversation are open: wait for them"
                )));
            }
            state.open.push(task.label.clone());
        }
        let label = task.label.clone();
        let own = self.clone();
        let started = Builder::new()
            .name("task".to_owned())
            .spawn(move || own.run(&task, budget));
        if let Err(e) = started {
            self.close(&label);
            return Err(e).doing("starting a thread");
        }
        self.show_open();
        Ok(())
    }

    fn run(&self, task: &Task, budget: Arc<Budget>) {
        let is_full = |state: &mut TaskState| state.running >= MAX_RUNNING;
        self.changed
            .wait_while(self.lock(), is_full)
            .unwrap_or_else(PoisonError::into_inner)
            .running += 1;
        let chat = format!("task-{}", fresh_id());
        let result = self
            .agent
            .perform(task, &chat, budget.clone(), &self.cancel, &|event| {
                self.printer.event(event);
            });
        let mut state = self.lock();
        state.running -= 1;
        state.reports.push_back(Report {
            label: task.label.clone(),
            text: report_text(&task.label, result),
            budget,
        });
        self.changed.notify_all();
    }

    /// Waits for the next report to answer. `None` when all are answered, or when the user has stopped the question and
    /// its tasks have ended.
    pub(super) fn next_report(&self) -> Option<Report> {
        let is_waiting = |state: &mut TaskState| {
            let may_answer = self.cancel.reason() != Some(CancelReason::Stopped);
            let has_report = may_answer && !state.reports.is_empty();
            !has_report && state.reports.len() < state.open.len()
        };
        let mut state = self
            .changed
            .wait_while(self.lock(), is_waiting)
            .unwrap_or_else(PoisonError::into_inner);
        if self.cancel.reason() == Some(CancelReason::Stopped) {
            return None;
        }
        state.reports.pop_front()
    }

    /// The report is answered.
    pub(super) fn answered(&self, report: &Report) {
        self.close(&report.label);
    }

    fn close(&self, label: &str) {
        let mut state = self.lock();
        if let Some(at) = state.open.iter().position(|open| open == label) {
            state.open.remove(at);
        }
    }

    /// How many reports are not answered yet.
    pub(super) fn count(&self) -> usize {
        self.lock().open.len()
    }

    /// Shows how many reports are still to come.
    pub(super) fn show_open(&self) {
        self.printer.event(Event::Background(self.count()));
    }

    /// The labels of the tasks whose reports nobody will answer.
    pub(super) fn take_open(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().open)
    }

    fn lock(&self) -> MutexGuard<'_, TaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
