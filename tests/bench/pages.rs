//! Measures for `tests/bench/pages` the time for an ordinary page.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use serde_json::{Value, json};

#[allow(dead_code)] // the tests use the rest of it
#[path = "../support/mod.rs"]
mod support;

use support::harness::{Home, merged};
use support::heavy::packed;
use support::model::{Model, Reply};

/// Maximum extra cost of a page, compared with the older program.
const MOST_MORE: f64 = 10.0;
/// Number of ordinary pages, fetched in sequence.
const FETCHES: usize = 40;

fn main() -> ExitCode {
    let programs: Vec<PathBuf> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .map(PathBuf::from)
        .collect();
    if programs.is_empty() {
        eprintln!("tests/bench/pages BANTAM [OLDER]");
        return ExitCode::from(2);
    }
    let costs: Vec<f64> = programs.iter().map(|program| ordinary(program)).collect();
    println!("an ordinary page: {:.1} ms", costs[0]);
    if let Some(older) = costs.get(1) {
        println!("with the older program: {older:.1} ms");
        if costs[0] >= older + MOST_MORE {
            println!("above the budget");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
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
