//! Canaries: commands that try to escape from the sandbox on this machine, run exactly as the model's commands are.
//!
//! All run twice: first as a plain child of this program, as a control; then in the sandbox, where they must have no effect.
//! This process checks the effects: in its own files, at its own sockets, and on a process that it started. What they print
//! counts only if it contains a secret. Each has a time limit, and one that does not end in the sandbox proves nothing.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::sandbox::{self, LIMIT_SECS, NO_COMMANDS};
use super::{Check, Outcome};
use crate::child::{self, Network};
use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::storage;
use crate::sys;
use crate::worker::Workers;
use crate::worker::protocol::Termination;

const NAME: &str = "break-out";

/// What the canaries run with.
pub(crate) struct Subject<'a> {
    pub home: &'a Home,
    pub workers: &'a Workers,
    /// The user's variables that every command gets.
    pub passed: Vec<(String, String)>,
    pub network: Network,
}

/// Connects with whichever tool there is.
const TCP: &str = r#"
if command -v bash; then bash -c '3<>"/dev/tcp/127.0.0.1/$PORT"'
elif command -v python3; then python3 -c 'import os, socket; socket.create_connection(("127.0.0.1", int(os.environ["PORT"])), 2)'
else nc -w 1 127.0.0.1 "$PORT" </dev/null; fi"#;
const UNIX: &str = r#"
if command -v perl; then perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); connect(S, pack_sockaddr_un($ENV{SOCKET}))'
elif command -v python3; then python3 -c 'import os, socket; socket.socket(socket.AF_UNIX).connect(os.environ["SOCKET"])'
elif command -v curl; then curl -s -m 1 --unix-socket "$SOCKET" http://x/
else nc -w 1 -U "$SOCKET" </dev/null; fi"#;
/// Prints `up` once it runs, so that the check is not too early.
const DAEMON: &str = r#"
new=$(command -v setsid)
($new sh -c 'echo up; exec >/dev/null; while :; do sleep 1; done' "$MARK" </dev/null 2>/dev/null &) | { read -r up; echo "$up"; }"#;

/// What each tries, and its command.
const CANARIES: [(&str, &str); 7] = [
    (
        "read or change a file beside config.json",
        r#"cat "$OUTSIDE"; echo changed >"$OUTSIDE""#,
    ),
    (
        "write into agent/",
        r#"mkdir -p "$AGENT"; echo obey >"$AGENT/$MARK""#,
    ),
    (
        "read the key of another process",
        r#"cat "/proc/$VICTIM/cmdline" "/proc/$VICTIM/environ""#,
    ),
    ("connect to a TCP port of this machine", TCP),
    ("connect to a unix socket", UNIX),
    ("kill another process", r#"kill -9 "$VICTIM""#),
    ("leave a process behind", DAEMON),
];

/// What one canary did.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    had_effect: bool,
    /// Within the time limit.
    ended: bool,
}

type Attempts = [Attempt; CANARIES.len()];
type Variables = Vec<(String, String)>;
/// Runs a command, and returns what it printed and whether it ended within the time limit.
type RunCommand<'a> = &'a dyn Fn(&str, Variables) -> Result<(Vec<u8>, bool)>;

/// Lets the canaries try.
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
    for (n, (tries, command)) in CANARIES.iter().enumerate() {
        let is_open = *command == TCP && subject.network == Network::Full;
        checks.push(judge(tries, is_open, bare[n], sandboxed[n]));
    }
    Ok(summarize(checks))
}

/// One line for all attempts that were stopped, and one for each other.
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

/// `is_open`: the configuration opens to commands what this canary tries to reach.
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

/// Runs a command as this program's own child: the control.
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

