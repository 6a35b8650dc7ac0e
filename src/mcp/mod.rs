//! MCP: the tools of other people's servers (Model Context Protocol, revisions 2024-11-05 to 2025-11-25).
//!
//! A server starts at its first call and stays until this program ends. What its tools are is kept in
//! `state/mcp/NAME.json` as long as its entry in the configuration is the same, so that a turn that uses none of them
//! starts nothing; the server marks it as outdated by saying that its tools have changed. Whatever a server says is another's word: bounded, and marked for the model.

mod client;
mod http;
mod list;
mod stdio;
mod trust;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::cancel::{Cancel, CancelReason};
use crate::config::McpServer;
use crate::error::{Error, Kind, Result};
use crate::json::{count_values, parse_json};
use crate::log::{Level, Log};
use crate::redact::Redactor;
use crate::test_speed::paced;
use crate::text::{clip, one_line};
pub(crate) use client::Client;
use client::{Asides, Patience, Wait};
pub(crate) use http::Http;
pub(crate) use list::{Answer, RemoteTool, ToolList, refresh};
use list::{MAX_DESCRIPTION, RETRY_AFTER};
pub(crate) use stdio::Stdio;
pub(crate) use trust::{Changeable, Launch};

/// How long a server may take to start and to list its tools: `npx` and `uvx` may download it first.
const START: Duration = Duration::from_secs(60);
/// How long a call may take without a sign of progress, and with it.
const CALL: Duration = Duration::from_secs(60);
const CALL_WITH_PROGRESS: Duration = Duration::from_secs(600);
/// The first pause before a server elsewhere is asked again for its tools; each is twice the one before, up to [`RETRY_AFTER`].
const RETRY: Duration = Duration::from_secs(2);
/// The pause after each piece that a server says while nobody asks it: one that talks without end must not cost a processor.
const UNASKED_PAUSE: Duration = Duration::from_millis(10);
/// How often a server may start within [`PERIOD`].
const MAX_STARTS: usize = 3;
const PERIOD: Duration = Duration::from_secs(600);

/// How often a call looks whether the one before it has ended.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);
/// The most bytes of one message, which hold the largest image that is shown in base64, and the most values in it: in memory a
/// value may take hundreds of bytes. A message that is larger is skipped.
const MAX_MESSAGE: usize = 12 << 20;
const MAX_VALUES: usize = 50_000;

/// Carries messages to a server and back.
pub(crate) trait Transport: Send + Sync {
    /// What the server says between answers.
    fn asides(&self) -> Arc<Asides>;

    /// The revision of the protocol that the server has chosen.
    fn agreed(&self, _revision: &str) {}

    /// Sends a message that has no answer.
    fn notify(&self, message: &Value, within: Duration) -> Result<()>;

    /// Sends a request, and waits for its answer. Several may wait at once.
    fn request(&self, request: &Value, wait: &mut Wait) -> Result<Value>;

    /// Hears what the server says by itself from now on, where that takes a connection.
    fn listen(&self) {}

    /// Whether it still carries messages.
    fn is_sound(&self) -> bool;

    /// Whether the server has refused a request because it does not know this conversation any more.
    fn is_forgotten(&self) -> bool {
        false
    }
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
    /// It is a program that this one starts.
    is_local: bool,
    connect: Box<Connect>,
    state: Mutex<State>,
    /// Calls that only read run side by side, any other alone.
    calls: RwLock<()>,
    /// It has said that its tools have changed since it was asked for them last.
    is_outdated: Arc<AtomicBool>,
    /// See [`Servers::generation`].
    generation: Arc<AtomicU64>,
    /// Removes the keys of the configuration from what it says.
    pub(crate) redactor: Redactor,
    /// It is being asked for its tools in the background.
    is_asked: AtomicBool,
}

#[derive(Default)]
struct State {
    client: Option<Arc<Client>>,
    /// When it was started lately.
    starts: VecDeque<Instant>,
    /// Why it had to be started again, or could not be.
    last_error: String,
}

/// The servers that this program has to do with, by name. Conversations share them.
#[derive(Default)]
pub(crate) struct Servers {
    by_name: Mutex<BTreeMap<String, Arc<Server>>>,
    /// How often lists have changed.
    generation: Arc<AtomicU64>,
    /// Ends the wait for servers that are asked for their tools.
    ending: OnceLock<Cancel>,
    /// Nobody waits for them: see [`Servers::in_background`].
    is_background: bool,
    /// Until when they are asked, and where changes and failures are reported.
    background: OnceLock<(Cancel, Log)>,
}

