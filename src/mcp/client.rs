//! The protocol: JSON-RPC 2.0 requests, and what a server may say in between.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::list::{RemoteTool, bounded};
use super::{Transport, ended};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::text::{foreign_line, one_line};

/// The revisions that this client speaks, the newest first.
const REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// Pages of a list of tools, and tools.
const MAX_PAGES: usize = 50;
const MAX_TOOLS: usize = 500;
/// JSON-RPC: no such method.
const METHOD_NOT_FOUND: i64 = -32601;
/// The longest id of a request of the server, in bytes.
const MAX_ID: usize = 200;
/// The least time between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// How long a server has to take the word that nobody is waiting any more.
const GIVE_UP: Duration = Duration::from_millis(100);

/// How long to wait for an answer.
pub(super) struct Patience<'a> {
    /// From one sign of life to the next.
    pub silence: Duration,
    /// In all; longer than the silence, it asks for progress.
    pub most: Duration,
    /// Hears what the server says of its progress.
    pub progress: &'a dyn Fn(&str),
}

impl Patience<'_> {
    fn of(time: Duration) -> Self {
        Self {
            silence: time,
            most: time,
            progress: &|_| {},
        }
    }
}

/// What a server says that answers no request.
#[derive(Default)]
pub(crate) struct Asides {
    /// Called when it says that its tools have changed.
    on_change: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Asides {
    /// Takes note of it; returns the reply that it asks for.
    pub(super) fn receive(&self, message: &Value) -> Option<Value> {
        let method = message["method"].as_str()?;
        let id = &message["id"];
        if id.is_null() {
            if method == "notifications/tools/list_changed" {
                if let Some(tell) = self.on_change.get() {
                    tell();
                }
            }
            return None;
        }
        // What is sent back waits for a server that may not read it.
        let is_id = id.is_number() || id.as_str().is_some_and(|id| id.len() <= MAX_ID);
        if !is_id {
            return None;
        }
        if method == "ping" {
            return Some(json!({"jsonrpc": "2.0", "id": id, "result": {}}));
        }
        let text = format!("{} is not offered here", one_line(method, 80));
        let error = json!({"code": METHOD_NOT_FOUND, "message": text});
        Some(json!({"jsonrpc": "2.0", "id": id, "error": error}))
    }
}

/// What a message means to the one that waits for an answer.
pub(super) enum Received {
    Answer(Value),
    /// The server asks for this reply.
    Reply(Value),
    Nothing,
}

/// The wait for the answer to one request.
pub(crate) struct Wait<'a> {
    pub(super) id: u64,
    pub(super) cancel: &'a Cancel,
    silence: Duration,
    most: Duration,
    began: Instant,
    pub(super) until: Instant,
    progress: &'a dyn Fn(&str),
    reported: Option<Instant>,
}

impl<'a> Wait<'a> {
    fn new(id: u64, patience: &Patience<'a>, cancel: &'a Cancel) -> Self {
        let began = Instant::now();
        Self {
            id,
            cancel,
            silence: patience.silence,
            most: patience.most,
            began,
            until: began + patience.silence.min(patience.most),
            progress: patience.progress,
            reported: None,
        }
    }

    pub(super) fn left(&self) -> Duration {
        let left = self.until.saturating_duration_since(Instant::now());
        self.cancel.remaining(left)
    }

    /// The server shows that it still works on the request.
    fn is_alive(&mut self) {
        self.until = (Instant::now() + self.silence).min(self.began + self.most);
    }

    pub(super) fn receive(&mut self, message: Value, asides: &Asides) -> Received {
        if message["method"].is_null() {
            // The answer to a request that was given up, or to none, means nothing.
            return if message["id"] == self.id {
                Received::Answer(message)
            } else {
                Received::Nothing
            };
        }
        if progress_token(&message) == Some(self.id) {
            self.is_alive();
            if self
                .reported
                .is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL)
            {
                self.reported = Some(Instant::now());
                (self.progress)(&progress(&message["params"]));
            }
            return Received::Nothing;
        }
        asides
            .receive(&message)
            .map_or(Received::Nothing, Received::Reply)
    }
}

/// The request whose progress a message reports.
pub(super) fn progress_token(message: &Value) -> Option<u64> {
    let is_progress = message["method"] == "notifications/progress";
    message["params"]["progressToken"]
        .as_u64()
        .filter(|_| is_progress)
}

/// A conversation with a server that has been introduced.
pub(crate) struct Client {
    transport: Box<dyn Transport>,
    asides: Arc<Asides>,
    last_id: AtomicU64,
    /// It has not answered in time.
    is_silent: AtomicBool,
}

