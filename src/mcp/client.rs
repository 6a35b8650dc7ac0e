//! The protocol: JSON-RPC 2.0 requests, and what a server may say in between.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::form::{self, Form};
use super::list::{RemoteTool, bounded};
use super::{Transport, ended};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::text::one_line;

/// The revisions that this client speaks, the newest first.
const REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// Pages of a list of tools, and tools.
const MAX_PAGES: usize = 50;
const MAX_TOOLS: usize = 500;
/// JSON-RPC: no such method.
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
/// The longest id of a request of the server, in bytes.
const MAX_ID: usize = 200;
/// What a server may ask of the user from the beginning of a call to its end.
const MAX_QUESTIONS: usize = 3;
/// How long a form has to leave the terminal when its call is over.
const CLOSING: Duration = Duration::from_secs(5);
/// The least time between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// How long a server has to take the word that nobody is waiting any more.
const GIVE_UP: Duration = Duration::from_millis(100);

/// How long to wait for an answer.
pub(super) struct Patience<'a> {
    /// From one sign of life to the next.
    pub silence: Duration,
    /// In all; longer than the silence, it asks for progress.
    pub most: Duration,
    /// Hears what the server says of its progress.
    pub progress: &'a dyn Fn(&str),
}

impl Patience<'_> {
    fn of(time: Duration) -> Self {
        Self {
            silence: time,
            most: time,
            progress: &|_| {},
        }
    }
}

/// What a server says that answers no request.
#[derive(Default)]
pub(crate) struct Asides {
    /// Its tools are others now.
    list_changed: AtomicBool,
    /// Called when it says so.
    on_change: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Asks the user what the server wants to know; not set where nobody can be asked.
    ask: OnceLock<Box<AskUser>>,
    /// Sends a reply that could not be given at once.
    reply: OnceLock<Box<SendReply>>,
    questions: Mutex<Questions>,
    /// Told when a question is over.
    over: Condvar,
}

type SendReply = dyn Fn(&Value) + Send + Sync;

/// The form of a server whose name is known, and whether its call is over.
pub(super) type AskUser = dyn Fn(&Form, &dyn Fn() -> bool) -> form::Reply + Send + Sync;

#[derive(Default)]
struct Questions {
    /// Under way.
    calls: Vec<Arc<Call>>,
    /// One for each question that the user has not answered yet.
    open: Vec<Arc<Call>>,
    /// When the last one was answered.
    answered: Option<Instant>,
}

/// A call for which the server may ask the user.
struct Call {
    turn: Cancel,
    is_over: AtomicBool,
    asked: AtomicUsize,
}

impl Call {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst) || self.turn.reason().is_some()
    }
}

/// While this is there, the server may ask the user. Dropping it ends what is being asked.
pub(super) struct MayAsk<'a> {
    asides: &'a Asides,
    call: Arc<Call>,
}

impl Drop for MayAsk<'_> {
    fn drop(&mut self) {
        self.call.is_over.store(true, Ordering::SeqCst);
        let is_own = |call: &Arc<Call>| Arc::ptr_eq(call, &self.call);
        let mut questions = self.asides.questions();
        questions.calls.retain(|call| !is_own(call));
        let is_open = |questions: &mut Questions| questions.open.iter().any(is_own);
        let over = &self.asides.over;
        drop(over.wait_timeout_while(questions, CLOSING, is_open));
    }
}

impl Asides {
    pub(super) fn replies_by(&self, reply: impl Fn(&Value) + Send + Sync + 'static) {
        drop(self.reply.set(Box::new(reply)));
    }

