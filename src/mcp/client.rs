//! The protocol: JSON-RPC 2.0 requests and responses, in the revisions with a handshake and in the stateless one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::list::RemoteTool;
use super::{Definition, MAX_SHOWN, START};
use crate::cancel::{Cancel, CancelReason};
use crate::error::{Error, Kind};
use crate::http::left;
use crate::redact::Redactor;
use crate::text::to_single_line;

/// Newest revision that starts with `initialize`. A server may choose another one, and lists and calls its tools like this.
const HANDSHAKE_REVISION: &str = "2025-11-25";
/// Revision without handshake and session: each request identifies the client.
pub(super) const STATELESS_REVISION: &str = "2026-07-28";

/// Limits of a tool list: number of pages, and of tools.
const MAX_PAGES: usize = 50;
const MAX_TOOLS: usize = 500;
/// Error code of JSON-RPC for an unknown method.
const METHOD_NOT_FOUND: i64 = -32601;
/// Time limit for sending a cancellation, for which the turn waits.
const ABANDON: Duration = Duration::from_millis(100);

/// Transports messages to a server and back.
pub(super) trait Transport: Send + Sync {
    /// Sends a request, and waits for the message with its id.
    fn request(&self, request: &Value, cancel: &Cancel) -> Result<Value, Failure>;

    /// Sends a message without a response.
    fn notify(&self, message: &Value, cancel: &Cancel);

    /// Speaks this revision from now on. Returns whether the transport can.
    fn set_revision(&self, revision: &str) -> bool {
        revision != STATELESS_REVISION
    }

    /// Whether the connection is usable.
    fn is_open(&self) -> bool {
        true
    }

    /// Returns the server's last lines that are not messages.
    fn printed(&self) -> String {
        String::new()
    }
}

/// Reason for a failed request.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server's message of a JSON-RPC error.
    Refused(String),
    /// An HTTP status without a JSON-RPC message, and the body.
    Status(u16, String),
    /// The server has lost the session, and did not run the request.
    NoSession,
    /// No response in time, but maybe text that is not a message.
    Silent(String),
    /// The connection failed, the message was invalid, or the turn ended.
    Other(Error),
}

impl Failure {
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::Other(Error::failed(message))
    }

    /// Converts this to a user's error, without keys, because a server may repeat the keys that it received.
    pub(super) fn into_error(self, of: &Definition) -> Error {
        let short = |text: &str, max| of.redactor.foreign(text, max);
        let mut e = match self {
            Self::Refused(text) => Error::failed(format!("call refused: {}", short(&text, 2_000))),
            Self::NoSession => Error::failed("the session was lost: call again"),
            Self::Silent(said) => {
                let last = if said.is_empty() { "" } else { "; last output:\n" };
                Error::failed(format!("no answer in time{last}{said}"))
            }
            Self::Status(status @ (401 | 403), _) => Error::failed(format!(
                "access refused (status {status}); signing in by OAuth is not supported"
            ))
            .hint(format!(
                "set mcpServers.{}.headers.Authorization to \"Bearer ${{KEY}}\", or use `bantam mcp add --header`",
                of.name
            )),
            Self::Status(405, _) => Error::failed(
                "only the older HTTP+SSE transport: try its newer address, often /mcp instead of /sse",
            ),
            Self::Status(status, body) => {
                let what = format!("status {status}: {}", short(&body, MAX_SHOWN));
                Error::failed(what.trim_end_matches(": "))
            }
            Self::Other(e) => e,
        };
        e.message = of.redactor.redact(e.message);
        e
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(e: E) -> Self {
        Self::Other(e.into())
    }
}

/// Handles a message that is not a response: notes a changed list, and returns the reply to a request of the server. Only pings
/// are supported.
pub(super) fn reply_to(message: &Value, is_outdated: &AtomicBool) -> Option<Value> {
    let method = message["method"].as_str()?;
    let id = &message["id"];
    if id.is_null() {
        let has_changed = method == "notifications/tools/list_changed";
        is_outdated.fetch_or(has_changed, Ordering::SeqCst);
        return None;
    }
    if method == "ping" {
        return Some(json!({"jsonrpc": "2.0", "id": id, "result": {}}));
    }
    let text = format!("{} is not offered here", to_single_line(method, 80));
    let error = json!({"code": METHOD_NOT_FOUND, "message": text});
    Some(json!({"jsonrpc": "2.0", "id": id, "error": error}))
}

/// A connection to a server that has answered.
pub(super) struct Connection {
    transport: Box<dyn Transport>,
    last_id: AtomicU64,
    /// Whether the server may have other tools than its stored list: at its start, and after it announced a change.
    is_outdated: Arc<AtomicBool>,
    /// Whether the server has left a call waiting for its tool list. Calls do not wait again.
    pub is_mute: AtomicBool,
    /// Whether the server has lost the session, or does not answer.
    pub is_lost: AtomicBool,
}

