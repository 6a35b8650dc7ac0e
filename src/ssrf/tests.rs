//! Rejected addresses in all notations.

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
    /// Allowed with `allow_private`.
    Home,
    Shut,
}
use Verdict::{Home, Open, Shut};

const HOSTS: &[(&str, Verdict)] = &[
    // The public internet, in every notation.
    (
        "93.184.216.34 8.8.8.8 0x08080808 134744072 8.8.2056 [2606:2800:220:1::1] \
         2606:2800:220:1::1 [::ffff:8.8.8.8] [64:ff9b::8.8.8.8] 172.15.255.255 172.32.0.0 \
         100.63.255.255 100.128.0.0 223.255.255.255 2001:200::1",
        Open,
    ),
    // This machine.
    (
        "127.0.0.1 [127.0.0.1] 127.255.255.254 127.1 127.0.1 2130706433 0x7f000001 0X7F000001 \
         0x7f.1 0x7f.0x0.0x0.0x1 0177.0.0.1 0177.0.0x1 017700000001 00000177.0.0.1 [::1] ::1 \
         [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1] [0:0:0:0:0:ffff:7f00:1] [64:ff9b::7f00:1]",
        Home,
    ),
    // Local networks.
    (
        "10.0.0.1 0xa000001 10.1 172.16.0.1 172.31.255.255 192.168.1.1 192.168.257 3232235777 \
         100.64.0.1 100.127.255.255 198.19.255.255 [fc00::1] [fdff:ffff::1] [fec0::1] \
         [::ffff:10.0.0.1]",
        Home,
    ),
    // Metadata services with cloud credentials.
    (
        "169.254.169.254 2852039166 0xa9fea9fe 0251.0376.0251.0376 169.254.43518 \
         [::ffff:169.254.169.254] [64:ff9b::a9fe:a9fe] 100.100.100.200 168.63.129.16 192.0.0.192 \
         [fd00:ec2::254] [fd00:ec2::23] [fd20:ce::254] [fe80::a9fe:a9fe]",
        Shut,
    ),
    // Reserved.
    (
        "0.0.0.0 0 0x0 0.1.2.3 192.0.2.1 192.88.99.1 198.51.100.1 203.0.113.1 224.0.0.1 \
         239.255.255.255 240.0.0.1 255.255.255.255 4294967295 [::] [::ffff:0.0.0.0] [fe80::1] \
         [ff02::1] [2001:db8::1] [3fff::1] [100::1] [5f00::1] [2001:10::1]",
        Shut,
    ),
    // Tunnels, regardless of the embedded address.
    (
        "[::127.0.0.1] [::8.8.8.8] [2002:7f00:1::] [2002:808:808::] [2001:0:53aa::1] \
         [64:ff9b:1::808:808]",
        Shut,
    ),
];

