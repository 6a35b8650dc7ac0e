//! The address guard against server-side request forgery: which hosts a model may make this program connect to.
//!
//! A model that has read a hostile page asks for `http://127.0.0.1/`, for the router, or for the metadata service that
//! hands out a cloud machine's credentials. So a host is looked up once, every address of the answer is checked, and the
//! connection goes to one of those addresses: a name server that changes its answer is not asked again.
//!
//! Ranges are those of the IANA special-purpose address registries. IPv6 is allow-listed: only `2000::/3` is assigned to
//! the public internet, so everything outside it is refused. IPv6 addresses that embed an IPv4 address:
//!
//! - `::ffff:a.b.c.d` (mapped): the kernel connects to a.b.c.d, so that is checked;
//! - `64:ff9b::a.b.c.d` (NAT64): a.b.c.d is checked. Refusing it would cut off IPv6-only networks, which reach every
//!   IPv4 host this way;
//! - `64:ff9b:1::/48` (local NAT64): refused, because each network places the address differently;
//! - `2002::/16` (6to4), `2001::/32` (Teredo), `::a.b.c.d` (compatible): refused. They are obsolete, and the embedded
//!   address may be only the relay's.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// The setting behind [`AddressGuard::new`].
const SETTING: &str = "tools.web.fetch.allow_private";

/// Turns a name and a port into addresses.
type Lookup = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

#[derive(Clone)]
pub(crate) struct AddressGuard {
    allow_private: bool,
    lookup: Arc<Lookup>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The guard forbids it. The hint names the setting that would allow it, if there is one.
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

/// An address outside the public internet, and what it is.
#[derive(Clone, Copy)]
enum Special {
    /// This machine or one of its networks: the user may allow it.
    Private(&'static str),
    Never(&'static str),
}

use Special::{Never, Private};

const METADATA: Special = Never("a cloud metadata service, which hands out this machine's credentials");
const LINK_LOCAL: Special = Never("link-local, where cloud metadata services hand out credentials");
const LOCAL: Special = Private("a private network address");
const DOCUMENTATION: Special = Never("reserved for documentation");
const TUNNEL: Special = Never("a tunnel to an IPv4 address");
const RESERVED: Special = Never("a reserved address");

/// Base address, prefix length, meaning; the first match counts.
///
/// Metadata services come before the private range that contains them (Alibaba's 100.100.100.200) or lie in no special
/// range at all (Azure's 168.63.129.16). Oracle's is in 192.0.0.0/24.
const SPECIAL_4: &[(Ipv4Addr, u32, Special)] = &[
    (Ipv4Addr::new(100, 100, 100, 200), 32, METADATA),
    (Ipv4Addr::new(168, 63, 129, 16), 32, METADATA),
    // Linux connects 0.0.0.0 to the loopback.
    (Ipv4Addr::UNSPECIFIED, 8, RESERVED),
    (Ipv4Addr::new(10, 0, 0, 0), 8, LOCAL),
    (Ipv4Addr::new(100, 64, 0, 0), 10, Private("a carrier or VPN network address")),
    (Ipv4Addr::new(127, 0, 0, 0), 8, Private("this machine")),
    (Ipv4Addr::new(169, 254, 0, 0), 16, LINK_LOCAL),
    (Ipv4Addr::new(172, 16, 0, 0), 12, LOCAL),
    (Ipv4Addr::new(192, 0, 0, 0), 24, RESERVED),
    (Ipv4Addr::new(192, 0, 2, 0), 24, DOCUMENTATION),
    (Ipv4Addr::new(192, 88, 99, 0), 24, TUNNEL),
    (Ipv4Addr::new(192, 168, 0, 0), 16, LOCAL),
    (Ipv4Addr::new(198, 18, 0, 0), 15, Private("a test network address")),
    (Ipv4Addr::new(198, 51, 100, 0), 24, DOCUMENTATION),
    (Ipv4Addr::new(203, 0, 113, 0), 24, DOCUMENTATION),
    (Ipv4Addr::new(224, 0, 0, 0), 4, Never("a multicast address")),
    (Ipv4Addr::new(240, 0, 0, 0), 4, RESERVED),
];

/// As [`SPECIAL_4`]. Amazon's services are in `fd00:ec2::/32`, Google's is `fd20:ce::254`.
const SPECIAL_6: &[(Ipv6Addr, u32, Special)] = &[
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 32, METADATA),
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128, METADATA),
    (Ipv6Addr::LOCALHOST, 128, Private("this machine")),
    (Ipv6Addr::UNSPECIFIED, 128, RESERVED),
    (Ipv6Addr::UNSPECIFIED, 96, TUNNEL),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48, TUNNEL),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, LOCAL),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, LINK_LOCAL),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, LOCAL),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, Never("a multicast address")),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, TUNNEL),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, RESERVED),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, DOCUMENTATION),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, TUNNEL),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, DOCUMENTATION),
];

