//! A server on the network: streamable HTTP (2025-03-26 and later). Each message is a POST; the answer is one JSON object
//! or a stream of events that ends with it. A stream that breaks off before the answer is not resumed: its call fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::{Asides, Received, Wait};
use super::{MAX_MESSAGE, Transport, UNASKED_PAUSE, parse, too_long};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::http::{Body, Client, Exchange, Head, Outgoing, left};
use crate::secret::Secret;
use crate::sse::Decoder;

/// Messages that a server may send before the answer to a request.
const MAX_ASIDES: usize = 10_000;
/// How long a server has to take a reply that it asked for, and the end of the session.
const REPLY: Duration = Duration::from_secs(10);
const FAREWELL: Duration = Duration::from_secs(2);
/// How long a stream that tells of changes may be silent: longer than anybody looks at it.
const LISTEN: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) struct Http {
    remote: Arc<Remote>,
    /// Ends the stream that tells of changes.
    listening: Cancel,
}

struct Remote {
    client: Client,
    url: String,
    headers: Vec<(String, Secret)>,
    agreed: Mutex<Agreed>,
    asides: Arc<Asides>,
    is_forgotten: AtomicBool,
    is_sound: AtomicBool,
}

/// What the server and this client have agreed on.
#[derive(Clone, Default)]
struct Agreed {
    /// Given by the server with its first answer.
    session: Option<String>,
    revision: Option<String>,
}

/// A stream of events that is being read.
struct Stream {
    exchange: Exchange,
    decoder: Decoder,
}

impl Http {
    pub(crate) fn new(client: Client, url: String, headers: Vec<(String, Secret)>) -> Self {
        let remote = Remote {
            client,
            url,
            headers,
            agreed: Mutex::default(),
            asides: Arc::default(),
            is_forgotten: AtomicBool::new(false),
            is_sound: AtomicBool::new(true),
        };
        Self {
            remote: Arc::new(remote),
            listening: Cancel::default(),
        }
    }
}

impl Remote {
    fn agreed(&self) -> MutexGuard<'_, Agreed> {
        self.agreed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outgoing(&self, accept: &str, body: Option<Body>) -> Outgoing {
        let mut headers = self.headers.clone();
        let mut add = |name: &str, value: &str| headers.push((name.to_owned(), Secret::new(value)));
        add("accept", accept);
        let agreed = self.agreed();
        if let Some(session) = &agreed.session {
            add("mcp-session-id", session);
        }
        if let Some(revision) = &agreed.revision {
            add("mcp-protocol-version", revision);
        }
        Outgoing {
            url: self.url.clone(),
            headers,
            body,
        }
    }

    /// Posts a message. Returns the answer's beginning, which is a success.
    fn post(&self, message: &Value, until: Instant, cancel: &Cancel) -> Result<(Exchange, Head)> {
        let body = Some(Body::json(message));
        let request = self.outgoing("application/json, text/event-stream", body);
        let mut exchange = self.client.send(request, cancel)?;
        let head = exchange.head(left(until))?;
        self.check(&head)?;
        if let Some(session) = head.header("mcp-session-id") {
            self.agreed().session = Some(session.to_owned());
        }
        Ok((exchange, head))
    }

    fn check(&self, head: &Head) -> Result<()> {
        let has_session = self.agreed().session.is_some();
        if head.is_success() {
            return Ok(());
        }
        if has_session {
            self.is_sound.store(false, Ordering::SeqCst);
        }
        let status = head.status;
        Err(Error::failed(match status {
            401 | 403 => format!(
                "it refuses this client (status {status}): put its key into the entry's headers; signing in by OAuth is not \
                 supported"
            ),
            404 if has_session => {
                self.is_forgotten.store(true, Ordering::SeqCst);
                "it has forgotten this session".to_owned()
            }
            300..=399 => {
                format!("it redirects (status {status}): put the new address into its entry")
            }
            405 => "it speaks the older HTTP+SSE transport: try its streamable HTTP address, often /mcp instead of /sse"
                .to_owned(),
            _ => format!("it answered with status {status}"),
        }))
    }

    /// Reads a stream until the answer comes.
    fn read_answer(&self, mut stream: Stream, wait: &mut Wait) -> Result<Value> {
        let mut asides = 0;
        loop {
            let (messages, is_open) = stream.next(wait.left())?;
            for message in messages {
                asides += 1;
                match wait.receive(message, &self.asides) {
                    Received::Answer(answer) => return Ok(answer),
                    Received::Reply(reply) => self.reply_within(&reply, wait),
                    Received::Nothing => {}
                }
            }
            if asides > MAX_ASIDES {
                return Err(Error::failed(format!(
                    "it sent {MAX_ASIDES} messages, none of which is the answer"
                )));
            }
            if !is_open {
                return Err(Error::failed("its stream ended before the answer"));
            }
        }
    }

