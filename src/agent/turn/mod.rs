//! One turn: a message of the user, the model's replies, and the results of their calls, up to an answer.
//!
//! A turn is a value with a state, and each step makes one transition. All persistent state is in the lines of the
//! conversation, so that an interrupted turn continues from them.

mod ask;
mod calls;
mod compact;
mod end;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::loop_detector::LoopDetector;
use super::prompt::SystemPrompt;
use super::resume::{calls_used, ids_in_turn, last_reply, resume};
use super::{Agent, Budget, History, Request, history};
use crate::bus::{Event, Response, TurnStop};
use crate::cancel::{Cancel, CancelReason, Hook};
use crate::error::{Error, Kind, Result, contained};
use crate::message::{Message, Reply, Stop, ToolCall, User, UserKind};
use crate::provider::Chain;
use crate::provider::chain::Choice;
use crate::session::{MemoryStore, OpenSession, Record, Store};
use crate::storage::Durability;
use crate::text::{has_text, millis, rfc3339};
use ask::Wanted;
use calls::{Admitted, Calls, is_complete};
use end::{end_of, judge, stop_of};

/// Notice to the user while another process has locked the conversation.
const WAITING: &str = "this conversation is in use by another bantam process; waiting";

/// Number of replies in a row whose calls may be cut off; then the turn ends.
const MOST_CUTS: u32 = 3;
/// Maximum number of calls of one reply that are run and stored.
const MOST_CALLS: usize = 64;

/// Notices after the last result, if the model must answer next, and if it made more calls.
const NO_MORE_TOOLS: &str = "\n[no more tools in this turn: answer with what you have]";
const NOT_ALL_RUN: &str = "\n[your reply made more calls: only the first 64 were run]";

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

/// The last reply of a turn and its error.
type Ended = (Option<Reply>, Option<Error>);

/// Shows an event.
pub(crate) type Events<'a> = &'a (dyn Fn(Event) + Sync);

/// What a turn only reads, so that its calls can share it between threads.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    pub agent: &'a Agent,
    pub request: &'a Request,
    pub cancel: &'a Cancel,
    pub events: Events<'a>,
    pub budget: &'a Arc<Budget>,
    /// The models to ask.
    pub chain: &'a Arc<Chain>,
    /// The one of them that this turn asks first.
    pub choice: &'a Choice,
    /// Whether the turn answers a result of another turn, so that its question would not be asked again.
    pub is_follow_up: bool,
    /// Limits of the history, with the context window of these models.
    pub history: History,
}

pub(super) struct Turn<'a> {
    pub shared: Shared<'a>,
    open: OpenSession,
    prompt: SystemPrompt,
    calls: Calls,
    detector: LoopDetector,
    /// Whether the turn before failed, so that a host may refuse the history instead of the message.
    follows_failure: bool,
    /// Whether the conversation in memory lacks messages that no stored summary replaces. It must not replace the stored one.
    is_shortened: bool,
    /// Number of empty answers. After the first, the model is asked once more, without tools.
    empty_answers: u32,
    /// Number of last replies whose calls were cut off.
    cuts: u32,
    /// Stops the request, which is repeated if a message has arrived.
    asking: Cancel,
    asking_hook: Option<Hook>,
    /// The text of the last request's reply that arrived.
    arrived: String,
    ended: Ended,
    response: &'a mut Response,
}

impl Agent {
    /// Runs one turn to its end, even after an error, and stores it.
    pub fn run(&self, request: &Request, events: Events) -> Response {
        let started = Instant::now();
        let request = request.with_key();
        let mut response = Response {
            session: request.session.clone(),
            metadata: request.metadata.clone(),
            ..Response::default()
        };
        let ended = contained("the turn", || {
            request.check()?;
            self.with_turn(&request, events, |shared, open| {
                let model = shared.chain.first_name();
                model.clone_into(&mut response.model);
                let ended = run_turn(shared, open, &mut response);
                if !self.is_subagent {
                    (response.usage, response.cost) = shared.budget.take_unreported();
                }
                if let Some(warning) = shared.budget.take_warning() {
                    shared.warn(warning);
                }
                ended
            })
        });
        let (reply, error) = ended.unwrap_or_else(|e| (None, Some(e)));
        response.stop = stop_of(reply.as_ref(), error.as_ref());
        if let Some(reply) = reply {
            (response.output, response.partial) = (reply.text, reply.partial);
        }
        response.error = error.map(|e| self.redacted(e));
        response.ms = millis(started.elapsed());
        response
    }

