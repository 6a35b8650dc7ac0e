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
        let turn = self.shared;
        let agent = turn.agent;
        self.arrived.clear();
        self.prompt
            .set_summary(self.open.session.summary.as_deref());
        let filtered;
        let (system, messages, tools, base) = match wanted {
            Wanted::Summary(messages) => {
                let system = System::marked(SUMMARIZE, SUMMARIZE.len());
                (system, messages, &[][..], SUMMARIZE.len() as u64 / TOKEN)
            }
            Wanted::Step | Wanted::Words => {
                let stored = &self.open.session.messages;
                filtered = agent.filter.as_ref().map(|filter| filter(stored.clone()));
                let messages = filtered.as_deref().unwrap_or(stored);
                (
                    self.prompt.system(),
                    messages,
                    &agent.offers[..],
                    self.base(),
                )
            }
        };
        let request = provider::Request {
            system,
            messages: &history::alternating(messages),
            tools,
            withheld: wanted == Wanted::Words,
            stream: agent.stream,
            sampling: &turn.request.sampling,
            input_tokens: history::estimate(base, messages),
            cancel: match wanted {
                Wanted::Summary(_) => turn.cancel,
                Wanted::Step | Wanted::Words => &self.asking,
            },
        };
        let allowed = turn
            .check_size(request.input_tokens)
            .and_then(|()| turn.budget.begin(Spend::Reply, || request.input_tokens));
        allowed.map_err(ProviderError::NotSent)?;
        // Words and thoughts that may begin a key.
        let held = RefCell::new([String::new(), String::new()]);
        let next = |n: usize, piece: &str| {
            let held = &mut held.borrow_mut()[n];
            agent.redactor.redact_piece(held, piece)
        };
        let take = |n: usize| std::mem::take(&mut held.borrow_mut()[n]);
        let show = |event: Event| {
            // What waits comes before text of the other kind.
            match &event {
                Event::Delta(_) => show_text(turn.events, Event::Thought(take(1))),
                Event::Thought(_) => show_text(turn.events, Event::Delta(take(0))),
                _ => {}
            }
            show_text(turn.events, event);
        };
        let sink = |event: Event| {
            show(match event {
                Event::Delta(_) if matches!(wanted, Wanted::Summary(_)) => return,
                Event::Delta(text) => Event::Delta(next(0, &text)),
                Event::Thought(text) => Event::Thought(next(1, &text)),
                Event::Notice(text) => Event::Notice(agent.redactor.redact(text)),
                Event::Warning(text) => Event::Warning(agent.redactor.redact(text)),
                event => event,
            });
        };
        let started = Instant::now();
        let retry = agent.limits.retry;
        let (result, model, mut texts) = turn.chain.ask_chain(&request, turn.choice, retry, &sink);
        model.model().clone_into(&mut self.response.model);
        show(Event::Thought(take(1)));
        show(Event::Delta(take(0)));
        let arrived = texts.pop().unwrap_or_default();
        self.arrived = agent.redactor.redact_known(arrived);
        // Incomplete replies also cost money.
        texts.extend(result.is_err().then(|| self.arrived.clone()));
        for text in texts.into_iter().filter(|text| !text.is_empty()) {
            let unpaid = Reply {
                text,
                ..Reply::default()
            };
            turn.bill(model, &request, &unpaid);
        }
        let reply = without_keys(&agent.redactor, result?);
        turn.bill(model, &request, &reply);
        let (ms, usage, name) = (millis(started.elapsed()), reply.usage, model.model());
        (turn.events)(Event::Trace(format!(
            "{name} answered in {ms} ms ({} + {} tokens)",
            usage.prompt_tokens, usage.completion_tokens
        )));
        Ok(reply)
    }
}

/// Shows an event, unless it is an empty text.
fn show_text(events: Events, event: Event) {
    if !matches!(&event, Event::Delta(text) | Event::Thought(text) if text.is_empty()) {
        events(event);
    }
}

impl Shared<'_> {
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
