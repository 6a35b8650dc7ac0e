//! Canaries: commands that try to get out of the jail, on this very machine, by the way that the model's commands go.
//!
//! Each is tried twice. First bare, as a child of this program: when that has no effect, it proves nothing here, and the
//! check says so. Then in the jail, where it must have none. Effects are looked for from this process: in its own files,
//! at its own sockets, on processes that it started. A command's own word counts only where it is the loot itself.
//! The commands are aimed at nothing but what is set up here, and the real `config.json`, which is only read.

use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{Check, jail};
use crate::child::{self, Network};
use crate::config::Env;
use crate::disk;
use crate::error::{Context, Error, Result};
use crate::hands::Hands;
use crate::paths::Home;

/// Where the canaries are let loose.
pub struct Ground<'a> {
    pub home: &'a Home,
    pub hands: &'a Hands,
    pub env: &'a Env,
    /// The variables that every command gets.
    pub passed: Vec<(String, String)>,
    pub network: Network,
}

/// What a command would have done, had it got out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    ReadsOutside,
    ReadsConfig,
    ReadsSession,
    WritesOutside,
    WritesAgent,
    ReachesTcp,
    ReachesAbstract,
    ReachesPath,
    SeesProcess,
    EndsProcess,
    LeavesChild,
    ReadsKey,
}

struct Canary {
    tries: &'static str,
    effect: Effect,
    command: &'static str,
}

const fn canary(tries: &'static str, effect: Effect, command: &'static str) -> Canary {
    Canary { tries, effect, command }
}

/// Connecting takes a tool, and which one is there differs.
const TCP: &str = r#"
if command -v perl; then perl -MSocket -e 'socket(S, PF_INET, SOCK_STREAM, 0); connect(S, pack_sockaddr_in($ENV{PORT}, inet_aton("127.0.0.1")))'
elif command -v python3; then python3 -c 'import os, socket; socket.create_connection(("127.0.0.1", int(os.environ["PORT"])), 2)'
elif command -v bash; then bash -c '3<>"/dev/tcp/127.0.0.1/$PORT"'
elif command -v nc; then nc -w 1 127.0.0.1 "$PORT" </dev/null
else curl -s -m 1 "http://127.0.0.1:$PORT/"; fi"#;
const ABSTRACT: &str = r#"
if command -v perl; then perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); connect(S, pack_sockaddr_un("\0$ENV{MARK}"))'
elif command -v python3; then python3 -c 'import os, socket; socket.socket(socket.AF_UNIX).connect("\0" + os.environ["MARK"])'
else curl -s -m 1 --abstract-unix-socket "$MARK" http://x/; fi"#;
const PATHNAME: &str = r#"
if command -v perl; then perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); connect(S, pack_sockaddr_un($ENV{SOCKET}))'
elif command -v python3; then python3 -c 'import os, socket; socket.socket(socket.AF_UNIX).connect(os.environ["SOCKET"])'
elif command -v curl; then curl -s -m 1 --unix-socket "$SOCKET" http://x/
else nc -w 1 -U "$SOCKET" </dev/null; fi"#;
/// It says when it is up, so that nobody looks for it too early.
const DAEMON: &str = r#"
new=$(command -v setsid)
($new sh -c 'echo up; exec >/dev/null; while :; do sleep 1; done' "$MARK" </dev/null 2>/dev/null &) | { read -r up; echo "$up"; }"#;