/// NAT64 (RFC 6052): the last 32 bits are the IPv4 address.
const NAT64: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);
/// Assigned to the public internet.
const GLOBAL: Ipv6Addr = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0);

impl AddressGuard {
    /// `allow_private` also allows loopback, 10/8, 172.16/12, 192.168/16, 100.64/10, 198.18/15, `fc00::/7` and
    /// `fec0::/10`. Link-local addresses and cloud metadata services stay refused.
    pub(crate) fn new(allow_private: bool) -> Self {
        Self { allow_private, lookup: Arc::new(|host, port| Ok((host, port).to_socket_addrs()?.collect())) }
    }

    #[cfg(test)]
    pub(crate) fn with_lookup(
        mut self,
        lookup: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        self.lookup = Arc::new(lookup);
        self
    }

    fn check(&self, address: IpAddr) -> Result<()> {
        match special(address) {
            None => Ok(()),
            Some(Private(_)) if self.allow_private => Ok(()),
            Some(Private(what)) => {
                let e = Error::failed(format!("{address} is {what}"));
                Err(e.hint(format!("{SETTING} = true would allow it")))
            }
            Some(Never(what)) => Err(Error::failed(format!("{address} is {what}"))),
        }
    }

    /// Looks `host` up once and checks every address. Connect to these addresses and nothing else: the next look-up may
    /// answer differently. The look-up blocks as long as the system resolver does.
    ///
    /// `host` is a name, an IPv4 address in any notation (`127.1`, `0x7f000001`, `017700000001`), or an IPv6 address with
    /// or without brackets.
    pub(crate) fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ConnectError> {
        let refused = |e: &str| ConnectError::Refused(Error::failed(format!("{host:?} {e}")));
        if port == 0 {
            return Err(ConnectError::Refused(Error::failed("cannot connect to port 0")));
        }
        let name = match parse_host(host).map_err(refused)? {
            Host::Address(address) => {
                self.check(address).map_err(ConnectError::Refused)?;
                return Ok(vec![SocketAddr::new(address, port)]);
            }
            Host::Name(name) => name,
        };
        let found = (self.lookup)(name, port);
        let found = found.map_err(|e| unreachable(format!("looking up {name}: {e}")))?;
        for address in &found {
            self.check(address.ip()).map_err(|e| ConnectError::Refused(e.doing(name)))?;
        }
        if found.is_empty() {
            return Err(unreachable(format!("{name} has no address")));
        }
        Ok(found.into_iter().map(|address| SocketAddr::new(address.ip(), port)).collect())
    }
}