    /// Returns the first request of a turn, as JSON for people to read. Sends and stores nothing.
    ///
    /// # Errors
    /// Returns an error if the conversation cannot be read.
    pub fn preview(&self, request: &Request) -> Result<String> {
        let copy = MemoryStore::default();
        let lines = self.store.read(&request.session)?;
        copy.write(&request.session, 0, &lines, Durability::Later)?;
        let agent = Self {
            store: Arc::new(copy),
            ..self.clone()
        };
        agent.with_turn(request, &|_| (), |shared, open| {
            let mut response = Response::default();
            let mut turn = Turn::begin(shared, open, false, &mut response)?;
            let body = turn.with_request(Wanted::Step, |request| {
                let first = shared.chain.first();
                first.map_or(String::new(), |first| {
                    format!("{:#}", first.preview(request))
                })
            });
            Ok(self.redactor.redact(body))
        })
    }

    /// Opens the conversation of a request and chooses its models, for `work`.
    pub(super) fn with_turn<T>(
        &self,
        request: &Request,
        events: Events,
        work: impl FnOnce(Shared, OpenSession) -> Result<T>,
    ) -> Result<T> {
        let cancel = request.cancel.with_timeout(self.limits.timeout);
        let wait = || events(Event::Warning(WAITING.to_owned()));
        let open = match &request.history {
            Some(history) => OpenSession::with_history(&request.session, history)?,
            None => OpenSession::open(&self.store, &request.session, &cancel, &wait)?,
        };
        let chosen = open.session.model.as_deref();
        let models = self.models.choose(&request.model, chosen)?;
        for warning in open.session.damage.iter().chain(&models.warnings) {
            events(Event::Warning(warning.clone()));
        }
        let own = || self.budget(&request.session, &request.origin.channel);
        let budget = request.budget.clone().unwrap_or_else(own);
        let shared = Shared {
            agent: self,
            request,
            cancel: &cancel,
            events,
            budget: &budget,
            chain: &models.chain,
            choice: &models.chain.choose(&request.model),
            is_follow_up: budget.has_asked(),
            history: self.history.with_window_of(&models.chain),
        };
        work(shared, open)
    }

    /// Removes keys from an error, because a host may quote a refused key.
    pub(super) fn redacted(&self, e: Error) -> Error {
        Error {
            message: self.redactor.redact(e.message),
            ..e
        }
    }
}

/// Runs or continues the turn of a message, unless it has ended.
fn run_turn(shared: Shared, mut open: OpenSession, response: &mut Response) -> Result<Ended> {
    response.lost.clone_from(&open.session.damage);
    let resumed = resume(&mut open, shared.request);
    if resumed.is_some() {
        response.answered = ids_in_turn(&open.session);
    }
    if resumed == Some(State::Done) {
        return end_of(&open.session);
    }
    let mut turn = Turn::begin(shared, open, resumed.is_some(), response)?;
    let mut state = resumed.unwrap_or(State::Asking);
    while state != State::Done {
        state = match state {
            State::Asking => turn.ask_model()?,
            State::Running(calls) => turn.run_calls(calls)?,
            State::AwaitingApproval(calls) => turn.ask_user(calls)?,
            State::Done => State::Done,
        };
    }
    Ok(turn.ended)
}

impl Shared<'_> {
    fn notice(&self, text: impl Into<String>) {
        (self.events)(Event::Notice(text.into()));
    }

    /// Reports something broken.
    fn warn(&self, text: impl Into<String>) {
        (self.events)(Event::Warning(text.into()));
    }
}

impl<'a> Turn<'a> {
    /// Starts with the request's message, or continues a turn that already has it.
    fn begin(
        shared: Shared<'a>,
        open: OpenSession,
        is_resumed: bool,
        response: &'a mut Response,
    ) -> Result<Self> {
        let Shared { agent, request, .. } = shared;
        let now = SystemTime::now();
        let mut prompt = agent
            .prompt
            .build(&agent.tools, &open.session, request, now)?;
        for warning in prompt.warnings.drain(..) {
            shared.warn(warning);
        }
        let mut turn = Self {
            shared,
            prompt,
            calls: Calls::new(&open.session),
            detector: LoopDetector::default(),
            follows_failure: open.session.ended == Some(TurnStop::Error),
            is_shortened: false,
            empty_answers: 0,
            cuts: 0,
            asking: shared.cancel.clone(),
            asking_hook: None,
            arrived: String::new(),
            ended: Ended::default(),
            open,
            response,
        };
        if is_resumed {
            shared.budget.restore(calls_used(&turn.open.session));
        } else {
            turn.give_up_calls()?;
            turn.append_user_message()?;
        }
        turn.apply_message_limit();
        history::drop_old_images(&mut turn.open.session.messages);
        Ok(turn)
    }

