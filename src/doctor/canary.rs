//! Canaries: commands that try to escape from the jail on this machine, run exactly as the model's commands are.
//!
//! Each runs twice: first as a plain child of this program, as a control; then in the jail, where it must have no effect.
//! This process checks the effects: in its own files, at its own sockets, and on a process that it started. A command's
//! output counts only if it contains the secret.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{Check, jail};
use crate::child::{self, Network};
use crate::disk;
use crate::error::{Context, Error, Result};
use crate::hands::Hands;
use crate::paths::Home;

const NAME: &str = "canary";

/// What the canaries run with.
pub(crate) struct Subject<'a> {
    pub home: &'a Home,
    pub hands: &'a Hands,
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

const KILL: &str = r#"kill -9 "$VICTIM""#;

/// What each tries, and its command.
const CANARIES: &[(&str, &str)] = &[
    ("read or change a file beside config.json", r#"cat "$OUTSIDE"; echo changed >"$OUTSIDE""#),
    ("write into agent/", r#"mkdir -p "$AGENT"; echo obey >"$AGENT/$MARK""#),
    ("read the key of another process", r#"cat "/proc/$VICTIM/cmdline" "/proc/$VICTIM/environ""#),
    ("connect to a TCP port of this machine", TCP),
    ("connect to a unix socket", UNIX),
    ("kill another process", KILL),
    ("leave a process behind", DAEMON),
];

/// Tries every canary.
pub(crate) fn run(subject: &Subject, report: &mut dyn FnMut(Check)) -> Result<()> {
    let mut targets = Targets::set_up(subject).doing("setting up the canaries")?;
    CANARIES.iter().try_for_each(|(tries, command)| {
        report(targets.check(tries, command)?);
        Ok(())
    })
}

/// What the canaries attack, made for them.
struct Targets<'a> {
    subject: &'a Subject<'a>,
    /// Unique to this run.
    mark: String,
    /// A secret that is in files and processes, and never in a command.
    secret: String,
    dir: PathBuf,
    outside: PathBuf,
    had_agent: bool,
    tcp: TcpListener,
    unix: UnixListener,
    victim: Victim,
}

/// The standard library's hash keys are its only source of randomness.
fn random() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

impl<'a> Targets<'a> {
    fn set_up(subject: &'a Subject<'a>) -> Result<Self> {
        let (mark, secret) = (format!("bantam-doctor-{}-{}", std::process::id(), random()), random());
        let dir = subject.home.root().join(format!(".{mark}"));
        disk::make_dir(&dir)?;
        let outside = dir.join("outside");
        disk::write_new(&outside, secret.as_bytes())?;
        let (tcp, unix) = (TcpListener::bind(("127.0.0.1", 0))?, UnixListener::bind(dir.join("socket"))?);
        tcp.set_nonblocking(true)?;
        unix.set_nonblocking(true)?;
        let (had_agent, victim) = (subject.home.agent().exists(), Victim::start(&secret)?);
        Ok(Self { subject, mark, secret, dir, outside, had_agent, tcp, unix, victim })
    }

    /// The same bare and in the jail.
    fn variables(&self) -> Result<Vec<(String, String)>> {
        let home = self.subject.home;
        let text = |path: PathBuf| {
            path.into_os_string().into_string().map_err(|_| Error::failed("the path of the home is not UTF-8"))
        };
        let mut variables = self.subject.passed.clone();
        for (name, value) in [
            ("MARK", self.mark.clone()),
            ("OUTSIDE", text(self.outside.clone())?),
            ("AGENT", text(home.agent())?),
            ("SOCKET", text(self.dir.join("socket"))?),
            ("PORT", self.tcp.local_addr()?.port().to_string()),
            ("VICTIM", self.victim.child.id().to_string()),
        ] {
            variables.push((name.to_owned(), value));
        }
        Ok(variables)
    }

    fn check(&mut self, tries: &str, command: &str) -> Result<Check> {
        let printed = self.run_bare(command)?;
        if !self.take_effects(&printed)? {
            let found = format!("{tries}: not tested, because it fails here without a jail, too");
            return Ok(Check::info(NAME, found));
        }
        let printed = jail::run(self.subject.hands, command, self.variables()?).doing(tries)?;
        if !self.take_effects(&printed)? {
            return Ok(Check::ok(NAME, format!("{tries}: stopped")));
        }
        if command == TCP && self.subject.network == Network::Full {
            let found = format!("{tries}: allowed, because tools.exec.network is \"full\"");
            return Ok(Check::info(NAME, found).fix("\"tools\": {\"exec\": {\"network\": \"none\"}} in config.json"));
        }
        let mut check = Check::fail(NAME, format!("{tries}: ESCAPED"));
        if command == KILL {
            check = check.fix("namespaces, or Landlock from Linux 6.12 on, prevent this: see the lines on both above");
        }
        Ok(check
            .fix("until this is fixed, disable commands: \"tools\": {\"exec\": {\"enabled\": false}} in config.json"))
    }

    /// Runs a command as this program's own child: the control.
    fn run_bare(&self, command: &str) -> Result<Vec<u8>> {
        let output = child::command(Path::new("/bin/sh"))
            .args(["-c", command])
            .envs(self.variables()?)
            .current_dir(&self.subject.hands.workspace().real)
            .stdout(Stdio::piped())
            .output()
            .doing("running /bin/sh")?;
        Ok(output.stdout)
    }

    /// Whether anything happened to the targets, which are restored for the next try.
    fn take_effects(&mut self, printed: &[u8]) -> Result<bool> {
        let changed = fs_err::read(&self.outside).unwrap_or_default() != self.secret.as_bytes();
        if changed {
            disk::remove(&self.outside)?;
            disk::write_new(&self.outside, self.secret.as_bytes())?;
        }
        let agent = self.subject.home.agent();
        let (file, made) = (agent.join(&self.mark), !self.had_agent && agent.exists());
        let written = made || file.exists();
        disk::remove(if made { &agent } else { &file })?;
        let killed = !self.victim.answers();
        if killed {
            self.victim.end()?;
            self.victim = Victim::start(&self.secret)?;
        }
        let left = processes_with(&self.mark)?;
        for pid in &left {
            match kill_process(*pid, Signal::KILL) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(e) => return Err(Error::from(e).doing("killing a canary")),
            }
        }
        let connected = was_reached(|| self.tcp.accept().map(drop))? | was_reached(|| self.unix.accept().map(drop))?;
        Ok(contains(printed, self.secret.as_bytes()) || changed || written || killed || !left.is_empty() || connected)
    }
}

impl Drop for Targets<'_> {
    fn drop(&mut self) {
        // Nothing can be done about a failure.
        self.victim.end().and_then(|()| disk::remove(&self.dir)).ok();
    }
}

