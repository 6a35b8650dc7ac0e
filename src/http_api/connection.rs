//! Handles one connection: reads a request, and sends the response.

use std::io::{ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, Builder};
use std::time::Duration;

use serde_json::{Value, json};

use super::access::{WRONG_TOKEN_DELAY, check_site, check_token};
use super::chat::{self, ChatRequest, Completion, WantedStream};
use super::request::{Head, Reader};
use super::response::{Refusal, Responder};
use super::room::Permit;
use super::{EndpointSettings, HttpServer};
use crate::bus::{Event, Response, TurnStop};
use crate::cancel::Cancel;
use crate::error::Kind;
use crate::log::Level;
use crate::message::ToolCall;
use crate::sync;

/// Interval after which a stream sends an empty comment, so that proxies do not close it while tools run.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Serves the only request of a connection. Write errors of disconnected clients are ignored.
pub(super) fn serve(server: &HttpServer, stream: &Arc<TcpStream>) {
    let mut connection = Connection {
        server,
        stream,
        responder: Responder::new(stream),
        permit: None,
    };
    if let Err(refusal) = connection.answer() {
        let peer = stream.peer_addr().map(|peer| peer.ip().to_string());
        let peer = peer.unwrap_or_default();
        let text = format!("{peer}: {} {}", refusal.status, refusal.why);
        (server.endpoint.log)(Level::Debug, &text);
        drop(connection.responder.refuse(&refusal));
    }
    drop(stream.shutdown(Shutdown::Both));
    server.connections.remove(stream);
}

struct Connection<'a> {
    server: &'a HttpServer,
    stream: &'a Arc<TcpStream>,
    responder: Responder<'a>,
    /// Delays the end of the program until the client has the answer, or the reason why there is none.
    permit: Option<Permit<'a>>,
}

impl Connection<'_> {
    fn answer(&mut self) -> Result<(), Refusal> {
        let mut reader = Reader::new(self.stream);
        let head = reader.head()?;
        let settings = &self.server.endpoint.settings;
        self.responder.is_chunked = !head.is_http_1_0;
        check_site(&head, &settings.allow_origin)?;
        self.responder.origin = head.header("origin").unwrap_or_default().to_owned();
        // Clients disagree on the format of the base address.
        let parts = head.path.split('/');
        let path: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
        let path = path.strip_prefix(&["v1"]).unwrap_or(&path);
        match (head.method.as_str(), path) {
            ("OPTIONS", _) => return Ok(self.responder.preflight()?),
            ("GET", ["health"]) => {
                return Ok(self.responder.json(200, &json!({"status": "ok"}), "")?);
            }
            _ => {}
        }
        if let Err(refusal) = check_token(&head, &settings.token) {
            thread::sleep(WRONG_TOKEN_DELAY);
            return Err(refusal);
        }
        if !self.server.connections.authorize(self.stream) {
            // The connection was closed to make room for another one.
            return Ok(());
        }
        match (head.method.as_str(), path) {
            ("POST", ["chat", "completions"]) => self.complete(reader, &head),
            ("GET", ["models"]) => Ok(self.responder.json(200, &models(settings), "")?),
            (method, _) => {
                let served = "served are POST /v1/chat/completions, GET /v1/models and GET /health";
                let why = format!("there is no {method} {}; {served}", head.path);
                Err(Refusal::new(404, why).code("not_found"))
            }
        }
    }

    /// Reads the question, runs its turn and sends the answer.
    fn complete(&mut self, reader: Reader, head: &Head) -> Result<(), Refusal> {
        // A web form cannot send this content type without a preflight.
        let kind = head.header("content-type").unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(Refusal::new(415, "send the body as application/json"));
        }
        let permit = self.permit.insert(self.server.room.permit(head.length)?);
        let body = reader.body(head)?;
        permit.take_values(chat::memory_of_values(&body))?;
        let request = ChatRequest::parse(&body, head.header("x-session"))?;
        drop(body);
        let cancel = permit.cancel.clone();
        if self.is_ending() {
            return Err(ending());
        }
        self.run(request, &cancel)
    }

    fn is_ending(&self) -> bool {
        self.server.endpoint.cancel.reason().is_some()
    }

    fn run(&self, mut request: ChatRequest, cancel: &Cancel) -> Result<(), Refusal> {
        let output = Mutex::new(Output {
            responder: &self.responder,
            completion: Completion::new(request.model.as_deref()),
            stream: request.stream.take(),
            is_begun: false,
            is_gone: false,
        });
        let answer = thread::scope(|scope| {
            // Without this thread, a disconnected client is detected by the next write.
            let watcher = Builder::new().name("http".to_owned());
            let watcher = watcher.spawn_scoped(scope, || {
                if self.is_client_gone(&output) {
                    cancel.stop();
                }
            });
            let answer = (self.server.endpoint.turn)(request, cancel, &|event| {
                if sync::lock(&output).show(event) {
                    cancel.stop();
                }
            });
            // Ends the watcher; further input of the client does not matter.
            drop(self.stream.shutdown(Shutdown::Read));
            drop(watcher.map(thread::ScopedJoinHandle::join));
            answer
        });
        let is_stopped = |(response, _): &(Response, _)| response.stop == TurnStop::Cancelled;
        let answer = match answer {
            Ok(answer) if is_stopped(&answer) && self.is_ending() => Err(ending()),
            answer => answer,
        };
        sync::into_inner(output).finish(answer)
    }

    /// Returns whether the client has disconnected, or `false` once the turn has ended. Until then, sends comments to a stream.
    fn is_client_gone(&self, output: &Mutex<Output>) -> bool {
        let mut stream: &TcpStream = self.stream;
        drop(stream.set_read_timeout(Some(KEEP_ALIVE)));
        loop {
            match stream.read(&mut [0; 512]) {
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    let mut output = sync::lock(output);
                    output.write(":\n\n");
                    if output.is_gone {
                        return true;
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return true,
                // Input after the request is ignored.
                Ok(_) => {}
            }
        }
    }
}

