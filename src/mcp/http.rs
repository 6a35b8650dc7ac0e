//! A server on the network: streamable HTTP (2025-03-26 and later). Each message is a POST; the answer is one JSON object
//! or a stream of events that ends with it.

use std::collections::VecDeque;
use std::time::Instant;

use serde_json::Value;

use super::{MAX_MESSAGE, Transport, parse, too_long};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::http::{Body, Client, Exchange, Outgoing, left};
use crate::secret::Secret;
use crate::sse::Decoder;

pub(crate) struct Http {
    client: Client,
    url: String,
    headers: Vec<(String, Secret)>,
    /// Given by the server with its first answer.
    session: Option<String>,
    /// The revision that was agreed upon.
    revision: Option<String>,
    messages: VecDeque<Value>,
    /// A stream that has more to say.
    stream: Option<(Exchange, Decoder, usize)>,
}

impl Http {
    pub(crate) fn new(client: Client, url: String, headers: Vec<(String, Secret)>) -> Self {
        Self {
            client,
            url,
            headers,
            session: None,
            revision: None,
            messages: VecDeque::new(),
            stream: None,
        }
    }
}

impl Transport for Http {
    fn send(&mut self, message: &Value, until: Instant, cancel: &Cancel) -> Result<()> {
        let mut headers = self.headers.clone();
        headers.push((
            "accept".to_owned(),
            Secret::new("application/json, text/event-stream"),
        ));
        headers.extend(
            self.session
                .iter()
                .map(|id| ("mcp-session-id".to_owned(), Secret::new(id))),
        );
        headers.extend(
            self.revision
                .iter()
                .map(|r| ("mcp-protocol-version".to_owned(), Secret::new(r))),
        );
        let request = Outgoing {
            url: self.url.clone(),
            headers,
            body: Some(Body::json(message)),
        };
        let mut exchange = self.client.send(request, cancel)?;
        let head = exchange.head(left(until))?;
        match head.status {
            200..=299 => {}
            401 | 403 => {
                return Err(Error::failed(format!(
                    "it refuses this client (status {}): put its key into the entry's headers; signing in by OAuth is not \
                     supported",
                    head.status
                )));
            }
            404 if self.session.is_some() => {
                return Err(Error::failed("it has forgotten this session"));
            }
            300..=399 => {
                return Err(Error::failed(format!(
                    "it redirects (status {}): put the new address into its entry",
                    head.status
                )));
            }
            status => return Err(Error::failed(format!("it answered with status {status}"))),
        }
        if let Some(session) = head.header("mcp-session-id") {
            self.session = Some(session.to_owned());
        }
        if head
            .header("content-type")
            .is_some_and(|kind| kind.contains("text/event-stream"))
        {
            self.stream = Some((exchange, Decoder::default(), 0));
            return Ok(());
        }
        let text = exchange.whole_body(MAX_MESSAGE, until)?;
        if text.len() > MAX_MESSAGE {
            return Err(too_long());
        }
        self.messages
            .extend(parse(&String::from_utf8_lossy(&text))?);
        Ok(())
    }

    fn receive(&mut self, until: Instant, _: &Cancel) -> Result<Value> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                if let Some(revision) = message["result"]["protocolVersion"].as_str() {
                    self.revision = Some(revision.to_owned());
                }
                return Ok(message);
            }
            let Some((exchange, decoder, bytes)) = &mut self.stream else {
                return Err(Error::failed("it answered without a message"));
            };
            let events = match exchange.body(left(until))? {
                Some(piece) => {
                    *bytes += piece.len();
                    let events = decoder.push(&piece).map_err(|_| too_long())?;
                    if *bytes > MAX_MESSAGE {
                        return Err(too_long());
                    }
                    events
                }
                None => self
                    .stream
                    .take()
                    .and_then(|(_, decoder, _)| decoder.finish())
                    .into_iter()
                    .collect(),
            };
            for event in events {
                self.messages.extend(parse(&event)?);
            }
        }
    }
}
