//! Requests of real clients with random mutations: each parsed request respects the limits, and parses equally in its plain
//! form.

use std::env;
use std::net::{Shutdown, TcpListener};

use super::super::chat::ChatRequest;
use super::*;
use crate::rng::Rng;

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

/// Mutates a request in a few places.
fn mutated(requests: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut below = |limit: usize| usize::try_from(rng.below(limit.max(1) as u64)).unwrap();
    let mut request = requests[below(requests.len())].clone();
    for _ in 0..=below(6) {
        let (from, length) = (below(request.len()), below(24));
        let range = from..(from + length).min(request.len());
        match below(6) {
            0 => {
                if let Some(byte) = request.get_mut(from) {
                    *byte ^= 1 << (length % 8);
                }
            }
            1 => drop(request.drain(range)),
            2 | 3 => {
                let pieces: Vec<&str> = PIECES.split('¦').collect();
                let piece = pieces[below(pieces.len())].repeat(1 + below(2));
                drop(request.splice(from..from, piece.into_bytes()));
            }
            4 => {
                let copy = request[range].to_vec();
                let to = below(request.len());
                drop(request.splice(to..to, copy));
            }
            _ => request.truncate(from.max(1)),
        }
    }
    request
}

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

/// Runs for `BANTAM_FUZZ_SECONDS` seconds with the seed `BANTAM_FUZZ_SEED`.
#[test]
fn a_spoilt_request_is_read_in_one_way_and_in_bounds() {
    let number = |name: &str| env::var(name).ok().and_then(|value| value.parse().ok());
    let seed = number("BANTAM_FUZZ_SEED").unwrap_or(0x5eed);
    let until = Instant::now() + Duration::from_secs(number("BANTAM_FUZZ_SECONDS").unwrap_or(2));
    // A read after the end of the input detects the closed connection.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let (requests, mut rng) = (requests(), Rng(seed));
    let (mut runs, mut heads, mut bodies, mut asks) = (0_u64, 0_u64, 0_u64, 0_u64);
    while Instant::now() < until {
        let state = rng.0;
        let request = mutated(&requests, &mut rng);
        let told = || format!("state {state:#x}: {}", request.escape_ascii());
        runs += 1;
        let mut reader = Reader::new(&server);
        reader.ahead.clone_from(&request);
        let Ok(head) = reader.head() else {
            continue;
        };
        heads += 1;
        let again = parse(&plain(&head)).unwrap_or_else(|e| panic!("{}: {}", e.why, told()));
        let of = |head: &Head| (head.method.clone(), head.path.clone(), head.headers.clone());
        assert_eq!(of(&again), of(&head), "{}", told());
        assert_eq!(again.length, head.length, "{}", told());
        let count = |name: &str| head.headers.iter().filter(|(own, _)| own == name).count();
        let is_framed = count("content-length") == 1;
        assert_eq!(count("transfer-encoding"), 0, "{}", told());
        assert!(is_framed || head.length == 0, "{}", told());
        // The `100 Continue` response would fill the socket's buffer, because the client does not read.
        if head.header("expect").is_some() {
            continue;
        }
        let Ok(body) = reader.body(&head) else {
            continue;
        };
        bodies += 1;
        assert!(body.len() <= request.len().min(MAX_BODY), "{}", told());
        asks += u64::from(ChatRequest::parse(&body, head.header("x-session")).is_ok());
    }
    println!("{runs} requests, {heads} heads, {bodies} bodies, {asks} questions");
    assert!(asks > 0 && heads < runs, "{runs} {heads} {bodies} {asks}");
}
