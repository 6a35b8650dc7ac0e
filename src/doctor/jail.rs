//! The jail: which ways to it stand open here, and which one commands are held in.

use std::path::Path;

use rustix::process::geteuid;

use super::Check;
use super::kernel::{self, Facts};
use crate::cancel::Cancel;
use crate::child::{Network, Sandbox};
use crate::config::Exec;
use crate::error::{Error, Result};
use crate::hands::{Confinement, Hands};
use crate::wire::{ExecJob, Header, Job};

const WHAT: &str = "jail";

/// Whose rights bantam has. As root it does not hand them on, but it needs none of them.
pub fn user(home: &Path) -> Check {
    let me = geteuid();
    if !me.is_root() {
        return Check::well("user", format!("{}, not root", me.as_raw()));
    }
    let add = if Path::new("/usr/sbin/useradd").exists() {
        "useradd --system --create-home --home-dir /var/lib/bantam --shell /usr/sbin/nologin bantam"
    } else {
        "adduser -S -D -h /var/lib/bantam -s /sbin/nologin bantam"
    };
    let all = home.join(".");
    let all = all.to_string_lossy();
    let all = shell_words::quote(&all);
    Check::aside("user", "root; commands do not get root's rights, but bantam is better off without them, too")
        .fix(add)
        .fix(format!("cp -a {all} /var/lib/bantam/ && chown -R bantam: /var/lib/bantam && chmod 700 /var/lib/bantam"))
}

/// What was found about the jail.
pub struct Jail {
    pub checks: Vec<Check>,
    /// A command can be run in it.
    pub holds: bool,
}

/// Really enters each way, then runs a command as any other command is run.
pub fn jail(hands: &Hands, exec: &Exec, facts: &Facts) -> Result<Jail> {
    let cancel = Cancel::new(None);
    let abi = kernel::landlock_abi();
    let namespaces = hands.try_confinement(Confinement::Namespaces, &cancel)?;
    let alone = hands.try_confinement(Confinement::Landlock, &cancel)?;
    let some = namespaces.is_ok() || alone.is_ok();
    let wanted = exec.sandbox != Sandbox::Off && exec.enabled;
    let tips = |lines: Vec<String>| if some || !wanted { lines } else { Vec::new() };
    let mut checks = vec![
        match &namespaces {
            Ok(layers) => Check::well("namespaces", line(layers, "namespaces")),
            Err(why) => Check::aside("namespaces", format!("refused: {why}")).fixes(tips(facts.open_namespaces())),
        },
        match &alone {
            Err(why) if abi.is_ok() => Check::aside("landlock", format!("of no use alone: {why}")),
            Ok(_) | Err(_) => kernel::landlock(&abi),
        },
    ];
    if exec.sandbox == Sandbox::Off {
        let found =
            "tools.exec.sandbox is \"off\": nothing holds a command; it can read, change and reach all that you can";
        checks.push(Check::aside(WHAT, found).fix("take \"sandbox\": \"off\" out of config.json"));
        return Ok(Jail { checks, holds: false });
    }
    if !exec.enabled {
        let held =
            if some { "file tools work in it" } else { "there is none; file tools work through held directories" };
        checks.push(Check::aside(WHAT, format!("tools.exec.enabled is false: no commands run; {held}")));
        return Ok(Jail { checks, holds: false });
    }
    let check = match run(hands, "true", Vec::new()).and_then(|_| in_force(hands)) {
        Ok(layers) => Check::well(WHAT, format!("commands are held by {layers}")),
        Err(e) => Check::fails(WHAT, e.message)
            .fixes(facts.open_namespaces())
            .fixes(facts.open_landlock(&abi))
            .fix("or, to go without commands: \"tools\": {\"exec\": {\"enabled\": false}} in config.json"),
    };
    let holds = check.verdict == super::Verdict::Well;
    checks.push(check);
    let confinement = hands.confinement();
    if exec.network == Network::Guarded && confinement == Some(Confinement::Landlock) {
        checks.push(Check::aside("network", "\"guarded\" takes namespaces, so commands have no network at all"));
    }
    Ok(Jail { checks, holds })
}

/// The layers that the last call was held by, as its process tells them.
fn in_force(hands: &Hands) -> Result<String> {
    let reply = hands.call(&Job::Layers, &Cancel::new(None))?;
    match reply.header {
        Header::Text => {
            let layers = String::from_utf8_lossy(&reply.body).into_owned();
            let parts = layers.lines().filter(|layer| !layer.ends_with(": none"));
            Ok(parts.collect::<Vec<_>>().join("; "))
        }
        _ => Err(Error::failed("the hands answered another question")),
    }
}

/// Runs a command as the model's are run, and gives what it printed.
pub(super) fn run(hands: &Hands, command: &str, env: Vec<(String, String)>) -> Result<Vec<u8>> {
    let job = ExecJob { command: command.to_owned(), working_dir: ".".to_owned(), timeout_secs: 20, env };
    let reply = hands.call(&Job::Exec(job), &Cancel::new(None))?;
    match reply.header {
        Header::Exited { .. } => Ok(reply.body),
        other => Err(other.into_error()),
    }
}

/// What a layer's line says.
fn line(layers: &str, name: &str) -> String {
    let found = layers.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    found.unwrap_or("open").to_owned()
}
