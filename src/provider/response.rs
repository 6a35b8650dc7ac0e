//! Reads a host's response as it arrives, streamed or whole, and detects a silent host.

use std::time::{Duration, Instant};

use super::refusal::{looks_like_html, rejected, transient};
use super::reply::{Read, ReadError, ReplyBuilder, Stage};
use super::{ProviderError, says};
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
}

impl<'a> HostResponse<'a> {
    pub(super) fn new(host: &'a str, exchange: Exchange, patience: (Duration, Duration)) -> Self {
        Self {
            host,
            exchange,
            patience,
            last_progress: Instant::now(),
        }
    }

    pub(super) fn head(&mut self) -> Result<Head, ProviderError> {
        let head = self.wait(Exchange::head)?;
        self.last_progress = self.exchange.uploaded_at;
        Ok(head)
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
            Fault::Silent => {
                let (host, seconds) = (self.host, patience.as_secs());
                transient(format!("{host}: no answer for {seconds} s"), None)
            }
            Fault::Config(e) => ProviderError::NotSent(e.doing(self.host)),
            Fault::Broken(m) => transient(format!("{}: {m}", self.host), None),
            Fault::Cancelled(why) => ProviderError::Cancelled(why),
        })
    }

    /// Reads the next piece, adds its size to `read`, and fails if the sum exceeds `most`.
    fn piece(&mut self, read: &mut usize, most: usize) -> Result<Option<Vec<u8>>, ProviderError> {
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

    /// Reads the reply in a successful answer. A host without streaming support sends a whole answer.
    pub(super) fn reply(
        &mut self,
        head: &Head,
        read: Read,
        into: &mut ReplyBuilder,
    ) -> Result<Reply, ReadError> {
        let kind = head.header("content-type").unwrap_or_default();
        let mut is_stream = says(kind, "event-stream | ndjson | jsonl");
        let endless = |sse::TooLong| transient("the server sent an endless event", None);
        let (mut decoder, mut body, mut received) = (sse::Decoder::default(), Vec::new(), 0);
        loop {
            let most = if is_stream { MOST_STREAMED } else { MOST_WHOLE };
            let piece = match self.piece(&mut received, most) {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                // The end of the connection does not matter after a complete reply.
                Err(ProviderError::Transient { .. }) if into.stage != Stage::Begun => break,
                // The user sees everything that arrived, including text that was withheld because it could have become a call.
                Err(e @ ProviderError::Cancelled(_)) => {
                    drop(into.finish());
                    return Err(e.into());
                }
                Err(e) => return Err(e.into()),
            };
            // Some hosts stream with the wrong content type.
            is_stream |=
                body.is_empty() && (piece.starts_with(b"data:") || piece.starts_with(b"event:"));
            let mut has_content = false;
            if is_stream {
                for data in decoder.push(&piece).map_err(endless)? {
                    has_content |= read_event(&data, read, into)?;
                    into.show();
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
        let mut last = decoder.push(&body).map_err(endless)?;
        last.extend(decoder.finish());
        // A host may stream lines that look like no events at first.
        if !is_stream && last.len() < 2 {
            read_whole(&body, read, into)?;
            return Ok(into.finish()?);
        }
        for data in last {
            read_event(&data, read, into)?;
        }
        // A closed connection does not mean a complete reply.
        if into.stage == Stage::Begun {
            return Err(transient("the answer broke off", None).into());
        }
        Ok(into.finish()?)
    }
}

/// Reads the data of an event; returns whether it has content.
fn read_event(data: &str, read: Read, into: &mut ReplyBuilder) -> Result<bool, ReadError> {
    let data = data.trim();
    if data == "[DONE]" {
        into.stage = Stage::Ended;
    }
    if data.is_empty() || into.stage == Stage::Ended {
        return Ok(false);
    }
    read(data, into)?;
    Ok(into.take_news())
}

fn read_whole(body: &[u8], read: Read, into: &mut ReplyBuilder) -> Result<(), ReadError> {
    let text = String::from_utf8_lossy(body);
    if looks_like_html(&text) {
        return Err(ReadError::Refusal(text.into_owned()));
    }
    read(text.trim(), into)?;
    if !into.take_news() && into.stage == Stage::Begun {
        let why = format!("no reply in the response: {}", foreign_line(&text, 100));
        return Err(transient(why, None).into());
    }
    Ok(())
}
