//! Measures for `tests/bench/sessions` questions to the program in homes with few and many conversations, and turns at several
//! positions of one long conversation, each in a separate process that loads the session, asks a model in that process, and
//! stores the result.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use bantam::{
    Agent, CallContext, Function, Message, ModelRequest, Provider, ProviderError, Reply, Request,
    Risk, Sink, ToolCall, Usage,
};
use bantam::{FileStore, Store};

/// Positions of measured turns, in messages. A turn has four messages.
const MARKS: [usize; 4] = [20, 200, 2_000, 20_000];
/// Number of measured positions, and their distance in turns. A compacted conversation costs less just after compaction and
/// more just before, so the positions together cover about one period.
const PLACES: usize = 8;
const APART: usize = 24;
/// Number of turns per position.
const ROUNDS: usize = 5;
/// Maximum cost of a late turn, relative to an earlier one.
const BUDGET: f64 = 1.5;

/// Calls a tool once in each turn, then answers, and counts like most hosts: about four bytes per token.
struct Model;

impl Provider for Model {
    fn model(&self) -> &'static str {
        "bench/x"
    }

    fn chat(&self, request: &ModelRequest, _: &dyn Sink) -> Result<Reply, ProviderError> {
        // Like a provider, creates the request's body.
        let prompt = self.preview(request).to_string().len() as u64 / 4;
        let usage = Usage {
            prompt_tokens: prompt,
            completion_tokens: 200,
            cached_tokens: 0,
        };
        let reply = match request.messages.last() {
            Some(Message::User(_)) if !request.tools.is_empty() => {
                let arguments = format!(
                    "{{\"thought\":\"{}\"}}",
                    "I look at it from all sides. ".repeat(60)
                );
                let call = ToolCall {
                    id: "c".into(),
                    name: "think".into(),
                    arguments,
                    ..ToolCall::default()
                };
                Reply {
                    calls: vec![call],
                    ..Reply::default()
                }
            }
            _ => Reply {
                text: "This is what there is to say about it. ".repeat(20),
                ..Reply::default()
            },
        };
        Ok(Reply { usage, ..reply })
    }
}

fn think() -> Function {
    let schema = r#"{"type":"object","properties":{"thought":{"type":"string"}}}"#;
    let noted = |_: serde_json::Value, _: &CallContext| Ok("Noted.");
    Function::new("think", "Write down a thought.", schema, noted).risk(Risk::Safe)
}

fn turn(home: &Path) {
    let agent = Agent::builder()
        .provider(Model)
        .tool(think())
        .store(FileStore::at(home));
    let question =
        "And what about the other thing that we talked about, what is there to know? ".repeat(2);
    let response = agent
        .build()
        .unwrap()
        .run(&Request::new(question, "s"), &|_| ());
    assert!(response.error.is_none(), "{:?}", response.error);
}

fn field(file: &str, name: &str) -> f64 {
    let text = fs::read_to_string(file).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the CPU time of the only thread so far, in milliseconds.
fn processor() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace()
        .next()
        .unwrap()
        .parse::<f64>()
        .unwrap()
        / 1e6
}

/// Runs one turn in this process, and prints its cost.
fn measured(home: &Path) {
    let (started, written, before) = (
        Instant::now(),
        field("/proc/self/io", "wchar:"),
        processor(),
    );
    turn(home);
    let (after, took) = (processor(), started.elapsed().as_secs_f64() * 1000.0);
    let written = (field("/proc/self/io", "wchar:") - written) / 1000.0;
    let (peak, again) = (field("/proc/self/status", "VmHWM:") / 1000.0, processor());
    let store = FileStore::at(home);
    let guard = store.lock("s").unwrap();
    let loaded = store.read("s").unwrap();
    let load = processor() - again;
    drop((loaded, guard));
    println!("{took} {} {written} {peak} {load}", after - before);
}

/// Time in ms, CPU time in ms, KB written, peak memory in MB, CPU time for loading alone in ms, size of the live file in KB.
type Cost = [f64; 6];
const NAMES: [&str; 6] = [
    "ms",
    "cpu ms",
    "KB written",
    "peak MB",
    "cpu of load",
    "KB live",
];
/// Costs with a budget. The time of a turn is excluded, because it depends on other load of the machine.
const JUDGED: [usize; 3] = [1, 2, 3];

