//! Measures what `tests/bench/jail` prints: one `exec` call as `bantam` makes it, a hands process from its start to its
//! end, against a bare spawn of the same command.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use bantam::child::{self, Network};
use bantam::hands::{self, Confinement};
use bantam::wire::{self, End, Header, Job, Setup};

/// Of each kind. They are taken in turn, so that whatever else the machine does meets all of them alike.
const ROUNDS: usize = 100;
/// What a jail may cost beyond the bare spawn.
const BUDGET: Duration = Duration::from_millis(40);
const COMMAND: &str = "true";

fn bare() -> Duration {
    let started = Instant::now();
    let status = child::command(Path::new("/bin/sh")).args(["-c", COMMAND]).status().unwrap();
    assert!(status.success());
    started.elapsed()
}

/// The time of one call, or why this way is not to be had here.
fn held(bantam: &Path, workspace: &Path, way: Confinement) -> Result<Duration, String> {
    let setup = Setup {
        way,
        network: Network::None,
        workspace: workspace.to_owned(),
        agent_dir: None,
        read_paths: Vec::new(),
        write_paths: Vec::new(),
        all_except: None,
        memory_mb: 512,
    };
    let setup = serde_json::to_string(&setup).unwrap();
    let job = Job::Exec { command: COMMAND.into(), working_dir: ".".into(), timeout_secs: 10, env: Vec::new() };
    let started = Instant::now();
    let mut process = child::command(bantam)
        .args([hands::ROLE, &setup])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // One that is not to be had does not read the job; its reply says why.
    drop(process.stdin.as_mut().unwrap().write_all(&wire::encode_job(&job).unwrap()));
    let reply = wire::receive_reply(process.stdout.as_mut().unwrap()).unwrap();
    drop(process.stdin.take());
    process.wait().unwrap();
    let took = started.elapsed();
    match reply.header {
        Header::Exited { end: End::Code(0), .. } => Ok(took),
        Header::Unavailable { why } | Header::Refused { why } => Err(why),
        other => Err(format!("the command did not end well: {other:?}")),
    }
}

/// The time that a share of them stays below.
fn quantile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100].as_secs_f64() * 1000.0
}

fn main() -> ExitCode {
    // `cargo bench` adds a flag of its own.
    let given = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let bantam = given.map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_bantam")), PathBuf::from);
    let workspace = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-jail");
    std::fs::create_dir_all(&workspace).unwrap();

    let ways = [
        ("namespaces, and Landlock where there is one", Confinement::Namespaces),
        ("Landlock alone", Confinement::Landlock),
    ];
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    for (name, way) in ways {
        match held(&bantam, &workspace, way) {
            Ok(_) => there.push((name, way, Vec::new())),
            Err(why) => missing.push(format!("{name}: skipped, not to be had here: {why}")),
        }
    }
    let mut alone = Vec::new();
    for _ in 0..ROUNDS {
        alone.push(bare());
        for (_, way, times) in &mut there {
            times.push(held(&bantam, &workspace, *way).unwrap());
        }
    }

    println!(
        "One command, /bin/sh -c {COMMAND}, from before the spawn until its end is known; {ROUNDS} of each in turn."
    );
    println!("Jailed: `{} hands`, its jail, the command, the sweep after it, the reply.\n", bantam.display());
    println!("{:<46} {:>9} {:>9} {:>9}", "ms", "median", "90 %", "over bare");
    let base = quantile(&mut alone, 50);
    println!("{:<46} {base:>9.2} {:>9.2}", "bare spawn", quantile(&mut alone, 90));
    let budget = BUDGET.as_secs_f64() * 1000.0;
    let mut good = !there.is_empty();
    for (name, _, times) in &mut there {
        let median = quantile(times, 50);
        let over = median - base;
        println!("{name:<46} {median:>9.2} {:>9.2} {over:>9.2}", quantile(times, 90));
        good &= over < budget;
    }
    for line in missing {
        println!("{line}");
    }
    println!("\nbudget: under {budget} ms over a bare spawn: {}", if good { "kept" } else { "NOT KEPT" });
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