    fn questions(&self) -> MutexGuard<'_, Questions> {
        self.questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn may_ask(&self, turn: &Cancel) -> MayAsk<'_> {
        let call = Arc::new(Call {
            turn: turn.clone(),
            is_over: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
        });
        self.questions().calls.push(call.clone());
        MayAsk { asides: self, call }
    }

    /// Until when the user was busy with a question: until now, if they still are.
    pub(super) fn busy_until(&self) -> Option<Instant> {
        let questions = self.questions();
        if questions.open.is_empty() {
            questions.answered
        } else {
            Some(Instant::now())
        }
    }

    /// Returns the call that the question belongs to; `None` if it is not to be asked.
    fn question_begins(&self) -> Option<Arc<Call>> {
        let mut questions = self.questions();
        // Without a call, the question would come out of the blue. Of several, only the server knows which one it is for.
        let [call] = &questions.calls[..] else {
            return None;
        };
        let call = call.clone();
        // One at a time: nobody can answer several.
        if !questions.open.is_empty() {
            return None;
        }
        if call.asked.fetch_add(1, Ordering::SeqCst) >= MAX_QUESTIONS {
            return None;
        }
        questions.open.push(call.clone());
        Some(call)
    }

    fn question_ends(&self, call: &Arc<Call>) {
        let mut questions = self.questions();
        let place = questions
            .open
            .iter()
            .position(|open| Arc::ptr_eq(open, call));
        if let Some(place) = place {
            questions.open.swap_remove(place);
        }
        questions.answered = Some(Instant::now());
        self.over.notify_all();
    }

    /// Asks the user in a thread of its own; whatever happens, the server gets one reply.
    fn question(self: &Arc<Self>, message: &Value) -> Option<Value> {
        let id = message["id"].clone();
        let form = match Form::read(&message["params"]) {
            Ok(form) => form,
            Err(why) => {
                let error = json!({"code": INVALID_PARAMS, "message": why});
                return Some(json!({"jsonrpc": "2.0", "id": id, "error": error}));
            }
        };
        let result =
            |reply: form::Reply| json!({"jsonrpc": "2.0", "id": id, "result": reply.into_result()});
        let Some(call) = self.question_begins() else {
            return Some(result(form::Reply::Cancel));
        };
        let (own, asked, id) = (self.clone(), call.clone(), id.clone());
        let work = move || {
            let pause = asked.turn.pause();
            let ask = own.ask.get();
            let reply = ask.map_or(form::Reply::Cancel, |ask| ask(&form, &|| asked.is_over()));
            drop(pause);
            // From here on the time is the server's, also that in which it takes the reply.
            own.question_ends(&asked);
            let reply = json!({"jsonrpc": "2.0", "id": id, "result": reply.into_result()});
            if let Some(send) = own.reply.get() {
                send(&reply);
            }
        };
        let started = thread::Builder::new().name("mcp".to_owned()).spawn(work);
        if started.is_err() {
            self.question_ends(&call);
            return Some(result(form::Reply::Cancel));
        }
        None
    }

    /// Takes note of it; returns the reply that it asks for.
    pub(super) fn receive(self: &Arc<Self>, message: &Value) -> Option<Value> {
        let method = message["method"].as_str()?;
        let id = &message["id"];
        if id.is_null() {
            if method == "notifications/tools/list_changed" {
                self.list_changed.store(true, Ordering::SeqCst);
                if let Some(tell) = self.on_change.get() {
                    tell();
                }
            }
            return None;
        }
        // What is sent back waits for a server that may not read it.
        let is_id = id.is_number() || id.as_str().is_some_and(|id| id.len() <= MAX_ID);
        if !is_id {
            return None;
        }
        if method == "ping" {
            return Some(json!({"jsonrpc": "2.0", "id": id, "result": {}}));
        }
        if method == "elicitation/create" && self.ask.get().is_some() {
            return self.question(message);
        }
        let text = format!("{} is not offered here", one_line(method, 80));
        let error = json!({"code": METHOD_NOT_FOUND, "message": text});
        Some(json!({"jsonrpc": "2.0", "id": id, "error": error}))
    }
}

/// What a message means to the one that waits for an answer.
pub(super) enum Received {
    Answer(Value),
    /// The server asks for this reply.
    Reply(Value),
    Nothing,
}

