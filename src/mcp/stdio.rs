//! A server that bantam starts, with one JSON message per line on its standard input and output.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::{Failure, Transport, reply_to, request_number};
use super::{CALL, MAX_MESSAGE, MAX_SHOWN, parse, too_long};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Result};
use crate::sync;
use crate::text::foreign_line;
use crate::worker::protocol::Termination::TooManyProcesses;
use crate::worker::protocol::{Header, Message, receive_message};
use crate::worker::{Worker, WorkerProcess};

/// Time limit for a server and its worker to end; longer than a worker takes after losing its caller.
const GRACE: Duration = Duration::from_secs(5);
/// Time limit for a server to read a message, which may exceed the buffer of its pipe.
const INPUT: Duration = Duration::from_secs(5);
/// Pause after each line without waiting requests, so that a server with endless output does not use a whole CPU.
const IDLE_PAUSE: Duration = Duration::from_millis(10);
/// Number of lines on standard output that are not messages and that an error shows.
const MAX_PRINTED: usize = 3;

/// A server in a worker. A thread reads its messages.
pub(super) struct Stdio {
    process: WorkerProcess,
    shared: Arc<Shared>,
}

struct Shared {
    /// See [`reply_to`].
    is_outdated: Arc<AtomicBool>,
    /// The server's standard input. The worker reports at its other end why the server ended.
    input: Mutex<UnixStream>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Waiting requests by id.
    waiting: BTreeMap<u64, SyncSender<Arrival>>,
    /// Reason for the end of the output.
    ended: Option<String>,
    /// Last lines that are not messages.
    printed: VecDeque<String>,
}

/// The response to a waiting request, or the reason for its failure.
type Arrival = Result<Value, String>;

