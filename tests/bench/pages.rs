//! Measures for `tests/bench/pages` the bot while it reads sixteen pages that expand enormously, and the cost of an ordinary
//! page.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

#[allow(dead_code)]
mod process;
#[allow(dead_code)] // the tests use the rest of it
#[path = "../support/mod.rs"]
mod support;

use process::sample;
use support::botapi::{BotApi, TOKEN};
use support::harness::{Home, merged};
use support::heavy::{heavy_pages, packed};
use support::model::{Model, Reply, call};

/// Maximum memory of the parent in KiB meanwhile, and maximum delay of an answer in another chat.
const MOST_MEMORY: u64 = 12 << 10;
const LATEST: Duration = Duration::from_secs(2);
/// Maximum extra cost of a page, compared with the older program.
const MOST_MORE: f64 = 10.0;
/// Chats that request pages, each eight at the same time.
const READERS: [i64; 2] = [42, 43];
const AT_ONCE: usize = 8;
const OTHER: i64 = 44;
/// Number of ordinary pages, fetched in sequence.
const FETCHES: usize = 40;

fn main() -> ExitCode {
    let programs: Vec<PathBuf> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .map(PathBuf::from)
        .collect();
    let Some(bantam) = programs.first() else {
        eprintln!("tests/bench/pages BANTAM [OLDER]");
        return ExitCode::from(2);
    };
    let mut is_good = hostile(bantam);
    let costs: Vec<f64> = programs.iter().map(|program| ordinary(program)).collect();
    println!("an ordinary page: {:.1} ms", costs[0]);
    if let Some(older) = costs.get(1) {
        println!("with the older program: {older:.1} ms");
        is_good &= costs[0] < older + MOST_MORE;
    }
    if is_good {
        ExitCode::SUCCESS
    } else {
        println!("above the budget");
        ExitCode::FAILURE
    }
}

/// Runs a bot that reads sixteen hostile pages at the same time, while another chat asks a short question.
fn hostile(bantam: &Path) -> bool {
    let sites: Vec<String> = heavy_pages()
        .iter()
        .map(|(_, kind, page)| packed(kind, page))
        .collect();
    let model = Model::answering(move |request, _| {
        let is_reader = request.last("user").contains("read them");
        if !is_reader || !request.texts("tool").is_empty() {
            return Reply::text("Done.");
        }
        let urls = sites.iter().cycle().take(AT_ONCE).enumerate();
        Reply::calls(urls.map(|(n, url)| {
            let args = json!({ "url": format!("{url}?{n}"), "max_chars": 500 });
            call(&format!("c{n}"), "web_fetch", &args)
        }))
    });
    let api = BotApi::start();
    let allowed: Vec<i64> = READERS.into_iter().chain([OTHER]).collect();
    let settings = json!({
        "channels": { "telegram": { "enabled": true, "token": TOKEN, "allow_from": allowed, "api_base": api.base() } },
        "tools": { "web": { "fetch": { "allow_private": true, "timeout": 60 } } },
    });
    let home = Home::with(&merged(model.config(), &settings));
    let mut gateway = Command::new(bantam)
        .arg("gateway")
        .env_clear()
        .env("BANTAM_HOME", home.path(""))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = gateway.id();
    api.text(OTHER, "hello");
    api.wait_for_texts(OTHER, 1);
    let before = sample(pid);
    for chat in READERS {
        api.text(chat, "read them");
    }
    // Both have been asked, and their pages are arriving.
    model.wait_for_requests(3);
    let mut latest = Duration::ZERO;
    let mut answers = 1;
    while READERS.iter().any(|chat| api.texts(*chat).is_empty()) {
        let asked = Instant::now();
        api.text(OTHER, "hello");
        answers += 1;
        api.wait_for_texts(OTHER, answers);
        latest = latest.max(asked.elapsed());
        thread::sleep(Duration::from_millis(200));
    }
    let after = sample(pid);
    gateway.kill().unwrap();
    gateway.wait().unwrap();
    println!(
        "{} hostile pages at once: the bot's own memory {} KiB before, {} at most; {} answers to another chat, the latest after {:.2} s",
        READERS.len() * AT_ONCE,
        before.rss,
        after.peak,
        answers - 1,
        latest.as_secs_f64(),
    );
    after.peak < MOST_MEMORY && latest < LATEST
}

/// Returns the median time for a page of 30 KB, in milliseconds.
fn ordinary(bantam: &Path) -> f64 {
    let text =
        "<p>Some <b>words</b> and <a href=x>a link</a>, as pages have them.</p>\n".repeat(450);
    let site = packed("text/html", &format!("<title>A page</title>{text}"));
    let model = Model::answering(move |request, _| {
        let done = request.texts("tool").len();
        if done == FETCHES {
            return Reply::text("Done.");
        }
        Reply::call("web_fetch", &json!({ "url": format!("{site}?{done}") }))
    });
    let settings = json!({
        "agents": { "defaults": { "max_tool_iterations": FETCHES + 5 } },
        "tools": { "web": { "fetch": { "allow_private": true } } },
    });
    let home = Home::with(&merged(model.config(), &settings));
    let output = Command::new(bantam)
        .args(["agent", "--json", "-m", "read it"])
        .env_clear()
        .env("BANTAM_HOME", home.path(""))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut times: Vec<f64> = said["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["ms"].as_f64().unwrap())
        .collect();
    assert_eq!(times.len(), FETCHES, "{said}");
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
