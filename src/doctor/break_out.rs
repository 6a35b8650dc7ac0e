//! Three commands that try to break out of the sandbox on this machine (files, network, processes), run exactly like the
//! model's commands.
//!
//! All run twice: as plain children of this program, as a control, and then in the sandbox, where they must have no effect.
//! This process checks the effects: in its own file, at its own port, and on a process that it started. Their output counts
//! only if it contains a secret. Each has a time limit; a command that does not end in the sandbox proves nothing.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::process::{Pid, Signal, kill_process_group};

use super::sandbox::{self, LIMIT_SECS, NO_COMMANDS};
use super::{Check, Outcome};
use crate::child::{self, Network};
use crate::error::{Context, Result};
use crate::paths::Home;
use crate::storage;
use crate::sys;
use crate::worker::Workers;
use crate::worker::protocol::Termination;

const NAME: &str = "break-out";

/// Environment of the commands.
pub(crate) struct Subject<'a> {
    pub home: &'a Home,
    pub workers: &'a Workers,
    /// The user's variables that every command gets.
    pub passed: Vec<(String, String)>,
    pub network: Network,
}

/// Connects with any available tool.
const TCP: &str = r#"
if command -v bash; then bash -c '3<>"/dev/tcp/127.0.0.1/$PORT"'
elif command -v python3; then python3 -c 'import os, socket; socket.create_connection(("127.0.0.1", int(os.environ["PORT"])), 2)'
else nc -w 1 127.0.0.1 "$PORT" </dev/null; fi"#;

/// Description and command of each attempt.
const BREAK_OUTS: [(&str, &str); 3] = [
    (
        "read or change a file beside config.json",
        r#"cat "$OUTSIDE"; echo changed >"$OUTSIDE""#,
    ),
    ("connect to a TCP port of this machine", TCP),
    (
        "read the key of another process, or kill it",
        r#"cat "/proc/$VICTIM/environ"; kill -9 "$VICTIM""#,
    ),
];

/// Result of one command.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    had_effect: bool,
    /// Whether it ended within the time limit.
    ended: bool,
}

type Attempts = [Attempt; BREAK_OUTS.len()];
type Variables = Vec<(String, String)>;
/// Runs a command, and returns its output and whether it ended within the time limit.
type RunCommand<'a> = &'a dyn Fn(&str, Variables) -> Result<(Vec<u8>, bool)>;

/// Runs the attempts.
pub(crate) fn run(subject: &Subject) -> Result<Vec<Check>> {
    let dir = &subject.workers.workspace().real;
    let limit = Duration::from_secs(LIMIT_SECS);
    let bare = attack(subject, &|script, variables| {
        run_bare(dir, script, variables, limit)
    })?;
    let sandboxed = attack(subject, &|script, variables| {
        let (printed, end) = sandbox::run(subject.workers, script, variables)?;
        Ok((printed, end != Termination::TimedOut))
    })?;
    let mut checks = Vec::new();
    for (n, (tries, command)) in BREAK_OUTS.iter().enumerate() {
        let is_open = *command == TCP && subject.network == Network::Full;
        checks.push(judge(tries, is_open, bare[n], sandboxed[n]));
    }
    Ok(summarize(checks))
}

/// Combines all stopped attempts into one line.
fn summarize(mut checks: Vec<Check>) -> Vec<Check> {
    let count = checks.len();
    checks.retain(|check| check.outcome != Outcome::Ok);
    let stopped = count - checks.len();
    if stopped > 0 {
        let found =
            format!("{stopped} of {count} attempts stopped, at files, network and processes");
        checks.insert(0, Check::ok(NAME, found));
    }
    checks
}

/// Judges one attempt. `is_open` means that the configuration allows commands to reach its target.
fn judge(tries: &str, is_open: bool, bare: Attempt, sandboxed: Attempt) -> Check {
    if sandboxed.had_effect && is_open {
        return Check::info(
            NAME,
            format!("{tries}: allowed, because tools.exec.network is \"full\""),
        )
        .fix("bantam config set tools.exec.network none");
    }
    if sandboxed.had_effect {
        return Check::fail(NAME, format!("{tries}: ESCAPED")).fix(format!(
            "until this is fixed, do without commands: {NO_COMMANDS}"
        ));
    }
    if !bare.had_effect {
        return Check::info(
            NAME,
            format!("{tries}: not tested, because it fails here without a sandbox, too"),
        );
    }
    if !sandboxed.ended {
        return Check::info(
            NAME,
            format!("{tries}: not tested, because it did not end within {LIMIT_SECS} s"),
        );
    }
    Check::ok(NAME, format!("{tries}: stopped"))
}

