//! Tests of the client with a local server.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::thread;

use super::*;

#[test]
fn a_slow_line_is_not_taken_for_silence() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let most = 24 << 20;
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut read, mut piece) = (0, vec![0; 256 << 10]);
        while read < most {
            read += stream.read(&mut piece).unwrap();
            // Simulates a slow line.
            thread::sleep(Duration::from_millis(50));
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .unwrap();
    });
    let body = Body::json(&"x".repeat(most).into());
    let outgoing = Outgoing {
        url,
        headers: Vec::new(),
        body: Some(body),
    };
    let started = Instant::now();
    let mut exchange = Client::new(Settings::default())
        .send(outgoing, &Cancel::new(None))
        .unwrap();
    // Longer than scheduling delays of a busy machine, and shorter than the whole upload.
    let patience = Duration::from_secs(4);
    assert_eq!(exchange.head(patience).unwrap().status, 200);
    assert_eq!(exchange.body(patience).unwrap(), Some(b"ok".to_vec()));
    assert!(
        started.elapsed() > patience,
        "{:?}: the line was not slow",
        started.elapsed()
    );
    server.join().unwrap();
}

#[test]
fn an_address_is_shown_without_password_and_query() {
    assert_eq!(
        authority("https://me:hush@h.example:8443/hush/v1?hush"),
        "h.example:8443"
    );
    assert_eq!(authority("https://h.example?hush"), "h.example");
    assert_eq!(authority("http://[::1]:8080/v1"), "[::1]:8080");
    assert_eq!(authority("h/x"), "h");
}

/// A redirect, an empty answer and a status need no decoding.
#[test]
fn an_encoding_is_refused_where_its_body_is_read() {
    let with = |encoding: &str| {
        format!("200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: 2\r\n\r\nok")
    };
    let redirect = with("gzip").replace("200 OK", "302 Found\r\nLocation: /x");
    let empty = "200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n";
    let nothing = "204 No Content\r\nContent-Encoding: br\r\n\r\n";
    for (asking, answer, body) in [
        ("accept", redirect, None),
        ("accept", empty.to_owned(), Some("")),
        ("accept", nothing.to_owned(), Some("")),
        ("accept", with("utf-8"), Some("ok")),
        ("accept", with("X-GZip"), None),
        ("accept", with("identity, zstd"), None),
        ("Accept-Encoding", with("x-gzip"), Some("ok")),
        ("Accept-Encoding", with("deflate"), None),
    ] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shown = answer.clone();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let read = stream.read(&mut [0; 4096]).unwrap();
            write!(stream, "HTTP/1.1 {answer}").unwrap();
            read
        });
        let outgoing = Outgoing {
            url,
            headers: vec![(asking.to_owned(), Secret::new("gzip"))],
            body: None,
        };
        let client = Client::new(Settings::default());
        let mut exchange = client.send(outgoing, &Cancel::new(None)).unwrap();
        let patience = Duration::from_secs(30);
        exchange.head(patience).unwrap();
        let read = exchange.whole_body(9, Instant::now() + patience);
        let read = read.ok().map(|read| String::from_utf8(read).unwrap());
        assert_eq!(read.as_deref(), body, "{asking}: {shown}");
        assert!(server.join().unwrap() > 0);
    }
}
