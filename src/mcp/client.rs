//! The protocol: JSON-RPC 2.0 requests and responses, in the revisions with a handshake and in the stateless one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::list::{ListStore, Listing, RemoteTool};
use crate::cancel::{Cancel, CancelReason};
use crate::error::{Error, Kind};
use crate::redact::Redactor;
use crate::text::to_single_line;

/// Revisions that start with `initialize`, newest first.
const HANDSHAKE_REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// Revision without handshake and session: each request identifies the client.
const STATELESS_REVISION: &str = "2026-07-28";
/// Fields of `_meta` in a stateless request (<https://modelcontextprotocol.io/specification/2026-07-28/basic/index#meta>).
pub(super) const META_REVISION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CLIENT: &str = "io.modelcontextprotocol/clientInfo";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// Limits of a tool list: number of pages, and of tools.
const MAX_PAGES: usize = 50;
const MAX_TOOLS: usize = 500;
/// Error codes of JSON-RPC: unknown method, and invalid parameters; of MCP: the headers differ from the message.
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const HEADER_MISMATCH: i64 = -32020;
/// Maximum length of the id of a server's request, in bytes, because the reply repeats it.
const MAX_ID: usize = 200;
/// Time limit for sending a cancellation, for which the turn waits.
const ABANDON: Duration = Duration::from_millis(100);
/// Minimum time between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Transports messages to a server and back.
pub(crate) trait Transport: Send + Sync {
    /// Sends a request, and waits for the message with its id.
    fn request(&self, request: &Value, wait: &mut Wait) -> Result<Value, Failure>;

    /// Sends a message without a response, within this time.
    fn notify(&self, message: &Value, within: Duration);

    /// Stores the revision of the handshake.
    fn set_revision(&self, _revision: &str) {}

    /// Whether the connection is usable.
    fn is_open(&self) -> bool {
        true
    }
}

/// Reason for a failed request.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A JSON-RPC error, with its code and the server's message.
    Refused(i64, String),
    /// An HTTP status without a JSON-RPC message.
    Status(u16),
    /// A redirect, with its target.
    Redirected(String),
    /// The server has lost the session, and did not run the request.
    NoSession,
    /// No response within this time.
    Silent(Duration),
    /// The connection failed, the message was invalid, or the turn ended.
    Other(Error),
}

impl Failure {
    /// Whether the server may only support the stateless revision. Its response to `initialize` is unspecified, except that it
    /// is a JSON-RPC error or status 400.
    fn may_be_stateless(&self) -> bool {
        matches!(self, Self::Refused(..) | Self::Status(400))
    }

    /// Whether the tool differs from the list.
    pub(super) fn contradicts_list(&self) -> bool {
        matches!(
            self,
            Self::Refused(METHOD_NOT_FOUND | INVALID_PARAMS | HEADER_MISMATCH, _)
        )
    }

    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::Other(Error::failed(message))
    }

    /// Converts this to a user's error, without keys, because a server may repeat the keys that it received.
    pub(super) fn into_error(self, redactor: &Redactor) -> Error {
        Error::failed(match self {
            Self::Refused(_, text) => format!("it refused: {}", redactor.foreign(&text, 2_000)),
            Self::Redirected(target) => format!(
                "it redirects to {}: put the new address into its entry",
                redactor.foreign(&target, 200)
            ),
            Self::NoSession => "it has forgotten this session".to_owned(),
            Self::Silent(time) => format!("no answer within {} s", time.as_secs()),
            Self::Status(status @ (401 | 403)) => format!(
                "it refuses this client (status {status}): put its key into the entry's headers; signing in by OAuth is not \
                 supported"
            ),
            Self::Status(405) => "it speaks the older HTTP+SSE transport: try its streamable HTTP address, often /mcp \
                                  instead of /sse"
                .to_owned(),
            Self::Status(status) => format!("it answered with status {status}"),
            Self::Other(e) => {
                return Error {
                    message: redactor.redact(e.message),
                    ..e
                };
            }
        })
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(e: E) -> Self {
        Self::Other(e.into())
    }
}

/// Time limits of a request.
pub(super) struct Limits<'a> {
    /// Limit without a response or a report of progress.
    pub silence: Duration,
    /// Total limit. If it is longer than the silence, the request asks for progress.
    pub total: Duration,
    pub on_progress: &'a dyn Fn(&str),
}

impl Limits<'_> {
    pub(super) fn within(time: Duration) -> Self {
        Self {
            silence: time,
            total: time,
            on_progress: &|_| {},
        }
    }
}

