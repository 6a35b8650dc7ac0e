//! The agent as a model behind OpenAI's chat API: an HTTP/1.1 server with a thread for each connection.
//!
//! A connection carries one request and then closes, so none can hide behind another. Everybody who reaches the address is a
//! stranger until the token is right: what a stranger can make bantam do has a bound in bytes, time and threads.

mod access;
mod chat;
mod request;
mod response;

use std::io::{self, ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bus::{Event, Response};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind, Result};
use crate::log::{Level, Sink};
use crate::message::{Message, ToolCall, User};
use crate::secret::Secret;
use access::Access;
use chat::{ChatRequest, Completion};
use request::{Head, Reader};
use response::{EventStream, Refusal, Responder};

const MAX_CONNECTIONS: usize = 32;
/// Turns that run at the same time; further ones wait.
const MAX_TURNS: usize = 8;
/// How long a turn waits for its place before the client is told to come back.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// A stream that is silent for so long gets a comment, so that nothing on its way closes it.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Pause of the accept loop when no connection or no descriptor is free.
const PAUSE: Duration = Duration::from_millis(50);

/// What a client asks.
pub(crate) struct Ask {
    /// A name of `model_list`, or `VENDOR/MODEL`; `None` for the configured one.
    pub(crate) model: Option<String>,
    /// What was said before, as the client tells it. Without meaning if there is a `session`.
    pub(crate) history: Vec<Message>,
    /// The message to answer. `None`: the history ends with results of the client's tools.
    pub(crate) user: Option<User>,
    /// The key of a stored conversation; `None` if nothing is stored.
    pub(crate) session: Option<String>,
    /// Tools that the client runs.
    pub(crate) tools: Vec<ClientTool>,
    pub(crate) options: Options,
}

/// A tool that the client runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ClientTool {
    pub(crate) name: String,
    pub(crate) description: String,
    /// JSON Schema of the arguments, as JSON.
    pub(crate) schema: String,
}

/// What a request overrides.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Options {
    pub(crate) max_tokens: Option<u64>,
    pub(crate) temperature: Option<f64>,
    /// As OpenAI's API takes it.
    pub(crate) response_format: Option<Value>,
}

/// What a turn came to.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) response: Response,
    /// The calls of the client's own tools, which it is to run.
    pub(crate) calls: Vec<ToolCall>,
}

/// The last turn of a stored conversation.
pub(crate) enum Last {
    Unknown,
    Running,
    Over(Box<Response>),
}

/// Runs turns for the endpoint.
pub(crate) trait Turns: Send + Sync {
    /// The names that a client may ask for, besides `bantam`.
    fn models(&self) -> Vec<String>;

    /// Fails if no turn can begin: an unknown model, no key.
    fn check(&self, ask: &Ask) -> Result<()>;

    /// Runs a turn to its end. One of a stored conversation is resumed at the next start if the program dies meanwhile.
    fn run(&self, ask: Ask, cancel: &Cancel, events: &(dyn Fn(Event) + Sync)) -> Answer;

    /// The last turn of the conversation with this key.
    fn last(&self, key: &str) -> Result<Last>;
}

/// Where and for whom to serve.
pub(crate) struct Settings {
    pub(crate) listen: SocketAddr,
    pub(crate) token: Secret,
    pub(crate) allow_origin: String,
}

impl Settings {
    /// Reads `channels.http`.
    pub(crate) fn new(listen: &str, token: Secret, allow_origin: &str) -> Result<Self> {
        let address: SocketAddr =
            listen
                .replace("localhost:", "127.0.0.1:")
                .parse()
                .map_err(|_| {
                    Error::config(format!(
                        "channels.http.listen: \"{listen}\" is not ADDRESS:PORT"
                    ))
                    .hint("for example 127.0.0.1:7475")
                })?;
        if token.is_empty() && !address.ip().is_loopback() {
            let text = format!(
                "channels.http.listen: {address} can be reached from other machines, and there is no token"
            );
            return Err(Error::config(text).hint(
                "set channels.http.token (bantam onboard http makes one), or listen on 127.0.0.1",
            ));
        }
        if !token.is_empty() && token.reveal().len() < 12 {
            return Err(
                Error::config("channels.http.token has fewer than 12 characters")
                    .hint("bantam onboard http makes one"),
            );
        }
        Ok(Self {
            listen: address,
            token,
            allow_origin: allow_origin.to_owned(),
        })
    }

