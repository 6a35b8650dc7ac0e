//! MCP servers (Model Context Protocol, revisions 2024-11-05 to 2026-07-28): tool lists and calls, over stdio and HTTP.
//!
//! A server is started or connected at its first call, and remains connected until this program ends. Its tool list is stored
//! in `state/mcp/NAME.json`, so a question without calls of its tools does not start it. Output of servers is untrusted:
//! limited in size, without keys, and marked as foreign for the model.

mod client;
mod http;
mod launch;
mod list;
mod stdio;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::cancel::{Cancel, CancelReason};
use crate::config::McpServer;
use crate::error::{Error, Kind, Result};
use crate::json::{count_values, parse_json};
use crate::log::{Level, Log};
use crate::redact::Redactor;
use crate::sync;
use crate::text::to_single_line;
use crate::tries::Tries;
pub(crate) use client::Transport;
use client::{Client, Failure, Limits};
pub(crate) use http::Http;
pub(crate) use launch::{Launch, refuse_writable_parts};
pub(crate) use list::{ListStore, RemoteTool, missing, missing_prefix};
use list::{Listing, RETRY_AFTER, checksum};
pub(crate) use stdio::Stdio;

/// Time limit for starting a server and for listing its tools, because `npx` and `uvx` may download it first.
const START: Duration = Duration::from_secs(60);
/// Time limits of a call without progress, and in total.
const CALL_SILENCE: Duration = Duration::from_secs(60);
const CALL_TOTAL: Duration = Duration::from_secs(600);
/// First pause before the gateway lists a remote server again. The pause doubles each time, up to [`RETRY_AFTER`].
const RETRY: Duration = Duration::from_secs(2);
/// Maximum number of starts of a program within [`PERIOD`].
const MAX_STARTS: usize = 3;
const PERIOD: Duration = Duration::from_secs(600);
/// Interval of a call's checks whether another call has started the server.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);
/// Limits of one message: bytes, enough for the largest image in base64, and values, which take hundreds of bytes each in
/// memory. A larger message fails its call.
const MAX_MESSAGE: usize = 12 << 20;
const MAX_VALUES: usize = 50_000;

/// Starts a server, or connects to it.
pub(crate) type Connect =
    dyn Fn(&Arc<ListStore>, &Cancel) -> Result<Box<dyn Transport>> + Send + Sync;

/// Definition of a server, from an entry of `mcpServers`.
pub(crate) struct Definition {
    pub name: String,
    /// Checksum of the entry.
    pub checksum: String,
    /// Whether bantam starts a program; otherwise the server is remote.
    pub is_program: bool,
    /// Path of the stored tool list.
    pub list: PathBuf,
    /// Removes the keys of the configuration from the server's output.
    pub redactor: Redactor,
    pub connect: Box<Connect>,
}

impl Definition {
    pub(crate) fn new(name: &str, entry: &McpServer, list: PathBuf, connect: Box<Connect>) -> Self {
        Self {
            name: name.to_owned(),
            checksum: checksum(entry),
            is_program: entry.url.is_empty(),
            list,
            redactor: Redactor::default(),
            connect,
        }
    }
}

/// A configured server with up to one connection.
pub(crate) struct Server {
    pub definition: Definition,
    list: Arc<ListStore>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    client: Option<Arc<Client>>,
    /// Times of the program's starts within [`PERIOD`].
    starts: VecDeque<Instant>,
    /// Reason for the end or the failure of the last connection.
    last_error: String,
    /// Whether a thread is listing the tools.
    is_listing: bool,
    /// Time of the last notification to the owner about changed tools.
    told: Option<Instant>,
}

/// Handling of an unknown or stale tool list.
#[derive(Clone)]
pub(crate) enum Unknown {
    /// The question waits for the list.
    Wait(Cancel),
    /// A thread lists the server until the gateway ends. Later turns have the tools.
    List(Background),
    /// The server's tools are left out.
    Skip,
}

