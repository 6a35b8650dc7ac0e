//! Canaries: commands that try to escape from the sandbox on this machine, run exactly as the model's commands are.
//!
//! All run twice: first as a plain child of this program, as a control; then in the sandbox, where they must have no effect.
//! This process checks the effects: in its own files, at its own sockets, and on a process that it started. What they print
//! counts only if it contains a secret.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use super::{Check, sandbox};
use crate::child::{self, Network};
use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::storage;
use crate::worker::Workers;

const NAME: &str = "canary";

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

/// For each canary in [`CANARIES`], whether it had an effect.
type Effects = [bool; CANARIES.len()];
type Variables = Vec<(String, String)>;

/// Lets the canaries try.
pub(crate) fn run(subject: &Subject) -> Result<Vec<Check>> {
    let bare = attack(subject, &|script, variables| {
        run_bare(subject, script, variables)
    })?;
    let sandboxed = attack(subject, &|script, variables| {
        sandbox::run(subject.workers, script, variables)
    })?;
    Ok(CANARIES
        .iter()
        .zip(bare)
        .zip(sandboxed)
        .map(|(((tries, command), bare), out)| match (bare, out) {
            (_, true) if *command == TCP && subject.network == Network::Full => {
                Check::info(NAME, format!("{tries}: allowed, because tools.exec.network is \"full\""))
                    .fix("\"tools\": {\"exec\": {\"network\": \"none\"}} in config.json")
            }
            (_, true) => Check::fail(NAME, format!("{tries}: ESCAPED"))
                .fix(
                    "until this is fixed, disable commands: \"tools\": {\"exec\": {\"enabled\": false}} in config.json",
                )
                .fix("namespaces, or Landlock from Linux 6.12 on, stop more: see their lines above"),
            (true, false) => Check::ok(NAME, format!("{tries}: stopped")),
            (false, false) => {
                Check::info(NAME, format!("{tries}: not tested, because it fails here without a sandbox, too"))
            }
        })
        .collect())
}

/// Runs a command as this program's own child: the control.
fn run_bare(subject: &Subject, command: &str, variables: Variables) -> Result<Vec<u8>> {
    let mut shell = child::command(Path::new("/bin/sh"));
    shell
        .args(["-c", command])
        .envs(variables)
        .current_dir(&subject.workers.workspace().real);
    Ok(shell
        .stdout(Stdio::piped())
        .output()
        .doing("running /bin/sh")?
        .stdout)
}

/// Makes what the canaries attack, runs them all, and removes it.
fn attack(subject: &Subject, run: &dyn Fn(&str, Variables) -> Result<Vec<u8>>) -> Result<Effects> {
    let mark = format!("bantam-doctor-{}-{}", std::process::id(), random());
    let (dir, agent) = (
        subject.home.root().join(format!(".{mark}")),
        subject.home.agent(),
    );
    let had_agent = agent.exists();
    storage::make_dir(&dir).map_err(|e| subject.home.hinted(e))?;
    let effects = effects(subject, &mark, &dir, run).doing("trying the canaries");
    storage::remove(&agent.join(&mark))?;
    // Nobody else has put something into it meanwhile.
    if !had_agent && fs_err::read_dir(&agent).is_ok_and(|mut entries| entries.next().is_none()) {
        storage::remove(&agent)?;
    }
    storage::remove(&dir)?;
    effects
}

fn effects(
    subject: &Subject,
    mark: &str,
    dir: &Path,
    run: &dyn Fn(&str, Variables) -> Result<Vec<u8>>,
) -> Result<Effects> {
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
    let script = CANARIES
        .map(|(_, command)| format!("({command}\n)\n"))
        .concat();
    let printed = run(&script, variables)?;
    // What kills it arrives before the end of its input.
    drop(victim.stdin.take());
    let left = processes_with(mark)?;
    for pid in &left {
        // It may be gone by now.
        kill_process(*pid, Signal::KILL).ok();
    }
    Ok([
        contains(&printed, content.as_bytes())
            || fs_err::read(&outside).ok() != Some(content.into_bytes()),
        agent.join(mark).exists(),
        contains(&printed, key.as_bytes()),
        tcp.accept().is_ok(),
        unix.accept().is_ok(),
        victim.wait()?.signal().is_some(),
        !left.is_empty(),
    ])
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
