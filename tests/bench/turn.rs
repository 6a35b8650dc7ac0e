//! Measures for `tests/bench/turn` one question to `bantam agent`, with its configuration, workspace and session on disk,
//! compared with a call of `curl` that sends the same bytes to the same server and reads the same answer.
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, io, mem, thread};

#[allow(dead_code)] // the tests use the rest of it
#[path = "../root/seccomp_trace.rs"]
mod seccomp_trace;
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;
#[path = "../root/syncs.rs"]
mod syncs;

/// Number of runs of each kind. The kinds alternate, so that other load of the machine affects all equally.
const ROUNDS: usize = 100;
/// Maximum CPU time of a turn, in percent of curl's.
const BUDGET: u32 = 50;
/// Maximum number of waits for the disk in one turn.
const MOST_SYNCS: usize = 4;

/// Returns the server's answer, streamed like a real one.
fn answer() -> String {
    let event = |delta: &str, finish: &str| {
        format!(
            "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{{\
             \"index\":0,\"delta\":{{{delta}}},\"finish_reason\":{finish}}}]}}\n\n"
        )
    };
    let words = "It has not rained for nine days, so water the tomatoes in the evening."
        .split_inclusive(' ');
    let mut events = event("\"role\":\"assistant\",\"content\":\"\"", "null");
    words.for_each(|word| events += &event(&format!("\"content\":\"{word}\""), "null"));
    events + &event("", "\"stop\"") + "data: [DONE]\n\n"
}

/// Serves the answer to every request, and stores the body of the last one.
fn serve(listener: TcpListener) -> Arc<Mutex<Vec<u8>>> {
    let last = Arc::new(Mutex::new(Vec::new()));
    let kept = last.clone();
    let answer = answer();
    let reply = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{answer}",
        answer.len()
    );
    thread::spawn(move || {
        for stream in listener.incoming() {
            *kept.lock().unwrap() = exchange(stream.unwrap(), &reply).unwrap();
        }
    });
    last
}

fn exchange(mut stream: TcpStream, reply: &str) -> io::Result<Vec<u8>> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line)? > 2 {
        if let Some((name, value)) = line.split_once(':') {
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    stream.write_all(reply.as_bytes())?;
    Ok(body)
}

/// Resources used by one process.
struct Cost {
    /// User and system time of all its threads.
    cpu: Duration,
    /// Peak memory in KiB.
    memory: u32,
}

/// Runs a command, which must succeed, to its end.
#[allow(clippy::zombie_processes)] // wait4 waits for it, and tells more
fn cost(command: &mut Command) -> Cost {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // With a closure, the program is started by fork instead of in this process's memory, whose size the kernel would count as
    // its peak.
    // SAFETY: it has no effect.
    unsafe { command.pre_exec(|| Ok(())) };
    let child = command.spawn().unwrap();
    let (mut status, pid) = (0, i32::try_from(child.id()).unwrap());
    // SAFETY: all zeroes is a valid rusage, and both live through the call. Only this call waits for the child.
    let usage = unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        assert_eq!(libc::wait4(pid, &raw mut status, 0, &raw mut usage), pid);
        usage
    };
    assert_eq!(status, 0, "{command:?} did not end well");
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec.try_into().unwrap())
            + Duration::from_micros(t.tv_usec.try_into().unwrap())
    };
    Cost {
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        memory: usage.ru_maxrss.try_into().unwrap(),
    }
}

/// Returns the median.
fn median<T: Ord + Copy>(mut values: Vec<T>) -> T {
    values.sort_unstable();
    values[values.len() / 2]
}

struct Bench {
    bantam: PathBuf,
    dir: PathBuf,
    base: String,
}

impl Bench {
    fn turn(&self, session: &str) -> Command {
        let mut turn = Command::new(&self.bantam);
        turn.args(["agent", "-s", session, "-m", "Should I water the tomatoes?"]);
        turn.env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("BANTAM_HOME", self.dir.join("home"));
        turn
    }

