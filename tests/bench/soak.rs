//! Measures for `tests/bench/soak` the memory, descriptors and threads of the gateway over time, with a scripted Telegram and a
//! scripted model that fail now and then. Now and then, the network fails for a while, the disk is full, or the machine's clock
//! jumps.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, thread};

use serde_json::json;

#[allow(dead_code)]
mod process;
#[allow(dead_code)] // the tests use the rest of it
#[path = "../support/mod.rs"]
mod support;

use process::{all_hold, command, given, is_flat, sample, samples, stop};
use support::botapi::{BotApi, Fault, TOKEN};
use support::harness::{Home, merged};
use support::model::{Model, Reply, Request, call, text_of};
use support::rng::Rng;

/// Pause between two messages.
const PACE: Duration = Duration::from_secs(1);
/// Interval between samples of the process.
const LOOKS: Duration = Duration::from_secs(10);
/// One of this many requests fails.
const ODDS: u64 = 20;
/// Delay of a slow Telegram.
const SLOW: Duration = Duration::from_secs(3);
/// Number of periods with faults of the whole machine, and the duration of a fault.
const FAULT_PERIODS: u32 = 12;
const FAULT_TIME: Duration = Duration::from_secs(20);
/// Size, duration and number of clock jumps, in the last tenth of the time.
const JUMP: Duration = Duration::from_secs(3 * 3600);
const JUMPED: Duration = Duration::from_secs(5);
const JUMPS: u32 = 3;
/// Interval of a job, in seconds.
const JOB: u64 = 60;
/// Time limit for the remaining work at the end.
const QUIET: Duration = Duration::from_secs(120);
/// Number of messages after which a chat of the second kind starts a new conversation.
const SHORT: usize = 20;
/// Notice in a chat about an unconfirmed answer.
const MAY_BE_LOST: &str = "may not have arrived";
/// Notice in a chat about a message that could not be stored.
const REFUSED: &str = "No space left on device";
/// Chats with one long conversation, and chats that start a new one now and then.
const LONG_CHATS: [i64; 3] = [42, 43, 44];
const SHORT_CHATS: [i64; 3] = [52, 53, 54];

/// Counts of injected faults, and of those after a message was sent, which is then repeated.
#[derive(Default)]
struct Faults {
    telegram: AtomicUsize,
    model: AtomicUsize,
    sent_all_the_same: AtomicUsize,
    /// Whether the network is down.
    network_is_gone: AtomicBool,
    /// Whether the model works from now on.
    are_over: AtomicBool,
}

fn weather(faults: &Arc<Faults>) -> impl FnMut(&str) -> Option<Fault> + Send + use<> {
    let (faults, mut chance) = (faults.clone(), Rng(0x5eed_0001));
    move |method| {
        if faults.network_is_gone.load(Ordering::SeqCst) {
            return Some(Fault::Reset);
        }
        if chance.below(ODDS) > 0 {
            return None;
        }
        faults.telegram.fetch_add(1, Ordering::Relaxed);
        let fault = match chance.below(8) {
            0 => Fault::Error(500, "Internal Server Error"),
            1 => Fault::Page(502),
            2 => Fault::TooMany(1),
            // A message lost in this way is not sent again.
            3 | 4 if method == "sendMessage" => Fault::Late(SLOW),
            3 => Fault::Reset,
            4 => Fault::CutBefore,
            5 => Fault::CutAfter,
            6 => Fault::Half,
            _ => Fault::Late(SLOW),
        };
        if method == "sendMessage" && matches!(fault, Fault::CutAfter | Fault::Half) {
            faults.sent_all_the_same.fetch_add(1, Ordering::Relaxed);
        }
        Some(fault)
    }
}