    /// Returns why the model may only answer in words, if so.
    ///
    /// # Errors
    /// Returns why it must not be asked.
    fn permit(&self) -> Result<Option<Error>> {
        if self.cuts == MOST_CUTS {
            let what = format!("{MOST_CUTS} replies in a row were cut off within their tool calls");
            let hint = "allow more with --max-tokens, or ask for less at once";
            return Err(Error::new(Kind::Limit, what).hint(hint));
        }
        if self.detector.is_stuck() {
            return Ok(Some(withheld("the same calls were repeated")));
        }
        Ok(self.last_request(self.response.steps + 1))
    }

    /// Returns why request `step` of the turn is the last one, without tools; `None` if it is not.
    fn last_request(&self, step: u32) -> Option<Error> {
        let Shared { agent, budget, .. } = self.shared;
        let limit = agent.limits.max_steps;
        if step >= limit {
            let s = if limit == 1 { "" } else { "s" };
            let what = format!("the turn reached its limit of {limit} step{s}");
            let hint = "allow more with --max-steps, or ask it to continue";
            return Some(Error::new(Kind::Limit, what).hint(hint));
        }
        (budget.calls_left() <= 1).then(|| budget.used_up())
    }

    fn ask_model(&mut self) -> Result<State> {
        let limit = match self.permit() {
            Ok(limit) => limit,
            Err(error) => return self.end(None, Some(error)),
        };
        let agent = self.shared.agent;
        let wanted = if limit.is_some() || self.empty_answers > 0 {
            Wanted::Words
        } else {
            Wanted::Step
        };
        if self.shared.request.steering.is_some() {
            let (asking, hook) = self.shared.cancel.follower();
            (self.asking, self.asking_hook) = (asking, Some(hook));
        }
        // A later message gets a separate turn with all steps, and so does one after a stop.
        let is_early = self.response.steps < agent.limits.max_steps.div_ceil(2);
        if wanted == Wanted::Step && is_early && self.shared.cancel.reason().is_none() {
            self.take_steering()?;
        }
        let mut reply = match self.ask_with_room(wanted) {
            Ok(reply) => reply,
            // A message has arrived in time to be answered as well.
            Err(_) if self.is_interrupted() => return Ok(State::Asking),
            Err(failure) => return self.end_failed(failure),
        };
        self.response.steps += 1;
        self.keep_pictures(&mut reply);
        let wants_tools = !reply.calls.is_empty();
        let is_offered = wanted == Wanted::Step && !agent.offers.is_empty();
        if !is_offered || reply.stop == Stop::Refused {
            reply.calls.clear();
        }
        let is_cut = reply.stop.is_cut() && !reply.calls.iter().all(is_complete);
        self.cuts = if is_cut { self.cuts + 1 } else { 0 };
        if reply.calls.is_empty() {
            self.end_with(reply, wants_tools, limit)
        } else {
            self.begin_calls(reply)
        }
    }

    /// Ends the turn with a reply without permitted calls. After an empty reply, asks again without tools.
    fn end_with(&mut self, reply: Reply, wants_tools: bool, limit: Option<Error>) -> Result<State> {
        let Shared { agent, budget, .. } = self.shared;
        if has_text(&reply.text) && reply.stop.is_cut() {
            self.shared.warn(match reply.stop {
                Stop::Window => "the answer was cut: the model's context window is full".to_owned(),
                _ if reply.limit == 0 => "the answer was cut".to_owned(),
                _ => format!("the answer was cut at max_tokens ({})", reply.limit),
            });
        }
        let is_answer = has_text(&reply.text)
            || !reply.images.is_empty()
            || (reply.stop == Stop::Refused && !reply.refused.is_empty())
            || reply.used_all_to_think();
        let may_ask_again = self.empty_answers == 0
            && self.response.steps < agent.limits.max_steps
            && budget.calls_left() > 0;
        if !is_answer && may_ask_again {
            let text = "the model gave an empty answer: asking again, without tools";
            (self.shared.events)(Event::Trace(text.to_owned()));
            self.empty_answers += 1;
            return Ok(State::Asking);
        }
        if !is_answer && wants_tools {
            let limit = limit.unwrap_or_else(|| withheld("its answer was empty"));
            return self.end_without_answer(limit);
        }
        // A first step may have needed no tools.
        let needed_none = self.response.steps == 1 && !wants_tools;
        let limit = if needed_none { None } else { limit };
        let (reply, error) = judge(reply, limit);
        self.end(reply, error)
    }