    /// Sends a reply that the server asked for. One that does not take it learns nothing.
    fn reply(&self, reply: &Value, within: Duration, cancel: &Cancel) {
        let until = Instant::now() + within;
        drop(self.post(reply, until, cancel));
    }

    /// The same within a turn, whose stop and deadline do not wait for the server to take it.
    fn reply_within(&self, reply: &Value, wait: &Wait) {
        let left = wait.left().min(REPLY);
        if !left.is_zero() && wait.cancel.reason().is_none() {
            self.reply(reply, left, wait.cancel);
        }
    }

    /// Reads what the server says by itself, on a stream for that alone, until the stream ends or the listener is stopped.
    fn listen(&self, cancel: &Cancel) {
        let request = self.outgoing("text/event-stream", None);
        let Ok(mut exchange) = self.client.send(request, cancel) else {
            return;
        };
        if !exchange.head(REPLY).is_ok_and(|head| is_stream(&head)) {
            return;
        }
        let mut stream = Stream::new(exchange);
        while let Ok((messages, is_open)) = stream.next(LISTEN) {
            for message in messages {
                if let Some(reply) = self.asides.receive(&message) {
                    self.reply(&reply, REPLY, cancel);
                }
            }
            if !is_open || cancel.sleep(UNASKED_PAUSE).is_err() {
                return;
            }
        }
    }
}

impl Stream {
    fn new(exchange: Exchange) -> Self {
        Self {
            exchange,
            decoder: Decoder::new(MAX_MESSAGE),
        }
    }

    /// The next messages, and whether more may come.
    fn next(&mut self, within: Duration) -> Result<(Vec<Value>, bool)> {
        let (events, is_open) = match self.exchange.body(within)? {
            Some(piece) => (self.decoder.push(&piece).map_err(|_| too_long())?, true),
            None => (self.decoder.finish().into_iter().collect(), false),
        };
        let mut messages = Vec::new();
        for event in events {
            messages.extend(parse(&event)?);
        }
        Ok((messages, is_open))
    }
}

fn is_stream(head: &Head) -> bool {
    head.is_success()
        && head
            .header("content-type")
            .is_some_and(|kind| kind.contains("text/event-stream"))
}

impl Transport for Http {
    fn asides(&self) -> Arc<Asides> {
        self.remote.asides.clone()
    }

    fn agreed(&self, revision: &str) {
        self.remote.agreed().revision = Some(revision.to_owned());
    }

    fn notify(&self, message: &Value, within: Duration) -> Result<()> {
        let until = Instant::now() + within;
        self.remote
            .post(message, until, &Cancel::default())
            .map(drop)
    }

    fn request(&self, request: &Value, wait: &mut Wait) -> Result<Value> {
        let remote = &self.remote;
        let (mut exchange, head) = remote.post(request, wait.until, wait.cancel)?;
        if is_stream(&head) {
            return remote.read_answer(Stream::new(exchange), wait);
        }
        let text = exchange.whole_body(MAX_MESSAGE, wait.until)?;
        if text.len() > MAX_MESSAGE {
            return Err(too_long());
        }
        for message in parse(&String::from_utf8_lossy(&text))? {
            match wait.receive(message, &remote.asides) {
                Received::Answer(answer) => return Ok(answer),
                Received::Reply(reply) => remote.reply_within(&reply, wait),
                Received::Nothing => {}
            }
        }
        Err(Error::failed("it answered without a message"))
    }

    fn listen(&self) {
        let (remote, cancel) = (self.remote.clone(), self.listening.clone());
        let work = move || remote.listen(&cancel);
        // Without the thread, changes are heard with the next answer.
        drop(thread::Builder::new().name("mcp".to_owned()).spawn(work));
    }

    fn is_sound(&self) -> bool {
        self.remote.is_sound.load(Ordering::SeqCst)
    }

    fn is_forgotten(&self) -> bool {
        self.remote.is_forgotten.load(Ordering::SeqCst)
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.listening.stop();
        let remote = &self.remote;
        if remote.agreed().session.is_none() || !self.is_sound() {
            return;
        }
        // A server that does not let its sessions be ended says so, which changes nothing.
        let request = remote.outgoing("application/json", None);
        if let Ok(mut exchange) = remote.client.delete(request, &Cancel::default()) {
            drop(exchange.head(FAREWELL));
        }
    }
}
