//! One turn: a message of the user, the model's replies, and the results of their calls, up to an answer.
//!
//! A turn is a value with a state, and each step makes one transition. All persistent state is in the lines of the
//! conversation, so that an interrupted turn continues from them.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Instant, SystemTime};

use super::ask::{Answer, Failure, Tools};
use super::calls::{CallRunner, is_complete};
use super::compact::Compaction;
use super::prompt::HeldWorkspace;
use super::resume::{calls_used, ids_in_turn, last_reply, resume};
use super::turn_context::{Events, TurnContext};
use super::turn_end::{Keep, TurnEnd};
use super::{Agent, ReceivedMessage, Request, history};
use crate::bus::{Event, Response, TurnStop};
use crate::cancel::{Cancel, CancelReason};
use crate::error::{Error, Kind, Result, contained};
use crate::message::{Message, Reply, Stop, ToolCall, User, UserKind};
use crate::provider::ProviderError;
use crate::session::{OpenSession, Record, Session};
use crate::storage::Durability;
use crate::text::{has_text, millis, rfc3339};

/// Notice to the user while another process has locked the conversation.
const WAITING: &str = "waiting for another bantam in this conversation";

/// Number of replies in a row whose calls may be cut off; then the turn ends.
const MOST_CUTS: u32 = 3;
/// Maximum number of calls of one reply that are run and stored.
const MOST_CALLS: usize = 64;

/// Next step of a turn.
#[derive(Debug, PartialEq)]
pub(super) enum State {
    /// Asks the model.
    Asking,
    /// Runs these calls of the last reply.
    Running(VecDeque<ToolCall>),
    /// Asks the user about the first of these calls, which have not begun.
    AwaitingApproval(VecDeque<ToolCall>),
    /// The end of the turn is stored.
    Done,
}

/// Whether the model may be asked.
enum Permit {
    Tools,
    /// Tools are declared but withheld, for this reason.
    TextOnly(Error),
    Stop(Error),
}

struct Turn<'a> {
    context: TurnContext<'a>,
    open: OpenSession,
    compaction: Compaction<'a>,
    calls: CallRunner<'a>,
    state: State,
    /// Whether the turn answers a result of another turn, so that its question would not be asked again.
    is_follow_up: bool,
    /// Whether the model gave an empty answer and is asked once more, without tools.
    is_second_try: bool,
    /// Number of last replies whose calls were cut off.
    cuts: u32,
    response: &'a mut Response,
}

impl Agent {
    /// Runs one turn to its end, even after an error, and stores it.
    pub fn run(&self, request: &Request, events: Events) -> Response {
        let started = Instant::now();
        let request = request.with_key();
        let cancel = request.cancel.with_timeout(self.limits.timeout);
        let (session, channel) = (&request.session, &request.origin.channel);
        let budget = request.budget.clone();
        let budget = budget.unwrap_or_else(|| self.budget(session, channel));
        let mut response = Response {
            session: request.session.clone(),
            metadata: request.metadata.clone(),
            ..Response::default()
        };
        let ended = contained("the turn", || {
            request.check()?;
            let open = self.open_session(&request, &cancel, events)?;
            let chosen = open.session.model.as_deref();
            let models = self.models.choose(&request.model, chosen)?;
            models.first().clone_into(&mut response.model);
            response.lost.clone_from(&open.session.damage);
            let warnings = response.lost.iter().chain(&models.warnings);
            warnings.for_each(|warning| events(Event::Warning(warning.clone())));
            let context = TurnContext {
                agent: self,
                request: &request,
                cancel: &cancel,
                events,
                budget: &budget,
                chain: &models.chain,
                choice: &models.chain.choose(&request.model),
                history: self.history.with_window_of(&models.chain),
            };
            context.run(open, &mut response)
        });
        if let Err(e) = ended {
            TurnEnd::of_error(e).fill(&mut response);
        }
        response.error = response.error.take().map(|e| self.redacted(e));
        if !self.is_subagent {
            (response.usage, response.cost) = budget.take_unreported();
        }
        if let Some(warning) = budget.take_warning() {
            events(Event::Warning(warning));
        }
        response.ms = millis(started.elapsed());
        response
    }

    pub(super) fn open_session(
        &self,
        request: &Request,
        cancel: &Cancel,
        events: Events,
    ) -> Result<OpenSession> {
        let wait = || events(Event::Warning(WAITING.to_owned()));
        match &request.history {
            Some(history) => OpenSession::with_history(&request.session, history),
            None => OpenSession::open(&self.store, &request.session, cancel, &wait),
        }
    }

    /// Removes keys from an error, because a host may quote a refused key.
    pub(super) fn redacted(&self, e: Error) -> Error {
        Error {
            message: self.redactor.redact(e.message),
            ..e
        }
    }
}

