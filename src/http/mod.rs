//! The one place that makes HTTP requests.
//!
//! Reads block, and yet a caller must notice a stop within moments and silence within its limit. So each request runs on
//! a thread of its own and hands over what arrives through a channel; the caller waits on that channel, which a stop
//! wakes too. To end a blocked read, the `ureq` agent is shut down: that closes its socket.

mod tls;

use std::io::Read;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fs_err::File;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{
    Buffers, ConnectProxyConnector, ConnectionDetails, Connector, NextTimeout, RustlsConnector, TcpConnector, Transport,
};
use ureq::{Agent, Proxy, SendBody};

use crate::cancel::{Cancel, Hook, Why};
use crate::error::{Context, Error, Result};
use crate::secret::Secret;

/// How requests leave this machine.
#[derive(Clone, Default)]
pub struct Settings {
    /// Empty: none.
    pub proxy: String,
    /// A bundle of certificates to trust instead of those compiled in (`SSL_CERT_FILE`).
    pub ca_file: Option<PathBuf>,
}

/// A connection takes at most this long, TLS included. A name look-up takes what the C library gives it: ureq would limit
/// that with one more thread, and panics where there is none to be had.
const CONNECT: Duration = Duration::from_secs(15);
/// Decoded bytes of a body: more is a fault of the server.
const MOST_BODY: u64 = 64 << 20;
/// Connections that are kept for later, each with its buffers: for a poll, and for what is sent meanwhile.
const MOST_IDLE: usize = 2;
/// How long an ended request's thread is waited for before it is left to end by itself (a name look-up cannot be ended).
const FAREWELL: Duration = Duration::from_millis(100);

/// Makes requests, and keeps connections open between them.
pub struct Client {
    settings: Settings,
    idle: Arc<Mutex<Vec<Agent>>>,
}

/// A request to make.
pub struct Outgoing {
    pub url: String,
    pub headers: Vec<(String, Secret)>,
    pub body: Outbody,
}

/// What a request brings along.
pub enum Outbody {
    /// Nothing, which makes it a GET.
    None,
    Json(Vec<u8>),
    Stream(Stream),
}

/// A body with a file in it, which is read while it is sent: it need not be in memory.
pub struct Stream {
    /// Its media type.
    pub kind: String,
    pub before: Vec<u8>,
    pub file: File,
    /// So many bytes of the file are sent.
    pub len: u64,
    pub after: Vec<u8>,
}

/// The beginning of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// What arrives, in order: one head, pieces of the body, the end.
#[derive(Debug)]
pub enum Part {
    Head(Head),
    Body(Vec<u8>),
    End,
}

/// Why nothing more arrives.
#[derive(Debug)]
pub enum Fault {
    /// It could not be sent or did not arrive whole; the text is for a person.
    Broken(String),
    /// The connection was never made; the text is for a person.
    Unreachable(String),
    /// Nothing arrived for as long as the caller was ready to wait.
    Silent,
    Cancelled(Why),
}

impl Client {
    pub fn new(settings: Settings) -> Self {
        Self { settings, idle: Arc::default() }
    }

    /// Begins a request. What comes of it is read with [`Exchange::next`].
    pub fn send(&self, request: Outgoing, cancel: &Cancel) -> Result<Exchange> {
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let agent = match kept {
            Some(agent) => agent,
            None => agent(&self.settings, &request.url)?,
        };
        // A few pieces of slack: a slow reader slows the network down, and memory stays bounded.
        let (tx, rx) = sync_channel(8);
        let wake = tx.clone();
        let hook = cancel.on_stop(move || {
            // Full or gone: then the reader wakes by itself and asks the flag.
            drop(wake.try_send(Err(Fault::Cancelled(Why::Stopped))));
        });
        let worker = agent.clone();
        std::thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || run(&worker, request, &tx))
            .doing("starting a thread")?;
        Ok(Exchange { agent: Some(agent), rx, cancel: cancel.clone(), _hook: hook, idle: self.idle.clone() })
    }
}

/// A request under way. Dropping it before its end closes the connection.
pub struct Exchange {
    agent: Option<Agent>,
    /// `None` says that more of the body has gone out.
    rx: Receiver<Result<Option<Part>, Fault>>,
    cancel: Cancel,
    _hook: Hook,
    idle: Arc<Mutex<Vec<Agent>>>,
}