    /// What the user should know about these settings.
    pub(crate) fn warning(&self) -> Option<String> {
        let ip = self.listen.ip();
        (!ip.is_loopback()).then(|| {
            let listen = self.listen;
            format!("channels.http listens on {listen}, and what goes over it is not encrypted")
        })
    }
}

/// The listening endpoint. Dropping it closes the address; turns under way go on until they are cancelled.
pub(crate) struct Endpoint {
    listener: Arc<TcpListener>,
}

struct Shared {
    access: Access,
    turns: Arc<dyn Turns>,
    /// Ends all turns.
    cancel: Cancel,
    log: Sink,
    connections: AtomicUsize,
    running: Mutex<usize>,
    freed: Condvar,
    /// Makes the ids of completions.
    counter: AtomicU64,
}

impl Endpoint {
    /// Takes the address and serves it.
    pub(crate) fn start(
        settings: Settings,
        turns: Arc<dyn Turns>,
        cancel: Cancel,
        log: Sink,
    ) -> Result<Self> {
        let address = settings.listen;
        let listener = TcpListener::bind(address)
            .doing(format!("listening on {address}"))
            .map_err(|e| e.hint("another program has the address, or it is not this machine's: change channels.http.listen"))?;
        let listener = Arc::new(listener);
        let shared = Arc::new(Shared {
            access: Access::new(settings.token, &settings.allow_origin),
            turns,
            cancel,
            log,
            connections: AtomicUsize::default(),
            running: Mutex::default(),
            freed: Condvar::new(),
            counter: AtomicU64::default(),
        });
        let own_listener = listener.clone();
        Builder::new()
            .name("http".to_owned())
            .spawn(move || accept_loop(&own_listener, &shared))
            .doing("starting a thread")?;
        Ok(Self { listener })
    }

    /// The address, with the port that was taken for port 0.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // This wakes `accept`.
        let _closed = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
    }
}

