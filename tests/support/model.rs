//! A scripted model: an OpenAI-compatible server on loopback with the replies of the test.
//!
//! It sends SSE for a request with `"stream": true` and plain JSON otherwise, uses persistent connections, and records every
//! request. A request without a scripted reply fails the test, and so does an unused reply.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::harness::{CANARY, config_for, print_failure};

/// Token counts of every reply.
pub const USAGE: (u64, u64, u64) = (11, 7, 18);

/// Number of requests that a failed test shows, the last ones.
const SHOWN: usize = 6;

/// A request as received.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Value,
    pub at: Instant,
}

impl Request {
    /// Returns a header by its name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        all.find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Returns the task, if a subagent asks.
    pub fn task(&self) -> Option<String> {
        let said = self.texts("user").into_iter().next()?;
        Some(said.split_once("The task:\n\n")?.1.to_owned())
    }

    pub fn is_streamed(&self) -> bool {
        self.body["stream"] == true
    }

    /// Returns the messages, oldest first.
    pub fn messages(&self) -> Vec<&Value> {
        self.body["messages"]
            .as_array()
            .into_iter()
            .flatten()
            .collect()
    }

    /// Returns the texts of one role, oldest first, from strings and arrays of parts.
    pub fn texts(&self, role: &str) -> Vec<String> {
        let said = self
            .messages()
            .into_iter()
            .filter(|message| message["role"] == role);
        said.map(|message| text_of(&message["content"])).collect()
    }

    /// Returns the text of the last message of one role.
    #[track_caller]
    pub fn last(&self, role: &str) -> String {
        self.texts(role)
            .pop()
            .unwrap_or_else(|| panic!("no {role} message in {}", self.body))
    }

    /// Returns the names of the offered tools.
    pub fn tools(&self) -> Vec<&str> {
        let is_withheld = self.body["tool_choice"] == "none";
        let tools = self.body["tools"].as_array().into_iter().flatten();
        tools
            .filter(|_| !is_withheld)
            .filter_map(|tool| tool["function"]["name"].as_str())
            .collect()
    }
}

pub fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => String::new(),
    }
}

/// A tool call of the model. `arguments` are sent unchanged, even if invalid.
#[derive(Clone)]
pub struct Call {
    id: String,
    name: String,
    arguments: String,
}

pub fn call(id: &str, name: &str, arguments: &Value) -> Call {
    written_call(id, name, &arguments.to_string())
}

/// Returns a call with exactly these argument bytes.
pub fn written_call(id: &str, name: &str, arguments: &str) -> Call {
    Call {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    }
}

#[derive(Clone)]
enum Body {
    /// A completion, streamed or plain as requested.
    Message {
        text: String,
        calls: Vec<Call>,
        finish: String,
    },
    /// These bytes with this content type, for every request.
    Bytes { kind: &'static str, bytes: Vec<u8> },
    /// These SSE lines, each sent separately.
    Events(Vec<String>),
}

/// A scripted reply.
#[derive(Clone)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Body,
    hold_after: Option<usize>,
    cut_after: Option<usize>,
    /// Tokens of the prompt and of the reply.
    usage: (u64, u64),
}