impl Servers {
    /// Servers whose tools nobody waits for. They are asked from [`Servers::begin`] on.
    pub(crate) fn in_background() -> Self {
        Self {
            is_background: true,
            ..Self::default()
        }
    }

    /// Starts asking in the background, until `cancel` stops.
    pub(crate) fn begin(&self, cancel: &Cancel, log: Log) {
        drop(self.background.set((cancel.clone(), log)));
        let now = SystemTime::now();
        let all: Vec<_> = self.lock().values().cloned().collect();
        for server in all {
            if ToolList::read(&server, now).is_none_or(|list| list.is_outdated) {
                self.ask_in_background(server);
            }
        }
    }

    /// The end of this turn ends the wait for servers that are asked for their tools.
    pub(crate) fn end_with(&self, turn: &Cancel) {
        drop(self.ending.set(turn.clone()));
    }

    /// Asks servers for their tools, side by side: one that does not answer must not keep the others waiting. `None` for one
    /// that is asked in the background.
    pub(crate) fn ask_for_tools(&self, servers: &[Arc<Server>]) -> Vec<Option<Result<Answer>>> {
        if self.is_background {
            let asked = servers.iter().cloned();
            asked.for_each(|server| self.ask_in_background(server));
            return servers.iter().map(|_| None).collect();
        }
        let cancel = self.ending.get().cloned().unwrap_or_default();
        let ask = &|server: &Arc<Server>| refresh(server, SystemTime::now(), &cancel);
        thread::scope(|scope| {
            let spawn = |server| {
                let thread = thread::Builder::new().name("mcp".to_owned());
                thread.spawn_scoped(scope, move || ask(server))
            };
            let asked: Vec<_> = servers
                .iter()
                .map(|server| (server, spawn(server)))
                .collect();
            let answer = |(server, thread): (_, std::io::Result<ScopedJoinHandle<_>>)| {
                let Ok(thread) = thread else {
                    // The process may start no more threads: asking here only takes longer.
                    return Some(ask(server));
                };
                let panicked = |_| Err(Error::failed("asking it for its tools panicked"));
                Some(thread.join().unwrap_or_else(panicked))
            };
            asked.into_iter().map(answer).collect()
        })
    }

    fn ask_in_background(&self, server: Arc<Server>) {
        let Some((cancel, log)) = self.background.get().cloned() else {
            return;
        };
        if server.is_asked.swap(true, Ordering::SeqCst) {
            return;
        }
        let generation = self.generation.clone();
        let asked = server.clone();
        let work = move || {
            let mut failure = None;
            let mut pause = if server.is_local { RETRY_AFTER } else { RETRY };
            let mut server = server;
            loop {
                let answer = refresh(&server, SystemTime::now(), &cancel);
                if cancel.reason().is_some() {
                    return;
                }
                let (tools, change) = answer.unwrap_or_else(|e| (Err(e), None));
                if let Some(change) = change {
                    log.write(Level::Warn, &change);
                }
                let Err(e) = tools else {
                    // In this order: agents that are made now may have to ask again.
                    server.is_asked.store(false, Ordering::SeqCst);
                    generation.fetch_add(1, Ordering::SeqCst);
                    return;
                };
                // The same failure again is known, and changes nothing for the agents.
                if failure.as_ref() != Some(&e.message) {
                    generation.fetch_add(1, Ordering::SeqCst);
                    log.write(Level::Warn, &missing(&server.name, &e));
                    failure = Some(e.message);
                }
                let waiting = Arc::downgrade(&server);
                drop(server);
                // One that the configuration names no more is gone by then.
                server = match (cancel.sleep(paced(pause)), waiting.upgrade()) {
                    (Ok(()), Some(server)) => server,
                    _ => return,
                };
                pause = RETRY_AFTER.min(pause * 2);
            }
        };
        if thread::Builder::new()
            .name("mcp".to_owned())
            .spawn(work)
            .is_err()
        {
            // The next agent that is built tries again.
            asked.is_asked.store(false, Ordering::SeqCst);
        }
    }

