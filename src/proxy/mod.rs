//! The far end of `exec.network = "guarded"`: an HTTP proxy that connects only where the address guard allows.
//!
//! What runs in the jail has a network of its own with nothing in it but the listener that is given here; the proxy
//! itself is in the parent. Its clients are whatever the model started and may do anything to it. It holds at most
//! [`LIMITS`] of everything, and it holds it no longer than the [`Proxy`] lives.
//!
//! It speaks `CONNECT HOST:PORT` and plain HTTP with the whole address in the first line, one request for each
//! connection. A connection is one thread; a second one looks the host's name up and connects, since neither can be broken
//! off.

pub mod link;
mod relay;
mod request;
#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::{Context, Error, Result};
use crate::guard::{self, Fault, Guard};
use relay::{Framing, Lane, Over, is_not_now, wait};
use request::{Kind, Request};

/// How much a client may use.
#[derive(Clone, Copy)]
struct Limits {
    connections: usize,
    /// Bytes of the request's head.
    head: usize,
    /// From the first moment to the end of the head.
    patience: Duration,
    /// For looking up the host and connecting to it.
    connect: Duration,
    /// With no byte moving in either direction.
    idle: Duration,
}

const LIMITS: Limits = Limits {
    connections: 32,
    head: 16 << 10,
    patience: Duration::from_secs(10),
    connect: Duration::from_secs(10),
    idle: Duration::from_secs(60),
};

/// How long an answered client may go on sending before it is cut off. To close at once would make the kernel reset the
/// connection, and the client might never see the answer.
const FAREWELL: Duration = Duration::from_secs(1);
/// A pause after a failed accept: without descriptors the listener stays ready, and asking again would only burn time.
const PAUSE: Duration = Duration::from_millis(100);

/// A running proxy. Dropping it ends it, with every connection and every thread it has; only a look-up or a connection
/// attempt under way is left to end by itself, since nothing can break it off.
pub struct Proxy {
    /// Dropped, it ends every wait there is.
    stop: Option<OwnedFd>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Serves whoever connects to `listener`, which may be of another network namespace. Connections are made from the
    /// caller's.
    pub fn start(listener: TcpListener, guard: Guard) -> Result<Self> {
        Self::with_limits(listener, guard, LIMITS)
    }

    fn with_limits(listener: TcpListener, guard: Guard, limits: Limits) -> Result<Self> {
        // Somebody may have hung up between the wait and the accept.
        listener.set_nonblocking(true).doing("setting up the proxy's listener")?;
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC).doing("making the proxy's pipe")?;
        let served = Arc::new(Served { guard, limits, stopped, connections: AtomicUsize::new(0) });
        let accept = move || accept(&served, &listener);
        let acceptor = thread::Builder::new().name("proxy".to_owned()).spawn(accept).doing("starting the proxy")?;
        Ok(Self { stop: Some(stop), acceptor: Some(acceptor) })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop = None;
        // A panic in there has been reported by the thread itself.
        drop(self.acceptor.take().map(JoinHandle::join));
    }
}

/// What all threads of one proxy share.
struct Served {
    guard: Guard,
    limits: Limits,
    stopped: OwnedFd,
    connections: AtomicUsize,
}

/// One of the connections that there may be, for as long as a thread works for it.
struct Place(Arc<Served>);

impl Place {
    fn take(served: &Arc<Served>) -> Option<Arc<Self>> {
        // Only the acceptor takes places, so nobody comes between.
        if served.connections.load(Ordering::SeqCst) >= served.limits.connections {
            return None;
        }
        served.connections.fetch_add(1, Ordering::SeqCst);
        Some(Arc::new(Self(served.clone())))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::SeqCst);
    }
}

fn accept(served: &Arc<Served>, listener: &TcpListener) {
    let mut workers: Vec<JoinHandle<()>> = Vec::new();
    while wait(&served.stopped, &[(listener.as_fd(), PollFlags::IN)], None).is_ok() {
        let (ended, going): (Vec<_>, Vec<_>) = workers.into_iter().partition(JoinHandle::is_finished);
        workers = going;
        for worker in ended {
            drop(worker.join());
        }
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(e) if is_not_now(&e) || e.kind() == ErrorKind::ConnectionAborted => continue,
            Err(_) => {
                if let Err(Over::Stopped) = wait(&served.stopped, &[], Instant::now().checked_add(PAUSE)) {
                    break;
                }
                continue;
            }
        };
        let Some(place) = Place::take(served) else {
            turn_away(&client);
            continue;
        };
        // Without a thread the client is dropped, and sees its connection close.
        workers.extend(thread::Builder::new().name("proxy".to_owned()).spawn(move || serve(&place, &client)));
    }
    for worker in workers {
        drop(worker.join());
    }
}