/// Context of a gateway that lists servers.
#[derive(Clone)]
pub(crate) struct Background {
    pub cancel: Cancel,
    pub log: Log,
    /// Notifies the bot's owner, who may not read the log.
    pub tell_owner: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Minimum time between notifications to the owner about a server's changed tools.
const TELL_AGAIN: Duration = Duration::from_secs(24 * 3600);

impl Default for Unknown {
    fn default() -> Self {
        Self::Wait(Cancel::default())
    }
}

/// Tools of a server.
pub(crate) struct Tools {
    pub server: Arc<Server>,
    /// Result; `None` while a thread lists the server for the first time.
    pub found: Option<Result<Vec<RemoteTool>>>,
    pub warnings: Vec<String>,
}

/// The servers of a process, by name. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Servers {
    by_name: Arc<Mutex<BTreeMap<String, Arc<Server>>>>,
    generation: Arc<AtomicU64>,
    /// What is done with a server whose tools are unknown.
    pub unknown: Arc<Mutex<Unknown>>,
}

impl Servers {
    /// Returns the server with this definition; creates it if it is new or its entry has changed.
    pub(crate) fn get(&self, definition: Definition) -> Arc<Server> {
        let mut servers = sync::lock(&self.by_name);
        if let Some(known) = servers.get(&definition.name) {
            if known.definition.checksum == definition.checksum {
                return known.clone();
            }
        }
        let server = Arc::new(Server {
            list: Arc::new(ListStore::new(
                definition.name.clone(),
                definition.list.clone(),
                definition.checksum.clone(),
                self.generation.clone(),
            )),
            definition,
            state: Mutex::default(),
        });
        servers.insert(server.definition.name.clone(), server.clone());
        server
    }

    /// Counter of list changes, after which an agent has to be built again.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Returns the tools of these servers, from the stored lists if available.
    pub(crate) fn tools_of(&self, servers: Vec<Arc<Server>>) -> Vec<Tools> {
        let now = SystemTime::now();
        let mut all = Vec::new();
        let mut to_list = Vec::new();
        for server in servers {
            let list = server.list.read(now);
            if list.as_ref().is_none_or(list::ToolList::is_stale) {
                to_list.push(all.len());
            }
            all.push(Tools {
                server,
                found: list.map(list::ToolList::into_tools),
                warnings: Vec::new(),
            });
        }
        match &*sync::lock(&self.unknown) {
            Unknown::Skip => {}
            Unknown::List(background) => {
                for n in to_list {
                    self.list_in_background(&all[n].server, background);
                }
            }
            Unknown::Wait(cancel) => {
                let stale: Vec<_> = to_list.iter().map(|n| all[*n].server.clone()).collect();
                for (n, tools) in to_list.into_iter().zip(list_all(&stale, cancel)) {
                    all[n] = tools;
                }
            }
        }
        all
    }

    /// Lists a server in a thread, with retries after errors, because a board may start before its network.
    fn list_in_background(&self, server: &Arc<Server>, background: &Background) {
        if std::mem::replace(&mut server.lock().is_listing, true) {
            return;
        }
        let (background, generation) = (background.clone(), self.generation.clone());
        let weak = Arc::downgrade(server);
        let is_program = server.definition.is_program;
        let work = move || {
            let first = if is_program { RETRY_AFTER } else { RETRY };
            let mut tries = Tries::new(u32::MAX, first, RETRY_AFTER);
            let mut reported = String::new();
            // A server that was removed from the configuration has been dropped.
            while let Some(server) = weak.upgrade() {
                let Tools {
                    found, warnings, ..
                } = server.clone().list(&background.cancel);
                if background.cancel.reason().is_some() {
                    return;
                }
                server.tell_of_changes(&warnings, &background);
                let Some(Err(e)) = found else {
                    server.lock().is_listing = false;
                    generation.fetch_add(1, Ordering::SeqCst);
                    return;
                };
                if e.message != reported {
                    let text = missing(&server.definition.name, &e);
                    background.log.write(Level::Warn, &text);
                    generation.fetch_add(1, Ordering::SeqCst);
                    reported = e.message;
                }
                drop(server);
                let pause = tries.wait(None).unwrap_or(RETRY_AFTER);
                if background.cancel.sleep(pause).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("mcp".to_owned()).spawn(work);
        if thread.is_err() {
            // The next agent tries again.
            server.lock().is_listing = false;
        }
    }
}

/// Lists servers in parallel, because each may take a minute.
pub(crate) fn list_all(servers: &[Arc<Server>], cancel: &Cancel) -> Vec<Tools> {
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for server in servers {
            let work = move || server.clone().list(cancel);
            let thread = thread::Builder::new().name("mcp".to_owned());
            threads.push((server, thread.spawn_scoped(scope, work)));
        }
        let mut lists = Vec::new();
        for (server, thread) in threads {
            lists.push(match thread.map(thread::ScopedJoinHandle::join) {
                Ok(Ok(tools)) => tools,
                Ok(Err(_)) => Tools {
                    server: server.clone(),
                    found: Some(Err(Error::failed("listing its tools panicked"))),
                    warnings: Vec::new(),
                },
                // If no thread can start, the servers are listed one by one.
                Err(_) => server.clone().list(cancel),
            });
        }
        lists
    })
}