impl Client {
    /// Introduces this program. `on_change` is called whenever the server says that its tools have changed.
    pub(super) fn start(
        transport: Box<dyn Transport>,
        on_change: Box<dyn Fn() + Send + Sync>,
        within: Duration,
        cancel: &Cancel,
    ) -> Result<Self> {
        let client = Self {
            asides: transport.asides(),
            transport,
            last_id: AtomicU64::new(0),
            is_silent: AtomicBool::new(false),
        };
        let about = json!({"name": "bantam", "version": env!("CARGO_PKG_VERSION")});
        let params =
            json!({"protocolVersion": REVISIONS[0], "capabilities": {}, "clientInfo": about});
        let answer = client.request("initialize", params, &Patience::of(within), cancel)?;
        let revision = answer["protocolVersion"].as_str().unwrap_or_default();
        if !REVISIONS.contains(&revision) {
            let revision = one_line(revision, 40);
            return Err(Error::failed(format!(
                "it speaks revision {revision:?} of the protocol, which is not known here"
            )));
        }
        let tells_changes = answer["capabilities"]["tools"]["listChanged"] == true;
        client.transport.agreed(revision);
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        client.transport.notify(&ready, within)?;
        drop(client.asides.on_change.set(on_change));
        if tells_changes {
            client.transport.listen();
        }
        Ok(client)
    }

    pub(super) fn is_sound(&self) -> bool {
        !self.is_silent.load(Ordering::SeqCst) && self.transport.is_sound()
    }

    /// Whether the server does not know this conversation any more, and has run nothing of the last request.
    pub(super) fn is_forgotten(&self) -> bool {
        self.transport.is_forgotten()
    }

    /// Asks, and waits for the answer.
    pub(super) fn request(
        &self,
        method: &str,
        mut params: Value,
        patience: &Patience,
        cancel: &Cancel,
    ) -> Result<Value> {
        let id = self.last_id.fetch_add(1, Ordering::SeqCst) + 1;
        if patience.most > patience.silence {
            params["_meta"] = json!({"progressToken": id});
        }
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut wait = Wait::new(id, patience, cancel);
        let error = match self.transport.request(&request, &mut wait) {
            Ok(message) => return answer(message),
            Err(e) => e,
        };
        if let Some(why) = cancel.reason() {
            self.give_up(id);
            return Err(ended(why));
        }
        if Instant::now() < wait.until {
            return Err(error);
        }
        self.give_up(id);
        // It is started anew for the next call.
        self.is_silent.store(true, Ordering::SeqCst);
        Err(Error::failed(format!(
            "no answer within {} s",
            patience.silence.as_secs()
        )))
    }

    /// Tells the server that nobody waits for an answer any more.
    fn give_up(&self, id: u64) {
        let params = json!({"requestId": id, "reason": "nobody is waiting any more"});
        let message =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        // A server that cannot be told anything has ended, which the next request finds out.
        drop(self.transport.notify(&message, GIVE_UP));
    }

    /// All tools, page by page, within bounds.
    pub(super) fn list_tools(&self, within: Duration, cancel: &Cancel) -> Result<Vec<RemoteTool>> {
        let mut tools = Vec::new();
        let mut params = json!({});
        let until = Instant::now() + within;
        for _ in 0..MAX_PAGES {
            let patience = Patience::of(until.saturating_duration_since(Instant::now()));
            let page = self.request("tools/list", params, &patience, cancel)?;
            let Some(found) = page["tools"].as_array() else {
                return Err(Error::failed("its list of tools is not a list"));
            };
            tools.extend(found.iter().filter_map(bounded));
            match page["nextCursor"].as_str() {
                Some(cursor) if tools.len() < MAX_TOOLS => params = json!({"cursor": cursor}),
                _ => break,
            }
        }
        tools.truncate(MAX_TOOLS);
        Ok(tools)
    }
}

/// What a server says of its progress, on one line.
fn progress(params: &Value) -> String {
    match (params["message"].as_str(), &params["total"]) {
        (Some(message), _) => foreign_line(message, 200),
        (None, total) if total.is_number() => format!("{} of {total}", params["progress"]),
        (None, _) => one_line(&params["progress"].to_string(), 40),
    }
}

fn answer(mut message: Value) -> Result<Value> {
    match message.get_mut("error") {
        Some(error) if !error.is_null() => {
            let text = foreign_line(
                error["message"].as_str().unwrap_or("no reason given"),
                2_000,
            );
            Err(Error::failed(format!("it refused: {text}")))
        }
        _ => Ok(message["result"].take()),
    }
}
