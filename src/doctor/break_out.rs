//! Three commands that try to break out of the sandbox on this machine (files, network, processes), run exactly like the
//! model's commands.
//!
//! This process checks the effects: in its own file, at its own port, and on a process that it started. Their output counts
//! only if it contains a secret.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use super::sandbox::{self, NO_COMMANDS};
use super::{Check, Outcome};
use crate::child::{self, Network};
use crate::error::{Context, Result};
use crate::paths::Home;
use crate::storage;
use crate::worker::Workers;

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

type Effects = [bool; BREAK_OUTS.len()];

/// Runs the attempts.
pub(crate) fn run(subject: &Subject) -> Result<Vec<Check>> {
    let effects = attack(subject)?;
    let checks = BREAK_OUTS.iter().zip(effects);
    let checks = checks.map(|((tries, command), had_effect)| {
        let is_open = *command == TCP && subject.network == Network::Full;
        judge(tries, is_open, had_effect)
    });
    Ok(summarize(checks.collect()))
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
fn judge(tries: &str, is_open: bool, had_effect: bool) -> Check {
    match (had_effect, is_open) {
        (true, true) => {
            let found = format!("{tries}: allowed, because tools.exec.network is \"full\"");
            Check::info(NAME, found).fix("bantam config set tools.exec.network none")
        }
        (true, false) => Check::fail(NAME, format!("{tries}: ESCAPED")).fix(format!(
            "until this is fixed, do without commands: {NO_COMMANDS}"
        )),
        (false, _) => Check::ok(NAME, format!("{tries}: stopped")),
    }
}

/// Creates the targets of the commands, runs them all, and removes the targets.
fn attack(subject: &Subject) -> Result<Effects> {
    let mark = format!(".bantam-doctor-{}-{}", std::process::id(), random());
    let dir = subject.home.root().join(mark);
    storage::make_dir(&dir).map_err(|e| subject.home.hinted(e))?;
    let effects = effects(subject, &dir).doing("trying to break out");
    storage::remove(&dir)?;
    effects
}

fn effects(subject: &Subject, dir: &Path) -> Result<Effects> {
    let (content, key, outside) = (random(), random(), dir.join("outside"));
    storage::write_new(&outside, content.as_bytes())?;
    let tcp = TcpListener::bind(("127.0.0.1", 0))?;
    tcp.set_nonblocking(true)?;
    // The target process ends with its input.
    let mut victim = child::command(Path::new(child::SHELL));
    victim.args(["-c", "read -r line"]).env("KEY", &key);
    victim.stdin(Stdio::piped());
    let mut victim = victim.spawn().doing("running /bin/sh")?;
    let mut variables = subject.passed.clone();
    let targets = [
        ("OUTSIDE", outside.display().to_string()),
        ("PORT", tcp.local_addr()?.port().to_string()),
        ("VICTIM", victim.id().to_string()),
    ];
    variables.extend(targets.map(|(name, value)| (name.to_owned(), value)));
    let mut printed = Vec::new();
    for (_, command) in BREAK_OUTS {
        printed.extend(sandbox::run(subject.workers, command, variables.clone())?.0);
    }
    // A kill arrives before the end of its input.
    drop(victim.stdin.take());
    let is_killed = victim.wait()?.signal().is_some();
    let is_changed = fs_err::read(&outside).ok().as_deref() != Some(content.as_bytes());
    Ok([
        is_changed || contains(&printed, content.as_bytes()),
        tcp.accept().is_ok(),
        is_killed || contains(&printed, key.as_bytes()),
    ])
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
    fn an_effect_is_an_escape_unless_it_is_allowed() {
        for (is_open, had_effect, outcome, says) in [
            (false, false, Outcome::Ok, "stopped"),
            (true, false, Outcome::Ok, "stopped"),
            (false, true, Outcome::Fail, "ESCAPED"),
            (true, true, Outcome::Info, "allowed"),
        ] {
            let check = judge("fly", is_open, had_effect);
            assert_eq!(check.outcome, outcome, "{check:?}");
            assert!(check.found.contains(says), "{check:?}");
        }
    }
}
