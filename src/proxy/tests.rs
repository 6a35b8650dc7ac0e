//! Tests of the proxy with real sockets. Servers are on the loopback, which only an open guard allows; a closed guard is tested
//! with a server that must not receive a connection.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Instant;

use super::*;

/// Longer than any test step takes, so that only a bug exceeds it.
const WAIT: Duration = Duration::from_secs(20);

fn start(guard: AddressGuard) -> (Proxy, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (Proxy::start(listener, guard).unwrap(), address)
}

fn open() -> (Proxy, SocketAddr) {
    start(AddressGuard::new(true))
}

fn dial(proxy: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(proxy).unwrap();
    client.set_read_timeout(Some(WAIT)).unwrap();
    client.set_write_timeout(Some(WAIT)).unwrap();
    client
}

fn would_block(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Returns all remaining output. A reset also counts as the end; silence does not.
fn rest(mut stream: &TcpStream) -> String {
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => all.extend_from_slice(&piece[..n]),
            Err(e) if would_block(&e) => {
                panic!("nothing more after {:?}", String::from_utf8_lossy(&all))
            }
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// Returns the proxy's response to a client that sends `request` and waits.
fn ask(proxy: SocketAddr, request: impl AsRef<[u8]>) -> String {
    let mut client = dial(proxy);
    // The proxy may have rejected the request before reading all of it.
    drop(client.write_all(request.as_ref()));
    rest(&client)
}

#[track_caller]
fn assert_status(answer: &str, status: u16) {
    assert!(
        answer.starts_with(&format!("HTTP/1.1 {status} ")),
        "{status} was due, and came: {answer:?}"
    );
}

/// Starts a server for one connection. The thread returns the result of `talk`.
fn server<T: Send + 'static>(
    talk: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (u16, JoinHandle<T>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        talk(stream)
    });
    (port, thread)
}

/// Reads until the received text ends with `end`.
fn read_until(mut stream: &TcpStream, end: &str) -> String {
    let mut all = Vec::new();
    let mut byte = [0];
    while !all.ends_with(end.as_bytes()) {
        stream.read_exact(&mut byte).unwrap();
        all.push(byte[0]);
    }
    String::from_utf8(all).unwrap()
}

/// Returns a client with a tunnel to `port`.
fn tunnel(proxy: SocketAddr, port: u16) -> TcpStream {
    let mut client = dial(proxy);
    client
        .write_all(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
        .unwrap();
    assert_status(&read_until(&client, "\r\n\r\n"), 200);
    client
}

/// A listener that must not receive a connection.
struct Untouched(TcpListener);

impl Untouched {
    fn new() -> (Self, u16) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        (Self(listener), port)
    }

    #[track_caller]
    fn check(&self) {
        assert_eq!(
            self.0.accept().unwrap_err().kind(),
            ErrorKind::WouldBlock,
            "somebody came"
        );
    }
}

#[test]
fn tunnel_forwards_data_and_half_closes() {
    let (_proxy, address) = open();
    let (port, server) = server(|mut stream| {
        let heard = rest(&stream);
        stream.write_all(b"heard: ").unwrap();
        stream.write_all(heard.as_bytes()).unwrap();
    });
    let mut client = dial(address);
    // Bytes sent before the tunnel is established belong to the tunnel.
    client
        .write_all(format!("CONNECT localhost:{port} HTTP/1.1\r\n\r\nearly, ").as_bytes())
        .unwrap();
    assert_status(&read_until(&client, "\r\n\r\n"), 200);
    client.write_all(b"late").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&client), "heard: early, late");
    server.join().unwrap();
}