/// Connects to the first of `addresses`, as [`AddressGuard::resolve`] returned them, that answers within its share of
/// `timeout`: a silent one must not use up the time of the next.
pub(crate) fn connect(addresses: &[SocketAddr], timeout: Duration) -> Result<TcpStream, ConnectError> {
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

fn special(address: IpAddr) -> Option<Special> {
    match address {
        IpAddr::V4(address) => special_4(address),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            if address.to_ipv4_mapped().is_some() || within_6(address, NAT64, 96) {
                return special_4(Ipv4Addr::new(a, b, c, d));
            }
            let known = SPECIAL_6.iter().find(|(base, length, _)| within_6(address, *base, *length));
            let unknown = || (!within_6(address, GLOBAL, 3)).then_some(RESERVED);
            known.map(|(_, _, what)| *what).or_else(unknown)
        }
    }
}

fn special_4(address: Ipv4Addr) -> Option<Special> {
    let within = |base: Ipv4Addr, length: u32| (address.to_bits() ^ base.to_bits()) >> (32 - length) == 0;
    SPECIAL_4.iter().find(|(base, length, _)| within(*base, *length)).map(|(_, _, what)| *what)
}

fn within_6(address: Ipv6Addr, base: Ipv6Addr, length: u32) -> bool {
    (address.to_bits() ^ base.to_bits()) >> (128 - length) == 0
}

enum Host<'a> {
    Address(IpAddr),
    Name(&'a str),
}

