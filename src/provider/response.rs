//! Reads a host's response as it arrives, streamed or whole, and detects a silent host.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::host::ReadError;
use super::refusal::{looks_like_html, rejected, transient as transient_for};
use super::reply::{EventError, Progress, Read, ReplyBuilder, Visible};
use super::{ProviderError, Sink};
use crate::bus::Event;
use crate::http::{Exchange, Fault, Head};
use crate::message::Reply;
use crate::sse;
use crate::text::foreign_line;

/// Size limits in decoded bytes: for an error, for a whole answer, whose values take many times its size, and for a streamed
/// answer.
const MOST_ERROR: usize = 256 << 10;
const MOST_WHOLE: usize = 8 << 20;
const MOST_STREAMED: usize = 16 << 20;

/// A response that is being read.
pub(super) struct HostResponse<'a> {
    host: &'a str,
    exchange: Exchange,
    /// Time limits before the first content, and between contents. Other bytes do not count, so a stream of pings is silent.
    patience: (Duration, Duration),
    /// Time when content last arrived, or a piece of the request was sent.
    last_progress: Instant,
    /// Whether the body is unreadable, and counts as empty.
    is_packed: bool,
    /// Part of the reply's text was shown.
    pub(super) has_shown: bool,
}

impl<'a> HostResponse<'a> {
    pub(super) fn new(host: &'a str, exchange: Exchange, patience: (Duration, Duration)) -> Self {
        Self {
            host,
            exchange,
            patience,
            last_progress: Instant::now(),
            is_packed: false,
            has_shown: false,
        }
    }

    pub(super) fn head(&mut self) -> Result<Head, ProviderError> {
        let head = self.wait(Exchange::head)?;
        self.last_progress = self.exchange.uploaded_at;
        // `identity` was asked for.
        match head.header("content-encoding").map_or("", str::trim) {
            "" | "identity" => Ok(head),
            // The status of an error says enough.
            _ if !head.is_success() => {
                self.is_packed = true;
                Ok(head)
            }
            other => Err(rejected(format!(
                "{}: the answer is packed as {}",
                self.host,
                foreign_line(other, 40)
            ))),
        }
    }

    /// Waits for the result of `next`, up to the limit on silence.
    fn wait<T>(
        &mut self,
        next: fn(&mut Exchange, Duration) -> Result<T, Fault>,
    ) -> Result<T, ProviderError> {
        let patience = self.patience.0;
        let left = patience.saturating_sub(self.last_progress.elapsed());
        let result = if left.is_zero() {
            Err(Fault::Silent)
        } else {
            next(&mut self.exchange, left)
        };
        result.map_err(|fault| match fault {
            Fault::Silent => transient(format!(
                "{}: no answer for {} s",
                self.host,
                patience.as_secs()
            )),
            Fault::Config(e) => ProviderError::NotSent(e.doing(self.host)),
            Fault::Broken(m) => transient(format!("{}: {m}", self.host)),
            Fault::Cancelled(why) => ProviderError::Cancelled(why),
        })
    }

    /// Reads the next piece, adds its size to `read`, and fails if the sum exceeds `most`.
    fn piece(&mut self, read: &mut usize, most: usize) -> Result<Option<Vec<u8>>, ProviderError> {
        if self.is_packed {
            return Ok(None);
        }
        let piece = self.wait(Exchange::body)?;
        *read += piece.as_ref().map_or(0, Vec::len);
        if *read > most {
            let larger = format!("{}: the answer is larger than {} MB", self.host, most >> 20);
            return Err(rejected(larger));
        }
        Ok(piece)
    }

    /// Returns the body of an error. A fault ends it, because half an error message is better than none.
    pub(super) fn error_body(&mut self) -> Vec<u8> {
        let (mut body, mut read) = (Vec::new(), 0);
        while let Ok(Some(piece)) = self.piece(&mut read, MOST_ERROR) {
            body.extend(piece);
        }
        body
    }

    /// Returns the body of a whole answer.
    pub(super) fn body(&mut self) -> Result<Vec<u8>, ProviderError> {
        let (mut body, mut read) = (Vec::new(), 0);
        while let Some(piece) = self.piece(&mut read, MOST_WHOLE)? {
            body.extend(piece);
        }
        Ok(body)
    }