impl Reply {
    fn of(status: u16, body: Body) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body,
            hold_after: None,
            cut_after: None,
            usage: (USAGE.0, USAGE.1),
        }
    }

    /// Returns a plain answer.
    pub fn text(text: &str) -> Self {
        let (text, calls, finish) = (text.to_owned(), Vec::new(), "stop".to_owned());
        Self::of(
            200,
            Body::Message {
                text,
                calls,
                finish,
            },
        )
    }

    /// Returns tool calls without text.
    pub fn calls(calls: impl IntoIterator<Item = Call>) -> Self {
        let (calls, finish) = (calls.into_iter().collect(), "tool_calls".to_owned());
        Self::of(
            200,
            Body::Message {
                text: String::new(),
                calls,
                finish,
            },
        )
    }

    /// Returns one tool call with an arbitrary id.
    pub fn call(name: &str, arguments: &Value) -> Self {
        Self::calls([call("call_1", name, arguments)])
    }

    /// Returns an error in the format of the real API.
    pub fn error(status: u16, message: &str) -> Self {
        Self::json(
            status,
            &json!({ "error": { "message": message, "type": "test_error", "code": null } }),
        )
    }

    pub fn json(status: u16, body: &Value) -> Self {
        let bytes = body.to_string().into_bytes();
        Self::of(
            status,
            Body::Bytes {
                kind: "application/json",
                bytes,
            },
        )
    }

    pub fn html(status: u16, page: &str) -> Self {
        Self::of(
            status,
            Body::Bytes {
                kind: "text/html",
                bytes: page.as_bytes().to_vec(),
            },
        )
    }

    /// Returns an SSE stream with these events.
    pub fn events<const N: usize>(events: [&str; N]) -> Self {
        Self::of(200, Body::Events(events.map(str::to_owned).to_vec()))
    }

    /// Returns an SSE stream with computed events.
    pub fn stream(events: impl IntoIterator<Item = String>) -> Self {
        Self::of(200, Body::Events(events.into_iter().collect()))
    }

    /// Adds `text` to the calls.
    pub fn saying(mut self, said: &str) -> Self {
        if let Body::Message { text, .. } = &mut self.body {
            said.clone_into(text);
        }
        self
    }

    pub fn finish(mut self, reason: &str) -> Self {
        if let Body::Message { finish, .. } = &mut self.body {
            reason.clone_into(finish);
        }
        self
    }

    /// Sets the token counts of the prompt and the reply.
    pub fn counted(mut self, prompt: u64, reply: u64) -> Self {
        self.usage = (prompt, reply);
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends nothing, not even a status line, until [`Model::release`].
    pub fn held(self) -> Self {
        self.held_after(0)
    }

    /// Stops after some pieces (for a stream: events; the first one has no text) until [`Model::release`].
    pub fn held_after(mut self, pieces: usize) -> Self {
        self.hold_after = Some(pieces);
        self
    }

    /// Closes the connection after some pieces.
    pub fn cut_after(mut self, pieces: usize) -> Self {
        self.cut_after = Some(pieces);
        self
    }

    /// Returns the pieces of the body, and its content type.
    fn pieces(&self, request: &Request) -> (&'static str, Vec<Vec<u8>>) {
        match &self.body {
            Body::Bytes { kind, bytes } => (kind, halves(bytes)),
            Body::Events(events) => (
                "text/event-stream",
                events
                    .iter()
                    .map(|event| event.clone().into_bytes())
                    .collect(),
            ),
            Body::Message {
                text,
                calls,
                finish,
            } if request.is_streamed() => (
                "text/event-stream",
                streamed(request, text, calls, finish, self.usage),
            ),
            Body::Message {
                text,
                calls,
                finish,
            } => (
                "application/json",
                halves(
                    plain(request, text, calls, finish, self.usage)
                        .to_string()
                        .as_bytes(),
                ),
            ),
        }
    }
}

fn halves(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    vec![first.to_vec(), second.to_vec()]
}

fn usage((prompt_tokens, completion_tokens): (u64, u64)) -> Value {
    let total_tokens = prompt_tokens + completion_tokens;
    json!({
        "prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total_tokens,
        "prompt_tokens_details": { "cached_tokens": 3 }
    })
}

fn plain(
    request: &Request,
    text: &str,
    calls: &[Call],
    finish: &str,
    counted: (u64, u64),
) -> Value {
    let content = if text.is_empty() {
        Value::Null
    } else {
        text.into()
    };
    let mut message = json!({ "role": "assistant", "content": content });
    if !calls.is_empty() {
        message["tool_calls"] = calls
            .iter()
            .map(|call| {
                let function = json!({ "name": call.name, "arguments": call.arguments });
                json!({ "id": call.id, "type": "function", "function": function })
            })
            .collect();
    }
    json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": request.body["model"],
        "choices": [ { "index": 0, "message": message, "finish_reason": finish } ], "usage": usage(counted)
    })
}

