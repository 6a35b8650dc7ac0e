//! Measures for `tests/bench/siege` the gateway in a cgroup of 256 MB with a scripted Telegram and a scripted model. Three
//! chats make it read pages, images and answers of MCP servers that expand enormously, others have conversations that are too
//! large to load or nearly so, and two ask ordinary questions.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use serde_json::{Value, json};

mod cgroup;
#[allow(dead_code)]
mod process;
#[allow(dead_code)] // the tests use the rest of it
#[path = "../support/mod.rs"]
mod support;

use cgroup::Cgroup;
use process::field;
use support::botapi::{BotApi, TOKEN};
use support::harness::{Home, merged, walk};
use support::heavy::{heavy_pages, packed, raw};
use support::model::{Model, Reply, Request, call, text_of};
use support::pdf::with_pages;
use support::stored::journal;

const MEMORY: u64 = 256 << 20;
/// Maximum delay of an ordinary answer.
const LATEST: Duration = Duration::from_secs(5);
/// Pause between two ordinary messages, and between two attacks of the same chat.
const PACE: Duration = Duration::from_secs(4);
const REST: Duration = Duration::from_secs(15);
/// Maximum time to wait for an ordinary answer, and for the end of an attack.
const LOST: Duration = Duration::from_secs(60);
const STUCK: Duration = Duration::from_secs(600);
const ORDINARY: [i64; 2] = [42, 43];
/// Chats of the attacks. The gateway serves four conversations at the same time, so one slot remains for the others.
const PAGES: i64 = 51;
const IMAGES: i64 = 52;
const SERVERS: i64 = 53;
/// Chats with conversations above the size limit, and just below it.
const ABOVE: [i64; 6] = [61, 62, 63, 64, 65, 66];
const BELOW: [i64; 6] = [71, 72, 73, 74, 75, 76];
/// Number of attacks after which a chat starts a new conversation, and how often `/stop` ends one.
const LONG: usize = 6;
const STOPS: usize = 5;
const SERVER: &str = include_str!("../support/mcp_server.py");
const MODES: [&str; 4] = ["many", "swollen", "oversized", "media"];
/// Kinds of files in a home, as listed in docs/files-and-formats.md.
const KINDS: &str = "config.json agent workspace cron sessions usage state/hosts.json state/queue.jsonl \
    state/outbox state/vectors.json state/notes state/mcp state/undo state/gateway.json \
    state/notify state/locks";

/// Answers of hostile sites, including the search engine.
struct Sites {
    pages: Vec<String>,
    images: Vec<String>,
    engine: String,
}

fn sites() -> Sites {
    let mut pages: Vec<String> = heavy_pages()
        .iter()
        .map(|(_, kind, page)| packed(kind, page))
        .collect();
    let engine = pages[0].clone();
    let item = "<item><title>".repeat(50) + &"<link>a</link>".repeat(200_000);
    pages.push(packed("application/rss+xml", &format!("<rss>{item}")));
    let text = "many words that fill it\n".repeat(40);
    let pdf = with_pages(&vec![text; 1_500]);
    pages.push(answer("application/pdf", "", &pdf));
    let zeros = [b"\x89PNG\r\n\x1a\n".as_slice(), &vec![0; 8 << 20]].concat();
    let images = vec![
        gzip("image/png", &zeros),
        gzip("image/png", &png(8_000_000)),
        answer("image/png", "", &png(4 << 20)),
        answer("image/png", "", &png(100_000)),
        answer("image/png", "", &zeros[..4 << 20]),
    ];
    Sites {
        pages,
        images,
        engine,
    }
}

/// Returns the header of a PNG of one pixel, followed by this many bytes.
fn png(after: usize) -> Vec<u8> {
    let header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0";
    [header.as_slice(), &vec![0; after]].concat()
}

fn gzip(kind: &str, body: &[u8]) -> String {
    let deflated = miniz_oxide::deflate::compress_to_vec(body, 6);
    let body = [&b"\x1f\x8b\x08\0\0\0\0\0\0\x03"[..], &deflated, &[0; 8]].concat();
    answer(kind, "Content-Encoding: gzip\r\n", &body)
}

