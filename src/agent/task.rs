//! Subagents: one engine for every tool that has another agent do something.
//!
//! A subagent is this agent again, with a context of its own: it sees its task and nothing of the conversation, has the
//! same tools but those that talk or start others, the same limits, and what is left of the budget. It remembers nothing.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::turn::Events;
use super::{Agent, Request, history, offers};
use crate::bus::{Event, Origin, TurnStop};
use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::message::Usage;
use crate::session::Memory;
use crate::tool::{NOT_FOR_SUBAGENTS, Task, ToolOutput};

/// Subagents of one turn: a model that wants more has lost its way.
const MOST: usize = 16;

/// The channel of a subagent, by which it is known as one.
const CHANNEL: &str = "subagent";

/// The subagents of a turn.
pub struct Helpers {
    begun: AtomicUsize,
    /// With what it cost.
    used: Mutex<(Usage, Option<f64>)>,
    /// Tokens that are left for them; the most there are for no limit.
    left: AtomicU64,
}

impl Default for Helpers {
    fn default() -> Self {
        Self { begun: AtomicUsize::new(0), used: Mutex::default(), left: AtomicU64::new(u64::MAX) }
    }
}

impl Helpers {
    /// What is left of the turn's tokens, for each of those that are begun from now on.
    pub fn may_spend(&self, left: Option<u64>) {
        self.left.store(left.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// What they used since this was last asked.
    pub fn take_bill(&self) -> (Usage, Option<f64>) {
        std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Agent {
    /// Has a subagent do a task, and waits for it.
    ///
    /// # Errors
    /// In words for the model: there may be no more of them, this is one itself, or it came to nothing.
    pub fn run_task(&self, task: &Task, helpers: &Helpers, cancel: &Cancel, events: Events) -> Result<ToolOutput> {
        if self.is_subagent {
            return Err(Error::failed("a subagent does its task itself"));
        }
        if helpers.begun.fetch_add(1, Ordering::Relaxed) >= MOST {
            return Err(Error::failed(format!(
                "there were {MOST} subagents in this turn already: do the rest yourself"
            )));
        }
        let chat = format!("{CHANNEL}_{}", helpers.begun.load(Ordering::Relaxed));
        let request = Request {
            session: chat.clone(),
            origin: Origin { channel: CHANNEL.to_owned(), chat },
            cancel: cancel.with_timeout(self.limits.timeout),
            ..Request::new(
                format!(
                    "You are a subagent: another agent has given you one task, and you see nothing of its conversation. \
                     Nobody can answer questions. Do it with your tools, and end with a report that says what you found \
                     or did, and what you could not do.\n\nThe task:\n\n{}",
                    task.text
                ),
                "",
            )
        };
        let shown = |event: Event| match event {
            Event::ToolStarted { summary } => events(Event::ToolStarted { summary: format!("subagent: {summary}") }),
            Event::Notice(_) | Event::Trace(_) | Event::ToolFinished { .. } => events(event),
            // Its words are for its caller.
            Event::Delta(_) | Event::DeltasVoid | Event::Done(_) => {}
        };
        let response = self.subagent(helpers).run(&request, &shown);
        {
            let mut used = helpers.used.lock().unwrap_or_else(PoisonError::into_inner);
            used.0.add(response.usage);
            used.1 = response.cost.map(|cost| used.1.unwrap_or(0.0) + cost).or(used.1);
        }
        let output = response.output.trim();
        match response.error {
            None => Ok(ToolOutput::text(output)),
            Some(error) if error.kind == Kind::Interrupted => Err(error),
            // It answered, though it had to stop early.
            Some(error) if response.stop == TurnStop::Limit && !output.is_empty() => {
                Ok(ToolOutput::text(format!("{output}\n[the subagent had to stop: {}]", error.message)))
            }
            Some(error) if output.is_empty() => Err(error.doing("the subagent failed")),
            Some(error) => {
                Err(Error::failed(format!("the subagent failed: {}; so far it had: {output}", error.message)))
            }
        }
    }

    fn subagent(&self, helpers: &Helpers) -> Self {
        let tools = self.tools.without(&NOT_FOR_SUBAGENTS);
        let left = helpers.left.load(Ordering::Relaxed);
        let offers = offers(&tools);
        let mut limits = self.limits;
        limits.budget_tokens = limits.budget_tokens.map(|budget| budget.min(left));
        Self {
            lineup: Arc::clone(&self.lineup),
            offers_weight: history::weight_of_offers(&offers),
            offers,
            tools,
            store: Arc::new(Memory::default()),
            prompt: Arc::clone(&self.prompt),
            limits,
            history: self.history,
            stream: self.stream,
            filter: None,
            redactor: self.redactor.clone(),
            ledger: self.ledger.clone(),
            is_subagent: true,
        }
    }
}