/// Runs a command as a plain child, for the control.
fn run_bare(
    dir: &Path,
    command: &str,
    variables: Variables,
    limit: Duration,
) -> Result<(Vec<u8>, bool)> {
    let mut shell = child::command(Path::new(child::SHELL));
    shell
        .args(["-c", command])
        .envs(variables)
        .current_dir(dir)
        .stdout(Stdio::piped())
        .process_group(0);
    let mut shell = shell.spawn().doing("running /bin/sh")?;
    let until = Instant::now() + limit;
    let (mut printed, mut ended) = (Vec::new(), false);
    if let Some(mut output) = shell.stdout.take() {
        let mut piece = [0; 4096];
        while !ended && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            if sys::poll(&[(output.as_fd(), PollFlags::IN)], Some(left))?[0] {
                let len = output.read(&mut piece)?;
                printed.extend(&piece[..len]);
                ended = len == 0;
            }
        }
    }
    if !ended {
        kill_process_group(Pid::from_child(&shell), Signal::KILL).ok();
    }
    shell.wait()?;
    Ok((printed, ended))
}

/// Creates the targets of the commands, runs them all, and removes the targets.
fn attack(subject: &Subject, run: RunCommand) -> Result<Attempts> {
    let mark = format!(".bantam-doctor-{}-{}", std::process::id(), random());
    let dir = subject.home.root().join(mark);
    storage::make_dir(&dir).map_err(|e| subject.home.hinted(e))?;
    let attempts = attempts(subject, &dir, run).doing("trying to break out");
    storage::remove(&dir)?;
    attempts
}

fn attempts(subject: &Subject, dir: &Path, run: RunCommand) -> Result<Attempts> {
    let (content, key, outside) = (random(), random(), dir.join("outside"));
    storage::write_new(&outside, content.as_bytes())?;
    let tcp = TcpListener::bind(("127.0.0.1", 0))?;
    tcp.set_nonblocking(true)?;
    // The target process ends with its input.
    let mut victim = child::command(Path::new(child::SHELL));
    victim
        .args(["-c", "read -r line"])
        .env("KEY", &key)
        .stdin(Stdio::piped());
    let mut victim = victim.spawn().doing("running /bin/sh")?;
    let mut variables = subject.passed.clone();
    for (name, value) in [
        ("OUTSIDE", outside.display().to_string()),
        ("PORT", tcp.local_addr()?.port().to_string()),
        ("VICTIM", victim.id().to_string()),
    ] {
        variables.push((name.to_owned(), value));
    }
    let (mut printed, mut ended) = (Vec::new(), Vec::new());
    for (_, command) in BREAK_OUTS {
        let (text, in_time) = run(command, variables.clone())?;
        printed.extend(text);
        ended.push(in_time);
    }
    // A kill arrives before the end of its input.
    drop(victim.stdin.take());
    let is_killed = victim.wait()?.signal().is_some();
    let is_changed = fs_err::read(&outside).ok().as_deref() != Some(content.as_bytes());
    let effects = [
        is_changed || contains(&printed, content.as_bytes()),
        tcp.accept().is_ok(),
        is_killed || contains(&printed, key.as_bytes()),
    ];
    Ok(std::array::from_fn(|n| Attempt {
        had_effect: effects[n],
        ended: ended[n],
    }))
}

/// Returns a random string; hash keys are the standard library's only source of randomness.
fn random() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hanging_command_is_killed_keeping_output() {
        let bare =
            |command: &str, limit| run_bare(Path::new("/"), command, Vec::new(), limit).unwrap();
        let (printed, ended) = bare("echo first; sleep 1000 | cat", Duration::from_secs(1));
        assert_eq!((&printed[..], ended), (&b"first\n"[..], false));
        let (printed, ended) = bare("echo all", Duration::from_secs(60));
        assert_eq!((&printed[..], ended), (&b"all\n"[..], true));
    }

    #[test]
    fn only_what_works_outside_and_ends_inside_was_stopped() {
        let attempt = |had_effect, ended| Attempt { had_effect, ended };
        let (works, hangs) = (attempt(true, true), attempt(true, false));
        let (fails, stuck) = (attempt(false, true), attempt(false, false));
        for (bare, sandboxed, outcome, says) in [
            (works, fails, Outcome::Ok, "stopped"),
            (hangs, fails, Outcome::Ok, "stopped"),
            (works, stuck, Outcome::Info, "not tested"),
            (fails, fails, Outcome::Info, "not tested"),
            (stuck, fails, Outcome::Info, "not tested"),
            (works, works, Outcome::Fail, "ESCAPED"),
            (works, hangs, Outcome::Fail, "ESCAPED"),
            (fails, works, Outcome::Fail, "ESCAPED"),
        ] {
            let check = judge("fly", false, bare, sandboxed);
            let is_right = check.outcome == outcome && check.found.contains(says);
            assert!(is_right, "{bare:?}, {sandboxed:?}: {check:?}");
        }
        assert_eq!(judge("fly", true, works, works).outcome, Outcome::Info);
    }
}
