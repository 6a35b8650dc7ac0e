//! Usage and limits of one message.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

use super::{Call, Ledger};
use crate::error::{Error, Kind, Result};
use crate::message::{Usage, add_cost};
use crate::session::versions::Versions;
use crate::sync;

/// Usage and limits of one user message or run of a job, shared by its turn and by all subagents, background tasks and answers
/// to their reports. [`Agent::budget`](crate::agent::Agent::budget) creates one for several turns with one limit.
pub struct Budget {
    /// Enforces the daily budget and records calls.
    ledger: Option<Arc<Ledger>>,
    session: String,
    channel: String,
    max_calls: u32,
    max_tokens: Option<u64>,
    calls: AtomicU32,
    tokens: AtomicU64,
    /// Whether a turn has asked for a reply.
    has_asked: AtomicBool,
    /// The user has been told that no call is left.
    is_told: AtomicBool,
    /// Earlier versions of the files that the turn has changed.
    versions: OnceLock<Versions>,
    /// Usage, as counted by hosts, and cost that no response has reported yet.
    unreported: Mutex<(Usage, Option<f64>)>,
}

/// Purpose of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spend {
    /// A reply.
    Reply,
    /// Another request on the way to the reply; one request is reserved for the reply.
    Other,
}

impl Budget {
    /// Creates the budget of a message in this session and channel, without limits.
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

    /// Limits the number of requests, and the tokens if `max_tokens` is set.
    pub(crate) fn limited(self, max_calls: u32, max_tokens: Option<u64>) -> Self {
        Self {
            max_calls,
            max_tokens,
            ..self
        }
    }

    /// Counts a request of about `tokens`, or returns an error if it exceeds a limit. The daily budget is checked first.
    pub(crate) fn begin(&self, spend: Spend, tokens: impl Fn() -> u64) -> Result<()> {
        if let Some(ledger) = &self.ledger {
            ledger.check(SystemTime::now(), &tokens)?;
        }
        if let Some(limit) = self.max_tokens {
            let (spent, expected) = (self.tokens.load(Ordering::Relaxed), tokens());
            if spent.saturating_add(expected) > limit {
                let message = format!(
                    "token budget exceeded: {spent} of {limit} used, the next request needs about {expected}"
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

    /// Records a request that was made. Its usage is `estimated` if the host has not counted it.
    pub(crate) fn record(&self, model: &str, usage: Usage, estimated: bool, cost: Option<f64>) {
        self.tokens.fetch_add(usage.total(), Ordering::Relaxed);
        {
            let mut unreported = sync::lock(&self.unreported);
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

    /// Whether a limit or the ledger needs estimates for hosts that do not count tokens.
    pub(crate) fn needs_estimates(&self) -> bool {
        self.max_tokens.is_some() || self.ledger.is_some()
    }

    /// Takes the usage and cost to report in a turn's response, including background tasks that have ended since the last one.
    pub(crate) fn take_unreported(&self) -> (Usage, Option<f64>) {
        std::mem::take(&mut sync::lock(&self.unreported))
    }

    /// See [`Ledger::take_warning`].
    pub(crate) fn take_warning(&self) -> Option<String> {
        self.ledger.as_ref()?.take_warning()
    }

    /// Whether a turn with this budget has asked for a reply.
    pub(crate) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }

    /// Returns the number of requests so far.
    pub(crate) fn calls_used(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that are left.
    pub(crate) fn calls_left(&self) -> u32 {
        self.max_calls.saturating_sub(self.calls_used())
    }

    /// Raises the count to the requests from before a restart.
    pub(crate) fn restore(&self, calls_used: u32) {
        self.calls.fetch_max(calls_used, Ordering::Relaxed);
    }

    /// Creates the error for a budget without requests left.
    pub(crate) fn used_up(&self) -> Error {
        let most = self.max_calls;
        Error::new(
            Kind::Limit,
            format!("the {most} model calls that one message may cause are used up"),
        )
        .hint("send another message to continue, or raise agents.defaults.max_calls")
    }

    /// Whether no request is left and the user had already been told; marks them as told.
    pub(crate) fn is_told_again(&self) -> bool {
        self.calls_left() == 0 && self.is_told.swap(true, Ordering::Relaxed)
    }

    /// Stores earlier versions of files from now on, for the turn that started the work; answers to reports belong to it.
    pub(crate) fn keep_versions(&self, versions: Versions) {
        self.versions.set(versions).ok();
    }

    /// Returns the store of earlier file versions; `None` if the turn cannot be undone.
    pub(crate) fn versions(&self) -> Option<&Versions> {
        self.versions.get()
    }
}