/// Returns the median cost of several such turns, each with the conversation in `home`.
fn cost(home: &Path) -> Cost {
    let copy = home.with_extension("copy");
    let mut rounds: Vec<Vec<f64>> = Vec::new();
    for _ in 0..ROUNDS {
        drop(fs::remove_dir_all(&copy));
        fs::create_dir_all(copy.join("sessions")).unwrap();
        fs::copy(home.join("sessions/s.jsonl"), copy.join("sessions/s.jsonl")).unwrap();
        let ran = Command::new(std::env::current_exe().unwrap())
            .arg("--turn")
            .arg(&copy)
            .output()
            .unwrap();
        let out = String::from_utf8(ran.stdout).unwrap();
        rounds.push(
            out.split_whitespace()
                .map(|number| number.parse().unwrap())
                .collect(),
        );
    }
    let median = |at: usize| {
        let mut values: Vec<f64> = rounds.iter().map(|round| round[at]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let live = fs::metadata(home.join("sessions/s.jsonl")).unwrap().len() as f64 / 1000.0;
    fs::remove_dir_all(copy).unwrap();
    [median(0), median(1), median(2), median(3), median(4), live]
}

fn line(name: &str, cost: Cost) {
    print!("{name:<26}");
    for value in cost {
        print!(" {value:>11.2}");
    }
    println!();
}

/// Numbers of conversations in the homes that are compared.
const CROWDS: [usize; 2] = [10, 10_000];
/// Maximum cost of a question in the larger one, relative to the smaller one.
const CROWD_BUDGET: f64 = 1.05;
/// Ways to ask: in a new conversation, in the newest, in a named one.
const WAYS: [&[&str]; 3] = [&[], &["-c"], &["-s", "kept"]];

/// Asks the built-in demo a question, run by this program with these arguments.
fn ask(runner: &[&str], home: &Path, way: &[&str]) {
    let mut command = Command::new(runner[0]);
    command.args(&runner[1..]).arg(env!("CARGO_BIN_EXE_bantam"));
    command.args(["agent", "-n", "--model", "demo/demo", "-m", "hello"]);
    let command = command.args(way).env_clear().env("BANTAM_HOME", home);
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
}

/// Makes a home with this many conversations, as many lines of usage, and what else each question leaves.
fn crowd(home: &Path, count: usize) {
    drop(fs::remove_dir_all(home));
    fs::create_dir_all(home).unwrap();
    let plain = ["env"];
    ask(&plain, home, &["-s", "kept"]);
    let first = fs::read_dir(home.join("usage"))
        .into_iter()
        .flatten()
        .next();
    let usage = first.map(|file| file.unwrap().path());
    let line = usage.as_ref().map(|file| fs::read_to_string(file).unwrap());
    for n in 0..count {
        for (dir, suffix) in [("sessions", "jsonl"), ("state/locks", "lock")] {
            let dir = home.join(dir);
            let (from, to) = (format!("cli_kept.{suffix}"), format!("cli_+k{n}.{suffix}"));
            fs::copy(dir.join(from), dir.join(to)).unwrap();
        }
    }
    if let (Some(usage), Some(line)) = (usage, line) {
        fs::write(usage, line.repeat(count)).unwrap();
    }
    ask(&plain, home, &[]);
}

/// Returns the smallest number of instructions and of system calls of several such questions.
fn counted(home: &Path, way: &[&str]) -> [f64; 2] {
    let out = home.with_extension("out");
    let to = format!("--callgrind-out-file={}", out.display());
    let callgrind = ["/usr/bin/valgrind", "--tool=callgrind", &to];
    let strace = ["/usr/bin/strace", "-f", "-c", "-o", out.to_str().unwrap()];
    let least = |runner: &[&str], place: &str, field: usize| {
        let once = |_| {
            ask(runner, home, way);
            let text = fs::read_to_string(&out).unwrap();
            let mut lines = text.lines();
            let line = lines.rfind(|line| line.contains(place)).unwrap();
            line.split_whitespace().nth(field).unwrap().parse().unwrap()
        };
        (0..ROUNDS).map(once).fold(f64::MAX, f64::min)
    };
    [least(&callgrind, "totals:", 1), least(&strace, " total", 3)]
}

/// Compares questions in the homes of [`CROWDS`], and returns whether the budget was kept.
fn crowds_cost_the_same(dir: &Path) -> bool {
    let [few, many] = CROWDS.map(|count| {
        let home = dir.join(count.to_string());
        crowd(&home, count);
        WAYS.map(|way| counted(&home, way))
    });
    let mut good = true;
    println!(
        "A question among {} conversations, and among {}:",
        CROWDS[0], CROWDS[1]
    );
    for ((way, few), many) in WAYS.iter().zip(few).zip(many) {
        let name = if way.is_empty() {
            "new".to_owned()
        } else {
            way.join(" ")
        };
        print!("{name:<10}");
        for ((what, few), many) in ["instructions", "system calls"].iter().zip(few).zip(many) {
            let ratio = many / few;
            print!(" {what} {few:>9} {many:>9} x{ratio:.3}");
            good &= ratio <= CROWD_BUDGET;
        }
        println!();
    }
    let kept = if good { "kept" } else { "NOT KEPT" };
    println!("budget: up to {CROWD_BUDGET} times: {kept}\n");
    good
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    if let [flag, home] = args.as_slice() {
        assert_eq!(flag, "--turn");
        measured(Path::new(home));
        return ExitCode::SUCCESS;
    }
    let most = args.first().map_or(MARKS[3], |most| most.parse().unwrap());
    let home: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-sessions");
    drop(fs::remove_dir_all(&home));
    fs::create_dir_all(&home).unwrap();

    let mut good = crowds_cost_the_same(&home);
    println!(
        "One conversation of {most} messages, four to a turn, with a window of 131,072 tokens."
    );
    println!(
        "Each figure is of one turn in a process of its own: load, ask twice in the process, store.\n"
    );
    print!("{:<26}", "");
    for name in NAMES {
        print!(" {name:>11}");
    }
    println!();
    let (mut messages, mut marks, mut all, mut written) = (0, Vec::new(), Vec::new(), 0.0);
    for mark in MARKS.into_iter().filter(|mark| *mark <= most) {
        // Later positions are measured over a whole period between compactions.
        let places = if mark < 1000 { 1 } else { PLACES };
        let mut costs: Vec<Cost> = Vec::new();
        for place in 0..places {
            let before = field("/proc/self/io", "wchar:");
            while messages < mark + place * APART * 4 {
                turn(&home);
                messages += 4;
            }
            written += field("/proc/self/io", "wchar:") - before;
            costs.push(cost(&home));
        }
        all.extend(costs.iter().copied());
        let mean = |at: usize| costs.iter().map(|cost| cost[at]).sum::<f64>() / costs.len() as f64;
        let mean = [mean(0), mean(1), mean(2), mean(3), mean(4), mean(5)];
        line(&format!("at message {mark}"), mean);
        marks.push((mark, mean));
    }
    println!("\nby the size of the live file");
    all.sort_by(|a, b| a[5].total_cmp(&b[5]));
    for cost in all {
        line("", cost);
    }
    let segments = fs::read_dir(home.join("sessions")).unwrap().count() - 1;
    let written = written / 1000.0 / (messages / 4) as f64;
    println!(
        "\n{segments} segments were put aside. With what they took, a turn wrote {written:.2} KB on average.\n"
    );
    for two in marks.windows(2) {
        let ((early, before), (late, after)) = (two[0], two[1]);
        let ratio = |at: usize| after[at] / before[at];
        print!("message {late} in terms of message {early}:");
        for (at, name) in NAMES.iter().enumerate().take(4) {
            print!(" {name} x{:.2}", ratio(at));
        }
        println!();
        // Earlier, the file has not reached its final size.
        if early >= 1000 {
            good &= JUDGED.into_iter().all(|at| ratio(at) < BUDGET);
        }
    }
    fs::remove_dir_all(home).unwrap();
    println!(
        "\nbudget: under {BUDGET} times, once the live file is as long as it gets: {}",
        if good { "kept" } else { "NOT KEPT" }
    );
    ExitCode::from(u8::from(!good))
}
