//! The loop: ask, run the tools that the model wants, ask again, until it answers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use serde_json::Value;

use super::calls::Calls;
use super::compact::Compaction;
use super::task::Tokens;
use super::{Agent, Limits, Request};
use crate::bus::{Event, Response, TurnStop};
use crate::cancel::Cancel;
use crate::disk::Durability;
use crate::error::{Error, Kind, Result};
use crate::message::{Message, NOTE, Reply, Stop, ToolCall, Usage, User};
use crate::provider::chain::{AskedModel, Note};
use crate::provider::{self, ProviderError, System};
use crate::session::{Entry, Session, TurnEnd};
use crate::text::millis;
use crate::tool::fitting_name;
use crate::usage::Call;

/// Calls of one reply that are run and kept. A model that makes more has lost its way.
const MOST_CALLS: usize = 64;

/// Shows something to whoever watches.
pub type Events<'a> = &'a (dyn Fn(Event) + Sync);

/// The turn that asks.
#[derive(Clone, Copy)]
pub(super) struct TurnContext<'a> {
    pub request: &'a Request,
    pub cancel: &'a Cancel,
    pub events: Events<'a>,
}

/// What asking came to beside the answer.
#[derive(Default)]
pub(super) struct CallCost {
    /// Who answered last; empty when nobody was asked.
    pub model: String,
    /// `None` when no price is known.
    pub cost: Option<f64>,
    /// What putting the conversation in short has used.
    pub summaries: Usage,
}

/// How the steps came to an end: what is still to be stored, and what is to be told.
struct Outcome {
    /// The last reply, not stored yet.
    reply: Option<Reply>,
    stop: TurnStop,
    error: Option<Error>,
    /// The turn is to leave no trace.
    undo: bool,
}

impl Outcome {
    fn answer(reply: Reply, stop: TurnStop) -> Self {
        Self { reply: Some(reply), stop, error: None, undo: false }
    }

    /// `partial` is the text that arrived before the fault.
    fn fault(error: Error, partial: String) -> Self {
        let stop = match error.kind {
            Kind::Interrupted => TurnStop::Cancelled,
            Kind::Limit => TurnStop::Limit,
            _ => TurnStop::Error,
        };
        let reply = Some(partial).filter(|text| !text.is_empty());
        let reply = reply.map(|text| Reply { text, partial: true, ..Reply::default() });
        Self { reply, stop, error: Some(error), undo: false }
    }

    fn turn_end(&self) -> TurnEnd {
        match self.stop {
            TurnStop::Done | TurnStop::Length => TurnEnd::Done,
            TurnStop::Limit if self.reply.as_ref().is_some_and(|r| !r.partial) => TurnEnd::Done,
            TurnStop::Cancelled => TurnEnd::Cancelled,
            TurnStop::Limit | TurnStop::Error => TurnEnd::Failed,
        }
    }
}

/// Why a step is asked without tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// It is the last that the turn may have.
    Steps,
    /// The model makes the same calls over and over.
    Stuck,
}

impl Last {
    fn error(self, limits: &Limits) -> Error {
        let s = if limits.max_steps == 1 { "" } else { "s" };
        match self {
            Self::Steps => {
                Error::new(Kind::Limit, format!("the turn reached its limit of {} step{s}", limits.max_steps))
                    .hint("give it more with --max-steps, or ask it to go on")
            }
            Self::Stuck => {
                Error::new(Kind::Limit, "the model made the same calls over and over, so tools were withheld")
                    .hint("ask in other words, or use another --model")
            }
        }
    }
}

impl Agent {
    /// Runs one turn to its end, good or bad. What the response says is stored when this returns.
    pub fn run(&self, request: &Request, events: Events) -> Response {
        let started = Instant::now();
        let cancel = request.cancel.with_timeout(self.limits.timeout);
        let mut response = Response {
            output: String::new(),
            partial: false,
            session: request.session.clone(),
            model: self.model().to_owned(),
            stop: TurnStop::Error,
            steps: 0,
            tool_calls: Vec::new(),
            usage: Usage::default(),
            cost: None,
            ms: 0,
            error: None,
        };
        if let Err(e) = self.turn(request, &cancel, events, &mut response) {
            response.stop = if e.kind == Kind::Interrupted { TurnStop::Cancelled } else { TurnStop::Error };
            response.error = Some(e);
        }
        // A server may quote the key that it refuses.
        if let Some(error) = &mut response.error {
            error.message = self.redactor.redact(std::mem::take(&mut error.message));
        }
        response.ms = millis(started.elapsed());
        response
    }

