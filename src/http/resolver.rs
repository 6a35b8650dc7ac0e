//! Name look-ups through the address guard, so that connections use the checked addresses.
//!
//! A proxy gets the checked address instead of the name, which it would look up again.

use std::fmt;
use std::sync::Arc;

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    ConnectProxyConnector, ConnectionDetails, Connector, Either, NextTimeout, RustlsConnector,
    SocksConnector, TcpConnector, Transport,
};

use crate::ssrf::{AddressGuard, ConnectError};

pub(super) struct GuardedResolver(pub AddressGuard);

impl fmt::Debug for GuardedResolver {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("GuardedResolver")
    }
}

impl Resolver for GuardedResolver {
    fn resolve(&self, uri: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let default = if uri.scheme_str() == Some("http") {
            80
        } else {
            443
        };
        let port = uri.port_u16().unwrap_or(default);
        let found = self
            .0
            .resolve(uri.host().unwrap_or_default(), port)
            .map_err(|e| {
                let (ConnectError::Refused(e) | ConnectError::Unreachable(e)) = e;
                let hint = e.hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
                Error::Other(format!("{}{hint}", e.message).into())
            })?;
        let mut addresses = self.empty();
        // The list is limited to 16 addresses.
        for address in found.into_iter().take(16) {
            addresses.push(address);
        }
        Ok(addresses)
    }
}

/// Connects to guarded addresses through the proxy in this configuration, if there is one.
#[derive(Debug)]
pub(super) struct GuardedProxy(pub Option<Config>);

impl<In: Transport> Connector<In> for GuardedProxy {
    type Out = Either<In, Box<dyn Transport>>;

    fn connect(
        &self,
        details: &ConnectionDetails,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, Error> {
        let Some(config) = &self.0 else {
            return Ok(chained.map(Either::A));
        };
        let to_proxy = |details: &ConnectionDetails| {
            let connector = ().chain(TcpConnector::default()).chain(RustlsConnector::default());
            let transport = connector
                .connect(details, None)?
                .ok_or(Error::ConnectionFailed)?;
            Ok(Box::new(transport) as Box<dyn Transport>)
        };
        let mut last = Error::HostNotFound;
        for address in &details.addrs {
            let scheme = details.uri.scheme_str().unwrap_or("https");
            let uri = format!("{scheme}://{address}/").parse::<Uri>();
            let uri = uri.map_err(ureq::http::Error::from)?;
            let mut one = DefaultResolver::default().empty();
            one.push(*address);
            // The proxy's address is not checked, because the user has configured it.
            let details = ConnectionDetails {
                uri: &uri,
                addrs: one,
                config,
                request_level: details.request_level,
                resolver: &DefaultResolver::default(),
                now: details.now,
                timeout: details.timeout,
                current_time: details.current_time.clone(),
                run_connector: Arc::new(to_proxy),
                register_shutdown: details.register_shutdown.clone(),
            };
            let tunnels = ().chain(SocksConnector::default());
            let tunnels = tunnels.chain(ConnectProxyConnector::default());
            match tunnels.connect(&details, None) {
                Ok(Some(tunnel)) => return Ok(Some(Either::B(Box::new(tunnel)))),
                Ok(None) => last = Error::ConnectionFailed,
                Err(e) => last = e,
            }
        }
        Err(last)
    }
}