/// State of waiting for the response to a request.
pub(crate) struct Wait<'a> {
    pub(super) id: u64,
    pub(super) cancel: &'a Cancel,
    pub(super) until: Instant,
    limits: &'a Limits<'a>,
    ends: Instant,
    reported: Option<Instant>,
}

impl<'a> Wait<'a> {
    fn new(id: u64, limits: &'a Limits<'a>, cancel: &'a Cancel) -> Self {
        let now = Instant::now();
        Self {
            id,
            cancel,
            until: now + limits.silence.min(limits.total),
            limits,
            ends: now + limits.total,
            reported: None,
        }
    }

    pub(super) fn left(&self) -> Duration {
        let left = self.until.saturating_duration_since(Instant::now());
        self.cancel.remaining(left)
    }

    /// Whether this message is the response to the request.
    pub(super) fn is_answer(&self, message: &Value) -> bool {
        message["method"].is_null() && message["id"] == self.id
    }

    /// Extends the wait if this message reports progress of the request.
    pub(super) fn progressed(&mut self, message: &Value) {
        if progress_token(message) != Some(self.id) {
            return;
        }
        let now = Instant::now();
        self.until = (now + self.limits.silence).min(self.ends);
        if self.reported.is_none_or(|at| now - at >= PROGRESS_INTERVAL) {
            self.reported = Some(now);
            (self.limits.on_progress)(&progress(&message["params"]));
        }
    }
}

/// Returns the id of the request whose progress a message reports.
pub(super) fn progress_token(message: &Value) -> Option<u64> {
    if message["method"] != "notifications/progress" {
        return None;
    }
    message["params"]["progressToken"].as_u64()
}

/// Returns the text of a progress report.
fn progress(params: &Value) -> String {
    match (params["message"].as_str(), &params["total"]) {
        (Some(message), _) => message.to_owned(),
        (None, total) if total.is_number() => format!("{} of {total}", params["progress"]),
        (None, _) => to_single_line(&params["progress"].to_string(), 40),
    }
}

/// Handles a message that is not a response: marks a changed list as stale, and returns the reply to a request of the server.
/// Only pings are supported.
pub(super) fn reply_to(message: &Value, list: &ListStore) -> Option<Value> {
    let method = message["method"].as_str()?;
    let id = &message["id"];
    if id.is_null() {
        if method == "notifications/tools/list_changed" {
            list.mark_stale();
        }
        return None;
    }
    if !id.is_number() && id.as_str().is_none_or(|id| id.len() > MAX_ID) {
        return None;
    }
    if method == "ping" {
        return Some(json!({"jsonrpc": "2.0", "id": id, "result": {}}));
    }
    let text = format!("{} is not offered here", to_single_line(method, 80));
    let error = json!({"code": METHOD_NOT_FOUND, "message": text});
    Some(json!({"jsonrpc": "2.0", "id": id, "error": error}))
}

/// Request format of the server's revision.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Era {
    Handshake,
    Stateless,
}

/// A connection to a server that has answered.
pub(crate) struct Client {
    transport: Box<dyn Transport>,
    era: Era,
    last_id: AtomicU64,
}

impl Client {
    /// Connects to a server. If it rejects the handshake, tries the stateless revision.
    pub(super) fn start(
        transport: Box<dyn Transport>,
        within: Duration,
        cancel: &Cancel,
    ) -> Result<Self, Failure> {
        let limits = Limits::within(within);
        let mut client = Self {
            transport,
            era: Era::Handshake,
            last_id: AtomicU64::new(0),
        };
        let refusal = match client.initialize(&limits, cancel) {
            Err(failure) if failure.may_be_stateless() => failure,
            result => return result.map(|()| client),
        };
        client.era = Era::Stateless;
        let Ok(found) = client.request("server/discover", json!({}), &limits, cancel) else {
            return Err(refusal);
        };
        let revisions = found["supportedVersions"].as_array();
        if revisions.is_some_and(|all| all.iter().any(|one| one == STATELESS_REVISION)) {
            return Ok(client);
        }
        Err(unknown_revision(&found["supportedVersions"]))
    }

    fn initialize(&self, limits: &Limits, cancel: &Cancel) -> Result<(), Failure> {
        let params = json!({
            "protocolVersion": HANDSHAKE_REVISIONS[0], "capabilities": {}, "clientInfo": client_info()
        });
        let answer = self.request("initialize", params, limits, cancel)?;
        let revision = answer["protocolVersion"].as_str().unwrap_or_default();
        if !HANDSHAKE_REVISIONS.contains(&revision) {
            return Err(unknown_revision(&answer["protocolVersion"]));
        }
        self.transport.set_revision(revision);
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        self.transport.notify(&ready, limits.total);
        Ok(())
    }

