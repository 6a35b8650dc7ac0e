//! What all parts of a turn share: the request, the way to show events, and what the turn has spent.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Limits, Request};
use crate::bus::Event;
use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::message::{Usage, add_cost};

/// Shows an event.
pub(crate) type Events<'a> = &'a (dyn Fn(Event) + Sync);

/// The turn under way.
pub(super) struct TurnContext<'a> {
    pub request: &'a Request,
    pub cancel: Cancel,
    pub events: Events<'a>,
    pub spending: Arc<Spending>,
    /// It answers what followed from another turn: nobody would ask its question again.
    pub follows: bool,
    /// How many subagents the turn has started.
    pub subagents: AtomicU32,
    cost: Mutex<TurnCost>,
}

/// What a turn has spent so far, its summaries and subagents included.
#[derive(Clone, Default)]
pub(super) struct TurnCost {
    /// The model that was asked last.
    pub model: String,
    pub usage: Usage,
    /// `None` when no price is known.
    pub cost: Option<f64>,
}

impl TurnCost {
    pub(super) fn add(&mut self, usage: Usage, cost: Option<f64>) {
        self.usage.add(usage);
        add_cost(&mut self.cost, cost);
    }
}

impl<'a> TurnContext<'a> {
    /// `model` is the first choice.
    pub(super) fn new(
        request: &'a Request,
        cancel: Cancel,
        events: Events<'a>,
        spending: Arc<Spending>,
        model: &str,
    ) -> Self {
        let cost = Mutex::new(TurnCost { model: model.to_owned(), ..TurnCost::default() });
        let follows = spending.calls() > 0;
        Self { request, cancel, events, spending, follows, subagents: AtomicU32::new(0), cost }
    }

    pub(super) fn notice(&self, text: impl Into<String>) {
        (self.events)(Event::Notice(text.into()));
    }

    /// Something is broken.
    pub(super) fn warn(&self, text: impl Into<String>) {
        (self.events)(Event::Warning(text.into()));
    }

    pub(super) fn cost(&self) -> MutexGuard<'_, TurnCost> {
        self.cost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a message of a user, or a run of a job, has caused so far: shared by its turn and all subagents, background tasks and
/// answers to their reports that follow from it.
#[derive(Default)]
pub struct Spending {
    /// The id of the message; it names the message's calls in the ledger. Empty if nothing outlives this process.
    cause: String,
    calls: AtomicU32,
    tokens: AtomicU64,
    /// The user knows that no call is left.
    is_told: AtomicBool,
}

impl Spending {
    /// Of the message with this id, which has caused so many calls.
    pub(crate) fn of(cause: &str, calls: u32) -> Self {
        Self { cause: cause.to_owned(), calls: calls.into(), ..Self::default() }
    }

    pub(crate) fn cause(&self) -> &str {
        &self.cause
    }

    pub(super) fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Adds the calls before a restart; `recorded` may include some that are counted already.
    pub(super) fn restore(&self, recorded: u32) {
        self.calls.fetch_max(recorded, Ordering::Relaxed);
    }

    pub(super) fn spend(&self, tokens: u64) {
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// The model calls that are left.
    pub(super) fn calls_left(&self, limits: &Limits) -> u32 {
        limits.max_calls.saturating_sub(self.calls())
    }

    /// Whether no call is left and the user knows; they do from now on.
    pub(crate) fn is_told_again(&self, limits: &Limits) -> bool {
        self.calls_left(limits) == 0 && self.is_told.swap(true, Ordering::Relaxed)
    }

    /// Counts a call, if it may be made; it needs `expected` tokens.
    pub(super) fn begin_call(&self, limits: &Limits, expected: impl FnOnce() -> u64) -> Result<()> {
        if let Some(limit) = limits.budget_tokens {
            let (spent, expected) = (self.tokens.load(Ordering::Relaxed), expected());
            if spent.saturating_add(expected) > limit {
                let spent = format!("{spent} are spent, and the next request needs about {expected}");
                return Err(Error::new(Kind::Limit, format!("the turn has a budget of {limit} tokens: {spent}"))
                    .hint("allow more with --budget-tokens"));
            }
        }
        let count = |calls| (calls < limits.max_calls).then_some(calls + 1);
        match self.calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) {
            Ok(_) => Ok(()),
            Err(_) => Err(no_call_left(limits)),
        }
    }
}

pub(super) fn no_call_left(limits: &Limits) -> Error {
    let most = limits.max_calls;
    Error::new(Kind::Limit, format!("the {most} model calls that one message may cause are used up"))
        .hint("send another message to continue, or raise agents.defaults.max_calls")
}
