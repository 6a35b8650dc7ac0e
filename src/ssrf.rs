//! The address guard against server-side request forgery: restricts the hosts that a model can make this program connect to.
//!
//! A model that has read a hostile page may request `http://127.0.0.1/`, the router, or the metadata service with a cloud
//! machine's credentials. So a host is looked up once, all addresses of the answer are checked, and the connection uses one of
//! these addresses. A name server that changes its answer is not asked again.
//!
//! Ranges are from the IANA special-purpose address registries. IPv6 is allow-listed. Only `2000::/3` is assigned to the public
//! internet, so all other addresses are rejected. IPv6 addresses that embed an IPv4 address:
//!
//! - `::ffff:a.b.c.d` (mapped): the kernel connects to a.b.c.d, so that address is checked;
//! - `64:ff9b::a.b.c.d` (NAT64): a.b.c.d is checked. Refusing it would cut off IPv6-only networks, which reach every
//!   IPv4 host this way;
//! - `64:ff9b:1::/48` (local NAT64): refused, because each network places the address differently;
//! - `2002::/16` (6to4), `2001::/32` (Teredo), `::a.b.c.d` (compatible): refused. They are obsolete, and the embedded
//!   address may be only the relay's.
//!
//! A public address is also rejected if it belongs to an interface of this machine or to its network, because services there
//! may trust their neighbors. Interfaces come and go, so they are read at each connection.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::sys;

/// Setting for [`AddressGuard::new`].
const SETTING: &str = "tools.web.fetch.allow_private";

/// Looks up the addresses of a name and a port.
type Lookup = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;
/// Returns the addresses of this machine's interfaces, and the prefix lengths of their networks.
type Interfaces = fn() -> io::Result<Vec<(IpAddr, u32)>>;

#[derive(Clone)]
pub(crate) struct AddressGuard {
    allow_private: bool,
    lookup: Arc<Lookup>,
    interfaces: Interfaces,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// Rejected by the guard. The hint is the setting that would allow the address, if there is one.
    Refused(Error),
    /// The look-up or the connection failed.
    Unreachable(Error),
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Refused(e) | ConnectError::Unreachable(e) => e,
        }
    }
}

/// A description of an address outside the public internet.
#[derive(Clone, Copy)]
enum Special {
    /// This machine or one of its networks, which the user may allow.
    Private(&'static str),
    Never(&'static str),
}

use Special::{Never, Private};

const METADATA: Special =
    Never("a cloud metadata service, which hands out this machine's credentials");
const LINK_LOCAL: Special = Never("link-local, where cloud metadata services hand out credentials");
const LOCAL: Special = Private("a private network address");
const THIS_MACHINE: Special = Private("this machine");
const DOCUMENTATION: Special = Never("reserved for documentation");
const TUNNEL: Special = Never("a tunnel to an IPv4 address");
const RESERVED: Special = Never("a reserved address");

/// Base address, prefix length, meaning; the first match wins.
///
/// Metadata services precede the private range that contains them (Alibaba's 100.100.100.200, Amazon's `fd00:ec2::/32`,
/// Google's `fd20:ce::254`) or are in no special range (Azure's 168.63.129.16). Oracle's is in 192.0.0.0/24.
const SPECIAL: &[(Ipv6Addr, u32, Special)] = &[
    v4([100, 100, 100, 200], 32, METADATA),
    v4([168, 63, 129, 16], 32, METADATA),
    // Linux connects 0.0.0.0 to the loopback.
    v4([0, 0, 0, 0], 8, RESERVED),
    v4([10, 0, 0, 0], 8, LOCAL),
    v4(
        [100, 64, 0, 0],
        10,
        Private("a carrier or VPN network address"),
    ),
    v4([127, 0, 0, 0], 8, THIS_MACHINE),
    v4([169, 254, 0, 0], 16, LINK_LOCAL),
    v4([172, 16, 0, 0], 12, LOCAL),
    v4([192, 0, 0, 0], 24, RESERVED),
    v4([192, 0, 2, 0], 24, DOCUMENTATION),
    v4([192, 88, 99, 0], 24, TUNNEL),
    v4([192, 168, 0, 0], 16, LOCAL),
    v4([198, 18, 0, 0], 15, Private("a test network address")),
    v4([198, 51, 100, 0], 24, DOCUMENTATION),
    v4([203, 0, 113, 0], 24, DOCUMENTATION),
    v4([224, 0, 0, 0], 4, Never("a multicast address")),
    v4([240, 0, 0, 0], 4, RESERVED),
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 32, METADATA),
    (
        Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
        128,
        METADATA,
    ),
    (Ipv6Addr::LOCALHOST, 128, THIS_MACHINE),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, LOCAL),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, LOCAL),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, TUNNEL),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, RESERVED),
    (
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0),
        32,
        DOCUMENTATION,
    ),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, TUNNEL),
    (
        Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0),
        20,
        DOCUMENTATION,
    ),
];

/// Converts an IPv4 range to its mapped IPv6 range.
const fn v4([a, b, c, d]: [u8; 4], length: u32, what: Special) -> (Ipv6Addr, u32, Special) {
    (
        Ipv4Addr::new(a, b, c, d).to_ipv6_mapped(),
        96 + length,
        what,
    )
}

/// NAT64 (RFC 6052): the last 32 bits are the IPv4 address.
const NAT64: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);
/// Range that is assigned to the public internet.
const GLOBAL: Ipv6Addr = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0);

impl AddressGuard {
    /// Creates a guard. `allow_private` also allows loopback, 10/8, 172.16/12, 192.168/16, 100.64/10, 198.18/15, `fc00::/7` and
    /// `fec0::/10`, and the networks of this machine's interfaces. Link-local addresses and cloud metadata services are always
    /// rejected.
    pub(crate) fn new(allow_private: bool) -> Self {
        let lookup = Arc::new(|host: &str, port| Ok((host, port).to_socket_addrs()?.collect()));
        Self {
            allow_private,
            lookup,
            interfaces: sys::interfaces,
        }
    }