/// Makes what the canaries attack, runs them all, and removes it.
fn attack(subject: &Subject, run: RunCommand) -> Result<Attempts> {
    let mark = format!("bantam-doctor-{}-{}", std::process::id(), random());
    let (dir, agent) = (
        subject.home.root().join(format!(".{mark}")),
        subject.home.agent(),
    );
    let had_agent = agent.exists();
    storage::make_dir(&dir).map_err(|e| subject.home.hinted(e))?;
    let attempts = attempts(subject, &mark, &dir, run).doing("trying the canaries");
    storage::remove(&agent.join(&mark))?;
    // Nobody else has put something into it meanwhile.
    if !had_agent && fs_err::read_dir(&agent).is_ok_and(|mut entries| entries.next().is_none()) {
        storage::remove(&agent)?;
    }
    storage::remove(&dir)?;
    attempts
}

fn attempts(subject: &Subject, mark: &str, dir: &Path, run: RunCommand) -> Result<Attempts> {
    let (content, key, agent) = (random(), random(), subject.home.agent());
    let (outside, socket) = (dir.join("outside"), dir.join("socket"));
    storage::write_new(&outside, content.as_bytes())?;
    let (tcp, unix) = (
        TcpListener::bind(("127.0.0.1", 0))?,
        UnixListener::bind(&socket)?,
    );
    tcp.set_nonblocking(true)?;
    unix.set_nonblocking(true)?;
    // It ends with its input.
    let mut victim = child::command(Path::new("/bin/sh"));
    victim
        .args(["-c", "read -r line", &key])
        .env("KEY", &key)
        .stdin(Stdio::piped());
    let mut victim = victim.spawn().doing("running /bin/sh")?;
    let text = |path: &Path| {
        path.to_str()
            .map(str::to_owned)
            .ok_or_else(|| Error::failed("the path is not UTF-8"))
    };
    let mut variables = subject.passed.clone();
    for (name, value) in [
        ("MARK", mark.to_owned()),
        ("OUTSIDE", text(&outside)?),
        ("AGENT", text(&agent)?),
        ("SOCKET", text(&socket)?),
        ("PORT", tcp.local_addr()?.port().to_string()),
        ("VICTIM", victim.id().to_string()),
    ] {
        variables.push((name.to_owned(), value));
    }
    let (mut printed, mut ended) = (Vec::new(), Vec::new());
    for (_, command) in CANARIES {
        let (text, in_time) = run(command, variables.clone())?;
        printed.extend(text);
        ended.push(in_time);
    }
    // What kills it arrives before the end of its input.
    drop(victim.stdin.take());
    let left = processes_with(mark)?;
    for pid in &left {
        // It may be gone by now.
        kill_process(*pid, Signal::KILL).ok();
    }
    let effects = [
        contains(&printed, content.as_bytes())
            || fs_err::read(&outside).ok() != Some(content.into_bytes()),
        agent.join(mark).exists(),
        contains(&printed, key.as_bytes()),
        tcp.accept().is_ok(),
        unix.accept().is_ok(),
        victim.wait()?.signal().is_some(),
        !left.is_empty(),
    ];
    Ok(std::array::from_fn(|n| Attempt {
        had_effect: effects[n],
        ended: ended[n],
    }))
}

/// The standard library's hash keys are its only source of randomness.
fn random() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// The processes with this word in their command line.
fn processes_with(mark: &str) -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
            .and_then(Pid::from_raw)
        else {
            continue;
        };
        // It may be gone by now.
        if fs_err::read(entry.path().join("cmdline"))
            .is_ok_and(|line| contains(&line, mark.as_bytes()))
        {
            found.push(pid);
        }
    }
    Ok(found)
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_command_that_hangs_is_killed_and_keeps_what_it_printed() {
        let bare =
            |command: &str, limit| run_bare(Path::new("/"), command, Vec::new(), limit).unwrap();
        let (printed, ended) = bare("echo first; sleep 1000 | cat", Duration::from_secs(1));
        assert_eq!((&printed[..], ended), (&b"first\n"[..], false));
        let (printed, ended) = bare("echo all", Duration::from_secs(60));
        assert_eq!((&printed[..], ended), (&b"all\n"[..], true));
    }

    #[test]
    fn only_a_canary_that_works_outside_and_ends_inside_was_stopped() {
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
