//! Measures for `tests/bench/jail` one `exec` call of `bantam`, a worker process from start to end, compared with a bare spawn
//! of the same command.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Number of calls of each kind. The kinds alternate, so that other load of the machine affects all equally.
const ROUNDS: usize = 100;
/// Maximum cost of a sandbox, in addition to the bare spawn.
const BUDGET: Duration = Duration::from_millis(40);
const COMMAND: &str = "true";

/// Returns a command with a minimal environment and empty streams.
fn bare(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env(
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    );
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn bare_spawn() -> Duration {
    let started = Instant::now();
    let status = bare(Path::new("/bin/sh"))
        .args(["-c", COMMAND])
        .status()
        .unwrap();
    assert!(status.success());
    started.elapsed()
}

/// Reads the worker's next message: a length of four bytes, and JSON.
fn message(socket: &mut UnixStream) -> Value {
    let mut length = [0; 4];
    socket.read_exact(&mut length).unwrap();
    let mut json = vec![0; u32::from_be_bytes(length) as usize];
    socket.read_exact(&mut json).unwrap();
    serde_json::from_slice(&json).unwrap()
}

/// Returns the time of one call, or why this confinement is unavailable.
fn confined(bantam: &Path, workspace: &Path, confinement: &str) -> Result<Duration, String> {
    let setup = json!({
        "confinement": confinement, "network": "none", "grants": [], "notes": null, "all_except": null,
        "named_sockets": true, "memory_mb": 512, "programs": "command",
        "workspace": { "path": workspace, "real": workspace, "access": "write" },
    });
    let job =
        json!({ "exec": { "command": COMMAND, "working_dir": ".", "timeout_secs": 10, "env": [] } }).to_string();
    let started = Instant::now();
    let (mut socket, theirs) = UnixStream::pair().unwrap();
    let mut command = bare(bantam);
    command
        .arg("worker")
        .env("BANTAM_WORKER_SETUP", setup.to_string())
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    drop(command);
    let mut said = message(&mut socket);
    if said == "ready" {
        let length = u32::try_from(job.len()).unwrap().to_be_bytes();
        socket
            .write_all(&[&length, job.as_bytes()].concat())
            .unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        said = message(&mut socket);
    }
    let mut output = process.stdout.take().unwrap();
    output.read_to_end(&mut Vec::new()).unwrap();
    process.wait().unwrap();
    let took = started.elapsed();
    match &said["done"]["exited"]["code"] {
        Value::Number(code) if code.as_i64() == Some(0) => Ok(took),
        _ => Err(said.to_string()),
    }
}

/// Returns the time that this percentage of calls does not exceed.
fn quantile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100].as_secs_f64() * 1000.0
}

fn main() -> ExitCode {
    // `cargo bench` adds an extra flag.
    let given = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let bantam = given.map_or_else(
        || PathBuf::from(env!("CARGO_BIN_EXE_bantam")),
        PathBuf::from,
    );
    let workspace = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-sandbox");
    std::fs::create_dir_all(&workspace).unwrap();

    let confinements = [
        ("namespaces, and Landlock where there is one", "namespaces"),
        ("Landlock alone", "landlock"),
    ];
    let (mut available, mut missing) = (Vec::new(), Vec::new());
    for (name, confinement) in confinements {
        match confined(&bantam, &workspace, confinement) {
            Ok(_) => available.push((name, confinement, Vec::new())),
            Err(why) => missing.push(format!("{name}: skipped, unavailable here: {why}")),
        }
    }
    let mut alone = Vec::new();
    for _ in 0..ROUNDS {
        alone.push(bare_spawn());
        for (_, confinement, times) in &mut available {
            times.push(confined(&bantam, &workspace, confinement).unwrap());
        }
    }

    println!(
        "One command, /bin/sh -c {COMMAND}, from before the spawn until its end is known; {ROUNDS} of each in turn."
    );
    println!(
        "Sandboxed: `bantam worker`, its sandbox, the command, the sweep after it, the reply.\n"
    );
    println!(
        "{:<46} {:>9} {:>9} {:>9}",
        "ms", "median", "90 %", "over bare"
    );
    let base = quantile(&mut alone, 50);
    println!(
        "{:<46} {base:>9.2} {:>9.2}",
        "bare spawn",
        quantile(&mut alone, 90)
    );
    let budget = BUDGET.as_secs_f64() * 1000.0;
    let mut good = !available.is_empty();
    for (name, _, times) in &mut available {
        let median = quantile(times, 50);
        let over = median - base;
        println!(
            "{name:<46} {median:>9.2} {:>9.2} {over:>9.2}",
            quantile(times, 90)
        );
        good &= over < budget;
    }
    for line in missing {
        println!("{line}");
    }
    println!(
        "\nbudget: under {budget} ms over a bare spawn: {}",
        if good { "kept" } else { "NOT KEPT" }
    );
    ExitCode::from(u8::from(!good))
}