#[test]
fn host_spellings_resolve_to_the_same_verdict() {
    // The system resolver parses all of them without a name server.
    let opens = |allow_private: bool, host: &str| {
        AddressGuard::new(allow_private).resolve(host, 80).is_ok()
    };
    let hosts = HOSTS.iter().flat_map(|(hosts, verdict)| {
        let hosts = hosts.split_whitespace();
        hosts.map(|host| (host, *verdict))
    });
    for (host, expected) in hosts {
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
    text.split_whitespace()
        .map(|ip| SocketAddr::new(ip.parse().unwrap(), 0))
        .collect()
}

#[test]
fn name_with_a_blocked_address_is_refused() {
    for bad in [
        "127.0.0.1",
        "8.8.8.8 127.0.0.1",
        "8.8.8.8 8.8.4.4 ::1",
        "10.0.0.1 8.8.8.8",
        "::ffff:127.0.0.1",
    ] {
        let guard = AddressGuard::new(false).with_lookup(move |_, _| Ok(answers(bad)));
        assert!(
            matches!(
                guard.resolve("evil.test", 80),
                Err(ConnectError::Refused(_))
            ),
            "{bad}"
        );
    }
    let guard =
        AddressGuard::new(true).with_lookup(|_, _| Ok(answers("127.0.0.1 169.254.169.254")));
    assert!(matches!(
        guard.resolve("evil.test", 80),
        Err(ConnectError::Refused(_))
    ));
}

#[test]
fn a_refusal_says_what_it_is_and_which_setting_allows_it() {
    let error =
        |guard: &AddressGuard, host: &str| Error::from(guard.resolve(host, 80).unwrap_err());
    let guard = AddressGuard::new(false).with_lookup(|_, _| Ok(answers("10.0.0.7")));
    let e = error(&guard, "nas.test");
    assert_eq!(e.message, "10.0.0.7 is a private network address");
    assert_eq!(
        e.hint.as_deref(),
        Some("set tools.web.fetch.allow_private to true to allow it")
    );
    let e = error(&AddressGuard::new(true), "169.254.169.254");
    assert_eq!((e.message.contains("credentials"), e.hint), (true, None));
}

#[test]
fn this_machines_own_public_addresses_and_networks_are_private() {
    // A machine in a data center. Documentation prefixes would always be rejected.
    let interfaces: Interfaces = || {
        let four = [
            ("127.0.0.1", 8),
            ("8.8.4.2", 22),
            ("9.9.9.9", 32),
            ("1.2.3.4", 0),
        ];
        let six = [
            ("::1", 128),
            ("2606:2800:220:1::5", 128),
            ("2a00:1450:4001::7", 48),
            ("fe80::1", 64),
        ];
        Ok(four
            .into_iter()
            .chain(six)
            .map(|(address, length)| (address.parse().unwrap(), length))
            .collect())
    };
    let opens = |allow_private: bool, host: &str| {
        AddressGuard::new(allow_private)
            .with_interfaces(interfaces)
            .resolve(host, 80)
            .is_ok()
    };
    for (host, expected) in [
        ("8.8.4.2", Home),
        ("[::ffff:8.8.4.2]", Home),
        ("[64:ff9b::808:402]", Home),
        ("0x08080402", Home),
        ("8.8.5.255", Home),
        ("8.8.7.255", Home),
        ("8.8.8.0", Open),
        ("8.8.3.255", Open),
        ("9.9.9.9", Home),
        ("9.9.9.8", Open),
        ("1.2.3.4", Home),
        ("1.2.3.5", Open),
        ("2606:2800:220:1::5", Home),
        ("[2606:2800:220:1:ffff::]", Home),
        ("[2606:2800:220:2::5]", Open),
        ("[2a00:1450:4001:ffff::1]", Home),
        ("[2a00:1450:4002::1]", Open),
    ] {
        assert_eq!(
            (opens(false, host), opens(true, host)),
            (expected == Open, true),
            "{host}"
        );
    }
    let none: Interfaces = || Err(io::ErrorKind::PermissionDenied.into());
    let shut = AddressGuard::new(false)
        .with_interfaces(none)
        .resolve("8.8.8.8", 80);
    assert!(
        matches!(shut, Err(ConnectError::Unreachable(_))),
        "what cannot be checked is not connected to"
    );
}

#[test]
fn this_machines_interfaces_are_known() {
    let found = sys::interfaces().unwrap();
    assert!(
        found.contains(&("127.0.0.1".parse().unwrap(), 8)),
        "{found:?}"
    );
}

#[test]
fn invalid_host_is_refused_without_lookup() {
    let guard = AddressGuard::new(true).with_lookup(|name, _| panic!("{name} was looked up"));
    for host in [
        "",
        "[::1",
        "::1]",
        "fe80::1%eth0",
        "127.0.0.1:80",
        "u@8.8.8.8",
        "8.8.8.8/",
        "8.8.8.8\0",
        "①②⑦.0.0.1",
    ] {
        assert!(
            matches!(guard.resolve(host, 80), Err(ConnectError::Refused(_))),
            "{host:?}"
        );
    }
}

/// A name server that returns `first` to the first query, and `then` to later ones; and its number of queries.
fn rebinding(
    guard: AddressGuard,
    first: &'static str,
    then: &'static str,
) -> (AddressGuard, Arc<AtomicUsize>) {
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
    assert_eq!(
        guard.resolve("rebind.test", 80).unwrap(),
        ["8.8.8.8:80".parse().unwrap()]
    );
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert!(matches!(
        guard.resolve("rebind.test", 80),
        Err(ConnectError::Refused(_))
    ));

    let judged = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = judged.local_addr().unwrap().port();
    let other = TcpListener::bind(("127.0.0.2", port)).unwrap();
    other.set_nonblocking(true).unwrap();
    let (guard, asked) = rebinding(AddressGuard::new(true), "127.0.0.1", "127.0.0.2");
    let stream = connect_to(&guard, "rebind.test", port).unwrap();
    assert_eq!(stream.peer_addr().unwrap(), judged.local_addr().unwrap());
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert_eq!(
        other.accept().unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
}

#[test]
fn the_next_address_is_tried_when_one_does_not_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let guard = AddressGuard::new(true).with_lookup(|_, _| Ok(answers("127.0.0.3 127.0.0.1")));
    assert_eq!(
        connect_to(&guard, "two.test", port)
            .unwrap()
            .peer_addr()
            .unwrap(),
        listener.local_addr().unwrap()
    );
    let guard = AddressGuard::new(true).with_lookup(|_, _| Ok(answers("127.0.0.3")));
    assert!(matches!(
        connect_to(&guard, "none.test", port),
        Err(ConnectError::Unreachable(_))
    ));
}

#[test]
fn a_private_host_is_known_by_its_address_or_name() {
    let hosts = "127.0.0.1 ::1 10.1.2.3 192.168.0.9 100.64.0.1 fd00::1 localhost nas pi.local";
    for host in hosts.split_whitespace() {
        assert!(is_private(host), "{host}");
    }
    let hosts = "8.8.8.8 169.254.169.254 2606:2800::1 api.openai.com local.example.com";
    for host in hosts.split_whitespace() {
        assert!(!is_private(host), "{host}");
    }
}