impl Server {
    /// Logs changes of the server's tools, and notifies the owner with a minimum interval.
    fn tell_of_changes(&self, changes: &[String], background: &Background) {
        for change in changes {
            background.log.write(Level::Warn, change);
        }
        let mut state = self.lock();
        let is_due = state.told.is_none_or(|told| told.elapsed() >= TELL_AGAIN);
        if let (Some(first), true) = (changes.first(), is_due) {
            state.told = Some(Instant::now());
            drop(state);
            (background.tell_owner)(first);
        }
    }

    /// Lists the server's tools, stores the list, and returns warnings about changes.
    pub(crate) fn list(self: Arc<Self>, cancel: &Cancel) -> Tools {
        let found = self
            .open_client(cancel)
            .and_then(|(client, _)| self.list_with(&client, cancel));
        let mut tools = Tools {
            server: self.clone(),
            found: None,
            warnings: Vec::new(),
        };
        // An interrupted wait is not an error of the server.
        if found.is_ok() || cancel.reason().is_none() {
            match self.list.replace(&found, SystemTime::now()) {
                Ok(warnings) => tools.warnings = warnings,
                Err(e) => tools.warnings.push(e.message),
            }
        }
        tools.found = Some(found.map(|listing| listing.tools));
        tools
    }

    fn list_with(&self, client: &Arc<Client>, cancel: &Cancel) -> Result<Listing> {
        match client.list_tools(START, cancel) {
            Ok(mut listing) => {
                listing.redact(&self.definition.redactor);
                Ok(listing)
            }
            Err(failure) => Err(self.fail(client, failure)),
        }
    }

    /// Calls a tool. `on_progress` gets a line for each report.
    ///
    /// # Errors
    /// Errors are for the model, with the server's message. A program that ended is started again at the next call.
    pub(crate) fn call(
        &self,
        tool: &RemoteTool,
        arguments: &Value,
        cancel: &Cancel,
        on_progress: &dyn Fn(String),
    ) -> Result<Value> {
        let name = &self.definition.name;
        let report = |text: &str| {
            let text = self.definition.redactor.foreign(text, 200);
            on_progress(format!("MCP server {name}: {text}"));
        };
        let limits = Limits {
            silence: CALL_SILENCE,
            total: CALL_TOTAL,
            on_progress: &report,
        };
        let mut client = self.client(cancel)?;
        let mut result = client.call(tool, arguments, &limits, cancel);
        if matches!(result, Err(Failure::NoSession)) {
            // The call did not run, so it is repeated in a new session.
            self.disconnect(&client, "it has forgotten this session");
            client = self.client(cancel)?;
            result = client.call(tool, arguments, &limits, cancel);
        }
        result.map_err(|failure| self.fail(&client, failure))
    }

    /// Converts a failure to an error. Ends an unusable connection.
    fn fail(&self, client: &Arc<Client>, failure: Failure) -> Error {
        if failure.contradicts_list() {
            self.list.mark_stale();
        }
        let is_over = matches!(failure, Failure::NoSession | Failure::Silent(_));
        let e = failure.into_error(&self.definition.redactor);
        if is_over || !client.is_open() {
            self.disconnect(client, &e.message);
        }
        if e.kind == Kind::Interrupted {
            return e;
        }
        e.doing(format_args!("MCP server {}", self.definition.name))
    }