    fn curl(&self) -> Command {
        let mut curl = Command::new("curl");
        curl.args([
            "-sS",
            "-H",
            "content-type: application/json",
            "-H",
            "authorization: Bearer k",
            "--data-binary",
        ]);
        curl.arg(format!("@{}", self.dir.join("body.json").display()))
            .arg(format!("{}/chat/completions", self.base));
        curl.env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &self.dir);
        curl
    }
}

fn main() -> ExitCode {
    // `cargo bench` adds an extra flag.
    let given = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let built = given.map_or_else(
        || PathBuf::from(env!("CARGO_BIN_EXE_bantam")),
        PathBuf::from,
    );
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-turn");
    if dir.exists() {
        fs::remove_dir_all(&dir).unwrap();
    }
    fs::create_dir_all(dir.join("home")).unwrap();
    // Copied sequentially, as if installed, like curl. A linker writes in random order, so that the kernel caches the file in
    // small pieces, which costs a third more at every start.
    let bantam = dir.join("bantam");
    fs::copy(&built, &bantam).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}/v1", listener.local_addr().unwrap());
    let last = serve(listener);
    let config = format!(
        "{{\"agents\":{{\"defaults\":{{\"model_name\":\"m\"}}}},\
         \"model_list\":[{{\"model_name\":\"m\",\"model\":\"openai/m\",\"api_base\":\"{base}\",\"api_key\":\"k\"}}]}}"
    );
    fs::write(dir.join("home/config.json"), config).unwrap();
    let bench = Bench { bantam, dir, base };

    // The first run creates the workspace, and records the bytes for curl.
    cost(&mut bench.turn("first"));
    fs::write(bench.dir.join("body.json"), &*last.lock().unwrap()).unwrap();

    let (mut begun, mut went_on, mut curl) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..ROUNDS {
        let session = format!("bench-{n}");
        begun.push(cost(&mut bench.turn(&session)));
        curl.push(cost(&mut bench.curl()));
        went_on.push(cost(&mut bench.turn(&session)));
    }

    println!(
        "One question, an answer of 14 words streamed over loopback HTTP; {ROUNDS} of each in turn.\n"
    );
    println!(
        "{:<28} {:>10} {:>8} {:>12} {:>8}",
        "", "CPU, ms", "of curl", "peak, KiB", "of curl"
    );
    let of = |costs: &[Cost]| {
        (
            median(costs.iter().map(|c| c.cpu).collect()),
            median(costs.iter().map(|c| c.memory).collect()),
        )
    };
    let (curl_cpu, curl_memory) = of(&curl);
    let mut good = true;
    for (name, costs) in [
        ("curl", &curl),
        ("bantam, a new session", &begun),
        ("bantam, one that goes on", &went_on),
    ] {
        let (cpu, memory) = of(costs);
        let ms = cpu.as_secs_f64() * 1000.0;
        let shares = [
            cpu.as_secs_f64() / curl_cpu.as_secs_f64(),
            f64::from(memory) / f64::from(curl_memory),
        ];
        println!(
            "{name:<28} {ms:>10.2} {:>8.2} {memory:>12} {:>8.2}",
            shares[0], shares[1]
        );
        good &= name == "curl" || cpu * 100 < curl_cpu * BUDGET;
    }
    println!();
    for (what, session) in [
        ("a new session", "counted"),
        ("one that goes on", "counted"),
    ] {
        let (status, syncs) =
            syncs::counted(|| bench.turn(session).stdout(Stdio::null()).status().unwrap());
        println!("waits for the disk, {what}: {syncs}");
        good &= status.success() && syncs <= MOST_SYNCS;
    }
    let kept = if good { "kept" } else { "NOT KEPT" };
    println!("\nbudget: under {BUDGET} % of curl's CPU, at most {MOST_SYNCS} waits: {kept}");
    ExitCode::from(u8::from(!good))
}
