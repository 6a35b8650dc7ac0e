//! Turns of the HTTP endpoint: the agent and the conversation of each request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, SystemTime};

use super::{Dispatcher, turn_log};
use crate::agent::{Agent, Request};
use crate::bus::{Event, Origin, Response};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind, Result};
use crate::http_api::{Answer, Ask, ClientTool, Endpoint, Options, Settings, Turns};
use crate::log::{Level, Logger};
use crate::message::{Message, User};
use crate::paths::session_name;
use crate::provider::Sampling;
use crate::sync;
use crate::test_speed::paced;
use crate::text::rfc3339;
use crate::tool::client::{ClientCalls, client_tool};
use crate::tool::{Function, Tool};

/// Channel of requests, and prefix of their conversations.
const CHANNEL: &str = "http";
/// Conversation of requests that include their history.
const UNSTORED: &str = "http";
const DAY: Duration = Duration::from_secs(86_400);
/// Pauses between tries to listen at an address that is in use.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The endpoint, served by a thread.
pub(crate) struct HttpChannel {
    pub settings: Settings,
    pub turns: Arc<EndpointTurns>,
    pub cancel: Cancel,
    pub log: Logger,
    /// Logs an error, and notifies the bot's owner.
    pub report: Arc<dyn Fn(&str) + Send + Sync>,
}

impl HttpChannel {
    /// Starts the endpoint's thread, which ends after the last reply when the program stops.
    pub(crate) fn start(self) -> Result<JoinHandle<()>> {
        if let Some(warning) = self.settings.warning() {
            (self.log)(Level::Warn, &warning);
        }
        let first = self.listen();
        let serve = move || {
            if let Some(endpoint) = self.listen_again(first) {
                while self.cancel.sleep(DAY).is_ok() {}
                endpoint.close();
            }
        };
        Builder::new().spawn(serve).doing("starting a thread")
    }
}

impl HttpChannel {
    fn listen(&self) -> Result<Endpoint> {
        let endpoint = Endpoint::start(
            self.settings.clone(),
            self.turns.clone(),
            self.cancel.clone(),
            self.log.clone(),
        )?;
        let address = endpoint.address()?;
        (self.log)(Level::Info, &format!("listening at http://{address}/v1"));
        Ok(endpoint)
    }

    /// Retries while the address is in use; the other channels work meanwhile. Returns `None` if the program ends first.
    fn listen_again(&self, first: Result<Endpoint>) -> Option<Endpoint> {
        let mut result = first;
        let mut pause = FIRST_PAUSE;
        loop {
            match result {
                Ok(endpoint) => return Some(endpoint),
                Err(e) if pause == FIRST_PAUSE => {
                    (self.report)(&format!(
                        "the HTTP endpoint cannot start, and is tried again: {e}"
                    ));
                }
                Err(_) => {}
            }
            self.cancel.sleep(paced(pause)).ok()?;
            pause = LONGEST_PAUSE.min(pause * 2);
            result = self.listen();
        }
    }
}

pub(crate) struct EndpointTurns {
    dispatcher: Arc<Dispatcher>,
    log: Logger,
    started: String,
    counter: AtomicU64,
}

impl EndpointTurns {
    pub(crate) fn new(dispatcher: Arc<Dispatcher>, log: Logger) -> Self {
        Self {
            dispatcher,
            log,
            started: rfc3339(SystemTime::now()),
            counter: AtomicU64::default(),
        }
    }

    fn agent(&self) -> Result<Arc<Agent>> {
        self.dispatcher.handler.agent()
    }

    /// Returns an id that is unique even across restarts, because clients store ids derived from it.
    fn fresh_id(&self) -> String {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let digits: String = self.started.chars().filter(char::is_ascii_digit).collect();
        format!("{digits}_{}_{number}", std::process::id())
    }

