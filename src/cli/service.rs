//! `bantam service`: a systemd unit that keeps the gateway of this home running.
//!
//! What stands in it is chosen so that the jail goes on to work: that needs namespaces, mounts and a `/proc` over which
//! nothing else is mounted (so no `RestrictNamespaces`, `ProtectProc`, `ProtectKernelTunables` and `ProtectKernelLogs`), and the
//! gateway asks the kernel whether the clock is kept (so no `ProtectClock`, which forbids the question, too). The jail has a
//! host name of its own (so no `ProtectHostname`, which forbids to give it one).

use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::args::{Args, Command, Flag};
use super::{print, tell};
use crate::app;
use crate::config::{self, Env};
use crate::error::{Context, Error, Result};

pub(super) const COMMAND: Command = Command {
    name: "service",
    words: "",
    about: "a systemd unit that keeps the gateway running; redirect it into a file",
    flags: &[Flag::new(None, "system", "", "one for the system, which root installs (root gets this one anyway)")],
    run,
};

/// For any manager. Most of it is explained in systemd.service(5) and systemd.exec(5).
const COMMON: &str = "\
Restart=on-failure
RestartSec=5
# Neither wrong usage (2) nor a wrong configuration (3) gets better by itself.
RestartPreventExitStatus=2 3
# It says that it lives after every poll, and while it waits for the network.
WatchdogSec=180
# What is under way has three seconds; what is left is taken up at the next start.
TimeoutStopSec=15
KillMode=mixed
# A command that takes too much memory is ended, and not all the rest with it.
OOMPolicy=continue
TasksMax=512
LimitCORE=0
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
";

/// For the manager of the system.
const SYSTEM: &str = "\
KeyringMode=private
PrivateDevices=yes
ProtectControlGroups=yes
ProtectKernelModules=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallFilter=~@cpu-emulation @module @obsolete @raw-io @reboot @swap
SystemCallErrorNumber=EPERM
";

fn run(given: &Args, env: &Env) -> Result<u8> {
    let home = config::home(env)?;
    let file = config::read(&home)?;
    let loaded = config::load_for(&home, file.as_deref(), env, Vec::new())?;
    let program = std::env::current_exe().doing("finding this program")?;
    // Without a slash at its end.
    let root: PathBuf = std::path::absolute(home.root())?.components().collect();
    let own = rustix::process::geteuid();
    let is_system = given.has("system") || own.is_root();
    let mut unit = String::from("[Unit]\nDescription=bantam, a personal AI agent\n");
    if is_system {
        unit.push_str("Wants=network-online.target\nAfter=network-online.target\n");
    }
    unit.push_str("# It is tried for ever.\nStartLimitIntervalSec=0\n\n[Service]\nType=notify\n");
    unit.push_str(&format!("ExecStart={} gateway\n", quoted("", &program)?));
    unit.push_str(&format!("Environment={}\n", quoted("BANTAM_HOME=", &root)?));
    unit.push_str(
        "# Keys that your shell has in variables are not there for a service. Either a file of NAME=VALUE lines:\n\
         #EnvironmentFile=/etc/bantam.env\n\
         # or one file for each, named in config.json as \"file:telegram-token\":\n\
         #LoadCredential=telegram-token:/etc/bantam/telegram-token\n",
    );
    // Who owns the home runs it; the one who asks owns one that is not there yet.
    let owner = fs_err::metadata(&root).map_or(own.as_raw(), |meta| meta.uid());
    if is_system && owner == 0 {
        unit.push_str("# It runs as root. Better is a user of its own, who owns the home:\n#User=bantam\n");
    } else if is_system {
        // Whoever is not root has none, and gets none; in a namespace of its own the jail has all it needs.
        unit.push_str(&format!("User={owner}\nCapabilityBoundingSet=\n"));
    }
    unit.push_str(COMMON);
    if is_system {
        unit.push_str(SYSTEM);
        // What lies there would be hidden from it.
        let is_hidden = |path: &Path| path.starts_with("/tmp") || path.starts_with("/var/tmp");
        if !is_hidden(&root) && !is_hidden(&program) {
            unit.push_str("PrivateTmp=yes\n");
        }
        let defaults = &loaded.config.agents.defaults;
        // Whoever lets tools loose means the places that they can write to, too.
        if defaults.restrict_to_workspace {
            unit.push_str("ProtectSystem=strict\nProtectHome=read-only\n");
            let mut open = vec![root.clone(), app::workspace(&home, &loaded.config, env)?];
            open.extend(app::trees(&home, &loaded.config.tools.write_paths, "tools.write_paths", env)?);
            open.retain(|path| *path == root || !path.starts_with(&root));
            for path in open {
                // One that is not there stands in nobody's way.
                unit.push_str(&format!("ReadWritePaths={}\n", quoted("-", &path)?));
            }
        } else {
            unit.push_str("ProtectSystem=full\n");
        }
    }
    let target = if is_system { "multi-user.target" } else { "default.target" };
    unit.push_str(&format!("\n[Install]\nWantedBy={target}\n"));
    print(&unit)?;
    if !root.exists() {
        tell(&format!("bantam: there is no {} yet; bantam onboard makes it", root.display()));
    }
    if io::stderr().is_terminal() {
        tell(if is_system {
            "bantam: next, as root:\n  bantam service --system >/etc/systemd/system/bantam.service\n  \
             systemctl daemon-reload\n  systemctl enable --now bantam"
        } else {
            "bantam: next:\n  mkdir -p ~/.config/systemd/user\n  \
             bantam service >~/.config/systemd/user/bantam.service\n  systemctl --user daemon-reload\n  \
             systemctl --user enable --now bantam\n  loginctl enable-linger   # it runs also when you are not logged in"
        });
    }
    Ok(0)
}

/// `before` and a path as one word of a unit, as systemd.syntax(7) and systemd.unit(5) demand it.
fn quoted(before: &str, path: &Path) -> Result<String> {
    let text = path.to_str().filter(|text| !text.contains(char::is_control));
    let text = text.ok_or_else(|| {
        Error::failed(format!("{:?} cannot stand in a unit", path.display()))
            .hint("give it a name without such characters")
    })?;
    let mut out = format!("\"{before}");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            // Alone it would stand for something else.
            '%' => out.push_str("%%"),
            c => out.push(c),
        }
    }
    out.push('"');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_that_means_itself() {
        let quoted = |path: &str| quoted("", Path::new(path)).map_err(|e| e.message);
        assert_eq!(quoted("/usr/bin/bantam").unwrap(), "\"/usr/bin/bantam\"");
        assert_eq!(quoted("/a b/100%/\"x\"\\$HOME/日本").unwrap(), "\"/a b/100%%/\\\"x\\\"\\\\$HOME/日本\"");
        assert!(quoted("/a\nUser=root").unwrap_err().contains("cannot stand in a unit"));
    }
}