/// Tells a client that there are too many, in the little time an acceptor has.
fn turn_away(mut client: &TcpStream) {
    let refusal = Failure { status: "503 Service Unavailable", why: "too many connections at once".to_owned() };
    let told = client.set_nonblocking(true).and_then(|()| client.write_all(&refusal.answer()));
    // What it has sent is read, so that closing does not reset the connection; whoever sends more takes its chance.
    drop(told.and_then(|()| client.shutdown(Shutdown::Write)).and_then(|()| client.read(&mut [0; 16 << 10])));
}

/// An answer of the proxy's own.
struct Failure {
    status: &'static str,
    /// One sentence.
    why: String,
}

impl Failure {
    fn bad(why: &str) -> End {
        End::Failed(Self { status: "400 Bad Request", why: why.to_owned() })
    }

    fn gateway(why: impl Into<String>) -> End {
        End::Failed(Self { status: "502 Bad Gateway", why: why.into() })
    }

    fn answer(&self) -> Vec<u8> {
        let Self { status, why } = self;
        let length = why.len() + 1;
        let kind = "Content-Type: text/plain; charset=utf-8";
        format!("HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{why}\n").into()
    }
}

/// Why a connection ends before its request was carried out.
enum End {
    Failed(Failure),
    /// There is nobody to tell, or no way to.
    Silent,
}

impl From<Over> for End {
    fn from(_: Over) -> Self {
        Self::Silent
    }
}

fn serve(place: &Arc<Place>, client: &TcpStream) {
    let served = &*place.0;
    let failure = match prepare(client).map_err(|_| End::Silent).and_then(|()| carry_out(place, client)) {
        Err(End::Failed(failure)) => failure.answer(),
        Err(End::Silent) => return,
        Ok(()) => Vec::new(),
    };
    // It may be gone, and then there is nobody to tell.
    drop(farewell(served, client, &failure));
}

/// A socket as the relay needs it.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)
}

fn carry_out(place: &Arc<Place>, client: &TcpStream) -> Result<(), End> {
    let served = &*place.0;
    let (head, rest) = read_head(served, client)?;
    let Request { host, port, kind } = request::parse(&head).map_err(Failure::bad)?;
    let idle = served.limits.idle;
    match kind {
        Kind::Tunnel => {
            let remote = reach(place, &host, port)?;
            let mut up = Lane::new(client, &remote, Framing::UntilClosed, rest);
            let agreed = b"HTTP/1.1 200 Connection established\r\n\r\n".to_vec();
            let mut down = Lane::new(&remote, client, Framing::UntilClosed, agreed);
            Ok(relay::tunnel(&served.stopped, &mut up, &mut down, idle)?)
        }
        Kind::Forward { head: mut first, mut body } => {
            let n = body.take(&rest).map_err(|e| Failure::bad(&e.to_string()))?;
            first.extend_from_slice(&rest[..n]);
            let remote = reach(place, &host, port)?;
            let mut up = Lane::new(client, &remote, body, first);
            let mut down = Lane::new(&remote, client, Framing::UntilClosed, Vec::new());
            let result = relay::exchange(&served.stopped, &mut up, &mut down, idle);
            match result {
                Err(Over::Stopped) => Err(End::Silent),
                // Half an answer cannot be mended by another one behind it.
                _ if down.passed > 0 => Ok(()),
                Ok(()) => Err(Failure::gateway(format!("{host} closed the connection without an answer"))),
                Err(Over::Late) => Err(Failure::gateway(format!("{host} did not answer in time"))),
                // Only the client's body can be malformed or break off: an answer ends where it ends.
                Err(Over::Broken(e)) if matches!(e.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) => {
                    Err(Failure::bad(&e.to_string()))
                }
                Err(Over::Broken(e)) => Err(Failure::gateway(format!("{host}: {e}"))),
            }
        }
    }
}