/// The wait for the answer to one request.
pub(crate) struct Wait<'a> {
    pub(super) id: u64,
    pub(super) cancel: &'a Cancel,
    asides: &'a Asides,
    pub(super) silence: Duration,
    most: Duration,
    began: Instant,
    until: Instant,
    progress: &'a dyn Fn(&str),
    reported: Option<Instant>,
}

impl<'a> Wait<'a> {
    fn new(id: u64, patience: &Patience<'a>, asides: &'a Asides, cancel: &'a Cancel) -> Self {
        let began = Instant::now();
        Self {
            id,
            cancel,
            asides,
            silence: patience.silence,
            most: patience.most,
            began,
            until: began + patience.silence.min(patience.most),
            progress: patience.progress,
            reported: None,
        }
    }

    pub(super) fn left(&self) -> Duration {
        let left = self.until().saturating_duration_since(Instant::now());
        self.cancel.remaining(left)
    }

    /// The time of a person who is asked something is not the server's.
    pub(super) fn until(&self) -> Instant {
        let asked = self.asides.busy_until();
        asked.map_or(self.until, |at| self.until.max(at + self.silence))
    }

    /// The server shows that it still works on the request.
    pub(super) fn is_alive(&mut self) {
        let asked = self.asides.busy_until();
        let began = asked.map_or(self.began, |at| self.began.max(at));
        self.until = (Instant::now() + self.silence).min(began + self.most);
    }

    pub(super) fn receive(&mut self, message: Value, asides: &Arc<Asides>) -> Received {
        if message["method"].is_null() {
            // The answer to a request that was given up, or to none, means nothing.
            return if message["id"] == self.id {
                Received::Answer(message)
            } else {
                Received::Nothing
            };
        }
        if progress_token(&message) == Some(self.id) {
            self.is_alive();
            if self
                .reported
                .is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL)
            {
                self.reported = Some(Instant::now());
                (self.progress)(&progress(&message["params"]));
            }
            return Received::Nothing;
        }
        asides
            .receive(&message)
            .map_or(Received::Nothing, Received::Reply)
    }
}

/// The request whose progress a message reports.
pub(super) fn progress_token(message: &Value) -> Option<u64> {
    let is_progress = message["method"] == "notifications/progress";
    message["params"]["progressToken"]
        .as_u64()
        .filter(|_| is_progress)
}

/// A conversation with a server that has been introduced.
pub(crate) struct Client {
    transport: Box<dyn Transport>,
    asides: Arc<Asides>,
    last_id: AtomicU64,
    /// It has not answered in time.
    is_silent: AtomicBool,
}

impl Client {
    /// Introduces this program. `on_change` is called whenever the server says that its tools have changed. With `ask` the
    /// server learns that there is a user whom it may ask.
    pub(super) fn start(
        transport: Box<dyn Transport>,
        on_change: Box<dyn Fn() + Send + Sync>,
        ask: Option<Box<AskUser>>,
        within: Duration,
        cancel: &Cancel,
    ) -> Result<Self> {
        let client = Self {
            asides: transport.asides(),
            transport,
            last_id: AtomicU64::new(0),
            is_silent: AtomicBool::new(false),
        };
        let about = json!({"name": "bantam", "version": env!("CARGO_PKG_VERSION")});
        let can_ask = ask.is_some();
        let capabilities = if can_ask {
            json!({"elicitation": {"form": {}}})
        } else {
            json!({})
        };
        if let Some(ask) = ask {
            drop(client.asides.ask.set(ask));
        }
        let params = json!({"protocolVersion": REVISIONS[0], "capabilities": capabilities, "clientInfo": about});
        let answer = client.request("initialize", params, &Patience::of(within), cancel)?;
        let revision = answer["protocolVersion"].as_str().unwrap_or_default();
        if !REVISIONS.contains(&revision) {
            let revision = one_line(revision, 40);
            return Err(Error::failed(format!(
                "it speaks revision {revision:?} of the protocol, which is not known here"
            )));
        }
        let tells_changes = answer["capabilities"]["tools"]["listChanged"] == true;
        client.transport.agreed(revision);
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        client.transport.notify(&ready, within)?;
        drop(client.asides.on_change.set(on_change));
        if tells_changes || can_ask {
            client.transport.listen();
        }
        Ok(client)
    }