/// Answers with the unanswered items, and for some of them uses a tool first.
fn model(faults: &Arc<Faults>) -> Model {
    let (faults, chance) = (faults.clone(), Mutex::new(Rng(0x5eed_0002)));
    let answer = move |request: &Request, _| {
        let reply = answer(request).counted(request.body.to_string().len() as u64 / 4, 100);
        if faults.network_is_gone.load(Ordering::SeqCst) {
            return reply.cut_after(0);
        }
        let mut chance = chance.lock().unwrap();
        if chance.below(ODDS) > 0 || faults.are_over.load(Ordering::SeqCst) {
            return reply;
        }
        faults.model.fetch_add(1, Ordering::Relaxed);
        match chance.below(5) {
            0 => Reply::error(429, "Rate limit reached").header("retry-after", "1"),
            1 => Reply::error(500, "The server had an error"),
            2 => Reply::html(502, "<html><body><h1>502 Bad Gateway</h1></body></html>"),
            3 => reply.cut_after(2),
            _ => reply.cut_after(0),
        }
    };
    Model::answering(answer).forgetful()
}

fn answer(request: &Request) -> Reply {
    if request.texts("system")[0].contains("so that the assistant can continue") {
        return Reply::text("Items were talked about.");
    }
    let mut open: Vec<String> = Vec::new();
    let mut has_called = false;
    for message in request.messages() {
        let text = text_of(&message["content"]);
        match message["role"].as_str() {
            Some("user") => {
                open.extend(items(&text).map(str::to_owned));
                has_called = false;
            }
            Some("assistant") => {
                has_called |= message["tool_calls"].is_array();
                let answered: BTreeSet<&str> = items(&text).collect();
                open.retain(|item| !answered.contains(item.as_str()));
            }
            _ => {}
        }
    }
    let last = open.last().map_or("", String::as_str);
    let number: usize = last
        .rsplit('-')
        .next()
        .unwrap_or_default()
        .parse()
        .unwrap_or(1);
    match number % 10 {
        3 if !has_called => Reply::call(
            "append_file",
            &json!({ "path": "log.txt", "content": format!("{last}\n") }),
        ),
        6 if !has_called => Reply::call(
            "exec",
            &json!({ "command": format!("echo {last}; seq 200") }),
        ),
        9 if !has_called => Reply::calls([
            call("a", "list_dir", &json!({ "path": "." })),
            call("b", "read_file", &json!({ "path": "log.txt" })),
        ]),
        _ => Reply::text(&format!(
            "Noted: {}\n\n{}",
            open.join(" "),
            "And this is what there is to say of it. ".repeat(8)
        )),
    }
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
        .filter(|word| word.starts_with("item-"))
}

/// An item written in a chat.
struct Written {
    item: String,
    /// Number of the bot's earlier messages in the chat.
    texts_before: usize,
}

/// Returns the items written in a chat that are neither answered nor refused.
fn open_items(api: &BotApi, chat: i64, written: &[Written]) -> Vec<(i64, String)> {
    unanswered(api, chat, written)
        .into_iter()
        .filter(|n| !was_refused(api, chat, &written[*n..]))
        .map(|n| (chat, written[n].item.clone()))
        .collect()
}

/// Returns which of the items written in a chat are unanswered.
fn unanswered(api: &BotApi, chat: i64, written: &[Written]) -> Vec<usize> {
    let texts = api.texts(chat);
    let answered: BTreeSet<&str> = texts.iter().flat_map(|text| items(text)).collect();
    let is_open = |n: &usize| !answered.contains(written[*n].item.as_str());
    (0..written.len()).filter(is_open).collect()
}

/// Whether the chat was notified that the first of these items could not be stored, before a later one was answered. The model
/// never sees such a message, and its question is in no conversation.
fn was_refused(api: &BotApi, chat: i64, written: &[Written]) -> bool {
    let (first, later) = written.split_first().unwrap();
    let later: BTreeSet<&str> = later.iter().map(|written| written.item.as_str()).collect();
    let texts = api.texts(chat);
    texts
        .iter()
        .skip(first.texts_before)
        .take_while(|text| !items(text).any(|item| later.contains(item)))
        .any(|text| text.contains(REFUSED))
}

