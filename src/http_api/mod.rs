//! The agent as a model with OpenAI's chat API: an HTTP/1.1 server with one thread per connection.
//!
//! Each connection serves one request and is then closed, which prevents request smuggling. Clients are untrusted until they
//! send the right token, so the cost that they can cause is limited in bytes, time and threads.

mod access;
mod chat;
mod connection;
mod connections;
mod output;
mod request;
mod response;

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bus::{Event, Response};
use crate::cancel::Cancel;
use crate::config::listen_address;
use crate::error::{Context, Error, Result};
use crate::log::Logger;
use crate::message::{Message, ToolCall, User};
use crate::secret::Secret;
use crate::sync;
use access::Access;
pub(crate) use access::new_token;
use connection::Connection;
use connections::ConnectionLimiter;
use response::Refusal;

/// Minimum length of a token, in characters.
const MIN_TOKEN: usize = 12;
/// Maximum number of concurrent turns; further turns wait.
const MAX_TURNS: usize = 8;
/// Maximum time that a turn waits for a permit before the client is asked to retry.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Maximum total size of the running turns' bodies, in bytes. A turn needs about seven times the size of its body, which fits a
/// board with 256 MB.
const MAX_BODIES: usize = 16 << 20;
/// Time limit for running turns when the program ends.
const GRACE: Duration = Duration::from_millis(1500);
/// Time limit for stopped turns to send a response.
const LAST_WORDS: Duration = Duration::from_millis(1400);
/// Pause of the accept loop when the process is out of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// The contents of a request.
pub(crate) struct Ask {
    /// A name of `model_list`, or `VENDOR/MODEL`; `None` for the configured model.
    pub(crate) model: Option<String>,
    /// The client's history of the conversation. Ignored if there is a `session`.
    pub(crate) history: Vec<Message>,
    /// The message to answer; `None` if the history ends with results of the client's tools.
    pub(crate) user: Option<User>,
    /// Key of a stored conversation; `None` if the conversation is not stored.
    pub(crate) session: Option<String>,
    /// Tools that the client runs.
    pub(crate) tools: Vec<ClientTool>,
    pub(crate) options: Options,
}

/// A tool that the client runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ClientTool {
    pub(crate) name: String,
    pub(crate) description: String,
    /// JSON Schema of the arguments, as JSON text.
    pub(crate) schema: String,
}

/// Settings that a request overrides.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Options {
    pub(crate) max_tokens: Option<u64>,
    pub(crate) temperature: Option<f64>,
    /// Value in the format of OpenAI's API.
    pub(crate) response_format: Option<Value>,
}

/// Result of a turn.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) response: Response,
    /// Calls of tools that the client runs.
    pub(crate) calls: Vec<ToolCall>,
}

/// Runs turns for the endpoint.
pub(crate) trait Turns: Send + Sync {
    /// Returns the models in the settings. A client may request others, too.
    fn models(&self) -> Vec<String>;

    /// Returns an error for a model that cannot be asked, of the kind `Usage` if there is none of this name.
    fn choose(&self, model: &str) -> Result<()>;

    /// Fails if a turn cannot start.
    fn check(&self, ask: &Ask) -> Result<()>;

    /// Runs a turn to its end.
    fn run(&self, ask: Ask, cancel: &Cancel, events: &(dyn Fn(Event) + Sync)) -> Answer;
}

/// Settings of the endpoint.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) listen: SocketAddr,
    pub(crate) token: Secret,
    pub(crate) allow_origin: String,
}

impl Settings {
    /// Reads `channels.http`.
    pub(crate) fn new(listen: &str, token: Secret, allow_origin: &str) -> Result<Self> {
        let address = listen_address(listen)?;
        // Required even on a loopback address, which all users of the machine can reach.
        if token.reveal().len() < MIN_TOKEN {
            let text = format!("channels.http.token has fewer than {MIN_TOKEN} characters");
            return Err(Error::config(text)
                .hint("run `bantam config unset channels.http.token`, and the gateway makes one"));
        }
        Ok(Self {
            listen: address,
            token,
            allow_origin: allow_origin.to_owned(),
        })
    }

    /// Returns a warning for the user about these settings.
    pub(crate) fn warning(&self) -> Option<String> {
        let ip = self.listen.ip();
        (!ip.is_loopback()).then(|| {
            let listen = self.listen;
            format!("channels.http listens on {listen}, and what goes over it is not encrypted")
        })
    }
}

