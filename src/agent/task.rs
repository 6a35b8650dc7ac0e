//! Subagents: the one engine for every tool that hands a task to another agent.
//!
//! A subagent is this agent with its own context: it sees its task but not the conversation, lacks the tools that send messages
//! or start other agents, has the same limits, shares the turn's budget, and stores nothing. Its caller waits for it, or
//! hands the task to a [`Background`].

use std::sync::Arc;

use super::turn_context::{Events, TurnContext};
use super::{Agent, Limits, Request};
use crate::bus::{Event, Origin};
use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::provider::Retry;
use crate::session::MemoryStore;
use crate::text::{clip, fenced};
use crate::tool::{NOT_FOR_SUBAGENTS, SUBAGENT, Task, ToolOutput};
use crate::usage::Budget;

/// The longest report of a background task that goes to the model, in bytes.
const MAX_REPORT: usize = 64 << 10;

/// Accepts a task and returns at once. Runs it with [`Agent::perform`]; the report comes back as a message. An error is worded
/// for the model: too many tasks are waiting, say.
pub type Background = dyn Fn(Task, Arc<Budget>) -> Result<()> + Send + Sync;

impl Agent {
    /// Runs a task as a subagent on this thread and returns its report.
    ///
    /// # Errors
    /// In words for the model.
    pub fn perform(
        &self,
        task: &Task,
        chat: &str,
        budget: Arc<Budget>,
        cancel: &Cancel,
        events: Events,
    ) -> Result<String> {
        if self.is_subagent {
            return Err(Error::failed(
                "a subagent cannot start others: do the task yourself",
            ));
        }
        let input = format!(
            "You are a subagent. Another agent gave you the task below; you do not see its conversation, and nobody can \
             answer questions. Complete the task with your tools, then report what you found or did, and what you could \
             not do.\n\nThe task:\n\n{}",
            task.text
        );
        let request = Request {
            origin: Origin {
                channel: SUBAGENT.to_owned(),
                chat: chat.to_owned(),
            },
            cancel: cancel.clone(),
            budget: Some(budget),
            ..Request::new(input, chat)
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
        let subagent = Self {
            store: Arc::new(MemoryStore::default()),
            filter: None,
            is_subagent: true,
            undo_in: None,
            limits: Limits {
                retry: Retry {
                    partial: true,
                    ..self.limits.retry
                },
                ..self.limits
            },
            ..self
                .clone()
                .with_tools(self.tools.without(&NOT_FOR_SUBAGENTS))
        };
        let response = subagent.run(&request, &shown);
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

impl TurnContext<'_> {
    /// Runs a task as a subagent of the turn and waits for it.
    pub(super) fn run_task(&self, task: &Task) -> Result<ToolOutput> {
        let budget = self.budget.clone();
        self.agent
            .perform(task, SUBAGENT, budget, self.cancel, self.events)
            .map(ToolOutput::text)
    }

    /// Hands a task to the turn's background.
    pub(super) fn start_task(&self, task: Task) -> Result<()> {
        let Some(begin) = &self.request.background else {
            return Err(Error::failed(
                "there is no background here: give the task without it, and wait",
            ));
        };
        begin(task, self.budget.clone())
    }
}

/// What the model is told about the end of a task. The report is fenced as data: the task may have read anything.
pub(crate) fn report_text(label: &str, result: Result<String>) -> String {
    let (how, text) = match result {
        Ok(text) => ("has ended. Its report:", text),
        Err(e) if e.kind == Kind::Interrupted => ("was stopped:", e.message),
        Err(e) => ("failed:", e.message),
    };
    let shown = clip(text.trim(), MAX_REPORT);
    let cut = if shown.len() < text.trim().len() {
        "\n[the rest is cut off]"
    } else {
        ""
    };
    format!(
        "[The background task “{label}” {how}]\n{}{cut}",
        fenced(shown)
    )
}