/// What a turn sends to its client.
struct Output<'a> {
    responder: &'a Responder<'a>,
    completion: Completion,
    /// Options of the stream; `None` for a whole answer.
    stream: Option<WantedStream>,
    /// Whether the stream has begun: at the first event, so that a turn which fails earlier has an HTTP status.
    is_begun: bool,
    /// Whether writing to the client has failed.
    is_gone: bool,
}

impl Output<'_> {
    /// Shows an event in a stream. Returns whether the client is gone.
    fn show(&mut self, event: Event) -> bool {
        let options = self.stream.as_ref();
        let with_progress = options.is_some_and(|options| options.include_progress);
        if let Some((field, text)) = chat::delta(event, with_progress) {
            let chunk = self.completion.chunk(&json!({field: text}));
            self.write_data(&chunk);
        }
        self.is_gone
    }

    fn write_data(&mut self, data: &Value) {
        self.write(&format!("data: {data}\n\n"));
    }

    /// Writes to the stream, after starting it if necessary.
    fn write(&mut self, text: &str) {
        if self.stream.is_none() || self.is_gone {
            return;
        }
        let is_begun = std::mem::replace(&mut self.is_begun, true);
        let begun = if is_begun { Ok(()) } else { self.begin() };
        let written = begun.and_then(|()| self.responder.event(text));
        self.is_gone = written.is_err();
    }

    fn begin(&self) -> std::io::Result<()> {
        self.responder.begin_events()?;
        let first = json!({"role": "assistant", "content": ""});
        let first = self.completion.chunk(&first);
        self.responder.event(&format!("data: {first}\n\n"))
    }

    /// Sends the whole response, or the end of the stream.
    fn finish(mut self, answer: Result<(Response, Vec<ToolCall>), Refusal>) -> Result<(), Refusal> {
        let answer = answer.and_then(|(response, calls)| match &response.error {
            // A turn that ended at a limit may still have an answer.
            Some(e) if e.kind != Kind::Limit || response.output.is_empty() || response.partial => {
                Err(Refusal {
                    has_acted: response.steps > 0,
                    ..e.clone().into()
                })
            }
            _ => Ok((response, calls)),
        });
        match (answer, &self.stream) {
            (Err(refusal), _) if !self.is_begun => return Err(refusal),
            (Err(refusal), _) => self.write_data(&refusal.body()),
            (Ok((response, calls)), None) => {
                let body = self.completion.whole(&response, &calls);
                return Ok(self.responder.json(200, &body, "")?);
            }
            (Ok((response, calls)), Some(options)) => {
                let mut chunks = self.completion.last_chunks(&response, &calls);
                if !options.include_usage {
                    chunks.pop();
                }
                for chunk in chunks {
                    self.write_data(&chunk);
                }
            }
        }
        self.write("data: [DONE]\n\n");
        Ok(self.responder.end_events()?)
    }
}

fn models(settings: &EndpointSettings) -> Value {
    let model =
        |name: &String| json!({"id": name, "object": "model", "created": 0, "owned_by": "bantam"});
    json!({"object": "list", "data": settings.models.iter().map(model).collect::<Value>()})
}

fn ending() -> Refusal {
    Refusal::new(503, "bantam is shutting down").retry_after(5)
}
