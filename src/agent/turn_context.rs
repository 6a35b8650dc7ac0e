//! Shared parts of a turn: the request, the receiver of events, and the budget.

use std::sync::Arc;

use super::{Agent, History, Request};
use crate::bus::Event;
use crate::cancel::Cancel;
use crate::provider::Chain;
use crate::provider::chain::Choice;
use crate::usage::Budget;

/// Shows an event.
pub(crate) type Events<'a> = &'a (dyn Fn(Event) + Sync);

/// Read-only context of all parts of a turn.
#[derive(Clone, Copy)]
pub(super) struct TurnContext<'a> {
    pub agent: &'a Agent,
    pub request: &'a Request,
    pub cancel: &'a Cancel,
    pub events: Events<'a>,
    pub budget: &'a Arc<Budget>,
    /// The models to ask.
    pub chain: &'a Arc<Chain>,
    /// The one of them that this turn asks first.
    pub choice: &'a Choice,
    /// Limits of the history, with the context window of these models.
    pub history: History,
}

impl<'a> TurnContext<'a> {
    /// Returns the first model to ask, as `vendor/model`.
    pub(super) fn model(&self) -> &'a str {
        self.chain.first_name()
    }

    pub(super) fn notice(&self, text: impl Into<String>) {
        (self.events)(Event::Notice(text.into()));
    }

    /// Reports something broken.
    pub(super) fn warn(&self, text: impl Into<String>) {
        (self.events)(Event::Warning(text.into()));
    }
}
