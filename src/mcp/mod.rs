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

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bus::Event;
use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::json::{count_values, parse_json};
use crate::log::{Level, Log};
use crate::redact::Redactor;
use crate::sync;
use crate::text::{foreign_line, to_single_line};
use crate::tries::back_off;
use client::{Connection, Failure, Transport};
use http::Http;
pub(crate) use http::Remote;
pub(crate) use launch::Program;
pub(crate) use list::{RemoteTool, checksum, missing};
use stdio::Stdio;

/// Time limit for starting a server and for listing its tools, because `npx` and `uvx` may download it first.
const START: Duration = Duration::from_secs(60);
/// Time limit for listing the tools of a running server, for which a call waits.
const REFRESH: Duration = Duration::from_secs(5);
/// Time limit of a call, and the longest one of a request.
const CALL: Duration = Duration::from_secs(300);
/// First and longest pause before the gateway lists servers again. The pause doubles each time.
const RETRY: Duration = Duration::from_secs(2);
const MAX_RETRY: Duration = Duration::from_secs(600);
/// Maximum number of starts of a program within [`PERIOD`].
const MAX_STARTS: usize = 3;
/// Time for which failed starts count.
const PERIOD: Duration = Duration::from_secs(600);
/// Interval of a call's checks whether another call has started the server.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum time between notifications to the owner about a server's changed tools.
const TELL_AGAIN: Duration = Duration::from_secs(24 * 3600);
/// Limits of one message: bytes, enough for the largest image in base64, and values, which take hundreds of bytes each in
/// memory. A larger message fails its call.
const MAX_MESSAGE: usize = 12 << 20;
const MAX_VALUES: usize = 50_000;
/// Maximum length of a message in an error, in characters.
const MAX_SHOWN: usize = 300;

/// A program of this machine, or a server elsewhere.
pub(crate) enum ServerKind {
    Program(Box<Program>),
    Remote(Box<Remote>),
}

/// Definition of a server, from an entry of `mcpServers`.
pub(crate) struct Definition {
    pub name: String,
    /// Checksum of the entry.
    pub checksum: String,
    pub kind: ServerKind,
    /// Path of the stored tool list.
    pub list: PathBuf,
    /// Removes the keys of the configuration from the server's output.
    pub redactor: Redactor,
}

/// A configured server with up to one connection.
pub(crate) struct Server {
    pub definition: Definition,
    common: Arc<Common>,
    /// Locked during a start.
    run: Mutex<Run>,
    /// Whether the user knows that the server does not start.
    is_down: AtomicBool,
    /// Time of the last notification to the owner about changed tools.
    told: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Run {
    connection: Option<Arc<Connection>>,
    /// Times of the program's starts within [`PERIOD`].
    starts: Vec<Instant>,
}

/// The gateway of the servers. It lists them until its end.
pub(crate) struct Keeper {
    pub cancel: Cancel,
    pub log: Log,
    /// Notifies the bot's owner, who may not read the log.
    pub tell_owner: Arc<dyn Fn(&str) + Send + Sync>,
}

#[derive(Default)]
struct Common {
    /// Whether a stored list has changed since the agent was built.
    has_changed: AtomicBool,
    keeper: OnceLock<Keeper>,
}

/// The servers of a process, by name.
#[derive(Default)]
pub(crate) struct Servers {
    by_name: Mutex<BTreeMap<String, Arc<Server>>>,
    common: Arc<Common>,
    /// Ends the wait for unknown tools; stopped if nobody waits for them.
    pub patience: Mutex<Cancel>,
}

impl Servers {
    /// Returns the server with this definition; creates it if it is new or its entry has changed.
    pub(crate) fn get(&self, definition: Definition) -> Arc<Server> {
        let mut servers = sync::lock(&self.by_name);
        match servers.get(&definition.name) {
            Some(known) if known.definition.checksum == definition.checksum => known.clone(),
            _ => {
                let server = Arc::new(Server {
                    definition,
                    common: self.common.clone(),
                    run: Mutex::default(),
                    is_down: AtomicBool::default(),
                    told: Mutex::default(),
                });
                servers.insert(server.definition.name.clone(), server.clone());
                server
            }
        }
    }

