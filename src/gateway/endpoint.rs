//! Turns of the HTTP endpoint: the agent and the conversation of each request.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, SystemTime};

use super::Dispatcher;
use super::start::Gateway;
use crate::agent::{Agent, Request};
use crate::bus::{Event, Origin, Response};
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::http_api::{self, ChatRequest, EndpointSettings, Refusal};
use crate::log::Level;
use crate::message::{Message, ToolCall, User};
use crate::paths::{fresh_key, session_name};
use crate::provider::Sampling;
use crate::sync;
use crate::test_speed::paced;
use crate::tool::Registry;
use crate::tool::client::{ClientCalls, client_tool};

/// Channel of requests, prefix of their conversations, and conversation of requests that include their history.
const CHANNEL: &str = "http";
/// Pauses between tries to listen at an address that is in use.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

impl Gateway {
    /// Serves the endpoint, if there is one, in a thread that ends with the gateway.
    pub(super) fn start_endpoint(self: &Arc<Self>) -> Result<Option<JoinHandle<()>>> {
        let Some(settings) = self.setup.http.clone() else {
            return Ok(None);
        };
        let (own, log) = (self.clone(), self.log.sink("http"));
        if let Some(warning) = settings.warning() {
            log(Level::Warn, &warning);
        }
        let work = move || {
            let Some(listener) = own.listen_for_http(&settings) else {
                return;
            };
            // The port is assigned if 0 was configured.
            let address = listener.local_addr().unwrap_or(settings.listen);
            log(Level::Info, &format!("listening at http://{address}/v1"));
            let dispatcher = own.dispatcher.clone();
            let models = settings.models.clone();
            let endpoint = http_api::Endpoint {
                settings,
                turn: Box::new(move |request, cancel, sink| {
                    let answer = || dispatcher.answer_request(request, &models, cancel, sink);
                    dispatcher.inbox.while_serving(answer)
                }),
                cancel: own.shutdown.cancel.clone(),
                log,
            };
            if let Err(e) = http_api::serve(listener, endpoint) {
                own.report(&format!("the HTTP endpoint has ended: {e}"));
            }
        };
        let thread = Builder::new().spawn(work);
        thread.map(Some).doing("starting a thread")
    }

    /// Retries while the address is in use; the other channels work meanwhile. Returns `None` if the program ends first.
    fn listen_for_http(&self, settings: &EndpointSettings) -> Option<TcpListener> {
        let mut pause = FIRST_PAUSE;
        loop {
            match settings.bind() {
                Ok(listener) => return Some(listener),
                Err(e) if pause == FIRST_PAUSE => {
                    let text = "the HTTP endpoint cannot start, and is tried again";
                    self.report(&format!("{text}: {e}"));
                }
                Err(_) => {}
            }
            self.shutdown.cancel.sleep(paced(pause)).ok()?;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }
}

impl Dispatcher {
    /// Runs the turn of a request to its end.
    fn answer_request(
        &self,
        request: ChatRequest,
        models: &[String],
        cancel: &Cancel,
        sink: &(dyn Fn(Event) + Sync),
    ) -> Result<(Response, Vec<ToolCall>), Refusal> {
        let agent = self.agents.agent()?;
        if let Some(model) = &request.model {
            let chosen = agent.models.choose(model, None);
            chosen.map_err(|e| Refusal::of_model(e, models))?;
        }
        // Unique even across restarts, because clients store ids derived from it.
        let id = fresh_key(SystemTime::now());
        let calls = ClientCalls::default();
        let agent = with_client_tools(&agent, &request, &id, &calls)?;
        let question = question(request, id, cancel)?;
        let show = |event: Event| {
            self.show(&question.origin, &event);
            sink(event);
        };
        let response = agent.run(&question, &show);
        let done = Event::Done(Box::new(response.clone()));
        self.show(&question.origin, &done);
        let calls = std::mem::take(&mut *sync::lock(&calls));
        Ok((response, calls))
    }
}

/// Returns the question of a request for the agent; `id` is new.
fn question(request: ChatRequest, id: String, cancel: &Cancel) -> Result<Request> {
    let key = request.session.unwrap_or_default();
    let mut history = request.history;
    let user = match request.user {
        Some(user) => user,
        // The history ends with results of the client's tools, so its last question is still open.
        None => mark_open_question(&mut history, &id),
    };
    let session = match key.as_str() {
        "" => CHANNEL.to_owned(),
        key => session_name(CHANNEL, key)?,
    };
    let format = request.response_format;
    let format = format.map(|format| ("response_format".to_owned(), format));
    // The client stores the conversation, or bantam does.
    let is_stored = !key.is_empty();
    Ok(Request {
        media: user.media,
        model: request.model.unwrap_or_default(),
        history: (!is_stored).then_some(history),
        ids: if is_stored { Vec::new() } else { vec![id] },
        origin: Origin {
            channel: CHANNEL.to_owned(),
            chat: key,
        },
        cancel: cancel.clone(),
        sampling: Sampling {
            temperature: request.temperature,
            max_tokens: request.max_tokens,
            stop: request.stop,
            must_call: request.must_call,
            extra_body: format.into_iter().collect(),
        },
        ..Request::new(user.content, session)
    })
}

/// Returns the agent with the tools of a request; the agent's tool wins if names collide. If a call is demanded, the agent has
/// only these tools.
fn with_client_tools(
    agent: &Agent,
    request: &ChatRequest,
    id: &str,
    calls: &ClientCalls,
) -> Result<Agent, Refusal> {
    let mut all = Registry::default();
    if !request.must_call {
        all.clone_from(agent.tools());
    }
    for tool in &request.tools {
        if all.specs().all(|own| own.name != tool.name) {
            let (name, description) = (tool.name.clone(), tool.description.clone());
            let tool = client_tool(name, description, tool.schema.clone(), &id[1..], calls);
            let added = all.add(tool);
            added.map_err(|e| Refusal::of_param("tools", &e.message))?;
        }
    }
    Ok(agent.with_tools(all))
}

/// Gives the last question of the history this id, so that the agent continues its turn, and returns the question.
fn mark_open_question(history: &mut [Message], id: &str) -> User {
    for message in history.iter_mut().rev() {
        if let Message::User(user) = message {
            user.ids = vec![id.to_owned()];
            return user.clone();
        }
    }
    User::default()
}