    /// Returns the reply in a successful answer. A host without streaming support sends a whole answer.
    pub(super) fn reply(
        &mut self,
        (mut reply, read): (ReplyBuilder, Read),
        head: &Head,
        sink: &dyn Sink,
    ) -> Result<Reply, ReadError> {
        let kind = head.header("content-type").unwrap_or_default();
        let mut is_stream = ["event-stream", "ndjson", "jsonl"]
            .iter()
            .any(|stream| kind.contains(stream));
        let mut events = EventsReader {
            read,
            unreadable: 0,
        };
        let (mut decoder, mut body, mut received) = (sse::Decoder::default(), Vec::new(), 0);
        loop {
            let most = if is_stream { MOST_STREAMED } else { MOST_WHOLE };
            let piece = match self.piece(&mut received, most) {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                // The end of the connection does not matter after a complete reply.
                Err(ProviderError::Transient { .. }) if reply.is_complete() => break,
                // The user sees everything that arrived, including text that was withheld because it could have become a call.
                Err(e @ ProviderError::Cancelled(_)) => {
                    let mut left = reply.finish().map(|(_, left)| left).unwrap_or_default();
                    left.thought.clear();
                    self.show(left, sink);
                    return Err(e.into());
                }
                Err(e) => return Err(e.into()),
            };
            // Some hosts stream with the wrong content type.
            is_stream |=
                body.is_empty() && (piece.starts_with(b"data:") || piece.starts_with(b"event:"));
            let mut has_content = false;
            if is_stream {
                let too_long = |sse::TooLong| transient("the server sent an endless event");
                for data in decoder.push(&piece).map_err(too_long)? {
                    if events.take(&data, &mut reply, sink)? {
                        self.show(reply.take_visible(), sink);
                        has_content = true;
                    }
                }
            } else {
                // Hosts send white space to maintain a connection while the model thinks.
                has_content = piece.iter().any(|b| !b.is_ascii_whitespace());
                body.extend(piece);
            }
            if has_content {
                (self.patience.0, self.last_progress) = (self.patience.1, Instant::now());
            }
        }
        let mut last = Vec::new();
        if !is_stream {
            let too_long = |sse::TooLong| transient("the server sent an endless event");
            last = decoder.push(&body).map_err(too_long)?;
        }
        last.extend(decoder.finish());
        // A host may stream lines that look like no events at first.
        if !is_stream && last.len() < 2 {
            let (reply, visible) = whole((reply, read), &body)?;
            self.show(visible, sink);
            return Ok(reply);
        }
        for data in last {
            events.take(&data, &mut reply, sink)?;
        }
        match events.unreadable {
            0 => {}
            n => sink.event(Event::Trace(format!(
                "events of the stream that were not JSON, and are lost: {n}"
            ))),
        }
        // A closed connection does not mean a complete reply.
        if !reply.is_complete() {
            return Err(transient("the answer broke off").into());
        }
        let (reply, left) = reply.finish()?;
        self.show(left, sink);
        Ok(reply)
    }

    /// Shows new parts of a reply.
    fn show(&mut self, Visible { text, thought }: Visible, sink: &dyn Sink) {
        if !thought.is_empty() {
            sink.event(Event::Thought(thought));
        }
        if !text.is_empty() {
            self.has_shown = true;
            sink.event(Event::Delta(text));
        }
    }
}

/// The events of a stream.
struct EventsReader {
    read: Read,
    /// Number of events that are not JSON.
    unreadable: u32,
}

impl EventsReader {
    /// Handles the data of an event; returns whether it has content.
    fn take(
        &mut self,
        data: &str,
        reply: &mut ReplyBuilder,
        sink: &dyn Sink,
    ) -> Result<bool, ReadError> {
        let data = data.trim();
        if data == "[DONE]" {
            reply.end();
        }
        if data.is_empty() || reply.has_ended() {
            return Ok(false);
        }
        match (self.read)(data, reply) {
            Ok(progress) => Ok(progress == Progress::Content),
            Err(EventError::Refused(error)) => Err(error_in_answer(&error)),
            Err(EventError::NotJson) => {
                self.unreadable += 1;
                Ok(false)
            }
            Err(EventError::TooLarge(why)) => {
                let text = format!("an event of the stream is not read: {why}");
                sink.event(Event::Trace(text));
                Ok(false)
            }
        }
    }
}

/// Returns the reply in a whole body.
fn whole(
    (mut reply, read): (ReplyBuilder, Read),
    body: &[u8],
) -> Result<(Reply, Visible), ReadError> {
    let text = String::from_utf8_lossy(body);
    if looks_like_html(&text) {
        return Err(ReadError::Refusal(text.into_owned()));
    }
    let has_content = match read(text.trim(), &mut reply) {
        Ok(progress) => progress == Progress::Content,
        Err(EventError::Refused(error)) => return Err(error_in_answer(&error)),
        Err(EventError::TooLarge(why)) => {
            let why = format!("the answer is larger than any that is read: {why}");
            return Err(rejected(why).into());
        }
        Err(EventError::NotJson) => false,
    };
    if !has_content && !reply.is_complete() {
        let why = format!("no reply in the response: {}", foreign_line(&text, 100));
        return Err(transient(why).into());
    }
    Ok(reply.finish()?)
}

fn transient(message: impl Into<String>) -> ProviderError {
    transient_for(message, None)
}

/// Wraps an error object from a response with a successful status.
fn error_in_answer(error: &Value) -> ReadError {
    ReadError::Refusal(json!({ "error": error }).to_string())
}
