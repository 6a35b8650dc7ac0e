//! Measures for `tests/bench/idle` an idle gateway with an owner and a distant job, and a Telegram that answers polls as late
//! as the real one.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss)]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{fs, thread};

use serde_json::json;

#[allow(dead_code)]
mod process;
#[allow(dead_code)] // the tests use the rest of it
#[path = "../support/mod.rs"]
mod support;

use process::{command, field, given, sample, stop, threads};
use support::botapi::{BotApi, TOKEN};
use support::harness::{Home, merged, walk};
use support::model::{Model, Reply, call};

/// Maximum resident memory in KiB, as counted by the kernel: 3 MB.
const MOST_MEMORY: u64 = 3 << 10;
/// Maximum number of times that threads of the process go to sleep per poll, for the poller, the thread of its request, and
/// that thread's end.
const MOST_SWITCHES: u64 = 12;
/// A worker without work ends after a minute.
const SETTLED: Duration = Duration::from_secs(62);
const OWNER: i64 = 42;

/// Number of times that each thread has gone to sleep, by its name and number.
type Switches = BTreeMap<(String, u32), u64>;

/// Every file of a home: its inode, its size, and its time of change.
type Files = BTreeMap<PathBuf, (u64, u64, i64, i64)>;

fn switches(pid: u32) -> Switches {
    let of = |thread: u32| {
        let status = format!("/proc/{pid}/task/{thread}/status");
        // The thread may have ended.
        let text = fs::read_to_string(&status).ok()?;
        let value = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim)
        };
        Some((
            (value("Name:")?.to_owned(), thread),
            value("voluntary_ctxt_switches:")?.parse().ok()?,
        ))
    };
    threads(pid).into_iter().filter_map(of).collect()
}

fn files(home: &Path) -> Files {
    let of = |path: PathBuf| {
        let meta = path.symlink_metadata().ok()?;
        Some((
            path,
            (meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()),
        ))
    };
    walk(home).into_iter().filter_map(of).collect()
}

/// Watches for this time, prints the results, and returns whether they are within the budget.
fn watch(what: &str, pid: u32, home: &Path, api: &BotApi, length: Duration) -> bool {
    api.wait_for_poll();
    let io = format!("/proc/{pid}/io");
    let (polls, files_before) = (api.asked("getUpdates").len(), files(home));
    let (written, passed) = (field(&io, "write_bytes:"), field(&io, "wchar:"));
    let before = switches(pid);
    let mut seen = before.clone();
    let started = Instant::now();
    while started.elapsed() < length {
        thread::sleep(Duration::from_secs(1));
        // Counts short-lived threads as last seen.
        seen.extend(switches(pid));
    }
    let minutes = length.as_secs_f64() / 60.0;
    let (written, passed) = (
        field(&io, "write_bytes:") - written,
        field(&io, "wchar:") - passed,
    );
    let polls = (api.asked("getUpdates").len() - polls) as u64;
    let changed = files(home) != files_before;
    let sample = sample(pid);
    let woken: Vec<(&(String, u32), u64)> = seen
        .iter()
        .map(|(thread, count)| (thread, count - before.get(thread).copied().unwrap_or(0)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let total: u64 = woken.iter().map(|(_, count)| count).sum();

    println!("{what}, {minutes} minutes, {polls} polls");
    println!(
        "  memory: {} KiB, {} of them in no file; at most {} KiB so far",
        sample.rss, sample.anonymous, sample.peak
    );
    println!(
        "  {} threads, {} descriptors, {} children",
        sample.threads, sample.descriptors, sample.children
    );
    println!(
        "  written to disk: {written} bytes; files changed: {}",
        if changed { "SOME" } else { "none" }
    );
    println!("  written in all, sockets included: {passed} bytes");
    println!(
        "  {:.1} wake-ups a minute, {:.1} for each poll:",
        total as f64 / minutes,
        total as f64 / polls as f64
    );
    let mut by_name: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for ((name, _), count) in woken {
        let of = by_name.entry(name).or_default();
        *of = (of.0 + 1, of.1 + count);
    }
    for (name, (threads, count)) in by_name {
        println!("    {count:>6}  {name} ({threads} threads)");
    }
    let memory = sample.rss <= MOST_MEMORY;
    memory && written == 0 && !changed && total <= MOST_SWITCHES * polls.max(1)
}

/// Runs some turns, with files, a command and a long answer, in three chats at the same time.
fn talk(api: &BotApi) {
    let before = api.asked("sendMessage").len();
    for round in 0..5 {
        for chat in 0..3 {
            api.text(
                OWNER + chat,
                &format!("question {round} {}", "with some words ".repeat(100)),
            );
        }
        api.wait_for_asked("sendMessage", before + (round + 1) * 3);
    }
}

fn main() -> ExitCode {
    let (given, bantam) = given();
    let minutes: f64 = given
        .get(1)
        .map_or(10.0, |minutes| minutes.parse().unwrap());
    let length = Duration::from_secs_f64(minutes * 60.0);

    let model = Model::answering(|request, _| {
        let since = request
            .messages()
            .into_iter()
            .rev()
            .take_while(|message| message["role"] != "user")
            .count();
        match since {
            0 => Reply::calls([
                call("a", "exec", &json!({ "command": "seq 2000" })),
                call("b", "list_dir", &json!({ "path": "." })),
                call(
                    "c",
                    "append_file",
                    &json!({ "path": "log.txt", "content": "a line\n" }),
                ),
            ]),
            _ => Reply::text(&"This is what there is to say about it. ".repeat(60)),
        }
    });
    let api = BotApi::start();
    let bot = json!({ "enabled": true, "token": TOKEN, "allow_from": [OWNER, OWNER + 1, OWNER + 2], "api_base": api.base() });
    let extra = json!({ "channels": { "telegram": bot }, "cron": { "enabled": true }, "heartbeat": { "enabled": false } });
    let home = Home::with(&merged(model.config(), &extra));
    let job = "cron add -m hello -e 31536000 --to telegram:42".split(' ');
    assert!(
        command(&bantam, &home.path(""))
            .args(job)
            .status()
            .unwrap()
            .success(),
        "the job was not added"
    );

    let mut gateway = command(&bantam, &home.path(""))
        .arg("gateway")
        .spawn()
        .unwrap();
    let pid = gateway.id();
    let mut good = watch(
        "before anybody has written",
        pid,
        &home.path(""),
        &api,
        length,
    );
    talk(&api);
    println!(
        "\na conversation of 15 turns; right after it: {} KiB\n",
        sample(pid).rss
    );
    thread::sleep(SETTLED);
    good &= watch("after it", pid, &home.path(""), &api, length);
    stop(&mut gateway);
    println!(
        "\nbudget: at most {MOST_MEMORY} KiB, no byte to disk, no file changed, {MOST_SWITCHES} wake-ups for each poll: {}",
        if good { "kept" } else { "NOT KEPT" }
    );
    ExitCode::from(u8::from(!good))
}
