//! What all parts of a turn use: the request, the way to show events, and what the turn has spent.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{Agent, Limits, Request};
use crate::bus::Event;
use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::message::{Usage, add_cost};
use crate::session::versions::Versions;

/// Shows an event.
pub(crate) type Events<'a> = &'a (dyn Fn(Event) + Sync);

/// What every part of a turn uses and none of them changes.
#[derive(Clone, Copy)]
pub(super) struct TurnContext<'a> {
    pub agent: &'a Agent,
    pub request: &'a Request,
    pub cancel: &'a Cancel,
    pub events: Events<'a>,
    pub spending: &'a Arc<Spending>,
    /// The turn answers something that followed from another turn, so nobody would ask its question again.
    pub is_follow_up: bool,
}

impl TurnContext<'_> {
    pub(super) fn notice(&self, text: impl Into<String>) {
        (self.events)(Event::Notice(text.into()));
    }

    /// Something is broken.
    pub(super) fn warn(&self, text: impl Into<String>) {
        (self.events)(Event::Warning(text.into()));
    }
}

/// What a message of a user, or a run of a job, has caused so far: shared by its turn and all subagents, background tasks and
/// answers to their reports that follow from it. Programs need one only for several turns with one limit
/// ([`Request::spending`]): each gets a clone of the same `Arc::<Spending>::default()`.
#[derive(Default)]
pub struct Spending {
    /// The id of the message; it names the message's calls in the ledger. Empty if nothing outlives this process.
    cause: String,
    calls: AtomicU32,
    tokens: AtomicU64,
    subagents: AtomicU32,
    /// The user knows that no call is left.
    is_told: AtomicBool,
    /// The files that the turn has changed, as they were before.
    versions: OnceLock<Versions>,
    /// Usage and cost that no response has reported yet, as hosts count them.
    untold: Mutex<(Usage, Option<f64>)>,
}

impl Spending {
    /// Of the message with this id.
    pub(crate) fn of(cause: String) -> Self {
        Self {
            cause,
            ..Self::default()
        }
    }

    /// Keeps earlier versions of files from now on, for the turn that started all this.
    pub(super) fn keep_versions(&self, versions: Versions) {
        // An answer to a report belongs to the turn before it.
        self.versions.set(versions).ok();
    }

    pub(super) fn versions(&self) -> Option<&Versions> {
        self.versions.get()
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

    /// Adds a call that took so many tokens; `counted` is its usage as the host counts it.
    pub(crate) fn spend(&self, tokens: u64, counted: Usage, cost: Option<f64>) {
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        untold.0.add(counted);
        add_cost(&mut untold.1, cost);
    }

    /// The usage and the cost for the response of a turn. Background tasks that have ended since the last one are in it.
    pub(super) fn tell(&self) -> (Usage, Option<f64>) {
        std::mem::take(&mut self.untold.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The model calls that are left.
    pub(super) fn calls_left(&self, limits: &Limits) -> u32 {
        limits.max_calls.saturating_sub(self.calls())
    }

    /// Whether no call is left and the user has been told before; from now on they have.
    pub(crate) fn is_told_again(&self, limits: &Limits) -> bool {
        self.calls_left(limits) == 0 && self.is_told.swap(true, Ordering::Relaxed)
    }

    /// The number of the next subagent, from 1.
    pub(super) fn next_subagent(&self) -> u32 {
        self.subagents.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts a call, if it may be made; it needs `expected` tokens.
    pub(super) fn begin_call(&self, limits: &Limits, expected: impl FnOnce() -> u64) -> Result<()> {
        self.begin_one_of(limits.max_calls, limits, expected)
    }

    /// The same for a request that asks no chat model. It leaves a call for the answer.
    pub(crate) fn begin_other_call(&self, limits: &Limits, expected: u64) -> Result<()> {
        let most = limits.max_calls.saturating_sub(1);
        self.begin_one_of(most, limits, || expected)
    }

    fn begin_one_of(
        &self,
        most: u32,
        limits: &Limits,
        expected: impl FnOnce() -> u64,
    ) -> Result<()> {
        if let Some(limit) = limits.budget_tokens {
            let (spent, expected) = (self.tokens.load(Ordering::Relaxed), expected());
            if spent.saturating_add(expected) > limit {
                let spent =
                    format!("{spent} are spent, and the next request needs about {expected}");
                return Err(Error::new(
                    Kind::Limit,
                    format!("the turn has a budget of {limit} tokens: {spent}"),
                )
                .hint("allow more with --budget-tokens"));
            }
        }
        let count = |calls| (calls < most).then_some(calls + 1);
        let counted = self
            .calls
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
        counted.map(drop).map_err(|_| no_call_left(limits))
    }
}

pub(super) fn no_call_left(limits: &Limits) -> Error {
    let most = limits.max_calls;
    Error::new(
        Kind::Limit,
        format!("the {most} model calls that one message may cause are used up"),
    )
    .hint("send another message to continue, or raise agents.defaults.max_calls")
}
