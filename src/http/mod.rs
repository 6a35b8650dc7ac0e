//! Makes every HTTP request.
//!
//! Reads block, but a caller must detect a stop immediately, and silence within its limit. So each request runs on a separate
//! thread and sends its events through a channel; the caller waits on that channel, which a stop also wakes. Shutting down the
//! `ureq` agent closes its socket, which ends a blocked read.

mod client;
mod errors;
mod half_closed;
mod resolver;
#[cfg(test)]
mod tests;
mod tls;

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Cursor, ErrorKind, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::{Agent, SendBody};

pub(crate) use client::{Client, Settings};

use crate::cancel::{Cancel, CancelReason, Hook};
use crate::error::{Error, Kind};
use crate::secret::Secret;
use crate::sync;

/// Maximum size of a decoded response body, in bytes.
const MOST_BODY: u64 = 64 << 20;
/// Maximum number of idle connections: one for a poll, and one for simultaneous requests.
const MOST_IDLE: usize = 2;
/// Time limit for the thread of an abandoned request, because a name look-up cannot be interrupted.
const ABANDON_AFTER: Duration = Duration::from_millis(100);

/// A request.
pub(crate) struct Outgoing {
    pub url: String,
    pub headers: Vec<(String, Secret)>,
    /// Body; `None` for a GET.
    pub body: Option<Body>,
}

/// A request body, which is read while it is sent, so that it need not fit in memory.
pub(crate) struct Body {
    pub content_type: String,
    pub len: u64,
    pub reader: Box<dyn Read + Send>,
}

impl Body {
    pub(crate) fn json(value: &Value) -> Self {
        Self::json_text(value.to_string().into_bytes())
    }

    pub(crate) fn json_text(json: Vec<u8>) -> Self {
        let (content_type, len) = ("application/json".to_owned(), json.len() as u64);
        Self {
            content_type,
            len,
            reader: Box::new(Cursor::new(json)),
        }
    }

    /// Encodes parameters and a file of `len` bytes as `multipart/form-data` (RFC 7578). `field` is the parameter of the file.
    pub(crate) fn form(
        params: &Value,
        (field, name): (&str, &str),
        file: impl Read + Send + 'static,
        len: u64,
    ) -> Self {
        // Random, so that a file cannot contain the boundary and add parameters.
        let [one, other] = [0, 1].map(|n| RandomState::new().hash_one(n));
        let boundary = format!("bantam-{one:016x}{other:016x}");
        let mut before = String::new();
        for (name, value) in params.as_object().into_iter().flatten() {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            before.push_str(&format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
            ));
        }
        // Replaces characters that would end the name or the header.
        let name = name.replace(|c: char| c.is_control() || "\"\\/".contains(c), "_");
        before.push_str(&format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{field}\"; filename=\"{name}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        ));
        let after = format!("\r\n--{boundary}--\r\n");
        let whole = (before.len() + after.len()) as u64 + len;
        let reader = Cursor::new(before)
            .chain(file.take(len))
            .chain(Cursor::new(after));
        let content_type = format!("multipart/form-data; boundary={boundary}");
        Self {
            content_type,
            len: whole,
            reader: Box::new(reader),
        }
    }
}

/// Status and headers of a response.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub status: u16,
    /// Headers; names are in lower case.
    pub headers: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut named = self.headers.iter().filter(|(n, _)| n == name);
        named.next().map(|(_, value)| value.as_str())
    }
}

/// Reports of the request's thread: uploaded pieces, one head, pieces of the body, and the end.
enum Event {
    Uploaded,
    Head(Head),
    Body(Vec<u8>),
    End,
}

type Events = SyncSender<Result<Event, Fault>>;

/// Reason for the end of an exchange. The messages are for people.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The connection failed, or the request or its response was interrupted.
    Broken(String),
    /// A retry cannot succeed until an address, a header or a certificate is corrected.
    Config(Error),
    /// The server was silent for the caller's time limit.
    Silent,
    Cancelled(CancelReason),
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Broken(text) => Self::failed(text),
            Fault::Config(e) => e,
            Fault::Silent => Self::new(Kind::Limit, "no complete answer in time"),
            Fault::Cancelled(_) => Self::new(Kind::Interrupted, "stopped"),
        }
    }
}