/// Whether the answer to an item was sent, and the connection then reset.
fn was_reset(api: &BotApi, chat: i64, item: &str) -> bool {
    api.asked("sendMessage").iter().any(|asked| {
        let text = asked.params["text"].as_str().unwrap_or_default();
        let to = asked.params["chat_id"].to_string();
        asked.status == 0
            && to.trim_matches('"') == chat.to_string()
            && items(text).any(|own| own == item)
    })
}

/// Fills the disk of the home, and frees it again.
fn fill_the_disk(home: &Home) {
    let filler = home.path("../filler");
    let mut file = fs::File::create(&filler).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    thread::sleep(FAULT_TIME);
    fs::remove_file(filler).unwrap();
}

/// Sets the machine's clock ahead, and back again by the monotonic clock.
fn set_the_clock_ahead() {
    let set = |time: SystemTime| {
        let seconds = time.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let done = Command::new("date")
            .args(["--set", &format!("@{seconds:.6}")])
            .stdout(Stdio::null())
            .status();
        assert!(done.unwrap().success());
    };
    let (before, since) = (SystemTime::now(), Instant::now());
    set(before + JUMP);
    thread::sleep(JUMPED);
    set(before + since.elapsed());
}

/// Counts of network failures, full disks and clock jumps.
#[derive(Clone, Copy, Default)]
struct Injected {
    network: u32,
    disk: u32,
    clock: u32,
}

/// Injects faults of the whole machine, in turn.
fn inject_faults(
    home: &Home,
    faults: &Faults,
    length: Duration,
    has_clock: bool,
    is_over: &AtomicBool,
) -> Injected {
    let (started, mut injected) = (Instant::now(), Injected::default());
    let jumps_at = |n: u32| length.mul_f64(0.9) + length.mul_f64(0.1) / (JUMPS + 1) * (n + 1);
    while !is_over.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(100));
        let passed = started.elapsed();
        if has_clock && injected.clock < JUMPS && passed > jumps_at(injected.clock) {
            set_the_clock_ahead();
            injected.clock += 1;
        } else if passed > length.mul_f64(0.9)
            || passed < length / FAULT_PERIODS * (injected.network + injected.disk + 1)
        {
        } else if injected.network > injected.disk && is_root() {
            fill_the_disk(home);
            injected.disk += 1;
        } else {
            faults.network_is_gone.store(true, Ordering::SeqCst);
            thread::sleep(FAULT_TIME);
            faults.network_is_gone.store(false, Ordering::SeqCst);
            injected.network += 1;
        }
    }
    injected
}

/// Whether the home gets a separate disk and the clock is set, which only root can do.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns a home with the bot and a job that runs every minute; for root, on a separate disk.
fn home(model: &Model, api: &BotApi, people: &[i64]) -> Home {
    let bot =
        json!({ "enabled": true, "token": TOKEN, "allow_from": people, "api_base": api.base() });
    let extra = json!({
        "channels": { "telegram": bot }, "model_list": [{ "context_window": 12_000 }],
        "agents": { "defaults": { "max_retries": 8, "retry_initial_delay": 1 } }
    });
    let home = Home::empty();
    if is_root() {
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=64m,mode=700", "none"])
            .arg(home.dir("").parent().unwrap());
        assert!(mount.status().unwrap().success());
        home.dir("../cwd");
    }
    home.config(&merged(model.config(), &extra).to_string());
    let job = [
        "cron",
        "add",
        "-n",
        "minute",
        "-m",
        "Look around.",
        "-e",
        &JOB.to_string(),
    ];
    home.run(job).exits(0);
    home
}

