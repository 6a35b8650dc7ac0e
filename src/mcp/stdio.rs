//! A server that this program starts: one JSON object a line on its standard input and output.

use std::io::{Read, Write};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{MAX_MESSAGE, Transport, parse, too_long};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind, Result};
use crate::text::one_line;
use crate::wire::{Header, Reply, receive_reply};

/// How long a server that was told to end has for it.
const GRACE: Duration = Duration::from_secs(2);

pub(crate) struct Stdio {
    child: Child,
    /// Messages on their way to the server; `None` once it ended.
    input: Option<SyncSender<String>>,
    lines: Receiver<Line>,
    waker: SyncSender<Line>,
}

enum Line {
    Message(Value),
    /// Why there is nothing more.
    End(String),
    /// The turn was stopped.
    Wake,
}

impl Stdio {
    /// Speaks to `child`, whose standard input and output are pipes and which has begun.
    pub(crate) fn new(mut child: Child) -> Result<Self> {
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::failed("the server has no pipes"));
        };
        // The bound makes a server that floods wait.
        let (sender, lines) = sync_channel(1);
        let waker = sender.clone();
        let read = move || {
            let reason = read_lines(output, &sender);
            drop(sender.send(Line::End(reason)));
        };
        // A pipe holds 64 KB: a server that does not read blocks a longer message.
        let (outgoing, messages) = sync_channel::<String>(64);
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
        Ok(Self {
            child,
            input: Some(outgoing),
            lines,
            waker,
        })
    }
}

/// Passes on each line until the output ends, and says why it did.
fn read_lines(mut output: impl Read, sender: &SyncSender<Line>) -> String {
    let (mut before, mut pending, mut piece) = (Vec::new(), Vec::new(), vec![0; 16 << 10]);
    loop {
        let n = match output.read(&mut piece) {
            Ok(0) => return reason(&[before, pending].concat()),
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return format!("reading from it: {e}"),
        };
        for part in piece[..n].split_inclusive(|byte| *byte == b'\n') {
            pending.extend_from_slice(part);
            if pending.len() > MAX_MESSAGE {
                return too_long().message;
            }
            if !part.ends_with(b"\n") {
                continue;
            }
            let messages = match parse(String::from_utf8_lossy(&pending).trim()) {
                Ok(messages) => messages,
                Err(e) => return e.message,
            };
            // The length of the jail's last reply may hold a line feed.
            before = std::mem::take(&mut pending);
            if messages
                .into_iter()
                .any(|message| sender.send(Line::Message(message)).is_err())
            {
                return String::new();
            }
        }
    }
}

/// Why the output ended: the jail's last reply, if it could not start the program.
fn reason(last: &[u8]) -> String {
    match receive_reply(&mut &*last) {
        Ok(Reply {
            header: Header::Refused { why },
            ..
        }) => one_line(&why, 500),
        _ => "it ended".to_owned(),
    }
}

impl Transport for Stdio {
    fn send(&mut self, message: &Value, _: Instant, _: &Cancel) -> Result<()> {
        let input = self
            .input
            .as_ref()
            .ok_or_else(|| Error::failed("it ended"))?;
        input
            .try_send(format!("{message}\n"))
            .map_err(|_| Error::failed("it does not read what it is sent"))
    }

    fn receive(&mut self, until: Instant, cancel: &Cancel) -> Result<Value> {
        let waker = self.waker.clone();
        let _hook = cancel.on_stop(move || drop(waker.try_send(Line::Wake)));
        loop {
            let left = cancel.remaining(until.saturating_duration_since(Instant::now()));
            match self.lines.recv_timeout(left) {
                Ok(Line::Message(message)) => return Ok(message),
                Ok(Line::End(reason)) => {
                    self.input = None;
                    return Err(Error::failed(reason));
                }
                Ok(Line::Wake) if cancel.why().is_none() => {}
                Ok(Line::Wake) => return Err(Error::new(Kind::Interrupted, "stopped")),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Error::new(Kind::Limit, "no answer in time"));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Error::failed("it ended")),
            }
        }
    }
}

impl Drop for Stdio {
    fn drop(&mut self) {
        // The end of its input tells it to end, and the jail around it to end it.
        self.input = None;
        let deadline = Instant::now() + GRACE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        drop(self.child.kill().and_then(|()| self.child.wait()));
    }
}
