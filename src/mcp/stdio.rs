//! A server that bantam starts, with one JSON message per line on its standard input and output.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::{Failure, Transport, Wait, progress_token, reply_to};
use super::list::ListStore;
use super::{MAX_MESSAGE, parse, too_long};
use crate::error::{Context, Error, Result};
use crate::sync;
use crate::text::foreign_line;
use crate::worker::protocol::{Header, Message, Termination, receive_message};
use crate::worker::{Served, WorkerProcess};

/// Time limit for a server and its worker to end; longer than a worker takes after losing its caller.
const GRACE: Duration = Duration::from_secs(5);
/// Time limit for a server to read its last messages.
const LAST_INPUT: Duration = Duration::from_millis(500);
/// Maximum size of a skipped message, in bytes.
const MAX_SKIPPED: usize = 64 << 20;
/// Pause after each read without waiting requests, so that a server with endless output does not use a whole CPU.
const IDLE_PAUSE: Duration = Duration::from_millis(10);
/// Maximum length of a line of a program's last output, in characters.
const MAX_LINE: usize = 300;
/// Maximum number of queued messages for the server, and for a request.
const QUEUE: usize = 64;

/// A server in a worker. Two threads read and write, because a pipe buffers 64 KB and a server may not read.
pub(crate) struct Stdio {
    process: WorkerProcess,
    socket: UnixStream,
    shared: Arc<Shared>,
}

struct Shared {
    list: Arc<ListStore>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Messages for the server; `None` when it has to end.
    input: Option<SyncSender<String>>,
    /// Waiting requests by id.
    waiting: BTreeMap<u64, SyncSender<Event>>,
    /// Reason for the end of the output.
    ended: Option<String>,
}

/// An event for a waiting request.
enum Event {
    Message(Value),
    Failed(String),
    Stopped,
}

impl Stdio {
    /// Connects to a started server.
    pub(crate) fn new(served: Served, list: Arc<ListStore>) -> Result<Self> {
        let Served {
            process,
            socket,
            output,
        } = served;
        let clone = || socket.try_clone().doing("opening the server's input");
        let (mut input, last_words) = (clone()?, clone()?);
        let (sender, messages) = sync_channel::<String>(QUEUE);
        let state = State {
            input: Some(sender),
            ..State::default()
        };
        let shared = Arc::new(Shared {
            list,
            state: Mutex::new(state),
        });
        let reader = shared.clone();
        let read = move || {
            let reason = reader.read_all(output, &last_words);
            reader.lock().ended = Some(reason.clone());
            reader.fail_all(&reason);
        };
        let write = move || {
            for message in messages {
                if input.write_all(message.as_bytes()).is_err() {
                    return;
                }
            }
            // At the end of its input a server normally ends; otherwise the worker ends it.
            drop(input.shutdown(Shutdown::Both));
        };
        start_thread(Box::new(read))?;
        start_thread(Box::new(write))?;
        Ok(Self {
            process,
            socket,
            shared,
        })
    }
}