    fn disconnect(&self, client: &Arc<Client>, why: &str) {
        let mut state = self.lock();
        if let Some(known) = &state.client {
            if Arc::ptr_eq(known, client) {
                state.client = None;
                state.last_error = brief(why);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }

    /// Returns the open connection, or a new one. A new connection refreshes a tool list older than a day.
    fn client(&self, cancel: &Cancel) -> Result<Arc<Client>> {
        let (client, is_new) = self.open_client(cancel)?;
        let now = SystemTime::now();
        if is_new && self.list.read(now).is_some_and(|list| list.is_old(now)) {
            if let Ok(listing) = self.list_with(&client, cancel) {
                drop(self.list.replace(&Ok(listing), now));
            }
        }
        Ok(client)
    }

    fn open_client(&self, cancel: &Cancel) -> Result<(Arc<Client>, bool)> {
        let mut state = loop {
            match self.state.try_lock() {
                Ok(state) => break state,
                Err(TryLockError::Poisoned(e)) => break e.into_inner(),
                // Another call is starting the server.
                Err(TryLockError::WouldBlock) => cancel.sleep(LOCK_INTERVAL).map_err(ended)?,
            }
        };
        if let Some(client) = state.client.as_ref().filter(|client| client.is_open()) {
            return Ok((client.clone(), false));
        }
        state.client = None;
        if self.definition.is_program {
            self.count_start(&mut state)?;
        }
        let started = (self.definition.connect)(&self.list, cancel)
            .map_err(Failure::from)
            .and_then(|transport| Client::start(transport, START, cancel))
            .map_err(|failure| failure.into_error(&self.definition.redactor));
        match started {
            Ok(client) => {
                let client = Arc::new(client);
                state.client = Some(client.clone());
                Ok((client, true))
            }
            Err(e) => {
                state.last_error = brief(&e.message);
                Err(self.explain_start(e))
            }
        }
    }

    fn explain_start(&self, e: Error) -> Error {
        let name = &self.definition.name;
        let needs_hint = self.definition.is_program && e.hint.is_none() && e.kind == Kind::Failed;
        let e = e.doing(format_args!("starting MCP server {name}"));
        if !needs_hint {
            return e;
        }
        e.hint(format!(
            "add --read DIR or --write DIR: its sandbox shows the system's programs, state/mcp/{name}, and what its entry names"
        ))
    }

    /// # Errors
    /// Fails if the program was started too often.
    fn count_start(&self, state: &mut State) -> Result<()> {
        state.starts.retain(|start| start.elapsed() < PERIOD);
        if state.starts.len() < MAX_STARTS {
            state.starts.push_back(Instant::now());
            return Ok(());
        }
        let left = PERIOD.saturating_sub(state.starts[0].elapsed());
        Err(Error::failed(format!(
            "MCP server {}: it was started {MAX_STARTS} times within {} minutes, and is tried again in {} min; the last time: {}",
            self.definition.name,
            PERIOD.as_secs() / 60,
            left.as_secs() / 60 + 1,
            state.last_error
        )))
    }
}

/// Returns the error of a call whose turn has ended.
fn ended(reason: CancelReason) -> Error {
    match reason {
        CancelReason::Stopped => Error::new(Kind::Interrupted, "stopped"),
        CancelReason::Deadline => Error::new(Kind::Limit, "the turn timed out"),
    }
}

/// Shortens an error to one line: its first line, and the last two lines of the server's output.
pub(crate) fn brief(message: &str) -> String {
    let lines: Vec<&str> = message
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    match lines.as_slice() {
        [first, said @ ..] if !said.is_empty() => {
            let last = said[said.len().saturating_sub(2)..].join(" / ");
            to_single_line(&format!("{first} {last}"), 500)
        }
        _ => to_single_line(message, 500),
    }
}

/// Parses a message, or the messages of a batch. Text that is not JSON is a misplaced log line, or an event that only keeps a
/// connection alive.
fn parse(text: &str) -> Result<Vec<Value>> {
    let text = text.trim_start_matches('\u{feff}').trim();
    if count_values(text.as_bytes()).0 > MAX_VALUES {
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
    let megabytes = MAX_MESSAGE >> 20;
    Error::failed(format!("it sent a message of more than {megabytes} MB"))
}

/// Runs all parsers on a message, for the fuzzer.
#[cfg(test)]
pub(crate) fn read_frame(text: &str) {
    let servers = Servers::default();
    let connect = Box::new(|_: &Arc<ListStore>, _: &Cancel| Err(Error::failed("not connected")));
    let list = std::env::temp_dir().join("bantam-no-such-directory/fake.json");
    let server = servers.get(Definition::new(
        "fake",
        &McpServer::default(),
        list,
        connect,
    ));
    for message in parse(text).unwrap_or_default() {
        drop(client::reply_to(&message, &server.list));
        client::progress_token(&message);
        Listing::default().add(&[message]);
    }
}
