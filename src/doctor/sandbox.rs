//! The sandbox: which kinds of confinement work here, and which one holds commands.

use std::path::Path;

use rustix::process::geteuid;

use super::Check;
use super::kernel::{landlock_fix, namespace_fixes, read_file};
use crate::cancel::Cancel;
use crate::child::{self, Network, Sandbox};
use crate::config::{Env, Exec};
use crate::error::Result;
use crate::sys;
use crate::worker::protocol::{ExecJob, Header, Job};
use crate::worker::{Confinement, Workers};

const NAME: &str = "sandbox";
const LANDLOCK_ALONE: &str = "without namespaces commands change no modes, owners or times by path and have no sockets and no \
    shared memory, so git init and clone, tar x, rsync -a, programs linked by gcc, and servers fail: see `bantam help sandbox`";
const ROOT: &str = "root, which bantam does not need; commands do not get root's rights, but where root owns the workspace they \
    read what only root may in /usr, /opt and /etc, and the kernel does not limit their number";

/// The user that bantam runs as.
pub(crate) fn user(home: &Path) -> Check {
    let user = geteuid();
    if !user.is_root() {
        return Check::ok("user", format!("{}, not root", user.as_raw()));
    }
    let add = if Path::new("/usr/sbin/useradd").exists() {
        "useradd --system --create-home --home-dir /var/lib/bantam --shell /usr/sbin/nologin bantam"
    } else {
        "adduser -S -D -h /var/lib/bantam -s /sbin/nologin bantam"
    };
    let all = super::quoted(&home.join("."));
    Check::info("user", ROOT)
        .command(add)
        .command(format!("cp -a {all} /var/lib/bantam/ && chown -R bantam: /var/lib/bantam && chmod 700 /var/lib/bantam"))
}

/// Enters each kind of confinement, then runs a command as the model's are run. Returns whether a command can run in the sandbox.
pub(crate) fn sandbox(
    workers: &Workers,
    exec: &Exec,
    env: &Env,
    report: &mut dyn FnMut(Check),
) -> Result<bool> {
    let cancel = Cancel::new(None);
    let abi = sys::landlock_abi();
    let exe = std::env::current_exe().unwrap_or_else(|_| "/usr/local/bin/bantam".into());
    let namespace_fixes = || namespace_fixes(&exe, env, &read_file);
    let namespaces = workers.try_confinement(Confinement::Namespaces, &cancel)?;
    let landlock = workers.try_confinement(Confinement::Landlock, &cancel)?;
    let any = namespaces.is_ok() || landlock.is_ok();
    let has_commands = exec.sandbox != Sandbox::Off && exec.enabled && child::has_shell();
    report(match &namespaces {
        Ok(layers) => {
            let found = layers
                .lines()
                .find_map(|layer| layer.strip_prefix("namespaces: "));
            Check::ok("namespaces", found.unwrap_or("open"))
        }
        Err(why) => {
            let fixes = if any || !has_commands {
                namespace_fixes()
            } else {
                Vec::new()
            };
            Check::info("namespaces", format!("refused: {why}")).fixes(fixes)
        }
    });
    report(match (&abi, &landlock) {
        (Ok(_), Err(why)) => {
            Check::info("landlock", format!("not enough without namespaces: {why}"))
        }
        (Ok(abi), Ok(_)) => Check::ok("landlock", format!("version {abi}")),
        (Err(e), _) => Check::info("landlock", format!("none: {e}")),
    });
    if !has_commands {
        report(if !child::has_shell() {
            Check::info(NAME, "there is no /bin/sh, so no commands run")
        } else if exec.sandbox == Sandbox::Off {
            let found = "tools.exec.sandbox is \"off\": nothing confines a command; it can read, change and reach whatever you can";
            Check::info(NAME, found).fix("remove \"sandbox\": \"off\" from config.json")
        } else {
            Check::info(NAME, "tools.exec.enabled is false: no commands run")
        });
        return Ok(false);
    }
    match run(workers, "true", Vec::new()).and_then(|_| active_layers(workers)) {
        Ok(layers) => report(Check::ok(
            NAME,
            format!("commands are confined by {layers}"),
        )),
        Err(e) => {
            report(
                Check::fail(NAME, e.message)
                    .fixes(namespace_fixes())
                    .fixes(landlock_fix(&abi, &read_file))
                    .fix("or, to do without commands: \"tools\": {\"exec\": {\"enabled\": false}} in config.json"),
            );
            return Ok(false);
        }
    }
    if workers.confinement() == Some(Confinement::Landlock) {
        report(Check::info("programs", LANDLOCK_ALONE));
    }
    if exec.network == Network::Guarded && workers.confinement() == Some(Confinement::Landlock) {
        report(Check::info(
            "network",
            "\"guarded\" needs namespaces, so commands have no network at all",
        ));
    }
    Ok(true)
}

/// The layers that hold commands, as a process in the sandbox reports them.
fn active_layers(workers: &Workers) -> Result<String> {
    let layers = workers
        .call(&Job::Layers, &Cancel::new(None))?
        .into_text()?;
    let layers = layers.lines().filter(|layer| !layer.ends_with(": none"));
    Ok(layers.collect::<Vec<_>>().join("; "))
}

/// Runs a command as the model's are run, and returns its output.
pub(super) fn run(workers: &Workers, command: &str, env: Vec<(String, String)>) -> Result<Vec<u8>> {
    let job = ExecJob {
        command: command.to_owned(),
        working_dir: ".".to_owned(),
        timeout_secs: 20,
        env,
        ..ExecJob::default()
    };
    let reply = workers.call(&Job::Exec(job), &Cancel::new(None))?;
    match reply.header {
        Header::Exited { .. } => Ok(reply.body),
        other => Err(other.into_error()),
    }
}