    /// Appends a reply with calls, which run next.
    fn begin_calls(&mut self, mut reply: Reply) -> Result<State> {
        let Shared { agent, events, .. } = self.shared;
        if has_text(&reply.text) {
            events(Event::Progress(reply.text.clone()));
        }
        self.detector.next_reply();
        self.calls.notice = match self.last_request(self.response.steps + 1) {
            Some(_) => NO_MORE_TOOLS,
            None if reply.calls.len() > MOST_CALLS => NOT_ALL_RUN,
            None => "",
        };
        self.calls.cut_at = reply.stop.is_cut().then_some(reply.limit);
        reply.calls_used = self.shared.budget.calls_used();
        reply.calls.truncate(MOST_CALLS);
        for call in &mut reply.calls {
            call.name = agent.tools.resolve(&call.name);
        }
        make_unique(&mut reply.calls, &self.open.session.messages);
        let calls = reply.calls.clone();
        self.open
            .store(&[Record::Message(&Message::Assistant(reply))])?;
        Ok(State::Running(calls.into()))
    }

    /// Runs the next call with its parallel neighbors, unless it needs the user's approval.
    fn run_calls(&mut self, mut calls: VecDeque<ToolCall>) -> Result<State> {
        let Some(next) = calls.front() else {
            return self.end_calls();
        };
        if self.asks_about(&self.shared.agent.tools.prepare(next)) {
            return Ok(State::AwaitingApproval(calls));
        }
        let count = self.parallel(&calls);
        let together: Vec<ToolCall> = calls.drain(..count).collect();
        let batch: Vec<Admitted> = together.iter().map(|call| self.admit(call)).collect();
        self.run_batch(&batch, calls.is_empty())?;
        Ok(State::Running(calls))
    }

    /// Asks the user about the first call, and runs it if they agree. The stored question tells a resumed turn that these calls
    /// have not begun.
    fn ask_user(&mut self, mut calls: VecDeque<ToolCall>) -> Result<State> {
        if let Some(call) = calls.pop_front() {
            let mut admitted = self.admit(&call);
            if admitted.refused.is_none() {
                admitted.refused = self.ask_about(&mut admitted.call)?;
                admitted.is_approved = admitted.refused.is_none();
            }
            self.run_batch(&[admitted], calls.is_empty())?;
        }
        Ok(State::Running(calls))
    }

    /// Continues after all calls of the reply have a result.
    fn end_calls(&mut self) -> Result<State> {
        if self.calls.is_handed_over() && self.shared.cancel.reason().is_none() {
            let said = last_reply(&self.open.session).map(|reply| reply.text.clone());
            // The client runs the calls of the last reply and continues.
            let reply = Reply {
                text: said.unwrap_or_default(),
                ..Reply::default()
            };
            return self.end(Some(reply), None);
        }
        Ok(State::Asking)
    }

    fn append_user_message(&mut self) -> Result<()> {
        let Shared { agent, request, .. } = self.shared;
        let now = SystemTime::now();
        self.expire_idle(now)?;
        let user = Message::User(request.message(&agent.prompt, now));
        self.open.store(&[Record::Message(&user)])?;
        if let Some(Message::User(user)) = self.open.session.messages.last_mut() {
            user.notes.clone_from(&self.prompt.notes);
        }
        Ok(())
    }

    /// Stores results for calls that wait for the user's decision, because another message arrived instead.
    fn give_up_calls(&mut self) -> Result<()> {
        let results = self.open.take_not_begun();
        if results.is_empty() {
            return Ok(());
        }
        let records: Vec<Record> = results.iter().map(Record::Message).collect();
        self.open
            .append(&records, Durability::Later, SystemTime::now())
    }

    /// Whether only the request was stopped, and not the turn.
    fn is_interrupted(&self) -> bool {
        self.asking.reason() == Some(CancelReason::Stopped) && self.shared.cancel.reason().is_none()
    }

    /// Adds the messages that arrived since the last request.
    fn take_steering(&mut self) -> Result<()> {
        let Some(steering) = &self.shared.request.steering else {
            return Ok(());
        };
        for part in steering(&self.asking) {
            let now = SystemTime::now();
            let user = Message::User(User {
                content: part.text,
                media: part.media,
                time: rfc3339(now),
                local_time: self.shared.agent.prompt.local_time(now),
                ids: vec![part.id],
                kind: UserKind::Steering,
                ..User::default()
            });
            self.open.store(&[Record::Message(&user)])?;
            let text = "added your new message to this turn";
            (self.shared.events)(Event::Trace(text.to_owned()));
        }
        Ok(())
    }
}

/// Returns the error of a turn in which tools were withheld.
fn withheld(why: &str) -> Error {
    let message = format!("tools were withheld from the model: {why}");
    Error::new(Kind::Limit, message)
        .hint("rephrase the request, or use another model (--model, /model)")
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