// One sequence, and the conditions of its verdict.
#[allow(clippy::too_many_lines)]
fn main() -> ExitCode {
    let has_clock = std::env::args().any(|arg| arg == "--clock");
    if has_clock && !is_root() {
        eprintln!("soak: --clock needs root");
        return ExitCode::FAILURE;
    }
    let (given, bantam) = given();
    let minutes: f64 = given
        .get(1)
        .map_or(30.0, |minutes| minutes.parse().unwrap());
    let length = Duration::from_secs_f64(minutes * 60.0);

    let faults = Arc::new(Faults::default());
    let (model, api) = (model(&faults), BotApi::start());
    let people: Vec<i64> = LONG_CHATS.iter().chain(&SHORT_CHATS).copied().collect();
    let home = home(&model, &api, &people);
    let errors = home.path("../stderr");
    let mut gateway = command(&bantam, &home.path(""));
    gateway
        .arg("gateway")
        .stderr(fs::File::create(&errors).unwrap());
    let mut gateway = gateway.spawn().unwrap();
    let pid = gateway.id();
    api.wait_for_poll();
    api.weather(weather(&faults));

    let is_over = AtomicBool::new(false);
    let (mut written, samples, injected) = thread::scope(|scope| {
        let sampler = scope.spawn(|| samples(pid, LOOKS, &is_over));
        let injector = scope.spawn(|| inject_faults(&home, &faults, length, has_clock, &is_over));
        let written = write(&api, &people, length);
        is_over.store(true, Ordering::SeqCst);
        (written, sampler.join().unwrap(), injector.join().unwrap())
    });
    api.calm();
    faults.are_over.store(true, Ordering::SeqCst);
    // An interrupted answer is reported, and asking again returns it, so every chat asks once more.
    for (chat, written) in people.iter().zip(&mut written) {
        let item = format!("item-{chat}-last");
        let texts_before = api.texts(*chat).len();
        api.text(*chat, &item);
        written.push(Written { item, texts_before });
    }
    let quiet = Instant::now() + QUIET;
    let left = || {
        people
            .iter()
            .zip(&written)
            .map(|(chat, written)| open_items(&api, *chat, written).len())
            .sum::<usize>()
    };
    while (left() > 0 || !api.unconfirmed().is_empty()) && Instant::now() < quiet {
        thread::sleep(Duration::from_millis(100));
    }
    let refused: usize = people
        .iter()
        .zip(&written)
        .map(|(chat, written)| {
            unanswered(&api, *chat, written).len() - open_items(&api, *chat, written).len()
        })
        .sum();
    let open: Vec<(i64, String)> = people
        .iter()
        .zip(&written)
        .flat_map(|(chat, written)| open_items(&api, *chat, written))
        .collect();
    // The connection was reset after the whole answer had been sent, so its loss cannot be detected.
    let (reset, lost): (Vec<_>, Vec<_>) = open
        .into_iter()
        .partition(|(chat, item)| was_reset(&api, *chat, item));
    for (chat, item) in &lost {
        println!("lost in {chat}: {item}");
    }
    let untold: Vec<&i64> = reset
        .iter()
        .map(|(chat, _)| chat)
        .filter(|chat| {
            !api.texts(**chat)
                .iter()
                .any(|text| text.contains(MAY_BE_LOST))
        })
        .collect();
    let (reset, lost, untold) = (reset.len(), lost.len(), untold.len());
    let end = sample(pid);
    stop(&mut gateway);
    let runs = fs::read_to_string(home.path("cron/history.jsonl"))
        .unwrap_or_default()
        .lines()
        .count();
    print_log_summary(&fs::read_to_string(errors).unwrap());
    if is_root() {
        let unmounted = Command::new("umount")
            .arg("--lazy")
            .arg(home.path(".."))
            .status();
        assert!(unmounted.unwrap().success());
    }

    let (sent, twice): (Vec<usize>, Vec<usize>) =
        people.iter().map(|chat| counted(&api, *chat)).unzip();
    let (sent, twice, written): (usize, usize, usize) = (
        sent.iter().sum(),
        twice.iter().sum(),
        written.iter().map(Vec::len).sum(),
    );
    let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
    println!(
        "{written} messages in {minutes} minutes, {} requests to the model; faults: {} of Telegram, {} of the model",
        model.asked(),
        count(&faults.telegram),
        count(&faults.model)
    );
    println!(
        "{} times no network and {} times a full disk for {} s, {} times a clock that is {} h ahead for {} s",
        injected.network,
        injected.disk,
        FAULT_TIME.as_secs(),
        injected.clock,
        JUMP.as_secs() / 3600,
        JUMPED.as_secs()
    );
    println!("{runs} runs of a job that is due every {JOB} s");
    println!(
        "{sent} answers, {} messages answered, {lost} lost",
        written - lost - reset - refused
    );
    println!("{refused} messages met a full disk, and their chats were told");
    println!("{reset} answers were sent whole over a connection that was then reset");
    println!(
        "{twice} answers came twice; {} times Telegram hid that it had sent one",
        count(&faults.sent_all_the_same)
    );
    let due = (length.as_secs() / JOB).saturating_sub((injected.network + injected.disk).into());
    let hidden = count(&faults.sent_all_the_same);
    let conditions = [
        (format!("{lost} messages are lost, at most 0"), lost == 0),
        (
            format!("{untold} such answers of which their chat was not told, at most 0"),
            untold == 0,
        ),
        (
            format!("{runs} runs of the job, at least {due} less one"),
            runs as u64 + 1 >= due,
        ),
        (
            format!("{twice} answers came twice, at most {hidden}"),
            twice <= hidden,
        ),
    ];
    let good = is_flat(&samples, end) & all_hold(&conditions);
    println!(
        "{}",
        if good {
            "flat, and nothing was lost"
        } else {
            "NOT FLAT, or something was lost"
        }
    );
    ExitCode::from(u8::from(!good))
}