impl Connection {
    /// Connects to a server. If it rejects the handshake, tries the stateless revision.
    pub(super) fn start(
        transport: Box<dyn Transport>,
        is_outdated: Arc<AtomicBool>,
        cancel: &Cancel,
    ) -> Result<Self, Failure> {
        let connection = Self {
            transport,
            last_id: AtomicU64::new(0),
            is_outdated,
            is_mute: AtomicBool::default(),
            is_lost: AtomicBool::default(),
        };
        // The answer of a stateless server to `initialize` is unspecified, except that it is a JSON-RPC error or status 400.
        let refusal = match connection.initialize(cancel) {
            Err(failure @ (Failure::Refused(_) | Failure::Status(400, _))) => failure,
            result => return result.map(|()| connection),
        };
        if !connection.transport.set_revision(STATELESS_REVISION) {
            return Err(refusal);
        }
        let found = connection.request("server/discover", &json!({}), START, cancel);
        found.map(|_| connection).map_err(|_| refusal)
    }

    fn initialize(&self, cancel: &Cancel) -> Result<(), Failure> {
        let params = json!({
            "protocolVersion": HANDSHAKE_REVISION, "capabilities": {}, "clientInfo": client_info()
        });
        let answer = self.request("initialize", &params, START, cancel)?;
        let Some(revision) = answer["protocolVersion"].as_str() else {
            return Err(Failure::failed("no protocol version in its answer"));
        };
        self.transport.set_revision(revision);
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        self.transport.notify(&ready, &cancel.with_timeout(START));
        Ok(())
    }

    pub(super) fn is_open(&self) -> bool {
        self.transport.is_open() && !self.is_lost.load(Ordering::SeqCst)
    }

    /// Whether a call has to list the tools.
    pub(super) fn is_outdated(&self) -> bool {
        self.is_outdated.load(Ordering::SeqCst) && !self.is_mute.load(Ordering::SeqCst)
    }

    /// Lists all tools, page by page.
    pub(super) fn list_tools(
        &self,
        redactor: &Redactor,
        within: Duration,
        cancel: &Cancel,
    ) -> Result<Vec<RemoteTool>, Failure> {
        self.is_outdated.store(false, Ordering::SeqCst);
        let (mut tools, mut params) = (Vec::new(), json!({}));
        let until = Instant::now() + within;
        for _ in 0..MAX_PAGES {
            let page = self.request("tools/list", &params, left(until), cancel)?;
            let Some(found) = page["tools"].as_array() else {
                return Err(Failure::failed("its list of tools is not a list"));
            };
            let read = |tool| RemoteTool::read(tool, redactor);
            tools.extend(found.iter().filter_map(read));
            match page["nextCursor"].as_str() {
                Some(cursor) if tools.len() < MAX_TOOLS => params = json!({"cursor": cursor}),
                _ => break,
            }
        }
        tools.truncate(MAX_TOOLS);
        Ok(tools)
    }

    /// Sends a request, and returns its result.
    pub(super) fn request(
        &self,
        method: &str,
        params: &Value,
        within: Duration,
        cancel: &Cancel,
    ) -> Result<Value, Failure> {
        let id = self.last_id.fetch_add(1, Ordering::SeqCst) + 1;
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let wait = cancel.with_timeout(within);
        let answer = self.transport.request(&request, &wait);
        if answer.is_ok() || wait.reason().is_none() {
            return result(answer?);
        }
        let params = json!({"requestId": id, "reason": "nobody is waiting any more"});
        let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        self.transport.notify(&note, &Cancel::new(Some(ABANDON)));
        match cancel.reason() {
            Some(CancelReason::Stopped) => Err(Error::new(Kind::Interrupted, "stopped").into()),
            Some(CancelReason::Deadline) => Err(cancel.timed_out().into()),
            None => Err(Failure::Silent(self.transport.printed())),
        }
    }
}

/// Returns the number of a request, as its response repeats it. Some servers turn it into text or a float.
pub(super) fn request_number(message: &Value) -> Option<u64> {
    let id = &message["id"];
    let text = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
    text.strip_suffix(".0").unwrap_or(&text).parse().ok()
}

/// Whether a message on the connection of this request is its response. An error without a number is, because the server may
/// have failed before it read the number.
pub(super) fn is_answer(message: &Value, request: &Value) -> bool {
    let is_ours = match request_number(message) {
        None => !message["error"].is_null(),
        number => number == request_number(request),
    };
    is_ours && message["method"].is_null()
}

pub(super) fn client_info() -> Value {
    json!({"name": "bantam", "version": env!("CARGO_PKG_VERSION")})
}

/// Returns the result of a response, or its error.
fn result(mut answer: Value) -> Result<Value, Failure> {
    match answer.get("error") {
        None | Some(Value::Null) => Ok(answer["result"].take()),
        Some(error) => {
            let text = error["message"].as_str().or(error.as_str());
            let text = text.unwrap_or("no reason given");
            Err(Failure::Refused(text.to_owned()))
        }
    }
}