fn accept_loop(listener: &TcpListener, shared: &Arc<Shared>) {
    while shared.cancel.why().is_none() {
        if shared.connections.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
            // The kernel keeps those who wait.
            thread::sleep(PAUSE);
            continue;
        }
        match listener.accept() {
            Ok((stream, peer)) => {
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let own = Connection {
                    shared: shared.clone(),
                    stream,
                    peer,
                };
                // Without a thread the connection just closes.
                drop(
                    Builder::new()
                        .name("http".to_owned())
                        .spawn(move || own.serve()),
                );
            }
            // The listener was shut down.
            Err(e) if e.kind() == ErrorKind::InvalidInput => return,
            // Without a free descriptor, trying again at once would spin.
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

impl Shared {
    fn running(&self) -> MutexGuard<'_, usize> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place among the turns that run.
    fn permit(self: &Arc<Self>) -> Result<Permit, Refusal> {
        let until = Instant::now() + MAX_WAIT;
        let mut running = self.running();
        while *running >= MAX_TURNS {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = "as many turns run as may run at once";
                return Err(Refusal::new(429, why).code("queue_full").retry_after(5));
            }
            running = self
                .freed
                .wait_timeout(running, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        *running += 1;
        Ok(Permit(self.clone()))
    }
}

/// A place among the turns that run.
struct Permit(Arc<Shared>);

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.running() -= 1;
        self.0.freed.notify_one();
    }
}

struct Connection {
    shared: Arc<Shared>,
    stream: TcpStream,
    peer: SocketAddr,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    /// Serves the one request of this connection. A client that is gone gets nothing, and nobody is told.
    fn serve(self) {
        drop(self.stream.set_nodelay(true));
        drop(self.stream.set_write_timeout(Some(response::WRITE_TIME)));
        let connections = self.shared.connections.load(Ordering::Relaxed);
        let mut reader = Reader::new(&self.stream, connections > MAX_CONNECTIONS / 2);
        let mut responder = Responder::new(&self.stream);
        let served = match reader.head() {
            Ok(None) => return,
            Ok(Some(head)) => {
                responder.is_chunked = !head.is_http_1_0;
                responder.is_head = head.method == "HEAD";
                self.answer(&head, &mut reader, &mut responder)
            }
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = served {
            let text = format!("{}: {} {}", self.peer.ip(), refusal.status, refusal.why);
            (self.shared.log)(Level::Debug, &text);
            drop(responder.refuse(&refusal));
        }
        drop(self.stream.shutdown(Shutdown::Both));
    }

    fn answer(
        &self,
        head: &Head,
        reader: &mut Reader,
        responder: &mut Responder,
    ) -> Result<(), Refusal> {
        let access = &self.shared.access;
        access.check_site(head)?;
        responder.origin = head.header("origin").unwrap_or_default().to_owned();
        let path = head.path.as_str();
        let is_read = matches!(head.method.as_str(), "GET" | "HEAD");
        match (head.method.as_str(), path) {
            ("OPTIONS", _) => return Ok(responder.preflight()?),
            (_, "/health") if is_read => {
                return Ok(responder.json(200, &json!({"status": "ok"}), &[])?);
            }
            _ => {}
        }
        access.check_token(head, self.peer)?;
        match path {
            "/v1/chat/completions" if head.method == "POST" => {
                self.complete(head, reader, responder)
            }
            "/v1/models" if is_read => Ok(responder.json(200, &self.models(), &[])?),
            "/health" | "/v1/chat/completions" | "/v1/models" => Err(Refusal::new(
                405,
                format!("{path} does not take {}", head.method),
            )),
            _ if is_read => match path.strip_prefix("/v1/") {
                Some(rest) => self.read(rest, responder),
                None => Err(unknown(path)),
            },
            _ => Err(unknown(path)),
        }
    }

    /// Answers GET of `/v1/models/NAME` and `/v1/sessions/KEY/last`.
    fn read(&self, rest: &str, responder: &Responder) -> Result<(), Refusal> {
        if let Some(name) = rest.strip_prefix("models/") {
            let name = percent_decoded(name);
            let names = self.models();
            let found = names["data"].as_array().into_iter().flatten();
            let found = found.into_iter().find(|model| model["id"] == name);
            return match found {
                Some(model) => Ok(responder.json(200, model, &[])?),
                None => {
                    Err(Refusal::new(404, format!("there is no model {name}"))
                        .code("model_not_found"))
                }
            };
        }
        let key = rest
            .strip_prefix("sessions/")
            .and_then(|rest| rest.strip_suffix("/last"))
            .ok_or_else(|| unknown(rest))?;
        let key = chat::session_key(&percent_decoded(key))?;
        let last = self
            .shared
            .turns
            .last(&key)
            .map_err(|e| chat::refusal(&e))?;
        match last {
            Last::Unknown => {
                Err(Refusal::new(404, format!("there is no conversation {key}")).code("not_found"))
            }
            Last::Running => {
                let body =
                    json!({"object": "chat.completion", "status": "running", "session": key});
                Ok(responder.json(202, &body, &[("Retry-After", "2")])?)
            }
            Last::Over(response) => match &response.error {
                Some(e) if response.output.is_empty() => Err(chat::refusal(e)),
                _ => {
                    let completion = self.completion(chat::MODEL);
                    let mut body = completion.whole(&response, &[]);
                    body["status"] = "done".into();
                    body["session"] = key.into();
                    Ok(responder.json(200, &body, &[])?)
                }
            },
        }
    }

    fn models(&self) -> Value {
        let mut names = vec![chat::MODEL.to_owned()];
        names.extend(self.shared.turns.models());
        let model = |name: &String| json!({"id": name, "object": "model", "created": 0, "owned_by": "bantam"});
        json!({"object": "list", "data": names.iter().map(model).collect::<Value>()})
    }

    fn completion(&self, model: &str) -> Completion {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let number = self.shared.counter.fetch_add(1, Ordering::Relaxed);
        Completion {
            id: format!("chatcmpl-{:x}{number:04x}", now.as_micros()),
            created: now.as_secs(),
            model: model.to_owned(),
        }
    }

    /// Runs a turn and answers with it.
    fn complete(
        &self,
        head: &Head,
        reader: &mut Reader,
        responder: &Responder,
    ) -> Result<(), Refusal> {
        // A form of a web page cannot send this type without a preflight.
        let kind = head.header("content-type").unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(Refusal::new(415, "send the body as application/json"));
        }
        if !head.has_body() {
            return Err(Refusal::new(400, "the request has no body"));
        }
        let body = reader.body(head)?;
        let request = chat::parse(&body, head.header("x-session"))?;
        drop(body);
        let turns = &self.shared.turns;
        turns.check(&request.ask).map_err(|e| match e.kind {
            Kind::Usage => Refusal::of_param("tools", e.message),
            Kind::Config if request.ask.model.is_some() => Refusal {
                param: Some("model".to_owned()),
                ..Refusal::new(404, e.message).code("model_not_found")
            },
            _ => chat::refusal(&e),
        })?;
        let permit = self.shared.permit()?;
        if self.shared.cancel.why().is_some() {
            return Err(Refusal::new(503, "bantam is ending").retry_after(5));
        }
        let served = self.run(request, responder);
        drop(permit);
        served
    }

    fn run(&self, request: ChatRequest, responder: &Responder) -> Result<(), Refusal> {
        let ChatRequest {
            ask,
            stream,
            include_usage,
            include_progress,
        } = request;
        let form = match (stream, include_progress) {
            (false, _) => Form::Whole,
            (true, false) => Form::Stream,
            (true, true) => Form::StreamWithProgress,
        };
        let completion = self.completion(ask.model.as_deref().unwrap_or(chat::MODEL));
        let is_kept = ask.session.is_some();
        let cancel = Cancel::new(None);
        let output = Mutex::new(Output {
            responder,
            completion: &completion,
            stream: None,
            form,
            is_gone: false,
            after_progress: false,
        });
        let is_over = AtomicUsize::new(0);
        let answer = thread::scope(|scope| {
            let watch = || {
                self.watch_client(&output, &is_over);
                if !is_kept && is_over.load(Ordering::SeqCst) == 0 {
                    cancel.stop();
                }
            };
            // Without a thread, a client that hangs up is noticed when something is sent to it.
            let watcher = Builder::new()
                .name("http".to_owned())
                .spawn_scoped(scope, watch);
            let answer = self.shared.turns.run(ask, &cancel, &|event| {
                let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
                output.show(&event);
                if output.is_gone && !is_kept {
                    cancel.stop();
                }
            });
            is_over.store(1, Ordering::SeqCst);
            // This wakes the watcher; what the client sends from now on does not matter.
            drop(self.stream.shutdown(Shutdown::Read));
            drop(watcher.map(thread::ScopedJoinHandle::join));
            answer
        });
        let output = output.into_inner().unwrap_or_else(PoisonError::into_inner);
        output.finish(&answer, include_usage)
    }

    /// Returns when the client has hung up or the turn is over. Meanwhile it keeps a stream alive.
    fn watch_client(&self, output: &Mutex<Output>, is_over: &AtomicUsize) {
        let mut stream = &self.stream;
        let mut piece = [0; 512];
        drop(stream.set_read_timeout(Some(KEEP_ALIVE)));
        while is_over.load(Ordering::SeqCst) == 0 {
            match stream.read(&mut piece) {
                // A client has nothing to say after its request.
                Ok(1..) => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
                    output.comment("working");
                    if output.is_gone {
                        return;
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return,
            }
        }
    }
}

fn unknown(path: &str) -> Refusal {
    Refusal::new(404, format!("there is nothing at {path}")).code("not_found")
}

fn percent_decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text)
        .decode_utf8_lossy()
        .into_owned()
}

