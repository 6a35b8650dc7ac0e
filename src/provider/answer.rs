//! Reads a host's answer as it arrives, streamed or whole, and notices when the host falls silent.

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::ProviderError;
use super::dialect::ReplyReader;
use super::errors::{classify, looks_like_html};
use crate::http::{Exchange, Fault, Head};
use crate::message::Reply;
use crate::sse;
use crate::text::one_line;

/// The most bytes of an error body that are read.
const MOST_ERROR: usize = 256 << 10;

/// The most decoded bytes of a whole answer, which becomes values many times its size, and of a streamed one.
const MOST_WHOLE: usize = 8 << 20;
const MOST_STREAMED: usize = 16 << 20;

/// An answer under way.
pub(super) struct Answer<'a> {
    host: &'a str,
    exchange: Exchange,
    /// The longest time without content. Bytes do not count: a stream of pings is silent.
    silence: Duration,
    /// The same before the first content.
    patience: Duration,
    /// When content last arrived, or a piece of the request left.
    last_progress: Instant,
}

impl<'a> Answer<'a> {
    pub(super) fn new(host: &'a str, exchange: Exchange, patience: Duration, silence: Duration) -> Self {
        Self { host, exchange, silence, patience, last_progress: Instant::now() }
    }

    pub(super) fn head(&mut self) -> Result<Head, ProviderError> {
        let head = self.wait(Exchange::head)?;
        self.last_progress = self.exchange.uploaded_at;
        Ok(head)
    }

    fn piece(&mut self) -> Result<Option<Vec<u8>>, ProviderError> {
        self.wait(Exchange::body)
    }

    /// Waits for what `next` reads, up to the limit on silence.
    fn wait<T>(&mut self, next: fn(&mut Exchange, Duration) -> Result<T, Fault>) -> Result<T, ProviderError> {
        let left = self.patience.saturating_sub(self.last_progress.elapsed());
        let result = if left.is_zero() { Err(Fault::Silent) } else { next(&mut self.exchange, left) };
        result.map_err(|fault| match fault {
            Fault::Silent => transient(format!("{}: no answer for {} s", self.host, self.patience.as_secs())),
            Fault::Config(e) => ProviderError::Unasked(e.doing(self.host)),
            Fault::Broken(m) | Fault::Unreachable(m) => transient(format!("{}: {m}", self.host)),
            Fault::Cancelled(why) => ProviderError::Cancelled(why),
        })
    }

    /// The body of an error. A fault ends it: half an error message is better than none.
    pub(super) fn error_body(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        while let Ok(Some(piece)) = self.piece() {
            body.extend_from_slice(&piece);
            if body.len() > MOST_ERROR {
                break;
            }
        }
        body
    }

    /// The body of a whole answer.
    pub(super) fn body(&mut self) -> Result<Vec<u8>, ProviderError> {
        let mut body = Vec::new();
        while let Some(piece) = self.piece()? {
            body.extend_from_slice(&piece);
            self.check_size(body.len(), MOST_WHOLE)?;
        }
        Ok(body)
    }

    fn check_size(&self, read: usize, most: usize) -> Result<(), ProviderError> {
        let larger = || format!("{}: the answer is larger than {} MB", self.host, most >> 20);
        if read > most { Err(ProviderError::Rejected(larger())) } else { Ok(()) }
    }

    /// The reply in a successful answer. A host that cannot stream answers whole, whatever it was asked for.
    pub(super) fn reply(
        &mut self,
        mut reply: Box<dyn ReplyReader>,
        head: &Head,
        shown: &mut Shown,
    ) -> Result<Reply, ProviderError> {
        let mut is_stream = head.header("content-type").is_some_and(|t| t.contains("event-stream"));
        let (mut events, mut body, mut read) = (sse::Decoder::default(), Vec::new(), 0);
        loop {
            let piece = match self.piece() {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                // Once the reply is complete, it does not matter how the connection ends.
                Err(ProviderError::Transient { .. }) if reply.is_complete() => break,
                Err(e) => return Err(e),
            };
            // Some hosts stream under the wrong content type.
            is_stream |= body.is_empty() && (piece.starts_with(b"data:") || piece.starts_with(b"event:"));
            read += piece.len();
            self.check_size(read, if is_stream { MOST_STREAMED } else { MOST_WHOLE })?;
            let mut has_content = false;
            if is_stream {
                for data in events.push(&piece).map_err(|sse::TooLong| transient("the server sent an endless event"))? {
                    has_content |= shown.event(&mut *reply, &data)?;
                }
            } else {
                // Hosts send white space to keep a connection alive while the model thinks.
                has_content = piece.iter().any(|b| !b.is_ascii_whitespace());
                body.extend_from_slice(&piece);
            }
            if has_content {
                (self.patience, self.last_progress) = (self.silence, Instant::now());
            }
        }
        if !is_stream {
            return whole(reply, head, &body, shown);
        }
        if let Some(last) = events.finish() {
            shown.event(&mut *reply, &last)?;
        }
        // The end of the connection is not the end of the reply.
        if reply.is_complete() { Ok(shown.end(reply.finish())) } else { Err(transient("the answer broke off")) }
    }
}

/// Where the pieces of a reply go as they arrive.
pub(super) struct Shown<'a> {
    pub on_delta: &'a mut dyn FnMut(&str),
    pub on_thought: &'a dyn Fn(&str),
    /// Bytes of the thoughts so far.
    pub thought: usize,
}

impl Shown<'_> {
    /// Reads one event and shows its text; true if it carries content.
    fn event(&mut self, reply: &mut dyn ReplyReader, data: &str) -> Result<bool, ProviderError> {
        let text = reply.event(data).map_err(|error| error_in_answer(&error))?;
        self.thoughts(reply.thoughts());
        if let Some(text) = text.as_deref().filter(|text| !text.is_empty()) {
            (self.on_delta)(text);
        }
        Ok(text.is_some())
    }

    fn thoughts(&mut self, all: &str) {
        if let Some(new) = all.get(self.thought..).filter(|new| !new.is_empty()) {
            (self.on_thought)(new);
            self.thought = all.len();
        }
    }

    /// Shows what was not to be told from the answer before its end.
    fn end(&mut self, reply: Reply) -> Reply {
        self.thoughts(&reply.reasoning);
        reply
    }
}

fn whole(mut reply: Box<dyn ReplyReader>, head: &Head, body: &[u8], shown: &mut Shown) -> Result<Reply, ProviderError> {
    let text = String::from_utf8_lossy(body);
    if looks_like_html(&text) {
        return Err(classify(head.status, Some(head), body, SystemTime::now()));
    }
    let content = reply.event(&text).map_err(|error| error_in_answer(&error))?;
    if content.is_none() && !reply.is_complete() {
        return Err(transient(format!("the answer holds no reply: {}", one_line(&text, 100))));
    }
    let reply = shown.end(reply.finish());
    if !reply.text.is_empty() {
        (shown.on_delta)(&reply.text);
    }
    Ok(reply)
}

fn transient(message: impl Into<String>) -> ProviderError {
    ProviderError::Transient { message: message.into(), retry_after: None }
}

/// An error object in an answer whose status promised a reply.
fn error_in_answer(error: &Value) -> ProviderError {
    classify(200, None, json!({ "error": error }).to_string().as_bytes(), SystemTime::now())
}