impl<'a> TurnContext<'a> {
    fn run(self, mut open: OpenSession, response: &'a mut Response) -> Result<()> {
        let resumed = resume(&mut open, self.request);
        if resumed.is_some() {
            response.answered = ids_in_turn(&open.session);
        }
        if resumed == Some(State::Done) {
            return repeat_end(&open.session, response);
        }
        let mut turn = Turn::begin(self, open, resumed, response)?;
        while turn.state != State::Done {
            turn.step()?;
        }
        Ok(())
    }
}

impl<'a> Turn<'a> {
    /// Starts with the request's message, or continues from the state of a turn that already has it.
    fn begin(
        context: TurnContext<'a>,
        open: OpenSession,
        resumed: Option<State>,
        response: &'a mut Response,
    ) -> Result<Self> {
        let TurnContext { agent, request, .. } = context;
        let held = agent.prompt.hold_workspace();
        let mut prompt = agent
            .prompt
            .build(&agent.tools, &open.session, request, &held)?;
        for warning in prompt.warnings.drain(..) {
            context.warn(warning);
        }
        let mut turn = Self {
            context,
            compaction: Compaction::new(context, prompt, &open.session),
            calls: CallRunner::new(context, &open.session, resumed.is_some()),
            open,
            state: State::Asking,
            is_follow_up: context.budget.has_asked(),
            is_second_try: false,
            cuts: 0,
            response,
        };
        match resumed {
            Some(state) => {
                turn.state = state;
                context.budget.restore(calls_used(&turn.open.session));
            }
            None => {
                turn.give_up_calls()?;
                turn.append_user_message(&held)?;
            }
        }
        context.apply_message_limit(&mut turn.open);
        history::drop_old_images(&mut turn.open.session.messages);
        Ok(turn)
    }

    fn step(&mut self) -> Result<()> {
        self.state = match std::mem::replace(&mut self.state, State::Done) {
            State::Asking => self.ask_model()?,
            State::Running(calls) => self.run_calls(calls)?,
            State::AwaitingApproval(calls) => self.ask_user(calls)?,
            State::Done => State::Done,
        };
        Ok(())
    }

    fn permit(&self) -> Permit {
        let cancel = self.context.cancel;
        match cancel.reason() {
            Some(CancelReason::Deadline) => return Permit::Stop(cancel.timed_out()),
            Some(why @ CancelReason::Stopped) => {
                let error = ProviderError::Cancelled(why).into_error(self.context.model());
                return Permit::Stop(error);
            }
            None => {}
        }
        if self.cuts == MOST_CUTS {
            let message =
                format!("{MOST_CUTS} replies in a row were cut off within their tool calls");
            let error = Error::new(Kind::Limit, message);
            return Permit::Stop(
                error.hint("allow more with --max-tokens, or ask for less at once"),
            );
        }
        if self.calls.is_stuck() {
            return Permit::TextOnly(withheld("it made the same calls over and over"));
        }
        match self.last_request(self.response.steps + 1) {
            Some(limit) => Permit::TextOnly(limit),
            None => Permit::Tools,
        }
    }

    /// Returns why request `step` of the turn is the last one, without tools; `None` if it is not.
    fn last_request(&self, step: u32) -> Option<Error> {
        let TurnContext { agent, budget, .. } = self.context;
        let limit = agent.limits.max_steps;
        if step >= limit {
            let s = if limit == 1 { "" } else { "s" };
            let error = Error::new(
                Kind::Limit,
                format!("the turn reached its limit of {limit} step{s}"),
            );
            return Some(error.hint("allow more with --max-steps, or ask it to continue"));
        }
        (budget.calls_left() <= 1).then(|| budget.used_up())
    }

    fn ask_model(&mut self) -> Result<State> {
        let limit = match self.permit() {
            Permit::Stop(error) => return self.finish(TurnEnd::of_error(error)),
            Permit::TextOnly(limit) => Some(limit),
            Permit::Tools => None,
        };
        let agent = self.context.agent;
        let tools = Tools {
            offers: &agent.offers,
            withheld: limit.is_some() || self.is_second_try,
        };
        // A later message gets a separate turn with all steps.
        let has_steps = self.response.steps < agent.limits.max_steps / 2;
        if !self.response.tool_calls.is_empty() && !tools.withheld && has_steps {
            self.take_steering()?;
        }
        let answer = self.compaction.ask(&mut self.open, tools);
        let mut reply = match answer {
            Ok(Answer { reply, model }) => {
                model.clone_into(&mut self.response.model);
                reply
            }
            Err(failure) => {
                failure.model.clone_into(&mut self.response.model);
                return self.finish(self.failed(failure));
            }
        };
        self.response.steps += 1;
        let wants_tools = !reply.calls.is_empty();
        let is_offered = !tools.withheld && !tools.offers.is_empty();
        if !is_offered || reply.stop == Stop::Refused {
            reply.calls.clear();
        }
        let is_cut = reply.stop == Stop::Length && !reply.calls.iter().all(is_complete);
        self.cuts = if is_cut { self.cuts + 1 } else { 0 };
        if reply.calls.is_empty() {
            self.end_with(reply, wants_tools, limit)
        } else {
            self.begin_calls(reply)
        }
    }

