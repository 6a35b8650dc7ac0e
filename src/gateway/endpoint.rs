//! The turns of the HTTP endpoint: which agent answers a request, and what is kept of its turn.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::backlog::{Backlog, Next, Waiting};
use super::{Handler, turn_log};
use crate::agent::{Agent, Request};
use crate::bus::{Channel, Event, Inbound, Origin, Outbound, Response};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind, Result};
use crate::http_api::{Answer, Ask, ClientTool, Endpoint, Last, Options, Settings, Turns};
use crate::log::{Level, Sink};
use crate::message::{Media, Message, User};
use crate::paths::{Home, session_name};
use crate::provider::Sampling;
use crate::session::{Entry, Files, Memory, Session, Store, TurnEnd};
use crate::storage::{self, Durability, Queue};
use crate::text::rfc3339;
use crate::tool::Tool;
use crate::tool::client::{ClientCalls, client_tool};

/// The channel of requests, and the prefix of their conversations.
const CHANNEL: &str = "http";
/// Which items of the home's queue are messages of this channel.
const KIND: &str = "http";
/// The conversation of a request that brings its own.
const UNSTORED: &str = "http";
const DAY: Duration = Duration::from_secs(86_400);
/// How long turns may go on when the program ends. The next start resumes those that are kept.
const GRACE: Duration = Duration::from_secs(2);
/// Attempts at turns of a former run at once.
const MAX_RESUMING: usize = 8;
/// How long after a message came to go on with that, over all starts of the program.
const RESUME_TIME: Duration = DAY;

/// The endpoint as a channel: it lets the dispatcher go on until it ends.
pub(crate) struct HttpChannel {
    pub settings: Settings,
    pub turns: Arc<EndpointTurns>,
    pub cancel: Cancel,
    pub log: Sink,
}

impl Channel for HttpChannel {
    fn start(self: Box<Self>, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        if let Some(warning) = self.settings.warning() {
            (self.log)(Level::Warn, &warning);
        }
        // Read before anything new can come in, and run when the address is taken.
        let left = self.turns.queue.entries(KIND)?;
        let endpoint = Endpoint::start(
            self.settings,
            self.turns.clone(),
            self.cancel.clone(),
            self.log.clone(),
        )?;
        let address = endpoint.address()?;
        self.turns.resume(left, &self.cancel, &self.log)?;
        (self.log)(Level::Info, &format!("listening at http://{address}/v1"));
        let (cancel, turns) = (self.cancel, self.turns);
        let wait = move || {
            while cancel.sleep(DAY).is_ok() {}
            drop(endpoint);
            turns.halt();
            drop(inbound);
        };
        Builder::new().spawn(wait).doing("starting a thread")?;
        // Its turns show their events themselves.
        Ok(channel().0)
    }
}

/// A message of a stored conversation whose turn is not over.
#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(default)]
struct KeptMessage {
    key: String,
    text: String,
    media: Vec<Media>,
    model: Option<String>,
    options: Options,
    /// When it came, in seconds since 1970.
    since: u64,
}

pub(crate) struct EndpointTurns {
    handler: Arc<dyn Handler>,
    home: Home,
    queue: Arc<Queue>,
    log: Sink,
    started: String,
    counter: AtomicU64,
    /// The ids of kept messages whose turns are under way.
    running: Mutex<Vec<String>>,
    changed: Condvar,
    /// The kept messages of former runs of the program.
    left: Backlog,
}

impl EndpointTurns {
    pub(crate) fn new(handler: Arc<dyn Handler>, home: Home, queue: Arc<Queue>, log: Sink) -> Self {
        Self {
            handler,
            home,
            queue,
            log,
            started: rfc3339(SystemTime::now()),
            counter: AtomicU64::default(),
            running: Mutex::default(),
            changed: Condvar::new(),
            left: Backlog::default(),
        }
    }

    /// An id that no other message of this channel has.
    fn fresh_id(&self) -> String {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let digits: String = self.started.chars().filter(char::is_ascii_digit).collect();
        format!("{KIND}:{digits}:{}:{number}", std::process::id())
    }

