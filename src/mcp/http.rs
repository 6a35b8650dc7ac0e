//! A remote server over streamable HTTP. Each message is a POST; the response is one JSON message, or a stream of events that
//! ends with it. An interrupted stream is not resumed, so its call fails.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Failure, STATELESS_REVISION, Transport, client_info, is_answer, reply_to};
use super::{CALL, MAX_MESSAGE, parse, too_long};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::http::{Body, Client, Exchange, Head, Outgoing, Settings};
use crate::secret::Secret;
use crate::sse::Decoder;
use crate::sync;
use crate::text::to_single_line;

/// Time limit for a reply to a server's request.
const REPLY: Duration = Duration::from_secs(2);
/// Fields of `_meta` in a stateless request (<https://modelcontextprotocol.io/specification/2026-07-28/basic/index#meta>).
const META_REVISION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CLIENT: &str = "io.modelcontextprotocol/clientInfo";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// Maximum size of an error's body, in bytes.
const MAX_ERROR: usize = 64 << 10;

/// Address of a server.
#[derive(Clone)]
pub(crate) struct Remote {
    pub settings: Settings,
    pub url: String,
    pub headers: Vec<(String, Secret)>,
}

/// Transport to a URL.
pub(super) struct Http {
    client: Client,
    remote: Remote,
    /// See [`reply_to`].
    is_outdated: Arc<AtomicBool>,
    session: Mutex<Session>,
}

/// Result of the handshake.
#[derive(Default)]
struct Session {
    id: Option<String>,
    revision: Option<String>,
}

impl Http {
    pub(super) fn new(remote: &Remote, is_outdated: Arc<AtomicBool>) -> Self {
        Self {
            client: Client::new(remote.settings.clone()),
            remote: remote.clone(),
            is_outdated,
            session: Mutex::default(),
        }
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        sync::lock(&self.session)
    }

    fn outgoing(&self, message: &Value) -> Outgoing {
        let mut headers = self.remote.headers.clone();
        let mut add = |name: &str, value: &str| headers.push((name.to_owned(), Secret::new(value)));
        add("accept", "application/json, text/event-stream");
        let session = self.session();
        if let Some(id) = &session.id {
            add("mcp-session-id", id);
        }
        if let Some(revision) = &session.revision {
            add("mcp-protocol-version", revision);
        }
        let mut message = message.clone();
        if session.revision.as_deref() == Some(STATELESS_REVISION) {
            add("mcp-method", message["method"].as_str().unwrap_or_default());
            if let Some(name) = message["params"]["name"].as_str() {
                add("mcp-name", name);
            }
            let meta = &mut message["params"]["_meta"];
            meta[META_REVISION] = STATELESS_REVISION.into();
            meta[META_CLIENT] = client_info();
            meta[META_CAPABILITIES] = json!({});
        }
        Outgoing {
            url: self.remote.url.clone(),
            headers,
            body: Some(Body::json(&message)),
        }
    }

    /// Posts a message and returns the head of the response.
    fn post(&self, message: &Value, cancel: &Cancel) -> Result<(Exchange, Head), Failure> {
        let mut exchange = self.client.send(self.outgoing(message), cancel)?;
        let head = exchange.head(CALL)?;
        if let (Some(id), true) = (head.header("mcp-session-id"), head.is_success()) {
            self.session().id = Some(id.to_owned());
        }
        Ok((exchange, head))
    }

    /// Handles the messages of a text. Returns the response to `request`, if it is among them.
    fn find_answer(&self, text: &str, request: &Value, cancel: &Cancel) -> Result<Option<Value>> {
        for message in parse(text)? {
            if is_answer(&message, request) {
                return Ok(Some(message));
            }
            if let (Some(reply), None) = (reply_to(&message, &self.is_outdated), cancel.reason()) {
                self.notify(&reply, &cancel.with_timeout(REPLY));
            }
        }
        Ok(None)
    }

    /// Reads a stream of events until the response arrives.
    fn read_events(&self, mut exchange: Exchange, request: &Value) -> Result<Value, Failure> {
        let mut decoder = Decoder::new(MAX_MESSAGE);
        loop {
            let piece = exchange.body(CALL)?;
            let events = match &piece {
                Some(piece) => decoder.push(piece).map_err(|_| too_long())?,
                None => decoder.finish().collect(),
            };
            for event in events {
                if let Some(answer) = self.find_answer(&event, request, &exchange.cancel)? {
                    return Ok(answer);
                }
            }
            if piece.is_none() {
                return Err(Failure::failed("its stream ended before the answer"));
            }
        }
    }

    /// Returns the JSON-RPC error in the body of a failed response, or an error for its status.
    fn read_error(&self, mut exchange: Exchange, head: &Head) -> Result<Value, Failure> {
        match head.status {
            404 if self.session().id.is_some() => return Err(Failure::NoSession),
            300..=399 => {
                let target = head.header("location").unwrap_or("another address");
                let target = to_single_line(target, 1_000);
                let what = format!("redirected to {target}: put the new address into its entry");
                return Err(Failure::failed(what));
            }
            401 | 403 | 405 => return Err(Failure::Status(head.status, String::new())),
            _ => {}
        }
        let body = exchange.whole_body(MAX_ERROR, Instant::now() + CALL)?;
        let text = String::from_utf8_lossy(&body);
        // Many servers answer like this to the id of a session that they have lost, although 404 is prescribed.
        if head.status == 400 && text.contains("ession") && self.session().id.is_some() {
            return Err(Failure::NoSession);
        }
        let mut messages = parse(&text).unwrap_or_default().into_iter();
        let error = messages.find(|message| message["error"]["code"].is_i64());
        error.ok_or_else(|| Failure::Status(head.status, text.into_owned()))
    }
}

impl Transport for Http {
    fn request(&self, request: &Value, cancel: &Cancel) -> Result<Value, Failure> {
        let (mut exchange, head) = self.post(request, cancel)?;
        if !head.is_success() {
            return self.read_error(exchange, &head);
        }
        let kind = head.header("content-type").unwrap_or_default();
        if kind.contains("text/event-stream") {
            return self.read_events(exchange, request);
        }
        let body = exchange.whole_body(MAX_MESSAGE, Instant::now() + CALL)?;
        if body.len() > MAX_MESSAGE {
            return Err(too_long().into());
        }
        let said = Some(body.trim_ascii()).filter(|said| !said.is_empty());
        let text = String::from_utf8_lossy(said.unwrap_or(b"empty response"));
        let answer = self.find_answer(&text, request, cancel)?;
        answer.ok_or_else(|| Failure::Status(head.status, text.into_owned()))
    }

    fn notify(&self, message: &Value, cancel: &Cancel) {
        drop(self.post(message, cancel));
    }

    fn set_revision(&self, revision: &str) -> bool {
        self.session().revision = Some(revision.to_owned());
        true
    }
}