    /// Ends the turn with a reply without permitted calls. After an empty reply, asks again without tools.
    fn end_with(&mut self, reply: Reply, wants_tools: bool, limit: Option<Error>) -> Result<State> {
        let TurnContext {
            agent,
            events,
            budget,
            ..
        } = self.context;
        let cut = match reply.stop {
            _ if !has_text(&reply.text) => None,
            Stop::Length if reply.limit > 0 => Some(format!(
                "the answer was cut at max_tokens ({})",
                reply.limit
            )),
            Stop::Window => {
                Some("the answer was cut: the model's context window is full".to_owned())
            }
            _ => None,
        };
        if let Some(text) = cut {
            events(Event::Warning(text));
        }
        let is_answer = has_text(&reply.text)
            || !reply.images.is_empty()
            || !reply.refused.is_empty()
            || reply.used_all_to_think();
        let may_ask_again = !self.is_second_try
            && self.response.steps < agent.limits.max_steps
            && budget.calls_left() > 0;
        if !is_answer && may_ask_again {
            events(Event::Trace(
                "the model gave an empty answer: asking again, without tools".to_owned(),
            ));
            self.is_second_try = true;
            return Ok(State::Asking);
        }
        if !is_answer && wants_tools {
            let limit = limit.unwrap_or_else(|| withheld("it gave an empty answer"));
            let end = TurnEnd::of_calls_alone(limit, &self.open.session.messages);
            return self.finish(end);
        }
        // A first step may have needed no tools.
        let needed_none = self.response.steps == 1 && !wants_tools;
        let limit = if needed_none { None } else { limit };
        self.finish(TurnEnd::of_reply(reply, limit))
    }

    /// Appends a reply with calls, which run next.
    fn begin_calls(&mut self, mut reply: Reply) -> Result<State> {
        let TurnContext { agent, events, .. } = self.context;
        if has_text(&reply.text) {
            events(Event::Progress(reply.text.clone()));
        }
        let no_more_tools = self.last_request(self.response.steps + 1).is_some();
        self.calls
            .next_reply(&reply, footer(reply.calls.len(), no_more_tools));
        reply.calls_used = self.context.budget.calls_used();
        reply.calls.truncate(MOST_CALLS);
        for call in &mut reply.calls {
            call.name = agent
                .tools
                .resolve(&agent.redactor.redact(std::mem::take(&mut call.name)));
        }
        make_unique(&mut reply.calls, &self.open.session.messages);
        let calls = reply.calls.clone();
        self.append_message(Message::Assistant(reply))?;
        Ok(State::Running(calls.into()))
    }

    /// Runs the next call with its parallel neighbours, unless it needs the user's approval.
    fn run_calls(&mut self, mut calls: VecDeque<ToolCall>) -> Result<State> {
        let Some(next) = calls.front() else {
            return self.end_calls();
        };
        if self.calls.needs_approval(next, &self.open.session) {
            return Ok(State::AwaitingApproval(calls));
        }
        let count = self.calls.parallel(&calls, &self.open.session);
        let batch: Vec<ToolCall> = calls.drain(..count).collect();
        let reports = &mut self.response.tool_calls;
        self.calls
            .run(&batch, calls.is_empty(), &mut self.open, reports)?;
        Ok(State::Running(calls))
    }

    /// Asks the user about the first call. The stored question tells a resumed turn that these calls have not begun.
    fn ask_user(&mut self, mut calls: VecDeque<ToolCall>) -> Result<State> {
        if let Some(call) = calls.pop_front() {
            let reports = &mut self.response.tool_calls;
            self.calls
                .run_if_approved(&call, calls.is_empty(), &mut self.open, reports)?;
        }
        Ok(State::Running(calls))
    }

    /// Continues after all calls of the reply have a result.
    fn end_calls(&mut self) -> Result<State> {
        if self.calls.is_handed_over() && self.context.cancel.reason().is_none() {
            let said = last_reply(&self.open.session).map(|reply| reply.text.clone());
            return self.finish(TurnEnd::handed_over(said.unwrap_or_default()));
        }
        Ok(State::Asking)
    }