    /// Lets the server ask the user until this is dropped.
    pub(super) fn may_ask(&self, turn: &Cancel) -> MayAsk<'_> {
        self.asides.may_ask(turn)
    }

    pub(super) fn is_sound(&self) -> bool {
        !self.is_silent.load(Ordering::SeqCst) && self.transport.is_sound()
    }

    /// Whether the server does not know this conversation any more, and has run nothing of the last request.
    pub(super) fn is_forgotten(&self) -> bool {
        self.transport.is_forgotten()
    }

    /// Whether the server has said since this was asked last that its tools have changed.
    pub(super) fn take_list_changed(&self) -> bool {
        self.asides.list_changed.swap(false, Ordering::SeqCst)
    }

    /// Asks, and waits for the answer.
    pub(super) fn request(
        &self,
        method: &str,
        mut params: Value,
        patience: &Patience,
        cancel: &Cancel,
    ) -> Result<Value> {
        let id = self.last_id.fetch_add(1, Ordering::SeqCst) + 1;
        if patience.most > patience.silence {
            params["_meta"] = json!({"progressToken": id});
        }
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut wait = Wait::new(id, patience, &self.asides, cancel);
        let error = match self.transport.request(&request, &mut wait) {
            Ok(message) => return answer(message),
            Err(e) => e,
        };
        if let Some(why) = cancel.reason() {
            self.give_up(id);
            return Err(ended(why));
        }
        if Instant::now() < wait.until() {
            return Err(error);
        }
        self.give_up(id);
        // It is started anew for the next call.
        self.is_silent.store(true, Ordering::SeqCst);
        Err(Error::failed(format!(
            "no answer within {} s",
            patience.silence.as_secs()
        )))
    }

    /// Tells the server that nobody waits for an answer any more.
    fn give_up(&self, id: u64) {
        let params = json!({"requestId": id, "reason": "nobody is waiting any more"});
        let message =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        // A server that cannot be told anything has ended, which the next request finds out.
        drop(self.transport.notify(&message, GIVE_UP));
    }

    /// All tools, page by page, within bounds.
    pub(super) fn list_tools(&self, within: Duration, cancel: &Cancel) -> Result<Vec<RemoteTool>> {
        let mut tools = Vec::new();
        let mut params = json!({});
        let until = Instant::now() + within;
        self.take_list_changed();
        for _ in 0..MAX_PAGES {
            let patience = Patience::of(until.saturating_duration_since(Instant::now()));
            let page = self.request("tools/list", params, &patience, cancel)?;
            let Some(found) = page["tools"].as_array() else {
                return Err(Error::failed("its list of tools is not a list"));
            };
            tools.extend(found.iter().filter_map(bounded));
            match page["nextCursor"].as_str() {
                Some(cursor) if tools.len() < MAX_TOOLS => params = json!({"cursor": cursor}),
                _ => break,
            }
        }
        tools.truncate(MAX_TOOLS);
        Ok(tools)
    }
}

/// What a server says of its progress, on one line.
fn progress(params: &Value) -> String {
    match (params["message"].as_str(), &params["total"]) {
        (Some(message), _) => one_line(message, 200),
        (None, total) if total.is_number() => format!("{} of {total}", params["progress"]),
        (None, _) => one_line(&params["progress"].to_string(), 40),
    }
}

fn answer(mut message: Value) -> Result<Value> {
    match message.get_mut("error") {
        Some(error) if !error.is_null() => {
            let text = one_line(
                error["message"].as_str().unwrap_or("no reason given"),
                2_000,
            );
            Err(Error::failed(format!("it refused: {text}")))
        }
        _ => Ok(message["result"].take()),
    }
}
