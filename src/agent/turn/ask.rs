//! Makes one model request of a turn: offers tools, enforces the limits, and records the cost.

use std::cell::RefCell;
use std::time::Instant;

use super::compact::SUMMARIZE;
use super::{Events, Shared, Turn};
use crate::agent::history::{self, TOKEN};
use crate::bus::Event;
use crate::error::{Error, Result};
use crate::message::{Message, Reply, Usage, rounded};
use crate::provider::{self, Provider, ProviderError, System};
use crate::redact::Redactor;
use crate::text::millis;
use crate::tool::without_keys;
use crate::usage::Spend;

/// What a model is asked for.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Wanted<'q> {
    /// An answer or calls.
    Step,
    /// An answer. The tools remain in the request, because the host has cached its beginning, but calls are forbidden.
    Words,
    /// A summary, by these messages.
    Summary(&'q [Message]),
}

impl Turn<'_> {
    /// Asks the model chain if the limits allow it, and records what that cost. After an error, `arrived` has the text that came
    /// before it.
    pub(super) fn ask(&mut self, wanted: Wanted) -> Result<Reply, ProviderError> {
        self.arrived.clear();
        let shared = self.shared;
        let (result, model, arrived) =
            self.with_request(wanted, |request| shared.send(request, wanted))?;
        model.clone_into(&mut self.response.model);
        self.arrived = arrived;
        result
    }

    /// Makes a request of the conversation as it is, for `send`.
    pub(super) fn with_request<T>(
        &mut self,
        wanted: Wanted,
        send: impl FnOnce(&provider::Request) -> T,
    ) -> T {
        let agent = self.shared.agent;
        let stored = &self.open.session.messages;
        self.prompt
            .set_summary(self.open.session.summary.as_deref());
        let filtered;
        let (system, messages, tools, base, cancel) = match wanted {
            Wanted::Summary(messages) => {
                let (length, base) = (SUMMARIZE.len(), SUMMARIZE.len() as u64 / TOKEN);
                let system = System::marked(SUMMARIZE, length);
                (system, messages, &[][..], base, self.shared.cancel)
            }
            Wanted::Step | Wanted::Words => {
                filtered = agent.filter.as_ref().map(|filter| filter(stored.clone()));
                let messages = filtered.as_deref().unwrap_or(stored);
                let (system, tools) = (self.prompt.system(), &agent.offers[..]);
                (system, messages, tools, self.base(), &self.asking)
            }
        };
        send(&provider::Request {
            system,
            messages: &history::alternating(messages),
            tools,
            withheld: wanted == Wanted::Words,
            stream: agent.stream,
            sampling: &self.shared.request.sampling,
            input_tokens: history::estimate(base, messages),
            cancel,
        })
    }
}

impl<'a> Shared<'a> {
    /// Sends a request if the limits allow it. Returns the result, the model that gave it, and the text that arrived.
    fn send(
        &self,
        request: &provider::Request,
        wanted: Wanted,
    ) -> Result<(Result<Reply, ProviderError>, &'a str, String), ProviderError> {
        let agent = self.agent;
        let allowed = self
            .check_size(request.input_tokens)
            .and_then(|()| self.budget.begin(Spend::Reply, || request.input_tokens));
        allowed.map_err(ProviderError::NotSent)?;
        let shown = Redacted {
            events: self.events,
            redactor: &agent.redactor,
            held: RefCell::default(),
        };
        let sink = |event: Event| match (wanted, event) {
            (Wanted::Summary(_), Event::Delta(_)) => {}
            (_, event) => shown.show(event),
        };
        let started = Instant::now();
        let retry = agent.limits.retry;
        let (result, model, mut texts) = self.chain.ask_chain(request, self.choice, retry, &sink);
        shown.show_held();
        let arrived = texts.pop().unwrap_or_default();
        let arrived = agent.redactor.redact_known(arrived);
        // Incomplete replies also cost money.
        texts.extend(result.is_err().then(|| arrived.clone()));
        for text in texts.into_iter().filter(|text| !text.is_empty()) {
            let unpaid = Reply {
                text,
                ..Reply::default()
            };
            self.bill(model, request, &unpaid);
        }
        let result = result.map(|reply| without_keys(&agent.redactor, reply));
        if let Ok(reply) = &result {
            self.bill(model, request, reply);
            let (ms, usage, name) = (millis(started.elapsed()), reply.usage, model.model());
            let (read, wrote) = (usage.prompt_tokens, usage.completion_tokens);
            let text = format!("{name} answered in {ms} ms ({read} + {wrote} tokens)");
            (self.events)(Event::Trace(text));
        }
        Ok((result, model.model(), arrived))
    }

    /// Returns an error for a request that no model with this window can read. It costs a large upload otherwise, and some
    /// servers silently cut its beginning.
    fn check_size(&self, tokens: u64) -> Result<()> {
        let window = self.history.window;
        if window == 0 || history::at_least(tokens) <= window {
            return Ok(());
        }
        let error = Error::usage(format!(
            "the request has about {tokens} tokens, and the model's context window has {window}"
        ));
        Err(error.hint(
            "send a part of it (tail, grep), name a file that the tools can search, or set a larger `context_window`",
        ))
    }

    /// Records the usage of a request and its reply.
    fn bill(&self, model: &dyn Provider, request: &provider::Request, reply: &Reply) {
        let mut usage = reply.usage;
        let estimated = usage == Usage::default() && self.budget.needs_estimates();
        if estimated {
            usage.prompt_tokens = request.input_tokens;
            usage.completion_tokens = history::weight([&Message::Assistant(reply.clone())]);
        }
        // Uncounted usage may have a cost, so it is unknown instead of zero.
        let counted = (usage != Usage::default()).then_some(usage);
        let listed = counted.and_then(|usage| model.price().of(usage));
        // The higher cost, so that a host cannot bypass the budget by reporting a low one.
        let cost = [reply.cost, listed].into_iter().flatten().reduce(f64::max);
        let cost = cost.map(|cost| rounded(cost.max(0.0)));
        self.budget.record(model.model(), usage, estimated, cost);
    }
}

/// Shows the events of a request without keys. The end of a text that may begin a key waits for the next piece, or for a text of
/// the other kind.
struct Redacted<'a> {
    events: Events<'a>,
    redactor: &'a Redactor,
    /// Text that waits, and whether it is a thought.
    held: RefCell<(String, bool)>,
}

impl Redacted<'_> {
    fn show(&self, event: Event) {
        match event {
            Event::Delta(text) => self.show_piece(&text, false),
            Event::Thought(text) => self.show_piece(&text, true),
            Event::Notice(text) => (self.events)(Event::Notice(self.redactor.redact(text))),
            Event::Warning(text) => (self.events)(Event::Warning(self.redactor.redact(text))),
            event => (self.events)(event),
        }
    }

    fn show_piece(&self, piece: &str, is_thought: bool) {
        if self.held.borrow().1 != is_thought {
            self.show_held();
        }
        let mut held = self.held.borrow_mut();
        held.1 = is_thought;
        let text = self.redactor.redact_piece(&mut held.0, piece);
        drop(held);
        self.show_text(text, is_thought);
    }

    fn show_held(&self) {
        let (text, is_thought) = self.held.take();
        self.show_text(text, is_thought);
    }

    fn show_text(&self, text: String, is_thought: bool) {
        let kind = if is_thought {
            Event::Thought
        } else {
            Event::Delta
        };
        if !text.is_empty() {
            (self.events)(kind(text));
        }
    }
}
