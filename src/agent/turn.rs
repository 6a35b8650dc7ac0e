//! The loop: ask the model, run the tools it calls, and ask again, until it answers.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::{Instant, SystemTime};

use super::ask::Tools;
use super::calls::Calls;
use super::compact::Compaction;
use super::outcome::Outcome;
use super::prompt::{HeldWorkspace, SystemPrompt};
use super::turn_context::{Events, TurnContext, no_call_left};
use super::{Agent, ReceivedMessage, Request, history};
use crate::bus::{CallReport, Event, Response};
use crate::cancel::CancelReason;
use crate::error::{Error, Kind, Result, contained};
use crate::message::{Message, Reply, STEERING, Stop, ToolCall, User};
use crate::provider::ProviderError;
use crate::session::versions::Versions;
use crate::session::{LIBRARY, Record, Session, TurnEnd, fresh_key};
use crate::storage::Durability;
use crate::text::{has_text, millis, rfc3339};

/// What the user is told while another process holds the conversation.
pub(crate) const WAITING: &str = "waiting for another bantam in this conversation";

/// Calls of one reply that are run and stored.
const MOST_CALLS: usize = 64;

impl Request {
    /// The same; a new conversation where it names none.
    pub(super) fn with_key(&self) -> Cow<'_, Self> {
        let mut request = Cow::Borrowed(self);
        if request.session.is_empty() {
            request.to_mut().session = format!("{LIBRARY}_{}", fresh_key(SystemTime::now()));
        }
        request
    }
}

impl Agent {
    /// Runs one turn to its end, good or bad. When this returns, the turn is stored.
    pub fn run(&self, request: &Request, events: Events) -> Response {
        self.run_with(request, events, |turn| {
            let is_waiting = || turn.warn(WAITING);
            Session::open(
                &self.store,
                &turn.request.session,
                &turn.cancel,
                &is_waiting,
            )
        })
    }

    /// The same in a conversation that is open, and so is locked: `request.session` is the key of this one.
    pub(crate) fn run_in(&self, session: Session, request: &Request, events: Events) -> Response {
        self.run_with(request, events, |_| Ok(session))
    }

    /// Refuses a request that no turn can begin with.
    fn check_request(&self, request: &Request) -> Result<()> {
        if request.input.trim().is_empty() && request.media.is_empty() && request.id.is_empty() {
            return Err(Error::usage("the message is empty"));
        }
        if request.model.is_empty() || self.chain.has(&request.model) {
            return Ok(());
        }
        let model = &request.model;
        Err(Error::usage(format!(
            "this agent has no model called {model}"
        )))
    }

    fn run_with(
        &self,
        request: &Request,
        events: Events,
        load: impl FnOnce(&TurnContext) -> Result<Session>,
    ) -> Response {
        let started = Instant::now();
        let request = request.with_key();
        let turn = TurnContext::new(&request, &self.limits, events, self.model());
        let mut response = Response {
            session: request.session.clone(),
            metadata: request.metadata.clone(),
            ..Response::default()
        };
        let outcome = self.check_request(&request).and_then(|()| {
            contained("the turn", || {
                load(&turn).and_then(|session| self.run_turn(&turn, session, &mut response))
            })
        });
        let outcome = outcome.unwrap_or_else(Outcome::of_error);
        response.stop = outcome.stop();
        let reply = outcome.reply.filter(|_| !outcome.is_stand_in);
        let reply = reply.unwrap_or_default();
        (response.output, response.partial) = (reply.text, reply.partial);
        response.error = outcome.error.map(|e| self.redacted(e));
        response.model.clone_from(&turn.model());
        if !self.is_subagent {
            (response.usage, response.cost) = turn.spending.tell();
        }
        response.ms = millis(started.elapsed());
        response
    }

    /// Without keys: a host may quote the one that it refuses.
    pub(super) fn redacted(&self, e: Error) -> Error {
        Error {
            message: self.redactor.redact(e.message),
            ..e
        }
    }