    fn turn(&self, request: &Request, cancel: &Cancel, events: Events, response: &mut Response) -> Result<()> {
        let mut session = self.store.load(&request.session, cancel)?;
        for damage in std::mem::take(&mut session.damage) {
            events(Event::Notice(damage));
        }
        let now = SystemTime::now();
        let resumed = is_there(request, &session);
        match session.ended.filter(|_| resumed) {
            Some(TurnEnd::Done) => {
                response.output = last_answer(&session);
                response.stop = TurnStop::Done;
                return Ok(());
            }
            Some(TurnEnd::Cancelled) => return Err(Error::new(Kind::Interrupted, "stopped by the user")),
            Some(TurnEnd::Failed) | None => {}
        }
        let (notes, notices) = self.prompt.notes(now);
        if !resumed {
            self.expire_idle(&mut session, now, events)?;
            let user = request.message(&self.prompt, now);
            self.store.append(&mut session, &[Entry::Message(&Message::User(user.clone()))], Durability::Now, now)?;
            session.messages.push(Message::User(User { notes, ..user }));
        }
        for notice in notices {
            events(Event::Notice(notice));
        }
        self.limit(&mut session, now, events);
        let ending = self.steps(request, cancel, events, &mut session, response)?;
        let turn_end = ending.turn_end();
        let reply = ending.reply.map(Message::Assistant);
        let mut entries: Vec<Entry> = reply.iter().map(Entry::Message).collect();
        if ending.undo && !resumed {
            // Nothing was answered, so the user's message is the last line, in whichever segment that is by now.
            entries.push(Entry::Undo(session.next().saturating_sub(1)));
        }
        entries.push(Entry::TurnEnd(turn_end));
        self.store.append(&mut session, &entries, Durability::Now, SystemTime::now())?;
        if let Some(Message::Assistant(reply)) = reply {
            response.output = reply.text;
            response.partial = reply.partial;
        }
        response.stop = ending.stop;
        response.error = ending.error;
        Ok(())
    }

