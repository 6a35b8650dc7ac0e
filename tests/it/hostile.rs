//! What strangers send to the HTTP endpoint: each request is refused or cut off, and bantam goes on.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use std::{env, fs, thread};

use serde_json::json;

use crate::door::{Door, address, exchange, post, settings};
use crate::harness::{Home, merged};
use crate::model::{Model, Reply};
use crate::rng::Rng;
use crate::smuggling;

/// What is held in memory, in KiB.
fn memory(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.unwrap().split_whitespace().nth(1);
    number.unwrap().parse().unwrap()
}

/// `BANTAM_FUZZ_HEADS` says how many, and `BANTAM_FUZZ_SEED` which.
#[test]
fn whatever_is_smuggled_is_refused() {
    const AT_ONCE: usize = 4;
    let number = |name: &str| env::var(name).ok().and_then(|value| value.parse().ok());
    let count = number("BANTAM_FUZZ_HEADS").unwrap_or(400);
    let seed = number("BANTAM_FUZZ_SEED").unwrap_or(0x5eed);
    let model = Model::answering(|_, _| Reply::text("It works."));
    let home = Home::with(&merged(model.config(), &settings()));
    let gateway = home.bantam().arg("gateway").spawn();
    let door = Door {
        address: address(&gateway.stderr_line("http://127.0.0.1:")),
    };
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

/// The status of the answer to these bytes and to no more.
fn cut_off(stream: &TcpStream, bytes: &[u8]) -> u16 {
    let mut stream = stream.try_clone().unwrap();
    drop(stream.write_all(bytes));
    drop(stream.shutdown(std::net::Shutdown::Write));
    exchange(stream, b"").status
}

#[test]
fn a_connection_carries_one_request() {
    let model = Model::answering(|_, _| Reply::text("once"));
    let home = Home::with(&merged(model.config(), &settings()));
    let gateway = home.bantam().arg("gateway").spawn();
    let door = Door {
        address: address(&gateway.stderr_line("http://127.0.0.1:")),
    };
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
fn clients_that_say_nothing_keep_nobody_out() {
    let model = Model::answering(|_, _| Reply::text("heard"));
    let home = Home::with(&merged(model.config(), &settings()));
    let gateway = home.bantam().arg("gateway").spawn();
    let door = Door {
        address: address(&gateway.stderr_line("http://127.0.0.1:")),
    };
    let stranger = IpAddr::from([127, 0, 0, 9]);
    let connect = |_| {
        let mut stream = door.connect_from(stranger);
        drop(stream.write_all(b"P"));
        stream
    };
    let mut silent: Vec<TcpStream> = (0..64).map(connect).collect();
    assert_eq!(door.ask("hi").is(200).text(), "heard");
    // The first ones made room before their time was over, at which they are told so; an error is a reset.
    assert_eq!(silent[0].read(&mut [0]).unwrap_or(0), 0);
    // Of those that come back, few may stay, and a question does not wait.
    silent.extend((0..64).map(connect));
    assert_eq!(door.ask("hi").is(200).text(), "heard");
}

#[test]
fn guessing_side_by_side_is_no_faster_and_keeps_no_other_address_out() {
    let model = Model::answering(|_, _| Reply::text("heard"));
    let home = Home::with(&merged(model.config(), &settings()));
    let gateway = home.bantam().arg("gateway").spawn();
    let door = Door {
        address: address(&gateway.stderr_line("http://127.0.0.1:")),
    };
    let stranger = IpAddr::from([127, 0, 0, 9]);
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    let wrong = post(&body, &["Authorization: Bearer wrong"]);
    let started = Instant::now();
    thread::scope(|scope| {
        let guesses: Vec<_> = (0..40)
            .map(|_| scope.spawn(|| exchange(door.connect_from(stranger), wrong.as_bytes()).status))
            .collect();
        assert_eq!(door.ask("hi").is(200).text(), "heard");
        let answers: Vec<u16> = guesses
            .into_iter()
            .map(|guess| guess.join().unwrap())
            .collect();
        assert!(
            answers.iter().all(|status| matches!(status, 401 | 429 | 0)),
            "{answers:?}"
        );
        // Five are told at once, and four every two seconds: those that waited when the last was answered are among them.
        let looked_at = answers.iter().filter(|status| **status == 401).count();
        let waits = usize::try_from(started.elapsed().as_secs() / 2).unwrap();
        assert!(looked_at <= 5 + 4 * waits, "{answers:?}");
    });
}