impl Exchange {
    /// Waits up to `within`, and no longer than the turn has left, for what arrives next. While the body of the request goes
    /// out the wait has not begun.
    pub fn next(&mut self, within: Duration) -> Result<Part, Fault> {
        let part = loop {
            break match self.rx.recv_timeout(self.cancel.remaining(within)) {
                Ok(Ok(None)) if self.cancel.why().is_none() => continue,
                Ok(Ok(None)) | Err(RecvTimeoutError::Timeout) => Err(Fault::Silent),
                Ok(Ok(Some(part))) => Ok(part),
                Ok(Err(fault)) => Err(fault),
                Err(RecvTimeoutError::Disconnected) => {
                    Err(Fault::Broken("the request ended without an answer".to_owned()))
                }
            };
        };
        // A shut down connection can look like a clean end: the flag is asked first.
        if let Some(why) = self.cancel.why() {
            self.close();
            return Err(Fault::Cancelled(why));
        }
        match &part {
            Ok(Part::End) => {
                let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
                idle.extend(self.agent.take());
                idle.truncate(MOST_IDLE);
            }
            // The thread has ended by itself.
            Err(Fault::Broken(_) | Fault::Unreachable(_)) => self.agent = None,
            Err(Fault::Silent | Fault::Cancelled(_)) => self.close(),
            Ok(_) => {}
        }
        part
    }

    fn close(&mut self) {
        let Some(agent) = self.agent.take() else { return };
        agent.shutdown();
        // The thread may be blocked on the full channel: take what it has until its last word.
        let until = Instant::now() + FAREWELL;
        loop {
            match self.rx.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Ok(None | Some(Part::Head(_) | Part::Body(_))) | Err(Fault::Cancelled(_))) => {}
                Ok(_) | Err(_) => return,
            }
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.close();
    }
}

/// The request's thread. It ends when the body has, or when nobody takes what it reads.
fn run(agent: &Agent, request: Outgoing, tx: &SyncSender<Result<Option<Part>, Fault>>) {
    let result = transfer(agent, request, &mut |part| tx.send(Ok(part)).is_ok());
    // With nobody listening any more there is nobody to tell.
    drop(tx.send(result.map(|()| Some(Part::End))));
}

/// Reads a body to be sent, and tells that it does. With nobody listening any more it ends.
struct Told<'a> {
    stream: Stream,
    take: &'a mut dyn FnMut(Option<Part>) -> bool,
}

impl Read for Told<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if !(self.take)(None) {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        let Stream { before, file, len, after, .. } = &mut self.stream;
        let text = if before.is_empty() && *len == 0 { after } else { before };
        if text.is_empty() && *len > 0 {
            let most = usize::try_from(*len).unwrap_or(usize::MAX).min(buf.len());
            let read = file.read(&mut buf[..most])?;
            *len -= read as u64;
            return if read > 0 { Ok(read) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) };
        }
        let read = text.len().min(buf.len());
        buf[..read].copy_from_slice(&text[..read]);
        text.drain(..read);
        Ok(read)
    }
}

fn transfer(agent: &Agent, request: Outgoing, take: &mut dyn FnMut(Option<Part>) -> bool) -> Result<(), Fault> {
    let Outgoing { url, headers, body } = request;
    let post = |kind: &str| {
        let mut builder = agent.post(&url).header("content-type", kind);
        for (name, value) in &headers {
            builder = builder.header(name, value.reveal());
        }
        builder
    };
    let answer = match body {
        Outbody::Json(json) => post("application/json").send(&json),
        Outbody::Stream(stream) => {
            let len = stream.before.len() as u64 + stream.len + stream.after.len() as u64;
            let builder = post(&stream.kind).header("content-length", len.to_string());
            builder.send(SendBody::from_reader(&mut Told { stream, take }))
        }
        Outbody::None => {
            let mut builder = agent.get(&url);
            for (name, value) in &headers {
                builder = builder.header(name, value.reveal());
            }
            builder.call()
        }
    };
    let mut answer = answer.map_err(|e| fault(&e))?;
    let headers = answer.headers().iter();
    let headers = headers.map(|(n, v)| (n.as_str().to_owned(), String::from_utf8_lossy(v.as_bytes()).into_owned()));
    if !take(Some(Part::Head(Head { status: answer.status().as_u16(), headers: headers.collect() }))) {
        return Ok(());
    }
    let mut body = answer.body_mut().with_config().limit(MOST_BODY).reader();
    let mut piece = vec![0; 16 << 10];
    loop {
        match body.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                if !take(Some(Part::Body(piece[..n].to_vec()))) {
                    return Ok(());
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Fault::Broken(format!("the answer broke off: {e}"))),
        }
    }
}

