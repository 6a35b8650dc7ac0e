//! Requests of attackers to the HTTP endpoint: each is refused or cut off, and bantam continues.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::door::{Door, TOKEN, address, exchange, post, settings};
use crate::harness::{Home, Running};
use crate::marker::kib;
use crate::model::{Model, Reply};
use crate::rng::Rng;
use crate::smuggling;

/// Delay of the answer to a refused token.
const WRONG_TOKEN_DELAY: Duration = Duration::from_secs(1);

fn open(home: &Home) -> (Running<'_>, Door) {
    let gateway = home.bantam().arg("gateway").spawn();
    let address = address(&gateway.stderr_line("http://127.0.0.1:"));
    (gateway, Door { address })
}

/// Returns the memory of a process, in KiB.
fn memory(pid: i32) -> u64 {
    kib(pid, "VmRSS:")
}

/// Returns the most memory that a process has had, in KiB.
fn peak_memory(pid: i32) -> u64 {
    kib(pid, "VmHWM:")
}

/// Number of heads: `BANTAM_FUZZ_HEADS`; seed: `BANTAM_FUZZ_SEED`.
#[test]
fn smuggled_requests_are_refused() {
    const AT_ONCE: usize = 4;
    let number = |name: &str| env::var(name).ok().and_then(|value| value.parse().ok());
    let count = number("BANTAM_FUZZ_HEADS").unwrap_or(400);
    let seed = number("BANTAM_FUZZ_SEED").unwrap_or(0x5eed);
    let model = Model::answering(|_, _| Reply::text("It works."));
    let home = Home::asking(&model, &settings());
    let (gateway, door) = open(&home);
    let mut chance = Rng(seed);
    let requests: Vec<Vec<u8>> = (0..count)
        .map(|_| smuggling::request(&mut chance))
        .collect();
    let next = AtomicUsize::new(0);
    let refuse_all = || {
        thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let stream = door.connect();
                        let answer = cut_off(&stream, request);
                        let text = String::from_utf8_lossy(request);
                        let is_refused = matches!(answer, 0 | 400..500);
                        assert!(is_refused, "{answer}: {text:?}");
                    }
                });
            }
        });
    };
    refuse_all();
    assert_eq!(model.asked(), 0, "a request came through");
    let before = memory(gateway.pid());
    next.store(0, Ordering::Relaxed);
    refuse_all();
    let after = memory(gateway.pid());
    assert!(after < before + 2048, "{before} KiB before, {after} after");
    assert_eq!(door.ask("and now?").is(200).text(), "It works.");
    assert_eq!(model.asked(), 1);
}

/// Returns the status of the answer to these incomplete bytes.
fn cut_off(stream: &TcpStream, bytes: &[u8]) -> u16 {
    let mut stream = stream.try_clone().unwrap();
    drop(stream.write_all(bytes));
    drop(stream.shutdown(std::net::Shutdown::Write));
    exchange(stream, b"").status
}

#[test]
fn connection_carries_one_request() {
    let model = Model::answering(|_, _| Reply::text("once"));
    let home = Home::asking(&model, &settings());
    let (_gateway, door) = open(&home);
    let one = post(
        &json!({ "messages": [{ "role": "user", "content": "hi" }] }),
        &[],
    );
    let mut stream = door.connect();
    stream.write_all(one.repeat(3).as_bytes()).unwrap();
    let mut all = String::new();
    drop(stream.read_to_string(&mut all));
    assert_eq!(all.matches("HTTP/1.1 200").count(), 1, "{all}");
    assert_eq!(model.asked(), 1);
}

#[test]
fn idle_connections_do_not_block_others() {
    let model = Model::answering(|_, _| Reply::text("heard"));
    let home = Home::asking(&model, &settings());
    let (gateway, door) = open(&home);
    let is_over = AtomicBool::new(false);
    let answers: Vec<u16> = thread::scope(|scope| {
        for _ in 0..80 {
            // From the owner's own address, and reopened as soon as it is closed.
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let Ok(mut stream) = TcpStream::connect(&door.address) else {
                        continue;
                    };
                    drop(stream.write_all(b"P"));
                    drop(stream.read(&mut [0]));
                }
            });
        }
        let answers = (0..6).map(|_| door.ask("hi").status).collect();
        is_over.store(true, Ordering::SeqCst);
        gateway.signal(Signal::TERM);
        answers
    });
    assert_eq!(answers, [200; 6]);
    gateway.finish().exits(0);
}