    /// Whether a list has changed since the last call of this function, so that the agent has to be built again.
    pub(crate) fn take_changed(&self) -> bool {
        self.common.has_changed.swap(false, Ordering::SeqCst)
    }

    /// Lists those of these servers whose tools are unknown, unless nobody waits for them. Returns notices for the user.
    pub(crate) fn list_unknown(&self, servers: &[Arc<Server>]) -> Vec<String> {
        let cancel = sync::lock(&self.patience).clone();
        if cancel.reason().is_some() {
            return Vec::new();
        }
        list_all(&without_tools(servers), Server::list_first, &cancel)
    }

    /// Lists servers without tools in a thread, with retries, because a board may start before its network. Later turns have
    /// the tools.
    pub(crate) fn keep_listing(&self, keeper: Keeper) {
        let servers: Vec<_> = sync::lock(&self.by_name).values().cloned().collect();
        let (cancel, log) = (keeper.cancel.clone(), keeper.log);
        drop(self.common.keeper.set(keeper));
        let list = move || {
            let mut reported = Vec::new();
            for failures in 0.. {
                let unknown = without_tools(&servers);
                if unknown.is_empty() {
                    return;
                }
                let notices = list_all(&unknown, Server::list, &cancel);
                for text in notices.iter().filter(|text| !reported.contains(*text)) {
                    log.write(Level::Warn, text);
                }
                reported = notices;
                if cancel.sleep(back_off(failures, RETRY, MAX_RETRY)).is_err() {
                    return;
                }
            }
        };
        // Without a thread, their tools are missing until the next start.
        drop(thread::Builder::new().name("mcp".to_owned()).spawn(list));
    }
}

fn without_tools(servers: &[Arc<Server>]) -> Vec<Arc<Server>> {
    let unknown = servers.iter().filter(|server| server.tools().is_none());
    unknown.cloned().collect()
}

type Lister = fn(&Server, &Cancel) -> Result<Option<String>>;

/// Lists servers in parallel, because each may take a minute. Returns notices for the user.
fn list_all(servers: &[Arc<Server>], list: Lister, cancel: &Cancel) -> Vec<String> {
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for server in servers {
            let thread = thread::Builder::new().name("mcp".to_owned());
            threads.push(thread.spawn_scoped(scope, move || list(server, cancel)));
        }
        let mut notices = Vec::new();
        for (server, thread) in servers.iter().zip(threads) {
            let listed = thread.ok().and_then(|thread| thread.join().ok());
            // If no thread can start, the servers are listed one by one.
            match listed.unwrap_or_else(|| list(server, cancel)) {
                Ok(warning) => notices.extend(warning),
                Err(e) if e.kind == Kind::Interrupted => {}
                Err(e) => notices.push(missing(&server.definition.name, &e)),
            }
        }
        notices
    })
}

impl Server {
    /// Starts or connects to the server if necessary, lists its tools, and stores the list. Returns a warning about changes.
    pub(crate) fn list(&self, cancel: &Cancel) -> Result<Option<String>> {
        let connection = self.open(cancel)?;
        let found = connection.list_tools(&self.definition.redactor, START, cancel);
        self.store(found.map_err(|failure| self.fail(&connection, failure))?)
    }

    /// Calls a tool, with its name and arguments in `params`. If the user allowed it, it must be `unchanged` on the connection
    /// that is used. `events` gets warnings about the server.
    ///
    /// # Errors
    /// Errors are for the model, with the server's message. A program that ended is started again at the next call.
    pub(crate) fn call(
        &self,
        params: &Value,
        unchanged: Option<&RemoteTool>,
        cancel: &Cancel,
        events: &dyn Fn(Event),
    ) -> Result<Value> {
        let connection = self.connect(cancel, events)?;
        self.refresh(&connection, cancel, events);
        let has_changed = |tool| self.tools().is_some_and(|tools| !tools.contains(tool));
        if unchanged.is_some_and(has_changed) {
            return Err(Error::failed(
                "the tool has changed: the user can allow it again from the next message on",
            ));
        }
        let result = connection.request("tools/call", params, CALL, cancel);
        let result = result.map_err(|failure| self.fail(&connection, failure))?;
        self.refresh(&connection, cancel, events);
        if result["resultType"] == "input_required" {
            let what = "it asks for more input during the call, which is not supported";
            return Err(self.named(Error::failed(what)));
        }
        Ok(result)
    }