/// Returns the time until `until`.
pub(crate) fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Interval of upload reports, which is much shorter than the time limits of callers.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// A running request. Dropping it before its end closes the connection.
pub(crate) struct Exchange {
    agent: Option<Agent>,
    events: Receiver<Result<Event, Fault>>,
    /// Time of the last upload report.
    pub uploaded_at: Instant,
    pub cancel: Cancel,
    /// Whether the whole request was sent.
    is_sent: Arc<AtomicBool>,
    _hook: Hook,
    idle: Arc<Mutex<Vec<Agent>>>,
}

impl Exchange {
    /// Waits for the head of the response, up to `within` and the turn's remaining time. Each piece of an upload restarts the
    /// wait.
    pub(crate) fn head(&mut self, within: Duration) -> Result<Head, Fault> {
        match self.next(within)? {
            Event::Head(head) => Ok(head),
            _ => Err(Fault::Broken("the response has no head".to_owned())),
        }
    }

    /// Waits for the next piece of the body with the same limits; `None` is the end.
    pub(crate) fn body(&mut self, within: Duration) -> Result<Option<Vec<u8>>, Fault> {
        match self.next(within)? {
            Event::Body(piece) => Ok(Some(piece)),
            _ => Ok(None),
        }
    }

    /// Reads the body to its end, or until it has more than `most` bytes.
    pub(crate) fn whole_body(&mut self, most: usize, until: Instant) -> Result<Vec<u8>, Fault> {
        let mut bytes = Vec::new();
        while bytes.len() <= most {
            let Some(piece) = self.body(left(until))? else {
                break;
            };
            bytes.extend(piece);
        }
        Ok(bytes)
    }

    /// Whether the whole request was sent. If so, the server may have acted on it even without a response.
    pub(crate) fn is_sent(&self) -> bool {
        self.is_sent.load(Ordering::SeqCst)
    }

    fn next(&mut self, within: Duration) -> Result<Event, Fault> {
        let event = loop {
            match self.events.recv_timeout(self.cancel.remaining(within)) {
                Ok(Ok(Event::Uploaded)) if self.cancel.reason().is_none() => {
                    self.uploaded_at = Instant::now();
                }
                Ok(event) => break event,
                Err(RecvTimeoutError::Timeout) => break Err(Fault::Silent),
                Err(RecvTimeoutError::Disconnected) => {
                    break Err(Fault::Broken("the request ended early".to_owned()));
                }
            }
        };
        // A connection that was shut down can look like a normal end, so the cancel takes precedence.
        if let Some(why) = self.cancel.reason() {
            self.close();
            return Err(Fault::Cancelled(why));
        }
        match &event {
            Ok(Event::End) => {
                let mut idle = sync::lock(&self.idle);
                idle.extend(self.agent.take());
                idle.truncate(MOST_IDLE);
            }
            // The thread has ended.
            Err(Fault::Broken(_) | Fault::Config(_)) => self.agent = None,
            Err(Fault::Silent | Fault::Cancelled(_)) => self.close(),
            Ok(_) => {}
        }
        event
    }

    fn close(&mut self) {
        let Some(agent) = self.agent.take() else {
            return;
        };
        agent.shutdown();
        // The thread may be blocked on the full channel, so drain it until the thread ends.
        let until = Instant::now() + ABANDON_AFTER;
        while self.events.recv_timeout(left(until)).is_ok() {}
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.close();
    }
}

/// Encodings of compressed bodies. Other words, such as `none` or `utf-8`, are mistakes of servers about plain ones.
const CODINGS: [&str; 6] = ["gzip", "x-gzip", "deflate", "br", "zstd", "compress"];