/// How the client wants its answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Whole,
    Stream,
    /// With tool activity and thoughts as `reasoning_content`.
    StreamWithProgress,
}

/// What a client sees of a turn.
struct Output<'a> {
    responder: &'a Responder<'a>,
    completion: &'a Completion,
    /// Begun with the first event, so that a turn which fails before has an HTTP status.
    stream: Option<EventStream<'a>>,
    form: Form,
    /// Writing to the client failed.
    is_gone: bool,
    /// The text so far came beside tool calls.
    after_progress: bool,
}

impl<'a> Output<'a> {
    fn show(&mut self, event: &Event) {
        match event {
            Event::Delta(text) => {
                if std::mem::take(&mut self.after_progress) {
                    self.delta(&json!({"content": "\n\n"}));
                }
                self.delta(&json!({"content": text}));
            }
            Event::Thought(text) if self.form == Form::StreamWithProgress => {
                self.delta(&json!({"reasoning_content": text}));
            }
            Event::Progress(text) => self.after_progress |= !text.trim().is_empty(),
            Event::ToolStarted { summary } if self.form == Form::StreamWithProgress => {
                self.delta(&json!({"reasoning_content": format!("{summary}\n")}));
            }
            Event::ToolStarted { summary } => self.comment(summary),
            Event::Notice(text) | Event::Warning(text) => self.comment(text),
            _ => {}
        }
    }