    /// The server of this entry, whose list of tools is kept at `list`. One whose entry has changed ends when its last call
    /// does.
    pub(crate) fn get(
        &self,
        name: &str,
        entry: &McpServer,
        list: PathBuf,
        redactor: Redactor,
        connect: Box<Connect>,
    ) -> Arc<Server> {
        let mut servers = self.lock();
        let checksum = list::checksum(entry);
        if let Some(known) = servers.get(name).filter(|known| known.checksum == checksum) {
            return known.clone();
        }
        let server = Arc::new(Server {
            name: name.to_owned(),
            list,
            checksum,
            is_local: entry.url.is_empty(),
            connect,
            redactor,
            state: Mutex::default(),
            calls: RwLock::default(),
            is_outdated: Arc::default(),
            generation: self.generation.clone(),
            is_asked: AtomicBool::new(false),
        });
        servers.insert(name.to_owned(), server.clone());
        server
    }

    /// Changes whenever the list of a server's tools does: who holds their tools has to make them again.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Server>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Calls a tool. `tell` hears of progress.
    ///
    /// # Errors
    /// In words for the model. A server that broke off is started again by the next call.
    pub(crate) fn call(
        &self,
        tool: &RemoteTool,
        arguments: &Value,
        cancel: &Cancel,
        tell: &dyn Fn(String),
    ) -> Result<Value> {
        let params = json!({"name": tool.name, "arguments": arguments});
        let progress = |text: &str| tell(format!("MCP server {}: {text}", self.name));
        let patience = Patience {
            silence: CALL,
            most: CALL_WITH_PROGRESS,
            progress: &progress,
        };
        let ask = |client: &Client| client.request("tools/call", params.clone(), &patience, cancel);
        if tool.read_only {
            let _side_by_side = take(|| self.calls.try_read(), cancel)?;
            self.with_client(cancel, ask)
        } else {
            let _alone = take(|| self.calls.try_write(), cancel)?;
            self.with_client(cancel, ask)
        }
    }

    /// Asks for its tools. They come without the keys that the server was given: its words go into each request.
    fn tools(&self, cancel: &Cancel) -> Result<Vec<RemoteTool>> {
        self.is_outdated.store(false, Ordering::SeqCst);
        let mut tools = self.with_client(cancel, |client| client.list_tools(START, cancel))?;
        for tool in &mut tools {
            for text in [&mut tool.name, &mut tool.description, &mut tool.schema] {
                *text = self.redactor.redact(std::mem::take(text));
            }
            let shown = clip(&tool.description, MAX_DESCRIPTION).len();
            tool.description.truncate(shown);
        }
        Ok(tools)
    }

    /// Marks the list of tools as outdated whenever the server says that they have changed.
    fn on_change(&self) -> Box<dyn Fn() + Send + Sync> {
        let (list, is_outdated) = (self.list.clone(), self.is_outdated.clone());
        let generation = self.generation.clone();
        Box::new(move || {
            if !is_outdated.swap(true, Ordering::SeqCst) {
                list::mark_outdated(&list);
                generation.fetch_add(1, Ordering::SeqCst);
            }
        })
    }

    /// A server may repeat the keys that it was given in its errors, and in its last words.
    fn with_client<T>(&self, cancel: &Cancel, work: impl Fn(&Client) -> Result<T>) -> Result<T> {
        self.work_with_client(cancel, work).map_err(|e| Error {
            message: self.redactor.redact(e.message),
            ..e
        })
    }

    fn work_with_client<T>(
        &self,
        cancel: &Cancel,
        work: impl Fn(&Client) -> Result<T>,
    ) -> Result<T> {
        let client = self.client(cancel)?;
        let mut result = work(&client);
        if result.is_err() && client.is_forgotten() {
            // Nothing was run: a new conversation begins with the same request.
            self.put_away(&client, "it has forgotten this session");
            let client = self.client(cancel)?;
            result = work(&client);
            self.check(&client, &result);
        } else {
            self.check(&client, &result);
        }
        result.map_err(|e| match e.kind {
            Kind::Interrupted => e,
            _ => e.doing(format_args!("MCP server {}", self.name)),
        })
    }

    /// Puts a client away that can be used no more.
    fn check<T>(&self, client: &Arc<Client>, result: &Result<T>) {
        if !client.is_sound() {
            let why = result.as_ref().err().map_or("it ended", |e| &e.message);
            self.put_away(client, why);
        }
    }

