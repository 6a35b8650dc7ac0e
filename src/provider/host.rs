//! One host that is asked: the request goes out, the answer comes in piece by piece, whatever dialect it speaks.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::errors::{classify, looks_like_html};
use super::quirks::{self, Learned, Quirk};
use super::{ProviderError, Request, ToolOffer};
use crate::config::Model;
use crate::config::keys::ApiKey;
use crate::http::{Client, Exchange, Fault, Head, Outbody, Outgoing, Part, Settings};
use crate::message::Reply;
use crate::secret::Secret;
use crate::sse;
use crate::text::one_line;

/// How a dialect's answer is put together, streamed or whole.
pub trait Assembly {
    /// Takes the data of one event of a stream.
    fn event(&mut self, data: &str) -> Chunk;

    /// Whether the answer came to an end by the server's own word.
    fn is_complete(&self) -> bool;

    fn finish(self: Box<Self>) -> Reply;

    /// The reply in a whole body; nothing that came before counts.
    fn whole(&self, body: &Value) -> Result<Reply, Value>;
}

/// What a dialect sends.
pub struct Body {
    pub fields: Value,
    /// The tools, a list as JSON; empty for none. Schemas are JSON already: they are not read only to be written again.
    pub tools: String,
}

impl Body {
    /// The list of `tools`; each is written by `tool` from its name, description and schema, which are JSON.
    pub fn tools(tools: &[ToolOffer], tool: fn(&str, &str, &str) -> String) -> String {
        let text = |text: &str| Value::from(text).to_string();
        let written = tools.iter().map(|t| tool(&text(&t.name), &text(&t.description), &t.schema));
        let written: Vec<String> = written.collect();
        if written.is_empty() { String::new() } else { format!("[{}]", written.join(",")) }
    }

    /// As JSON.
    pub fn json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec(&self.fields).unwrap_or_default();
        // The user's own fields win.
        if !self.tools.is_empty() && self.fields.get("tools").is_none() {
            json.pop();
            json.extend_from_slice(b",\"tools\":");
            json.extend_from_slice(self.tools.as_bytes());
            json.push(b'}');
        }
        json
    }
}

/// Begins an answer.
pub type New = fn() -> Box<dyn Assembly>;

/// What an event of a stream meant.
#[derive(Debug, PartialEq)]
pub enum Chunk {
    /// It carried something of the answer; what of it can be shown now.
    Content(String),
    /// It carried nothing: a sign of life, a count.
    Nothing,
    /// The server gave up; its error.
    Error(Value),
}