/// Accepts every waiting connection and says whether there was one.
fn was_reached(accept: impl Fn() -> std::io::Result<()>) -> Result<bool> {
    let mut reached = false;
    loop {
        match accept() {
            Ok(()) => reached = true,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(reached),
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
            Err(e) => return Err(Error::from(e).doing("listening for canaries")),
        }
    }
}

/// A process with a key in its arguments and its environment. It echoes lines, which shows that it is alive.
struct Victim {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Victim {
    fn start(secret: &str) -> Result<Self> {
        let mut child = child::command(Path::new("/bin/sh"))
            .args(["-c", "while read -r line; do echo \"$line\"; done", secret])
            .env("KEY", secret)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .doing("running /bin/sh")?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::failed("the canaries' victim has no pipes"));
        };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn answers(&mut self) -> bool {
        let mut line = String::new();
        self.input.write_all(b"?\n").is_ok() && self.output.read_line(&mut line).is_ok_and(|read| read > 0)
    }

    fn end(&mut self) -> Result<()> {
        self.child.kill().and_then(|()| self.child.wait()).map(drop).doing("killing the canaries' victim")
    }
}

/// The processes with this word in their command line.
fn processes_with(mark: &str) -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        // It may be gone by now.
        if fs_err::read(entry.path().join("cmdline")).is_ok_and(|line| contains(&line, mark.as_bytes())) {
            found.push(pid);
        }
    }
    Ok(found)
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}