    /// Appends the user's message, runs the steps, and stores how they end.
    fn run_turn(
        &self,
        turn: &TurnContext,
        mut session: Session,
        response: &mut Response,
    ) -> Result<Outcome> {
        for damage in std::mem::take(&mut session.damage) {
            turn.warn(damage);
        }
        let is_of_gateway = !turn.spending.cause().is_empty();
        let resumed = has_message(&session, &turn.request.id, is_of_gateway);
        match session.ended.filter(|_| resumed) {
            Some(TurnEnd::Done) => return Ok(Outcome::of_reply(last_reply(session), None)),
            Some(TurnEnd::Cancelled) => {
                return Err(Error::new(Kind::Interrupted, "stopped by the user"));
            }
            Some(TurnEnd::Failed) | None => {}
        }
        if let Some(ledger) = self.ledger.as_ref().filter(|_| resumed) {
            match ledger.calls(turn.spending.cause()) {
                Ok(calls) => turn.spending.restore(calls),
                Err(e) => turn.warn(e.message),
            }
        }
        let held = self.prompt.hold_workspace();
        let mut prompt = self
            .prompt
            .build(&self.tools, &session, turn.request, &held)?;
        prompt
            .warnings
            .drain(..)
            .for_each(|warning| turn.warn(warning));
        if resumed {
            let stored = ids_in_turn(&session);
            for part in &turn.request.parts {
                if !stored.contains(&part.id) {
                    self.append_steering(turn, part, &mut session)?;
                }
            }
        } else {
            give_up_calls(&mut session)?;
            self.append_user_message(turn, &mut session, &held)?;
        }
        self.apply_message_limit(turn, &mut session);
        history::drop_old_images(&mut session.messages);
        let mut outcome = self.run_steps(turn, prompt, &mut session, resumed, response)?;
        outcome.error = outcome.error.or_else(|| turn.unasked());
        let mut entries = Vec::new();
        let reply = outcome.reply.clone().map(Message::Assistant);
        entries.extend(reply.as_ref().map(Record::Message));
        entries.extend(outcome.undo.then(|| session.undo_turn()));
        entries.push(Record::TurnEnd(outcome.turn_end()));
        session.append(&entries, Durability::Now, SystemTime::now())?;
        if !outcome.undo {
            session.messages.extend(reply);
            let asked = session.messages.iter().rposition(Message::is_question);
            response.stored = session.messages.split_off(asked.unwrap_or_default());
        }
        Ok(outcome)
    }

    fn append_user_message(
        &self,
        turn: &TurnContext,
        session: &mut Session,
        held: &HeldWorkspace,
    ) -> Result<()> {
        let now = SystemTime::now();
        self.expire_idle(turn, session, now)?;
        let user = turn.request.message(&self.prompt, now);
        session.append(
            &[Record::Message(&Message::User(user.clone()))],
            Durability::Now,
            now,
        )?;
        let (notes, warnings) = self.prompt.notes(now, held);
        session.close_turn();
        session.messages.push(Message::User(User { notes, ..user }));
        for warning in warnings {
            turn.warn(warning);
        }
        Ok(())
    }

    /// Stores a message that arrived while the turn runs.
    fn append_steering(
        &self,
        turn: &TurnContext,
        part: &ReceivedMessage,
        session: &mut Session,
    ) -> Result<()> {
        let now = SystemTime::now();
        let message = Message::User(User {
            content: part.text.clone(),
            time: rfc3339(now),
            local_time: self.prompt.local_time(now),
            id: format!("{STEERING}{}", part.id),
            ..User::default()
        });
        session.append(&[Record::Message(&message)], Durability::Now, now)?;
        session.messages.push(message);
        (turn.events)(Event::Trace(
            "took in a message that arrived meanwhile".to_owned(),
        ));
        Ok(())
    }

    /// Takes in the messages that arrived since the last request.
    fn take_steering(&self, turn: &TurnContext, session: &mut Session) -> Result<()> {
        let Some(steering) = &turn.request.steering else {
            return Ok(());
        };
        for part in steering() {
            self.append_steering(turn, &part, session)?;
        }
        Ok(())
    }

    fn run_steps(
        &self,
        turn: &TurnContext,
        prompt: SystemPrompt,
        session: &mut Session,
        is_resumed: bool,
        response: &mut Response,
    ) -> Result<Outcome> {
        let mut compaction = Compaction::new(self, turn, prompt);
        let mut calls: Option<Calls> = None;
        let (mut step, mut answered_nothing) = (0, false);
        let left = session.take_not_begun();
        if !left.is_empty() {
            let calls = calls.insert(self.begin_calls(turn, session, is_resumed));
            let reports = &mut response.tool_calls;
            calls.run(&left, "", session, reports)?;
            if let Some(outcome) = self.stopped(turn) {
                return Ok(outcome);
            }
        }
        loop {
            step += 1;
            let is_stuck = calls.as_ref().is_some_and(Calls::is_stuck);
            let limit = self.limit_reached(turn, step, is_stuck);
            let tools = Tools {
                offers: &self.offers,
                withheld: limit.is_some() || answered_nothing,
            };
            // A later message gets its own turn, which has all steps.
            if calls.is_some() && !tools.withheld && step <= self.limits.max_steps / 2 {
                self.take_steering(turn, session)?;
            }
            let mut reply = match compaction.ask_with_compaction(session, tools) {
                Ok(reply) => reply,
                Err((error, arrived)) => {
                    return Ok(end_by_failure(turn, session, error, &arrived));
                }
            };
            response.steps += 1;
            let wants_tools = !reply.calls.is_empty();
            let is_offered = !tools.withheld && !tools.offers.is_empty();
            if !is_offered || reply.stop != Stop::Done {
                // Calls of tools that were not offered, or perhaps cut short.
                reply.calls.clear();
            }
            if reply.calls.is_empty() {
                let without_calls = WithoutCalls {
                    reply,
                    wants_tools,
                    is_first: step == 1,
                    may_ask_again: !answered_nothing
                        && step < self.limits.max_steps
                        && turn.spending.calls_left(&self.limits) > 0,
                    limit,
                };
                match without_calls.outcome(turn.events, &session.messages) {
                    Some(outcome) => return Ok(outcome),
                    None => answered_nothing = true,
                }
                continue;
            }
            let no_more_tools = self.limit_reached(turn, step + 1, false).is_some();
            let beside_calls = reply.text.clone();
            let calls = calls.get_or_insert_with(|| self.begin_calls(turn, session, is_resumed));
            self.run_calls(
                calls,
                reply,
                no_more_tools,
                session,
                &mut response.tool_calls,
            )?;
            if let Some(outcome) = self.stopped(turn) {
                return Ok(outcome);
            }
            if calls.is_handed_over() {
                let reply = Reply {
                    text: beside_calls,
                    ..Reply::default()
                };
                return Ok(Outcome::handed_over(reply));
            }
        }
    }

