//! Requests of real clients with random mutations: each parsed request respects the limits, and parses equally in its plain
//! form.

use std::net::{Shutdown, TcpListener};

use super::super::chat::ChatRequest;
use super::*;
use crate::rng::fuzz;

const BODY: &str = r#"{"model":"bantam","messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"}}]}],"stream":true,"temperature":0.5,"max_tokens":5,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"user":"k"}"#;

/// Valid HTTP requests.
fn requests() -> Vec<Vec<u8>> {
    let head = "POST /v1/chat/completions?x=y HTTP/1.1\r\nHost: localhost:7475\r\nAuthorization: Bearer a-token-of-tests\r\nContent-Type: application/json\r\n";
    let all = [
        format!("{head}Content-Length: {}\r\n\r\n{BODY}", BODY.len()),
        format!(
            "{head}X-Session: kitchen\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{{}}"
        ),
        "GET /v1/models HTTP/1.1\r\nHost: [::1]:7475\r\nOrigin: null\r\n\r\n".to_owned(),
        "OPTIONS /v1/chat/completions HTTP/1.0\r\nAccess-Control-Request-Method: POST\r\n\r\n"
            .to_owned(),
    ];
    all.map(String::into_bytes).into()
}

/// Sequences that are likely to break a parser.
const PIECES: &str = "\r¦\n¦\r\n¦\r\n\r\n¦\0¦\x0b¦\x0c¦\t¦ ¦:¦;¦,¦=¦\"¦+¦-¦0x¦0¦f¦ffffffffffffffff¦18446744073709551615¦\u{a0}¦%00¦..¦HTTP/1.1¦\
    Content-Length: 1\r\n¦Transfer-Encoding: chunked\r\n¦Transfer-Encoding : chunked\r\n¦Host: a\r\n¦\r\n folded¦[¦{¦}¦null¦\
    1e999";

/// Writes the head in the plainest form.
fn plain(head: &Head) -> Vec<u8> {
    let version = u8::from(!head.is_http_1_0);
    let mut text = format!("{} {} HTTP/1.{version}\r\n", head.method, head.path);
    for (name, value) in &head.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.into_bytes()
}

#[test]
fn a_spoilt_request_is_read_in_one_way_and_in_bounds() {
    // A read after the end of the input detects the closed connection.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let (mut runs, mut heads, mut asks) = (0_u64, 0_u64, 0_u64);
    fuzz(&requests(), PIECES, |request, _| {
        runs += 1;
        let mut reader = Reader::new(&server);
        reader.ahead = request.to_vec();
        let Ok(head) = reader.head() else {
            return;
        };
        heads += 1;
        let again = parse(&plain(&head)).unwrap_or_else(|e| panic!("{}", e.why));
        let of = |head: &Head| (head.method.clone(), head.path.clone(), head.headers.clone());
        assert_eq!(of(&again), of(&head));
        assert_eq!(again.length, head.length);
        let count = |name: &str| head.headers.iter().filter(|(own, _)| own == name).count();
        assert_eq!(count("transfer-encoding"), 0);
        assert!(count("content-length") == 1 || head.length == 0);
        // The `100 Continue` response would fill the socket's buffer, because the client does not read.
        if head.header("expect").is_some() {
            return;
        }
        let Ok(body) = reader.body(&head) else {
            return;
        };
        assert!(body.len() <= request.len().min(MAX_BODY));
        asks += u64::from(ChatRequest::parse(&body, head.header("x-session")).is_ok());
    });
    assert!(asks > 0 && heads < runs, "{runs} {heads} {asks}");
}
