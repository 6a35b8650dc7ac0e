//! The loop: ask, run the tools that the model wants, ask again, until it answers.

use std::collections::BTreeSet;
use std::time::{Instant, SystemTime};

use super::{Agent, Request};
use crate::bus::{CallReport, Event, Response, TurnStop};
use crate::cancel::{Cancel, Why};
use crate::disk::Durability;
use crate::error::{Error, Kind, Result};
use crate::message::{Message, Reply, Stop, ToolCall, ToolResult, Usage, User};
use crate::provider::lineup::Note;
use crate::provider::{self, ProviderError, System};
use crate::session::{Entry, Session, TurnEnd};
use crate::text::{millis, rfc3339};
use crate::tool;

/// Shows something to whoever watches.
pub type Events<'a> = &'a (dyn Fn(Event) + Sync);

/// How the steps came to an end: what is still to be stored, and what is to be told.
struct Ending {
    /// The last reply, not stored yet.
    reply: Option<Reply>,
    stop: TurnStop,
    error: Option<Error>,
    /// The turn is to leave no trace.
    undo: bool,
}

impl Ending {
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

impl Agent {
    /// Runs one turn to its end, good or bad. What the response says is stored when this returns.
    #[must_use]
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
            ms: 0,
            error: None,
        };
        if let Err(e) = self.turn(request, &cancel, events, &mut response) {
            response.stop = if e.kind == Kind::Interrupted { TurnStop::Cancelled } else { TurnStop::Error };
            response.error = Some(e);
        }
        // A server may quote the key that it refuses.
        if let Some(error) = &mut response.error {
            error.message = self.redactor.strike(std::mem::take(&mut error.message));
        }
        response.ms = millis(started.elapsed());
        response
    }

    /// # Errors
    /// The session could not be loaded or saved. Faults of the model are in the response.
    fn turn(&self, request: &Request, cancel: &Cancel, events: Events, response: &mut Response) -> Result<()> {
        let mut session = self.store.load(&request.session, cancel)?;
        for damage in std::mem::take(&mut session.damage) {
            events(Event::Notice(damage));
        }
        let first = session.next();
        let now = SystemTime::now();
        let user = Message::User(User { content: request.input.clone(), time: rfc3339(now) });
        self.store.append(&mut session, &[Entry::Message(&user)], Durability::Now, now)?;
        session.messages.push(user);
        if let Some(filter) = &self.filter {
            session.messages = filter(std::mem::take(&mut session.messages));
        }
        let ending = self.steps(request, cancel, events, &mut session, response)?;
        let turn_end = ending.turn_end();
        let reply = ending.reply.map(Message::Assistant);
        let mut entries: Vec<Entry> = reply.iter().map(Entry::Message).collect();
        if ending.undo {
            entries.push(Entry::Undo(first));
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

    /// # Errors
    /// The session could not be saved.
    fn steps(
        &self,
        request: &Request,
        cancel: &Cancel,
        events: Events,
        session: &mut Session,
        response: &mut Response,
    ) -> Result<Ending> {
        let built = self.prompt.build(&self.tools, &request.origin);
        for notice in built.notices {
            events(Event::Notice(notice));
        }
        let mut step = 0;
        let mut asked_again = false;
        loop {
            step += 1;
            // The last step is asked without tools, so that there is an answer; a limit of one still leaves room for it.
            let last = step >= self.limits.max_steps.max(2);
            let offers = if last || asked_again { &[][..] } else { &self.offers };
            let system = System::marked(&built.text, built.mark);
            let mut reply = match self.ask(system, session, offers, cancel, events, &mut response.model) {
                Ok(reply) => reply,
                Err((error, partial)) => {
                    let no_key = matches!(error, ProviderError::Auth(_) | ProviderError::Unasked(_));
                    let undo = no_key && response.steps == 0;
                    let mut ending = Ending::fault(error.into_error(&response.model), partial);
                    ending.undo = undo;
                    return Ok(ending);
                }
            };
            response.steps += 1;
            response.usage.add(reply.usage);
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
                return Ok(finished(reply, last, self.limits.max_steps));
            }
            events(Event::DeltasVoid);
            make_ids_unique(&mut reply.calls, &session.messages);
            let calls = reply.calls.clone();
            let reply = Message::Assistant(reply);
            self.store.append(session, &[Entry::Message(&reply)], Durability::Now, SystemTime::now())?;
            session.messages.push(reply);
            for (at, call) in calls.iter().enumerate() {
                let result = Message::ToolResult(self.call(call, request, cancel, events, response));
                // Each result is written when it is there, and all are on disk before the next request.
                let durability = if at + 1 == calls.len() { Durability::Now } else { Durability::Later };
                self.store.append(session, &[Entry::Message(&result)], durability, SystemTime::now())?;
                session.messages.push(result);
            }
            if let Some(why) = cancel.why() {
                return Ok(Ending::fault(ProviderError::Cancelled(why).into_error(self.model()), String::new()));
            }
        }
    }

    /// Asks the models, with all their tries, and says in `model` which one it was. The error comes with the text that
    /// arrived before it.
    fn ask(
        &self,
        system: System,
        session: &Session,
        tools: &[provider::ToolOffer],
        cancel: &Cancel,
        events: Events,
        model: &mut String,
    ) -> Result<Reply, (ProviderError, String)> {
        let request = provider::Request { system, messages: &session.messages, tools, stream: self.stream, cancel };
        let mut arrived = String::new();
        let mut on_delta = |text: &str| {
            arrived.push_str(text);
            events(Event::Delta(text.to_owned()));
        };
        let mut note = |note: Note| {
            events(match note {
                Note::Trace(text) => Event::Trace(self.redactor.strike(text)),
                Note::Notice(text) => Event::Notice(self.redactor.strike(text)),
            });
        };
        let started = Instant::now();
        let result = self.lineup.ask(&request, self.limits.retry, &mut on_delta, &mut note);
        let reply = match result {
            Ok((reply, name)) => {
                name.clone_into(model);
                reply
            }
            Err((error, name)) => {
                name.clone_into(model);
                return Err((error, arrived));
            }
        };
        let (read, wrote) = (reply.usage.prompt_tokens, reply.usage.completion_tokens);
        events(Event::Trace(format!("{model} answered in {} ms ({read} + {wrote} tokens)", millis(started.elapsed()))));
        Ok(reply)
    }

    fn call(
        &self,
        call: &ToolCall,
        request: &Request,
        cancel: &Cancel,
        events: Events,
        response: &mut Response,
    ) -> ToolResult {
        let started = Instant::now();
        events(Event::ToolStarted { summary: self.tools.summary(call) });
        let result = match cancel.why() {
            None => {
                let turn = tool::Turn { origin: &request.origin, cancel, events };
                self.tools.dispatch(call, &turn)
            }
            Some(why) => {
                let why = if why == Why::Stopped { "the user stopped the turn" } else { "the turn's time was up" };
                let content = format!("not run: {why}");
                ToolResult { call_id: call.id.clone(), content, is_error: true, images: Vec::new() }
            }
        };
        let report = CallReport { name: call.name.clone(), ok: !result.is_error, ms: millis(started.elapsed()) };
        events(Event::ToolFinished { name: report.name.clone(), ok: report.ok, ms: report.ms });
        response.tool_calls.push(report);
        result
    }
}

