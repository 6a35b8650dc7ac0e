//! The proxy behind `exec.network = "guarded"`: it connects only where the address guard allows.
//!
//! The jail has a network of its own with one listener in it. The proxy serves that listener from the parent process, so
//! its clients are untrusted: everything they can use up has a bound in [`Limits`]. It speaks `CONNECT HOST:PORT` alone.
//! Nothing of a request's head is forwarded, so no server can read it differently than the proxy did.

pub(crate) mod listener;
#[cfg(test)]
mod tests;
mod tunnel;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::{Context, Error, Result};
use crate::guard::{self, AddressGuard, ConnectError};
use tunnel::{wait, would_block};

#[derive(Clone, Copy)]
struct Limits {
    connections: usize,
    /// Bytes of a request's head.
    head: usize,
    /// Time for the whole head to arrive.
    head_timeout: Duration,
    /// Time to connect, after the name has been looked up.
    connect_timeout: Duration,
    /// Time without a byte in either direction.
    idle_timeout: Duration,
}

const LIMITS: Limits = Limits {
    connections: 32,
    head: 16 << 10,
    head_timeout: Duration::from_secs(10),
    connect_timeout: Duration::from_secs(10),
    idle_timeout: Duration::from_secs(60),
};

/// How long a refused client may keep sending before its connection closes.
const LINGER: Duration = Duration::from_secs(1);
/// Pause of the accept loop when it has no free connection, or no descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// A running proxy. Dropping it stops accepting and closes every connection. A name look-up in progress cannot be
/// interrupted: its thread connects to nothing afterwards, and ends.
pub(crate) struct Proxy {
    /// Closing this end of the pipe wakes every wait.
    stop: Option<OwnedFd>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Serves `listener`, which may belong to another network namespace. Connections leave from the caller's.
    fn start(listener: TcpListener, guard: AddressGuard, limits: Limits) -> Result<Self> {
        // A client may disconnect between poll and accept.
        listener.set_nonblocking(true).doing("setting up the proxy's listener")?;
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC).doing("making the proxy's pipe")?;
        let shared = Arc::new(Shared { guard, limits, stopped });
        let accept = move || accept_loop(&shared, &listener);
        let acceptor = thread::Builder::new().name("proxy".to_owned()).spawn(accept).doing("starting the proxy")?;
        Ok(Self { stop: Some(stop), acceptor: Some(acceptor) })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop = None;
        // A panic has already been reported by its thread.
        drop(self.acceptor.take().map(JoinHandle::join));
    }
}

/// One reference belongs to the accept loop and one to each connection, so the count bounds the connections.
struct Shared {
    guard: AddressGuard,
    limits: Limits,
    stopped: OwnedFd,
}

impl Shared {
    fn check_running(&self) -> io::Result<()> {
        match wait(&self.stopped, &[], Some(Instant::now())) {
            Err(e) if e.kind() == ErrorKind::TimedOut => Ok(()),
            result => result,
        }
    }
}

fn accept_loop(shared: &Arc<Shared>, listener: &TcpListener) {
    while shared.check_running().is_ok() {
        let is_full = Arc::strong_count(shared) > shared.limits.connections;
        let accepted = if is_full {
            Err(ErrorKind::ResourceBusy.into())
        } else {
            wait(&shared.stopped, &[(listener.as_fd(), PollFlags::IN)], None).and_then(|()| listener.accept())
        };
        match accepted {
            Ok((client, _)) => {
                let shared = Arc::clone(shared);
                // Without a thread, or when serving fails, the connection just closes.
                let work = move || drop(serve(&shared, &client));
                drop(thread::Builder::new().name("proxy".to_owned()).spawn(work));
            }
            Err(e) if would_block(&e) || e.kind() == ErrorKind::ConnectionAborted => {}
            // Until a descriptor is free the listener stays ready, so trying again at once would spin.
            Err(_) => drop(wait(&shared.stopped, &[], Some(Instant::now() + PAUSE))),
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
        Self { status, why: why.into() }
    }

    fn text(&self) -> String {
        let Self { status, why } = self;
        let length = why.len() + 1;
        let kind = "Content-Type: text/plain; charset=utf-8";
        format!("HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{why}\n")
    }
}

impl From<io::Error> for Refusal {
    fn from(e: io::Error) -> Self {
        Self::new("400 Bad Request", e.to_string())
    }
}

fn serve(shared: &Shared, client: &TcpStream) -> io::Result<()> {
    set_up(client)?;
    let found = read_head(shared, client).and_then(|(head, early)| Ok((connect(shared, &head)?, early)));
    match found {
        Ok((remote, early)) => {
            (&*client).write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
            tunnel::run(&shared.stopped, client, &remote, early, shared.limits.idle_timeout)
        }
        Err(refusal) => refuse(shared, client, &refusal),
    }
}

fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)
}

