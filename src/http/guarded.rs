//! Name look-ups that go through the address guard, so that a connection is made to what was checked.

use std::fmt;

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use crate::guard::{AddressGuard, ConnectError};

pub(super) struct GuardedResolver(pub AddressGuard);

impl fmt::Debug for GuardedResolver {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("GuardedResolver")
    }
}

impl Resolver for GuardedResolver {
    fn resolve(&self, uri: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let default = if uri.scheme_str() == Some("http") { 80 } else { 443 };
        let port = uri.port_u16().unwrap_or(default);
        let found = self.0.resolve(uri.host().unwrap_or_default(), port).map_err(|e| {
            let ConnectError::Refused(e) = e else { return Error::HostNotFound };
            let hint = e.hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
            Error::Other(format!("{}{hint}", e.message).into())
        })?;
        let mut addresses = self.empty();
        // It holds 16.
        found.into_iter().take(16).for_each(|address| addresses.push(address));
        Ok(addresses)
    }
}