/// What an answer without calls means.
fn finished(reply: Reply, last: bool, max_steps: u32) -> Ending {
    if reply.text.trim().is_empty() {
        let error = Error::failed("the model gave an empty answer").hint("ask again, or use another --model");
        return Ending { reply: None, ..Ending::fault(error, String::new()) };
    }
    match (reply.stop, last) {
        (Stop::Length, _) => Ending::answer(reply, TurnStop::Length),
        (_, true) => {
            let error = Error::new(Kind::Limit, format!("the turn reached its limit of {max_steps} steps"))
                .hint("give it more with --max-steps, or ask it to go on");
            Ending { error: Some(error), ..Ending::answer(reply, TurnStop::Limit) }
        }
        _ => Ending::answer(reply, TurnStop::Done),
    }
}

/// Some servers count calls from 1 in every reply. Within a conversation an id means one call.
fn make_ids_unique(calls: &mut [ToolCall], messages: &[Message]) {
    let mut used: BTreeSet<String> = BTreeSet::new();
    for message in messages {
        if let Message::Assistant(reply) = message {
            used.extend(reply.calls.iter().map(|c| c.id.clone()));
        }
    }
    for call in calls {
        let (wanted, mut n) = (call.id.clone(), 2);
        while !used.insert(call.id.clone()) {
            call.id = format!("{wanted}_{n}");
            n += 1;
        }
    }
}
