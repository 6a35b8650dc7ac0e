//! Failing connections, invalid heads, and redirects.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::{answering, asked_at, fault, server};
use crate::harness::Run;
use crate::model::{Model, Reply};

/// Asks a server that answers every request with these bytes.
#[track_caller]
fn told(number: u8, what: &str, bytes: &'static [u8]) -> Run {
    println!("fault {number}: {what}");
    let address = server(move |stream| answering(&stream, bytes));
    let (home, run) = asked_at(
        &format!("http://{address}/v1"),
        &json!({ "model_list": [ { "request_timeout": 5 } ] }),
    );
    assert!(
        run.took < Duration::from_secs(50),
        "{what}: took {:?}",
        run.took
    );
    assert_eq!(home.session("cli_default").roles()[..1], ["user"], "{what}");
    run
}

#[test]
fn a_host_that_cannot_be_reached_exits_5() {
    // A refused connection.
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let (home, run) = asked_at(&format!("http://{nobody}/v1"), &json!({}));
    run.fails(5).prints("").says("the connection was refused");
    assert_eq!(home.session("cli_default").turns(), ["error"]);

    // A host that takes no connection: its queue is full.
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let address = full.local_addr().unwrap();
    let _waiting: Vec<_> = (0..4)
        .map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(200)))
        .collect();
    let (_, run) = asked_at(
        &format!("http://{address}/v1"),
        &json!({ "model_list": [ { "request_timeout": 1 } ] }),
    );
    run.fails(5)
        .prints("")
        .says("no answer for 1 s")
        .says("request_timeout");
    assert!(run.took < Duration::from_secs(50), "{:?}", run.took);

    // A name that does not exist.
    let (_, run) = asked_at("https://model.invalid/v1", &json!({}));
    run.fails(5).prints("").says("unknown host name");

    // A name with two addresses, of which the first has no server.
    let model = Model::scripted([Reply::text("Hello.")]);
    let (_, run) = asked_at(&model.base().replace("127.0.0.1", "localhost"), &json!({}));
    run.answers("Hello.\n");
}

#[test]
fn a_handshake_that_fails_is_told() {
    // A server that does not speak TLS.
    let plain = server(|stream| drop((&stream).write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")));
    let (_, run) = asked_at(&format!("https://{plain}/v1"), &json!({}));
    run.fails(3)
        .prints("")
        .says("does not speak TLS")
        .says("http://");
    // A reset in the handshake: unread bytes at the end of a connection reset it.
    let reset = server(|stream| drop(stream.peek(&mut [0; 16])));
    let (_, run) = asked_at(&format!("https://{reset}/v1"), &json!({}));
    run.fails(5).prints("");
}

#[test]
fn a_head_that_is_no_answer_ends_in_time() {
    // A head that comes byte by byte.
    let slow = server(|stream| {
        answering(&stream, b"HTTP/1.1 200 OK\r\nX-Slow: ");
        while (&stream).write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let (_, run) = asked_at(
        &format!("http://{slow}/v1"),
        &json!({ "model_list": [ { "request_timeout": 1 } ] }),
    );
    run.fails(5).prints("").says("no answer for 1 s");

    // A head of 10 MB.
    let large = server(|stream| {
        answering(
            &stream,
            format!(
                "HTTP/1.1 200 OK\r\nX-Large: {}\r\n\r\n",
                "x".repeat(10 << 20)
            )
            .as_bytes(),
        );
    });
    let (_, run) = asked_at(&format!("http://{large}/v1"), &json!({}));
    run.fails(5).prints("");

    // A million times 100 Continue.
    let endless = server(|stream| {
        answering(&stream, b"");
        let many = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
        (0..1000)
            .take_while(|_| (&stream).write_all(&many).is_ok())
            .count();
        drop(stream.peek(&mut [0; 1]));
    });
    let (_, run) = asked_at(
        &format!("http://{endless}/v1"),
        &json!({ "model_list": [ { "request_timeout": 2 } ] }),
    );
    run.fails(5).prints("");
    assert!(run.took < Duration::from_secs(50), "{:?}", run.took);

    told(12, "a status line that is none", b"HTTQ/9 fine\r\n\r\n")
        .fails(5)
        .prints("");
    let conflicting =
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 500\r\nConnection: close\r\n\r\n{\"choices\":[]}";
    let run = told(13, "two lengths", conflicting);
    assert_eq!(run.code, Some(5), "{}", run.stderr);
    let both = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    let run = told(13, "a length and chunks", both);
    assert_eq!(run.code, Some(5), "{}", run.stderr);
    told(14, "204 and nothing", b"HTTP/1.1 204 No Content\r\n\r\n")
        .fails(5)
        .prints("");
}

#[test]
fn a_redirect_is_not_followed_with_the_key() {
    let other = Model::never_asked();
    let to = |location: &str| Reply::json(302, &Value::Null).header("Location", location);
    fault(
        26,
        "a redirect to another host",
        [to(&format!("{}/chat/completions", other.base()))],
    )
    .fails(1, "302")
    .run();
    fault(
        27,
        "a redirect away from https",
        [to("http://127.0.0.1:9/v1")],
    )
    .fails(1, "302")
    .run();
    fault(28, "a redirect to a file", [to("file:///etc/passwd")])
        .fails(1, "302")
        .run();
    fault(28, "a redirect to gopher", [to("gopher://127.0.0.1/")])
        .fails(1, "302")
        .run();
    let seen = fault(29, "a redirect to itself", [to("/v1/chat/completions")])
        .fails(1, "302")
        .run();
    assert_eq!(seen.requests.len(), 1);
}

#[test]
fn an_address_that_can_never_work_exits_3() {
    // A certificate for another host: tests/programs/tls.rs.
    // One that has expired: the same; http::errors has the clock that stands in 1970.
    for base in [
        "http://exa mple/v1",
        "http://:80/v1",
        "http://127.0.0.1:99999/v1",
        "127.0.0.1/v1",
        "ftp://h/v1",
        "http://models.example.com/v1",
        "http://1.1.1.1/v1",
    ] {
        let (_, run) = asked_at(base, &json!({}));
        run.fails(3).prints("").says("api_base");
    }
}