    fn steps(
        &self,
        request: &Request,
        cancel: &Cancel,
        events: Events,
        session: &mut Session,
        response: &mut Response,
    ) -> Result<Outcome> {
        let mut built = self.prompt.build(&self.tools, &request.origin);
        for notice in built.notices.drain(..) {
            events(Event::Notice(notice));
        }
        let asking = TurnContext { request, cancel, events };
        let mut compaction = Compaction::new(self, asking);
        let tokens = request.tokens.clone().unwrap_or_else(|| Arc::new(Tokens::new(self.limits.budget_tokens)));
        let mut calls = Calls::new(self, request, cancel, events, tokens.clone());
        let (mut step, mut asked_again) = (0, false);
        loop {
            if let Err(e) = tokens.check() {
                return Ok(Outcome::fault(e, String::new()));
            }
            step += 1;
            // The last step is asked without tools, so that there is an answer; a limit of one still leaves room for it.
            let last_step = self.limits.max_steps.max(2);
            let last = if calls.are_stuck() { Some(Last::Stuck) } else { (step >= last_step).then_some(Last::Steps) };
            let offers = if last.is_some() || asked_again { &[][..] } else { &self.offers };
            let asked = compaction.ask(&mut built, session, offers);
            let CallCost { model, cost, summaries } = std::mem::take(&mut compaction.bill);
            if !model.is_empty() {
                response.model = model;
            }
            response.add_cost(cost);
            response.usage.add(summaries);
            tokens.spend(summaries.total());
            let mut reply = match asked {
                Ok(reply) => reply,
                Err((error, partial)) => {
                    let no_key = matches!(error, ProviderError::Auth(_) | ProviderError::Unasked(_));
                    let undo = no_key && response.steps == 0;
                    let mut ending = Outcome::fault(error.into_error(&response.model), partial);
                    ending.undo = undo;
                    return Ok(ending);
                }
            };
            response.steps += 1;
            response.usage.add(reply.usage);
            let system = System::marked(&built.text, built.mark);
            tokens.spend(self.counted(system, &session.messages, &reply).total());
            if offers.is_empty() || reply.stop != Stop::Done {
                // Not offered, or perhaps cut short: such calls are neither run nor kept.
                reply.calls.clear();
            }
            if reply.calls.is_empty() {
                if reply.text.trim().is_empty() && !asked_again {
                    asked_again = true;
                    events(Event::Trace("the model answered nothing: asking once more, without tools".to_owned()));
                    continue;
                }
                return Ok(finished(reply, last.map(|last| last.error(&self.limits))));
            }
            events(Event::DeltasDiscarded);
            let last_word = last_word(reply.calls.len(), step + 1 == last_step);
            reply.calls.truncate(MOST_CALLS);
            tidy(&mut reply.calls, &session.messages);
            let wanted = reply.calls.clone();
            let reply = Message::Assistant(reply);
            self.store.append(session, &[Entry::Message(&reply)], Durability::Now, SystemTime::now())?;
            session.messages.push(reply);
            calls.run(&wanted, &last_word, session, &mut response.tool_calls)?;
            let (helped, cost) = calls.helpers.take_bill();
            response.usage.add(helped);
            response.add_cost(cost);
            if let Some(why) = cancel.why() {
                return Ok(Outcome::fault(ProviderError::Cancelled(why).into_error(self.model()), String::new()));
            }
        }
    }

    /// The tokens of one request. Where the server counts none a budget holds all the same: four bytes are about one.
    fn counted(&self, system: System, messages: &[Message], reply: &Reply) -> Usage {
        let counts = self.limits.budget_tokens.is_some() || self.ledger.is_some();
        if !counts || reply.usage != Usage::default() {
            return reply.usage;
        }
        let size = |message: &Message| Value::Object(message.to_json()).to_string().len();
        let read = messages.iter().map(size).sum::<usize>() + system.stable.len() + system.changing.len();
        let [prompt_tokens, completion_tokens] =
            [read, size(&Message::Assistant(reply.clone()))].map(|bytes| bytes as u64 / 4);
        Usage { prompt_tokens, completion_tokens, cached_tokens: 0 }
    }

    /// Asks the models, with all their tries, if the ledger allows it, and puts on the bill which one it was and what it
    /// cost. The error comes with the text that arrived before it.
    pub(super) fn ask(
        &self,
        asking: TurnContext,
        system: System,
        messages: &[Message],
        tools: &[provider::ToolOffer],
        bill: &mut CallCost,
    ) -> Result<Reply, (ProviderError, String)> {
        let TurnContext { cancel, events, .. } = asking;
        if let Some(Err(e)) = self.ledger.as_ref().map(|ledger| ledger.check(SystemTime::now())) {
            return Err((ProviderError::Unasked(e), String::new()));
        }
        let request = provider::Request { system, messages, tools, stream: self.stream, cancel };
        let mut arrived = String::new();
        let mut on_delta = |text: &str| {
            arrived.push_str(text);
            events(Event::Delta(text.to_owned()));
        };
        let mut note = |note: Note| {
            events(match note {
                Note::Trace(text) => Event::Trace(self.redactor.redact(text)),
                Note::Notice(text) => Event::Notice(self.redactor.redact(text)),
            });
        };
        let started = Instant::now();
        let result = self.chain.ask_chain(&request, self.limits.retry, &mut on_delta, &mut note);
        let (result, asked) = match result {
            Ok((reply, asked)) => (Ok(reply), asked),
            // What was said has been paid for.
            Err((error, asked)) => (Err((error, arrived)), asked),
        };
        asked.name.clone_into(&mut bill.model);
        match &result {
            Ok(reply) => self.record(asking, asked, self.counted(system, messages, reply), reply.usage, bill),
            Err((_, text)) if !text.is_empty() => {
                let partial = Reply { text: text.clone(), ..Reply::default() };
                self.record(asking, asked, self.counted(system, messages, &partial), Usage::default(), bill);
            }
            Err(_) => {}
        }
        if let Ok(reply) = &result {
            let (model, ms) = (asked.name, millis(started.elapsed()));
            let (read, wrote) = (reply.usage.prompt_tokens, reply.usage.completion_tokens);
            events(Event::Trace(format!("{model} answered in {ms} ms ({read} + {wrote} tokens)")));
        }
        result
    }