    /// Returns the end of the turn after a failed request.
    fn failed(&self, failure: Failure) -> TurnEnd {
        let Failure {
            error,
            arrived,
            model,
        } = failure;
        let messages = &self.open.session.messages;
        let is_first_word = messages.last().is_some_and(Message::is_question)
            && (!self.is_follow_up || matches!(error, ProviderError::MessageRefused(_)));
        let is_late = matches!(error, ProviderError::Cancelled(CancelReason::Deadline));
        let is_too_long = matches!(error, ProviderError::TooLong { .. });
        let mut end = TurnEnd::of_failure(error, &arrived, model, is_first_word);
        if is_late {
            end.error = Some(self.context.cancel.timed_out());
        }
        let is_first_turn =
            self.open.session.summary.is_none() && history::last_turns(messages, 1).is_none();
        if is_too_long && is_first_turn {
            // A new conversation would be as long.
            end.error = end.error.map(|error| {
                error.hint("shorten the message or its files, or use a model with a larger window (--model, /model)")
            });
        }
        end
    }

    /// Stores the end of the turn.
    fn finish(&mut self, mut end: TurnEnd) -> Result<State> {
        let open = &mut self.open;
        end.error = end.error.or_else(|| self.calls.take_unasked());
        let reply = end.reply.clone().map(Message::Assistant);
        let mut records: Vec<Record> = reply.iter().map(Record::Message).collect();
        if end.keep == Keep::Nothing {
            records.push(open.undo_turn());
        }
        records.push(Record::End(end.stop()));
        open.append(&records, Durability::Now, SystemTime::now())?;
        if end.keep != Keep::Nothing {
            let messages = &mut open.session.messages;
            messages.extend(reply);
            let asked = messages.iter().rposition(Message::is_question);
            self.response.stored = messages.split_off(asked.unwrap_or_default());
        }
        end.fill(self.response);
        Ok(State::Done)
    }

    fn append_message(&mut self, message: Message) -> Result<()> {
        let record = [Record::Message(&message)];
        self.open
            .append(&record, Durability::Now, SystemTime::now())?;
        self.open.session.messages.push(message);
        Ok(())
    }

    fn append_user_message(&mut self, held: &HeldWorkspace) -> Result<()> {
        let TurnContext { agent, request, .. } = self.context;
        let (open, now) = (&mut self.open, SystemTime::now());
        self.context.expire_idle(open, now)?;
        let user = request.message(&agent.prompt, now);
        open.append(
            &[Record::Message(&Message::User(user.clone()))],
            Durability::Now,
            now,
        )?;
        let (notes, warnings) = agent.prompt.notes(now, held);
        open.session.close_turn();
        let message = Message::User(User { notes, ..user });
        open.session.messages.push(message);
        for warning in warnings {
            self.context.warn(warning);
        }
        Ok(())
    }

    /// Stores results for calls that wait for the user's decision, because another message arrived instead.
    fn give_up_calls(&mut self) -> Result<()> {
        let results = self.open.give_up_not_begun();
        let records: Vec<Record> = results.iter().map(Record::Message).collect();
        if records.is_empty() {
            return Ok(());
        }
        self.open
            .append(&records, Durability::Later, SystemTime::now())
    }

    /// Adds the messages that arrived since the last request.
    fn take_steering(&mut self) -> Result<()> {
        let Some(steering) = &self.context.request.steering else {
            return Ok(());
        };
        for part in steering() {
            self.append_steering(&part)?;
        }
        Ok(())
    }

    /// Stores a message that arrived during the turn.
    fn append_steering(&mut self, part: &ReceivedMessage) -> Result<()> {
        let now = SystemTime::now();
        self.append_message(Message::User(User {
            content: part.text.clone(),
            time: rfc3339(now),
            local_time: self.context.agent.prompt.local_time(now),
            ids: vec![part.id.clone()],
            kind: UserKind::Steering,
            ..User::default()
        }))?;
        (self.context.events)(Event::Trace(
            "took in a message that arrived meanwhile".to_owned(),
        ));
        Ok(())
    }
}

/// Ends a turn in the same way as before.
fn repeat_end(session: &Session, response: &mut Response) -> Result<()> {
    if session.ended == Some(TurnStop::Cancelled) {
        return Err(Error::new(Kind::Interrupted, "stopped by the user"));
    }
    let answer = last_reply(session).cloned().unwrap_or_default();
    TurnEnd::of_reply(answer, None).fill(response);
    Ok(())
}

/// Returns the error of a turn in which tools were withheld.
fn withheld(why: &str) -> Error {
    let message = format!("tools were withheld from the model: {why}");
    Error::new(Kind::Limit, message)
        .hint("rephrase the request, or use another model (--model, /model)")
}

/// Returns the notice after the last result of a reply with this number of calls.
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

/// Makes ids of calls unique in the conversation, because some hosts count from 1 in every reply, and some send no ids.
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
