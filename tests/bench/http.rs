//! Measures for `tests/bench/http` the HTTP endpoint compared with the terminal, its idle costs, and its behavior with twenty
//! realistic clients.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use serde_json::{Value, json};

#[allow(dead_code)]
mod process;
#[allow(dead_code)] // the tests use the rest of it
#[path = "../support/mod.rs"]
mod support;

use process::{command, field, given, is_flat, sample, samples, stop, threads};
use support::door::{Door, address, exchange, post, settings};
use support::harness::{Home, merged, until};
use support::model::{Model, Reply, Request};
use support::rng::Rng;

/// Number of questions of each kind. The kinds alternate, so that other load of the machine affects all equally.
const ROUNDS: usize = 100;
/// Maximum extra time of a question, compared with the terminal.
const MOST_LONGER: Duration = Duration::from_micros(1200);
/// Maximum idle memory of the endpoint, in KiB.
const MOST_IDLE: u64 = 200;
const IDLE: Duration = Duration::from_secs(60);

const CLIENTS: usize = 20;
/// Pause between two requests of a client.
const PACE: Duration = Duration::from_secs(2);
/// Interval between samples of the process.
const LOOKS: Duration = Duration::from_secs(10);
/// Number of questions after which a client starts a new conversation.
const LONG: usize = 60;

/// A gateway and its address.
struct Gateway {
    child: Child,
    door: Door,
    errors: PathBuf,
}

impl Gateway {
    fn start(bantam: &Path, home: &Home, serves: bool) -> Self {
        let errors = home.path("../stderr");
        let mut command = command(bantam, &home.path(""));
        command
            .arg("gateway")
            .stderr(fs::File::create(&errors).unwrap());
        let child = command.spawn().unwrap();
        let said = || fs::read_to_string(&errors).unwrap();
        // It reports its jobs first.
        let word = if serves { "/v1" } else { "scheduled jobs" };
        until("the gateway is up", || said().contains(word));
        let address = if serves {
            address(&said())
        } else {
            String::new()
        };
        Self {
            child,
            door: Door { address },
            errors,
        }
    }

    fn stop(mut self) {
        stop(&mut self.child);
    }
}

fn median<T: Ord + Copy>(mut values: Vec<T>) -> T {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Measures a question by each way, and the idle memory.
fn costs(bantam: &Path) -> bool {
    let model =
        Model::answering(|_, _| Reply::text("It has not rained for nine days.")).forgetful();
    let home = Home::with(&merged(model.config(), &settings()));
    let gateway = Gateway::start(bantam, &home, true);
    let (mut typed, mut asked) = (Vec::new(), Vec::new());
    let question = "Should I water the tomatoes?";
    for n in 0..=ROUNDS {
        let started = Instant::now();
        let session = format!("bench-{n}");
        let mut turn = command(bantam, &home.path(""));
        turn.args(["agent", "-s", &session, "-m", question]);
        assert!(turn.status().unwrap().success());
        typed.push(started.elapsed());
        let started = Instant::now();
        let body = json!({ "messages": [{ "role": "user", "content": question }] });
        let key = format!("X-Session: bench-{n}");
        gateway.door.post(&body, &[&key]).is(200);
        asked.push(started.elapsed());
    }
    gateway.stop();
    // The first question of each way is cold.
    let (typed, asked) = (median(typed.split_off(1)), median(asked.split_off(1)));
    println!(
        "a question, {ROUNDS} of each in turn: {typed:?} by the terminal, {asked:?} by the endpoint"
    );
    let quick = asked <= typed + MOST_LONGER;

    let mut held = Vec::new();
    for enabled in [false, true] {
        let jobs =
            json!({ "channels": { "http": { "enabled": enabled } }, "cron": { "enabled": true } });
        let home = Home::with(&merged(merged(model.config(), &settings()), &jobs));
        let gateway = Gateway::start(bantam, &home, enabled);
        let pid = gateway.child.id();
        // The start has finished by then.
        thread::sleep(Duration::from_secs(5));
        let before = switches(pid);
        thread::sleep(IDLE);
        let (sample, woken) = (sample(pid), switches(pid) - before);
        let name = if enabled { "with" } else { "without" };
        println!(
            "{name} the endpoint: {} KiB, {} of them in no file; {woken} wake-ups in {IDLE:?}",
            sample.rss, sample.anonymous
        );
        held.push((sample.rss, woken));
        gateway.stop();
    }
    // The gateway checks its files now and then; one such check may be counted or not.
    let idle = held[1].0 <= held[0].0 + MOST_IDLE && held[1].1 <= held[0].1 + 1;
    println!(
        "budget: at most {MOST_LONGER:?} longer, {MOST_IDLE} KiB more, no wake-up more: {}",
        if quick && idle { "kept" } else { "NOT KEPT" }
    );
    quick && idle
}

/// Returns how often the threads of a process have gone to sleep.
fn switches(pid: u32) -> u64 {
    let of = |thread| {
        field(
            &format!("/proc/{pid}/task/{thread}/status"),
            "voluntary_ctxt",
        )
    };
    threads(pid).into_iter().map(of).sum()
}

/// Outcomes of the requests.
#[derive(Default)]
struct Tally {
    counts: [AtomicUsize; Kind::ALL.len()],
    wrong: AtomicUsize,
}

/// Behavior of a client.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Asks in its stored conversation.
    Stored,
    Whole,
    Streamed,
    /// Hangs up in the middle of a stream.
    Cut,
    /// Reads a long answer slowly.
    Slow,
    WrongToken,
    Nonsense,
    /// Connects, sends half of a request, and waits.
    Silent,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Stored,
        Self::Whole,
        Self::Streamed,
        Self::Cut,
        Self::Slow,
        Self::WrongToken,
        Self::Nonsense,
        Self::Silent,
    ];

    fn drawn(chance: &mut Rng) -> Self {
        match chance.below(20) {
            0..=7 => Self::Stored,
            8..=10 => Self::Whole,
            11..=13 => Self::Streamed,
            14..=15 => Self::Cut,
            16 => Self::Slow,
            17 => Self::WrongToken,
            18 => Self::Nonsense,
            _ => Self::Silent,
        }
    }
}