    /// Writes a call down. `told` is what the server counted.
    fn record(&self, asking: TurnContext, asked: AskedModel, usage: Usage, told: Usage, bill: &mut CallCost) {
        let cost = asked.price.of(usage);
        bill.cost = cost.map(|cost| bill.cost.unwrap_or(0.0) + cost).or(bill.cost);
        let Some(ledger) = &self.ledger else { return };
        let Request { session, origin, .. } = asking.request;
        let (model, channel, estimated) = (asked.name, &origin.channel, told != usage);
        if let Err(e) = ledger.record(&Call { model, session, channel, usage, estimated, cost }, SystemTime::now()) {
            (asking.events)(Event::Notice(e.message));
        }
    }
}

/// Whether the conversation has the message of this request already, as its last one.
fn is_there(request: &Request, session: &Session) -> bool {
    let id = |message: &Message| match message {
        Message::User(user) if !user.id.starts_with(NOTE) => Some(user.id.clone()),
        _ => None,
    };
    // Several messages that were answered together have their names joined.
    let last = session.messages.iter().rev().find_map(id).unwrap_or_default();
    last.split('+').any(|last| !last.is_empty() && request.id.split('+').any(|id| id == last))
}

/// The last text of the assistant's.
fn last_answer(session: &Session) -> String {
    let text = |message: &Message| match message {
        Message::Assistant(reply) => Some(reply.text.clone()),
        _ => None,
    };
    session.messages.iter().rev().find_map(text).unwrap_or_default()
}

/// What an answer without calls means. `limit` is why it was the last that could be had.
fn finished(reply: Reply, limit: Option<Error>) -> Outcome {
    if reply.text.trim().is_empty() {
        let error = limit.map_or_else(
            || Error::failed("the model gave an empty answer").hint("ask again, or use another --model"),
            |limit| Error { message: format!("{}, and the model gave no answer", limit.message), ..limit },
        );
        return Outcome::fault(error, String::new());
    }
    match (reply.stop, limit) {
        (Stop::Length, _) => Outcome::answer(reply, TurnStop::Length),
        (_, Some(error)) => Outcome { error: Some(error), ..Outcome::answer(reply, TurnStop::Limit) },
        _ => Outcome::answer(reply, TurnStop::Done),
    }
}

/// What the model is told below the results of a reply that made so many calls.
fn last_word(calls: usize, no_more_tools: bool) -> String {
    let mut words = Vec::new();
    if calls > MOST_CALLS {
        words.push(format!("your reply made {calls} calls: the first {MOST_CALLS} were run, and the others forgotten"));
    }
    if no_more_tools {
        words.push("no more tools in this turn: answer with what you have".to_owned());
    }
    words.join("; ")
}

/// Gives calls names that every provider takes back, and ids of their own: some servers count calls from 1 in every reply,
/// but within a conversation an id means one call.
fn tidy(calls: &mut [ToolCall], messages: &[Message]) {
    let mut used: BTreeSet<String> = BTreeSet::new();
    for message in messages {
        if let Message::Assistant(reply) = message {
            used.extend(reply.calls.iter().map(|c| c.id.clone()));
        }
    }
    for call in calls {
        call.name = fitting_name(&call.name);
        if call.id.is_empty() {
            call.id = "call_1".to_owned();
        }
        let (wanted, mut n) = (call.id.clone(), 2);
        while !used.insert(call.id.clone()) {
            call.id = format!("{wanted}_{n}");
            n += 1;
        }
    }
}