/// Streams a completion like the real API: a role, the text in small pieces, each call's name and then its arguments in two
/// pieces, the finish reason, and the usage if requested.
fn streamed(
    request: &Request,
    text: &str,
    calls: &[Call],
    finish: &str,
    counted: (u64, u64),
) -> Vec<Vec<u8>> {
    let head = |choices: Value| {
        json!({
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1,
            "model": request.body["model"], "choices": choices
        })
    };
    let delta = |delta: Value, finish: Value| {
        head(json!([ { "index": 0, "delta": delta, "finish_reason": finish } ]))
    };
    let mut events = vec![delta(
        json!({ "role": "assistant", "content": "" }),
        Value::Null,
    )];
    let characters: Vec<char> = text.chars().collect();
    for piece in characters.chunks(8) {
        let piece: String = piece.iter().collect();
        events.push(delta(json!({ "content": piece }), Value::Null));
    }
    for (index, call) in calls.iter().enumerate() {
        let function = json!({ "name": call.name, "arguments": "" });
        let named =
            json!([ { "index": index, "id": call.id, "type": "function", "function": function } ]);
        events.push(delta(json!({ "tool_calls": named }), Value::Null));
        let middle = call
            .arguments
            .char_indices()
            .nth(call.arguments.chars().count() / 2);
        let (first, second) = call.arguments.split_at(middle.map_or(0, |(at, _)| at));
        for piece in [first, second] {
            let more = json!([ { "index": index, "function": { "arguments": piece } } ]);
            events.push(delta(json!({ "tool_calls": more }), Value::Null));
        }
    }
    events.push(delta(json!({}), finish.into()));
    if request.body["stream_options"]["include_usage"] == true {
        let mut last = head(json!([]));
        last["usage"] = usage(counted);
        events.push(last);
    }
    let mut lines: Vec<Vec<u8>> = events
        .iter()
        .map(|event| format!("data: {event}\n\n").into_bytes())
        .collect();
    lines.push(b"data: [DONE]\n\n".to_vec());
    lines
}

type Answer = dyn Fn(&Request, usize) -> Reply + Send + Sync;

enum Script {
    /// These replies, in this order, each exactly once.
    Replies(VecDeque<Reply>),
    /// Result of this function for a request and its number (from 0), for every request.
    Answer(Arc<Answer>),
}

struct State {
    script: Script,
    requests: Vec<Request>,
    /// Number of received requests.
    count: usize,
    /// Whether only the last requests are retained.
    is_forgetful: bool,
    /// Number of requests after the end of the script.
    surprises: usize,
    /// Number of replies held so far.
    held: usize,
    /// Number of held replies that may continue.
    released: usize,
    ending: bool,
    /// Connections by number.
    open: BTreeMap<u64, TcpStream>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    /// The state is consistent even after a panic in another thread.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The server. Dropping it fails the test if the script was not followed exactly.
pub struct Model {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Model {
    /// Returns a model with these replies, in this order.
    pub fn scripted(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::start(Script::Replies(replies.into_iter().collect()))
    }

    /// Returns a model that must not be asked.
    pub fn never_asked() -> Self {
        Self::scripted([])
    }

    /// Answers every request by `answer`, which also gets the request's number.
    pub fn answering(answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(Script::Answer(Arc::new(answer)))
    }

    fn start(script: Script) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = State {
            script,
            requests: Vec::new(),
            count: 0,
            is_forgetful: false,
            surprises: 0,
            held: 0,
            released: 0,
            ending: false,
            open: BTreeMap::new(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming().flatten()) {
                let mut state = serving.lock();
                if state.ending {
                    return;
                }
                state
                    .open
                    .extend(stream.try_clone().map(|stream| (number, stream)));
                let shared = Arc::clone(&serving);
                thread::spawn(move || {
                    // Some tests disconnect in the middle of a reply.
                    serve(&shared, stream).ok();
                    shared.lock().open.remove(&number);
                });
            }
        });
        Self { address, shared }
    }

