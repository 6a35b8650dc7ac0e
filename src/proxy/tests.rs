//! The proxy over real sockets. Servers are on the loopback, so the guard that lets them be reached is the open one; the
//! shut one is proved by a server that is never knocked at.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;

use super::*;

/// Longer than anything here takes: only a fault runs into it.
const WAIT: Duration = Duration::from_secs(20);

fn start(guard: Guard, limits: Limits) -> (Proxy, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (Proxy::with_limits(listener, guard, limits).unwrap(), address)
}

fn open() -> (Proxy, SocketAddr) {
    start(Guard::new(true), LIMITS)
}

fn dial(proxy: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(proxy).unwrap();
    client.set_read_timeout(Some(WAIT)).unwrap();
    client.set_write_timeout(Some(WAIT)).unwrap();
    client
}

/// All that still arrives. A reset at the end of it is an end, too; silence is not.
fn rest(mut stream: &TcpStream) -> String {
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => all.extend_from_slice(&piece[..n]),
            Err(e) if is_not_now(&e) => panic!("nothing more after {:?}", String::from_utf8_lossy(&all)),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// What the proxy says to somebody who sends `request` and waits.
fn ask(proxy: SocketAddr, request: impl AsRef<[u8]>) -> String {
    let mut client = dial(proxy);
    // It may have been told no before it had said everything.
    drop(client.write_all(request.as_ref()));
    rest(&client)
}

#[track_caller]
fn assert_status(answer: &str, status: u16) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status} was due, and came: {answer:?}");
}

/// A server for one connection; its thread ends with what `talk` returns.
fn server<T: Send + 'static>(talk: impl FnOnce(TcpStream) -> T + Send + 'static) -> (u16, JoinHandle<T>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        talk(stream)
    });
    (port, thread)
}

/// Reads until what arrived ends with `end`.
fn read_until(mut stream: &TcpStream, end: &str) -> String {
    let mut all = Vec::new();
    let mut byte = [0];
    while !all.ends_with(end.as_bytes()) {
        stream.read_exact(&mut byte).unwrap();
        all.push(byte[0]);
    }
    String::from_utf8(all).unwrap()
}

/// A client with a tunnel to `port`.
fn tunnel(proxy: SocketAddr, port: u16) -> TcpStream {
    let mut client = dial(proxy);
    client.write_all(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    assert_status(&read_until(&client, "\r\n\r\n"), 200);
    client
}

/// A listener that wants nobody to come.
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
        assert_eq!(self.0.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "somebody came");
    }
}

