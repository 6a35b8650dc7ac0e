//! Reads a host's answer as it arrives, streamed or whole, and notices when the host falls silent.

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::ProviderError;
use super::dialect::{Dialect, ReplyStream};
use super::errors::{classify, looks_like_html};
use crate::http::{Exchange, Fault, Head};
use crate::message::Reply;
use crate::sse;
use crate::text::one_line;

/// The most bytes of an error body that are read.
const MOST_ERROR: usize = 256 << 10;

/// An answer under way.
pub(super) struct Answer<'a> {
    host: &'a str,
    exchange: Exchange,
    /// The longest time without content. Bytes do not count: a stream of pings is silent.
    silence: Duration,
    last_content: Instant,
}

impl<'a> Answer<'a> {
    pub(super) fn new(host: &'a str, exchange: Exchange, silence: Duration) -> Self {
        Self { host, exchange, silence, last_content: Instant::now() }
    }

    pub(super) fn head(&mut self) -> Result<Head, ProviderError> {
        self.wait(Exchange::head)
    }

    fn piece(&mut self) -> Result<Option<Vec<u8>>, ProviderError> {
        self.wait(Exchange::body)
    }

    /// Waits for what `next` reads, up to the limit on silence.
    fn wait<T>(&mut self, next: fn(&mut Exchange, Duration) -> Result<T, Fault>) -> Result<T, ProviderError> {
        let left = self.silence.saturating_sub(self.last_content.elapsed());
        let result = if left.is_zero() { Err(Fault::Silent) } else { next(&mut self.exchange, left) };
        result.map_err(|fault| match fault {
            Fault::Silent => transient(format!("{}: no answer for {} s", self.host, self.silence.as_secs())),
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

    /// The reply in a successful answer. A host that cannot stream answers whole, whatever it was asked for.
    pub(super) fn reply(
        &mut self,
        dialect: &Dialect,
        head: &Head,
        on_delta: &mut dyn FnMut(&str),
    ) -> Result<Reply, ProviderError> {
        let mut events = EventReader { decoder: sse::Decoder::default(), stream: (dialect.stream)() };
        if head.header("content-type").is_some_and(|t| t.contains("event-stream")) {
            return self.streamed(events, on_delta);
        }
        let body = self.body()?;
        let text = String::from_utf8_lossy(&body);
        if looks_like_html(&text) {
            return Err(classify(head.status, Some(head), &body, SystemTime::now()));
        }
        if ["data:", "event:"].iter().any(|field| text.trim_start().starts_with(field)) {
            // A stream under the wrong content type.
            events.push(&body, on_delta)?;
            return events.finish(on_delta);
        }
        let value: Value = serde_json::from_str(&text)
            .map_err(|e| transient(format!("the answer is not JSON ({e}): {}", one_line(&text, 100))))?;
        let reply = (dialect.reply)(&value).map_err(|error| error_in_answer(Some(head), &error))?;
        if !reply.text.is_empty() {
            on_delta(&reply.text);
        }
        Ok(reply)
    }

    fn body(&mut self) -> Result<Vec<u8>, ProviderError> {
        let mut body = Vec::new();
        while let Some(piece) = self.piece()? {
            // Hosts send white space to keep a connection alive while the model thinks.
            if piece.iter().any(|b| !b.is_ascii_whitespace()) {
                self.last_content = Instant::now();
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }

    fn streamed(&mut self, mut events: EventReader, on_delta: &mut dyn FnMut(&str)) -> Result<Reply, ProviderError> {
        loop {
            match self.piece() {
                Ok(Some(piece)) => {
                    if events.push(&piece, on_delta)? {
                        self.last_content = Instant::now();
                    }
                }
                Ok(None) => return events.finish(on_delta),
                // Once the reply is complete, it does not matter how the connection ends.
                Err(ProviderError::Transient { .. }) if events.stream.is_complete() => return events.finish(on_delta),
                Err(e) => return Err(e),
            }
        }
    }
}

/// From bytes to a reply.
struct EventReader {
    decoder: sse::Decoder,
    stream: Box<dyn ReplyStream>,
}

impl EventReader {
    /// Returns whether the bytes carried content.
    fn push(&mut self, bytes: &[u8], on_delta: &mut dyn FnMut(&str)) -> Result<bool, ProviderError> {
        let events = self.decoder.push(bytes);
        let mut any = false;
        for event in events.map_err(|sse::TooLong| transient("the server sent an endless event".to_owned()))? {
            any |= self.event(&event, on_delta)?;
        }
        Ok(any)
    }

    fn event(&mut self, data: &str, on_delta: &mut dyn FnMut(&str)) -> Result<bool, ProviderError> {
        let text = self.stream.event(data).map_err(|error| error_in_answer(None, &error))?;
        if let Some(text) = text.as_deref().filter(|text| !text.is_empty()) {
            on_delta(text);
        }
        Ok(text.is_some())
    }

    fn finish(mut self, on_delta: &mut dyn FnMut(&str)) -> Result<Reply, ProviderError> {
        if let Some(last) = std::mem::take(&mut self.decoder).finish() {
            self.event(&last, on_delta)?;
        }
        // The end of the connection is not the end of the reply.
        if self.stream.is_complete() {
            Ok(self.stream.finish())
        } else {
            Err(transient("the answer broke off".to_owned()))
        }
    }
}

fn transient(message: String) -> ProviderError {
    ProviderError::Transient { message, retry_after: None }
}

/// An error object in an answer whose status promised a reply.
fn error_in_answer(head: Option<&Head>, error: &Value) -> ProviderError {
    classify(200, head, json!({ "error": error }).to_string().as_bytes(), SystemTime::now())
}