/// Tells addresses from names before the system resolver, which also accepts `127.1` and `0x7f.1` as addresses.
fn parse_host(host: &str) -> Result<Host<'_>, &'static str> {
    let brackets = host.strip_prefix('[').map(|rest| rest.strip_suffix(']').ok_or("lacks a bracket"));
    if let Some(inside) = brackets.transpose()?.or(host.contains(':').then_some(host)) {
        // Zones (`fe80::1%eth0`) are refused: only link-local addresses need them.
        let address = inside.parse().map_err(|_| "is not an IPv6 address")?;
        return Ok(Host::Address(IpAddr::V6(address)));
    }
    if !host.is_ascii() {
        return Err("is not ASCII; write an international name in its xn-- form");
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_label = |label: &str| {
        let letters = label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        letters && (1..=63).contains(&label.len())
    };
    if name.len() > 253 || !name.split('.').all(is_label) {
        return Err("is not a host name");
    }
    // The rule of the URL standard: what ends in a number is an IPv4 address or an error.
    let last = name.rsplit('.').next().unwrap_or(name);
    let hex = last.strip_prefix("0x").or(last.strip_prefix("0X"));
    if last.bytes().all(|b| b.is_ascii_digit()) || hex.is_some_and(|h| h.bytes().all(|b| b.is_ascii_hexdigit())) {
        let address = any_ipv4(name).ok_or("is not an IPv4 address")?;
        return Ok(Host::Address(IpAddr::V4(address)));
    }
    Ok(Host::Name(name))
}

/// Reads an address as `inet_aton` does: up to four numbers, the last of which fills the remaining bytes.
fn any_ipv4(text: &str) -> Option<Ipv4Addr> {
    let numbers = text.split('.').map(number).collect::<Option<Vec<u32>>>()?;
    let (last, first) = numbers.split_last()?;
    if first.len() > 3 || first.iter().any(|n| *n > 255) {
        return None;
    }
    let room = 32 - 8 * u32::try_from(first.len()).ok()?;
    if u64::from(*last) >> room != 0 {
        return None;
    }
    let first = first.iter().zip([24, 16, 8]).fold(0, |bits, (n, shift)| bits | (n << shift));
    Some(Ipv4Addr::from_bits(first | last))
}

/// Reads a C number: `0x` is hexadecimal, a leading zero octal.
fn number(text: &str) -> Option<u32> {
    let hex = text.strip_prefix("0x").or(text.strip_prefix("0X"));
    let (digits, radix) = match hex {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    // `from_str_radix` would take a sign.
    digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, radix).ok())?
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const WAIT: Duration = Duration::from_secs(10);

    fn connect_to(guard: &AddressGuard, host: &str, port: u16) -> Result<TcpStream, ConnectError> {
        connect(&guard.resolve(host, port)?, WAIT)
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Verdict {
        Open,
        /// Open with `allow_private`.
        Home,
        Shut,
    }
    use Verdict::{Home, Open, Shut};

    const HOSTS: &[(&str, Verdict)] = &[
        // The public internet, in every notation.
        ("93.184.216.34", Open),
        ("8.8.8.8", Open),
        ("0x08080808", Open),
        ("134744072", Open),
        ("8.8.2056", Open),
        ("93.184.216.34.", Open),
        ("[2606:2800:220:1::1]", Open),
        ("2606:2800:220:1::1", Open),
        ("[::ffff:8.8.8.8]", Open),
        ("[64:ff9b::8.8.8.8]", Open),
        ("172.15.255.255", Open),
        ("172.32.0.0", Open),
        ("100.63.255.255", Open),
        ("100.128.0.0", Open),
        ("223.255.255.255", Open),
        ("2001:200::1", Open),
        // This machine.
        ("127.0.0.1", Home),
        ("127.0.0.1.", Home),
        ("127.255.255.254", Home),
        ("127.1", Home),
        ("127.0.1", Home),
        ("2130706433", Home),
        ("0x7f000001", Home),
        ("0X7F000001", Home),
        ("0x7f.1", Home),
        ("0x7f.0x0.0x0.0x1", Home),
        ("0177.0.0.1", Home),
        ("0177.0.0x1", Home),
        ("017700000001", Home),
        ("00000177.0.0.1", Home),
        ("[::1]", Home),
        ("::1", Home),
        ("[0:0:0:0:0:0:0:1]", Home),
        ("[::ffff:127.0.0.1]", Home),
        ("[0:0:0:0:0:ffff:7f00:1]", Home),
        ("[64:ff9b::7f00:1]", Home),
        // Networks of its own.
        ("10.0.0.1", Home),
        ("0xa000001", Home),
        ("10.1", Home),
        ("172.16.0.1", Home),
        ("172.31.255.255", Home),
        ("192.168.1.1", Home),
        ("192.168.257", Home),
        ("3232235777", Home),
        ("100.64.0.1", Home),
        ("100.127.255.255", Home),
        ("198.19.255.255", Home),
        ("[fc00::1]", Home),
        ("[fdff:ffff::1]", Home),
        ("[fec0::1]", Home),
        ("[::ffff:10.0.0.1]", Home),
        // Where clouds keep credentials.
        ("169.254.169.254", Shut),
        ("2852039166", Shut),
        ("0xa9fea9fe", Shut),
        ("0251.0376.0251.0376", Shut),
        ("169.254.43518", Shut),
        ("[::ffff:169.254.169.254]", Shut),
        ("[64:ff9b::a9fe:a9fe]", Shut),
        ("100.100.100.200", Shut),
        ("168.63.129.16", Shut),
        ("192.0.0.192", Shut),
        ("[fd00:ec2::254]", Shut),
        ("[fd00:ec2::23]", Shut),
        ("[fd20:ce::254]", Shut),
        ("[fe80::a9fe:a9fe]", Shut),
        // Reserved.
        ("0.0.0.0", Shut),
        ("0", Shut),
        ("0x0", Shut),
        ("0.1.2.3", Shut),
        ("192.0.2.1", Shut),
        ("192.88.99.1", Shut),
        ("198.51.100.1", Shut),
        ("203.0.113.1", Shut),
        ("224.0.0.1", Shut),
        ("239.255.255.255", Shut),
        ("240.0.0.1", Shut),
        ("255.255.255.255", Shut),
        ("4294967295", Shut),
        ("[::]", Shut),
        ("[::ffff:0.0.0.0]", Shut),
        ("[fe80::1]", Shut),
        ("[ff02::1]", Shut),
        ("[2001:db8::1]", Shut),
        ("[3fff::1]", Shut),
        ("[100::1]", Shut),
        ("[5f00::1]", Shut),
        ("[2001:10::1]", Shut),
        // Tunnels, whatever is inside.
        ("[::127.0.0.1]", Shut),
        ("[::8.8.8.8]", Shut),
        ("[2002:7f00:1::]", Shut),
        ("[2002:808:808::]", Shut),
        ("[2001:0:53aa::1]", Shut),
        ("[64:ff9b:1::808:808]", Shut),
        // Not a host.
        ("", Shut),
        (".", Shut),
        ("..", Shut),
        ("127.0.0.1..", Shut),
        ("127..1", Shut),
        ("256.1.1.1", Shut),
        ("1.2.3.256", Shut),
        ("1.2.3.4.5", Shut),
        ("4294967296", Shut),
        ("0x100000000", Shut),
        ("99999999999999999999", Shut),
        ("08.8.8.8", Shut),
        ("8.8.8.08", Shut),
        ("8.8.8.0x", Shut),
        ("8.8.8.+8", Shut),
        ("example.1", Shut),
        ("example.0x7f", Shut),
        ("[127.0.0.1]", Shut),
        ("[::1", Shut),
        ("::1]", Shut),
        ("[]", Shut),
        ("[fe80::1%eth0]", Shut),
        ("fe80::1%25eth0", Shut),
        ("[::1%lo]", Shut),
        ("127.0.0.1:80", Shut),
        ("user@8.8.8.8", Shut),
        ("8.8.8.8/", Shut),
        ("8.8.8.8\\", Shut),
        ("8.8.8.8#", Shut),
        ("8.8.8.8 ", Shut),
        (" 8.8.8.8", Shut),
        ("8.8.8.8\0", Shut),
        ("8.8.8.8\r\nx", Shut),
        ("%31%32%37.0.0.1", Shut),
        ("127。0。0。1", Shut),
        ("①②⑦.0.0.1", Shut),
        ("１２７.0.0.1", Shut),
    ];

    #[test]
    fn every_way_to_write_a_host_is_judged_by_the_address_it_means() {
        let no_lookup = |_: &str, _| panic!("an address was looked up as a name");
        let opens = |allow_private: bool, host: &str| {
            AddressGuard::new(allow_private).with_lookup(no_lookup).resolve(host, 80).is_ok()
        };
        for &(host, expected) in HOSTS {
            let verdict = match (opens(false, host), opens(true, host)) {
                (true, true) => Open,
                (false, true) => Home,
                (false, false) => Shut,
                (true, false) => panic!("{host:?} is open only when the guard is shut"),
            };
            assert_eq!(verdict, expected, "{host:?}");
        }
    }

    fn answers(text: &str) -> Vec<SocketAddr> {
        text.split_whitespace().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).collect()
    }

    #[test]
    fn one_bad_address_spoils_a_name() {
        for bad in ["127.0.0.1", "8.8.8.8 127.0.0.1", "8.8.8.8 8.8.4.4 ::1", "10.0.0.1 8.8.8.8", "::ffff:127.0.0.1"] {
            let guard = AddressGuard::new(false).with_lookup(move |_, _| Ok(answers(bad)));
            assert!(matches!(guard.resolve("evil.test", 80), Err(ConnectError::Refused(_))), "{bad}");
        }
        let guard = AddressGuard::new(true).with_lookup(|_, _| Ok(answers("127.0.0.1 169.254.169.254")));
        assert!(matches!(guard.resolve("evil.test", 80), Err(ConnectError::Refused(_))));
    }

    #[test]
    fn a_refusal_says_what_it_is_and_which_setting_allows_it() {
        let error = |guard: &AddressGuard, host: &str| Error::from(guard.resolve(host, 80).unwrap_err());
        let guard = AddressGuard::new(false).with_lookup(|_, _| Ok(answers("10.0.0.7")));
        let e = error(&guard, "nas.test.");
        assert_eq!(e.message, "nas.test: 10.0.0.7 is a private network address");
        assert_eq!(e.hint.as_deref(), Some("tools.web.fetch.allow_private = true would allow it"));
        let e = error(&guard, "169.254.169.254");
        assert_eq!((e.message.contains("credentials"), e.hint), (true, None));
    }

    #[test]
    fn names_are_looked_up_without_their_last_dot_and_answers_get_the_port_asked_for() {
        let guard = AddressGuard::new(false).with_lookup(|name, port| {
            assert_eq!((name, port), ("example.test", 443));
            Ok(answers("8.8.8.8 2606:2800::1"))
        });
        let found = guard.resolve("example.test.", 443).unwrap();
        assert_eq!(found, ["8.8.8.8:443".parse().unwrap(), "[2606:2800::1]:443".parse().unwrap()]);
        assert!(matches!(guard.resolve("example.test", 0), Err(ConnectError::Refused(_))));
    }

    #[test]
    fn a_name_without_an_answer_is_unreachable_and_not_refused() {
        let guard = AddressGuard::new(false).with_lookup(|_, _| Ok(Vec::new()));
        assert!(matches!(guard.resolve("nothing.test", 80), Err(ConnectError::Unreachable(_))));
        let guard = AddressGuard::new(false).with_lookup(|_, _| Err(io::Error::other("no such name")));
        assert!(matches!(guard.resolve("nothing.test", 80), Err(ConnectError::Unreachable(_))));
    }

    #[test]
    fn the_system_knows_localhost_and_the_guard_refuses_it() {
        for host in ["localhost", "localhost.", "LOCALHOST"] {
            assert!(matches!(AddressGuard::new(false).resolve(host, 80), Err(ConnectError::Refused(_))), "{host}");
        }
        assert!(AddressGuard::new(true).resolve("localhost", 80).is_ok());
    }

    /// A name server that gives `first` to whoever asks first, and `then` to all later ones; and how often it was asked.
    fn rebinding(guard: AddressGuard, first: &'static str, then: &'static str) -> (AddressGuard, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let guard = guard.with_lookup(move |_, _| {
            let again = count.fetch_add(1, Ordering::SeqCst) > 0;
            Ok(answers(if again { then } else { first }))
        });
        (guard, asked)
    }

    #[test]
    fn a_name_that_changes_its_mind_is_asked_once() {
        let (guard, asked) = rebinding(AddressGuard::new(false), "8.8.8.8", "127.0.0.1");
        assert_eq!(guard.resolve("rebind.test", 80).unwrap(), ["8.8.8.8:80".parse().unwrap()]);
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        assert!(matches!(guard.resolve("rebind.test", 80), Err(ConnectError::Refused(_))));

        let judged = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = judged.local_addr().unwrap().port();
        let other = TcpListener::bind(("127.0.0.2", port)).unwrap();
        other.set_nonblocking(true).unwrap();
        let (guard, asked) = rebinding(AddressGuard::new(true), "127.0.0.1", "127.0.0.2");
        let stream = connect_to(&guard, "rebind.test", port).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), judged.local_addr().unwrap());
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        assert_eq!(other.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn what_is_refused_is_never_knocked_at() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let guard = AddressGuard::new(false).with_lookup(|_, _| Ok(answers("127.0.0.1 8.8.8.8")));
        for host in ["127.0.0.1", "127.1", "2130706433", "[::ffff:127.0.0.1]", "evil.test", "localhost"] {
            assert!(matches!(connect_to(&guard, host, port), Err(ConnectError::Refused(_))), "{host}");
        }
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn the_next_address_is_tried_when_one_does_not_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let guard = AddressGuard::new(true).with_lookup(|_, _| Ok(answers("127.0.0.3 127.0.0.1")));
        assert_eq!(connect_to(&guard, "two.test", port).unwrap().peer_addr().unwrap(), listener.local_addr().unwrap());
        let guard = AddressGuard::new(true).with_lookup(|_, _| Ok(answers("127.0.0.3")));
        assert!(matches!(connect_to(&guard, "none.test", port), Err(ConnectError::Unreachable(_))));
    }
}