/// Returns the fault of a body in an encoding for which the request did not ask. It is not decoded here, beside the keys.
fn find_encoding(head: &Head, asked: &[(String, Secret)]) -> Option<Fault> {
    let given = head.header("content-encoding")?.to_ascii_lowercase();
    let mut words = given.split([',', ' ']);
    let coding = words.find(|word| CODINGS.contains(word))?;
    let is_asked = |(name, value): &(String, Secret)| {
        name.eq_ignore_ascii_case("accept-encoding") && given.contains(value.reveal())
    };
    let what = format!("the answer is compressed ({coding}) without a request");
    let hint = "set the server or the proxy to send plain answers";
    let fault = Fault::Config(Error::config(what).hint(hint));
    (!asked.iter().any(is_asked)).then_some(fault)
}

/// Runs the request on its thread until the response ends or the [`Exchange`] is dropped.
fn transfer(
    agent: &Agent,
    proxy: &str,
    (method, request): (&str, Outgoing),
    events: &Events,
    (is_sent, is_unknown): (&Arc<AtomicBool>, &AtomicBool),
) -> Result<(), Fault> {
    let mut builder = ureq::http::Request::builder()
        .method(method)
        .uri(&request.url);
    for (name, value) in &request.headers {
        builder = builder.header(name, value.reveal());
    }
    let body = match request.body {
        None => SendBody::none(),
        Some(Body {
            content_type,
            len,
            reader,
        }) => {
            builder = builder
                .header("content-type", content_type)
                .header("content-length", len);
            SendBody::from_owned_reader(Upload {
                reader,
                left: len,
                reported: Instant::now(),
                events: events.clone(),
                is_sent: is_sent.clone(),
            })
        }
    };
    let sent = builder
        .body(body)
        .map_err(ureq::Error::from)
        .and_then(|request| agent.run(request));
    let mut response = sent.map_err(|e| {
        is_unknown.fetch_or(errors::is_unknown_issuer(&e), Ordering::SeqCst);
        // The server may have closed the connection before the end of the request.
        is_sent.fetch_and(!half_closed::write_failed(), Ordering::SeqCst);
        errors::fault(&e, proxy)
    })?;
    let headers = response.headers().iter();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let headers = headers.map(|(name, value)| (name.to_string(), text(value.as_bytes())));
    let head = Head {
        status: response.status().as_u16(),
        headers: headers.collect(),
    };
    let refused = find_encoding(&head, &request.headers);
    if events.send(Ok(Event::Head(head))).is_err() {
        return Ok(());
    }
    let mut body = response.body_mut().with_config().limit(MOST_BODY).reader();
    let mut piece = vec![0; 16 << 10];
    loop {
        match body.read(&mut piece) {
            Ok(0) => return Ok(()),
            // Only here, because a redirect or a status alone is complete without its body.
            Ok(_) if refused.is_some() => return refused.map_or(Ok(()), Err),
            Ok(n) => {
                if events.send(Ok(Event::Body(piece[..n].to_vec()))).is_err() {
                    return Ok(());
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(Fault::Broken(format!("the answer broke off: {e}"))),
        }
    }
}

/// Reports every second that pieces are read to be sent, and fails when the [`Exchange`] is dropped. Not more often, because
/// each report wakes a thread.
struct Upload {
    reader: Box<dyn Read + Send>,
    /// Remaining bytes of the `content-length`.
    left: u64,
    reported: Instant,
    events: Events,
    is_sent: Arc<AtomicBool>,
}

impl Read for Upload {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.reported.elapsed() >= REPORT_EVERY {
            self.reported = Instant::now();
            if self.events.send(Ok(Event::Uploaded)).is_err() {
                return Err(ErrorKind::BrokenPipe.into());
            }
        }
        let read = self.reader.read(buf)?;
        self.left = self.left.saturating_sub(read as u64);
        self.is_sent.store(self.left == 0, Ordering::SeqCst);
        if read == 0 && self.left > 0 {
            Err(ErrorKind::UnexpectedEof.into())
        } else {
            Ok(read)
        }
    }
}

/// Returns the host and port of an address, without a user and password.
pub(crate) fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit('@').next().unwrap_or_default()
}