    fn delta(&mut self, delta: &Value) {
        let piece = self.completion.piece(delta).to_string();
        self.write(|stream| stream.data(&piece));
    }

    fn comment(&mut self, line: &str) {
        self.write(|stream| stream.comment(line));
    }

    /// Writes to the stream, which begins with this if it has not begun.
    fn write(&mut self, write: impl FnOnce(&mut EventStream) -> io::Result<()>) {
        if self.form == Form::Whole || self.is_gone {
            return;
        }
        let begun = match self.stream.take() {
            Some(stream) => Ok(stream),
            None => self.begin(),
        };
        let written = begun.and_then(|mut stream| {
            write(&mut stream)?;
            Ok(stream)
        });
        match written {
            Ok(stream) => self.stream = Some(stream),
            Err(_) => self.is_gone = true,
        }
    }

    fn begin(&self) -> io::Result<EventStream<'a>> {
        let mut stream = self.responder.events()?;
        let first = json!({"role": "assistant", "content": ""});
        stream.data(&self.completion.piece(&first).to_string())?;
        Ok(stream)
    }

    /// Sends what is left: the whole response, or the end of the stream.
    fn finish(mut self, answer: &Answer, include_usage: bool) -> Result<(), Refusal> {
        let Answer { response, calls } = answer;
        let failed = response.error.as_ref().filter(|e| {
            // A turn that a limit ended may still have an answer.
            e.kind != Kind::Limit || response.output.is_empty() || response.partial
        });
        if self.is_gone {
            return Ok(());
        }
        if let (Some(e), None) = (failed, &self.stream) {
            return Err(Refusal {
                has_acted: response.steps > 0,
                ..chat::refusal(e)
            });
        }
        if self.form == Form::Whole {
            let body = self.completion.whole(response, calls);
            return Ok(self.responder.json(200, &body, &[])?);
        }
        if let Some(e) = failed {
            let error = chat::refusal(e).body().to_string();
            self.write(|stream| stream.data(&error));
        } else {
            let last = self.completion.last_piece(response, calls).to_string();
            self.write(|stream| stream.data(&last));
            if include_usage {
                let usage = self.completion.usage_piece(response).to_string();
                self.write(|stream| stream.data(&usage));
            }
        }
        self.write(|stream| stream.data("[DONE]"));
        Ok(self.stream.take().map_or(Ok(()), EventStream::end)?)
    }
}
