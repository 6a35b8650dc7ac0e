//! One connection: a request comes in, and what it asks for goes out.

use std::io::{ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Builder};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::chat::{self, ChatRequest, Completion};
use super::output::{Form, Output};
use super::request::{Head, Reader};
use super::response::{self, Refusal, Responder};
use super::room::Guest;
use super::{Last, Shared};
use crate::cancel::Cancel;
use crate::error::Kind;
use crate::log::Level;

/// A stream that is silent for so long gets a comment, so that nothing on its way closes it.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) stream: Arc<TcpStream>,
    pub(super) peer: SocketAddr,
    pub(super) guest: Guest,
}

impl Connection {
    /// Serves the one request of this connection. A client that is gone gets nothing, and nobody is told.
    pub(super) fn serve(self) {
        drop(self.stream.set_nodelay(true));
        drop(self.stream.set_write_timeout(Some(response::WRITE_TIME)));
        let mut reader = Reader::new(&self.stream);
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
        self.guest.is_known();
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
        if self.shared.cancel.reason().is_some() {
            return Err(Refusal::new(503, "bantam is shutting down").retry_after(5));
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
        let output = Mutex::new(Output::new(responder, &completion, form));
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
        let mut stream = &*self.stream;
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
