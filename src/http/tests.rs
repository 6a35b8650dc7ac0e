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
