//! The proxy behind `exec.network = "guarded"`: it connects only where the address guard allows.
//!
//! The sandbox has a network of its own with one listener in it. The proxy serves that listener from the parent process, so
//! its clients are untrusted: what they can use up has a bound, and all of it ends with the command. It speaks `CONNECT HOST:PORT` alone.
//! Nothing of a request's head is forwarded, so no server can read it differently than the proxy did.

pub(crate) mod listener;
#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::ssrf::{self, AddressGuard, ConnectError};

const MAX_CONNECTIONS: usize = 32;
/// The most bytes of a request's head.
const MAX_HEAD: usize = 16 << 10;
/// Time to connect, after the name has been looked up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a refused client may be silent before its connection closes.
const LINGER: Duration = Duration::from_secs(1);
/// Pause of the accept loop when it has no free connection, or no descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// A running proxy. Dropping it stops accepting and closes every connection. A name look-up in progress cannot be
/// interrupted: its thread connects to nothing afterwards, and ends.
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    listener: Arc<TcpListener>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Serves `listener`, which may belong to another network namespace. Connections leave from the caller's.
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
        for stream in streams
            .into_iter()
            .flatten()
            .filter_map(|stream| stream.upgrade())
        {
            drop(stream.shutdown(Shutdown::Both));
        }
        // This wakes `accept`.
        if rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both).is_ok() {
            // A panic has already been reported by its thread.
            drop(self.acceptor.take().map(JoinHandle::join));
        }
    }
}

/// One reference belongs to the proxy, one to the accept loop and one to each connection, so the count bounds the
/// connections.
struct Shared {
    guard: AddressGuard,
    /// The sockets of all connections; `None` once the proxy has ended.
    streams: Mutex<Option<Vec<Weak<TcpStream>>>>,
}

impl Shared {
    fn streams(&self) -> MutexGuard<'_, Option<Vec<Weak<TcpStream>>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the end of the proxy end a connection. Fails after it.
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
                // Without a thread, or when serving fails, the connection just closes.
                let work = move || drop(serve(&shared, client));
                drop(thread::Builder::new().name("proxy".to_owned()).spawn(work));
            }
            // Without a free descriptor, trying again at once would spin.
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

/// Copies what comes from one socket to another, until its end, which is passed on, or a failure, which ends both.
fn carry(mut from: &TcpStream, mut to: &TcpStream) {
    let copied = io::copy(&mut from, &mut to).and_then(|_| to.shutdown(Shutdown::Write));
    if copied.is_err() {
        drop(from.shutdown(Shutdown::Both));
        drop(to.shutdown(Shutdown::Both));
    }
}

/// Reads a request's head, and what the client sent after it.
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
        // The end may lie across two pieces.
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

/// The proxy's own answer to a request that gets no tunnel.
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

/// The host and port of `CONNECT HOST:PORT HTTP/1.1`. Whether the host is a valid one is the guard's decision.
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

/// Connects to what the request names, if the guard allows every address of it.
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
    // The look-up may outlast the proxy.
    if !shared.is_running() {
        return Err(gateway("the proxy has ended".to_owned()));
    }
    let remote =
        ssrf::connect(&addresses, CONNECT_TIMEOUT).map_err(|e| gateway(Error::from(e).message))?;
    Ok(shared.register(remote)?)
}

/// Answers, then reads on for a while: closing a socket with unread input resets the connection, and the client might
/// lose the answer.
fn refuse(mut client: &TcpStream, refusal: &Refusal) -> io::Result<()> {
    client.write_all(refusal.text().as_bytes())?;
    client.shutdown(Shutdown::Write)?;
    client.set_read_timeout(Some(LINGER))?;
    io::copy(&mut client, &mut io::sink()).map(drop)
}