    /// Returns a connection for a call. Warns once about a server that does not start, because its tools are still offered.
    fn connect(&self, cancel: &Cancel, events: &dyn Fn(Event)) -> Result<Arc<Connection>> {
        let opened = self.open(cancel);
        let is_down = opened.is_err() && cancel.reason().is_none();
        let was_down = self.is_down.swap(is_down, Ordering::SeqCst);
        if let (Err(e), true) = (&opened, is_down && !was_down) {
            let text = missing(&self.definition.name, e);
            self.tell_owner(&text);
            events(Event::Warning(text));
        }
        opened
    }

    /// Lists the tools after a start or an announced change. Without an answer, the known tools remain.
    fn refresh(&self, connection: &Connection, cancel: &Cancel, events: &dyn Fn(Event)) {
        if !connection.is_outdated() {
            return;
        }
        match connection.list_tools(&self.definition.redactor, REFRESH, cancel) {
            Ok(tools) => {
                let warning = self.store(tools).unwrap_or_else(|e| Some(e.message));
                warning.into_iter().map(Event::Warning).for_each(events);
            }
            Err(Failure::Silent(_)) => connection.is_mute.store(true, Ordering::SeqCst),
            Err(_) => {}
        }
    }

    /// Notifies the owner about changed tools, with a minimum interval, because a server could change them at each call.
    fn tell_of_change(&self, text: &str) {
        let mut told = sync::lock(&self.told);
        if told.is_none_or(|told| told.elapsed() >= TELL_AGAIN) {
            *told = Some(Instant::now());
            drop(told);
            self.tell_owner(text);
        }
    }

    fn tell_owner(&self, text: &str) {
        if let Some(keeper) = self.common.keeper.get() {
            (keeper.tell_owner)(text);
        }
    }

    /// Converts a failure to an error. Ends an unusable connection.
    fn fail(&self, connection: &Connection, failure: Failure) -> Error {
        if matches!(failure, Failure::NoSession | Failure::Silent(_)) {
            connection.is_lost.store(true, Ordering::SeqCst);
        }
        let e = failure.into_error(&self.definition);
        if e.kind == Kind::Interrupted {
            return e;
        }
        self.named(e)
    }

    fn named(&self, e: Error) -> Error {
        e.doing(format_args!("MCP server {}", self.definition.name))
    }

    /// Returns the open connection, or a new one.
    fn open(&self, cancel: &Cancel) -> Result<Arc<Connection>> {
        let mut run = loop {
            match self.run.try_lock() {
                Ok(run) => break run,
                Err(TryLockError::Poisoned(e)) => break e.into_inner(),
                // Another call is starting the server.
                Err(TryLockError::WouldBlock) => cancel
                    .sleep(LOCK_INTERVAL)
                    .map_err(|_| Error::new(Kind::Interrupted, "stopped"))?,
            }
        };
        drop(run.connection.take_if(|known| !known.is_open()));
        if let Some(connection) = &run.connection {
            return Ok(connection.clone());
        }
        if matches!(self.definition.kind, ServerKind::Program(_)) {
            self.count_start(&mut run.starts)?;
        }
        let started = self.start(cancel);
        let connection = started.map_err(|failure| self.explain_start(failure))?;
        Ok(run.connection.insert(Arc::new(connection)).clone())
    }

    fn start(&self, cancel: &Cancel) -> Result<Connection, Failure> {
        let is_outdated = Arc::new(AtomicBool::new(true));
        let transport: Box<dyn Transport> = match &self.definition.kind {
            ServerKind::Program(program) => {
                let served = program.start(&self.definition.name, cancel)?;
                Box::new(Stdio::new(served, is_outdated.clone())?)
            }
            ServerKind::Remote(remote) => Box::new(Http::new(remote, is_outdated.clone())),
        };
        Connection::start(transport, is_outdated, cancel)
    }