    /// Returns the `api_base` to configure.
    pub fn base(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Returns `HOST:PORT`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns a configuration that names this model `test`.
    pub fn config(&self) -> Value {
        config_for(&self.base())
    }

    /// Retains only the last requests, for long runs.
    pub fn forgetful(self) -> Self {
        self.shared.lock().is_forgetful = true;
        self
    }

    /// Returns the number of requests so far.
    pub fn asked(&self) -> usize {
        self.shared.lock().count
    }

    /// Returns the requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }

    /// Returns the request with this number (from 0), which must exist.
    #[track_caller]
    pub fn request(&self, n: usize) -> Request {
        let requests = self.requests();
        let count = requests.len();
        requests
            .into_iter()
            .nth(n)
            .unwrap_or_else(|| panic!("request {n} never came, only {count}"))
    }

    /// Waits until this many requests were received.
    #[track_caller]
    pub fn wait_for_requests(&self, count: usize) {
        self.wait_for("requests", count, |state| state.requests.len());
    }

    /// Waits until this many replies are sent or held by [`Self::release`].
    #[track_caller]
    pub fn wait_for_holds(&self, count: usize) {
        self.wait_for("held replies", count, |state| state.held);
    }

    #[track_caller]
    fn wait_for(&self, what: &str, count: usize, seen: impl Fn(&State) -> usize) {
        let few = |state: &mut State| seen(state) < count;
        let wait = Duration::from_secs(60);
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), wait, few)
            .unwrap();
        let reached = seen(&state);
        drop(state);
        assert!(
            reached >= count,
            "waited for {count} {what}, only {reached} came"
        );
    }

    /// Lets one held reply continue.
    pub fn release(&self) {
        self.shared.lock().released += 1;
        self.shared.changed.notify_all();
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ending = true;
        for stream in std::mem::take(&mut state.open).into_values() {
            stream.shutdown(std::net::Shutdown::Both).ok();
        }
        let unused = match &state.script {
            Script::Replies(replies) => replies.len(),
            Script::Answer(_) => 0,
        };
        let (surprises, requests) = (state.surprises, std::mem::take(&mut state.requests));
        drop(state);
        self.shared.changed.notify_all();
        TcpStream::connect(self.address).ok(); // wakes the accepting thread, which then ends
        let leaks = requests
            .iter()
            .filter(|request| request.body.to_string().contains(CANARY))
            .count();
        let wrong = unused + surprises + leaks > 0;
        if thread::panicking() || wrong {
            eprintln!("\n==== what the model was asked ====");
            let skipped = requests.len().saturating_sub(SHOWN);
            if skipped > 0 {
                eprintln!("({skipped} earlier requests)");
            }
            for (n, request) in requests.iter().enumerate().skip(skipped) {
                eprintln!(
                    "{n}: {} {}\n{:#}",
                    request.method, request.path, request.body
                );
            }
            print_failure();
        }
        if !thread::panicking() {
            assert_eq!(surprises, 0, "requests without a scripted reply");
            assert_eq!(unused, 0, "scripted replies nobody asked for");
            assert_eq!(leaks, 0, "requests with the API key in their body");
        }
    }
}