/// A program with many requests connects first and sends later, and its machine may be busy in between.
#[test]
fn fifty_slow_connections_of_one_program_are_all_served() {
    let model = Model::answering(|_, _| Reply::text("heard"));
    let home = Home::asking(&model, &settings());
    let gateway = home.bantam().arg("gateway").spawn();
    let address = address(&gateway.stderr_line("http://127.0.0.1:"));
    let mut open: Vec<TcpStream> = (0..50)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    // They must remain open during this time.
    thread::sleep(Duration::from_millis(2500));
    let head = format!(
        "GET /v1/models HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    );
    for stream in &mut open {
        drop(stream.write_all(head.as_bytes()));
    }
    for stream in &mut open {
        let mut answer = String::new();
        drop(stream.read_to_string(&mut answer));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    }
    crate::bot::ends(gateway);
}

/// A turn takes several times the memory of its body, and a board has 256 MB.
#[test]
fn bodies_in_flight_are_limited() {
    let model = Model::answering(|_, _| Reply::text("heard"));
    let home = Home::asking(&model, &settings());
    let (gateway, door) = open(&home);
    let announce = || {
        let mut stream = door.connect();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n\
             Content-Type: application/json\r\nContent-Length: 8388608\r\nExpect: 100-continue\r\n\r\n",
            door.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let is_admitted = |stream: &mut TcpStream, wait: Duration| {
        stream.set_read_timeout(Some(wait)).unwrap();
        let mut piece = [0; 12];
        stream.read_exact(&mut piece).is_ok() && piece == *b"HTTP/1.1 100"
    };
    let long = Duration::from_secs(20);
    let [mut first, mut second] = [announce(), announce()];
    assert!(is_admitted(&mut first, long) && is_admitted(&mut second, long));
    let mut third = announce();
    assert!(!is_admitted(&mut third, Duration::from_millis(500)));
    drop(first);
    assert!(is_admitted(&mut third, long));
    drop((second, third));
    assert_eq!(door.ask("hi").status, 200);
    crate::bot::ends(gateway);
}

#[test]
fn wrong_tokens_do_not_block_valid_token() {
    let model = Model::answering(|_, _| Reply::text("heard"));
    let home = Home::asking(&model, &settings());
    let (_gateway, door) = open(&home);
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    let wrong = post(&body, &["Authorization: Bearer wrong"]);
    let guess = || {
        let started = Instant::now();
        let status = exchange(door.connect(), wrong.as_bytes()).status;
        (status, started.elapsed())
    };
    thread::scope(|scope| {
        let guesses: Vec<_> = (0..40).map(|_| scope.spawn(guess)).collect();
        for _ in 0..5 {
            assert_eq!(door.ask("hi").is(200).text(), "heard");
        }
        for guess in guesses {
            let (status, time) = guess.join().unwrap();
            let is_closed_for_a_newcomer = status == 0;
            assert!(is_closed_for_a_newcomer || status == 401 && time >= WRONG_TOKEN_DELAY);
        }
    });
}

/// A property of a schema takes over two kilobytes, so eight bodies within their limit of bytes filled a board.
#[test]
fn many_small_values_at_once_do_not_fill_the_memory() {
    let model = Model::answering(|_, _| Reply::text("heard"));
    let home = Home::asking(&model, &settings());
    let (gateway, door) = open(&home);
    let properties: serde_json::Map<String, Value> = (0..24_000)
        .map(|n| (format!("p{n:05}"), json!({ "a": 1 })))
        .collect();
    let schema = json!({ "type": "object", "properties": properties });
    let tools = json!([{ "type": "function", "function": { "name": "f", "parameters": schema } }]);
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "tools": tools });
    let statuses: Vec<u16> = thread::scope(|scope| {
        let asked: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| door.post(&body, &[]).status))
            .collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let is_clear = |status: &u16| matches!(status, 200 | 413 | 429);
    assert!(statuses.iter().all(is_clear), "{statuses:?}");
    let peak = peak_memory(gateway.pid());
    assert!(peak < 200 << 10, "{peak} KiB, {statuses:?}");
    assert_eq!(door.ask("hi").is(200).text(), "heard");
    let format: Vec<Value> = (0..30_000).map(|n| json!({ "a": n })).collect();
    let messages = [json!({ "role": "user", "content": "hi" })];
    let body = json!({ "messages": messages, "response_format": format });
    let refused = door.post(&body, &[]).is(413);
    assert!(refused.body.contains("values"), "{}", refused.body);
}