    /// Prepares the turn's first call. From here on, earlier versions of files are kept for `/undo`.
    fn begin_calls<'a>(
        &'a self,
        turn: &'a TurnContext,
        session: &Session,
        is_resumed: bool,
    ) -> Calls<'a> {
        if let Some((home, _)) = self
            .undo_in
            .as_ref()
            .filter(|(_, kind)| session.name.starts_with(kind))
        {
            let (dir, place) = (home.undo(&session.name), session.asked_at());
            turn.spending.keep_versions(if is_resumed {
                Versions::resumed(dir, place)
            } else {
                Versions::of(dir, place)
            });
        }
        Calls::new(self, turn, session)
    }

    fn stopped(&self, turn: &TurnContext) -> Option<Outcome> {
        let error = match turn.cancel.reason()? {
            CancelReason::Deadline => turn.cancel.timed_out(),
            why @ CancelReason::Stopped => ProviderError::Cancelled(why).into_error(self.model()),
        };
        Some(Outcome::of_error(error))
    }

    /// Why this step gets no tools; `None` if it gets them.
    fn limit_reached(&self, turn: &TurnContext, step: u32, stuck: bool) -> Option<Error> {
        let limit = self.limits.max_steps;
        if stuck {
            return Some(withheld("it made the same calls over and over"));
        }
        if step >= limit {
            let s = if limit == 1 { "" } else { "s" };
            let error = Error::new(
                Kind::Limit,
                format!("the turn reached its limit of {limit} step{s}"),
            );
            return Some(error.hint("allow more with --max-steps, or ask it to continue"));
        }
        (turn.spending.calls_left(&self.limits) <= 1).then(|| no_call_left(&self.limits))
    }

    /// Appends a reply with calls, runs them, and appends their results.
    fn run_calls(
        &self,
        calls: &mut Calls,
        mut reply: Reply,
        no_more_tools: bool,
        session: &mut Session,
        reports: &mut Vec<CallReport>,
    ) -> Result<()> {
        if has_text(&reply.text) {
            (calls.turn.events)(Event::Progress(reply.text.clone()));
        }
        let footer = footer(reply.calls.len(), no_more_tools);
        reply.calls.truncate(MOST_CALLS);
        for call in &mut reply.calls {
            call.name = self
                .tools
                .resolve(&self.redactor.redact(std::mem::take(&mut call.name)));
        }
        make_unique(&mut reply.calls, &session.messages);
        let wanted = reply.calls.clone();
        let reply = Message::Assistant(reply);
        session.append(
            &[Record::Message(&reply)],
            Durability::Now,
            SystemTime::now(),
        )?;
        session.messages.push(reply);
        calls.run(&wanted, &footer, session, reports)
    }
}

/// Stores results for calls that wait for the user's decision: another message has come instead.
fn give_up_calls(session: &mut Session) -> Result<()> {
    let results = session.give_up_not_begun();
    let entries: Vec<Record> = results.iter().map(Record::Message).collect();
    if entries.is_empty() {
        return Ok(());
    }
    let now = SystemTime::now();
    session.append(&entries, Durability::Later, now)
}

/// A reply that calls no tool, or none that it may.
struct WithoutCalls {
    reply: Reply,
    wants_tools: bool,
    /// It is the first of the turn.
    is_first: bool,
    may_ask_again: bool,
    /// Why the model got no tools.
    limit: Option<Error>,
}

