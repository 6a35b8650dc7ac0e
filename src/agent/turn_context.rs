//! What all parts of a turn share: the request, the way to show events, and what the turn has spent.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Request;
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
    pub tokens: Arc<Tokens>,
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
        tokens: Arc<Tokens>,
        model: &str,
    ) -> Self {
        let cost = Mutex::new(TurnCost { model: model.to_owned(), ..TurnCost::default() });
        Self { request, cancel, events, tokens, subagents: AtomicU32::new(0), cost }
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

/// The token budget of a turn, shared with everything the turn starts.
pub struct Tokens {
    limit: Option<u64>,
    spent: AtomicU64,
}

impl Tokens {
    /// `None` for no limit.
    pub fn new(limit: Option<u64>) -> Self {
        Self { limit, spent: AtomicU64::new(0) }
    }

    pub(super) fn spend(&self, tokens: u64) {
        self.spent.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Whether a request may be made that needs so many.
    pub(super) fn check(&self, expected: impl FnOnce() -> u64) -> Result<()> {
        let Some(limit) = self.limit else { return Ok(()) };
        let (spent, expected) = (self.spent.load(Ordering::Relaxed), expected());
        if spent.saturating_add(expected) <= limit {
            return Ok(());
        }
        let spent = format!("{spent} are spent, and the next request needs about {expected}");
        Err(Error::new(Kind::Limit, format!("the turn has a budget of {limit} tokens: {spent}"))
            .hint("allow more with --budget-tokens"))
    }
}