    fn explain_start(&self, failure: Failure) -> Error {
        let (e, name) = (failure.into_error(&self.definition), &self.definition.name);
        let e = e.doing(format_args!("starting MCP server {name}"));
        let is_program = matches!(self.definition.kind, ServerKind::Program(_));
        if !is_program || e.hint.is_some() || e.kind != Kind::Failed {
            return e;
        }
        e.hint(format!(
            "add --read DIR or --write DIR: its sandbox shows programs, state/mcp/{name}, and what its entry names"
        ))
    }

    /// # Errors
    /// Fails if the program was started too often.
    fn count_start(&self, starts: &mut Vec<Instant>) -> Result<()> {
        starts.retain(|start| start.elapsed() < PERIOD);
        if starts.len() < MAX_STARTS {
            starts.push(Instant::now());
            return Ok(());
        }
        let minutes = PERIOD.as_secs() / 60;
        let what = format!("it was started {MAX_STARTS} times within {minutes} minutes: try later");
        Err(self.named(Error::failed(what)))
    }
}

/// Shortens an error to one line: its first line, and the last two lines of the server's output.
pub(crate) fn brief(message: &str) -> String {
    let mut lines = message.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    let said: Vec<&str> = lines.collect();
    let last = said[said.len().saturating_sub(2)..].join(" / ");
    to_single_line(format!("{first} {last}").trim(), 500)
}

/// Parses a message, or the messages of a batch. Other text is a misplaced log line, or an event that only keeps a connection
/// alive.
fn parse(text: &str) -> Result<Vec<Value>> {
    let text = text.trim_start_matches('\u{feff}').trim();
    if count_values(text.as_bytes()).0 > MAX_VALUES {
        let what = format!("sent a message of more than {MAX_VALUES} values");
        return Err(Error::failed(what));
    }
    match parse_json(text) {
        Ok(Value::Array(batch)) => Ok(batch),
        Ok(message) => Ok(vec![message]),
        Err(_) if text.starts_with(['{', '[', '"']) && text.contains("\"jsonrpc\"") => {
            Err(Error::failed(format!(
                "sent a message that is not JSON in one line: {}",
                foreign_line(text, MAX_SHOWN)
            )))
        }
        Err(_) => Ok(Vec::new()),
    }
}

fn too_long() -> Error {
    let megabytes = MAX_MESSAGE >> 20;
    Error::failed(format!("sent a message of more than {megabytes} MB"))
}

#[cfg(test)]
pub(crate) use tests::read_frame;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Settings;
    use std::net::TcpListener;

    #[test]
    fn a_stopped_call_does_not_wait_for_another_that_starts_the_server() {
        // Accepts connections and never answers.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Servers::default().get(Definition {
            name: "slow".to_owned(),
            checksum: String::new(),
            kind: ServerKind::Remote(Box::new(Remote {
                settings: Settings::default(),
                url: format!("http://{}/", listener.local_addr().unwrap()),
                headers: Vec::new(),
            })),
            list: PathBuf::new(),
            redactor: Redactor::default(),
        });
        let call = |cancel: &Cancel| server.call(&Value::Null, None, cancel, &|_| ());
        let (waiting, stopped) = (Cancel::default(), Cancel::default());
        stopped.stop();
        thread::scope(|scope| {
            let first = scope.spawn(|| call(&waiting));
            let _open = listener.accept().unwrap();
            let started = Instant::now();
            let error = call(&stopped).unwrap_err();
            assert_eq!(error.kind, Kind::Interrupted);
            assert!(started.elapsed() < START / 2);
            waiting.stop();
            assert!(first.join().unwrap().is_err());
        });
    }

    #[test]
    fn a_log_line_about_a_message_is_no_message() {
        let line = r#"DEBUG request: {"jsonrpc":"2.0","id":3}"#;
        assert_eq!(parse(line).unwrap(), Vec::<Value>::new());
        for broken in [r#"{"jsonrpc": "2.0","#, r#"  "jsonrpc": "2.0","#] {
            assert!(parse(broken).is_err(), "{broken}");
        }
    }

    /// Runs all parsers on a message, for the fuzzer.
    pub(crate) fn read_frame(text: &str) {
        let messages = parse(text).unwrap_or_default();
        for message in &messages {
            drop(client::reply_to(message, &AtomicBool::default()));
            RemoteTool::read(message, &Redactor::default());
        }
    }
}