    /// Runs a turn in the stored conversation with this key.
    fn run_stored(
        &self,
        key: &str,
        ask: Ask,
        cancel: &Cancel,
        events: &(dyn Fn(Event) + Sync),
    ) -> Result<Answer> {
        let session = session_name(CHANNEL, key)?;
        let user = ask.user.unwrap_or_default();
        let request = Request {
            media: user.media,
            model: ask.model.unwrap_or_default(),
            origin: origin(key),
            cancel: cancel.clone(),
            sampling: sampling(ask.options),
            ..Request::new(user.content, session)
        };
        Ok(Answer {
            response: self.agent()?.run(&request, events),
            ..Answer::default()
        })
    }

    /// Runs a turn for a client that stores the conversation.
    fn run_unstored(
        &self,
        ask: Ask,
        cancel: &Cancel,
        events: &(dyn Fn(Event) + Sync),
    ) -> Result<Answer> {
        let id = self.fresh_id();
        let calls = ClientCalls::default();
        let tools = client_tools(ask.tools, &id, &calls);
        let mut history = ask.history;
        let user = match ask.user {
            Some(user) => user,
            // The history ends with results of the client's tools, so its last question is still open.
            None => mark_open_question(&mut history, &id),
        };
        let agent = with_client_tools(&*self.agent()?, tools)?;
        let request = Request {
            media: user.media,
            model: ask.model.unwrap_or_default(),
            history: Some(history),
            origin: origin(""),
            ids: vec![id],
            cancel: cancel.clone(),
            sampling: sampling(ask.options),
            ..Request::new(user.content, UNSTORED)
        };
        let response = agent.run(&request, events);
        let calls = std::mem::take(&mut *sync::lock(&calls));
        Ok(Answer { response, calls })
    }
}

/// Converts a request's options.
fn sampling(options: Options) -> Sampling {
    let format = options.response_format;
    let format = format.map(|format| ("response_format".to_owned(), format));
    Sampling {
        temperature: options.temperature,
        max_tokens: options.max_tokens,
        extra_body: format.into_iter().collect(),
    }
}

fn client_tools(tools: Vec<ClientTool>, request: &str, calls: &ClientCalls) -> Vec<Function> {
    let tool =
        |tool: ClientTool| client_tool(tool.name, tool.description, tool.schema, request, calls);
    tools.into_iter().map(tool).collect()
}

/// Returns the agent with a client's tools added; the agent's tool wins if names collide.
fn with_client_tools(agent: &Agent, tools: Vec<Function>) -> Result<Agent> {
    let mut all = agent.tools().clone();
    for tool in tools {
        if agent
            .tools()
            .specs()
            .all(|own| own.name != tool.spec().name)
        {
            all.add(tool)?;
        }
    }
    Ok(agent.with_tools(all))
}

fn origin(key: &str) -> Origin {
    Origin {
        channel: CHANNEL.to_owned(),
        chat: key.to_owned(),
    }
}

/// Gives the last question of the history this id, so that the agent continues its turn, and returns the question.
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
        user.ids = vec![id.to_owned()];
        last = user.clone();
    }
    last
}

impl Turns for EndpointTurns {
    fn models(&self) -> Vec<String> {
        self.dispatcher.handler.models()
    }

    fn choose(&self, model: &str) -> Result<()> {
        self.agent()?.models().choose(model, None).map(drop)
    }

    fn check(&self, ask: &Ask) -> Result<()> {
        let agent = self.agent()?;
        let tools = client_tools(ask.tools.clone(), "", &ClientCalls::default());
        with_client_tools(&agent, tools)
            .map(drop)
            .map_err(|e| Error {
                kind: Kind::Usage,
                ..e
            })
    }

    fn run(&self, ask: Ask, cancel: &Cancel, events: &(dyn Fn(Event) + Sync)) -> Answer {
        let _running = self.dispatcher.inbox.begin_other();
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
        let result = match ask.session.clone() {
            Some(key) => self.run_stored(&key, ask, cancel, &show),
            None => self.run_unstored(ask, cancel, &show),
        };
        let answer = result.unwrap_or_else(|e| Answer {
            response: Response::failed(UNSTORED, e),
            ..Answer::default()
        });
        log(&Event::Done(Box::new(answer.response.clone())));
        answer
    }
}
