//! MCP: the tools of other people's servers (Model Context Protocol, revisions 2024-11-05 to 2025-11-25).
//!
//! A server starts at its first call and stays until this program ends. What its tools are is kept in
//! `state/mcp/NAME.json` as long as its entry in the configuration is the same, so that a turn that uses none of them
//! starts nothing. Whatever a server says is another's word: bounded, and marked for the model.

mod client;
mod http;
mod list;
mod stdio;
mod trust;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::cancel::{Cancel, Why};
use crate::config::McpServer;
use crate::error::{Error, Kind, Result};
use crate::text::parse_json;
pub(crate) use client::Client;
use client::Patience;
pub(crate) use http::Http;
pub(crate) use list::{RemoteTool, ToolList, refresh};
pub(crate) use stdio::Stdio;
pub(crate) use trust::{Changeable, Launch};

/// How long a server may take to start and to list its tools: `npx` and `uvx` may download it first.
const START: Duration = Duration::from_secs(60);
/// How long a call may take without a sign of progress, and with it.
const CALL: Duration = Duration::from_secs(60);
const CALL_WITH_PROGRESS: Duration = Duration::from_secs(600);
/// How often a server may start within [`PERIOD`].
const MAX_STARTS: usize = 3;
const PERIOD: Duration = Duration::from_secs(600);

/// How often a call looks whether the one before it has ended.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);
/// The most bytes of one message, and the most values in it: in memory a value may take hundreds of bytes.
const MAX_MESSAGE: usize = 4 << 20;
const MAX_VALUES: usize = 50_000;

/// Carries messages to a server and back.
pub(crate) trait Transport: Send {
    fn send(&mut self, message: &Value, until: Instant, cancel: &Cancel) -> Result<()>;

    /// Waits for the next message.
    fn receive(&mut self, until: Instant, cancel: &Cancel) -> Result<Value>;
}

/// Starts a server, or connects to one.
pub(crate) type Connect = dyn Fn(&Cancel) -> Result<Box<dyn Transport>> + Send + Sync;

/// A configured server: not running, or running.
pub(crate) struct Server {
    /// As the configuration names it.
    pub name: String,
    /// Where the list of its tools is kept, and the checksum of its entry.
    list: PathBuf,
    checksum: String,
    connect: Box<Connect>,
    state: Mutex<State>,
    /// Set when its tools have changed; see [`Servers::take_changed`].
    changed: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    client: Option<Client>,
    /// When it was started lately.
    starts: VecDeque<Instant>,
}

/// The servers that this program has to do with, by name. Conversations share them.
#[derive(Default)]
pub(crate) struct Servers {
    by_name: Mutex<BTreeMap<String, Arc<Server>>>,
    changed: Arc<AtomicBool>,
}

impl Servers {
    /// The server of this entry, whose list of tools is kept at `list`. One whose entry has changed ends when its last call
    /// does.
    pub(crate) fn get(
        &self,
        name: &str,
        entry: &McpServer,
        list: PathBuf,
        connect: Box<Connect>,
    ) -> Arc<Server> {
        let mut servers = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        let checksum = list::checksum(entry);
        if let Some(known) = servers.get(name).filter(|known| known.checksum == checksum) {
            return known.clone();
        }
        let (name, state, changed) = (name.to_owned(), Mutex::default(), self.changed.clone());
        let server = Arc::new(Server {
            name: name.clone(),
            list,
            checksum,
            connect,
            state,
            changed,
        });
        servers.insert(name, server.clone());
        server
    }

    /// Whether a server has changed its tools since this was asked last: who holds their list has to make it again.
    pub(crate) fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }
}