impl WithoutCalls {
    /// How the turn ends with it; `None` if the model is to be asked again, without tools.
    fn outcome(self, events: Events, messages: &[Message]) -> Option<Outcome> {
        let is_cut = self.reply.stop == Stop::Length && has_text(&self.reply.text);
        if is_cut && self.reply.limit > 0 {
            let limit = self.reply.limit;
            let text = format!("the answer was cut at max_tokens ({limit})");
            events(Event::Warning(text));
        }
        let is_answer = has_text(&self.reply.text)
            || !self.reply.refused.is_empty()
            || self.reply.used_all_to_think();
        if !is_answer && self.may_ask_again {
            events(Event::Trace(
                "the model gave an empty answer: asking again, without tools".to_owned(),
            ));
            return None;
        }
        if is_answer || !self.wants_tools {
            // A first step may have needed no tools.
            let limit = self.limit.filter(|_| !self.is_first || self.wants_tools);
            return Some(Outcome::of_reply(self.reply, limit));
        }
        let limit = self
            .limit
            .unwrap_or_else(|| withheld("it gave an empty answer"));
        Some(Outcome::of_calls_alone(limit, messages))
    }
}

/// The model gets no more tools in this turn.
fn withheld(why: &str) -> Error {
    let message = format!("tools were withheld from the model: {why}");
    Error::new(Kind::Limit, message)
        .hint("rephrase the request, or use another model (--model, /model)")
}

/// Whether the last turn of the conversation has a message with this id. Messages that the gateway answers together have their
/// ids joined by `+`, which the ids of others may hold.
fn has_message(session: &Session, id: &str, is_of_gateway: bool) -> bool {
    if !is_of_gateway {
        let last = session
            .messages
            .iter()
            .rev()
            .find_map(|message| match message {
                Message::User(user) if message.is_question() => Some(&user.id),
                _ => None,
            });
        return last.is_some_and(|last| !last.is_empty() && last == id);
    }
    let stored = ids_in_turn(session);
    id.split('+').any(|id| stored.contains(id))
}

/// The ids of the messages that the last turn of the conversation has.
fn ids_in_turn(session: &Session) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for message in session.messages.iter().rev() {
        if let Message::User(user) = message {
            let id = user.id.strip_prefix(STEERING).unwrap_or(&user.id);
            let parts = id
                .split('+')
                .filter(|id| !id.is_empty() && !message.is_note());
            ids.extend(parts.map(str::to_owned));
        }
        if message.is_question() {
            break;
        }
    }
    ids
}

fn last_reply(session: Session) -> Reply {
    let reply = |message| {
        if let Message::Assistant(reply) = message {
            Some(reply)
        } else {
            None
        }
    };
    session
        .messages
        .into_iter()
        .rev()
        .find_map(reply)
        .unwrap_or_default()
}

/// What the model reads below the last result of a reply that made so many calls.
fn footer(calls: usize, no_more_tools: bool) -> String {
    let mut notes = Vec::new();
    if calls > MOST_CALLS {
        notes.push(format!(
            "your reply made {calls} calls; only the first {MOST_CALLS} were run"
        ));
    }
    if no_more_tools {
        notes.push("no more tools in this turn: answer with what you have".to_owned());
    }
    notes.join("; ")
}

/// Gives calls ids that are unique in the conversation: some hosts count from 1 in every reply, and some send no ids.
fn make_unique(calls: &mut [ToolCall], messages: &[Message]) {
    let replies = messages.iter().filter_map(|message| match message {
        Message::Assistant(reply) => Some(&reply.calls),
        _ => None,
    });
    let mut used: BTreeSet<String> = replies.flatten().map(|call| call.id.clone()).collect();
    for call in calls {
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
/// How a turn ends whose request failed after the text `arrived`.
fn end_by_failure(
    turn: &TurnContext,
    session: &Session,
    error: ProviderError,
    arrived: &str,
) -> Outcome {
    let unanswered = session.messages.last().is_some_and(Message::is_question)
        && (!turn.follows || matches!(error, ProviderError::MessageRefused(_)));
    let is_late = matches!(error, ProviderError::Cancelled(CancelReason::Deadline));
    let is_too_long = matches!(error, ProviderError::TooLong { .. });
    let mut outcome = Outcome::of_failure(error, arrived, &turn.model(), unanswered);
    if is_late {
        outcome.error = Some(turn.cancel.timed_out());
    }
    let is_first = session.summary.is_none() && history::last_turns(&session.messages, 1).is_none();
    if is_too_long && is_first {
        // A new conversation would be as long.
        outcome.error = outcome.error.map(|error| {
            error.hint("shorten the message or its files, or use a model with a larger window (--model, /model)")
        });
    }
    outcome
}