/// The header that carries a key.
pub type Sign = fn(&str) -> (&'static str, String);

/// A host, and one key for it.
pub struct Host {
    model: Model,
    key: Option<ApiKey>,
    client: Client,
    url: String,
    sign: Sign,
    /// What it was found to refuse.
    quirks: Mutex<Learned>,
}

/// The most of an error's body that is read.
const MOST_ERROR: usize = 256 << 10;

impl Host {
    pub fn new(model: Model, key: Option<ApiKey>, settings: Settings, url: String, sign: Sign) -> Self {
        Self { model, key, client: Client::new(settings), url, sign, quirks: Mutex::default() }
    }

    /// The same, with what is known of it already.
    pub fn learned(self, learned: Learned) -> Self {
        Self { quirks: Mutex::new(learned), ..self }
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The body as it is sent: with the user's own fields, without what the host was found to refuse.
    pub fn body(&self, mut body: Body) -> Vec<u8> {
        for (name, value) in &self.model.extra_body {
            body.fields[name] = value.clone();
        }
        quirks::apply(&self.known(), &mut body.fields);
        body.json()
    }

    /// The same, for people.
    pub fn preview(&self, body: Body) -> Value {
        serde_json::from_slice(&self.body(body)).unwrap_or_default()
    }

    /// Asks, and asks once more for each thing that the host turns out to refuse. `dialect` makes the body, each time anew.
    pub fn ask(
        &self,
        dialect: &dyn Fn() -> Body,
        new: New,
        request: &Request,
        on_delta: &mut dyn FnMut(&str),
    ) -> Result<Reply, ProviderError> {
        let mut tried = Vec::new();
        loop {
            let mut begun = false;
            let result = self.once(self.body(dialect()), new, request, &mut |text| {
                begun = true;
                on_delta(text);
            });
            match result {
                Err(ProviderError::Rejected(refusal)) if !begun => match quirks::learn(&refusal, &self.known()) {
                    // Each is tried once, so this ends.
                    Some(quirk) if !tried.contains(&quirk) => {
                        tried.push(quirk);
                        self.quirks.lock().unwrap_or_else(PoisonError::into_inner).add(quirk);
                    }
                    _ => return Err(ProviderError::Rejected(refusal)),
                },
                result => return result,
            }
        }
    }

    fn known(&self) -> Vec<Quirk> {
        self.quirks.lock().unwrap_or_else(PoisonError::into_inner).known().to_vec()
    }

    fn once(
        &self,
        json: Vec<u8>,
        new: New,
        request: &Request,
        on_delta: &mut dyn FnMut(&str),
    ) -> Result<Reply, ProviderError> {
        let headers = self.headers(request.stream).map_err(ProviderError::Unasked)?;
        let outgoing = Outgoing { url: self.url.clone(), headers, body: Outbody::Json(json) };
        let exchange = self.client.send(outgoing, request.cancel).map_err(ProviderError::Unasked)?;
        let silence = self.model.request_timeout;
        let mut answer = Answer { host: host(&self.url), exchange, silence, last_content: Instant::now() };
        let head = answer.head()?;
        if !(200..300).contains(&head.status) {
            let body = answer.rest(MOST_ERROR);
            return Err(classify(head.status, Some(&head), &body, SystemTime::now()));
        }
        // A server that cannot stream answers whole, whatever was asked for.
        let streams = head.header("content-type").is_some_and(|t| t.contains("event-stream"));
        if streams { answer.stream(new(), on_delta) } else { answer.whole(new(), &head, on_delta) }
    }

    /// What the user set for a model wins over what we would send.
    fn headers(&self, stream: bool) -> crate::error::Result<Vec<(String, Secret)>> {
        let accept = if stream { "text/event-stream" } else { "application/json" };
        let mut headers = vec![("accept".to_owned(), Secret::new(accept))];
        if let Some(key) = &self.key {
            let (name, value) = (self.sign)(key.get()?.reveal());
            headers.push((name.to_owned(), Secret::new(value)));
        }
        headers.retain(|(name, _)| !self.model.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name)));
        headers.extend(self.model.headers.iter().cloned());
        Ok(headers)
    }
}

/// An answer under way. `silence` is the time it may go without content, not without bytes: a stream of pings is silent.
struct Answer<'a> {
    host: &'a str,
    exchange: Exchange,
    silence: Duration,
    last_content: Instant,
}