/// Answers the last item, sometimes after a tool call, sometimes at length.
fn answer(request: &Request) -> Reply {
    let asked = request.last("user");
    let has_called = request.messages().last().unwrap()["role"] == "tool";
    if asked.contains("with a tool") && !has_called {
        return Reply::call("list_dir", &json!({ "path": "." }));
    }
    // The time precedes it.
    let item = asked
        .split_whitespace()
        .find(|word| word.starts_with("item-"));
    let item = item.unwrap_or_default();
    let length = if asked.contains("at length") { 4000 } else { 3 };
    Reply::text(&format!(
        "Noted: {item}. {}",
        "This is what there is to say. ".repeat(length)
    ))
}

struct Client<'a> {
    door: &'a Door,
    number: usize,
    chance: Rng,
    tally: &'a Tally,
    asked: usize,
    /// Questions of each stored conversation.
    stored: BTreeMap<String, Vec<String>>,
}

impl Client<'_> {
    fn run(mut self, until: Instant) -> BTreeMap<String, Vec<String>> {
        while Instant::now() < until {
            let started = Instant::now();
            let kind = Kind::drawn(&mut self.chance);
            if let Err(why) = self.act(kind) {
                println!("client {}: {kind:?}: {why}", self.number);
                self.tally.wrong.fetch_add(1, Ordering::Relaxed);
            }
            self.tally.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
            // Distributes the clients over time.
            let pace =
                PACE.mul_f64(0.5) + PACE / 1000 * u32::try_from(self.chance.below(1000)).unwrap();
            thread::sleep(pace.saturating_sub(started.elapsed()));
        }
        self.stored
    }

    fn act(&mut self, kind: Kind) -> Result<(), String> {
        self.asked += 1;
        let item = format!("item-{}-{}", self.number, self.asked);
        let tool = if self.chance.below(4) == 0 {
            "with a tool"
        } else {
            ""
        };
        let messages = |text: String| json!([{ "role": "user", "content": text }]);
        let plain = json!({ "messages": messages(format!("{item} {tool}")) });
        let streamed = json!({ "messages": messages(format!("{item} {tool}")), "stream": true });
        match kind {
            Kind::Stored => self.ask_stored(&item, &plain),
            Kind::Whole => is_noted(&self.door.post(&plain, &[]).body, &item),
            Kind::Streamed => {
                let answer = self.door.post(&streamed, &[]);
                if answer.status != 200 {
                    return Err(answer.body);
                }
                is_noted(&answer.streamed("content"), &item)
            }
            Kind::Cut => {
                let mut stream = self.door.connect();
                stream.write_all(post(&streamed, &[]).as_bytes()).unwrap();
                let length = usize::try_from(self.chance.below(600)).unwrap();
                drop(stream.read_exact(&mut vec![0; length]));
                drop(stream.shutdown(Shutdown::Both));
                Ok(())
            }
            Kind::Slow => {
                let long =
                    json!({ "messages": messages(format!("{item} at length")), "stream": true });
                let mut stream = self.door.connect();
                stream.write_all(post(&long, &[]).as_bytes()).unwrap();
                let mut all = Vec::new();
                let mut piece = [0; 8 << 10];
                while let Ok(read @ 1..) = stream.read(&mut piece) {
                    all.extend_from_slice(&piece[..read]);
                    thread::sleep(Duration::from_millis(50));
                }
                if all.ends_with(b"[DONE]\n\n\r\n0\r\n\r\n") {
                    Ok(())
                } else {
                    Err(format!("a stream of {} bytes has no end", all.len()))
                }
            }
            Kind::WrongToken => {
                let stream = self.door.connect();
                let answer = exchange(
                    stream,
                    post(&plain, &["Authorization: Bearer wrong"]).as_bytes(),
                );
                match answer.status {
                    0 | 401 => Ok(()),
                    status => Err(format!("{status}")),
                }
            }
            Kind::Nonsense => {
                let stream = self.door.connect();
                let length = usize::try_from(self.chance.below(4000)).unwrap();
                let nonsense: Vec<u8> = (0..length)
                    .map(|_| u8::try_from(self.chance.below(256)).unwrap())
                    .collect();
                drop(stream.shutdown(Shutdown::Read));
                drop(exchange(stream, &nonsense));
                Ok(())
            }
            Kind::Silent => {
                let mut stream = self.door.connect();
                drop(stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc"));
                thread::sleep(PACE / 1000 * u32::try_from(self.chance.below(3000)).unwrap());
                Ok(())
            }
        }
    }

    fn ask_stored(&mut self, item: &str, body: &Value) -> Result<(), String> {
        let key = format!("c{}-{}", self.number, self.asked / LONG);
        let answer = self.door.post(body, &[&format!("X-Session: {key}")]);
        is_noted(&answer.body, item)?;
        self.stored.entry(key).or_default().push(item.to_owned());
        Ok(())
    }
}