/// Reads a request's head, and what the client sent after it.
fn read_head(shared: &Shared, mut client: &TcpStream) -> Result<(String, Vec<u8>), Refusal> {
    const END: &[u8] = b"\r\n\r\n";
    let Limits { head: most, head_timeout, .. } = shared.limits;
    let deadline = Instant::now() + head_timeout;
    let mut read = Vec::new();
    let mut piece = [0; 4 << 10];
    loop {
        wait(&shared.stopped, &[(client.as_fd(), PollFlags::IN)], Some(deadline)).map_err(|e| match e.kind() {
            ErrorKind::TimedOut => Refusal::new("408 Request Timeout", "the request did not arrive in time"),
            _ => e.into(),
        })?;
        let n = match client.read(&mut piece) {
            Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
            Err(e) if would_block(&e) => continue,
            result => result?,
        };
        // The end may lie across two pieces.
        let from = read.len().saturating_sub(END.len() - 1);
        read.extend_from_slice(&piece[..n]);
        if read.len() > most {
            let why = format!("the request is larger than {most} bytes");
            return Err(Refusal::new("431 Request Header Fields Too Large", why));
        }
        if let Some(at) = read[from..].windows(END.len()).position(|window| window == END) {
            let early = read.split_off(from + at + END.len());
            return Ok((String::from_utf8_lossy(&read).into_owned(), early));
        }
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
fn connect(shared: &Shared, head: &str) -> Result<TcpStream, Refusal> {
    let (host, port) = target(head)?;
    let gateway = |why: String| Refusal::new("502 Bad Gateway", why);
    let addresses = shared.guard.resolve(host, port).map_err(|e| match e {
        ConnectError::Refused(e) => {
            let allow = e.hint.unwrap_or_else(|| "no setting allows it".to_owned());
            let why = format!("the connection to {host}:{port} was refused: {}; {allow}", e.message);
            Refusal::new("403 Forbidden", why)
        }
        ConnectError::Unreachable(e) => gateway(e.message),
    })?;
    // The look-up and the connection attempt may outlast the proxy.
    shared.check_running()?;
    let remote =
        guard::connect(&addresses, shared.limits.connect_timeout).map_err(|e| gateway(Error::from(e).message))?;
    shared.check_running()?;
    set_up(&remote)?;
    Ok(remote)
}

/// Answers, then reads on for a while: closing a socket with unread input resets the connection, and the client might
/// lose the answer.
fn refuse(shared: &Shared, mut client: &TcpStream, refusal: &Refusal) -> io::Result<()> {
    client.write_all(refusal.text().as_bytes())?;
    client.shutdown(Shutdown::Write)?;
    let deadline = Instant::now() + LINGER;
    let mut rest = [0; 16 << 10];
    loop {
        wait(&shared.stopped, &[(client.as_fd(), PollFlags::IN)], Some(deadline))?;
        match client.read(&mut rest) {
            Ok(0) => return Ok(()),
            Err(e) if !would_block(&e) => return Err(e),
            _ => {}
        }
    }
}
