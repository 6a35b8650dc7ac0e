//! Checks the confinement of commands on this machine.

use super::Check;
use crate::cancel::Cancel;
use crate::child::{self, Sandbox};
use crate::config::Exec;
use crate::error::{Error, Result};
use crate::sys;
use crate::tool::exec::ending;
use crate::worker::protocol::{ExecJob, Termination};
use crate::worker::{Confinement, Workers};

const NAME: &str = "sandbox";
/// Time limit of a command, in seconds; some versions of nc wait forever.
const LIMIT_SECS: u64 = 10;
/// Output of the control command.
const WORD: &str = "works";
/// Command that disables commands.
pub(super) const NO_COMMANDS: &str = "bantam config set tools.exec.enabled false";

/// Runs a command like the model's. The first check is good if commands can run in the sandbox.
pub(crate) fn checks(workers: &Workers, exec: &Exec) -> Vec<Check> {
    let off = if !child::has_shell() {
        "there is no /bin/sh, so no commands run"
    } else if exec.sandbox == Sandbox::Off {
        "tools.exec.sandbox is \"off\": shell commands are not confined and can do everything you can"
    } else if !exec.enabled {
        "tools.exec.enabled is false, so shell commands are off"
    } else {
        ""
    };
    if !off.is_empty() {
        return vec![Check::info(NAME, off)];
    }
    if let Err(e) = control(workers) {
        let fix = format!("bantam help sandbox    # or do without commands: {NO_COMMANDS}");
        return vec![Check::of_error(NAME, e).fix(fix)];
    }
    let confined = format!("commands are confined by {}", layers(workers));
    let mut checks = vec![Check::ok(NAME, confined)];
    if workers.confinement() == Some(Confinement::Landlock) {
        let found = "namespaces are refused: git clone, tar x, rsync -a, and anything that uses sockets will fail";
        checks.push(Check::info(NAME, found).fix("bantam help sandbox"));
    }
    checks
}

/// Lists the layers that confine commands.
fn layers(workers: &Workers) -> String {
    let mut layers = Vec::new();
    if workers.confinement() == Some(Confinement::Namespaces) {
        layers.push("namespaces");
    }
    if sys::landlock_abi().is_ok() {
        layers.push("Landlock");
    }
    layers.push("a system call filter");
    layers.join(", ")
}

/// Checks that an ordinary command works in the sandbox, because otherwise a failed break-out proves nothing.
fn control(workers: &Workers) -> Result<()> {
    // Like the attempts, it starts programs, also in the background, and writes and removes a file.
    let command =
        format!("echo {WORD} >doctor-control && cat doctor-control & wait; rm doctor-control");
    let (printed, end) = run(workers, &command, Vec::new())?;
    let why = match ending(end, LIMIT_SECS) {
        None if printed.trim_ascii() == WORD.as_bytes() => return Ok(()),
        None => format!("a command that prints {WORD} printed something else"),
        Some(ending) => ending,
    };
    let what = format!("an ordinary command fails in the sandbox: {why}");
    Err(Error::failed(what))
}

/// Runs a command like the model's. Returns its output and how it ended.
pub(super) fn run(
    workers: &Workers,
    command: &str,
    env: Vec<(String, String)>,
) -> Result<(Vec<u8>, Termination)> {
    let job = ExecJob {
        command: command.to_owned(),
        working_dir: ".".to_owned(),
        timeout_secs: LIMIT_SECS,
        env,
        ..ExecJob::default()
    };
    let output = workers.run(job, &Cancel::new(None))?;
    Ok((output.printed, output.end))
}