/// The listening endpoint.
pub(crate) struct Endpoint {
    listener: Arc<TcpListener>,
    shared: Arc<Shared>,
}

struct Shared {
    access: Access,
    turns: Arc<dyn Turns>,
    /// Stops all turns.
    cancel: Cancel,
    log: Logger,
    connections: Arc<ConnectionLimiter>,
    running: Mutex<Vec<Running>>,
    freed: Condvar,
    /// Counter for the ids of completions.
    counter: AtomicU64,
}

impl Endpoint {
    /// Binds the address and serves it.
    pub(crate) fn start(
        settings: Settings,
        turns: Arc<dyn Turns>,
        cancel: Cancel,
        log: Logger,
    ) -> Result<Self> {
        let address = settings.listen;
        let listener = TcpListener::bind(address)
            .doing(format!("listening on {address}"))
            .map_err(|e| e.hint("change channels.http.listen: another program has the address, or it is not this machine's"))?;
        let listener = Arc::new(listener);
        let shared = Arc::new(Shared {
            access: Access::new(settings.token, &settings.allow_origin),
            turns,
            cancel,
            log,
            connections: Arc::default(),
            running: Mutex::default(),
            freed: Condvar::new(),
            counter: AtomicU64::default(),
        });
        let (own_listener, own) = (listener.clone(), shared.clone());
        Builder::new()
            .name("http".to_owned())
            .spawn(move || accept_loop(&own_listener, &own))
            .doing("starting a thread")?;
        Ok(Self { listener, shared })
    }

    /// Returns the address, with the assigned port if port 0 was configured.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Gives the running turns [`GRACE`] to end, stops the others so that their clients get a 503, and closes the address. New
    /// requests get a 503 in the meantime.
    pub(crate) fn close(self) {
        self.wait_until_idle(GRACE);
        for turn in self.shared.running().iter() {
            turn.cancel.stop();
        }
        self.wait_until_idle(LAST_WORDS);
        // Wakes `accept`.
        let _closed = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
    }

    fn wait_until_idle(&self, limit: Duration) {
        let is_busy = |running: &mut Vec<Running>| !running.is_empty();
        let running = self.shared.running();
        drop(
            self.shared
                .freed
                .wait_timeout_while(running, limit, is_busy),
        );
    }
}

fn accept_loop(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                let stream = Arc::new(stream);
                let slot = shared.connections.admit(&stream);
                let own = Connection {
                    shared: shared.clone(),
                    stream,
                    peer,
                    slot,
                };
                // If the thread cannot start, the connection is closed.
                drop(
                    Builder::new()
                        .name("http".to_owned())
                        .spawn(move || own.serve()),
                );
            }
            // The listener was shut down.
            Err(e) if e.kind() == ErrorKind::InvalidInput => return,
            // Without a free descriptor, an immediate retry would spin.
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

impl Shared {
    fn running(&self) -> MutexGuard<'_, Vec<Running>> {
        sync::lock(&self.running)
    }

    /// Waits for a permit to run a turn, with room for a body of this size.
    fn permit(self: &Arc<Self>, cancel: &Cancel, body: usize) -> Result<Permit, Refusal> {
        let until = Instant::now() + MAX_WAIT;
        let has_room = |running: &[Running]| {
            let bodies: usize = running.iter().map(|turn| turn.body).sum();
            running.len() < MAX_TURNS && (running.is_empty() || bodies + body <= MAX_BODIES)
        };
        let mut running = self.running();
        while !has_room(&running) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = "too many turns are running: try again later";
                return Err(Refusal::new(429, why).code("queue_full").retry_after(5));
            }
            running = sync::wait(&self.freed, running, left);
        }
        running.push(Running {
            cancel: cancel.clone(),
            body,
        });
        Ok(Permit(self.clone(), cancel.clone()))
    }
}

/// A running turn, or a turn whose body is being read.
struct Running {
    cancel: Cancel,
    /// Size of its body, in bytes.
    body: usize,
}

/// Permission to run a turn.
struct Permit(Arc<Shared>, Cancel);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0
            .running()
            .retain(|turn| !turn.cancel.is_same_turn(&self.1));
        self.0.freed.notify_all();
    }
}
