//! What all parts of a turn use: the request, the way to show events, and the budget.

use std::sync::Arc;

use super::{Agent, History, Request};
use crate::bus::Event;
use crate::cancel::Cancel;
use crate::provider::Chain;
use crate::usage::Budget;

/// Shows an event.
pub(crate) type Events<'a> = &'a (dyn Fn(Event) + Sync);

/// What every part of a turn uses and none of them changes.
#[derive(Clone, Copy)]
pub(super) struct TurnContext<'a> {
    pub agent: &'a Agent,
    pub request: &'a Request,
    pub cancel: &'a Cancel,
    pub events: Events<'a>,
    pub budget: &'a Arc<Budget>,
    /// The models to ask.
    pub chain: &'a Arc<Chain>,
    /// With the window of these models.
    pub history: History,
}

impl<'a> TurnContext<'a> {
    /// The model to be asked first, as `vendor/model`.
    pub(super) fn model(&self) -> &'a str {
        self.chain.first_name()
    }

    pub(super) fn notice(&self, text: impl Into<String>) {
        (self.events)(Event::Notice(text.into()));
    }

    /// Something is broken.
    pub(super) fn warn(&self, text: impl Into<String>) {
        (self.events)(Event::Warning(text.into()));
    }
}
