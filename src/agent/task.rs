//! Subagents: one engine for every tool that has another agent do something.
//!
//! A subagent is this agent again, with a context of its own: it sees its task and nothing of the conversation, has the
//! same tools but those that talk or start others, the same limits, and shares the budget. It remembers nothing. Whoever
//! asks for one waits for it, or hands the task to the [`Background`].

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

/// The tokens of a turn, which all that it starts shares: what is spent side by side is spent once.
pub struct Tokens {
    most: Option<u64>,
    spent: AtomicU64,
}

impl Tokens {
    /// `most` is how many there are; `None` for no limit.
    pub fn new(most: Option<u64>) -> Self {
        Self { most, spent: AtomicU64::new(0) }
    }

    pub fn spend(&self, tokens: u64) {
        self.spent.fetch_add(tokens, Ordering::Relaxed);
    }

    pub fn check(&self) -> Result<()> {
        let spent = self.spent.load(Ordering::Relaxed);
        let Some(most) = self.most.filter(|most| spent >= *most) else { return Ok(()) };
        Err(Error::new(Kind::Limit, format!("the turn's budget of {most} tokens is used up ({spent} were spent)"))
            .hint("give it more with --budget-tokens"))
    }
}

/// Who takes tasks that go on while the conversation does.
pub trait Background: Send + Sync {
    /// Takes a task, to be done with [`Agent::perform`]. Its report comes back as a message. Returns at once.
    fn begin(&self, label: &str, task: Task, tokens: Arc<Tokens>) -> Result<()>;
}

/// What a task came to.
pub struct TaskResult {
    /// The report. An error is in words for the model.
    pub report: Result<String>,
    pub usage: Usage,
    pub cost: Option<f64>,
}

/// The subagents of a turn.
pub struct Subagents {
    begun: AtomicUsize,
    /// With what it cost.
    used: Mutex<(Usage, Option<f64>)>,
    tokens: Arc<Tokens>,
}

impl Subagents {
    pub fn new(tokens: Arc<Tokens>) -> Self {
        Self { begun: AtomicUsize::new(0), used: Mutex::default(), tokens }
    }

    /// What they used since this was last asked.
    pub fn take_bill(&self) -> (Usage, Option<f64>) {
        std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Agent {
    /// Has a subagent do a task, and waits for it.
    pub fn run_task(&self, task: &Task, helpers: &Subagents, cancel: &Cancel, events: Events) -> Result<ToolOutput> {
        let number = self.count(helpers)?;
        let chat = format!("{CHANNEL}_{number}");
        let done = self.perform(task, &chat, helpers.tokens.clone(), cancel, &|event| {
            events(match event {
                Event::ToolStarted { summary } => Event::ToolStarted { summary: format!("subagent: {summary}") },
                event => event,
            });
        });
        let mut used = helpers.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.0.add(done.usage);
        used.1 = done.cost.map(|cost| used.1.unwrap_or(0.0) + cost).or(used.1);
        done.report.map(ToolOutput::text)
    }

    /// Hands a task to the background of the turn.
    pub fn start_task(&self, label: &str, task: Task, helpers: &Subagents, request: &Request) -> Result<()> {
        let Some(background) = &request.background else {
            return Err(Error::failed("there is no background here: use subagent, which waits"));
        };
        self.count(helpers)?;
        background.begin(label, task, helpers.tokens.clone())
    }

    /// Counts one more subagent of a turn.
    fn count(&self, helpers: &Subagents) -> Result<usize> {
        if self.is_subagent {
            return Err(Error::failed("a subagent does its task itself"));
        }
        let number = helpers.begun.fetch_add(1, Ordering::Relaxed) + 1;
        if number > MOST {
            return Err(Error::failed(format!(
                "there were {MOST} subagents in this turn already: do the rest yourself"
            )));
        }
        Ok(number)
    }

    /// Does a task as a subagent, on this thread. `chat` is what its calls of the model are written down as.
    pub fn perform(&self, task: &Task, chat: &str, tokens: Arc<Tokens>, cancel: &Cancel, events: Events) -> TaskResult {
        let request = Request {
            session: chat.to_owned(),
            origin: Origin { channel: CHANNEL.to_owned(), chat: chat.to_owned() },
            cancel: cancel.with_timeout(self.limits.timeout),
            tokens: Some(tokens),
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
            Event::ToolStarted { .. } | Event::Notice(_) | Event::Trace(_) | Event::ToolFinished { .. } => {
                events(event);
            }
            // Its words are for its caller.
            Event::Delta(_) | Event::DeltasDiscarded | Event::Background(_) | Event::Done(_) => {}
        };
        let response = self.subagent().run(&request, &shown);
        let output = response.output.trim();
        let report = match response.error {
            None => Ok(output.to_owned()),
            Some(error) if error.kind == Kind::Interrupted => Err(error),
            // It answered, though it had to stop early.
            Some(error) if response.stop == TurnStop::Limit && !output.is_empty() => {
                Ok(format!("{output}\n[the subagent had to stop: {}]", error.message))
            }
            Some(error) if output.is_empty() => Err(error.doing("the subagent failed")),
            Some(error) => {
                Err(Error::failed(format!("the subagent failed: {}; so far it had: {output}", error.message)))
            }
        };
        TaskResult { report, usage: response.usage, cost: response.cost }
    }

    fn subagent(&self) -> Self {
        let tools = self.tools.without(&NOT_FOR_SUBAGENTS);
        let offers = offers(&tools);
        Self {
            chain: Arc::clone(&self.chain),
            offers_weight: history::weight_of_offers(&offers),
            offers,
            tools,
            store: Arc::new(Memory::default()),
            prompt: Arc::clone(&self.prompt),
            limits: self.limits,
            history: self.history,
            stream: self.stream,
            filter: None,
            redactor: self.redactor.clone(),
            ledger: self.ledger.clone(),
            is_subagent: true,
        }
    }
}