impl Answer<'_> {
    fn next(&mut self) -> Result<Part, ProviderError> {
        let left = self.silence.saturating_sub(self.last_content.elapsed());
        let silent = || transient(format!("{}: no answer for {} s", self.host, self.silence.as_secs()));
        if left.is_zero() {
            return Err(silent());
        }
        self.exchange.next(left).map_err(|fault| match fault {
            Fault::Silent => silent(),
            Fault::Broken(m) | Fault::Unreachable(m) => transient(format!("{}: {m}", self.host)),
            Fault::Cancelled(why) => ProviderError::Cancelled(why),
        })
    }

    fn head(&mut self) -> Result<Head, ProviderError> {
        match self.next()? {
            Part::Head(head) => Ok(head),
            Part::Body(_) | Part::End => Err(transient("the answer has no beginning".to_owned())),
        }
    }

    /// What is left of the body, up to `most` bytes. A fault ends it: half an error message is better than none.
    fn rest(&mut self, most: usize) -> Vec<u8> {
        let mut body = Vec::new();
        while let Ok(Part::Body(piece)) = self.next() {
            body.extend_from_slice(&piece);
            if body.len() > most {
                break;
            }
        }
        body
    }

    fn whole(
        &mut self,
        assembly: Box<dyn Assembly>,
        head: &Head,
        on_delta: &mut dyn FnMut(&str),
    ) -> Result<Reply, ProviderError> {
        let mut body = Vec::new();
        loop {
            match self.next()? {
                Part::Body(piece) => {
                    // White space is what servers send to keep a connection alive while the model thinks.
                    if piece.iter().any(|b| !b.is_ascii_whitespace()) {
                        self.last_content = Instant::now();
                    }
                    body.extend_from_slice(&piece);
                }
                Part::Head(_) => {}
                Part::End => break,
            }
        }
        let text = String::from_utf8_lossy(&body);
        if looks_like_html(&text) {
            return Err(classify(head.status, Some(head), &body, SystemTime::now()));
        }
        if text.trim_start().starts_with("data:") || text.trim_start().starts_with("event:") {
            // A stream under the wrong content type.
            let mut reader = StreamReader::new(assembly);
            reader.push(&body, &mut |_| ())?;
            let reply = reader.finish()?;
            on_delta(&reply.text);
            return Ok(reply);
        }
        let value: Value = serde_json::from_str(&text)
            .map_err(|e| transient(format!("the answer is not JSON ({e}): {}", one_line(&text, 100))))?;
        let reply = assembly.whole(&value).map_err(|error| refused(head, &error))?;
        if !reply.text.is_empty() {
            on_delta(&reply.text);
        }
        Ok(reply)
    }

    fn stream(&mut self, assembly: Box<dyn Assembly>, on_delta: &mut dyn FnMut(&str)) -> Result<Reply, ProviderError> {
        let mut reader = StreamReader::new(assembly);
        loop {
            match self.next() {
                Ok(Part::Body(piece)) => {
                    if reader.push(&piece, on_delta)? {
                        self.last_content = Instant::now();
                    }
                }
                Ok(Part::Head(_)) => {}
                Ok(Part::End) => return reader.finish(),
                // Once the model has said that it is done, how the connection ends is of no interest.
                Err(ProviderError::Transient { .. }) if reader.stream.is_complete() => return reader.finish(),
                Err(e) => return Err(e),
            }
        }
    }
}

/// From bytes to a reply.
struct StreamReader {
    decoder: sse::Decoder,
    stream: Box<dyn Assembly>,
}

impl StreamReader {
    fn new(stream: Box<dyn Assembly>) -> Self {
        Self { decoder: sse::Decoder::default(), stream }
    }

    /// Whether the bytes carried content.
    fn push(&mut self, bytes: &[u8], on_delta: &mut dyn FnMut(&str)) -> Result<bool, ProviderError> {
        let (mut any, mut failed) = (false, None);
        let stream = &mut self.stream;
        let result = self.decoder.push(bytes, &mut |data| match stream.event(data) {
            Chunk::Content(text) => {
                any = true;
                if !text.is_empty() {
                    on_delta(&text);
                }
            }
            Chunk::Nothing => {}
            Chunk::Error(error) => failed = failed.take().or(Some(error)),
        });
        if let Some(error) = failed {
            return Err(refused_in_stream(&error));
        }
        result.map_err(|sse::TooLong| transient("the server sent an endless event".to_owned()))?;
        Ok(any)
    }

    fn finish(mut self) -> Result<Reply, ProviderError> {
        let stream = &mut self.stream;
        let mut failed = None;
        self.decoder.finish(&mut |data| {
            if let Chunk::Error(error) = stream.event(data) {
                failed = Some(error);
            }
        });
        match failed {
            Some(error) => Err(refused_in_stream(&error)),
            // The end of the connection is not the end of the answer.
            None if !self.stream.is_complete() => Err(transient("the answer broke off".to_owned())),
            None => Ok(self.stream.finish()),
        }
    }
}

fn transient(message: String) -> ProviderError {
    ProviderError::Transient { message, retry_after: None }
}

fn refused(head: &Head, error: &Value) -> ProviderError {
    classify(head.status, Some(head), json!({ "error": error }).to_string().as_bytes(), SystemTime::now())
}

fn refused_in_stream(error: &Value) -> ProviderError {
    classify(200, None, json!({ "error": error }).to_string().as_bytes(), SystemTime::now())
}

/// The host and port of an address, without a user and password that may stand before it.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    authority.rsplit('@').next().unwrap_or_default()
}