fn answer(kind: &str, more: &str, body: &[u8]) -> String {
    let len = body.len();
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{more}Content-Length: {len}\r\n\r\n");
    raw([head.as_bytes(), body].concat())
}

/// Kinds of messages, each sent with a number.
const WAYS: [&str; 6] = ["pages", "images", "servers", "ordinary", "hello", "bye"];

/// Finds the request at the end of a line of a message. The text may be followed by notes on its files, or by another message
/// that is answered with it.
fn asked_in(text: &str) -> Option<(String, usize)> {
    text.lines().rev().find_map(asked_in_line)
}

fn asked_in_line(line: &str) -> Option<(String, usize)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [.., what, number] = words[..] else {
        return None;
    };
    let number = number.parse().ok()?;
    WAYS.contains(&what).then(|| (what.to_owned(), number))
}

/// Executes the last message once: `pages N`, `images N`, `servers N` or `ordinary N`.
fn model(sites: Sites) -> Model {
    let respond = move |request: &Request, _| {
        let system = request.texts("system").concat();
        if system.contains("so that the assistant can continue") {
            return Reply::text("Many things were read.");
        }
        // Images of tools come in a user's message after the results.
        let texts = request.texts("user");
        let asked = texts.iter().rev().find_map(|text| asked_in(text));
        let (what, number) = asked.unwrap_or_default();
        let done = || Reply::text(&format!("Done: {what} {number}."));
        let messages = request.messages();
        let is_question = |message: &&Value| {
            message["role"] == "user" && asked_in(&text_of(&message["content"])).is_some()
        };
        let since = messages
            .iter()
            .rev()
            .take_while(|message| !is_question(message));
        if since.into_iter().any(|message| message["role"] == "tool") {
            return done();
        }
        let fetches = |sites: &[String], count: usize, more: &Value| {
            let calls = (0..count).map(|n| {
                let url = format!("{}?{number}.{n}", sites[(number + n) % sites.len()]);
                let args = merged(json!({ "url": url }), more);
                call(&format!("c{number}.{n}"), "web_fetch", &args)
            });
            Reply::calls(calls.collect::<Vec<_>>())
        };
        match (what.as_str(), number % 4) {
            ("pages", 3) => Reply::call("web_search", &json!({ "query": format!("{number}") })),
            ("pages", 2) => fetches(&sites.pages, 8, &json!({ "max_chars": 500 })),
            ("pages", _) => fetches(&sites.pages, 4, &json!({})),
            ("images", 0) => fetches(&sites.images[2..3], 4, &json!({})),
            ("images", 1) => fetches(&sites.images, 30, &json!({})),
            ("images", 2) => fetches(&sites.images[..2], 8, &json!({})),
            ("servers", n) => {
                let tool = match MODES[n] {
                    "many" => "many__tool7".to_owned(),
                    mode => format!("{mode}__say"),
                };
                let args = json!({ "text": format!("{number}") });
                let calls = (0..3).map(|n| call(&format!("c{number}.{n}"), &tool, &args));
                Reply::calls(calls.collect::<Vec<_>>())
            }
            ("ordinary", 2) => Reply::call("exec", &json!({ "command": "echo hello; seq 20" })),
            ("ordinary", 3) => Reply::call("list_dir", &json!({ "path": "." })),
            _ => done(),
        }
    };
    Model::answering(respond).forgetful()
}

/// Returns a conversation of two messages with this size: its first line, for a key, and the others.
fn large(len: usize) -> (impl Fn(&str) -> String, String) {
    let header =
        |key: &str| json!({ "v": 1, "session": key, "created": "2026-01-01T00:00:00Z", "base": 7 });
    let text = "many words ".repeat(len / 11);
    let said =
        |role: &str| json!({ "time": "2026-01-01T00:00:00Z", "role": role, "content": text });
    let done = json!({ "turn": "done" });
    let all = journal([header(""), said("user"), said("assistant"), done]);
    let rest = all.split_once('\n').unwrap().1.to_owned();
    (move |key: &str| journal([header(key)]), rest)
}

