//! Makes one model request of the agent: offers tools, enforces the limits, and records the cost.

use std::cell::RefCell;
use std::time::Instant;

use super::history;
use super::turn_context::TurnContext;
use crate::bus::Event;
use crate::message::{Message, Reply, Usage, rounded};
use crate::provider::chain::Note;
use crate::provider::{self, Provider, ProviderError, System, ToolOffer};
use crate::text::millis;
use crate::usage::Spend;

/// How a request declares the agent's tools.
#[derive(Clone, Copy, Default)]
pub(super) struct Tools<'a> {
    pub offers: &'a [ToolOffer],
    /// The tools remain in the request, because the host has cached its beginning, but calls are forbidden.
    pub withheld: bool,
}

/// A reply and the model that gave it, as `vendor/model`.
pub(super) struct Answer<'a> {
    pub reply: Reply,
    pub model: &'a str,
}

/// A request that failed.
pub(super) struct Failure<'a> {
    pub error: ProviderError,
    /// The text that arrived before the error.
    pub arrived: String,
    /// The model that was asked last, as `vendor/model`.
    pub model: &'a str,
}

impl<'a> TurnContext<'a> {
    /// Asks the model chain if the limits allow it, and records what that cost.
    pub(super) fn ask(
        &self,
        system: System,
        messages: &[Message],
        tools: Tools,
        on_delta: &mut dyn FnMut(&str),
    ) -> Result<Answer<'a>, Failure<'a>> {
        let (agent, turn) = (self.agent, self);
        let request = provider::Request {
            system,
            messages: &history::alternating(messages),
            tools: tools.offers,
            withheld: tools.withheld,
            stream: agent.stream,
            sampling: &turn.request.sampling,
            on_thought: &|text| (turn.events)(Event::Thought(text.to_owned())),
            on_trace: &|text| (turn.events)(Event::Trace(text.to_owned())),
            on_notice: &|text| turn.warn(agent.redactor.redact(text.to_owned())),
            input_tokens: 0,
            cancel: turn.cancel,
        };
        let request = provider::Request {
            input_tokens: input_tokens(&request),
            ..request
        };
        let allowed = turn.budget.begin(Spend::Reply, || request_tokens(&request));
        allowed.map_err(|e| Failure {
            error: ProviderError::NotSent(e),
            arrived: String::new(),
            model: turn.model(),
        })?;
        // Text of the reply, and of replies that broke off before it.
        let (arrived, void) = (RefCell::new(String::new()), RefCell::new(Vec::new()));
        let mut on_delta = |text: &str| {
            arrived.borrow_mut().push_str(text);
            on_delta(text);
        };
        let mut note = |note: Note| {
            (turn.events)(match note {
                Note::Void => return void.borrow_mut().push(arrived.take()),
                Note::Notice(text) => Event::Notice(agent.redactor.redact(text)),
                Note::Warning(text) => Event::Warning(agent.redactor.redact(text)),
            });
        };
        let started = Instant::now();
        let (result, model) = turn.chain.ask_chain(
            &request,
            turn.choice,
            agent.limits.retry,
            &mut on_delta,
            &mut note,
        );
        // Incomplete replies also cost money.
        let unpaid = void
            .into_inner()
            .into_iter()
            .chain(result.is_err().then(|| arrived.borrow().clone()));
        for text in unpaid.filter(|text| !text.is_empty()) {
            let unpaid = Reply {
                text,
                ..Reply::default()
            };
            turn.bill(model, &request, &unpaid);
        }
        let name = model.model();
        let reply = result.map_err(|error| Failure {
            error,
            arrived: arrived.into_inner(),
            model: name,
        })?;
        turn.bill(model, &request, &reply);
        let (ms, usage) = (millis(started.elapsed()), reply.usage);
        (turn.events)(Event::Trace(format!(
            "{name} answered in {ms} ms ({} + {} tokens)",
            usage.prompt_tokens, usage.completion_tokens
        )));
        Ok(Answer { reply, model: name })
    }

    /// Records the usage of a request and its reply.
    fn bill(&self, model: &dyn Provider, request: &provider::Request, reply: &Reply) {
        let mut usage = reply.usage;
        let estimated = usage == Usage::default() && self.budget.needs_estimates();
        if estimated {
            usage.prompt_tokens = request_tokens(request);
            usage.completion_tokens = tokens([&Message::Assistant(reply.clone())]);
        }
        // Uncounted usage may have a cost, so it is unknown instead of zero.
        let counted = (usage != Usage::default()).then_some(usage);
        let listed = counted.and_then(|usage| model.price().of(usage));
        // Uses the higher cost, so that a host cannot bypass the budget by reporting a low one.
        let cost = match (reply.cost, listed) {
            (Some(told), Some(listed)) => Some(told.max(listed)),
            (told, listed) => told.or(listed),
        };
        let cost = cost.map(|cost| rounded(cost.max(0.0)));
        self.budget.record(model.model(), usage, estimated, cost);
    }
}

/// Returns the count by which compaction makes room, so that the reply gets all that compaction left free.
fn input_tokens(request: &provider::Request) -> u64 {
    let System { stable, changing } = request.system;
    let system = (stable.len() + changing.len()) as u64 / history::TOKEN;
    let base = system + history::weight_of_offers(request.tools);
    history::estimate(base, request.messages)
}

/// Estimate of a request's tokens.
fn request_tokens(request: &provider::Request) -> u64 {
    let System { stable, changing } = request.system;
    let offers = request
        .tools
        .iter()
        .map(|tool| tool.name.len() + tool.description.len() + tool.schema.len());
    (stable.len() + changing.len() + offers.sum::<usize>()) as u64 / 4 + tokens(request.messages)
}

/// Estimates tokens at four bytes each; hosts count up to about 1,600 for an image.
fn tokens<'a>(messages: impl IntoIterator<Item = &'a Message>) -> u64 {
    history::weight(messages) * history::TOKEN / 4
}