/// Writes until the time is up; returns the items of each chat.
fn write(api: &BotApi, people: &[i64], length: Duration) -> Vec<Vec<Written>> {
    let mut written: Vec<Vec<Written>> = people.iter().map(|_| Vec::new()).collect();
    let mut since_new = vec![0; people.len()];
    let mut chance = Rng(0x5eed_0003);
    let started = Instant::now();
    while started.elapsed() < length {
        let chat = usize::try_from(chance.below(people.len() as u64)).unwrap();
        let is_short = SHORT_CHATS.contains(&people[chat]);
        // A new conversation stops running turns, so it starts when everything is answered.
        if is_short
            && since_new[chat] >= SHORT
            && open_items(api, people[chat], &written[chat]).is_empty()
        {
            api.text(people[chat], "/new");
            since_new[chat] = 0;
        } else {
            let item = format!("item-{chat}-{}", written[chat].len());
            let texts_before = api.texts(people[chat]).len();
            api.text(
                people[chat],
                &format!("{item} {}", "and some words about it ".repeat(10)),
            );
            written[chat].push(Written { item, texts_before });
            since_new[chat] += 1;
        }
        thread::sleep(PACE);
    }
    written
}

/// Returns the number of answers in a chat, and the number of repeated ones.
fn counted(api: &BotApi, chat: i64) -> (usize, usize) {
    let texts = api.texts(chat);
    let is_answer = |text: &&String| text.starts_with("Noted: ") && !text.contains('⚠');
    let answers = texts.iter().filter(is_answer).collect::<Vec<_>>();
    let strange: Vec<&String> = texts.iter().filter(|text| !is_answer(text)).collect();
    let strange: BTreeSet<&&String> = strange
        .iter()
        .filter(|text| !text.contains("new conversation"))
        .collect();
    for text in strange {
        println!("another answer in {chat}: {text:?}");
    }
    let mut seen = BTreeSet::new();
    for text in answers.iter().filter(|text| !seen.insert(**text)) {
        println!(
            "twice in {chat}: {}",
            text.lines().next().unwrap_or_default()
        );
    }
    (
        answers.len(),
        answers.len() - answers.iter().collect::<BTreeSet<_>>().len(),
    )
}

/// Prints each sentence of the gateway's standard error once, with its count.
fn print_log_summary(errors: &str) {
    // Removes the time.
    let mut lines: Vec<&str> = errors
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(_, line)| line)
        .collect();
    lines.sort_unstable();
    for same in lines.chunk_by(|a, b| a == b) {
        println!("{:>5} x {}", same.len(), same[0]);
    }
}