fn home(model: &Model, api: &BotApi, engine: &str) -> Home {
    let people: Vec<i64> = [&ORDINARY[..], &[PAGES, IMAGES, SERVERS], &ABOVE, &BELOW].concat();
    let entry = |mode: &&str| {
        let entry = json!({ "command": "python3", "args": ["server.py", mode], "network": false });
        ((*mode).to_owned(), entry)
    };
    let servers: serde_json::Map<String, Value> = MODES.iter().map(entry).collect();
    let bot =
        json!({ "enabled": true, "token": TOKEN, "allow_from": people, "api_base": api.base() });
    let fetch = json!({ "allow_private": true, "timeout": 60 });
    let search = json!({ "provider": "duckduckgo", "base_url": engine });
    let settings = json!({
        "channels": { "telegram": bot },
        "mcpServers": servers,
        "tools": { "web": { "fetch": fetch, "search": search } },
    });
    let home = Home::with(&merged(model.config(), &settings));
    for mode in MODES {
        home.write(&format!("state/mcp/{mode}/server.py"), SERVER);
    }
    for (chats, len) in [(ABOVE, 17 << 20), (BELOW, 15 << 20)] {
        let (first, rest) = large(len);
        for chat in chats {
            let key = format!("telegram_{chat}");
            home.write(&format!("sessions/{key}.jsonl"), first(&key) + &rest);
        }
    }
    home
}

/// Starts the gateway in this cgroup, with a private `/tmp` and `/dev/shm`, so that its leftovers are detected.
fn start(bantam: &Path, home: &Home, group: &Cgroup) -> Child {
    let script = "echo 0 > \"$1\" && mount -t tmpfs -o mode=1777 none /tmp && mount -t tmpfs -o mode=1777 none /dev/shm && exec \"$0\" gateway";
    let errors = fs::File::options()
        .create(true)
        .append(true)
        .open(home.path("../stderr"))
        .unwrap();
    Command::new("unshare")
        .args(["--mount", "--", "/bin/sh", "-c", script])
        .arg(bantam)
        .arg(group.door())
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("TZ", "UTC")
        .env("BANTAM_HOME", home.path(""))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .unwrap()
}

/// Results of a siege so far.
#[derive(Default)]
struct Shown {
    is_over: AtomicBool,
    attacks: AtomicUsize,
    /// Number of attacks without an answer.
    stuck: AtomicUsize,
    /// Current attack of each hostile chat.
    under_way: Mutex<BTreeMap<i64, String>>,
}

