//! A server that this program starts: one JSON object a line on its standard input and output.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::Child;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::{Asides, Received, Wait, progress_token};
use super::{MAX_MESSAGE, Transport, UNASKED_PAUSE, parse, too_long};
use crate::error::{Context, Error, Kind, Result};
use crate::text::foreign_line;
use crate::worker::protocol::{Header, Reply, receive_reply};

/// How long a server that was told to end has for it.
const GRACE: Duration = Duration::from_secs(2);
/// Messages that a server may send before the answer to a request.
const MAX_ASIDES: usize = 10_000;
/// The most bytes of a message that are read past.
const MAX_SKIPPED: usize = 64 << 20;
/// What a server may say at full speed while nobody asks it, in bytes. With pauses from then on, its pipe fills and stops it.
const MAX_UNASKED: usize = 64 << 10;
/// The longest line of what a server said at its end, in characters.
const MAX_LINE: usize = 300;
/// The longest part of the sandbox's last reply.
const MAX_LAST_REPLY: usize = 64 << 10;
/// Messages on their way to the server, and to one that waits.
const QUEUE: usize = 64;

pub(crate) struct Stdio {
    child: Child,
    shared: Arc<Shared>,
}

/// What the threads of a server share.
struct Shared {
    asides: Arc<Asides>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Messages on their way to the server; `None` once it was told to end.
    input: Option<SyncSender<String>>,
    /// The requests that wait for an answer.
    waiting: BTreeMap<u64, SyncSender<Line>>,
    /// Messages since a request was sent or answered.
    asides: usize,
    /// Bytes since a request was sent.
    unasked: usize,
    /// Why nothing more comes.
    ended: Option<String>,
}

enum Line {
    Message(Value),
    /// Why this request gets no answer.
    Failed(String),
    /// The turn was stopped.
    Wake,
}

impl Stdio {
    /// Speaks to `child`, whose standard input and output are pipes and which has begun.
    pub(crate) fn new(mut child: Child) -> Result<Self> {
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::failed("the server has no pipes"));
        };
        // A pipe holds 64 KB: a server that does not read blocks a longer message.
        let (outgoing, messages) = sync_channel::<String>(QUEUE);
        let shared = Arc::new(Shared {
            asides: Arc::default(),
            state: Mutex::new(State {
                input: Some(outgoing),
                ..State::default()
            }),
        });
        let reader = shared.clone();
        let read = move || {
            let reason = reader.read(output);
            reader.end(&reason);
        };
        let write = move || {
            while messages
                .recv()
                .is_ok_and(|message| input.write_all(message.as_bytes()).is_ok())
            {}
        };
        let spawn = |work: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name("mcp".to_owned()).spawn(work)
        };
        spawn(Box::new(read))
            .and_then(|_| spawn(Box::new(write)))
            .doing("starting a thread")?;
        Ok(Self { child, shared })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes on what each line holds until the output ends, and says why it did.
    fn read(&self, mut output: impl Read) -> String {
        let mut before = Vec::new();
        let mut pending = Vec::new();
        let mut piece = vec![0; 16 << 10];
        // Bytes of a line that is too long.
        let mut skipped = 0;
        loop {
            let n = match output.read(&mut piece) {
                Ok(0) => return reason(&[before, pending].concat()),
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return format!("reading from it: {e}"),
            };
            if self.is_flood(n) {
                thread::sleep(UNASKED_PAUSE);
            }
            for part in piece[..n].split_inclusive(|byte| *byte == b'\n') {
                let is_end = part.ends_with(b"\n");
                if skipped == 0 {
                    pending.extend_from_slice(part);
                }
                if pending.len() > MAX_MESSAGE {
                    self.fail_all(&too_long().message);
                    skipped = pending.len();
                    pending = Vec::new();
                }
                if skipped > 0 {
                    skipped = if is_end { 0 } else { skipped + part.len() };
                    if skipped > MAX_SKIPPED {
                        return format!("it sent {} MB without an end", MAX_SKIPPED >> 20);
                    }
                    continue;
                }
                if !is_end {
                    continue;
                }
                let text = String::from_utf8_lossy(&pending);
                let routed = parse(text.trim()).map(|messages| self.route_all(messages));
                match routed {
                    Ok(Ok(())) => {}
                    Ok(Err(reason)) => return reason,
                    Err(e) => self.fail_all(&e.message),
                }
                // The length of the sandbox's last reply may hold a line feed.
                before = std::mem::take(&mut pending);
                if before.len() > MAX_LAST_REPLY {
                    before = Vec::new();
                }
            }
        }
    }

    /// Counts what the server says; whether it is too much for one that nobody asks.
    fn is_flood(&self, bytes: usize) -> bool {
        let mut state = self.lock();
        state.unasked = state.unasked.saturating_add(bytes);
        state.waiting.is_empty() && state.unasked > MAX_UNASKED
    }

    fn route_all(&self, messages: Vec<Value>) -> Result<(), String> {
        messages
            .into_iter()
            .try_for_each(|message| self.route(message))
    }

    /// Gives a message to the request that it answers or concerns. The error ends the server.
    fn route(&self, message: Value) -> Result<(), String> {
        let mut state = self.lock();
        if message["method"].is_null() {
            let answered = message["id"]
                .as_u64()
                .and_then(|id| state.waiting.remove(&id));
            if let Some(waiter) = answered {
                state.asides = 0;
                drop(state);
                // Fails when nobody is waiting any more.
                drop(waiter.send(Line::Message(message)));
                return Ok(());
            }
        }
        if !state.waiting.is_empty() {
            state.asides += 1;
            if state.asides > MAX_ASIDES {
                return Err(format!(
                    "it sent {MAX_ASIDES} messages, none of which is the answer"
                ));
            }
        }
        if let Some(waiter) = progress_token(&message).and_then(|id| state.waiting.get(&id)) {
            // When many wait there already, this one says nothing new.
            drop(waiter.try_send(Line::Message(message)));
            return Ok(());
        }
        drop(state);
        if let Some(reply) = self.asides.receive(&message) {
            // A server that does not read what it asked for is found out by the next request.
            drop(self.send(&reply));
        }
        Ok(())
    }

    /// Tells all that wait that they get no answer.
    fn fail_all(&self, reason: &str) {
        let waiting = std::mem::take(&mut self.lock().waiting);
        for waiter in waiting.values() {
            drop(waiter.try_send(Line::Failed(reason.to_owned())));
        }
    }

    fn end(&self, reason: &str) {
        self.lock().ended = Some(reason.to_owned());
        self.fail_all(reason);
    }

    fn send(&self, message: &Value) -> Result<()> {
        let state = self.lock();
        if let Some(reason) = &state.ended {
            return Err(Error::failed(reason.clone()));
        }
        state
            .input
            .as_ref()
            .ok_or_else(|| Error::failed("it ended"))?
            .try_send(format!("{message}\n"))
            .map_err(|_| Error::failed("it does not read what it is sent"))
    }
}

