//! What one message has used and may still use.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use super::{Call, Ledger};
use crate::error::{Error, Kind, Result};
use crate::message::{Usage, add_cost};
use crate::session::versions::Versions;

/// What a message of a user, or a run of a job, has used and may still use: shared by its turn and all subagents, background
/// tasks and answers to their reports that follow from it. [`Agent::budget`](crate::agent::Agent::budget) makes one, for
/// several turns with one limit.
pub struct Budget {
    /// Whose day's budget counts, and where calls are recorded.
    ledger: Option<Arc<Ledger>>,
    session: String,
    channel: String,
    max_calls: u32,
    max_tokens: Option<u64>,
    calls: AtomicU32,
    tokens: AtomicU64,
    /// A turn has asked for a reply.
    has_asked: AtomicBool,
    /// The user knows that no call is left.
    is_told: AtomicBool,
    /// The files that the turn has changed, as they were before.
    versions: OnceLock<Versions>,
    /// Usage and cost that no response has reported yet, as hosts count them.
    unreported: Mutex<(Usage, Option<f64>)>,
}

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spend {
    /// A reply.
    Reply,
    /// Something else, on the way to the reply, for which it leaves a request.
    Other,
}

impl Budget {
    /// Of a message in this session and channel, without limits.
    pub(crate) fn new(ledger: Option<Arc<Ledger>>, session: &str, channel: &str) -> Self {
        Self {
            ledger,
            session: session.to_owned(),
            channel: channel.to_owned(),
            max_calls: u32::MAX,
            max_tokens: None,
            calls: AtomicU32::new(0),
            tokens: AtomicU64::new(0),
            has_asked: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
            versions: OnceLock::new(),
            unreported: Mutex::default(),
        }
    }

    /// With so many requests, and so many tokens if they are limited.
    pub(crate) fn limited(self, max_calls: u32, max_tokens: Option<u64>) -> Self {
        Self {
            max_calls,
            max_tokens,
            ..self
        }
    }

    /// Counts a request, if it may be made; it needs about `tokens`. The day's budget counts first.
    pub(crate) fn begin(&self, spend: Spend, tokens: impl Fn() -> u64) -> Result<()> {
        if let Some(ledger) = &self.ledger {
            ledger.check(SystemTime::now(), &tokens)?;
        }
        if let Some(limit) = self.max_tokens {
            let (spent, expected) = (self.tokens.load(Ordering::Relaxed), tokens());
            if spent.saturating_add(expected) > limit {
                let message = format!(
                    "the turn has a budget of {limit} tokens: {spent} are spent, and the next request needs about {expected}"
                );
                return Err(
                    Error::new(Kind::Limit, message).hint("allow more with --budget-tokens")
                );
            }
        }
        let most = match spend {
            Spend::Reply => self.max_calls,
            Spend::Other => self.max_calls.saturating_sub(1),
        };
        if spend == Spend::Reply {
            self.has_asked.store(true, Ordering::Relaxed);
        }
        let count = |calls| (calls < most).then_some(calls + 1);
        let counted = self
            .calls
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
        counted.map(drop).map_err(|_| self.used_up())
    }

    /// Records a request that was made. Its usage is `estimated` where the host has counted nothing.
    pub(crate) fn record(&self, model: &str, usage: Usage, estimated: bool, cost: Option<f64>) {
        self.tokens.fetch_add(usage.total(), Ordering::Relaxed);
        {
            let mut unreported = self
                .unreported
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if !estimated {
                unreported.0.add(usage);
            }
            add_cost(&mut unreported.1, cost);
        }
        if let Some(ledger) = &self.ledger {
            let call = Call {
                model,
                session: &self.session,
                channel: &self.channel,
                usage,
                estimated,
                cost,
            };
            ledger.record(&call, SystemTime::now());
        }
    }

    /// Whether somebody wants to know what a request took whose host counts nothing.
    pub(crate) fn needs_estimates(&self) -> bool {
        self.max_tokens.is_some() || self.ledger.is_some()
    }

    /// The usage and the cost for the response of a turn. Background tasks that have ended since the last one are in it.
    pub(crate) fn take_unreported(&self) -> (Usage, Option<f64>) {
        std::mem::take(
            &mut self
                .unreported
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// See [`Ledger::take_warning`].
    pub(crate) fn take_warning(&self) -> Option<String> {
        self.ledger.as_ref()?.take_warning()
    }

    /// Whether a turn with this budget has asked for a reply.
    pub(crate) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }

    /// The requests so far.
    pub(crate) fn calls_used(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    /// The requests that are left.
    pub(crate) fn calls_left(&self) -> u32 {
        self.max_calls.saturating_sub(self.calls_used())
    }

    /// Counts the requests before a restart.
    pub(crate) fn restore(&self, calls_used: u32) {
        self.calls.fetch_max(calls_used, Ordering::Relaxed);
    }

    /// That no request is left.
    pub(crate) fn used_up(&self) -> Error {
        let most = self.max_calls;
        Error::new(
            Kind::Limit,
            format!("the {most} model calls that one message may cause are used up"),
        )
        .hint("send another message to continue, or raise agents.defaults.max_calls")
    }

    /// Whether no request is left and the user has been told before; from now on they have.
    pub(crate) fn is_told_again(&self) -> bool {
        self.calls_left() == 0 && self.is_told.swap(true, Ordering::Relaxed)
    }

    /// Keeps earlier versions of files from now on, for the turn that started all this: an answer to a report belongs to it.
    pub(crate) fn keep_versions(&self, versions: Versions) {
        self.versions.set(versions).ok();
    }

    /// Where earlier versions of files are kept; `None` where nobody can take a turn back.
    pub(crate) fn versions(&self) -> Option<&Versions> {
        self.versions.get()
    }
}