impl Shown {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst)
    }

    fn begins(&self, chat: i64, what: &str) {
        self.under_way.lock().unwrap().insert(chat, what.to_owned());
    }

    fn ends(&self, chat: i64) {
        self.under_way.lock().unwrap().remove(&chat);
        self.attacks.fetch_add(1, Ordering::Relaxed);
    }

    fn under_way(&self) -> String {
        let under_way = self.under_way.lock().unwrap();
        under_way.values().cloned().collect::<Vec<_>>().join(", ")
    }

    /// Sleeps, but only until the end.
    fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        while self.goes_on() && Instant::now() < until {
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Writes to a chat, and waits for another message of the bot that contains the expected text.
fn asks(api: &BotApi, chat: i64, text: &str, expected: &str, most: Duration) -> Option<Duration> {
    let asked = Instant::now();
    asks_while(api, chat, text, expected, || asked.elapsed() < most)
}

/// Does so while a condition is met.
fn asks_while(
    api: &BotApi,
    chat: i64,
    text: &str,
    expected: &str,
    waits: impl Fn() -> bool,
) -> Option<Duration> {
    let count = || {
        let texts = api.texts(chat);
        texts.iter().filter(|text| text.contains(expected)).count()
    };
    let before = count();
    let asked = Instant::now();
    api.text(chat, text);
    while count() == before {
        if !waits() {
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Some(asked.elapsed())
}

/// Repeats one kind of attack until the end.
fn attack(api: &BotApi, shown: &Shown, chat: i64, what: &str) {
    let ask = |text: &str, expected: &str| {
        let asked = Instant::now();
        let waits = || shown.goes_on() && asked.elapsed() < STUCK;
        let took = asks_while(api, chat, text, expected, waits);
        if took.is_none() && shown.goes_on() {
            println!("no answer: {text}");
            shown.stuck.fetch_add(1, Ordering::Relaxed);
        }
    };
    for number in 0.. {
        if !shown.goes_on() {
            return;
        }
        if number % LONG == LONG - 1 {
            ask("/new", "");
        }
        shown.begins(chat, &format!("{what} {number}"));
        if what == "images" && number % 4 == 3 {
            let zeros = [b"\x89PNG\r\n\x1a\n".as_slice(), &vec![0; 4 << 20]].concat();
            let photo = if number % 8 == 3 { png(4 << 20) } else { zeros };
            api.photo(
                chat,
                &photo,
                &json!({ "caption": format!("photo {number}") }),
            );
        }
        if number % STOPS == STOPS - 1 {
            api.text(chat, &format!("{what} {number}"));
            thread::sleep(Duration::from_secs(3));
            ask("/stop", "");
        } else {
            let text = format!("{what} {number}");
            ask(&text, &format!("Done: {text}."));
        }
        shown.ends(chat);
        shown.rest(REST);
    }
}

/// Writes into conversations that are too large, in sequence, and starts them over. In the last quarter of the time, uses
/// conversations just below the limit.
fn write_to_large_ones(api: &BotApi, shown: &Shown, length: Duration) -> Vec<String> {
    let mut strange = Vec::new();
    let above = [
        ("hello 1", "MB"),
        ("hello 2", "Done: hello 2."),
        ("/new", ""),
        ("hello 3", "Done: hello 3."),
    ];
    let below = [("hello 1", "Done: hello 1."), ("hello 2", "Done: hello 2.")];
    let above = ABOVE
        .iter()
        .flat_map(|chat| above.map(|step| (*chat, step)));
    let below = BELOW
        .iter()
        .flat_map(|chat| below.map(|step| (*chat, step)));
    for (chat, (text, expected)) in above.chain(below) {
        let share = if ABOVE.contains(&chat) { 32 } else { 48 };
        if !shown.goes_on() {
            break;
        }
        let before = api.texts(chat).len();
        shown.begins(chat, &format!("conversation {chat} {text}"));
        if asks(api, chat, text, expected, LOST).is_none() {
            let texts = api.texts(chat).split_off(before);
            strange.push(format!("chat {chat}, {text}: no {expected:?} in {texts:?}"));
        }
        shown.ends(chat);
        shown.rest(length / share);
    }
    strange
}

/// One answer, its delay, and its time.
struct Answer {
    took: Option<Duration>,
    text: String,
    at: Duration,
    load: String,
}

/// Asks ordinary questions in sequence.
fn ask_ordinarily(api: &BotApi, shown: &Shown, length: Duration) -> Vec<Answer> {
    let (started, mut answers) = (Instant::now(), Vec::new());
    while started.elapsed() < length {
        let number = answers.len();
        let chat = ORDINARY[number % ORDINARY.len()];
        if number % 40 >= 38 {
            asks(api, chat, "/new", "", LOST);
        }
        let text = format!("ordinary {number}");
        let took = asks(api, chat, &text, &format!("Done: {text}."), LOST);
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or_default().to_owned();
        let at = started.elapsed();
        if took.is_none_or(|took| took > LATEST) {
            let under_way = shown.under_way();
            println!(
                "late: {text} after {took:.1?} at {at:.0?}, load {load}; under way: {under_way}"
            );
        }
        answers.push(Answer {
            took,
            text,
            at,
            load,
        });
        thread::sleep(PACE);
    }
    answers
}

/// Peak resources of the processes.
#[derive(Default)]
struct Watched {
    deaths: Vec<String>,
    /// In KiB, of all gateways.
    parent: u64,
    /// In bytes.
    anonymous: u64,
}

/// Watches the gateway, and restarts it after a crash, like a service manager. Returns it at the end.
fn watch(
    mut gateway: Child,
    again: impl Fn() -> Child,
    group: &Cgroup,
    shown: &Shown,
) -> (Child, Watched) {
    let mut watched = Watched::default();
    let (started, mut told) = (Instant::now(), 0);
    while shown.goes_on() {
        if let Some(status) = gateway.try_wait().unwrap() {
            let how = status
                .signal()
                .map_or(format!("{status}"), |signal| format!("signal {signal}"));
            let when = started.elapsed();
            println!(
                "death after {when:.0?}: {how}; under way: {}",
                shown.under_way()
            );
            watched.deaths.push(how);
            thread::sleep(Duration::from_secs(5));
            gateway = again();
        }
        let status = format!("/proc/{}/status", gateway.id());
        if fs::read_to_string(&status).is_ok_and(|status| status.contains("VmHWM:")) {
            let peak = field(&status, "VmHWM:");
            if peak > watched.parent + (8 << 10) {
                println!(
                    "the parent had {peak} KiB; under way: {}",
                    shown.under_way()
                );
            }
            watched.parent = watched.parent.max(peak);
        }
        watched.anonymous = watched.anonymous.max(group.anonymous());
        let minutes = started.elapsed().as_secs() / 60;
        if minutes > told {
            told = minutes;
            println!(
                "{minutes} min: {} attacks, {} kills for want of memory, parent {} KiB at most",
                shown.attacks.load(Ordering::Relaxed),
                group.oom_kills(),
                watched.parent
            );
        }
        thread::sleep(Duration::from_millis(250));
    }
    (gateway, watched)
}

/// Returns the number and size of files in a directory by kind, which is a pattern of [`KINDS`] or the name.
fn left(root: &Path, name: &str) -> BTreeMap<String, (usize, u64)> {
    let mut kinds: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for path in walk(root) {
        let Ok(meta) = path.symlink_metadata() else {
            continue;
        };
        if meta.is_dir() {
            continue;
        }
        let below = path.strip_prefix(root).unwrap().display().to_string();
        let listed = KINDS
            .split(' ')
            .find(|kind| below == *kind || below.starts_with(&format!("{kind}/")));
        let kind = match listed {
            Some("sessions") if below.ends_with(".media") => "sessions/*.media".to_owned(),
            Some("workspace") if below.starts_with("workspace/inbox/") => {
                "workspace/inbox".to_owned()
            }
            Some(kind) => kind.to_owned(),
            None => format!("{name}{below}"),
        };
        let sum = kinds.entry(kind).or_default();
        sum.0 += 1;
        sum.1 += meta.len();
    }
    kinds
}

/// Prints the files left on disk, and returns whether all are expected.
fn is_tidy(home: &Home, gateway: &Child) -> bool {
    let of_home = left(&home.path(""), "strange: ");
    let root = PathBuf::from(format!("/proc/{}/root", gateway.id()));
    let of_tmp = left(&root.join("tmp"), "strange: /tmp/");
    let of_shm = left(&root.join("dev/shm"), "strange: /dev/shm/");
    let mut is_tidy = true;
    println!("left on disk:");
    for (kind, (files, bytes)) in of_home.iter().chain(&of_tmp).chain(&of_shm) {
        println!("{files:>8} {bytes:>12}  {kind}");
        is_tidy &= !kind.starts_with("strange: ") && kind != "sessions/*.media";
    }
    is_tidy
}

fn main() -> ExitCode {
    let given: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let Some(bantam) = given.first() else {
        eprintln!("tests/bench/siege BANTAM [MINUTES]");
        return ExitCode::from(2);
    };
    let minutes: f64 = given
        .get(1)
        .map_or(60.0, |minutes| minutes.parse().unwrap());
    let length = Duration::from_secs_f64(minutes * 60.0);
    let group = match Cgroup::with_memory(MEMORY) {
        Ok(group) => group,
        Err(error) => {
            eprintln!("siege: making a cgroup: {error}");
            return ExitCode::FAILURE;
        }
    };
    let sites = sites();
    let (engine, api) = (sites.engine.clone(), BotApi::start());
    let model = model(sites);
    let home = home(&model, &api, &engine);
    // The gateway's private /tmp hides the machine's.
    let copy = home.path("../bantam");
    fs::copy(bantam, &copy).unwrap();
    println!(
        "{minutes} minutes in a cgroup (version {}) of {} MB",
        group.version(),
        MEMORY >> 20
    );
    let again = || start(&copy, &home, &group);
    let gateway = again();
    let first = asks(&api, ORDINARY[0], "hello 0", "Done: hello 0.", STUCK);
    println!("the first answer, with the lists of all servers: {first:.2?}");

    let shown = Shown::default();
    let (answers, strange, (mut gateway, watched)) = thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(gateway, again, &group, &shown));
        for (chat, what) in [(PAGES, "pages"), (IMAGES, "images"), (SERVERS, "servers")] {
            let (api, shown) = (&api, &shown);
            scope.spawn(move || attack(api, shown, chat, what));
        }
        let writer = scope.spawn(|| write_to_large_ones(&api, &shown, length));
        let answers = ask_ordinarily(&api, &shown, length);
        shown.is_over.store(true, Ordering::SeqCst);
        (answers, writer.join().unwrap(), watcher.join().unwrap())
    });
    // Ends the last attacks, so that their leftovers are visible; a turn shows the media of the one before it.
    for chat in [PAGES, IMAGES, SERVERS] {
        asks(&api, chat, "/stop", "", LOST);
    }
    for number in 1..=3 {
        for chat in [PAGES, IMAGES, SERVERS] {
            let text = format!("bye {number}");
            asks(&api, chat, &text, &format!("Done: {text}."), LOST);
        }
    }

    let mut is_good = is_tidy(&home, &gateway);
    let lost = answers
        .iter()
        .filter(|answer| answer.took.is_none())
        .count();
    let mut times: Vec<Duration> = answers.iter().filter_map(|answer| answer.took).collect();
    times.sort_unstable();
    let latest = answers.iter().max_by_key(|answer| answer.took).unwrap();
    println!(
        "{} attacks, {} without an answer",
        shown.attacks.load(Ordering::Relaxed),
        shown.stuck.load(Ordering::Relaxed)
    );
    for what in &strange {
        println!("strange: {what}");
    }
    println!("deaths: {} {:?}", watched.deaths.len(), watched.deaths);
    println!("kills for want of memory: {}", group.oom_kills());
    println!(
        "{} ordinary answers, {lost} lost; median {:.2?}, the latest {:.2?} ({}, at {:.0?}, load {}); {} later than {LATEST:?}",
        times.len(),
        times[times.len() / 2],
        times[times.len() - 1],
        latest.text,
        latest.at,
        latest.load,
        times.iter().filter(|took| **took > LATEST).count()
    );
    println!(
        "peak memory: the cgroup {} KiB with the cache of files, {} KiB without; the parent {} KiB",
        group.peak() >> 10,
        watched.anonymous >> 10,
        watched.parent
    );
    is_good &= watched.deaths.is_empty() && lost == 0 && times[times.len() - 1] <= LATEST;
    is_good &= strange.is_empty() && shown.stuck.load(Ordering::Relaxed) == 0;
    let pid = rustix::process::Pid::from_child(&gateway);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = gateway.wait().unwrap();
    println!("it ended with {status}");
    print_errors(&home.path("../stderr"));
    if is_good && status.success() {
        ExitCode::SUCCESS
    } else {
        println!("NOT within the bounds");
        ExitCode::FAILURE
    }
}

/// Prints the gateway's standard error without times: each sentence with its count, the most frequent first.
fn print_errors(path: &Path) {
    let errors = fs::read_to_string(path).unwrap_or_default();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for line in errors.lines() {
        let line = line.split_once(' ').map_or(line, |(_, rest)| rest);
        *counts.entry(line).or_default() += 1;
    }
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (line, count) in counts.iter().take(30) {
        println!("{count:>5} x {line}");
    }
}