    fn running(&self) -> MutexGuard<'_, Vec<String>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits a little for the kept turns under way. Those that go on are no fault of their messages: their starts do not count.
    fn halt(&self) {
        let is_busy = |running: &mut Vec<String>| !running.is_empty();
        let waited = self
            .changed
            .wait_timeout_while(self.running(), GRACE, is_busy);
        let (running, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !running.is_empty() {
            // Without it they count as a start that did not end.
            drop(self.queue.halt(&running));
        }
    }

    /// Goes on with the turns that the end of the program interrupted.
    fn resume(
        self: &Arc<Self>,
        entries: Vec<storage::Entry>,
        cancel: &Cancel,
        log: &Sink,
    ) -> Result<()> {
        let waiting = |entry: storage::Entry| {
            let kept: KeptMessage = entry.read();
            Waiting {
                id: entry.id,
                key: kept.key,
                starts: entry.starts,
                // A version that did not record the time wrote it.
                since: if kept.since == 0 { now() } else { kept.since },
            }
        };
        let conversations = self.left.fill(entries.into_iter().map(waiting));
        for _ in 0..conversations.min(MAX_RESUMING) {
            let (own, cancel, log) = (self.clone(), cancel.clone(), log.clone());
            let work = move || own.resume_all(&cancel, &log);
            Builder::new().spawn(work).doing("starting a thread")?;
        }
        Ok(())
    }

    /// Gives the turns that are due an attempt until all have an end. Where a model cannot be reached, as when the network comes
    /// up after the program, a turn is put off, as nobody is there to ask again, and holds up those behind it in its
    /// conversation alone.
    fn resume_all(&self, cancel: &Cancel, log: &Sink) {
        while cancel.reason().is_none() {
            match self.left.next() {
                Next::Nothing => return,
                Next::Wait(time) => drop(cancel.sleep(time)),
                Next::Work(message) => {
                    let put_off = self.resume_one(&message, log);
                    self.left.release(&message.key, matches!(put_off, Ok(None)));
                    // As when the disk is full: what is behind it waits as well.
                    if let Err(e) = put_off {
                        let text = format!("http {}: {}", message.key, e.message);
                        log(Level::Error, &text);
                    }
                }
            }
        }
    }

    /// Gives the older messages of a conversation an attempt, so that a new one is not answered before them. Fails if one of them
    /// is put off again.
    fn resume_older(&self, key: &str) -> Result<()> {
        while let Some(message) = self.left.take(key)? {
            let put_off = self.resume_one(&message, &self.log);
            self.left.release(key, matches!(put_off, Ok(None)));
            if let Some(e) = put_off? {
                return Err(e.doing("still answering an older message of this conversation"));
            }
        }
        Ok(())
    }

    /// Makes one attempt at a turn. Returns why it is put off, or nothing if it has an end. The end of the program does not stop
    /// the attempt, because a stopped turn is over, and the next start goes on with this one.
    fn resume_one(&self, message: &Waiting, log: &Sink) -> Result<Option<Error>> {
        let key = &message.key;
        let ids = [message.id.clone()];
        let Some(entry) = self.queue.find(&ids)?.pop() else {
            return Ok(None);
        };
        if message.starts >= storage::MAX_STARTS {
            log(
                Level::Error,
                &format!("http {key}: the message crashed bantam three times"),
            );
            return self.give_up(&message.id, key).map(|()| None);
        }
        let response = self.attempt(&message.id, entry.read(), &Cancel::new(None), &|_| ());
        let Some(e) = response.error else {
            return self.queue.done(&ids).map(|()| None);
        };
        let text = format!("http {key}: a resumed turn failed: {}", e.message);
        log(Level::Warn, &text);
        let may_pass = matches!(e.kind, Kind::Unavailable | Kind::Busy);
        if !may_pass || is_too_old(message.since, now()) {
            return self.queue.done(&ids).map(|()| None);
        }
        self.queue.halt(&ids)?;
        Ok(Some(e))
    }

    /// Closes the message that stopped the program, with a word in its conversation.
    fn give_up(&self, id: &str, key: &str) -> Result<()> {
        let store = Files::new(self.home.clone());
        let name = session_name(CHANNEL, key)?;
        let mut session = store.load(&name, &Cancel::new(None), &|| ())?;
        store.append(
            &mut session,
            &[Entry::TurnEnd(TurnEnd::Failed)],
            Durability::Now,
            SystemTime::now(),
        )?;
        self.queue.give_up(id, "it crashed the program three times")
    }

    fn agent(&self, model: Option<&str>, session: Option<&str>) -> Result<Arc<Agent>> {
        match (model, session) {
            (None, Some(session)) => self.handler.agent(session),
            (model, _) => self.handler.agent_with(model),
        }
    }

    /// Runs the turn of a message in a stored conversation, and closes the message. It is on disk already.
    fn run_kept(
        &self,
        id: &str,
        kept: KeptMessage,
        cancel: &Cancel,
        events: &(dyn Fn(Event) + Sync),
    ) -> Response {
        let mut response = self.attempt(id, kept, cancel, events);
        if let Err(e) = self.queue.done(&[id.to_owned()]) {
            response.error.get_or_insert(e);
        }
        response
    }

    /// Runs the turn of a message, which stays open.
    fn attempt(
        &self,
        id: &str,
        kept: KeptMessage,
        cancel: &Cancel,
        events: &(dyn Fn(Event) + Sync),
    ) -> Response {
        let run = |kept: KeptMessage| {
            let session = session_name(CHANNEL, &kept.key)?;
            self.queue.start(&[id.to_owned()])?;
            let agent = self.agent(kept.model.as_deref(), Some(&session))?;
            let request = Request {
                media: kept.media,
                origin: origin(&kept.key),
                id: id.to_owned(),
                cancel: cancel.clone(),
                sampling: sampling(kept.options),
                ..Request::new(kept.text, session)
            };
            Ok(agent.run(&request, events))
        };
        self.running().push(id.to_owned());
        let key = kept.key.clone();
        let response = run(kept).unwrap_or_else(|e| Response::failed(&key, e));
        self.running().retain(|other| other != id);
        self.changed.notify_all();
        response
    }

    /// Runs the turn of a client that keeps the conversation itself.
    fn run_unstored(
        &self,
        ask: Ask,
        cancel: &Cancel,
        events: &(dyn Fn(Event) + Sync),
    ) -> Result<Answer> {
        let id = self.fresh_id();
        let calls = ClientCalls::default();
        let (_, number) = id.split_once(':').unwrap_or_default();
        let tools = client_tools(ask.tools, &number.replace(':', "_"), &calls);
        let mut history = ask.history;
        let user = match ask.user {
            Some(user) => user,
            // The history ends with results of the client's tools: its last question is still open.
            None => mark_open_question(&mut history, &id),
        };
        let memory = Memory::default();
        let mut session = memory.load(UNSTORED, cancel, &|| ())?;
        let entries: Vec<Entry> = history.iter().map(Entry::Message).collect();
        memory.append(&mut session, &entries, Durability::Later, SystemTime::now())?;
        drop(session);
        let agent = self.agent(ask.model.as_deref(), None)?;
        let agent = with_client_tools(&agent, tools)?.with_store(memory);
        let request = Request {
            media: user.media,
            origin: origin(""),
            id,
            cancel: cancel.clone(),
            sampling: sampling(ask.options),
            ..Request::new(user.content, UNSTORED)
        };
        let response = agent.run(&request, events);
        let calls = std::mem::take(&mut *calls.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Answer { response, calls })
    }
}

/// The seconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// Whether a message that came then is given up if its model cannot be reached.
fn is_too_old(since: u64, now: u64) -> bool {
    now.saturating_sub(since) > RESUME_TIME.as_secs()
}

/// What a request's options ask of the model.
fn sampling(options: Options) -> Sampling {
    let format = options.response_format;
    let format = format.map(|format| ("response_format".to_owned(), format));
    Sampling {
        temperature: options.temperature,
        max_tokens: options.max_tokens,
        extra_body: format.into_iter().collect(),
    }
}

fn client_tools(tools: Vec<ClientTool>, request: &str, calls: &ClientCalls) -> Vec<Box<dyn Tool>> {
    let tool =
        |tool: ClientTool| client_tool(tool.name, tool.description, tool.schema, request, calls);
    tools.into_iter().map(tool).collect()
}

/// The agent with a client's tools besides its own, which win where two have the same name.
fn with_client_tools(agent: &Agent, mut tools: Vec<Box<dyn Tool>>) -> Result<Agent> {
    tools.retain(|new| agent.tools().all(|own| own.name != new.spec().name));
    agent.with_more(tools)
}

fn origin(key: &str) -> Origin {
    Origin {
        channel: CHANNEL.to_owned(),
        chat: key.to_owned(),
    }
}

/// Gives the last question of the history this id, so that the agent goes on with its turn, and returns it.
fn mark_open_question(history: &mut [Message], id: &str) -> User {
    let questions = history
        .iter_mut()
        .rev()
        .filter_map(|message| match message {
            Message::User(user) => Some(user),
            _ => None,
        });
    let mut last = User::default();
    for user in questions.take(1) {
        user.id = id.to_owned();
        last = user.clone();
    }
    last
}

impl Turns for EndpointTurns {
    fn models(&self) -> Vec<String> {
        self.handler.models()
    }

