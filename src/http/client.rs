//! The client: settings, idle connections, and the creation of connections.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{
    ConnectProxyConnector, Connector, RustlsConnector, SocksConnector, TcpConnector,
};
use ureq::{Agent, Proxy};

use super::half_closed::HalfClosedConnector;
use super::resolver::{GuardedProxy, GuardedResolver};
use super::{Event, Exchange, Fault, Outgoing, tls, transfer};
use crate::cancel::{Cancel, CancelReason};
use crate::error::{Error, Result};
use crate::ssrf::AddressGuard;
use crate::sync;

/// Time limit for establishing a connection, including TLS but not the name look-up. ureq would limit the look-up with another
/// thread, and panic if the thread cannot be started.
const CONNECT: Duration = Duration::from_secs(15);

/// Error of a request without a thread.
const NO_THREAD: &str =
    "no thread could be started: end some of your processes, or raise `ulimit -u`";

/// Connection settings.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    /// Address of the proxy; empty for none.
    pub proxy: String,
    /// Bundle of certificates to trust instead of the compiled-in ones (`SSL_CERT_FILE`).
    pub ca_file: Option<PathBuf>,
    /// Checks every address before a connection to it; a proxy gets the checked address.
    pub guard: Option<AddressGuard>,
}

/// Makes requests, and reuses connections.
pub(crate) struct Client {
    settings: Settings,
    idle: Arc<Mutex<Vec<Agent>>>,
    /// Whether a server's certificate was signed by an unknown authority.
    is_unknown: Arc<AtomicBool>,
}

impl Client {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            idle: Arc::default(),
            is_unknown: Arc::default(),
        }
    }

    /// Whether the next request trusts the certificates of this system instead of the compiled-in ones, because an unknown
    /// authority may be a company's private one.
    pub(crate) fn trusts_system(&self) -> bool {
        self.is_unknown.load(Ordering::SeqCst)
            && self.settings.ca_file.is_none()
            && system_certificates().is_some()
    }

    /// Starts a POST, or a GET if there is no body, on a separate thread.
    pub(crate) fn send(&self, request: Outgoing, cancel: &Cancel) -> Result<Exchange> {
        let method = request.body.as_ref().map_or("GET", |_| "POST");
        let kept = sync::lock(&self.idle).pop();
        let agent = match kept {
            Some(agent) => agent,
            None => {
                let mut settings = self.settings.clone();
                if self.trusts_system() {
                    settings.ca_file = system_certificates().map(PathBuf::from);
                }
                agent(&settings, &request.url)?
            }
        };
        // The limited capacity makes a slow reader slow down the network instead of filling memory.
        let (tx, events) = sync_channel(8);
        let (wake, failed) = (tx.clone(), tx.clone());
        let hook = cancel.on_stop(move || {
            // If the channel is full, the reader wakes anyway and checks the flag.
            drop(wake.try_send(Err(Fault::Cancelled(CancelReason::Stopped))));
        });
        let (worker, proxy) = (agent.clone(), self.settings.proxy.clone());
        let is_sent = Arc::new(AtomicBool::new(false));
        let (sent, is_unknown) = (is_sent.clone(), self.is_unknown.clone());
        let thread = thread::Builder::new().name("http".to_owned());
        let started = thread.spawn(move || {
            let flags = (&sent, &*is_unknown);
            let result = transfer(&worker, &proxy, (method, request), &tx, flags);
            // Fails if the exchange was dropped.
            drop(tx.send(result.map(|()| Event::End)));
        });
        if started.is_err() {
            // Like a failed connection, because it passes when others end.
            let fault = Fault::Broken(NO_THREAD.to_owned());
            drop(failed.try_send(Err(fault)));
        }
        let (cancel, idle) = (cancel.clone(), self.idle.clone());
        Ok(Exchange {
            agent: Some(agent),
            events,
            uploaded_at: Instant::now(),
            cancel,
            is_sent,
            _hook: hook,
            idle,
        })
    }
}

/// Returns the system's bundle of trusted certificates. The paths are of Debian and Arch, Fedora, SUSE, Alpine.
fn system_certificates() -> Option<&'static Path> {
    const BUNDLES: [&str; 4] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];
    BUNDLES.iter().map(Path::new).find(|path| path.is_file())
}

/// Creates an agent, whose requests all go to the origin of `url`. All agents are created here.
fn agent(settings: &Settings, url: &str) -> Result<Agent> {
    let mut tls = TlsConfig::builder();
    // Reading the certificates of a whole system takes longer than the rest of a turn.
    if !url.starts_with("http://") || settings.proxy.starts_with("https://") {
        tls = tls.unversioned_rustls_crypto_provider(tls::provider());
        if let Some(path) = &settings.ca_file {
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates(path)?));
        }
    }
    let tls = tls.build();
    let config = |proxy| {
        Agent::config_builder()
            // The body of an error contains the reason.
            .http_status_as_error(false)
            // A redirect would send the key to another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT))
            .max_idle_connections(1)
            .input_buffer_size(16 << 10)
            .output_buffer_size(8 << 10)
            .user_agent(concat!("bantam/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls.clone())
            // Always set, because ureq would otherwise read the environment by different rules.
            .proxy(proxy)
            .build()
    };
    let proxy = proxy(&settings.proxy)?;
    Ok(match &settings.guard {
        None => {
            let to_proxy = ().chain(SocksConnector::default());
            let connector = over_tcp(to_proxy.chain(ConnectProxyConnector::default()));
            Agent::with_parts(config(proxy), connector, DefaultResolver::default())
        }
        Some(guard) => {
            let to_proxy = proxy.map(|proxy| config(Some(proxy)));
            let connector = over_tcp(().chain(GuardedProxy(to_proxy)));
            Agent::with_parts(config(None), connector, GuardedResolver(guard.clone()))
        }
    })
}

/// Connects directly unless `to_proxy` connects, and adds TLS if needed.
fn over_tcp<C: Connector>(to_proxy: C) -> impl Connector {
    to_proxy
        .chain(TcpConnector::default())
        .chain(HalfClosedConnector)
        .chain(RustlsConnector::default())
}

/// Parses a proxy address. Errors do not quote it, because it may contain a password.
fn proxy(address: &str) -> Result<Option<Proxy>> {
    const HINT: &str = "correct HTTPS_PROXY, HTTP_PROXY, ALL_PROXY or `proxy` in config.json: http://HOST:PORT or socks5h://HOST:PORT";
    if address.is_empty() {
        return Ok(None);
    }
    let proxy = Proxy::new(address).map(Some);
    proxy.map_err(|_| Error::config("invalid proxy address").hint(HINT))
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>> {
    const HINT: &str = "unset SSL_CERT_FILE, or set it to a PEM bundle";
    let pem = fs_err::read(path).map_err(|e| {
        Error::config(format!("cannot use SSL_CERT_FILE: {}", Error::from(e))).hint(HINT)
    })?;
    let items = ureq::tls::parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = items.collect();
    if certificates.is_empty() {
        return Err(Error::config(format!("no certificate in {}", path.display())).hint(HINT));
    }
    Ok(certificates)
}