    #[cfg(test)]
    fn with_interfaces(self, interfaces: Interfaces) -> Self {
        Self { interfaces, ..self }
    }

    #[cfg(test)]
    pub(crate) fn with_lookup(
        mut self,
        lookup: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        self.lookup = Arc::new(lookup);
        self
    }

    fn check(&self, address: IpAddr, interfaces: &[(IpAddr, u32)]) -> Result<()> {
        match special(address).or_else(|| of_interface(address, interfaces)) {
            None => Ok(()),
            Some(Private(_)) if self.allow_private => Ok(()),
            Some(Private(what)) => {
                let e = Error::failed(format!("{address} is {what}"));
                Err(e.hint(format!("set {SETTING} to true to allow it")))
            }
            Some(Never(what)) => Err(Error::failed(format!("{address} is {what}"))),
        }
    }

    /// Looks up `host` once and checks every address. Callers must connect only to these addresses, because the next look-up
    /// may have another answer. The look-up blocks as long as the system resolver does.
    ///
    /// `host` is a name or an address, IPv6 with or without brackets. The system resolver also accepts `127.1` and `0x7f000001`
    /// as addresses; the resulting address is checked, so no notation bypasses the guard.
    pub(crate) fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ConnectError> {
        let name = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let is_name = !name.is_empty()
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b));
        if !is_name && name.parse::<Ipv6Addr>().is_err() {
            let e = Error::failed(format!("{host:?} is neither a host name nor an address"));
            return Err(ConnectError::Refused(e));
        }
        let found = (self.lookup)(name, port);
        let found = found.map_err(|e| unreachable(format!("looking up {name}: {e}")))?;
        let interfaces = if self.allow_private {
            Ok(Vec::new())
        } else {
            (self.interfaces)()
        };
        let interfaces = interfaces
            .map_err(|e| unreachable(format!("reading this machine's addresses: {e}")))?;
        for address in &found {
            self.check(address.ip(), &interfaces)
                .map_err(ConnectError::Refused)?;
        }
        if found.is_empty() {
            return Err(unreachable(format!("{name} has no address")));
        }
        Ok(found
            .into_iter()
            .map(|address| SocketAddr::new(address.ip(), port))
            .collect())
    }
}

/// Connects to the first of `addresses` from [`AddressGuard::resolve`] that responds within its share of `timeout`, so that a
/// silent address does not use up the time of the next.
pub(crate) fn connect(
    addresses: &[SocketAddr],
    timeout: Duration,
) -> Result<TcpStream, ConnectError> {
    let until = Instant::now() + timeout;
    let mut last = unreachable("no address to connect to".to_owned());
    for (address, waiting) in addresses.iter().zip((1..=addresses.len()).rev()) {
        let left = until.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(waiting).unwrap_or(u32::MAX);
        // `connect_timeout` rejects zero.
        match TcpStream::connect_timeout(address, share.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = unreachable(format!("connecting to {address}: {e}")),
        }
    }
    Err(last)
}

fn unreachable(message: String) -> ConnectError {
    ConnectError::Unreachable(Error::failed(message))
}

/// Whether `host` is this machine or in one of its networks, judging without a look-up. A single-label name is a container's or
/// another machine's in this network.
pub(crate) fn is_private(host: &str) -> bool {
    const SUFFIXES: [&str; 6] = [
        ".localhost",
        ".local",
        ".lan",
        ".home",
        ".internal",
        ".home.arpa",
    ];
    match host.parse() {
        Ok(address) => matches!(special(address), Some(Private(_))),
        Err(_) => !host.contains('.') || SUFFIXES.iter().any(|suffix| host.ends_with(suffix)),
    }
}

fn within(address: Ipv6Addr, base: Ipv6Addr, length: u32) -> bool {
    (address.to_bits() ^ base.to_bits()) >> (128 - length) == 0
}

/// Returns the final destination of a connection, with IPv4 as mapped.
fn destination(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) if within(address, NAT64, 96) => {
            let [.., a, b, c, d] = address.octets();
            Ipv4Addr::new(a, b, c, d).to_ipv6_mapped()
        }
        IpAddr::V6(address) => address,
    }
}

fn special(address: IpAddr) -> Option<Special> {
    let address = destination(address);
    let known = SPECIAL
        .iter()
        .find(|(base, length, _)| within(address, *base, *length));
    let is_public = address.to_ipv4_mapped().is_some() || within(address, GLOBAL, 3);
    known
        .map(|(_, _, what)| *what)
        .or((!is_public).then_some(RESERVED))
}

/// Describes an address in a network of `interfaces`; `None` for other addresses.
fn of_interface(address: IpAddr, interfaces: &[(IpAddr, u32)]) -> Option<Special> {
    let address = destination(address);
    let is_own = |(own, _): &(IpAddr, u32)| destination(*own) == address;
    let is_near = |(own, length): &(IpAddr, u32)| match own {
        // An empty prefix is a default route, not a network.
        IpAddr::V4(_) => *length > 0 && within(address, destination(*own), 96 + length),
        // DHCPv6 assigns single addresses of a network that is a /64.
        IpAddr::V6(own) => {
            within(*own, GLOBAL, 3) && *length > 0 && within(address, *own, (*length).min(64))
        }
    };
    let near = interfaces
        .iter()
        .any(is_near)
        .then_some(Private("an address in a network of this machine"));
    interfaces
        .iter()
        .any(is_own)
        .then_some(THIS_MACHINE)
        .or(near)
}

#[cfg(test)]
mod tests;
