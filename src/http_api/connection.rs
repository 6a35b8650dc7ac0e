//! Handles one connection: reads a request, and sends the response.

use std::io::{ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::{self, Builder};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::Shared;
use super::access::WRONG_TOKEN_DELAY;
use super::chat::{self, ChatRequest, Completion};
use super::connections::Slot;
use super::output::{Form, Output};
use super::request::{Head, Reader};
use super::response::{self, Refusal, Responder};
use crate::bus::TurnStop;
use crate::cancel::Cancel;
use crate::error::Kind;
use crate::log::Level;
use crate::sync;

/// Interval without events after which a stream sends an empty comment.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) stream: Arc<TcpStream>,
    pub(super) peer: SocketAddr,
    pub(super) slot: Slot,
}

/// Paths of the endpoint, in the format of [`plain_path`].
const HEALTH: &str = "/health";
const MODELS: &str = "/models";
const COMPLETIONS: &str = "/chat/completions";

/// Removes empty segments and a leading `v1` from a path, because clients disagree on the format of the base address.
fn plain_path(path: &str) -> String {
    let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
    parts.next_if_eq(&"v1");
    let mut plain = String::new();
    for part in parts {
        plain.push('/');
        plain.push_str(part);
    }
    plain
}

/// Returns the error message for an unknown path.
fn describe_unknown_path(path: &str) -> String {
    if plain_path(path) == "/responses" {
        return "the Responses API is not served: use /v1/chat/completions".to_owned();
    }
    format!("there is nothing at {path}; served are /v1/chat/completions, /v1/models and /health")
}