fn is_noted(text: &str, item: &str) -> Result<(), String> {
    if text.contains(&format!("Noted: {item}.")) {
        Ok(())
    } else {
        Err(text.chars().take(300).collect())
    }
}

/// Returns the number of questions that are not exactly once in their conversations, with their answers.
fn lost(home: &Home, stored: &BTreeMap<String, Vec<String>>) -> usize {
    let mut lost = 0;
    for (key, items) in stored {
        let session = home.session(&format!("http_{key}"));
        let (asked, told) = (session.texts("user"), session.texts("assistant"));
        for item in items {
            let is_asked = asked
                .iter()
                .filter(|text| text.contains(&format!("{item} ")))
                .count()
                == 1;
            let is_told = told
                .iter()
                .any(|text| text.contains(&format!("Noted: {item}.")));
            if !is_asked || !is_told {
                println!("lost in {key}: {item}");
                lost += 1;
            }
        }
    }
    lost
}

fn soak(bantam: &Path, minutes: f64) -> bool {
    let model = Model::answering(|request, _| answer(request)).forgetful();
    let extra =
        json!({ "log": { "level": "info" }, "agents": { "defaults": { "max_retries": 2 } } });
    let home = Home::with(&merged(merged(model.config(), &settings()), &extra));
    let gateway = Gateway::start(bantam, &home, true);
    let pid = gateway.child.id();
    let (tally, is_over) = (Tally::default(), AtomicBool::new(false));
    let started = Instant::now();
    let end = started + Duration::from_secs_f64(minutes * 60.0);
    let (stored, samples) = thread::scope(|scope| {
        let sampler = scope.spawn(|| samples(pid, LOOKS, &is_over));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let client = Client {
                    door: &gateway.door,
                    number,
                    chance: Rng(0x5eed_0100 + number as u64),
                    tally: &tally,
                    asked: 0,
                    stored: BTreeMap::new(),
                };
                scope.spawn(move || client.run(end))
            })
            .collect();
        let mut stored = BTreeMap::new();
        for client in clients {
            stored.extend(client.join().unwrap());
        }
        is_over.store(true, Ordering::SeqCst);
        (stored, sampler.join().unwrap())
    });
    // Turns of clients that hung up may still be ending.
    thread::sleep(Duration::from_secs(5));
    let quiet = sample(pid);
    let errors = gateway.errors.clone();
    gateway.stop();
    let lost = lost(&home, &stored);
    for (kind, count) in Kind::ALL.iter().zip(&tally.counts) {
        println!("{:>7} x {kind:?}", count.load(Ordering::Relaxed));
    }
    let wrong = tally.wrong.load(Ordering::Relaxed);
    let questions: usize = stored.values().map(Vec::len).sum();
    println!(
        "{minutes} minutes, {} requests to the model; {questions} questions in {} stored conversations, {lost} lost; {wrong} wrong answers",
        model.asked(),
        stored.len()
    );
    let log = fs::read_to_string(errors).unwrap();
    let told = log
        .lines()
        .filter(|line| line.contains("ERROR") || line.contains("panic"))
        .count();
    println!("{told} errors in the log");
    let good = is_flat(&samples, quiet) && lost == 0 && wrong == 0 && told == 0;
    println!(
        "{}",
        if good {
            "flat, and nothing was lost"
        } else {
            "NOT FLAT, or something was lost"
        }
    );
    good
}

fn main() -> ExitCode {
    let (given, bantam) = given();
    let good = match given.get(1) {
        Some(minutes) => soak(&bantam, minutes.parse().unwrap()),
        None => costs(&bantam),
    };
    ExitCode::from(u8::from(!good))
}
