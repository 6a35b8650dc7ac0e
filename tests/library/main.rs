//! Runs the programs of docs/examples like other crates do: against the crate alone, with their own `main`. Each runs in a
//! separate process of this program, with the arguments `run NAME`, and uses a scripted model.
//!
//! ```text
//! cargo test --test library -- run ask
//! ```
//!
//! This has a custom `main` because worker processes also run this program. Panics unwind here, as in most programs.

#![allow(clippy::unwrap_used)]

/// Returns the tests of a module with their names.
macro_rules! tests {
    ($module:ident, [$($test:ident),* $(,)?]) => {
        &[$((concat!(stringify!($module), "::", stringify!($test)), $test)),*]
    };
}

#[path = "../../docs/examples/ask.rs"]
mod ask;
#[path = "../../docs/examples/channel.rs"]
mod channel;
#[path = "../../docs/examples/chat.rs"]
mod chat;
mod edges;
#[path = "../../docs/examples/exec.rs"]
mod exec;
mod homes;
#[path = "../../docs/examples/limits.rs"]
mod limits;
#[path = "../../docs/examples/mcp.rs"]
mod mcp;
mod panics;
mod pieces;
#[path = "../../docs/examples/pipe_channel.rs"]
mod pipe_channel;
mod policies;
mod programs;
#[path = "../../docs/examples/research.rs"]
mod research;
#[path = "../../docs/examples/resume.rs"]
mod resume;
mod serving;
#[path = "../../docs/examples/sessions.rs"]
mod sessions;
#[path = "../../docs/examples/store.rs"]
mod store;
mod stores;
#[path = "../../docs/examples/stream.rs"]
mod stream;
#[path = "../../docs/examples/subagents.rs"]
mod subagents;
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;
#[path = "../../docs/examples/tool.rs"]
mod tool;
#[path = "../../docs/examples/tool_test.rs"]
mod tool_test;
#[path = "../../docs/examples/usage.rs"]
mod usage;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use bantam::Result;

type Program = (&'static str, fn() -> Result<()>);

const PROGRAMS: &[Program] = &[
    ("ask", ask::main),
    ("channel", channel::main),
    ("chat", chat::main),
    ("mcp", mcp::main),
    ("exec", exec::main),
    ("limits", limits::main),
    ("pipe_channel", pipe_channel::main),
    ("policies", policies::main),
    ("homes", homes::main),
    ("research", research::main),
    ("resume", resume::main),
    ("serving", serving::main),
    ("sessions", sessions::main),
    ("store", store::main),
    ("stream", stream::main),
    ("subagents", subagents::main),
    ("tool", tool::main),
    ("tool_test", tool_test::main),
    ("usage", usage::main),
];

type Test = (&'static str, fn());

/// Number of tests that run at the same time; most of them wait.
const AT_ONCE: usize = 4;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        // The programs do this first.
        Some("worker" | "worker-inside") => {
            bantam::init();
            ExitCode::FAILURE
        }
        Some("run") => run(args.get(1).map_or("", String::as_str)),
        _ => test(&args),
    }
}

fn run(name: &str) -> ExitCode {
    let Some((_, main)) = PROGRAMS.iter().find(|(program, _)| *program == name) else {
        let names: Vec<&str> = PROGRAMS.iter().map(|(name, _)| *name).collect();
        eprintln!("the programs are: {}", names.join(", "));
        return ExitCode::FAILURE;
    };
    match main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the tests whose names contain one of the arguments, and reports the results in the format of Rust's own tests.
fn test(args: &[String]) -> ExitCode {
    let mut words = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if arg == "--test-threads" {
            rest.next();
        } else if !arg.starts_with('-') {
            words.push(arg.as_str());
        }
    }
    let tests = [
        programs::TESTS,
        pieces::TESTS,
        panics::TESTS,
        serving::TESTS,
        edges::TESTS,
        policies::TESTS,
        homes::TESTS,
        stores::TESTS,
    ]
    .concat();
    let is_wanted =
        |(name, _): &Test| words.is_empty() || words.iter().any(|word| name.contains(word));
    let (wanted, others): (Vec<Test>, Vec<Test>) = tests.into_iter().partition(is_wanted);
    if args.iter().any(|arg| arg == "--list") {
        for (name, _) in wanted {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", wanted.len());
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((name, test)) = wanted.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let passed = catch_unwind(test).is_ok();
                    println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
                    if !passed {
                        failed.lock().unwrap().push(*name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    let (word, filtered) = (
        if failed.is_empty() { "ok" } else { "FAILED" },
        others.len(),
    );
    let (passed, lost) = (wanted.len() - failed.len(), failed.len());
    println!(
        "\ntest result: {word}. {passed} passed; {lost} failed; 0 ignored; 0 measured; {filtered} filtered out\n"
    );
    ExitCode::from(u8::from(lost > 0) * 101)
}