impl Server {
    /// Waits for the calls of other conversations to end, unless its own turn ends first.
    fn lock(&self, cancel: &Cancel) -> Result<MutexGuard<'_, State>> {
        loop {
            match self.state.try_lock() {
                Ok(state) => return Ok(state),
                Err(TryLockError::Poisoned(e)) => return Ok(e.into_inner()),
                Err(TryLockError::WouldBlock) => cancel.sleep(LOCK_INTERVAL).map_err(ended)?,
            }
        }
    }

    /// Calls a tool; one call of a server at a time. `tell` hears of progress, and of tools that describe themselves otherwise
    /// than before.
    ///
    /// # Errors
    /// In words for the model. A server that broke off is started again by the next call.
    pub(crate) fn call(
        &self,
        tool: &str,
        arguments: &Value,
        cancel: &Cancel,
        tell: &dyn Fn(String),
    ) -> Result<Value> {
        let params = json!({"name": tool, "arguments": arguments});
        let progress = |text: &str| tell(format!("MCP server {}: {text}", self.name));
        let patience = Patience {
            silence: CALL,
            most: CALL_WITH_PROGRESS,
            progress: &progress,
        };
        self.with_client(cancel, |client| {
            let result = client.request("tools/call", params, &patience, cancel)?;
            if client.take_list_changed() {
                // The result counts, whatever comes of this.
                if let Ok(tools) = client.list_tools(CALL, cancel) {
                    let kept = list::keep(self, Ok(tools), SystemTime::now());
                    kept.into_iter()
                        .flat_map(|(_, changes)| changes)
                        .for_each(tell);
                    self.changed.store(true, Ordering::Relaxed);
                }
            }
            Ok(result)
        })
    }

    /// Asks for its tools.
    pub(crate) fn tools(&self, cancel: &Cancel) -> Result<Vec<RemoteTool>> {
        self.with_client(cancel, |client| client.list_tools(START, cancel))
    }

    fn with_client<T>(
        &self,
        cancel: &Cancel,
        work: impl FnOnce(&mut Client) -> Result<T>,
    ) -> Result<T> {
        let mut state = self.lock(cancel)?;
        let State { client, starts } = &mut *state;
        let client = match client {
            Some(client) => client,
            None => {
                starts.retain(|start| start.elapsed() < PERIOD);
                if starts.len() == MAX_STARTS {
                    let e = format!(
                        "it was started {MAX_STARTS} times within {} minutes",
                        PERIOD.as_secs() / 60
                    );
                    return Err(Error::failed(e).doing(format_args!("MCP server {}", self.name)));
                }
                starts.push_back(Instant::now());
                let started = (self.connect)(cancel)
                    .and_then(|transport| Client::start(transport, START, cancel));
                let starting = format!("starting MCP server {}", self.name);
                client.insert(started.map_err(|e| with_grants(e, &self.name).doing(starting))?)
            }
        };
        let result = work(client);
        if !client.is_sound() {
            state.client = None;
        }
        result.map_err(|e| match e.kind {
            Kind::Interrupted => e,
            _ => e.doing(format_args!("MCP server {}", self.name)),
        })
    }
}

/// Adds what an entry can grant: a server that ends at once may have failed for want of it.
fn with_grants(mut e: Error, name: &str) -> Error {
    if e.message.starts_with("it ended and said") {
        e.message.push_str(&format!(
            " (read, write and network of mcpServers.{name} say what its jail lets it reach)"
        ));
    }
    e
}

/// The error of a call whose turn has ended.
fn ended(why: Why) -> Error {
    match why {
        Why::Stopped => Error::new(Kind::Interrupted, "stopped"),
        Why::Deadline => Error::new(Kind::Limit, "the turn timed out"),
    }
}

/// Reads a message, or the messages of a batch. Text that is not JSON holds none: a server's log in the wrong place, or an
/// event that keeps a connection alive.
fn parse(text: &str) -> Result<Vec<Value>> {
    let (mut values, mut in_string, mut escaped) = (0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => values += 1,
            _ => {}
        }
    }
    if values > MAX_VALUES {
        return Err(Error::failed(format!(
            "it sent a message of more than {MAX_VALUES} values"
        )));
    }
    Ok(match parse_json(text) {
        Ok(Value::Array(batch)) => batch,
        message => message.into_iter().collect(),
    })
}

fn too_long() -> Error {
    Error::failed(format!(
        "it sent a message of more than {} MB",
        MAX_MESSAGE >> 20
    ))
}