/// Reads up to the empty line that ends the head: the head without it, and what was read beyond.
fn read_head(served: &Served, mut client: &TcpStream) -> Result<(Vec<u8>, Vec<u8>), End> {
    const END: &[u8] = b"\r\n\r\n";
    let Limits { head: most, patience, .. } = served.limits;
    let until = Instant::now().checked_add(patience);
    let mut read = Vec::new();
    let mut piece = [0; 4 << 10];
    loop {
        match wait(&served.stopped, &[(client.as_fd(), PollFlags::IN)], until) {
            Err(Over::Late) => {
                let why = "the request's head did not come in time".to_owned();
                return Err(End::Failed(Failure { status: "408 Request Timeout", why }));
            }
            other => other?,
        }
        let n = match client.read(&mut piece) {
            Ok(0) => return Err(End::Silent),
            Ok(n) => n,
            Err(e) if is_not_now(&e) => continue,
            Err(_) => return Err(End::Silent),
        };
        // The end may lie across two pieces.
        let from = read.len().saturating_sub(END.len() - 1);
        read.extend_from_slice(&piece[..n]);
        let end = read[from..].windows(END.len()).position(|w| w == END).map(|at| from + at);
        let head = &read[..end.unwrap_or(read.len())];
        if request::has_a_bare_line_end(head) {
            return Err(Failure::bad("a line of the request does not end in CR LF"));
        }
        if head.len() > most {
            let why = format!("the request's head is larger than {most} bytes");
            return Err(End::Failed(Failure { status: "431 Request Header Fields Too Large", why }));
        }
        if let Some(end) = end {
            let rest = read.split_off(end + END.len());
            read.truncate(end);
            return Ok((read, rest));
        }
    }
}

/// Connects to `host`, if the guard lets it. The thread that does it keeps the client's place while it lasts, so that
/// clients who leave early cannot have ever more of them.
fn reach(place: &Arc<Place>, host: &str, port: u16) -> Result<TcpStream, End> {
    let limit = place.0.limits.connect;
    let no_means = |e: Error| Failure::gateway(e.doing("no means to connect").message);
    let (done, doing) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| no_means(e.into()))?;
    let (tx, rx) = channel();
    let (kept, name) = (place.clone(), host.to_owned());
    let work = move || {
        let served = &*kept.0;
        let found = served.guard.resolve(&name, port).and_then(|addresses| {
            // A look-up can outlast the proxy, and nothing is connected to after its end.
            match wait(&served.stopped, &[], Some(Instant::now())) {
                Err(Over::Late) => guard::connect(&addresses, limit),
                _ => Err(Fault::Unreachable(Error::failed("the proxy has ended"))),
            }
        });
        // Nobody takes it when that has become too late; then the connection closes right here.
        drop(tx.send(found));
        drop(doing);
    };
    let worker = thread::Builder::new().name("proxy-connect".to_owned()).spawn(work).map_err(|e| no_means(e.into()))?;
    match wait(&place.0.stopped, &[(done.as_fd(), PollFlags::IN)], Instant::now().checked_add(limit)) {
        Err(Over::Late) => return Err(Failure::gateway(format!("no connection to {host} in time"))),
        other => other?,
    }
    // It has done its work, so this is quick, and no thread is left behind that need not be.
    drop(worker.join());
    match rx.try_recv() {
        Ok(Ok(remote)) => {
            prepare(&remote).map_err(|e| Failure::gateway(format!("{host}: {e}")))?;
            Ok(remote)
        }
        Ok(Err(Fault::Refused(e))) => {
            let allow = e.hint.unwrap_or_else(|| "no setting allows it".to_owned());
            let why = format!("the connection to {host}:{port} was refused: {}; {allow}", e.message);
            Err(End::Failed(Failure { status: "403 Forbidden", why }))
        }
        Ok(Err(Fault::Unreachable(e))) => Err(Failure::gateway(e.message)),
        Err(_) => Err(Failure::gateway(format!("connecting to {host} went wrong"))),
    }
}

/// Says the last word, and then lets the client finish for a while: see [`FAREWELL`].
fn farewell(served: &Served, mut client: &TcpStream, answer: &[u8]) -> Result<(), Over> {
    let until = Instant::now().checked_add(FAREWELL);
    let mut left = answer;
    while !left.is_empty() {
        match client.write(left) {
            Ok(n) => left = &left[n..],
            Err(e) if is_not_now(&e) => wait(&served.stopped, &[(client.as_fd(), PollFlags::OUT)], until)?,
            Err(e) => return Err(e.into()),
        }
    }
    client.shutdown(Shutdown::Write)?;
    let mut rest = [0; 16 << 10];
    loop {
        wait(&served.stopped, &[(client.as_fd(), PollFlags::IN)], until)?;
        match client.read(&mut rest) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if is_not_now(&e) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