#[test]
fn a_tunnel_carries_both_ways_and_passes_on_the_end_of_each_half() {
    let (_proxy, address) = open();
    let (port, server) = server(|mut stream| {
        let heard = rest(&stream);
        stream.write_all(b"heard: ").unwrap();
        stream.write_all(heard.as_bytes()).unwrap();
    });
    let mut client = dial(address);
    // What is sent before the tunnel stands belongs into it.
    client.write_all(format!("CONNECT localhost:{port} HTTP/1.1\r\n\r\nearly, ").as_bytes()).unwrap();
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
    let sent: Vec<u8> = (0..4_u32 << 20).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let (mut writer, data) = (client.try_clone().unwrap(), sent.clone());
    let writing = thread::spawn(move || {
        writer.write_all(&data).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    (&client).read_to_end(&mut got).unwrap();
    writing.join().unwrap();
    assert!(got == sent, "{} bytes of {} came back, or others", got.len(), sent.len());
}

#[test]
fn a_plain_request_reaches_the_server_in_its_own_form_and_alone() {
    let (_proxy, address) = open();
    let (port, server) = server(|mut stream| {
        let head = read_until(&stream, "\r\n\r\n");
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        head + &rest(&stream)
    });
    let request = format!(
        "GET http://localhost:{port}/a?b HTTP/1.1\r\nHost: other\r\nProxy-Connection: keep-alive\r\nA: b\r\n\r\n\
         GET http://localhost:{port}/second HTTP/1.1\r\n\r\n"
    );
    assert_eq!(ask(address, request), "HTTP/1.1 200 OK\r\n\r\nhello");
    let heard = server.join().unwrap();
    assert_eq!(heard, format!("GET /a?b HTTP/1.1\r\nHost: localhost:{port}\r\nA: b\r\nConnection: close\r\n\r\n"));
}

#[test]
fn a_body_is_passed_on_as_it_is_and_nothing_behind_it() {
    let chunks = "3;a=b\r\nabc\r\n0\r\nT: u\r\n\r\n";
    for (header, body) in [("Content-Length: 5", "a\0\r\nb"), ("Transfer-Encoding: CHUNKED", chunks)] {
        let (_proxy, address) = open();
        let (port, server) = server(move |mut stream| {
            read_until(&stream, "\r\n\r\n");
            let mut heard = vec![0; body.len()];
            stream.read_exact(&mut heard).unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            heard.extend_from_slice(rest(&stream).as_bytes());
            heard
        });
        let mut client = dial(address);
        client.write_all(format!("PUT http://127.0.0.1:{port}/ HTTP/1.1\r\n{header}\r\n\r\n").as_bytes()).unwrap();
        client.write_all(body.as_bytes()).unwrap();
        drop(client.write_all(b"GET http://127.0.0.1/ HTTP/1.1\r\n\r\n"));
        assert_status(&rest(&client), 204);
        assert_eq!(server.join().unwrap(), body.as_bytes(), "{header}");
    }
}

#[test]
fn an_answer_that_comes_before_the_body_has_ended_arrives() {
    let (_proxy, address) = open();
    let (port, server) = server(|mut stream| {
        read_until(&stream, "\r\n\r\n");
        stream.write_all(b"HTTP/1.1 413 Content Too Large\r\n\r\n").unwrap();
    });
    let head = format!("PUT http://127.0.0.1:{port}/ HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n");
    assert_status(&ask(address, [head.into_bytes(), vec![b'x'; 1 << 20]].concat()), 413);
    server.join().unwrap();
}

#[test]
fn a_body_that_breaks_off_or_is_malformed_is_the_clients_fault() {
    let bad = [
        "Content-Length: 10\r\n\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
    ];
    for body in bad {
        let (_proxy, address) = open();
        // A body that is wrong from the start gets no further than the proxy; then nobody comes here.
        let (port, _server) = server(|stream| rest(&stream));
        let mut client = dial(address);
        client.write_all(format!("PUT http://127.0.0.1:{port}/ HTTP/1.1\r\n{body}").as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_status(&rest(&client), 400);
    }
}

#[test]
fn a_chunk_that_goes_bad_later_ends_the_request() {
    let (_proxy, address) = open();
    let (arrived, has_arrived) = mpsc::channel();
    let (port, server) = server(move |stream| {
        read_until(&stream, "3\r\nabc\r\n");
        arrived.send(()).unwrap();
        rest(&stream)
    });
    let mut client = dial(address);
    let head = format!("PUT http://127.0.0.1:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    client.write_all(head.as_bytes()).unwrap();
    has_arrived.recv_timeout(WAIT).unwrap();
    client.write_all(b"0\n\nGET /smuggled HTTP/1.1\r\n\r\n").unwrap();
    assert_status(&rest(&client), 400);
    assert_eq!(server.join().unwrap(), "");
}

#[test]
fn what_the_guard_refuses_is_never_knocked_at_and_the_answer_names_the_setting() {
    let (untouched, port) = Untouched::new();
    let lookup = |name: &str, port| match name {
        "mixed.test" => Ok(vec![SocketAddr::from(([8, 8, 8, 8], port)), SocketAddr::from(([127, 0, 0, 1], port))]),
        _ => Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]),
    };
    let (_proxy, address) = start(Guard::new(false).with_lookup(lookup), LIMITS);
    let hosts = [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "localhost",
        "localhost.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "evil.test",
        "mixed.test",
    ];
    for host in hosts {
        for request in [format!("CONNECT {host}:{port}"), format!("GET http://{host}:{port}/")] {
            let answer = ask(address, format!("{request} HTTP/1.1\r\n\r\n"));
            assert_status(&answer, 403);
            assert!(answer.ends_with("tools.web.fetch.allow_private = true would allow it\n"), "{answer}");
            assert!(answer.contains(&format!("the connection to {host}:{port} was refused: ")), "{answer}");
        }
    }
    let answer = ask(address, "CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n");
    assert_status(&answer, 403);
    assert!(answer.ends_with("no setting allows it\n"), "{answer}");
    untouched.check();
}

#[test]
fn a_name_that_changes_its_mind_is_asked_once() {
    let asked = Arc::new(AtomicUsize::new(0));
    let (untouched, port) = Untouched::new();
    let judged = TcpListener::bind(("127.0.0.2", port)).unwrap();
    let count = asked.clone();
    let guard = Guard::new(true).with_lookup(move |_, port| {
        let last = if count.fetch_add(1, Ordering::SeqCst) == 0 { 2 } else { 1 };
        Ok(vec![SocketAddr::from(([127, 0, 0, last], port))])
    });
    let (_proxy, address) = start(guard, LIMITS);
    let client = dial(address);
    (&client).write_all(format!("CONNECT rebind.test:{port} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
    assert_status(&read_until(&client, "\r\n\r\n"), 200);
    drop(judged.accept().unwrap());
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    untouched.check();
}

#[test]
fn requests_that_can_be_misread_go_nowhere() {
    let (untouched, port) = Untouched::new();
    let (_proxy, address) = open();
    let host = format!("127.0.0.1:{port}");
    let requests = [
        format!("POST http://{host}/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("POST http://{host}/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        format!("POST http://{host}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n\r\n"),
        format!("POST http://{host}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\nX\n0\n\n"),
        format!("GET http://{host}/ HTTP/1.1\n\n"),
        format!("GET http://{host}/ HTTP/1.1\r\nA: b\n\r\n\r\n"),
        format!("GET http://{host}/ HTTP/1.1\r\nA: b\r\r\n\r\n"),
        format!("GET http://{host}/ HTTP/1.1\r\nA: b\r\n c\r\n\r\n"),
        format!("GET http://{host}/ HTTP/1.1\r\nA : b\r\n\r\n"),
        format!("GET http://example.test@{host}/ HTTP/1.1\r\n\r\n"),
        format!("GET http://{host}#@example.test/ HTTP/1.1\r\n\r\n"),
        format!("GET http://{host}\\@example.test/ HTTP/1.1\r\n\r\n"),
        format!("GET https://{host}/ HTTP/1.1\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("CONNECT x@{host} HTTP/1.1\r\n\r\n"),
        format!("CONNECT {host} HTTP/1.1\r\nContent-Length: 4\r\n\r\nabcd"),
        "\r\n\r\n".to_owned(),
        "\0\r\n\r\n".to_owned(),
        "\x16\x03\x01\x02\0\x01\0\x01\r\n\r\n".to_owned(),
    ];
    for request in requests {
        let answer = ask(address, &request);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{request:?}: {answer:?}");
    }
    untouched.check();
}

#[test]
fn what_cannot_be_reached_or_does_not_answer_is_a_bad_gateway() {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let (_proxy, address) = start(Guard::new(true).with_lookup(|_, _| Err(io::Error::other("no such name"))), LIMITS);
    assert_status(&ask(address, format!("CONNECT 127.0.0.1:{closed} HTTP/1.1\r\n\r\n")), 502);
    assert_status(&ask(address, format!("GET http://127.0.0.1:{closed}/ HTTP/1.1\r\n\r\n")), 502);
    assert_status(&ask(address, "GET http://nothing.test/ HTTP/1.1\r\n\r\n"), 502);
    let (port, _server) = server(|stream| read_until(&stream, "\r\n\r\n"));
    assert_status(&ask(address, format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n")), 502);
}

#[test]
fn a_head_of_ten_megabytes_is_refused_at_sixteen_kilobytes() {
    let (_proxy, address) = open();
    let flood = [b"GET http://127.0.0.1/ HTTP/1.1\r\nA: ".to_vec(), vec![b'a'; 10 << 20]].concat();
    assert_status(&ask(address, flood), 431);
    let many = "A: b\r\n".repeat(3000);
    assert_status(&ask(address, format!("GET http://127.0.0.1/ HTTP/1.1\r\n{many}\r\n")), 431);
}

#[test]
fn who_dawdles_is_sent_away() {
    let limits = Limits { patience: Duration::from_millis(200), ..LIMITS };
    let (_proxy, address) = start(Guard::new(true), limits);
    assert_status(&ask(address, ""), 408);
    assert_status(&ask(address, "GET http://127.0.0.1/ HTTP/1.1\r\n"), 408);
    // Each byte comes in good time, and the whole does not.
    let mut client = dial(address);
    client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut piece = [0; 4];
    let n = loop {
        client.write_all(b"G").unwrap();
        match client.read(&mut piece) {
            Err(e) if is_not_now(&e) => {}
            other => break other.unwrap(),
        }
    };
    assert_eq!(&piece[..n], b"HTTP");
}

#[test]
fn a_tunnel_at_rest_is_closed() {
    let limits = Limits { idle: Duration::from_millis(100), ..LIMITS };
    let (_proxy, address) = start(Guard::new(true), limits);
    let (port, server) = server(|stream| rest(&stream));
    assert_eq!(rest(&tunnel(address, port)), "");
    assert_eq!(server.join().unwrap(), "");
}

#[test]
fn a_server_that_keeps_silent_is_given_up() {
    let limits = Limits { idle: Duration::from_millis(100), ..LIMITS };
    let (_proxy, address) = start(Guard::new(true), limits);
    let (port, _server) = server(|stream| rest(&stream));
    assert_status(&ask(address, format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n")), 502);
}

#[test]
fn one_too_many_is_turned_away_until_another_leaves() {
    let (_proxy, address) = start(Guard::new(true), Limits { connections: 2, ..LIMITS });
    let (port_a, _a) = server(|stream| rest(&stream));
    let (port_b, _b) = server(|stream| rest(&stream));
    let (port_c, _c) = server(|stream| rest(&stream));
    let first = tunnel(address, port_a);
    let _second = tunnel(address, port_b);
    assert_status(&ask(address, ""), 503);
    drop(first);
    // The place is free a moment after the client has gone.
    let until = Instant::now() + WAIT;
    let request = format!("CONNECT 127.0.0.1:{port_c} HTTP/1.1\r\n\r\n");
    loop {
        let mut client = dial(address);
        drop(client.write_all(request.as_bytes()));
        let mut status = [0; 12];
        let read = client.read_exact(&mut status);
        if read.is_ok() && status.ends_with(b"200") {
            break;
        }
        assert!(Instant::now() < until, "no place came free");
        thread::yield_now();
    }
}

/// A guard that is held by everything the proxy runs, and what tells how many hold it.
fn counted() -> (Guard, Arc<()>) {
    let token = Arc::new(());
    let held = token.clone();
    let guard = Guard::new(true).with_lookup(move |_, port| {
        let _ = &held;
        Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
    });
    (guard, token)
}

#[test]
fn dropping_the_proxy_ends_everything_it_has() {
    let (guard, token) = counted();
    let (proxy, address) = start(guard, LIMITS);

    let (port, quiet) = server(|stream| rest(&stream));
    let resting = tunnel(address, port);

    // Nobody reads what this server says, so the proxy is left with bytes that it cannot write.
    let (stuck, is_stuck) = mpsc::channel();
    let (port, flood) = server(move |mut stream| {
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
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

    let (asked, is_asked) = mpsc::channel();
    let (port, slow) = server(move |stream| {
        read_until(&stream, "\r\n\r\n");
        asked.send(()).unwrap();
        rest(&stream)
    });
    let waiting = dial(address);
    (&waiting).write_all(format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n").as_bytes()).unwrap();

    is_asked.recv_timeout(WAIT).unwrap();

    let half = dial(address);
    (&half).write_all(b"GET http://127.0.0.1/ HT").unwrap();
    let mute = dial(address);

    let began = Instant::now();
    drop(proxy);
    assert!(began.elapsed() < Duration::from_secs(1), "it took {:?}", began.elapsed());
    assert_eq!(Arc::strong_count(&token), 1, "a thread is left");
    for client in [&resting, &waiting, &half, &mute] {
        assert_eq!(rest(client), "");
    }
    rest(&deaf);
    assert_eq!(quiet.join().unwrap(), "");
    assert_eq!(slow.join().unwrap(), "");
    assert!(!matches!(flood.join().unwrap(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_look_up_that_hangs_holds_up_nobody() {
    let (untouched, port) = Untouched::new();
    let (asked, is_asked) = mpsc::channel();
    let (answer, answered) = mpsc::channel::<()>();
    let answered = std::sync::Mutex::new(answered);
    let token = Arc::new(());
    let held = token.clone();
    let guard = Guard::new(true).with_lookup(move |_, port| {
        let _ = &held;
        asked.send(()).unwrap();
        // The end of the test is the answer.
        assert!(answered.lock().unwrap().recv().is_err());
        Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
    });
    let limits = Limits { connections: 1, connect: Duration::from_millis(100), ..LIMITS };
    let (proxy, address) = start(guard, limits);
    assert_status(&ask(address, format!("CONNECT slow.test:{port} HTTP/1.1\r\n\r\n")), 502);
    is_asked.recv_timeout(WAIT).unwrap();
    // The client has gone, the look-up has not: it keeps the place, so there cannot be ever more of them.
    assert_status(&ask(address, ""), 503);
    let began = Instant::now();
    drop(proxy);
    assert!(began.elapsed() < Duration::from_secs(1), "it took {:?}", began.elapsed());
    // Late, it finds the proxy gone and connects to nothing.
    drop(answer);
    let until = Instant::now() + WAIT;
    while Arc::strong_count(&token) > 1 {
        assert!(Instant::now() < until, "the look-up's thread is left");
        thread::yield_now();
    }
    untouched.check();
}