fn start_thread(work: Box<dyn FnOnce() + Send>) -> Result<()> {
    let thread = thread::Builder::new().name("mcp".to_owned()).spawn(work);
    thread.map(drop).doing("starting a thread")
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }

    /// Handles each line until the output ends, and returns the reason for the end.
    fn read_all(&self, mut output: impl Read, socket: &UnixStream) -> String {
        let mut line = Vec::new();
        // Number of skipped bytes of a line that is too long.
        let mut skipped = 0;
        let mut piece = vec![0; 16 << 10];
        loop {
            let read = match output.read(&mut piece) {
                Ok(0) => return last_words(socket),
                Ok(read) => read,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return format!("reading from it: {e}"),
            };
            for part in piece[..read].split_inclusive(|byte| *byte == b'\n') {
                let is_end = part.ends_with(b"\n");
                if skipped > 0 {
                    skipped = if is_end { 0 } else { skipped + part.len() };
                    if skipped > MAX_SKIPPED {
                        return format!("it sent {} MB without an end", MAX_SKIPPED >> 20);
                    }
                    continue;
                }
                line.extend_from_slice(part);
                if line.len() > MAX_MESSAGE {
                    self.fail_all(&too_long().message);
                    skipped = if is_end { 0 } else { line.len() };
                    line = Vec::new();
                } else if is_end {
                    self.handle(&line);
                    line.clear();
                }
            }
            if self.lock().waiting.is_empty() {
                thread::sleep(IDLE_PAUSE);
            }
        }
    }

    fn handle(&self, line: &[u8]) {
        match parse(&String::from_utf8_lossy(line)) {
            Ok(messages) => messages.into_iter().for_each(|message| self.route(message)),
            Err(e) => self.fail_all(&e.message),
        }
    }

    /// Passes a message to the request that it answers or concerns.
    fn route(&self, message: Value) {
        let mut state = self.lock();
        if let Some(id) = progress_token(&message) {
            if let Some(request) = state.waiting.get(&id) {
                // A full queue contains enough reports.
                drop(request.try_send(Event::Message(message)));
            }
            return;
        }
        if message["method"].is_null() {
            let id = message["id"].as_u64().unwrap_or_default();
            let request = state.waiting.remove(&id);
            drop(state);
            if let Some(request) = request {
                // Fails if the request has stopped waiting.
                drop(request.send(Event::Message(message)));
            }
            return;
        }
        drop(state);
        if let Some(reply) = reply_to(&message, &self.list) {
            // The next request detects a server that does not read.
            drop(self.send(&reply));
        }
    }

    fn fail_all(&self, reason: &str) {
        for request in std::mem::take(&mut self.lock().waiting).values() {
            drop(request.try_send(Event::Failed(reason.to_owned())));
        }
    }

    fn send(&self, message: &Value) -> Result<()> {
        let state = self.lock();
        if let Some(reason) = &state.ended {
            return Err(Error::failed(reason.clone()));
        }
        let Some(input) = &state.input else {
            return Err(Error::failed("it ended"));
        };
        let sent = input.try_send(format!("{message}\n"));
        sent.map_err(|_| Error::failed("it does not read its input"))
    }
}

/// Returns the reason for the end of the output, as reported by the worker.
fn last_words(mut socket: &UnixStream) -> String {
    drop(socket.set_read_timeout(Some(GRACE)));
    let why = match receive_message(&mut socket) {
        Ok(Message::Done(Header::Refused { why })) => why,
        Ok(Message::Done(Header::Exited(Termination::TooManyProcesses))) => {
            return "it started too many processes".to_owned();
        }
        _ => return "it ended".to_owned(),
    };
    let lines: Vec<String> = why
        .lines()
        .map(|line| foreign_line(line, MAX_LINE))
        .collect();
    lines.join("\n")
}

impl Transport for Stdio {
    fn request(&self, request: &Value, wait: &mut Wait) -> Result<Value, Failure> {
        let (sender, events) = sync_channel(QUEUE);
        let waker = sender.clone();
        let _hook = wait.cancel.on_stop(move || {
            // A full queue also wakes the request.
            drop(waker.try_send(Event::Stopped));
        });
        self.shared.lock().waiting.insert(wait.id, sender);
        let answer = self
            .shared
            .send(request)
            .map_err(Failure::from)
            .and_then(|()| {
                loop {
                    match events.recv_timeout(wait.left()) {
                        Ok(Event::Message(message)) if wait.is_answer(&message) => {
                            return Ok(message);
                        }
                        Ok(Event::Message(message)) => wait.progressed(&message),
                        Ok(Event::Failed(reason)) => return Err(Failure::failed(reason)),
                        Ok(Event::Stopped) if wait.cancel.reason().is_none() => {}
                        Ok(Event::Stopped) => return Err(Failure::failed("stopped")),
                        Err(RecvTimeoutError::Timeout) if !wait.left().is_zero() => {}
                        Err(RecvTimeoutError::Timeout) => {
                            return Err(Failure::failed("no answer in time"));
                        }
                        Err(RecvTimeoutError::Disconnected) => {
                            return Err(Failure::failed("it ended"));
                        }
                    }
                }
            });
        self.shared.lock().waiting.remove(&wait.id);
        answer
    }

    fn notify(&self, message: &Value, _within: Duration) {
        // The next request detects a server that has ended.
        drop(self.shared.send(message));
    }

    fn is_open(&self) -> bool {
        self.shared.lock().ended.is_none()
    }
}

impl Drop for Stdio {
    fn drop(&mut self) {
        // The end of its input ends the server, and the worker ends all remaining processes.
        self.shared.lock().input = None;
        let started = Instant::now();
        let mut is_cut = false;
        while !self.process.has_ended() && started.elapsed() < GRACE {
            if !is_cut && started.elapsed() >= LAST_INPUT {
                // Also if the server does not read, and the last message is still being written.
                drop(self.socket.shutdown(Shutdown::Both));
                is_cut = true;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}