impl Connection {
    /// Serves the only request of this connection. Write errors of disconnected clients are ignored.
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
            self.refuse(&responder, &refusal);
        }
        drop(self.stream.shutdown(Shutdown::Both));
    }

    fn refuse(&self, responder: &Responder, refusal: &Refusal) {
        let text = format!("{}: {} {}", self.peer.ip(), refusal.status, refusal.why);
        (self.shared.log)(Level::Debug, &text);
        drop(responder.refuse(refusal));
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
        let path = plain_path(&head.path);
        let path = path.as_str();
        let is_read = matches!(head.method.as_str(), "GET" | "HEAD");
        match (head.method.as_str(), path) {
            ("OPTIONS", _) => return Ok(responder.preflight()?),
            (_, HEALTH) if is_read => {
                return Ok(responder.json(200, &json!({"status": "ok"}), &[])?);
            }
            _ => {}
        }
        if let Err(refusal) = access.check_token(head) {
            self.slot.wait(WRONG_TOKEN_DELAY);
            return Err(refusal);
        }
        if !self.slot.authorize() {
            // The connection was closed to make room for another one.
            return Ok(());
        }
        match path {
            COMPLETIONS if head.method == "POST" => self.complete(head, reader, responder),
            MODELS if is_read => Ok(responder.json(200, &self.models(), &[])?),
            HEALTH | COMPLETIONS | MODELS => Err(Refusal::new(
                405,
                format!("{path} does not take {}", head.method),
            )),
            _ => {
                let refusal = Refusal::new(404, describe_unknown_path(&head.path));
                Err(refusal.code("not_found"))
            }
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

    /// Runs a turn and sends its answer.
    fn complete(
        &self,
        head: &Head,
        reader: &mut Reader,
        responder: &Responder,
    ) -> Result<(), Refusal> {
        // A web form cannot send this content type without a preflight.
        let kind = head.header("content-type").unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(Refusal::new(415, "send the body as application/json"));
        }
        if !head.has_body() {
            return Err(Refusal::new(400, "the request has no body"));
        }
        if self.is_shutting_down() {
            return Err(shutting_down());
        }
        let cancel = Cancel::new(None);
        let permit = self.shared.permit(&cancel, head.body_size())?;
        if let Err(refusal) = self.complete_with(head, reader, responder, &cancel) {
            // The permit delays the end of the program until the client has received the reason.
            self.refuse(responder, &refusal);
        }
        drop(permit);
        Ok(())
    }

    /// Handles the request after it has a permit.
    fn complete_with(
        &self,
        head: &Head,
        reader: &mut Reader,
        responder: &Responder,
        cancel: &Cancel,
    ) -> Result<(), Refusal> {
        let body = reader.body(head)?;
        let request = chat::parse(&body, head.header("x-session"))?;
        drop(body);
        let turns = &self.shared.turns;
        if let Some(model) = &request.ask.model {
            turns.choose(model).map_err(|e| match e.kind {
                Kind::Usage => Refusal {
                    param: Some("model".to_owned()),
                    ..Refusal::new(
                        404,
                        format!("{}; {}", e.message, e.hint.unwrap_or_default()),
                    )
                    .code("model_not_found")
                },
                _ => chat::refusal(&e),
            })?;
        }
        turns.check(&request.ask).map_err(|e| match e.kind {
            Kind::Usage => Refusal::of_param("tools", e.message),
            _ => chat::refusal(&e),
        })?;
        if self.is_shutting_down() {
            return Err(shutting_down());
        }
        self.run(request, responder, cancel)
    }

    fn is_shutting_down(&self) -> bool {
        self.shared.cancel.reason().is_some()
    }

    fn run(
        &self,
        request: ChatRequest,
        responder: &Responder,
        cancel: &Cancel,
    ) -> Result<(), Refusal> {
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
        let output = Mutex::new(Output::new(responder, &completion, form));
        let answer = thread::scope(|scope| {
            // Without this thread, a disconnected client is detected by the next write.
            let watcher = Builder::new()
                .name("http".to_owned())
                .spawn_scoped(scope, || self.watch_client(&output, cancel));
            let answer = self.shared.turns.run(ask, cancel, &|event| {
                let mut output = sync::lock(&output);
                output.show(&event);
                if output.is_gone {
                    cancel.stop();
                }
            });
            // Both calls end the watcher; further input of the client does not matter.
            cancel.stop();
            drop(self.stream.shutdown(Shutdown::Read));
            drop(watcher.map(thread::ScopedJoinHandle::join));
            answer
        });
        let output = sync::into_inner(output);
        let is_stopped = answer.response.stop == TurnStop::Cancelled;
        if form == Form::Whole && is_stopped && self.is_shutting_down() {
            return Err(shutting_down());
        }
        output.finish(&answer, include_usage)
    }

    /// Cancels the turn when the client has disconnected. Until then, sends keep-alive comments to a stream.
    fn watch_client(&self, output: &Mutex<Output>, cancel: &Cancel) {
        let mut stream = &*self.stream;
        let mut piece = [0; 512];
        drop(stream.set_read_timeout(Some(KEEP_ALIVE)));
        while cancel.reason().is_none() {
            match stream.read(&mut piece) {
                // Input after the request is ignored.
                Ok(1..) => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    let mut output = sync::lock(output);
                    output.keep_alive();
                    if output.is_gone {
                        cancel.stop();
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => cancel.stop(),
            }
        }
    }
}

fn shutting_down() -> Refusal {
    Refusal::new(503, "bantam is shutting down").retry_after(5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_served_however_a_client_joins_them() {
        for (path, plain) in [
            ("/v1/chat/completions", COMPLETIONS),
            ("/chat/completions", COMPLETIONS),
            ("//v1//chat/completions/", COMPLETIONS),
            ("/v1/models", MODELS),
            ("/models/", MODELS),
            ("/health", HEALTH),
            ("/v1/health", HEALTH),
            ("/v1/models/a%2Fb", "/models/a%2Fb"),
            ("/v1/v1/models", "/v1/models"),
            ("/", ""),
        ] {
            assert_eq!(plain_path(path), plain, "{path}");
        }
        assert!(describe_unknown_path("/v1/responses").contains("/v1/chat/completions"));
        assert!(describe_unknown_path("/v2").contains("/v1/models"));
    }
}