    fn check(&self, ask: &Ask) -> Result<()> {
        if let Some(model) = &ask.model {
            if !self.models().contains(model) {
                let names = self.models().join(", ");
                return Err(Error::config(format!(
                    "there is no model {model}; the models are bantam, {names}"
                )));
            }
        }
        let agent = self.handler.agent_with(ask.model.as_deref())?;
        let tools = client_tools(ask.tools.clone(), "", &ClientCalls::default());
        with_client_tools(&agent, tools)
            .map(drop)
            .map_err(|e| Error {
                kind: Kind::Usage,
                ..e
            })
    }

    fn run(&self, ask: Ask, cancel: &Cancel, events: &(dyn Fn(Event) + Sync)) -> Answer {
        let chat = ask.session.clone().unwrap_or_default();
        let log = |event: &Event| {
            if let Some((level, text)) = turn_log::line(event) {
                (self.log)(level, &format!("{CHANNEL} {chat}: {text}"));
            }
        };
        let show = |event: Event| {
            log(&event);
            events(event);
        };
        let answer = self.answer(ask, cancel, &show);
        log(&Event::Done(Box::new(answer.response.clone())));
        answer
    }

    fn last(&self, key: &str) -> Result<Last> {
        // Its media stay where they are: clients ask again and again.
        if self.queue.any(KIND, |item| item["key"] == key)? {
            return Ok(Last::Running);
        }
        let session = Files::new(self.home.clone()).peek(&session_name(CHANNEL, key)?)?;
        if session.messages.is_empty() {
            return Ok(Last::Unknown);
        }
        Ok(Last::Over(Box::new(last_response(session))))
    }
}

impl EndpointTurns {
    fn answer(&self, ask: Ask, cancel: &Cancel, events: &(dyn Fn(Event) + Sync)) -> Answer {
        let (Some(key), Some(user)) = (ask.session.clone(), ask.user.clone()) else {
            return self
                .run_unstored(ask, cancel, events)
                .unwrap_or_else(|e| Answer {
                    response: Response::failed(UNSTORED, e),
                    ..Answer::default()
                });
        };
        let id = self.fresh_id();
        let kept = KeptMessage {
            key,
            text: user.content,
            media: user.media,
            model: ask.model,
            options: ask.options,
            since: now(),
        };
        let added = self.queue.add_large(&storage::Entry::new(&id, KIND, &kept));
        let response = match added {
            Ok(()) => match self.resume_older(&kept.key) {
                Ok(()) => self.run_kept(&id, kept, cancel, events),
                Err(e) => {
                    let closed = self.queue.done(&[id]);
                    Response::failed(&kept.key, closed.err().unwrap_or(e))
                }
            },
            // Nothing ran, so the client may ask again.
            Err(e) => Response::failed(
                &kept.key,
                Error {
                    kind: Kind::Unavailable,
                    ..e.doing("keeping the message")
                },
            ),
        };
        Answer {
            response,
            ..Answer::default()
        }
    }
}

/// What the last turn of a conversation came to.
fn last_response(session: Session) -> Response {
    let error = match session.ended {
        Some(TurnEnd::Done) => None,
        _ => Some(Error::failed("the last turn has no answer")),
    };
    let reply = session
        .messages
        .into_iter()
        .rev()
        .find_map(|message| match message {
            Message::Assistant(reply) => Some(reply),
            _ => None,
        });
    match (error, reply) {
        (None, Some(reply)) => Response {
            output: reply.text,
            usage: reply.usage,
            stop: crate::bus::TurnStop::Done,
            ..Response::default()
        },
        (error, _) => Response {
            error,
            ..Response::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_grows_old_over_all_starts_of_the_program() {
        let day = RESUME_TIME.as_secs();
        assert!(!is_too_old(now(), now()));
        assert!(!is_too_old(1_000_000, 1_000_000 + day));
        assert!(is_too_old(1_000_000, 1_000_001 + day));
        // A clock that was set back.
        assert!(!is_too_old(1_000_000, 900_000));
    }
}