impl Stdio {
    /// Connects to a started server.
    pub(super) fn new(served: Worker, is_outdated: Arc<AtomicBool>) -> Result<Self> {
        let socket = served.socket;
        socket.set_write_timeout(Some(INPUT))?;
        let last_words = socket.try_clone().doing("opening the server's input")?;
        let shared = Arc::new(Shared {
            is_outdated,
            input: Mutex::new(socket),
            state: Mutex::default(),
        });
        let (reader, output) = (shared.clone(), BufReader::new(served.output));
        let read = move || {
            let mut reason = reader.read_all(output, &last_words);
            let printed = reader.printed();
            if !printed.is_empty() && !reason.contains('\n') {
                reason = format!("{reason} and said:\n{printed}");
            }
            reader.lock().ended = Some(reason.clone());
            reader.fail_all(&reason);
        };
        let thread = thread::Builder::new().name("mcp".to_owned()).spawn(read);
        thread.doing("starting a thread")?;
        Ok(Self {
            process: served.process,
            shared,
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }

    /// Handles each line until the output ends or a line is too long, and returns the reason for the end.
    fn read_all(&self, mut output: impl BufRead, socket: &UnixStream) -> String {
        loop {
            let mut line = Vec::new();
            let mut piece = output.by_ref().take(MAX_MESSAGE as u64 + 1);
            if let Err(e) = piece.read_until(b'\n', &mut line) {
                return format!("reading from it: {e}");
            }
            if line.len() > MAX_MESSAGE {
                return too_long().message;
            }
            if !line.ends_with(b"\n") {
                return last_words(socket);
            }
            self.handle(&line);
            if self.lock().waiting.is_empty() {
                thread::sleep(IDLE_PAUSE);
            }
        }
    }

    fn handle(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        match parse(&text) {
            Ok(messages) if messages.iter().any(Value::is_object) => {
                for message in messages {
                    self.route(message, &text);
                }
            }
            Ok(_) => self.keep_printed(&text),
            Err(e) => self.fail_all(&e.message),
        }
    }

    /// Passes a message to the request that it answers. `line` is its text.
    fn route(&self, message: Value, line: &str) {
        if !message["method"].is_null() {
            if let Some(reply) = reply_to(&message, &self.is_outdated) {
                // The next request detects a server that does not read.
                drop(self.send(&reply));
            }
        } else if let Some(id) = request_number(&message) {
            // Without a request, the answer is late.
            if let Some(request) = self.lock().waiting.remove(&id) {
                // Fails if the request has stopped waiting.
                drop(request.try_send(Ok(message)));
            }
        } else if message["jsonrpc"].is_null() {
            self.keep_printed(line);
        } else {
            let shown = foreign_line(line, MAX_SHOWN);
            let what = format!("sent an answer without the number of a request: {shown}");
            self.fail_all(&what);
        }
    }

    fn keep_printed(&self, line: &str) {
        let line = foreign_line(line.trim(), MAX_SHOWN);
        let printed = &mut self.lock().printed;
        if !line.is_empty() {
            printed.push_back(line);
        }
        if printed.len() > MAX_PRINTED {
            printed.pop_front();
        }
    }

    fn printed(&self) -> String {
        Vec::from(self.lock().printed.clone()).join("\n")
    }

    fn fail_all(&self, reason: &str) {
        for request in std::mem::take(&mut self.lock().waiting).values() {
            drop(request.try_send(Err(reason.to_owned())));
        }
    }

    fn send(&self, message: &Value) -> Result<()> {
        if let Some(reason) = &self.lock().ended {
            return Err(Error::failed(reason.clone()));
        }
        let line = format!("{message}\n");
        match sync::lock(&self.input).write_all(line.as_bytes()) {
            // The reader finds out why the server has ended, and tells the request.
            Err(e) if matches!(e.kind(), BrokenPipe | ConnectionReset) => Ok(()),
            sent => sent.map_err(|_| Error::failed("the server does not read its input")),
        }
    }
}

/// Returns the reason for the end of the output, as reported by the worker.
fn last_words(mut socket: &UnixStream) -> String {
    drop(socket.set_read_timeout(Some(GRACE)));
    let why = match receive_message(&mut socket) {
        Ok(Message::Done(Header::Refused { why })) => why,
        Ok(Message::Done(Header::Exited(TooManyProcesses))) => "too many processes".to_owned(),
        _ => "it ended".to_owned(),
    };
    let lines = why.lines().map(|line| foreign_line(line, MAX_SHOWN));
    lines.collect::<Vec<_>>().join("\n")
}

impl Transport for Stdio {
    fn request(&self, request: &Value, cancel: &Cancel) -> Result<Value, Failure> {
        let id = request["id"].as_u64().unwrap_or_default();
        let (sender, answer) = sync_channel(1);
        let waker = sender.clone();
        let _hook = cancel.on_stop(move || {
            // An answer also wakes the request.
            drop(waker.try_send(Err("stopped".to_owned())));
        });
        self.shared.lock().waiting.insert(id, sender);
        let sent = self.shared.send(request).map_err(Failure::from);
        let answer = sent.and_then(|()| {
            loop {
                match answer.recv_timeout(cancel.remaining(CALL)) {
                    Ok(answer) => return answer.map_err(Failure::failed),
                    Err(RecvTimeoutError::Timeout) if cancel.reason().is_none() => {}
                    Err(_) => return Err(Failure::failed("no answer in time")),
                }
            }
        });
        self.shared.lock().waiting.remove(&id);
        answer
    }

    fn notify(&self, message: &Value, _: &Cancel) {
        // The next request detects a server that has ended.
        drop(self.shared.send(message));
    }

    fn is_open(&self) -> bool {
        self.shared.lock().ended.is_none()
    }

    fn printed(&self) -> String {
        self.shared.printed()
    }
}

impl Drop for Stdio {
    fn drop(&mut self) {
        // The end of its input ends the server, and the worker ends all remaining processes.
        drop(sync::lock(&self.shared.input).shutdown(Shutdown::Both));
        let started = Instant::now();
        while !self.process.has_ended() && started.elapsed() < GRACE {
            thread::sleep(Duration::from_millis(10));
        }
    }
}
