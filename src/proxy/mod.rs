//! The proxy for `exec.network = "guarded"`, which only connects to addresses that the address guard allows.
//!
//! The sandbox has a separate network with one listener. The proxy serves this listener from the parent process, so its clients
//! are untrusted: their use of resources is limited, and all connections end with the command. The only method is `CONNECT
//! HOST:PORT`. Request heads are not forwarded, so a server cannot interpret them differently from the proxy.

pub(crate) mod listener;
#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::ssrf::{self, AddressGuard, ConnectError};
use crate::sync;

const MAX_CONNECTIONS: usize = 32;
/// Maximum size of a request's head, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// Time limit for connecting, after the name look-up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum silence of a rejected client before its connection is closed.
const LINGER: Duration = Duration::from_secs(1);
/// Pause of the accept loop when it is out of connections or file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A running proxy. Dropping it stops accepting and closes every connection. A running name look-up cannot be interrupted, but
/// its thread ends afterwards without connecting.
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    listener: Arc<TcpListener>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Serves `listener`, which may belong to another network namespace. Connections use the caller's namespace.
    pub(crate) fn start(listener: TcpListener, guard: AddressGuard) -> Result<Self> {
        let shared = Arc::new(Shared {
            guard,
            streams: Mutex::new(Some(Vec::new())),
        });
        let listener = Arc::new(listener);
        let (shared_too, listener_too) = (shared.clone(), listener.clone());
        let accept = move || accept_loop(&shared_too, &listener_too);
        let acceptor = thread::Builder::new()
            .name("proxy".to_owned())
            .spawn(accept)
            .doing("starting the proxy")?;
        Ok(Self {
            shared,
            listener,
            acceptor: Some(acceptor),
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let streams = self.shared.streams().take();
        let streams = streams.into_iter().flatten();
        for stream in streams.filter_map(|stream| stream.upgrade()) {
            drop(stream.shutdown(Shutdown::Both));
        }
        // Wakes `accept`.
        if rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both).is_ok() {
            // A panic was already reported by its thread.
            drop(self.acceptor.take().map(JoinHandle::join));
        }
    }
}

/// The proxy, the accept loop and each connection have one reference, so the reference count limits the connections.
struct Shared {
    guard: AddressGuard,
    /// Sockets of all connections; `None` after the proxy has ended.
    streams: Mutex<Option<Vec<Weak<TcpStream>>>>,
}

impl Shared {
    fn streams(&self) -> MutexGuard<'_, Option<Vec<Weak<TcpStream>>>> {
        sync::lock(&self.streams)
    }

    /// Registers a connection to be closed when the proxy ends. Fails after the proxy has ended.
    fn register(&self, stream: TcpStream) -> io::Result<Arc<TcpStream>> {
        let stream = Arc::new(stream);
        let mut streams = self.streams();
        let streams = streams
            .as_mut()
            .ok_or_else(|| io::Error::other("the proxy has ended"))?;
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&stream));
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn is_running(&self) -> bool {
        self.streams().is_some()
    }
}