const CANARIES: &[Canary] = &[
    canary("read a file outside the workspace", Effect::ReadsOutside, r#"cat "$OUTSIDE""#),
    canary("read config.json", Effect::ReadsConfig, r#"cat "$CONFIG""#),
    canary("read a conversation", Effect::ReadsSession, r#"cat "$SESSION""#),
    canary("overwrite a file outside the workspace", Effect::WritesOutside, r#"echo changed >"$OUTSIDE""#),
    canary("write into agent/", Effect::WritesAgent, r#"mkdir -p "$AGENT"; echo obey >"$AGENT/$MARK""#),
    canary("connect to a TCP port of this machine", Effect::ReachesTcp, TCP),
    canary("connect to an abstract unix socket", Effect::ReachesAbstract, ABSTRACT),
    canary("connect to a unix socket by its path", Effect::ReachesPath, PATHNAME),
    canary("see another process", Effect::SeesProcess, r#"cat "/proc/$VICTIM/cmdline""#),
    canary("kill another process", Effect::EndsProcess, r#"kill -9 "$VICTIM""#),
    canary("leave a process behind", Effect::LeavesChild, DAEMON),
    canary("read a key from an environment", Effect::ReadsKey, r#"env; cat "/proc/$VICTIM/environ""#),
];

/// Tries every canary.
pub fn run(ground: &Ground, tell: &mut dyn FnMut(Check)) -> Result<()> {
    let mut stage = Stage::set(ground)?;
    let result = CANARIES.iter().try_for_each(|canary| {
        tell(stage.judge(canary)?);
        Ok(())
    });
    result.and(stage.redact())
}

/// What the canaries are aimed at.
struct Stage<'a> {
    ground: &'a Ground<'a>,
    /// No other run, and nobody else, has this word.
    mark: String,
    dir: PathBuf,
    outside: PathBuf,
    session: PathBuf,
    had_agent: bool,
    config: Vec<u8>,
    tcp: TcpListener,
    abstract_socket: UnixListener,
    path_socket: UnixListener,
    victim: Victim,
}

/// Words that stand in the files and processes to be robbed, and nowhere in the commands.
struct Loot(String);

impl Loot {
    fn of(&self, what: &str) -> String {
        format!("{what}-loot-{}", self.0)
    }
}

fn random() -> String {
    // The standard library's hash keys are its only source of randomness, and enough for a name.
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

impl<'a> Stage<'a> {
    fn set(ground: &'a Ground<'a>) -> Result<Self> {
        let word = random();
        let mark = format!("bantam-doctor-{}-{word}", std::process::id());
        let dir = ground.home.root().join(format!(".{mark}"));
        // No folder is left behind that was not there: root may be looking after somebody else's home.
        let sessions = Some(ground.home.sessions()).filter(|sessions| sessions.is_dir());
        let session = sessions.unwrap_or_else(|| dir.clone()).join(format!(".{mark}"));
        disk::make_dir(&dir)?;
        let made = (|| {
            let tcp = TcpListener::bind(("127.0.0.1", 0))?;
            let abstract_socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&mark)?)?;
            let path_socket = UnixListener::bind(dir.join("socket"))?;
            tcp.set_nonblocking(true)?;
            abstract_socket.set_nonblocking(true)?;
            path_socket.set_nonblocking(true)?;
            let victim = Victim::start()?;
            let stage = Self {
                ground,
                outside: dir.join("outside"),
                had_agent: ground.home.agent().exists(),
                config: fs_err::read(ground.home.config()).unwrap_or_default(),
                dir: dir.clone(),
                session: session.clone(),
                mark,
                tcp,
                abstract_socket,
                path_socket,
                victim,
            };
            stage.plant()?;
            Ok(stage)
        })();
        made.map_err(|e: Error| {
            // The first error is the one to tell.
            drop(disk::remove(&dir));
            drop(disk::remove(&session));
            e.doing("setting up the canaries")
        })
    }

    fn plant(&self) -> Result<()> {
        for (path, what) in [(&self.outside, "outside"), (&self.session, "session")] {
            disk::remove(path)?;
            disk::write_new(path, self.victim.loot.of(what).as_bytes())?;
        }
        Ok(())
    }

    fn redact(mut self) -> Result<()> {
        self.victim.end()?;
        disk::remove(&self.session)?;
        disk::remove(&self.dir)
    }

    /// What the commands know of it. The same bare and in the jail.
    fn variables(&self) -> Result<Vec<(String, String)>> {
        let home = self.ground.home;
        let text = |path: PathBuf| {
            OsString::from(path).into_string().map_err(|_| Error::failed("the path of the home is not UTF-8"))
        };
        let mut variables = self.ground.passed.clone();
        for (name, value) in [
            ("MARK", self.mark.clone()),
            ("OUTSIDE", text(self.outside.clone())?),
            ("CONFIG", text(home.config())?),
            ("SESSION", text(self.session.clone())?),
            ("AGENT", text(home.agent())?),
            ("SOCKET", text(self.dir.join("socket"))?),
            ("PORT", self.tcp.local_addr()?.port().to_string()),
            ("VICTIM", self.victim.child.id().to_string()),
        ] {
            variables.push((name.to_owned(), value));
        }
        Ok(variables)
    }

    fn judge(&mut self, canary: &Canary) -> Result<Check> {
        const WHAT: &str = "canary";
        let Canary { tries, effect, command } = canary;
        if *effect == Effect::ReadsConfig && self.config.is_empty() {
            return Ok(Check::aside(WHAT, format!("{tries}: there is none")));
        }
        let printed = self.bare(command)?;
        if !self.had(*effect, &printed)? {
            let found = format!("{tries}: not tried: here it does not work without a jail either");
            return Ok(Check::aside(WHAT, found));
        }
        let printed = jail::run(self.ground.hands, command, self.variables()?).doing(tries)?;
        if !self.had(*effect, &printed)? {
            if *effect == Effect::LeavesChild && !holds(&printed, b"up") {
                return Ok(Check::aside(WHAT, format!("{tries}: not tried: it could not be started in the jail")));
            }
            return Ok(Check::well(WHAT, format!("{tries}: held")));
        }
        let by_network = matches!(effect, Effect::ReachesTcp | Effect::ReachesAbstract);
        if by_network && self.ground.network == Network::Full {
            let found = format!("{tries}: it can, as tools.exec.network is \"full\"");
            return Ok(Check::aside(WHAT, found).fix("\"tools\": {\"exec\": {\"network\": \"none\"}} in config.json"));
        }
        let mut check = Check::fails(WHAT, format!("{tries}: IT GOT OUT"));
        if matches!(effect, Effect::EndsProcess | Effect::ReachesAbstract) {
            check =
                check.fix("Landlock guards this from Linux 6.12 on, namespaces do on any: see the lines on both above");
        }
        Ok(check
            .fix("until this is understood, no commands: \"tools\": {\"exec\": {\"enabled\": false}} in config.json"))
    }

    /// Runs a command as this program's own child: the control.
    fn bare(&self, command: &str) -> Result<Vec<u8>> {
        let output = child::command(Path::new("/bin/sh"))
            .args(["-c", command])
            .envs(self.variables()?)
            .current_dir(self.ground.hands.workspace())
            .stdout(Stdio::piped())
            .output()
            .doing("running /bin/sh")?;
        Ok(output.stdout)
    }

    /// Whether the effect is there. Afterwards it is gone, for the next try.
    fn had(&mut self, effect: Effect, printed: &[u8]) -> Result<bool> {
        let loot = &self.victim.loot;
        match effect {
            Effect::ReadsOutside => Ok(holds(printed, loot.of("outside").as_bytes())),
            Effect::ReadsSession => Ok(holds(printed, loot.of("session").as_bytes())),
            Effect::ReadsConfig => Ok(printed == self.config),
            Effect::WritesOutside => {
                let now = fs_err::read(&self.outside).unwrap_or_default();
                let changed = now != loot.of("outside").as_bytes();
                self.plant()?;
                Ok(changed)
            }
            Effect::WritesAgent => {
                let agent = self.ground.home.agent();
                let (file, made) = (agent.join(&self.mark), !self.had_agent && agent.exists());
                let written = file.exists();
                disk::remove(&file)?;
                if made {
                    disk::remove(&agent)?;
                }
                Ok(written || made)
            }
            Effect::ReachesTcp => heard(|| self.tcp.accept().map(drop)),
            Effect::ReachesAbstract => heard(|| self.abstract_socket.accept().map(drop)),
            Effect::ReachesPath => heard(|| self.path_socket.accept().map(drop)),
            Effect::SeesProcess => Ok(holds(printed, loot.of("line").as_bytes())),
            Effect::EndsProcess => {
                let ended = !self.victim.answers();
                if ended {
                    self.victim.end()?;
                    // The same loot again: the planted files have it, too.
                    self.victim = Victim::with(Loot(self.victim.loot.0.clone()))?;
                }
                Ok(ended)
            }
            Effect::LeavesChild => {
                let left = alive(&self.mark)?;
                for pid in &left {
                    match kill_process(*pid, Signal::KILL) {
                        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                        Err(e) => return Err(Error::from(e).doing("ending a canary")),
                    }
                }
                Ok(!left.is_empty())
            }
            Effect::ReadsKey => Ok(holds(printed, loot.of("key").as_bytes()) || self.shows_environment(printed)),
        }
    }

    /// Whether anything of this program's own environment is there that a command is not given.
    fn shows_environment(&self, printed: &[u8]) -> bool {
        const GIVEN: [&str; 8] = ["PATH", "LANG", "HOME", "TERM", "PWD", "OLDPWD", "SHLVL", "_"];
        let passed = |name: &str| self.ground.passed.iter().any(|(passed, _)| passed == name);
        let own = self.ground.env.iter().filter(|(name, value)| {
            // What is short stands in other places, too.
            value.len() >= 8 && !GIVEN.contains(&name.as_str()) && !passed(name)
        });
        own.into_iter().any(|(name, value)| holds(printed, format!("{name}={value}").as_bytes()))
    }
}

/// Whether somebody connected; whoever did is taken off the queue.
fn heard(accept: impl Fn() -> std::io::Result<()>) -> Result<bool> {
    let mut heard = false;
    loop {
        match accept() {
            Ok(()) => heard = true,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(heard),
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
            Err(e) => return Err(Error::from(e).doing("listening for canaries")),
        }
    }
}

/// A process with a key in its environment. It answers each line on its input, so that whether it lives can be asked.
struct Victim {
    loot: Loot,
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Victim {
    fn start() -> Result<Self> {
        Self::with(Loot(random()))
    }

    fn with(loot: Loot) -> Result<Self> {
        let mut child = child::command(Path::new("/bin/sh"))
            .args(["-c", "while read -r line; do echo \"$line\"; done", &loot.of("line")])
            .env("KEY", loot.of("key"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .doing("running /bin/sh")?;
        let (Some(asks), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::failed("the canaries' victim has no pipes"));
        };
        Ok(Self { loot, child, asks, answers: BufReader::new(answers) })
    }

    /// One that was killed does not, however soon it is asked.
    fn answers(&mut self) -> bool {
        let mut line = String::new();
        self.asks.write_all(b"?\n").is_ok() && self.answers.read_line(&mut line).is_ok_and(|read| read > 0)
    }

    fn end(&mut self) -> Result<()> {
        self.child.kill().and_then(|()| self.child.wait()).map(drop).doing("ending the canaries' victim")
    }
}

/// The processes that have this word in their command line.
fn alive(mark: &str) -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        // It may have gone meanwhile.
        if fs_err::read(entry.path().join("cmdline")).is_ok_and(|line| holds(&line, mark.as_bytes())) {
            found.push(pid);
        }
    }
    Ok(found)
}

fn holds(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}
