//! Asks the models once for the agent: checks the ledger before, and records what the request cost.

use std::time::{Instant, SystemTime};

use serde_json::Value;

use super::turn_context::TurnContext;
use super::{Agent, Request};
use crate::bus::Event;
use crate::message::{Message, Reply, Usage};
use crate::provider::chain::{AskedModel, Note};
use crate::provider::{self, ProviderError, System, ToolOffer};
use crate::text::millis;
use crate::usage::Call;

impl Agent {
    /// Asks the model chain if the ledger allows it, and records which model answered and what that cost. The error comes
    /// with the text that arrived before it.
    pub(super) fn ask_and_bill(
        &self,
        turn: &TurnContext,
        system: System,
        messages: &[Message],
        tools: &[ToolOffer],
        on_delta: &mut dyn FnMut(&str),
    ) -> Result<Reply, (ProviderError, String)> {
        if let Some(Err(e)) = self.ledger.as_ref().map(|ledger| ledger.check(SystemTime::now())) {
            return Err((ProviderError::Unasked(e), String::new()));
        }
        let request = provider::Request { system, messages, tools, stream: self.stream, cancel: &turn.cancel };
        let mut arrived = String::new();
        let mut on_delta = |text: &str| {
            arrived.push_str(text);
            on_delta(text);
        };
        let mut note = |note: Note| {
            (turn.events)(match note {
                Note::Trace(text) => Event::Trace(self.redactor.redact(text)),
                Note::Notice(text) => Event::Notice(self.redactor.redact(text)),
                Note::Warning(text) => Event::Warning(self.redactor.redact(text)),
            });
        };
        let started = Instant::now();
        match self.chain.ask_chain(&request, self.limits.retry, &mut on_delta, &mut note) {
            Ok((reply, model)) => {
                self.bill(turn, model, self.usage_or_estimate(&request, &reply), reply.usage);
                let (name, ms) = (model.name, millis(started.elapsed()));
                let Usage { prompt_tokens: read, completion_tokens: wrote, .. } = reply.usage;
                (turn.events)(Event::Trace(format!("{name} answered in {ms} ms ({read} + {wrote} tokens)")));
                Ok(reply)
            }
            Err((error, model)) => {
                model.name.clone_into(&mut turn.cost().model);
                if !arrived.is_empty() {
                    // Even half a reply has been paid for.
                    let partial = Reply { text: arrived.clone(), ..Reply::default() };
                    self.bill(turn, model, self.usage_or_estimate(&request, &partial), Usage::default());
                }
                Err((error, arrived))
            }
        }
    }

    /// The usage of one request. Estimates it when the host counts nothing and a budget depends on it: four bytes are about
    /// one token.
    fn usage_or_estimate(&self, request: &provider::Request, reply: &Reply) -> Usage {
        let needed = self.limits.budget_tokens.is_some() || self.ledger.is_some();
        if !needed || reply.usage != Usage::default() {
            return reply.usage;
        }
        let size = |message: &Message| Value::Object(message.to_json()).to_string().len();
        let System { stable, changing } = request.system;
        let read = request.messages.iter().map(size).sum::<usize>() + stable.len() + changing.len();
        let wrote = size(&Message::Assistant(reply.clone()));
        Usage { prompt_tokens: read as u64 / 4, completion_tokens: wrote as u64 / 4, cached_tokens: 0 }
    }

    /// Records a call; `counted` is its usage as the host counts it.
    fn bill(&self, turn: &TurnContext, model: AskedModel, usage: Usage, counted: Usage) {
        let cost = model.price.of(usage);
        turn.tokens.spend(usage.total());
        let mut total = turn.cost();
        model.name.clone_into(&mut total.model);
        total.add(counted, cost);
        drop(total);
        let Some(ledger) = &self.ledger else { return };
        let Request { session, origin, .. } = turn.request;
        let call =
            Call { model: model.name, session, channel: &origin.channel, usage, estimated: counted != usage, cost };
        if let Err(e) = ledger.record(&call, SystemTime::now()) {
            turn.warn(e.message);
        }
    }
}