fn accept_loop(shared: &Arc<Shared>, listener: &TcpListener) {
    while shared.is_running() {
        let is_full = Arc::strong_count(shared) >= MAX_CONNECTIONS + 2;
        let accepted = if is_full {
            Err(ErrorKind::ResourceBusy.into())
        } else {
            listener.accept()
        };
        match accepted {
            Ok((client, _)) => {
                let shared = Arc::clone(shared);
                // If the thread cannot start, or serving fails, the connection is closed.
                let work = move || drop(serve(&shared, client));
                drop(thread::Builder::new().name("proxy".to_owned()).spawn(work));
            }
            // Without a free descriptor, an immediate retry would spin.
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

fn serve(shared: &Shared, client: TcpStream) -> io::Result<()> {
    let client = shared.register(client)?;
    let found = read_head(&client).and_then(|(head, early)| Ok((connect(shared, &head)?, early)));
    let (remote, early) = match found {
        Ok(found) => found,
        Err(refusal) => return refuse(&client, &refusal),
    };
    (&*client).write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    (&*remote).write_all(&early)?;
    thread::scope(|scope| {
        thread::Builder::new()
            .name("proxy".to_owned())
            .spawn_scoped(scope, || carry(&client, &remote))?;
        carry(&remote, &client);
        Ok(())
    })
}

/// Copies from one socket to another. Forwards the end of the stream; a failure closes both.
fn carry(mut from: &TcpStream, mut to: &TcpStream) {
    let copied = io::copy(&mut from, &mut to).and_then(|_| to.shutdown(Shutdown::Write));
    if copied.is_err() {
        drop(from.shutdown(Shutdown::Both));
        drop(to.shutdown(Shutdown::Both));
    }
}

/// Reads a request's head, and returns it with the bytes that followed it.
fn read_head(mut client: &TcpStream) -> Result<(String, Vec<u8>), Refusal> {
    const END: &[u8] = b"\r\n\r\n";
    let mut read = Vec::new();
    let mut piece = [0; 4 << 10];
    loop {
        let n = match client.read(&mut piece) {
            Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            result => result?,
        };
        // The end may be split between two reads.
        let from = read.len().saturating_sub(END.len() - 1);
        read.extend_from_slice(&piece[..n]);
        if read.len() > MAX_HEAD {
            let why = format!("the request is larger than {MAX_HEAD} bytes");
            return Err(Refusal::new("431 Request Header Fields Too Large", why));
        }
        if let Some(at) = read[from..]
            .windows(END.len())
            .position(|window| window == END)
        {
            let early = read.split_off(from + at + END.len());
            return Ok((String::from_utf8_lossy(&read).into_owned(), early));
        }
    }
}

/// The proxy's response to a request that gets no tunnel.
struct Refusal {
    status: &'static str,
    /// One sentence.
    why: String,
}

impl Refusal {
    fn new(status: &'static str, why: impl Into<String>) -> Self {
        Self {
            status,
            why: why.into(),
        }
    }

    fn text(&self) -> String {
        let Self { status, why } = self;
        let length = why.len() + 1;
        let kind = "Content-Type: text/plain; charset=utf-8";
        format!(
            "HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{why}\n"
        )
    }
}

impl From<io::Error> for Refusal {
    fn from(e: io::Error) -> Self {
        Self::new("400 Bad Request", e.to_string())
    }
}

/// Parses the host and port of `CONNECT HOST:PORT HTTP/1.1`. The guard validates the host.
fn target(head: &str) -> Result<(&str, u16), Refusal> {
    let bad = || Refusal::new("400 Bad Request", "the request is not CONNECT HOST:PORT");
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some("HTTP/1.0" | "HTTP/1.1"), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(bad());
    };
    if method != "CONNECT" {
        let why = "the guarded network carries https:// only, not http://: use https://";
        return Err(Refusal::new("405 Method Not Allowed", why));
    }
    let (host, port) = target.rsplit_once(':').ok_or_else(bad)?;
    Ok((host, port.parse().map_err(|_| bad())?))
}

/// Connects to the requested host if the guard allows all of its addresses.
fn connect(shared: &Shared, head: &str) -> Result<Arc<TcpStream>, Refusal> {
    let (host, port) = target(head)?;
    let gateway = |why: String| Refusal::new("502 Bad Gateway", why);
    let addresses = shared.guard.resolve(host, port).map_err(|e| match e {
        ConnectError::Refused(e) => {
            let allow = e.hint.unwrap_or_else(|| "no setting allows it".to_owned());
            let why = format!(
                "the connection to {host}:{port} was refused: {}; {allow}",
                e.message
            );
            Refusal::new("403 Forbidden", why)
        }
        ConnectError::Unreachable(e) => gateway(e.message),
    })?;
    // The proxy may have ended during the look-up.
    if !shared.is_running() {
        return Err(gateway("the proxy has ended".to_owned()));
    }
    let remote =
        ssrf::connect(&addresses, CONNECT_TIMEOUT).map_err(|e| gateway(Error::from(e).message))?;
    Ok(shared.register(remote)?)
}

/// Sends the rejection, then reads until the client is silent, because closing a socket with unread input resets the
/// connection, and the client might lose the response.
fn refuse(mut client: &TcpStream, refusal: &Refusal) -> io::Result<()> {
    client.write_all(refusal.text().as_bytes())?;
    client.shutdown(Shutdown::Write)?;
    client.set_read_timeout(Some(LINGER))?;
    io::copy(&mut client, &mut io::sink()).map(drop)
}
