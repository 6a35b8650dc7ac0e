//! The agent as a model with OpenAI's chat API: an HTTP/1.1 server with one thread per connection.
//!
//! Each connection serves one request and is then closed, which prevents request smuggling. Clients are untrusted until they
//! send the right token, so the cost that they can cause is limited in bytes, time and threads.

mod access;
mod chat;
mod connection;
mod connections;
mod request;
mod response;
mod room;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, Builder};
use std::time::Duration;

use crate::bus::{Event, Response};
use crate::cancel::Cancel;
use crate::config::listen_address;
use crate::error::{Context, Error, Result};
use crate::log::Logger;
use crate::message::ToolCall;
use crate::secret::Secret;
pub(crate) use access::new_token;
pub(crate) use chat::ChatRequest;
use connections::ConnectionLimiter;
pub(crate) use response::Refusal;
use room::Room;

/// Minimum length of a token, in characters.
const MIN_TOKEN: usize = 12;
/// Pause of the accept loop when the process is out of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);
const DAY: Duration = Duration::from_secs(86_400);

/// Runs a turn to its end, and returns its response with the calls of tools that the client runs.
pub(crate) type Turn = dyn Fn(ChatRequest, &Cancel, &(dyn Fn(Event) + Sync)) -> Result<(Response, Vec<ToolCall>), Refusal>
    + Send
    + Sync;

/// Settings of the endpoint.
#[derive(Clone)]
pub(crate) struct EndpointSettings {
    pub(crate) listen: SocketAddr,
    pub(crate) token: Secret,
    /// Web origin whose pages may use the endpoint; empty for none.
    pub(crate) allow_origin: String,
    /// Models to list. A client may request others, too.
    pub(crate) models: Vec<String>,
}

impl EndpointSettings {
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
            allow_origin: allow_origin.trim_end_matches('/').to_owned(),
            models: vec![chat::MODEL.to_owned()],
        })
    }

    /// Returns a warning for the user about these settings.
    pub(crate) fn warning(&self) -> Option<String> {
        let listen = self.listen;
        (!listen.ip().is_loopback()).then(|| {
            format!("channels.http listens on {listen}, and what goes over it is not encrypted")
        })
    }

    /// Binds the address.
    pub(crate) fn bind(&self) -> Result<TcpListener> {
        let address = self.listen;
        TcpListener::bind(address)
            .doing(format!("listening on {address}"))
            .map_err(|e| e.hint("change channels.http.listen: another program has the address, or it is not this machine's"))
    }
}

/// What the endpoint serves.
pub(crate) struct Endpoint {
    pub(crate) settings: EndpointSettings,
    pub(crate) turn: Box<Turn>,
    /// Set when the program is ending.
    pub(crate) cancel: Cancel,
    pub(crate) log: Logger,
}

/// What the threads of the connections share.
struct HttpServer {
    endpoint: Endpoint,
    room: Room,
    connections: ConnectionLimiter,
}

/// Serves until the program ends. Then gives the running turns time to end; new requests get a 503 in the meantime.
pub(crate) fn serve(listener: TcpListener, endpoint: Endpoint) -> Result<()> {
    let cancel = endpoint.cancel.clone();
    let server = Arc::new(HttpServer {
        endpoint,
        room: Room::default(),
        connections: ConnectionLimiter::default(),
    });
    let listener = Arc::new(listener);
    let (accepting, own) = (listener.clone(), server.clone());
    Builder::new()
        .name("http".to_owned())
        .spawn(move || accept(&accepting, &own))
        .doing("starting a thread")?;
    while cancel.sleep(DAY).is_ok() {}
    server.room.close();
    // Wakes `accept`.
    let _closed = rustix::net::shutdown(&*listener, rustix::net::Shutdown::Both);
    Ok(())
}

fn accept(listener: &TcpListener, server: &Arc<HttpServer>) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let stream = Arc::new(stream);
                server.connections.admit(&stream);
                let (own, served) = (server.clone(), stream.clone());
                let serve = move || connection::serve(&own, &served);
                if Builder::new().name("http".to_owned()).spawn(serve).is_err() {
                    server.connections.remove(&stream);
                }
            }
            // The listener was shut down.
            Err(e) if e.kind() == ErrorKind::InvalidInput => return,
            // Without a free descriptor, an immediate retry would spin.
            Err(_) => thread::sleep(PAUSE),
        }
    }
}