/// ureq's errors in words. None of them names a header's value.
fn fault(e: &ureq::Error) -> Fault {
    let unreachable = |what: &str| Fault::Unreachable(what.to_owned());
    match e {
        ureq::Error::HostNotFound => unreachable("the host's name is not known"),
        ureq::Error::ConnectionFailed => unreachable("the connection failed"),
        ureq::Error::Timeout(what) => Fault::Unreachable(format!("no connection in time ({what})")),
        ureq::Error::Io(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
            unreachable("the connection was refused")
        }
        ureq::Error::Io(e) => Fault::Broken(e.to_string()),
        e => Fault::Broken(e.to_string()),
    }
}

/// The one constructor of agents. `url` is where it will be asked to go.
fn agent(settings: &Settings, url: &str) -> Result<Agent> {
    let mut config = Agent::config_builder()
        // An error's body says what is wrong.
        .http_status_as_error(false)
        // A redirect would carry the key to whoever it names.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_connect(Some(CONNECT))
        .max_idle_connections(1)
        .input_buffer_size(16 << 10)
        .output_buffer_size(8 << 10)
        .user_agent(concat!("bantam/", env!("CARGO_PKG_VERSION")));
    // Set in every case: ureq would look into the environment by itself, with rules of its own.
    config = config.proxy(match settings.proxy.as_str() {
        "" => None,
        // The address may hold a password, so it is not shown.
        socks if socks.starts_with("socks") => {
            return Err(Error::config("proxies of the socks kind are not built in").hint("use one of http://HOST:PORT"));
        }
        address => Some(
            Proxy::new(address)
                .map_err(|_| Error::config("the proxy's address is not one").hint("write it as http://HOST:PORT"))?,
        ),
    });
    // Reading the certificates of a whole system takes longer than all else in a turn.
    let trusts = !url.starts_with("http://") || settings.proxy.starts_with("https://");
    let mut tls = TlsConfig::builder().unversioned_rustls_crypto_provider(tls::provider());
    if let Some(path) = settings.ca_file.as_ref().filter(|_| trusts) {
        let pem = fs_err::read(path).map_err(|e| {
            Error::config(format!("reading the certificates that SSL_CERT_FILE names: {e}"))
                .hint("unset SSL_CERT_FILE, or point it at a PEM bundle")
        })?;
        let roots: Vec<Certificate<'static>> = ureq::tls::parse_pem(&pem)
            .filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            })
            .collect();
        if roots.is_empty() {
            return Err(Error::config(format!("{} holds no certificate", path.display()))
                .hint("unset SSL_CERT_FILE, or point it at a PEM bundle"));
        }
        tls = tls.root_certs(RootCerts::new_with_certs(&roots));
    }
    let connector = ().chain(ConnectProxyConnector::default()).chain(TcpConnector::default());
    let connector = connector.chain(Listening).chain(RustlsConnector::default());
    Ok(Agent::with_parts(config.tls_config(tls.build()).build(), connector, DefaultResolver::default()))
}

/// Makes connections on which an answer is heard even though the server has stopped reading: one that refuses a large body
/// says so, and closes.
#[derive(Debug)]
struct Listening;

/// See [`Listening`].
#[derive(Debug)]
struct Heard<T> {
    inner: T,
    /// Nothing more can be written.
    is_deaf: bool,
}

impl<In: Transport> Connector<In> for Listening {
    type Out = Heard<In>;

    fn connect(&self, _: &ConnectionDetails, inner: Option<In>) -> std::result::Result<Option<Heard<In>>, ureq::Error> {
        Ok(inner.map(|inner| Heard { inner, is_deaf: false }))
    }
}

impl<T: Transport> Transport for Heard<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> std::result::Result<(), ureq::Error> {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
        if self.is_deaf {
            return Ok(());
        }
        match self.inner.transmit_output(amount, timeout) {
            // What was received before is still there to be read; if nothing is, that fails.
            Err(ureq::Error::Io(e)) if matches!(e.kind(), BrokenPipe | ConnectionReset) => {
                self.is_deaf = true;
                Ok(())
            }
            result => result,
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> std::result::Result<bool, ureq::Error> {
        Transport::await_input(&mut self.inner, timeout)
    }

    fn is_open(&mut self) -> bool {
        !self.is_deaf && self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}