/// Serves one connection until one side ends it.
fn serve(shared: &Shared, stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader, &mut writer)? {
        let close = request
            .header("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let reply = {
            let mut state = shared.lock();
            // Scripts are for questions, so this host lists no models.
            let is_list = request.method == "GET" && request.path.ends_with("/models");
            if is_list && matches!(state.script, Script::Replies(_)) {
                drop(state);
                send(
                    shared,
                    &mut writer,
                    &request,
                    &Reply::error(404, "no such page"),
                )?;
                continue;
            }
            let number = state.count;
            state.count += 1;
            state.requests.push(request.clone());
            if state.is_forgetful {
                let old = state.requests.len().saturating_sub(SHOWN);
                state.requests.drain(..old);
            }
            let reply = match &mut state.script {
                Script::Answer(answer) => Ok(Arc::clone(answer)),
                Script::Replies(replies) => Err(replies.pop_front()),
            };
            if matches!(reply, Err(None)) {
                state.surprises += 1;
            }
            drop(state);
            shared.changed.notify_all();
            match reply {
                Ok(answer) => answer(&request, number),
                Err(Some(scripted)) => scripted,
                Err(None) => Reply::error(400, "the test has no reply for this request"),
            }
        };
        let whole = send(shared, &mut writer, &request, &reply)?;
        if close || !whole {
            writer.shutdown(std::net::Shutdown::Both)?;
            return Ok(());
        }
    }
    Ok(())
}

/// Sends a reply. Returns false if it was cut short on purpose.
fn send(
    shared: &Shared,
    writer: &mut TcpStream,
    request: &Request,
    reply: &Reply,
) -> std::io::Result<bool> {
    let hold = |n: usize| {
        if reply.hold_after == Some(n) {
            let waits = |state: &mut State| state.released == 0 && !state.ending;
            let mut state = shared.lock();
            state.held += 1;
            shared.changed.notify_all();
            let mut state = shared.changed.wait_while(state, waits).unwrap();
            state.released = state.released.saturating_sub(1);
        }
    };
    let (kind, pieces) = reply.pieces(request);
    hold(0);
    if reply.cut_after == Some(0) {
        return Ok(false);
    }
    let mut head = format!(
        "HTTP/1.1 {} Scripted\r\nContent-Type: {kind}\r\n",
        reply.status
    );
    for (name, value) in &reply.headers {
        head.extend([name, ": ", value, "\r\n"]);
    }
    head += "Transfer-Encoding: chunked\r\n\r\n";
    writer.write_all(head.as_bytes())?;
    for (n, piece) in pieces.iter().enumerate() {
        if !piece.is_empty() {
            let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
            chunk.extend_from_slice(piece);
            chunk.extend_from_slice(b"\r\n");
            writer.write_all(&chunk)?;
        }
        hold(n + 1);
        if reply.cut_after == Some(n + 1) {
            return Ok(false);
        }
    }
    writer.write_all(b"0\r\n\r\n")?;
    Ok(true)
}

/// Returns the next request of a connection; `None` after the client has closed it.
fn read_request(
    reader: &mut impl BufRead,
    writer: &mut TcpStream,
) -> std::io::Result<Option<Request>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut words = first.split_whitespace().map(str::to_owned);
    let (method, path) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
            None => break,
        }
    }
    let mut request = Request {
        method,
        path,
        headers,
        body: Value::Null,
        at: Instant::now(),
    };
    if request.header("expect").is_some() {
        writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let length = request
        .header("content-length")
        .map(|value| value.parse().unwrap());
    let chunked = request
        .header("transfer-encoding")
        .is_some_and(|value| value == "chunked");
    let mut bytes = Vec::new();
    if let Some(length) = length {
        bytes.resize(length, 0);
        reader.read_exact(&mut bytes)?;
    } else if chunked {
        while let Some(mut chunk) = read_chunk(reader)? {
            bytes.append(&mut chunk);
        }
    }
    request.body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    Ok(Some(request))
}

/// Returns the next chunk of a chunked body; `None` after the last one.
fn read_chunk(reader: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let length = usize::from_str_radix(line.trim(), 16).map_err(std::io::Error::other)?;
    let mut chunk = vec![0; length + 2]; // with the line end behind it
    reader.read_exact(&mut chunk)?;
    chunk.truncate(length);
    Ok((length > 0).then_some(chunk))
}