/// Why the output ended: the sandbox's last reply, if it could not start the program.
fn reason(last: &[u8]) -> String {
    match receive_reply(&mut &*last) {
        Ok(Reply {
            header: Header::Refused { why },
            ..
        }) => {
            let lines: Vec<String> = why
                .lines()
                .map(|line| foreign_line(line, MAX_LINE))
                .collect();
            lines.join("\n")
        }
        _ => "it ended".to_owned(),
    }
}

impl Transport for Stdio {
    fn asides(&self) -> Arc<Asides> {
        self.shared.asides.clone()
    }

    fn notify(&self, message: &Value, _: Duration) -> Result<()> {
        self.shared.send(message)
    }

    fn request(&self, request: &Value, wait: &mut Wait) -> Result<Value> {
        let (sender, lines) = sync_channel(QUEUE);
        let waker = sender.clone();
        let _hook = wait
            .cancel
            .on_stop(move || drop(waker.try_send(Line::Wake)));
        {
            let mut state = self.shared.lock();
            state.asides = 0;
            state.unasked = 0;
            state.waiting.insert(wait.id, sender);
        }
        let result = self.shared.send(request).and_then(|()| {
            loop {
                let received = lines.recv_timeout(wait.left());
                match received {
                    Ok(Line::Message(message)) => {
                        if let Received::Answer(answer) = wait.receive(message, &self.shared.asides)
                        {
                            return Ok(answer);
                        }
                    }
                    Ok(Line::Failed(reason)) => return Err(Error::failed(reason)),
                    Ok(Line::Wake) if wait.cancel.reason().is_none() => {}
                    Ok(Line::Wake) => return Err(Error::new(Kind::Interrupted, "stopped")),
                    Err(RecvTimeoutError::Timeout) if !wait.left().is_zero() => {}
                    Err(RecvTimeoutError::Timeout) => {
                        return Err(Error::new(Kind::Limit, "no answer in time"));
                    }
                    Err(RecvTimeoutError::Disconnected) => return Err(Error::failed("it ended")),
                }
            }
        });
        self.shared.lock().waiting.remove(&wait.id);
        result
    }

    fn is_sound(&self) -> bool {
        self.shared.lock().ended.is_none()
    }
}

impl Drop for Stdio {
    fn drop(&mut self) {
        // The end of its input tells it to end, and the sandbox around it to end it.
        self.shared.lock().input = None;
        let deadline = Instant::now() + GRACE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        drop(self.child.kill().and_then(|()| self.child.wait()));
    }
}