    pub(super) fn is_open(&self) -> bool {
        self.transport.is_open()
    }

    /// Calls a tool and returns its result.
    pub(super) fn call(
        &self,
        tool: &RemoteTool,
        arguments: &Value,
        limits: &Limits,
        cancel: &Cancel,
    ) -> Result<Value, Failure> {
        let params = json!({"name": tool.name, "arguments": arguments});
        let result = self.request("tools/call", params, limits, cancel)?;
        if result["resultType"] == "input_required" {
            return Err(Failure::failed(
                "it asks for more input in the middle of the call, which is not supported",
            ));
        }
        Ok(result)
    }

    /// Lists all tools, page by page.
    pub(super) fn list_tools(&self, within: Duration, cancel: &Cancel) -> Result<Listing, Failure> {
        let mut listing = Listing::default();
        let mut params = json!({});
        let until = Instant::now() + within;
        for _ in 0..MAX_PAGES {
            let limits = Limits::within(until.saturating_duration_since(Instant::now()));
            let page = self.request("tools/list", params, &limits, cancel)?;
            let Some(found) = page["tools"].as_array() else {
                return Err(Failure::failed("its list of tools is not a list"));
            };
            listing.add(found);
            match page["nextCursor"].as_str() {
                Some(cursor) if listing.tools.len() < MAX_TOOLS => {
                    params = json!({"cursor": cursor});
                }
                _ => break,
            }
        }
        listing.tools.truncate(MAX_TOOLS);
        Ok(listing)
    }

    fn request(
        &self,
        method: &str,
        mut params: Value,
        limits: &Limits,
        cancel: &Cancel,
    ) -> Result<Value, Failure> {
        let id = self.last_id.fetch_add(1, Ordering::SeqCst) + 1;
        let mut meta = self.meta();
        if limits.total > limits.silence {
            meta.insert("progressToken".to_owned(), id.into());
        }
        if !meta.is_empty() {
            params["_meta"] = meta.into();
        }
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut wait = Wait::new(id, limits, cancel);
        let failure = match self.transport.request(&request, &mut wait) {
            Ok(answer) => return result(answer),
            Err(failure) => failure,
        };
        let is_late = Instant::now() >= wait.until;
        let reason = cancel.reason();
        if reason.is_some() || is_late {
            self.abandon(id);
        }
        match reason {
            Some(CancelReason::Stopped) => Err(Error::new(Kind::Interrupted, "stopped").into()),
            Some(CancelReason::Deadline) => Err(cancel.timed_out().into()),
            None if is_late => Err(Failure::Silent(limits.silence)),
            None => Err(failure),
        }
    }

    /// Returns the `_meta` of every request and notification.
    fn meta(&self) -> Map<String, Value> {
        let mut meta = Map::new();
        if self.era == Era::Stateless {
            meta.insert(META_REVISION.to_owned(), STATELESS_REVISION.into());
            meta.insert(META_CLIENT.to_owned(), client_info());
            meta.insert(META_CAPABILITIES.to_owned(), json!({}));
        }
        meta
    }

    /// Notifies the server that the request is cancelled.
    fn abandon(&self, id: u64) {
        let mut params = json!({"requestId": id, "reason": "nobody is waiting any more"});
        let meta = self.meta();
        if !meta.is_empty() {
            params["_meta"] = meta.into();
        }
        let method = "notifications/cancelled";
        let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        self.transport.notify(&message, ABANDON);
    }
}

fn client_info() -> Value {
    json!({"name": "bantam", "version": env!("CARGO_PKG_VERSION")})
}

fn unknown_revision(revision: &Value) -> Failure {
    let shown = to_single_line(&revision.to_string(), 80);
    Failure::failed(format!(
        "it speaks revision {shown} of the protocol, which is not known here"
    ))
}

/// Returns the result of a response, or its error.
fn result(mut answer: Value) -> Result<Value, Failure> {
    match answer.get("error") {
        None | Some(Value::Null) => Ok(answer["result"].take()),
        Some(error) => {
            let text = error["message"].as_str().unwrap_or("no reason given");
            let code = error["code"].as_i64().unwrap_or_default();
            Err(Failure::Refused(code, text.to_owned()))
        }
    }
}