#[test]
fn a_tunnel_keeps_every_byte_when_both_sides_talk_at_once() {
    let (_proxy, address) = open();
    let (port, _server) = server(|stream| io::copy(&mut &stream, &mut &stream).unwrap());
    let client = tunnel(address, port);
    let sent: Vec<u8> = (0..4_u32 << 20)
        .map(|n| u8::try_from(n % 251).unwrap())
        .collect();
    let (mut writer, data) = (client.try_clone().unwrap(), sent.clone());
    let writing = thread::spawn(move || {
        writer.write_all(&data).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    (&client).read_to_end(&mut got).unwrap();
    writing.join().unwrap();
    assert!(
        got == sent,
        "{} bytes of {} came back, or others",
        got.len(),
        sent.len()
    );
}

#[test]
fn blocked_address_gets_no_connection() {
    let (untouched, port) = Untouched::new();
    let lookup = |name: &str, port| match name {
        "mixed.test" => Ok(vec![
            SocketAddr::from(([8, 8, 8, 8], port)),
            SocketAddr::from(([127, 0, 0, 1], port)),
        ]),
        "evil.test" => Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]),
        literal => Ok((literal, port).to_socket_addrs()?.collect()),
    };
    let (_proxy, address) = start(AddressGuard::new(false).with_lookup(lookup));
    let hosts = "127.0.0.1 127.1 2130706433 0x7f.1 0177.0.0.1 localhost [::1] [::ffff:127.0.0.1] \
        [64:ff9b::127.0.0.1] evil.test mixed.test"
        .split_whitespace();
    for host in hosts {
        let answer = ask(address, format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\n"));
        assert_status(&answer, 403);
        assert!(
            answer.ends_with("set tools.web.fetch.allow_private to true to allow it\n"),
            "{answer}"
        );
        assert!(
            answer.contains(&format!("the connection to {host}:{port} was refused: ")),
            "{answer}"
        );
    }
    let answer = ask(address, "CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n");
    assert_status(&answer, 403);
    assert!(answer.ends_with("no setting allows it\n"), "{answer}");
    untouched.check();
}

#[test]
fn a_head_of_ten_megabytes_is_refused_at_sixteen_kilobytes() {
    let (_proxy, address) = open();
    let flood = [
        b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nA: ".to_vec(),
        vec![b'a'; 10 << 20],
    ]
    .concat();
    assert_status(&ask(address, flood), 431);
    let many = "A: b\r\n".repeat(3000);
    assert_status(
        &ask(
            address,
            format!("CONNECT 127.0.0.1:1 HTTP/1.1\r\n{many}\r\n"),
        ),
        431,
    );
}

/// Returns a guard that each of the proxy's threads holds, and a token to count the references.
fn counted() -> (AddressGuard, Arc<()>) {
    let token = Arc::new(());
    let held = token.clone();
    let guard = AddressGuard::new(true).with_lookup(move |_, port| {
        let _ = &held;
        Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
    });
    (guard, token)
}

fn wait_until_alone(token: &Arc<()>) {
    let deadline = Instant::now() + WAIT;
    while Arc::strong_count(token) > 1 {
        assert!(Instant::now() < deadline, "a thread is left");
        thread::yield_now();
    }
}

#[test]
fn dropping_the_proxy_ends_everything_it_has() {
    let (guard, token) = counted();
    let (proxy, address) = start(guard);

    let (port, quiet) = server(|stream| rest(&stream));
    let resting = tunnel(address, port);

    // The server's output is not read, so the proxy has bytes that it cannot write.
    let (stuck, is_stuck) = mpsc::channel();
    let (port, flood) = server(move |mut stream| {
        stream
            .set_write_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        while stream.write(&[b'x'; 4096]).is_ok() {}
        stuck.send(()).unwrap();
        stream.set_write_timeout(Some(WAIT)).unwrap();
        loop {
            if let Err(e) = stream.write_all(&[b'x'; 4096]) {
                break e.kind();
            }
        }
    });
    let deaf = tunnel(address, port);
    is_stuck.recv_timeout(WAIT).unwrap();

    let half = dial(address);
    (&half).write_all(b"CONNECT 127.0.0.1:1 HT").unwrap();
    let mute = dial(address);

    drop(proxy);
    assert_eq!(rest(&resting), "");
    for client in [&half, &mute, &deaf] {
        rest(client);
    }
    assert_eq!(quiet.join().unwrap(), "");
    wait_until_alone(&token);
    assert!(!matches!(
        flood.join().unwrap(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut
    ));
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn plain_http_and_malformed_requests_are_refused() {
    let (untouched, port) = Untouched::new();
    let (_proxy, address) = open();
    let host = format!("127.0.0.1:{port}");
    for request in [
        format!("GET http://{host}/ HTTP/1.1"),
        format!("POST http://{host}/ HTTP/1.1\r\nContent-Length: 1"),
    ] {
        let answer = ask(address, format!("{request}\r\n\r\n"));
        assert_status(&answer, 405);
        assert!(
            answer.ends_with(
                "\r\n\r\nthe guarded network carries https:// only, not http://: use https://\n"
            ),
            "{answer}"
        );
    }
    for request in [
        "",
        "\0",
        "\x16\x03\x01\x02\0\x01\0\x01",
        "CONNECT",
        &format!("CONNECT {host}"),
        &format!("CONNECT {host} HTTP/2.0"),
        &format!("CONNECT {host} HTTP/1.1 "),
        "CONNECT 127.0.0.1 HTTP/1.1",
        "CONNECT 127.0.0.1: HTTP/1.1",
        "CONNECT 127.0.0.1:99999 HTTP/1.1",
    ] {
        assert_status(&ask(address, format!("{request}\r\n\r\n")), 400);
    }
    // The guard rejects an invalid host.
    for target in [
        format!("x@{host}"),
        format!("{host}:{port}"),
        format!("http://{host}"),
        format!("%31:{port}"),
        format!(":{port}"),
    ] {
        assert_status(
            &ask(address, format!("CONNECT {target} HTTP/1.1\r\n\r\n")),
            403,
        );
    }
    untouched.check();
}

#[test]
fn unreachable_host_is_a_bad_gateway() {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let guard = AddressGuard::new(true).with_lookup(|_, _| Err(io::Error::other("no such name")));
    let (_proxy, address) = start(guard);
    assert_status(
        &ask(
            address,
            format!("CONNECT 127.0.0.1:{closed} HTTP/1.1\r\n\r\n"),
        ),
        502,
    );
    assert_status(
        &ask(address, "CONNECT nothing.test:443 HTTP/1.1\r\n\r\n"),
        502,
    );
}

#[test]
fn excess_connection_waits_for_a_free_slot() {
    let (_proxy, address) = open();
    let (port, _server) = server(|stream| rest(&stream));
    let first = tunnel(address, port);
    let _others: Vec<TcpStream> = (1..MAX_CONNECTIONS)
        .map(|_| {
            let client = dial(address);
            (&client).write_all(b"CONNECT").unwrap();
            client
        })
        .collect();
    let mut last = dial(address);
    last.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    last.set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    assert!(would_block(&last.read(&mut [0]).unwrap_err()));
    last.set_read_timeout(Some(WAIT)).unwrap();
    drop(first);
    assert_status(&read_until(&last, "\r\n\r\n"), 405);
}

#[test]
fn a_look_up_that_outlasts_the_proxy_connects_to_nothing() {
    let (untouched, port) = Untouched::new();
    let (asked, is_asked) = mpsc::channel();
    let (answer, answered) = mpsc::channel::<()>();
    let answered = std::sync::Mutex::new(answered);
    let token = Arc::new(());
    let held = token.clone();
    let guard = AddressGuard::new(true).with_lookup(move |_, port| {
        let _ = &held;
        asked.send(()).unwrap();
        // Blocks until the end of the test, which drops the sender.
        assert!(answered.lock().unwrap().recv().is_err());
        Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
    });
    let (proxy, address) = start(guard);
    let client = dial(address);
    (&client)
        .write_all(format!("CONNECT slow.test:{port} HTTP/1.1\r\n\r\n").as_bytes())
        .unwrap();
    is_asked.recv_timeout(WAIT).unwrap();
    drop(proxy);
    drop(answer);
    wait_until_alone(&token);
    untouched.check();
}
