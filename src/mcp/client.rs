//! The protocol: JSON-RPC 2.0 requests, one at a time, and what a server may say in between.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::list::{RemoteTool, bounded};
use super::{Transport, ended};
use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::text::one_line;

/// The revisions that this client speaks, the newest first.
const REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// Messages that a server may send before the answer to a request.
const MAX_ASIDES: usize = 10_000;
/// Pages of a list of tools, and tools.
const MAX_PAGES: usize = 50;
const MAX_TOOLS: usize = 500;
/// JSON-RPC: no such method.
const METHOD_NOT_FOUND: i64 = -32601;

/// The least time between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

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

/// A conversation with a server that has been introduced.
pub(crate) struct Client {
    transport: Box<dyn Transport>,
    last_id: u64,
    /// The server has said that its tools are others now.
    list_changed: bool,
    /// The transport still carries messages.
    is_sound: bool,
}

impl Client {
    /// Introduces this program.
    pub(super) fn start(
        transport: Box<dyn Transport>,
        within: Duration,
        cancel: &Cancel,
    ) -> Result<Self> {
        let mut client = Self {
            transport,
            last_id: 0,
            list_changed: false,
            is_sound: true,
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
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        client
            .transport
            .send(&ready, Instant::now() + within, cancel)?;
        Ok(client)
    }

    pub(super) fn is_sound(&self) -> bool {
        self.is_sound
    }

    /// Whether the server has said since this was asked last that its tools have changed.
    pub(super) fn take_list_changed(&mut self) -> bool {
        std::mem::take(&mut self.list_changed)
    }

    /// Asks, and waits for the answer.
    pub(super) fn request(
        &mut self,
        method: &str,
        params: Value,
        patience: &Patience,
        cancel: &Cancel,
    ) -> Result<Value> {
        self.last_id += 1;
        let id = self.last_id;
        let mut params = params;
        if patience.most > patience.silence {
            params["_meta"] = json!({"progressToken": id});
        }
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let result = self.exchange(&request, id, patience, cancel);
        match (&result, cancel.why()) {
            (Err(_), Some(why)) => {
                self.give_up(id);
                Err(ended(why))
            }
            _ => result,
        }
    }

    fn exchange(
        &mut self,
        request: &Value,
        id: u64,
        patience: &Patience,
        cancel: &Cancel,
    ) -> Result<Value> {
        let (silence, latest) = (patience.silence, Instant::now() + patience.most);
        let mut until = (Instant::now() + silence).min(latest);
        let mut reported = None::<Instant>;
        self.carried(|transport| transport.send(request, until, cancel))?;
        for _ in 0..MAX_ASIDES {
            let message = match self.carried(|transport| transport.receive(until, cancel)) {
                Err(_) if Instant::now() >= until && cancel.why().is_none() => {
                    self.give_up(id);
                    // It is started anew for the next call.
                    self.is_sound = false;
                    return Err(Error::failed(format!(
                        "no answer within {} s",
                        silence.as_secs()
                    )));
                }
                message => message?,
            };
            let method = message["method"].as_str();
            match (method, &message["id"]) {
                (None, answered) if *answered == id => return answer(message),
                // The answer to a request that was given up, or to none.
                (None, _) => {}
                (Some("ping"), asked) if !asked.is_null() => {
                    self.reply(asked, "result", &json!({}), until, cancel)?;
                }
                (Some(method), asked) if !asked.is_null() => {
                    let text = format!("{} is not offered here", one_line(method, 80));
                    self.reply(
                        asked,
                        "error",
                        &json!({"code": METHOD_NOT_FOUND, "message": text}),
                        until,
                        cancel,
                    )?;
                }
                (Some("notifications/progress"), _) if message["params"]["progressToken"] == id => {
                    until = (Instant::now() + silence).min(latest);
                    if reported.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL) {
                        reported = Some(Instant::now());
                        (patience.progress)(&progress(&message["params"]));
                    }
                }
                (Some("notifications/tools/list_changed"), _) => self.list_changed = true,
                (Some(_), _) => {}
            }
        }
        self.is_sound = false;
        Err(Error::failed(format!(
            "{MAX_ASIDES} messages came, and none of them is the answer"
        )))
    }

    fn reply(
        &mut self,
        id: &Value,
        name: &str,
        content: &Value,
        until: Instant,
        cancel: &Cancel,
    ) -> Result<()> {
        let reply = json!({"jsonrpc": "2.0", "id": id, name: content});
        self.carried(|transport| transport.send(&reply, until, cancel))
    }

    /// Tells the server that nobody waits for an answer any more.
    fn give_up(&mut self, id: u64) {
        let params = json!({"requestId": id, "reason": "nobody waits any more"});
        let message =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        let until = Instant::now() + Duration::from_millis(100);
        self.is_sound &= self
            .transport
            .send(&message, until, &Cancel::default())
            .is_ok();
    }

    /// Uses the transport; where it fails, it is at its end.
    fn carried<T>(&mut self, work: impl FnOnce(&mut dyn Transport) -> Result<T>) -> Result<T> {
        let result = work(&mut *self.transport);
        // A stop or a deadline of the turn leaves it as it is.
        self.is_sound &= result
            .as_ref()
            .err()
            .is_none_or(|e| matches!(e.kind, Kind::Interrupted | Kind::Limit));
        result
    }

    /// All tools, page by page, within bounds.
    pub(super) fn list_tools(
        &mut self,
        within: Duration,
        cancel: &Cancel,
    ) -> Result<Vec<RemoteTool>> {
        let (mut tools, mut params) = (Vec::new(), json!({}));
        let until = Instant::now() + within;
        self.list_changed = false;
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
        (Some(message), _) => one_line(message, 200),
        (None, total) if total.is_number() => format!("{} of {total}", params["progress"]),
        (None, _) => one_line(&params["progress"].to_string(), 40),
    }
}

fn answer(mut message: Value) -> Result<Value> {
    match message.get_mut("error") {
        Some(error) if !error.is_null() => {
            let text = one_line(
                error["message"].as_str().unwrap_or("no reason given"),
                2_000,
            );
            Err(Error::failed(format!("it refused: {text}")))
        }
        _ => Ok(message["result"].take()),
    }
}