    fn put_away(&self, client: &Arc<Client>, why: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state
            .client
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(known, client))
        {
            state.client = None;
            state.last_error = brief(why);
        }
    }

    /// The running server, started if it has to be.
    fn client(&self, cancel: &Cancel) -> Result<Arc<Client>> {
        let mut state = take(|| self.state.try_lock(), cancel)?;
        if let Some(client) = state.client.as_ref().filter(|client| client.is_sound()) {
            return Ok(client.clone());
        }
        // One that ended while nobody asked it anything.
        state.client = None;
        if self.is_local {
            self.count_start(&mut state)?;
        }
        let started = (self.connect)(cancel)
            .and_then(|transport| Client::start(transport, self.on_change(), START, cancel))
            .map_err(|e| with_grants(e, &self.name));
        match started {
            Ok(client) => Ok(state.client.insert(Arc::new(client)).clone()),
            Err(e) => {
                state.last_error = brief(&e.message);
                Err(e.doing(format_args!("starting MCP server {}", self.name)))
            }
        }
    }

    /// # Errors
    /// A program that ends again and again is left alone for a while.
    fn count_start(&self, state: &mut State) -> Result<()> {
        state.starts.retain(|start| start.elapsed() < PERIOD);
        let Some(first) = state
            .starts
            .front()
            .filter(|_| state.starts.len() == MAX_STARTS)
        else {
            state.starts.push_back(Instant::now());
            return Ok(());
        };
        let minutes = (PERIOD.saturating_sub(first.elapsed()).as_secs() / 60) + 1;
        let e = Error::failed(format!(
            "it was started {MAX_STARTS} times within {} minutes, and is tried again in {minutes} min; the last time: {}",
            PERIOD.as_secs() / 60,
            state.last_error
        ));
        Err(e.doing(format_args!("MCP server {}", self.name)))
    }
}

/// The one line of a run that misses a server's tools.
pub(crate) fn missing(name: &str, e: &Error) -> String {
    let why = brief(&e.message);
    let hint = e.hint.as_deref().map(|hint| format!(" ({hint})"));
    let hint = hint.unwrap_or_default();
    format!("{}{why}{hint}", missing_prefix(name))
}

pub(crate) fn missing_prefix(name: &str) -> String {
    format!("the tools of the MCP server {name} are missing: ")
}

/// An error in one line: what went wrong, and the last two lines that the server said.
pub(crate) fn brief(message: &str) -> String {
    let lines: Vec<&str> = message
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    match lines.as_slice() {
        [first, said @ ..] if !said.is_empty() => {
            let last = said[said.len().saturating_sub(2)..].join(" / ");
            one_line(&format!("{first} {last}"), 500)
        }
        _ => one_line(message, 500),
    }
}

/// Waits for a lock, unless the turn ends first.
fn take<G>(attempt: impl Fn() -> Result<G, TryLockError<G>>, cancel: &Cancel) -> Result<G> {
    loop {
        match attempt() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(e)) => return Ok(e.into_inner()),
            Err(TryLockError::WouldBlock) => cancel.sleep(LOCK_INTERVAL).map_err(ended)?,
        }
    }
}

/// Adds what an entry can grant: a server that ends at once may have failed for want of it.
fn with_grants(e: Error, name: &str) -> Error {
    if e.hint.is_some() || !e.message.starts_with("it ended and said") {
        return e;
    }
    e.hint(format!(
        "read, write and network of mcpServers.{name} say what its sandbox lets it reach (--read DIR, --write DIR)"
    ))
}

/// The error of a call whose turn has ended.
fn ended(why: CancelReason) -> Error {
    match why {
        CancelReason::Stopped => Error::new(Kind::Interrupted, "stopped"),
        CancelReason::Deadline => Error::new(Kind::Limit, "the turn timed out"),
    }
}

/// Reads a message, or the messages of a batch. Text that is not JSON holds none: a server's log in the wrong place, or an
/// event that keeps a connection alive.
fn parse(text: &str) -> Result<Vec<Value>> {
    // Some servers begin with a byte order mark, and answers would be waited for behind it.
    let text = text.trim_start_matches('\u{feff}').trim();
    if count_values(text.as_bytes()) > MAX_VALUES {
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

/// All that is read of what a server says.
#[cfg(test)]
pub(crate) fn read_frame(text: &str) {
    let asides = Asides::default();
    for message in parse(text).unwrap_or_default() {
        drop(asides.receive(&message));
        client::progress_token(&message);
        drop(list::bounded(&message));
    }
}
